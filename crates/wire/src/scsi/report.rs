//! Parameter data of the reporting commands: capacity, provisioning, LUNs, operation codes.

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// LBPME, next to the lowest aligned address in READ CAPACITY(16).
pub const CAPACITY_LBPME: u16 = 0x8000;
/// LBPRZ, next to LBPME.
pub const CAPACITY_LBPRZ: u16 = 0x4000;

/// READ CAPACITY(10) parameter data (SBC-3 5.15.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Capacity10 {
    /// RETURNED LOGICAL BLOCK ADDRESS; FFFFFFFFh where it does not fit.
    pub last_lba: U32,
    /// LOGICAL BLOCK LENGTH IN BYTES.
    pub block_length: U32,
}

/// PROT_EN in READ CAPACITY(16) data, below the three bits of P_TYPE.
pub const CAPACITY_PROT_EN: u8 = 0x01;

/// READ CAPACITY(16) parameter data (SBC-3 5.16.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Capacity16 {
    /// RETURNED LOGICAL BLOCK ADDRESS.
    pub last_lba: U64,
    /// LOGICAL BLOCK LENGTH IN BYTES.
    pub block_length: U32,
    /// P_TYPE and PROT_EN.
    pub protection: u8,
    /// P_I_EXPONENT and LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub exponents: u8,
    /// LBPME, LBPRZ and LOWEST ALIGNED LOGICAL BLOCK ADDRESS.
    pub provisioning: U16,
    /// Reserved.
    pub reserved: [u8; 16],
}

/// The header of GET LBA STATUS parameter data (SBC-3 5.4.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaStatusHeader {
    /// PARAMETER DATA LENGTH: the bytes after this field.
    pub parameter_data_length: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// An LBA status descriptor (SBC-3 5.4.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LbaStatusDescriptor {
    /// LBA STATUS LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// NUMBER OF LOGICAL BLOCKS.
    pub block_count: U32,
    /// PROVISIONING STATUS.
    pub provisioning_status: u8,
    /// Reserved.
    pub reserved: [u8; 3],
}

/// The header of the UNMAP parameter list (SBC-3 5.28.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UnmapHeader {
    /// UNMAP DATA LENGTH: the bytes after this field.
    pub data_length: U16,
    /// UNMAP BLOCK DESCRIPTOR DATA LENGTH.
    pub block_descriptor_data_length: U16,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// An UNMAP block descriptor.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct UnmapDescriptor {
    /// UNMAP LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// NUMBER OF LOGICAL BLOCKS.
    pub block_count: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// The header of REPORT LUNS parameter data (SPC-4 6.33).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LunListHeader {
    /// LUN LIST LENGTH: the bytes after this header.
    pub lun_list_length: U32,
    /// Reserved.
    pub reserved: [u8; 4],
}

/// CTDP in the flags of a command descriptor.
pub const COMMAND_CTDP: u8 = 0x02;
/// SERVACTV in the flags of a command descriptor.
pub const COMMAND_SERVACTV: u8 = 0x01;
/// CTDP in the one-command format.
pub const ONE_COMMAND_CTDP: u8 = 0x80;

/// A command descriptor of the all-commands format (SPC-4 6.35.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandDescriptor {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// SERVICE ACTION.
    pub service_action: U16,
    /// Reserved.
    pub reserved_4: u8,
    /// CTDP and SERVACTV.
    pub flags: u8,
    /// CDB LENGTH.
    pub cdb_length: U16,
}

/// The header of the one-command format (SPC-4 6.35.3); the CDB usage data follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OneCommandHeader {
    /// Reserved.
    pub reserved: u8,
    /// CTDP and SUPPORT.
    pub support: u8,
    /// CDB SIZE.
    pub cdb_size: U16,
}

/// A command timeouts descriptor (SPC-4 6.35.4).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandTimeouts {
    /// DESCRIPTOR LENGTH: 000Ah.
    pub descriptor_length: U16,
    /// Reserved.
    pub reserved: u8,
    /// COMMAND SPECIFIC.
    pub command_specific: u8,
    /// NOMINAL COMMAND PROCESSING TIMEOUT, in seconds; 0 for unspecified.
    pub nominal_s: U32,
    /// RECOMMENDED COMMAND TIMEOUT, in seconds; 0 for unspecified.
    pub recommended_s: U32,
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS parameter data (SPC-4 6.36).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TaskManagementFunctions {
    /// ATS, ATSS, CACAS, CTSS, LURS, QTS, TRS and WAKES.
    pub flags_0: u8,
    /// QAES, QTSS and ITNRS.
    pub flags_1: u8,
    /// Reserved.
    pub reserved: u8,
    /// ADDITIONAL LENGTH of the extended format.
    pub additional_length: u8,
}

assert_sizes!(
    Capacity10 = 8,
    Capacity16 = 32,
    LbaStatusHeader = 8,
    LbaStatusDescriptor = 16,
    UnmapHeader = 8,
    UnmapDescriptor = 16,
    LunListHeader = 8,
    CommandDescriptor = 8,
    OneCommandHeader = 4,
    CommandTimeouts = 12,
    TaskManagementFunctions = 4,
);
