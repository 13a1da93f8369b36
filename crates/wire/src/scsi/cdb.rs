//! Command descriptor blocks. Commands with the same layout share one declaration; their flag bits are declared next to
//! it.

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RDPROTECT, WRPROTECT or VRPROTECT in the flags of block commands.
pub const FLAGS_PROTECT: u8 = 0xe0;
/// DPO in the flags of block commands.
pub const FLAGS_DPO: u8 = 0x10;
/// FUA in the flags of READ, WRITE and COMPARE AND WRITE.
pub const FLAGS_FUA: u8 = 0x08;
/// FUA_NV (obsolete since SBC-3): accepted, without effect.
pub const FLAGS_FUA_NV: u8 = 0x02;
/// BYTCHK in the flags of VERIFY and WRITE AND VERIFY.
pub const FLAGS_BYTCHK: u8 = 0x06;
/// IMMED in the flags of SYNCHRONIZE CACHE and PRE-FETCH.
pub const FLAGS_IMMED: u8 = 0x02;
/// ANCHOR in the flags of WRITE SAME.
pub const FLAGS_ANCHOR: u8 = 0x10;
/// UNMAP in the flags of WRITE SAME.
pub const FLAGS_UNMAP: u8 = 0x08;
/// NDOB in the flags of WRITE SAME(16).
pub const FLAGS_NDOB: u8 = 0x01;
/// The bits of the GROUP NUMBER field.
pub const GROUP_NUMBER: u8 = 0x1f;

/// READ(6), WRITE(6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block6 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// The five high bits of the address; the upper three bits are obsolete.
    pub lba_high: u8,
    /// The sixteen low bits of the address.
    pub lba_low: U16,
    /// TRANSFER LENGTH; 0 means 256.
    pub block_count: u8,
    /// CONTROL.
    pub control: u8,
}

impl Block6 {
    /// LOGICAL BLOCK ADDRESS.
    pub fn lba(&self) -> u64 {
        (u64::from(self.lba_high & 0x1f) << 16) | u64::from(self.lba_low.get())
    }
}

/// READ(10), WRITE(10), VERIFY(10), WRITE SAME(10) and their like.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block10 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U32,
    /// GROUP NUMBER.
    pub group: u8,
    /// TRANSFER LENGTH, VERIFICATION LENGTH or NUMBER OF LOGICAL BLOCKS.
    pub block_count: U16,
    /// CONTROL.
    pub control: u8,
}

/// READ(12), WRITE(12), VERIFY(12), WRITE AND VERIFY(12).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block12 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U32,
    /// TRANSFER LENGTH or VERIFICATION LENGTH.
    pub block_count: U32,
    /// GROUP NUMBER.
    pub group: u8,
    /// CONTROL.
    pub control: u8,
}

/// READ(16), WRITE(16), VERIFY(16), WRITE SAME(16) and their like.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block16 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// TRANSFER LENGTH, VERIFICATION LENGTH or NUMBER OF LOGICAL BLOCKS.
    pub block_count: U32,
    /// GROUP NUMBER.
    pub group: u8,
    /// CONTROL.
    pub control: u8,
}

/// READ(32), WRITE(32), VERIFY(32), WRITE AND VERIFY(32) and WRITE SAME(32).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Block32 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// CONTROL.
    pub control: u8,
    /// Reserved.
    pub reserved_2: [u8; 4],
    /// GROUP NUMBER.
    pub group: u8,
    /// ADDITIONAL CDB LENGTH: the bytes after this one.
    pub additional_cdb_length: u8,
    /// SERVICE ACTION.
    pub service_action: U16,
    /// Flags.
    pub flags: u8,
    /// Reserved.
    pub reserved_11: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// EXPECTED INITIAL LOGICAL BLOCK REFERENCE TAG.
    pub expected_initial_reference_tag: U32,
    /// EXPECTED LOGICAL BLOCK APPLICATION TAG.
    pub expected_application_tag: U16,
    /// LOGICAL BLOCK APPLICATION TAG MASK.
    pub application_tag_mask: U16,
    /// TRANSFER LENGTH, VERIFICATION LENGTH or NUMBER OF LOGICAL BLOCKS.
    pub block_count: U32,
}

/// COMPARE AND WRITE (SBC-3 5.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CompareAndWrite {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// Reserved.
    pub reserved: [u8; 3],
    /// NUMBER OF LOGICAL BLOCKS.
    pub block_count: u8,
    /// GROUP NUMBER.
    pub group: u8,
    /// CONTROL.
    pub control: u8,
}

/// UNMAP (SBC-3 5.28).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Unmap {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// ANCHOR in bit 0.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 4],
    /// GROUP NUMBER.
    pub group: u8,
    /// PARAMETER LIST LENGTH.
    pub parameter_list_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// INQUIRY (SPC-4 6.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Inquiry {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// EVPD in bit 0, the obsolete CMDDT in bit 1.
    pub flags: u8,
    /// PAGE CODE.
    pub page_code: u8,
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// Six-byte commands with one flags byte and one length: REQUEST SENSE, MODE SENSE(6),
/// MODE SELECT(6), START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Short6 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// PC and PAGE CODE in MODE SENSE.
    pub page: u8,
    /// SUBPAGE CODE in MODE SENSE, POWER CONDITION MODIFIER in START STOP UNIT.
    pub subpage: u8,
    /// ALLOCATION LENGTH, PARAMETER LIST LENGTH or the flags of START STOP UNIT.
    pub length: u8,
    /// CONTROL.
    pub control: u8,
}

/// MODE SENSE(10) and MODE SELECT(10).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Mode10 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Flags.
    pub flags: u8,
    /// PC and PAGE CODE in MODE SENSE.
    pub page: u8,
    /// SUBPAGE CODE in MODE SENSE.
    pub subpage: u8,
    /// Reserved.
    pub reserved: [u8; 3],
    /// ALLOCATION LENGTH or PARAMETER LIST LENGTH.
    pub length: U16,
    /// CONTROL.
    pub control: u8,
}

/// SERVICE ACTION IN(16): READ CAPACITY(16) and GET LBA STATUS.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ServiceActionIn16 {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// LOGICAL BLOCK ADDRESS.
    pub lba: U64,
    /// ALLOCATION LENGTH.
    pub allocation_length: U32,
    /// Flags.
    pub flags: u8,
    /// CONTROL.
    pub control: u8,
}

/// REPORT LUNS (SPC-4 6.33).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportLuns {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// Reserved.
    pub reserved_1: u8,
    /// SELECT REPORT.
    pub select_report: u8,
    /// Reserved.
    pub reserved_3: [u8; 3],
    /// ALLOCATION LENGTH.
    pub allocation_length: U32,
    /// Reserved.
    pub reserved_10: u8,
    /// CONTROL.
    pub control: u8,
}

/// MAINTENANCE IN: REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT
/// FUNCTIONS (SPC-4 6.35, 6.36).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct MaintenanceIn {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// RCTD or REPD in bit 7, REPORTING OPTIONS in the low three bits.
    pub options: u8,
    /// REQUESTED OPERATION CODE.
    pub requested_operation_code: u8,
    /// REQUESTED SERVICE ACTION.
    pub requested_service_action: U16,
    /// ALLOCATION LENGTH.
    pub allocation_length: U32,
    /// Reserved.
    pub reserved: u8,
    /// CONTROL.
    pub control: u8,
}

assert_sizes!(
    Block6 = 6,
    Block10 = 10,
    Block12 = 12,
    Block16 = 16,
    Block32 = 32,
    CompareAndWrite = 16,
    Unmap = 10,
    Inquiry = 6,
    Short6 = 6,
    Mode10 = 10,
    ServiceActionIn16 = 16,
    ReportLuns = 12,
    MaintenanceIn = 12,
);
