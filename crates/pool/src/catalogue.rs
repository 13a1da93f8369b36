//! The volumes and snapshots of a pool: their rows in the catalogue, and the changes that records describe.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use zerocopy::FromZeros as _;

use crate::copies::{MIRROR_MAX, STRIPES_MAX};
use crate::error::Blocked;
use crate::format::{
    CATALOGUE_HEIGHT, DELETING, FAN_OUT, FILLING, IS_SNAPSHOT, IS_VOLUME, PROTECTED, RECEIVING,
    VOLUMES, VolumeRow, VolumesPage,
};
use crate::pages::{Cached, Mapping, Page};
use crate::records::Record;
use crate::shape::{CHUNK_ADDRESS_BITS, COUNT_MAX, HEIGHT_MAX, SIZE_MAX, SlabKind, Unit};
use crate::state::{Object, Reserve, State, reserved_pages};

/// Maximum number of volumes and snapshots.
const ROWS_MAX: usize = VOLUMES << (8 * (CATALOGUE_HEIGHT - 1));

/// Refuses a row with impossible values.
fn check_row(row: &VolumeRow) -> Result<(), Blocked> {
    let is_possible = row.height <= HEIGHT_MAX
        && row.size.get() <= SIZE_MAX
        && matches!(row.block_shift, 9 | 11 | 12)
        && row.id.get() < u32::MAX
        && matches!(row.kind, IS_VOLUME | IS_SNAPSHOT)
        && row.flags & !(DELETING | PROTECTED | RECEIVING | FILLING) == 0
        && (row.flags & RECEIVING == 0 || row.kind == IS_SNAPSHOT)
        && (row.flags & FILLING == 0 || row.kind == IS_VOLUME)
        && (1..=MIRROR_MAX).contains(&row.copies)
        && (1..=STRIPES_MAX).contains(&row.stripes)
        && row.checksums <= 1;
    if is_possible {
        Ok(())
    } else {
        Err(Blocked::Damaged(format!("the row of volume {} has impossible values", row.id)))
    }
}

impl State {
    /// Returns whether the catalogue has room for so many more objects.
    pub(crate) fn has_rows(&self, count: usize) -> bool {
        self.objects.len() + self.cleared_rows.len() + count <= ROWS_MAX
    }

    fn insert(&mut self, row: VolumeRow) -> Result<(), Blocked> {
        let index = match self.free_rows.pop_first() {
            Some(index) => index,
            None => {
                let used = self.objects.len() + self.cleared_rows.len();
                u32::try_from(used).map_err(|_| Blocked::NoSpace)?
            }
        };
        if index as usize >= ROWS_MAX {
            return Err(Blocked::NoSpace);
        }
        self.add_object(index, row, true);
        Ok(())
    }

    fn add_object(&mut self, index: u32, row: VolumeRow, is_changed: bool) {
        self.map_pages += reserved_pages(&row);
        let object = Object { row, index, is_changed, shared_in: Weak::new() };
        self.objects.insert(row.id.get(), object);
    }

    /// Reads all rows of the catalogue, whose pages are in memory.
    pub(crate) fn load_catalogue(&mut self) -> Result<(), Blocked> {
        self.objects.clear();
        self.map_pages = 0;
        let mut last = 0;
        let mut used = BTreeSet::new();
        for leaf in 0..1_u64 << (8 * (CATALOGUE_HEIGHT - 1)) {
            // Rows are used from the first one on; a page of them exists if an earlier one had to.
            let Some(reached) = self.page(&self.catalogue, leaf << 8, 0)? else { break };
            let Page::Volumes(page) = reached.page else {
                return Err(Blocked::Damaged("a page of the catalogue is none".into()));
            };
            let page: Arc<VolumesPage> = page.clone();
            for (index, row) in (leaf as u32 * VOLUMES as u32..).zip(&page.rows) {
                last = index + 1;
                if row.id.get() != 0 {
                    check_row(row)?;
                    used.insert(index);
                    self.add_object(index, *row, false);
                }
            }
        }
        self.free_rows = (0..last).filter(|index| !used.contains(index)).collect();
        Ok(())
    }

    /// Writes changed rows to the pages of the catalogue, for a checkpoint.
    pub(crate) fn store_catalogue(&mut self) -> Result<(), Blocked> {
        let mut rows: Vec<(u32, VolumeRow)> =
            self.cleared_rows.iter().map(|&index| (index, VolumeRow::new_zeroed())).collect();
        let changed = self.objects.values().filter(|object| object.is_changed);
        rows.extend(changed.map(|object| (object.index, object.row)));
        for (index, row) in rows {
            let mut tree = self.catalogue;
            let leaf = u64::from(index) / VOLUMES as u64;
            let path = self.writable(&mut tree, leaf << 8, 0, Reserve::Checkpoint)?;
            self.catalogue = tree;
            let address = *path.last().expect("a path has its page");
            if let Some(Cached { page: Page::Volumes(page), .. }) = self.pages.get_mut(&address) {
                Arc::make_mut(page).rows[index as usize % VOLUMES] = row;
            }
        }
        self.free_rows.extend(self.cleared_rows.drain(..));
        self.objects.values_mut().for_each(|object| object.is_changed = false);
        Ok(())
    }

    /// Makes a change, and records it. If this fails, nothing has changed.
    pub(crate) fn perform(&mut self, record: &Record) -> Result<(), Blocked> {
        self.carry_out(record)?;
        self.record(record);
        Ok(())
    }

    /// Makes a change.
    pub(crate) fn carry_out(&mut self, record: &Record) -> Result<(), Blocked> {
        match record {
            // These were carried out before all others.
            Record::Assign(_) => {}
            // The server was interrupted: nothing else carries it out.
            &Record::Dirty { slab, region } => self.space.suspect(slab, 1 << region),
            &Record::Run { volume, first, count, own } => {
                if count as usize > FAN_OUT || own >> CHUNK_ADDRESS_BITS != 0 {
                    return Err(Blocked::Damaged("a record has impossible entries".into()));
                }
                let valid = self.shape().all_pieces();
                let of = |own| Mapping { own, valid, base: 0, base_pieces: 0 };
                let mappings: Vec<_> = (own..own + u64::from(count)).map(of).collect();
                self.set(volume, first, &mappings)?;
                (own..own + u64::from(count)).for_each(|chunk| self.doubt_chunk(chunk));
            }
            &Record::Entry { volume, chunk, mapping } => {
                if !mapping.is_possible() {
                    return Err(Blocked::Damaged("a record has impossible entries".into()));
                }
                self.set(volume, chunk, &[mapping])?;
                self.doubt_chunk(mapping.own);
            }
            &Record::Clear { volume, first, count } => self.clear(volume, first, count)?,
            Record::Create { source, row } => self.create(*source, **row)?,
            Record::Change { row } => self.change(row)?,
            &Record::Replace { volume, source } => self.replace(volume, source)?,
        }
        Ok(())
    }

    /// Notes that the data of a chunk may be newer than its checksums, if its entry is carried out again.
    fn doubt_chunk(&mut self, chunk: u64) {
        let unit = Unit::of_chunk(chunk);
        if self.is_replaying
            && chunk != 0
            && let Some(place) = self.space.place(SlabKind::Data, unit)
        {
            let regions = self.shape().regions_of(place.offset, place.offset + 1);
            self.space.doubt_checksums(unit.slab, regions);
        }
    }

    /// Returns whether so many more pages can be reserved. Records that are carried out again had them.
    fn has_pages(&self, count: u64) -> bool {
        self.is_replaying || self.space.available_pages() >= self.reserve() + count
    }

    /// Adds an object with the map of `source`, or with an empty one.
    fn create(&mut self, source: u32, mut row: VolumeRow) -> Result<(), Blocked> {
        if source != 0 {
            let from = self.object(source)?.row;
            (row.root, row.height, row.pages) = (from.root, from.height, from.pages);
            row.chunks = from.chunks;
            if !self.has_pages(reserved_pages(&row)) || !self.can_share(&from) {
                return Err(Blocked::NoSpace);
            }
        }
        check_row(&row)?;
        let id = row.id.get();
        self.insert(row)?;
        if source != 0 {
            self.share(source, id);
        }
        self.next_object = self.next_object.max(id + 1);
        Ok(())
    }

    /// Returns whether another object can have the map of this one.
    fn can_share(&self, row: &VolumeRow) -> bool {
        let root = row.root.get();
        root == 0 || self.space.count(Unit::of_page(root)).is_none_or(|count| count < COUNT_MAX)
    }

    /// Counts one more reference to the map of `source`, which `other` has from now on.
    fn share(&mut self, source: u32, other: u32) {
        let root = self.objects.get(&source).map_or(0, |object| object.row.root.get());
        if root != 0 {
            self.add_page(root);
        }
        let period = Arc::downgrade(&self.period);
        for id in [source, other] {
            if let Some(object) = self.objects.get_mut(&id) {
                object.shared_in = period.clone();
            }
        }
    }

    /// Changes the properties of an object. Its map stays, and becomes higher if the size needs it.
    fn change(&mut self, row: &VolumeRow) -> Result<(), Blocked> {
        check_row(row)?;
        let id = row.id.get();
        let mut tree = self.object(id)?.tree();
        let height = self.shape().height(row.size.get());
        let levels = height.saturating_sub(tree.height);
        let added = self.heighten(&mut tree, levels)?;
        self.change_row(id, |own| {
            let (pages, chunks) = (own.pages.get() + added, own.chunks);
            *own = *row;
            (own.root, own.height) = (tree.root.into(), tree.height);
            (own.pages, own.chunks) = (pages.into(), chunks);
        });
        Ok(())
    }

    /// Gives a volume the map of `source`. What it had is deleted, as an object without a name.
    fn replace(&mut self, volume: u32, source: u32) -> Result<(), Blocked> {
        let (had, from) = (self.object(volume)?.row, self.object(source)?.row);
        if !self.has_pages(from.pages.get().into()) || !self.can_share(&from) {
            return Err(Blocked::NoSpace);
        }
        let mut remains = VolumeRow { id: self.next_object.into(), flags: DELETING, ..had };
        remains.name = [0; 128];
        self.insert(remains)?;
        self.next_object += 1;
        self.change_row(volume, |row| {
            (row.root, row.height, row.pages) = (from.root, from.height, from.pages);
            (row.size, row.chunks) = (from.size, from.chunks);
        });
        self.share(source, volume);
        Ok(())
    }
}
