//! The NBD client against Debian's nbdkit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::{Store, conformance};
use sarsen_initiator::nbd::{ClientError, NbdError, NbdPlace, NbdStore, NbdUrl};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::program;
use serde_json::Value;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

/// nbdkit on a socket in a private folder.
struct Nbdkit {
    _daemon: Daemon,
    folder: TempDir,
}

impl Nbdkit {
    fn start(arguments: &[&str]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (socket, pid_file) = (folder.path().join("socket"), folder.path().join("pid"));
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
        Ok(Self { _daemon: daemon, folder })
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn url(&self) -> NbdUrl {
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
            let store = Arc::new(NbdStore::connect(&nbdkit.url(), LIMIT).await?);
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
fn a_read_only_export_refuses_writes() -> Result<()> {
    let nbdkit = Nbdkit::start(&["--readonly", "memory", "64M"])?;
    block_on(FileEngine::Pool, async {
        let store = NbdStore::connect(&nbdkit.url(), LIMIT).await?;
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
    Ok(block_on(FileEngine::Pool, NbdStore::connect(url, LIMIT))?.err())
}
