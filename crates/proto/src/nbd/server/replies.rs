//! Replies to requests: simple, structured and extended.

use sarsen_block::Data;
use sarsen_wire::nbd::{
    ChunkType, EXTENDED_REPLY_MAGIC, ErrorChunk, ErrorCode, ExtendedReplyChunk, ExtendedStatus,
    ExtendedStatusDescriptor, HoleChunk, REPLY_DONE, ReplyChunk, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, SimpleReply, StatusDescriptor,
};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U32, U64};

use super::super::Output;
use super::{StatusContext, StatusExtent};

/// Returns the identifier of a context by its index in the list of those that a client selected.
pub(super) const fn context_id(index: usize) -> u32 {
    index as u32 + 1
}

/// The format of the messages of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Headers {
    /// Compact requests and simple replies.
    Simple,
    /// Compact requests and structured replies.
    Structured,
    /// Extended requests and replies.
    Extended,
}

/// The part of a request that its replies repeat.
#[derive(Clone, Copy)]
pub(super) struct ReplyTo {
    /// The format of the reply.
    pub(super) headers: Headers,
    /// The cookie of the request.
    pub(super) cookie: u64,
    /// The offset of the request.
    pub(super) offset: u64,
}

impl ReplyTo {
    /// Reports success. A reply to a read must not be simple if structured replies were negotiated ("Structured reply
    /// chunk message"); for other requests a simple reply is shorter.
    pub(super) fn push_success(self, is_read: bool, output: &mut Output) {
        if self.headers == Headers::Simple || (self.headers == Headers::Structured && !is_read) {
            self.push_simple(ErrorCode::None, output);
        } else {
            self.push_last_chunk(ChunkType::None, &[], 0, output);
        }
    }

    /// Reports an error, with a message to the user if the format has one.
    pub(super) fn push_error(self, error: ErrorCode, message: &str, output: &mut Output) {
        if self.headers == Headers::Simple {
            return self.push_simple(error, output);
        }
        let head =
            ErrorChunk { error: error.0.into(), message_length: (message.len() as u16).into() };
        self.push_last_chunk(ChunkType::Error, &[head.as_bytes(), message.as_bytes()], 0, output);
    }

    /// Returns the data of a read. Zeroes are a hole, unless the format has none. Structured replies have one content
    /// chunk, which NBD_CMD_FLAG_DF requires.
    pub(super) fn push_data(self, data: Data, output: &mut Output) {
        if self.headers == Headers::Simple {
            self.push_simple(ErrorCode::None, output);
            return output.push_data(data);
        }
        let offset = U64::new(self.offset);
        if let Data::Zeroes(length) = data {
            let hole = HoleChunk { offset, length: (length as u32).into() };
            return self.push_last_chunk(ChunkType::OffsetHole, &[hole.as_bytes()], 0, output);
        }
        self.push_last_chunk(ChunkType::OffsetData, &[offset.as_bytes()], data.len(), output);
        output.push_data(data);
    }

    /// Returns the status of the first `length` bytes of a request for status: a chunk for each context, with up to
    /// `limit` extents.
    pub(super) fn push_status(
        self,
        contexts: &[StatusContext],
        status: Vec<Vec<StatusExtent>>,
        length: u64,
        limit: usize,
        output: &mut Output,
    ) {
        assert!(status.len() == contexts.len(), "each context has its status");
        for (index, (context, extents)) in contexts.iter().zip(status).enumerate() {
            let flags = if index + 1 == contexts.len() { REPLY_DONE } else { 0 };
            let safe = StatusExtent { length, flags: context.safe_flags() };
            self.push_context(flags, context_id(index), &merge(extents, safe, limit), output);
        }
    }

    /// Appends the chunk of one context.
    fn push_context(self, flags: u16, id: u32, extents: &[StatusExtent], output: &mut Output) {
        if self.headers == Headers::Extended {
            let head = ExtendedStatus { context: id.into(), count: (extents.len() as u32).into() };
            let descriptors: Vec<_> = extents
                .iter()
                .map(|extent| ExtendedStatusDescriptor {
                    length: extent.length.into(),
                    flags: u64::from(extent.flags).into(),
                })
                .collect();
            let parts = [head.as_bytes(), descriptors.as_bytes()];
            return self.push_chunk(flags, ChunkType::BlockStatusExt, &parts, 0, output);
        }
        let descriptors: Vec<_> = extents
            .iter()
            .map(|extent| StatusDescriptor {
                // Compact requests have lengths of 32 bits, and no extent is longer than the request.
                length: (extent.length as u32).into(),
                flags: extent.flags.into(),
            })
            .collect();
        let id = U32::new(id);
        let parts = [id.as_bytes(), descriptors.as_bytes()];
        self.push_chunk(flags, ChunkType::BlockStatus, &parts, 0, output);
    }

    fn push_simple(self, error: ErrorCode, output: &mut Output) {
        let reply = SimpleReply {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: error.0.into(),
            cookie: self.cookie.into(),
        };
        output.push(reply.as_bytes());
    }

    /// Appends the only chunk of a reply.
    fn push_last_chunk(
        self,
        chunk: ChunkType,
        parts: &[&[u8]],
        following: usize,
        output: &mut Output,
    ) {
        self.push_chunk(REPLY_DONE, chunk, parts, following, output);
    }

    /// Appends a chunk. `following` bytes of its payload follow the parts.
    fn push_chunk(
        self,
        flags: u16,
        chunk: ChunkType,
        parts: &[&[u8]],
        following: usize,
        output: &mut Output,
    ) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>() + following;
        let (flags, chunk, cookie) = (flags.into(), chunk.0.into(), self.cookie.into());
        if self.headers == Headers::Extended {
            let (offset, length) = (self.offset.into(), (length as u64).into());
            let magic = EXTENDED_REPLY_MAGIC.into();
            let head = ExtendedReplyChunk { magic, flags, chunk, cookie, offset, length };
            output.push(head.as_bytes());
        } else {
            let (magic, length) = (STRUCTURED_REPLY_MAGIC.into(), (length as u32).into());
            output.push(ReplyChunk { magic, flags, chunk, cookie, length }.as_bytes());
        }
        for part in parts {
            output.push(part);
        }
    }
}

/// Merges equal neighbours, and omits what exceeds the length of `safe`, or `limit` extents. Without extents, the
/// result is `safe`.
fn merge(extents: Vec<StatusExtent>, safe: StatusExtent, limit: usize) -> Vec<StatusExtent> {
    let mut length = safe.length;
    let mut merged: Vec<StatusExtent> = Vec::with_capacity(extents.len().min(limit));
    for extent in extents {
        let covered = extent.length.min(length);
        if covered == 0 {
            continue;
        }
        let is_full = merged.len() == limit;
        match merged.last_mut() {
            Some(last) if last.flags == extent.flags => last.length += covered,
            _ if is_full => break,
            _ => merged.push(StatusExtent { length: covered, flags: extent.flags }),
        }
        length -= covered;
    }
    if merged.is_empty() {
        merged.push(safe);
    }
    merged
}
