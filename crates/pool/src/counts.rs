//! The reference counts of one slab in memory.

use std::collections::BTreeSet;

use crate::shape::{Shape, SlabKind};

/// References to each unit of a slab that is lost: it is shared. They are not counted.
const LOST: u16 = 2;

/// The reference counts of the units of a slab, and which of these are free.
pub(crate) struct Counts {
    pub(crate) counts: Vec<u16>,
    /// Units that are not free although their count is 0: the first ones, which have the counts; units of writes that have
    /// not ended; and units that were given back and may still be read.
    pub(crate) held: Vec<u64>,
    /// Pages of counts that have changed since the last checkpoint.
    pub(crate) changed: BTreeSet<u32>,
    /// Where the search for a free unit continues.
    pub(crate) cursor: u32,
    /// Number of units with references.
    pub(crate) used: u32,
}

impl Counts {
    pub(crate) fn new(shape: &Shape, kind: SlabKind) -> Self {
        let units = shape.units(kind);
        let mut held = vec![0_u64; units.div_ceil(64) as usize];
        for index in 0..shape.first_unit(kind) {
            held[index as usize / 64] |= 1 << (index % 64);
        }
        let cursor = shape.first_unit(kind);
        Self { counts: vec![0; units as usize], held, changed: BTreeSet::new(), cursor, used: 0 }
    }

    /// Returns the counts of a slab that is lost: all units are shared, so none is ever overwritten or free.
    pub(crate) fn of_lost(shape: &Shape, kind: SlabKind) -> Self {
        let mut lost = Self::new(shape, kind);
        let first = shape.first_unit(kind);
        lost.counts[first as usize..].fill(LOST);
        Self { used: shape.units(kind) - first, ..lost }
    }

    /// Returns its bytes in memory.
    pub(crate) const fn byte_count(&self) -> usize {
        self.counts.len() * size_of::<u16>() + self.held.len() * size_of::<u64>()
    }

    pub(crate) fn is_held(&self, index: u32) -> bool {
        self.held[index as usize / 64] >> (index % 64) & 1 == 1
    }

    pub(crate) fn set_held(&mut self, index: u32, held: bool) {
        let word = &mut self.held[index as usize / 64];
        *word = *word & !(1 << (index % 64)) | u64::from(held) << (index % 64);
    }

    pub(crate) fn is_free(&self, index: u32) -> bool {
        self.counts[index as usize] == 0 && !self.is_held(index)
    }

    /// Returns the next free unit from the cursor on, around the end.
    pub(crate) fn find(&mut self) -> Option<u32> {
        let end = self.counts.len() as u32;
        let found = (self.cursor..end).chain(0..self.cursor).find(|&index| self.is_free(index))?;
        self.cursor = found;
        Some(found)
    }
}
