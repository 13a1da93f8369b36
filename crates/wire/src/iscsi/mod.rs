//! iSCSI as specified by RFC 7143: header segments, text keys, serial numbers.

pub mod ahs;
pub mod code;
pub mod pdu;
pub mod serial;
pub mod text;

pub use code::{
    AsyncEvent, LoginStatus, LogoutReason, LogoutResponse, Opcode, RejectReason, Stage,
    TaskManagementFunction, TaskManagementResponse,
};
pub use pdu::{
    AsyncMessage, BasicHeader, DataIn, DataOut, Isid, LoginRequest, LoginResponse, LogoutRequest,
    LogoutResponsePdu, NopIn, NopOut, R2t, RawHeader, Reject, ScsiCommand, ScsiResponse,
    SnackRequest, TaskManagementRequest, TaskManagementResponsePdu, TextRequest, TextResponse, U24,
};
pub use serial::SerialNumber;

/// The tag that names no task (RFC 7143 §11.2.1.8).
pub const RESERVED_TAG: u32 = 0xffff_ffff;
/// Length of a basic header segment.
pub const BASIC_HEADER_LENGTH: usize = 48;
/// Length of a digest.
pub const DIGEST_LENGTH: usize = 4;
/// The port that IANA assigned.
pub const DEFAULT_PORT: u16 = 3260;
/// Maximum length of an iSCSI name in bytes (RFC 7143 §4.2.7.1).
pub const MAX_NAME_LENGTH: usize = 223;
/// MaxRecvDataSegmentLength until the peer declares another value, and always during login (§13.12).
pub const DEFAULT_DATA_SEGMENT_LENGTH: u32 = 8192;

/// Returns the number of padding bytes after `length` bytes of a data segment (RFC 7143 §11.2.3).
pub const fn padding(length: usize) -> usize {
    length.wrapping_neg() & 3
}
