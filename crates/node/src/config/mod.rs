//! The configuration of the server: portals, volumes, targets. It is parsed once into a valid value, from a TOML file
//! ([`parse_file`]) or from flags ([`parse_volume`]). All other code relies on its validity.

mod access;
mod api;
mod diff;
mod file;
mod host;
mod identity;
mod isns;
mod needs;
mod reference;
mod spec;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sarsen_io::cores::FileEngine;
use sarsen_io::spin::Spin;
use sarsen_scsi::MAXIMUM_TARGET_PORTS;

pub(crate) use self::api::DEFAULT_API_PORT;
pub use self::api::{ApiConfig, parse_api};
pub(crate) use self::diff::Different;
pub use self::file::{Source, parse_file};
pub use self::isns::{IsnsConfig, parse_isns};
pub(crate) use self::needs::PortalRequirement;
pub(crate) use self::reference::tables as reference_tables;
pub use self::reference::{KeyReference, TableReference};
pub(crate) use self::spec::without_secrets;
pub use self::spec::{parse_account, parse_pool, parse_volume};
pub use crate::model::document::{
    Account as AccountConfig, Discovery, Host as HostConfig, Pool as PoolConfig, Portal, Redirect,
    Rule as RuleConfig, ShownLuns, Target as TargetConfig, Tls as TlsConfig,
    Volume as VolumeConfig,
};
pub use crate::model::{
    CacheMode, CertificatePattern, DEFAULT_GROUP, DEFAULT_WEIGHT, FaultConfig, Invalid, Limits,
    Login, NamePattern, Network, Rates, StoreKind, is_iscsi_name_byte, parse_nbd_portal,
    parse_network, parse_portal, parse_redirect_address, parse_size, render_size,
    target_name_fault,
};
pub(crate) use crate::model::{DEFAULT_PORTAL, LARGEST_LUN, nearest, read_private};
use crate::model::{FieldError, Key, ObjectKind, RemoteUrl};
pub use crate::protocol::Protocol;

/// The naming authority of targets without a configured name. Each such volume has its own target, named
/// `iqn.2026-11.io.sarsen:` and the volume's name.
pub const DEFAULT_TARGET_PREFIX: &str = "iqn.2026-11.io.sarsen:";
/// Maximum number of volumes of one server.
pub const MAX_VOLUMES: usize = 16_384;

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
    /// Pools, by unique names.
    pub pools: Vec<PoolConfig>,
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
    /// The access rules of discovery sessions.
    pub discovery: Discovery,
    /// Accounts that may log in everywhere, in addition to those that each target and discovery list.
    pub chap: Vec<String>,
    /// The iSNS server at which targets are registered.
    pub isns: Option<IsnsConfig>,
    /// The limits of the resources that initiators may use.
    pub limits: Limits,
    /// The network address of the API and the console. Default: none.
    pub api: Option<ApiConfig>,
    /// The folder of the desired state: volumes, targets, accounts and all other objects that change while the server
    /// runs. Without a folder, the server runs by this configuration alone.
    pub state: Option<PathBuf>,
    /// The file that it was read from, for the places of errors.
    pub source: Option<Arc<Source>>,
}

/// Returns the groups of portals. A target has a port for each group, even if only NBD clients reach it.
pub(crate) fn target_port_groups<'a>(
    portals: impl IntoIterator<Item = &'a Portal>,
) -> BTreeSet<u16> {
    portals.into_iter().map(Portal::group).collect()
}

/// Refuses more volumes than a server can have.
pub(crate) fn check_volume_count(volumes: usize) -> Result<(), Invalid> {
    if volumes > MAX_VOLUMES {
        return wrong(format!(
            "the configuration has {volumes} volumes; the maximum is {MAX_VOLUMES}"
        ));
    }
    Ok(())
}

fn wrong<T>(message: impl Into<String>) -> Result<T, Invalid> {
    Err(Invalid::of_all(message))
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
}

/// Names the object as the place of the error.
impl From<Invalid> for ConfigError {
    fn from(invalid: Invalid) -> Self {
        let place = match &invalid.key {
            Some(key) if key.name.is_empty() => key.kind.word().to_owned(),
            Some(key) => format!("{} {}", key.kind.word(), key.name),
            None => "configuration".to_owned(),
        };
        let message = invalid.message.strip_prefix(&format!("{place}: ")).map(str::to_owned);
        Self::new(place, message.unwrap_or(invalid.message))
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
            pools: Vec::new(),
            volumes: Vec::new(),
            targets: Vec::new(),
            control: None,
            accounts: Vec::new(),
            hosts: Vec::new(),
            discovery: Discovery::default(),
            chap: Vec::new(),
            isns: None,
            limits: Limits::default(),
            api: None,
            state: None,
            source: None,
        }
    }
}

impl Config {
    /// Completes and checks the configuration. Names are unique and valid. Each volume is in exactly one target;
    /// unlisted volumes get their own target. At least one volume exists. Accounts and rules fit the targets.
    pub fn finish(self) -> Result<Self, ConfigError> {
        self.placing_errors(Self::finish_alone)
    }

    fn finish_alone(mut self) -> Result<Self, Invalid> {
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
        self.finish_with(Some(&BTreeSet::new()))
    }

    /// Checks the configuration of a server that has a state. It must not contain objects that belong to the state. It
    /// is finished when the state is known.
    fn check_beside_state(self) -> Result<Self, Invalid> {
        let given = [
            ("pools", !self.pools.is_empty()),
            ("volumes", !self.volumes.is_empty()),
            ("targets", !self.targets.is_empty()),
            ("accounts", !self.accounts.is_empty() || !self.chap.is_empty()),
            ("hosts", !self.hosts.is_empty()),
            ("rules of discovery", self.discovery != Discovery::default()),
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
        self.placing_errors(|config| config.finish_with(Some(&BTreeSet::new())))
    }

    /// Returns errors with their lines of the configuration file.
    fn placing_errors(
        self,
        finish: impl FnOnce(Self) -> Result<Self, Invalid>,
    ) -> Result<Self, ConfigError> {
        let source = self.source.clone();
        finish(self).map_err(|invalid| Source::error(source.as_deref(), invalid))
    }

    /// Returns an error in an object with its line of the configuration file.
    pub(crate) fn error(&self, invalid: Invalid) -> ConfigError {
        Source::error(self.source.as_deref(), invalid)
    }

    /// Completes and checks the configuration, where targets may have needs that are `unmet` already; `None` permits
    /// every need.
    pub(crate) fn finish_with(
        mut self,
        unmet: Option<&BTreeSet<PortalRequirement>>,
    ) -> Result<Self, Invalid> {
        check_volume_count(self.volumes.len())?;
        self.check_objects()?;
        self.volumes.iter_mut().for_each(VolumeConfig::complete);
        if self.listen.is_empty() {
            self.listen = vec![Portal::default()];
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
            if !names.insert(volume.name.as_str()) {
                let message = format!("two volumes are named {}: rename one", volume.name);
                return Err(Invalid::new(Key::new(ObjectKind::Volume, &volume.name), "", message));
            }
        }
        identity::check_unique(&self.volumes)?;
        self.check_pools()?;
        self.check_remotes()?;
        let mut target_names = HashSet::new();
        let mut exported = HashMap::new();
        for target in &self.targets {
            let wrong = |field: String, message: String| {
                Err(Invalid::new(Key::new(ObjectKind::Target, &target.name), field, message))
            };
            if !target_names.insert(target.name.as_str()) {
                let message = format!("two targets are named {}: rename one", target.name);
                return wrong(String::new(), message);
            }
            for (lun, volume) in target.luns.iter() {
                let field = format!("luns.{lun}");
                if !names.contains(volume.as_str()) {
                    let hint = nearest(volume, names.iter().copied());
                    let message = format!(
                        "target {}: there is no volume {volume}{hint}; correct luns, or add the volume",
                        target.name
                    );
                    return wrong(field, message);
                }
                if let Some(other) = exported.insert(volume.as_str(), target.name.as_str()) {
                    let message = format!(
                        "volume {volume} is listed twice, in {other} and in {}; a volume can have one LUN of one \
                         target",
                        target.name
                    );
                    return wrong(field, message);
                }
            }
        }
        self.finish_access()?;
        if let Some(may_be_unmet) = unmet
            && let Some(unmet) = self.unmet_needs().find(|one| !may_be_unmet.contains(&one.need))
        {
            return Err(unmet.invalid());
        }
        Ok(self)
    }

    /// Returns the pool of a volume, if it has one, and the serial number of the volume whose snapshot it is, or begins with.
    pub(crate) fn pool_of(&self, volume: &VolumeConfig) -> Option<(PoolConfig, Option<String>)> {
        let name = volume.pool.as_ref()?;
        let pool = self.pools.iter().find(|pool| pool.name == *name)?;
        let snapshot = volume.snapshot.as_ref().or(volume.clone_of.as_ref());
        let origin = snapshot.and_then(|snapshot| self.serial_of(&snapshot.volume));
        Some((pool.clone(), origin.map(str::to_owned)))
    }

    /// Returns the accounts with which a volume, or its pool, logs in elsewhere.
    pub(crate) fn accounts_of(&self, volume: &VolumeConfig) -> Vec<AccountConfig> {
        let pool = self.pool_of(volume).map(|(pool, _)| pool.remotes()).unwrap_or_default();
        let urls = || volume.remote.as_deref().into_iter().chain(&pool);
        let is_named = |account: &&AccountConfig| {
            urls().flat_map(RemoteUrl::accounts).any(|name| name == account.name)
        };
        self.accounts.iter().filter(is_named).cloned().collect()
    }

    /// Checks that remote volumes and devices are different units, and that their accounts exist.
    fn check_remotes(&self) -> Result<(), Invalid> {
        let volumes = self.volumes.iter().filter_map(|volume| {
            let key = Key::new(ObjectKind::Volume, &volume.name);
            Some((key, "remote", RemoteUrl::clone(volume.remote.as_deref()?)))
        });
        let devices = self.pools.iter().flat_map(|pool| {
            let key = Key::new(ObjectKind::Pool, &pool.name);
            pool.remotes().into_iter().map(move |url| (key.clone(), "devices", url))
        });
        let mut units = HashMap::new();
        for (key, field, remote) in volumes.chain(devices) {
            let own = format!("{} {}", key.kind.word(), key.name);
            let exists = |name: &&str| self.accounts.iter().any(|account| account.name == **name);
            if let Some(missing) = remote.accounts().find(|name| !exists(name)) {
                let hint = nearest(missing, self.accounts.iter().map(|one| one.name.as_str()));
                let message = format!(
                    "{own}: there is no account {missing}{hint}; correct the user of the URL, or create the account"
                );
                return Err(Invalid::new(key, field, message));
            }
            // Servers may have targets of one name, so the portals count.
            for unit in remote.places() {
                if let Some(other) = units.insert(unit.clone(), own.clone()) {
                    let message = format!(
                        "{other} and {own} both have {unit}: only one can write to it; correct one of them"
                    );
                    return Err(Invalid::new(key, field, message));
                }
            }
        }
        Ok(())
    }

    /// Returns the serial number of a volume.
    pub(crate) fn serial_of(&self, volume: &str) -> Option<&str> {
        self.volumes.iter().find(|one| one.name == volume)?.serial.as_deref()
    }

    /// Checks that pools have different names and devices, and that the pools of volumes exist.
    fn check_pools(&self) -> Result<(), Invalid> {
        let mut names = HashSet::new();
        let mut devices: HashMap<&Path, &str> = HashMap::new();
        for pool in &self.pools {
            let wrong = |field: &str, message: String| {
                Err(Invalid::new(Key::new(ObjectKind::Pool, &pool.name), field, message))
            };
            if !names.insert(pool.name.as_str()) {
                return wrong("", format!("two pools are named {}: rename one", pool.name));
            }
            for device in &pool.devices {
                if let Some(other) = devices.insert(device, &pool.name) {
                    let (device, name) = (device.display(), &pool.name);
                    let message =
                        format!("pools {other} and {name} both have {device}; correct one of them");
                    return wrong("devices", message);
                }
            }
        }
        for volume in &self.volumes {
            let wrong = |field: &str, message: String| {
                Err(Invalid::new(Key::new(ObjectKind::Volume, &volume.name), field, message))
            };
            if let Some(pool) = &volume.pool
                && !names.contains(pool.as_str())
            {
                let hint = nearest(pool, names.iter().copied());
                let message = format!(
                    "there is no pool {pool}{hint}; correct the name, or create the pool with `sarsen pool create`"
                );
                return wrong("pool", message);
            }
            if let Some(path) = &volume.path
                && let Some(pool) = devices.get(path.as_path())
            {
                let message =
                    format!("{} is a device of pool {pool}; choose another path", path.display());
                return wrong("path", message);
            }
        }
        Ok(())
    }

    /// Adds a target for each volume that no target lists.
    fn add_default_targets(&mut self) -> Result<(), Invalid> {
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
                let message = format!(
                    "volume {} is in no target, and its default target {name} exists without it; add it to a target",
                    volume.name
                );
                return Err(Invalid::new(Key::new(ObjectKind::Volume, &volume.name), "", message));
            }
            let luns = [(0, volume.name.clone())].into();
            added.push(TargetConfig { name, luns, ..TargetConfig::default() });
        }
        self.targets.extend(added);
        Ok(())
    }

    /// Checks each object by itself.
    fn check_objects(&self) -> Result<(), Invalid> {
        let of = |kind: ObjectKind, name: &str, checked: Result<(), FieldError>| {
            checked.map_err(|error| error.of(Key::new(kind, name)))
        };
        for volume in &self.volumes {
            of(ObjectKind::Volume, &volume.name, volume.check())?;
        }
        for pool in &self.pools {
            of(ObjectKind::Pool, &pool.name, pool.check())?;
        }
        for portal in &self.listen {
            of(ObjectKind::Portal, portal.address.as_str(), portal.check())?;
        }
        for account in &self.accounts {
            of(ObjectKind::Account, &account.name, account.check())?;
        }
        for host in &self.hosts {
            of(ObjectKind::Host, &host.name, host.check())?;
        }
        for target in &self.targets {
            of(ObjectKind::Target, &target.name, target.check())?;
        }
        of(ObjectKind::Discovery, "", self.discovery.check())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sarsen_scsi::AccessState;

    use super::*;
    use crate::model::ByteSize;

    fn ram(name: &str) -> VolumeConfig {
        VolumeConfig {
            name: name.into(),
            store: StoreKind::Ram,
            size: ByteSize::new(1 << 20),
            ..VolumeConfig::default()
        }
    }

    fn target(name: &str, luns: &[&str]) -> TargetConfig {
        TargetConfig {
            name: name.into(),
            luns: (0..).zip(luns.iter().map(|&lun| lun.into())).collect::<BTreeMap<_, _>>().into(),
            ..TargetConfig::default()
        }
    }

    #[test]
    fn a_volume_without_a_target_gets_one_of_its_own() {
        let config = Config { volumes: vec![ram("a"), ram("b")], ..Config::default() };
        let config = config.finish().expect("valid");
        assert_eq!(config.targets[1].name, "iqn.2026-11.io.sarsen:b");
        assert_eq!(config.targets[1].luns, [(0, "b".into())].into());
        assert_eq!(config.listen.len(), 1);
    }

    #[test]
    fn managed_configuration_needs_no_targets_or_volumes() {
        let empty = Config::default().finish_managed().expect("valid");
        assert_eq!((empty.targets.len(), empty.listen.len()), (0, 1));
        let target = TargetConfig {
            name: "iqn.2026-11.x:t".into(),
            luns: [(7, "a".into())].into(),
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
