//! The two sides of a network, each a namespace, and the commands that create links between them.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use sarsen_io::namespace::NetworkNamespace;
use sarsen_io::tap::Tap;

/// Number of links for which there are addresses.
pub(super) const LINKS_MAX: usize = 256;

/// Length of the common prefix of the addresses of a link: the two sides and up to eight guests have one each.
pub(super) const PREFIX_LENGTH: u8 = 28;
/// That of the networks of all guests of a side on a link.
const GUESTS_PREFIX_LENGTH: u8 = 25;

/// A side of the network.
#[derive(Debug)]
pub(super) struct Side {
    namespace: NetworkNamespace,
    prefix: Vec<String>,
}

/// Both sides.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) targets: Side,
    pub(super) initiator: Side,
}

/// One end of a link: the interface has the same name on both sides.
pub(super) struct LinkEnd {
    pub(super) interface: String,
    pub(super) address: Ipv4Addr,
    ethernet: String,
    peer: Ipv4Addr,
    peer_ethernet: String,
    /// The networks of guests on the other side, to which that side forwards packets.
    peer_guests: Ipv4Addr,
}

impl LinkEnd {
    /// Creates a TAP device with the name of this interface in the network namespace of the calling thread.
    pub(super) fn tap(&self) -> Result<Tap, String> {
        Tap::new(&self.interface).map_err(|error| format!("cannot create a TAP device ({error})"))
    }
}

impl Side {
    fn new() -> Result<Self, String> {
        let namespace = NetworkNamespace::new()
            .map_err(|error| format!("cannot create a network namespace ({error})"))?;
        let prefix =
            ["nsenter".into(), format!("--net={}", namespace.path()), "--".into()].to_vec();
        let side = Self { namespace, prefix };
        side.ip("link set lo up\n")?;
        Ok(side)
    }

    /// Returns the prefix of a command that runs it on this side.
    pub(super) fn prefix(&self) -> &[String] {
        &self.prefix
    }

    pub(super) fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.within(work)
    }

    /// Passes these lines to `ip` on this side.
    pub(super) fn ip(&self, lines: &str) -> Result<(), String> {
        batch(&self.prefix, "ip", lines)
    }

    /// Passes these lines to `tc` on this side.
    pub(super) fn tc(&self, lines: &str) -> Result<(), String> {
        batch(&self.prefix, "tc", lines)
    }

    /// Lets it forward packets.
    pub(super) fn forward(&self) -> Result<(), String> {
        let switch = "/proc/sys/net/ipv4/ip_forward";
        let set = self.within(|| std::fs::write(switch, "1"));
        set.map_err(|error| format!("{switch}: {error}"))
    }
}

/// Passes lines to a program, whose command begins with `prefix`.
pub(super) fn batch(prefix: &[String], program: &str, lines: &str) -> Result<(), String> {
    let failed = |error| format!("{} {program}: {error}", prefix.join(" "));
    let mut child = Command::new(&prefix[0])
        .args(&prefix[1..])
        .args([program, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(format!("{error}; install util-linux and iproute2")))?;
    // The pipe is moved, so that it is closed after the last line; the status shows an early end.
    let written = child.stdin.take().map(|mut input| input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() && matches!(written, Some(Ok(()))) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(format!("{program} failed ({}): {}", output.status, said.join("; ")))
}

impl Sides {
    /// Creates both namespaces; the error names what is missing.
    pub(super) fn new() -> Result<Self, String> {
        Ok(Self { targets: Side::new()?, initiator: Side::new()? })
    }

    /// Runs the function for each side.
    pub(super) fn each(
        &self,
        mut work: impl FnMut(&Side) -> Result<(), String>,
    ) -> Result<(), String> {
        work(&self.targets)?;
        work(&self.initiator)
    }

    /// Creates a pair of connected interfaces.
    pub(super) fn make_veth(&self, ends: &[LinkEnd; 2]) -> Result<(), String> {
        let [LinkEnd { interface, .. }, _] = ends;
        let other_side = self.initiator.namespace.path();
        self.targets.ip(&format!(
            "link add name {interface} type veth peer name {interface} netns {other_side}\n"
        ))
    }

    /// Creates the same with a bridge between them, which is on the targets' side and has no address. Its ports send no larger
    /// packets than the others.
    pub(super) fn make_switched(&self, ends: &[LinkEnd; 2], mtu: u32) -> Result<(), String> {
        let [LinkEnd { interface, .. }, _] = ends;
        let [near, far, switch] = parts(interface);
        let other_side = self.initiator.namespace.path();
        self.targets.ip(&format!(
            "link add name {switch} type bridge mcast_snooping 0\n\
             link add name {interface} type veth peer name {near}\n\
             link add name {far} type veth peer name {interface} netns {other_side}\n\
             link set dev {near} mtu {mtu} gso_max_segs 1 addrgenmode none master {switch} up\n\
             link set dev {far} mtu {mtu} gso_max_segs 1 addrgenmode none master {switch} up\n\
             link set dev {switch} addrgenmode none up\n"
        ))
    }

    /// Removes the interfaces of [`Sides::make_veth`] or [`Sides::make_switched`], as far as they exist.
    pub(super) fn remove_veth(&self, ends: &[LinkEnd; 2]) -> Result<(), String> {
        let [LinkEnd { interface, .. }, _] = ends;
        // The other end of a veth pair ends with it.
        let [_, far, switch] = parts(interface);
        let removed = self.targets.ip(&format!("link del {interface}\n"));
        let _ = self.targets.ip(&format!("link del {far}\n"));
        let _ = self.targets.ip(&format!("link del {switch}\n"));
        removed
    }

    /// Deactivates the interface of the targets' side, or activates it again. The carrier of the other one follows.
    pub(super) fn set_up(&self, ends: &[LinkEnd; 2], is_up: bool) -> Result<(), String> {
        let [end, _] = ends;
        let LinkEnd { interface, .. } = end;
        self.targets.ip(&if is_up {
            // The neighbour and the route were removed with the carrier.
            format!("link set dev {interface} up\n{}", end.routes())
        } else {
            format!("link set dev {interface} down\n")
        })
    }

    /// Sets the addresses of the interfaces at both ends and activates them; `more` has additional settings of each.
    pub(super) fn take_up(&self, ends: &[LinkEnd; 2], more: &str) -> Result<(), String> {
        self.targets.ip(&ends[0].commands(more))?;
        self.initiator.ip(&ends[1].commands(more))
    }
}

/// The addresses of a link, the targets' side first. RFC 2544 appendix C reserves 198.18.0.0/15 for measurements, so no
/// other network is hidden.
pub(super) fn ends(index: usize) -> [LinkEnd; 2] {
    [(1, 2), (2, 1)].map(|(own, peer)| LinkEnd {
        interface: format!("link{index}"),
        address: address(index, own),
        ethernet: ethernet(index, own),
        peer: address(index, peer),
        peer_ethernet: ethernet(index, peer),
        peer_guests: guests(index, peer == 2),
    })
}

/// Returns the networks of guests that are on the initiator's side or on that of the targets. RFC 2544 reserves this range,
/// too.
pub(super) fn guests(index: usize, is_initiator: bool) -> Ipv4Addr {
    Ipv4Addr::new(198, 19, third(index), if is_initiator { 128 } else { 0 })
}

/// Returns the address with this last byte on a link.
pub(super) fn address(index: usize, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(198, 18, third(index), last)
}

/// Returns the Ethernet address for it.
pub(super) fn ethernet(index: usize, last: u8) -> String {
    format!("02:00:c6:12:{:02x}:{last:02x}", third(index))
}

fn third(index: usize) -> u8 {
    u8::try_from(index).expect("there are addresses for it")
}

/// Returns the names of the ports and of the bridge of a switched link.
pub(super) fn parts(interface: &str) -> [String; 3] {
    ["near", "far", "switch"].map(|part| format!("{interface}{part}"))
}

impl LinkEnd {
    /// The neighbours are set statically, because a delayed or lost ARP request would distort the measurement. IPv6 is
    /// off, because its own packets would be counted.
    fn commands(&self, more: &str) -> String {
        let Self { interface, address, ethernet, .. } = self;
        format!(
            "link set dev {interface} address {ethernet} addrgenmode none {more}\n\
             address add {address}/{PREFIX_LENGTH} dev {interface}\n\
             link set dev {interface} up\n{}",
            self.routes()
        )
    }

    /// Returns the commands that set how the other side and its guests are reached.
    fn routes(&self) -> String {
        let Self { interface, peer, peer_ethernet, peer_guests, .. } = self;
        format!(
            "neighbour replace {peer} lladdr {peer_ethernet} dev {interface} nud permanent\n\
             route replace {peer_guests}/{GUESTS_PREFIX_LENGTH} via {peer} dev {interface}\n"
        )
    }
}
