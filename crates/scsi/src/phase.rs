//! The sense data of the phase of the whole medium, and the commands that each phase permits.

use crate::flags::Flags;
use crate::{AdditionalSense, LogicalUnit, Sense, SenseKey};
pub(crate) use sarsen_volume::Phase;
use sarsen_volume::{ExclusiveGuard, MediumPhase, NotUsable, Regions, SharedGuard};

/// Returns the sense data of a phase, if it has any.
pub(crate) fn sense(medium: &MediumPhase) -> Option<Sense> {
    let not_ready = |additional| {
        Some(Sense::new(SenseKey::NotReady, additional).with_progress(medium.progress()))
    };
    let medium_error = |additional| Some(Sense::new(SenseKey::MediumError, additional));
    match medium.current() {
        Phase::Usual => None,
        Phase::Formatting => not_ready(AdditionalSense::LOGICAL_UNIT_NOT_READY_FORMAT_IN_PROGRESS),
        Phase::Sanitizing => {
            not_ready(AdditionalSense::LOGICAL_UNIT_NOT_READY_SANITIZE_IN_PROGRESS)
        }
        Phase::FormatFailed => medium_error(AdditionalSense::FORMAT_COMMAND_FAILED),
        Phase::SanitizeFailed | Phase::SanitizeFailedMayExit => {
            medium_error(AdditionalSense::SANITIZE_COMMAND_FAILED)
        }
        Phase::Halted => medium_error(AdditionalSense::WRITE_ERROR),
    }
}

/// Rejects a command with these flags if the phase requires it (SBC-3 4.11.3, 5.3.1).
#[inline]
pub(crate) fn check(medium: &MediumPhase, flags: Flags) -> Result<(), Sense> {
    match medium.current() {
        Phase::Usual => Ok(()),
        phase => check_in(medium, phase, flags),
    }
}

fn check_in(medium: &MediumPhase, phase: Phase, flags: Flags) -> Result<(), Sense> {
    let passes = match phase {
        Phase::Usual => true,
        Phase::Formatting | Phase::Sanitizing => flags.contains(Flags::ALLOWED_DURING_OPERATION),
        Phase::FormatFailed
        | Phase::SanitizeFailed
        | Phase::SanitizeFailedMayExit
        | Phase::Halted => {
            !flags.contains(Flags::NEEDS_MEDIUM) || flags.contains(Flags::ALLOWED_AFTER_FAILURE)
        }
    };
    if passes { Ok(()) } else { sense(medium).map_or(Ok(()), Err) }
}

impl LogicalUnit {
    /// Returns the sense data of an unusable medium. The phase may have become usual again meanwhile.
    pub(crate) fn phase_sense(&self, _: NotUsable) -> Sense {
        let busy = AdditionalSense::LOGICAL_UNIT_IS_IN_PROCESS_OF_BECOMING_READY;
        sense(self.medium_phase()).unwrap_or(Sense::new(SenseKey::NotReady, busy))
    }

    /// Waits for shared access to regions of the write gate.
    pub(crate) async fn lock_writes_shared(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<SharedGuard, Sense> {
        self.volume().lock_writes_shared(regions).await.map_err(|refused| self.phase_sense(refused))
    }

    /// Waits for exclusive access to regions of the write gate.
    pub(crate) async fn lock_writes_exclusive(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<ExclusiveGuard, Sense> {
        self.volume()
            .lock_writes_exclusive(regions)
            .await
            .map_err(|refused| self.phase_sense(refused))
    }

    /// Waits until no atomic write happens in these regions, if that matters. See
    /// [`sarsen_volume::Volume::guard_read`].
    pub(crate) async fn guard_read(
        &self,
        regions: impl Into<Regions>,
    ) -> Result<Option<SharedGuard>, Sense> {
        self.volume().guard_read(regions).await.map_err(|refused| self.phase_sense(refused))
    }
}
