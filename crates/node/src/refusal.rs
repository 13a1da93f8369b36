//! The reasons why the server refuses connections and requests. Metrics count them.

/// The limit that a connection would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// See [`crate::config::Limits::connections`].
    #[error("the server has the maximum number of connections (limits.connections)")]
    Connections,
    /// See [`crate::config::Limits::connections_per_source`].
    #[error("its source has the maximum number of connections (limits.connections-per-source)")]
    Source,
    /// See [`crate::config::Limits::logins_per_source`].
    #[error("its source has the maximum number of incomplete logins (limits.logins-per-source)")]
    Logins,
}

impl Full {
    pub(crate) const ALL: [Self; 3] = [Self::Connections, Self::Source, Self::Logins];

    /// Returns the name of the limit in the configuration.
    pub(crate) const fn limit(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Source => "connections-per-source",
            Self::Logins => "logins-per-source",
        }
    }
}

/// The reason why the API's port refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRefusal {
    /// The request has a wrong token.
    WrongToken,
    /// The request has no token.
    NoToken,
    /// The source has sent too many wrong tokens at once.
    TooManyWrongTokens,
    /// The request names a host other than this machine, at a port without a token.
    Host,
    /// The request comes from another page.
    Origin,
}

impl ApiRefusal {
    /// All reasons.
    pub(crate) const ALL: [Self; 5] =
        [Self::WrongToken, Self::NoToken, Self::TooManyWrongTokens, Self::Host, Self::Origin];

    /// Returns its name in the metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WrongToken => "wrong_token",
            Self::NoToken => "no_token",
            Self::TooManyWrongTokens => "too_many_wrong_tokens",
            Self::Host => "host",
            Self::Origin => "origin",
        }
    }
}
