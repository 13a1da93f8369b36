//! What all connections of a session share.

use std::collections::VecDeque;

use sarsen_wire::iscsi::SerialNumber;

use super::event::{ConnectionError, Event};
use super::request::Cid;
use super::task::Tasks;

/// Commands are numbered over all connections, and so are their tags (RFC 7143 §4.2.2.1).
pub(super) struct Core {
    pub(super) tasks: Tasks,
    pub(super) events: VecDeque<Event>,
    pub(super) cmd_sn: SerialNumber,
    /// The target has all commands before this one.
    pub(super) exp_cmd_sn: SerialNumber,
    pub(super) max_cmd_sn: SerialNumber,
    /// What belongs to no task may be late, not wrong: its task ended over another connection, or
    /// it is sent twice.
    pub(super) tolerant: bool,
    /// Connections that the target let go, each with the one that their tasks move to.
    pub(super) removed: Vec<(Cid, Cid)>,
    /// A logout of the session was answered.
    pub(super) logged_out: bool,
    /// Why the session cannot go on although connections are left.
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

    /// How many commands the target takes now.
    pub(super) fn window(&self) -> u32 {
        if self.max_cmd_sn.is_before(self.cmd_sn) {
            return 0;
        }
        self.max_cmd_sn.since(self.cmd_sn).saturating_add(1).min(self.tasks.room())
    }
}
