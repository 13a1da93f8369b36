//! What a session, the tasks that serve its connections and those who wait for answers share.

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

/// The token of what waits for the end of the session.
const LOGOUT: Token = Token(0);

/// A connection that was lost, and when.
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
    /// Commands for which the window was full.
    queue: RefCell<VecDeque<(CommandRequest, Token)>>,
    next_token: Cell<u64>,
    /// There is something to send over a connection.
    wakes: RefCell<Vec<(Cid, Rc<Notify>)>>,
    /// Losses that nobody has dealt with.
    pub(crate) losses: RefCell<VecDeque<Loss>>,
    /// A connection was lost, or came, or was let go.
    pub(crate) changed: Notify,
    leaving: Cell<bool>,
    /// Why the session is over.
    ended: RefCell<Option<SessionError>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

/// A session whose connections are closed when this is dropped.
pub(crate) struct Live {
    pub(crate) shared: Rc<Shared>,
}

impl Drop for Live {
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

    /// The session's end, if it is over.
    pub(crate) fn ended(&self) -> Option<SessionError> {
        self.ended.borrow().clone()
    }

    /// What tells that there is something to send over this connection.
    pub(crate) fn wake_of(&self, connection: Cid) -> Rc<Notify> {
        let mut wakes = self.wakes.borrow_mut();
        if let Some((_, wake)) = wakes.iter().find(|(of, _)| *of == connection) {
            return wake.clone();
        }
        let wake = Rc::new(Notify::new());
        wakes.push((connection, wake.clone()));
        wake
    }

    /// Wakes those that have something to send; `but` is awake.
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

    /// Waits for the event that has this token. What `start` asks of the session is sent.
    pub(crate) async fn answer(
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
        match self.answer(LOGOUT, |shared| shared.machine.borrow_mut().logout(LOGOUT)).await {
            // A target that closes where it should answer, as istgt does at times, has let go all
            // the same, and whoever waits for a command is told by that command.
            Err(SessionError::Lost(source)) if source.kind() == ErrorKind::UnexpectedEof => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// Takes back a command that was not sent yet.
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

    /// Gives the session up: its connections are closed.
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

    /// A connection has ended. At level 2 its commands wait for what becomes of it.
    pub(crate) fn note_end(&self, connection: Cid, error: SessionError) {
        self.deliver();
        let at = sarsen_io::time::now();
        self.wakes.borrow_mut().retain(|(of, _)| *of != connection);
        let mut machine = self.machine.borrow_mut();
        // After its answer to a logout the target closes the connections: that is no loss.
        let logged_out = machine.is_logged_out();
        let goes_on = !self.leaving.get() && is_the_line(&error) && machine.lose(connection);
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

    /// Sends those commands that had to wait.
    pub(crate) fn issue_queued(&self) {
        let (mut queue, mut machine) = (self.queue.borrow_mut(), self.machine.borrow_mut());
        while let Some((request, token)) = queue.pop_front() {
            if let Err(request) = machine.command(request, token) {
                queue.push_front((request, token));
                return;
            }
        }
    }

    /// Whether nothing waits to be sent over a connection.
    pub(crate) fn has_sent(&self, connection: Cid) -> bool {
        self.machine.borrow_mut().output(connection).is_none_or(|output| output.is_empty())
    }

    /// Whether commands wait that could be sent.
    pub(crate) fn may_issue(&self) -> bool {
        !self.queue.borrow().is_empty() && self.machine.borrow().window() > 0
    }

    /// Tells those who wait what has happened.
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
                    // Each connection may be told: one answer is for all.
                    if *message == AsyncEvent::LogoutRequest && !self.leaving.replace(true) {
                        machine.logout(LOGOUT);
                    }
                    continue;
                }
            };
            // One that no longer waits has dropped its future: its answer goes with it.
            if let Some(waiter) = self.waiters.borrow_mut().remove(&token) {
                let _ = waiter.send(event);
            }
        }
    }
}

/// Whether the line broke, not the protocol: over another one the target may be as good as any.
const fn is_the_line(error: &SessionError) -> bool {
    match error {
        // Its own end was agreed on, and the session's is looked at elsewhere.
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
