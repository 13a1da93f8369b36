//! The space of a pool: slabs, the reference counts of their units, and which units are free.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use sarsen_block::Buffer;
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::devices::Place;
use crate::error::{Blocked, Load};
use crate::format::{
    COUNTS, CountsPage, PAGE, PageHeader, PageKind, ROWS, RowsPage, Sealed as _, SlabRow, bit, flip,
};
use crate::grace::Freed;
use crate::shape::{Layout, Shape, SlabKind, Unit};

/// A slab that has units in use, or that had some.
pub(crate) struct Slab {
    part: SlabPart,
    /// The reference counts, if they are in memory.
    counts: Option<Counts>,
}

/// The part of a slab that is always in memory.
pub(crate) struct SlabPart {
    pub(crate) kind: SlabKind,
    pub(crate) device: u16,
    pub(crate) slot: u32,
    /// Units that are free.
    free: u32,
    /// The valid place of each page of counts.
    places: [u8; 20],
}

struct Counts {
    counts: Vec<u16>,
    /// Units that are not free although their count is 0: the first ones, which have the counts; units of writes that have
    /// not ended; and units that were given back and may still be read.
    held: Vec<u64>,
    /// Pages of counts that have changed since the last checkpoint.
    changed: BTreeSet<u32>,
    /// Where the search for a free unit continues.
    cursor: u32,
}

impl Counts {
    fn new(shape: &Shape, kind: SlabKind) -> Self {
        let units = shape.units(kind);
        let mut held = vec![0_u64; units.div_ceil(64) as usize];
        for index in 0..shape.first_unit(kind) {
            held[index as usize / 64] |= 1 << (index % 64);
        }
        let cursor = shape.first_unit(kind);
        Self { counts: vec![0; units as usize], held, changed: BTreeSet::new(), cursor }
    }

    fn is_held(&self, index: u32) -> bool {
        self.held[index as usize / 64] >> (index % 64) & 1 == 1
    }

    fn set_held(&mut self, index: u32, held: bool) {
        let word = &mut self.held[index as usize / 64];
        *word = *word & !(1 << (index % 64)) | u64::from(held) << (index % 64);
    }

    fn is_free(&self, index: u32) -> bool {
        self.counts[index as usize] == 0 && !self.is_held(index)
    }

    /// Returns the next free unit from the cursor on, around the end.
    fn find(&mut self) -> Option<u32> {
        let end = self.counts.len() as u32;
        let found = (self.cursor..end).chain(0..self.cursor).find(|&index| self.is_free(index))?;
        self.cursor = found;
        Some(found)
    }
}

/// See the module.
pub(crate) struct Space {
    pub(crate) shape: Shape,
    pub(crate) layouts: Vec<Layout>,
    /// By number. Number 0 is never used.
    slabs: Vec<Option<Slab>>,
    /// Numbers of slabs that can be used again.
    free_numbers: BTreeSet<u32>,
    /// Slots without a slab, by device.
    free_slots: Vec<BTreeSet<u32>>,
    /// Pages of rows that have changed since the last checkpoint, by device.
    changed_rows: BTreeSet<(u16, u32)>,
    /// The valid place of each page of rows, by device.
    row_places: Vec<Vec<u8>>,
    /// Slabs that ended since the last checkpoint: number, device, slot.
    unassigned: Vec<(u32, u16, u32)>,
    /// The slab in which the search for each kind of unit begins.
    current: [u32; 2],
    free_units: [u64; 2],
    /// Units that were given back since the last checkpoint.
    freed: Vec<(SlabKind, Unit)>,
    /// Units that are free when a checkpoint is complete and its period has ended.
    pub(crate) returned: Arc<Mutex<Freed>>,
    /// Units that were given back, and are not free yet.
    waiting: [u64; 2],
    contradiction: Option<String>,
    /// Units that one reference has alone since the last checkpoint, each with the number of this event. An interruption
    /// may bring the other reference back, and requests that began before may still use it, so nothing is overwritten in
    /// them.
    contested: [HashMap<Unit, u64>; 2],
    contests: u64,
    left: Vec<(SlabKind, Unit, u64)>,
}

/// A slab that was assigned to a slot, which the journal must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    pub(crate) slab: u32,
    pub(crate) kind: SlabKind,
    pub(crate) device: u16,
    pub(crate) slot: u32,
}

/// Returns a slab whose counts are in memory.
fn loaded(slabs: &mut [Option<Slab>], number: u32) -> (&mut SlabPart, &mut Counts) {
    let slab = slabs[number as usize].as_mut().expect("the slab of a reference");
    (&mut slab.part, slab.counts.as_mut().expect("the caller has loaded the counts"))
}

const fn at(kind: SlabKind) -> usize {
    kind as usize - 1
}

impl Space {
    /// Creates the space of devices without slabs.
    pub(crate) fn new(shape: Shape, layouts: Vec<Layout>) -> Self {
        Self {
            shape,
            slabs: vec![None],
            free_numbers: BTreeSet::new(),
            free_slots: layouts.iter().map(|layout| (0..layout.slots).collect()).collect(),
            changed_rows: BTreeSet::new(),
            row_places: layouts.iter().map(|_| vec![0; crate::format::ROW_PAGES_MAX / 8]).collect(),
            layouts,
            unassigned: Vec::new(),
            current: [0; 2],
            free_units: [0; 2],
            freed: Vec::new(),
            returned: Arc::default(),
            waiting: [0; 2],
            contradiction: None,
            contested: Default::default(),
            contests: 0,
            left: Vec::new(),
        }
    }

    /// Adds the slabs of a page of rows that was read from a device.
    pub(crate) fn load_rows(
        &mut self,
        device: u16,
        page: u32,
        rows: &RowsPage,
    ) -> Result<(), String> {
        for (slot, row) in (page * ROWS as u32..).zip(&rows.rows) {
            let number = row.slab.get();
            if number == 0 {
                continue;
            }
            let kind =
                SlabKind::of(row.kind).ok_or_else(|| format!("slab {number} has no kind"))?;
            let usable = self.shape.usable(kind);
            let free = usable.checked_sub(row.used.get());
            let free = free.ok_or_else(|| format!("slab {number} uses more than it has"))?;
            if number > self.numbers_max() || row.copies != 1 || row.copy != 0 {
                return Err(format!("slab {number} has a number or copies that it cannot have"));
            }
            if !self.free_slots[usize::from(device)].remove(&slot) {
                return Err(format!("slab {number} is outside of its device"));
            }
            let number = number as usize;
            if self.slabs.len() <= number {
                self.slabs.resize_with(number + 1, || None);
            }
            if self.slabs[number].is_some() {
                return Err(format!("slab {number} is in two slots"));
            }
            let part = SlabPart { kind, device, slot, free, places: row.places };
            self.slabs[number] = Some(Slab { part, counts: None });
            self.free_units[at(kind)] += u64::from(free);
        }
        Ok(())
    }

    /// Returns the highest number of a slab: the lowest free one is used.
    fn numbers_max(&self) -> u32 {
        self.layouts.iter().map(|layout| layout.slots).sum()
    }

    /// Ends the loading of rows.
    pub(crate) fn loaded_rows(&mut self) {
        let unused = |&number: &u32| self.slabs[number as usize].is_none();
        self.free_numbers = (1..self.slabs.len() as u32).filter(unused).collect();
    }

    pub(crate) fn set_row_places(&mut self, device: usize, places: &[u8]) {
        self.row_places[device].copy_from_slice(places);
    }

    pub(crate) fn row_places(&self, device: usize) -> &[u8] {
        &self.row_places[device]
    }

    /// Returns the numbers of all slabs of a kind.
    pub(crate) fn slabs_of(&self, kind: SlabKind) -> Vec<u32> {
        let numbers = 1..self.slabs.len() as u32;
        numbers.filter(|&number| self.slab(number).is_some_and(|slab| slab.kind == kind)).collect()
    }

    #[inline]
    pub(crate) fn slab(&self, number: u32) -> Option<&SlabPart> {
        Some(&self.slabs.get(number as usize)?.as_ref()?.part)
    }

    /// Returns the places of the pages of counts of a slab.
    pub(crate) fn counts_places(&self, number: u32) -> Vec<Place> {
        let Some(slab) = self.slab(number) else { return Vec::new() };
        let pages = 0..self.shape.counts_pages(slab.kind);
        pages.map(|page| self.counts_place(slab, page)).collect()
    }

    fn counts_place(&self, slab: &SlabPart, page: u32) -> Place {
        let place = bit(&slab.places, page as usize);
        let offset = (2 * u64::from(page) + u64::from(place)) * PAGE as u64;
        Place { device: slab.device.into(), offset: self.slab_offset(slab) + offset }
    }

    fn slab_offset(&self, slab: &SlabPart) -> u64 {
        self.layouts[usize::from(slab.device)].slab(&self.shape, slab.slot)
    }

    /// Adds the counts that were read from a device.
    pub(crate) fn load_counts(&mut self, number: u32, pages: &[CountsPage]) -> Result<(), String> {
        let shape = self.shape;
        let slab = self.slabs.get_mut(number as usize).and_then(Option::as_mut);
        let slab = slab.ok_or_else(|| format!("slab {number} does not exist"))?;
        if slab.counts.is_some() {
            return Ok(());
        }
        let mut counts = Counts::new(&shape, slab.part.kind);
        let read = pages.iter().flat_map(|page| page.counts.iter().map(|count| count.get()));
        for (count, read) in counts.counts.iter_mut().zip(read) {
            *count = read;
        }
        let free = (0..counts.counts.len() as u32).filter(|&index| counts.is_free(index)).count();
        let expected = slab.part.free;
        if free != expected as usize {
            return Err(format!(
                "slab {number} has {free} free units, and its row says {expected}"
            ));
        }
        slab.counts = Some(counts);
        Ok(())
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
        let slab = self.slab(unit.slab).filter(|slab| slab.kind == kind)?;
        let offset =
            self.slab_offset(slab) + (u64::from(unit.index) << self.shape.unit_shift(kind));
        Some(Place { device: slab.device.into(), offset })
    }

    /// Returns the number of units of a slab that are not free.
    #[cfg(test)]
    pub(crate) fn used(&self, number: u32) -> u32 {
        self.slab(number).map_or(0, |slab| self.shape.usable(slab.kind) - slab.free)
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
        let was_free = counts.is_free(unit.index);
        let count = &mut counts.counts[unit.index as usize];
        let Some(more) = count.checked_add(1) else { return self.contradict(unit) };
        *count = more;
        counts.set_held(unit.index, false);
        counts.changed.insert(unit.index / COUNTS as u32);
        let (kind, row) = (slab.kind, (slab.device, slab.slot / ROWS as u32));
        if was_free {
            slab.free -= 1;
            self.free_units[at(kind)] -= 1;
        }
        self.changed_rows.insert(row);
    }

    /// Removes one reference. Returns whether it was the last one: then the unit is given back.
    pub(crate) fn remove(&mut self, unit: Unit) -> bool {
        let Some((slab, counts)) = self.counted(unit) else { return false };
        let count = &mut counts.counts[unit.index as usize];
        let Some(fewer) = count.checked_sub(1) else {
            self.contradict(unit);
            return false;
        };
        *count = fewer;
        counts.changed.insert(unit.index / COUNTS as u32);
        let (kind, row) = (slab.kind, (slab.device, slab.slot / ROWS as u32));
        let is_last = fewer == 0;
        if is_last {
            counts.set_held(unit.index, true);
            self.freed.push((kind, unit));
            self.waiting[at(kind)] += 1;
        }
        self.changed_rows.insert(row);
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
                (shape.first_unit(slab.kind)..shape.units(slab.kind)).contains(&unit.index)
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

    /// Takes free chunks that follow each other: at least one, and as many as there are, up to `most`. `pages` is the number
    /// of pages that must stay available.
    pub(crate) fn take_chunks(
        &mut self,
        most: u32,
        pages: u64,
    ) -> Result<(Unit, u32, Option<Assigned>), Blocked> {
        let (slab, assigned) = self.slab_with_free(SlabKind::Data, pages)?;
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
        self.free_units[at(SlabKind::Data)] -= u64::from(count - 1);
        Ok((Unit { slab, index: first }, count, assigned))
    }

    /// Takes a free page.
    pub(crate) fn take_page(&mut self) -> Result<(Unit, Option<Assigned>), Blocked> {
        let (slab, assigned) = self.slab_with_free(SlabKind::Pages, 0)?;
        let index = self.take_in(slab);
        Ok((Unit { slab, index }, assigned))
    }

    fn take_in(&mut self, slab: u32) -> u32 {
        let (part, counts) = loaded(&mut self.slabs, slab);
        let index = counts.find().expect("the slab has a free unit");
        counts.set_held(index, true);
        part.free -= 1;
        let kind = part.kind;
        self.free_units[at(kind)] -= 1;
        index
    }

    /// Returns units that were taken and got no reference. No request to them is in flight.
    pub(crate) fn untake(&mut self, kind: SlabKind, unit: Unit) {
        let (part, counts) = loaded(&mut self.slabs, unit.slab);
        counts.set_held(unit.index, false);
        part.free += 1;
        self.free_units[at(kind)] += 1;
    }

    /// Returns a slab with free units, and its assignment if it is new.
    fn slab_with_free(
        &mut self,
        kind: SlabKind,
        pages: u64,
    ) -> Result<(u32, Option<Assigned>), Blocked> {
        self.reclaim();
        let current = self.current[at(kind)];
        if self.slab(current).is_some_and(|slab| slab.kind == kind && slab.free > 0) {
            return Ok((current, None));
        }
        let with_free = (1..self.slabs.len() as u32).filter_map(|number| {
            let slab = self.slab(number).filter(|slab| slab.kind == kind && slab.free > 0)?;
            Some((slab.free, number))
        });
        let best = with_free.max();
        let is_roomy = best.is_some_and(|(free, _)| free >= self.shape.usable(kind) / 8);
        let may_assign = match kind {
            SlabKind::Pages => true,
            SlabKind::Data => {
                self.available_pages() >= pages + u64::from(self.shape.usable(SlabKind::Pages))
            }
        };
        if !is_roomy
            && may_assign
            && let Some(assigned) = self.assign(kind)
        {
            self.current[at(kind)] = assigned.slab;
            return Ok((assigned.slab, Some(assigned)));
        }
        let (_, number) = best.ok_or(Blocked::NoSpace)?;
        if !self.has_counts(number) {
            return Err(Blocked::Missing(vec![Load::Counts(number)]));
        }
        self.current[at(kind)] = number;
        Ok((number, None))
    }

    /// Returns the number of pages that could be used: free ones, and those of slots without a slab.
    pub(crate) fn available_pages(&self) -> u64 {
        let slots: usize = self.free_slots.iter().map(BTreeSet::len).sum();
        self.free_units[at(SlabKind::Pages)]
            + slots as u64 * u64::from(self.shape.usable(SlabKind::Pages))
    }

    /// Returns the number of free pages in slabs.
    pub(crate) const fn free_pages(&self) -> u64 {
        self.free_units[at(SlabKind::Pages)]
    }

    /// Returns the number of chunks if all slots were used for data.
    pub(crate) fn chunks(&self) -> u64 {
        let slots: u64 = self.layouts.iter().map(|layout| u64::from(layout.slots)).sum();
        slots * u64::from(self.shape.usable(SlabKind::Data))
    }

    /// Returns the number of chunks that are free or could be, if all slots without a slab were used for data.
    pub(crate) fn free_chunks(&self) -> u64 {
        let slots: usize = self.free_slots.iter().map(BTreeSet::len).sum();
        self.free_units[at(SlabKind::Data)]
            + slots as u64 * u64::from(self.shape.usable(SlabKind::Data))
    }

    /// Returns the number of chunks that were given back and are not free yet. A writer that needs them waits for that.
    pub(crate) fn returning_chunks(&self) -> u64 {
        let slots = self.unassigned.len() as u64;
        self.waiting[at(SlabKind::Data)] + slots * u64::from(self.shape.usable(SlabKind::Data))
    }

    /// Returns whether units or slots were given back that are not free yet.
    pub(crate) fn is_returning(&self) -> bool {
        self.waiting != [0; 2] || !self.unassigned.is_empty()
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

    /// Assigns a slab to a slot of the device that has the most unused ones.
    fn assign(&mut self, kind: SlabKind) -> Option<Assigned> {
        let devices = self.free_slots.iter().enumerate();
        let (device, slots) = devices.rev().max_by_key(|(_, slots)| slots.len())?;
        let slot = *slots.first()?;
        let slab = self.free_numbers.first().copied().unwrap_or(self.slabs.len() as u32);
        let assigned = Assigned { slab, kind, device: device as u16, slot };
        self.carry_out(assigned).ok()?;
        Some(assigned)
    }

    /// Carries out an assignment.
    pub(crate) fn carry_out(&mut self, assigned: Assigned) -> Result<(), Blocked> {
        let Assigned { slab: number, kind, device, slot } = assigned;
        if self.slab(number).is_some() {
            return Err(Blocked::Damaged(format!("slab {number} is assigned twice")));
        }
        let numbers_max = self.numbers_max();
        let slots = self.free_slots.get_mut(usize::from(device));
        if number == 0 || number > numbers_max || !slots.is_some_and(|slots| slots.remove(&slot)) {
            return Err(Blocked::Damaged(format!("slab {number} is assigned to a used slot")));
        }
        let number = number as usize;
        if self.slabs.len() <= number {
            self.free_numbers.extend(self.slabs.len() as u32..number as u32);
            self.slabs.resize_with(number + 1, || None);
        }
        self.free_numbers.remove(&(number as u32));
        let mut counts = Counts::new(&self.shape, kind);
        counts.changed = (0..self.shape.counts_pages(kind)).collect();
        let free = self.shape.usable(kind);
        let part = SlabPart { kind, device, slot, free, places: [0; 20] };
        self.slabs[number] = Some(Slab { part, counts: Some(counts) });
        self.free_units[at(kind)] += u64::from(free);
        self.changed_rows.insert((device, slot / ROWS as u32));
        Ok(())
    }

    /// Ends a slab without used units. Its slot and its number can be used again after the next checkpoint: until then, the
    /// last one has its row, and its counts must stay valid.
    fn unassign(&mut self, number: u32) {
        let Some(Slab { part, .. }) = self.slabs[number as usize].take() else { return };
        self.unassigned.push((number, part.device, part.slot));
        self.free_units[at(part.kind)] -= u64::from(part.free);
        self.changed_rows.insert((part.device, part.slot / ROWS as u32));
    }

    /// Returns the slabs that ended since the last checkpoint.
    pub(crate) fn take_unassigned(&mut self) -> Vec<(u32, u16, u32)> {
        std::mem::take(&mut self.unassigned)
    }

    /// Makes the slots and numbers of ended slabs usable.
    pub(crate) fn reuse(&mut self, unassigned: Vec<(u32, u16, u32)>) {
        for (number, device, slot) in unassigned {
            self.free_numbers.insert(number);
            self.free_slots[usize::from(device)].insert(slot);
        }
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
            self.untake(kind, unit);
            self.waiting[at(kind)] -= 1;
            let is_unused =
                self.slab(unit.slab).is_some_and(|slab| slab.free == self.shape.usable(kind));
            if is_unused && self.current[at(kind)] != unit.slab {
                self.unassign(unit.slab);
            }
        }
    }

    /// Returns the units that were given back, or left to one reference, since the last checkpoint.
    pub(crate) fn take_freed(&mut self) -> Freed {
        Freed { units: std::mem::take(&mut self.freed), alone: std::mem::take(&mut self.left) }
    }

    /// Returns everything that a checkpoint must write, each to the place that is not valid now. From now on, these places
    /// are the valid ones.
    pub(crate) fn capture(&mut self, pool: u64, generation: u64) -> Vec<(Place, Buffer)> {
        let mut writes = Vec::new();
        let header = |kind: PageKind, object: u64, page: u32| PageHeader {
            kind: kind as u8,
            pool: pool.into(),
            address: (object << 32 | u64::from(page)).into(),
            generation: generation.into(),
            ..PageHeader::new_zeroed()
        };
        for number in 1..self.slabs.len() {
            let Some(slab) = &mut self.slabs[number] else { continue };
            let Some(counts) = &mut slab.counts else { continue };
            let changed = std::mem::take(&mut counts.changed);
            if changed.is_empty() {
                continue;
            }
            let mut pages = Vec::new();
            for page in changed {
                let mut bytes = CountsPage::new_zeroed();
                bytes.header = header(PageKind::Counts, number as u64, page);
                let counts = counts.counts.iter().skip(page as usize * COUNTS);
                for (to, count) in bytes.counts.iter_mut().zip(counts) {
                    *to = (*count).into();
                }
                bytes.seal();
                flip(&mut slab.part.places, page as usize);
                pages.push((page, Buffer::copy_of(bytes.as_bytes())));
            }
            self.changed_rows.insert((slab.part.device, slab.part.slot / ROWS as u32));
            let slab = &self.slabs[number].as_ref().expect("it was there").part;
            writes.extend(
                pages.into_iter().map(|(page, bytes)| (self.counts_place(slab, page), bytes)),
            );
        }
        let mut by_page: std::collections::BTreeMap<(u16, u32), RowsPage> = Default::default();
        for &(device, page) in &self.changed_rows {
            let mut bytes = RowsPage::new_zeroed();
            bytes.header = header(PageKind::Rows, device.into(), page);
            by_page.insert((device, page), bytes);
        }
        for (number, slab) in self.slabs.iter().enumerate() {
            let Some(slab) = slab else { continue };
            let part = &slab.part;
            let Some(page) = by_page.get_mut(&(part.device, part.slot / ROWS as u32)) else {
                continue;
            };
            // Units that are held have no reference, and are free after an interruption.
            let used = match &slab.counts {
                Some(counts) => counts.counts.iter().filter(|&&count| count > 0).count() as u32,
                None => self.shape.usable(part.kind) - part.free,
            };
            page.rows[part.slot as usize % ROWS] = SlabRow {
                slab: (number as u32).into(),
                kind: part.kind as u8,
                copy: 0,
                copies: 1,
                reserved: 0,
                used: used.into(),
                places: part.places,
            };
        }
        self.changed_rows.clear();
        for ((device, page), mut bytes) in by_page {
            bytes.seal();
            let place = flip(&mut self.row_places[usize::from(device)], page as usize);
            let offset = self.layouts[usize::from(device)].rows(page, place);
            let place = Place { device: device.into(), offset };
            writes.push((place, Buffer::copy_of(bytes.as_bytes())));
        }
        writes
    }
}
