//! A link of the kernel's queueing disciplines: `tbf` for the rate, `netem` for delay and loss.

use std::time::Duration;

use super::LinkProfile;

/// Bytes on a line for each frame in addition to its own: preamble, check sequence and interframe gap (IEEE 802.3 clauses 3.1
/// and 4.4.2).
pub(super) const FRAME_OVERHEAD: usize = 24;

/// The header of an Ethernet frame.
pub(super) const FRAME_HEADER: usize = 14;

/// Maximum queueing delay of a packet: the buffer of a switch's port, and a large one. Packets that would wait longer
/// are dropped.
pub(super) const QUEUE_TIME: Duration = Duration::from_millis(20);

/// Minimum number of queued packets, for slow lines.
const QUEUE_FRAMES_MIN: usize = 64;

/// Maximum burst beyond the rate: the precision of the kernel's timers.
const BURST_TIME: Duration = Duration::from_millis(1);

/// Packets that `netem` queues for a link without a rate; TCP's window limits them.
const PACKETS_UNLIMITED: f64 = 1e6;

impl LinkProfile {
    /// Bytes a second.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        self.rate_mbit.map(|mbit| mbit * 1e6 / 8.0)
    }

    /// Bytes of the largest frame.
    pub(super) const fn frame_bytes(&self) -> usize {
        self.mtu as usize + FRAME_HEADER
    }

    /// Returns the size of the queue of a line with this rate.
    pub(super) fn queue_bytes(&self, bytes_per_s: f64) -> usize {
        let deep = (bytes_per_s * QUEUE_TIME.as_secs_f64()) as usize;
        deep.max(QUEUE_FRAMES_MIN * (self.frame_bytes() + FRAME_OVERHEAD))
    }
}

/// Returns the lines for `tc` that shape the traffic of this interface, and their description; `None` if nothing is to
/// be shaped.
pub(super) fn commands(profile: &LinkProfile, interface: &str) -> Option<(String, &'static str)> {
    let rate = profile.bytes_per_s();
    let root = format!("qdisc replace dev {interface} root");
    if profile.delay.is_zero() && profile.loss_percent == 0.0 {
        let rate = rate?;
        let burst = (rate * BURST_TIME.as_secs_f64()) as usize;
        let burst = burst.max(2 * (profile.frame_bytes() + FRAME_OVERHEAD));
        let (bits, limit) = (rate * 8.0, profile.queue_bytes(rate));
        let line = format!(
            "{root} tbf rate {bits:.0}bit burst {burst}b limit {limit}b overhead {FRAME_OVERHEAD}\n"
        );
        return Some((line, "tbf"));
    }
    let mut line = format!("{root} netem");
    if !profile.delay.is_zero() {
        line += &format!(" delay {}us", profile.delay.as_micros());
    }
    if profile.loss_percent > 0.0 {
        line += &format!(" loss {}%", profile.loss_percent);
    }
    let mut packets = PACKETS_UNLIMITED;
    if let Some(rate) = rate {
        line += &format!(" rate {:.0}bit {FRAME_OVERHEAD}", rate * 8.0);
        // Packets in transit count, too.
        let held = rate * profile.delay.as_secs_f64() + profile.queue_bytes(rate) as f64;
        packets = (held / (profile.frame_bytes() + FRAME_OVERHEAD) as f64).ceil();
    }
    Some((format!("{line} limit {packets:.0}\n"), "netem"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wish_has_its_discipline() {
        let plain = LinkProfile::plain("a", 1500);
        assert_eq!(commands(&plain, "link0"), None);

        let rate = LinkProfile { rate_mbit: Some(1000.0), ..plain.clone() };
        let tbf = "qdisc replace dev link0 root tbf rate 1000000000bit burst 125000b \
                   limit 2500000b overhead 24\n";
        assert_eq!(commands(&rate, "link0"), Some((tbf.into(), "tbf")));

        let slow = LinkProfile { rate_mbit: Some(0.1), ..plain.clone() };
        let tbf = "qdisc replace dev link0 root tbf rate 100000bit burst 3076b \
                   limit 98432b overhead 24\n";
        assert_eq!(commands(&slow, "link0"), Some((tbf.into(), "tbf")));

        let far = LinkProfile { delay: Duration::from_micros(2500), ..plain };
        let netem = "qdisc replace dev link3 root netem delay 2500us limit 1000000\n";
        assert_eq!(commands(&far, "link3"), Some((netem.into(), "netem")));

        let all = LinkProfile { rate_mbit: Some(1000.0), loss_percent: 0.5, ..far };
        // 312500 bytes are in transit and 2500000 in the queue, in frames of 1538 bytes.
        let netem = "qdisc replace dev link3 root netem delay 2500us loss 0.5% \
                     rate 1000000000bit 24 limit 1829\n";
        assert_eq!(commands(&all, "link3"), Some((netem.into(), "netem")));
    }
}
