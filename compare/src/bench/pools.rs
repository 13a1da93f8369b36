//! Volumes of a pool, compared with a file without a pool, and with qcow2 behind another NBD server. All of them are on tmpfs,
//! so that the work of the programs decides.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_lab::load::Endpoint;
use sarsen_lab::process::{Daemon, ProcessError};
use sarsen_proof::process;
use serde_json::Value;

use super::Options;
use super::files::fill_to;
use super::nbd::{QEMU, READY_LIMIT, TMPFS, free_address, participant};
use super::targets_under_test::{Field, MeasureMode, Participant, serve};

pub(super) const FILE: &str = "file";
pub(super) const POOL: &str = "pool";
/// Every run begins with a volume without data.
pub(super) const FIRST: &str = "pool, first writes";
/// Every run begins with a new snapshot.
pub(super) const SNAPSHOT: &str = "pool, new snapshot";
/// The volume has many snapshots, each with data of its own.
pub(super) const MANY: &str = "pool, 100 snapshots";
pub(super) const QCOW2: &str = "qcow2, qemu-storage-daemon";

const VOLUME_BYTES: u64 = 256 << 20;
const POOL_BYTES: u64 = 3 << 30;
const SNAPSHOTS: usize = 100;
const LIMIT: Duration = Duration::from_secs(60);

/// The state in which each run finds the volume of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Preparation {
    socket: String,
    volume: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Empty,
    NewSnapshot,
}

impl Preparation {
    /// Prepares the volume for the next run. `endpoint` is its path.
    pub(super) fn prepare(&self, program: &Path, endpoint: &Endpoint) -> Result<()> {
        let sarsen = |arguments: &[&str]| {
            let mut command = Command::new(program);
            process::output(command.args(arguments).env("SARSEN_CONTROL", &self.socket), LIMIT)
        };
        let url = endpoint.to_string();
        match self.kind {
            Kind::Empty => drop(sarsen(&["disk", "erase", "--unmap", "--destroy", &url])?),
            Kind::NewSnapshot => {
                let name = format!("{}@bench", self.volume);
                if sarsen(&["snapshot", "list", &self.volume])?.contains(&name) {
                    sarsen(&["snapshot", "delete", &name])?;
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

/// Starts all of them.
pub(super) fn start(program: &Path, options: &Options) -> Result<Field> {
    let mut field = Field::default();
    let folder = tempfile::Builder::new().prefix("sarsen-bench-").tempdir_in(TMPFS)?;
    let path = |name: &str| folder.path().join(name).display().to_string();
    fill_to(Path::new(&path(FILE)), VOLUME_BYTES, 0x5a)?;
    // Its space is there before it is measured, as that of a device is.
    fill_to(Path::new(&path("tank")), POOL_BYTES, 0)?;
    let mut create = Command::new(program);
    create.args(["pool", "create", "tank", "--offline", "--device", &path("tank")]);
    process::output(&mut create, LIMIT)?;
    let socket = path("control.sock");
    let mut arguments = vec![
        "--control".to_owned(),
        socket.clone(),
        "--pool".into(),
        format!("tank={}", path("tank")),
        "--volume".into(),
        format!("file=file:{}", path(FILE)),
    ];
    let volumes = [("own", POOL), ("first", FIRST), ("snapshot", SNAPSHOT), ("many", MANY)];
    for (volume, _) in volumes {
        let spec = format!("{volume}=pool:tank,size={VOLUME_BYTES}");
        arguments.extend(["--volume".into(), spec]);
    }
    let running = serve(program, &arguments)?;
    field.entrants.push(Participant::of(FILE, &running, FILE)?);
    for (volume, name) in volumes {
        let kind = match name {
            FIRST => Some(Kind::Empty),
            SNAPSHOT => Some(Kind::NewSnapshot),
            _ => None,
        };
        let preparation =
            kind.map(|kind| Preparation { socket: socket.clone(), volume: volume.into(), kind });
        let entrant = Participant::of(name, &running, volume)?;
        if name == MANY {
            take_snapshots(program, &socket, &entrant)?;
        }
        field.entrants.push(Participant { is_empty: name != MANY, preparation, ..entrant });
    }
    field.running.push(running);
    if options.takes(QCOW2) {
        add_qcow2(&mut field, &path("qcow2"))?;
    }
    field.folders.push(folder);
    Ok(field)
}

/// Fills a volume, and creates snapshots with some writes between them.
fn take_snapshots(program: &Path, socket: &str, entrant: &Participant) -> Result<()> {
    let MeasureMode::Load { endpoint, .. } = &entrant.way else { return Ok(()) };
    let url = endpoint.to_string();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(program);
        process::output(command.args(arguments).env("SARSEN_CONTROL", socket), LIMIT)
    };
    let write = |block, random, ios: &str| {
        run(&[
            "lab",
            "load",
            "--destroy",
            "--read",
            "0",
            "--random",
            random,
            "--block-size",
            block,
            "--depth",
            "8",
            "--seconds",
            ios,
            &url,
        ])
    };
    write("524288", "0", "2")?;
    for number in 0..SNAPSHOTS {
        run(&["snapshot", "create", &format!("many@{number}")])?;
        write("4096", "100", "0.02")?;
    }
    Ok(())
}

/// Starts qemu-storage-daemon with an image whose clusters all have data.
fn add_qcow2(field: &mut Field, path: &str) -> Result<()> {
    if process::find(Path::new(QEMU)).is_none() {
        eprintln!("{QEMU} is not installed, and left out");
        return Ok(());
    }
    let mut create = Command::new("qemu-img");
    create.args(["create", "-f", "qcow2", path, &VOLUME_BYTES.to_string()]);
    process::output(&mut create, LIMIT)?;
    let address = free_address()?;
    let (host, port) = address.rsplit_once(':').context("an address")?;
    let daemon = Daemon::start(&[], Path::new(QEMU), |command: &mut Command| {
        command.args(["--blockdev", &format!("driver=file,node-name=file,filename={path}")]);
        command.args(["--blockdev", "driver=qcow2,node-name=disk,file=file"]);
        let server = format!("addr.type=inet,addr.host={host},addr.port={port},max-connections=0");
        command.args(["--nbd-server", &server]);
        command.args(["--export", "type=nbd,id=export,node-name=disk,name=,writable=on"]);
    })?;
    let listens = || Ok::<_, ProcessError>(std::net::TcpStream::connect(&address).is_ok());
    daemon.wait_until(READY_LIMIT, listens)?;
    let entrant = participant(QCOW2, &format!("nbd://{address}/"), vec![daemon.pid()])?;
    field.entrants.push(Participant { is_peer: true, is_empty: true, ..entrant });
    field.daemons.push(daemon);
    ensure!(field.entrants.len() > 1, "there is nothing to compare with");
    Ok(())
}
