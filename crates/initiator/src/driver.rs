//! Moves bytes between a socket and its connection in a session machine.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sarsen_io::net::Stream;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{Cid, Event, LEADING, LoginOptions, Session as Machine};

use crate::error::SessionError;
use crate::instance::{Instance, ROUND_TRIPS, lost};

/// Length of the scratch memory, for received bytes that are not read directly into their buffers.
const SCRATCH_LENGTH: usize = 64 * 1024;
/// Maximum of receptions in a row, so that a target that sends without pause does not delay timers and waiting callers.
const RECEIVE_LIMIT: u32 = 64;
/// Maximum of pieces in one vectored send.
const PIECE_LIMIT: usize = 256;

/// The result of sending the data that is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SendProgress {
    /// All data was sent.
    Complete,
    /// The socket is full.
    Blocked,
}

/// A socket with its scratch memory, and its number among the session's connections.
pub(crate) struct Link {
    stream: Stream,
    connection: Cid,
    scratch: Vec<u8>,
    /// How long the target may send nothing.
    silence_limit: Option<Duration>,
    /// Time of the last sign of the target.
    heard: Instant,
    /// When the target was pinged since then.
    pinged: Option<Instant>,
    /// How long the target may send nothing now.
    limit: Option<Duration>,
    /// The socket was full.
    is_blocked: bool,
}

impl Link {
    pub(crate) fn new(stream: Stream, connection: Cid, silence_limit: Option<Duration>) -> Self {
        Self {
            stream,
            connection,
            scratch: vec![0; SCRATCH_LENGTH],
            silence_limit,
            heard: time::now(),
            pinged: None,
            limit: silence_limit,
            is_blocked: false,
        }
    }

    /// Logs a session in over its leading connection. Also returns the time at which the security stage ended.
    pub(crate) async fn log_in(
        &mut self,
        options: LoginOptions,
    ) -> Result<(Machine, Instant), SessionError> {
        let mut machine = Machine::new(options);
        debug_assert_eq!(self.connection, LEADING);
        let mut secure = time::now();
        loop {
            let progress = self.send(&mut machine)?;
            self.receive(&mut machine)?;
            while let Some(event) = machine.poll_event() {
                match event {
                    Event::SecurityPassed => secure = time::now(),
                    Event::LoggedIn => return Ok((machine, secure)),
                    _ => {}
                }
            }
            if machine.output(LEADING).is_none_or(|output| output.is_empty())
                || progress == SendProgress::Blocked
            {
                self.ready(progress).await?;
            }
        }
    }

    /// Logs a further connection in. The machine has begun its login already.
    pub(crate) async fn join(&mut self, instance: &Instance) -> Result<(), SessionError> {
        loop {
            if let Some(error) = instance.ended() {
                return Err(error);
            }
            let (progress, has_sent) = {
                let state = &mut instance.state();
                let progress = self.send(&mut state.machine)?;
                self.receive(&mut state.machine)?;
                instance.deliver(state);
                state.wake_others(self.connection, progress == SendProgress::Blocked);
                if state.machine.is_connected(self.connection) {
                    return Ok(());
                }
                (progress, state.has_sent(self.connection))
            };
            if progress == SendProgress::Blocked || has_sent {
                self.ready(progress).await?;
            }
        }
    }

    /// Serves a connection until it ends.
    pub(crate) async fn serve(mut self, instance: Arc<Instance>) {
        let wake = instance.wake_of(self.connection);
        let error = loop {
            match self.serve_once(&instance) {
                Ok(progress) => {
                    let woken = async {
                        wake.notified().await;
                        Ok(())
                    };
                    let result = tokio::select! {
                        biased;
                        result = self.ready(progress) => result,
                        result = woken => result,
                        () = self.silence() => self.end_silence(&instance),
                    };
                    if let Err(error) = result {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        let connection = self.connection;
        // The socket is closed first: the initiator does not wait for data that the target still sends here.
        drop(self);
        instance.note_end(connection, error);
    }

    /// Waits until the target has been silent for too long.
    async fn silence(&self) {
        let Some(limit) = self.limit else { return std::future::pending().await };
        // The time after the ping counts: a stall of the initiator loses no connection.
        let until = match self.pinged {
            None => self.heard + limit / 3,
            Some(pinged) => pinged + limit * 2 / 3,
        };
        time::sleep_until(until).await;
    }

    /// Pings a silent target. An error means that it has not answered.
    fn end_silence(&mut self, instance: &Instance) -> Result<(), SessionError> {
        let state = &mut instance.state();
        if self.pinged.is_some() {
            if instance.is_recent() {
                // The next login waits longer, and the one after it, until they last.
                state.note_round_trip(self.limit.unwrap_or_default() / ROUND_TRIPS * 2);
            }
            return Err(lost(io::ErrorKind::TimedOut.into()));
        }
        self.pinged = Some(time::now());
        let token = state.token();
        // Any byte is an answer, so nothing waits for this one.
        state.machine.ping_over(self.connection, token);
        Ok(())
    }

    /// Sends and receives until no data is left, or the socket is full.
    fn serve_once(&mut self, instance: &Instance) -> Result<SendProgress, SessionError> {
        loop {
            if let Some(error) = instance.ended() {
                return Err(error);
            }
            let state = &mut instance.state();
            state.issue_queued();
            let progress = self.send(&mut state.machine)?;
            let pinged = self.pinged;
            self.receive(&mut state.machine)?;
            if let Some(pinged) = pinged.filter(|_| self.pinged.is_none()) {
                state.note_round_trip(self.heard - pinged);
            }
            self.limit = state.silence_limit(self.silence_limit);
            instance.deliver(state);
            state.wake_others(self.connection, progress == SendProgress::Blocked);
            if !state.machine.is_connected(self.connection) {
                return Err(SessionError::LoggedOut);
            }
            if !state.may_issue()
                && (progress == SendProgress::Blocked || state.has_sent(self.connection))
            {
                return Ok(progress);
            }
        }
    }

    /// Waits until the socket has data or, if it was full, has space.
    async fn ready(&self, progress: SendProgress) -> Result<(), SessionError> {
        let result = match progress {
            SendProgress::Complete => self.stream.readable().await,
            SendProgress::Blocked => tokio::select! {
                biased;
                result = self.stream.readable() => result,
                result = self.stream.writable() => result,
            },
        };
        result.map(drop).map_err(lost)
    }

    /// Sends the data that is ready.
    fn send(&mut self, machine: &mut Machine) -> Result<SendProgress, SessionError> {
        let Some(output) = machine.output(self.connection) else {
            return Ok(SendProgress::Complete);
        };
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, PIECE_LIMIT);
            let result = self.stream.try_send(&pieces);
            drop(pieces);
            match result {
                Ok(count) => {
                    output.sent(count);
                    // The target has received data for which the socket had no space.
                    if std::mem::take(&mut self.is_blocked) {
                        (self.heard, self.pinged) = (time::now(), None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_blocked = true;
                    return Ok(SendProgress::Blocked);
                }
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(SendProgress::Complete)
    }

    /// Receives until no data is left, or up to the limit: the rest stays readable.
    fn receive(&mut self, machine: &mut Machine) -> Result<(), SessionError> {
        for _ in 0..RECEIVE_LIMIT {
            let landing = machine.landing(self.connection).unwrap_or_default();
            let wanted = landing.len();
            match self.stream.try_receive(landing, &mut self.scratch) {
                Ok(0) => return Err(lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => {
                    (self.heard, self.pinged) = (time::now(), None);
                    let landed = count.min(wanted);
                    machine.landed(self.connection, landed);
                    machine.handle_input(self.connection, &self.scratch[..count - landed])?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }
}
