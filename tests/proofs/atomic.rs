//! Operations that a crash must not leave incomplete: WRITE ATOMIC takes effect as a whole or not at all, and a failed
//! SANITIZE is reported until another one has succeeded.
//!
//! The writers of the first proof fill runs of 64 KiB; each word contains the run and the generation. A kill rarely
//! interrupts the kernel within a write. The proof therefore damages the file as a power failure may do: before the
//! next start it tears the run that was in progress at the kill. `PROOF_SEED` repeats a run, `PROOF_KILLS` makes it
//! longer.

use std::cell::{Cell, RefCell};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::{try_join, try_join_all};
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{
    Command, Completion, Sense, SenseKey, SessionOptions, TransferRequest, Unit,
};
use sarsen_proof::{Backing, Serving, Volume};

use crate::client;

const MIB: u64 = 1 << 20;
const BLOCK_LENGTH: usize = 512;

/// Default number of kills in the test of atomic writes; `PROOF_KILLS` overrides it.
const KILLS: u64 = 8;
/// Maximum number of additional kills until one has interrupted a write.
const KILLS_ADDED_MAX: u64 = 200;
/// Number of kills for each sanitize operation.
const SANITIZE_KILLS: u64 = 3;
/// Before its kill, a round acknowledges at most this many writes and then answers at most this many pings.
const ACKNOWLEDGEMENTS_MAX: u64 = 40;
const PINGS_MAX: u64 = 40;

const WRITERS: usize = 6;
const RUNS_PER_WRITER: usize = 4;
const RUNS: usize = WRITERS * RUNS_PER_WRITER;
const RUN_LENGTH: usize = 64 * 1024;
const RUN_BLOCKS: usize = RUN_LENGTH / BLOCK_LENGTH;
const WORD_LENGTH: usize = 16;

fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else { return Ok(None) };
    Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?))
}

fn rng(what: &str) -> Result<(Rng, u64)> {
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    println!("{what}: PROOF_SEED={seed}");
    Ok((Rng::new(seed), seed))
}

fn fill(run: usize, generation: u64) -> Vec<u8> {
    let word = [(run as u64 + 1).to_be_bytes(), generation.to_be_bytes()].concat();
    word.repeat(RUN_LENGTH / WORD_LENGTH)
}

/// Returns the content of the first word of a run: the run and its generation.
fn word(bytes: &[u8]) -> Option<(u64, u64)> {
    let (run, rest) = bytes.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*run), u64::from_be_bytes(*rest.first_chunk::<8>()?)))
}

/// A run may have any generation from `known` to `issued`.
#[derive(Clone, Copy, Default)]
struct AllowedGenerations {
    known: u64,
    issued: u64,
}

/// Reads a run and checks that it has a single generation.
async fn generation(unit: &Unit, run: usize) -> Result<u64> {
    let bytes = unit.read((run * RUN_BLOCKS) as u64, RUN_BLOCKS as u32).await?;
    let (owner, generation) = word(&bytes).context("a word")?;
    let expected = match (owner, generation) {
        (0, 0) => vec![0; RUN_LENGTH],
        _ => fill(run, generation),
    };
    if let Some(place) = bytes.iter().zip(&expected).position(|(found, byte)| found != byte) {
        let at = place - place % WORD_LENGTH;
        let other = word(&bytes[at..]);
        bail!("run {run} begins with generation {generation}; its byte {at} is of {other:?}");
    }
    Ok(generation)
}

/// Compares every run with its allowed generations. A generation that was read once must not disappear.
async fn check(unit: &Unit, pending_size: &RefCell<Vec<AllowedGenerations>>) -> Result<()> {
    for run in 0..RUNS {
        let found = generation(unit, run).await?;
        let AllowedGenerations { known, issued } = pending_size.borrow()[run];
        let allowed = known..=issued;
        ensure!(allowed.contains(&found), "run {run} is of generation {found}, not {allowed:?}");
        pending_size.borrow_mut()[run].known = found;
    }
    Ok(())
}

/// The writers from their login to the kill.
struct Round<'a> {
    serving: &'a Serving,
    unit: &'a Unit,
    pending_size: &'a RefCell<Vec<AllowedGenerations>>,
    /// Number of acknowledgements before the kill.
    left: Cell<u64>,
}

impl Round<'_> {
    /// Writes until the server has ended.
    async fn writer(&self, writer: usize, mut rng: Rng) -> Result<()> {
        loop {
            let run = writer * RUNS_PER_WRITER + rng.below(RUNS_PER_WRITER as u64) as usize;
            let generation = {
                let issued = &mut self.pending_size.borrow_mut()[run].issued;
                *issued += 1;
                *issued
            };
            let lba = ((run * RUN_BLOCKS) as u64).to_be_bytes();
            let count = (RUN_BLOCKS as u16).to_be_bytes();
            let cdb = [&[0x9c, 0][..], &lba, &[0, 0], &count, &[0, 0]].concat();
            let data = Buffer::copy_of(&fill(run, generation));
            match self.unit.command(Command::new(&cdb, TransferRequest::Write(data))).await {
                Ok(_) => {
                    self.pending_size.borrow_mut()[run].known = generation;
                    self.left.set(self.left.get().saturating_sub(1));
                }
                Err(error) if error.is_connection_lost() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills the server `pings` pings after the last acknowledgement, whatever the state of its writes.
    async fn killer(&self, pings: u64) -> Result<()> {
        let mut late = 0;
        while late < pings {
            self.unit.session().ping().await?;
            late += u64::from(self.left.get() == 0);
        }
        client::signal(self.serving, Signal::KILL)
    }
}

/// Tears the run whose record a kill left behind, if there is one: part of its sectors get neither the old data nor the
/// new. Returns whether there was one.
fn tear(disk: &Path, rng: &mut Rng) -> Result<bool> {
    let record = match fs::read(record(disk, "atomic-write")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        record => record?,
    };
    // The data is at the end of the record.
    let data = record.len().checked_sub(RUN_LENGTH).context("a record without its data")?;
    let (run, _) = word(&record[data..]).context("a word")?;
    ensure!((1..=RUNS as u64).contains(&run), "the record is of run {run}");
    let file = OpenOptions::new().write(true).open(disk)?;
    // At least one sector, and not all.
    let torn = rng.below(RUN_BLOCKS as u64);
    for block in (0..RUN_BLOCKS as u64).filter(|block| *block == torn || rng.below(2) == 0) {
        let offset = (run - 1) * RUN_LENGTH as u64 + block * BLOCK_LENGTH as u64;
        file.write_all_at(&[0xbd; BLOCK_LENGTH], offset)?;
    }
    Ok(true)
}

/// Returns the path of a volume's record, at its default location.
fn record(disk: &Path, name: &str) -> PathBuf {
    let mut folder = disk.as_os_str().to_owned();
    folder.push(".state");
    Path::new(&folder).join(name)
}

#[test]
fn sbc4_4_29_kill_9_tears_no_atomic_write_and_loses_none_acknowledged() -> Result<()> {
    let (mut rng, seed) = rng("atomic writes")?;
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("data.img");
    let start = || {
        let volume = Volume::new("data", Backing::File(disk.clone()), 2 * MIB);
        Serving::start_with(&[volume], &["--cores", "2"])
    };
    let pending_size = RefCell::new(vec![AllowedGenerations::default(); RUNS]);
    let wanted = number("PROOF_KILLS")?.unwrap_or(KILLS);
    let (mut kills, mut torn) = (0, 0);
    while kills < wanted || torn == 0 {
        ensure!(kills < wanted + KILLS_ADDED_MAX, "no kill cut a write off: nothing was shown");
        let serving = start()?;
        let left = Cell::new(1 + rng.below(ACKNOWLEDGEMENTS_MAX));
        let pings = 1 + rng.below(PINGS_MAX);
        let seeds: Vec<u64> = (0..WRITERS).map(|_| rng.bits()).collect();
        client::run(async {
            let unit = client::unit(&serving, "data").await?;
            check(&unit, &pending_size).await?;
            let round = Round { serving: &serving, unit: &unit, pending_size: &pending_size, left };
            let writers = seeds.iter().enumerate();
            let writers = writers.map(|(writer, seed)| round.writer(writer, Rng::new(*seed)));
            try_join(try_join_all(writers), round.killer(pings)).await?;
            Ok(())
        })
        .with_context(|| format!("after {kills} kills (PROOF_SEED={seed})"))
        .with_context(|| serving.log())?;
        // The drop waits for the end of the server, including its last writes.
        drop(serving);
        kills += 1;
        torn += u64::from(tear(&disk, &mut rng)?);
    }
    let serving = start()?;
    client::run(async {
        let unit = client::unit(&serving, "data").await?;
        check(&unit, &pending_size).await?;
        Ok(unit.logout().await?)
    })
    .with_context(|| format!("after {kills} kills (PROOF_SEED={seed})"))
    .with_context(|| serving.log())?;
    let known: u64 = pending_size.borrow().iter().map(|pending_size| pending_size.known).sum();
    println!(
        "{kills} kills, {torn} of them within a write: {known} generations, none torn or lost"
    );
    serving.stop()
}

/// A sanitize operation: its service action and parameter list.
struct Sanitize {
    action: u8,
    list: Vec<u8>,
}

const IMMED: u8 = 0x80;
const OVERWRITE: u8 = 0x01;
const BLOCK_ERASE: u8 = 0x02;
const EXIT_FAILURE_MODE: u8 = 0x1f;
const INVERT: u8 = 0x80;

/// Possible sense data: key, code and qualifier.
const IN_PROGRESS: (SenseKey, u8, u8) = (SenseKey::NotReady, 0x04, 0x1b);
const FAILED: (SenseKey, u8, u8) = (SenseKey::MediumError, 0x31, 0x03);
const INVALID_FIELD_IN_CDB: (SenseKey, u8, u8) = (SenseKey::IllegalRequest, 0x24, 0x00);

const fn reported(sense: &Sense) -> (SenseKey, u8, u8) {
    (sense.key, sense.asc, sense.ascq)
}

/// Executes a command, and repeats it after each unit attention. Returns the sense data of a failure.
async fn ask(
    unit: &Unit,
    cdb: &[u8],
    list: &[u8],
    expected: u32,
) -> Result<(Completion, Option<Sense>)> {
    loop {
        let transfer = match (list, expected) {
            ([], 0) => TransferRequest::None,
            ([], expected) => TransferRequest::Read(expected),
            (list, _) => TransferRequest::Write(Buffer::copy_of(list)),
        };
        let completion = unit.execute(Command::new(cdb, transfer)).await?;
        let sense = Sense::parse(&completion.sense);
        if !sense.is_some_and(|sense| sense.key == SenseKey::UnitAttention) {
            ensure!(completion.status == 0 || sense.is_some(), "status {}", completion.status);
            return Ok((completion, sense));
        }
    }
}

async fn sanitize(unit: &Unit, what: &Sanitize) -> Result<Option<Sense>> {
    let [high, low] = (what.list.len() as u16).to_be_bytes();
    let cdb = [0x48, IMMED | what.action, 0, 0, 0, 0, 0, high, low, 0];
    Ok(ask(unit, &cdb, &what.list, 0).await?.1)
}

/// Returns the sense data of REQUEST SENSE, and the progress in 65536ths.
async fn progress(unit: &Unit) -> Result<(Sense, Option<u16>)> {
    loop {
        let (completion, failure) = ask(unit, &[3, 0, 0, 0, 252, 0], &[], 252).await?;
        ensure!(failure.is_none(), "REQUEST SENSE ended with {failure:?}");
        let data = completion.data.context("sense data")?;
        let sense = Sense::parse(&data).context("sense data")?;
        if sense.key != SenseKey::UnitAttention {
            // SKSV, in sense data of fixed format.
            let specific = data.get(15..18).filter(|bytes| bytes[0] & 0x80 != 0);
            return Ok((sense, specific.map(|bytes| u16::from_be_bytes([bytes[1], bytes[2]]))));
        }
    }
}

async fn connect(serving: &Serving) -> Result<Unit> {
    let unit = Unit::log_in(&client::url(serving, "data")?, &SessionOptions::default()).await;
    unit.with_context(|| serving.log())
}

/// Checks that reads and writes fail; only another SANITIZE repairs this.
async fn check_failed(unit: &Unit) -> Result<()> {
    let mut cdb = [0; 16];
    cdb[13] = 1;
    let commands: [(u8, &[u8], u32); 2] = [(0x88, &[], 512), (0x8a, &[1; BLOCK_LENGTH], 0)];
    for (operation_code, list, expected) in commands {
        cdb[0] = operation_code;
        let (_, sense) = ask(unit, &cdb, list, expected).await?;
        ensure!(sense.as_ref().map(reported) == Some(FAILED), "{operation_code:02x}h: {sense:?}");
    }
    let exit = Sanitize { action: EXIT_FAILURE_MODE, list: Vec::new() };
    let sense = sanitize(unit, &exit).await?;
    ensure!(sense.as_ref().map(reported) == Some(INVALID_FIELD_IN_CDB), "without AUSE: {sense:?}");
    Ok(())
}

/// Kills the server repeatedly while it reports an operation's progress, then completes one operation.
fn fails_until_it_succeeds(
    name: &str,
    cut_off: &Sanitize,
    done: &Sanitize,
    expected: &[u8; BLOCK_LENGTH],
) -> Result<()> {
    const SIZE: u64 = 96 * MIB;
    let (mut rng, seed) = rng(name)?;
    let folder = tempfile::tempdir()?;
    let disk = folder.path().join("data.img");
    fs::write(&disk, vec![0x5a; SIZE as usize])?;
    let start = || {
        let volume = Volume::new("data", Backing::File(disk.clone()), SIZE);
        Serving::start(&[volume.option("cache=writethrough")])
    };
    for kill in 0..SANITIZE_KILLS {
        let serving = start()?;
        let enough = 1 + rng.below(1 << 10) as u16;
        client::run(async {
            let unit = connect(&serving).await?;
            if kill > 0 {
                check_failed(&unit).await?;
            }
            let refused = sanitize(&unit, cut_off).await?;
            ensure!(refused.is_none(), "SANITIZE ended with {refused:?}");
            loop {
                let (sense, progress) = progress(&unit).await?;
                ensure!(reported(&sense) == IN_PROGRESS, "not under way any more: {sense:?}");
                if progress.context("no progress is told")? >= enough {
                    return client::signal(&serving, Signal::KILL);
                }
            }
        })
        .with_context(|| format!("{name}: after {kill} kills (PROOF_SEED={seed})"))
        .with_context(|| serving.log())?;
    }
    let serving = start()?;
    client::run(async {
        let unit = connect(&serving).await?;
        check_failed(&unit).await?;
        let refused = sanitize(&unit, done).await?;
        ensure!(refused.is_none(), "the last SANITIZE ended with {refused:?}");
        let end = loop {
            let (sense, _) = progress(&unit).await?;
            if reported(&sense) != IN_PROGRESS {
                break sense;
            }
        };
        ensure!(end.key == SenseKey::NoSense, "it ended with {end:?}");
        unit.logout().await?;
        let unit = client::unit(&serving, "data").await?;
        for mebibyte in 0..SIZE / MIB {
            let blocks = MIB / BLOCK_LENGTH as u64;
            let bytes = unit.read(mebibyte * blocks, blocks as u32).await?;
            let is_done = bytes.chunks_exact(BLOCK_LENGTH).all(|block| block == expected);
            ensure!(is_done, "something else is in MiB {mebibyte}");
        }
        // The disk works normally again.
        unit.write(0, Buffer::copy_of(&[7; BLOCK_LENGTH]), true).await?;
        Ok(unit.logout().await?)
    })
    .with_context(|| format!("{name} (PROOF_SEED={seed})"))
    .with_context(|| serving.log())?;
    serving.stop()?;
    ensure!(!record(&disk, "operation").exists(), "the operation's record is still there");
    Ok(())
}

/// Returns the parameter list for these passes.
fn overwrite(flags: u8, pattern: &[u8]) -> Sanitize {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    Sanitize { action: OVERWRITE, list: [&[flags, 0, high, low][..], pattern].concat() }
}

#[test]
fn sbc3_4_11_4_an_overwrite_cut_off_by_kill_9_has_failed_until_another_succeeds() -> Result<()> {
    let pattern = b"grey wether";
    // Of the two passes, the second writes the pattern's complement.
    let done = overwrite(INVERT | 2, pattern);
    let mut expected = [0; BLOCK_LENGTH];
    for (byte, written) in expected.iter_mut().zip(pattern.iter().cycle()) {
        *byte = !written;
    }
    fails_until_it_succeeds("OVERWRITE", &overwrite(31, pattern), &done, &expected)
}

#[test]
fn sbc3_4_11_4_a_block_erase_cut_off_by_kill_9_has_failed_until_another_succeeds() -> Result<()> {
    let erase = Sanitize { action: BLOCK_ERASE, list: Vec::new() };
    fails_until_it_succeeds("BLOCK ERASE", &erase, &erase, &[0; BLOCK_LENGTH])
}
