//! Writes that may have to be written again: those without an answer, and those since the last flush.

use std::collections::BTreeMap;
use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::unit::PreparedCommand;

/// Maximum memory of the kept writes before they are flushed.
const UNFLUSHED_LIMIT: usize = 64 << 20;

/// The blocks of writes that have no answer yet.
#[derive(Default)]
pub(crate) struct WriteRangeLocks {
    held: Mutex<Vec<(u64, u64)>>,
    released: Notify,
}

/// Blocks that belong to one write until this is dropped.
pub(crate) struct LockedBlocks<'a> {
    extents: &'a WriteRangeLocks,
    extent: (u64, u64),
}

impl WriteRangeLocks {
    /// Waits until no other write uses any of the blocks from `first` to before `end`.
    pub(crate) async fn claim(&self, first: u64, end: u64) -> LockedBlocks<'_> {
        loop {
            let mut released = pin!(self.released.notified());
            released.as_mut().enable();
            {
                let mut held = self.held.lock();
                if !held.iter().any(|&(other, its_end)| first < its_end && other < end) {
                    held.push((first, end));
                    return LockedBlocks { extents: self, extent: (first, end) };
                }
            }
            released.await;
        }
    }
}

impl Drop for LockedBlocks<'_> {
    fn drop(&mut self) {
        let mut held = self.extents.held.lock();
        if let Some(place) = held.iter().position(|extent| *extent == self.extent) {
            held.swap_remove(place);
        }
        drop(held);
        self.extents.released.notify_waiters();
    }
}

/// A write that may still be only in the unit's cache.
#[derive(Clone)]
pub(crate) struct VolatileWrite {
    pub(crate) command: PreparedCommand,
    /// The first block, and the block after the last.
    pub(crate) extent: (u64, u64),
    /// Bytes of memory that the data occupies: far more than its length if it is short.
    pub(crate) memory: usize,
    /// [`UnansweredWrite::note_answer`] was called.
    pub(crate) answered: bool,
}

impl VolatileWrite {
    const fn bytes(&self) -> usize {
        size_of::<Self>() + self.memory
    }
}

/// A write that has no answer yet.
pub(crate) struct UnansweredWrite<'a> {
    unflushed: &'a Unflushed,
    number: u64,
}

impl UnansweredWrite<'_> {
    /// Notes that the write was carried out. Unless the write is `stable` now, it waits for a flush.
    pub(crate) fn note_answer(self, stable: bool) {
        let kept = &mut *self.unflushed.kept.lock();
        let stable = kept.write_through || (stable && !kept.has_older(self.number));
        if !stable && let Some(write) = kept.writes.get_mut(&self.number) {
            write.answered = true;
        }
    }
}

impl Drop for UnansweredWrite<'_> {
    fn drop(&mut self) {
        let kept = &mut *self.unflushed.kept.lock();
        if !kept.writes.get(&self.number).is_some_and(|write| write.answered) {
            kept.forget(&[self.number]);
        }
    }
}

/// The writes since the last flush, in order.
#[derive(Default)]
pub(crate) struct Unflushed {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    writes: BTreeMap<u64, VolatileWrite>,
    next: u64,
    bytes: usize,
    /// The unit has no volatile cache.
    write_through: bool,
}

impl Kept {
    /// Returns whether an older write to some of the same blocks is kept.
    fn has_older(&self, number: u64) -> bool {
        let Some(&VolatileWrite { extent: (first, end), .. }) = self.writes.get(&number) else {
            return false;
        };
        let mut older = self.writes.range(..number).map(|(_, older)| older.extent);
        older.any(|(its_first, its_end)| first < its_end && its_first < end)
    }

    fn forget(&mut self, numbers: &[u64]) {
        for number in numbers {
            if let Some(write) = self.writes.remove(number) {
                self.bytes -= write.bytes();
            }
        }
    }

    fn answered(&self) -> Vec<u64> {
        let answered = self.writes.iter().filter(|(_, write)| write.answered);
        answered.map(|(number, _)| *number).collect()
    }
}

impl Unflushed {
    /// Sets whether acknowledged writes are on stable storage from now on. If they are, no answered write is kept.
    pub(crate) fn set_write_through(&self, write_through: bool) {
        let kept = &mut *self.kept.lock();
        kept.write_through = write_through;
        if write_through {
            kept.forget(&kept.answered());
        }
    }

    /// Keeps a write that is about to be sent. It must be kept before its answer arrives: the connection may be lost
    /// between the answer and the moment at which the caller sees it.
    ///
    /// A write that ends without [`UnansweredWrite::note_answer`] is forgotten: it failed, or its caller dropped it,
    /// and other callers may write to its blocks next.
    pub(crate) fn keep(&self, write: VolatileWrite) -> UnansweredWrite<'_> {
        let kept = &mut *self.kept.lock();
        let number = kept.next;
        kept.next += 1;
        kept.bytes += write.bytes();
        kept.writes.insert(number, write);
        UnansweredWrite { unflushed: self, number }
    }

    pub(crate) fn forget(&self, numbers: &[u64]) {
        self.kept.lock().forget(numbers);
    }

    /// Returns the writes that a flush sent now brings to stable storage.
    pub(crate) fn answered(&self) -> Vec<u64> {
        self.kept.lock().answered()
    }

    pub(crate) fn all(&self) -> Vec<VolatileWrite> {
        self.kept.lock().writes.values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.lock().writes.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        let kept = &*self.kept.lock();
        !kept.write_through && kept.bytes > UNFLUSHED_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use sarsen_block::Buffer;
    use sarsen_proto::iscsi::Output;
    use sarsen_proto::iscsi::initiator::TaskAttribute;

    use super::*;
    use crate::unit::PreparedData;

    #[test]
    fn writes_to_the_same_blocks_wait_for_each_other() {
        let extents = WriteRangeLocks::default();
        let first = extents.claim(10, 20).now_or_never().unwrap();
        let beside = extents.claim(20, 30).now_or_never().unwrap();
        let mut across = pin!(extents.claim(15, 25));
        assert!(across.as_mut().now_or_never().is_none());
        drop(first);
        assert!(across.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(across.now_or_never().is_some());
    }

    /// Returns a write whose CDB begins with the byte `mark`.
    fn kept(mark: u8, length: u32, extent: (u64, u64)) -> VolatileWrite {
        let data = Buffer::zeroed(length as usize);
        let memory = data.memory();
        let data = PreparedData::Write(Output::default().payload(data.into()), length);
        let attribute = TaskAttribute::Simple;
        let command = PreparedCommand { cdb: [mark; 16], data, attribute, time_limit: None };
        VolatileWrite { command, extent, memory, answered: false }
    }

    fn marks(unflushed: &Unflushed) -> Vec<u8> {
        unflushed.all().iter().map(|kept| kept.command.cdb[0]).collect()
    }

    #[test]
    fn flush_forgets_only_writes_answered_before_it() {
        let unflushed = Unflushed::default();
        let [first, second, third] =
            [1, 2, 3].map(|mark| unflushed.keep(kept(mark, 512, (mark.into(), 4))));
        first.note_answer(false);
        let flushed = unflushed.answered();
        third.note_answer(false);
        unflushed.forget(&flushed);
        assert_eq!(marks(&unflushed), [2, 3], "in the order in which they were sent");
        drop(second);
        assert_eq!(marks(&unflushed), [3], "nobody waits for it: others may have written there");
    }

    #[test]
    fn a_stable_write_is_kept_behind_an_older_one_that_would_undo_it() {
        let unflushed = Unflushed::default();
        unflushed.keep(kept(1, 512, (10, 20))).note_answer(false);
        unflushed.keep(kept(2, 512, (20, 30))).note_answer(true);
        unflushed.keep(kept(3, 512, (19, 20))).note_answer(true);
        assert_eq!(marks(&unflushed), [1, 3]);
        unflushed.forget(&unflushed.answered());
        unflushed.keep(kept(4, 512, (19, 20))).note_answer(true);
        assert!(unflushed.is_empty(), "the older ones were flushed");
    }

    #[test]
    fn unit_without_cache_keeps_only_unanswered_writes() {
        let unflushed = Unflushed::default();
        unflushed.keep(kept(1, 512, (1, 2))).note_answer(false);
        let open = unflushed.keep(kept(2, 512, (2, 3)));
        unflushed.set_write_through(true);
        unflushed.keep(kept(3, 512, (3, 4))).note_answer(false);
        assert_eq!(marks(&unflushed), [2]);
        // After a new login the unit may have a volatile cache.
        unflushed.set_write_through(false);
        open.note_answer(false);
        assert_eq!(marks(&unflushed), [2]);
    }

    #[test]
    fn writes_of_hardly_any_data_take_memory_too() {
        let unflushed = Unflushed::default();
        let each = kept(1, 0, (1, 1)).bytes();
        let most = UNFLUSHED_LIMIT / each;
        for _ in 0..most {
            unflushed.keep(kept(1, 0, (1, 1))).note_answer(false);
        }
        assert!(!unflushed.is_full() && each > sarsen_block::buffer::ALIGNMENT);
        let one_more = unflushed.keep(kept(1, 0, (1, 1)));
        assert!(unflushed.is_full());
        drop(one_more);
        unflushed.forget(&unflushed.answered());
        assert_eq!(unflushed.kept.lock().bytes, 0);
    }
}
