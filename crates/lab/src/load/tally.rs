//! The counters of all sessions and their values over time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::LoadError;
use crate::record::Series;

/// Maximum latency of the histograms, which have three significant digits.
const LONGEST_LATENCY_NS: u64 = 60_000_000_000;
/// Maximum number of values of a series; an even number.
const VALUE_LIMIT: usize = 240;
/// Minimum time between two values.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(10);
/// Number of rounds of the steady-state test, and its two limits.
const ROUNDS: usize = 5;
const RANGE_LIMIT: f64 = 0.2;
const DRIFT_LIMIT: f64 = 0.1;

/// The counters of all sessions.
pub(super) struct LoadCounters {
    pub(super) measuring: bool,
    /// Whether the load is ending: open I/Os complete, and no I/O starts.
    pub(super) leaving: bool,
    pub(super) reads: Histogram<u64>,
    pub(super) writes: Histogram<u64>,
    pub(super) ios: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
    pub(super) last_answer: Instant,
    /// The time without an answer at the end of the measurement: open I/Os are older.
    pub(super) silence: Duration,
    pub(super) errors: u64,
    pub(super) first_error: Option<String>,
    pub(super) course: IntervalCounts,
}

fn latency_histogram() -> Result<Histogram<u64>, LoadError> {
    Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3)
        .map_err(|_| LoadError::Options("the bounds of the histogram are wrong"))
}

impl LoadCounters {
    pub(super) fn new(start: Instant) -> Result<Self, LoadError> {
        Ok(Self {
            measuring: false,
            leaving: false,
            reads: latency_histogram()?,
            writes: latency_histogram()?,
            ios: 0,
            read_bytes: 0,
            written_bytes: 0,
            last_answer: start,
            silence: Duration::ZERO,
            errors: 0,
            first_error: None,
            course: IntervalCounts::new(start, None),
        })
    }

    /// Starts the measurement, with its duration if that is known.
    pub(super) fn start_measurement(&mut self, now: Instant, duration: Option<Duration>) {
        self.course = IntervalCounts::new(now, duration);
        self.measuring = true;
    }

    /// Ends the measurement.
    pub(super) fn end_measurement(&mut self, now: Instant) {
        self.tick(now);
        self.measuring = false;
        self.silence = now.saturating_duration_since(self.last_answer);
    }

    /// Updates the time. The caller calls this before it counts the I/Os that ended by `now`.
    #[inline]
    pub(super) fn tick(&mut self, now: Instant) {
        if now >= self.course.end && self.measuring {
            self.course.close(now, self.ios);
        }
    }

    /// Counts an I/O that ended with GOOD. Failed I/Os are not part of the measured speed.
    #[inline]
    pub(super) fn note_io(&mut self, latency: Duration, reads: bool, bytes: u32) {
        if self.measuring {
            self.ios += 1;
            let (latencies, total) = if reads {
                (&mut self.reads, &mut self.read_bytes)
            } else {
                (&mut self.writes, &mut self.written_bytes)
            };
            *total += u64::from(bytes);
            latencies.saturating_record(latency.as_nanos() as u64);
        }
    }

    /// Counts an I/O or a session that failed.
    pub(super) fn note_error(&mut self, describe: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(describe);
    }
}

/// Number of I/Os that ended in each of equal intervals. If there are too many intervals, each two are merged.
pub(super) struct IntervalCounts {
    begin: Instant,
    interval: Duration,
    /// End of the current interval.
    end: Instant,
    /// Number of I/Os before the current interval.
    before: u64,
    counts: Vec<u64>,
}

impl IntervalCounts {
    fn new(begin: Instant, duration: Option<Duration>) -> Self {
        let share = duration.unwrap_or_default().as_millis().div_ceil(VALUE_LIMIT as u128);
        let interval = Duration::from_millis(share.min(u64::MAX.into()) as u64);
        let interval = interval.max(SHORTEST_INTERVAL);
        Self { begin, interval, end: begin + interval, before: 0, counts: Vec::new() }
    }

    #[cold]
    fn close(&mut self, now: Instant, ios: u64) {
        while now >= self.end {
            self.counts.push(ios - self.before);
            self.before = ios;
            if self.counts.len() == VALUE_LIMIT {
                self.counts = self.counts.chunks(2).map(|two| two.iter().sum()).collect();
                self.interval *= 2;
            }
            self.end = self.begin + self.interval * (self.counts.len() as u32 + 1);
        }
    }

    /// Returns the I/Os per second of each complete interval; `None` if there was none.
    pub(super) fn series(&self) -> Option<Series> {
        let interval_s = self.interval.as_secs_f64();
        let values = self.counts.iter().map(|&count| count as f64 / interval_s).collect();
        (!self.counts.is_empty()).then_some(Series { interval_s, values })
    }

    /// Whether the load was steady, as the SNIA's Solid State Storage Performance Test Specification defines it (2.0.2,
    /// "steady state"). Five equal parts of the measurement replace its five rounds. The values of the rounds differ by
    /// a maximum of 20 % of their average. The best-fit line rises or falls by a maximum of 10 % of it. A measurement
    /// that is too short is not steady.
    pub(super) fn is_steady(&self) -> bool {
        let length = self.counts.len() / ROUNDS;
        if length == 0 {
            return false;
        }
        let whole = &self.counts[self.counts.len() - ROUNDS * length..];
        let rounds = whole.chunks(length).map(|round| round.iter().sum::<u64>() as f64);
        let rounds: Vec<f64> = rounds.collect();
        let average = rounds.iter().sum::<f64>() / ROUNDS as f64;
        let low = rounds.iter().copied().fold(f64::INFINITY, f64::min);
        let high = rounds.iter().copied().fold(0.0, f64::max);
        let middle = (ROUNDS - 1) as f64 / 2.0;
        let places = (0..ROUNDS).map(|round| round as f64 - middle);
        let spread: f64 = places.clone().map(|place| place * place).sum();
        let slope = places.zip(&rounds).map(|(place, value)| place * value).sum::<f64>() / spread;
        let drift = slope.abs() * (ROUNDS - 1) as f64;
        average > 0.0 && high - low <= RANGE_LIMIT * average && drift <= DRIFT_LIMIT * average
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(counts: &[u64]) -> IntervalCounts {
        let mut course = IntervalCounts::new(sarsen_io::time::now(), None);
        course.counts = counts.to_vec();
        course
    }

    #[test]
    fn ios_count_in_the_interval_in_which_they_ended() {
        let begin = sarsen_io::time::now();
        let mut tally = LoadCounters::new(begin).unwrap();
        tally.start_measurement(begin, None);
        for at_ms in [1, 9, 10, 35] {
            let now = begin + Duration::from_millis(at_ms);
            tally.tick(now);
            tally.note_io(Duration::from_micros(5), true, 512);
        }
        tally.tick(begin + Duration::from_millis(40));
        assert_eq!(tally.course.counts, [2, 1, 0, 1]);
        let series = tally.course.series().unwrap();
        assert_eq!(series.values, [200.0, 100.0, 0.0, 100.0]);
        assert_eq!(series.interval_s, 0.01);
    }

    #[test]
    fn however_long_it_takes_the_values_stay_few_and_none_is_lost() {
        let begin = sarsen_io::time::now();
        let mut tally = LoadCounters::new(begin).unwrap();
        tally.start_measurement(begin, None);
        for at in 0..10_000u64 {
            tally.tick(begin + Duration::from_millis(at));
            tally.note_io(Duration::from_micros(5), true, 512);
        }
        tally.tick(begin + Duration::from_millis(10_240));
        assert!(tally.course.counts.len() < VALUE_LIMIT);
        assert_eq!(tally.course.counts.iter().sum::<u64>(), 10_000);
        assert_eq!(tally.course.counts[0], tally.course.interval.as_millis() as u64);

        let known = IntervalCounts::new(begin, Some(Duration::from_secs(60)));
        assert_eq!(known.interval, Duration::from_millis(250));
    }

    #[test]
    fn steady_is_within_a_fifth_and_without_a_trend() {
        assert!(course(&[100, 105, 95, 100, 102]).is_steady());
        assert!(!course(&[100, 100, 100, 100, 125]).is_steady(), "one is far off");
        assert!(!course(&[94, 97, 100, 103, 106]).is_steady(), "a trend of 12 %");
        assert!(course(&[106, 94, 100, 106, 94]).is_steady(), "the same values without one");
        // The remainder at the beginning is ignored.
        assert!(course(&[900, 100, 100, 100, 100, 100]).is_steady());
        assert!(!course(&[100, 100, 100, 100]).is_steady(), "too short to tell");
        assert!(!course(&[0; 10]).is_steady());
    }
}
