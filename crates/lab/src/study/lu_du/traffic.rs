//! The light load while others use the same line. The study found that the traffic of its campus network hardly mattered, and
//! supposed that the network had capacity to spare.

use std::time::Duration;

use sarsen_io::threads;

use super::super::{Initiator, Measurement, Point, layout, outcome};
use super::{
    BlockPath, LIGHT, OPERATION, PART, SIZE, VOLUME, access, light, report, subject, times,
};
use crate::load;
use crate::record::{Labels, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// The value of [`PART`] of all cells here.
const NAME: &str = "cross traffic";
const TRAFFIC: &str = "traffic";
/// Shares of the line that others use, %.
const SHARES: [u32; 2] = [50, 90];
/// What others read: the size of a read, and how many may be outstanding.
const BYTES: u32 = 64 << 10;
const DEPTH: u32 = 16;
/// The sizes of the light load.
const SIZES: [u32; 2] = [4 << 10, 64 << 10];
/// Others begin before the load, and end after it.
const MARGIN: Duration = Duration::from_millis(100);

fn labels(subject: Labels, bytes: u32, share: u32) -> Labels {
    subject
        .with(PART, NAME)
        .with(OPERATION, "read")
        .with(SIZE, layout::size_name(bytes))
        .with(TRAFFIC, format!("{share} %"))
}

/// Returns the cells of a target over a link that has a rate.
pub(super) fn points(
    way: &BlockPath,
    (index, target_under_test): (usize, &TargetUnderTest),
    scale: Scale,
) -> Vec<Point> {
    let Some(rate_mbit) = way.link.rate_mbit else { return Vec::new() };
    let cells = SIZES.into_iter().flat_map(|bytes| SHARES.map(|share| (bytes, share)));
    cells
        .map(|(bytes, share)| {
            let (warm_up, duration) = times(LIGHT, way, bytes, scale);
            let line = rate_mbit * 1e6 / 8.0;
            let iops = line * f64::from(share) / 100.0 / f64::from(BYTES);
            Point {
                labels: labels(subject(target_under_test, way), bytes, share),
                target_under_test: index,
                volume: VOLUME.into(),
                link: way.link.name.clone(),
                initiator: Initiator::Physical,
                writes: false,
                time: warm_up + duration + 2 * MARGIN,
                measurement: measurement(bytes, iops, (warm_up, duration)),
            }
        })
        .collect()
}

/// Returns the light load beside reads of others with this rate.
fn measurement(bytes: u32, iops: f64, (warm_up, duration): (Duration, Duration)) -> Measurement {
    Box::new(move |subject| {
        let mut others = subject.load_options(access(100, BYTES, DEPTH));
        others.rate = Some(iops);
        others.warm_up = Duration::ZERO;
        others.duration = warm_up + duration + 2 * MARGIN;
        let mut own = subject.load_options(access(100, bytes, 1));
        (own.warm_up, own.duration) = (warm_up + MARGIN, duration);
        let both = threads::beside(
            "cross traffic",
            || outcome(load::run(&others)),
            || subject.put_on(&own),
        );
        match both {
            Ok((Outcome::Measured(_), own)) => own,
            Ok((failed, _)) => failed,
            Err(error) => Outcome::Failed(error.to_string()),
        }
    })
}

/// Returns the section with the means and the spread beside those of a line without others.
pub(super) fn section(run: &Run) -> Section {
    let mut rows = Vec::new();
    for (subject, of) in report::subjects(run, NAME) {
        for bytes in SIZES {
            let name = format!("{subject}, reads of {}", layout::size_name(bytes));
            let alone = ("0 %".to_owned(), light(of.clone(), "read", bytes));
            let shares =
                SHARES.map(|share| (format!("{share} %"), labels(of.clone(), bytes, share)));
            for (share, labels) in std::iter::once(alone).chain(shares) {
                let ms = |figure| layout::scaled(run, &labels, figure, 1e-3, 2);
                rows.push(vec![
                    layout::text(&name),
                    layout::text(share),
                    ms(figure::MEAN_US),
                    ms(figure::DEVIATION_US),
                    ms(figure::P99_US),
                ]);
            }
        }
    }
    let mut blocks = Vec::new();
    if !rows.is_empty() {
        blocks.push(Block::Table(Table {
            caption: "The light load while others use a share of the line, ms".into(),
            columns: ["Load", "Share of others", "Mean", "Deviation", "p99"]
                .map(Into::into)
                .to_vec(),
            rows,
            notes: vec![
                "Others read 64K at a constant rate from the same target. The deviations of the study hardly differ between \
                 its networks under light load (table 3)."
                    .into(),
            ],
            ..Table::default()
        }));
    }
    Section { heading: "Traffic of others".into(), blocks }
}
