//! Fast and slow devices of pools, as users see them: what is used most moves, and nothing is lost.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use serde_json::Value;

use crate::pools::{qemu_io, start, wait_until};

const USAGE: i32 = 2;
const MIB: u64 = 1 << 20;

fn pool(server: &Managed) -> Result<Value> {
    Ok(server.json(&["pool", "status", "tank"])?["pool"].clone())
}

/// Returns a number of the fast devices.
fn fast(server: &Managed, field: &str) -> Result<u64> {
    let pool = pool(server)?;
    let tiers = pool["tiers"].as_array().context("tiers")?;
    let fast =
        tiers.iter().find(|tier| tier["tier"] == "fast").context("the pool has two tiers")?;
    fast[field].as_u64().context("a number")
}

fn fast_devices(server: &Managed) -> Result<Vec<String>> {
    let pool = pool(server)?;
    let devices = pool["devices"].as_array().context("devices")?.iter();
    let fast = devices.filter(|device| device["is_fast"] == true);
    Ok(fast.filter_map(|device| device["path"].as_str().map(str::to_owned)).collect())
}

/// Reads a MiB so often that it is hot.
fn read_often(server: &Managed, mebibyte: u64, pattern: &str) -> Result<()> {
    let reads: Vec<String> = (0..256)
        .map(|block| format!("read -P {pattern} {} 4k", mebibyte * MIB + block * 4096))
        .collect();
    qemu_io(server, "v", &reads.iter().map(String::as_str).collect::<Vec<_>>())
}

fn device(path: &Path, size: &str) -> String {
    format!("{},size={size}", path.display())
}

#[test]
fn what_is_used_most_moves_to_the_fast_devices_and_survives_a_kill() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [slow, flash, other] = ["slow", "flash", "other"].map(|name| folder.path().join(name));
    let server = start(folder.path())?;
    let of_flash = format!("{},tier=fast", device(&flash, "32MiB"));
    let slow_device = device(&slow, "256MiB");
    server.run(&["pool", "create", "tank", "--device", &slow_device, "--device", &of_flash])?;
    server.run(&["volume", "create", "v", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "v", &["write -P 0x11 0 64M", "flush"])?;
    ensure!(fast_devices(&server)? == [flash.display().to_string()]);
    ensure!(fast(&server, "requests")? == 0);
    read_often(&server, 7, "0x11")?;
    wait_until(|| Ok(fast(&server, "moved_bytes")? > 0))?;
    // A part may have moved, and the rest not yet.
    wait_until(|| {
        let before = fast(&server, "requests")?;
        read_often(&server, 7, "0x11")?;
        Ok(fast(&server, "requests")? >= before + 200)
    })
    .context("reads are not of the fast device")?;
    let shown = server.run(&["pool", "status", "tank"])?;
    ensure!(shown.contains("% of") && shown.contains("requests on fast devices"), "{shown}");
    // Other data becomes hot, and is overwritten while it moves.
    for mebibyte in 20..44 {
        read_often(&server, mebibyte, "0x11")?;
        qemu_io(&server, "v", &[&format!("write -P 0x22 {mebibyte}M 1M")])?;
    }
    qemu_io(&server, "v", &["flush"])?;
    server.kill()?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 20M", "read -P 0x22 20M 24M", "read -P 0x11 44M 20M"])?;
    // The device that replaces the fast one is fast; without one, nothing is left of the tiers.
    let [old, new] = [&flash, &other].map(|path| path.display().to_string());
    server.run(&["pool", "replace", "tank", &old, &device(&other, "64MiB")])?;
    wait_until(|| Ok(pool(&server)?["devices"].as_array().is_some_and(|all| all.len() == 2)))?;
    ensure!(fast_devices(&server)? == std::slice::from_ref(&new));
    server.run(&["pool", "set", "tank", "new-data=fast", "move-rate=1GiB", "repair-rate=1GiB"])?;
    qemu_io(&server, "v", &["read -P 0x11 0 20M", "read -P 0x22 20M 24M", "read -P 0x11 44M 20M"])?;
    server.run(&["pool", "remove", "tank", &new])?;
    wait_until(|| Ok(fast_devices(&server)?.is_empty()))?;
    qemu_io(&server, "v", &["read -P 0x11 0 20M", "read -P 0x22 20M 24M", "read -P 0x11 44M 20M"])?;
    wait_until(|| Ok(!server.run(&["pool", "show", "tank"])?.contains("fast-devices")))?;
    let refused = server.refused(USAGE, &["pool", "set", "tank", "fast-devices=[\"/srv/x\"]"])?;
    ensure!(refused.contains("/srv/x is not one of devices"), "{refused}");
    server.stop()?;
    let checked = start(tempfile::tempdir()?.path())?;
    let said = checked.run(&["pool", "check", &slow.display().to_string()])?;
    ensure!(said.contains("no inconsistencies"), "{said}");
    checked.stop()
}
