//! What `GET /v1/statistics` answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All that commands did, at a moment. Counts only rise while the server lives: who wants to know of a
/// while of his own asks twice and takes the difference. Commands are counted when their answers are
/// sent; their latency is from the last byte of the command until then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Statistics {
    /// When, in seconds since 1970.
    pub unix_seconds: u64,
    /// Where buckets of latencies end, in nanoseconds: bucket `i` is from bound `i - 1` (or zero) up to,
    /// and without, bound `i`. One more bucket than there are bounds has no end.
    pub bucket_bounds_nanoseconds: Vec<u64>,
    /// Those that were used since the server began, by name.
    pub volumes: Vec<VolumeStatistics>,
    /// Those that stand, by TSIH.
    pub sessions: Vec<SessionStatistics>,
}

/// A volume, over all initiators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeStatistics {
    /// Its name.
    pub volume: String,
    /// Commands that are carried out or wait.
    pub queue_depth: u64,
    /// Those that were asked for.
    pub operations: Vec<OperationStatistics>,
    /// Commands that failed or were aborted, by sense key or status.
    pub errors: BTreeMap<String, u64>,
    /// Commands that waited for a limit, or because others went first.
    pub limited: u64,
    /// How far back what is called recent goes: ten seconds, once the server is that old.
    pub recent_seconds: f64,
}

/// One operation on a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OperationStatistics {
    /// `read`, `write`, `flush`, `unmap` or `other`.
    pub operation: String,
    /// Commands.
    pub count: u64,
    /// That they carried, in either direction.
    pub bytes: u64,
    /// The sum of their latencies.
    pub total_nanoseconds: u64,
    /// How many commands each bucket has, by its index; buckets without any are left out.
    pub buckets: Vec<(usize, u64)>,
    /// Since the server began.
    pub latency: LatencyQuantiles,
    /// Over the last seconds, if there were any then.
    pub recent: Option<RecentStatistics>,
}

/// The last seconds of an operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentStatistics {
    /// Commands.
    pub count: u64,
    /// That they carried.
    pub bytes: u64,
    /// How long they took.
    pub latency: LatencyQuantiles,
}

/// How long commands took: right to an eighth, or to a microsecond below ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyQuantiles {
    /// Half of them at most so long.
    pub p50_nanoseconds: u64,
    /// 99 of a hundred.
    pub p99_nanoseconds: u64,
    /// 999 of a thousand.
    pub p999_nanoseconds: u64,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionStatistics {
    /// Its handle.
    pub tsih: u16,
    /// The initiator's name.
    pub initiator: String,
    /// The target's name; none for a discovery session that names none.
    pub target: Option<String>,
    /// Those that it used, by name.
    pub volumes: Vec<SessionVolume>,
}

/// What the connections of a session that stand did with a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SessionVolume {
    /// Its name.
    pub volume: String,
    /// Commands that are carried out or wait.
    pub queue_depth: u64,
    /// Those that were asked for.
    pub operations: Vec<VolumeOperation>,
    /// Commands that failed or were aborted, by sense key or status.
    pub errors: BTreeMap<String, u64>,
}

/// One operation of a session on a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct VolumeOperation {
    /// `read`, `write`, `flush`, `unmap` or `other`.
    pub operation: String,
    /// Commands.
    pub count: u64,
    /// That they carried.
    pub bytes: u64,
    /// The sum of their latencies.
    pub total_nanoseconds: u64,
    /// Since the session began.
    pub latency: LatencyQuantiles,
}
