//! The server: opens what the configuration names, all or nothing, serves it, and ends so that
//! everything it promised is on disk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sarsen_block::{BlockError, Store};
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::local::LocalListener;
use sarsen_io::net::Listener;
use sarsen_proto::iscsi::digest;
use sarsen_scsi::{
    AccessError, AccessState, Array, DeviceType, Identity, LogicalUnit, Lun, Parts, TargetDevice,
    TargetPort,
};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{error, warn};

use crate::access::{self, Access, Policy, Reloaded};
use crate::config::{Config, ConfigError, Limits, Portal, StoreConfig, TargetConfig, VolumeConfig};
use crate::control::Control;
use crate::events::{EventLog, Occurrence};
use crate::fronts::iscsi::{self, Front, Roster, Sessions};
use crate::host::Beneath;
use crate::isns::{self, Isns};
use crate::keeper;
use crate::stores::{self, StoreError};
use crate::targets::{Target, Targets};
use crate::tls::{Tls, TlsError};

/// Where the installation's own identity is (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";

/// Why a server did not start. Nothing of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A volume could not be opened.
    #[error("volume {volume}: {source}")]
    Store {
        /// Its name.
        volume: String,
        /// What is wrong and what to do.
        source: StoreError,
    },
    /// A portal could not be opened.
    #[error("cannot listen on {address}: {source}{}", remedy(source))]
    Listen {
        /// The portal.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A portal's certificates cannot be used.
    #[error("portal {address}: {source}")]
    Tls {
        /// The portal.
        address: SocketAddr,
        /// What is wrong with which file.
        source: TlsError,
    },
    /// The threads or the file engine could not be started.
    #[error("cannot start the cores: {0}")]
    Cores(io::Error),
    /// The control socket could not be opened.
    #[error("cannot serve the control socket {}: {source}{}", path.display(), control_remedy(source))]
    Control {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The two CRC32C implementations disagree: digests could not be trusted.
    #[error("CRC32C is computed wrongly on this processor; please report it")]
    Digest,
}

/// Why an access state was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetAccessError {
    /// There is no such target.
    #[error("there is no target {0}")]
    NoTarget(String),
    /// The target refused.
    #[error(transparent)]
    Access(#[from] AccessError),
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another program serves this port: stop it or choose another --listen)"
        }
        io::ErrorKind::PermissionDenied => " (choose a port from 1024 on)",
        io::ErrorKind::AddrNotAvailable => " (this machine does not have that address)",
        _ => "",
    }
}

fn control_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another server has it: choose another --control)",
        io::ErrorKind::NotFound => " (its folder does not exist: make it)",
        io::ErrorKind::AlreadyExists => " (choose another --control)",
        _ => "",
    }
}

/// A logical unit as clients reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The volume.
    pub volume: String,
    /// The target's name.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
    /// Bytes.
    pub size: u64,
    /// A URL for libiscsi and QEMU, one for each portal; with TLS, for our own initiator alone.
    pub urls: Vec<String>,
}

/// A server that runs.
pub struct Server {
    /// First, so that it ends before what it speaks of.
    control: Option<Control>,
    isns: Option<Isns>,
    cores: Arc<Cores>,
    front: Arc<Front>,
    /// What it runs by.
    config: Mutex<Config>,
    stores: Vec<(String, Arc<dyn Store>)>,
    exports: Vec<Export>,
    closing: watch::Sender<bool>,
    accepting: mpsc::Receiver<()>,
}

impl Server {
    /// Starts what `config` names, or nothing.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_layered(config, |_, store| store)
    }

    /// The same with a layer of the caller's over the store of each volume, which is named: what it
    /// sees is what clients ask of the volume.
    pub fn start_layered(
        config: Config,
        layer: impl Fn(&str, Arc<dyn Store>) -> Arc<dyn Store>,
    ) -> Result<Self, StartError> {
        if !digest::self_check() {
            return Err(StartError::Digest);
        }
        let policy = Policy::compile(&config)?;
        check_descriptors(&config.limits);
        let cores =
            Cores::start(config.cores, config.io_engine, config.spin).map_err(StartError::Cores)?;
        let cores = Arc::new(cores);
        let array = Array::new(Arc::new(Beneath::new(&cores)));
        // Ports before files: a port in use leaves no new file behind. Nobody is accepted yet.
        let mut listeners = Vec::new();
        let mut certificates = Vec::new();
        for portal in &config.listen {
            let address = portal.address;
            let open = |tls| Tls::open(tls).map_err(|source| StartError::Tls { address, source });
            certificates.push(portal.tls.as_ref().map(open).transpose()?.map(Arc::new));
            let listen = |source| StartError::Listen { address, source };
            let listener = Listener::inherit_or_bind(address).map_err(listen)?;
            let Limits { keepalive, user_timeout, .. } = config.limits;
            listener.give_up_after(keepalive, user_timeout).map_err(listen)?;
            listeners.push(listener);
        }
        let mut notices = Vec::new();
        for address in isns::notice_addresses(config.isns.as_ref(), &config.listen) {
            let listen = |source| StartError::Listen { address, source };
            notices.push(Listener::bind(address).map_err(listen)?);
        }
        let control = config.control.as_deref().map(|path| {
            LocalListener::bind(path)
                .map_err(|source| StartError::Control { path: path.to_owned(), source })
        });
        let control = control.transpose()?;
        let mut stores = HashMap::new();
        for volume in &config.volumes {
            let store = stores::open(volume)
                .map_err(|source| StartError::Store { volume: volume.name.clone(), source })?;
            stores.insert(volume.name.as_str(), (volume, layer(&volume.name, store)));
        }
        let taken = |(portal, listener): (&Portal, &Listener)| {
            Ok(Portal { address: listener.local_addr()?, ..portal.clone() })
        };
        let portals = config.listen.iter().zip(&listeners).map(taken);
        let portals = portals.collect::<Result<Vec<_>, _>>().map_err(StartError::Cores)?;

        let machine = machine_identity();
        let targets = Targets::default();
        let mut exports = Vec::new();
        for target in &config.targets {
            let mut luns = BTreeMap::new();
            for (&number, name) in &target.luns {
                let Some((volume, store)) = stores.get(name.as_str()) else {
                    unreachable!("a finished configuration lists volumes that exist")
                };
                let lun = Lun(number);
                let identity = identity(volume, target, &machine);
                let unit = logical_unit(volume, identity, store.clone())
                    .map_err(|source| StartError::Store { volume: name.clone(), source })?;
                luns.insert(lun, unit);
                exports.push(Export {
                    volume: name.clone(),
                    target: target.name.clone(),
                    lun: lun.0,
                    size: store.geometry().byte_count(),
                    urls: portals
                        .iter()
                        .filter(|portal| target.is_reached_through(portal.group))
                        .map(|portal| url(portal, &target.name, lun))
                        .collect(),
                });
            }
            let ports = target_ports(target, &config.listen);
            let device = TargetDevice::with_ports(&array, target.name.clone(), luns, ports);
            targets.add(Target {
                device,
                alias: target.alias.clone(),
                groups: target.groups.clone(),
                redirect: target.redirect.clone(),
            });
        }

        let stores =
            stores.into_iter().map(|(name, (_, store))| (name.to_owned(), store)).collect();
        let events = config.state.as_deref().map_or_else(EventLog::default, EventLog::open);
        let front = Arc::new(Front {
            settings: Arc::new(config.limits.settings()),
            targets: Arc::new(targets),
            sessions: Sessions::new(&config.limits),
            sources: iscsi::Sources::new(&config.limits),
            roster: Roster::default(),
            drains: Arc::default(),
            access: Arc::new(Access::new(policy).telling(events)),
            fairness: Arc::default(),
            portals,
            certificates,
        });
        front.fairness.apply(&config);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        front.access.events.tell(&Occurrence::ServerStarted { version });
        let (closing, told) = watch::channel(false);
        let (alive, accepting) = mpsc::channel(1);
        let control = control.map(|listener| Control::start(listener, front.clone()));
        let control = control.transpose().map_err(StartError::Cores)?;
        let isns = config.isns.clone().map(|isns| Isns::start(isns, notices, front.clone()));
        let isns = isns.transpose().map_err(StartError::Cores)?;
        iscsi::start(&front, listeners, &cores, &told, &alive);
        let config = Mutex::new(config);
        Ok(Self { control, isns, cores, front, config, stores, exports, closing, accepting })
    }

    /// What clients can reach, in the order of the configuration.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// The portals, with the ports that were taken.
    pub fn portals(&self) -> &[Portal] {
        &self.front.portals
    }

    /// A target device by its iSCSI name.
    pub fn target_device(&self, name: &str) -> Option<Arc<TargetDevice>> {
        self.front.targets.find(name).map(|target| target.device)
    }

    /// Brings a portal group of a target into an access state; its initiators are told (SPC-4
    /// 5.15.2.7).
    pub fn set_access_state(
        &self,
        target: &str,
        group: u16,
        state: AccessState,
    ) -> Result<(), SetAccessError> {
        let device = self.target_device(target);
        let device = device.ok_or_else(|| SetAccessError::NoTarget(target.to_owned()))?;
        Ok(device.set_access_state(group, state)?)
    }

    /// Takes over the accounts and the access rules of a changed configuration, all of them or, where
    /// something is wrong with them, nothing. Sessions that are not let in any more are ended.
    pub fn reload(&self, new: &Config) -> Result<Reloaded, ConfigError> {
        let mut running = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        let (merged, needs_restart) = access::merge(&running, new)?;
        let policy = Policy::compile(&merged)?;
        *running = merged;
        let sessions_ended = self.front.access.replace(policy, &self.front.targets);
        let what = "accounts and access rules were read again".to_owned();
        let author = "SIGHUP".to_owned();
        let changed = Occurrence::ConfigurationChanged { revision: None, author, what };
        self.front.access.events.tell(&changed);
        Ok(Reloaded { needs_restart, sessions_ended })
    }

    /// Looks at the certificates of portals now, instead of when the next connection comes in.
    pub fn reload_certificates(&self) {
        self.front.certificates.iter().flatten().for_each(|certificates| certificates.reload());
    }

    /// What is counted, as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.front.metrics()
    }

    /// Ends when every core has shown that it is not stuck; false if one is gone.
    pub async fn pulse(&self) -> bool {
        self.cores.pulse().await
    }

    /// How files are read and written.
    pub fn file_engine(&self) -> FileEngine {
        self.cores.file_engine()
    }

    /// Ends in good order: no new connections, initiators are asked to log out and have `grace`
    /// for it, commands in flight finish, and every store is flushed. Says whether all of it
    /// worked; what did not is in the log.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        self.front.access.events.tell(&Occurrence::ServerStopping);
        drop(self.control.take());
        if let Some(isns) = &self.isns {
            isns.leave();
        }
        self.closing.send_replace(true);
        // Each portal drops its sender when it has stopped.
        while self.accepting.recv().await.is_some() {}
        self.front.end_sessions(grace).await;
        let flushed = self.flush().await;
        // It has had all that time to say that it leaves.
        drop(self.isns.take());
        let cores = self.cores;
        match Arc::into_inner(cores) {
            Some(cores) => cores.shutdown(),
            None => error!("the cores are still in use at the end"),
        }
        flushed
    }

    /// Flushes every store, on a core.
    async fn flush(&self) -> bool {
        let stores = self.stores.clone();
        let (sender, answer) = oneshot::channel();
        self.cores.spawn_on(0, move || async move {
            let mut all = true;
            for (volume, store) in stores {
                match store.flush().wait().await {
                    Ok(()) | Err(BlockError::ReadOnly) => {}
                    Err(source) => {
                        error!(volume, error = %source, "the last flush failed");
                        all = false;
                    }
                }
            }
            let _ = sender.send(all);
        });
        answer.await.unwrap_or(false)
    }
}

/// Takes as many descriptors as the system gives, and says if that is too few.
fn check_descriptors(limits: &Limits) {
    match sarsen_io::descriptors::raise_limit() {
        Ok(given) if given < limits.connections as u64 => warn!(
            given,
            connections = limits.connections,
            "fewer files may be open than limits.connections: raise the limit (ulimit -n, \
             LimitNOFILE of systemd)"
        ),
        Ok(_) => {}
        Err(error) => warn!(%error, "the limit of open files could not be raised"),
    }
}

/// A volume's unit, in the state that it was left in.
fn logical_unit(
    volume: &VolumeConfig,
    identity: Identity,
    store: Arc<dyn Store>,
) -> Result<Arc<LogicalUnit>, StoreError> {
    let keeper = keeper::open(volume)?;
    let encrypted = stores::encrypted::open(volume, &store, keeper.as_ref())?;
    let eraser = encrypted.clone().map(|store| store as _);
    let store = encrypted.map_or(store, |encrypted| encrypted);
    // Above all that is looked at while it is opened, when nobody can wait.
    let store: Arc<dyn Store> = match volume.delay {
        Some(delay) => Arc::new(stores::SlowStore::new(store, delay)),
        None => store,
    };
    let parts = Parts {
        identity,
        store,
        device_type: device_type(volume),
        removable: volume.removable,
        keeper,
        protection: volume.protection,
        eraser,
        pass_through: stores::pass_through::open(volume)?,
    };
    LogicalUnit::of_parts(parts).map_err(|source| StoreError::State { source })
}

/// Each portal group is a port of each target.
fn target_ports(target: &TargetConfig, listen: &[Portal]) -> Vec<TargetPort> {
    let tags = listen.iter().map(|portal| portal.group);
    let tags: BTreeSet<u16> = tags.filter(|&tag| target.is_reached_through(tag)).collect();
    let port = |tag| TargetPort {
        access_state: target.access.get(&tag).copied().unwrap_or(AccessState::Optimized),
        is_preferred: target.preferred == Some(tag),
        ..TargetPort::of_portal_group(&target.name, tag)
    };
    tags.into_iter().map(port).collect()
}

fn url(portal: &Portal, target: &str, lun: Lun) -> String {
    let scheme = if portal.tls.is_some() { "iscsis" } else { "iscsi" };
    let portal = portal.address;
    // A portal on all addresses is surely reached on the loopback.
    let portal = match (portal.ip().is_unspecified(), portal.is_ipv4()) {
        (false, _) => portal,
        (true, true) => SocketAddr::from(([127, 0, 0, 1], portal.port())),
        (true, false) => SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), portal.port()),
    };
    format!("{scheme}://{portal}/{target}/{}", lun.0)
}

/// What tells this installation from others: two machines must never offer two disks under one
/// identity, or multipath would take them for one.
fn machine_identity() -> String {
    match std::fs::read_to_string(Path::new(MACHINE_ID)) {
        Ok(id) if !id.trim().is_empty() => id.trim().to_owned(),
        _ => {
            warn!(
                "there is no {MACHINE_ID}: identities of volumes without a serial hold for this run only; \
                 give each volume a serial"
            );
            format!("{:016x}{:016x}", sarsen_io::random::number(), sarsen_io::random::number())
        }
    }
}

/// A volume's identity: from its serial if it has one, else from this machine and its names.
fn identity(volume: &VolumeConfig, target: &TargetConfig, machine: &str) -> Identity {
    let given = volume.identity.clone();
    let derived = match &given.serial {
        Some(serial) => Identity::new(&volume.name, &format!("serial:{serial}")),
        None => Identity::new(&volume.name, &format!("{machine}/{}", target.name)),
    };
    let product = match device_type(volume) {
        DeviceType::Disk => derived.product,
        DeviceType::Cd => "DVD-ROM".into(),
    };
    Identity {
        vendor: given.vendor.unwrap_or(derived.vendor),
        product: given.product.unwrap_or(product),
        revision: given.revision.unwrap_or(derived.revision),
        serial: given.serial.unwrap_or(derived.serial),
        naa: given.naa.unwrap_or(derived.naa),
        designators: given.designators,
        volume: derived.volume,
    }
}

/// What a volume shows itself as.
fn device_type(volume: &VolumeConfig) -> DeviceType {
    match volume.store {
        StoreConfig::Iso { .. } => DeviceType::Cd,
        StoreConfig::Ram { .. } | StoreConfig::Null { .. } | StoreConfig::File { .. } => {
            DeviceType::Disk
        }
        // It says so itself.
        StoreConfig::Sg { .. } => DeviceType::Disk,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use sarsen_io::cores::block_on;

    use super::*;
    use crate::config::{parse_portal, parse_volume};

    #[test]
    fn spc4_5_15_portal_groups_are_ports_whose_access_can_be_set() {
        let target = TargetConfig {
            name: "iqn.2026-11.test:t".into(),
            luns: BTreeMap::from([(0, "a".into())]),
            access: BTreeMap::from([(9, AccessState::Standby)]),
            ..TargetConfig::default()
        };
        let config = Config {
            listen: ["127.0.0.1:0", "127.0.0.1:0,9", "127.0.0.1:0,9"]
                .map(|text| parse_portal(text).expect("a portal"))
                .to_vec(),
            cores: NonZeroUsize::new(1),
            volumes: vec![parse_volume("a=ram:1MiB").expect("a volume")],
            targets: vec![target],
            ..Config::default()
        };
        let server = Server::start(config.finish().expect("valid")).expect("it starts");
        let portals = server.portals();
        assert_eq!(portals.iter().map(|portal| portal.group).collect::<Vec<_>>(), [1, 9, 9]);
        assert!(portals.iter().all(|portal| portal.address.port() != 0), "ports were taken");
        let name = "iqn.2026-11.test:t";
        let device = server.target_device(name).expect("the target");
        let states = || [1, 9].map(|group| device.access_state(group));
        assert_eq!(states(), [Some(AccessState::Optimized), Some(AccessState::Standby)]);
        server.set_access_state(name, 9, AccessState::NonOptimized).expect("set");
        assert_eq!(states()[1], Some(AccessState::NonOptimized));
        let no_group = AccessError::NoGroup { target: name.into(), group: 2 };
        let refused = server.set_access_state(name, 2, AccessState::Standby);
        assert_eq!(refused, Err(no_group.into()));
        let no_target = server.set_access_state("iqn.x", 1, AccessState::Standby);
        assert_eq!(no_target, Err(SetAccessError::NoTarget("iqn.x".into())));
        let clean = block_on(FileEngine::Pool, server.shutdown(Duration::ZERO)).expect("a runtime");
        assert!(clean);
    }
}
