//! What the objects of a pool hold alone.

use std::sync::Arc;

use sarsen_pool::{PoolError, VolumeId};
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
        // It is dropped with this future.
        let (_caller, ended) = oneshot::channel::<()>();
        self.operate("the pool", move |pool| async move {
            let count = async {
                let mut counted = Vec::with_capacity(ids.len());
                for id in ids {
                    counted.push(match pool.reclaimable_bytes(id).await {
                        Ok(bytes) => Some(bytes),
                        Err(PoolError::NotFound) => None,
                        Err(error) => return Err(error),
                    });
                }
                Ok(counted)
            };
            tokio::select! {
                counted = count => counted,
                // Nothing receives this.
                _ = ended => Err(PoolError::NotFound),
            }
        })
        .await
    }
}
