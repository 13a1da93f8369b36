//! Requests to volumes: their bytes, reads, flushes, and what is allocated.

use std::sync::Arc;

use sarsen_block::{
    Allocation, BlockError, Buffer, Data, Io, Lba, MediumProblem, Reply, StopCause,
};

use crate::PoolError;
use crate::copies::Place;
use crate::error::Blocked;
use crate::shape::{SlabKind, Unit};
use crate::shared::Shared;
use crate::state::State;

/// The bytes of a volume that a request concerns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bytes {
    pub(crate) volume: u32,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// log2 of the size of a block, for errors.
    pub(crate) block_shift: u32,
}

impl Bytes {
    pub(crate) const fn length(self) -> u64 {
        self.end - self.start
    }

    pub(crate) const fn lba(self, at: u64) -> Lba {
        Lba(at >> self.block_shift)
    }

    /// Returns an error of a device as an error of the volume.
    pub(crate) fn error(self, at: u64, error: BlockError) -> BlockError {
        let lba = self.lba(at);
        match error {
            BlockError::Medium { problem, .. } => BlockError::Medium { lba, problem },
            BlockError::NoSpace { .. } => BlockError::NoSpace { lba },
            other => other,
        }
    }

    /// Returns an error of the pool as an error of the volume.
    pub(crate) fn pool_error(self, error: PoolError) -> BlockError {
        let damaged = |what: String| BlockError::Medium {
            lba: self.lba(self.start),
            problem: MediumProblem::Read(std::io::Error::other(what)),
        };
        match error {
            PoolError::Damaged { what } => damaged(format!("the metadata of the pool: {what}")),
            other => self.error(self.start, other.into()),
        }
    }
}

/// Consecutive bytes with one source: a place on a device, or none, for zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: Option<Place>,
    pub(crate) length: u64,
}

impl Segment {
    /// Appends a segment if it continues this one.
    pub(crate) fn join(&mut self, next: Self) -> bool {
        let continues = match (self.source, next.source) {
            (None, None) => true,
            (Some(own), Some(other)) => {
                own.slab == other.slab && own.offset + self.length == other.offset
            }
            _ => false,
        };
        if continues {
            self.length += next.length;
        }
        continues
    }
}

impl State {
    /// Returns the place of a byte of a chunk.
    pub(crate) fn place_of(&self, chunk: u64, within: u64) -> Result<Place, Blocked> {
        let place = self.space.place(SlabKind::Data, Unit::of_chunk(chunk));
        let place = place.ok_or_else(|| {
            Blocked::Damaged(format!("an entry names chunk {chunk:#x}, which does not exist"))
        })?;
        Ok(place.at(within))
    }

    /// Returns the first bytes of a range that have one source and are in one chunk.
    #[inline]
    fn segment_in_chunk(&self, bytes: Bytes) -> Result<Segment, Blocked> {
        let shape = self.shape();
        let chunk = bytes.start >> shape.chunk_shift;
        let within = bytes.start & ((1 << shape.chunk_shift) - 1);
        let end = (within + bytes.length()).min(1 << shape.chunk_shift);
        let mapping = self.mapping(bytes.volume, chunk)?;
        let first = within >> shape.piece_shift();
        let pieces = shape.pieces_of(within, end);
        let source = |piece: u64| match 1_u16 << piece {
            bit if mapping.valid & bit != 0 => mapping.own,
            bit if mapping.base_pieces & bit != 0 => mapping.base,
            _ => 0,
        };
        let chunk = source(first);
        let same = match chunk {
            0 => !mapping.pieces(),
            chunk if chunk == mapping.own => mapping.valid,
            _ => mapping.base_pieces,
        };
        // The pieces from the first one on that have its source.
        let count =
            u64::from((same & pieces).checked_shr(first as u32).unwrap_or(0).trailing_ones());
        let end = end.min((first + count) << shape.piece_shift());
        let source = if chunk == 0 { None } else { Some(self.place_of(chunk, within)?) };
        Ok(Segment { source, length: end - within })
    }

    /// Returns the first bytes of a range that have one source.
    #[inline]
    pub(crate) fn segment(&self, bytes: Bytes) -> Result<Segment, Blocked> {
        let mut segment = self.segment_in_chunk(bytes)?;
        while segment.length < bytes.length() {
            let rest = Bytes { start: bytes.start + segment.length, ..bytes };
            if !segment.join(self.segment_in_chunk(rest)?) {
                break;
            }
        }
        if let Some(place) = &segment.source {
            self.space.count_request(place.slab);
        }
        Ok(segment)
    }
}

impl Shared {
    /// Reads bytes of a volume.
    pub(crate) fn read(self: &Arc<Self>, bytes: Bytes) -> Reply<Data> {
        let (segment, period) = {
            let state = self.state.read();
            (state.segment(bytes), state.period.clone())
        };
        match segment {
            Ok(Segment { source: None, length }) if length == bytes.length() => {
                Io::Ready(Ok(Data::Zeroes(length as usize)))
            }
            Ok(Segment { source: Some(place), length }) if length == bytes.length() => {
                match self.read_place(place, length) {
                    // Memory of a store may have other data when it is sent.
                    Io::Ready(read) => Io::Ready(
                        read.map(|data| data.into_buffer().into())
                            .map_err(|error| bytes.error(bytes.start, error)),
                    ),
                    Io::Pending(read) => self.finishing(async move {
                        // Memory of a store is copied before it may have other data.
                        let read = read.await.map(|data| data.into_buffer().into());
                        drop(period);
                        read.map_err(|error| bytes.error(bytes.start, error))
                    }),
                }
            }
            _ => {
                drop(period);
                let shared = self.clone();
                self.finishing(async move { shared.read_segments(bytes).await })
            }
        }
    }

    async fn read_segments(self: Arc<Self>, bytes: Bytes) -> Result<Data, BlockError> {
        let (segments, period) = loop {
            let blocked = {
                let state = self.state.read();
                let mut segments: Vec<(u64, Segment)> = Vec::new();
                let mut start = bytes.start;
                let found = loop {
                    if start == bytes.end {
                        break Ok(());
                    }
                    match state.segment(Bytes { start, ..bytes }) {
                        Ok(segment) => segments.push((start, segment)),
                        Err(blocked) => break Err(blocked),
                    }
                    start += segments.last().map_or(0, |(_, segment)| segment.length);
                };
                match found {
                    Ok(()) => break (segments, state.period.clone()),
                    Err(blocked) => blocked,
                }
            };
            self.resolve(blocked).await.map_err(|error| bytes.pool_error(error))?;
        };
        let mut buffer = Buffer::zeroed(bytes.length() as usize);
        let reads: Vec<_> = segments
            .into_iter()
            .filter_map(|(start, segment)| {
                Some((start, self.read_place(segment.source?, segment.length)))
            })
            .collect();
        // All of them end before the period does.
        let read = futures_util::future::join_all(
            reads.into_iter().map(|(start, read)| async move { (start, read.wait().await) }),
        );
        for (start, data) in read.await {
            let data = data.map_err(|error| bytes.error(start, error))?;
            let at = (start - bytes.start) as usize;
            data.copy_out(0, &mut buffer[at..at + data.len()]);
        }
        drop(period);
        Ok(buffer.into())
    }

    /// Makes everything durable that was acknowledged.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), BlockError> {
        let (recorded, is_durable) = {
            let state = self.state.read();
            if state.is_stopped {
                return Err(StopCause::FlushFailed.into());
            }
            (state.recorded, state.durable >= state.recorded)
        };
        let flushed = !is_durable && self.commit(recorded).await?;
        if flushed { Ok(()) } else { Ok(self.flush_devices().await?) }
    }

    /// Returns the number of bytes from the beginning of a range that have one state, and the state.
    pub(crate) async fn allocation(
        self: &Arc<Self>,
        bytes: Bytes,
    ) -> Result<(u64, Allocation), BlockError> {
        let mut whole: Option<(u64, bool)> = None;
        let mut start = bytes.start;
        while start < bytes.end {
            let found = {
                let state = self.state.read();
                state.run(Bytes { start, ..bytes })
            };
            match found {
                Err(blocked) => {
                    self.resolve(blocked).await.map_err(|error| bytes.pool_error(error))?;
                    continue;
                }
                Ok((length, is_mapped)) => {
                    match &mut whole {
                        Some((_, known)) if *known != is_mapped => break,
                        Some((known, _)) => *known += length,
                        none => *none = Some((length, is_mapped)),
                    }
                    start += length;
                }
            }
        }
        let (length, is_mapped) = whole.unwrap_or_default();
        Ok((length, if is_mapped { Allocation::Mapped } else { Allocation::Deallocated }))
    }
}

impl State {
    /// Returns the first bytes of a range that are all mapped or all not.
    fn run(&self, bytes: Bytes) -> Result<(u64, bool), Blocked> {
        let shift = self.shape().chunk_shift;
        let (first, last) = (bytes.start >> shift, (bytes.end - 1) >> shift);
        let tree = self.object(bytes.volume)?.tree();
        let next = self.next_mapped(&tree, first, last + 1)?;
        match next {
            None => Ok((bytes.length(), false)),
            Some(next) if next > first => Ok(((next << shift) - bytes.start, false)),
            Some(_) => {
                let segment = self.segment_in_chunk(bytes)?;
                Ok((segment.length, segment.source.is_some()))
            }
        }
    }
}
