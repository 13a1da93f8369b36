//! What people are told of the connections that stand. Written when a login is done and when a
//! connection ends, never on the way of a command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sarsen_proto::iscsi::Parameters;

/// A connection, once its login is done.
#[derive(Clone, Debug)]
pub(crate) struct Attendance {
    /// The session that it belongs to.
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) peer: SocketAddr,
    /// Where the initiator reached us.
    pub(crate) local: SocketAddr,
    pub(crate) portal_group: u16,
    pub(crate) parameters: Parameters,
    pub(crate) since: SystemTime,
}

/// All connections that stand, oldest first.
#[derive(Default)]
pub(crate) struct Roster {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_number: u64,
    by_number: BTreeMap<u64, Attendance>,
}

/// A connection's line on the roster, which is struck off when this is dropped.
pub(crate) struct Line<'a> {
    roster: &'a Roster,
    number: u64,
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.roster.state().by_number.remove(&self.number);
    }
}

impl Roster {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection for as long as the line is kept.
    pub(crate) fn enter(&self, attendance: Attendance) -> Line<'_> {
        let mut state = self.state();
        state.last_number += 1;
        let number = state.last_number;
        state.by_number.insert(number, attendance);
        Line { roster: self, number }
    }

    /// The connections that stand, oldest first.
    pub(crate) fn connections(&self) -> Vec<Attendance> {
        self.state().by_number.values().cloned().collect()
    }
}
