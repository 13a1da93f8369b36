//! The light load with encrypted sessions. The study's campus network had a VPN, whose overhead it did not separate; here TLS
//! takes its place.

use super::super::{Point, layout};
use super::{
    BlockPath, LIGHT, LIGHT_SIZES, OPERATIONS, PART, SET_UP, campus, light, points_on, size_name,
    subject,
};
use crate::network::LinkProfile;
use crate::record::{Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::TargetUnderTest;

/// Returns the path of the campus with encrypted sessions.
pub(super) fn path() -> BlockPath {
    let plain = campus().link;
    let link = LinkProfile { name: format!("{}-tls", plain.name), has_tls: true, ..plain };
    BlockPath { name: "100 Mbit/s with TLS", link }
}

/// Returns the cells of sarsen, which has the number `index`: sessions, and the light load.
pub(super) fn points(path: &BlockPath, index: usize, scale: Scale) -> Vec<Point> {
    let mut points = points_on(path, &[(index, &TargetUnderTest::Sarsen)], scale);
    points.retain(|point| {
        point.labels.value(PART).is_some_and(|part| [SET_UP, LIGHT].contains(&part))
    });
    points
}

/// Returns the section about the cost of encryption.
pub(super) fn section(run: &Run) -> Option<Section> {
    let own = TargetUnderTest::Sarsen;
    let (plain, encrypted) = (campus(), path());
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
                [&plain, &encrypted]
                    .map(|path| layout::scaled(run, &labels(path), figure::MEAN_US, 1e-3, 3)),
            );
            row.push(layout::change(&of(&plain), &of(&encrypted)));
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
