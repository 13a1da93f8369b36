//! An open device of a pool: a file, a block device, or a logical unit of another server.

use std::path::Path;
use std::sync::Arc;

use sarsen_block::{BlockSize, Store};
use sarsen_volume::{Aspect, Health, VolumeHealth};

use crate::config::{PoolConfig, without_secrets};
use crate::model::remote_device;
use crate::stores::file::{FileOptions, FileStore};
use crate::stores::remote::{RemoteAccess, RemoteStore, RemoteUnit};
use crate::stores::{MarkRule, OpenMode, StoreError};

/// See the module.
#[derive(Clone)]
pub(crate) enum Device {
    /// A file or a block device.
    File(Arc<FileStore>),
    /// A logical unit of another server.
    Remote(Arc<RemoteStore>, Arc<Health>),
}

impl Device {
    /// Opens a device with the smallest blocks that it has, for use in a pool. Blocks the thread, which must not be a core.
    pub(super) fn open(
        config: &PoolConfig,
        path: &Path,
        access: &RemoteAccess,
    ) -> Result<Self, StoreError> {
        Self::open_as(config, path, access, false)
    }

    /// Opens a device that is only read.
    pub(super) fn open_to_read(
        config: &PoolConfig,
        path: &Path,
        access: &RemoteAccess,
    ) -> Result<Self, StoreError> {
        Self::open_as(config, path, access, true)
    }

    fn open_as(
        config: &PoolConfig,
        path: &Path,
        access: &RemoteAccess,
        read_only: bool,
    ) -> Result<Self, StoreError> {
        match remote_device(path) {
            Some(Ok(url)) => {
                let unit = RemoteUnit {
                    url: &url,
                    // It must be the same one for each server of this machine that opens the device.
                    identity: &url.disk_name(),
                    initiator_name: config.initiator_name.as_deref(),
                    only_these_portals: false,
                    path_selector: None,
                    path_wait: config.path_wait,
                    read_only,
                };
                let (store, health) = RemoteStore::open(&unit, access)?;
                Ok(Self::Remote(store, health))
            }
            Some(Err(problem)) => {
                let url = without_secrets(&path.display().to_string());
                Err(StoreError::RemoteUnit { url, problem: format!("is no device: {problem}") })
            }
            None => open_file(config, path, read_only).map(Self::File),
        }
    }

    /// Returns the blocks of the device.
    pub(crate) fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::File(file) => file.clone(),
            Self::Remote(remote, _) => remote.clone(),
        }
    }

    /// Returns its file, if it is one or a block device.
    pub(crate) fn file(&self) -> Option<&Arc<FileStore>> {
        match self {
            Self::File(file) => Some(file),
            Self::Remote(..) => None,
        }
    }

    /// Returns its health.
    pub(crate) fn health(&self) -> &Health {
        match self {
            Self::File(file) => file.health(),
            Self::Remote(_, health) => health,
        }
    }

    /// Returns whether a path to it works.
    pub(super) fn is_reachable(&self) -> bool {
        match self {
            Self::File(_) => true,
            Self::Remote(remote, _) => remote.is_reachable(),
        }
    }

    /// Returns why its open file is not the one at its path, or not complete, if that is so. What is found there at the next start
    /// may lack anything. A logical unit that was not reachable for a time is the same one afterwards.
    pub(super) fn why_gone(&self) -> Option<String> {
        match self.file()?.health().of(Aspect::Backing) {
            VolumeHealth::OutOfService { reason } => Some(reason),
            VolumeHealth::Online | VolumeHealth::Degraded { .. } => None,
        }
    }
}

fn open_file(
    config: &PoolConfig,
    path: &Path,
    read_only: bool,
) -> Result<Arc<FileStore>, StoreError> {
    let open_mode = OpenMode::Existing {
        length_before_growth: None,
        has_state: true,
        had: None,
        mark: MarkRule::Ignore,
    };
    let with_blocks = |block_size| {
        let options = FileOptions {
            path: path.to_owned(),
            size: None,
            block_size,
            cache: config.cache(),
            read_only,
            serial: None,
        };
        let opened = FileStore::prepare(&options, open_mode)?;
        opened.settle()?;
        Ok(Arc::new(opened))
    };
    match with_blocks(BlockSize::B512) {
        Err(StoreError::Unfit { .. }) => with_blocks(BlockSize::B4096),
        opened => opened,
    }
}
