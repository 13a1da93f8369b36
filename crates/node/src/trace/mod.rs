//! Traces of what connections receive and send, as Wireshark reads them. A connection that is not traced
//! pays one look for it whenever it receives or sends.
//!
//! Of a session that stands, a trace begins between two PDUs. Of an initiator that is still to come, its
//! logins are in it, too; then what proves who it is does not go out unless that is asked for.

mod capture;
mod mask;
mod pipe;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sarsen_block::Piece;
use sarsen_io::time;
use tokio::sync::Semaphore;

use self::capture::Conversation;
pub(crate) use self::capture::{FlowDirection, file_header};
use self::mask::Mask;
pub(crate) use self::pipe::{Reader, Writer};

/// So many are read at once.
pub(crate) const TRACES: usize = 16;
/// Bytes that are kept of a connection until it is known whose it is.
const UNDECIDED: usize = 256 << 10;

/// Traces that are read, and those of initiators that are to come.
pub(crate) struct Traces {
    places: Arc<Semaphore>,
    count: AtomicUsize,
    expected: Mutex<Vec<Expected>>,
}

struct Expected {
    initiator: String,
    with_secrets: bool,
    writer: Writer,
}

impl Default for Traces {
    fn default() -> Self {
        let places = Arc::new(Semaphore::new(TRACES));
        Self { places, count: AtomicUsize::default(), expected: Mutex::default() }
    }
}

impl Traces {
    /// A trace, empty but for the file's header; none where there are too many.
    pub(crate) fn begin(&self) -> Option<(Writer, Reader)> {
        let (writer, reader) = pipe::pipe(self.places.clone().try_acquire_owned().ok()?);
        writer.write(file_header());
        Some((writer, reader))
    }

    fn expected(&self) -> MutexGuard<'_, Vec<Expected>> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody reads any more.
        expected.retain(|one| !one.writer.is_closed());
        self.count.store(expected.len(), Ordering::Relaxed);
        expected
    }

    /// From here on connections of that initiator are traced, until nobody reads that; none where there are too many.
    pub(crate) fn expect(&self, initiator: &str, with_secrets: bool) -> Option<Reader> {
        let (writer, reader) = self.begin()?;
        let mut expected = self.expected();
        expected.push(Expected { initiator: initiator.to_owned(), with_secrets, writer });
        self.count.store(expected.len(), Ordering::Relaxed);
        Some(reader)
    }

    /// A tap for a connection that has just begun, if anybody is expected.
    pub(crate) fn tap(&self, initiator: SocketAddr, target: SocketAddr) -> Option<Tap> {
        if self.count.load(Ordering::Relaxed) == 0 || self.expected().is_empty() {
            return None;
        }
        Some(Tap::new(initiator, target, Flow::Undecided(Vec::new())))
    }

    /// Whose connection a tap is at: it goes on if somebody wants to know of it.
    pub(crate) fn decide(&self, tap: &mut Option<Tap>, initiator: &str) {
        let Some(Tap { flow: Flow::Undecided(kept), .. }) = tap else { return };
        let kept = std::mem::take(kept);
        let expected = self.expected();
        let found = expected.iter().find(|one| one.initiator == initiator);
        let found = found.map(|one| (one.writer.clone(), one.with_secrets));
        drop(expected);
        match (tap.as_mut(), found) {
            (Some(tap), Some((writer, with_secrets))) => {
                tap.mask = (!with_secrets).then(Mask::default);
                tap.flow = Flow::Open(writer);
                let begun = tap.conversation.handshake(time::wall_clock());
                tap.write(begun);
                kept.into_iter().for_each(|(way, bytes)| tap.take(way, bytes));
            }
            _ => *tap = None,
        }
    }
}

enum Flow {
    /// It is not known yet whose connection it is.
    Undecided(Vec<(FlowDirection, Vec<u8>)>),
    Open(Writer),
}

/// What is put at a connection.
pub(crate) struct Tap {
    conversation: Conversation,
    flow: Flow,
    mask: Option<Mask>,
    is_logged_in: bool,
    /// Whether a direction was met between two PDUs, by [`FlowDirection`].
    has_begun: [bool; 2],
}

impl Tap {
    fn new(initiator: SocketAddr, target: SocketAddr, flow: Flow) -> Self {
        let conversation = Conversation::new(initiator, target);
        Self { conversation, flow, mask: None, is_logged_in: false, has_begun: [false; 2] }
    }

    /// One at a connection of a session that stands.
    pub(crate) fn at(initiator: SocketAddr, target: SocketAddr, writer: Writer) -> Self {
        Self::new(initiator, target, Flow::Open(writer))
    }

    /// Whether it is of no use any more.
    pub(crate) fn is_over(&self) -> bool {
        match &self.flow {
            Flow::Undecided(kept) => {
                kept.iter().map(|(_, one)| one.len()).sum::<usize>() > UNDECIDED
            }
            Flow::Open(writer) => writer.is_closed(),
        }
    }

    /// The login is over: what comes after its last answer is not secret.
    pub(crate) fn logged_in(&mut self) {
        self.is_logged_in = true;
    }

    /// Bytes are about to go that way; whether these are the first of a PDU.
    pub(crate) fn begin(&mut self, way: FlowDirection, is_between: bool) {
        self.has_begun[way as usize] |= is_between;
    }

    /// Bytes have come.
    pub(crate) fn received(&mut self, parts: [&[u8]; 2]) {
        if self.is_logged_in {
            self.mask = None;
        }
        self.take(FlowDirection::ToTarget, parts.concat());
    }

    /// So many bytes of these pieces were sent.
    pub(crate) fn sent(&mut self, pieces: &[Piece<'_>], count: usize) {
        let mut bytes = Vec::with_capacity(count);
        for piece in pieces {
            let left = count - bytes.len();
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(&piece[..piece.len().min(left)]),
                Piece::Shared { memory, offset, length } => {
                    let start = bytes.len();
                    bytes.resize(start + left.min(*length), 0);
                    memory.copy_out(*offset, &mut bytes[start..]);
                }
            }
        }
        self.take(FlowDirection::ToInitiator, bytes);
    }

    fn take(&mut self, way: FlowDirection, mut bytes: Vec<u8>) {
        if bytes.is_empty() || !self.has_begun[way as usize] {
            return;
        }
        match &mut self.flow {
            Flow::Undecided(kept) => kept.push((way, bytes)),
            Flow::Open(_) => {
                if let Some(mask) = &mut self.mask {
                    mask.hide(way, &mut bytes);
                }
                // Where there is no room, the numbers show that something is missing.
                if self.has_room() {
                    let records = self.conversation.segments(way, &bytes, time::wall_clock());
                    self.write(records);
                } else {
                    self.conversation.skip(way, bytes.len());
                }
            }
        }
    }

    fn has_room(&self) -> bool {
        matches!(&self.flow, Flow::Open(writer) if writer.has_room())
    }

    fn write(&self, records: Vec<u8>) {
        if let Flow::Open(writer) = &self.flow {
            writer.write(records);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.write(self.conversation.end(time::wall_clock()));
    }
}
