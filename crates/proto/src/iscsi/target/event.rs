//! The events that a target reports to the layer above, and the reasons for which a connection ends.

use sarsen_block::{Buffer, Data};
use sarsen_wire::iscsi::TaskManagementFunction;

use super::{Admission, Adoption, MemberId, Refusal, TaskId};
use crate::iscsi::FramingError;

/// A received CDB: sixteen bytes, and the rest of a longer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cdb {
    /// The first sixteen bytes.
    pub head: [u8; 16],
    /// The bytes of an extended CDB header.
    pub extension: Option<Box<[u8]>>,
}

/// A command whose data is complete and whose turn has come.
#[derive(Debug)]
pub struct Command {
    /// Identifies the command in [`super::Connection::complete`].
    pub task: TaskId,
    /// Logical unit.
    pub lun: [u8; 8],
    /// Command descriptor block.
    pub cdb: Cdb,
    /// Task attribute (RFC 7143 §11.3.1).
    pub attribute: u8,
    /// The data from the initiator. Shorter than the command needs only if the initiator announced less.
    pub data_out: Option<Buffer>,
    /// The expected data transfer length of a write. `None` if the command has only the flag R, or moves data and has
    /// no flag: the layer above must not execute a command that takes data then.
    pub expected_data_out_length: Option<u32>,
    /// The expected data transfer length of a read, else 0.
    pub expected_data_in_length: u32,
}

/// A task management function that the layer above executes, because it affects more than this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Management {
    /// Identifies the function in [`super::Connection::respond`].
    pub initiator_task_tag: u32,
    /// The function. The tasks of this connection that it names have ended.
    pub function: TaskManagementFunction,
    /// Logical unit.
    pub lun: [u8; 8],
}

/// A notification from a connection to the layer above.
#[derive(Debug)]
pub enum Event {
    /// The negotiation is complete. The layer above ends the session that this one reinstates (RFC 7143 §6.3.5), then
    /// calls [`super::Connection::establish`] or [`super::Connection::refuse`].
    Establish(Admission),
    /// The layer above executes the command, then calls [`super::Connection::complete`].
    Command(Command),
    /// These commands are aborted. The layer above must not begin those that have not begun. It calls
    /// [`super::Connection::complete`] for each as usual, with any result.
    Aborted(Vec<TaskId>),
    /// The layer above executes the function, then calls [`super::Connection::respond`].
    Management(Management),
    /// The tasks that [`super::Connection::abort_tasks`] named with this token have ended.
    TasksEnded(u64),
    /// The layer above calls [`super::Connection::resume`] on this other connection of the session.
    Wake(MemberId),
    /// See [`Adoption`].
    Adopt(Adoption),
    /// The layer above ends the session, or another connection of it, then calls [`super::Connection::log_out`]. For a logout
    /// of the session, the tasks of this connection have ended.
    Logout(Logout),
}

/// A logout that affects more than its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logout {
    /// Identifies the logout in [`super::Connection::log_out`].
    pub initiator_task_tag: u32,
    /// The connection to end; `None` for all.
    pub cid: Option<u16>,
    /// The tasks of the connection wait for other connections to take them over (RFC 7143 §11.14.1, reason 2).
    pub for_recovery: bool,
}

/// The result of a command.
#[derive(Debug)]
pub struct Completion<'a> {
    /// SCSI status.
    pub status: u8,
    /// Data for the initiator. The connection truncates data beyond the expected length and reports an overflow.
    pub data_in: Data,
    /// Number of bytes after `data_in` that were not read, because the initiator does not expect them.
    pub unread_length: usize,
    /// Sense data.
    pub sense: &'a [u8],
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The initiator logged out, or the target dropped the session.
    #[error("logged out")]
    InGoodOrder,
    /// The login took too long.
    #[error("the login timed out")]
    LoginTimeout,
    /// The initiator did not answer a ping.
    #[error("the initiator stopped answering")]
    Silent,
    /// The initiator did not move the data for which it uses memory.
    #[error(
        "the initiator did not send or receive its data in time, while other commands waited for memory"
    )]
    Stalled,
    /// The byte stream is invalid.
    #[error(transparent)]
    Framing(#[from] FramingError),
    /// A PDU with an impossible format. It ends all connections of the session (RFC 7143 §7.7).
    #[error("{what} (RFC 7143 {clause})")]
    Format {
        /// The format error.
        what: &'static str,
        /// The clause of the RFC that the PDU violates.
        clause: &'static str,
    },
    /// The initiator removed the connection; its tasks wait for another connection (RFC 7143 §11.14.1).
    #[error("its initiator removed it for recovery")]
    Removed,
    /// The peer broke the protocol in a way that ends the connection.
    #[error("{what} (RFC 7143 {clause})")]
    Protocol {
        /// The violation.
        what: &'static str,
        /// The clause of the RFC that forbids it.
        clause: &'static str,
    },
    /// The login was refused.
    #[error("login refused: {0}")]
    LoginRefused(Refusal),
}

impl CloseReason {
    pub(super) fn protocol(what: &'static str, clause: &'static str) -> Self {
        Self::Protocol { what, clause }
    }
}
