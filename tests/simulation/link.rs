//! An initiator's connection: its machine over a simulated stream.

use std::io;
use std::time::Instant;

use sarsen_io::simulation::End as _;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::{Connection, ConnectionError, Event, LoginOptions};

use crate::network::Side;

/// Why a connection is over.
#[derive(Debug)]
pub(crate) enum Lost {
    /// The stream ended.
    #[allow(dead_code, reason = "it is noted down")]
    Stream(io::ErrorKind),
    /// The machine gave up.
    Machine(ConnectionError),
    /// Nothing was heard for too long.
    Silence,
}

/// See the module.
pub(crate) struct Link {
    side: Side,
    pub(crate) machine: Connection,
    lost: Option<Lost>,
    scratch: Vec<u8>,
}

impl Link {
    /// Begins to log in.
    pub(crate) fn new(side: Side, options: LoginOptions) -> Self {
        Self { side, machine: Connection::new(options), lost: None, scratch: vec![0; 8192] }
    }

    /// See [`Side::allow_flips`].
    pub(crate) fn allow_flips(&self) {
        self.side.allow_flips();
    }

    /// Sends and receives until something happens, which is returned, or until `deadline`.
    pub(crate) async fn turn(&mut self, deadline: Instant) -> Result<Option<Event>, Lost> {
        loop {
            if let Some(event) = self.machine.poll_event() {
                return Ok(Some(event));
            }
            if let Some(lost) = self.lost.take() {
                return Err(lost);
            }
            if let Err(lost) = self.transfer() {
                // What came before it counts.
                self.lost = Some(lost);
                continue;
            }
            if let Some(event) = self.machine.poll_event() {
                return Ok(Some(event));
            }
            let is_sending = !self.machine.output().is_empty();
            let ready = tokio::select! {
                biased;
                ready = self.side.readable() => ready,
                ready = self.side.writable(), if is_sending => ready,
                () = time::sleep_until(deadline) => return Ok(None),
            };
            if let Err(error) = ready {
                self.lost = Some(Lost::Stream(error.kind()));
            }
        }
    }

    fn transfer(&mut self) -> Result<(), Lost> {
        let stream = |error: io::Error| match error.kind() {
            io::ErrorKind::WouldBlock => None,
            kind => Some(Lost::Stream(kind)),
        };
        while !self.machine.output().is_empty() {
            let output = self.machine.output();
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 64);
            match self.side.try_send(&pieces).map_err(stream) {
                Ok(count) => output.sent(count),
                Err(None) => break,
                // What came before it counts.
                Err(Some(lost)) => {
                    self.receive()?;
                    return Err(lost);
                }
            }
        }
        self.receive()
    }

    fn receive(&mut self) -> Result<(), Lost> {
        loop {
            let landing = self.machine.landing().unwrap_or_default();
            let landing_length = landing.len();
            let count = match self.side.try_receive(landing, &mut self.scratch) {
                Ok(0) => return Err(Lost::Stream(io::ErrorKind::UnexpectedEof)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Lost::Stream(error.kind())),
            };
            let landed = count.min(landing_length);
            self.machine.landed(landed);
            let rest = &self.scratch[..count - landed];
            self.machine.handle_input(rest).map_err(Lost::Machine)?;
        }
    }
}
