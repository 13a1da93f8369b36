//! Ways to a target's disks, and the lines that are pasted where they are to be used. They hold no secret: they
//! name the file that has it there.

mod formats;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::control::schema::{Authentication, Target, TargetPortal};

/// For whom lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// iscsi:// as libiscsi, QEMU and `sarsen disk` take it (iscsis:// for TLS, sarsen alone).
    Libiscsi,
    /// open-iscsi on Linux.
    Iscsiadm,
    /// qemu-img and a virtual machine's disk.
    Qemu,
    /// Booting by iPXE, as RFC 4173 writes it.
    Ipxe,
    /// A shell on VMware ESXi.
    Esxi,
    /// PowerShell on Windows.
    Windows,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Libiscsi, Self::Iscsiadm, Self::Qemu, Self::Ipxe, Self::Esxi, Self::Windows];

    /// Its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libiscsi => "libiscsi",
            Self::Iscsiadm => "iscsiadm",
            Self::Qemu => "qemu",
            Self::Ipxe => "ipxe",
            Self::Esxi => "esxi",
            Self::Windows => "windows",
        }
    }
}

/// Where a client finds a portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalAddress {
    /// Name or address, an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// `san.example:3260`, `[2001:db8::1]:3260`.
impl fmt::Display for PortalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// A way to a target's disks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessPath {
    /// Where.
    pub portal: PortalAddress,
    /// The portal's group, where it is known.
    pub group: Option<u16>,
    /// The portal accepts only TLS.
    pub tls: bool,
    /// iSCSI name.
    pub target: String,
    /// Logical unit numbers.
    pub luns: Vec<u16>,
    /// Whom the initiator logs in as, if it has to.
    pub user: Option<String>,
    /// The file that has the secret where the lines are used.
    pub secret_file: String,
}

impl AccessPath {
    /// What is pasted for a client; nothing for those that do not speak TLS, where it is wanted.
    pub fn lines(&self, format: Format) -> Option<Vec<String>> {
        (!self.tls || format == Format::Libiscsi).then(|| formats::lines(format, self))
    }
}

/// What is to be known of who wants to reach a target.
#[derive(Clone, Copy, Debug)]
pub struct Client<'a> {
    /// The name or address by which he reaches a portal that listens on all addresses.
    pub host: Option<&'a str>,
    /// Whom he logs in as, where that is not said by the target; USER stands there where it is neither.
    pub user: Option<&'a str>,
    /// The file that has his secret.
    pub secret_file: &'a str,
}

/// The paths to a target of a server: one for each of its portals. A portal at a loopback address is no way for a
/// client, unless the target has no other.
pub fn access_paths(target: &Target, client: Client<'_>) -> Vec<AccessPath> {
    let Client { host, user, secret_file } = client;
    let account = target.account.as_deref().unwrap_or("USER");
    let demanded = (target.authentication == Authentication::Chap).then_some(account);
    let way = |portal: &TargetPortal| {
        Some(AccessPath {
            portal: reachable(portal.address.parse().ok()?, host),
            group: Some(portal.group),
            tls: portal.tls,
            target: target.name.clone(),
            luns: target.luns.iter().map(|unit| unit.lun).collect(),
            user: user.or(demanded).map(str::to_owned),
            secret_file: secret_file.to_owned(),
        })
    };
    let (local, reachable): (Vec<_>, Vec<_>) =
        target.portals.iter().partition(|portal| is_local(portal));
    let portals = if reachable.is_empty() { local } else { reachable };
    portals.into_iter().filter_map(way).collect()
}

/// Whether only this machine can reach it.
pub fn is_local(portal: &TargetPortal) -> bool {
    portal.address.parse().is_ok_and(|address: SocketAddr| address.ip().is_loopback())
}

/// This machine's name, as it knows it.
pub fn own_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Whether a name or address always means the local machine.
pub(crate) fn is_own(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host == "localhost" || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Where a client finds what listens at `address`.
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
    use crate::control::schema::{TargetLun, TargetState};

    fn target(authentication: Authentication) -> Target {
        let portal = |address: &str, tls| TargetPortal { address: address.into(), group: 3, tls };
        Target {
            name: "iqn.x:b".into(),
            alias: None,
            state: TargetState::InService,
            redirect: None,
            portal_groups: None,
            session_count: 0,
            portals: vec![portal("0.0.0.0:3260", false), portal("[2001:db8::1]:3261", true)],
            luns: vec![TargetLun { lun: 0 }, TargetLun { lun: 7 }],
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
        let portal = |address: &str| TargetPortal { address: address.into(), group: 1, tls: false };
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
    fn who_does_not_speak_tls_is_given_nothing_to_paste_for_it() {
        let client = Client { host: None, user: None, secret_file: "f" };
        let [plain, tls] = &super::access_paths(&target(Authentication::None), client)[..] else {
            panic!("two portals")
        };
        for format in Format::ALL {
            assert!(plain.lines(format).is_some_and(|lines| !lines.is_empty()));
            assert_eq!(tls.lines(format).is_some(), format == Format::Libiscsi);
        }
    }
}
