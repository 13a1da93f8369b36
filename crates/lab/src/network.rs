//! The network of a run: the links between the initiator's side and the targets' side.
//!
//! A process that may create network namespaces creates two, with a link between them for each [`LinkProfile`]. In
//! another process all traffic uses loopback, and the other links are not measured. The lab changes nothing outside the
//! namespaces. They end with the process, even if it is killed.
//!
//! Packets are never larger than the MTU of the link: with the segmentation offload of veth, the MTU would have no
//! effect.

mod guests;
mod relay;
mod shaping;
mod sides;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(test)]
pub(crate) use guests::GUESTS_MAX;
pub use guests::{Attachment, GuestCards, GuestSide};
use relay::wire::Wire;
use sides::{LinkEnd, Sides};

/// Maximum MTU of a veth pair.
const VETH_MTU_MAX: u32 = 65535;

/// Maximum number of frames that wait for the relay, so that a burst of TCP is not lost before the relay reads it.
const TAP_QUEUE_FRAMES: u32 = 10_000;

/// The seed of the relays: each run loses the same frames.
const RELAY_SEED: u64 = 0x6c69_6e6b;

/// Permitted rates of a link.
const RATES_MBIT: RangeInclusive<f64> = 0.001..=1e6;

/// Maximum delay of a link.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The properties of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProfile {
    /// Its name within a study.
    pub name: String,
    /// Maximum length of an IP packet in bytes.
    pub mtu: u32,
    /// Maximum rate of each direction in millions of bits per second; no maximum if absent.
    pub rate_mbit: Option<f64>,
    /// The delay of each direction.
    pub delay: Duration,
    /// The percentage of packets that each direction loses.
    pub loss_percent: f64,
    /// Whether a bridge of the kernel forwards the frames, as a switch does. Such a link has no other impairment.
    pub has_switch: bool,
    /// Whether sessions over it use TLS. The link itself is the same.
    pub has_tls: bool,
    /// How a guest on the targets' side is attached to it. If it has a switch, the guest has a port of that.
    pub attachment: Attachment,
}

impl LinkProfile {
    /// Returns a link without rate limit, delay and loss.
    pub fn plain(name: &str, mtu: u32) -> Self {
        Self {
            name: name.into(),
            mtu,
            rate_mbit: None,
            delay: Duration::ZERO,
            loss_percent: 0.0,
            has_switch: false,
            has_tls: false,
            attachment: Attachment::Routed,
        }
    }

    /// Returns the link that needs no set-up: loopback. If the run has other links too, the two sides are separate, and
    /// a veth pair with all offloads replaces loopback.
    pub fn loopback() -> Self {
        Self::plain("loopback", 65536)
    }
}

/// A link of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// The requested properties.
    pub profile: LinkProfile,
    /// The address of the targets' side, or the reason why the link does not exist.
    pub address: Result<IpAddr, String>,
}

/// The links of a run. They end when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    notes: Vec<String>,
    /// The two namespaces; one side for all on loopback.
    sides: Option<Sides>,
    /// Of the guests on the targets' side, and on that of the initiator.
    guest_numbers: [guests::GuestNumbers; 2],
    /// The threads of the relays.
    _wires: Vec<Wire>,
}

impl Network {
    /// Creates these links, or those that this process can create. If all are [`LinkProfile::loopback`], it creates
    /// none.
    pub fn build(profiles: &[LinkProfile]) -> Self {
        let loopback = LinkProfile::loopback();
        if profiles.iter().all(|profile| *profile == loopback) {
            let reason = "the run has no other link";
            return Self::on_loopback(profiles, reason, vec!["loopback".into()]);
        }
        match Sides::new() {
            Ok(sides) => Self::between(sides, profiles, make),
            Err(reason) => {
                let note = format!(
                    "only the loopback is available: {reason}; run this as root for other links"
                );
                Self::on_loopback(profiles, &reason, vec![note])
            }
        }
    }

    /// Checks that this process can create links other than loopback; the error is the reason.
    pub fn can_be_apart() -> Result<(), String> {
        Sides::new().map(drop)
    }

    fn on_loopback(profiles: &[LinkProfile], reason: &str, notes: Vec<String>) -> Self {
        let loopback = LinkProfile::loopback();
        let link = |profile: &LinkProfile| Link {
            profile: profile.clone(),
            address: if *profile == loopback {
                Ok(Ipv4Addr::LOCALHOST.into())
            } else {
                Err(format!("this needs network namespaces: {reason}"))
            },
        };
        let links = profiles.iter().map(link).collect();
        let guest_numbers = Default::default();
        Self { links, notes, sides: None, guest_numbers, _wires: vec![] }
    }

    fn between(sides: Sides, profiles: &[LinkProfile], make: Make) -> Self {
        let (mut links, mut notes, mut wires) = (Vec::new(), Vec::new(), Vec::new());
        for (index, profile) in profiles.iter().enumerate() {
            let name = &profile.name;
            let made = check(index, profile).and_then(|()| {
                let ends = sides::ends(index);
                make(&sides, &ends, profile).map(|made| (ends[0].address, made))
            });
            let address = match made {
                Ok((address, made)) => {
                    notes.push(format!("{name}: {}", made.how));
                    wires.extend(made.wire);
                    Ok(address.into())
                }
                Err(reason) => {
                    notes.push(format!("{name}: not created: {reason}"));
                    Err(reason)
                }
            };
            links.push(Link { profile: profile.clone(), address });
        }
        let guest_numbers = Default::default();
        Self { links, notes, sides: Some(sides), guest_numbers, _wires: wires }
    }

    /// Returns the links in the order of the profiles.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// Returns notes for the readers of a report: how each link was created, or why not.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether each side has its own network namespace.
    pub const fn is_apart(&self) -> bool {
        self.sides.is_some()
    }

    /// Returns the words before the command of a program on the targets' side; none on loopback. The prefix executes
    /// the program in its own process (`exec`).
    pub fn target_command_prefix(&self) -> &[String] {
        self.sides.as_ref().map_or(&[], |sides| sides.targets.prefix())
    }

    /// Returns the same words for a program on the initiator's side.
    pub fn initiator_command_prefix(&self) -> &[String] {
        self.sides.as_ref().map_or(&[], |sides| sides.initiator.prefix())
    }

    /// Returns the address at which a target listens, so that the initiator reaches it over every link.
    pub fn listen_address(&self) -> IpAddr {
        match self.sides {
            Some(_) => Ipv4Addr::UNSPECIFIED.into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Cuts the cable of a link, or joins it again: nothing arrives, and neither side is notified.
    pub fn set_link(&self, index: usize, is_up: bool) -> Result<(), String> {
        let sides = self.sides.as_ref().ok_or("the loopback cannot be cut")?;
        sides.set_up(&sides::ends(index), is_up)
    }

    /// Executes `work` on a thread whose sockets belong to the initiator's side.
    ///
    /// # Panics
    /// If `work` panics, or if [`sarsen_io::namespace::NetworkNamespace::within`] does.
    pub fn on_initiator_side<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.sides {
            Some(sides) => sides.initiator.within(work),
            None => work(),
        }
    }

    /// Executes `work` on a thread whose sockets belong to the targets' side.
    ///
    /// # Panics
    /// Like [`Network::on_initiator_side`].
    pub fn on_target_side<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.sides {
            Some(sides) => sides.targets.within(work),
            None => work(),
        }
    }
}

/// A link that this process created.
struct CreatedLink {
    how: String,
    wire: Option<Wire>,
}

type Make = fn(&Sides, &[LinkEnd; 2], &LinkProfile) -> Result<CreatedLink, String>;

/// Creates a link: with functions of the kernel only, if the kernel has them.
fn make(sides: &Sides, ends: &[LinkEnd; 2], profile: &LinkProfile) -> Result<CreatedLink, String> {
    // Both interfaces have the same name, and each shapes the frames that it sends.
    let shaping = shaping::commands(profile, &ends[0].interface);
    let (reason, discipline) = match (veth(sides, ends, profile, shaping.as_ref()), shaping) {
        (Ok(how), _) => return Ok(CreatedLink { how, wire: None }),
        (Err(reason), None) => return Err(reason),
        (Err(reason), Some((_, discipline))) => (reason, discipline),
    };
    match relayed(sides, ends, profile) {
        Ok(CreatedLink { how, wire }) => {
            Ok(CreatedLink { how: format!("{how}; no {discipline} here"), wire })
        }
        Err(error) => Err(format!("{reason}, and {error}")),
    }
}

/// Creates a veth pair. If that fails, nothing remains.
fn veth(
    sides: &Sides,
    ends: &[LinkEnd; 2],
    profile: &LinkProfile,
    shaping: Option<&(String, &str)>,
) -> Result<String, String> {
    let mtu = profile.mtu;
    if profile.has_switch {
        sides.make_switched(ends, mtu).inspect_err(|_| {
            let _ = sides.remove_veth(ends);
        })?;
    } else {
        sides.make_veth(ends)?;
    }
    let made = match shaping {
        _ if *profile == LinkProfile::loopback() => sides
            .take_up(ends, &format!("mtu {VETH_MTU_MAX}"))
            .map(|()| format!("veth with offloads, MTU {VETH_MTU_MAX}, instead of the loopback")),
        None => sides.take_up(ends, &format!("mtu {mtu} gso_max_segs 1")).map(|()| {
            let switch = if profile.has_switch { ", through a bridge" } else { "" };
            format!("veth without offloads, MTU {mtu}{switch}")
        }),
        Some((lines, discipline)) => sides
            .take_up(ends, &format!("mtu {mtu} gso_max_segs 1"))
            .and_then(|()| sides.each(|side| side.tc(lines)))
            .map(|()| format!("veth, MTU {mtu}, {discipline}: {}", wishes(profile))),
    };
    if made.is_err() {
        // If this fails, too, the remaining interfaces prevent the creation of a relay.
        let _ = sides.remove_veth(ends);
    }
    made
}

/// Creates a pair of TAP devices with a relay. If that fails, nothing remains.
fn relayed(
    sides: &Sides,
    ends: &[LinkEnd; 2],
    profile: &LinkProfile,
) -> Result<CreatedLink, String> {
    let [target, initiator] = ends;
    let devices =
        [sides.targets.within(|| target.tap())?, sides.initiator.within(|| initiator.tap())?];
    let more = format!("mtu {} txqueuelen {TAP_QUEUE_FRAMES}", profile.mtu);
    sides.take_up(ends, &more)?;
    let wire = Wire::start(devices, profile, RELAY_SEED)
        .map_err(|error| format!("cannot start a thread ({error})"))?;
    let how = format!(
        "relay of this program between TAP devices, MTU {}: {}",
        profile.mtu,
        wishes(profile)
    );
    Ok(CreatedLink { how, wire: Some(wire) })
}

/// Checks that a link can have this profile.
fn check(index: usize, profile: &LinkProfile) -> Result<(), String> {
    if index >= sides::LINKS_MAX {
        return Err(format!("a network has at most {} links", sides::LINKS_MAX));
    }
    if profile.rate_mbit.is_some_and(|rate| !RATES_MBIT.contains(&rate)) {
        return Err("its rate must be from 0.001 to 1000000 Mbit/s".into());
    }
    if !(0.0..=100.0).contains(&profile.loss_percent) {
        return Err("its loss must be from 0 to 100 %".into());
    }
    if profile.has_switch && !wishes(profile).is_empty() {
        return Err("a link with a switch has no rate, delay or loss".into());
    }
    if profile.delay > DELAY_MAX {
        return Err(format!("its delay must be at most {DELAY_MAX:?}"));
    }
    Ok(())
}

/// Describes the requested properties of a link except its MTU.
fn wishes(profile: &LinkProfile) -> String {
    let mut wishes = Vec::new();
    if let Some(rate) = profile.rate_mbit {
        wishes.push(format!("{rate} Mbit/s"));
    }
    if !profile.delay.is_zero() {
        wishes.push(format!("{:?} each way", profile.delay));
    }
    if profile.loss_percent > 0.0 {
        wishes.push(format!("{} % lost each way", profile.loss_percent));
    }
    wishes.join(", ")
}

#[cfg(test)]
mod tests;
