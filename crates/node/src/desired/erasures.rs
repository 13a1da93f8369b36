//! The erasures of the files of deleted volumes.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::file::FileIdentity;
use sarsen_io::time;
use sarsen_pool::{Pool, PoolError, VolumeId};

use super::{ChangeRefused, Plan, deleted, orphans};
use crate::engine::{Erasure, Pools};
use crate::metadata;
use crate::model::document::Volume;
use crate::model::{Object, StoreKind, metadata_folder};

/// Maximum time that another program may have a file that is to be erased.
const ERASING_LIMIT: Duration = Duration::from_secs(30);
/// The time between two attempts to delete a volume of a pool.
const ERASING_INTERVAL: Duration = Duration::from_millis(50);

impl Plan {
    /// Returns the erasures of the data of deleted volumes, by volume: regular files that no other volume uses, and volumes
    /// in pools. Blocks the thread.
    pub(super) fn erasures(
        &self,
        pools: &Pools,
    ) -> Result<BTreeMap<String, Erasure>, ChangeRefused> {
        let mut erasures = BTreeMap::new();
        for key in deleted(&self.steps) {
            let Some(object) = self.before.objects.get(&key) else { continue };
            let Object::Volume(volume) = &**object else { continue };
            let refuse = |why: &str| {
                let (volume, why) = (key.name.clone(), why.to_owned());
                Err(ChangeRefused::NotErasable { volume, why })
            };
            if let Some(pool) = volume.pool.as_ref().filter(|_| volume.snapshot.is_none()) {
                let erasure = erasure_in_pool(volume, pool, pools);
                let refused = |why| ChangeRefused::NotErasable { volume: key.name.clone(), why };
                erasures.insert(key.name.clone(), erasure.map_err(refused)?);
                continue;
            }
            let Some((path, state)) =
                orphans::places(object).filter(|_| volume.store == StoreKind::File)
            else {
                return refuse("it has no file of its own to erase: delete it without --erase");
            };
            match std::fs::symlink_metadata(&path) {
                Ok(found) if !found.is_file() => {
                    return refuse(
                        "its blocks are on a device, or behind a link: erase it with `sarsen disk erase`, and delete \
                         it without --erase",
                    );
                }
                _ => {}
            }
            let is_shared = |other: &Arc<Object>| {
                orphans::places(other).is_some_and(|other| other.0 == path || other.1 == state)
            };
            if volume.is_read_only() || self.objects.values().any(is_shared) {
                return refuse(
                    "its file is read-only or another volume's, too: delete it without --erase",
                );
            }
            let erased = (path.clone(), state.clone());
            // If the server is killed before this, files that remain in its own folder are listed as orphans.
            let erase = Box::new(move |identity: Option<FileIdentity>| {
                let is_its = |file: &Metadata| identity == Some(FileIdentity::of(file));
                let erased = orphans::erase(&erased.0, &erased.1, ERASING_LIMIT, is_its);
                erased.map_err(|error| error.to_string())
            });
            let what = format!("the file {}", path.display());
            let paths = vec![path.clone(), metadata_folder(&path), state];
            erasures.insert(key.name.clone(), Erasure { what, pool: None, paths, erase });
        }
        Ok(erasures)
    }
}

/// Deletes a volume of a pool. The last step of its filling may not have ended.
async fn delete(pool: &Pool, id: VolumeId) -> Result<(), PoolError> {
    let deadline = time::now() + ERASING_LIMIT;
    loop {
        match pool.delete(id).await {
            Err(PoolError::InUse) if time::now() < deadline => {
                time::sleep_until(time::now() + ERASING_INTERVAL).await;
            }
            deleted => return deleted,
        }
    }
}

/// Returns the erasure of a volume in a pool.
fn erasure_in_pool(volume: &Volume, pool: &str, pools: &Pools) -> Result<Erasure, String> {
    let open = pools
        .get(pool)
        .ok_or_else(|| format!("pool {pool} is not open: delete it without --erase"))?;
    let found = open.find_volume(&volume.name, volume.serial.as_deref());
    let id = found.map(|found| found.id);
    if let Some(id) = id {
        let snapshots = open.snapshots_of(id).len();
        if snapshots > 0 {
            let plural = if snapshots == 1 { "" } else { "s" };
            return Err(format!(
                "it has {snapshots} snapshot{plural}: delete them first with `sarsen snapshot delete`, or delete the volume \
                 without --erase"
            ));
        }
    }
    let what = format!("volume {} in pool {pool}", volume.name);
    let state = volume.state.clone();
    let paths = state.iter().cloned().collect();
    let erase = Box::new(move |_| {
        if let Some(id) = id {
            let deleted = open.run(move |pool| async move { delete(&pool, id).await });
            deleted.map_err(|error| error.to_string())?;
        }
        let Some(state) = state else { return Ok(()) };
        let erased = metadata::erase(&state, ERASING_LIMIT);
        erased.map(drop).map_err(|error| format!("{}: {error}", state.display()))
    });
    Ok(Erasure { what, pool: Some(pool.to_owned()), paths, erase })
}
