//! The state that a session keeps to log in again and continue after a lost connection.
//!
//! The session repeats a command that had no answer. For a read that is harmless. For a write it is harmless too,
//! because a repeated write never overwrites a later write to the same blocks that was acknowledged:
//!
//! - The session sends no write while another write to some of the same blocks waits for its answer ([`WriteRangeLocks`]). So
//!   when a write is repeated, no later write to its blocks was sent yet.
//! - The old session's copy of the write cannot be carried out later either. The new login has the same initiator name
//!   and ISID, so the target ends the old session's tasks before it grants the login (session reinstatement, RFC 7143
//!   §6.3.5). A target that was restarted has no old tasks.
//! - A write that is carried out twice leaves the same data in its blocks. Commands for which that is not true, such as
//!   COMPARE AND WRITE, are not repeated: the session returns the loss to their callers.
//!
//! A target that lost power may have lost data that it acknowledged and had only in its cache. So the session keeps all
//! writes since the last flush. After a new login it writes them again, in the order in which they were sent, before
//! any other command ([`Unflushed`]). This must not undo a write that was acknowledged later. So a write that is stable
//! at once is kept, too, while an older write to its blocks is kept. Before a command of another kind changes blocks,
//! the session flushes all kept writes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use sarsen_proto::iscsi::output::Payload;
use tokio::sync::{Mutex, Notify};

use crate::capacity::Capacity;
use crate::error::SessionError;
use crate::options::SessionOptions;
use crate::url::Url;

/// The pause after a first attempt that failed; each next one is twice as long.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between attempts.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A command that loses this many connections fails: the command itself may break them.
pub(crate) const REPEAT_LIMIT: u32 = 8;
/// Maximum memory of the kept writes before they are flushed.
const UNFLUSHED_LIMIT: usize = 64 << 20;

/// The properties by which the session recognises a unit after a new login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) capacity: Capacity,
    pub(crate) naa: Option<String>,
    pub(crate) serial: Option<String>,
}

/// See the module.
pub(crate) struct Reconnection {
    pub(crate) url: Url,
    /// Options of the first login, with its ISID.
    pub(crate) options: SessionOptions,
    pub(crate) limit: Duration,
    /// One task logs in; the others wait.
    pub(crate) gate: Mutex<()>,
    /// Number of logins so far.
    pub(crate) generation: Cell<u64>,
    /// The reason why there are no further attempts.
    pub(crate) gave_up: RefCell<Option<SessionError>>,
    pub(crate) unit: RefCell<Option<Fingerprint>>,
    pub(crate) extents: WriteRangeLocks,
    pub(crate) unflushed: Unflushed,
}

impl Reconnection {
    pub(crate) fn new(url: &Url, options: &SessionOptions, limit: Duration) -> Self {
        Self {
            url: url.clone(),
            options: SessionOptions { reconnect_limit: None, ..options.clone() },
            limit,
            gate: Mutex::default(),
            generation: Cell::default(),
            gave_up: RefCell::default(),
            unit: RefCell::default(),
            extents: WriteRangeLocks::default(),
            unflushed: Unflushed::default(),
        }
    }
}

/// The blocks of writes that have no answer yet.
#[derive(Default)]
pub(crate) struct WriteRangeLocks {
    held: RefCell<Vec<(u64, u64)>>,
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
        while self.held.borrow().iter().any(|&(other, its_end)| first < its_end && other < end) {
            self.released.notified().await;
        }
        self.held.borrow_mut().push((first, end));
        LockedBlocks { extents: self, extent: (first, end) }
    }
}

impl Drop for LockedBlocks<'_> {
    fn drop(&mut self) {
        let mut held = self.extents.held.borrow_mut();
        if let Some(place) = held.iter().position(|extent| *extent == self.extent) {
            held.swap_remove(place);
        }
        self.extents.released.notify_waiters();
    }
}

/// A write that may still be only in the unit's cache.
#[derive(Clone)]
pub(crate) struct VolatileWrite {
    pub(crate) cdb: [u8; 16],
    pub(crate) payload: Payload,
    pub(crate) length: u32,
    /// The first block, and the block after the last.
    pub(crate) extent: (u64, u64),
    /// Bytes of memory that the payload occupies: far more than its length if it is short.
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
        let unflushed = self.unflushed;
        let stable = unflushed.stable.get() || (stable && !unflushed.has_older(self.number));
        if !stable && let Some(kept) = unflushed.kept.borrow_mut().get_mut(&self.number) {
            kept.answered = true;
        }
    }
}

impl Drop for UnansweredWrite<'_> {
    fn drop(&mut self) {
        let answered =
            self.unflushed.kept.borrow().get(&self.number).is_some_and(|kept| kept.answered);
        if !answered {
            self.unflushed.forget(&[self.number]);
        }
    }
}

/// The writes since the last flush, in order.
#[derive(Default)]
pub(crate) struct Unflushed {
    kept: RefCell<BTreeMap<u64, VolatileWrite>>,
    next: Cell<u64>,
    bytes: Cell<usize>,
    /// The unit has no volatile cache.
    stable: Cell<bool>,
}

impl Unflushed {
    /// Sets whether acknowledged writes are on stable storage from now on. If they are, no answered write is kept.
    pub(crate) fn set_write_through(&self, stable: bool) {
        self.stable.set(stable);
        if stable {
            self.forget(&self.answered());
        }
    }

    /// Keeps a write that is about to be sent. It must be kept before its answer arrives: the connection may be lost
    /// between the answer and the moment at which the session sees it.
    ///
    /// A write that ends without [`UnansweredWrite::note_answer`] is forgotten: it failed, or its caller dropped it,
    /// and other callers may write to its blocks next.
    pub(crate) fn keep(&self, kept: VolatileWrite) -> UnansweredWrite<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.bytes.set(self.bytes.get() + kept.bytes());
        self.kept.borrow_mut().insert(number, kept);
        UnansweredWrite { unflushed: self, number }
    }

    /// Returns whether an older write to some of the same blocks is kept.
    fn has_older(&self, number: u64) -> bool {
        let kept = self.kept.borrow();
        let Some(&VolatileWrite { extent: (first, end), .. }) = kept.get(&number) else {
            return false;
        };
        kept.range(..number).any(|(_, older)| first < older.extent.1 && older.extent.0 < end)
    }

    pub(crate) fn forget(&self, numbers: &[u64]) {
        let mut kept = self.kept.borrow_mut();
        for number in numbers {
            if let Some(kept) = kept.remove(number) {
                self.bytes.set(self.bytes.get() - kept.bytes());
            }
        }
    }

    /// Returns the writes that a flush sent now brings to stable storage.
    pub(crate) fn answered(&self) -> Vec<u64> {
        let kept = self.kept.borrow();
        kept.iter().filter(|(_, kept)| kept.answered).map(|(number, _)| *number).collect()
    }

    pub(crate) fn all(&self) -> Vec<VolatileWrite> {
        self.kept.borrow().values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.borrow().is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        !self.stable.get() && self.bytes.get() > UNFLUSHED_LIMIT
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;
    use sarsen_block::Buffer;
    use sarsen_proto::iscsi::Output;

    use super::*;

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
        let payload = Output::default().payload(data.into());
        VolatileWrite { cdb: [mark; 16], payload, length, extent, memory, answered: false }
    }

    fn marks(unflushed: &Unflushed) -> Vec<u8> {
        unflushed.all().iter().map(|kept| kept.cdb[0]).collect()
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
        assert_eq!(unflushed.bytes.get(), 0);
    }
}
