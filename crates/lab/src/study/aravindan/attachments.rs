//! Networks of a virtual machine that serves a volume: the ways in which its host attaches it to a link. The study compared a
//! bridge with macvtap, chose macvtap, and left out Open vSwitch.

use std::time::Duration;

use super::super::{Initiator, Point, layout, load_for};
use super::report::{metric, words};
use super::{LIO, LOAD, LOADS, MODES, OPERATION, OPERATIONS, TARGET};
use crate::access::AccessPattern;
use crate::network::{Attachment, LinkProfile};
use crate::record::{Labels, Run, figure};
use crate::report::{Block, Section, Table};

const ATTACHMENT: &str = "attachment";

const BRIDGE: &str = "bridge";
const MACVTAP: &str = "macvtap";
const ROUTED: &str = "routed";
const USER_NETWORK: &str = "user network";
/// In the order of the table.
const ATTACHMENTS: [&str; 4] = [BRIDGE, MACVTAP, ROUTED, USER_NETWORK];

const MTU: u32 = 1500;

/// Returns a link for each attachment.
pub(super) fn links() -> Vec<LinkProfile> {
    let plain = |name| LinkProfile::plain(name, MTU);
    vec![
        LinkProfile { has_switch: true, ..plain(BRIDGE) },
        LinkProfile { attachment: Attachment::Macvtap, ..plain(MACVTAP) },
        plain(ROUTED),
        LinkProfile { attachment: Attachment::UserNetwork, ..plain(USER_NETWORK) },
    ]
}

fn labels(attachment: &str, load: &str, operation: &str) -> Labels {
    Labels::new()
        .with(TARGET, LIO)
        .with(ATTACHMENT, attachment)
        .with(LOAD, load)
        .with(OPERATION, operation)
}

/// Returns the cells of the target of a number, which is in a virtual machine.
pub(super) fn points(target_under_test: usize, [warm_up, duration]: [Duration; 2]) -> Vec<Point> {
    let mut points = Vec::new();
    for (load, access) in LOADS {
        for (operation, read_percent) in OPERATIONS {
            points.extend(ATTACHMENTS.map(|attachment| Point {
                labels: labels(attachment, load, operation),
                target_under_test,
                volume: MODES[0].name.into(),
                link: attachment.into(),
                initiator: Initiator::Physical,
                writes: read_percent < 100,
                time: warm_up + duration,
                measurement: load_for(AccessPattern { read_percent, ..access }, warm_up, duration),
            }));
        }
    }
    points
}

/// Returns the section about the attachments.
pub(super) fn section(run: &Run) -> Section {
    let tables = LOADS.map(|(load, _)| of_load(run, load));
    let mut blocks: Vec<_> = tables.into_iter().flatten().map(Block::Table).collect();
    if !blocks.is_empty() {
        blocks.insert(
            0,
            Block::Text(
                "The virtual machine of lio has a network card for each of these links but the last. With the bridge and with macvtap it has \
                 an address in the network of the link. On the routed link, the host forwards its packets. In the user network, \
                 QEMU ends each connection, and opens another one to the machine. The study found macvtap better than a bridge, \
                 without figures in its text, and easier to configure. A machine with macvtap cannot reach its own host."
                    .into(),
            ),
        );
    }
    Section { heading: "Networks of a virtual machine".into(), blocks }
}

fn of_load(run: &Run, load: &str) -> Option<Table> {
    let (rate, unit, decimals) = metric(load);
    let mut columns = vec!["Operation".to_owned(), "Figure".into()];
    columns.extend(ATTACHMENTS.map(Into::into));
    columns.push("macvtap against bridge".into());
    let mut rows = Vec::new();
    for (operation, _) in OPERATIONS {
        let of = |attachment: &str| labels(attachment, load, operation);
        if ATTACHMENTS.iter().all(|attachment| run.cells(&of(attachment)).next().is_none()) {
            continue;
        }
        let figures = [(rate, unit, decimals), (figure::MEAN_US, "mean latency, µs", 0)];
        for (figure, name, decimals) in figures {
            let mut row = vec![layout::text(words(operation)), layout::text(name)];
            row.extend(ATTACHMENTS.map(|one| layout::cell(run, &of(one), figure, decimals)));
            let [bridge, macvtap] = [BRIDGE, MACVTAP].map(|one| run.figures(&of(one), figure));
            row.push(layout::change(&bridge, &macvtap));
            rows.push(row);
        }
    }
    let caption = format!("Attachments of a virtual machine, {load}");
    (!rows.is_empty()).then(|| Table { caption, columns, rows, ..Table::default() })
}
