//! Deallocations of volumes.

use std::sync::Arc;

use sarsen_block::{Allocation, BlockError, Buffer, StopCause};

use crate::format::FAN_OUT;
use crate::records::Record;
use crate::request::Bytes;
use crate::shared::{RoomWaits, Shared};

impl Shared {
    /// Deallocates bytes: whole pieces are removed, and the rest is overwritten with zeroes.
    pub(crate) async fn unmap(self: &Arc<Self>, bytes: Bytes) -> Result<(), BlockError> {
        let (piece, chunk) = {
            let state = self.state.read();
            if state.is_stopped {
                return Err(StopCause::FlushFailed.into());
            }
            (1_u64 << state.shape().piece_shift(), u32::from(state.shape().chunk_shift))
        };
        let whole = bytes.start.next_multiple_of(piece)..bytes.end & !(piece - 1);
        if whole.start >= whole.end {
            // One piece or two, and none of them whole.
            let middle = whole.start.clamp(bytes.start, bytes.end);
            self.zero(Bytes { end: middle, ..bytes }).await?;
            return self.zero(Bytes { start: middle, ..bytes }).await;
        }
        self.zero(Bytes { end: whole.start, ..bytes }).await?;
        self.zero(Bytes { start: whole.end, ..bytes }).await?;
        let mut start = whole.start;
        let mut steps = 0_u32;
        while start < whole.end {
            let first = start >> chunk;
            let end = if start & ((1 << chunk) - 1) != 0 || whole.end - start < 1 << chunk {
                whole.end.min((first + 1) << chunk)
            } else {
                let Some(next) = self.next_mapped(bytes, first, whole.end >> chunk).await? else {
                    start = whole.end & !((1 << chunk) - 1);
                    continue;
                };
                if next > first {
                    start = next << chunk;
                    continue;
                }
                let leaf_end = (first / FAN_OUT as u64 + 1) * FAN_OUT as u64;
                leaf_end.min(whole.end >> chunk) << chunk
            };
            self.unmap_step(Bytes { start, end, ..bytes }).await?;
            start = end;
            steps += 1;
            if steps.is_multiple_of(32) {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn next_mapped(
        self: &Arc<Self>,
        bytes: Bytes,
        first: u64,
        end: u64,
    ) -> Result<Option<u64>, BlockError> {
        loop {
            let blocked = {
                let state = self.state.read();
                let found = state.object(bytes.volume).map(|object| object.tree());
                match found.and_then(|tree| state.next_mapped(&tree, first, end)) {
                    Ok(next) => return Ok(next),
                    Err(blocked) => blocked,
                }
            };
            self.resolve(blocked).await.map_err(|error| bytes.pool_error(error))?;
        }
    }

    /// Removes pieces of one chunk, or whole chunks of one leaf.
    async fn unmap_step(self: &Arc<Self>, bytes: Bytes) -> Result<(), BlockError> {
        let shape = self.state.read().shape();
        let first = bytes.start >> shape.chunk_shift;
        let count = ((bytes.end - 1) >> shape.chunk_shift) + 1 - first;
        let _locked = self.locks.lock(bytes.volume, first..first + count).await;
        let within = bytes.start & ((1 << shape.chunk_shift) - 1);
        let is_whole = bytes.length() == count << shape.chunk_shift;
        let mut waits = RoomWaits::default();
        loop {
            let blocked = {
                let mut state = self.state.write();
                let record = if is_whole {
                    Ok(Some(Record::Clear { volume: bytes.volume, first, count: count as u32 }))
                } else {
                    let pieces = shape.pieces_of(within, within + bytes.length());
                    state.find(bytes.volume, first).map(|found| {
                        let mapping = found.mapping.without(pieces);
                        match mapping.own {
                            _ if mapping == found.mapping => None,
                            0 => Some(Record::Clear { volume: bytes.volume, first, count: 1 }),
                            _ => {
                                Some(Record::Entry { volume: bytes.volume, chunk: first, mapping })
                            }
                        }
                    })
                };
                let performed = record.and_then(|record| match record {
                    Some(record) => state.perform(&record),
                    None => Ok(()),
                });
                match performed {
                    Ok(()) => break,
                    Err(blocked) => blocked,
                }
            };
            let resolved = self.resolve_or_make_room(blocked, &mut waits).await;
            resolved.map_err(|error| bytes.pool_error(error))?;
        }
        self.limit_records().await.map_err(|error| bytes.pool_error(error))
    }

    /// Overwrites a part of one piece with zeroes, if it was written.
    async fn zero(self: &Arc<Self>, bytes: Bytes) -> Result<(), BlockError> {
        if bytes.start == bytes.end {
            return Ok(());
        }
        let run = self.allocation(bytes).await?;
        if run.1 == Allocation::Deallocated {
            return Ok(());
        }
        let zeroes = Buffer::zeroed(bytes.length() as usize);
        self.write_parts(bytes, zeroes.into()).await.map(drop)
    }
}
