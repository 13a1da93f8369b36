//! The effect of negotiated parameters: those that the study prints, and others one at a time.

use std::time::Duration;

use super::super::{Initiator, Point, layout, load_with};
use super::{LINK_SIZE, MEDIUM, OPERATION, OPERATIONS, TARGET};
use crate::access::AccessPattern;
use crate::load::LoadOptions;
use crate::network::LinkProfile;
use crate::record::{Labels, Run, figure};
use crate::report::{Block, Cell, Section, Table};
use crate::target_under_test::{Medium, TargetUnderTest};

const NEGOTIATION: &str = "negotiation";

const KIB: u32 = 1024;

/// A change of the parameters that the initiator offers.
struct Offer {
    name: &'static str,
    apply: fn(&mut LoadOptions),
}

/// The offers. The first one is the basis of the comparison.
const OFFERS: [Offer; 7] = [
    Offer { name: "the lab's", apply: |_| {} },
    Offer {
        name: "SLES 10 SP1",
        apply: |options| {
            options.initial_r2t = true;
            options.max_recv_data_segment_length = 64 * KIB;
            options.first_burst_length = 64 * KIB;
            options.max_burst_length = 256 * KIB;
        },
    },
    Offer {
        name: "NetWare 6.5 SP7",
        apply: |options| {
            options.initial_r2t = true;
            options.max_recv_data_segment_length = 128 * KIB;
            options.first_burst_length = 128 * KIB;
            options.max_burst_length = 128 * KIB;
        },
    },
    Offer {
        name: "without immediate data, every write asked for",
        apply: |options| {
            options.initial_r2t = true;
            options.immediate_data = false;
        },
    },
    Offer {
        name: "segments of 8K",
        apply: |options| options.max_recv_data_segment_length = 8 * KIB,
    },
    Offer { name: "header digests", apply: |options| options.header_digest = true },
    Offer {
        name: "header and data digests",
        apply: |options| {
            options.header_digest = true;
            options.data_digest = true;
        },
    },
];

fn labels(target: &str, medium: &str, operation: &str, offer: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(MEDIUM, medium)
        .with(OPERATION, operation)
        .with(NEGOTIATION, offer)
}

/// Returns the offers with their cells. The first one is the basis of the comparison.
pub(super) fn offers(target: &str, medium: &str, operation: &str) -> Vec<(&'static str, Labels)> {
    OFFERS.iter().map(|offer| (offer.name, labels(target, medium, operation, offer.name))).collect()
}

/// Returns the cells of all targets with a protocol.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    medium: Medium,
    warm_up: Duration,
    duration: Duration,
) -> Vec<Point> {
    let mut points = Vec::new();
    let remote = targets_under_test.iter().enumerate().filter(|(_, target)| !target.is_direct());
    for operation in OPERATIONS {
        for Offer { name, apply } in OFFERS {
            for (index, target_under_test) in remote.clone() {
                let access = AccessPattern {
                    block_bytes: LINK_SIZE,
                    read_percent: if operation == "read" { 100 } else { 0 },
                    random_percent: 0,
                    queue_depth: 1,
                };
                points.push(Point {
                    labels: labels(
                        &target_under_test.to_string(),
                        medium.as_str(),
                        operation,
                        name,
                    ),
                    target_under_test: index,
                    volume: medium.as_str().into(),
                    link: LinkProfile::loopback().name,
                    initiator: Initiator::Physical,
                    writes: operation == "write",
                    time: warm_up + duration,
                    measurement: load_with(access, warm_up, duration, apply),
                });
            }
        }
    }
    points
}

/// Returns the section with a table for each operation.
pub(super) fn section(run: &Run) -> Option<Section> {
    let sample = run.samples.iter().find(|sample| sample.labels.value(NEGOTIATION).is_some())?;
    let medium = sample.labels.value(MEDIUM)?.to_owned();
    let targets: Vec<_> = run
        .values(TARGET)
        .into_iter()
        .filter(|target| {
            let of = labels(target, &medium, OPERATIONS[0], OFFERS[0].name);
            run.cells(&of).next().is_some()
        })
        .collect();
    let mut blocks = vec![Block::Text(
        "The study prints the parameters that its initiators and targets negotiated: ImmediateData and InitialR2T with Yes, \
         MaxOutstandingR2T with 1, no digests, and the sizes of segments and bursts. Here the initiator offers the same \
         sizes, and other parameters one at a time. A target can answer with less."
            .into(),
    )];
    for operation in OPERATIONS {
        let mut columns = vec!["Offer of the initiator".to_owned()];
        for target in &targets {
            columns.push(format!("{target}, MB/s"));
            columns.push(format!("{target}, difference"));
        }
        let rows = OFFERS.iter().map(|offer| {
            let mut row = vec![layout::text(offer.name)];
            for target in &targets {
                let of = |offer: &Offer| labels(target, &medium, operation, offer.name);
                row.push(layout::cell(run, &of(offer), figure::MB_PER_S, 1));
                let values = |offer| run.figures(&of(offer), figure::MB_PER_S);
                row.push(if offer.name == OFFERS[0].name {
                    Cell::Empty
                } else {
                    layout::change(&values(&OFFERS[0]), &values(offer))
                });
            }
            row
        });
        blocks.push(Block::Table(Table {
            caption: format!("Sequential {operation}s of 64K by negotiation, {medium}, one outstanding"),
            columns,
            rows: rows.collect(),
            notes: vec![
                "A difference is that of the means from the first row. It is called noise if it is not \
                 significant at 95 % in Welch's test."
                    .into(),
            ],
            ..Table::default()
        }));
    }
    Some(Section { heading: "Negotiated parameters as factors".into(), blocks })
}
