//! The part that all volumes of a pool share: changes of objects, room, deletions, requests that lost their caller.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use parking_lot::{Mutex, RwLock};
use sarsen_block::{Io, LocalFuture, StoreStatus, Usability};
use tokio::sync::Notify;

use crate::PoolError;
use crate::checksums::Mismatches;
use crate::devices::Devices;
use crate::error::Blocked;
use crate::format::Superblock;
use crate::grace::{Freed, Period};
use crate::journal::Ring;
use crate::locks::{ChunkLocks, FillLocks, Turns};
use crate::state::State;
use crate::tasks::Tasks;

/// The last checkpoint. A checkpoint holds this from its beginning to its end.
pub(crate) struct Writer {
    pub(crate) superblock: Box<Superblock>,
}

/// The journal. A checkpoint holds this only until everything that it contains is in frames; then others can write frames
/// while the checkpoint is written. The writer is locked before the journal.
pub(crate) struct Journal {
    pub(crate) ring: Ring,
    /// The devices that have it.
    pub(crate) keepers: Vec<u8>,
    /// A device was left out while a frame was written: only a checkpoint that begins after that makes changes durable.
    pub(crate) is_behind: bool,
}

/// The part that all volumes of a pool share.
pub(crate) struct Shared {
    pub(crate) devices: Devices,
    pub(crate) state: RwLock<State>,
    pub(crate) writer: tokio::sync::Mutex<Writer>,
    pub(crate) journal: tokio::sync::Mutex<Journal>,
    pub(crate) locks: Arc<ChunkLocks>,
    /// Locks of blocks of slabs whose checksums change.
    pub(crate) block_locks: Arc<ChunkLocks>,
    /// Locks of pages of checksums that are being read.
    pub(crate) checksum_loads: Arc<ChunkLocks>,
    pub(crate) mismatches: Mismatches,
    pub(crate) tasks: Arc<dyn Tasks>,
    /// There is something to delete, or a checkpoint is due.
    pub(crate) work: Arc<Notify>,
    /// The status of each volume that is open or has requests.
    pub(crate) opened: Mutex<HashMap<u32, Weak<StoreStatus>>>,
    /// The locks of each volume that is being filled, and is open or has requests.
    pub(crate) fill_locks: Mutex<HashMap<u32, Weak<FillLocks>>>,
    /// Held while the size of a volume changes.
    pub(crate) resizing: tokio::sync::Mutex<()>,
    /// Held while copies are made or compared, or devices come and go.
    pub(crate) copying: Turns,
    /// Held while a part of a stream is received.
    pub(crate) receiving: tokio::sync::Mutex<()>,
    /// Why devices were left out since the pool was opened.
    pub(crate) left_out: Mutex<BTreeMap<u8, String>>,
}

/// How often an operation has waited for space that was given back. What was given back before the first time is free
/// after the second time at the latest: a unit after a checkpoint, and the slots of a slab in which all units became
/// free then after another one. More is no use: others give back pages as long as they write, and that would never end.
#[derive(Debug, Default)]
pub(crate) struct RoomWaits {
    done: u8,
}

/// Parts of maps that are deleted without a pause for others.
const PARTS: usize = 32;

impl Shared {
    pub(crate) fn new(
        devices: Devices,
        state: State,
        superblock: Box<Superblock>,
        ring: Ring,
        tasks: Arc<dyn Tasks>,
    ) -> Self {
        let journal = Journal { ring, keepers: superblock.keepers(), is_behind: false };
        Self {
            devices,
            state: RwLock::new(state),
            writer: tokio::sync::Mutex::new(Writer { superblock }),
            journal: tokio::sync::Mutex::new(journal),
            locks: Arc::default(),
            block_locks: Arc::default(),
            checksum_loads: Arc::default(),
            mismatches: Mismatches::default(),
            tasks,
            work: Arc::default(),
            opened: Mutex::default(),
            fill_locks: Mutex::default(),
            resizing: tokio::sync::Mutex::default(),
            copying: Turns::default(),
            receiving: tokio::sync::Mutex::default(),
            left_out: Mutex::default(),
        }
    }

    /// Stops all writes.
    pub(crate) fn stop(&self) {
        self.state.write().is_stopped = true;
        let opened: Vec<_> = self.opened.lock().values().filter_map(Weak::upgrade).collect();
        opened.iter().for_each(|status| status.set_usability(Usability::WritesStopped));
    }

    /// Makes a change of objects. It is resolved and tried again until it is made.
    pub(crate) async fn change<T>(
        self: &Arc<Self>,
        mut change: impl FnMut(&mut State) -> Result<T, PoolError>,
        mut perform: impl FnMut(&mut State, T) -> Result<(), Blocked>,
    ) -> Result<u64, PoolError> {
        let mut waits = RoomWaits::default();
        loop {
            let blocked = {
                let mut state = self.state.write();
                if state.is_stopped {
                    return Err(PoolError::Stopped);
                }
                let wanted = change(&mut state)?;
                match perform(&mut state, wanted) {
                    Ok(()) => return Ok(state.recorded),
                    Err(blocked) => blocked,
                }
            };
            self.resolve_or_make_room(blocked, &mut waits).await?;
        }
    }

    /// Resolves a lack. If there is no space, waits for space that was given back before.
    pub(crate) async fn resolve_or_make_room(
        self: &Arc<Self>,
        blocked: Blocked,
        waits: &mut RoomWaits,
    ) -> Result<(), PoolError> {
        match blocked {
            Blocked::NoSpace if self.make_room(waits).await? => Ok(()),
            blocked => self.resolve(blocked).await,
        }
    }

    /// Makes space free that was given back, or that deleted objects have. Returns whether there may be any now. The caller
    /// holds no period.
    async fn make_room(self: &Arc<Self>, waits: &mut RoomWaits) -> Result<bool, PoolError> {
        if self.delete_for_room().await? {
            waits.done = 0;
        }
        let is_useful = {
            let mut state = self.state.write();
            state.space.reclaim();
            match waits.done {
                0 => state.space.is_waiting(),
                1 => state.space.is_returning_slots(),
                _ => false,
            }
        };
        waits.done += 1;
        if is_useful {
            self.free_waiting().await?;
        }
        Ok(is_useful)
    }

    /// Deletes what is left of deleted objects until that gives data back. Returns whether there was anything.
    async fn delete_for_room(self: &Arc<Self>) -> Result<bool, PoolError> {
        let mut deleted = false;
        while self.delete_parts().await? {
            deleted = true;
            if self.state.read().space.is_data_waiting() {
                break;
            }
            tokio::task::yield_now().await;
        }
        Ok(deleted)
    }

    /// Makes units usable that wait for a checkpoint and the end of requests. Returns whether there were any.
    async fn free_waiting(self: &Arc<Self>) -> Result<bool, PoolError> {
        let (is_waiting, generation) = {
            let mut state = self.state.write();
            state.space.reclaim();
            (state.space.is_waiting(), state.generation)
        };
        if is_waiting {
            self.checkpoint(generation).await?;
            self.end_period().await;
        }
        Ok(is_waiting)
    }

    /// Waits until all requests have ended that began before.
    pub(crate) async fn end_period(&self) {
        let ended = Period::rotate(&mut self.state.write().period, Freed::default());
        let _ended = ended.await;
    }

    /// Waits until all writes have ended that began before, and their entries have changed.
    pub(crate) async fn end_writes(&self) {
        let ended = {
            let mut state = self.state.write();
            let mapped = Period::rotate(&mut state.mapping, Freed::default());
            [Period::rotate(&mut state.period, Freed::default()), mapped]
        };
        for ended in ended {
            let _ended = ended.await;
        }
    }

    /// Deletes some of what is left of deleted objects. Returns whether there was anything.
    pub(crate) async fn delete_parts(self: &Arc<Self>) -> Result<bool, PoolError> {
        let mut deleted = false;
        loop {
            let blocked = {
                let mut state = self.state.write();
                if state.is_stopped {
                    return Err(PoolError::Stopped);
                }
                let deleting = state.objects.iter().find(|(_, object)| object.is_deleting());
                let Some((&id, _)) = deleting else { return Ok(deleted) };
                state.deleted = state.generation;
                let mut parts = (0..PARTS).map(|_| state.delete_part(id));
                match parts.find(|part| !matches!(part, Ok(false))) {
                    None | Some(Ok(_)) => return Ok(true),
                    Some(Err(blocked)) => blocked,
                }
            };
            match blocked {
                Blocked::NoSpace if self.free_waiting().await? => {}
                blocked => self.resolve(blocked).await?,
            }
            deleted = true;
        }
    }

    /// Returns a reply whose request ends even if the reply is dropped.
    pub(crate) fn finishing<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Io<T> {
        Io::Pending(Box::pin(Finishing {
            future: Some(Box::pin(future)),
            tasks: self.tasks.clone(),
        }))
    }
}

/// Ends the maintenance.
impl Drop for Shared {
    fn drop(&mut self) {
        self.work.notify_one();
    }
}

/// A future that continues when it is dropped.
struct Finishing<T: 'static> {
    future: Option<LocalFuture<T>>,
    tasks: Arc<dyn Tasks>,
}

impl<T> Future for Finishing<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let future = self.future.as_mut().expect("it is not polled after its end");
        let value = std::task::ready!(future.as_mut().poll(context));
        self.future = None;
        Poll::Ready(value)
    }
}

impl<T> Drop for Finishing<T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.tasks.finish(Box::pin(async move { drop(future.await) }));
        }
    }
}
