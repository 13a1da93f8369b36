//! Logical units of other servers: see docs/decisions/0021-remote-volumes.md.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::{Layer, Reply, Request, Store, Usability};
use sarsen_initiator::{IscsiStore, PathSelector, PathStatus, SessionError, SessionOptions, Url};
use sarsen_scsi::{MetadataKind, MetadataStore};
use sarsen_volume::{Aspect, Health, VolumeHealth};
use sarsen_wire::iscsi::Isid;
use sha2::{Digest as _, Sha256};
use tracing::warn;

use super::encrypted::now;
use super::{MarkRule, OpenMode, StoreCores, StoreError};
use crate::config::{AccountConfig, VolumeConfig};
use crate::model::{PathWait, RemoteUrl};

/// How long commands wait for a path by default. Initiators abort a command after 30 seconds or later.
const DEFAULT_PATH_WAIT: Duration = Duration::from_secs(30);
/// The time limit of each login. The server waits for it when it starts.
const LOGIN_LIMIT: Duration = Duration::from_secs(5);
/// The name of the initiator, without the part that differs between machines.
const INITIATOR_PREFIX: &str = "iqn.2026-01.invalid.example:sarsen.initiator.";

/// What the store of a remote volume needs beside the volume's configuration.
#[derive(Clone)]
pub(crate) struct RemoteAccess {
    pub(crate) cores: StoreCores,
    /// The identity of this machine.
    pub(crate) machine: String,
    /// The accounts that its URL names.
    pub(crate) accounts: Vec<AccountConfig>,
    /// The units that this server has open.
    pub(crate) units: Arc<OpenUnits>,
}

/// The identifiers of the units that are open, with their URLs: two stores of one unit would overwrite each other's data.
#[derive(Default)]
pub(crate) struct OpenUnits(Mutex<BTreeMap<String, String>>);

/// A unit that is open, until this is dropped.
struct OpenUnit {
    units: Arc<OpenUnits>,
    identifier: String,
}

impl OpenUnit {
    /// Notes a unit. The error is the URL of the store that has it.
    fn new(units: &Arc<OpenUnits>, identifier: &str, url: &str) -> Result<Self, String> {
        match units.0.lock().entry(identifier.to_owned()) {
            Entry::Occupied(other) => Err(other.get().clone()),
            Entry::Vacant(free) => {
                free.insert(url.to_owned());
                Ok(Self { units: units.clone(), identifier: identifier.to_owned() })
            }
        }
    }
}

impl Drop for OpenUnit {
    fn drop(&mut self) {
        self.units.0.lock().remove(&self.identifier);
    }
}

/// A remote logical unit that is to be opened.
pub(crate) struct RemoteUnit<'a> {
    pub(crate) url: &'a RemoteUrl,
    /// The text from which the ISIDs are derived.
    pub(crate) identity: &'a str,
    pub(crate) initiator_name: Option<&'a str>,
    pub(crate) only_these_portals: bool,
    pub(crate) path_selector: Option<PathSelector>,
    pub(crate) path_wait: Option<PathWait>,
    pub(crate) read_only: bool,
}

impl<'a> RemoteUnit<'a> {
    /// Returns the unit of a volume, if it is a remote one.
    pub(super) fn of_volume(volume: &'a VolumeConfig) -> Option<Self> {
        Some(Self {
            url: volume.remote.as_deref()?,
            identity: volume.serial.as_deref().unwrap_or(&volume.name),
            initiator_name: volume.initiator_name.as_deref(),
            only_these_portals: volume.only_these_portals,
            path_selector: volume.path_selector,
            path_wait: volume.path_wait,
            read_only: volume.read_only,
        })
    }
}

/// A remote logical unit. When this is dropped, its sessions log out.
pub(crate) struct RemoteStore {
    unit: Arc<IscsiStore>,
    inner: Arc<dyn Store>,
    cores: StoreCores,
    number: usize,
    open: Option<OpenUnit>,
}

impl RemoteStore {
    /// Logs in, examines the unit, and watches its paths from then on. Blocks the thread, which must not be a core.
    pub(super) fn open(
        remote: &RemoteUnit<'_>,
        access: &RemoteAccess,
    ) -> Result<(Arc<Self>, Arc<Health>), StoreError> {
        let name = remote.url.to_string();
        let options = options(remote, &access.machine);
        let number = usize::from(options.isid.0[5]);
        let url = url(remote.url, access)?;
        let place = name.clone();
        let unit = access.cores.run_by(number, move || async move {
            let failed = |source| StoreError::remote(&place, source);
            let unit = IscsiStore::connect(&url, &options).await.map_err(failed)?;
            // A login ends the session that an earlier run of this server may have had through its portal.
            unit.attempt_paths(LOGIN_LIMIT).await;
            let unit = Arc::new(unit);
            let health = Arc::new(Health::new(unit.status().clone()));
            let watch = watch(Arc::downgrade(&unit), Arc::downgrade(&health), place);
            tokio::task::spawn_local(watch);
            Ok((unit, health))
        });
        let (unit, health) = unit?;
        if unit.characteristics().read_only && !remote.read_only {
            let problem = "is read-only: only a volume with read-only = true can be that unit";
            return Err(StoreError::RemoteUnit { url: name, problem: problem.into() });
        }
        let (inner, cores) = (unit.clone(), access.cores.clone());
        let mut store = Self { unit, inner, cores, number, open: None };
        if let Some(identifier) = store.identifier() {
            store.open = Some(OpenUnit::new(&access.units, &identifier, &name).map_err(|other| {
                let problem = format!(
                    "is the same unit ({identifier}) as {other}, which is in use: only one volume or pool can have it. Servers \
                     without a state (`--state`) on one machine give volumes of one name the same identifier"
                );
                StoreError::RemoteUnit { url: name, problem }
            })?);
        }
        Ok((Arc::new(store), health))
    }

    /// Returns whether a path to the unit works.
    pub(super) fn is_reachable(&self) -> bool {
        self.unit.paths().iter().any(|path| path.entry.is_some())
    }

    /// Returns the identifier of the unit.
    fn identifier(&self) -> Option<String> {
        self.unit.identifier()
    }
}

impl Layer for RemoteStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        _: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        submit(&*self.inner)
    }
}

impl Drop for RemoteStore {
    fn drop(&mut self) {
        let unit = self.unit.clone();
        self.cores.spawn_by(self.number, move || async move {
            if let Err(error) = unit.logout().await {
                warn!(%error, "a session of a remote volume did not log out");
            }
        });
    }
}

/// The identifier of a unit that is not in the records of its volume yet.
pub(crate) struct NewUnit {
    identifier: String,
    metadata_store: Arc<dyn MetadataStore>,
}

impl NewUnit {
    /// Saves the identifier durably. Blocks the thread, which must not be a core.
    pub(crate) fn keep(&self) -> Result<(), StoreError> {
        let content = self.identifier.clone().into_bytes();
        let saved = now(self.metadata_store.save(MetadataKind::RemoteUnit, content));
        saved.map_err(|source| StoreError::State { source })
    }
}

/// Refuses another unit than the one that the volume had. Returns the identifier of a unit that is new for the volume. The same
/// URL may lead to another unit when the other server has numbered its units anew.
pub(crate) fn check_unit(
    volume: &VolumeConfig,
    remote: &RemoteStore,
    metadata_store: Option<&Arc<dyn MetadataStore>>,
    open_mode: OpenMode,
) -> Result<Option<NewUnit>, StoreError> {
    let (Some(metadata_store), Some(identifier)) = (metadata_store, remote.identifier()) else {
        return Ok(None);
    };
    let known = metadata_store.load(MetadataKind::RemoteUnit);
    let known = known.map_err(|source| StoreError::State { source })?;
    let known = known.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let is_confirmed = matches!(open_mode.mark_rule(), MarkRule::Confirm | MarkRule::Give);
    match known {
        Some(known) if known == identifier => Ok(None),
        Some(known) if !is_confirmed => {
            let problem = format!(
                "is another unit ({identifier}) than the one that volume {} had ({known}): correct its remote, or run \
                 `sarsen volume reattach {}` to serve this one",
                volume.name, volume.name
            );
            let url = volume.remote.as_deref().map(ToString::to_string).unwrap_or_default();
            Err(StoreError::RemoteUnit { url, problem })
        }
        Some(_) | None => {
            let metadata_store = metadata_store.clone();
            Ok(Some(NewUnit { identifier, metadata_store }))
        }
    }
}

/// Returns the URL with the secrets of its accounts.
fn url(remote: &RemoteUrl, access: &RemoteAccess) -> Result<Url, StoreError> {
    let secret = |name: &Option<String>| {
        let Some(name) = name else { return Ok(None) };
        let account = access.accounts.iter().find(|account| account.name == *name);
        let secret = account.map(AccountConfig::read_secret).transpose();
        secret.map_err(|invalid| StoreError::RemoteUnit {
            url: remote.to_string(),
            problem: format!("cannot be reached: {}", invalid.message),
        })
    };
    let mut url = remote.url().clone();
    url.chap.secret = secret(&url.chap.user)?;
    url.chap.target_secret = secret(&url.chap.target_user)?;
    Ok(url)
}

fn options(remote: &RemoteUnit<'_>, machine: &str) -> SessionOptions {
    let own_name = || {
        let digest = Sha256::digest(machine);
        digest[..6].iter().fold(INITIATOR_PREFIX.to_owned(), |mut name, byte| {
            let _ = write!(name, "{byte:02x}");
            name
        })
    };
    let digest = Sha256::digest(format!("{machine}/{}", remote.identity));
    // The random format (RFC 7143 §11.12.5). It is the same one after a restart.
    let mut isid = [0x80; 6];
    isid[1..].copy_from_slice(&digest[..5]);
    let wait = remote.path_wait.map_or(DEFAULT_PATH_WAIT, |wait| wait.duration());
    SessionOptions {
        initiator_name: remote.initiator_name.map_or_else(own_name, ToOwned::to_owned),
        isid: Isid(isid),
        reconnect_limit: Some(wait),
        discovers_portals: !remote.only_these_portals,
        path_selector: remote.path_selector.unwrap_or_default(),
        answer_limit: LOGIN_LIMIT,
        ..SessionOptions::default()
    }
}

/// Reports the state of the paths as the health of the volume, until the store is dropped.
async fn watch(unit: Weak<IscsiStore>, health: Weak<Health>, url: String) {
    loop {
        let changed = {
            let (Some(unit), Some(health)) = (unit.upgrade(), health.upgrade()) else { return };
            let changed = unit.paths_changed();
            health.report(Aspect::Backing, health_of(&unit, &url));
            changed
        };
        changed.await;
    }
}

fn health_of(unit: &IscsiStore, url: &str) -> VolumeHealth {
    let paths = unit.paths();
    let lost = || {
        let lost = paths.iter().filter(|path| path.entry.is_none());
        let lost = lost.map(|PathStatus { portal, failure, .. }| match failure {
            Some(error) => format!("{portal}: {error}"),
            None => format!("{portal} is not logged in yet"),
        });
        lost.collect::<Vec<_>>().join("; ")
    };
    if unit.status().usability() == Usability::OutOfService {
        let reason = format!(
            "is out of service: no path to {url} works ({}). It is served again when one works; after a changed \
             account or unit, run `sarsen volume reattach` for it",
            lost()
        );
        return VolumeHealth::OutOfService { reason };
    }
    if paths.iter().all(|path| path.entry.is_some()) {
        return VolumeHealth::Online;
    }
    let (count, left) = (paths.len(), paths.iter().filter(|path| path.entry.is_some()).count());
    let reason = match left {
        0 => format!("waits for a path to {url} ({})", lost()),
        _ => format!("has {left} of {count} paths to {url} ({})", lost()),
    };
    VolumeHealth::Degraded { reason }
}

impl StoreError {
    fn remote(url: &str, source: SessionError) -> Self {
        Self::RemoteUnit { url: url.to_owned(), problem: format!("cannot be used: {source}") }
    }
}
