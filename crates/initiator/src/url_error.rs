//! Errors of URLs, of the addresses in them, and of their parameters.

/// The maximum number of portals of a unit.
pub(crate) const PORTAL_LIMIT: usize = 16;

/// The reason why a URL or an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The text does not begin with `iscsi://` or `iscsis://`.
    #[error("{0:?} does not begin with iscsi:// or iscsis://")]
    Scheme(String),
    /// The host is missing or invalid.
    #[error("{0:?} has no host")]
    Host(String),
    /// A `[` without `]`, or text between `]` and the port.
    #[error("{0:?} is not an IPv6 address in brackets")]
    Brackets(String),
    /// The port is invalid.
    #[error("{0:?} is not a port (1 to 65535)")]
    Port(String),
    /// A portal is named twice.
    #[error("{0} is named twice; name each portal once")]
    RepeatedPortal(String),
    /// The portals are not separated by commas alone, or a user stands before another portal than the first.
    #[error("separate portals by commas without spaces, and name the user once: USER@HOST,HOST")]
    PortalList,
    /// More portals than a unit may have.
    #[error("a URL has more than {PORTAL_LIMIT} portals; name fewer")]
    TooManyPortals,
    /// The target's name is missing or invalid.
    #[error("{0:?} is not an iSCSI name: iqn., eui. or naa. and at most 223 bytes")]
    Target(String),
    /// The LUN is invalid.
    #[error("{0:?} is not a logical unit number (0 to 16383)")]
    Lun(String),
    /// The path after the host has too few or too many parts.
    #[error("{0:?}: write /TARGET/LUN after the host")]
    Path(String),
    /// An unknown parameter after the `?`.
    #[error(
        "{0:?} is nothing that a URL may say after the ?: target_user and target_password are, and, \
         with iscsis://, ca, certificate, key and server-name"
    )]
    Query(String),
    /// A parameter without a value after the `?`.
    #[error(
        "after the ? comes target_user=U&target_password=P: a secret that holds an & goes into \
         LIBISCSI_CHAP_TARGET_PASSWORD"
    )]
    QueryValue,
    /// The value is empty, or no path and no name can have it.
    #[error("write a file or a host name after {0}=")]
    TlsValue(String),
    /// The `ca` parameter is missing.
    #[error(
        "iscsis:// and nbds:// need ?ca=FILE, a PEM file with the authority that signed the server's certificate"
    )]
    TlsCa,
    /// A certificate without its key, or a key without its certificate.
    #[error("certificate=FILE and key=FILE belong together; give both")]
    TlsHalf,
    /// Files for TLS in a URL without TLS.
    #[error("ca, certificate, key and server-name are for TLS: write iscsis://")]
    TlsUnwanted,
    /// The user's name is invalid.
    #[error("{0:?} is not a user name; write 1 to 255 bytes without control characters")]
    User(String),
    /// A user without a secret.
    #[error(
        "there is no secret for {user:?}: give it in the URL or in LIBISCSI_CHAP_PASSWORD (that of \
         a target in LIBISCSI_CHAP_TARGET_PASSWORD)"
    )]
    SecretMissing {
        /// The user, or the target.
        user: String,
    },
    /// The target must authenticate itself, but the initiator does not.
    #[error(
        "{target:?} is to authenticate itself, but no user is named: name one before the host or in \
         LIBISCSI_CHAP_USERNAME"
    )]
    UserMissing {
        /// The target's user.
        target: String,
    },
}
