//! The result of a load.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::LoadOptions;
use super::ledger::Mismatch;
use super::process::Usage;
use super::tally::LoadCounters;
use super::work::Shared;
use crate::record::{Bucket, Measures, Series, figure};
use crate::validity;

/// Number of latency buckets for each power of ten, and the maximum number of buckets.
const BUCKETS_PER_DECADE: f64 = 20.0;
const BUCKET_LIMIT: f64 = 100.0;
/// Number of buckets for each power of ten if the latencies would exceed that maximum.
const COARSE_BUCKETS_PER_DECADE: f64 = 8.0;

/// The measured values.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadResult {
    /// I/Os per second.
    pub iops: f64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Shortest latency.
    pub min_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// Longest latency. The time without an answer at the end of the measurement counts, too.
    pub max_us: f64,
    /// Standard deviation of the latency.
    pub deviation_us: f64,
    /// CPU time of the target's processes; absent if none was named.
    pub target_cpu_us_per_io: Option<f64>,
    /// CPU time of this thread.
    pub client_cpu_us_per_io: f64,
    /// Share of a processor that this thread used; absent without a protocol, where it does the target's work, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_busy_percent: Option<f64>,
    /// Share of the time in which this thread was ready to run and waited for a processor; absent if the kernel does not
    /// report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_wait_percent: Option<f64>,
    /// Resident memory of the target's processes at the end; absent if none was named.
    pub target_rss_kib: Option<u64>,
    /// I/Os that failed, from the first one on: they ended with a status other than GOOD or transferred too little.
    /// No other figure counts them.
    pub errors: u64,
    /// Description of the first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// Number of successful I/Os within the measurement.
    pub ios: u64,
    /// Length of the measurement.
    pub seconds: f64,
    /// The reads; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reads: Option<DirectionResult>,
    /// The writes; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writes: Option<DirectionResult>,
    /// Requested I/Os per second of an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Number of I/Os of an open loop that were due before the end and did not start. If there are more than a few, the
    /// target is too slow for the rate, and the reported latencies are too low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<u64>,
    /// Number of blocks that were compared with the data that this run wrote, if it verifies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verified_blocks: Option<u64>,
    /// Number of compared blocks that differed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mismatches: Option<u64>,
    /// The first mismatches, a maximum of 16; each block and type occurs once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mismatched: Vec<Mismatch>,
    /// Number of written blocks that were read again when the load was over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_back_blocks: Option<u64>,
    /// Number of requests of a trace beyond the end of the unit that were moved into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrapped: Option<u64>,
    /// Whether the load reached the steady state of the SNIA: the IOPS of five equal parts of the measurement differ by
    /// a maximum of 20 % of their average, and their trend is a maximum of 10 % of it.
    pub steady: bool,
    /// The values that the first session negotiated, by the names of the keys. Over several paths: the portals of the active ones, as
    /// `active paths`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// The histogram of the latencies: a maximum of about a hundred buckets. Each bucket is longer than the previous
    /// one by the same factor.
    pub latencies: Vec<Bucket>,
    /// I/Os per second over the time of the measurement; absent if it was too short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

impl LoadResult {
    /// Returns the failure of a load with failed I/Os, regardless of its other results.
    pub fn failure(&self) -> Option<String> {
        if self.errors > 0 {
            let first = self.first_error.as_deref().unwrap_or_default();
            return Some(format!("{} I/Os failed, the first one with {first}", self.errors));
        }
        let is_silent = self.ios == 0 && self.max_us > 0.0;
        is_silent.then(|| {
            let seconds = self.max_us / 1e6;
            format!("no I/O ended in the measurement: the target did not answer for {seconds:.1} s")
        })
    }

    /// Returns the number of blocks that were read again and had the content that was written. A failed I/O, another content,
    /// or no comparison is an error.
    pub fn verified(&self) -> Result<u64, String> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        match self.mismatches {
            Some(0) => Ok(self.verified_blocks.unwrap_or_default()),
            Some(count) => Err(format!("{count} blocks differed from what was written")),
            None => Err("no block was compared".into()),
        }
    }

    /// Returns the result in the form that a record stores.
    pub fn measures(&self) -> Measures {
        let figures = [
            (figure::IOPS, Some(self.iops)),
            (figure::MB_PER_S, Some(self.mb_per_s)),
            (figure::READ_MB_PER_S, self.reads.as_ref().map(|reads| reads.mb_per_s)),
            (figure::WRITE_MB_PER_S, self.writes.as_ref().map(|writes| writes.mb_per_s)),
            (figure::MEAN_US, Some(self.mean_us)),
            (figure::MIN_US, Some(self.min_us)),
            (figure::P50_US, Some(self.p50_us)),
            (figure::P99_US, Some(self.p99_us)),
            (figure::P999_US, Some(self.p999_us)),
            (figure::MAX_US, Some(self.max_us)),
            (figure::LONGEST_PERCENT, Some(self.max_us / 1e4 / self.seconds)),
            (figure::DEVIATION_US, Some(self.deviation_us)),
            (figure::TARGET_CPU_US_PER_IO, self.target_cpu_us_per_io),
            (figure::CLIENT_CPU_US_PER_IO, Some(self.client_cpu_us_per_io)),
            (figure::CLIENT_BUSY_PERCENT, self.client_busy_percent),
            (figure::CLIENT_WAIT_PERCENT, self.client_wait_percent),
            (figure::TARGET_RSS_KIB, self.target_rss_kib.map(|kib| kib as f64)),
            (figure::STEADY, Some(f64::from(u8::from(self.steady)))),
        ];
        let present = figures.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Measures {
            figures: present.map(|(name, value)| (name.to_owned(), value)).collect(),
            texts: self.parameters.clone(),
            latencies: self.latencies.clone(),
            series: self.series.clone(),
            limits: Vec::new(),
        }
    }

    /// Returns the circumstances in which the result may not be that of the target, such as a lack of processor time.
    pub fn disturbances(&self) -> Vec<String> {
        validity::disturbances(&self.measures()).map(|threat| threat.to_string()).collect()
    }
}

/// The reads or the writes of a load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DirectionResult {
    /// Number of I/Os.
    pub ios: u64,
    /// Megabytes (10^6 bytes) per second.
    pub mb_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// Longest latency.
    pub max_us: f64,
}

impl DirectionResult {
    fn of(histogram: &Histogram<u64>, mb_per_s: f64) -> Option<Self> {
        let percentile = |q: f64| histogram.value_at_quantile(q) as f64 / 1e3;
        (!histogram.is_empty()).then(|| Self {
            ios: histogram.len(),
            mb_per_s,
            mean_us: histogram.mean() / 1e3,
            p50_us: percentile(0.5),
            p99_us: percentile(0.99),
            p999_us: percentile(0.999),
            max_us: histogram.max() as f64 / 1e3,
        })
    }
}

/// Returns the histogram in few buckets with the same bounds for every load. The first bucket is empty: its upper bound
/// is the lower bound of the next one.
fn buckets(histogram: &Histogram<u64>) -> Vec<Bucket> {
    if histogram.is_empty() {
        return Vec::new();
    }
    let [shortest, longest] =
        [histogram.min(), histogram.max()].map(|ns| (ns.max(1) as f64).log10());
    let fine = (longest - shortest) * BUCKETS_PER_DECADE + 2.0 <= BUCKET_LIMIT;
    let per_decade = if fine { BUCKETS_PER_DECADE } else { COARSE_BUCKETS_PER_DECADE };
    let number = |ns: u64| ((ns.max(1) as f64).log10() * per_decade).ceil() as i32;
    let first = number(histogram.lowest_equivalent(histogram.min())) - 1;
    let mut counts = vec![0; (number(histogram.max()) - first) as usize + 1];
    for step in histogram.iter_recorded() {
        let value = histogram.lowest_equivalent(step.value_iterated_to());
        counts[(number(value) - first) as usize] += step.count_at_value();
    }
    let upper_us = |number: i32| 10f64.powf(f64::from(number) / per_decade) / 1e3;
    (first..).zip(counts).map(|(at, count)| Bucket { upper_us: upper_us(at), count }).collect()
}

/// Calculates the result from the counters.
pub(super) fn result(
    options: &LoadOptions,
    tally: &LoadCounters,
    shared: &Shared,
    usage: Usage,
    backlog: u64,
) -> LoadResult {
    let mut all = tally.reads.clone();
    // Both histograms have the same bounds.
    let added = all.add(&tally.writes);
    assert!(added.is_ok(), "histograms of the same bounds");
    let Usage { seconds, client_ns, client_wait_ns, target_ns, target_rss_kib } = usage;
    let mb_per_s = |bytes: u64| bytes as f64 / 1e6 / seconds;
    let percent = |ns: u64| 100.0 * ns as f64 / 1e9 / seconds;
    let per_io = |ns: u64| ns as f64 / 1e3 / tally.ios.max(1) as f64;
    let percentile = |q: f64| all.value_at_quantile(q) as f64 / 1e3;
    let known = !options.target_pids.is_empty();
    let ledger = shared.ledger.as_ref().map(|ledger| ledger.borrow());
    LoadResult {
        iops: tally.ios as f64 / seconds,
        mb_per_s: mb_per_s(tally.read_bytes + tally.written_bytes),
        mean_us: all.mean() / 1e3,
        min_us: all.min() as f64 / 1e3,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        max_us: (all.max() as f64 / 1e3).max(tally.silence.as_secs_f64() * 1e6),
        deviation_us: all.stdev() / 1e3,
        target_cpu_us_per_io: known.then(|| per_io(target_ns)),
        client_cpu_us_per_io: per_io(client_ns),
        client_busy_percent: options.endpoint.has_protocol().then(|| percent(client_ns)),
        client_wait_percent: client_wait_ns.map(percent),
        target_rss_kib: known.then_some(target_rss_kib),
        errors: tally.errors,
        first_error: tally.first_error.clone(),
        ios: tally.ios,
        seconds,
        reads: DirectionResult::of(&tally.reads, mb_per_s(tally.read_bytes)),
        writes: DirectionResult::of(&tally.writes, mb_per_s(tally.written_bytes)),
        rate: options.rate,
        backlog: options.rate.map(|_| backlog),
        verified_blocks: ledger.as_ref().map(|ledger| ledger.verified),
        mismatches: ledger.as_ref().map(|ledger| ledger.mismatches),
        mismatched: ledger.as_ref().map_or_else(Vec::new, |ledger| ledger.listed()),
        read_back_blocks: ledger.map(|_| shared.read_back),
        wrapped: shared.feed.as_ref().map(|feed| feed.borrow().wrapped),
        steady: tally.course.is_steady(),
        parameters: shared.parameters.clone(),
        latencies: buckets(&all),
        series: tally.course.series(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(latencies_ns: &[u64]) -> Histogram<u64> {
        let mut histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for &latency in latencies_ns {
            histogram.record(latency).unwrap();
        }
        histogram
    }

    #[test]
    fn every_io_is_in_the_bucket_of_its_latency() {
        let latencies = [900, 1_000, 90_000, 100_000, 100_500, 2_000_000];
        let buckets = buckets(&histogram(&latencies));
        assert!(buckets.len() < 100, "{}", buckets.len());
        assert_eq!(buckets[0].count, 0, "the first one only begins");
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 6);
        let within = |from: f64, to: f64| {
            let part = buckets
                .windows(2)
                .filter(|pair| pair[0].upper_us >= from * 0.999 && pair[1].upper_us <= to * 1.001);
            part.map(|pair| pair[1].count).sum::<u64>()
        };
        assert_eq!(within(0.89, 1.01), 2);
        assert_eq!(within(79.4, 100.1), 2, "the borders are powers of ten, too");
        assert_eq!(within(100.0, 112.3), 1);
        assert_eq!(within(1995.0, 2239.0), 1);
    }

    #[test]
    fn the_widest_spread_has_few_buckets_and_none_has_none() {
        let buckets = buckets(&histogram(&[1, 59_000_000_000]));
        assert!(buckets.len() <= 100, "{}", buckets.len());
        assert_eq!(buckets.iter().map(|bucket| bucket.count).sum::<u64>(), 2);
        assert!(super::buckets(&histogram(&[])).is_empty());
    }
}
