//! Checks of interfaces, paths to peers, names, buffers, and the users of the ports.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::linux::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use sarsen_io::machine;
use sarsen_io::net::Listener;
use sarsen_node::Config;
use sarsen_node::config::Portal;

use super::Finding;

/// The registered port of iSCSI.
const ISCSI_PORT: u16 = 3260;
/// The discard port. Nothing is sent there; it only selects the route to the host.
const ANY_PORT: u16 = 9;
/// The default MTU of Ethernet.
const USUAL_MTU: u32 = 1500;
/// Length of the IP and ICMP headers of a ping.
const PING_HEADERS: (u32, u32) = (28, 48);
/// 10 Gbit/s with a round trip of 2 ms keep 2.5 MB in flight.
const BUFFER_WANTED: u64 = 4 << 20;
/// The state of a listening socket in /proc/net/tcp.
const LISTENS: &str = "0A";

pub(super) fn findings(
    config: Option<&Config>,
    server_runs: bool,
    peers: &[String],
) -> Vec<Finding> {
    let mut findings = vec![interfaces(&read_interfaces())];
    findings.extend(peers.iter().map(|peer| way_to(peer)));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    findings.push(own_name(host, &resolve(host)));
    if let Some(isns) = config.and_then(|config| config.isns.as_ref()) {
        findings.push(name_server(&isns.server, isns.server.to_socket_addrs()));
    }
    for name in ["tcp_rmem", "tcp_wmem"] {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
        findings.push(buffers(name, text.unwrap_or_default().trim()));
    }
    let standard = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ISCSI_PORT));
    let addresses =
        config.map_or(vec![standard], |config| config.listen.iter().map(Portal::address).collect());
    findings.extend(addresses.iter().map(|&address| {
        let bound = Listener::bind(address).map(drop);
        let holder = bound.as_ref().err().and_then(|_| holder(address.port()));
        portal(address, bound, holder.as_deref(), server_runs)
    }));
    findings
}

/// A network interface other than the loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Interface {
    name: String,
    mtu: u32,
    up: bool,
}

fn read_interfaces() -> Vec<Interface> {
    let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    let mut found: Vec<_> = names.filter(|name| name != "lo").filter_map(Interface::read).collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

impl Interface {
    /// Reads the interface with this name; `None` if it does not exist.
    fn read(name: String) -> Option<Self> {
        let read = |file: &str| fs::read_to_string(format!("/sys/class/net/{name}/{file}"));
        let mtu = read("mtu").ok()?.trim().parse().ok()?;
        let up = read("operstate").ok()?.trim() == "up";
        Some(Self { name, mtu, up })
    }
}

fn interfaces(all: &[Interface]) -> Finding {
    const CHECK: &str = "mtu";
    let up: Vec<_> = all.iter().filter(|interface| interface.up).collect();
    let list = up.iter().map(|Interface { name, mtu, .. }| format!("{name} has MTU {mtu}"));
    let list = list.collect::<Vec<_>>().join(", ");
    let (least, most) = (
        up.iter().map(|interface| interface.mtu).min(),
        up.iter().map(|interface| interface.mtu).max(),
    );
    match (least, most) {
        (Some(least), Some(most)) if least != most => Finding::warning(
            CHECK,
            format!("interfaces differ in their MTU: {list}"),
            "use the same MTU on all paths to a disk, and check it with --peer HOST",
        ),
        (Some(mtu), _) if mtu > USUAL_MTU => Finding::ok(
            CHECK,
            format!("{list}: switches and peers must support this MTU; check it with --peer HOST"),
        ),
        (Some(_), _) => Finding::ok(CHECK, list),
        (None, _) => Finding::ok(CHECK, "no interface but the loopback is up"),
    }
}

/// Sends one packet of the interface's MTU that must not be fragmented.
fn way_to(peer: &str) -> Finding {
    const CHECK: &str = "peer";
    let address = match resolve(peer).map(|addresses| addresses.first().copied()) {
        Ok(Some(address)) => address,
        Ok(None) => return unresolved(CHECK, peer, "it has no address"),
        Err(error) => return unresolved(CHECK, peer, &error.to_string()),
    };
    let mtu = match machine::path_mtu((address, ANY_PORT).into()) {
        Ok(mtu) => mtu,
        Err(error) => {
            let finding = format!("there is no route to {peer} ({address}): {error}");
            return Finding::problem(CHECK, finding, "see the routes (ip route get)");
        }
    };
    let headers = if address.is_ipv4() { PING_HEADERS.0 } else { PING_HEADERS.1 };
    let length = mtu.min(u16::MAX.into()).saturating_sub(headers);
    let mut ping = Command::new("ping");
    ping.args(["-n", "-q", "-c", "2", "-W", "2", "-M", "do", "-s"]).arg(length.to_string());
    ping.arg(address.to_string()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    pinged(peer, address, mtu, ping.status().map(|status| status.success()))
}

fn pinged(peer: &str, address: IpAddr, mtu: u32, answered: io::Result<bool>) -> Finding {
    const CHECK: &str = "peer";
    match answered {
        Ok(true) => Finding::ok(CHECK, format!("packets of {mtu} bytes reach {peer} ({address})")),
        Ok(false) => Finding::warning(
            CHECK,
            format!("no answer from {peer} ({address}) to unfragmented packets of {mtu} bytes"),
            format!(
                "if `ping {address}` works, the path has a smaller MTU than {mtu}; set the same MTU at switches \
                 and both ends"
            ),
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("packets of {mtu} bytes to {peer} were not checked: ping: {error}"),
            "apt install iputils-ping",
        ),
    }
}

fn resolve(host: &str) -> io::Result<Vec<IpAddr>> {
    let found = (host.trim_matches(['[', ']']), 0).to_socket_addrs()?;
    Ok(found.map(|address| address.ip()).collect())
}

fn unresolved(check: &'static str, host: &str, error: &str) -> Finding {
    let remedy = "see /etc/hosts and the DNS server, or give an address";
    Finding::problem(check, format!("host name {host} cannot be resolved: {error}"), remedy)
}

fn own_name(host: &str, addresses: &io::Result<Vec<IpAddr>>) -> Finding {
    const CHECK: &str = "host-name";
    match addresses {
        Ok(addresses) if addresses.iter().any(|address| !address.is_loopback()) => {
            Finding::ok(CHECK, format!("this machine's own name, {host}, can be resolved"))
        }
        // Debian's installer leaves it this way. It works on this machine, but not for other machines.
        Ok(_) => Finding::ok(
            CHECK,
            format!(
                "this machine's own name, {host}, is a loopback address here: initiators need an address or \
                 a DNS name"
            ),
        ),
        Err(error) => Finding::warning(
            CHECK,
            format!("this machine's own name, {host}, cannot be resolved: {error}"),
            format!("add `127.0.1.1 {host}` to /etc/hosts"),
        ),
    }
}

fn name_server<T>(server: &str, found: io::Result<T>) -> Finding {
    match found {
        Ok(_) => {
            Finding::ok("isns", format!("the host name of iSNS server {server} can be resolved"))
        }
        Err(error) => unresolved("isns", &format!("of iSNS server {server}"), &error.to_string()),
    }
}

/// `text` has the minimum, default and maximum buffer of a connection.
fn buffers(name: &str, text: &str) -> Finding {
    const CHECK: &str = "socket-buffers";
    match text.split_whitespace().nth(2).and_then(|most| most.parse::<u64>().ok()) {
        None => Finding::unknown(CHECK, name, &format!("it is {text:?}")),
        Some(most) if most < BUFFER_WANTED => Finding::warning(
            CHECK,
            format!("net.ipv4.{name} limits the buffer of a connection to {most} bytes"),
            format!("sysctl -w net.ipv4.{name}=\"4096 131072 {BUFFER_WANTED}\" for 10 Gbit/s"),
        ),
        Some(most) => Finding::ok(
            CHECK,
            format!("net.ipv4.{name} permits a connection a buffer of {most} bytes"),
        ),
    }
}

fn portal(
    address: SocketAddr,
    bound: io::Result<()>,
    holder: Option<&str>,
    server_runs: bool,
) -> Finding {
    const CHECK: &str = "portal";
    let error = match bound {
        Ok(()) => return Finding::ok(CHECK, format!("{address} is free")),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::AddrInUse if server_runs && holder.is_none_or(|name| name == "sarsen") => {
            Finding::ok(CHECK, format!("port {} is used by the running server", address.port()))
        }
        ErrorKind::AddrInUse if holder == Some("systemd") => Finding::ok(
            CHECK,
            format!(
                "systemd listens on {address}, and gives the socket to the service of its unit"
            ),
        ),
        ErrorKind::AddrInUse => {
            let holder = holder.unwrap_or("a process that only root can see");
            Finding::problem(
                CHECK,
                format!("{address} is in use by {holder}"),
                "stop it (the kernel's own target: targetcli clearconfig), or listen elsewhere",
            )
        }
        ErrorKind::AddrNotAvailable => Finding::problem(
            CHECK,
            format!("{address} is not an address of this machine"),
            "check `ip address`; set sysctl net.ipv4.ip_nonlocal_bind=1 if the address is not always present",
        ),
        ErrorKind::PermissionDenied => Finding::problem(
            CHECK,
            format!("{address}: only root may listen on ports below 1024"),
            "use 3260 or another one above 1023",
        ),
        _ => Finding::problem(CHECK, format!("{address}: {error}"), "listen elsewhere"),
    }
}

/// Returns the name of the process that listens at `port`, if it is visible.
fn holder(port: u16) -> Option<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let inode = tables.iter().flatten().find_map(|table| inode_of(table, port))?;
    let wanted = format!("socket:[{inode}]");
    let own = fs::metadata("/proc/self").ok()?.st_uid();
    let processes = fs::read_dir("/proc").ok()?.flatten().map(|entry| entry.path());
    let has_it = |process: &Path| {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors
            .filter_map(|descriptor| fs::read_link(descriptor.path()).ok())
            .any(|link| link.as_os_str() == wanted.as_str())
    };
    match processes.into_iter().find(|process| has_it(process)) {
        Some(process) => Some(fs::read_to_string(process.join("comm")).ok()?.trim().to_owned()),
        // Sockets of the kernel belong to no process. Only root can be sure of that.
        None if own == 0 => Some("the kernel (its own iSCSI target?)".to_owned()),
        None => None,
    }
}

/// Finds the socket that listens at `port` in a table like /proc/net/tcp.
fn inode_of(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let (_, local_port) = words.get(1)?.rsplit_once(':')?;
        let listens = words.get(3) == Some(&LISTENS);
        let matches = listens && u16::from_str_radix(local_port, 16) == Ok(port);
        matches.then(|| words.get(9)?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    fn interface(name: &str, mtu: u32) -> Interface {
        Interface { name: name.into(), mtu, up: true }
    }

    #[test]
    fn differing_interfaces_are_reported() {
        let (a, b, c) = (interface("eth0", 1500), interface("eth1", 9000), interface("eth2", 9000));
        assert_eq!(interfaces(&[a.clone(), b.clone()]).level, Level::Warning);
        assert_eq!(interfaces(&[b.clone(), c]).level, Level::Ok);
        let down = Interface { up: false, ..a };
        assert_eq!(interfaces(&[down, b]).level, Level::Ok, "one that is down does not count");
        assert_eq!(interfaces(&[]).level, Level::Ok);
    }

    #[test]
    fn lost_jumbo_packet_is_reported() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let level = |answered| pinged("box", address, 9000, answered).level;
        assert_eq!(level(Ok(true)), Level::Ok);
        assert_eq!(level(Ok(false)), Level::Warning);
        assert_eq!(level(Err(ErrorKind::NotFound.into())), Level::Warning);
    }

    #[test]
    fn unresolvable_names_are_reported() {
        let unknown = || io::Error::other("unknown host");
        assert_eq!(own_name("san", &Err(unknown())).level, Level::Warning);
        assert_eq!(own_name("san", &Ok(vec![[127, 0, 1, 1].into()])).level, Level::Ok);
        assert_eq!(name_server::<()>("isns:3205", Err(unknown())).level, Level::Problem);
    }

    #[test]
    fn small_buffers_are_reported() {
        assert_eq!(buffers("tcp_rmem", "4096\t131072\t6291456").level, Level::Ok);
        assert_eq!(buffers("tcp_rmem", "4096 87380 212992").level, Level::Warning);
        assert_eq!(buffers("tcp_rmem", "").level, Level::Ok);
    }

    #[test]
    fn process_that_occupies_portal_is_named() {
        let address = SocketAddr::from(([0, 0, 0, 0], 3260));
        let taken = |holder: Option<&str>, runs| {
            portal(address, Err(ErrorKind::AddrInUse.into()), holder, runs)
        };
        assert_eq!(taken(Some("sarsen"), true).level, Level::Ok);
        assert_eq!(taken(Some("sarsen"), false).level, Level::Problem);
        assert_eq!(taken(Some("systemd"), false).level, Level::Ok, "it waits for somebody");
        let tgtd = taken(Some("tgtd"), true);
        assert_eq!(
            (tgtd.level, &*tgtd.finding),
            (Level::Problem, "0.0.0.0:3260 is in use by tgtd")
        );
        let elsewhere = portal(address, Err(ErrorKind::AddrNotAvailable.into()), None, false);
        assert_eq!(elsewhere.level, Level::Problem);
        assert_eq!(portal(address, Ok(()), None, false).level, Level::Ok);
    }

    #[test]
    fn a_socket_is_found_by_its_port_if_it_listens() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout \
                     inode\n\
             0: 0100007F:0CBC 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 601 1\n\
             1: 00000000:0CBC 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 602 1\n";
        assert_eq!(inode_of(table, 3260), Some(602));
        assert_eq!(inode_of(table, 3261), None);
    }

    #[test]
    fn the_holder_of_a_port_of_ours_is_this_process() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into()).expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let comm = fs::read_to_string("/proc/self/comm").expect("a name");
        assert_eq!(holder(port).as_deref(), Some(comm.trim()));
    }
}
