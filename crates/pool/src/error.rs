//! The reasons why a pool cannot be created, opened or changed.

use sarsen_block::{BlockError, StopCause};

use crate::parts::StreamProblem;

/// The failure of an operation on a pool.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// A device answered with an error.
    #[error("device {device}: {source}")]
    Device {
        /// Number of the device in the list of devices.
        device: usize,
        /// Its error.
        #[source]
        source: BlockError,
    },
    /// The devices are not the devices of a pool that this program can open.
    #[error("device {device}: {problem}")]
    Unfit {
        /// Number of the device in the list of devices.
        device: usize,
        /// What is wrong with it.
        #[source]
        problem: PoolProblem,
    },
    /// Metadata on the devices contradicts the format.
    #[error("the metadata of the pool is damaged: {what}")]
    Damaged {
        /// The first damage that was found.
        what: String,
    },
    /// A frame of the journal is damaged, and later ones are not.
    #[error(
        "frame {frame} of its journal is damaged on all devices that are there, and later frames are not: all writes from this \
         frame on would be lost"
    )]
    DamagedJournal {
        /// The number of the frame.
        frame: u64,
    },
    /// The pool has no space for the operation.
    #[error("the pool has no space left")]
    NoSpace,
    /// The pool has stopped, because a device did not write its metadata.
    #[error("the pool has stopped after an error of a device")]
    Stopped,
    /// There is no such volume or snapshot.
    #[error("there is no such volume or snapshot in the pool")]
    NotFound,
    /// There is no such device.
    #[error("the pool has no such device; `sarsen pool status` shows them")]
    NoDevice,
    /// The volume has another snapshot of this name.
    #[error("the volume has another snapshot of this name")]
    Exists,
    /// It is open, so it cannot be deleted or rolled back.
    #[error("it is in use")]
    InUse,
    /// It is protected from deletion.
    #[error("it is protected from deletion")]
    Protected,
    /// It is a snapshot of which parts have not been received yet.
    #[error("the snapshot is not complete: receive the rest of it first")]
    Incomplete,
    /// It is a volume that does not have all of its image yet.
    #[error(
        "it is still being filled from its image: wait until `sarsen volume list` does not say so any more"
    )]
    Filling,
    /// A part of a stream does not fit.
    #[error(transparent)]
    Stream(#[from] StreamProblem),
    /// A volume or a snapshot could not be read or written.
    #[error("{source}")]
    Volume {
        /// Its error.
        #[source]
        source: BlockError,
    },
    /// The request contradicts the properties of its object.
    #[error("{0}")]
    Invalid(&'static str),
}

/// The reason why a device does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolProblem {
    /// It has no superblock.
    #[error("it is no device of a pool")]
    NoPool,
    /// Both superblocks are damaged.
    #[error("both of its superblocks are damaged")]
    Damaged,
    /// The format has another version.
    #[error(
        "its format has version {0}, and this program knows version {version}: use a program of that version",
        version = crate::format::VERSION
    )]
    Version(u32),
    /// It is a device of another pool.
    #[error("it belongs to another pool")]
    Foreign,
    /// Two devices of the list are the same device of the pool.
    #[error("it is a copy of another device of the list: remove the copy")]
    Duplicate,
    /// The pool has more devices than were given.
    #[error(
        "it is one of {expected} devices of the pool, and {found} were given: give all of them"
    )]
    Missing {
        /// Number of devices of the pool.
        expected: usize,
        /// Number of devices that were given.
        found: usize,
    },
    /// It was used without the other devices while they were used without it.
    #[error(
        "it was used without the other devices, and has other data now: if that is not needed, replace it in the pool"
    )]
    Diverged,
    /// It was not in use with the others: it is an older copy.
    #[error(
        "it is an older copy of a device of the pool (checkpoint {generation} of {newest}): use the device itself"
    )]
    Stale {
        /// The number of its last checkpoint.
        generation: u64,
        /// The number of the last checkpoint of the pool.
        newest: u64,
    },
    /// The device is shorter than it was.
    #[error("it has {actual} bytes of the {expected} that it had")]
    Short {
        /// Bytes that the pool needs.
        expected: u64,
        /// Bytes that the device has.
        actual: u64,
    },
    /// The device is too small for a pool.
    #[error("it is too small: a pool needs at least {0} bytes on each device")]
    TooSmall(u64),
    /// Its logical blocks are larger than a page.
    #[error("its logical blocks are larger than 4096 bytes")]
    LargeBlocks,
}

impl From<PoolError> for BlockError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Device { source, .. } | PoolError::Volume { source } => source,
            PoolError::NoSpace => Self::NoSpace { lba: sarsen_block::Lba(0) },
            PoolError::Stopped => StopCause::FlushFailed.into(),
            PoolError::NotFound
            | PoolError::NoDevice
            | PoolError::Unfit { .. }
            | PoolError::Damaged { .. }
            | PoolError::DamagedJournal { .. }
            | PoolError::Exists
            | PoolError::InUse
            | PoolError::Protected
            | PoolError::Incomplete
            | PoolError::Filling
            | PoolError::Stream(_)
            | PoolError::Invalid(_) => StopCause::OutOfService.into(),
        }
    }
}

/// A lack that a caller resolves before it tries again.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// These pages or counts must be in memory.
    Missing(Vec<Load>),
    /// A checkpoint must free memory and space first.
    Checkpoint,
    /// There is no space.
    NoSpace,
    /// Copies are made of what would be written: the caller waits until that has ended.
    Copying,
    /// A region must be recorded before it is overwritten.
    Unmarked(crate::copies::Place, u64),
    /// No other entry of the leaf can have a base: the caller copies what the base would have.
    NoBase,
    /// The volume does not exist.
    NotFound,
    /// Metadata contradicts the format.
    Damaged(String),
}

/// Metadata to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Load {
    /// The page with this address.
    Page(u64),
    /// The reference counts of this slab.
    Counts(u32),
    /// The checksums of this slab that are in the page with this number.
    Checksums(u32, u32),
}
