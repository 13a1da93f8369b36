//! `iscsi://[user[%secret]@]host[:port][,host[:port]...]/target name/lun[?target_user=U&target_password=P]`, as in libiscsi
//! except for the further portals, and `iscsis://` for TLS, with `ca=FILE` after the `?`. Portals that require a client
//! certificate also need `certificate=FILE&key=FILE`; `server-name=NAME` is optional. A secret that contains a `/`, `?` or
//! `&` must be given in the environment ([`Chap`]).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use sarsen_wire::iscsi::{DEFAULT_PORT, MAX_NAME_LENGTH};

use crate::identity::Chap;
use crate::tls::{TlsOptions, TlsQuery};
use crate::url_error::{PORTAL_LIMIT, UrlError};

/// The maximum number of a LUN with flat space addressing (SAM-5 4.7.7.2).
const MAX_LUN: u16 = 0x3fff;

/// A host with a port on which a target listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Portal {
    /// A name or an address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// The options of TLS; `None` means plain TCP.
    pub tls: Option<Arc<TlsOptions>>,
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

    /// Parses `host`, `host:port`, `[address]` or `[address]:port`.
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
                // More than one colon: an IPv6 address without its brackets.
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
        Ok(Self { host: host.to_owned(), port, tls: None })
    }
}

/// A logical unit on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The portals on which the target listens, at least one. Each one is a path to the unit.
    pub portals: Vec<Portal>,
    /// The target's iSCSI name.
    pub target: String,
    /// Logical unit number.
    pub lun: u16,
    /// The CHAP user, for targets that require authentication.
    pub chap: Chap,
}

impl Url {
    /// Returns the first portal.
    pub fn portal(&self) -> &Portal {
        &self.portals[0]
    }

    /// Returns the URL of the same unit through one portal.
    pub fn through(&self, portal: &Portal) -> Self {
        Self { portals: vec![portal.clone()], ..self.clone() }
    }

    /// Returns the logical unit number as commands carry it (SAM-5 4.7).
    pub const fn lun_field(&self) -> [u8; 8] {
        let [high, low] = self.lun.to_be_bytes();
        // Numbers up to 255 use peripheral device addressing, greater numbers use flat space addressing.
        let method = if self.lun > 255 { 0x40 } else { 0 };
        [high | method, low, 0, 0, 0, 0, 0, 0]
    }
}

impl fmt::Display for Url {
    /// Writes the URL without secrets and without the target's user.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = &self.portal().tls;
        f.write_str(if tls.is_some() { TLS_SCHEME } else { SCHEME })?;
        if let Some(user) = &self.chap.user {
            write!(f, "{user}@")?;
        }
        for (place, portal) in self.portals.iter().enumerate() {
            write!(f, "{}{portal}", if place == 0 { "" } else { "," })?;
        }
        write!(f, "/{}/{}", self.target, self.lun)?;
        match tls {
            Some(tls) => write!(f, "?{}", tls.query()),
            None => Ok(()),
        }
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (rest, by_tls) = split_scheme(text).ok_or_else(|| UrlError::Scheme(shown(text)))?;
        let (authority, path) = rest.split_once('/').ok_or_else(|| UrlError::Path(shown(rest)))?;
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let (portals, mut chap) = split_authority(authority);
        let tls = parse_query(query, &mut chap, by_tls)?;
        let (target, lun) = path.split_once('/').ok_or_else(|| UrlError::Path(shown(rest)))?;
        let well_named = ["iqn.", "eui.", "naa."].iter().any(|kind| target.starts_with(kind));
        // A zero byte would end the name in the login's text and begin another key.
        let foreign = |c: char| c.is_whitespace() || c.is_control();
        if !well_named || target.len() > MAX_NAME_LENGTH || target.contains(foreign) {
            return Err(UrlError::Target(shown(target)));
        }
        let lun = lun
            .parse()
            .ok()
            .filter(|&lun| lun <= MAX_LUN)
            .ok_or_else(|| UrlError::Lun(shown(lun)))?;
        // A user before another portal than the first would take the portals before it as its name.
        if chap.user.as_ref().is_some_and(|user| user.contains(',')) {
            return Err(UrlError::PortalList);
        }
        let portals = parse_portals(portals, tls.as_ref())?;
        Ok(Self { portals, target: target.to_owned(), lun, chap })
    }
}

/// Parses portals that are separated by commas.
fn parse_portals(text: &str, tls: Option<&Arc<TlsOptions>>) -> Result<Vec<Portal>, UrlError> {
    let mut portals = Vec::new();
    for text in text.split(',') {
        if text.trim() != text || (text.is_empty() && !portals.is_empty()) {
            return Err(UrlError::PortalList);
        }
        let portal = Portal { tls: tls.cloned(), ..text.parse()? };
        if portals.contains(&portal) {
            return Err(UrlError::RepeatedPortal(portal.to_string()));
        }
        if portals.len() == PORTAL_LIMIT {
            return Err(UrlError::TooManyPortals);
        }
        portals.push(portal);
    }
    Ok(portals)
}

/// The portal for a discovery session: `[iscsi://][user[%secret]@]host[:port][/][?target_user=U&target_password=P]`, or
/// with `iscsis://` and the files of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryUrl {
    /// The portal to query.
    pub portal: Portal,
    /// The CHAP user, for portals that require authentication.
    pub chap: Chap,
}

impl FromStr for DiscoveryUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (rest, by_tls) = split_scheme(text).unwrap_or((text, false));
        // The text before an @ may contain a ?.
        let place = rest.rfind('@').unwrap_or(0);
        let (authority, query) = match rest[place..].find('?') {
            Some(mark) => (&rest[..place + mark], &rest[place + mark + 1..]),
            None => (rest, ""),
        };
        let (portal, mut chap) = split_authority(authority.strip_suffix('/').unwrap_or(authority));
        let tls = parse_query(query, &mut chap, by_tls)?;
        Ok(Self { portal: Portal { tls, ..portal.parse()? }, chap })
    }
}

const SCHEME: &str = "iscsi://";
const TLS_SCHEME: &str = "iscsis://";

/// Returns the text after the scheme, and whether the scheme is that of TLS.
fn split_scheme(text: &str) -> Option<(&str, bool)> {
    let plain = text.strip_prefix(SCHEME).map(|rest| (rest, false));
    plain.or_else(|| Some((text.strip_prefix(TLS_SCHEME)?, true)))
}

/// Parses the text after the `?`.
fn parse_query(
    query: &str,
    chap: &mut Chap,
    by_tls: bool,
) -> Result<Option<Arc<TlsOptions>>, UrlError> {
    let mut tls = TlsQuery::default();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((key, value)) if tls.take(key, value)? => {}
            _ => chap.parse_query(pair)?,
        }
    }
    Ok(tls.options(by_tls)?.map(Arc::new))
}

fn split_authority(authority: &str) -> (&str, Chap) {
    match authority.rsplit_once('@') {
        Some((user, portal)) => (portal, Chap::parse(user)),
        None => (authority, Chap::default()),
    }
}

/// Returns the text without the parts before an `@` and after a `?`, which contain secrets.
fn shown(text: &str) -> String {
    let text = text.rsplit('@').next().unwrap_or_default();
    text.split('?').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_everything() {
        let url: Url = "iscsi://me%se@cret@[fe80::1]:3261/iqn.2026-01.x:disk/300".parse().unwrap();
        assert_eq!(url.portals, [Portal { host: "fe80::1".into(), port: 3261, tls: None }]);
        assert_eq!((url.target.as_str(), url.lun), ("iqn.2026-01.x:disk", 300));
        assert_eq!(url.chap, Chap::parse("me%se@cret"));
        assert_eq!(url.lun.to_be_bytes(), [1, 44]);
    }

    #[test]
    fn the_short_form_takes_the_port_of_the_standard() {
        let url: Url = "iscsi://box/iqn.2026-01.x:disk/0".parse().unwrap();
        assert_eq!(url.to_string(), "iscsi://box:3260/iqn.2026-01.x:disk/0");
        assert_eq!(url.lun_field(), [0; 8]);
    }

    #[test]
    fn several_portals_are_separated_by_commas() {
        let text = "iscsi://me@192.0.2.1:3260,[fe80::2]:3261,san.example:3260/iqn.x/0";
        let url: Url = text.parse().unwrap();
        assert_eq!(url.portals.len(), 3);
        assert_eq!((url.to_string().as_str(), url.portal().port), (text, 3260));
        assert_eq!(url.through(&url.portals[2]).to_string(), "iscsi://me@san.example:3260/iqn.x/0");
        let parse = |text: &str| text.parse::<Url>().unwrap_err();
        let repeated = UrlError::RepeatedPortal("a:3260".into());
        assert_eq!(parse("iscsi://a,b,a:3260/iqn.x/0"), repeated);
        assert_eq!(parse("iscsi://a,/iqn.x/0"), UrlError::PortalList);
        assert_eq!(parse("iscsi://a, b/iqn.x/0"), UrlError::PortalList);
        assert_eq!(parse("iscsi://a,me@b/iqn.x/0"), UrlError::PortalList);
        let many: Vec<_> = (1..=17).map(|port| format!("a:{port}")).collect();
        assert_eq!(parse(&format!("iscsi://{}/iqn.x/0", many.join(","))), UrlError::TooManyPortals);
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
    fn a_target_may_have_to_prove_itself() {
        let query = "target_user=box&target_password=its=own";
        let url: Url = format!("iscsi://me%x@box/iqn.x/0?{query}").parse().unwrap();
        let identity = url.chap.identity().unwrap().unwrap();
        assert_eq!(identity.target.unwrap().secret.0, "its=own");
        let wrong = "iscsi://box/iqn.x/0?target_pasword=hidden".parse::<Url>().unwrap_err();
        assert_eq!(wrong, UrlError::Query("target_pasword".into()));
        assert_eq!(
            "iscsi://box/iqn.x/0x?target_password=hidden".parse::<Url>().unwrap_err(),
            UrlError::Lun("0x".into())
        );
    }

    #[test]
    fn discovery_url_accepts_user() {
        let portal = Portal { host: "box".into(), port: 3261, tls: None };
        for text in ["box:3261", "iscsi://box:3261", "iscsi://box:3261/", "iscsi://box:3261/?"] {
            let url: DiscoveryUrl = text.parse().unwrap();
            assert_eq!((&url.portal, url.chap), (&portal, Chap::default()), "{text}");
        }
        let text = "iscsi://me%w?t@box:3261/?target_user=box&target_password=its";
        let url: DiscoveryUrl = text.parse().unwrap();
        assert_eq!(url.portal, portal);
        let identity = url.chap.identity().unwrap().unwrap();
        assert_eq!((identity.user.secret.0.as_str(), identity.user.name.as_str()), ("w?t", "me"));
        assert_eq!(identity.target.unwrap().name, "box");
        assert!("me%hidden@/".parse::<DiscoveryUrl>().is_err());
    }

    #[test]
    fn tls_is_asked_for_by_the_scheme() {
        let text = "iscsis://me%x@box:3261/iqn.x/0?ca=/etc/ca.pem&target_user=it&target_password=its\
            &certificate=c.pem&key=c.key&server-name=san.example";
        let url: Url = text.parse().unwrap();
        let tls = url.portal().tls.clone().unwrap();
        assert_eq!(tls.ca.to_str(), Some("/etc/ca.pem"));
        assert_eq!(tls.identity, Some(("c.pem".into(), "c.key".into())));
        assert_eq!(url.chap.target_user.as_deref(), Some("it"));
        let shown = "iscsis://me@box:3261/iqn.x/0?ca=/etc/ca.pem&certificate=c.pem&key=c.key\
            &server-name=san.example";
        assert_eq!(url.to_string(), shown);
        assert_eq!(shown.parse::<Url>().unwrap().portals, url.portals);
        let asked: DiscoveryUrl = "iscsis://box:3261/?ca=/etc/ca.pem".parse().unwrap();
        assert_eq!((asked.portal.port, asked.portal.tls.unwrap().identity.clone()), (3261, None));
        for (text, error) in [
            ("iscsis://box/iqn.x/0", UrlError::TlsCa),
            ("iscsis://box/iqn.x/0?ca=", UrlError::TlsValue("ca".into())),
            ("iscsis://box/iqn.x/0?ca=\x1b[2J", UrlError::TlsValue("ca".into())),
            ("iscsis://box/iqn.x/0?ca=a&key=k", UrlError::TlsHalf),
            ("iscsi://box/iqn.x/0?ca=a", UrlError::TlsUnwanted),
            ("iscsi://box/iqn.x/0?server-name=a", UrlError::TlsUnwanted),
        ] {
            assert_eq!(text.parse::<Url>().unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        let text = "iscsi://me%hidden@box/iqn.x/0?target_user=it&target_password=hidden";
        let url: Url = text.parse().unwrap();
        assert!(!format!("{url} {url:?}").contains("hidden"));
        for wrong in [
            &text[1..],
            "iscsi://me%hidden@box?target_password=hidden",
            // Secrets that must be given in the environment.
            "iscsi://me%s/hidden@box/iqn.x/0",
            "iscsi://me%s/iqn.x/hidden@box/iqn.x/0",
            "iscsi://me%s@box/iqn.x/0?target_user=it&target_password=s&hidden",
        ] {
            let error = wrong.parse::<Url>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hidden"), "{error}");
        }
    }
}
