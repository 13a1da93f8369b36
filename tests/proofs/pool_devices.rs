//! The devices of pools, as users see them: mirrors that serve without a device, devices that come back, arrive, are
//! replaced, hang, and what a scrub repairs.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_proof::managed::Managed;
use sarsen_proof::process;
use serde_json::Value;

use crate::client;
use crate::hung_disk::FileSystem;
use crate::pools::{nbd_portal, qemu_io, start, wait_until};

const CONFLICT: i32 = 4;
const FAILED: i32 = 1;

fn device(path: &Path) -> String {
    format!("{},size=128MiB", path.display())
}

/// Creates a pool in new files, and a volume of 64 MiB with so many copies.
fn create(server: &Managed, files: &[PathBuf], copies: &str) -> Result<()> {
    let mut arguments = vec!["pool".to_owned(), "create".to_owned(), "tank".to_owned()];
    arguments.extend(files.iter().flat_map(|path| ["--device".to_owned(), device(path)]));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    server.run(&arguments)?;
    let create = ["volume", "create", "v", "64MiB", "--pool", "tank", "--export", "--mirror"];
    server.run(&[&create[..], &[copies]].concat())?;
    Ok(())
}

fn status(server: &Managed) -> Result<Value> {
    Ok(server.json(&["pool", "status", "tank"])?["pool"].clone())
}

fn devices(server: &Managed) -> Result<Vec<Value>> {
    Ok(status(server)?["devices"].as_array().context("devices")?.clone())
}

/// Returns whether so many devices are online and have everything, and there are no others.
fn are_whole(server: &Managed, count: usize) -> Result<bool> {
    let devices = devices(server)?;
    let is_whole = |device: &Value| device["is_online"] == true && device["stale_bytes"] == 0;
    Ok(devices.len() == count && devices.iter().all(is_whole))
}

fn files<const N: usize>(folder: &Path) -> [PathBuf; N] {
    std::array::from_fn(|number| folder.join(format!("device-{number}")))
}

#[test]
fn a_mirrored_volume_is_served_without_a_device_which_gets_what_it_lacks() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second] = files(folder.path());
    let away = folder.path().join("away");
    create(&server, &[first.clone(), second.clone()], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    server.stop()?;
    // Each of the devices is missing once.
    for (missing, old, new) in [(&second, "0x11", "0x22"), (&first, "0x22", "0x33")] {
        fs::rename(missing, &away)?;
        let server = start(folder.path())?;
        let status = status(&server)?;
        let problem = status["problem"].as_str().context("a problem")?;
        let path = missing.display().to_string();
        ensure!(problem.contains("is degraded") && problem.contains(&path), "{problem}");
        let shown = server.run(&["pool", "status", "tank"])?;
        ensure!(shown.contains("not in use"), "{shown}");
        qemu_io(&server, "v", &[&format!("read -P {old} 0 32M")])?;
        qemu_io(&server, "v", &[&format!("write -P {new} 0 32M"), "flush"])?;
        server.kill()?;
        let server = start(folder.path())?;
        qemu_io(&server, "v", &[&format!("read -P {new} 0 32M")])?;
        fs::rename(&away, missing)?;
        wait_until(|| are_whole(&server, 2))?;
        ensure!(server.run(&["event", "list"])?.contains("is degraded"));
        server.stop()?;
    }
    let paths = [first, second].map(|path| path.display().to_string());
    let other = tempfile::tempdir()?;
    let server = start(other.path())?;
    let said = server.run(&["pool", "check", &paths[0], &paths[1]])?;
    ensure!(said.contains("no inconsistencies"), "{said}");
    server.stop()
}

#[test]
fn a_device_that_was_left_out_is_not_taken_for_the_pool() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second] = files(folder.path());
    let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
    create(&server, &[first.clone(), second.clone()], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 8M", "flush"])?;
    server.stop()?;
    // The second one is left out, and lacks what is written then.
    let write_to_first = |pattern: &str| -> Result<()> {
        fs::rename(&second, &other)?;
        let server = start(folder.path())?;
        qemu_io(&server, "v", &[&format!("write -P {pattern} 0 8M"), "flush"])?;
        server.stop()?;
        fs::rename(&first, &one)?;
        Ok(fs::rename(&other, &second)?)
    };
    write_to_first("0x22")?;
    let server = start(folder.path())?;
    let problem = status(&server)?["problem"].as_str().context("a problem")?.to_owned();
    ensure!(problem.contains("older data") && problem.contains("pool recover tank"), "{problem}");
    server.refused(FAILED, &["snapshot", "list", "v"])?;
    fs::rename(&one, &first)?;
    wait_until(|| Ok(status(&server)?["is_open"] == true && are_whole(&server, 2)?))?;
    qemu_io(&server, "v", &["read -P 0x22 0 8M"])?;
    let said = server.refused(CONFLICT, &["pool", "recover", "tank", "--destroy"])?;
    ensure!(said.contains("nothing is to be recovered"), "{said}");
    server.stop()?;
    // The first one is lost for ever.
    write_to_first("0x33")?;
    let server = start(folder.path())?;
    let said = server.refused(2, &["pool", "recover", "tank"])?;
    ensure!(said.contains("confirm with --destroy"), "{said}");
    server.run(&["pool", "recover", "tank", "--destroy"])?;
    wait_until(|| Ok(qemu_io(&server, "v", &["read -P 0x22 0 8M"]).is_ok()))?;
    server.stop()?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x22 0 8M"])?;
    qemu_io(&server, "v", &["write -P 0x44 0 4M", "flush"])?;
    server.stop()?;
    // It is found again, and what was written without it counts.
    fs::rename(&one, &first)?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x44 0 4M", "read -P 0x22 4M 4M"])?;
    let problem = status(&server)?["problem"].as_str().context("a problem")?.to_owned();
    ensure!(problem.contains("used without the other devices"), "{problem}");
    server.stop()
}

#[test]
fn a_file_that_takes_the_place_of_a_device_is_not_used_as_it_is() -> Result<()> {
    for replaced in [0, 1] {
        let folder = tempfile::tempdir()?;
        let server = start(folder.path())?;
        let files: [PathBuf; 2] = files(folder.path());
        create(&server, &files, "2")?;
        qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
        let moved = folder.path().join("moved");
        fs::rename(&files[replaced], &moved)?;
        fs::copy(&moved, &files[replaced])?;
        // No later change says that this device lacks something.
        qemu_io(&server, "v", &["write -P 0x22 0 16M", "flush"])?;
        wait_until(|| {
            Ok(server.run(&["event", "list"])?.contains("moved, deleted, truncated or"))
        })?;
        qemu_io(&server, "v", &["write -P 0x33 0 8M", "flush"])?;
        server.kill()?;
        let server = start(folder.path())?;
        let expected = ["read -P 0x33 0 8M", "read -P 0x22 8M 8M", "read -P 0x11 16M 16M"];
        qemu_io(&server, "v", &expected)?;
        // The copy is used as one that lacks everything, or refused as older than the last checkpoint.
        let [old, other] = [replaced, 1 - replaced].map(|at| files[at].display().to_string());
        let new = device(&folder.path().join("new"));
        server.run(&["pool", "replace", "tank", &old, &new])?;
        wait_until(|| are_whole(&server, 2))?;
        server.stop()?;
        // The new device has all of it by itself.
        fs::remove_file(other)?;
        let server = start(folder.path())?;
        qemu_io(&server, "v", &expected)?;
        server.stop()?;
    }
    Ok(())
}

#[test]
fn nothing_is_written_while_the_only_device_is_at_another_place() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first] = files(folder.path());
    create(&server, std::slice::from_ref(&first), "1")?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    let moved = folder.path().join("moved");
    fs::rename(&first, &moved)?;
    wait_until(|| Ok(qemu_io(&server, "v", &["write -P 0x22 0 8M"]).is_err()))?;
    let problem = status(&server)?["problem"].as_str().context("a problem")?.to_owned();
    ensure!(problem.contains("is out of service: there is no"), "{problem}");
    fs::rename(&moved, &first)?;
    wait_until(|| Ok(qemu_io(&server, "v", &["write -P 0x33 0 8M", "flush"]).is_ok()))?;
    qemu_io(&server, "v", &["read -P 0x33 0 8M", "read -P 0x11 8M 24M"])?;
    server.stop()
}

#[test]
fn devices_are_added_replaced_and_removed_while_a_volume_is_used() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let all: [PathBuf; 4] = files(folder.path());
    let paths = all.each_ref().map(|path| path.display().to_string());
    create(&server, &all[..1], "1")?;
    qemu_io(&server, "v", &["write -P 0x11 0 48M", "flush"])?;
    let mirrored =
        ["volume", "create", "w", "32MiB", "--pool", "tank", "--mirror", "2", "--export"];
    let refused = server.refused(FAILED, &mirrored)?;
    ensure!(refused.contains("fewer devices"), "{refused}");
    let said = server.run(&["pool", "add", "tank", &device(&all[1])])?;
    ensure!(said.contains(&paths[1]), "{said}");
    server.run(&mirrored)?;
    qemu_io(&server, "w", &["write -P 0x22 0 32M", "flush"])?;
    let again = server.refused(FAILED, &["pool", "add", "tank", &paths[1]])?;
    ensure!(again.contains("one of its devices already"), "{again}");
    let refused = server.refused(FAILED, &["pool", "remove", "tank", &paths[1]])?;
    ensure!(refused.contains("add a device first"), "{refused}");
    // No document takes a device away that has data.
    let document = server.run(&["export"])?;
    let without = document.replace(&format!(", {:?}", paths[1]), "");
    ensure!(without != document, "{document}");
    let refused = server.apply(&without, &[])?;
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.contains("sarsen pool remove"), "{refused}");
    // Both devices are replaced.
    for (old, new) in [(0, 2), (1, 3)] {
        server.run(&["pool", "replace", "tank", &paths[old], &device(&all[new])])?;
        qemu_io(&server, "v", &["write -P 0x33 48M 16M", "flush"])?;
        wait_until(|| are_whole(&server, 2))?;
    }
    wait_until(|| Ok(!server.run(&["export"])?.contains("device-1")))?;
    let used = File::open(&all[0])?;
    let mut beginning = [0; 4096];
    used.read_exact_at(&mut beginning, 0)?;
    ensure!(beginning == [0; 4096], "an old device is no device of the pool any more");
    server.kill()?;
    fs::remove_file(&all[0])?;
    fs::remove_file(&all[1])?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 48M", "read -P 0x33 48M 16M"])?;
    qemu_io(&server, "w", &["read -P 0x22 0 32M"])?;
    ensure!(status(&server)?["problem"] == Value::Null);
    let refused = server.refused(FAILED, &["volume", "set", "w", "mirror=3"])?;
    ensure!(refused.contains("created with mirror = 2"), "{refused}");
    let refused = server.refused(CONFLICT, &["pool", "delete", "tank"])?;
    ensure!(!refused.is_empty());
    server.stop()
}

#[test]
fn devices_that_are_changed_at_the_same_time_are_all_in_the_state() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let all: [PathBuf; 6] = files(folder.path());
    let paths = all.each_ref().map(|path| path.display().to_string());
    create(&server, &all[..2], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    let together = |commands: &[Vec<String>]| -> Result<()> {
        let mut running = Vec::new();
        for words in commands {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            running.push(server.command(&words)?.spawn()?);
        }
        for mut command in running {
            ensure!(command.wait()?.success(), "one of {commands:?} fails");
        }
        Ok(())
    };
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let adds = all[2..].iter().map(|path| words(&["pool", "add", "tank", &device(path)]));
    together(&adds.collect::<Vec<_>>())?;
    wait_until(|| are_whole(&server, 6))?;
    let document = server.run(&["export"])?;
    ensure!(paths.iter().all(|path| document.contains(path)), "{document}");
    let removals = paths[..3].iter().map(|path| words(&["pool", "remove", "tank", path]));
    together(&removals.collect::<Vec<_>>())?;
    wait_until(|| are_whole(&server, 3))?;
    server.kill()?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 32M"])?;
    // The kill may have come before the paths left the state: then they leave it now.
    wait_until(|| {
        let names = server.run(&["export"])?;
        Ok(!paths[..3].iter().any(|path| names.contains(path)))
    })?;
    wait_until(|| are_whole(&server, 3))?;
    wait_until(|| Ok(status(&server)?["problem"] == Value::Null))?;
    server.stop()
}

#[test]
fn after_an_interruption_paths_of_no_device_leave_the_state_and_those_of_devices_stay() -> Result<()>
{
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let all: [PathBuf; 4] = files(folder.path());
    let paths = all.each_ref().map(|path| path.display().to_string());
    let away = folder.path().join("away");
    create(&server, &all[..2], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    // The state after an interrupted `pool add`: it names paths at which no device was written yet.
    let document = server.run(&["export"])?;
    let quoted = |path: &String| format!("{path:?}");
    let both = [&paths[0], &paths[1]].map(quoted).join(", ");
    let more = paths.each_ref().map(quoted).join(", ");
    let named = document.replace(&both, &more);
    ensure!(named != document, "{document}");
    let name_all = |server: &Managed| server.applied(&named, &[]);
    let named_now = |server: &Managed| -> Result<usize> {
        let document = server.run(&["export"])?;
        Ok(paths.iter().filter(|path| document.contains(*path)).count())
    };
    File::create(&all[3])?.set_len(128 << 20)?;
    name_all(&server)?;
    server.kill()?;
    let server = start(folder.path())?;
    wait_until(|| Ok(named_now(&server)? == 2))?;
    let events = server.run(&["event", "list"])?;
    ensure!(events.contains("no device of the pool") && events.contains("tank"), "{events}");
    wait_until(|| Ok(are_whole(&server, 2)? && status(&server)?["problem"] == Value::Null))?;
    // While a device is missing, each of them could be its path.
    name_all(&server)?;
    server.kill()?;
    fs::rename(&all[1], &away)?;
    let server = start(folder.path())?;
    let problem = status(&server)?["problem"].as_str().context("a problem")?.to_owned();
    let is_named = |path: &&String| problem.contains(*path);
    ensure!(
        problem.contains("is degraded") && paths[1..].iter().all(|path| is_named(&path)),
        "{problem}"
    );
    ensure!(!problem.contains("pool add") && !is_named(&&paths[0]), "{problem}");
    qemu_io(&server, "v", &["read -P 0x11 0 32M"])?;
    server.run(&["snapshot", "create", "v@s"])?;
    ensure!(
        named_now(&server)? == 4,
        "a path was dropped that could be that of the missing device"
    );
    server.stop()?;
    let server = start(folder.path())?;
    fs::rename(&away, &all[1])?;
    wait_until(|| are_whole(&server, 2))?;
    wait_until(|| Ok(named_now(&server)? == 2))?;
    let document = server.run(&["export"])?;
    ensure!(paths[..2].iter().all(|path| document.contains(path)), "{document}");
    server.stop()
}

#[test]
fn a_device_of_another_pool_at_a_new_path_does_not_keep_a_pool_closed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let all: [PathBuf; 2] = files(folder.path());
    let paths = all.each_ref().map(|path| path.display().to_string());
    server.run(&["pool", "create", "other", "--device", &device(&all[1])])?;
    server.run(&["pool", "delete", "other"])?;
    create(&server, &all[..1], "1")?;
    qemu_io(&server, "v", &["write -P 0x11 0 8M", "flush"])?;
    // The state after an interrupted `pool add --force`.
    let document = server.run(&["export"])?;
    let named =
        document.replace(&format!("{:?}", paths[0]), &format!("{:?}, {:?}", paths[0], paths[1]));
    server.applied(&named, &[])?;
    server.kill()?;
    let server = start(folder.path())?;
    wait_until(|| Ok(!server.run(&["export"])?.contains(&paths[1])))?;
    qemu_io(&server, "v", &["read -P 0x11 0 8M"])?;
    wait_until(|| Ok(status(&server)?["problem"] == Value::Null))?;
    server.stop()
}

#[test]
fn a_device_that_was_used_apart_is_refused_and_can_be_added_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second] = files(folder.path());
    let away = folder.path().join("away");
    create(&server, &[first.clone(), second.clone()], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    server.stop()?;
    // Each of them without the other one. The second is used longer, and counts.
    for (other, writes, value) in [(&second, 1, "0x22"), (&first, 2, "0x33")] {
        fs::rename(other, &away)?;
        for write in 0..writes {
            let server = start(folder.path())?;
            if other == &first && write == 0 {
                // The server remembers that the second one was left out.
                server.run(&["pool", "recover", "tank", "--destroy"])?;
                wait_until(|| Ok(qemu_io(&server, "v", &["read -P 0x11 0 32M"]).is_ok()))?;
            }
            qemu_io(&server, "v", &[&format!("write -P {value} 0 32M"), "flush"])?;
            server.stop()?;
        }
        fs::rename(&away, other)?;
    }
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x33 0 32M"])?;
    let problem = status(&server)?["problem"].to_string();
    let path = first.display().to_string();
    ensure!(problem.contains(&path) && problem.contains("without the other"), "{problem}");
    let refused = server.refused(FAILED, &["pool", "replace", "tank", &path, &path])?;
    ensure!(refused.contains("--force"), "{refused}");
    server.run(&["pool", "replace", "tank", &path, &path, "--force"])?;
    wait_until(|| are_whole(&server, 2))?;
    server.stop()?;
    fs::rename(&second, &away)?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x33 0 32M"])?;
    server.stop()
}

#[test]
fn a_device_that_does_not_respond_is_left_out_and_taken_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    let server = start(folder.path())?;
    let [file] = files(folder.path());
    create(&server, &[file, disk.path("device")], "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 8M", "flush"])?;
    let frozen = disk.freeze()?;
    // It takes some seconds until the server stops waiting for the disk.
    qemu_io(&server, "v", &["write -P 0x22 0 8M", "flush", "read -P 0x22 0 8M"])?;
    let problem = || Ok::<_, anyhow::Error>(status(&server)?["problem"].to_string());
    wait_until(|| Ok(problem()?.contains("it has ended no request")))?;
    drop(frozen);
    wait_until(|| are_whole(&server, 2))?;
    server.stop()
}

#[test]
fn a_scrub_repairs_what_is_damaged_on_one_of_two_devices() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let both: [PathBuf; 2] = files(folder.path());
    create(&server, &both, "2")?;
    qemu_io(&server, "v", &["write -P 0x11 0 16M", "flush"])?;
    server.stop()?;
    damage(&both[1])?;
    let server = start(folder.path())?;
    let begun = server.run(&["pool", "scrub", "tank"])?;
    ensure!(begun.contains("scrub"), "{begun}");
    wait_until(|| Ok(status(&server)?["scrub"]["last"] != Value::Null))?;
    let last = status(&server)?["scrub"]["last"].clone();
    let bytes = |field: &str| last[field].as_u64().context("a number of bytes");
    ensure!(bytes("differing_bytes")? >= 8 << 20, "data that differs is made equal: {last}");
    ensure!(bytes("lost_bytes")? == 0 && bytes("read_bytes")? >= 32 << 20, "{last}");
    let shown = server.run(&["pool", "status", "tank"])?;
    ensure!(shown.contains("last scrub"), "{shown}");
    let events = server.run(&["event", "list"])?;
    ensure!(events.contains("pool_scrub_ended") && events.contains("differed"), "{events}");
    server.stop()?;
    fs::rename(&both[0], folder.path().join("away"))?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 16M"])?;
    server.stop()
}

#[test]
fn metadata_that_no_copy_has_is_a_problem_of_the_pool() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [only] = files(folder.path());
    create(&server, std::slice::from_ref(&only), "1")?;
    qemu_io(&server, "v", &["write -P 0x11 0 16M", "flush"])?;
    server.stop()?;
    let server = start(folder.path())?;
    damage(&only)?;
    server.run(&["pool", "scrub", "tank"])?;
    let is_said = |text: &str| text.contains("has damaged metadata");
    wait_until(|| Ok(status(&server)?["problem"].as_str().is_some_and(is_said)))?;
    let shown = server.run(&["pool", "list"])?;
    ensure!(is_said(&shown), "{shown}");
    server.stop()
}

/// Damages a byte of each page of a device behind its journal.
fn damage(path: &Path) -> Result<()> {
    let damaged = File::options().read(true).write(true).open(path)?;
    for offset in (4 << 20..128 << 20).step_by(4096) {
        let mut byte = [0];
        damaged.read_exact_at(&mut byte, offset + 100)?;
        damaged.write_all_at(&[byte[0] ^ 1], offset + 100)?;
    }
    Ok(())
}

/// Damages every so many blocks of a device that have the same byte everywhere, and not zero, from the seventh on. Returns the
/// number of such blocks.
fn damage_data(path: &Path, every: usize) -> Result<usize> {
    let damaged = File::options().read(true).write(true).open(path)?;
    let mut blocks = 0;
    for offset in (0..128 << 20).step_by(4096) {
        let mut block = [0; 4096];
        damaged.read_exact_at(&mut block, offset)?;
        if block[0] != 0 && block.iter().all(|&byte| byte == block[0]) {
            if blocks >= 6 && (blocks - 6) % every == 0 {
                damaged.write_all_at(b"wrong", offset + 1000)?;
            }
            blocks += 1;
        }
    }
    Ok(blocks)
}

#[test]
fn data_with_checksums_is_read_from_the_copy_that_is_right() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let both: [PathBuf; 2] = files(folder.path());
    create(&server, &both, "2")?;
    let create = ["volume", "create", "w", "64MiB", "--pool", "tank", "--export"];
    server.run(&[&create[..], &["--mirror", "2", "--checksums"]].concat())?;
    qemu_io(&server, "w", &["write -P 0x11 0 16M", "write -P 0x22 16M 1M", "flush"])?;
    server.run(&["snapshot", "create", "w@s"])?;
    qemu_io(&server, "w", &["write -P 0x33 16M 512k", "flush"])?;
    server.stop()?;
    let right = ["read -P 0x11 0 16M", "read -P 0x33 16M 512k", "read -P 0x22 16896k 512k"];
    for (number, damaged) in both.iter().enumerate() {
        damage_data(damaged, 1)?;
        let server = start(folder.path())?;
        qemu_io(&server, "w", &right)?;
        server.run(&["pool", "scrub", "tank"])?;
        wait_until(|| Ok(status(&server)?["scrub"]["last"] != Value::Null))?;
        let last = status(&server)?["scrub"]["last"].clone();
        ensure!(last["lost_bytes"] == 0, "{last}");
        let errors: Vec<_> =
            devices(&server)?.iter().map(|device| device["checksum_errors"].as_u64()).collect();
        ensure!(errors[1 - number] == Some(0) && errors[number] > Some(4000), "{errors:?}");
        wait_until(|| Ok(status(&server)?["problem"].to_string().contains("repaired data")))?;
        server.stop()?;
    }
    fs::rename(&both[0], folder.path().join("away"))?;
    let server = start(folder.path())?;
    qemu_io(&server, "w", &right)?;
    server.stop()
}

#[test]
fn data_with_checksums_that_no_copy_has_is_not_returned() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let one: [PathBuf; 1] = files(folder.path());
    let path = device(&one[0]);
    server.run(&["pool", "create", "tank", "--device", &path])?;
    server.run(&["volume", "create", "w", "64MiB", "--pool", "tank", "--export", "--checksums"])?;
    qemu_io(&server, "w", &["write -P 0x5a 0 8M", "flush"])?;
    server.stop()?;
    ensure!(damage_data(&one[0], 512)? == 2048, "the device has all blocks");
    let server = start(folder.path())?;
    qemu_io(&server, "w", &["read -P 0x5a 0 24k"])?;
    let refused = qemu_io(&server, "w", &["read 24k 4k"]);
    ensure!(refused.is_err(), "{refused:?}");
    wait_until(|| Ok(server.run(&["event", "list"])?.contains("has lost data")))?;
    let shown = server.run(&["pool", "status", "tank"])?;
    ensure!(shown.contains("without their checksum"), "{shown}");
    server.run(&["pool", "scrub", "tank"])?;
    wait_until(|| Ok(status(&server)?["scrub"]["last"] != Value::Null))?;
    let last = status(&server)?["scrub"]["last"].clone();
    ensure!(last["lost_bytes"] == 4 * 4096, "{last}");
    qemu_io(&server, "w", &["write -P 0x66 24k 4k", "read -P 0x66 24k 4k", "flush"])?;
    // The server remembers it: the other blocks are still lost.
    server.stop()?;
    let mut remembered = fs::read_dir(folder.path().join("state/pools"))?;
    let is_lost = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_string_lossy().ends_with(".lost"))
    };
    ensure!(remembered.any(is_lost), "the state does not remember it");
    let server = start(folder.path())?;
    let scrubbed_lost = |server: &Managed| -> Result<Value> {
        server.run(&["pool", "scrub", "tank"])?;
        wait_until(|| Ok(status(server)?["scrub"]["is_running"] == false))?;
        Ok(status(server)?["scrub"]["last"]["lost_bytes"].clone())
    };
    let has_problem = |server: &Managed| -> Result<bool> {
        Ok(status(server)?["problem"].to_string().contains("has lost data"))
    };
    wait_until(|| Ok(status(&server)?["is_open"] == true))?;
    ensure!(has_problem(&server)?, "{}", status(&server)?);
    ensure!(scrubbed_lost(&server)? == 3 * 4096 && has_problem(&server)?);
    qemu_io(&server, "w", &["write -P 0x77 0 8M", "flush"])?;
    ensure!(has_problem(&server)?, "no scrub has found everything intact yet");
    ensure!(scrubbed_lost(&server)? == 0, "{}", status(&server)?);
    wait_until(|| Ok(!has_problem(&server)?))?;
    ensure!(status(&server)?["scrub"]["percent"] == 100, "{}", status(&server)?);
    server.stop()?;
    for entry in fs::read_dir(folder.path().join("state/pools"))? {
        let name = entry?.file_name();
        ensure!(!name.to_string_lossy().ends_with(".lost"), "the loss is remembered: {name:?}");
    }
    Ok(())
}

#[test]
fn a_pool_can_do_without_a_device_whose_only_data_was_erased() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second] = files(folder.path());
    let away = folder.path().join("away");
    create(&server, &[first.clone(), second.clone()], "2")?;
    let single = ["volume", "create", "single", "64MiB", "--pool", "tank", "--export"];
    server.run(&single)?;
    qemu_io(&server, "v", &["write -P 0x11 0 8M", "flush"])?;
    qemu_io(&server, "single", &["write -P 0x22 0 32M", "flush"])?;
    // Each device is needed now.
    server.stop()?;
    fs::rename(&second, &away)?;
    let server = start(folder.path())?;
    let problem = status(&server)?["problem"].as_str().context("a problem")?.to_owned();
    ensure!(problem.contains("has its only copy there"), "{problem}");
    fs::rename(&away, &second)?;
    wait_until(|| Ok(status(&server)?["is_open"] == true))?;
    wait_until(|| Ok(server.run(&["volume", "delete", "single", "--cascade", "--erase"]).is_ok()))?;
    wait_until(|| Ok(server.json(&["pool", "list"])?["pools"][0]["is_freeing"] == false))?;
    server.kill()?;
    fs::rename(&second, &away)?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 8M"])?;
    server.stop()
}

#[test]
fn sbc3_6_6_4_clients_of_a_striped_volume_see_its_chunks_and_stripes() -> Result<()> {
    const CHUNK: u64 = 128 << 10;
    const BLOCK_LIMITS: u8 = 0xb0;
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let devices = files::<3>(folder.path()).map(|path| device(&path));
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    let chunk = ["pool", "create", "tank", "--chunk-size", "128KiB"];
    server.run(&chunk.into_iter().chain(devices).collect::<Vec<_>>())?;
    let create = ["volume", "create", "v", "64MiB", "--pool", "tank", "--export", "--stripes", "3"];
    server.run(&create)?;
    let urls = server.run(&["target", "url"])?;
    let iscsi = urls.split_whitespace().find(|word| word.starts_with("iscsi://"));
    let iscsi = iscsi.with_context(|| urls.clone())?.parse()?;
    let page = client::run(async {
        let session = Unit::connect(&iscsi, &SessionOptions::default()).await?;
        let page = session.inquiry_data(Some(BLOCK_LIMITS)).await?;
        session.logout().await?;
        Ok(page)
    })?;
    // OPTIMAL TRANSFER LENGTH GRANULARITY and OPTIMAL TRANSFER LENGTH, in blocks of 512 bytes.
    ensure!(page[6..8] == ((CHUNK / 512) as u16).to_be_bytes(), "{:?}", &page[..]);
    ensure!(page[12..16] == ((3 * CHUNK / 512) as u32).to_be_bytes(), "{:?}", &page[..]);
    let nbd = format!("nbd://{}/v", nbd_portal(&server)?);
    let said = process::output(Command::new("nbdinfo").args(["--json", &nbd]), client::LIMIT)?;
    let export = &serde_json::from_str::<Value>(&said)?["exports"][0];
    ensure!(
        export["block_size_preferred"] == CHUNK && export["block_size_minimum"] == 512,
        "{said}"
    );
    server.stop()
}
