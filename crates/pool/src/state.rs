//! The metadata of an open pool: space, pages, volumes, and the records that are not durable yet. All of it changes under
//! one lock, in steps that each leave it consistent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use crate::error::Blocked;
use crate::format::{
    BASES, CATALOGUE_HEIGHT, DELETING, FAN_OUT, FILLING, IS_VOLUME, PAGE, PageKind, RECEIVING,
    VERSION, VERSION_LOST, VERSION_WHOLE, VOLUMES, VolumeRow,
};
use crate::grace::Period;
use crate::pages::{Cached, Page, PageMap};
use crate::records::Record;
use crate::shape::Shape;
use crate::space::{Assigned, Class, Space};

/// Maximum number of slabs whose counts one operation needs: those of all chunks to which a leaf refers.
const COUNTS_TOGETHER: usize = FAN_OUT + BASES;
/// More pages of checksums than all requests that load some at the same time need, as a rule.
const CHECKSUMS_TOGETHER: usize = 256;
/// More pages than one operation needs.
const PAGES_TOGETHER: usize = 16;

/// A tree of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Address of its root, or 0.
    pub(crate) root: u64,
    pub(crate) height: u8,
    /// The kind of its pages at level 0.
    pub(crate) lowest: PageKind,
}

/// What a change of a tree may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// No page that is reserved. The change brings new data.
    Keep,
    /// Reserved pages. The change needs no space for data.
    Use,
    /// Reserved pages, however many this generation has created. A checkpoint makes the change.
    Checkpoint,
}

/// A volume or a snapshot.
pub(crate) struct Object {
    pub(crate) row: VolumeRow,
    /// Its place in the catalogue.
    pub(crate) index: u32,
    /// It differs from the catalogue.
    pub(crate) is_changed: bool,
    /// The period in which its map was last shared. Until that ends, writes may land in chunks that are shared now.
    pub(crate) shared_in: Weak<Period>,
}

impl Object {
    pub(crate) fn tree(&self) -> Tree {
        Tree { root: self.row.root.get(), height: self.row.height, lowest: PageKind::Leaf }
    }

    pub(crate) const fn is_deleting(&self) -> bool {
        self.row.flags & DELETING != 0
    }
}

/// See the module.
pub(crate) struct State {
    /// The first eight bytes of the pool's identifier.
    pub(crate) pool: u64,
    /// Generation of the checkpoint that will have the pages that are created now.
    pub(crate) generation: u64,
    /// Generation of the last checkpoint that is complete. The devices may not have the pages of a later one yet.
    pub(crate) completed: u64,
    /// Generation of the checkpoint that will have the last part of a deletion.
    pub(crate) deleted: u64,
    pub(crate) space: Space,
    pub(crate) pages: PageMap,
    /// Pages that were created in this generation. Some of them may have been removed.
    pub(crate) created: Vec<u64>,
    /// Maximum number of pages that one generation creates.
    pub(crate) created_max: usize,
    pub(crate) objects: BTreeMap<u32, Object>,
    pub(crate) next_object: u32,
    pub(crate) catalogue: Tree,
    pub(crate) free_rows: BTreeSet<u32>,
    pub(crate) cleared_rows: Vec<u32>,
    /// Pages of the maps of all volumes. Each of them may differ from all snapshots one day.
    pub(crate) map_pages: u64,
    pub(crate) period: Arc<Period>,
    /// Held by each write of new data until its entries have changed, which is after its period.
    pub(crate) mapping: Arc<Period>,
    /// Chunks of volumes of which a write copies pieces. Deleting a snapshot may leave such a chunk to its volume alone; a
    /// write in place would be lost then.
    pub(crate) copying: BTreeSet<(u32, u64)>,
    /// Records that no frame has yet.
    pub(crate) records: Vec<u8>,
    /// Bytes of all records so far, and of those that are durable.
    pub(crate) recorded: u64,
    pub(crate) durable: u64,
    /// Maximum number of pages in memory.
    pub(crate) pages_max: usize,
    /// No pages are removed from memory up to this number.
    evict_above: usize,
    /// Records are being carried out again: they are not recorded a second time.
    pub(crate) is_replaying: bool,
    /// Set after a failed write of metadata or a failed flush.
    pub(crate) is_stopped: bool,
}

/// Returns the number of pages that an object may need when it becomes different from its snapshots in every page.
pub(crate) fn reserved_pages(row: &VolumeRow) -> u64 {
    let is_written = row.kind == IS_VOLUME || row.flags & RECEIVING != 0;
    let is_live = is_written && row.flags & DELETING == 0;
    if is_live { row.pages.get().into() } else { 0 }
}

impl State {
    pub(crate) fn new(pool: u64, generation: u64, space: Space, catalogue: u64) -> Self {
        let slots = space.members.iter().map(|member| u64::from(member.slots));
        let bytes = slots.sum::<u64>() << space.shape.slab_shift;
        let period = Period::new(space.returned.clone());
        let mapping = Period::new(Arc::default());
        Self {
            pool,
            generation,
            completed: generation.saturating_sub(1),
            deleted: 0,
            created_max: (bytes >> 18).clamp(128, 16 << 10) as usize,
            space,
            pages: PageMap::default(),
            created: Vec::new(),
            objects: BTreeMap::new(),
            next_object: 1,
            catalogue: Tree {
                root: catalogue,
                height: CATALOGUE_HEIGHT,
                lowest: PageKind::Volumes,
            },
            free_rows: BTreeSet::new(),
            cleared_rows: Vec::new(),
            map_pages: 0,
            period,
            mapping,
            copying: BTreeSet::new(),
            records: Vec::new(),
            recorded: 0,
            durable: 0,
            pages_max: usize::MAX,
            evict_above: 0,
            is_replaying: false,
            is_stopped: false,
        }
    }

    pub(crate) const fn shape(&self) -> Shape {
        self.space.shape
    }

    pub(crate) const fn catalogue(&self) -> u64 {
        self.catalogue.root
    }

    /// Returns the version of the format that this needs.
    pub(crate) fn version(&self) -> u32 {
        if self.objects.values().any(|object| object.row.flags & FILLING != 0) {
            VERSION
        } else if self.space.lost_slabs().is_empty() {
            VERSION_WHOLE
        } else {
            VERSION_LOST
        }
    }

    /// Returns the number of chunks that new data of a class can use, now or when units that were given back are free.
    pub(crate) fn usable_chunks(&self, class: Class) -> u64 {
        // Slots that pages may need get no data.
        self.space.free_chunks(class, self.reserve())
    }

    /// Returns the number of pages that changes without new data need at most: every page of the map of every volume once,
    /// and those of some generations whose pages wait for requests that do not end.
    pub(crate) fn reserve(&self) -> u64 {
        self.map_pages + 4 * self.created_max as u64 + self.catalogue_pages()
    }

    /// Returns the number of pages that would be needed if everything that is free had data: with it, that of the maps.
    pub(crate) fn reserve_for_all(&self) -> u64 {
        let reserve = self.reserve();
        // One leaf for so many chunks, and one more that differs from a snapshot.
        let leaves = self.space.free_chunks(Class::Data(1), reserve).div_ceil(FAN_OUT as u64 / 2);
        reserve + leaves + leaves / FAN_OUT as u64
    }

    /// Returns the number of pages that two checkpoints need for the catalogue at most. Nothing else uses the last pages.
    pub(crate) fn catalogue_pages(&self) -> u64 {
        let rows = (self.objects.len() + self.cleared_rows.len() + self.free_rows.len()) as u64;
        let leaves = rows / VOLUMES as u64 + 2;
        2 * (leaves + leaves / FAN_OUT as u64 + 2)
    }

    pub(crate) fn object(&self, id: u32) -> Result<&Object, Blocked> {
        self.objects.get(&id).ok_or(Blocked::NotFound)
    }

    /// Appends a record, unless it is being carried out again.
    pub(crate) fn record(&mut self, record: &Record) {
        if !self.is_replaying {
            let before = self.records.len();
            record.write(&mut self.records);
            self.recorded += (self.records.len() - before) as u64;
        }
    }

    pub(crate) fn record_assigned(&mut self, assigned: Option<Assigned>) {
        if let Some(assigned) = assigned {
            self.record(&Record::Assign(assigned));
        }
    }

    /// Changes the row of an object.
    pub(crate) fn change_row(&mut self, id: u32, change: impl FnOnce(&mut VolumeRow)) {
        let Some(object) = self.objects.get_mut(&id) else { return };
        let before = reserved_pages(&object.row);
        change(&mut object.row);
        object.is_changed = true;
        self.map_pages = self.map_pages + reserved_pages(&object.row) - before;
    }

    /// Removes an object without a map.
    pub(crate) fn remove_object(&mut self, id: u32) {
        self.change_row(id, |row| row.pages = 0.into());
        if let Some(object) = self.objects.remove(&id) {
            self.cleared_rows.push(object.index);
        }
    }

    /// Returns whether a checkpoint should make changed pages removable from memory.
    pub(crate) fn is_crowded(&self) -> bool {
        self.created.len() > self.created_max.min(self.pages_max) / 2
            || self.space.checksums.is_crowded()
    }

    /// Returns the number of pages that may be in memory beside the counts and checksums.
    fn pages_limit(&self) -> usize {
        let others = self.space.counts_bytes / PAGE + self.space.checksums.page_count();
        self.pages_max - others.min(self.pages_max / 2)
    }

    /// Removes counts from memory until they have no more than these bytes, unless a checkpoint is being written: the devices
    /// may not have what it captured.
    pub(crate) fn evict_counts(&mut self, bytes: usize) {
        if self.completed + 1 == self.generation {
            self.space.evict_counts(bytes);
        }
    }

    /// Removes checksums from memory that the last checkpoint has, if there are too many, unless one is being written: the
    /// devices may not have what it captured.
    pub(crate) fn evict_checksums(&mut self, is_settled: bool) {
        let slack = if is_settled { 0 } else { CHECKSUMS_TOGETHER };
        let is_crowded = self.space.checksums.page_count() > self.pages_max / 4 + slack;
        if is_crowded && self.completed + 1 == self.generation {
            self.space.checksums.evict(self.pages_max / 4);
        }
    }

    /// Removes metadata from memory that the last checkpoint has, if there is too much. `is_settled`: nothing was loaded for
    /// an operation just now. Otherwise, some excess stays, so that an operation finds all that was loaded for it.
    pub(crate) fn evict(&mut self, is_settled: bool) {
        self.evict_checksums(is_settled);
        let counts_max = self.pages_max.saturating_mul(PAGE) / 4;
        let slack = if is_settled { 0 } else { self.space.bytes_of_counts(COUNTS_TOGETHER) };
        if self.space.counts_bytes > counts_max.saturating_add(slack) {
            self.evict_counts(counts_max);
        }
        let limit = self.pages_limit();
        let margin = (self.pages_max / 8).max(PAGES_TOGETHER);
        let slack = if is_settled { 0 } else { margin };
        if self.pages.len() <= limit.saturating_add(slack).max(self.evict_above) {
            return;
        }
        let excess = self.pages.len() - limit.min(self.pages.len()) + margin;
        let completed = self.completed;
        let leaves = self.pages.iter().filter(|(_, Cached { page, .. })| {
            matches!(page, Page::Leaf(_)) && page.header().generation.get() <= completed
        });
        let evicted: Vec<u64> = leaves.take(excess).map(|(&address, _)| address).collect();
        for address in evicted {
            self.pages.remove(&address);
        }
        // The others cannot be removed now: they are not searched again at each page.
        self.evict_above = if is_settled { 0 } else { self.pages.len() + margin };
    }
}
