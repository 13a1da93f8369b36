//! Open volumes: their opening, growth and closing.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use sarsen_block::Store;
use sarsen_io::cores::Cores;
use sarsen_io::file::{lock_within, open_to_read};
use sarsen_io::time;
use sarsen_scsi::{DeviceType, Identity, LogicalUnit, Parts, Protected};
use tokio::sync::oneshot;
use tracing::warn;

use super::claims::Claim;
use super::diff::data_place;
use super::{ChangeError, Engine, ResourceError, not_opened};
use crate::config::{AccountConfig, PoolConfig, StoreKind, VolumeConfig};
use crate::metadata;
use crate::model::ByteSize;
use crate::stores::encrypted::NewKey;
use crate::stores::remote::NewUnit;
use crate::stores::{
    self, FileStore, Foundation, MarkRule, NewPoolVolume, OpenMode, Opened, PoolBacking, RamStore,
    RemoteStore, StoreError, VolumePool,
};

/// The time without writes after which a file that was missing is served.
const UNWRITTEN_FOR: Duration = Duration::from_secs(10);

/// The layer over the store of each volume, from the caller of [`crate::Server::start_layered`].
pub(crate) type Layer = dyn Fn(&str, Arc<dyn Store>) -> Arc<dyn Store> + Send + Sync;

/// The backing of a volume, below all layers.
pub(crate) struct Backing {
    pub(crate) memory: Option<Arc<RamStore>>,
    pub(crate) file: Option<Arc<FileStore>>,
    pub(crate) pool: Option<PoolBacking>,
    pub(crate) remote: Option<Arc<RemoteStore>>,
}

/// An open volume.
pub(crate) struct Volume {
    pub(crate) config: VolumeConfig,
    /// The target from which its identity is derived, if it has no serial number.
    pub(crate) scope: Option<String>,
    pub(crate) unit: Arc<LogicalUnit>,
    /// The store of the unit. It is flushed and resized.
    pub(crate) store: Arc<dyn Store>,
    pub(crate) backing: Backing,
    unwritten: UnwrittenRecords,
    pub(super) growth: Growth,
    /// Resolves when the volume is dropped: no session has it and no request uses it.
    pub(crate) ended: oneshot::Receiver<()>,
}

impl Volume {
    /// Opens a volume in its last state. The file must have [its full length](Self::grow_file) before sessions use the
    /// volume. Blocks the thread.
    pub(crate) fn open(
        config: &VolumeConfig,
        scope: Option<&str>,
        machine: &str,
        layer: &Layer,
        open_mode: OpenMode,
        foundation: &Foundation,
    ) -> Result<Self, StoreError> {
        let mut opened = stores::open(config, open_mode, foundation)?;
        opened.store = layer(&config.name, opened.store);
        let (companion, ended) = oneshot::channel::<()>();
        let (unit, unwritten) =
            logical_unit(config, scope, machine, &opened, companion, open_mode)?;
        let Opened { memory, file, pool, remote, .. } = opened;
        let backing = Backing { memory, file, pool, remote };
        let store = unit.volume().store().clone();
        let scope = scope.filter(|_| config.serial.is_none()).map(str::to_owned);
        let (config, growth) = (config.clone(), Growth::None);
        Ok(Self { config, scope, unit, store, backing, unwritten, growth, ended })
    }

    /// Sets the configured size to the actual one, until it has grown.
    pub(crate) fn adopt_actual_size(&mut self) {
        let now = self.size();
        if !self.config.is_device() {
            self.config.size = Some(ByteSize::of_bytes(now));
        }
    }

    /// Grows its file to the desired length. The change must be stored before.
    pub(crate) fn grow_file(&self) -> Result<(), StoreError> {
        self.backing.file.as_ref().map_or(Ok(()), |file| file.settle())
    }

    /// Returns whether data must be on the disk before initiators write to it.
    pub(crate) fn has_unwritten_metadata(&self) -> bool {
        !self.unwritten.is_empty() || self.backing.file.as_ref().is_some_and(|file| file.is_blank())
    }

    /// Returns whether its file still needs its mark.
    fn is_unmarked(&self) -> bool {
        self.backing.file.as_ref().is_some_and(|file| file.is_unmarked())
    }

    /// Writes this data durably. The change must be stored before.
    pub(crate) fn imprint(&mut self) -> Result<(), StoreError> {
        self.backing.file.as_ref().map_or(Ok(()), |file| file.imprint())?;
        self.unwritten.write()?;
        self.unwritten = UnwrittenRecords::default();
        Ok(())
    }

    /// Returns the length of its file, if it has one.
    pub(crate) fn file_length(&self) -> Option<u64> {
        Some(self.backing.file.as_ref()?.geometry().byte_count())
    }

    /// Returns the check that a volume can be opened again, which may block its thread: the open descriptor of a deleted
    /// or truncated file may hold the only remaining data.
    pub(crate) fn reattachment_check(
        &self,
    ) -> impl FnOnce() -> Result<(), ChangeError> + Send + 'static {
        let (config, had) = (self.config.clone(), self.file_length().unwrap_or(0));
        let is_deleted = self.backing.file.as_ref().is_some_and(|file| file.is_deleted());
        // A pool may be closed with its last volume.
        let files = self.backing.pool.iter().flat_map(|pool| pool.pool.files());
        let deleted = files.filter(|file| file.is_deleted());
        let deleted: Vec<(PathBuf, u64)> =
            deleted.map(|file| (file.path().to_owned(), file.geometry().byte_count())).collect();
        move || {
            let refuse = |why| Err(ChangeError::impossible(&config.name, why));
            for (path, had) in deleted {
                if !fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() >= had) {
                    return refuse(format!(
                        "cannot be re-attached: its pool could not be opened again. Bring {} back first: only the server \
                         still has its data",
                        path.display()
                    ));
                }
            }
            let Some(path) = config.file() else { return Ok(()) };
            match fs::metadata(path) {
                Err(error) => refuse(format!(
                    "cannot be re-attached: {}: {error}; bring its file back first",
                    path.display()
                )),
                Ok(found) if found.is_file() && found.len() < had => refuse(format!(
                    "cannot be re-attached: {} has {} bytes of the {had} that it had; restore its data first",
                    path.display(),
                    found.len()
                )),
                // Only the open descriptor has the data of a deleted file. It must not be closed for a file that
                // cannot be opened after that.
                Ok(_) if is_deleted => match check_openable(&config, path, had) {
                    Ok(()) => Ok(()),
                    Err(error) => refuse(format!("cannot be re-attached: {error}")),
                },
                Ok(_) => Ok(()),
            }
        }
    }

    /// Returns the current length of its file, if the file is to grow.
    pub(crate) fn length_before_growth(&self) -> Option<u64> {
        self.backing.file.as_ref()?.short()
    }

    /// Returns its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.store.geometry().byte_count()
    }

    /// Returns the check whether it can grow to this size, which may block its thread. A file stays unchanged: if it
    /// were longer than the stored size of its volume after a power failure, the server would not start.
    pub(crate) fn growth_check(
        &self,
        bytes: u64,
    ) -> impl FnOnce() -> Result<(), StoreError> + Send + 'static {
        let (file, memory) = (self.config.file().map(Path::to_owned), self.backing.memory.clone());
        let blocks = bytes >> self.config.block_size().shift();
        move || match (file, memory) {
            (Some(path), _) => stores::check_growth(&path, bytes),
            (None, Some(memory)) => {
                memory.reserve(blocks).map_err(|source| StoreError::Memory { size: bytes, source })
            }
            _ => Ok(()),
        }
    }

    /// Grows to this size, on a core. The volume reports the new capacity to initiators.
    pub(crate) fn grow(
        &self,
        bytes: u64,
        cores: &Weak<Cores>,
    ) -> impl Future<Output = Result<(), String>> + Send + 'static {
        let (done, answer) = oneshot::channel();
        let store = self.store.clone();
        let block_count = bytes >> self.store.geometry().block_size.shift();
        if let Some(cores) = cores.upgrade() {
            cores.spawn_on(0, move || async move {
                let grown = store.resize(block_count).wait().await;
                let _ = done.send(grown.map_err(|source| source.to_string()));
            });
        }
        async move { answer.await.unwrap_or_else(|_| Err("the server stops".to_owned())) }
    }
}

/// Records of a new volume that are not written yet.
#[derive(Default)]
struct UnwrittenRecords {
    key: Option<NewKey>,
    unit: Option<NewUnit>,
}

impl UnwrittenRecords {
    const fn is_empty(&self) -> bool {
        self.key.is_none() && self.unit.is_none()
    }

    /// Writes them durably. Blocks the thread, which must not be a core.
    fn write(&self) -> Result<(), StoreError> {
        self.key.as_ref().map_or(Ok(()), NewKey::keep)?;
        self.unit.as_ref().map_or(Ok(()), NewUnit::keep)
    }
}

/// The growth of a volume that is smaller than desired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Growth {
    #[default]
    None,
    /// To this size in bytes.
    UnderWay(u64),
    /// It failed for this reason, and is tried again.
    Failed(String),
}

/// An open volume that is not in force yet. If it is dropped, what was created for it is removed.
pub(super) struct Opening {
    pub(super) volume: Volume,
    pub(super) new_files: NewFiles,
    /// Current length of its file, if the file is to grow.
    pub(super) length_before_growth: Option<u64>,
    /// The last field: other volumes may take its file when it is closed.
    pub(super) claim: Claim,
}

impl Opening {
    /// Opens a volume. A file keeps its length, and nothing is written to it. Blocks the thread.
    pub(super) fn open(
        engine: &Engine,
        plan: &OpenPlan,
        claim: Claim,
    ) -> Result<Self, ResourceError> {
        let OpenPlan { config, pool, accounts, scope, open_mode } = plan;
        let access = engine.remote_access(accounts);
        let open = |(pool, origin): &(PoolConfig, Option<String>)| {
            Ok(VolumePool { open: engine.pools.open(pool, &access)?, origin: origin.clone() })
        };
        let pool = pool.as_ref().map(open).transpose().map_err(not_opened(&config.name))?;
        let foundation = match pool {
            Some(pool) => Foundation::Pool(pool),
            None if config.store == StoreKind::Remote => Foundation::Remote(access),
            None => Foundation::Nothing,
        };
        let mut new_files = NewFiles::missing_of(config, *open_mode);
        let (machine, layer, scope) = (&engine.machine, &*engine.layer, scope.as_deref());
        let opened = Volume::open(config, scope, machine, layer, *open_mode, &foundation);
        new_files.note();
        let mut volume = opened.map_err(not_opened(&config.name))?;
        new_files.in_pool = volume.backing.pool.as_mut().and_then(|backing| backing.new.take());
        let length_before_growth = volume.length_before_growth();
        if length_before_growth.is_none() {
            volume.grow_file().map_err(not_opened(&config.name))?;
        }
        Ok(Self { volume, new_files, length_before_growth, claim })
    }

    /// Returns whether initiators can use it as it is.
    pub(super) fn is_complete(&self) -> bool {
        !self.volume.has_unwritten_metadata()
            && !self.volume.is_unmarked()
            && self.length_before_growth.is_none()
    }

    /// Marks and grows its file, and writes its metadata. The change must be stored before. A file that cannot grow is
    /// served with the length that it has, for this reason. Blocks the thread.
    pub(super) fn complete(&mut self) -> Result<(), ResourceError> {
        self.new_files.keep();
        self.length_before_growth = None;
        let volume = &mut self.volume;
        let name = volume.config.name.clone();
        if let Some(file) = &volume.backing.file {
            file.write_mark();
        }
        match volume.grow_file() {
            // A volume with protection information cannot grow while it is served.
            Err(error) if volume.has_unwritten_metadata() || volume.config.protection.is_some() => {
                Err(not_opened(&name)(error))
            }
            Err(error) => {
                volume.growth = Growth::Failed(error.to_string());
                Ok(())
            }
            Ok(()) => volume.imprint().map_err(not_opened(&name)),
        }
    }
}

/// A volume that is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OpenPlan {
    pub(super) config: VolumeConfig,
    /// Its pool, if it has one, and the serial number of the volume whose snapshot it is, or begins with.
    pub(super) pool: Option<(PoolConfig, Option<String>)>,
    /// The accounts with which it, or its pool, logs in elsewhere.
    pub(super) accounts: Vec<AccountConfig>,
    /// The target from which its identity is derived, if it has no serial number.
    pub(super) scope: Option<String>,
    pub(super) open_mode: OpenMode,
}

/// Files, folders and volumes in pools that were created when a volume was opened. They are deleted when this is dropped,
/// unless they are kept.
#[derive(Default)]
pub(crate) struct NewFiles {
    missing: Vec<PathBuf>,
    /// Created paths, with device and inode, which differ if another file takes the place.
    made: Vec<(PathBuf, (u64, u64))>,
    /// The volume that was created in a pool.
    in_pool: Option<NewPoolVolume>,
}

impl NewFiles {
    /// Returns the missing files of the volume that its opening may create. A symbolic link counts as existing,
    /// whatever its destination.
    pub(crate) fn missing_of(config: &VolumeConfig, open_mode: OpenMode) -> Self {
        let made = match open_mode {
            OpenMode::OpenOrCreate | OpenMode::Create => 0..,
            OpenMode::Existing { has_state: false, .. } => 1..,
            OpenMode::Existing { .. } => return Self::default(),
        };
        let places = places(config).into_iter().skip(made.start);
        let missing = places.filter(|path| is_missing(path)).collect();
        Self { missing, made: Vec::new(), in_pool: None }
    }

    /// Creates the missing files of a volume that is to be opened later, so that a start after that finds them. If another
    /// volume has the data file, it is not created.
    pub(super) fn create(
        config: &VolumeConfig,
        open_mode: OpenMode,
        is_file_free: bool,
    ) -> Result<Self, StoreError> {
        let mut files = Self::missing_of(config, open_mode);
        if !is_file_free {
            files.missing.retain(|path| config.state.as_ref() == Some(path));
        }
        let is_missing = |path: &Path| files.missing.iter().any(|missing| missing == path);
        let is_file_missing = config.file().is_some_and(is_missing);
        let create = || {
            // A volume that existed before may lack only its state folder.
            if is_file_missing {
                stores::create(config)?;
            }
            config.state.as_deref().map_or(Ok(()), metadata::make)
        };
        let created = if files.missing.is_empty() { Ok(()) } else { create() };
        files.note();
        created.map(|()| files)
    }

    /// Records which of the missing files exist now, after the opening of the volume succeeded or failed.
    pub(crate) fn note(&mut self) {
        let made = std::mem::take(&mut self.missing).into_iter();
        self.made.extend(made.filter_map(|path| {
            let metadata = fs::symlink_metadata(&path).ok()?;
            Some((path, (metadata.dev(), metadata.ino())))
        }));
    }

    pub(crate) fn keep(&mut self) {
        self.made.clear();
        if let Some(volume) = self.in_pool.take() {
            volume.keep();
        }
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for (path, made) in &self.made {
            let Ok(metadata) = fs::symlink_metadata(path) else { continue };
            // A file system may have been mounted there, or a file may have been put in its place or copied into it. A
            // created file is empty until it is kept.
            let is_other = (metadata.dev(), metadata.ino()) != *made;
            if is_other || metadata.is_file() && metadata.len() != 0 {
                continue;
            }
            let removed =
                if metadata.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
            if let Err(error) = removed {
                warn!(path = %path.display(), %error, "what was made for a volume is left behind");
            }
        }
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// Returns the paths that an open volume uses exclusively. Another volume can use them only after it.
pub(crate) fn places(config: &VolumeConfig) -> Vec<PathBuf> {
    config.path.clone().into_iter().chain(config.records_folder()).collect()
}

/// Checks whether the file of a volume can be opened: it is suitable, and no other program or volume uses it. Blocks the
/// thread.
fn check_openable(config: &VolumeConfig, path: &Path, had: u64) -> Result<(), StoreError> {
    let had = Some(had);
    let mark = MarkRule::Confirm;
    let open_mode = OpenMode::Existing { length_before_growth: had, has_state: true, had, mark };
    stores::trial(config, open_mode)?;
    let locked = open_to_read(path)
        .and_then(|file| lock_within(&file, !config.is_read_only(), Duration::ZERO));
    if locked.map_err(StoreError::system(path, "lock it"))? {
        Ok(())
    } else {
        Err(StoreError::InUse { path: path.to_owned() })
    }
}

/// Refuses a file that was missing and was written a moment ago. A program may still be restoring it, and its length
/// does not show when that is complete.
pub(super) fn check_not_just_written(config: &VolumeConfig) -> Result<(), StoreError> {
    let Some(path) = data_place(config) else { return Ok(()) };
    let Ok(written) = fs::metadata(path).and_then(|metadata| metadata.modified()) else {
        return Ok(());
    };
    match time::wall_clock().duration_since(written) {
        Ok(age) if age < UNWRITTEN_FOR => {
            let problem = format!(
                "was written a moment ago: the volume is served when {} seconds pass without a write. If a program is \
                 still restoring the file, move it away until that is done",
                UNWRITTEN_FOR.as_secs()
            );
            Err(StoreError::unfit(path, problem))
        }
        // The clock of a file server may be ahead; this does not prevent the service of a volume.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Creates a volume in its last state. Returns its unit, and the records that must be written before initiators use it.
fn logical_unit(
    volume: &VolumeConfig,
    scope: Option<&str>,
    machine: &str,
    opened: &Opened,
    companion: oneshot::Sender<()>,
    open_mode: OpenMode,
) -> Result<(Arc<LogicalUnit>, UnwrittenRecords), StoreError> {
    let Opened { store, health, pool, remote, .. } = opened;
    let history = pool.as_ref().and_then(|pool| pool.history.clone());
    let metadata_store = metadata::open(volume, open_mode)?;
    let encrypted = stores::encrypted::open(volume, store, metadata_store.as_ref())?;
    let new_unit = remote.as_ref().map_or(Ok(None), |remote| {
        stores::remote::check_unit(volume, remote, metadata_store.as_ref(), open_mode)
    })?;
    let (encrypted, new_key) = encrypted.map(|one| (one.store, one.new_key)).unzip();
    let eraser = encrypted.clone().map(|store| store as _);
    let store: Arc<dyn Store> = match encrypted {
        Some(encrypted) => encrypted,
        None => store.clone(),
    };
    // The delay is above all reads during the opening, because they cannot wait.
    let store: Arc<dyn Store> = match volume.delay {
        Some(delay) => Arc::new(stores::SlowStore::new(store, delay.duration())),
        None => store,
    };
    let protected = Protected::over(&store, volume.protection);
    let store = protected.clone().map_or(store, |protected| protected);
    let state = |source| StoreError::State { source };
    let opened = sarsen_volume::Volume::open(sarsen_volume::Parts {
        name: volume.name.clone(),
        store,
        health: health.clone(),
        metadata: metadata_store,
        history: history.map(|history| history as _),
        companion: Some(Box::new(companion)),
    });
    let parts = Parts {
        identity: identity(volume, scope, machine),
        volume: opened.map_err(state)?,
        device_type: device_type(volume),
        removable: volume.removable,
        protected,
        eraser,
        pass_through: stores::pass_through::open(volume)?,
    };
    let unwritten = UnwrittenRecords { key: new_key.flatten(), unit: new_unit };
    Ok((LogicalUnit::of_parts(parts).map_err(state)?, unwritten))
}

/// Returns a volume's identity. It is derived from the serial number if it has one, otherwise from this machine and the
/// names of the volume and of its target (`scope`).
pub(crate) fn identity(volume: &VolumeConfig, scope: Option<&str>, machine: &str) -> Identity {
    let given = volume.clone();
    let derived = match &given.serial {
        Some(serial) => Identity::new(&volume.name, &format!("serial:{serial}")),
        None => Identity::new(&volume.name, &format!("{machine}/{}", scope.unwrap_or_default())),
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
        designators: Some(given.designators).filter(|given| !given.is_empty()),
        volume: derived.volume,
    }
}

/// Returns the device type of a volume.
fn device_type(volume: &VolumeConfig) -> DeviceType {
    match volume.store {
        StoreKind::Iso => DeviceType::Cd,
        StoreKind::Ram
        | StoreKind::Null
        | StoreKind::File
        | StoreKind::Pool
        | StoreKind::Remote => DeviceType::Disk,
        // A pass-through device reports its own type.
        StoreKind::Sg => DeviceType::Disk,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse_volume;

    #[test]
    fn a_file_that_was_written_a_moment_ago_is_not_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        let volume = parse_volume(&format!("a=file:{},size=1MiB", path.display())).expect("valid");
        assert!(check_not_just_written(&volume).is_ok(), "a missing file is another problem");
        let file = fs::File::create(&path).expect("created");
        let refused = check_not_just_written(&volume).expect_err("refused").to_string();
        assert!(refused.contains("was written a moment ago"), "{refused}");
        file.set_modified(time::wall_clock() - UNWRITTEN_FOR).expect("set");
        assert!(check_not_just_written(&volume).is_ok());
    }

    #[test]
    fn rollback_removes_only_empty_new_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("disk"), folder.path().join("other"));
        let volume = parse_volume(&format!("a=file:{},size=1MiB", path.display())).expect("valid");
        let made = |open_mode| {
            let mut files = NewFiles::missing_of(&volume, open_mode);
            fs::write(&path, "").expect("made");
            files.note();
            files
        };
        drop(made(OpenMode::Create));
        assert!(!path.exists(), "nobody has it");
        let files = made(OpenMode::Create);
        fs::write(&path, "copied into it meanwhile").expect("written");
        drop(files);
        assert!(path.exists(), "it holds something");
        fs::remove_file(&path).expect("removed");
        let files = made(OpenMode::Create);
        fs::write(&other, "").expect("another one");
        fs::rename(&other, &path).expect("put in its place");
        drop(files);
        assert!(path.exists(), "it is another one");
        fs::remove_file(&path).expect("removed");
        drop(made(OpenMode::Existing {
            length_before_growth: None,
            has_state: true,
            had: None,
            mark: MarkRule::Check,
        }));
        assert!(path.exists(), "who comes back was not made");
        fs::remove_file(&path).expect("removed");
        made(OpenMode::Create).keep();
        assert!(path.exists(), "it was kept");
    }
}
