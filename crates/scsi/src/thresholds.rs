//! The soft thresholds of a thin unit (SBC-3 4.7.3.8): when its room passes one of them, the
//! initiators are told by a unit attention, once until it has passed back.
//!
//! What room there is, the store is asked now and then, never on the way of a write: a write only
//! counts its blocks.

use crate::nexus::Nexus;
use crate::{LogicalUnit, UnitAttention};
use sarsen_block::{Geometry, Space};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A threshold set, the unit in which thresholds count, is this many blocks at least, as a power of
/// two: 1 MiB of blocks of 512 bytes.
const LEAST_EXPONENT: u8 = 11;
/// The store is asked after so many threshold sets were written.
const SETS_BETWEEN_LOOKS: u64 = 16;
/// The default threshold of the available resource: this fraction of the blocks that the unit can store. An initiator
/// can select another.
const DEFAULT_PART: u64 = 5;

/// THRESHOLD EXPONENT: log2 of the blocks in a threshold set, so that the count of all sets of the
/// medium fits its 32 bits.
pub(crate) fn exponent(geometry: Geometry) -> u8 {
    let bits = u64::BITS - geometry.block_count.leading_zeros();
    LEAST_EXPONENT.max(bits.saturating_sub(u32::BITS) as u8)
}

/// One threshold. What it looks at, and in which direction, is fixed by its place in
/// [`Provisioning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    /// ENABLED.
    pub(crate) enabled: bool,
    /// THRESHOLD COUNT, in threshold sets.
    pub(crate) count: u32,
}

/// What the mode pages say of provisioning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Provisioning {
    /// LBPERE (SBC-3 6.5.7): thresholds are told at all.
    pub(crate) error_reporting: bool,
    /// SITUA (SBC-3 6.5.8): only the nexus whose write passed a threshold is told.
    pub(crate) single_initiator: bool,
    /// Passed when no more than this is available.
    pub(crate) available: Threshold,
    /// Passed when this much is used.
    pub(crate) used: Threshold,
}

impl Provisioning {
    /// `space` is the space of the store, where known. A unit whose size exceeds it is compared with the space, not
    /// with the size.
    pub(crate) fn default_of(geometry: Geometry, space: Option<Space>) -> Self {
        let room = space
            .map_or(u64::MAX, |space| space.used_blocks.saturating_add(space.available_blocks));
        let sets = (geometry.block_count.min(room) / DEFAULT_PART) >> exponent(geometry);
        Self {
            error_reporting: true,
            single_initiator: false,
            available: Threshold { enabled: true, count: u32::try_from(sets).unwrap_or(u32::MAX) },
            used: Threshold { enabled: false, count: 0 },
        }
    }

    /// All bits that can be set, or none.
    pub(crate) fn extreme(set: bool) -> Self {
        let threshold = Threshold { enabled: set, count: if set { u32::MAX } else { 0 } };
        Self { error_reporting: set, single_initiator: set, available: threshold, used: threshold }
    }

    /// Which thresholds have been passed.
    fn passed(&self, space: Space, exponent: u8) -> [bool; 2] {
        let sets = |blocks: u64| blocks >> exponent;
        let is_passed = |threshold: Threshold, reached| threshold.enabled && reached;
        [
            is_passed(self.available, sets(space.available_blocks) <= self.available.count.into()),
            is_passed(self.used, sets(space.used_blocks) >= self.used.count.into()),
        ]
    }
}

/// Which thresholds have been passed, and whether it is time to look again.
#[derive(Default)]
pub(crate) struct Thresholds {
    armed: AtomicBool,
    /// Blocks that were written since the last look.
    written: AtomicU64,
    reported: Mutex<[bool; 2]>,
}

impl Thresholds {
    /// Takes up what the mode pages say: what was told before is told again if it still holds.
    pub(crate) fn configure(&self, provisioning: &Provisioning) {
        let enabled = provisioning.available.enabled || provisioning.used.enabled;
        self.armed.store(provisioning.error_reporting && enabled, Ordering::Relaxed);
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = [false; 2];
        // The next write looks.
        self.written.store(u64::MAX / 2, Ordering::Relaxed);
    }

    /// Blocks are about to be written.
    pub(crate) fn note(&self, block_count: u64) {
        if self.armed.load(Ordering::Relaxed) {
            self.written.fetch_add(block_count, Ordering::Relaxed);
        }
    }

    /// Whether enough was written since the last look; if so, the caller looks.
    fn take_due(&self, unit: &LogicalUnit) -> bool {
        if !self.armed.load(Ordering::Relaxed) {
            return false;
        }
        let due = SETS_BETWEEN_LOOKS << exponent(unit.geometry());
        self.written.load(Ordering::Relaxed) >= due
            && self.written.swap(0, Ordering::Relaxed) >= due
    }
}

/// Looks at the room of a unit, beside the command, if enough was written since the last time.
pub(crate) fn look_when_due(unit: &Arc<LogicalUnit>, nexus: &Nexus) {
    if !unit.thresholds().take_due(unit) {
        return;
    }
    let (unit, writer) = (unit.clone(), nexus.id);
    nexus.device.array().host().spawn(Box::new(move || {
        Box::pin(async move {
            // A store that cannot tell now is asked again later.
            if let Ok(space) = unit.store().space().wait().await {
                tell(&unit, space, writer);
            }
        })
    }));
}

fn tell(unit: &LogicalUnit, space: Space, writer: u64) {
    let provisioning = unit.modes().current().provisioning;
    let passed = provisioning.passed(space, exponent(unit.geometry()));
    let thresholds = unit.thresholds();
    let mut reported = thresholds.reported.lock().unwrap_or_else(PoisonError::into_inner);
    let is_new = passed.iter().zip(*reported).any(|(&passed, reported)| passed && !reported);
    *reported = passed;
    drop(reported);
    if !is_new {
        return;
    }
    let attention = UnitAttention::ThinProvisioningSoftThresholdReached;
    match provisioning.single_initiator {
        true => unit.raise_for(writer, attention),
        false => unit.raise_except(crate::logical_unit::NO_NEXUS, attention),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sarsen_block::BlockSize;

    #[test]
    fn sbc3_6_6_5_threshold_counts_fit_their_fields() {
        let exponent =
            |block_count| exponent(Geometry { block_size: BlockSize::B512, block_count });
        assert_eq!(exponent(1), LEAST_EXPONENT);
        assert_eq!(exponent(1 << 40), LEAST_EXPONENT);
        for bits in 44..64 {
            let count = (1u64 << bits) - 1;
            assert!(count >> exponent(count) <= u32::MAX.into(), "{bits}");
        }
    }
}
