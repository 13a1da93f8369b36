//! The server's end of an NBD connection, without I/O.
//!
//! [`Server`] negotiates an export in the fixed newstyle handshake. It then checks requests, reports them as [`Event`]s
//! and encodes the replies, in the order in which the driver completes the requests. The driver passes received bytes
//! to it ([`Server::handle_input`], or directly into [`Server::landing`]) and sends the contents of
//! [`Server::output`]. `handshake` negotiates, `options` parses the data of options, `transmission` checks requests,
//! `replies` encodes replies.
//!
//! The driver repeats:
//! 1. While [`Server::wants_input`] returns true: receive bytes and pass them on. Keep bytes that were not consumed.
//! 2. Handle all events, complete requests, and send the output.
//!
//! The memory of a connection is bounded ([`Server::memory`]). The document has no notification of a changed size: the
//! experimental RESIZE extension is a request of the client, and is not part of the merged document. After
//! [`Server::set_bytes`] the server checks requests against the new size, and clients see it when they connect again.

mod handshake;
mod options;
mod replies;
#[cfg(test)]
mod tests;
mod transmission;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use sarsen_block::{Buffer, Data};
use sarsen_wire::nbd::{
    BASE_ALLOCATION, DEFAULT_MAX_PAYLOAD, ErrorCode, QEMU_DIRTY_BITMAP, dirty_bitmap,
    transmission as flag,
};

use super::Output;
use handshake::{Context, Handshake, Selection, Step};
use replies::Headers;
use transmission::{Flow, Transmission};

/// Maximum number of extents in one reply to [`Operation::BlockStatus`], of all contexts together. The server omits
/// further extents, and clients request the status of the rest ("`NBD_CMD_BLOCK_STATUS`"). A chunk with this number of
/// extents fits the smallest permitted maximum payload.
pub const MAXIMUM_EXTENTS: usize = 4096;
/// Maximum number of metadata contexts that a client may select.
pub const MAXIMUM_CONTEXTS: usize = 16;
/// The smallest maximum payload: servers must support unfragmented reads of this length ("`NBD_CMD_READ`").
pub const SMALLEST_MAXIMUM_PAYLOAD: u32 = 64 * 1024;
/// While this number of bytes of replies waits to be sent, the server handles no further option. A client that sends
/// options and reads no replies thus cannot make the server collect replies.
const HANDSHAKE_OUTPUT_LIMIT: usize = 4096;

/// Whether connections use TLS ("TLS support").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tls {
    /// The server has no certificate ("NOTLS mode").
    Unavailable,
    /// The client decides; [`Exports::find`] can refuse an export without TLS ("SELECTIVETLS mode").
    Optional,
    /// Each option except ABORT requires TLS ("FORCEDTLS mode").
    Required,
}

/// The settings of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether the connection uses TLS.
    pub tls: Tls,
    /// Maximum payload of one request, in bytes. Values below [`SMALLEST_MAXIMUM_PAYLOAD`] count as that.
    pub maximum_payload: u32,
    /// Maximum number of open requests, at least 1.
    pub maximum_requests: usize,
    /// The server accepts no further request while open requests and queued replies use this number of bytes.
    pub maximum_memory: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tls: Tls::Unavailable,
            maximum_payload: DEFAULT_MAX_PAYLOAD,
            maximum_requests: 128,
            maximum_memory: 64 << 20,
        }
    }
}

/// An export as the client sees it. The transmission flags are derived from it ("Transmission flags").
///
/// Every export supports FLUSH and FUA; every writable export supports WRITE_ZEROES.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its canonical name, with a maximum of 4096 bytes.
    pub name: String,
    /// Its description for people; empty if it has none.
    pub description: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the server rejects writes.
    pub read_only: bool,
    /// Minimum block size in bytes: a power of two, with a maximum of 64 KiB.
    pub minimum_block: u32,
    /// Preferred block size in bytes: a power of two. The server reports a value that the document permits: not below
    /// the minimum block size and 512, and not above the maximum payload.
    pub preferred_block: u32,
    /// Whether the medium rotates.
    pub rotational: bool,
    /// Whether [`Operation::Trim`] has an effect.
    pub can_trim: bool,
    /// Whether [`Operation::WriteZeroes`] with `fast` is supported.
    pub can_fast_zero: bool,
    /// Whether each connection sees the flushed writes of the others.
    pub can_multi_conn: bool,
    /// Whether [`Operation::Cache`] has an effect.
    pub can_cache: bool,
    /// Whether the export has the context [`StatusContext::Allocation`]. If so, a write to space that is reported as
    /// allocated must not fail for lack of space ("`base:allocation` metadata context").
    pub reports_allocation: bool,
    /// The names of the dirty bitmaps, each for one context [`StatusContext::DirtyBitmap`]. A name has a maximum of
    /// 4078 bytes.
    pub dirty_bitmaps: Vec<String>,
}

impl Export {
    /// Returns a writable export without size constraints and optional features.
    pub fn new(name: &str, bytes: u64) -> Self {
        Self {
            name: name.to_owned(),
            description: String::new(),
            bytes,
            read_only: false,
            minimum_block: 1,
            preferred_block: 4096,
            rotational: false,
            can_trim: false,
            can_fast_zero: false,
            can_multi_conn: false,
            can_cache: false,
            reports_allocation: false,
            dirty_bitmaps: Vec::new(),
        }
    }

    /// Returns the metadata contexts that clients may select.
    fn contexts(&self) -> impl Iterator<Item = StatusContext> {
        let allocation = self.reports_allocation.then_some(StatusContext::Allocation);
        let bitmaps = self.dirty_bitmaps.iter().cloned().map(StatusContext::DirtyBitmap);
        allocation.into_iter().chain(bitmaps)
    }

    /// Returns the transmission flags of a connection of [`Server::in_transmission`].
    pub fn transmission_flags(&self) -> u16 {
        self.flags(Headers::Simple)
    }

    /// Returns the transmission flags of a connection with these headers.
    fn flags(&self, headers: Headers) -> u16 {
        let writable = !self.read_only;
        [
            (true, flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA),
            (self.read_only, flag::READ_ONLY),
            (self.rotational, flag::ROTATIONAL),
            (writable && self.can_trim, flag::SEND_TRIM),
            (writable, flag::SEND_WRITE_ZEROES),
            (headers != Headers::Simple, flag::SEND_DF),
            (self.can_multi_conn, flag::CAN_MULTI_CONN),
            (self.can_cache, flag::SEND_CACHE),
            (writable && self.can_fast_zero, flag::SEND_FAST_ZERO),
        ]
        .into_iter()
        .filter(|(applies, _)| *applies)
        .fold(0, |flags, (_, flag)| flags | flag)
    }
}

/// The reason why a client may not use an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such export. Return this also for an export that the client must not know of.
    Unknown,
    /// The server's policy forbids the export.
    Policy,
    /// The export requires TLS, and the connection does not use it. With TLS, and without [`Tls::Optional`], this is
    /// reported as [`Refusal::Unknown`].
    TlsRequired,
    /// The export is not in service for now.
    Shutdown,
}

/// An export in the reply to NBD_OPT_LIST.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedExport {
    /// Its name.
    pub name: String,
    /// Its description for people; empty if it has none.
    pub description: String,
}

/// The exports of the server, as this client may use them.
pub trait Exports {
    /// Returns the export with this name. The empty name is the default export.
    ///
    /// The server calls this for NBD_OPT_INFO and the options of metadata contexts, too: only [`Event::Selected`] means
    /// that the client uses the export.
    fn find(&mut self, name: &str) -> Result<Export, Refusal>;

    /// Returns the exports that this client may see.
    fn list(&mut self) -> Vec<ListedExport>;
}

/// A request that the server has checked: it lies within the export, is aligned and permitted.
#[derive(Debug)]
pub enum Operation {
    /// Return data; complete with [`Outcome::Data`].
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u64,
    },
    /// Write data.
    Write {
        /// First byte.
        offset: u64,
        /// The data, not empty.
        data: Buffer,
        /// Whether the data must be on stable storage before the completion (FUA).
        durable: bool,
    },
    /// Bring all writes that were completed before to stable storage ("Ordering of messages and writes").
    Flush,
    /// Deallocate space. The contents are undefined afterwards.
    Trim {
        /// First byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u64,
        /// Whether the effect must be on stable storage before the completion (FUA).
        durable: bool,
    },
    /// Write zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u64,
        /// Whether the zeroes must be on stable storage before the completion (FUA).
        durable: bool,
        /// Whether the space may be deallocated.
        may_punch: bool,
        /// Whether the request must fail with [`ErrorCode::NotSupported`] if it is not faster than a write.
        fast: bool,
    },
    /// Read ahead.
    Cache {
        /// First byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u64,
    },
    /// Return the status of a range; complete with [`Outcome::Status`].
    BlockStatus {
        /// First byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u64,
        /// The contexts whose status the client requests: at least one, and a maximum of [`MAXIMUM_CONTEXTS`].
        contexts: Arc<[StatusContext]>,
        /// Maximum number of extents that the reply has for each context, at least 1.
        maximum_extents: usize,
    },
}

/// A metadata context: what a status describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusContext {
    /// The allocation (`base:allocation`).
    Allocation,
    /// The changes in the dirty bitmap of this name (`qemu:dirty-bitmap:NAME`).
    DirtyBitmap(String),
}

impl StatusContext {
    /// Returns its name with its namespace.
    fn name(&self) -> Cow<'static, str> {
        match self {
            Self::Allocation => BASE_ALLOCATION.into(),
            Self::DirtyBitmap(name) => format!("{QEMU_DIRTY_BITMAP}{name}").into(),
        }
    }

    /// Returns the flags that are right for every range: it is allocated, and has perhaps changed.
    const fn safe_flags(&self) -> u32 {
        match self {
            Self::Allocation => 0,
            Self::DirtyBitmap(_) => dirty_bitmap::DIRTY,
        }
    }
}

/// An extent of the export with the same status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Number of bytes: a multiple of the minimum block size, except at the end of the export.
    pub length: u64,
    /// Flags of `sarsen_wire::nbd::allocation` or `sarsen_wire::nbd::dirty_bitmap`, as the context requires.
    pub flags: u32,
}

/// The result of a successful request.
#[derive(Debug)]
pub enum Outcome {
    /// The request succeeded and returns nothing.
    Done,
    /// The data of a read: exactly the requested length.
    Data(Data),
    /// For each context of the request, in their order, the consecutive extents from the requested offset. The server
    /// merges equal neighbours and omits what exceeds the request or its maximum. For a context without extents it
    /// reports that the whole range is allocated, or has changed.
    Status(Vec<Vec<StatusExtent>>),
}

/// An event for the driver.
#[derive(Debug)]
pub enum Event {
    /// The client starts TLS. The driver sends the output, executes the TLS handshake, and calls
    /// [`Server::tls_started`].
    StartTls,
    /// The client selected this export. Requests may follow.
    Selected(Export),
    /// A request, which the driver completes with [`Server::complete`].
    Request {
        /// The number of the request.
        task: u64,
        /// The request.
        operation: Operation,
    },
    /// The client ended the session, and no request is open. The driver sends the output and closes the connection.
    Disconnected,
}

/// The reason why the server closes a connection ("initiates a hard disconnect").
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// The client set flags that the server did not offer ("Client flags").
    #[error("the client sent the flags {0:#x}: the server supports only 0x3")]
    ClientFlags(u32),
    /// The magic number of a message is wrong.
    #[error("{what} begins with {found:#x}: the stream is out of sync")]
    Magic {
        /// The kind of message.
        what: &'static str,
        /// The bytes in place of the magic number.
        found: u64,
    },
    /// A client without the fixed newstyle sent another option than NBD_OPT_EXPORT_NAME ("Newstyle negotiation").
    #[error("the client sent option {0} without NBD_FLAG_C_FIXED_NEWSTYLE")]
    NotFixedNewstyle(u32),
    /// Too many options.
    #[error("more than {0} options")]
    TooManyOptions(u32),
    /// NBD_OPT_EXPORT_NAME failed, whose reply cannot report an error.
    #[error("the client cannot use the export of NBD_OPT_EXPORT_NAME: {0}")]
    ExportName(&'static str),
    /// The client sent bytes without encryption after NBD_OPT_STARTTLS. Another party may have inserted them.
    #[error("bytes without encryption arrived after NBD_OPT_STARTTLS")]
    BytesBeforeTls,
    /// A payload is so long that the server does not skip it ("Size constraints").
    #[error("a request with a payload of {length} bytes; the maximum is {limit}")]
    PayloadTooLong {
        /// Length of the payload in bytes.
        length: u64,
        /// The limit.
        limit: u64,
    },
}

enum Phase {
    Handshake(Handshake),
    /// The client waits for the TLS handshake. The value continues when TLS is in use.
    StartTls(Handshake),
    Transmission(Transmission),
    /// The client ended the session.
    Closed,
    Failed(ServerError),
}

/// An NBD server's end of one connection. See the module.
pub struct Server {
    settings: Settings,
    phase: Phase,
    /// An incomplete message.
    partial: Vec<u8>,
    output: Output,
    events: VecDeque<Event>,
    shutting_down: bool,
}

impl Server {
    /// Creates a connection. Its greeting waits in the output.
    pub fn new(settings: Settings) -> Self {
        let mut output = Output::default();
        let phase = Phase::Handshake(Handshake::new(&mut output));
        let settings = Settings {
            maximum_payload: settings.maximum_payload.max(SMALLEST_MAXIMUM_PAYLOAD),
            maximum_requests: settings.maximum_requests.max(1),
            maximum_memory: settings.maximum_memory.max(1),
            ..settings
        };
        let (partial, events) = (Vec::new(), VecDeque::new());
        Self { settings, phase, partial, output, events, shutting_down: false }
    }

    /// Creates a connection in the transmission phase, with simple replies. Its client, which is the kernel of this machine, knows
    /// the export already.
    pub fn in_transmission(settings: Settings, export: Export) -> Self {
        let mut server = Self::new(settings);
        server.output = Output::default();
        let (headers, contexts) = (Headers::Simple, Vec::new());
        let selection = Selection { export, headers, contexts };
        let maximum_payload = server.settings.maximum_payload;
        server.phase = Phase::Transmission(Transmission::new(selection, maximum_payload));
        server
    }

    /// Returns the output to send.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the number of requests without a reply.
    pub fn open_requests(&self) -> usize {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.open_requests(),
            _ => 0,
        }
    }

    /// Returns the bytes of memory that the connection uses: for the payloads of open requests, for output, and for an
    /// incomplete message. Data in a store and the entries of queues do not count.
    ///
    /// During the handshake, the maximum is 16 KiB for an option, 16 KiB for the name of an export and its selected
    /// contexts, 4 KiB of replies, and the replies to one more option (which may be the list of all exports).
    /// Afterwards it is [`Settings::maximum_memory`], plus the buffer of one request of [`Settings::maximum_payload`],
    /// plus 4 KiB.
    pub fn memory(&self) -> usize {
        let charged = match &self.phase {
            Phase::Handshake(handshake) | Phase::StartTls(handshake) => handshake.memory(),
            Phase::Transmission(transmission) => transmission.memory(),
            Phase::Closed | Phase::Failed(_) => 0,
        };
        charged + self.output.memory() + self.partial.capacity()
    }

    /// Returns whether the server can handle further bytes.
    ///
    /// It changes from false to true when requests are completed, when output is sent, when the allowance grows, or when
    /// TLS has started. It stays false when the connection has ended.
    pub fn wants_input(&self) -> bool {
        match &self.phase {
            Phase::Handshake(_) => self.output.memory() < HANDSHAKE_OUTPUT_LIMIT,
            Phase::Transmission(transmission) => {
                transmission.wants_input(&self.settings, &self.output)
            }
            Phase::StartTls(_) | Phase::Closed | Phase::Failed(_) => false,
        }
    }

    /// Sets the memory that the connection may use. A request that exceeds it waits, and those behind it. Initially it is
    /// unlimited.
    pub const fn set_allowance(&mut self, allowance: usize) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.set_allowance(allowance);
        }
    }

    /// Returns whether a request has arrived that waits for memory. When [`Self::wants_input`] is true again,
    /// [`Self::handle_input`] accepts it, also without further bytes.
    pub const fn waits_for_memory(&self) -> bool {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.waits_for_memory(),
            _ => false,
        }
    }

    /// Returns the number of bytes until the end of the payload that is being received; `None` between requests.
    pub fn payload_missing(&self) -> Option<u64> {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.payload_missing(),
            _ => None,
        }
    }

    /// Returns memory into which the driver may receive the next bytes of the stream.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.landing(),
            _ => None,
        }
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        match &mut self.phase {
            Phase::Transmission(transmission) => transmission.landed(count, &mut self.events),
            _ => assert!(count == 0, "bytes were received into no buffer"),
        }
    }

    /// Handles received bytes that follow those in [`Self::landing`]. Returns the number of bytes that were consumed.
    ///
    /// Fewer bytes than all are consumed only if [`Self::wants_input`] returns false afterwards. The driver passes the
    /// rest again when it returns true. Bytes after the end of the session are discarded.
    ///
    /// An error is final: the driver closes the connection, and the open requests get no reply.
    pub fn handle_input(
        &mut self,
        input: &[u8],
        exports: &mut dyn Exports,
    ) -> Result<usize, ServerError> {
        let mut rest = input;
        loop {
            match self.advance(&mut rest, exports) {
                Ok(true) => {}
                Ok(false) => return Ok(input.len() - rest.len()),
                Err(error) => {
                    self.phase = Phase::Failed(error.clone());
                    self.partial = Vec::new();
                    return Err(error);
                }
            }
        }
    }

    /// Handles the next part of the input. Returns whether more of it can be handled.
    fn advance(
        &mut self,
        input: &mut &[u8],
        exports: &mut dyn Exports,
    ) -> Result<bool, ServerError> {
        let wants_input = self.wants_input();
        match &mut self.phase {
            Phase::Failed(error) => Err(error.clone()),
            Phase::Closed => {
                *input = &[];
                Ok(false)
            }
            Phase::StartTls(_) if input.is_empty() => Ok(false),
            Phase::StartTls(_) => Err(ServerError::BytesBeforeTls),
            Phase::Handshake(_) | Phase::Transmission(_) if !wants_input => Ok(false),
            Phase::Handshake(handshake) => {
                let context = Context {
                    settings: &self.settings,
                    exports,
                    output: &mut self.output,
                    shutting_down: self.shutting_down,
                };
                let step = handshake.advance(&mut self.partial, input, context)?;
                Ok(self.step(step))
            }
            Phase::Transmission(transmission) => {
                let (partial, output) = (&mut self.partial, &mut self.output);
                let flow = transmission.advance(
                    input,
                    partial,
                    output,
                    &mut self.events,
                    self.shutting_down,
                )?;
                match flow {
                    Flow::Continue => Ok(true),
                    Flow::Incomplete => Ok(false),
                    Flow::Disconnect => {
                        self.close_if_idle();
                        Ok(true)
                    }
                }
            }
        }
    }

    /// Puts a step of the handshake into effect. Returns whether more input can be handled.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Incomplete => return false,
            Step::Continue => {}
            Step::StartTls => {
                self.events.push_back(Event::StartTls);
                self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
                    Phase::Handshake(handshake) => Phase::StartTls(handshake.with_tls()),
                    other => other,
                };
            }
            Step::Selected(selection) => {
                self.partial = Vec::new();
                self.events.push_back(Event::Selected(selection.export.clone()));
                let maximum_payload = self.settings.maximum_payload;
                self.phase = Phase::Transmission(Transmission::new(selection, maximum_payload));
            }
            Step::Abort => {
                self.phase = Phase::Closed;
                self.events.push_back(Event::Disconnected);
            }
        }
        true
    }

    /// Ends the session if the client has disconnected and no request is open.
    fn close_if_idle(&mut self) {
        if let Phase::Transmission(transmission) = &self.phase
            && transmission.is_over()
        {
            self.phase = Phase::Closed;
            self.events.push_back(Event::Disconnected);
        }
    }

    /// Continues after the TLS handshake, which follows [`Event::StartTls`]. All output has been sent before.
    ///
    /// The server has forgotten everything that was negotiated without TLS, except the client's flags, which a client
    /// sends only once ("`NBD_OPT_STARTTLS`").
    pub fn tls_started(&mut self) {
        assert!(self.output.is_empty(), "output was not sent before the TLS handshake");
        self.phase = match std::mem::replace(&mut self.phase, Phase::Closed) {
            Phase::StartTls(handshake) => Phase::Handshake(handshake),
            other => other,
        };
    }

    /// Completes a request. The reply waits in the output.
    ///
    /// Each request is completed once, with the outcome that belongs to its operation; the data of a read has the
    /// requested length. After the end of a connection this has no effect.
    pub fn complete(&mut self, task: u64, result: Result<Outcome, ErrorCode>) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.complete(task, result, &mut self.output);
            self.close_if_idle();
        }
    }

    /// Refuses everything that the client requests from now on, except the end of the session ("Terminating the
    /// transmission phase"). Open requests continue; the driver closes the connection when they are complete.
    pub const fn shutdown(&mut self) {
        self.shutting_down = true;
    }

    /// Checks further requests against this size in bytes. See the module.
    pub const fn set_bytes(&mut self, bytes: u64) {
        if let Phase::Transmission(transmission) = &mut self.phase {
            transmission.set_bytes(bytes);
        }
    }
}
