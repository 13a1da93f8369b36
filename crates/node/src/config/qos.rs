//! What a volume, or a host, may have of the server, and what it is to have at least.
//!
//! ```toml
//! [[volume]]
//! # Commands a second that read, write, unmap or flush, and the bytes that they carry. Those beyond wait.
//! iops = 5000
//! bandwidth = "200MiB"
//! # What was not used of these is saved for so long; 1s unless given.
//! burst = "2s"
//! # When more is asked for than the server carries out at once (limits.in-service): so many
//! # commands a second go ahead of others, and what is left is shared out by share, 100 unless given.
//! minimum-iops = 500
//! share = 200
//! ```
//!
//! Bandwidth is counted by what the CDB names, whatever the initiator expects: the blocks of a READ, WRITE or
//! VERIFY, both halves of a COMPARE AND WRITE, the blocks that a WRITE SAME fills unless with zeroes. UNMAP
//! and the others count what is sent with them, PRE-FETCH and EXTENDED COPY none of their blocks.
//!
//! A host has the same keys, for all that its initiators do together.

use std::num::NonZeroU64;
use std::time::Duration;

use super::limits::parse_time;
use super::parse_size;

/// The keys.
pub(super) const KEYS: [&str; 5] = ["iops", "bandwidth", "burst", "share", "minimum-iops"];
/// How long an allowance is saved unless given.
const BURST: Duration = Duration::from_secs(1);
/// Longer than this nothing is saved.
const BURST_MOST: Duration = Duration::from_secs(3600);
/// Of whoever has no share of his own.
pub const DEFAULT_SHARE: u64 = 100;
const SHARES: std::ops::RangeInclusive<u64> = 1..=10_000;

/// See the module. The default has no limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QosConfig {
    /// Commands a second at most.
    pub iops: Option<NonZeroU64>,
    /// Bytes a second at most.
    pub bandwidth: Option<NonZeroU64>,
    /// For how long what was not used of them is saved.
    pub burst: Option<Duration>,
    /// Of what is shared out, against others' shares.
    pub share: Option<NonZeroU64>,
    /// Commands a second that go ahead of others.
    pub minimum_iops: Option<NonZeroU64>,
}

impl QosConfig {
    /// Takes the setting of one of the keys.
    pub(super) fn take(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "iops" => positive(key, value).map(|iops| self.iops = Some(iops)),
            "bandwidth" => parse_size(value).and_then(|bytes| {
                let bytes = NonZeroU64::new(bytes);
                let bytes = bytes.ok_or("bandwidth is zero: leave it out to have no limit")?;
                self.bandwidth = Some(bytes);
                Ok(())
            }),
            "burst" => {
                let burst = parse_time(value).map(Duration::from_millis);
                let burst = burst.filter(|burst| *burst <= BURST_MOST);
                self.burst = Some(burst.ok_or_else(|| {
                    format!("burst = {value:?}: write a time up to 3600s, such as 500ms or 2s")
                })?);
                Ok(())
            }
            "share" => positive(key, value).and_then(|share| match SHARES.contains(&share.get()) {
                true => {
                    self.share = Some(share);
                    Ok(())
                }
                false => Err(format!("share = {value}: write a number from 1 to 10000")),
            }),
            _ => positive(key, value).map(|iops| self.minimum_iops = Some(iops)),
        }
    }

    /// What contradicts itself: a key, and why.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.burst.is_some() && self.iops.is_none() && self.bandwidth.is_none() {
            let message = "burst says how long what is left of iops and bandwidth is saved: give one of \
                           them, or leave burst out";
            return Err(("burst", message.to_owned()));
        }
        match (self.minimum_iops, self.iops) {
            (Some(minimum), Some(most)) if minimum > most => {
                let message = format!(
                    "minimum-iops = {minimum} is above iops = {most}: no more than that is let through"
                );
                Err(("minimum-iops", message))
            }
            _ => Ok(()),
        }
    }

    /// For how long what was not used is saved.
    pub fn burst(&self) -> Duration {
        self.burst.unwrap_or(BURST)
    }

    /// Whether anything is limited.
    pub fn has_limits(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }

    /// Whether it matters in which order commands are carried out.
    pub fn has_claims(&self) -> bool {
        self.share.is_some() || self.minimum_iops.is_some()
    }
}

fn positive(key: &str, value: &str) -> Result<NonZeroU64, String> {
    let wrong = |_| format!("{key} = {value}: write a number from 1 on, or leave it out");
    value.parse::<NonZeroU64>().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::super::{Config, parse_volume};
    use super::*;

    #[test]
    fn a_volume_is_limited_and_has_claims_by_its_options() {
        let text = "a=ram:1MiB,iops=5000,bandwidth=200MiB,burst=2s,share=200,minimum-iops=500";
        let qos = parse_volume(text).expect("valid").qos;
        let expected = QosConfig {
            iops: NonZeroU64::new(5000),
            bandwidth: NonZeroU64::new(200 << 20),
            burst: Some(Duration::from_secs(2)),
            share: NonZeroU64::new(200),
            minimum_iops: NonZeroU64::new(500),
        };
        assert_eq!(qos, expected);
        assert!(!parse_volume("a=ram:1MiB").expect("valid").qos.has_limits());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (options, reported) in [
            ("iops=0", "a number from 1 on"),
            ("bandwidth=0", "leave it out"),
            ("share=10001", "from 1 to 10000"),
            ("iops=5,minimum-iops=6", "above iops = 5"),
            ("burst=2s", "give one of them"),
            ("iops=5,burst=2h", "up to 3600s"),
        ] {
            let error = parse_volume(&format!("a=ram:1MiB,{options}")).expect_err(options);
            assert!(error.to_string().contains(reported), "{error}");
        }
    }

    #[test]
    fn hosts_have_the_same_keys() {
        let text = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\niops = 7\n\
                    [[host]]\nname = \"h\"\niops = 9\nbandwidth = \"1MiB\"\n";
        let parse = |text: &str| super::super::parse_file("s.toml".as_ref(), text);
        let config = parse(text).and_then(Config::finish).expect("valid");
        assert_eq!(config.volumes[0].qos.iops, NonZeroU64::new(7));
        assert_eq!(config.hosts[0].qos.bandwidth, NonZeroU64::new(1 << 20));
        let wrong = parse(&format!("{text}minimum-iops = 10\n")).expect_err("above iops");
        assert!(wrong.to_string().contains("above iops = 9"), "{wrong}");
    }
}
