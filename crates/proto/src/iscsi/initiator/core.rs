//! The state that all connections of a session share.

use std::collections::VecDeque;

use sarsen_wire::iscsi::SerialNumber;

use super::event::{ConnectionError, Event};
use super::request::Cid;
use super::task::Tasks;

/// The shared state of a session. Its connections have common command numbers and task tags (RFC 7143 §4.2.2.1).
pub(super) struct Core {
    pub(super) tasks: Tasks,
    pub(super) events: VecDeque<Event>,
    pub(super) cmd_sn: SerialNumber,
    /// The target has received all commands before this one.
    pub(super) exp_cmd_sn: SerialNumber,
    pub(super) max_cmd_sn: SerialNumber,
    /// Whether a PDU without a task is no error. Its task may have ended over another connection, or the PDU may be a
    /// repetition.
    pub(super) tolerant: bool,
    /// Connections that the target removed, each with the connection to which their tasks move.
    pub(super) removed: Vec<(Cid, Cid)>,
    /// Whether a logout of the session was answered.
    pub(super) logged_out: bool,
    /// The reason why the session cannot continue although connections are left.
    pub(super) failed: Option<ConnectionError>,
}

impl Core {
    pub(super) fn new(tasks: Tasks) -> Self {
        let first = SerialNumber(1);
        Self {
            tasks,
            events: VecDeque::new(),
            cmd_sn: first,
            exp_cmd_sn: first,
            max_cmd_sn: first,
            tolerant: false,
            removed: Vec::new(),
            logged_out: false,
            failed: None,
        }
    }

    /// Returns how many commands the target accepts now.
    pub(super) fn window(&self) -> u32 {
        if self.max_cmd_sn.is_before(self.cmd_sn) {
            return 0;
        }
        self.max_cmd_sn.since(self.cmd_sn).saturating_add(1).min(self.tasks.room())
    }
}
