//! The findings of the study as ratios of means: those of its own tables next to those of the run.

use super::table::mean_of;
use crate::published;
use crate::record::Run;
use crate::report::{Block, Cell, Section, Table};

/// A ratio that a finding of the study is about.
struct Finding {
    sentence: &'static str,
    /// The set-up and the column of bonnie++ above the line, and below it.
    above: (&'static str, &'static str),
    below: (&'static str, &'static str),
}

const fn finding(
    sentence: &'static str,
    above: (&'static str, &'static str),
    below: (&'static str, &'static str),
) -> Finding {
    Finding { sentence, above, below }
}

const FINDINGS: [Finding; 18] = [
    finding(
        "a local disk reads a little faster than it writes",
        ("keeper base", "get_block"),
        ("keeper base", "put_block"),
    ),
    finding(
        "it rewrites at less than half the rate of writing",
        ("keeper base", "rewrite"),
        ("keeper base", "put_block"),
    ),
    finding(
        "blocks need a quarter of the CPU time of single bytes",
        ("keeper base", "put_block_cpu"),
        ("keeper base", "putc_cpu"),
    ),
    finding(
        "a virtual disk is written faster than its medium, through a page cache",
        ("nexus 1 vm", "put_block"),
        ("nexus base", "put_block"),
    ),
    finding("and read faster", ("nexus 1 vm", "get_block"), ("nexus base", "get_block")),
    finding(
        "iSCSI reads at less than half the rate of writing",
        ("iscsi base", "get_block"),
        ("iscsi base", "put_block"),
    ),
    finding("and rewrites at a quarter", ("iscsi base", "rewrite"), ("iscsi base", "put_block")),
    finding(
        "each of three clients keeps a third of iSCSI's writes",
        ("iscsi 3 vms", "put_block"),
        ("iscsi base", "put_block"),
    ),
    finding("half of its reads", ("iscsi 3 vms", "get_block"), ("iscsi base", "get_block")),
    finding(
        "and nearly all of its creations of files",
        ("iscsi 3 vms", "seq_create"),
        ("iscsi base", "seq_create"),
    ),
    finding(
        "NFS creates a hundredth of the files of iSCSI",
        ("nfs base", "seq_create"),
        ("iscsi base", "seq_create"),
    ),
    finding("NFS has the most seeks", ("nfs base", "seeks"), ("iscsi base", "seeks")),
    finding(
        "DRBD reads like a local disk",
        ("drbd base", "get_block"),
        ("nexus base", "get_block"),
    ),
    finding("and writes like iSCSI", ("drbd base", "put_block"), ("iscsi base", "put_block")),
    finding(
        "with three clients, NFS writes the fastest",
        ("nfs 3 vms", "put_block"),
        ("iscsi 3 vms", "put_block"),
    ),
    finding("and reads the fastest", ("nfs 3 vms", "get_block"), ("drbd 3 vms", "get_block")),
    finding(
        "no storage network writes faster than a local disk: iSCSI",
        ("iscsi base", "put_block"),
        ("keeper base", "put_block"),
    ),
    finding("NFS", ("nfs base", "put_block"), ("keeper base", "put_block")),
];

/// Returns the section of the findings whose set-ups the run has.
pub(super) fn section(run: &Run) -> Option<Section> {
    let mut table = Table {
        caption: "The findings of the study as ratios of means".into(),
        columns: ["Finding", "Ratio", "Lunden", "Here"].map(Into::into).to_vec(),
        ..Table::default()
    };
    for Finding { sentence, above, below } in FINDINGS {
        let Some(here) = ratio(&|(setup, column)| mean_of(run, setup, column), above, below) else {
            continue;
        };
        let theirs = |(setup, column)| published::lunden_row(setup, column).map(|row| row.mean);
        let theirs = ratio(&theirs, above, below);
        table.rows.push(vec![
            Cell::Text(sentence.into()),
            Cell::Text(format!("{} of {} / {} of {}", above.1, above.0, below.1, below.0)),
            theirs.map_or(Cell::Empty, |value| Cell::Published { value, decimals: 2 }),
            Cell::Number { value: here, decimals: 2 },
        ]);
    }
    let heading = "Findings of the study".into();
    (!table.rows.is_empty()).then(|| Section { heading, blocks: vec![Block::Table(table)] })
}

type Place = (&'static str, &'static str);

fn ratio(mean: &dyn Fn(Place) -> Option<f64>, above: Place, below: Place) -> Option<f64> {
    let (above, below) = (mean(above)?, mean(below)?);
    let ratio = above / below;
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_studys_own_tables_have_both_sides_of_each_ratio() {
        let theirs = |(setup, column)| published::lunden_row(setup, column).map(|row| row.mean);
        let ratios: Vec<f64> = FINDINGS
            .iter()
            .map(|finding| ratio(&theirs, finding.above, finding.below).unwrap())
            .collect();
        // Its text: less than half, a quarter of the CPU time, a hundredth of the files.
        assert!(ratios[1] < 0.5 && (ratios[2] - 0.25).abs() < 0.01, "{ratios:?}");
        assert!((ratios[10] - 0.01).abs() < 0.001, "{ratios:?}");
    }
}
