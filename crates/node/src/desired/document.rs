//! The document: what a server is to be, as people and programs write it. In TOML it has the tables of the
//! configuration file, in JSON the same keys. `Config` is what becomes of it; there it is checked.

mod written;

use std::collections::BTreeMap;

use sarsen_proto::iscsi::chap::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a server is to be. What it leaves out is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Document {
    /// Where it listens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portal: Vec<Portal>,
    /// With which names and secrets initiators, and targets, prove who they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub account: Vec<Account>,
    /// Initiators by names of ours, for rules to speak of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host: Vec<Host>,
    /// The disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume: Vec<Volume>,
    /// Under which names and numbers they are reached, and by whom.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub target: Vec<Target>,
    /// Who may look for targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discovery: Option<Discovery>,
    /// What initiators may take of the server: the keys of the configuration's `[limits]`.
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

/// A size: bytes, or a text such as `10GiB`. It is shown with the largest binary unit of which it is a
/// whole number.
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
        // What is no size stays as it is, and is refused by its name where all is checked.
        Ok(crate::config::parse_size(&written).map_or(Self(written), Self::of_bytes))
    }
}

impl Size {
    /// So many bytes.
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
    /// 1 to 64 lower-case letters, digits, dots and hyphens.
    pub name: String,
    /// `file` unless given; `ram`, `null`, `iso` or `sg`.
    #[serde(default = "file")]
    pub store: String,
    /// Of a file, image or device. A file volume without one is kept in the server's state folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its size; a file that exists has its own unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Size>,
    /// Bytes of a logical block: 512 unless given, or 4096.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u32>,
    /// `writeback` unless given; `writethrough`, `none`, `directsync` or `unsafe`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// Writes are refused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// Its medium can be ejected.
    #[serde(default, skip_serializing_if = "is_false")]
    pub removable: bool,
    /// PRODUCT SERIAL NUMBER; one is made for a new volume, and stays with it whatever its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The NAA identifier of 16 or 32 hexadecimal digits; one is made for a new volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub naa: Option<String>,
    /// What the Device Identification page shows, in place of what follows from the rest: `naa:HEX`,
    /// `eui:HEX`, `t10:TEXT` and `name:TEXT`.
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
    /// The type of protection information: 1, 2 or 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<u8>,
    /// Its blocks are kept encrypted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub encrypted: bool,
    /// The folder of what it keeps beside its blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Memory that a RAM volume may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Size>,
    /// How much later each request is answered, on purpose: `20ms`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// Commands a second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes a second, at most: `200MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// For how long what is not used is saved: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// Its part, beside the others', of what the server can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
    /// Commands a second that it gets whatever the others want.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_iops: Option<u64>,
    /// What is to go wrong, on purpose: `lost-write@1234`.
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
    /// Its number for those who administer it by `tgtadm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tid: Option<u32>,
    /// Volumes by logical unit number.
    #[serde(default, skip_serializing_if = "Luns::is_empty")]
    pub luns: Luns,
    /// Access states by portal group: `optimized`, `non-optimized`, `standby`, `unavailable`, `offline`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub access: BTreeMap<String, String>,
    /// The portal group that initiators are to prefer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<u16>,
    /// Who changes the access states: `both` the server and initiators (SET TARGET PORT GROUPS), which is the default, or
    /// `implicit`: the server alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alua: Option<String>,
    /// The portal groups that it is reached through: all unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<u16>>,
    /// Where it is instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redirect: Option<Redirect>,
    /// Accounts of which an initiator has to prove to be one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<String>,
    /// The account with which the target proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// CHAP's algorithms: `sha3-256`, `sha-256`, `sha1`, `md5`; all unless given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
    /// The first rule that fits lets in; none: everybody.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Rule>,
}

/// Volumes by logical unit number: `{ "0": "a", "5": "b" }`, or `["a", "b"]` for numbers from 0 on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[serde(transparent)]
#[schema(value_type = BTreeMap<String, String>)]
pub struct Luns(pub BTreeMap<u16, String>);

impl Luns {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where a target is instead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Redirect {
    /// `host:port`.
    pub address: String,
    /// For good: initiators need not ask here again.
    #[serde(default, skip_serializing_if = "is_false")]
    pub permanent: bool,
}

/// Lets in whom all of its conditions fit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rule {
    /// One of the hosts, in place of the conditions below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The initiator's name, or its beginning and `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Where it comes from: an address or a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// What it has proved to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate that it has shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// What it is shown: numbers, or volumes by the number that it finds them under. All unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<ShownLuns>,
    /// It may not write.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
}

/// The units that a rule shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ShownLuns {
    /// By the target's numbers.
    Numbers(Vec<u16>),
    /// Volumes by the number that an initiator finds them under.
    Volumes(BTreeMap<String, String>),
}

/// An account.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Account {
    /// CHAP_N.
    pub name: String,
    /// The secret, 12 to 255 bytes. It is taken, and never shown unless asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "written::secret")]
    #[schema(value_type = Option<String>, write_only)]
    pub secret: Option<Secret>,
    /// Or a file of the server that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_file: Option<String>,
    /// Or a variable of the server's environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_env: Option<String>,
}

/// Without the secret.
impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An initiator, or some that belong together, under a name of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Host {
    /// Its name here.
    pub name: String,
    /// Its initiators' names: each may end with `*`. Any unless given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub initiators: Vec<String>,
    /// Where it comes from: an address or a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The account that it logs in with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The client certificate that it shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Commands a second, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// Bytes a second, at most: `200MiB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Size>,
    /// For how long what is not used is saved: `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<String>,
    /// Its part, beside the others', of what the server can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<u32>,
    /// Commands a second that it gets whatever the others want.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_iops: Option<u64>,
}

/// Where the server listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Portal {
    /// `0.0.0.0:3260`, `[::]:3260`.
    pub address: String,
    /// Its portal group: 1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u16>,
    /// The portal accepts only TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

/// How a portal proves who it is, and what clients have to show. All are PEM files of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tls {
    /// The portal's certificate and the chain that leads to it.
    pub certificate: String,
    /// Its private key.
    pub key: String,
    /// Those who vouch for clients.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<String>,
    /// A client without a certificate is not let in: true where there is `client-ca`, unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_client_certificate: Option<bool>,
}

/// Who may look for targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Discovery {
    /// Accounts of which an initiator has to prove to be one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub chap: Vec<String>,
    /// The account with which the server proves who it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_account: Option<String>,
    /// CHAP's algorithms; all unless given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<String>,
}

/// The store of volumes that name none.
fn file() -> String {
    "file".to_owned()
}

fn is_false(value: &bool) -> bool {
    !value
}
