//! The space of a pool: slabs, the reference counts of their units, and which units are free.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;
use sarsen_block::Buffer;
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::checksums::Checksums;
use crate::copies::{COPIES_MAX, Copies, MIRROR_MAX, Place, Slot};
use crate::counts::Counts;
use crate::error::Blocked;
use crate::format::{
    COUNTS, CountsPage, PAGE, PageHeader, PageKind, ROW_PAGES_MAX, ROWS, RowsPage, Sealed as _,
    SlabRow, SlotRow, VolumeRow, bit, flip,
};
use crate::grace::Freed;
use crate::members::Member;
use crate::pages::{AddressMap, Unsealed};
use crate::regions::Regions;
use crate::shape::{Layout, Shape, SlabKind, Unit};
use crate::tiers::Tiering;

/// The offset of a page of rows on the devices that have it, and its bytes.
pub(crate) type RowsWrite = (u64, Buffer);

/// A slab that has units in use, or that had some.
pub(crate) struct Slab {
    pub(crate) part: SlabPart,
    /// The reference counts, if they are in memory.
    pub(crate) counts: Option<Counts>,
}

/// The part of a slab that is always in memory.
pub(crate) struct SlabPart {
    pub(crate) class: Class,
    pub(crate) copies: Copies,
    /// One bit for each region of which a stale copy may have something else.
    pub(crate) regions: u64,
    /// The device whose copy the next checkpoint does not have any more. Until then it is written, and not read.
    pub(crate) dropping: Option<u8>,
    /// Units that are free.
    pub(crate) free: u32,
    /// The valid place of each page of counts.
    places: [u8; 20],
    /// Requests to it, of which older ones count less. 0 unless the pool has tiers.
    pub(crate) heat: AtomicU32,
}

/// What a slab is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Class {
    /// Chunks of volumes that want this number of copies.
    Data(u8),
    /// The same, with checksums.
    Checked(u8),
    /// Pages.
    Pages,
}

impl Class {
    pub(crate) const fn kind(self) -> SlabKind {
        match self {
            Self::Data(_) => SlabKind::Data,
            Self::Checked(_) => SlabKind::Checked,
            Self::Pages => SlabKind::Pages,
        }
    }

    pub(crate) const fn of(kind: SlabKind, copies: u8) -> Self {
        match kind {
            SlabKind::Data => Self::Data(copies),
            SlabKind::Checked => Self::Checked(copies),
            SlabKind::Pages => Self::Pages,
        }
    }

    /// Returns the class of the chunks of a volume.
    pub(crate) const fn of_volume(row: &VolumeRow) -> Self {
        if row.checksums == 0 { Self::Data(row.copies) } else { Self::Checked(row.copies) }
    }

    /// Returns the number of copies that volumes want, if it is for their chunks.
    pub(crate) const fn copies(self) -> Option<u8> {
        match self {
            Self::Data(copies) | Self::Checked(copies) => Some(copies),
            Self::Pages => None,
        }
    }

    /// Returns its number, from 0 on.
    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Pages => 0,
            Self::Data(copies) => copies as usize,
            Self::Checked(copies) => MIRROR_MAX as usize + copies as usize,
        }
    }
}

/// Number of classes of slabs.
const CLASSES: usize = 1 + 2 * MIRROR_MAX as usize;

/// See the module.
pub(crate) struct Space {
    pub(crate) shape: Shape,
    /// The devices, by their numbers.
    pub(crate) members: Vec<Member>,
    /// By number. Number 0 is never used.
    pub(crate) slabs: Vec<Option<Slab>>,
    /// Numbers of slabs that can be used again.
    pub(crate) free_numbers: BTreeSet<u32>,
    /// Pages of rows that have changed since the last checkpoint.
    pub(crate) changed_rows: BTreeSet<u32>,
    /// The valid place of each page of rows.
    row_places: Vec<u8>,
    /// Slabs that ended, and copies that moved, since the last checkpoint: the number that is free then, and the slots.
    pub(crate) unassigned: Vec<(u32, Vec<Slot>)>,
    /// The checkpoint that is being written makes such slots usable.
    pub(crate) is_reusing: bool,
    /// The slab in which the search for a unit begins, by class and stripe.
    pub(crate) current: BTreeMap<(Class, u8), u32>,
    pub(crate) free_units: [u64; CLASSES],
    /// Units that were given back since the last checkpoint.
    pub(crate) freed: Vec<(SlabKind, Unit)>,
    /// Units that are free when a checkpoint is complete and its period has ended.
    pub(crate) returned: Arc<Mutex<Freed>>,
    /// Units that were given back, and are not free yet.
    pub(crate) waiting: [u64; CLASSES],
    /// How often a map got a reference to data that was given up with a device.
    pub(crate) lost_references: u64,
    contradiction: Option<String>,
    /// Units that one reference has alone since the last checkpoint, each with the number of this event. An interruption
    /// may bring the other reference back, and requests that began before may still use it, so nothing is overwritten in
    /// them.
    contested: [AddressMap<Unit, u64>; 2],
    contests: u64,
    left: Vec<(SlabKind, Unit, u64)>,
    /// The regions that are being written, and what is copied to stale copies.
    pub(crate) mirrors: Regions,
    /// Bytes of the counts in memory.
    pub(crate) counts_bytes: usize,
    /// How often counts were removed from memory.
    pub(crate) evictions: u64,
    pub(crate) checksums: Checksums,
    pub(crate) tiering: Tiering,
}

/// A slab that was assigned to slots, which the journal must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) slab: u32,
    pub(crate) class: Class,
    pub(crate) copies: Copies,
}

/// Returns a slab whose counts are in memory.
fn loaded(slabs: &mut [Option<Slab>], number: u32) -> (&mut SlabPart, &mut Counts) {
    let slab = slabs[number as usize].as_mut().expect("the slab of a reference");
    (&mut slab.part, slab.counts.as_mut().expect("the caller has loaded the counts"))
}

const fn at(kind: SlabKind) -> usize {
    kind.is_data() as usize
}

impl Space {
    /// Creates the space of devices without slabs.
    pub(crate) fn new(shape: Shape, members: Vec<Member>) -> Self {
        Self {
            shape,
            members,
            slabs: vec![None],
            free_numbers: BTreeSet::new(),
            changed_rows: BTreeSet::new(),
            row_places: vec![0; ROW_PAGES_MAX / 8],
            unassigned: Vec::new(),
            is_reusing: false,
            current: BTreeMap::new(),
            free_units: [0; CLASSES],
            freed: Vec::new(),
            returned: Arc::default(),
            waiting: [0; CLASSES],
            lost_references: 0,
            contradiction: None,
            contested: Default::default(),
            contests: 0,
            left: Vec::new(),
            mirrors: Regions::default(),
            counts_bytes: 0,
            evictions: 0,
            checksums: Checksums::default(),
            tiering: Tiering::default(),
        }
    }

    /// Adds the slabs of a page of rows that was read from a device.
    pub(crate) fn load_rows(&mut self, page: u32, rows: &RowsPage) -> Result<(), String> {
        for (number, row) in (page * ROWS as u32..).zip(&rows.rows) {
            if row.kind == 0 {
                continue;
            }
            let kind =
                SlabKind::of(row.kind).ok_or_else(|| format!("slab {number} has no kind"))?;
            let usable = self.shape.usable(kind);
            let free = usable.checked_sub(row.used.get());
            let free = free.ok_or_else(|| format!("slab {number} uses more than it has"))?;
            let is_lost = row.copies == 0 && kind.is_data() && free == 0 && row.stale == 0;
            let is_possible = number != 0
                && (is_lost || (1..=COPIES_MAX as u8).contains(&row.copies))
                && (1..=MIRROR_MAX).contains(&row.wanted)
                && row.stale >> row.copies == 0
                && (is_lost || row.stale != (1 << row.copies) - 1)
                && (row.stale == 0) == (row.regions.get() == 0)
                && row.regions.get() & !self.shape.all_regions() == 0;
            if !is_possible {
                return Err(format!("slab {number} has a number or copies that it cannot have"));
            }
            let mut copies = Copies::default();
            for (at, slot) in row.slots[..usize::from(row.copies)].iter().enumerate() {
                let slot = Slot { device: slot.device, number: slot.number.get() };
                if copies.has(slot.device) {
                    return Err(format!("two copies of slab {number} are on one device"));
                }
                let member = self.members.get_mut(usize::from(slot.device));
                if !member.is_some_and(|member| member.free_slots.remove(&slot.number)) {
                    return Err(format!(
                        "slab {number} is outside of its device, or in the slot of another one"
                    ));
                }
                copies.push(slot, row.stale >> at & 1 == 1);
            }
            let at = number as usize;
            if self.slabs.len() <= at {
                self.slabs.resize_with(at + 1, || None);
            }
            let class = Class::of(kind, row.wanted);
            let regions = row.regions.get();
            let part = SlabPart::new(class, copies, regions, free, row.places);
            self.slabs[at] = Some(Slab { part, counts: None });
            self.free_units[class.index()] += u64::from(free);
        }
        Ok(())
    }

    /// Ends the loading of rows.
    pub(crate) fn loaded_rows(&mut self) {
        let unused = |&number: &u32| self.slabs[number as usize].is_none();
        self.free_numbers = (1..self.slabs.len() as u32).filter(unused).collect();
    }

    pub(crate) fn set_row_places(&mut self, places: &[u8]) {
        self.row_places.copy_from_slice(places);
    }

    pub(crate) fn row_places(&self) -> &[u8] {
        &self.row_places
    }

    /// Returns the numbers of all slabs of chunks, or of pages.
    pub(crate) fn slabs_of(&self, kind: SlabKind) -> Vec<u32> {
        let numbers = 1..self.slabs.len() as u32;
        let is_wanted = |&number: &u32| {
            self.slab(number).is_some_and(|slab| slab.kind().is_data() == kind.is_data())
        };
        numbers.filter(is_wanted).collect()
    }

    #[inline]
    pub(crate) fn slab(&self, number: u32) -> Option<&SlabPart> {
        Some(&self.slabs.get(number as usize)?.as_ref()?.part)
    }

    /// Returns the places of the pages of counts of a slab.
    pub(crate) fn counts_places(&self, number: u32) -> Vec<Place> {
        let Some(slab) = self.slab(number) else { return Vec::new() };
        let pages = 0..self.shape.counts_pages(slab.kind());
        pages.map(|page| self.counts_place(number, slab, page)).collect()
    }

    fn counts_place(&self, number: u32, slab: &SlabPart, page: u32) -> Place {
        let place = bit(&slab.places, page as usize);
        self.place_in(number, slab, (2 * u64::from(page) + u64::from(place)) * PAGE as u64)
    }

    /// Returns the place at an offset in a slab.
    #[inline]
    pub(crate) fn place_in(&self, number: u32, slab: &SlabPart, offset: u64) -> Place {
        let written = slab.copies.iter().filter(|(slot, _)| self.is_written(slot.device));
        let written = written.fold(0, |written, (slot, _)| written | 1 << slot.device);
        let has_checksums =
            slab.kind() == SlabKind::Checked && offset >= self.shape.head(SlabKind::Checked);
        Place { slab: number, offset, copies: slab.copies, written, has_checksums }
    }

    /// Adds the counts that were read from a device, unless the slab has ended meanwhile.
    pub(crate) fn load_counts(&mut self, number: u32, pages: &[CountsPage]) -> Result<(), String> {
        let shape = self.shape;
        let slab = self.slabs.get_mut(number as usize).and_then(Option::as_mut);
        let Some(slab) = slab.filter(|slab| slab.counts.is_none()) else { return Ok(()) };
        let mut counts = Counts::new(&shape, slab.part.kind());
        let read = pages.iter().flat_map(|page| page.counts.iter().map(|count| count.get()));
        for (count, read) in counts.counts.iter_mut().zip(read) {
            *count = read;
        }
        counts.used = counts.counts.iter().filter(|&&count| count > 0).count() as u32;
        let free = (0..counts.counts.len() as u32).filter(|&index| counts.is_free(index)).count();
        let expected = slab.part.free;
        if free != expected as usize {
            return Err(format!(
                "slab {number} has {free} free units, and its row says {expected}"
            ));
        }
        self.counts_bytes += counts.byte_count();
        slab.counts = Some(counts);
        Ok(())
    }

    /// Notes that a slab has ended, and its counts are no longer in memory.
    pub(crate) fn forget_counts(&mut self, slab: &Slab) {
        self.counts_bytes -= slab.counts.as_ref().map_or(0, Counts::byte_count);
    }

    /// Removes counts of chunks from memory that the last checkpoint has, until all counts have no more than these bytes.
    pub(crate) fn evict_counts(&mut self, bytes: usize) {
        let current: BTreeSet<u32> = self.current.values().copied().collect();
        for number in 1..self.slabs.len() as u32 {
            if self.counts_bytes <= bytes {
                break;
            }
            if current.contains(&number) || self.mirrors.has_pass(number) {
                continue;
            }
            let Some(Slab { part, counts }) = &mut self.slabs[number as usize] else { continue };
            let usable = self.shape.usable(part.kind());
            // No unit is taken or given back without being free.
            let is_idle =
                |counts: &Counts| counts.changed.is_empty() && counts.used + part.free == usable;
            if part.kind().is_data() && counts.as_ref().is_some_and(is_idle) {
                self.counts_bytes -= counts.take().map_or(0, |counts| counts.byte_count());
                self.evictions += 1;
            }
        }
    }

    /// Returns the bytes of the counts of so many slabs of data.
    pub(crate) const fn bytes_of_counts(&self, slabs: usize) -> usize {
        let units = self.shape.units(SlabKind::Data) as usize;
        slabs * (units * size_of::<u16>() + units.div_ceil(8))
    }

    /// Returns whether a slab exists, and its counts are not in memory.
    pub(crate) fn lacks_counts(&self, number: u32) -> bool {
        self.slab(number).is_some() && !self.has_counts(number)
    }

    /// Returns whether the counts of a slab are in memory.
    pub(crate) fn has_counts(&self, number: u32) -> bool {
        self.slabs
            .get(number as usize)
            .and_then(Option::as_ref)
            .is_some_and(|slab| slab.counts.is_some())
    }

    /// Returns the place of a unit.
    #[inline]
    pub(crate) fn place(&self, kind: SlabKind, unit: Unit) -> Option<Place> {
        let slab = self.slab(unit.slab).filter(|slab| slab.kind().is_data() == kind.is_data())?;
        let offset = u64::from(unit.index) << self.shape.unit_shift(kind);
        Some(self.place_in(unit.slab, slab, offset))
    }

    /// Returns the number of units of a slab that are not free.
    #[cfg(test)]
    pub(crate) fn used(&self, number: u32) -> u32 {
        self.slab(number).map_or(0, |slab| self.shape.usable(slab.kind()) - slab.free)
    }

    /// Returns the reference count of a unit, if it is in memory.
    #[inline]
    pub(crate) fn count(&self, unit: Unit) -> Option<u16> {
        let slab = self.slabs.get(unit.slab as usize)?.as_ref()?;
        slab.counts.as_ref()?.counts.get(unit.index as usize).copied()
    }

    /// Adds one reference. The counts of the slab are in memory.
    pub(crate) fn add(&mut self, unit: Unit) {
        let Some((slab, counts)) = self.counted(unit) else { return };
        if slab.is_lost() {
            self.lost_references += 1;
            return;
        }
        let was_free = counts.is_free(unit.index);
        let count = &mut counts.counts[unit.index as usize];
        let Some(more) = count.checked_add(1) else { return self.contradict(unit) };
        *count = more;
        counts.used += u32::from(more == 1);
        counts.set_held(unit.index, false);
        counts.changed.insert(unit.index / COUNTS as u32);
        if was_free {
            slab.free -= 1;
            self.free_units[slab.class.index()] -= 1;
        }
        self.changed_rows.insert(unit.slab / ROWS as u32);
    }

    /// Removes one reference. Returns whether it was the last one: then the unit is given back.
    pub(crate) fn remove(&mut self, unit: Unit) -> bool {
        let Some((slab, counts)) = self.counted(unit) else { return false };
        if slab.is_lost() {
            return false;
        }
        let count = &mut counts.counts[unit.index as usize];
        let Some(fewer) = count.checked_sub(1) else {
            self.contradict(unit);
            return false;
        };
        *count = fewer;
        counts.changed.insert(unit.index / COUNTS as u32);
        let class = slab.class;
        let kind = class.kind();
        let is_last = fewer == 0;
        if is_last {
            counts.used -= 1;
            counts.set_held(unit.index, true);
            self.freed.push((kind, unit));
            self.waiting[class.index()] += 1;
        }
        self.changed_rows.insert(unit.slab / ROWS as u32);
        if fewer == 1 {
            self.contest(kind, unit);
        }
        is_last
    }

    /// Marks a unit as contested until a checkpoint is complete and its period has ended.
    pub(crate) fn contest(&mut self, kind: SlabKind, unit: Unit) {
        self.contested[at(kind)].insert(unit, self.contests);
        self.left.push((kind, unit, self.contests));
        self.contests += 1;
    }

    /// Returns the counts of a unit that a page or a record names.
    fn counted(&mut self, unit: Unit) -> Option<(&mut SlabPart, &mut Counts)> {
        let shape = self.shape;
        let is_unit = self.has_counts(unit.slab)
            && self.slab(unit.slab).is_some_and(|slab| {
                (shape.first_unit(slab.kind())..shape.units(slab.kind())).contains(&unit.index)
            });
        if !is_unit {
            self.contradict(unit);
            return None;
        }
        Some(loaded(&mut self.slabs, unit.slab))
    }

    /// Notes that metadata contradicts itself. No checkpoint is written after that.
    fn contradict(&mut self, unit: Unit) {
        let Unit { slab, index } = unit;
        let what = format!("the references to unit {index} of slab {slab} contradict each other");
        self.contradiction.get_or_insert(what);
    }

    /// Returns the first contradiction that was found.
    pub(crate) fn contradiction(&self) -> Option<&str> {
        self.contradiction.as_deref()
    }

    /// Takes free chunks that follow each other for volumes of this class: at least one, and as many as there are, up to
    /// `most`. `pages` is the number of pages that must stay available.
    pub(crate) fn take_chunks(
        &mut self,
        (class, stripe): (Class, u8),
        most: u32,
        pages: u64,
    ) -> Result<(Unit, u32, Option<Assigned>), Blocked> {
        let (slab, assigned) = self.slab_with_free((class, stripe), pages)?;
        let first = self.take_in(slab);
        let (part, counts) = loaded(&mut self.slabs, slab);
        let mut count = 1;
        while count < most
            && part.free > 0
            && first + count < counts.counts.len() as u32
            && counts.is_free(first + count)
        {
            counts.set_held(first + count, true);
            part.free -= 1;
            count += 1;
        }
        counts.cursor = first + count;
        self.free_units[part.class.index()] -= u64::from(count - 1);
        Ok((Unit { slab, index: first }, count, assigned))
    }

    /// Takes a free page.
    pub(crate) fn take_page(&mut self) -> Result<(Unit, Option<Assigned>), Blocked> {
        let (slab, assigned) = self.slab_with_free((Class::Pages, 0), 0)?;
        let index = self.take_in(slab);
        Ok((Unit { slab, index }, assigned))
    }

    fn take_in(&mut self, slab: u32) -> u32 {
        let (part, counts) = loaded(&mut self.slabs, slab);
        let index = counts.find().expect("the slab has a free unit");
        counts.set_held(index, true);
        part.free -= 1;
        self.free_units[part.class.index()] -= 1;
        index
    }

    /// Returns units that were taken and got no reference. No request to them is in flight.
    pub(crate) fn untake(&mut self, unit: Unit) {
        let (part, counts) = loaded(&mut self.slabs, unit.slab);
        counts.set_held(unit.index, false);
        part.free += 1;
        self.free_units[part.class.index()] += 1;
    }

    /// Returns whether units or slots were given back that are not free yet.
    pub(crate) fn is_returning(&self) -> bool {
        self.waiting != [0; CLASSES] || self.is_returning_slots()
    }

    /// Returns whether slots were given back that are not free yet.
    pub(crate) const fn is_returning_slots(&self) -> bool {
        !self.unassigned.is_empty() || self.is_reusing
    }

    /// Returns whether chunks were given back that are not free yet.
    pub(crate) fn is_data_waiting(&self) -> bool {
        let pages = Class::Pages.index();
        self.waiting.iter().enumerate().any(|(class, &units)| class != pages && units > 0)
    }

    /// Returns whether a checkpoint makes units free, or units that can be overwritten.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_returning() || !self.contested[at(SlabKind::Data)].is_empty()
    }

    /// Returns whether a unit with one reference may still have another one on the devices.
    #[inline]
    pub(crate) fn is_contested(&self, kind: SlabKind, unit: Unit) -> bool {
        let contested = &self.contested[at(kind)];
        !contested.is_empty() && contested.contains_key(&unit)
    }

    /// Creates a slab in slots that are not free any more.
    pub(crate) fn insert_slab(&mut self, number: u32, class: Class, copies: Copies) {
        let at = number as usize;
        if self.slabs.len() <= at {
            self.free_numbers.extend(self.slabs.len() as u32..number);
            self.slabs.resize_with(at + 1, || None);
        }
        self.free_numbers.remove(&number);
        let kind = class.kind();
        let mut counts = Counts::new(&self.shape, kind);
        counts.changed = (0..self.shape.counts_pages(kind)).collect();
        let free = self.shape.usable(kind);
        let regions = if copies.stale() == 0 { 0 } else { 1 };
        let part = SlabPart::new(class, copies, regions, free, [0; 20]);
        self.counts_bytes += counts.byte_count();
        self.slabs[at] = Some(Slab { part, counts: Some(counts) });
        self.free_units[class.index()] += u64::from(free);
        self.changed_rows.insert(number / ROWS as u32);
    }

    /// Makes units free whose periods have ended.
    pub(crate) fn reclaim(&mut self) {
        let Freed { units, alone } = std::mem::take(&mut *self.returned.lock());
        for (kind, unit, number) in alone {
            let contested = &mut self.contested[at(kind)];
            // A later event has another number.
            if contested.get(&unit) == Some(&number) {
                contested.remove(&unit);
            }
        }
        for (kind, unit) in units {
            self.untake(unit);
            let Some(slab) = self.slab(unit.slab) else { continue };
            let (class, is_unused) = (slab.class, slab.free == self.shape.usable(kind));
            self.waiting[class.index()] -= 1;
            let is_current = self.current.values().any(|&current| current == unit.slab);
            if is_unused && !is_current && !self.mirrors.has_pass(unit.slab) {
                self.unassign(unit.slab);
            }
        }
    }

    /// Returns the units that were given back, or left to one reference, since the last checkpoint.
    pub(crate) fn take_freed(&mut self) -> Freed {
        Freed { units: std::mem::take(&mut self.freed), alone: std::mem::take(&mut self.left) }
    }

    /// Returns everything that a checkpoint must write: pages of counts, and pages of rows of slabs with their offsets, each to
    /// the place that is not valid now, and pages of checksums. From now on, these places are the valid ones.
    pub(crate) fn capture(
        &mut self,
        pool: u64,
        generation: u64,
    ) -> (Vec<(Place, Unsealed)>, Vec<RowsWrite>) {
        let mut writes = Vec::new();
        let header = |kind: PageKind, object: u64, page: u32| PageHeader {
            kind: kind as u8,
            pool: pool.into(),
            address: (object << 32 | u64::from(page)).into(),
            generation: generation.into(),
            ..PageHeader::new_zeroed()
        };
        for number in 1..self.slabs.len() as u32 {
            let Some(slab) = &mut self.slabs[number as usize] else { continue };
            let Some(counts) = &mut slab.counts else { continue };
            let changed = std::mem::take(&mut counts.changed);
            if changed.is_empty() {
                continue;
            }
            let mut pages = Vec::new();
            for page in changed {
                let mut bytes = Box::new(CountsPage::new_zeroed());
                bytes.header = header(PageKind::Counts, number.into(), page);
                let counts = &counts.counts[page as usize * COUNTS..];
                for (to, count) in bytes.counts.iter_mut().zip(counts) {
                    *to = (*count).into();
                }
                flip(&mut slab.part.places, page as usize);
                pages.push((page, Unsealed::Counts(bytes)));
            }
            self.changed_rows.insert(number / ROWS as u32);
            let slab = &self.slabs[number as usize].as_ref().expect("it was there").part;
            let pages = pages.into_iter();
            writes
                .extend(pages.map(|(page, bytes)| (self.counts_place(number, slab, page), bytes)));
        }
        writes.extend(self.capture_checksums(pool, generation));
        for (place, _) in &writes {
            self.note_write(place.slab, place.offset, PAGE as u64);
        }
        let changed = std::mem::take(&mut self.changed_rows);
        let rows = changed.into_iter().map(|page| {
            let mut bytes = RowsPage::new_zeroed();
            bytes.header = header(PageKind::Rows, 0, page);
            for (number, row) in (page * ROWS as u32..).zip(&mut bytes.rows) {
                let slab = self.slabs.get(number as usize).and_then(Option::as_ref);
                if let Some(slab) = slab {
                    *row = self.row(slab);
                }
            }
            bytes.seal();
            let place = flip(&mut self.row_places, page as usize);
            (Layout::rows(page, place), Buffer::copy_of(bytes.as_bytes()))
        });
        let rows = rows.collect();
        (writes, rows)
    }

    fn row(&self, Slab { part, counts }: &Slab) -> SlabRow {
        // Units that are held have no reference, and are free after an interruption.
        let used = match counts {
            Some(counts) => counts.used,
            None => self.shape.usable(part.kind()) - part.free,
        };
        let mut copies = part.copies;
        if let Some(device) = part.dropping {
            copies.remove(device);
        }
        let mut slots = [SlotRow::new_zeroed(); COPIES_MAX];
        for (row, (slot, _)) in slots.iter_mut().zip(copies.iter()) {
            *row = SlotRow { number: slot.number.into(), device: slot.device };
        }
        SlabRow {
            kind: part.kind() as u8,
            wanted: part.class.copies().unwrap_or(1),
            copies: copies.len() as u8,
            stale: copies.stale(),
            used: used.into(),
            places: part.places,
            slots,
            regions: if copies.stale() == 0 { 0 } else { part.regions }.into(),
            reserved: [0; 8],
        }
    }

    /// Notes that all pages of rows must be written.
    pub(crate) fn change_all_rows(&mut self) {
        self.changed_rows.extend(0..self.row_count().div_ceil(ROWS as u32));
    }

    /// Returns the number of rows of slabs that may be in use.
    pub(crate) const fn row_count(&self) -> u32 {
        // Number 0 is never used. Before the first slab, no page was written.
        if self.slabs.len() > 1 { self.slabs.len() as u32 } else { 0 }
    }

    /// Returns the pages of counts of a slab that the last checkpoint has, as ranges of bytes.
    pub(crate) fn written_counts(&self, number: u32) -> Vec<Range<u64>> {
        let slab = self.slabs.get(number as usize).and_then(Option::as_ref);
        let Some(Slab { part, counts: Some(counts) }) = slab else { return Vec::new() };
        let pages = 0..self.shape.counts_pages(part.kind());
        let written = pages.filter(|page| !counts.changed.contains(page));
        let places = written.map(|page| self.counts_place(number, part, page).offset);
        places.map(|offset| offset..offset + PAGE as u64).collect()
    }

    /// Returns the units of a slab in a range of its bytes that have references, as ranges of bytes. Its counts are in memory.
    pub(crate) fn used_in(&self, number: u32, window: Range<u64>) -> Vec<Range<u64>> {
        let slab = self.slabs.get(number as usize).and_then(Option::as_ref);
        let Some(Slab { part, counts: Some(counts) }) = slab else { return Vec::new() };
        let shift = self.shape.unit_shift(part.kind());
        let first = (window.start >> shift).max(self.shape.first_unit(part.kind()).into());
        let mut used: Vec<Range<u64>> = Vec::new();
        for index in first..window.end.div_ceil(1 << shift) {
            if counts.counts.get(index as usize).is_none_or(|&count| count == 0) {
                continue;
            }
            let (start, end) = (index << shift, (index + 1) << shift);
            match used.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => used.push(start..end),
            }
        }
        used
    }
}

impl SlabPart {
    const fn new(class: Class, copies: Copies, regions: u64, free: u32, places: [u8; 20]) -> Self {
        Self { class, copies, regions, dropping: None, free, places, heat: AtomicU32::new(0) }
    }

    #[inline]
    pub(crate) const fn kind(&self) -> SlabKind {
        self.class.kind()
    }

    /// Returns whether its data was given up with a device.
    pub(crate) const fn is_lost(&self) -> bool {
        self.copies.len() == 0
    }
}
