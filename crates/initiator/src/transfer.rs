//! Copies whole disks, files and disk images: a pipeline of reads and writes with a bounded number of pieces in flight.
//! It uses neither terminal nor clock; a caller that shows progress passes a function.
//!
//! Must run on a core (`sarsen_io::cores::block_on`), as sessions and files do.

mod disk;
mod ends;
mod error;
mod images;
mod nbd_disk;
mod plan;
mod runs;
mod stream;

use futures_util::StreamExt;
use futures_util::future::try_join;
use futures_util::stream::{FuturesOrdered, FuturesUnordered};
use sarsen_block::Buffer;
use sha2::{Digest, Sha256};

pub use disk::Disk;
pub use ends::{DiskFile, Sink, Source};
pub use error::TransferError;
pub use images::{
    Image, ImageError, ImageFormat, NewImage, OpenImage, References, check_format, create_qcow2,
    open_image,
};
pub use nbd_disk::NbdDisk;
pub use stream::Stream;

use plan::{Content, Part, Plan};
use runs::HOLE_LENGTH;

/// Bytes of a piece, before it is rounded down to a multiple of the blocks.
const PIECE_LENGTH: u64 = 1 << 20;
/// Maximum of pieces in memory at once.
const PIECES_IN_FLIGHT: usize = 16;
/// The number of places at which a sink is compared with its source before changes are copied.
const SAMPLES: u64 = 64;
/// Bytes that are compared there.
const SAMPLE_LENGTH: u64 = 64 * 1024;
/// Bytes of one step of an erasure, by WRITE SAME or plain writes.
const ERASE_LENGTH: u64 = 16 << 20;
/// Maximum bytes of one UNMAP, so that progress is visible.
const UNMAP_LENGTH: u64 = 1 << 30;
/// Maximum steps of an erasure at once.
const ERASES_IN_FLIGHT: usize = 8;

/// The result of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes, in order.
    pub sha256: [u8; 32],
}

/// The result of a copy of changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// Bytes that have changed, and were copied.
    pub bytes: u64,
    /// Bytes of the whole source.
    pub disk_bytes: u64,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The number of equal bytes, from the first on.
    pub equal_bytes: u64,
    /// SHA-256 of the first side's bytes, if all are equal.
    pub sha256: Option<[u8; 32]>,
    /// Offset of the first byte that differs.
    pub first_difference: Option<u64>,
}

/// How a disk is erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Erasure {
    /// All blocks read as zero afterwards. They are deallocated if the disk guarantees that deallocated blocks read as
    /// zero (WRITE SAME with UNMAP); otherwise plain zeroes are written.
    #[default]
    Best,
    /// All blocks read as zero afterwards and stay allocated.
    Zero,
    /// Blocks are deallocated (UNMAP). The disk decides which data they return.
    Unmap,
}

/// A function that receives the number of bytes done so far, each time it grows.
pub type Progress<'a> = &'a dyn Fn(u64);

/// Returns the smallest length that is a whole number of blocks of both sides; `None` if it is too long.
fn common_block(left: u64, right: u64) -> Option<u64> {
    let (mut a, mut b) = (left, right);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    (left / a).checked_mul(right).filter(|&unit| unit <= PIECE_LENGTH)
}

/// Returns the bytes of a piece that has whole blocks of both sides; `None` if there is no such piece.
fn piece_length(left: u64, right: u64) -> Option<u64> {
    common_block(left, right).map(|unit| PIECE_LENGTH / unit * unit)
}

fn fitting_piece(
    (left, left_block): (&str, u64),
    (right, right_block): (&str, u64),
) -> Result<u64, TransferError> {
    piece_length(left_block, right_block).ok_or_else(|| TransferError::BlockLengths {
        source_place: left.to_owned(),
        source_length: left_block,
        sink_place: right.to_owned(),
        sink_length: right_block,
    })
}

/// Copies `length` bytes (or all that exist) from byte `from` of `source` to byte `to` of `sink`, and flushes. On a
/// disk `to` must be the beginning of a block. The end may be anywhere, and the rest of the last block keeps its data.
/// Zeroes become holes in a file, unallocated clusters in an image, WRITE SAME on a disk, and WRITE_ZEROES on an export.
/// Ranges that an NBD server reports as zero are not read.
///
/// If the future is dropped, the sink has some of the pieces.
pub async fn copy(
    source: &Source<'_>,
    from: u64,
    length: Option<u64>,
    sink: &Sink<'_>,
    to: u64,
    progress: Progress<'_>,
) -> Result<Transferred, TransferError> {
    let length = length.or_else(|| source.length().map(|length| length.saturating_sub(from)));
    source.check_range(from, length.unwrap_or(0))?;
    sink.check_range(to, length.unwrap_or(0))?;
    let mut pipeline = Pipeline::new(source, sink)?;
    let grain = HOLE_LENGTH as u64 / pipeline.unit * pipeline.unit;
    let end = length.map_or(u64::MAX, |length| from + length);
    let plan = Plan::new(source, from, end, grain.max(pipeline.unit));
    pipeline.hash = Some(Sha256::new());
    let Done { bytes, .. } = pipeline.run(plan, to, progress).await?;
    // The stream had fewer bytes than requested.
    if let Some(length) = length.filter(|&length| length > bytes) {
        let place = source.place().to_owned();
        return Err(TransferError::BeyondEnd { place, size: from + bytes, offset: from, length });
    }
    sink.finish(to + bytes).await?;
    let hash = pipeline.hash.take().unwrap_or_default();
    Ok(Transferred { bytes, sha256: hash.finalize().into() })
}

/// Copies the ranges of an export that have changed ([`NbdDisk::open_with_changes`]) to `sink`, and flushes. The sink has
/// the contents of the older snapshot before, and those of the export afterwards. `copy` is the sink as a source: it is
/// compared with the export at some places that have not changed, before anything is written.
///
/// If the future is dropped, the sink has some of the changes. Then they can be copied again.
pub async fn copy_changes(
    source: &NbdDisk,
    copy: &Source<'_>,
    sink: &Sink<'_>,
    progress: Progress<'_>,
) -> Result<Changes, TransferError> {
    let export = Source::Nbd(source);
    let disk_bytes = source.length();
    export.check_range(0, disk_bytes)?;
    sink.check_range(0, disk_bytes)?;
    let mut pipeline = Pipeline::new(&export, sink)?;
    check_older_copy(source, copy).await?;
    let plan = Plan::new(&export, 0, disk_bytes, pipeline.unit);
    let Done { copied, .. } = pipeline.run(plan, 0, progress).await?;
    sink.finish(disk_bytes).await?;
    Ok(Changes { bytes: copied, disk_bytes })
}

/// Checks that a sink has the data of an export where that has not changed, at some places of the disk.
async fn check_older_copy(source: &NbdDisk, copy: &Source<'_>) -> Result<(), TransferError> {
    let block = source.block_length();
    let step = (source.length() / SAMPLES / block).max(1) * block;
    let mut begin = 0;
    while begin < source.length() {
        let mut at = begin;
        for state in source.states(begin, step.min(source.length() - begin)).await? {
            if !state.has_changed && !state.is_zero {
                let length = state.length.min(SAMPLE_LENGTH) as usize;
                let (ours, theirs) =
                    try_join(source.read(at, length), copy.read(at, length)).await?;
                if let Some(index) = first_difference(&ours, &theirs) {
                    return Err(TransferError::NoOlderCopy {
                        place: copy.place().to_owned(),
                        source_place: source.place().to_owned(),
                        offset: at + index as u64,
                    });
                }
                break;
            }
            at += state.length;
        }
        begin += step;
    }
    Ok(())
}

/// What was done with a piece of the source.
enum Piece {
    /// It was read; this many bytes were requested.
    Read {
        wanted: u64,
        data: Buffer,
    },
    Zero(u64),
    Unchanged(u64),
}

/// The result of a pipeline.
struct Done {
    /// Bytes of the range, up to its end or that of a stream.
    bytes: u64,
    /// Bytes that were written.
    copied: u64,
}

/// Reads and writes at once, with a bounded number of pieces in memory.
struct Pipeline<'a> {
    source: &'a Source<'a>,
    sink: &'a Sink<'a>,
    /// A whole number of blocks of both sides.
    unit: u64,
    /// The hash of all bytes in order, if it is wanted.
    hash: Option<Sha256>,
}

impl<'a> Pipeline<'a> {
    fn new(source: &'a Source<'a>, sink: &'a Sink<'a>) -> Result<Self, TransferError> {
        let (left, right) = (source.block_length(), sink.block_length());
        fitting_piece((source.place(), left), (sink.place(), right))?;
        let unit = common_block(left, right).expect("a piece has whole blocks of both sides");
        Ok(Self { source, sink, unit, hash: None })
    }

    /// Copies the parts of a plan to the sink, from byte `to` on.
    async fn run(
        &mut self,
        mut plan: Plan<'_>,
        to: u64,
        progress: Progress<'_>,
    ) -> Result<Done, TransferError> {
        let (source, sink) = (self.source, self.sink);
        let piece = PIECE_LENGTH / self.unit * self.unit;
        let zero = sink.zero_limit().map_or(piece, |limit| limit / self.unit * self.unit);
        let read_limit = if source.is_ordered() { 1 } else { PIECES_IN_FLIGHT };
        let (mut reads, mut writes) = (FuturesOrdered::new(), FuturesUnordered::new());
        let (mut taken, mut done, mut copied) = (0, 0, 0);
        let mut rest = None;
        let mut is_planned = false;
        loop {
            while !is_planned
                && reads.len() < read_limit
                && reads.len() + writes.len() < PIECES_IN_FLIGHT
            {
                if rest.is_none() {
                    rest = plan.next().await?;
                }
                let Some(Part { offset, length, content }) = rest else {
                    is_planned = true;
                    break;
                };
                let count = match content {
                    Content::Data => length.min(piece),
                    Content::Zero => length.min(zero),
                    Content::Unchanged => length,
                };
                let left = length - count;
                rest = (left > 0).then_some(Part { offset: offset + count, length: left, content });
                reads.push_back(async move {
                    Ok::<_, TransferError>(match content {
                        Content::Data => {
                            let data = source.read(offset, count as usize).await?;
                            Piece::Read { wanted: count, data }
                        }
                        Content::Zero => Piece::Zero(count),
                        Content::Unchanged => Piece::Unchanged(count),
                    })
                });
            }
            let may_write = !sink.is_ordered() || writes.is_empty();
            tokio::select! {
                Some(piece) = reads.next(), if may_write && !reads.is_empty() => {
                    let piece = piece?;
                    let offset = to + taken;
                    match &piece {
                        Piece::Read { wanted, data } => {
                            // Only a stream ends early, and the pipeline has no read behind this one.
                            is_planned |= (data.len() as u64) < *wanted;
                            self.hash(data);
                        }
                        Piece::Zero(count) => self.hash_zeroes(*count),
                        Piece::Unchanged(_) => {}
                    }
                    taken += piece.length();
                    if let Piece::Unchanged(count) = piece {
                        done += count;
                        progress(done);
                    } else if piece.length() > 0 {
                        writes.push(async move {
                            let count = piece.length();
                            let written = match piece {
                                Piece::Read { data, .. } => sink.write(offset, data).await,
                                Piece::Zero(_) | Piece::Unchanged(_) => {
                                    sink.zero(offset, count).await
                                }
                            };
                            written.map(|()| count)
                        });
                    }
                }
                Some(written) = writes.next(), if !writes.is_empty() => {
                    let count = written?;
                    done += count;
                    copied += count;
                    progress(done);
                }
                else => break,
            }
        }
        debug_assert!(done == taken, "{done} of {taken} bytes are done");
        Ok(Done { bytes: done, copied })
    }

    fn hash(&mut self, bytes: &[u8]) {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
    }

    fn hash_zeroes(&mut self, mut count: u64) {
        static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
        while self.hash.is_some() && count > 0 {
            let length = count.min(ZEROES.len() as u64);
            self.hash(&ZEROES[..length as usize]);
            count -= length;
        }
    }
}

impl Piece {
    fn length(&self) -> u64 {
        match self {
            Self::Read { data, .. } => data.len() as u64,
            Self::Zero(count) | Self::Unchanged(count) => *count,
        }
    }
}

/// Compares the first `length` bytes of both sides.
pub async fn compare(
    left: &Source<'_>,
    right: &Source<'_>,
    length: u64,
    progress: Progress<'_>,
) -> Result<Comparison, TransferError> {
    left.check_range(0, length)?;
    right.check_range(0, length)?;
    let piece =
        fitting_piece((left.place(), left.block_length()), (right.place(), right.block_length()))?;
    let limit = if left.is_ordered() || right.is_ordered() { 1 } else { PIECES_IN_FLIGHT / 2 };
    let mut hash = Sha256::new();
    let mut reads = FuturesOrdered::new();
    let (mut asked, mut done) = (0, 0);
    loop {
        while asked < length && reads.len() < limit {
            let (offset, count) = (asked, piece.min(length - asked));
            reads.push_back(try_join(
                left.read(offset, count as usize),
                right.read(offset, count as usize),
            ));
            asked += count;
        }
        let Some(pair) = reads.next().await else { break };
        let (ours, theirs) = pair?;
        if let Some(index) = first_difference(&ours, &theirs) {
            let offset = done + index as u64;
            return Ok(Comparison {
                equal_bytes: offset,
                sha256: None,
                first_difference: Some(offset),
            });
        }
        hash.update(&*ours);
        done += ours.len() as u64;
        progress(done);
    }
    let sha256 = Some(hash.finalize().into());
    Ok(Comparison { equal_bytes: done, sha256, first_difference: None })
}

/// Returns the index of the first byte that differs; the end of a shorter side counts as a difference.
fn first_difference(left: &[u8], right: &[u8]) -> Option<usize> {
    if left == right {
        return None;
    }
    let both = left.iter().zip(right);
    Some(both.take_while(|(left, right)| left == right).count())
}

/// Erases a whole disk, and flushes. Returns its length in bytes.
pub async fn erase(
    disk: &Disk,
    how: Erasure,
    progress: Progress<'_>,
) -> Result<u64, TransferError> {
    let block = disk.block_length();
    let blocks = disk.length() / block;
    let by_unmap = how == Erasure::Unmap;
    let step = if by_unmap {
        if !disk.provisioning().unmap {
            return Err(TransferError::UnmapUnsupported { place: disk.place().to_owned() });
        }
        let limit = match disk.limits().unmap_blocks {
            0 => u64::from(u32::MAX),
            limit => limit.into(),
        };
        limit.min((UNMAP_LENGTH / block).max(1))
    } else {
        (ERASE_LENGTH / block).max(1)
    };
    let give_back = how == Erasure::Best && disk.zeroes_by_unmap();
    let mut steps = FuturesUnordered::new();
    let (mut next, mut done) = (0, 0);
    loop {
        while next < blocks && steps.len() < ERASES_IN_FLIGHT {
            let (lba, count) = (next, step.min(blocks - next));
            steps.push(async move {
                let result = match u32::try_from(count) {
                    Ok(count) if by_unmap => disk.unmap(lba, count).await,
                    _ => disk.zero(lba, count, give_back).await,
                };
                result.map(|()| count)
            });
            next += count;
        }
        let Some(erased) = steps.next().await else { break };
        done += erased?;
        progress(done * block);
    }
    disk.flush().await?;
    Ok(done * block)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use sarsen_io::cores::{FileEngine, block_on};

    use super::*;

    fn run<T>(future: impl Future<Output = T>) -> T {
        block_on(FileEngine::Auto, future).unwrap()
    }

    fn pattern(length: usize) -> Vec<u8> {
        (0..length).map(|index| (index * 7 + index / 251) as u8 | 1).collect()
    }

    async fn copy_file(from: &Path, to: &Path) -> Result<Transferred, TransferError> {
        let (source, sink) = (Source::open(from)?, Sink::create(to)?);
        copy(&source, 0, None, &sink, 0, &|_| {}).await
    }

    #[test]
    fn a_file_arrives_whole_with_its_hash_and_its_progress() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let bytes = pattern(40 * (1 << 20) + 777);
        fs::write(&from, &bytes).unwrap();
        fs::write(&to, b"what was there before").unwrap();
        let reported = Cell::new(0);
        let through = run(async {
            let (source, sink) = (Source::open(&from).unwrap(), Sink::create(&to).unwrap());
            let progress = |done| {
                assert!(done > reported.replace(done));
            };
            copy(&source, 0, None, &sink, 0, &progress).await.unwrap()
        });
        assert_eq!(through.bytes, bytes.len() as u64);
        assert_eq!(reported.get(), through.bytes);
        assert_eq!(through.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)));
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn zeroes_become_holes_and_the_length_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut bytes = vec![0; 8 << 20];
        bytes[3 << 20] = 1;
        fs::write(&from, &bytes).unwrap();
        run(copy_file(&from, &to)).unwrap();
        assert!(fs::read(&to).unwrap() == bytes);
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 1 << 20);
    }

    #[test]
    fn a_part_is_taken_from_where_it_was_asked_for_and_no_further() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let bytes = pattern(3 << 20);
        fs::write(&from, &bytes).unwrap();
        run(async {
            let (source, sink) = (Source::open(&from).unwrap(), Sink::create(&to).unwrap());
            copy(&source, 1000, Some(2 << 20), &sink, 0, &|_| {}).await.unwrap();
            let beyond = copy(&source, 1 << 20, Some((2 << 20) + 1), &sink, 0, &|_| {}).await;
            assert!(
                matches!(beyond, Err(TransferError::BeyondEnd { size, .. }) if size == 3 << 20)
            );
        });
        assert!(fs::read(&to).unwrap() == bytes[1000..1000 + (2 << 20)]);
    }

    #[test]
    fn stream_reads_available_data_and_writes_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let bytes = pattern((5 << 20) + 13);
        fs::write(&from, &bytes).unwrap();
        run(async {
            let source =
                Source::Stream(Stream::reading(fs::File::open(&from).unwrap(), "in").unwrap());
            let sink = Sink::Stream(Stream::writing(fs::File::create(&to).unwrap(), "out"));
            let through = copy(&source, 0, None, &sink, 0, &|_| {}).await.unwrap();
            assert_eq!(through.bytes, bytes.len() as u64);
        });
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn a_stream_comes_through_a_pipe_in_pieces_of_any_size() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("to");
        let bytes = pattern((2 << 20) + 5);
        let (read, write) = io::pipe().unwrap();
        run(async {
            let source =
                Source::Stream(Stream::reading(fs::File::from(OwnedFd::from(read)), "in").unwrap());
            let sink = Sink::create(&to).unwrap();
            let fill = {
                let bytes = bytes.clone();
                tokio::task::spawn_blocking(move || {
                    use io::Write;
                    let mut write = write;
                    for piece in bytes.chunks(99_991) {
                        write.write_all(piece).unwrap();
                    }
                })
            };
            let through = copy(&source, 0, None, &sink, 0, &|_| {}).await.unwrap();
            fill.await.unwrap();
            assert_eq!(through.bytes, bytes.len() as u64);
        });
        assert!(fs::read(&to).unwrap() == bytes);
    }

    #[test]
    fn file_locked_by_another_process_is_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("held");
        run(async {
            let _held = Sink::create(&path).unwrap();
            assert!(matches!(Source::open(&path), Err(TransferError::InUse { .. })));
            assert!(matches!(Sink::create(&path), Err(TransferError::InUse { .. })));
        });
    }

    #[test]
    fn first_different_byte_is_reported_at_any_offset() {
        let folder = tempfile::tempdir().unwrap();
        let (left, right) = (folder.path().join("left"), folder.path().join("right"));
        let bytes = pattern(20 << 20);
        fs::write(&left, &bytes).unwrap();
        for index in [0, 4095, (1 << 20) - 1, (17 << 20) + 3, (20 << 20) - 1] {
            let mut changed = bytes.clone();
            changed[index] ^= 0x80;
            *changed.last_mut().unwrap() ^= 1;
            fs::write(&right, &changed).unwrap();
            let found = run(async {
                let (left, right) = (Source::open(&left).unwrap(), Source::open(&right).unwrap());
                compare(&left, &right, 20 << 20, &|_| {}).await.unwrap()
            });
            assert_eq!(found.first_difference, Some(index as u64));
            assert_eq!(found.sha256, None);
        }
        let same = run(async {
            let (one, other) = (Source::open(&left).unwrap(), Source::open(&left).unwrap());
            compare(&one, &other, 20 << 20, &|_| {}).await.unwrap()
        });
        assert_eq!((same.first_difference, same.equal_bytes), (None, 20 << 20));
        assert_eq!(same.sha256, Some(Sha256::digest(&bytes).into()));
    }

    #[test]
    fn a_piece_is_whole_blocks_of_both_sides() {
        assert_eq!(piece_length(1, 512), Some(1 << 20));
        assert_eq!(piece_length(512, 4096), Some(1 << 20));
        assert_eq!(piece_length(520, 1), Some((1 << 20) / 520 * 520));
        assert_eq!(piece_length(520, 512), Some((1 << 20) / 33_280 * 33_280));
        assert_eq!(piece_length((1 << 20) - 1, 4096), None);
    }
}
