//! Sense data in fixed and descriptor format (SPC-4 4.5).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// RESPONSE CODE of current errors in fixed format.
pub const RESPONSE_FIXED_CURRENT: u8 = 0x70;
/// RESPONSE CODE of current errors in descriptor format.
pub const RESPONSE_DESCRIPTOR_CURRENT: u8 = 0x72;
/// VALID, next to the response code in fixed format, and in the information descriptor.
pub const VALID: u8 = 0x80;
/// DESCRIPTOR TYPE of the information descriptor.
pub const DESCRIPTOR_INFORMATION: u8 = 0x00;
/// DESCRIPTOR TYPE of the command specific information descriptor, which has the same layout.
pub const DESCRIPTOR_COMMAND_SPECIFIC_INFORMATION: u8 = 0x01;
/// DESCRIPTOR TYPE of the sense key specific descriptor.
pub const DESCRIPTOR_SENSE_KEY_SPECIFIC: u8 = 0x02;
/// SKSV: the sense key specific bytes are valid.
pub const SKSV: u8 = 0x80;
/// C/D: the field pointer refers to the CDB, not to the parameter list.
pub const COMMAND_DATA: u8 = 0x40;
/// BPV: the bit pointer is valid.
pub const BIT_POINTER_VALID: u8 = 0x08;

/// The sense key specific bytes: the field pointer of an ILLEGAL REQUEST (SPC-4 4.5.2.4.2), or a PROGRESS INDICATION
/// (4.5.2.4.4) with the same layout.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FieldPointer {
    /// SKSV, C/D, BPV and BIT POINTER.
    pub flags: u8,
    /// FIELD POINTER: the number of the byte.
    pub field: U16,
}

/// Fixed format (SPC-4 4.5.3).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FixedSense {
    /// VALID and RESPONSE CODE.
    pub response_code: u8,
    /// Obsolete.
    pub obsolete: u8,
    /// FILEMARK, EOM, ILI, SDAT_OVFL and SENSE KEY.
    pub sense_key: u8,
    /// INFORMATION.
    pub information: U32,
    /// ADDITIONAL SENSE LENGTH: the bytes after this one.
    pub additional_sense_length: u8,
    /// COMMAND-SPECIFIC INFORMATION.
    pub command_specific_information: U32,
    /// ADDITIONAL SENSE CODE and its QUALIFIER.
    pub additional_sense: U16,
    /// FIELD REPLACEABLE UNIT CODE.
    pub field_replaceable_unit: u8,
    /// SENSE KEY SPECIFIC.
    pub field_pointer: FieldPointer,
}

/// The header of descriptor format (SPC-4 4.5.2.1).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DescriptorSense {
    /// RESPONSE CODE.
    pub response_code: u8,
    /// SENSE KEY.
    pub sense_key: u8,
    /// ADDITIONAL SENSE CODE and its QUALIFIER.
    pub additional_sense: U16,
    /// SDAT_OVFL and reserved bytes.
    pub reserved: [u8; 3],
    /// ADDITIONAL SENSE LENGTH: the bytes of the descriptors.
    pub additional_sense_length: u8,
}

/// The information descriptor and the command specific one (SPC-4 4.5.2.2, 4.5.2.3).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InformationDescriptor {
    /// 00h.
    pub descriptor_type: u8,
    /// 0Ah.
    pub additional_length: u8,
    /// VALID.
    pub valid: u8,
    /// Reserved.
    pub reserved: u8,
    /// INFORMATION.
    pub information: U64,
}

/// The sense key specific descriptor (SPC-4 4.5.2.4).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SenseKeySpecificDescriptor {
    /// 02h.
    pub descriptor_type: u8,
    /// 06h.
    pub additional_length: u8,
    /// Reserved.
    pub reserved_2: [u8; 2],
    /// SENSE KEY SPECIFIC.
    pub field_pointer: FieldPointer,
    /// Reserved.
    pub reserved_7: u8,
}

assert_sizes!(
    FieldPointer = 3,
    FixedSense = 18,
    DescriptorSense = 8,
    InformationDescriptor = 12,
    SenseKeySpecificDescriptor = 8,
);
