//! Maintenance of a disk: defects, buffers, diagnostics, the timestamp, security protocols (SPC-4 6.15 to 6.18, 6.25,
//! 6.28, 6.38, 6.42, 6.45, 6.49; SBC-3 5.17 to 5.19).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// REQ_PLIST and PLISTV.
pub const DEFECTS_PRIMARY: u8 = 0x10;
/// REQ_GLIST and GLISTV.
pub const DEFECTS_GROWN: u8 = 0x08;
/// DEFECT LIST FORMAT.
pub const DEFECTS_FORMAT: u8 = 0x07;

/// READ DEFECT DATA(10).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadDefectData10 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT.
    pub flags: u8,
    /// Reserved.
    pub reserved_3: [u8; 4],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// READ DEFECT DATA(12).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReadDefectData12 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// REQ_PLIST, REQ_GLIST and DEFECT LIST FORMAT.
    pub flags: u8,
    /// ADDRESS DESCRIPTOR INDEX.
    pub address_descriptor_index: U32,
    /// ALLOCATION LENGTH.
    pub allocation_length: U32,
    /// Reserved.
    pub reserved: u8,
    /// CONTROL.
    pub control: u8,
}

/// The header of READ DEFECT DATA(10) parameter data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DefectHeader10 {
    /// Reserved.
    pub reserved: u8,
    /// PLISTV, GLISTV and DEFECT LIST FORMAT.
    pub flags: u8,
    /// DEFECT LIST LENGTH: the bytes after this header.
    pub defect_list_length: U16,
}

/// The header of READ DEFECT DATA(12) parameter data.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DefectHeader12 {
    /// Reserved.
    pub reserved: u8,
    /// PLISTV, GLISTV and DEFECT LIST FORMAT.
    pub flags: u8,
    /// GENERATION CODE; 0 where the device does not count changes.
    pub generation_code: U16,
    /// DEFECT LIST LENGTH: the bytes after this header.
    pub defect_list_length: U32,
}

/// LONGLBA in REASSIGN BLOCKS: addresses of eight bytes.
pub const REASSIGN_LONGLBA: u8 = 0x02;
/// LONGLIST in REASSIGN BLOCKS: a list length of four bytes.
pub const REASSIGN_LONGLIST: u8 = 0x01;

/// The header of REASSIGN BLOCKS's parameter list without LONGLIST.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReassignHeader {
    /// Reserved.
    pub reserved: [u8; 2],
    /// DEFECT LIST LENGTH: the bytes after this header.
    pub defect_list_length: U16,
}

/// The bits of MODE in READ BUFFER and WRITE BUFFER.
pub const BUFFER_MODE: u8 = 0x1f;
/// MODE: data.
pub const BUFFER_DATA: u8 = 0x02;
/// MODE: descriptor.
pub const BUFFER_DESCRIPTOR: u8 = 0x03;
/// MODE: echo.
pub const BUFFER_ECHO: u8 = 0x0a;
/// MODE: echo descriptor.
pub const BUFFER_ECHO_DESCRIPTOR: u8 = 0x0b;
/// EBOS: an echo never returns data that another nexus wrote.
pub const ECHO_EBOS: u8 = 0x01;

/// READ BUFFER and WRITE BUFFER.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AccessBuffer {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// MODE SPECIFIC and MODE.
    pub mode: u8,
    /// BUFFER ID.
    pub buffer_id: u8,
    /// BUFFER OFFSET, 24 bits.
    pub offset: [u8; 3],
    /// ALLOCATION LENGTH or PARAMETER LIST LENGTH, 24 bits.
    pub length: [u8; 3],
    /// CONTROL.
    pub control: u8,
}

/// Returns a 24-bit number.
pub const fn u24(bytes: [u8; 3]) -> usize {
    u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize
}

/// SELFTEST in SEND DIAGNOSTIC.
pub const DIAGNOSTIC_SELFTEST: u8 = 0x04;
/// PCV in RECEIVE DIAGNOSTIC RESULTS.
pub const DIAGNOSTIC_PCV: u8 = 0x01;

/// SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Diagnostic {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SELF-TEST CODE, PF, SELFTEST, DEVOFFL and UNITOFFL; or PCV.
    pub flags: u8,
    /// PAGE CODE of RECEIVE DIAGNOSTIC RESULTS.
    pub page_code: u8,
    /// PARAMETER LIST LENGTH or ALLOCATION LENGTH.
    pub length: U16,
    /// CONTROL.
    pub control: u8,
}

/// The header of a diagnostic page (SPC-4 7.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DiagnosticHeader {
    /// PAGE CODE.
    pub page_code: u8,
    /// Page specific.
    pub page_specific: u8,
    /// PAGE LENGTH: the bytes after this header.
    pub page_length: U16,
}

/// Commands of twelve bytes with a length in bytes 6 to 9: REPORT and SET TIMESTAMP, REPORT and SET IDENTIFYING
/// INFORMATION.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Maintenance12 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// Reserved or restricted.
    pub reserved: [u8; 4],
    /// ALLOCATION LENGTH or PARAMETER LIST LENGTH.
    pub length: U32,
    /// IDENTIFYING INFORMATION TYPE in the high seven bits.
    pub information_type: u8,
    /// CONTROL.
    pub control: u8,
}

/// REPORT TIMESTAMP parameter data; without its first four bytes also the parameter list of SET TIMESTAMP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Timestamp {
    /// TIMESTAMP PARAMETER DATA LENGTH: the bytes after this field. Reserved in SET TIMESTAMP.
    pub data_length: U16,
    /// TIMESTAMP ORIGIN in the low three bits. Reserved in SET TIMESTAMP.
    pub origin: u8,
    /// Reserved.
    pub reserved_3: u8,
    /// TIMESTAMP: milliseconds since 1970 (UTC), in 48 bits.
    pub timestamp: [u8; 6],
    /// Reserved.
    pub reserved_10: [u8; 2],
}

/// INC_512 in the security protocol commands: lengths are in units of 512 bytes.
pub const SECURITY_INC_512: u8 = 0x80;

/// SECURITY PROTOCOL IN.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SecurityProtocolIn {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SECURITY PROTOCOL.
    pub protocol: u8,
    /// SECURITY PROTOCOL SPECIFIC.
    pub protocol_specific: U16,
    /// INC_512.
    pub flags: u8,
    /// Reserved.
    pub reserved_5: u8,
    /// ALLOCATION LENGTH.
    pub allocation_length: U32,
    /// Reserved.
    pub reserved_10: u8,
    /// CONTROL.
    pub control: u8,
}

assert_sizes!(
    ReadDefectData10 = 10,
    ReadDefectData12 = 12,
    DefectHeader10 = 4,
    DefectHeader12 = 8,
    ReassignHeader = 4,
    AccessBuffer = 10,
    Diagnostic = 6,
    DiagnosticHeader = 4,
    Maintenance12 = 12,
    Timestamp = 12,
    SecurityProtocolIn = 12,
);
