//! What the objects of a pool hold alone.

use std::sync::Arc;

use sarsen_pool::{Pool, PoolError, VolumeId};
use tokio::sync::oneshot;

use super::OpenPool;
use crate::stores::StoreError;

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
