//! Messages to the connections of sessions. The state of a connection belongs to its core, so others reach it only by
//! its mailbox.

use std::collections::HashMap;
use std::sync::Arc;

use sarsen_proto::iscsi::target::{Adoption, Logout, ReassignReply, TaskId};
use sarsen_scsi::{AbortedUnitTasks, Completion, Lun, UnitAttention};
use sarsen_wire::iscsi::{LogoutResponse, TaskManagementResponse};
use tokio::sync::{OwnedMutexGuard, mpsc, oneshot};

use crate::trace::Writer;

/// The connections that have tasks that other connections of the session execute, by the number of the task.
pub(crate) type ClaimedTasks = HashMap<u64, Mailbox>;

/// A request to a connection of a session.
#[derive(Debug)]
pub(crate) enum ConnectionRequest {
    /// Abort tasks. The sender is notified or dropped when they have ended.
    Abort { order: Arc<AbortOrder>, ended: oneshot::Sender<()> },
    /// Answer a task management request of this session.
    Respond { initiator_task_tag: u32, response: TaskManagementResponse },
    /// Report an event of a unit to the initiator.
    ScsiEvent { lun: Lun, attention: UnitAttention },
    /// Release units that were removed.
    Refresh,
    /// Ask the initiator to log out within this number of seconds.
    RequestLogout { seconds: u16 },
    /// End the session. The sender is dropped when its tasks have ended.
    Terminate { ended: oneshot::Sender<()> },
    /// Close the connection, which another connection of the session logs out. The sender is dropped when its tasks
    /// have ended.
    LogOut { ended: oneshot::Sender<()> },
    /// Answer a logout: the connections that it closes have ended.
    LoggedOut { logout: Logout, response: LogoutResponse },
    /// Resume requests that waited for another connection of the session.
    Wake,
    /// Treat the connection as lost. The sender is dropped when its tasks can be taken over.
    MarkLost { marked: oneshot::Sender<()> },
    /// Another connection of the session claims a task.
    Claim { tag: u32, answer: oneshot::Sender<ReassignReply> },
    /// The result of a claim of this connection. Other connections can claim when `turn` is dropped.
    Adopted { adoption: Adoption, claim: ReassignReply, turn: OwnedMutexGuard<ClaimedTasks> },
    /// Copy the received and sent bytes to the writer, until its reader is closed.
    Trace { writer: Writer },
    /// A command that began on a lost connection has ended.
    Completed { task: TaskId, completion: Box<Completion> },
}

/// The sender of messages to a connection.
pub(crate) type Mailbox = mpsc::UnboundedSender<ConnectionRequest>;

/// An order of one session to abort tasks of its own or of other sessions.
#[derive(Debug)]
pub(crate) struct AbortOrder {
    /// The nexus that gives the order. Its own tasks end without an answer.
    pub(crate) by: u64,
    /// The command that gives the order, which is not aborted.
    pub(crate) spared: Option<TaskId>,
    pub(crate) aborts: Vec<AbortedUnitTasks>,
    /// A unit attention reports the abort to initiators whose tasks end without an answer.
    pub(crate) is_reported: bool,
    /// The tasks on other connections of the ordering session are aborted, too.
    pub(crate) whole_session: bool,
}

impl AbortOrder {
    /// Returns whether the order concerns tasks of this nexus.
    pub(crate) fn concerns(&self, nexus: u64, task_abort: &AbortedUnitTasks) -> bool {
        let own = self.whole_session && nexus == self.by;
        own || task_abort.abort.nexuses.contains(&nexus)
    }
}
