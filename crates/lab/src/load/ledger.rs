//! Records the content of each block that this run wrote, and verifies reads of it.
//!
//! Each written logical block contains its address, its generation, the ID of the run and a checksum. While a write is
//! open on a block, no other I/O is open on it. Therefore the ledger knows the exact content after each acknowledged
//! write. At the end, the load reads all written blocks again. This finds errors in blocks that the load itself did not
//! read.

use std::collections::{HashMap, VecDeque};

use sarsen_proto::iscsi::digest::crc32c;
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use sarsen_block::Rng;

/// Maximum number of recorded blocks; writes to further blocks are not verified.
const BLOCK_LIMIT: usize = 16 << 20;
/// Maximum number of mismatches in the list.
const MISMATCH_LIMIT: usize = 16;
/// Magic number of blocks that this program wrote.
const MAGIC: [u8; 8] = *b"sarsenIO";

/// The first bytes of a block. The remaining bytes are a pattern that is derived from them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockStamp {
    magic: [u8; 8],
    run: U64,
    lba: U64,
    generation: U64,
    /// CRC32C of the whole block, calculated with zeros in these four bytes.
    checksum: [u8; 4],
    reserved: [u8; 4],
}

const STAMP_LENGTH: usize = 40;
const _: () = assert!(size_of::<BlockStamp>() == STAMP_LENGTH);

/// The type of a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MismatchKind {
    /// Some bytes of the block differ.
    Corrupt,
    /// The block contains an earlier write of this run to it: a write was lost, or a read was stale.
    Stale,
    /// The block contains data that this run wrote to another block: a write or a read was misdirected.
    Misdirected,
    /// The block contains no data of this run: a write was lost, or another program wrote to the block.
    Foreign,
}

/// A block whose content differs from the last write to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The block's address.
    pub block: u64,
    /// The type of the mismatch.
    pub kind: MismatchKind,
    /// The block to which this run wrote the data, if it is another block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_block: Option<u64>,
    /// The listed block that contains the data of this block, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found_at: Option<u64>,
    /// A description of the mismatch.
    pub detail: String,
}

#[derive(Default)]
struct BlockState {
    /// The generation of the last acknowledged write.
    known: Option<u64>,
    /// The generation of the open write.
    pending: Option<u64>,
    readers: u32,
}

/// The recorded blocks of a logical unit.
pub(super) struct Ledger {
    run: u64,
    block_length: usize,
    blocks: HashMap<u64, BlockState>,
    /// Whether the limit was reached. After that, the ledger adds no block; the content of other blocks is unknown.
    full: bool,
    generation: u64,
    expected: Vec<u8>,
    /// Number of blocks that were compared with the written data.
    pub(super) verified: u64,
    /// Number of blocks that differed.
    pub(super) mismatches: u64,
    /// The first mismatches; each block and type occurs once.
    listed: Vec<Mismatch>,
}

impl Ledger {
    /// Creates a ledger. Returns `None` if a block is too short for a stamp or not a multiple of 8 bytes.
    pub(super) fn new(run: u64, block_length: u32) -> Option<Self> {
        let block_length = block_length as usize;
        (block_length >= STAMP_LENGTH && block_length.is_multiple_of(8)).then(|| Self {
            run,
            block_length,
            blocks: HashMap::new(),
            full: false,
            generation: 0,
            expected: vec![0; block_length],
            verified: 0,
            mismatches: 0,
            listed: Vec::new(),
        })
    }

    /// Returns the number of bytes of a block.
    pub(super) const fn block_length(&self) -> u32 {
        self.block_length as u32
    }

    /// Returns whether an I/O may start now. If it may, the ledger records it as open until it ends.
    pub(super) fn admit(&mut self, lba: u64, blocks: u32, reads: bool) -> bool {
        let range = lba..lba + u64::from(blocks);
        let free = range.clone().all(|block| {
            self.blocks
                .get(&block)
                .is_none_or(|state| state.pending.is_none() && (reads || state.readers == 0))
        });
        if !free {
            return false;
        }
        self.generation += u64::from(!reads);
        self.full |= self.blocks.len() + blocks as usize > BLOCK_LIMIT;
        for block in range {
            let state = if self.full {
                self.blocks.get_mut(&block)
            } else {
                Some(self.blocks.entry(block).or_default())
            };
            match state {
                Some(state) if reads => state.readers += 1,
                Some(state) => state.pending = Some(self.generation),
                None => {}
            }
        }
        true
    }

    /// Fills a buffer with the data of an open write.
    pub(super) fn fill(&self, lba: u64, data: &mut [u8]) {
        for (block, number) in data.chunks_exact_mut(self.block_length).zip(lba..) {
            // The verification ignores blocks whose content is not recorded here.
            let pending = self.blocks.get(&number).and_then(|state| state.pending);
            render(block, self.run, number, pending.unwrap_or(self.generation));
        }
    }

    /// Records the end of a write. After a failed write, the content of its blocks is unknown.
    pub(super) fn end_write(&mut self, lba: u64, blocks: u32, good: bool) {
        for block in lba..lba + u64::from(blocks) {
            if let Some(state) = self.blocks.get_mut(&block) {
                state.known = state.pending.take().filter(|_| good);
            }
        }
    }

    /// Records the end of a read and verifies its data if it succeeded.
    pub(super) fn end_read(&mut self, lba: u64, blocks: u32, data: Option<&[u8]>) {
        for (block, index) in (lba..lba + u64::from(blocks)).zip(0..) {
            let Some(state) = self.blocks.get_mut(&block) else { continue };
            state.readers -= 1;
            match state.known {
                Some(known) => {
                    let start = index * self.block_length;
                    let found = data.and_then(|data| data.get(start..start + self.block_length));
                    if let Some(found) = found {
                        self.check(block, known, found);
                    }
                }
                None if state.readers == 0 => {
                    self.blocks.remove(&block);
                }
                None => {}
            }
        }
    }

    fn check(&mut self, lba: u64, known: u64, found: &[u8]) {
        self.verified += 1;
        render(&mut self.expected, self.run, lba, known);
        if self.expected == found {
            return;
        }
        self.mismatches += 1;
        let (kind, holds_block, what) = describe(self.run, lba, known, &self.expected, found);
        let listed = self.listed.iter().any(|other| (other.block, other.kind) == (lba, kind));
        if !listed && self.listed.len() < MISMATCH_LIMIT {
            let detail = format!("block {lba}, generation {known}: {what}");
            self.listed.push(Mismatch { block: lba, kind, holds_block, found_at: None, detail });
        }
    }

    /// Returns the first mismatches. A mismatch names the listed block that contains its data.
    pub(super) fn listed(&self) -> Vec<Mismatch> {
        let holder = |block| self.listed.iter().find(|other| other.holds_block == Some(block));
        let listed = self.listed.iter().map(|mismatch| {
            let mut mismatch = mismatch.clone();
            if let Some(Mismatch { block, .. }) = holder(mismatch.block) {
                mismatch.found_at = Some(*block);
                mismatch.detail += &format!("; block {block} holds what was written to it");
            }
            mismatch
        });
        listed.collect()
    }

    /// Returns all blocks with known content, in order, as runs of a maximum of `limit` blocks.
    pub(super) fn known(&self, limit: u32) -> VecDeque<(u64, u32)> {
        let known = self.blocks.iter().filter(|(_, state)| state.known.is_some());
        let mut blocks: Vec<u64> = known.map(|(&block, _)| block).collect();
        blocks.sort_unstable();
        let mut runs: VecDeque<(u64, u32)> = VecDeque::new();
        for block in blocks {
            match runs.back_mut() {
                Some((first, count)) if *first + u64::from(*count) == block && *count < limit => {
                    *count += 1;
                }
                _ => runs.push_back((block, 1)),
            }
        }
        runs
    }
}

fn render(block: &mut [u8], run: u64, lba: u64, generation: u64) {
    let mut stamp = BlockStamp {
        magic: MAGIC,
        run: run.into(),
        lba: lba.into(),
        generation: generation.into(),
        checksum: [0; 4],
        reserved: [0; 4],
    };
    let (head, rest) = block.split_at_mut(STAMP_LENGTH);
    head.copy_from_slice(stamp.as_bytes());
    let mut rng = Rng::new(run ^ lba.rotate_left(32) ^ generation);
    for word in rest.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.bits().to_be_bytes());
    }
    stamp.checksum = crc32c(block);
    block[..STAMP_LENGTH].copy_from_slice(stamp.as_bytes());
}

/// Returns the type of a mismatch, the block whose data was found, and a description.
fn describe(
    run: u64,
    lba: u64,
    known: u64,
    expected: &[u8],
    found: &[u8],
) -> (MismatchKind, Option<u64>, String) {
    let Ok((stamp, _)) = BlockStamp::read_from_prefix(found) else {
        return (MismatchKind::Foreign, None, "no data".into());
    };
    let (at, there) = (stamp.lba.get(), stamp.generation.get());
    let mut unsealed = found.to_vec();
    unsealed[..STAMP_LENGTH].copy_from_slice(BlockStamp { checksum: [0; 4], ..stamp }.as_bytes());
    let intact = crc32c(&unsealed) == stamp.checksum;
    if intact && stamp.magic == MAGIC && stamp.run.get() == run {
        if at != lba {
            let what = format!("it holds block {at}, generation {there}: misdirected");
            return (MismatchKind::Misdirected, Some(at), what);
        }
        if there < known {
            let what = format!("it holds generation {there}: a lost write or a stale read");
            return (MismatchKind::Stale, None, what);
        }
    }
    let differing = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    if differing > expected.len() / 2 {
        let zero = found.iter().all(|&byte| byte == 0);
        let what = if zero { ": it is all zeroes" } else { "" };
        let what = format!("it holds no data of this run{what}");
        return (MismatchKind::Foreign, None, what);
    }
    let first = expected.iter().zip(found).enumerate().find(|(_, (a, b))| a != b);
    let (offset, (wanted, is)) = first.unwrap_or((0, (&0, &0)));
    let what = format!(
        "{differing} bytes differ, the first at {offset}: {is:02X}h instead of {wanted:02X}h"
    );
    (MismatchKind::Corrupt, None, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 512;

    /// Returns a ledger and the images of a disk of ten blocks, each written `times` times.
    fn written(times: u32) -> (Ledger, Vec<Vec<u8>>) {
        let mut ledger = Ledger::new(7, LENGTH as u32).unwrap();
        let mut disk = Vec::new();
        for _ in 0..times {
            let mut image = vec![0; 10 * LENGTH];
            assert!(ledger.admit(0, 10, false));
            ledger.fill(0, &mut image);
            ledger.end_write(0, 10, true);
            disk.push(image);
        }
        (ledger, disk)
    }

    fn read(ledger: &mut Ledger, data: &[u8]) -> String {
        assert!(ledger.admit(0, 10, true));
        ledger.end_read(0, 10, Some(data));
        ledger.listed().first().map_or(String::new(), |first| first.detail.clone())
    }

    #[test]
    fn ledger_accepts_written_blocks() {
        let (mut ledger, disk) = written(3);
        assert_eq!(read(&mut ledger, &disk[2]), "");
        assert_eq!((ledger.verified, ledger.mismatches), (10, 0));
    }

    #[test]
    fn each_planted_fault_is_found_and_named() {
        let (mut ledger, mut disk) = written(2);
        disk[1][3 * LENGTH + 100] ^= 4;
        let message = read(&mut ledger, &disk[1]);
        assert!(message.starts_with("block 3, generation 2: 1 bytes differ, the first at 100: "));

        let (mut ledger, mut disk) = written(2);
        let old = disk[0][LENGTH..2 * LENGTH].to_vec();
        disk[1][LENGTH..2 * LENGTH].copy_from_slice(&old);
        let message = read(&mut ledger, &disk[1]);
        assert!(message.starts_with("block 1, generation 2: it holds generation 1"), "{message}");

        let (mut ledger, mut disk) = written(2);
        disk[1].copy_within(5 * LENGTH..6 * LENGTH, 8 * LENGTH);
        let message = read(&mut ledger, &disk[1]);
        assert!(message.contains("block 8") && message.contains("holds block 5"), "{message}");

        let (mut ledger, mut disk) = written(1);
        disk[0][9 * LENGTH..].fill(0);
        let message = read(&mut ledger, &disk[0]);
        assert!(message.contains("no data of this run"), "{message}");
        assert_eq!(ledger.mismatches, 1);
    }

    #[test]
    fn each_mismatch_is_listed_once_and_a_pair_names_each_other() {
        let (mut ledger, mut disk) = written(2);
        let old = disk[0][5 * LENGTH..6 * LENGTH].to_vec();
        disk[1].copy_within(5 * LENGTH..6 * LENGTH, 8 * LENGTH);
        disk[1][5 * LENGTH..6 * LENGTH].copy_from_slice(&old);
        read(&mut ledger, &disk[1]);
        read(&mut ledger, &disk[1]);
        assert_eq!(ledger.mismatches, 4);
        let listed = ledger.listed();
        let shown = listed.iter().map(|m| (m.block, m.kind, m.holds_block, m.found_at));
        assert_eq!(
            shown.collect::<Vec<_>>(),
            [
                (5, MismatchKind::Stale, None, Some(8)),
                (8, MismatchKind::Misdirected, Some(5), None)
            ]
        );

        let mut ledger = Ledger::new(7, LENGTH as u32).unwrap();
        assert!(ledger.admit(0, 100, false));
        ledger.end_write(0, 100, true);
        assert!(ledger.admit(0, 100, true));
        ledger.end_read(0, 100, Some(&[0; 100 * LENGTH]));
        assert_eq!((ledger.mismatches, ledger.listed().len()), (100, MISMATCH_LIMIT));
    }

    #[test]
    fn known_blocks_are_returned_as_ranges() {
        let mut ledger = Ledger::new(7, LENGTH as u32).unwrap();
        for (lba, blocks, good) in [(10, 5, true), (15, 1, true), (30, 1, true), (12, 1, false)] {
            assert!(ledger.admit(lba, blocks, false));
            ledger.end_write(lba, blocks, good);
        }
        assert_eq!(ledger.known(100), [(10, 2), (13, 3), (30, 1)]);
        assert_eq!(ledger.known(2), [(10, 2), (13, 2), (15, 1), (30, 1)]);
    }

    #[test]
    fn open_writes_exclude_others_and_failed_ones_leave_nothing_known() {
        let (mut ledger, _) = written(1);
        assert!(ledger.admit(2, 2, false));
        assert!(!ledger.admit(0, 3, true) && !ledger.admit(3, 1, false));
        assert!(ledger.admit(4, 1, true) && ledger.admit(4, 1, true));
        assert!(!ledger.admit(4, 1, false));
        ledger.end_write(2, 2, false);
        assert!(ledger.admit(2, 1, true));
        ledger.end_read(2, 1, Some(&[0; LENGTH]));
        assert_eq!((ledger.verified, ledger.mismatches), (0, 0));
    }

    #[test]
    fn blocks_too_short_for_a_stamp_are_refused() {
        assert!(Ledger::new(1, 1).is_none() && Ledger::new(1, 39).is_none());
    }
}
