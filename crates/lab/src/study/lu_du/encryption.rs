//! The light load with encrypted sessions. The study's campus network had a VPN, whose overhead it did not separate; here TLS
//! takes its place.

use super::super::{Initiator, Point, layout, load_for};
use super::{
    BlockPath, LIGHT, LIGHT_SIZES, OPERATIONS, VOLUME, access, light, set_up, size_name, subject,
    times,
};
use crate::network::LinkProfile;
use crate::record::{Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// Returns the path with encrypted sessions over the same link as another one.
pub(super) fn path(plain: &BlockPath) -> BlockPath {
    let name = format!("{}-tls", plain.link.name);
    let link = LinkProfile { name, has_tls: true, ..plain.link.clone() };
    BlockPath { name: "100 Mbit/s with TLS", link }
}

/// Returns the cells of sarsen, which has the number `index`: sessions, and the light load.
pub(super) fn points(path: &BlockPath, index: usize, scale: Scale) -> Vec<Point> {
    let own = TargetUnderTest::Sarsen;
    let mut points = set_up(path, &[(index, &own)], scale);
    for operation in OPERATIONS {
        for bytes in LIGHT_SIZES {
            let (warm_up, duration) = times(LIGHT, path, bytes, scale);
            let access = access(if operation == "read" { 100 } else { 0 }, bytes, 1);
            points.push(Point {
                labels: light(subject(&own, path), operation, bytes),
                target_under_test: index,
                volume: VOLUME.into(),
                link: path.link.name.clone(),
                initiator: Initiator::Physical,
                writes: operation == "write",
                time: warm_up + duration,
                measurement: load_for(access, warm_up, duration),
            });
        }
    }
    points
}

/// Returns the section about the cost of encryption.
pub(super) fn section(run: &Run, plain: &BlockPath) -> Option<Section> {
    let own = TargetUnderTest::Sarsen;
    let encrypted = path(plain);
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        for bytes in LIGHT_SIZES {
            let labels = |path| light(subject(&own, path), operation, bytes);
            if run.cells(&labels(&encrypted)).next().is_none() {
                continue;
            }
            let of = |path| run.figures(&labels(path), figure::MEAN_US);
            let mut row = vec![layout::text(operation), layout::text(size_name(bytes))];
            row.extend(
                [plain, &encrypted]
                    .map(|path| layout::scaled(run, &labels(path), figure::MEAN_US, 1e-3, 3)),
            );
            row.push(layout::change(&of(plain), &of(&encrypted)));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return None;
    }
    let table = Table {
        caption: "Light load on sarsen over 100 Mbit/s, mean response time, ms".into(),
        columns: ["Operation", "Size", "plain", "with TLS", "change"].map(Into::into).to_vec(),
        rows,
        notes: vec![
            "TLS 1.3 between the initiator and the target. The study's campus network had a VPN and a firewall, whose overhead it \
             did not separate from that of the line."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "The cost of encryption".into(), blocks: vec![Block::Table(table)] })
}
