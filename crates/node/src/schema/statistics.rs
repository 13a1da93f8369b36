//! The response of `GET /v1/statistics`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The statistics of all commands at a moment. Counts only rise while the server runs: the difference of two responses
/// covers the time between them. The server counts a command when it sends the response. Latency is the time from the
/// last byte of the command until then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Statistics {
    /// The time, in seconds since 1970.
    pub unix_seconds: u64,
    /// The upper bounds of latency buckets, in nanoseconds. Bucket `i` begins at bound `i - 1` (or zero) and ends
    /// before bound `i`. One more bucket has no upper bound.
    pub bucket_bounds_nanoseconds: Vec<u64>,
    /// The volumes that were used since the server began, ordered by name.
    pub volumes: Vec<VolumeStatistics>,
    /// The open sessions, ordered by TSIH.
    pub sessions: Vec<SessionStatistics>,
}

/// The statistics of a volume, over all initiators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStatistics {
    /// Its name.
    pub volume: String,
    /// Number of commands that are in progress or wait.
    pub queue_depth: u64,
    /// The operations that initiators have requested.
    pub operations: Vec<OperationStatistics>,
    /// Number of commands that failed or were aborted, by sense key or status.
    pub errors: BTreeMap<String, u64>,
    /// Number of commands that waited for a limit, or because other commands had priority.
    pub limited: u64,
    /// Length of the time that `recent` covers: ten seconds, once the server has run so long.
    pub recent_seconds: f64,
}

/// The statistics of an operation on a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationStatistics {
    /// `read`, `write`, `flush`, `unmap` or `other`.
    pub operation: String,
    /// Number of commands.
    pub count: u64,
    /// Bytes that the commands transferred, in either direction.
    pub bytes: u64,
    /// The sum of the commands' latencies.
    pub total_nanoseconds: u64,
    /// The index of each bucket with commands, and the number of its commands.
    pub buckets: Vec<(usize, u64)>,
    /// Latency since the server began.
    pub latency: LatencyQuantiles,
    /// The statistics of the last seconds, if initiators requested the operation in that time.
    pub recent: Option<RecentStatistics>,
}

/// The statistics of an operation in the last seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentStatistics {
    /// Number of commands.
    pub count: u64,
    /// Bytes that the commands transferred.
    pub bytes: u64,
    /// Latency of the commands.
    pub latency: LatencyQuantiles,
}

/// Quantiles of the latency, accurate to one eighth, or to a microsecond below ten microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyQuantiles {
    /// The 50th percentile.
    pub p50_nanoseconds: u64,
    /// The 99th percentile.
    pub p99_nanoseconds: u64,
    /// The 99.9th percentile.
    pub p999_nanoseconds: u64,
}

/// The statistics of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionStatistics {
    /// Its TSIH.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The target's name; none for a discovery session that names none.
    pub target: Option<String>,
    /// The volumes that it used, ordered by name.
    pub volumes: Vec<SessionVolume>,
}

/// The statistics of a volume over the open connections of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionVolume {
    /// Its name.
    pub volume: String,
    /// Number of commands that are in progress or wait.
    pub queue_depth: u64,
    /// The operations that initiators have requested.
    pub operations: Vec<VolumeOperation>,
    /// Number of commands that failed or were aborted, by sense key or status.
    pub errors: BTreeMap<String, u64>,
}

/// The statistics of an operation of a session on a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeOperation {
    /// `read`, `write`, `flush`, `unmap` or `other`.
    pub operation: String,
    /// Number of commands.
    pub count: u64,
    /// Bytes that the commands transferred.
    pub bytes: u64,
    /// The sum of the commands' latencies.
    pub total_nanoseconds: u64,
    /// Latency since the session began.
    pub latency: LatencyQuantiles,
}
