//! All sessions of the server, of every protocol: their clients, and the mailboxes of their connections.

mod client;
mod members;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{RefusalReason, Session};
use sarsen_scsi::{LogicalUnit, Lun, LunView, NexusHandle};
use tokio::sync::{Notify, oneshot};

pub(crate) use self::client::{Client, Login, Origin, SessionEnd};
pub(crate) use self::members::SessionMember;
use self::members::{Member, Members, Permitted, ask};
use crate::config::Limits;
use crate::mailbox::{AbortOrder, ConnectionRequest, Mailbox};
use crate::protocol::Protocol;

/// The identity of a session for reinstatement: initiator port and target (RFC 7143 §4.4.3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    initiator_name: String,
    isid: [u8; 6],
    target: Option<String>,
    /// A discovery session does not reinstate a normal session.
    session_type: SessionType,
}

impl Key {
    fn of(login: &Login) -> Option<Self> {
        let SessionEnd { isid, session_type, .. } = login.end?;
        Some(Self {
            initiator_name: login.client.name.clone(),
            isid: isid.0,
            target: login.target.clone(),
            session_type,
        })
    }
}

struct Entry {
    /// The login that began the session.
    login: Login,
    since: SystemTime,
    /// The I_T nexus, once it exists.
    nexus: Option<NexusHandle>,
    /// The values by which further connections join, if the session permits any.
    session: Option<Arc<Session>>,
    members: Arc<Members>,
    /// Present if the session was asked to log out, because a change takes something from it: the units that it keeps
    /// until it has ended.
    leaving_with: Option<Vec<Weak<LogicalUnit>>>,
}

impl Entry {
    fn session_info(&self, tsih: u16) -> SessionInfo {
        let Login { client, portal, target, only, end, .. } = &self.login;
        SessionInfo {
            tsih,
            protocol: portal.protocol,
            client: client.clone(),
            target: target.clone(),
            only: *only,
            end: *end,
            since: self.since,
            connections: self.members.connections(),
            mailboxes: self.members.all().iter().map(|member| member.mailbox.clone()).collect(),
        }
    }

    /// Returns whether this is a session with a target's units.
    fn is_with(&self, target: Option<&str>) -> bool {
        target.is_none() || self.login.target.as_deref() == target
    }
}

/// The properties of a session, for lists.
pub(crate) struct SessionInfo {
    pub(crate) tsih: u16,
    pub(crate) protocol: Protocol,
    /// The client of its first connection.
    pub(crate) client: Client,
    pub(crate) target: Option<String>,
    /// The only unit of the target that the session uses, if its protocol selects one.
    pub(crate) only: Option<Lun>,
    /// The initiator's end of an iSCSI session.
    pub(crate) end: Option<SessionEnd>,
    pub(crate) since: SystemTime,
    /// Its connections, oldest first.
    pub(crate) connections: Vec<ConnectionInfo>,
    /// The mailboxes of its connections.
    pub(crate) mailboxes: Vec<Mailbox>,
}

impl SessionInfo {
    /// Returns whether the session is only for discovery.
    pub(crate) fn is_discovery(&self) -> bool {
        self.end.is_some_and(|end| end.session_type == SessionType::Discovery)
    }
}

/// The properties of a connection whose login is complete, for lists.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionInfo {
    pub(crate) cid: u16,
    pub(crate) peer: SocketAddr,
    /// The server's address that the client has used.
    pub(crate) local: SocketAddr,
    pub(crate) portal_group: u16,
    /// The negotiated keys of an iSCSI connection.
    pub(crate) parameters: Option<Parameters>,
    pub(crate) since: SystemTime,
}

/// A connection that the access rules have permitted.
pub(crate) struct PermittedConnection<'a> {
    pub(crate) tsih: u16,
    /// Its number among all permitted connections.
    pub(crate) number: u64,
    pub(crate) login: &'a Login,
    /// The units that it is shown.
    pub(crate) view: &'a mut LunView,
    /// The session was asked to log out, because a change takes something from it. It keeps its units until it has ended.
    pub(crate) is_leaving: bool,
    /// The session's nexus, once it exists.
    pub(crate) nexus: Option<u64>,
    pub(crate) mailbox: &'a Mailbox,
}

/// See the module.
pub(crate) struct Sessions {
    state: Mutex<SessionsState>,
    /// Notified when the last session has ended.
    emptied: Notify,
}

#[derive(Default)]
struct SessionsState {
    /// Maximum number of sessions, in total and for each target.
    limit: usize,
    limit_per_target: usize,
    /// Ordered, so that a simulation is reproducible.
    by_tsih: BTreeMap<u16, Entry>,
    by_key: HashMap<Key, u16>,
    /// Number of sessions of each target.
    by_target: HashMap<String, usize>,
    last_tsih: u16,
    last_number: u64,
    last_permitted: u64,
    /// The server is shutting down.
    closed: bool,
}

impl Sessions {
    pub(crate) fn new(limits: &Limits) -> Self {
        let sessions = Self { state: Mutex::default(), emptied: Notify::new() };
        sessions.set_limits(limits);
        sessions
    }

    /// Sets other limits, which apply to new sessions.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        let mut state = self.state();
        state.limit = limits.sessions.get();
        state.limit_per_target = limits.sessions_per_target.get();
    }

    /// Releases removed units in the sessions with these targets. An idle session does not do this itself.
    pub(crate) fn refresh(&self, targets: &HashSet<&str>) {
        let mut state = self.state();
        let is_meant = |entry: &&mut Entry| {
            entry.login.target.as_deref().is_some_and(|name| targets.contains(name))
        };
        for entry in state.by_tsih.values_mut().filter(is_meant) {
            entry.nexus.iter_mut().for_each(NexusHandle::refresh);
            for member in entry.members.all().iter() {
                let _ = member.mailbox.send(ConnectionRequest::Refresh);
            }
        }
    }

    /// Counts a new session and returns its TSIH, if the limits permit it.
    fn make_room(state: &mut SessionsState, login: &Login) -> Result<u16, RefusalReason> {
        if state.by_tsih.len() >= state.limit {
            return Err(RefusalReason::OutOfResources);
        }
        let tsih = state.free_tsih().ok_or(RefusalReason::OutOfResources)?;
        if let Some(target) = &login.target {
            let limit = state.limit_per_target;
            let count = state.by_target.entry(target.clone()).or_default();
            if *count >= limit {
                return Err(RefusalReason::OutOfResources);
            }
            *count += 1;
        }
        Ok(tsih)
    }

    fn state(&self) -> MutexGuard<'_, SessionsState> {
        self.state.lock()
    }

    /// Begins a new session. A session that it reinstates (RFC 7143 §6.3.5) is ended first, with all its tasks.
    pub(crate) async fn begin(
        self: &Arc<Self>,
        login: &Login,
        mailbox: &Mailbox,
    ) -> Result<SessionMember, RefusalReason> {
        let key = Key::of(login);
        loop {
            let ending = {
                let mut state = self.state();
                let twin = key.as_ref().and_then(|key| state.by_key.get(key));
                match twin.and_then(|tsih| state.by_tsih.get(tsih)) {
                    // A mailbox stays open longer than the membership of its connection.
                    Some(Entry { members, .. }) => members.terminate(None),
                    None if state.closed => return Err(RefusalReason::NotInService),
                    None => {
                        let tsih = Self::make_room(&mut state, login)?;
                        if let Some(key) = &key {
                            state.by_key.insert(key.clone(), tsih);
                        }
                        let members = Arc::default();
                        let number = state.add_member(&members, login, mailbox);
                        let entry = Entry {
                            login: login.clone(),
                            since: time::wall_clock(),
                            nexus: None,
                            session: None,
                            members: members.clone(),
                            leaving_with: None,
                        };
                        state.by_tsih.insert(tsih, entry);
                        return Ok(SessionMember { sessions: self.clone(), tsih, number, members });
                    }
                }
            };
            for ended in ending {
                // The sender is dropped when the other session has ended.
                let _ = ended.await;
            }
        }
    }

    /// Returns the values by which a connection joins the session that it names.
    pub(crate) fn session(&self, login: &Login) -> Result<Arc<Session>, RefusalReason> {
        let state = self.state();
        let (_, entry) = state.joined_by(login).ok_or(RefusalReason::NoSuchSession)?;
        if entry.login.client.account != login.client.account {
            return Err(RefusalReason::CannotIncludeInSession);
        }
        // RFC 7143 §11.13.5: MaxConnections is 1.
        entry.session.clone().ok_or(RefusalReason::TooManyConnections)
    }

    /// Registers a further connection of a session. A connection with the same CID is logged out first (RFC 7143
    /// §6.3.4).
    pub(crate) async fn join(
        self: &Arc<Self>,
        login: &Login,
        mailbox: &Mailbox,
    ) -> Result<SessionMember, RefusalReason> {
        loop {
            let ended = {
                let mut state = self.state();
                if state.closed {
                    return Err(RefusalReason::NotInService);
                }
                let (tsih, entry) = state.joined_by(login).ok_or(RefusalReason::NoSuchSession)?;
                let session = entry.session.as_ref();
                let session =
                    session.filter(|_| entry.login.client.account == login.client.account);
                let session = session.ok_or(RefusalReason::CannotIncludeInSession)?;
                let members = entry.members.clone();
                let all = members.all();
                let live = || all.iter().filter(|member| !member.is_lost);
                let limit = session.parameters().max_connections as usize;
                let outlived = session.parameters().error_recovery_level == 2;
                match live().find(|member| member.login.cid == login.cid) {
                    Some(twin) if outlived => {
                        ask(&twin.mailbox, |marked| ConnectionRequest::MarkLost { marked })
                    }
                    Some(twin) => ask(&twin.mailbox, |ended| ConnectionRequest::LogOut { ended }),
                    None if live().count() >= limit => {
                        return Err(RefusalReason::TooManyConnections);
                    }
                    None => {
                        drop(all);
                        let number = state.add_member(&members, login, mailbox);
                        return Ok(SessionMember { sessions: self.clone(), tsih, number, members });
                    }
                }
            };
            let _ = ended.await;
        }
    }

    /// Returns the mailboxes of the sessions with a target, or of all sessions.
    pub(crate) fn mailboxes(&self, target: Option<&str>) -> Vec<(u16, Mailbox)> {
        let state = self.state();
        let meant = state.by_tsih.iter().filter(|(_, entry)| entry.is_with(target));
        let of = |(&tsih, entry): (&u16, &Entry)| {
            let members = entry.members.all();
            members.iter().map(|member| (tsih, member.mailbox.clone())).collect::<Vec<_>>()
        };
        meant.flat_map(of).collect()
    }

    /// Returns all sessions, by TSIH.
    pub(crate) fn session_infos(&self) -> Vec<SessionInfo> {
        let state = self.state();
        let entries = state.by_tsih.iter();
        entries.map(|(&tsih, entry)| entry.session_info(tsih)).collect()
    }

    /// Returns whether all permitted connections of the session that a login replaces or joins have a property, as far as
    /// there is such a session.
    pub(crate) fn all_of_twin(&self, login: &Login, has: impl Fn(&Client) -> bool) -> bool {
        let state = self.state();
        let Some(twin) = state.twin_of(login) else { return true };
        let all = twin.members.all();
        all.iter()
            .filter(|member| member.permitted.is_some())
            .all(|member| has(&member.login.client))
    }

    /// Marks a connection as permitted and shows it these units. Returns false if its session is leaving, or if other
    /// connections of its session are shown other units: all of them must have the same.
    pub(crate) fn permit(&self, member: &SessionMember, view: &LunView) -> bool {
        let mut state = self.state();
        state.last_permitted += 1;
        let number = state.last_permitted;
        if state.by_tsih.get(&member.tsih).is_none_or(|entry| entry.leaving_with.is_some()) {
            return false;
        }
        let mut all = member.members.all();
        let mut others = all.iter().filter_map(|member| member.permitted.as_ref());
        if others.any(|other| other.view != *view) {
            return false;
        }
        let own = all.iter_mut().find(|other| other.number == member.number);
        let permitted = Permitted { number, view: view.clone() };
        own.is_some_and(|own| own.permitted.replace(permitted).is_none())
    }

    /// Visits all permitted connections, in the order of their sessions.
    pub(crate) fn visit_permitted(&self, mut visit: impl FnMut(PermittedConnection<'_>)) {
        for (&tsih, entry) in &self.state().by_tsih {
            let nexus = entry.nexus.as_ref().map(NexusHandle::id);
            let is_leaving = entry.leaving_with.is_some();
            for Member { login, permitted, mailbox, .. } in entry.members.all().iter_mut() {
                let Some(Permitted { number, view }) = permitted else { continue };
                let number = *number;
                visit(PermittedConnection {
                    tsih,
                    number,
                    login,
                    view,
                    is_leaving,
                    nexus,
                    mailbox,
                });
            }
        }
    }

    /// Marks a session as leaving with these units. Returns the mailboxes of its connections, if it has not ended.
    pub(crate) fn begin_leaving(
        &self,
        tsih: u16,
        units: &[Weak<LogicalUnit>],
    ) -> Option<Vec<Mailbox>> {
        let mut state = self.state();
        let entry = state.by_tsih.get_mut(&tsih)?;
        // A session that is asked again keeps the units that it had.
        entry.leaving_with.get_or_insert_with(|| units.to_vec());
        Some(entry.members.all().iter().map(|member| member.mailbox.clone()).collect())
    }

    /// Returns the units of the leaving sessions.
    pub(crate) fn leaving_units(&self) -> Vec<Weak<LogicalUnit>> {
        let state = self.state();
        state.by_tsih.values().filter_map(|entry| entry.leaving_with.clone()).flatten().collect()
    }

    /// Returns the nexuses of the leaving sessions.
    pub(crate) fn leaving_nexuses(&self) -> HashSet<u64> {
        let state = self.state();
        let leaving = state.by_tsih.values().filter(|entry| entry.leaving_with.is_some());
        leaving.filter_map(|entry| entry.nexus.as_ref().map(NexusHandle::id)).collect()
    }

    /// Returns the number of the last permitted connection.
    pub(crate) fn last_permitted(&self) -> u64 {
        self.state().last_permitted
    }

    /// Orders all connections except the sender to abort tasks. Each receiver resolves when the tasks of one connection
    /// have ended.
    pub(crate) fn abort(
        &self,
        order: &Arc<AbortOrder>,
        by: &SessionMember,
    ) -> Vec<oneshot::Receiver<()>> {
        let is_meant = |entry: &&Entry| {
            let nexus = entry.nexus.as_ref().map(NexusHandle::id);
            nexus.is_some_and(|nexus| order.aborts.iter().any(|one| order.concerns(nexus, one)))
        };
        let state = self.state();
        let mut waiting = Vec::new();
        for entry in state.by_tsih.values().filter(is_meant) {
            let members = entry.members.all();
            let others = members.iter().filter(|member| member.number != by.number);
            let abort = |ended| ConnectionRequest::Abort { order: order.clone(), ended };
            waiting.extend(others.map(|member| ask(&member.mailbox, abort)));
        }
        waiting
    }

    /// Rejects new sessions. Otherwise, a login in progress at the shutdown would be served after the last flush.
    pub(crate) fn reject_new(&self) {
        self.state().closed = true;
    }

    /// Waits until there is no session.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// Returns the number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.state().by_tsih.len()
    }
}

impl SessionsState {
    fn remove(&mut self, tsih: u16) {
        let Some(entry) = self.by_tsih.remove(&tsih) else { return };
        if let Some(key) = Key::of(&entry.login) {
            self.by_key.remove(&key);
        }
        if let Some(target) = &entry.login.target
            && let Some(count) = self.by_target.get_mut(target)
        {
            *count -= 1;
            if *count == 0 {
                self.by_target.remove(target);
            }
        }
    }

    fn add_member(&mut self, members: &Members, login: &Login, mailbox: &Mailbox) -> u64 {
        self.last_number += 1;
        members.all().push(Member::new(self.last_number, login, mailbox));
        self.last_number
    }

    /// Returns the session that a login joins.
    fn joined_by(&self, login: &Login) -> Option<(u16, &Entry)> {
        let tsih = login.end?.tsih;
        let entry = self.by_tsih.get(&tsih)?;
        (Key::of(&entry.login) == Key::of(login)).then_some((tsih, entry))
    }

    /// Returns the session with the identity of a login: the login replaces or joins it.
    fn twin_of(&self, login: &Login) -> Option<&Entry> {
        self.by_tsih.get(self.by_key.get(&Key::of(login)?)?)
    }

    fn free_tsih(&mut self) -> Option<u16> {
        for _ in 0..u16::MAX {
            self.last_tsih = self.last_tsih.checked_add(1).unwrap_or(1);
            if !self.by_tsih.contains_key(&self.last_tsih) {
                return Some(self.last_tsih);
            }
        }
        None
    }
}
