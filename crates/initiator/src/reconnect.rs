//! What a session keeps so that it can log in again and go on where it was.
//!
//! A command that had no answer is repeated. For a read that is harmless. For a write it is, too,
//! and this is why: a repeated write may never land after a later write to the same blocks that
//! was acknowledged.
//!
//! - No write is sent while another one to some of the same blocks waits for its answer
//!   ([`Extents`]). So when a write is repeated, no later one to its blocks was sent yet.
//! - The old session's copy of it cannot land later either: the new login has the same initiator
//!   name and ISID, so the target ends the old session's tasks before it grants it (session
//!   reinstatement, RFC 7143 §6.3.5). A target that was started anew has no old tasks.
//! - Carried out twice, it leaves the same blocks. Commands for which that does not hold, such as
//!   COMPARE AND WRITE, are not repeated: their callers are told of the loss.
//!
//! A target that lost its power may have forgotten what it acknowledged and had only in its cache.
//! So what was written since the last flush is kept, and written again, in the order in which it
//! was sent, before anything else goes on ([`Unflushed`]). Nothing that was acknowledged later may
//! be undone by that: a write that is stable at once is kept, too, while an older one to its blocks
//! is, and before a command that is none of ours changes blocks nothing is left to be kept.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use sarsen_proto::iscsi::output::Payload;
use tokio::sync::{Mutex, Notify};

use crate::disk::Capacity;
use crate::error::SessionError;
use crate::session::SessionOptions;
use crate::url::Url;

/// The pause after a first attempt that failed; each next one is twice as long.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause between attempts.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A command that loses this many connections is given up: it may be what breaks them.
pub(crate) const REPEAT_LIMIT: u32 = 8;
/// Memory that what is kept may take before it is flushed.
const UNFLUSHED_LIMIT: usize = 64 << 20;

/// What a unit is known again by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) capacity: Capacity,
    pub(crate) naa: Option<String>,
    pub(crate) serial: Option<String>,
}

/// See the module.
pub(crate) struct Reconnection {
    pub(crate) url: Url,
    /// Those of the first login, with its ISID.
    pub(crate) options: SessionOptions,
    pub(crate) limit: Duration,
    /// One task logs in, the others wait.
    pub(crate) gate: Mutex<()>,
    /// Logins so far.
    pub(crate) generation: Cell<u64>,
    /// Why there will be no further attempt.
    pub(crate) gave_up: RefCell<Option<SessionError>>,
    pub(crate) unit: RefCell<Option<Fingerprint>>,
    pub(crate) extents: Extents,
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
            extents: Extents::default(),
            unflushed: Unflushed::default(),
        }
    }
}

/// The blocks that writes without an answer are about.
#[derive(Default)]
pub(crate) struct Extents {
    held: RefCell<Vec<(u64, u64)>>,
    released: Notify,
}

/// Blocks that belong to one write until this is dropped.
pub(crate) struct LockedBlocks<'a> {
    extents: &'a Extents,
    extent: (u64, u64),
}

impl Extents {
    /// Waits until no other write is about any of these blocks: the first, and the one after the
    /// last.
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

/// A write that a cache may still forget.
#[derive(Clone)]
pub(crate) struct VolatileWrite {
    pub(crate) cdb: [u8; 16],
    pub(crate) payload: Payload,
    pub(crate) length: u32,
    /// The first block, and the one after the last.
    pub(crate) extent: (u64, u64),
    /// Bytes of memory that the payload takes: of a short one far more than its length.
    pub(crate) memory: usize,
    /// [`UnansweredWrite::note_answer`] was told.
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
    /// It was carried out. Unless that made it `stable`, a flush is what it waits for.
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

/// What was written since the last flush, in order.
#[derive(Default)]
pub(crate) struct Unflushed {
    kept: RefCell<BTreeMap<u64, VolatileWrite>>,
    next: Cell<u64>,
    bytes: Cell<usize>,
    /// The unit has no cache that forgets.
    stable: Cell<bool>,
}

impl Unflushed {
    /// Whether what is acknowledged from now on is on stable storage. Then nothing is kept that
    /// has its answer.
    pub(crate) fn set_stable(&self, stable: bool) {
        self.stable.set(stable);
        if stable {
            self.forget(&self.answered());
        }
    }

    /// Keeps a write that is about to be sent. It has to be there before its answer: the
    /// connection may be lost between that and the moment at which anybody sees it.
    ///
    /// A write that ends without [`UnansweredWrite::note_answer`] is forgotten: it failed, or its caller
    /// has dropped it, and others may write there next.
    pub(crate) fn keep(&self, kept: VolatileWrite) -> UnansweredWrite<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        self.bytes.set(self.bytes.get() + kept.bytes());
        self.kept.borrow_mut().insert(number, kept);
        UnansweredWrite { unflushed: self, number }
    }

    /// Whether an older write to some of the blocks of this one is kept.
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

    /// Those that a flush which is sent now brings to stable storage.
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
        let extents = Extents::default();
        let first = extents.claim(10, 20).now_or_never().unwrap();
        let beside = extents.claim(20, 30).now_or_never().unwrap();
        let mut across = pin!(extents.claim(15, 25));
        assert!(across.as_mut().now_or_never().is_none());
        drop(first);
        assert!(across.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(across.now_or_never().is_some());
    }

    /// A write of which the first byte of the CDB is `mark`.
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
    fn only_what_was_answered_before_a_flush_is_forgotten_by_it() {
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
    fn a_unit_without_a_cache_has_only_what_waits_for_its_answer() {
        let unflushed = Unflushed::default();
        unflushed.keep(kept(1, 512, (1, 2))).note_answer(false);
        let open = unflushed.keep(kept(2, 512, (2, 3)));
        unflushed.set_stable(true);
        unflushed.keep(kept(3, 512, (3, 4))).note_answer(false);
        assert_eq!(marks(&unflushed), [2]);
        // After a new login it may have one.
        unflushed.set_stable(false);
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
