//! The network address of the API and the console, in addition to the control socket.
//!
//! ```toml
//! # On the loopback they are for everybody on this machine, without more. At any other address, TLS is
//! # spoken, and who comes has to show the token.
//! api = "127.0.0.1:3280"
//!
//! [api]
//! listen = "0.0.0.0:3280"
//! certificate = "/etc/sarsen/san.pem"   # one is made in the state folder unless given
//! key = "/etc/sarsen/san.key"
//! token-file = "/etc/sarsen/api.token"  # one is made in the state folder unless given
//! ```

use std::net::SocketAddr;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use super::file::{Source, unknown_key};
use super::{AtPlace, ConfigError, TlsConfig};

/// The default port of the API.
pub(crate) const DEFAULT_API_PORT: u16 = 3280;
const KEYS: &[&str] = &["listen", "certificate", "key", "token-file"];

/// The configuration of the API on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiConfig {
    /// Address and port.
    pub address: SocketAddr,
    /// The TLS certificate and key of the API.
    pub tls: Option<TlsConfig>,
    /// The file with the token that clients must present.
    pub token_file: Option<PathBuf>,
}

impl ApiConfig {
    /// Returns whether all clients are on this machine and need no authentication.
    pub fn is_open(&self) -> bool {
        self.address.ip().is_loopback() && self.tls.is_none() && self.token_file.is_none()
    }
}

/// Parses `127.0.0.1:3280`, or an address without a port.
pub fn parse_api(text: &str) -> Result<ApiConfig, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = text
        .parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, DEFAULT_API_PORT)))
        .map_err(|_: std::net::AddrParseError| {
            format!("{text:?} is not an address: write 127.0.0.1:{DEFAULT_API_PORT}")
        })?;
    Ok(ApiConfig { address, tls: None, token_file: None })
}

/// Parses the key `api`, or the table.
pub(super) fn parse_api_table(
    source: &Source,
    value: &Spanned<DeValue<'_>>,
) -> Result<ApiConfig, ConfigError> {
    let place = source.place(value.span().start);
    let Some(table) = value.get_ref().as_table() else {
        return parse_api(&source.scalar(value, "api")?).at(place);
    };
    let (mut listen, mut certificate, mut key_file, mut token_file) = (None, None, None, None);
    for (key, value) in table {
        let text = || source.scalar(value, key.get_ref());
        match key.get_ref().as_ref() {
            "listen" => listen = Some(parse_api(&text()?).at(source.place(value.span().start))?),
            "certificate" => certificate = Some(PathBuf::from(text()?)),
            "key" => key_file = Some(PathBuf::from(text()?)),
            "token-file" => token_file = Some(PathBuf::from(text()?)),
            other => return Err(unknown_key(&source.place(key.span().start), other, KEYS)),
        }
    }
    let listen = listen
        .ok_or("the api has no address: add it, such as listen = \"127.0.0.1:3280\"")
        .at(&place)?;
    let tls = match (certificate, key_file) {
        (Some(certificate), Some(key)) => {
            Some(TlsConfig { certificate, key, ..TlsConfig::default() })
        }
        (None, None) => None,
        _ => {
            let message = "certificate and key belong together: add the other";
            return Err(ConfigError::new(place, message));
        }
    };
    Ok(ApiConfig { tls, token_file, ..listen })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Config, parse_file};
    use super::*;

    fn parse(text: &str) -> Result<ApiConfig, String> {
        let text = format!("{text}\n[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = 512\n");
        let config = parse_file(Path::new("s.toml"), &text).and_then(Config::finish);
        Ok(config.map_err(|error| error.to_string())?.api.expect("an api"))
    }

    #[test]
    fn loopback_client_needs_no_token_by_default() {
        for (text, address, is_open) in [
            ("api = \"127.0.0.1\"", "127.0.0.1:3280", true),
            ("api = \"[::1]:80\"", "[::1]:80", true),
            ("api = \"10.0.0.1\"", "10.0.0.1:3280", false),
            ("api = \"0.0.0.0:1\"", "0.0.0.0:1", false),
            ("[api]\nlisten = \"127.0.0.1\"\ntoken-file = \"t\"", "127.0.0.1:3280", false),
        ] {
            let api = parse(text).expect(text);
            assert_eq!((api.address.to_string().as_str(), api.is_open()), (address, is_open));
        }
    }

    #[test]
    fn mistakes_name_the_remedy() {
        for (text, reported) in [
            ("api = \"here\"", "s.toml:1: \"here\" is not an address"),
            ("[api]\nkey = \"k\"", "s.toml:1: the api has no address"),
            ("[api]\nlisten = \"::1\"\nkey = \"k\"", "certificate and key belong together"),
            ("[api]\nlistn = 1", "s.toml:2: unknown key listn; did you mean listen?"),
        ] {
            let message = parse(text).expect_err(reported);
            assert!(message.contains(reported), "{message}");
        }
    }
}
