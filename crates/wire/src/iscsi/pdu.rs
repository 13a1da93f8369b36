//! Basic header segments (RFC 7143 §11.2 to §11.19), each declared once.
//!
//! A header arrives as [`RawHeader`]; its opcode says which of the types to view it as:
//! all are 48 bytes and any bytes are a valid value.

use core::fmt;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::code::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponse, Opcode, RejectReason, Stage,
    TaskManagementFunction, TaskManagementResponse,
};
use super::{BASIC_HEADER_LENGTH, RESERVED_TAG, SerialNumber};

/// The bit of the first byte that marks an immediate request.
pub const IMMEDIATE: u8 = 0x40;
/// The final bit of the second byte; the transit bit in a login.
pub const FINAL: u8 = 0x80;
/// The continue bit of text and login.
pub const CONTINUE: u8 = 0x40;

/// 24 bits, big-endian: the length of a data segment.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct U24([u8; 3]);

impl U24 {
    /// The largest value.
    pub const MAX: u32 = 0x00ff_ffff;

    /// Panics above [`Self::MAX`]: callers cut to a negotiated length first.
    pub const fn new(value: u32) -> Self {
        assert!(value <= Self::MAX);
        let [_, a, b, c] = value.to_be_bytes();
        Self([a, b, c])
    }

    /// The value.
    pub const fn value(self) -> u32 {
        let [a, b, c] = self.0;
        u32::from_be_bytes([0, a, b, c])
    }
}

impl fmt::Debug for U24 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

/// The six bytes with which an initiator names its end of a session (RFC 7143 §11.12.5).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct Isid(pub [u8; 6]);

impl fmt::Debug for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Isid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

macro_rules! header {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type,)* }
        const _: () = assert!(size_of::<$name>() == BASIC_HEADER_LENGTH);
        impl From<RawHeader> for $name {
            fn from(raw: RawHeader) -> Self {
                transmute!(raw.0)
            }
        }
        impl From<$name> for RawHeader {
            fn from(header: $name) -> Self {
                Self(transmute!(header))
            }
        }
        impl $name {
            /// Views bytes as this header.
            pub fn view(raw: &RawHeader) -> &Self {
                transmute_ref!(&raw.0)
            }
        }
    };
}

/// 48 bytes whose opcode has not been looked at.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawHeader(pub [u8; BASIC_HEADER_LENGTH]);

impl RawHeader {
    /// All bytes zero.
    pub const ZERO: Self = Self([0; BASIC_HEADER_LENGTH]);

    /// The fields that all headers share.
    pub fn basic(&self) -> &BasicHeader {
        BasicHeader::view(self)
    }
}

impl fmt::Debug for RawHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.basic().fmt(f)
    }
}

header! {
    /// What all headers share (RFC 7143 §11.2.1).
    BasicHeader {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// Final bit and opcode-specific flags.
        flags: u8,
        /// Opcode-specific.
        specific: [u8; 2],
        /// Additional header segments, in four-byte words.
        total_ahs_length: u8,
        /// Bytes of data, without padding.
        data_segment_length: U24,
        /// LUN or opcode-specific.
        lun: [u8; 8],
        /// The initiator's tag.
        initiator_task_tag: U32,
        /// Opcode-specific.
        rest: [u8; 28],
    }
}

impl BasicHeader {
    /// The opcode.
    pub const fn opcode(&self) -> Opcode {
        Opcode(self.opcode_byte & 0x3f)
    }

    /// Whether the request is for immediate delivery.
    pub const fn is_immediate(&self) -> bool {
        self.opcode_byte & IMMEDIATE != 0
    }

    /// The final bit.
    pub const fn is_final(&self) -> bool {
        self.flags & FINAL != 0
    }
}

header! {
    /// SCSI Command (RFC 7143 §11.3).
    ScsiCommand {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// F, R, W and the task attribute.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Words of additional headers.
        total_ahs_length: u8,
        /// Immediate data.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// Bytes that the initiator expects to move.
        expected_data_transfer_length: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// First sixteen bytes of the CDB.
        cdb: [u8; 16],
    }
}

impl ScsiCommand {
    /// R: data is expected from the target.
    pub const READ: u8 = 0x40;
    /// W: data is to be sent to the target.
    pub const WRITE: u8 = 0x20;
    /// The task attribute's bits.
    pub const ATTRIBUTE: u8 = 0x07;
}

header! {
    /// SCSI Response (RFC 7143 §11.4).
    ScsiResponse {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit and residual flags.
        flags: u8,
        /// iSCSI service response.
        response: u8,
        /// SCSI status.
        status: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Sense data with its length.
        data_segment_length: U24,
        /// Zero.
        reserved: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// SNACK tag.
        snack_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Data-In and R2T PDUs that the target sent for the task.
        exp_data_sn: U32,
        /// Residual of the read half of a bidirectional command.
        bidirectional_read_residual: U32,
        /// Residual.
        residual_count: U32,
    }
}

impl ScsiResponse {
    /// The command completed at the target.
    pub const COMPLETED: u8 = 0;
    /// The target failed.
    pub const TARGET_FAILURE: u8 = 1;
    /// O: more data would have moved than was expected.
    pub const OVERFLOW: u8 = 0x04;
    /// U: less data moved than was expected.
    pub const UNDERFLOW: u8 = 0x02;
}

header! {
    /// Task Management Function Request (RFC 7143 §11.5).
    TaskManagementRequest {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// Final bit and function.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// Tag of this request.
        initiator_task_tag: U32,
        /// Tag of the task that is meant.
        referenced_task_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// CmdSN of the task that is meant.
        ref_cmd_sn: U32,
        /// ExpDataSN, for reassignment.
        exp_data_sn: U32,
        /// Zero.
        reserved_tail: [u8; 8],
    }
}

impl TaskManagementRequest {
    /// The function.
    pub const fn function(&self) -> TaskManagementFunction {
        TaskManagementFunction(self.flags & 0x7f)
    }
}

header! {
    /// Task Management Function Response (RFC 7143 §11.6).
    TaskManagementResponsePdu {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Response.
        response: u8,
        /// Zero.
        reserved: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Zero.
        reserved_lun: [u8; 8],
        /// Tag of the request.
        initiator_task_tag: U32,
        /// Zero.
        reserved_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Zero.
        reserved_tail: [u8; 12],
    }
}

impl TaskManagementResponsePdu {
    /// The response.
    pub const fn response(&self) -> TaskManagementResponse {
        TaskManagementResponse(self.response)
    }
}

header! {
    /// SCSI Data-Out (RFC 7143 §11.7).
    DataOut {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Data.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// Tag of the R2T that this answers, or the reserved tag for unsolicited data.
        target_transfer_tag: U32,
        /// Zero.
        reserved_cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_max_cmd_sn: U32,
        /// DataSN.
        data_sn: U32,
        /// Where the data belongs.
        buffer_offset: U32,
        /// Zero.
        reserved_tail: U32,
    }
}

header! {
    /// SCSI Data-In (RFC 7143 §11.7).
    DataIn {
        /// Opcode.
        opcode_byte: u8,
        /// F, A, O, U and S.
        flags: u8,
        /// Zero.
        reserved: u8,
        /// SCSI status, with S.
        status: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Data.
        data_segment_length: U24,
        /// Logical unit, with a target transfer tag.
        lun: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// Tag for DataACK, or the reserved tag.
        target_transfer_tag: U32,
        /// StatSN, with S.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN.
        data_sn: U32,
        /// Where the data belongs.
        buffer_offset: U32,
        /// Residual, with S.
        residual_count: U32,
    }
}

impl DataIn {
    /// S: this PDU carries the status.
    pub const STATUS: u8 = 0x01;
    /// A: the initiator is to acknowledge.
    pub const ACKNOWLEDGE: u8 = 0x40;
}

header! {
    /// Ready To Transfer (RFC 7143 §11.8).
    R2t {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// The tag that the data is to carry.
        target_transfer_tag: U32,
        /// The next StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// R2TSN.
        r2t_sn: U32,
        /// First byte wanted.
        buffer_offset: U32,
        /// Bytes wanted.
        desired_data_transfer_length: U32,
    }
}

header! {
    /// Asynchronous Message (RFC 7143 §11.9).
    AsyncMessage {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Sense data of a SCSI event.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// The reserved tag.
        initiator_task_tag: U32,
        /// Zero.
        reserved_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// The event.
        event: u8,
        /// Vendor's code.
        vendor_code: u8,
        /// Parameter1.
        parameter1: U16,
        /// Parameter2.
        parameter2: U16,
        /// Parameter3.
        parameter3: U16,
        /// Zero.
        reserved_tail: U32,
    }
}

impl AsyncMessage {
    /// The event.
    pub const fn event(&self) -> AsyncEvent {
        AsyncEvent(self.event)
    }
}

header! {
    /// Text Request (RFC 7143 §11.10).
    TextRequest {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// F and C.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Keys.
        data_segment_length: U24,
        /// Logical unit, echoed.
        lun: [u8; 8],
        /// Tag of the negotiation.
        initiator_task_tag: U32,
        /// The target's tag of a negotiation that goes on.
        target_transfer_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_tail: [u8; 16],
    }
}

header! {
    /// Text Response (RFC 7143 §11.11).
    TextResponse {
        /// Opcode.
        opcode_byte: u8,
        /// F and C.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Keys.
        data_segment_length: U24,
        /// Logical unit, echoed.
        lun: [u8; 8],
        /// Tag of the negotiation.
        initiator_task_tag: U32,
        /// Tag with which the initiator fetches the rest.
        target_transfer_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Zero.
        reserved_tail: [u8; 12],
    }
}

header! {
    /// Login Request (RFC 7143 §11.12).
    LoginRequest {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// T, C, CSG and NSG.
        flags: u8,
        /// Highest version.
        version_max: u8,
        /// Lowest version.
        version_min: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Keys.
        data_segment_length: U24,
        /// The initiator's name for its end.
        isid: Isid,
        /// The session to join, or zero.
        tsih: U16,
        /// Tag of the login.
        initiator_task_tag: U32,
        /// Connection id.
        cid: U16,
        /// Zero.
        reserved: U16,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_tail: [u8; 16],
    }
}

/// The stage that the flags of a login name as the current one.
pub const fn current_stage(flags: u8) -> Stage {
    Stage(flags >> 2 & 3)
}

/// The stage that the flags of a login name as the next one.
pub const fn next_stage(flags: u8) -> Stage {
    Stage(flags & 3)
}

header! {
    /// Login Response (RFC 7143 §11.13).
    LoginResponse {
        /// Opcode.
        opcode_byte: u8,
        /// T, C, CSG and NSG.
        flags: u8,
        /// Highest version.
        version_max: u8,
        /// Version in use.
        version_active: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Keys.
        data_segment_length: U24,
        /// As in the request.
        isid: Isid,
        /// The session.
        tsih: U16,
        /// Tag of the login.
        initiator_task_tag: U32,
        /// Zero.
        reserved: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Status class and detail.
        status: U16,
        /// Zero.
        reserved_tail: [u8; 10],
    }
}

impl LoginResponse {
    /// Class and detail.
    pub const fn status(&self) -> LoginStatus {
        LoginStatus(self.status.get())
    }
}

header! {
    /// Logout Request (RFC 7143 §11.14).
    LogoutRequest {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// Final bit and reason.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Zero.
        reserved_lun: [u8; 8],
        /// Tag of the request.
        initiator_task_tag: U32,
        /// The connection that is meant.
        cid: U16,
        /// Zero.
        reserved_cid: U16,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_tail: [u8; 16],
    }
}

impl LogoutRequest {
    /// The reason.
    pub const fn reason(&self) -> LogoutReason {
        LogoutReason(self.flags & 0x7f)
    }
}

header! {
    /// Logout Response (RFC 7143 §11.15).
    LogoutResponsePdu {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Response.
        response: u8,
        /// Zero.
        reserved: u8,
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Zero.
        reserved_lun: [u8; 8],
        /// Tag of the request.
        initiator_task_tag: U32,
        /// Zero.
        reserved_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Zero.
        reserved_data_sn: U32,
        /// Seconds to wait before recovery.
        time2wait: U16,
        /// Seconds within which recovery is possible.
        time2retain: U16,
        /// Zero.
        reserved_tail: U32,
    }
}

impl LogoutResponsePdu {
    /// The response.
    pub const fn response(&self) -> LogoutResponse {
        LogoutResponse(self.response)
    }
}

header! {
    /// SNACK Request (RFC 7143 §11.16).
    SnackRequest {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit and type.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Zero.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// The task's tag.
        initiator_task_tag: U32,
        /// Target transfer tag or SNACK tag.
        tag: U32,
        /// Zero.
        reserved_cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_middle: [u8; 8],
        /// First number of the run.
        beg_run: U32,
        /// Length of the run.
        run_length: U32,
    }
}

header! {
    /// Reject (RFC 7143 §11.17).
    Reject {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Reason.
        reason: u8,
        /// Zero.
        reserved: u8,
        /// Zero.
        total_ahs_length: u8,
        /// The rejected header.
        data_segment_length: U24,
        /// Zero.
        reserved_lun: [u8; 8],
        /// The reserved tag.
        initiator_task_tag: U32,
        /// Zero.
        reserved_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// DataSN or R2TSN.
        data_sn: U32,
        /// Zero.
        reserved_tail: [u8; 8],
    }
}

impl Reject {
    /// The reason.
    pub const fn reason(&self) -> RejectReason {
        RejectReason(self.reason)
    }
}

header! {
    /// NOP-Out (RFC 7143 §11.18).
    NopOut {
        /// Immediate bit and opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Ping data.
        data_segment_length: U24,
        /// Logical unit, as in the NOP-In.
        lun: [u8; 8],
        /// Tag, or the reserved tag if no answer is wanted.
        initiator_task_tag: U32,
        /// Tag of the NOP-In that this answers, or the reserved tag.
        target_transfer_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_tail: [u8; 16],
    }
}

header! {
    /// NOP-In (RFC 7143 §11.19).
    NopIn {
        /// Opcode.
        opcode_byte: u8,
        /// Final bit.
        flags: u8,
        /// Zero.
        reserved: [u8; 2],
        /// Zero.
        total_ahs_length: u8,
        /// Ping data.
        data_segment_length: U24,
        /// Logical unit.
        lun: [u8; 8],
        /// Tag of the NOP-Out that this answers, or the reserved tag.
        initiator_task_tag: U32,
        /// Tag, if an answer is wanted.
        target_transfer_tag: U32,
        /// StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// Zero.
        reserved_tail: [u8; 12],
    }
}

impl RawHeader {
    /// A header of zeroes with an opcode, the final bit and the reserved tag as target transfer
    /// tag: the start of every PDU that is built.
    pub fn with_opcode(opcode: Opcode) -> Self {
        let mut header = BasicHeader::from(Self::ZERO);
        header.opcode_byte = opcode.0;
        header.flags = FINAL;
        header.rest[..4].copy_from_slice(&RESERVED_TAG.to_be_bytes());
        header.into()
    }
}

/// A field that holds a serial number.
pub trait SerialField {
    /// Its value.
    fn serial(&self) -> SerialNumber;
}

impl SerialField for U32 {
    fn serial(&self) -> SerialNumber {
        SerialNumber(self.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_11_8_r2t_fields_stand_where_the_figure_has_them() {
        let mut r2t = R2t::from(RawHeader::with_opcode(Opcode::R2t));
        r2t.lun = [0, 3, 0, 0, 0, 0, 0, 0];
        r2t.initiator_task_tag = 0x1011_1213.into();
        r2t.target_transfer_tag = 0x1415_1617.into();
        r2t.r2t_sn = 0x2425_2627.into();
        r2t.desired_data_transfer_length = 0x2c2d_2e2f.into();
        let raw = RawHeader::from(r2t).0;
        assert_eq!(raw[0], 0x31);
        assert_eq!(raw[1], 0x80);
        assert_eq!(raw[8..10], [0, 3]);
        assert_eq!(raw[16..24], [0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17]);
        assert_eq!(raw[36..40], [0x24, 0x25, 0x26, 0x27]);
        assert_eq!(raw[44..48], [0x2c, 0x2d, 0x2e, 0x2f]);
    }

    #[test]
    fn a_data_segment_length_has_24_bits() {
        assert_eq!(U24::new(0x0012_3456).value(), 0x0012_3456);
        assert_eq!(U24::new(0x0012_3456).as_bytes(), [0x12, 0x34, 0x56]);
    }

    #[test]
    fn login_stages_are_bit_fields() {
        assert_eq!(current_stage(0x87), Stage::Operational);
        assert_eq!(next_stage(0x87), Stage::FullFeature);
    }
}
