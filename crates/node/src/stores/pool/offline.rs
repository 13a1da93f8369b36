//! Work on pools that no server uses: creation, recovery and check. It blocks its thread, which must not be a core.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_io::cores::{Cores, FileEngine, block_on};
use sarsen_io::spin::Spin;
use sarsen_pool::Checked;

use super::creation::{PoolPlan, format};
use super::device::Device;
use super::devices::identify_all;
use super::failures::failed;
use super::{OpenPool, PoolMemory, StoreCores};
use crate::config::PoolConfig;
use crate::machine::machine_identity;
use crate::schema::pools::{PoolLoss, StoredVolume};
use crate::stores::{RemoteAccess, StoreError};

/// Starts a core on which operations on a pool run until it is dropped.
fn start_core(device: &Path) -> Result<Arc<Cores>, StoreError> {
    let cores = Cores::start(NonZeroUsize::new(1), FileEngine::Pool, Spin::Never);
    Ok(Arc::new(cores.map_err(StoreError::system(device, "start a thread to write it"))?))
}

/// Returns what stores of remote units need. There are no accounts without a server.
fn access_on(cores: &Arc<Cores>) -> RemoteAccess {
    let cores = StoreCores(Arc::downgrade(cores));
    RemoteAccess { cores, machine: machine_identity(), accounts: Arc::default() }
}

/// Creates a pool on devices that are empty, or with `force` on any.
pub fn create(plan: &PoolPlan, force: bool) -> Result<(), StoreError> {
    let cores = start_core(&plan.config.devices[0])?;
    format(&access_on(&cores), plan, force).map(drop)
}

fn config_of(pool: &str, devices: &[PathBuf]) -> PoolConfig {
    PoolConfig { name: pool.to_owned(), devices: devices.to_vec(), ..PoolConfig::default() }
}

/// Makes a pool usable that cannot be opened without these losses. `devices` are those that are available.
pub fn recover(pool: &str, devices: &[PathBuf], lose: &[PoolLoss]) -> Result<(), StoreError> {
    let cores = start_core(&devices[0])?;
    let access = access_on(&cores);
    let config = config_of(pool, devices);
    let open = OpenPool::open(&access, &config, &PoolMemory::default(), lose)?;
    access.cores.run(move || async move {
        let settled = open.pool.checkpoint().await;
        settled.map_err(|error| open.failed(error))
    })
}

/// Returns what a pool would have after [`recover`], and writes nothing.
pub fn preview_recovery(
    pool: &str,
    devices: &[PathBuf],
    lose: &[PoolLoss],
) -> Result<Vec<StoredVolume>, StoreError> {
    let cores = start_core(&devices[0])?;
    let access = access_on(&cores);
    let config = config_of(pool, devices);
    super::preview_recovery(&access, &config, &PoolMemory::default(), lose)
}

/// The result of the check of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct CheckedPool {
    /// What is inconsistent.
    pub findings: Vec<String>,
    /// The devices with pages of metadata that cannot be read or are damaged, and that another device has intact.
    pub damaged_copies: Vec<String>,
    /// The devices without which the pool can be used.
    pub left_out: Vec<String>,
}

/// Checks a pool, and writes nothing.
pub fn check(paths: &[PathBuf]) -> Result<CheckedPool, StoreError> {
    let config = config_of("", paths);
    let cores = start_core(&paths[0])?;
    let access = access_on(&cores);
    let open =
        |path: &PathBuf| Ok((path.clone(), Device::open_to_read(&config, path, &access)?.store()));
    let devices = paths.iter().map(open).collect::<Result<Vec<_>, StoreError>>()?;
    let checked = block_on(FileEngine::Pool, async move {
        let identities = identify_all(&devices).await;
        let stores = devices.into_iter().map(|(_, store)| store).collect();
        sarsen_pool::check(stores).await.map(|checked| (checked, identities))
    });
    let checked = checked.map_err(StoreError::system(&paths[0], "read it"))?;
    let (Checked { findings, damaged_copies, left_out }, identities) =
        checked.map_err(|error| failed("", paths, error))?;
    let name_of = |device: u8| {
        let known = identities.iter().filter_map(|(path, one)| Some((path, one.as_ref().ok()?)));
        // A device that was removed may have had the same number.
        let its = known.filter(|(_, identity)| identity.number == device);
        let newest = its.max_by_key(|(_, identity)| identity.checkpoint);
        newest.map_or_else(|| format!("device {device}"), |(path, _)| path.display().to_string())
    };
    let damaged = |(device, count): (u8, u64)| {
        let name = name_of(device);
        format!(
            "{name}: pages of metadata that cannot be read or are damaged, and that another device has intact: {count}"
        )
    };
    let unused =
        |(device, reason): (u8, String)| format!("{} is not used: {reason}", name_of(device));
    Ok(CheckedPool {
        findings: findings.iter().map(ToString::to_string).collect(),
        damaged_copies: damaged_copies.into_iter().map(damaged).collect(),
        left_out: left_out.into_iter().map(unused).collect(),
    })
}
