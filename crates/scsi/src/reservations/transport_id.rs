//! iSCSI TransportIDs (SPC-4 7.6.4.6).

use sarsen_wire::scsi::reservation as wire;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// RFC 7143 §4.2.7: the maximum length of an iSCSI name.
const NAME_LENGTH_LIMIT: usize = 223;
/// The separator between an initiator's name and its session identifier.
const SEPARATOR: &str = ",i,0x";
/// The number of digits of a session identifier.
const ISID_DIGITS: usize = 12;
const ADDITIONAL_LENGTH_MINIMUM: usize = 20;

/// The object that a TransportID names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransportId {
    /// An initiator port, by its name.
    Port(Arc<str>),
    /// All ports of an initiator, by the initiator's name.
    Device(String),
}

/// The reason why a TransportID is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// It ends after the end of the list.
    Truncated,
    /// The field that begins in this byte of the TransportID is invalid.
    Invalid(u16),
}

/// Parses the first TransportID. Returns it with its length in bytes.
pub(crate) fn parse(bytes: &[u8]) -> Result<(TransportId, usize), Problem> {
    let (header, rest) =
        wire::TransportIdHeader::ref_from_prefix(bytes).map_err(|_| Problem::Truncated)?;
    let format = header.format_and_protocol >> wire::TRANSPORT_ID_FORMAT_SHIFT;
    if header.format_and_protocol & wire::TRANSPORT_ID_PROTOCOL != wire::PROTOCOL_ISCSI {
        return Err(Problem::Invalid(0));
    }
    let length = usize::from(header.additional_length.get());
    if length < ADDITIONAL_LENGTH_MINIMUM || !length.is_multiple_of(4) {
        return Err(Problem::Invalid(2));
    }
    let text = rest.get(..length).ok_or(Problem::Truncated)?;
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = str::from_utf8(text).map_err(|_| Problem::Invalid(4))?;
    let id = match format {
        wire::TRANSPORT_ID_DEVICE => device(text).map(TransportId::Device),
        wire::TRANSPORT_ID_PORT => port(text).map(TransportId::Port),
        _ => return Err(Problem::Invalid(0)),
    };
    let id = id.ok_or(Problem::Invalid(4))?;
    Ok((id, size_of::<wire::TransportIdHeader>() + length))
}

fn device(name: &str) -> Option<String> {
    let known = ["iqn.", "eui.", "naa."].iter().any(|form| name.starts_with(form));
    let valid = known
        && name.len() <= NAME_LENGTH_LIMIT
        && !name
            .chars()
            .any(|letter| letter.is_control() || letter.is_whitespace() || letter == ',');
    valid.then(|| name.to_owned())
}

/// Returns the name of a port in the form of the iSCSI frontend, for any number of digits.
fn port(text: &str) -> Option<Arc<str>> {
    let (name, isid) = text.split_once(SEPARATOR)?;
    let valid = (1..=ISID_DIGITS).contains(&isid.len())
        && isid.bytes().all(|digit| digit.is_ascii_hexdigit());
    let isid = valid.then(|| isid.to_ascii_lowercase())?;
    Some(format!("{}{SEPARATOR}{isid:0>ISID_DIGITS$}", device(name)?).into())
}

/// Returns whether a port belongs to that initiator.
pub(crate) fn is_of(port: &str, device: &str) -> bool {
    port.strip_prefix(device).is_some_and(|rest| rest.starts_with(SEPARATOR))
}

/// Returns the TransportID of an initiator port.
pub(crate) fn to_bytes(port: &str) -> Vec<u8> {
    let length = (port.len() + 1).next_multiple_of(4).max(ADDITIONAL_LENGTH_MINIMUM);
    let header = wire::TransportIdHeader {
        format_and_protocol: wire::TRANSPORT_ID_PORT << wire::TRANSPORT_ID_FORMAT_SHIFT
            | wire::PROTOCOL_ISCSI,
        reserved: 0,
        additional_length: (length as u16).into(),
    };
    let mut bytes = [header.as_bytes(), port.as_bytes()].concat();
    bytes.resize(size_of::<wire::TransportIdHeader>() + length, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: &str = "iqn.2026-01.example:one,i,0x00023d000001";

    #[test]
    fn spc4_7_6_4_6_a_port_comes_back_as_it_was() {
        for name in [PORT, "eui.0123456789abcdef,i,0x800000000000"] {
            let bytes = to_bytes(name);
            assert_eq!(bytes.len() % 4, 0);
            assert_eq!(bytes[0], 0x45);
            assert_eq!(parse(&bytes), Ok((TransportId::Port(name.into()), bytes.len())));
        }
    }

    #[test]
    fn spc4_7_6_4_6_a_device_and_a_short_session_identifier() {
        let mut bytes = to_bytes("iqn.2026-01.example:one");
        bytes[0] = 0x05;
        let device = TransportId::Device("iqn.2026-01.example:one".into());
        assert_eq!(parse(&bytes), Ok((device, bytes.len())));
        assert!(is_of(PORT, "iqn.2026-01.example:one"));
        assert!(!is_of(PORT, "iqn.2026-01.example:on"));

        let short = to_bytes("iqn.2026-01.example:one,i,0x23D000001");
        assert_eq!(parse(&short), Ok((TransportId::Port(PORT.into()), short.len())));
    }

    #[test]
    fn spc4_7_6_4_6_error_names_its_byte() {
        let whole = to_bytes(PORT);
        let changed = |index: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[index] = byte;
            parse(&bytes)
        };
        assert_eq!(changed(0, 0x40), Err(Problem::Invalid(0)), "Fibre Channel");
        assert_eq!(changed(0, 0x85), Err(Problem::Invalid(0)), "a reserved format");
        assert_eq!(changed(3, 16), Err(Problem::Invalid(2)));
        assert_eq!(changed(3, 43), Err(Problem::Invalid(2)));
        assert_eq!(changed(4, b'x'), Err(Problem::Invalid(4)));
        assert_eq!(changed(4, 0xff), Err(Problem::Invalid(4)));
        assert_eq!(changed(33, b'x'), Err(Problem::Invalid(4)));
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), Err(Problem::Truncated), "{length}");
        }
    }
}
