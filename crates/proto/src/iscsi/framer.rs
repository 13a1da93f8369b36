//! Cuts PDUs from a byte stream (RFC 7143 §11.2), for both ends.
//!
//! A PDU arrives in two steps. [`Frame::Header`] means that the header is complete and its digest is right. The owner
//! reads it and calls [`Framer::place`] to choose the memory for the data segment. [`Frame::Segment`] means that the
//! segment is complete and checked.
//!
//! While a segment is incomplete, [`Framer::landing`] returns the rest of its memory. The driver may receive directly
//! into it and report this with [`Framer::landed`], which avoids a copy.

use std::ops::{ControlFlow, Range};

use sarsen_block::Buffer;
use sarsen_wire::iscsi::{
    BASIC_HEADER_LENGTH, BasicHeader, DEFAULT_DATA_SEGMENT_LENGTH, DIGEST_LENGTH, RawHeader,
    padding,
};

use super::digest;

/// Maximum length of additional headers: an extended CDB of 260 bytes and a bidirectional length. RFC 7143 defines no
/// others.
pub const MAX_AHS_LENGTH: usize = 256;

/// The reason why the stream cannot be parsed any further. Each one ends the connection: ErrorRecoveryLevel 0 has no
/// resynchronisation (RFC 7143 §7.7, §7.9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FramingError {
    /// The header digest is wrong, so its length fields cannot be trusted.
    #[error("header digest error")]
    HeaderDigest,
    /// The peer sends a longer data segment than we declared.
    #[error("a data segment has {length} bytes; the declared maximum is {limit}")]
    SegmentTooLong {
        /// The length in the header.
        length: u32,
        /// MaxRecvDataSegmentLength.
        limit: u32,
    },
    /// Additional headers that are longer than the maximum.
    #[error("additional headers have {length} bytes, which is too many")]
    AhsTooLong {
        /// The length in the header.
        length: usize,
    },
}

/// The result of [`Framer::advance`].
#[derive(Debug)]
pub enum Frame {
    /// The input is consumed; more bytes are needed.
    Starved,
    /// A header is complete. The owner reads [`Framer::header`], then calls [`Framer::place`].
    Header,
    /// The data segment is complete. `digest_valid` is false if a data digest was in use and did not match. The bytes
    /// must not be used then.
    Segment {
        /// The bytes.
        segment: Segment,
        /// False if a data digest was in use and did not match.
        digest_valid: bool,
    },
}

/// The destination of a data segment.
#[derive(Debug)]
pub enum Landing {
    /// A buffer of the framer with the size of the segment.
    Collect,
    /// The owner's `buffer` from `offset` on. It must have room for the whole segment.
    Into {
        /// The memory, which is returned with the segment.
        buffer: Buffer,
        /// Offset of the first byte.
        offset: usize,
    },
    /// None: the data is discarded.
    Discard,
}

/// A complete data segment.
#[derive(Debug)]
pub enum Segment {
    /// The segment is in this buffer.
    Placed {
        /// The memory.
        buffer: Buffer,
        /// The range of the segment in the buffer.
        range: Range<usize>,
    },
    /// The segment was discarded, or it had no bytes and was to be collected.
    Nothing,
}

impl Segment {
    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Placed { buffer, range } => &buffer[range.clone()],
            Self::Nothing => &[],
        }
    }
}

enum FramerState {
    /// The framer receives the header, the additional headers and the header digest.
    Header,
    /// The owner has not chosen the destination of the segment yet.
    Placing,
    /// The framer receives the segment's bytes. `memory` is `None` when they are discarded.
    Data { memory: Option<Memory>, remaining: usize },
    /// The framer receives the padding and the data digest.
    Trailer { memory: Option<Memory>, filled: usize },
}

struct Memory {
    buffer: Buffer,
    start: usize,
    filled: usize,
    /// Whether the owner gets the memory. Otherwise only the digest needs it.
    is_wanted: bool,
}

/// Cuts PDUs from a byte stream. See the module.
pub struct Framer {
    header_digest: bool,
    data_digest: bool,
    max_data_segment_length: u32,
    state: FramerState,
    header: RawHeader,
    /// Number of bytes of header, additional headers and digest that have arrived.
    header_filled: usize,
    /// Additional headers and header digest; empty for most PDUs.
    extra: Vec<u8>,
    trailer: [u8; 3 + DIGEST_LENGTH],
}

impl Default for Framer {
    fn default() -> Self {
        Self {
            header_digest: false,
            data_digest: false,
            max_data_segment_length: DEFAULT_DATA_SEGMENT_LENGTH,
            state: FramerState::Header,
            header: RawHeader::ZERO,
            header_filled: 0,
            extra: Vec::new(),
            trailer: [0; 3 + DIGEST_LENGTH],
        }
    }
}

impl Framer {
    /// Returns whether the framer is between two PDUs: no PDU is incomplete.
    pub fn is_between_pdus(&self) -> bool {
        matches!(self.state, FramerState::Header) && self.header_filled == 0
    }

    /// Sets which digests are in use from the next PDU on.
    pub fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digest = header;
        self.data_digest = data;
    }

    /// Sets the MaxRecvDataSegmentLength that we declared.
    pub fn set_max_data_segment_length(&mut self, limit: u32) {
        self.max_data_segment_length = limit;
    }

    /// Returns the header of the PDU that is being received.
    pub fn header(&self) -> &RawHeader {
        &self.header
    }

    /// Returns the additional headers of this PDU.
    pub fn additional_headers(&self) -> &[u8] {
        let length = self.ahs_length();
        &self.extra[..length]
    }

    fn basic(&self) -> &BasicHeader {
        self.header.basic()
    }

    fn ahs_length(&self) -> usize {
        usize::from(self.basic().total_ahs_length) * 4
    }

    fn segment_length(&self) -> usize {
        self.basic().data_segment_length.value() as usize
    }

    fn trailer_length(&self) -> usize {
        let length = self.segment_length();
        let digest = if self.data_digest && length > 0 { DIGEST_LENGTH } else { 0 };
        padding(length) + digest
    }

    /// Returns the rest of the memory of an incomplete data segment.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        match &mut self.state {
            FramerState::Data { memory: Some(memory), remaining } => {
                Some(&mut memory.buffer[memory.filled..memory.filled + *remaining])
            }
            _ => None,
        }
    }

    /// Resets the framer at the end of the stream. Returns the memory of an incomplete segment, if the owner wants it.
    pub fn abandon(&mut self) -> Option<Buffer> {
        match std::mem::replace(&mut self.state, FramerState::Header) {
            FramerState::Data { memory, .. } | FramerState::Trailer { memory, .. } => {
                memory.filter(|memory| memory.is_wanted).map(|memory| memory.buffer)
            }
            FramerState::Header | FramerState::Placing => None,
        }
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        match &mut self.state {
            FramerState::Data { memory: Some(memory), remaining } => {
                memory.filled += count;
                *remaining -= count;
            }
            _ => assert_eq!(count, 0, "bytes landed where no segment was awaited"),
        }
    }

    /// Returns the memory of an incomplete data segment, if the owner wants it. Called when the stream has ended.
    pub fn take_memory(&mut self) -> Option<Buffer> {
        match &mut self.state {
            FramerState::Data { memory, .. } | FramerState::Trailer { memory, .. } => {
                memory.take().filter(|memory| memory.is_wanted).map(|memory| memory.buffer)
            }
            FramerState::Header | FramerState::Placing => None,
        }
    }

    /// Consumes bytes from the front of `input` until a header or a segment is complete, or no bytes are left.
    pub fn advance(&mut self, input: &mut &[u8]) -> Result<Frame, FramingError> {
        loop {
            match &mut self.state {
                FramerState::Header => {
                    if self.fill_header(input)?.is_break() {
                        return Ok(Frame::Starved);
                    }
                    self.state = FramerState::Placing;
                    return Ok(Frame::Header);
                }
                FramerState::Placing => panic!("the owner did not place the data segment"),
                FramerState::Data { memory, remaining } => {
                    if *remaining > 0 {
                        let taken = take(input, *remaining);
                        if let Some(memory) = memory {
                            memory.buffer[memory.filled..memory.filled + taken.len()]
                                .copy_from_slice(taken);
                            memory.filled += taken.len();
                        }
                        *remaining -= taken.len();
                        if *remaining > 0 {
                            return Ok(Frame::Starved);
                        }
                    }
                    let memory = memory.take();
                    if self.trailer_length() == 0 {
                        return Ok(self.finish(memory));
                    }
                    self.state = FramerState::Trailer { memory, filled: 0 };
                }
                FramerState::Trailer { .. } => {
                    let wanted = self.trailer_length();
                    let FramerState::Trailer { memory, filled } = &mut self.state else {
                        unreachable!()
                    };
                    let taken = take(input, wanted - *filled);
                    self.trailer[*filled..*filled + taken.len()].copy_from_slice(taken);
                    *filled += taken.len();
                    if *filled < wanted {
                        return Ok(Frame::Starved);
                    }
                    let memory = memory.take();
                    return Ok(self.finish(memory));
                }
            }
        }
    }

    /// Adds bytes to the header. Breaks if it needs more bytes.
    fn fill_header(&mut self, input: &mut &[u8]) -> Result<ControlFlow<()>, FramingError> {
        if self.header_filled < BASIC_HEADER_LENGTH {
            let taken = take(input, BASIC_HEADER_LENGTH - self.header_filled);
            self.header.0[self.header_filled..self.header_filled + taken.len()]
                .copy_from_slice(taken);
            self.header_filled += taken.len();
            if self.header_filled < BASIC_HEADER_LENGTH {
                return Ok(ControlFlow::Break(()));
            }
            self.extra.clear();
            if !self.header_digest {
                self.check_lengths()?;
            }
        }
        let ahs_length = self.ahs_length();
        if ahs_length > MAX_AHS_LENGTH {
            return Err(FramingError::AhsTooLong { length: ahs_length });
        }
        let digest_length = if self.header_digest { DIGEST_LENGTH } else { 0 };
        let extra_length = ahs_length + digest_length;
        if self.extra.len() < extra_length {
            let taken = take(input, extra_length - self.extra.len());
            self.extra.extend_from_slice(taken);
            if self.extra.len() < extra_length {
                return Ok(ControlFlow::Break(()));
            }
        }
        if self.header_digest {
            let (ahs, received) = self.extra.split_at(ahs_length);
            if digest::crc32c_of(&[&self.header.0, ahs]) != received {
                return Err(FramingError::HeaderDigest);
            }
            self.check_lengths()?;
        }
        self.header_filled = 0;
        Ok(ControlFlow::Continue(()))
    }

    fn check_lengths(&self) -> Result<(), FramingError> {
        let (length, limit) =
            (self.basic().data_segment_length.value(), self.max_data_segment_length);
        if length > limit {
            return Err(FramingError::SegmentTooLong { length, limit });
        }
        Ok(())
    }

    /// Sets the destination of the data segment of the last header.
    pub fn place(&mut self, landing: Landing) {
        assert!(matches!(self.state, FramerState::Placing), "no header is waiting for its segment");
        let length = self.segment_length();
        let memory = match landing {
            Landing::Collect if length == 0 => None,
            Landing::Collect => {
                let buffer = Buffer::for_overwrite(length);
                Some(Memory { buffer, start: 0, filled: 0, is_wanted: true })
            }
            Landing::Into { buffer, offset } => {
                assert!(offset + length <= buffer.len(), "the segment does not fit its landing");
                Some(Memory { buffer, start: offset, filled: offset, is_wanted: true })
            }
            // The check of the digest needs the bytes in memory.
            Landing::Discard if self.data_digest && length > 0 => {
                let buffer = Buffer::for_overwrite(length);
                Some(Memory { buffer, start: 0, filled: 0, is_wanted: false })
            }
            Landing::Discard => None,
        };
        self.state = FramerState::Data { memory, remaining: length };
    }

    fn finish(&mut self, memory: Option<Memory>) -> Frame {
        self.state = FramerState::Header;
        let Some(Memory { buffer, start, filled, is_wanted }) = memory else {
            return Frame::Segment { segment: Segment::Nothing, digest_valid: true };
        };
        let range = start..filled;
        let digest_valid = !self.data_digest || range.is_empty() || {
            let pad = padding(range.len());
            let received = &self.trailer[pad..pad + DIGEST_LENGTH];
            let computed = match pad {
                0 => digest::crc32c(&buffer[range.clone()]),
                pad => digest::crc32c_of(&[&buffer[range.clone()], &self.trailer[..pad]]),
            };
            computed == received
        };
        let segment = if is_wanted { Segment::Placed { buffer, range } } else { Segment::Nothing };
        Frame::Segment { segment, digest_valid }
    }
}

/// Removes up to `wanted` bytes from the front of `input` and returns them.
fn take<'a>(input: &mut &'a [u8], wanted: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(wanted.min(input.len()));
    *input = rest;
    taken
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sarsen_wire::iscsi::{Opcode, U24};

    use super::*;

    fn encode(data: &[u8], ahs: &[u8], header_digest: bool, data_digest: bool) -> Vec<u8> {
        let mut basic = BasicHeader::from(RawHeader::with_opcode(Opcode::NopOut));
        basic.data_segment_length = U24::new(data.len() as u32);
        basic.total_ahs_length = (ahs.len() / 4) as u8;
        let mut out = RawHeader::from(basic).0.to_vec();
        out.extend(ahs);
        if header_digest {
            out.extend(digest::crc32c(&out));
        }
        let start = out.len();
        out.extend(data);
        out.resize(out.len() + padding(data.len()), 0);
        if data_digest && !data.is_empty() {
            out.extend(digest::crc32c(&out[start..]));
        }
        out
    }

    /// Feeds `stream` in pieces that end at `cuts`. Returns each PDU's additional headers and data.
    fn run(framer: &mut Framer, stream: &[u8], cuts: &[usize], use_landing: bool) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        for window in cuts.windows(2) {
            let mut input = &stream[window[0]..window[1]];
            if use_landing && let Some(landing) = framer.landing() {
                let count = landing.len().min(input.len());
                landing[..count].copy_from_slice(&input[..count]);
                input = &input[count..];
                framer.landed(count);
            }
            loop {
                match framer.advance(&mut input).expect("well-formed") {
                    Frame::Starved => break,
                    Frame::Header => framer.place(Landing::Collect),
                    Frame::Segment { segment, digest_valid } => {
                        assert!(digest_valid);
                        let ahs = framer.additional_headers().to_vec();
                        found.push([&ahs, segment.bytes()].concat());
                    }
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn any_split_of_the_stream_gives_the_same_pdus(
            pdus in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..300), 0usize..8), 1..6),
            cuts in prop::collection::vec(any::<usize>(), 0..20),
            header_digest: bool, data_digest: bool, use_landing: bool,
        ) {
            let mut stream = Vec::new();
            let mut expected = Vec::new();
            for (data, words) in &pdus {
                let ahs = vec![7; words * 4];
                stream.extend(encode(data, &ahs, header_digest, data_digest));
                expected.push([&ahs[..], data].concat());
            }
            let mut framer = Framer::default();
            framer.set_digests(header_digest, data_digest);
            prop_assert_eq!(run(&mut framer, &stream, &cuts, use_landing), expected);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000), header_digest: bool) {
            let mut framer = Framer::default();
            framer.set_digests(header_digest, true);
            let mut input = &bytes[..];
            while let Ok(frame) = framer.advance(&mut input) {
                match frame {
                    Frame::Starved => break,
                    Frame::Header => framer.place(Landing::Discard),
                    Frame::Segment { .. } => {}
                }
            }
        }
    }

    #[test]
    fn discarded_data_is_checked_but_not_delivered() {
        let mut stream = encode(b"data", &[], false, true);
        for is_valid in [true, false] {
            let mut framer = Framer::default();
            framer.set_digests(false, true);
            let mut input = &stream[..];
            assert!(matches!(framer.advance(&mut input), Ok(Frame::Header)));
            framer.place(Landing::Discard);
            let frame = framer.advance(&mut input).expect("well-formed");
            let Frame::Segment { segment: Segment::Nothing, digest_valid } = frame else {
                panic!("{frame:?}")
            };
            assert_eq!(digest_valid, is_valid);
            stream[BASIC_HEADER_LENGTH] ^= 1;
        }
    }

    #[test]
    fn rfc7143_7_9_a_wrong_header_digest_ends_the_stream() {
        let mut stream = encode(b"data", &[], true, false);
        stream[20] ^= 1;
        let mut framer = Framer::default();
        framer.set_digests(true, false);
        let error = framer.advance(&mut &stream[..]).expect_err("digest is wrong");
        assert_eq!(error, FramingError::HeaderDigest);
    }

    #[test]
    fn rfc7143_7_8_wrong_data_digest_is_reported_and_stream_continues() {
        let mut stream = encode(b"data!", &[], false, true);
        stream[50] ^= 1;
        stream.extend(encode(b"next", &[], false, true));
        let mut framer = Framer::default();
        framer.set_digests(false, true);
        let mut input = &stream[..];
        let mut verdicts = Vec::new();
        loop {
            match framer.advance(&mut input).expect("framing holds") {
                Frame::Starved => break,
                Frame::Header => framer.place(Landing::Discard),
                Frame::Segment { digest_valid, .. } => verdicts.push(digest_valid),
            }
        }
        assert_eq!(verdicts, [false, true]);
    }

    #[test]
    fn rfc7143_13_12_a_segment_longer_than_declared_is_refused() {
        let stream = encode(&[0; 8196], &[], false, false);
        let error = Framer::default().advance(&mut &stream[..]).expect_err("too long");
        assert_eq!(error, FramingError::SegmentTooLong { length: 8196, limit: 8192 });
    }
}
