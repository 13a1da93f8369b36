//! `sarsen disk` with NBD servers: copies that skip what is zero, and copies of only what has changed, from this project's
//! server and from QEMU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::process::{self, Daemon};
use serde_json::Value;

use crate::disk_verbs::{CONFLICT, FAILED, NOT_FOUND, UNREACHABLE, USAGE, fail, succeed};
use crate::incremental_backup::{Fixture, KIB, MIB};

const LIMIT: Duration = Duration::from_secs(60);

fn succeed_json(arguments: &[&str]) -> Result<Value> {
    let said = succeed(&[arguments, &["--json"]].concat())?;
    serde_json::from_str(&said).with_context(|| said)
}

fn sum(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|range| range.1).sum()
}

/// qemu-nbd with a file.
struct Qemu {
    _daemon: Daemon,
    socket: PathBuf,
}

impl Qemu {
    fn serve(folder: &Path, name: &str, options: &[&str]) -> Result<Self> {
        let (socket, pid_file) =
            (folder.join(format!("{name}.socket")), folder.join(format!("{name}.pid")));
        fs::write(&pid_file, [])?;
        let daemon = Daemon::start(&[], Path::new("qemu-nbd"), |command| {
            command.arg("--persistent").arg("--socket").arg(&socket);
            command.arg("--pid-file").arg(&pid_file).args(options).arg(folder.join(name));
        })?;
        daemon.wait_until(LIMIT, || {
            anyhow::Ok(fs::read(&pid_file).is_ok_and(|pid| !pid.is_empty()))
        })?;
        Ok(Self { _daemon: daemon, socket })
    }

    fn url(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

#[test]
fn a_copy_of_changes_makes_an_older_copy_equal() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::start(folder.path())?;
    for name in ["backup", "over-iscsi"] {
        fixture.server.run(&["volume", "create", name, "64MiB", "--pool", "tank", "--export"])?;
    }
    let urls = fixture.server.run(&["target", "url"])?;
    let iscsi = |name: &str| {
        let url = urls
            .split_whitespace()
            .find(|word| word.starts_with("iscsi://") && word.contains(&format!(":{name}/")));
        url.map(str::to_owned).with_context(|| urls.clone())
    };
    let backups = [fixture.url("backup"), iscsi("over-iscsi")?];

    fixture.change(&["write -P 0x11 0 16M", "write -P 0x22 32M 4M", "flush"], "s1")?;
    let first = fixture.url("v-s1");
    for backup in &backups {
        let copied = succeed_json(&["disk", "copy", &first, backup])?;
        ensure!(copied["bytes"] == 64 * MIB, "{copied}");
        let verified = succeed_json(&["disk", "verify", &first, backup])?;
        ensure!(verified["sha256"] == copied["sha256"], "{copied} {verified}");
    }
    // What the source does not have was not written either.
    fixture.server.run(&["snapshot", "create", "backup@first"])?;
    ensure!(fixture.data("backup@first")? == [(0, 16 * MIB), (32 * MIB, 4 * MIB)]);

    let changes = [
        "write -P 0x33 1M 64k",
        "write -P 0x44 33793k 512",
        "write -P 0x55 63M 4k",
        "discard 2M 1M",
        "write -z 8M 128k",
        "flush",
    ];
    fixture.change(&changes, "s2")?;
    let second = fixture.url("v-s2");
    let changed = fixture.difference("v@s1", "v@s2")?;
    for (backup, older) in backups.iter().zip(["s1", "v@s1"]) {
        let copied = succeed_json(&["disk", "copy", "--since", older, &second, backup])?;
        ensure!(copied["bytes"] == sum(&changed), "{copied} {changed:?}");
        ensure!(copied["disk_bytes"] == 64 * MIB, "{copied}");
        succeed(&["disk", "verify", &second, backup])?;
        // It can be repeated, for example after an interruption.
        let said = succeed(&["disk", "copy", &second, backup, "--since", older])?;
        ensure!(said.contains("of 64 MiB had changed"), "{said}");
        succeed(&["disk", "verify", &second, backup])?;
    }
    // Only the changes were written to the backup.
    fixture.server.run(&["snapshot", "create", "backup@second"])?;
    let written = fixture.difference("backup@first", "backup@second")?;
    ensure!(written == changed, "{written:?} {changed:?}");
    fixture.server.stop()
}

#[test]
fn changes_are_not_copied_to_a_disk_without_the_older_contents() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::start(folder.path())?;
    let create = ["volume", "create", "other", "64MiB", "--pool", "tank", "--export"];
    fixture.server.run(&create)?;
    let smaller = ["volume", "create", "smaller", "32MiB", "--pool", "tank", "--export"];
    fixture.server.run(&smaller)?;
    fixture.change(&["write -P 0x11 0 16M", "flush"], "s1")?;
    fixture.change(&["write -P 0x22 1M 64k", "flush"], "s2")?;
    let (source, other) = (fixture.url("v-s2"), fixture.url("other"));
    let said = fail(CONFLICT, &["disk", "copy", "--since", "s1", &source, &other])?;
    ensure!(said.contains("no copy of the older snapshot") && said.contains("byte 0"), "{said}");
    ensure!(said.contains("without --since"), "{said}");
    fixture.server.run(&["snapshot", "create", "other@now"])?;
    ensure!(fixture.data("other@now")?.is_empty(), "something was written");

    // A copy in which one byte has changed, which the samples compare.
    succeed(&["disk", "copy", &fixture.url("v-s1"), &other])?;
    let mut qemu = Command::new("qemu-io");
    process::output(qemu.args(["-f", "raw", "-c", "write -P 9 4M 1"]).arg(&other), LIMIT)?;
    let said = fail(CONFLICT, &["disk", "copy", "--since", "s1", &source, &other])?;
    ensure!(said.contains(&format!("byte {}", 4 * MIB)), "{said}");

    let copy = |code, older: &str, from: &str, to: &str| {
        fail(code, &["disk", "copy", "--since", older, from, to])
    };
    let said = copy(NOT_FOUND, "s7", &source, &other)?;
    ensure!(said.contains("since \"s7\"") && said.contains("snapshot list"), "{said}");
    copy(NOT_FOUND, "s2", &source, &other)?;
    copy(NOT_FOUND, "s1", &fixture.url("missing"), &other)?;
    let said = copy(FAILED, "s1", &source, &fixture.url("smaller"))?;
    ensure!(said.contains("do not fit"), "{said}");
    let said = copy(FAILED, "s1", &source, &fixture.url("v-s1"))?;
    ensure!(said.contains("read-only"), "{said}");
    let said =
        copy(USAGE, "s1", &format!("iscsi://{}/iqn.2026-11.proof:x/0", fixture.portal), &other)?;
    ensure!(said.contains("--protocol nbd") && said.contains("nbd://"), "{said}");
    copy(USAGE, "s1", &source, &source)?;
    copy(USAGE, "s1", "nbds://127.0.0.1/x", &other)?;
    let nobody = format!("nbd+unix:///?socket={}", folder.path().join("nobody").display());
    copy(UNREACHABLE, "s1", &nobody, &other)?;
    let said = fail(USAGE, &["disk", "copy", "--since", "s1", "--destroy", &source, &other])?;
    ensure!(said.contains("cannot be used with"), "{said}");
    fixture.server.stop()
}

#[test]
fn changes_in_a_bitmap_of_qemu_are_copied() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let run = |program: &str, arguments: &[&str]| {
        process::output(Command::new(program).args(arguments), LIMIT)
    };
    let (disk, raw) = (at("disk"), at("raw"));
    run("qemu-img", &["create", "-q", "-f", "qcow2", &disk, "64M"])?;
    run("qemu-img", &["create", "-q", "-f", "raw", &raw, "64M"])?;
    let write = |commands: &[&str]| {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let arguments: Vec<_> =
            ["-f", "qcow2"].into_iter().chain(commands).chain([&*disk]).collect();
        run("qemu-io", &arguments)
    };
    write(&["write -P 0x11 0 16M", "write -P 0x22 40M 8M"])?;
    let sink = Qemu::serve(folder.path(), "raw", &["--format", "raw"])?;
    {
        let source = Qemu::serve(folder.path(), "disk", &["--read-only", "--format", "qcow2"])?;
        succeed(&["disk", "copy", &source.url(), &sink.url()])?;
        succeed(&["disk", "verify", &source.url(), &sink.url()])?;
        let said = fail(NOT_FOUND, &["disk", "copy", "--since", "b0", &source.url(), &sink.url()])?;
        ensure!(said.contains("no such dirty bitmap"), "{said}");
    }
    run("qemu-img", &["bitmap", "--add", "-g", "64K", "-f", "qcow2", &disk, "day@b0"])?;
    write(&["write -P 0x33 1M 64k", "write -z 41M 1M", "write -P 0x44 63M 100k"])?;
    // The name of a bitmap can contain any character.
    let served = ["--read-only", "--format", "qcow2", "--bitmap", "day@b0"];
    let source = Qemu::serve(folder.path(), "disk", &served)?;
    let arguments = ["disk", "copy", "--since", "day@b0", &source.url(), &sink.url()];
    let copied = succeed_json(&arguments)?;
    ensure!(copied["bytes"] == 64 * KIB + MIB + 128 * KIB, "{copied}");
    succeed(&["disk", "verify", &source.url(), &sink.url()])?;
    Ok(())
}

#[test]
fn exports_are_read_written_and_verified_like_disks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let at = |name: &str| folder.path().join(name).display().to_string();
    let fixture = Fixture::start(folder.path())?;
    let url = fixture.url("v");
    // Not a multiple of any block.
    let bytes: Vec<u8> = (0..5 * MIB + 1234).map(|at| (at * 31 + at / 509) as u8 | 1).collect();
    let (file, back) = (at("file"), at("back"));
    fs::write(&file, &bytes)?;
    let written = succeed_json(&["disk", "write", &file, &url, "--offset", "8MiB"])?;
    ensure!(written["bytes"] == bytes.len(), "{written}");
    let length = bytes.len().to_string();
    let read =
        succeed_json(&["disk", "read", &url, &back, "--offset", "8MiB", "--length", &length])?;
    ensure!(read["sha256"] == written["sha256"] && fs::read(&back)? == bytes);
    // Any offset, before the data and across its beginning.
    let part = ["disk", "read", &url, &back, "--offset", "8388600", "--length", "1000"];
    succeed(&part)?;
    ensure!(fs::read(&back)? == [&[0; 8], &bytes[..992]].concat());
    // A whole disk: zeroes use no space.
    succeed(&["disk", "read", &url, &back])?;
    let whole = fs::read(&back)?;
    let data = 8 * MIB as usize..8 * MIB as usize + bytes.len();
    ensure!(whole.len() as u64 == 64 * MIB && whole[data.clone()] == bytes);
    ensure!(whole.iter().enumerate().all(|(at, &byte)| byte == 0 || data.contains(&at)));
    succeed(&["disk", "verify", &url, &back])?;
    let image = at("image");
    succeed(&["disk", "read", &url, &image, "--format", "qcow2"])?;
    succeed(&["disk", "verify", &url, &image, "--format", "qcow2"])?;
    let mut changed = whole;
    changed[8_400_000] ^= 1;
    fs::write(&back, &changed)?;
    let said = fail(FAILED, &["disk", "verify", &url, &back])?;
    ensure!(said.contains("first at byte 8400000"), "{said}");
    // The data of a file system is not overwritten.
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-c", "write -P 0x4c 0 1", "-c", "write -P 0x55 1 1"]);
    qemu.args(["-c", "write -P 0x4b 2 1", "-c", "write -P 0x53 3 1", "-c", "write -P 0xba 4 1"]);
    qemu.args(["-c", "write -P 0xbe 5 1", "-c", "write -P 0 6 1", "-c", "write -P 1 7 1"]);
    process::output(qemu.arg(&url), LIMIT)?;
    let said = fail(CONFLICT, &["disk", "write", &file, &url])?;
    ensure!(said.contains("LUKS") && said.contains("--destroy"), "{said}");
    let said = fail(USAGE, &["disk", "erase", &url, "--destroy"])?;
    ensure!(said.contains("over iSCSI"), "{said}");
    fixture.server.stop()
}
