//! What this run wrote, block by block, and whether it is read back.
//!
//! Each logical block that is written says which block it is, of which generation, of which run,
//! and has a checksum. No two I/Os of which one writes are open on the same block, so what an
//! acknowledged write left is known exactly.

use std::collections::HashMap;

use sarsen_proto::iscsi::digest::crc32c;
use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::dice::Dice;

/// Blocks that are kept track of; what is written beyond them is not verified.
const BLOCK_LIMIT: usize = 16 << 20;
/// Says that a block is one of ours.
const MAGIC: [u8; 8] = *b"sarsenIO";

/// The beginning of a block; a fill that follows from it makes up the rest.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Stamp {
    magic: [u8; 8],
    run: U64,
    lba: U64,
    generation: U64,
    /// CRC32C of the whole block while these four bytes are zero.
    checksum: [u8; 4],
    reserved: [u8; 4],
}

const STAMP_LENGTH: usize = 40;
const _: () = assert!(size_of::<Stamp>() == STAMP_LENGTH);

#[derive(Default)]
struct State {
    /// What the last acknowledged write left.
    known: Option<u64>,
    /// What an open write will leave.
    pending: Option<u64>,
    readers: u32,
}

/// The blocks of a unit.
pub(super) struct Ledger {
    run: u64,
    block_length: usize,
    blocks: HashMap<u64, State>,
    /// Once the limit is reached, no block is added, ever: what is not here is not known.
    full: bool,
    generation: u64,
    expected: Vec<u8>,
    /// Blocks that were held against what was written.
    pub(super) verified: u64,
    /// Blocks that were something else.
    pub(super) mismatches: u64,
    /// What the first one of these was.
    pub(super) first_mismatch: Option<String>,
}

impl Ledger {
    /// Blocks shorter than a stamp cannot be verified.
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
            first_mismatch: None,
        })
    }

    /// Whether an I/O may be open now; if so, it is until it has ended.
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

    /// The data of the write that was admitted last.
    pub(super) fn fill(&self, lba: u64, data: &mut [u8]) {
        for (block, number) in data.chunks_exact_mut(self.block_length).zip(lba..) {
            render(block, self.run, number, self.generation);
        }
    }

    /// A write has ended. If it failed, nobody knows what is there.
    pub(super) fn end_write(&mut self, lba: u64, blocks: u32, good: bool) {
        for block in lba..lba + u64::from(blocks) {
            if let Some(state) = self.blocks.get_mut(&block) {
                state.known = state.pending.take().filter(|_| good);
            }
        }
    }

    /// A read has ended, with its data if it was good.
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
        let (run, expected) = (self.run, &self.expected);
        self.first_mismatch.get_or_insert_with(|| {
            format!(
                "block {lba}, generation {known}: {}",
                describe(run, lba, known, expected, found)
            )
        });
    }
}

fn render(block: &mut [u8], run: u64, lba: u64, generation: u64) {
    let mut stamp = Stamp {
        magic: MAGIC,
        run: run.into(),
        lba: lba.into(),
        generation: generation.into(),
        checksum: [0; 4],
        reserved: [0; 4],
    };
    let (head, rest) = block.split_at_mut(STAMP_LENGTH);
    head.copy_from_slice(stamp.as_bytes());
    let mut dice = Dice::new(run ^ lba.rotate_left(32) ^ generation);
    for word in rest.chunks_exact_mut(8) {
        word.copy_from_slice(&dice.bits().to_be_bytes());
    }
    stamp.checksum = crc32c(block);
    block[..STAMP_LENGTH].copy_from_slice(stamp.as_bytes());
}

/// What is wrong with a block that is not the expected one.
fn describe(run: u64, lba: u64, known: u64, expected: &[u8], found: &[u8]) -> String {
    let Ok((stamp, _)) = Stamp::read_from_prefix(found) else { return "no data".into() };
    let (at, there) = (stamp.lba.get(), stamp.generation.get());
    let mut unsealed = found.to_vec();
    unsealed[..STAMP_LENGTH].copy_from_slice(Stamp { checksum: [0; 4], ..stamp }.as_bytes());
    let intact = crc32c(&unsealed) == stamp.checksum;
    if intact && stamp.magic == MAGIC && stamp.run.get() == run {
        if at != lba {
            return format!("it holds block {at}, generation {there}: misdirected");
        }
        if there < known {
            return format!("it holds generation {there}: a lost write or a stale read");
        }
    }
    let differing = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    if differing > expected.len() / 2 {
        return "it holds nothing that this run wrote".into();
    }
    let first = expected.iter().zip(found).enumerate().find(|(_, (a, b))| a != b);
    let (offset, (wanted, is)) = first.unwrap_or((0, (&0, &0)));
    format!("{differing} bytes differ, the first at {offset}: {is:02X}h instead of {wanted:02X}h")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 512;

    /// A ledger and a disk of ten blocks, each written `times`.
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
        ledger.first_mismatch.clone().unwrap_or_default()
    }

    #[test]
    fn what_was_written_is_accepted() {
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
        assert!(message.contains("nothing that this run wrote"), "{message}");
        assert_eq!(ledger.mismatches, 1);
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
