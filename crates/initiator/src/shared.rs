//! The state that a session, the tasks of its connections and the waiting callers share.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use sarsen_proto::iscsi::initiator::{
    Cid, CommandRequest, ConnectionError, Event, Session as Machine, Token,
};
use sarsen_wire::iscsi::AsyncEvent;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::error::SessionError;

/// The token of the caller that waits for the end of the session.
const LOGOUT: Token = Token(0);

/// A lost connection, and the time of the loss.
#[derive(Clone)]
pub(crate) struct Loss {
    pub(crate) connection: Cid,
    pub(crate) at: Instant,
    pub(crate) error: SessionError,
}

/// See the module.
pub(crate) struct Shared {
    pub(crate) machine: RefCell<Machine>,
    waiters: RefCell<HashMap<Token, oneshot::Sender<Event>>>,
    /// Commands that wait because the window is full.
    queue: RefCell<VecDeque<(CommandRequest, Token)>>,
    next_token: Cell<u64>,
    /// Notifies each connection that there is data to send.
    wakes: RefCell<Vec<(Cid, Rc<Notify>)>>,
    /// Losses that no task has handled yet.
    pub(crate) losses: RefCell<VecDeque<Loss>>,
    /// A connection was lost, opened or removed.
    pub(crate) changed: Notify,
    leaving: Cell<bool>,
    /// The reason why the session ended.
    ended: RefCell<Option<SessionError>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// A session whose connections are closed when this is dropped.
pub(crate) struct SessionGuard {
    pub(crate) shared: Rc<Shared>,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.shared.tasks.borrow().iter().for_each(JoinHandle::abort);
    }
}

impl Shared {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            machine: RefCell::new(machine),
            waiters: RefCell::default(),
            queue: RefCell::default(),
            next_token: Cell::new(LOGOUT.0 + 1),
            wakes: RefCell::default(),
            losses: RefCell::default(),
            changed: Notify::new(),
            leaving: Cell::default(),
            ended: RefCell::default(),
            tasks: RefCell::default(),
        }
    }

    /// Runs a task until the session is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::task::spawn_local(task));
    }

    pub(crate) fn token(&self) -> Token {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        Token(token)
    }

    /// Returns the session's end, if it has ended.
    pub(crate) fn ended(&self) -> Option<SessionError> {
        self.ended.borrow().clone()
    }

    /// Returns the notification that there is data to send over this connection.
    pub(crate) fn wake_of(&self, connection: Cid) -> Rc<Notify> {
        let mut wakes = self.wakes.borrow_mut();
        if let Some((_, wake)) = wakes.iter().find(|(of, _)| *of == connection) {
            return wake.clone();
        }
        let wake = Rc::new(Notify::new());
        wakes.push((connection, wake.clone()));
        wake
    }

    /// Wakes the connections that have data to send; `but` is awake already.
    pub(crate) fn wake(&self, but: Option<Cid>) {
        let mut machine = self.machine.borrow_mut();
        for (connection, wake) in &*self.wakes.borrow() {
            let idle = Some(*connection) != but;
            if idle && machine.output(*connection).is_some_and(|output| !output.is_empty()) {
                wake.notify_one();
            }
        }
    }

    /// Sends a command, now or when the window opens.
    pub(crate) fn enqueue(&self, request: CommandRequest, token: Token) {
        let mut queue = self.queue.borrow_mut();
        if !queue.is_empty() {
            queue.push_back((request, token));
            return;
        }
        if let Err(request) = self.machine.borrow_mut().command(request, token) {
            queue.push_back((request, token));
        }
    }

    /// Waits for the event with this token. Sends the requests that `start` adds to the session.
    pub(crate) async fn wait_for_event(
        &self,
        token: Token,
        start: impl FnOnce(&Self),
    ) -> Result<Event, SessionError> {
        if let Some(error) = self.ended() {
            return Err(error);
        }
        let (sender, receiver) = oneshot::channel();
        self.waiters.borrow_mut().insert(token, sender);
        start(self);
        self.deliver();
        self.wake(None);
        match receiver.await {
            Ok(Event::Lost { .. }) => Err(lost(ErrorKind::ConnectionAborted.into())),
            Ok(event) => Ok(event),
            Err(_) => Err(self.ended().unwrap_or(SessionError::LoggedOut)),
        }
    }

    /// Logs out.
    pub(crate) async fn leave(&self) -> Result<(), SessionError> {
        self.leaving.set(true);
        match self.wait_for_event(LOGOUT, |shared| shared.machine.borrow_mut().logout(LOGOUT)).await
        {
            // A target may close the connection without an answer, as istgt sometimes does. The session is logged out
            // even so, and a caller that waits for a command gets the error from that command.
            Err(SessionError::Lost(source)) if source.kind() == ErrorKind::UnexpectedEof => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// Removes a command that was not sent yet from the queue.
    pub(crate) fn withdraw(&self, token: Token) -> bool {
        let mut queue = self.queue.borrow_mut();
        let before = queue.len();
        queue.retain(|(_, other)| *other != token);
        if queue.len() == before {
            return false;
        }
        self.waiters.borrow_mut().remove(&token);
        true
    }

    /// Ends the session and closes its connections.
    pub(crate) fn abandon(&self) {
        self.end(lost(io::ErrorKind::TimedOut.into()));
    }

    pub(crate) fn end(&self, error: SessionError) {
        self.ended.borrow_mut().get_or_insert(error);
        self.queue.borrow_mut().clear();
        self.waiters.borrow_mut().clear();
        self.wakes.borrow().iter().for_each(|(_, wake)| wake.notify_one());
        self.changed.notify_one();
    }

    /// Notes that a connection has ended. At level 2 its commands wait for its recovery.
    pub(crate) fn note_end(&self, connection: Cid, error: SessionError) {
        self.deliver();
        let at = sarsen_io::time::now();
        self.wakes.borrow_mut().retain(|(of, _)| *of != connection);
        let mut machine = self.machine.borrow_mut();
        // After its answer to a logout the target closes the connections: that is not a loss.
        let logged_out = machine.is_logged_out();
        let goes_on = !self.leaving.get() && is_the_line(&error) && machine.mark_lost(connection);
        let is_lost = machine.is_lost(connection);
        drop(machine);
        if logged_out {
            self.end(SessionError::LoggedOut);
        } else if !goes_on {
            self.end(error);
        } else {
            if is_lost {
                tracing::warn!(cid = connection.0, %error, "a connection was lost");
                self.losses.borrow_mut().push_back(Loss { connection, at, error });
            }
            self.deliver();
            self.wake(None);
            self.changed.notify_one();
        }
    }

    /// Sends the commands that had to wait.
    pub(crate) fn issue_queued(&self) {
        let (mut queue, mut machine) = (self.queue.borrow_mut(), self.machine.borrow_mut());
        while let Some((request, token)) = queue.pop_front() {
            if let Err(request) = machine.command(request, token) {
                queue.push_front((request, token));
                return;
            }
        }
    }

    /// Returns whether all data for a connection has been sent.
    pub(crate) fn has_sent(&self, connection: Cid) -> bool {
        self.machine.borrow_mut().output(connection).is_none_or(|output| output.is_empty())
    }

    /// Returns whether queued commands can be sent now.
    pub(crate) fn may_issue(&self) -> bool {
        !self.queue.borrow().is_empty() && self.machine.borrow().window() > 0
    }

    /// Delivers events to the waiting callers.
    pub(crate) fn deliver(&self) {
        let mut machine = self.machine.borrow_mut();
        while let Some(event) = machine.poll_event() {
            let token = match &event {
                Event::Completed(completion) => completion.token,
                Event::Aborted { token }
                | Event::Lost { token }
                | Event::TaskManagementDone { token, .. }
                | Event::TextDone { token, .. }
                | Event::Pong { token }
                | Event::Rejected { token: Some(token), .. } => *token,
                Event::LoggedOut { .. } => LOGOUT,
                Event::SecurityPassed | Event::LoggedIn => continue,
                Event::Joined { connection } | Event::Removed { connection } => {
                    tracing::debug!(cid = connection.0, ?event, "connections have changed");
                    self.changed.notify_one();
                    continue;
                }
                Event::Left { .. } => continue,
                Event::Rejected { reason, token: None } => {
                    tracing::warn!(?reason, "the target rejected a PDU of no open request");
                    continue;
                }
                Event::AsyncMessage { event: message, .. } => {
                    tracing::info!(event = ?message, "asynchronous message");
                    // The target may notify each connection: one logout answers all.
                    if *message == AsyncEvent::LogoutRequest && !self.leaving.replace(true) {
                        machine.logout(LOGOUT);
                    }
                    continue;
                }
            };
            // A caller that no longer waits has dropped its future, and its answer is dropped, too.
            if let Some(waiter) = self.waiters.borrow_mut().remove(&token) {
                let _ = waiter.send(event);
            }
        }
    }
}

/// Returns whether the connection failed, not the protocol: another connection to the target may work.
const fn is_the_line(error: &SessionError) -> bool {
    match error {
        // The end of a connection was agreed on, and the session's end is handled elsewhere.
        SessionError::Lost(_) | SessionError::LoggedOut => true,
        SessionError::Connection(error) => matches!(
            error,
            ConnectionError::Framing(_)
                | ConnectionError::DataDigest(_)
                | ConnectionError::NotRepeated
        ),
        _ => false,
    }
}

pub(crate) fn lost(error: io::Error) -> SessionError {
    SessionError::Lost(Arc::new(error))
}
