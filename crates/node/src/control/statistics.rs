//! `GET /v1/statistics`: statistics of commands on volumes, for clients that draw them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use sarsen_io::time;

use super::openapi::Failures;
use super::routes::Json;
use crate::fronts::Front;
use crate::schema::statistics::{
    LatencyQuantiles, OperationStatistics, RecentStatistics, SessionStatistics, SessionVolume,
    Statistics, VolumeOperation, VolumeStatistics,
};
use crate::schema::unix_seconds;
use sarsen_volume::OperationKind;
use sarsen_volume::statistics::{self, BOUNDS, Histogram, RecentTotals, Totals, upper_bound};

/// Time between two samples of the counts. Recent statistics are differences of samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Samples the counts until the caller drops it.
pub(super) async fn sample(statistics: Arc<statistics::Statistics>) {
    let mut next = time::now();
    loop {
        statistics.sample(time::now());
        next = (next + SAMPLE_INTERVAL).max(time::now());
        time::sleep_until(next).await;
    }
}

/// Returns the statistics of commands on volumes.
#[utoipa::path(get, tag = "server", path = "/v1/statistics", responses((status = 200, body = Statistics), Failures))]
pub(super) async fn statistics(State(front): State<Arc<Front>>) -> Json<Statistics> {
    Json(collect(&front))
}

/// Collects the statistics of this moment.
pub(super) fn collect(front: &Front) -> Statistics {
    let counted = &front.access.metrics.statistics;
    let session_infos = front.sessions.session_infos();
    let mut of_sessions = counted.sessions();
    let sessions = session_infos.into_iter().map(|info| SessionStatistics {
        tsih: info.tsih,
        initiator: info.client.name,
        target: info.target,
        volumes: of_sessions.remove(&info.tsih).map_or_else(Vec::new, |volumes| {
            volumes.into_iter().map(|(name, totals)| session_volume(name, &totals)).collect()
        }),
    });
    Statistics {
        unix_seconds: unix_seconds(time::wall_clock()),
        bucket_bounds_nanoseconds: (0..BOUNDS).filter_map(upper_bound).collect(),
        sessions: sessions.collect(),
        volumes: counted
            .totals()
            .into_iter()
            .map(|of| volume(counted.recent(&of.volume), of.volume, &of.all))
            .collect(),
    }
}

fn volume(lately: Option<RecentTotals>, name: String, totals: &Totals) -> VolumeStatistics {
    let recent = |operation: OperationKind| {
        let lately = lately.as_ref()?;
        let (_, of) = lately.operations().find(|(other, _)| *other == operation)?;
        Some(RecentStatistics {
            count: of.latency.count(),
            bytes: of.bytes,
            latency: quantiles(&of.latency),
        })
    };
    let operations = totals.operations().map(|(operation, of)| OperationStatistics {
        operation: operation.name().to_owned(),
        count: of.latency.count(),
        bytes: of.bytes,
        total_nanoseconds: of.nanoseconds,
        buckets: buckets(&of.latency),
        latency: quantiles(&of.latency),
        recent: recent(operation),
    });
    VolumeStatistics {
        volume: name,
        queue_depth: totals.in_flight,
        operations: operations.collect(),
        errors: totals.failures().map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
        limited: totals.limited,
        recent_seconds: lately.as_ref().map_or(0.0, |lately| lately.span.as_secs_f64()),
    }
}

fn session_volume(name: String, totals: &Totals) -> SessionVolume {
    let operations = totals.operations().map(|(operation, of)| VolumeOperation {
        operation: operation.name().to_owned(),
        count: of.latency.count(),
        bytes: of.bytes,
        total_nanoseconds: of.nanoseconds,
        latency: quantiles(&of.latency),
    });
    SessionVolume {
        volume: name,
        queue_depth: totals.in_flight,
        operations: operations.collect(),
        errors: totals.failures().map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
    }
}

fn buckets(histogram: &Histogram) -> Vec<(usize, u64)> {
    let all = histogram.buckets.iter().copied().enumerate();
    all.filter(|(_, count)| *count > 0).collect()
}

fn quantiles(histogram: &Histogram) -> LatencyQuantiles {
    let nanoseconds = |part| {
        let latency = histogram.quantile(part).unwrap_or_default();
        u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX)
    };
    LatencyQuantiles {
        p50_nanoseconds: nanoseconds(0.5),
        p99_nanoseconds: nanoseconds(0.99),
        p999_nanoseconds: nanoseconds(0.999),
    }
}
