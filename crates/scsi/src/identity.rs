//! The identity of a logical unit: the names by which initiators recognise it.

use std::fmt;

/// The names of a logical unit. They must not change during the life of the volume, since initiators, their multipath
/// maps and their file systems identify it by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// T10 VENDOR IDENTIFICATION, up to eight printable ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION, up to sixteen characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL, up to four characters.
    pub revision: String,
    /// PRODUCT SERIAL NUMBER, printable ASCII.
    pub serial: String,
    /// NAA identifier: locally assigned (3h), unless the volume was imported with another one.
    pub naa: Naa,
    /// The designators of the Device Identification page, if they are not derived from the other fields. They are set
    /// for a volume that was imported with its designators.
    pub designators: Option<Vec<Designator>>,
    /// The volume's name in the configuration; it is not sent.
    pub volume: String,
}

/// NAA field 3h: locally assigned.
const NAA_LOCALLY_ASSIGNED: u64 = 0x3 << 60;

impl Identity {
    /// Creates the identity from a volume's name and a `scope` in which that name is unique. The scope is the name of
    /// the target or a permanent name of the installation. The same two strings give the same identity in every version
    /// of this program.
    pub fn new(volume: &str, scope: &str) -> Self {
        let hash = stable_hash(&[scope.as_bytes(), volume.as_bytes()]);
        Self {
            vendor: "SARSEN".into(),
            product: "VOLUME".into(),
            revision: "0001".into(),
            serial: format!("{hash:016x}"),
            naa: Naa::Eight((NAA_LOCALLY_ASSIGNED | (hash >> 4)).to_be_bytes()),
            designators: None,
            volume: volume.into(),
        }
    }
}

/// An NAA identifier (SPC-4 7.8.6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Naa {
    /// IEEE Extended (2h), locally assigned (3h) or IEEE Registered (5h).
    Eight([u8; 8]),
    /// IEEE Registered Extended (6h).
    Sixteen([u8; 16]),
}

impl Naa {
    /// Returns the bytes in the form of the designator.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Eight(bytes) => bytes,
            Self::Sixteen(bytes) => bytes,
        }
    }

    /// Parses hexadecimal digits: 32 if the first one is 6, else 16.
    pub fn parse(text: &str) -> Option<Self> {
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        match (text.len(), text.as_bytes().first()?) {
            (32, b'6') => Some(Self::Sixteen(u128::from_str_radix(text, 16).ok()?.to_be_bytes())),
            (16, b'2' | b'3' | b'5') => {
                Some(Self::Eight(u64::from_str_radix(text, 16).ok()?.to_be_bytes()))
            }
            _ => None,
        }
    }
}

/// Writes upper-case hexadecimal digits, as in SCSI name strings.
impl fmt::Display for Naa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02X}"))
    }
}

/// A name of a logical unit (SPC-4 7.8.6).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Designator {
    /// NAA.
    Naa(Naa),
    /// EUI-64 based, with 8, 12 or 16 bytes.
    Eui(Vec<u8>),
    /// T10 vendor ID based: the vendor in eight characters, then the vendor specific identifier.
    T10(String),
    /// SCSI name string.
    Name(String),
}

/// The maximum length of a designator's text in bytes. With their headers, several such designators fit in a page.
const LONGEST_TEXT: usize = 250;

impl Designator {
    /// Parses `naa:HEX`, `eui:HEX`, `t10:TEXT` or `name:TEXT`.
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, value) = text.split_once(':')?;
        let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        let fits = (1..=LONGEST_TEXT).contains(&value.len());
        match kind {
            "naa" => Naa::parse(value).map(Self::Naa),
            "eui" => hexadecimal(value).filter(|b| [8, 12, 16].contains(&b.len())).map(Self::Eui),
            "t10" if fits && value.len() >= 8 && value.bytes().all(is_printable) => {
                Some(Self::T10(value.into()))
            }
            "name" if fits && !value.contains(char::is_control) => Some(Self::Name(value.into())),
            _ => None,
        }
    }
}

/// Writes the form that `parse` accepts.
impl fmt::Display for Designator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naa(naa) => write!(f, "naa:{naa}"),
            Self::Eui(bytes) => {
                f.write_str("eui:")?;
                bytes.iter().try_for_each(|byte| write!(f, "{byte:02X}"))
            }
            Self::T10(text) => write!(f, "t10:{text}"),
            Self::Name(text) => write!(f, "name:{text}"),
        }
    }
}

fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let is_hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
    (is_hexadecimal && digits.len().is_multiple_of(2)).then(|| {
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or_default() as u8;
        digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
    })
}

/// Computes FNV-1a over each part, followed by a byte that does not occur in UTF-8. The finalizer of splitmix64 then
/// makes every input bit affect every output bit. The function must never change.
fn stable_hash(parts: &[&[u8]]) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for part in parts {
        for &byte in part.iter().chain(&[0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_never_changes() {
        let identity = Identity::new("data", "iqn.2026-01.example:sarsen");
        assert_eq!(identity.serial, "68f0c0c3b969125c");
        assert_eq!(identity.naa.as_bytes()[0] >> 4, 3);
    }

    #[test]
    fn spc4_7_8_6_6_an_naa_identifier_is_as_long_as_its_kind_says() {
        for text in ["3123456789ABCDEF", "5000000000000001", "6001405A0000000000000000000000FF"] {
            assert_eq!(Naa::parse(text).expect(text).to_string(), text);
        }
        for text in
            ["", "3", "6001405a00000000", "3001405a0000000000000000000000ff", "3x23456789abcdef"]
        {
            assert_eq!(Naa::parse(text), None, "{text}");
        }
    }

    #[test]
    fn spc4_7_8_6_a_designator_is_shown_as_it_is_parsed() {
        for text in [
            "naa:6001405A0000000000000000000000FF",
            "eui:0123456789ABCDEF",
            "t10:LIO-ORG disk:a b ",
            "name:iqn.2012-06.com.example:target0,lun,0",
        ] {
            assert_eq!(Designator::parse(text).expect(text).to_string(), text);
        }
        for text in
            ["", "naa:1", "eui:0123", "eui:0123456789ABCDEG", "t10:short", "t10:é 345678", "md5:1"]
        {
            assert_eq!(Designator::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_border_between_scope_and_volume_counts() {
        assert_ne!(Identity::new("ab", "c").naa, Identity::new("b", "ca").naa);
    }
}
