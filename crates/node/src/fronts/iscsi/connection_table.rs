//! The established connections, as lists and metrics show them. The table is written when a login is complete and when
//! a connection ends, never by a command.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use sarsen_proto::iscsi::Parameters;

/// A connection whose login is complete.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    /// The session that it belongs to.
    pub(crate) tsih: u16,
    pub(crate) cid: u16,
    pub(crate) peer: SocketAddr,
    /// The server's address that the initiator has used.
    pub(crate) local: SocketAddr,
    pub(crate) portal_group: u16,
    /// The negotiated keys of an iSCSI connection.
    pub(crate) parameters: Option<Parameters>,
    pub(crate) since: SystemTime,
}

/// All established connections, oldest first.
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
        self.state.lock()
    }

    /// Adds a connection, until the returned entry is dropped.
    pub(crate) fn enter(&self, info: ConnectionInfo) -> ConnectionEntry<'_> {
        let mut state = self.state();
        state.last_number += 1;
        let number = state.last_number;
        state.by_number.insert(number, info);
        ConnectionEntry { connection_table: self, number }
    }

    /// Returns the established connections, oldest first.
    pub(crate) fn connections(&self) -> Vec<ConnectionInfo> {
        self.state().by_number.values().cloned().collect()
    }
}
