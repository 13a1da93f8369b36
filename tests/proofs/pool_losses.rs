//! Pools that cannot be opened without a loss: they are refused, and `pool recover` goes on with what is left.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use serde_json::Value;

use crate::pools::{qemu_io, start, wait_until};

const FAILED: i32 = 1;

fn contents(server: &Managed) -> Result<Value> {
    server.json(&["pool", "status", "tank", "--reclaimable"])
}

/// Waits until the pool has a problem that says all of this.
fn wait_for_problem(server: &Managed, words: &[&str]) -> Result<()> {
    wait_until(|| {
        let contents = contents(server)?;
        let problem = contents["pool"]["problem"].as_str().unwrap_or_default();
        Ok(words.iter().all(|word| problem.contains(word)))
    })
}

/// Returns the bytes that a volume has lost.
fn lost(server: &Managed, name: &str) -> Result<u64> {
    let contents = contents(server)?;
    let all = contents["contents"].as_array().context("contents")?;
    let found = all.iter().find(|one| one["name"] == name).context("the volume")?;
    found["lost_bytes"].as_u64().context("its lost bytes")
}

fn recover(server: &Managed, lose: &str) -> Result<()> {
    let refused = server.refused(2, &["pool", "recover", "tank", "--lose", lose])?;
    ensure!(refused.contains("confirm with --destroy"), "{refused}");
    server.run(&["pool", "recover", "tank", "--lose", lose, "--destroy"])?;
    Ok(())
}

#[test]
fn a_pool_goes_on_without_a_dead_disk_that_had_the_only_copy_of_something() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let [one, other] = [&first, &second].map(|path| format!("{},size=128MiB", path.display()));
    server.run(&["pool", "create", "tank", "--device", &one, "--device", &other])?;
    let create = ["volume", "create", "--pool", "tank", "--export", "--stripes", "2"];
    server.run(&[&create[..], &["striped", "32MiB"]].concat())?;
    server.run(&[&create[..], &["mirrored", "32MiB", "--mirror", "2"]].concat())?;
    for volume in ["striped", "mirrored"] {
        qemu_io(&server, volume, &["write -P 0x11 0 32M", "flush"])?;
    }
    server.run(&["snapshot", "create", "striped@s"])?;
    server.kill()?;
    let dead = folder.path().join("dead");
    fs::rename(&second, &dead)?;

    // What is left of it is not enough, and says what to do.
    fs::copy(&dead, &second)?;
    File::options().write(true).open(&second)?.set_len(64 << 20)?;
    let server = start(folder.path())?;
    let words = ["Restore its size", "recover tank --lose missing-devices"];
    wait_for_problem(&server, &words)?;
    server.kill()?;
    fs::remove_file(&second)?;

    let server = start(folder.path())?;
    wait_for_problem(&server, &["recover tank --lose missing-devices"])?;
    let refused = server
        .refused(FAILED, &["pool", "recover", "tank", "--lose", "damaged-journal", "--destroy"])?;
    let both = "--lose damaged-journal --lose missing-devices";
    ensure!(refused.contains(both), "another loss: {refused}");
    // It can be tried.
    let before = fs::read(&first)?;
    let preview = ["pool", "recover", "tank", "--lose", "missing-devices", "--dry-run"];
    let would = server.json(&preview)?;
    let would_lose = |name: &str| {
        let found = would.as_array().into_iter().flatten().find(|one| one["name"] == name);
        found.and_then(|one| one["lost_bytes"].as_u64()).with_context(|| format!("{name}: {would}"))
    };
    let (of_volume, of_snapshot) = (would_lose("striped")?, would_lose("striped@s")?);
    ensure!(of_volume == of_snapshot && would_lose("mirrored")? == 0, "{would}");
    ensure!(fs::read(&first)? == before, "the preview has written");
    let problem = contents(&server)?["pool"]["problem"].clone();
    ensure!(problem.as_str().is_some_and(|one| one.contains("missing-devices")), "{problem}");
    recover(&server, "missing-devices")?;
    wait_until(|| Ok(qemu_io(&server, "mirrored", &["read -P 0x11 0 32M"]).is_ok()))?;
    let gone = lost(&server, "striped")?;
    ensure!((8 << 20..=24 << 20).contains(&gone), "about half of it: {gone}");
    ensure!(gone == of_volume, "{of_volume} was foreseen, and {gone} are lost");
    ensure!(lost(&server, "striped@s")? == gone && lost(&server, "mirrored")? == 0);
    wait_for_problem(&server, &["has lost the data"])?;
    ensure!(qemu_io(&server, "striped", &["read -P 0x11 0 32M"]).is_err(), "half of it is lost");
    // A volume that is written again has everything.
    qemu_io(&server, "striped", &["write -P 0x22 0 32M", "flush"])?;
    ensure!(lost(&server, "striped")? == 0 && lost(&server, "striped@s")? == gone);
    server.kill()?;

    let server = start(folder.path())?;
    qemu_io(&server, "striped", &["read -P 0x22 0 32M"])?;
    server.run(&["snapshot", "delete", "striped@s"])?;
    server.run(&["pool", "scrub", "tank"])?;
    wait_until(|| Ok(contents(&server)?["pool"]["lost_bytes"] == 0))?;
    // The disk is back: it gets what it lacks.
    fs::rename(&dead, &second)?;
    let is_whole = |device: &Value| device["is_online"] == true && device["stale_bytes"] == 0;
    wait_until(|| {
        let status = contents(&server)?["pool"].clone();
        let devices = status["devices"].as_array().context("devices")?;
        Ok(devices.len() == 2 && devices.iter().all(is_whole) && status["problem"].is_null())
    })?;
    for (volume, value) in [("striped", "0x22"), ("mirrored", "0x11")] {
        qemu_io(&server, volume, &[&format!("read -P {value} 0 32M")])?;
    }
    server.stop()?;
    is_clean(&[&first, &second])
}

#[test]
fn a_pool_is_recovered_without_a_server_before_another_one_imports_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
    let [one, other] = [&first, &second].map(|path| path.display().to_string());
    let before = tempfile::tempdir()?;
    let server = start(before.path())?;
    let [with_size, and_other] = [&one, &other].map(|path| format!("{path},size=128MiB"));
    server.run(&["pool", "create", "tank", "--device", &with_size, "--device", &and_other])?;
    let create = ["volume", "create", "--export", "--pool", "tank"];
    server.run(&[&create[..], &["striped", "32MiB", "--stripes", "2"]].concat())?;
    server.run(&[&create[..], &["mirrored", "32MiB", "--mirror", "2"]].concat())?;
    for volume in ["striped", "mirrored"] {
        qemu_io(&server, volume, &["write -P 0x11 0 32M", "flush"])?;
    }
    server.kill()?;
    fs::remove_file(&second)?;

    let server = start(folder.path())?;
    let import = ["pool", "import", "tank", "--device", &one];
    let refused = server.refused(FAILED, &import)?;
    ensure!(refused.contains("pool recover tank --lose missing-devices"), "{refused}");
    ensure!(refused.contains("add --offline and --device"), "{refused}");
    let recover = ["pool", "recover", "tank", "--offline", "--device", &one, "--destroy"];
    let refused = server.refused(FAILED, &recover)?;
    ensure!(refused.contains("--lose missing-devices"), "nothing was accepted: {refused}");
    let preview = [&recover[..6], &["--lose", "missing-devices", "--dry-run"]].concat();
    let would = server.run(&preview)?;
    let is_whole = |line: &str| line.starts_with("mirrored") && line.ends_with(" 0 bytes");
    ensure!(would.contains("striped") && would.lines().any(is_whole), "{would}");
    server.run(&[&recover[..], &["--lose", "missing-devices"]].concat())?;
    // The server remembers a failed attempt for some seconds.
    wait_until(|| Ok(server.run(&import).is_ok()))?;
    let refused = server.refused(FAILED, &recover)?;
    ensure!(refused.contains("in use"), "the server has it: {refused}");
    ensure!(lost(&server, "striped")? > 0 && lost(&server, "mirrored")? == 0);
    server.stop()?;
    is_clean(&[&first])
}

fn is_clean(devices: &[&Path]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let devices: Vec<_> = devices.iter().map(|path| path.display().to_string()).collect();
    let check = ["pool", "check"].into_iter().chain(devices.iter().map(String::as_str));
    let said = server.run(&check.collect::<Vec<_>>())?;
    ensure!(said.contains("no inconsistencies"), "{said}");
    server.stop()
}

/// Returns the places of all frames of a pool's journal, in the order of their numbers.
fn frames(device: &Path) -> Result<Vec<u64>> {
    let bytes = fs::read(device)?;
    let is_frame = |page: &&[u8]| &page[8..16] == b"sarsen\x1aj";
    let pages = bytes.chunks_exact(4096).enumerate().filter(|(_, page)| is_frame(page));
    let number = |page: &[u8]| u64::from_le_bytes(page[32..40].try_into().expect("8 bytes"));
    let mut found: Vec<_> = pages.map(|(at, page)| (number(page), at as u64 * 4096)).collect();
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, place)| place).collect())
}

#[test]
fn a_damaged_journal_is_not_taken_for_a_short_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let device = folder.path().join("device");
    let path = device.display().to_string();
    server.run(&["pool", "create", "tank", "--device", &format!("{path},size=128MiB")])?;
    server.run(&["volume", "create", "v", "64MiB", "--pool", "tank", "--export"])?;
    // Each flush writes a frame.
    for megabyte in 0..8 {
        qemu_io(&server, "v", &[&format!("write -P 0x11 {megabyte}M 1M"), "flush"])?;
    }
    server.kill()?;
    let frames = frames(&device)?;
    let damaged = frames[frames.len() - 4];
    let file = File::options().read(true).write(true).open(&device)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, damaged + 44)?;
    file.write_all_at(&[byte[0] ^ 1], damaged + 44)?;

    let server = start(folder.path())?;
    wait_for_problem(&server, &["journal is damaged", "--lose damaged-journal"])?;
    let refused = server.refused(FAILED, &["pool", "recover", "tank", "--destroy"])?;
    ensure!(refused.contains("journal is damaged"), "not for older data: {refused}");
    ensure!(qemu_io(&server, "v", &["read -P 0x11 0 1M"]).is_err(), "nothing is served");
    recover(&server, "damaged-journal")?;
    wait_until(|| Ok(qemu_io(&server, "v", &["read -P 0x11 0 1M"]).is_ok()))?;
    ensure!(qemu_io(&server, "v", &["read -P 0x11 7M 1M"]).is_err(), "the last write is lost");
    qemu_io(&server, "v", &["write -P 0x22 0 64M", "flush"])?;
    server.kill()?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x22 0 64M"])?;
    server.stop()?;
    is_clean(&[&device])
}
