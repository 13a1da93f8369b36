//! Writes that may have to be written again: those without an answer, and those since the last flush. `C` is the command or request
//! that writes.
//!
//! A write whose caller dropped it, or whose path was lost for too long, may have been carried out. A read may have returned its
//! data, so writing an older write again must not undo it: it is kept as well.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::instance::Hold;
use crate::write_ranges::{Extent, overlap};

/// Maximum memory of the kept writes before they are flushed.
const UNFLUSHED_LIMIT: usize = 64 << 20;

/// Maximum number of kept writes that are written again at the same time.
const TOGETHER_LIMIT: usize = 64;

/// A write that may still be only in the unit's cache.
#[derive(Clone)]
pub(crate) struct VolatileWrite<C> {
    pub(crate) command: C,
    pub(crate) extent: Extent,
    /// Bytes of memory that the data occupies: far more than its length if it is short.
    pub(crate) memory: usize,
    pub(crate) answer: Answer,
}

/// Returns how many writes at the beginning can be sent together: none of them overlaps another. There must be one or more.
pub(crate) fn independent<C>(writes: &[(u64, VolatileWrite<C>)]) -> usize {
    let limit = writes.len().min(TOGETHER_LIMIT);
    let is_behind_another = |next: &usize| {
        let (earlier, extent) = (&writes[..*next], writes[*next].1.extent);
        earlier.iter().any(|(_, write)| overlap(write.extent, extent))
    };
    (1..limit).find(is_behind_another).unwrap_or(limit)
}

/// What is known about the answer to a write.
#[derive(Clone)]
pub(crate) enum Answer {
    /// The write was not sent yet.
    Unsent,
    /// Its caller waits for it.
    Awaited,
    /// The write was carried out.
    Good,
    /// No caller waits for it any more. The write may be carried out until this hold ends.
    Unknown(Weak<dyn Any + Send + Sync>),
}

impl Answer {
    /// Returns whether a flush that is sent now brings the write to stable storage, if it is ever carried out.
    fn is_flushable(&self) -> bool {
        match self {
            Self::Unsent | Self::Awaited => false,
            Self::Good => true,
            Self::Unknown(hold) => hold.strong_count() == 0,
        }
    }
}

impl<C> VolatileWrite<C> {
    const fn bytes(&self) -> usize {
        size_of::<Self>() + self.memory
    }
}

/// A write that has no answer yet.
pub(crate) struct UnansweredWrite<'a, C> {
    unflushed: &'a Unflushed<C>,
    number: u64,
    hold: Weak<dyn Any + Send + Sync>,
}

impl<C> UnansweredWrite<'_, C> {
    /// Notes that the write is about to be sent.
    pub(crate) fn note_sent(&self) {
        if let Some(write) = self.unflushed.kept.lock().writes.get_mut(&self.number)
            && matches!(write.answer, Answer::Unsent)
        {
            write.answer = Answer::Awaited;
        }
    }

    /// Notes that the write was carried out. Unless the write is `stable` now, it waits for a flush.
    pub(crate) fn note_answer(self, stable: bool) {
        let kept = &mut *self.unflushed.kept.lock();
        if kept.write_through {
            // Whatever was carried out before is stable, and must not be written again over this write.
            kept.forget(&kept.flushable());
        }
        let stable = (kept.write_through || stable) && !kept.has_older(self.number);
        match kept.writes.get_mut(&self.number) {
            Some(write) if !stable => write.answer = Answer::Good,
            _ => kept.forget(&[self.number]),
        }
    }

    /// Notes that the unit has refused the write.
    pub(crate) fn note_failure(self) {
        self.unflushed.forget(&[self.number]);
    }
}

impl<C> Drop for UnansweredWrite<'_, C> {
    fn drop(&mut self) {
        let kept = &mut *self.unflushed.kept.lock();
        match kept.writes.get_mut(&self.number) {
            // While no path is usable there may be any number of these.
            Some(VolatileWrite { answer: Answer::Unsent, .. }) => kept.forget(&[self.number]),
            Some(write) if matches!(write.answer, Answer::Awaited) => {
                write.answer = Answer::Unknown(self.hold.clone());
            }
            _ => {}
        }
    }
}

/// The writes since the last flush, in order.
pub(crate) struct Unflushed<C> {
    kept: Mutex<Kept<C>>,
}

struct Kept<C> {
    writes: BTreeMap<u64, VolatileWrite<C>>,
    next: u64,
    bytes: usize,
    /// The unit has no volatile cache.
    write_through: bool,
}

impl<C> Default for Unflushed<C> {
    fn default() -> Self {
        let kept = Kept { writes: BTreeMap::new(), next: 0, bytes: 0, write_through: false };
        Self { kept: Mutex::new(kept) }
    }
}

impl<C> Kept<C> {
    /// Returns whether an older write to some of the same blocks is kept.
    fn has_older(&self, number: u64) -> bool {
        let Some(&VolatileWrite { extent, .. }) = self.writes.get(&number) else { return false };
        self.writes.range(..number).any(|(_, older)| overlap(older.extent, extent))
    }

    fn forget(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(write) = self.writes.remove(number) {
                self.bytes -= write.bytes();
            }
        }
    }

    fn flushable(&self) -> Vec<u64> {
        let answered = self.writes.iter().filter(|(_, write)| write.answer.is_flushable());
        answered.map(|(number, _)| *number).collect()
    }
}

impl<C> Unflushed<C> {
    /// Sets whether acknowledged writes are on stable storage from now on. If they are, no answered write is kept.
    pub(crate) fn set_write_through(&self, write_through: bool) {
        let kept = &mut *self.kept.lock();
        kept.write_through = write_through;
        if write_through {
            kept.forget(&kept.flushable());
        }
    }

    /// Keeps a write that is about to be sent. It must be kept before its answer arrives: the connection may be lost
    /// between the answer and the moment at which the caller sees it.
    ///
    /// `hold` lasts until the write can no longer be carried out.
    pub(crate) fn keep(&self, write: VolatileWrite<C>, hold: &Hold) -> UnansweredWrite<'_, C> {
        let kept = &mut *self.kept.lock();
        let number = kept.next;
        kept.next += 1;
        kept.bytes += write.bytes();
        kept.writes.insert(number, write);
        UnansweredWrite { unflushed: self, number, hold: Arc::downgrade(hold) }
    }

    pub(crate) fn forget(&self, numbers: &[u64]) {
        self.kept.lock().forget(numbers);
    }

    /// Returns the writes that a flush sent now brings to stable storage.
    pub(crate) fn flushable(&self) -> Vec<u64> {
        self.kept.lock().flushable()
    }

    /// Returns the writes that were sent, with their numbers, in order.
    pub(crate) fn sent(&self) -> Vec<(u64, VolatileWrite<C>)>
    where
        C: Clone,
    {
        let kept = self.kept.lock();
        let sent = kept.writes.iter().filter(|(_, write)| !matches!(write.answer, Answer::Unsent));
        sent.map(|(number, write)| (*number, write.clone())).collect()
    }

    /// Returns whether no write was sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.lock().writes.values().all(|write| matches!(write.answer, Answer::Unsent))
    }

    pub(crate) fn is_write_through(&self) -> bool {
        self.kept.lock().write_through
    }

    pub(crate) fn is_full(&self) -> bool {
        let kept = &*self.kept.lock();
        !kept.write_through && kept.bytes > UNFLUSHED_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::Buffer;

    use super::*;

    /// Returns a write that is the number `mark`.
    fn kept(mark: u8, length: usize, extent: (u64, u64)) -> VolatileWrite<u8> {
        let memory = Buffer::zeroed(length).memory();
        VolatileWrite { command: mark, extent, memory, answer: Answer::Awaited }
    }

    impl Unflushed<u8> {
        /// Keeps a write that can be carried out at any time.
        fn keep_held(&self, write: VolatileWrite<u8>) -> UnansweredWrite<'_, u8> {
            let hold: Hold = Arc::new(());
            let unanswered = self.keep(write, &hold);
            std::mem::forget(hold);
            unanswered
        }
    }

    fn marks(unflushed: &Unflushed<u8>) -> Vec<u8> {
        unflushed.sent().iter().map(|(_, kept)| kept.command).collect()
    }

    #[test]
    fn flush_forgets_only_writes_answered_before_it() {
        let unflushed = Unflushed::default();
        let [first, second, third] =
            [1, 2, 3].map(|mark| unflushed.keep_held(kept(mark, 512, (mark.into(), 4))));
        first.note_answer(false);
        let flushed = unflushed.flushable();
        third.note_answer(false);
        unflushed.forget(&flushed);
        assert_eq!(marks(&unflushed), [2, 3], "in the order in which they were sent");
        drop(second);
        unflushed.forget(&unflushed.flushable());
        assert_eq!(
            marks(&unflushed),
            [2],
            "no caller waits for it, but it may still be carried out"
        );
    }

    #[test]
    fn a_write_without_an_answer_is_kept_until_a_flush_after_its_end() {
        let unflushed = Unflushed::default();
        let hold: Hold = Arc::new(());
        drop(unflushed.keep(kept(1, 512, (1, 2)), &hold));
        assert!(unflushed.flushable().is_empty(), "it may be carried out after a flush");
        drop(hold);
        assert_eq!(unflushed.flushable().len(), 1);
        unflushed.keep_held(kept(2, 512, (1, 2))).note_failure();
        assert_eq!(marks(&unflushed), [1]);
        let unsent = || VolatileWrite { answer: Answer::Unsent, ..kept(5, 512, (5, 6)) };
        drop(unflushed.keep_held(unsent()));
        assert_eq!(unflushed.kept.lock().writes.len(), 1, "it was never sent");
        let sent = unflushed.keep_held(unsent());
        assert_eq!(marks(&unflushed), [1]);
        sent.note_sent();
        assert_eq!(marks(&unflushed), [1, 5]);
        sent.note_failure();
        unflushed.set_write_through(true);
        drop(unflushed.keep(kept(3, 512, (1, 2)), &(Arc::new(()) as Hold)));
        unflushed.keep_held(kept(4, 512, (1, 2))).note_answer(false);
        assert!(unflushed.is_empty(), "an older write must not be written again");
    }

    #[test]
    fn a_stable_write_is_kept_behind_an_older_one_that_would_undo_it() {
        let unflushed = Unflushed::default();
        unflushed.keep_held(kept(1, 512, (10, 20))).note_answer(false);
        unflushed.keep_held(kept(2, 512, (20, 30))).note_answer(true);
        unflushed.keep_held(kept(3, 512, (19, 20))).note_answer(true);
        assert_eq!(marks(&unflushed), [1, 3]);
        unflushed.forget(&unflushed.flushable());
        unflushed.keep_held(kept(4, 512, (19, 20))).note_answer(true);
        assert!(unflushed.is_empty(), "the older ones were flushed");
    }

    #[test]
    fn unit_without_cache_keeps_only_unanswered_writes() {
        let unflushed = Unflushed::default();
        unflushed.keep_held(kept(1, 512, (1, 2))).note_answer(false);
        let open = unflushed.keep_held(kept(2, 512, (2, 3)));
        unflushed.set_write_through(true);
        unflushed.keep_held(kept(3, 512, (3, 4))).note_answer(false);
        assert_eq!(marks(&unflushed), [2]);
        // After a new login the unit may have a volatile cache.
        unflushed.set_write_through(false);
        open.note_answer(false);
        assert_eq!(marks(&unflushed), [2]);
    }

    #[test]
    fn writes_to_the_same_blocks_are_not_written_again_at_the_same_time() {
        let count = |extents: &[(u64, u64)]| {
            let write = |extent: &(u64, u64)| (0, kept(1, 0, *extent));
            independent(&extents.iter().map(write).collect::<Vec<_>>())
        };
        assert_eq!(count(&[(0, 8)]), 1);
        assert_eq!(count(&[(0, 8), (8, 16), (20, 21)]), 3);
        assert_eq!(count(&[(0, 8), (16, 24), (7, 9), (40, 48)]), 2);
        let apart: Vec<_> = (0..1_000).map(|place| (place, place + 1)).collect();
        assert_eq!(count(&apart), TOGETHER_LIMIT);
    }

    #[test]
    fn writes_of_hardly_any_data_take_memory_too() {
        let unflushed = Unflushed::default();
        let each = kept(1, 0, (1, 1)).bytes();
        let most = UNFLUSHED_LIMIT / each;
        for _ in 0..most {
            unflushed.keep_held(kept(1, 0, (1, 1))).note_answer(false);
        }
        assert!(!unflushed.is_full() && each > sarsen_block::buffer::ALIGNMENT);
        let one_more = unflushed.keep_held(kept(1, 0, (1, 1)));
        assert!(unflushed.is_full());
        one_more.note_failure();
        unflushed.forget(&unflushed.flushable());
        assert_eq!(unflushed.kept.lock().bytes, 0);
    }
}
