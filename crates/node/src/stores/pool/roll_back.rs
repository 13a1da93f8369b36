//! Volumes of a pool that get the contents of a snapshot while they are closed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_pool::{VolumeId, VolumeInfo};
use tracing::{error, info};

use super::OpenPool;
use crate::stores::StoreError;

/// Volumes that are to be rolled back before they are opened again.
pub(super) type RollBacks = Mutex<HashMap<VolumeId, Arc<RollBack>>>;

/// A roll-back that is carried out when its volume is opened again.
pub(super) struct RollBack {
    snapshot: VolumeId,
    result: Mutex<Option<Result<(), StoreError>>>,
}

/// A roll-back that waits for the opening of its volume. If that has not begun when this is dropped, it does not happen.
pub(crate) struct PendingRollBack {
    pool: Arc<OpenPool>,
    volume: VolumeId,
    roll_back: Arc<RollBack>,
}

/// What became of a roll-back.
pub(crate) enum RollBackEnd {
    Done(Result<(), StoreError>),
    /// The disk of the pool has not completed it yet.
    UnderWay,
    /// The volume was not opened, so it does not happen.
    NotBegun,
}

impl PendingRollBack {
    /// Prevents the roll-back, and returns `true`, if it has not begun.
    fn withdraw(&self) -> bool {
        let mut waiting = self.pool.roll_backs.lock();
        let is_waiting =
            waiting.get(&self.volume).is_some_and(|one| Arc::ptr_eq(one, &self.roll_back));
        if is_waiting {
            waiting.remove(&self.volume);
        }
        is_waiting
    }

    /// Ends the wait.
    pub(crate) fn end(self) -> RollBackEnd {
        if self.withdraw() {
            return RollBackEnd::NotBegun;
        }
        let result = self.roll_back.result.lock().take();
        result.map_or(RollBackEnd::UnderWay, RollBackEnd::Done)
    }
}

impl Drop for PendingRollBack {
    fn drop(&mut self) {
        self.withdraw();
    }
}

impl OpenPool {
    /// Begins to roll a volume back, which happens when the volume is opened the next time.
    pub(crate) fn begin_roll_back(
        self: &Arc<Self>,
        volume: VolumeId,
        snapshot: VolumeId,
    ) -> Result<PendingRollBack, StoreError> {
        let roll_back = Arc::new(RollBack { snapshot, result: Mutex::default() });
        match self.roll_backs.lock().entry(volume) {
            Entry::Occupied(_) => {
                let problem = "the volume is being rolled back already; try again later".to_owned();
                return Err(StoreError::PoolObjectInUse { problem });
            }
            Entry::Vacant(vacant) => drop(vacant.insert(roll_back.clone())),
        }
        Ok(PendingRollBack { pool: self.clone(), volume, roll_back })
    }

    pub(super) async fn roll_back_now(&self, name: &str, volume: VolumeId) {
        let Some(roll_back) = self.roll_backs.lock().remove(&volume) else { return };
        let name_of = |snapshot: VolumeInfo| format!("{name}@{}", snapshot.label.name);
        let snapshot = self.pool.find(|one| one.id == roll_back.snapshot).map(name_of);
        let result = self.pool.roll_back(volume, roll_back.snapshot).await;
        match &result {
            Ok(()) => info!(volume = name, snapshot, "the volume is rolled back"),
            Err(error) => error!(volume = name, snapshot, %error, "the volume was not rolled back"),
        }
        // The request that waited for this may have ended.
        *roll_back.result.lock() = Some(result.map_err(|error| self.failed(error)));
    }
}
