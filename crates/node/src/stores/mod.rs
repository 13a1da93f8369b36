//! Disks that do I/O. `open` is the one place that opens one.

pub(crate) mod encrypted;
mod file;
mod guarded;
mod latch;
mod null;
pub(crate) mod pass_through;
mod protected;
mod ram;
mod slow;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sarsen_block::layers::{Faults, FaultyStore, ReadOnly};
use sarsen_block::{BlockSize, Lba, Store};
use tracing::warn;

pub(crate) use self::file::BackingSpace;
pub(crate) use self::file::check_growth;
pub use self::file::{FileOptions, FileStore};
pub(crate) use self::guarded::GuardedStore;
pub use self::null::NullStore;
pub use self::ram::RamStore;
pub use self::slow::SlowStore;
use crate::config::{FaultConfig, StoreConfig, VolumeConfig};
use crate::health::Health;

/// How long a file or folder may stay locked after the server that had it was killed.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(2);

/// When a write reaches the disk, with KVM's names and their exact meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Through the page cache; durable when flushed.
    #[default]
    WriteBack,
    /// Through the page cache; each write is durable when it is acknowledged.
    WriteThrough,
    /// Past the page cache; durable when flushed, since the device has a cache.
    None,
    /// Past the page cache; each write is durable when it is acknowledged.
    DirectSync,
    /// Through the page cache; flushes are ignored.
    Unsafe,
}

impl CacheMode {
    /// Past the page cache.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::None | Self::DirectSync)
    }

    /// Writes are acknowledged before they are durable.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, Self::WriteBack | Self::None | Self::Unsafe)
    }
}

/// Why a volume is opened, and with it whether its file may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    /// Nothing is known of it: a file that is not there is made, and one that is shorter is made longer.
    OpenOrCreate,
    /// It is new: a file that is not there is made, and one that is there is as long as it is to be.
    Create,
    /// It was there before: where its file is not, or is cut short, clients must not be shown an empty disk, or a
    /// part of one, that says that it is the one they know.
    Existing {
        /// Bytes of a file that was to become longer and may not have yet.
        pending_size: Option<u64>,
        /// The folder of its state was there, too.
        has_state: bool,
        /// Length of its file in bytes when it was served last, where known.
        had: Option<u64>,
    },
}

/// Why a store could not be opened: what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file is not there.
    #[error("{path} does not exist: correct the path, or set a size to create the file")]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// The file of a volume that was there before, or the folder of its state, is not.
    #[error(
        "{path} does not exist, and no empty file is created in its place: mount its file system, or restore the \
         file"
    )]
    Gone {
        /// The file.
        path: PathBuf,
    },
    /// Somebody else has the file.
    #[error("{path} is in use by another program, or by another volume of this server")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The file cannot be a volume as it is configured.
    #[error("{path} {problem}")]
    Unfit {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A call to the system failed.
    #[error("{path}: cannot {what}: {source}")]
    System {
        /// The file.
        path: PathBuf,
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// There is no address space for a RAM volume of this size.
    #[error("no address space for a RAM volume of {size} bytes: {source}")]
    Memory {
        /// Bytes.
        size: u64,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// What the volume keeps beside its data cannot be used.
    #[error("{source}")]
    State {
        /// Which file, what is wrong with it, and what to do.
        #[source]
        source: io::Error,
    },
    /// A fault is planned for a block that the volume does not have.
    #[error(
        "fault = {fault:?}: block {block} does not exist; the last block of the volume is {}",
        .block_count.saturating_sub(1)
    )]
    FaultOutside {
        /// The fault, as it was written.
        fault: String,
        /// The block.
        block: Lba,
        /// Blocks of the volume.
        block_count: u64,
    },
}

impl StoreError {
    /// Whether what was asked for makes no sense.
    pub fn is_misconfigured(&self) -> bool {
        matches!(self, Self::FaultOutside { .. })
    }

    /// Whether somebody else has what was to be opened.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }

    /// Whether what was to be opened is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Gone { .. })
    }
}

/// A store that was opened.
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    /// The memory that is its lowest layer, where it is and can grow.
    pub(crate) memory: Option<Arc<RamStore>>,
    /// The file that is, which may have to be settled.
    pub(crate) file: Option<Arc<FileStore>>,
    /// The store reports here that its backing cannot be used.
    pub(crate) health: Arc<Health>,
}

/// Opens a volume's store, with the layers that its configuration asks for, but for the one that
/// needs what the volume keeps (see `encrypted`).
/// A file is as long as it was until it is settled.
pub(crate) fn open(volume: &VolumeConfig, open_mode: OpenMode) -> Result<Opened, StoreError> {
    let blocks = |size: u64| size >> volume.block_size.shift();
    let health = Arc::<Health>::default();
    let (mut memory, file) = (None, None);
    let store: Arc<dyn Store> = match &volume.store {
        StoreConfig::Ram { size, limit } => {
            let store = match volume.protection {
                Some(_) => protected::in_memory(volume.block_size, *size, *limit),
                None => RamStore::with_limit(volume.block_size, blocks(*size), *limit)
                    .map(|store| memory.insert(Arc::new(store)).clone() as _),
            };
            store.map_err(|source| StoreError::Memory { size: *size, source })?
        }
        StoreConfig::Null { size } => Arc::new(NullStore::new(volume.block_size, blocks(*size))),
        StoreConfig::File { path, size, cache, .. } => {
            let options = FileOptions {
                path: path.clone(),
                size: *size,
                block_size: volume.block_size,
                cache: *cache,
                read_only: volume.read_only,
            };
            let (store, file): (Arc<dyn Store>, _) = match volume.protection {
                Some(_) => protected::open_file(&options, open_mode)?,
                None => {
                    protected::refuse_as_plain(path)?;
                    let file = Arc::new(FileStore::prepare(&options, open_mode)?);
                    (file.clone(), file)
                }
            };
            // It is read-only by itself.
            let health = file.health().clone();
            return Ok(Opened { store: plant(volume, store)?, memory, file: Some(file), health });
        }
        // The device is asked by commands (see `pass_through`): there are no blocks of ours.
        StoreConfig::Sg { .. } => {
            let store = Arc::new(NullStore::new(volume.block_size, 0));
            return Ok(Opened { store, memory, file, health });
        }
        StoreConfig::Iso { path } => {
            let image = Arc::new(open_image(path)?);
            let health = image.health().clone();
            let store = plant(volume, image.clone())?;
            return Ok(Opened { store, memory, file: Some(image), health });
        }
    };
    let store = plant(volume, store)?;
    let store = if volume.read_only { Arc::new(ReadOnly::new(store)) } else { store };
    Ok(Opened { store, memory, file, health })
}

/// An image of a CD. One that ends within a block is not whole, and what a drive would give of that
/// block nobody knows.
fn open_image(path: &Path) -> Result<FileStore, StoreError> {
    let block = BlockSize::B2048.bytes() as u64;
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    if !length.is_multiple_of(block) {
        return Err(StoreError::Unfit {
            path: path.to_owned(),
            problem: format!(
                "has {length} bytes, which are no whole blocks of a CD, of {block} each: \
                 it was not copied to its end; copy it again, or fill its last block with zeroes \
                 (truncate --size %{block})"
            ),
        });
    }
    FileStore::open(&FileOptions {
        path: path.to_owned(),
        size: None,
        block_size: BlockSize::B2048,
        cache: CacheMode::default(),
        read_only: true,
    })
}

/// Puts the faults over a store that are to happen to it.
fn plant(volume: &VolumeConfig, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, StoreError> {
    if volume.faults.is_empty() {
        return Ok(store);
    }
    let block_count = store.geometry().block_count;
    let faults = Faults::default();
    for FaultConfig { fault, times, text, last_block } in &volume.faults {
        if last_block.0 >= block_count {
            let (fault, block) = (text.clone(), *last_block);
            return Err(StoreError::FaultOutside { fault, block, block_count });
        }
        faults.add(*fault, *times);
        warn!(volume = volume.name, fault = text, "this volume goes wrong on purpose");
    }
    Ok(Arc::new(FaultyStore::new(store, faults)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_whole_blocks_of_a_cd_or_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.iso");
        let open_with = |length: u64| {
            std::fs::File::create(&path).and_then(|file| file.set_len(length)).expect("a file");
            open_image(&path)
        };
        for length in [2047, 2049, 4096 + 512] {
            let message = open_with(length).err().expect("refused").to_string();
            assert!(message.contains(&format!("has {length} bytes")), "{message}");
            assert!(message.contains("truncate --size %2048"), "{message}");
        }
        let store = open_with(4096).expect("two blocks");
        assert_eq!(store.geometry().block_count, 2);
        assert!(store.characteristics().read_only);
        assert!(open_with(0).is_err());
        std::fs::remove_file(&path).expect("removed");
        assert!(open_image(&path).err().is_some_and(|error| error.is_not_found()));
    }
}
