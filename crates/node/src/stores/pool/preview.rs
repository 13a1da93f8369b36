//! The preview of a recovery: what a pool would have after it. Nothing is written.

use std::collections::HashMap;
use std::sync::Arc;

use sarsen_block::Store;
use sarsen_block::layers::OverlayStore;

use super::device::Device;
use super::devices::NamedDevices;
use super::opening::{Opened, open};
use super::usage::stored_volumes;
use super::{PoolMemory, failed};
use crate::config::PoolConfig;
use crate::schema::pools::{PoolLoss, StoredVolume};
use crate::stores::{RemoteAccess, StoreError};

/// Returns the volumes and snapshots that a pool would have after a recovery with these losses. If only what missing devices
/// have is lost, they have the bytes that each would have lost; what else is lost cannot be counted. Blocks the thread,
/// which must not be a core.
pub(crate) fn preview_recovery(
    access: &RemoteAccess,
    config: &PoolConfig,
    memory: &PoolMemory,
    lose: &[PoolLoss],
) -> Result<Vec<StoredVolume>, StoreError> {
    let devices =
        NamedDevices::open_for(config, |path| Device::open_to_read(config, path, access))?;
    let layer = |device: Arc<dyn Store>| Arc::new(OverlayStore::new(device)) as _;
    let cores = &access.cores;
    let Opened { pool, devices, .. } = open(cores, config, memory, lose, devices, layer)?;
    pool.set_memory(usize::try_from(config.memory()).unwrap_or(usize::MAX));
    let is_counted = lose.iter().all(|loss| *loss == PoolLoss::MissingDevices);
    let name = config.name.clone();
    let stored = cores.run(move || async move {
        let objects = pool.volumes();
        let mut stored = stored_volumes(&objects, &HashMap::new());
        if !is_counted {
            return Ok(stored);
        }
        for (stored, object) in stored.iter_mut().zip(objects) {
            let lost = pool.lost_bytes(object.id).await;
            stored.lost_bytes = Some(lost.map_err(|error| failed(&name, &[], error))?);
        }
        Ok(stored)
    });
    drop(devices);
    stored
}
