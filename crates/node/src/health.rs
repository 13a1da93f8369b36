//! The health of a volume: whether its backing is usable. Any thread that finds a problem reports it here. The volume's
//! store and its unit act on it at once, and the engine reports it as a problem.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use sarsen_scsi::{BackingCondition, LogicalUnit};

/// The health of a volume. A reason follows the volume's name in a sentence, and contains the remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum VolumeHealth {
    /// Completely usable.
    #[default]
    Online,
    /// The volume is served, with a problem.
    Degraded {
        /// `takes no writes: …`.
        reason: String,
    },
    /// Commands that need its medium fail.
    OutOfService {
        /// `is out of service: …`.
        reason: String,
    },
}

/// The aspect that a report concerns. The last report of each aspect is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Aspect {
    /// The file or device is the one that was opened, and complete.
    Backing,
    /// Flushed data is on the disk. While this aspect has a problem, writes are stopped.
    Flush,
}

/// The operations that a store may carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum StoreUsability {
    Usable = 0,
    WritesStopped = 1,
    OutOfService = 2,
}

impl StoreUsability {
    fn of(aspect: Aspect, health: &VolumeHealth) -> Self {
        match (aspect, health) {
            (_, VolumeHealth::OutOfService { .. }) => Self::OutOfService,
            (Aspect::Flush, VolumeHealth::Degraded { .. }) => Self::WritesStopped,
            _ => Self::Usable,
        }
    }
}

/// The health of one volume, from its opening to its closing.
#[derive(Default)]
pub(crate) struct Health {
    /// The level, which each request reads.
    level: AtomicU8,
    reports: Mutex<BTreeMap<Aspect, VolumeHealth>>,
    unit: OnceLock<Weak<LogicalUnit>>,
}

impl Health {
    /// Attaches the unit that reports the health to its initiators from now on.
    pub(crate) fn attach(&self, unit: Weak<LogicalUnit>) {
        let reports = self.reports();
        let _ = self.unit.set(unit);
        self.publish(&reports);
    }

    fn reports(&self) -> MutexGuard<'_, BTreeMap<Aspect, VolumeHealth>> {
        self.reports.lock()
    }

    /// Returns the operations that a store may execute now.
    #[inline]
    pub(crate) fn level(&self) -> StoreUsability {
        match self.level.load(Ordering::Acquire) {
            0 => StoreUsability::Usable,
            1 => StoreUsability::WritesStopped,
            _ => StoreUsability::OutOfService,
        }
    }

    /// Stores a report about one aspect. Returns whether that aspect was healthy before and is not now.
    pub(crate) fn report(&self, aspect: Aspect, health: VolumeHealth) -> bool {
        let mut reports = self.reports();
        let (was_well, is_well) = (!reports.contains_key(&aspect), health == VolumeHealth::Online);
        if is_well {
            drop(reports.remove(&aspect))
        } else {
            drop(reports.insert(aspect, health))
        }
        if !(was_well && is_well) {
            self.publish(&reports);
        }
        was_well && !is_well
    }

    /// Returns the worst of all reports.
    pub(crate) fn current(&self) -> VolumeHealth {
        let reports = self.reports();
        let is_out = |health: &&VolumeHealth| matches!(health, VolumeHealth::OutOfService { .. });
        let worst = reports.values().find(is_out).or_else(|| reports.values().next());
        worst.cloned().unwrap_or_default()
    }

    /// Returns the last report about one aspect.
    pub(crate) fn of(&self, aspect: Aspect) -> VolumeHealth {
        self.reports().get(&aspect).cloned().unwrap_or_default()
    }

    fn publish(&self, reports: &BTreeMap<Aspect, VolumeHealth>) {
        let levels = reports.iter().map(|(aspect, health)| StoreUsability::of(*aspect, health));
        let level = levels.max().unwrap_or(StoreUsability::Usable);
        self.level.store(level as u8, Ordering::Release);
        if let Some(unit) = self.unit.get().and_then(Weak::upgrade) {
            unit.set_condition(match level {
                StoreUsability::Usable => BackingCondition::Usable,
                StoreUsability::WritesStopped => BackingCondition::WritesStopped,
                StoreUsability::OutOfService => BackingCondition::Unavailable,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_reported_health_holds_until_recovery() {
        let health = Health::default();
        let degraded = || VolumeHealth::Degraded { reason: "takes no writes".into() };
        let out = || VolumeHealth::OutOfService { reason: "is out of service".into() };
        assert!(health.report(Aspect::Flush, degraded()), "it was well");
        assert!(!health.report(Aspect::Flush, degraded()));
        assert_eq!((health.level(), health.current()), (StoreUsability::WritesStopped, degraded()));
        assert!(health.report(Aspect::Backing, out()));
        assert_eq!((health.level(), health.current()), (StoreUsability::OutOfService, out()));
        health.report(Aspect::Backing, VolumeHealth::Online);
        assert_eq!((health.level(), health.current()), (StoreUsability::WritesStopped, degraded()));
        health.report(Aspect::Flush, VolumeHealth::Online);
        assert_eq!(
            (health.level(), health.current()),
            (StoreUsability::Usable, VolumeHealth::Online)
        );
    }
}
