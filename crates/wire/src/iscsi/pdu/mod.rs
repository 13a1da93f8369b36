//! Basic header segments (RFC 7143 §11.2 to §11.19), each declared once.
//!
//! A header arrives as [`RawHeader`]. Its opcode selects the header type; all types are 48 bytes, and any bytes are a
//! valid value.

/// Declares a header: a view of 48 bytes, without a copy.
macro_rules! header {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == BASIC_HEADER_LENGTH);
        impl From<RawHeader> for $name {
            fn from(raw: RawHeader) -> Self {
                transmute!(raw.0)
            }
        }
        impl From<$name> for RawHeader {
            fn from(header: $name) -> Self {
                Self(transmute!(header))
            }
        }
        impl $name {
            /// Views bytes as this header.
            pub fn view(raw: &RawHeader) -> &Self {
                transmute_ref!(&raw.0)
            }
        }
    };
}

mod request;
mod response;

pub use request::*;
pub use response::*;

use core::fmt;

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::code::{Opcode, Stage};
use super::{BASIC_HEADER_LENGTH, RESERVED_TAG, SerialNumber};

/// The bit of the first byte that marks an immediate request.
pub const IMMEDIATE: u8 = 0x40;
/// The final bit of the second byte; in a login, the transit bit.
pub const FINAL: u8 = 0x80;
/// The continue bit of text and login requests and responses.
pub const CONTINUE: u8 = 0x40;

/// 24 bits, big-endian: the length of a data segment.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value.
    pub const MAX: u32 = 0x00ff_ffff;

    /// Creates the value. Panics above [`Self::MAX`]: callers limit lengths to a negotiated maximum first.
    #[inline]
    pub const fn new(value: u32) -> Self {
        assert!(value <= Self::MAX);
        let [_, a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    /// Returns the value.
    pub const fn value(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

impl fmt::Debug for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

/// The six bytes that identify the initiator's end of a session (RFC 7143 §11.12.5).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Isid(pub [u8; 6]);

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The 48 bytes of a header with an unexamined opcode.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeader(pub [u8; BASIC_HEADER_LENGTH]);

impl RawHeader {
    /// All bytes zero.
    pub const ZERO: Self = Self([0; BASIC_HEADER_LENGTH]);

    /// Returns the fields that all headers share.
    pub fn basic(&self) -> &BasicHeader {
        BasicHeader::view(self)
    }
}

impl fmt::Debug for RawHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.basic().fmt(f)
    }
}

header! {
    /// The fields that all headers share (RFC 7143 §11.2.1).
    BasicHeader {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// Final bit and opcode-specific flags.
        flags: u8,
        /// Opcode-specific.
        specific: [u8; 2],
        /// Length of the additional header segments, in four-byte words.
        total_ahs_length: u8,
        /// Bytes of data, without padding.
        data_segment_length: U24,
        /// LUN or opcode-specific.
        lun: [u8; 8],
        /// The initiator's tag.
        initiator_task_tag: U32,
        /// Opcode-specific.
        rest: [u8; 28],
    }
}

impl BasicHeader {
    /// Returns the opcode.
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.opcode_byte & 0x3f)
    }

    /// Returns whether the request is for immediate delivery.
    pub const fn is_immediate(&self) -> bool {
        self.opcode_byte & IMMEDIATE != 0
    }

    /// Returns the final bit.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }
}

/// Returns the current stage from the flags of a login.
pub const fn current_stage(flags: u8) -> Stage {
    Stage(flags >> 2 & 3)
}

/// Returns the next stage from the flags of a login.
pub const fn next_stage(flags: u8) -> Stage {
    Stage(flags & 3)
}

impl RawHeader {
    /// Creates a zeroed header with an opcode, the final bit, and the reserved tag as target transfer tag. Every new
    /// PDU starts from it.
    #[inline]
    pub fn with_opcode(opcode: Opcode) -> Self {
        let mut header = BasicHeader::from(Self::ZERO);
        header.opcode_byte = opcode.0;
        header.flags = FINAL;
        header.rest[..4].copy_from_slice(&RESERVED_TAG.to_be_bytes());
        header.into()
    }
}

/// A field that holds a serial number.
pub trait SerialField {
    /// Returns the field's value.
    fn serial(&self) -> SerialNumber;
}

impl SerialField for U32 {
    fn serial(&self) -> SerialNumber {
        SerialNumber(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_11_8_r2t_fields_stand_where_the_figure_has_them() {
        let mut r2t = R2t::from(RawHeader::with_opcode(Opcode::R2t));
        r2t.lun = [0, 3, 0, 0, 0, 0, 0, 0];
        r2t.initiator_task_tag = 0x1011_1213.into();
        r2t.target_transfer_tag = 0x1415_1617.into();
        r2t.r2t_sn = 0x2425_2627.into();
        r2t.desired_data_transfer_length = 0x2c2d_2e2f.into();
        let raw = RawHeader::from(r2t).0;
        assert_eq!(raw[0], 0x31);
        assert_eq!(raw[1], 0x80);
        assert_eq!(raw[8..10], [0, 3]);
        assert_eq!(raw[16..24], [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17]);
        assert_eq!(raw[36..40], [0x24, 0x25, 0x26, 0x27]);
        assert_eq!(raw[44..48], [0x2c, 0x2d, 0x2e, 0x2f]);
    }

    #[test]
    fn a_data_segment_length_has_24_bits() {
        assert_eq!(U24::new(0x0012_3456).value(), 0x0012_3456);
        assert_eq!(U24::new(0x0012_3456).as_bytes(), [0x12, 0x34, 0x56]);
    }

    #[test]
    fn login_stages_are_bit_fields() {
        assert_eq!(current_stage(0x87), Stage::Operational);
        assert_eq!(next_stage(0x87), Stage::FullFeature);
    }
}
