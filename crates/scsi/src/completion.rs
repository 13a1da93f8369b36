//! What leaves: status, data, sense.

use crate::Sense;
use sarsen_block::Data;

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

/// The end of a command.
#[derive(Debug)]
pub struct Completion {
    /// Status.
    pub status: Status,
    /// All Data-In that the CDB asked for, its allocation length applied. The transport cuts it
    /// to what the initiator expects and tells the residual.
    pub data_in: Data,
    /// Sense data, with CHECK CONDITION alone.
    pub sense: Option<Sense>,
}

impl Completion {
    /// GOOD without data.
    pub const fn good() -> Self {
        Self::with_status(Status::Good)
    }

    /// GOOD with data.
    pub const fn data(data_in: Data) -> Self {
        Self { status: Status::Good, data_in, sense: None }
    }

    /// CHECK CONDITION.
    pub const fn check_condition(sense: Sense) -> Self {
        Self { status: Status::CheckCondition, data_in: Data::empty(), sense: Some(sense) }
    }

    /// A status alone.
    pub const fn with_status(status: Status) -> Self {
        Self { status, data_in: Data::empty(), sense: None }
    }
}
