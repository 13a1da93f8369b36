//! Several paths to one unit: the throughput over them, and the interruption of a client's I/O when one of them fails.

mod kernel;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sarsen_block::{BlockError, Buffer, Durability, Extent, Rng, Store as _};
use sarsen_initiator::{
    Command, IscsiStore, PathStatus, Portal, RemoteDisk as _, SessionOptions, TransferRequest, Url,
    discover,
};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::{threads, time};
use tokio::sync::oneshot;

use crate::load::Endpoint;
use crate::network::{LinkProfile, Network};
use crate::record::{Bucket, Measures, Outcome, figure};
use crate::target_under_test::{Running, sarsen};
pub use kernel::{Timers, failover as kernel_failover};

/// Requests in flight.
const DEPTH: usize = 8;
/// Blocks of a request, of 512 bytes.
const BLOCKS: u64 = 8;
/// Bytes of the volume.
const VOLUME: u64 = 64 << 20;
/// How long commands wait for a path. An error of a command is a failure of the measurement.
const LIMIT: Duration = Duration::from_secs(30);
/// The load before a fault, and up to as much again.
const BEFORE_MS: u64 = 100;
/// The requests that begin within this time after a fault count: at its moment none may be open on the path.
const AFTER: Duration = Duration::from_millis(100);
/// How long a killed target is not running.
const DOWN: Duration = Duration::from_millis(500);
/// How long all links are cut.
const SILENCE: Duration = Duration::from_secs(3);
/// ASYMMETRIC ACCESS STATE.
const OPTIMIZED: u8 = 0;
const STANDBY: u8 = 2;
/// Time between two looks at the paths.
const POLL: Duration = Duration::from_millis(5);

/// The median of the interruptions, and the longest.
pub const FAILOVER_MS: &str = "failover_ms";
/// See above.
pub const LONGEST_FAILOVER_MS: &str = "longest_failover_ms";
/// The rate of a link whose throughput is measured.
pub const LINK_RATE_MBIT: f64 = 100.0;
/// Requests in flight, and blocks of each, when the throughput is measured.
const READ_DEPTH: u64 = 32;
const READ_BLOCKS: u64 = 128;
/// The MTU of the links.
const MTU: u32 = 1500;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The cable of one link is cut: nothing arrives, and neither side is notified.
    Cut,
    /// The target is killed, and started again at the same addresses.
    Killed,
    /// The cables of all links are cut, and joined again later.
    Silent,
    /// The unit is in standby on the portal group of one path; the other one is active.
    Standby,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 4] = [Self::Cut, Self::Killed, Self::Silent, Self::Standby];

    /// Returns the number of links, each of them a path.
    const fn links(self) -> usize {
        match self {
            Self::Cut | Self::Silent => 4,
            Self::Killed => 2,
            // Its paths are the two portal groups.
            Self::Standby => 1,
        }
    }

    /// Returns the approximate time of a round.
    pub const fn round_time(self) -> Duration {
        match self {
            Self::Silent => SILENCE.saturating_add(Duration::from_secs(2)),
            Self::Cut | Self::Killed | Self::Standby => Duration::from_secs(1),
        }
    }

    /// Returns the name of its cell.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cut => "one of four links cut",
            Self::Killed => "target killed and started again",
            Self::Silent => "all four links cut and joined again",
            Self::Standby => "one of two portal groups in standby",
        }
    }
}

/// A load on a store, one request at a time for each worker.
struct Load {
    store: Arc<IscsiStore>,
    /// When the open request of each worker began.
    begun: Vec<Cell<Instant>>,
    /// The longest request.
    longest: Cell<Duration>,
    ends: Cell<bool>,
    failure: RefCell<Option<BlockError>>,
}

impl Load {
    fn new(store: Arc<IscsiStore>) -> Rc<Self> {
        Rc::new(Self {
            store,
            begun: vec![Cell::new(time::now()); DEPTH],
            longest: Cell::default(),
            ends: Cell::new(false),
            failure: RefCell::default(),
        })
    }

    /// Reads and writes until the load ends.
    async fn work(self: Rc<Self>, worker: usize, mut rng: Rng) {
        while !self.ends.get() {
            let places = VOLUME / 512 / BLOCKS;
            let extent = Extent::new(rng.below(places) * BLOCKS, BLOCKS);
            self.begun[worker].set(time::now());
            let result = if rng.chance(50) {
                self.store.read(extent).wait().await.map(drop)
            } else {
                let data = Buffer::zeroed(BLOCKS as usize * 512);
                self.store.write(extent, data.into(), Durability::Volatile).wait().await
            };
            if let Err(error) = result {
                self.failure.borrow_mut().get_or_insert(error);
                return;
            }
            let took = time::now() - self.begun[worker].get();
            self.longest.set(self.longest.get().max(took));
        }
    }

    /// Waits until all requests that were open at this time have ended.
    async fn pass(&self, at: Instant) -> Result<(), String> {
        while self.begun.iter().any(|begun| begun.get() <= at) {
            self.run(POLL).await?;
        }
        Ok(())
    }

    /// Waits for a time, or until a request has failed.
    async fn run(&self, duration: Duration) -> Result<(), String> {
        time::sleep_until(time::now() + duration).await;
        match &*self.failure.borrow() {
            Some(error) => Err(format!("a request failed: {error}")),
            None => Ok(()),
        }
    }

    /// Waits until all paths are active and, if they are to be, logged in through their own portals.
    async fn settle(&self, count: usize) -> Result<(), String> {
        let deadline = time::now() + LIMIT;
        loop {
            let paths = self.store.paths();
            let is_settled =
                |path: &&PathStatus| path.is_active && path.entry.as_ref() == Some(&path.portal);
            if paths.iter().filter(is_settled).count() >= count {
                return Ok(());
            }
            if time::now() > deadline {
                return Err(format!("the paths did not return: {paths:?}"));
            }
            self.run(POLL).await?;
        }
    }
}

/// A target with a unit, reached over several links.
struct Target<'a> {
    network: &'a Network,
    program: &'a Path,
    arguments: Vec<String>,
    running: Option<Running>,
}

impl<'a> Target<'a> {
    /// Starts a target, in a second portal group, too, if `has_groups`.
    fn start(network: &'a Network, program: &'a Path, has_groups: bool) -> Result<Self, String> {
        let mut arguments = vec!["--volume".into(), format!("disk=ram:,size={VOLUME}")];
        if has_groups {
            arguments.extend(["--listen".into(), format!("{}:0,2", network.listen_address())]);
        }
        let mut target = Self { network, program, arguments, running: None };
        target.restart()?;
        if !has_groups {
            // It is started again at the same port.
            let port = target.url(0)?.portal().port;
            let address = format!("{}:{port}", network.listen_address());
            target.arguments.extend(["--listen".into(), address]);
        }
        Ok(target)
    }

    fn restart(&mut self) -> Result<(), String> {
        let prefix = self.network.target_command_prefix();
        let listen = self.network.listen_address();
        let running = sarsen::serve(self.program, prefix, listen, &self.arguments);
        self.running = Some(running.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Returns the URL of the unit over a link.
    fn url(&self, link: usize) -> Result<Url, String> {
        let running = self.running.as_ref().ok_or("the target does not run")?;
        let endpoint = running.endpoint("disk", &self.network.links()[link]);
        match endpoint.map_err(|error| error.to_string())? {
            Endpoint::Iscsi(url) => Ok(url),
            other => Err(format!("the unit is at {other:?}")),
        }
    }
}

/// Measures the interruption of requests by a fault, `rounds` times. It needs no target under test: it starts a server of this
/// project, and links of its own. Blocks the thread.
pub fn failover(fault: Fault, rounds: u32, seed: u64) -> Outcome {
    let links: Vec<_> =
        (0..fault.links()).map(|link| LinkProfile::plain(&format!("path {link}"), MTU)).collect();
    let network = Network::build(&links);
    if !network.is_apart() {
        return Outcome::NotMeasured(network.notes().join("; "));
    }
    let program = match sarsen::own_program() {
        Ok(program) => program,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    match interruptions(&network, &program, fault, rounds, seed) {
        Ok(gaps) => measures(gaps),
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Returns the figures of interruptions, and their distribution.
fn measures(mut gaps: Vec<Duration>) -> Outcome {
    gaps.sort_unstable();
    let us = |gap: &Duration| gap.as_secs_f64() * 1e6;
    let mut measures = Measures::default();
    if let (Some(median), Some(longest)) = (gaps.get(gaps.len() / 2), gaps.last()) {
        measures.figures.insert(FAILOVER_MS.into(), us(median) / 1e3);
        measures.figures.insert(LONGEST_FAILOVER_MS.into(), us(longest) / 1e3);
    }
    let bucket = |gap| Bucket { upper_us: us(gap), count: 1 };
    measures.latencies = gaps.iter().map(bucket).collect();
    Outcome::Measured(measures)
}

/// The use of several paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathUse {
    /// All paths carry requests.
    ActiveActive,
    /// The first path carries requests, and the others are in standby.
    ActivePassive,
}

/// Measures the sequential reads over this number of links, each with a limited rate; a passive path is the portal of a second
/// portal group, so there are two links then. Blocks the thread.
pub fn throughput(links: usize, path_use: PathUse, duration: Duration) -> Outcome {
    let profile = |link| LinkProfile {
        rate_mbit: Some(LINK_RATE_MBIT),
        ..LinkProfile::plain(&format!("path {link}"), MTU)
    };
    let links: Vec<_> = (0..links).map(profile).collect();
    let network = Network::build(&links);
    if let Some(Err(reason)) = network.links().iter().map(|link| &link.address).find(|a| a.is_err())
    {
        return Outcome::NotMeasured(reason.clone());
    }
    let read = || {
        let program = sarsen::own_program().map_err(|error| error.to_string())?;
        let is_passive = path_use == PathUse::ActivePassive;
        let target = Target::start(&network, &program, is_passive)?;
        network.on_initiator_side(|| {
            let url = if is_passive {
                on_this_thread(with_group_of_each_link(&target))?
            } else {
                over_all_links(&target)?
            };
            with_store(&url, |store| {
                on_this_thread(async {
                    await_paths(&store, links.len()).await?;
                    if is_passive {
                        // The path shows its state when it gets a command.
                        set_access_state(&store, 2, STANDBY).await?;
                    }
                    read_all(&store, duration).await
                })
            })
        })
    };
    match read() {
        Ok(mb_per_s) => {
            let mut measures = Measures::default();
            measures.figures.insert(figure::MB_PER_S.into(), mb_per_s);
            Outcome::Measured(measures)
        }
        Err(reason) => Outcome::Failed(reason),
    }
}

/// Waits until this number of paths is active.
async fn await_paths(store: &IscsiStore, count: usize) -> Result<(), String> {
    let deadline = time::now() + LIMIT;
    while store.paths().iter().filter(|path| path.is_active).count() < count {
        if time::now() > deadline {
            return Err(format!("not all paths are active: {:?}", store.paths()));
        }
        time::sleep_until(time::now() + POLL).await;
    }
    Ok(())
}

/// Reads for a time with many requests open, and returns millions of bytes a second.
async fn read_all(store: &IscsiStore, duration: Duration) -> Result<f64, String> {
    let begun = time::now();
    let end = begun + duration;
    let bytes = Cell::new(0);
    let read = async |worker: u64| {
        let mut lba = worker * READ_BLOCKS;
        while time::now() < end {
            let data = store.read(Extent::new(lba, READ_BLOCKS)).wait().await;
            bytes.set(bytes.get() + data.map_err(|error| error.to_string())?.len());
            lba = (lba + READ_DEPTH * READ_BLOCKS) % (VOLUME / 512);
        }
        Ok(())
    };
    let ends: Result<Vec<()>, String> =
        join_all((0..READ_DEPTH).map(read)).await.into_iter().collect();
    ends?;
    Ok(bytes.get() as f64 / 1e6 / (time::now() - begun).as_secs_f64())
}

/// Returns the longest request of each round, from its beginning; if the target was killed or silent, from the time at which it is
/// back.
fn interruptions(
    network: &Network,
    program: &Path,
    fault: Fault,
    rounds: u32,
    seed: u64,
) -> Result<Vec<Duration>, String> {
    let mut target = Target::start(network, program, fault == Fault::Standby)?;
    network.on_initiator_side(|| {
        let url = match fault {
            Fault::Standby => on_this_thread(with_groups(target.url(0)?))?,
            Fault::Cut | Fault::Killed | Fault::Silent => over_all_links(&target)?,
        };
        with_store(&url, |store| {
            on_this_thread(rounds_of(
                &mut target,
                store,
                url.portals.len(),
                fault,
                rounds,
                Rng::new(seed),
            ))
        })
    })
}

fn on_this_thread<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    block_on(FileEngine::Pool, work).map_err(|error| error.to_string())?
}

/// Runs `work` with a store that another thread drives: it goes on while `work` waits for other programs.
fn with_store<T: Send>(
    url: &Url,
    work: impl FnOnce(Arc<IscsiStore>) -> Result<T, String>,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    let (end, ended) = oneshot::channel::<()>();
    let drive = || {
        on_this_thread(async {
            let options =
                SessionOptions { reconnect_limit: Some(LIMIT), ..SessionOptions::default() };
            let store = IscsiStore::connect(url, &options).await;
            let store = Arc::new(store.map_err(|error| error.to_string())?);
            let _ = sender.send(store.clone());
            drop(sender);
            let _ = ended.await;
            store.logout().await.map_err(|error| error.to_string())
        })
    };
    let control = || {
        let result = receiver.recv().map_err(|_| "no path".to_owned()).and_then(work);
        drop(end);
        result
    };
    let (driven, result) =
        threads::beside("initiator", drive, control).map_err(|error| error.to_string())?;
    driven.and(result)
}

fn over_all_links(target: &Target<'_>) -> Result<Url, String> {
    let urls: Result<Vec<_>, _> =
        (0..target.network.links().len()).map(|link| target.url(link)).collect();
    let urls = urls?;
    let portals = urls.iter().map(|url| url.portal().clone()).collect();
    Ok(Url { portals, ..urls[0].clone() })
}

/// Returns the URL with a portal of each portal group, in the order of the groups.
async fn with_groups(url: Url) -> Result<Url, String> {
    let found = discover(url.portal(), &SessionOptions::default()).await;
    let found = found.map_err(|error| error.to_string())?;
    let addresses = found.into_iter().filter(|target| target.name == url.target);
    let mut portals: Vec<(String, Portal)> = addresses
        .flat_map(|target| target.addresses)
        .filter_map(|address| {
            let (portal, group) = address.split_once(',')?;
            Some((group.to_owned(), portal.parse().ok()?))
        })
        .collect();
    portals.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(Url { portals: portals.into_iter().map(|(_, portal)| portal).collect(), ..url })
}

/// Returns the URL with a portal of each portal group, each over a link of its own.
async fn with_group_of_each_link(target: &Target<'_>) -> Result<Url, String> {
    let mut url = with_groups(target.url(0)?).await?;
    for (link, portal) in url.portals.iter_mut().enumerate() {
        portal.host = target.url(link)?.portal().host.clone();
    }
    Ok(url)
}

async fn rounds_of(
    target: &mut Target<'_>,
    store: Arc<IscsiStore>,
    paths: usize,
    fault: Fault,
    rounds: u32,
    mut rng: Rng,
) -> Result<Vec<Duration>, String> {
    let load = Load::new(store);
    let workers: Vec<_> = (0..DEPTH)
        .map(|worker| tokio::task::spawn_local(load.clone().work(worker, Rng::new(rng.bits()))))
        .collect();
    let mut gaps = Vec::new();
    for round in 0..rounds {
        load.settle(paths).await?;
        load.run(Duration::from_millis(BEFORE_MS + rng.below(BEFORE_MS))).await?;
        load.longest.set(Duration::ZERO);
        gaps.push(match fault {
            Fault::Cut => {
                let link = round as usize % paths;
                target.network.set_link(link, false)?;
                load.run(AFTER).await?;
                load.pass(time::now()).await?;
                let longest = load.longest.get();
                target.network.set_link(link, true)?;
                longest
            }
            Fault::Killed => {
                target.running = None;
                load.run(DOWN).await?;
                target.restart()?;
                let since = time::now();
                load.pass(since).await?;
                time::now() - since
            }
            Fault::Silent => {
                let all =
                    |is_up| (0..paths).try_for_each(|link| target.network.set_link(link, is_up));
                all(false)?;
                load.run(SILENCE).await?;
                all(true)?;
                let since = time::now();
                load.pass(since).await?;
                time::now() - since
            }
            Fault::Standby => {
                let group = 1 + (round % 2) as u8;
                set_access_state(&load.store, group, STANDBY).await?;
                load.run(AFTER).await?;
                load.pass(time::now()).await?;
                let longest = load.longest.get();
                set_access_state(&load.store, group, OPTIMIZED).await?;
                longest
            }
        });
    }
    load.ends.set(true);
    join_all(workers).await;
    load.run(Duration::ZERO).await?;
    Ok(gaps)
}

/// SET TARGET PORT GROUPS (SPC-4 6.45).
async fn set_access_state(store: &IscsiStore, group: u8, state: u8) -> Result<(), String> {
    let list = Buffer::copy_of(&[0, 0, 0, 0, state, 0, 0, group]);
    let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
    let command = Command::new(&cdb, TransferRequest::Write(list));
    store.unit().command(command).await.map(drop).map_err(|error| error.to_string())
}
