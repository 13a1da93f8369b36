//! Moves bytes between blocks in pieces of limited memory. Copies read and write only through this module.
//!
//! Each piece is like a READ and a WRITE. The server admits both again for every piece. The write holds the
//! destination's write gate until its end, and is durable if a WRITE would be. Blocks that are unmapped at the source
//! are unmapped at the destination, if it supports that. Dropping the future stops the transfer after the current
//! request.

use super::operation::Operation;
use super::reach::{AccessDenial, Reached};
use super::token::Use;
use crate::flags::Flags;
use crate::{LogicalUnit, Sense};
use async_lock::Semaphore;
use sarsen_block::{Allocation, BlockError, Buffer, Data, Durability, Extent, InvalidRequest};
use sarsen_volume::Regions;
use std::sync::Arc;

/// The size in bytes of a piece that is read and written.
const PIECE_BYTES: u64 = 1 << 20;
/// The maximum number of pieces that the copies of an array hold in memory.
pub(crate) const PIECES: usize = 64;
/// The maximum number of bytes that are cleared at once.
const HOLE_BYTES: u64 = 64 << 20;

/// The reason why a transfer ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// Reading the source failed.
    Source(Fault),
    /// Writing the destination failed.
    Destination(Fault),
    /// The token that names the source is no longer valid.
    Token(Sense),
    /// The operation was aborted.
    Aborted,
}

/// The failure of one side.
#[derive(Debug)]
pub(super) enum Fault {
    /// The unit may not be used now.
    Barrier(AccessDenial),
    /// The store returned an error.
    Block(BlockError),
}

impl From<BlockError> for Fault {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

/// Converts the sense data of a unit's gate.
impl From<Sense> for Fault {
    fn from(sense: Sense) -> Self {
        Self::Barrier(AccessDenial::State(sense))
    }
}

/// The checks between pieces.
pub(super) struct PieceChecks<'a> {
    pub(super) operation: &'a Operation,
    /// The limit of pieces that all copies of the array hold in memory.
    pub(super) pieces: &'a Semaphore,
    /// The source, if a designator names it.
    pub(super) source: Option<&'a Reached>,
    /// The source, if a token names it.
    pub(super) token: Option<&'a Use>,
    pub(super) destination: &'a Reached,
}

impl PieceChecks<'_> {
    pub(super) fn before_piece(&self) -> Result<(), Failure> {
        if self.operation.is_aborted() {
            return Err(Failure::Aborted);
        }
        let barred = |barrier| Failure::Source(Fault::Barrier(barrier));
        if let Some(source) = self.source {
            source.admit(Flags::READ_COMMAND).map_err(barred)?;
        }
        if let Some(token) = self.token {
            token.unit.medium().check().map_err(|sense| barred(AccessDenial::State(sense)))?;
            token.unit.check_store().map_err(|sense| barred(AccessDenial::State(sense)))?;
        }
        let barred = |barrier| Failure::Destination(Fault::Barrier(barrier));
        self.destination.admit(Flags::WRITE_COMMAND).map_err(barred)
    }

    /// Checks that the token is still valid, since otherwise the read data is not.
    fn after_read(&self) -> Result<(), Failure> {
        self.token.map_or(Ok(()), Use::check).map_err(Failure::Token)
    }
}

/// The source: extents of the unit, one after another.
pub(super) struct Source<'a> {
    pub(super) unit: &'a LogicalUnit,
    pub(super) extents: &'a [Extent],
}

impl Source<'_> {
    /// Returns the extent that contains byte `offset`, and the offset in it.
    fn locate(&self, offset: u64) -> Result<(Extent, u64), BlockError> {
        let block_size = self.unit.geometry().block_size;
        let mut within = offset;
        for &extent in self.extents {
            let byte_count = extent.byte_count(block_size);
            if within < byte_count {
                return Ok((extent, within));
            }
            within -= byte_count;
        }
        let extent = Extent::new(offset >> block_size.shift(), 1);
        let block_count = self.unit.geometry().block_count;
        Err(InvalidRequest::OutOfRange { extent, block_count }.into())
    }

    /// Reads so that no atomic write in progress is seen partially.
    async fn read(&self, offset: u64, length: u64) -> Result<Data, Fault> {
        let guard = self.unit.guard_read(Regions::of_extents(self.extents)).await?;
        let data = self.read_blocks(offset, length).await?;
        Ok(match guard {
            // A store's memory may change after the guard is released.
            Some(_) => Data::Buffer(data.into_buffer()),
            None => data,
        })
    }

    async fn read_blocks(&self, offset: u64, length: u64) -> Result<Data, BlockError> {
        let block_size = self.unit.geometry().block_size;
        let (shift, mask) = (block_size.shift(), block_size.bytes() as u64 - 1);
        let (extent, within) = self.locate(offset)?;
        if (within | length) & mask == 0 && within + length <= extent.byte_count(block_size) {
            let piece = Extent::new(extent.lba.0 + (within >> shift), length >> shift);
            return self.unit.store().read(piece).wait().await;
        }
        let mut buffer = Buffer::for_overwrite(length as usize);
        let mut filled = 0;
        while filled < length {
            let (extent, within) = self.locate(offset + filled)?;
            let span = (length - filled).min(extent.byte_count(block_size) - within);
            let first = within >> shift;
            let block_count = ((within + span + mask) >> shift) - first;
            let piece = Extent::new(extent.lba.0 + first, block_count);
            let data = self.unit.store().read(piece).wait().await?;
            let into = &mut buffer[filled as usize..(filled + span) as usize];
            data.copy_out((within & mask) as usize, into);
            filled += span;
        }
        Ok(Data::Buffer(buffer))
    }

    /// Returns the number of bytes from `offset`, maximum `limit`, with the same allocation state, and that state.
    async fn run(&self, offset: u64, limit: u64) -> Result<(u64, Allocation), BlockError> {
        let block_size = self.unit.geometry().block_size;
        let mask = block_size.bytes() as u64 - 1;
        let (extent, within) = self.locate(offset)?;
        let limit = limit.min(extent.byte_count(block_size) - within);
        let is_thin = self.unit.characteristics().unmap.is_some();
        if !is_thin || within & mask != 0 || limit <= mask {
            return Ok((limit, Allocation::Mapped));
        }
        let shift = block_size.shift();
        let piece = Extent::new(extent.lba.0 + (within >> shift), limit >> shift);
        let run = self.unit.store().allocation(piece).wait().await?;
        Ok(((run.block_count << shift).min(limit), run.allocation))
    }
}

/// A copy of bytes from a source to a unit. The caller has checked both ranges.
pub(super) struct Transfer<'a> {
    pub(super) source: Source<'a>,
    /// Offset in bytes in the source.
    pub(super) source_offset: u64,
    pub(super) destination: &'a LogicalUnit,
    /// Offset in bytes in the unit.
    pub(super) destination_offset: u64,
    pub(super) byte_count: u64,
    /// If true, an incomplete last block of the destination is filled with zeroes, unless it begins in the middle of
    /// the block.
    pub(super) pads: bool,
}

impl Transfer<'_> {
    pub(super) async fn run(&self, supervisor: &PieceChecks<'_>) -> Result<(), Failure> {
        let mut done = 0;
        while done < self.byte_count {
            let _room = supervisor.pieces.acquire().await;
            supervisor.before_piece()?;
            let moved = self.forward(done, supervisor).await?;
            supervisor.operation.moved(moved);
            done += moved;
        }
        Ok(())
    }

    /// Copies from the end to the start, for a destination that begins within its source.
    pub(super) async fn run_backward(&self, supervisor: &PieceChecks<'_>) -> Result<(), Failure> {
        let block = self.destination.byte_count(1) as u64;
        let mut end = self.byte_count;
        while end > 0 {
            let _room = supervisor.pieces.acquire().await;
            supervisor.before_piece()?;
            let tail = (self.destination_offset + end) % block;
            let length = match tail {
                0 if end < block => end,
                0 => PIECE_BYTES.min(end - end % block),
                tail => tail.min(end),
            };
            let data = self.read(end - length, length, supervisor).await?;
            let place = self.destination_offset + end - length;
            let written = if place.is_multiple_of(block) && length.is_multiple_of(block) {
                write(supervisor.destination, place, data).await
            } else {
                patch(supervisor.destination, place, data).await
            };
            written.map_err(Failure::Destination)?;
            supervisor.operation.moved(length);
            end -= length;
        }
        Ok(())
    }

    async fn read(
        &self,
        offset: u64,
        length: u64,
        supervisor: &PieceChecks<'_>,
    ) -> Result<Data, Failure> {
        let data = self.source.read(self.source_offset + offset, length).await;
        let data = data.map_err(Failure::Source)?;
        supervisor.after_read()?;
        Ok(data)
    }

    /// Lets the destination share the space of the source, from byte `done` of the transfer on, if its store can do that.
    /// Returns for how many bytes.
    async fn share(
        &self,
        done: u64,
        length: u64,
        supervisor: &PieceChecks<'_>,
    ) -> Result<u64, Failure> {
        let source = self.source.unit;
        if source.store().shareable().is_none() || source.medium_phase().guards_reads() {
            return Ok(0);
        }
        let located = self.source.locate(self.source_offset + done);
        let (extent, within) = located.map_err(|error| Failure::Source(error.into()))?;
        let block = source.byte_count(1) as u64;
        let length = length.min(extent.byte_count(source.geometry().block_size) - within);
        if !within.is_multiple_of(block) || length < block {
            return Ok(0);
        }
        let from = Extent::new(extent.lba.0 + within / block, length / block);
        supervisor.after_read()?;
        let place = self.destination_offset + done;
        let shared = share(supervisor.destination, place, source, from).await;
        let shared = shared.map_err(Failure::Destination)?;
        // The source may have changed meanwhile.
        supervisor.after_read()?;
        // A part of an atomic write may have been shared: the blocks are copied.
        Ok(if source.medium_phase().guards_reads() { 0 } else { shared })
    }

    /// Copies one piece from byte `done` of the transfer. Returns its length.
    async fn forward(&self, done: u64, supervisor: &PieceChecks<'_>) -> Result<u64, Failure> {
        let failed = Failure::Destination;
        let destination = supervisor.destination;
        let block = self.destination.byte_count(1) as u64;
        let (place, left) = (self.destination_offset + done, self.byte_count - done);
        let within = place % block;
        if within != 0 || left < block {
            let length = left.min(block - within);
            let data = self.read(done, length, supervisor).await?;
            if self.pads && within == 0 {
                let mut padded = Buffer::zeroed(block as usize);
                data.copy_out(0, &mut padded[..length as usize]);
                write(destination, place, padded.into()).await.map_err(failed)?;
            } else {
                patch(destination, place, data).await.map_err(failed)?
            }
            return Ok(length);
        }
        let whole = left - left % block;
        let run = self.source.run(self.source_offset + done, whole.min(HOLE_BYTES)).await;
        let (run, allocation) = run.map_err(|error| Failure::Source(error.into()))?;
        if allocation == Allocation::Deallocated && run >= block {
            supervisor.after_read()?;
            let length = run - run % block;
            clear(destination, place, length).await.map_err(failed)?;
            return Ok(length);
        }
        let shared = self.share(done, whole.min(run), supervisor).await?;
        if shared > 0 {
            return Ok(shared);
        }
        let length = whole.min(PIECE_BYTES).min(run.max(1).next_multiple_of(block));
        // The next piece begins where the destination may share space.
        let length = length.min(to_granule(&destination.unit, place));
        let data = self.read(done, length, supervisor).await?;
        write(destination, place, data).await.map_err(failed)?;
        Ok(length)
    }
}

/// Returns the number of bytes up to the next multiple of the unit's optimal granularity.
fn to_granule(unit: &LogicalUnit, offset: u64) -> u64 {
    let optimal = unit.characteristics().optimal_transfer;
    let granule = optimal.map(|optimal| unit.byte_count(optimal.granularity_blocks.into()) as u64);
    granule.map_or(u64::MAX, |granule| match offset % granule {
        0 => u64::MAX,
        within => granule - within,
    })
}

/// Returns the whole blocks of a unit from byte `offset`.
fn blocks(unit: &LogicalUnit, offset: u64, length: u64) -> Extent {
    let shift = unit.geometry().block_size.shift();
    Extent::new(offset >> shift, length >> shift)
}

/// Checks behind the write gate again whether the write is permitted. PREEMPT AND ABORT waits for the writes that
/// passed this check, so no later write of a preempted nexus reaches the medium.
fn admit_behind_gate(destination: &Reached) -> Result<(), Fault> {
    destination.admit(Flags::WRITE_COMMAND).map_err(Fault::Barrier)
}

async fn write(destination: &Reached, offset: u64, data: Data) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let extent = blocks(unit, offset, data.len() as u64);
    let data = match data {
        Data::Zeroes(_) => None,
        data => Some(data.into_buffer()),
    };
    unit.thresholds().note(extent.block_count);
    let _guard = unit.lock_writes_shared(extent).await?;
    admit_behind_gate(destination)?;
    let durability = unit.durability(false);
    match data {
        Some(data) => unit.store().write(extent, data.into(), durability).wait().await?,
        None => unit.store().write_zeroes(extent, durability).wait().await?,
    }
    Ok(())
}

/// Lets whole blocks of a unit share the space of an extent of another one. Returns for how many bytes that was possible.
async fn share(
    destination: &Reached,
    offset: u64,
    source: &LogicalUnit,
    from: Extent,
) -> Result<u64, Fault> {
    let unit = &*destination.unit;
    let length = from.byte_count(source.geometry().block_size);
    let extent = blocks(unit, offset, length);
    let _guard = unit.lock_writes_shared(extent).await?;
    admit_behind_gate(destination)?;
    let shared = unit.store().share(source.store(), from, extent.lba).wait().await?;
    if shared > 0 && unit.durability(false) == Durability::Durable {
        unit.store().flush().wait().await?;
    }
    Ok(shared << unit.geometry().block_size.shift())
}

/// Makes whole blocks read as zeroes, without allocated space if the store can do that.
async fn clear(destination: &Reached, offset: u64, length: u64) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let extent = blocks(unit, offset, length);
    let _guard = unit.lock_writes_shared(extent).await?;
    admit_behind_gate(destination)?;
    let durability = unit.durability(false);
    if unit.characteristics().unmap.is_none() {
        unit.store().write_zeroes(extent, durability).wait().await?;
        return Ok(());
    }
    unit.store().unmap(extent).wait().await?;
    if durability == Durability::Durable {
        unit.store().flush().wait().await?;
    }
    Ok(())
}

/// Clears whole blocks in pieces.
pub(super) async fn clear_all(
    unit: &LogicalUnit,
    extent: Extent,
    supervisor: &PieceChecks<'_>,
) -> Result<(), Failure> {
    let block_size = unit.geometry().block_size;
    let (start, byte_count) = (extent.byte_offset(block_size), extent.byte_count(block_size));
    let mut done = 0;
    while done < byte_count {
        supervisor.before_piece()?;
        let length = HOLE_BYTES.min(byte_count - done);
        let cleared = clear(supervisor.destination, start + done, length).await;
        cleared.map_err(Failure::Destination)?;
        supervisor.operation.moved(length);
        done += length;
    }
    Ok(())
}

/// Writes some bytes of one block and keeps the others. No other write of this block happens meanwhile.
async fn patch(destination: &Reached, offset: u64, data: Data) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let block = unit.byte_count(1) as u64;
    let within = (offset % block) as usize;
    let extent = blocks(unit, offset - within as u64, block);
    let _guard = unit.lock_writes_exclusive(extent).await?;
    admit_behind_gate(destination)?;
    let mut whole = unit.store().read(extent).wait().await?.into_buffer();
    data.copy_out(0, &mut whole[within..within + data.len()]);
    unit.store().write(extent, whole.into(), unit.durability(false)).wait().await?;
    Ok(())
}

/// Returns whether the destination of a transfer begins within its source.
pub(super) fn begins_within(
    source: (&Arc<LogicalUnit>, u64),
    destination: (&Arc<LogicalUnit>, u64),
    byte_count: u64,
) -> bool {
    let ((source, from), (destination, to)) = (source, destination);
    Arc::ptr_eq(source, destination) && from < to && to - from < byte_count
}
