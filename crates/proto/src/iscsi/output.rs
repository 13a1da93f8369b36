//! The output queue. Headers and small payloads are copied into one arena; larger payloads are kept by reference. One
//! vectored send then takes everything that is ready.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;

use sarsen_block::{Data, Piece};
use sarsen_wire::iscsi::{BasicHeader, DIGEST_LENGTH, RawHeader, U24, padding};

use super::digest;
use crate::command_memory::Charge;

/// Maximum length of payloads that are copied. A copy is cheaper than an iovec for each (29 % less CPU at 512 B).
const COPY_LIMIT: usize = 1024;
/// An empty arena of more than this capacity is freed.
const ARENA_KEPT: usize = 4096;
/// Number of sent bytes at the front of an arena at which they are removed. This limits an arena that is never empty.
const ARENA_SENT_LIMIT: usize = 64 * 1024;

/// A queue of bytes to send to the peer.
#[derive(Default)]
pub struct Output {
    header_digest: bool,
    data_digest: bool,
    /// Bytes of all `Run::Arena`, in order; the first ones may have been sent.
    arena: Vec<u8>,
    /// Ranges of the arena and of payloads to send.
    runs: VecDeque<Run>,
    queued: usize,
}

enum Run {
    Arena { start: usize, length: usize },
    Payload { data: HeldData, offset: usize, length: usize },
}

/// Data of which a PDU sends a range.
enum HeldData {
    Alone(Charged),
    /// Other PDUs may send ranges of it, too.
    Shared(Arc<Charged>),
}

/// Data, and the charge for its memory until it is dropped.
struct Charged {
    data: Data,
    _charge: Option<Charge>,
}

impl Deref for HeldData {
    type Target = Data;

    fn deref(&self) -> &Data {
        match self {
            Self::Alone(charged) => &charged.data,
            Self::Shared(charged) => &charged.data,
        }
    }
}

impl Run {
    fn length(&self) -> usize {
        match self {
            Self::Arena { length, .. } | Self::Payload { length, .. } => *length,
        }
    }

    /// Removes the first `count` bytes, which were sent.
    fn shorten(&mut self, count: usize) {
        let (Self::Arena { start, length } | Self::Payload { offset: start, length, .. }) = self;
        *start += count;
        *length -= count;
    }
}

/// A payload of which PDUs send ranges.
#[derive(Clone)]
pub struct Payload(Arc<Charged>);

impl Payload {
    /// Returns the bytes of memory that the payload uses.
    pub(crate) fn memory(&self) -> usize {
        self.0.data.memory()
    }

    /// Returns the data. It is copied if PDUs with this data still wait.
    pub(crate) fn into_data(self) -> Data {
        match Arc::try_unwrap(self.0) {
            Ok(Charged { data, .. }) => data,
            Err(shared) => {
                let mut copy = sarsen_block::Buffer::for_overwrite(shared.data.len());
                shared.data.copy_out(0, &mut copy);
                Data::Buffer(copy)
            }
        }
    }
}

impl Output {
    /// Sets which digests are in use from the next PDU on.
    pub fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// Discards all bytes that wait to be sent.
    pub fn clear(&mut self) {
        self.arena.clear();
        self.runs.clear();
        self.queued = 0;
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Returns whether no bytes wait to be sent.
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }

    /// Appends a PDU with a short data segment. The header's length field is set here.
    pub fn push(&mut self, header: impl Into<RawHeader>, segment: &[u8]) {
        let start = self.push_header(header.into(), segment.len());
        let segment_start = self.arena.len();
        self.arena.extend_from_slice(segment);
        self.finish_arena(start, segment_start);
    }

    /// Returns the bytes of memory that headers and short payloads use.
    pub(crate) const fn arena_memory(&self) -> usize {
        self.arena.capacity()
    }

    /// Prepares `data` to be sent by [`Self::push_payload`].
    pub fn payload(&self, data: Data) -> Payload {
        self.charged_payload(data, None)
    }

    /// Prepares `data` like [`Self::payload`], with the charge for its memory.
    pub(crate) fn charged_payload(&self, data: Data, charge: Option<Charge>) -> Payload {
        Payload(Arc::new(self.charged(data, charge)))
    }

    /// Copies shared memory if a data digest is in use: the digest must match the bytes that are sent.
    #[inline]
    pub(crate) fn unshare_for_digest(&self, data: &mut Data) {
        if self.data_digest && matches!(data, Data::Shared { .. }) {
            *data = Data::Buffer(std::mem::replace(data, Data::empty()).into_buffer());
        }
    }

    #[inline]
    fn charged(&self, mut data: Data, charge: Option<Charge>) -> Charged {
        self.unshare_for_digest(&mut data);
        Charged { data, _charge: charge }
    }

    /// Appends a PDU whose data segment is all of `data`.
    pub(crate) fn push_data(
        &mut self,
        header: impl Into<RawHeader>,
        data: Data,
        charge: Option<Charge>,
    ) {
        match data.len() {
            length if length <= COPY_LIMIT => self.push_copy(header.into(), &data, 0, length),
            length => {
                let hold = HeldData::Alone(self.charged(data, charge));
                self.push_hold(header.into(), hold, 0, length);
            }
        }
    }

    /// Appends a PDU whose data segment is `length` bytes of `payload` from `offset`.
    pub fn push_payload(
        &mut self,
        header: impl Into<RawHeader>,
        payload: &Payload,
        offset: usize,
        length: usize,
    ) {
        if length <= COPY_LIMIT {
            self.push_copy(header.into(), &payload.0.data, offset, length);
        } else {
            self.push_hold(header.into(), HeldData::Shared(payload.0.clone()), offset, length);
        }
    }

    fn push_copy(&mut self, header: RawHeader, data: &Data, offset: usize, length: usize) {
        let start = self.push_header(header, length);
        let segment_start = self.arena.len();
        self.arena.resize(segment_start + length, 0);
        data.copy_out(offset, &mut self.arena[segment_start..]);
        self.finish_arena(start, segment_start);
    }

    fn push_hold(&mut self, header: RawHeader, data: HeldData, offset: usize, length: usize) {
        let start = self.push_header(header, length);
        self.note_arena(start);
        let digest = self.data_digest.then(|| payload_digest(&data, offset, length));
        self.runs.push_back(Run::Payload { data, offset, length });
        self.queued += length;
        let pad = padding(length);
        if pad > 0 || digest.is_some() {
            let start = self.arena.len();
            self.arena.resize(start + pad, 0);
            self.arena.extend_from_slice(digest.as_ref().map_or(&[], |digest| digest));
            self.note_arena(start);
        }
    }

    /// Writes a header into the arena. Returns its offset.
    #[inline]
    fn push_header(&mut self, header: RawHeader, segment_length: usize) -> usize {
        let mut basic = BasicHeader::from(header);
        basic.data_segment_length = U24::new(segment_length as u32);
        let header = RawHeader::from(basic);
        let start = self.arena.len();
        self.arena.extend_from_slice(&header.0);
        if self.header_digest {
            self.arena.extend_from_slice(&digest::crc32c(&header.0));
        }
        start
    }

    /// Adds padding and digest to the data in the arena from `segment_start`. Queues its PDU, which begins at `start`.
    #[inline]
    fn finish_arena(&mut self, start: usize, segment_start: usize) {
        let length = self.arena.len() - segment_start;
        if length > 0 {
            self.arena.resize(segment_start + length + padding(length), 0);
            if self.data_digest {
                let digest: [u8; DIGEST_LENGTH] = digest::crc32c(&self.arena[segment_start..]);
                self.arena.extend_from_slice(&digest);
            }
        }
        self.note_arena(start);
    }

    /// Queues the arena's bytes from `start` to its end.
    #[inline]
    fn note_arena(&mut self, start: usize) {
        let added = self.arena.len() - start;
        self.queued += added;
        if let Some(Run::Arena { start: first, length }) = self.runs.back_mut()
            && *first + *length == start
        {
            *length += added;
            return;
        }
        self.runs.push_back(Run::Arena { start, length: added });
    }

    /// Collects the first pieces to send, with a maximum of `limit`.
    pub fn pieces<'a>(&'a self, into: &mut Vec<Piece<'a>>, limit: usize) {
        for run in &self.runs {
            if into.len() >= limit {
                return;
            }
            match run {
                Run::Arena { start, length } => {
                    into.push(Piece::Bytes(&self.arena[*start..start + length]));
                }
                Run::Payload { data, offset, length } => {
                    let (mut at, end) = (*offset, offset + length);
                    while at < end && into.len() < limit {
                        let piece = data.piece(at, end - at);
                        at += match &piece {
                            Piece::Bytes(bytes) => bytes.len(),
                            Piece::Shared { length, .. } => *length,
                        };
                        into.push(piece);
                    }
                }
            }
        }
    }

    /// Notes that `count` bytes of the pieces were sent.
    pub fn sent(&mut self, mut count: usize) {
        self.queued -= count;
        while let Some(first) = self.runs.front()
            && count >= first.length()
        {
            count -= first.length();
            self.runs.pop_front();
        }
        match self.runs.front_mut() {
            Some(first) => {
                first.shorten(count);
                self.drop_sent_arena();
            }
            None => {
                self.arena.clear();
                self.arena.shrink_to(ARENA_KEPT);
            }
        }
    }

    fn drop_sent_arena(&mut self) {
        let first_arena = self.runs.iter().find_map(|run| match run {
            Run::Arena { start, .. } => Some(*start),
            Run::Payload { .. } => None,
        });
        let sent = first_arena.unwrap_or(self.arena.len());
        // Bytes are removed only if at least as many were sent as must be moved.
        if sent < ARENA_SENT_LIMIT.max(self.arena.len() - sent) {
            return;
        }
        self.arena.drain(..sent);
        for run in &mut self.runs {
            if let Run::Arena { start, .. } = run {
                *start -= sent;
            }
        }
    }
}

fn payload_digest(data: &Data, offset: usize, length: usize) -> [u8; DIGEST_LENGTH] {
    let pad = &[0; 3][..padding(length)];
    match data {
        Data::Buffer(buffer) if pad.is_empty() => digest::crc32c(&buffer[offset..offset + length]),
        Data::Buffer(buffer) => digest::crc32c_of(&[&buffer[offset..offset + length], pad]),
        other => {
            let mut bytes = vec![0; length + pad.len()];
            other.copy_out(offset, &mut bytes[..length]);
            digest::crc32c(&bytes)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sarsen_block::Buffer;
    use sarsen_wire::iscsi::Opcode;

    use super::super::{Frame, Framer, Landing};
    use super::*;

    fn drain(output: &mut Output, step: usize) -> Vec<u8> {
        let mut stream = Vec::new();
        while !output.is_empty() {
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 3);
            let mut bytes = Vec::new();
            for piece in pieces {
                match piece {
                    Piece::Bytes(slice) => bytes.extend_from_slice(slice),
                    Piece::Shared { .. } => unreachable!("not used here"),
                }
            }
            bytes.truncate(step);
            output.sent(bytes.len());
            stream.extend(bytes);
        }
        assert!(output.runs.is_empty());
        stream
    }

    proptest! {
        #[test]
        fn output_in_any_steps_equals_framer_input(
            payloads in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4000), 1..6),
            step in 1usize..5000, header_digest: bool, data_digest: bool,
        ) {
            let mut output = Output::default();
            output.set_digests(header_digest, data_digest);
            for bytes in &payloads {
                let payload = output.payload(Data::Buffer(Buffer::copy_of(bytes)));
                output.push_payload(RawHeader::with_opcode(Opcode::DataIn), &payload, 0, bytes.len());
                output.push(RawHeader::with_opcode(Opcode::NopIn), &bytes[..bytes.len() / 2]);
            }
            let stream = drain(&mut output, step);
            let mut framer = Framer::default();
            framer.set_digests(header_digest, data_digest);
            let mut input = &stream[..];
            let mut received = Vec::new();
            loop {
                match framer.advance(&mut input).expect("own PDUs are well-formed") {
                    Frame::Starved => break,
                    Frame::Header => framer.place(Landing::Collect),
                    Frame::Segment { segment, digest_valid } => {
                        prop_assert!(digest_valid);
                        received.push(segment.bytes().to_vec());
                    }
                }
            }
            let expected: Vec<Vec<u8>> = payloads
                .iter()
                .flat_map(|bytes| [bytes.clone(), bytes[..bytes.len() / 2].to_vec()])
                .collect();
            prop_assert_eq!(received, expected);
        }
    }

    #[test]
    fn an_arena_that_never_runs_empty_does_not_grow() {
        let mut output = Output::default();
        output.push(RawHeader::with_opcode(Opcode::NopIn), &[]);
        for _ in 0..10_000 {
            output.push(RawHeader::with_opcode(Opcode::NopIn), &[]);
            output.sent(48);
        }
        assert_eq!(output.len(), 48);
        assert!(output.arena.len() < 2 * ARENA_SENT_LIMIT, "{} bytes", output.arena.len());
    }

    #[test]
    fn zeroes_longer_than_a_run_are_sent_whole() {
        let mut output = Output::default();
        let payload = output.payload(Data::Zeroes(300_000));
        output.push_payload(RawHeader::with_opcode(Opcode::DataIn), &payload, 0, 300_000);
        assert_eq!(drain(&mut output, 100_000).len(), 48 + 300_000);
    }
}
