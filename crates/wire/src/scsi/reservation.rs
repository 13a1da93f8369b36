//! PERSISTENT RESERVE IN and OUT: CDBs, parameter lists, parameter data (SPC-4 6.15, 6.16), and
//! the head of a TransportID (SPC-4 7.6.4).

use super::assert_sizes;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// SPEC_I_PT in the flags of the basic parameter list.
pub const SPEC_I_PT: u8 = 0x08;
/// ALL_TG_PT in the flags of the basic parameter list.
pub const ALL_TG_PT: u8 = 0x04;
/// APTPL in the flags of both parameter lists.
pub const APTPL: u8 = 0x01;
/// UNREG in the flags of REGISTER AND MOVE's list.
pub const UNREG: u8 = 0x02;
/// R_HOLDER in the flags of a full status descriptor.
pub const FULL_STATUS_R_HOLDER: u8 = 0x01;

/// RLR_C in the first flags of REPORT CAPABILITIES.
pub const CAPABLE_REPLACE_LOST_RESERVATION: u8 = 0x80;
/// CRH.
pub const CAPABLE_COMPATIBLE_RESERVATION_HANDLING: u8 = 0x10;
/// SIP_C.
pub const CAPABLE_SPECIFY_INITIATOR_PORTS: u8 = 0x08;
/// ATP_C.
pub const CAPABLE_ALL_TARGET_PORTS: u8 = 0x04;
/// PTPL_C.
pub const CAPABLE_PERSIST_THROUGH_POWER_LOSS: u8 = 0x01;
/// TMV in the second flags.
pub const TYPE_MASK_VALID: u8 = 0x80;
/// ALLOW COMMANDS is bits 6 to 4.
pub const ALLOW_COMMANDS_SHIFT: u32 = 4;
/// PTPL_A.
pub const PERSIST_THROUGH_POWER_LOSS_ACTIVATED: u8 = 0x01;

/// PROTOCOL IDENTIFIER of iSCSI (SPC-4 7.6.1).
pub const PROTOCOL_ISCSI: u8 = 0x05;
/// The bits of PROTOCOL IDENTIFIER, next to FORMAT CODE.
pub const TRANSPORT_ID_PROTOCOL: u8 = 0x0f;
/// FORMAT CODE is bits 7 and 6.
pub const TRANSPORT_ID_FORMAT_SHIFT: u32 = 6;
/// FORMAT CODE of an iSCSI initiator device.
pub const TRANSPORT_ID_DEVICE: u8 = 0b00;
/// FORMAT CODE of an iSCSI initiator port.
pub const TRANSPORT_ID_PORT: u8 = 0b01;

/// PERSISTENT RESERVE IN.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PersistentReserveIn {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// Reserved.
    pub reserved: [u8; 5],
    /// ALLOCATION LENGTH.
    pub allocation_length: U16,
    /// CONTROL.
    pub control: u8,
}

/// PERSISTENT RESERVE OUT.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct PersistentReserveOut {
    /// OPERATION CODE.
    pub operation_code: u8,
    /// SERVICE ACTION in the low five bits.
    pub service_action: u8,
    /// SCOPE in the high four bits, TYPE in the low ones.
    pub scope_and_type: u8,
    /// Reserved.
    pub reserved: [u8; 2],
    /// PARAMETER LIST LENGTH.
    pub parameter_list_length: U32,
    /// CONTROL.
    pub control: u8,
}

/// The basic parameter list (SPC-4 6.16.3). TransportIDs follow where SPEC_I_PT is set.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BasicList {
    /// RESERVATION KEY.
    pub reservation_key: U64,
    /// SERVICE ACTION RESERVATION KEY.
    pub service_action_reservation_key: U64,
    /// Obsolete.
    pub obsolete_16: [u8; 4],
    /// SPEC_I_PT, ALL_TG_PT and APTPL.
    pub flags: u8,
    /// Reserved.
    pub reserved: u8,
    /// Obsolete.
    pub obsolete_22: [u8; 2],
}

/// The parameter list of REGISTER AND MOVE (SPC-4 6.16.4). A TransportID follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RegisterAndMoveList {
    /// RESERVATION KEY.
    pub reservation_key: U64,
    /// SERVICE ACTION RESERVATION KEY.
    pub service_action_reservation_key: U64,
    /// Reserved.
    pub reserved: u8,
    /// UNREG and APTPL.
    pub flags: u8,
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative_target_port: U16,
    /// TRANSPORTID LENGTH.
    pub transport_id_length: U32,
}

/// The header of READ KEYS, READ RESERVATION and READ FULL STATUS parameter data.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReserveInHeader {
    /// PRGENERATION.
    pub generation: U32,
    /// ADDITIONAL LENGTH: the bytes that follow.
    pub additional_length: U32,
}

/// The description of a reservation in READ RESERVATION parameter data.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReservationDescriptor {
    /// RESERVATION KEY.
    pub reservation_key: U64,
    /// Obsolete.
    pub obsolete_8: [u8; 4],
    /// Reserved.
    pub reserved: u8,
    /// SCOPE and TYPE.
    pub scope_and_type: u8,
    /// Obsolete.
    pub obsolete_14: [u8; 2],
}

/// REPORT CAPABILITIES parameter data.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReserveCapabilities {
    /// LENGTH of the whole data.
    pub length: U16,
    /// RLR_C, CRH, SIP_C, ATP_C and PTPL_C.
    pub capable: u8,
    /// TMV, ALLOW COMMANDS and PTPL_A.
    pub flags: u8,
    /// PERSISTENT RESERVATION TYPE MASK: types 0 to 7 are bits 0 to 7 of the first byte, type 8 is bit 0 of the second.
    pub type_mask: [u8; 2],
    /// Reserved.
    pub reserved: [u8; 2],
}

/// The description of a registration in READ FULL STATUS parameter data. A TransportID follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FullStatusDescriptor {
    /// RESERVATION KEY.
    pub reservation_key: U64,
    /// Reserved.
    pub reserved_8: [u8; 4],
    /// ALL_TG_PT and R_HOLDER.
    pub flags: u8,
    /// SCOPE and TYPE of a reservation holder.
    pub scope_and_type: u8,
    /// Reserved.
    pub reserved_14: [u8; 4],
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative_target_port: U16,
    /// ADDITIONAL DESCRIPTOR LENGTH: the bytes of the TransportID.
    pub additional_descriptor_length: U32,
}

/// The head of an iSCSI TransportID. A name follows.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct TransportIdHeader {
    /// FORMAT CODE and PROTOCOL IDENTIFIER.
    pub format_and_protocol: u8,
    /// Reserved.
    pub reserved: u8,
    /// ADDITIONAL LENGTH.
    pub additional_length: U16,
}

assert_sizes!(
    PersistentReserveIn = 10,
    PersistentReserveOut = 10,
    BasicList = 24,
    RegisterAndMoveList = 24,
    ReserveInHeader = 8,
    ReservationDescriptor = 16,
    ReserveCapabilities = 8,
    FullStatusDescriptor = 24,
    TransportIdHeader = 4,
);
