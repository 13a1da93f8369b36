//! The requests of a connection's owner.

use super::super::output::Payload;

/// The owner's identifier of a request. The event that ends the request returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// The number (CID) of a connection in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cid(pub u16);

/// The task attribute of a command: its order among other commands (RFC 7143 §11.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// No attribute.
    Untagged,
    /// Simple task: any order.
    #[default]
    Simple,
    /// Ordered task: after all earlier commands and before all later ones.
    Ordered,
    /// Head of queue: before all commands that have not started.
    HeadOfQueue,
    /// A task that handles an auto contingent allegiance.
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

/// The destination of a command's Data-In.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLanding {
    /// A buffer that the completion returns.
    Buffer,
    /// None: the data is counted, and discarded without a copy.
    Discard,
}

/// The data that a command moves.
pub enum Transfer {
    /// No data.
    None,
    /// Data from the target, up to `length` bytes.
    Read {
        /// ExpectedDataTransferLength in bytes.
        length: u32,
        /// Destination of the data.
        landing: ReadLanding,
    },
    /// Data to the target: the first `length` bytes of `payload`.
    Write {
        /// The data, from [`super::Connection::payload`] or [`super::Session::payload`]. Clones share it.
        payload: Payload,
        /// ExpectedDataTransferLength in bytes. The payload must have at least this length.
        length: u32,
    },
}

/// A SCSI command.
pub struct CommandRequest {
    /// Logical unit.
    pub lun: [u8; 8],
    /// CDB, padded with zeroes.
    pub cdb: [u8; 16],
    /// Task attribute.
    pub attribute: TaskAttribute,
    /// Data that the command transfers.
    pub transfer: Transfer,
}

/// A task management function and its object (RFC 7143 §11.5).
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
