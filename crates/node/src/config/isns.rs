//! The iSNS server, which returns the addresses of targets to initiators.

use sarsen_wire::isns::{DEFAULT_PORT, MAX_TEXT_LENGTH};
use toml::Spanned;
use toml::de::DeValue;

use super::file::{Source, unknown_key};
use super::{AtPlace, ConfigError};
use crate::model::parse_host_and_port;

const KEYS: [&str; 3] = ["server", "entity", "notice-port"];

/// An iSNS server (RFC 4171).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsnsConfig {
    /// `host:port`.
    pub server: String,
    /// The name of this server there. Default: the name of the host and its first port.
    pub entity: Option<String>,
    /// The TCP port of each portal's address for the iSNS server's status inquiries and state change notifications; 0
    /// for a free port. Default: none, so that the iSNS server sends neither.
    pub notice_port: Option<u16>,
}

/// Parses `host`, `host:port`, `[v6]` or `[v6]:port`.
pub fn parse_isns(text: &str) -> Result<IsnsConfig, String> {
    let server = parse_host_and_port(text, DEFAULT_PORT)?;
    Ok(IsnsConfig { server, entity: None, notice_port: None })
}

/// Parses the table `[isns]`.
pub(super) fn parse_isns_table(
    source: &Source,
    value: &Spanned<DeValue<'_>>,
) -> Result<IsnsConfig, ConfigError> {
    let wanted = "a table: write [isns] and server = \"isns.example\" below it";
    let table = value.get_ref().as_table();
    let table = table.ok_or_else(|| source.wrong_type(value, "isns", wanted))?;
    let (mut server, mut entity, mut notice_port) = (None, None, None);
    for (key, value) in table {
        let place = source.place(value.span().start);
        match key.get_ref().as_ref() {
            "server" => {
                let text = source.scalar(value, "server")?;
                server = Some(parse_host_and_port(&text, DEFAULT_PORT).at(place)?);
            }
            "entity" => {
                let text = source.scalar(value, "entity")?;
                check_entity(&text).at(place)?;
                entity = Some(text);
            }
            "notice-port" => {
                let text = source.scalar(value, "notice-port")?;
                let port = text.parse().map_err(|_| {
                    format!("notice-port = {text}: write a port, or 0 for a free one")
                });
                notice_port = Some(port.at(place)?);
            }
            other => return Err(unknown_key(&source.place(key.span().start), other, &KEYS)),
        }
    }
    let server = server.ok_or_else(|| source.wrong_type(value, "isns", wanted))?;
    Ok(IsnsConfig { server, entity, notice_port })
}

/// Checks a name of 3 to 255 bytes, plus its terminating NUL (RFC 4171 §6.2.1).
fn check_entity(name: &str) -> Result<(), String> {
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if (3..MAX_TEXT_LENGTH).contains(&name.len()) && is_name(name) {
        Ok(())
    } else {
        Err(format!(
            "entity = {name:?}: write 3 to 255 letters, digits and signs, such as san1.example"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc4171_2_9_a_server_has_the_assigned_port_unless_it_says() {
        for (text, server) in [
            ("192.0.2.9", "192.0.2.9:3205"),
            ("[2001:db8::9]", "[2001:db8::9]:3205"),
            ("isns.example:3206", "isns.example:3206"),
        ] {
            assert_eq!(parse_isns(text).map(|isns| isns.server).as_deref(), Ok(server));
        }
        assert!(parse_isns("a b").is_err());
    }

    #[test]
    fn rfc4171_6_2_1_an_entity_has_a_name_of_some_length() {
        for name in ["abc", "san1.example:3260", &"x".repeat(255)] {
            assert_eq!(check_entity(name), Ok(()));
        }
        for name in ["", "ab", "a b", "a\0bc", &"x".repeat(256)] {
            assert!(check_entity(name).is_err(), "{name:?}");
        }
    }
}
