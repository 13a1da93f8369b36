//! The condition of a unit's store: which commands the unit executes, and what its initiators learn about changes.

use sarsen_block::{StatusListener, Store, Usability};

use crate::nexus_id::NO_NEXUS;
use crate::{LogicalUnit, Sense, UnitAttention};

/// The status of the store, as initiators know it.
#[derive(Clone, Copy)]
pub(crate) struct KnownStatus {
    block_count: u64,
    usability: Usability,
}

impl KnownStatus {
    /// Returns the current status.
    pub(crate) fn of(store: &dyn Store) -> Self {
        let block_count = store.geometry().block_count;
        Self { block_count, usability: store.status().usability() }
    }
}

impl LogicalUnit {
    /// Returns the reason to reject a command that needs the medium, if the store is out of service.
    #[inline]
    pub(crate) fn check_store(&self) -> Result<(), Sense> {
        if self.status().usability() == Usability::OutOfService {
            Err(Sense::unavailable())
        } else {
            Ok(())
        }
    }

    /// Returns the sense data of TEST UNIT READY and REQUEST SENSE, unless the store is usable.
    pub(crate) fn store_sense(&self) -> Option<Sense> {
        match self.status().usability() {
            Usability::Usable => None,
            // The same response as for each write: SPC-4 6.47 leaves the sense key to the device.
            Usability::WritesStopped => Some(Sense::write_error()),
            Usability::OutOfService => Some(Sense::unavailable()),
        }
    }
}

impl StatusListener for LogicalUnit {
    /// Initiators get a unit attention for a new size. They get another one when the unit is available again, since
    /// their knowledge of the medium may be out of date (SPC-4 5.14.1).
    fn status_changed(&self) {
        let mut known = self.known_status();
        let (before, now) = (*known, KnownStatus::of(&**self.store()));
        *known = now;
        if before.block_count != now.block_count {
            self.raise_except(NO_NEXUS, UnitAttention::CapacityDataHasChanged);
        }
        let was_out = before.usability == Usability::OutOfService;
        if was_out && now.usability != Usability::OutOfService {
            self.raise_except(NO_NEXUS, UnitAttention::MediumMayHaveChanged);
        }
    }
}
