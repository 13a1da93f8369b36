//! The figures of Aravindan's text; the study's other figures are charts.

use std::time::Duration;

/// The value of each of the initiator's noop timeout, noop interval and replacement timeout in the failover test.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// Duration of a failover over active/active paths by the study's formula: the sum of the three timeouts.
pub const FAILOVER_BY_FORMULA: Duration = Duration::from_secs(3);

/// Measured duration of that failover.
pub const FAILOVER_MEASURED: Duration = Duration::from_millis(3270);

/// The targets from the fastest to the slowest, for writes and for mixed reads and writes.
pub const ORDER: [&str; 3] = ["LIO", "SCST", "STGT"];

/// Returns the duration of a failover by the study's formula with these timeouts.
pub fn failover_by_formula(
    noop_interval: Duration,
    noop_timeout: Duration,
    replacement_timeout: Duration,
) -> Duration {
    noop_interval + noop_timeout + replacement_timeout
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_is_the_sum() {
        assert_eq!(failover_by_formula(TIMEOUT, TIMEOUT, TIMEOUT), FAILOVER_BY_FORMULA);
    }
}
