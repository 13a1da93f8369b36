//! Network cards of guests on a side of the network: one for each link, with an address of its own.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use super::sides::{self, LinkEnd, PREFIX_LENGTH, Sides};
use super::{LinkProfile, Network, TAP_QUEUE_FRAMES};

/// The numbers of the addresses of the first guest, and of its host, within a network.
const GUEST: u8 = 3;
const HOST: u8 = 1;
/// Maximum number of guests on a side: it has no more networks with them.
pub(crate) const GUESTS_MAX: u8 = 8;
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

/// Returns an address of the network between a side and its guest of a number.
fn routed(side: GuestSide, index: usize, number: u8, last: u8) -> Ipv4Addr {
    let networks = sides::guests(index, side == GuestSide::Initiator);
    let each = 1 << (32 - PREFIX_LENGTH);
    Ipv4Addr::from_bits(networks.to_bits() + u32::from(number) * each + u32::from(last))
}

/// The numbers of the guests of a side, a bit each.
#[derive(Clone, Debug, Default)]
pub(super) struct GuestNumbers(Arc<AtomicU8>);

impl GuestNumbers {
    fn take(&self) -> Option<GuestNumber> {
        let is_free = |taken: u8, number: u8| taken & (1 << number) == 0;
        let mut number = 0;
        let taken = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            number = (0..GUESTS_MAX).find(|number| is_free(taken, *number))?;
            Some(taken | (1 << number))
        });
        taken.ok().map(|_| GuestNumber { number, of: self.clone() })
    }
}

/// A number that no other guest of a side has until this is dropped.
#[derive(Debug)]
struct GuestNumber {
    number: u8,
    of: GuestNumbers,
}

impl Drop for GuestNumber {
    fn drop(&mut self) {
        self.of.0.fetch_and(!(1 << self.number), Ordering::AcqRel);
    }
}

/// The network cards of a guest. The interfaces to which they belong are removed when this is dropped.
#[derive(Debug)]
pub struct GuestCards {
    cards: Vec<Card>,
    /// Why a link has no card, by its name.
    refused: Vec<(String, String)>,
    /// The words before a command on the side of the guest.
    prefix: Vec<String>,
    /// Freed after `drop` has removed the interfaces.
    number: Option<GuestNumber>,
}

#[derive(Debug)]
struct Card {
    /// The name of the link.
    link: String,
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

    /// Returns the guest's address on a link; `None` if only ports of its side lead to it.
    pub fn address(&self, link: &str) -> Option<Ipv4Addr> {
        self.cards.iter().find(|card| card.link == link).map(|card| card.address)
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
    /// Creates the network cards of a guest. There are none without namespaces, and none on the targets' side for links with
    /// [`Attachment::UserNetwork`].
    pub fn guest_cards(&self, side: GuestSide) -> Result<GuestCards, String> {
        let [targets, initiator] = &self.guest_numbers;
        let (prefix, numbers) = match side {
            GuestSide::Targets => (self.target_command_prefix(), targets),
            GuestSide::Initiator => (self.initiator_command_prefix(), initiator),
        };
        let prefix = prefix.to_vec();
        let mut cards = GuestCards { cards: Vec::new(), refused: Vec::new(), prefix, number: None };
        let Some(sides) = &self.sides else { return Ok(cards) };
        let number = numbers.take();
        let number =
            number.ok_or(format!("a side of the network has at most {GUESTS_MAX} guests"))?;
        let place = (side, number.number);
        cards.number = Some(number);
        let present = self.links.iter().enumerate().filter(|(_, link)| link.address.is_ok());
        for (index, link) in present {
            match card(sides, place, index, &link.profile) {
                Ok(card) => cards.cards.extend(card),
                Err(reason) => {
                    // Without a part of its settings, the interface is useless.
                    let remove = format!("link del {}\n", interface(place.1, index));
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

/// Returns the name of the interface for a card of the guest of a number.
fn interface(number: u8, index: usize) -> String {
    format!("guest{number}-{index}")
}

/// Creates the interface for a card of a link.
fn card(
    sides: &Sides,
    (side, number): (GuestSide, u8),
    index: usize,
    profile: &LinkProfile,
) -> Result<Option<Card>, String> {
    let [target, initiator] = sides::ends(index);
    let LinkEnd { interface: link, .. } = target;
    let interface = interface(number, index);
    let ethernet = sides::ethernet(index, GUEST + number);
    let mtu = profile.mtu.min(TAP_MTU_MAX);
    let tap = format!(
        "tuntap add dev {interface} mode tap vnet_hdr\n\
         link set dev {interface} mtu {mtu} addrgenmode none txqueuelen {TAP_QUEUE_FRAMES}"
    );
    let neighbour = format!("lladdr {ethernet} nud permanent");
    let mut card = Card {
        link: profile.name.clone(),
        interface: interface.clone(),
        ethernet: ethernet.clone(),
        mtu,
        address: sides::address(index, GUEST + number),
        route: None,
        device: None,
    };
    match profile.attachment {
        _ if side == GuestSide::Targets && profile.has_switch => {
            let [_, _, switch] = sides::parts(&link);
            sides.targets.ip(&format!("{tap} master {switch} up\n"))?;
        }
        Attachment::Macvtap if side == GuestSide::Targets => {
            let device = device_number();
            sides.targets.ip(&format!(
                "link add link {link} index {device} name {interface} type macvtap mode bridge\n\
                 link set dev {interface} address {ethernet} mtu {mtu} addrgenmode none up\n"
            ))?;
            let device = format!("/dev/tap{device}");
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
            let [host, guest] = [HOST, GUEST].map(|last| routed(side, index, number, last));
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
