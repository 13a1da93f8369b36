//! The recent activity of a volume: the differences of its totals between samples, which are about one second apart.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::meter::{OperationTotals, Totals};
use crate::OperationKind;

/// The period that is kept.
const SPAN: Duration = Duration::from_secs(10);

/// The times of the samples, oldest first. They cover only the last [`SPAN`].
#[derive(Default)]
pub(super) struct Moments(VecDeque<Instant>);

impl Moments {
    pub(super) fn note(&mut self, now: Instant) {
        self.0.push_back(now);
        while self.0.get(1).is_some_and(|moment| now - *moment >= SPAN) {
            self.0.pop_front();
        }
    }

    fn oldest(&self) -> Option<Instant> {
        self.0.front().copied()
    }

    fn span(&self) -> Duration {
        match (self.0.front(), self.0.back()) {
            (Some(from), Some(to)) => *to - *from,
            _ => Duration::ZERO,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Recent {
    /// The totals at the last sample. A change of `progress` shows that they have changed.
    last: Totals,
    progress: u64,
    additions: VecDeque<Addition>,
}

/// The changes between two samples. Few buckets have any.
struct Addition {
    until: Instant,
    rows: Vec<Row>,
}

struct Row {
    operation: OperationKind,
    bytes: u64,
    nanoseconds: u64,
    buckets: Box<[(u8, u32)]>,
}

const _: () = assert!(super::histogram::BUCKETS <= 1 << u8::BITS);

/// The totals of a recent period.
#[derive(Clone, Debug)]
pub struct RecentTotals {
    /// The length of the period.
    pub span: Duration,
    totals: Totals,
}

impl RecentTotals {
    /// Returns the operations that occurred in the period.
    pub fn operations(&self) -> impl Iterator<Item = (OperationKind, &OperationTotals)> {
        self.totals.operations()
    }
}

impl Recent {
    /// Takes a sample of the totals, if their progress shows a change.
    pub(super) fn note(
        &mut self,
        moments: &Moments,
        progress: u64,
        totals: impl FnOnce() -> Totals,
    ) {
        let Some(&now) = moments.0.back() else { return };
        let is_over = |addition: &Addition| {
            moments.oldest().is_some_and(|oldest| oldest != now && addition.until <= oldest)
        };
        while self.additions.front().is_some_and(is_over) {
            self.additions.pop_front();
        }
        if progress == self.progress {
            return;
        }
        let totals = totals();
        let rows = totals.operations().filter_map(|(operation, new)| {
            let old = self.last.operations[operation as usize].as_ref();
            Row::between(operation, old, new)
        });
        self.additions.push_back(Addition { until: now, rows: rows.collect() });
        (self.last, self.progress) = (totals, progress);
    }

    /// Returns the sum of all kept changes.
    pub(super) fn lately(&self, moments: &Moments) -> RecentTotals {
        let mut totals = Totals::default();
        for row in self.additions.iter().flat_map(|addition| &addition.rows) {
            let sum = totals.operations[row.operation as usize].get_or_insert_default();
            sum.bytes += row.bytes;
            sum.nanoseconds += row.nanoseconds;
            for &(bucket, count) in &row.buckets {
                sum.latency.buckets[bucket as usize] += u64::from(count);
            }
        }
        RecentTotals { span: moments.span(), totals }
    }
}

impl Row {
    fn between(
        operation: OperationKind,
        old: Option<&OperationTotals>,
        new: &OperationTotals,
    ) -> Option<Self> {
        let nothing = OperationTotals::default();
        let old = old.unwrap_or(&nothing);
        let change =
            |bucket: usize| new.latency.buckets[bucket].saturating_sub(old.latency.buckets[bucket]);
        let buckets = (0..new.latency.buckets.len()).filter_map(|bucket| {
            let count = u32::try_from(change(bucket)).unwrap_or(u32::MAX);
            (count > 0).then_some((bucket as u8, count))
        });
        let buckets: Box<[_]> = buckets.collect();
        (!buckets.is_empty()).then(|| Self {
            operation,
            bytes: new.bytes.saturating_sub(old.bytes),
            nanoseconds: new.nanoseconds.saturating_sub(old.nanoseconds),
            buckets,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Statistics;
    use super::*;
    use crate::testing::now;

    #[test]
    fn rate_covers_last_ten_seconds_only() {
        let statistics: Arc<Statistics> = Arc::default();
        let meter = statistics.meter("data", "iqn.x:a", 1);
        let begun = now();
        let at = |second: u64| begun + Duration::from_secs(second);
        let read = |microseconds: u64| {
            meter.begin();
            meter.end(OperationKind::Read, microseconds * 1000, 1, 512);
        };
        let count = || {
            let lately = statistics.recent("data").expect("it is known");
            let count: u64 = lately.operations().map(|(_, one)| one.latency.count()).sum();
            (count, lately.span.as_secs())
        };
        statistics.sample(at(0));
        read(100);
        statistics.sample(at(1));
        assert_eq!(count(), (1, 1));
        for second in 2..=9 {
            read(200);
            statistics.sample(at(second));
        }
        assert_eq!(count(), (9, 9));
        let slowest = |part| {
            let lately = statistics.recent("data").expect("it is known");
            lately.operations().next().and_then(|(_, one)| one.latency.quantile(part))
        };
        assert!(slowest(0.05) < Some(Duration::from_micros(120)));
        assert!(slowest(0.99) > Some(Duration::from_micros(150)));
        statistics.sample(at(11));
        assert_eq!(count(), (8, 10), "the first is forgotten");
        statistics.sample(at(30));
        assert_eq!(count().0, 0);
        assert!(statistics.recent("other").is_none());
    }
}
