//! The objects of a pool, for reports, and what they hold alone.

use std::collections::HashMap;
use std::sync::Arc;

use sarsen_pool::{Pool, PoolError, VolumeId, VolumeInfo, VolumeKind};
use tokio::sync::oneshot;

use super::{OpenPool, serial_of};
use crate::schema::pools::StoredVolume;
use crate::stores::StoreError;

/// Returns the names of volumes and snapshots. A volume of this server has its name there, others that of the catalogue.
pub(crate) fn names_of(
    objects: &[VolumeInfo],
    own: &HashMap<VolumeId, String>,
) -> HashMap<VolumeId, String> {
    let mut names: HashMap<VolumeId, String> = HashMap::new();
    for one in objects.iter().filter(|one| one.kind == VolumeKind::Volume) {
        names.insert(one.id, own.get(&one.id).unwrap_or(&one.label.name).clone());
    }
    for one in objects.iter().filter(|one| one.kind == VolumeKind::Snapshot) {
        let volume = one.origin.and_then(|origin| names.get(&origin));
        let volume = volume.map_or("", String::as_str);
        names.insert(one.id, format!("{volume}@{}", one.label.name));
    }
    names
}

/// Returns the objects of a pool for a report, in their order. `own` has the names of volumes that the server has.
pub(crate) fn stored_volumes(
    objects: &[VolumeInfo],
    own: &HashMap<VolumeId, String>,
) -> Vec<StoredVolume> {
    let names = names_of(objects, own);
    let stored = |one: &VolumeInfo| {
        let is_snapshot = one.kind == VolumeKind::Snapshot;
        StoredVolume {
            name: names.get(&one.id).cloned().unwrap_or_default(),
            is_snapshot,
            size_bytes: one.size,
            referenced_bytes: one.referenced_bytes,
            reclaimable_bytes: None,
            lost_bytes: None,
            created_unix_seconds: one.label.created,
            origin: one.origin.and_then(|origin| names.get(&origin).cloned()),
            is_protected: one.is_protected,
            copies: one.copies,
            stripes: one.stripes,
            has_checksums: one.has_checksums,
            serial: serial_of(&one.label.identifier).filter(|_| !is_snapshot),
        }
    };
    objects.iter().map(stored).collect()
}

impl OpenPool {
    /// Returns the bytes that the deletion of each of these objects alone gives back, in their order. An object that was deleted
    /// meanwhile has none. Reads of the disk end when the caller does not wait any more.
    pub(crate) async fn reclaimable_bytes(
        self: &Arc<Self>,
        ids: Vec<VolumeId>,
    ) -> Result<Vec<Option<u64>>, StoreError> {
        self.count(ids, async |pool, id| pool.reclaimable_bytes(id).await).await
    }

    /// Returns the bytes that each of these objects has lost with missing devices, like [`Self::reclaimable_bytes`].
    pub(crate) async fn lost_bytes(
        self: &Arc<Self>,
        ids: Vec<VolumeId>,
    ) -> Result<Vec<Option<u64>>, StoreError> {
        self.count(ids, async |pool, id| pool.lost_bytes(id).await).await
    }

    async fn count(
        self: &Arc<Self>,
        ids: Vec<VolumeId>,
        count: impl AsyncFn(&Pool, VolumeId) -> Result<u64, PoolError> + Send + 'static,
    ) -> Result<Vec<Option<u64>>, StoreError> {
        // It is dropped with this future.
        let (_caller, ended) = oneshot::channel::<()>();
        self.operate("the pool", move |pool| async move {
            let count_all = async {
                let mut counted = Vec::with_capacity(ids.len());
                for id in ids {
                    counted.push(match count(&pool, id).await {
                        Ok(bytes) => Some(bytes),
                        Err(PoolError::NotFound) => None,
                        Err(error) => return Err(error),
                    });
                }
                Ok(counted)
            };
            tokio::select! {
                counted = count_all => counted,
                // Nothing receives this.
                _ = ended => Err(PoolError::NotFound),
            }
        })
        .await
    }
}
