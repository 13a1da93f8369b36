//! Where a run takes place: the links between the initiator's side and the targets' side.
//!
//! With the right to make network namespaces there are two of them, joined by a link for each
//! [`LinkProfile`]; without it everything goes over loopback, and what loopback cannot imitate is
//! not measured. Nothing outside the namespaces is touched, and they end with the process, even
//! one that is killed.
//!
//! Packets are never larger than the link's MTU, as if no network card took part in TCP: with
//! veth's segmentation offload the MTU would make no difference.

mod relay;
mod shaping;
mod sides;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use relay::wire::Wire;
use sides::{LinkEnd, Sides};

/// The largest MTU of a veth pair.
const VETH_MTU_MAX: u32 = 65535;

/// Frames that wait for the relay: what TCP sends at once is not lost before it was on the line.
const TAP_QUEUE_FRAMES: u32 = 10_000;

/// What is lost on a relay's link is the same each time.
const RELAY_SEED: u64 = 0x6c69_6e6b;

/// Rates that a link can have.
const RATES_MBIT: RangeInclusive<f64> = 0.001..=1e6;

/// The longest way.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// What a link is like.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkProfile {
    /// Its name within a study.
    pub name: String,
    /// The largest IP packet, in bytes.
    pub mtu: u32,
    /// Bits a second in each direction, in millions; as fast as it goes if absent.
    pub rate_mbit: Option<f64>,
    /// How long a packet is under way, one way.
    pub delay: Duration,
    /// Packets of a hundred that are lost, each way.
    pub loss_percent: f64,
}

impl LinkProfile {
    /// A link that does nothing but carry packets of up to `mtu` bytes.
    pub fn plain(name: &str, mtu: u32) -> Self {
        Self { name: name.into(), mtu, rate_mbit: None, delay: Duration::ZERO, loss_percent: 0.0 }
    }

    /// What a network without any set-up is: loopback as it is. Beside other links, which keep the
    /// two sides apart, it is the nearest thing: a veth pair with all of its offloads.
    pub fn loopback() -> Self {
        Self::plain("loopback", 65536)
    }
}

/// A link as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// What was asked for.
    pub profile: LinkProfile,
    /// Where the targets' side answers, or why this link could not be made.
    pub address: Result<IpAddr, String>,
}

/// The links of a run. They end when this is dropped, or when the process ends.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    notes: Vec<String>,
    /// The two namespaces; one side for all on loopback.
    sides: Option<Sides>,
    /// What the relays run on.
    _wires: Vec<Wire>,
}

impl Network {
    /// Makes these links, or as much of them as can be made here. If all are
    /// [`LinkProfile::loopback`] nothing is made.
    pub fn build(profiles: &[LinkProfile]) -> Self {
        let loopback = LinkProfile::loopback();
        if profiles.iter().all(|profile| *profile == loopback) {
            let reason = "nothing else was asked for";
            return Self::on_loopback(profiles, reason, vec!["loopback".into()]);
        }
        match Sides::new() {
            Ok(sides) => Self::between(sides, profiles, make),
            Err(reason) => {
                let note = format!("loopback alone: {reason}; root can have other links");
                Self::on_loopback(profiles, &reason, vec![note])
            }
        }
    }

    /// Whether links other than loopback can be made here, and why not.
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
        Self { links: profiles.iter().map(link).collect(), notes, sides: None, _wires: vec![] }
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
                    notes.push(format!("{name}: not made, since {reason}"));
                    Err(reason)
                }
            };
            links.push(Link { profile: profile.clone(), address });
        }
        Self { links, notes, sides: Some(sides), _wires: wires }
    }

    /// The links, as they were asked for.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// What a reader of a report should know: how the links were made, and what could not be.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether the sides are namespaces of their own.
    pub const fn is_apart(&self) -> bool {
        self.sides.is_some()
    }

    /// The command that a program of the targets' side is started by: words that go before its own,
    /// none on loopback. They become the program (`exec`): its process is the one that was started.
    pub fn target_prefix(&self) -> &[String] {
        self.sides.as_ref().map_or(&[], |sides| sides.targets.prefix())
    }

    /// The address that a target listens on to be reached over each link.
    pub fn listen_address(&self) -> IpAddr {
        match self.sides {
            Some(_) => Ipv4Addr::UNSPECIFIED.into(),
            None => Ipv4Addr::LOCALHOST.into(),
        }
    }

    /// Does `work` on a thread whose sockets are the initiator's side's.
    ///
    /// # Panics
    /// If `work` does, or where [`sarsen_io::namespace::NetworkNamespace::within`] does.
    pub fn on_initiator_side<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.sides {
            Some(sides) => sides.initiator.within(work),
            None => work(),
        }
    }

    /// Does `work` on a thread whose sockets are the targets' side's.
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

/// A link that was made.
struct CreatedLink {
    how: String,
    wire: Option<Wire>,
}

type Make = fn(&Sides, &[LinkEnd; 2], &LinkProfile) -> Result<CreatedLink, String>;

/// Makes one link: by the kernel alone if it can.
fn make(sides: &Sides, ends: &[LinkEnd; 2], profile: &LinkProfile) -> Result<CreatedLink, String> {
    // Both ends have the same name, and each shapes what it sends.
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

/// A link of the kernel's, which is gone if this fails.
fn veth(
    sides: &Sides,
    ends: &[LinkEnd; 2],
    profile: &LinkProfile,
    shaping: Option<&(String, &str)>,
) -> Result<String, String> {
    sides.make_veth(ends)?;
    let mtu = profile.mtu;
    let made = match shaping {
        _ if *profile == LinkProfile::loopback() => sides
            .take_up(ends, &format!("mtu {VETH_MTU_MAX}"))
            .map(|()| format!("veth with offloads, MTU {VETH_MTU_MAX}, in loopback's place")),
        None => sides
            .take_up(ends, &format!("mtu {mtu} gso_max_segs 1"))
            .map(|()| format!("veth without offloads, MTU {mtu}")),
        Some((lines, discipline)) => sides
            .take_up(ends, &format!("mtu {mtu} gso_max_segs 1"))
            .and_then(|()| sides.each(|side| side.tc(lines)))
            .map(|()| format!("veth, MTU {mtu}, {discipline}: {}", wishes(profile))),
    };
    if made.is_err() {
        // What is left if this fails, too, is in the way of whatever is made in its place.
        let _ = sides.remove_veth(ends);
    }
    made
}

/// A link of our own, which is gone if this fails.
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
        .map_err(|error| format!("no thread can be started ({error})"))?;
    let how = format!(
        "relay of this program between TAP devices, MTU {}: {}",
        profile.mtu,
        wishes(profile)
    );
    Ok(CreatedLink { how, wire: Some(wire) })
}

/// A profile that no link can have.
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
    if profile.delay > DELAY_MAX {
        return Err(format!("its delay must be at most {DELAY_MAX:?}"));
    }
    Ok(())
}

/// What a link was asked to be beside its MTU.
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
