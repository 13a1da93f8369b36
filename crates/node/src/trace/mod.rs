//! Traces of the bytes that connections receive and send, in the format of Wireshark. A connection that is not traced
//! only makes one check whenever it receives or sends.
//!
//! The trace of an open session begins between two PDUs. The trace of an expected initiator includes its logins. Their
//! authentication data is hidden, unless the caller asks for it.

mod capture;
mod mask;
mod pipe;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Piece;
use sarsen_io::time;
use tokio::sync::Semaphore;

use self::capture::Conversation;
pub(crate) use self::capture::{FlowDirection, file_header};
use self::mask::Mask;
pub(crate) use self::pipe::{Reader, Writer};

/// Maximum number of concurrent traces.
pub(crate) const TRACES: usize = 16;
/// Maximum number of bytes that are kept of a connection until its initiator is known.
const UNDECIDED: usize = 256 << 10;

/// The open traces, and the traces of expected initiators.
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
    /// Begins a trace, which contains only the file header. Returns `None` if there are too many traces.
    pub(crate) fn begin(&self) -> Option<(Writer, Reader)> {
        let (writer, reader) = pipe::pipe(self.places.clone().try_acquire_owned().ok()?);
        writer.write(file_header());
        Some((writer, reader))
    }

    fn expected(&self) -> MutexGuard<'_, Vec<Expected>> {
        let mut expected = self.expected.lock();
        // Traces whose reader is closed are removed.
        expected.retain(|one| !one.writer.is_closed());
        self.count.store(expected.len(), Ordering::Relaxed);
        expected
    }

    /// Traces new connections of an initiator until the reader is closed. Returns `None` if there are too many traces.
    pub(crate) fn expect(&self, initiator: &str, with_secrets: bool) -> Option<Reader> {
        let (writer, reader) = self.begin()?;
        let mut expected = self.expected();
        expected.push(Expected { initiator: initiator.to_owned(), with_secrets, writer });
        self.count.store(expected.len(), Ordering::Relaxed);
        Some(reader)
    }

    /// Returns a tap for a new connection, if any initiator is expected.
    pub(crate) fn tap(&self, initiator: SocketAddr, target: SocketAddr) -> Option<Tap> {
        if self.count.load(Ordering::Relaxed) == 0 || self.expected().is_empty() {
            return None;
        }
        Some(Tap::new(initiator, target, Flow::Undecided(Vec::new())))
    }

    /// Decides about a tap when its initiator is known. The tap stays if this initiator is expected.
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
    /// The initiator of the connection is not known yet.
    Undecided(Vec<(FlowDirection, Vec<u8>)>),
    Open(Writer),
}

/// The tap of a connection, which copies its bytes to a trace.
pub(crate) struct Tap {
    conversation: Conversation,
    flow: Flow,
    mask: Option<Mask>,
    is_logged_in: bool,
    /// Whether a direction has been between two PDUs, so that its trace has begun. Indexed by [`FlowDirection`].
    has_begun: [bool; 2],
}

impl Tap {
    fn new(initiator: SocketAddr, target: SocketAddr, flow: Flow) -> Self {
        let conversation = Conversation::new(initiator, target);
        Self { conversation, flow, mask: None, is_logged_in: false, has_begun: [false; 2] }
    }

    /// Creates a tap for a connection of an open session.
    pub(crate) fn at(initiator: SocketAddr, target: SocketAddr, writer: Writer) -> Self {
        Self::new(initiator, target, Flow::Open(writer))
    }

    /// Returns whether the tap is not needed any more.
    pub(crate) fn is_over(&self) -> bool {
        match &self.flow {
            Flow::Undecided(kept) => {
                kept.iter().map(|(_, one)| one.len()).sum::<usize>() > UNDECIDED
            }
            Flow::Open(writer) => writer.is_closed(),
        }
    }

    /// Marks the login as complete. Bytes after its last response are not secret.
    pub(crate) fn logged_in(&mut self) {
        self.is_logged_in = true;
    }

    /// Begins a transfer in one direction. `is_between` says whether it starts with the first byte of a PDU.
    pub(crate) fn begin(&mut self, way: FlowDirection, is_between: bool) {
        self.has_begun[way as usize] |= is_between;
    }

    /// Records received bytes.
    pub(crate) fn received(&mut self, parts: [&[u8]; 2]) {
        if self.is_logged_in {
            self.mask = None;
        }
        self.take(FlowDirection::ToTarget, parts.concat());
    }

    /// Records the first `count` bytes of these pieces, which were sent.
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
                // If there is no space, a gap in the sequence numbers shows that bytes are missing.
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
