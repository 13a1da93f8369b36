//! A server is killed while snapshots of its volumes are created, deleted, cloned and rolled back under writes, again and
//! again. Then it starts again, without a repair. Volumes and clones have every durable write, snapshots have exactly what
//! they had when they were created, and the pool is sound.
//!
//! Kills happen at random points: after so many beginnings and ends of writes and operations. `PROOF_SEED` repeats their
//! choice, and `PROOF_KILLS` overrides their number.

mod ledger;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use sarsen_block::{Buffer, Rng};
use sarsen_initiator::{SessionError, SessionOptions, Unit};
use sarsen_io::time::now;
use sarsen_proof::managed::{self, Managed};
use sarsen_proof::{process, program};
use serde_json::{Value, json};

use crate::client;
use crate::crash::number;
use ledger::{
    Contents, Generations, Ledger, SLOT_BLOCKS, SLOTS, bytes_of_stream, fill, generations,
};

const VOLUMES: [&str; 2] = ["a", "b"];
const WRITERS: usize = 4;
/// Maximum number of beginnings and ends of writes and operations before a kill.
const STEPS_MAX: u64 = 600;
/// Writes of each writer in a phase, at least: more follow while an operation is under way.
const WRITES: u64 = 8;
/// Maximum number of writes that one flush makes durable.
const BATCH_MAX: u64 = 4;
const SNAPSHOTS_MAX: usize = 4;
const CLONES_MAX: usize = 2;
const POOL: &str = "64MiB";

/// How an operation on a server ended.
enum Outcome<T> {
    Done(T),
    /// The server was killed before it answered.
    Killed,
}

/// A running server, and the time of its death.
struct Victim {
    server: Managed,
    socket: PathBuf,
    /// Beginnings and ends that are left.
    left: AtomicI64,
    is_killed: AtomicBool,
}

impl Victim {
    /// Counts a beginning or an end, which may be the last one.
    fn step(&self) -> Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_killed.store(true, Ordering::SeqCst);
            let pid = i32::try_from(self.server.pid()).ok().and_then(Pid::from_raw);
            kill_process(pid.context("a process id")?, Signal::KILL)?;
        }
        Ok(())
    }

    fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::SeqCst)
    }

    /// Sends a request to the server's socket; returns the body of its answer.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Outcome<Vec<u8>>> {
        self.step()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = UnixStream::connect(&self.socket).and_then(|mut stream| {
            let length = body.len();
            write!(
                stream,
                "{method} /v1/{path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}"
            )?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            Ok(answer)
        });
        let whole = match answer {
            Ok(answer) => parse(&answer)?,
            Err(error) if !self.is_killed() => return Err(error.into()),
            Err(_) => None,
        };
        let Some((status, body)) = whole else {
            ensure!(self.is_killed(), "{method} {path} was not answered");
            return Ok(Outcome::Killed);
        };
        let text = || String::from_utf8_lossy(&body);
        ensure!(status == 200, "{method} {path} is answered with {status}: {}", text());
        self.step()?;
        Ok(Outcome::Done(body))
    }

    /// Runs a command of the user.
    fn run(&self, arguments: &[&str]) -> Result<Outcome<()>> {
        self.step()?;
        let output = self.server.command(arguments)?.output()?;
        if output.status.success() {
            self.step()?;
            return Ok(Outcome::Done(()));
        }
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(self.is_killed(), "{arguments:?}: {said}{}", self.server.log());
        Ok(Outcome::Killed)
    }

    /// Opens a session; `None` if the server was killed.
    async fn unit(&self, volume: &str) -> Result<Option<Unit>> {
        let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:{volume}/0", self.server.portal()?);
        let connected = Unit::connect(&url.parse()?, &SessionOptions::default()).await;
        self.unless_killed(connected)
    }

    /// Returns `None` for the error of a session that a kill ended.
    fn unless_killed<T>(&self, result: Result<T, SessionError>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(SessionError::Connect { .. }) if self.is_killed() => Ok(None),
            Err(error) if error.is_connection_lost() && self.is_killed() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a whole volume; `None` if the server was killed.
    async fn read(&self, volume: &str) -> Result<Option<Generations>> {
        let Some(unit) = self.unit(volume).await? else { return Ok(None) };
        let read = unit.read(0, (SLOTS * SLOT_BLOCKS) as u32).await;
        let Some(bytes) = self.unless_killed(read)? else { return Ok(None) };
        self.unless_killed(unit.logout().await)?;
        generations(&bytes).map(Some)
    }

    /// Reads a snapshot.
    fn read_snapshot(&self, name: &str) -> Result<Outcome<Generations>> {
        // One part has all of so small a snapshot.
        let answer = self.ask("GET", &format!("snapshots/{name}/stream"), &Value::Null)?;
        let Outcome::Done(stream) = answer else { return Ok(Outcome::Killed) };
        Ok(Outcome::Done(generations(&bytes_of_stream(&stream)?)?))
    }
}

/// Returns the status and the body of a complete answer.
fn parse(answer: &[u8]) -> Result<Option<(u16, Vec<u8>)>> {
    let end = b"\r\n\r\n";
    let Some(head) = answer.windows(end.len()).position(|bytes| bytes == end) else {
        return Ok(None);
    };
    let (head, body) = (std::str::from_utf8(&answer[..head])?, &answer[head + end.len()..]);
    let status = head.split(' ').nth(1).context("a status")?.parse()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let is_whole = length.context("a length")?.parse::<usize>()? == body.len();
    Ok(is_whole.then(|| (status, body.to_vec())))
}

/// Whether something exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Existence {
    Sure,
    /// A kill interrupted its creation or its deletion.
    Unsure,
}

struct Snapshot {
    name: String,
    existence: Existence,
    contents: Contents,
}

struct Clone {
    name: String,
    existence: Existence,
    ledger: Ledger,
}

/// A volume with its snapshots and clones.
struct Family {
    volume: &'static str,
    ledger: Mutex<Ledger>,
    snapshots: Vec<Snapshot>,
    clones: Vec<Clone>,
    /// A kill interrupted a roll-back to this.
    rolling_back: Option<Generations>,
    /// Names that were used.
    names: u64,
}

/// What happened, and how often a kill interrupted it.
#[derive(Default)]
struct Tally {
    writes: AtomicU64,
    done: [AtomicU64; OPERATIONS.len()],
    interrupted: [AtomicU64; OPERATIONS.len()],
}

const OPERATIONS: [&str; 6] =
    ["snapshots created", "deleted", "rolled back", "clones created", "deleted", "written"];
const CREATE: usize = 0;
const DELETE: usize = 1;
const ROLL_BACK: usize = 2;
const CLONE: usize = 3;
const DELETE_CLONE: usize = 4;
const WRITE_CLONE: usize = 5;

impl Tally {
    fn count<T>(&self, operation: usize, outcome: &Outcome<T>) {
        let counter = match outcome {
            Outcome::Done(_) => &self.done,
            Outcome::Killed => &self.interrupted,
        };
        counter[operation].fetch_add(1, Ordering::Relaxed);
    }
}

/// Writers of a volume, while an operation is under way.
struct Writing<'a> {
    victim: &'a Victim,
    unit: &'a Unit,
    ledger: &'a Mutex<Ledger>,
    tally: &'a Tally,
    /// The operation has ended.
    may_end: &'a AtomicBool,
}

impl Writing<'_> {
    /// Returns whether the write was answered; if not, the server was killed.
    async fn write(&self, slot: usize, fua: bool) -> Result<bool> {
        let generation = self.ledger.lock().issue(slot);
        self.victim.step()?;
        let data = Buffer::copy_of(&fill(slot, generation));
        let written = self.unit.write((slot * SLOT_BLOCKS) as u64, data, fua).await;
        if self.victim.unless_killed(written)?.is_none() {
            return Ok(false);
        }
        self.ledger.lock().answer(slot, fua);
        self.tally.writes.fetch_add(1, Ordering::Relaxed);
        self.victim.step()?;
        Ok(true)
    }

    async fn flush(&self) -> Result<bool> {
        let answered = self.ledger.lock().answered();
        if self.victim.unless_killed(self.unit.flush().await)?.is_none() {
            return Ok(false);
        }
        self.ledger.lock().flushed(&answered);
        Ok(true)
    }

    /// Each writer has slots of its own in all chunks. Some writes are FUA, others wait for a flush.
    async fn writer(&self, writer: usize, mut rng: Rng) -> Result<()> {
        let mut written = 0;
        while written < WRITES || !self.may_end.load(Ordering::Relaxed) {
            let is_fua = rng.chance(30);
            let count = if is_fua { 1 } else { 1 + rng.below(BATCH_MAX) };
            for _ in 0..count {
                let slot = rng.below((SLOTS / WRITERS) as u64) as usize * WRITERS + writer;
                if !self.write(slot, is_fua).await? {
                    return Ok(());
                }
            }
            written += count;
            if !is_fua && rng.chance(60) && !self.flush().await? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Family {
    /// Writes, with operations at the same time, until the server is killed.
    fn live(&mut self, victim: &Victim, tally: &Tally, mut rng: Rng) -> Result<()> {
        while !victim.is_killed() {
            self.phase(victim, tally, &mut rng)?;
            if !victim.is_killed() && rng.chance(20) {
                self.roll_back(victim, tally, &mut rng)?;
            }
        }
        Ok(())
    }

    /// Some operations under writes.
    fn phase(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        let may_end = AtomicBool::new(false);
        let seeds: Vec<u64> = (0..WRITERS).map(|_| rng.bits()).collect();
        // The operations have everything but the volume's own ledger for themselves.
        let ledger = std::mem::replace(&mut self.ledger, Mutex::new(Ledger::new(&Vec::new())));
        let volume = self.volume;
        let ended = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                client::run(async {
                    let Some(unit) = victim.unit(volume).await? else { return Ok(()) };
                    let writing =
                        Writing { victim, unit: &unit, ledger: &ledger, tally, may_end: &may_end };
                    let writers = seeds.iter().enumerate();
                    let writers =
                        writers.map(|(number, seed)| writing.writer(number, Rng::new(*seed)));
                    try_join_all(writers).await?;
                    victim.unless_killed(unit.logout().await)?;
                    Ok(())
                })
            });
            let mut operated = Ok(());
            for _ in 0..1 + rng.below(4) {
                if operated.is_ok() && !victim.is_killed() {
                    operated = self.operate(victim, tally, &ledger, rng);
                }
            }
            may_end.store(true, Ordering::Relaxed);
            let written = writing.join().map_err(|_| anyhow::anyhow!("a writer panicked"));
            operated.and(written?)
        });
        self.ledger = ledger;
        ended
    }

    fn new_name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    /// One operation.
    fn operate(
        &mut self,
        victim: &Victim,
        tally: &Tally,
        ledger: &Mutex<Ledger>,
        rng: &mut Rng,
    ) -> Result<()> {
        match rng.below(10) {
            0..=3 if self.snapshots.len() < SNAPSHOTS_MAX => self.create(victim, tally, ledger),
            0..=5 if !self.snapshots.is_empty() => self.delete(victim, tally, rng),
            6 if self.clones.len() < CLONES_MAX && !self.snapshots.is_empty() => {
                self.clone_snapshot(victim, tally, rng)
            }
            7 if !self.clones.is_empty() => self.delete_clone(victim, tally, rng),
            8 if !self.clones.is_empty() => self.write_clone(victim, tally, rng),
            _ if !self.snapshots.is_empty() => {
                let snapshot = rng.below(self.snapshots.len() as u64) as usize;
                self.read_snapshot(victim, snapshot).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn create(&mut self, victim: &Victim, tally: &Tally, ledger: &Mutex<Ledger>) -> Result<()> {
        let number = self.new_name();
        let name = format!("{}@s{number}", self.volume);
        let answered = ledger.lock().answered();
        let created = victim.ask("POST", "snapshots", &json!({ "snapshots": [name] }))?;
        tally.count(CREATE, &created);
        let existence = match created {
            Outcome::Done(_) => Existence::Sure,
            Outcome::Killed => Existence::Unsure,
        };
        let contents = ledger.lock().snapshot(&answered);
        self.snapshots.push(Snapshot { name, existence, contents });
        Ok(())
    }

    fn delete(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        let number = rng.below(self.snapshots.len() as u64) as usize;
        let path = format!("snapshots/{}", self.snapshots[number].name);
        let deleted = victim.ask("DELETE", &path, &Value::Null)?;
        tally.count(DELETE, &deleted);
        match deleted {
            Outcome::Done(_) => drop(self.snapshots.remove(number)),
            Outcome::Killed => self.snapshots[number].existence = Existence::Unsure,
        }
        Ok(())
    }

    /// Reads a snapshot and compares it. Returns what it has, unless the server was killed.
    fn read_snapshot(&mut self, victim: &Victim, number: usize) -> Result<Option<Generations>> {
        let Snapshot { name, contents, .. } = &mut self.snapshots[number];
        let Outcome::Done(found) = victim.read_snapshot(name)? else { return Ok(None) };
        contents.check(found.clone()).with_context(|| format!("snapshot {name}"))?;
        Ok(Some(found))
    }

    fn clone_snapshot(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        let number = rng.below(self.snapshots.len() as u64) as usize;
        let Some(contents) = self.read_snapshot(victim, number)? else { return Ok(()) };
        let new = self.new_name();
        let name = format!("{}-c{new}", self.volume);
        let snapshot = &self.snapshots[number].name;
        let cloned = victim.run(&["volume", "clone", snapshot, &name, "--export"])?;
        tally.count(CLONE, &cloned);
        let existence = match cloned {
            Outcome::Done(()) => Existence::Sure,
            Outcome::Killed => Existence::Unsure,
        };
        self.clones.push(Clone { name, existence, ledger: Ledger::new(&contents) });
        Ok(())
    }

    fn delete_clone(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        let number = rng.below(self.clones.len() as u64) as usize;
        let clone = &self.clones[number].name;
        let deleted = victim.run(&["volume", "delete", clone, "--cascade", "--erase"])?;
        tally.count(DELETE_CLONE, &deleted);
        match deleted {
            Outcome::Done(()) => drop(self.clones.remove(number)),
            Outcome::Killed => self.clones[number].existence = Existence::Unsure,
        }
        Ok(())
    }

    /// Checks a clone and writes to it.
    fn write_clone(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        let number = rng.below(self.clones.len() as u64) as usize;
        let Clone { name, ledger, .. } = &mut self.clones[number];
        let seed = rng.bits();
        // Its writer runs on a thread of its own, as every client.
        let outcome = thread::scope(|scope| {
            let writing = scope.spawn(|| {
                client::run(async {
                    let mut rng = Rng::new(seed);
                    let Some(found) = victim.read(name).await? else { return Ok(false) };
                    ledger.check(&found).with_context(|| format!("clone {name}"))?;
                    let Some(unit) = victim.unit(name).await? else { return Ok(false) };
                    for _ in 0..WRITES {
                        let slot = rng.below(SLOTS as u64) as usize;
                        let generation = ledger.issue(slot);
                        let data = Buffer::copy_of(&fill(slot, generation));
                        victim.step()?;
                        let lba = (slot * SLOT_BLOCKS) as u64;
                        let written = unit.write(lba, data, true).await;
                        if victim.unless_killed(written)?.is_none() {
                            return Ok(false);
                        }
                        ledger.answer(slot, true);
                    }
                    victim.unless_killed(unit.logout().await)?;
                    Ok(true)
                })
            });
            writing.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?
        })?;
        let outcome = if outcome { Outcome::Done(()) } else { Outcome::Killed };
        tally.count(WRITE_CLONE, &outcome);
        Ok(())
    }

    fn roll_back(&mut self, victim: &Victim, tally: &Tally, rng: &mut Rng) -> Result<()> {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let number = rng.below(self.snapshots.len() as u64) as usize;
        let Some(contents) = self.read_snapshot(victim, number)? else { return Ok(()) };
        let path = format!("snapshots/{}/rollback", self.snapshots[number].name);
        // The session of the writers may be in its last moments.
        let options = json!({ "force": true, "grace_seconds": 0 });
        let rolled_back = victim.ask("POST", &path, &options)?;
        tally.count(ROLL_BACK, &rolled_back);
        match rolled_back {
            Outcome::Done(_) => *self.ledger.get_mut() = Ledger::new(&contents),
            Outcome::Killed => self.rolling_back = Some(contents),
        }
        Ok(())
    }

    /// Compares everything with what a server has that was started again.
    fn check(&mut self, victim: &Victim, names: &Names) -> Result<()> {
        let exists = |listed: &[String], name: &str, existence| {
            let is_there = listed.iter().any(|listed| listed == name);
            ensure!(is_there || existence == Existence::Unsure, "{name} is lost");
            Ok(is_there)
        };
        let mut expected = 0;
        for mut snapshot in std::mem::take(&mut self.snapshots) {
            let name = &snapshot.name;
            if exists(&names.snapshots, name, snapshot.existence)? {
                let Outcome::Done(found) = victim.read_snapshot(name)? else { bail!("killed") };
                snapshot.contents.check(found).with_context(|| format!("snapshot {name}"))?;
                snapshot.existence = Existence::Sure;
                self.snapshots.push(snapshot);
                expected += 1;
            }
        }
        let own = format!("{}@", self.volume);
        let listed = names.snapshots.iter().filter(|name| name.starts_with(&own)).count();
        ensure!(listed == expected, "a deleted snapshot is back: {:?}", names.snapshots);
        let mut expected = 1;
        for mut clone in std::mem::take(&mut self.clones) {
            let name = &clone.name;
            if exists(&names.volumes, name, clone.existence)? {
                let found = client::run(victim.read(name))?.context("killed")?;
                clone.ledger.restart(&found).with_context(|| format!("clone {name}"))?;
                clone.existence = Existence::Sure;
                self.clones.push(clone);
                expected += 1;
            }
        }
        let listed = names.volumes.iter().filter(|name| name.starts_with(self.volume)).count();
        ensure!(listed == expected, "a deleted clone is back: {:?}", names.volumes);
        let found = client::run(victim.read(self.volume))?.context("killed")?;
        let ledger = self.ledger.get_mut();
        if self.rolling_back.take().is_some_and(|contents| contents == found) {
            *ledger = Ledger::new(&found);
        }
        ledger.restart(&found).with_context(|| format!("volume {}", self.volume))
    }
}

/// What a server says that it has.
struct Names {
    snapshots: Vec<String>,
    volumes: Vec<String>,
}

impl Names {
    fn of(server: &Managed) -> Result<Self> {
        let names = |arguments: &[&str], list: &str| -> Result<Vec<String>> {
            let listed = server.json(arguments)?;
            let listed = listed[list].as_array().context("a list")?.iter();
            listed.map(|one| Ok(one["name"].as_str().context("a name")?.to_owned())).collect()
        };
        // A kill between the parts of a creation or a deletion leaves a volume without an object.
        for orphan in names(&["volume", "orphan", "list"], "orphans")? {
            server.run(&["volume", "orphan", "remove", &orphan, "--destroy"])?;
        }
        let snapshots = names(&["snapshot", "list"], "snapshots")?;
        Ok(Self { snapshots, volumes: names(&["volume", "list"], "volume")? })
    }
}

fn check_pool(device: &Path) -> Result<()> {
    let mut check = Command::new(program::path()?);
    let said = process::output(check.args(["pool", "check"]).arg(device), client::LIMIT)?;
    ensure!(said == "no inconsistencies\n", "{said}");
    Ok(())
}

fn start(folder: &Path, left: u64) -> Result<Victim> {
    Ok(Victim {
        server: Managed::start(folder)?,
        socket: managed::socket(folder),
        left: AtomicI64::new(left as i64),
        is_killed: AtomicBool::new(false),
    })
}

fn survive(kills: u64) -> Result<()> {
    let began = now();
    let kills = number("PROOF_KILLS")?.unwrap_or(kills);
    let seed = number("PROOF_SEED")?.unwrap_or_else(sarsen_io::random::number);
    println!("PROOF_SEED={seed}");
    let mut rng = Rng::new(seed);
    let folder = tempfile::tempdir()?;
    let pool = folder.path().join("tank.pool");
    let server = Managed::start(folder.path())?;
    server.run(&[
        "pool",
        "create",
        "tank",
        "--device",
        &format!("{},size={POOL}", pool.display()),
    ])?;
    for volume in VOLUMES {
        server.run(&["volume", "create", volume, "1MiB", "--pool", "tank", "--export"])?;
    }
    server.stop()?;
    let mut families = VOLUMES.map(|volume| Family {
        volume,
        ledger: Mutex::new(Ledger::new(&vec![0; SLOTS])),
        snapshots: Vec::new(),
        clones: Vec::new(),
        rolling_back: None,
        names: 0,
    });
    let tally = Tally::default();
    let mut open = 0;
    for kill in 0..=kills {
        let told = || format!("after {kill} kills (PROOF_SEED={seed})");
        check_pool(&pool).with_context(told)?;
        // Until everything is checked, no step counts.
        let victim = start(folder.path(), i64::MAX as u64)?;
        let names = Names::of(&victim.server).with_context(told)?;
        for family in &mut families {
            let checked = family.check(&victim, &names);
            checked.with_context(told).with_context(|| victim.server.log())?;
        }
        if kill == kills {
            victim.server.stop()?;
            check_pool(&pool)?;
            break;
        }
        victim.left.store(1 + rng.below(STEPS_MAX) as i64, Ordering::Relaxed);
        let seeds = VOLUMES.map(|_| rng.bits());
        thread::scope(|scope| {
            let lives: Vec<_> = families
                .iter_mut()
                .zip(seeds)
                .map(|(family, seed)| {
                    let (victim, tally) = (&victim, &tally);
                    scope.spawn(move || family.live(victim, tally, Rng::new(seed)))
                })
                .collect();
            lives.into_iter().try_for_each(|life| {
                life.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })
        })
        .with_context(told)
        .with_context(|| victim.server.log())?;
        open += families.iter_mut().map(|family| family.ledger.get_mut().open()).sum::<usize>();
        victim.server.kill()?;
    }
    ensure!(open > 0, "no kill interrupted a write: nothing was shown");
    println!(
        "{kills} kills in {:?}: {} writes answered, {open} open at a kill; none lost",
        now() - began,
        tally.writes.load(Ordering::Relaxed)
    );
    for (number, operation) in OPERATIONS.iter().enumerate() {
        let count = |counters: &[AtomicU64]| counters[number].load(Ordering::Relaxed);
        let (done, interrupted) = (count(&tally.done), count(&tally.interrupted));
        println!("{operation}: {done}, and {interrupted} interrupted by a kill");
    }
    Ok(())
}

#[test]
fn kill_9_loses_no_write_and_no_snapshot() -> Result<()> {
    survive(20)
}

#[test]
#[ignore = "takes minutes"]
fn a_thousand_kill_9_lose_no_write_and_no_snapshot() -> Result<()> {
    survive(1_000)
}
