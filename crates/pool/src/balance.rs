//! The balance of tiers: counts what is used, and chooses the slabs that move.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::copies::Copies;
use crate::members::Member;
use crate::pool::Pool;
use crate::shared::Shared;
use crate::space::{Slab, SlabPart, Space};
use crate::tiers::{Tier, TierUse, Tiers};

/// A slab with less heat is not moved to a fast device.
const HEAT_MIN: u32 = 16;
/// The part of the slots of fast devices that is kept free for new data, if it goes there: an eighth.
const NEW_DATA_SHIFT: u32 = 3;
/// Moves leave more free slots than this number and a 64th of all.
const SPARE_MIN: u64 = 2;
const SPARE_SHIFT: u32 = 6;
/// The number of slabs of which the first is chosen that can move.
const CANDIDATES: usize = 16;

/// Slabs in the order in which they should move, with their heat.
type Candidates = Vec<(u32, u32)>;

/// Keeps the first ones, in order.
fn first_of<K: Ord>(candidates: &mut Candidates, key: impl Fn(&(u32, u32)) -> K) {
    if candidates.len() > CANDIDATES {
        candidates.select_nth_unstable_by_key(CANDIDATES, &key);
        candidates.truncate(CANDIDATES);
    }
    candidates.sort_unstable_by_key(key);
}

impl Space {
    fn tier(&self, device: u8) -> Tier {
        let is_fast = self.member(device).is_some_and(|member| member.is_fast);
        if is_fast { Tier::Fast } else { Tier::Slow }
    }

    /// Returns whether a device is in a tier, if one is given.
    pub(crate) fn is_in(&self, device: u8, tier: Option<Tier>) -> bool {
        tier.is_none_or(|tier| self.tier(device) == tier)
    }

    /// Returns the tier of a slab: the fast one if all copies are there.
    pub(crate) fn tier_of(&self, slab: &SlabPart) -> Tier {
        let mut devices = slab.copies.iter().map(|(slot, _)| slot.device);
        if devices.all(|device| self.tier(device) == Tier::Fast) { Tier::Fast } else { Tier::Slow }
    }

    /// Counts a request for data in a slab.
    #[inline]
    pub(crate) fn count_request(&self, number: u32) {
        if self.tiering.is_on()
            && let Some(slab) = self.slab(number)
        {
            slab.heat.fetch_add(1, Ordering::Relaxed);
            self.tiering.requests[self.tier_of(slab).at()].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn set_tiers(&mut self, tiers: &Tiers) {
        let mut has = [false; 2];
        for (number, member) in self.members.iter_mut().enumerate() {
            let is_fast = tiers.fast.contains(&(number as u8));
            if member.is_fast != is_fast {
                member.is_fast = is_fast;
                self.tiering.moving = None;
            }
            has[usize::from(is_fast)] |= member.is_there();
        }
        let was_on = self.tiering.is_on();
        self.tiering.new_data = (has == [true; 2]).then_some(tiers.new_data);
        if was_on && !self.tiering.is_on() {
            self.tiering.moving = None;
            self.slabs.iter_mut().flatten().for_each(|slab| *slab.part.heat.get_mut() = 0);
        }
    }

    /// Halves the heat of all slabs. Requests meanwhile may not be counted.
    fn decay_heat(&self) {
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
        let can_move = self.tiering.is_on()
            && self.tiering.moving.is_none()
            && self.slab(number).is_some_and(|slab| self.is_movable(slab))
            && !self.current.values().any(|&current| current == number)
            && self.can_move(number, tier, pages);
        if can_move {
            self.tiering.moving = Some((number, tier));
        }
        can_move
    }

    /// Returns whether a tier has a place for a slab that is not there.
    fn can_move(&self, number: u32, tier: Tier, pages: u64) -> bool {
        self.has_spare_slots()
            && self.slab(number).is_some_and(|slab| {
                let copies = &slab.copies;
                let is_there = copies.iter().all(|(slot, _)| self.tier(slot.device) == tier);
                let targets = self.targets(copies.len(), &Copies::default(), &[], Some(tier));
                !is_there && targets.is_some_and(|targets| self.may_move(copies, &targets, pages))
            })
    }

    /// Returns the slab that should move most, and the tier to which it should. Slots for `pages` pages stay.
    pub(crate) fn next_move(&self, pages: u64) -> Option<(u32, Tier)> {
        let new_data = self.tiering.new_data.filter(|_| self.tiering.moving.is_none())?;
        let current: BTreeSet<u32> = self.current.values().copied().collect();
        let (mut up, mut down) = (Candidates::new(), Candidates::new());
        for (number, slab) in (1..).zip(self.slabs.iter().skip(1)) {
            let Some(Slab { part, .. }) = slab else { continue };
            if !self.is_movable(part) || current.contains(&number) {
                continue;
            }
            let heat = part.heat.load(Ordering::Relaxed);
            if self.tier_of(part) == Tier::Slow && heat >= HEAT_MIN {
                up.push((heat, number));
            }
            if part.copies.iter().any(|(slot, _)| self.tier(slot.device) == Tier::Fast) {
                down.push((heat, number));
            }
        }
        first_of(&mut up, |&hot| Reverse(hot));
        first_of(&mut down, |&cold| cold);
        down.retain(|&(_, number)| self.can_move(number, Tier::Slow, pages));
        let (free, all) = self.slots_in(Tier::Fast);
        let kept = if new_data == Tier::Fast { (all >> NEW_DATA_SHIFT).max(1) } else { 0 };
        let is_short = free < kept || self.available_pages() < pages;
        if let Some(&(_, number)) = down.first().filter(|_| is_short) {
            return Some((number, Tier::Slow));
        }
        let fits = |number: u32| {
            let copies = self.slab(number).map_or(0, |slab| slab.copies.len() as u64);
            free >= kept + copies && self.can_move(number, Tier::Fast, pages)
        };
        if let Some(&(_, number)) = up.iter().find(|&&(_, number)| fits(number)) {
            return Some((number, Tier::Fast));
        }
        // One that is clearly hotter needs a slot of a device without free ones.
        let devices = self.takers_in(Tier::Fast).count();
        let could_fit =
            |number: u32| self.slab(number).is_some_and(|one| one.copies.len() <= devices);
        let &(hot, _) = up.iter().find(|&&(_, number)| could_fit(number))?;
        let makes_room = |number: u32| {
            self.slab(number).is_some_and(|slab| {
                slab.copies.iter().any(|(slot, _)| {
                    let member = &self.members[usize::from(slot.device)];
                    member.is_fast && (kept > 0 || member.free_slots.is_empty())
                })
            })
        };
        let &(cold, number) = down.iter().find(|&&(_, number)| makes_room(number))?;
        (hot / 2 > cold && hot - cold >= HEAT_MIN).then_some((number, Tier::Slow))
    }

    /// Returns whether a slab has all of its copies, and no other ones, on devices that are online.
    fn is_movable(&self, slab: &SlabPart) -> bool {
        slab.kind().is_data()
            && slab.copies.stale() == 0
            && slab.dropping.is_none()
            && slab.copies.len() == usize::from(self.wanted(slab.class))
            && slab.copies.iter().all(|(slot, _)| self.is_online(slot.device))
    }

    /// Returns whether a copy of a slab on a device stays there.
    pub(crate) fn stays(&self, number: u32, device: u8) -> bool {
        self.takes_slabs(device) && self.is_in(device, self.tiering.destination(number))
    }

    /// Notes the end of a move that is complete.
    pub(crate) fn end_complete_move(&mut self) {
        let Some((number, tier)) = self.tiering.moving else { return };
        let is_complete = self.slab(number).is_some_and(|slab| {
            let is_there = slab.copies.iter().all(|(slot, _)| self.tier(slot.device) == tier);
            is_there && slab.dropping.is_none() && slab.copies.stale() == 0
        });
        if is_complete {
            self.tiering.moving = None;
            self.tiering.moved[tier.at()] += 1 << self.shape.slab_shift;
        }
    }
}

impl Shared {
    /// Begins to move the slab that should move most, if one may and none does. Returns whether one moves from now on.
    pub(crate) fn begin_next_move(&self) -> bool {
        // Requests go on while it is searched.
        let next = {
            let state = self.state.read();
            if state.space.tiering.allowance == 0 {
                return false;
            }
            state.space.next_move(state.reserve_for_all())
        };
        let Some((slab, tier)) = next else { return false };
        let mut state = self.state.write();
        let pages = state.reserve_for_all();
        let has_begun = state.space.begin_move(slab, tier, pages);
        if has_begun {
            let bytes = 1 << state.shape().slab_shift;
            let allowance = &mut state.space.tiering.allowance;
            *allowance = allowance.saturating_sub(bytes);
        }
        has_begun
    }
}

impl Pool {
    /// Sets which devices are fast, and where new data goes. It is not stored.
    pub fn set_tiers(&self, tiers: &Tiers) {
        self.shared.state.write().space.set_tiers(tiers);
    }

    /// Lets the maintenance move slabs of so many bytes to the tiers where they belong, one after another, and one at least.
    pub fn balance_tiers(&self, bytes: u64) {
        let mut state = self.shared.state.write();
        if state.space.tiering.is_on() {
            state.space.tiering.allowance = bytes;
            self.shared.work.notify_one();
        }
    }

    /// Lets requests until now count half as much as those from now on.
    pub fn decay_heat(&self) {
        self.shared.state.read().space.decay_heat();
    }

    /// Returns the use of a tier, if the pool has fast and slow devices.
    pub fn tier_use(&self, tier: Tier) -> Option<TierUse> {
        let state = self.shared.state.read();
        let space = &state.space;
        if !space.tiering.is_on() {
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
