//! The cost of a block as a fixed part and a part that is proportional to its size. The study names the fixed cost as the
//! cause of the growth of the throughput with the size.

use super::super::layout;
use super::report::{labels, media};
use super::{OPERATIONS, SEQUENTIAL, SIZES, TARGET};
use crate::published;
use crate::record::{Run, figure};
use crate::report::{Block, Cell, Section, Table};
use crate::statistics::{Line, Summary};

/// Returns the section with a row for each target, and one for the study's sequential writes.
pub(super) fn section(run: &Run) -> Option<Section> {
    let mut rows = Vec::new();
    for (ours, theirs) in media(run) {
        for operation in OPERATIONS {
            for target in run.values(TARGET) {
                let latency = |bytes| {
                    let labels = labels(target, ours, operation, SEQUENTIAL, bytes);
                    Some(Summary::of(&run.figures(&labels, figure::MEAN_US))?.mean)
                };
                rows.extend(row(&format!("{target}, {ours}, {operation}"), latency, ours_cell));
            }
            let table = if operation == "read" { "Table 3" } else { "Table 2" };
            let latency = |bytes| {
                let mb_per_s = published::novell_mb_per_s(table, bytes, theirs)?;
                Some(f64::from(bytes) / mb_per_s)
            };
            rows.extend(row(
                &format!("Novell, {table}, {ours}, {operation}"),
                latency,
                |value, decimals| layout::published(Some(value), decimals),
            ));
        }
    }
    if rows.is_empty() {
        return None;
    }
    let table = Table {
        caption: "Latency of a sequential I/O with one outstanding: a fixed part, and a part for each KiB".into(),
        columns: [
            "Target, medium, operation",
            "Fixed part, µs",
            "For each KiB, µs",
            "Limit for large I/Os, MB/s",
            "Size with equal parts, KiB",
            "Greatest deviation, %",
        ]
        .map(Into::into)
        .to_vec(),
        rows,
        notes: vec![
            "A line through the mean latencies of all sizes, with the smallest squares of relative deviations. \
             Its deviation is large where something else than the size changes, for example at a limit of a \
             segment or of a cache."
                .into(),
            "The lines of the study are calculated from its throughputs.".into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "The cost of a block".into(), blocks: vec![Block::Table(table)] })
}

fn ours_cell(value: f64, decimals: u8) -> Cell {
    layout::number(Some(value), decimals)
}

/// Returns the row of a line through the latencies in µs by size, if there are enough of them.
fn row(
    name: &str,
    latency_us: impl Fn(u32) -> Option<f64>,
    cell: impl Fn(f64, u8) -> Cell,
) -> Option<Vec<Cell>> {
    let sizes = std::iter::successors(Some(*SIZES.start()), |bytes| Some(bytes * 2))
        .take_while(|bytes| bytes <= SIZES.end());
    let points: Vec<_> =
        sizes.filter_map(|bytes| Some((f64::from(bytes) / 1024.0, latency_us(bytes)?))).collect();
    let Line { at_zero, slope, deviation } = Line::through(&points)?;
    let positive = |value: f64, decimals| match value {
        value if value > 0.0 && value.is_finite() => cell(value, decimals),
        _ => Cell::Empty,
    };
    Some(vec![
        layout::text(name),
        cell(at_zero, 1),
        cell(slope, 3),
        positive(1.024e3 / slope, 1),
        positive(at_zero / slope, 1),
        cell(100.0 * deviation, 1),
    ])
}
