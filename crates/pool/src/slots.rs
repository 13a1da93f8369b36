//! The devices of a pool in its space: their slots, to which slabs are assigned, and which copies are complete.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::copies::{Copies, MIRROR_MAX, Slot, Standing};
use crate::error::{Blocked, Load};
use crate::format::ROWS;
use crate::members::Member;
use crate::shape::SlabKind;
use crate::space::{Assigned, Class, Slab, SlabPart, Space};
use crate::tiers::Tier;

/// The free slots of the devices that take slabs.
#[derive(Clone, Debug)]
struct FreeSlots(Vec<FreeOn>);

/// The free slots of a device.
#[derive(Clone, Copy, Debug)]
struct FreeOn {
    device: u8,
    is_online: bool,
    slots: u64,
}

impl FreeSlots {
    /// Returns the number of slabs with so many copies that fit, each on different devices, of which one is online.
    fn slabs(&self, copies: u64) -> u64 {
        let fits = |slabs: u64| {
            let slots: u64 = self.0.iter().map(|one| one.slots.min(slabs)).sum();
            slots >= copies * slabs
        };
        let online: u64 = self.0.iter().filter(|one| one.is_online).map(|one| one.slots).sum();
        let (mut low, mut high) = (0, online);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Takes the slots for a slab with so many copies: of the devices that have most of them.
    fn take(&mut self, copies: usize) {
        self.0.sort_by_key(|one| Reverse(one.slots));
        self.0.iter_mut().take(copies).for_each(|one| one.slots = one.slots.saturating_sub(1));
    }
}

/// Maximum number of copies that one checkpoint takes from slabs.
const DROPS: usize = 64;

impl Space {
    pub(crate) fn member(&self, device: u8) -> Option<&Member> {
        self.members.get(usize::from(device)).filter(|member| member.is_there())
    }

    /// Returns the devices and their numbers.
    pub(crate) fn present(&self) -> impl Iterator<Item = (u8, &Member)> {
        let members = self.members.iter().enumerate();
        members.filter(|(_, member)| member.is_there()).map(|(at, member)| (at as u8, member))
    }

    /// Returns whether writes go to a device.
    #[inline]
    pub(crate) fn is_written(&self, device: u8) -> bool {
        self.members.get(usize::from(device)).is_some_and(|one| one.standing != Standing::LeftOut)
    }

    pub(crate) fn is_online(&self, device: u8) -> bool {
        self.member(device).is_some_and(|member| member.standing == Standing::Online)
    }

    /// Returns the devices to which writes go.
    pub(crate) fn written(&self) -> Vec<u8> {
        let written = self.present().filter(|(_, member)| member.standing != Standing::LeftOut);
        written.map(|(device, _)| device).collect()
    }

    /// Returns whether a device is left out, and no superblock says that yet. Until then, nothing is durable that the device
    /// lacks.
    pub(crate) fn has_unsaid(&self) -> bool {
        self.members.iter().any(|member| member.is_unsaid)
    }

    /// Returns the devices that the next checkpoint gives the rows of slabs and the journal.
    pub(crate) fn keepers(&self) -> Vec<u8> {
        let online = self.present().filter(|(_, member)| member.standing == Standing::Online);
        online.map(|(device, _)| device).take(crate::journal::COPIES).collect()
    }

    /// Returns the number of devices that take slabs.
    fn taker_count(&self) -> usize {
        self.members.iter().filter(|member| member.takes_slabs()).count()
    }

    /// Returns the number of copies that pages have: no volume has more.
    pub(crate) fn page_copies(&self) -> u8 {
        self.taker_count().clamp(1, usize::from(MIRROR_MAX)) as u8
    }

    /// Returns over how many devices the chunks of a volume with so many stripes are spread.
    pub(crate) fn stripe_width(&self, stripes: u8) -> u32 {
        self.taker_count().clamp(1, usize::from(stripes)) as u32
    }

    /// Returns the number of copies that pages have at least, even if a device is full.
    fn page_copies_min(&self) -> u8 {
        self.page_copies().min(2)
    }

    /// Returns the number of copies that a slab should have.
    pub(crate) fn wanted(&self, class: Class) -> u8 {
        class.copies().unwrap_or_else(|| self.page_copies())
    }

    /// Returns whether a device takes slabs: it is not new, and not to be removed.
    pub(crate) fn takes_slabs(&self, device: u8) -> bool {
        self.member(device).is_some_and(Member::takes_slabs)
    }

    fn free_slots(&self) -> FreeSlots {
        let takers = self.present().filter(|(_, member)| member.takes_slabs());
        let free = takers.map(|(device, member)| FreeOn {
            device,
            is_online: member.standing == Standing::Online,
            slots: member.free_slots.len() as u64,
        });
        FreeSlots(free.collect())
    }

    /// Returns a slab with free units, and its assignment if it is new.
    pub(crate) fn slab_with_free(
        &mut self,
        key: (Class, u8),
        pages: u64,
    ) -> Result<(u32, Option<Assigned>), Blocked> {
        self.reclaim();
        let class = key.0;
        let is_usable = |space: &Self, slab: &SlabPart| {
            // A device that returns counts as lacking what is written now.
            let is_reached =
                slab.copies.iter().any(|(slot, stale)| !stale && space.is_online(slot.device));
            slab.class == class && slab.free > 0 && is_reached
        };
        if let Some(&current) = self.current.get(&key)
            && self.slab(current).is_some_and(|slab| is_usable(self, slab))
        {
            return Ok((current, None));
        }
        let others: BTreeSet<u32> = {
            let others = self.current.iter().filter(|(other, _)| **other != key);
            others.map(|(_, &slab)| slab).collect()
        };
        let wanted = self.tiering.new_data.filter(|_| class.kind().is_data());
        // The best slab of the wanted tier, and the best one of any.
        let (mut best_there, mut best) = (None, None);
        for number in 1..self.slabs.len() as u32 {
            let Some(slab) = self.slab(number).filter(|slab| is_usable(self, slab)) else {
                continue;
            };
            let one = Some((!others.contains(&number), slab.free, number));
            best = best.max(one);
            if wanted.is_none_or(|tier| self.tier_of(slab) == tier) {
                best_there = best_there.max(one);
            }
        }
        let least = self.shape.usable(class.kind()) / 8;
        let roomy = |best: Option<(bool, u32, u32)>| {
            best.filter(|&(is_unused, free, _)| is_unused && free >= least)
        };
        // One that has room, or else a new one: of the wanted tier, and then of any.
        let mut chosen = None;
        for (tier, best) in [(wanted, best_there), (None, best)] {
            chosen = roomy(best);
            if chosen.is_some() {
                break;
            }
            if let Some(assigned) = self.assign(key, pages, tier) {
                self.current.insert(key, assigned.slab);
                return Ok((assigned.slab, Some(assigned)));
            }
        }
        let (.., number) = chosen.or(best).ok_or(Blocked::NoSpace)?;
        if !self.has_counts(number) {
            return Err(Blocked::Missing(vec![Load::Counts(number)]));
        }
        self.current.insert(key, number);
        Ok((number, None))
    }

    /// Returns the number of pages that could be used: free ones, and those of slots without a slab.
    pub(crate) fn available_pages(&self) -> u64 {
        self.pages_in(&self.free_slots())
    }

    fn pages_in(&self, free: &FreeSlots) -> u64 {
        let slabs = free.slabs(self.page_copies_min().into());
        self.free_units[Class::Pages.index()]
            + slabs * u64::from(self.shape.usable(SlabKind::Pages))
    }

    /// Returns the number of chunks if all slots were used for data with one copy.
    pub(crate) fn chunks(&self) -> u64 {
        let takers = self.members.iter().filter(|member| member.takes_slabs());
        let slots: u64 = takers.map(|member| u64::from(member.slots)).sum();
        slots * u64::from(self.shape.usable(SlabKind::Data))
    }

    /// Returns the number of chunks of a class that are free, or will be, or could be if slots without a slab were
    /// used for them. Slots for `pages` pages stay.
    pub(crate) fn free_chunks(&self, class: Class, pages: u64) -> u64 {
        let mut free = self.free_slots();
        let missing = pages.saturating_sub(self.free_units[Class::Pages.index()]);
        for _ in 0..missing.div_ceil(self.shape.usable(SlabKind::Pages).into()) {
            free.take(self.page_copies_min().into());
        }
        for slot in self.unassigned.iter().flat_map(|(_, slots)| slots) {
            let known = free.0.iter_mut().find(|one| one.device == slot.device);
            known.into_iter().for_each(|one| one.slots += 1);
        }
        let copies = class.copies().unwrap_or(1);
        self.free_units[class.index()]
            + self.waiting[class.index()]
            + free.slabs(copies.into()) * u64::from(self.shape.usable(class.kind()))
    }

    /// Returns the number of chunks that are free, or will be, in slabs of all other classes of data, each as often as it has
    /// copies.
    pub(crate) fn free_in_slabs_of_others(&self, class: Class) -> u64 {
        let classes = (1..=MIRROR_MAX).flat_map(|copies| {
            let count = |class: Class| (class, u64::from(copies));
            [count(Class::Data(copies)), count(Class::Checked(copies))]
        });
        let others = classes.filter(|(other, _)| *other != class);
        let free = |class: Class| self.free_units[class.index()] + self.waiting[class.index()];
        others.map(|(other, copies)| free(other) * copies).sum()
    }

    /// Assigns a slab to slots of different devices, all in one tier if one is given, if slots for `pages` pages stay.
    fn assign(&mut self, key: (Class, u8), pages: u64, tier: Option<Tier>) -> Option<Assigned> {
        let class = key.0;
        let others = self.current.iter().filter(|((other, _), _)| *other == class);
        let others = others.filter(|(other, _)| **other != key);
        let busy: Vec<u8> = others
            .filter_map(|(_, &slab)| Some(self.slab(slab)?.copies))
            .flat_map(|copies| copies.iter().map(|(slot, _)| slot.device).collect::<Vec<_>>())
            .collect();
        let least = class.copies().unwrap_or_else(|| self.page_copies_min());
        let mut counts = (least..=self.wanted(class)).rev();
        let copies =
            counts.find_map(|count| self.targets(count.into(), &Copies::default(), &busy, tier))?;
        if class.kind().is_data() {
            let mut free = self.free_slots();
            for one in free.0.iter_mut().filter(|one| copies.has(one.device)) {
                one.slots -= 1;
            }
            if self.pages_in(&free) < pages {
                return None;
            }
        }
        let slab = self.free_numbers.first().copied().unwrap_or(self.slabs.len() as u32);
        let assigned = Assigned { slab, class, copies };
        self.carry_out(assigned).ok()?;
        Some(assigned)
    }

    /// Chooses free slots for copies of a slab that has some already, all in one tier if one is given. The devices come last to
    /// which other stripes are written, and then those with fewer free slots.
    pub(crate) fn targets(
        &self,
        count: usize,
        has: &Copies,
        busy: &[u8],
        tier: Option<Tier>,
    ) -> Option<Copies> {
        let mut candidates: Vec<_> = self
            .present()
            .filter(|(device, member)| member.takes_slabs() && !has.has(*device))
            .filter(|&(device, _)| self.is_in(device, tier))
            .filter_map(|(device, member)| {
                let slot = Slot { device, number: *member.free_slots.first()? };
                let writers = busy.iter().filter(|&&other| other == device).count();
                let is_absent = !member.keeps_writes();
                Some(((is_absent, writers, Reverse(member.free_slots.len()), device), slot))
            })
            .collect();
        candidates.sort_unstable();
        if candidates.len() < count || has.len() == 0 && candidates.first()?.0.0 {
            return None;
        }
        let mut copies = Copies::default();
        candidates.iter().take(count).for_each(|(_, slot)| copies.push(*slot, false));
        Some(copies)
    }

    /// Carries out an assignment.
    pub(crate) fn carry_out(&mut self, assigned: Assigned) -> Result<(), Blocked> {
        let Assigned { slab: number, class, copies } = assigned;
        if self.slab(number).is_some() {
            return Err(Blocked::Damaged(format!("slab {number} is assigned twice")));
        }
        let is_free = |slot: Slot| {
            self.member(slot.device).is_some_and(|member| member.free_slots.contains(&slot.number))
        };
        if number == 0
            || number > self.shape.slabs_max()
            || copies.len() == 0
            || !copies.iter().all(|(slot, _)| is_free(slot))
        {
            return Err(Blocked::Damaged(format!("slab {number} is assigned to a used slot")));
        }
        let mut now = Copies::default();
        for (slot, _) in copies.iter() {
            let member = &mut self.members[usize::from(slot.device)];
            member.free_slots.remove(&slot.number);
            now.push(slot, !member.keeps_writes());
        }
        self.insert_slab(number, class, now);
        Ok(())
    }

    /// Ends a slab without used units. Its slots and its number can be used again after the next checkpoint: until then, the
    /// last one has its row, and its counts must stay valid.
    pub(crate) fn unassign(&mut self, number: u32) {
        let Some(slab) = self.slabs[number as usize].take() else { return };
        self.forget_counts(&slab);
        let part = slab.part;
        let slots = part.copies.iter().map(|(slot, _)| slot).collect();
        self.checksums.remove(number);
        self.tiering.end_move(number);
        self.unassigned.push((number, slots));
        self.free_units[part.class.index()] -= u64::from(part.free);
        self.changed_rows.insert(number / ROWS as u32);
    }

    /// Returns the slabs that ended since the last checkpoint, and the slots that copies left.
    pub(crate) fn take_unassigned(&mut self) -> Vec<(u32, Vec<Slot>)> {
        self.is_reusing = !self.unassigned.is_empty();
        std::mem::take(&mut self.unassigned)
    }

    /// Makes the slots and numbers of ended slabs usable.
    pub(crate) fn reuse(&mut self, unassigned: Vec<(u32, Vec<Slot>)>) {
        self.is_reusing = false;
        for (number, slots) in unassigned {
            if number != 0 {
                self.free_numbers.insert(number);
            }
            for slot in slots {
                self.members[usize::from(slot.device)].free_slots.insert(slot.number);
            }
        }
    }

    /// Notes that bytes of a slab were or will be written to all devices that are written now.
    pub(crate) fn note_write(&mut self, number: u32, offset: u64, length: u64) {
        let Some(slab) = self.slab(number) else { return };
        if slab.copies.len() < 2 {
            return;
        }
        let regions = self.shape.regions_of(offset, offset + length);
        let slots: Vec<_> = slab.copies.iter().map(|(slot, _)| slot.device).collect();
        self.mirrors.add_fresh(number, regions);
        for device in slots {
            if self.members[usize::from(device)].standing != Standing::Online {
                self.lack(number, regions, device);
            }
        }
    }

    /// Notes that the copy of a slab on a device lacks something of these regions.
    pub(crate) fn lack(&mut self, number: u32, regions: u64, device: u8) {
        let Some(Some(Slab { part, .. })) = self.slabs.get_mut(number as usize) else { return };
        if regions == 0 || !part.copies.has(device) {
            return;
        }
        part.copies.set_stale(device, true);
        part.regions |= regions;
        self.mirrors.spoil(Some(number), device);
        self.changed_rows.insert(number / ROWS as u32);
    }

    /// Notes that copies of data may differ anywhere.
    pub(crate) fn suspect_all(&mut self) {
        for number in self.slabs_of(SlabKind::Data) {
            self.suspect(number, self.shape.all_regions());
        }
    }

    /// Notes that an interruption may have left copies of regions different, and data newer than its checksums.
    pub(crate) fn suspect(&mut self, number: u32, regions: u64) {
        // A journal may be crafted.
        let regions = regions & self.shape.all_regions();
        self.doubt_checksums(number, regions);
        self.keep_first_copy(number, regions);
    }

    /// Calls all copies of regions stale but the first complete one: they may differ.
    pub(crate) fn keep_first_copy(&mut self, number: u32, regions: u64) {
        let Some(slab) = self.slab(number) else { return };
        let complete = || slab.copies.iter().filter(|&(_, is_stale)| !is_stale);
        let online = complete().find(|(slot, _)| self.is_online(slot.device));
        // One that is back counts if no other one is there: an opening without it may have been interrupted.
        let first = online.or_else(|| complete().find(|(slot, _)| self.is_written(slot.device)));
        // Without one, no copy that can be reached is called complete anyway.
        let Some((first, _)) = first else { return };
        let devices: Vec<u8> = slab.copies.iter().map(|(slot, _)| slot.device).collect();
        for device in devices.into_iter().filter(|&device| device != first.device) {
            self.lack(number, regions, device);
        }
    }

    /// Returns whether each slab that is in use has a complete copy without this device.
    pub(crate) fn may_leave_out(&self, device: u8) -> bool {
        let is_safe = |number: u32| {
            self.slab(number).is_none_or(|slab| {
                !slab.copies.has(device)
                    || slab.free == self.shape.usable(slab.kind())
                    || self.is_elsewhere(number, device)
            })
        };
        // One that is being added has no space for metadata yet.
        let remains = |&keeper: &u8| keeper != device && !self.members[usize::from(keeper)].is_new;
        let is_last = !self.keepers().iter().any(remains);
        !is_last && (1..self.slabs.len() as u32).all(is_safe)
    }

    /// Returns whether a slab has a complete copy on another device.
    pub(crate) fn is_elsewhere(&self, number: u32, device: u8) -> bool {
        self.slab(number).is_some_and(|slab| {
            slab.copies.iter().any(|(slot, is_stale)| {
                slot.device != device && !is_stale && self.is_online(slot.device)
            })
        })
    }

    /// Returns whether one of some devices is online and has a complete copy of a slab. One that returns lacks what is written
    /// now: so its copy is stale soon.
    pub(crate) fn is_complete(&self, number: u32, devices: u32) -> bool {
        self.slab(number).is_some_and(|slab| {
            slab.copies.iter().any(|(slot, is_stale)| {
                !is_stale && devices >> slot.device & 1 == 1 && self.is_online(slot.device)
            })
        })
    }

    /// Leaves out a device that is written, if [`Self::may_leave_out`]: it is not read and not written from now on.
    pub(crate) fn leave_out(&mut self, device: u8, since: u64) {
        let member = &mut self.members[usize::from(device)];
        if member.standing == Standing::Online {
            member.absences = member.absences.wrapping_add(1);
            member.is_unsaid = true;
        }
        (member.standing, member.since) = (Standing::LeftOut, since);
        member.is_rejoining = false;
        self.change_all_rows();
        // A device that leaves stays if there is no other one for new slabs.
        let is_online = |member: &Member| member.standing == Standing::Online;
        if !self.members.iter().any(|member| is_online(member) && member.takes_slabs()) {
            let online = self.members.iter_mut().filter(|member| is_online(member));
            online.for_each(|member| member.is_leaving = false);
        }
        self.tiering.moving = None;
        // What a pass copies to it from now on is lost.
        self.mirrors.spoil(None, device);
        for (slab, regions) in self.mirrors.unsettled() {
            self.lack(slab, regions, device);
        }
        self.end_unreachable();
    }

    /// Ends the slabs that have no complete copy. Nothing uses them.
    pub(crate) fn end_unreachable(&mut self) {
        for number in 1..self.slabs.len() as u32 {
            let is_unreachable = self.slab(number).is_some_and(|slab| {
                !slab.is_lost() && self.place_in(number, slab, 0).sources().next().is_none()
            });
            if is_unreachable {
                self.current.retain(|_, slab| *slab != number);
                self.unassign(number);
            }
        }
    }

    /// Notes that everything on a device is stale.
    pub(crate) fn lack_all(&mut self, device: u8) {
        for number in 1..self.slabs.len() as u32 {
            self.lack(number, self.shape.all_regions(), device);
        }
    }

    /// Returns the slab and the online device of a stale copy that can be completed, and that is wanted. One copy at a time, so that
    /// a device that cannot be written holds up no other one.
    pub(crate) fn next_stale(&self, is_wanted: impl Fn((u32, u8)) -> bool) -> Option<(u32, u8)> {
        (1..self.slabs.len() as u32).find_map(|number| {
            let slab = self.slab(number).filter(|slab| slab.copies.stale() != 0)?;
            let moves = self.tiering.destination(number).is_some();
            let surplus = self.surplus(slab).filter(|_| !moves);
            let mut targets = slab.copies.iter().filter(|&(slot, is_stale)| {
                is_stale
                    && is_wanted((number, slot.device))
                    && self.is_online(slot.device)
                    && slab.dropping != Some(slot.device)
                    && surplus != Some(slot.device)
            });
            let (slot, _) = targets.next()?;
            self.place_in(number, slab, 0).sources().next()?;
            Some((number, slot.device))
        })
    }

    /// Notes that copies have everything that a pass copied to them.
    pub(crate) fn complete(&mut self, number: u32, targets: u32) {
        let Some(Some(Slab { part, .. })) = self.slabs.get_mut(number as usize) else { return };
        // The next checkpoint makes durable what was copied.
        self.mirrors.add_fresh(number, part.regions);
        let bytes = u64::from(part.regions.count_ones()) << self.shape.region_shift();
        for device in (0..32).filter(|device| targets >> device & 1 == 1) {
            part.copies.set_stale(device, false);
            self.mirrors.add_completed(device, bytes);
        }
        if part.copies.stale() == 0 {
            part.regions = 0;
        }
        self.changed_rows.insert(number / ROWS as u32);
    }

    /// Gives a slab that has fewer good copies than it should one more, which is stale. A move for which there is no slot any
    /// more ends. Returns whether there was such a slab, or such a move.
    pub(crate) fn add_copy(&mut self) -> bool {
        self.end_complete_move();
        let mut blocked = None;
        let found = (1..self.slabs.len() as u32).find_map(|number| {
            let slab =
                self.slab(number).filter(|slab| !slab.copies.is_full() && !slab.is_lost())?;
            let staying =
                slab.copies.iter().filter(|(slot, _)| self.stays(number, slot.device)).count();
            if staying >= usize::from(self.wanted(slab.class)) {
                return None;
            }
            let target = |tier| self.targets(1, &slab.copies, &[], tier);
            let target = match self.tiering.destination(number) {
                Some(tier) => {
                    let target = target(Some(tier)).filter(|_| self.has_spare_slots());
                    blocked = blocked.or(target.is_none().then_some(number));
                    target
                }
                None => target(Some(self.tier_of(slab))).or_else(|| target(None)),
            };
            let (slot, _) = target?.iter().next()?;
            Some((number, slot))
        });
        if let Some(number) = blocked {
            self.tiering.end_move(number);
        }
        let Some((number, slot)) = found else { return blocked.is_some() };
        self.members[usize::from(slot.device)].free_slots.remove(&slot.number);
        let regions = self.shape.all_regions();
        if let Some(Some(Slab { part, .. })) = self.slabs.get_mut(number as usize) {
            part.copies.push(slot, true);
            part.regions = regions;
        }
        self.changed_rows.insert(number / ROWS as u32);
        true
    }

    /// Begins to take copies from slabs that do not need them, if enough other copies are complete: those of devices that leave,
    /// of slabs that moved, and those that no volume wants. They are not read any more. Returns the slabs and devices.
    pub(crate) fn begin_drops(&mut self) -> Vec<(u32, u8)> {
        let mut drops = Vec::new();
        while drops.len() < DROPS
            && let Some((number, device)) = self.begin_drop()
        {
            drops.push((number, device));
        }
        drops
    }

    fn begin_drop(&mut self) -> Option<(u32, u8)> {
        let (number, device) = (1..self.slabs.len() as u32).find_map(|number| {
            let slab = self.slab(number).filter(|slab| slab.dropping.is_none())?;
            let mut devices = slab.copies.iter().map(|(slot, _)| slot.device);
            let leaving = devices.find(|&device| !self.stays(number, device));
            let device = leaving.or_else(|| self.surplus(slab))?;
            // Copies on other devices that leave count until it is their turn: a slab has room for one more copy only.
            let others = self.complete_without(slab, device);
            (others >= usize::from(self.wanted(slab.class))).then_some((number, device))
        })?;
        let Some(Some(Slab { part, .. })) = self.slabs.get_mut(number as usize) else {
            return None;
        };
        part.copies.set_stale(device, true);
        part.dropping = Some(device);
        self.changed_rows.insert(number / ROWS as u32);
        Some((number, device))
    }

    /// Returns the device of a copy that a slab does not need, which an interrupted move leaves: a stale one, or else the one
    /// that was added last.
    fn surplus(&self, slab: &SlabPart) -> Option<u8> {
        let wanted = usize::from(self.wanted(slab.class));
        let staying = slab.copies.iter().filter(|(slot, _)| self.takes_slabs(slot.device));
        let mut copies: Vec<_> = staying.collect();
        if copies.len() <= wanted {
            return None;
        }
        copies.reverse();
        copies.sort_by_key(|&(_, is_stale)| !is_stale);
        let mut devices = copies.into_iter().map(|(slot, _)| slot.device);
        devices.find(|&device| self.complete_without(slab, device) >= wanted)
    }

    /// Returns the number of complete copies on other devices that are online.
    fn complete_without(&self, slab: &SlabPart, device: u8) -> usize {
        let others = slab.copies.iter().filter(|(slot, is_stale)| {
            slot.device != device && !is_stale && self.is_online(slot.device)
        });
        others.count()
    }

    /// Takes copies from slabs, after the checkpoint that does not have them. Returns their slots.
    pub(crate) fn end_drops(&mut self, drops: &[(u32, u8)]) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(drops.len());
        for &(number, device) in drops {
            let slab = self.slabs.get_mut(number as usize).and_then(Option::as_mut);
            let Some(part) = slab.map(|slab| &mut slab.part) else { continue };
            if part.dropping == Some(device) {
                part.dropping = None;
                slots.extend(part.copies.remove(device));
                if part.copies.stale() == 0 {
                    part.regions = 0;
                }
            }
        }
        slots
    }

    /// Returns whether a slab may move from devices to others: slots for `pages` pages stay even while it has both, or as many as
    /// there are if they are not enough, and no fewer slabs fit, whatever the number of their copies.
    pub(crate) fn may_move(&self, from: &Copies, to: &Copies, pages: u64) -> bool {
        let before = self.free_slots();
        let mut after = before.clone();
        for one in after.0.iter_mut().filter(|one| to.has(one.device)) {
            one.slots = one.slots.saturating_sub(1);
        }
        if self.pages_in(&after) < pages.min(self.pages_in(&before)) {
            return false;
        }
        for one in after.0.iter_mut().filter(|one| from.has(one.device)) {
            one.slots += 1;
        }
        let mut counts = (1..=MIRROR_MAX).filter(|&copies| {
            let has_slabs = |slab: &Slab| slab.part.class.copies() == Some(copies);
            self.slabs.iter().flatten().any(has_slabs)
        });
        counts.all(|copies| after.slabs(copies.into()) >= before.slabs(copies.into()))
    }

    /// Returns whether the slabs of a device that leaves fit on the others, beside so many pages.
    pub(crate) fn has_room_without(&self, device: u8, pages: u64) -> bool {
        let mut free = self.free_slots();
        free.0.retain(|one| one.is_online);
        for Slab { part, .. } in self.slabs.iter().flatten() {
            let staying =
                part.copies.iter().filter(|(slot, _)| self.takes_slabs(slot.device)).count();
            if !part.copies.has(device) || staying >= usize::from(self.wanted(part.class)) {
                continue;
            }
            let others = free.0.iter_mut().filter(|one| !part.copies.has(one.device));
            match others.max_by_key(|one| one.slots) {
                Some(most) if most.slots > 0 => most.slots -= 1,
                _ => return false,
            }
        }
        self.pages_in(&free) >= pages
    }

    /// Returns a device that leaves and has no slab any more.
    pub(crate) fn empty_leaver(&self) -> Option<u8> {
        let has_slabs =
            |device| self.slabs.iter().flatten().any(|Slab { part, .. }| part.copies.has(device));
        let leavers = self.present().filter(|(_, member)| member.is_leaving);
        leavers.map(|(device, _)| device).find(|&device| !has_slabs(device))
    }

    /// Returns the bytes of a device that slabs have, and those that its copies may lack.
    pub(crate) fn use_of(&self, device: u8) -> (u64, u64) {
        let (mut used, mut stale) = (0, self.mirrors.completed(device));
        for Slab { part, .. } in self.slabs.iter().flatten() {
            for (_, is_stale) in part.copies.iter().filter(|(slot, _)| slot.device == device) {
                used += 1 << self.shape.slab_shift;
                if is_stale {
                    stale += u64::from(part.regions.count_ones()) << self.shape.region_shift();
                }
            }
        }
        (used, stale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_need_slots_on_different_devices() {
        let slabs = |slots: &[u64], copies| {
            let one = |slots| FreeOn { device: 0, is_online: true, slots };
            FreeSlots(slots.iter().copied().map(one).collect()).slabs(copies)
        };
        assert_eq!(slabs(&[10, 10], 2), 10);
        assert_eq!(slabs(&[10, 1], 2), 1);
        assert_eq!(slabs(&[5, 5, 5], 2), 7);
        assert_eq!(slabs(&[5, 5, 5], 3), 5);
        assert_eq!((slabs(&[7], 1), slabs(&[7], 2), slabs(&[], 1)), (7, 0, 0));
        let absent = FreeOn { device: 1, is_online: false, slots: 9 };
        let online = FreeOn { device: 0, is_online: true, slots: 3 };
        assert_eq!(FreeSlots(vec![absent, online]).slabs(1), 3);
        assert_eq!(FreeSlots(vec![absent]).slabs(1), 0);
    }
}
