//! Runs seeds, each on its own thread: a seed does not affect the next.

use std::any::Any;
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Once, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_block::Rng;
use sarsen_io::{simulation, threads, time};
use tokio::task::{JoinHandle, LocalSet};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::initiator::Initiator;
use crate::tally::Counters;
use crate::world::{Mutation, World};

/// Maximum duration of a seed in simulated time; a longer seed hangs.
const LIMIT: Duration = Duration::from_secs(6 * 3_600);
/// Maximum duration of a seed in real time, in case the simulated time stops. It is long, because a machine may be
/// busy.
const REAL_LIMIT: Duration = Duration::from_secs(300);
/// The server has removed all resources of ended initiators after this time.
const SETTLE_LIMIT: Duration = Duration::from_secs(600);
/// Number of failures after which the run stops.
const FAILURES_MAX: usize = 3;

/// Events that the seeds of every gate must include.
const MET: [&str; 14] = [
    "sessions of level 0",
    "sessions of level 1",
    "sessions of level 2",
    "sessions of up to 4 connections",
    "connections that joined",
    "connections reinstated",
    "connections removed for recovery",
    "connections logged out alone",
    "recoveries with commands open",
    "preemptions",
    "preemptions with aborts",
    "writes that were fenced off",
    "ends in good order",
    "logouts that were asked for",
];

thread_local! {
    /// The panics of this thread; tasks would not report them otherwise.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// The result of a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// Hash of all events.
    fingerprint: u64,
    commands: u64,
    answers: u64,
    elapsed: Duration,
    tally: Counters,
}

/// Runs seeds on two threads, and returns their reports. Panics if any fails.
pub(crate) fn each<R: Send>(
    seeds: RangeInclusive<u64>,
    run: impl Fn(u64) -> Result<R, String> + Sync,
) -> Vec<R> {
    let next = AtomicU64::new(*seeds.start());
    let failures = Mutex::new(Vec::new());
    let reports = Mutex::new(Vec::new());
    let work = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        let enough = failures.lock().len() >= FAILURES_MAX;
        if enough || !seeds.contains(&seed) {
            return;
        }
        match run(seed) {
            Ok(report) => reports.lock().push(report),
            Err(failure) => failures.lock().push(failure),
        }
    };
    threads::beside("simulation", work, work).expect("a thread");
    let failures = failures.into_inner();
    assert!(failures.is_empty(), "\n{}", failures.join("\n\n"));
    reports.into_inner()
}

/// Panics unless all these events occurred.
pub(crate) fn assert_met(tally: &Counters, what: &[&str]) {
    let missed: Vec<_> = what.iter().filter(|what| tally.of(what) == 0).collect();
    assert!(missed.is_empty(), "never met: {missed:?}, of\n{tally}");
}

/// Runs seeds. Panics if any fails.
pub(crate) fn all(seeds: RangeInclusive<u64>) {
    let (mut commands, mut answers) = (0, 0);
    let (mut elapsed, mut tally) = (Duration::ZERO, Counters::default());
    for report in each(seeds, |seed| run(seed, None)) {
        commands += report.commands;
        answers += report.answers;
        elapsed += report.elapsed;
        tally.add(&report.tally);
    }
    assert_met(&tally, &MET);
    println!(
        "{commands} commands, {answers} answers in {} s of the world's time\n{tally}",
        elapsed.as_secs()
    );
}

/// Runs a seed; an error states the failure and the command that repeats it.
pub(crate) fn run(seed: u64, mutation: Option<Mutation>) -> Result<Report, String> {
    isolated(seed, "a_seed", move || on_stopped_time(seed, scenario(seed, mutation)))
}

/// Runs a seed on its own thread; an error names the test that repeats it.
pub(crate) fn isolated<R: Send + 'static>(
    seed: u64,
    test: &str,
    simulate: impl FnOnce() -> R + Send + 'static,
) -> Result<R, String> {
    prepare();
    let (done, outcome) = mpsc::channel();
    let thread = threads::spawn("seed", move || {
        PANICS.set(Some(Vec::new()));
        let report = panic::catch_unwind(AssertUnwindSafe(simulate));
        let panics = PANICS.take().unwrap_or_default();
        let result = match (report, panics.first()) {
            (Ok(report), None) => Ok(report),
            (Ok(_), Some(first)) => Err(first.clone()),
            (Err(panic), first) => Err(first.cloned().unwrap_or_else(|| words(&*panic))),
        };
        // The caller may have stopped waiting.
        let _ = done.send(result);
    });
    thread.map_err(|error| error.to_string())?;
    let outcome = outcome.recv_timeout(REAL_LIMIT);
    let outcome = outcome.unwrap_or_else(|_| Err("it does not come to an end".into()));
    outcome.map_err(|what| {
        format!(
            "seed {seed}: {what}\nSee it again: SARSEN_SEED={seed} RUST_LOG=debug cargo test -p \
             sarsen-simulation {test} -- --nocapture"
        )
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Enables logs on request, and adds panics of seeds to their reports only.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Ok(asked) = std::env::var("RUST_LOG") {
            let filter: Targets = asked.parse().expect("RUST_LOG has levels, or TARGET=LEVEL");
            let logs = tracing_subscriber::fmt().with_max_level(LevelFilter::TRACE);
            logs.without_time().finish().with(filter).init();
        }
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let is_ours = PANICS.with_borrow_mut(|panics| {
                let Some(panics) = panics else { return false };
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                panics.push(format!("{} ({place})", words(info.payload())));
                true
            });
            if !is_ours {
                before(info);
            }
        }));
    });
}

/// Runs a future with a clock that pauses while tasks are ready, with randomness from the seed.
pub(crate) fn on_stopped_time<F: Future>(seed: u64, future: F) -> F::Output {
    simulation::seed_randomness(seed);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

async fn scenario(seed: u64, mutation: Option<Mutation>) -> Report {
    let world = Rc::new(World::new(seed, mutation));
    world.server.start();
    let power = tokio::task::spawn_local(power(world.clone(), Rng::new(seed ^ 0x706f_7765)));
    let mut initiators: Vec<JoinHandle<Vec<u64>>> = Vec::new();
    for number in 0..world.plan.initiators {
        let rng = Rng::new(seed.wrapping_mul(31).wrapping_add(number + 1));
        let initiator = Initiator::new(world.clone(), number as u8, rng);
        initiators.push(tokio::task::spawn_local(initiator.run()));
    }
    let mut unknown = Vec::new();
    for initiator in initiators {
        let limit = time::now() + LIMIT.saturating_sub(world.age());
        unknown.extend(tokio::select! {
            biased;
            ended = initiator => ended.expect("it would have said why"),
            () = time::sleep_until(limit) => panic!("an initiator hangs"),
        });
    }
    power.abort();
    let _ = power.await;
    world.server.heal();
    if world.server.is_ending() {
        // The orderly end did not complete before the end of the seed.
        world.server.crash();
        world.model.borrow_mut().crash();
    }
    if !world.server.is_running() {
        world.server.start();
    }
    settle(&world).await;
    for operation in unknown {
        let ended = world.model.borrow_mut().end(operation, crate::model::Outcome::Unknown);
        world.hold(ended);
    }
    let verifier = Initiator::new(world.clone(), u8::MAX, Rng::new(seed));
    verifier.verify().await;
    settle(&world).await;
    let open = world.model.borrow().open_count();
    assert_eq!(open, 0, "commands that never ended");
    for disk in world.server.disks() {
        assert_eq!(disk.written_twice(), None, "block and stamp of a write that was done twice");
    }
    let held = world.server.end().await;
    assert_eq!(held, 0, "units that something still holds");
    let (commands, answers) = world.counts();
    let (fingerprint, elapsed) = (world.fingerprint(), world.age());
    Report { fingerprint, commands, answers, elapsed, tally: world.tally() }
}

/// Waits until no session, connection or request remains.
async fn settle(world: &World) {
    let deadline = time::now() + SETTLE_LIMIT;
    loop {
        let sessions = world.server.session_count();
        let connections = world.server.connection_count();
        let requests: usize = world.server.disks().iter().map(|disk| disk.under_way()).sum();
        if (sessions, connections, requests) == (0, 0, 0) {
            return;
        }
        assert!(
            time::now() < deadline,
            "{sessions} sessions, {connections} connections and {requests} requests are left"
        );
        time::sleep_until(time::now() + Duration::from_millis(500)).await;
    }
}

/// Cuts the power when the plan says so, or soon after a disk has stopped. Ends the server gracefully when the plan
/// says so.
async fn power(world: Rc<World>, mut rng: Rng) {
    loop {
        let in_order = tokio::select! {
            biased;
            () = world.power.notified() => false,
            () = world.end.notified() => true,
            () = time::sleep_until(time::now() + Duration::from_millis(700)) => {
                if !world.server.disks().iter().any(|disk| disk.has_stopped()) {
                    continue;
                }
                false
            }
        };
        let moment = Duration::from_millis(rng.below(100));
        time::sleep_until(time::now() + moment).await;
        if in_order {
            end_in_order(&world, &mut rng).await
        } else {
            world.note("power", format_args!("fails"));
            world.count(format_args!("crashes"));
            world.server.crash();
        }
        world.model.borrow_mut().crash();
        let dark = Duration::from_millis(rng.below(3_000));
        time::sleep_until(time::now() + dark).await;
        world.note("power", format_args!("is back"));
        world.server.start();
    }
}

async fn end_in_order(world: &World, rng: &mut Rng) {
    let grace = if rng.chance(20) { 0 } else { rng.below(40_000) };
    world.note("server", format_args!("is to end within {grace} ms"));
    let flushes = world.mutation != Some(Mutation::EndsWithoutFlush);
    let is_flushed = world.server.end_in_order(Duration::from_millis(grace), flushes).await;
    world.note("server", format_args!("has ended, flushed: {is_flushed}"));
    world.count(format_args!("ends in good order"));
    if is_flushed {
        world.model.borrow_mut().ended_in_order();
    }
}
