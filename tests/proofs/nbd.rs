//! The NBD client against Debian's nbdkit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_block::{Buffer, Durability, Extent, Store, conformance};
use sarsen_initiator::RemoteDisk as _;
use sarsen_initiator::nbd::{
    ClientError, NbdConnection, NbdError, NbdOptions, NbdPlace, NbdStore, NbdUrl,
};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::program;
use serde_json::Value;
use tempfile::TempDir;

use crate::certificates::{Authority, NOW, put};
use crate::import::servers::free_port;

const LIMIT: Duration = Duration::from_secs(20);

/// nbdkit on a socket in a private folder.
pub(crate) struct Nbdkit {
    daemon: Option<Daemon>,
    folder: TempDir,
}

impl Nbdkit {
    pub(crate) fn start(arguments: &[&str]) -> Result<Self> {
        let mut nbdkit = Self { daemon: None, folder: tempfile::tempdir()? };
        nbdkit.serve(arguments)?;
        Ok(nbdkit)
    }

    /// Starts it again at the same socket.
    pub(crate) fn serve(&mut self, arguments: &[&str]) -> Result<()> {
        let (socket, pid_file) = (self.socket(), self.folder.path().join("pid"));
        for left in [&socket, &pid_file].into_iter().filter(|path| path.exists()) {
            fs::remove_file(left)?;
        }
        let daemon = Daemon::start(&[], Path::new("nbdkit"), |command| {
            command
                .args(["--foreground", "--log=null", "--unix"])
                .arg(&socket)
                .arg("--pidfile")
                .arg(&pid_file);
            command.args(arguments);
        })?;
        // nbdkit writes the file when the socket listens.
        daemon.wait_until(LIMIT, || {
            anyhow::Ok(fs::read(&pid_file).is_ok_and(|pid| !pid.is_empty()))
        })?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Ends it without notice.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let daemon = self.daemon.take().context("it runs")?;
        let pid = i32::try_from(daemon.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process id")?, Signal::KILL)?;
        daemon.wait(LIMIT)?;
        Ok(())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn url(&self) -> NbdUrl {
        NbdUrl { place: NbdPlace::Socket(self.socket()), export: String::new() }
    }

    fn load(&self, flags: &[&str]) -> Result<process::Finished> {
        let mut command = Command::new(program::path()?);
        command.args(["lab", "load", &self.url().to_string(), "--json", "--seconds", "1"]);
        Ok(process::finish(command.args(flags), LIMIT)?)
    }
}

fn result(said: &str) -> Result<Value> {
    let line = said.lines().find(|line| line.starts_with('{')).with_context(|| said.to_owned())?;
    Ok(serde_json::from_str(line)?)
}

#[test]
fn load_reads_back_its_writes_to_nbdkit() -> Result<()> {
    let nbdkit = Nbdkit::start(&["memory", "64M"])?;
    for flags in [
        &["--sessions", "3", "--block-size", "8K"][..],
        &["--depth", "2", "--block-size", "256K", "--random", "0"],
    ] {
        let flags = [flags, &["--verify", "--read", "50"]].concat();
        let result = result(&nbdkit.load(&flags)?.success()?)?;
        ensure!(result["errors"] == 0 && result["mismatches"] == 0, "{result}");
        ensure!(result["verified_blocks"].as_u64() > Some(1000), "{result}");
        ensure!(result["parameters"]["NBD FUA"] == "yes", "{result}");
    }
    Ok(())
}

#[test]
fn an_export_that_holds_something_is_not_written_to() -> Result<()> {
    // The first bytes identify a LUKS volume.
    let data = ["data", "data=0x4c 0x55 0x4b 0x53 0xba 0xbe 0x00 0x01", "size=64M"];
    let nbdkit = Nbdkit::start(&data)?;
    let refused = nbdkit.load(&["--read", "0"])?;
    ensure!(refused.status.is_some_and(|status| !status.success()), "{refused:?}");
    ensure!(refused.output.contains("--destroy"), "{refused:?}");
    nbdkit.load(&["--read", "0", "--destroy"])?.success()?;
    Ok(())
}

#[test]
fn nbd_export_fulfils_store_contract() -> Result<()> {
    // Without the fixed newstyle there is no NBD_OPT_GO, and the export is chosen by name.
    for more in [&[][..], &["--mask-handshake=0"]] {
        let nbdkit = Nbdkit::start(&[more, &["memory", "64M"]].concat())?;
        block_on(FileEngine::Pool, async {
            let store = Arc::new(NbdConnection::connect(&nbdkit.url(), LIMIT).await?);
            assert_eq!(store.export().bytes, 64 << 20);
            let checked: &dyn Store = &*store;
            conformance::check(checked, 1).await;
            store.disconnect(LIMIT).await;
            anyhow::Ok(())
        })??;
    }
    Ok(())
}

#[test]
fn store_that_connects_again_fulfils_store_contract() -> Result<()> {
    // With the filter, the server permits one connection.
    let alone = ["--filter=multi-conn", "memory", "64M", "multi-conn-mode=disable"];
    // This one permits several, but not so many.
    let few = ["--filter=limit", "memory", "64M", "limit=2"];
    for (arguments, connections) in [(&["memory", "64M"][..], 4), (&alone, 1), (&few, 2)] {
        let nbdkit = Nbdkit::start(arguments)?;
        block_on(FileEngine::Pool, async {
            let store = NbdStore::connect(&nbdkit.url(), NbdOptions::default()).await?;
            let pid = nbdkit.daemon.as_ref().context("it runs")?.pid();
            let open = connections_of(pid)?;
            ensure!(open == connections, "{open} connections");
            conformance::check(&store, 1).await;
            store.leave().await;
            let after = store.flush().wait().await;
            ensure!(after.is_err(), "it was left");
            anyhow::Ok(())
        })??;
    }
    let nbdkit = Nbdkit::start(&["--readonly", "memory", "64M"])?;
    block_on(FileEngine::Pool, async {
        let store = NbdStore::connect(&nbdkit.url(), NbdOptions::default()).await?;
        conformance::check_read_only(&store).await;
        anyhow::Ok(())
    })?
}

/// The server makes writes durable only by a flush, and its first one fails: the data may be lost, whatever later flushes report.
#[test]
fn no_flush_succeeds_after_a_failed_one_on_any_connection() -> Result<()> {
    let flush = "flush=[ -e $tmpdir/failed ] && exit 0; touch $tmpdir/failed; echo EIO >&2; exit 1";
    let nbdkit = Nbdkit::start(&[
        "eval",
        "get_size=echo 1048576",
        "can_write=exit 0",
        "can_flush=exit 0",
        "can_multi_conn=exit 0",
        "can_fua=echo none",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        flush,
    ])?;
    block_on(FileEngine::Pool, async {
        let store = NbdStore::connect(&nbdkit.url(), NbdOptions::default()).await?;
        let write = |durability| {
            let data = Buffer::zeroed(512).into();
            store.write(Extent::new(0, 1), data, durability).wait()
        };
        write(Durability::Volatile).await?;
        let failed = write(Durability::Durable).await;
        ensure!(failed.is_err(), "the flush failed");
        for _ in 0..8 {
            let reading = store.read(Extent::new(0, 1));
            ensure!(
                store.flush().wait().await.is_err() && write(Durability::Durable).await.is_err()
            );
            reading.wait().await?;
        }
        anyhow::Ok(())
    })?
}

/// Returns the number of sockets of a process that are neither pipes nor listen.
fn connections_of(pid: u32) -> Result<usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?;
    let target = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
    let is_socket = |target: &PathBuf| target.to_string_lossy().starts_with("socket:");
    // One of them listens.
    Ok(entries.filter_map(target).filter(is_socket).count().saturating_sub(1))
}

/// A server with TLS that is another implementation, and what the client says if the two do not fit.
#[test]
fn tls_to_nbdkit() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    let (ours, theirs) = (Authority::new("ours")?, Authority::new("theirs")?);
    put(path, "ca-cert.pem", &ours.pem)?;
    put(path, "theirs.pem", &theirs.pem)?;
    ours.issue(path, "server", NOW)?;
    fs::rename(path.join("server.pem"), path.join("server-cert.pem"))?;
    fs::rename(path.join("server.key"), path.join("server-key.pem"))?;
    let at = |name: &str| path.join(name).display().to_string();
    let (_secret, secret) = on_a_port(&["--tls=require", "--tls-certificates", &at("")])?;
    let (_plain, plain) = on_a_port(&[])?;
    let url = |scheme: &str, port: u16, ca: &str| -> Result<NbdUrl> {
        let query = if ca.is_empty() { String::new() } else { format!("?ca={}", at(ca)) };
        Ok(format!("{scheme}://127.0.0.1:{port}/{query}").parse()?)
    };
    block_on(FileEngine::Pool, async {
        let url = url("nbds", secret, "ca-cert.pem")?;
        let store = NbdStore::connect(&url, NbdOptions::default()).await?;
        conformance::check(&store, 1).await;
        store.leave().await;
        anyhow::Ok(())
    })??;
    for (url, part) in [
        (url("nbds", secret, "theirs.pem")?, "no authority in"),
        (url("nbds", plain, "ca-cert.pem")?, "refuses TLS"),
        (url("nbd", secret, "")?, "refuses the export (TlsRequired)"),
    ] {
        let error = connection_error(&url)?.context("it is refused")?.to_string();
        ensure!(error.contains(part), "{url}: {error}");
    }
    Ok(())
}

/// Starts nbdkit at a port, and returns that.
fn on_a_port(arguments: &[&str]) -> Result<(Daemon, u16)> {
    let port = free_port()?;
    let daemon = Daemon::start(&[], Path::new("nbdkit"), |command| {
        command.args(["--foreground", "--log=null", "--ipaddr", "127.0.0.1", "--port"]);
        command.arg(port.to_string()).args(arguments).args(["memory", "64M"]);
    })?;
    daemon.wait_until(LIMIT, || anyhow::Ok(process::listens(daemon.pid(), port)))?;
    Ok((daemon, port))
}

#[test]
fn a_read_only_export_refuses_writes() -> Result<()> {
    let nbdkit = Nbdkit::start(&["--readonly", "memory", "64M"])?;
    block_on(FileEngine::Pool, async {
        let store = NbdConnection::connect(&nbdkit.url(), LIMIT).await?;
        let checked: &dyn Store = &store;
        conformance::check_read_only(checked).await;
        anyhow::Ok(())
    })?
}

#[test]
fn errors_of_nbdkit_are_counted_and_reported() -> Result<()> {
    let fails = ["--filter=error", "memory", "64M", "error-pread=EIO", "error-pread-rate=100%"];
    let finished = Nbdkit::start(&fails)?.load(&[])?;
    ensure!(finished.status.is_some_and(|status| !status.success()), "{finished:?}");
    ensure!(finished.output.contains("os error 5"), "{finished:?}");
    Ok(())
}

#[test]
fn oldstyle_nbd_server_differs_from_missing_server() -> Result<()> {
    let nbdkit = Nbdkit::start(&["--oldstyle", "memory", "1M"])?;
    let error = connection_error(&nbdkit.url())?;
    ensure!(matches!(error, Some(NbdError::Client(ClientError::OldStyle))), "{error:?}");
    let nobody = NbdPlace::Socket(nbdkit.folder.path().join("nobody"));
    let error = connection_error(&NbdUrl { place: nobody, export: String::new() })?;
    ensure!(matches!(error, Some(NbdError::Connect { .. })), "{error:?}");
    Ok(())
}

/// Returns why no connection to an export is possible, if so.
fn connection_error(url: &NbdUrl) -> Result<Option<NbdError>> {
    Ok(block_on(FileEngine::Pool, NbdConnection::connect(url, LIMIT))?.err())
}
