//! The comparison of two runs: the differences, and whether they are larger than the noise.

use serde::Serialize;

use crate::record::{Labels, Run, figure};
use crate::report::{Block, Cell, Report, Section, Table};
use crate::statistics::{Difference, Summary, discoveries};

/// The figures that are compared by default.
pub const USUAL: [&str; 3] = [figure::IOPS, figure::P99_US, figure::TARGET_CPU_US_PER_IO];

/// The result of a comparison of one figure of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The difference is larger than the noise.
    Changed,
    /// The difference is within the noise.
    Noise,
    /// One of the runs has one measurement only: no conclusion is possible.
    Unknown,
}

/// A figure of a cell in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The cell.
    pub labels: Labels,
    /// The figure.
    pub figure: String,
    /// Estimate of the first run.
    pub before: Summary,
    /// Estimate of the second run.
    pub after: Summary,
    /// Change from the first run to the second.
    pub difference: Difference,
    /// Verdict, corrected for the number of comparisons.
    pub verdict: Verdict,
}

/// The comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparisons {
    /// The figures of the cells that both runs have.
    pub figures: Vec<Comparison>,
    /// Cells that only one run has, with the number of that run.
    pub unpaired: Vec<(i64, Labels)>,
    /// Differences between the settings of the runs.
    pub settings: Vec<String>,
}

/// Compares these figures of all cells that both runs have.
pub fn compare(before: &Run, after: &Run, figures: &[&str]) -> Comparisons {
    let mut compared = Vec::new();
    let cells = cells(before);
    for labels in &cells {
        for figure in figures {
            let values = |run: &Run| exactly(run, labels, figure);
            let (first, second) = (values(before), values(after));
            let summaries = Summary::of(&first).zip(Summary::of(&second));
            let difference = Difference::between(&first, &second);
            if let (Some((before, after)), Some(difference)) = (summaries, difference) {
                compared.push(Comparison {
                    labels: labels.clone(),
                    figure: (*figure).into(),
                    before,
                    after,
                    difference,
                    verdict: Verdict::Unknown,
                });
            }
        }
    }
    judge(&mut compared);
    let others = self::cells(after);
    let unpaired = unpaired(before, &cells, &others).chain(unpaired(after, &others, &cells));
    Comparisons {
        figures: compared,
        unpaired: unpaired.collect(),
        settings: settings(before, after),
    }
}

/// Returns the cells of a run that the other run does not have, with the number of the run.
fn unpaired(run: &Run, own: &[Labels], other: &[Labels]) -> impl Iterator<Item = (i64, Labels)> {
    let id = run.id;
    own.iter().filter(|labels| !other.contains(labels)).map(move |labels| (id, labels.clone()))
}

/// Returns which of the comparisons with a p-value are larger than the noise.
fn judge(compared: &mut [Comparison]) {
    let p_values: Vec<_> = compared.iter().filter_map(|c| c.difference.p_value).collect();
    let mut found = discoveries(&p_values).into_iter();
    for comparison in compared {
        comparison.verdict = match comparison.difference.p_value.and_then(|_| found.next()) {
            Some(true) => Verdict::Changed,
            Some(false) => Verdict::Noise,
            None => Verdict::Unknown,
        };
    }
}

fn cells(run: &Run) -> Vec<Labels> {
    let mut cells: Vec<Labels> = Vec::new();
    for sample in &run.samples {
        if !cells.contains(&sample.labels) {
            cells.push(sample.labels.clone());
        }
    }
    cells
}

/// Returns the values of the cell with exactly these labels.
fn exactly(run: &Run, labels: &Labels, figure: &str) -> Vec<f64> {
    let cells = run.cells(labels).filter(|sample| sample.labels == *labels);
    cells.filter_map(|sample| sample.figure(figure)).collect()
}

fn settings(before: &Run, after: &Run) -> Vec<String> {
    let mut reported = Vec::new();
    if before.study != after.study {
        reported
            .push(format!("{} is of {}, {} of {}", before.id, before.study, after.id, after.study));
    }
    if before.scale != after.scale {
        reported
            .push(format!("{} is {}, {} is {}", before.id, before.scale, after.id, after.scale));
    }
    let (first, second) = (&before.setting, &after.setting);
    let maps = [
        (&first.plan, &second.plan),
        (&first.machine, &second.machine),
        (&first.versions, &second.versions),
    ];
    for (first, second) in maps {
        let mut names: Vec<_> = first.keys().chain(second.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let value = |map: &std::collections::BTreeMap<String, String>| {
                map.get(name).cloned().unwrap_or_else(|| "unknown".into())
            };
            let (a, b) = (value(first), value(second));
            if a != b {
                reported.push(format!("{name}: {a}, then {b}"));
            }
        }
    }
    if first.network != second.network {
        let (a, b) = (first.network.join("; "), second.network.join("; "));
        reported.push(format!("network: {a}, then {b}"));
    }
    reported
}

/// Returns a comparison as a report.
pub fn report(before: &Run, after: &Run, compared: &Comparisons) -> Report {
    let count = |verdict| compared.figures.iter().filter(|c| c.verdict == verdict).count();
    let (changed, noise) = (count(Verdict::Changed), count(Verdict::Noise));
    let mut sections = Vec::new();
    for wanted in distinct(compared) {
        let (name, unit) = crate::record::figure::split_unit(wanted);
        let rows = compared.figures.iter().filter(|c| c.figure == wanted).map(row);
        let table = Table {
            caption: [name.as_str(), unit].join(", "),
            columns: [
                "Cell".to_owned(),
                format!("Run {}", before.id),
                format!("Run {}", after.id),
                "Change".into(),
                "Real?".into(),
            ]
            .to_vec(),
            rows: rows.collect(),
            ..Table::default()
        };
        sections.push(Section { heading: name, blocks: vec![Block::Table(table)] });
    }
    let mut others: Vec<_> = compared.settings.clone();
    others.extend(compared.unpaired.iter().map(|(id, cell)| format!("only run {id} has {cell}")));
    if !others.is_empty() {
        let blocks = vec![Block::List(others)];
        sections.push(Section { heading: "Other differences".into(), blocks });
    }
    Report {
        title: format!("{}: run {} against run {}", before.study, after.id, before.id),
        summary: vec![format!(
            "Of {} figures, {changed} changed, {noise} differ by no more than the noise, and {} \
             have too few repetitions for a comparison. The comparison uses Welch's test. One in \
             twenty of the figures that changed is expected to be noise (Benjamini and Hochberg).",
            compared.figures.len(),
            compared.figures.len() - changed - noise
        )],
        sections,
    }
}

fn distinct(compared: &Comparisons) -> Vec<&str> {
    let mut figures: Vec<&str> = Vec::new();
    for comparison in &compared.figures {
        if !figures.contains(&comparison.figure.as_str()) {
            figures.push(&comparison.figure);
        }
    }
    figures
}

fn row(comparison: &Comparison) -> Vec<Cell> {
    let decimals = match comparison.before.mean.abs() {
        0.0..10.0 => 2,
        10.0..1000.0 => 1,
        _ => 0,
    };
    let interval = |Summary { mean, half_width, .. }| Cell::Interval { mean, half_width, decimals };
    let verdict = match comparison.verdict {
        Verdict::Changed => "changed",
        Verdict::Noise => "noise",
        Verdict::Unknown => "one value",
    };
    vec![
        Cell::Text(comparison.labels.to_string()),
        interval(comparison.before),
        interval(comparison.after),
        Cell::Change { percent: 100.0 * comparison.difference.relative, decimals: 1 },
        Cell::Text(verdict.into()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Measures, Outcome, Sample, Scale, Setting};

    fn run(id: i64, cells: &[(&str, &[f64])]) -> Run {
        let mut samples = Vec::new();
        for (target, values) in cells {
            for (&value, repetition) in values.iter().zip(1..) {
                let mut measures = Measures::default();
                measures.figures.insert(figure::IOPS.into(), value);
                samples.push(Sample {
                    labels: Labels::new().with("target", target),
                    repetition,
                    ended_at: 0,
                    outcome: Outcome::Measured(measures),
                });
            }
        }
        Run {
            id,
            study: "trinkle".into(),
            scale: Scale::Quick,
            command: String::new(),
            targets_under_test: Vec::new(),
            began_at: 0,
            ended_at: Some(1),
            setting: Setting::default(),
            samples,
        }
    }

    #[test]
    fn changes_differ_from_noise_and_missing_cells() {
        let before = run(
            1,
            &[
                ("fast", &[100.0, 101.0, 99.0]),
                ("same", &[50.0, 55.0, 45.0]),
                ("once", &[10.0]),
                ("gone", &[1.0, 1.0]),
            ],
        );
        let mut after = run(
            2,
            &[("fast", &[150.0, 151.0, 149.0]), ("same", &[52.0, 57.0, 47.0]), ("once", &[20.0])],
        );
        after.setting.machine.insert("kernel".into(), "6.2".into());
        let compared = compare(&before, &after, &USUAL);
        let verdicts: Vec<_> = compared
            .figures
            .iter()
            .map(|c| (c.labels.value("target").unwrap(), c.verdict))
            .collect();
        let expected =
            [("fast", Verdict::Changed), ("same", Verdict::Noise), ("once", Verdict::Unknown)];
        assert_eq!(verdicts, expected);
        assert_eq!(compared.unpaired, [(1, Labels::new().with("target", "gone"))]);
        assert_eq!(compared.settings, ["kernel: unknown, then 6.2"]);
        let report = report(&before, &after, &compared);
        assert!(report.summary[0].contains("1 changed, 1 differ"), "{report:?}");
        assert_eq!(report.sections.len(), 2);
    }

    #[test]
    fn a_run_does_not_differ_from_itself() {
        let run = run(1, &[("a", &[1.0, 2.0, 3.0]), ("b", &[5.0, 5.0])]);
        let compared = compare(&run, &run, &USUAL);
        assert!(compared.figures.iter().all(|c| c.verdict == Verdict::Noise), "{compared:?}");
        assert!(compared.unpaired.is_empty() && compared.settings.is_empty());
    }
}
