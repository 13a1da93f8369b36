//! The client's end of an NBD connection, without I/O.
//!
//! [`Client`] chooses an export in the fixed newstyle handshake. It then numbers requests, accepts replies in any
//! order, and reports completions as [`Event`]s. The driver passes received bytes to it ([`Client::handle_input`], or
//! directly into [`Client::landing`]) and sends the contents of [`Client::output`]. Replies are simple, unless the owner
//! asks for metadata contexts ([`Client::with_contexts`]), which need structured replies.

mod handshake;
mod replies;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use sarsen_block::{Buffer, Payload};
use sarsen_wire::nbd::{
    self, CommandCode, DEFAULT_MAX_PAYLOAD, ErrorCode, FUA, NO_HOLE, REQUEST_MAGIC, ReplyCode,
    transmission,
};
use zerocopy::IntoBytes;

use super::Output;
use super::partial::collect;
use super::slots::Slots;
use handshake::{Handshake, Step};
use replies::{Expected, Incoming, Task};

/// Maximum number of characters of a server's message that is shown.
const MESSAGE_LIMIT: usize = 200;

/// The reason why a connection ends. A connection cannot recover from any of these errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The name of the export or of a context cannot be sent.
    #[error("the name of the {what} has {length} bytes: the maximum is {limit}")]
    NameTooLong {
        /// The kind of object with this name.
        what: &'static str,
        /// Length of the name in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The first bytes are not those of NBD.
    #[error("the server does not speak NBD")]
    NotNbd,
    /// The server has only one export and no negotiation.
    #[error(
        "the server speaks the oldstyle of NBD, without negotiation: start it with the newstyle"
    )]
    OldStyle,
    /// The magic number of a message is wrong.
    #[error("{what} begins with {found:#x}: the stream is out of sync")]
    Magic {
        /// The kind of message.
        what: &'static str,
        /// The bytes in place of the magic number.
        found: u64,
    },
    /// An answer to an option that the client did not request.
    #[error("the server answered option {0}, which was not requested")]
    UnexpectedOption(u32),
    /// A message exceeds the maximum length.
    #[error("a response of {length} bytes to an option; the maximum is {limit}")]
    TooLong {
        /// The length in the message.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// Too many answers to one option.
    #[error("more than {0} responses to an option")]
    TooManyAnswers(u32),
    /// The contents of an answer are invalid.
    #[error("the server's {0} is malformed")]
    Malformed(&'static str),
    /// The server refuses the export.
    #[error("the server refuses the export ({reply:?}){message}")]
    Refused {
        /// The error in the reply.
        reply: ReplyCode,
        /// The server's message after a colon, or an empty string.
        message: String,
    },
    /// A reply to a request that is not open.
    #[error("a reply to request {0:#x}, which is not open")]
    UnknownCookie(u64),
    /// The server has no TLS, or refuses it.
    #[error(
        "the server refuses TLS ({reply:?}){message}: start it with a certificate, or use nbd:// in a trusted network"
    )]
    NoTls {
        /// The error in the reply.
        reply: ReplyCode,
        /// The server's message after a colon, or an empty string.
        message: String,
    },
    /// The server sent bytes before the TLS handshake that it could only have sent after it.
    #[error("the server sent data before the TLS handshake")]
    DataBeforeTls,
    /// The owner has abandoned the connection.
    #[error("the connection was given up")]
    Abandoned,
}

/// The export that the handshake selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub bytes: u64,
    /// [`transmission`] flags.
    pub flags: u16,
    /// Minimum block size, a power of two: offsets and lengths must be multiples of it.
    pub minimum_block: u32,
    /// The server's preferred block size, if it reports one.
    pub preferred_block: Option<u32>,
    /// Maximum length of a payload, in bytes.
    pub maximum_payload: u32,
}

impl Export {
    fn new(bytes: u64, flags: u16) -> Self {
        Self {
            bytes,
            flags: if flags & transmission::HAS_FLAGS != 0 { flags } else { 0 },
            minimum_block: 1,
            preferred_block: None,
            maximum_payload: DEFAULT_MAX_PAYLOAD,
        }
    }

    /// Returns whether all of these [`transmission`] flags are set.
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }
}

/// A request to an export. The driver has checked it against the [`Export`].
#[derive(Debug)]
pub enum Request {
    /// Read data.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Write data.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// The data: less than 4 GiB.
        data: Payload,
        /// Whether the data must be on stable storage before the answer (FUA).
        durable: bool,
    },
    /// Bring all completed writes to stable storage.
    Flush,
    /// Deallocate space. The contents are undefined afterwards.
    Trim {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
    },
    /// Write zeroes.
    WriteZeroes {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u32,
        /// Whether the data must be on stable storage before the answer (FUA).
        durable: bool,
        /// Whether the server may deallocate the space.
        may_punch: bool,
    },
    /// Return the status of a range in each of [`Client::contexts`], of which there must be one or more.
    Status {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, not 0.
        length: u32,
    },
}

/// A range with one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusExtent {
    /// Number of bytes, not 0.
    pub length: u32,
    /// The status that the context defines.
    pub flags: u32,
}

/// The result of a successful request.
#[derive(Debug)]
pub enum Answer {
    /// The request returns no data.
    Done,
    /// The data of a read, all of it.
    Data(Buffer),
    /// The status in each of [`Client::contexts`]: extents from the first byte of the range on. They cover at least one
    /// byte, and perhaps not the whole range.
    Status(Vec<Vec<StatusExtent>>),
}

/// The server's reason for not carrying out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// The error.
    pub code: ErrorCode,
    /// The server's message, without control characters, or an empty string.
    pub message: String,
}

/// An event for the owner.
#[derive(Debug)]
pub enum Event<T> {
    /// The owner must perform the TLS handshake now. What follows in both directions is encrypted.
    StartTls,
    /// The handshake is complete. Requests may be sent.
    Ready(Export),
    /// A request has ended.
    Completed {
        /// The owner's token of the request.
        token: T,
        /// The answer, or the error.
        result: Result<Answer, RequestError>,
    },
}

enum Phase {
    Handshake(Handshake),
    Transmission(Incoming),
    Failed(ClientError),
}

/// Whether the received bytes complete the next part of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Complete,
    Incomplete,
}

/// A context that the server has selected for this connection.
struct Context {
    /// The server's identifier of the context.
    id: u32,
    name: String,
}

/// An NBD client. See the module. `T` is the owner's token, which identifies a request.
pub struct Client<T> {
    phase: Phase,
    /// An incomplete message.
    partial: Vec<u8>,
    output: Output,
    events: VecDeque<Event<T>>,
    tasks: Slots<Task<T>>,
    /// Structured replies were negotiated.
    structured: bool,
    contexts: Vec<Context>,
}

impl<T> Client<T> {
    /// Creates a connection that will choose the export with this name. The empty name is the server's default export.
    pub fn new(export: &str) -> Result<Self, ClientError> {
        Self::with_contexts(export, &[])
    }

    /// Does the same, and asks for the metadata contexts with these names. The server selects those that it has:
    /// [`Self::contexts`].
    pub fn with_contexts(export: &str, contexts: &[&str]) -> Result<Self, ClientError> {
        Ok(Self {
            phase: Phase::Handshake(Handshake::new(export, contexts)?),
            partial: Vec::new(),
            output: Output::default(),
            events: VecDeque::new(),
            tasks: Slots::default(),
            structured: false,
            contexts: Vec::new(),
        })
    }

    /// Encrypts the connection before anything is asked of the server: see [`Event::StartTls`]. Permitted only before the first input.
    pub fn require_tls(&mut self) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.require_tls();
        }
    }

    /// Returns the names of the selected contexts, in the order in which the owner asked for them.
    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        self.contexts.iter().map(|context| context.name.as_str())
    }

    /// Returns the output to send.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }

    /// Returns the number of requests without an answer.
    pub fn open_requests(&self) -> usize {
        self.tasks.open()
    }

    /// Ends a lost connection. Returns the tokens of the open requests, which will get no answer.
    pub fn abandon(&mut self) -> Vec<T> {
        self.phase = Phase::Failed(ClientError::Abandoned);
        self.tasks.drain().map(|task| task.token).collect()
    }

    /// Sends a request to the export. Permitted only after [`Event::Ready`].
    pub fn request(&mut self, request: Request, token: T) {
        let ready = matches!(self.phase, Phase::Transmission(_) | Phase::Failed(_));
        assert!(ready, "a request before the handshake's end");
        let expected = match &request {
            Request::Read { offset, length } => Expected::Data { offset: *offset, length: *length },
            Request::Status { length, .. } => {
                assert!(*length > 0 && !self.contexts.is_empty(), "a status without a context");
                Expected::Status { length: *length }
            }
            _ => Expected::Nothing,
        };
        let cookie = self.tasks.insert(Task::new(token, expected));
        let durability = |durable: bool| if durable { FUA } else { 0 };
        let (command, flags, offset, length, data) = match request {
            Request::Read { offset, length } => (CommandCode::Read, 0, offset, length, None),
            Request::Write { offset, data, durable } => {
                assert!(u32::try_from(data.len()).is_ok(), "a write of {} bytes", data.len());
                let length = data.len() as u32;
                (CommandCode::Write, durability(durable), offset, length, Some(data))
            }
            Request::Flush => (CommandCode::Flush, 0, 0, 0, None),
            Request::Trim { offset, length } => (CommandCode::Trim, 0, offset, length, None),
            Request::WriteZeroes { offset, length, durable, may_punch } => {
                let flags = durability(durable) | if may_punch { 0 } else { NO_HOLE };
                (CommandCode::WriteZeroes, flags, offset, length, None)
            }
            Request::Status { offset, length } => {
                (CommandCode::BlockStatus, 0, offset, length, None)
            }
        };
        self.push_request(command, flags, cookie, offset, length);
        if let Some(data) = data {
            self.output.push_payload(data);
        }
    }

    /// Requests a disconnect. The server closes the connection when it has answered the open requests.
    pub fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Transmission(_)) {
            self.push_request(CommandCode::Disconnect, 0, 0, 0, 0);
        }
    }

    fn push_request(
        &mut self,
        command: CommandCode,
        flags: u16,
        cookie: u64,
        offset: u64,
        length: u32,
    ) {
        let request = nbd::Request {
            magic: REQUEST_MAGIC.into(),
            flags: flags.into(),
            command: command.0.into(),
            cookie: cookie.into(),
            offset: offset.into(),
            length: length.into(),
        };
        self.output.push(request.as_bytes());
    }

    /// Handles received bytes that follow those in [`Self::landing`]. An error is final.
    pub fn handle_input(&mut self, mut input: &[u8]) -> Result<(), ClientError> {
        loop {
            let received = match &mut self.phase {
                Phase::Failed(error) => return Err(error.clone()),
                Phase::Handshake(_) => self.shake_hands(&mut input),
                Phase::Transmission(_) => self.take_reply(&mut input),
            };
            match received {
                Ok(Received::Complete) => {}
                Ok(Received::Incomplete) => return Ok(()),
                Err(error) => {
                    self.phase = Phase::Failed(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// Handles one message of the handshake.
    fn shake_hands(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        let Phase::Handshake(handshake) = &mut self.phase else { return Ok(Received::Incomplete) };
        let wanted = handshake.wanted();
        let Some(message) = collect(&mut self.partial, input, wanted) else {
            return Ok(Received::Incomplete);
        };
        let step = handshake.handle(message, &mut self.output)?;
        self.partial.clear();
        match step {
            Step::More => {}
            // The next options wait in the output for the encrypted stream.
            Step::StartTls if !input.is_empty() => return Err(ClientError::DataBeforeTls),
            Step::StartTls => self.events.push_back(Event::StartTls),
            Step::Ready(export) => {
                self.structured = handshake.is_structured();
                self.contexts = handshake.take_contexts();
                self.phase = Phase::Transmission(Incoming::Head);
                self.events.push_back(Event::Ready(export));
            }
        }
        Ok(Received::Complete)
    }
}

/// Returns a server's message, without control characters.
fn readable(data: &[u8]) -> String {
    let text = String::from_utf8_lossy(data);
    text.chars().filter(|c| !c.is_control()).take(MESSAGE_LIMIT).collect()
}
