//! Redirections of targets, which the server returns to initiators at login.

use std::net::{Ipv4Addr, Ipv6Addr};

use sarsen_wire::iscsi::DEFAULT_PORT;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::quantity::GroupTag;

/// Maximum length of a host name (RFC 1035 §2.3.4).
const HOST_LENGTH_LIMIT: usize = 253;

/// A redirection of a target's initiators (RFC 7143 §11.13.5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Redirect {
    /// The other server: `HOST[:PORT]`.
    #[serde(deserialize_with = "address")]
    pub address: String,
    /// Whether the target moved permanently, so that initiators need not ask here again.
    #[serde(default, skip_serializing_if = "super::values::is_false")]
    pub permanent: bool,
}

fn address<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_redirect_address(&text).map_err(serde::de::Error::custom)
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`, and returns the address with its port. A host may be a name.
pub fn parse_redirect_address(text: &str) -> Result<String, String> {
    if let Some((address, tag)) = text.rsplit_once(',')
        && tag.parse::<GroupTag>().is_ok()
    {
        // RFC 7143 §13.8: of a redirection, the portal group tag is left out.
        return Err(format!("{text:?}: a redirection has no portal group; write {address:?}"));
    }
    parse_host_and_port(text, DEFAULT_PORT)
}

/// Parses an address in the same way, with another default port.
pub(crate) fn parse_host_and_port(text: &str, default_port: u16) -> Result<String, String> {
    let wrong = || {
        format!(
            "{text:?} is not an address: write 192.0.2.7:3260, [2001:db8::7]:3260 or san.example:3260"
        )
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
            host.parse::<Ipv6Addr>().map_err(|_| wrong())?;
            (format!("[{host}]"), port)
        }
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (host, port) = text.split_at(end);
            if !is_host(host) {
                return Err(wrong());
            }
            (host.to_owned(), port)
        }
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?,
        None if port.is_empty() => default_port,
        None => return Err(wrong()),
    };
    Ok(format!("{host}:{port}"))
}

fn is_host(host: &str) -> bool {
    // A text of digits and dots alone must be an IPv4 address.
    let looks_numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    host.len() <= HOST_LENGTH_LIMIT
        && host.split('.').all(is_host_label)
        && (!looks_numeric || host.parse::<Ipv4Addr>().is_ok())
}

fn is_host_label(label: &str) -> bool {
    !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7143_13_8_an_address_has_a_host_and_a_port_and_no_group() {
        for (text, reported) in [
            ("192.0.2.7", "192.0.2.7:3260"),
            ("192.0.2.7:860", "192.0.2.7:860"),
            ("[2001:db8::7]", "[2001:db8::7]:3260"),
            ("[::1]:1", "[::1]:1"),
            ("san-2.example", "san-2.example:3260"),
            ("san2:65535", "san2:65535"),
        ] {
            assert_eq!(parse_redirect_address(text).as_deref(), Ok(reported));
        }
        for (text, reported) in [
            ("192.0.2.7:3260,2", "write \"192.0.2.7:3260\""),
            ("192.0.2.7,x", "is not an address"),
            ("192.0.2.777", "is not an address"),
            ("", "is not an address"),
            (":3260", "is not an address"),
            ("a:0", "is not an address"),
            ("a:65536", "is not an address"),
            ("a:b:1", "is not an address"),
            ("::1", "is not an address"),
            ("[::1", "is not an address"),
            ("[a]:1", "is not an address"),
            ("[::1]1", "is not an address"),
            ("a..b:1", "is not an address"),
            ("a\0b", "is not an address"),
        ] {
            let message = parse_redirect_address(text).expect_err(text);
            assert!(message.contains(reported), "{message}");
        }
    }
}
