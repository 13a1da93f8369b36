//! The last section of every report: the method of the measurement, and the missing results.

use std::collections::BTreeMap;

use super::words::{duration, utc};
use super::{Block, Cell, Section, Table};
use crate::record::{Outcome, Run, Sample};

/// Returns the information that a reader needs to assess or repeat a run.
pub(super) fn section(run: &Run) -> Section {
    let setting = &run.setting;
    let mut blocks = vec![
        Block::Table(facts("The run", identity(run))),
        Block::Table(facts("The plan", pairs(&setting.plan))),
        Block::Table(facts("The machine", pairs(&setting.machine))),
        Block::Table(facts("Versions", pairs(&setting.versions))),
    ];
    blocks.retain(|block| !matches!(block, Block::Table(table) if table.rows.is_empty()));
    if !setting.network.is_empty() {
        blocks.push(Block::Text("The network:".into()));
        blocks.push(Block::List(setting.network.clone()));
    }
    if !setting.commands.is_empty() {
        blocks.push(Block::Text("These commands started the targets under test:".into()));
        blocks.push(Block::Commands(setting.commands.clone()));
    }
    blocks.push(Block::Text("This command repeats the run:".into()));
    blocks.push(Block::Commands(vec![run.command.clone()]));
    let missing = missing(run);
    if !missing.rows.is_empty() {
        blocks.push(Block::Table(missing));
    } else if run.ended_at.is_none() {
        let text = "The run was interrupted or is in progress. No measurement has failed.";
        blocks.push(Block::Text(text.into()));
    } else {
        blocks.push(Block::Text("All planned measurements succeeded.".into()));
    }
    Section { heading: "Method of measurement".into(), blocks }
}

fn facts(caption: &str, facts: Vec<(String, String)>) -> Table {
    let rows = facts.into_iter().map(|(name, value)| vec![Cell::Text(name), Cell::Text(value)]);
    let columns = vec!["What".into(), "Which".into()];
    Table { caption: caption.into(), columns, rows: rows.collect(), ..Table::default() }
}

fn pairs(facts: &BTreeMap<String, String>) -> Vec<(String, String)> {
    facts.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn identity(run: &Run) -> Vec<(String, String)> {
    let ended = match run.ended_at {
        Some(ended_at) => {
            format!("{}, after {}", utc(ended_at), duration(ended_at.saturating_sub(run.began_at)))
        }
        None => "not yet: this report shows the measurements until now".into(),
    };
    let measured =
        run.samples.iter().filter(|sample| matches!(sample.outcome, Outcome::Measured(_))).count();
    let facts = [
        ("study", run.study.clone()),
        ("number in the archive", run.id.to_string()),
        ("targets under test", run.targets_under_test.join(", ")),
        ("scale", run.scale.to_string()),
        ("began", utc(run.began_at)),
        ("ended", ended),
        ("seed", run.setting.seed.to_string()),
        ("measurements", format!("{measured} of {}", run.samples.len())),
    ];
    facts.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// Returns the table of failed and missing measurements. Repetitions with the same outcome share a row.
fn missing(run: &Run) -> Table {
    let mut found: Vec<(&Sample, Vec<String>)> = Vec::new();
    for sample in &run.samples {
        if matches!(sample.outcome, Outcome::Measured(_)) {
            continue;
        }
        let same = |known: &&mut (&Sample, Vec<String>)| {
            known.0.labels == sample.labels && known.0.outcome == sample.outcome
        };
        let repetition = sample.repetition.to_string();
        match found.iter_mut().find(same) {
            Some((_, repetitions)) => repetitions.push(repetition),
            None => found.push((sample, vec![repetition])),
        }
    }
    let rows = found.into_iter().filter_map(|(sample, repetitions)| {
        let (what, reason) = match &sample.outcome {
            Outcome::Failed(reason) => ("failed", reason),
            Outcome::NotMeasured(reason) => ("not measured", reason),
            Outcome::Measured(_) => return None,
        };
        let texts =
            [sample.labels.to_string(), repetitions.join(", "), what.into(), reason.clone()];
        Some(texts.into_iter().map(Cell::Text).collect())
    });
    Table {
        caption: "Failed and missing measurements".into(),
        columns: ["Cell", "Repetitions", "Outcome", "Reason"].map(Into::into).to_vec(),
        rows: rows.collect(),
        ..Table::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn equal_failures_share_one_row() {
        let (_, run) = sample::hostile();
        let section = section(&run);
        let tables = section.tables();
        let missing = tables.last().unwrap();
        assert_eq!(missing.rows.len(), 2, "{missing:?}");
        assert_eq!(missing.rows[0][1], Cell::Text("1, 2".into()));
        assert_eq!(missing.rows[1][2], Cell::Text("not measured".into()));
    }

    /// Returns whether a paragraph contains these words.
    fn says(section: &Section, words: &str) -> bool {
        let said = |block: &Block| matches!(block, Block::Text(text) if text.contains(words));
        section.blocks.iter().any(said)
    }

    #[test]
    fn a_run_without_gaps_says_so() {
        let (_, mut run) = sample::hostile();
        run.samples.retain(|sample| matches!(sample.outcome, Outcome::Measured(_)));
        run.ended_at = Some(run.began_at);
        let section = section(&run);
        assert!(says(&section, "All planned measurements"));
        run.ended_at = None;
        let section = super::section(&run);
        assert!(says(&section, "interrupted") && !says(&section, "All planned"));
    }
}
