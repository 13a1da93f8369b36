//! The reasons for refused logins. This one list determines the status of the response, the log line and the metric.

use sarsen_wire::iscsi::LoginStatus;

/// A refused login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// The reason of the refusal.
    pub reason: RefusalReason,
    /// The new address of the target, in the format of TargetAddress. Present only for the two redirections.
    pub target_address: Option<String>,
}

impl From<RefusalReason> for Refusal {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, target_address: None }
    }
}

/// The reason of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum RefusalReason {
    /// The target has moved temporarily.
    #[error("the target moved temporarily")]
    MovedTemporarily,
    /// The target has moved permanently.
    #[error("the target moved permanently")]
    MovedPermanently,
    /// The requests violate the rules of the login.
    #[error("the login is malformed")]
    Malformed,
    /// InitiatorName or TargetName is not an iSCSI name (RFC 7143 §4.2.7).
    #[error("a name in the login is not an iSCSI name")]
    InvalidName,
    /// The initiator and the target have no AuthMethod or no CHAP algorithm in common.
    #[error("no common authentication method")]
    NoCommonMethod,
    /// The initiator requires CHAP, but the target has no accounts.
    #[error("the initiator requires CHAP, and the target has no account")]
    ChapNotConfigured,
    /// The initiator tried to continue without the required authentication.
    #[error("the initiator offered no authentication, and CHAP is required")]
    ProofMissing,
    /// No account has the name in CHAP_N.
    #[error("unknown account")]
    UnknownAccount,
    /// CHAP_R is wrong.
    #[error("wrong secret")]
    WrongSecret,
    /// The initiator's challenge is the target's own challenge (RFC 7143 §9.2.1).
    #[error("the initiator sent the server's challenge back")]
    ReflectedChallenge,
    /// The initiator requires the target to authenticate, but the target has no credentials.
    #[error("the target has no credentials for mutual CHAP")]
    NoOwnCredentials,
    /// The initiator's secret is the target's own secret (RFC 7143 §9.2.1).
    #[error("the account and the target have the same secret")]
    SameSecret,
    /// No rule permits this initiator name. The status is that of a missing target. A different status would let
    /// initiators find targets by trying names.
    #[error("this initiator name is not permitted")]
    InitiatorNotAllowed,
    /// No rule permits this initiator name from this address. The status is that of a missing target, too.
    #[error("this address is not permitted")]
    AddressNotAllowed,
    /// No rule permits this account.
    #[error("this account is not permitted")]
    AccountNotAllowed,
    /// No rule permits this client certificate, or a connection without one.
    #[error("this client certificate is not permitted")]
    CertificateNotAllowed,
    /// The initiator was permitted until the rules changed. It knows the target, so the status need not hide it.
    #[error("the access of the initiator was revoked")]
    AccessRevoked,
    /// The target does not exist.
    #[error("no such target")]
    NoSuchTarget,
    /// The export of another protocol does not exist, or the client is not shown it.
    #[error("no such export, or the rules of its target do not show it")]
    NoSuchExport,
    /// The initiator and the target have no protocol version in common.
    #[error("no common protocol version")]
    UnsupportedVersion,
    /// The session has the maximum number of connections.
    #[error("too many connections in the session")]
    TooManyConnections,
    /// A mandatory key is missing.
    #[error("a mandatory key of the login is missing")]
    MissingParameter,
    /// The connection does not match the session that it requests to join.
    #[error("the connection does not match the session that it requests to join")]
    CannotIncludeInSession,
    /// SessionType is neither Normal nor Discovery.
    #[error("unknown type of session")]
    UnknownSessionType,
    /// The session that the connection requests to join does not exist.
    #[error("no such session")]
    NoSuchSession,
    /// The request is not permitted during a login.
    #[error("the request is not allowed during login")]
    InvalidDuringLogin,
    /// The target currently accepts no sessions.
    #[error("the target accepts no sessions: it is drained, or the server stops")]
    NotInService,
    /// The resources for another session are missing.
    #[error("the server has no resources for another session")]
    OutOfResources,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [Self; 28] = [
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
        Self::NoSuchExport,
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

    /// Returns the status of the response (RFC 7143 §11.13.5).
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
            Self::InitiatorNotAllowed
            | Self::AddressNotAllowed
            | Self::NoSuchTarget
            | Self::NoSuchExport => LoginStatus::NotFound,
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

    /// Returns the name of the reason in metrics.
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
            Self::NoSuchExport => "no_such_export",
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
