//! Portals: the addresses at which the server listens, and the target port of each.
//!
//! ```toml
//! listen = ["10.0.0.1:3260", "10.0.1.1:3260,2"]   # portals without further keys; the second in group 2
//!
//! [[portal]]
//! address = "0.0.0.0:3261"
//! group = 2                                      # default: 1
//! tls.certificate = "/etc/sarsen/san.pem"        # with its chain
//! tls.key = "/etc/sarsen/san.key"
//! tls.client-ca = "/etc/sarsen/clients.pem"      # the certificate authorities of clients
//! tls.require-client-certificate = false         # default: true
//! ```

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::invalid::FieldError;
use super::quantity::GroupTag;
use super::table;
use super::text::written_as_text;
use crate::protocol::Protocol;

/// The default portal group.
pub const DEFAULT_GROUP: u16 = 1;
/// The address at which a server listens by default.
pub(crate) const DEFAULT_PORTAL: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), sarsen_wire::iscsi::DEFAULT_PORT);

/// An address on which the server listens.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Portal {
    /// Address and port, such as `0.0.0.0:3260` or `[::]:3260`.
    #[schema(value_type = String)]
    pub address: PortalAddress,
    /// The protocol that it serves. Default: iscsi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// The tag of its portal group. Portals of one group are one port of each target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u16>)]
    pub group: Option<GroupTag>,
    /// The TLS settings of a portal that accepts only TLS 1.3.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "table::optional"
    )]
    pub tls: Option<Tls>,
}

/// The certificates of a portal. All are PEM files of the server, which reads them again when they change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Tls {
    /// The portal's certificate and its chain.
    #[schema(value_type = String)]
    pub certificate: PathBuf,
    /// The private key of the certificate.
    #[schema(value_type = String)]
    pub key: PathBuf,
    /// The certificate authorities of clients. Default: clients are not asked for a certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate are refused. Default: `true` with `client-ca`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_client_certificate: Option<bool>,
}

impl Tls {
    /// Returns whether clients without a valid certificate are refused. Otherwise, a client without a certificate, or
    /// with an expired one, counts as a client without a certificate.
    pub fn requires_client_certificate(&self) -> bool {
        self.require_client_certificate.unwrap_or(self.client_ca.is_some())
    }
}

/// The address of a portal: an IP address, and optionally a port and the tag of a portal group. It keeps the text that
/// it was written as, because that is the name of the portal.
#[derive(Clone, Debug)]
pub struct PortalAddress {
    text: String,
    ip: IpAddr,
    port: Option<u16>,
    group: Option<GroupTag>,
}

written_as_text!(PortalAddress);

impl PortalAddress {
    /// Returns the text that it was written as.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Parses an address. The protocol selects the port in the message of an error.
    fn parse(text: &str, protocol: Protocol) -> Result<Self, String> {
        let (address, group) = match text.split_once(',') {
            Some((address, tag)) => (address, Some(tag.parse::<GroupTag>()?)),
            None => (text, None),
        };
        let bare = address.trim_start_matches('[').trim_end_matches(']');
        let (ip, port) = match (address.parse::<SocketAddr>(), bare.parse()) {
            (Ok(address), _) => (address.ip(), Some(address.port())),
            (_, Ok(ip)) => (ip, None),
            _ => {
                let port = protocol.default_port();
                return Err(format!(
                    "{text:?} is not an address: write 127.0.0.1:{port} or [::1]:{port}"
                ));
            }
        };
        Ok(Self { text: text.to_owned(), ip, port, group })
    }
}

impl FromStr for PortalAddress {
    type Err = String;

    /// Parses `address:port`, `[v6]:port`, or either without its port. An optional `,tag` at the end names the portal
    /// group.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text, Protocol::Iscsi)
    }
}

impl fmt::Display for PortalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<SocketAddr> for PortalAddress {
    fn from(address: SocketAddr) -> Self {
        let (ip, port) = (address.ip(), Some(address.port()));
        Self { text: address.to_string(), ip, port, group: None }
    }
}

/// The address of the default portal.
impl Default for PortalAddress {
    fn default() -> Self {
        DEFAULT_PORTAL.into()
    }
}

/// Two portals are the same if they listen in the same way, however they are written.
impl PartialEq for Portal {
    fn eq(&self, other: &Self) -> bool {
        let key = |portal: &Self| (portal.address(), portal.protocol(), portal.group());
        key(self) == key(other) && self.tls == other.tls
    }
}

impl Eq for Portal {}

impl Portal {
    /// Creates a portal at this address.
    pub fn at(address: SocketAddr, protocol: Protocol, group: u16, tls: Option<Tls>) -> Self {
        let group = GroupTag::new(group.into());
        Self { address: address.into(), protocol: Some(protocol), group, tls }
    }

    /// Returns address and port.
    pub fn address(&self) -> SocketAddr {
        let port = self.address.port.unwrap_or_else(|| self.protocol().default_port());
        SocketAddr::new(self.address.ip, port)
    }

    /// Returns the protocol that it serves.
    pub fn protocol(&self) -> Protocol {
        self.protocol.unwrap_or_default()
    }

    /// Returns the tag of its portal group. iSCSI portals of one group are one port of each target.
    pub fn group(&self) -> u16 {
        let group = self.group.or(self.address.group);
        group.and_then(|group| u16::try_from(group.get()).ok()).unwrap_or(DEFAULT_GROUP)
    }

    pub(crate) fn check(&self) -> Result<(), FieldError> {
        if self.group.is_some() && self.address.group.is_some() {
            let message = "group: the address has a group as well; remove one of the two";
            return Err(FieldError::new("group", message));
        }
        match &self.tls {
            Some(Tls { client_ca: None, require_client_certificate: Some(_), .. }) => {
                let message = "require-client-certificate: there is no certificate authority for clients; add \
                               client-ca";
                Err(FieldError::new("tls.require-client-certificate", message))
            }
            _ => Ok(()),
        }
    }
}

/// Displays the portal as in SendTargets (RFC 7143 §13.8).
impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.address(), self.group())
    }
}

/// Parses the address of an iSCSI portal, as [`PortalAddress`] does.
pub fn parse_portal(text: &str) -> Result<Portal, String> {
    Ok(Portal { address: text.parse()?, ..Portal::default() })
}

/// Parses the address of an NBD portal, as [`PortalAddress`] does.
pub fn parse_nbd_portal(text: &str) -> Result<Portal, String> {
    let address = PortalAddress::parse(text, Protocol::Nbd)?;
    Ok(Portal { address, protocol: Some(Protocol::Nbd), ..Portal::default() })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, parse_file};

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
            ("::1,0", "\"0\" is not a number from 1 to 65535"),
            ("::1,65536", "\"65536\" is not a number"),
            ("::1,", "\"\" is not a number"),
            ("::1,1,2", "\"1,2\" is not a number"),
        ] {
            let message = parse_portal(text).expect_err(text);
            assert!(message.contains(reported), "{message}");
        }
    }

    const FILES: &str = "tls.certificate = \"c\"\ntls.key = \"k\"\n";
    const VOLUME: &str = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\n";

    fn parse(text: &str) -> Result<Vec<Portal>, String> {
        parse_file(Path::new("s.toml"), &format!("{text}\n{VOLUME}"))
            .and_then(Config::finish)
            .map(|config| config.listen)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_portal_may_be_a_table() {
        let listen = parse(
            "listen = \"127.0.0.1\"\n[[portal]]\naddress = \"[::1]:1,7\"\n\
             [[portal]]\naddress = \"127.0.0.1:0\"\ngroup = 9\n\
             tls = { certificate = \"c\", key = \"k\" }\n\
             [[portal]]\naddress = \"127.0.0.1:0\"\ntls.certificate = \"c\"\ntls.key = \"k\"\n\
             tls.client-ca = \"a\"",
        )
        .expect("valid");
        let reported: Vec<_> = listen.iter().map(Portal::to_string).collect();
        assert_eq!(reported, ["127.0.0.1:3260,1", "[::1]:1,7", "127.0.0.1:0,9", "127.0.0.1:0,1"]);
        assert_eq!((&listen[0].tls, &listen[1].tls), (&None, &None));
        let tls = Tls { certificate: "c".into(), key: "k".into(), ..Tls::default() };
        assert!(!tls.requires_client_certificate());
        assert_eq!(listen[2].tls, Some(tls.clone()));
        // With a client CA, the certificate is required by default.
        let tls = Tls { client_ca: Some("a".into()), ..tls };
        assert!(tls.requires_client_certificate());
        assert_eq!(listen[3].tls, Some(tls));
    }

    #[test]
    fn a_mistake_in_a_portal_names_file_line_key_and_remedy() {
        let portal = "[[portal]]\naddress = \"127.0.0.1:0\"\n";
        for (text, reported) in [
            ("portal = 3".to_owned(), "s.toml:1: portal is to be a list"),
            ("portal = [3]".into(), "portal is to be a list of tables: write [[portal]]"),
            ("[[portal]]\ngroup = 1".into(), "s.toml:1: there is no address: add it"),
            (
                "[[portal]]\naddress = \"here\"".into(),
                "s.toml:2: address: \"here\" is not an address",
            ),
            (format!("{portal}group = 0"), "s.toml:3: group: \"0\" is not a number from 1"),
            ("[[portal]]\naddress = \"::,2\"\ngroup = 2".into(), "s.toml:3: group: the address"),
            (format!("{portal}tsl = 1"), "s.toml:3: unknown key tsl; did you mean tls?"),
            (format!("{portal}tls = true"), "s.toml:3: tls: invalid type: boolean `true`"),
            (format!("{portal}tls = {{}}"), "s.toml:3: tls: there is no certificate: add it"),
            (format!("{portal}tls.certificate = \"c\""), "tls: there is no key: add it"),
            (format!("{portal}tls.certificat = \"c\""), "did you mean certificate?"),
            (format!("{portal}tls.key = []"), "s.toml:3: tls.key: invalid type: sequence"),
            (
                format!("{portal}{FILES}tls.require-client-certificate = true"),
                "s.toml:5: require-client-certificate: there is no certificate authority for clients; add client-ca",
            ),
            (
                format!("{portal}{FILES}tls.client-ca = \"a\"\ntls.require-client-certificate = 1"),
                "s.toml:6: tls.require-client-certificate: invalid type: integer `1`, expected a boolean",
            ),
        ] {
            let message = parse(&text).expect_err(reported);
            assert!(message.contains(reported), "{text}: {message}");
        }
    }
}
