//! `iscsi://[user[%secret]@]host[:port]/target name/lun`.

use std::fmt;
use std::str::FromStr;

use sarsen_wire::iscsi::{DEFAULT_PORT, MAX_NAME_LENGTH};

/// The highest number that a LUN of flat space addressing can have (SAM-5 4.7.7.2).
const MAX_LUN: u16 = 0x3fff;

/// Why a URL or an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not `iscsi://`.
    #[error("{0:?} does not begin with iscsi://")]
    Scheme(String),
    /// There is no host, or something that cannot be one.
    #[error("{0:?} names no host")]
    Host(String),
    /// A `[` without `]`, or something between `]` and the port.
    #[error("{0:?} is not an IPv6 address in brackets")]
    Brackets(String),
    /// Not a port.
    #[error("{0:?} is not a port (1 to 65535)")]
    Port(String),
    /// No target's name, or one that cannot be one.
    #[error("{0:?} is not an iSCSI name: iqn., eui. or naa. and at most 223 bytes")]
    Target(String),
    /// Not a LUN.
    #[error("{0:?} is not a logical unit number (0 to 16383)")]
    Lun(String),
    /// Too little or too much after the host.
    #[error("{0:?}: after the host comes /target name/lun")]
    Path(String),
}

/// A secret that no message shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// A host with a port: where a target listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// A name or an address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Portal {
    type Err = UrlError;

    /// `host`, `host:port`, `[address]` or `[address]:port`.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) =
                    rest.split_once(']').ok_or_else(|| UrlError::Brackets(text.to_owned()))?;
                match after.strip_prefix(':') {
                    None if after.is_empty() => (host, None),
                    None => return Err(UrlError::Brackets(text.to_owned())),
                    Some(port) => (host, Some(port)),
                }
            }
            None => match text.split_once(':') {
                // More than one colon: an IPv6 address that lacks its brackets.
                Some((_, port)) if port.contains(':') => {
                    return Err(UrlError::Brackets(text.to_owned()));
                }
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let foreign = |c: char| c.is_whitespace() || c.is_control() || "[]/@".contains(c);
        if host.is_empty() || host.contains(foreign) {
            return Err(UrlError::Host(text.to_owned()));
        }
        let port = match port {
            None => DEFAULT_PORT,
            Some(port) => port
                .parse()
                .ok()
                .filter(|&port| port != 0)
                .ok_or_else(|| UrlError::Port(port.to_owned()))?,
        };
        Ok(Self { host: host.to_owned(), port })
    }
}

/// A logical unit on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Where the target listens.
    pub portal: Portal,
    /// The target's iSCSI name.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
    /// Who logs in, for targets that ask.
    pub user: Option<String>,
    /// The user's secret.
    pub secret: Option<Secret>,
}

impl Url {
    /// The logical unit number as commands carry it (SAM-5 4.7).
    pub const fn lun_field(&self) -> [u8; 8] {
        let [high, low] = self.lun.to_be_bytes();
        // Up to 255 by peripheral device addressing, above that by flat space addressing.
        let method = if self.lun > 255 { 0x40 } else { 0 };
        [high | method, low, 0, 0, 0, 0, 0, 0]
    }
}

impl fmt::Display for Url {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("iscsi://")?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        write!(f, "{}/{}/{}", self.portal, self.target, self.lun)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let rest = text.strip_prefix("iscsi://").ok_or_else(|| {
            // What stands before an @ may be a secret, so it is not repeated.
            UrlError::Scheme(text.rsplit('@').next().unwrap_or_default().to_owned())
        })?;
        let (authority, path) =
            rest.split_once('/').ok_or_else(|| UrlError::Path(without_credentials(rest)))?;
        let (credentials, portal) = match authority.rsplit_once('@') {
            Some((credentials, portal)) => (Some(credentials), portal),
            None => (None, authority),
        };
        let (user, secret) = match credentials.map(|all| all.split_once('%').ok_or(all)) {
            None => (None, None),
            Some(Ok((user, secret))) => (Some(user.to_owned()), Some(Secret(secret.to_owned()))),
            Some(Err(user)) => (Some(user.to_owned()), None),
        };
        let (target, lun) =
            path.split_once('/').ok_or_else(|| UrlError::Path(without_credentials(rest)))?;
        let well_named = ["iqn.", "eui.", "naa."].iter().any(|kind| target.starts_with(kind));
        // A zero byte would end the name in the login's text and begin another key.
        let foreign = |c: char| c.is_whitespace() || c.is_control();
        if !well_named || target.len() > MAX_NAME_LENGTH || target.contains(foreign) {
            return Err(UrlError::Target(target.to_owned()));
        }
        let lun = lun
            .parse()
            .ok()
            .filter(|&lun| lun <= MAX_LUN)
            .ok_or_else(|| UrlError::Lun(lun.to_owned()))?;
        Ok(Self { portal: portal.parse()?, target: target.to_owned(), lun, user, secret })
    }
}

fn without_credentials(rest: &str) -> String {
    rest.rsplit('@').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_everything() {
        let url: Url = "iscsi://me%se@cret@[fe80::1]:3261/iqn.2026-01.x:disk/300".parse().unwrap();
        assert_eq!(url.portal, Portal { host: "fe80::1".into(), port: 3261 });
        assert_eq!((url.target.as_str(), url.lun), ("iqn.2026-01.x:disk", 300));
        assert_eq!((url.user.as_deref(), url.secret), (Some("me"), Some(Secret("se@cret".into()))));
        assert_eq!(url.lun.to_be_bytes(), [1, 44]);
    }

    #[test]
    fn the_short_form_takes_the_port_of_the_standard() {
        let url: Url = "iscsi://box/iqn.2026-01.x:disk/0".parse().unwrap();
        assert_eq!(url.to_string(), "iscsi://box:3260/iqn.2026-01.x:disk/0");
        assert_eq!(url.lun_field(), [0; 8]);
    }

    #[test]
    fn sam5_4_7_luns_above_255_use_flat_space_addressing() {
        let url: Url = "iscsi://box/iqn.2026-01.x:disk/300".parse().unwrap();
        assert_eq!(url.lun_field(), [0x41, 44, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn each_part_has_its_own_error() {
        let parse = |text: &str| text.parse::<Url>().unwrap_err();
        assert_eq!(parse("http://u%s@box/"), UrlError::Scheme("box/".into()));
        assert_eq!(parse("iscsi://u%s@box"), UrlError::Path("box".into()));
        assert_eq!(parse("iscsi://box/iqn.x"), UrlError::Path("box/iqn.x".into()));
        assert_eq!(parse("iscsi:///iqn.x/0"), UrlError::Host(String::new()));
        assert_eq!(parse("iscsi://[::1/iqn.x/0"), UrlError::Brackets("[::1".into()));
        assert_eq!(parse("iscsi://::1/iqn.x/0"), UrlError::Brackets("::1".into()));
        assert_eq!(parse("iscsi://box:0/iqn.x/0"), UrlError::Port("0".into()));
        assert_eq!(parse("iscsi://[[x]/iqn.x/0"), UrlError::Host("[[x]".into()));
        assert_eq!(parse("iscsi://a box/iqn.x/0"), UrlError::Host("a box".into()));
        assert_eq!(parse("iscsi://box/disk/0"), UrlError::Target("disk".into()));
        let two_keys = "iqn.x\0SessionType=Discovery";
        assert_eq!(parse(&format!("iscsi://b/{two_keys}/0")), UrlError::Target(two_keys.into()));
        assert_eq!(parse("iscsi://box/iqn.x/16384"), UrlError::Lun("16384".into()));
    }

    #[test]
    fn a_secret_is_not_shown() {
        let url: Url = "iscsi://me%hidden@box/iqn.x/0".parse().unwrap();
        assert!(!format!("{url} {url:?}").contains("hidden"));
    }
}
