//! Stores that do I/O. Only `open` opens them.

pub(crate) mod encrypted;
mod file;
#[cfg_attr(not(feature = "multimedia"), path = "image/missing.rs")]
mod image;
mod latch;
mod null;
mod on_cores;
#[cfg_attr(not(feature = "pass-through"), path = "pass_through/missing.rs")]
pub(crate) mod pass_through;
pub(crate) mod pool;
mod protected;
mod ram;
pub(crate) mod remote;
mod slow;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::layers::{Faults, FaultyStore, ReadOnly};
use sarsen_block::{Lba, Store};
use sarsen_pool::StreamProblem;
use sarsen_volume::Health;
use tracing::warn;

pub(crate) use self::file::BackingSpace;
pub(crate) use self::file::check_growth;
pub use self::file::{FileOptions, FileStore};
pub use self::null::NullStore;
pub(crate) use self::on_cores::{StoreCores, now};
pub use self::pool::{
    CheckedPool, PlannedDevice, PoolPlan, check as check_pool, create as create_pool,
    preview_recovery_offline, recover as recover_pool,
};
pub(crate) use self::pool::{
    NewPoolVolume, OpenPool, PendingRollBack, PoolBacking, PoolMemory, PoolRename, ReportedDevice,
    RollBackEnd, VolumeFilling, tier_use_of,
};
pub use self::ram::RamStore;
pub(crate) use self::remote::{RemoteAccess, RemoteStore, RemoteUnit};
pub use self::slow::SlowStore;
pub use crate::config::CacheMode;
use crate::config::{FaultConfig, StoreKind, VolumeConfig};
use crate::missing_feature::MissingFeature;
use crate::model::ByteSize;

/// Maximum time that a file or folder may stay locked after its server was killed.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// The situation in which a volume is opened, which decides whether its file may be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// The server does not know the volume. A missing file is created, and a shorter file grows.
    OpenOrCreate,
    /// The volume is new. A missing file is created. An existing file must have the configured size or be empty.
    Create,
    /// The volume existed before. A missing or truncated file is refused: initiators would see an empty or partial disk
    /// with the identity of the known one.
    Existing {
        /// Current length in bytes of a file whose growth was begun and may not have been completed.
        length_before_growth: Option<u64>,
        /// The state folder existed, too.
        has_state: bool,
        /// Length of the file in bytes when it was last served, if known.
        had: Option<u64>,
        /// The treatment of the file's mark.
        mark: MarkRule,
    },
}

/// The treatment of the mark of a volume's file: see `file/owner_mark`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkRule {
    /// No mark is read or written: without a state, the configuration alone says which file a volume has.
    Ignore,
    /// The file of another volume is refused.
    Check,
    /// A change gives the file to the volume, whatever its mark.
    Give,
    /// An administrator has confirmed the file, for this attempt to open it.
    Confirm,
}

impl OpenMode {
    /// Returns the treatment of the file's mark.
    pub(crate) fn mark_rule(self) -> MarkRule {
        match self {
            Self::OpenOrCreate => MarkRule::Ignore,
            Self::Create => MarkRule::Give,
            Self::Existing { mark, .. } => mark,
        }
    }

    /// Returns the mode of the next attempt after one that failed.
    pub(crate) fn after_failure(mut self) -> Self {
        if let Self::Existing { mark, .. } = &mut self
            && *mark == MarkRule::Confirm
        {
            *mark = MarkRule::Check;
        }
        self
    }

    /// Returns the length of the file when it was last served, if the volume was closed after a failed flush.
    pub(crate) fn had(self) -> Option<u64> {
        match self {
            Self::OpenOrCreate | Self::Create => None,
            Self::Existing { had, .. } => had,
        }
    }

    /// Returns the length of a file before a growth that was begun or may begin. It is 0 for a file that may not exist.
    pub(crate) fn length_before_growth(self) -> Option<u64> {
        match self {
            Self::OpenOrCreate | Self::Create => Some(0),
            Self::Existing { length_before_growth, .. } => length_before_growth,
        }
    }
}

/// The reason why a store could not be opened, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file does not exist.
    #[error("{path} does not exist: correct the path, or set a size to create the file")]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file or the state folder of an existing volume is missing.
    #[error(
        "{path} does not exist, and no empty file is created in its place: mount its file system, or restore the \
         file"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// Another program or volume uses the file.
    #[error(
        "{path} is in use by another program or another volume; end that use, or choose another path"
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file is not suitable for a volume with this configuration.
    #[error("{path} {problem}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The problem and its remedy.
        problem: String,
    },
    /// A system call failed.
    #[error("{path}: cannot {what}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// There is no address space for a RAM volume of this size.
    #[error("no address space for a RAM volume of {size} bytes: {source}")]
    Memory {
        /// The size in bytes.
        size: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The image from which a volume is filled is missing.
    #[error(
        "{path} does not exist, and the volume is filled from this image: correct the path, or restore the image"
    )]
    NoImage {
        /// The file.
        path: PathBuf,
    },
    /// The image from which a volume is filled cannot be used.
    #[error("{problem}")]
    Image {
        /// The file, its problem and the remedy.
        problem: String,
    },
    /// The records of the volume cannot be used.
    #[error("{source}")]
    State {
        /// The file, its problem, and the remedy.
        #[source]
        source: io::Error,
    },
    /// A pool cannot do what was asked.
    #[error("{}{problem}", pool_prefix(pool))]
    Pool {
        /// The name of the pool.
        pool: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// A part of a stream does not fit to the snapshot that receives it.
    #[error("{object}: {problem}")]
    SnapshotStream {
        /// The snapshot.
        object: String,
        /// What does not fit.
        #[source]
        problem: StreamProblem,
    },
    /// A volume or a snapshot in a pool prevents the operation.
    #[error("{problem}")]
    PoolObjectInUse {
        /// Its name, the problem and the remedy.
        problem: String,
    },
    /// A device of a pool cannot be opened.
    #[error("pool {pool}: {source}")]
    Device {
        /// The name of the pool.
        pool: String,
        /// The problem of the device.
        #[source]
        source: Box<StoreError>,
    },
    /// The server ends.
    #[error("the server stops")]
    ServerEnds,
    /// Another volume, pool, attachment or program of this machine has the remote logical unit.
    #[error(
        "{url} is in use by another volume, pool, attachment or program of this machine ({unit}): only one can have it. Servers without \
         a state (`--state`) on one machine give volumes of one name the same identifier"
    )]
    RemoteUnitInUse {
        /// Its URL, without secrets.
        url: String,
        /// Its identifier, or its place.
        unit: String,
    },
    /// A remote logical unit cannot be used.
    #[error("{url} {problem}")]
    RemoteUnit {
        /// Its URL, without secrets.
        url: String,
        /// The problem and its remedy.
        problem: String,
    },
    /// The program was built without the feature of this store.
    #[error("store = {store:?}: {source}")]
    MissingFeature {
        /// The store, as the configuration names it.
        store: &'static str,
        /// The feature, and the remedy.
        #[source]
        source: MissingFeature,
    },
    /// A fault is configured for a block that the volume does not have.
    #[error(
        "fault = {fault:?}: block {block} does not exist; the last block of the volume is {}",
        .block_count.saturating_sub(1)
    )]
    FaultOutside {
        /// The fault, as it was configured.
        fault: String,
        /// The block.
        block: Lba,
        /// Number of blocks of the volume.
        block_count: u64,
    },
}

impl StoreError {
    /// Returns the function that names the file and the operation of a failed system call.
    pub(crate) fn system(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { path: path.to_owned(), what, source }
    }

    pub(crate) fn unfit(path: &Path, problem: impl Into<String>) -> Self {
        Self::Unfit { path: path.to_owned(), problem: problem.into() }
    }

    pub(crate) fn pool(pool: &str, problem: impl Into<String>) -> Self {
        Self::Pool { pool: pool.to_owned(), problem: problem.into() }
    }

    /// Returns whether the configuration is wrong for this program.
    pub fn is_misconfigured(&self) -> bool {
        matches!(self, Self::FaultOutside { .. } | Self::MissingFeature { .. })
    }

    /// Returns whether another program or volume uses the file.
    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Device { source, .. } => source.is_in_use(),
            other => matches!(
                other,
                Self::InUse { .. } | Self::PoolObjectInUse { .. } | Self::RemoteUnitInUse { .. }
            ),
        }
    }

    /// Returns whether the file or folder does not exist.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Device { source, .. } => source.is_not_found(),
            other => {
                matches!(other, Self::NotFound { .. } | Self::Gone { .. } | Self::NoImage { .. })
            }
        }
    }
}

/// A pool without a name is one that is only checked.
fn pool_prefix(pool: &str) -> String {
    if pool.is_empty() { String::new() } else { format!("pool {pool}: ") }
}

/// What the store of a volume needs beside its configuration.
pub(crate) enum Foundation {
    Nothing,
    Pool(VolumePool),
    Remote(RemoteAccess),
}

/// The pool of a volume that is opened.
pub(crate) struct VolumePool {
    pub(crate) open: Arc<OpenPool>,
    /// The serial number of the volume whose snapshot it is, or begins with.
    pub(crate) origin: Option<String>,
}

/// An open store.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The memory at the lowest layer, if the store has one that can grow.
    pub(crate) memory: Option<Arc<RamStore>>,
    /// The file at the lowest layer, if any. It may have to be settled.
    pub(crate) file: Option<Arc<FileStore>>,
    /// The volume of a pool at the lowest layer, if it has one.
    pub(crate) pool: Option<PoolBacking>,
    /// The remote unit at the lowest layer, if it has one.
    pub(crate) remote: Option<Arc<RemoteStore>>,
    /// The store reports here that its backing cannot be used.
    pub(crate) health: Arc<Health>,
}

/// Opens a volume's store with its configured layers, except the layer that needs the volume's records (see
/// `encrypted`). A file keeps its length until it is settled.
pub(crate) fn open(
    volume: &VolumeConfig,
    open_mode: OpenMode,
    foundation: &Foundation,
) -> Result<Opened, StoreError> {
    let block_size = volume.block_size();
    // A volume that was checked has a size or a path if its store needs it.
    let size = volume.size.map_or(0, ByteSize::get);
    let block_count = size >> block_size.shift();
    let path = volume.path.as_deref().unwrap_or(Path::new(""));
    let (mut memory, file, mut pool_backing, remote) = (None, None, None, None);
    let store: Arc<dyn Store> = match volume.store {
        StoreKind::Ram => {
            let limit = volume.limit.map(ByteSize::get);
            let store = match volume.protection {
                Some(_) => protected::in_memory(block_size, size, limit),
                None => RamStore::with_limit(block_size, block_count, limit)
                    .map(|store| memory.insert(Arc::new(store)).clone() as _),
            };
            store.map_err(|source| StoreError::Memory { size, source })?
        }
        StoreKind::Null => Arc::new(NullStore::new(block_size, block_count)),
        StoreKind::File => {
            let options = file_options(volume, path);
            let (store, file): (Arc<dyn Store>, _) = match volume.protection {
                Some(_) => protected::open_file(&options, open_mode)?,
                None => {
                    protected::refuse_as_plain(path)?;
                    let file = Arc::new(FileStore::prepare(&options, open_mode)?);
                    (file.clone(), file)
                }
            };
            // A file store enforces read-only access itself.
            let health = file.health().clone();
            let (store, file, pool) = (plant(volume, store)?, Some(file), None);
            return Ok(Opened { store, memory, file, pool, remote, health });
        }
        // Commands are passed to the device (see `pass_through`), so the server has no blocks here.
        StoreKind::Sg => {
            let store = Arc::new(NullStore::new(block_size, 0));
            let health = Arc::new(Health::new(store.status().clone()));
            return Ok(Opened { store, memory, file, pool: None, remote, health });
        }
        StoreKind::Pool => {
            let Foundation::Pool(VolumePool { open, origin }) = foundation else {
                return Err(StoreError::pool("", "the pool is not open"));
            };
            let backing = open.open_volume(volume, origin.as_deref(), open_mode)?;
            let store = backing.volume.clone();
            pool_backing = Some(backing);
            store
        }
        StoreKind::Remote => {
            let (Foundation::Remote(access), Some(unit)) =
                (foundation, RemoteUnit::of_volume(volume))
            else {
                let problem = "a remote volume is opened with the accounts of a server".to_owned();
                return Err(StoreError::RemoteUnit { url: volume.name.clone(), problem });
            };
            let (remote, health) = RemoteStore::open(&unit, access)?;
            let store = plant(volume, remote.clone())?;
            let store = if volume.is_read_only() { Arc::new(ReadOnly::new(store)) } else { store };
            let (pool, remote) = (None, Some(remote));
            return Ok(Opened { store, memory, file, pool, remote, health });
        }
        StoreKind::Iso => {
            let image = Arc::new(image::open(path)?);
            let health = image.health().clone();
            let store = plant(volume, image.clone())?;
            return Ok(Opened { store, memory, file: Some(image), pool: None, remote, health });
        }
    };
    let store = plant(volume, store)?;
    let store = if volume.is_read_only() { Arc::new(ReadOnly::new(store)) } else { store };
    let health = Arc::new(Health::new(store.status().clone()));
    Ok(Opened { store, memory, file, pool: pool_backing, remote, health })
}

fn file_options(volume: &VolumeConfig, path: &Path) -> FileOptions {
    FileOptions {
        path: path.to_owned(),
        size: volume.size.map(ByteSize::get),
        block_size: volume.block_size(),
        cache: volume.cache(),
        read_only: volume.is_read_only(),
        serial: volume.serial.clone(),
    }
}

/// Creates the empty file of a new volume, if it has one and it is missing.
pub(crate) fn create(volume: &VolumeConfig) -> Result<(), StoreError> {
    match volume.file() {
        Some(path) if !path.exists() => file::create(&file_options(volume, path)),
        Some(_) | None => Ok(()),
    }
}

/// Checks, without opening it for use, whether the file of a volume can be opened when another one has released it.
/// Changes nothing. Returns the length of the file.
pub(crate) fn trial(volume: &VolumeConfig, open_mode: OpenMode) -> Result<Option<u64>, StoreError> {
    let Some(path) = volume.file() else { return Ok(None) };
    let options = file_options(volume, path);
    let below = match volume.protection {
        Some(_) => protected::options_below(&options)?,
        None => options.clone(),
    };
    let (length, wanted) = file::trial(&below, open_mode)?;
    // The size of a volume with protection information is not that of its file.
    if let Some(bytes) = options.size.or_else(|| volume.protection.is_none().then_some(wanted)) {
        check_faults(volume, bytes >> volume.block_size().shift())?;
    }
    Ok(Some(length))
}

/// Adds the configured faults above a store.
fn plant(volume: &VolumeConfig, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, StoreError> {
    if volume.fault.is_empty() {
        return Ok(store);
    }
    check_faults(volume, store.geometry().block_count)?;
    let faults = Faults::default();
    for FaultConfig { fault, times, text, .. } in &volume.fault {
        faults.add(*fault, *times);
        warn!(volume = volume.name, fault = text, "this volume goes wrong on purpose");
    }
    Ok(Arc::new(FaultyStore::new(store, faults)))
}

/// Refuses faults of blocks that the volume does not have.
fn check_faults(volume: &VolumeConfig, block_count: u64) -> Result<(), StoreError> {
    match volume.fault.iter().find(|fault| fault.last_block.0 >= block_count) {
        None => Ok(()),
        Some(FaultConfig { text, last_block, .. }) => {
            Err(StoreError::FaultOutside { fault: text.clone(), block: *last_block, block_count })
        }
    }
}
