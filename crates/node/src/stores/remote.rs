//! Disks of other servers: logical units (docs/decisions/0021-remote-volumes.md) and exports (docs/decisions/0023-nbd-remotes.md).

use std::fmt::Write as _;
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fs, io};

use parking_lot::Mutex;
use sarsen_block::{Layer, LocalFuture, Reply, Request, Store};
use sarsen_initiator::nbd::{NbdError, NbdOptions, NbdPlace, NbdStore, NbdUrl};
use sarsen_initiator::{
    IscsiStore, LOGICAL_UNIT_NOT_SUPPORTED, PathSelector, PathStatus, RemoteDisk, SessionError,
    SessionOptions, Url,
};
use sarsen_io::name_lock::NameLock;
use sarsen_scsi::{MetadataKind, MetadataStore};
use sarsen_volume::{Aspect, Health, VolumeHealth};
use sarsen_wire::iscsi::Isid;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::on_cores::now;
use super::{MarkRule, OpenMode, StoreCores, StoreError};
use crate::config::{AccountConfig, VolumeConfig};
use crate::model::{PathWait, RemotePlace, RemoteUrl};
use crate::schema::VolumePath;

/// How long commands wait for a path by default. Initiators abort a command after 30 seconds or later.
const DEFAULT_PATH_WAIT: Duration = Duration::from_secs(30);
/// The time limit of each login. The server waits for it when it starts.
const LOGIN_LIMIT: Duration = Duration::from_secs(5);
/// The record of a unit that has neither an NAA identifier nor a serial number.
const NAMELESS: &str = "without identifier";
/// How long a unit may stay locked after its volume was closed: its sessions log out.
const LOCK_LIMIT: Duration = Duration::from_secs(6);
/// The name of the initiator, without the part that differs between machines.
const INITIATOR_PREFIX: &str = "iqn.2026-01.invalid.example:sarsen.initiator.";

/// What the store of a remote volume needs beside the volume's configuration.
#[derive(Clone)]
pub(crate) struct RemoteAccess {
    pub(crate) cores: StoreCores,
    /// The identity of this machine.
    pub(crate) machine: String,
    /// The accounts that URLs may name. They change while a pool is open.
    pub(crate) accounts: Arc<Mutex<Vec<AccountConfig>>>,
}

/// A remote disk that is to be opened.
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

/// A remote disk. When this is dropped, its sessions log out, or its connections end.
pub(crate) struct RemoteStore {
    disk: Arc<dyn RemoteDisk>,
    inner: Arc<dyn Store>,
    cores: StoreCores,
    number: usize,
    /// `None` for an export.
    initiator_name: Option<String>,
    url: String,
    /// Held until the sessions have logged out.
    locks: Vec<NameLock>,
    logged_out: watch::Sender<bool>,
}

impl RemoteStore {
    /// Connects to the disk, examines it, and watches its paths from then on. Blocks the thread, which must not be a core.
    pub(crate) fn open(
        remote: &RemoteUnit<'_>,
        access: &RemoteAccess,
    ) -> Result<(Arc<Self>, Arc<Health>), StoreError> {
        let name = remote.url.to_string();
        // Before the login, which would end the sessions of another program.
        let mut places = remote.url.places();
        if let RemotePlace::Nbd(url) = remote.url.place()
            && let NbdPlace::Socket(path) = &url.place
            && let Ok(path) = fs::canonicalize(path)
        {
            // A socket may be reached by several paths.
            places = vec![NbdUrl { place: NbdPlace::Socket(path), ..url.clone() }.to_string()];
        }
        let locks = places.iter().map(|place| lock(remote.url, place));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        let connector = Connector::of(remote, access)?;
        let (number, initiator_name) = (connector.core_number(), connector.initiator_name());
        let place = name.clone();
        let opened = access.cores.run_by(number, move || async move {
            let disk = connector.connect(&place).await?;
            let health = Arc::new(Health::new(disk.status().clone()));
            let watch = watch(Arc::downgrade(&disk), Arc::downgrade(&health), place);
            tokio::task::spawn_local(watch);
            Ok((disk, health))
        });
        let (disk, health) = opened?;
        let (inner, cores) = (disk.clone(), access.cores.clone());
        // From here on, the end of the store logs out.
        let logged_out = watch::Sender::new(false);
        let url = name.clone();
        let mut store = Self { disk, inner, cores, number, initiator_name, url, locks, logged_out };
        // An export has no other name than its place.
        if let RemotePlace::Iscsi(_) = remote.url.place() {
            let unit = store.identifier().unwrap_or_else(|| remote.url.disk_name());
            store.locks.push(lock(remote.url, &unit)?);
        }
        if store.disk.characteristics().read_only && !remote.read_only {
            let problem = "is read-only: a volume or an attachment of it must be read-only";
            return Err(StoreError::RemoteUnit { url: name, problem: problem.into() });
        }
        Ok((Arc::new(store), health))
    }

    /// Returns whether there are writes that a flush has not made durable yet.
    pub(crate) fn has_kept_writes(&self) -> bool {
        self.disk.has_kept_writes()
    }

    /// Returns whether a flush is neither possible nor needed.
    pub(crate) fn has_nothing_to_flush(&self) -> bool {
        !self.disk.paths().iter().any(|path| path.is_active) && !self.has_kept_writes()
    }

    /// Returns whether a path to the unit works.
    pub(super) fn is_reachable(&self) -> bool {
        self.disk.paths().iter().any(|path| path.entry.is_some())
    }

    /// Returns its paths, for reports.
    pub(crate) fn paths(&self) -> Vec<VolumePath> {
        let path = |PathStatus { portal, entry, is_active, failure }: PathStatus| VolumePath {
            portal,
            logged_in_at: entry,
            is_active,
            problem: failure,
        };
        self.disk.paths().into_iter().map(path).collect()
    }

    /// Returns the name with which it logs in, if it does.
    pub(crate) fn initiator_name(&self) -> Option<&str> {
        self.initiator_name.as_deref()
    }

    /// Returns the health of its paths.
    pub(crate) fn path_health(&self) -> VolumeHealth {
        health_of(&*self.disk, &self.url)
    }

    /// Waits for the next change of its paths after this call.
    pub(crate) fn paths_changed(&self) -> LocalFuture<()> {
        self.disk.paths_changed()
    }

    /// Returns a value that changes to true when the sessions have logged out, after this was dropped.
    pub(crate) fn logged_out(&self) -> watch::Receiver<bool> {
        self.logged_out.subscribe()
    }

    /// Returns the identifier of the disk, if it has one.
    pub(crate) fn identifier(&self) -> Option<String> {
        self.disk.identifier()
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
        let (disk, locks) = (self.disk.clone(), std::mem::take(&mut self.locks));
        let logged_out = self.logged_out.clone();
        self.cores.spawn_by(self.number, move || async move {
            let _locked = locks;
            disk.leave().await;
            logged_out.send_replace(true);
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
    let Some(metadata_store) = metadata_store else { return Ok(None) };
    let identifier = remote.identifier().unwrap_or_else(|| NAMELESS.to_owned());
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

/// The URL of a remote disk, and the options with which it is connected.
enum Connector {
    Iscsi(Url, Box<SessionOptions>),
    Nbd(NbdUrl, NbdOptions),
}

impl Connector {
    fn of(remote: &RemoteUnit<'_>, access: &RemoteAccess) -> Result<Self, StoreError> {
        match remote.url.place() {
            RemotePlace::Iscsi(url) => {
                let options = options(remote, &access.machine);
                Ok(Self::Iscsi(with_secrets(url, remote.url, access)?, Box::new(options)))
            }
            RemotePlace::Nbd(url) => {
                let options =
                    NbdOptions { reconnect_limit: path_wait(remote), ..NbdOptions::default() };
                Ok(Self::Nbd(url.clone(), options))
            }
        }
    }

    /// Returns a number that chooses the core which drives the connections.
    fn core_number(&self) -> usize {
        match self {
            Self::Iscsi(_, options) => usize::from(options.isid.0[5]),
            Self::Nbd(url, _) => usize::from(Sha256::digest(url.to_string())[0]),
        }
    }

    fn initiator_name(&self) -> Option<String> {
        match self {
            Self::Iscsi(_, options) => Some(options.initiator_name.clone()),
            Self::Nbd(..) => None,
        }
    }

    /// Connects to the disk. Errors name it by `place`.
    async fn connect(self, place: &str) -> Result<Arc<dyn RemoteDisk>, StoreError> {
        match self {
            Self::Iscsi(url, options) => {
                let failed = |source| StoreError::remote(place, &options.initiator_name, &source);
                let unit = IscsiStore::connect(&url, &options).await.map_err(failed)?;
                // A login ends the session that an earlier run of this server may have had through its portal.
                unit.attempt_paths(LOGIN_LIMIT).await;
                unit.end_earlier_sessions(&url, &options).await;
                Ok(Arc::new(unit))
            }
            Self::Nbd(url, options) => {
                let failed = |source: NbdError| {
                    let problem = format!("cannot be used: {}", source.reason());
                    StoreError::RemoteUnit { url: place.to_owned(), problem }
                };
                Ok(Arc::new(NbdStore::connect(&url, options).await.map_err(failed)?))
            }
        }
    }
}

/// Returns the URL with the secrets of its accounts.
fn with_secrets(url: &Url, remote: &RemoteUrl, access: &RemoteAccess) -> Result<Url, StoreError> {
    let secret = |name: &Option<String>| {
        let Some(name) = name else { return Ok(None) };
        let accounts = access.accounts.lock();
        let secret = match accounts.iter().find(|account| account.name == *name) {
            Some(account) => account.read_secret().map_err(|invalid| invalid.message),
            None => Err(format!(
                "there is no account {name} here. Accounts are those of a running server; commands without one have none"
            )),
        };
        secret.map(Some).map_err(|problem| StoreError::RemoteUnit {
            url: remote.to_string(),
            problem: format!("cannot be used: {problem}"),
        })
    };
    let mut url = url.clone();
    url.chap.secret = secret(&url.chap.user)?;
    url.chap.target_secret = secret(&url.chap.target_user)?;
    Ok(url)
}

/// Locks a unit, by its identifier or by its place, against other volumes, pools and programs of this machine: two stores of one unit
/// would overwrite each other's data, and end each other's sessions.
fn lock(url: &RemoteUrl, unit: &str) -> Result<NameLock, StoreError> {
    let name = hexadecimal("sarsen-unit-", &Sha256::digest(unit)[..16]);
    NameLock::take_within(&name, LOCK_LIMIT).map_err(|error| {
        let url = url.to_string();
        match error.kind() {
            io::ErrorKind::AddrInUse => StoreError::RemoteUnitInUse { url, unit: unit.to_owned() },
            _ => StoreError::RemoteUnit { url, problem: format!("cannot be locked: {error}") },
        }
    })
}

/// Returns a name that ends with the digits of these bytes.
fn hexadecimal(prefix: &str, bytes: &[u8]) -> String {
    bytes.iter().fold(prefix.to_owned(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

fn path_wait(remote: &RemoteUnit<'_>) -> Duration {
    remote.path_wait.map_or(DEFAULT_PATH_WAIT, |wait| wait.duration())
}

fn options(remote: &RemoteUnit<'_>, machine: &str) -> SessionOptions {
    let own_name = || hexadecimal(INITIATOR_PREFIX, &Sha256::digest(machine)[..6]);
    let digest = Sha256::digest(format!("{machine}/{}", remote.identity));
    // The random format (RFC 7143 §11.12.5). It is the same one after a restart.
    let mut isid = [0x80; 6];
    isid[1..].copy_from_slice(&digest[..5]);
    SessionOptions {
        initiator_name: remote.initiator_name.map_or_else(own_name, ToOwned::to_owned),
        isid: Isid(isid),
        reconnect_limit: Some(path_wait(remote)),
        discovers_portals: !remote.only_these_portals,
        path_selector: remote.path_selector.unwrap_or_default(),
        answer_limit: LOGIN_LIMIT,
        ..SessionOptions::default()
    }
}

/// Reports the state of the paths as the health of the volume, until the store is dropped.
async fn watch(disk: Weak<dyn RemoteDisk>, health: Weak<Health>, url: String) {
    loop {
        let changed = {
            let (Some(disk), Some(health)) = (disk.upgrade(), health.upgrade()) else { return };
            let changed = disk.paths_changed();
            health.report(Aspect::Backing, with_remedy(health_of(&*disk, &url)));
            changed
        };
        changed.await;
    }
}

/// Adds what an administrator of a server can do.
fn with_remedy(health: VolumeHealth) -> VolumeHealth {
    match health {
        VolumeHealth::OutOfService { reason } => VolumeHealth::OutOfService {
            reason: format!(
                "{reason}. It is served again when one works; after a changed account or unit, run `sarsen volume \
                 reattach` for it"
            ),
        },
        other => other,
    }
}

fn health_of(disk: &dyn RemoteDisk, url: &str) -> VolumeHealth {
    let paths = disk.paths();
    let (count, left) = (paths.len(), paths.iter().filter(|path| path.is_active).count());
    let is_as_it_should_be = |path: &&PathStatus| path.entry.as_ref() == Some(&path.portal);
    let unusable = || {
        let unusable = paths.iter().filter(|path| left == 0 || !is_as_it_should_be(path));
        let unusable =
            unusable.map(|PathStatus { portal, entry, failure, .. }| match (entry, failure) {
                (_, Some(error)) => format!("{portal}: {error}"),
                (None, None) => format!("{portal} is not logged in yet"),
                (Some(entry), None) if entry == portal => format!("{portal} is in standby"),
                (Some(entry), None) => {
                    format!("{portal} does not answer, {entry} is used in its place")
                }
            });
        unusable.collect::<Vec<_>>().join("; ")
    };
    if disk.is_down() {
        let reason = format!("is out of service: no path to {url} works ({})", unusable());
        return VolumeHealth::OutOfService { reason };
    }
    let working = paths.iter().filter(is_as_it_should_be).count();
    let reason = match left {
        0 => format!("waits for a path to {url} ({})", unusable()),
        // Paths in standby are as they should be.
        _ if working == count => return VolumeHealth::Online,
        _ => format!("has {working} of {count} paths to {url} ({})", unusable()),
    };
    VolumeHealth::Degraded { reason }
}

impl StoreError {
    /// Returns the error of a unit that an initiator of this name could not use.
    fn remote(url: &str, initiator_name: &str, source: &SessionError) -> Self {
        let hint = match source {
            SessionError::CheckCondition(sense) if sense.asc == LOGICAL_UNIT_NOT_SUPPORTED => {
                "; the target has no such LUN, or does not show it to this initiator"
            }
            _ => "",
        };
        let problem = format!("cannot be used by {initiator_name}: {source}{hint}");
        Self::RemoteUnit { url: url.to_owned(), problem }
    }
}
