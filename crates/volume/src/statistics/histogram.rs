//! Latencies in buckets. Each doubling from 10 µs to 10 s is divided into eight equal parts. Therefore a quantile is
//! exact to one eighth, a shift finds the bucket, and the ends of doublings are exact bounds for OpenMetrics.
//!
//! The crate `histogram` counts with a locked instruction for each command, and has no bucket for latencies above its
//! maximum.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Number of parts of each doubling, and of the range below the first doubling.
const PARTS: usize = 8;
const PARTS_SHIFT: u32 = PARTS.ilog2();
/// Nanoseconds of one part below the first doubling. Eight of them are 10 µs.
const UNIT: u64 = 1250;
/// Number of doublings, which begin at 10 µs.
const DOUBLINGS: usize = 20;
/// Number of buckets. The last one has no upper bound.
pub(super) const BUCKETS: usize = PARTS + DOUBLINGS * PARTS + 1;

/// Returns the bucket of a latency.
#[inline]
pub(super) fn bucket(nanoseconds: u64) -> usize {
    let units = nanoseconds / UNIT;
    if units < PARTS as u64 {
        return units as usize;
    }
    let doubling = units.ilog2() - PARTS_SHIFT;
    let part = (units >> doubling) as usize;
    (doubling as usize * PARTS + part).min(BUCKETS - 1)
}

/// Returns the exclusive upper bound of a bucket in nanoseconds, or `None` for the last one.
pub fn upper_bound(bucket: usize) -> Option<u64> {
    let (doubling, part) = (bucket / PARTS, bucket % PARTS);
    match doubling {
        _ if bucket + 1 >= BUCKETS => None,
        0 => Some((part as u64 + 1) * UNIT),
        doubling => Some(((PARTS + part + 1) as u64 * UNIT) << (doubling - 1)),
    }
}

/// Returns the exposed bounds in seconds, each with the number of buckets below it: 10 µs and each doubling of it.
pub fn exposed_bounds() -> impl Iterator<Item = (f64, usize)> {
    (0..=DOUBLINGS).map(|doubling| ((10_u64 << doubling) as f64 / 1e6, PARTS * (doubling + 1)))
}

/// Counters that one thread writes and any thread reads.
pub(super) struct Counts {
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { buckets: [const { AtomicU64::new(0) }; BUCKETS] }
    }
}

impl Counts {
    /// Counts `count` latencies of `nanoseconds` each. Only the writing thread may call this.
    pub(super) fn add(&self, nanoseconds: u64, count: u64) {
        raise(&self.buckets[bucket(nanoseconds)], count);
    }

    pub(super) fn add_to(&self, histogram: &mut Histogram) {
        for (sum, own) in histogram.buckets.iter_mut().zip(&self.buckets) {
            *sum += own.load(Ordering::Relaxed);
        }
    }
}

/// Adds to a counter that no other thread writes. This needs no locked instruction.
#[inline]
pub(super) fn raise(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

/// The counts at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Number of latencies in each bucket.
    pub buckets: Box<[u64; BUCKETS]>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]) }
    }
}

impl Histogram {
    /// Returns the number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in self.buckets.iter_mut().zip(other.buckets.iter()) {
            *own += other;
        }
    }

    /// Returns the latency below which the fraction `part` of all latencies lies, or `None` if there are none. The
    /// latencies of a bucket are assumed to be spread evenly over it.
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let count = self.count();
        let rank = (part * count as f64).max(1.0);
        let mut below = 0;
        for (index, &own) in self.buckets.iter().enumerate().filter(|(_, own)| **own > 0) {
            let with_own = below + own;
            if with_own as f64 >= rank {
                let start = index.checked_sub(1).and_then(upper_bound).unwrap_or(0);
                let end = upper_bound(index).unwrap_or(start);
                let share = (rank - below as f64) / own as f64;
                let within = (end - start) as f64 * share;
                return Some(Duration::from_nanos(start + within as u64));
            }
            below = with_own;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_latency_is_between_the_bounds_of_its_bucket(nanoseconds in 0..20_000_000_000_u64) {
            let index = bucket(nanoseconds);
            let start = index.checked_sub(1).and_then(upper_bound).unwrap_or(0);
            prop_assert!(start <= nanoseconds);
            prop_assert!(upper_bound(index).is_none_or(|end| nanoseconds < end));
        }

        #[test]
        fn a_quantile_is_right_to_an_eighth(
            mut latencies in prop::collection::vec(10_000..10_000_000_000_u64, 1..500),
            part in 0.01..1.0_f64,
        ) {
            let counts = Counts::default();
            latencies.iter().for_each(|&one| counts.add(one, 1));
            let mut histogram = Histogram::default();
            counts.add_to(&mut histogram);
            latencies.sort_unstable();
            let rank = (part * latencies.len() as f64).ceil().max(1.0) as usize;
            let exact = latencies[rank - 1] as f64;
            let found = histogram.quantile(part).expect("some").as_nanos() as f64;
            prop_assert!((found - exact).abs() <= exact / PARTS as f64 + 1.0, "{found} {exact}");
        }
    }

    #[test]
    fn the_exposed_bounds_are_ends_of_buckets() {
        let bounds: Vec<_> = exposed_bounds().collect();
        assert_eq!(bounds.len(), 21);
        for &(seconds, below) in &bounds[..bounds.len() - 1] {
            let end = upper_bound(below - 1).expect("an end") as f64 / 1e9;
            assert!((end - seconds).abs() < 1e-12, "{end} {seconds}");
        }
        assert_eq!(bounds[0].0, 1e-5);
        assert_eq!(bounds[20].1, BUCKETS - 1, "all but the last");
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn of_nothing_there_is_no_quantile() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), None);
    }
}
