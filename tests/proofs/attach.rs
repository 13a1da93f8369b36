//! Disks of other servers as disks of this machine.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_proof::guest::{Guest, HOST, ScenarioReport, small_program};
use sarsen_proof::managed::Managed;
use sarsen_proof::process::{self, Daemon};
use sarsen_proof::virtual_machine::{
    Connection, Part, SLOTS, VirtualMachine, header, numbers, range, request,
};
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
    let taken = ["attach", &url, "--name", "other", "--as", "vhost-user-blk", "--socket", shown];
    let taken = attachments.run(&taken)?;
    let problem = String::from_utf8_lossy(&taken.stderr);
    assert!(problem.contains("belongs to the attachment data"), "{problem}");
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

/// A unit that a socket for virtual machines provides.
struct MachineDisk<'a> {
    serving: Serving,
    attachments: Attachments<'a>,
    socket: PathBuf,
}

impl<'a> MachineDisk<'a> {
    fn new(folder: &'a Path) -> Result<Self> {
        let attachments = Attachments { folder };
        // Another server of this machine may serve a volume of the same name. Its unit would have the same identifier.
        let serial = format!("serial={}", folder.display()).replace('/', "-");
        let serving = Serving::start(&[Volume::new("data", Backing::Ram, MIB).option(&serial)])?;
        let socket = folder.join("socket");
        let (url, shown) = (serving.url("data").to_string(), socket.display().to_string());
        let attach = ["attach", &url, "--as", "vhost-user-blk", "--socket", &shown];
        let attached = attachments.run(&attach)?;
        ensure!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
        Ok(Self { serving, attachments, socket })
    }

    fn end(self) -> Result<()> {
        let detached = self.attachments.run(&["detach", "data"])?;
        ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
        ensure!(!self.socket.exists(), "the socket goes with its attachment");
        self.serving.stop()
    }
}

#[test]
fn virtio_1_2_5_2_6_each_request_has_its_status() -> Result<()> {
    const OK: u8 = 0;
    const IO_ERROR: u8 = 1;
    const UNSUPPORTED: u8 = 2;
    let folder = tempfile::tempdir()?;
    let disk = MachineDisk::new(folder.path())?;
    let mut machine = VirtualMachine::new()?;
    let connection = machine.connect(&disk.socket)?;
    let sectors = connection.sectors()?;
    assert_eq!(sectors, MIB / 512);
    let bytes = [0x5a; 4096];
    let read = |machine: &mut VirtualMachine, sector: u64| -> Result<Vec<u8>> {
        let status = machine.status_of(request::READ, sector, Some(Part::In(4096)))?;
        ensure!(status == OK, "status {status}");
        machine.part(0, 1, 4096)
    };
    assert_eq!(machine.status_of(request::WRITE, 8, Some(Part::Out(&bytes)))?, OK);
    assert_eq!(read(&mut machine, 8)?, bytes);
    assert_eq!(machine.status_of(request::FLUSH, 0, None)?, OK);
    assert_eq!(machine.status_of(request::IDENTIFIER, 0, Some(Part::In(20)))?, OK);
    assert_eq!(machine.part(0, 1, 5)?, b"data\0");
    for code in [request::DISCARD, request::ZEROES] {
        assert_eq!(machine.status_of(request::WRITE, 8, Some(Part::Out(&bytes)))?, OK);
        assert_eq!(machine.status_of(code, 0, Some(Part::Out(&range(8, 8, 0))))?, OK);
        assert_eq!(read(&mut machine, 8)?, [0; 4096], "{code}");
    }
    let unmap = range(0, 8, 1);
    assert_eq!(machine.status_of(request::ZEROES, 0, Some(Part::Out(&unmap)))?, OK);
    assert_eq!(machine.status_of(request::DISCARD, 0, Some(Part::Out(&unmap)))?, UNSUPPORTED);
    let two = [range(0, 8, 0), range(8, 8, 0)].concat();
    assert_eq!(machine.status_of(request::DISCARD, 0, Some(Part::Out(&two)))?, UNSUPPORTED);
    assert_eq!(machine.status_of(99, 0, None)?, UNSUPPORTED);

    for sector in [sectors - 7, sectors, 1 << 55, u64::MAX] {
        assert_eq!(machine.status_of(request::READ, sector, Some(Part::In(4096)))?, IO_ERROR);
        assert_eq!(machine.status_of(request::WRITE, sector, Some(Part::Out(&bytes)))?, IO_ERROR);
        let outside = range(sector, 8, 0);
        assert_eq!(machine.status_of(request::DISCARD, 0, Some(Part::Out(&outside)))?, IO_ERROR);
        assert_eq!(machine.status_of(request::ZEROES, 0, Some(Part::Out(&outside)))?, IO_ERROR);
    }
    for length in [0, 1, 511, 513] {
        assert_eq!(machine.status_of(request::READ, 0, Some(Part::In(length)))?, IO_ERROR);
        let part = &bytes[..length as usize];
        assert_eq!(machine.status_of(request::WRITE, 0, Some(Part::Out(part)))?, IO_ERROR);
    }
    assert_eq!(machine.status_of(request::DISCARD, 0, Some(Part::Out(&[0; 15])))?, IO_ERROR);
    // A request without a place for its status has none, and neither has one that is too short.
    machine.submit(0, &[Part::Out(&header(request::WRITE, 0)), Part::Out(&bytes)])?;
    assert_eq!(machine.completed()?, (0, 0));
    machine.submit(0, &[Part::Out(&[0; 3]), Part::In(1)])?;
    assert_eq!(machine.completed()?, (0, 1));
    assert_eq!(machine.part(0, 1, 1)?, [IO_ERROR]);
    assert_eq!(machine.status_of(request::FLUSH, 0, None)?, OK);
    drop(connection);
    disk.end()
}

/// QEMU, docs/interop/vhost-user.rst: what is wrong ends a session, and nothing else.
#[test]
fn vhost_user_sessions_with_mistakes_end_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let disk = MachineDisk::new(folder.path())?;
    let memory = VirtualMachine::new()?;
    let ring = |index: u32| numbers(&[index, 0]);
    let no_event = (1_u64 << 8).to_ne_bytes();
    let mistakes: [(&str, [u32; 3], Vec<u8>); 9] = [
        ("another version", [1, 2, 0], vec![]),
        ("a payload that is too long", [1, 1, u32::MAX], vec![]),
        ("an unknown message", [99, 1, 0], vec![]),
        ("a short payload", [2, 1, 4], vec![0; 4]),
        ("features that were not offered", [2, 1, 8], u64::MAX.to_ne_bytes().to_vec()),
        ("no such queue", [8, 1, 8], ring(64)),
        ("a queue that is too long", [8, 1, 8], numbers(&[0, 1 << 16])),
        ("memory without a file", [5, 1, 40], [numbers(&[1, 0]), vec![0; 32]].concat()),
        ("a ring without an event", [12, 1, 8], no_event.to_vec()),
    ];
    for (what, head, payload) in mistakes {
        let connection = Connection::open(&disk.socket)?;
        connection.send_with(head, &payload, &[])?;
        assert!(connection.is_closed()?, "{what}");
    }
    let connection = Connection::open(&disk.socket)?;
    connection.share(memory.memory(), 1 << 40)?;
    assert!(connection.is_closed()?, "memory that is not in its file");
    let connection = Connection::open(&disk.socket)?;
    connection.send(24, &[numbers(&[250, 100, 0]), vec![0; 100]].concat(), &[])?;
    assert!(connection.is_closed()?, "no such configuration");

    // A ring that says nonsense is not served further. The next session begins anew.
    let mut broken = VirtualMachine::new()?;
    let connection = broken.connect(&disk.socket)?;
    assert_eq!(broken.status_of(request::FLUSH, 0, None)?, 0);
    broken.publish(0x8000)?;
    assert_eq!(connection.sectors()?, MIB / 512);
    assert_eq!(broken.stop(&connection)?, 1, "the first entry that is not complete");
    drop(connection);
    let mut machine = VirtualMachine::new()?;
    let connection = machine.connect(&disk.socket)?;
    assert_eq!(machine.status_of(request::FLUSH, 0, None)?, 0);

    // Only half a message.
    drop(connection);
    let connection = Connection::open(&disk.socket)?;
    connection.send_with([2, 1, 8], &[0; 3], &[])?;
    drop(connection);
    let connection = machine.connect(&disk.socket)?;
    assert_eq!(machine.status_of(request::FLUSH, 0, None)?, 0);
    drop(connection);
    disk.end()
}

/// Requests of a ring are complete in their order, so their number tells which the next process gets.
#[test]
fn requests_of_a_virtual_machine_outlive_the_process() -> Result<()> {
    const ROUNDS: u64 = 20;
    let folder = tempfile::tempdir()?;
    let disk = MachineDisk::new(folder.path())?;
    let mut machine = VirtualMachine::new()?;
    let mut connection = machine.connect(&disk.socket)?;
    for round in 0..ROUNDS {
        let bytes = [round as u8 + 1; 4096];
        for slot in 0..SLOTS {
            let sector = (u64::from(slot) + round) * 8;
            let header = header(request::WRITE, sector);
            machine.submit(slot, &[Part::Out(&header), Part::Out(&bytes), Part::In(1)])?;
        }
        let process = disk.attachments.only()?["process"].as_u64().context("a process")?;
        kill_process(Pid::from_raw(process as i32).context("a process")?, Signal::KILL)?;
        assert!(connection.is_closed()?);
        let continued = disk.attachments.run(&["attach", "data"])?;
        assert!(continued.status.success(), "{}", String::from_utf8_lossy(&continued.stderr));
        connection = machine.connect(&disk.socket)?;
        for slot in 0..SLOTS {
            assert_eq!(machine.completed()?, (slot, 1), "in their order, each once");
            assert_eq!(machine.part(slot, 2, 1)?, [0]);
        }
    }
    for block in 0..u64::from(SLOTS) + ROUNDS - 1 {
        assert_eq!(machine.status_of(request::READ, block * 8, Some(Part::In(4096)))?, 0);
        let last_round = block.min(ROUNDS - 1) as u8 + 1;
        assert_eq!(machine.part(0, 1, 4096)?, [last_round; 4096], "block {block}");
    }
    drop(connection);
    disk.end()
}

/// A ring is stopped and started again for each message about it. Its next entry follows from what is complete, not from its used index.
#[test]
fn vhost_user_rings_that_are_interrupted_carry_out_no_request_twice() -> Result<()> {
    const SET_RING_BASE: u32 = 10;
    const SET_RING_ENABLE: u32 = 18;
    let folder = tempfile::tempdir()?;
    let disk = MachineDisk::new(folder.path())?;
    for used in [0, 5, 65_535] {
        let mut machine = VirtualMachine::new()?.with_used_index(used)?;
        let connection = machine.connect(&disk.socket)?;
        connection.send(SET_RING_BASE, &numbers(&[0, 0]), &[])?;
        for _ in 0..3 {
            assert_eq!(machine.status_of(request::FLUSH, 0, None)?, 0);
            connection.send(SET_RING_ENABLE, &numbers(&[0, 1]), &[])?;
        }
        assert_eq!(machine.stop(&connection)?, 3, "used index {used}");
        assert!(machine.all_is_seen()?, "used index {used}: a request is complete twice");
    }
    disk.end()
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

/// A virtual machine uses the disk while its process is killed and ended in order, and while the disk grows.
#[test]
#[ignore = "boots a kernel under emulation"]
fn disk_of_a_virtual_machine_survives_its_process_and_grows() -> Result<()> {
    const GROWN: u64 = 192 * MIB;
    const SIGNALS: [Signal; 4] = [Signal::KILL, Signal::TERM, Signal::KILL, Signal::TERM];
    let folder = tempfile::tempdir()?;
    let attachments = Attachments { folder: folder.path() };
    let server = Managed::start(folder.path())?;
    // Another server of this machine may serve a volume of the same name. Its unit would have the same identifier.
    let serial = format!("machine-{}", std::process::id());
    let create = ["volume", "create", "data", "128MiB", "--store", "ram", "--export"];
    server.run(&[&create[..], &["--serial", &serial]].concat())?;
    let targets = server.json(&["target", "list"])?;
    let target = targets["targets"][0]["name"].as_str().context("a target")?;
    let url = format!("iscsi://{}/{target}/0", server.portal()?);
    let socket = folder.path().join("socket");
    let shown = socket.to_str().context("a path of text")?;
    let attached = ["attach", &url, "--name", "data", "--as", "vhost-user-blk", "--socket", shown];
    let attached = attachments.run(&attached)?;
    assert!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));

    let environment = [("GROWN", &*GROWN.to_string())];
    let guest = Guest::new("vhost_user", &environment)?.vhost_user_disk(&socket).start()?;
    guest.result("load")?;
    let next_part = || -> Result<String> {
        // The next part may have been complete before, the part after it is not.
        let parts = guest.console()?.matches("RESULT part").count();
        guest.result(&format!("part{}", parts + 2))
    };
    for signal in SIGNALS {
        next_part()?;
        attachments.end(signal, guest.process())?;
        let continued = attachments.run(&["attach", "data"])?;
        assert!(continued.status.success(), "{}", String::from_utf8_lossy(&continued.stderr));
    }
    next_part()?;
    let refused = attachments.run(&["detach", "data"])?;
    assert_eq!(refused.status.code(), Some(4), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(!guest.console()?.contains("RESULT fio"), "the load ended before the last restart");
    guest.result("size")?;
    server.run(&["volume", "resize", "data", "192MiB"])?;
    let played = guest.report()?;
    println!("{}", played.console);
    assert_eq!(played.result("bytes")?, (128 * MIB).to_string());
    assert_eq!(played.result("identifier")?, "data");
    let written = played.result("written")?;
    assert_eq!(played.result("read")?, written);
    assert_eq!(played.result("read_after_trim")?, written);
    assert_eq!(played.result("trim")?, "done");
    assert_eq!(played.result("discarded")?, "zeroes");
    assert_eq!(played.result("fio")?, "verified");
    assert_eq!(played.result("check")?, "clean");
    assert_eq!(played.result("grown")?, GROWN.to_string());
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    drop(guest);
    let detached = attachments.run(&["detach", "data"])?;
    assert!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    server.stop()
}

const ROUNDS: u32 = 3;

/// Prints the medians of what a guest has measured, and how they relate to the kernel's iSCSI initiator.
fn print_rates(played: &ScenarioReport, kinds: &[&str]) -> Result<()> {
    let median = |kind: &str, what: &str| -> Result<f64> {
        let rates: Result<Vec<f64>> = (1..=ROUNDS)
            .map(|round| Ok(played.result(&format!("{kind}/{what}/{round}"))?.parse()?))
            .collect();
        let mut rates = rates?;
        rates.sort_by(f64::total_cmp);
        let median = rates[rates.len() / 2];
        ensure!(median > 0.0, "{kind}/{what}: {}", played.console);
        Ok(median)
    };
    println!("| 4 KiB, emulated, a second | kernel's iSCSI | {} |", kinds.join(" | "));
    println!("| --- | --- |{}", " --- |".repeat(kinds.len()));
    for depth in [1, 16] {
        for (what, read) in [("writes", 0), ("reads", 100)] {
            let measured = format!("{depth}/{read}");
            let kernel = median("kernel", &measured)?;
            let mut row = format!("| random {what}, depth {depth} | {kernel:.0} |");
            for kind in kinds {
                let rate = median(kind, &measured)?;
                row += &format!(" {rate:.0} ({:.2}) |", rate / kernel);
            }
            println!("{row}");
        }
    }
    Ok(())
}

/// Emulation says nothing about speeds, but something about how they relate.
#[test]
#[ignore = "boots a kernel under emulation"]
fn disks_beside_the_kernels_initiator() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let guest = Guest::new("attach_ratio", &[("ROUNDS", &*ROUNDS.to_string())])?;
    let played = guest.file("sarsen", &small_program(folder.path())?).run()?;
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    print_rates(&played, &["ublk", "nbd"])
}

/// The server and the processes of the disks are not emulated here, unlike the kernel's initiator.
#[test]
#[ignore = "boots a kernel under emulation"]
fn disks_of_a_virtual_machine_beside_its_kernels_initiator() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    for name in ["vhost", "nbd", "libiscsi", "kernel"] {
        let serial = format!("{name}-{}", std::process::id());
        let create = ["volume", "create", name, "64MiB", "--store", "ram", "--export"];
        server.run(&[&create[..], &["--serial", &serial]].concat())?;
    }
    let portal = server.portal()?;
    let targets = server.json(&["target", "list"])?;
    let names = targets["targets"].as_array().context("targets")?;
    let target = |name: &str| {
        let names = names.iter().filter_map(|target| target["name"].as_str());
        names.into_iter().find(|target| target.ends_with(name)).context("a target")
    };
    let url = |name: &str| Ok::<_, anyhow::Error>(format!("iscsi://{portal}/{}/0", target(name)?));
    let attachments = Attachments { folder: folder.path() };
    let attach = |name: &str, kind: &str| -> Result<PathBuf> {
        let socket = folder.path().join(name);
        let shown = socket.to_str().context("a path of text")?;
        let arguments = ["attach", &url(name)?, "--name", name, "--as", kind, "--socket", shown];
        let attached = attachments.run(&arguments)?;
        ensure!(attached.status.success(), "{}", String::from_utf8_lossy(&attached.stderr));
        Ok(socket)
    };
    let vhost = attach("vhost", "vhost-user-blk")?;
    let nbd = attach("nbd", "nbd-socket")?;
    let through_nbd = format!("file=nbd+unix:///nbd?socket={},format=raw", nbd.display());
    let through_libiscsi = format!("file={},format=raw", url("libiscsi")?);
    let drive = |name: &str, source: &str| format!("{source},if=none,cache=none,id={name}");
    let device = |name: &str| format!("virtio-blk-pci,drive={name},serial={name}");
    let (_, port) = portal.rsplit_once(':').context("a port")?;
    let portal = format!("{HOST}:{port}");
    let rounds = ROUNDS.to_string();
    let environment =
        [("ROUNDS", &*rounds), ("IQN", target("kernel")?), ("PORTAL", portal.as_str())];
    let played = Guest::new("virtual_disks", &environment)?
        .file("sarsen", &small_program(folder.path())?)
        .vhost_user_disk(&vhost)
        .devices(&["-drive", &drive("nbd", &through_nbd), "-device", &device("nbd")])
        .devices(&["-drive", &drive("libiscsi", &through_libiscsi)])
        .devices(&["-device", &device("libiscsi")])
        .run()?;
    assert_eq!(played.result("complaints")?, "0", "{}", played.console);
    for name in ["vhost", "nbd"] {
        let detached = attachments.run(&["detach", name])?;
        ensure!(detached.status.success(), "{}", String::from_utf8_lossy(&detached.stderr));
    }
    server.stop()?;
    print_rates(&played, &["vhost", "nbd", "libiscsi"])
}
