//! Pools, snapshots and clones, as users and their initiators see them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::{BlockError, Buffer, Durability, Extent, Store};
use sarsen_initiator::nbd::NbdConnection;
use sarsen_proof::managed::Managed;
use sarsen_proof::{process, program};

use crate::client;
use crate::hung_disk::FileSystem;

const CONFLICT: i32 = 4;
const NOT_FOUND: i32 = 3;
const USAGE: i32 = 2;
const FAILED: i32 = 1;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn start(folder: &Path) -> Result<Managed> {
    Managed::start_with(folder, &["--listen-nbd", "127.0.0.1:0"])
}

/// Creates a pool in a new file of this size.
fn create_pool(server: &Managed, file: &Path, size: &str) -> Result<String> {
    let device = format!("{},size={size}", file.display());
    server.run(&["pool", "create", "tank", "--device", &device])
}

/// Writes patterns to a volume, or reads and compares them, with QEMU.
pub(crate) fn qemu_io(server: &Managed, volume: &str, commands: &[&str]) -> Result<()> {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-t", "writeback", "-d", "unmap"]);
    if commands.iter().all(|command| command.starts_with("read")) {
        qemu.arg("-r");
    }
    for command in commands {
        qemu.args(["-c", command]);
    }
    let target = format!("iqn.2026-11.io.sarsen:{volume}");
    qemu.arg(format!("iscsi://{}/{target}/0", server.portal()?));
    let output = process::output(&mut qemu, LIMIT)?;
    ensure!(!output.contains("Pattern verification failed"), "{output}");
    Ok(())
}

fn space(server: &Managed) -> Result<(u64, u64)> {
    let pools = server.json(&["pool", "list"])?;
    let bytes = |field: &str| pools["pools"][0][field].as_u64().context("a number of bytes");
    Ok((bytes("used_bytes")?, bytes("free_bytes")?))
}

#[test]
fn volumes_snapshots_and_clones_have_what_was_written_before_them() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let said = create_pool(&server, &folder.path().join("tank.pool"), "256MiB")?;
    ensure!(said.contains("+ pool tank") && said.contains("free of"), "{said}");
    server.run(&["volume", "create", "vm1", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "vm1", &["write -P 0x11 0 8M", "flush"])?;
    let created = server.run(&["snapshot", "create", "vm1@golden"])?;
    ensure!(created == "created vm1@golden\n", "{created}");
    qemu_io(&server, "vm1", &["write -P 0x22 4M 8M", "flush"])?;
    server.run(&["volume", "clone", "vm1@golden", "vm2", "--export"])?;
    qemu_io(&server, "vm2", &["read -P 0x11 0 8M", "read -P 0 8M 8M"])?;
    qemu_io(&server, "vm2", &["write -P 0x33 0 1M", "flush"])?;
    server.run(&[
        "volume",
        "create",
        "old",
        "--pool",
        "tank",
        "--snapshot",
        "vm1@golden",
        "--export",
    ])?;
    qemu_io(&server, "old", &["read -P 0x11 0 8M", "read -P 0 8M 56M"])?;
    // All of it is there after a power failure, and after an end in order.
    server.kill()?;
    for _ in 0..2 {
        let server = start(folder.path())?;
        qemu_io(&server, "vm1", &["read -P 0x11 0 4M", "read -P 0x22 4M 8M", "read -P 0 12M 52M"])?;
        qemu_io(&server, "vm2", &["read -P 0x33 0 1M", "read -P 0x11 1M 7M"])?;
        qemu_io(&server, "old", &["read -P 0x11 0 8M"])?;
        server.stop()?;
    }
    let server = start(folder.path())?;
    let refused = server.refused(CONFLICT, &["snapshot", "delete", "vm1@golden"])?;
    ensure!(refused.contains("delete the volume that serves it first"), "{refused}");
    server.run(&["volume", "delete", "old", "--cascade"])?;
    let refused = server.refused(USAGE, &["snapshot", "rollback", "vm1@golden"])?;
    ensure!(refused.contains("--destroy"), "{refused}");
    server.run(&["snapshot", "rollback", "vm1@golden", "--destroy"])?;
    qemu_io(&server, "vm1", &["read -P 0x11 0 8M", "read -P 0 8M 56M"])?;
    let listed = server.json(&["snapshot", "list", "vm1"])?;
    ensure!(listed["snapshots"][0]["clones"] == serde_json::json!(["vm2"]), "{listed}");
    server.run(&["snapshot", "create", "vm1@later"])?;
    let ranges = |arguments: &[&str]| {
        let found = server.json(&[&["snapshot", "diff"], arguments].concat())?;
        anyhow::Ok(found["changes"].clone())
    };
    ensure!(ranges(&["vm1@later", "--since", "vm1@golden"])? == serde_json::json!([]));
    let all = serde_json::json!([{ "offset": 0, "length": 8 << 20, "is_hole": false }]);
    ensure!(ranges(&["vm1@later"])? == all);
    qemu_io(&server, "vm1", &["write -P 0x44 1M 64k", "discard 2M 1M", "write -P 0x55 63M 4k"])?;
    server.run(&["snapshot", "create", "vm1@latest"])?;
    let changed = serde_json::json!([
        { "offset": 1 << 20, "length": 64 << 10, "is_hole": false },
        { "offset": 2 << 20, "length": 1 << 20, "is_hole": true },
        { "offset": 63 << 20, "length": 4096, "is_hole": false },
    ]);
    let found = ranges(&["vm1@latest", "--since", "vm1@later"])?;
    ensure!(found == changed, "{found}");
    server.run(&["snapshot", "delete", "vm1@later", "vm1@latest"])?;
    server.run(&["snapshot", "protect", "vm1@golden"])?;
    let refused = server.refused(CONFLICT, &["snapshot", "delete", "vm1@golden"])?;
    ensure!(refused.contains("sarsen snapshot unprotect"), "{refused}");
    server.run(&["snapshot", "unprotect", "vm1@golden"])?;
    server.run(&["snapshot", "delete", "vm1@golden"])?;
    server.refused(NOT_FOUND, &["snapshot", "delete", "vm1@golden"])?;
    qemu_io(&server, "vm2", &["read -P 0x33 0 1M", "read -P 0x11 1M 7M"])?;
    server.stop()?;
    let checked = process::output(
        Command::new(program::path()?).args(["pool", "check"]).arg(folder.path().join("tank.pool")),
        LIMIT,
    )?;
    ensure!(checked == "no inconsistencies\n", "{checked}");
    Ok(())
}

#[test]
fn clients_see_the_chunks_and_stripes_of_a_volume() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let device = |name| format!("{},size=64MiB", folder.path().join(name).display());
    let devices = ["a", "b", "c"].map(device);
    let devices = devices.iter().flat_map(|device| ["--device", device]);
    let create: Vec<&str> = ["pool", "create", "tank"].into_iter().chain(devices).collect();
    server.run(&create)?;
    let nbd = server.announced()["portals"][1].as_str().context("the NBD portal")?;
    // Chunks of 64 KiB on one device, on three, and on three of three although more were requested.
    for (volume, stripes, length) in [("one", "1", 2048), ("three", "3", 384), ("more", "5", 384)] {
        let create = ["volume", "create", volume, "16MiB", "--pool", "tank", "--export"];
        server.run(&[&create[..], &["--stripes", stripes]].concat())?;
        let mut page = Command::new("iscsi-inq");
        page.args(["--evpd", "1", "--pagecode", "176"]);
        page.arg(format!("iscsi://{}/iqn.2026-11.io.sarsen:{volume}/0", server.portal()?));
        let page = process::output(&mut page, LIMIT)?;
        let length = format!("optimal transfer length:{length}");
        for line in ["optimal transfer length granularity:128", &length] {
            ensure!(page.lines().any(|reported| reported == line), "no {line} in\n{page}");
        }
        let url = format!("nbd://{nbd}/{volume}");
        let info = process::output(Command::new("nbdinfo").args(["--json", &url]), LIMIT)?;
        let info: serde_json::Value = serde_json::from_str(&info)?;
        ensure!(info["exports"][0]["block_size_preferred"] == 64 << 10, "{info}");
    }
    server.stop()
}

#[test]
fn a_deleted_volume_remains_in_its_pool_until_it_is_erased() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "256MiB")?;
    let (empty, _) = space(&server)?;
    server.run(&["volume", "create", "a", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "a", &["write -P 0x11 0 16M", "flush"])?;
    let refused = server.refused(CONFLICT, &["pool", "delete", "tank"])?;
    ensure!(refused.contains("used by volume a: delete its volumes first"), "{refused}");
    // A new name keeps the data, and its snapshots follow.
    server.run(&["snapshot", "create", "a@s"])?;
    server.run(&["volume", "rename", "a", "b"])?;
    let listed = server.json(&["snapshot", "list", "b"])?;
    ensure!(listed["snapshots"][0]["name"] == "b@s", "{listed}");
    let refused = server.refused(FAILED, &["volume", "delete", "b", "--cascade", "--erase"])?;
    ensure!(refused.contains("it has 1 snapshot:"), "{refused}");
    server.run(&["snapshot", "delete", "b@s"])?;
    let serial =
        server.json(&["volume", "show", "b"])?["serial"].as_str().context("one")?.to_owned();
    let said = server.run(&["volume", "delete", "b", "--cascade"])?;
    ensure!(said.contains(&format!("remains in pool tank, with serial {serial}")), "{said}");
    let orphans = server.run(&["volume", "orphan", "list"])?;
    ensure!(orphans.contains("tank/b"), "{orphans}");
    // A new volume with the same name does not get its data; one with its serial number does.
    server.run(&["volume", "create", "b", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "b", &["read -P 0 0 64M"])?;
    server.run(&["volume", "delete", "b", "--cascade", "--erase"])?;
    server.run(&["volume", "create", "c", "--pool", "tank", "--serial", &serial, "--export"])?;
    qemu_io(&server, "c", &["read -P 0x11 0 16M"])?;
    server.run(&["volume", "delete", "c", "--cascade"])?;
    server.run(&["volume", "orphan", "remove", "tank/c", "--destroy"])?;
    server.run(&["volume", "create", "b", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "b", &["read -P 0 0 64M", "write -P 0x22 0 16M", "flush"])?;
    server.run(&["volume", "delete", "b", "--cascade", "--erase"])?;
    wait_until(|| Ok(space(&server)?.0 <= empty + (2 << 20)))?;
    // A preview, and a change that is refused, create nothing in the pool.
    server.run(&["volume", "create", "d", "1MiB", "--pool", "tank", "--dry-run"])?;
    wait_until(|| {
        let status = server.json(&["pool", "status", "tank"])?;
        Ok(status["contents"].as_array().is_some_and(Vec::is_empty))
    })?;
    server.run(&["pool", "rename", "tank", "fast"])?;
    server.run(&["volume", "create", "e", "1MiB", "--pool", "fast"])?;
    server.run(&["volume", "delete", "e"])?;
    server.run(&["pool", "delete", "fast"])?;
    // The devices still have the pool.
    let device = folder.path().join("tank.pool");
    let device = device.to_str().context("a path")?;
    let refused = server.refused(FAILED, &["pool", "create", "tank", "--device", device])?;
    ensure!(refused.contains("sarsen pool import"), "{refused}");
    server.run(&["pool", "import", "tank", "--device", device])?;
    ensure!(server.run(&["volume", "orphan", "list"])?.contains("tank/e"));
    server.stop()
}

#[test]
fn snapshots_belong_to_their_volume_whatever_its_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "256MiB")?;
    let create = |name: &str, pattern: &str| {
        server.run(&["volume", "create", name, "16MiB", "--pool", "tank", "--export"])?;
        qemu_io(&server, name, &[&format!("write -P {pattern} 0 1M")])?;
        server.run(&["snapshot", "create", &format!("{name}@k")])
    };
    // A volume gets the name of an orphan, which has a snapshot of the same name.
    create("old", "0x11")?;
    server.run(&["volume", "delete", "old", "--cascade"])?;
    create("new", "0x22")?;
    qemu_io(&server, "new", &["write -P 0x33 0 1M"])?;
    server.run(&["volume", "rename", "new", "old"])?;
    server.run(&["snapshot", "rollback", "old@k", "--destroy"])?;
    let read = |target: &str, pattern: &str| {
        qemu_io(&server, target, &[&format!("read -P {pattern} 0 1M")])
    };
    read("new", "0x22")?;
    server.run(&["snapshot", "delete", "old@k"])?;
    let listed = server.run(&["snapshot", "list", "old"])?;
    ensure!(listed == "no snapshots\n", "{listed}");
    let refused =
        server.refused(CONFLICT, &["volume", "orphan", "remove", "tank/old", "--destroy"])?;
    ensure!(refused.contains("it has snapshots"), "the orphan's is still there: {refused}");
    // Two volumes exchange their names.
    create("p", "1")?;
    create("q", "2")?;
    let exported = server.run(&["export"])?;
    let exchanged = exported.replace("name = \"p\"", "name = \"x\"");
    let exchanged = exchanged.replace("name = \"q\"", "name = \"p\"");
    server.applied(&exchanged.replace("name = \"x\"", "name = \"q\""), &[])?;
    qemu_io(&server, "p", &["read -P 2 0 1M", "write -P 9 0 1M"])?;
    server.run(&["snapshot", "rollback", "p@k", "--destroy"])?;
    read("p", "2")?;
    read("q", "1")?;
    let refused = server.refused(USAGE, &["snapshot", "create", "p@daily-mine"])?;
    ensure!(refused.contains("those of schedules"), "{refused}");
    let refused = server.refused(FAILED, &["volume", "set", "p", "serial=other"])?;
    ensure!(refused.contains("leave serial as it is"), "{refused}");
    // Devices can be changed only to the pool's own.
    let refused = server.refused(FAILED, &["pool", "set", "tank", "devices=[\"/etc/passwd\"]"])?;
    ensure!(!refused.is_empty());
    server.stop()
}

/// Waits until a condition holds that the server brings about by itself.
pub(crate) fn wait_until(mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = sarsen_io::time::now() + LIMIT;
    while !holds()? {
        ensure!(sarsen_io::time::now() < deadline, "it does not happen");
        std::thread::yield_now();
    }
    Ok(())
}

#[test]
fn a_pool_is_created_only_on_devices_without_data() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let create = |name: &str, device: &str, code| {
        server.refused(code, &["pool", "create", name, "--device", device])
    };
    let path = |name: &str| folder.path().join(name).display().to_string();
    let used = File::create(path("used"))?;
    used.set_len(128 << 20)?;
    used.write_all_at(b"a file system", (128 << 20) - 512)?;
    ensure!(create("tank", &path("used"), FAILED)?.contains("has data"));
    let refused = create("tank", &format!("{},size=64MiB", path("used")), FAILED)?;
    ensure!(refused.contains("exists already"), "{refused}");
    ensure!(create("tank", &path("missing"), NOT_FOUND)?.contains("does not exist"));
    let refused = create("tank", &format!("{},size=1MiB", path("small")), FAILED)?;
    ensure!(refused.contains("too small") && !folder.path().join("small").exists(), "{refused}");
    ensure!(create("Tank", &path("used"), USAGE)?.contains("pool name"));
    let own = path("state/state.sqlite");
    ensure!(!create("tank", &own, USAGE)?.is_empty(), "the server's own file");
    server.run(&["pool", "create", "tank", "--device", &path("used"), "--force"])?;
    ensure!(create("other", &path("used"), USAGE)?.contains("both have"));
    server.run(&["volume", "create", "v", "8MiB", "--pool", "tank", "--export"])?;
    // Another server cannot have the device at the same time.
    let other = tempfile::tempdir()?;
    let second = start(other.path())?;
    let device = path("used");
    let refused = second.refused(CONFLICT, &["pool", "import", "tank", "--device", &device])?;
    ensure!(refused.contains("in use"), "{refused}");
    second.stop()?;
    // A document does not create a pool.
    let empty = File::create(path("empty"))?;
    empty.set_len(128 << 20)?;
    let document = format!("[[pool]]\nname = \"new\"\ndevices = [{:?}]\n", path("empty"));
    let refused = server.apply(&document, &[])?;
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.contains("it is no device of a pool"), "{refused}");
    server.stop()
}

#[test]
fn another_cache_mode_of_a_pool_is_said_to_wait_for_the_next_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "128MiB")?;
    let before = server.run(&["export"])?;
    let after = before.replace("name = \"tank\"", "name = \"tank\"\ncache = \"directsync\"");
    ensure!(after != before, "{before}");
    let said = server.applied(&after, &[])?;
    ensure!(said.contains("pool.cache: with the next start"), "{said}");
    let said = server.applied(&before, &[])?;
    ensure!(!said.contains("with the next start"), "{said}");
    server.stop()
}

#[test]
fn a_missing_copied_or_short_device_is_refused_by_name_and_served_when_it_is_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    let [first, second, away] = ["first", "second", "away"].map(|name| folder.path().join(name));
    let device = |path: &Path| format!("{},size=128MiB", path.display());
    server.run(&[
        "pool",
        "create",
        "tank",
        "--device",
        &device(&first),
        "--device",
        &device(&second),
    ])?;
    server.run(&["volume", "create", "v", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "v", &["write -P 0x11 0 32M", "flush"])?;
    server.stop()?;
    let problem = |server: &Managed, expected: &str| {
        let status = server.json(&["pool", "status", "tank"])?;
        let problem = status["pool"]["problem"].as_str().context("a problem")?;
        ensure!(problem.contains(expected), "{problem}");
        ensure!(status["pool"]["is_open"] == false, "{status}");
        let listed = server.run(&["volume", "list"])?;
        ensure!(listed.contains("! volume v"), "{listed}");
        Ok(())
    };
    std::fs::rename(&second, &away)?;
    let server = start(folder.path())?;
    problem(&server, &second.display().to_string())?;
    // It is served without a restart when the device is back.
    std::fs::rename(&away, &second)?;
    wait_until(|| Ok(qemu_io(&server, "v", &["read -P 0x11 0 32M"]).is_ok()))?;
    server.stop()?;
    // A copy of one device in place of the other.
    std::fs::rename(&second, &away)?;
    std::fs::copy(&first, &second)?;
    let server = start(folder.path())?;
    problem(&server, "it is a copy of another device")?;
    server.stop()?;
    std::fs::rename(&away, &second)?;
    let whole = std::fs::read(&second)?;
    File::options().write(true).open(&second)?.set_len(100 << 20)?;
    let server = start(folder.path())?;
    problem(&server, "bytes of the")?;
    server.stop()?;
    std::fs::write(&second, whole)?;
    let server = start(folder.path())?;
    qemu_io(&server, "v", &["read -P 0x11 0 32M"])?;
    server.stop()
}

#[test]
fn a_full_pool_refuses_only_new_data_and_needs_no_repair() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "96MiB")?;
    let said = server.run(&["volume", "create", "v", "256MiB", "--pool", "tank", "--export"])?;
    ensure!(said.contains("the volumes of pool tank may still take 256 MiB"), "{said}");
    let portal = nbd_portal(&server)?;
    let url = format!("nbd://{portal}/v");
    let fill = || {
        client::run(async {
            let store = NbdConnection::connect(&url.parse()?, LIMIT).await?;
            let step = 1 << 20 >> 9;
            let mut written = 0;
            loop {
                let extent = Extent::new(written * step, step);
                let data = Buffer::copy_of(&vec![written as u8 | 1; 1 << 20]);
                match store.write(extent, data.into(), Durability::Volatile).wait().await {
                    Ok(()) => written += 1,
                    Err(BlockError::NoSpace { .. }) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            ensure!(written > 16, "only {written} MiB fit");
            // Its own data can be overwritten, and is all there.
            for number in 0..written {
                let extent = Extent::new(number * step, step);
                let data = Buffer::copy_of(&vec![number as u8 | 1; 1 << 20]);
                store.write(extent, data.into(), Durability::Volatile).wait().await?;
            }
            store.flush().wait().await?;
            for number in 0..written {
                let read = store.read(Extent::new(number * step, step)).wait().await?;
                ensure!(
                    read.into_buffer().iter().all(|byte| *byte == number as u8 | 1),
                    "{number}"
                );
            }
            Ok(written)
        })
    };
    let first = fill()?;
    wait_until(|| Ok(server.run(&["pool", "list"])?.contains("! pool tank is nearly full")))?;
    // A full pool deletes, and has its space again.
    server.run(&["snapshot", "create", "v@full"])?;
    for _ in 0..3 {
        let written = client::run(async {
            let store = NbdConnection::connect(&url.parse()?, LIMIT).await?;
            let extent = Extent::new(0, 256 << 20 >> 9);
            store.unmap(extent).wait().await?;
            store.flush().wait().await?;
            Ok(())
        });
        written?;
        if server.json(&["snapshot", "list"])?["snapshots"] != serde_json::json!([]) {
            server.run(&["snapshot", "delete", "v@full"])?;
        }
        wait_until(|| {
            let pools = server.json(&["pool", "list"])?;
            Ok(pools["pools"][0]["is_freeing"] == false)
        })?;
        let again = fill()?;
        ensure!(again >= first - 1, "{again} MiB instead of {first}");
        server.run(&["snapshot", "create", "v@full"])?;
    }
    server.kill()?;
    let checked = Command::new(program::path()?)
        .args(["pool", "check"])
        .arg(folder.path().join("tank.pool"))
        .output()?;
    ensure!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let server = start(folder.path())?;
    server.run(&["volume", "list"])?;
    server.stop()
}

/// Returns the address of the portal for NBD.
pub(crate) fn nbd_portal(server: &Managed) -> Result<String> {
    let urls = server.run(&["target", "url", "--format", "nbd"])?;
    let url = urls.lines().next().context("a URL")?;
    let portal = url.strip_prefix("nbd://").and_then(|rest| rest.split('/').next());
    Ok(portal.context("an address")?.to_owned())
}

#[test]
fn a_deletion_gives_back_what_was_reported_before() -> Result<()> {
    const MIB: u64 = 1 << 20;
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "256MiB")?;
    server.run(&["volume", "create", "vm1", "64MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "vm1", &["write -P 0x11 0 8M", "flush"])?;
    server.run(&["snapshot", "create", "vm1@a"])?;
    let list = || -> Result<Vec<(u64, Option<u64>)>> {
        let listed = server.json(&["snapshot", "list", "vm1", "--reclaimable"])?;
        let all = listed["snapshots"].as_array().context("snapshots")?.iter();
        let numbers = all.map(|one| {
            let referenced = one["referenced_bytes"].as_u64().context("a number")?;
            Ok((referenced, one["reclaimable_bytes"].as_u64()))
        });
        numbers.collect()
    };
    let usage = |field: &str| -> Result<u64> {
        server.json(&["volume", "usage", "vm1"])?[field].as_u64().context("a number of bytes")
    };
    ensure!(list()? == [(8 * MIB, Some(0))], "{:?}", list()?);
    ensure!(usage("reclaimable_bytes")? == 0, "all of it is shared");
    // Two of the 8 MiB have another content in the volume, and then in a second snapshot, too.
    qemu_io(&server, "vm1", &["write -P 0x22 4M 2M", "flush"])?;
    ensure!(list()? == [(8 * MIB, Some(2 * MIB))], "{:?}", list()?);
    ensure!(usage("reclaimable_bytes")? == 2 * MIB && usage("referenced_bytes")? == 8 * MIB);
    server.run(&["snapshot", "create", "vm1@b"])?;
    qemu_io(&server, "vm1", &["discard 0 1M", "write -P 0x33 32M 3M", "flush"])?;
    ensure!(usage("reclaimable_bytes")? == 3 * MIB && usage("snapshot_count")? == 2);
    // The first MiB belongs to both snapshots, so neither deletion alone gives it back.
    ensure!(list()? == [(8 * MIB, Some(2 * MIB)), (8 * MIB, Some(0))], "{:?}", list()?);
    let unasked = server.json(&["snapshot", "list", "vm1"])?;
    ensure!(unasked["snapshots"][0]["reclaimable_bytes"].is_null(), "{unasked}");
    // A table with one space between its words.
    let words = |command: &[&str]| -> Result<String> {
        Ok(server.run(command)?.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let text = words(&["snapshot", "list", "vm1", "--reclaimable"])?;
    let heads = "SIZE REFERENCED SHARED RECLAIMABLE";
    let has_all = |text: &str, row: &str| text.contains(heads) && text.contains(row);
    ensure!(has_all(&text, "vm1@a 64 MiB 8 MiB 6 MiB 2 MiB 20"), "{text}");
    let text = words(&["pool", "status", "tank", "--reclaimable"])?;
    ensure!(has_all(&text, "vm1 64 MiB 10 MiB 7 MiB 3 MiB 1 20"), "{text}");
    let text = server.run(&["snapshot", "show", "vm1@a"])?;
    ensure!(text.contains("reclaimable  2 MiB, which its deletion gives back"), "{text}");
    let text = words(&["volume", "usage", "vm1"])?;
    ensure!(has_all(&text, "vm1 64 MiB 10 MiB 7 MiB 3 MiB 2 tank"), "{text}");
    server.refused(NOT_FOUND, &["snapshot", "show", "vm1@none"])?;
    server.refused(NOT_FOUND, &["volume", "usage", "none"])?;
    let (_, free) = space(&server)?;
    let said = server.run(&["snapshot", "delete", "vm1@a"])?;
    ensure!(said == "deleted vm1@a, which gives back 2 MiB\n", "{said}");
    wait_until(|| Ok(space(&server)?.1 == free + 2 * MIB))?;
    // Now the second snapshot has the first MiB alone.
    let said = server.run(&["snapshot", "delete", "vm1@b"])?;
    ensure!(said == "deleted vm1@b, which gives back 1 MiB\n", "{said}");
    wait_until(|| Ok(space(&server)?.1 == free + 3 * MIB))?;
    ensure!(usage("reclaimable_bytes")? == 10 * MIB, "nothing is shared any more");
    let events = server.run(&["event", "list"])?;
    ensure!(events.contains("snapshot vm1@a was deleted, which gives back 2 MiB"), "{events}");
    server.stop()
}

#[test]
fn snapshots_of_several_volumes_are_of_one_moment_and_schedules_create_theirs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = start(folder.path())?;
    create_pool(&server, &folder.path().join("tank.pool"), "128MiB")?;
    for volume in ["data", "log"] {
        server.run(&["volume", "create", volume, "8MiB", "--pool", "tank"])?;
    }
    server.run(&["volume", "create", "plain", "8MiB"])?;
    server.run(&["snapshot", "create", "data@m", "log@m"])?;
    let refused = server.refused(CONFLICT, &["snapshot", "create", "data@n", "log@m"])?;
    ensure!(refused.contains("one of the snapshots data@n, log@m exists already"), "{refused}");
    let refused = server.refused(USAGE, &["snapshot", "create", "plain@m"])?;
    ensure!(refused.contains("only volumes in pools"), "{refused}");
    server.refused(NOT_FOUND, &["snapshot", "create", "none@m"])?;
    server.refused(USAGE, &["snapshot", "create", "data"])?;
    server.refused(NOT_FOUND, &["snapshot", "list", "none"])?;
    let listed = server.json(&["snapshot", "list"])?;
    ensure!(listed["snapshots"].as_array().is_some_and(|all| all.len() == 2), "{listed}");
    server.run(&["volume", "set", "data", "snapshot-schedule=hourly=2,daily=1"])?;
    let refused =
        server.refused(USAGE, &["volume", "set", "plain", "snapshot-schedule=hourly=2"])?;
    ensure!(refused.contains("only a volume of its own in a pool"), "{refused}");
    server.stop()?;
    // The schedules run at the start, and then each minute.
    let server = start(folder.path())?;
    wait_until(|| {
        let listed = server.run(&["snapshot", "list", "data"])?;
        Ok(listed.contains("data@hourly-") && listed.contains("data@daily-"))
    })?;
    let events = server.run(&["event", "list"])?;
    ensure!(events.contains("snapshots data@m and log@m were created"), "{events}");
    server.stop()
}

#[test]
fn a_roll_back_on_a_disk_that_hangs_is_said_to_be_under_way_and_happens() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    let server = start(folder.path())?;
    create_pool(&server, &disk.path("tank.pool"), "128MiB")?;
    server.run(&["volume", "create", "v", "8MiB", "--pool", "tank", "--export"])?;
    qemu_io(&server, "v", &["write -P 0x11 0 1M", "flush"])?;
    server.run(&["snapshot", "create", "v@before"])?;
    qemu_io(&server, "v", &["write -P 0x22 0 1M", "flush"])?;
    let frozen = disk.freeze()?;
    let said = server.refused(FAILED, &["snapshot", "rollback", "v@before", "--destroy"])?;
    ensure!(said.contains("is still being rolled back"), "{said}");
    drop(frozen);
    wait_until(|| Ok(server.log().contains("the volume is rolled back")))?;
    wait_until(|| Ok(qemu_io(&server, "v", &["read -P 0x11 0 1M"]).is_ok()))?;
    server.stop()
}
