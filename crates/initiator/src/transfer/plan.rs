//! What a copy does with each part of its source.

use std::collections::VecDeque;

use super::nbd_disk::{NbdDisk, State};
use super::{Source, TransferError};

/// What a copy does with a part of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// It is read and written.
    Data,
    /// Zeroes are written.
    Zero,
    /// Nothing: the sink has it already.
    Unchanged,
}

/// A part of a source, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) content: Content,
}

/// The parts of a range of a source, in order and without gaps.
pub(super) struct Plan<'a> {
    /// The disk that reports its states, if the source is one.
    disk: Option<&'a NbdDisk>,
    parts: Parts,
    /// The end of the states that the disk has reported.
    reported: u64,
}

impl<'a> Plan<'a> {
    /// Plans the range from `offset` to `end`. Parts begin and end at multiples of `grain` bytes, except at the ends of the
    /// range. The grain must be a multiple of the source's blocks.
    pub(super) fn new(source: &'a Source<'_>, offset: u64, end: u64, grain: u64) -> Self {
        let disk = match source {
            Source::Nbd(disk) if disk.has_status() => Some(*disk),
            _ => None,
        };
        Self { disk, parts: Parts::new(offset, end, grain), reported: offset }
    }

    /// Returns the next part.
    pub(super) async fn next(&mut self) -> Result<Option<Part>, TransferError> {
        loop {
            if let Some(part) = self.parts.ready.pop_front() {
                return Ok(Some(part));
            }
            let end = self.parts.end;
            if self.reported >= end {
                return Ok(None);
            }
            let Some(disk) = self.disk else {
                self.reported = end;
                self.parts.add(end, Content::Data);
                continue;
            };
            let block = disk.block_length();
            let mut at = self.reported / block * block;
            for state in disk.states(at, end.div_ceil(block) * block - at).await? {
                at += state.length;
                self.parts.add(at.min(end), state.content());
            }
            self.reported = at;
        }
    }
}

impl State {
    const fn content(self) -> Content {
        match self {
            Self { has_changed: false, .. } => Content::Unchanged,
            Self { is_zero: true, .. } => Content::Zero,
            _ => Content::Data,
        }
    }
}

/// Makes parts of whole grains. A grain with several contents is data.
struct Parts {
    /// The end of the parts that are ready or were taken.
    done: u64,
    /// The end of what was added, and the content from `done` to there.
    added: (u64, Content),
    /// The end of the range.
    end: u64,
    grain: u64,
    ready: VecDeque<Part>,
}

impl Parts {
    fn new(offset: u64, end: u64, grain: u64) -> Self {
        let added = (offset, Content::Data);
        Self { done: offset, added, end, grain, ready: VecDeque::new() }
    }

    /// Adds the range from the end of the last addition to `to`.
    fn add(&mut self, to: u64, content: Content) {
        let (added, pending) = self.added;
        if to <= added {
            return;
        }
        if added > self.done {
            let grain_end = ((self.done / self.grain + 1) * self.grain).min(self.end);
            let pending = if pending == content { content } else { Content::Data };
            if to < grain_end {
                self.added = (to, pending);
                return;
            }
            self.make_ready(grain_end, pending);
        }
        let whole = if to == self.end { to } else { to / self.grain * self.grain };
        if whole > self.done {
            self.make_ready(whole, content);
        }
        self.added = (to, content);
    }

    fn make_ready(&mut self, end: u64, content: Content) {
        let (offset, length) = (self.done, end - self.done);
        self.done = end;
        match self.ready.back_mut() {
            Some(last) if last.content == content => last.length += length,
            _ => self.ready.push_back(Part { offset, length, content }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Content::{Data, Unchanged, Zero};
    use super::*;

    fn parts(offset: u64, end: u64, grain: u64, added: &[(u64, Content)]) -> Vec<(u64, Content)> {
        let mut parts = Parts::new(offset, end, grain);
        added.iter().for_each(|&(to, content)| parts.add(to, content));
        let mut at = offset;
        let ready = parts.ready.iter().map(|part| {
            assert_eq!(part.offset, at);
            at += part.length;
            (at, part.content)
        });
        ready.collect()
    }

    #[test]
    fn parts_are_whole_grains_and_mixed_grains_are_data() {
        let whole = [(16, Zero), (32, Unchanged), (48, Data)];
        assert_eq!(parts(0, 48, 16, &whole), whole);
        let mixed = [(17, Zero), (20, Unchanged), (31, Zero), (50, Unchanged), (100, Zero)];
        assert_eq!(
            parts(0, 100, 16, &mixed),
            [(16, Zero), (32, Data), (48, Unchanged), (64, Data), (100, Zero)]
        );
        // Equal neighbours are one part, also within a grain.
        assert_eq!(parts(0, 64, 16, &[(5, Zero), (9, Zero), (40, Zero), (64, Zero)]), [(64, Zero)]);
        // A range that begins and ends within a grain.
        assert_eq!(parts(5, 37, 16, &[(7, Zero), (37, Zero)]), [(37, Zero)]);
        assert_eq!(
            parts(5, 37, 16, &[(7, Zero), (33, Unchanged), (37, Zero)]),
            [(16, Data), (32, Unchanged), (37, Data)]
        );
        assert_eq!(parts(5, 9, 16, &[(7, Zero), (9, Data)]), [(9, Data)]);
    }
}
