//! Limits, weights and minima in simulated time, so that the tests can count the exact number of admitted commands.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sarsen_block::{BlockSize, Io, Layer, MemoryStore, Reply, Request, Rng, Store};
use sarsen_io::net::Stream;
use sarsen_io::{simulation, time};
use sarsen_node::SimulatedPortal;
use sarsen_node::config::Rates;
use sarsen_proto::iscsi::initiator::{
    CommandRequest, Event, LoginOptions, ReadLanding, SessionTarget, TaskAttribute, TaskManagement,
    Token, Transfer,
};
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::{Host, Identity, LogicalUnit, Lun, Parts, Work};
use sarsen_volume::{self as volume, Volume};
use sarsen_wire::iscsi::{Isid, TaskManagementResponse};
use tokio::task::LocalSet;

use crate::link::{Link, News};
use crate::network::{self, NetworkTraits};

const TARGET: &str = "iqn.2026-11.test:fair";
const SECOND: Duration = Duration::from_secs(1);
/// Tolerance for the network and for timers, in each direction.
const SLACK: Duration = Duration::from_millis(5);
const GOOD: u8 = 0x00;
const TASK_SET_FULL: u8 = 0x28;

struct Nothing;

impl Host for Nothing {
    fn unix_time_ms(&self) -> u64 {
        0
    }

    fn fill_random(&self, into: &mut [u8]) {
        into.fill(0);
    }

    fn spawn(&self, _: Work) {}
}

/// A disk that executes one request after another, in the order of arrival.
struct OneByOne {
    memory: Arc<dyn Store>,
    takes: Duration,
    idle_at: Arc<Mutex<Option<Instant>>>,
}

impl Layer for OneByOne {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.memory
    }

    fn handle<T: 'static>(
        &self,
        _: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        let reply = submit(&*self.memory);
        if self.takes.is_zero() {
            return reply;
        }
        let mut idle_at = self.idle_at.lock().expect("one thread");
        let done = idle_at.map_or(time::now(), |at| at.max(time::now())) + self.takes;
        *idle_at = Some(done);
        Io::pending(async move {
            time::sleep_until(done).await;
            reply.wait().await
        })
    }
}

/// A duration that is longer than any simulation.
const HANGS: Duration = Duration::from_secs(1 << 30);

/// The duration of a command on the disk, and the time at which the disk becomes idle.
type Disk = (Duration, Arc<Mutex<Option<Instant>>>);

/// A portal with units `a`, `b` and so on at the LUNs from 0.
struct QosWorld {
    portal: SimulatedPortal,
    next_port: Cell<u16>,
    unit_count: u8,
}

impl QosWorld {
    /// Returns a world with two units on one disk.
    fn new(takes: Duration) -> Rc<Self> {
        let idle_at: Arc<Mutex<Option<Instant>>> = Arc::default();
        Self::on(&[(takes, idle_at.clone()), (takes, idle_at)])
    }

    /// Returns a world in which each unit has its own disk.
    fn apart(takes: &[Duration]) -> Rc<Self> {
        let disks: Vec<_> = takes.iter().map(|takes| (*takes, Arc::default())).collect();
        Self::on(&disks)
    }

    fn on(disks: &[Disk]) -> Rc<Self> {
        let units = (0..).zip(disks).map(|(number, disk)| (Lun(number), unit(number, disk)));
        let units: BTreeMap<_, _> = units.collect();
        let unit_count = units.len() as u8;
        let address = SocketAddr::from(([192, 0, 2, 1], 3260));
        let settings = Settings::default();
        let portal = SimulatedPortal::new(settings, address, Arc::new(Nothing), TARGET, units);
        Rc::new(Self { portal, next_port: Cell::new(1024), unit_count })
    }

    /// Returns a session without pending unit attentions.
    async fn login(self: &Rc<Self>, name: &str) -> Client {
        let port = self.next_port.replace(self.next_port.get() + 1);
        let own = SocketAddr::from(([192, 0, 2, 2], port));
        let portal = SocketAddr::from(([192, 0, 2, 1], 3260));
        let weather = NetworkTraits { latency_max_ms: 0, ..NetworkTraits::fair() };
        let mut rng = Rng::new(1);
        let (side, accepted) = network::connection(&mut rng, &weather, [own, portal], false);
        tokio::task::spawn_local(self.portal.serve(Stream::simulated(accepted)));
        let isid = Isid([0x80, 0, 0, 0, 0, port as u8]);
        let options = LoginOptions::new(name, SessionTarget::Named(TARGET.into()), isid);
        let link = Link::new(side, options, 1);
        let mut client = Client { link, last: 0, sent: HashMap::new() };
        while !matches!(client.event(time::now() + SECOND).await, Some(Event::LoggedIn)) {}
        for lun in (0..self.unit_count).chain(0..self.unit_count) {
            client.ask(lun, &[0], 0);
            client.answer(time::now() + SECOND).await.expect("it is ready, or tells why not");
        }
        client
    }
}

/// Returns a unit on this disk; its name is a letter.
fn unit(number: u16, (takes, idle_at): &Disk) -> Arc<LogicalUnit> {
    let memory = Arc::new(MemoryStore::new(BlockSize::B512, 4096));
    let store = OneByOne { memory, takes: *takes, idle_at: idle_at.clone() };
    let name = char::from(b'a' + number as u8).to_string();
    let volume = Volume::open(volume::Parts::new(&name, Arc::new(store)));
    let identity = Identity::new(&name, TARGET);
    let unit = volume.and_then(|volume| LogicalUnit::of_parts(Parts::disk(identity, volume)));
    unit.expect("nothing was kept")
}

/// A session, and the commands that it sent with their times.
struct Client {
    link: Link,
    last: u64,
    sent: HashMap<Token, (u8, Instant)>,
}

/// The end of a command.
struct Answer {
    lun: u8,
    status: u8,
    took: Duration,
}

impl Client {
    async fn event(&mut self, deadline: Instant) -> Option<Event> {
        match self.link.turn(deadline).await? {
            News::Event(event) => Some(event),
            News::Loss(loss) => panic!("the connection is lost: {:?}", loss.why),
        }
    }

    /// Sends a command that reads `length` bytes, if the command window is open.
    fn ask(&mut self, lun: u8, cdb_bytes: &[u8], length: u32) -> Option<Token> {
        let mut cdb = [0; 16];
        cdb[..cdb_bytes.len()].copy_from_slice(cdb_bytes);
        let transfer = match length {
            0 => Transfer::None,
            length => Transfer::Read { length, landing: ReadLanding::Discard },
        };
        let lun_bytes = [0, lun, 0, 0, 0, 0, 0, 0];
        let attribute = TaskAttribute::Simple;
        let request = CommandRequest { lun: lun_bytes, cdb, attribute, transfer };
        let token = Token(self.last + 1);
        self.link.machine.command(request, token).ok()?;
        self.last += 1;
        self.sent.insert(token, (lun, time::now()));
        Some(token)
    }

    /// Sends READ(10).
    fn read(&mut self, lun: u8, blocks: u8) -> Option<Token> {
        self.ask(lun, &[0x28, 0, 0, 0, 0, 0, 0, 0, blocks, 0], u32::from(blocks) * 512)
    }

    /// Returns the next command that ends before `deadline`.
    async fn answer(&mut self, deadline: Instant) -> Option<Answer> {
        loop {
            if let Event::Completed(completion) = self.event(deadline).await? {
                let (lun, at) = self.sent.remove(&completion.token).expect("it was sent");
                return Some(Answer { lun, status: completion.status, took: time::now() - at });
            }
        }
    }

    /// Keeps `depth` reads open on a unit until `until`. Returns the counts and durations of the answers.
    async fn keep_reading(
        &mut self,
        lun: u8,
        blocks: u8,
        depth: usize,
        until: Instant,
    ) -> Counters {
        let mut tally = Counters::default();
        while time::now() < until {
            while self.sent.len() < depth && self.read(lun, blocks).is_some() {}
            let Some(answer) = self.answer(until).await else { break };
            tally.add(&answer);
        }
        tally
    }
}

#[derive(Debug, Default)]
struct Counters {
    good: u64,
    full: u64,
    longest: Duration,
    took: Vec<Duration>,
}

impl Counters {
    fn add(&mut self, answer: &Answer) {
        match answer.status {
            GOOD => self.good += 1,
            TASK_SET_FULL => self.full += 1,
            status => panic!("status {status:02x}h"),
        }
        self.longest = self.longest.max(answer.took);
        self.took.push(answer.took);
    }

    /// Returns the 99th percentile of the durations.
    fn p99(&self) -> Duration {
        let mut took = self.took.clone();
        took.sort_unstable();
        took[took.len() * 99 / 100]
    }
}

fn run(scenario: impl Future<Output = ()>) {
    simulation::seed_randomness(1);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime");
    LocalSet::new().block_on(&runtime, scenario);
}

fn iops(iops: u64) -> Rates {
    Rates { iops: NonZeroU64::new(iops), burst: Some(Duration::ZERO), ..Rates::default() }
}

#[test]
fn so_many_commands_a_second_are_let_through_and_none_fails() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut one = fair.login("iqn.2026-11.test:one").await;
        let mut two = fair.login("iqn.2026-11.test:two").await;
        fair.portal.govern(&[("a", iops(1000))], 64);
        let until = time::now() + 10 * SECOND;
        // The limit applies to the volume, for all initiators together.
        let (first, second) =
            tokio::join!(one.keep_reading(0, 1, 32, until), two.keep_reading(0, 1, 8, until));
        let good = first.good + second.good;
        assert!((9_950..=10_001).contains(&good), "{good}");
        assert_eq!(first.full + second.full, 0);
        // The server admits commands in the order of arrival: more requests give a larger part, and no session starves.
        assert!(first.longest.max(second.longest) <= Duration::from_millis(40) + SLACK);
        assert!(second.good > 1_500, "{second:?}");
    });
}

#[test]
fn so_many_bytes_a_second_are_let_through_however_large_the_commands() {
    for blocks in [1, 8, 128] {
        run(async {
            let fair = QosWorld::new(Duration::ZERO);
            let mut client = fair.login("iqn.2026-11.test:one").await;
            let bandwidth = NonZeroU64::new(4 << 20);
            let burst = Some(Duration::ZERO);
            let qos = Rates { bandwidth, burst, ..Rates::default() };
            fair.portal.govern(&[("a", qos)], 64);
            let until = time::now() + 10 * SECOND;
            let tally = client.keep_reading(0, blocks, 64, until).await;
            let bytes = tally.good * u64::from(blocks) * 512;
            let allowed = 40 << 20;
            assert!(bytes <= allowed && bytes >= allowed * 98 / 100, "{bytes} of {allowed}");
        });
    }
}

#[test]
fn bytes_are_counted_by_the_cdb_whatever_the_initiator_expects() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        let bandwidth = NonZeroU64::new(64 << 10);
        let qos = Rates { bandwidth, burst: Some(Duration::ZERO), ..Rates::default() };
        fair.portal.govern(&[("a", qos)], 64);
        let read = |blocks| [0x28, 0, 0, 0, 0, 0, 0, 0, blocks, 0];
        let eighth = Duration::from_micros(7_813);
        for (blocks, expected) in [(1, 64 << 20), (128, 512), (128, 0), (1, 512)] {
            client.ask(0, &read(blocks), expected).expect("the window is open");
            let answer = client.answer(time::now() + 10 * SECOND).await.expect("it goes");
            let due = eighth * u32::from(blocks);
            assert!(
                answer.took + SLACK >= due && answer.took <= due + SLACK,
                "{blocks} {expected}"
            );
        }
    });
}

#[test]
fn unused_tokens_are_saved_up_to_burst() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        let burst = Some(2 * SECOND);
        fair.portal.govern(&[("a", Rates { burst, ..iops(500) })], 64);
        let moment = time::now() + Duration::from_millis(100);
        let first = client.keep_reading(0, 1, 64, moment).await;
        assert!((1_000..=1_060).contains(&first.good), "two seconds' worth at once: {first:?}");
        let second = client.keep_reading(0, 1, 64, moment + SECOND).await;
        assert!((490..=510).contains(&second.good), "then as it comes in: {second:?}");
        while client.answer(time::now() + SECOND).await.is_some() {}
        time::sleep_until(time::now() + SECOND).await;
        let moment = time::now() + Duration::from_millis(1);
        let third = client.keep_reading(0, 1, 64, moment).await;
        assert!((900..=1_010).contains(&third.good), "what two seconds brought: {third:?}");
    });
}

#[test]
fn waiting_volume_does_not_block_others_of_session() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        fair.portal.govern(&[("a", iops(5))], 64);
        let (mut a, mut b) = (Counters::default(), Counters::default());
        let until = time::now() + 20 * SECOND;
        while time::now() < until {
            let open = |client: &Client, lun| client.sent.values().filter(|of| of.0 == lun).count();
            // These are more commands than may wait for the slow volume.
            while open(&client, 0) < 120 && client.read(0, 1).is_some() {}
            while open(&client, 1) < 2 && client.read(1, 1).is_some() {}
            let Some(answer) = client.answer(until).await else { break };
            match answer.lun {
                0 => a.add(&answer),
                _ => b.add(&answer),
            }
            if answer.status == TASK_SET_FULL {
                time::sleep_until(time::now() + Duration::from_millis(1)).await;
            }
        }
        assert!((99..=101).contains(&a.good), "{a:?}");
        assert!(a.full > 1000, "{a:?}");
        assert!(b.good > 1000 && b.longest <= 10 * SLACK, "{b:?}");
    });
}

#[test]
fn inquiries_do_not_wait() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        fair.portal.govern(&[("a", iops(1))], 64);
        for _ in 0..20 {
            client.read(0, 1).expect("the window is open");
        }
        client.answer(time::now() + SECOND).await.expect("the first");
        let ready = client.ask(0, &[0], 0).expect("the window is open");
        let answer = client.answer(time::now() + SLACK).await.expect("TEST UNIT READY");
        assert!(answer.status == GOOD && !client.sent.contains_key(&ready));
    });
}

#[test]
fn waiting_command_can_be_aborted_without_cost() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        fair.portal.govern(&[("a", iops(1))], 64);
        for _ in 0..90 {
            client.read(0, 1).expect("the window is open");
        }
        client.answer(time::now() + SLACK).await.expect("the first goes at once");
        let begun = time::now();
        let all = TaskManagement::AbortTaskSet([0; 8]);
        assert!(client.link.machine.task_management(all, Token(u64::MAX)));
        let mut aborted = 0;
        loop {
            match client.event(begun + SECOND).await.expect("an answer") {
                Event::Aborted { .. } => aborted += 1,
                Event::TaskManagementDone { response, .. } => {
                    assert_eq!(response, TaskManagementResponse::FunctionComplete);
                    break;
                }
                event => panic!("{event:?}"),
            }
        }
        assert!(time::now() - begun <= SLACK && aborted == 89, "{aborted}");
        // The abort returned the tokens of 90 seconds.
        client.sent.clear();
        client.read(0, 1).expect("the window is open");
        let answer = client.answer(begun + 10 * SECOND).await.expect("it goes");
        assert!(answer.took <= SECOND + SLACK, "{:?}", answer.took);
    });
}

#[test]
fn changed_limit_applies_to_waiting_commands() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        fair.portal.govern(&[("a", iops(1))], 64);
        for _ in 0..90 {
            client.read(0, 1).expect("the window is open");
        }
        client.answer(time::now() + SLACK).await.expect("the first goes at once");
        fair.portal.govern(&[("a", iops(1000))], 64);
        let deadline = time::now() + Duration::from_millis(160);
        for left in (0..89).rev() {
            assert!(client.answer(deadline).await.is_some(), "{left} are left");
        }
        fair.portal.govern(&[], 64);
        for _ in 0..90 {
            client.read(0, 1).expect("the window is open");
            let answer = client.answer(deadline).await.expect("it goes");
            assert!(answer.took < Duration::from_millis(1), "nothing is limited");
        }
    });
}

#[test]
fn a_host_that_is_no_longer_limited_or_has_another_name_does_not_wait() {
    run(async {
        let fair = QosWorld::new(Duration::ZERO);
        let mut client = fair.login("iqn.2026-11.test:one").await;
        for then in [[].as_slice(), &[("renamed", iops(1000))]] {
            fair.portal.govern_hosts(&[("host", iops(1))], 64);
            for _ in 0..90 {
                client.read(0, 1).expect("the window is open");
            }
            client.answer(time::now() + SLACK).await.expect("the first goes at once");
            fair.portal.govern_hosts(then, 64);
            let deadline = time::now() + SLACK;
            for left in (0..89).rev() {
                assert!(client.answer(deadline).await.is_some(), "{left} are left");
            }
        }
    });
}

/// Returns the number of commands that each unit answers in ten seconds. One session for each unit requests commands
/// continuously.
async fn apart(takes: &[Duration], qos: &[Rates], in_service: usize) -> Vec<u64> {
    let fair = QosWorld::apart(takes);
    let governed: Vec<_> = ["a", "b", "c"].into_iter().zip(qos.iter().copied()).collect();
    fair.portal.govern(&governed, in_service);
    let mut readings = Vec::new();
    for lun in 0..fair.unit_count {
        let mut client = fair.login(&format!("iqn.2026-11.test:{lun}")).await;
        readings.push(tokio::task::spawn_local(async move {
            client.keep_reading(lun, 1, 90, time::now() + 10 * SECOND).await.good
        }));
        // The earlier sessions start first.
        time::sleep_until(time::now() + Duration::from_millis(10)).await;
    }
    let mut good = Vec::new();
    for reading in readings {
        good.push(reading.await.expect("it ends"));
    }
    good
}

#[test]
fn a_store_that_hangs_holds_up_no_other_volume() {
    run(async {
        let nothing = Rates::default();
        let minimum = Rates { reserved_iops: NonZeroU64::new(100), ..nothing };
        let weight = Rates { weight: NonZeroU64::new(100), ..nothing };
        let fast = Duration::from_millis(1);
        let good = apart(&[HANGS, fast], &[nothing, minimum], 4).await;
        assert!(good[0] == 0 && good[1] > 9_900, "{good:?}");
        // The two hanging units occupy all slots, except for one second.
        let good = apart(&[HANGS, HANGS, fast], &[weight, weight, nothing], 4).await;
        assert!(good[2] > 8_900, "{good:?}");
        let good = apart(&[HANGS, HANGS, fast], &[nothing, nothing, minimum], 4).await;
        assert!(good[2] > 8_900 + 90, "{good:?}: its minimum does not wait");
    });
}

#[test]
fn a_slow_store_does_not_slow_down_a_volume_of_the_same_share() {
    run(async {
        let weight = Rates { weight: NonZeroU64::new(100), ..Rates::default() };
        let takes = [Duration::from_millis(100), Duration::from_millis(1)];
        let good = apart(&takes, &[weight, weight], 8).await;
        assert!((95..=101).contains(&good[0]) && good[1] > 9_900, "{good:?}");
    });
}

/// Runs two sessions on one disk of 1000 commands per second; the session on `b` has few commands open.
async fn side_by_side(a: Rates, b: Rates) -> [Counters; 2] {
    let fair = QosWorld::new(Duration::from_millis(1));
    let mut noisy = fair.login("iqn.2026-11.test:noisy").await;
    let mut quiet = fair.login("iqn.2026-11.test:quiet").await;
    fair.portal.govern(&[("a", a), ("b", b)], 4);
    let until = time::now() + 10 * SECOND;
    let tallies =
        tokio::join!(noisy.keep_reading(0, 1, 90, until), quiet.keep_reading(1, 1, 8, until));
    tallies.into()
}

#[test]
fn weights_divide_throughput_and_demand_does_without_them() {
    run(async {
        let nothing = Rates::default();
        let [noisy, quiet] = side_by_side(nothing, nothing).await;
        assert!(noisy.good > 10 * quiet.good, "{noisy:?} {quiet:?}");
        let weight = |weight| Rates { weight: NonZeroU64::new(weight), ..nothing };
        let [noisy, quiet] = side_by_side(weight(100), weight(300)).await;
        let part = quiet.good as f64 / (noisy.good + quiet.good) as f64;
        assert!((0.7..=0.8).contains(&part), "{noisy:?} {quiet:?}");
        // The weights do not reduce the total throughput.
        assert!(noisy.good + quiet.good > 9_800, "{noisy:?} {quiet:?}");
    });
}

#[test]
fn a_minimum_is_had_whatever_others_ask_for() {
    run(async {
        let reserved_iops = NonZeroU64::new(400);
        let quiet = Rates { reserved_iops, weight: NonZeroU64::new(1), ..Rates::default() };
        let [noisy, quiet] = side_by_side(Rates::default(), quiet).await;
        assert!(quiet.good >= 3_950, "{quiet:?}");
        assert!(noisy.good >= 5_500, "what is left is the others': {noisy:?}");
    });
}

#[test]
fn a_noisy_neighbour_that_is_limited_moves_the_p99_of_another_volume_by_less_than_a_fifth() {
    run(async {
        let nothing = Rates::default();
        let fair = QosWorld::new(Duration::from_millis(1));
        let mut quiet = fair.login("iqn.2026-11.test:quiet").await;
        let alone = quiet.keep_reading(1, 1, 8, time::now() + 10 * SECOND).await.p99();
        let [_, unlimited] = side_by_side(nothing, nothing).await;
        let [noisy, limited] = side_by_side(iops(50), nothing).await;
        assert!((495..=501).contains(&noisy.good), "{}", noisy.good);
        let (unlimited, limited) = (unlimited.p99(), limited.p99());
        assert!(unlimited > 10 * alone, "it is noisy: {unlimited:?}, {alone:?} alone");
        assert!(limited <= alone.mul_f64(1.2), "{limited:?}, {alone:?} alone");
    });
}
