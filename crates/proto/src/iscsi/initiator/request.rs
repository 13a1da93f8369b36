//! What the owner of a connection asks it to do.

use super::super::output::Payload;

/// The owner's name for a request, given back in the event that ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// A connection of a session, by its number (CID).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub u16);

/// How a command is ordered among others (RFC 7143 §11.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// No attribute.
    Untagged,
    /// In any order.
    #[default]
    Simple,
    /// After all before it and before all after it.
    Ordered,
    /// Before all that have not begun.
    HeadOfQueue,
    /// Clears an auto contingent allegiance.
    Aca,
}

impl TaskAttribute {
    pub(super) const fn bits(self) -> u8 {
        match self {
            Self::Untagged => 0,
            Self::Simple => 1,
            Self::Ordered => 2,
            Self::HeadOfQueue => 3,
            Self::Aca => 4,
        }
    }
}

/// Where a command's Data-In goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLanding {
    /// Into a buffer that the completion gives.
    Buffer,
    /// Nowhere: it is counted, and thrown away without a copy.
    Discard,
}

/// The data that a command moves.
pub enum Transfer {
    /// None.
    None,
    /// From the target, at most `length` bytes.
    Read {
        /// ExpectedDataTransferLength in bytes.
        length: u32,
        /// Where the data goes.
        landing: ReadLanding,
    },
    /// To the target: the first `length` bytes of `payload`.
    Write {
        /// The data, from [`super::Connection::payload`] or [`super::Session::payload`]; clones
        /// share it.
        payload: Payload,
        /// ExpectedDataTransferLength in bytes; not more than the payload has.
        length: u32,
    },
}

/// A SCSI command.
pub struct CommandRequest {
    /// Logical unit.
    pub lun: [u8; 8],
    /// CDB, filled up with zeroes.
    pub cdb: [u8; 16],
    /// Ordering.
    pub attribute: TaskAttribute,
    /// Data.
    pub transfer: Transfer,
}

/// A task management function with what it is about (RFC 7143 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagement {
    /// Abort the command that has this token.
    AbortTask(Token),
    /// Abort this initiator's commands on the unit.
    AbortTaskSet([u8; 8]),
    /// Abort all initiators' commands on the unit.
    ClearTaskSet([u8; 8]),
    /// Reset the unit.
    LogicalUnitReset([u8; 8]),
    /// Reset the target.
    TargetWarmReset,
    /// Reset the target and end its sessions.
    TargetColdReset,
}
