//! A client of the project loses its four connections repeatedly under a mixed load.
//!
//! The server runs in this process, so that its store can record all writes: at level 2 each write must arrive exactly
//! once. A relay between client and server cuts random connections at random times.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use sarsen_block::{
    AllocationRun, Buffer, Characteristics, Data, Durability, Extent, Geometry, Payload, Reply,
    Rng, Store, StoreStatus,
};
use sarsen_initiator::{DigestOffer, IscsiStore, SessionOptions, Url};
use sarsen_node::Server;
use sarsen_node::config::{self, Config};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::client::{LIMIT, run};

const BLOCK: usize = 512;
const CONNECTIONS: usize = 4;
/// Number of workers; each uses its own part of the disk and has one I/O open.
const WORKERS: u64 = 24;
/// Number of blocks of a worker's part.
const PART: u64 = 4096;
/// Maximum number of blocks of an I/O: more than may be sent unsolicited.
const LONGEST: u64 = 1200;
/// Number of I/Os of each worker after the last cut.
const AFTERWARDS: u64 = 4;

/// Writes the beginning of a block: its LBA and its generation.
fn stamp(block: &mut [u8], lba: u64, generation: u64) {
    block[..8].copy_from_slice(&lba.to_be_bytes());
    block[8..16].copy_from_slice(&generation.to_be_bytes());
    block[16..].fill((lba ^ generation) as u8);
}

fn read_stamp(block: &[u8]) -> (u64, u64) {
    let number = |at: usize| {
        let bytes = block[at..at + 8].try_into().expect("eight bytes");
        u64::from_be_bytes(bytes)
    };
    (number(0), number(8))
}

/// Number of writes of each generation of a block.
type Writes = Arc<Mutex<HashMap<(u64, u64), u32>>>;

/// A store that records all writes.
struct Recorder {
    inner: Arc<dyn Store>,
    writes: Writes,
}

impl Store for Recorder {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.inner.characteristics()
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.inner.read(extent)
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let mut writes = self.writes.lock();
        for (lba, block) in (extent.lba.0..).zip(data.chunks(BLOCK)) {
            let (stamped, generation) = read_stamp(block);
            assert_eq!(lba, stamped, "a write went astray");
            *writes.entry((lba, generation)).or_default() += 1;
        }
        drop(writes);
        self.inner.write(extent, data, durability)
    }

    fn flush(&self) -> Reply<()> {
        self.inner.flush()
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.inner.unmap(extent)
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.inner.write_zeroes(extent, durability)
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.inner.allocation(extent)
    }
}

/// Forwards bytes until one side ends, which is an error here.
async fn pass_on(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        from.readable().await?;
        let count = match from.try_read(&mut buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// A relay of connections between a client and a server, until they are cut.
struct Relay {
    address: SocketAddr,
    lines: Rc<RefCell<Vec<JoinHandle<()>>>>,
    accepting: JoinHandle<()>,
}

impl Relay {
    async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let lines: Rc<RefCell<Vec<JoinHandle<()>>>> = Rc::default();
        let opened = lines.clone();
        let accepting = tokio::task::spawn_local(async move {
            while let Ok((near, _)) = listener.accept().await {
                // When either side ends, or the connection is cut, both sockets are closed.
                let line = tokio::task::spawn_local(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let _ = near.set_nodelay(true).and(far.set_nodelay(true));
                    let _ = tokio::try_join!(pass_on(&near, &far), pass_on(&far, &near));
                });
                opened.borrow_mut().push(line);
            }
        });
        Ok(Self { address, lines, accepting })
    }

    /// Returns the number of connections that were opened so far.
    fn opened(&self) -> usize {
        self.lines.borrow().len()
    }

    /// Cuts one of the open connections.
    fn cut(&self, rng: &mut Rng) {
        let lines = self.lines.borrow();
        let live: Vec<_> = lines.iter().filter(|line| !line.is_finished()).collect();
        if !live.is_empty() {
            live[rng.below(live.len() as u64) as usize].abort();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
        self.lines.borrow().iter().for_each(JoinHandle::abort);
    }
}

/// The time of the next cut, and the number of remaining cuts.
struct Cuts<'a> {
    relay: &'a Relay,
    rng: RefCell<Rng>,
    left: Cell<u32>,
    due: Cell<u64>,
}

impl Cuts<'_> {
    /// Records the end of an I/O.
    fn count(&self) {
        self.due.set(self.due.get().saturating_sub(1));
        if self.due.get() > 0 || self.left.get() == 0 {
            return;
        }
        let mut rng = self.rng.borrow_mut();
        self.relay.cut(&mut rng);
        self.left.set(self.left.get() - 1);
        self.due.set(10 + rng.below(150));
    }
}

/// A part of the disk with the data that was written to it.
struct Part {
    first: u64,
    generations: Vec<u64>,
}

impl Part {
    fn check(&self, at: u64, data: &[u8]) -> Result<()> {
        for (place, block) in (at..).zip(data.chunks(BLOCK)) {
            let (lba, generation) = (self.first + place, self.generations[place as usize]);
            let mut wanted = [0; BLOCK];
            if generation > 0 {
                stamp(&mut wanted, lba, generation);
            }
            ensure!(block == wanted, "block {lba} holds {:?}, not {generation}", read_stamp(block));
        }
        Ok(())
    }

    /// Reads and writes until a few I/Os after the last cut.
    async fn work(&mut self, store: &IscsiStore, cuts: &Cuts<'_>, mut rng: Rng) -> Result<()> {
        let mut afterwards = AFTERWARDS;
        while afterwards > 0 {
            let count = match rng.below(4) {
                0 => 1 + rng.below(LONGEST),
                _ => 1 + rng.below(64),
            };
            let at = rng.below(PART - count);
            let blocks = at as usize..(at + count) as usize;
            if rng.below(2) == 0 {
                let data = read(store, Extent::new(self.first + at, count)).await?;
                self.check(at, &data)?;
            } else {
                let mut data = Buffer::zeroed(count as usize * BLOCK);
                for (place, block) in blocks.clone().zip(data.chunks_mut(BLOCK)) {
                    stamp(block, self.first + place as u64, self.generations[place] + 1);
                }
                let extent = Extent::new(self.first + at, count);
                store.write(extent, data.into(), Durability::Volatile).wait().await?;
                self.generations[blocks].iter_mut().for_each(|generation| *generation += 1);
            }
            cuts.count();
            if cuts.left.get() == 0 {
                afterwards -= 1;
            }
        }
        Ok(())
    }
}

/// The result of a run.
struct Outcome {
    level: u32,
    /// Total number of connections that the client has opened.
    opened: usize,
    /// Number of writes of each generation of each block.
    writes: HashMap<(u64, u64), u32>,
    /// Expected number of entries.
    wanted: u64,
}

async fn read(store: &IscsiStore, extent: Extent) -> Result<Vec<u8>> {
    let data = store.read(extent).wait().await?;
    let mut bytes = vec![0; data.len()];
    data.copy_out(0, &mut bytes);
    Ok(bytes)
}

/// Runs the load on a unit while the connections of its session are cut.
async fn load(store: &IscsiStore, relay: &Relay, seed: u64, cuts: u32) -> Result<Vec<Part>> {
    let mut rng = Rng::new(seed);
    let mut parts: Vec<Part> = (0..WORKERS)
        .map(|worker| Part { first: worker * PART, generations: vec![0; PART as usize] })
        .collect();
    let due = Cell::new(1 + rng.below(100));
    let cuts = Cuts { relay, rng: RefCell::new(rng.clone()), left: Cell::new(cuts), due };
    let work = parts.iter_mut().map(|part| {
        let rng = Rng::new(rng.bits());
        part.work(store, &cuts, rng)
    });
    try_join_all(work).await?;
    Ok(parts)
}

/// Starts a server, a relay, and a client whose connections are cut repeatedly.
fn prove(options: SessionOptions, seed: u64, cuts: u32) -> Result<Outcome> {
    println!("seed {seed}");
    let writes = Writes::default();
    let recorded = writes.clone();
    let mut config = Config {
        cores: NonZeroUsize::new(2),
        listen: vec![config::parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
        ..Config::default()
    };
    config.volumes.push(config::parse_volume("disk=ram:64MiB")?);
    let config = config.finish()?;
    run(async {
        let server = Server::start_layered(config, move |_, inner| {
            Arc::new(Recorder { inner, writes: recorded.clone() })
        })?;
        let relay = Relay::start(server.portals()[0].address()).await?;
        let mut url: Url = server.exports()[0].urls[0].parse()?;
        url.portals = vec![relay.address.to_string().parse()?];
        let store = IscsiStore::connect(&url, &options).await?;
        let level = store.unit().session().parameters().error_recovery_level;
        assert_eq!(relay.opened(), CONNECTIONS, "the target grants them");

        let parts =
            load(&store, &relay, seed, cuts).await.with_context(|| format!("seed {seed}"))?;
        for part in &parts {
            for at in (0..PART).step_by(512) {
                part.check(at, &read(&store, Extent::new(part.first + at, 512)).await?)?;
            }
        }
        store.logout().await?;
        let opened = relay.opened();
        ensure!(server.shutdown(LIMIT).await, "the server did not end in order");
        let writes = std::mem::take(&mut *writes.lock());
        let wanted = parts.iter().flat_map(|part| &part.generations).sum();
        Ok(Outcome { level, opened, writes, wanted })
    })
}

fn options() -> SessionOptions {
    SessionOptions { connections: CONNECTIONS as u32, ..SessionOptions::default() }
}

/// Returns a random seed, which the proof prints.
fn seed() -> u64 {
    let mut bytes = [0; 8];
    sarsen_io::random::fill(&mut bytes);
    u64::from_be_bytes(bytes)
}

#[test]
fn rfc7143_7_2_2_at_level_2_cut_connections_are_invisible() -> Result<()> {
    const CUTS: u32 = 24;
    for digest in [DigestOffer::None, DigestOffer::Require] {
        let options = SessionOptions { error_recovery_level: 2, data_digest: digest, ..options() };
        // The session must not log in again, because this would end the open commands.
        assert!(options.reconnect_limit.is_none());
        let outcome = prove(options, seed(), CUTS)?;
        assert_eq!(outcome.level, 2, "the target grants it");
        ensure!(outcome.opened > CONNECTIONS, "nothing was replaced");
        let repeated = outcome.writes.values().filter(|times| **times != 1).count();
        assert_eq!(repeated, 0, "blocks were written more than once");
        assert_eq!(outcome.writes.len() as u64, outcome.wanted, "as many as were acknowledged");
    }
    Ok(())
}

#[test]
fn rfc7143_6_3_5_at_level_0_the_session_is_reinstated() -> Result<()> {
    const CUTS: u32 = 8;
    let options = SessionOptions {
        reconnect_limit: Some(3 * LIMIT),
        // The relay is the only path.
        discovers_portals: false,
        ..options()
    };
    let outcome = prove(options, seed(), CUTS)?;
    assert_eq!(outcome.level, 0);
    ensure!(outcome.opened >= 2 * CONNECTIONS, "no session took the first one's place");
    assert_eq!(outcome.writes.len() as u64, outcome.wanted, "as many as were acknowledged");
    Ok(())
}
