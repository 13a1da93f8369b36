//! INQUIRY data and vital product data pages (SPC-4 6.6 and 7.8, SBC-3 6.6).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PERIPHERAL QUALIFIER 011b and DEVICE TYPE 1Fh: no logical unit at this number.
pub const PERIPHERAL_NONE: u8 = 0x7f;
/// PERIPHERAL QUALIFIER 001b: the unit exists but is currently not accessible through this port.
pub const PERIPHERAL_NOT_CONNECTED: u8 = 0x20;
/// 3PC: the device contains a copy manager.
pub const THIRD_PARTY_COPY: u8 = 0x08;
/// TPGS: only implicit asymmetric logical unit access.
pub const TPGS_IMPLICIT: u8 = 0x10;
/// TPGS: explicit asymmetric logical unit access.
pub const TPGS_EXPLICIT: u8 = 0x20;
/// TPGS: implicit and explicit asymmetric logical unit access.
pub const TPGS_BOTH: u8 = 0x30;
/// MULTIP: the target device has several ports.
pub const MULTIP: u8 = 0x10;
/// RMB: the medium can be removed.
pub const REMOVABLE: u8 = 0x80;
/// PROTECT: the unit supports protection information.
pub const FLAGS_5_PROTECT: u8 = 0x01;
/// VERSION: SPC-4.
pub const VERSION_SPC_4: u8 = 0x06;
/// VERSION DESCRIPTOR: SAM-5, no version claimed.
pub const DESCRIPTOR_SAM_5: u16 = 0x00a0;
/// VERSION DESCRIPTOR: SPC-4, no version claimed.
pub const DESCRIPTOR_SPC_4: u16 = 0x0460;
/// VERSION DESCRIPTOR: SBC-3, no version claimed.
pub const DESCRIPTOR_SBC_3: u16 = 0x04c0;
/// VERSION DESCRIPTOR: MMC-6, no version claimed.
pub const DESCRIPTOR_MMC_6: u16 = 0x04e0;
/// VERSION DESCRIPTOR: iSCSI, no version claimed.
pub const DESCRIPTOR_ISCSI: u16 = 0x0960;

/// Supported VPD Pages.
pub const PAGE_SUPPORTED: u8 = 0x00;
/// Unit Serial Number.
pub const PAGE_UNIT_SERIAL_NUMBER: u8 = 0x80;
/// Device Identification.
pub const PAGE_DEVICE_IDENTIFICATION: u8 = 0x83;
/// Extended INQUIRY Data.
pub const PAGE_EXTENDED_INQUIRY: u8 = 0x86;
/// Mode Page Policy.
pub const PAGE_MODE_PAGE_POLICY: u8 = 0x87;
/// SCSI Ports.
pub const PAGE_SCSI_PORTS: u8 = 0x88;
/// Third-party Copy.
pub const PAGE_THIRD_PARTY_COPY: u8 = 0x8f;
/// Block Limits.
pub const PAGE_BLOCK_LIMITS: u8 = 0xb0;
/// Block Device Characteristics.
pub const PAGE_BLOCK_DEVICE_CHARACTERISTICS: u8 = 0xb1;
/// Logical Block Provisioning.
pub const PAGE_LOGICAL_BLOCK_PROVISIONING: u8 = 0xb2;

/// WABEREQ 01b: blocks can be read after a BLOCK ERASE of SANITIZE, before they are written.
pub const WABEREQ_READS: u8 = 0x40;
/// WACEREQ 01b: the same after a CRYPTOGRAPHIC ERASE.
pub const WACEREQ_READS: u8 = 0x10;

/// Standard INQUIRY data (SPC-4 6.6.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StandardInquiry {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub peripheral: u8,
    /// RMB and LU_CONG.
    pub removable: u8,
    /// VERSION.
    pub version: u8,
    /// NORMACA, HISUP and RESPONSE DATA FORMAT.
    pub response_data_format: u8,
    /// ADDITIONAL LENGTH: the bytes after this one.
    pub additional_length: u8,
    /// SCCS, TPGS, 3PC and PROTECT.
    pub flags_5: u8,
    /// ENCSERV and MULTIP.
    pub flags_6: u8,
    /// CMDQUE.
    pub flags_7: u8,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: [u8; 8],
    /// PRODUCT IDENTIFICATION.
    pub product: [u8; 16],
    /// PRODUCT REVISION LEVEL.
    pub revision: [u8; 4],
    /// Vendor specific.
    pub vendor_specific: [u8; 20],
    /// Reserved.
    pub reserved_56: [u8; 2],
    /// VERSION DESCRIPTORs.
    pub version_descriptors: [U16; 8],
    /// Reserved.
    pub reserved_74: [u8; 22],
}

/// The header of every VPD page (SPC-4 7.8.2).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct VpdHeader {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub peripheral: u8,
    /// PAGE CODE.
    pub page_code: u8,
    /// PAGE LENGTH: the bytes after this header.
    pub page_length: U16,
}

/// The header of a designation descriptor (SPC-4 7.8.6).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DesignationHeader {
    /// PROTOCOL IDENTIFIER and CODE SET.
    pub code_set: u8,
    /// PIV, ASSOCIATION and DESIGNATOR TYPE.
    pub designator_type: u8,
    /// Reserved.
    pub reserved: u8,
    /// DESIGNATOR LENGTH.
    pub designator_length: u8,
}

/// The designator of relative target ports and target port groups (SPC-4 7.8.6.7, 7.8.6.8).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NumberDesignator {
    /// Reserved.
    pub reserved: [u8; 2],
    /// RELATIVE TARGET PORT IDENTIFIER or TARGET PORT GROUP.
    pub number: U16,
}

/// HEADSUP, ORDSUP and SIMPSUP in Extended INQUIRY Data: the supported task attributes.
pub const EXTENDED_HEADSUP_ORDSUP_SIMPSUP: u8 = 0x04 | 0x02 | 0x01;
/// GRD_CHK, APP_CHK and REF_CHK: the device checks every field of protection information.
pub const EXTENDED_GRD_APP_REF_CHK: u8 = 0x04 | 0x02 | 0x01;
/// SPT: type 1. SPT is above the three check bits.
pub const EXTENDED_SPT_1: u8 = 0;
/// SPT: type 2.
pub const EXTENDED_SPT_2: u8 = 0x10;
/// SPT: type 3.
pub const EXTENDED_SPT_3: u8 = 0x20;
/// V_SUP: the device has a volatile cache.
pub const EXTENDED_V_SUP: u8 = 0x01;
/// RTD_SUP: MODE SELECT can revert to defaults.
pub const EXTENDED_RTD_SUP: u8 = 0x08;

/// Extended INQUIRY Data after its header (SPC-4 7.8.8; SPC-5 for later fields).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ExtendedInquiry {
    /// ACTIVATE MICROCODE, SPT, GRD_CHK, APP_CHK and REF_CHK.
    pub protection: u8,
    /// UASK_SUP, GROUP_SUP, PRIOR_SUP, HEADSUP, ORDSUP and SIMPSUP.
    pub tasks: u8,
    /// WU_SUP, CRD_SUP, NV_SUP and V_SUP.
    pub cache: u8,
    /// P_I_I_SUP and LUICLR.
    pub flags_7: u8,
    /// R_SUP, RTD_SUP and HSSRELEF.
    pub flags_8: u8,
    /// MULTI I_T NEXUS MICROCODE DOWNLOAD.
    pub microcode: u8,
    /// EXTENDED SELF-TEST COMPLETION MINUTES.
    pub extended_self_test_completion_minutes: U16,
    /// POA_SUP, HRA_SUP and VSA_SUP.
    pub flags_12: u8,
    /// MAXIMUM SUPPORTED SENSE DATA LENGTH; 0 means 252.
    pub maximum_sense_data_length: u8,
    /// Reserved bytes, and fields that SPC-5 added.
    pub reserved_14: [u8; 18],
    /// Reserved.
    pub reserved_32: [u8; 32],
}

/// The policy "shared" for mode parameters.
pub const POLICY_SHARED: u8 = 0x00;

/// A mode page policy descriptor (SPC-4 7.8.10).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ModePagePolicy {
    /// POLICY PAGE CODE; 3Fh for all pages without a descriptor of their own.
    pub page_code: u8,
    /// POLICY SUBPAGE CODE; FFh for all subpages without a descriptor of their own.
    pub subpage_code: u8,
    /// MLUS and MODE PAGE POLICY.
    pub policy: u8,
    /// Reserved.
    pub reserved: u8,
}

/// FUAB: FUA and SYNCHRONIZE CACHE apply to volatile caches, as in SBC-3.
pub const CHARACTERISTICS_FUAB: u8 = 0x02;
/// VBULS: VERIFY also compares deallocated blocks.
pub const CHARACTERISTICS_VBULS: u8 = 0x01;

/// Block Limits after its header (SBC-3 6.6.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockLimits {
    /// WSNZ.
    pub flags: u8,
    /// MAXIMUM COMPARE AND WRITE LENGTH.
    pub maximum_compare_and_write_length: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY.
    pub optimal_transfer_length_granularity: U16,
    /// MAXIMUM TRANSFER LENGTH.
    pub maximum_transfer_length: U32,
    /// OPTIMAL TRANSFER LENGTH.
    pub optimal_transfer_length: U32,
    /// MAXIMUM PREFETCH LENGTH.
    pub maximum_prefetch_length: U32,
    /// MAXIMUM UNMAP LBA COUNT.
    pub maximum_unmap_lba_count: U32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub maximum_unmap_block_descriptor_count: U32,
    /// OPTIMAL UNMAP GRANULARITY.
    pub optimal_unmap_granularity: U32,
    /// UGAVALID and UNMAP GRANULARITY ALIGNMENT.
    pub unmap_granularity_alignment: U32,
    /// MAXIMUM WRITE SAME LENGTH.
    pub maximum_write_same_length: U64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH (this field and the next ones: SBC-4 6.6.4).
    pub maximum_atomic_transfer_length: U32,
    /// ATOMIC ALIGNMENT; 0 for any.
    pub atomic_alignment: U32,
    /// ATOMIC TRANSFER LENGTH GRANULARITY; 0 for any.
    pub atomic_transfer_length_granularity: U32,
    /// MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY.
    pub maximum_atomic_transfer_length_with_atomic_boundary: U32,
    /// MAXIMUM ATOMIC BOUNDARY SIZE; 0 where the device cannot divide writes.
    pub maximum_atomic_boundary_size: U32,
}

/// Block Device Characteristics after its header (SBC-3 6.6.3).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BlockDeviceCharacteristics {
    /// MEDIUM ROTATION RATE; 0001h for a medium that does not rotate.
    pub medium_rotation_rate: U16,
    /// PRODUCT TYPE.
    pub product_type: u8,
    /// [`WABEREQ_READS`], [`WACEREQ_READS`] and NOMINAL FORM FACTOR.
    pub form_factor: u8,
    /// FUAB and VBULS.
    pub flags: u8,
    /// Reserved.
    pub reserved: [u8; 55],
}

/// Logical Block Provisioning after its header (SBC-3 6.6.5).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct LogicalBlockProvisioning {
    /// THRESHOLD EXPONENT.
    pub threshold_exponent: u8,
    /// LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP and DP.
    pub flags: u8,
    /// PROVISIONING TYPE in the low three bits.
    pub provisioning_type: u8,
    /// Reserved.
    pub reserved: u8,
}

assert_sizes!(
    StandardInquiry = 96,
    VpdHeader = 4,
    DesignationHeader = 4,
    NumberDesignator = 4,
    ExtendedInquiry = 60,
    ModePagePolicy = 4,
    BlockLimits = 60,
    BlockDeviceCharacteristics = 60,
    LogicalBlockProvisioning = 4,
);
