//! Moves bytes between a socket and a connection machine, and answers to those who wait for them.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

use sarsen_io::net::Stream;
use sarsen_proto::iscsi::initiator::{CommandRequest, Connection, Event, LoginOptions, Token};
use sarsen_wire::iscsi::AsyncEvent;
use tokio::sync::{Notify, oneshot};

use crate::error::SessionError;

/// Received bytes that do not land in their buffers pass through here.
const SCRATCH_LENGTH: usize = 64 * 1024;
/// Receptions in a row, so that a target that never stops sending does not keep timers, and those
/// who wait, from their turn.
const RECEIVE_LIMIT: u32 = 64;
/// Pieces of one vectored send.
const PIECE_LIMIT: usize = 256;
/// The token of what waits for the end of the session.
const LOGOUT: Token = Token(0);

/// What a session and its driver share.
pub(crate) struct Shared {
    pub(crate) connection: RefCell<Connection>,
    waiters: RefCell<HashMap<Token, oneshot::Sender<Event>>>,
    /// Commands for which the window was full.
    queue: RefCell<VecDeque<(CommandRequest, Token)>>,
    next_token: Cell<u64>,
    /// There is something to send.
    wake: Notify,
    /// Why the session is over.
    ended: RefCell<Option<SessionError>>,
}

impl Shared {
    fn new(connection: Connection) -> Self {
        Self {
            connection: RefCell::new(connection),
            waiters: RefCell::default(),
            queue: RefCell::default(),
            next_token: Cell::new(LOGOUT.0 + 1),
            wake: Notify::new(),
            ended: RefCell::default(),
        }
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

    /// Sends a command, now or when the window opens.
    pub(crate) fn enqueue(&self, request: CommandRequest, token: Token) {
        let mut queue = self.queue.borrow_mut();
        if !queue.is_empty() {
            queue.push_back((request, token));
            return;
        }
        if let Err(request) = self.connection.borrow_mut().command(request, token) {
            queue.push_back((request, token));
        }
    }

    /// Waits for the event that has this token. What `start` asks of the connection is sent.
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
        self.wake.notify_one();
        receiver.await.map_err(|_| self.ended().unwrap_or(SessionError::LoggedOut))
    }

    /// Logs out.
    pub(crate) async fn leave(&self) -> Result<(), SessionError> {
        match self.answer(LOGOUT, |shared| shared.connection.borrow_mut().logout()).await {
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

    /// Gives the connection up: its driver closes it.
    pub(crate) fn abandon(&self) {
        self.end(lost(io::ErrorKind::TimedOut.into()));
        self.wake.notify_one();
    }

    fn end(&self, error: SessionError) {
        self.ended.borrow_mut().get_or_insert(error);
        self.queue.borrow_mut().clear();
        self.waiters.borrow_mut().clear();
    }

    fn issue_queued(&self) {
        let (mut queue, mut connection) = (self.queue.borrow_mut(), self.connection.borrow_mut());
        while let Some((request, token)) = queue.pop_front() {
            if let Err(request) = connection.command(request, token) {
                queue.push_front((request, token));
                return;
            }
        }
    }

    fn deliver(&self) {
        let mut connection = self.connection.borrow_mut();
        while let Some(event) = connection.poll_event() {
            let token = match &event {
                Event::Completed(completion) => completion.token,
                Event::Aborted { token }
                | Event::TaskManagementDone { token, .. }
                | Event::TextDone { token, .. }
                | Event::Pong { token }
                | Event::Rejected { token: Some(token), .. } => *token,
                Event::LoggedOut { .. } => LOGOUT,
                Event::SecurityPassed | Event::LoggedIn => continue,
                Event::Rejected { reason, token: None } => {
                    tracing::warn!(?reason, "the target rejected a PDU of no open request");
                    continue;
                }
                Event::AsyncMessage { event: message, .. } => {
                    tracing::info!(event = ?message, "asynchronous message");
                    if *message == AsyncEvent::LogoutRequest {
                        connection.logout();
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

/// A socket with its scratch memory.
pub(crate) struct Link {
    stream: Stream,
    scratch: Vec<u8>,
}

impl Link {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, scratch: vec![0; SCRATCH_LENGTH] }
    }

    /// Logs in. Gives the time at which the security stage was over, too.
    pub(crate) async fn login(
        &mut self,
        options: LoginOptions,
    ) -> Result<(Shared, Instant), SessionError> {
        let mut connection = Connection::new(options);
        let mut secure = sarsen_io::time::now();
        loop {
            let blocked = self.send(&mut connection)?;
            self.receive(&mut connection)?;
            while let Some(event) = connection.poll_event() {
                match event {
                    Event::SecurityPassed => secure = sarsen_io::time::now(),
                    Event::LoggedIn => return Ok((Shared::new(connection), secure)),
                    _ => {}
                }
            }
            if connection.output().is_empty() || blocked {
                self.ready(blocked).await?;
            }
        }
    }

    /// Serves a session to its end.
    pub(crate) async fn serve(&mut self, shared: &Shared) {
        let error = loop {
            match self.serve_once(shared) {
                Ok(blocked) => {
                    let woken = async {
                        shared.wake.notified().await;
                        Ok(())
                    };
                    let result = tokio::select! {
                        biased;
                        result = self.ready(blocked) => result,
                        result = woken => result,
                    };
                    if let Err(error) = result {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        shared.deliver();
        // After its answer to a logout the target closes the connection: that is no loss.
        let logged_out = shared.connection.borrow().is_logged_out();
        shared.end(if logged_out { SessionError::LoggedOut } else { error });
    }

    /// Sends and receives until both would block. Whether sending does.
    fn serve_once(&mut self, shared: &Shared) -> Result<bool, SessionError> {
        loop {
            if let Some(error) = shared.ended() {
                return Err(error);
            }
            shared.issue_queued();
            let blocked = self.send(&mut shared.connection.borrow_mut())?;
            self.receive(&mut shared.connection.borrow_mut())?;
            shared.deliver();
            let mut connection = shared.connection.borrow_mut();
            if !connection.is_full_feature() {
                return Err(SessionError::LoggedOut);
            }
            let may_issue = connection.window() > 0 && !shared.queue.borrow().is_empty();
            if !may_issue && (blocked || connection.output().is_empty()) {
                return Ok(blocked);
            }
        }
    }

    async fn ready(&self, to_send: bool) -> Result<(), SessionError> {
        let result = if to_send {
            tokio::select! {
                biased;
                result = self.stream.readable() => result,
                result = self.stream.writable() => result,
            }
        } else {
            self.stream.readable().await
        };
        result.map(drop).map_err(lost)
    }

    /// Sends what is ready. True if the socket is full.
    fn send(&self, connection: &mut Connection) -> Result<bool, SessionError> {
        let output = connection.output();
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, PIECE_LIMIT);
            let result = self.stream.try_send(&pieces);
            drop(pieces);
            match result {
                Ok(count) => output.sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(false)
    }

    /// Receives until there is nothing, or enough for now: what is left is readable still.
    fn receive(&mut self, connection: &mut Connection) -> Result<(), SessionError> {
        for _ in 0..RECEIVE_LIMIT {
            let landing = connection.landing().unwrap_or_default();
            let wanted = landing.len();
            match self.stream.try_receive(landing, &mut self.scratch) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    let landed = count.min(wanted);
                    connection.landed(landed);
                    connection.handle_input(&self.scratch[..count - landed])?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }
}

fn lost(error: io::Error) -> SessionError {
    SessionError::Lost(Arc::new(error))
}
