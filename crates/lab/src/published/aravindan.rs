//! The figures of Aravindan's text; the study's other figures are charts.

use std::time::Duration;

/// The value of each of the initiator's noop timeout, noop interval and replacement timeout in the failover test.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// Duration of a failover over active/active paths by the study's formula: the sum of the three timeouts.
pub const FAILOVER_BY_FORMULA: Duration = Duration::from_secs(3);

/// Measured duration of that failover.
pub const FAILOVER_MEASURED: Duration = Duration::from_millis(3270);

/// The target that was fastest for reads alone. The study gives no order of the others.
pub const FASTEST_READS: &str = "STGT";

/// The targets from the fastest to the slowest, for writes and for mixed reads and writes.
pub const ORDER: [&str; 3] = ["LIO", "SCST", "STGT"];
