//! The open pools. A pool is opened once, by the first volume or change that needs it, and all of its volumes share it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sarsen_io::{threads, time};
use tracing::{error, info};

use crate::config::PoolConfig;
use crate::problem::MissingObject;
use crate::stores::{OpenPool, PoolCores, StoreError};

/// The time for which an attempt to open a pool counts for all of its volumes.
const FAILED_FOR: Duration = Duration::from_secs(5);

/// The pools of a server.
pub(crate) struct Pools {
    pub(crate) cores: PoolCores,
    entries: Mutex<BTreeMap<String, Entry>>,
    /// An opening has ended.
    opened: Condvar,
}

enum Entry {
    /// It is being opened.
    Opening,
    Open(Arc<OpenPool>),
    /// It could not be opened, for this reason, at this time.
    Failed(String, Instant),
}

/// Returns whether two configurations are of the same pool, whatever its name.
pub(super) fn is_same_pool(one: &PoolConfig, other: &PoolConfig) -> bool {
    let devices = |config: &PoolConfig| {
        let mut devices: Vec<PathBuf> = config.devices.clone();
        devices.sort();
        devices
    };
    devices(one) == devices(other)
}

impl Pools {
    pub(super) fn new(cores: PoolCores) -> Self {
        Self { cores, entries: Mutex::default(), opened: Condvar::new() }
    }

    /// Returns the pool, which is opened if it is not open. Blocks the thread, which must not be a core.
    pub(super) fn open(&self, config: &PoolConfig) -> Result<Arc<OpenPool>, StoreError> {
        let mut entries = self.entries.lock();
        loop {
            match entries.get(&config.name) {
                Some(Entry::Opening) => self.opened.wait(&mut entries),
                // A pool that has stopped is opened again when its last volume has been closed.
                Some(Entry::Open(open)) if open.pool.is_stopped() => {
                    entries.remove(&config.name);
                }
                Some(Entry::Open(open)) if is_same_pool(&open.config(), config) => {
                    return Ok(open.clone());
                }
                Some(Entry::Open(_)) => {
                    let problem =
                        "it is open with other devices: restart the server to change them";
                    return Err(StoreError::pool(&config.name, problem));
                }
                Some(Entry::Failed(why, at)) if time::now() < *at + FAILED_FOR => {
                    return Err(StoreError::pool(&config.name, why.clone()));
                }
                Some(Entry::Failed(..)) | None => break,
            }
        }
        // It may have another name now.
        let renamed = entries.iter().find_map(|(name, entry)| match entry {
            Entry::Open(open) if is_same_pool(&open.config(), config) => Some(name.clone()),
            _ => None,
        });
        if let Some(Entry::Open(open)) = renamed.and_then(|name| entries.remove(&name)) {
            entries.insert(config.name.clone(), Entry::Open(open.clone()));
            return Ok(open);
        }
        entries.insert(config.name.clone(), Entry::Opening);
        drop(entries);
        let opened = OpenPool::open(&self.cores, config);
        let entry = match &opened {
            Ok(open) => Entry::Open(open.clone()),
            Err(error) => {
                let why = error.to_string();
                let prefix = format!("pool {}: ", config.name);
                let why = why.strip_prefix(&prefix).unwrap_or(&why).to_owned();
                Entry::Failed(why, time::now())
            }
        };
        self.entries.lock().insert(config.name.clone(), entry);
        self.opened.notify_all();
        opened
    }

    /// Returns an open pool.
    pub(crate) fn get(&self, name: &str) -> Option<Arc<OpenPool>> {
        match self.entries.lock().get(name) {
            Some(Entry::Open(open)) => Some(open.clone()),
            _ => None,
        }
    }

    /// Returns the reason why a pool is not open.
    pub(crate) fn failure(&self, name: &str) -> Option<String> {
        match self.entries.lock().get(name) {
            Some(Entry::Failed(why, _)) => Some(why.clone()),
            _ => None,
        }
    }

    /// Returns the open pools.
    pub(crate) fn all(&self) -> Vec<Arc<OpenPool>> {
        let entries = self.entries.lock();
        let open = entries.values().filter_map(|entry| match entry {
            Entry::Open(open) => Some(open.clone()),
            Entry::Opening | Entry::Failed(..) => None,
        });
        open.collect()
    }

    /// Applies what is desired: opens missing pools, on threads of their own, and forgets those that are not desired. A
    /// pool is closed when its last volume is.
    pub(super) fn apply(self: &Arc<Self>, desired: &[PoolConfig]) {
        let mut entries = self.entries.lock();
        let is_desired = |name: &str| desired.iter().any(|config| config.name == name);
        let mut unused = Vec::new();
        entries.retain(|name, entry| {
            let stays = is_desired(name) || matches!(entry, Entry::Opening);
            if let (false, Entry::Open(open)) = (stays, &*entry) {
                unused.push((name.clone(), open.clone()));
            }
            stays
        });
        for config in desired {
            match entries.get(&config.name) {
                Some(Entry::Open(open)) => open.adopt(config),
                Some(Entry::Opening) => {}
                Some(Entry::Failed(..)) | None => {
                    let renamed =
                        unused.iter().position(|(_, open)| is_same_pool(&open.config(), config));
                    if let Some((_, open)) = renamed.map(|place| unused.remove(place)) {
                        open.adopt(config);
                        entries.insert(config.name.clone(), Entry::Open(open));
                        continue;
                    }
                    let (pools, config) = (self.clone(), config.clone());
                    let thread = threads::spawn("opening", move || drop(pools.open(&config)));
                    if let Err(error) = thread {
                        error!(%error, "no thread could be started to open a pool");
                    }
                }
            }
        }
        drop(entries);
        for (name, open) in unused {
            info!(pool = name, "the pool is closed when its last volume is");
            drop(open);
        }
    }

    /// Returns the pools with problems.
    pub(super) fn problems(&self) -> Vec<(MissingObject, String)> {
        let entries = self.entries.lock();
        let problem = |(name, entry): (&String, &Entry)| {
            let why = match entry {
                Entry::Opening => None,
                Entry::Open(open) => open.problem().map(|problem| format!("pool {name} {problem}")),
                Entry::Failed(why, _) => Some(format!("pool {name}: {why}")),
            };
            Some((MissingObject::Pool(name.clone()), why?))
        };
        entries.iter().filter_map(problem).collect()
    }
}
