//! The server is killed during writes, repeatedly. Afterwards all data with a durable acknowledgement is present, in
//! every cache mode and with both I/O engines.
//!
//! Several writers fill slots of 4 KiB; each word contains the slot and the generation. A ledger records the issued and
//! the acknowledged generation of each slot. After a restart every word of a slot is within this range. `PROOF_SEED`
//! repeats a run, and `PROOF_KILLS` makes it longer.

use std::cell::{Cell, RefCell};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::try_join_all;
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{SessionError, Unit};
use sarsen_proof::{Backing, Serving, Volume, pool_in, pool_on};

use crate::client;

/// Default number of kills in one test; `PROOF_KILLS` overrides it.
const KILLS: u64 = 50;
/// Maximum number of writes that a round acknowledges before its kill.
const ACKNOWLEDGEMENTS_MAX: u64 = 120;
const WRITERS: usize = 8;
const SLOTS_PER_WRITER: usize = 24;
const SLOTS: usize = WRITERS * SLOTS_PER_WRITER;
const SLOT_LENGTH: usize = 4096;
const SLOT_BLOCKS: usize = SLOT_LENGTH / 512;
const WORD_LENGTH: usize = 16;
/// Maximum number of writes that one flush makes durable.
const BATCH_MAX: u64 = 4;

/// The issued and the acknowledged generations of the disk.
struct Ledger {
    acknowledged: Vec<u64>,
    issued: Vec<u64>,
}

impl Ledger {
    fn new() -> Self {
        Self { acknowledged: vec![0; SLOTS], issued: vec![0; SLOTS] }
    }

    /// Returns the number of issued writes without an acknowledgement; a kill ends them too.
    fn open(&self) -> u64 {
        self.issued.iter().zip(&self.acknowledged).map(|(issued, known)| issued - known).sum()
    }

    fn check(&self, slot: usize, bytes: &[u8]) -> Result<()> {
        let allowed = self.acknowledged[slot]..=self.issued[slot];
        for (index, word) in bytes.chunks_exact(WORD_LENGTH).enumerate() {
            let generation = generation(slot, word).with_context(|| {
                format!("slot {slot}, word {index} was never written: {word:x?}")
            })?;
            ensure!(
                allowed.contains(&generation),
                "slot {slot}, word {index} is of generation {generation}, not of {allowed:?}"
            );
        }
        Ok(())
    }
}

fn fill(slot: usize, generation: u64) -> Vec<u8> {
    let word = [(slot as u64 + 1).to_be_bytes(), generation.to_be_bytes()].concat();
    word.repeat(SLOT_LENGTH / WORD_LENGTH)
}

/// Returns the generation of a word; 0 means that the word was not written yet.
fn generation(slot: usize, word: &[u8]) -> Option<u64> {
    let (owner, generation) = word.split_first_chunk::<8>()?;
    let generation = u64::from_be_bytes(generation.try_into().ok()?);
    match u64::from_be_bytes(*owner) {
        0 if generation == 0 => Some(0),
        owner if owner == slot as u64 + 1 && generation > 0 => Some(generation),
        _ => None,
    }
}

/// The time at which an answered write is durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// After a write with FUA, or after a flush.
    WhenAsked,
    /// Immediately.
    Always,
}

/// The writers from their login to the kill.
struct Round<'a> {
    serving: &'a Serving,
    unit: &'a Unit,
    ledger: &'a RefCell<Ledger>,
    promise: Promise,
    /// Number of acknowledgements before the kill.
    left: Cell<u64>,
}

impl Round<'_> {
    fn acknowledge(&self, slot: usize, generation: u64) -> Result<()> {
        let mut ledger = self.ledger.borrow_mut();
        ledger.acknowledged[slot] = ledger.acknowledged[slot].max(generation);
        let left = self.left.get();
        self.left.set(left.saturating_sub(1));
        // The other writers have writes in progress.
        if left == 1 { client::signal(self.serving, Signal::KILL) } else { Ok(()) }
    }

    async fn write(&self, slot: usize, fua: bool) -> Result<(usize, u64)> {
        let generation = {
            let issued = &mut self.ledger.borrow_mut().issued[slot];
            *issued += 1;
            *issued
        };
        let data = Buffer::copy_of(&fill(slot, generation));
        self.unit.write((slot * SLOT_BLOCKS) as u64, data, fua).await?;
        if fua || self.promise == Promise::Always {
            self.acknowledge(slot, generation)?;
        }
        Ok((slot, generation))
    }

    /// Writes until the server has ended. Half of the writers use FUA, the others flush.
    async fn writer(&self, writer: usize, mut rng: Rng) -> Result<()> {
        let first = writer * SLOTS_PER_WRITER;
        let any = |rng: &mut Rng| rng.below(SLOTS_PER_WRITER as u64) as usize;
        loop {
            let outcome = if writer.is_multiple_of(2) {
                let slot = first + any(&mut rng);
                self.write(slot, true).await.map(drop)
            } else {
                let (from, count) = (any(&mut rng), 1 + rng.below(BATCH_MAX) as usize);
                let slots = (from..from + count).map(|slot| first + slot % SLOTS_PER_WRITER);
                self.write_and_flush(slots).await
            };
            match outcome {
                Ok(()) => {}
                Err(error) => match error.downcast_ref::<SessionError>() {
                    Some(lost) if lost.is_connection_lost() => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }

    async fn write_and_flush(&self, slots: impl Iterator<Item = usize>) -> Result<()> {
        let written = try_join_all(slots.map(|slot| self.write(slot, false))).await?;
        self.unit.flush().await?;
        if self.promise == Promise::WhenAsked {
            written.into_iter().try_for_each(|(slot, known)| self.acknowledge(slot, known))?;
        }
        Ok(())
    }
}

async fn check_all(unit: &Unit, ledger: &RefCell<Ledger>) -> Result<()> {
    for writer in 0..WRITERS {
        let first = writer * SLOTS_PER_WRITER;
        let blocks = (SLOTS_PER_WRITER * SLOT_BLOCKS) as u32;
        let bytes = unit.read((first * SLOT_BLOCKS) as u64, blocks).await?;
        for (slot, bytes) in (first..).zip(bytes.chunks_exact(SLOT_LENGTH)) {
            ledger.borrow().check(slot, bytes)?;
        }
    }
    Ok(())
}

pub(crate) fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?))
}

/// Kills a server during its writes `kills` times; prints the total number of writes in progress.
fn survive(
    what: &str,
    promise: Promise,
    ledger: &RefCell<Ledger>,
    mut start: impl FnMut() -> Result<Serving>,
) -> Result<()> {
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    let kills = number("PROOF_KILLS")?.unwrap_or(KILLS);
    println!("{what}: PROOF_SEED={seed}");
    let mut rng = Rng::new(seed);
    let mut open = 0;
    for kill in 0..=kills {
        let serving = start()?;
        let rolled = 1 + rng.below(ACKNOWLEDGEMENTS_MAX);
        let seeds: Vec<u64> = (0..WRITERS).map(|_| rng.bits()).collect();
        let before = ledger.borrow().open();
        client::run(async {
            let unit = client::unit(&serving, "data").await?;
            check_all(&unit, ledger).await?;
            if kill == kills {
                return unit.logout().await.map_err(Into::into);
            }
            let left = Cell::new(rolled);
            let round = Round { serving: &serving, unit: &unit, ledger, promise, left };
            let writers = seeds.iter().enumerate();
            try_join_all(writers.map(|(writer, seed)| round.writer(writer, Rng::new(*seed))))
                .await?;
            ensure!(round.left.get() == 0, "the server ended before it was killed");
            Ok(())
        })
        .with_context(|| format!("{what}: after {kill} kills (PROOF_SEED={seed})"))
        .with_context(|| serving.log())?;
        open += ledger.borrow().open() - before.min(ledger.borrow().open());
        if kill == kills {
            serving.stop()?;
        }
    }
    let acknowledged: u64 = ledger.borrow().acknowledged.iter().sum();
    println!(
        "{what}: {kills} kills, {acknowledged} generations acknowledged and none lost, \
         {open} writes in flight at a kill"
    );
    ensure!(open > 0, "no kill hit a write in flight: nothing was shown");
    Ok(())
}

/// Starts a server with this engine, or returns `None` if the kernel does not support it.
fn serve(path: &Path, cache: &str, engine: &str) -> Result<Serving> {
    let volume = Volume::new("data", Backing::File(path.into()), 1 << 20);
    let cache = format!("cache={cache}");
    Serving::start_with(&[volume.option(&cache)], &["--cores", "2", "--io-engine", engine])
}

fn keeps_promises(cache: &str, engine: &str, promise: Promise) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    if engine == "uring"
        && let Err(error) = serve(&path, cache, engine)
        && format!("{error:#}").contains("io_uring was asked for")
    {
        println!("{cache}, {engine}: left out, for this machine forbids io_uring");
        return Ok(());
    }
    let what = format!("{cache}, {engine}");
    let ledger = RefCell::new(Ledger::new());
    survive(&what, promise, &ledger, || serve(&path, cache, engine))
}

#[test]
fn kill_9_loses_nothing_acknowledged_in_writeback_by_the_pool() -> Result<()> {
    keeps_promises("writeback", "pool", Promise::WhenAsked)
}

#[test]
fn kill_9_loses_nothing_acknowledged_in_writeback_by_io_uring() -> Result<()> {
    keeps_promises("writeback", "uring", Promise::WhenAsked)
}

#[test]
fn kill_9_loses_nothing_acknowledged_in_none_by_the_pool() -> Result<()> {
    keeps_promises("none", "pool", Promise::WhenAsked)
}

#[test]
fn kill_9_loses_nothing_acknowledged_in_none_by_io_uring() -> Result<()> {
    keeps_promises("none", "uring", Promise::WhenAsked)
}

#[test]
fn kill_9_loses_no_answered_write_in_writethrough_by_the_pool() -> Result<()> {
    keeps_promises("writethrough", "pool", Promise::Always)
}

#[test]
fn kill_9_loses_no_answered_write_in_writethrough_by_io_uring() -> Result<()> {
    keeps_promises("writethrough", "uring", Promise::Always)
}

#[test]
fn kill_9_loses_no_answered_write_in_directsync_by_the_pool() -> Result<()> {
    keeps_promises("directsync", "pool", Promise::Always)
}

#[test]
fn kill_9_loses_no_answered_write_in_directsync_by_io_uring() -> Result<()> {
    keeps_promises("directsync", "uring", Promise::Always)
}

#[test]
fn kill_9_loses_nothing_acknowledged_in_a_pool() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pool = pool_in(folder.path(), 64 << 20)?;
    let ledger = RefCell::new(Ledger::new());
    survive("pool", Promise::WhenAsked, &ledger, || {
        let volume = Volume::new("data", Backing::Pool("tank".into()), 1 << 20);
        Serving::start_with(&[volume], &["--cores", "2", "--pool", &pool])
    })
}

/// One of two devices is missing at some starts, and back at the next one.
#[test]
fn kill_9_loses_nothing_acknowledged_on_a_mirror_whose_device_comes_and_goes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [stays, goes, away] = ["stays", "goes", "away"].map(|name| folder.path().join(name));
    let pool = pool_on(&[stays, goes.clone()], 64 << 20)?;
    let ledger = RefCell::new(Ledger::new());
    let mut starts = 0;
    survive("mirror", Promise::WhenAsked, &ledger, || {
        starts += 1;
        match starts % 3 {
            2 => std::fs::rename(&goes, &away)?,
            0 => std::fs::rename(&away, &goes)?,
            _ => {}
        }
        let volume = Volume::new("data", Backing::Pool("tank".into()), 1 << 20).option("mirror=2");
        Serving::start_with(&[volume], &["--cores", "2", "--pool", &pool])
    })
}

/// The gateway is killed. What it has answered is on the server behind it.
#[test]
fn kill_9_of_a_gateway_loses_no_answered_write() -> Result<()> {
    let far = Serving::start_on_two_portals(&[Volume::new("far", Backing::Ram, 1 << 20)])?;
    let urls = far.urls("far")?;
    let portals: Vec<_> = urls.iter().map(|url| url.portal.as_str()).collect();
    let remote = format!("iscsi://{}/{}/0", portals.join(","), far.url("far").iqn);
    let ledger = RefCell::new(Ledger::new());
    survive("gateway", Promise::Always, &ledger, || {
        let volume = Volume::new("data", Backing::Remote(remote.clone()), 1 << 20);
        Serving::start_with(&[volume], &["--cores", "2"])
    })
}

/// The control experiment: the content of memory is lost with its process, and the ledger detects it.
#[test]
fn ledger_finds_writes_lost_by_ram_volume() -> Result<()> {
    let ledger = RefCell::new(Ledger::new());
    let start = || Serving::start_with(&[Volume::new("data", Backing::Ram, 1 << 20)], &[]);
    let error = survive("ram", Promise::WhenAsked, &ledger, start).expect_err("memory survived");
    let error = format!("{error:#}");
    ensure!(error.contains("is of generation 0"), "{error}");
    Ok(())
}
