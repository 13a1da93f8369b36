//! The server. It opens all objects of the configuration or none, serves them, and shuts down so that all acknowledged
//! data is on disk.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::Store;
use sarsen_io::cores::{Cores, FileEngine};
use sarsen_io::local::LocalListener;
use sarsen_io::{threads, time};
use sarsen_proto::iscsi::digest;
use sarsen_scsi::{AccessError, AccessState, Array, TargetDevice};
use tokio::sync::oneshot;
use tracing::{error, warn};

use crate::config::{Config, ConfigError, Limits, Portal};
use crate::control::{Api, Capacity, Control, Lab, LabResults, OpenPort, Web, WebError};
use crate::desired::{ChangeRefused, Desired, Invalid, OpenError, StateError, reattach};
use crate::engine::{
    Attempts, BackingChecks, Begun, Cause, ChangeError, ChangeOutcome, Engine, Export, Force,
    Layer, Managed, Prepared, ResourceError,
};
use crate::error_class::ErrorClass;
use crate::events::Occurrence;
use crate::host::ServerHost;
use crate::isns::{self, Isns};
use crate::private;

/// Interval at which the server tries missing objects again.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time of the shutdown beyond the grace time of initiators, for any number of disks that do not respond.
const END_LIMIT: Duration = Duration::from_secs(6);
/// Part of that time that is reserved for flushes.
const FLUSH_LIMIT: Duration = Duration::from_millis(1500);
/// Maximum time that the shutdown waits for a change in progress, and for requests of the API.
const CHANGE_LIMIT: Duration = Duration::from_secs(1);
/// How often the end of the server checks whether its cores are still held.
const HELD_INTERVAL: Duration = Duration::from_millis(1);

/// Interval of the checks of each volume's health.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at the schedules of snapshots.
const SCHEDULE_INTERVAL: Duration = Duration::from_secs(60);
/// Number of these intervals between checks of the volumes' files.
const HEALTH_SHOWN_EACH_LOOK: usize = 4;

/// The reason why a server did not start. No part of it is left running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong, or a resource that it names cannot be opened.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// An object cannot be put into force.
    #[error(transparent)]
    Change(ChangeError),
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
    /// The state contradicts the server's own settings.
    #[error("the state: {0}")]
    Invalid(#[from] Invalid),
    /// The API cannot be served.
    #[error(transparent)]
    Web(#[from] WebError),
    /// The two CRC32C implementations disagree: digests could not be trusted.
    #[error(
        "CRC32C: two implementations differ on this processor; do not use this machine, and report it to sarsen's developers"
    )]
    Digest,
}

/// The reason why an access state was not set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetAccessError {
    /// There is no such target.
    #[error("target {0} does not exist")]
    NoTarget(String),
    /// The target rejected the change.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl From<ConfigError> for StartError {
    fn from(error: ConfigError) -> Self {
        ResourceError::from(error).into()
    }
}

impl StartError {
    /// Returns the class of the error, if it has one.
    pub fn error_class(&self) -> Option<ErrorClass> {
        match self {
            Self::Resource(error) => error.error_class(),
            Self::State(StateError::InUse(_)) => Some(ErrorClass::Taken),
            other => ErrorClass::below(other),
        }
    }
}

impl From<OpenError> for StartError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::State(error) => error.into(),
            OpenError::Invalid(error) => error.into(),
        }
    }
}

fn control_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another server has it: choose another --control)",
        io::ErrorKind::NotFound => {
            " (its folder does not exist: create it, or choose another place with --control)"
        }
        io::ErrorKind::AlreadyExists => " (choose another --control)",
        io::ErrorKind::PermissionDenied => {
            " (choose a place that this user may write to with --control, here and for the commands)"
        }
        _ => "",
    }
}

/// A running server.
pub struct Server {
    /// The first fields are dropped first: the interfaces end before the objects that they report.
    web: Option<Web>,
    control: Option<Control>,
    isns: Option<Isns>,
    cores: Arc<Cores>,
    engine: Arc<Engine>,
    desired: Option<Arc<Desired>>,
    lab: Lab,
}

impl Server {
    /// Starts all objects of `config`, or none.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_layered(config, |_, store| store)
    }

    /// Starts the server with a layer of the caller over the store of each volume, whose name it receives. The layer
    /// sees all requests of clients to the volume.
    pub fn start_layered(
        config: Config,
        layer: impl Fn(&str, Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync + 'static,
    ) -> Result<Self, StartError> {
        if !digest::self_check() {
            return Err(StartError::Digest);
        }
        let (mut desired, config) = match config.state.clone() {
            Some(folder) => {
                private::restrict_to_owner(&folder);
                let (desired, config) = Desired::open(&folder, config)?;
                (Some(desired), config)
            }
            None => (None, config),
        };
        check_descriptors(&config.limits);
        let cores =
            Cores::start(config.cores, config.io_engine, config.spin).map_err(StartError::Cores)?;
        let cores = Arc::new(cores);
        let managed = desired.as_mut().map(Desired::managed);
        let own = config.listen.len() - managed.as_ref().map_or(0, |managed| managed.portals);
        let isns = isns::prepare(&config, &config.listen[..own])?;
        let control = config.control.as_deref().map(|path| {
            LocalListener::bind(path)
                .map_err(|source| StartError::Control { path: path.to_owned(), source })
        });
        let control = control.transpose()?;
        let web = config.api.as_ref().map(|api| OpenPort::open(api, config.state.as_deref()));
        let web = web.transpose()?;
        let engine = start_engine(config, &cores, managed, Box::new(layer))?;
        let front = &engine.front;
        if let Some(desired) = &mut desired {
            desired.attach_engine(engine.clone());
            desired.tell_repairs(&front.access.events);
        }
        let desired = desired.map(Arc::new);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        front.access.events.tell(&Occurrence::ServerStarted { version });
        let lab = Lab::default();
        let api = Api {
            engine: engine.clone(),
            front: front.clone(),
            is_trusted: true,
            capacity: Capacity::default(),
            desired: desired.clone(),
            lab: lab.clone(),
        };
        let control = control.map(|listener| Control::start(listener, api.clone()));
        let control = control.transpose().map_err(StartError::Cores)?;
        let isns = isns.map(|isns| isns.start(front.clone()));
        let isns = isns.transpose().map_err(StartError::Cores)?;
        let web = web.map(|opened| Web::start(opened, api));
        let web = web.transpose().map_err(StartError::Cores)?;
        Ok(Self { web, control, isns, cores, engine, desired, lab })
    }

    /// Opens the objects that are in `desired`, a finished configuration, and not running, and finds the sessions that
    /// would lose something. Clients do not notice it until the change is made. A dropped change is undone. Blocks the
    /// thread.
    pub fn prepare(&self, desired: Config) -> Result<Prepared, ChangeError> {
        self.engine.prepare(desired, Cause::Edit)
    }

    /// Applies a changed configuration, including secrets: as a whole or, if a part is wrong or in use, not at all.
    /// Sessions that are not permitted any more are terminated.
    pub async fn reload(&self, desired: Config) -> Result<ChangeOutcome, ChangeError> {
        let reloading = threads::aside(reload(self.engine.clone(), self.desired.clone(), desired));
        reloading.await.unwrap_or_else(|_| Err(ChangeError::BrokeOff))
    }

    /// Closes a volume and opens it again: for a volume whose flush failed, or whose file was deleted, replaced or
    /// truncated, when its disk works again. Its sessions have `grace` to log out; without `grace` the call is
    /// refused while the volume has sessions. Writes that were not flushed may be lost.
    pub async fn reattach(
        &self,
        volume: &str,
        grace: Option<Duration>,
    ) -> Result<ChangeOutcome, ChangeRefused> {
        reattach(self.engine.clone(), self.desired.clone(), volume.to_owned(), grace).await
    }

    /// Tries regularly to open missing objects, checks the files of volumes, and creates snapshots. This future never ends.
    pub async fn run_maintenance(&self) {
        tokio::join!(self.retry_missing(), self.watch_backings(), self.run_snapshot_schedules());
    }

    async fn run_snapshot_schedules(&self) {
        loop {
            self.engine.run_snapshot_schedules().await;
            time::sleep_until(time::now() + SCHEDULE_INTERVAL).await;
        }
    }

    async fn watch_backings(&self) {
        let mut looks = BackingChecks::default();
        loop {
            self.engine.look_at_backings(&mut looks);
            for _ in 0..HEALTH_SHOWN_EACH_LOOK {
                time::sleep_until(time::now() + HEALTH_INTERVAL).await;
                self.engine.pools.watch();
                self.engine.fill_volumes();
                self.engine.report_pools();
                self.engine.show_health();
            }
            if let Some(desired) = self.desired.clone() {
                desired.forget_removed_devices().await;
            }
        }
    }

    async fn retry_missing(&self) {
        let mut revisions = self.desired.as_ref().map(|desired| desired.watch());
        loop {
            let changed = async {
                match &mut revisions {
                    // The sender lives as long as the state.
                    Some(revisions) => drop(revisions.changed().await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = time::sleep_until(time::now() + RETRY_INTERVAL) => {}
                () = changed => {}
                () = self.engine.pools.recovered.notified() => {}
            }
            let (engine, desired) = (self.engine.clone(), self.desired.clone());
            let retry = async move {
                match desired {
                    Some(desired) => desired.retry(),
                    None => engine.retry(),
                }
            };
            if threads::aside(retry).await.is_err() {
                error!("the server could not try the missing objects again");
            }
        }
    }

    /// Returns one of the volumes that do not respond, if there are any.
    pub fn silent_volume(&self) -> Option<String> {
        self.engine.silent_volume()
    }

    /// Returns the configuration in force.
    pub fn config(&self) -> Config {
        self.engine.config()
    }

    /// Returns the exported units, in the order of the configuration.
    pub fn exports(&self) -> Vec<Export> {
        self.engine.exports()
    }

    /// Returns the portals with their actual ports.
    pub fn portals(&self) -> Vec<Portal> {
        self.engine.front.portals.configs()
    }

    /// Returns the network URL of the API and the console.
    pub fn api_url(&self) -> Option<String> {
        self.web.as_ref().map(Web::url)
    }

    /// Returns a target device by its iSCSI name.
    pub fn target_device(&self, name: &str) -> Option<Arc<TargetDevice>> {
        self.engine.front.targets.find(name).map(|target| target.device)
    }

    /// Sets the access state of a target's portal group. The target reports the change to its initiators (SPC-4
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

    /// Checks the certificates of portals now, instead of at the next connection.
    pub fn reload_certificates(&self) {
        self.engine.reload_certificates();
    }

    /// Returns the results of the lab to clients from now on.
    pub fn set_lab_results(&self, results: Arc<dyn LabResults>) {
        self.lab.take(results);
    }

    /// Returns the metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.engine.metrics()
    }

    /// Waits until every core has responded. Returns false if a core has ended.
    pub async fn pulse(&self) -> bool {
        self.cores.pulse().await
    }

    /// Returns the engine that reads and writes files.
    pub fn file_engine(&self) -> FileEngine {
        self.cores.file_engine()
    }

    /// Ends all changes, and waits until none is in progress. Stored changes that are not in force yet stay stored.
    pub async fn end_changes(&self) {
        self.engine.end_changes();
        if let Some(desired) = &self.desired {
            desired.settle().await;
        }
    }

    /// Shuts the server down: it accepts no new connections, initiators have `grace` to log out, commands in flight
    /// finish, and every store is flushed. Returns whether all of it succeeded; the log has the failures. The shutdown
    /// does not wait for disks that do not respond. It ends a few seconds after `grace` at the latest, and the threads
    /// that wait for such a disk stay until the process ends.
    pub async fn shutdown(mut self, grace: Duration) -> bool {
        let deadline = time::now() + grace + END_LIMIT;
        self.engine.front.access.events.tell(&Occurrence::ServerStopping);
        // Changes end first: their callers can still receive the answer, and the thread of their timers still runs.
        let mut is_clean = within(CHANGE_LIMIT, self.end_changes()).await.is_some();
        if !is_clean {
            error!("a change does not end: the server stops without waiting for it");
        }
        let answering = (self.web.take(), self.control.take());
        is_clean &= ended_within(CHANGE_LIMIT, "the API", move || drop(answering)).await;
        if let Some(isns) = &self.isns {
            isns.leave();
        }
        let flush_at = deadline - FLUSH_LIMIT;
        self.engine.stop_accepting().await;
        let sessions = self.engine.front.end_sessions(grace);
        if within(flush_at.saturating_duration_since(time::now()), sessions).await.is_none() {
            error!("sessions do not end: the server stops without waiting for them");
            is_clean = false;
        }
        let is_flushed = self.engine.flush(deadline - FLUSH_LIMIT / 3).await;
        is_clean &= is_flushed;
        let left = || {
            let left = deadline.saturating_duration_since(time::now());
            // Operations of a disk that was not flushed will probably not end now.
            if is_flushed { left } else { left.min(FLUSH_LIMIT / 3) }
        };
        if is_flushed && within(left(), self.engine.checkpoint_pools()).await.is_none() {
            error!("a checkpoint of a pool does not end: the next start reads the journal");
        }
        // The deregistration has had this time to finish.
        if let Some(isns) = self.isns.take() {
            let what = "the registration at the name server";
            is_clean &= ended_within(left(), what, || isns.end()).await;
        }
        // A deleted volume that is closed just now holds the cores while it hands its flush to one of them.
        let mut shared = self.cores;
        let cores = loop {
            match Arc::try_unwrap(shared) {
                Ok(cores) => break cores,
                Err(_) if left().is_zero() => {
                    error!("the cores are still in use at the end");
                    return false;
                }
                Err(held) => shared = held,
            }
            time::sleep_until(time::now() + HELD_INTERVAL).await;
        };
        let limit = left();
        let (sender, answer) = oneshot::channel();
        let ending = threads::spawn("ending", move || {
            let _ = sender.send(cores.shutdown_within(limit));
        });
        if ending.is_err() || !answer.await.unwrap_or(false) {
            error!("disk operations have not ended; their effect on the disks is unknown");
            is_clean = false;
            // Closing their files could also wait for the disk.
            std::mem::forget(self.engine);
        }
        is_clean
    }
}

/// Returns an engine that has applied `config`. A start is a change from an empty configuration.
pub(crate) fn start_engine(
    config: Config,
    cores: &Arc<Cores>,
    managed: Option<Managed>,
    layer: Box<Layer>,
) -> Result<Arc<Engine>, StartError> {
    let array = Array::new(Arc::new(ServerHost::new(cores)));
    let engine = Engine::new(&config, cores, array, layer);
    let started = engine.prepare(config, Cause::Start(managed)).and_then(Prepared::start);
    started.map_err(|error| match error {
        ChangeError::Open(error) => StartError::Resource(error),
        other => StartError::Change(other),
    })?;
    Ok(engine)
}

/// Applies a reread configuration, including secrets. Blocks the thread.
pub(crate) async fn reload(
    engine: Arc<Engine>,
    state: Option<Arc<Desired>>,
    desired: Config,
) -> Result<ChangeOutcome, ChangeError> {
    if let Some(state) = state {
        return state.rebase(desired).await;
    }
    let mut attempts = Attempts::default();
    let begun: Begun = loop {
        let mut prepared = engine.prepare(desired.clone(), Cause::Reload)?;
        prepared.flush_replaced().await?;
        match prepared.commit(None, Force::Revoked, BTreeMap::new(), |_| Ok(())) {
            Err(error) if attempts.is_outdated(&error) => {}
            begun => break begun?,
        }
    };
    let made = begun.finish().await;
    let what = "the configuration was read again".to_owned();
    let author = "SIGHUP".to_owned();
    let changed =
        Occurrence::ConfigurationChanged { revision: None, author, what, names: Vec::new() };
    engine.front.access.events.tell(&changed);
    Ok(made)
}

/// Returns the result of a future, if it ends in time.
async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        done = work => Some(done),
        () = time::sleep_until(time::now() + limit) => None,
    }
}

/// Runs a function that may block for a long time on a separate thread. Returns whether it ended in time.
async fn ended_within(limit: Duration, what: &str, work: impl FnOnce() + Send + 'static) -> bool {
    let (sender, ended) = oneshot::channel();
    let thread = threads::spawn("ending", move || {
        work();
        let _ = sender.send(());
    });
    let is_ended = thread.is_ok() && within(limit, ended).await.is_some();
    if !is_ended {
        error!("{what} does not end: the server stops without waiting for it");
    }
    is_ended
}

/// Raises the limit of open files as far as possible, and logs a warning if it is too low.
fn check_descriptors(limits: &Limits) {
    match sarsen_io::descriptors::raise_limit() {
        Ok(given) if given < limits.connections.get() as u64 => warn!(
            given,
            connections = limits.connections.get(),
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
    fn state_that_another_server_has_is_in_use() {
        let error = StartError::from(StateError::InUse("s".into()));
        assert_eq!(error.error_class(), Some(ErrorClass::Taken));
    }

    #[test]
    fn spc4_5_16_portal_groups_are_ports_whose_access_can_be_set() {
        let target = TargetConfig {
            name: "iqn.2026-11.test:t".into(),
            luns: [(0, "a".into())].into(),
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
        assert_eq!(portals.iter().map(Portal::group).collect::<Vec<_>>(), [1, 9, 9]);
        assert!(portals.iter().all(|portal| portal.address().port() != 0), "ports were taken");
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
