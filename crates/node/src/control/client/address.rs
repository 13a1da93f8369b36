//! The address of a server: its control socket, or the URL of its API.

use std::ffi::OsStr;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use hyper::Uri;

use crate::config::DEFAULT_API_PORT;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The path of its control socket.
    Socket(PathBuf),
    /// HTTP over TLS.
    Https(Host),
    /// HTTP without TLS, only on this machine.
    Http(Host),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// The reason why a text is not the address of a server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is not a URL.
    #[error("{0}: write https://HOST:PORT, or the path of a control socket")]
    Malformed(String),
    /// The URL has a user, a path or a query.
    #[error("{0}: write only https://HOST:PORT; --token-file names the file of the token")]
    Surplus(String),
    /// The client would send the token over the network without encryption.
    #[error(
        "{0}: without TLS a server is asked on this machine alone (http://127.0.0.1:PORT): write \
         https://HOST:PORT"
    )]
    InClear(String),
}

impl Address {
    /// Parses a URL or a path.
    pub fn parse(text: &OsStr) -> Result<Self, AddressError> {
        let Some((scheme, rest)) = text.to_str().and_then(|text| text.split_once("://")) else {
            return Ok(Self::Socket(text.into()));
        };
        // The part before an @ may be a secret.
        let shown = || format!("{scheme}://{}", rest.rsplit('@').next().unwrap_or_default());
        let uri = parse_url(scheme, rest).ok_or_else(|| AddressError::Malformed(shown()))?;
        if rest.contains(['@', '?', '#']) || !matches!(uri.path(), "" | "/") {
            return Err(AddressError::Surplus(shown()));
        }
        let name = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let host = Host { name, port: uri.port_u16().unwrap_or(DEFAULT_API_PORT) };
        match scheme {
            "https" => Ok(Self::Https(host)),
            _ if host.is_loopback() => Ok(Self::Http(host)),
            _ => Err(AddressError::InClear(shown())),
        }
    }
}

fn parse_url(scheme: &str, rest: &str) -> Option<Uri> {
    let uri: Uri = format!("{scheme}://{rest}").parse().ok()?;
    let host = uri.host().filter(|host| !host.is_empty())?;
    let place = uri.authority()?.as_str().rsplit('@').next()?;
    // A text after the host must be a valid port.
    let has_port = place.len() == host.len() || uri.port_u16().is_some();
    (matches!(scheme, "https" | "http") && has_port).then_some(uri)
}

impl Host {
    fn is_loopback(&self) -> bool {
        self.name == "localhost" || self.name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "{}", path.display()),
            Self::Https(host) => write!(f, "https://{host}"),
            Self::Http(host) => write!(f, "http://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, AddressError> {
        Address::parse(text.as_ref()).map(|address| address.to_string())
    }

    #[test]
    fn a_server_is_asked_at_a_path_or_at_a_url() {
        let socket = Address::Socket("/run/sarsen/control.sock".into());
        assert_eq!(Address::parse("/run/sarsen/control.sock".as_ref()), Ok(socket));
        for (text, shown) in [
            ("relative:name", "relative:name"),
            ("https://san.example", "https://san.example:3280"),
            ("https://san.example:8443/", "https://san.example:8443"),
            ("https://[2001:db8::1]:1", "https://[2001:db8::1]:1"),
            ("http://127.0.0.2:80", "http://127.0.0.2:80"),
            ("http://[::1]:80", "http://[::1]:80"),
            ("http://localhost:80", "http://localhost:80"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(shown), "{text}");
        }
    }

    #[test]
    fn unencrypted_network_address_is_refused() {
        for text in ["http://10.0.0.1:80", "http://localhost.evil.example", "http://san:80"] {
            assert!(matches!(parse(text), Err(AddressError::InClear(_))), "{text}");
        }
    }

    #[test]
    fn invalid_address_is_refused_without_its_secret() {
        for text in
            ["ftp://san", "https://", "https://a b", "https://san:port", "https://san:99999"]
        {
            assert!(matches!(parse(text), Err(AddressError::Malformed(_))), "{text}");
        }
        for text in ["https://me:hidden@san", "https://san/v1", "https://san?a=b"] {
            let error = parse(text).expect_err(text);
            assert!(matches!(error, AddressError::Surplus(_)), "{error}");
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
    }
}
