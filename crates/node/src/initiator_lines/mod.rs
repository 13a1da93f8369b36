//! Access paths to the disks of a target, and the lines that an administrator pastes into a client. The lines contain
//! no secret: they name the file that contains it on the client.

mod formats;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::protocol::Protocol;
use crate::schema::{Authentication, Target, TargetPortal};

/// The client that the lines are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// An iscsi:// URL for libiscsi, QEMU and `sarsen disk`. For TLS, an iscsis:// URL, which only sarsen supports.
    Libiscsi,
    /// open-iscsi on Linux.
    Iscsiadm,
    /// qemu-img and a virtual machine's disk.
    Qemu,
    /// Booting by iPXE, in the format of RFC 4173.
    Ipxe,
    /// A shell on VMware ESXi.
    Esxi,
    /// PowerShell on Windows.
    Windows,
    /// An nbd:// URL for clients of NBD such as libnbd and QEMU. For TLS, an nbds:// URL.
    Nbd,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 7] = [
        Self::Libiscsi,
        Self::Iscsiadm,
        Self::Qemu,
        Self::Ipxe,
        Self::Esxi,
        Self::Windows,
        Self::Nbd,
    ];

    /// Returns the name that programs use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libiscsi => "libiscsi",
            Self::Iscsiadm => "iscsiadm",
            Self::Qemu => "qemu",
            Self::Ipxe => "ipxe",
            Self::Esxi => "esxi",
            Self::Windows => "windows",
            Self::Nbd => "nbd",
        }
    }
}

/// The address of a portal for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalAddress {
    /// Name or address. An IPv6 address has no brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// `san.example:3260`, `[2001:db8::1]:3260`.
impl fmt::Display for PortalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// An access path to the disks of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPath {
    /// The address of the portal.
    pub portal: PortalAddress,
    /// The protocol of the portal.
    pub protocol: Protocol,
    /// The portal's group, if known.
    pub group: Option<u16>,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// iSCSI name.
    pub target: String,
    /// Logical unit numbers.
    pub luns: Vec<u16>,
    /// The volumes behind them, by which NBD names them.
    pub volumes: Vec<String>,
    /// The account of the initiator, if it has to authenticate.
    pub user: Option<String>,
    /// The file that contains the secret on the client.
    pub secret_file: String,
}

impl AccessPath {
    /// Returns whether the portal has the protocol of a client.
    pub fn is_for(&self, format: Format) -> bool {
        let protocol = if format == Format::Nbd { Protocol::Nbd } else { Protocol::Iscsi };
        self.protocol == protocol
    }

    /// Returns the lines for a client. Returns `None` if the client does not support the portal's protocol, its TLS or
    /// the authentication of the target.
    pub fn lines(&self, format: Format) -> Option<Vec<String>> {
        let is_supported = match format {
            Format::Libiscsi => true,
            // NBD has no accounts.
            Format::Nbd => self.user.is_none(),
            _ => !self.tls,
        };
        (self.is_for(format) && is_supported).then(|| formats::lines(format, self))
    }
}

/// The properties of a client that wants to access a target.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The name or address that the client uses for portals that listen on all addresses.
    pub host: Option<&'a str>,
    /// The account of the client. Default: the account that the target requires, or USER if it names none.
    pub user: Option<&'a str>,
    /// The file that contains the client's secret.
    pub secret_file: &'a str,
}

/// Returns the paths to a target of a server, one for each portal. Portals at loopback addresses are omitted, unless
/// the target has no other portal of their protocol.
pub fn access_paths(target: &Target, client: Client<'_>) -> Vec<AccessPath> {
    let Client { host, user, secret_file } = client;
    let account = target.account.as_deref().unwrap_or("USER");
    let demanded = (target.authentication == Authentication::Chap).then_some(account);
    let way = |portal: &TargetPortal| {
        Some(AccessPath {
            portal: reachable(portal.address.parse().ok()?, host),
            protocol: portal.protocol,
            group: Some(portal.group),
            tls: portal.tls,
            target: target.name.clone(),
            luns: target.luns.iter().map(|unit| unit.lun).collect(),
            volumes: target.luns.iter().map(|unit| unit.volume.clone()).collect(),
            user: user.or(demanded).map(str::to_owned),
            secret_file: secret_file.to_owned(),
        })
    };
    let is_reachable = |portal: &&TargetPortal| {
        let mut others = target.portals.iter().filter(|other| other.protocol == portal.protocol);
        !is_local(portal) || others.all(is_local)
    };
    target.portals.iter().filter(is_reachable).filter_map(way).collect()
}

/// Returns whether only this machine can reach a portal.
pub fn is_local(portal: &TargetPortal) -> bool {
    portal.address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
}

/// Returns the host name of this machine.
pub fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Returns whether a name or address always means the local machine.
pub(crate) fn is_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns the address at which a client reaches a portal that listens at `address`.
fn reachable(address: SocketAddr, host: Option<&str>) -> PortalAddress {
    let host = match host {
        Some(host) if address.ip().is_unspecified() => host.trim_matches(['[', ']']).to_owned(),
        _ => address.ip().to_string(),
    };
    PortalAddress { host, port: address.port() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{TargetLun, TargetState};

    fn target(authentication: Authentication) -> Target {
        let protocol = Protocol::Iscsi;
        let portal =
            |address: &str, tls| TargetPortal { address: address.into(), protocol, group: 3, tls };
        Target {
            name: "iqn.x:b".into(),
            alias: None,
            state: TargetState::InService,
            redirect: None,
            portal_groups: None,
            session_count: 0,
            portals: vec![portal("0.0.0.0:3260", false), portal("[2001:db8::1]:3261", true)],
            luns: [(0, "a"), (7, "b")]
                .map(|(lun, volume)| TargetLun { lun, volume: volume.into() })
                .into(),
            authentication,
            account: None,
        }
    }

    #[test]
    fn a_target_of_the_server_is_reached_by_each_of_its_portals() {
        let client = Client { host: Some("san.example"), user: None, secret_file: "f" };
        let paths = super::access_paths(&target(Authentication::Chap), client);
        let seen: Vec<_> = paths.iter().map(|way| (way.portal.to_string(), way.tls)).collect();
        let expected = [("san.example:3260".into(), false), ("[2001:db8::1]:3261".into(), true)];
        assert_eq!(seen, expected);
        assert!(paths.iter().all(|way| way.user.as_deref() == Some("USER")), "CHAP is demanded");
        assert!(paths.iter().all(|way| way.luns == [0, 7] && way.group == Some(3)));
        let named = super::access_paths(
            &target(Authentication::Chap),
            Client { user: Some("me"), ..client },
        );
        assert!(named.iter().all(|way| way.user.as_deref() == Some("me")));
        let one = Target { account: Some("vm".into()), ..target(Authentication::Chap) };
        assert!(
            super::access_paths(&one, client).iter().all(|way| way.user.as_deref() == Some("vm"))
        );
        let named = super::access_paths(&one, Client { user: Some("me"), ..client });
        assert!(named.iter().all(|way| way.user.as_deref() == Some("me")));
        let open = super::access_paths(&target(Authentication::None), client);
        assert!(open.iter().all(|way| way.user.is_none()));
    }

    #[test]
    fn lines_name_no_portal_that_only_this_machine_reaches_where_there_is_another() {
        let portal = |address: &str| TargetPortal {
            address: address.into(),
            protocol: Protocol::Iscsi,
            group: 1,
            tls: false,
        };
        let client = Client { host: Some("san.example"), user: None, secret_file: "f" };
        let portals_of = |portals: &[&str]| {
            let portals = portals.iter().map(|address| portal(address)).collect();
            let target = Target { portals, ..target(Authentication::None) };
            let paths = super::access_paths(&target, client).into_iter();
            paths.map(|way| way.portal.to_string()).collect::<Vec<_>>()
        };
        let [local, every, one] = ["127.0.0.1:3260", "0.0.0.0:3261", "192.0.2.1:3260"];
        assert_eq!(portals_of(&[local, every, one]), ["san.example:3261", one]);
        assert_eq!(portals_of(&[local, "[::1]:3260"]), [local, "[::1]:3260"]);
    }

    #[test]
    fn initiators_without_tls_get_no_lines_for_tls() {
        let client = Client { host: None, user: None, secret_file: "f" };
        let [plain, tls] = &super::access_paths(&target(Authentication::None), client)[..] else {
            panic!("two portals")
        };
        for format in Format::ALL.into_iter().filter(|format| *format != Format::Nbd) {
            assert!(plain.lines(format).is_some_and(|lines| !lines.is_empty()));
            assert_eq!(tls.lines(format).is_some(), format == Format::Libiscsi);
        }
        assert_eq!((plain.lines(Format::Nbd), tls.lines(Format::Nbd)), (None, None));
    }

    #[test]
    fn nbd_portals_are_for_nbd_clients_and_name_volumes() {
        let client = Client { host: Some("san.example"), user: None, secret_file: "f" };
        let of = |authentication, tls| {
            let mut target = target(authentication);
            target.portals.truncate(1);
            target.portals[0].protocol = Protocol::Nbd;
            target.portals[0].tls = tls;
            super::access_paths(&target, client).remove(0)
        };
        let open = of(Authentication::None, false);
        for format in Format::ALL {
            assert_eq!(open.lines(format).is_some(), format == Format::Nbd, "{format:?}");
        }
        let urls = ["nbd://san.example:3260/a", "nbd://san.example:3260/b"].map(str::to_owned);
        assert_eq!(open.lines(Format::Nbd), Some(urls.to_vec()));
        let secure = of(Authentication::None, true).lines(Format::Nbd).expect("lines");
        assert_eq!(secure[0], "nbds://san.example:3260/a");
        assert_eq!(of(Authentication::Chap, false).lines(Format::Nbd), None, "NBD has no CHAP");
    }
}
