//! The journal: a ring of frames on the first online devices of a pool. Each frame has the records since the frame before.

use std::ops::Deref;

use sarsen_block::Buffer;
use zerocopy::{FromBytes as _, IntoBytes as _};

use crate::format::{FRAME_MAGIC, FrameHeader, PAGE, Superblock, pool_number};
use crate::records::Record;

/// Maximum number of devices that have the journal.
pub(crate) const COPIES: usize = 3;
/// Bytes of the ring that are kept for the frame that a checkpoint writes.
const RESERVE: u64 = 48 << 10;

/// Where the next frame is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    /// Bytes of the ring.
    pub(crate) length: u64,
    /// Number of the next frame, and its offset.
    pub(crate) number: u64,
    pub(crate) offset: u64,
    /// Bytes that frames since the last checkpoint use.
    pub(crate) used: u64,
    /// The run that writes the frames.
    pub(crate) run: u64,
    pub(crate) pool: u64,
}

fn checksum(frame: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &frame[4..]) as u32
}

/// Returns the bytes of a frame with records of this length.
const fn frame_length(records: usize) -> usize {
    (size_of::<FrameHeader>() + records).next_multiple_of(PAGE)
}

/// What the journal has since the last checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) records: Vec<Record>,
    /// The number of a frame that no copy has intact, although later ones were written. The records end before it.
    pub(crate) damaged: Option<u64>,
    /// The copies that lack more than the last frame, which a power failure may have interrupted.
    pub(crate) outdated: Vec<usize>,
}

impl Ring {
    /// Returns the place of the first frame that is newer than a checkpoint.
    pub(crate) fn behind(superblock: &Superblock) -> Self {
        Self {
            length: superblock.journal.get(),
            number: superblock.frame.get(),
            offset: superblock.frame_offset.get(),
            used: 0,
            run: superblock.run.get(),
            pool: pool_number(&superblock.pool),
        }
    }

    /// Returns a frame with these records, and its offset. Returns `None` if there is no room for it before the next
    /// checkpoint.
    pub(crate) fn frame(&mut self, records: &[u8]) -> Option<(u64, Buffer)> {
        self.frame_within(records, self.length - RESERVE)
    }

    /// Returns the frame that a checkpoint writes before its superblock. It is the first one after this checkpoint, and the
    /// last one after the checkpoint before.
    pub(crate) fn last_frame(&mut self, records: &[u8]) -> Option<(u64, Buffer)> {
        self.frame_within(records, self.length)
    }

    /// Returns whether there is room for a frame with records of this length before the next checkpoint.
    pub(crate) const fn has_room(&self, records: usize) -> bool {
        self.skipped_for(records, self.length - RESERVE).is_some()
    }

    /// Returns the bytes at the end of the ring that a frame does not use, or `None` if there is no room for it.
    const fn skipped_for(&self, records: usize, limit: u64) -> Option<u64> {
        let length = frame_length(records) as u64;
        // A frame does not continue at the beginning of the ring.
        let wraps = self.offset + length > self.length;
        let skipped = if wraps { self.length - self.offset } else { 0 };
        if self.used + skipped + length > limit { None } else { Some(skipped) }
    }

    fn frame_within(&mut self, records: &[u8], limit: u64) -> Option<(u64, Buffer)> {
        let skipped = self.skipped_for(records.len(), limit)?;
        let length = frame_length(records.len()) as u64;
        let offset = if self.offset + length > self.length { 0 } else { self.offset };
        let header = FrameHeader {
            checksum: 0.into(),
            length: (records.len() as u32).into(),
            magic: FRAME_MAGIC,
            pool: self.pool.into(),
            run: self.run.into(),
            number: self.number.into(),
        };
        let mut frame = Buffer::zeroed(length as usize);
        frame[..size_of::<FrameHeader>()].copy_from_slice(header.as_bytes());
        frame[size_of::<FrameHeader>()..][..records.len()].copy_from_slice(records);
        let checksum = checksum(&frame);
        frame[..4].copy_from_slice(&checksum.to_le_bytes());
        self.used += skipped + length;
        self.offset = offset + length;
        self.number += 1;
        Some((offset, frame))
    }

    /// Returns whether a checkpoint should make room soon.
    pub(crate) const fn is_half_full(&self) -> bool {
        self.used > self.length / 2
    }

    /// Reads the frames since the last checkpoint from copies of the ring, each from one that has it intact. Afterwards, the next
    /// frame is written behind them.
    pub(crate) fn replay<R: Deref<Target = [u8]>>(
        &mut self,
        rings: &[R],
    ) -> Result<Replayed, String> {
        let mut records = Vec::new();
        // The number behind the last frame of each copy.
        let mut ends = vec![self.number; rings.len()];
        let rings = || rings.iter().map(|ring| &**ring);
        loop {
            let mut found = None;
            for (ring, end) in rings().zip(&mut ends) {
                let Some((offset, length)) = self.find(ring) else { continue };
                found = found.or(Some((ring, offset, length)));
                *end = self.number + 1;
            }
            let Some((ring, offset, length)) = found else { break };
            let frame = &ring[offset as usize..];
            let mut rest = &frame[size_of::<FrameHeader>()..][..length];
            while !rest.is_empty() {
                let (record, after) = Record::read(rest)
                    .ok_or_else(|| format!("frame {} has an unknown record", self.number))?;
                records.push(record);
                rest = after;
            }
            let skipped = if offset < self.offset { self.length - self.offset } else { 0 };
            let length = frame_length(length) as u64;
            self.used += skipped + length;
            self.offset = offset + length;
            self.number += 1;
        }
        // A frame is written when the one before it is durable.
        let is_damaged = rings().any(|ring| self.is_passed_by(ring));
        let outdated = (0..ends.len()).filter(|&at| ends[at] + 1 < self.number).collect();
        Ok(Replayed { records, damaged: is_damaged.then_some(self.number), outdated })
    }

    /// Returns the offset of the next frame and the length of its records. It is behind the one before, or at the
    /// beginning.
    fn find(&self, ring: &[u8]) -> Option<(u64, usize)> {
        let wrapped = if self.offset == 0 { None } else { Some(0) };
        std::iter::once(self.offset).chain(wrapped).find_map(|offset| {
            let (number, length) = self.frame_at(ring, offset)?;
            (number == self.number).then_some((offset, length))
        })
    }

    /// Returns whether a ring has a frame behind the next one.
    fn is_passed_by(&self, ring: &[u8]) -> bool {
        let places = (0..self.length).step_by(PAGE);
        let mut frames = places.filter_map(|offset| self.frame_at(ring, offset));
        frames.any(|(number, _)| number > self.number)
    }

    /// Returns the number of a frame of this run, and the length of its records, if there is one and it is intact.
    fn frame_at(&self, ring: &[u8], offset: u64) -> Option<(u64, usize)> {
        let frame = ring.get(offset as usize..)?;
        let header = FrameHeader::read_from_prefix(frame).ok()?.0;
        let is_own = header.magic == FRAME_MAGIC
            && header.pool.get() == self.pool
            && header.run.get() == self.run
            && header.number.get() >= self.number;
        let length = header.length.get() as usize;
        let frame = frame.get(..frame_length(length)).filter(|_| is_own)?;
        (header.checksum.get() == checksum(frame)).then(|| (header.number.get(), length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_again_around_the_end_of_the_ring() {
        let mut ring =
            Ring { length: 128 << 10, number: 7, offset: 104 << 10, used: 0, run: 3, pool: 9 };
        let start = ring;
        let mut bytes = vec![0; 128 << 10];
        let record = |volume| Record::Replace { volume, source: 1 };
        let mut written = Vec::new();
        for volume in 0..12 {
            let mut records = Vec::new();
            record(volume).write(&mut records);
            records.resize(records.len() * 300, 0);
            for place in 1..300 {
                records.copy_within(..16, place * 16);
            }
            let Some((offset, frame)) = ring.frame(&records) else { break };
            bytes[offset as usize..][..frame.len()].copy_from_slice(&frame);
            written.extend((0..300).map(|_| record(volume)));
        }
        assert_eq!(written.len(), 300 * 10, "80 KiB: 3 frames before the end, 7 behind it");
        assert!({ ring }.last_frame(&[0; 1 << 10]).is_some(), "there is a reserve");
        assert!(ring.is_half_full());
        let mut again = start;
        let replayed = |records, damaged| Replayed { records, damaged, outdated: Vec::new() };
        let (all, none) = (replayed(written, None), replayed(Vec::new(), None));
        assert_eq!(again.replay(&[&bytes[..]]).expect("known records"), all);
        assert_eq!(again, ring);
        // A frame that is damaged, or that another run wrote, ends the replay, unless another copy has it.
        let mut one = bytes.clone();
        one[108 << 10] ^= 1;
        let mut again = start;
        assert_eq!(
            again.replay(&[&one[..]]).expect("known records"),
            replayed(Vec::new(), Some(7))
        );
        let mut other = Ring { run: 4, ..start };
        assert_eq!(other.replay(&[&bytes[..]]).expect("known records"), none);
        // The last frame may not have been completed.
        let mut torn = bytes.clone();
        torn[ring.offset as usize - 1] ^= 1;
        let mut again = start;
        let replayed = again.replay(&[&torn[..]]).expect("known records");
        assert_eq!((replayed.records.len(), replayed.damaged), (300 * 9, None));
        // A copy that lacks more than the last one is older.
        for (missing, outdated) in [(1, vec![]), (2, vec![0]), (3, vec![0])] {
            let mut older = bytes.clone();
            for number in 0..missing {
                older[ring.offset as usize - 1 - (number * frame_length(16 * 300))] ^= 1;
            }
            let mut again = start;
            let replayed = again.replay(&[&older[..], &bytes]).expect("known records");
            assert_eq!((replayed.records.len(), replayed.outdated), (300 * 10, outdated));
        }
        bytes[4 << 10] ^= 1;
        let mut again = start;
        assert_eq!(again.replay(&[one, bytes]).expect("known records"), all);
        assert_eq!(again, ring);
    }
}
