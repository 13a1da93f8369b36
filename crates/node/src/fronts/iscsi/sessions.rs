//! All sessions of the server: who they are with, and the mailbox of the connection that owns
//! each. Whatever concerns another session goes through its mailbox, for its state belongs to its
//! core.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sarsen_proto::iscsi::keys::SessionType;
use sarsen_proto::iscsi::target::{Admission, TaskId};
use sarsen_scsi::TaskAbort;
use sarsen_wire::iscsi::{Isid, TaskManagementResponse};
use tokio::sync::{Notify, mpsc, oneshot};

/// What may be asked of a session's connection.
#[derive(Debug)]
pub(crate) enum Message {
    /// End tasks; the sender is told, or dropped, when they have ended.
    Abort { order: Arc<AbortOrder>, ended: oneshot::Sender<()> },
    /// Answer a task management request of this session.
    Respond { initiator_task_tag: u32, response: TaskManagementResponse },
    /// Ask the initiator to log out within so many seconds.
    RequestLogout { seconds: u16 },
    /// End the session; the sender is dropped when its tasks have ended.
    Terminate { ended: oneshot::Sender<()> },
}

/// Tasks that one session ends, its own or others'.
#[derive(Debug)]
pub(crate) struct AbortOrder {
    /// The nexus that does it. Its own tasks end without a word.
    pub(crate) by: u64,
    /// The command that does it.
    pub(crate) spared: Option<TaskId>,
    pub(crate) aborts: Vec<TaskAbort>,
    /// Whoever loses tasks without an answer is told so by a unit attention.
    pub(crate) is_told: bool,
}

/// RFC 7143 §4.4.3: what makes a session the same one again: initiator port and target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    initiator_name: String,
    isid: Isid,
    target_name: Option<String>,
    /// Who only looks for targets does not end a session that uses one of them.
    session_type: SessionType,
}

struct Entry {
    key: Key,
    /// The I_T nexus, once there is one.
    nexus: Option<u64>,
    mailbox: mpsc::UnboundedSender<Message>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Sessions {
    state: Mutex<State>,
    /// Told when the last session has gone.
    emptied: Notify,
}

#[derive(Default)]
struct State {
    by_tsih: HashMap<u16, Entry>,
    last_tsih: u16,
    /// The server ends.
    closed: bool,
}

/// A session's place among the sessions; it is given up when this is dropped.
pub(crate) struct Seat<'a> {
    sessions: &'a Sessions,
    pub(crate) tsih: u16,
}

impl Seat<'_> {
    /// From here on the session is found by its nexus.
    pub(crate) fn use_nexus(&self, nexus: u64) {
        if let Some(entry) = self.sessions.state().by_tsih.get_mut(&self.tsih) {
            entry.nexus = Some(nexus);
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut state = self.sessions.state();
        state.by_tsih.remove(&self.tsih);
        if state.by_tsih.is_empty() {
            self.sessions.emptied.notify_waiters();
        }
    }
}

impl Sessions {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seats a new session. One that it reinstates (RFC 7143 §6.3.5) is ended first, with all
    /// its tasks. `None` when all of the TSIHs are taken or the server ends.
    pub(crate) async fn seat(
        &self,
        admission: &Admission,
        mailbox: &mpsc::UnboundedSender<Message>,
    ) -> Option<Seat<'_>> {
        let key = Key {
            initiator_name: admission.initiator_name.clone(),
            isid: admission.isid,
            target_name: admission.target_name.clone(),
            session_type: admission.session_type,
        };
        loop {
            let ended = {
                let mut state = self.state();
                let twin = state.by_tsih.iter().find(|(_, entry)| entry.key == key);
                match twin {
                    Some((_, Entry { mailbox, .. })) => {
                        let (sender, ended) = oneshot::channel();
                        // A mailbox outlives its session's seat.
                        let _ = mailbox.send(Message::Terminate { ended: sender });
                        ended
                    }
                    None if state.closed => return None,
                    None => {
                        let tsih = state.free_tsih()?;
                        state
                            .by_tsih
                            .insert(tsih, Entry { key, nexus: None, mailbox: mailbox.clone() });
                        return Some(Seat { sessions: self, tsih });
                    }
                }
            };
            // Dropped, not sent to, when the other session is gone.
            let _ = ended.await;
        }
    }

    /// Mailboxes of the sessions with a target, or of all.
    pub(crate) fn mailboxes(
        &self,
        target_name: Option<&str>,
    ) -> Vec<(u16, mpsc::UnboundedSender<Message>)> {
        self.state()
            .by_tsih
            .iter()
            .filter(|(_, entry)| {
                target_name.is_none() || entry.key.target_name.as_deref() == target_name
            })
            .map(|(&tsih, entry)| (tsih, entry.mailbox.clone()))
            .collect()
    }

    /// Has all sessions but the one that orders it end tasks. Each answer comes, or its sender is
    /// dropped, when those of one session have ended.
    pub(crate) fn abort(&self, order: &Arc<AbortOrder>) -> Vec<oneshot::Receiver<()>> {
        let is_meant = |nexus: &u64| {
            *nexus != order.by
                && order.aborts.iter().any(|task_abort| task_abort.abort.nexuses.contains(nexus))
        };
        let state = self.state();
        let meant =
            state.by_tsih.values().filter(|entry| entry.nexus.as_ref().is_some_and(is_meant));
        meant
            .map(|Entry { mailbox, .. }| {
                let (ended, waiting) = oneshot::channel();
                // A session that is gone has no tasks.
                let _ = mailbox.send(Message::Abort { order: order.clone(), ended });
                waiting
            })
            .collect()
    }

    /// From here on there are no new sessions: a login that was under way when the server began
    /// to end would otherwise be served after the last flush.
    pub(crate) fn close(&self) {
        self.state().closed = true;
    }

    /// Ends when there is no session.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.count() == 0 {
                return;
            }
            emptied.await;
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state().by_tsih.len()
    }
}

impl State {
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
