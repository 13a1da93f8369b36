//! An export as the store of a client that connects again: connections are cut and become silent, and the server loses its power
//! with all data that was not flushed. The workers and their registers are those of `store.rs`.
//!
//! The server ends what it still has of lost connections before it accepts the next one. Without that, a client of NBD cannot
//! prevent an old write from overwriting a later one: see docs/decisions/0023-nbd-remotes.md.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::ops::RangeInclusive;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use sarsen_block::{
    BlockError, Buffer, Data, Durability, Extent, Io, LocalFuture, Piece, Reply, Rng, Store,
};
use sarsen_initiator::nbd::{NbdError, NbdOptions, NbdStore};
use sarsen_io::net::Stream;
use sarsen_io::simulation::{self, SimulatedStream};
use sarsen_io::time;
use sarsen_wire::nbd::{
    self, CommandCode, ErrorCode, FUA, InfoCode, NO_HOLE, OPTION_REPLY_MAGIC, OptionCode,
    ReplyCode, SIMPLE_REPLY_MAGIC, SimpleReply, transmission,
};
use tokio::task::JoinHandle;
use zerocopy::{FromBytes, IntoBytes};

use crate::disk::{Disk, DiskTraits, Opened};
use crate::network::{self, NetworkTraits, Side};
use crate::runner::{assert_met, each, isolated, on_stopped_time};
use crate::stamp;
use crate::store::{LIMIT, Load, PART, let_tasks_end, many_seeds, one_seed, pause, work};
use crate::tally::Counters;

/// The number of seeds of every gate, and of the full one.
const SEEDS: u64 = 200;
const MANY_SEEDS: u64 = 10_000;
const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 10_809);
const CLIENT: ([u8; 4], u16) = ([192, 0, 2, 2], 1_024);

/// Events that the seeds of every gate must include.
const MET: [&str; 9] = [
    "power failures",
    "later connections",
    "reads during other requests",
    "requests during a power failure",
    "durable writes",
    "dropped writes",
    "several connections",
    "servers without FUA",
    "servers without WRITE_ZEROES",
];

/// An NBD server with one export.
struct Server {
    disk: Arc<Disk>,
    flags: u16,
    /// `None` while it has no power.
    opened: RefCell<Option<Arc<Opened>>>,
    connections: RefCell<Vec<(Weak<()>, JoinHandle<()>)>>,
    accepted: Cell<u32>,
}

/// The client's end of a connection. The server knows whether it still exists.
struct ClientSide {
    side: Side,
    _exists: Rc<()>,
}

impl Server {
    fn start(&self) {
        *self.opened.borrow_mut() = Some(self.disk.open());
    }

    fn cut_power(&self) {
        *self.opened.borrow_mut() = None;
        self.connections.borrow_mut().drain(..).for_each(|(_, task)| task.abort());
        self.disk.crash();
    }

    async fn connect(&self, rng: &mut Rng, weather: &NetworkTraits) -> io::Result<ClientSide> {
        pause(rng, weather.latency_max_ms + 1).await;
        let is_lost = |(client, task): &(Weak<()>, JoinHandle<()>)| {
            let is_lost = client.strong_count() == 0;
            if is_lost {
                task.abort();
            }
            !is_lost
        };
        self.connections.borrow_mut().retain(is_lost);
        while self.disk.under_way() > 0 {
            pause(rng, 100).await;
        }
        let opened = self.opened.borrow().clone().ok_or(io::ErrorKind::ConnectionRefused)?;
        let addresses = [SocketAddr::from(CLIENT), SocketAddr::from(SERVER)];
        let (side, accepted) = network::connection(rng, weather, addresses, false);
        let exists = Rc::new(());
        let (flags, client) = (self.flags, Rc::downgrade(&exists));
        // A lost connection is no error of the server.
        let task = async move { drop(serve(accepted, opened, flags).await) };
        self.connections.borrow_mut().push((client, tokio::task::spawn_local(task)));
        self.accepted.set(self.accepted.get() + 1);
        Ok(ClientSide { side, _exists: exists })
    }
}

/// Serves a connection until it is lost.
async fn serve(side: Side, disk: Arc<Opened>, flags: u16) -> io::Result<()> {
    send(&side, b"NBDMAGICIHAVEOPT\x00\x03").await?;
    let mut input = Vec::new();
    // The flags of the client, and NBD_OPT_GO with its head.
    fill(&side, &mut input, 4 + 16).await?;
    let head: Vec<u8> = input.drain(..4 + 16).collect();
    let length = u32::from_be_bytes(*head.last_chunk().expect("its length")) as usize;
    fill(&side, &mut input, length).await?;
    input.drain(..length);
    let info = nbd::ExportInfo {
        info: InfoCode::Export.0.into(),
        bytes: disk.geometry().byte_count().into(),
        flags: flags.into(),
    };
    send(&side, &option_reply(ReplyCode::Info, info.as_bytes())).await?;
    send(&side, &option_reply(ReplyCode::Ack, &[])).await?;
    let mut open: FuturesUnordered<LocalFuture<Vec<u8>>> = FuturesUnordered::new();
    let mut head: Option<nbd::Request> = None;
    loop {
        let wanted = match &head {
            None => size_of::<nbd::Request>(),
            Some(head) => head.length.get() as usize,
        };
        tokio::select! {
            biased;
            Some(reply) = open.next(), if !open.is_empty() => send(&side, &reply).await?,
            filled = fill(&side, &mut input, wanted) => {
                filled?;
                let bytes: Vec<u8> = input.drain(..wanted).collect();
                let (request, data) = match head.take() {
                    Some(head) => (head, bytes),
                    None => {
                        let request = nbd::Request::read_from_bytes(&bytes).expect("its length");
                        if CommandCode(request.command.get()) == CommandCode::Write {
                            head = Some(request);
                            continue;
                        }
                        (request, Vec::new())
                    }
                };
                if CommandCode(request.command.get()) == CommandCode::Disconnect {
                    return Ok(());
                }
                open.push(Box::pin(answer(&disk, request, data)));
            }
        }
    }
}

/// Starts a request, and returns the reply of the server.
fn answer(
    disk: &Opened,
    request: nbd::Request,
    data: Vec<u8>,
) -> impl Future<Output = Vec<u8>> + use<> {
    let block = stamp::BLOCK as u64;
    let extent = Extent::new(request.offset.get() / block, u64::from(request.length.get()) / block);
    let flags = request.flags.get();
    let durability = if flags & FUA != 0 { Durability::Durable } else { Durability::Volatile };
    let done = |reply: Reply<()>| reply.map(|result| result.map(|()| Data::empty()));
    let started: Io<Result<Data, BlockError>> = match CommandCode(request.command.get()) {
        CommandCode::Read => disk.read(extent),
        CommandCode::Write => done(disk.write(extent, Buffer::copy_of(&data).into(), durability)),
        CommandCode::WriteZeroes if flags & NO_HOLE == 0 => done(disk.unmap(extent)),
        CommandCode::WriteZeroes => done(disk.write_zeroes(extent, durability)),
        CommandCode::Flush => done(disk.flush()),
        other => panic!("the client sends {other:?}"),
    };
    async move {
        let result = started.wait().await;
        let error = if result.is_ok() { ErrorCode::None } else { ErrorCode::Io };
        let head = SimpleReply {
            magic: SIMPLE_REPLY_MAGIC.into(),
            error: error.0.into(),
            cookie: request.cookie,
        };
        let mut reply = head.as_bytes().to_vec();
        if let Ok(data) = result {
            let start = reply.len();
            reply.resize(start + data.len(), 0);
            data.copy_out(0, &mut reply[start..]);
        }
        reply
    }
}

fn option_reply(reply: ReplyCode, data: &[u8]) -> Vec<u8> {
    let head = nbd::OptionReply {
        magic: OPTION_REPLY_MAGIC.into(),
        option: OptionCode::Go.0.into(),
        reply: reply.0.into(),
        length: (data.len() as u32).into(),
    };
    [head.as_bytes(), data].concat()
}

/// Receives until `input` has this length, or more.
async fn fill(side: &Side, input: &mut Vec<u8>, length: usize) -> io::Result<()> {
    let mut scratch = [0; 4096];
    while input.len() < length {
        match side.try_receive(&mut [], &mut scratch) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => input.extend_from_slice(&scratch[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => side.readable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn send(side: &Side, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match side.try_send(&[Piece::Bytes(bytes)]) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => side.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

impl SimulatedStream for ClientSide {
    fn peer_addr(&self) -> SocketAddr {
        self.side.peer_addr()
    }

    fn local_addr(&self) -> SocketAddr {
        self.side.local_addr()
    }

    fn readable(&self) -> LocalFuture<io::Result<()>> {
        self.side.readable()
    }

    fn writable(&self) -> LocalFuture<io::Result<()>> {
        self.side.writable()
    }

    fn try_receive(&self, landing: &mut [u8], scratch: &mut [u8]) -> io::Result<usize> {
        self.side.try_receive(landing, scratch)
    }

    fn try_send(&self, pieces: &[Piece<'_>]) -> io::Result<usize> {
        self.side.try_send(pieces)
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.side.shutdown(how)
    }
}

/// Cuts the power of the server some times.
async fn fail(server: Rc<Server>, load: Rc<Load>, mut rng: Rng) {
    for _ in 0..rng.below(6) {
        pause(&mut rng, 20_000).await;
        if load.open.get() > 0 {
            load.count("requests during a power failure");
        }
        server.cut_power();
        load.count("power failures");
        pause(&mut rng, 3_000).await;
        server.start();
    }
}

async fn scenario(seed: u64) -> Counters {
    let mut rng = Rng::new(seed);
    let workers = 1 + rng.below(4);
    let traits = DiskTraits {
        block_count: workers * PART,
        is_volatile: rng.chance(80),
        errors_per_mille: 0,
        stops_per_mille: 0,
        ..DiskTraits::draw(&mut rng)
    };
    let network = NetworkTraits { flips_per_mille: 0, ..NetworkTraits::forecast(&mut rng) };
    let load: Rc<Load> = Rc::default();
    let mut flags = transmission::HAS_FLAGS;
    let mut draw = |percent, flag, what: [&str; 2]| {
        let has_flag = rng.chance(percent);
        load.count(what[usize::from(has_flag)]);
        flags |= if has_flag { flag } else { 0 };
    };
    draw(60, transmission::CAN_MULTI_CONN, ["one connection", "several connections"]);
    draw(60, transmission::SEND_FUA, ["servers without FUA", "servers with FUA"]);
    draw(70, transmission::SEND_WRITE_ZEROES, ["servers without WRITE_ZEROES", "servers with it"]);
    if traits.is_volatile {
        flags |= transmission::SEND_FLUSH;
    }
    let server = Rc::new(Server {
        disk: Disk::new(traits, &mut rng, None),
        flags,
        opened: RefCell::default(),
        connections: RefCell::default(),
        accepted: Cell::new(0),
    });
    server.start();
    let (connecting, draws) = (server.clone(), Rc::new(RefCell::new(Rng::new(rng.bits()))));
    simulation::set_connector(move |_| -> LocalFuture<io::Result<Stream>> {
        let (server, network) = (connecting.clone(), network.clone());
        let mut rng = Rng::new(draws.borrow_mut().bits());
        Box::pin(async move { Ok(Stream::simulated(server.connect(&mut rng, &network).await?)) })
    });
    let options = NbdOptions {
        connect_limit: Duration::from_secs(5 + rng.below(30)),
        reconnect_limit: LIMIT,
        // Shorter than some stalls.
        answer_limit: Duration::from_secs(2 + rng.below(20)),
        silence_limit: LIMIT,
    };
    let url = format!("nbd://{}/x", SocketAddr::from(SERVER)).parse().expect("a URL");
    let store = loop {
        match NbdStore::connect(&url, options).await {
            Ok(store) => break Rc::new(store) as Rc<dyn Store>,
            // The first connection is not repeated.
            Err(NbdError::Lost(_) | NbdError::TimedOut { .. }) => {}
            Err(error) => panic!("the first connection: {error}"),
        }
    };
    let first = server.accepted.get();
    let failing = fail(server.clone(), load.clone(), Rng::new(rng.bits()));
    let failing = tokio::task::spawn_local(failing);
    let workers: Vec<_> = (0..workers)
        .map(|worker| {
            let rng = Rng::new(rng.bits());
            tokio::task::spawn_local(work(load.clone(), store.clone(), worker * PART, rng))
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
    failing.abort();
    let _ = failing.await;
    if server.accepted.get() > first {
        load.count("later connections");
    }
    drop(store);
    let_tasks_end().await;
    load.tally.borrow().clone()
}

fn run(seed: u64) -> Result<Counters, String> {
    isolated(seed, "nbd_store::a_seed", move || on_stopped_time(seed, scenario(seed)))
}

fn all(seeds: RangeInclusive<u64>) {
    let mut tally = Counters::default();
    each(seeds, run).iter().for_each(|one| tally.add(one));
    assert_met(&tally, &MET);
    println!("{tally}");
}

#[test]
fn an_export_is_a_register_whatever_happens_to_its_connections() {
    all(1..=SEEDS);
}

/// Runs the seeds of `SARSEN_SEEDS`, or the first ones.
#[test]
#[ignore = "takes minutes"]
fn an_export_is_a_register_whatever_happens_to_its_connections_for_many_seeds() {
    all(many_seeds(MANY_SEEDS));
}

/// Runs the selected seed, or the first.
#[test]
fn a_seed_of_an_export_runs_the_same_again() {
    let seed = one_seed();
    let [first, second] = [(); 2].map(|()| run(seed).unwrap_or_else(|failure| panic!("{failure}")));
    assert_eq!(first, second, "seed {seed} ran differently the second time");
}
