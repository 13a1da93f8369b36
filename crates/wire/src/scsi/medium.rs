//! Commands for the whole medium, SANITIZE and FORMAT UNIT, with their parameter lists; and WRITE ATOMIC.

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// IMMED of SANITIZE.
pub const SANITIZE_IMMED: u8 = 0x80;
/// The bit of SANITIZE that SBC-3 reserves; ZNR in other standards.
pub const SANITIZE_RESERVED: u8 = 0x40;
/// AUSE of SANITIZE: a host may exit a failure without another sanitize operation.
pub const SANITIZE_AUSE: u8 = 0x20;
/// INVERT of the OVERWRITE parameter list.
pub const OVERWRITE_INVERT: u8 = 0x80;
/// TEST of the OVERWRITE parameter list.
pub const OVERWRITE_TEST: u8 = 0x60;
/// OVERWRITE COUNT of that list.
pub const OVERWRITE_COUNT: u8 = 0x1f;
/// FMTPINFO of FORMAT UNIT.
pub const FORMAT_FMTPINFO: u8 = 0xc0;
/// LONGLIST: the parameter list has the long header.
pub const FORMAT_LONGLIST: u8 = 0x20;
/// FMTDATA: the command has a parameter list.
pub const FORMAT_FMTDATA: u8 = 0x10;
/// CMPLST: the new defect list replaces the grown defects.
pub const FORMAT_CMPLST: u8 = 0x08;
/// DEFECT LIST FORMAT.
pub const FORMAT_DEFECT_LIST_FORMAT: u8 = 0x07;
/// FFMT: the part of the medium that must be written.
pub const FORMAT_FFMT: u8 = 0x03;
/// FOV: the bits of [`LIST_NEEDS_FOV`] are valid.
pub const LIST_FOV: u8 = 0x80;
/// DPRY, DCRT, STPF and IP, which require FOV.
pub const LIST_NEEDS_FOV: u8 = 0x78;
/// IP: an initialization pattern descriptor follows the header.
pub const LIST_IP: u8 = 0x08;
/// IMMED of FORMAT UNIT.
pub const LIST_IMMED: u8 = 0x02;
/// PROTECTION FIELD USAGE.
pub const LIST_PROTECTION_FIELD_USAGE: u8 = 0x07;

/// SANITIZE (SBC-3 5.24).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sanitize {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// IMMED, AUSE and SERVICE ACTION.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 5],
    /// PARAMETER LIST LENGTH.
    pub parameter_list_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// The parameter list of SANITIZE's OVERWRITE before its pattern (SBC-3 5.24.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OverwriteHeader {
    /// INVERT, TEST and OVERWRITE COUNT.
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
    /// INITIALIZATION PATTERN LENGTH.
    pub pattern_length: U16,
}

/// FORMAT UNIT (SBC-4 5.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FormatUnit {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// FMTPINFO, LONGLIST, FMTDATA, CMPLST and DEFECT LIST FORMAT.
    pub flags: u8,
    /// Vendor specific.
    pub vendor_specific: u8,
    /// Obsolete.
    pub obsolete: u8,
    /// FFMT in the low two bits.
    pub fast_format: u8,
    /// CONTROL.
    pub control: u8,
}

/// The short header of FORMAT UNIT's parameter list (SBC-3 5.3.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FormatShortHeader {
    /// PROTECTION FIELD USAGE.
    pub protection_field_usage: u8,
    /// FOV, DPRY, DCRT, STPF, IP and IMMED.
    pub flags: u8,
    /// DEFECT LIST LENGTH.
    pub defect_list_length: U16,
}

/// The long header.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FormatLongHeader {
    /// PROTECTION FIELD USAGE.
    pub protection_field_usage: u8,
    /// FOV, DPRY, DCRT, STPF, IP and IMMED.
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
    /// P_I_INFORMATION and PROTECTION INTERVAL EXPONENT.
    pub protection_interval: u8,
    /// DEFECT LIST LENGTH.
    pub defect_list_length: U32,
}

/// The initialization pattern descriptor before its pattern (SBC-3 5.3.2.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InitializationPattern {
    /// The obsolete IP MODIFIER in the high two bits, SI in bit 5.
    pub flags: u8,
    /// INITIALIZATION PATTERN TYPE.
    pub pattern_type: u8,
    /// INITIALIZATION PATTERN LENGTH.
    pub pattern_length: U16,
}

/// WRITE ATOMIC(16) (SBC-4 5.49).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct WriteAtomic16 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// WRPROTECT, DPO and FUA.
    pub flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// ATOMIC BOUNDARY; 0 where the whole write is atomic.
    pub atomic_boundary: U16,
    /// TRANSFER LENGTH.
    pub block_count: U16,
    /// GROUP NUMBER.
    pub group: u8,
    /// CONTROL.
    pub control: u8,
}

assert_sizes!(
    Sanitize = 10,
    OverwriteHeader = 4,
    FormatUnit = 6,
    FormatShortHeader = 4,
    FormatLongHeader = 8,
    InitializationPattern = 4,
    WriteAtomic16 = 16,
);
