//! A run as one long table for other programs: a row for each figure of each sample.
//!
//! Columns: `run`, `study`, `scale`, one for each dimension of the labels by its name, then `repetition`, `ended_at`
//! (seconds since the Unix epoch), `outcome` (`measured`, `failed` or `not_measured`), `figure`, `value` and `text` (a
//! reason, or a measured text). Only the JSON format contains histograms and time series.

use std::collections::BTreeSet;
use std::io;

use super::{Block, data, numbers};
use super::{Cell, Report, Table};
use crate::record::{Outcome, Run, Sample};

/// A column: its name, the type of its values in the words of the Data Package standard, and a description.
pub(super) type Column<'a> = (String, &'static str, &'a str);

/// Columns before the labels.
const BEFORE: [(&str, &str, &str); 3] = [
    ("run", "integer", "number of the run in its archive"),
    ("study", "string", "name of the study"),
    ("scale", "string", "quick or full"),
];
/// Columns after the labels.
const BEHIND: [(&str, &str, &str); 6] = [
    ("repetition", "integer", "number of the repetition of the cell"),
    ("ended_at", "integer", "end of the measurement, seconds since 1970 (UTC)"),
    ("outcome", "string", "measured, failed or not_measured"),
    ("figure", "string", "name of the figure; figures.csv has its unit"),
    ("value", "number", "value of the figure"),
    ("text", "string", "a reason, or a measured text"),
];

/// Writes all samples.
pub(super) fn write(run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(columns(run).iter().map(|(name, ..)| name))?;
    let dimensions = dimensions(run);
    for sample in &run.samples {
        let mut begin = vec![run.id.to_string(), harmless(&run.study), run.scale.to_string()];
        let label = |dimension: &&str| harmless(sample.labels.value(dimension).unwrap_or_default());
        begin.extend(dimensions.iter().map(label));
        begin.extend([sample.repetition.to_string(), sample.ended_at.to_string()]);
        for rest in rows(sample) {
            writer.write_record(begin.iter().chain(&rest))?;
        }
    }
    writer.flush()
}

/// Returns the columns of [`write()`].
pub(super) fn columns(run: &Run) -> Vec<Column<'static>> {
    let fixed = |(name, kind, what): (&str, _, _)| (name.to_owned(), kind, what);
    let label =
        |dimension| (column(dimension), "string", "a label of the cell, empty if it has none");
    let labels = dimensions(run).into_iter().map(label);
    BEFORE.into_iter().map(fixed).chain(labels).chain(BEHIND.into_iter().map(fixed)).collect()
}

fn dimensions(run: &Run) -> BTreeSet<&str> {
    let labels = run.samples.iter().flat_map(|sample| sample.labels.iter());
    labels.map(|(dimension, _)| dimension).collect()
}

/// Returns every table of a report, and the data of every chart, as CSV with a name for its file. The interval of a
/// figure is a separate column; missing figures are explained in words.
pub(super) fn tables(report: &Report) -> io::Result<Vec<(String, String)>> {
    let blocks = report.sections.iter().flat_map(|section| &section.blocks);
    let tables = blocks.filter_map(|block| match block {
        Block::Table(table) => Some(table.clone()),
        Block::Bars(bars) => Some(data::of_bars(bars)),
        Block::Lines(lines) => Some(data::of_lines(lines)),
        Block::Text(_) | Block::List(_) | Block::Commands(_) => None,
    });
    let named = (1..).zip(tables).map(|(number, table): (u32, _)| {
        Ok((format!("{number:02}-{}.csv", slug(&table.caption)), of_table(&table)?))
    });
    named.collect()
}

/// Returns the column name of a dimension. The name gets a prefix if another column already has it.
fn column(dimension: &str) -> String {
    if BEFORE.iter().chain(&BEHIND).any(|(name, ..)| *name == dimension) {
        format!("label_{dimension}")
    } else {
        harmless(dimension)
    }
}

/// Returns the columns `outcome`, `figure`, `value`, `text`.
fn rows(sample: &Sample) -> Vec<[String; 4]> {
    let measures = match &sample.outcome {
        Outcome::Measured(measures) => measures,
        Outcome::Failed(reason) => return vec![missing("failed", reason)],
        Outcome::NotMeasured(reason) => return vec![missing("not_measured", reason)],
    };
    let figures = measures
        .figures
        .iter()
        .map(|(name, value)| ["measured".into(), harmless(name), value.to_string(), String::new()]);
    let texts = measures
        .texts
        .iter()
        .map(|(name, text)| ["measured".into(), harmless(name), String::new(), harmless(text)]);
    figures.chain(texts).collect()
}

fn missing(outcome: &str, reason: &str) -> [String; 4] {
    [outcome.into(), String::new(), String::new(), harmless(reason)]
}

fn of_table(table: &Table) -> io::Result<String> {
    let has_interval = |column: usize| {
        let mut cells = table.rows.iter().filter_map(|row| row.get(column));
        cells.any(|cell| matches!(cell, Cell::Interval { half_width: Some(_), .. }))
    };
    let has_interval: Vec<bool> = (0..table.columns.len()).map(has_interval).collect();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let names = table.columns.iter().zip(&has_interval).flat_map(|(name, &has_interval)| {
        let name = harmless(name);
        let half_width = has_interval.then(|| format!("{name} ±"));
        [name].into_iter().chain(half_width)
    });
    // CSV writes a record without fields as a record with one empty field.
    writer.write_record(names)?;
    for row in &table.rows {
        let fields = row.iter().zip(&has_interval).flat_map(|(cell, &has_interval)| {
            let half_width = match cell {
                Cell::Interval { half_width: Some(half_width), .. } => half_width.to_string(),
                _ => String::new(),
            };
            [field(cell)].into_iter().chain(has_interval.then_some(half_width))
        });
        let mut fields: Vec<String> = fields.collect();
        fields.resize(
            table.columns.len() + has_interval.iter().filter(|has| **has).count(),
            String::new(),
        );
        writer.write_record(&fields)?;
    }
    let bytes = writer.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

fn field(cell: &Cell) -> String {
    match cell {
        Cell::Text(text) => harmless(text),
        Cell::Failed(reason) => harmless(&format!("failed: {reason}")),
        Cell::NotMeasured(reason) => harmless(&format!("not measured: {reason}")),
        Cell::Empty => String::new(),
        Cell::Number { .. }
        | Cell::Interval { .. }
        | Cell::Percent { .. }
        | Cell::Change { .. }
        | Cell::Published { .. } => {
            numbers::value(cell).map(|value| value.to_string()).unwrap_or_default()
        }
    }
}

/// Returns a text that no spreadsheet interprets as a formula: some texts originate from other machines.
pub(super) fn harmless(text: &str) -> String {
    let starts_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    if starts_formula && text.parse::<f64>().is_err() { format!("'{text}") } else { text.into() }
}

/// Converts a text to lower-case letters, digits and hyphens.
fn slug(text: &str) -> String {
    const LONGEST: usize = 40;
    let lower = text.to_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let slug: String = words.join("-").chars().take(LONGEST).collect();
    if slug.is_empty() { "table".into() } else { slug.trim_end_matches('-').into() }
}

#[cfg(test)]
mod tests {
    use super::super::{Section, sample};
    use super::*;

    #[test]
    fn a_row_is_a_figure_of_a_sample() {
        let (_, run) = sample::hostile();
        let mut text = Vec::new();
        write(&run, &mut text).unwrap();
        let mut reader = csv::Reader::from_reader(&*text);
        let head: Vec<_> = reader.headers().unwrap().iter().map(String::from).collect();
        let expected = [
            "run",
            "study",
            "scale",
            "label_figure",
            "target",
            "repetition",
            "ended_at",
            "outcome",
            "figure",
            "value",
            "text",
        ];
        assert_eq!(head, expected);
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        let measured = rows.iter().find(|row| &row[7] == "measured").unwrap();
        assert_eq!(&measured[8], "iops");
        assert_eq!(measured[9].parse::<f64>().unwrap(), 45_291.256);
        let failed = rows.iter().find(|row| &row[7] == "failed").unwrap();
        assert!(failed[10].starts_with("'=HYPERLINK"), "{failed:?}");
        assert_eq!(&failed[4], sample::NAME);
    }

    #[test]
    fn numbers_stay_numbers_and_formulas_become_texts() {
        assert_eq!(harmless("-1.5"), "-1.5");
        assert_eq!(harmless("=1+1"), "'=1+1");
        assert_eq!(harmless("@x"), "'@x");
        assert_eq!(harmless("tgt"), "tgt");
    }

    #[test]
    fn a_table_has_its_intervals_beside() {
        let table = Table {
            caption: "Reads, \"4 KiB\"".into(),
            columns: vec!["Target".into(), "IOPS".into()],
            rows: vec![
                vec![
                    Cell::Text("a,b".into()),
                    Cell::Interval { mean: 1.25, half_width: Some(0.5), decimals: 1 },
                ],
                vec![Cell::Text("c".into()), Cell::Failed("late".into())],
            ],
            ..Table::default()
        };
        let section = Section { heading: String::new(), blocks: vec![Block::Table(table)] };
        let report = Report { title: String::new(), summary: vec![], sections: vec![section] };
        let expected = "Target,IOPS,IOPS ±\n\"a,b\",1.25,0.5\nc,failed: late,\n";
        assert_eq!(tables(&report).unwrap(), [("01-reads-4-kib.csv".into(), expected.into())]);
    }
}
