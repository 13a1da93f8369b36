//! Hides what proves who somebody is: the values of CHAP_R and CHAP_C, wherever the stream is cut. Their
//! length stays, so that the PDUs around them make sense.

use super::capture::Way;

const KEYS: [&[u8]; 2] = [b"CHAP_R=", b"CHAP_C="];

/// How far each direction is within a key, or that it is within a value.
#[derive(Default)]
pub(super) struct Mask {
    ways: [State; 2],
}

#[derive(Default)]
struct State {
    /// Bytes of a key that were seen; both keys differ in one byte only.
    seen: usize,
    is_value: bool,
}

impl Mask {
    pub(super) fn hide(&mut self, way: Way, bytes: &mut [u8]) {
        let state = &mut self.ways[way as usize];
        for byte in bytes {
            if state.is_value {
                // RFC 7143 §6.1: a value ends with a byte of zero.
                state.is_value = *byte != 0;
                if state.is_value {
                    *byte = b'*';
                }
                continue;
            }
            let goes_on = |seen: usize| KEYS.iter().any(|key| key[seen] == *byte);
            state.seen = match (goes_on(state.seen), goes_on(0)) {
                (true, _) => state.seen + 1,
                (false, true) => 1,
                (false, false) => 0,
            };
            if state.seen == KEYS[0].len() {
                *state = State { seen: 0, is_value: true };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_prove_something_are_hidden_however_the_stream_is_cut() {
        let text = b"CHAP_N=web\0CHAP_R=0x1234\0CHAP_I=7\0CHAP_C=0bAA\0CHAP_A=5\0";
        let hidden = b"CHAP_N=web\0CHAP_R=******\0CHAP_I=7\0CHAP_C=****\0CHAP_A=5\0";
        for cut in 0..text.len() {
            let mut mask = Mask::default();
            let mut copy = text.to_vec();
            let (first, second) = copy.split_at_mut(cut);
            mask.hide(Way::ToTarget, first);
            mask.hide(Way::ToInitiator, &mut b"CHAP_R=".to_vec());
            mask.hide(Way::ToTarget, second);
            assert_eq!(copy, hidden, "cut at {cut}");
        }
    }
}
