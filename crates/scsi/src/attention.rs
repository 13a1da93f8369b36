//! Unit attention conditions: a short queue for each I_T_L nexus (SAM-5 5.14, SPC-4 5.11).

use crate::{AdditionalSense, Lun, Sense, SenseKey};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// A unit attention condition. The order is the precedence: the server reports earlier variants first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnitAttention {
    /// The nexus is new, or the target was cold reset.
    PowerOn,
    /// A reset by task management.
    Reset,
    /// The set of logical units of the target changed.
    ReportedLunsDataHasChanged,
    /// Another medium may be in the drive.
    MediumMayHaveChanged,
    /// Another initiator set the identifying information.
    DeviceIdentifierChanged,
    /// INQUIRY data or a VPD page changed.
    InquiryDataHasChanged,
    /// The capacity of the medium changed.
    CapacityDataHasChanged,
    /// A target port group changed its access state.
    AsymmetricAccessStateChanged,
    /// The implicit transition of a target port group failed.
    ImplicitTransitionFailed,
    /// Another initiator preempted the persistent reservation.
    ReservationsPreempted,
    /// The persistent reservation of all registrants was released.
    ReservationsReleased,
    /// Another initiator removed this initiator's registration.
    RegistrationsPreempted,
    /// Another initiator changed the mode parameters.
    ModeParametersChanged,
    /// Another initiator changed the log parameters.
    LogParametersChanged,
    /// Another initiator set the timestamp.
    TimestampChanged,
    /// Another initiator cleared the task set.
    CommandsClearedByAnotherInitiator,
    /// The device server cleared the task set.
    CommandsClearedByDeviceServer,
    /// The server returned BUSY for a command.
    PreviousBusyStatus,
    /// The server returned TASK SET FULL for a command.
    PreviousTaskSetFullStatus,
    /// The server returned RESERVATION CONFLICT for a command.
    PreviousReservationConflictStatus,
    /// The available space of a thin volume fell below a threshold, or its used space exceeded one.
    ThinProvisioningSoftThresholdReached,
    /// The server reports an informational exception.
    FailurePredictionThresholdExceeded,
}

impl UnitAttention {
    const fn additional(self) -> AdditionalSense {
        match self {
            Self::PowerOn => AdditionalSense::POWER_ON_RESET_OR_BUS_DEVICE_RESET_OCCURRED,
            Self::Reset => AdditionalSense::BUS_DEVICE_RESET_FUNCTION_OCCURRED,
            Self::ReportedLunsDataHasChanged => AdditionalSense::REPORTED_LUNS_DATA_HAS_CHANGED,
            Self::MediumMayHaveChanged => AdditionalSense::NOT_READY_TO_READY_CHANGE,
            Self::DeviceIdentifierChanged => AdditionalSense::DEVICE_IDENTIFIER_CHANGED,
            Self::InquiryDataHasChanged => AdditionalSense::INQUIRY_DATA_HAS_CHANGED,
            Self::CapacityDataHasChanged => AdditionalSense::CAPACITY_DATA_HAS_CHANGED,
            Self::AsymmetricAccessStateChanged => AdditionalSense::ASYMMETRIC_ACCESS_STATE_CHANGED,
            Self::ImplicitTransitionFailed => {
                AdditionalSense::IMPLICIT_ASYMMETRIC_ACCESS_STATE_TRANSITION_FAILED
            }
            Self::ReservationsPreempted => AdditionalSense::RESERVATIONS_PREEMPTED,
            Self::ReservationsReleased => AdditionalSense::RESERVATIONS_RELEASED,
            Self::RegistrationsPreempted => AdditionalSense::REGISTRATIONS_PREEMPTED,
            Self::ModeParametersChanged => AdditionalSense::MODE_PARAMETERS_CHANGED,
            Self::LogParametersChanged => AdditionalSense::LOG_PARAMETERS_CHANGED,
            Self::TimestampChanged => AdditionalSense::TIMESTAMP_CHANGED,
            Self::CommandsClearedByAnotherInitiator => {
                AdditionalSense::COMMANDS_CLEARED_BY_ANOTHER_INITIATOR
            }
            Self::CommandsClearedByDeviceServer => {
                AdditionalSense::COMMANDS_CLEARED_BY_DEVICE_SERVER
            }
            Self::PreviousBusyStatus => AdditionalSense::PREVIOUS_BUSY_STATUS,
            Self::PreviousTaskSetFullStatus => AdditionalSense::PREVIOUS_TASK_SET_FULL_STATUS,
            Self::PreviousReservationConflictStatus => {
                AdditionalSense::PREVIOUS_RESERVATION_CONFLICT_STATUS
            }
            Self::ThinProvisioningSoftThresholdReached => {
                AdditionalSense::THIN_PROVISIONING_SOFT_THRESHOLD_REACHED
            }
            Self::FailurePredictionThresholdExceeded => {
                AdditionalSense::FAILURE_PREDICTION_THRESHOLD_EXCEEDED
            }
        }
    }

    /// Returns whether the condition reports an earlier status (UA_INTLCK_CTRL 11b).
    const fn tells_a_status(self) -> bool {
        matches!(
            self,
            Self::PreviousBusyStatus
                | Self::PreviousTaskSetFullStatus
                | Self::PreviousReservationConflictStatus
        )
    }

    const fn is_told_by_a_reset(self) -> bool {
        matches!(
            self,
            Self::ModeParametersChanged
                | Self::LogParametersChanged
                | Self::TimestampChanged
                | Self::CommandsClearedByAnotherInitiator
                | Self::CommandsClearedByDeviceServer
        )
    }

    /// Returns the sense data that reports this condition.
    pub const fn sense(self) -> Sense {
        Sense::new(SenseKey::UnitAttention, self.additional())
    }
}

/// The pending conditions of one I_T_L nexus. Each kind is pending only once, so the number of kinds limits the queue.
#[derive(Default)]
pub(crate) struct Attentions {
    waiting: AtomicBool,
    queue: Mutex<Vec<UnitAttention>>,
    /// The listener that is notified at once of some conditions, and the LUN of the unit in this nexus.
    listener: Mutex<Option<(Lun, Listener)>>,
}

/// A callback for conditions that an initiator should learn of even if it sends no command. Its argument is the LUN of
/// the unit. It must not block.
pub type Listener = Arc<dyn Fn(Lun, UnitAttention) + Send + Sync>;

impl Attentions {
    /// Returns whether any condition is pending, with one relaxed load for each command. The next command reports a
    /// condition that is raised at the same moment.
    pub(crate) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed)
    }

    fn queue(&self) -> MutexGuard<'_, Vec<UnitAttention>> {
        self.queue.lock()
    }

    pub(crate) fn listen(&self, lun: Lun, listener: &Listener) {
        let mut place = self.listener.lock();
        *place = Some((lun, listener.clone()));
    }

    pub(crate) fn raise(&self, attention: UnitAttention) {
        if attention == UnitAttention::CapacityDataHasChanged
            && let Some((lun, listener)) = &*self.listener.lock()
        {
            listener(*lun, attention);
        }
        let mut queue = self.queue();
        if let Err(position) = queue.binary_search(&attention) {
            queue.insert(position, attention);
        }
        // A reset itself restores the mode parameters and ends the tasks, and power on includes all that a reset
        // reports. Conditions that initiators do not learn otherwise (units, capacity) stay.
        let resets = matches!(attention, UnitAttention::PowerOn | UnitAttention::Reset);
        queue.retain(|&waiting| !(resets && waiting.is_told_by_a_reset()));
        if queue.first() == Some(&UnitAttention::PowerOn) {
            queue.retain(|&waiting| waiting != UnitAttention::Reset);
        }
        self.waiting.store(true, Ordering::Relaxed);
    }

    /// Raises the condition unless a previous status is pending already (SPC-4 7.5.8: one condition for any number of
    /// them).
    pub(crate) fn raise_once(&self, attention: UnitAttention) {
        if !self.queue().iter().any(|waiting| waiting.tells_a_status()) {
            self.raise(attention);
        }
    }

    /// Returns the condition that would be reported next.
    pub(crate) fn first(&self) -> Option<UnitAttention> {
        self.queue().first().copied()
    }

    pub(crate) fn take(&self) -> Option<UnitAttention> {
        let mut queue = self.queue();
        let first = (!queue.is_empty()).then(|| queue.remove(0));
        self.waiting.store(!queue.is_empty(), Ordering::Relaxed);
        first
    }

    pub(crate) fn clear(&self, attention: UnitAttention) {
        let mut queue = self.queue();
        queue.retain(|&waiting| waiting != attention);
        self.waiting.store(!queue.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spc4_5_11_unit_attentions_are_reported_once_by_precedence() {
        let attentions = Attentions::default();
        for attention in [
            UnitAttention::ModeParametersChanged,
            UnitAttention::ReportedLunsDataHasChanged,
            UnitAttention::CapacityDataHasChanged,
            UnitAttention::PowerOn,
            UnitAttention::Reset,
            UnitAttention::CapacityDataHasChanged,
        ] {
            attentions.raise(attention);
        }
        attentions.clear(UnitAttention::ReportedLunsDataHasChanged);
        assert_eq!(attentions.take(), Some(UnitAttention::PowerOn));
        assert!(attentions.is_waiting());
        assert_eq!(attentions.take(), Some(UnitAttention::CapacityDataHasChanged));
        assert!(!attentions.is_waiting());
        assert_eq!(attentions.take(), None);
    }
}
