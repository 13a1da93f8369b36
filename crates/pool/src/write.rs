//! Writes of volumes.
//!
//! A write in place needs no lock but the period in which it began. A write that changes entries locks its chunks, puts its
//! data in place, and then changes the entries. So an entry never shows data that is not there.

use std::ops::Range;
use std::sync::Arc;

use sarsen_block::{
    BlockError, Buffer, Data, Durability, Io, Payload, Reply, StopCause, StoreStatus,
};

use crate::copies::Place;
use crate::error::Blocked;
use crate::format::FAN_OUT;
use crate::grace::Period;
use crate::pages::Mapping;
use crate::records::Record;
use crate::regions::Region;
use crate::request::{Bytes, Segment};
use crate::shape::{SlabKind, Unit};
use crate::shared::{RoomWaits, Shared};
use crate::space::Class;
use crate::state::State;

/// Maximum number of chunks that one step of a write changes.
const CHUNKS_MAX: u64 = 64;

/// Bytes that a write must add at a border of its pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Fill {
    length: u64,
    /// Where they are. `None`: they are zeroes.
    source: Option<Place>,
}

/// The part of a write in one chunk.
#[derive(Debug)]
struct Part {
    chunk: u64,
    /// The bytes of the request's data.
    data: Range<usize>,
    before: Fill,
    after: Fill,
    /// Where the bytes go, with those before and after them.
    place: Place,
    /// Pieces that are copied, with source, target and length.
    copies: Vec<(Place, Place, u64)>,
    old: Mapping,
    new: Mapping,
    /// A chunk that was taken for it.
    taken: Option<Unit>,
}

impl Part {
    /// Returns whether it copies pieces, or parts of them.
    fn has_copies(&self) -> bool {
        !self.copies.is_empty() || self.before.source.is_some() || self.after.source.is_some()
    }
}

impl Shared {
    /// Writes bytes of a volume.
    pub(crate) fn write(
        self: &Arc<Self>,
        bytes: Bytes,
        data: Payload,
        durability: Durability,
        open: &Arc<StoreStatus>,
    ) -> Reply<()> {
        let (place, regions, period, recorded) = {
            let state = self.state.read();
            if state.is_stopped {
                return Io::Ready(Err(StopCause::FlushFailed.into()));
            }
            let place = state.in_place(bytes).ok().flatten();
            let regions = place.and_then(|place| state.hold(&place, bytes.length()));
            // A write is only as durable as the entry that leads to it.
            let is_pending = durability == Durability::Durable && state.durable < state.recorded;
            let recorded = is_pending.then_some(state.recorded);
            (place, regions, state.period.clone(), recorded)
        };
        if let (Some(place), Some(regions)) = (place, regions) {
            let failed = move |error| bytes.error(bytes.start, error);
            let written = self.write_place(place, data, durability);
            return match (written, recorded) {
                (Io::Ready(written), None) => Io::Ready(written.map_err(failed)),
                (written, recorded) => {
                    let shared = self.clone();
                    self.finishing(async move {
                        let written = written.wait().await;
                        drop((period, regions));
                        written.map_err(failed)?;
                        match recorded {
                            Some(recorded) => shared.persist(bytes, recorded, durability).await,
                            None => Ok(()),
                        }
                    })
                }
            };
        }
        drop(period);
        let (shared, open) = (self.clone(), open.clone());
        self.finishing(async move {
            // The volume counts as open until then: its map is not replaced.
            let _open = open;
            let recorded = shared.write_parts(bytes, data).await?;
            shared.persist(bytes, recorded, durability).await
        })
    }

    /// Makes a write durable that changed entries, if it has to be.
    async fn persist(
        self: &Arc<Self>,
        bytes: Bytes,
        recorded: u64,
        durability: Durability,
    ) -> Result<(), BlockError> {
        if durability == Durability::Durable {
            // The data may be in place, with nothing recorded.
            let flushed = self.commit(recorded).await.map_err(|error| bytes.pool_error(error))?;
            if !flushed {
                self.flush_devices().await?;
            }
        }
        Ok(())
    }

    /// Writes bytes with all that this changes. Returns the number of bytes recorded after it.
    pub(crate) async fn write_parts(
        self: &Arc<Self>,
        bytes: Bytes,
        data: Payload,
    ) -> Result<u64, BlockError> {
        let shift = self.state.read().shape().chunk_shift;
        let (mut start, mut recorded) = (bytes.start, 0);
        while start < bytes.end {
            let limit = ((start >> shift) + CHUNKS_MAX) << shift;
            let step = Bytes { start, end: bytes.end.min(limit), ..bytes };
            let at = (start - bytes.start) as usize;
            let part = &data[at..at + step.length() as usize];
            recorded = self.write_step(step, part).await?;
            start = step.end;
        }
        Ok(recorded)
    }

    async fn write_step(self: &Arc<Self>, bytes: Bytes, data: &[u8]) -> Result<u64, BlockError> {
        let shift = self.state.read().shape().chunk_shift;
        let chunks = bytes.start >> shift..((bytes.end - 1) >> shift) + 1;
        let _locked = self.locks.lock(bytes.volume, chunks.clone()).await;
        let (mut fill_all, mut waits) = (false, RoomWaits::default());
        loop {
            // The period begins when the chunks are taken, so that nothing waits for space within one.
            let planned = {
                let mut state = self.state.write();
                if state.is_stopped {
                    return Err(StopCause::FlushFailed.into());
                }
                let parts = state.plan(bytes, fill_all);
                let parts = parts.and_then(|parts| match state.hold_parts(&parts) {
                    Ok(regions) => Ok((parts, regions)),
                    Err(blocked) => {
                        state.untake(parts.iter().filter_map(|part| part.taken));
                        Err(blocked)
                    }
                });
                parts.map(|(parts, regions)| {
                    let copied = parts.iter().filter(|part| part.has_copies());
                    state.copying.extend(copied.map(|part| (bytes.volume, part.chunk)));
                    let landing = state.objects.get(&bytes.volume);
                    let landing = landing.and_then(|object| object.shared_in.upgrade());
                    (parts, landing, (state.period.clone(), regions), state.mapping.clone())
                })
            };
            let (parts, landing, period, mapping) = match planned {
                Ok(planned) => planned,
                Err(blocked) => {
                    let resolved = self.resolve_or_make_room(blocked, &mut waits).await;
                    resolved.map_err(|error| bytes.pool_error(error))?;
                    continue;
                }
            };
            let written = self.write_data(bytes, data, &parts, landing).await;
            drop(period);
            if let Err(error) = written {
                self.untake(bytes, &parts, 0);
                return Err(error);
            }
            // Its map needs pages now, which is another lack.
            let (mut done, mut waits) = (0, RoomWaits::default());
            while done < parts.len() {
                let blocked = {
                    let mut state = self.state.write();
                    match state.map_parts(bytes.volume, &parts, &mut done) {
                        Ok(()) => break,
                        Err(blocked) => blocked,
                    }
                };
                if matches!(blocked, Blocked::NoBase) {
                    break;
                }
                let resolved = self.resolve_or_make_room(blocked, &mut waits).await;
                if let Err(error) = resolved {
                    self.untake(bytes, &parts, done);
                    return Err(bytes.pool_error(error));
                }
            }
            drop(mapping);
            if done == parts.len() {
                let recorded = {
                    let state = self.state.read();
                    if state.is_crowded() {
                        self.work.notify_one();
                    }
                    state.recorded
                };
                self.limit_records().await.map_err(|error| bytes.pool_error(error))?;
                return Ok(recorded);
            }
            self.untake(bytes, &parts, done);
            fill_all = true;
        }
    }

    /// Ends a write whose parts from `from` on were not mapped: returns their chunks.
    fn untake(&self, bytes: Bytes, parts: &[Part], from: usize) {
        let mut state = self.state.write();
        for part in &parts[from..] {
            state.copying.remove(&(bytes.volume, part.chunk));
        }
        state.untake(parts[from..].iter().filter_map(|part| part.taken));
    }

    /// Returns bytes that a write adds to its data.
    async fn fill(self: &Arc<Self>, bytes: Bytes, fill: Fill) -> Result<Buffer, BlockError> {
        let Some(place) = fill.source else { return Ok(Buffer::zeroed(fill.length as usize)) };
        // Its copies as they are now: one may have become stale since the write was planned.
        let place = self.place_at(place.slab, place.offset).unwrap_or(place);
        let read = self.read_place(place, fill.length).wait().await;
        read.map(Data::into_buffer).map_err(|error| bytes.error(bytes.start, error))
    }

    /// Puts the data of a write in place.
    async fn write_data(
        self: &Arc<Self>,
        bytes: Bytes,
        data: &[u8],
        parts: &[Part],
        landing: Option<Arc<Period>>,
    ) -> Result<(), BlockError> {
        if parts.iter().any(Part::has_copies)
            && let Some(landing) = landing.map(|period| period.end())
        {
            // A write from before the last snapshot may still land in what is copied.
            let _ended = landing.await;
        }
        let failed = |error| bytes.error(bytes.start, error);
        for part in parts.iter().filter(|part| part.taken.is_some() && part.place.has_checksums) {
            // What the volume does not write there has no checksum.
            let shape = self.state.read().shape();
            let chunk = part.place.offset >> shape.chunk_shift << shape.chunk_shift;
            let chunk = Place { offset: chunk, ..part.place };
            self.clear_checksums(chunk, 1 << shape.chunk_shift).await.map_err(failed)?;
        }
        let mut writes: Vec<(Place, Buffer)> = Vec::new();
        let mut run: Vec<u8> = Vec::new();
        let mut run_place: Option<Place> = None;
        for part in parts {
            for &(from, to, length) in &part.copies {
                writes.push((to, self.fill(bytes, Fill { length, source: Some(from) }).await?));
            }
            let end = run_place.map(|place| (place.slab, place.offset + run.len() as u64));
            if end != Some((part.place.slab, part.place.offset)) {
                writes.extend(run_place.map(|place| (place, Buffer::copy_of(&run))));
                run.clear();
                run_place = Some(part.place);
            }
            run.extend_from_slice(&self.fill(bytes, part.before).await?);
            run.extend_from_slice(&data[part.data.clone()]);
            run.extend_from_slice(&self.fill(bytes, part.after).await?);
        }
        writes.extend(run_place.map(|place| (place, Buffer::copy_of(&run))));
        // All of them end before their chunks may be used for something else.
        let writes = writes
            .into_iter()
            .map(|(place, data)| self.write_place(place, data.into(), Durability::Volatile).wait());
        let written = futures_util::future::join_all(writes).await;
        written.into_iter().collect::<Result<Vec<()>, _>>().map_err(failed)?;
        Ok(())
    }
}

impl State {
    /// Returns the place of a range if all of it can be overwritten there.
    #[inline]
    pub(crate) fn in_place(&self, bytes: Bytes) -> Result<Option<Place>, Blocked> {
        let shape = self.shape();
        let mut start = bytes.start;
        let mut whole: Option<Segment> = None;
        while start < bytes.end {
            let within = start & ((1 << shape.chunk_shift) - 1);
            let end = (within + bytes.end - start).min(1 << shape.chunk_shift);
            let found = self.find(bytes.volume, start >> shape.chunk_shift)?;
            let pieces = shape.pieces_of(within, end);
            if !found.is_owned || found.mapping.valid & pieces != pieces {
                return Ok(None);
            }
            let source = Some(self.place_of(found.mapping.own, within)?);
            let next = Segment { source, length: end - within };
            if source.is_some_and(|place| self.space.mirrors.is_in_window(&place, end - within)) {
                return Err(Blocked::Copying);
            }
            let whole = whole.get_or_insert(Segment { length: 0, ..next });
            if !whole.join(next) {
                return Ok(None);
            }
            start += end - within;
        }
        Ok(whole.and_then(|whole| whole.source))
    }

    /// Decides where each part of a write goes, and takes the chunks that it needs.
    fn plan(&mut self, bytes: Bytes, fill_all: bool) -> Result<Vec<Part>, Blocked> {
        let shape = self.shape();
        let mut parts: Vec<Part> = Vec::new();
        let mut start = bytes.start;
        // What is there, before anything is taken.
        let mut founds = Vec::new();
        while start < bytes.end {
            let chunk = start >> shape.chunk_shift;
            let end = bytes.end.min((chunk + 1) << shape.chunk_shift);
            let found = self.find(bytes.volume, chunk)?;
            founds.push((chunk, start..end, found));
            start = end;
        }
        let needed = founds.iter().filter(|(.., found)| !found.is_owned);
        let needed: Vec<u64> = needed.map(|(chunk, ..)| *chunk).collect();
        let mut units = self.take(bytes.volume, &needed)?.into_iter();
        for (chunk, range, found) in founds {
            let offset = chunk << shape.chunk_shift;
            let taken = if found.is_owned { None } else { units.next() };
            let data = (range.start - bytes.start) as usize..(range.end - bytes.start) as usize;
            let within = range.start - offset..range.end - offset;
            match self.part(chunk, within, data, found.mapping, taken, fill_all) {
                Ok(part) => parts.push(part),
                Err(blocked) => {
                    let others = parts.iter().filter_map(|part| part.taken);
                    self.untake(others.chain(taken).chain(units));
                    return Err(blocked);
                }
            }
        }
        Ok(parts)
    }

    /// Returns units that were taken for parts that are not mapped.
    fn untake(&mut self, units: impl Iterator<Item = Unit>) {
        units.for_each(|unit| self.space.untake(unit));
    }

    /// Returns the regions that the parts of a write overwrite.
    fn hold_parts(&self, parts: &[Part]) -> Result<Vec<Arc<Region>>, Blocked> {
        let shape = self.shape();
        let mut regions = Vec::new();
        for part in parts {
            let length = part.before.length + part.data.len() as u64 + part.after.length;
            let unit = Unit::of_chunk(part.new.own);
            let chunk = self.space.place(SlabKind::Data, unit);
            let is_copied = |place| self.space.mirrors.is_in_window(&place, 1 << shape.chunk_shift);
            if chunk.is_some_and(is_copied) {
                return Err(Blocked::Copying);
            }
            // A chunk that was taken has no older data, and after an interruption no map refers to it.
            if part.taken.is_none() {
                match self.hold(&part.place, length) {
                    Some(held) => regions.extend(held),
                    None => return Err(Blocked::Unmarked(part.place, length)),
                }
            }
        }
        for neighbours in parts.chunk_by(|one, other| one.place.slab == other.place.slab) {
            self.space.count_request(neighbours[0].place.slab);
        }
        Ok(regions)
    }

    /// Takes chunks for the chunks of a volume, as many of them in a row as possible.
    fn take(&mut self, volume: u32, needed: &[u64]) -> Result<Vec<Unit>, Blocked> {
        let row = self.object(volume)?.row;
        let class = Class::of_volume(&row);
        let mut units = Vec::with_capacity(needed.len());
        while units.len() < needed.len() {
            let reserve = self.reserve();
            let stripe = (needed[units.len()] % u64::from(row.stripes)) as u8;
            let most = if row.stripes == 1 { needed.len() - units.len() } else { 1 };
            match self.space.take_chunks((class, stripe), most as u32, reserve) {
                Ok((first, count, assigned)) => {
                    self.record_assigned(assigned);
                    let indices = first.index..first.index + count;
                    units.extend(indices.map(|index| Unit { index, ..first }));
                }
                Err(blocked) => {
                    self.untake(units.into_iter());
                    return Err(blocked);
                }
            }
        }
        Ok(units)
    }

    fn part(
        &self,
        chunk: u64,
        within: Range<u64>,
        data: Range<usize>,
        old: Mapping,
        taken: Option<Unit>,
        fill_all: bool,
    ) -> Result<Part, Blocked> {
        let shape = self.shape();
        let shift = shape.piece_shift();
        let touched = shape.pieces_of(within.start, within.end);
        let target = taken.map_or(old.own, Unit::to_chunk);
        // The pieces that are complete in the target before the write.
        let present = if taken.is_none() { old.valid } else { 0 };
        let source_of = |at: u64| -> Result<Option<Place>, Blocked> {
            match 1_u16 << (at >> shift) {
                bit if old.valid & bit != 0 => self.place_of(old.own, at).map(Some),
                bit if old.base_pieces & bit != 0 => self.place_of(old.base, at).map(Some),
                _ => Ok(None),
            }
        };
        let fill = |range: Range<u64>| -> Result<Fill, Blocked> {
            if range.is_empty() || present >> (range.start >> shift) & 1 == 1 {
                return Ok(Fill::default());
            }
            Ok(Fill { length: range.end - range.start, source: source_of(range.start)? })
        };
        let before = fill(within.start & !((1 << shift) - 1)..within.start)?;
        let after = fill(within.end..within.end.next_multiple_of(1 << shift))?;
        let place = self.place_of(target, within.start - before.length)?;
        let mut new = Mapping { own: target, valid: present | touched, base: 0, base_pieces: 0 };
        // What the target does not have.
        let of_own = if taken.is_some() { old.valid & !touched } else { 0 };
        let of_base = old.base_pieces & !touched;
        let (kept, copied) = match (of_own, of_base) {
            (own, base) if fill_all => ((0, 0), own | base),
            (0, base) => ((old.base, base), 0),
            (own, 0) => ((old.own, own), 0),
            (own, base) if own.count_ones() < base.count_ones() => ((old.base, base), own),
            (own, base) => ((old.own, own), base),
        };
        let mut copies = Vec::new();
        for piece in (0..shape.pieces()).filter(|piece| copied >> piece & 1 == 1) {
            let at = u64::from(piece) << shift;
            if let Some(source) = source_of(at)? {
                copies.push((source, self.place_of(target, at)?, 1 << shift));
            }
        }
        new.valid |= copied;
        (new.base, new.base_pieces) = kept;
        let new = new.normal();
        Ok(Part { chunk, data, before, after, place, copies, old, new, taken })
    }

    /// Changes the entries of parts whose data is in place, from `done` on.
    fn map_parts(&mut self, volume: u32, parts: &[Part], done: &mut usize) -> Result<(), Blocked> {
        while let Some(part) = parts.get(*done) {
            if self.find(volume, part.chunk)?.mapping != part.old {
                return Err(Blocked::NotFound);
            }
            let run = self.run_of(&parts[*done..]);
            let record = if run > 1 {
                let (first, own) = (part.chunk, part.new.own);
                Record::Run { volume, first, count: run as u32, own }
            } else {
                Record::Entry { volume, chunk: part.chunk, mapping: part.new }
            };
            if part.new != part.old {
                self.perform(&record)?;
            }
            self.copying.remove(&(volume, part.chunk));
            *done += run;
        }
        Ok(())
    }

    /// Returns the number of parts from the first one on that one record can have.
    fn run_of(&self, parts: &[Part]) -> usize {
        let all = self.shape().all_pieces();
        let first = &parts[0];
        let is_next = |(number, part): &(usize, &Part)| {
            part.new
                == Mapping {
                    own: first.new.own + *number as u64,
                    valid: all,
                    base: 0,
                    base_pieces: 0,
                }
                && part.old == Mapping::default()
                && part.chunk == first.chunk + *number as u64
                && part.chunk / FAN_OUT as u64 == first.chunk / FAN_OUT as u64
        };
        parts.iter().enumerate().take_while(is_next).count().max(1)
    }
}
