//! The open requests of one end, and the numbers that identify them.

struct Slot<T> {
    /// The number of uses of the slot, so that an old number does not match the next request.
    generation: u32,
    entry: Option<T>,
}

/// Reusable slots. The number of an entry is its slot's generation and index.
pub(super) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Returns the number of entries.
    pub(super) fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Adds an entry and returns its number.
    pub(super) fn insert(&mut self, entry: T) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, entry: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.entry = Some(entry);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    fn slot(&mut self, number: u64) -> Option<&mut Slot<T>> {
        let (generation, index) = ((number >> 32) as u32, number as u32);
        self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)
    }

    /// Returns the entry with this number.
    pub(super) fn find(&mut self, number: u64) -> Option<&mut T> {
        self.slot(number)?.entry.as_mut()
    }

    /// Removes the entry with this number and returns it.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let entry = self.slot(number)?.entry.take()?;
        self.free.push(number as u32);
        Some(entry)
    }

    /// Removes all entries and returns them.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.free.clear();
        self.slots.drain(..).filter_map(|slot| slot.entry)
    }
}
