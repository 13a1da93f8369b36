//! The document: the objects of a server as people and programs write them. In TOML it has the tables of the
//! configuration file, in JSON the same keys. `Config` is made from it and checks it.
//!
//! serde refuses unknown keys (`deny_unknown_fields`) and lists the known ones; the crate `serde_ignored` would report
//! only the path of an unknown key, after the document was accepted.

mod values;

use std::collections::BTreeMap;

use sarsen_proto::iscsi::chap::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::protocol::Protocol;

/// The objects of a server. An apply leaves objects that are not listed unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// The portals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portal: Vec<Portal>,
    /// The accounts with which initiators and targets authenticate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub account: Vec<Account>,
    /// Named initiators, for access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    /// The volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume: Vec<Volume>,
    /// The targets, with their LUNs and access rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<Target>,
    /// Access to discovery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Discovery>,
    /// Limits of what initiators may use: the keys of the configuration's `[limits]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, Scalar>>,
}

/// A number or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Scalar {
    /// A number.
    Number(u64),
    /// A text, such as a size or a time with its unit.
    Text(String),
}

/// A size: a number of bytes, or a text such as `10GiB`. It is shown with the largest binary unit of which it is a
/// multiple.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = String, example = "10GiB")]
pub struct Size(pub String);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match Scalar::deserialize(deserializer)? {
            Scalar::Number(bytes) => bytes.to_string(),
            Scalar::Text(text) => text,
        };
        // The check of the whole document refuses a text that is not a size.
        Ok(crate::config::parse_size(&written).map_or(Self(written), Self::of_bytes))
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

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Target {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The target's number for `tgtadm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Volumes by logical unit number: `["a", "b"]` from LUN 0 on, or `{ 0 = "a", 5 = "b" }`.
    #[serde(default, skip_serializing_if = "Luns::is_empty")]
    pub luns: Luns,
    /// ALUA access states by portal group, such as `{ 1 = "optimized", 2 = "standby" }`. Default: `optimized`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub access: BTreeMap<String, String>,
    /// The portal group that is reported as preferred (ALUA).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<u16>,
    /// Whether initiators may change access states by SET TARGET PORT GROUPS (`both`), or only the server (`implicit`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alua: Option<String>,
    /// The portal groups that serve this target. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<u16>>,
    /// The server to which initiators are redirected when they log in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
    /// The accounts with which initiators may authenticate (CHAP). Default: none, and no authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<String>,
    /// The account with which the target authenticates itself (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// The permitted CHAP algorithms. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
    /// Access rules. The first rule that matches permits the login; without rules every initiator is permitted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
}

/// Volumes by LUN: `{ "0": "a", "5": "b" }`, or `["a", "b"]` for LUNs from 0 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = BTreeMap<String, String>)]
pub struct Luns(pub BTreeMap<u16, String>);

impl Luns {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A redirection of a target's initiators (RFC 7143 §11.13.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Redirect {
    /// The other server: `HOST[:PORT]`.
    pub address: String,
    /// Whether the target moved permanently, so that initiators need not ask here again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub permanent: bool,
}

/// An access rule of a target: it matches an initiator that fulfils all of its conditions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// A host by name, in place of the other conditions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The initiator's name, which may end with `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// The initiator's address, or a network such as `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The account with which it authenticated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate: one of its names, or `sha256:HASH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The logical units that it sees: `[1, 3]`, or volumes by the LUNs that it sees, `{ 0 = "b" }`. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<ShownLuns>,
    /// Refuse its writes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}

/// The logical units that a rule shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ShownLuns {
    /// LUNs of the target.
    Numbers(Vec<u16>),
    /// Volumes by the LUNs that the initiator sees.
    Volumes(BTreeMap<String, String>),
}

/// An account: a name and a secret for CHAP. The secret is in a file, in a variable, or in the server's state.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Account {
    /// Unique name: CHAP_N.
    pub name: String,
    /// The secret, 12 to 255 bytes. It can be set, and is only shown by an export with secrets.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "values::secret")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<Secret>,
    /// A file of the server with the secret. Other users must not be able to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// An environment variable of the server with the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
}

/// Formats without the secret.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A named group of initiators, for access rules and limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// Unique name.
    pub name: String,
    /// Names of its initiators, each of which may end with `*`. Default: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// The initiator's address, or a network such as `10.0.0.0/8`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The account with which it authenticates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate: one of its names, or `sha256:HASH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
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
}

/// An address on which the server listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Portal {
    /// Address and port, such as `0.0.0.0:3260` or `[::]:3260`.
    pub address: String,
    /// The protocol that it serves. Default: iscsi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The tag of its portal group. Portals of one group are one port of each target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u16>,
    /// The TLS settings of a portal that accepts only TLS 1.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// The certificates of a portal. All are PEM files of the server, which reads them again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tls {
    /// The portal's certificate and its chain.
    pub certificate: String,
    /// The private key of the certificate.
    pub key: String,
    /// The certificate authorities of clients. Default: clients are not asked for a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<String>,
    /// Whether clients without a certificate are refused. Default: `true` with `client-ca`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_client_certificate: Option<bool>,
}

/// Access to discovery (SendTargets).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Discovery {
    /// The accounts with which initiators may authenticate (CHAP). Default: none, and no authentication.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<String>,
    /// The account with which the server authenticates itself (mutual CHAP).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// The permitted CHAP algorithms. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
}

/// The store of volumes that name no store.
fn file() -> String {
    "file".to_owned()
}

fn is_false(value: &bool) -> bool {
    !value
}
