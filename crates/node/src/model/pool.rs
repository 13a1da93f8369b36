//! Pools: devices from which volumes get space when they are written.
//!
//! ```toml
//! [[pool]]
//! name = "tank"
//! devices = ["/dev/disk/by-id/nvme-1", "/dev/disk/by-id/nvme-2"]
//!
//! [[volume]]
//! name = "vm1"
//! pool = "tank"
//! size = "100GiB"
//! snapshot-schedule = "hourly=24,daily=7"
//! ```

use std::path::{Path, PathBuf};

use sarsen_pool::Tier;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::cache_mode::CacheMode;
use super::invalid::FieldError;
use super::names::{check_pool_name, target_name_fault};
use super::quantity::{Number, PathWait, Size};
use super::remote::{RemoteUrl, remote_device};
use super::{document, words};

/// The default of `alert-percent`.
pub const DEFAULT_ALERT_PERCENT: u64 = 80;
/// The default of `memory` in bytes.
const DEFAULT_MEMORY: u64 = 1 << 30;
/// The default of `move-rate` in bytes per second.
const DEFAULT_MOVE_RATE: u64 = 64 << 20;
/// Maximum number of devices.
const DEVICES_MAX: usize = 32;

/// Devices from which volumes get space when they are written. `sarsen pool create` formats them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Pool {
    /// Unique name: lower-case letters, digits, dots and hyphens.
    pub name: String,
    /// The block devices or files of the pool, 1 to 32 of them, in any order. A URL as in `remote` of a volume is a logical unit of
    /// another server; only this pool may use it.
    #[schema(value_type = Vec<String>)]
    pub devices: Vec<PathBuf>,
    /// Those of its devices that are fast, such as SSDs in a pool of hard disks: the data that is used most moves to them. A
    /// mirrored volume needs as many fast devices as it has copies. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub fast_devices: Vec<PathBuf>,
    /// With `fast-devices`: the devices to which new data is written, while they have room. Default: `slow`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub new_data: Option<Tier>,
    /// With `fast-devices`: the maximum of what moves between fast and slow devices in a second, 1MiB or more. Default:
    /// 64MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub move_rate: Option<Size<{ 1 << 20 }>>,
    /// The maximum of what is copied in a second to devices that came back, are new, or take over from one that leaves:
    /// 1MiB or more. Default: no maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub repair_rate: Option<Size<{ 1 << 20 }>>,
    /// The cache mode of its devices, with the names and meanings of QEMU. Another one takes effect with the next start.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub cache: Option<CacheMode>,
    /// The iSCSI name with which the server logs in to devices with a URL. Default: a name that is made from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator_name: Option<Box<str>>,
    /// How long requests to a device with a URL wait while no path to it works, before they fail. If everything on it has another
    /// copy, it is left out after five seconds. Another value takes effect when the device is opened again. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path_wait: Option<PathWait>,
    /// Maximum memory for the maps of its volumes, 16MiB or more. 1 TiB of data needs about 290 MiB. Default: 1GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub memory: Option<Size<{ 16 << 20 }>>,
    /// The server reports the pool as nearly full from this use on, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u8>)]
    pub alert_percent: Option<Number<1, 100>>,
}

impl Pool {
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        check_pool_name(&self.name).map_err(|message| FieldError::new("name", message))?;
        if self.devices.is_empty() || self.devices.len() > DEVICES_MAX {
            let message = format!("devices: a pool has 1 to {DEVICES_MAX} of them");
            return Err(FieldError::new("devices", message));
        }
        let mut devices: Vec<_> = self.devices.iter().collect();
        devices.sort();
        if let Some(pair) = devices.windows(2).find(|pair| pair[0] == pair[1]) {
            let message = format!("devices: {} is listed twice; remove one", pair[0].display());
            return Err(FieldError::new("devices", message));
        }
        let problem = |path: &PathBuf| remote_device(path)?.err();
        if let Some(problem) = self.devices.iter().find_map(problem) {
            return Err(FieldError::new("devices", format!("devices: {problem}")));
        }
        if let Some(name) = &self.initiator_name
            && let Some(fault) = target_name_fault(name)
        {
            let message = format!("initiator-name = {name:?}: {fault}");
            return Err(FieldError::new("initiator-name", message));
        }
        let mut fast: Vec<_> = self.fast_devices.iter().collect();
        fast.sort();
        if let Some(pair) = fast.windows(2).find(|pair| pair[0] == pair[1]) {
            let message =
                format!("fast-devices: {} is listed twice; remove one", pair[0].display());
            return Err(FieldError::new("fast-devices", message));
        }
        if let Some(other) = self.fast_devices.iter().find(|path| !self.devices.contains(path)) {
            let message = format!(
                "fast-devices: {other} is not one of devices; add it with `sarsen pool add {} {other},tier=fast`",
                self.name,
                other = other.display()
            );
            return Err(FieldError::new("fast-devices", message));
        }
        Ok(())
    }

    /// Returns the URLs among its devices.
    pub(crate) fn remotes(&self) -> Vec<RemoteUrl> {
        self.devices.iter().filter_map(|path| remote_device(path)?.ok()).collect()
    }

    /// Replaces the name of an account in the URLs of its devices.
    pub(crate) fn rename_account(&mut self, old: &str, new: &str) {
        for path in self.devices.iter_mut().chain(&mut self.fast_devices) {
            if let Some(Ok(mut url)) = remote_device(path) {
                url.rename_account(old, new);
                *path = url.to_string().into();
            }
        }
    }

    /// Returns where new data is written, if it has fast devices.
    pub fn new_data(&self) -> Tier {
        self.new_data.unwrap_or(Tier::Slow)
    }

    /// Returns the maximum of bytes per second that move between fast and slow devices.
    pub fn move_rate(&self) -> u64 {
        self.move_rate.map_or(DEFAULT_MOVE_RATE, Size::get)
    }

    /// Returns the maximum of bytes per second that are copied to complete copies.
    pub fn repair_rate(&self) -> Option<u64> {
        self.repair_rate.map(Size::get)
    }

    /// Adds a device.
    pub(crate) fn add_device(&mut self, path: &Path, is_fast: bool) {
        if !self.devices.iter().any(|one| one == path) {
            self.devices.push(path.to_owned());
        }
        if is_fast && !self.fast_devices.iter().any(|one| one == path) {
            self.fast_devices.push(path.to_owned());
        }
    }

    /// Removes devices.
    pub(crate) fn remove_devices(&mut self, paths: &[PathBuf]) {
        for devices in [&mut self.devices, &mut self.fast_devices] {
            devices.retain(|one| !paths.contains(one));
        }
    }

    /// Returns the cache mode of its devices.
    pub fn cache(&self) -> CacheMode {
        self.cache.unwrap_or_default()
    }

    /// Returns the memory of its maps in bytes.
    pub fn memory(&self) -> u64 {
        self.memory.map_or(DEFAULT_MEMORY, Size::get)
    }

    /// Returns the used part of its space that is reported, in percent.
    pub fn alert_percent(&self) -> u64 {
        self.alert_percent.map_or(DEFAULT_ALERT_PERCENT, Number::get)
    }
}
