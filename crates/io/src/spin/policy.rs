//! Decides when spinning pays: a pure machine, to which times are passed.
//!
//! What a wake-up costs differs by a factor of ten between machines, and from minute to minute on a virtual machine
//! whose host is busy. So the policy does not assume it. It tries both ways of waiting on the requests that arrive
//! anyway: a trial alternates short samples with spinning and without, and keeps the way with which requests followed
//! each other more quickly. A trial is repeated from time to time, because machines and loads change.

use std::time::{Duration, Instant};

use super::Wait;

/// Spinning is assumed to pay if an event follows within this time after the previous one, until a trial shows the
/// contrary. Networks between machines have about this latency.
pub(super) const QUICK: Duration = Duration::from_micros(100);
/// The longest time that a core spins without an event. Events that follow more slowly are a pause.
const LONGEST: Duration = Duration::from_millis(1);
/// Number of arrivals in a row, each within the window, before a core spins.
const QUICK_ENOUGH: u32 = 4;
/// Maximum of quick arrivals that are counted.
const QUICK_MOST: u32 = 16;
/// A core that was interrupted while it spun sleeps whenever it can, for this multiple of the time that others had its
/// processor. So it takes a tenth of a processor that others want all the time.
const BACKOFF: u32 = 10;
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// Minimum of a sample: arrivals, requests and time. The time is also this part of the time between two trials. So later
/// trials are longer: the kernel takes a while until it runs two threads where they work best together.
const SAMPLE_COUNT: u32 = 16;
const SAMPLE_TIME: Duration = Duration::from_millis(1);
const SAMPLE_PART: u32 = 50;
/// Number of samples of a trial that must favour the other way before the core changes to it, and the number of samples
/// against it that end the trial.
const VOTES_TO_CHANGE: u32 = 4;
const VOTES_TO_KEEP: u32 = 2;
/// Time between two trials. It doubles while trials confirm the way of waiting.
const RETRY_FIRST: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// After such a pause the next requests may be a new load.
const NEW_LOAD: Duration = Duration::from_millis(100);

/// Requests that arrived, and the time in which they did. Pauses do not count.
#[derive(Clone, Copy, Default)]
struct Sample {
    time: Duration,
    arrivals: u32,
    requests: u32,
}

impl Sample {
    fn is_complete(&self, time: Duration) -> bool {
        self.arrivals >= SAMPLE_COUNT && self.requests >= SAMPLE_COUNT && self.time >= time
    }

    /// Returns the time between two arrivals.
    fn gap(&self) -> Duration {
        self.time / self.arrivals.max(1)
    }
}

/// A comparison of both ways of waiting.
struct Trial {
    /// How the core waited before.
    before: Wait,
    /// How the core waits during the current sample.
    way: Wait,
    /// The previous sample, which was taken the other way.
    previous: Sample,
    /// Number of samples that favoured the other way, and the way of before.
    changes: u32,
    keeps: u32,
}

/// Returns whether requests followed each other so much more quickly that spinning pays. For quick events it also pays if
/// it does no harm: each of them is answered sooner, even if the client does not wait for it.
fn pays(awake: &Sample, asleep: &Sample) -> bool {
    let [awake_time, asleep_time] = [(awake, asleep), (asleep, awake)]
        .map(|(sample, other)| sample.time.as_nanos() * u128::from(other.requests));
    if awake.gap() <= QUICK {
        asleep_time * 16 >= awake_time * 15
    } else {
        asleep_time * 8 >= awake_time * 9
    }
}

/// See the module.
pub(super) struct Policy {
    last_arrival: Instant,
    /// Recent quick arrivals; from [`QUICK_ENOUGH`] on the core spins.
    quick: u32,
    /// The core has waited long enough since the last arrival.
    idle_expired: bool,
    /// How long the core waits for the next event before it sleeps; zero if spinning does not pay.
    window: Duration,
    /// The time between two events of a core that sleeps within which the second one is quick.
    quick_gap: Duration,
    sample: Sample,
    trial: Option<Trial>,
    next_trial: Instant,
    /// Time from the current trial to the next.
    retry: Duration,
    /// Until this time the core sleeps whenever it can.
    backoff_until: Instant,
}

impl Policy {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            last_arrival: now,
            quick: 0,
            idle_expired: true,
            window: QUICK,
            quick_gap: QUICK,
            sample: Sample::default(),
            trial: None,
            next_trial: now,
            retry: RETRY_FIRST,
            backoff_until: now,
        }
    }

    /// Notes an event that brought this number of requests.
    pub(super) fn arrived(&mut self, now: Instant, requests: u32) {
        let gap = now - self.last_arrival;
        let may_spin = now >= self.backoff_until;
        self.quick =
            if gap <= self.quick_gap() && may_spin { (self.quick + 1).min(QUICK_MOST) } else { 0 };
        self.last_arrival = now;
        self.idle_expired = false;
        if gap >= NEW_LOAD {
            self.retry = RETRY_FIRST;
            self.next_trial = self.next_trial.min(now + RETRY_FIRST);
        }
        if gap <= LONGEST {
            self.sample.time += gap;
            self.sample.arrivals += 1;
            self.sample.requests += requests;
        }
        if self.sample.is_complete(SAMPLE_TIME.max(self.retry / SAMPLE_PART)) {
            let sample = std::mem::take(&mut self.sample);
            match self.trial.take() {
                Some(trial) => self.judge(trial, sample, now),
                None if now >= self.next_trial && may_spin => self.begin_trial(sample),
                None => {}
            }
        }
    }

    /// Notes that a core that spins has no event.
    pub(super) fn nothing_came(&mut self, now: Instant) {
        self.idle_expired = now - self.last_arrival > self.window();
        if self.idle_expired {
            // After many quick arrivals one pause does not stop the spinning.
            self.quick /= 2;
        }
    }

    /// Another thread had the processor for this time. A thread that never sleeps only delays the other one, and then
    /// waits for its own next turn.
    pub(super) fn interrupted(&mut self, now: Instant, time: Duration) {
        self.backoff_until = now + (BACKOFF * time).min(BACKOFF_MAX);
        self.quick = 0;
        self.trial = None;
        self.sample = Sample::default();
    }

    pub(super) fn spins(&self) -> bool {
        !self.idle_expired && self.quick >= QUICK_ENOUGH
    }

    fn window(&self) -> Duration {
        match &self.trial {
            None => self.window,
            Some(Trial { way: Wait::Awake, .. }) => LONGEST,
            Some(Trial { way: Wait::Asleep, .. }) => Duration::ZERO,
        }
    }

    fn quick_gap(&self) -> Duration {
        if self.trial.is_some() { self.window() } else { self.quick_gap }
    }

    fn begin_trial(&mut self, sample: Sample) {
        let way = if self.quick >= QUICK_ENOUGH { Wait::Awake } else { Wait::Asleep };
        self.turn(Trial { before: way, way, previous: sample, changes: 0, keeps: 0 }, sample);
    }

    /// Begins a sample of the other way.
    fn turn(&mut self, trial: Trial, previous: Sample) {
        let (way, quick) = match trial.way {
            Wait::Awake => (Wait::Asleep, 0),
            Wait::Asleep => (Wait::Awake, QUICK_ENOUGH),
        };
        self.quick = quick;
        self.trial = Some(Trial { way, previous, ..trial });
    }

    /// Compares a sample of a trial with the previous one. Ends the trial when it is decided.
    fn judge(&mut self, mut trial: Trial, sample: Sample, now: Instant) {
        let (awake, asleep) = match trial.way {
            Wait::Awake => (sample, trial.previous),
            Wait::Asleep => (trial.previous, sample),
        };
        let better = if pays(&awake, &asleep) { Wait::Awake } else { Wait::Asleep };
        if better == trial.before {
            trial.keeps += 1;
        } else {
            trial.changes += 1;
        }
        let is_confirmed = trial.keeps == VOTES_TO_KEEP;
        if !is_confirmed && trial.changes < VOTES_TO_CHANGE {
            return self.turn(trial, sample);
        }
        let twice = |sample: &Sample| (2 * sample.gap()).clamp(QUICK, LONGEST);
        (self.window, self.quick_gap) = match better {
            Wait::Awake => (twice(&awake), twice(&asleep).max(twice(&awake))),
            Wait::Asleep if awake.gap().min(asleep.gap()) > QUICK => (QUICK, QUICK),
            Wait::Asleep => (Duration::ZERO, Duration::ZERO),
        };
        self.quick = if better == Wait::Awake { QUICK_ENOUGH } else { 0 };
        self.retry = if is_confirmed { (2 * self.retry).min(RETRY_MAX) } else { RETRY_FIRST };
        self.next_trial = now + self.retry;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time;

    /// A client that keeps its requests open: each arrival is the answer to an answer.
    struct Client {
        /// Time between two arrivals, and their requests, if the core slept.
        asleep: (u64, u32),
        /// The same if it spun.
        awake: (u64, u32),
        /// Arrivals of a burst and microseconds to the next burst.
        burst: Option<(u32, u64)>,
    }

    impl Client {
        fn steady(asleep: u64, awake: u64) -> Self {
            Self { asleep: (asleep, 1), awake: (awake, 1), burst: None }
        }
    }

    /// A core on virtual time.
    struct Core {
        policy: Policy,
        now: Instant,
        /// Requests so far, and time spent spinning without an event.
        requests: u32,
        spun: Duration,
        /// State of a generator of numbers.
        random: u64,
    }

    impl Core {
        fn new() -> Self {
            let now = time::now();
            Self { policy: Policy::new(now), now, requests: 0, spun: Duration::ZERO, random: 1 }
        }

        /// Returns a value from one half to three halves of `middle`.
        fn vary(&mut self, middle: u64) -> Duration {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            Duration::from_nanos(500 * middle + self.random % (1000 * middle))
        }

        /// Serves a client for this time. Returns the requests of a second and the part of the time spent spinning.
        fn serve(&mut self, client: &Client, time: Duration) -> (f64, f64) {
            let (begin, requests, spun) = (self.now, self.requests, self.spun);
            let mut left = client.burst.map_or(u32::MAX, |(arrivals, _)| arrivals);
            while self.now - begin < time {
                let (gap, count) = if self.policy.spins() { client.awake } else { client.asleep };
                let mut gap = self.vary(gap);
                left -= 1;
                if let (0, Some((arrivals, pause))) = (left, client.burst) {
                    gap += self.vary(pause);
                    left = arrivals;
                }
                self.wait(self.now + gap);
                self.requests += count;
                self.policy.arrived(self.now, count);
            }
            let seconds = (self.now - begin).as_secs_f64();
            let part = (self.spun - spun).as_secs_f64() / seconds;
            (f64::from(self.requests - requests) / seconds, part)
        }

        /// Spins, or sleeps, until an event.
        fn wait(&mut self, event: Instant) {
            const TURN: Duration = Duration::from_micros(1);
            while self.policy.spins() && self.now + TURN < event {
                self.now += TURN;
                self.spun += TURN;
                self.policy.nothing_came(self.now);
            }
            self.now = event;
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_core_spins_at_once_where_wake_ups_are_quick_and_sleeps_when_requests_stop() {
        let mut core = Core::new();
        let client = Client::steady(54, 24);
        let (rate, _) = core.serve(&client, Duration::from_millis(10));
        assert!(rate > 0.8 * 1e6 / 24.0, "{rate}");
        let (rate, _) = core.serve(&client, 10 * SECOND);
        assert!(rate > 0.97 * 1e6 / 24.0, "{rate}");
        let spun = core.spun;
        core.wait(core.now + SECOND);
        assert!(core.spun - spun <= 2 * QUICK, "{:?}", core.spun - spun);
    }

    #[test]
    fn a_core_learns_to_spin_where_wake_ups_are_slow() {
        let mut core = Core::new();
        let client = Client::steady(190, 48);
        core.serve(&client, Duration::from_millis(100));
        let (rate, _) = core.serve(&client, 10 * SECOND);
        assert!(rate > 0.97 * 1e6 / 48.0, "{rate}");
    }

    #[test]
    fn a_core_sleeps_where_spinning_slows_its_client_down() {
        for (asleep, awake) in [((90, 1), (110, 1)), ((60, 1), (80, 1)), ((240, 12), (40, 1))] {
            let mut core = Core::new();
            let client = Client { asleep, awake, burst: None };
            core.serve(&client, Duration::from_millis(200));
            let (rate, _) = core.serve(&client, 10 * SECOND);
            let sleeping = 1e6 / asleep.0 as f64 * f64::from(asleep.1);
            assert!(rate > 0.97 * sleeping, "{asleep:?} {awake:?}: {rate}");
        }
    }

    #[test]
    fn a_core_does_not_spin_for_a_slow_client_that_gains_nothing() {
        for gap in [150, 300, 900, 5000] {
            let mut core = Core::new();
            let client = Client::steady(gap, gap);
            core.serve(&client, SECOND);
            let (_, part) = core.serve(&client, 20 * SECOND);
            assert!(part < 0.05, "{gap}: {part}");
        }
    }

    #[test]
    fn a_core_spins_within_bursts_and_sleeps_between_them() {
        let mut core = Core::new();
        let client = Client { burst: Some((30, 5000)), ..Client::steady(190, 48) };
        core.serve(&client, SECOND);
        let (rate, part) = core.serve(&client, 10 * SECOND);
        let best = 30.0 * 1e6 / (29.0 * 48.0 + 190.0 + 5000.0);
        assert!(rate > 0.9 * best, "{rate} of {best}");
        let within = rate * 48e-6;
        assert!(part < within + 0.1, "{part}, of which {within} within bursts");
    }

    #[test]
    fn a_core_learns_again_when_the_machine_changes() {
        let mut core = Core::new();
        for _ in 0..3 {
            core.serve(&Client::steady(190, 48), 3 * SECOND);
            let (rate, _) = core.serve(&Client::steady(190, 48), SECOND);
            assert!(rate > 0.9 * 1e6 / 48.0, "{rate}");
            core.serve(&Client::steady(100, 150), 3 * SECOND);
            let (rate, _) = core.serve(&Client::steady(100, 150), SECOND);
            assert!(rate > 0.9 * 1e6 / 100.0, "{rate}");
        }
    }

    #[test]
    fn a_core_whose_processor_others_want_leaves_it_to_them() {
        let mut core = Core::new();
        let client = Client::steady(54, 24);
        for milliseconds in [1, 4, 20] {
            let taken = Duration::from_millis(milliseconds);
            core.serve(&client, Duration::from_secs(1));
            assert!(core.policy.spins());
            core.policy.interrupted(core.now, taken);
            let (_, part) = core.serve(&client, (BACKOFF - 1) * taken);
            assert_eq!(part, 0.0, "{taken:?}");
        }
    }
}
