//! The condition of a unit's backing: which commands it can execute, as the unit's host reports it.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::nexus_id::NO_NEXUS;
use crate::{LogicalUnit, Sense, UnitAttention};

/// The report of the host about a unit's backing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum BackingCondition {
    /// Every command is executed.
    #[default]
    Usable = 0,
    /// Reads are executed. Writes and flushes are rejected, since an earlier flush failed.
    WritesStopped = 1,
    /// Commands that need the medium are rejected.
    Unavailable = 2,
}

/// A [`BackingCondition`] that every command reads.
#[derive(Default)]
pub(crate) struct ConditionCell(AtomicU8);

impl ConditionCell {
    pub(crate) fn current(&self) -> BackingCondition {
        match self.0.load(Ordering::Acquire) {
            0 => BackingCondition::Usable,
            1 => BackingCondition::WritesStopped,
            _ => BackingCondition::Unavailable,
        }
    }

    /// Returns the reason to reject a command that needs the medium, if there is one.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Sense> {
        if self.0.load(Ordering::Acquire) < BackingCondition::Unavailable as u8 {
            Ok(())
        } else {
            Err(Sense::unavailable())
        }
    }

    /// Returns the sense data of TEST UNIT READY and REQUEST SENSE, unless the unit is ready.
    pub(crate) fn sense(&self) -> Option<Sense> {
        match self.current() {
            BackingCondition::Usable => None,
            // The same response as for each write: SPC-4 6.47 leaves the sense key to the device.
            BackingCondition::WritesStopped => Some(Sense::write_error()),
            BackingCondition::Unavailable => Some(Sense::unavailable()),
        }
    }
}

impl LogicalUnit {
    /// Sets the condition of the backing. When a unit becomes available again, its initiators get a unit attention,
    /// since their knowledge of the medium may be out of date (SPC-4 5.14.1).
    pub fn set_condition(&self, condition: BackingCondition) {
        let before = self.condition().0.swap(condition as u8, Ordering::AcqRel);
        if before == BackingCondition::Unavailable as u8
            && condition != BackingCondition::Unavailable
        {
            self.raise_except(NO_NEXUS, UnitAttention::MediumMayHaveChanged);
        }
    }
}
