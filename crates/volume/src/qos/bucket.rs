//! A token bucket with debt. A command takes its tokens at once, from future income if necessary, and waits until that
//! income has arrived. So commands start in order, none is passed by, and late timers lose nothing.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

const NANO: i128 = 1_000_000_000;

/// See the module. Amounts are billionths of a token.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Tokens a second. `None`: no limit.
    rate: Option<NonZeroU64>,
    /// Maximum number of saved tokens.
    capacity: i128,
    /// All tokens that ever arrived.
    income: i128,
    /// All tokens that were taken or expired. It exceeds the income by the debt.
    taken: i128,
    since: Instant,
    /// Number of times that a limit was set or removed.
    era: u64,
}

/// The income that must have arrived before a command may start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticket {
    due: i128,
    era: u64,
}

impl Bucket {
    /// Creates a bucket without a limit.
    pub(super) fn new(now: Instant) -> Self {
        Self { rate: None, capacity: 0, income: 0, taken: 0, since: now, era: 0 }
    }

    /// Sets the rate. The bucket saves the tokens of `burst`, and at least `least`. Waiting commands use the new rate.
    pub(super) fn set(
        &mut self,
        rate: Option<NonZeroU64>,
        burst: Duration,
        least: u64,
        now: Instant,
    ) {
        self.settle(now);
        let saved = |rate: NonZeroU64| i128::from(rate.get()) * burst.as_nanos() as i128;
        self.capacity = rate.map_or(0, saved).max(i128::from(least) * NANO);
        if self.rate.is_some() != rate.is_some() {
            self.era += 1;
            self.taken = self.income - self.capacity;
        }
        self.rate = rate;
        self.settle(now);
    }

    fn settle(&mut self, now: Instant) {
        if let Some(rate) = self.rate {
            let elapsed = now.saturating_duration_since(self.since);
            self.income += i128::from(rate.get()) * elapsed.as_nanos() as i128;
            self.taken = self.taken.max(self.income - self.capacity);
        }
        self.since = self.since.max(now);
    }

    /// Takes tokens.
    pub(super) fn take(&mut self, amount: u64, now: Instant) -> Ticket {
        self.settle(now);
        if self.rate.is_some() {
            self.taken += i128::from(amount) * NANO;
        }
        Ticket { due: self.taken, era: self.era }
    }

    /// Returns the time until the tokens of a ticket have arrived: none if it is older than the limit.
    pub(super) fn left(&mut self, ticket: Ticket, now: Instant) -> Duration {
        self.settle(now);
        let Some(rate) = self.rate.filter(|_| ticket.era == self.era) else {
            return Duration::ZERO;
        };
        let rate = i128::from(rate.get());
        match ticket.due - self.income {
            ..=0 => Duration::ZERO,
            debt => {
                Duration::from_nanos(u64::try_from((debt + rate - 1) / rate).unwrap_or(u64::MAX))
            }
        }
    }

    /// Returns the tokens of a ticket to the bucket.
    pub(super) fn give_back(&mut self, ticket: Ticket, amount: u64, now: Instant) {
        self.settle(now);
        if self.rate.is_some() && ticket.era == self.era {
            self.taken -= i128::from(amount) * NANO;
            self.settle(now);
        }
    }

    /// Returns whether a token is saved. Without a rate none ever is.
    pub(super) fn has_saved(&mut self, now: Instant) -> bool {
        self.settle(now);
        self.rate.is_some() && self.income - self.taken >= NANO
    }

    /// Takes a saved token, if there is one.
    pub(super) fn take_saved(&mut self, now: Instant) {
        if self.has_saved(now) {
            self.taken += NANO;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::now;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn limited(rate: u64, burst: Duration, now: Instant) -> Bucket {
        let mut bucket = Bucket::new(now);
        bucket.set(NonZeroU64::new(rate), burst, 1, now);
        bucket
    }

    /// When each of so many that come at once may go.
    fn departures(bucket: &mut Bucket, count: usize, now: Instant) -> Vec<Duration> {
        let tickets: Vec<_> = (0..count).map(|_| bucket.take(1, now)).collect();
        tickets.into_iter().map(|ticket| bucket.left(ticket, now)).collect()
    }

    #[test]
    fn saved_tokens_pass_at_once_and_rest_at_rate() {
        let now = now();
        let mut bucket = limited(1000, 3 * MILLISECOND, now);
        let expected = [0, 0, 0, 1, 2, 3].map(|count| count * MILLISECOND);
        assert_eq!(departures(&mut bucket, 6, now), expected);
        // Three are owed; a second later as much is saved as may be.
        let later = now + Duration::from_secs(1);
        let expected = [0, 0, 0, 1].map(|count| count * MILLISECOND);
        assert_eq!(departures(&mut bucket, 4, later), expected);
    }

    #[test]
    fn one_that_is_larger_than_all_that_is_saved_only_waits_longer() {
        let now = now();
        let mut bucket = limited(1000, 10 * MILLISECOND, now);
        let large = bucket.take(110, now);
        assert_eq!(bucket.left(large, now), 100 * MILLISECOND);
        let behind = bucket.take(1, now);
        assert_eq!(bucket.left(behind, now), 101 * MILLISECOND, "nobody passes");
    }

    #[test]
    fn refund_does_not_move_earlier_requests() {
        let now = now();
        let mut bucket = limited(1000, Duration::ZERO, now);
        let first = bucket.take(1, now);
        let second = bucket.take(5, now);
        let third = bucket.take(1, now);
        assert_eq!(bucket.left(first, now), Duration::ZERO);
        bucket.give_back(second, 5, now);
        assert_eq!(bucket.left(third, now), 6 * MILLISECOND, "its time stays");
        let fourth = bucket.take(1, now);
        assert_eq!(bucket.left(fourth, now), 2 * MILLISECOND, "there is room again");
    }

    #[test]
    fn waiting_request_passes_despite_refunds() {
        let now = now();
        let mut bucket = limited(1000, Duration::ZERO, now);
        let many = bucket.take(50, now);
        let waiting = bucket.take(1, now);
        bucket.give_back(many, 50, now);
        let later = now + 30 * MILLISECOND;
        assert_eq!(bucket.left(waiting, later), 20 * MILLISECOND);
        assert_eq!(bucket.left(waiting, now + 50 * MILLISECOND), Duration::ZERO);
    }

    #[test]
    fn unlimited_commands_are_not_refunded_to_new_limit() {
        let now = now();
        let mut bucket = Bucket::new(now);
        let free = bucket.take(1000, now);
        bucket.set(NonZeroU64::new(1000), Duration::ZERO, 1, now);
        bucket.take(11, now);
        bucket.give_back(free, 1000, now);
        let next = bucket.take(1, now);
        assert_eq!(bucket.left(next, now), 11 * MILLISECOND);
    }

    #[test]
    fn waiting_request_uses_changed_rate() {
        let now = now();
        let mut bucket = limited(10, Duration::ZERO, now);
        bucket.take(1, now);
        let waiting = bucket.take(10, now);
        assert_eq!(bucket.left(waiting, now), Duration::from_secs(1));
        bucket.set(NonZeroU64::new(1000), Duration::ZERO, 1, now);
        assert_eq!(bucket.left(waiting, now), 10 * MILLISECOND);
        bucket.set(None, Duration::ZERO, 1, now);
        assert_eq!(bucket.left(waiting, now), Duration::ZERO);
        bucket.set(NonZeroU64::new(1), Duration::ZERO, 1, now);
        assert_eq!(bucket.left(waiting, now), Duration::ZERO, "it was free to go");
    }

    proptest! {
        /// Whatever comes when, in no stretch of time more goes than comes in over it, and is saved.
        #[test]
        fn the_limit_holds_over_every_stretch_of_time(
            rate in 1..100_000_u64,
            burst_ms in 0..2000_u64,
            arrivals in prop::collection::vec((0..50_000_000_u64, 1..200_u64), 1..100),
        ) {
            let mut now = now();
            let burst = Duration::from_millis(burst_ms);
            let mut bucket = limited(rate, burst, now);
            let mut gone: Vec<(Instant, u64)> = Vec::new();
            for (pause, amount) in arrivals {
                now += Duration::from_nanos(pause);
                let ticket = bucket.take(amount, now);
                gone.push((now + bucket.left(ticket, now), amount));
            }
            prop_assert!(gone.is_sorted_by_key(|(at, _)| *at), "in order");
            let saved = (rate as f64 * burst.as_secs_f64()).max(1.0);
            for (index, (from, first)) in gone.iter().enumerate() {
                let mut sum = 0;
                for (at, amount) in &gone[index..] {
                    sum += amount;
                    // What goes first had come in by then, however large it is.
                    let allowed = saved.max(*first as f64)
                        + rate as f64 * (*at - *from).as_secs_f64();
                    prop_assert!(sum as f64 <= allowed + 1e-3, "{sum} of {allowed}");
                }
            }
        }
    }
}
