//! The health of a volume: whether its backing is usable. Any thread that finds a problem reports it here. The
//! status of the volume's store changes at once, and the server shows the problem.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::{StoreStatus, Usability};

/// The health of a volume. A reason follows the volume's name in a sentence, and contains the remedy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VolumeHealth {
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
pub enum Aspect {
    /// The file or device is the one that was opened, and complete.
    Backing,
    /// Flushed data is on the disk. While this aspect has a problem, writes are stopped.
    Flush,
    /// The volume is being filled from its image, without a problem.
    Filling,
}

/// Returns what a store still carries out after a report.
fn usability(aspect: Aspect, health: &VolumeHealth) -> Usability {
    match (aspect, health) {
        (_, VolumeHealth::OutOfService { .. }) => Usability::OutOfService,
        (Aspect::Flush, VolumeHealth::Degraded { .. }) => Usability::WritesStopped,
        _ => Usability::Usable,
    }
}

/// The health of one volume, from its opening to its closing.
pub struct Health {
    /// The status of its store, which passes the usability on to the views of the volume.
    status: Arc<StoreStatus>,
    reports: Mutex<BTreeMap<Aspect, VolumeHealth>>,
}

impl Health {
    /// Creates the health of a store that is usable.
    pub fn new(status: Arc<StoreStatus>) -> Self {
        Self { status, reports: Mutex::default() }
    }

    fn reports(&self) -> MutexGuard<'_, BTreeMap<Aspect, VolumeHealth>> {
        self.reports.lock()
    }

    /// Returns the requests that the store carries out now.
    #[inline]
    pub fn usability(&self) -> Usability {
        self.status.usability()
    }

    /// Stores a report about one aspect. Returns whether that aspect was healthy before and is not now.
    pub fn report(&self, aspect: Aspect, health: VolumeHealth) -> bool {
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

    /// Stores the report of a failed flush. `place` is the file or device, or the store. Returns whether it is the first.
    pub fn report_failed_flush(&self, place: &str, error: &dyn Display) -> bool {
        let reason = format!(
            "takes no writes: {place} failed to flush ({error}). Writes since the last flush that succeeded may be \
             lost. Check the disk and the kernel's log, then run `sarsen volume reattach` for it"
        );
        self.report(Aspect::Flush, VolumeHealth::Degraded { reason })
    }

    /// Returns the worst of all reports.
    pub fn current(&self) -> VolumeHealth {
        let reports = self.reports();
        let is_out = |health: &&VolumeHealth| matches!(health, VolumeHealth::OutOfService { .. });
        let worst = reports.values().find(is_out).or_else(|| reports.values().next());
        worst.cloned().unwrap_or_default()
    }

    /// Returns the last report about one aspect.
    pub fn of(&self, aspect: Aspect) -> VolumeHealth {
        self.reports().get(&aspect).cloned().unwrap_or_default()
    }

    fn publish(&self, reports: &BTreeMap<Aspect, VolumeHealth>) {
        let usabilities = reports.iter().map(|(aspect, health)| usability(*aspect, health));
        self.status.set_usability(usabilities.max().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worst_reported_health_holds_until_recovery() {
        let health = Health::new(StoreStatus::new(8));
        let degraded = || VolumeHealth::Degraded { reason: "takes no writes".into() };
        let out = || VolumeHealth::OutOfService { reason: "is out of service".into() };
        assert!(health.report(Aspect::Flush, degraded()), "it was well");
        assert!(!health.report(Aspect::Flush, degraded()));
        assert_eq!((health.usability(), health.current()), (Usability::WritesStopped, degraded()));
        assert!(health.report(Aspect::Backing, out()));
        assert_eq!((health.usability(), health.current()), (Usability::OutOfService, out()));
        health.report(Aspect::Backing, VolumeHealth::Online);
        assert_eq!((health.usability(), health.current()), (Usability::WritesStopped, degraded()));
        health.report(Aspect::Flush, VolumeHealth::Online);
        assert_eq!(
            (health.usability(), health.current()),
            (Usability::Usable, VolumeHealth::Online)
        );
    }
}
