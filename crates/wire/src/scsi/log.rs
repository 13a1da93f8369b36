//! Log pages and the commands that ask for them (SPC-4 6.7, 6.8, 7.3).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SP in LOG SENSE and LOG SELECT.
pub const FLAGS_SAVE: u8 = 0x01;
/// PCR in LOG SELECT.
pub const FLAGS_RESET: u8 = 0x02;
/// The bits of PAGE CODE.
pub const PAGE_CODE: u8 = 0x3f;
/// DS in a log page: the page is not saved.
pub const DISABLE_SAVE: u8 = 0x80;
/// SPF in a log page: the page has a subpage code.
pub const SUBPAGE_FORMAT: u8 = 0x40;
/// TSD and FORMAT AND LINKING 11b: a binary list that the device never saves.
pub const CONTROL_BINARY_LIST: u8 = 0x20 | 0x03;

/// Supported log pages.
pub const PAGE_SUPPORTED: u8 = 0x00;
/// Logical block provisioning.
pub const PAGE_LOGICAL_BLOCK_PROVISIONING: u8 = 0x0c;
/// Parameter of that page: available resources. Thresholds use the same code.
pub const AVAILABLE_RESOURCES: u16 = 0x0001;
/// Parameter of that page: used resources.
pub const USED_RESOURCES: u16 = 0x0002;
/// SCOPE: resources of this unit only.
pub const SCOPE_DEDICATED: u8 = 0x01;
/// SCOPE: resources that other units may also use.
pub const SCOPE_NOT_DEDICATED: u8 = 0x02;
/// Temperature.
pub const PAGE_TEMPERATURE: u8 = 0x0d;
/// Start-stop cycle counter.
pub const PAGE_START_STOP: u8 = 0x0e;
/// Self-test results.
pub const PAGE_SELF_TEST_RESULTS: u8 = 0x10;
/// Informational exceptions.
pub const PAGE_INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
/// The subpage code of page 00h that lists subpages too.
pub const SUBPAGE_ALL: u8 = 0xff;

/// A parameter of the logical block provisioning page after its header (SBC-3 6.4.5.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResourceCount {
    /// RESOURCE COUNT, in threshold sets.
    pub resource_count: U32,
    /// SCOPE.
    pub scope: u8,
    /// Reserved.
    pub reserved: [u8; 3],
}

/// LOG SENSE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogSense {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SP.
    pub flags: u8,
    /// PC and PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Reserved.
    pub reserved: u8,
    /// PARAMETER POINTER.
    pub parameter_pointer: U16,
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// LOG SELECT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogSelect {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// PCR and SP.
    pub flags: u8,
    /// PC and PAGE CODE.
    pub page: u8,
    /// SUBPAGE CODE.
    pub subpage: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// PARAMETER LIST LENGTH.
    pub parameter_list_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// The header of a log page (SPC-4 7.3.2.1).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PageHeader {
    /// DS, SPF and PAGE CODE.
    pub page_code: u8,
    /// SUBPAGE CODE.
    pub subpage_code: u8,
    /// PAGE LENGTH: the bytes after this header.
    pub page_length: U16,
}

/// The header of a log parameter (SPC-4 7.3.2.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ParameterHeader {
    /// PARAMETER CODE.
    pub parameter_code: U16,
    /// DU, TSD, ETC, TMC and FORMAT AND LINKING.
    pub control: u8,
    /// PARAMETER LENGTH: the bytes after this header.
    pub parameter_length: u8,
}

/// A self-test results log parameter after its header (SPC-4 7.3.20).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SelfTestResult {
    /// SELF-TEST CODE in the high three bits, SELF-TEST RESULTS in the low four.
    pub code_and_result: u8,
    /// SELF-TEST NUMBER: the segment that failed; 0 for unknown.
    pub number: u8,
    /// ACCUMULATED POWER ON HOURS.
    pub power_on_hours: U16,
    /// ADDRESS OF FIRST FAILURE; all ones for none.
    pub address_of_first_failure: U64,
    /// SENSE KEY in the low four bits.
    pub sense_key: u8,
    /// ADDITIONAL SENSE CODE and QUALIFIER.
    pub additional_sense: U16,
    /// Vendor specific.
    pub vendor_specific: u8,
}

assert_sizes!(
    ResourceCount = 8,
    LogSense = 10,
    LogSelect = 10,
    PageHeader = 4,
    ParameterHeader = 4,
    SelfTestResult = 16,
);
