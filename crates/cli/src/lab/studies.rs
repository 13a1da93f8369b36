//! `sarsen lab studies`: the studies, and what each of them measures.

use sarsen_lab::report::duration;
use sarsen_lab::study::{self, Dimension, Extent, Outline, Study};
use serde_json::json;

use super::run::find;
use crate::output::print_line;

/// Prints all studies, or one with its cells.
pub(super) fn list(name: Option<&str>, json: bool) -> anyhow::Result<()> {
    let studies = match name {
        Some(name) => vec![find(name)?],
        None => study::ALL.to_vec(),
    };
    for study in studies {
        let line = match (json, name) {
            (true, _) => as_json(study),
            (false, None) => format!("{}: {}", study.name(), study.about()),
            (false, Some(_)) => described(study),
        };
        print_line(&line)?;
    }
    Ok(())
}

fn as_json(study: &dyn Study) -> String {
    let Outline { quick, full, dimensions } = study::outline(study);
    let extent = |Extent { cells, measurements, time }: Extent| json!({ "cells": cells, "measurements": measurements, "seconds": time.as_secs_f64() });
    let label = |Dimension { name, values, only_full }: Dimension| json!({ "label": name, "values": values, "only_full": only_full });
    json!({
        "study": study.name(),
        "about": study.about(),
        "quick": extent(quick),
        "full": extent(full),
        "labels": dimensions.into_iter().map(label).collect::<Vec<_>>(),
    })
    .to_string()
}

fn described(study: &dyn Study) -> String {
    let Outline { quick, full, dimensions } = study::outline(study);
    let mut lines = vec![format!("{}: {}", study.name(), study.about()), String::new()];
    for (option, Extent { cells, measurements, time }) in [("--quick", quick), ("--full", full)] {
        let time = duration(time.as_secs());
        lines.push(format!(
            "{option}: {cells} cells, {measurements} measurements of {time} in all, and their preparation"
        ));
    }
    lines.push("\nLabels for --only (those in brackets are in full runs only):".into());
    for Dimension { name, values, only_full } in dimensions {
        let mut all = values;
        all.extend(only_full.into_iter().map(|value| format!("({value})")));
        lines.push(format!("  {name}: {}", all.join(" | ")));
    }
    lines.join("\n")
}
