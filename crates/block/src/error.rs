//! Errors of stores, classified by the next step of the upper layer.

use std::io;

use crate::{Extent, Lba};

/// The direction of a failed access to a medium.
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
    /// The extent is outside the store.
    #[error("{extent} lies outside a store of {block_count} blocks")]
    OutOfRange {
        /// The requested extent.
        extent: Extent,
        /// Number of blocks of the store.
        block_count: u64,
    },
    /// A thin store, or the file system under it, has no space for new blocks.
    #[error("no space left for block {lba}")]
    NoSpace {
        /// First block of the request.
        lba: Lba,
    },
    /// The medium or the lower layer returned an error.
    #[error("{direction:?} error at block {lba}: {source}")]
    Medium {
        /// The first block that is known to be affected.
        lba: Lba,
        /// The direction: read or write.
        direction: Direction,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The stored data of a block does not match its protection information. The reader of that information reports
    /// this error, never a store itself.
    #[error("the protection information of block {lba} has a wrong {field:?}")]
    Protection {
        /// The first such block.
        lba: Lba,
        /// The field that does not match.
        field: ProtectionField,
    },
    /// The store accepts no writes.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store has stopped because a flush failed. Writes that it acknowledged after the flush before that one may be
    /// lost. The store acknowledges nothing more until an administrator has intervened.
    #[error("the store stopped after a failed flush")]
    Stopped,
    /// The store is out of service: its backing is missing, replaced, damaged or does not respond. The store reads
    /// and writes nothing until an administrator has repaired the backing.
    #[error("the store is out of service")]
    OutOfService,
    /// Another client holds a reservation that does not permit this request.
    #[error("another client has reserved the volume")]
    Fenced,
    /// The store does not support this request.
    #[error("the store does not support this request")]
    Unsupported,
}
