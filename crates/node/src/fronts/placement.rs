//! Selects the core that serves a connection. New connections are spread over the cores. If one core could serve all
//! active connections, they gather on it for a trial: one core that stays awake may serve them more quickly than several
//! that sleep, or that take the processors of the clients. If fewer requests a second are the result, they spread again.
//!
//! Each core measures itself: the work and the requests of a period. It decides only about its own connections.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_io::cores::Cores;
use sarsen_io::net::{SocketStream, Stream};
use sarsen_io::spin::{self, Work};
use sarsen_io::{heap, time};

/// Number of turns of a connection between two looks at the clock.
const TURNS_BETWEEN_CHECKS: u32 = 64;
/// Period of a measurement.
const PERIOD: Duration = Duration::from_millis(20);
/// A core whose period took longer was idle in between.
const PERIOD_MAX: Duration = Duration::from_millis(60);
/// Time from a change to the measurement of its result.
const WARM_UP: Duration = Duration::from_millis(40);
/// Time of a measurement.
const MEASUREMENT: Duration = Duration::from_millis(100);
/// Connections gather for a trial if their cores, together, are busy for less than this time of one core.
const GATHER_BELOW: f64 = 1.0;
/// They spread for a trial if their one core is busy for a larger fraction.
const SPREAD_ABOVE: f64 = 0.75;
/// They spread without a trial if further connections bring more work than this.
const SPREAD_AT_ONCE_ABOVE: f64 = 1.25;
/// A change is kept if the requests a second, compared with those before it, reach this ratio.
const KEEP_GATHERED_RATIO: f64 = 0.97;
const KEEP_SPREAD_RATIO: f64 = 1.05;
/// A trial below this ratio ends after a quarter of a measurement.
const END_TRIAL_RATIO: f64 = 0.8;
/// Time between two trials. It doubles if a trial fails.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// After such a time without work, a trial may begin at once.
const NEW_LOAD: Duration = Duration::from_secs(1);

/// What the connections of a core do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Stay,
    /// `count` of them move to another core.
    Move {
        core: usize,
        count: usize,
    },
}

/// How the active connections are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Spread,
    /// All of them are on this core.
    Gathered(usize),
}

/// The last period of a core.
#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    work: Work,
    busy_fraction: f64,
    requests_per_second: f64,
    /// Number of connections that had requests.
    active: usize,
    /// Connections that were sent to the core and are not measured there yet.
    arriving: usize,
}

/// A comparison of the layout with the previous one.
struct Trial {
    began: Instant,
    previous: Layout,
    /// Requests a second before.
    rate: f64,
}

/// Decides from the measurements of all cores: a pure machine, to which times are passed.
struct PlacementPolicy {
    cores: Vec<Measured>,
    layout: Layout,
    trial: Option<Trial>,
    /// The sum and number of measured rates, and the time since which they are measured.
    rates: (f64, u32),
    since: Instant,
    next_trial: Instant,
    retry: Duration,
    /// Number of active connections at the end of the last trial.
    judged_for: usize,
}

impl PlacementPolicy {
    fn new(count: usize, now: Instant) -> Self {
        let none = Measured {
            at: now,
            work: Work::default(),
            busy_fraction: 0.0,
            requests_per_second: 0.0,
            active: 0,
            arriving: 0,
        };
        Self {
            cores: vec![none; count],
            layout: Layout::Spread,
            trial: None,
            rates: (0.0, 0),
            since: now,
            next_trial: now,
            retry: RETRY_FIRST,
            judged_for: usize::MAX,
        }
    }

    /// Ends a period of a core that has done `work` since it started, in this period for `active` connections.
    fn decide(&mut self, core: usize, now: Instant, work: Work, active: usize) -> Decision {
        let latest = self.cores.iter().map(|one| one.at).max().unwrap_or(now);
        let before = self.cores[core];
        let measured = Measured {
            at: now,
            work,
            busy_fraction: 0.0,
            requests_per_second: 0.0,
            active: 0,
            arriving: before.arriving,
        };
        self.cores[core] = measured;
        if now.saturating_duration_since(latest) > NEW_LOAD {
            self.trial = None;
            (self.retry, self.next_trial) = (RETRY_FIRST, now);
            self.measure_anew(now);
        }
        let period = now.saturating_duration_since(before.at);
        if period > PERIOD_MAX || period.is_zero() {
            return Decision::Stay;
        }
        let seconds = period.as_secs_f64();
        let requests = work.requests.wrapping_sub(before.work.requests);
        self.cores[core] = Measured {
            busy_fraction: work.time.saturating_sub(before.work.time).as_secs_f64() / seconds,
            requests_per_second: f64::from(requests) / seconds,
            active,
            arriving: 0,
            ..measured
        };
        let rate: f64 = self.working(now).map(|(_, one)| one.requests_per_second).sum();
        self.rates = (self.rates.0 + rate, self.rates.1 + 1);
        self.review(now);
        let decision = self.decision_of_layout(core, now);
        if let Decision::Move { core: other, count } = decision {
            self.cores[core].active -= count;
            self.cores[other].arriving += count;
        }
        decision
    }

    fn is_working(one: &Measured, now: Instant) -> bool {
        now.saturating_duration_since(one.at) <= PERIOD_MAX
    }

    fn working(&self, now: Instant) -> impl Iterator<Item = (usize, &Measured)> {
        self.cores.iter().enumerate().filter(move |(_, one)| Self::is_working(one, now))
    }

    fn measure_anew(&mut self, now: Instant) {
        (self.rates, self.since) = ((0.0, 0), now);
    }

    /// Begins a trial, or judges it.
    fn review(&mut self, now: Instant) {
        // A core that its connections have left is not busy any more.
        let serving = self.working(now).filter(|(_, one)| one.active > 0);
        let busy: f64 = serving.map(|(_, one)| one.busy_fraction).sum();
        let active: usize = self.working(now).map(|(_, one)| one.active).sum();
        if let Layout::Gathered(at) = self.layout {
            if self.trial.is_none() && busy > SPREAD_AT_ONCE_ABOVE {
                self.layout = Layout::Spread;
                self.end_trial(now, RETRY_FIRST, active);
            } else if !Self::is_working(&self.cores[at], now) {
                // Its connections have ended.
                let first = self.working(now).next().map_or(at, |(core, _)| core);
                self.layout = Layout::Gathered(first);
            }
        }
        if active / 2 >= self.judged_for {
            // The last trial judged another load.
            (self.next_trial, self.judged_for) = (now, active);
        }
        let is_measured = now >= self.since + MEASUREMENT && self.rates.1 > 1;
        let rate = self.rates.0 / f64::from(self.rates.1);
        let is_hopeless = |trial: &Trial| {
            now >= self.since + MEASUREMENT / 4
                && self.rates.1 > 1
                && rate < END_TRIAL_RATIO * trial.rate
        };
        match &self.trial {
            Some(trial) if now < trial.began + WARM_UP => self.measure_anew(now),
            Some(trial) if !is_measured && !is_hopeless(trial) => {}
            Some(trial) => {
                let wanted = match self.layout {
                    Layout::Gathered(_) => KEEP_GATHERED_RATIO,
                    Layout::Spread => KEEP_SPREAD_RATIO,
                };
                let retry = if rate >= wanted * trial.rate {
                    RETRY_FIRST
                } else {
                    self.layout = trial.previous;
                    (2 * self.retry).min(RETRY_MAX)
                };
                self.end_trial(now, retry, active);
            }
            None if !is_measured => {}
            None => {
                let other = match self.layout {
                    Layout::Spread if busy <= GATHER_BELOW => {
                        self.working(now).next().map(|(core, _)| Layout::Gathered(core))
                    }
                    Layout::Gathered(_) if busy >= SPREAD_ABOVE => Some(Layout::Spread),
                    Layout::Spread | Layout::Gathered(_) => None,
                };
                if let Some(other) = other.filter(|_| active > 1 && now >= self.next_trial) {
                    let previous = std::mem::replace(&mut self.layout, other);
                    self.trial = Some(Trial { began: now, previous, rate });
                }
                self.measure_anew(now);
            }
        }
    }

    fn end_trial(&mut self, now: Instant, retry: Duration, active: usize) {
        self.trial = None;
        (self.retry, self.next_trial, self.judged_for) = (retry, now + retry, active.max(1));
        self.measure_anew(now);
    }

    /// Returns what the connections of a core do, so that the layout comes about.
    fn decision_of_layout(&self, core: usize, now: Instant) -> Decision {
        let own = self.cores[core].active;
        match self.layout {
            Layout::Gathered(at) if at == core => Decision::Stay,
            Layout::Gathered(at) => Decision::Move { core: at, count: own },
            Layout::Spread => {
                let connections = |(core, one): (usize, &Measured)| {
                    let active = if Self::is_working(one, now) { one.active } else { 0 };
                    (active + one.arriving, core)
                };
                match self.cores.iter().enumerate().map(connections).min() {
                    Some((least, other)) if own >= least + 2 => {
                        Decision::Move { core: other, count: (own - least) / 2 }
                    }
                    _ => Decision::Stay,
                }
            }
        }
    }
}

/// The current period of a core.
struct Period {
    number: u64,
    end: Instant,
    /// Connections that were active in it.
    active: usize,
    /// The decision after the previous period; it counts the connections that are still to move.
    decision: Decision,
}

struct State {
    policy: PlacementPolicy,
    periods: Vec<Period>,
}

/// The connections and the work of each core.
pub(in crate::fronts) struct Loads {
    cores: Weak<Cores>,
    connections: Vec<AtomicUsize>,
    state: Mutex<State>,
    #[cfg(test)]
    moves: AtomicUsize,
    /// Connections move whenever they can.
    #[cfg(test)]
    always_moves: bool,
}

impl Loads {
    /// Creates loads whose connections move to the next core whenever they can.
    #[cfg(test)]
    pub(in crate::fronts) fn always_moving(cores: &Arc<Cores>) -> Self {
        Self { always_moves: true, ..Self::new(cores) }
    }

    /// Returns the number of moves so far.
    #[cfg(test)]
    pub(in crate::fronts) fn moves(&self) -> usize {
        self.moves.load(Ordering::Relaxed)
    }

    pub(in crate::fronts) fn new(cores: &Arc<Cores>) -> Self {
        let (now, count) = (time::now(), cores.len());
        let period = |_| Period { number: 0, end: now, active: 0, decision: Decision::Stay };
        Self {
            cores: Arc::downgrade(cores),
            connections: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            state: Mutex::new(State {
                policy: PlacementPolicy::new(count, now),
                periods: (0..count).map(period).collect(),
            }),
            #[cfg(test)]
            moves: AtomicUsize::new(0),
            #[cfg(test)]
            always_moves: false,
        }
    }

    /// Returns a place on the core with the fewest connections.
    pub(in crate::fronts) fn place(self: &Arc<Self>) -> Place {
        let counts = self.connections.iter().map(|count| count.load(Ordering::Relaxed));
        let core = counts.enumerate().min_by_key(|(_, count)| *count).map_or(0, |(core, _)| core);
        self.connections[core].fetch_add(1, Ordering::Relaxed);
        Place { loads: self.clone(), core, turns: 0, period: 0 }
    }
}

/// The place of a connection on a core, until this is dropped.
pub(in crate::fronts) struct Place {
    loads: Arc<Loads>,
    core: usize,
    turns: u32,
    /// The last period in which the connection was counted.
    period: u64,
}

impl Place {
    /// Counts a turn of the connection. Returns whether [`Self::check`] must follow.
    #[inline]
    pub(in crate::fronts) fn is_check_due(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        #[cfg(test)]
        if self.loads.always_moves {
            // After a move, the connection waits for an event at least once.
            return self.turns.is_multiple_of(2);
        }
        self.turns.is_multiple_of(TURNS_BETWEEN_CHECKS)
    }

    /// Counts the connection as active, and ends the period of its core when its time is over. Returns the core to which
    /// the connection should move, if it can. Must be called on its core.
    #[cold]
    pub(in crate::fronts) fn check(&mut self, can_move: bool) -> Option<usize> {
        #[cfg(test)]
        if self.loads.always_moves {
            return can_move.then_some((self.core + 1) % self.loads.connections.len());
        }
        let now = time::now();
        let mut state = self.loads.state.lock();
        let State { policy, periods } = &mut *state;
        let period = periods.get_mut(self.core).filter(|_| self.loads.connections.len() > 1)?;
        if self.period != period.number {
            self.period = period.number;
            period.active += 1;
        }
        if now >= period.end {
            let decision = policy.decide(self.core, now, spin::work(), period.active);
            *period = Period { number: period.number + 1, end: now + PERIOD, active: 0, decision };
        }
        match &mut period.decision {
            Decision::Move { core, count } if can_move && *count > 0 => {
                *count -= 1;
                Some(*core)
            }
            _ => None,
        }
    }

    /// Registers the socket of the connection at another core.
    pub(in crate::fronts) fn register(
        &self,
        core: usize,
        stream: &mut Stream,
    ) -> io::Result<SocketStream> {
        let cores = self.loads.cores.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        stream.register_at(&cores, core)
    }

    /// Moves to another core, and continues there with a future.
    pub(in crate::fronts) fn move_to<F>(
        mut self,
        core: usize,
        make: impl FnOnce(Self) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        self.loads.connections[self.core].fetch_sub(1, Ordering::Relaxed);
        self.core = core;
        #[cfg(test)]
        self.loads.moves.fetch_add(1, Ordering::Relaxed);
        self.loads.connections[core].fetch_add(1, Ordering::Relaxed);
        self.start(make);
    }

    /// Runs a future on the core of the place. When the connection ends or moves away, its memory is returned.
    pub(in crate::fronts) fn start<F>(self, make: impl FnOnce(Self) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        // Without cores the server has ended.
        if let Some(cores) = self.loads.cores.upgrade() {
            cores.spawn_on(self.core, move || {
                let served = make(self);
                async move {
                    served.await;
                    heap::give_back_soon();
                }
            });
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.loads.connections[self.core].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sessions on a machine with two cores, on virtual time.
    struct Machine {
        policy: PlacementPolicy,
        now: Instant,
        works: [Work; 2],
        /// Active connections of each core.
        connections: [usize; 2],
    }

    impl Machine {
        fn new(connections: [usize; 2]) -> Self {
            let now = time::now();
            Self {
                policy: PlacementPolicy::new(2, now),
                now,
                works: [Work::default(); 2],
                connections,
            }
        }

        /// Lets the time pass. `load` returns the part of the time that each core works, and the requests a second of
        /// all, for the number of cores with connections. Returns the mean of the requests a second.
        fn run(&mut self, time: Duration, load: impl Fn(usize) -> (f64, u32)) -> f64 {
            let (end, mut sum, mut periods) = (self.now + time, 0.0, 0.0);
            while self.now < end {
                self.now += PERIOD;
                let cores = self.connections.iter().filter(|count| **count > 0).count();
                let (part, rate) = load(cores);
                let before = self.connections;
                for core in (0..2).filter(|core| before[*core] > 0) {
                    self.works[core].time += PERIOD.mul_f64(part);
                    self.works[core].requests += rate / cores as u32 / 50;
                    let decision =
                        self.policy.decide(core, self.now, self.works[core], before[core]);
                    if let Decision::Move { core: other, count } = decision {
                        self.connections[core] -= count;
                        self.connections[other] += count;
                    }
                }
                (sum, periods) = (sum + f64::from(rate), periods + 1.0);
            }
            sum / periods
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn light_connections_gather_where_one_core_serves_them_better() {
        let load = |cores| if cores == 2 { (0.4, 80_000) } else { (1.0, 120_000) };
        let mut machine = Machine::new([2, 2]);
        machine.run(SECOND, load);
        let rate = machine.run(60 * SECOND, load);
        assert!(rate > 0.98 * 120_000.0, "{rate}");
    }

    #[test]
    fn light_connections_spread_where_two_cores_serve_them_better() {
        let load = |cores| if cores == 2 { (0.4, 120_000) } else { (1.0, 80_000) };
        let mut machine = Machine::new([2, 2]);
        machine.run(SECOND, load);
        let rate = machine.run(60 * SECOND, load);
        assert!(rate > 0.97 * 120_000.0, "{rate}");
    }

    #[test]
    fn busy_connections_never_gather() {
        let mut machine = Machine::new([2, 2]);
        let rate = machine.run(60 * SECOND, |cores| if cores == 2 { (0.9, 900) } else { (1.0, 0) });
        assert_eq!((rate, machine.connections), (900.0, [2, 2]));
    }

    #[test]
    fn gathered_connections_spread_when_they_become_busy() {
        let mut machine = Machine::new([3, 3]);
        machine.run(SECOND, |_| (0.2, 5000));
        assert_eq!(machine.connections, [6, 0], "one core is as good");
        let load = |cores| if cores == 2 { (1.0, 200_000) } else { (1.0, 100_000) };
        machine.run(2 * SECOND, load);
        assert_eq!(machine.connections, [3, 3]);
    }

    /// Otherwise the connections of a new, heavy load would all be served by the core of the light ones.
    #[test]
    fn gathered_connections_spread_at_once_when_busy_ones_come() {
        let mut machine = Machine::new([2, 2]);
        // Trials that spread fail, so that the next one is far away.
        machine.run(60 * SECOND, |cores| if cores == 2 { (0.4, 5000) } else { (0.8, 9000) });
        assert_eq!(machine.connections, [4, 0]);
        machine.connections = [4, 8];
        let rate = machine.run(SECOND, |cores| if cores == 2 { (0.9, 900) } else { (1.0, 500) });
        assert!(rate > 0.97 * 900.0 && machine.connections == [6, 6], "{rate}");
    }

    #[test]
    fn the_connections_of_a_crowded_core_spread() {
        let mut machine = Machine::new([8, 1]);
        machine.run(SECOND, |_| (0.9, 100_000));
        assert!(
            machine.connections[0].abs_diff(machine.connections[1]) < 2,
            "{:?}",
            machine.connections
        );
    }
}
