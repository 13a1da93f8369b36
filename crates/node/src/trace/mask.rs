//! Hides authentication data in a trace: the values of CHAP_R and CHAP_C. This works wherever the stream is divided,
//! into PDUs as well (RFC 7143 §6.2: the C bit). A value keeps its length, so that the PDUs stay valid.

use sarsen_wire::iscsi::BASIC_HEADER_LENGTH;

use super::capture::FlowDirection;

const KEYS: [&[u8]; 2] = [b"CHAP_R=", b"CHAP_C="];

/// The state of each direction.
#[derive(Default)]
pub(super) struct Mask {
    ways: [MaskState; 2],
}

/// The state of a direction that began between two PDUs. There are no digests before the end of the login.
#[derive(Default)]
struct MaskState {
    /// Number of bytes of this PDU that have arrived.
    at: usize,
    /// TotalAHSLength and DataSegmentLength (RFC 7143 §11.2.1).
    lengths: [u8; 4],
    /// Number of bytes of a key that matched. The two keys differ in one byte only.
    seen: usize,
    is_value: bool,
}

impl MaskState {
    /// Returns whether the next byte belongs to a text.
    fn is_text(&mut self, byte: u8) -> bool {
        let at = self.at;
        self.at += 1;
        if let Some(length) = at.checked_sub(4).and_then(|place| self.lengths.get_mut(place)) {
            *length = byte;
        }
        let [ahs_words, high, middle, low] = self.lengths;
        let begin = BASIC_HEADER_LENGTH + 4 * usize::from(ahs_words);
        let end = begin + u32::from_be_bytes([0, high, middle, low]) as usize;
        if self.at >= BASIC_HEADER_LENGTH && self.at >= end.next_multiple_of(4) {
            self.at = 0;
        }
        (begin..end).contains(&at)
    }

    fn hide(&mut self, byte: &mut u8) {
        if self.is_value {
            // RFC 7143 §6.1: a value ends with a byte of zero.
            self.is_value = *byte != 0;
            if self.is_value {
                *byte = b'*';
            }
            return;
        }
        let goes_on = |seen: usize| KEYS.iter().any(|key| key[seen] == *byte);
        self.seen = match (goes_on(self.seen), goes_on(0)) {
            (true, _) => self.seen + 1,
            (false, true) => 1,
            (false, false) => 0,
        };
        if self.seen == KEYS[0].len() {
            (self.seen, self.is_value) = (0, true);
        }
    }
}

impl Mask {
    pub(super) fn hide(&mut self, way: FlowDirection, bytes: &mut [u8]) {
        let state = &mut self.ways[way as usize];
        for byte in bytes {
            if state.is_text(*byte) {
                state.hide(byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns login requests with a text that is divided at `cut`.
    fn pdus(text: &[u8], cut: usize) -> Vec<u8> {
        let (first, second) = text.split_at(cut);
        let mut bytes = Vec::new();
        for part in [first, second] {
            let mut header = [0; BASIC_HEADER_LENGTH];
            header[0] = 0x43;
            header[7] = part.len() as u8;
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(part);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn values_that_prove_something_are_hidden_however_the_stream_is_cut() {
        let text = b"CHAP_N=web\0CHAP_R=0x1234\0CHAP_I=7\0CHAP_C=0bAA\0CHAP_A=5\0";
        let hidden = b"CHAP_N=web\0CHAP_R=******\0CHAP_I=7\0CHAP_C=****\0CHAP_A=5\0";
        for cut in 0..text.len() {
            let (stream, hidden) = (pdus(text, cut), pdus(hidden, cut));
            for cut in 0..stream.len() {
                let mut mask = Mask::default();
                let mut copy = stream.clone();
                let (first, second) = copy.split_at_mut(cut);
                mask.hide(FlowDirection::ToTarget, first);
                mask.hide(FlowDirection::ToInitiator, &mut pdus(b"CHAP_R=", 3));
                mask.hide(FlowDirection::ToTarget, second);
                assert_eq!(copy, hidden, "cut at {cut}");
            }
        }
    }
}
