//! The output of the device server: status, data and sense data.

use crate::{AdditionalSense, LogicalUnit, Sense, SenseKey};
use sarsen_block::Data;
use sarsen_volume::statistics::Failure;
use std::sync::Arc;

/// The status of a command (SAM-5 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// GOOD.
    Good = 0x00,
    /// CHECK CONDITION, with sense data.
    CheckCondition = 0x02,
    /// CONDITION MET.
    ConditionMet = 0x04,
    /// BUSY.
    Busy = 0x08,
    /// RESERVATION CONFLICT.
    ReservationConflict = 0x18,
    /// TASK SET FULL.
    TaskSetFull = 0x28,
    /// ACA ACTIVE.
    AcaActive = 0x30,
    /// TASK ABORTED.
    TaskAborted = 0x40,
}

impl Status {
    /// Returns the status of a byte; `None` for an obsolete or unknown one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x00 => Self::Good,
            0x02 => Self::CheckCondition,
            0x04 => Self::ConditionMet,
            0x08 => Self::Busy,
            0x18 => Self::ReservationConflict,
            0x28 => Self::TaskSetFull,
            0x30 => Self::AcaActive,
            0x40 => Self::TaskAborted,
            _ => return None,
        })
    }
}

/// The tasks that a command ends. The transport ends them before it sends the response of that command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedTasks {
    /// The nexuses whose tasks on the command's unit end (see [`crate::NexusHandle::id`]). The command itself does not
    /// end.
    pub nexuses: Vec<u64>,
    /// True if tasks of other nexuses end with TASK ABORTED (TAS, SPC-4 7.5.8) instead of without a response.
    pub answered: bool,
}

/// The tasks of one unit that end.
#[derive(Clone, Debug)]
pub struct AbortedUnitTasks {
    /// The unit. Other nexuses may have it at other LUNs.
    pub unit: Arc<LogicalUnit>,
    /// The nexuses whose tasks end, and the way in which they end.
    pub abort: AbortedTasks,
}

/// The result of a command.
#[derive(Debug)]
pub struct Completion {
    /// The status.
    pub status: Status,
    /// All Data-In that the CDB requested, within its allocation length. The transport limits it to the length that the
    /// initiator expects and reports the residual.
    pub data_in: Data,
    /// Number of bytes after `data_in` that the CDB requested and the server did not read, since the initiator does not
    /// expect them.
    pub unread_length: u64,
    /// Sense data, only with CHECK CONDITION.
    pub sense: Option<Sense>,
    /// Unmodified sense data of a real device. If it is set, `sense` is not.
    pub raw_sense: Option<Box<[u8]>>,
    /// The tasks that end with this command.
    pub abort: Option<Box<AbortedTasks>>,
}

impl Completion {
    /// Returns GOOD without data.
    pub const fn good() -> Self {
        Self::with_status(Status::Good)
    }

    /// Returns GOOD with data.
    pub const fn data(data_in: Data) -> Self {
        Self {
            status: Status::Good,
            data_in,
            sense: None,
            raw_sense: None,
            abort: None,
            unread_length: 0,
        }
    }

    /// Returns CHECK CONDITION.
    pub const fn check_condition(sense: Sense) -> Self {
        Self {
            status: Status::CheckCondition,
            data_in: Data::empty(),
            sense: Some(sense),
            raw_sense: None,
            abort: None,
            unread_length: 0,
        }
    }

    /// Returns a status without data.
    pub const fn with_status(status: Status) -> Self {
        Self {
            status,
            data_in: Data::empty(),
            sense: None,
            raw_sense: None,
            abort: None,
            unread_length: 0,
        }
    }

    /// Returns the failure that this reports, as statistics distinguish it.
    #[inline]
    pub fn failure(&self) -> Option<Failure> {
        match self.status {
            Status::Good | Status::ConditionMet => None,
            _ => Some(self.failed()),
        }
    }

    #[cold]
    fn failed(&self) -> Failure {
        match self.status {
            Status::Busy => Failure::Busy,
            Status::ReservationConflict => Failure::ReservationConflict,
            Status::TaskSetFull => Failure::TaskSetFull,
            Status::AcaActive => Failure::AcaActive,
            Status::TaskAborted => Failure::Aborted,
            Status::CheckCondition | Status::Good | Status::ConditionMet => {
                self.sense.as_ref().map_or(Failure::OtherSense, |sense| match sense.key() {
                    SenseKey::NotReady => Failure::NotReady,
                    SenseKey::MediumError => Failure::MediumError,
                    SenseKey::HardwareError => Failure::HardwareError,
                    SenseKey::IllegalRequest => Failure::IllegalRequest,
                    SenseKey::UnitAttention => Failure::UnitAttention,
                    SenseKey::DataProtect => match sense.additional() {
                        AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT => Failure::NoSpace,
                        _ => Failure::DataProtect,
                    },
                    SenseKey::CopyAborted => Failure::CopyAborted,
                    SenseKey::AbortedCommand => Failure::AbortedCommand,
                    SenseKey::Miscompare => Failure::Miscompare,
                    SenseKey::NoSense | SenseKey::RecoveredError => Failure::OtherSense,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_reports_how_a_command_failed() {
        let busy = Completion::with_status(Status::Busy);
        assert_eq!(busy.failure(), Some(Failure::Busy));
        assert_eq!(Completion::good().failure(), None);
        for (key, additional, failure) in [
            (SenseKey::MediumError, AdditionalSense::NONE, Failure::MediumError),
            (SenseKey::DataProtect, AdditionalSense::WRITE_PROTECTED, Failure::DataProtect),
            (
                SenseKey::DataProtect,
                AdditionalSense::SPACE_ALLOCATION_FAILED_WRITE_PROTECT,
                Failure::NoSpace,
            ),
        ] {
            let completion = Completion::check_condition(Sense::new(key, additional));
            assert_eq!(completion.failure(), Some(failure));
        }
    }
}
