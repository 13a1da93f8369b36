//! The execution of the operations of NBD on a volume. Disks that are attached to this machine have the same operations.

use std::sync::Arc;

use sarsen_block::{
    Allocation, BlockError, BlockSize, Data, Durability, Extent, InvalidRequest, Io, StopCause,
};
use sarsen_proto::nbd::server::{Operation, Outcome, StatusContext, StatusExtent};
use sarsen_volume::Attachment;
use sarsen_volume::statistics::Failure;
use sarsen_wire::nbd::{ErrorCode, allocation, dirty_bitmap};
use tokio::sync::watch;

/// Ranges are zeroed and deallocated in pieces of so many bytes, so that one request does not occupy a core
/// or a store for too long.
const ZERO_PIECE: u64 = 32 << 20;
const UNMAP_PIECE: u64 = 1 << 30;
/// Maximum number of queries to the volume for the status of a range in one context.
const STATUS_QUERIES: usize = 1024;
/// Maximum length of the range of one query for changes, in bytes.
const CHANGES_PIECE: u64 = 1 << 30;

/// Whether the session of a request has ended.
type Cancelled = watch::Receiver<bool>;

/// The reason why a request failed.
pub(crate) enum RequestError {
    Block(BlockError),
    /// The target port group is not active.
    Inactive,
    /// Zeroes could not be written faster than data.
    NotFast,
    /// The session ended before the request, or its next piece, was started.
    Cancelled,
}

impl From<BlockError> for RequestError {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

/// Returns how statistics and the client see an error ("Error values").
pub(crate) fn failed(error: &RequestError) -> (Failure, ErrorCode) {
    let error = match error {
        RequestError::Block(error) => error,
        RequestError::Inactive => return (Failure::NotReady, ErrorCode::NotPermitted),
        RequestError::NotFast => return (Failure::IllegalRequest, ErrorCode::NotSupported),
        RequestError::Cancelled => return (Failure::Aborted, ErrorCode::Shutdown),
    };
    match error {
        BlockError::Invalid(request) => match request {
            // A volume may have shrunk. The machine has checked the request against the earlier size.
            InvalidRequest::OutOfRange { .. } => (Failure::IllegalRequest, ErrorCode::NoSpace),
            InvalidRequest::ReadOnly => (Failure::DataProtect, ErrorCode::NotPermitted),
            InvalidRequest::Unsupported => (Failure::IllegalRequest, ErrorCode::NotSupported),
            InvalidRequest::Rejected(_) => (Failure::IllegalRequest, ErrorCode::Invalid),
        },
        BlockError::Medium { .. } => (Failure::MediumError, ErrorCode::Io),
        BlockError::NoSpace { .. } => (Failure::NoSpace, ErrorCode::NoSpace),
        // The server lacked memory or other resources for a moment.
        BlockError::Transient(_) => (Failure::AbortedCommand, ErrorCode::NoMemory),
        BlockError::Unreachable(_) => (Failure::NotReady, ErrorCode::Shutdown),
        BlockError::Fenced => (Failure::ReservationConflict, ErrorCode::NotPermitted),
        BlockError::Stopped(StopCause::FlushFailed) => (Failure::MediumError, ErrorCode::Io),
        BlockError::Stopped(StopCause::OutOfService) => (Failure::NotReady, ErrorCode::Io),
    }
}

const fn durability(durable: bool) -> Durability {
    if durable { Durability::Durable } else { Durability::Volatile }
}

/// Executes a request, whose range is aligned to blocks.
pub(crate) fn execute(
    volume: &Arc<Attachment>,
    block_size: BlockSize,
    operation: Operation,
    cancelled: impl FnOnce() -> watch::Receiver<bool>,
) -> Io<Result<Outcome, RequestError>> {
    let shift = block_size.shift();
    let extent = |offset: u64, length: u64| Extent::new(offset >> shift, length >> shift);
    let done = |done: Result<(), BlockError>| Ok(done.map(|()| Outcome::Done)?);
    match operation {
        Operation::Read { offset, length } => {
            let read = |data: Result<Data, BlockError>| Ok(data.map(Outcome::Data)?);
            volume.read(extent(offset, length)).map(read)
        }
        Operation::Write { offset, data, durable } => {
            let extent = extent(offset, data.len() as u64);
            volume.write(extent, data.into(), durability(durable)).map(done)
        }
        Operation::Flush => volume.flush().map(done),
        Operation::Trim { offset, length, durable } => {
            let pieces = pieces(extent(offset, length), UNMAP_PIECE, shift);
            Io::pending(unmap(volume.clone(), pieces, durable, cancelled()))
        }
        Operation::WriteZeroes { offset, length, durable, may_punch, fast } => {
            let can_unmap = volume.volume().store().characteristics().unmap.is_some();
            let extent = extent(offset, length);
            if may_punch && can_unmap {
                let pieces = pieces(extent, UNMAP_PIECE, shift);
                Io::pending(unmap(volume.clone(), pieces, durable, cancelled()))
            } else if fast {
                Io::Ready(Err(RequestError::NotFast))
            } else {
                let pieces = pieces(extent, ZERO_PIECE, shift);
                Io::pending(zero(volume.clone(), pieces, durability(durable), cancelled()))
            }
        }
        // As PRE-FETCH of SCSI: stores have caches of their own.
        Operation::Cache { .. } => Io::Ready(Ok(Outcome::Done)),
        Operation::BlockStatus { offset, length, contexts, maximum_extents } => {
            let volume = volume.clone();
            let (extent, cancelled) = (extent(offset, length), cancelled());
            Io::pending(async move {
                let mut status = Vec::with_capacity(contexts.len());
                for context in &*contexts {
                    status.push(match context {
                        StatusContext::Allocation => {
                            allocation(&volume, extent, shift, maximum_extents).await?
                        }
                        StatusContext::DirtyBitmap(name) => {
                            let maximum = (maximum_extents, &cancelled);
                            changes(&volume, name, extent, shift, maximum).await?
                        }
                    });
                }
                Ok(Outcome::Status(status))
            })
        }
    }
}

/// Returns the parts of an extent with a maximum of `bytes` each.
fn pieces(extent: Extent, bytes: u64, shift: u32) -> impl Iterator<Item = Extent> {
    let step = (bytes >> shift).max(1);
    let starts = (extent.lba.0..extent.end()).step_by(step as usize);
    starts.map(move |lba| Extent::new(lba, step.min(extent.end() - lba)))
}

/// Returns an error if the session has ended.
fn check_session(cancelled: &Cancelled) -> Result<(), RequestError> {
    if *cancelled.borrow() { Err(RequestError::Cancelled) } else { Ok(()) }
}

async fn unmap(
    volume: Arc<Attachment>,
    pieces: impl Iterator<Item = Extent>,
    durable: bool,
    cancelled: Cancelled,
) -> Result<Outcome, RequestError> {
    for piece in pieces {
        check_session(&cancelled)?;
        volume.unmap(piece).wait().await?;
        tokio::task::yield_now().await;
    }
    if durable {
        volume.flush().wait().await?;
    }
    Ok(Outcome::Done)
}

async fn zero(
    volume: Arc<Attachment>,
    pieces: impl Iterator<Item = Extent>,
    durability: Durability,
    cancelled: Cancelled,
) -> Result<Outcome, RequestError> {
    for piece in pieces {
        check_session(&cancelled)?;
        volume.write_zeroes(piece, durability).wait().await?;
        tokio::task::yield_now().await;
    }
    Ok(Outcome::Done)
}

/// Returns the allocation of the blocks from the extent's first one.
async fn allocation(
    volume: &Attachment,
    mut rest: Extent,
    shift: u32,
    maximum: usize,
) -> Result<Vec<StatusExtent>, RequestError> {
    let mut extents: Vec<StatusExtent> = Vec::new();
    for _ in 0..maximum.min(STATUS_QUERIES) {
        let run = volume.allocation(rest).wait().await?;
        let flags = match run.allocation {
            Allocation::Mapped => 0,
            Allocation::Anchored => allocation::ZERO,
            Allocation::Deallocated => allocation::HOLE | allocation::ZERO,
        };
        extents.push(StatusExtent { length: run.block_count << shift, flags });
        rest = after(rest, run.block_count);
        if rest.block_count == 0 {
            break;
        }
    }
    Ok(extents)
}

/// Returns which blocks from the extent's first one have changed since an earlier state of the volume.
async fn changes(
    volume: &Attachment,
    since: &str,
    mut rest: Extent,
    shift: u32,
    (maximum, cancelled): (usize, &Cancelled),
) -> Result<Vec<StatusExtent>, RequestError> {
    let mut extents: Vec<StatusExtent> = Vec::new();
    for _ in 0..STATUS_QUERIES {
        check_session(cancelled)?;
        let piece = Extent::new(rest.lba.0, rest.block_count.min(CHANGES_PIECE >> shift));
        let runs = volume.changes(since, piece, maximum - extents.len()).wait().await?;
        let count = runs.iter().map(|run| run.block_count).sum();
        extents.extend(runs.iter().map(|run| StatusExtent {
            length: run.block_count << shift,
            flags: if run.is_changed { dirty_bitmap::DIRTY } else { 0 },
        }));
        rest = after(rest, count);
        if count == 0 || rest.block_count == 0 || extents.len() >= maximum {
            break;
        }
    }
    Ok(extents)
}

/// Returns the part of an extent behind its first blocks.
const fn after(extent: Extent, block_count: u64) -> Extent {
    Extent::new(extent.lba.0 + block_count, extent.block_count - block_count)
}

#[cfg(test)]
mod tests {
    use std::io;

    use sarsen_block::{Direction, Lba};

    use super::*;

    #[test]
    fn each_class_of_error_has_its_error_value() {
        let other = || io::Error::other("a reason");
        let out_of_range = InvalidRequest::OutOfRange { extent: Extent::new(9, 1), block_count: 9 };
        let errors: [(BlockError, Failure, u32); 11] = [
            (out_of_range.into(), Failure::IllegalRequest, 28),
            (InvalidRequest::ReadOnly.into(), Failure::DataProtect, 1),
            (InvalidRequest::Unsupported.into(), Failure::IllegalRequest, 95),
            (InvalidRequest::Rejected(other()).into(), Failure::IllegalRequest, 22),
            (BlockError::medium(Lba(7), Direction::Read, other()), Failure::MediumError, 5),
            (BlockError::NoSpace { lba: Lba(7) }, Failure::NoSpace, 28),
            (BlockError::Transient(other()), Failure::AbortedCommand, 12),
            (BlockError::Unreachable(other()), Failure::NotReady, 108),
            (BlockError::Fenced, Failure::ReservationConflict, 1),
            (StopCause::FlushFailed.into(), Failure::MediumError, 5),
            (StopCause::OutOfService.into(), Failure::NotReady, 5),
        ];
        for (error, failure, value) in errors {
            let text = error.to_string();
            assert_eq!(failed(&error.into()), (failure, ErrorCode(value)), "{text}");
        }
    }
}
