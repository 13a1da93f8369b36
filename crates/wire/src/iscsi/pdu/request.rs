//! Headers that the initiator sends.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute, transmute_ref};

use super::{BASIC_HEADER_LENGTH, Isid, RawHeader, U24};
use crate::iscsi::code::{LogoutReason, TaskManagementFunction};

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
        /// Number of bytes that the initiator expects to transfer.
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
    /// R: the initiator expects data from the target.
    pub const READ: u8 = 0x40;
    /// W: the initiator sends data to the target.
    pub const WRITE: u8 = 0x20;
    /// The task attribute's bits.
    pub const ATTRIBUTE: u8 = 0x07;
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
        /// Tag of the referenced task.
        referenced_task_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// CmdSN of the referenced task.
        ref_cmd_sn: U32,
        /// ExpDataSN, for reassignment.
        exp_data_sn: U32,
        /// Zero.
        reserved_tail: [u8; 8],
    }
}

impl TaskManagementRequest {
    /// Returns the function.
    pub const fn function(&self) -> TaskManagementFunction {
        TaskManagementFunction(self.flags & 0x7f)
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
        /// Tag of the R2T that requested the data, or the reserved tag for unsolicited data.
        target_transfer_tag: U32,
        /// Zero.
        reserved_cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_max_cmd_sn: U32,
        /// DataSN.
        data_sn: U32,
        /// Offset of the data in the task's buffer.
        buffer_offset: U32,
        /// Zero.
        reserved_tail: U32,
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
        /// The target's tag of a continued negotiation.
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
        /// The initiator's identifier of its end of the session.
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
        /// The connection to close.
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
    /// Returns the reason.
    pub const fn reason(&self) -> LogoutReason {
        LogoutReason(self.flags & 0x7f)
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
        /// Tag, or the reserved tag where the initiator expects no response.
        initiator_task_tag: U32,
        /// Tag of the NOP-In that this PDU responds to, or the reserved tag.
        target_transfer_tag: U32,
        /// CmdSN.
        cmd_sn: U32,
        /// ExpStatSN.
        exp_stat_sn: U32,
        /// Zero.
        reserved_tail: [u8; 16],
    }
}
