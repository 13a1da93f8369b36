//! What a load showed.

use hdrhistogram::Histogram;
use serde::Serialize;

use super::client::Shared;
use super::{LoadOptions, Tally};

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LoadResult {
    /// I/Os a second.
    pub iops: f64,
    /// Millions of bytes a second.
    pub mb_per_s: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// CPU time of the target's processes; absent if none was named.
    pub target_cpu_us_per_io: Option<f64>,
    /// CPU time of this thread.
    pub client_cpu_us_per_io: f64,
    /// Resident memory of the target's processes at the end; absent if none was named.
    pub target_rss_kib: Option<u64>,
    /// I/Os that ended with another status than GOOD or moved too little, from the first one on.
    pub errors: u64,
    /// What the first error was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// I/Os that ended within the measurement.
    pub ios: u64,
    /// Length of the measurement.
    pub seconds: f64,
    /// Latencies of the reads; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<Latency>,
    /// Latencies of the writes; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes: Option<Latency>,
    /// I/Os a second that were asked for, of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// I/Os of an open loop that should have begun before the end and had not: if there are more
    /// than a few, the target does not keep up, and the latencies are too low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// Blocks that were held against what this run had written, if it verifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_blocks: Option<u64>,
    /// Blocks of these that were something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatches: Option<u64>,
    /// What the first one was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_mismatch: Option<String>,
    /// Requests of a trace that lay beyond the unit and were brought into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrapped: Option<u64>,
}

/// Latencies of one kind of I/O.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// How many I/Os.
    pub ios: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let percentile = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            ios: histogram.len(),
            mean_us: histogram.mean() / 1e3,
            p50_us: percentile(0.5),
            p99_us: percentile(0.99),
            p999_us: percentile(0.999),
            max_us: histogram.max() as f64 / 1e3,
        })
    }
}

/// What the measurement took.
pub(super) struct Usage {
    pub(super) seconds: f64,
    pub(super) client_ns: u64,
    pub(super) target_ns: u64,
    pub(super) target_rss_kib: u64,
    pub(super) backlog: u64,
}

/// The figures of what was counted.
pub(super) fn result(
    options: &LoadOptions,
    tally: &Tally,
    shared: &Shared,
    usage: Usage,
) -> LoadResult {
    let mut all = tally.reads.clone();
    // Both have the same bounds.
    let added = all.add(&tally.writes);
    assert!(added.is_ok(), "histograms of the same bounds");
    let Usage { seconds, client_ns, target_ns, target_rss_kib, backlog } = usage;
    let per_io = |ns: u64| ns as f64 / 1e3 / tally.ios.max(1) as f64;
    let percentile = |q: f64| all.value_at_quantile(q) as f64 / 1e3;
    let known = !options.target_pids.is_empty();
    let ledger = shared.ledger.as_ref().map(|ledger| ledger.borrow());
    LoadResult {
        iops: tally.ios as f64 / seconds,
        mb_per_s: tally.bytes as f64 / 1e6 / seconds,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        target_cpu_us_per_io: known.then(|| per_io(target_ns)),
        client_cpu_us_per_io: per_io(client_ns),
        target_rss_kib: known.then_some(target_rss_kib),
        errors: tally.errors,
        first_error: tally.first_error.clone(),
        ios: tally.ios,
        seconds,
        reads: Latency::of(&tally.reads),
        writes: Latency::of(&tally.writes),
        rate: options.rate,
        backlog: options.rate.map(|_| backlog),
        verified_blocks: ledger.as_ref().map(|ledger| ledger.verified),
        mismatches: ledger.as_ref().map(|ledger| ledger.mismatches),
        first_mismatch: ledger.and_then(|ledger| ledger.first_mismatch.clone()),
        wrapped: shared.feed.as_ref().map(|feed| feed.borrow().wrapped),
    }
}
