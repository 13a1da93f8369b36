//! A turn of a connection: requests are received, carried out and answered.

use std::cell::RefCell;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sarsen_io::net::PIECES_MAX;
use sarsen_io::spin::{self, Wait};
use sarsen_io::time;
use sarsen_proto::iscsi::target::{CloseReason, Event};

use super::{ConnectionEnd, Driver, UnderWay};
use crate::fronts::Front;
use crate::trace::{FlowDirection, Tap};

/// Size of the receive buffer of a thread. An idle connection has no buffer.
const SCRATCH_LENGTH: usize = 64 * 1024;
/// Maximum number of bytes that a turn receives before it answers.
const TURN_RECEIVE_LIMIT: usize = 256 * 1024;
/// Minimum number of commands for which a core that slept sends the first answer before the others. A send costs about
/// as much as six commands. A core that polled has the time, and always does this.
const WORTH_ANOTHER_SEND: usize = 16;
/// Minimum time between two sends of a turn, which is long compared with the two microseconds of a send. The clock is
/// read after each `LOT` commands.
const MOMENT: Duration = Duration::from_micros(15);
const LOT: usize = 4;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_LENGTH].into());
}

/// The number of events that are carried out before the ready answers are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TurnShare {
    /// The first event.
    One,
    /// The events of a time that is long compared with a send.
    TimeSlice,
    /// All events.
    All,
}

impl TurnShare {
    /// Returns whether `count` events, which began at `began`, are enough.
    #[inline]
    fn is_done(self, count: usize, began: Option<Instant>) -> bool {
        match self {
            Self::One => count == 1,
            // Reading the clock costs time, too.
            Self::TimeSlice => {
                count > 0
                    && count.is_multiple_of(LOT)
                    && began.is_some_and(|began| time::now() - began >= MOMENT)
            }
            Self::All => false,
        }
    }
}

/// The reason why receiving ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    /// There was nothing more to receive.
    All,
    /// The limit of a turn was reached. The socket may have more.
    Part,
}

/// The reason why sending ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// There was nothing more to send.
    All,
    /// The socket accepts no more for now.
    Part,
}

impl Driver {
    /// Returns whether requests are received: only while there is space for their results.
    pub(super) fn is_receiving(&mut self) -> bool {
        self.machine.event_count() == 0
            && !self.machine.is_full()
            && self.machine.closing().is_none()
    }

    /// Receives up to the limit of a turn, carries out all requests, and sends the ready answers as far as the socket
    /// accepts them. The socket stays ready for the rest, so messages and completions are handled in between.
    pub(super) async fn turn(
        &mut self,
        front: &Arc<Front>,
    ) -> Result<ControlFlow<CloseReason>, ConnectionEnd> {
        let before = self.machine.event_count();
        let received = self.receive()?;
        let count = self.machine.event_count();
        let worth = match spin::begin(count - before) {
            Some(Wait::Awake) => 2,
            Some(Wait::Asleep) => WORTH_ANOTHER_SEND,
            None => usize::MAX,
        };
        // The initiator waits as well: it can process the first answers while the server carries out the rest.
        let mut share = if count >= worth { TurnShare::One } else { TurnShare::All };
        loop {
            self.carry_out(front, share).await;
            let sent = self.send()?;
            let waiting = self.machine.event_count() > 0 && sent == Sent::All;
            // Requests that arrived before a logout are carried out first, even if all output has been sent.
            if !waiting
                && self.machine.output().is_empty()
                && let Some(reason) = self.machine.closing()
            {
                return Ok(ControlFlow::Break(reason.clone()));
            }
            if (waiting && share == TurnShare::All) || received == Received::Part {
                // A busy connection yields to the other connections of its core.
                tokio::task::yield_now().await;
            }
            if !waiting {
                return Ok(ControlFlow::Continue(()));
            }
            if share == TurnShare::One {
                share = TurnShare::TimeSlice;
            }
        }
    }

    /// Receives until the socket is empty or the limit of a turn is reached.
    fn receive(&mut self) -> Result<Received, ConnectionEnd> {
        if !self.is_receiving() {
            return Ok(Received::All);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let mut received = 0;
            while received < TURN_RECEIVE_LIMIT && !self.machine.is_full() {
                let is_between = self.tap.is_some() && self.machine.is_between_pdus();
                let landing = self.machine.landing().unwrap_or_default();
                let landing_length = landing.len();
                let offered = landing_length + scratch.len();
                let count = match self.stream.try_receive(landing, scratch) {
                    Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                    Ok(count) => count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Ok(Received::All);
                    }
                    Err(error) => return Err(error.into()),
                };
                received += count;
                let landed = count.min(landing_length);
                if let Some(tap) = &mut self.tap {
                    tap.begin(FlowDirection::ToTarget, is_between);
                    tap.received([&landing[..landed], &scratch[..count - landed]]);
                }
                self.machine.landed(landed);
                let rest = &scratch[..count - landed];
                let now = time::now();
                self.observer.arrived(now);
                let handled = self.machine.handle_input(rest, now, &mut self.view);
                if self.tap.is_some() {
                    self.tend_tap();
                }
                handled?;
                if count < offered {
                    return Ok(Received::All);
                }
            }
            Ok(Received::Part)
        })
    }

    pub(super) async fn carry_out(&mut self, front: &Arc<Front>, share: TurnShare) {
        let began = (share == TurnShare::TimeSlice).then(time::now);
        let mut count = 0;
        while !share.is_done(count, began)
            && !self.machine.is_full()
            && let Some(event) = self.machine.poll_event()
        {
            count += 1;
            match event {
                Event::Command(command) => self.execute(command),
                Event::Aborted(tasks) => {
                    let aborted = |one: &&mut UnderWay| tasks.contains(&one.task);
                    self.pending.iter_mut().filter(aborted).for_each(|one| {
                        self.observer.count_aborted(&mut one.begun);
                    });
                    let names: Vec<u64> = tasks.iter().map(|task| task.number()).collect();
                    if let Some(nexus) = &mut self.view.nexus {
                        nexus.abort(&names);
                    }
                    self.must_look = true;
                }
                Event::Management(management) => self.manage(front, management),
                Event::Establish(admission) => self.establish(front, admission).await,
                Event::TasksEnded(token) => {
                    if let Some(index) = self.tokens.iter().position(|(held, _)| *held == token) {
                        // The receiver may be closed.
                        let _ = self.tokens.swap_remove(index).1.send(());
                    }
                }
                Event::Wake(id) => {
                    if let Some(member) = &self.member {
                        member.wake(id);
                    }
                }
                Event::Adopt(adoption) => self.claim(adoption),
                Event::Logout(logout) => self.log_out(logout),
            }
        }
    }

    /// Decides whether the trace continues, as soon as the initiator is known. Removes a trace that is over.
    #[cold]
    fn tend_tap(&mut self) {
        if let Some(initiator) = self.view.initiator() {
            self.front.traces.decide(&mut self.tap, initiator);
        }
        if self.tap.as_ref().is_some_and(Tap::is_over) {
            self.tap = None;
        }
    }

    /// Sends the ready output, as far as the socket accepts it.
    pub(super) fn send(&mut self) -> Result<Sent, ConnectionEnd> {
        self.observer.count_sent();
        while !self.machine.output().is_empty() {
            let output = self.machine.output();
            let mut pieces = Vec::with_capacity(16);
            output.pieces(&mut pieces, PIECES_MAX);
            match self.stream.try_send(&pieces) {
                Ok(count) => {
                    if let Some(tap) = &mut self.tap {
                        tap.begin(FlowDirection::ToInitiator, self.is_sent_whole);
                        tap.sent(&pieces, count);
                    }
                    drop(pieces);
                    self.machine.sent(count);
                    self.is_sent_whole = self.machine.output().is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Sent::Part),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Sent::All)
    }
}
