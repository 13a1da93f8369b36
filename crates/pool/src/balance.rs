//! The balance of tiers: counts what is used, and chooses the slabs that move.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;

use crate::copies::Copies;
use crate::members::Member;
use crate::pool::Pool;
use crate::space::{Slab, SlabPart, Space};
use crate::tiers::{Tier, TierUse, Tiers};

/// A slab with less heat is not moved to a fast device.
const HEAT_MIN: u32 = 16;
/// The part of the slots of fast devices that is kept free for new data, if it goes there: an eighth.
const LANDING_SHIFT: u32 = 3;
/// The part of all slots that moves leave free: a 64th, and this number of slots.
const SPARE_SHIFT: u32 = 6;
const SPARE_MIN: u64 = 2;

impl Space {
    fn tier(&self, device: u8) -> Tier {
        let is_fast = self.member(device).is_some_and(|member| member.is_fast);
        if is_fast { Tier::Fast } else { Tier::Slow }
    }

    /// Returns whether a device is in a tier. All are in none.
    pub(crate) fn is_in(&self, device: u8, tier: Option<Tier>) -> bool {
        tier.is_none_or(|tier| self.tier(device) == tier)
    }

    /// Returns the tier of a slab: the fast one if all copies are there.
    pub(crate) fn tier_of(&self, slab: &SlabPart) -> Tier {
        let mut devices = slab.copies.iter().map(|(slot, _)| slot.device);
        if devices.all(|device| self.tier(device) == Tier::Fast) { Tier::Fast } else { Tier::Slow }
    }

    /// Returns the tier in which new data is written, if there are two.
    pub(crate) fn tier_of_new_data(&self) -> Option<Tier> {
        let tier = if self.tiering.is_new_data_fast { Tier::Fast } else { Tier::Slow };
        self.tiering.is_on.then_some(tier)
    }

    /// Counts a request for data in a slab.
    #[inline]
    pub(crate) fn count_request(&self, number: u32) {
        if self.tiering.is_on
            && let Some(slab) = self.slab(number)
        {
            slab.heat.fetch_add(1, Ordering::Relaxed);
            self.tiering.requests[self.tier_of(slab).at()].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn set_tiers(&mut self, tiers: &Tiers) {
        let mut has = [false; 2];
        for (number, member) in self.members.iter_mut().enumerate() {
            member.is_fast = tiers.fast.contains(&(number as u8));
            has[usize::from(member.is_fast)] |= member.is_there();
        }
        self.tiering.is_on = has == [true; 2];
        self.tiering.is_new_data_fast = tiers.new_data == Tier::Fast;
        if !self.tiering.is_on {
            self.tiering.moves.clear();
        }
    }

    /// Halves the heat of all slabs. Requests meanwhile may not be counted.
    fn cool(&self) {
        for Slab { part, .. } in self.slabs.iter().flatten() {
            part.heat.store(part.heat.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }

    /// Returns the devices of a tier that could get slabs.
    fn takers_in(&self, tier: Tier) -> impl Iterator<Item = &Member> {
        let is_taker = move |device: u8, member: &Member| {
            self.tier(device) == tier && member.takes_slabs() && member.keeps_writes()
        };
        self.present().filter(move |&(device, member)| is_taker(device, member)).map(|(_, one)| one)
    }

    /// Returns the free slots of the devices of a tier that could get slabs, and all of their slots.
    fn slots_in(&self, tier: Tier) -> (u64, u64) {
        self.takers_in(tier).fold((0, 0), |(free, all), member| {
            (free + member.free_slots.len() as u64, all + u64::from(member.slots))
        })
    }

    /// Returns whether there are so many free slots that some can be used for moves.
    pub(crate) fn has_spare_slots(&self) -> bool {
        let ((slow, all_slow), (fast, all_fast)) =
            (self.slots_in(Tier::Slow), self.slots_in(Tier::Fast));
        slow + fast > SPARE_MIN + ((all_slow + all_fast) >> SPARE_SHIFT)
    }

    /// Begins to move a slab, if that is possible now, and slots for `pages` pages stay.
    pub(crate) fn begin_move(&mut self, number: u32, tier: Tier, pages: u64) -> bool {
        let can_move = self.has_spare_slots()
            && self.slab(number).is_some_and(|slab| {
                let copies = &slab.copies;
                let targets = self.targets(copies.len(), &Copies::default(), &[], Some(tier));
                self.tiering.is_on
                    && self.is_movable(number, slab)
                    && self.tier_of(slab) != tier
                    && targets.is_some_and(|targets| self.may_move(copies, &targets, pages))
            });
        if can_move {
            self.tiering.moves.insert(number, tier);
        }
        can_move
    }

    /// Returns the slab that should move most, and the tier to which it should.
    fn next_move(&self) -> Option<(u32, Tier)> {
        if !self.tiering.is_on {
            return None;
        }
        let (fast, slow): (Vec<_>, Vec<_>) =
            (self.takers_in(Tier::Fast).collect(), self.takers_in(Tier::Slow).collect());
        let with_room =
            |devices: &[&Member]| devices.iter().filter(|one| !one.free_slots.is_empty()).count();
        let (fast_with_room, slow_with_room) = (with_room(&fast), with_room(&slow));
        let heat = |slab: &SlabPart| slab.heat.load(Ordering::Relaxed);
        let (mut hottest, mut coldest) = (None, None);
        for (number, slab) in (1..).zip(self.slabs.iter().skip(1)) {
            let Some(slab) = slab.as_ref().map(|slab| &slab.part) else { continue };
            if !self.is_movable(number, slab) {
                continue;
            }
            let copies = slab.copies.len();
            match self.tier_of(slab) {
                Tier::Slow if copies <= fast.len() => {
                    hottest = hottest.max(Some((heat(slab), number)));
                }
                Tier::Fast if copies <= slow_with_room => {
                    coldest = coldest.max(Some(Reverse((heat(slab), number))));
                }
                Tier::Slow | Tier::Fast => {}
            }
        }
        let coldest = coldest.map(|Reverse(coldest)| coldest);
        let (free, all) = self.slots_in(Tier::Fast);
        // The copies of slabs that move up may not be there yet.
        let arriving = self.tiering.moves.values().filter(|&&tier| tier == Tier::Fast).count();
        let free = free.saturating_sub(arriving as u64);
        let kept = if self.tiering.is_new_data_fast { (all >> LANDING_SHIFT).max(1) } else { 0 };
        if free < kept {
            return coldest.map(|(_, number)| (number, Tier::Slow));
        }
        let (hot, number) = hottest.filter(|&(hot, _)| hot >= HEAT_MIN)?;
        let copies = self.slab(number)?.copies.len();
        if copies <= fast_with_room && free >= kept + copies as u64 {
            return Some((number, Tier::Fast));
        }
        let (cold, number) = coldest?;
        (hot / 2 > cold && hot - cold >= HEAT_MIN).then_some((number, Tier::Slow))
    }

    /// Returns whether a slab can move now: it is complete, and no new data is written to it.
    fn is_movable(&self, number: u32, slab: &SlabPart) -> bool {
        slab.kind().is_data()
            && self.tiering.destination(number).is_none()
            && slab.copies.stale() == 0
            && slab.dropping.is_none()
            && slab.copies.len() == usize::from(self.wanted(slab.class))
            && slab.copies.iter().all(|(slot, _)| self.is_online(slot.device))
            && !self.current.values().any(|&current| current == number)
    }

    /// Returns whether a copy of a slab on a device stays there.
    pub(crate) fn stays(&self, number: u32, device: u8) -> bool {
        self.takes_slabs(device) && self.is_in(device, self.tiering.destination(number))
    }

    /// Notes the end of moves that are complete.
    pub(crate) fn end_complete_moves(&mut self) {
        let is_complete = |(&number, &tier): (&u32, &Tier)| {
            self.slab(number).is_none_or(|slab| {
                let is_there = slab.copies.iter().all(|(slot, _)| self.tier(slot.device) == tier);
                is_there && slab.dropping.is_none() && slab.copies.stale() == 0
            })
        };
        let complete = self.tiering.moves.iter().filter(|&one| is_complete(one));
        for (number, tier) in complete.map(|(&number, &tier)| (number, tier)).collect::<Vec<_>>() {
            self.tiering.moves.remove(&number);
            self.tiering.moved[tier.at()] += 1 << self.shape.slab_shift;
        }
    }
}

impl Pool {
    /// Sets which devices are fast, and where new data goes. It is not stored.
    pub fn set_tiers(&self, tiers: &Tiers) {
        self.shared.state.write().space.set_tiers(tiers);
    }

    /// Begins to move slabs to the tiers where they belong, until so many move. The maintenance carries that out. Returns whether
    /// any moves.
    pub fn balance_tiers(&self, most: usize) -> bool {
        loop {
            let next = {
                let state = self.shared.state.read();
                let has_all = state.space.tiering.moves.len() >= most;
                if has_all { None } else { state.space.next_move() }
            };
            let mut state = self.shared.state.write();
            let pages = state.reserve();
            if !next.is_some_and(|(slab, tier)| state.space.begin_move(slab, tier, pages)) {
                let has_moves = !state.space.tiering.moves.is_empty();
                drop(state);
                if has_moves {
                    self.shared.work.notify_one();
                }
                return has_moves;
            }
        }
    }

    /// Returns the bytes of a slab, which is what moves.
    pub fn slab_size(&self) -> u64 {
        1 << self.shared.state.read().shape().slab_shift
    }

    /// Lets requests until now count half as much as those from now on.
    pub fn cool_tiers(&self) {
        self.shared.state.read().space.cool();
    }

    /// Returns the use of a tier, if the pool has fast and slow devices.
    pub fn tier_use(&self, tier: Tier) -> Option<TierUse> {
        let state = self.shared.state.read();
        let space = &state.space;
        if !space.tiering.is_on {
            return None;
        }
        let shift = state.shape().slab_shift;
        let (free, all) = space.slots_in(tier);
        Some(TierUse {
            size_bytes: all << shift,
            used_bytes: (all - free) << shift,
            requests: space.tiering.requests[tier.at()].load(Ordering::Relaxed),
            moved_bytes: space.tiering.moved[tier.at()],
        })
    }
}
