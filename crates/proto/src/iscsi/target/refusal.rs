//! Why a login is refused: one list, from which the status of the response, the log's line and the
//! count of the metric come.

use sarsen_wire::iscsi::LoginStatus;

/// A refused login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// Why.
    pub reason: RefusalReason,
    /// Where the target is instead, as TargetAddress tells it; with the two redirections alone.
    pub target_address: Option<String>,
}

impl From<RefusalReason> for Refusal {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, target_address: None }
    }
}

/// See [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum RefusalReason {
    /// The target is elsewhere for now.
    #[error("the target moved temporarily")]
    MovedTemporarily,
    /// The target is elsewhere for good.
    #[error("the target moved permanently")]
    MovedPermanently,
    /// The requests break the rules of the login.
    #[error("the login is malformed")]
    Malformed,
    /// InitiatorName or TargetName is not an iSCSI name (RFC 7143 §4.2.7).
    #[error("a name in the login is not an iSCSI name")]
    InvalidName,
    /// No AuthMethod, or no CHAP algorithm, suits both sides.
    #[error("no common authentication method")]
    NoCommonMethod,
    /// The initiator requires CHAP, and the target has no accounts to check it with.
    #[error("the initiator requires CHAP, and no account is configured here")]
    ChapNotConfigured,
    /// The initiator wanted to go on without the proof that is demanded.
    #[error("the initiator did not authenticate")]
    ProofMissing,
    /// CHAP_N names nobody.
    #[error("unknown account")]
    UnknownAccount,
    /// CHAP_R is wrong.
    #[error("wrong secret")]
    WrongSecret,
    /// The initiator's challenge is one that we made (RFC 7143 §9.2.1).
    #[error("the initiator sent the server's challenge back")]
    ReflectedChallenge,
    /// The initiator asks for our proof, and we have nothing to prove it with.
    #[error("the target has no credentials of its own")]
    NoOwnCredentials,
    /// The initiator's secret is our own (RFC 7143 §9.2.1).
    #[error("the account and the target have the same secret")]
    SameSecret,
    /// No rule lets this initiator name in. For him there is no such target: who is told more can find
    /// out by trying names which targets there are.
    #[error("this initiator name is not permitted")]
    InitiatorNotAllowed,
    /// No rule lets this initiator name in from this address, which is answered in the same way.
    #[error("this address is not permitted")]
    AddressNotAllowed,
    /// No rule lets this account in.
    #[error("this account is not permitted")]
    AccountNotAllowed,
    /// No rule lets this client certificate, or its lack, in.
    #[error("this client certificate is not permitted")]
    CertificateNotAllowed,
    /// It was let in until the rules were changed, and so knows of the target.
    #[error("its access was revoked")]
    AccessRevoked,
    /// There is no such target.
    #[error("no such target")]
    NoSuchTarget,
    /// No version of the protocol in common.
    #[error("no common version")]
    UnsupportedVersion,
    /// The session has all its connections.
    #[error("too many connections in the session")]
    TooManyConnections,
    /// A key that must be sent was not.
    #[error("a key is missing")]
    MissingParameter,
    /// The connection does not fit the session that it wants to join.
    #[error("the connection does not fit the session")]
    CannotIncludeInSession,
    /// SessionType is neither Normal nor Discovery.
    #[error("unknown type of session")]
    UnknownSessionType,
    /// The session that the connection wants to join does not exist.
    #[error("no such session")]
    NoSuchSession,
    /// A request that has no place in a login.
    #[error("the request is not allowed during login")]
    InvalidDuringLogin,
    /// The target takes no sessions now.
    #[error("the target is out of service")]
    NotInService,
    /// There is no room for the session.
    #[error("no resources for another session")]
    OutOfResources,
}

impl RefusalReason {
    /// Every one.
    pub const ALL: [Self; 27] = [
        Self::MovedTemporarily,
        Self::MovedPermanently,
        Self::Malformed,
        Self::InvalidName,
        Self::NoCommonMethod,
        Self::ChapNotConfigured,
        Self::ProofMissing,
        Self::UnknownAccount,
        Self::WrongSecret,
        Self::ReflectedChallenge,
        Self::NoOwnCredentials,
        Self::SameSecret,
        Self::InitiatorNotAllowed,
        Self::AddressNotAllowed,
        Self::AccountNotAllowed,
        Self::CertificateNotAllowed,
        Self::AccessRevoked,
        Self::NoSuchTarget,
        Self::UnsupportedVersion,
        Self::TooManyConnections,
        Self::MissingParameter,
        Self::CannotIncludeInSession,
        Self::UnknownSessionType,
        Self::NoSuchSession,
        Self::InvalidDuringLogin,
        Self::NotInService,
        Self::OutOfResources,
    ];

    /// The status of the response (RFC 7143 §11.13.5).
    pub const fn status(self) -> LoginStatus {
        match self {
            Self::MovedTemporarily => LoginStatus::TargetMovedTemporarily,
            Self::MovedPermanently => LoginStatus::TargetMovedPermanently,
            Self::Malformed | Self::InvalidName => LoginStatus::InitiatorError,
            Self::NoCommonMethod
            | Self::ChapNotConfigured
            | Self::ProofMissing
            | Self::UnknownAccount
            | Self::WrongSecret
            | Self::ReflectedChallenge
            | Self::NoOwnCredentials
            | Self::SameSecret => LoginStatus::AuthenticationFailure,
            Self::AccountNotAllowed | Self::CertificateNotAllowed | Self::AccessRevoked => {
                LoginStatus::AuthorizationFailure
            }
            Self::InitiatorNotAllowed | Self::AddressNotAllowed | Self::NoSuchTarget => {
                LoginStatus::NotFound
            }
            Self::UnsupportedVersion => LoginStatus::UnsupportedVersion,
            Self::TooManyConnections => LoginStatus::TooManyConnections,
            Self::MissingParameter => LoginStatus::MissingParameter,
            Self::CannotIncludeInSession => LoginStatus::CannotIncludeInSession,
            Self::UnknownSessionType => LoginStatus::SessionTypeNotSupported,
            Self::NoSuchSession => LoginStatus::SessionDoesNotExist,
            Self::InvalidDuringLogin => LoginStatus::InvalidDuringLogin,
            Self::NotInService => LoginStatus::ServiceUnavailable,
            Self::OutOfResources => LoginStatus::OutOfResources,
        }
    }

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MovedTemporarily => "moved_temporarily",
            Self::MovedPermanently => "moved_permanently",
            Self::Malformed => "malformed",
            Self::InvalidName => "invalid_name",
            Self::NoCommonMethod => "no_common_method",
            Self::ChapNotConfigured => "chap_not_configured",
            Self::ProofMissing => "proof_missing",
            Self::UnknownAccount => "unknown_account",
            Self::WrongSecret => "wrong_secret",
            Self::ReflectedChallenge => "reflected_challenge",
            Self::NoOwnCredentials => "no_own_credentials",
            Self::SameSecret => "same_secret",
            Self::InitiatorNotAllowed => "initiator_not_allowed",
            Self::AddressNotAllowed => "address_not_allowed",
            Self::AccountNotAllowed => "account_not_allowed",
            Self::CertificateNotAllowed => "certificate_not_allowed",
            Self::AccessRevoked => "access_revoked",
            Self::NoSuchTarget => "no_such_target",
            Self::UnsupportedVersion => "unsupported_version",
            Self::TooManyConnections => "too_many_connections",
            Self::MissingParameter => "missing_parameter",
            Self::CannotIncludeInSession => "cannot_include_in_session",
            Self::UnknownSessionType => "unknown_session_type",
            Self::NoSuchSession => "no_such_session",
            Self::InvalidDuringLogin => "invalid_during_login",
            Self::NotInService => "not_in_service",
            Self::OutOfResources => "out_of_resources",
        }
    }
}
