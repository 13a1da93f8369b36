//! All sessions of the server: their initiators, and the mailboxes of their connections. The state of a connection
//! belongs to its core, so other connections reach it only by its mailbox.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{Admission, MemberId, ReassignReply, RefusalReason, Session};
use sarsen_scsi::{Lun, NexusHandle, UnitAttention};
use sarsen_wire::iscsi::Isid;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot};

use crate::config::Limits;
use crate::mailbox::{AbortOrder, ConnectionRequest, Mailbox};
use crate::protocol::Protocol;
use sarsen_volume::qos::Queue;

/// The identity of a session for reinstatement: initiator port and target (RFC 7143 §4.4.3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    initiator_name: String,
    isid: [u8; 6],
    target_name: Option<String>,
    /// A discovery session does not reinstate a normal session.
    session_type: SessionType,
}

impl Key {
    fn of(admission: &Admission) -> Self {
        Self {
            initiator_name: admission.initiator_name.clone(),
            isid: admission.isid.0,
            target_name: admission.target_name.clone(),
            session_type: admission.session_type,
        }
    }
}

struct Entry {
    key: Key,
    /// The authenticated account.
    account: Option<String>,
    protocol: Protocol,
    since: SystemTime,
    /// The I_T nexus, once it exists.
    nexus: Option<NexusHandle>,
    /// The values by which further connections join, if the session permits any.
    session: Option<Arc<Session>>,
    members: Arc<Members>,
}

impl Entry {
    fn session_info(&self, tsih: u16) -> SessionInfo {
        SessionInfo {
            tsih,
            initiator_name: self.key.initiator_name.clone(),
            isid: Isid(self.key.isid),
            target_name: self.key.target_name.clone(),
            session_type: self.key.session_type,
            account: self.account.clone(),
            protocol: self.protocol,
            since: self.since,
            mailboxes: self.members.all().iter().map(|member| member.mailbox.clone()).collect(),
        }
    }
}

/// The connections of a session.
#[derive(Default)]
struct Members {
    all: Mutex<Vec<Member>>,
    /// The commands that wait for a limit.
    queue: Arc<Queue>,
    /// Held by the connection that claims a task, until it has the task. If two connections claim the same task, the
    /// later one finds it on the earlier one.
    claims: Arc<tokio::sync::Mutex<()>>,
}

struct Member {
    member: u64,
    cid: u16,
    /// The id that the machines use for the connection.
    id: MemberId,
    mailbox: Mailbox,
    /// The connection is lost. Its tasks wait for other connections.
    is_lost: bool,
}

impl Members {
    fn all(&self) -> MutexGuard<'_, Vec<Member>> {
        self.all.lock()
    }

    /// Claims a task from all connections except one.
    fn claim(&self, but: u64, tag: u32, by: &Mailbox) -> Vec<oneshot::Receiver<ReassignReply>> {
        let all = self.all();
        let others = all.iter().filter(|member| member.member != but);
        let claim = |answer| ConnectionRequest::Claim { tag, by: by.clone(), answer };
        others.map(|member| ask(&member.mailbox, claim)).collect()
    }

    /// Reports an event to the initiator, through one connection.
    fn tell(&self, lun: Lun, attention: UnitAttention) {
        if let Some(member) = self.all().iter().find(|member| !member.is_lost) {
            let _ = member.mailbox.send(ConnectionRequest::ScsiEvent { lun, attention });
        }
    }

    /// Ends the session on all connections except one. Each receiver resolves when the tasks of a connection have
    /// ended.
    fn terminate(&self, but: Option<u64>) -> Vec<oneshot::Receiver<()>> {
        let all = self.all();
        let meant = all.iter().filter(|member| Some(member.member) != but);
        meant
            .map(|member| ask(&member.mailbox, |ended| ConnectionRequest::Terminate { ended }))
            .collect()
    }
}

/// Sends a message with a new sender. The returned receiver resolves when that sender is used or dropped.
fn ask<T>(
    mailbox: &Mailbox,
    message: impl FnOnce(oneshot::Sender<T>) -> ConnectionRequest,
) -> oneshot::Receiver<T> {
    let (ended, waiting) = oneshot::channel();
    // A closed connection has no tasks.
    let _ = mailbox.send(message(ended));
    waiting
}

/// The properties of a session, for lists.
pub(crate) struct SessionInfo {
    pub(crate) tsih: u16,
    pub(crate) initiator_name: String,
    pub(crate) isid: Isid,
    pub(crate) target_name: Option<String>,
    pub(crate) session_type: SessionType,
    /// The authenticated account.
    pub(crate) account: Option<String>,
    pub(crate) protocol: Protocol,
    pub(crate) since: SystemTime,
    /// The mailboxes of its connections.
    pub(crate) mailboxes: Vec<Mailbox>,
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
    last_member: u64,
    /// The server is shutting down.
    closed: bool,
}

/// A connection's membership in its session, until this is dropped. The session ends with its last member.
pub(crate) struct SessionMember<'a> {
    sessions: &'a Sessions,
    pub(crate) tsih: u16,
    id: u64,
    members: Arc<Members>,
}

impl SessionMember<'_> {
    /// Sets the nexus of the session, and reports the events of its units to the initiator.
    pub(crate) fn use_nexus(&self, nexus: &NexusHandle) {
        if let Some(entry) = self.sessions.state().by_tsih.get_mut(&self.tsih) {
            entry.nexus = Some(nexus.clone());
        }
        let members = self.members.clone();
        nexus.listen(Arc::new(move |lun, attention| members.tell(lun, attention)));
    }

    /// Returns the queue of the session's commands that wait for limits.
    pub(crate) fn queue(&self) -> Arc<Queue> {
        self.members.queue.clone()
    }

    /// Returns the nexus of the session.
    pub(crate) fn nexus(&self) -> Option<NexusHandle> {
        self.sessions.state().by_tsih.get(&self.tsih)?.nexus.clone()
    }

    /// Permits other connections to join, and sets the id by which they find this one.
    pub(crate) fn share(&self, session: Arc<Session>, id: MemberId) {
        if let Some(entry) = self.sessions.state().by_tsih.get_mut(&self.tsih) {
            entry.session = Some(session);
        }
        for member in self.members.all().iter_mut().filter(|member| member.member == self.id) {
            member.id = id;
        }
    }

    /// Resumes another connection of the session.
    pub(crate) fn wake(&self, id: MemberId) {
        if let Some(member) = self.members.all().iter().find(|member| member.id == id) {
            let _ = member.mailbox.send(ConnectionRequest::Wake);
        }
    }

    /// Logs out one other connection of the session, or all. Returns `None` if the given connection does not exist.
    pub(crate) fn log_out(&self, cid: Option<u16>) -> Option<Vec<oneshot::Receiver<()>>> {
        let members = self.members.all();
        let meant = members
            .iter()
            .filter(|member| member.member != self.id && cid.is_none_or(|cid| cid == member.cid));
        let waiting: Vec<_> = meant
            .map(|member| ask(&member.mailbox, |ended| ConnectionRequest::LogOut { ended }))
            .collect();
        (cid.is_none() || !waiting.is_empty()).then_some(waiting)
    }

    /// Marks the connection as lost. Its tasks are kept.
    pub(crate) fn mark_lost(&self) {
        for member in self.members.all().iter_mut().filter(|member| member.member == self.id) {
            member.is_lost = true;
        }
    }

    /// Parks another connection, which may not have detected its loss yet. Returns `None` if it does not exist.
    pub(crate) fn mark_other_lost(&self, cid: u16) -> Option<Vec<oneshot::Receiver<()>>> {
        let members = self.members.all();
        let meant = members.iter().filter(|member| member.member != self.id && member.cid == cid);
        let mark_lost = |marked| ConnectionRequest::MarkLost { marked };
        let waiting: Vec<_> = meant.map(|member| ask(&member.mailbox, mark_lost)).collect();
        (!waiting.is_empty()).then_some(waiting)
    }

    /// Claims a task from the other connections of the session, as soon as no other connection claims one.
    pub(crate) fn claim(
        &self,
        tag: u32,
        by: Mailbox,
    ) -> impl Future<Output = (ReassignReply, OwnedMutexGuard<()>)> + use<> {
        let (members, own) = (self.members.clone(), self.id);
        async move {
            let turn = members.claims.clone().lock_owned().await;
            let mut found = ReassignReply::Unknown;
            for answer in members.claim(own, tag, &by) {
                match answer.await {
                    Ok(ReassignReply::Unknown) | Err(_) => {}
                    Ok(claim) => found = claim,
                }
            }
            (found, turn)
        }
    }

    /// Ends the session on its other connections, because this one is lost.
    pub(crate) fn terminate_others(&self) {
        self.members.terminate(Some(self.id));
    }
}

impl Drop for SessionMember<'_> {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        let mut members = self.members.all();
        members.retain(|member| member.member != self.id);
        if members.is_empty() {
            // The nexus ends with the session, before another session can replace it.
            drop(members);
            state.remove(self.tsih);
        }
        if state.by_tsih.is_empty() {
            self.sessions.emptied.notify_waiters();
        }
    }
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
        state.limit = limits.sessions;
        state.limit_per_target = limits.sessions_per_target;
    }

    /// Releases removed units in the sessions with these targets. An idle session does not do this itself.
    pub(crate) fn refresh(&self, targets: &HashSet<&str>) {
        let mut state = self.state();
        let is_meant = |entry: &&mut Entry| {
            entry.key.target_name.as_deref().is_some_and(|name| targets.contains(name))
        };
        for entry in state.by_tsih.values_mut().filter(is_meant) {
            entry.nexus.iter_mut().for_each(NexusHandle::refresh);
            for member in entry.members.all().iter() {
                let _ = member.mailbox.send(ConnectionRequest::Refresh);
            }
        }
    }

    /// Counts a new session and returns its TSIH, if the limits permit it.
    fn make_room(state: &mut SessionsState, key: &Key) -> Result<u16, RefusalReason> {
        if state.by_tsih.len() >= state.limit {
            return Err(RefusalReason::OutOfResources);
        }
        let tsih = state.free_tsih().ok_or(RefusalReason::OutOfResources)?;
        if let Some(target) = &key.target_name {
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

    /// Registers a new session. A session that it reinstates (RFC 7143 §6.3.5) is ended first, with all its tasks.
    pub(crate) async fn register_session(
        &self,
        admission: &Admission,
        protocol: Protocol,
        mailbox: &Mailbox,
    ) -> Result<SessionMember<'_>, RefusalReason> {
        let key = Key::of(admission);
        loop {
            let ending = {
                let mut state = self.state();
                let twin = state.by_key.get(&key).and_then(|tsih| state.by_tsih.get(tsih));
                match twin {
                    // A mailbox stays open longer than the membership of its connection.
                    Some(Entry { members, .. }) => members.terminate(None),
                    None if state.closed => return Err(RefusalReason::NotInService),
                    None => {
                        let tsih = Self::make_room(&mut state, &key)?;
                        state.by_key.insert(key.clone(), tsih);
                        let members = Arc::default();
                        let id = state.sit(&members, admission.cid, mailbox);
                        let entry = Entry {
                            key,
                            account: admission.account.clone(),
                            protocol,
                            since: time::wall_clock(),
                            nexus: None,
                            session: None,
                            members: members.clone(),
                        };
                        state.by_tsih.insert(tsih, entry);
                        return Ok(SessionMember { sessions: self, tsih, id, members });
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
    pub(crate) fn session(&self, admission: &Admission) -> Result<Arc<Session>, RefusalReason> {
        let state = self.state();
        let key = Key::of(admission);
        let entry = state.by_tsih.get(&admission.tsih).filter(|entry| entry.key == key);
        let entry = entry.ok_or(RefusalReason::NoSuchSession)?;
        if entry.account != admission.account {
            return Err(RefusalReason::CannotIncludeInSession);
        }
        // RFC 7143 §11.13.5: MaxConnections is 1.
        entry.session.clone().ok_or(RefusalReason::TooManyConnections)
    }

    /// Registers a further connection of a session. A connection with the same CID is logged out first (RFC 7143
    /// §6.3.4).
    pub(crate) async fn join(
        &self,
        admission: &Admission,
        mailbox: &Mailbox,
    ) -> Result<SessionMember<'_>, RefusalReason> {
        let key = Key::of(admission);
        loop {
            let ended = {
                let mut state = self.state();
                if state.closed {
                    return Err(RefusalReason::NotInService);
                }
                let entry = state.by_tsih.get(&admission.tsih).filter(|entry| entry.key == key);
                let entry = entry.ok_or(RefusalReason::NoSuchSession)?;
                let session = entry.session.as_ref();
                let session = session.filter(|_| entry.account == admission.account);
                let session = session.ok_or(RefusalReason::CannotIncludeInSession)?;
                let members = entry.members.clone();
                let all = members.all();
                let live = || all.iter().filter(|member| !member.is_lost);
                let limit = session.parameters().max_connections as usize;
                let outlived = session.parameters().error_recovery_level == 2;
                match live().find(|member| member.cid == admission.cid) {
                    Some(twin) if outlived => {
                        ask(&twin.mailbox, |marked| ConnectionRequest::MarkLost { marked })
                    }
                    Some(twin) => ask(&twin.mailbox, |ended| ConnectionRequest::LogOut { ended }),
                    None if live().count() >= limit => {
                        return Err(RefusalReason::TooManyConnections);
                    }
                    None => {
                        drop(all);
                        let id = state.sit(&members, admission.cid, mailbox);
                        return Ok(SessionMember {
                            sessions: self,
                            tsih: admission.tsih,
                            id,
                            members,
                        });
                    }
                }
            };
            let _ = ended.await;
        }
    }

    /// Returns the mailboxes of the sessions with a target, or of all sessions.
    pub(crate) fn mailboxes(&self, target_name: Option<&str>) -> Vec<(u16, Mailbox)> {
        let state = self.state();
        let meant = state.by_tsih.iter().filter(|(_, entry)| {
            target_name.is_none() || entry.key.target_name.as_deref() == target_name
        });
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
        let mut session_infos: Vec<_> =
            entries.map(|(&tsih, entry)| entry.session_info(tsih)).collect();
        session_infos.sort_by_key(|session| session.tsih);
        session_infos
    }

    /// Orders all connections except the sender to abort tasks. Each receiver resolves when the tasks of one connection
    /// have ended.
    pub(crate) fn abort(
        &self,
        order: &Arc<AbortOrder>,
        by: &SessionMember<'_>,
    ) -> Vec<oneshot::Receiver<()>> {
        let is_meant = |entry: &&Entry| {
            let nexus = entry.nexus.as_ref().map(NexusHandle::id);
            nexus.is_some_and(|nexus| order.aborts.iter().any(|one| order.concerns(nexus, one)))
        };
        let state = self.state();
        let mut waiting = Vec::new();
        for entry in state.by_tsih.values().filter(is_meant) {
            let members = entry.members.all();
            let others = members.iter().filter(|member| member.member != by.id);
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
        self.by_key.remove(&entry.key);
        if let Some(target) = &entry.key.target_name
            && let Some(count) = self.by_target.get_mut(target)
        {
            *count -= 1;
            if *count == 0 {
                self.by_target.remove(target);
            }
        }
    }

    fn sit(&mut self, members: &Members, cid: u16, mailbox: &Mailbox) -> u64 {
        self.last_member += 1;
        let member = Member {
            member: self.last_member,
            cid,
            id: 0,
            mailbox: mailbox.clone(),
            is_lost: false,
        };
        members.all().push(member);
        self.last_member
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use tokio::sync::mpsc;

    use super::*;

    /// Otherwise, two connections that claim the same task would both deny it, or wait for each other.
    #[tokio::test]
    async fn connections_claim_session_one_at_a_time() {
        let sessions = Sessions::new(&Limits::default());
        let members: Arc<Members> = Arc::default();
        let (holder, mut messages) = mpsc::unbounded_channel();
        let (others, unanswered) = mpsc::unbounded_channel();
        let admits: Vec<SessionMember<'_>> = [&holder, &others, &others]
            .into_iter()
            .map(|mailbox| {
                let id = sessions.state().sit(&members, 0, mailbox);
                SessionMember { sessions: &sessions, tsih: 1, id, members: members.clone() }
            })
            .collect();
        let mut earlier = pin!(admits[1].claim(7, others.clone()));
        let mut later = pin!(admits[2].claim(7, others.clone()));
        assert!(
            earlier.as_mut().now_or_never().is_none() && later.as_mut().now_or_never().is_none()
        );
        let Ok(ConnectionRequest::Claim { tag: 7, answer, .. }) = messages.try_recv() else {
            panic!("the holder is asked by the earlier");
        };
        assert!(messages.try_recv().is_err(), "and not by the later meanwhile");
        answer.send(ReassignReply::Allegiant).expect("it waits");
        // The third connection has not answered.
        assert!(earlier.as_mut().now_or_never().is_none());
        drop(unanswered);
        let (claim, turn) = earlier.await;
        assert!(matches!(claim, ReassignReply::Allegiant));
        assert!(later.as_mut().now_or_never().is_none() && messages.try_recv().is_err());
        drop(turn);
        assert!(later.as_mut().now_or_never().is_none());
        assert!(matches!(messages.try_recv(), Ok(ConnectionRequest::Claim { tag: 7, .. })));
    }
}
