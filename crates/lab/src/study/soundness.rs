//! Functions that the tests of studies share: checks of plans, simulated runs, and checks of reports.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use super::{ALL, Choices, Plan, Study};
use crate::compare::compare;
use crate::network::{GUESTS_MAX, LinkProfile};
use crate::record::{
    Bucket, Labels, Measures, Outcome, Run, Sample, Scale, Series, Setting, figure,
};
use crate::report::{self, Block, Cell, Format, Report, Section};
use crate::target_under_test::TargetUnderTest;

/// Maximum time of the measurements of a quick run, which takes about as long again to fill volumes and to measure limits.
const QUICK_LIMIT: Duration = Duration::from_secs(120);

/// The same in guests, which have no volumes to fill, and take a minute to boot.
const QUICK_GUEST_LIMIT: Duration = Duration::from_secs(240);

/// Checks that the plans refer only to their own objects, that no cell occurs twice, and that the quick plan is quick.
pub(super) fn plans(study: &dyn Study) {
    for scale in [Scale::Quick, Scale::Full] {
        let without_links = study.plan(&Choices { links: false, ..Choices::of_study(scale) });
        check(&without_links);
        assert!(without_links.links.iter().all(|link| *link == LinkProfile::loopback()));
        let plan = study.plan(&Choices::of_study(scale));
        check(&plan);
        let is_quick_in_guests = scale == Scale::Quick && plan.points.is_empty();
        assert!(plan.repetitions > 1 || is_quick_in_guests, "one value has no interval");
        if scale == Scale::Quick {
            let in_guests = plan.time_in_guests();
            assert!(plan.time() - in_guests < QUICK_LIMIT, "{:?}", plan.time());
            assert!(in_guests < QUICK_GUEST_LIMIT, "{in_guests:?}");
        }
    }
}

fn check(plan: &Plan) {
    let in_guests = plan.targets_under_test.iter();
    let in_guests =
        in_guests.filter(|target| matches!(target, TargetUnderTest::InGuest(_))).count();
    assert!(in_guests <= usize::from(GUESTS_MAX), "{:?}", plan.targets_under_test);
    let mut cells = HashSet::new();
    for labels in plan.cells() {
        assert!(cells.insert(labels), "twice: {labels}");
    }
    for point in plan.guest_points() {
        assert!(point.cells.iter().all(|cell| cell.include(&point.labels)), "{point:?}");
    }
    for point in &plan.points {
        assert!(point.target_under_test < plan.targets_under_test.len(), "{point:?}");
        assert!(plan.volumes.iter().any(|volume| volume.name == point.volume), "{point:?}");
        assert!(plan.links.iter().any(|link| link.name == point.link), "{point:?}");
    }
    for name in &plan.joint_volumes {
        assert!(plan.volumes.iter().any(|volume| volume.name == *name), "{name}");
    }
    assert!(!cells.is_empty());
    let distinct = |names: Vec<&String>| names.iter().collect::<HashSet<_>>().len() == names.len();
    assert!(distinct(plan.volumes.iter().map(|volume| &volume.name).collect()));
    assert!(distinct(plan.links.iter().map(|link| &link.name).collect()));
}

/// Returns a finished run in which every cell was measured, except those with these labels.
pub(super) fn run(study: &dyn Study, scale: Scale, failures: &[(Labels, &str)]) -> Run {
    run_of(study, &Choices::of_study(scale), failures)
}

/// Returns the same with other choices.
pub(super) fn run_of(study: &dyn Study, choices: &Choices, failures: &[(Labels, &str)]) -> Run {
    let plan = study.plan(choices);
    let limits = plan.links.iter().map(|link| {
        let labels = Labels::new().with("limit", "link").with("link", &link.name);
        Sample { labels, repetition: 1, ended_at: 2, outcome: Outcome::Measured(measures(0.0)) }
    });
    let mut samples: Vec<_> = limits.take(1).collect();
    for repetition in 1..=plan.repetitions {
        for (index, labels) in plan.cells().enumerate() {
            let failure = failures.iter().find(|(failed, _)| labels.include(failed));
            let outcome = match failure {
                Some((_, reason)) => Outcome::Failed((*reason).into()),
                None => Outcome::Measured(measures(index as f64 + f64::from(repetition))),
            };
            samples.push(Sample { labels: labels.clone(), repetition, ended_at: 2, outcome });
        }
    }
    Run {
        id: 1,
        study: study.name().into(),
        scale: choices.scale,
        command: format!("sarsen lab study {}", study.name()),
        targets_under_test: plan.targets_under_test.iter().map(ToString::to_string).collect(),
        began_at: 1,
        ended_at: Some(2),
        setting: Setting::default(),
        samples,
    }
}

fn measures(value: f64) -> Measures {
    let names = [
        figure::IOPS,
        figure::MB_PER_S,
        figure::MEAN_US,
        figure::MIN_US,
        figure::P50_US,
        figure::P99_US,
        figure::MAX_US,
        figure::DEVIATION_US,
        figure::TARGET_CPU_US_PER_IO,
    ];
    Measures {
        figures: names.map(|name| (name.to_owned(), value + 0.017)).into(),
        texts: BTreeMap::from([("MaxBurstLength".to_owned(), "262144".to_owned())]),
        ..Measures::default()
    }
}

/// Returns the study's report and checks that every table is rectangular and not empty.
pub(super) fn report(study: &dyn Study, run: &Run) -> Report {
    let report = super::report(study, run);
    assert!(!report.summary.is_empty());
    for section in &report.sections {
        assert!(!section.blocks.is_empty(), "{}", section.heading);
        for block in &section.blocks {
            match block {
                Block::Table(table) => {
                    assert!(!table.rows.is_empty(), "{}", table.caption);
                    for row in &table.rows {
                        assert_eq!(row.len(), table.columns.len(), "{}: {row:?}", table.caption);
                    }
                }
                Block::Bars(bars) => {
                    for series in &bars.series {
                        assert_eq!(series.values.len(), bars.groups.len(), "{}", bars.caption);
                        assert_eq!(series.half_widths.len(), bars.groups.len());
                    }
                }
                Block::Lines(_) | Block::Text(_) | Block::List(_) | Block::Commands(_) => {}
            }
        }
    }
    report
}

fn cells(report: &Report) -> impl Iterator<Item = &Cell> {
    report.sections.iter().flat_map(Section::tables).flat_map(|table| table.rows.iter().flatten())
}

/// Checks that a table shows each of these figures as published, as often as it was published.
pub(super) fn shows(report: &Report, figures: impl Iterator<Item = f64>) {
    let mut shown: Vec<f64> = cells(report)
        .filter_map(|cell| match cell {
            Cell::Published { value, .. } => Some(*value),
            _ => None,
        })
        .collect();
    for figure in figures {
        let place = shown.iter().position(|value| *value == figure);
        let place = place.unwrap_or_else(|| panic!("{figure} is not shown often enough"));
        shown.swap_remove(place);
    }
}

/// Checks that a cell shows this reason instead of a figure.
pub(super) fn says(report: &Report, reason: &str) {
    let said = |cell: &Cell| match cell {
        Cell::Failed(words) | Cell::NotMeasured(words) => words.contains(reason),
        _ => false,
    };
    assert!(cells(report).any(said), "{reason}");
}

/// Figures that no measurement produces, but that an archive can contain.
const EXTREMES: [f64; 8] = [f64::MAX, -f64::MAX, 1e200, 1e-200, 5e-324, -0.0, 0.0, 1.0];

/// Returns measures with extreme values in all fields.
fn extremes(names: &BTreeSet<String>, turn: usize) -> Measures {
    let extreme = |index: usize| EXTREMES[index % EXTREMES.len()];
    let figures = names.iter().enumerate().map(|(at, name)| (name.clone(), extreme(turn + at)));
    let bucket = |index| Bucket { upper_us: extreme(turn + index), count: u64::MAX >> index };
    Measures {
        figures: figures.collect(),
        texts: BTreeMap::from([("line".into(), "\u{1b}[2J<script>".into())]),
        latencies: (0..EXTREMES.len()).map(bucket).collect(),
        series: Some(Series { interval_s: extreme(turn), values: EXTREMES.to_vec() }),
        limits: vec![Labels::new().with("limit", "link").with("link", "\u{1b}[2J")],
    }
}

#[test]
fn whatever_an_archive_holds_every_study_reports_it() {
    let mut names: BTreeSet<String> = measures(0.0).figures.into_keys().collect();
    let bonnie = ["kib_per_s", "seeks_per_s", "files_per_s", "cpu_percent", "link_round_trip_us"];
    names.extend(bonnie.map(str::to_owned));
    for study in ALL {
        let mut run = run(*study, Scale::Quick, &[]);
        for (turn, sample) in run.samples.iter_mut().enumerate() {
            sample.outcome = Outcome::Measured(extremes(&names, turn));
        }
        for format in Format::ALL {
            let mut out = Vec::new();
            report::write(format, &super::report(*study, &run), &run, &mut out).unwrap();
            assert!(!out.is_empty());
        }
        assert!(!compare(&run, &run, &[figure::IOPS, "kib_per_s"]).figures.is_empty());
    }
}
