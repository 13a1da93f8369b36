//! Pools: their devices, and the volumes in them. Files are read and written by cores, so operations on a pool run there.

mod creation;
mod device;
mod devices;
mod failures;
mod filling;
mod history;
mod losses;
mod memory;
mod offline;
mod opening;
mod preview;
mod roll_back;
mod scrub;
mod tiers;
mod usage;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use sarsen_block::{Store, Usability};
use sarsen_io::{random, time};
use sarsen_pool::{
    DeviceState, Image, Label, NewVolume, Pool, PoolError, VolumeId, VolumeInfo, VolumeKind,
};
use sarsen_volume::VolumeHealth;
use sha2::{Digest as _, Sha256};
use tracing::{error, info, warn};

pub(crate) use self::creation::format;
pub use self::creation::{PlannedDevice, PoolPlan};
use self::device::Device;
pub(crate) use self::devices::ReportedDevice;
use self::devices::{NamedDevices, Settling};
use self::failures::failed;
pub(crate) use self::filling::VolumeFilling;
use self::history::SnapshotHistory;
use self::losses::Losses;
pub(crate) use self::memory::PoolMemory;
use self::memory::Remembered;
pub use self::offline::{
    CheckedPool, check, create, preview_recovery as preview_recovery_offline, recover,
};
use self::opening::Opened;
pub(crate) use self::preview::preview_recovery;
use self::roll_back::RollBacks;
pub(crate) use self::roll_back::{PendingRollBack, RollBackEnd};
use self::scrub::Scrub;
pub(crate) use self::tiers::use_of as tier_use_of;
use self::tiers::{Balancing, PacedTasks};
pub(crate) use self::usage::{names_of, stored_volumes};
use super::{OpenMode, RemoteAccess, StoreCores, StoreError};
use crate::config::{CacheMode, PoolConfig, VolumeConfig, render_size};
use crate::metrics::PoolUsage;
use crate::model::{ByteSize, SnapshotName, render_rounded};
use crate::schema::pools::PoolLoss;

/// The end of a report of a pool that is nearly full: so many percent below the threshold.
const ALERT_MARGIN: u64 = 2;

fn new_identifier() -> [u8; 16] {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    bytes
}

/// Returns the number with which the catalogue of a pool knows the volume with this serial number.
fn identifier_of(serial: &str) -> [u8; 16] {
    let mut identifier = [0; 16];
    match identifier.get_mut(..serial.len()) {
        Some(bytes) => bytes.copy_from_slice(serial.as_bytes()),
        None => identifier.copy_from_slice(&Sha256::digest(serial)[..16]),
    }
    identifier
}

/// Returns the serial number of a volume in the catalogue, if it can be known.
pub(crate) fn serial_of(identifier: &[u8; 16]) -> Option<String> {
    let end = identifier.iter().position(|byte| *byte == 0).unwrap_or(identifier.len());
    let (text, rest) = identifier.split_at(end);
    let is_serial =
        end > 0 && text.iter().all(u8::is_ascii_graphic) && rest.iter().all(|byte| *byte == 0);
    is_serial.then(|| String::from_utf8_lossy(text).into_owned())
}

fn label(name: String, identifier: [u8; 16]) -> Label {
    let created = time::wall_clock().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Label { name, identifier, created }
}

/// An open pool.
pub(crate) struct OpenPool {
    pub(crate) pool: Pool,
    config: Mutex<PoolConfig>,
    /// The cache mode with which its devices are open.
    cache: CacheMode,
    devices: NamedDevices,
    memory: PoolMemory,
    remembered: Remembered,
    losses: Losses,
    access: RemoteAccess,
    tasks: Arc<PacedTasks>,
    balancing: Mutex<Balancing>,
    settling: Mutex<Settling>,
    pub(crate) scrub: Mutex<Scrub>,
    /// A thread watches the devices.
    is_watched: AtomicBool,
    /// Why nothing is served: a device cannot be left out, and its open file is not the one at its path.
    needed_and_gone: Mutex<Option<String>>,
    /// Its use was above the threshold, and has not been clearly below it since.
    is_nearly_full: AtomicBool,
    roll_backs: RollBacks,
}

/// An open volume of a pool.
pub(crate) struct PoolBacking {
    pub(crate) pool: Arc<OpenPool>,
    pub(crate) volume: Arc<dyn Store>,
    pub(crate) id: VolumeId,
    /// Its filling from an image, if it is not filled yet.
    pub(crate) filling: Option<Arc<VolumeFilling>>,
    /// What has changed in a snapshot since older ones.
    pub(crate) history: Option<Arc<SnapshotHistory>>,
    /// The volume, if it was created for this opening.
    pub(crate) new: Option<NewPoolVolume>,
}

/// The name that a volume has from now on in the catalogue of its pool.
pub(crate) struct PoolRename {
    pub(crate) pool: Arc<OpenPool>,
    pub(crate) id: VolumeId,
    pub(crate) name: String,
}

impl PoolBacking {
    /// Returns the change of its name in the catalogue.
    pub(crate) fn renamed(&self, name: &str) -> PoolRename {
        PoolRename { pool: self.pool.clone(), id: self.id, name: name.to_owned() }
    }
}

/// A volume that was created for a change. If the change is not stored, it is deleted when this is dropped.
pub(crate) struct NewPoolVolume {
    pool: Arc<OpenPool>,
    id: Option<VolumeId>,
}

impl NewPoolVolume {
    pub(crate) fn keep(mut self) {
        self.id = None;
    }
}

impl Drop for NewPoolVolume {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let pool = self.pool.pool.clone();
        drop(self.pool.access.cores.begin(move || async move {
            if let Err(error) = pool.delete(id).await {
                warn!(%error, "a volume that was created in a pool for a refused change remains");
            }
        }));
    }
}

impl OpenPool {
    /// Opens a pool. Blocks the thread, which must not be a core.
    pub(crate) fn open(
        access: &RemoteAccess,
        config: &PoolConfig,
        memory: &PoolMemory,
        accepted: &[PoolLoss],
    ) -> Result<Arc<Self>, StoreError> {
        let cores = &access.cores;
        let devices = NamedDevices::open_for(config, |path| Device::open(config, path, access))?;
        let opened = opening::open(cores, config, memory, accepted, devices, |device| device)?;
        let Opened { pool, devices, tasks, identifier, losses } = opened;
        let (growing, name) = (pool.clone(), config.name.clone());
        cores.run(move || async move {
            if let Err(error) = growing.grow().await {
                error!(pool = name, %error, "the bytes that devices have got are not in use");
            }
            Ok(())
        })?;
        if accepted.contains(&PoolLoss::NewerData)
            && let Some(pool) = identifier
        {
            // What the server had used does not count any more.
            let (memory, name) = (memory.clone(), config.name.clone());
            cores.run(move || async move {
                let forgotten = memory.set(pool, None).await;
                forgotten.map_err(|error| StoreError::pool(&name, error.to_string()))
            })?;
        }
        info!(pool = config.name, "the pool is open");
        let open = Self {
            pool,
            config: Mutex::new(config.clone()),
            cache: config.cache(),
            devices,
            access: access.clone(),
            tasks,
            balancing: Mutex::new(Balancing::new()),
            settling: Mutex::new(Settling::new()),
            is_nearly_full: AtomicBool::new(false),
            roll_backs: RollBacks::default(),
            scrub: Mutex::default(),
            is_watched: AtomicBool::new(false),
            needed_and_gone: Mutex::default(),
            memory: memory.clone(),
            remembered: Remembered::default(),
            losses,
        };
        open.adopt(config);
        open.balancing.lock().balance(&open.pool, config, &open.devices);
        let open = Arc::new(open);
        open.remember_absences()?;
        // It writes checkpoints: the one to be remembered is known before.
        let (pool, name) = (open.pool.clone(), config.name.clone());
        cores.run(move || async move {
            tokio::task::spawn_local(pool.maintain(move |error| {
                error!(pool = name, %error, "the maintenance of the pool failed, and is tried again later");
            }));
            Ok(())
        })?;
        Ok(open)
    }

    /// Returns its configuration.
    pub(crate) fn config(&self) -> PoolConfig {
        self.config.lock().clone()
    }

    /// Returns the cache mode with which its devices are open.
    pub(crate) fn cache(&self) -> CacheMode {
        self.cache
    }

    /// Applies the settings that can change while it is open.
    pub(crate) fn adopt(&self, config: &PoolConfig) {
        let memory = usize::try_from(config.memory()).unwrap_or(usize::MAX);
        self.pool.set_memory(memory);
        self.tasks.adopt(config);
        self.devices.rename(config);
        self.config.lock().clone_from(config);
    }

    /// Sets the accounts with which it logs in to devices from now on.
    pub(crate) fn set_accounts(&self, access: &RemoteAccess) {
        let accounts = access.accounts.lock().clone();
        *self.access.accounts.lock() = accounts;
    }

    /// Begins to write a checkpoint.
    pub(crate) fn checkpoint(&self) -> impl Future<Output = Result<(), StoreError>> + use<> {
        let (pool, name) = (self.pool.clone(), self.config().name);
        let written = self.access.cores.begin(move || async move { pool.checkpoint().await });
        async move {
            let written = written.await.map_err(|_| StoreError::ServerEnds)?;
            written.map_err(|error| failed(&name, &[], error))
        }
    }

    fn error(&self, problem: impl Into<String>) -> StoreError {
        StoreError::pool(&self.config.lock().name, problem)
    }

    /// Carries out an operation on an object of the pool, which an error names. It ends even if the caller does not wait.
    pub(crate) async fn operate<T, F>(
        self: &Arc<Self>,
        object: &str,
        operation: impl FnOnce(Pool) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PoolError>> + 'static,
    {
        let object = object.to_owned();
        let open = self.clone();
        let answer = self.access.cores.begin(|| {
            let operation = operation(open.pool.clone());
            async move {
                operation.await.map_err(|error| match error {
                    PoolError::InUse => StoreError::PoolObjectInUse {
                        problem: format!("{object} is in use: delete the volume that serves it first"),
                    },
                    PoolError::Protected => StoreError::PoolObjectInUse {
                        problem: format!(
                            "{object} is protected from deletion: end that first with `sarsen snapshot unprotect`"
                        ),
                    },
                    PoolError::Exists => StoreError::PoolObjectInUse {
                        problem: format!("{object} exists already: choose another name, or delete it first"),
                    },
                    PoolError::Incomplete => StoreError::PoolObjectInUse {
                        problem: format!("{object} is not complete: receive the rest of it first"),
                    },
                    PoolError::Filling => StoreError::PoolObjectInUse {
                        problem: format!("{object}: {}", PoolError::Filling),
                    },
                    PoolError::Stream(problem) => StoreError::SnapshotStream { object, problem },
                    other => open.failed(other),
                })
            }
        });
        answer.await.unwrap_or(Err(StoreError::ServerEnds))
    }

    /// Carries out an operation on the pool. Blocks the thread, which must not be a core.
    pub(crate) fn run<T, F>(
        &self,
        operation: impl FnOnce(Pool) -> F + Send + 'static,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, PoolError>> + 'static,
    {
        let (pool, name) = (self.pool.clone(), self.config().name);
        self.access.cores.run(move || async move {
            operation(pool).await.map_err(|error| failed(&name, &[], error))
        })
    }

    /// Returns the snapshots of a volume that are complete, in the order of their creation.
    pub(crate) fn snapshots_of(&self, volume: VolumeId) -> Vec<VolumeInfo> {
        let all = self.pool.volumes().into_iter();
        let is_its = |one: &VolumeInfo| {
            one.kind == VolumeKind::Snapshot && one.origin == Some(volume) && one.received.is_none()
        };
        all.filter(is_its).collect()
    }

    fn failed(&self, error: PoolError) -> StoreError {
        failed(&self.config.lock().name, &[], error)
    }

    /// Returns the volume with this serial number, or, without one, with this name.
    pub(crate) fn find_volume(&self, name: &str, serial: Option<&str>) -> Option<VolumeInfo> {
        self.pool.find(|one| {
            one.kind == VolumeKind::Volume
                && match serial {
                    Some(serial) => one.label.identifier == identifier_of(serial),
                    None => one.label.name == name,
                }
        })
    }

    /// Returns the names of volumes by their numbers in the catalogue. They are given with their serial numbers, and found
    /// like those of [`Self::find_volume`], all at once.
    pub(crate) fn find_volumes<'a>(
        &self,
        wanted: impl Iterator<Item = (&'a str, Option<&'a str>)>,
    ) -> HashMap<VolumeId, &'a str> {
        let all = self.pool.volumes();
        let volumes = || all.iter().filter(|one| one.kind == VolumeKind::Volume);
        let by_identifier: HashMap<_, _> =
            volumes().map(|one| (one.label.identifier, one.id)).collect();
        // The first one of a name.
        let by_name: HashMap<_, _> =
            volumes().rev().map(|one| (one.label.name.as_str(), one.id)).collect();
        let found = wanted.filter_map(|(name, serial)| {
            let id = match serial {
                Some(serial) => by_identifier.get(&identifier_of(serial)),
                None => by_name.get(name),
            };
            Some((*id?, name))
        });
        found.collect()
    }

    /// Returns a snapshot of a volume by its own name.
    pub(crate) fn find_snapshot(&self, volume: VolumeId, own: &str) -> Option<VolumeInfo> {
        self.pool.find(|one| {
            let is_its = one.kind == VolumeKind::Snapshot && one.origin == Some(volume);
            is_its && one.label.name == own
        })
    }

    /// Returns a snapshot that the configuration of a volume names. `of` is the serial number of its volume, if the server
    /// has that volume.
    fn named_snapshot(
        &self,
        name: &SnapshotName,
        of: Option<&str>,
    ) -> Result<VolumeInfo, StoreError> {
        let volume = self.find_volume(&name.volume, of);
        let found = volume.and_then(|volume| self.find_snapshot(volume.id, &name.snapshot));
        found.ok_or_else(|| {
            self.error(format!("there is no snapshot {name}; `sarsen snapshot list` shows them"))
        })
    }

    /// Opens a volume, and creates it if `open_mode` permits that. `origin` is the serial number of the volume whose snapshot
    /// it is, or begins with. Blocks the thread, which must not be a core.
    pub(crate) fn open_volume(
        self: &Arc<Self>,
        volume: &VolumeConfig,
        origin: Option<&str>,
        open_mode: OpenMode,
    ) -> Result<PoolBacking, StoreError> {
        let (config, origin, open) = (volume.clone(), origin.map(str::to_owned), self.clone());
        let image = self.image_for(volume)?;
        let operation =
            async move || open.open_or_create(&config, origin.as_deref(), image, open_mode).await;
        self.access.cores.run(operation)
    }

    async fn open_or_create(
        self: &Arc<Self>,
        config: &VolumeConfig,
        origin: Option<&str>,
        image: Option<Arc<dyn Image>>,
        open_mode: OpenMode,
    ) -> Result<PoolBacking, StoreError> {
        let is_known = matches!(open_mode, OpenMode::Existing { .. });
        let mut new = None;
        let found = match &config.snapshot {
            Some(snapshot) => self.named_snapshot(snapshot, origin)?,
            None => match self.find_volume(&config.name, config.serial.as_deref()) {
                Some(found) => found,
                None if is_known => {
                    return Err(self.error(format!(
                        "it has no volume {} with this serial number, and no empty one is created in its place",
                        config.name
                    )));
                }
                None => {
                    let created = self.create(config, origin, image.as_deref()).await?;
                    new = Some(NewPoolVolume { pool: self.clone(), id: Some(created.id) });
                    created
                }
            },
        };
        let name = &config.name;
        if let Some(block_size) = config.block_size
            && found.block_shift != block_size.shift() as u8
        {
            let bytes = 1u32 << found.block_shift;
            let problem =
                format!("volume {name} has blocks of {bytes} bytes: leave out block-size");
            return Err(self.error(problem));
        }
        if let Some((key, has)) =
            config.other_layout((found.copies, found.stripes, found.has_checksums))
        {
            let problem =
                format!("volume {name} has {key} = {has}: leave out {key}, or write {has}");
            return Err(self.error(problem));
        }
        self.roll_back_now(name, found.id).await;
        let (volume, filling) = self.open_found(config, &found, image).await?;
        let (size, wanted) = (volume.geometry().byte_count(), config.size.map(ByteSize::get));
        match wanted {
            // The growth was stored and not carried out, or it is a new clone.
            Some(wanted) if wanted > size && (is_known || new.is_some()) => {
                let grown = volume.resize(wanted >> found.block_shift).wait().await;
                grown.map_err(|error| self.error(error.to_string()))?;
            }
            Some(wanted) if wanted != size => {
                let size = render_size(size);
                let problem = format!("volume {name} has {size}: leave out size, or write {size}");
                return Err(self.error(problem));
            }
            Some(_) | None => {}
        }
        let history = SnapshotHistory::of(&self.pool, &found).map(Arc::new);
        Ok(PoolBacking { pool: self.clone(), volume, id: found.id, filling, history, new })
    }

    /// Creates a volume, empty or with the contents of a snapshot.
    async fn create(
        &self,
        config: &VolumeConfig,
        origin: Option<&str>,
        image: Option<&dyn Image>,
    ) -> Result<VolumeInfo, StoreError> {
        let identifier = config.serial.as_deref().map_or_else(new_identifier, identifier_of);
        let label = label(config.name.clone(), identifier);
        let image_size = image.map(|image| image.size());
        let size = self.size_of_new(config, image_size)?;
        let created = match (&config.clone_of, size) {
            (Some(snapshot), _) => {
                self.pool.clone_of(self.named_snapshot(snapshot, origin)?.id, &label).await
            }
            (None, Some(size)) => {
                let block_size = config.block_size();
                let (copies, stripes) = (config.mirror(), config.stripes());
                let has_checksums = config.has_checksums();
                let new = NewVolume {
                    label,
                    size,
                    block_size,
                    copies,
                    stripes,
                    has_checksums,
                    image_size,
                };
                self.pool.create_volume(&new).await
            }
            (None, None) => {
                let named = self.find_volume(&config.name, None);
                let serial = named.and_then(|named| serial_of(&named.label.identifier));
                let hint = serial.map_or_else(String::new, |serial| {
                    format!("; to serve the data of the deleted volume of this name, give serial = {serial:?}")
                });
                let problem = format!("volume {} is new: give it a size{hint}", config.name);
                return Err(self.error(problem));
            }
        };
        let id = created.map_err(|error| self.failed(error))?;
        self.pool.find(|one| one.id == id).ok_or_else(|| self.failed(PoolError::NotFound))
    }

    /// Gives volumes in the catalogue the names of their objects.
    pub(crate) async fn rename(
        self: &Arc<Self>,
        names: Vec<(VolumeId, String)>,
    ) -> Result<(), StoreError> {
        let object = match names.as_slice() {
            [(_, name)] => format!("volume {name}"),
            _ => "one of the renamed volumes".to_owned(),
        };
        self.operate(&object, move |pool| async move { pool.rename(&names).await }).await
    }

    /// Creates snapshots of volumes of this pool at one moment.
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        of: Vec<(VolumeId, SnapshotName)>,
        protect: bool,
    ) -> Result<(), StoreError> {
        let names: Vec<_> = of.iter().map(|(_, name)| name.to_string()).collect();
        let object = match names.as_slice() {
            [name] => format!("snapshot {name}"),
            names => format!("one of the snapshots {}", names.join(", ")),
        };
        let of: Vec<_> = of
            .into_iter()
            .map(|(volume, name)| (volume, label(name.snapshot, new_identifier())))
            .collect();
        self.operate(
            &object,
            move |pool| async move { pool.snapshot(&of, protect).await.map(drop) },
        )
        .await
    }

    /// Returns its space, for metrics.
    pub(crate) fn usage(&self) -> PoolUsage {
        let space = self.pool.space();
        let volumes = self.pool.volumes().into_iter();
        let volumes = volumes.filter(|one| one.kind == VolumeKind::Volume);
        let devices = self.pool.devices();
        PoolUsage {
            name: self.config().name,
            size: space.size_bytes,
            free: space.free_bytes,
            provisioned: volumes.map(|one| one.size).sum(),
            left_out: devices.iter().filter(|one| one.state != DeviceState::Online).count() as u64,
            stale: devices.iter().map(|one| one.stale_bytes).sum(),
            checksum_errors: devices.iter().map(|one| one.checksum_errors).sum(),
            tiers: tier_use_of(&self.pool),
        }
    }

    /// Returns the problem of the pool, if it has one.
    pub(crate) fn problem(&self) -> Option<String> {
        let config = self.config();
        if self.pool.is_stopped() {
            let failed = self
                .opened_devices()
                .into_iter()
                .filter(|(_, one)| one.store().status().usability() != Usability::Usable);
            let paths: Vec<_> = failed.map(|(path, _)| path.display().to_string()).collect();
            let device = if paths.is_empty() { "a device".to_owned() } else { paths.join(", ") };
            return Some(format!(
                "takes no writes: {device} failed to write or to flush. Check its disk and the kernel's log, then run \
                 `sarsen volume reattach` for each of its volumes, or restart the server"
            ));
        }
        if let VolumeHealth::OutOfService { reason } = self.backing_health() {
            return Some(reason);
        }
        let space = self.pool.space();
        match (self.device_problem(), self.lost_problem(space.lost_bytes)) {
            (Some(device), Some(lost)) => return Some(format!("{device}. It also {lost}")),
            (None, None) => {}
            (device, lost) => return device.or(lost),
        }
        for (_, device) in self.opened_devices() {
            match device.health().current() {
                VolumeHealth::Degraded { reason } => return Some(reason),
                // It is left out, or needed; a file that is needed was reported.
                VolumeHealth::OutOfService { reason } if device.file().is_none() => {
                    return Some(reason);
                }
                VolumeHealth::OutOfService { .. } | VolumeHealth::Online => {}
            }
        }
        if let Some(problem) = self.damage_problem().or_else(|| self.checksum_problem()) {
            return Some(problem);
        }
        let used = space.size_bytes.saturating_sub(space.free_bytes);
        let percent = used * 100 / space.size_bytes.max(1);
        let margin = if self.is_nearly_full.load(Ordering::Relaxed) { ALERT_MARGIN } else { 0 };
        let is_nearly_full = space.is_full || percent + margin >= config.alert_percent();
        self.is_nearly_full.store(is_nearly_full, Ordering::Relaxed);
        is_nearly_full.then(|| {
            // A problem whose text changes is not a new problem.
            if space.is_full && space.free_bytes > 0 {
                return format!(
                    "is full for some of its volumes: the {} that are free lie next to data with other copies or checksums, or \
                     on too few devices. Writes of new data to these volumes fail. Delete their snapshots, erase volumes, or add a device with \
                     `sarsen pool add`",
                    render_rounded(space.free_bytes)
                );
            }
            if space.free_bytes == 0 {
                return format!(
                    "is full: {} are used. Writes of new data fail. Delete snapshots, erase volumes, or add a device with \
                     `sarsen pool add`",
                    render_rounded(used)
                );
            }
            format!(
                "is nearly full: {percent} % of {} is used. When it is full, writes of new data fail. Delete snapshots, erase \
                 volumes, or add a device with `sarsen pool add`",
                render_rounded(space.size_bytes),
            )
        })
    }
}
