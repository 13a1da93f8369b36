//! The descriptors of the Third-party Copy page (SPC-4 7.8.17, SBC-3 6.6.7).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! layout {
    ($item:item) => {
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        $item
    };
}

/// THIRD-PARTY COPY DESCRIPTOR TYPE: Block Device ROD Limits.
pub const BLOCK_DEVICE_ROD_LIMITS: u16 = 0x0000;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: Supported Commands.
pub const SUPPORTED_COMMANDS: u16 = 0x0001;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: Parameter Data.
pub const PARAMETER_DATA: u16 = 0x0004;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: Supported Descriptors.
pub const SUPPORTED_DESCRIPTORS: u16 = 0x0008;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: Supported CSCD Descriptor IDs.
pub const SUPPORTED_CSCD_IDS: u16 = 0x000c;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: ROD Token Features.
pub const ROD_TOKEN_FEATURES: u16 = 0x0106;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: Supported ROD Types.
pub const SUPPORTED_ROD_TYPES: u16 = 0x0108;
/// THIRD-PARTY COPY DESCRIPTOR TYPE: General Copy Operations.
pub const GENERAL_COPY_OPERATIONS: u16 = 0x8001;

layout! {
    /// The header of every descriptor.
    pub struct DescriptorHeader {
        /// THIRD-PARTY COPY DESCRIPTOR TYPE.
        pub descriptor_type: U16,
        /// THIRD-PARTY COPY DESCRIPTOR LENGTH: the bytes after this header.
        pub length: U16,
    }
}

layout! {
    /// Block Device ROD Limits.
    pub struct BlockDeviceRodLimits {
        /// Reserved.
        pub reserved: [u8; 6],
        /// MAXIMUM RANGE DESCRIPTORS.
        pub maximum_range_descriptors: U16,
        /// MAXIMUM INACTIVITY TIMEOUT, in seconds.
        pub maximum_inactivity_timeout: U32,
        /// DEFAULT INACTIVITY TIMEOUT, in seconds.
        pub default_inactivity_timeout: U32,
        /// MAXIMUM TOKEN TRANSFER SIZE, in blocks.
        pub maximum_token_transfer_size: U64,
        /// OPTIMAL TRANSFER COUNT, in blocks.
        pub optimal_transfer_count: U64,
    }
}

layout! {
    /// Parameter Data.
    pub struct ParameterData {
        /// Reserved.
        pub reserved: [u8; 4],
        /// MAXIMUM CSCD DESCRIPTOR COUNT.
        pub maximum_cscd_count: U16,
        /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
        pub maximum_segment_count: U16,
        /// MAXIMUM DESCRIPTOR LIST LENGTH.
        pub maximum_descriptor_list_length: U32,
        /// MAXIMUM INLINE DATA LENGTH.
        pub maximum_inline_data_length: U32,
        /// Reserved.
        pub reserved_16: [u8; 12],
    }
}

layout! {
    /// ROD Token Features with one set of features, for block devices.
    pub struct RodTokenFeatures {
        /// REMOTE TOKENS in the low four bits.
        pub remote_tokens: u8,
        /// Reserved.
        pub reserved_1: [u8; 11],
        /// MINIMUM TOKEN LIFETIME, in seconds.
        pub minimum_token_lifetime: U32,
        /// MAXIMUM TOKEN LIFETIME, in seconds.
        pub maximum_token_lifetime: U32,
        /// MAXIMUM TOKEN INACTIVITY TIMEOUT, in seconds.
        pub maximum_token_inactivity_timeout: U32,
        /// Reserved.
        pub reserved_24: [u8; 18],
        /// ROD DEVICE TYPE SPECIFIC FEATURES DESCRIPTORS LENGTH.
        pub features_length: U16,
        /// The features of block devices.
        pub block_device: BlockDeviceRodFeatures,
    }
}

layout! {
    /// The ROD device type specific features of block devices (SBC-3 6.6.7.2).
    pub struct BlockDeviceRodFeatures {
        /// DESCRIPTOR FORMAT and PERIPHERAL DEVICE TYPE.
        pub peripheral: u8,
        /// Reserved.
        pub reserved_1: u8,
        /// DESCRIPTOR LENGTH: the bytes after this field.
        pub length: U16,
        /// Reserved.
        pub reserved_4: [u8; 2],
        /// OPTIMAL BLOCK ROD LENGTH GRANULARITY.
        pub optimal_length_granularity: U16,
        /// MAXIMUM BYTES IN BLOCK ROD.
        pub maximum_bytes: U64,
        /// OPTIMAL BYTES IN BLOCK ROD TRANSFER.
        pub optimal_bytes: U64,
        /// OPTIMAL BYTES TO TOKEN PER SEGMENT.
        pub optimal_bytes_to_token: U64,
        /// OPTIMAL BYTES FROM TOKEN PER SEGMENT.
        pub optimal_bytes_from_token: U64,
        /// Reserved.
        pub reserved_40: [u8; 8],
    }
}

/// A ROD type that EXTENDED COPY uses.
pub const ROD_TYPE_ECPY_INT: u8 = 0x80;
/// TOKEN IN: commands accept tokens of the type.
pub const ROD_TYPE_TOKEN_IN: u8 = 0x02;
/// TOKEN OUT: commands create tokens of the type.
pub const ROD_TYPE_TOKEN_OUT: u8 = 0x01;

layout! {
    /// The header of Supported ROD Types.
    pub struct RodTypesHeader {
        /// Reserved.
        pub reserved: [u8; 2],
        /// ROD TYPE DESCRIPTORS LENGTH.
        pub length: U16,
    }
}

layout! {
    /// A ROD type.
    pub struct RodType {
        /// ROD TYPE.
        pub rod_type: U32,
        /// ECPY_INT, TOKEN IN and TOKEN OUT.
        pub flags: u8,
        /// Reserved.
        pub reserved_5: u8,
        /// PREFERENCE INDICATOR.
        pub preference: U16,
        /// Reserved.
        pub reserved_8: [u8; 56],
    }
}

layout! {
    /// General Copy Operations.
    pub struct GeneralCopyOperations {
        /// TOTAL CONCURRENT COPIES.
        pub total_concurrent_copies: U32,
        /// MAXIMUM IDENTIFIED CONCURRENT COPIES.
        pub maximum_identified_concurrent_copies: U32,
        /// MAXIMUM SEGMENT LENGTH.
        pub maximum_segment_length: U32,
        /// DATA SEGMENT GRANULARITY, a power of two.
        pub data_segment_granularity: u8,
        /// INLINE DATA GRANULARITY, a power of two.
        pub inline_data_granularity: u8,
        /// Reserved.
        pub reserved: [u8; 18],
    }
}

assert_sizes!(
    DescriptorHeader = 4,
    BlockDeviceRodLimits = 32,
    ParameterData = 28,
    BlockDeviceRodFeatures = 48,
    RodTokenFeatures = 92,
    RodTypesHeader = 4,
    RodType = 64,
    GeneralCopyOperations = 32,
);
