//! Volumes: where their blocks are, and how initiators see them.
//!
//! ```toml
//! [[volume]]
//! name = "data"
//! store = "file"                      # the default; or ram, null, iso, sg, pool, remote
//! path = "/srv/data.img"
//! size = "10GiB"
//! cache = "none"
//! # protection = 1
//! # The key of an encrypted volume is in its state, and another one after SANITIZE with CRYPTOGRAPHIC ERASE: a copy of
//! # the volume needs a copy of its state.
//! # encrypted = true
//! # state = "/var/lib/sarsen/data"
//! # Multipath maps, udev's links and VMFS depend on the identity. A volume from another server keeps the one that it
//! # had there.
//! serial = "beaf11"
//! naa = "6001405a1b2c3d4e5f60718293a4b5c6"
//! vendor = "IET"
//! product = "VIRTUAL-DISK"
//! revision = "0001"
//! # What the Device Identification page has in place of what follows from these keys.
//! designators = ["t10:IET     00010001", "naa:60000000000000000e00000000010001"]
//! # For drills: see `fault`.
//! # fault = "lost-write@1234"
//! ```

use std::path::{Path, PathBuf};

use sarsen_block::BlockSize;
use sarsen_initiator::PathSelector;
use sarsen_initiator::transfer::ImageFormat;
use sarsen_scsi::{Designator, Naa, ProtectionType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::cache_mode::CacheMode;
use super::fault::FaultConfig;
use super::invalid::FieldError;
use super::names::{check_volume_name, target_name_fault};
use super::qos::{self, BurstWindow, Rates, Weight};
use super::quantity::{Bandwidth, ByteSize, Mirror, PathWait, Rate, Span, Stripes};
use super::remote::RemoteUrl;
use super::snapshot::{SnapshotName, SnapshotSchedule};
use super::values::is_false;
use super::{document, text, words};

/// The store of a volume's blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreKind {
    /// In memory. The data is lost when the server ends.
    Ram,
    /// In a file or on a block device.
    #[default]
    File,
    /// A store that keeps no data.
    Null,
    /// A CD or DVD: a read-only image of blocks of 2,048 bytes.
    Iso,
    /// A SCSI device of this machine, to which commands are passed through unchanged.
    Sg,
    /// In a pool.
    Pool,
    /// A logical unit of another server.
    Remote,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Volume {
    /// Unique name: lower-case letters, digits, dots and hyphens.
    pub name: String,
    /// Where the blocks are stored: in a file or on a block device, in memory, nowhere, in the image of a CD, on a
    /// real SCSI device (`sg`), in a pool, or on another server (`remote`).
    #[serde(default, with = "words")]
    #[schema(value_type = String)]
    pub store: StoreKind,
    /// The file, image or device. Default with a state folder: a file in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// The pool from which the volume gets its space. It implies `store = "pool"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The disk of another server that the volume is: `iscsi://[ACCOUNT@]HOST[:PORT][,HOST[:PORT]...]/TARGET/LUN`, with each
    /// portal as a path; `nbd://HOST[:PORT]/EXPORT`, or `nbd+unix:///EXPORT?socket=PATH`; with TLS `iscsis://` or `nbds://` and
    /// `?ca=FILE`. It implies `store = "remote"`. Only this server may write to the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub remote: Option<Box<RemoteUrl>>,
    /// The iSCSI name with which the server logs in at `remote`. Default: a name that is made from this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator_name: Option<Box<str>>,
    /// Use only the portals of `remote`, not those that its target reports in addition if it names one.
    #[serde(default, skip_serializing_if = "is_false")]
    pub only_these_portals: bool,
    /// How a path to `remote` is chosen for each command: `service-time`, `queue-depth` or `round-robin`. Default:
    /// service-time.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub path_selector: Option<PathSelector>,
    /// How long commands wait while no path to `remote` works, before they fail. Default: 30s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path_wait: Option<PathWait>,
    /// The snapshot that a new volume begins with: `VOLUME@NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub clone_of: Option<Box<SnapshotName>>,
    /// The image of a disk from which a new volume in a pool is filled while it is used. When it is filled, the image is
    /// not needed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub image: Option<Box<Path>>,
    /// The format of the image: qcow2 or raw. Default: qcow2.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub image_format: Option<ImageFormat>,
    /// The snapshot that the volume is, instead of a volume of its own: `VOLUME@NAME`. It is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub snapshot: Option<Box<SnapshotName>>,
    /// The snapshots that are created of it, and how many of each remain, such as `hourly=24,daily=7,weekly=4,monthly=12`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub snapshot_schedule: Option<SnapshotSchedule>,
    /// Number of copies of the data of a new volume in a pool, each on another device: 1 to 3. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u8>)]
    pub mirror: Option<Mirror>,
    /// Number of devices of its pool over which the data of a new volume is spread, if there are so many: 1 to 16. Default: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u8>)]
    pub stripes: Option<Stripes>,
    /// Keep a checksum of each 4 KiB of a new volume in a pool. Every read verifies it. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksums: Option<bool>,
    /// The size of the volume. Default for a file or device that exists: its own size. A smaller file grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub size: Option<ByteSize>,
    /// Bytes of a logical block.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<u32>)]
    pub block_size: Option<BlockSize>,
    /// The cache mode of a file, with the names and meanings of QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub cache: Option<CacheMode>,
    /// Refuse writes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// Let initiators eject and load the medium.
    #[serde(default, skip_serializing_if = "is_false")]
    pub removable: bool,
    /// PRODUCT SERIAL NUMBER. Default: created for a new volume, and kept when the volume is renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The NAA identifier: 16 or 32 hexadecimal digits. Default: created for a new volume.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<String>)]
    pub naa: Option<Naa>,
    /// The designators of the Device Identification VPD page: `naa:HEX`, `eui:HEX`, `t10:TEXT`, `name:TEXT`. Default:
    /// derived from the other keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "words::list")]
    #[schema(value_type = Vec<String>)]
    pub designators: Vec<Designator>,
    /// T10 VENDOR IDENTIFICATION.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// PRODUCT IDENTIFICATION.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub product: Option<String>,
    /// PRODUCT REVISION LEVEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The type of protection information (T10 DIF). Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "words::option")]
    #[schema(value_type = Option<u8>)]
    pub protection: Option<ProtectionType>,
    /// Encrypt the stored blocks, so that SANITIZE with CRYPTOGRAPHIC ERASE can erase them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encrypted: bool,
    /// The folder for metadata of a file volume, such as persistent reservations. Default: beside a regular file; none
    /// for a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub state: Option<PathBuf>,
    /// Maximum memory of a RAM volume. Default: its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub limit: Option<ByteSize>,
    /// Delay of each response, for tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub delay: Option<Span>,
    /// Maximum number of commands a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub iops: Option<Rate>,
    /// Maximum number of bytes a second, such as `200MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub bandwidth: Option<Bandwidth>,
    /// The burst window: for how long unused commands and bytes are saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub burst: Option<BurstWindow>,
    /// The weight of its commands, relative to others, while more commands wait than the server runs at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u32>)]
    pub weight: Option<Weight>,
    /// Commands a second that start before those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub reserved_iops: Option<Rate>,
    /// Faults to inject for tests, such as `lost-write@1234`: `KIND@BLOCK` with `flipped-bit`, `flipped-bit-stored`,
    /// `lost-write`, `stale-read`, `unreadable` or `unwritable`, or `misdirected-write@BLOCK>BLOCK`. `:once` after it
    /// injects it once.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "text::list")]
    #[schema(value_type = Vec<String>)]
    pub fault: Vec<FaultConfig>,
}

/// The keys of a real SCSI device: it has its own properties.
const DEVICE_KEYS: [&str; 8] =
    ["name", "store", "path", "iops", "bandwidth", "burst", "weight", "reserved-iops"];
/// The keys that a CD has in addition to these.
const CD_KEYS: [&str; 10] = [
    "read-only",
    "removable",
    "serial",
    "naa",
    "designators",
    "vendor",
    "product",
    "revision",
    "delay",
    "fault",
];

/// Returns the folder next to a volume's file that has its records, unless the volume names another one.
pub(crate) fn metadata_folder(path: &Path) -> PathBuf {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".state");
    folder.into()
}

impl Volume {
    /// Checks the keys against each other.
    pub(crate) fn check(&self) -> Result<(), FieldError> {
        check_volume_name(&self.name).map_err(|message| FieldError::new("name", message))?;
        qos::check(&self.qos())?;
        if let Some(name) = &self.initiator_name
            && let Some(fault) = target_name_fault(name)
        {
            return Err(FieldError::new(
                "initiator-name",
                format!("initiator-name = {name:?}: {fault}"),
            ));
        }
        self.check_identity()?;
        if self.is_device() {
            self.check_device_keys(&serde_json::to_value(self).unwrap_or_default())?;
        } else {
            self.check_disk()?;
        }
        let missing = match self.store {
            StoreKind::Ram | StoreKind::Null => self.size.is_none().then_some("size"),
            StoreKind::File | StoreKind::Iso | StoreKind::Sg => {
                self.path.is_none().then_some("path")
            }
            StoreKind::Pool => self.pool.is_none().then_some("pool"),
            StoreKind::Remote => self.remote.is_none().then_some("remote"),
        };
        match missing {
            Some(key) => Err(FieldError::new("", format!("the volume has no {key}: add it"))),
            None => Ok(()),
        }
    }

    fn check_identity(&self) -> Result<(), FieldError> {
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        // SPC-4 7.8.18: ASCII. Multipath and udev expect it without spaces.
        if let Some(serial) = &self.serial
            && !((1..=36).contains(&serial.len()) && is_visible(serial))
        {
            let message = format!("serial = {serial:?}: 1 to 36 visible ASCII characters");
            return Err(FieldError::new("serial", message));
        }
        // SPC-4 6.6.2: left-aligned ASCII, filled with spaces.
        let texts = [
            ("vendor", &self.vendor, 8),
            ("product", &self.product, 16),
            ("revision", &self.revision, 4),
        ];
        for (key, text, longest) in texts {
            if let Some(text) = text
                && !((1..=longest).contains(&text.len())
                    && text.split(' ').all(is_visible)
                    && text.trim() == text)
            {
                let message =
                    format!("{key} = {text:?}: 1 to {longest} printable ASCII characters");
                return Err(FieldError::new(key, message));
            }
        }
        Ok(())
    }

    /// Refuses keys that a real device, or a CD, does not have. The `fields` are those that were written: the volume
    /// itself has no key whose value is `false`.
    pub(crate) fn check_device_keys(&self, fields: &Value) -> Result<(), FieldError> {
        if !self.is_device() {
            return Ok(());
        }
        let is_cd = self.store == StoreKind::Iso;
        let why = if is_cd {
            "a CD is read-only and removable, and has the blocks of 2048 bytes of its image"
        } else {
            "a real device has its own properties"
        };
        let refused = fields.as_object().into_iter().flatten().find(|(key, value)| {
            let is_known =
                DEVICE_KEYS.contains(&key.as_str()) || is_cd && CD_KEYS.contains(&key.as_str());
            !is_known || **value == false
        });
        match refused {
            Some((key, _)) => Err(FieldError::new(key, format!("{key}: {why}: remove it"))),
            None => Ok(()),
        }
    }

    /// Checks the keys of a volume in a file, in memory or nowhere.
    fn check_disk(&self) -> Result<(), FieldError> {
        let block = self.block_size().bytes();
        if let Some(size) = self.size.map(ByteSize::get)
            && (size == 0 || !size.is_multiple_of(block as u64))
        {
            let message = format!(
                "size = {size} bytes: it must be a multiple of the block size, {block}, and not zero"
            );
            return Err(FieldError::new("size", message));
        }
        let (is_file, is_null) = (self.store == StoreKind::File, self.store == StoreKind::Null);
        let is_read_only_file = is_file && self.is_read_only();
        let is_in_pool = self.store == StoreKind::Pool;
        let is_remote = self.store == StoreKind::Remote;
        let is_export = self.remote.as_ref().is_some_and(|url| url.iscsi().is_none());
        let has_own_layout = is_in_pool && self.clone_of.is_none() && self.snapshot.is_none();
        let refused = [
            (
                "state",
                self.state.is_some()
                    && (!is_file || is_read_only_file)
                    && (!is_in_pool || self.snapshot.is_some())
                    && !is_remote,
                "only a writable volume in a file or a pool, or a remote one, has a state folder; remove the key",
            ),
            (
                "pool",
                self.pool.is_some() && !is_in_pool,
                "only a volume with store = \"pool\" has a pool; write that, or remove the key",
            ),
            (
                "remote",
                self.remote.is_some() && !is_remote,
                "only a volume with store = \"remote\" has a URL; write that, or remove the key",
            ),
            (
                "initiator-name",
                self.initiator_name.is_some() && (!is_remote || is_export),
                "initiator-name: only a remote volume of an iSCSI target logs in with a name; remove the key",
            ),
            (
                "only-these-portals",
                self.only_these_portals && (!is_remote || is_export),
                "only-these-portals: only a remote volume of an iSCSI target has portals; remove the key",
            ),
            (
                "path-selector",
                self.path_selector.is_some() && (!is_remote || is_export),
                "path-selector: only a remote volume of an iSCSI target has several paths; remove the key",
            ),
            (
                "path-wait",
                self.path_wait.is_some() && !is_remote,
                "path-wait: only a remote volume has paths; remove the key",
            ),
            (
                "size",
                self.size.is_some() && is_remote,
                "size: a remote volume has the size of the unit; remove the key, and change the size there",
            ),
            (
                "block-size",
                self.block_size.is_some() && is_remote,
                "block-size: a remote volume has the blocks of the unit; remove the key",
            ),
            (
                "clone-of",
                self.clone_of.is_some() && (!is_in_pool || self.snapshot.is_some()),
                "clone-of: only a volume of its own in a pool is a clone; remove the key",
            ),
            (
                "image",
                self.image.is_some() && !has_own_layout,
                "image: only a volume in a pool is filled from an image, and no clone or snapshot; remove the key",
            ),
            (
                "image-format",
                self.image_format.is_some() && self.image.is_none(),
                "image-format: the volume has no image; add image, or remove the key",
            ),
            (
                "snapshot",
                self.snapshot.is_some() && (!is_in_pool || self.size.is_some()),
                "snapshot: only a volume in a pool is a snapshot, with the size of that; remove one of the keys",
            ),
            (
                "snapshot-schedule",
                self.snapshot_schedule.is_some() && (!is_in_pool || self.snapshot.is_some()),
                "only a volume of its own in a pool has a schedule of snapshots; remove the key",
            ),
            (
                "mirror",
                self.mirror.is_some() && !has_own_layout,
                "mirror: only a volume in a pool has copies, and a clone or a snapshot has those of its volume; remove the key",
            ),
            (
                "stripes",
                self.stripes.is_some() && !has_own_layout,
                "stripes: only a volume in a pool has them, and a clone or a snapshot has those of its volume; remove the key",
            ),
            (
                "checksums",
                self.checksums.is_some() && !has_own_layout,
                "checksums: only a volume in a pool has them, and a clone or a snapshot is like its volume; remove the key",
            ),
            (
                "protection",
                self.protection.is_some() && (is_in_pool || is_remote),
                "a volume in a pool, and a remote one, stores no protection information; remove the key",
            ),
            (
                "encrypted",
                self.encrypted && (is_in_pool || is_remote),
                "encrypted: a volume in a pool, and a remote one, cannot be encrypted; remove the key",
            ),
            (
                "limit",
                self.limit.is_some() && self.store != StoreKind::Ram,
                "only a RAM volume has a limit; remove the key",
            ),
            (
                "protection",
                self.protection.is_some() && is_null,
                "a null volume stores no protection information; remove the key",
            ),
            (
                "encrypted",
                self.encrypted && is_null,
                "encrypted: a null volume stores nothing; remove the key",
            ),
            (
                "encrypted",
                self.encrypted && is_read_only_file,
                "encrypted: a read-only file volume has no state folder for the key; remove read-only",
            ),
            (
                "encrypted",
                self.encrypted && self.protection.is_some(),
                "encrypted: protection information cannot be encrypted; remove one of the two keys",
            ),
            (
                "cache",
                self.cache.is_some() && !is_file,
                "only a file volume has a cache mode; remove the key",
            ),
            (
                "path",
                self.path.is_some() && !is_file,
                "only a file volume has a path; remove the key",
            ),
        ];
        match refused.into_iter().find(|(_, is_refused, _)| *is_refused) {
            Some((key, _, message)) => Err(FieldError::new(key, message)),
            None => Ok(()),
        }
    }

    /// Sets the keys that are left out to their defaults, so that volumes that are served alike are equal.
    pub(crate) fn complete(&mut self) {
        self.read_only = self.is_read_only();
        self.removable = self.is_removable();
        // A volume in a pool has the blocks with which it was created, and a remote one those of the unit.
        if !self.is_device() && !matches!(self.store, StoreKind::Pool | StoreKind::Remote) {
            self.block_size = Some(self.block_size());
        }
        if self.store == StoreKind::File {
            self.cache = Some(self.cache());
        }
    }

    /// Returns the volume with the store that its keys imply, if they name none: that of a pool or of a URL.
    pub(crate) fn with_implied_store(mut self) -> Self {
        if self.store == StoreKind::File && self.path.is_none() {
            if self.pool.is_some() {
                self.store = StoreKind::Pool;
            } else if self.remote.is_some() {
                self.store = StoreKind::Remote;
            }
        }
        self
    }

    /// Returns the format of the image from which it is filled.
    pub(crate) fn image_format(&self) -> ImageFormat {
        self.image_format.unwrap_or(ImageFormat::Qcow2)
    }

    /// Returns the number of copies of the data of a new volume in a pool.
    pub(crate) fn mirror(&self) -> u8 {
        self.mirror.map_or(1, |copies| copies.get() as u8)
    }

    /// Returns the number of devices over which the data of a new volume in a pool is spread.
    pub(crate) fn stripes(&self) -> u8 {
        self.stripes.map_or(1, |stripes| stripes.get() as u8)
    }

    /// Returns whether the data of a new volume in a pool has checksums.
    pub(crate) fn has_checksums(&self) -> bool {
        self.checksums.unwrap_or(false)
    }

    /// Returns the first key with another layout than the data of a volume, and the value that the data has.
    pub(crate) fn other_layout(
        &self,
        (copies, stripes, has_checksums): (u8, u8, bool),
    ) -> Option<(&'static str, String)> {
        let keys = [
            ("mirror", self.mirror.is_some() && self.mirror() != copies, copies.to_string()),
            ("stripes", self.stripes.is_some() && self.stripes() != stripes, stripes.to_string()),
            (
                "checksums",
                self.checksums.is_some_and(|wanted| wanted != has_checksums),
                has_checksums.to_string(),
            ),
        ];
        keys.into_iter().find_map(|(key, differs, has)| differs.then_some((key, has)))
    }

    /// Returns whether it is a real device or a CD, which has properties of its own.
    pub(crate) fn is_device(&self) -> bool {
        matches!(self.store, StoreKind::Sg | StoreKind::Iso)
    }

    /// Returns its logical block size.
    pub fn block_size(&self) -> BlockSize {
        match self.store {
            StoreKind::Iso => BlockSize::B2048,
            _ => self.block_size.unwrap_or_default(),
        }
    }

    /// Returns its cache mode.
    pub(crate) fn cache(&self) -> CacheMode {
        self.cache.unwrap_or_default()
    }

    /// Returns whether it rejects writes.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.store == StoreKind::Iso || self.snapshot.is_some()
    }

    /// Returns whether initiators can eject and load its medium.
    pub(crate) fn is_removable(&self) -> bool {
        self.removable || self.store == StoreKind::Iso
    }

    /// Returns the path of its file, if its blocks are in a file or on a block device.
    pub fn file(&self) -> Option<&Path> {
        self.path.as_deref().filter(|_| self.store == StoreKind::File)
    }

    /// Returns the folder of its records, if it has one.
    pub(crate) fn records_folder(&self) -> Option<PathBuf> {
        match self.store {
            StoreKind::Pool | StoreKind::Remote => self.state.clone(),
            _ => {
                let path = self.file()?;
                Some(self.state.clone().unwrap_or_else(|| metadata_folder(path)))
            }
        }
    }

    /// Returns its QoS limits.
    pub fn qos(&self) -> Rates {
        let Self { iops, bandwidth, burst, weight, reserved_iops, .. } = *self;
        qos::rates(iops, bandwidth, burst, weight, reserved_iops)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::from_json;

    #[test]
    fn spc4_6_6_2_identity_that_fits_its_field_is_accepted() {
        let checked = |key: &str, value: &str| {
            let text = serde_json::json!({
                "name": "a", "store": "ram", "size": "1MiB", key: value,
            });
            let volume: Volume =
                from_json(text.to_string().as_bytes()).map_err(|error| error.to_string())?;
            volume.check().map_err(|error| error.message).map(|()| volume)
        };
        for (key, value) in [
            ("serial", "beaf11"),
            ("naa", "3000000000000001"),
            ("naa", "6001405a1b2c3d4e5f60718293a4b5c6"),
            ("vendor", "LIO-ORG"),
            ("product", "disk 1"),
            ("revision", "4.0"),
            ("designators", "t10:IET     00010001"),
            ("designators", "naa:3000000000000001"),
        ] {
            let volume = checked(key, value).expect(key);
            let shown = serde_json::to_value(&volume).expect("JSON");
            let shown = shown[key].as_str().or(shown[key][0].as_str());
            assert_eq!(shown, Some(value));
        }
        for (key, value) in [
            ("serial", "a b"),
            ("naa", "1000000000000001"),
            ("designators", "IET     00010001"),
            ("vendor", "nine char"),
            ("product", ""),
            ("revision", " 4"),
            ("revision", "é"),
        ] {
            let message = checked(key, value).expect_err(value);
            assert!(
                message.starts_with(key) && message.contains(&format!("{value:?}: ")),
                "{message}"
            );
        }
    }

    #[test]
    fn a_key_that_has_its_default_makes_no_difference() {
        let parse = |text: &str| {
            let mut volume: Volume = from_json(text.as_bytes()).expect(text);
            volume.check().expect(text);
            volume.complete();
            volume.check().expect("it is still valid");
            volume
        };
        for (less, more) in [
            (
                r#"{"name": "a", "path": "/x", "naa": "300000000000000A"}"#,
                r#"{"name": "a", "path": "/x", "naa": "300000000000000a", "store": "file", "cache": "writeback",
                    "block-size": 512, "read-only": false, "removable": false, "encrypted": false}"#,
            ),
            (
                r#"{"name": "a", "store": "iso", "path": "/x"}"#,
                r#"{"name": "a", "store": "iso", "path": "/x", "read-only": true, "removable": true}"#,
            ),
            (
                r#"{"name": "a", "store": "ram", "size": "1024KiB"}"#,
                r#"{"name": "a", "store": "ram", "size": "1MiB", "block-size": "512"}"#,
            ),
        ] {
            assert_eq!(parse(less), parse(more));
        }
    }
}
