//! Locks of chunks, for requests that change their entries or give them contents of an image, and the turns of those that
//! copy slabs or change devices.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::future::select;
use parking_lot::Mutex;
use sarsen_block::LocalFuture;
use tokio::sync::{MutexGuard, Notify, RwLock, oneshot};

/// The locked ranges of chunks, by volume and first chunk, with their ends and waiters.
type Ranges = BTreeMap<(u32, u64), (u64, Vec<oneshot::Sender<()>>)>;

/// The locks of a pool.
#[derive(Default)]
pub(crate) struct ChunkLocks(Mutex<Ranges>);

/// A locked range of chunks, until this is dropped.
pub(crate) struct ChunkGuard {
    locks: Arc<ChunkLocks>,
    key: (u32, u64),
}

impl ChunkLocks {
    /// Locks chunks of a volume. The range is not empty, and the caller has no other lock.
    pub(crate) async fn lock(self: &Arc<Self>, volume: u32, chunks: Range<u64>) -> ChunkGuard {
        loop {
            let waiting = {
                let mut ranges = self.0.lock();
                let before = ranges.range_mut((volume, 0)..(volume, chunks.end));
                // Locked ranges do not overlap, so that only the last one before the end can reach into this one.
                match before.last() {
                    Some((_, (end, waiters))) if *end > chunks.start => {
                        let (sender, waiting) = oneshot::channel();
                        waiters.push(sender);
                        waiting
                    }
                    _ => {
                        let key = (volume, chunks.start);
                        ranges.insert(key, (chunks.end, Vec::new()));
                        return ChunkGuard { locks: self.clone(), key };
                    }
                }
            };
            let _ended = waiting.await;
        }
    }
}

impl Drop for ChunkGuard {
    fn drop(&mut self) {
        let released = self.locks.0.lock().remove(&self.key);
        drop(released);
    }
}

/// The locks of a volume that is being filled from an image. A volume that was closed and opened again has the same: requests
/// from before may not have ended.
#[derive(Default)]
pub(crate) struct FillLocks {
    /// Requests that may need the image hold it shared. The end of the filling holds it exclusively, so that none of them uses
    /// the image after it.
    pub(crate) ending: RwLock<()>,
    /// The filling has ended.
    pub(crate) is_filled: AtomicBool,
    pub(crate) chunks: Arc<ChunkLocks>,
}

/// One at a time copies or compares slabs, or changes devices.
#[derive(Default)]
pub(crate) struct Turns {
    turn: tokio::sync::Mutex<()>,
    waiting: AtomicUsize,
    /// Another one waits.
    arrival: Notify,
}

/// One that waits for its turn, until this is dropped.
struct Waiting<'a>(&'a Turns);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Turns {
    /// Waits for a turn, which lasts until the guard is dropped. Meanwhile, the others do not pause.
    pub(crate) async fn take(&self) -> MutexGuard<'_, ()> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiting(self);
        self.arrival.notify_waiters();
        self.turn.lock().await
    }

    /// The same, but the others may pause.
    pub(crate) async fn take_patiently(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Pauses, within a turn, until the pause ends or another one waits.
    pub(crate) async fn pause(&self, pause: LocalFuture<()>) {
        let mut arrival = Box::pin(self.arrival.notified());
        arrival.as_mut().enable();
        if self.waiting.load(Ordering::Acquire) == 0 {
            select(pause, arrival).await;
        }
    }
}
