//! The configuration of the server: portals, volumes, targets. It is parsed once into a valid value, from a TOML file
//! ([`parse_file`]) or from flags ([`parse_volume`]). All other code relies on its validity.

mod access;
mod account;
mod api;
mod cache_mode;
mod certificate;
mod diff;
mod fault;
mod file;
mod host;
mod identity;
mod isns;
mod limits;
mod needs;
mod network;
mod portal;
mod qos;
mod redirect;
mod reference;
mod size;
mod spec;
mod tls;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use sarsen_block::BlockSize;
use sarsen_io::cores::FileEngine;
use sarsen_io::spin::Spin;
use sarsen_scsi::{AccessState, Alua, MAXIMUM_TARGET_PORTS, ProtectionType};

pub(crate) use self::access::ALGORITHMS;
pub use self::access::{AccessConfig, LunsConfig, NamePattern, Placed, RuleConfig};
pub(crate) use self::account::read_private;
pub use self::account::{AccountConfig, SecretSource, parse_account};
pub(crate) use self::api::DEFAULT_API_PORT;
pub use self::api::{ApiConfig, parse_api};
pub use self::cache_mode::CacheMode;
pub use self::certificate::CertificatePattern;
pub(crate) use self::diff::Different;
pub use self::fault::FaultConfig;
use self::file::Setting;
pub(crate) use self::file::{ACCESS_STATES, ALUA, CACHES, STORES};
pub use self::file::{parse_cache, parse_engine, parse_file, parse_spin};
pub use self::host::HostConfig;
pub use self::identity::IdentityConfig;
pub use self::isns::{IsnsConfig, parse_isns};
pub use self::limits::Limits;
pub(crate) use self::limits::TIME_PATTERN;
pub(crate) use self::needs::PortalRequirement;
pub use self::network::{Network, parse_network};
pub use self::portal::{DEFAULT_GROUP, Portal, parse_nbd_portal, parse_portal};
pub use self::qos::QosConfig;
pub use self::redirect::{Redirect, parse_redirect_address};
pub(crate) use self::reference::tables as reference_tables;
pub use self::reference::{KeyReference, TableReference};
pub use self::size::{parse_size, render_size};
pub use self::spec::parse_volume;
pub use self::tls::TlsConfig;
pub use crate::protocol::Protocol;

/// The naming authority of targets without a configured name. Each such volume has its own target, named
/// `iqn.2026-11.io.sarsen:` and the volume's name.
pub const DEFAULT_TARGET_PREFIX: &str = "iqn.2026-11.io.sarsen:";
/// Maximum number of volumes of one server.
pub const MAX_VOLUMES: usize = 16_384;
/// The largest LUN of flat space addressing (SAM-5 4.7.7.1).
const LARGEST_LUN: u16 = 0x3fff;

/// The configuration of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The portals at which the server listens.
    pub listen: Vec<Portal>,
    /// Number of serving threads. Default: one for each processor.
    pub cores: Option<NonZeroUsize>,
    /// The engine that reads and writes files.
    pub io_engine: FileEngine,
    /// Whether busy cores poll for a moment before they sleep.
    pub spin: Spin,
    /// Volumes, by unique names.
    pub volumes: Vec<VolumeConfig>,
    /// Targets. [`Config::finish`] adds those of volumes that no target lists.
    pub targets: Vec<TargetConfig>,
    /// The control socket of the server; `None` for no control socket.
    pub control: Option<PathBuf>,
    /// The accounts, by unique names.
    pub accounts: Vec<AccountConfig>,
    /// The hosts that rules may name, by unique names.
    pub hosts: Vec<HostConfig>,
    /// The access rules of discovery sessions; they have no `rules`.
    pub discovery: AccessConfig,
    /// Accounts that may log in everywhere, in addition to those that each target and discovery list.
    pub chap: Vec<Placed<String>>,
    /// The iSNS server at which targets are registered.
    pub isns: Option<IsnsConfig>,
    /// The limits of the resources that initiators may use.
    pub limits: Limits,
    /// The network address of the API and the console. Default: none.
    pub api: Option<ApiConfig>,
    /// The folder of the desired state: volumes, targets, accounts and all other objects that change while the server
    /// runs. Without a folder, the server runs by this configuration alone.
    pub state: Option<PathBuf>,
}

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeConfig {
    /// Unique name.
    pub name: String,
    /// The store of its blocks.
    pub store: StoreConfig,
    /// Logical block size.
    pub block_size: BlockSize,
    /// The volume rejects writes.
    pub read_only: bool,
    /// Initiators can eject and load its medium. An ISO image is always removable.
    pub removable: bool,
    /// The identifiers that initiators see, wherever the volume is served. Missing ones are derived from the names of
    /// this machine and of the volume.
    pub identity: IdentityConfig,
    /// The type of the protection information of its blocks; `None` for no protection information.
    pub protection: Option<ProtectionType>,
    /// A deliberate delay of each response.
    pub delay: Option<Duration>,
    /// Its blocks are stored encrypted, so that SANITIZE can erase them by discarding the key.
    pub encrypted: bool,
    /// The faults that are injected into it.
    pub faults: Vec<FaultConfig>,
    /// Its QoS limits.
    pub qos: QosConfig,
}

/// The store of a volume's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory. The data is lost when the server ends.
    Ram {
        /// Size in bytes.
        size: u64,
        /// Maximum memory in bytes. Writes beyond it fail, as on any thin-provisioned disk.
        limit: Option<u64>,
    },
    /// A store that keeps no data.
    Null {
        /// Size in bytes.
        size: u64,
    },
    /// In a file or on a block device.
    File {
        /// Path of the file or the device.
        path: PathBuf,
        /// Size in bytes: the server creates a missing file with this size and grows a smaller one.
        size: Option<u64>,
        /// Cache mode.
        cache: CacheMode,
        /// The folder of its persistent state, such as persistent reservations. Default: next to a regular file; none
        /// for a block device.
        state: Option<PathBuf>,
    },
    /// A SCSI device of this machine, to which commands are passed through unchanged.
    Sg {
        /// Path, such as `/dev/sg0`.
        path: PathBuf,
    },
    /// A CD or DVD: a read-only image of blocks of 2,048 bytes.
    Iso {
        /// Path of the image.
        path: PathBuf,
    },
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetConfig {
    /// iSCSI name.
    pub name: String,
    /// TargetAlias.
    pub alias: Option<String>,
    /// Names of volumes, by logical unit number.
    pub luns: BTreeMap<u16, String>,
    /// The access states of the units through portal groups, by tag. Default: optimized.
    pub access: BTreeMap<u16, AccessState>,
    /// The portal group that initiators should prefer.
    pub preferred: Option<u16>,
    /// The parties that may change the access states.
    pub alua: Alua,
    /// The portal groups through which it is reachable. Default: all.
    pub groups: Option<BTreeSet<u16>>,
    /// The address to which the target redirects initiators.
    pub redirect: Option<Redirect>,
    /// The access rules of logins to it.
    pub login: AccessConfig,
}

impl TargetConfig {
    /// Returns whether portals of this group reach the target.
    pub fn is_reached_through(&self, group: u16) -> bool {
        self.groups.as_ref().is_none_or(|groups| groups.contains(&group))
    }

    /// Returns those of the groups whose portals reach the target.
    pub(crate) fn reached_groups(&self, groups: &BTreeSet<u16>) -> BTreeSet<u16> {
        groups.iter().copied().filter(|group| self.is_reached_through(*group)).collect()
    }

    /// Returns the configured access state of a group.
    pub(crate) fn access_state(&self, group: u16) -> AccessState {
        self.access.get(&group).copied().unwrap_or(AccessState::Optimized)
    }

    /// Checks its name, and that its portal groups fit each other.
    fn check_groups(&self) -> Result<(), ConfigError> {
        check_iscsi_name(&self.name).or_else(wrong)?;
        let mut named = self.access.keys().copied().chain(self.preferred);
        if let Some(group) = named.find(|group| !self.is_reached_through(*group)) {
            return wrong(format!(
                "target {}: access or preferred has group {group}, which groups does not have",
                self.name
            ));
        }
        if self.groups.as_ref().is_some_and(BTreeSet::is_empty) {
            return wrong(format!(
                "target {}: groups is empty, so no initiator can reach the target; remove the key",
                self.name
            ));
        }
        Ok(())
    }

    /// Checks that its LUNs are valid and that its volumes exist.
    fn check_luns(&self, volumes: &HashSet<&str>) -> Result<(), ConfigError> {
        for (number, volume) in &self.luns {
            if *number > LARGEST_LUN {
                return wrong(format!(
                    "target {}: {number} is no LUN: write a number from 0 to {LARGEST_LUN}",
                    self.name
                ));
            }
            if !volumes.contains(volume.as_str()) {
                let hint = nearest(volume, volumes.iter().copied());
                return wrong(format!(
                    "target {}: there is no volume {volume}{hint}; correct luns, or add the volume",
                    self.name
                ));
            }
        }
        Ok(())
    }
}

/// Returns the groups of portals. A target has a port for each group, even if only NBD clients reach it.
pub(crate) fn target_port_groups<'a>(
    portals: impl IntoIterator<Item = &'a Portal>,
) -> BTreeSet<u16> {
    portals.into_iter().map(|portal| portal.group).collect()
}

fn wrong<T>(message: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError::new("configuration", message))
}

/// A configuration error: the problem, its place and its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {message}")]
pub struct ConfigError {
    /// File and line, or the flag.
    pub place: String,
    /// The problem and its remedy.
    pub message: String,
}

impl ConfigError {
    pub(crate) fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { place: place.into(), message: message.into() }
    }

    /// Returns the error for an object that has no value for a required key.
    fn missing(place: &str, object: &str, key: &str) -> Self {
        Self::new(place, format!("{object} has no {key}: add it"))
    }
}

/// Adds the place in the configuration to an error that has only a message.
trait AtPlace<T> {
    fn at(self, place: impl Into<String>) -> Result<T, ConfigError>;
}

impl<T, M: Into<String>> AtPlace<T> for Result<T, M> {
    fn at(self, place: impl Into<String>) -> Result<T, ConfigError> {
        self.map_err(|message| ConfigError::new(place, message))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            cores: None,
            io_engine: FileEngine::Auto,
            spin: Spin::Auto,
            volumes: Vec::new(),
            targets: Vec::new(),
            control: None,
            accounts: Vec::new(),
            hosts: Vec::new(),
            discovery: AccessConfig::default(),
            chap: Vec::new(),
            isns: None,
            limits: Limits::default(),
            api: None,
            state: None,
        }
    }
}

impl Config {
    /// Completes and checks the configuration. Names are unique and valid. Each volume is in exactly one target;
    /// unlisted volumes get their own target. At least one volume exists. Accounts and rules fit the targets.
    pub fn finish(mut self) -> Result<Self, ConfigError> {
        if self.state.is_some() {
            return self.check_beside_state();
        }
        if self.volumes.is_empty() {
            return wrong(
                "there is no volume; add a [[volume]] to the configuration file, or a flag such as --volume \
                 scratch=ram:1GiB",
            );
        }
        self.add_default_targets()?;
        self.finish_managed()
    }

    /// Checks the configuration of a server that has a state. It must not contain objects that belong to the state. It
    /// is finished when the state is known.
    fn check_beside_state(self) -> Result<Self, ConfigError> {
        let given = [
            ("volumes", !self.volumes.is_empty()),
            ("targets", !self.targets.is_empty()),
            ("accounts", !self.accounts.is_empty() || !self.chap.is_empty()),
            ("hosts", !self.hosts.is_empty()),
            ("rules of discovery", self.discovery != AccessConfig::default()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((what, _)) => wrong(format!(
                "{what}: a server with a state folder has them in its state; create them while the server runs, with \
                 `sarsen apply -f FILE` or verbs such as `sarsen volume create`"
            )),
            None => Ok(self),
        }
    }

    /// Completes and checks a configuration whose volumes and targets change while the server runs. It may have no
    /// volume at all. A volume may be in no target; then no initiator reaches it.
    pub fn finish_managed(self) -> Result<Self, ConfigError> {
        self.finish_with(Some(&BTreeSet::new()))
    }

    /// Completes and checks the configuration, where targets may have needs that are `unmet` already; `None` permits
    /// every need.
    pub(crate) fn finish_with(
        mut self,
        unmet: Option<&BTreeSet<PortalRequirement>>,
    ) -> Result<Self, ConfigError> {
        if self.volumes.len() > MAX_VOLUMES {
            return wrong(format!(
                "the configuration has {} volumes; the maximum is {MAX_VOLUMES}",
                self.volumes.len()
            ));
        }
        if self.listen.is_empty() {
            let (address, protocol) = (DEFAULT_PORTAL, Protocol::Iscsi);
            self.listen = vec![Portal { address, protocol, group: DEFAULT_GROUP, tls: None }];
        }
        let groups = target_port_groups(&self.listen);
        // Targets also have a port for a group without a portal.
        let named = self.targets.iter().flat_map(TargetConfig::named_groups);
        let groups: BTreeSet<u16> = groups.into_iter().chain(named).collect();
        if groups.len() > MAXIMUM_TARGET_PORTS {
            return wrong(format!(
                "the configuration has {} portal groups; the maximum is {MAXIMUM_TARGET_PORTS}; use the same group for several portals",
                groups.len()
            ));
        }
        let mut names = HashSet::new();
        for volume in &self.volumes {
            check_volume_name(&volume.name).or_else(wrong)?;
            if !names.insert(volume.name.as_str()) {
                return wrong(format!("two volumes are named {}: rename one", volume.name));
            }
        }
        identity::check_unique(&self.volumes).or_else(wrong)?;
        let mut target_names = HashSet::new();
        let mut exported = HashMap::new();
        for target in &self.targets {
            if !target_names.insert(target.name.as_str()) {
                return wrong(format!("two targets are named {}: rename one", target.name));
            }
            target.check_groups()?;
            target.check_luns(&names)?;
            for volume in target.luns.values() {
                if let Some(other) = exported.insert(volume.as_str(), target.name.as_str()) {
                    return wrong(format!(
                        "volume {volume} is listed twice, in {other} and in {}; a volume can have one LUN of one \
                         target",
                        target.name
                    ));
                }
            }
        }
        self.expand_hosts()?;
        let everywhere = std::mem::take(&mut self.chap);
        let logins = self.targets.iter_mut().map(|target| &mut target.login);
        for login in logins.chain([&mut self.discovery]) {
            login.chap.extend(everywhere.iter().cloned());
        }
        self.check_access()?;
        if let Some(may_be_unmet) = unmet
            && let Some(unmet) = self.unmet_needs().find(|one| !may_be_unmet.contains(&one.need))
        {
            return Err(unmet.error());
        }
        Ok(self)
    }

    /// Adds a target for each volume that no target lists.
    fn add_default_targets(&mut self) -> Result<(), ConfigError> {
        let exported: HashSet<&str> = self
            .targets
            .iter()
            .flat_map(|target| target.luns.values().map(String::as_str))
            .collect();
        let names: HashSet<&str> = self.targets.iter().map(|target| target.name.as_str()).collect();
        let mut added = Vec::new();
        for volume in self.volumes.iter().filter(|volume| !exported.contains(&*volume.name)) {
            let name = format!("{DEFAULT_TARGET_PREFIX}{}", volume.name);
            if names.contains(name.as_str()) {
                return wrong(format!(
                    "volume {} is in no target, and its default target {name} exists without it; add it to a target",
                    volume.name
                ));
            }
            let luns = BTreeMap::from([(0, volume.name.clone())]);
            added.push(TargetConfig { name, luns, ..TargetConfig::default() });
        }
        self.targets.extend(added);
        Ok(())
    }

    /// Checks that accounts and rules fit each other and the targets.
    pub(crate) fn check_access(&self) -> Result<(), ConfigError> {
        access::check(self)
    }
}

use sarsen_wire::iscsi::{DEFAULT_PORT, MAX_NAME_LENGTH};

/// The address at which a server listens by default.
pub(crate) const DEFAULT_PORTAL: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DEFAULT_PORT);

/// Checks the name of a volume. The name becomes part of an iSCSI name: the ASCII characters that RFC 3722 permits.
fn check_volume_name(name: &str) -> Result<(), String> {
    let valid = !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    // A name is also a part of paths, of files and of the API.
    if valid && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(format!(
        "volume name {name:?}: use 1 to 64 lower-case letters, digits, dots and hyphens, not . or .. alone"
    ))
}

/// Checks that the name is an iqn, eui or naa name (RFC 7143 §4.2.7).
fn check_iscsi_name(name: &str) -> Result<(), String> {
    let valid = name.len() <= MAX_NAME_LENGTH
        && match name.split_once('.') {
            Some(("iqn", rest)) => is_iqn_tail(rest),
            Some(("eui", rest)) => has_hex_digits(rest, &[16]),
            Some(("naa", rest)) => has_hex_digits(rest, &[16, 32]),
            _ => false,
        };
    if valid {
        return Ok(());
    }
    Err(format!(
        "target name {name:?} is not an iSCSI name: write iqn.YYYY-MM.reversed.domain:anything, in lower case"
    ))
}

/// Returns whether the text consists of one of these numbers of hexadecimal digits.
fn has_hex_digits(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the reason why the text is not a valid target name, or `None` for a valid name.
pub fn target_name_fault(name: &str) -> Option<String> {
    check_iscsi_name(name).err()
}

/// Returns whether the text is `YYYY-MM.authority[:anything]`.
fn is_iqn_tail(rest: &str) -> bool {
    let bytes = rest.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    digits(0..4)
        && bytes.get(4) == Some(&b'-')
        && digits(5..7)
        && bytes.get(7) == Some(&b'.')
        && bytes.len() > 8
        && bytes[8..].iter().copied().all(is_iscsi_name_byte)
}

/// Returns whether an iSCSI name may contain this byte (RFC 3722).
pub fn is_iscsi_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte)
}

/// Returns "; did you mean …?" with the candidate that is nearest to a misspelt word.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 2)
        .map_or(String::new(), |(_, candidate)| format!("; did you mean {candidate}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_not_named_as_a_folder_is() {
        for name in [".", "..", "", "A", "a/b", "a\u{202e}", "a\n"] {
            assert!(check_volume_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "a.b", "...", "-"] {
            assert_eq!(check_volume_name(name), Ok(()), "{name:?}");
        }
    }

    fn ram(name: &str) -> VolumeConfig {
        VolumeConfig {
            name: name.into(),
            store: StoreConfig::Ram { size: 1 << 20, limit: None },
            block_size: BlockSize::B512,
            read_only: false,
            removable: false,
            identity: IdentityConfig::default(),
            protection: None,
            delay: None,
            encrypted: false,
            faults: Vec::new(),
            qos: QosConfig::default(),
        }
    }

    fn target(name: &str, luns: &[&str]) -> TargetConfig {
        TargetConfig {
            name: name.into(),
            luns: (0..).zip(luns.iter().map(|&lun| lun.into())).collect(),
            ..TargetConfig::default()
        }
    }

    #[test]
    fn a_volume_without_a_target_gets_one_of_its_own() {
        let config = Config { volumes: vec![ram("a"), ram("b")], ..Config::default() };
        let config = config.finish().expect("valid");
        assert_eq!(config.targets[1].name, "iqn.2026-11.io.sarsen:b");
        assert_eq!(config.targets[1].luns, BTreeMap::from([(0, "b".into())]));
        assert_eq!(config.listen.len(), 1);
    }

    #[test]
    fn managed_configuration_needs_no_targets_or_volumes() {
        let empty = Config::default().finish_managed().expect("valid");
        assert_eq!((empty.targets.len(), empty.listen.len()), (0, 1));
        let target = TargetConfig {
            name: "iqn.2026-11.x:t".into(),
            luns: BTreeMap::from([(7, "a".into())]),
            ..TargetConfig::default()
        };
        let config = Config {
            volumes: vec![ram("a"), ram("b")],
            targets: vec![target],
            ..Config::default()
        };
        let finished = config.clone().finish_managed().expect("valid");
        assert_eq!(finished.targets, config.targets);
        let mut beyond = config;
        beyond.targets[0].luns.insert(0x4000, "b".into());
        let message = beyond.finish_managed().expect_err("no LUN").to_string();
        assert!(message.contains("16384 is no LUN: write a number from 0 to 16383"), "{message}");
    }

    #[test]
    fn every_contradiction_is_reported() {
        for (volumes, targets, reported) in [
            (vec![], vec![], "no volume"),
            (vec![ram("a"), ram("a")], vec![], "two volumes are named a"),
            (vec![ram("A b")], vec![], "lower-case"),
            (vec![ram("disk")], vec![target("iqn.2026-11.x:t", &["dsik"])], "did you mean disk?"),
            (vec![ram("a")], vec![target("nonsense", &["a"])], "not an iSCSI name"),
            (vec![ram("a")], vec![target("iqn.2026-11.x:t", &["a", "a"])], "listed twice"),
            (
                vec![ram("a")],
                vec![TargetConfig { preferred: Some(2), ..target("iqn.2026-11.x:t", &["a"]) }],
                "no portal is in group 2 (groups: 1)",
            ),
            (
                vec![ram("a")],
                vec![TargetConfig {
                    access: BTreeMap::from([(3, AccessState::Standby)]),
                    ..target("iqn.2026-11.x:t", &["a"])
                }],
                "listen = [\"0.0.0.0:3260,3\"]",
            ),
            (
                vec![ram("a")],
                vec![TargetConfig {
                    groups: Some(BTreeSet::from([1, 4])),
                    ..target("iqn.2026-11.x:t", &["a"])
                }],
                "no portal is in group 4 (groups: 1)",
            ),
            (
                vec![ram("a")],
                vec![TargetConfig {
                    groups: Some(BTreeSet::new()),
                    ..target("iqn.2026-11.x:t", &["a"])
                }],
                "groups is empty",
            ),
            (
                vec![ram("a")],
                vec![TargetConfig {
                    groups: Some(BTreeSet::from([2])),
                    preferred: Some(1),
                    ..target("iqn.2026-11.x:t", &["a"])
                }],
                "has group 1, which groups does not have",
            ),
        ] {
            let error = Config { volumes, targets, ..Config::default() }.finish();
            let message = error.expect_err(reported).to_string();
            assert!(message.contains(reported), "{message}");
        }
    }
}
