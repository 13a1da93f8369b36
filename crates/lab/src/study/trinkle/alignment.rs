//! Sequential I/Os on a striped volume that begin at the borders of stripes, and others that do not.
//!
//! A misaligned I/O of a whole stripe uses one device twice, and a misaligned I/O of one chunk uses two devices. The offset
//! of 63 sectors, where partitions began for decades, also splits pages of memory and the 4 KiB blocks of disks; half a
//! chunk does not. So the effect of stripes can be told from that of pages.

use std::time::Duration;

use sarsen_node::stores::CacheMode;

use super::super::layout::{self, size_name};
use super::super::{Initiator, Point, load_with};
use super::{NOISE, TARGET, TEST};
use crate::access::AccessPattern;
use crate::fio::Amount;
use crate::network::LinkProfile;
use crate::published::TRINKLE_ALIGNMENT_GAINS;
use crate::record::{Labels, Run, figure};
use crate::report::{Bars, Block, Cell, Section, Table};
use crate::statistics::{Difference, Summary};
use crate::target_under_test::{Medium, Striping, TargetUnderTest, VolumeSpec};

/// Value of [`TEST`] of all cells here.
const NAME: &str = "RAID alignment";
const SIZE: &str = "size";
const OPERATION: &str = "operation";
const START: &str = "start";

const VOLUME: &str = "raid";
/// The thesis has four disks. Its chunks of 1 MiB would make a stripe longer than usual I/Os; this is the default of pools.
const STRIPING: Striping = Striping { devices: 4, chunk_bytes: 64 << 10 };
/// One chunk, and one stripe.
const SIZES: [u32; 2] = [STRIPING.chunk_bytes, STRIPING.stripe_bytes()];
/// The operations, with their percentage of reads.
const OPERATIONS: [(&str, u8); 2] = [("read", 100), ("write", 0)];
/// Outstanding I/Os of the thesis's sequential specification.
const QUEUE_DEPTH: u32 = 32;

/// Where the first I/O begins, and so all others relative to the borders of stripes: the name and the offset in bytes.
const ALIGNED: (&str, u64) = ("border of a stripe", 0);
const MISALIGNED: [(&str, u64); 2] =
    [("half a chunk", STRIPING.chunk_bytes as u64 / 2), ("sector 63", 63 * 512)];

fn starts() -> impl Iterator<Item = (&'static str, u64)> {
    std::iter::once(ALIGNED).chain(MISALIGNED)
}

fn labels(target: &str, size: u32, operation: &str, start: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(TEST, NAME)
        .with(SIZE, size_name(size))
        .with(OPERATION, operation)
        .with(START, start)
}

/// Returns the striped volume, which has the medium and the size of the volume of the other cells. Its devices on a disk
/// bypass the page cache, which would join and split their I/Os.
pub(super) fn volume(whole: &VolumeSpec) -> VolumeSpec {
    let cache = match whole.medium {
        Medium::Ram => whole.cache,
        Medium::Disk => CacheMode::None,
    };
    VolumeSpec { name: VOLUME.into(), striping: Some(STRIPING), cache, ..whole.clone() }
}

/// Returns the cells of the targets that have stripes, on a volume of so many bytes.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    link: &LinkProfile,
    bytes: u64,
    warm_up: Duration,
    duration: Duration,
) -> Vec<Point> {
    let mut points = Vec::new();
    let striped = targets_under_test.iter().enumerate().filter(|(_, target)| target.has_stripes());
    for (index, target_under_test) in striped {
        for block_bytes in SIZES {
            for (operation, read_percent) in OPERATIONS {
                for (start, offset) in starts() {
                    let (random_percent, queue_depth) = (0, QUEUE_DEPTH);
                    let access =
                        AccessPattern { block_bytes, read_percent, random_percent, queue_depth };
                    points.push(Point {
                        labels: labels(
                            &target_under_test.to_string(),
                            block_bytes,
                            operation,
                            start,
                        ),
                        target_under_test: index,
                        volume: VOLUME.into(),
                        link: link.name.clone(),
                        initiator: Initiator::Physical,
                        writes: read_percent < 100,
                        time: warm_up + duration,
                        measurement: load_with(access, warm_up, duration, move |options| {
                            options.offset = Amount::Bytes(offset);
                            // All cells use as many bytes, wherever they start.
                            options.size =
                                Some(Amount::Bytes(bytes - u64::from(STRIPING.stripe_bytes())));
                        }),
                    });
                }
            }
        }
    }
    points
}

/// Returns the targets that have these cells.
fn targets(run: &Run) -> Vec<&str> {
    let wanted = Labels::new().with(TEST, NAME);
    let mut targets = run.values(TARGET);
    targets.retain(|target| {
        run.cells(&wanted).any(|sample| sample.labels.value(TARGET) == Some(target))
    });
    targets
}

/// Throughputs of aligned and of misaligned I/Os in MB/s, one of each repetition.
struct Pair {
    aligned: Vec<f64>,
    misaligned: Vec<f64>,
}

impl Pair {
    fn of(run: &Run, target: &str, size: u32, operation: &str, start: &str) -> Self {
        let values = |start| run.figures(&labels(target, size, operation, start), figure::MB_PER_S);
        Self { aligned: values(ALIGNED.0), misaligned: values(start) }
    }

    /// Returns the medians, aligned first.
    fn medians(&self) -> Option<(f64, f64)> {
        let median = |values| Summary::of(values).map(|summary| summary.median);
        median(&self.aligned).zip(median(&self.misaligned))
    }

    /// Returns the ratio of the medians.
    fn ratio(&self) -> Option<f64> {
        let (aligned, misaligned) = self.medians()?;
        (misaligned > 0.0).then_some(aligned / misaligned)
    }

    fn is_real(&self) -> bool {
        Difference::between(&self.misaligned, &self.aligned)
            .is_some_and(|difference| difference.is_real())
    }
}

/// Returns the result of each target for I/Os of one stripe, in words.
pub(super) fn summary(run: &Run) -> Vec<String> {
    let size = STRIPING.stripe_bytes();
    let of_target = |target| {
        let mut ratios = Vec::new();
        for (operation, _) in OPERATIONS {
            for (start, _) in MISALIGNED {
                let pair = Pair::of(run, target, size, operation, start);
                let noise = if pair.is_real() { "" } else { ", which is noise" };
                ratios.extend(
                    pair.ratio()
                        .map(|ratio| format!("{operation} against {start} {ratio:.2}{noise}")),
                );
            }
        }
        let size = size_name(size);
        let what = "Sequential I/Os that begin at the border of a stripe, compared with others";
        (!ratios.is_empty()).then(|| {
            format!("{what} ({target}, {size}, ratio of the medians): {}.", ratios.join("; "))
        })
    };
    targets(run).into_iter().filter_map(of_target).collect()
}

/// Returns the section about alignment.
pub(super) fn section(run: &Run) -> Option<Section> {
    let targets = targets(run);
    if targets.is_empty() {
        return None;
    }
    let mut blocks = vec![Block::Text(format!(
        "Sequential I/Os, {QUEUE_DEPTH} outstanding, on a volume that a pool stripes: {STRIPING}. The \
         first I/O begins at the border of a stripe, in the middle of a chunk, or at sector 63; the others \
         follow it. The cells use the link of this run with the largest packets."
    ))];
    for target in targets {
        blocks.push(Block::Table(throughputs(run, target)));
        blocks.push(Block::Bars(chart(run, target)));
        blocks.push(Block::Table(gains(run, target)));
    }
    Some(Section { heading: "Alignment with the stripes of a RAID".into(), blocks })
}

/// The rows of the tables: the size and the operation.
fn rows() -> impl Iterator<Item = (u32, &'static str)> {
    SIZES.into_iter().flat_map(|size| OPERATIONS.map(|(operation, _)| (size, operation)))
}

fn throughputs(run: &Run, target: &str) -> Table {
    let mut columns = vec!["I/O".to_owned(), "Operation".into()];
    columns.extend(starts().map(|(start, _)| start.to_owned()));
    let row = |(size, operation)| {
        let mut row = vec![layout::text(size_name(size)), layout::text(operation)];
        row.extend(starts().map(|(start, _)| {
            layout::cell(run, &labels(target, size, operation, start), figure::MB_PER_S, 1)
        }));
        row
    };
    Table {
        caption: format!("{target}: throughput by the start of the I/Os, means in MB/s"),
        columns,
        rows: rows().map(row).collect(),
        ..Table::default()
    }
}

fn chart(run: &Run, target: &str) -> Bars {
    let series = starts().map(|(start, _)| {
        let cells: Vec<_> =
            rows().map(|(size, operation)| labels(target, size, operation, start)).collect();
        layout::bars(run, start, cells.iter(), figure::MB_PER_S)
    });
    Bars {
        caption: format!("{target}: MB/s by the start of the I/Os"),
        unit: "MB/s".into(),
        groups: rows()
            .map(|(size, operation)| format!("{} {operation}", size_name(size)))
            .collect(),
        series: series.collect(),
        ..Bars::default()
    }
}

/// Returns the gain of alignment, next to that which the thesis quotes.
fn gains(run: &Run, target: &str) -> Table {
    let row = |(size, operation): (u32, &str), start| {
        let pair = Pair::of(run, target, size, operation, start);
        let gain = pair.medians().map(|(aligned, misaligned)| aligned - misaligned);
        // The quoted gains are those of large I/Os.
        let theirs = TRINKLE_ALIGNMENT_GAINS
            .iter()
            .find(|gain| gain.operation == operation && size == STRIPING.stripe_bytes());
        vec![
            layout::text(size_name(size)),
            layout::text(operation),
            layout::text(start),
            pair.ratio().map_or(Cell::Empty, |value| Cell::Number { value, decimals: 3 }),
            layout::change(&pair.misaligned, &pair.aligned),
            layout::number(gain, 1),
            layout::published(theirs.map(|gain| gain.least_mb_per_s), 0),
            layout::published(theirs.map(|gain| gain.most_mb_per_s), 0),
        ]
    };
    let columns = [
        "I/O",
        "Operation",
        "Compared with",
        "Ratio of medians",
        "Difference of means",
        "Gain, MB/s",
        "2009, from, MB/s",
        "2009, to, MB/s",
    ];
    let rows = rows().flat_map(|of| MISALIGNED.map(|(start, _)| row(of, start)));
    Table {
        caption: format!("{target}: gain of the border of a stripe"),
        columns: columns.map(Into::into).to_vec(),
        rows: rows.collect(),
        notes: vec![
            "The thesis quotes a test by VMware of 2009: about 20 MB/s more for sequential reads, and 15 to \
             20 MB/s for sequential writes, with large I/Os."
                .into(),
            "There, each device was a disk, and an I/O on one more device occupied one more disk. The devices \
             here are files on one medium, in memory by default: one more device costs one more request, \
             and occupies nothing else. So the gain can be absent here. Compare ratios, not MB/s."
                .into(),
            "Sector 63 is no multiple of 4 KiB: its I/Os also split pages and physical blocks. Half a chunk \
             is one."
                .into(),
            NOISE.into(),
        ],
        ..Table::default()
    }
}
