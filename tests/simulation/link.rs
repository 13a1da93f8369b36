//! The connections of an initiator's session: its machine over simulated streams.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use futures_util::future::select_all;
use sarsen_io::simulation::SimulatedStream as _;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{
    Cid, ConnectionError, Event, LEADING, LoginOptions, Session as Machine,
};

use crate::network::Side;

/// The reason for the end of a connection.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The stream ended.
    #[allow(dead_code, reason = "it is noted down")]
    Stream(io::ErrorKind),
    /// The machine ended the connection.
    Machine(ConnectionError),
    /// The connection was silent for too long.
    Silence,
}

/// The end of a connection.
#[derive(Debug)]
pub(crate) struct Loss {
    pub(crate) connection: Cid,
    pub(crate) why: Lost,
    /// Earliest time at which the target may know of the loss.
    pub(crate) since: Instant,
    /// The network caused the end, not one of the two sides.
    pub(crate) was_harmed: bool,
    /// The session continues without the connection.
    pub(crate) goes_on: bool,
}

/// An event of the link.
#[derive(Debug)]
pub(crate) enum News {
    Event(Event),
    Loss(Loss),
}

struct Line {
    connection: Cid,
    side: Side,
    last_heard: Instant,
}

/// The connections of a session (see the module).
pub(crate) struct Link {
    pub(crate) machine: Machine,
    lines: Vec<Line>,
    /// Connections that have ended, and whose end the machine does not know yet.
    broken: VecDeque<(Line, Lost)>,
    scratch: Vec<u8>,
    /// Number of the server's run in which the first connection was opened.
    pub(crate) life: u64,
}

impl Link {
    /// Starts the login.
    pub(crate) fn new(side: Side, options: LoginOptions, life: u64) -> Self {
        let mut link = Self {
            machine: Machine::new(options),
            lines: Vec::new(),
            broken: VecDeque::new(),
            scratch: vec![0; 8192],
            life,
        };
        link.add(LEADING, side);
        link
    }

    /// Adds a connection whose login the machine has started.
    pub(crate) fn add(&mut self, connection: Cid, side: Side) {
        self.lines.push(Line { connection, side, last_heard: time::now() });
    }

    /// Returns whether there is no connection.
    pub(crate) const fn is_bare(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns whether the network has ended a connection, even if no side knows it yet.
    pub(crate) fn is_harmed(&self) -> bool {
        let broken = self.broken.iter().map(|(line, _)| line);
        self.lines.iter().chain(broken).any(|line| line.side.was_harmed())
    }

    /// Ends a connection; [`News::Loss`] reports this later.
    pub(crate) fn give_up(&mut self, connection: Cid) {
        if let Some(at) = self.lines.iter().position(|line| line.connection == connection) {
            let line = self.lines.remove(at);
            self.broken.push_back((line, Lost::Silence));
        }
    }

    /// Returns the connection that has been silent longest.
    pub(crate) fn quietest(&self) -> Option<Cid> {
        self.lines.iter().min_by_key(|line| line.last_heard).map(|line| line.connection)
    }

    /// Sends and receives until an event occurs, which it returns, or until `deadline`.
    pub(crate) async fn turn(&mut self, deadline: Instant) -> Option<News> {
        loop {
            if let Some(event) = self.machine.poll_event() {
                return Some(News::Event(event));
            }
            // Events before the loss are reported first.
            if let Some((line, why)) = self.broken.pop_front() {
                return Some(News::Loss(self.lose(&line, why)));
            }
            self.transfer();
            if let Some(event) = self.machine.poll_event() {
                return Some(News::Event(event));
            }
            if !self.broken.is_empty() {
                continue;
            }
            let mut ready = Vec::new();
            for line in &self.lines {
                ready.push(line.side.readable());
                if self.machine.output(line.connection).is_some_and(|output| !output.is_empty()) {
                    ready.push(line.side.writable());
                }
            }
            if ready.is_empty() {
                time::sleep_until(deadline).await;
                return None;
            }
            tokio::select! {
                biased;
                _ = select_all(ready) => {}
                () = time::sleep_until(deadline) => return None,
            }
        }
    }

    fn lose(&mut self, line: &Line, why: Lost) -> Loss {
        let connection = line.connection;
        let goes_on = self.machine.mark_lost(connection);
        let (since, was_harmed) = (line.side.over_since(), line.side.was_harmed());
        Loss { connection, why, since, was_harmed, goes_on }
    }

    /// Receives everything before it sends. Data from one connection may require an answer over another.
    fn transfer(&mut self) {
        for at in (0..self.lines.len()).rev() {
            if let Err(why) = self.receive(at) {
                self.broken.push_back((self.lines.remove(at), why));
            }
        }
        for at in (0..self.lines.len()).rev() {
            if let Err(why) = self.send(at) {
                // Data that arrived before the end is processed.
                let why = self.receive(at).err().unwrap_or(why);
                self.broken.push_back((self.lines.remove(at), why));
            }
        }
    }

    fn send(&mut self, at: usize) -> Result<(), Lost> {
        let Line { connection, side, .. } = &self.lines[at];
        let Some(output) = self.machine.output(*connection) else { return Ok(()) };
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 64);
            match side.try_send(&pieces) {
                Ok(count) => output.sent(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(Lost::Stream(error.kind())),
            }
        }
        Ok(())
    }

    fn receive(&mut self, at: usize) -> Result<(), Lost> {
        let Line { connection, side, last_heard } = &mut self.lines[at];
        loop {
            let landing = self.machine.landing(*connection).unwrap_or_default();
            let landing_length = landing.len();
            let count = match side.try_receive(landing, &mut self.scratch) {
                Ok(0) => return Err(Lost::Stream(io::ErrorKind::UnexpectedEof)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Lost::Stream(error.kind())),
            };
            *last_heard = time::now();
            let landed = count.min(landing_length);
            self.machine.landed(*connection, landed);
            let rest = &self.scratch[..count - landed];
            self.machine.handle_input(*connection, rest).map_err(Lost::Machine)?;
        }
    }
}
