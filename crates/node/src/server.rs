//! The server: opens what the configuration names, all or nothing, serves it, and ends so that
//! everything it promised is on disk.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::Store;
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::local::LocalListener;
use sarsen_io::net::Listener;
use sarsen_io::{threads, time};
use sarsen_proto::iscsi::digest;
use sarsen_scsi::{AccessError, AccessState, Array, TargetDevice};
use tracing::{error, warn};

use crate::config::{Config, ConfigError, Limits, Portal};
use crate::control::{Api, Control, Lab, LabResults, Opened, Web, WebError};
use crate::desired::{Desired, Invalid, OpenError, StateError};
use crate::engine::{Cause, ChangeError, Engine, Force, Made, Prepared};
use crate::events::Occurrence;
use crate::host::Beneath;
use crate::isns::{self, Isns};
use crate::stores::StoreError;
use crate::tls::TlsError;

/// How often what the server does without is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

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
    /// The state cannot be opened.
    #[error(transparent)]
    State(#[from] StateError),
    /// The state does not go with the server's own settings.
    #[error("the state: {0}")]
    Invalid(#[from] Invalid),
    /// The API cannot be served.
    #[error(transparent)]
    Web(#[from] WebError),
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

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::State(error) => error.into(),
            OpenError::Invalid(error) => error.into(),
        }
    }
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
    /// First, so that they end before what they speak of.
    web: Option<Web>,
    control: Option<Control>,
    isns: Option<Isns>,
    cores: Arc<Cores>,
    engine: Arc<Engine>,
    desired: Option<Arc<Desired>>,
    lab: Lab,
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
        layer: impl Fn(&str, Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        if !digest::self_check() {
            return Err(StartError::Digest);
        }
        let (mut desired, config) = match config.state.clone() {
            Some(folder) => {
                let (desired, config) = Desired::open(&folder, config)?;
                (Some(desired), config)
            }
            None => (None, config),
        };
        check_descriptors(&config.limits);
        let cores =
            Cores::start(config.cores, config.io_engine, config.spin).map_err(StartError::Cores)?;
        let cores = Arc::new(cores);
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
        let web = config.api.as_ref().map(|api| Opened::open(api, config.state.as_deref()));
        let web = web.transpose()?;
        let array = Array::new(Arc::new(Beneath::new(&cores)));
        let engine = Engine::new(&config, &cores, array, Box::new(layer));
        let isns = config.isns.clone();
        let cause = Cause::Start(desired.as_mut().map(Desired::managed));
        let prepared = engine.prepare(config, cause).map_err(|error| match error {
            ChangeError::Open(error) => error,
            other => unreachable!("nothing runs that could be in the way: {other}"),
        })?;
        prepared.into_ready().make();
        if let Some(desired) = &mut desired {
            desired.drive(engine.clone());
        }
        let desired = desired.map(Arc::new);
        let front = &engine.front;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        front.access.events.tell(&Occurrence::ServerStarted { version });
        let lab = Lab::default();
        let api = Api {
            engine: engine.clone(),
            front: front.clone(),
            is_trusted: true,
            desired: desired.clone(),
            lab: lab.clone(),
        };
        let control = control.map(|listener| Control::start(listener, api.clone()));
        let control = control.transpose().map_err(StartError::Cores)?;
        let isns = isns.map(|isns| Isns::start(isns, notices, front.clone()));
        let isns = isns.transpose().map_err(StartError::Cores)?;
        let web = web.map(|opened| Web::start(opened, api));
        let web = web.transpose().map_err(StartError::Cores)?;
        Ok(Self { web, control, isns, cores, engine, desired, lab })
    }

    /// Opens what `desired`, which is finished, has and this server has not yet, and finds out who uses
    /// what would be taken away. Nobody sees anything of it until it is made; to drop it is to undo it.
    /// Blocks the thread.
    pub fn prepare(&self, desired: Config) -> Result<Prepared, ChangeError> {
        self.engine.prepare(desired, Cause::Edit)
    }

    /// Takes over a changed configuration, secrets included: all of it or, where something is wrong with
    /// it or in use, nothing. Sessions that are not let in any more are ended.
    pub async fn reload(&self, desired: Config) -> Result<Made, ChangeError> {
        let (state, engine) = (self.desired.clone(), self.engine.clone());
        let reloading = threads::aside(async move {
            if let Some(state) = state {
                return state.rebase(desired).await;
            }
            let prepared = engine.prepare(desired, Cause::Reload)?;
            let made = prepared.clear_by(Force::Revoked).await?.make();
            let what = "the configuration was read again".to_owned();
            let author = "SIGHUP".to_owned();
            let changed = Occurrence::ConfigurationChanged {
                revision: None,
                author,
                what,
                names: Vec::new(),
            };
            engine.front.access.events.tell(&changed);
            Ok(made)
        });
        reloading.await.unwrap_or_else(|_| Err(ChangeError::BrokeOff))
    }

    /// Tries, every now and then, what the server does without. Does not end.
    pub async fn retry(&self) {
        let Some(desired) = &self.desired else { return std::future::pending().await };
        loop {
            time::sleep_until(time::now() + RETRY_INTERVAL).await;
            let desired = desired.clone();
            if threads::aside(async move { desired.retry().await }).await.is_err() {
                error!("what the server does without could not be tried again");
            }
        }
    }

    /// What it runs by.
    pub fn config(&self) -> Config {
        self.engine.config()
    }

    /// What clients can reach, in the order of the configuration.
    pub fn exports(&self) -> Vec<Export> {
        self.engine.exports()
    }

    /// The portals, with the ports that were taken.
    pub fn portals(&self) -> Vec<Portal> {
        self.engine.front.portals.configs()
    }

    /// Where the API and the console are on the network.
    pub fn api_url(&self) -> Option<String> {
        self.web.as_ref().map(Web::url)
    }

    /// A target device by its iSCSI name.
    pub fn target_device(&self, name: &str) -> Option<Arc<TargetDevice>> {
        self.engine.front.targets.find(name).map(|target| target.device)
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

    /// Looks at the certificates of portals now, instead of when the next connection comes in.
    pub fn reload_certificates(&self) {
        self.engine.reload_certificates();
    }

    /// Shows what the lab measured to who asks from now on.
    pub fn show_lab(&self, results: Arc<dyn LabResults>) {
        self.lab.take(results);
    }

    /// What is counted, as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.engine.front.metrics()
    }

    /// Ends when every core has shown that it is not stuck; false if one is gone.
    pub async fn pulse(&self) -> bool {
        self.cores.pulse().await
    }

    /// How files are read and written.
    pub fn file_engine(&self) -> FileEngine {
        self.cores.file_engine()
    }

    /// Ends when no change is under way, and none will be: one that waits for its sessions to go is called off,
    /// as if it had never been asked for.
    pub async fn end_changes(&self) {
        self.engine.end_changes();
        if let Some(desired) = &self.desired {
            desired.settle().await;
        }
    }

    /// Ends in good order: no new connections, initiators are asked to log out and have `grace`
    /// for it, commands in flight finish, and every store is flushed. Says whether all of it
    /// worked; what did not is in the log.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        self.engine.front.access.events.tell(&Occurrence::ServerStopping);
        // Who asked for one is still there to be told, and so is the thread whose timers it waits by.
        self.end_changes().await;
        drop(self.web.take());
        drop(self.control.take());
        if let Some(isns) = &self.isns {
            isns.leave();
        }
        self.engine.stop_accepting().await;
        self.engine.front.end_sessions(grace).await;
        let flushed = self.engine.flush().await;
        // It has had all that time to say that it leaves.
        drop(self.isns.take());
        let cores = self.cores;
        match Arc::into_inner(cores) {
            Some(cores) => cores.shutdown(),
            None => error!("the cores are still in use at the end"),
        }
        flushed
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::num::NonZeroUsize;

    use sarsen_io::cores::block_on;

    use super::*;
    use crate::config::{TargetConfig, parse_portal, parse_volume};

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
