//! Snapshots that are sent to another pool: parts of a stream, each complete in itself, and their way into a volume's new
//! snapshot.
//!
//! A part has everything that differs within a range of bytes, and names its snapshot and the one that it was compared
//! with. So a stream that was interrupted goes on at any part, and a part that arrives twice does no harm.

use std::sync::Arc;

use sarsen_block::{BlockError, Buffer, Durability, Extent, Store as _};
use zerocopy::FromZeros as _;

use crate::format::{IS_SNAPSHOT, IS_VOLUME, NAME_MAX, RECEIVING, VolumeRow, padded};
use crate::grace::{Freed, Period};
use crate::parts::{
    DATA_MAX, LAST, NONE, Part, PartHeader, RANGES_MAX, Range, StreamProblem, encode,
};
use crate::pool::{Label, complete, filled, has_snapshot, landing, live, row_of};
use crate::records::Record;
use crate::state::State;
use crate::{Change, Pool, PoolError, PoolVolume, VolumeId};

/// Bytes of a snapshot that are compared together. More, if nothing differs.
const WINDOW: u64 = 64 << 20;
/// Bytes of a snapshot after which what has been received becomes durable.
const DURABLE_AFTER: u64 = 16 << 20;

/// What has been received of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The snapshot.
    pub snapshot: VolumeId,
    /// It has everything that differs up to this byte. The next part may begin here, or before.
    pub bytes: u64,
    /// It is complete: it can be used.
    pub is_complete: bool,
    /// It was complete before: the part was not needed.
    pub was_complete: bool,
}

/// A part that is being put together.
struct PartBuilder {
    ranges: Vec<Change>,
    data: u64,
    data_max: u64,
}

impl PartBuilder {
    fn is_full(&self) -> bool {
        self.data >= self.data_max || self.ranges.len() >= RANGES_MAX
    }

    /// Adds a range. Returns the byte up to which it has room for it.
    fn add(&mut self, mut change: Change) -> u64 {
        if self.is_full() {
            return change.offset;
        }
        if !change.is_hole {
            change.length = change.length.min(self.data_max - self.data);
            self.data += change.length;
        }
        self.ranges.push(change);
        change.offset + change.length
    }
}

impl Pool {
    /// Returns the part of a stream that begins at a byte of a snapshot: what differs from an older snapshot, or all of its
    /// data. [`crate::PartInfo`] says where the next part begins.
    pub async fn send(
        &self,
        since: Option<VolumeId>,
        snapshot: VolumeId,
        from: u64,
    ) -> Result<Vec<u8>, PoolError> {
        self.send_part(since, snapshot, from, DATA_MAX).await
    }

    /// Returns a part with at most so many bytes of data: a multiple of the block size.
    pub(crate) async fn send_part(
        &self,
        since: Option<VolumeId>,
        snapshot: VolumeId,
        from: u64,
        data_max: u64,
    ) -> Result<Vec<u8>, PoolError> {
        let (row, base) = {
            let state = self.shared.state.read();
            let row = complete_snapshot(&state, snapshot)?;
            let base = since.map(|since| complete_snapshot(&state, since)).transpose()?;
            (row, base.map_or(NONE, |base| base.identifier))
        };
        let size = row.size.get();
        if from > size || !from.is_multiple_of(1 << row.block_shift) {
            return Err(PoolError::Invalid(
                "the offset is larger than the snapshot, or no multiple of the block size; use the byte that `sarsen \
                 snapshot list` shows",
            ));
        }
        let mut part = PartBuilder { ranges: Vec::new(), data: 0, data_max };
        let (mut until, mut window) = (from, WINDOW);
        while until < size && !part.is_full() {
            let range = until..until.saturating_add(window).min(size);
            let enough = RANGES_MAX - part.ranges.len();
            let found = self.changes_within(since, snapshot, range.clone(), enough).await?;
            window = if found.changes.is_empty() { window.saturating_mul(2) } else { WINDOW };
            until = found.next.unwrap_or(range.end);
            for change in found.changes {
                let end = change.offset + change.length;
                let added = part.add(change);
                if added < end {
                    until = added;
                    break;
                }
            }
        }
        let store = self.open_volume(snapshot).await?;
        let mut data = Vec::with_capacity(part.data as usize);
        for change in part.ranges.iter().filter(|change| !change.is_hole) {
            let extent = extent_of(change.offset, change.length, row.block_shift);
            let read = store.read(extent).wait().await.map_err(failed)?;
            data.extend_from_slice(&read.into_buffer());
        }
        let ranges = part.ranges.iter().map(|change| Range {
            offset: change.offset.into(),
            length: change.length.into(),
            is_hole: change.is_hole.into(),
            reserved: [0; 7],
        });
        let header = PartHeader {
            snapshot: row.identifier,
            base,
            size: row.size,
            from: from.into(),
            until: until.into(),
            created: row.created,
            block_shift: row.block_shift,
            flags: if until == size { LAST } else { 0 },
            name: row.name,
            ..PartHeader::new_zeroed()
        };
        Ok(encode(&header, &ranges.collect::<Vec<_>>(), &data))
    }

    /// Puts a part of a stream into a new snapshot of a volume, which gets the name if it does not exist yet. The snapshot can be
    /// used when it is complete, and is durable then. The volume itself does not change.
    pub async fn receive(
        &self,
        volume: VolumeId,
        name: &str,
        part: &[u8],
    ) -> Result<Received, PoolError> {
        let part = Part::parse(part)?;
        let _receiving = self.shared.receiving.lock().await;
        let (snapshot, received) = match self.find_received(volume, name, &part.header)? {
            Found::Complete(snapshot) => {
                let bytes = part.header.size.get();
                return Ok(Received { snapshot, bytes, is_complete: true, was_complete: true });
            }
            Found::Incomplete(snapshot, received) => (snapshot, received),
            Found::Absent => (VolumeId(0), 0),
        };
        if part.header.from.get() > received {
            return Err(StreamProblem::Gap(received).into());
        }
        let snapshot = match snapshot {
            VolumeId(0) => self.begin_receiving(volume, name, &part.header).await?,
            snapshot => snapshot,
        };
        self.put(snapshot, &part).await?;
        let is_complete = part.header.flags & LAST != 0;
        let bytes = part.header.until.get().max(received);
        let becomes_durable = is_complete || bytes / DURABLE_AFTER != received / DURABLE_AFTER;
        self.note_received(snapshot, bytes, (is_complete, becomes_durable)).await?;
        Ok(Received { snapshot, bytes, is_complete, was_complete: false })
    }

    /// Finds the snapshot of a volume to which a part belongs.
    fn find_received(
        &self,
        volume: VolumeId,
        name: &str,
        header: &PartHeader,
    ) -> Result<Found, PoolError> {
        let state = self.shared.state.read();
        let of = filled(live(&state, volume)?)?;
        if of.kind != IS_VOLUME {
            return Err(PoolError::Invalid("only a volume receives snapshots"));
        }
        if of.block_shift != header.block_shift {
            return Err(StreamProblem::BlockSize.into());
        }
        if name.is_empty() || name.len() > NAME_MAX || name.contains('\0') {
            return Err(PoolError::Invalid("a name has 1 to 127 bytes"));
        }
        let Some(row) = snapshots_of(&state, volume).find(|row| row.name == padded(name)) else {
            return Ok(Found::Absent);
        };
        let id = VolumeId(row.id.get());
        match row.flags & RECEIVING != 0 {
            false if row.identifier != header.snapshot => Err(StreamProblem::NameInUse.into()),
            false => Ok(Found::Complete(id)),
            // Parts of different streams are not mixed.
            true if (row.identifier, row.base, row.size_to_be, row.created)
                != (header.snapshot, header.base, header.size, header.created) =>
            {
                Err(StreamProblem::OtherStream.into())
            }
            true => Ok(Found::Incomplete(id, row.received.get())),
        }
    }

    /// Creates a snapshot that is to be received, with what the older one has.
    async fn begin_receiving(
        &self,
        volume: VolumeId,
        name: &str,
        header: &PartHeader,
    ) -> Result<VolumeId, PoolError> {
        let label = Label {
            name: name.to_owned(),
            identifier: header.snapshot,
            created: header.created.get(),
        };
        let base = |state: &State| match header.base {
            NONE => Ok(0),
            base => {
                let is_base = |row: &VolumeRow| {
                    row.identifier == base
                        && row.flags & RECEIVING == 0
                        && row.block_shift == header.block_shift
                };
                let found = snapshots_of(state, volume).find(is_base);
                found.map(|row| row.id.get()).ok_or(StreamProblem::NoBase)
            }
        };
        let landing = {
            let state = self.shared.state.read();
            landing(&state, VolumeId(base(&state)?))
        };
        if let Some(landing) = landing {
            let _ended = landing.await;
        }
        let mut created = VolumeId(0);
        let wanted = |state: &mut State| {
            let of = live(state, volume)?;
            let mut row = VolumeRow {
                id: state.next_object.into(),
                flags: RECEIVING,
                origin: volume.0.into(),
                base: header.base,
                size: header.size,
                size_to_be: header.size,
                block_shift: header.block_shift,
                copies: of.copies,
                stripes: of.stripes,
                checksums: of.checksums,
                ..row_of(&label, IS_SNAPSHOT)
            };
            if has_snapshot(state, volume.0, &row.name) {
                return Err(PoolError::Exists);
            }
            if !state.has_rows(1) {
                return Err(PoolError::NoSpace);
            }
            let source = base(state)?;
            match state.objects.get(&source) {
                // It begins with the size of the older snapshot, and gets its own with the first part.
                Some(older) => row.size = older.row.size,
                None => row.height = state.shape().height(row.size.get()),
            }
            Ok(Record::Create { source, row: Box::new(row) })
        };
        let recorded = self.shared.change(wanted, |state, record| {
            created = VolumeId(state.next_object);
            state.perform(&record)?;
            drop(Period::rotate(&mut state.period, Freed::default()));
            Ok(())
        });
        let recorded = recorded.await?;
        self.shared.commit(recorded).await?;
        Ok(created)
    }

    /// Writes what a part has.
    async fn put(&self, snapshot: VolumeId, part: &Part<'_>) -> Result<(), PoolError> {
        let store: Arc<PoolVolume> = self.open_object(snapshot).await?;
        let shift = part.header.block_shift;
        let blocks = part.header.size.get() >> shift;
        if store.geometry().block_count != blocks {
            store.resize(blocks).wait().await.map_err(failed)?;
        }
        let mut data = part.data;
        for range in part.ranges {
            let (offset, length) = (range.offset.get(), range.length.get());
            let extent = extent_of(offset, length, shift);
            let put = if range.is_hole == 1 {
                store.unmap(extent)
            } else {
                let (own, rest) = data.split_at(length as usize);
                data = rest;
                store.write(extent, Buffer::copy_of(own).into(), Durability::Volatile)
            };
            put.wait().await.map_err(failed)?;
        }
        Ok(())
    }

    /// Records what has been received. The records of the data come before this one in the journal.
    async fn note_received(
        &self,
        snapshot: VolumeId,
        bytes: u64,
        (is_complete, becomes_durable): (bool, bool),
    ) -> Result<(), PoolError> {
        if is_complete {
            // Nothing may land in it any more.
            self.shared.end_writes().await;
        }
        let wanted = |state: &mut State| {
            let mut row = live(state, snapshot)?;
            row.received = bytes.into();
            if is_complete {
                self.closed(state, snapshot)?;
                row.flags &= !RECEIVING;
            }
            Ok(row)
        };
        let perform = |state: &mut State, row: VolumeRow| {
            state.perform(&Record::Change { row: Box::new(row) })
        };
        let recorded = self.shared.change(wanted, perform).await?;
        if !becomes_durable {
            return self.shared.limit_records().await;
        }
        if !self.shared.commit(recorded).await? {
            self.shared.flush_devices().await?;
        }
        Ok(())
    }
}

/// A snapshot that a part names.
enum Found {
    Absent,
    /// It has everything up to this byte.
    Incomplete(VolumeId, u64),
    Complete(VolumeId),
}

fn failed(source: BlockError) -> PoolError {
    match source {
        BlockError::NoSpace { .. } => PoolError::NoSpace,
        source => PoolError::Volume { source },
    }
}

fn extent_of(offset: u64, length: u64, block_shift: u8) -> Extent {
    Extent::new(offset >> block_shift, length >> block_shift)
}

/// Returns the snapshots of a volume, and those that it receives.
fn snapshots_of(state: &State, volume: VolumeId) -> impl Iterator<Item = VolumeRow> {
    let objects = state.objects.values().filter(|object| !object.is_deleting());
    let rows = objects.map(|object| object.row);
    rows.filter(move |row| row.kind == IS_SNAPSHOT && row.origin.get() == volume.0)
}

fn complete_snapshot(state: &State, id: VolumeId) -> Result<VolumeRow, PoolError> {
    let row = complete(state, id)?;
    match row.kind {
        IS_SNAPSHOT => Ok(row),
        _ => Err(PoolError::Invalid("only a snapshot can be sent")),
    }
}
