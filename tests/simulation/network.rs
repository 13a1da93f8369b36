//! Connections that delay bytes, split and change them, stall, lose them, or end in the middle of a PDU. Within a
//! connection no bytes are lost, reordered or duplicated, as with TCP. Data on several connections of a session arrives
//! in any order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use sarsen_block::Rng;
use sarsen_block::{LocalFuture, Piece};
use sarsen_io::simulation::SimulatedStream;
use sarsen_io::time;
use tokio::sync::Notify;

use crate::payloads::Follower;

/// Maximum delay of a stalled segment, as after a retransmission.
const STALL_MAX_MS: u64 = 8_000;

/// The properties of a seed's connections.
#[derive(Clone, Debug)]
pub(crate) struct NetworkTraits {
    /// Maximum transit time of a segment.
    pub(crate) latency_max_ms: u64,
    /// Number of segments of 1000 that stall.
    pub(crate) stalls_per_mille: u64,
    /// Number of segments of 1000 that arrive with a flipped bit. Bits flip only where both ends detect it.
    pub(crate) flips_per_mille: u64,
    /// Bits flip only in data segments of PDUs, not in headers. `flips_per_mille` then counts data segments. Level 1
    /// recovers from this error.
    pub(crate) spares_headers: bool,
    /// Percentage of connections that are cut.
    pub(crate) cut_percent: u32,
    /// Percentage of connections that become silent.
    pub(crate) silence_percent: u32,
    /// A connection with a fault fails before it has sent this number of bytes in one direction.
    pub(crate) harm_within: u64,
    /// Maximum number of bytes in transit for a sender.
    pub(crate) room: usize,
    /// Maximum number of bytes that one call receives.
    pub(crate) piece_max: u64,
}

impl NetworkTraits {
    /// Returns the properties of a network without faults.
    pub(crate) const fn fair() -> Self {
        Self {
            latency_max_ms: 1,
            stalls_per_mille: 0,
            flips_per_mille: 0,
            spares_headers: false,
            cut_percent: 0,
            silence_percent: 0,
            harm_within: 0,
            room: 1 << 20,
            piece_max: 1 << 20,
        }
    }

    /// Draws the properties for a seed.
    pub(crate) fn forecast(rng: &mut Rng) -> Self {
        const ROOMS: [usize; 4] = [100, 3_000, 20_000, 1 << 20];
        const PIECES: [u64; 4] = [7, 100, 5_000, 1 << 20];
        let spares_headers = rng.chance(50);
        Self {
            latency_max_ms: if rng.chance(30) { 0 } else { 1 + rng.below(40) },
            stalls_per_mille: if rng.chance(60) { 0 } else { rng.below(30) },
            flips_per_mille: rng.below(if spares_headers { 200 } else { 15 }),
            spares_headers,
            cut_percent: if rng.chance(30) { 0 } else { rng.below(90) as u32 },
            silence_percent: if rng.chance(60) { 0 } else { rng.below(40) as u32 },
            harm_within: 1_000 + rng.below(100_000),
            room: ROOMS[rng.below(4) as usize],
            piece_max: PIECES[rng.below(4) as usize],
        }
    }
}

/// A fault that ends a connection early.
#[derive(Clone, Copy, Debug)]
enum ConnectionFault {
    Cut,
    Silence,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    segments: VecDeque<(Instant, Vec<u8>)>,
    /// Number of bytes that are sent and not received.
    under_way: usize,
    /// Number of bytes that are sent in total.
    total: u64,
    last_arrival: Option<Instant>,
    /// The sender has ended the stream.
    is_ended: bool,
    /// The receiver is closed.
    is_deaf: bool,
    reported: Rc<Notify>,
    has_room: Rc<Notify>,
}

struct Wire {
    rng: Rng,
    weather: NetworkTraits,
    addresses: [SocketAddr; 2],
    /// Each pipe starts at the side with the same index.
    pipes: [Pipe; 2],
    /// The fault, its direction, and the number of bytes before it.
    harm: Option<(ConnectionFault, usize, u64)>,
    is_cut: bool,
    is_silent: bool,
    /// A fault ended the connection, not one of the two sides.
    was_harmed: bool,
    /// Both ends detect changed bytes after the login.
    is_guarded: bool,
    followers: [Follower; 2],
    /// Earliest time at which one side may know that the connection has ended.
    over_since: Option<Instant>,
}

impl Wire {
    /// Accepts bytes from `side`, as many as there is room for.
    fn send(&mut self, side: usize, pieces: &[Piece<'_>]) -> io::Result<usize> {
        if self.is_cut {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.pipes[side].is_deaf && !self.is_silent {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut room = self.weather.room.saturating_sub(self.pipes[side].under_way);
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.rng.chance(10) {
            room = 1 + self.rng.below(room as u64) as usize;
        }
        let mut bytes = Vec::new();
        for piece in pieces {
            let left = room - bytes.len();
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(&piece[..piece.len().min(left)]),
                Piece::Shared { memory, offset, length } => {
                    let start = bytes.len();
                    bytes.resize(start + left.min(*length), 0);
                    memory.copy_out(*offset, &mut bytes[start..]);
                }
            }
        }
        let count = bytes.len();
        self.pipes[side].total += count as u64;
        self.pipes[side].under_way += count;
        self.change(side, &mut bytes);
        self.come_to_harm(side, &mut bytes);
        if !self.is_silent && !bytes.is_empty() {
            self.dispatch(side, bytes);
        }
        Ok(count)
    }

    /// Flips bits after the login, when both ends detect it.
    fn change(&mut self, side: usize, bytes: &mut [u8]) {
        let was_full_feature = self.followers[side].is_full_feature();
        let rate = if self.is_guarded { self.weather.flips_per_mille } else { 0 };
        let (per_payload, per_segment) =
            if self.weather.spares_headers { (rate, 0) } else { (0, rate) };
        let rng = &mut self.rng;
        let harm = |length| (rng.below(1_000) < per_payload).then(|| rng.below(length));
        self.followers[side].follow(bytes, self.is_guarded, harm);
        if self.followers[side].is_full_feature() {
            self.followers[1 - side].enter_full_feature();
        }
        if was_full_feature && !bytes.is_empty() && self.rng.below(1_000) < per_segment {
            let (byte, bit) = (self.rng.below(bytes.len() as u64), self.rng.below(8));
            bytes[byte as usize] ^= 1 << bit;
        }
    }

    /// Cuts or silences the connection when its time has come.
    fn come_to_harm(&mut self, side: usize, bytes: &mut Vec<u8>) {
        let Some((harm, direction, after)) = self.harm else { return };
        let total = self.pipes[side].total;
        if direction != side || total < after {
            return;
        }
        self.harm = None;
        self.was_harmed = true;
        let kept = bytes.len() - ((total - after) as usize).min(bytes.len());
        bytes.truncate(kept);
        match harm {
            ConnectionFault::Silence => self.is_silent = true,
            ConnectionFault::Cut => {
                if !bytes.is_empty() {
                    self.dispatch(side, std::mem::take(bytes));
                }
                self.cut();
            }
        }
    }

    /// Ends both directions; some of the bytes in transit may still arrive.
    fn cut(&mut self) {
        self.is_cut = true;
        self.is_over();
        for pipe in &mut self.pipes {
            let kept = self.rng.below(pipe.segments.len() as u64 + 1);
            pipe.segments.truncate(kept as usize);
            pipe.reported.notify_one();
            pipe.has_room.notify_one();
        }
    }

    fn is_over(&mut self) {
        self.over_since.get_or_insert_with(time::now);
    }

    fn dispatch(&mut self, side: usize, bytes: Vec<u8>) {
        let mut delay = self.rng.below(self.weather.latency_max_ms + 1);
        if self.rng.below(1_000) < self.weather.stalls_per_mille {
            delay += self.rng.below(STALL_MAX_MS);
        }
        let pipe = &mut self.pipes[side];
        let arrival = time::now() + Duration::from_millis(delay);
        let arrival = pipe.last_arrival.map_or(arrival, |last| last.max(arrival));
        pipe.last_arrival = Some(arrival);
        pipe.segments.push_back((arrival, bytes));
        pipe.reported.notify_one();
    }

    /// Returns the bytes that have arrived for `side`.
    fn receive(
        &mut self,
        side: usize,
        landing: &mut [u8],
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let now = time::now();
        let limit = if self.rng.chance(50) {
            self.weather.piece_max
        } else {
            1 + self.rng.below(self.weather.piece_max)
        };
        let room = (landing.len() + scratch.len()).min(limit as usize);
        let (is_cut, is_silent) = (self.is_cut, self.is_silent);
        let pipe = &mut self.pipes[1 - side];
        let mut count = 0;
        while count < room
            && let Some((arrival, bytes)) = pipe.segments.front_mut()
            && *arrival <= now
        {
            let taken = bytes.len().min(room - count);
            for byte in bytes.drain(..taken) {
                match landing.get_mut(count) {
                    Some(place) => *place = byte,
                    None => scratch[count - landing.len()] = byte,
                }
                count += 1;
            }
            if bytes.is_empty() {
                pipe.segments.pop_front();
            }
        }
        if count > 0 {
            pipe.under_way -= count;
            pipe.has_room.notify_one();
            return Ok(count);
        }
        match (pipe.segments.is_empty(), is_cut, pipe.is_ended && !is_silent) {
            (true, true, _) => Err(io::ErrorKind::ConnectionReset.into()),
            (true, false, true) => Ok(0),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Returns the time of the next arrival for `side`, or `None` if it is unknown.
    fn arrival(&self, side: usize) -> Option<Instant> {
        let pipe = &self.pipes[1 - side];
        match pipe.segments.front() {
            Some((arrival, _)) => Some(*arrival),
            None if self.is_cut || (pipe.is_ended && !self.is_silent) => Some(time::now()),
            None => None,
        }
    }
}

/// One end of a connection. Dropping it ends the connection.
pub(crate) struct Side {
    wire: Rc<RefCell<Wire>>,
    index: usize,
}

/// Creates a connection; returns the initiator's end and the server's end. With `is_guarded` both ends detect changed
/// bytes after the login, so bits may flip.
pub(crate) fn connection(
    rng: &mut Rng,
    weather: &NetworkTraits,
    addresses: [SocketAddr; 2],
    is_guarded: bool,
) -> (Side, Side) {
    let harm = match (rng.chance(weather.cut_percent), rng.chance(weather.silence_percent)) {
        (true, _) => Some(ConnectionFault::Cut),
        (false, true) => Some(ConnectionFault::Silence),
        (false, false) => None,
    };
    let harm = harm.map(|harm| (harm, rng.below(2) as usize, rng.below(weather.harm_within)));
    let wire = Wire {
        rng: Rng::new(rng.bits()),
        weather: weather.clone(),
        addresses,
        pipes: Default::default(),
        harm,
        is_cut: false,
        is_silent: false,
        was_harmed: false,
        is_guarded,
        followers: Default::default(),
        over_since: None,
    };
    let wire = Rc::new(RefCell::new(wire));
    (Side { wire: wire.clone(), index: 0 }, Side { wire, index: 1 })
}

impl Side {
    /// Returns the earliest time at which the other side may know that the connection has ended; now, if it does not
    /// know yet.
    pub(crate) fn over_since(&self) -> Instant {
        self.wire.borrow().over_since.unwrap_or_else(time::now)
    }

    /// Returns whether a fault cut or silenced the connection, rather than one of the two sides.
    pub(crate) fn was_harmed(&self) -> bool {
        self.wire.borrow().was_harmed
    }

    /// Returns a handle with which the world injects faults into the connection.
    pub(crate) fn fate(&self) -> Fate {
        Fate(Rc::downgrade(&self.wire))
    }
}

/// The world's handle of a connection.
pub(crate) struct Fate(std::rc::Weak<RefCell<Wire>>);

impl Fate {
    /// Stops the machine at one end: either both ends learn of it, or neither does.
    pub(crate) fn strike(&self, heard: bool) {
        let Some(wire) = self.0.upgrade() else { return };
        let mut wire = wire.borrow_mut();
        wire.was_harmed = true;
        if heard {
            wire.cut()
        } else {
            wire.is_silent = true;
            wire.pipes.iter_mut().for_each(|pipe| pipe.segments.clear());
        }
    }
}

impl SimulatedStream for Side {
    fn peer_addr(&self) -> SocketAddr {
        self.wire.borrow().addresses[1 - self.index]
    }

    fn local_addr(&self) -> SocketAddr {
        self.wire.borrow().addresses[self.index]
    }

    fn readable(&self) -> LocalFuture<io::Result<()>> {
        let (wire, side) = (self.wire.clone(), self.index);
        Box::pin(async move {
            loop {
                let (arrival, reported) = {
                    let wire = wire.borrow();
                    (wire.arrival(side), wire.pipes[1 - side].reported.clone())
                };
                match arrival {
                    Some(arrival) if arrival <= time::now() => return Ok(()),
                    Some(arrival) => tokio::select! {
                        biased;
                        () = reported.notified() => {}
                        () = time::sleep_until(arrival) => {}
                    },
                    None => reported.notified().await,
                }
            }
        })
    }

    fn writable(&self) -> LocalFuture<io::Result<()>> {
        let (wire, side) = (self.wire.clone(), self.index);
        Box::pin(async move {
            loop {
                let has_room = {
                    let wire = wire.borrow();
                    let pipe = &wire.pipes[side];
                    let is_deaf = pipe.is_deaf && !wire.is_silent;
                    if wire.is_cut || is_deaf || pipe.under_way < wire.weather.room {
                        return Ok(());
                    }
                    pipe.has_room.clone()
                };
                has_room.notified().await;
            }
        })
    }

    fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        self.wire.borrow_mut().receive(self.index, landing, scratch)
    }

    fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.wire.borrow_mut().send(self.index, pieces)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let mut wire = self.wire.borrow_mut();
        wire.is_over();
        if how != Shutdown::Read {
            let pipe = &mut wire.pipes[self.index];
            pipe.is_ended = true;
            pipe.reported.notify_one();
        }
        if how != Shutdown::Write {
            let pipe = &mut wire.pipes[1 - self.index];
            pipe.is_deaf = true;
            pipe.has_room.notify_one();
        }
        Ok(())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}
