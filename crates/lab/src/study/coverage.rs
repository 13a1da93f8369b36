//! The page of the guide that lists the experiments and findings of the studies, and which of them the lab measures.
//!
//! The list is `published/experiments.csv`. A row that claims a measurement names cells, and the study's plan must have
//! them.

use std::fmt::Write as _;

use serde::Deserialize;

use super::{ALL, Choices, Plan, Study};
use crate::record::{Labels, Scale};
use crate::target_under_test::TargetUnderTest;

/// An experiment, a table, a figure or a finding of a study.
#[derive(Deserialize)]
struct Experiment {
    /// The study's name.
    study: String,
    /// Its number in the study.
    id: String,
    /// What was varied and measured, and how.
    subject: String,
    /// The result.
    finding: String,
    coverage: Coverage,
    /// The cells that measure it: `test=Web Server, target=lio|scst`.
    cells: String,
    /// What is missing, or the reason why nothing is measured.
    note: String,
}

#[derive(Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Coverage {
    Measured,
    Partly,
    #[serde(rename = "not measured")]
    NotMeasured,
}

impl Coverage {
    const ALL: [Self; 3] = [Self::Measured, Self::Partly, Self::NotMeasured];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Partly => "partly",
            Self::NotMeasured => "not measured",
        }
    }
}

/// The set-up of a study, with the abbreviations of its rows.
const SET_UPS: [(&str, &str); 5] = [
    (
        "trinkle",
        "Four targets on one server, one gigabit. *P* is a physical Windows initiator, *V* a virtual machine on ESXi. \
         *W* is the workload of the ten access specifications: *W Thr* the eight that are measured in MB/s, *W IOPS* the \
         two of 512 bytes. The load generator of the lab corresponds to *P*.",
    ),
    (
        "novell",
        "*A* is a pair of equal machines with SLES or NetWare, *B* a pair of other machines. *dd-w* writes to the raw \
         disk with `dd oflag=direct`; *dd-r* reads a file of 4 MB on ext3 with `dd`; *DPM* is NetWare's DPMETERM, which \
         reads.",
    ),
    (
        "lu-du",
        "*SAN* is Fibre Channel, *GigE* iSCSI through a gateway on a gigabit LAN, *Campus* iSCSI over 100 Mbit/s, a VPN \
         and a firewall. *Light* is one command at a time, *Heavy* 64 threads on six disks. The lab has the medium \
         without a network, the loopback, and links of 100 Mbit/s without and with delay.",
    ),
    (
        "aravindan",
        "*L* is a target in a virtual machine on one server, and an initiator on another one. *FIO* is fio with writes, \
         with reads, and with both in parallel. The study prints its results as charts.",
    ),
    (
        "lunden",
        "Xen machines on four blade servers with two bonded gigabit ports each; 100 runs of bonnie++ for each set-up. \
         The lab runs bonnie++ in guests with emulated processors, whose storage it creates.",
    ),
];

fn experiments() -> Vec<Experiment> {
    let text = include_str!("../../published/experiments.csv");
    csv::Reader::from_reader(text.as_bytes()).deserialize().map(Result::unwrap).collect()
}

/// Parses `dimension=value, …`, and returns the labels for each of several values. If another study has the cells, its name is
/// before them, with a colon.
fn labels<'a>(study: &'a str, cells: &'a str) -> (&'a str, Vec<Labels>) {
    let (study, cells) = cells.split_once(": ").unwrap_or((study, cells));
    let labels = cells.split(", ").fold(vec![Labels::new()], |combinations, label| {
        let (dimension, values) = label.split_once('=').unwrap_or_else(|| panic!("{cells:?}"));
        let with =
            |value| combinations.iter().map(move |labels| labels.clone().with(dimension, value));
        values.split('|').flat_map(with).collect()
    });
    (study, labels)
}

/// Returns the arguments of `sarsen lab run` that measure the cells of an experiment, or where a report has its limits.
fn how(study: &str, cells: &str) -> String {
    let (name, labels) = labels(study, cells);
    if labels.iter().any(are_limits) {
        return "the limits in each report".into();
    }
    let study = super::find(name).unwrap_or_else(|| panic!("no study {name}"));
    let is_quick = have(&[study.plan(&Choices::of_study(Scale::Quick))], &labels);
    let mut command = format!("`{name}{}", if is_quick { "" } else { " --full" });
    let (_, cells) = cells.split_once(": ").unwrap_or(("", cells));
    for label in cells.split(", ") {
        let (dimension, values) = label.split_once('=').expect("labels were parsed");
        for value in values.split('|') {
            write!(command, " --only '{dimension}={value}'").unwrap();
        }
    }
    command + "`"
}

/// Returns the complete plans of a study: with its own targets, and with the stripes that only sarsen has.
fn plans(study: &dyn Study) -> Vec<Plan> {
    let default = Choices::of_study(Scale::Full);
    let sarsen = Choices { targets_under_test: vec![TargetUnderTest::Sarsen], ..default.clone() };
    [default, sarsen].iter().map(|choices| study.plan(choices)).collect()
}

/// Whether a study measures all of these cells or limits.
fn measures(study: &dyn Study, cells: &[Labels]) -> bool {
    have(&plans(study), cells)
}

fn have(plans: &[Plan], cells: &[Labels]) -> bool {
    cells.iter().all(|cell| {
        if are_limits(cell) {
            return plans.iter().any(|plan| plan.limits);
        }
        plans.iter().flat_map(Plan::cells).any(|labels| labels.include(cell))
    })
}

fn are_limits(cell: &Labels) -> bool {
    cell.value("limit").is_some()
}

#[test]
fn every_experiment_that_is_measured_has_cells_in_the_plan_of_its_study() {
    for Experiment { study, id, coverage, cells, note, .. } in experiments() {
        match coverage {
            Coverage::NotMeasured => {
                assert!(cells.is_empty() && !note.is_empty(), "{study} {id} gives no reason");
            }
            Coverage::Measured | Coverage::Partly => {
                let (name, labels) = labels(&study, &cells);
                let found = super::find(name).unwrap_or_else(|| panic!("no study {name}"));
                assert!(measures(found, &labels), "{study} {id}: no cell has {cells}");
            }
        }
        assert!(coverage != Coverage::Partly || !note.is_empty(), "{study} {id} is not complete");
    }
}

fn page() -> String {
    let experiments = experiments();
    let mut page = String::from(
        "# Experiments of the studies\n\n\
         The five studies that the [lab](lab.md) repeats have the following experiments, tables, figures and findings. \
         *Measured*: the lab varies the same factor over the same levels and measures the same quantity. *Partly*: \
         something is missing, which is named. Other hardware, other versions and the rate of a network do not count as \
         missing. In brackets are the arguments after `sarsen lab run` that measure one of its cells, or several; a cell must have \
         all labels of `--only`. The first part of a place is the study's own number: T of a table, F of a figure, G of an \
         appendix; S is a set-up, R a result and C a conclusion of its text.\n\n\
         <!-- Generated from crates/lab/published/experiments.csv by the tests of sarsen-lab with SARSEN_WRITE=1. -->\n\n\
         | Study | Experiments | Measured | Partly | Not measured |\n| --- | --- | --- | --- | --- |\n",
    );
    let mut count = |name: &str, chosen: &dyn Fn(&Experiment) -> bool| {
        let all = experiments.iter().filter(|experiment| chosen(experiment));
        let counts = Coverage::ALL.map(|coverage| {
            all.clone().filter(|experiment| experiment.coverage == coverage).count().to_string()
        });
        writeln!(page, "| {name} | {} | {} |", all.count(), counts.join(" | ")).unwrap();
    };
    for study in ALL {
        count(study.name(), &|experiment| experiment.study == study.name());
    }
    count("all", &|_| true);
    for (study, set_up) in SET_UPS {
        writeln!(
            page,
            "\n## {study}\n\n{set_up}\n\n| Place | Subject | Finding | In the lab |\n| --- | --- | --- | --- |"
        )
        .unwrap();
        for experiment in experiments.iter().filter(|experiment| experiment.study == study) {
            let Experiment { id, subject, finding, coverage, cells, note, .. } = experiment;
            let cells = match cells.as_str() {
                "" => String::new(),
                cells => format!(" ({})", how(study, cells)),
            };
            let note = if note.is_empty() { String::new() } else { format!(": {note}") };
            let coverage = coverage.as_str();
            writeln!(page, "| {id} | {subject} | {finding} | **{coverage}**{cells}{note} |")
                .unwrap();
        }
    }
    page
}

#[test]
fn the_guide_lists_all_experiments() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/experiments.md");
    let page = page();
    if std::env::var_os("SARSEN_WRITE").is_some() {
        std::fs::write(&path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(page == committed, "run it with SARSEN_WRITE=1 and look at what has changed");
}
