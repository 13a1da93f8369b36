//! The devices of a pool, as its superblocks describe them.

use std::collections::BTreeSet;

use crate::copies::Standing;
use crate::format::{ALL_STALE, DeviceRow, LEAVING, LEFT_OUT};

/// A device in the space of its pool. Without slots, no device has its number.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) identifier: [u8; 16],
    pub(crate) slots: u32,
    pub(crate) standing: Standing,
    /// It is to be removed: it gets no slabs, and those that it has move.
    pub(crate) is_leaving: bool,
    /// No checkpoint has it yet, so that the journal cannot name its slots.
    pub(crate) is_new: bool,
    /// Generation of the first checkpoint that leaves it out.
    pub(crate) since: u64,
    /// No superblock says yet that it is left out.
    pub(crate) is_unsaid: bool,
    /// It takes part again, and no superblock says so yet: an interruption leaves it out again. So nothing gets its only
    /// copy there.
    pub(crate) is_rejoining: bool,
    /// How often it was left out.
    pub(crate) absences: u16,
    /// Generation of the last checkpoint that it is known to have.
    pub(crate) last: u64,
    /// The last checkpoint does not say what it lacks.
    pub(crate) is_all_stale: bool,
    /// Data that is used most belongs on it.
    pub(crate) is_fast: bool,
    /// Slots without a slab.
    pub(crate) free_slots: BTreeSet<u32>,
}

impl Member {
    /// Returns a device that has no slabs.
    pub(crate) fn new(identifier: [u8; 16], slots: u32) -> Self {
        Self {
            identifier,
            slots,
            standing: Standing::Online,
            is_leaving: false,
            is_new: false,
            since: 0,
            is_unsaid: false,
            is_rejoining: false,
            absences: 0,
            last: 0,
            is_all_stale: false,
            is_fast: false,
            free_slots: (0..slots).collect(),
        }
    }

    /// Returns a device as a superblock describes it.
    pub(crate) fn of_row(row: &DeviceRow) -> Self {
        let is_left_out = row.flags & LEFT_OUT != 0;
        Self {
            standing: if is_left_out { Standing::LeftOut } else { Standing::Online },
            is_leaving: row.flags & LEAVING != 0,
            absences: row.absences.get(),
            last: row.last.get(),
            is_all_stale: row.flags & ALL_STALE != 0,
            ..Self::new(row.identifier, row.slots.get())
        }
    }

    pub(crate) fn to_row(&self) -> DeviceRow {
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        DeviceRow {
            identifier: self.identifier,
            slots: self.slots.into(),
            flags: flag(LEFT_OUT, self.standing != Standing::Online)
                | flag(ALL_STALE, self.is_all_stale)
                | flag(LEAVING, self.is_leaving),
            reserved: 0,
            absences: self.absences.into(),
            last: self.last.into(),
        }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.slots > 0
    }

    /// Returns whether it has what is written now after an interruption.
    pub(crate) fn keeps_writes(&self) -> bool {
        self.standing == Standing::Online && !self.is_rejoining
    }

    pub(crate) fn takes_slabs(&self) -> bool {
        self.is_there() && !self.is_leaving && !self.is_new
    }
}
