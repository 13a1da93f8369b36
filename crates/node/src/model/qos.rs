//! Quality of service of a volume or a host: maximum rates, a reserved rate and a weight.
//!
//! Rates count commands that read, write, unmap or flush. Their bytes are those of the CDB, not the expected data
//! transfer length: the blocks of a READ, WRITE or VERIFY, both halves of a COMPARE AND WRITE, and the blocks that a
//! WRITE SAME fills, unless with zeroes. UNMAP and others count their parameter data. PRE-FETCH and EXTENDED COPY count
//! no blocks.
//!
//! A host has the same keys, for all of its initiators together.

use std::num::NonZeroU64;

pub use sarsen_volume::qos::{DEFAULT_WEIGHT, Rates};

use super::invalid::FieldError;
use super::quantity::{Bandwidth, Number, Quantity, Rate, Span, Unit};

/// A weight, relative to others.
pub type Weight = Number<1, 10_000>;
/// A burst window: up to an hour.
pub type BurstWindow = Span<0, 3_600_000>;

/// Returns the rates of a volume or a host from its keys.
pub(crate) fn rates(
    iops: Option<Rate>,
    bandwidth: Option<Bandwidth>,
    burst: Option<BurstWindow>,
    weight: Option<Weight>,
    reserved_iops: Option<Rate>,
) -> Rates {
    Rates {
        iops: nonzero(iops),
        bandwidth: nonzero(bandwidth),
        burst: burst.map(BurstWindow::duration),
        weight: nonzero(weight),
        reserved_iops: nonzero(reserved_iops),
    }
}

/// Checks the keys against each other.
pub(crate) fn check(rates: &Rates) -> Result<(), FieldError> {
    if rates.burst.is_some() && !rates.has_limits() {
        let message =
            "burst has no effect without iops or bandwidth; add one of them, or remove burst";
        return Err(FieldError::new("burst", message));
    }
    match (rates.reserved_iops, rates.iops) {
        (Some(minimum), Some(most)) if minimum > most => {
            let message = format!(
                "reserved-iops = {minimum} is above iops = {most}; reduce it, or raise iops"
            );
            Err(FieldError::new("reserved-iops", message))
        }
        _ => Ok(()),
    }
}

fn nonzero<U: Unit, const LOW: u64, const HIGH: u64>(
    quantity: Option<Quantity<U, LOW, HIGH>>,
) -> Option<NonZeroU64> {
    quantity.and_then(|quantity| NonZeroU64::new(quantity.get()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Config, parse_file, parse_volume};

    #[test]
    fn a_volume_is_limited_and_has_claims_by_its_options() {
        let text = "a=ram:1MiB,iops=5000,bandwidth=200MiB,burst=2s,weight=200,reserved-iops=500";
        let qos = parse_volume(text).expect("valid").qos();
        let expected = Rates {
            iops: NonZeroU64::new(5000),
            bandwidth: NonZeroU64::new(200 << 20),
            burst: Some(Duration::from_secs(2)),
            weight: NonZeroU64::new(200),
            reserved_iops: NonZeroU64::new(500),
        };
        assert_eq!(qos, expected);
        assert_eq!(parse_volume("a=ram:1MiB").expect("valid").qos(), Rates::default());
    }

    #[test]
    fn invalid_values_are_refused() {
        for (options, reported) in [
            ("iops=0", "a number from 1;"),
            ("bandwidth=0", "remove the key"),
            ("weight=10001", "a number from 1 to 10000"),
            ("iops=5,reserved-iops=6", "above iops = 5"),
            ("burst=2s", "has no effect without iops or bandwidth"),
            ("iops=5,burst=2h", "a duration from 0s to 3600s"),
        ] {
            let error = parse_volume(&format!("a=ram:1MiB,{options}")).expect_err(options);
            assert!(error.to_string().contains(reported), "{error}");
        }
    }

    #[test]
    fn hosts_have_the_same_keys() {
        let text = "[[volume]]\nname = \"a\"\nstore = \"ram\"\nsize = \"1MiB\"\niops = 7\n\
                    [[host]]\nname = \"h\"\niops = 9\nbandwidth = \"1MiB\"\n";
        let parse = |text: &str| parse_file("s.toml".as_ref(), text);
        let config = parse(text).and_then(Config::finish).expect("valid");
        assert_eq!(config.volumes[0].qos().iops, NonZeroU64::new(7));
        assert_eq!(config.hosts[0].qos().bandwidth, NonZeroU64::new(1 << 20));
        let wrong = parse(&format!("{text}reserved-iops = 10\n")).and_then(Config::finish);
        let wrong = wrong.expect_err("above iops");
        assert!(wrong.to_string().contains("above iops = 9"), "{wrong}");
    }
}
