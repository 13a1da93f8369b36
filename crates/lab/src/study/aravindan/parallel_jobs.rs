//! Two jobs at once on a volume: one reads and one writes, each with its own session. The study compared its targets in this
//! way, too.

use std::thread;
use std::time::Duration;

use super::super::{Initiator, Point, Subject, layout, outcome};
use super::report::metric;
use super::{CACHE, LOAD, LOADS, MODES, TARGET, without_modes};
use crate::access::AccessPattern;
use crate::load;
use crate::network::LinkProfile;
use crate::published::aravindan::ORDER;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::{Medium, TargetUnderTest};

/// The dimension of the cells.
const JOBS: &str = "jobs";
const PARALLEL: &str = "a reader and a writer";
/// The mode in which all targets under test serve.
const MODE: usize = 0;
/// The percentages of reads of the jobs.
const READ_PERCENTS: [u8; 2] = [100, 0];

fn labels(target: &str, load: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(CACHE, MODES[MODE].name)
        .with(LOAD, load)
        .with(JOBS, PARALLEL)
}

/// Returns the cells of all targets.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    medium: Medium,
    [warm_up, duration]: [Duration; 2],
) -> Vec<Point> {
    let mut points = Vec::new();
    for (load, access) in LOADS {
        for (index, target_under_test) in targets_under_test.iter().enumerate() {
            points.push(Point {
                labels: labels(&target_under_test.to_string(), load),
                target_under_test: index,
                volume: MODES[MODE].name.into(),
                link: LinkProfile::loopback().name,
                initiator: Initiator::Physical,
                writes: true,
                time: warm_up + duration,
                measurement: match medium {
                    Medium::Disk => {
                        Box::new(move |subject| measure(subject, access, warm_up, duration))
                    }
                    Medium::Ram => without_modes(),
                },
            });
        }
    }
    points
}

fn measure(
    subject: &Subject<'_>,
    access: AccessPattern,
    warm_up: Duration,
    duration: Duration,
) -> Outcome {
    let jobs = READ_PERCENTS.map(|read_percent| {
        let mut options = subject.load_options(AccessPattern { read_percent, ..access });
        (options.warm_up, options.duration) = (warm_up, duration);
        options
    });
    if !subject.may_write {
        return subject.put_on(&jobs[1]);
    }
    let [reader, writer] = &jobs;
    let (reads, writes) = thread::scope(|scope| {
        let writes = scope.spawn(|| outcome(load::run(writer)));
        (outcome(load::run(reader)), writes.join())
    });
    match (reads, writes) {
        (Outcome::Measured(reads), Ok(Outcome::Measured(writes))) => {
            Outcome::Measured(both(&reads, &writes))
        }
        (Outcome::Measured(_), Ok(other)) | (other, Ok(_)) => other,
        (_, Err(_)) => Outcome::Failed("the writer panicked".into()),
    }
}

/// Returns the figures of both jobs together: rates are sums, and the latency is the mean of all I/Os.
fn both(reads: &Measures, writes: &Measures) -> Measures {
    let of = |job: &Measures, name| job.figures.get(name).copied().unwrap_or_default();
    let sum = |name| of(reads, name) + of(writes, name);
    let iops = sum(figure::IOPS);
    let waited = |job| of(job, figure::MEAN_US) * of(job, figure::IOPS);
    let figures = [
        (figure::IOPS, iops),
        (figure::MB_PER_S, sum(figure::MB_PER_S)),
        (figure::READ_MB_PER_S, of(reads, figure::MB_PER_S)),
        (figure::WRITE_MB_PER_S, of(writes, figure::MB_PER_S)),
        (figure::MEAN_US, (waited(reads) + waited(writes)) / iops),
    ];
    let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
    Measures { figures, ..Measures::default() }
}

/// Returns the section about parallel jobs.
pub(super) fn section(run: &Run) -> Section {
    let mut blocks: Vec<_> = LOADS
        .iter()
        .filter_map(|(load, access)| of_load(run, load, access.queue_depth))
        .map(Block::Table)
        .collect();
    if !blocks.is_empty() {
        blocks.insert(
            0,
            Block::Text(format!(
                "In the study, the order of its targets under both jobs was {}, in a virtual machine each.",
                ORDER.join(", ")
            )),
        );
    }
    Section { heading: "A reader and a writer at once".into(), blocks }
}

fn of_load(run: &Run, load: &str, depth: u32) -> Option<Table> {
    run.cells(&Labels::new().with(JOBS, PARALLEL).with(LOAD, load)).next()?;
    let (rate, unit, decimals) = metric(load);
    let figures = [
        (rate, unit, decimals),
        (figure::READ_MB_PER_S, "reads, MB/s", 1),
        (figure::WRITE_MB_PER_S, "writes, MB/s", 1),
        (figure::MEAN_US, "mean latency, µs", 0),
    ];
    let mut columns = vec!["Target".to_owned()];
    columns.extend(figures.map(|(_, name, _)| name.to_owned()));
    let rows = run.values(TARGET).into_iter().map(|target| {
        let mut row = vec![layout::text(target)];
        row.extend(figures.map(|(figure, _, decimals)| {
            layout::cell(run, &labels(target, load), figure, decimals)
        }));
        row
    });
    let caption = format!("{load}, each with {depth} open I/Os");
    Some(Table { caption, columns, rows: rows.collect(), ..Table::default() })
}
