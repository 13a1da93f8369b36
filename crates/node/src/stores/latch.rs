//! A latch that closes for good after a failed flush, and the order in which flushes may report success.
//!
//! The kernel reports a write-back error once for each open file (fsync(2); errseq_t), to the first flush or durable
//! write that asks. Another flush in progress at that moment receives success, though its own data may be lost. So a
//! success counts only when all flushes in progress with it have ended, and none of them has closed the latch.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// See the module. A new latch is open.
#[derive(Default)]
pub(super) struct FlushFailureLatch {
    closed: AtomicBool,
    claims: Mutex<Claims>,
    /// Notified whenever a claim has ended.
    ended: Notify,
}

#[derive(Default)]
struct Claims {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// A flush or durable write, from before the call to the kernel until its result is known.
pub(super) struct FlushClaim {
    latch: Arc<FlushFailureLatch>,
    number: u64,
}

impl FlushFailureLatch {
    /// Returns whether a flush or durable write has failed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Begins a flush or durable write.
    pub(super) fn claim(self: &Arc<Self>) -> FlushClaim {
        let mut claims = self.claims();
        let number = claims.next;
        claims.next += 1;
        claims.under_way.insert(number);
        FlushClaim { latch: self.clone(), number }
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock()
    }
}

impl FlushClaim {
    /// Closes the latch after an error from the kernel. Returns whether this is the first error.
    pub(super) fn fail(self) -> bool {
        !self.latch.closed.swap(true, Ordering::AcqRel)
    }

    /// Waits for the other claims in progress after a success from the kernel. Returns whether the success counts.
    pub(super) async fn confirm(self) -> bool {
        let latch = self.latch.clone();
        drop(self);
        // A later claim cannot receive the error of this one.
        let later = latch.claims().next;
        loop {
            let ended = latch.ended.notified();
            if latch.claims().under_way.first().is_none_or(|&first| first >= later) {
                return !latch.is_closed();
            }
            ended.await;
        }
    }
}

impl Drop for FlushClaim {
    fn drop(&mut self) {
        self.latch.claims().under_way.remove(&self.number);
        self.latch.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn fsync2_a_success_beside_a_failure_is_none_whichever_is_seen_first() {
        let context = &mut Context::from_waker(Waker::noop());
        let latch = Arc::new(FlushFailureLatch::default());
        let (one, other) = (latch.claim(), latch.claim());
        let mut one = pin!(one.confirm());
        assert_eq!(one.as_mut().poll(context), Poll::Pending, "the other may have its error");
        assert!(other.fail());
        assert_eq!(one.as_mut().poll(context), Poll::Ready(false));
        let later = latch.claim();
        assert!(latch.is_closed() && !later.fail(), "it stays closed");
    }

    #[test]
    fn a_success_waits_for_those_under_way_and_for_no_later_ones() {
        let context = &mut Context::from_waker(Waker::noop());
        let latch = Arc::new(FlushFailureLatch::default());
        let (one, other) = (latch.claim(), latch.claim());
        let mut one = pin!(one.confirm());
        assert_eq!(one.as_mut().poll(context), Poll::Pending);
        let later = latch.claim();
        assert_eq!(pin!(other.confirm()).poll(context), Poll::Pending, "the later one is with it");
        assert_eq!(one.as_mut().poll(context), Poll::Ready(true));
        assert_eq!(pin!(later.confirm()).poll(context), Poll::Ready(true));
        assert_eq!(pin!(latch.claim().confirm()).poll(context), Poll::Ready(true));
    }
}
