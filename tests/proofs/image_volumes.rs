//! Volumes of a pool that are filled from images while they are used.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::Rng;
use sarsen_proof::managed::Managed;
use sarsen_proof::process;

use crate::pools::{nbd_portal, qemu_io, start, wait_until};

const CONFLICT: i32 = 4;
const NOT_FOUND: i32 = 3;
const USAGE: i32 = 2;
const FAILED: i32 = 1;
const LIMIT: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 48 * MIB;
const VOLUME_BYTES: u64 = 64 * MIB;

fn tool(program: &str, arguments: &[&str]) -> Result<String> {
    Ok(process::output(Command::new(program).args(arguments), LIMIT)?)
}

/// A server with a pool, and an image.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    /// Creates the image, and what the volume is to have.
    fn new() -> Result<Self> {
        let place = Self { folder: tempfile::tempdir()? };
        let raw = place.path("raw");
        let mut bytes = vec![0; IMAGE_BYTES as usize];
        Rng::new(0x5eed).fill(&mut bytes);
        // Some of it is zero.
        bytes[20 << 20..23 << 20].fill(0);
        bytes[40 << 20..][..4096].fill(0);
        fs::write(&raw, &bytes)?;
        tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &raw, &place.path("a.qcow2")])?;
        fs::copy(&raw, place.path("expected"))?;
        File::options().write(true).open(place.path("expected"))?.set_len(VOLUME_BYTES)?;
        Ok(place)
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn start(&self) -> Result<Managed> {
        start(self.folder.path())
    }

    /// Starts a server with a pool that fills volumes slowly, so that it does not end before it is interrupted.
    fn start_slow(&self) -> Result<Managed> {
        let server = self.start()?;
        let device = format!("{},size=512MiB", self.path("tank.pool"));
        server.run(&["pool", "create", "tank", "--device", &device])?;
        server.run(&["pool", "set", "tank", "repair-rate=1MiB"])?;
        Ok(server)
    }

    fn create(&self, server: &Managed, volume: &str) -> Result<()> {
        let image = self.path("a.qcow2");
        let arguments = ["volume", "create", volume, "64MiB", "--pool", "tank", "--image", &image];
        server.run(&[&arguments[..], &["--export"]].concat()).map(drop)
    }

    /// Compares all bytes of a volume with what it is to have, over both protocols.
    fn compare(&self, server: &Managed, volume: &str) -> Result<()> {
        let nbd = format!("nbd://{}/{volume}", nbd_portal(server)?);
        let iscsi = format!("iscsi://{}/iqn.2026-11.io.sarsen:{volume}/0", server.portal()?);
        for url in [nbd, iscsi] {
            let arguments = ["compare", "-f", "raw", "-F", "raw", &self.path("expected"), &url];
            let said = tool("qemu-img", &arguments)?;
            ensure!(said.contains("Images are identical"), "{url}: {said}");
        }
        Ok(())
    }

    /// Carries out the same requests on a volume and on what it is to have.
    fn change(&self, server: &Managed, volume: &str, commands: &[&str]) -> Result<()> {
        qemu_io(server, volume, commands)?;
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", "-d", "unmap"]);
        for command in commands {
            // A file may keep what is discarded.
            let command = command.replace("discard", "write -z");
            qemu.args(["-c", &command]);
        }
        process::output(qemu.arg(self.path("expected")), LIMIT)?;
        Ok(())
    }
}

fn is_filling(server: &Managed, volume: &str) -> Result<bool> {
    let listed = server.json(&["volume", "list"])?;
    let usage = listed["usage"].as_array().context("volumes")?;
    let own = usage.iter().find(|one| one["name"] == volume);
    Ok(!own.context("the volume")?["filling"].is_null())
}

fn problem(server: &Managed) -> Result<String> {
    let found = server.json(&["volume", "list"])?;
    Ok(found["problems"][0]["problem"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_volume_is_used_while_it_is_filled_and_then_needs_no_image() -> Result<()> {
    let place = Place::new()?;
    let server = place.start_slow()?;
    place.create(&server, "vm1")?;
    let listed = server.run(&["volume", "list"])?;
    ensure!(listed.contains(&format!("filling from {}, ", place.path("a.qcow2"))), "{listed}");
    ensure!(server.run(&["volume", "show", "vm1"])?.contains("# filling from "));
    place.compare(&server, "vm1")?;
    let refused = server.refused(CONFLICT, &["snapshot", "create", "vm1@s"])?;
    ensure!(refused.contains("still being filled from its image: wait"), "{refused}");
    let changes = [
        "write -P 0x11 30M 512",
        "write -P 0x22 46M 4M",
        "write -z 40M 1M",
        "discard 33M 3M",
        "discard 60M 4M",
        "flush",
    ];
    place.change(&server, "vm1", &changes)?;
    place.compare(&server, "vm1")?;
    server.run(&["volume", "resize", "vm1", "65MiB"])?;
    File::options().write(true).open(place.path("expected"))?.set_len(65 * MIB)?;
    ensure!(is_filling(&server, "vm1")?, "it has not been interrupted");
    server.kill()?;
    let server = place.start()?;
    ensure!(is_filling(&server, "vm1")?, "it has not been interrupted");
    place.compare(&server, "vm1")?;
    place.change(&server, "vm1", &["write -P 0x33 25M 128k", "discard 26M 64k", "flush"])?;
    server.run(&["pool", "set", "tank", "repair-rate=1GiB"])?;
    wait_until(|| Ok(!is_filling(&server, "vm1")?))?;
    place.compare(&server, "vm1")?;
    wait_until(|| {
        Ok(server.run(&["event", "list"])?.contains("volume_filled: volume vm1 is filled"))
    })?;
    server.run(&["snapshot", "create", "vm1@s"])?;
    server.run(&["volume", "clone", "vm1@s", "vm2", "--export"])?;
    server.run(&["volume", "delete", "vm2", "--cascade"])?;
    // It is deallocated again, and remains so without the image.
    place.change(&server, "vm1", &["discard 0 8M", "flush"])?;
    fs::remove_file(place.path("a.qcow2"))?;
    server.kill()?;
    let server = place.start()?;
    place.compare(&server, "vm1")?;
    ensure!(!is_filling(&server, "vm1")?);
    server.stop()?;
    let pool = place.path("tank.pool");
    let checked = sarsen_proof::program::path()?;
    let said = process::output(Command::new(checked).args(["pool", "check", &pool]), LIMIT)?;
    ensure!(said.contains("no inconsistencies"), "{said}");
    Ok(())
}

#[test]
fn images_that_cannot_fill_a_volume_are_refused_and_nothing_remains() -> Result<()> {
    let place = Place::new()?;
    let server = place.start_slow()?;
    let image = place.path("a.qcow2");
    let create = |code: i32, arguments: &[&str]| {
        let verb = ["volume", "create", "vm1", "--pool", "tank"];
        server.refused(code, &[&verb[..], arguments].concat())
    };
    let refused = create(FAILED, &["47MiB", "--image", &image])?;
    ensure!(refused.contains("smaller than the disk in its image, which has 48 MiB"), "{refused}");
    let refused = create(NOT_FOUND, &["--image", &place.path("missing")])?;
    ensure!(refused.contains("missing does not exist"), "{refused}");
    let refused = create(FAILED, &["--image", &place.path("raw")])?;
    ensure!(refused.contains("is no valid qcow2 image"), "{refused}");
    // The names of files in an image are not opened.
    let over = place.path("over.qcow2");
    tool("qemu-img", &["create", "-f", "qcow2", "-b", &image, "-F", "qcow2", &over])?;
    let refused = create(FAILED, &["--image", &over])?;
    ensure!(
        refused.contains("over.qcow2 needs other files: backing file")
            && refused.contains("sarsen disk write --format qcow2 --permit-references"),
        "{refused}"
    );
    let encrypted = place.path("encrypted.qcow2");
    let secret = ["--object", "secret,id=s,data=secret", "-f", "qcow2"];
    // For LUKS, qemu-img measures how fast the machine is, and fails now and then if that is busy.
    let options = ["-o", "encrypt.format=aes,encrypt.key-secret=s"];
    let size = [&encrypted, "16M"];
    tool("qemu-img", &[&["create"], &secret[..], &options, &size].concat())?;
    let refused = create(FAILED, &["--image", &encrypted])?;
    ensure!(refused.contains("the image is encrypted; decrypt it first"), "{refused}");
    for (bit, name) in [(1, "dirty"), (2, "corrupt")] {
        let damaged = place.path(name);
        fs::copy(&image, &damaged)?;
        // The last byte of the incompatible features.
        File::options().write(true).open(&damaged)?.write_all_at(&[bit], 79)?;
        let refused = create(FAILED, &["--image", &damaged])?;
        ensure!(refused.contains(name) && refused.contains("qemu-img check -r all"), "{refused}");
    }
    // Only a volume in a pool has an image, and only one of its own.
    let refused = server.refused(USAGE, &["volume", "create", "x", "1MiB", "--image", &image])?;
    ensure!(refused.contains("only a volume in a pool is filled from an image"), "{refused}");
    // A file that a volume writes to is not an image at the same time, and the other way round.
    let written = place.path("written.img");
    server.run(&["volume", "create", "file", "16MiB", "--path", &written])?;
    let refused = create(CONFLICT, &["--image", &written, "--image-format", "raw"])?;
    ensure!(refused.contains("in use"), "{refused}");
    server.run(&["volume", "delete", "file"])?;
    let status = server.json(&["pool", "status", "tank"])?;
    ensure!(status["contents"].as_array().is_some_and(Vec::is_empty), "{status}");
    // Several volumes are filled from one image, raw or not.
    let raw = place.path("raw");
    server.run(&[
        "volume",
        "create",
        "vm1",
        "64MiB",
        "--pool",
        "tank",
        "--image",
        &raw,
        "--image-format",
        "raw",
        "--export",
    ])?;
    place.create(&server, "vm2")?;
    place.create(&server, "vm3")?;
    let refused = server.refused(CONFLICT, &["volume", "create", "file", "--path", &raw])?;
    ensure!(refused.contains("in use"), "{refused}");
    for volume in ["vm1", "vm2", "vm3"] {
        place.compare(&server, volume)?;
    }
    server.run(&["pool", "set", "tank", "repair-rate=1GiB"])?;
    for volume in ["vm1", "vm2", "vm3"] {
        wait_until(|| Ok(!is_filling(&server, volume)?))?;
        place.compare(&server, volume)?;
    }
    server.stop()
}

#[test]
fn a_volume_whose_image_is_missing_returns_with_it() -> Result<()> {
    let place = Place::new()?;
    let server = place.start_slow()?;
    place.create(&server, "vm1")?;
    server.run(&["volume", "create", "other", "8MiB", "--pool", "tank", "--export"])?;
    place.change(&server, "vm1", &["write -P 0x11 30M 64k", "flush"])?;
    server.stop()?;
    let (image, away) = (place.path("a.qcow2"), place.path("away"));
    fs::rename(&image, &away)?;
    let server = place.start()?;
    qemu_io(&server, "other", &["write -P 0x11 0 1M"])?;
    let why = problem(&server)?;
    ensure!(why.contains("a.qcow2 does not exist, and the volume is filled from this"), "{why}");
    // Another image is not taken for it.
    tool("qemu-img", &["create", "-f", "qcow2", &image, "32M"])?;
    wait_until(|| Ok(problem(&server)?.contains("its disk has 32 MiB, and had 48 MiB")))?;
    fs::rename(&away, &image)?;
    wait_until(|| Ok(problem(&server)?.is_empty()))?;
    place.compare(&server, "vm1")?;
    // What a changed image has lost is not read as zeroes.
    fs::copy(&image, &away)?;
    let length = fs::metadata(&image)?.len();
    File::options().write(true).open(&image)?.set_len(length / 2)?;
    wait_until(|| Ok(problem(&server)?.contains("is not filled from")))?;
    let why = problem(&server)?;
    ensure!(
        why.contains("the file was changed") && why.contains("sarsen volume reattach"),
        "{why}"
    );
    ensure!(place.compare(&server, "vm1").is_err());
    qemu_io(&server, "vm1", &["read -P 0x11 30M 64k"])?;
    fs::copy(&away, &image)?;
    server.run(&["volume", "reattach", "vm1", "--force", "--grace", "0"])?;
    server.run(&["pool", "set", "tank", "repair-rate=1GiB"])?;
    wait_until(|| Ok(!is_filling(&server, "vm1")? && problem(&server)?.is_empty()))?;
    place.compare(&server, "vm1")?;
    server.stop()
}

#[test]
fn a_volume_that_is_deleted_while_it_is_filled_is_filled_anew() -> Result<()> {
    let place = Place::new()?;
    let server = place.start_slow()?;
    for _ in 0..2 {
        place.create(&server, "vm1")?;
        place.compare(&server, "vm1")?;
        qemu_io(&server, "vm1", &["write -P 0x11 0 64M", "flush"])?;
        server.run(&["volume", "delete", "vm1", "--cascade", "--erase"])?;
        let status = server.json(&["pool", "status", "tank"])?;
        ensure!(status["contents"].as_array().is_some_and(Vec::is_empty), "{status}");
    }
    // Without the image, the rest of a volume that has it is not served.
    place.create(&server, "vm1")?;
    let serial = server.json(&["volume", "show", "vm1"])?;
    let serial = serial["serial"].as_str().context("one")?.to_owned();
    server.run(&["volume", "delete", "vm1", "--cascade"])?;
    let again = ["volume", "create", "vm1", "--pool", "tank", "--serial", &serial];
    let refused = server.refused(FAILED, &again)?;
    ensure!(
        refused.contains("still being filled from an image: set image to the path"),
        "{refused}"
    );
    let image = place.path("a.qcow2");
    server.run(&[&again[..], &["--image", &image, "--export"]].concat())?;
    place.compare(&server, "vm1")?;
    server.stop()
}
