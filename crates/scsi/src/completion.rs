//! What leaves: status, data, sense.

use crate::{LogicalUnit, Sense};
use sarsen_block::Data;
use std::sync::Arc;

/// SAM-5 5.3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// GOOD.
    Good = 0x00,
    /// CHECK CONDITION: there is sense data.
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
    /// The status of a byte; `None` for one that is obsolete or unknown.
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

/// Tasks that a command ends: the transport ends them before it answers that command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Abort {
    /// The nexuses whose tasks on the command's unit end (see [`crate::NexusHandle::id`]). The
    /// command itself is spared.
    pub nexuses: Vec<u64>,
    /// Tasks of other nexuses than the command's own are answered with TASK ABORTED (TAS, SPC-4
    /// 7.5.8) rather than with silence.
    pub answered: bool,
}

/// Tasks of one unit that end.
#[derive(Clone, Debug)]
pub struct TaskAbort {
    /// The unit, which other nexuses may know by other numbers.
    pub unit: Arc<LogicalUnit>,
    /// Whose tasks, and how.
    pub abort: Abort,
}

/// The end of a command.
#[derive(Debug)]
pub struct Completion {
    /// Status.
    pub status: Status,
    /// All Data-In that the CDB asked for, its allocation length applied. The transport cuts it
    /// to what the initiator expects and tells the residual.
    pub data_in: Data,
    /// Bytes after it that the CDB requested and that were not read, since the initiator does not expect them.
    pub unread_length: u64,
    /// Sense data, with CHECK CONDITION alone.
    pub sense: Option<Sense>,
    /// Sense data of a real device, as it came; there is no other then.
    pub raw_sense: Option<Box<[u8]>>,
    /// What ends with it.
    pub abort: Option<Box<Abort>>,
}

impl Completion {
    /// GOOD without data.
    pub const fn good() -> Self {
        Self::with_status(Status::Good)
    }

    /// GOOD with data.
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

    /// CHECK CONDITION.
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

    /// A status alone.
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
