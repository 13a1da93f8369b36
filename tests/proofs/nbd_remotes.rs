//! Exports of NBD servers as volumes, as devices of pools, and as attached disks.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::Unit;
use sarsen_proof::managed::Managed;
use sarsen_proof::{process, program};
use serde_json::Value;

use crate::client::{self, LIMIT, run};
use crate::gateway::{BLOCKS, check, write};
use crate::nbd::Nbdkit;

/// The exit codes of a failure, and of an object that cannot be as requested.
const FAILED: i32 = 1;
const INVALID: i32 = 2;

/// A server whose volume `gw` is an export of nbdkit.
struct Gateway {
    folder: tempfile::TempDir,
    nbdkit: Nbdkit,
    server: Managed,
}

impl Gateway {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let image = folder.path().join("image");
        std::fs::File::create(&image)?.set_len(256 << 20)?;
        let nbdkit = Nbdkit::start(&["file", &image.display().to_string()])?;
        let server = Managed::start(folder.path())?;
        Ok(Self { folder, nbdkit, server })
    }

    fn restart(&mut self) -> Result<()> {
        let image = self.folder.path().join("image").display().to_string();
        self.nbdkit.serve(&["file", &image])
    }

    fn create(&self) -> Result<()> {
        let remote = self.nbdkit.url().to_string();
        self.server.run(&["volume", "create", "gw", "--export", "--remote", &remote]).map(drop)
    }

    async fn unit(&self, volume: &str) -> Result<Unit> {
        let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:{volume}/0", self.server.portal()?);
        Ok(Unit::connect(&url.parse()?, &Default::default()).await?)
    }

    fn wait_until(&self, is_so: impl Fn() -> Result<bool>) -> Result<()> {
        let deadline = sarsen_io::time::now() + client::LIMIT;
        while !is_so()? {
            ensure!(sarsen_io::time::now() < deadline, "{}", self.server.log());
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// The server behind the gateway is killed between writes, and started again. The initiator at the gateway notices nothing.
#[test]
fn a_killed_server_of_an_export_is_waited_for() -> Result<()> {
    let mut gateway = Gateway::new()?;
    gateway.create()?;
    for round in 1..6 {
        run(async {
            let unit = gateway.unit("gw").await?;
            for lba in 0..BLOCKS {
                if lba == BLOCKS / 2 {
                    gateway.nbdkit.kill()?;
                    let listed = || gateway.server.run(&["volume", "list"]);
                    gateway
                        .wait_until(|| Ok(listed()?.contains("waits for a path to nbd+unix")))?;
                    gateway.restart()?;
                }
                write(&unit, lba, round).await?;
            }
            unit.flush().await?;
            check(&unit, round).await?;
            Ok(unit.logout().await?)
        })
        .with_context(|| format!("round {round}; {}", gateway.server.log()))?;
    }
    let listed = || gateway.server.run(&["volume", "list"]);
    gateway.wait_until(|| Ok(!listed()?.contains("waits for a path")))?;
    let paths = gateway.server.json(&["volume", "paths", "gw"])?;
    ensure!(paths["initiator_name"].is_null() && paths["paths"][0]["is_active"] == true, "{paths}");
    let image = std::fs::read(gateway.folder.path().join("image"))?;
    ensure!(image[..512].iter().all(|byte| *byte == 5), "it was flushed");
    gateway.server.stop()
}

#[test]
fn an_export_is_one_volume_and_has_no_keys_of_iscsi() -> Result<()> {
    let gateway = Gateway::new()?;
    gateway.create()?;
    let remote = gateway.nbdkit.url().to_string();
    let again = ["volume", "create", "again", "--remote", &remote];
    let refused = gateway.server.refused(INVALID, &again)?;
    ensure!(refused.contains("both have nbd+unix://"), "{refused}");
    gateway.server.run(&["volume", "delete", "gw", "--cascade"])?;
    for (keys, part) in [
        (
            &["--initiator-name", "iqn.2026-01.x:a"][..],
            "only a remote volume of an iSCSI target logs in",
        ),
        (&["--only-these-portals"], "only a remote volume of an iSCSI target has portals"),
        (
            &["--path-selector", "round-robin"],
            "only a remote volume of an iSCSI target has several",
        ),
    ] {
        let refused = gateway.server.refused(INVALID, &[&again[..], keys].concat())?;
        ensure!(refused.contains(part), "{refused}");
    }
    let missing = format!("{remote}-missing");
    let refused =
        gateway.server.refused(FAILED, &["volume", "create", "missing", "--remote", &missing])?;
    ensure!(refused.contains("cannot be used: cannot connect"), "{refused}");
    Ok(())
}

#[test]
fn a_pool_has_an_export_as_its_device() -> Result<()> {
    let mut gateway = Gateway::new()?;
    let remote = gateway.nbdkit.url().to_string();
    gateway.server.run(&["pool", "create", "tank", "--device", &remote])?;
    gateway.server.run(&["volume", "create", "v", "16MiB", "--pool", "tank", "--export"])?;
    run(async {
        let unit = gateway.unit("v").await?;
        for lba in 0..BLOCKS {
            write(&unit, lba, 1).await?;
        }
        unit.flush().await?;
        Ok(unit.logout().await?)
    })?;
    gateway.server.run(&["snapshot", "create", "v@one"])?;
    gateway.nbdkit.kill()?;
    gateway.restart()?;
    run(async {
        let unit = gateway.unit("v").await?;
        check(&unit, 1).await?;
        Ok(unit.logout().await?)
    })?;
    gateway.server.stop()
}

/// A disk that refuses every write is not shown as in service.
#[test]
fn a_failed_flush_of_an_attached_export_is_shown() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let nbdkit = Nbdkit::start(&[
        "eval",
        "get_size=echo 1048576",
        "can_write=exit 0",
        "can_flush=exit 0",
        "pread=head -c $3 /dev/zero",
        "pwrite=cat >/dev/null",
        "flush=echo EIO >&2; exit 1",
    ])?;
    let sarsen = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(program::path()?);
        command.args(arguments).env("SARSEN_ATTACHMENTS", folder.path().join("run"));
        Ok(command)
    };
    let socket = folder.path().join("disk").display().to_string();
    let url = nbdkit.url().to_string();
    let attach = ["attach", &url, "--as", "nbd-socket", "--socket", &socket];
    process::output(&mut sarsen(&attach)?, LIMIT)?;
    let disk = format!("nbd+unix:///nbd?socket={socket}");
    let mut flushing = Command::new("qemu-io");
    let requests = ["-t", "writeback", "-f", "raw", "-c", "write 0 4k", "-c", "flush", &disk];
    process::finish(flushing.args(requests), LIMIT)?;
    let deadline = sarsen_io::time::now() + LIMIT;
    loop {
        let listed = process::output(&mut sarsen(&["attachments"])?, LIMIT)?;
        if listed.contains("takes no writes: a flush failed") {
            break;
        }
        ensure!(sarsen_io::time::now() < deadline, "{listed}");
        std::thread::yield_now();
    }
    let detached = process::finish(&mut sarsen(&["detach", "nbd"])?, LIMIT)?;
    ensure!(detached.output.contains("the last writes are not durable"), "{detached:?}");
    Ok(())
}

#[test]
fn an_export_is_attached_and_survives_its_server() -> Result<()> {
    let mut gateway = Gateway::new()?;
    let folder = gateway.folder.path().join("attachments");
    let sarsen = |arguments: &[&str]| -> Result<Command> {
        let mut command = Command::new(program::path()?);
        command.args(arguments).env("SARSEN_ATTACHMENTS", &folder);
        Ok(command)
    };
    let socket = gateway.folder.path().join("disk").display().to_string();
    let url = gateway.nbdkit.url().to_string();
    let attach = ["attach", &url, "--as", "nbd-socket", "--socket", &socket];
    process::output(&mut sarsen(&attach)?, LIMIT)?;
    let disk = format!("nbd+unix:///nbd?socket={socket}");
    let qemu = |requests: &str| {
        process::output(Command::new("qemu-io").args(["-f", "raw", "-c", requests, &disk]), LIMIT)
    };
    qemu("write -P 7 0 1M")?;
    gateway.nbdkit.kill()?;
    gateway.restart()?;
    let read = qemu("read -P 7 0 1M")?;
    ensure!(!read.contains("verification failed"), "{read}");
    let listed = process::output(&mut sarsen(&["attachments", "--json"])?, LIMIT)?;
    let listed: Value = serde_json::from_str(&listed)?;
    ensure!(listed[0]["name"] == "nbd", "{listed}");
    process::output(&mut sarsen(&["detach", "nbd"])?, LIMIT)?;
    gateway.server.stop()
}
