//! The NBD front, compared with other NBD servers and with the iSCSI front, each with a separate file on tmpfs.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use sarsen_lab::load::Endpoint;
use sarsen_lab::process::{Daemon, ProcessError};
use sarsen_proof::process;

use super::Options;
use super::files::fill;
use super::targets_under_test::{Field, MeasureMode, Participant, serve};

pub(super) const NBD: &str = "sarsen, NBD";
pub(super) const ISCSI: &str = "sarsen, iSCSI";
pub(super) const NBDKIT: &str = "nbdkit";
pub(super) const QEMU: &str = "qemu-storage-daemon";

/// Returns the arguments of a server, for its address and its file.
type Arguments = fn(&str, &str) -> Vec<String>;

pub(super) const TMPFS: &str = "/dev/shm";
pub(super) const READY_LIMIT: Duration = Duration::from_secs(20);

/// Starts all of them.
pub(super) fn start(program: &Path, options: &Options) -> Result<Field> {
    let mut field = Field::default();
    let folder = tempfile::Builder::new().prefix("sarsen-bench-").tempdir_in(TMPFS)?;
    let file = |name: &str| -> Result<String> {
        let path = folder.path().join(name);
        fill(&path).with_context(|| path.display().to_string())?;
        Ok(path.display().to_string())
    };
    // Other servers cannot choose a free port themselves.
    let address = free_address()?;
    let volumes = [("nbd", file("nbd")?), ("iscsi", file("iscsi")?)];
    let mut arguments = vec!["--listen-nbd".to_owned(), address.clone()];
    for (name, path) in &volumes {
        arguments.extend(["--volume".into(), format!("{name}=file:{path}")]);
    }
    let running = serve(program, &arguments)?;
    let pids = running.pids();
    field.entrants.push(participant(NBD, &format!("nbd://{address}/nbd"), pids)?);
    field.entrants.push(Participant::of(ISCSI, &running, "iscsi")?);
    field.running.push(running);
    for (name, arguments) in [(NBDKIT, nbdkit as Arguments), (QEMU, qemu_storage_daemon)] {
        if !options.takes(name) {
            continue;
        }
        if process::find(Path::new(name)).is_none() {
            eprintln!("{name} is not installed, and left out");
            continue;
        }
        let (address, path) = (free_address()?, file(name)?);
        let daemon = Daemon::start(&[], Path::new(name), |command: &mut Command| {
            command.args(arguments(&address, &path));
        })?;
        let listens = || Ok::<_, ProcessError>(std::net::TcpStream::connect(&address).is_ok());
        daemon.wait_until(READY_LIMIT, listens)?;
        let entrant = participant(name, &format!("nbd://{address}/"), vec![daemon.pid()])?;
        field.entrants.push(Participant { is_peer: true, ..entrant });
        field.daemons.push(daemon);
    }
    field.folders.push(folder);
    Ok(field)
}

pub(super) fn participant(name: &str, url: &str, pids: Vec<u32>) -> Result<Participant> {
    let endpoint = Endpoint::Nbd(url.parse()?);
    Ok(Participant::new(name, MeasureMode::Load { endpoint, pids }))
}

pub(super) fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

fn nbdkit(address: &str, path: &str) -> Vec<String> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let words = ["--foreground", "--log=null", "--ipaddr", host, "--port", port, "file", path];
    words.map(str::to_owned).into()
}

fn qemu_storage_daemon(address: &str, path: &str) -> Vec<String> {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    vec![
        "--blockdev".into(),
        format!("driver=file,node-name=disk,filename={path}"),
        "--nbd-server".into(),
        format!("addr.type=inet,addr.host={host},addr.port={port},max-connections=0"),
        "--export".into(),
        "type=nbd,id=export,node-name=disk,name=,writable=on".into(),
    ]
}
