//! The output of the device server: status, data and sense data.

use crate::{LogicalUnit, Sense};
use sarsen_block::Data;
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
}
