//! Several initiators at once. The thesis found that their total falls slightly, without figures.

use std::time::Duration;

use super::super::{Initiator, Point, layout, load_with};
use super::{NOISE, SPECIFICATION, TARGET, TEST, metric};
use crate::access::{self, NamedPattern};
use crate::network::LinkProfile;
use crate::record::{Labels, Run};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Several initiators";
const INITIATORS: &str = "initiators";

/// The thesis used up to three.
pub(super) const COUNTS: [u32; 3] = [1, 2, 3];
/// The specifications of which the initiators run one: large reads and small reads.
const SPECIFICATIONS: [&str; 2] = ["Maximum Throughput", "Maximum IOPS"];

fn labels(target: &str, specification: &str, initiators: u32) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(TEST, NAME)
        .with(SPECIFICATION, specification)
        .with(INITIATORS, initiators)
}

/// Returns the cells of all targets over one link.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    link: &LinkProfile,
    volume: &str,
    warm_up: Duration,
    duration: Duration,
) -> Vec<Point> {
    let mut points = Vec::new();
    let specifications =
        access::NAMED.iter().filter(|NamedPattern { name, .. }| SPECIFICATIONS.contains(name));
    for &NamedPattern { name, access } in specifications {
        for initiators in COUNTS {
            for (index, target_under_test) in targets_under_test.iter().enumerate() {
                points.push(Point {
                    labels: labels(&target_under_test.to_string(), name, initiators),
                    target_under_test: index,
                    volume: volume.into(),
                    link: link.name.clone(),
                    initiator: Initiator::Physical,
                    writes: access.read_percent < 100,
                    time: warm_up + duration,
                    measurement: load_with(access, warm_up, duration, move |options| {
                        options.sessions = initiators;
                    }),
                });
            }
        }
    }
    points
}

/// Returns the section about several initiators.
pub(super) fn section(run: &Run) -> Option<Section> {
    let wanted = Labels::new().with(TEST, NAME);
    run.cells(&wanted).next()?;
    let mut columns = vec!["Specification".to_owned(), "Unit".into(), "Target".into()];
    columns.extend(COUNTS.map(|count| match count {
        1 => "1 initiator".to_owned(),
        _ => format!("{count} initiators"),
    }));
    columns.push(format!("{} against 1", COUNTS[COUNTS.len() - 1]));
    let mut rows = Vec::new();
    for specification in SPECIFICATIONS {
        let (figure, unit, decimals) = metric(specification);
        for target in run.values(TARGET) {
            let of = |count| labels(target, specification, count);
            let mut row = [specification, unit, target].map(layout::text).to_vec();
            row.extend(COUNTS.map(|count| layout::cell(run, &of(count), figure, decimals)));
            let values = |count| run.figures(&of(count), figure);
            row.push(layout::change(&values(1), &values(COUNTS[COUNTS.len() - 1])));
            rows.push(row);
        }
    }
    let blocks = vec![
        Block::Text(
            "Each initiator is a session of its own with the outstanding I/Os of the specification. The \
             figures are those of all initiators together. The thesis found after its main tests that \
             the total falls slightly with more initiators; it gives no figures."
                .into(),
        ),
        Block::Table(Table {
            caption: "The total of several initiators, means".into(),
            columns,
            rows,
            notes: vec![NOISE.into()],
            ..Table::default()
        }),
    ];
    Some(Section { heading: "Several initiators".into(), blocks })
}
