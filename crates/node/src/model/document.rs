//! The document: the objects of a server as people and programs write them. In TOML it has the tables of the
//! configuration file, in JSON the same keys. `Config` is made from it and checks it.
//!
//! serde refuses unknown keys (`deny_unknown_fields`) and lists the known ones; the crate `serde_ignored` would report
//! only the path of an unknown key, after the document was accepted.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use super::account::Account;
pub use super::host::Host;
pub use super::limits::Limits;
pub use super::portal::{Portal, PortalAddress, Tls};
pub use super::redirect::Redirect;
use super::table;
pub use super::target::{Discovery, Luns, Rule, ShownLuns, Target};
use super::values::is_false;

/// The objects of a server. An apply leaves objects that are not listed unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// The portals.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub portal: Vec<Portal>,
    /// The accounts with which initiators and targets authenticate.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub account: Vec<Account>,
    /// Named initiators, for access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub host: Vec<Host>,
    /// The volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub volume: Vec<Volume>,
    /// The targets, with their LUNs and access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "table::list")]
    pub target: Vec<Target>,
    /// Access to discovery.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub discovery: Option<Discovery>,
    /// Limits of what initiators may use: the keys of the configuration's `[limits]`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub limits: Option<Limits>,
}

/// A size: a number of bytes, or a text such as `10GiB`. It is shown with the largest binary unit of which it is a
/// multiple.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "10GiB")]
pub struct Size(pub String);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written: String = super::text::parsed(deserializer)?;
        // The check of the whole document refuses a text that is not a size.
        Ok(super::size::parse_size(&written).map_or(Self(written), Self::of_bytes))
    }
}

impl Size {
    /// A size of so many bytes.
    pub fn of_bytes(bytes: u64) -> Self {
        let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        let unit =
            units.into_iter().find(|(_, shift)| bytes != 0 && bytes.is_multiple_of(1 << shift));
        Self(match unit {
            Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
            None => bytes.to_string(),
        })
    }
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Volume {
    /// Unique name: lower-case letters, digits, dots and hyphens.
    pub name: String,
    /// Where the blocks are stored: in a file or on a block device, in memory, nowhere, in the image of a CD, or on a
    /// real SCSI device (`sg`).
    #[serde(default = "file")]
    pub store: String,
    /// The file, image or device. Default with a state folder: a file in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The size of the volume. Default for a file or device that exists: its own size. A smaller file grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Bytes of a logical block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// The cache mode of a file, with the names and meanings of QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// The designators of the Device Identification VPD page: `naa:HEX`, `eui:HEX`, `t10:TEXT`, `name:TEXT`. Default:
    /// derived from the other keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub designators: Vec<String>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<u8>,
    /// Encrypt the stored blocks, so that SANITIZE with CRYPTOGRAPHIC ERASE can erase them.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encrypted: bool,
    /// The folder for metadata of a file volume, such as persistent reservations. Default: beside a regular file; none
    /// for a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Maximum memory of a RAM volume. Default: its size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// Delay of each response, for tests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// Maximum number of commands a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Maximum number of bytes a second, such as `200MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// The burst window: for how long unused commands and bytes are saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// The weight of its commands, relative to others, while more commands wait than the server runs at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Commands a second that start before those of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved_iops: Option<u64>,
    /// Faults to inject for tests, such as `lost-write@1234`: `KIND@BLOCK` with `flipped-bit`, `flipped-bit-stored`,
    /// `lost-write`, `stale-read`, `unreadable` or `unwritable`, or `misdirected-write@BLOCK>BLOCK`. `:once` after it
    /// injects it once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fault: Vec<String>,
}

/// The store of volumes that name no store.
fn file() -> String {
    "file".to_owned()
}
