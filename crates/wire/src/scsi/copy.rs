//! Third-party copies (SPC-4 6.3 to 6.5, 6.18 to 6.24 and SBC-3 5.9, 5.22, 5.43): CDBs, parameter
//! lists, results, ROD tokens. The Third-party Copy page is in [`super::copy_page`].

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layout {
    ($item:item) => {
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        $item
    };
}

layout! {
    /// CDB of EXTENDED COPY, RECEIVE COPY STATUS(LID1) and similar commands. They have a LIST IDENTIFIER of one byte;
    /// EXTENDED COPY has it, if any, in its parameter list.
    pub struct Lid1Cdb {
        /// OPERATION CODE.
        pub operation_code: u8,
        /// SERVICE ACTION in the low five bits.
        pub service_action: u8,
        /// LIST IDENTIFIER.
        pub list_identifier: u8,
        /// Reserved.
        pub reserved_3: [u8; 7],
        /// PARAMETER LIST LENGTH or ALLOCATION LENGTH.
        pub length: U32,
        /// Reserved.
        pub reserved_14: u8,
        /// CONTROL.
        pub control: u8,
    }
}

layout! {
    /// CDB of commands with a LIST IDENTIFIER of four bytes: RECEIVE COPY STATUS(LID4), RECEIVE ROD TOKEN INFORMATION,
    /// COPY OPERATION ABORT. REPORT ALL ROD TOKENS has the same layout.
    pub struct Lid4Cdb {
        /// OPERATION CODE.
        pub operation_code: u8,
        /// SERVICE ACTION in the low five bits.
        pub service_action: u8,
        /// LIST IDENTIFIER.
        pub list_identifier: U32,
        /// Reserved.
        pub reserved_6: [u8; 4],
        /// ALLOCATION LENGTH.
        pub length: U32,
        /// Reserved.
        pub reserved_14: u8,
        /// CONTROL.
        pub control: u8,
    }
}

layout! {
    /// POPULATE TOKEN and WRITE USING TOKEN.
    pub struct TokenOperation {
        /// OPERATION CODE.
        pub operation_code: u8,
        /// SERVICE ACTION in the low five bits.
        pub service_action: u8,
        /// Reserved.
        pub reserved_2: [u8; 4],
        /// LIST IDENTIFIER.
        pub list_identifier: U32,
        /// PARAMETER LIST LENGTH.
        pub length: U32,
        /// GROUP NUMBER.
        pub group: u8,
        /// CONTROL.
        pub control: u8,
    }
}

/// LIST ID USAGE in the flags of EXTENDED COPY(LID1).
pub const LIST_ID_USAGE: u8 = 0x18;
/// The identifier is valid; the copy manager keeps the held data.
pub const LIST_ID_HOLDS: u8 = 0x00;
/// The identifier is valid; the copy manager need not keep held data.
pub const LIST_ID_HOLDS_NOTHING: u8 = 0x10;
/// The list has no identifier.
pub const LIST_ID_NONE: u8 = 0x18;

layout! {
    /// The header of EXTENDED COPY(LID1)'s parameter list (SPC-4 6.5.2).
    pub struct ExtendedCopyHeader {
        /// LIST IDENTIFIER.
        pub list_identifier: u8,
        /// STR, LIST ID USAGE and PRIORITY.
        pub flags: u8,
        /// CSCD DESCRIPTOR LIST LENGTH.
        pub cscd_list_length: U16,
        /// Reserved.
        pub reserved: [u8; 4],
        /// SEGMENT DESCRIPTOR LIST LENGTH.
        pub segment_list_length: U32,
        /// INLINE DATA LENGTH.
        pub inline_data_length: U32,
    }
}

/// DESCRIPTOR TYPE CODE of an identification descriptor CSCD descriptor.
pub const CSCD_IDENTIFICATION: u8 = 0xe4;
/// The bits of PERIPHERAL DEVICE TYPE; the others are LU ID TYPE and NUL.
pub const CSCD_DEVICE_TYPE: u8 = 0x1f;
/// DESIGNATOR TYPE of a SCSI name string.
pub const DESIGNATOR_SCSI_NAME: u8 = 0x08;
/// PAD in the device type specific parameters.
pub const CSCD_PAD: u8 = 0x04;
/// A CSCD DESCRIPTOR ID for the logical unit that processes the command.
pub const CSCD_ID_THIS_UNIT: u16 = 0xffff;

layout! {
    /// An identification descriptor CSCD descriptor (SPC-4 6.4.5.6) of a block device.
    #[derive(Default)]
    pub struct IdentificationCscd {
        /// DESCRIPTOR TYPE CODE.
        pub descriptor_type: u8,
        /// LU ID TYPE, NUL and PERIPHERAL DEVICE TYPE.
        pub device_type: u8,
        /// RELATIVE INITIATOR PORT IDENTIFIER.
        pub relative_initiator_port: U16,
        /// CODE SET.
        pub code_set: u8,
        /// ASSOCIATION and DESIGNATOR TYPE.
        pub designator_type: u8,
        /// Reserved.
        pub reserved: u8,
        /// DESIGNATOR LENGTH.
        pub designator_length: u8,
        /// DESIGNATOR.
        pub designator: [u8; 20],
        /// PAD, of the device type specific parameters.
        pub flags: u8,
        /// DISK BLOCK LENGTH, three bytes.
        pub block_length: [u8; 3],
    }
}

/// DESCRIPTOR TYPE CODE: from block device to block device.
pub const SEGMENT_BLOCK_TO_BLOCK: u8 = 0x02;
/// DESCRIPTOR TYPE CODE: verify CSCD.
pub const SEGMENT_VERIFY: u8 = 0x07;
/// DESCRIPTOR TYPE CODE: from block device to block device with offsets in bytes.
pub const SEGMENT_BLOCK_TO_BLOCK_WITH_OFFSET: u8 = 0x0a;
/// DC: the block count applies to the destination.
pub const SEGMENT_DC: u8 = 0x02;
/// CAT.
pub const SEGMENT_CAT: u8 = 0x01;
/// TUR of a verify segment.
pub const SEGMENT_TUR: u8 = 0x01;

layout! {
    /// The header of every segment descriptor (SPC-4 6.4.6.1).
    pub struct SegmentHeader {
        /// DESCRIPTOR TYPE CODE.
        pub descriptor_type: u8,
        /// DC and CAT.
        pub flags: u8,
        /// DESCRIPTOR LENGTH: the bytes after this field.
        pub descriptor_length: U16,
    }
}

layout! {
    /// The fields of a block-to-block segment descriptor after its header (SPC-4 6.4.6.4).
    pub struct BlockToBlock {
        /// SOURCE CSCD DESCRIPTOR ID.
        pub source: U16,
        /// DESTINATION CSCD DESCRIPTOR ID.
        pub destination: U16,
        /// Reserved.
        pub reserved: [u8; 2],
        /// BLOCK DEVICE NUMBER OF BLOCKS.
        pub block_count: U16,
        /// SOURCE BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        pub source_lba: U64,
        /// DESTINATION BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        pub destination_lba: U64,
    }
}

layout! {
    /// The fields of a verify segment descriptor after its header (SPC-4 6.4.6.9).
    pub struct VerifyCscd {
        /// SOURCE CSCD DESCRIPTOR ID.
        pub source: U16,
        /// Reserved.
        pub reserved: [u8; 2],
        /// TUR.
        pub flags: u8,
        /// Reserved.
        pub reserved_9: [u8; 3],
    }
}

layout! {
    /// The fields of a block-to-block segment descriptor with offsets, after its header (SPC-4 6.4.6.12).
    pub struct BlockToBlockWithOffset {
        /// SOURCE CSCD DESCRIPTOR ID.
        pub source: U16,
        /// DESTINATION CSCD DESCRIPTOR ID.
        pub destination: U16,
        /// NUMBER OF BYTES.
        pub byte_count: U32,
        /// SOURCE BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        pub source_lba: U64,
        /// DESTINATION BLOCK DEVICE LOGICAL BLOCK ADDRESS.
        pub destination_lba: U64,
        /// SOURCE BLOCK DEVICE BYTE OFFSET.
        pub source_offset: U16,
        /// DESTINATION BLOCK DEVICE BYTE OFFSET.
        pub destination_offset: U16,
    }
}

/// COPY COMMAND STATUS: in progress (LID1).
pub const STATUS_IN_PROGRESS: u8 = 0x00;
/// COPY COMMAND STATUS: completed without errors.
pub const STATUS_COMPLETED: u8 = 0x01;
/// COPY COMMAND STATUS: completed with an error.
pub const STATUS_FAILED: u8 = 0x02;
/// COPY COMMAND STATUS: in progress in the foreground; the command has no status yet.
pub const STATUS_IN_FOREGROUND: u8 = 0x11;
/// COPY COMMAND STATUS: in progress in the background; the command has its status.
pub const STATUS_IN_BACKGROUND: u8 = 0x12;
/// COPY COMMAND STATUS: terminated before its end.
pub const STATUS_TERMINATED: u8 = 0x60;
/// TRANSFER COUNT UNITS: bytes.
pub const UNITS_BYTES: u8 = 0x00;
/// TRANSFER COUNT UNITS: mebibytes.
pub const UNITS_MEBIBYTES: u8 = 0x02;
/// TRANSFER COUNT UNITS: logical blocks.
pub const UNITS_BLOCKS: u8 = 0xf1;

layout! {
    /// RECEIVE COPY STATUS(LID1) parameter data (SPC-4 6.20).
    pub struct CopyStatusLid1 {
        /// AVAILABLE DATA: the bytes after this field.
        pub available_data: U32,
        /// HDD and COPY COMMAND STATUS.
        pub status: u8,
        /// SEGMENTS PROCESSED.
        pub segments_processed: U16,
        /// TRANSFER COUNT UNITS.
        pub transfer_count_units: u8,
        /// TRANSFER COUNT.
        pub transfer_count: U32,
    }
}

layout! {
    /// The header of RECEIVE COPY FAILURE DETAILS(LID1) parameter data (SPC-4 6.18).
    pub struct FailureDetails {
        /// AVAILABLE DATA: the bytes after this field.
        pub available_data: U32,
        /// Reserved.
        pub reserved_4: [u8; 52],
        /// COPY COMMAND STATUS.
        pub status: u8,
        /// Reserved.
        pub reserved_57: u8,
        /// SENSE DATA LENGTH.
        pub sense_data_length: U16,
    }
}

/// SNLID: copies without a list identifier are supported.
pub const OPERATING_SNLID: u8 = 0x01;

layout! {
    /// The header of RECEIVE COPY OPERATING PARAMETERS parameter data (SPC-4 6.19).
    pub struct OperatingParameters {
        /// AVAILABLE DATA: the bytes after this field.
        pub available_data: U32,
        /// SNLID.
        pub flags: u8,
        /// Reserved.
        pub reserved_5: [u8; 3],
        /// MAXIMUM CSCD DESCRIPTOR COUNT.
        pub maximum_cscd_count: U16,
        /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
        pub maximum_segment_count: U16,
        /// MAXIMUM DESCRIPTOR LIST LENGTH.
        pub maximum_descriptor_list_length: U32,
        /// MAXIMUM SEGMENT LENGTH.
        pub maximum_segment_length: U32,
        /// MAXIMUM INLINE DATA LENGTH.
        pub maximum_inline_data_length: U32,
        /// HELD DATA LIMIT.
        pub held_data_limit: U32,
        /// MAXIMUM STREAM DEVICE TRANSFER SIZE.
        pub maximum_stream_transfer: U32,
        /// Reserved.
        pub reserved_32: [u8; 2],
        /// TOTAL CONCURRENT COPIES.
        pub total_concurrent_copies: U16,
        /// MAXIMUM CONCURRENT COPIES.
        pub maximum_concurrent_copies: u8,
        /// DATA SEGMENT GRANULARITY, a power of two.
        pub data_segment_granularity: u8,
        /// INLINE DATA GRANULARITY, a power of two.
        pub inline_data_granularity: u8,
        /// HELD DATA GRANULARITY, a power of two.
        pub held_data_granularity: u8,
        /// Reserved.
        pub reserved_40: [u8; 3],
        /// IMPLEMENTED DESCRIPTOR LIST LENGTH.
        pub descriptor_type_count: u8,
    }
}

layout! {
    /// The header of RECEIVE COPY STATUS(LID4) and RECEIVE ROD TOKEN INFORMATION parameter data
    /// (SPC-4 6.21, 6.22); the sense data follows.
    pub struct CopyStatusLid4 {
        /// AVAILABLE DATA: the bytes after this field.
        pub available_data: U32,
        /// RESPONSE TO SERVICE ACTION.
        pub service_action: u8,
        /// HDD and COPY COMMAND STATUS.
        pub status: u8,
        /// OPERATION COUNTER.
        pub operation_counter: U16,
        /// ESTIMATED STATUS UPDATE DELAY, in milliseconds.
        pub update_delay: U32,
        /// EXTENDED COPY COMPLETION STATUS.
        pub completion_status: u8,
        /// LENGTH OF THE SENSE DATA FIELD.
        pub sense_field_length: u8,
        /// SENSE DATA LENGTH.
        pub sense_data_length: u8,
        /// TRANSFER COUNT UNITS.
        pub transfer_count_units: u8,
        /// TRANSFER COUNT.
        pub transfer_count: U64,
        /// SEGMENTS PROCESSED.
        pub segments_processed: U16,
        /// Reserved.
        pub reserved: [u8; 6],
    }
}

/// IMMED of POPULATE TOKEN and WRITE USING TOKEN.
pub const TOKEN_IMMED: u8 = 0x01;
/// RTV of POPULATE TOKEN: ROD TYPE is valid.
pub const TOKEN_RTV: u8 = 0x02;
/// DEL_TKN of WRITE USING TOKEN.
pub const TOKEN_DELETE: u8 = 0x02;

layout! {
    /// The header of POPULATE TOKEN's parameter list (SBC-3 5.9.2).
    pub struct PopulateTokenHeader {
        /// POPULATE TOKEN DATA LENGTH: the bytes after this field.
        pub data_length: U16,
        /// IMMED and RTV.
        pub flags: u8,
        /// Reserved.
        pub reserved_3: u8,
        /// INACTIVITY TIMEOUT, in seconds.
        pub inactivity_timeout: U32,
        /// ROD TYPE.
        pub rod_type: U32,
        /// Reserved.
        pub reserved_12: [u8; 2],
        /// BLOCK DEVICE RANGE DESCRIPTOR LENGTH.
        pub ranges_length: U16,
    }
}

layout! {
    /// The header of WRITE USING TOKEN's parameter list (SBC-3 5.43.2).
    pub struct WriteUsingTokenHeader {
        /// WRITE USING TOKEN DATA LENGTH: the bytes after this field.
        pub data_length: U16,
        /// IMMED and DEL_TKN.
        pub flags: u8,
        /// Reserved.
        pub reserved_3: [u8; 5],
        /// OFFSET INTO ROD.
        pub offset_into_rod: U64,
        /// ROD TOKEN.
        pub token: RodToken,
        /// Reserved.
        pub reserved_528: [u8; 6],
        /// BLOCK DEVICE RANGE DESCRIPTOR LENGTH.
        pub ranges_length: U16,
    }
}

layout! {
    /// A block device range descriptor (SBC-3 5.9.3).
    pub struct RangeDescriptor {
        /// LOGICAL BLOCK ADDRESS.
        pub lba: U64,
        /// NUMBER OF LOGICAL BLOCKS.
        pub block_count: U32,
        /// Reserved.
        pub reserved: [u8; 4],
    }
}

/// ROD TYPE: access upon reference.
pub const ROD_ACCESS_UPON_REFERENCE: u32 = 0x0001_0000;
/// ROD TYPE: point in time copy, default.
pub const ROD_POINT_IN_TIME_DEFAULT: u32 = 0x0080_0000;
/// ROD TYPE: point in time copy, change vulnerable.
pub const ROD_POINT_IN_TIME_CHANGE_VULNERABLE: u32 = 0x0080_0001;
/// ROD TYPE: point in time copy, persistent.
pub const ROD_POINT_IN_TIME_PERSISTENT: u32 = 0x0080_0002;
/// ROD TYPE: point in time copy, any.
pub const ROD_POINT_IN_TIME_ANY: u32 = 0x0080_ffff;
/// ROD TYPE: block device zero ROD token (SBC-3 4.28.4).
pub const ROD_BLOCK_DEVICE_ZERO: u32 = 0xffff_0001;
/// ROD TOKEN LENGTH.
pub const ROD_TOKEN_LENGTH: u16 = 0x01f8;

layout! {
    /// The first part of a ROD token, as REPORT ALL ROD TOKENS returns it (SPC-4 6.25).
    pub struct RodManagementToken {
        /// ROD TYPE.
        pub rod_type: U32,
        /// Reserved.
        pub reserved: [u8; 2],
        /// ROD TOKEN LENGTH.
        pub length: U16,
        /// COPY MANAGER ROD TOKEN IDENTIFIER.
        pub identifier: U64,
        /// CREATOR LOGICAL UNIT DESCRIPTOR.
        pub creator: IdentificationCscd,
        /// NUMBER OF BYTES REPRESENTED.
        pub byte_count: U128,
        /// ROD token type specific data.
        pub type_specific: [u8; 32],
    }
}

layout! {
    /// A ROD token of a block device (SPC-4 5.17.6.4, SBC-3 4.28.3).
    pub struct RodToken {
        /// The first 96 bytes of the token.
        pub management: RodManagementToken,
        /// LOGICAL BLOCK LENGTH IN BYTES.
        pub block_length: U32,
        /// P_TYPE and PROT_EN.
        pub protection: u8,
        /// P_I_EXPONENT and LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
        pub exponents: u8,
        /// LBPME, LBPRZ and LOWEST ALIGNED LOGICAL BLOCK ADDRESS.
        pub provisioning: U16,
        /// Reserved.
        pub reserved: [u8; 24],
        /// TARGET DEVICE DESCRIPTOR.
        pub target_device: [u8; 32],
        /// EXTENDED ROD TOKEN DATA: a secret that cannot be guessed.
        pub secret: [u8; 352],
    }
}

layout! {
    /// The header of REPORT ALL ROD TOKENS parameter data.
    pub struct TokenListHeader {
        /// AVAILABLE DATA: the bytes after this field.
        pub available_data: U32,
        /// Reserved.
        pub reserved: [u8; 4],
    }
}

assert_sizes!(
    Lid1Cdb = 16,
    Lid4Cdb = 16,
    TokenOperation = 16,
    ExtendedCopyHeader = 16,
    IdentificationCscd = 32,
    SegmentHeader = 4,
    BlockToBlock = 24,
    VerifyCscd = 8,
    BlockToBlockWithOffset = 28,
    CopyStatusLid1 = 12,
    FailureDetails = 60,
    OperatingParameters = 44,
    CopyStatusLid4 = 32,
    PopulateTokenHeader = 16,
    WriteUsingTokenHeader = 536,
    RangeDescriptor = 16,
    RodManagementToken = 96,
    RodToken = 512,
    TokenListHeader = 8,
);
