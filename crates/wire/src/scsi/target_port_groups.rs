//! Asymmetric logical unit access (SPC-4 6.37, 6.45) and the SCSI Ports page (SPC-4 7.8.14).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SET TARGET PORT GROUPS (SPC-4 6.45).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetTargetPortGroups {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// Reserved.
    pub reserved_2: [u8; 4],
    /// PARAMETER LIST LENGTH.
    pub parameter_list_length: U32,
    /// Reserved.
    pub reserved_10: u8,
    /// CONTROL.
    pub control: u8,
}

/// The header of SET TARGET PORT GROUPS parameter lists.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetHeader {
    /// Reserved.
    pub reserved: [u8; 4],
}

/// A set target port group descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SetDescriptor {
    /// ASYMMETRIC ACCESS STATE in the low four bits.
    pub access_state: u8,
    /// Reserved.
    pub reserved: u8,
    /// TARGET PORT GROUP OR TARGET PORT.
    pub number: U16,
}

/// PARAMETER DATA FORMAT of REPORT TARGET PORT GROUPS, in its byte 1.
pub const REPORT_FORMAT: u8 = 0xe0;
/// PARAMETER DATA FORMAT: the extended header.
pub const REPORT_FORMAT_EXTENDED: u8 = 0x20;
/// RETURN DATA FORMAT: the extended header.
pub const EXTENDED_RETURN_DATA_FORMAT: u8 = 0x10;

/// The length only header of REPORT TARGET PORT GROUPS parameter data (SPC-4 6.37).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// RETURN DATA LENGTH: the bytes after this field.
    pub return_data_length: U32,
}

/// The fields of the extended header after [`ReportHeader`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedHeader {
    /// RETURN DATA FORMAT.
    pub format: u8,
    /// IMPLICIT TRANSITION TIME, in seconds; 0 for unspecified.
    pub implicit_transition_time_s: u8,
    /// Reserved.
    pub reserved: [u8; 2],
}

/// PREF in a group descriptor, next to ASYMMETRIC ACCESS STATE.
pub const GROUP_PREF: u8 = 0x80;

/// A target port group descriptor; its target port descriptors follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct GroupDescriptor {
    /// PREF and ASYMMETRIC ACCESS STATE.
    pub access_state: u8,
    /// T_SUP, O_SUP, LBD_SUP, U_SUP, S_SUP, AN_SUP and AO_SUP.
    pub supported: u8,
    /// TARGET PORT GROUP.
    pub target_port_group: U16,
    /// Reserved.
    pub reserved: u8,
    /// STATUS CODE.
    pub status_code: u8,
    /// Vendor specific.
    pub vendor_specific: u8,
    /// TARGET PORT COUNT.
    pub target_port_count: u8,
}

/// A target port descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PortDescriptor {
    /// Obsolete.
    pub obsolete: [u8; 2],
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative_target_port: U16,
}

/// A SCSI port descriptor of the SCSI Ports page without initiator port transport ID. Its target port descriptors,
/// which are designation descriptors, follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ScsiPort {
    /// Reserved.
    pub reserved_0: [u8; 2],
    /// RELATIVE PORT IDENTIFIER.
    pub relative_port: U16,
    /// Reserved.
    pub reserved_4: [u8; 2],
    /// INITIATOR PORT TRANSPORTID LENGTH: 0.
    pub initiator_transport_id_length: U16,
    /// Reserved.
    pub reserved_8: [u8; 2],
    /// TARGET PORT DESCRIPTORS LENGTH.
    pub target_port_descriptors_length: U16,
}

assert_sizes!(
    SetTargetPortGroups = 12,
    SetHeader = 4,
    SetDescriptor = 4,
    ReportHeader = 4,
    ExtendedHeader = 4,
    GroupDescriptor = 8,
    PortDescriptor = 4,
    ScsiPort = 12,
);
