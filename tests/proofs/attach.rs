//! Disks of other servers as disks of this machine.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_proof::guest::{Guest, small_program};
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::{Backing, Serving, Volume, program};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

/// The attachments of a folder, which ends them.
struct Attachments<'a> {
    folder: &'a Path,
}

impl Attachments<'_> {
    fn command(&self, arguments: &[&str]) -> Result<Command> {
        let mut command = Command::new(program::path()?);
        command.args(arguments).env("SARSEN_ATTACHMENTS", self.folder.join("run"));
        Ok(command)
    }

    fn run(&self, arguments: &[&str]) -> Result<Output> {
        Ok(self.command(arguments)?.output()?)
    }

    /// Returns the only attachment.
    fn only(&self) -> Result<Value> {
        let listed = process::output(&mut self.command(&["attachments", "--json"])?, LIMIT)?;
        let listed: Vec<Value> = serde_json::from_str(&listed)?;
        ensure!(listed.len() == 1, "{listed:?}");
        Ok(listed[0].clone())
    }

    /// Ends the process of the only attachment with a signal, and waits for its end, while the load waits.
    fn end(&self, signal: Signal, load: &Daemon) -> Result<()> {
        let process = self.only()?["process"].as_u64().context("a process")?;
        kill_process(Pid::from_raw(process as i32).context("a process")?, signal)?;
        load.wait_until(LIMIT, || Ok::<_, anyhow::Error>(self.only()?["served"] == false))
    }
}

impl Drop for Attachments<'_> {
    fn drop(&mut self) {
        if let Ok(only) = self.only() {
            let _ = self.run(&["detach", only["name"].as_str().unwrap_or_default()]);
        }
    }
}

/// QEMU's client connects again, as it does for every NBD server that returns.
#[test]
fn socket_continues_after_its_process_under_qemus_load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let attachments = Attachments { folder: folder.path() };
    // Another server of this machine may serve a volume of the same name. Its unit would have the same identifier.
    let serial = format!("serial=attach-{}", std::process::id());
    let serving = Serving::start(&[Volume::new("data", Backing::Ram, 64 * MIB).option(&serial)])?;
    let url = serving.url("data").to_string();
    let socket = folder.path().join("socket");
    let shown = socket.to_str().context("a path of text")?;
    let attached = attachments.run(&["attach", &url, "--as", "nbd-socket", "--socket", shown])?;
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
    assert_eq!(String::from_utf8_lossy(&attached.stdout).trim(), shown);

    let again = attachments.run(&["attach", &url, "--as", "nbd-socket", "--socket", shown])?;
    assert_eq!(again.status.code(), Some(4), "{}", String::from_utf8_lossy(&again.stderr));
    let other = ["attach", &url, "--name", "other", "--as", "nbd-socket", "--socket", "/nowhere/x"];
    let other = attachments.run(&other)?;
    assert_eq!(other.status.code(), Some(4), "{}", String::from_utf8_lossy(&other.stderr));
    assert_eq!(attachments.only()?["served"], true);

    let image =
        format!("driver=nbd,server.type=unix,server.path={shown},export=data,reconnect-delay=60");
    let load = Daemon::start(&[], Path::new("qemu-img"), |command| {
        command.args([
            "bench",
            "--image-opts",
            "-c",
            "200000",
            "-d",
            "16",
            "-w",
            "--pattern",
            "90",
            &image,
        ]);
    })?;
    let first = folder.path().join("first");
    load.wait_until(LIMIT, || {
        let mut read = Command::new(program::path()?);
        read.args(["disk", "read", &url, "--length", "512"]).arg(&first);
        process::output(&mut read, LIMIT)?;
        Ok::<_, anyhow::Error>(std::fs::read(&first)?[0] == 90)
    })?;
    for signal in [Signal::KILL, Signal::TERM] {
        attachments.end(signal, &load)?;
        let continued = attachments.run(&["attach", "data"])?;
        assert!(continued.status.success(), "{}", String::from_utf8_lossy(&continued.stderr));
    }
    let status = load.wait(LIMIT)?;
    assert!(status.success(), "{status}");
    let uri = format!("nbd+unix:///data?socket={shown}");
    let read = ["-f", "raw", "-c", "read -P 90 0 64M", &uri];
    let read = process::output(Command::new("qemu-io").args(read), LIMIT)?;
    ensure!(!read.contains("verification failed"), "{read}");

    let detached = attachments.run(&["detach", shown])?;
    assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    assert!(!socket.exists(), "the socket goes with its attachment");
    let left = std::fs::read_dir(folder.path().join("run"))?.count();
    assert_eq!(left, 0, "no folder is left");
    let missing = attachments.run(&["detach", "data"])?;
    assert_eq!(missing.status.code(), Some(3));
    serving.stop()
}

/// A file system lives on the disk, the process of the disk is killed and ended in order under fio's load, and the disk grows.
fn disk_survives_its_process(kind: &str, grown: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let guest = Guest::new("attach", &[("KIND", kind)])?;
    let played = guest.file("sarsen", &small_program(folder.path())?).run()?;
    println!("{}", played.console);
    assert_eq!(played.result("link")?, "made");
    assert_eq!(played.result("bytes")?, (128_u64 << 20).to_string());
    let written = played.result("written")?;
    assert_eq!(played.result("read")?, written);
    assert_eq!(played.result("read_after_trim")?, written);
    assert_eq!(played.result("trim")?, "done");
    assert_eq!(played.result("discarded")?, "zeroes");
    assert_eq!(played.result("detach_in_use")?, "refused with 4");
    assert_eq!(played.result("fio")?, "verified");
    assert!(played.result("restarts")?.parse::<u32>()? >= 2, "{}", played.console);
    assert_eq!(played.result("check")?, "clean");
    assert_eq!(played.result("grown")?, grown.to_string());
    assert_eq!(played.result("left")?, "0");
    assert_eq!(played.result("unlinked")?, "yes");
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    Ok(())
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn ublk_disk_survives_its_process() -> Result<()> {
    // Linux 6.12 cannot change the size of such a disk.
    disk_survives_its_process("ublk", 128 << 20)
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn nbd_disk_survives_its_process_and_grows() -> Result<()> {
    disk_survives_its_process("nbd", 192 << 20)
}

/// Prints a table. Emulation says nothing about speeds, but something about how they relate.
#[test]
#[ignore = "boots a kernel under emulation"]
fn disks_beside_the_kernels_initiator() -> Result<()> {
    const ROUNDS: u32 = 3;
    let folder = tempfile::tempdir()?;
    let rounds = ROUNDS.to_string();
    let guest = Guest::new("attach_ratio", &[("ROUNDS", &*rounds)])?;
    let played = guest.file("sarsen", &small_program(folder.path())?).run()?;
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    let median = |name: &str| -> Result<f64> {
        let rates: Result<Vec<f64>> = (1..=ROUNDS)
            .map(|round| Ok(played.result(&format!("{name}/{round}"))?.parse()?))
            .collect();
        let mut rates = rates?;
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        ensure!(median > 0.0, "{name}: {}", played.console);
        Ok(median)
    };
    println!(
        "| 4 KiB, emulated, a second | ublk | nbd | kernel's iSCSI | ublk to kernel | nbd to kernel |"
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    for depth in [1, 16] {
        for (what, read) in [("writes", 0), ("reads", 100)] {
            let rate = |kind: &str| median(&format!("{kind}/{depth}/{read}"));
            let (ublk, nbd, kernel) = (rate("ublk")?, rate("nbd")?, rate("kernel")?);
            let (to_ublk, to_nbd) = (ublk / kernel, nbd / kernel);
            println!(
                "| random {what}, depth {depth} | {ublk:.0} | {nbd:.0} | {kernel:.0} | {to_ublk:.2} | {to_nbd:.2} |"
            );
        }
    }
    Ok(())
}
