//! Network portals: the addresses at which the server listens, and the target port of each.

use std::fmt;
use std::net::{AddrParseError, SocketAddr};

use toml::Spanned;
use toml::de::DeValue;

use super::file::{Source, unknown_key};
use super::tls::{TlsConfig, parse_tls};
use super::{AtPlace, ConfigError};
use crate::protocol::Protocol;

const KEYS: &[&str] = &["address", "group", "protocol", "tls"];

/// The default portal group.
pub const DEFAULT_GROUP: u16 = 1;

/// A network portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Portal {
    /// Address and port.
    pub address: SocketAddr,
    /// The protocol that it serves.
    pub protocol: Protocol,
    /// The tag of its portal group. iSCSI portals of one group are one port of each target.
    pub group: u16,
    /// The portal accepts only TLS.
    pub tls: Option<TlsConfig>,
}

/// Displays the portal as in SendTargets (RFC 7143 §13.8).
impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.address, self.group)
    }
}

/// Parses the address of an iSCSI portal: `address:port`, `[v6]:port`, or either without its port. An optional `,tag` at
/// the end names the portal group.
pub fn parse_portal(text: &str) -> Result<Portal, String> {
    parse_portal_of(Protocol::Iscsi, text)
}

/// Parses the address of an NBD portal, as [`parse_portal`] does.
pub fn parse_nbd_portal(text: &str) -> Result<Portal, String> {
    parse_portal_of(Protocol::Nbd, text)
}

fn parse_portal_of(protocol: Protocol, text: &str) -> Result<Portal, String> {
    let (address, group) = match text.split_once(',') {
        Some((address, tag)) => (address, parse_group(tag)?),
        None => (text, DEFAULT_GROUP),
    };
    let bare = address.trim_start_matches('[').trim_end_matches(']');
    let address = address
        .parse()
        .or_else(|_| bare.parse().map(|ip| SocketAddr::new(ip, protocol.default_port())))
        .map_err(|_: AddrParseError| {
            let port = protocol.default_port();
            format!("{text:?} is not an address: write 127.0.0.1:{port} or [::1]:{port}")
        })?;
    Ok(Portal { address, protocol, group, tls: None })
}

/// Parses a `[[portal]]`.
pub(super) fn parse_portal_table(
    source: &Source<'_>,
    table: &Spanned<DeValue<'_>>,
) -> Result<Portal, ConfigError> {
    let place = source.place(table.span().start);
    let entries = table
        .get_ref()
        .as_table()
        .ok_or("portal is a list of tables: write [[portal]]")
        .at(&place)?;
    let protocol = match entries.get("protocol") {
        Some(value) => {
            let place = source.place(value.span().start);
            source.scalar(value, "protocol")?.parse().at(place)?
        }
        None => Protocol::default(),
    };
    let (mut address, mut group, mut tls) = (None, None, None);
    for (key, value) in entries {
        let place = source.place(value.span().start);
        match key.get_ref().as_ref() {
            "address" => {
                let text = source.scalar(value, "address")?;
                address = Some((parse_portal_of(protocol, &text).at(&place)?, text.contains(',')));
            }
            "group" => {
                let tag = parse_group(&source.scalar(value, "group")?).at(&place)?;
                group = Some((tag, place));
            }
            "protocol" => {}
            "tls" => tls = Some(parse_tls(source, value)?),
            other => return Err(unknown_key(&source.place(key.span().start), other, KEYS)),
        }
    }
    let (portal, names_group) =
        address.ok_or("the portal has no address: add it, such as \"0.0.0.0:3260\"").at(&place)?;
    let group = match group {
        Some((_, place)) if names_group => {
            let message = "group: the address has a group as well; remove one of the two";
            return Err(ConfigError::new(place, message));
        }
        Some((tag, _)) => tag,
        None => portal.group,
    };
    Ok(Portal { group, tls, ..portal })
}

/// Parses a portal group tag (RFC 7143 §13.9). SPC-4 reserves 0 for no port.
pub(super) fn parse_group(text: &str) -> Result<u16, String> {
    let tag = text.parse().ok().filter(|tag| *tag != 0);
    tag.ok_or_else(|| format!("{text:?} is not a portal group: write a number from 1 to 65535"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_is_parsed_as_displayed() {
        for (text, reported) in [
            ("10.0.0.1", "10.0.0.1:3260,1"),
            ("10.0.0.1:0,2", "10.0.0.1:0,2"),
            ("::1,65535", "[::1]:3260,65535"),
            ("[::]", "[::]:3260,1"),
        ] {
            let portal = parse_portal(text).expect(text);
            assert_eq!(portal.to_string(), reported);
            assert_eq!(parse_portal(reported), Ok(portal));
        }
        for (text, reported) in [
            ("here", "\"here\" is not an address: write 127.0.0.1:3260"),
            ("here,1", "is not an address"),
            ("", "is not an address"),
            ("::1,0", "\"0\" is not a portal group: write a number from 1 to 65535"),
            ("::1,65536", "\"65536\" is not a portal group"),
            ("::1,", "\"\" is not a portal group"),
            ("::1,1,2", "\"1,2\" is not a portal group"),
        ] {
            let message = parse_portal(text).expect_err(text);
            assert!(message.contains(reported), "{message}");
        }
    }
}
