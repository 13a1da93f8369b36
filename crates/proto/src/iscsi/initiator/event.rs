//! What a connection tells its owner, and why it ends.

use sarsen_block::Buffer;
use sarsen_wire::iscsi::text::TextError;
use sarsen_wire::iscsi::{
    AsyncEvent, LoginStatus, LogoutResponse, Opcode, RejectReason, TaskManagementResponse,
};

use super::super::FramingError;
use super::super::chap::Algorithm;
use super::{Cid, Token};

/// How far a command's data fell short of, or went beyond, what was expected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Residual {
    /// Neither.
    #[default]
    None,
    /// So many bytes fewer were moved.
    Underflow(u32),
    /// So many bytes more would have been moved.
    Overflow(u32),
}

/// The end of a SCSI command.
#[derive(Debug)]
pub struct Completion {
    /// The command.
    pub token: Token,
    /// The iSCSI service response; not 0 means that the target could not carry the command out
    /// and `status` says nothing.
    pub response: u8,
    /// SCSI status.
    pub status: u8,
    /// Bytes of Data-In that arrived.
    pub received: u32,
    /// The target's count.
    pub residual: Residual,
    /// The Data-In of a command that wanted it in a buffer, cut to what arrived.
    pub data: Option<Buffer>,
    /// Sense data, without its length field.
    pub sense: Vec<u8>,
}

impl Completion {
    /// Whether the command was carried out with status GOOD.
    pub const fn is_good(&self) -> bool {
        self.response == 0 && self.status == 0
    }
}

/// Something that the owner may want to know.
#[derive(Debug)]
pub enum Event {
    /// The security stage of the login is over: the operational parameters are negotiated next.
    SecurityPassed,
    /// The login is over: commands may be sent.
    LoggedIn,
    /// A further connection of the session is logged in, or one has taken the place of one that
    /// was lost.
    Joined {
        /// Which.
        connection: Cid,
    },
    /// A connection that was lost is removed from the session: its commands went over to others.
    Removed {
        /// Which.
        connection: Cid,
    },
    /// A connection was logged out alone, and is to be closed.
    Left {
        /// Which.
        connection: Cid,
    },
    /// A request that was no command went down with its connection, and nobody can say whether it
    /// was carried out.
    Lost {
        /// The request.
        token: Token,
    },
    /// A command ended.
    Completed(Completion),
    /// A command was ended by a task management function and will have no completion.
    Aborted {
        /// The command.
        token: Token,
    },
    /// The answer to a task management function; the commands that it ended were told before.
    TaskManagementDone {
        /// The request.
        token: Token,
        /// The answer.
        response: TaskManagementResponse,
    },
    /// The answer to a text request, all of it.
    TextDone {
        /// The request.
        token: Token,
        /// Pairs of keys and values, each ended by a zero byte.
        text: Vec<u8>,
    },
    /// The answer to a ping of ours.
    Pong {
        /// The ping.
        token: Token,
    },
    /// The answer to a logout: the connection is to be closed.
    LoggedOut {
        /// The answer.
        response: LogoutResponse,
    },
    /// An asynchronous message (RFC 7143 §11.9).
    AsyncMessage {
        /// What it tells.
        event: AsyncEvent,
        /// Logical unit of a SCSI event.
        lun: [u8; 8],
        /// Parameter1 to Parameter3.
        parameters: [u16; 3],
        /// Sense data of a SCSI event, with its length field.
        data: Vec<u8>,
    },
    /// The target refused a PDU (RFC 7143 §11.17).
    Rejected {
        /// Why.
        reason: RejectReason,
        /// The request that the rejected PDU belonged to, if it is still open.
        token: Option<Token>,
    },
}

/// A login that the target did not grant, by what the initiator can do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// Try at another address.
    #[error("the target moved to {address}")]
    Redirected {
        /// `host[:port][,portal group tag]`.
        address: String,
        /// Whether to remember it.
        permanent: bool,
    },
    /// Ask a person for other credentials or for permission.
    #[error("the target refuses this initiator ({status:?})")]
    Denied {
        /// Which of the two.
        status: LoginStatus,
        /// What the initiator's proof was made with, if it was refused with that.
        algorithm: Option<Algorithm>,
    },
    /// Look for another name.
    #[error("the target does not exist there ({status:?})")]
    NotFound {
        /// Never there, or removed.
        status: LoginStatus,
    },
    /// Try again later.
    #[error("the target cannot serve now ({status:?})")]
    Unavailable {
        /// Which trouble it has.
        status: LoginStatus,
    },
    /// Nothing: the two do not fit together.
    #[error("the target refuses this login ({status:?})")]
    Refused {
        /// The target's words.
        status: LoginStatus,
    },
    /// Look at the credentials: one side could not prove who it is.
    #[error("authentication failed: {0}")]
    Authentication(#[from] AuthenticationError),
    /// Nothing: no agreement over a key.
    #[error("no agreement about {key}: the target answered {value:?}")]
    NoAgreement {
        /// The key.
        key: String,
        /// The target's answer.
        value: String,
    },
}

/// Why the initiator broke an authentication off.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthenticationError {
    /// CHAP was asked for, and the target wants something else.
    #[error("the target does not accept CHAP (AuthMethod={answered:?}); it has no account")]
    Method {
        /// Its words.
        answered: String,
    },
    /// The target chose what was not offered.
    #[error("the target chose the algorithm {answered:?}, which was not offered")]
    Algorithm {
        /// CHAP_A.
        answered: String,
    },
    /// A key that has to come now did not.
    #[error("the target did not send {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value that cannot be one, or a key that came twice.
    #[error("the target sent an invalid value of {key}")]
    Malformed {
        /// The key.
        key: &'static str,
    },
    /// The target's challenge is ours: somebody wants us to answer it for him.
    #[error("the target sent the initiator's challenge back")]
    Reflection,
    /// RFC 7143 §12.1.3: with one secret for both sides, either could answer for the other.
    #[error("the initiator and the target have the same secret; give them different ones")]
    SameSecret,
    /// The target was to prove who it is, and says nothing.
    #[error("the target did not authenticate itself (mutual CHAP)")]
    TargetSilent,
    /// The target does not know the secret, or goes by another name.
    #[error("the target, {name:?}, is not the one that was configured")]
    Target {
        /// What it calls itself.
        name: String,
    },
}

impl From<AuthenticationError> for ConnectionError {
    fn from(error: AuthenticationError) -> Self {
        Self::Login(error.into())
    }
}

/// A breach of RFC 7143 by the target. Each ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A PDU that has no place in this phase.
    #[error("unexpected {0:?} in this phase")]
    UnexpectedOpcode(Opcode),
    /// An answer to something that was not asked.
    #[error("{opcode:?} for tag {tag:#x}, which has no such task")]
    UnknownTask {
        /// Of the answer.
        opcode: Opcode,
        /// Its tag.
        tag: u32,
    },
    /// Data-In that is out of order or beyond the end.
    #[error("Data-In of {length} bytes at {offset}, where {expected} of {total} have arrived")]
    DataInPlace {
        /// Its offset.
        offset: u32,
        /// Its length.
        length: u32,
        /// Where the next data belongs.
        expected: u32,
        /// Bytes that the command expects.
        total: u32,
    },
    /// An R2T for bytes that it may not ask for.
    #[error("an R2T for {length} bytes at {offset} of {total}")]
    R2tRange {
        /// Its offset.
        offset: u32,
        /// Its length.
        length: u32,
        /// Bytes that the command sends.
        total: u32,
    },
    /// Text that cannot be taken apart.
    #[error("malformed text ({0:?})")]
    Text(TextError),
    /// Text without an end.
    #[error("text longer than {limit} bytes")]
    TextTooLong {
        /// The limit.
        limit: usize,
    },
    /// A login stage that does not follow.
    #[error("login stages out of order")]
    LoginStage,
    /// A login that does not come to an end.
    #[error("the login did not end after {0} responses")]
    LoginTooLong(u32),
    /// More of what it sent is missing than anybody can keep track of.
    #[error("too many PDUs are missing")]
    TooManyMissing,
    /// Pings faster than answers can be sent.
    #[error("{0} pings without reading an answer")]
    PingFlood(u32),
}

/// Why the tasks of a lost connection cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The session's level is below 2.
    #[error("the session's error recovery level is {level}")]
    Level {
        /// ErrorRecoveryLevel.
        level: u32,
    },
    /// The target does not let the connection go.
    #[error("the target answered the removal of the connection with {response:?}")]
    Removal {
        /// Its answer.
        response: LogoutResponse,
    },
    /// The target does not take a request that recovery needs.
    #[error("the target rejects a request that it supports ({reason:?})")]
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// A command has lost too many connections: it may be what breaks them.
    #[error("a command has lost too many connections")]
    MovedTooOften,
    /// The target does not move a task.
    #[error("the target answers a task's reassignment with {response:?}")]
    Reassignment {
        /// Its answer.
        response: TaskManagementResponse,
    },
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectionError {
    /// The login failed.
    #[error("login failed: {0}")]
    Login(#[from] LoginError),
    /// The stream cannot be followed.
    #[error("the target's stream is malformed: {0}")]
    Framing(#[from] FramingError),
    /// The target broke the protocol.
    #[error("the target violated the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// Data changed on the way (RFC 7143 §7.8: at level 0 the session starts anew).
    #[error("data digest error in {0:?}")]
    DataDigest(Opcode),
    /// The target does not send again what was damaged or lost.
    #[error("the target did not send the lost data again")]
    NotRepeated,
    /// The connection was lost, and its tasks cannot go on over another (RFC 7143 §7.2.2).
    #[error("a connection was lost, and its tasks cannot continue on another one: {0}")]
    Unrecoverable(#[from] RecoveryError),
}

impl From<TextError> for ConnectionError {
    fn from(error: TextError) -> Self {
        Self::Protocol(ProtocolError::Text(error))
    }
}
