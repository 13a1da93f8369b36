//! The soft thresholds of a thin unit (SBC-3 4.7.3.8). When its space crosses a threshold, the initiators get one unit
//! attention. They get it again only after the space has crossed back.
//!
//! The unit asks the store for its space from time to time, never during a write. A write only counts its blocks.

use crate::target::Nexus;
use crate::{LogicalUnit, UnitAttention};
use parking_lot::Mutex;
use sarsen_block::{Geometry, Space};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The minimum size of a threshold set, as a power of two of blocks: 1 MiB with blocks of 512 bytes. Thresholds count
/// in threshold sets.
const LEAST_EXPONENT: u8 = 11;
/// The number of written threshold sets after which the unit asks the store.
const SETS_BETWEEN_LOOKS: u64 = 16;
/// The default threshold of the available resource: this fraction of the blocks that the unit can store. An initiator
/// can select another.
const DEFAULT_PART: u64 = 5;

/// Returns THRESHOLD EXPONENT: log2 of the blocks in a threshold set. The number of all sets of the medium fits in 32
/// bits.
pub(crate) fn exponent(geometry: Geometry) -> u8 {
    let bits = u64::BITS - geometry.block_count.leading_zeros();
    LEAST_EXPONENT.max(bits.saturating_sub(u32::BITS) as u8)
}

/// One threshold. Its field in [`Provisioning`] defines its resource and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Threshold {
    /// ENABLED.
    pub(crate) enabled: bool,
    /// THRESHOLD COUNT, in threshold sets.
    pub(crate) count: u32,
}

/// The provisioning parameters of the mode pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Provisioning {
    /// LBPERE (SBC-3 6.5.7): thresholds are reported.
    pub(crate) error_reporting: bool,
    /// SITUA (SBC-3 6.5.8): only the nexus whose write crossed a threshold gets the unit attention.
    pub(crate) single_initiator: bool,
    /// Crossed when the available space falls to this value.
    pub(crate) available: Threshold,
    /// Crossed when the used space reaches this value.
    pub(crate) used: Threshold,
}

impl Provisioning {
    /// Returns the default parameters. `space` is the space of the store, if known. If the size of the unit exceeds it,
    /// the default threshold is a fraction of the space, not of the size.
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

    /// Returns parameters with all changeable bits set, or none.
    pub(crate) fn extreme(set: bool) -> Self {
        let threshold = Threshold { enabled: set, count: if set { u32::MAX } else { 0 } };
        Self { error_reporting: set, single_initiator: set, available: threshold, used: threshold }
    }

    /// Returns which thresholds are crossed.
    fn passed(&self, space: Space, exponent: u8) -> [bool; 2] {
        let sets = |blocks: u64| blocks >> exponent;
        let is_passed = |threshold: Threshold, reached| threshold.enabled && reached;
        [
            is_passed(self.available, sets(space.available_blocks) <= self.available.count.into()),
            is_passed(self.used, sets(space.used_blocks) >= self.used.count.into()),
        ]
    }
}

/// The reported thresholds, and the count that triggers the next check.
#[derive(Default)]
pub(crate) struct Thresholds {
    armed: AtomicBool,
    /// Blocks that were written since the last check.
    written: AtomicU64,
    reported: Mutex<[bool; 2]>,
}

impl Thresholds {
    /// Applies the parameters of the mode pages. A threshold that is still crossed is reported again.
    pub(crate) fn configure(&self, provisioning: &Provisioning) {
        let enabled = provisioning.available.enabled || provisioning.used.enabled;
        self.armed.store(provisioning.error_reporting && enabled, Ordering::Relaxed);
        *self.reported.lock() = [false; 2];
        // The next write triggers a check.
        self.written.store(u64::MAX / 2, Ordering::Relaxed);
    }

    /// Counts blocks that are about to be written.
    pub(crate) fn note(&self, block_count: u64) {
        if self.armed.load(Ordering::Relaxed) {
            self.written.fetch_add(block_count, Ordering::Relaxed);
        }
    }

    /// Returns whether enough was written since the last check. If so, the caller checks.
    fn take_due(&self, unit: &LogicalUnit) -> bool {
        if !self.armed.load(Ordering::Relaxed) {
            return false;
        }
        let due = SETS_BETWEEN_LOOKS << exponent(unit.geometry());
        self.written.load(Ordering::Relaxed) >= due
            && self.written.swap(0, Ordering::Relaxed) >= due
    }
}

/// Checks the space of a unit in the background, if enough was written since the last check.
pub(crate) fn look_when_due(unit: &Arc<LogicalUnit>, nexus: &Nexus) {
    if !unit.thresholds().take_due(unit) {
        return;
    }
    let (unit, writer) = (unit.clone(), nexus.id);
    nexus.device.array().host().spawn(Box::new(move || {
        Box::pin(async move {
            // If the store reports an error, a later check asks it again.
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
    let mut reported = thresholds.reported.lock();
    let is_new = passed.iter().zip(*reported).any(|(&passed, reported)| passed && !reported);
    *reported = passed;
    drop(reported);
    if !is_new {
        return;
    }
    let attention = UnitAttention::ThinProvisioningSoftThresholdReached;
    if provisioning.single_initiator {
        unit.raise_for(writer, attention)
    } else {
        unit.raise_except(crate::nexus_id::NO_NEXUS, attention)
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
