//! The open pools. A pool is opened once, by the first volume or change that needs it, and all of its volumes share it. It is
//! known by its devices, because a change may give it another name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use sarsen_io::{threads, time};
use tokio::sync::Notify;
use tracing::{error, info};

use crate::config::PoolConfig;
use crate::model::is_same_device;
use crate::problem::MissingObject;
use crate::schema::pools::{PoolLoss, StoredVolume};
use crate::stores::pool::preview_recovery;
use crate::stores::{OpenPool, PoolMemory, RemoteAccess, StoreCores, StoreError};

/// After a failed attempt, a pool is not opened again for this time: all of its volumes get the same answer.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The devices of a pool, in order.
type DeviceSet = Vec<PathBuf>;

/// The pools of a server.
pub(crate) struct Pools {
    pub(crate) cores: StoreCores,
    memory: PoolMemory,
    state: Mutex<State>,
    /// An opening has ended.
    opened: Condvar,
    /// A pool was recovered: its volumes can be opened now.
    pub(crate) recovered: Notify,
}

#[derive(Default)]
struct State {
    /// The desired pools, by name.
    desired: BTreeMap<String, PoolConfig>,
    /// Those of them that are open. A pool that is not desired is open until its last volume is closed.
    held: BTreeMap<DeviceSet, Arc<OpenPool>>,
    attempts: BTreeMap<DeviceSet, Attempt>,
}

/// The last attempt to open a pool.
enum Attempt {
    UnderWay,
    Open(Weak<OpenPool>),
    Failed {
        why: String,
        at: Instant,
        /// Its recovery is previewed: meanwhile, its devices are not opened for use.
        is_previewed: bool,
    },
}

impl Attempt {
    fn failed(why: String) -> Self {
        Self::Failed { why, at: time::now(), is_previewed: false }
    }
}

fn devices_of(config: &PoolConfig) -> DeviceSet {
    let mut devices = config.devices.clone();
    devices.sort();
    devices
}

/// Returns whether two configurations are of the same pool, whatever its name: they share a device. No two pools of a
/// configuration do.
pub(super) fn is_same_pool(one: &PoolConfig, other: &PoolConfig) -> bool {
    is_of(&one.devices, other)
}

fn is_of(devices: &[PathBuf], config: &PoolConfig) -> bool {
    devices.iter().any(|device| config.devices.iter().any(|one| is_same_device(one, device)))
}

impl State {
    /// Returns the devices with which the pool of a configuration is known. It may have got others since then.
    fn key(&self, config: &PoolConfig) -> DeviceSet {
        let mut known = self.attempts.keys().chain(self.held.keys());
        known.find(|devices| is_of(devices, config)).cloned().unwrap_or_else(|| devices_of(config))
    }

    fn problem_of(&self, name: &str) -> Option<String> {
        let devices = self.key(self.desired.get(name)?);
        match (self.held.get(&devices), self.attempts.get(&devices)) {
            (Some(open), _) => Some(format!("pool {name} {}", open.problem()?)),
            (None, Some(Attempt::Failed { why, .. })) => Some(format!("pool {name}: {why}")),
            (None, _) => None,
        }
    }

    /// Notes the devices that pools have now.
    fn rename_keys(&mut self, desired: &[PoolConfig]) {
        for config in desired {
            let (old, new) = (self.key(config), devices_of(config));
            if old == new || matches!(self.attempts.get(&old), Some(Attempt::UnderWay)) {
                continue;
            }
            if let Some(attempt) = self.attempts.remove(&old) {
                self.attempts.insert(new.clone(), attempt);
            }
            if let Some(open) = self.held.remove(&old) {
                self.held.insert(new, open);
            }
        }
    }
}

/// An attempt to open a pool. If it ends by a panic, it has failed.
struct Opening<'a> {
    pools: &'a Pools,
    devices: DeviceSet,
}

impl Opening<'_> {
    fn end(&self, attempt: Attempt) {
        let mut state = self.pools.state();
        if let Attempt::Open(open) = &attempt
            && let Some(open) = open.upgrade()
            && let Some(config) = state.desired.values().find(|one| is_of(&self.devices, one))
        {
            open.adopt(config);
            state.held.insert(self.devices.clone(), open);
        }
        state.attempts.insert(self.devices.clone(), attempt);
        drop(state);
        self.pools.opened.notify_all();
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if matches!(self.pools.state().attempts.get(&self.devices), Some(Attempt::UnderWay)) {
            let why = "its opening was interrupted; see the log".to_owned();
            self.end(Attempt::failed(why));
        }
    }
}

/// A preview of a recovery that is under way.
struct Previewing<'a> {
    pools: &'a Pools,
    devices: DeviceSet,
}

impl Drop for Previewing<'_> {
    fn drop(&mut self) {
        let mut state = self.pools.state();
        if let Some(Attempt::Failed { is_previewed, .. }) = state.attempts.get_mut(&self.devices) {
            *is_previewed = false;
        }
        drop(state);
        self.pools.opened.notify_all();
    }
}

/// The reason why a pool that has stopped is not opened again.
const STILL_USED: &str = "has stopped, and other volumes still use it: run `sarsen volume reattach` for each of them. The last one \
                          opens it again";

impl Pools {
    pub(super) fn new(cores: StoreCores, memory: PoolMemory) -> Self {
        Self {
            cores,
            memory,
            state: Mutex::default(),
            opened: Condvar::new(),
            recovered: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the pool, which is opened if it is not open. Blocks the thread, which must not be a core.
    pub(super) fn open(
        &self,
        config: &PoolConfig,
        access: &RemoteAccess,
    ) -> Result<Arc<OpenPool>, StoreError> {
        self.open_with_losses(config, access, &[])
    }

    fn open_with_losses(
        &self,
        config: &PoolConfig,
        access: &RemoteAccess,
        lose: &[PoolLoss],
    ) -> Result<Arc<OpenPool>, StoreError> {
        let mut state = self.state();
        let devices = state.key(config);
        // Dropped without the lock: the last use of a device may wait for its disk.
        let mut stopped = None;
        loop {
            match state.attempts.get(&devices) {
                Some(Attempt::UnderWay | Attempt::Failed { is_previewed: true, .. }) => {
                    self.opened.wait(&mut state);
                }
                Some(Attempt::Open(open)) => match open.upgrade() {
                    Some(open) if !open.pool.is_stopped() => return Ok(open),
                    // A pool that has stopped is opened again when its last volume has been closed.
                    open => {
                        let own = usize::from(open.is_some())
                            + usize::from(state.held.contains_key(&devices));
                        let is_used =
                            open.as_ref().is_some_and(|open| Arc::strong_count(open) > own);
                        if is_used {
                            drop(state);
                            drop(open);
                            return Err(StoreError::pool(&config.name, STILL_USED));
                        }
                        stopped = state.held.remove(&devices).or(open);
                        break;
                    }
                },
                // With other devices, it may succeed.
                Some(Attempt::Failed { why, at, .. })
                    if time::now() < *at + RETRY_AFTER && devices == devices_of(config) =>
                {
                    return Err(StoreError::pool(&config.name, why.clone()));
                }
                Some(Attempt::Failed { .. }) | None => break,
            }
        }
        state.attempts.insert(devices.clone(), Attempt::UnderWay);
        drop(state);
        drop(stopped);
        let opening = Opening { pools: self, devices };
        let opened = OpenPool::open(access, config, &self.memory, lose);
        opening.end(match &opened {
            Ok(open) => Attempt::Open(Arc::downgrade(open)),
            Err(error) => {
                let why = error.to_string();
                let prefix = format!("pool {}: ", config.name);
                let why = why.strip_prefix(&prefix).unwrap_or(&why).to_owned();
                Attempt::failed(why)
            }
        });
        opened
    }

    /// Opens a pool even if it loses something. Blocks the thread, which must not be a core.
    pub(crate) fn recover(
        &self,
        config: &PoolConfig,
        access: &RemoteAccess,
        lose: &[PoolLoss],
    ) -> Result<(), StoreError> {
        {
            let mut state = self.state();
            let devices = state.key(config);
            // The last attempt has an answer that is not valid any more.
            if matches!(state.attempts.get(&devices), Some(Attempt::Failed { .. })) {
                state.attempts.remove(&devices);
            }
        }
        drop(self.open_with_losses(config, access, lose)?);
        self.recovered.notify_one();
        Ok(())
    }

    /// Returns what a pool that could not be opened would have after a recovery. Blocks the thread, which must not be a core.
    pub(crate) fn preview_recovery(
        &self,
        config: &PoolConfig,
        access: &RemoteAccess,
        lose: &[PoolLoss],
    ) -> Result<Vec<StoredVolume>, StoreError> {
        let mut state = self.state();
        let devices = state.key(config);
        loop {
            match state.attempts.get_mut(&devices) {
                Some(Attempt::UnderWay | Attempt::Failed { is_previewed: true, .. }) => {
                    self.opened.wait(&mut state);
                }
                Some(Attempt::Failed { is_previewed, .. }) => {
                    *is_previewed = true;
                    break;
                }
                Some(Attempt::Open(_)) | None => {
                    return Err(StoreError::pool(&config.name, "its opening has not failed"));
                }
            }
        }
        drop(state);
        let _previewing = Previewing { pools: self, devices };
        preview_recovery(access, config, &self.memory, lose)
    }

    /// Returns a desired pool that is open.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<OpenPool>> {
        let state = self.state();
        state.held.get(&state.key(state.desired.get(name)?)).cloned()
    }

    /// Returns the pool of a configuration, if it is open, whatever its name.
    pub(super) fn of(&self, config: &PoolConfig) -> Option<Arc<OpenPool>> {
        let state = self.state();
        state.held.get(&state.key(config)).cloned()
    }

    /// Returns whether the pool with these devices is open, whatever its name.
    pub(super) fn is_open(&self, config: &PoolConfig) -> bool {
        let state = self.state();
        matches!(state.attempts.get(&state.key(config)), Some(Attempt::Open(open)) if open.strong_count() > 0)
    }

    /// Returns whether an open pool has another cache mode than is desired. It keeps that until it is closed.
    pub(super) fn has_other_cache(&self, desired: &[PoolConfig]) -> bool {
        let state = self.state();
        desired.iter().any(|config| {
            let open = state.held.get(&state.key(config));
            open.is_some_and(|open| open.cache() != config.cache())
        })
    }

    /// Returns the reason why a desired pool is not open.
    pub(crate) fn reason_not_open(&self, name: &str) -> Option<String> {
        let state = self.state();
        match state.attempts.get(&state.key(state.desired.get(name)?)) {
            Some(Attempt::Failed { why, .. }) => Some(why.clone()),
            _ => None,
        }
    }

    /// Returns the desired pools that are open.
    pub(crate) fn open_pools(&self) -> Vec<Arc<OpenPool>> {
        self.state().held.values().cloned().collect()
    }

    /// Applies what is desired: opens missing pools, on threads of their own, and releases those that are not desired.
    pub(super) fn apply(self: &Arc<Self>, desired: &[PoolConfig], access: &RemoteAccess) {
        let mut state = self.state();
        state.desired = desired.iter().map(|one| (one.name.clone(), one.clone())).collect();
        state.rename_keys(desired);
        let sets: BTreeMap<DeviceSet, &PoolConfig> =
            desired.iter().map(|config| (state.key(config), config)).collect();
        let held = std::mem::take(&mut state.held);
        let (held, released) =
            held.into_iter().partition(|(devices, _)| sets.contains_key(devices));
        let released: BTreeMap<DeviceSet, Arc<OpenPool>> = released;
        state.held = held;
        state.attempts.retain(|devices, attempt| match attempt {
            Attempt::UnderWay => true,
            Attempt::Open(open) => open.strong_count() > 0,
            Attempt::Failed { .. } => sets.contains_key(devices),
        });
        for (devices, config) in sets {
            let open = match state.attempts.get(&devices) {
                Some(Attempt::UnderWay) => continue,
                Some(Attempt::Open(open)) => open.upgrade(),
                Some(Attempt::Failed { .. }) | None => None,
            };
            if let Some(open) = open {
                open.set_accounts(access);
                open.adopt(config);
                state.held.insert(devices, open);
                continue;
            }
            let (pools, config, access) = (self.clone(), config.clone(), access.clone());
            let thread = threads::spawn("opening", move || drop(pools.open(&config, &access)));
            if let Err(error) = thread {
                error!(%error, "no thread could be started to open a pool");
            }
        }
        drop(state);
        if released.is_empty() {
            return;
        }
        for open in released.values() {
            info!(pool = open.config().name, "the pool is closed when its last volume is");
        }
        // The last use of a device may wait for its disk.
        if let Err(error) = threads::spawn("closing", move || drop(released)) {
            error!(%error, "no thread could be started to close a pool");
        }
    }

    /// Leaves out devices of pools that do not respond, and tries those again that were left out. Each pool has a thread.
    pub(crate) fn watch(&self) {
        for open in self.open_pools().into_iter().filter(|open| open.begin_watch()) {
            let name = open.config().name;
            let watched = threads::spawn("devices", move || open.watch_devices());
            if let Err(error) = watched {
                error!(pool = name, %error, "no thread could be started to watch the devices of a pool");
            }
        }
    }

    /// Returns the pools with problems.
    pub(super) fn problems(&self) -> Vec<(MissingObject, String)> {
        let state = self.state();
        let problem =
            |name: &String| Some((MissingObject::Pool(name.clone()), state.problem_of(name)?));
        state.desired.keys().filter_map(problem).collect()
    }

    /// Returns the present problem of a desired pool, if it has one.
    pub(crate) fn problem_of(&self, name: &str) -> Option<String> {
        self.state().problem_of(name)
    }
}
