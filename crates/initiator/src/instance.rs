//! One instance of a session, from a login to the loss of its connections. A session that logs in again (session reinstatement,
//! RFC 7143 §6.3.5) has a new instance.
//!
//! The tasks of the connections and the waiting callers share it. The tasks run on the core that logged in; callers may be on
//! any core.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use sarsen_proto::iscsi::Parameters;
use sarsen_proto::iscsi::initiator::{
    Cid, CommandRequest, ConnectionError, Event, Session as Machine, Token,
};
use sarsen_wire::iscsi::AsyncEvent;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

use crate::error::{Sense, SessionError};
use crate::url::Portal;

/// The token of the caller that waits for the end of the instance.
const LOGOUT: Token = Token(0);

/// A lost connection, and the time of the loss.
#[derive(Clone)]
pub(crate) struct Loss {
    pub(crate) connection: Cid,
    pub(crate) at: Instant,
    pub(crate) error: SessionError,
}

/// The shortest limit of a silence that adapts.
const SHORTEST_SILENCE: Duration = Duration::from_millis(300);
/// A silence that adapts lasts so many round trips.
pub(crate) const ROUND_TRIPS: u32 = 8;

/// A silence so soon after a login may be that of a slow target.
const RECENT_LOGIN: Duration = Duration::from_secs(2);

/// Something that no other caller may use while a command may still be carried out, such as the blocks of a write.
pub(crate) type Hold = Arc<dyn Any + Send + Sync>;

/// See the module.
pub(crate) struct Instance {
    /// Number of logins of the session before this one. The target ended all tasks of these logins before it granted this one
    /// (RFC 7143 §6.3.5), so no command of an earlier instance can be carried out any more.
    pub(crate) generation: u64,
    /// The portal at which the login began, before redirections.
    pub(crate) entry: Portal,
    began: Instant,
    state: Mutex<State>,
    /// A connection was lost, opened or removed.
    pub(crate) changed: Notify,
    /// The target has sent an asynchronous message about a unit.
    pub(crate) reported: Arc<Notify>,
    /// The instance has ended.
    over: Notify,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The part under the lock, which no task holds while it waits.
pub(crate) struct State {
    pub(crate) machine: Machine,
    waiters: BTreeMap<Token, Waiter>,
    /// Holds of the commands that had no answer when the instance ended. The next login is their end.
    unanswered: Vec<Hold>,
    /// Number of unit attentions that report a change of the unit.
    changes: u64,
    /// See [`Instance::reported`].
    reported: Arc<Notify>,
    /// A reset of the unit ends the instance.
    ends_at_reset: bool,
    /// The unit has reported that it may have lost its cache.
    cache_lost: bool,
    /// Commands that wait because the window is full.
    queue: VecDeque<(CommandRequest, Token)>,
    next_token: u64,
    /// There is another path: a silence of this one is noticed soon.
    adapts: bool,
    /// The longest of the last round trips.
    round_trip: Duration,
    /// How each connection is notified that there is data to send.
    wakes: Vec<Wake>,
    /// Losses that no task has handled yet.
    pub(crate) losses: VecDeque<Loss>,
    leaving: bool,
    /// The reason why the instance ended.
    ended: Option<SessionError>,
}

/// The caller that waits for an event.
struct Waiter {
    sender: oneshot::Sender<Event>,
    hold: Option<Hold>,
}

struct Wake {
    connection: Cid,
    notify: Arc<Notify>,
    /// Its socket is full: it wakes when there is space.
    is_blocked: bool,
}

/// An instance whose connections are closed when this is dropped.
pub(crate) struct InstanceGuard {
    pub(crate) instance: Arc<Instance>,
}

impl Drop for InstanceGuard {
    fn drop(&mut self) {
        self.instance.end(SessionError::LoggedOut);
        self.instance.tasks.lock().iter().for_each(JoinHandle::abort);
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
    pub(crate) fn token(&mut self) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        Token(token)
    }

    /// Notes how long the answer to a ping took.
    pub(crate) fn note_round_trip(&mut self, round_trip: Duration) {
        self.round_trip = round_trip.max(self.round_trip * 7 / 8);
    }

    /// Returns how long the target may send nothing now, up to `limit`. While answers are due and there is another path, that is
    /// a few round trips.
    pub(crate) fn silence_limit(&self, limit: Option<Duration>) -> Option<Duration> {
        if !self.adapts || self.waiters.is_empty() {
            return limit;
        }
        let adapted = (self.round_trip * ROUND_TRIPS).max(SHORTEST_SILENCE);
        Some(limit.map_or(adapted, |limit| limit.min(adapted)))
    }

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

    fn end(&mut self, error: SessionError) {
        self.ended.get_or_insert(error);
        self.queue.clear();
        let waiters = std::mem::take(&mut self.waiters);
        self.unanswered.extend(waiters.into_values().filter_map(|waiter| waiter.hold));
        self.wakes.iter().for_each(|wake| wake.notify.notify_one());
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
                    if *message == AsyncEvent::ScsiEvent {
                        self.reported.notify_one();
                    }
                    // The target may notify each connection: one logout answers all.
                    if *message == AsyncEvent::LogoutRequest && !self.leaving {
                        self.leaving = true;
                        self.machine.logout(LOGOUT);
                    }
                    continue;
                }
            };
            let attention = match &event {
                Event::Completed(completion) => Sense::of(completion),
                _ => None,
            };
            self.changes += u64::from(attention.is_some_and(|sense| sense.is_change()));
            let reset = attention.filter(|sense| self.ends_at_reset && sense.is_reset());
            // A caller that no longer waits has dropped its future, and its answer is dropped, too.
            if let Some(waiter) = self.waiters.remove(&token) {
                let _ = waiter.sender.send(event);
            }
            // The answers that follow may be those of commands that the reset made worthless, such as a flush.
            if let Some(sense) = reset {
                self.cache_lost |= sense.may_have_lost_cache();
                let reset = io::Error::other(format!("the unit was reset ({sense})"));
                self.end(lost(reset));
                return true;
            }
        }
        changed
    }
}

impl Instance {
    pub(crate) fn new(machine: Machine, entry: Portal, generation: u64) -> Self {
        let reported = Arc::<Notify>::default();
        let state = State {
            machine,
            reported: reported.clone(),
            waiters: BTreeMap::new(),
            unanswered: Vec::new(),
            changes: 0,
            ends_at_reset: false,
            cache_lost: false,
            queue: VecDeque::new(),
            next_token: LOGOUT.0 + 1,
            adapts: false,
            round_trip: Duration::ZERO,
            wakes: Vec::new(),
            losses: VecDeque::new(),
            leaving: false,
            ended: None,
        };
        Self {
            generation,
            entry,
            began: sarsen_io::time::now(),
            state: Mutex::new(state),
            changed: Notify::new(),
            reported,
            over: Notify::new(),
            tasks: Mutex::default(),
        }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs a task on this core until the guard is dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(tokio::task::spawn_local(task));
    }

    pub(crate) fn token(&self) -> Token {
        self.state().token()
    }

    /// Returns the negotiated parameters.
    pub(crate) fn parameters(&self) -> Parameters {
        self.state().machine.parameters().clone()
    }

    /// Returns the tag of the portal group, if the target declared it.
    pub(crate) fn portal_group(&self) -> Option<u16> {
        self.state().machine.portal_group()
    }

    /// Returns the reason why the instance ended, if it has ended.
    pub(crate) fn ended(&self) -> Option<SessionError> {
        self.state().ended.clone()
    }

    /// Returns whether the login was so recent that a silence may be that of a slow target.
    pub(crate) fn is_recent(&self) -> bool {
        sarsen_io::time::now() - self.began < RECENT_LOGIN
    }

    /// Returns the longest of the last round trips.
    pub(crate) fn round_trip(&self) -> Duration {
        self.state().round_trip
    }

    /// Begins with a round trip of an earlier instance.
    pub(crate) fn begin_with_round_trip(&self, round_trip: Duration) {
        self.state().round_trip = round_trip;
    }

    /// Notes that there is another path: a silence of this one is noticed soon from now on.
    pub(crate) fn adapt_silence(&self) {
        self.state().adapts = true;
    }

    /// Ends the instance when a unit of it reports a reset from now on: the unit may have dropped commands without an answer.
    pub(crate) fn end_at_reset(&self) {
        self.state().ends_at_reset = true;
    }

    /// Returns how many changes of the unit were reported: an examination during which the number grows is out of date.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Returns whether the instance has ended because a unit reported that it may have lost its cache.
    pub(crate) fn has_lost_cache(&self) -> bool {
        self.state().cache_lost
    }

    /// Waits until the instance has ended, and returns the reason.
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
        if state.ended.is_some() {
            self.over.notify_waiters();
        }
    }

    /// Sends the requests that `start` adds to the machine, and waits for the event with this token.
    pub(crate) async fn wait_for_event(
        &self,
        token: Token,
        start: impl FnOnce(&mut State),
    ) -> Result<Event, SessionError> {
        self.wait_with_hold(token, None, start).await
    }

    /// Does the same as [`Self::wait_for_event`], and keeps `hold` until the event, or until the next login of the session if there
    /// is none, even if the returned future is dropped.
    pub(crate) async fn wait_with_hold(
        &self,
        token: Token,
        hold: Option<Hold>,
        start: impl FnOnce(&mut State),
    ) -> Result<Event, SessionError> {
        let receiver = {
            let mut state = self.state();
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            let (sender, receiver) = oneshot::channel();
            state.waiters.insert(token, Waiter { sender, hold });
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

    /// Checks that the target responds.
    pub(crate) async fn ping(&self) -> Result<(), SessionError> {
        let token = self.token();
        self.wait_for_event(token, |state| state.machine.ping(token)).await?;
        Ok(())
    }

    /// Ends the holds of the commands without an answer: the session has logged in again.
    pub(crate) fn end_holds(&self) {
        let holds = std::mem::take(&mut self.state().unanswered);
        drop(holds);
    }

    /// Ends the instance and closes its connections.
    pub(crate) fn abandon(&self) {
        self.end(lost(io::ErrorKind::TimedOut.into()));
    }

    pub(crate) fn end(&self, error: SessionError) {
        self.end_locked(&mut self.state(), error);
    }

    fn end_locked(&self, state: &mut State, error: SessionError) {
        state.end(error);
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
        // The end of a connection was agreed on, and the end of the instance is handled elsewhere.
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
