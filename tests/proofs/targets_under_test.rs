//! The lab's targets start, answer, and leave nothing behind, neither after a drop nor after a kill of the process that
//! started them.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_initiator::nbd::{NbdPlace, NbdUrl};
use sarsen_io::time::now;
use sarsen_lab::access::AccessPattern;
use sarsen_lab::load::{self, Endpoint, LoadOptions};
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_lab::target_under_test::{
    Folders, GuestTarget, Medium, Running, Striping, TargetUnderTest, TargetUnderTestError,
    VolumeSpec,
};
use sarsen_lab::trace::Request;
use sarsen_node::stores::CacheMode;
use sarsen_proof::{guest, process, program};

const BYTE_COUNT: u64 = 16 << 20;
const LIMIT: Duration = Duration::from_secs(20);

fn volumes(cache: CacheMode) -> [VolumeSpec; 2] {
    [("memory", Medium::Ram), ("disk", Medium::Disk)].map(|(name, medium)| VolumeSpec {
        name: name.into(),
        medium,
        bytes: BYTE_COUNT,
        cache,
        striping: None,
    })
}

fn start(
    target_under_test: &TargetUnderTest,
    cache: CacheMode,
    folder: &Path,
) -> Result<(Running, Vec<Endpoint>)> {
    let network = Network::build(&[LinkProfile::loopback()]);
    let volumes = volumes(cache);
    let guests = guest::cache();
    let scst = std::env::var_os("SARSEN_SCST").map(PathBuf::from);
    let folders = Folders { volumes: folder, guests: &guests, scst: scst.as_deref() };
    let running = target_under_test.start_beside(&program::path()?, &network, &volumes, folders)?;
    let link = network.links().first().context("loopback")?;
    let endpoints = volumes.iter().map(|volume| running.endpoint(&volume.name, link));
    let endpoints = endpoints.collect::<Result<_, TargetUnderTestError>>()?;
    Ok((running, endpoints))
}

/// Checks with the load generator that data reads back as written.
fn answers(endpoint: &Endpoint, pids: Vec<u32>) -> Result<()> {
    let access =
        AccessPattern { block_bytes: 4096, read_percent: 50, random_percent: 100, queue_depth: 4 };
    let mut options = LoadOptions::new(endpoint.clone(), access);
    options.verify = true;
    options.target_pids = pids;
    options.warm_up = Duration::ZERO;
    options.duration = Duration::from_millis(200);
    let result = load::run(&options)?;
    ensure!(result.errors == 0, "{:?}", result.first_error);
    ensure!(result.ios > 0, "nothing was done");
    Ok(())
}

fn port(endpoint: &Endpoint) -> Option<u16> {
    match endpoint {
        Endpoint::Iscsi(url) => Some(url.portal().port),
        Endpoint::Nbd(NbdUrl { place: NbdPlace::Host(portal), .. }) => Some(portal.port),
        Endpoint::Nbd(_) | Endpoint::Memory(_) | Endpoint::File { .. } => None,
    }
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Starts, uses and ends a target under test.
fn comes_and_goes(target_under_test: &TargetUnderTest, cache: CacheMode) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (running, endpoints) = start(target_under_test, cache, folder.path())?;
    for endpoint in &endpoints {
        answers(endpoint, running.pids()).with_context(|| running.log())?;
    }
    ensure!(running.ended().is_none(), "{:?}", running.ended());
    println!("{target_under_test} {:?}:\n{}", running.version(), running.commands().join("\n"));

    let folders: Vec<_> = running.folders().map(Path::to_owned).collect();
    ensure!(folders.iter().all(|folder| folder.exists()), "{folders:?}");
    let pids = running.pids();
    drop(running);
    for pid in pids {
        ensure!(is_gone(pid), "process {pid} is left");
    }
    for left in folders {
        ensure!(!left.exists(), "{} is left", left.display());
    }
    ensure!(std::fs::read_dir(folder.path())?.next().is_none(), "files are left");
    for port in endpoints.iter().filter_map(port) {
        TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("port {port}"))?;
    }
    Ok(())
}

/// Returns whether a program is installed; prints a message if it is not.
fn is_installed(peer: &str) -> bool {
    let found = process::find(Path::new(peer)).is_some();
    if !found {
        println!("left out, for {peer} is not installed");
    }
    found
}

#[test]
fn sarsen_comes_and_goes_in_every_cache_mode() -> Result<()> {
    use CacheMode::{DirectSync, None, Unsafe, WriteBack, WriteThrough};
    for cache in [WriteBack, WriteThrough, None, DirectSync, Unsafe] {
        comes_and_goes(&TargetUnderTest::Sarsen, cache).with_context(|| format!("{cache:?}"))?;
    }
    Ok(())
}

#[test]
fn striped_volume_is_spread_over_files_on_its_medium() -> Result<()> {
    const CHUNK: u32 = 64 << 10;
    const DEVICES: u8 = 4;
    const MIB: u64 = 1 << 20;
    let striping = Some(Striping { devices: DEVICES, chunk_bytes: CHUNK });
    let network = Network::build(&[LinkProfile::loopback()]);
    let link = network.links().first().context("loopback")?;
    for (volume, place) in volumes(CacheMode::WriteBack).into_iter().zip([0, 1]) {
        let folder = tempfile::tempdir()?;
        let volume = VolumeSpec { striping, ..volume };
        let sarsen = TargetUnderTest::Sarsen;
        let volumes = std::slice::from_ref(&volume);
        let folders = Folders { volumes: folder.path(), guests: folder.path(), scst: None };
        let running = sarsen.start_beside(&program::path()?, &network, volumes, folders)?;
        let files = running.folders().nth(place).context("a folder")?.to_owned();
        let allocated = || -> Result<Vec<u64>> {
            let bytes = |number| {
                let path = files.join(format!("{}.{number}.img", volume.name));
                let file = File::open(&path).with_context(|| path.display().to_string())?;
                file.sync_all()?;
                Ok(file.metadata()?.blocks() * 512)
            };
            (0..DEVICES).map(bytes).collect()
        };
        let before = allocated()?;
        let endpoint = running.endpoint(&volume.name, link)?;
        // Half of the volume, chunk by chunk: two MiB for each device.
        let chunks = (0..BYTE_COUNT / 2 / u64::from(CHUNK)).map(|index| {
            let offset = index * u64::from(CHUNK);
            Ok(Request { at: Duration::ZERO, reads: false, offset, length: CHUNK })
        });
        let access = AccessPattern {
            block_bytes: CHUNK,
            read_percent: 0,
            random_percent: 0,
            queue_depth: 4,
        };
        let options = LoadOptions::new(endpoint.clone(), access);
        let written = load::replay(&options, Box::new(chunks), None)?;
        ensure!(written.errors == 0, "{:?}", written.first_error);
        for (before, after) in before.into_iter().zip(allocated()?) {
            let grown = after - before;
            ensure!((2 * MIB..3 * MIB).contains(&grown), "{}: {grown}", volume.name);
        }
        answers(&endpoint, running.pids()).with_context(|| running.log())?;
    }
    Ok(())
}

#[test]
fn tgt_comes_and_goes_in_every_cache_mode_that_it_has() -> Result<()> {
    if !is_installed("tgtd") {
        return Ok(());
    }
    use CacheMode::{DirectSync, None, WriteBack, WriteThrough};
    for cache in [WriteBack, WriteThrough, None, DirectSync] {
        comes_and_goes(&TargetUnderTest::Tgt, cache).with_context(|| format!("{cache:?}"))?;
    }
    Ok(())
}

#[test]
fn istgt_comes_and_goes() -> Result<()> {
    if !is_installed("istgt") {
        return Ok(());
    }
    comes_and_goes(&TargetUnderTest::Istgt, CacheMode::WriteBack)
}

#[test]
fn nbdkit_comes_and_goes_in_every_cache_mode_that_it_has() -> Result<()> {
    if !is_installed("nbdkit") {
        return Ok(());
    }
    for cache in [CacheMode::WriteBack, CacheMode::WriteThrough, CacheMode::Unsafe] {
        comes_and_goes(&TargetUnderTest::Nbdkit, cache).with_context(|| format!("{cache:?}"))?;
    }
    let folder = tempfile::tempdir()?;
    for cache in [CacheMode::None, CacheMode::DirectSync] {
        let refused = start(&TargetUnderTest::Nbdkit, cache, folder.path()).map(drop);
        let error = refused.err().with_context(|| format!("{cache:?}"))?;
        let unable = matches!(error.downcast_ref(), Some(TargetUnderTestError::Unable(_)));
        ensure!(unable, "{cache:?}: {error:#}");
    }
    Ok(())
}

#[test]
fn foreign_export_is_measured_and_not_stopped() -> Result<()> {
    if !is_installed("nbdkit") {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let (nbdkit, endpoints) = start(&TargetUnderTest::Nbdkit, CacheMode::WriteBack, folder.path())?;
    let target_under_test: TargetUnderTest =
        endpoints[0].to_string().parse().map_err(anyhow::Error::msg)?;
    ensure!(matches!(target_under_test, TargetUnderTest::Nbd(_)), "{target_under_test}");
    let network = Network::build(&[LinkProfile::loopback()]);
    let [volume, _] = volumes(CacheMode::WriteBack);
    let folders = Folders { volumes: folder.path(), guests: folder.path(), scst: None };
    let running = target_under_test.start(&network, std::slice::from_ref(&volume), folders)?;
    ensure!(running.pids().is_empty() && running.folders().next().is_none(), "{running:?}");
    let link = network.links().first().context("loopback")?;
    answers(&running.endpoint(&volume.name, link)?, Vec::new())?;
    drop(running);
    ensure!(nbdkit.ended().is_none(), "{:?}", nbdkit.ended());
    answers(&endpoints[0], nbdkit.pids())
}

#[test]
fn the_bare_media_answer() -> Result<()> {
    comes_and_goes(&TargetUnderTest::Direct, CacheMode::WriteBack)
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn lio_comes_and_goes_in_a_guest() -> Result<()> {
    comes_and_goes(&TargetUnderTest::InGuest(GuestTarget::Lio), CacheMode::DirectSync)
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn programs_come_and_go_in_guests() -> Result<()> {
    let programs = [
        (GuestTarget::Sarsen, None),
        (GuestTarget::Tgt, Some("tgtd")),
        (GuestTarget::Istgt, Some("istgt")),
    ];
    for (target, peer) in programs {
        if peer.is_none_or(is_installed) {
            comes_and_goes(&TargetUnderTest::InGuest(target), CacheMode::WriteBack)
                .with_context(|| target.as_str())?;
        }
    }
    Ok(())
}

/// `SARSEN_SCST` names the folder of its sources, which no package contains.
#[test]
#[ignore = "builds a kernel module and boots a kernel under emulation"]
fn scst_comes_and_goes_in_a_guest() -> Result<()> {
    if std::env::var_os("SARSEN_SCST").is_some() {
        return comes_and_goes(&TargetUnderTest::InGuest(GuestTarget::Scst), CacheMode::DirectSync);
    }
    let folder = tempfile::tempdir()?;
    let error =
        start(&TargetUnderTest::InGuest(GuestTarget::Scst), CacheMode::DirectSync, folder.path())
            .unwrap_err();
    ensure!(error.to_string().contains("name its folder with --scst"), "{error}");
    Ok(())
}

#[test]
fn killed_target_is_reported() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (running, _) = start(&TargetUnderTest::Sarsen, CacheMode::WriteBack, folder.path())?;
    let pid = Pid::from_raw(i32::try_from(running.pids()[0])?);
    kill_process(pid.context("a process id")?, Signal::KILL)?;
    let said = until(|| running.ended())?;
    ensure!(said.contains("ended with signal: 9"), "{said}");
    Ok(())
}

/// The other process of the proof below: it starts a target, prints its files and processes, and waits. It does nothing
/// unless that proof names a folder.
#[test]
fn a_lab_that_stays() -> Result<()> {
    let Ok(folder) = std::env::var("LAB_FOLDER") else { return Ok(()) };
    let (running, _) = start(&TargetUnderTest::Sarsen, CacheMode::WriteBack, Path::new(&folder))?;
    let (tgt, _) = match start(&TargetUnderTest::Tgt, CacheMode::WriteBack, Path::new(&folder)) {
        Ok((tgt, urls)) => (Some(tgt), urls),
        Err(_) => (None, Vec::new()),
    };
    for running in [Some(running), tgt].iter().flatten() {
        running.pids().iter().for_each(|pid| eprintln!("pid {pid}"));
        running.folders().for_each(|folder| eprintln!("folder {}", folder.display()));
    }
    eprintln!("ready");
    let waited = std::io::stdin().read(&mut [0])?;
    bail!("it was to be killed before {waited} bytes came")
}

#[test]
fn nothing_is_left_of_a_lab_that_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut lab = Command::new(std::env::current_exe()?)
        .args(["--exact", "targets_under_test::a_lab_that_stays", "--nocapture"])
        .env("LAB_FOLDER", folder.path())
        .env(program::VARIABLE, program::path()?)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let (mut pids, mut folders) = (Vec::<u32>::new(), Vec::<PathBuf>::new());
    for line in BufReader::new(lab.stderr.take().context("its standard error")?).lines() {
        match line?.split_once(' ') {
            Some(("pid", pid)) => pids.push(pid.parse()?),
            Some(("folder", folder)) => folders.push(folder.into()),
            Some(_) => {}
            None => break,
        }
    }
    lab.kill()?;
    lab.wait()?;
    ensure!(!pids.is_empty() && folders.len() > pids.len(), "{pids:?} {folders:?}");
    until(|| pids.iter().all(|&pid| is_gone(pid)).then_some(()))?;
    until(|| folders.iter().all(|folder| !folder.exists()).then_some(()))?;
    ensure!(std::fs::read_dir(folder.path())?.next().is_none(), "files are left");
    Ok(())
}

/// Repeats the check until it returns a value.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let deadline = now() + LIMIT;
    loop {
        if let Some(seen) = look() {
            return Ok(seen);
        }
        ensure!(now() < deadline, "nothing within {LIMIT:?}");
        std::thread::yield_now();
    }
}
