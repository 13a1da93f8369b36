//! What can go wrong below, split by what the layer above does next.

use std::io;

use crate::{Extent, Lba};

/// Whether a medium failed while it was read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reading.
    Read,
    /// Writing, discarding or flushing.
    Write,
}

/// A field of a block's protection information (SBC-3 4.22.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtectionField {
    /// LOGICAL BLOCK GUARD.
    Guard,
    /// LOGICAL BLOCK APPLICATION TAG.
    ApplicationTag,
    /// LOGICAL BLOCK REFERENCE TAG.
    ReferenceTag,
}

/// The failure of one block request. The mapping to sense data is in `sarsen-scsi`.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The extent does not lie within the store.
    #[error("{extent} lies outside a store of {block_count} blocks")]
    OutOfRange {
        /// What was asked for.
        extent: Extent,
        /// Blocks of the store.
        block_count: u64,
    },
    /// A thin store or the file system under it has no room for new blocks.
    #[error("no space left for block {lba}")]
    NoSpace {
        /// First block of the request.
        lba: Lba,
    },
    /// The medium or the layer under us returned an error.
    #[error("{direction:?} error at block {lba}: {source}")]
    Medium {
        /// The first block that is known to be affected.
        lba: Lba,
        /// Reading or writing.
        direction: Direction,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// What is stored of a block does not agree with its protection information: told by who reads
    /// that, never by a store itself.
    #[error("the {field:?} of block {lba} is wrong")]
    Protection {
        /// The first such block.
        lba: Lba,
        /// What does not agree.
        field: ProtectionField,
    },
    /// The store takes no writes.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store has stopped: a flush failed earlier, so what it acknowledged since the flush
    /// before that may be lost, and nothing more is acknowledged until an operator has looked.
    #[error("the store stopped after a failed flush")]
    Stopped,
    /// The store is out of service: its backing is missing, replaced, damaged or does not respond. The store reads
    /// and writes nothing until an administrator has repaired the backing.
    #[error("the store is out of service")]
    OutOfService,
    /// The store cannot do this at all.
    #[error("the store does not support this request")]
    Unsupported,
}
