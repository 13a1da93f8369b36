//! Volumes of a pool, compared with a file or a device without a pool, and with qcow2 behind another NBD server: in memory
//! (tmpfs), so that the work of the programs decides; on disk past the page cache, beside fio; and on loop devices.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_lab::load::Endpoint;
use sarsen_lab::process::{Daemon, ProcessError};
use sarsen_proof::process;
use serde_json::Value;
use tempfile::TempDir;

use super::Options;
use super::files::{ONE_CORE, fill_to, takes_direct};
use super::nbd::{QEMU, READY_LIMIT, TMPFS, free_address, participant};
use super::points::{READS, WRITES};
use super::targets_under_test::{FIO, Field, MeasureMode, Participant, serve};

pub(super) const FILE: &str = "no pool";
pub(super) const POOL: &str = "pool";
/// Every run begins with a volume without data.
pub(super) const FIRST: &str = "pool, first writes";
/// Every run begins with a new snapshot of a volume whose chunks are its own.
pub(super) const SNAPSHOT: &str = "pool, new snapshot";
/// Every run begins with a new snapshot, and most chunks have pieces from before and after an earlier one.
pub(super) const NEXT_SNAPSHOT: &str = "pool, next snapshot";
/// The volume has many snapshots, each with data of its own.
pub(super) const MANY: &str = "pool, 100 snapshots";
/// Each 4 KiB of the volume has a checksum.
pub(super) const CHECKED: &str = "pool, checksums";
pub(super) const QCOW2: &str = "qcow2, qemu-storage-daemon";

const VOLUME_BYTES: u64 = 256 << 20;
/// A run of first writes must not fill the volume, and then overwrite it.
const LARGE_BYTES: u64 = 1 << 30;
const POOL_BYTES: u64 = 8 << 30;
const SNAPSHOTS: usize = 100;
const LIMIT: Duration = Duration::from_secs(120);
const BYTE: u8 = 0x5a;
/// Maximum seconds of a run that begins with a volume in a certain state, and of the load before its measurement: most of
/// its writes find their blocks in that state.
pub(super) const PREPARED_SECONDS: f64 = 0.5;
pub(super) const PREPARED_WARM_UP: f64 = 0.02;

/// Where the pool is, and what it is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Memory,
    Disk,
    Loop,
}

/// The state in which each run finds the volume of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Preparation {
    socket: String,
    volume: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Empty,
    /// The volume gets the contents of this file before its snapshot.
    NewSnapshot {
        rewrite: Option<String>,
    },
}

impl Preparation {
    /// Prepares the volume for the next run. `endpoint` is its path.
    pub(super) fn prepare(&self, program: &Path, endpoint: &Endpoint) -> Result<()> {
        let sarsen = |arguments: &[&str]| {
            let mut command = Command::new(program);
            process::output(command.args(arguments).env("SARSEN_CONTROL", &self.socket), LIMIT)
        };
        let url = endpoint.to_string();
        match &self.kind {
            Kind::Empty => drop(sarsen(&["disk", "erase", "--unmap", "--destroy", &url])?),
            Kind::NewSnapshot { rewrite } => {
                let name = format!("{}@bench", self.volume);
                if sarsen(&["snapshot", "list", &self.volume])?.contains(&name) {
                    sarsen(&["snapshot", "delete", &name])?;
                }
                if let Some(file) = rewrite {
                    sarsen(&["disk", "write", "--destroy", file, &url])?;
                }
                // The work of an earlier run does not count.
                loop {
                    let pools: Value = serde_json::from_str(&sarsen(&["pool", "list", "--json"])?)?;
                    if pools["pools"][0]["is_freeing"] == false {
                        break;
                    }
                }
                sarsen(&["snapshot", "create", &name])?;
            }
        }
        Ok(())
    }
}

impl Medium {
    /// Returns the end of the specification of a file or device, whose data is not cached twice.
    const fn cache(self) -> &'static str {
        match self {
            Self::Memory => "",
            Self::Disk | Self::Loop => ",cache=none",
        }
    }
}

/// A loop device, until this is dropped.
pub(super) struct LoopDevice(PathBuf);

impl LoopDevice {
    fn new(file: &str) -> Result<Self> {
        let mut command = Command::new("losetup");
        let path = process::output(command.args(["--find", "--show", file]), LIMIT)?;
        Ok(Self(path.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let mut command = Command::new("losetup");
        if let Err(error) = process::output(command.arg("--detach").arg(&self.0), LIMIT) {
            eprintln!("{} remains: {error}", self.0.display());
        }
    }
}

/// The files or devices of a medium.
struct Place {
    medium: Medium,
    folder: TempDir,
    loops: Vec<LoopDevice>,
}

impl Place {
    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// Returns a file or a device with data in all of it: the space is there before it is measured.
    fn filled(&mut self, name: &str, bytes: u64, byte: u8) -> Result<String> {
        let path = self.path(name);
        fill_to(Path::new(&path), bytes, byte)?;
        self.device(path)
    }

    fn device(&mut self, path: String) -> Result<String> {
        if self.medium != Medium::Loop {
            return Ok(path);
        }
        let device = LoopDevice::new(&path)?;
        let path = device.0.display().to_string();
        self.loops.push(device);
        Ok(path)
    }
}

/// Starts all of them.
pub(super) fn start(program: &Path, medium: Medium, options: &Options) -> Result<Field> {
    let parent = if medium == Medium::Disk { &*options.disk } else { Path::new(TMPFS) };
    let folder = tempfile::Builder::new().prefix("sarsen-bench-").tempdir_in(parent)?;
    let mut place = Place { medium, folder, loops: Vec::new() };
    let mut field = Field::default();
    let file = match place.filled("file", VOLUME_BYTES, BYTE) {
        Ok(file) => file,
        Err(error) if medium == Medium::Loop => {
            eprintln!("loop devices cannot be used, and are left out: {error:#}");
            return Ok(field);
        }
        Err(error) => return Err(error),
    };
    if medium == Medium::Disk && !takes_direct(Path::new(&file)) {
        eprintln!("{} cannot be used past the page cache, and is left out", parent.display());
        return Ok(field);
    }
    let tank = place.filled("tank", POOL_BYTES, 0)?;
    let (pattern, large) = (place.path("pattern"), place.path("large pattern"));
    fill_to(Path::new(&pattern), VOLUME_BYTES, BYTE)?;
    fill_to(Path::new(&large), LARGE_BYTES, BYTE)?;
    let mut create = Command::new(program);
    create.args(["pool", "create", "tank", "--offline", "--force", "--device", &tank]);
    process::output(&mut create, LIMIT)?;
    let (socket, cache) = (place.path("control.sock"), medium.cache());
    let mut arguments = vec!["--control".to_owned(), socket.clone()];
    if medium == Medium::Disk {
        // As many threads as fio has.
        arguments.extend(ONE_CORE.map(Into::into));
    }
    arguments.extend(["--pool".into(), format!("tank={tank}{cache}")]);
    arguments.extend(["--volume".into(), format!("file=file:{file}{cache}")]);
    let volumes = [
        ("own", POOL, VOLUME_BYTES),
        ("checked", CHECKED, VOLUME_BYTES),
        ("first", FIRST, LARGE_BYTES),
        ("snapshot", SNAPSHOT, LARGE_BYTES),
        ("next", NEXT_SNAPSHOT, LARGE_BYTES),
        ("many", MANY, VOLUME_BYTES),
    ];
    for (volume, name, bytes) in volumes {
        let keys = if name == CHECKED { ",checksums=true" } else { "" };
        arguments.extend(["--volume".into(), format!("{volume}=pool:tank,size={bytes}{keys}")]);
    }
    let running = serve(program, &arguments)?;
    field.entrants.push(Participant::of(FILE, &running, "file")?);
    for (volume, name, bytes) in volumes {
        let (kind, only) = match name {
            FIRST => (Some(Kind::Empty), Some(WRITES)),
            SNAPSHOT => (Some(Kind::NewSnapshot { rewrite: Some(large.clone()) }), Some(WRITES)),
            NEXT_SNAPSHOT => (Some(Kind::NewSnapshot { rewrite: None }), Some(WRITES)),
            MANY => (None, Some(READS)),
            _ => (None, None),
        };
        let preparation =
            kind.map(|kind| Preparation { socket: socket.clone(), volume: volume.into(), kind });
        let entrant = Participant::of(name, &running, volume)?;
        eprintln!("filling {name}");
        fill_volume(program, if bytes == LARGE_BYTES { &large } else { &pattern }, &entrant)?;
        if name == MANY {
            take_snapshots(program, &socket, &entrant)?;
        }
        field.entrants.push(Participant { preparation, only, ..entrant });
    }
    field.running.push(running);
    if options.takes(QCOW2) {
        add_qcow2(&mut field, &mut place, &pattern)?;
    }
    if medium == Medium::Disk {
        match process::find(Path::new("fio")) {
            Some(_) => {
                let entrant = Participant::new(FIO, MeasureMode::Fio { path: file.into() });
                field.entrants.push(Participant { is_peer: true, ..entrant });
            }
            None => eprintln!("fio is not installed, and left out"),
        }
    }
    ensure!(field.entrants.len() > 1, "there is nothing to compare with");
    field.loops = place.loops;
    field.folders.push(place.folder);
    Ok(field)
}

fn url(entrant: &Participant) -> Result<String> {
    match &entrant.way {
        MeasureMode::Load { endpoint, .. } => Ok(endpoint.to_string()),
        MeasureMode::Fio { .. } => bail!("{} has no URL", entrant.name),
    }
}

/// Writes a file to the whole volume.
fn fill_volume(program: &Path, file: &str, entrant: &Participant) -> Result<()> {
    let mut command = Command::new(program);
    command.args(["disk", "write", "--destroy", file, &url(entrant)?]);
    process::output(&mut command, LIMIT).map(drop).context("filling the volume")
}

/// Creates snapshots of a volume with some writes between them.
fn take_snapshots(program: &Path, socket: &str, entrant: &Participant) -> Result<()> {
    let url = url(entrant)?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program);
        process::output(command.args(arguments).env("SARSEN_CONTROL", socket), LIMIT)
    };
    for number in 0..SNAPSHOTS {
        run(&["snapshot", "create", &format!("many@{number}")])?;
        // Some writes.
        let load = "lab load --destroy --read 0 --random 100 --block-size 4096 --depth 8 --rate 2000 \
                    --warm-up 0 --seconds 0.03";
        run(&load.split(' ').chain([&*url]).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Starts qemu-storage-daemon with an image whose clusters all have data.
fn add_qcow2(field: &mut Field, place: &mut Place, pattern: &str) -> Result<()> {
    if process::find(Path::new(QEMU)).is_none() {
        eprintln!("{QEMU} is not installed, and left out");
        return Ok(());
    }
    let file = place.path("qcow2");
    // With the clusters of metadata.
    File::create(&file)?.set_len(VOLUME_BYTES + (16 << 20))?;
    let path = place.device(file)?;
    let mut create = Command::new("qemu-img");
    create.args(["create", "-f", "qcow2", &path, &VOLUME_BYTES.to_string()]);
    process::output(&mut create, LIMIT)?;
    let driver = match place.medium {
        Medium::Memory => "file",
        Medium::Disk => "file,cache.direct=on,aio=native",
        Medium::Loop => "host_device,cache.direct=on,aio=native",
    };
    let address = free_address()?;
    let (host, port) = address.rsplit_once(':').context("an address")?;
    let daemon = Daemon::start(&[], Path::new(QEMU), |command: &mut Command| {
        command.args(["--blockdev", &format!("driver={driver},node-name=file,filename={path}")]);
        command.args(["--blockdev", "driver=qcow2,node-name=disk,file=file"]);
        let server = format!("addr.type=inet,addr.host={host},addr.port={port},max-connections=0");
        command.args(["--nbd-server", &server]);
        command.args(["--export", "type=nbd,id=export,node-name=disk,name=,writable=on"]);
    })?;
    let listens = || Ok::<_, ProcessError>(std::net::TcpStream::connect(&address).is_ok());
    daemon.wait_until(READY_LIMIT, listens)?;
    let entrant = participant(QCOW2, &format!("nbd://{address}/"), vec![daemon.pid()])?;
    let mut fill = Command::new("qemu-img");
    fill.args(["convert", "-n", "-f", "raw", "-O", "raw", pattern]);
    process::output(fill.arg(format!("nbd://{address}/")), LIMIT)?;
    field.entrants.push(Participant { is_peer: true, ..entrant });
    field.daemons.push(daemon);
    Ok(())
}
