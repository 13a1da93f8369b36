//! Damage to the file of a volume while it is served: the file is deleted, replaced, moved or truncated. The server
//! acknowledges no write and no flush that the file does not contain, and no truncated file grows again with zeroes.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::Buffer;
use sarsen_block::layers::{Fault, Faults, FaultyStore, Times};
use sarsen_initiator::{
    Command, Sense, SenseKey, SessionError, SessionOptions, TransferRequest, Unit, Url,
};
use sarsen_io::file::{File, OpenOptions};
use sarsen_io::time::{now, sleep_until};
use sarsen_node::{Config, Server, config};
use sarsen_proof::managed::Managed;
use sarsen_proof::program;
use serde_json::Value;

use crate::client::run;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 8 * MIB;
const BLOCK: usize = 4096;
/// LOGICAL UNIT NOT READY, MANUAL INTERVENTION REQUIRED.
const OUT_OF_SERVICE: (SenseKey, u16) = (SenseKey::NotReady, 0x0403);
/// Maximum time until the server notices a change without a command.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const POLL: Duration = Duration::from_millis(50);

/// A server with one volume in a file of this cache mode, and a session with it.
struct Bench {
    // Declared before the server, because the server must detect the deletion of the file.
    unit: Unit,
    server: Managed,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Bench {
    async fn new(cache: &str) -> Result<Self> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let path = folder.path().join("disk.img");
        let server = Managed::start(folder.path())?;
        let file = path.to_str().context("a path")?;
        let create =
            ["volume", "create", "data", "8MiB", "--block-size", "4096", "--path", file, "--cache"];
        server.run(&[&create[..], &[cache, "--export"]].concat())?;
        let unit = connect(&server).await?;
        Ok(Self { unit, server, path, _folder: folder })
    }

    /// Writes a block, and flushes.
    async fn write(&self, lba: u64, byte: u8) -> Result<(), SessionError> {
        self.unit.write(lba, Buffer::copy_of(&[byte; BLOCK]), false).await
    }

    async fn sense(&self, cdb: &[u8]) -> Result<Option<(SenseKey, u16)>> {
        sense(&self.unit, cdb).await
    }

    /// Waits until the server reports a problem of the volume, and returns it.
    async fn problem(&self) -> Result<String> {
        let problem = self.until(|problems| problems.first().cloned()).await?;
        Ok(problem)
    }

    async fn until<T>(&self, wanted: impl Fn(&[String]) -> Option<T>) -> Result<T> {
        let limit = now() + NOTICED_WITHIN;
        loop {
            let problems = problems(&self.server)?;
            if let Some(found) = wanted(&problems) {
                return Ok(found);
            }
            ensure!(now() < limit, "not within {NOTICED_WITHIN:?}: {problems:?}");
            sleep_until(now() + POLL).await;
        }
    }
}

async fn connect(server: &Managed) -> Result<Unit> {
    let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:data/0", server.portal()?);
    Ok(Unit::connect(&url.parse()?, &SessionOptions::default()).await?)
}

/// Returns the problems of volumes in the server's list of volumes.
fn problems(server: &Managed) -> Result<Vec<String>> {
    let said = server.run(&["volume", "list"])?;
    Ok(said.lines().filter_map(|line| line.strip_prefix("! ")).map(str::to_owned).collect())
}

/// Returns the sense of a failed command, after all unit attentions; `None` for a command that succeeds.
async fn sense(unit: &Unit, cdb: &[u8]) -> Result<Option<(SenseKey, u16)>> {
    loop {
        let completion = unit.execute(Command::new(cdb, TransferRequest::None)).await?;
        if completion.status == 0 {
            return Ok(None);
        }
        let sense = Sense::parse(&completion.sense).context("sense data")?;
        if sense.key != SenseKey::UnitAttention {
            return Ok(Some(code(&sense)));
        }
    }
}

fn code(sense: &Sense) -> (SenseKey, u16) {
    (sense.key, u16::from_be_bytes([sense.asc, sense.ascq]))
}

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

fn events(server: &Managed, kind: &str) -> Result<Vec<Value>> {
    let events = server.json(&["event", "list", "--kind", kind])?;
    Ok(events["events"].as_array().cloned().unwrap_or_default())
}

/// Returns the open file that a problem names, from which the data can be rescued.
fn open_file(problem: &str) -> Result<PathBuf> {
    let start = problem.find("/proc/").context("a file to rescue data from")?;
    let end = problem[start..].find([',', ' ']).context("its end")?;
    Ok(Path::new(&problem[start..][..end]).to_owned())
}

/// Checks that writes and flushes fail at once.
async fn is_refused(bench: &Bench, lba: u64) -> Result<()> {
    ensure!(bench.write(lba, 9).await.is_err(), "a write was acknowledged");
    ensure!(
        bench.sense(&SYNCHRONIZE_CACHE).await? == Some(OUT_OF_SERVICE),
        "a flush was acknowledged"
    );
    ensure!(bench.sense(&TEST_UNIT_READY).await? == Some(OUT_OF_SERVICE));
    Ok(())
}

const MODES: [&str; 3] = ["writeback", "none", "writethrough"];

#[test]
fn a_file_that_is_deleted_takes_no_write_and_no_flush_and_its_data_can_be_rescued() -> Result<()> {
    for cache in MODES {
        run(async {
            let bench = Bench::new(cache).await?;
            bench.write(3, 0x5a).await?;
            bench.unit.flush().await?;
            fs::remove_file(&bench.path)?;
            is_refused(&bench, 4).await?;
            let problem = bench.problem().await?;
            ensure!(problem.contains("was deleted while it was served"), "{problem}");
            let reported = events(&bench.server, "problem")?;
            ensure!(
                reported.len() == 1 && reported[0]["subject"]["volume"] == "data",
                "{reported:?}"
            );
            let metrics = bench.server.run(&["metrics"])?;
            ensure!(metrics.lines().any(|line| line == "sarsen_problems 1"), "{metrics}");
            // Follow the instructions of the problem.
            let data = fs::read(open_file(&problem)?)?;
            ensure!(data.len() as u64 == SIZE && data[3 * BLOCK] == 0x5a, "the data are there");
            Ok(())
        })
        .with_context(|| cache)?;
    }
    Ok(())
}

#[test]
fn deleted_file_is_noticed_without_writes() -> Result<()> {
    run(async {
        let bench = Bench::new("writeback").await?;
        fs::remove_file(&bench.path)?;
        bench.problem().await?;
        ensure!(bench.sense(&TEST_UNIT_READY).await? == Some(OUT_OF_SERVICE));
        ensure!(bench.unit.read(0, 1).await.is_err(), "reads are refused, too");
        Ok(())
    })
}

#[test]
fn a_truncated_file_does_not_grow_back_with_zeroes() -> Result<()> {
    for cache in MODES {
        run(async {
            let bench = Bench::new(cache).await?;
            let last = SIZE / BLOCK as u64 - 1;
            for lba in [0, last] {
                bench.write(lba, 0x5a).await?;
            }
            bench.unit.flush().await?;
            let file = fs::File::options().write(true).open(&bench.path)?;
            file.set_len(MIB)?;
            // A write of the last block would give the file its old length.
            is_refused(&bench, last).await?;
            ensure!(fs::metadata(&bench.path)?.len() == MIB, "the file grew");
            let problem = bench.problem().await?;
            ensure!(problem.contains("was truncated while it was served"), "{problem}");
            // The old length of the file does not restore its data.
            file.set_len(SIZE)?;
            ensure!(bench.sense(&TEST_UNIT_READY).await? == Some(OUT_OF_SERVICE));
            Ok(())
        })
        .with_context(|| cache)?;
    }
    Ok(())
}

#[test]
fn a_read_beyond_the_end_of_a_truncated_file_is_an_error() -> Result<()> {
    run(async {
        let bench = Bench::new("writeback").await?;
        fs::File::options().write(true).open(&bench.path)?.set_len(MIB)?;
        let read = bench.unit.read(SIZE / BLOCK as u64 - 1, 1).await;
        ensure!(read.is_err(), "zeroes for data that are lost");
        ensure!(bench.problem().await?.contains("was truncated"));
        Ok(())
    })
}

#[test]
fn a_file_that_is_replaced_is_out_of_service_and_one_that_comes_back_is_served() -> Result<()> {
    for cache in ["writeback", "none"] {
        run(async {
            let bench = Bench::new(cache).await?;
            let (aside, other) =
                (bench.path.with_extension("aside"), bench.path.with_extension("other"));
            bench.write(3, 0x5a).await?;
            bench.unit.flush().await?;
            fs::rename(&bench.path, &aside)?;
            let problem = bench.problem().await?;
            ensure!(problem.contains("there is no "), "{problem}");
            fs::File::create(&other)?.set_len(SIZE)?;
            fs::rename(&other, &bench.path)?;
            bench
                .until(|problems| problems.first()?.contains("is another file").then_some(()))
                .await?;
            is_refused(&bench, 4).await?;
            ensure!(
                fs::read(&bench.path)?.iter().all(|&byte| byte == 0),
                "nothing reached the other"
            );
            fs::rename(&aside, &bench.path)?;
            bench.until(|problems| problems.is_empty().then_some(())).await?;
            // Sessions receive a unit attention, and continue.
            let ready =
                bench.unit.execute(Command::new(&TEST_UNIT_READY, TransferRequest::None)).await?;
            let attention = Sense::parse(&ready.sense).map(|sense| code(&sense));
            ensure!(attention == Some((SenseKey::UnitAttention, 0x2800)), "{attention:?}");
            ensure!(bench.unit.read(3, 1).await?[..] == [0x5a; BLOCK]);
            bench.write(4, 1).await?;
            bench.unit.flush().await?;
            ensure!(!events(&bench.server, "problem_solved")?.is_empty());
            Ok(())
        })
        .with_context(|| cache)?;
    }
    Ok(())
}

/// A server in this process, over a disk whose flushes fail when the test chooses.
async fn flush_fails_and_is_reattached(folder: &Path) -> Result<()> {
    const STOPPED: (SenseKey, u16) = (SenseKey::MediumError, 0x0c00);
    let faults = Faults::default();
    let planted = faults.clone();
    let control = folder.join("control");
    let mut config = Config {
        cores: NonZeroUsize::new(1),
        listen: vec![config::parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
        control: Some(control.clone()),
        ..Config::default()
    };
    for name in ["data", "other"] {
        let path = folder.join(name);
        let volume = format!("{name}=file:{},size=8MiB", path.display());
        config.volumes.push(config::parse_volume(&volume)?);
    }
    let server = Server::start_layered(config.finish()?, move |name, inner| match name {
        "data" => Arc::new(FaultyStore::new(inner, planted.clone())),
        _ => inner,
    })?;
    let used = async {
        let sarsen = async |arguments: &[&str]| -> Result<Output> {
            let mut command = std::process::Command::new(program::path()?);
            command.args(arguments).arg("--control").arg(&control);
            let output = tokio::task::spawn_blocking(move || command.output());
            Ok(output.await??)
        };
        let url = |name: &str| -> Result<Url> {
            let exports = server.exports();
            let export = exports.iter().find(|export| export.volume == name).context("exported")?;
            Ok(export.urls[0].parse()?)
        };
        let options = SessionOptions::default();
        let neighbour = Unit::connect(&url("other")?, &options).await?;
        let unit = Unit::connect(&url("data")?, &options).await?;
        let write =
            async |unit: &Unit, byte: u8| unit.write(0, Buffer::copy_of(&[byte; 512]), false).await;
        write(&unit, 1).await?;
        unit.flush().await?;
        ensure!(sense(&unit, &TEST_UNIT_READY).await?.is_none());

        faults.add(Fault::FlushFails, Times::Once);
        write(&unit, 2).await?;
        ensure!(unit.flush().await.is_err(), "the flush failed");
        ensure!(
            sense(&unit, &SYNCHRONIZE_CACHE).await? == Some(STOPPED),
            "and that is not forgotten"
        );
        ensure!(sense(&unit, &TEST_UNIT_READY).await? == Some(STOPPED));
        ensure!(write(&unit, 3).await.is_err(), "no more writes");
        unit.read(0, 1).await?;
        let limit = now() + NOTICED_WITHIN;
        loop {
            let doctor = sarsen(&["doctor", "--json"]).await?;
            let doctor: Value = serde_json::from_slice(&doctor.stdout)?;
            let findings = doctor["findings"].as_array().context("findings")?;
            if findings.iter().any(reports_no_writes) {
                break;
            }
            ensure!(now() < limit, "{findings:?}");
            sleep_until(now() + POLL).await;
        }
        let metrics = String::from_utf8(sarsen(&["metrics"]).await?.stdout)?;
        ensure!(metrics.lines().any(|line| line == "sarsen_problems 1"), "{metrics}");

        let refused = sarsen(&["volume", "reattach", "data"]).await?;
        ensure!(refused.status.code() == Some(CONFLICT), "it is in use: {refused:?}");
        let reattach = sarsen(&["volume", "reattach", "data", "--force", "--grace", "0", "--json"]);
        let reattached = reattach.await?;
        let said = String::from_utf8_lossy(&reattached.stdout);
        ensure!(reattached.status.success(), "{reattached:?}");
        ensure!(said.contains("\"writes_may_be_lost\":true"), "{said}");
        let unit = Unit::connect(&url("data")?, &options).await?;
        ensure!(sense(&unit, &TEST_UNIT_READY).await?.is_none());
        write(&unit, 4).await?;
        unit.flush().await?;
        ensure!(unit.read(0, 1).await?[..] == [4; 512]);
        // The neighbour's session is not affected.
        write(&neighbour, 5).await?;
        neighbour.flush().await?;
        let limit = now() + NOTICED_WITHIN;
        while !server.metrics().lines().any(|line| line == "sarsen_problems 0") {
            ensure!(now() < limit, "it is still a problem");
            sleep_until(now() + POLL).await;
        }
        for unit in [unit, neighbour] {
            unit.logout().await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        used = used => used?,
        () = server.run_maintenance() => unreachable!("it does not end"),
    }
    ensure!(server.shutdown(Duration::from_secs(5)).await, "all is flushed");
    Ok(())
}

/// Returns whether a finding of `sarsen doctor` reports a volume that takes no writes.
fn reports_no_writes(finding: &Value) -> bool {
    finding["level"] == "problem" && finding["finding"].to_string().contains("takes no writes")
}

#[test]
fn a_volume_whose_flush_failed_is_a_problem_and_is_reattached_alone() -> Result<()> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    run(flush_fails_and_is_reattached(folder.path()))
}

#[test]
fn a_deleted_file_that_was_rescued_is_served_when_its_volume_is_reattached() -> Result<()> {
    run(async {
        let bench = Bench::new("writeback").await?;
        bench.write(3, 0x5a).await?;
        bench.unit.flush().await?;
        fs::remove_file(&bench.path)?;
        let problem = bench.problem().await?;
        let reattach = ["volume", "reattach", "data", "--force", "--grace", "0"];
        let said = bench.server.refused(FAILED, &reattach)?;
        ensure!(said.contains("bring its file back first"), "the open file is kept: {said}");
        // Neither the file of another volume nor a folder takes its place.
        bench.server.run(&["volume", "create", "other", "8MiB"])?;
        let other = bench.path.with_file_name("state/volumes/other.img");
        fs::hard_link(&other, &bench.path)?;
        let said = bench.server.refused(FAILED, &reattach)?;
        ensure!(said.contains("is in use by another program"), "{said}");
        fs::remove_file(&bench.path)?;
        fs::create_dir(&bench.path)?;
        bench.server.refused(FAILED, &reattach)?;
        fs::remove_dir(&bench.path)?;
        fs::copy(open_file(&problem)?, &bench.path)?;
        let said = bench.server.refused(CONFLICT, &reattach[..3])?;
        ensure!(said.contains("force"), "{said}");
        bench.server.run(&reattach)?;
        let unit = connect(&bench.server).await?;
        ensure!(unit.read(3, 1).await?[..] == [0x5a; BLOCK]);
        unit.write(4, Buffer::copy_of(&[7; BLOCK]), false).await?;
        unit.flush().await?;
        ensure!(fs::read(&bench.path)?[4 * BLOCK] == 7);
        bench.until(|problems| problems.is_empty().then_some(())).await
    })
}

#[test]
fn remains_of_killed_apply_are_listed_and_removable() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volumes = folder.path().join("state/volumes");
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "kept", "1MiB"])?;
    let document: String =
        (0..300).map(|n| format!("[[volume]]\nname = \"v{n:03}\"\nsize = \"1MiB\"\n")).collect();
    let entries = || -> Result<usize> { Ok(fs::read_dir(&volumes)?.count()) };
    let before = entries()?;
    std::thread::scope(|scope| -> Result<()> {
        // The text is truncated, and shows that.
        let applying = scope.spawn(|| server.apply(&document, &[]).map(drop));
        while entries()? < before + 4 {
            std::thread::yield_now();
        }
        signal_kill(server.pid())?;
        let _ = applying.join();
        Ok(())
    })?;
    drop(server);
    let server = Managed::start(folder.path())?;
    let orphans = orphan_names(&server)?;
    ensure!(orphans.len() >= 3 && orphans.iter().all(|name| name.starts_with('v')), "{orphans:?}");
    let doctor = server.command(&["doctor", "--json"])?.output()?;
    let doctor = String::from_utf8(doctor.stdout)?;
    ensure!(doctor.contains("belong to no volume"), "{doctor}");
    server.refused(USAGE, &["volume", "orphan", "remove", &orphans[0]])?;
    server.refused(NOT_FOUND, &["volume", "orphan", "remove", "--destroy", "kept.img"])?;
    ensure!(orphan_names(&server)? == orphans && volumes.join("kept.img").exists());
    let names = orphans.iter().map(String::as_str);
    let remove: Vec<&str> =
        ["volume", "orphan", "remove", "--destroy"].into_iter().chain(names).collect();
    server.run(&remove)?;
    ensure!(
        orphan_names(&server)?.is_empty() && entries()? == before,
        "nothing but what was there"
    );
    server.stop()
}

/// Returns the names of the files that belong to no volume.
fn orphan_names(server: &Managed) -> Result<Vec<String>> {
    let found = server.json(&["volume", "orphan", "list"])?;
    let found = found["orphans"].as_array().context("a list")?.iter();
    found.map(|one| Ok(one["name"].as_str().context("a name")?.to_owned())).collect()
}

fn signal_kill(pid: u32) -> Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    Ok(rustix::process::kill_process(pid.context("a process id")?, rustix::process::Signal::KILL)?)
}

#[test]
fn a_deleted_volume_leaves_its_file_unless_it_is_erased() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let volumes = folder.path().join("state/volumes");
    let server = Managed::start(folder.path())?;
    for name in ["left", "erased"] {
        server.run(&["volume", "create", name, "1MiB", "--export"])?;
    }
    server.run(&["volume", "delete", "left", "--cascade"])?;
    server.run(&["volume", "delete", "erased", "--cascade", "--erase"])?;
    ensure!(volumes.join("left.img").exists() && !volumes.join("erased.img").exists());
    ensure!(!volumes.join("erased.img.state").exists(), "nor what was kept beside it");
    let orphans = server.json(&["volume", "orphan", "list"])?;
    ensure!(orphans["orphans"][0]["name"] == "left.img", "{orphans}");
    // Another file at the path of the volume stays.
    server.run(&["volume", "create", "replaced", "1MiB"])?;
    let (own, aside) = (volumes.join("replaced.img"), folder.path().join("aside"));
    fs::rename(&own, &aside)?;
    fs::write(&own, "another program's")?;
    let deleted = server.command(&["volume", "delete", "replaced", "--erase"])?.output()?;
    let said = String::from_utf8(deleted.stderr)?;
    ensure!(said.contains("did not have this file open"), "{said}");
    ensure!(fs::read(&own)? == b"another program's" && aside.exists());
    fs::remove_file(&own)?;
    // `--erase` refuses a volume whose path is a link to another file, and the volume stays.
    let (other, link) = (folder.path().join("other"), folder.path().join("link"));
    fs::File::create(&other)?.set_len(MIB)?;
    std::os::unix::fs::symlink(&other, &link)?;
    let path = link.to_str().context("a path")?;
    server.run(&["volume", "create", "linked", "--path", path])?;
    let said = server.refused(FAILED, &["volume", "delete", "linked", "--erase"])?;
    ensure!(said.contains("without --erase") && other.exists(), "{said}");
    server.run(&["volume", "show", "linked"])?;
    server.stop()
}

#[test]
fn allocation_is_listed_and_overcommitment_gets_warning() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let fits = server.json(&["volume", "create", "data", "8MiB"])?;
    ensure!(fits["warnings"].is_null(), "{fits}");
    server.run(&["target", "create", "iqn.2026-11.io.sarsen:data", "--lun", "data"])?;
    let too_much = server.json(&["volume", "create", "huge", "15TiB"])?;
    let warning = too_much["warnings"][0].as_str().context("a warning")?;
    ensure!(warning.contains("may still take 1") && warning.contains("are free"), "{warning}");
    let doctor = server.command(&["doctor", "--json"])?.output()?;
    ensure!(String::from_utf8(doctor.stdout)?.contains("may still take 1"), "doctor says it, too");
    run(async {
        let unit = connect(&server).await?;
        unit.write(0, Buffer::copy_of(&[7; MIB as usize]), false).await?;
        unit.flush().await?;
        let limit = now() + NOTICED_WITHIN;
        loop {
            let list = server.json(&["volume", "list"])?;
            let usage = list["usage"].as_array().context("usage")?.iter();
            let mut own = usage.filter(|usage| usage["name"] == "data");
            let own = own.next().context("its usage")?;
            ensure!(own["size_bytes"] == SIZE && own["free_bytes"].as_u64() > Some(0), "{own}");
            if own["allocated_bytes"].as_u64() >= Some(MIB) {
                break;
            }
            ensure!(now() < limit, "{own}");
            sleep_until(now() + POLL).await;
        }
        Ok(())
    })?;
    let listed = server.run(&["volume", "list"])?;
    ensure!(listed.starts_with("VOLUME  SIZE"), "{listed}");
    server.stop()
}

#[test]
fn exchanged_files_are_refused_until_they_are_confirmed() -> Result<()> {
    run(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let volumes = folder.path().join("state/volumes");
        let [data, other, aside] =
            ["data.img", "other.img", "aside"].map(|name| volumes.join(name));
        let exchange = || -> Result<()> {
            fs::rename(&data, &aside)?;
            fs::rename(&other, &data)?;
            Ok(fs::rename(&aside, &other)?)
        };
        let begins_with = async |server: &Managed, byte: u8| -> Result<()> {
            let unit = connect(server).await?;
            ensure!(unit.read(0, 1).await?[..] == [byte; 512]);
            Ok(unit.logout().await?)
        };
        let server = Managed::start(folder.path())?;
        for name in ["data", "other"] {
            server.run(&["volume", "create", name, "8MiB", "--export"])?;
        }
        let unit = connect(&server).await?;
        unit.write(0, Buffer::copy_of(&[7; 512]), true).await?;
        unit.logout().await?;
        server.stop()?;
        exchange()?;
        let server = Managed::start(folder.path())?;
        let refused = problems(&server)?;
        let of_another =
            |problem: &String| problem.contains("marked as the file of another volume");
        ensure!(refused.len() == 2 && refused.iter().all(of_another), "{refused:?}");
        server.stop()?;
        exchange()?;
        let server = Managed::start(folder.path())?;
        ensure!(problems(&server)?.is_empty());
        begins_with(&server, 7).await?;
        // Neither a preview nor a refused change marks a file.
        let left = volumes.join("left.img");
        let path = left.to_str().context("a path")?;
        let mark = || -> Result<Option<Vec<u8>>> {
            let options = OpenOptions { read_only: true, ..OpenOptions::default() };
            Ok(File::open(&left, options)?.attribute("user.sarsen.volume")?)
        };
        server.run(&["volume", "create", "left", "1MiB"])?;
        server.run(&["volume", "delete", "left"])?;
        let marked = mark()?;
        ensure!(marked.is_some());
        server.run(&["volume", "create", "third", "--path", path, "--dry-run"])?;
        let refused = format!(
            "[[volume]]\nname = \"third\"\npath = \"{path}\"\n\
             [[volume]]\nname = \"fourth\"\npath = \"/dev/null\"\n"
        );
        ensure!(!server.apply(&refused, &[])?.status.success());
        ensure!(mark()? == marked);
        server.run(&["volume", "create", "third", "--path", path])?;
        ensure!(mark()?.is_some_and(|mark| Some(mark) != marked));
        // Another serial number of the same volume is no other volume.
        server.run(&["volume", "set", "other", "serial=another"])?;
        ensure!(problems(&server)?.is_empty());
        server.stop()?;
        // An administrator confirms a file, which then belongs to the volume.
        exchange()?;
        let server = Managed::start(folder.path())?;
        server.run(&["volume", "reattach", "data"])?;
        begins_with(&server, 0).await?;
        server.stop()?;
        let server = Managed::start(folder.path())?;
        let refused = problems(&server)?;
        ensure!(refused.len() == 1 && refused[0].contains("volume other:"), "{refused:?}");
        server.stop()
    })
}

#[test]
fn a_file_without_a_configured_size_is_refused_if_it_was_truncated() -> Result<()> {
    run(async {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let data = folder.path().join("data");
        fs::write(&data, vec![7; 8 << 20])?;
        let server = Managed::start(folder.path())?;
        let path = data.to_str().context("a path")?;
        server.run(&["volume", "create", "data", "--path", path, "--export"])?;
        server.stop()?;
        let set_length = |bytes| {
            let file = fs::OpenOptions::new().write(true).open(&data)?;
            file.set_len(bytes).context("the length is set")
        };
        set_length(4 << 20)?;
        let server = Managed::start(folder.path())?;
        let refused = problems(&server)?;
        ensure!(
            refused.len() == 1 && refused[0].contains("has 4194304 bytes of the 8388608"),
            "{refused:?}"
        );
        let reattached = server.command(&["volume", "reattach", "data"])?.output()?;
        ensure!(!reattached.status.success(), "it does not confirm a truncated file");
        // The remedy that the message gives.
        server.run(&["volume", "set", "data", "size=4194304"])?;
        let capacity = connect(&server).await?.read_capacity().await?;
        ensure!(capacity.bytes() == 4 << 20);
        server.stop()
    })
}
