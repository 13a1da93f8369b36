//! The client's end of an NBD connection, without I/O.
//!
//! [`Client`] chooses an export in the fixed newstyle handshake. It then numbers requests, accepts replies in any
//! order, and reports completions as [`Event`]s. The driver passes received bytes to it ([`Client::handle_input`], or
//! directly into [`Client::landing`]) and sends the contents of [`Client::output`]. The client uses simple replies: it
//! does not negotiate structured replies.

mod handshake;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use sarsen_block::Buffer;
use sarsen_wire::nbd::{
    self, CommandCode, DEFAULT_MAX_PAYLOAD, ErrorCode, FUA, NO_HOLE, REQUEST_MAGIC, ReplyCode,
    SIMPLE_REPLY_MAGIC, SimpleReply, transmission,
};
use zerocopy::{FromBytes, IntoBytes};

use super::Output;
use super::partial::collect;
use super::slots::Slots;
use handshake::{Handshake, Step};

/// Minimum remaining length of a read that is received directly into its buffer.
const LANDING_LENGTH: usize = 16 * 1024;

/// The reason why a connection ends. A connection cannot recover from any of these errors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The name of the export cannot be sent.
    #[error("the name of the export has {length} bytes: the maximum is {limit}")]
    NameTooLong {
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
        data: Buffer,
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
}

/// An event for the owner.
#[derive(Debug)]
pub enum Event<T> {
    /// The handshake is complete. Requests may be sent.
    Ready(Export),
    /// A request has ended.
    Completed {
        /// The owner's token of the request.
        token: T,
        /// The data of a read (empty for other requests), or the error.
        result: Result<Buffer, ErrorCode>,
    },
}

enum Phase {
    Handshake(Handshake),
    Transmission { reading: Option<Reading> },
    Failed(ClientError),
}

/// Whether the received bytes complete the next part of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Received {
    Complete,
    Incomplete,
}

/// A read whose data is being received.
struct Reading {
    cookie: u64,
    buffer: Buffer,
    filled: usize,
}

/// The data of a successful reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyData {
    Nothing,
    Data(u32),
}

/// A request without a reply.
struct Task<T> {
    token: T,
    expected: ReplyData,
}

/// An NBD client. See the module. `T` is the owner's token, which identifies a request.
pub struct Client<T> {
    phase: Phase,
    /// An incomplete message.
    partial: Vec<u8>,
    output: Output,
    events: VecDeque<Event<T>>,
    tasks: Slots<Task<T>>,
}

impl<T> Client<T> {
    /// Creates a connection that will choose the export with this name. The empty name is the server's default export.
    pub fn new(export: &str) -> Result<Self, ClientError> {
        Ok(Self {
            phase: Phase::Handshake(Handshake::new(export)?),
            partial: Vec::new(),
            output: Output::default(),
            events: VecDeque::new(),
            tasks: Slots::default(),
        })
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
        let ready = matches!(self.phase, Phase::Transmission { .. } | Phase::Failed(_));
        assert!(ready, "a request before the handshake's end");
        let expected = match &request {
            Request::Read { length, .. } => ReplyData::Data(*length),
            _ => ReplyData::Nothing,
        };
        let cookie = self.tasks.insert(Task { token, expected });
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
        };
        self.push_request(command, flags, cookie, offset, length);
        if let Some(data) = data {
            self.output.push_payload(data);
        }
    }

    /// Requests a disconnect. The server closes the connection when it has answered the open requests.
    pub fn disconnect(&mut self) {
        if matches!(self.phase, Phase::Transmission { .. }) {
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

    /// Returns memory into which the driver may receive the next bytes of the stream.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        match &mut self.phase {
            Phase::Transmission { reading: Some(reading) }
                if reading.buffer.len() - reading.filled >= LANDING_LENGTH =>
            {
                Some(&mut reading.buffer[reading.filled..])
            }
            _ => None,
        }
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        if let Phase::Transmission { reading: Some(reading) } = &mut self.phase {
            reading.filled += count;
            assert!(
                reading.filled <= reading.buffer.len(),
                "more bytes were received than the buffer has room for"
            );
            self.finish_reading();
        } else {
            assert!(count == 0, "bytes were received into no buffer");
        }
    }

    /// Handles received bytes that follow those in [`Self::landing`]. An error is final.
    pub fn handle_input(&mut self, mut input: &[u8]) -> Result<(), ClientError> {
        loop {
            let received = match &mut self.phase {
                Phase::Failed(error) => return Err(error.clone()),
                Phase::Handshake(_) => self.shake_hands(&mut input),
                Phase::Transmission { reading: Some(reading) } => {
                    let count = input.len().min(reading.buffer.len() - reading.filled);
                    let (head, rest) = input.split_at(count);
                    reading.buffer[reading.filled..reading.filled + count].copy_from_slice(head);
                    reading.filled += count;
                    input = rest;
                    Ok(self.finish_reading())
                }
                Phase::Transmission { reading: None } => self.take_reply(&mut input),
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
        if let Step::Ready(export) = step {
            self.phase = Phase::Transmission { reading: None };
            self.events.push_back(Event::Ready(export));
        }
        Ok(Received::Complete)
    }

    /// Handles the head of a reply, and completes the request if no data follows.
    fn take_reply(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        const LENGTH: usize = size_of::<SimpleReply>();
        let Some(bytes) = collect(&mut self.partial, input, LENGTH) else {
            return Ok(Received::Incomplete);
        };
        let reply = SimpleReply::read_from_bytes(bytes).ok();
        self.partial.clear();
        let reply = reply.ok_or(ClientError::Malformed("reply"))?;
        if reply.magic.get() != SIMPLE_REPLY_MAGIC {
            let found = reply.magic.get().into();
            return Err(ClientError::Magic { what: "a reply", found });
        }
        let (cookie, error) = (reply.cookie.get(), ErrorCode(reply.error.get()));
        let task = self.tasks.find(cookie).ok_or(ClientError::UnknownCookie(cookie))?;
        match task.expected {
            ReplyData::Data(length) if error == ErrorCode::None && length > 0 => {
                let buffer = Buffer::for_overwrite(length as usize);
                let reading = Some(Reading { cookie, buffer, filled: 0 });
                self.phase = Phase::Transmission { reading };
            }
            ReplyData::Data(_) | ReplyData::Nothing => {
                let result = match error {
                    ErrorCode::None => Ok(Buffer::for_overwrite(0)),
                    error => Err(error),
                };
                self.complete(cookie, result);
            }
        }
        Ok(Received::Complete)
    }

    /// Completes a read whose data is complete.
    fn finish_reading(&mut self) -> Received {
        let Phase::Transmission { reading } = &mut self.phase else { return Received::Incomplete };
        let Some(Reading { cookie, buffer, .. }) =
            reading.take_if(|reading| reading.filled == reading.buffer.len())
        else {
            return Received::Incomplete;
        };
        self.complete(cookie, Ok(buffer));
        Received::Complete
    }

    fn complete(&mut self, cookie: u64, result: Result<Buffer, ErrorCode>) {
        if let Some(Task { token, .. }) = self.tasks.remove(cookie) {
            self.events.push_back(Event::Completed { token, result });
        }
    }
}
