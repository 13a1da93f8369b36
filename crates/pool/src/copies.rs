//! Copies of slabs: slots of several devices that have the same contents.

/// Maximum number of copies of a slab: three, and one more while a copy moves.
pub(crate) const COPIES_MAX: usize = 4;
/// Maximum number of copies that a volume can have.
pub(crate) const MIRROR_MAX: u8 = 3;

/// Maximum number of stripes of a volume.
pub(crate) const STRIPES_MAX: u8 = 16;

/// A slot of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) device: u8,
    pub(crate) number: u32,
}

/// The slots of a slab, each on another device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copies {
    slots: [Slot; COPIES_MAX],
    count: u8,
    /// One bit for each copy that lacks something.
    stale: u8,
}

impl Copies {
    /// Returns the slots, and whether each is stale.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, bool)> + use<'_> {
        let slots = self.slots[..usize::from(self.count)].iter().enumerate();
        slots.map(|(at, &slot)| (slot, self.stale >> at & 1 == 1))
    }

    pub(crate) const fn len(&self) -> usize {
        self.count as usize
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.len() == COPIES_MAX
    }

    /// Returns one bit for each stale copy.
    pub(crate) const fn stale(&self) -> u8 {
        self.stale
    }

    pub(crate) fn has(&self, device: u8) -> bool {
        self.iter().any(|(slot, _)| slot.device == device)
    }

    /// Adds a copy. There is room for it.
    pub(crate) fn push(&mut self, slot: Slot, is_stale: bool) {
        self.slots[self.len()] = slot;
        self.stale |= u8::from(is_stale) << self.count;
        self.count += 1;
    }

    /// Sets whether the copy on a device is stale.
    pub(crate) fn set_stale(&mut self, device: u8, is_stale: bool) {
        let at = self.iter().position(|(slot, _)| slot.device == device);
        if let Some(at) = at {
            self.stale = self.stale & !(1 << at) | u8::from(is_stale) << at;
        }
    }

    /// Removes the copy on a device.
    pub(crate) fn remove(&mut self, device: u8) -> Option<Slot> {
        let removed = self.iter().map(|(slot, _)| slot).find(|slot| slot.device == device);
        let others = std::mem::take(self);
        others
            .iter()
            .filter(|(slot, _)| slot.device != device)
            .for_each(|(slot, is_stale)| self.push(slot, is_stale));
        removed
    }
}

/// A range of bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DevicePlace {
    pub(crate) device: u8,
    pub(crate) offset: u64,
}

/// A range of bytes of a slab, in each of its copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) slab: u32,
    /// In the slab.
    pub(crate) offset: u64,
    pub(crate) copies: Copies,
    /// One bit for each device that is written.
    pub(crate) written: u32,
    /// It is data with checksums.
    pub(crate) has_checksums: bool,
}

impl Place {
    /// Returns the slots that a write must reach.
    pub(crate) fn targets(&self) -> impl Iterator<Item = Slot> + use<'_> {
        let slots = self.copies.iter().map(|(slot, _)| slot);
        slots.filter(|slot| self.written >> slot.device & 1 == 1)
    }

    /// Returns the slots that have everything, beginning with another one for each megabyte.
    pub(crate) fn sources(&self) -> impl Iterator<Item = Slot> + use<'_> {
        let is_source =
            |&(slot, is_stale): &(Slot, bool)| !is_stale && self.written >> slot.device & 1 == 1;
        let count = self.copies.iter().filter(is_source).count();
        let first = if count < 2 { 0 } else { (self.offset >> 20) as usize % count };
        let sources = move || self.copies.iter().filter(is_source).map(|(slot, _)| slot);
        sources().skip(first).chain(sources().take(first))
    }

    /// Returns the only slot, if it has everything and is written.
    #[inline]
    pub(crate) fn only_slot(&self) -> Option<Slot> {
        let slot = self.copies.slots[0];
        let is_usable = self.copies.count == 1
            && self.copies.stale == 0
            && self.written >> slot.device & 1 == 1;
        is_usable.then_some(slot)
    }

    /// Returns whether the only copy was given up with its device.
    pub(crate) const fn is_lost(&self) -> bool {
        self.copies.len() == 0
    }

    pub(crate) const fn is_mirrored(&self) -> bool {
        self.copies.len() > 1
    }

    pub(crate) const fn at(self, within: u64) -> Self {
        Self { offset: self.offset + within, ..self }
    }
}

/// Whether a device takes part in its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is read and written.
    Online,
    /// It is written, but requests that began before may not have written it.
    Returning,
    /// It is neither read nor written.
    LeftOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_keep_their_staleness_when_another_one_is_removed() {
        let mut copies = Copies::default();
        for device in 0..3 {
            copies.push(Slot { device, number: 7 }, device == 2);
        }
        assert_eq!(copies.remove(0), Some(Slot { device: 0, number: 7 }));
        let left: Vec<_> = copies.iter().map(|(slot, stale)| (slot.device, stale)).collect();
        assert_eq!(left, [(1, false), (2, true)]);
        copies.set_stale(2, false);
        copies.set_stale(1, true);
        assert_eq!((copies.stale(), copies.remove(0)), (1, None));
    }
}
