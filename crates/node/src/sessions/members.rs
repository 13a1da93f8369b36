//! The connections of a session. The state of a connection belongs to its core, so others reach it only by its mailbox.

use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::target::{MemberId, ReassignReply, Session, TaskId};
use sarsen_scsi::{Lun, LunView, NexusHandle, UnitAttention};
use sarsen_volume::qos::Queue;
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::{ConnectionInfo, Login, Sessions};
use crate::mailbox::{ClaimedTasks, ConnectionRequest, Mailbox};

/// The connections of a session.
#[derive(Default)]
pub(super) struct Members {
    all: Mutex<Vec<Member>>,
    /// The commands that wait for a limit.
    queue: Arc<Queue>,
    /// Held by the connection that claims a task, until it has the task. If two connections claim the same task, the
    /// later one finds it on the earlier one.
    claims: Arc<tokio::sync::Mutex<ClaimedTasks>>,
}

pub(super) struct Member {
    /// Its number among all connections.
    pub(super) number: u64,
    /// The id that the machines use for the connection.
    id: MemberId,
    pub(super) login: Login,
    pub(super) mailbox: Mailbox,
    /// The connection is lost. Its tasks wait for other connections.
    pub(super) is_lost: bool,
    /// Present once the access rules have permitted the connection.
    pub(super) permitted: Option<Permitted>,
    /// Present once the login is complete.
    established: Option<Established>,
}

/// The access of a permitted connection.
pub(super) struct Permitted {
    /// Its number among all permitted connections.
    pub(super) number: u64,
    pub(super) view: LunView,
}

struct Established {
    since: SystemTime,
    /// The negotiated keys of an iSCSI connection.
    parameters: Option<Parameters>,
}

impl Member {
    pub(super) fn new(number: u64, login: &Login, mailbox: &Mailbox) -> Self {
        let (login, mailbox) = (login.clone(), mailbox.clone());
        Self { number, id: 0, login, mailbox, is_lost: false, permitted: None, established: None }
    }

    fn connection_info(&self) -> Option<ConnectionInfo> {
        let Established { since, parameters } = self.established.as_ref()?;
        Some(ConnectionInfo {
            cid: self.login.cid,
            peer: self.login.client.peer,
            local: self.login.local,
            portal_group: self.login.portal.group,
            parameters: parameters.clone(),
            since: *since,
        })
    }
}

impl Members {
    pub(super) fn all(&self) -> MutexGuard<'_, Vec<Member>> {
        self.all.lock()
    }

    /// Claims a task from all connections except one.
    fn claim(&self, but: u64, tag: u32) -> Vec<oneshot::Receiver<ReassignReply>> {
        let all = self.all();
        let others = all.iter().filter(|member| member.number != but);
        let claim = |answer| ConnectionRequest::Claim { tag, answer };
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
    pub(super) fn terminate(&self, but: Option<u64>) -> Vec<oneshot::Receiver<()>> {
        let all = self.all();
        let meant = all.iter().filter(|member| Some(member.number) != but);
        meant
            .map(|member| ask(&member.mailbox, |ended| ConnectionRequest::Terminate { ended }))
            .collect()
    }
}

impl Members {
    /// Returns the connections whose login is complete, oldest first. A lost connection is none.
    pub(super) fn connections(&self) -> Vec<ConnectionInfo> {
        let all = self.all();
        all.iter().filter(|member| !member.is_lost).filter_map(Member::connection_info).collect()
    }
}

/// Sends a message with a new sender. The returned receiver resolves when that sender is used or dropped.
pub(super) fn ask<T>(
    mailbox: &Mailbox,
    message: impl FnOnce(oneshot::Sender<T>) -> ConnectionRequest,
) -> oneshot::Receiver<T> {
    let (ended, waiting) = oneshot::channel();
    // A closed connection has no tasks.
    let _ = mailbox.send(message(ended));
    waiting
}

/// A connection's membership in its session, until this is dropped. The session ends with its last member.
pub(crate) struct SessionMember {
    pub(super) sessions: Arc<Sessions>,
    pub(crate) tsih: u16,
    /// Its number among all connections.
    pub(super) number: u64,
    pub(super) members: Arc<Members>,
}

impl SessionMember {
    /// Returns the registry.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Sets the nexus of the session, which was opened with this view, and reports the events of its units to the
    /// initiator. Returns the current view if it has changed since.
    pub(crate) fn use_nexus(&self, nexus: &NexusHandle, opened_with: &LunView) -> Option<LunView> {
        let members = self.members.clone();
        nexus.listen(Arc::new(move |lun, attention| members.tell(lun, attention)));
        let mut state = self.sessions.state();
        state.by_tsih.get_mut(&self.tsih)?.nexus = Some(nexus.clone());
        let all = self.members.all();
        let own = all.iter().find(|member| member.number == self.number)?;
        let view = &own.permitted.as_ref()?.view;
        (view != opened_with).then(|| view.clone())
    }

    /// Marks the login as complete.
    pub(crate) fn establish(&self, parameters: Option<Parameters>) {
        let established = Some(Established { since: time::wall_clock(), parameters });
        self.with_own(|member| member.established = established);
    }

    fn with_own<T>(&self, change: impl FnOnce(&mut Member) -> T) -> Option<T> {
        let mut all = self.members.all();
        all.iter_mut().find(|member| member.number == self.number).map(change)
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
        self.with_own(|member| member.id = id);
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
        let meant = members.iter().filter(|member| {
            member.number != self.number && cid.is_none_or(|cid| cid == member.login.cid)
        });
        let waiting: Vec<_> = meant
            .map(|member| ask(&member.mailbox, |ended| ConnectionRequest::LogOut { ended }))
            .collect();
        (cid.is_none() || !waiting.is_empty()).then_some(waiting)
    }

    /// Marks the connection as lost. Its tasks are kept.
    pub(crate) fn mark_lost(&self) {
        self.with_own(|member| member.is_lost = true);
    }

    /// Parks another connection, which may not have detected its loss yet. Returns `None` if it does not exist.
    pub(crate) fn mark_other_lost(&self, cid: u16) -> Option<Vec<oneshot::Receiver<()>>> {
        let members = self.members.all();
        let meant =
            members.iter().filter(|member| member.number != self.number && member.login.cid == cid);
        let mark_lost = |marked| ConnectionRequest::MarkLost { marked };
        let waiting: Vec<_> = meant.map(|member| ask(&member.mailbox, mark_lost)).collect();
        (!waiting.is_empty()).then_some(waiting)
    }

    /// Claims a task from the other connections of the session, as soon as no other connection claims one.
    pub(crate) fn claim(
        &self,
        tag: u32,
        by: Mailbox,
    ) -> impl Future<Output = (ReassignReply, OwnedMutexGuard<ClaimedTasks>)> + use<> {
        let (members, own) = (self.members.clone(), self.number);
        async move {
            let mut turn = members.claims.clone().lock_owned().await;
            let mut found = ReassignReply::Unknown;
            for answer in members.claim(own, tag) {
                match answer.await {
                    Ok(ReassignReply::Unknown) | Err(_) => {}
                    Ok(claim) => found = claim,
                }
            }
            if let ReassignReply::Released(released) = &found
                && let Some(running) = released.running()
            {
                turn.insert(running.number(), by);
            }
            (found, turn)
        }
    }

    /// Sends the completion of a released task to the connection that has the task now, as soon as no connection claims one:
    /// a connection drops the completion of a task that it does not have yet.
    pub(crate) fn complete_elsewhere(
        &self,
        task: TaskId,
        completion: Box<sarsen_scsi::Completion>,
    ) -> impl Future<Output = ()> + use<> {
        let claims = self.members.claims.clone();
        async move {
            if let Some(owner) = claims.lock_owned().await.remove(&task.number()) {
                let _ = owner.send(ConnectionRequest::Completed { task, completion });
            }
        }
    }

    /// Ends the session on its other connections, because this one is lost.
    pub(crate) fn terminate_others(&self) {
        self.members.terminate(Some(self.number));
    }
}

impl Drop for SessionMember {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        let mut members = self.members.all();
        members.retain(|member| member.number != self.number);
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use tokio::sync::mpsc;

    use super::*;
    use crate::config::Limits;

    /// Otherwise, two connections that claim the same task would both deny it, or wait for each other.
    #[tokio::test]
    async fn connections_claim_session_one_at_a_time() {
        let sessions = Arc::new(Sessions::new(&Limits::default()));
        let members: Arc<Members> = Arc::default();
        let login = Login::of_anonymous("iqn.2026-11.x:host", "iqn.2026-11.x:t");
        let (holder, mut messages) = mpsc::unbounded_channel();
        let (others, unanswered) = mpsc::unbounded_channel();
        let admits: Vec<SessionMember> = [&holder, &others, &others]
            .into_iter()
            .map(|mailbox| {
                let number = sessions.state().add_member(&members, &login, mailbox);
                let (sessions, members) = (sessions.clone(), members.clone());
                SessionMember { sessions, tsih: 1, number, members }
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
