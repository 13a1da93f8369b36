//! The devices of an open pool: where they are, and those that are missing, fail, come back, arrive and leave.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_block::Store;
use sarsen_io::time;
use sarsen_pool::{DeviceIdentity, DeviceInfo, DeviceState, PoolError, PoolProblem, identify};
use sarsen_volume::VolumeHealth;
use tokio::sync::oneshot::{self, error::TryRecvError};
use tracing::{info, warn};

use super::super::StoreError;
use super::super::file::FileStore;
use super::creation::{create_file, refuse_if_used};
use super::device::Device;
use super::failures::recovery;
use super::{OpenPool, PoolMemory, failed, new_identifier};
use crate::config::PoolConfig;
use crate::model::is_same_device;
use crate::schema::pools::PoolLoss;

/// A device with requests of which none has ended for this time does not respond. A flush of much data takes some seconds.
const SILENCE: Duration = Duration::from_secs(30);
/// The same for a logical unit of another server to which no path works: it is known not to respond.
const SILENCE_WITHOUT_PATH: Duration = Duration::from_secs(5);
/// The time after which a device that was left out is tried again. It doubles with each failed try.
const FIRST_RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(3600);
/// What was not overwritten for two of these is not copied after a power failure, and keeps its checksums.
const SETTLE_INTERVAL: Duration = Duration::from_secs(30);

/// A path that the configuration of a pool names.
struct NamedDevice {
    path: PathBuf,
    device: Option<Device>,
    /// The identifier of the device of the pool that is there, or that was.
    identifier: Option<[u8; 16]>,
    /// Why the path cannot be used.
    problem: Option<String>,
    is_out: bool,
    /// It is being added, and may not be there yet.
    is_expected: bool,
    /// It was a device of the pool, and was removed.
    is_removed: bool,
    /// It was named when the pool was opened, perhaps by a change that an interruption ended half-way.
    is_from_start: bool,
    /// It is there, and certainly no device of the pool.
    is_foreign: bool,
    retry_at: Instant,
    failed_tries: u32,
    /// The number of requests that had ended, and when it was seen first while others had not.
    progress: Option<(u64, Instant)>,
}

impl NamedDevice {
    fn new(path: &Path, opened: Result<Device, StoreError>) -> Self {
        let (device, problem) = match opened {
            Ok(device) => (Some(device), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            path: path.to_owned(),
            device,
            identifier: None,
            problem,
            is_out: false,
            is_expected: false,
            is_removed: false,
            is_from_start: false,
            is_foreign: false,
            retry_at: time::now() + FIRST_RETRY,
            failed_tries: 0,
            progress: None,
        }
    }

    /// Returns a path that was not tried yet.
    fn untried(path: &Path) -> Self {
        let missing = StoreError::NotFound { path: path.to_owned() };
        Self { problem: None, ..Self::new(path, Err(missing)) }
    }

    /// Sets when it is tried again.
    fn wait(&mut self, now: Instant) {
        let wait = FIRST_RETRY.saturating_mul(1 << self.failed_tries.min(16));
        self.failed_tries += 1;
        self.retry_at = now + wait.min(LONGEST_RETRY);
    }

    /// Returns for how long it has had requests of which none has ended, if that is too long.
    fn silence(&mut self, info: &DeviceInfo, now: Instant) -> Option<Duration> {
        let is_reachable = self.device.as_ref().is_none_or(Device::is_reachable);
        let limit = if is_reachable { SILENCE } else { SILENCE_WITHOUT_PATH };
        match self.progress {
            _ if info.pending_requests == 0 => self.progress = None,
            Some((ended, since)) if ended == info.ended_requests => {
                return (now >= since + limit).then_some(limit);
            }
            _ => self.progress = Some((info.ended_requests, now)),
        }
        None
    }
}

/// A device of a pool, or a path that is none, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReportedDevice {
    /// Its path, if it is known.
    pub(crate) path: Option<PathBuf>,
    /// Bytes of the device, if it is open.
    pub(crate) size: Option<u64>,
    /// The device in its pool.
    pub(crate) info: Option<DeviceInfo>,
    /// Why it is not in use.
    pub(crate) problem: Option<String>,
}

/// The paths of a pool.
pub(super) struct NamedDevices(Mutex<Vec<NamedDevice>>);

impl NamedDevices {
    /// Opens the devices of a pool, which an error names, with `open`. Fails if none can be opened.
    pub(super) fn open_for(
        config: &PoolConfig,
        open: impl Fn(&Path) -> Result<Device, StoreError>,
    ) -> Result<Self, StoreError> {
        Self::open(config, open).map_err(|error| match error {
            StoreError::Pool { .. } => error,
            other => StoreError::Device { pool: config.name.clone(), source: Box::new(other) },
        })
    }

    fn open(
        config: &PoolConfig,
        open: impl Fn(&Path) -> Result<Device, StoreError>,
    ) -> Result<Self, StoreError> {
        let opened = config.devices.iter().map(|path| (path, open(path)));
        let mut opened: Vec<_> = opened.collect();
        if opened.iter().all(|(_, opened)| opened.is_err())
            && let Some((_, Err(error))) = opened.drain(..).next()
        {
            return Err(error);
        }
        let named = opened.into_iter().map(|(path, opened)| NamedDevice {
            is_from_start: true,
            ..NamedDevice::new(path, opened)
        });
        Ok(Self(Mutex::new(named.collect())))
    }

    /// Notes the URLs that devices have now: another account, or further portals. They are used when a device is opened again.
    pub(super) fn rename(&self, config: &PoolConfig) {
        for one in self.0.lock().iter_mut().filter(|one| !config.devices.contains(&one.path)) {
            if let Some(path) = config.devices.iter().find(|path| is_same_device(path, &one.path)) {
                one.path.clone_from(path);
            }
        }
    }

    /// Returns the devices that are open, with their paths.
    pub(super) fn opened(&self) -> Vec<(PathBuf, Device)> {
        let named = self.0.lock();
        named.iter().filter_map(|one| Some((one.path.clone(), one.device.clone()?))).collect()
    }

    /// Returns the identifiers of the devices with these paths.
    pub(super) fn identifiers(&self, paths: &[PathBuf]) -> Vec<[u8; 16]> {
        let named = self.0.lock();
        named
            .iter()
            .filter(|one| paths.contains(&one.path))
            .filter_map(|one| one.identifier)
            .collect()
    }

    /// Notes what the devices say about themselves. They are those of the pool with this identifier, if it is known.
    pub(super) fn identified(&self, identities: Identities, pool: Option<[u8; 16]>) {
        let mut named = self.0.lock();
        for (path, identity) in identities {
            let Some(one) = named.iter_mut().find(|one| one.path == path) else { continue };
            match identity {
                Ok(identity) if pool.is_some_and(|pool| pool != identity.pool) => {
                    let problem = PoolProblem::Foreign.to_string();
                    (one.device, one.problem, one.is_foreign) = (None, Some(problem), true);
                }
                Ok(identity) => one.identifier = Some(identity.device),
                Err(problem) => (one.device, one.problem) = (None, Some(problem)),
            }
        }
    }

    /// Returns why a pool cannot be opened without a device, if paths cannot be used.
    pub(super) fn why_not_enough(&self, pool: &str, accepted: &[PoolLoss]) -> Option<String> {
        let problems = self.problems();
        let which = match problems.len() {
            0 => return None,
            1 => "some data has its only copy there, so the pool is not opened without it",
            _ => {
                "some data has its only copy on one of them, so the pool is not opened without it. Others of these paths \
                 may be no devices of the pool"
            }
        };
        let command = recovery(pool, accepted, PoolLoss::MissingDevices);
        let problems = problems.join("; ");
        Some(format!(
            "{problems}; {which}. If its device has another path now, set that: `sarsen pool set {pool} devices=…`. If it is \
             lost for good, go on without its data: {command}"
        ))
    }

    /// Returns the problems of the paths that may be devices of the pool, and cannot be used.
    fn problems(&self) -> Vec<String> {
        let named = self.0.lock();
        let with_problem = |one: &NamedDevice| {
            let problem = one.problem.as_ref()?;
            let path = one.path.display().to_string();
            // Most errors name the path.
            Some(if problem.contains(&path) {
                problem.clone()
            } else {
                format!("{path}: {problem}")
            })
        };
        named.iter().filter(|one| !one.is_foreign).filter_map(with_problem).collect()
    }
}

/// Returns the pool whose devices the paths of a configuration are, by what the devices say. If they are of different pools,
/// it is the one with the configured name. An interrupted `sarsen pool add --force` leaves a path of another pool.
pub(super) fn pool_of(config: &PoolConfig, identities: &Identities) -> Option<[u8; 16]> {
    let known = || identities.iter().filter_map(|(_, identity)| identity.as_ref().ok());
    let of = |is_meant: &dyn Fn(&DeviceIdentity) -> bool| {
        let pools: BTreeSet<_> =
            known().filter(|one| is_meant(one)).map(|identity| identity.pool).collect();
        pools.first().copied().filter(|_| pools.len() == 1)
    };
    of(&|_| true).or_else(|| of(&|identity| identity.pool_name == config.name))
}

/// What devices say about themselves, or why not, by their paths.
pub(super) type Identities = Vec<(PathBuf, Result<DeviceIdentity, String>)>;

/// Refuses devices that have an older state of their pool than the server has used: they were left out, and the device with
/// the newer one is missing. Returns whether that was accepted. Blocks the thread.
pub(super) fn refuse_older(
    config: &PoolConfig,
    memory: &PoolMemory,
    identities: &Identities,
    accepted: &[PoolLoss],
) -> Result<bool, StoreError> {
    let known = || identities.iter().filter_map(|(_, identity)| identity.as_ref().ok());
    let Some(pool) = pool_of(config, identities) else { return Ok(false) };
    let of_pool = known().filter(|identity| identity.pool == pool);
    let newest = of_pool.map(|identity| identity.checkpoint).max().unwrap_or(0);
    let least = memory.checkpoint(pool);
    let least = least.map_err(|error| StoreError::pool(&config.name, error.to_string()))?;
    if newest >= least || accepted.contains(&PoolLoss::NewerData) {
        return Ok(newest < least);
    }
    let command = recovery(&config.name, accepted, PoolLoss::NewerData);
    let problem = format!(
        "its devices have older data (checkpoint {newest}) than the server has used (checkpoint {least}): they were left out \
         before, and a device with newer data is missing. Connect that device. If it is lost, use the older data: {command}"
    );
    Err(StoreError::pool(&config.name, problem))
}

/// Returns which of these devices belong to pools, and what they say.
pub(super) async fn identify_all(devices: &[(PathBuf, Arc<dyn Store>)]) -> Identities {
    let mut identities = Vec::with_capacity(devices.len());
    for (path, store) in devices {
        let identity = match identify(store.clone()).await {
            Ok(identity) => Ok(identity),
            Err(PoolError::Unfit { problem, .. }) => Err(problem.to_string()),
            Err(error) => Err(error.to_string()),
        };
        identities.push((path.clone(), identity));
    }
    identities
}

fn is_online(info: &DeviceInfo) -> bool {
    info.state == DeviceState::Online
}

/// Returns why a device is left out.
fn reason(info: &DeviceInfo) -> Option<String> {
    match &info.state {
        DeviceState::LeftOut { reason } => Some(reason.clone()),
        DeviceState::Online => None,
    }
}

impl OpenPool {
    /// Returns the files of its devices that are open.
    pub(crate) fn files(&self) -> Vec<Arc<FileStore>> {
        self.opened_devices().iter().filter_map(|(_, device)| device.file().cloned()).collect()
    }

    /// Returns its devices that are open, with their paths.
    pub(super) fn opened_devices(&self) -> Vec<(PathBuf, Device)> {
        self.devices.opened()
    }

    /// Returns its devices, and the paths that are none.
    pub(crate) fn reported_devices(&self) -> Vec<ReportedDevice> {
        let mut infos = self.pool.devices();
        let named = self.devices.0.lock();
        let mut reported: Vec<ReportedDevice> = Vec::with_capacity(named.len());
        for one in named.iter().filter(|one| !one.is_expected && !one.is_removed) {
            let at = infos.iter().position(|info| Some(info.identifier) == one.identifier);
            let info = at.map(|at| infos.remove(at));
            let store = one.device.as_ref().map(Device::store);
            let size = store.map(|store| store.geometry().byte_count());
            // The last attempt to use it says more than why it was left out.
            let problem = one.problem.clone().or_else(|| info.as_ref().and_then(reason));
            reported.push(ReportedDevice { path: Some(one.path.clone()), size, info, problem });
        }
        // A path that cannot be used is that of a device that is missing, if there is only one of both.
        let foreign: Vec<_> =
            named.iter().filter(|one| one.is_foreign).map(|one| one.path.clone()).collect();
        let is_foreign =
            |one: &ReportedDevice| one.path.as_ref().is_some_and(|path| foreign.contains(path));
        let mut unknown = reported.iter_mut().filter(|one| one.info.is_none() && !is_foreign(one));
        if let (Some(one), None, 1) = (unknown.next(), unknown.next(), infos.len()) {
            one.info = infos.pop();
        }
        reported.extend(infos.into_iter().map(|info| ReportedDevice {
            path: None,
            size: None,
            problem: reason(&info),
            info: Some(info),
        }));
        reported
    }

    /// Returns a sentence about devices that are not in use.
    pub(super) fn device_problem(&self) -> Option<String> {
        let reported = self.reported_devices();
        let left_out = |one: &ReportedDevice| {
            let info = one.info.as_ref().filter(|info| !is_online(info))?;
            let problem = one.problem.clone().or_else(|| reason(info))?;
            let number = || format!("device {}", info.number);
            let name = one.path.as_ref().map_or_else(number, |path| path.display().to_string());
            Some(format!("{name}: {problem}"))
        };
        let left_out: Vec<_> = reported.iter().filter_map(left_out).collect();
        let strays = reported.iter().filter(|one| one.info.is_none());
        let strays = strays.filter_map(|one| Some((one.path.as_ref()?, one.problem.as_ref()?)));
        if !left_out.is_empty() {
            let has_unknown_path = |one: &ReportedDevice| one.info.is_some() && one.path.is_none();
            let mut where_it_may_be = String::new();
            if reported.iter().any(has_unknown_path) {
                let paths = strays.map(|(path, problem)| format!("{} ({problem})", path.display()));
                let paths = paths.collect::<Vec<_>>().join(", ");
                if !paths.is_empty() {
                    where_it_may_be = format!(
                        " The path of a missing device is one of these, of which others may be no devices of the pool: {paths}."
                    );
                }
            }
            return Some(format!(
                "is degraded: it serves its volumes without {} ({}).{where_it_may_be} Repair the device, or replace it with \
                 `sarsen pool replace {} OLD NEW`",
                if left_out.len() == 1 { "a device" } else { "some of its devices" },
                left_out.join("; "),
                self.config().name
            ));
        }
        let (path, problem) = { strays }.next()?;
        let path = path.display();
        Some(format!(
            "does not use {path}: {problem}. Add it with `sarsen pool add`, or take it \
             out of devices with `sarsen pool remove {} {path}`",
            self.config().name
        ))
    }

    /// Returns whether nothing watches the devices, and notes that something will.
    pub(crate) fn begin_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::AcqRel)
    }

    /// Leaves out devices that do not respond, and tries those again that were left out. Blocks the thread, which must not be a
    /// core, and ends what [`Self::begin_watch`] began.
    pub(crate) fn watch_devices(self: &Arc<Self>) {
        self.watch_once();
        self.is_watched.store(false, Ordering::Release);
    }

    fn watch_once(self: &Arc<Self>) {
        self.begin_to_remember_absences();
        self.remember_losses();
        let (now, config) = (time::now(), self.config());
        self.balancing.lock().balance(&self.pool, &config, &self.devices);
        self.settle_regions(now);
        let infos = self.pool.devices();
        let (mut silent, mut due, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        {
            let mut named = self.devices.0.lock();
            for path in &config.devices {
                if !named.iter().any(|one| one.path == *path) {
                    named.push(NamedDevice::untried(path));
                }
            }
            for one in named.iter_mut() {
                let info = infos.iter().find(|info| Some(info.identifier) == one.identifier);
                match info {
                    Some(info) if is_online(info) => {
                        (one.is_out, one.problem, one.failed_tries) = (false, None, 0);
                        let silence = one.silence(info, now);
                        silent.extend(silence.map(|silence| (info.number, silence)));
                        let why_gone = one.device.as_ref().and_then(Device::why_gone);
                        gone.extend(why_gone.map(|reason| (info.number, reason)));
                        continue;
                    }
                    Some(_) if !one.is_out => {
                        one.is_out = true;
                        one.wait(now);
                    }
                    None if one.identifier.is_some() => {
                        // It was removed.
                        (one.identifier, one.device, one.is_removed) = (None, None, true);
                        one.problem = Some("it was removed from the pool".to_owned());
                    }
                    Some(_) | None => {}
                }
                if one.retry_at <= now && !one.is_expected {
                    due.push((one.path.clone(), info.map(|info| info.number)));
                }
            }
            named.retain(|one| one.device.is_some() || config.devices.contains(&one.path));
        }
        for (number, silence) in silent {
            let reason = format!("it has ended no request for {} seconds", silence.as_secs());
            let left =
                self.run(move |pool| async move { pool.leave_out_device(number, &reason).await });
            if let Err(error) = left {
                warn!(pool = config.name, number, %error, "a device does not respond, and is needed");
            }
        }
        self.leave_out_gone(gone);
        for (path, number) in due {
            let tried = self.try_again(&config, &path, number);
            let mut named = self.devices.0.lock();
            let Some(one) = named.iter_mut().find(|one| one.path == path) else { continue };
            match tried {
                Ok((device, identifier)) => {
                    info!(pool = config.name, path = %path.display(), "a device is in use again");
                    (one.device, one.problem) = (Some(device), None);
                    one.identifier = Some(identifier);
                }
                Err(problem) => {
                    one.problem = Some(problem);
                    one.wait(now);
                }
            }
        }
    }

    /// Leaves out devices whose files are not at their paths any more: the next start of the server would open what is there
    /// now. What it finds there may lack anything. While a device is needed, nothing of the pool is served.
    fn leave_out_gone(&self, gone: Vec<(u8, String)>) {
        let mut needed = None;
        for (number, reason) in gone {
            let left = self.run(move |pool| async move {
                pool.distrust_device(number, "its file was moved, deleted, truncated or replaced")
                    .await
            });
            if left.is_err() {
                needed.get_or_insert(reason);
            }
        }
        *self.needed_and_gone.lock() = needed;
    }

    /// Returns the health of the devices, as far as it concerns all volumes.
    pub(crate) fn backing_health(&self) -> VolumeHealth {
        match &*self.needed_and_gone.lock() {
            Some(reason) => VolumeHealth::OutOfService { reason: reason.clone() },
            None => VolumeHealth::Online,
        }
    }

    /// Begins a checkpoint regularly for regions that were overwritten, unless the last one has not ended: a device may not respond.
    fn settle_regions(&self, now: Instant) {
        let mut settling = self.settling.lock();
        if now < settling.next || settling.is_running() {
            return;
        }
        settling.next = now + SETTLE_INTERVAL;
        let (pool, name) = (self.pool.clone(), self.config().name);
        settling.running = Some(self.access.cores.begin(move || async move {
            if let Err(error) = pool.settle_regions().await {
                warn!(pool = name, %error, "a checkpoint was not written");
            }
        }));
    }

    /// Closes a device that was left out, so that it can be opened again.
    fn release(&self, path: &Path, number: u8) -> Result<(), String> {
        let released = self.run(move |pool| async move { Ok(pool.release_device(number).await) });
        if !released.unwrap_or(false) {
            return Err(format!("{} has requests that have not ended", path.display()));
        }
        let mut named = self.devices.0.lock();
        named.iter_mut().filter(|one| one.path == path).for_each(|one| one.device = None);
        Ok(())
    }

    /// Takes a device that was left out into use again.
    fn try_again(
        self: &Arc<Self>,
        config: &PoolConfig,
        path: &Path,
        number: Option<u8>,
    ) -> Result<(Device, [u8; 16]), String> {
        if let Some(number) = number {
            self.release(path, number)?;
        }
        let opened = Device::open(config, path, &self.access);
        let device = opened.map_err(|error| error.to_string())?;
        let (pool, store) = (self.pool.clone(), device.store());
        let returned = self.access.cores.run(move || async move {
            let returned = async {
                let identity = identify(store.clone()).await?;
                pool.return_device(store).await.map(|_| identity.device)
            };
            Ok(returned.await)
        });
        match returned {
            Ok(Ok(identifier)) => Ok((device, identifier)),
            Ok(Err(PoolError::Unfit { problem, .. })) => Err(problem.to_string()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Notes that a device is to be added, so that it is not tried before.
    pub(crate) fn expect_device(&self, path: &Path) {
        let mut named = self.devices.0.lock();
        match named.iter_mut().find(|one| one.path == path) {
            // It is a device of the pool, perhaps one that was left out.
            Some(one) if one.identifier.is_some() => one.retry_at = time::now() + LONGEST_RETRY,
            Some(one) => one.is_expected = true,
            None => {
                named.push(NamedDevice { is_expected: true, ..NamedDevice::untried(path) });
            }
        }
    }

    /// Notes that a device was not added.
    fn forget_device(&self, path: &Path) {
        let mut named = self.devices.0.lock();
        named.retain(|one| one.path != path || !one.is_expected);
        named.iter_mut().filter(|one| one.path == path).for_each(|one| one.wait(time::now()));
    }

    /// Returns the paths of devices that were removed, and that the configuration still names.
    pub(crate) fn removed_devices(&self) -> Vec<PathBuf> {
        let configured = self.config().devices;
        let named = self.devices.0.lock();
        let removed = named.iter().filter(|one| one.is_removed && configured.contains(&one.path));
        removed.map(|one| one.path.clone()).collect()
    }

    /// Returns paths that the configuration has named since the pool was opened, and that are no devices of it: an interruption
    /// ended their addition or removal half-way. There are none while a device is missing whose path is not known: each of them
    /// could be its path.
    pub(crate) fn leftover_paths(&self) -> Vec<PathBuf> {
        let (configured, infos) = (self.config().devices, self.pool.devices());
        let named = self.devices.0.lock();
        let is_known = |info: &DeviceInfo| {
            named.iter().any(|one| {
                one.identifier == Some(info.identifier) && configured.contains(&one.path)
            })
        };
        if !infos.iter().all(is_known) {
            return Vec::new();
        }
        let leftover = named
            .iter()
            .filter(|one| one.is_from_start && one.identifier.is_none() && !one.is_expected);
        leftover.map(|one| one.path.clone()).filter(|path| configured.contains(path)).collect()
    }

    /// Returns whether a path is that of no device of the pool.
    pub(crate) fn is_stray(&self, path: &Path) -> bool {
        let reported = self.reported_devices();
        reported.iter().any(|one| one.path.as_deref() == Some(path) && one.info.is_none())
    }

    /// Refuses a configuration that does not name a device in use.
    pub(crate) fn check_devices(&self, desired: &PoolConfig) -> Result<(), StoreError> {
        let named = self.devices.0.lock();
        let is_dropped = |one: &&NamedDevice| {
            let mut desired = desired.devices.iter();
            one.identifier.is_some() && !desired.any(|path| is_same_device(path, &one.path))
        };
        match named.iter().find(is_dropped) {
            None => Ok(()),
            Some(one) => Err(StoreError::PoolObjectInUse {
                problem: format!(
                    "devices: {} is in use by pool {}: remove it with `sarsen pool remove`, which moves its data",
                    one.path.display(),
                    desired.name
                ),
            }),
        }
    }

    /// Adds a device that is empty, or with `force` any. With a size, a file is created. Blocks the thread, which must not be a
    /// core.
    pub(crate) fn add_device(
        self: &Arc<Self>,
        path: &Path,
        size: Option<u64>,
        force: bool,
    ) -> Result<(), StoreError> {
        let config = self.config();
        let reported = self.reported_devices();
        let known = reported.into_iter().find(|one| one.path.as_deref() == Some(path));
        match known.and_then(|one| one.info) {
            Some(info) if is_online(&info) => {
                self.forget_device(path);
                let problem = format!("{} is one of its devices already", path.display());
                return Err(self.error(problem));
            }
            // It becomes a new device: the pool does not read what it has.
            Some(info) => self.release(path, info.number).map_err(|problem| self.error(problem))?,
            None => {}
        }
        let created = size.map(|size| create_file(path, size));
        let was_created = matches!(created, Some(Ok(())));
        let added = match created {
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => self.add_opened(&config, path, force),
        };
        if added.is_err() {
            self.forget_device(path);
            if was_created && let Err(error) = fs::remove_file(path) {
                warn!(path = %path.display(), %error, "a file that was created for a pool remains");
            }
        }
        added
    }

    fn add_opened(
        self: &Arc<Self>,
        config: &PoolConfig,
        path: &Path,
        force: bool,
    ) -> Result<(), StoreError> {
        let device = Device::open(config, path, &self.access)?;
        let (open, store, own, identifier) =
            (self.clone(), device.store(), path.to_owned(), new_identifier());
        self.access.cores.run(move || async move {
            if !force {
                refuse_if_used(&store, &own).await?;
            }
            let added = open.pool.add_device(store, identifier).await;
            added.map_err(|error| failed(&open.config().name, &[own], error))
        })?;
        info!(pool = config.name, path = %path.display(), "a device is added");
        let mut named = self.devices.0.lock();
        named.retain(|one| one.path != path);
        named.push(NamedDevice {
            identifier: Some(identifier),
            ..NamedDevice::new(path, Ok(device))
        });
        Ok(())
    }

    /// Returns the number of the device with this path, or with this number if its path is not known.
    pub(crate) fn find_device(&self, path: &Path) -> Result<u8, StoreError> {
        let reported = self.reported_devices();
        let own = |one: &ReportedDevice| {
            let info = one.info.as_ref()?;
            let is_meant = match &one.path {
                Some(known) => known == path,
                None => path.to_str() == Some(&info.number.to_string()),
            };
            is_meant.then_some(info.number)
        };
        reported.iter().find_map(own).ok_or_else(|| {
            self.error(format!(
                "{} is no device of the pool; `sarsen pool status` shows them",
                path.display()
            ))
        })
    }

    /// Lets a device with this number leave, which a message calls by its path: its data moves to others. Blocks the thread,
    /// which must not be a core.
    pub(crate) fn remove_device(
        self: &Arc<Self>,
        number: u8,
        path: &Path,
    ) -> Result<(), StoreError> {
        let removed = self.access.cores.run({
            let pool = self.pool.clone();
            move || async move { Ok(pool.remove_device(number).await) }
        })?;
        removed.map_err(|error| match error {
            PoolError::NoSpace => self.error(format!(
                "the other devices have no room for the data of {}, or are too few for its copies: add a device first",
                path.display()
            )),
            other => self.failed(other),
        })?;
        info!(pool = self.config().name, path = %path.display(), "a device leaves: its data moves to others");
        // If it was missing from the start on, only the pool knows its identifier. Its path leaves with it.
        let identifier = self.pool.devices().into_iter().find(|info| info.number == number);
        let mut named = self.devices.0.lock();
        if let (Some(info), Some(one)) =
            (identifier, named.iter_mut().find(|one| one.path == path && one.identifier.is_none()))
        {
            one.identifier = Some(info.identifier);
        }
        Ok(())
    }

    /// Keeps a device that leaves. Blocks the thread, which must not be a core.
    pub(crate) fn keep_device(&self, number: u8) -> Result<(), StoreError> {
        self.run(move |pool| async move { pool.keep_device(number).await })
    }
}

/// The checkpoints for regions that were overwritten.
pub(super) struct Settling {
    next: Instant,
    /// The end of the last one.
    running: Option<oneshot::Receiver<()>>,
}

impl Settling {
    pub(super) fn new() -> Self {
        Self { next: time::now(), running: None }
    }

    fn is_running(&mut self) -> bool {
        self.running.as_mut().is_some_and(|ended| ended.try_recv() == Err(TryRecvError::Empty))
    }
}
