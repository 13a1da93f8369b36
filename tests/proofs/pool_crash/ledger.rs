//! What volumes, clones and snapshots may have after a kill.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result, ensure};

/// Half of a piece: a write to one half of a piece that is shared with a snapshot copies the other half.
pub(super) const SLOT_BYTES: usize = 2048;
pub(super) const SLOT_BLOCKS: usize = SLOT_BYTES / 512;
pub(super) const DISK_BYTES: u64 = 1 << 20;
pub(super) const SLOTS: usize = DISK_BYTES as usize / SLOT_BYTES;
const WORD_BYTES: usize = 16;

/// The number of the next write; no two writes of a run are equal.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// The generation of each slot; 0 means that it was never written.
pub(super) type Generations = Vec<u64>;

/// Returns the bytes of a slot.
pub(super) fn fill(slot: usize, generation: u64) -> Vec<u8> {
    let word = [(slot as u64 + 1).to_be_bytes(), generation.to_be_bytes()].concat();
    word.repeat(SLOT_BYTES / WORD_BYTES)
}

/// Returns the generations in these bytes of a whole disk. A kill does not interrupt the kernel within a page, so a slot has
/// the words of one write.
pub(super) fn generations(bytes: &[u8]) -> Result<Generations> {
    ensure!(bytes.len() == SLOTS * SLOT_BYTES, "{} bytes", bytes.len());
    let slots = bytes.chunks_exact(SLOT_BYTES).enumerate();
    slots
        .map(|(slot, bytes)| {
            let generation = bytes[8..16].try_into().map(u64::from_be_bytes)?;
            let is_whole = match generation {
                0 => bytes.iter().all(|byte| *byte == 0),
                _ => bytes == fill(slot, generation),
            };
            ensure!(is_whole, "slot {slot} has parts of several writes: {bytes:x?}");
            Ok(generation)
        })
        .collect()
}

/// The writes to a slot, one after the other.
#[derive(Clone, Debug)]
struct Slot {
    issued: Vec<u64>,
    /// Index of the newest write that was answered.
    answered: usize,
    /// Index of the newest write that is durable.
    durable: usize,
}

/// What is known of a volume.
#[derive(Clone, Debug)]
pub(super) struct Ledger(Vec<Slot>);

impl Ledger {
    pub(super) fn new(contents: &Generations) -> Self {
        let slot = |generation: &u64| Slot { issued: vec![*generation], answered: 0, durable: 0 };
        Self(contents.iter().map(slot).collect())
    }

    /// Returns the generation of a new write.
    pub(super) fn issue(&mut self, slot: usize) -> u64 {
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        self.0[slot].issued.push(generation);
        generation
    }

    /// The newest write of the slot was answered.
    pub(super) fn answer(&mut self, slot: usize, is_durable: bool) {
        let slot = &mut self.0[slot];
        slot.answered = slot.issued.len() - 1;
        if is_durable {
            slot.durable = slot.answered;
        }
    }

    /// Returns what a flush that begins now makes durable.
    pub(super) fn answered(&self) -> Vec<usize> {
        self.0.iter().map(|slot| slot.answered).collect()
    }

    /// A flush was answered.
    pub(super) fn flushed(&mut self, answered: &[usize]) {
        for (slot, answered) in self.0.iter_mut().zip(answered) {
            slot.durable = slot.durable.max(*answered);
        }
    }

    /// Returns the possible contents of a snapshot that was requested when these writes were answered, and is complete now at
    /// the latest.
    pub(super) fn snapshot(&self, answered: &[usize]) -> Contents {
        let slots = self.0.iter().zip(answered);
        Contents::OneOf(slots.map(|(slot, answered)| slot.issued[*answered..].to_vec()).collect())
    }

    /// Compares the volume with what it has after a restart, which is what it has from now on.
    pub(super) fn restart(&mut self, found: &Generations) -> Result<()> {
        for (number, (slot, found)) in self.0.iter().zip(found).enumerate() {
            let allowed = &slot.issued[slot.durable..];
            ensure!(allowed.contains(found), "slot {number} has {found} instead of {allowed:?}");
        }
        *self = Self::new(found);
        Ok(())
    }

    /// Compares the volume with what its clients read while nothing is written.
    pub(super) fn check(&self, found: &Generations) -> Result<()> {
        for (number, (slot, found)) in self.0.iter().zip(found).enumerate() {
            let expected = slot.issued[slot.answered];
            ensure!(expected == *found, "slot {number} has {found} instead of {expected}");
        }
        Ok(())
    }

    /// Returns the number of writes without a durable answer.
    pub(super) fn open(&self) -> usize {
        self.0.iter().map(|slot| slot.issued.len() - 1 - slot.durable).sum()
    }
}

/// What a snapshot has.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// It was read once.
    Known(Generations),
    /// Each slot has one of these.
    OneOf(Vec<Vec<u64>>),
}

impl Contents {
    /// Compares the snapshot with what was read, which is what it has from now on.
    pub(super) fn check(&mut self, found: Generations) -> Result<()> {
        match self {
            Self::Known(known) => {
                let differs = known.iter().zip(&found).position(|(known, found)| known != found);
                ensure!(
                    differs.is_none(),
                    "slot {differs:?} changed from {:?} to {:?}",
                    differs.map(|slot| known[slot]),
                    differs.map(|slot| found[slot]),
                );
            }
            Self::OneOf(allowed) => {
                for (slot, (allowed, found)) in allowed.iter().zip(&found).enumerate() {
                    ensure!(
                        allowed.contains(found),
                        "slot {slot} has {found} instead of one of {allowed:?}"
                    );
                }
            }
        }
        *self = Self::Known(found);
        Ok(())
    }
}

/// Returns the bytes of a disk in a stream of one snapshot that depends on no other one (docs/pool-format.md).
pub(super) fn bytes_of_stream(mut stream: &[u8]) -> Result<Vec<u8>> {
    const HEADER_BYTES: usize = 224;
    const RANGE_BYTES: usize = 24;
    let mut disk = vec![0; DISK_BYTES as usize];
    while !stream.is_empty() {
        let number = |offset: usize| -> Result<usize> {
            let bytes = stream.get(offset..offset + 8).context("a part that is too short")?;
            Ok(u64::from_le_bytes(bytes.try_into()?) as usize)
        };
        let length = number(16)? & 0xffff_ffff;
        let count = number(16)? >> 32;
        let mut data = HEADER_BYTES + count * RANGE_BYTES;
        for range in 0..count {
            let at = HEADER_BYTES + range * RANGE_BYTES;
            let (first, bytes, is_hole) = (number(at)?, number(at + 8)?, number(at + 16)? & 1 == 1);
            if !is_hole {
                let from = stream.get(data..data + bytes).context("data")?;
                disk.get_mut(first..first + bytes).context("a range")?.copy_from_slice(from);
                data += bytes;
            }
        }
        stream = stream.get(length..).context("a part that is too long")?;
    }
    Ok(disk)
}
