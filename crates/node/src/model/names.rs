//! Names: of volumes, targets and initiators.

use std::fmt;
use std::str::FromStr;

use sarsen_wire::iscsi::MAX_NAME_LENGTH;

use super::text::written_as_text;

/// An initiator's name, or the beginning of names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NamePattern {
    /// Exactly this name.
    Exactly(String),
    /// All names with this beginning.
    Beginning(String),
}

impl NamePattern {
    /// Returns whether the pattern matches the name.
    pub fn fits(&self, name: &str) -> bool {
        match self {
            Self::Exactly(exactly) => name == exactly,
            Self::Beginning(beginning) => name.starts_with(beginning.as_str()),
        }
    }
}

/// Displays the pattern in the form of the configuration.
impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(name) => f.write_str(name),
            Self::Beginning(beginning) => write!(f, "{beginning}*"),
        }
    }
}

impl FromStr for NamePattern {
    type Err = String;

    /// Parses `iqn.2026-11.example:host`, or the beginning of such a name and `*`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('*') {
            Some(beginning)
                if beginning.len() <= MAX_NAME_LENGTH
                    && beginning.bytes().all(is_iscsi_name_byte) =>
            {
                Ok(Self::Beginning(beginning.into()))
            }
            None if check_iscsi_name(text).is_ok() => Ok(Self::Exactly(text.into())),
            _ => {
                let is_long = text.strip_prefix("iqn.").is_some_and(is_iqn_tail);
                let hint = if is_long { ": it is too long" } else { "" };
                Err(format!(
                    "{text:?} is not an initiator's name{hint}; write an iSCSI name in lower case, such as \
                     iqn.1993-08.org.debian:01:host, or its beginning and *"
                ))
            }
        }
    }
}

written_as_text!(NamePattern);

/// Checks the name of a volume. The name becomes part of an iSCSI name: the ASCII characters that RFC 3722 permits.
pub(crate) fn check_volume_name(name: &str) -> Result<(), String> {
    check_object_name("volume", name)
}

/// Checks the name of a pool, which has the form of a volume's.
pub(super) fn check_pool_name(name: &str) -> Result<(), String> {
    check_object_name("pool", name)
}

fn check_object_name(kind: &str, name: &str) -> Result<(), String> {
    let valid = !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b));
    // A name is also a part of paths, of files and of the API.
    if valid && !matches!(name, "." | "..") {
        return Ok(());
    }
    Err(format!(
        "{kind} name {name:?}: use 1 to 64 lower-case letters, digits, dots and hyphens, not . or .. alone"
    ))
}

/// Checks that the name is an iqn, eui or naa name (RFC 7143 §4.2.7).
pub(crate) fn check_iscsi_name(name: &str) -> Result<(), String> {
    let valid = name.len() <= MAX_NAME_LENGTH
        && match name.split_once('.') {
            Some(("iqn", rest)) => is_iqn_tail(rest),
            Some(("eui", rest)) => has_hex_digits(rest, &[16]),
            Some(("naa", rest)) => has_hex_digits(rest, &[16, 32]),
            _ => false,
        };
    if valid {
        return Ok(());
    }
    Err(format!(
        "target name {name:?} is not an iSCSI name: write iqn.YYYY-MM.reversed.domain:anything, in lower case"
    ))
}

/// Returns whether the text consists of one of these numbers of hexadecimal digits.
fn has_hex_digits(text: &str, lengths: &[usize]) -> bool {
    lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the reason why the text is not a valid target name, or `None` for a valid name.
pub fn target_name_fault(name: &str) -> Option<String> {
    check_iscsi_name(name).err()
}

/// Returns whether the text is `YYYY-MM.authority[:anything]`.
fn is_iqn_tail(rest: &str) -> bool {
    let bytes = rest.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    digits(0..4)
        && bytes.get(4) == Some(&b'-')
        && digits(5..7)
        && bytes.get(7) == Some(&b'.')
        && bytes.len() > 8
        && bytes[8..].iter().copied().all(is_iscsi_name_byte)
}

/// Returns whether an iSCSI name may contain this byte (RFC 3722).
pub fn is_iscsi_name_byte(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.:".contains(&byte)
}

/// Returns "; did you mean …?" with the candidate that is nearest to a misspelt word.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> String {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().max(word.len()) / 2)
        .map_or(String::new(), |(_, candidate)| format!("; did you mean {candidate}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_not_named_as_a_folder_is() {
        for name in [".", "..", "", "A", "a/b", "a\u{202e}", "a\n"] {
            assert!(check_volume_name(name).is_err(), "{name:?}");
        }
        for name in ["a", "a.b", "...", "-"] {
            assert_eq!(check_volume_name(name), Ok(()), "{name:?}");
        }
    }
}
