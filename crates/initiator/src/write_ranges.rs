//! Locks of the blocks that writes use.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The first block, and the block after the last.
pub(crate) type Extent = (u64, u64);

/// Returns whether two extents have a block in common.
pub(crate) const fn overlap(one: Extent, other: Extent) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// The blocks of writes that may still be carried out. Writes to the same blocks get them in the order of their claims.
#[derive(Default)]
pub(crate) struct WriteRangeLocks {
    claims: Mutex<Claims>,
    released: Notify,
}

#[derive(Default)]
struct Claims {
    next: u64,
    /// All claims in their order, granted or waiting.
    all: VecDeque<(u64, Extent)>,
}

/// Blocks that belong to one write, or will, until this is dropped.
pub(crate) struct LockedBlocks {
    locks: Arc<WriteRangeLocks>,
    number: u64,
}

impl WriteRangeLocks {
    /// Waits until no earlier write uses any of the blocks from `first` to before `end`.
    pub(crate) async fn claim(self: &Arc<Self>, first: u64, end: u64) -> LockedBlocks {
        let claim = self.begin((first, end));
        loop {
            let mut released = pin!(self.released.notified());
            released.as_mut().enable();
            if self.is_granted(&claim, (first, end)) {
                return claim;
            }
            released.await;
        }
    }

    fn begin(self: &Arc<Self>, extent: Extent) -> LockedBlocks {
        let mut claims = self.claims.lock();
        let number = claims.next;
        claims.next += 1;
        claims.all.push_back((number, extent));
        LockedBlocks { locks: self.clone(), number }
    }

    fn is_granted(&self, claim: &LockedBlocks, extent: Extent) -> bool {
        let claims = self.claims.lock();
        let mut earlier = claims.all.iter().take_while(|(number, _)| *number < claim.number);
        !earlier.any(|(_, other)| overlap(*other, extent))
    }
}

impl Drop for LockedBlocks {
    fn drop(&mut self) {
        self.locks.claims.lock().all.retain(|(number, _)| *number != self.number);
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn writes_to_the_same_blocks_wait_for_each_other() {
        let locks = Arc::new(WriteRangeLocks::default());
        let first = locks.claim(10, 20).now_or_never().unwrap();
        let beside = locks.claim(20, 30).now_or_never().unwrap();
        let mut across = pin!(locks.claim(15, 25));
        assert!(across.as_mut().now_or_never().is_none());
        drop(first);
        assert!(across.as_mut().now_or_never().is_none());
        drop(beside);
        assert!(across.now_or_never().is_some());
    }

    #[test]
    fn a_claim_of_all_blocks_is_not_overtaken() {
        let locks = Arc::new(WriteRangeLocks::default());
        let first = locks.claim(10, 20).now_or_never().unwrap();
        let mut all = Box::pin(locks.claim(0, u64::MAX));
        assert!(all.as_mut().now_or_never().is_none());
        let mut later = pin!(locks.claim(30, 40));
        assert!(later.as_mut().now_or_never().is_none(), "it waits for the claim before it");
        drop(all);
        assert!(later.now_or_never().is_some(), "its caller has given up");
        drop(first);
    }
}
