//! The framer: for all bytes, and wherever they are cut, it returns the same PDUs and the same final error. A valid
//! stream of PDUs gives exactly those PDUs, including digests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sarsen_proto::iscsi::{Frame, Framer, FramingError, Landing, digest};
use sarsen_wire::iscsi::{BasicHeader, Opcode, RawHeader, U24, padding};

const HEADER_DIGEST: u8 = 1;
const DATA_DIGEST: u8 = 2;
/// The rest of the input describes PDUs instead of being the stream itself.
const MADE: u8 = 4;
/// One bit of the generated stream is flipped.
const DAMAGED: u8 = 8;
const DISCARD: u8 = 16;
const SHORT_LIMIT: u8 = 32;

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Pdu { header: RawHeader, additional: Vec<u8>, data: Vec<u8>, digest_valid: bool },
    End(FramingError),
}

fn framer(mode: u8) -> Framer {
    let mut framer = Framer::default();
    framer.set_digests(mode & HEADER_DIGEST != 0, mode & DATA_DIGEST != 0);
    if mode & SHORT_LIMIT != 0 {
        framer.set_max_data_segment_length(512);
    }
    framer
}

/// Feeds `stream` in pieces whose lengths come from `cuts`, repeatedly; an empty `cuts` feeds it whole.
fn run(mode: u8, stream: &[u8], cuts: &[u8]) -> Vec<Seen> {
    let mut framer = framer(mode);
    let mut seen = Vec::new();
    let mut rest = stream;
    let mut turn = 0;
    while !rest.is_empty() {
        let length = match cuts {
            [] => rest.len(),
            cuts => (usize::from(cuts[turn % cuts.len()]) + 1).min(rest.len()),
        };
        let (mut piece, later) = rest.split_at(length);
        rest = later;
        turn += 1;
        // Every second piece goes directly into the segment's memory, as a driver may do.
        if turn % 2 == 0
            && !cuts.is_empty()
            && let Some(landing) = framer.landing()
        {
            let count = landing.len().min(piece.len());
            landing[..count].copy_from_slice(&piece[..count]);
            framer.landed(count);
            piece = &piece[count..];
        }
        loop {
            match framer.advance(&mut piece) {
                Ok(Frame::Starved) => break,
                Ok(Frame::Header) => framer.place(match mode & DISCARD {
                    0 => Landing::Collect,
                    _ => Landing::Discard,
                }),
                Ok(Frame::Segment { segment, digest_valid }) => seen.push(Seen::Pdu {
                    header: *framer.header(),
                    additional: framer.additional_headers().to_vec(),
                    data: segment.bytes().to_vec(),
                    digest_valid,
                }),
                Err(error) => {
                    seen.push(Seen::End(error));
                    return seen;
                }
            }
        }
        assert!(piece.is_empty(), "a starved framer left bytes");
    }
    seen
}

/// Returns PDUs from the input, and the stream that contains them.
fn make(mode: u8, mut input: &[u8]) -> (Vec<Seen>, Vec<u8>) {
    let (mut expected, mut stream) = (Vec::new(), Vec::new());
    while let [opcode, words, length, rest @ ..] = input {
        let words = usize::from(words % 8);
        let length = usize::from(*length).min(rest.len());
        let (data, rest) = rest.split_at(length);
        input = rest;
        let additional = vec![*opcode; words * 4];
        let mut basic = BasicHeader::from(RawHeader::with_opcode(Opcode(*opcode)));
        basic.total_ahs_length = words as u8;
        basic.data_segment_length = U24::new(length as u32);
        let header = RawHeader::from(basic);
        let start = stream.len();
        stream.extend_from_slice(&header.0);
        stream.extend_from_slice(&additional);
        if mode & HEADER_DIGEST != 0 {
            stream.extend(digest::crc32c(&stream[start..]));
        }
        let start = stream.len();
        stream.extend_from_slice(data);
        stream.resize(stream.len() + padding(length), *opcode);
        if mode & DATA_DIGEST != 0 && length > 0 {
            stream.extend(digest::crc32c(&stream[start..]));
        }
        let data = if mode & DISCARD == 0 { data.to_vec() } else { Vec::new() };
        expected.push(Seen::Pdu { header, additional, data, digest_valid: true });
    }
    (expected, stream)
}

fuzz_target!(|input: &[u8]| {
    let [mode, cut_count, rest @ ..] = input else { return };
    let (cuts, rest) = rest.split_at(usize::from(cut_count % 4).min(rest.len()));
    let mode = *mode;
    if mode & MADE == 0 {
        assert_eq!(run(mode, rest, cuts), run(mode, rest, &[]));
        return;
    }
    // The lengths are below every limit.
    let (expected, mut stream) = make(mode, rest);
    if mode & DAMAGED == 0 {
        assert_eq!(run(mode, &stream, cuts), expected);
        return;
    }
    if stream.is_empty() {
        return;
    }
    let place = cuts.iter().fold(0, |place, &cut| place * 251 + usize::from(cut)) % stream.len();
    stream[place] ^= 1 << (cut_count / 8 % 8);
    let seen = run(mode, &stream, cuts);
    assert_eq!(seen, run(mode, &stream, &[]));
    // With both digests, damaged data is never accepted.
    if mode & HEADER_DIGEST != 0 && mode & DATA_DIGEST != 0 {
        let good = seen.iter().zip(&expected).take_while(|(one, other)| one == other).count();
        assert!(good < expected.len(), "a flipped bit went unseen");
        match seen.get(good) {
            None | Some(Seen::End(_) | Seen::Pdu { digest_valid: false, .. }) => {}
            Some(taken) => panic!("taken for good: {taken:?}"),
        }
    }
});
