//! Errors of stores, classified by the next step of the caller.

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

/// The failure of one block request. Each variant is a class, which says what the caller does next. The mappings to
/// sense data and to NBD's error values are in `sarsen-scsi` and in the NBD front.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// The request is at fault, and fails each time: the caller corrects it.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
    /// Blocks cannot be read or written, or contain wrong data: the caller uses another copy of them.
    #[error("{:?} error at block {lba}: {problem}", problem.direction())]
    Medium {
        /// The first block that is known to be affected.
        lba: Lba,
        /// What is wrong with it.
        #[source]
        problem: MediumProblem,
    },
    /// A thin store, or the file system under it, has no space for new blocks: the caller waits for space.
    #[error("no space left for block {lba}")]
    NoSpace {
        /// First block of the request.
        lba: Lba,
    },
    /// The store could not carry out the request now: the caller tries again. No data of an earlier request is lost.
    #[error("try again: {0}")]
    Transient(#[source] io::Error),
    /// The store cannot be reached here: the caller uses another path to it. Data that was acknowledged after the last
    /// flush may be lost.
    #[error("not reachable: {0}")]
    Unreachable(#[source] io::Error),
    /// The client has lost its right to this request, because of a reservation of another client.
    #[error("another client has reserved the volume")]
    Fenced,
    /// The store has stopped until an administrator acts.
    #[error(transparent)]
    Stopped(#[from] StopCause),
}

impl BlockError {
    /// Creates the error of a failed access to a medium.
    pub const fn medium(lba: Lba, direction: Direction, source: io::Error) -> Self {
        let problem = match direction {
            Direction::Read => MediumProblem::Read(source),
            Direction::Write => MediumProblem::Write(source),
        };
        Self::Medium { lba, problem }
    }
}

impl Extent {
    /// Returns an error unless the extent is within a store of `block_count` blocks.
    pub fn check(self, block_count: u64) -> Result<(), BlockError> {
        if self.fits(block_count) {
            Ok(())
        } else {
            Err(InvalidRequest::OutOfRange { extent: self, block_count }.into())
        }
    }
}

/// The reason why a request is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidRequest {
    /// The extent is outside the store.
    #[error("{extent} lies outside a store of {block_count} blocks")]
    OutOfRange {
        /// The requested extent.
        extent: Extent,
        /// Number of blocks of the store.
        block_count: u64,
    },
    /// The store accepts no writes.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store does not support this request.
    #[error("the store does not support this request")]
    Unsupported,
    /// The server behind the store does not accept the request.
    #[error("{0}")]
    Rejected(#[source] io::Error),
}

/// The problem of a block.
#[derive(Debug, thiserror::Error)]
pub enum MediumProblem {
    /// The block cannot be read.
    #[error("{0}")]
    Read(#[source] io::Error),
    /// The block cannot be written, discarded or flushed.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// The stored data does not match its protection information. The reader of that information reports this error,
    /// never a store itself.
    #[error("wrong {0:?} in the protection information")]
    Protection(ProtectionField),
}

impl MediumProblem {
    /// Returns the direction of the access that found the problem.
    pub const fn direction(&self) -> Direction {
        match self {
            Self::Read(_) | Self::Protection(_) => Direction::Read,
            Self::Write(_) => Direction::Write,
        }
    }
}

/// The reason why a store has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopCause {
    /// A flush failed. Writes that the store acknowledged after the flush before that one may be lost. It reads, but
    /// acknowledges no write and no flush any more.
    #[error("the store stopped after a failed flush")]
    FlushFailed,
    /// The store is out of service: its backing is missing, replaced, damaged or does not respond. The store reads and
    /// writes nothing.
    #[error("the store is out of service")]
    OutOfService,
}
