//! The sizes of jumbo frames. The thesis names three that are in use, since no standard says how large one is, and measured the
//! largest.

use std::time::Duration;

use super::super::{Initiator, Point, layout, load_for};
use super::{TARGET, TEST, metric};
use crate::access::{self, NamedPattern};
use crate::network::LinkProfile;
use crate::record::{Labels, Run};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Frame size";
const SPECIFICATION: &str = "specification";
const FRAME: &str = "frame";

const MTUS: [u32; 4] = [1500, 5000, 7200, 9000];
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

/// Returns the links of the sizes that `links` does not have.
pub(super) fn more_links(links: &[LinkProfile]) -> Vec<LinkProfile> {
    let all = MTUS.map(|mtu| LinkProfile::plain(&name(mtu), mtu));
    all.into_iter().filter(|link| !links.contains(link)).collect()
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
            for mtu in MTUS {
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
    columns.extend(MTUS.map(|mtu| format!("MTU {mtu}")));
    let mut rows = Vec::new();
    for specification in SPECIFICATIONS {
        let (figure, unit, decimals) = metric(specification);
        for target in run.values(TARGET) {
            let mut row = [specification, unit, target].map(layout::text).to_vec();
            row.extend(MTUS.map(|mtu| {
                layout::cell(run, &labels(target, specification, mtu), figure, decimals)
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
