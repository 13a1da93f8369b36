//! The engine: what is desired, what is in force, and the change of one into the other while clients use it
//! (docs/decisions/0012). A change is prepared without a lock: the engine opens the new objects. Then it is checked,
//! stored and put into force at once. What is left is pending, and a task of each object puts it into force.
//!
//! [`diff`] computes the steps, [`volumes`] and [`portals`] open and close, [`change`] prepares and decides, [`tasks`] do
//! what is left, [`claims`] keep files from being open twice, and [`missing`] has the missing objects. A start is a
//! change from an empty configuration.

mod backings;
mod change;
mod change_error;
mod claims;
mod diff;
mod disk_threads;
mod missing;
mod pools;
mod portals;
mod resource_error;
mod snapshots;
mod tasks;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Geometry;
use sarsen_io::cores::Cores;
use sarsen_scsi::{Array, LogicalUnit, Lun, LunView, TargetPort};
use tokio::sync::watch;
use tracing::{error, info, warn};

use self::backings::ShownVolume;
pub(crate) use self::backings::{BackingChecks, Usage};
pub(crate) use self::change::{Cause, Force, Managed};
pub use self::change::{ChangeOutcome, Prepared};
pub use self::change_error::{AffectedSession, ChangeError, Interruption};
use self::claims::{Claims, Stores, holdings_of_file};
use self::diff::Differences;
use self::disk_threads::{Disk, DiskPermits, run_blocking};
use self::missing::MissingObjects;
pub(crate) use self::pools::Pools;
use self::portals::Served;
pub use self::resource_error::ResourceError;
pub(crate) use self::snapshots::SnapshotError;
use self::tasks::Part;
pub(crate) use self::tasks::{Begun, Erasure};
pub(crate) use self::volumes::Layer;
use self::volumes::{Growth, OpenPlan, Volume};
use crate::access::{Units, shows};
use crate::config::{AccountConfig, Config, Portal, Protocol, TargetConfig, target_port_groups};
use crate::events::{EventLog, Occurrence};
use crate::fronts::Front;
use crate::fronts::acceptor::Acceptor;
use crate::machine::machine_identity;
use crate::metrics::VolumeSpace;
use crate::problem::{MissingObject, Problem};
use crate::stores::{PoolMemory, RemoteAccess, StoreCores, StoreError};

/// Maximum number of attempts to make a change that others overtake.
const ATTEMPTS: usize = 64;

/// A logical unit that clients can reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name of the volume.
    pub volume: String,
    /// The target's name.
    pub target: String,
    /// The logical unit number.
    pub lun: u16,
    /// Size in bytes.
    pub size: u64,
    /// URLs for libiscsi and QEMU, one for each portal. With TLS, only sarsen's own initiator understands them.
    pub urls: Vec<String>,
}

/// The engine. The server and the callers that change it share it.
pub(crate) struct Engine {
    pub(crate) front: Arc<Front>,
    cores: Weak<Cores>,
    array: Arc<Array>,
    machine: String,
    layer: Box<Layer>,
    acceptor: Acceptor,
    /// This lock is held while a change is stored and put into force, never while a disk or a client is awaited.
    running: Mutex<Running>,
    shown: Mutex<Shown>,
    /// True when the server shuts down: it accepts no more changes.
    is_ending: watch::Sender<bool>,
    claims: Arc<Claims>,
    disk_permits: Arc<DiskPermits>,
    pub(crate) pools: Arc<Pools>,
    /// The volumes whose schedules of snapshots failed the last time, with the reasons.
    failed_schedules: Mutex<BTreeMap<String, String>>,
}

/// The running objects.
#[derive(Default)]
struct Running {
    /// What is desired.
    desired: Arc<Config>,
    /// What is in force: the same without pending and missing objects.
    config: Arc<Config>,
    volumes: BTreeMap<String, Volume>,
    /// Desired objects that are not in force.
    absent: MissingObjects,
    /// Current lengths of files that are to grow and may not have grown yet, by the serial numbers of their volumes.
    length_before_growth: BTreeMap<String, u64>,
    portals: Vec<Served>,
    /// What is not in force before leaving sessions have ended.
    deferred: BTreeSet<DeferredGain>,
}

/// A target that does not gain something yet, and the sentence that says so.
type DeferredGain = (String, String);

/// A copy of the running objects for queries, as of the last change.
#[derive(Clone, Default)]
struct Shown {
    config: Arc<Config>,
    /// The open volumes.
    volumes: Arc<BTreeMap<String, ShownVolume>>,
    portals: Arc<Vec<Portal>>,
    /// Missing objects, with the reasons.
    lacking: Arc<Vec<(MissingObject, String)>>,
    /// Pools with problems, with the reasons.
    pools: Arc<Vec<(MissingObject, String)>>,
    /// Missing objects, and problems of open volumes.
    problems: Arc<Vec<Problem>>,
}

impl Running {
    /// Returns the portal groups, including those of missing portals.
    fn groups(&self) -> BTreeSet<u16> {
        let absent = self.absent.portals.iter().map(|(portal, _)| portal);
        let mut groups = target_port_groups(self.config.listen.iter().chain(absent));
        groups.extend(self.absent.groups.iter().copied());
        groups
    }

    /// Updates the pending lengths, where `owes` are those of this change. A volume that the change `opened`, by serial
    /// number, has the length on the disk, so it is not pending any more. A file that grew while it was open stays
    /// pending until it is opened the next time.
    fn settle(&mut self, owes: BTreeMap<String, u64>, opened: &HashSet<String>) {
        self.length_before_growth.extend(owes);
        if self.length_before_growth.is_empty() {
            return;
        }
        let absent = self.absent.volumes.iter().map(|missing| &missing.config);
        let short = self.volumes.values().filter(|volume| volume.growth != Growth::None);
        let lacking = absent.chain(short.map(|volume| &volume.config));
        let lacking: HashSet<&str> =
            lacking.filter_map(|volume| volume.serial.as_deref()).collect();
        let open = self.volumes.values();
        let open: HashSet<&str> =
            open.filter_map(|volume| volume.config.serial.as_deref()).collect();
        let is_owed = |serial: &str| {
            lacking.contains(serial) || open.contains(serial) && !opened.contains(serial)
        };
        self.length_before_growth.retain(|serial, _| is_owed(serial));
    }

    /// Returns the portals with their configurations.
    fn served(&self) -> Vec<(Portal, Arc<crate::portal::Portal>)> {
        let portals = self.portals.iter();
        portals.map(|one| (one.configured.clone(), one.portal.clone())).collect()
    }

    /// Returns the units that a view shows of a target.
    fn units_in(&self, target: Option<&str>, view: &LunView) -> Units {
        let mut targets = self.config.targets.iter();
        let target = targets.find(|one| Some(one.name.as_str()) == target);
        let luns = target.map(|target| self.luns(target)).unwrap_or_default();
        let shown = luns.iter().filter(|(lun, _)| shows(view, lun.0));
        shown.map(|(_, unit)| Arc::downgrade(unit)).collect()
    }

    /// Returns the units of a target by LUN, without those whose volumes are not open.
    fn luns(&self, target: &TargetConfig) -> BTreeMap<Lun, Arc<LogicalUnit>> {
        let unit =
            |(&lun, name): (&u16, &String)| Some((Lun(lun), self.volumes.get(name)?.unit.clone()));
        target.luns.iter().filter_map(unit).collect()
    }
}

impl Engine {
    /// Creates an engine that runs nothing. `config` has the settings with which the rest of the server starts.
    pub(crate) fn new(
        config: &Config,
        cores: &Arc<Cores>,
        array: Arc<Array>,
        layer: Box<Layer>,
    ) -> Arc<Self> {
        let events = config.state.as_deref().map_or_else(EventLog::default, EventLog::open);
        let front = Arc::new(Front::new(&config.limits, events));
        let memory = PoolMemory::within(config.state.as_deref());
        let pools = Pools::new(StoreCores(Arc::downgrade(cores)), memory);
        let config = Arc::new(in_force_at_start(config));
        Arc::new(Self {
            acceptor: Acceptor::new(front.clone(), cores),
            front,
            cores: Arc::downgrade(cores),
            array,
            machine: machine_identity(),
            layer,
            shown: Mutex::new(Shown { config: config.clone(), ..Shown::default() }),
            running: Mutex::new(Running { config, ..Running::default() }),
            is_ending: watch::Sender::default(),
            claims: Arc::default(),
            disk_permits: Arc::default(),
            failed_schedules: Mutex::default(),
            pools: Arc::new(pools),
        })
    }

    /// Returns what stores of remote units need, with the accounts that their URLs may name.
    pub(crate) fn remote_access(&self, accounts: &[AccountConfig]) -> RemoteAccess {
        RemoteAccess {
            cores: self.pools.cores.clone(),
            machine: self.machine.clone(),
            accounts: Arc::new(Mutex::new(accounts.to_vec())),
        }
    }

    /// Runs work that may hang on a thread of a pool.
    pub(crate) async fn run_on_pool<T: Send + 'static>(
        &self,
        name: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeError> {
        run_blocking(&self.disk_permits, &Disk::of_pool(name), move || Ok(work())).await
    }

    /// Runs work that may hang on a thread of the disk with this path.
    pub(crate) async fn run_on_disk<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ChangeError> {
        run_blocking(&self.disk_permits, &Disk::of_path(path), move || Ok(work())).await
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock()
    }

    fn shown(&self) -> Shown {
        self.shown.lock().clone()
    }

    /// Publishes the running objects to queries, and reports their problems.
    fn show(&self, running: &Running) {
        let policy = self.front.access.policy();
        let volumes = running.volumes.iter();
        let volumes = volumes.map(|(name, volume)| (name.clone(), ShownVolume::of(volume)));
        let (volumes, lacking) = (
            volumes.collect(),
            running.absent.lacking(policy.unreadable_secrets(), &running.volumes),
        );
        let portals = running.portals.iter().map(|one| one.portal.config()).collect();
        self.publish(|shown| {
            shown.config = running.config.clone();
            shown.volumes = Arc::new(volumes);
            shown.portals = Arc::new(portals);
            shown.lacking = Arc::new(lacking);
        });
    }

    /// Replaces the reported problems. Each new problem is an event, and so is its end.
    fn publish(&self, change: impl FnOnce(&mut Shown)) {
        let mut shown = self.shown.lock();
        shown.pools = Arc::new(self.pools.problems());
        change(&mut shown);
        let problems = Arc::new(shown.problems_now());
        let before = std::mem::replace(&mut shown.problems, problems.clone());
        self.front.access.metrics.set_problem_count(problems.len());
        // These events are reported under the lock, so that a later caller compares with these problems.
        for problem in missing::without(&problems, &before) {
            error!("{}", problem.why);
            self.front.access.events.tell(&Occurrence::ProblemFound(problem.clone()));
        }
        for Problem { lacking, .. } in missing::without(&before, &problems) {
            info!("{lacking} works again");
            self.front.access.events.tell(&Occurrence::ProblemSolved(lacking.clone()));
        }
    }

    /// Returns the current lengths of files that are to grow and may not have grown yet, by the serial numbers of their
    /// volumes.
    pub(crate) fn lengths_before_growth(&self) -> BTreeMap<String, u64> {
        self.running().length_before_growth.clone()
    }

    /// Returns the current problems, in order.
    pub(crate) fn problems(&self) -> Arc<Vec<Problem>> {
        self.shown().problems
    }

    /// Returns whether an object is missing and is to be tried again.
    pub(crate) fn is_lacking(&self) -> bool {
        !self.shown().lacking.is_empty()
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> Config {
        (*self.shown().config).clone()
    }

    /// Returns the exported units, in the order of the configuration.
    pub(crate) fn exports(&self) -> Vec<Export> {
        let Shown { config, volumes, portals, .. } = self.shown();
        let exports = config.targets.iter().flat_map(|target| {
            let export = |(&lun, name): (&u16, &String)| {
                Some(Export {
                    volume: name.clone(),
                    target: target.name.clone(),
                    lun,
                    size: volumes.get(name)?.geometry().byte_count(),
                    urls: portals
                        .iter()
                        .filter(|portal| target.is_reached_through(portal.group()))
                        // NBD has no accounts.
                        .filter(|portal| {
                            portal.protocol() != Protocol::Nbd || target.chap.is_empty()
                        })
                        .map(|portal| url(portal, &target.name, Lun(lun), name))
                        .collect(),
                })
            };
            target.luns.iter().filter_map(export).collect::<Vec<_>>()
        });
        exports.collect()
    }

    /// Returns the open volumes, by name, with their geometry.
    pub(crate) fn volumes(&self) -> Vec<(String, Geometry)> {
        let volumes = self.shown().volumes;
        volumes.iter().map(|(name, volume)| (name.clone(), volume.geometry())).collect()
    }

    /// Closes a volume and opens it again: for a volume whose flush failed, or whose file was deleted, replaced or
    /// truncated. Its sessions have `grace` to log out; without `grace` the call is refused while the volume has
    /// sessions. Blocks the thread, which must not be a core.
    pub(crate) async fn reattach(
        self: &Arc<Self>,
        volume: &str,
        grace: Option<Duration>,
    ) -> Result<ChangeOutcome, ChangeError> {
        let force = grace.map_or(Force::Nobody, Force::Everybody);
        let mut attempts = Attempts::default();
        let begun = loop {
            let mut prepared = self.prepare_again(Cause::Reattach(volume.to_owned()))?;
            prepared.flush_replaced().await?;
            match prepared.commit(None, force, BTreeMap::new(), |_| Ok(())) {
                Err(error) if attempts.is_outdated(&error) => {}
                begun => break begun?,
            }
        };
        let made = begun.finish_one().await?;
        let missing =
            self.running().absent.volumes.iter().find(|one| one.config.name == volume).cloned();
        if let Some(missing) = missing {
            let why = missing.why.unwrap_or_else(|| not_in_force(&format!("volume {volume}")));
            return Err(ChangeError::Pending(why));
        }
        info!(volume, "the volume is re-attached");
        Ok(made)
    }

    /// Returns the desired configuration.
    pub(crate) fn desired(&self) -> Arc<Config> {
        self.running().desired.clone()
    }

    /// Marks the missing volumes that no task opens as being opened, and returns how.
    fn plans_of_missing(&self) -> Vec<OpenPlan> {
        let mut running = self.running();
        let mut plans = Vec::new();
        {
            let desired = running.desired.clone();
            let different = Differences::between(&running.config, &desired);
            for missing in running.absent.volumes.iter().filter(|missing| !missing.has_task) {
                let config = &missing.config;
                plans.push(OpenPlan {
                    config: config.clone(),
                    pool: desired.pool_of(config),
                    accounts: desired.accounts_of(config),
                    scope: different.scope(&running, config).map(str::to_owned),
                    open_mode: missing.open_mode,
                });
            }
        }
        running.absent.volumes.iter_mut().for_each(|missing| missing.has_task = true);
        plans
    }

    /// Reports the volumes of pending parts as problems. Returns the reasons of all parts.
    fn report_pending(&self, pending: &BTreeSet<Part>) -> Vec<String> {
        let mut running = self.running();
        for missing in &mut running.absent.volumes {
            let part = Part::Volume(missing.config.name.clone());
            if missing.why.is_none() && pending.contains(&part) {
                missing.why = Some(part.unfinished());
            }
        }
        self.show(&running);
        pending.iter().map(Part::unfinished).collect()
    }

    /// Carries out work on a file that no volume may take meanwhile. Refuses if a volume is being opened there or
    /// closed.
    pub(crate) fn with_file<T>(&self, path: &Path, work: impl FnOnce() -> T) -> Option<T> {
        let _claim = self.claims.try_claim("", holdings_of_file(path))?;
        Some(work())
    }

    /// Returns the metrics as OpenMetrics text.
    pub(crate) fn metrics(&self) -> String {
        let usage = self.volume_usage().into_iter();
        let spaces = usage.map(|(name, Usage { size, allocated, .. })| VolumeSpace {
            name,
            size,
            allocated,
        });
        let pools = self.pools.open_pools().into_iter().map(|open| open.usage());
        self.front.access.metrics.show_space(spaces.collect(), pools.collect());
        self.front.metrics()
    }

    /// Checks the certificates of portals now, instead of at the next connection.
    pub(crate) fn reload_certificates(&self) {
        let portals = self.front.portals.all();
        portals.iter().filter_map(|portal| portal.certificates()).for_each(|tls| tls.reload());
    }

    /// Stops changes: no change begins, and no change waits for logouts any more.
    pub(crate) fn end_changes(&self) {
        self.is_ending.send_replace(true);
    }

    fn is_ending(&self) -> bool {
        *self.is_ending.borrow()
    }

    /// Waits until the server shuts down.
    async fn ending(&self) {
        // The sender lives as long as `self`, so this cannot fail.
        let _ = self.is_ending.subscribe().wait_for(|ending| *ending).await;
    }

    /// Stops accepting connections. When this returns, no connection is being accepted.
    pub(crate) async fn stop_accepting(&self) {
        let portals = std::mem::take(&mut self.running().portals);
        for portal in portals {
            portal.close().await;
        }
    }

    /// Flushes all open stores that respond, concurrently, until the deadline. Returns false if a store was not
    /// flushed; the log names it.
    pub(crate) async fn flush(&self, deadline: Instant) -> bool {
        let mut stores: Stores = self.claims.stores();
        let mut silent = Vec::new();
        for (name, volume) in &self.running().volumes {
            if volume.unit.responds() {
                stores.push((name.clone(), volume.store.clone()));
            } else {
                silent.push(name.clone());
            }
        }
        for volume in &silent {
            error!(
                volume,
                "the volume does not respond: it was closed without a flush of its last writes"
            );
        }
        claims::flush(&self.cores, stores, Some(deadline)).await && silent.is_empty()
    }

    /// Writes a checkpoint of each open pool: the next start has nothing to carry out again, and all data keeps its checksums.
    pub(crate) async fn checkpoint_pools(&self) {
        let open = self.pools.open_pools();
        let written: Vec<_> = open.iter().map(|open| open.checkpoint()).collect();
        for (open, written) in open.iter().zip(written) {
            if let Err(error) = written.await {
                warn!(pool = open.config().name, %error, "no checkpoint was written at the end; the next start reads the journal");
            }
        }
    }
}

/// Returns the configuration of a server that has not applied anything. The parts that changes apply are empty;
/// `config` gives only the settings with which the rest of the server starts. If a key were set here without being in
/// force, it would count as unchanged and never be applied.
fn in_force_at_start(config: &Config) -> Config {
    let Config {
        cores,
        io_engine,
        spin,
        control,
        isns,
        limits,
        api,
        state,
        listen: _,
        pools: _,
        volumes: _,
        targets: _,
        accounts: _,
        hosts: _,
        discovery: _,
        chap: _,
        source: _,
    } = config;
    Config {
        cores: *cores,
        io_engine: *io_engine,
        spin: *spin,
        control: control.clone(),
        isns: isns.clone(),
        limits: limits.clone(),
        api: api.clone(),
        state: state.clone(),
        ..Config::default()
    }
}

/// Returns the ports of a target, one for each portal group.
fn target_ports(target: &TargetConfig, groups: &BTreeSet<u16>) -> Vec<TargetPort> {
    let port = |&tag: &u16| TargetPort {
        access_state: target.access_state(tag),
        is_preferred: target.preferred == Some(tag),
        ..TargetPort::of_portal_group(&target.name, tag)
    };
    groups.iter().filter(|&&tag| target.is_reached_through(tag)).map(port).collect()
}

fn url(portal: &Portal, target: &str, lun: Lun, volume: &str) -> String {
    let (protocol, secure) = (portal.protocol(), if portal.tls.is_some() { "s" } else { "" });
    let portal = portal.address();
    // A portal on all addresses is always reachable on the loopback.
    let portal = match (portal.ip().is_unspecified(), portal.is_ipv4()) {
        (false, _) => portal,
        (true, true) => SocketAddr::from(([127, 0, 0, 1], portal.port())),
        (true, false) => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), portal.port()),
    };
    match protocol {
        Protocol::Iscsi => format!("iscsi{secure}://{portal}/{target}/{}", lun.0),
        Protocol::Nbd => format!("nbd{secure}://{portal}/{volume}"),
    }
}

/// Counts the attempts to make a change that others overtake between its preparation and its commit.
#[derive(Default)]
pub(crate) struct Attempts(usize);

impl Attempts {
    /// Returns whether to make the change again after this error.
    pub(crate) fn is_outdated(&mut self, error: &ChangeError) -> bool {
        self.0 += 1;
        self.0 < ATTEMPTS && matches!(error, ChangeError::UnderWay)
    }
}

/// Returns the sentence for an object that is pending.
fn not_in_force(object: &str) -> String {
    format!(
        "{object} is not in force yet: it waits for its disk, or until the sessions of what it replaces have ended"
    )
}

/// Returns the error of a volume that could not be opened.
fn not_opened(volume: &str) -> impl Fn(StoreError) -> ResourceError + '_ {
    |source| ResourceError::Store { volume: volume.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::num::NonZeroUsize;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use sarsen_io::cores::{FileEngine, block_on};

    use super::*;
    use crate::access::Policy;
    use crate::config::{parse_file, parse_portal, parse_volume};
    use crate::host::ServerHost;
    use crate::sessions::Client;

    /// Starts an engine with this configuration, and its environment.
    fn started(config: &Config) -> (Arc<Engine>, Arc<Cores>) {
        let cores = Cores::start(NonZeroUsize::new(1), config.io_engine, config.spin);
        let cores = Arc::new(cores.expect("cores"));
        let array = Array::new(Arc::new(ServerHost::new(&cores)));
        let engine = Engine::new(config, &cores, array, Box::new(|_, store| store));
        let prepared = engine.prepare(config.clone(), Cause::Start(None)).expect("prepared");
        prepared.start().expect("started");
        (engine, cores)
    }

    #[test]
    fn queries_do_not_wait_for_changes() {
        let target = TargetConfig {
            name: "iqn.2026-11.test:t".into(),
            luns: [(0, "a".into())].into(),
            ..TargetConfig::default()
        };
        let config = Config {
            listen: vec![parse_portal("127.0.0.1:0").expect("a portal")],
            volumes: vec![parse_volume("a=ram:1MiB").expect("a volume")],
            targets: vec![target],
            ..Config::default()
        };
        let (engine, _cores) = started(&config.finish().expect("valid"));
        let _changing = engine.running();
        let exports = engine.exports();
        assert_eq!((exports.len(), exports[0].size, exports[0].urls.len()), (1, 1 << 20, 1));
        assert_eq!(engine.volumes()[0].0, "a");
        assert_eq!(engine.config().targets.len(), 1);
    }

    fn ruled_config(rules: &str, rest: &str) -> Config {
        let text = format!(
            "listen = [\"127.0.0.1:0\"]\n\
             [[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\nserial = \"s\"\n\
             [[target]]\nname = \"iqn.2026-11.test:t\"\nluns = [\"a\"]\n{rules}\n{rest}"
        );
        parse_file(Path::new("s.toml"), &text).and_then(Config::finish).expect("valid")
    }

    #[test]
    fn a_server_that_starts_with_rules_and_one_that_takes_them_over_have_the_same_in_force() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut accounts = String::new();
        for name in ["host", "san"] {
            let path = folder.path().join(name);
            write(&path, format!("the secret of {name}")).expect("written");
            set_permissions(&path, Permissions::from_mode(0o600)).expect("a mode");
            accounts += &format!("[[account]]\nname = \"{name}\"\nsecret-file = {path:?}\n");
        }
        let rest = format!(
            "{accounts}[discovery]\nchap = [\"host\"]\nown-account = \"san\"\n\
             [[host]]\nname = \"slow\"\ninitiators = [\"iqn.2026-11.test:slow\"]\niops = 1\n"
        );
        let rules = "chap = [\"host\"]\nown-account = \"san\"\nallow = [{ host = \"slow\", read-only = true }]";
        let ruled = ruled_config(rules, &rest);
        let expected = Policy::compile(&ruled, None).expect("a policy");
        let holds = |engine: &Engine, how: &str| {
            assert!(*engine.front.access.policy() == expected, "{how}: other rules are in force");
            let client = Client {
                name: "iqn.2026-11.test:slow".into(),
                peer: (Ipv6Addr::LOCALHOST, 5000).into(),
                account: None,
                certificate: None,
            };
            assert!(engine.front.qos.host_of(&client).is_some(), "{how}: the host has no limit");
        };
        holds(&started(&ruled).0, "started");
        for cause in [Cause::Edit, Cause::Reload] {
            let (engine, _cores) = started(&ruled_config("", ""));
            assert!(*engine.front.access.policy() != expected, "nothing is shown");
            let prepared = engine.prepare(ruled.clone(), cause.clone()).expect("prepared");
            let made = block_on(FileEngine::Pool, prepared.make(None)).expect("a runtime");
            made.expect("nobody uses it");
            holds(&engine, &format!("{cause:?}"));
        }
    }
}
