//! Designation descriptors (SPC-4 7.8.6): the names of a unit and the fields that they consist of.

use crate::{Designator, Identity};

/// CODE SET.
pub(crate) const BINARY: u8 = 1;
pub(crate) const ASCII: u8 = 2;
pub(crate) const UTF_8: u8 = 3;
/// ASSOCIATION, with PIV if the protocol matters.
pub(crate) const OF_LOGICAL_UNIT: u8 = 0x00;
pub(crate) const OF_TARGET_PORT: u8 = 0x80 | 0x10;
pub(crate) const OF_TARGET_DEVICE: u8 = 0x80 | 0x20;
/// PROTOCOL IDENTIFIER 5h: iSCSI.
pub(crate) const ISCSI: u8 = 0x50;
/// DESIGNATOR TYPE.
pub(crate) const T10_VENDOR_ID: u8 = 1;
pub(crate) const EUI_64: u8 = 2;
pub(crate) const NAA: u8 = 3;
pub(crate) const RELATIVE_TARGET_PORT: u8 = 4;
pub(crate) const TARGET_PORT_GROUP: u8 = 5;
pub(crate) const SCSI_NAME_STRING: u8 = 8;

/// Returns the designators of the unit that are the same on every path: CODE SET, DESIGNATOR TYPE and DESIGNATOR of
/// each.
pub(crate) fn unit_designators(identity: &Identity) -> Vec<(u8, u8, Vec<u8>)> {
    if let Some(designators) = &identity.designators {
        return designators.iter().map(brought_along).collect();
    }
    let vendor_id = [&padded::<8>(&identity.vendor)[..], identity.serial.as_bytes()].concat();
    let name = name_string(&format!("naa.{}", identity.naa));
    vec![
        (BINARY, OF_LOGICAL_UNIT | NAA, identity.naa.as_bytes().to_vec()),
        (ASCII, OF_LOGICAL_UNIT | T10_VENDOR_ID, vendor_id),
        (UTF_8, OF_LOGICAL_UNIT | SCSI_NAME_STRING, name),
    ]
}

fn brought_along(designator: &Designator) -> (u8, u8, Vec<u8>) {
    match designator {
        Designator::Naa(naa) => (BINARY, OF_LOGICAL_UNIT | NAA, naa.as_bytes().to_vec()),
        Designator::Eui(bytes) => (BINARY, OF_LOGICAL_UNIT | EUI_64, bytes.clone()),
        Designator::T10(text) => {
            (ASCII, OF_LOGICAL_UNIT | T10_VENDOR_ID, text.clone().into_bytes())
        }
        Designator::Name(text) => (UTF_8, OF_LOGICAL_UNIT | SCSI_NAME_STRING, name_string(text)),
    }
}

/// Returns a SCSI name string: padded with zeroes to a multiple of four bytes (SPC-4 7.8.6.11), and limited to the
/// length that its length field can express.
pub(crate) fn name_string(name: &str) -> Vec<u8> {
    let mut end = name.len().min(251);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    let mut bytes = name.as_bytes()[..end].to_vec();
    bytes.push(0);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Returns left-aligned printable ASCII, padded with spaces (SPC-4 4.4.1).
pub(crate) fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [b' '; N];
    for (byte, source) in field.iter_mut().zip(text.bytes()) {
        *byte = if matches!(source, 0x20..=0x7e) { source } else { b'?' };
    }
    field
}
