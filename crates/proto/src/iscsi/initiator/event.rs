//! The events of a connection, and the errors that end it.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::text::TextError;
use sarsen_wire::iscsi::{
    AsyncEvent, LoginStatus, LogoutResponse, Opcode, RejectReason, TaskManagementResponse,
};

use super::super::FramingError;
use super::super::chap::Algorithm;
use super::{Cid, Token};

/// The difference between the expected and the actual length of a command's data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// No difference.
    #[default]
    None,
    /// The command moved this many bytes less.
    Underflow(u32),
    /// The command would have moved this many bytes more.
    Overflow(u32),
}

/// The end of a SCSI command.
#[derive(Debug)]
pub struct Completion {
    /// The command.
    pub token: Token,
    /// The iSCSI service response. If it is not 0, the target could not execute the command, and `status` is invalid.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Number of Data-In bytes that arrived.
    pub received: u32,
    /// The residual that the target reports.
    pub residual: Residual,
    /// The Data-In of a command with a buffer, truncated to the bytes that arrived.
    pub data: Option<Buffer>,
    /// Sense data, without its length field.
    pub sense: Vec<u8>,
}

impl Completion {
    /// Returns whether the command ended with status GOOD.
    pub const fn is_good(&self) -> bool {
        self.response == 0 && self.status == 0
    }
}

/// An event for the owner.
#[derive(Debug)]
pub enum Event {
    /// The security stage of the login is complete. The operational parameters are negotiated next.
    SecurityPassed,
    /// The login is complete. Commands may be sent.
    LoggedIn,
    /// A further connection of the session is logged in, or a new connection has replaced a lost one.
    Joined {
        /// The connection.
        connection: Cid,
    },
    /// A lost connection is removed from the session. Its commands moved to other connections.
    Removed {
        /// The connection.
        connection: Cid,
    },
    /// One connection of the session was logged out, and must be closed.
    Left {
        /// The connection.
        connection: Cid,
    },
    /// A request other than a command was lost with its connection. It is unknown whether the target executed it.
    Lost {
        /// The request.
        token: Token,
    },
    /// A command ended.
    Completed(Completion),
    /// A task management function ended a command. The command gets no completion.
    Aborted {
        /// The command.
        token: Token,
    },
    /// The answer to a task management function. The events of the commands that it ended precede it.
    TaskManagementDone {
        /// The request.
        token: Token,
        /// The answer.
        response: TaskManagementResponse,
    },
    /// The complete answer to a text request.
    TextDone {
        /// The request.
        token: Token,
        /// Pairs of keys and values, each terminated by a zero byte.
        text: Vec<u8>,
    },
    /// The answer to a ping of the initiator.
    Pong {
        /// The ping.
        token: Token,
    },
    /// The answer to a logout. The connection must be closed.
    LoggedOut {
        /// The answer.
        response: LogoutResponse,
    },
    /// An asynchronous message (RFC 7143 §11.9).
    AsyncMessage {
        /// The event code.
        event: AsyncEvent,
        /// Logical unit of a SCSI event.
        lun: [u8; 8],
        /// Parameter1, Parameter2 and Parameter3.
        parameters: [u16; 3],
        /// Sense data of a SCSI event, with its length field.
        data: Vec<u8>,
    },
    /// The target rejected a PDU (RFC 7143 §11.17).
    Rejected {
        /// The reason.
        reason: RejectReason,
        /// The request that the rejected PDU belonged to, if it is still open.
        token: Option<Token>,
    },
}

/// A failed login. The variants differ in the next step of the initiator or its administrator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// The target moved. The initiator can log in at another address.
    #[error("the target moved to {address}")]
    Redirected {
        /// `host[:port][,portal group tag]`.
        address: String,
        /// Whether the move is permanent.
        permanent: bool,
    },
    /// The target denies access. An administrator must correct the credentials or permissions.
    #[error("the target refuses this initiator ({status:?})")]
    Denied {
        /// Whether authentication or authorization failed.
        status: LoginStatus,
        /// The algorithm of the initiator's CHAP response, if the target rejected that response.
        algorithm: Option<Algorithm>,
    },
    /// The target does not exist. The initiator needs another name.
    #[error("the target does not exist at this portal ({status:?})")]
    NotFound {
        /// Whether the target was not found or was removed.
        status: LoginStatus,
    },
    /// The target is unavailable. The initiator can try again later.
    #[error("the target cannot serve now ({status:?})")]
    Unavailable {
        /// The status that the target reports.
        status: LoginStatus,
    },
    /// The target rejects the login, and a retry does not help: the two are incompatible.
    #[error("the target refuses this login ({status:?})")]
    Refused {
        /// The status that the target reports.
        status: LoginStatus,
    },
    /// One side could not authenticate. An administrator must check the credentials.
    #[error("authentication failed: {0}")]
    Authentication(#[from] AuthenticationError),
    /// The two sides do not agree about a key, and a retry does not help.
    #[error("no agreement about {key}: the target answered {value:?}")]
    NoAgreement {
        /// The key.
        key: String,
        /// The target's answer.
        value: String,
    },
}

/// The reason why the initiator stopped an authentication.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// The initiator requested CHAP, and the target chose something else.
    #[error("the target does not accept CHAP (AuthMethod={answered:?}); it has no account")]
    Method {
        /// The target's value of AuthMethod.
        answered: String,
    },
    /// The target chose an algorithm that the initiator did not offer.
    #[error("the target chose the algorithm {answered:?}, which was not offered")]
    Algorithm {
        /// CHAP_A.
        answered: String,
    },
    /// A required key is missing.
    #[error("the target did not send {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value is invalid, or a key occurs twice.
    #[error("the target sent an invalid value of {key}")]
    Malformed {
        /// The key.
        key: &'static str,
    },
    /// The target sent the initiator's own challenge back. This is a reflection attack: the sender wants the initiator
    /// to answer the challenge for it.
    #[error("the target sent the initiator's challenge back")]
    Reflection,
    /// RFC 7143 §12.1.3: if both sides have the same secret, either could answer for the other.
    #[error("the initiator and the target have the same secret; give them different ones")]
    SameSecret,
    /// The target was to authenticate, and did not respond.
    #[error("the target did not authenticate itself (mutual CHAP)")]
    TargetSilent,
    /// The target does not know the secret, or uses another name.
    #[error(
        "the target's CHAP name {name:?} or its secret is not the configured one (mutual CHAP)"
    )]
    Target {
        /// The name that the target uses.
        name: String,
    },
}

impl From<AuthenticationError> for ConnectionError {
    fn from(error: AuthenticationError) -> Self {
        Self::Login(error.into())
    }
}

/// A violation of RFC 7143 by the target. Each one ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A PDU that is not permitted in this phase.
    #[error("the target sent {0:?}, which this phase does not permit")]
    UnexpectedOpcode(Opcode),
    /// An answer without a request.
    #[error("the target sent {opcode:?} for tag {tag:#x}, which has no such task")]
    UnknownTask {
        /// Opcode of the answer.
        opcode: Opcode,
        /// Tag of the answer.
        tag: u32,
    },
    /// Data-In that is out of order, or beyond the end of the transfer.
    #[error(
        "Data-In has {length} bytes at offset {offset}, but {expected} of {total} bytes have arrived"
    )]
    DataInPlace {
        /// Offset in the PDU.
        offset: u32,
        /// Length in the PDU.
        length: u32,
        /// Offset of the next expected data.
        expected: u32,
        /// Number of bytes that the command expects.
        total: u32,
    },
    /// An R2T for bytes that the target may not request.
    #[error("an R2T requests {length} bytes at offset {offset} of {total}, which is not permitted")]
    R2tRange {
        /// Offset in the PDU.
        offset: u32,
        /// Length in the PDU.
        length: u32,
        /// Number of bytes that the command sends.
        total: u32,
    },
    /// Text that cannot be parsed.
    #[error("malformed text ({0:?})")]
    Text(TextError),
    /// Text that exceeds the maximum length.
    #[error("the target's text is longer than {limit} bytes")]
    TextTooLong {
        /// The limit.
        limit: usize,
    },
    /// A login stage that is not the next one.
    #[error("the target's login stages are out of order")]
    LoginStage,
    /// A login that does not end.
    #[error("the login did not end after {0} responses")]
    LoginTooLong(u32),
    /// More PDUs of the target are missing than the initiator can track.
    #[error("too many PDUs of the target are missing")]
    TooManyMissing,
    /// The target sends pings faster than the initiator can send answers.
    #[error("the target sent {0} pings (NOP-In) and read none of the answers")]
    PingFlood(u32),
}

/// The reason why the tasks of a lost connection cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The session's ErrorRecoveryLevel is below 2.
    #[error("the session's ErrorRecoveryLevel is {level}, and recovery needs 2")]
    Level {
        /// ErrorRecoveryLevel.
        level: u32,
    },
    /// The target does not remove the connection.
    #[error("the target answered the removal of the connection with {response:?}")]
    Removal {
        /// The target's response.
        response: LogoutResponse,
    },
    /// The target rejects a request that recovery needs.
    #[error("the target rejected a request that recovery needs ({reason:?})")]
    Rejected {
        /// The reason.
        reason: RejectReason,
    },
    /// A command has lost too many connections. The command itself may be the cause.
    #[error("too many connections were lost during one command")]
    MovedTooOften,
    /// The target does not reassign a task.
    #[error("the target answers a task's reassignment with {response:?}")]
    Reassignment {
        /// The target's response.
        response: TaskManagementResponse,
    },
}

/// The reason why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The login failed.
    #[error("login failed: {0}")]
    Login(#[from] LoginError),
    /// The stream cannot be parsed.
    #[error("the target's stream is malformed: {0}")]
    Framing(#[from] FramingError),
    /// The target violated the protocol.
    #[error("the target violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Data was damaged in transit (RFC 7143 §7.8: at level 0 the session is restarted).
    #[error("data digest error in {0:?}")]
    DataDigest(Opcode),
    /// The target does not repeat damaged or lost PDUs.
    #[error("the target did not send the lost data again")]
    NotRepeated,
    /// The connection was lost, and its tasks cannot continue on another one (RFC 7143 §7.2.2).
    #[error("a connection was lost, and its tasks cannot continue on another one: {0}")]
    Unrecoverable(#[from] RecoveryError),
}

impl From<TextError> for ConnectionError {
    fn from(error: TextError) -> Self {
        Self::Protocol(ProtocolError::Text(error))
    }
}
