//! CHAP (RFC 1994 as RFC 7143 §12.1.3 uses it): the part that both ends share. It has the algorithms, the challenges,
//! the responses and their text form. The login decides which side sends which key, and when.

use std::fmt;

use md5::Md5;
use sarsen_wire::iscsi::text;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use sha3::Sha3_256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize as _, ZeroizeOnDrop};

/// Maximum length of a challenge or response, in bytes (RFC 7143 §12.1.3).
pub const LENGTH_LIMIT: usize = 1024;
/// Length of our challenges in bytes. It equals the length of the longest response, so that every challenge is equally
/// hard to guess.
pub const CHALLENGE_LENGTH: usize = 32;

/// A secret that is never logged and is wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for Secret {}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Name and secret with which one side authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// CHAP_N.
    pub name: String,
    /// The secret that both sides know.
    pub secret: Secret,
}

/// A hash algorithm for responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// MD5, which every implementation supports.
    Md5,
    /// SHA1.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA3-256.
    Sha3,
}

impl Algorithm {
    /// All algorithms in the order of an offer: the strongest first.
    pub const ALL: [Self; 4] = [Self::Sha3, Self::Sha256, Self::Sha1, Self::Md5];

    /// Returns the number of the algorithm in CHAP_A (IANA, "PPP Authentication Algorithms").
    pub const fn number(self) -> u8 {
        match self {
            Self::Md5 => 5,
            Self::Sha1 => 6,
            Self::Sha256 => 7,
            Self::Sha3 => 8,
        }
    }

    /// Returns the algorithm with this number in CHAP_A, or `None` if it is not supported.
    pub fn parse(number: &str) -> Option<Self> {
        let number = text::number(number)?;
        Self::ALL.into_iter().find(|algorithm| u64::from(algorithm.number()) == number)
    }

    /// Computes the response to a challenge (RFC 1994 §4.1).
    pub fn response(self, challenge: &Challenge, secret: &Secret) -> Vec<u8> {
        let identifier = [challenge.identifier];
        let parts = [&identifier[..], secret.0.as_bytes(), &challenge.bytes];
        match self {
            Self::Md5 => digest::<Md5>(parts),
            Self::Sha1 => digest::<Sha1>(parts),
            Self::Sha256 => digest::<Sha256>(parts),
            Self::Sha3 => digest::<Sha3_256>(parts),
        }
    }

    /// Returns whether `response` is the correct response to the challenge. The comparison takes constant time, so that
    /// its duration does not reveal the position of a wrong byte.
    pub fn verify(self, challenge: &Challenge, secret: &Secret, response: &[u8]) -> bool {
        self.response(challenge, secret).ct_eq(response).into()
    }
}

/// Formats algorithms as the list in CHAP_A.
pub fn list(algorithms: &[Algorithm]) -> String {
    let numbers: Vec<_> = algorithms.iter().map(|of| of.number().to_string()).collect();
    numbers.join(",")
}

fn digest<D: Digest>(parts: [&[u8]; 3]) -> Vec<u8> {
    let mut hash = D::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().to_vec()
}

/// A challenge that one side sends to the other. It has random bytes and is used once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// CHAP_I.
    pub identifier: u8,
    /// CHAP_C.
    pub bytes: Vec<u8>,
}

impl Challenge {
    /// Creates a challenge from random bytes. The first byte is the identifier.
    pub fn new([identifier, bytes @ ..]: [u8; 1 + CHALLENGE_LENGTH]) -> Self {
        Self { identifier, bytes: bytes.to_vec() }
    }
}

/// Encodes bytes for CHAP_C and CHAP_R, in hexadecimal.
pub fn encode(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    ["0x".to_owned()].into_iter().chain(digits).collect()
}

/// Decodes a value of CHAP_C or CHAP_R: hexadecimal after `0x`, base64 after `0b` (RFC 7143 §6.1). Returns `None` if it
/// is neither, is empty, or is longer than [`LENGTH_LIMIT`].
pub fn decode(value: &str) -> Option<Vec<u8>> {
    let (base, digits) = value.split_at_checked(2)?;
    // The limit in hexadecimal digits. It also has room for the last group of base64.
    if digits.len() > 2 * LENGTH_LIMIT {
        return None;
    }
    let bytes = match base {
        "0x" | "0X" => hexadecimal(digits)?,
        "0b" | "0B" => base64(digits)?,
        _ => return None,
    };
    (!bytes.is_empty() && bytes.len() <= LENGTH_LIMIT).then_some(bytes)
}

/// Decodes hexadecimal digits. If their number is odd, the first byte has one digit.
fn hexadecimal(digits: &str) -> Option<Vec<u8>> {
    let values: Option<Vec<u8>> =
        digits.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let values = values?;
    let (first, pairs) = values.split_at(values.len() % 2);
    let pairs = pairs.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]);
    Some(first.iter().copied().chain(pairs).collect())
}

/// Decodes base64 (RFC 4648 §4). The padding is optional. Unused bits must be zero.
fn base64(text: &str) -> Option<Vec<u8>> {
    let unpadded = text.trim_end_matches('=');
    let padding = text.len() - unpadded.len();
    if padding > 2 || (padding > 0 && !text.len().is_multiple_of(4)) {
        return None;
    }
    let mut bytes = Vec::with_capacity(unpadded.len() * 3 / 4);
    let (mut bits, mut count) = (0u32, 0);
    for letter in unpadded.bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    // Six unused bits mean one character too many.
    (count < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The output of `printf '\x07%s%s' SECRET CHALLENGE | openssl dgst`.
    #[test]
    fn rfc1994_4_1_responses_are_those_of_another_implementation() {
        let challenge = Challenge { identifier: 7, bytes: b"0123456789abcdef".to_vec() };
        for (algorithm, wanted) in [
            (Algorithm::Md5, "547d96ebed9cf0a79a46deb6e3ac5bf9"),
            (Algorithm::Sha1, "5f6797330643daf9e4f3e7c0ea6e10ec582faf33"),
            (Algorithm::Sha256, "074f5c0019d689a6352d4a7504add9cea345f95b0634a9e340e4828889d77381"),
            (Algorithm::Sha3, "846084f9b8378e18a23d8119f4d4bb81e84f13cc43c59a94a763c32cf02850d1"),
        ] {
            let response = algorithm.response(&challenge, &secret("a secret of ours"));
            assert_eq!(encode(&response), format!("0x{wanted}"), "{algorithm:?}");
            assert!(algorithm.verify(&challenge, &secret("a secret of ours"), &response));
            assert!(!algorithm.verify(&challenge, &secret("another secret"), &response));
            let shorter = &response[..response.len() - 1];
            assert!(!algorithm.verify(&challenge, &secret("a secret of ours"), shorter));
        }
    }

    #[test]
    fn a_secret_is_wiped_when_it_is_dropped() {
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<Secret>();
    }

    #[test]
    fn algorithms_are_offered_the_strongest_first() {
        assert_eq!(list(&Algorithm::ALL), "8,7,6,5");
        assert_eq!(Algorithm::parse("7"), Some(Algorithm::Sha256));
        for other in ["", "4", "5,6", "263", "x"] {
            assert_eq!(Algorithm::parse(other), None, "{other}");
        }
    }

    #[test]
    fn rfc7143_6_1_binary_values_are_hexadecimal_or_base64() {
        for text in ["0x0aFF10", "0Xaff10", "0bCv8Q", "0BCv8Q"] {
            assert_eq!(decode(text), Some(vec![0x0a, 0xff, 0x10]), "{text}");
        }
        assert_eq!(decode("0bCg=="), Some(vec![0x0a]));
        assert_eq!(decode("0bCg"), Some(vec![0x0a]));
        for wrong in [
            "",
            "0",
            "0x",
            "0b",
            "ff",
            "10",
            "0xgg",
            "0bCh==",
            "0bC===",
            "0bC",
            "0bCv8Q====",
            "0bCg=",
            "0b=",
            "0bC v8",
            "\u{e4}0x",
            "0x\u{e4}",
        ] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn rfc7143_12_1_3_values_end_at_1024_bytes() {
        assert_eq!(decode(&encode(&[1; 1024])).map(|bytes| bytes.len()), Some(1024));
        assert_eq!(decode(&encode(&[1; 1025])), None);
        assert!(decode(&format!("0b{}", "AAAA".repeat(341))).is_some());
        assert_eq!(decode(&format!("0b{}", "AAAA".repeat(342))), None);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let credentials = Credentials { name: "me".to_owned(), secret: secret("hidden") };
        assert!(!format!("{credentials:?}").contains("hidden"));
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded(bytes in prop::collection::vec(any::<u8>(), 1..=1024)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }

        #[test]
        fn arbitrary_values_never_cause_a_panic(value in "(0x|0b|0X|0B)?.{0,40}") {
            let _ = decode(&value);
        }
    }
}
