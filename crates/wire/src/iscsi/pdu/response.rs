//! Headers that the target sends.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::{BASIC_HEADER_LENGTH, Isid, RawHeader, U24};
use crate::iscsi::code::{
    AsyncEvent, LoginStatus, LogoutResponse, RejectReason, TaskManagementResponse,
};

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
        /// Number of Data-In and R2T PDUs that the target sent for the task.
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
    /// O: the command had more data than the initiator expected.
    pub const OVERFLOW: u8 = 0x04;
    /// U: the command transferred less data than the initiator expected.
    pub const UNDERFLOW: u8 = 0x02;
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
    /// Returns the response.
    pub const fn response(&self) -> TaskManagementResponse {
        TaskManagementResponse(self.response)
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
        /// Offset of the data in the task's buffer.
        buffer_offset: U32,
        /// Residual, with S.
        residual_count: U32,
    }
}

impl DataIn {
    /// S: this PDU carries the status.
    pub const STATUS: u8 = 0x01;
    /// A: the target requests an acknowledgement.
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
        /// The tag for the Data-Out PDUs.
        target_transfer_tag: U32,
        /// The next StatSN.
        stat_sn: U32,
        /// ExpCmdSN.
        exp_cmd_sn: U32,
        /// MaxCmdSN.
        max_cmd_sn: U32,
        /// R2TSN.
        r2t_sn: U32,
        /// Offset of the first requested byte.
        buffer_offset: U32,
        /// Number of requested bytes.
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
    /// Returns the event.
    pub const fn event(&self) -> AsyncEvent {
        AsyncEvent(self.event)
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
        /// Tag with which the initiator requests the rest.
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
        /// ISID of the request.
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
    /// Returns the class and the detail.
    pub const fn status(&self) -> LoginStatus {
        LoginStatus(self.status.get())
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
        /// Minimum seconds before recovery.
        time2wait: U16,
        /// Maximum seconds until recovery, after the minimum.
        time2retain: U16,
        /// Zero.
        reserved_tail: U32,
    }
}

impl LogoutResponsePdu {
    /// Returns the response.
    pub const fn response(&self) -> LogoutResponse {
        LogoutResponse(self.response)
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
    /// Returns the reason.
    pub const fn reason(&self) -> RejectReason {
        RejectReason(self.reason)
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
        /// Tag of the NOP-Out that this PDU responds to, or the reserved tag.
        initiator_task_tag: U32,
        /// Tag, or the reserved tag where the target expects no response.
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
