//! A disk that does not respond: a separate file system that is frozen (FIFREEZE), so that every thread that writes to
//! it waits in the kernel and cannot be woken. The server serves other volumes as before, clients can use their other
//! units, and the server can shut down. When the disk responds, the server serves its volume again with all
//! acknowledged data.
//!
//! The proof needs root, for the file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sarsen_initiator::SenseKey;
use sarsen_io::time::now;
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::{TaskManagementFunction, TaskManagementResponse};

use crate::client::{self, Wire};

const NAME: &str = "iqn.2026-11.proof:hung";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
const OTHER_ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 2];
const TARGET: &str = "iqn.2026-11.proof:both";
const MIB: u64 = 1 << 20;
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;
/// Number of commands for each hung volume.
const DEPTH: u32 = 8;
/// Number of hung volumes. At this depth, io_uring's workers and the former threads of all volumes together could not
/// serve them.
const HUNG_VOLUMES: usize = 12;
const WRITES: usize = 300;
const WRITE_LENGTH: usize = 4096;
const WRITE_BLOCKS: u32 = (WRITE_LENGTH / 512) as u32;
/// The server waits for an aborted command until it is five seconds old, and the machine may be slow.
const RESET_LIMIT: Duration = Duration::from_secs(10);
/// The meaning of "at once" on a slow machine.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Time from SIGTERM to the end, for any number of hung disks.
const END_LIMIT: Duration = Duration::from_secs(10);

/// An ext4 in a file, which can be frozen.
pub(crate) struct FileSystem {
    folder: PathBuf,
}

/// A frozen file system. Drop this before the server, because the server cannot end while the file system is frozen.
pub(crate) struct Frozen {
    folder: PathBuf,
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").arg("--unfreeze").arg(&self.folder).output();
    }
}

fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("{program} does not start"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {arguments:?}: {}", said.trim());
    Ok(())
}

impl FileSystem {
    /// Mounts the file system; `None` if the user may not mount one.
    pub(crate) fn mount(within: &Path) -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            println!("not seen: a file system that can be frozen needs root");
            return Ok(None);
        }
        let (image, folder) = (within.join("image"), within.join("mounted"));
        File::create(&image)?.set_len(256 * MIB)?;
        fs::create_dir(&folder)?;
        let image = image.to_str().context("a name")?;
        run("mkfs.ext4", &["-q", "-F", image])?;
        match run("mount", &["-o", "loop", image, folder.to_str().context("a name")?]) {
            Ok(()) => Ok(Some(Self { folder })),
            Err(error) => {
                println!("not seen: {error}");
                Ok(None)
            }
        }
    }

    /// Freezes the file system until the returned guard is dropped.
    pub(crate) fn freeze(&self) -> Result<Frozen> {
        run("fsfreeze", &["--freeze", self.folder.to_str().context("a name")?])?;
        Ok(Frozen { folder: self.folder.clone() })
    }

    /// Returns the path of a file on it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn file(&self, name: &str) -> Backing {
        Backing::File(self.path(name))
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.folder).output();
    }
}

fn block(mark: u8) -> [u8; WRITE_LENGTH] {
    [mark; WRITE_LENGTH]
}

/// Writes and waits for the status.
fn write(wire: &mut Wire, lba: u32, mark: u8) -> Result<()> {
    let tag = wire.write(lba, &block(mark), false)?;
    let end = wire.end_of(tag)?;
    ensure!(end.status() == Some(GOOD), "a write ended with {:?}", end.sense());
    Ok(())
}

fn read(wire: &mut Wire, lba: u32) -> Result<Vec<u8>> {
    let tag = wire.read(lba, WRITE_BLOCKS as u16)?;
    let end = wire.end_of(tag)?;
    ensure!(end.status() == Some(GOOD), "a read ended with {:?}", end.sense());
    Ok(end.data)
}

/// Sends writes that do not end, from block 0 on.
fn hang(wire: &mut Wire, mark: u8) -> Result<Vec<u32>> {
    (0..DEPTH).map(|number| wire.write(number * WRITE_BLOCKS, &block(mark), false)).collect()
}

/// Returns the latencies of consecutive writes, sorted.
fn latencies(wire: &mut Wire) -> Result<Vec<Duration>> {
    let mut took = Vec::with_capacity(WRITES);
    for number in 0..WRITES as u32 {
        let began = now();
        write(wire, number * WRITE_BLOCKS, number as u8)?;
        took.push(now() - began);
    }
    took.sort_unstable();
    Ok(took)
}

fn p99(sorted: &[Duration]) -> Duration {
    sorted[sorted.len() * 99 / 100]
}

/// Returns whether the main thread has ended. A thread that waits in the kernel keeps the process ID until the disk
/// responds, whatever the program does.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

fn ends_within(serving: &Serving, limit: Duration) -> Result<Duration> {
    let began: Instant = now();
    while !has_ended(serving.pid()) {
        ensure!(now() - began < limit, "it has not ended within {limit:?}; {}", serving.log());
        std::thread::yield_now();
    }
    Ok(now() - began)
}

fn is_not_ready(wire: &mut Wire) -> Result<bool> {
    let end = wire.test_unit_ready()?;
    let sense = end.sense();
    Ok(end.status() == Some(CHECK_CONDITION)
        && sense
            .is_some_and(|sense| (sense.key, sense.asc, sense.ascq) == (SenseKey::NotReady, 4, 0)))
}

/// Waits until a unit is served again.
fn recovers(wire: &mut Wire) -> Result<()> {
    let began = now();
    while wire.test_unit_ready()?.status() != Some(GOOD) {
        ensure!(now() - began < client::LIMIT, "the unit does not come back");
    }
    Ok(())
}

#[test]
fn disks_that_hang_stop_no_other_volume() -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    for engine in ["auto", "pool"] {
        let names: Vec<String> =
            (0..HUNG_VOLUMES).map(|number| format!("hung-{engine}-{number}")).collect();
        let mut volumes: Vec<Volume> =
            names.iter().map(|name| Volume::new(name, disk.file(name), 4 * MIB)).collect();
        let beside = folder.path().join(format!("beside-{engine}"));
        volumes.push(Volume::new("beside", Backing::File(beside), 16 * MIB));
        // All volumes use the same core.
        let arguments = ["--cores", "1", "--io-engine", engine, "--logout-grace", "0"];
        let serving = Serving::start_with(&volumes, &arguments)?;
        let mut neighbour = Wire::login(serving.url("beside"), NAME, ISID)?;
        neighbour.settle()?;
        latencies(&mut neighbour)?;
        let alone = latencies(&mut neighbour)?;
        let login = |name: &String| {
            let mut wire = Wire::login(serving.url(name), NAME, ISID)?;
            wire.settle()?;
            Ok(wire)
        };
        let mut hung: Vec<Wire> = names.iter().map(login).collect::<Result<_>>()?;
        let frozen = disk.freeze()?;
        let mut tags = Vec::new();
        for wire in &mut hung {
            tags.push(hang(wire, 1)?);
            // The server has received all commands.
            wire.ping()?;
        }
        let with = latencies(&mut neighbour).with_context(|| serving.log())?;
        let sync = neighbour.command(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0, 0, &[])?;
        ensure!(neighbour.end_of(sync)?.status() == Some(GOOD), "a flush beside hung disks");
        println!(
            "{engine}: p99 of {WRITES} writes {:?} alone, {:?} beside {HUNG_VOLUMES} hung volumes: \
             {:.2} times",
            p99(&alone),
            p99(&with),
            p99(&with).as_secs_f64() / p99(&alone).as_secs_f64()
        );
        drop(frozen);
        for (wire, tags) in hung.iter_mut().zip(tags) {
            let mut left = tags.len();
            while left > 0 {
                let pdu = wire.next()?.context("closed")?;
                if let Some(status) = pdu.status() {
                    ensure!(status == GOOD, "what hung ended with {:?}", pdu.sense());
                    left -= 1;
                }
            }
            ensure!(read(wire, 0)? == block(1), "what was written while it hung is not there");
        }
        drop(hung);
        drop(neighbour);
        serving.stop()?;
    }
    Ok(())
}

/// Starts a target with a unit that hangs (LUN 0), a unit that does not, and another one that hangs.
fn serve_both(disk: &FileSystem, folder: &Path) -> Result<Serving> {
    let configuration = folder.join("sarsen.toml");
    let table =
        format!("[[target]]\nname = \"{TARGET}\"\nluns = [\"hung\", \"healthy\", \"later\"]\n");
    fs::write(&configuration, table)?;
    let volumes = [
        Volume::new("hung", disk.file("hung"), 4 * MIB),
        Volume::new("healthy", Backing::File(folder.join("healthy")), 4 * MIB),
        Volume::new("later", disk.file("later"), 4 * MIB),
    ];
    let configuration = configuration.to_str().context("a name")?;
    Serving::start_with(
        &volumes,
        &["--config", configuration, "--cores", "1", "--logout-grace", "1"],
    )
}

#[test]
fn a_hung_unit_is_reset_in_time_and_its_clients_keep_the_others() -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    let serving = serve_both(&disk, folder.path())?;
    let url = serving.url("hung");
    let mut wire = Wire::login(url, NAME, ISID)?;
    for lun in [2, 1, 0] {
        wire.lun = lun;
        wire.settle()?;
        write(&mut wire, 1024, 7)?;
    }
    let frozen = disk.freeze()?;
    hang(&mut wire, 1)?;

    let began = now();
    let reset = wire.manage(TaskManagementFunction::LogicalUnitReset, 0)?;
    let response = wire.managed(reset).with_context(|| serving.log())?;
    let took = now() - began;
    ensure!(response == TaskManagementResponse::FunctionComplete, "{response:?}");
    println!("LOGICAL UNIT RESET of a unit that hangs was answered after {took:?}");
    ensure!(took < RESET_LIMIT, "the reset took {took:?}");
    // The unit attention of the reset comes first.
    let is_reported = is_not_ready(&mut wire)? || is_not_ready(&mut wire)?;
    ensure!(is_reported, "the unit does not say that it is not ready; {}", serving.log());
    let refused = wire.write(0, &block(9), false)?;
    let status = wire.end_of(refused)?.status();
    ensure!(status == Some(CHECK_CONDITION), "{status:?} to a write that an older one could undo");
    serving.log_tells(|log| log.contains("volume hung does not respond"))?;
    wire.lun = 1;
    write(&mut wire, 0, 3)?;

    // A client closes the session of another unit, and logs in again.
    wire.lun = 2;
    hang(&mut wire, 1)?;
    wire.lun = 1;
    write(&mut wire, 0, 4)?;
    for (attempt, limit) in [("while its commands are young", RESET_LIMIT), ("again", AT_ONCE)] {
        let began = now();
        let mut back = Wire::login(url, NAME, ISID).with_context(|| serving.log())?;
        back.lun = 1;
        back.settle()?;
        ensure!(read(&mut back, 0)? == block(4), "the healthy unit");
        let took = now() - began;
        println!("a session that was reinstated {attempt} had its healthy unit after {took:?}");
        ensure!(took < limit, "it took {took:?}");
        wire = back;
    }
    for lun in [0, 2] {
        wire.lun = lun;
        ensure!(is_not_ready(&mut wire)? || is_not_ready(&mut wire)?, "LUN {lun} is ready");
    }

    drop(frozen);
    for lun in [0, 2] {
        wire.lun = lun;
        recovers(&mut wire)?;
        ensure!(read(&mut wire, 1024)? == block(7), "what was acknowledged before is not there");
        ensure!(read(&mut wire, 0)? != block(9), "what was refused has happened");
        write(&mut wire, 0, 5)?;
        ensure!(read(&mut wire, 0)? == block(5), "what was acknowledged after is not there");
    }
    serving.log_tells(|log| log.contains("volume hung works again"))?;
    drop(wire);
    serving.stop()
}

#[test]
fn sigterm_ends_it_in_time_and_a_second_one_at_once() -> Result<()> {
    let folder = tempfile::tempdir_in("/var/tmp")?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    for (engine, is_asked_twice) in [("auto", false), ("pool", false), ("auto", true)] {
        let healthy = folder.path().join("healthy");
        let volumes = [
            Volume::new("hung", disk.file("hung"), 4 * MIB),
            Volume::new("healthy", Backing::File(healthy.clone()), 4 * MIB),
        ];
        let grace = if is_asked_twice { "600" } else { "3" };
        let arguments = ["--cores", "1", "--io-engine", engine, "--logout-grace", grace];
        let serving = Serving::start_with(&volumes, &arguments)?;
        let mut hung = Wire::login(serving.url("hung"), NAME, ISID)?;
        hung.settle()?;
        let mut other = Wire::login(serving.url("healthy"), NAME, OTHER_ISID)?;
        other.settle()?;
        write(&mut other, 0, 6)?;
        let frozen = disk.freeze()?;
        hang(&mut hung, 1)?;
        hung.ping()?;
        client::signal(&serving, Signal::TERM)?;
        if is_asked_twice {
            serving.log_tells(|log| log.contains("SIGTERM: ending"))?;
            client::signal(&serving, Signal::TERM)?;
            let took = ends_within(&serving, AT_ONCE)?;
            println!("{engine}: a second SIGTERM ended it after {took:?}");
        } else {
            let took = ends_within(&serving, END_LIMIT)?;
            println!("{engine}: SIGTERM ended it after {took:?}");
            let log = serving.log();
            let is_named = |line: &&str| line.contains("without a flush") && line.contains("hung");
            ensure!(log.lines().any(|line| is_named(&line)), "the log names no volume; {log}");
            ensure!(!log.contains("volume=healthy"), "the healthy volume was not flushed; {log}");
        }
        drop(frozen);
        let ended = serving.stop();
        let error = ended.err().context("it ended as if all had been flushed")?.to_string();
        ensure!(error.contains("exit status: 1"), "{error}");
        ensure!(fs::read(&healthy)?[..WRITE_LENGTH] == block(6), "the healthy volume");
    }
    Ok(())
}
