//! `nbd://host[:port][/export]` and `nbd+unix:///[export]?socket=PATH`, after the NBD project's document on URIs (doc/uri.md), and
//! `nbds://host[:port][/export]?ca=FILE` with TLS, whose parameters are those of `iscsis://`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use sarsen_wire::nbd::{DEFAULT_PORT, MAX_NAME_LENGTH};

use crate::tls::{TlsOptions, TlsQuery};
use crate::url::Portal;
use crate::url_error::UrlError;

/// The reason why a URL of an export cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdUrlError {
    /// Neither `nbd://`, `nbds://` nor `nbd+unix://`.
    #[error("{0:?} does not begin with nbd://, nbds:// or nbd+unix://")]
    Scheme(String),
    /// The host or the port is missing or invalid.
    #[error("{text:?}: {reason}")]
    Host {
        /// The text of the URL.
        text: String,
        /// The reason why it is invalid.
        reason: String,
    },
    /// The URL names a user, which NBD does not support.
    #[error("NBD URLs have no users; remove the part before the @")]
    User,
    /// A query that the scheme does not have.
    #[error(
        "{0:?}: write nbd://HOST/EXPORT, nbds://HOST/EXPORT?ca=FILE (its parameters are ca, certificate, key and server-name), or nbd+unix:///EXPORT?socket=PATH"
    )]
    Query(String),
    /// The parameters of TLS are not usable.
    #[error(transparent)]
    Tls(#[from] UrlError),
    /// A `%` without two hexadecimal digits, or bytes that are not text.
    #[error("{0:?} is not text with %XX for special characters")]
    Encoding(String),
    /// The export's name is too long.
    #[error("the name of the export has {0} bytes; at most 4096 are possible")]
    NameTooLong(usize),
}

/// The address on which an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdPlace {
    /// A TCP address, with TLS if the portal has it.
    Host(Portal),
    /// A socket of this machine.
    Socket(PathBuf),
}

/// An export of an NBD server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUrl {
    /// The server's address.
    pub place: NbdPlace,
    /// The export's name; the empty name is the server's default.
    pub export: String,
}

impl NbdUrl {
    /// Returns the options of TLS, if the connection is encrypted.
    pub(crate) fn tls(&self) -> Option<&TlsOptions> {
        match &self.place {
            NbdPlace::Host(portal) => portal.tls.as_deref(),
            NbdPlace::Socket(_) => None,
        }
    }
}

impl FromStr for NbdUrl {
    type Err = NbdUrlError;

    fn from_str(text: &str) -> Result<Self, NbdUrlError> {
        let Some((scheme @ ("nbd" | "nbds" | "nbd+unix"), rest)) = text.split_once("://") else {
            return Err(NbdUrlError::Scheme(text.rsplit('@').next().unwrap_or_default().into()));
        };
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(NbdUrlError::User);
        }
        let export = decode(path)?;
        if export.len() > MAX_NAME_LENGTH {
            return Err(NbdUrlError::NameTooLong(export.len()));
        }
        let socket = query.and_then(|query| query.strip_prefix("socket="));
        let place = match (scheme, query, socket) {
            ("nbd", None, _) => NbdPlace::Host(portal(authority)?),
            ("nbds", query, _) => {
                let tls = tls(text, query.unwrap_or_default())?;
                NbdPlace::Host(Portal { tls, ..portal(authority)? })
            }
            ("nbd+unix", _, Some(path))
                if authority.is_empty() && !path.is_empty() && !path.contains('&') =>
            {
                NbdPlace::Socket(decode(path)?.into())
            }
            _ => return Err(NbdUrlError::Query(text.to_owned())),
        };
        Ok(Self { place, export })
    }
}

fn portal(authority: &str) -> Result<Portal, NbdUrlError> {
    let reported = |reason: String| NbdUrlError::Host { text: authority.to_owned(), reason };
    let mut portal: Portal = authority.parse().map_err(|error| reported(format!("{error}")))?;
    let names_port = match authority.strip_prefix('[') {
        Some(address) => address.contains("]:"),
        None => authority.contains(':'),
    };
    if !names_port {
        portal.port = DEFAULT_PORT;
    }
    Ok(portal)
}

/// Returns the options of TLS in a query.
fn tls(url: &str, query: &str) -> Result<Option<Arc<TlsOptions>>, NbdUrlError> {
    let mut options = TlsQuery::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let unknown = || NbdUrlError::Query(url.to_owned());
        let (key, value) = pair.split_once('=').ok_or_else(unknown)?;
        if !options.take(key, value)? {
            return Err(unknown());
        }
    }
    Ok(options.options(true)?.map(Arc::new))
}

fn decode(text: &str) -> Result<String, NbdUrlError> {
    let error = || NbdUrlError::Encoding(text.to_owned());
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || {
                    let digit = char::from(rest.next()?).to_digit(16)?;
                    Some(digit as u8)
                };
                let high = digit().ok_or_else(error)?;
                high << 4 | digit().ok_or_else(error)?
            }
            0 => return Err(error()),
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0')).ok_or_else(error)
}

fn encode(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
                write!(f, "{}", char::from(byte))?;
            }
            byte => write!(f, "%{byte:02X}")?,
        }
    }
    Ok(())
}

impl fmt::Display for NbdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            NbdPlace::Host(portal) => {
                let scheme = if portal.tls.is_some() { "nbds" } else { "nbd" };
                write!(f, "{scheme}://{portal}/")?;
                encode(&self.export, f)?;
                let query = portal.tls.as_deref().map(TlsOptions::query);
                query.map_or(Ok(()), |query| write!(f, "?{query}"))
            }
            NbdPlace::Socket(path) => {
                f.write_str("nbd+unix:///")?;
                encode(&self.export, f)?;
                f.write_str("?socket=")?;
                encode(&path.to_string_lossy(), f)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_sockets_are_written_and_read_again() {
        for (text, again) in [
            ("nbd://localhost", "nbd://localhost:10809/"),
            ("nbd://10.0.0.1:3260/", "nbd://10.0.0.1:3260/"),
            ("nbd://[::1]/disk", "nbd://[::1]:10809/disk"),
            ("nbd://[::1]:99/a%20b/c", "nbd://[::1]:99/a%20b/c"),
            ("nbd+unix:///?socket=/run/nbd.sock", "nbd+unix:///?socket=/run/nbd.sock"),
            ("nbd+unix:///d%3f?socket=/a%25b", "nbd+unix:///d%3F?socket=/a%25b"),
            ("nbds://h/x?server-name=n&ca=/ca.pem", "nbds://h:10809/x?ca=/ca.pem&server-name=n"),
        ] {
            let url: NbdUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), again);
            assert_eq!(again.parse(), Ok(url));
        }
        let url: NbdUrl = "nbd://h/a%20b".parse().unwrap();
        assert_eq!(url.export, "a b");
    }

    #[test]
    fn errors_in_url_are_reported() {
        for (text, reported) in [
            ("iscsi://h", "nbd://"),
            ("nbd://", "has no host"),
            ("nbd://h:0", "not a port"),
            ("nbd://user@h/", "no users"),
            ("nbd://h/?socket=/x", "?socket=PATH"),
            ("nbds://h/x", "ca"),
            ("nbds://h/x?ca=/a&size=1", "nbds://"),
            ("nbd+unix:///x", "?socket=PATH"),
            ("nbd+unix:///x?socket=", "?socket=PATH"),
            ("nbd+unix://h/x?socket=/x", "?socket=PATH"),
            ("nbd+unix:///x?socket=/x&tls=1", "?socket=PATH"),
            ("nbd://h/%4", "%XX"),
            ("nbd://h/%00", "%XX"),
            ("nbd://h/%ff", "%XX"),
        ] {
            let error = text.parse::<NbdUrl>().unwrap_err().to_string();
            assert!(error.contains(reported), "{text}: {error}");
        }
        let long = format!("nbd://h/{}", "x".repeat(5000));
        assert_eq!(long.parse::<NbdUrl>(), Err(NbdUrlError::NameTooLong(5000)));
    }
}
