//! The creation of pools. Only a command does this: a configuration with a wrong path must not overwrite a disk.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_block::{BlockError, Buffer, Durability, Extent, Store};
use sarsen_io::file::File;
use sarsen_pool::{NewPool, Pool, PoolError};
use tracing::warn;

use super::super::{RemoteAccess, StoreError};
use super::device::Device;
use super::{PacedTasks, failed, new_identifier};
use crate::config::{CacheMode, PoolConfig};
use crate::model::{ByteSize, Invalid, Key, ObjectKind, is_device_path, remote_device};

/// Bytes at both ends of a device that must be zero, so that it counts as empty.
const EMPTY_ENDS: u64 = 1 << 20;
/// The default size of a chunk in bytes.
const DEFAULT_CHUNK_SIZE: u32 = 64 << 10;
/// The sizes that a chunk can have, in bytes.
const CHUNK_SIZES: RangeInclusive<u32> = 16 << 10..=1 << 20;

/// A device of a pool that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDevice {
    /// Its path.
    pub path: PathBuf,
    /// The size of a file that is created.
    pub size: Option<ByteSize>,
    /// Whether it is one of the fast devices.
    pub is_fast: bool,
}

/// A pool that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    pub(crate) config: PoolConfig,
    /// The files that are created, with their sizes.
    files: Vec<(PathBuf, u64)>,
    chunk_size: u32,
}

impl PoolPlan {
    /// Checks the properties of a pool.
    pub fn new(
        name: &str,
        planned: &[PlannedDevice],
        chunk_size: Option<ByteSize>,
        cache: Option<CacheMode>,
    ) -> Result<Self, Invalid> {
        let key = Key::new(ObjectKind::Pool, name);
        let files =
            planned.iter().filter_map(|one| Some((one.path.clone(), one.size.as_ref()?.get())));
        let files = files.collect();
        let paths = |is_wanted: fn(&PlannedDevice) -> bool| {
            planned.iter().filter(|one| is_wanted(one)).map(|one| one.path.clone()).collect()
        };
        let (devices, fast_devices) = (paths(|_| true), paths(|one| one.is_fast));
        let name = name.to_owned();
        let config = PoolConfig { name, devices, fast_devices, cache, ..PoolConfig::default() };
        config.check().map_err(|error| error.of(key.clone()))?;
        if let Some(relative) = config.devices.iter().find(|path| !is_device_path(path)) {
            let message =
                format!("devices: {}: write an absolute path, or a URL", relative.display());
            return Err(Invalid::new(key, "devices", message));
        }
        let chunk_size = chunk_size
            .map_or(DEFAULT_CHUNK_SIZE, |size| u32::try_from(size.get()).unwrap_or(u32::MAX));
        if !chunk_size.is_power_of_two() || !CHUNK_SIZES.contains(&chunk_size) {
            let message = "chunk_size: write a power of two from 16KiB to 1MiB";
            return Err(Invalid::new(key, "chunk_size", message));
        }
        Ok(Self { config, files, chunk_size })
    }

    /// Returns whether files are to be created.
    pub(crate) fn creates_files(&self) -> bool {
        !self.files.is_empty()
    }
}

/// A pool that was created, until the server has it. [`Formatted::undo`] makes its devices empty.
pub(crate) struct Formatted {
    created: Vec<PathBuf>,
    config: PoolConfig,
    access: RemoteAccess,
}

impl Formatted {
    /// Makes the devices empty again, and deletes the files that were created. Blocks the thread.
    pub(crate) fn undo(self) {
        let wiped = open_all(&self.config, &self.access).and_then(|devices| {
            self.access.cores.run(move || async move {
                for device in devices {
                    wipe(&*device)
                        .await
                        .map_err(|error| StoreError::pool("", error.to_string()))?;
                }
                Ok(())
            })
        });
        if let Err(error) = wiped {
            warn!(pool = self.config.name, %error, "the devices of a pool that was not added keep it");
        }
        for path in self.created {
            if let Err(error) = fs::remove_file(&path) {
                warn!(path = %path.display(), %error, "a file that was created for a pool remains");
            }
        }
    }
}

fn open_all(config: &PoolConfig, access: &RemoteAccess) -> Result<Vec<Arc<dyn Store>>, StoreError> {
    let open = |path: &PathBuf| Ok(Device::open(config, path, access)?.store());
    config.devices.iter().map(open).collect()
}

/// Creates a pool on devices that are empty, or with `force` on any. Blocks the thread, which must not be a core.
pub(crate) fn format(
    access: &RemoteAccess,
    plan: &PoolPlan,
    force: bool,
) -> Result<Formatted, StoreError> {
    let PoolPlan { config, files, chunk_size } = plan;
    let chunk_size = *chunk_size;
    let mut formatted =
        Formatted { created: Vec::new(), config: config.clone(), access: access.clone() };
    let done = (|| {
        for (path, size) in files {
            create_file(path, *size)?;
            formatted.created.push(path.clone());
        }
        let stores = open_all(config, access).map_err(|error| match error {
            StoreError::Gone { path } => StoreError::NotFound { path },
            other => other,
        })?;
        let (config, paths) = (config.clone(), config.devices.clone());
        access.cores.run(move || async move {
            let failed = |error| failed(&config.name, &paths, error);
            if !force {
                for (store, path) in stores.iter().zip(&paths) {
                    refuse_if_used(store, path).await?;
                }
            }
            let new = NewPool {
                has_tiers: !config.fast_devices.is_empty(),
                identifier: new_identifier(),
                name: config.name.clone(),
                chunk_size,
                devices: stores.iter().map(|store| (store.clone(), new_identifier())).collect(),
            };
            match Pool::create(&new, Arc::<PacedTasks>::default()).await {
                Ok(_) => Ok(()),
                // Nothing was written.
                Err(error @ (PoolError::Unfit { .. } | PoolError::Invalid(_))) => {
                    Err(failed(error))
                }
                Err(error) => {
                    for store in stores {
                        // The error of the device is the one to report.
                        let _ = wipe(&*store).await;
                    }
                    Err(failed(error))
                }
            }
        })
    })();
    match done {
        Ok(()) => Ok(formatted),
        Err(error) => {
            for path in formatted.created {
                let _ = fs::remove_file(path);
            }
            Err(error)
        }
    }
}

/// Creates a file for a pool.
pub(super) fn create_file(path: &Path, size: u64) -> Result<(), StoreError> {
    if remote_device(path).is_some() {
        return Err(StoreError::unfit(path, "has the size of the unit: leave out its size"));
    }
    match File::create_allocated(path, size) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let problem = "exists already: leave out its size to use it as it is";
            Err(StoreError::unfit(path, problem))
        }
        created => created.map_err(StoreError::system(path, "create it")),
    }
}

/// Refuses a device that has data.
pub(super) async fn refuse_if_used(device: &Arc<dyn Store>, path: &Path) -> Result<(), StoreError> {
    if let Ok(identity) = sarsen_pool::identify(device.clone()).await {
        let name = identity.pool_name;
        let problem = format!(
            "is a device of pool {name}: add that pool with `sarsen pool import`, or give --force to lose its data"
        );
        return Err(StoreError::unfit(path, problem));
    }
    let geometry = device.geometry();
    let blocks = (EMPTY_ENDS >> geometry.block_size.shift()).min(geometry.block_count);
    for lba in [0, geometry.block_count - blocks] {
        let read = device.read(Extent::new(lba, blocks)).wait().await;
        let read =
            read.map_err(|error| StoreError::unfit(path, format!("cannot be read: {error}")))?;
        if read.into_buffer().iter().any(|byte| *byte != 0) {
            let problem = "has data: choose another device, or give --force to lose it";
            return Err(StoreError::unfit(path, problem));
        }
    }
    Ok(())
}

/// Overwrites the beginning of a device, where a pool has its superblocks.
async fn wipe(device: &dyn Store) -> Result<(), BlockError> {
    let blocks =
        (EMPTY_ENDS >> device.geometry().block_size.shift()).min(device.geometry().block_count);
    let zeroes = Buffer::zeroed((blocks << device.geometry().block_size.shift()) as usize);
    device.write(Extent::new(0, blocks), zeroes.into(), Durability::Durable).wait().await
}
