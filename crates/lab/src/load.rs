//! A load generator: keeps a number of I/Os open on a number of sessions and measures.
//!
//! One thread drives the protocol machines straight on sockets: it receives what there is, takes
//! all of it, issues the replacements, and sends them in one call. So it costs far less for each
//! I/O than a target does, and is not what limits. Data that is read is counted and thrown away;
//! data that is written comes from one buffer for all.

mod client;
mod process;

use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::event::epoll;
use rustix::fs::Timespec;
use rustix::io::Errno;
use sarsen_initiator::Url;
use sarsen_proto::iscsi::initiator::ConnectionError;
use serde::Serialize;

use crate::access::Access;
use client::Client;

/// Received bytes pass through here.
const SCRATCH_LENGTH: usize = 512 * 1024;
/// Sockets of which one wait tells.
const READY_LIMIT: usize = 64;
/// How long a wait may last before the clock is looked at again.
const WAIT_LIMIT: Duration = Duration::from_millis(50);
/// Latencies up to a minute are told apart, to three digits.
const LONGEST_LATENCY_NS: u64 = 60_000_000_000;
/// How long sessions may take to end what is open and log out.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// A load and where it goes.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The logical unit.
    pub url: Url,
    /// What each session does.
    pub access: Access,
    /// Sessions, each with one connection.
    pub sessions: u32,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub duration: Duration,
    /// Ask for CRC32C header digests, or fail.
    pub header_digest: bool,
    /// Ask for CRC32C data digests, or fail.
    pub data_digest: bool,
    /// InitialR2T.
    pub initial_r2t: bool,
    /// ImmediateData.
    pub immediate_data: bool,
    /// MaxRecvDataSegmentLength, in bytes.
    pub max_recv_data_segment_length: u32,
    /// MaxBurstLength, in bytes.
    pub max_burst_length: u32,
    /// FirstBurstLength, in bytes.
    pub first_burst_length: u32,
    /// The target's processes, if they run here: their CPU time and memory are measured.
    pub target_pids: Vec<u32>,
    /// The same seed makes the same sequence of I/Os in each session.
    pub seed: u64,
    /// With no answer for so long, the target is given up.
    pub stall_limit: Duration,
}

impl LoadOptions {
    /// One session for three seconds, with offers that give a target its best.
    pub fn new(url: Url, access: Access) -> Self {
        Self {
            url,
            access,
            sessions: 1,
            warm_up: Duration::from_millis(300),
            duration: Duration::from_secs(3),
            header_digest: false,
            data_digest: false,
            initial_r2t: false,
            immediate_data: true,
            max_recv_data_segment_length: 1024 * 1024,
            max_burst_length: 16 * 1024 * 1024 - 512,
            first_burst_length: 256 * 1024,
            target_pids: Vec::new(),
            seed: 1,
            stall_limit: Duration::from_secs(10),
        }
    }
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct LoadResult {
    /// I/Os a second.
    pub iops: f64,
    /// Millions of bytes a second.
    pub mb_per_s: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile of the latency.
    pub p99_us: f64,
    /// 99.9th percentile of the latency.
    pub p999_us: f64,
    /// CPU time of the target's processes; absent if none was named.
    pub target_cpu_us_per_io: Option<f64>,
    /// CPU time of this thread.
    pub client_cpu_us_per_io: f64,
    /// Resident memory of the target's processes at the end; absent if none was named.
    pub target_rss_kib: Option<u64>,
    /// I/Os that ended with another status than GOOD or moved too little, from the first one on.
    pub errors: u64,
    /// What the first error was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// I/Os that ended within the measurement.
    pub ios: u64,
    /// Length of the measurement.
    pub seconds: f64,
}

/// Why a load could not be put on.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The options make no load.
    #[error("{0}")]
    Options(&'static str),
    /// A call to the system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: &'static str,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The login failed or the target broke the protocol.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The target closed a connection, or asked for it to be closed.
    #[error("the target ended a connection")]
    Closed,
    /// The target rejected a PDU.
    #[error("the target rejected a PDU: {0}")]
    Rejected(String),
    /// No answer came.
    #[error("no answer for {0:?}")]
    Stalled(Duration),
    /// A command before the load failed.
    #[error("{command} failed with status {status:02X}h")]
    Preparation {
        /// The command.
        command: &'static str,
        /// SCSI status.
        status: u8,
    },
    /// The unit is smaller than one I/O or its blocks do not divide it.
    #[error("I/Os of {block_bytes} bytes do not fit a unit of {blocks} blocks of {block_length}")]
    Unit {
        /// Bytes of an I/O.
        block_bytes: u32,
        /// Logical blocks.
        blocks: u64,
        /// Bytes of a block.
        block_length: u32,
    },
    /// A process that is to be measured cannot be.
    #[error("process {pid} cannot be measured: {source}")]
    Process {
        /// Which.
        pid: u32,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(Errno) -> LoadError {
    move |source| LoadError::System { what, source: source.into() }
}

/// What all sessions count into.
struct Tally {
    measuring: bool,
    /// Open I/Os end, none is begun.
    leaving: bool,
    latencies: Histogram<u64>,
    ios: u64,
    last_answer: Instant,
    errors: u64,
    first_error: Option<String>,
}

impl Tally {
    fn note_io(&mut self, latency: Duration) {
        if self.measuring {
            self.ios += 1;
            self.latencies.saturating_record(latency.as_nanos() as u64);
        }
    }

    fn note_error(&mut self, describe: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(describe);
    }
}

/// Puts the load on and measures it. Takes the thread until it is done.
pub fn run(options: &LoadOptions) -> Result<LoadResult, LoadError> {
    let mut clients = log_in(options)?;
    let latencies = Histogram::new_with_bounds(1, LONGEST_LATENCY_NS, 3)
        .map_err(|_| LoadError::Options("the bounds of the histogram are wrong"))?;
    let start = sarsen_io::time::now();
    let mut tally = Tally {
        measuring: false,
        leaving: false,
        latencies,
        ios: 0,
        last_answer: start,
        errors: 0,
        first_error: None,
    };
    let mut engine = Engine::new(&mut clients)?;
    engine.serve_all(&mut clients, &mut tally)?;
    engine.run_until(start + options.warm_up, &mut clients, &mut tally, options)?;

    let target_before = process::cpu_ns(&options.target_pids)?;
    let client_before = process::own_cpu_ns();
    let begin = sarsen_io::time::now();
    tally.measuring = true;
    engine.run_until(begin + options.duration, &mut clients, &mut tally, options)?;
    tally.measuring = false;
    let seconds = sarsen_io::time::now().duration_since(begin).as_secs_f64();
    let client_ns = process::own_cpu_ns() - client_before;
    let target_ns = process::cpu_ns(&options.target_pids)?.saturating_sub(target_before);
    let target_rss_kib = process::resident_kib(&options.target_pids)?;

    tally.leaving = true;
    leave(&mut engine, &mut clients, &mut tally);
    let per_io = |ns: u64| ns as f64 / 1e3 / tally.ios.max(1) as f64;
    let percentile = |q: f64| tally.latencies.value_at_quantile(q) as f64 / 1e3;
    let known = !options.target_pids.is_empty();
    Ok(LoadResult {
        iops: tally.ios as f64 / seconds,
        mb_per_s: tally.ios as f64 * f64::from(options.access.block_bytes) / 1e6 / seconds,
        p50_us: percentile(0.5),
        p99_us: percentile(0.99),
        p999_us: percentile(0.999),
        target_cpu_us_per_io: known.then(|| per_io(target_ns)),
        client_cpu_us_per_io: per_io(client_ns),
        target_rss_kib: known.then_some(target_rss_kib),
        errors: tally.errors,
        first_error: tally.first_error,
        ios: tally.ios,
        seconds,
    })
}

fn log_in(options: &LoadOptions) -> Result<Vec<Client>, LoadError> {
    let access = &options.access;
    if access.block_bytes == 0 || access.queue_depth == 0 || options.sessions == 0 {
        return Err(LoadError::Options("block size, queue depth and sessions must not be 0"));
    }
    if access.read_percent > 100 || access.random_percent > 100 {
        return Err(LoadError::Options("percentages end at 100"));
    }
    if options.url.user.is_some() {
        return Err(LoadError::Options("authentication is not supported: leave the user out"));
    }
    let portal = &options.url.portal;
    let address = (portal.host.as_str(), portal.port)
        .to_socket_addrs()
        .map_err(|source| LoadError::System { what: "find the host", source })?
        .next()
        .ok_or(LoadError::Options("the host has no address"))?;
    let mut scratch = vec![0; SCRATCH_LENGTH];
    let mut clients: Vec<Client> = Vec::new();
    for index in 0..options.sessions {
        let pattern = clients.first().map(Client::pattern);
        clients.push(Client::log_in(options, address, index, pattern, &mut scratch)?);
    }
    Ok(clients)
}

/// Ends what is open and logs out. What goes wrong now changes no figure.
fn leave(engine: &mut Engine, clients: &mut [Client], tally: &mut Tally) {
    let deadline = sarsen_io::time::now() + LEAVE_LIMIT;
    clients.iter_mut().for_each(Client::stop);
    while clients.iter().any(|client| !client.has_left()) && sarsen_io::time::now() < deadline {
        if engine.serve_all(clients, tally).is_err() || engine.turn(clients, tally).is_err() {
            return;
        }
    }
}

/// Waits for the sockets. A single one is waited for in the receive call itself.
struct Engine {
    epoll: rustix::fd::OwnedFd,
    events: Vec<epoll::Event>,
    scratch: Vec<u8>,
}

impl Engine {
    fn new(clients: &mut [Client]) -> Result<Self, LoadError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make an epoll"))?;
        for (client, index) in clients.iter_mut().zip(0..) {
            epoll::add(
                &epoll,
                client.socket(),
                epoll::EventData::new_u64(index),
                epoll::EventFlags::IN,
            )
            .map_err(system("watch a socket"))?;
        }
        let none =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Ok(Self { epoll, events: vec![none; READY_LIMIT], scratch: vec![0; SCRATCH_LENGTH] })
    }

    fn run_until(
        &mut self,
        end: Instant,
        clients: &mut [Client],
        tally: &mut Tally,
        options: &LoadOptions,
    ) -> Result<(), LoadError> {
        loop {
            let now = self.turn(clients, tally)?;
            if now >= end {
                return Ok(());
            }
            if now.duration_since(tally.last_answer) > options.stall_limit {
                return Err(LoadError::Stalled(options.stall_limit));
            }
        }
    }

    /// Issues and sends on every session.
    fn serve_all(&mut self, clients: &mut [Client], tally: &mut Tally) -> Result<(), LoadError> {
        for (client, index) in clients.iter_mut().zip(0..) {
            client.issue_and_send(tally)?;
            self.watch(client, index)?;
        }
        Ok(())
    }

    /// One wait and what came of it. Gives the time after it.
    fn turn(&mut self, clients: &mut [Client], tally: &mut Tally) -> Result<Instant, LoadError> {
        if let [client] = clients
            && !client.is_blocked()
        {
            let now = client.receive(&mut self.scratch, true, tally)?;
            client.issue_and_send(tally)?;
            self.watch(client, 0)?;
            return Ok(now);
        }
        let timeout = Timespec { tv_sec: 0, tv_nsec: WAIT_LIMIT.subsec_nanos().into() };
        let ready = match epoll::wait(&self.epoll, &mut self.events[..], Some(&timeout)) {
            Ok(ready) => ready,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(system("wait for sockets")(error)),
        };
        for place in 0..ready {
            let event = self.events[place];
            let index = event.data.u64();
            let client = &mut clients[index as usize];
            let flags = event.flags;
            if flags.intersects(!epoll::EventFlags::OUT) {
                client.receive(&mut self.scratch, false, tally)?;
            }
            client.issue_and_send(tally)?;
            self.watch(client, index)?;
        }
        Ok(sarsen_io::time::now())
    }

    /// Waits for room to send exactly while a socket has none.
    fn watch(&self, client: &mut Client, index: u64) -> Result<(), LoadError> {
        if client.is_blocked() == client.watched_for_room {
            return Ok(());
        }
        client.watched_for_room = client.is_blocked();
        let flags = if client.watched_for_room {
            epoll::EventFlags::IN | epoll::EventFlags::OUT
        } else {
            epoll::EventFlags::IN
        };
        epoll::modify(&self.epoll, client.socket(), epoll::EventData::new_u64(index), flags)
            .map_err(system("watch a socket"))
    }
}
