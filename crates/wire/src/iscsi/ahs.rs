//! Additional header segments (RFC 7143 §11.2.2).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first four bytes of an additional header segment; its length excludes type and length.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct AhsHeader {
    /// Bytes that follow, from `specific` on, without padding.
    pub length: U16,
    /// Type.
    pub kind: u8,
    /// Type-specific byte.
    pub specific: u8,
}

/// Type of an extended CDB.
pub const EXTENDED_CDB: u8 = 1;
/// Type of the expected bidirectional read data length.
pub const BIDIRECTIONAL_READ_LENGTH: u8 = 2;

/// Returns the rest of a CDB longer than sixteen bytes, if `segments` has one. Returns `None` also where the lengths of
/// the segments are inconsistent; the caller has checked their total length.
#[inline]
pub fn extended_cdb(mut segments: &[u8]) -> Option<&[u8]> {
    while let Ok((header, rest)) = AhsHeader::ref_from_prefix(segments) {
        // `length` counts the type-specific byte, which the header contains already.
        let length = usize::from(header.length.get()).checked_sub(1)?;
        let body = rest.get(..length)?;
        if header.kind == EXTENDED_CDB {
            return Some(body);
        }
        let padded = (size_of::<AhsHeader>() + length).next_multiple_of(4);
        segments = segments.get(padded..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_11_2_2_3_extended_cdb_is_found_behind_another_segment() {
        let segments = [
            &[0, 5, 2, 0, 0, 0, 2, 0][..], // bidirectional read length
            &[0, 5, 1, 0, 0xa, 0xb, 0xc, 0xd][..],
        ]
        .concat();
        assert_eq!(extended_cdb(&segments), Some(&[0xa, 0xb, 0xc, 0xd][..]));
    }

    #[test]
    fn lengths_that_do_not_add_up_give_nothing() {
        assert_eq!(extended_cdb(&[0, 0, 1, 0]), None);
        assert_eq!(extended_cdb(&[0xff, 0xff, 1, 0, 1, 2, 3, 4]), None);
        assert_eq!(extended_cdb(&[0, 5]), None);
    }
}
