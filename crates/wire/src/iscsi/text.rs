//! Text keys: `key=value` pairs, each ended by a zero byte (RFC 7143 §6.1).

use core::str;

/// Maximum length of a key name (RFC 7143 §6.1).
pub const MAX_KEY_LENGTH: usize = 63;
/// Maximum length of a value unless its key has another limit (RFC 7143 §6.1).
pub const MAX_VALUE_LENGTH: usize = 255;

/// The response to an unknown key.
pub const NOT_UNDERSTOOD: &str = "NotUnderstood";
/// The response to a key that does not apply.
pub const IRRELEVANT: &str = "Irrelevant";
/// The response to an invalid value.
pub const REJECT: &str = "Reject";
/// The value of a list without a choice.
pub const NONE: &str = "None";

/// The reasons why text is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextError {
    /// Bytes that are not UTF-8.
    Encoding,
    /// A pair without `=`, or with an empty or over-long key.
    Form,
}

/// Returns the key-value pairs of one negotiation's text, in order. Skips empty strings between zero bytes.
pub fn pairs(text: &[u8]) -> impl Iterator<Item = Result<(&str, &str), TextError>> {
    text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()).map(|pair| {
        let pair = str::from_utf8(pair).map_err(|_| TextError::Encoding)?;
        match pair.split_once('=') {
            Some((key, value)) if !key.is_empty() && key.len() <= MAX_KEY_LENGTH => {
                Ok((key, value))
            }
            _ => Err(TextError::Form),
        }
    })
}

/// Parses a numerical value: decimal, or hexadecimal after `0x` (RFC 7143 §6.1).
pub fn number(value: &str) -> Option<u64> {
    let (digits, radix) = match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (value, 10),
    };
    let well_formed = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    well_formed.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

/// Parses a boolean value.
pub fn boolean(value: &str) -> Option<bool> {
    match value {
        "Yes" => Some(true),
        "No" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_6_1_pairs_end_with_a_zero_byte() {
        let mut found = pairs(b"A=1\0B=\0\0C=x=y\0");
        assert_eq!(found.next(), Some(Ok(("A", "1"))));
        assert_eq!(found.next(), Some(Ok(("B", ""))));
        assert_eq!(found.next(), Some(Ok(("C", "x=y"))));
        assert_eq!(found.next(), None);
    }

    #[test]
    fn malformed_pairs_have_distinct_errors() {
        assert_eq!(pairs(b"novalue\0").next(), Some(Err(TextError::Form)));
        assert_eq!(pairs(b"=x\0").next(), Some(Err(TextError::Form)));
        assert_eq!(pairs(b"A=\xff\0").next(), Some(Err(TextError::Encoding)));
    }

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        assert_eq!(number("262144"), Some(262_144));
        assert_eq!(number("0x40000"), Some(262_144));
        for wrong in ["", "-1", "+1", "0x", "12k", "99999999999999999999"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
