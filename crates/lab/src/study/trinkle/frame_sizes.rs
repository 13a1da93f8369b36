//! The sizes of jumbo frames. The thesis names three that are in use, since no standard says how large one is, and measured the
//! largest.

use std::time::Duration;

use super::super::{Initiator, Point, layout, load_for};
use super::{MTU, SPECIFICATION, TARGET, TEST, metric};
use crate::access::{self, NamedPattern};
use crate::network::LinkProfile;
use crate::record::{Labels, Run};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Frame size";
const FRAME: &str = "frame";

/// The sizes that only these cells have.
const BETWEEN: [u32; 2] = [5000, 7200];
/// The specifications with large I/Os, in both directions, and with small ones.
const SPECIFICATIONS: [&str; 3] =
    ["Maximum Throughput", "Maximum Write Throughput", "Maximum IOPS"];

fn labels(target: &str, specification: &str, mtu: u32) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(TEST, NAME)
        .with(SPECIFICATION, specification)
        .with(FRAME, mtu)
}

fn name(mtu: u32) -> String {
    format!("mtu-{mtu}")
}

/// Returns the links of these sizes.
pub(super) fn links() -> [LinkProfile; 2] {
    BETWEEN.map(|mtu| LinkProfile::plain(&name(mtu), mtu))
}

/// Returns the cells of all targets.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    volume: &str,
    [warm_up, duration]: [Duration; 2],
) -> Vec<Point> {
    let mut points = Vec::new();
    let specifications =
        access::NAMED.iter().filter(|NamedPattern { name, .. }| SPECIFICATIONS.contains(name));
    for &NamedPattern { name: specification, access } in specifications {
        for (index, target_under_test) in targets_under_test.iter().enumerate() {
            for mtu in BETWEEN {
                points.push(Point {
                    labels: labels(&target_under_test.to_string(), specification, mtu),
                    target_under_test: index,
                    volume: volume.into(),
                    link: name(mtu),
                    initiator: Initiator::Physical,
                    writes: access.read_percent < 100,
                    time: warm_up + duration,
                    measurement: load_for(access, warm_up, duration),
                });
            }
        }
    }
    points
}

/// Returns the section about the sizes of frames.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(TEST, NAME)).next()?;
    let mut columns = vec!["Specification".to_owned(), "Unit".into(), "Target".into()];
    let [standard, jumbo] = super::MTUS;
    let mtus = [standard, BETWEEN[0], BETWEEN[1], jumbo];
    columns.extend(mtus.map(|mtu| format!("{MTU} {mtu}")));
    let mut rows = Vec::new();
    for specification in SPECIFICATIONS {
        let (figure, unit, decimals) = metric(specification);
        let of = |target: &str| Labels::new().with(TARGET, target).with(TEST, NAME);
        let is_measured = |target: &&str| run.cells(&of(target)).next().is_some();
        for target in run.values(TARGET).into_iter().filter(is_measured) {
            let mut row = [specification, unit, target].map(layout::text).to_vec();
            row.extend(mtus.map(|mtu| {
                let labels = if BETWEEN.contains(&mtu) {
                    labels(target, specification, mtu)
                } else {
                    super::labels(target, &mtu.to_string(), specification)
                };
                layout::cell(run, &labels, figure, decimals)
            }));
            rows.push(row);
        }
    }
    let blocks = vec![
        Block::Text(
            "The thesis names 5000, 7200 and 9000 as sizes in use. All devices on the way need the same size: `sarsen doctor \
             --peer` finds a smaller one."
                .into(),
        ),
        Block::Table(Table {
            caption: "Frames of several sizes, means".into(),
            columns,
            rows,
            ..Table::default()
        }),
    ];
    Some(Section { heading: "Sizes of frames".into(), blocks })
}
