//! A report as Markdown with tables, as code forges and static pages render it. Charts are shown as tables of their
//! data.

use std::io;

use super::footnotes::{self, Footnotes};
use super::numbers;
use super::words::one_line;
use super::{Block, Cell, Report, Table, data, method};
use crate::record::Run;

/// Approximate maximum number of rows of a table of a chart's data.
const CHART_ROWS: usize = 40;

/// Writes a report as Markdown.
pub(super) fn write(report: &Report, run: &Run, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "# {}", escaped(&report.title))?;
    for text in &report.summary {
        writeln!(out, "\n{}", escaped(text))?;
    }
    for section in report.sections.iter().chain([&method::section(run)]) {
        writeln!(out, "\n## {}", escaped(&section.heading))?;
        for block in &section.blocks {
            writeln!(out)?;
            match block {
                Block::Text(text) => writeln!(out, "{}", escaped(text))?,
                Block::List(points) => {
                    for point in points {
                        writeln!(out, "- {}", escaped(point))?;
                    }
                }
                Block::Commands(commands) => {
                    // The text of indented code cannot end it, unlike that of fenced code.
                    for command in commands {
                        writeln!(out, "    {}", one_line(command))?;
                    }
                }
                Block::Table(table) => write_table(table, out)?,
                Block::Bars(bars) => write_table(&data::of_bars(bars), out)?,
                Block::Lines(lines) => {
                    let mut table = data::of_lines(lines);
                    if data::thinned(&mut table, CHART_ROWS) {
                        table.notes.push("Only some of the points are shown here.".into());
                    }
                    write_table(&table, out)?;
                }
            }
        }
    }
    Ok(())
}

fn write_table(table: &Table, out: &mut dyn io::Write) -> io::Result<()> {
    writeln!(out, "**{}**\n", escaped(&table.caption))?;
    let footnotes = Footnotes::new(table);
    let columns = 0..table.columns.len();
    let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    writeln!(out, "{}", row(table.columns.iter().map(|name| escaped(name)).collect()))?;
    let rule = |column| if footnotes::is_numeric(table, column) { "---:" } else { "---" };
    writeln!(out, "{}", row(columns.clone().map(|column| rule(column).into()).collect()))?;
    for cells in &table.rows {
        let text =
            |column| cells.get(column).map_or_else(String::new, |cell| cell_text(cell, &footnotes));
        writeln!(out, "{}", row(columns.clone().map(text).collect()))?;
    }
    let mut below = Vec::new();
    below
        .extend(footnotes.iter().map(|(number, reason)| format!("[{number}] {}", escaped(reason))));
    below.extend(footnotes::legend(table));
    below.extend(table.notes.iter().map(|note| escaped(note)));
    for text in below {
        writeln!(out, "\n{text}")?;
    }
    Ok(())
}

fn cell_text(cell: &Cell, footnotes: &Footnotes<'_>) -> String {
    let figure = numbers::of(cell).unwrap_or_default();
    match cell {
        Cell::Text(text) => escaped(text),
        Cell::Published { .. } => format!("*{figure}*"),
        Cell::Failed(reason) | Cell::NotMeasured(reason) => {
            let what = footnotes::missing(cell).map_or("", |(what, _)| what);
            format!("{what} [{}]", footnotes.number(reason))
        }
        Cell::Empty => String::new(),
        Cell::Number { .. }
        | Cell::Interval { .. }
        | Cell::Percent { .. }
        | Cell::Change { .. } => figure,
    }
}

/// Escapes all markup of a text.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    let line = one_line(text);
    for (at, letter) in line.char_indices() {
        match letter {
            // Renderers permit different parts of HTML, but all show an entity as text.
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' => escaped.extend(['\\', letter]),
            // These are markup at the beginning of a line.
            '#' | '+' | '-' | '=' if escaped.is_empty() => escaped.extend(['\\', letter]),
            '.' | ')' if is_number(&line[..at]) && !line[at + 1..].starts_with(is_word) => {
                escaped.extend(['\\', letter]);
            }
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Whether a following period or bracket would make the text the number of a list item.
fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_word(letter: char) -> bool {
    !letter.is_whitespace()
}

#[cfg(test)]
mod tests {
    use super::super::{BarSeries, Bars, Section, sample};
    use super::*;

    fn text(report: &Report, run: &Run) -> String {
        let mut text = Vec::new();
        write(report, run, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn markup_in_a_text_is_text() {
        assert_eq!(escaped("<script>&"), "&lt;script&gt;&amp;");
        assert_eq!(escaped("a|b_c*d`e\n# f"), "a\\|b\\_c\\*d\\`e # f");
        assert_eq!(escaped("# f"), "\\# f");
        assert_eq!(escaped("1. f"), "1\\. f");
        assert_eq!(escaped("![x](http://y)"), "!\\[x\\](http://y)");
        assert_eq!(escaped("1.5 - 2"), "1.5 - 2");
        assert_eq!(escaped("1."), "1\\.");
    }

    #[test]
    fn every_row_of_a_table_has_as_many_cells_as_its_head() {
        let (report, run) = sample::hostile();
        let text = text(&report, &run);
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let rules = text.lines().enumerate().filter(|(_, line)| line.starts_with("| ---"));
        let lines: Vec<_> = text.lines().collect();
        for (at, rule) in rules {
            assert_eq!(cells(lines[at - 1]), cells(rule));
            for row in lines[at + 1..].iter().take_while(|line| !line.is_empty()) {
                assert_eq!(cells(row), cells(rule), "{row}");
            }
        }
        // Code contains no markup.
        let mut prose = text.lines().filter(|line| !line.starts_with("    "));
        assert!(prose.all(|line| !line.contains("<script")));
    }

    #[test]
    fn a_report_begins_as_it_stands_here() {
        let (_, run) = sample::hostile();
        let bars = Bars {
            caption: "Writes".into(),
            unit: "IOPS".into(),
            groups: vec!["4K".into()],
            series: vec![
                BarSeries {
                    name: "us".into(),
                    values: vec![Some(45_291.2)],
                    half_widths: vec![Some(455.3)],
                    ..BarSeries::default()
                },
                BarSeries {
                    name: "them".into(),
                    values: vec![Some(40_000.0)],
                    published: true,
                    ..BarSeries::default()
                },
            ],
            ..Bars::default()
        };
        let section = Section { heading: "Figures".into(), blocks: vec![Block::Bars(bars)] };
        let report = Report {
            title: "A study".into(),
            summary: vec!["Fast.".into()],
            sections: vec![section],
        };
        let expected = "# A study\n\nFast.\n\n## Figures\n\n**Writes (IOPS)**\n\n\
            |  | us | them |\n| --- | ---: | ---: |\n\
            | 4K | 45,291\u{a0}±\u{a0}455 | *40,000* |\n\n\
            Figures in italics were published by others. \
            ± is half the 95\u{a0}% confidence interval of the mean.\n\n\
            ## Method of measurement\n";
        let text = text(&report, &run);
        assert_eq!(text.get(..expected.len()), Some(expected), "{text}");
    }
}
