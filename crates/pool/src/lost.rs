//! Slabs that were given up, because their only complete copy was on a device without which the pool was recovered.
//!
//! Such a slab has no copy any more. Maps refer to it as before, and reads of it fail. Its reference counts were on the device:
//! each of its units counts as shared, so nothing is overwritten there. When no map refers to it, a scrub ends it.

use std::collections::BTreeSet;

use crate::counts::Counts;
use crate::format::ROWS;
use crate::space::{SlabPart, Space};
use crate::usage::Counted;
use crate::{Pool, PoolError, VolumeId};

impl Space {
    /// Returns the slabs that were given up with devices.
    pub(crate) fn lost_slabs(&self) -> Vec<u32> {
        let is_lost = |&number: &u32| self.slab(number).is_some_and(SlabPart::is_lost);
        (1..self.slabs.len() as u32).filter(is_lost).collect()
    }

    /// Adds the counts of a slab that is lost. Returns whether it is.
    pub(crate) fn load_lost(&mut self, number: u32) -> bool {
        let shape = self.shape;
        let slab = self.slabs.get_mut(number as usize).and_then(Option::as_mut);
        let Some(slab) = slab.filter(|slab| slab.part.is_lost()) else { return false };
        if slab.counts.is_none() {
            let counts = Counts::of_lost(&shape, slab.part.kind());
            self.counts_bytes += counts.byte_count();
            slab.counts = Some(counts);
        }
        true
    }

    /// Gives up a slab with data: its only complete copy is on a device that does not come back. Maps still refer to it.
    pub(crate) fn lose(&mut self, number: u32) {
        let Some(Some(slab)) = self.slabs.get_mut(number as usize) else { return };
        let slots = std::mem::take(&mut slab.part.copies).iter().map(|(slot, _)| slot).collect();
        let class = slab.part.class;
        self.free_units[class.index()] -= u64::from(std::mem::take(&mut slab.part.free));
        slab.part.regions = 0;
        self.counts_bytes -= slab.counts.take().map_or(0, |counts| counts.byte_count());
        let waiting = self.freed.extract_if(.., |(_, unit)| unit.slab == number).count();
        self.waiting[class.index()] -= waiting as u64;
        self.checksums.remove(number);
        self.current.retain(|_, slab| *slab != number);
        self.unassigned.push((0, slots));
        self.changed_rows.insert(number / ROWS as u32);
        self.load_lost(number);
    }

    /// Returns the slabs in use of which no complete copy is there, without those that were given up.
    pub(crate) fn missing_slabs(&self) -> Vec<u32> {
        let is_missing = |&number: &u32| {
            self.slab(number).is_some_and(|slab| {
                slab.free < self.shape.usable(slab.kind())
                    && !slab.is_lost()
                    && self.place_in(number, slab, 0).sources().next().is_none()
            })
        };
        (1..self.slabs.len() as u32).filter(is_missing).collect()
    }

    /// Gives up all data of which no other device has a complete copy, so that this one can be left out. Returns whether the pool
    /// can go on then: its metadata is elsewhere.
    pub(crate) fn lose_device(&mut self, device: u8) -> bool {
        for number in 1..self.slabs.len() as u32 {
            let is_only_there = self.slab(number).is_some_and(|slab| {
                // The journal may have references to one that has none in the last checkpoint.
                slab.kind().is_data()
                    && slab.copies.has(device)
                    && !self.is_elsewhere(number, device)
            });
            if is_only_there {
                self.lose(number);
            }
        }
        self.may_leave_out(device)
    }
}

impl Pool {
    /// Returns the bytes of the chunks of a volume or snapshot that were given up with a device
    /// ([`crate::AcceptedLosses::devices`]). Its whole map is read, unless the pool has lost nothing.
    pub async fn lost_bytes(&self, id: VolumeId) -> Result<u64, PoolError> {
        let has_lost = !self.shared.state.read().space.lost_slabs().is_empty();
        let walked = if has_lost { self.walk(id, Counted::Lost).await?.0 } else { 0 };
        Ok(walked)
    }

    /// Ends slabs that were given up with a device, if no map refers to them any more.
    pub(crate) async fn end_lost(&self) -> Result<(), PoolError> {
        if self.shared.state.read().space.lost_slabs().is_empty() {
            return Ok(());
        }
        self.complete_deletions().await?;
        let (lost, before, ids) = {
            let state = self.shared.state.read();
            let ids: Vec<_> = state.objects.keys().map(|&id| VolumeId(id)).collect();
            (state.space.lost_slabs(), (state.space.lost_references, state.next_object), ids)
        };
        let mut used = BTreeSet::new();
        for id in ids {
            match self.walk(id, Counted::Lost).await {
                Ok((_, slabs)) => used.extend(slabs),
                // Until it is deleted, it may refer to them.
                Err(PoolError::NotFound) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        let (generation, has_ended) = {
            let mut state = self.shared.state.write();
            // A map that was read before may have got a reference since, and a new object may have the map of another one.
            let is_same = (state.space.lost_references, state.next_object) == before
                && !state.objects.values().any(|object| object.is_deleting());
            let ended: Vec<_> =
                lost.into_iter().filter(|slab| is_same && !used.contains(slab)).collect();
            ended.iter().for_each(|&slab| state.space.unassign(slab));
            (state.generation, !ended.is_empty())
        };
        // Until then, an interruption brings them back.
        if has_ended { self.shared.checkpoint(generation).await } else { Ok(()) }
    }
}
