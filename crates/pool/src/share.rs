//! Copies within a pool that share chunks instead of copying them.

use std::ops::Range;
use std::sync::Arc;

use sarsen_block::{BlockError, StopCause};

use crate::error::Blocked;
use crate::grace::{Freed, Period};
use crate::pages::Mapping;
use crate::records::Record;
use crate::request::Bytes;
use crate::shape::{SlabKind, Unit};
use crate::shared::Shared;
use crate::space::Class;
use crate::state::State;

/// Maximum number of chunks that are shared without a pause for others.
const CHUNKS_MAX: u64 = 256;

/// A range of chunks, and where it is to be as well.
#[derive(Clone, Copy, Debug)]
struct Route {
    from: (u32, u64),
    to: (u32, u64),
    count: u64,
}

impl Shared {
    /// Gives a volume the chunks of a range of another one, or of itself. Returns the number of bytes from the first one on for
    /// which that was possible. The rest is to be copied.
    pub(crate) async fn share(
        self: &Arc<Self>,
        from: Bytes,
        (volume, start): (u32, u64),
    ) -> Result<u64, BlockError> {
        let shift = self.state.read().shape().chunk_shift;
        let mask = (1 << shift) - 1;
        let route = Route {
            from: (from.volume, from.start >> shift),
            to: (volume, start >> shift),
            count: from.length() >> shift,
        };
        let overlaps = from.volume == volume && route.from.1.abs_diff(route.to.1) < route.count;
        if (from.start | start) & mask != 0 || route.count == 0 || overlaps {
            return Ok(0);
        }
        let (done, landed) = {
            // The order is that of the chunks, so that two copies cannot wait for each other.
            let mut ends = [route.from, route.to];
            ends.sort_unstable();
            let chunks = |(volume, first): (u32, u64)| (volume, first..first + route.count);
            let [first, second] = ends.map(chunks);
            let _first = self.locks.lock(first.0, first.1).await;
            let _second = self.locks.lock(second.0, second.1).await;
            self.share_chunks(from, route).await?
        };
        // Writes of the source that began before are a part of the copy.
        for landed in landed {
            let _ended = landed.await;
        }
        self.limit_records().await.map_err(|error| from.pool_error(error))?;
        Ok(done << shift)
    }

    async fn share_chunks(
        self: &Arc<Self>,
        from: Bytes,
        route: Route,
    ) -> Result<(u64, Vec<tokio::sync::oneshot::Receiver<()>>), BlockError> {
        let (mut done, mut landed) = (0, Vec::new());
        while done < route.count {
            let shared = {
                let mut state = self.state.write();
                if state.is_stopped {
                    return Err(StopCause::FlushFailed.into());
                }
                let (before, batch) = (done, done..route.count.min(done + CHUNKS_MAX));
                let shared = state.share_chunks(route, batch, &mut done);
                if done > before {
                    // Until these writes have ended, nothing is copied from chunks in which they land.
                    landed.push(state.note_sharing([route.from.0, route.to.0]));
                }
                shared
            };
            match shared {
                Ok(true) => tokio::task::yield_now().await,
                Ok(false) | Err(Blocked::NoSpace | Blocked::NoBase) => break,
                Err(blocked) => {
                    let resolved = self.resolve(blocked).await;
                    resolved.map_err(|error| from.pool_error(error))?;
                }
            }
        }
        Ok((done, landed))
    }
}

impl State {
    /// Shares some chunks, from `done` on. Returns whether all of them could be.
    fn share_chunks(
        &mut self,
        route: Route,
        chunks: Range<u64>,
        done: &mut u64,
    ) -> Result<bool, Blocked> {
        let (volume, wanted) = (route.to.0, Class::of_volume(&self.object(route.to.0)?.row));
        for number in chunks {
            let chunk = route.to.1 + number;
            let mapping = self.find(route.from.0, route.from.1 + number)?.mapping;
            if !mapping.chunks().all(|chunk| self.is_as_safe(chunk, wanted)) {
                return Ok(false);
            }
            if self.find(volume, chunk)?.mapping != mapping {
                let record = if mapping == Mapping::default() {
                    Record::Clear { volume, first: chunk, count: 1 }
                } else {
                    Record::Entry { volume, chunk, mapping }
                };
                self.perform(&record)?;
            }
            *done = number + 1;
        }
        Ok(true)
    }

    /// Returns whether a chunk has as many copies as a volume wants, and checksums if it wants them.
    fn is_as_safe(&self, chunk: u64, wanted: Class) -> bool {
        let slab = self.space.slab(Unit::of_chunk(chunk).slab);
        let has_checksums = |class: Class| class.kind() == SlabKind::Checked;
        slab.is_some_and(|slab| {
            slab.class.copies() >= wanted.copies()
                && (has_checksums(slab.class) || !has_checksums(wanted))
        })
    }

    /// Notes that volumes share chunks from now on. Returns the end of the writes that began before.
    fn note_sharing(&mut self, volumes: [u32; 2]) -> tokio::sync::oneshot::Receiver<()> {
        let period = Arc::downgrade(&self.period);
        for volume in volumes {
            if let Some(object) = self.objects.get_mut(&volume) {
                object.shared_in = period.clone();
            }
        }
        Period::rotate(&mut self.period, Freed::default())
    }
}
