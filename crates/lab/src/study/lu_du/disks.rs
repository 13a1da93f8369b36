//! The heavy load of the study on its number of disks: the threads are spread over six of them.

use std::time::Duration;

use sarsen_io::threads;

use super::super::{Initiator, Point, Subject, layout, outcome};
use super::{
    BlockPath, HEAVY, HEAVY_DEPTH, HEAVY_SIZES, MIXES, PART, READS, SIZE, access, heavy, report,
    subject, times,
};
use crate::load::{self, LoadOptions};
use crate::record::{Labels, Measures, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::{TargetUnderTest, TargetUnderTestError, VolumeSpec};

/// The value of [`PART`] of all cells here.
const NAME: &str = "six disks";
const COUNT: u32 = 6;

/// Returns the outstanding I/Os of a disk: all of them are spread as evenly as possible.
const fn depth(disk: u32) -> u32 {
    let rest = HEAVY_DEPTH % COUNT;
    HEAVY_DEPTH / COUNT + if disk <= rest { 1 } else { 0 }
}

fn name(number: u32) -> String {
    format!("disk{number}")
}

/// Returns the volumes, which are together as large as `whole`.
pub(super) fn volumes(whole: &VolumeSpec) -> Vec<VolumeSpec> {
    // Whole megabytes.
    let bytes = (whole.bytes / u64::from(COUNT)) >> 20 << 20;
    let of = |number| VolumeSpec { name: name(number), bytes, ..whole.clone() };
    (1..=COUNT).map(of).collect()
}

fn labels(subject: Labels, read_percent: u8, bytes: u32) -> Labels {
    subject
        .with(PART, NAME)
        .with(READS, format!("{read_percent} %"))
        .with(SIZE, layout::size_name(bytes))
}

/// Returns the cells of these targets.
pub(super) fn points(
    way: &BlockPath,
    targets_under_test: &[(usize, &TargetUnderTest)],
    scale: Scale,
) -> Vec<Point> {
    let mut points = Vec::new();
    for bytes in HEAVY_SIZES {
        for read_percent in MIXES {
            let (warm_up, duration) = times(HEAVY, way, bytes, scale);
            for (index, target) in targets_under_test {
                points.push(Point {
                    labels: labels(subject(target, way), read_percent, bytes),
                    target_under_test: *index,
                    volume: name(1),
                    link: way.link.name.clone(),
                    initiator: Initiator::Physical,
                    writes: read_percent < 100,
                    time: warm_up + duration,
                    measurement: Box::new(move |subject| {
                        measure(subject, read_percent, bytes, (warm_up, duration))
                    }),
                });
            }
        }
    }
    points
}

fn measure(
    subject: &Subject<'_>,
    read_percent: u8,
    bytes: u32,
    (warm_up, duration): (Duration, Duration),
) -> Outcome {
    if !subject.may_write && read_percent < 100 {
        return Outcome::NotMeasured(super::super::NOT_TO_BE_WRITTEN.into());
    }
    let options = |number: u32| {
        let mut options = subject.load_options(access(read_percent, bytes, depth(number)));
        options.endpoint = subject.running.endpoint(&name(number), subject.link)?;
        (options.warm_up, options.duration) = (warm_up, duration);
        Ok(options)
    };
    let loads: Result<Vec<_>, TargetUnderTestError> = (1..=COUNT).map(options).collect();
    match loads.map(|loads| all(&loads)) {
        Ok(outcomes) => sum(outcomes),
        Err(error) => error.into(),
    }
}

/// Runs loads at once.
fn all(loads: &[LoadOptions]) -> Vec<Outcome> {
    let [first, others @ ..] = loads else { return Vec::new() };
    match threads::beside("disk", || outcome(load::run(first)), || all(others)) {
        Ok((first, others)) => std::iter::once(first).chain(others).collect(),
        Err(error) => vec![Outcome::Failed(error.to_string())],
    }
}

/// Adds up the throughputs, if all loads succeeded.
fn sum(outcomes: Vec<Outcome>) -> Outcome {
    let mut figures = [figure::IOPS, figure::MB_PER_S].map(|name| (name.to_owned(), 0.0));
    for outcome in outcomes {
        let Outcome::Measured(measures) = outcome else { return outcome };
        for (name, sum) in &mut figures {
            *sum += measures.figures.get(name).copied().unwrap_or_default();
        }
    }
    Outcome::Measured(Measures { figures: figures.into(), ..Measures::default() })
}

/// Returns the section with six disks beside one.
pub(super) fn section(run: &Run) -> Section {
    let mut rows = Vec::new();
    for (subject, of) in report::subjects(run, NAME) {
        for bytes in HEAVY_SIZES {
            for read_percent in MIXES {
                let six = labels(of.clone(), read_percent, bytes);
                let one = heavy(of.clone(), read_percent, bytes);
                let values = |labels| run.figures(labels, figure::MB_PER_S);
                let size = layout::size_name(bytes);
                rows.push(vec![
                    layout::text(format!("{subject}, {size}, {read_percent} % reads")),
                    layout::cell(run, &one, figure::MB_PER_S, 1),
                    layout::cell(run, &six, figure::MB_PER_S, 1),
                    layout::change(&values(&one), &values(&six)),
                ]);
            }
        }
    }
    let mut blocks = Vec::new();
    if !rows.is_empty() {
        blocks.push(Block::Table(Table {
            caption: format!("{HEAVY_DEPTH} outstanding I/Os on one volume and on {COUNT}, MB/s"),
            columns: ["Load", "One volume", "Six volumes", "Change"].map(Into::into).to_vec(),
            rows,
            notes: vec![
                "All six volumes are on one medium. The six disks of the study reached about 2.5 MB/s (SAN), 2.3 (GigE) and 1.8 (campus) with 4K, and 26, 24 and 8 \
                 MB/s with 64K: reads were fastest with 4K, writes with 64K."
                    .into(),
            ],
            ..Table::default()
        }));
    }
    Section { heading: "Heavy load on six volumes (figure 2)".into(), blocks }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_are_spread() {
        assert_eq!((1..=COUNT).map(depth).sum::<u32>(), HEAVY_DEPTH);
    }

    #[test]
    fn throughputs_add_up_unless_a_load_failed() {
        let one = |iops| {
            let figures = [(figure::IOPS.to_owned(), iops)].into();
            Outcome::Measured(Measures { figures, ..Measures::default() })
        };
        let Outcome::Measured(measures) = sum(vec![one(1.0), one(2.5)]) else { panic!() };
        assert_eq!(measures.figures[figure::IOPS], 3.5);
        let failed = Outcome::Failed("late".into());
        assert_eq!(sum(vec![one(1.0), failed.clone()]), failed);
    }
}
