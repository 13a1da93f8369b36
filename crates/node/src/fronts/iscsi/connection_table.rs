//! The established connections, as lists and metrics show them. Written when a login is complete and when a
//! connection ends, never by a command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use sarsen_proto::iscsi::Parameters;

/// A connection, once its login is done.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
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
pub(crate) struct ConnectionTable {
    state: Mutex<ConnectionTableState>,
}

#[derive(Default)]
struct ConnectionTableState {
    last_number: u64,
    by_number: BTreeMap<u64, ConnectionInfo>,
}

/// A connection's entry in the table. Dropping it removes the entry.
pub(crate) struct ConnectionEntry<'a> {
    connection_table: &'a ConnectionTable,
    number: u64,
}

impl Drop for ConnectionEntry<'_> {
    fn drop(&mut self) {
        self.connection_table.state().by_number.remove(&self.number);
    }
}

impl ConnectionTable {
    fn state(&self) -> MutexGuard<'_, ConnectionTableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection for as long as the line is kept.
    pub(crate) fn enter(&self, info: ConnectionInfo) -> ConnectionEntry<'_> {
        let mut state = self.state();
        state.last_number += 1;
        let number = state.last_number;
        state.by_number.insert(number, info);
        ConnectionEntry { connection_table: self, number }
    }

    /// The connections that stand, oldest first.
    pub(crate) fn connections(&self) -> Vec<ConnectionInfo> {
        self.state().by_number.values().cloned().collect()
    }
}
