//! Network cards of a guest on a side of the network: one for each link, with an address of its own.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::sides::{self, LinkEnd, PREFIX_LENGTH, Sides};
use super::{LinkProfile, Network, TAP_QUEUE_FRAMES};

/// The numbers of the addresses of a guest, and of its host, within a network.
const GUEST: u8 = 3;
const HOST: u8 = 1;
/// Maximum MTU of a TAP device: a frame has 65535 bytes with its header.
const TAP_MTU_MAX: u32 = 65521;
/// The first file descriptor of QEMU for a macvtap device, and their number: shells have no others with one digit.
const DESCRIPTORS: std::ops::Range<usize> = 3..10;

/// The side of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestSide {
    /// That of the targets: the guest serves volumes.
    Targets,
    /// That of the initiator: the guest uses volumes. The initiator's side forwards its packets.
    Initiator,
}

/// How a guest on the targets' side is attached to a link without a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// The targets' side forwards the packets of the guest, which has a network of its own with it.
    Routed,
    /// A macvtap device in bridge mode shares the interface of the targets' side with the guest.
    Macvtap,
    /// The hypervisor ends each connection, and opens another one to the guest.
    UserNetwork,
}

/// Returns the address of a guest that is attached to a link; `None` if it has none that the initiator reaches.
pub(super) fn guest_address(index: usize, profile: &LinkProfile) -> Option<IpAddr> {
    match profile.attachment {
        _ if profile.has_switch => Some(sides::address(index, GUEST).into()),
        Attachment::Routed => Some(routed(GuestSide::Targets, index, GUEST).into()),
        Attachment::Macvtap => Some(sides::address(index, GUEST).into()),
        Attachment::UserNetwork => None,
    }
}

/// Returns an address of the network between a side and its guest.
fn routed(side: GuestSide, index: usize, number: u8) -> Ipv4Addr {
    let network = sides::guests(index, side == GuestSide::Initiator);
    Ipv4Addr::from_bits(network.to_bits() + u32::from(number))
}

/// The network cards of a guest. The interfaces to which they belong are removed when this is dropped.
#[derive(Debug)]
pub struct GuestCards {
    cards: Vec<Card>,
    /// Why a link has no card, by its name.
    refused: Vec<(String, String)>,
    /// The words before a command on the side of the guest.
    prefix: Vec<String>,
}

#[derive(Debug)]
struct Card {
    /// The interface of the side.
    interface: String,
    ethernet: String,
    mtu: u32,
    address: Ipv4Addr,
    /// The network that the guest reaches over a gateway.
    route: Option<(Ipv4Addr, Ipv4Addr)>,
    /// The device that the hypervisor opens: none for a TAP device, which it opens by its name.
    device: Option<String>,
}

impl GuestCards {
    /// Returns the arguments of the hypervisor.
    pub fn arguments(&self) -> Vec<String> {
        let descriptors = &mut DESCRIPTORS.clone();
        let arguments =
            self.cards.iter().flat_map(|Card { interface, ethernet, device, .. }| {
                let backend = match device {
                    None => format!("ifname={interface},script=no,downscript=no"),
                    Some(_) => format!("fd={}", descriptors.next().unwrap_or_default()),
                };
                let card = format!("virtio-net-pci,netdev={interface},mac={ethernet},romfile=");
                ["-netdev".into(), format!("tap,id={interface},{backend}"), "-device".into(), card]
            });
        arguments.collect()
    }

    /// Returns the words before the hypervisor's command, which executes it on the side of the guest with its devices.
    pub fn command_prefix(&self) -> Vec<String> {
        let devices = self.cards.iter().filter_map(|card| card.device.as_ref());
        let redirections: Vec<_> = devices
            .zip(DESCRIPTORS)
            .map(|(device, number)| format!("{number}<>{device}"))
            .collect();
        let mut prefix = self.prefix.clone();
        if !redirections.is_empty() {
            let script = format!("exec \"$@\" {}", redirections.join(" "));
            prefix.extend(["sh".into(), "-c".into(), script, "sh".into()]);
        }
        prefix
    }

    /// Returns the lines of a script with which the guest sets its addresses.
    pub fn script(&self) -> String {
        let lines = self.cards.iter().map(|Card { ethernet, mtu, address, route, .. }| {
            let route = route.map(|(network, gateway)| {
                format!("ip route add {network}/{PREFIX_LENGTH} via {gateway}\n")
            });
            format!(
                "for card in /sys/class/net/*; do\n\
                 if [ \"$(cat $card/address)\" = {ethernet} ]; then card=${{card##*/}}; break; fi\n\
                 done\n\
                 ip link set $card mtu {mtu}\n\
                 ip address add {address}/{PREFIX_LENGTH} dev $card\n\
                 ip link set $card up\n{}",
                route.unwrap_or_default()
            )
        });
        lines.collect()
    }

    /// Returns why a link has no card.
    pub fn refusal(&self, link: &str) -> Option<&str> {
        self.refused.iter().find(|(name, _)| name == link).map(|(_, reason)| reason.as_str())
    }
}

impl Drop for GuestCards {
    fn drop(&mut self) {
        for card in &self.cards {
            // It ends with the namespace at the latest.
            let _ = sides::batch(&self.prefix, "ip", &format!("link del {}\n", card.interface));
        }
    }
}

impl Network {
    /// Creates the network cards of a guest, at most one guest of each side at a time. There are none without namespaces, and
    /// none on the targets' side for links with [`Attachment::UserNetwork`].
    pub fn guest_cards(&self, side: GuestSide) -> Result<GuestCards, String> {
        let prefix = match side {
            GuestSide::Targets => self.target_command_prefix(),
            GuestSide::Initiator => self.initiator_command_prefix(),
        };
        let prefix = prefix.to_vec();
        let mut cards = GuestCards { cards: Vec::new(), refused: Vec::new(), prefix };
        let Some(sides) = &self.sides else { return Ok(cards) };
        let present = self.links.iter().enumerate().filter(|(_, link)| link.address.is_ok());
        for (index, link) in present {
            match card(sides, side, index, &link.profile) {
                Ok(card) => cards.cards.extend(card),
                Err(reason) => {
                    // Without a part of its settings, the interface is useless.
                    let remove = format!("link del {}\n", interface(index));
                    let _ = sides::batch(&cards.prefix, "ip", &remove);
                    cards.refused.push((link.profile.name.clone(), reason));
                }
            }
        }
        let devices = cards.cards.iter().filter(|card| card.device.is_some()).count();
        if devices > DESCRIPTORS.len() {
            return Err(format!("a guest has at most {} macvtap devices", DESCRIPTORS.len()));
        }
        Ok(cards)
    }
}

/// Returns the name of the interface for a card.
fn interface(index: usize) -> String {
    format!("guest{index}")
}

/// Creates the interface for a card of a link.
fn card(
    sides: &Sides,
    side: GuestSide,
    index: usize,
    profile: &LinkProfile,
) -> Result<Option<Card>, String> {
    let [target, initiator] = sides::ends(index);
    let LinkEnd { interface: link, .. } = target;
    let interface = interface(index);
    let ethernet = sides::ethernet(index, GUEST);
    let mtu = profile.mtu.min(TAP_MTU_MAX);
    let tap = format!(
        "tuntap add dev {interface} mode tap vnet_hdr\n\
         link set dev {interface} mtu {mtu} addrgenmode none txqueuelen {TAP_QUEUE_FRAMES}"
    );
    let neighbour = format!("lladdr {ethernet} nud permanent");
    let mut card = Card {
        interface: interface.clone(),
        ethernet: ethernet.clone(),
        mtu,
        address: sides::address(index, GUEST),
        route: None,
        device: None,
    };
    match profile.attachment {
        _ if side == GuestSide::Targets && profile.has_switch => {
            let [_, _, switch] = sides::parts(&link);
            sides.targets.ip(&format!("{tap} master {switch} up\n"))?;
        }
        Attachment::Macvtap if side == GuestSide::Targets => {
            let number = device_number();
            sides.targets.ip(&format!(
                "link add link {link} index {number} name {interface} type macvtap mode bridge\n\
                 link set dev {interface} address {ethernet} mtu {mtu} addrgenmode none up\n"
            ))?;
            let device = format!("/dev/tap{number}");
            if !Path::new(&device).exists() {
                return Err(format!("the system has created no device {device} for macvtap"));
            }
            card.device = Some(device);
        }
        Attachment::UserNetwork if side == GuestSide::Targets => return Ok(None),
        Attachment::Routed | Attachment::Macvtap | Attachment::UserNetwork => {
            let here = match side {
                GuestSide::Targets => &sides.targets,
                GuestSide::Initiator => &sides.initiator,
            };
            let [host, guest] = [HOST, GUEST].map(|number| routed(side, index, number));
            here.ip(&format!(
                "{tap}\n\
                 address add {host}/{PREFIX_LENGTH} dev {interface}\n\
                 link set dev {interface} up\n\
                 neighbour replace {guest} dev {interface} {neighbour}\n"
            ))?;
            here.forward()?;
            card.address = guest;
            card.route = Some((sides::address(index, 0), host));
        }
    }
    if card.route.is_none() {
        // It is in the network of the link itself.
        let LinkEnd { interface: link, .. } = initiator;
        let guest = card.address;
        sides.initiator.ip(&format!("neighbour replace {guest} dev {link} {neighbour}\n"))?;
    }
    Ok(Some(card))
}

/// Returns the index of a macvtap interface, which is in the name of its device: it must be unique among all namespaces.
fn device_number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let own = std::process::id() & 0x003f_ffff;
    1 << 30 | own << 8 | NEXT.fetch_add(1, Ordering::Relaxed) & 0xff
}
