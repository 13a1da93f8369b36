//! The shared state of all parties of one seed: the server, the model, and a record of the events.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use sarsen_block::Rng;
use sarsen_io::time;
use sarsen_proto::iscsi::initiator::TaskAttribute;
use sarsen_proto::iscsi::target::Settings;
use tokio::sync::Notify;
use tracing::debug;

use crate::command::{Command, CommandKind, CommandMix};
use crate::disk::{Disk, DiskDefect, DiskTraits};
use crate::fencing::{Action, Nexus};
use crate::model::{Model, Outcome, Violation};
use crate::network::NetworkTraits;
use crate::reservation::{self, Custom};
use crate::server::Server;
use crate::stamp;
use crate::tally::Counters;

/// A deliberate defect that a run must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mutation {
    Disk(DiskDefect),
    /// Bits flip although the ends check no digests.
    FlipsUnnoticed,
    /// A server that ends gracefully flushes nothing.
    EndsWithoutFlush,
}

/// The plan of a seed.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) natures: Vec<DiskTraits>,
    pub(crate) weather: NetworkTraits,
    pub(crate) initiators: u64,
    pub(crate) commands_each: u64,
    /// Numbers of commands after which the power fails.
    pub(crate) crashes: Vec<u64>,
    /// Numbers of commands after which the server ends gracefully.
    pub(crate) ends: Vec<u64>,
    /// Percentage of the steps that are task management functions.
    pub(crate) management_percent: u32,
    pub(crate) reservations: Custom,
    /// DefaultTime2Wait and DefaultTime2Retain of the server, in seconds.
    pub(crate) time2wait: u32,
    pub(crate) time2retain: u32,
}

impl Plan {
    pub(crate) fn draw(rng: &mut Rng) -> Self {
        let natures = (0..=rng.below(2)).map(|_| DiskTraits::draw(rng)).collect();
        let weather =
            if rng.chance(20) { NetworkTraits::fair() } else { NetworkTraits::forecast(rng) };
        let (initiators, commands_each) = (1 + rng.below(4), 10 + rng.below(90));
        let crashes = if rng.chance(50) { 0 } else { 1 + rng.below(3) };
        let all = initiators * commands_each;
        let crashes = (0..crashes).map(|_| 1 + rng.below(all)).collect();
        let ends = if rng.chance(60) { 0 } else { 1 + rng.below(2) };
        let ends = (0..ends).map(|_| 1 + rng.below(all)).collect();
        let management_percent = if rng.chance(50) { 0 } else { rng.below(15) as u32 };
        let (time2wait, time2retain) = (rng.below(3) as u32, 1 + rng.below(20) as u32);
        Self {
            natures,
            weather,
            initiators,
            commands_each,
            crashes,
            ends,
            management_percent,
            reservations: Custom::draw(rng),
            time2wait,
            time2retain,
        }
    }

    /// Returns whether other initiators can end commands.
    pub(crate) const fn ends_tasks(&self) -> bool {
        self.management_percent > 0 || self.reservations.percent > 0
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        settings.offer.default_time2wait = self.time2wait;
        settings.offer.default_time2retain = self.time2retain;
        settings
    }
}

/// The world of one seed (see the module).
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mutation: Option<Mutation>,
    pub(crate) server: Server,
    pub(crate) model: RefCell<Model>,
    begun: Instant,
    last_stamp: Cell<u64>,
    last_session: Cell<u64>,
    issued: Cell<u64>,
    /// Notified when the power must fail.
    pub(crate) power: Notify,
    /// Notified when the server must end.
    pub(crate) end: Notify,
    record: RefCell<DefaultHasher>,
    ended: Cell<u64>,
    tally: RefCell<Counters>,
}

impl World {
    pub(crate) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::draw(&mut rng);
        if mutation == Some(Mutation::FlipsUnnoticed) {
            plan.weather.flips_per_mille = 20;
        }
        debug!(seed, ?plan, "the plan");
        let lie = match mutation {
            Some(Mutation::Disk(lie)) => Some(lie),
            Some(Mutation::FlipsUnnoticed | Mutation::EndsWithoutFlush) | None => None,
        };
        let mut model = Model::new(plan.reservations);
        let disks = plan.natures.iter().map(|nature| {
            model.add_disk(nature.block_count, nature.is_volatile);
            Disk::new(nature.clone(), &mut rng, lie)
        });
        let disks = disks.collect();
        let server = Server::new(disks, plan.settings(), &mut rng);
        Self {
            plan,
            mutation,
            server,
            model: RefCell::new(model),
            begun: time::now(),
            last_stamp: Cell::new(0),
            last_session: Cell::new(0),
            issued: Cell::new(0),
            power: Notify::new(),
            end: Notify::new(),
            record: RefCell::default(),
            ended: Cell::new(0),
            tally: RefCell::default(),
        }
    }

    /// Records an event that another run of the seed must repeat.
    pub(crate) fn note(&self, who: &str, what: fmt::Arguments<'_>) {
        let at = (time::now() - self.begun).as_millis();
        let what = what.to_string();
        debug!("{at} ms, {who}: {what}");
        (at, who, what).hash(&mut *self.record.borrow_mut());
    }

    /// Counts an event that the seeds must include.
    pub(crate) fn count(&self, what: fmt::Arguments<'_>) {
        self.tally.borrow_mut().count(&what.to_string());
    }

    /// Returns the counts of the events that the seeds must include.
    pub(crate) fn tally(&self) -> Counters {
        self.tally.borrow().clone()
    }

    /// Returns a hash that distinguishes this run from every run with other events.
    pub(crate) fn fingerprint(&self) -> u64 {
        self.record.borrow().finish()
    }

    /// Returns the age of the run.
    pub(crate) fn age(&self) -> Duration {
        time::now() - self.begun
    }

    pub(crate) fn next_stamp(&self) -> u64 {
        self.last_stamp.set(self.last_stamp.get() + 1);
        self.last_stamp.get()
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.last_session.set(self.last_session.get() + 1);
        self.last_session.get()
    }

    /// Counts a sent command.
    pub(crate) fn issued(&self) {
        self.issued.set(self.issued.get() + 1);
        if self.plan.crashes.contains(&self.issued.get()) {
            self.power.notify_one();
        }
        if self.plan.ends.contains(&self.issued.get()) {
            self.end.notify_one();
        }
    }

    /// Counts an answered command.
    pub(crate) fn ended(&self) {
        self.ended.set(self.ended.get() + 1);
    }

    /// Returns the numbers of sent and of answered commands.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.issued.get(), self.ended.get())
    }

    /// Ends the run if the result is a violation.
    pub(crate) fn hold<T>(&self, result: Result<T, Violation>) -> T {
        match result {
            Ok(value) => value,
            Err(Violation(what)) => panic!("{what}"),
        }
    }

    /// Draws a command for one of the disks.
    pub(crate) fn command(&self, taste: &CommandMix, nexus: Nexus, rng: &mut Rng) -> Command {
        let disk = rng.below(self.plan.natures.len() as u64) as usize;
        let block_count = self.plan.natures[disk].block_count;
        let stamp = self.next_stamp();
        if rng.chance(self.plan.reservations.percent) {
            let keys = self.model.borrow().keys(disk);
            let action = reservation::draw(rng, nexus, &keys, stamp);
            return self.reservation(disk, action);
        }
        let held = |lba| self.model.borrow().stamps(disk, lba);
        taste.command(rng, disk, block_count, stamp, held)
    }
    /// Returns a command for a disk's reservations.
    pub(crate) const fn reservation(&self, disk: usize, action: Action) -> Command {
        Command {
            kind: CommandKind::Reservation { action, custom: self.plan.reservations },
            disk,
            lba: 0,
            block_count: 0,
            is_durable: false,
            attribute: TaskAttribute::Simple,
            stamp: stamp::ZERO,
        }
    }

    /// Counts the end of a command.
    pub(crate) fn count_end(&self, command: &Command, outcome: Outcome) {
        let what = match (command.action(), outcome) {
            (None, Outcome::Conflict) if !command.writes().is_empty() => {
                "writes that were fenced off"
            }
            (Some(Action::Reserve { .. }), Outcome::Done { .. }) => "reservations",
            (Some(Action::Preempt { aborts: false, .. }), Outcome::Done { .. }) => "preemptions",
            (Some(Action::Preempt { aborts: true, .. }), Outcome::Done { .. }) => {
                "preemptions with aborts"
            }
            _ => return,
        };
        self.count(format_args!("{what}"));
    }
}
