//! Moves bytes from blocks to blocks in pieces of bounded memory: the one place where a copy reads
//! and writes.
//!
//! Each piece is a read and a write as their commands are: the write holds the destination's gate
//! until it has ended, is durable where a WRITE would be, and both are admitted anew. Blocks that
//! the source does not hold are given back at the destination where it can. Dropping the future
//! stops after the request under way.

use super::operation::Operation;
use super::reach::{Barrier, Reached};
use super::token::Use;
use crate::command_table::{READS, WRITES};
use crate::{LogicalUnit, Sense};
use async_lock::Semaphore;
use sarsen_block::{Allocation, BlockError, Buffer, Data, Durability, Extent};
use std::sync::Arc;

/// A piece that is read and written.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces that an array's copies hold in memory at once.
pub(crate) const PIECES: usize = 64;
/// A hole that is made at once.
const HOLE_BYTES: u64 = 64 << 20;

/// Why a transfer ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// The source could not be read.
    Source(Fault),
    /// The destination could not be written.
    Destination(Fault),
    /// The token that the source is named by.
    Token(Sense),
    /// Somebody ended it.
    Aborted,
}

/// What is wrong with one side.
#[derive(Debug)]
pub(super) enum Fault {
    /// It may not be used now.
    Barrier(Barrier),
    /// It was used and failed.
    Block(BlockError),
}

impl From<BlockError> for Fault {
    fn from(error: BlockError) -> Self {
        Self::Block(error)
    }
}

/// What a gate of the unit said.
impl From<Sense> for Fault {
    fn from(sense: Sense) -> Self {
        Self::Barrier(Barrier::State(sense))
    }
}

/// What is asked between pieces.
pub(super) struct Supervisor<'a> {
    pub(super) operation: &'a Operation,
    /// The pieces that all copies of the array may hold in memory at once.
    pub(super) pieces: &'a Semaphore,
    /// The source, where it is named by a designator.
    pub(super) source: Option<&'a Reached>,
    /// The source, where it is named by a token.
    pub(super) token: Option<&'a Use>,
    pub(super) destination: &'a Reached,
}

impl Supervisor<'_> {
    pub(super) fn before_piece(&self) -> Result<(), Failure> {
        if self.operation.is_aborted() {
            return Err(Failure::Aborted);
        }
        let barred = |barrier| Failure::Source(Fault::Barrier(barrier));
        if let Some(source) = self.source {
            source.admit(READS).map_err(barred)?;
        }
        if let Some(token) = self.token {
            token.unit.medium().check().map_err(|sense| barred(Barrier::State(sense)))?;
            token.unit.condition().check().map_err(|sense| barred(Barrier::State(sense)))?;
        }
        let barred = |barrier| Failure::Destination(Fault::Barrier(barrier));
        self.destination.admit(WRITES).map_err(barred)
    }

    /// What was read counts only if the token stands for it still.
    fn after_read(&self) -> Result<(), Failure> {
        self.token.map_or(Ok(()), Use::check).map_err(Failure::Token)
    }
}

/// What is read: runs of blocks, one after another. They lie within the unit.
pub(super) struct Source<'a> {
    pub(super) unit: &'a LogicalUnit,
    pub(super) extents: &'a [Extent],
}

impl Source<'_> {
    /// The extent that byte `offset` is in, and where in it.
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
        Err(BlockError::OutOfRange { extent, block_count: self.unit.geometry().block_count })
    }

    /// No part of an atomic write that is under way.
    async fn read(&self, offset: u64, length: u64) -> Result<Data, Fault> {
        let guard = self.unit.guard_read().await?;
        let data = self.read_blocks(offset, length).await?;
        Ok(match guard {
            // A store's memory may change once the guard is let go.
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

    /// So many bytes from `offset`, at most `limit`, are in one state.
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

/// Bytes that go from a source to a unit. Both ends lie within their units.
pub(super) struct Transfer<'a> {
    pub(super) source: Source<'a>,
    /// From the source's first byte.
    pub(super) source_offset: u64,
    pub(super) destination: &'a LogicalUnit,
    /// From the unit's first byte.
    pub(super) destination_offset: u64,
    pub(super) byte_count: u64,
    /// A block of the destination that is begun at its start is filled with zeroes to its end.
    pub(super) pads: bool,
}

impl Transfer<'_> {
    pub(super) async fn run(&self, supervisor: &Supervisor<'_>) -> Result<(), Failure> {
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

    /// The same from the end to the start: where the destination begins within the source.
    pub(super) async fn run_backward(&self, supervisor: &Supervisor<'_>) -> Result<(), Failure> {
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
            let written = match place.is_multiple_of(block) && length.is_multiple_of(block) {
                true => write(supervisor.destination, place, data).await,
                false => patch(supervisor.destination, place, data).await,
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
        supervisor: &Supervisor<'_>,
    ) -> Result<Data, Failure> {
        let data = self.source.read(self.source_offset + offset, length).await;
        let data = data.map_err(Failure::Source)?;
        supervisor.after_read()?;
        Ok(data)
    }

    /// Copies one piece from byte `done` of the transfer, and says how long it was.
    async fn forward(&self, done: u64, supervisor: &Supervisor<'_>) -> Result<u64, Failure> {
        let failed = Failure::Destination;
        let destination = supervisor.destination;
        let block = self.destination.byte_count(1) as u64;
        let (place, left) = (self.destination_offset + done, self.byte_count - done);
        let within = place % block;
        if within != 0 || left < block {
            let length = left.min(block - within);
            let data = self.read(done, length, supervisor).await?;
            match self.pads && within == 0 {
                true => {
                    let mut padded = Buffer::zeroed(block as usize);
                    data.copy_out(0, &mut padded[..length as usize]);
                    write(destination, place, padded.into()).await.map_err(failed)?;
                }
                false => patch(destination, place, data).await.map_err(failed)?,
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
        let length = whole.min(PIECE_BYTES).min(run.max(1).next_multiple_of(block));
        let data = self.read(done, length, supervisor).await?;
        write(destination, place, data).await.map_err(failed)?;
        Ok(length)
    }
}

/// Whole blocks of a unit from byte `offset`.
fn blocks(unit: &LogicalUnit, offset: u64, length: u64) -> Extent {
    let shift = unit.geometry().block_size.shift();
    Extent::new(offset >> shift, length >> shift)
}

/// Behind the gate it is looked at again whether the write may happen: PREEMPT AND ABORT waits for
/// those that are past this, so that nothing of a nexus that it cut off comes after it.
fn admit_behind_gate(destination: &Reached) -> Result<(), Fault> {
    destination.admit(WRITES).map_err(Fault::Barrier)
}

async fn write(destination: &Reached, offset: u64, data: Data) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let extent = blocks(unit, offset, data.len() as u64);
    let data = match data {
        Data::Zeroes(_) => None,
        data => Some(data.into_buffer()),
    };
    unit.thresholds().note(extent.block_count);
    let _guard = unit.write_beside_others().await?;
    admit_behind_gate(destination)?;
    let durability = unit.durability(false);
    match data {
        Some(data) => unit.store().write(extent, data, durability).wait().await?,
        None => unit.store().write_zeroes(extent, durability).wait().await?,
    }
    Ok(())
}

/// Makes whole blocks read as zero without holding any, where the store can.
async fn clear(destination: &Reached, offset: u64, length: u64) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let extent = blocks(unit, offset, length);
    let _guard = unit.write_beside_others().await?;
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

/// Clears bytes of whole blocks in pieces.
pub(super) async fn clear_all(
    unit: &LogicalUnit,
    extent: Extent,
    supervisor: &Supervisor<'_>,
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

/// Writes some bytes of one block and keeps the others: nothing else writes meanwhile.
async fn patch(destination: &Reached, offset: u64, data: Data) -> Result<(), Fault> {
    let unit = &*destination.unit;
    let block = unit.byte_count(1) as u64;
    let within = (offset % block) as usize;
    let extent = blocks(unit, offset - within as u64, block);
    let _guard = unit.write_alone().await?;
    admit_behind_gate(destination)?;
    let mut whole = unit.store().read(extent).wait().await?.into_buffer();
    data.copy_out(0, &mut whole[within..within + data.len()]);
    unit.store().write(extent, whole, unit.durability(false)).wait().await?;
    Ok(())
}

/// The destination of a transfer begins within its source.
pub(super) fn begins_within(
    source: (&Arc<LogicalUnit>, u64),
    destination: (&Arc<LogicalUnit>, u64),
    byte_count: u64,
) -> bool {
    let ((source, from), (destination, to)) = (source, destination);
    Arc::ptr_eq(source, destination) && from < to && to - from < byte_count
}
