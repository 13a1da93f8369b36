//! A unit as the store of an initiator that logs in again, over one path or several: connections are cut and become silent, links
//! break, and the server loses its power with all data that was not flushed. Workers read and write their own blocks, several
//! requests at a time, and drop some of their writes. Each read must return what a register would: the last write that was
//! acknowledged, or one that overlaps in time. No older write may overwrite a later one that was acknowledged (a ghost), and no
//! write may be seen again after another one was seen.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sarsen_block::{Buffer, Durability, Extent, LocalFuture, Rng, Store};
use sarsen_initiator::{IscsiStore, PathSelector, SessionOptions};
use sarsen_io::net::Stream;
use sarsen_io::{simulation, time};
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::AccessState;

use crate::disk::{Disk, DiskTraits};
use crate::network::{Fate, NetworkTraits};
use crate::runner::{assert_met, each, isolated, on_stopped_time};
use crate::server::{FIRST_PORT, Server, TARGET};
use crate::stamp;
use crate::tally::Counters;

/// The number of seeds of every gate, and of the full one.
const SEEDS: u64 = 200;
const MANY_SEEDS: u64 = 10_000;
/// Maximum duration of a seed in simulated time; a longer seed hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(24 * 3_600);
/// Blocks of a worker: so few that its requests overlap.
pub(crate) const PART: u64 = 5;
/// Maximum number of requests that a worker has open.
const DEPTH: usize = 6;

/// Events that the seeds of every gate must include.
const MET: [&str; 12] = [
    "power failures",
    "orderly ends",
    "later connections",
    "reads during other requests",
    "requests during an end of the server",
    "durable writes",
    "sessions of 3 connections",
    "sets of 3 paths",
    "broken links",
    "dropped writes",
    "access states",
    "states that only the initiator changes",
];

/// A write to one block.
struct Written {
    /// Two writes of zeroes have one stamp.
    number: u64,
    stamp: u64,
    begun: Instant,
    /// When it was acknowledged. `None` if it is under way.
    acknowledged: Option<Instant>,
    /// When its caller dropped it. A write to its blocks that begins later waits until it can no longer be carried out.
    dropped: Option<Instant>,
}

/// A read of one block that has ended.
struct Seen {
    stamp: u64,
    begun: Instant,
    ended: Instant,
}

/// The contents of a worker's blocks, as a client knows them.
struct Registers {
    blocks: BTreeMap<u64, Vec<Written>>,
    seen: BTreeMap<u64, Vec<Seen>>,
}

impl Registers {
    fn new(blocks: impl Iterator<Item = u64>, now: Instant) -> Self {
        let zero = || {
            let (number, stamp) = (0, stamp::ZERO);
            vec![Written { number, stamp, begun: now, acknowledged: Some(now), dropped: None }]
        };
        Self { blocks: blocks.map(|lba| (lba, zero())).collect(), seen: BTreeMap::new() }
    }

    fn begin(&mut self, extent: Extent, number: u64, stamp: u64) {
        for (_, writes) in self.blocks.range_mut(extent.lba.0..extent.end()) {
            let begun = time::now();
            writes.push(Written { number, stamp, begun, acknowledged: None, dropped: None });
        }
    }

    /// Notes that a write was acknowledged, and forgets what can no longer be read by reads that begin now.
    fn end(&mut self, extent: Extent, number: u64, oldest_read: Instant) {
        let now = time::now();
        for (_, writes) in self.blocks.range_mut(extent.lba.0..extent.end()) {
            let own = writes.iter_mut().find(|one| one.number == number);
            own.expect("it was begun").acknowledged = Some(now);
            let since =
                writes.iter().filter(|one| one.acknowledged.is_some_and(|at| at < oldest_read));
            let Some(since) = since.map(|one| one.begun).max() else { continue };
            writes.retain(|one| one.acknowledged.is_none_or(|at| at >= since));
        }
    }

    /// Notes that the caller of a write has dropped it.
    fn drop_write(&mut self, extent: Extent, number: u64) {
        for (_, writes) in self.blocks.range_mut(extent.lba.0..extent.end()) {
            let own = writes.iter_mut().find(|one| one.number == number);
            own.expect("it was begun").dropped = Some(time::now());
        }
    }

    /// Checks what a read of a block returned that began at this time and ended now.
    fn check(&mut self, lba: u64, content: &[u8], begun: Instant) {
        let found = stamp::of(lba, content);
        let writes = &self.blocks[&lba];
        // A write is hidden by one that began after its end, and that ended before the read began.
        let is_hidden = |one: &Written| {
            let ended = one.acknowledged.or(one.dropped);
            writes.iter().any(|later| {
                ended.is_some_and(|ended| later.begun > ended)
                    && later.acknowledged.is_some_and(|at| at < begun)
            })
        };
        let is_possible = writes.iter().any(|one| Some(one.stamp) == found && !is_hidden(one));
        assert!(
            is_possible,
            "block {lba} has {found:?}; written: {:?}",
            writes.iter().map(|one| (one.stamp, one.acknowledged.is_some())).collect::<Vec<_>>()
        );
        let Some(stamp) = found.filter(|&stamp| stamp != stamp::ZERO) else { return };
        let seen = self.seen.entry(lba).or_default();
        let is_between = |other: &Seen| {
            let first = seen.iter().filter(|one| one.stamp == stamp).map(|one| one.ended).min();
            other.stamp != stamp
                && other.ended < begun
                && first.is_some_and(|first| first < other.begun)
        };
        let other = seen.iter().find(|other| is_between(other)).map(|other| other.stamp);
        assert!(other.is_none(), "block {lba} had {stamp}, then {other:?}, and has {stamp} again");
        seen.push(Seen { stamp, begun, ended: time::now() });
    }
}

/// A link between the two machines; each one leads to a portal of the server.
struct Link {
    network: NetworkTraits,
    fates: RefCell<Vec<Fate>>,
    state: Cell<LinkState>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkState {
    Up,
    /// Connections are refused.
    Refused,
    /// Connections get no answer.
    Silent,
}

/// The parties of a seed.
struct World {
    server: Server,
    links: Vec<Link>,
    rng: RefCell<Rng>,
    connections: Cell<u32>,
    load: Rc<Load>,
}

/// What the workers have in common.
#[derive(Default)]
pub(crate) struct Load {
    stamps: Cell<u64>,
    /// Number of requests that are open.
    pub(crate) open: Cell<usize>,
    pub(crate) tally: RefCell<Counters>,
}

impl Load {
    pub(crate) fn count(&self, what: &str) {
        self.tally.borrow_mut().count(what);
    }
}

pub(crate) async fn pause(rng: &mut Rng, max_ms: u64) {
    let pause = Duration::from_millis(rng.below(max_ms));
    time::sleep_until(time::now() + pause).await;
}

/// Reads and writes blocks from `first` on.
pub(crate) async fn work(load: Rc<Load>, store: Rc<dyn Store>, first: u64, mut rng: Rng) {
    let registers = RefCell::new(Registers::new(first..first + PART, time::now()));
    let reads: RefCell<BTreeMap<u64, Instant>> = RefCell::default();
    let mut open = FuturesUnordered::<Pin<Box<dyn Future<Output = ()>>>>::new();
    let mut left = 20 + rng.below(60);
    while left > 0 || !open.is_empty() {
        if left == 0 || open.len() >= DEPTH || (!open.is_empty() && rng.chance(40)) {
            open.next().await;
            continue;
        }
        left -= 1;
        let count = 1 + rng.below(4);
        let extent = Extent::new(first + rng.below(PART - count + 1), count);
        load.stamps.set(load.stamps.get() + 1);
        let (number, kind) = (load.stamps.get(), rng.below(100));
        let (load, store, registers, reads) = (&load, &store, &registers, &reads);
        let delay = if rng.chance(70) { 0 } else { rng.below(1_000) };
        let drop_after = rng.chance(5).then(|| Duration::from_millis(rng.below(300)));
        open.push(Box::pin(async move {
            time::sleep_until(time::now() + Duration::from_millis(delay)).await;
            load.open.set(load.open.get() + 1);
            let begun = time::now();
            let durability = if kind % 3 == 0 { Durability::Durable } else { Durability::Volatile };
            match kind {
                ..45 => {
                    if load.open.get() > 1 {
                        load.count("reads during other requests");
                    }
                    reads.borrow_mut().insert(number, begun);
                    let read = store.read(extent).wait().await;
                    reads.borrow_mut().remove(&number);
                    let data = read.unwrap_or_else(|error| panic!("a read: {error}"));
                    let mut bytes = vec![0; data.len()];
                    data.copy_out(0, &mut bytes);
                    for (lba, block) in (extent.lba.0..).zip(bytes.chunks(stamp::BLOCK)) {
                        registers.borrow_mut().check(lba, block, begun);
                    }
                }
                45..90 => {
                    let is_zero = kind >= 82;
                    let stamp = if is_zero { stamp::ZERO } else { number };
                    registers.borrow_mut().begin(extent, number, stamp);
                    let written = if is_zero {
                        store.write_zeroes(extent, durability)
                    } else {
                        let blocks = extent.lba.0..extent.end();
                        let data: Vec<u8> =
                            blocks.flat_map(|lba| stamp::block(lba, stamp)).collect();
                        store.write(extent, Buffer::copy_of(&data).into(), durability)
                    };
                    let result = match drop_after {
                        None => Some(written.wait().await),
                        Some(after) => tokio::select! {
                            biased;
                            result = written.wait() => Some(result),
                            () = time::sleep_until(begun + after) => None,
                        },
                    };
                    let Some(result) = result else {
                        registers.borrow_mut().drop_write(extent, number);
                        load.count("dropped writes");
                        load.open.set(load.open.get() - 1);
                        return;
                    };
                    result.unwrap_or_else(|error| panic!("a write: {error}"));
                    if durability == Durability::Durable {
                        load.count("durable writes");
                    }
                    let oldest = reads.borrow().values().min().copied();
                    registers.borrow_mut().end(extent, number, oldest.unwrap_or_else(time::now));
                }
                _ => {
                    let flushed = store.flush().wait().await;
                    flushed.unwrap_or_else(|error| panic!("a flush: {error}"));
                }
            }
            load.open.set(load.open.get() - 1);
        }));
    }
    for lba in first..first + PART {
        let begun = time::now();
        let read = store.read(Extent::new(lba, 1)).wait().await;
        let data = read.unwrap_or_else(|error| panic!("the last read: {error}"));
        let mut bytes = vec![0; data.len()];
        data.copy_out(0, &mut bytes);
        registers.borrow_mut().check(lba, &bytes, begun);
    }
}

/// Cuts the power of the server, or ends it in order, some times.
async fn fail(world: Rc<World>, mut rng: Rng) {
    for _ in 0..rng.below(5) {
        pause(&mut rng, 20_000).await;
        if world.load.open.get() > 0 {
            world.load.count("requests during an end of the server");
        }
        if rng.chance(25) {
            let grace = Duration::from_millis(rng.below(5_000));
            world.server.end_in_order(grace, true).await;
            world.load.count("orderly ends");
        } else {
            world.server.crash();
            world.load.count("power failures");
        }
        pause(&mut rng, 3_000).await;
        world.server.start();
    }
}

/// Breaks a link some times.
async fn break_link(world: Rc<World>, link: usize, mut rng: Rng) {
    let link = &world.links[link];
    for _ in 0..rng.below(6) {
        pause(&mut rng, 20_000).await;
        let is_silent = rng.chance(50);
        link.state.set(if is_silent { LinkState::Silent } else { LinkState::Refused });
        link.fates.borrow_mut().drain(..).for_each(|fate| fate.strike(!is_silent));
        world.load.count("broken links");
        pause(&mut rng, 10_000).await;
        link.state.set(LinkState::Up);
    }
}

/// Changes the access states of portal groups some times. At the end all are active, or none is until the initiator changes that.
async fn change_access(world: Rc<World>, groups: usize, mut rng: Rng) {
    const STATES: [AccessState; 4] = [
        AccessState::Optimized,
        AccessState::NonOptimized,
        AccessState::Standby,
        AccessState::Unavailable,
    ];
    let group = |rng: &mut Rng| 1 + rng.below(groups as u64) as u16;
    for _ in 0..rng.below(8) {
        pause(&mut rng, 10_000).await;
        let group = group(&mut rng);
        world.server.set_access_state(group, STATES[rng.below(4) as usize]);
        world.load.count("access states");
        pause(&mut rng, 3_000).await;
        world.server.set_access_state(group, STATES[rng.below(2) as usize]);
    }
    if rng.chance(30) {
        for group in (1..).take(groups) {
            world.server.set_access_state(group, STATES[2 + rng.below(2) as usize]);
        }
        world.load.count("states that only the initiator changes");
    }
}

async fn scenario(seed: u64) -> Counters {
    let mut rng = Rng::new(seed);
    let workers = 1 + rng.below(4);
    let traits = DiskTraits {
        block_count: workers * PART,
        is_volatile: rng.chance(80),
        hiccups_per_mille: if rng.chance(50) { 0 } else { rng.below(100) },
        errors_per_mille: if rng.chance(50) { 0 } else { rng.below(50) },
        errors_are_transient: true,
        stops_per_mille: 0,
        ..DiskTraits::draw(&mut rng)
    };
    let paths = 1 + rng.below(3) as usize;
    // A session logs in again through all portals of its portal group.
    let are_apart = rng.chance(50);
    let groups: Vec<u16> = (1..).take(paths).map(|tag| if are_apart { tag } else { 1 }).collect();
    let links: Vec<_> = (0..paths)
        .map(|_| Link {
            network: NetworkTraits { flips_per_mille: 0, ..NetworkTraits::forecast(&mut rng) },
            fates: RefCell::default(),
            state: Cell::new(LinkState::Up),
        })
        .collect();
    let mut settings = Settings::default();
    settings.offer.default_time2wait = rng.below(3) as u32;
    settings.offer.default_time2retain = 1 + rng.below(20) as u32;
    let disk = Disk::new(traits, &mut rng, None);
    let world = Rc::new(World {
        server: Server::with_portals(&groups, vec![disk], settings, &mut rng),
        links,
        rng: RefCell::new(Rng::new(rng.bits())),
        connections: Cell::new(0),
        load: Rc::default(),
    });
    world.server.start();
    let connecting = world.clone();
    simulation::set_connector(move |to: SocketAddr| -> LocalFuture<std::io::Result<Stream>> {
        let world = connecting.clone();
        Box::pin(async move {
            let portal = usize::from(to.port() - FIRST_PORT);
            let link = &world.links[portal];
            match link.state.get() {
                LinkState::Up => {}
                LinkState::Refused => return Err(std::io::ErrorKind::ConnectionRefused.into()),
                LinkState::Silent => std::future::pending().await,
            }
            let mut rng = Rng::new(world.rng.borrow_mut().bits());
            let side = world.server.connect_to(portal, &mut rng, &link.network, false).await?;
            link.fates.borrow_mut().push(side.fate());
            world.connections.set(world.connections.get() + 1);
            Ok(Stream::simulated(side))
        })
    });
    let connections = 1 + rng.below(3) as u32;
    let options = SessionOptions {
        reconnect_limit: Some(LIMIT),
        // Shorter than some stalls.
        silence_limit: Some(Duration::from_secs(2 + rng.below(20))),
        answer_limit: Duration::from_secs(5 + rng.below(30)),
        connections,
        error_recovery_level: rng.below(3) as u8,
        path_selector: PathSelector::ALL[rng.below(3) as usize],
        ..SessionOptions::default()
    };
    let portals: Vec<_> =
        (FIRST_PORT..).take(paths).map(|port| format!("192.0.2.1:{port}")).collect();
    let url = format!("iscsi://{}/{TARGET}/0", portals.join(",")).parse().expect("a URL");
    let store = loop {
        match IscsiStore::connect(&url, &options).await {
            Ok(store) => break Rc::new(store) as Rc<dyn Store>,
            // The first login is not repeated.
            Err(error) if error.is_connection_lost() => {}
            Err(sarsen_initiator::SessionError::TimedOut { .. }) => {}
            Err(error) => panic!("the first login: {error}"),
        }
    };
    if connections == 3 {
        world.load.count("sessions of 3 connections");
    }
    if paths == 3 {
        world.load.count("sets of 3 paths");
    }
    let changing = tokio::task::spawn_local(change_access(
        world.clone(),
        if are_apart { paths } else { 1 },
        Rng::new(rng.bits()),
    ));
    let breaking: Vec<_> = (0..paths)
        .map(|link| tokio::task::spawn_local(break_link(world.clone(), link, Rng::new(rng.bits()))))
        .collect();
    let first = world.connections.get();
    let failing = tokio::task::spawn_local(fail(world.clone(), Rng::new(rng.bits())));
    let workers: Vec<_> = (0..workers)
        .map(|worker| {
            let rng = Rng::new(rng.bits());
            tokio::task::spawn_local(work(world.load.clone(), store.clone(), worker * PART, rng))
        })
        .collect();
    let limit = time::now() + LIMIT;
    for worker in workers {
        tokio::select! {
            biased;
            ended = worker => ended.expect("it would have said why"),
            () = time::sleep_until(limit) => panic!("a worker hangs"),
        }
    }
    for task in breaking.into_iter().chain([failing, changing]) {
        task.abort();
        let _ = task.await;
    }
    if world.connections.get() > first {
        world.load.count("later connections");
    }
    drop(store);
    // Its tasks end, and the server's.
    let_tasks_end().await;
    world.load.tally.borrow().clone()
}

/// Lets the tasks of what was dropped end.
pub(crate) async fn let_tasks_end() {
    let mut turns = 8;
    poll_fn(|context| {
        context.waker().wake_by_ref();
        turns -= 1;
        if turns == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn run(seed: u64) -> Result<Counters, String> {
    isolated(seed, "store::a_seed", move || on_stopped_time(seed, scenario(seed)))
}

fn all(seeds: RangeInclusive<u64>) {
    let mut tally = Counters::default();
    each(seeds, run).iter().for_each(|one| tally.add(one));
    assert_met(&tally, &MET);
    println!("{tally}");
}

#[test]
fn a_store_is_a_register_whatever_happens_to_its_connections() {
    all(1..=SEEDS);
}

/// Runs the seeds of `SARSEN_SEEDS`, or the first ones.
#[test]
#[ignore = "takes minutes"]
fn a_store_is_a_register_whatever_happens_to_its_connections_for_many_seeds() {
    all(many_seeds(MANY_SEEDS));
}

/// Returns the seeds of `SARSEN_SEEDS`, or the first `count`.
pub(crate) fn many_seeds(count: u64) -> RangeInclusive<u64> {
    let named = std::env::var("SARSEN_SEEDS").ok();
    let range = named.as_deref().map(|range| range.split_once('-').expect("SARSEN_SEEDS is N-M"));
    let number = |text: &str| text.parse().expect("SARSEN_SEEDS has two numbers");
    range.map_or(1..=count, |(first, last)| number(first)..=number(last))
}

/// Returns the selected seed, or the first.
pub(crate) fn one_seed() -> u64 {
    let named = std::env::var("SARSEN_SEED").ok();
    named.map_or(1, |seed| seed.parse().expect("SARSEN_SEED is a number"))
}

/// Runs the selected seed, or the first.
#[test]
fn a_seed_of_a_store_runs_the_same_again() {
    let seed = one_seed();
    let [first, second] = [(); 2].map(|()| run(seed).unwrap_or_else(|failure| panic!("{failure}")));
    assert_eq!(first, second, "seed {seed} ran differently the second time");
}
