//! A pool: operations on its volumes and snapshots.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::sync::{Arc, Weak};

use sarsen_block::{BlockSize, Store, StoreStatus, Usability};
use tokio::sync::oneshot;
use zerocopy::FromZeros as _;

use crate::copies::{MIRROR_MAX, STRIPES_MAX};
use crate::format::{
    DELETING, FILLING, IS_SNAPSHOT, IS_VOLUME, NAME_MAX, PROTECTED, RECEIVING, VolumeRow, padded,
    unpadded,
};
use crate::grace::{Freed, Period};
use crate::records::Record;
use crate::shape::SIZE_MAX;
use crate::shared::Shared;
use crate::space::Class;
use crate::state::State;
use crate::{ChecksumErrors, PoolError, PoolVolume};

/// The number of a volume or a snapshot in its pool. It is never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

/// The name of a new object, and what identifies it elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// 1 to 127 bytes. Each snapshot of a volume has another one; volumes may have the same.
    pub name: String,
    /// A number that no other object has.
    pub identifier: [u8; 16],
    /// Seconds since 1970.
    pub created: u64,
}

/// A volume to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Its name.
    pub label: Label,
    /// Size in bytes: a multiple of the block size.
    pub size: u64,
    /// Size of a logical block. It is not smaller than that of any device.
    pub block_size: BlockSize,
    /// Number of copies of its data, 1 to 3, each on another device.
    pub copies: u8,
    /// Number of devices over which consecutive chunks are spread, if there are so many: 1 to 16.
    pub stripes: u8,
    /// Whether each 4 KiB of its data has a checksum, which every read verifies.
    pub has_checksums: bool,
    /// The size in bytes of the disk in the image from which it is filled ([`Pool::open_filling`]), if it is. It is not
    /// larger than the volume.
    pub image_size: Option<u64>,
}

/// A pool to be created.
pub struct NewPool {
    /// A number that no other pool has.
    pub identifier: [u8; 16],
    /// Its name: 1 to 127 bytes.
    pub name: String,
    /// Size of a chunk in bytes: a power of two from 16 KiB to 1 MiB.
    pub chunk_size: u32,
    /// Whether it gets fast and slow devices, between which slabs move: then they are smaller.
    pub has_tiers: bool,
    /// The devices, each with a number that no other device has. Their data is lost.
    pub devices: Vec<(Arc<dyn Store>, [u8; 16])>,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// A volume.
    Volume,
    /// A snapshot of a volume. It never changes.
    Snapshot,
}

/// A volume or a snapshot, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Its kind.
    pub kind: VolumeKind,
    /// Its name.
    pub label: Label,
    /// Size in bytes.
    pub size: u64,
    /// log2 of the bytes of a logical block.
    pub block_shift: u8,
    /// The volume of a snapshot, or the snapshot of a clone. It may be deleted.
    pub origin: Option<VolumeId>,
    /// Bytes of all chunks to which its map refers. Several objects may refer to the same chunks.
    pub referenced_bytes: u64,
    /// Whether it is protected from deletion.
    pub is_protected: bool,
    /// Number of copies of its data.
    pub copies: u8,
    /// Number of devices over which consecutive chunks are spread.
    pub stripes: u8,
    /// Whether each 4 KiB of its data has a checksum.
    pub has_checksums: bool,
    /// The byte up to which it has been received, if it is a snapshot that is not complete yet.
    pub received: Option<u64>,
    /// The size in bytes of the disk in its image, if it is a volume that does not have all of that yet.
    pub image_size: Option<u64>,
}

/// The space of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpace {
    /// Bytes of all chunks, if every slab had data.
    pub size_bytes: u64,
    /// Bytes that nothing uses, where data with n copies takes n times its size. What is free in slabs with data is for volumes
    /// with the same copies and checksums, until a whole slab is free.
    pub free_bytes: u64,
    /// Bytes of data that were given up with devices. Volumes and snapshots may still refer to them.
    pub lost_bytes: u64,
    /// Whether new data of one of the volumes has no space, although data of others may have.
    pub is_full: bool,
    /// Whether objects are being deleted, whose bytes become free. Until it is durable that they are gone, the pool needs the
    /// devices that have them.
    pub is_deleting: bool,
}

/// An open pool. Clones are the same pool.
///
/// A pending reply of a volume must be polled until it ends, or dropped: while it exists, no snapshot is complete, and no
/// space is given back.
#[derive(Clone)]
pub struct Pool {
    pub(crate) shared: Arc<Shared>,
}

impl Pool {
    /// Returns all volumes and snapshots, in the order of their creation.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        let state = self.shared.state.read();
        let chunk_shift = state.shape().chunk_shift;
        let live = state.objects.values().filter(|object| !object.is_deleting());
        live.map(|object| info(&object.row, chunk_shift)).collect()
    }

    /// Returns the space of the pool.
    pub fn space(&self) -> PoolSpace {
        let mut state = self.shared.state.write();
        state.space.reclaim();
        let is_deleting = state.objects.values().any(|object| object.is_deleting())
            || state.completed < state.deleted;
        let plain = state.usable_chunks(Class::Data(1));
        let free = plain + state.space.free_in_slabs_of_others(Class::Data(1));
        let rows = state.objects.values().filter(|object| !object.is_deleting());
        let volumes = rows.map(|object| object.row).filter(|row| row.kind == IS_VOLUME);
        let classes: HashSet<Class> = volumes.map(|row| Class::of_volume(&row)).collect();
        PoolSpace {
            size_bytes: state.space.chunks() << state.shape().chunk_shift,
            free_bytes: free << state.shape().chunk_shift,
            lost_bytes: (state.space.lost_slabs().len() as u64) << state.shape().slab_shift,
            is_full: free == 0 || classes.iter().any(|class| state.usable_chunks(*class) == 0),
            is_deleting,
        }
    }

    /// Returns how often data did not have its checksum since the pool was opened.
    pub fn checksum_errors(&self) -> ChecksumErrors {
        self.shared.mismatches.errors()
    }

    /// Sets the memory that maps may use.
    pub fn set_memory(&self, bytes: usize) {
        let mut state = self.shared.state.write();
        state.pages_max = (bytes / crate::format::PAGE).max(16);
        state.evict(true);
    }

    /// Creates a volume. It is durable when this returns.
    pub async fn create_volume(&self, new: &NewVolume) -> Result<VolumeId, PoolError> {
        let fits =
            |store: &dyn Store| store.geometry().block_size.bytes() <= new.block_size.bytes();
        if !self.shared.devices.all(fits) {
            return Err(PoolError::Invalid("the blocks of a device are larger than its blocks"));
        }
        if new.size == 0 || !new.size.is_multiple_of(new.block_size.bytes() as u64) {
            return Err(PoolError::Invalid("its size is not a multiple of its block size"));
        }
        if new.size > SIZE_MAX {
            return Err(PoolError::Invalid("a volume has at most 64 PiB"));
        }
        if !(1..=STRIPES_MAX).contains(&new.stripes) {
            return Err(PoolError::Invalid("a volume has 1 to 16 stripes"));
        }
        if !(1..=MIRROR_MAX).contains(&new.copies) {
            return Err(PoolError::Invalid("a volume has 1 to 3 copies"));
        }
        if new.image_size.is_some_and(|image| image > new.size) {
            return Err(PoolError::Invalid("the volume is smaller than the disk in its image"));
        }
        // Pages have as many copies as there are devices for, up to this number.
        if self.shared.state.read().space.page_copies() < new.copies {
            return Err(PoolError::Invalid(
                "the pool has fewer devices than the volume has copies",
            ));
        }
        let mut row = row_of(&new.label, IS_VOLUME);
        (row.copies, row.stripes) = (new.copies, new.stripes);
        row.checksums = new.has_checksums.into();
        row.block_shift = new.block_size.shift() as u8;
        row.size = new.size.into();
        if let Some(image_size) = new.image_size {
            (row.flags, row.size_to_be) = (FILLING, image_size.into());
        }
        let ids = self.add_objects(&[(0, row)]).await?;
        if new.image_size.is_some() {
            // Programs of older versions must not open the pool from now on.
            self.checkpoint().await?;
        }
        Ok(ids[0])
    }

    /// Creates snapshots of several volumes at one moment, protected from deletion if `protect` is set. They are durable when
    /// this returns.
    pub async fn snapshot(
        &self,
        of: &[(VolumeId, Label)],
        protect: bool,
    ) -> Result<Vec<VolumeId>, PoolError> {
        let flags = if protect { PROTECTED } else { 0 };
        let row = |label| VolumeRow { flags, ..row_of(label, IS_SNAPSHOT) };
        let rows = of.iter().map(|(volume, label)| (volume.0, row(label)));
        self.add_objects(&rows.collect::<Vec<_>>()).await
    }

    /// Creates a volume with the contents of a snapshot. It is durable when this returns.
    pub async fn clone_of(&self, snapshot: VolumeId, label: &Label) -> Result<VolumeId, PoolError> {
        let landing = {
            let state = self.shared.state.read();
            if complete(&state, snapshot)?.kind != IS_SNAPSHOT {
                return Err(PoolError::Invalid("only a snapshot can be cloned"));
            }
            landing(&state, snapshot)
        };
        if let Some(landing) = landing {
            let _ended = landing.await;
        }
        let ids = self.add_objects(&[(snapshot.0, row_of(label, IS_VOLUME))]).await?;
        Ok(ids[0])
    }

    /// Adds objects at one moment, each with the map of its source.
    async fn add_objects(&self, new: &[(u32, VolumeRow)]) -> Result<Vec<VolumeId>, PoolError> {
        let shared = &self.shared;
        let (mut ids, mut landed) = (Vec::new(), None);
        let completed = |state: &mut State| {
            let snapshots = new.iter().filter(|(_, row)| row.kind == IS_SNAPSHOT);
            let mut names: HashSet<_> = HashSet::new();
            if !snapshots.clone().all(|(source, row)| names.insert((*source, row.name)))
                || snapshots.clone().any(|(source, row)| has_snapshot(state, *source, &row.name))
            {
                return Err(PoolError::Exists);
            }
            // All of them are created, or none.
            if !state.has_rows(new.len()) {
                return Err(PoolError::NoSpace);
            }
            let mut rows = Vec::with_capacity(new.len());
            for (number, (source, row)) in (state.next_object..).zip(new) {
                let mut row = *row;
                if row.name[0] == 0 {
                    return Err(PoolError::Invalid("a name has 1 to 127 bytes"));
                }
                if *source == 0 {
                    row.height = state.shape().height(row.size.get());
                } else {
                    let from = state.objects.get(source).filter(|from| !from.is_deleting());
                    let from = filled(from.ok_or(PoolError::NotFound)?.row)?;
                    (row.size, row.block_shift) = (from.size, from.block_shift);
                    (row.copies, row.stripes) = (from.copies, from.stripes);
                    row.checksums = from.checksums;
                    row.origin = from.id;
                }
                row.id = number.into();
                rows.push(Record::Create { source: *source, row: Box::new(row) });
            }
            Ok(rows)
        };
        let recorded = shared.change(completed, |state, records| {
            ids.clear();
            for record in &records {
                state.perform(record)?;
                if let Record::Create { row, .. } = record {
                    ids.push(VolumeId(row.id.get()));
                }
            }
            landed = Some(Period::rotate(&mut state.period, Freed::default()));
            Ok(())
        });
        let recorded = recorded.await?;
        if let Some(landed) = landed.filter(|_| new.iter().any(|(source, _)| *source != 0)) {
            // The writes that began before a snapshot are a part of it.
            let _ended = landed.await;
        }
        if !shared.commit(recorded).await? {
            // The record became durable with others, maybe before these writes.
            shared.flush_devices().await?;
        }
        Ok(ids)
    }

    /// Deletes a volume or a snapshot that is not open. Its space is given back in the background.
    pub async fn delete(&self, id: VolumeId) -> Result<(), PoolError> {
        let wanted = |state: &mut State| {
            let mut row = self.closed(state, id)?;
            if row.flags & PROTECTED != 0 {
                return Err(PoolError::Protected);
            }
            row.flags = row.flags & !FILLING | DELETING;
            row.name = [0; NAME_MAX + 1];
            Ok(row)
        };
        self.change_row(wanted).await?;
        self.shared.work.notify_one();
        Ok(())
    }

    /// Sets whether a volume or a snapshot is protected from deletion.
    pub async fn protect(&self, id: VolumeId, protect: bool) -> Result<(), PoolError> {
        let wanted = |state: &mut State| {
            let mut row = live(state, id)?;
            row.flags = row.flags & !PROTECTED | if protect { PROTECTED } else { 0 };
            Ok(row)
        };
        self.change_row(wanted).await
    }

    /// Renames volumes.
    pub async fn rename(&self, names: &[(VolumeId, String)]) -> Result<(), PoolError> {
        let wanted = |state: &mut State| {
            let mut rows = Vec::with_capacity(names.len());
            for (id, name) in names {
                let mut row = live(state, *id)?;
                row.name = checked_name(name);
                if row.kind != IS_VOLUME {
                    return Err(PoolError::Invalid("a snapshot keeps its name"));
                }
                if row.name[0] == 0 {
                    return Err(PoolError::Invalid("a name has 1 to 127 bytes"));
                }
                rows.push(row);
            }
            Ok(rows)
        };
        let perform = |state: &mut State, rows: Vec<VolumeRow>| {
            // Only another size could need what is not there.
            rows.into_iter().try_for_each(|row| state.perform(&Record::Change { row: row.into() }))
        };
        let recorded = self.shared.change(wanted, perform).await?;
        self.shared.commit(recorded).await?;
        Ok(())
    }

    /// Returns the first volume or snapshot that fits.
    pub fn find(&self, fits: impl Fn(&VolumeInfo) -> bool) -> Option<VolumeInfo> {
        let state = self.shared.state.read();
        let chunk_shift = state.shape().chunk_shift;
        let mut live = state.objects.values().filter(|object| !object.is_deleting());
        live.find_map(|object| Some(info(&object.row, chunk_shift)).filter(&fits))
    }

    /// Returns the bytes of a chunk.
    pub fn chunk_size(&self) -> u32 {
        1 << self.shared.state.read().shape().chunk_shift
    }

    /// Returns whether writes have stopped, because a device did not write metadata.
    pub fn is_stopped(&self) -> bool {
        self.shared.state.read().is_stopped
    }

    /// Gives a volume that is not open the contents and the size of a snapshot.
    pub async fn roll_back(&self, volume: VolumeId, snapshot: VolumeId) -> Result<(), PoolError> {
        let landing = landing(&self.shared.state.read(), snapshot);
        if let Some(landing) = landing {
            let _ended = landing.await;
        }
        let wanted = |state: &mut State| {
            let (to, from) = (filled(self.closed(state, volume)?)?, complete(state, snapshot)?);
            if to.kind != IS_VOLUME || from.kind != IS_SNAPSHOT {
                return Err(PoolError::Invalid("only a volume can be set back, to a snapshot"));
            }
            if to.block_shift != from.block_shift {
                return Err(PoolError::Invalid("the snapshot has blocks of another size"));
            }
            Ok(Record::Replace { volume: volume.0, source: snapshot.0 })
        };
        let recorded = self.shared.change(wanted, |state, record| {
            state.perform(&record)?;
            drop(Period::rotate(&mut state.period, Freed::default()));
            Ok(())
        });
        let recorded = recorded.await?;
        self.shared.commit(recorded).await?;
        self.shared.work.notify_one();
        Ok(())
    }

    pub(crate) async fn change_row(
        &self,
        wanted: impl FnMut(&mut State) -> Result<VolumeRow, PoolError>,
    ) -> Result<(), PoolError> {
        let perform = |state: &mut State, row: VolumeRow| {
            state.perform(&Record::Change { row: Box::new(row) })
        };
        let recorded = self.shared.change(wanted, perform).await?;
        self.shared.commit(recorded).await?;
        Ok(())
    }

    pub(crate) fn closed(&self, state: &State, id: VolumeId) -> Result<VolumeRow, PoolError> {
        let row = live(state, id)?;
        let opened = self.shared.opened.lock();
        match opened.get(&id.0).and_then(Weak::upgrade) {
            Some(_) => Err(PoolError::InUse),
            None => Ok(row),
        }
    }

    /// Opens a volume or a snapshot. All that are open have one status.
    pub async fn open_volume(&self, id: VolumeId) -> Result<Arc<PoolVolume>, PoolError> {
        filled(complete(&self.shared.state.read(), id)?)?;
        self.open_object(id).await
    }

    pub(crate) async fn open_object(&self, id: VolumeId) -> Result<Arc<PoolVolume>, PoolError> {
        let (row, status, landing) = {
            let state = self.shared.state.read();
            let row = live(&state, id)?;
            let mut opened = self.shared.opened.lock();
            // From now on it is in use.
            let status = opened.get(&id.0).and_then(Weak::upgrade).unwrap_or_else(|| {
                let status = StoreStatus::new(row.size.get() >> row.block_shift);
                opened.insert(id.0, Arc::downgrade(&status));
                status
            });
            if state.is_stopped {
                status.set_usability(Usability::WritesStopped);
            }
            let is_snapshot = row.kind == IS_SNAPSHOT;
            (row, status, landing(&state, id).filter(|_| is_snapshot))
        };
        if let Some(landing) = landing {
            let _ended = landing.await;
        }
        Ok(Arc::new(PoolVolume::new(self.shared.clone(), &row, status)?))
    }

    /// Deletes what is to be deleted, completes and moves copies, and writes checkpoints before they are urgent, until the pool is closed or has stopped.
    /// After another error, which `report` gets, it tries again when there is more work. Run it beside the requests. It does
    /// not keep the pool open.
    pub fn maintain(
        &self,
        report: impl Fn(&PoolError) + 'static,
    ) -> impl Future<Output = ()> + 'static {
        let (pool, work) = (Arc::downgrade(&self.shared), self.shared.work.clone());
        async move {
            loop {
                let next = work.notified();
                let Some(shared) = pool.upgrade() else { return };
                let pool = Self { shared };
                if let Err(error) = pool.maintain_once().await {
                    report(&error);
                    if pool.is_stopped() {
                        return;
                    }
                }
                drop(pool);
                next.await;
            }
        }
    }

    /// Does what [`Self::maintain`] has to do now.
    pub async fn maintain_once(&self) -> Result<(), PoolError> {
        let (mut failed, mut problem) = (BTreeMap::new(), None);
        loop {
            // What cannot be deleted now holds up no copy.
            match self.complete_deletions().await {
                Err(error) if !self.is_stopped() => problem = Some(error),
                ended => ended?,
            }
            let has_more =
                self.shared.tend_copies(&mut failed).await? || self.shared.tend_checksums().await?;
            self.shared.checkpoint_if_due().await?;
            if !has_more {
                let problem = problem.or_else(|| failed.into_values().next());
                return problem.map_or(Ok(()), Err);
            }
        }
    }

    /// Deletes what is to be deleted, as far as no request holds what that needs.
    pub(crate) async fn complete_deletions(&self) -> Result<(), PoolError> {
        let mut has_deleted = false;
        loop {
            match self.shared.delete_parts().await {
                Ok(true) => has_deleted = true,
                Ok(false) => break,
                // Requests hold what is needed; the next one that ends makes it free.
                Err(PoolError::NoSpace) => break,
                Err(error) => return Err(error),
            }
            self.shared.checkpoint_if_due().await?;
            tokio::task::yield_now().await;
        }
        if has_deleted {
            // Until then, a device is needed for what was deleted.
            let generation = self.shared.state.read().generation;
            self.shared.checkpoint(generation).await?;
        }
        Ok(())
    }

    /// Writes a checkpoint if the journal names regions that may be overwritten. Those that were not overwritten since the last
    /// checkpoint are not copied after an interruption, and keep their checksums.
    pub async fn settle_regions(&self) -> Result<(), PoolError> {
        let generation = {
            let state = self.shared.state.read();
            if !state.space.mirrors.has_dirty() {
                return Ok(());
            }
            state.generation
        };
        self.shared.checkpoint(generation).await
    }

    /// Writes a checkpoint, so that the next opening has nothing to carry out again.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        let generation = {
            let state = self.shared.state.read();
            state.space.mirrors.cool();
            state.generation
        };
        self.shared.checkpoint(generation).await
    }
}

/// Returns the end of the writes from before the map of an object was last shared, if they have not ended.
pub(crate) fn landing(state: &State, id: VolumeId) -> Option<oneshot::Receiver<()>> {
    Some(state.objects.get(&id.0)?.shared_in.upgrade()?.end())
}

pub(crate) fn live(state: &State, id: VolumeId) -> Result<VolumeRow, PoolError> {
    let object = state.objects.get(&id.0).filter(|object| !object.is_deleting());
    Ok(object.ok_or(PoolError::NotFound)?.row)
}

/// Returns an object, unless it is a snapshot that is being received.
pub(crate) fn complete(state: &State, id: VolumeId) -> Result<VolumeRow, PoolError> {
    let row = live(state, id)?;
    if row.flags & RECEIVING == 0 { Ok(row) } else { Err(PoolError::Incomplete) }
}

/// Returns the row of an object, unless it is a volume that is being filled from an image.
pub(crate) fn filled(row: VolumeRow) -> Result<VolumeRow, PoolError> {
    if row.flags & FILLING == 0 { Ok(row) } else { Err(PoolError::Filling) }
}

/// Returns whether a volume has a snapshot of this name.
pub(crate) fn has_snapshot(state: &State, volume: u32, name: &[u8; NAME_MAX + 1]) -> bool {
    state.objects.values().any(|other| {
        let row = &other.row;
        let is_its = row.kind == IS_SNAPSHOT && row.origin.get() == volume;
        is_its && !other.is_deleting() && row.name == *name
    })
}

/// Returns a padded name, which is empty if the name is too long.
fn checked_name(name: &str) -> [u8; NAME_MAX + 1] {
    if name.len() > NAME_MAX || name.contains('\0') { padded("") } else { padded(name) }
}

pub(crate) fn row_of(label: &Label, kind: u8) -> VolumeRow {
    VolumeRow {
        kind,
        created: label.created.into(),
        identifier: label.identifier,
        name: checked_name(&label.name),
        ..VolumeRow::new_zeroed()
    }
}

fn info(row: &VolumeRow, chunk_shift: u8) -> VolumeInfo {
    VolumeInfo {
        id: VolumeId(row.id.get()),
        kind: if row.kind == IS_VOLUME { VolumeKind::Volume } else { VolumeKind::Snapshot },
        label: Label {
            name: unpadded(&row.name),
            identifier: row.identifier,
            created: row.created.get(),
        },
        size: row.size.get(),
        block_shift: row.block_shift,
        origin: Some(row.origin.get()).filter(|&origin| origin != 0).map(VolumeId),
        referenced_bytes: row.chunks.get() << chunk_shift,
        is_protected: row.flags & PROTECTED != 0,
        copies: row.copies,
        stripes: row.stripes,
        has_checksums: row.checksums != 0,
        received: (row.flags & RECEIVING != 0).then_some(row.received.get()),
        image_size: (row.flags & FILLING != 0).then_some(row.size_to_be.get()),
    }
}
