//! Work on pools that no server uses: creation, recovery and check. It blocks its thread, which must not be a core.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_block::Store;
use sarsen_io::cores::{Cores, FileEngine, block_on};
use sarsen_io::spin::Spin;

use super::creation::{PoolPlan, format};
use super::devices::open_with;
use super::failures::failed;
use super::{OpenPool, PoolCores, PoolMemory};
use crate::config::PoolConfig;
use crate::schema::pools::PoolLoss;
use crate::stores::StoreError;
use crate::stores::file::FileStore;

/// Starts a core on which operations on a pool run until it is dropped.
fn start_core(device: &Path) -> Result<Arc<Cores>, StoreError> {
    let cores = Cores::start(NonZeroUsize::new(1), FileEngine::Pool, Spin::Never);
    Ok(Arc::new(cores.map_err(StoreError::system(device, "start a thread to write it"))?))
}

/// Creates a pool on devices that are empty, or with `force` on any.
pub fn create(plan: &PoolPlan, force: bool) -> Result<(), StoreError> {
    let cores = start_core(&plan.config.devices[0])?;
    format(&PoolCores(Arc::downgrade(&cores)), plan, force).map(drop)
}

/// Makes a pool usable that cannot be opened without these losses. `devices` are those that are left.
pub fn recover(pool: &str, devices: &[PathBuf], lose: &[PoolLoss]) -> Result<(), StoreError> {
    let cores = start_core(&devices[0])?;
    let cores_of_pool = PoolCores(Arc::downgrade(&cores));
    let config =
        PoolConfig { name: pool.to_owned(), devices: devices.to_vec(), ..PoolConfig::default() };
    let open = OpenPool::open(&cores_of_pool, &config, &PoolMemory::default(), lose)?;
    cores_of_pool.run(move || async move {
        let settled = open.pool.checkpoint().await;
        settled.map_err(|error| open.failed(error))
    })
}

/// The result of the check of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CheckedPool {
    /// What is inconsistent.
    pub findings: Vec<String>,
    /// The devices without which the pool can be used.
    pub left_out: Vec<String>,
}

/// Checks a pool, and writes nothing.
pub fn check(paths: &[PathBuf]) -> Result<CheckedPool, StoreError> {
    let config = PoolConfig { devices: paths.to_vec(), ..PoolConfig::default() };
    let open = |path: &PathBuf| -> Result<Arc<dyn Store>, StoreError> {
        Ok(open_with(&config, path, true, FileStore::open)?)
    };
    let stores = paths.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let checked = block_on(FileEngine::Pool, async move { sarsen_pool::check(stores).await });
    let checked = checked.map_err(StoreError::system(&paths[0], "read it"))?;
    let checked = checked.map_err(|error| failed("", paths, error))?;
    Ok(CheckedPool {
        findings: checked.findings.iter().map(ToString::to_string).collect(),
        left_out: checked
            .left_out
            .iter()
            .map(|(device, reason)| format!("device {device} is not in use: {reason}"))
            .collect(),
    })
}
