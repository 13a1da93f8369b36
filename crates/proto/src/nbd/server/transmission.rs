//! The transmission phase: requests are checked, their payloads received, and their replies sent.

use std::collections::VecDeque;
use std::sync::Arc;

use sarsen_block::Buffer;
use sarsen_wire::nbd::{
    self, CommandCode, DEFAULT_MAX_PAYLOAD, DF, EXTENDED_REQUEST_MAGIC, ErrorCode, ExtendedRequest,
    FAST_ZERO, FUA, NO_HOLE, PAYLOAD_LEN, REQ_ONE, REQUEST_MAGIC,
};
use zerocopy::FromBytes;

use super::super::Output;
use super::super::partial::collect;
use super::super::slots::Slots;
use super::handshake::Selection;
use super::replies::{Headers, ReplyTo};
use super::{
    Event, Export, MAXIMUM_EXTENTS, Operation, Outcome, ServerError, Settings, StatusContext,
};

/// Minimum remaining length of a payload that is received directly into its buffer.
const LANDING_LENGTH: usize = 16 * 1024;

/// What a request was, for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Status {
        /// Maximum number of extents for each context.
        maximum_extents: usize,
    },
    /// A request to write zeroes that must fail if it is slow.
    FastZero,
    Other,
}

/// An open request.
struct Task {
    kind: Kind,
    cookie: u64,
    offset: u64,
    length: u64,
    /// Bytes of memory that the request is counted with.
    memory: usize,
}

/// The head of a request in either format.
#[derive(Clone, Copy)]
struct Head {
    flags: u16,
    command: CommandCode,
    cookie: u64,
    offset: u64,
    length: u64,
    /// Number of bytes that follow the head.
    payload: u64,
}

/// A request that the server refuses, and the message to the user.
struct Refused(ErrorCode, &'static str);

/// What happens to a valid request.
enum Checked {
    /// It has no effect: its length is 0.
    Nothing,
    /// Its data follows.
    Write,
    /// It is reported.
    Operation(Operation, Kind),
}

/// A write whose data arrives.
struct Receiving {
    task: u64,
    offset: u64,
    durable: bool,
    buffer: Buffer,
    filled: usize,
}

enum State {
    /// The server waits for the head of a request.
    Head,
    /// A request waits for memory.
    Waiting(Head),
    Receiving(Receiving),
    /// The server skips this number of bytes of a payload.
    Skipping(u64),
    /// The client has sent NBD_CMD_DISC.
    Disconnecting,
}

/// Whether the transmission continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// A part of the input was handled.
    Continue,
    /// The next part of the input is incomplete.
    Incomplete,
    /// The client disconnects.
    Disconnect,
}

/// The transmission phase of a connection.
pub(super) struct Transmission {
    export: Export,
    headers: Headers,
    /// The metadata contexts that the client selected.
    contexts: Arc<[StatusContext]>,
    maximum_payload: u32,
    state: State,
    tasks: Slots<Task>,
    /// Sum of the memory of all tasks.
    memory: usize,
    /// See [`super::Server::set_allowance`].
    allowance: usize,
}

impl Transmission {
    pub(super) fn new(selection: Selection, maximum_payload: u32) -> Self {
        let Selection { export, headers, contexts } = selection;
        Self {
            export,
            headers,
            contexts: contexts.into(),
            maximum_payload,
            state: State::Head,
            tasks: Slots::default(),
            memory: 0,
            allowance: usize::MAX,
        }
    }

    pub(super) fn open_requests(&self) -> usize {
        self.tasks.open()
    }

    /// Returns the number of bytes of the current payload that have not arrived.
    pub(super) fn payload_missing(&self) -> Option<u64> {
        match &self.state {
            State::Receiving(receiving) => Some((receiving.buffer.len() - receiving.filled) as u64),
            State::Skipping(left) => Some(*left),
            State::Head | State::Waiting(_) | State::Disconnecting => None,
        }
    }

    /// Returns whether a request waits for memory.
    pub(super) const fn waits_for_memory(&self) -> bool {
        matches!(self.state, State::Waiting(_))
    }

    pub(super) const fn set_allowance(&mut self, allowance: usize) {
        self.allowance = allowance;
    }

    /// Returns whether the memory of a request is within the allowance.
    fn fits(&self, head: &Head, output: &Output) -> bool {
        let needed = match head.command {
            CommandCode::Read | CommandCode::Write
                if head.length <= self.maximum_payload.into() =>
            {
                Buffer::memory_for(head.length as usize)
            }
            CommandCode::BlockStatus if head.flags & REQ_ONE == 0 => {
                self.status_memory(self.maximum_extents(head.flags))
            }
            _ => 0,
        };
        let used = self.memory.saturating_add(output.memory());
        needed == 0 || used.saturating_add(needed) <= self.allowance
    }

    /// Returns the maximum number of extents in a status for each context.
    fn maximum_extents(&self, flags: u16) -> usize {
        if flags & REQ_ONE != 0 { 1 } else { MAXIMUM_EXTENTS / self.contexts.len().max(1) }
    }

    /// Returns the memory of the reply to a request for status: its extents and heads.
    fn status_memory(&self, maximum_extents: usize) -> usize {
        self.contexts.len() * (16 * maximum_extents + 64)
    }

    /// Returns the bytes of memory that open requests use, and the payload that is being received.
    pub(super) const fn memory(&self) -> usize {
        self.memory
    }

    pub(super) const fn set_bytes(&mut self, bytes: u64) {
        self.export.bytes = bytes;
    }

    /// Returns whether the client has disconnected and no request is open.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, State::Disconnecting) && self.tasks.open() == 0
    }

    /// Returns whether the next part of the stream can be handled. A payload has its memory already.
    pub(super) fn wants_input(&self, settings: &Settings, output: &Output) -> bool {
        match self.state {
            State::Head => {
                self.tasks.open() < settings.maximum_requests
                    && self.memory + output.memory() < settings.maximum_memory
            }
            State::Waiting(head) => self.fits(&head, output),
            State::Receiving(_) | State::Skipping(_) => true,
            State::Disconnecting => false,
        }
    }

    pub(super) fn landing(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            State::Receiving(Receiving { buffer, filled, .. })
                if buffer.len() - *filled >= LANDING_LENGTH =>
            {
                Some(&mut buffer[*filled..])
            }
            _ => None,
        }
    }

    pub(super) fn landed(&mut self, count: usize, events: &mut VecDeque<Event>) {
        if let State::Receiving(receiving) = &mut self.state {
            receiving.filled += count;
            assert!(
                receiving.filled <= receiving.buffer.len(),
                "more bytes were received than the buffer has room for"
            );
            self.finish_receiving(events);
        } else {
            assert!(count == 0, "bytes were received into no buffer");
        }
    }

    /// Handles the next part of the input.
    pub(super) fn advance(
        &mut self,
        input: &mut &[u8],
        partial: &mut Vec<u8>,
        output: &mut Output,
        events: &mut VecDeque<Event>,
        shutting_down: bool,
    ) -> Result<Flow, ServerError> {
        match &mut self.state {
            State::Receiving(Receiving { buffer, filled, .. }) => {
                let count = input.len().min(buffer.len() - *filled);
                let (head, rest) = input.split_at(count);
                buffer[*filled..*filled + count].copy_from_slice(head);
                *filled += count;
                *input = rest;
                Ok(self.finish_receiving(events))
            }
            State::Skipping(remaining) => {
                let count = usize::try_from(*remaining).unwrap_or(usize::MAX).min(input.len());
                *input = &input[count..];
                *remaining -= count as u64;
                if *remaining > 0 {
                    return Ok(Flow::Incomplete);
                }
                self.state = State::Head;
                Ok(Flow::Continue)
            }
            State::Disconnecting => Ok(Flow::Incomplete),
            State::Head => {
                let length = match self.headers {
                    Headers::Simple | Headers::Structured => size_of::<nbd::Request>(),
                    Headers::Extended => size_of::<ExtendedRequest>(),
                };
                let Some(bytes) = collect(partial, input, length) else {
                    return Ok(Flow::Incomplete);
                };
                let head = self.parse_head(bytes);
                partial.clear();
                self.state = State::Waiting(head?);
                Ok(Flow::Continue)
            }
            State::Waiting(head) => {
                let head = *head;
                self.state = State::Head;
                self.take_head(head, output, events, shutting_down)
            }
        }
    }

    fn parse_head(&self, bytes: &[u8]) -> Result<Head, ServerError> {
        let magic_error =
            |found: u32| ServerError::Magic { what: "a request", found: found.into() };
        if self.headers == Headers::Extended {
            let head = ExtendedRequest::ref_from_bytes(bytes).map_err(|_| magic_error(0))?;
            let (magic, flags, length) = (head.magic.get(), head.flags.get(), head.length.get());
            if magic != EXTENDED_REQUEST_MAGIC {
                return Err(magic_error(magic));
            }
            return Ok(Head {
                flags,
                command: CommandCode(head.command.get()),
                cookie: head.cookie.get(),
                offset: head.offset.get(),
                length,
                payload: if flags & PAYLOAD_LEN != 0 { length } else { 0 },
            });
        }
        let head = nbd::Request::ref_from_bytes(bytes).map_err(|_| magic_error(0))?;
        if head.magic.get() != REQUEST_MAGIC {
            return Err(magic_error(head.magic.get()));
        }
        let (command, length) = (CommandCode(head.command.get()), head.length.get().into());
        Ok(Head {
            flags: head.flags.get(),
            command,
            cookie: head.cookie.get(),
            offset: head.offset.get(),
            length,
            payload: if command == CommandCode::Write { length } else { 0 },
        })
    }

    fn take_head(
        &mut self,
        head: Head,
        output: &mut Output,
        events: &mut VecDeque<Event>,
        shutting_down: bool,
    ) -> Result<Flow, ServerError> {
        if head.command == CommandCode::Disconnect {
            self.state = State::Disconnecting;
            return Ok(Flow::Disconnect);
        }
        // "Size constraints": a payload up to the default maximum is no attack. With extended headers the server closes
        // the connection above the maximum that it reports ("Request message" of the branch).
        let limit = match self.headers {
            Headers::Simple | Headers::Structured => self.maximum_payload.max(DEFAULT_MAX_PAYLOAD),
            Headers::Extended => self.maximum_payload,
        };
        let (length, limit) = (head.payload, u64::from(limit));
        if length > limit {
            return Err(ServerError::PayloadTooLong { length, limit });
        }
        let checked = if shutting_down {
            Err(Refused(ErrorCode::Shutdown, "the server is shutting down"))
        } else {
            self.check(&head)
        };
        let durable = head.flags & FUA != 0;
        match checked {
            Ok(Checked::Write) => {
                let buffer = Buffer::for_overwrite(head.length as usize);
                let task = self.open(&head, Kind::Other, buffer.memory());
                let offset = head.offset;
                let receiving = Receiving { task, offset, durable, buffer, filled: 0 };
                self.state = State::Receiving(receiving);
                return Ok(Flow::Continue);
            }
            Ok(Checked::Operation(operation, kind)) => {
                let memory = match kind {
                    Kind::Read => Buffer::memory_for(head.length as usize),
                    Kind::Status { maximum_extents } => self.status_memory(maximum_extents),
                    Kind::FastZero | Kind::Other => 0,
                };
                let task = self.open(&head, kind, memory);
                events.push_back(Event::Request { task, operation });
            }
            Ok(Checked::Nothing) => {
                let is_read = head.command == CommandCode::Read;
                self.reply_to(head.cookie, head.offset).push_success(is_read, output);
            }
            Err(Refused(error, message)) => {
                self.reply_to(head.cookie, head.offset).push_error(error, message, output);
            }
        }
        if head.payload > 0 {
            self.state = State::Skipping(head.payload);
        }
        Ok(Flow::Continue)
    }

    /// Checks a request ("Command flags", "Request types", "Error values").
    fn check(&self, head: &Head) -> Result<Checked, Refused> {
        let Head { flags, command, offset, length, .. } = *head;
        let export = &self.export;
        let invalid = |message| Err(Refused(ErrorCode::Invalid, message));
        let known_flags = FUA
            | match command {
                CommandCode::Read if self.headers != Headers::Simple => DF,
                CommandCode::Write if self.headers == Headers::Extended => PAYLOAD_LEN,
                CommandCode::WriteZeroes if export.can_fast_zero => NO_HOLE | FAST_ZERO,
                CommandCode::WriteZeroes => NO_HOLE,
                CommandCode::BlockStatus => REQ_ONE,
                _ => 0,
            };
        if flags & !known_flags != 0 {
            return invalid("the flags of the request are not valid for its type");
        }
        let writes =
            matches!(command, CommandCode::Write | CommandCode::Trim | CommandCode::WriteZeroes);
        if writes && export.read_only {
            return Err(Refused(ErrorCode::NotPermitted, "the export is read-only"));
        }
        let durable = flags & FUA != 0;
        let operation = match command {
            CommandCode::Flush if offset != 0 || length != 0 => {
                return invalid("flush: the offset and the length must be 0");
            }
            CommandCode::Flush => return Ok(Checked::Operation(Operation::Flush, Kind::Other)),
            CommandCode::Read => Checked::Operation(Operation::Read { offset, length }, Kind::Read),
            CommandCode::Write if self.headers == Headers::Extended && flags & PAYLOAD_LEN == 0 => {
                return invalid("write: the payload is missing");
            }
            CommandCode::Write if length > self.maximum_payload.into() => {
                return invalid("write: the data exceeds the maximum payload");
            }
            CommandCode::Write => Checked::Write,
            CommandCode::Trim if export.can_trim => {
                Checked::Operation(Operation::Trim { offset, length, durable }, Kind::Other)
            }
            CommandCode::Cache if export.can_cache => {
                Checked::Operation(Operation::Cache { offset, length }, Kind::Other)
            }
            CommandCode::WriteZeroes => {
                let (may_punch, fast) = (flags & NO_HOLE == 0, flags & FAST_ZERO != 0);
                let kind = if fast { Kind::FastZero } else { Kind::Other };
                let operation = Operation::WriteZeroes { offset, length, durable, may_punch, fast };
                Checked::Operation(operation, kind)
            }
            CommandCode::BlockStatus if self.contexts.is_empty() => {
                return invalid("block status: the client has selected no metadata context");
            }
            CommandCode::BlockStatus if length == 0 => {
                return invalid("block status: the length must not be 0");
            }
            CommandCode::BlockStatus => {
                let contexts = self.contexts.clone();
                let maximum_extents = self.maximum_extents(flags);
                let operation =
                    Operation::BlockStatus { offset, length, contexts, maximum_extents };
                Checked::Operation(operation, Kind::Status { maximum_extents })
            }
            _ => return invalid("the export does not support the request"),
        };
        self.check_range(head)?;
        if command == CommandCode::Read && length > self.maximum_payload.into() {
            return Err(Refused(
                ErrorCode::Overflow,
                "read: the length exceeds the maximum payload",
            ));
        }
        Ok(if length == 0 { Checked::Nothing } else { operation })
    }

    /// Checks that a request is aligned and within the export ("Size constraints", "Error values").
    fn check_range(&self, head: &Head) -> Result<(), Refused> {
        let Head { command, offset, length, .. } = *head;
        if (offset | length) & (u64::from(self.export.minimum_block) - 1) != 0 {
            let message = "the request is not aligned to the minimum block size";
            return Err(Refused(ErrorCode::Invalid, message));
        }
        if offset.checked_add(length).is_some_and(|end| end <= self.export.bytes) {
            return Ok(());
        }
        let error = match command {
            CommandCode::Write | CommandCode::WriteZeroes => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        Err(Refused(error, "the request exceeds the size of the export"))
    }

    /// Opens a request, and counts its memory until it is completed.
    fn open(&mut self, head: &Head, kind: Kind, memory: usize) -> u64 {
        self.memory += memory;
        let Head { cookie, offset, length, .. } = *head;
        self.tasks.insert(Task { kind, cookie, offset, length, memory })
    }

    const fn reply_to(&self, cookie: u64, offset: u64) -> ReplyTo {
        ReplyTo { headers: self.headers, cookie, offset }
    }

    /// Reports a write whose data is complete.
    fn finish_receiving(&mut self, events: &mut VecDeque<Event>) -> Flow {
        match std::mem::replace(&mut self.state, State::Head) {
            State::Receiving(receiving) if receiving.filled == receiving.buffer.len() => {
                let Receiving { task, offset, durable, buffer: data, .. } = receiving;
                let operation = Operation::Write { offset, data, durable };
                events.push_back(Event::Request { task, operation });
                Flow::Continue
            }
            other => {
                self.state = other;
                Flow::Incomplete
            }
        }
    }

    /// Sends the reply to a request.
    pub(super) fn complete(
        &mut self,
        task: u64,
        result: Result<Outcome, ErrorCode>,
        output: &mut Output,
    ) {
        let task = self.tasks.remove(task);
        let Some(Task { kind, cookie, offset, length, memory }) = task else {
            panic!("the completed request is not open")
        };
        self.memory -= memory;
        let reply = self.reply_to(cookie, offset);
        match (result, kind) {
            (Ok(Outcome::Done), Kind::FastZero | Kind::Other) => reply.push_success(false, output),
            (Ok(Outcome::Data(data)), Kind::Read) => {
                assert!(
                    data.len() as u64 == length,
                    "the data has not the length of the read request"
                );
                reply.push_data(data, output);
            }
            (Ok(Outcome::Status(status)), Kind::Status { maximum_extents }) => {
                reply.push_status(&self.contexts, status, length, maximum_extents, output);
            }
            (Ok(outcome), _) => panic!("{outcome:?} does not belong to the request: {kind:?}"),
            (Err(error), _) => {
                let error = permitted(error, kind);
                reply.push_error(error, message(error, kind), output);
            }
        }
    }
}

/// Returns the error that the document permits for the request ("Error values").
fn permitted(error: ErrorCode, kind: Kind) -> ErrorCode {
    match error {
        ErrorCode::None => ErrorCode::Io,
        ErrorCode::NotSupported if kind != Kind::FastZero => ErrorCode::Invalid,
        other => other,
    }
}

/// Returns a message to the user.
const fn message(error: ErrorCode, kind: Kind) -> &'static str {
    match error {
        ErrorCode::NotPermitted => "the client is not permitted to make the request",
        ErrorCode::Io => "the medium failed",
        ErrorCode::NoMemory => "the server is out of memory",
        ErrorCode::NoSpace => "the volume is out of space",
        ErrorCode::NotSupported => "writing zeroes would not be faster than writing data",
        ErrorCode::Shutdown => "the server is shutting down",
        _ if matches!(kind, Kind::Status { .. }) => {
            "the status is unknown: a selected dirty bitmap does not exist any more"
        }
        _ => "the request is invalid",
    }
}
