//! The state that a login, the tasks of its connections and the waiting callers share. The tasks run on the core that
//! logged in; callers may be on any core.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::{
    Cid, CommandRequest, ConnectionError, Event, Session as Machine, Token,
};
use sarsen_wire::iscsi::AsyncEvent;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::error::SessionError;

/// The token of the caller that waits for the end of the login.
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
    state: Mutex<State>,
    /// A connection was lost, opened or removed.
    pub(crate) changed: Notify,
    /// The login has ended.
    over: Notify,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The part under the lock, which no task holds while it waits.
pub(crate) struct State {
    pub(crate) machine: Machine,
    waiters: BTreeMap<Token, oneshot::Sender<Event>>,
    /// Commands that wait because the window is full.
    queue: VecDeque<(CommandRequest, Token)>,
    next_token: u64,
    /// How each connection is notified that there is data to send.
    wakes: Vec<Wake>,
    /// Losses that no task has handled yet.
    pub(crate) losses: VecDeque<Loss>,
    leaving: bool,
    /// The reason why the login ended.
    ended: Option<SessionError>,
}

struct Wake {
    connection: Cid,
    notify: Arc<Notify>,
    /// Its socket is full: it wakes when there is space.
    is_blocked: bool,
}

/// A login whose connections are closed when this is dropped.
pub(crate) struct LoginGuard {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for LoginGuard {
    fn drop(&mut self) {
        self.shared.end(SessionError::LoggedOut);
        self.shared.tasks.lock().iter().for_each(JoinHandle::abort);
    }
}

impl Wake {
    fn notify_of(&self, machine: &mut Machine) {
        let has_data = machine.output(self.connection).is_some_and(|output| !output.is_empty());
        if has_data && !self.is_blocked {
            self.notify.notify_one();
        }
    }
}

impl State {
    /// Sends a command, now or when the window opens.
    pub(crate) fn enqueue(&mut self, request: CommandRequest, token: Token) {
        if !self.queue.is_empty() {
            self.queue.push_back((request, token));
        } else if let Err(request) = self.machine.command(request, token) {
            self.queue.push_back((request, token));
        }
    }

    /// Sends the commands that had to wait.
    pub(crate) fn issue_queued(&mut self) {
        while let Some((request, token)) = self.queue.pop_front() {
            if let Err(request) = self.machine.command(request, token) {
                self.queue.push_front((request, token));
                return;
            }
        }
    }

    /// Returns whether queued commands can be sent now.
    pub(crate) fn may_issue(&self) -> bool {
        !self.queue.is_empty() && self.machine.window() > 0
    }

    /// Returns whether all data for a connection has been sent.
    pub(crate) fn has_sent(&mut self, connection: Cid) -> bool {
        self.machine.output(connection).is_none_or(|output| output.is_empty())
    }

    /// Wakes the connections that have data to send.
    pub(crate) fn wake(&mut self) {
        for wake in &self.wakes {
            wake.notify_of(&mut self.machine);
        }
    }

    /// Wakes the other connections that have data to send, and notes whether the socket of this one is full.
    pub(crate) fn wake_others(&mut self, awake: Cid, is_blocked: bool) {
        for wake in &mut self.wakes {
            if wake.connection == awake {
                wake.is_blocked = is_blocked;
            } else {
                wake.notify_of(&mut self.machine);
            }
        }
    }

    /// Delivers events to the waiting callers. Returns whether connections have changed.
    fn deliver(&mut self) -> bool {
        let mut changed = false;
        while let Some(event) = self.machine.poll_event() {
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
                    changed = true;
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
                    if *message == AsyncEvent::LogoutRequest && !self.leaving {
                        self.leaving = true;
                        self.machine.logout(LOGOUT);
                    }
                    continue;
                }
            };
            // A caller that no longer waits has dropped its future, and its answer is dropped, too.
            if let Some(waiter) = self.waiters.remove(&token) {
                let _ = waiter.send(event);
            }
        }
        changed
    }
}

impl Shared {
    pub(crate) fn new(machine: Machine) -> Self {
        let state = State {
            machine,
            waiters: BTreeMap::new(),
            queue: VecDeque::new(),
            next_token: LOGOUT.0 + 1,
            wakes: Vec::new(),
            losses: VecDeque::new(),
            leaving: false,
            ended: None,
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            over: Notify::new(),
            tasks: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs a task on this core until the guard of the login is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::task::spawn_local(task));
    }

    pub(crate) fn token(&self) -> Token {
        let mut state = self.state();
        let token = state.next_token;
        state.next_token += 1;
        Token(token)
    }

    /// Returns the negotiated parameters.
    pub(crate) fn parameters(&self) -> Parameters {
        self.state().machine.parameters().clone()
    }

    /// Returns the reason why the login ended, if it has ended.
    pub(crate) fn ended(&self) -> Option<SessionError> {
        self.state().ended.clone()
    }

    /// Waits until the login has ended, and returns the reason.
    pub(crate) async fn wait_for_end(&self) -> SessionError {
        loop {
            let mut over = pin!(self.over.notified());
            over.as_mut().enable();
            if let Some(error) = self.ended() {
                return error;
            }
            over.await;
        }
    }

    /// Returns the notification that there is data to send over this connection.
    pub(crate) fn wake_of(&self, connection: Cid) -> Arc<Notify> {
        let wakes = &mut self.state().wakes;
        if let Some(wake) = wakes.iter().find(|wake| wake.connection == connection) {
            return wake.notify.clone();
        }
        let notify = Arc::new(Notify::new());
        wakes.push(Wake { connection, notify: notify.clone(), is_blocked: false });
        notify
    }

    /// Delivers events to the waiting callers.
    pub(crate) fn deliver(&self, state: &mut State) {
        if state.deliver() {
            self.changed.notify_one();
        }
    }

    /// Sends the requests that `start` adds to the machine, and waits for the event with this token.
    pub(crate) async fn wait_for_event(
        &self,
        token: Token,
        start: impl FnOnce(&mut State),
    ) -> Result<Event, SessionError> {
        let receiver = {
            let mut state = self.state();
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiters.insert(token, sender);
            start(&mut state);
            self.deliver(&mut state);
            state.wake();
            receiver
        };
        match receiver.await {
            Ok(Event::Lost { .. }) => Err(lost(ErrorKind::ConnectionAborted.into())),
            Ok(event) => Ok(event),
            Err(_) => Err(self.ended().unwrap_or(SessionError::LoggedOut)),
        }
    }

    /// Logs out.
    pub(crate) async fn leave(&self) -> Result<(), SessionError> {
        let logout = |state: &mut State| {
            state.leaving = true;
            state.machine.logout(LOGOUT);
        };
        match self.wait_for_event(LOGOUT, logout).await {
            // A target may close the connection without an answer, as istgt sometimes does. The session is logged out
            // even so, and a caller that waits for a command gets the error from that command.
            Err(SessionError::Lost(source)) if source.kind() == ErrorKind::UnexpectedEof => Ok(()),
            ended => ended.map(drop),
        }
    }

    /// Removes a command that was not sent yet from the queue.
    pub(crate) fn withdraw(&self, token: Token) -> bool {
        let mut state = self.state();
        let before = state.queue.len();
        state.queue.retain(|(_, other)| *other != token);
        if state.queue.len() == before {
            return false;
        }
        state.waiters.remove(&token);
        true
    }

    /// Ends the login and closes its connections.
    pub(crate) fn abandon(&self) {
        self.end(lost(io::ErrorKind::TimedOut.into()));
    }

    pub(crate) fn end(&self, error: SessionError) {
        self.end_locked(&mut self.state(), error);
    }

    fn end_locked(&self, state: &mut State, error: SessionError) {
        state.ended.get_or_insert(error);
        state.queue.clear();
        state.waiters.clear();
        state.wakes.iter().for_each(|wake| wake.notify.notify_one());
        self.changed.notify_one();
        self.over.notify_waiters();
    }

    /// Notes that a connection has ended. At level 2 its commands wait for its recovery.
    pub(crate) fn note_end(&self, connection: Cid, error: SessionError) {
        let at = sarsen_io::time::now();
        let mut state = self.state();
        self.deliver(&mut state);
        state.wakes.retain(|wake| wake.connection != connection);
        // After its answer to a logout the target closes the connections: that is not a loss.
        if state.machine.is_logged_out() {
            self.end_locked(&mut state, SessionError::LoggedOut);
        } else if state.leaving || !is_the_line(&error) || !state.machine.mark_lost(connection) {
            self.end_locked(&mut state, error);
        } else {
            if state.machine.is_lost(connection) {
                tracing::warn!(cid = connection.0, %error, "a connection was lost");
                state.losses.push_back(Loss { connection, at, error });
            }
            self.deliver(&mut state);
            state.wake();
            self.changed.notify_one();
        }
    }
}

/// Returns whether the connection failed, not the protocol: another connection to the target may work.
const fn is_the_line(error: &SessionError) -> bool {
    match error {
        // The end of a connection was agreed on, and the end of the login is handled elsewhere.
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
