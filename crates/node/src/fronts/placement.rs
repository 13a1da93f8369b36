//! Selects the core that serves a connection. New connections are spread over the cores. If one core could serve all
//! active connections, they gather on it for a trial: one core that stays awake may serve them more quickly than several
//! that sleep, or that take the processors of the clients. If fewer requests a second are the result, they spread again.
//!
//! Each core measures itself: the work and the requests of a period. It decides only about its own connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sarsen_io::cores::Cores;
use sarsen_io::spin::{self, Work};
use sarsen_io::{heap, time};

/// Number of turns of a connection between two looks at the clock.
const TURNS: u32 = 64;
/// Period of a measurement. A core whose period took much longer was idle in between.
const PERIOD: Duration = Duration::from_millis(20);
const LONGEST_PERIOD: Duration = Duration::from_millis(60);
/// Time from a change to the measurement of its result, and the time of a measurement.
const SETTLE: Duration = Duration::from_millis(40);
const MEASURE: Duration = Duration::from_millis(100);
/// Connections gather for a trial if their cores, together, work for a smaller part of the time.
const GATHER_BELOW: f64 = 1.0;
/// They spread for a trial if their one core works for a larger part.
const SPREAD_ABOVE: f64 = 0.75;
/// The factors by which the requests a second must change, so that a change is kept.
const GATHERED: f64 = 0.97;
const SPREAD: f64 = 1.05;
/// A trial with so few requests a second ends after a quarter of the time of a measurement.
const HOPELESS: f64 = 0.8;
/// Time between two trials. It doubles if a trial fails.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(10);
/// After such a time without work, a trial may begin at once.
const NEW_LOAD: Duration = Duration::from_secs(1);

/// What the connections of a core do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Stay,
    /// This number of them move to another core.
    Move(usize, usize),
}

/// How the active connections are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Spread,
    Gathered,
}

/// The last period of a core.
#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    work: Work,
    /// The part of the period in which the core worked, its requests a second, and its active connections.
    part: f64,
    rate: f64,
    active: usize,
}

/// A comparison of the layout with the previous one.
struct Trial {
    began: Instant,
    /// Requests a second before.
    rate: f64,
}

/// Decides from the measurements of all cores: a pure machine, to which times are passed.
struct Balance {
    cores: Vec<Measured>,
    layout: Layout,
    trial: Option<Trial>,
    /// The sum and number of measured rates, and the time since which they are measured.
    rates: (f64, u32),
    since: Instant,
    next_trial: Instant,
    retry: Duration,
}

impl Balance {
    fn new(count: usize, now: Instant) -> Self {
        let none = Measured { at: now, work: Work::default(), part: 0.0, rate: 0.0, active: 0 };
        Self {
            cores: vec![none; count],
            layout: Layout::Spread,
            trial: None,
            rates: (0.0, 0),
            since: now,
            next_trial: now,
            retry: RETRY_FIRST,
        }
    }

    /// Ends a period of a core that has done `work` since it started, in this period for `active` connections.
    fn decide(&mut self, core: usize, now: Instant, work: Work, active: usize) -> Decision {
        let latest = self.cores.iter().map(|one| one.at).max().unwrap_or(now);
        let before = self.cores[core];
        self.cores[core] = Measured { at: now, work, part: 0.0, rate: 0.0, active: 0 };
        if now.saturating_duration_since(latest) > NEW_LOAD {
            self.trial = None;
            (self.retry, self.next_trial) = (RETRY_FIRST, now);
            self.measure_anew(now);
        }
        let period = now.saturating_duration_since(before.at);
        if period > LONGEST_PERIOD || period.is_zero() {
            return Decision::Stay;
        }
        let seconds = period.as_secs_f64();
        let requests = work.requests.wrapping_sub(before.work.requests);
        self.cores[core] = Measured {
            at: now,
            work,
            part: work.time.saturating_sub(before.work.time).as_secs_f64() / seconds,
            rate: f64::from(requests) / seconds,
            active,
        };
        let rate: f64 = self.active(now).map(|(_, one)| one.rate).sum();
        self.rates = (self.rates.0 + rate, self.rates.1 + 1);
        self.review(now);
        self.placement(core, now)
    }

    /// Returns the cores that work.
    fn active(&self, now: Instant) -> impl Iterator<Item = (usize, &Measured)> {
        let is_active =
            move |one: &Measured| now.saturating_duration_since(one.at) <= LONGEST_PERIOD;
        self.cores.iter().enumerate().filter(move |(_, one)| is_active(one))
    }

    fn measure_anew(&mut self, now: Instant) {
        (self.rates, self.since) = ((0.0, 0), now);
    }

    /// Begins a trial, or judges it.
    fn review(&mut self, now: Instant) {
        let is_measured = now >= self.since + MEASURE && self.rates.1 > 1;
        let rate = self.rates.0 / f64::from(self.rates.1);
        let is_hopeless = |trial: &Trial| {
            now >= self.since + MEASURE / 4 && self.rates.1 > 1 && rate < HOPELESS * trial.rate
        };
        match &self.trial {
            Some(trial) if now < trial.began + SETTLE => self.measure_anew(now),
            Some(trial) if !is_measured && !is_hopeless(trial) => {}
            Some(trial) => {
                let wanted = if self.layout == Layout::Gathered { GATHERED } else { SPREAD };
                if rate >= wanted * trial.rate {
                    self.retry = RETRY_FIRST;
                } else {
                    self.turn();
                    self.retry = (2 * self.retry).min(RETRY_MAX);
                }
                self.trial = None;
                self.next_trial = now + self.retry;
                self.measure_anew(now);
            }
            None if !is_measured => {}
            None => {
                let part: f64 = self.active(now).map(|(_, one)| one.part).sum();
                let active: usize = self.active(now).map(|(_, one)| one.active).sum();
                let may_gain = match self.layout {
                    Layout::Spread => part <= GATHER_BELOW,
                    Layout::Gathered => part >= SPREAD_ABOVE,
                };
                if active > 1 && may_gain && now >= self.next_trial {
                    self.trial = Some(Trial { began: now, rate });
                    self.turn();
                }
                self.measure_anew(now);
            }
        }
    }

    fn turn(&mut self) {
        self.layout = match self.layout {
            Layout::Spread => Layout::Gathered,
            Layout::Gathered => Layout::Spread,
        };
    }

    /// Returns what the connections of a core do, so that the layout comes about.
    fn placement(&self, core: usize, now: Instant) -> Decision {
        let own = self.cores[core].active;
        match self.layout {
            // The first core that works is the same for all of them.
            Layout::Gathered => match self.active(now).next() {
                Some((first, _)) if first != core => Decision::Move(first, own),
                _ => Decision::Stay,
            },
            Layout::Spread => {
                let active = |(core, one): (usize, &Measured)| {
                    let works = now.saturating_duration_since(one.at) <= LONGEST_PERIOD;
                    (if works { one.active } else { 0 }, core)
                };
                match self.cores.iter().enumerate().map(active).min() {
                    Some((least, other)) if own >= least + 2 => {
                        Decision::Move(other, (own - least) / 2)
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
    balance: Balance,
    periods: Vec<Period>,
}

/// The connections and the work of each core.
pub(in crate::fronts) struct Loads {
    cores: Weak<Cores>,
    connections: Vec<AtomicUsize>,
    state: Mutex<State>,
    /// Number of moves.
    moves: AtomicUsize,
    /// Connections move whenever they can.
    #[cfg(test)]
    is_restless: bool,
}

impl Loads {
    /// Creates loads whose connections move to the next core whenever they can.
    #[cfg(test)]
    pub(in crate::fronts) fn restless(cores: &Arc<Cores>) -> Self {
        Self { is_restless: true, ..Self::new(cores) }
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
                balance: Balance::new(count, now),
                periods: (0..count).map(period).collect(),
            }),
            moves: AtomicUsize::new(0),
            #[cfg(test)]
            is_restless: false,
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
    /// Counts a turn of the connection. Returns whether the place must be checked.
    #[inline]
    pub(in crate::fronts) fn is_due(&mut self) -> bool {
        self.turns = self.turns.wrapping_add(1);
        self.turns.is_multiple_of(TURNS)
    }

    /// Returns the core to which the connection should move, if it can. Must be called on its core.
    #[cold]
    pub(in crate::fronts) fn destination(&mut self, can_move: bool) -> Option<usize> {
        #[cfg(test)]
        if self.loads.is_restless {
            return can_move.then_some((self.core + 1) % self.loads.connections.len());
        }
        let now = time::now();
        let mut state = self.loads.state.lock();
        let State { balance, periods } = &mut *state;
        let period = periods.get_mut(self.core).filter(|_| self.loads.connections.len() > 1)?;
        if self.period != period.number {
            self.period = period.number;
            period.active += 1;
        }
        if now >= period.end {
            let decision = balance.decide(self.core, now, spin::work(), period.active);
            *period = Period { number: period.number + 1, end: now + PERIOD, active: 0, decision };
        }
        match &mut period.decision {
            Decision::Move(core, count) if can_move && *count > 0 => {
                *count -= 1;
                Some(*core)
            }
            _ => None,
        }
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
        balance: Balance,
        now: Instant,
        works: [Work; 2],
        /// Active connections of each core.
        connections: [usize; 2],
    }

    impl Machine {
        fn new(connections: [usize; 2]) -> Self {
            let now = time::now();
            Self { balance: Balance::new(2, now), now, works: [Work::default(); 2], connections }
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
                        self.balance.decide(core, self.now, self.works[core], before[core]);
                    if let Decision::Move(other, count) = decision {
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
