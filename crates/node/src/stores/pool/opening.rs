//! Opening a pool from the paths that a configuration names.

use std::path::PathBuf;
use std::sync::Arc;

use sarsen_block::Store;
use sarsen_pool::{AcceptedLosses, Pool, PoolError};

use super::devices::{NamedDevices, identify_all, pool_of, refuse_older};
use super::failures::not_opened;
use super::losses::Losses;
use super::{PacedTasks, PoolMemory, StoreCores};
use crate::config::PoolConfig;
use crate::schema::pools::PoolLoss;
use crate::stores::StoreError;

/// A pool that was opened.
pub(super) struct Opened {
    pub(super) pool: Pool,
    pub(super) devices: NamedDevices,
    pub(super) tasks: Arc<PacedTasks>,
    /// Its identifier, if one of its devices says it.
    pub(super) identifier: Option<[u8; 16]>,
    pub(super) losses: Losses,
}

/// Opens a pool from its devices that are open, even if that loses what is accepted. It reads and writes what `layer` makes
/// of a device. Blocks the thread, which must not be a core.
pub(super) fn open(
    cores: &StoreCores,
    config: &PoolConfig,
    memory: &PoolMemory,
    accepted: &[PoolLoss],
    devices: NamedDevices,
    layer: fn(Arc<dyn Store>) -> Arc<dyn Store>,
) -> Result<Opened, StoreError> {
    let given: Vec<_> =
        devices.opened().into_iter().map(|(path, one)| (path, layer(one.store()))).collect();
    let (given, identities) = cores.run(move || async move {
        let identities = identify_all(&given).await;
        Ok((given, identities))
    })?;
    let loses_newer_data = refuse_older(config, memory, &identities, accepted)?;
    let identifier = pool_of(config, &identities);
    let remembered = Losses::remembered(config, memory, identifier)?;
    let losses = AcceptedLosses {
        journal: accepted.contains(&PoolLoss::DamagedJournal),
        devices: accepted.contains(&PoolLoss::MissingDevices),
        newer: accepted.contains(&PoolLoss::NewerData),
    };
    // A message repeats only the losses that are necessary.
    let mut necessary = accepted.to_vec();
    necessary.retain(|loss| *loss != PoolLoss::NewerData || loses_newer_data);
    // A device of no pool, or of another one, is not given to it: the pool may do without.
    let is_part = |path: &PathBuf| {
        let known = identities.iter().find(|(other, _)| other == path);
        let identity = known.and_then(|(_, identity)| identity.as_ref().ok());
        identity.is_some_and(|one| identifier.is_none_or(|own| own == one.pool))
    };
    let (mut parts, others): (Vec<_>, Vec<_>) =
        given.into_iter().partition(|(path, _)| is_part(path));
    if parts.is_empty() {
        parts = others;
    }
    let (paths, stores): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
    let tasks = Arc::<PacedTasks>::default();
    let pacing = tasks.clone();
    let opened =
        cores.run(move || async move { Ok(Pool::open_accepting(stores, pacing, losses).await) })?;
    devices.identified(identities, identifier);
    let pool = opened.map_err(|error| match devices.why_not_enough(&config.name, &necessary) {
        // The devices that are there are not enough.
        Some(problem)
            if !losses.devices
                && identifier.is_some()
                && !matches!(error, PoolError::DamagedJournal { .. }) =>
        {
            StoreError::pool(&config.name, problem)
        }
        _ => not_opened(&config.name, &paths, error, &necessary),
    })?;
    Ok(Opened { pool, devices, tasks, identifier, losses: remembered })
}
