//! Suspension of a virtual machine that uses a volume. The thesis proposes to measure it.

use std::time::Duration;

use super::{TARGET, TEST};
use crate::access::AccessPattern;
use crate::guest::{DiskForm, Suspension};
use crate::load::LoadResult;
use crate::network::LinkProfile;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::statistics::Summary;
use crate::study::{Initiator, Point, Subject, layout};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Suspension";
const FORM: DiskForm = DiskForm::VirtioScsi;
const ACCESS: AccessPattern =
    AccessPattern { block_bytes: 4096, read_percent: 70, random_percent: 100, queue_depth: 4 };
/// The load before the machine stops, and after that, without the time in which it does not run.
const BEFORE: Duration = Duration::from_secs(1);
const AFTER: Duration = Duration::from_secs(2);
/// Number of suspensions of a measurement.
const ROUNDS: u32 = 3;
/// Approximate time of a measurement.
const TIME: Duration = Duration::from_secs(60);

fn labels(target: &str) -> Labels {
    Labels::new().with(TARGET, target).with(TEST, NAME)
}

/// Returns the cell of a target over a link.
pub(super) fn point(target: &TargetUnderTest, link: &LinkProfile, volume: &str) -> Point {
    Point {
        labels: labels(&target.to_string()),
        target_under_test: 0,
        volume: volume.into(),
        link: link.name.clone(),
        initiator: Initiator::Virtual(FORM),
        writes: true,
        time: TIME,
        measurement: Box::new(measure),
    }
}

fn measure(subject: &Subject<'_>) -> Outcome {
    let Some((machine, form)) = subject.virtual_initiator else {
        return Outcome::NotMeasured("only a virtual machine is suspended".into());
    };
    let mut options = subject.load_options(ACCESS);
    (options.warm_up, options.duration) = (Duration::ZERO, BEFORE + AFTER);
    options.verify = true;
    match machine.suspend(&options, form, (BEFORE, ROUNDS)).and_then(|all| measures(&all)) {
        Ok(measures) => Outcome::Measured(measures),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Returns the figures of suspensions with their loads, whose blocks must have kept their content.
fn measures(all: &[(Suspension, LoadResult)]) -> Result<Measures, String> {
    let compared = all.iter().map(|(_, load)| load.verified()).sum::<Result<u64, _>>()?;
    let median = |value: &dyn Fn(&Suspension) -> f64| {
        let values: Vec<f64> = all.iter().map(|(suspension, _)| value(suspension)).collect();
        Summary::of(&values).map(|summary| summary.median)
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let figures = [
        (figure::SUSPEND_MS, median(&|suspension| ms(suspension.suspend))),
        (figure::RESUME_MS, median(&|suspension| ms(suspension.resume))),
        (figure::SUSPENDED_KIB, median(&|suspension| suspension.bytes as f64 / 1024.0)),
    ];
    let figures = figures.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let texts = [("compared blocks".to_owned(), compared.to_string())];
    Ok(Measures { figures: figures.collect(), texts: texts.into(), ..Measures::default() })
}

/// Returns the section about suspensions.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(TEST, NAME)).next()?;
    let targets = run.values(TARGET).into_iter().map(labels);
    let rows = targets.filter(|labels| run.cells(labels).next().is_some()).map(|labels| {
        let cell = |figure, scale, decimals| layout::scaled(run, &labels, figure, scale, decimals);
        vec![
            layout::text(labels.value(TARGET).unwrap_or_default()),
            cell(figure::SUSPEND_MS, 1e-3, 2),
            cell(figure::RESUME_MS, 1e-3, 2),
            cell(figure::SUSPENDED_KIB, 1.0 / 1024.0, 0),
        ]
    });
    let table = Table {
        caption: "Suspension of a virtual machine under load".into(),
        columns: ["Target", "Suspended in s", "Resumed in s", "MiB in the file"]
            .map(Into::into)
            .to_vec(),
        rows: rows.collect(),
        notes: vec![
            "The machine reads and writes its disk, stops, and is written to a file in the folder for temporary files, without a flush to \
             the disk; its process ends. Another process attaches the disk, reads the file, and the load goes on. Each block that the load has written is compared at \
             its end: a difference or a failed I/O is a failure of the cell. The thesis proposed the measurement."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "Suspension".into(), blocks: vec![Block::Table(table)] })
}
