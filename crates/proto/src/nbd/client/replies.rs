//! Replies to requests: simple replies, and the chunks of structured replies.
//!
//! A server may send the data of a read in several chunks, in any order, between chunks of other replies. Each byte must
//! arrive exactly once. All lengths are checked against the request before memory is allocated for them.

use std::ops::Range;

use sarsen_block::Buffer;
use sarsen_wire::nbd::{
    ChunkType, ErrorChunk, ErrorCode, HoleChunk, MAX_NAME_LENGTH, REPLY_DONE, ReplyChunk,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, StatusDescriptor,
};
use zerocopy::FromBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::super::partial::collect;
use super::{
    Answer, Client, ClientError, Context, Event, Phase, Received, RequestError, StatusExtent,
    readable,
};

/// Minimum remaining length of data that is received directly into its buffer.
const LANDING_LENGTH: usize = 16 * 1024;
/// Maximum number of extents of one context in one reply.
const EXTENTS_LIMIT: usize = 1 << 20;
/// Maximum number of parts of a read that have arrived with gaps between them.
const FRAGMENTS_LIMIT: usize = 1024;
/// Maximum length of an error's payload: the longest message, and the offset after it.
const ERROR_LIMIT: usize = size_of::<ErrorChunk>() + MAX_NAME_LENGTH + size_of::<U64>();

/// What the client receives next.
pub(super) enum Incoming {
    /// The head of a reply or of a chunk.
    Head,
    /// The payload of a chunk, or of data only its offset.
    Payload(Chunk),
    /// Data of a read.
    Data(Reading),
}

/// A chunk whose payload is being received.
#[derive(Clone, Copy)]
pub(super) struct Chunk {
    cookie: u64,
    kind: ChunkType,
    /// Length of the payload.
    length: usize,
    /// It is the last one of its reply.
    is_last: bool,
}

/// Data that is being received.
pub(super) struct Reading {
    cookie: u64,
    /// The buffer of the whole read.
    buffer: Buffer,
    filled: usize,
    /// The end of this data in the buffer.
    end: usize,
    /// The reply ends with this data.
    is_last: bool,
}

/// What a request expects of its reply.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    Nothing,
    Data { offset: u64, length: u32 },
    Status { length: u32 },
}

/// A request without a complete reply.
pub(super) struct Task<T> {
    pub(super) token: T,
    expected: Expected,
    /// The data of a structured reply, unless more of it is being received at the moment.
    buffer: Option<Buffer>,
    arrived: Arrived,
    /// The status in each context, once it has arrived.
    status: Vec<Option<Vec<StatusExtent>>>,
    /// The first error in a structured reply.
    error: Option<RequestError>,
}

impl<T> Task<T> {
    pub(super) const fn new(token: T, expected: Expected) -> Self {
        Self {
            token,
            expected,
            buffer: None,
            arrived: Arrived(Vec::new()),
            status: Vec::new(),
            error: None,
        }
    }

    /// Returns where data from `offset` on belongs in the buffer, and notes that it arrives.
    fn place(&mut self, offset: u64, length: usize) -> Result<Range<usize>, ClientError> {
        let malformed = ClientError::Malformed("reply to a read");
        let Expected::Data { offset: first, length: wanted } = self.expected else {
            return Err(malformed);
        };
        let start = offset.checked_sub(first).and_then(|start| usize::try_from(start).ok());
        let range = start.and_then(|start| Some(start..start.checked_add(length)?));
        let range = range.filter(|range| range.end <= wanted as usize && !range.is_empty());
        let range = range.ok_or_else(|| malformed.clone())?;
        self.arrived.add(range.clone()).then_some(range).ok_or(malformed)
    }

    fn take_buffer(&mut self) -> Buffer {
        let Expected::Data { length, .. } = self.expected else { return Buffer::zeroed(0) };
        self.buffer.take().unwrap_or_else(|| Buffer::for_overwrite(length as usize))
    }

    /// Notes the status in one context.
    fn take_status(&mut self, payload: &[u8], contexts: &[Context]) -> Result<(), ClientError> {
        let malformed = ClientError::Malformed("status of a range");
        let Expected::Status { length } = self.expected else { return Err(malformed) };
        let Ok((id, list)) = U32::read_from_prefix(payload) else { return Err(malformed) };
        let index = contexts.iter().position(|context| context.id == id.get());
        let descriptors = <[StatusDescriptor]>::ref_from_bytes(list).ok();
        let (Some(index), Some(descriptors)) = (index, descriptors) else { return Err(malformed) };
        let mut rest = length;
        let mut extents = Vec::new();
        for descriptor in descriptors {
            if descriptor.length.get() == 0 {
                return Err(malformed);
            }
            // The last extent may be longer than the request.
            let length = descriptor.length.get().min(rest);
            if length > 0 {
                extents.push(StatusExtent { length, flags: descriptor.flags.get() });
            }
            rest -= length;
        }
        self.status.resize(contexts.len(), None);
        if extents.is_empty() || self.status[index].replace(extents).is_some() {
            return Err(malformed);
        }
        Ok(())
    }

    /// Returns the answer of a structured reply that has ended.
    fn answer(&mut self) -> Result<Result<Answer, RequestError>, ClientError> {
        if let Some(error) = self.error.take() {
            return Ok(Err(error));
        }
        let answer = match self.expected {
            Expected::Nothing => Answer::Done,
            Expected::Data { length, .. } => {
                if !self.arrived.is_all_of(length as usize) {
                    return Err(ClientError::Malformed("reply to a read, which lacks data"));
                }
                Answer::Data(self.take_buffer())
            }
            Expected::Status { .. } => {
                let status: Option<Vec<_>> = self.status.drain(..).collect();
                let status = status.filter(|status| !status.is_empty());
                Answer::Status(status.ok_or(ClientError::Malformed("status of a range"))?)
            }
        };
        Ok(Ok(answer))
    }
}

/// The parts of a read that have arrived: in order, with gaps between them.
struct Arrived(Vec<Range<usize>>);

impl Arrived {
    /// Adds a part that is not empty. Returns whether it was new, and there is room for it.
    fn add(&mut self, part: Range<usize>) -> bool {
        let parts = &mut self.0;
        let index = parts.partition_point(|before| before.end < part.start);
        let next = parts.get(index).cloned();
        match next {
            // It continues this part, and perhaps fills the gap to the next one.
            Some(before) if before.end == part.start => {
                let after = parts.get(index + 1).map(|after| after.start);
                if after.is_some_and(|after| after < part.end) {
                    return false;
                }
                parts[index].end = part.end;
                if after == Some(part.end) {
                    parts[index].end = parts.remove(index + 1).end;
                }
            }
            Some(after) if after.start < part.end => return false,
            Some(after) if after.start == part.end => parts[index].start = part.start,
            _ if parts.len() >= FRAGMENTS_LIMIT => return false,
            _ => parts.insert(index, part),
        }
        true
    }

    fn is_all_of(&self, length: usize) -> bool {
        match &self.0[..] {
            [] => length == 0,
            [whole] => *whole == (0..length),
            _ => false,
        }
    }
}

impl<T> Client<T> {
    /// Returns memory into which the driver may receive the next bytes of the stream.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        match &mut self.phase {
            Phase::Transmission(Incoming::Data(reading))
                if reading.end - reading.filled >= LANDING_LENGTH =>
            {
                Some(&mut reading.buffer[reading.filled..reading.end])
            }
            _ => None,
        }
    }

    /// Notes that `count` bytes were received into [`Self::landing`]. [`Self::handle_input`] must follow, perhaps
    /// without bytes.
    pub fn landed(&mut self, count: usize) {
        if let Phase::Transmission(Incoming::Data(reading)) = &mut self.phase {
            reading.filled += count;
            assert!(
                reading.filled <= reading.end,
                "more bytes were received than the buffer has room for"
            );
        } else {
            assert!(count == 0, "bytes were received into no buffer");
        }
    }

    /// Handles the next part of a reply.
    pub(super) fn take_reply(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        let Phase::Transmission(incoming) = &mut self.phase else {
            return Ok(Received::Incomplete);
        };
        match incoming {
            Incoming::Head => self.take_head(input),
            Incoming::Payload(chunk) => {
                let chunk = *chunk;
                self.take_payload(chunk, input)
            }
            Incoming::Data(reading) => {
                let count = input.len().min(reading.end - reading.filled);
                let (head, rest) = input.split_at(count);
                reading.buffer[reading.filled..reading.filled + count].copy_from_slice(head);
                reading.filled += count;
                *input = rest;
                self.finish_reading()
            }
        }
    }

    /// Returns the next four bytes of the stream, which begin a message, without taking them from it.
    fn peek_magic(&mut self, input: &mut &[u8]) -> Option<u32> {
        const LENGTH: usize = size_of::<U32>();
        if self.partial.is_empty() && input.len() >= LENGTH {
            return Some(U32::read_from_prefix(input).ok()?.0.get());
        }
        if self.partial.len() < LENGTH {
            collect(&mut self.partial, input, LENGTH)?;
        }
        Some(U32::read_from_prefix(&self.partial).ok()?.0.get())
    }

    /// Handles the head of a reply or of a chunk.
    fn take_head(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        match self.peek_magic(input) {
            None => Ok(Received::Incomplete),
            Some(SIMPLE_REPLY_MAGIC) => self.take_simple(input),
            Some(STRUCTURED_REPLY_MAGIC) if self.structured => self.take_chunk(input),
            Some(found) => Err(ClientError::Magic { what: "a reply", found: found.into() }),
        }
    }

    fn task(&mut self, cookie: u64) -> Result<&mut Task<T>, ClientError> {
        self.tasks.find(cookie).ok_or(ClientError::UnknownCookie(cookie))
    }

    /// Handles a simple reply, and completes the request if no data follows.
    fn take_simple(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        let Some(bytes) = collect(&mut self.partial, input, size_of::<SimpleReply>()) else {
            return Ok(Received::Incomplete);
        };
        let reply = SimpleReply::read_from_bytes(bytes).ok();
        self.partial.clear();
        let reply = reply.ok_or(ClientError::Malformed("reply"))?;
        let (cookie, code) = (reply.cookie.get(), ErrorCode(reply.error.get()));
        let structured = self.structured;
        let task = self.task(cookie)?;
        let result = match (task.expected, code) {
            (_, code) if code != ErrorCode::None => {
                Err(RequestError { code, message: String::new() })
            }
            // "Structured reply chunk message": such a request needs a structured reply.
            (Expected::Status { .. }, _) => return Err(ClientError::Malformed("reply")),
            (Expected::Data { .. }, _) if structured => {
                return Err(ClientError::Malformed("reply"));
            }
            (Expected::Data { length, .. }, _) => {
                let buffer = task.take_buffer();
                let end = length as usize;
                let reading = Reading { cookie, buffer, filled: 0, end, is_last: true };
                self.phase = Phase::Transmission(Incoming::Data(reading));
                return Ok(Received::Complete);
            }
            (Expected::Nothing, _) => Ok(Answer::Done),
        };
        self.complete(cookie, result);
        Ok(Received::Complete)
    }

    fn complete(&mut self, cookie: u64, result: Result<Answer, RequestError>) {
        if let Some(Task { token, .. }) = self.tasks.remove(cookie) {
            self.events.push_back(Event::Completed { token, result });
        }
    }

    /// Handles the head of a chunk.
    fn take_chunk(&mut self, input: &mut &[u8]) -> Result<Received, ClientError> {
        let Some(bytes) = collect(&mut self.partial, input, size_of::<ReplyChunk>()) else {
            return Ok(Received::Incomplete);
        };
        let head = ReplyChunk::read_from_bytes(bytes).ok();
        self.partial.clear();
        let head = head.ok_or(ClientError::Malformed("chunk"))?;
        let chunk = Chunk {
            cookie: head.cookie.get(),
            kind: ChunkType(head.chunk.get()),
            length: head.length.get() as usize,
            is_last: head.flags.get() & REPLY_DONE != 0,
        };
        let expected = self.task(chunk.cookie)?.expected;
        if !chunk.is_expected(expected) {
            return Err(ClientError::Malformed("chunk"));
        }
        if chunk.kind == ChunkType::None {
            return self.finish_chunk(chunk.cookie, chunk.is_last);
        }
        self.phase = Phase::Transmission(Incoming::Payload(chunk));
        Ok(Received::Complete)
    }

    /// Handles the payload of a chunk, which is complete.
    fn take_payload(&mut self, chunk: Chunk, input: &mut &[u8]) -> Result<Received, ClientError> {
        let Some(payload) = collect(&mut self.partial, input, chunk.collected()) else {
            return Ok(Received::Incomplete);
        };
        let Chunk { cookie, is_last, .. } = chunk;
        let malformed = || ClientError::Malformed("chunk");
        let task = self.tasks.find(cookie).ok_or(ClientError::UnknownCookie(cookie))?;
        let mut next = Incoming::Head;
        match chunk.kind {
            ChunkType::OffsetData => {
                let offset = U64::read_from_bytes(payload).map_err(|_| malformed())?.get();
                let range = task.place(offset, chunk.length - size_of::<U64>())?;
                let (buffer, Range { start, end }) = (task.take_buffer(), range);
                next = Incoming::Data(Reading { cookie, buffer, filled: start, end, is_last });
            }
            ChunkType::OffsetHole => {
                let hole = HoleChunk::read_from_bytes(payload).map_err(|_| malformed())?;
                let range = task.place(hole.offset.get(), hole.length.get() as usize)?;
                let mut buffer = task.take_buffer();
                buffer[range].fill(0);
                task.buffer = Some(buffer);
            }
            ChunkType::BlockStatus => task.take_status(payload, &self.contexts)?,
            _ => {
                let (head, rest) =
                    ErrorChunk::read_from_prefix(payload).map_err(|_| malformed())?;
                let length = usize::from(head.message_length.get());
                let message = rest.get(..length).ok_or_else(malformed)?;
                let code = ErrorCode(head.error.get());
                if code == ErrorCode::None {
                    return Err(malformed());
                }
                task.error.get_or_insert(RequestError { code, message: readable(message) });
            }
        }
        self.partial.clear();
        if matches!(next, Incoming::Data(_)) {
            self.phase = Phase::Transmission(next);
            return Ok(Received::Complete);
        }
        self.finish_chunk(cookie, is_last)
    }

    /// Continues after a read or a part of it, once its data is complete.
    fn finish_reading(&mut self) -> Result<Received, ClientError> {
        let Phase::Transmission(incoming) = &mut self.phase else {
            return Ok(Received::Incomplete);
        };
        match std::mem::replace(incoming, Incoming::Head) {
            Incoming::Data(reading) if reading.filled == reading.end => {
                let Reading { cookie, buffer, is_last, .. } = reading;
                if self.structured {
                    self.task(cookie)?.buffer = Some(buffer);
                    return self.finish_chunk(cookie, is_last);
                }
                self.complete(cookie, Ok(Answer::Data(buffer)));
                Ok(Received::Complete)
            }
            unfinished => {
                *incoming = unfinished;
                Ok(Received::Incomplete)
            }
        }
    }

    /// Ends a chunk, and its reply if it is the last one.
    fn finish_chunk(&mut self, cookie: u64, is_last: bool) -> Result<Received, ClientError> {
        self.phase = Phase::Transmission(Incoming::Head);
        if is_last {
            let result = self.task(cookie)?.answer()?;
            self.complete(cookie, result);
        }
        Ok(Received::Complete)
    }
}

impl Chunk {
    /// Returns whether the kind and the length of the chunk are possible for a request that expects this.
    fn is_expected(self, expected: Expected) -> bool {
        const OFFSET: usize = size_of::<U64>();
        const EXTENT: usize = size_of::<StatusDescriptor>();
        match (self.kind, expected) {
            (ChunkType::None, _) => self.length == 0 && self.is_last,
            (ChunkType::OffsetData, Expected::Data { length, .. }) => {
                self.length > OFFSET && self.length - OFFSET <= length as usize
            }
            (ChunkType::OffsetHole, Expected::Data { .. }) => self.length == size_of::<HoleChunk>(),
            (ChunkType::BlockStatus, Expected::Status { .. }) => {
                let extents = self.length.checked_sub(size_of::<U32>());
                extents.is_some_and(|extents| {
                    extents > 0 && extents % EXTENT == 0 && extents / EXTENT <= EXTENTS_LIMIT
                })
            }
            (kind, _) if kind.is_error() => {
                (size_of::<ErrorChunk>()..=ERROR_LIMIT).contains(&self.length)
            }
            _ => false,
        }
    }

    /// Returns the number of bytes of the payload that are collected: all but data.
    const fn collected(self) -> usize {
        match self.kind {
            ChunkType::OffsetData => size_of::<U64>(),
            _ => self.length,
        }
    }
}
