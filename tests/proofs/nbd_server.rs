//! The NBD front with real clients: libnbd's tools, QEMU's, fio, and the project's own client. What holds for a volume
//! holds for clients of both protocols: reservations, limits, access rules, statistics, and the end of sessions.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_block::{Buffer, conformance};
use sarsen_initiator::nbd::NbdConnection;
use sarsen_initiator::{Command as ScsiCommand, SessionOptions, TransferRequest, Unit};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::time::now;
use sarsen_proof::guest::{self, HOST};
use sarsen_proof::managed::{Managed, User};
use sarsen_proof::{process, program};
use serde_json::Value;
use tempfile::TempDir;

use crate::certificates::{Authority, NOW, put};

const LIMIT: Duration = Duration::from_secs(60);
const CONFLICT: i32 = 4;
const NOT_FOUND: i32 = 3;
const TIB: u64 = 1 << 40;

/// A server with an iSCSI portal and an NBD portal.
struct Fixture {
    server: Managed,
    folder: TempDir,
}

impl Fixture {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let server = Managed::start_with(folder.path(), &["--listen-nbd", "127.0.0.1:0"])?;
        Ok(Self { server, folder })
    }

    /// Starts a server with these volumes, each with its own target.
    fn with(volumes: &[&[&str]]) -> Result<Self> {
        let fixture = Self::start()?;
        for volume in volumes {
            fixture.server.run(&[&["volume", "create"], *volume, &["--export"]].concat())?;
        }
        Ok(fixture)
    }

    fn portal(&self) -> Result<&str> {
        self.server.announced()["portals"][1].as_str().context("the NBD portal")
    }

    /// Returns the URL of an export.
    fn nbd(&self, volume: &str) -> Result<String> {
        Ok(format!("nbd://{}/{volume}", self.portal()?))
    }

    /// Returns the iSCSI URL of a volume.
    fn iscsi(&self, volume: &str) -> Result<String> {
        let portal = self.server.portal()?;
        Ok(format!("iscsi://{portal}/iqn.2026-11.io.sarsen:{volume}/0"))
    }

    /// Runs commands of `qemu-io`, and returns whether all of them succeed.
    fn qemu(&self, volume: &str, commands: &[&str]) -> Result<bool> {
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw"]);
        qemu.args(commands.iter().flat_map(|command| ["-c", command]));
        qemu.arg(self.nbd(volume)?);
        let finished = process::finish(&mut qemu, LIMIT)?;
        // qemu-io reports the failure of a pattern only as text.
        let fails = finished.output.contains("Pattern verification failed");
        Ok(finished.status.is_some_and(|status| status.success()) && !fails)
    }

    /// Connects a client, up to the greeting of the server.
    fn greeted(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.portal()?)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        ensure!(greeting.starts_with(b"NBDMAGICIHAVEOPT"));
        Ok(stream)
    }

    /// Connects a client that sends its requests itself.
    fn opened(&self, volume: &str) -> Result<TcpStream> {
        let mut stream = self.greeted()?;
        let mut option = b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00".to_vec();
        option.push(volume.len() as u8);
        option.extend(volume.as_bytes());
        stream.write_all(&option)?;
        stream.read_exact(&mut [0; 10])?;
        Ok(stream)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the value of a counter of a volume.
    fn counter(&self, name: &str, labels: &str) -> Result<u64> {
        let text = self.server.run(&["metrics"])?;
        let start = format!("{name}{{{labels}}} ");
        let line = text.lines().find(|line| line.starts_with(&start));
        Ok(line.map_or(Ok(0.0), |line| line[start.len()..].parse::<f64>())? as u64)
    }

    fn protocols(&self) -> Result<Vec<String>> {
        let list = self.server.json(&["session", "list"])?;
        let sessions = list["sessions"].as_array().context("sessions")?;
        let mut protocols: Vec<_> = sessions
            .iter()
            .filter_map(|unit| unit["protocol"].as_str())
            .map(str::to_owned)
            .collect();
        protocols.sort();
        Ok(protocols)
    }

    /// Waits until there are sessions of exactly these protocols.
    fn wait_for(&self, protocols: &[&str]) -> Result<()> {
        let deadline = now() + LIMIT;
        while self.protocols()? != protocols {
            ensure!(now() < deadline, "{:?}\n{}", self.protocols()?, self.server.log());
        }
        Ok(())
    }
}

fn nbdinfo(url: &str) -> Result<Value> {
    let text = process::output(Command::new("nbdinfo").args(["--json", url]), LIMIT)?;
    let info: Value = serde_json::from_str(&text)?;
    Ok(info["exports"][0].clone())
}

fn is_refused(url: &str) -> Result<String> {
    let finished = process::finish(Command::new("nbdinfo").arg(url), LIMIT)?;
    ensure!(finished.status.is_some_and(|status| !status.success()), "{url}: {finished:?}");
    Ok(finished.output)
}

#[test]
fn volumes_are_created_together_while_others_are_used() -> Result<()> {
    let fixture = Fixture::start()?;
    let fixture = &fixture;
    let create = |thread: usize| -> Result<()> {
        let mut sessions = Vec::new();
        for number in 0..12 {
            let name = format!("v{thread}-{number}");
            fixture
                .server
                .run(&["volume", "create", &name, "1MiB", "--store", "ram", "--export"])?;
            sessions.push(fixture.opened(&name)?);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|thread| scope.spawn(move || create(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })
}

#[test]
fn libnbd_sees_what_a_volume_can_do() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"], &["ro", "64MiB", "--block-size", "4096"]])?;
    let info = nbdinfo(&fixture.nbd("data")?)?;
    for property in [
        "can_cache",
        "can_df",
        "can_fast_zero",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        ensure!(info[property] == true, "{property}: {info}");
    }
    ensure!(info["is_read_only"] == false && info["export-size"] == 64 << 20, "{info}");
    ensure!(
        info["block_size_minimum"] == 512 && info["contexts"][0] == "base:allocation",
        "{info}"
    );
    ensure!(nbdinfo(&fixture.nbd("ro")?)?["block_size_minimum"] == 4096);
    let list = process::output(
        Command::new("nbdinfo").args(["--list", "--json", &format!("nbd://{}", fixture.portal()?)]),
        LIMIT,
    )?;
    let list: Value = serde_json::from_str(&list)?;
    let names: Vec<_> = list["exports"].as_array().context("exports")?.iter().collect();
    ensure!(names.len() == 2, "{list}");
    ensure!(is_refused(&fixture.nbd("other")?)?.contains("other"));
    let urls = fixture.server.run(&["target", "url", "--format", "nbd"])?;
    ensure!(urls.lines().eq([fixture.nbd("data")?, fixture.nbd("ro")?]), "{urls}");
    Ok(())
}

#[test]
fn own_client_finds_the_contract_of_stores_kept() -> Result<()> {
    let fixture = Fixture::with(&[
        &["file", "32MiB"],
        &["memory", "32MiB", "--store", "ram"],
        &["large", "32MiB", "--block-size", "4096"],
    ])?;
    for (seed, volume) in (1..).zip(["file", "memory", "large"]) {
        let url = fixture.nbd(volume)?.parse()?;
        block_on(FileEngine::Pool, async {
            let store = NbdConnection::connect(&url, LIMIT).await?;
            conformance::check(&store, seed).await;
            store.disconnect(LIMIT).await;
            anyhow::Ok(())
        })??;
    }
    Ok(())
}

#[test]
fn qemu_writes_discards_zeroes_and_maps() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let good = fixture.qemu(
        "data",
        &[
            "write -P 7 0 1M",
            "write -f -P 8 1M 512",
            "read -P 7 0 1M",
            "discard 0 512k",
            "read -P 0 0 512k",
            "write -z 512k 4k",
            "write -zu 520k 4k",
            "read -P 0 512k 4k",
            "read -P 7 516k 4k",
            "read -P 8 1M 512",
            "flush",
        ],
    )?;
    ensure!(good, "{}", fixture.server.log());
    let map = process::output(
        Command::new("qemu-img").args(["map", "--output=json", &fixture.nbd("data")?]),
        LIMIT,
    )?;
    let map: Value = serde_json::from_str(&map)?;
    ensure!(map[0]["zero"] == true && map[0]["present"] == true, "{map}");
    Ok(())
}

#[test]
fn nbdcopy_of_a_sparse_tebibyte_moves_only_its_data() -> Result<()> {
    let fixture = Fixture::with(&[&["big", "1TiB"]])?;
    ensure!(fixture.qemu("big", &["write -P 9 512G 1M", "flush"])?);
    let read = || fixture.counter("sarsen_volume_bytes_total", r#"volume="big",operation="read""#);
    let before = read()?;
    let copy = fixture.path("copy");
    process::output(Command::new("nbdcopy").arg(fixture.nbd("big")?).arg(&copy), LIMIT)?;
    let moved = read()? - before;
    ensure!((1 << 20..64 << 20).contains(&moved), "{moved} bytes were read");
    let file = File::open(&copy)?;
    ensure!(file.metadata()?.len() == TIB);
    let mut bytes = [0; 4096];
    file.read_exact_at(&mut bytes, 512 << 30)?;
    ensure!(bytes == [9; 4096]);
    Ok(())
}

#[test]
fn fio_verifies_what_several_connections_wrote() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let uri = format!("--uri={}", fixture.nbd("data")?);
    let mut fio = Command::new("fio");
    fio.args([
        "--name=v",
        "--ioengine=nbd",
        "--rw=randrw",
        "--bs=4k",
        "--iodepth=16",
        "--numjobs=4",
    ]);
    fio.args(["--size=16M", "--offset_increment=16M", "--verify=crc32c", "--verify_fatal=1", &uri]);
    let said = process::output(fio.current_dir(fixture.folder.path()), LIMIT)?;
    ensure!(said.contains("err= 0"), "{said}");
    Ok(())
}

/// Returns the head of a write.
fn write_head(offset: u64, length: u32) -> [u8; 28] {
    let mut head = [0; 28];
    head[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
    head[7] = 1;
    head[16..24].copy_from_slice(&offset.to_be_bytes());
    head[24..].copy_from_slice(&length.to_be_bytes());
    head
}

/// Executes a command and repeats it after a unit attention. Returns its status.
async fn ask(unit: &Unit, cdb: &[u8], data: &[u8]) -> Result<u8> {
    loop {
        let transfer = TransferRequest::Write(Buffer::copy_of(data));
        let completion = unit.execute(ScsiCommand::new(cdb, transfer)).await?;
        if completion.status != 2 {
            return Ok(completion.status);
        }
    }
}

#[test]
fn spc4_5_12_a_reservation_of_an_iscsi_initiator_holds_for_nbd() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let url = fixture.iscsi("data")?.parse()?;
    ensure!(fixture.qemu("data", &["write -P 1 0 4k"])?);
    block_on(FileEngine::Pool, async {
        let unit = Unit::connect(&url, &SessionOptions::default()).await?;
        let list =
            |key: u64, new: u64| [&key.to_be_bytes()[..], &new.to_be_bytes(), &[0; 8]].concat();
        let out = |action: u8, kind: u8| [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
        ensure!(ask(&unit, &out(0, 0), &list(0, 7)).await? == 0, "REGISTER");
        // Write Exclusive: others read.
        ensure!(ask(&unit, &out(1, 1), &list(7, 0)).await? == 0, "RESERVE");
        ensure!(!fixture.qemu("data", &["write -P 2 0 4k"])?, "a write passed the reservation");
        ensure!(!fixture.qemu("data", &["discard 0 4k"])?, "a discard passed the reservation");
        ensure!(!fixture.qemu("data", &["write -z 0 4k"])?, "zeroes passed the reservation");
        ensure!(fixture.qemu("data", &["read -P 1 0 4k"])?, "a read was refused");
        ensure!(ask(&unit, &out(2, 1), &list(7, 0)).await? == 0, "RELEASE");
        // Exclusive Access: others do not even read.
        ensure!(ask(&unit, &out(1, 3), &list(7, 0)).await? == 0, "RESERVE");
        ensure!(!fixture.qemu("data", &["read 0 4k"])?, "a read passed the reservation");
        ensure!(ask(&unit, &out(3, 0), &list(7, 0)).await? == 0, "CLEAR");
        anyhow::Ok(())
    })??;
    ensure!(fixture.qemu("data", &["read -P 1 0 4k", "write -P 2 0 4k"])?);
    let conflicts = r#"volume="data",kind="reservation_conflict""#;
    ensure!(fixture.counter("sarsen_volume_errors_total", conflicts)? >= 4);
    Ok(())
}

#[test]
fn a_maximum_rate_counts_the_requests_of_both_protocols() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    // So few that even a slow machine exceeds them.
    fixture.server.run(&["volume", "set", "data", "iops=10"])?;
    let limited = || fixture.counter("sarsen_volume_limited_total", r#"volume="data""#);
    let writes = vec!["write 0 4k"; 30];
    ensure!(fixture.qemu("data", &writes)?);
    let by_nbd = limited()?;
    ensure!(by_nbd > 0, "no request of NBD waited");
    let mut iscsi = Command::new("qemu-io");
    iscsi.args(["-f", "raw"]);
    iscsi.args(writes.iter().flat_map(|write| ["-c", write]));
    process::output(iscsi.arg(fixture.iscsi("data")?), LIMIT)?;
    ensure!(limited()? > by_nbd, "no request of iSCSI waited");
    Ok(())
}

#[test]
fn sessions_of_both_protocols_are_listed_drained_and_in_the_way() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"], &["other", "64MiB"]])?;
    let _iscsi = User::of(&fixture.iscsi("data")?)?;
    let _nbd = User::of(&fixture.nbd("data")?)?;
    fixture.wait_for(&["iscsi", "nbd"])?;
    let sessions = fixture.server.json(&["session", "list"])?;
    let sessions = sessions["sessions"].as_array().context("sessions")?;
    let nbd = sessions.iter().find(|unit| unit["protocol"] == "nbd").context("NBD")?;
    ensure!(nbd["volume"] == "data" && nbd["isid"].is_null(), "{nbd}");
    ensure!(nbd["initiator"] == "nbd:127.0.0.1", "{nbd}");
    let (tsih, pcap) = (nbd["tsih"].to_string(), fixture.path("trace.pcap").display().to_string());
    fixture.server.refused(CONFLICT, &["session", "trace", &tsih, "--out", &pcap])?;
    let refused = fixture.server.refused(CONFLICT, &["volume", "delete", "data", "--cascade"])?;
    ensure!(refused.contains("nbd:127.0.0.1"), "{refused}");
    // A volume that neither uses is deleted, and leaves them alone.
    fixture.server.run(&["volume", "delete", "other", "--cascade"])?;
    ensure!(fixture.protocols()? == ["iscsi", "nbd"]);
    fixture.server.run(&["target", "drain", "iqn.2026-11.io.sarsen:data", "--grace", "1"])?;
    fixture.wait_for(&[])?;
    is_refused(&fixture.nbd("data")?)?;
    fixture.server.run(&["target", "undrain", "iqn.2026-11.io.sarsen:data"])?;
    let _again = User::of(&fixture.nbd("data")?)?;
    fixture.wait_for(&["nbd"])?;
    fixture.server.run(&["volume", "delete", "data", "--cascade", "--force", "--grace", "1"])?;
    fixture.wait_for(&[])?;
    is_refused(&fixture.nbd("data")?)?;
    Ok(())
}

#[test]
fn access_rules_of_a_target_hold_for_its_exports() -> Result<()> {
    let fixture = Fixture::with(&[&["open", "64MiB"], &["shut", "64MiB"], &["secret", "64MiB"]])?;
    let rule = |address: &str, more: &str| {
        format!(
            "[[target]]\nname = \"iqn.2026-11.io.sarsen:shut\"\nluns = [\"shut\"]\n\
             allow = [{{ address = \"{address}\"{more} }}]\n"
        )
    };
    fixture.server.applied(&rule("192.0.2.0/24", ""), &[])?;
    fixture.server.run(&["account", "create", "vm"])?;
    fixture.server.run(&["target", "set", "iqn.2026-11.io.sarsen:secret", "chap=[\"vm\"]"])?;
    let list = || -> Result<Vec<String>> {
        let url = format!("nbd://{}", fixture.portal()?);
        let list =
            process::output(Command::new("nbdinfo").args(["--list", "--json", &url]), LIMIT)?;
        let list: Value = serde_json::from_str(&list)?;
        let exports = list["exports"].as_array().context("exports")?;
        Ok(exports
            .iter()
            .filter_map(|export| export["export-name"].as_str().map(str::to_owned))
            .collect())
    };
    ensure!(list()? == ["open"], "{:?}", list()?);
    is_refused(&fixture.nbd("shut")?)?;
    is_refused(&fixture.nbd("secret")?)?;
    is_refused(&fixture.nbd("missing")?)?;
    let refused = fixture.server.json(&["event", "list", "--kind", "login_refused"])?.to_string();
    for why in ["this address is not permitted", "CHAP is required", "no such export", "missing"] {
        ensure!(refused.contains(why), "{why}: {refused}");
    }
    // The rule now permits reading. A client that wrote until now is ended when the rule permits less.
    fixture.server.applied(&rule("127.0.0.0/8", ""), &[])?;
    let _writer = User::of(&fixture.nbd("shut")?)?;
    fixture.wait_for(&["nbd"])?;
    fixture
        .server
        .applied(&rule("127.0.0.0/8", ", read-only = true"), &["--force", "--grace", "1"])?;
    fixture.wait_for(&[])?;
    ensure!(nbdinfo(&fixture.nbd("shut")?)?["is_read_only"] == true);
    ensure!(!fixture.qemu("shut", &["write 0 4k"])?);
    Ok(())
}

#[test]
fn a_portal_with_tls_takes_no_plain_client_and_knows_certificates() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let path = fixture.folder.path();
    let (ours, theirs) = (Authority::new("ours")?, Authority::new("theirs")?);
    put(path, "theirs.pem", &theirs.pem)?;
    ours.issue(path, "san", NOW)?;
    for name in ["host", "other"] {
        let folder = path.join(name);
        fs::create_dir(&folder)?;
        theirs.issue(&folder, "client", NOW)?;
        // libnbd's names. The certificate's own name is that of the folder.
        theirs.issue(&folder, name, NOW)?;
        fs::rename(folder.join(format!("{name}.pem")), folder.join("client-cert.pem"))?;
        fs::rename(folder.join(format!("{name}.key")), folder.join("client-key.pem"))?;
        put(&folder, "ca-cert.pem", &ours.pem)?;
    }
    let at = |name: &str| path.join(name).display().to_string();
    let portal = format!(
        "[[portal]]\naddress = \"127.0.0.1:0\"\nprotocol = \"nbd\"\n\
         tls = {{ certificate = {:?}, key = {:?}, client-ca = {:?} }}\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:data\"\nluns = [\"data\"]\n\
         allow = [{{ certificate = \"host\" }}]\n",
        at("san.pem"),
        at("san.key"),
        at("theirs.pem")
    );
    fixture.server.applied(&portal, &[])?;
    let urls = fixture.server.run(&["target", "url", "--format", "nbd"])?;
    let secure = urls.lines().find(|url| url.starts_with("nbds://")).context("an nbds URL")?;
    let by = |name: &str| format!("{secure}?tls-certificates={}", path.join(name).display());
    let info = nbdinfo(&by("host"))?;
    ensure!(info["export-size"] == 64 << 20, "{info}");
    is_refused(&by("other"))?;
    is_refused(&secure.replace("nbds://", "nbd://"))?;
    // The plain portal has no certificates, so its clients do not fulfil the rule.
    is_refused(&fixture.nbd("data")?)?;
    Ok(())
}

#[test]
fn acknowledged_durable_writes_survive_a_kill() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let start = || Managed::start_with(folder.path(), &["--listen-nbd", "127.0.0.1:0"]);
    let fixture = |server| Fixture { server, folder: tempfile::tempdir().expect("a folder") };
    let first = fixture(start()?);
    first.server.run(&["volume", "create", "data", "64MiB", "--export"])?;
    ensure!(first.qemu("data", &["write -f -P 3 0 64k", "write -P 4 64k 64k", "flush"])?);
    first.server.kill()?;
    let second = fixture(start()?);
    ensure!(second.qemu("data", &["read -P 3 0 64k", "read -P 4 64k 64k"])?);
    Ok(())
}

#[test]
fn clients_that_break_the_protocol_or_say_nothing_hold_nothing() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let nonsense: [&[u8]; 4] = [
        &[0xff; 64],
        b"\x00\x00\x00\x03GET / HTTP/1.1\r\n\r\n\r\n\r\n",
        b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\xff\xff\xff\xff",
        b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x04gone",
    ];
    for bytes in nonsense {
        let mut stream = fixture.greeted()?;
        stream.write_all(bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut rest = Vec::new();
        // The server may reset the connection with bytes unread.
        let _ = stream.read_to_end(&mut rest);
    }
    // A client that is cut off in the middle of a write leaves no session, and nothing of its write.
    let mut stream = fixture.opened("data")?;
    let mut write = write_head(0, 4096).to_vec();
    write.extend([0xee; 512]);
    stream.write_all(&write)?;
    fixture.wait_for(&["nbd"])?;
    drop(stream);
    fixture.wait_for(&[])?;
    ensure!(fixture.qemu("data", &["read -P 0 0 4k"])?, "a part of a write was stored");
    Ok(())
}

#[test]
fn requests_that_wait_for_their_limit_end_with_their_session() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "1MiB"]])?;
    fixture.server.run(&["volume", "set", "data", "iops=1"])?;
    let mut stream = fixture.opened("data")?;
    for write in 0..64 {
        stream.write_all(&write_head(write * 4096, 4096))?;
        stream.write_all(&[0xee; 4096])?;
    }
    let limited = || fixture.counter("sarsen_volume_limited_total", r#"volume="data""#);
    let deadline = now() + LIMIT;
    while limited()? < 32 {
        ensure!(now() < deadline, "{}", fixture.server.log());
    }
    drop(stream);
    fixture.wait_for(&[])?;
    let aborted = r#"volume="data",kind="aborted""#;
    ensure!(fixture.counter("sarsen_volume_errors_total", aborted)? >= 32);
    fixture.server.run(&["volume", "set", "data", "iops="])?;
    ensure!(fixture.qemu("data", &["write -P 0x11 0 1M", "flush", "read -P 0x11 0 1M"])?);
    Ok(())
}

#[test]
fn a_request_proceeds_while_others_hold_all_memory() -> Result<()> {
    const MEMORY: u32 = 16 << 20;
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let output = fixture.server.apply("[limits]\nmemory = \"16MiB\"\n", &[])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let payload = MEMORY / 8;
    let mut holders = Vec::new();
    for _ in 0..8 {
        let mut holder = fixture.opened("data")?;
        holder.write_all(&write_head(0, payload))?;
        holder.write_all(&[0xee; 4096])?;
        holders.push(holder);
    }
    let deadline = now() + LIMIT;
    let charged = || -> Result<bool> {
        let text = fixture.server.run(&["metrics"])?;
        let line = text.lines().find(|line| line.starts_with("sarsen_command_memory_bytes "));
        let bytes = line.context("the memory")?.split(' ').nth(1).context("a value")?;
        Ok(bytes.parse::<f64>()? >= f64::from(7 * payload))
    };
    while !charged()? {
        ensure!(now() < deadline, "{}", fixture.server.log());
    }
    ensure!(fixture.qemu("data", &["write -P 0x11 0 4k", "flush", "read -P 0x11 0 4k"])?);
    Ok(())
}

#[test]
fn spc4_5_15_an_inactive_portal_group_serves_no_export() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "1MiB"]])?;
    let mut stream = fixture.opened("data")?;
    let set = |state: &str| {
        let access = format!("access={{\"1\":\"{state}\"}}");
        fixture.server.run(&["target", "set", "iqn.2026-11.io.sarsen:data", &access])
    };
    set("standby")?;
    is_refused(&fixture.nbd("data")?)?;
    stream.write_all(&write_head(0, 4096))?;
    stream.write_all(&[0xee; 4096])?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    ensure!(reply[4..8] == 1_u32.to_be_bytes(), "EPERM: {reply:?}");
    set("optimized")?;
    ensure!(fixture.qemu("data", &["read -P 0 0 4k"])?);
    Ok(())
}

#[test]
fn a_write_beyond_the_maximum_file_size_fails_and_the_server_continues() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 16384; exec \"$@\"", "sh"]).arg(program::path()?);
    shell.args(["serve", "--listen", "127.0.0.1:0", "--listen-nbd", "127.0.0.1:0", "--json"]);
    let server = Managed::start_command(shell, folder.path(), &[])?;
    let fixture = Fixture { server, folder };
    fixture.server.run(&["volume", "create", "data", "1MiB", "--store", "file", "--export"])?;
    // The volume grows beyond what its file may have.
    let _ = fixture.server.command(&["volume", "resize", "data", "64MiB"])?.output()?;
    let _ = fixture.qemu("data", &["write 32M 4k", "flush"])?;
    ensure!(fixture.qemu("data", &["write -P 0x11 0 4k", "flush", "read -P 0x11 0 4k"])?);
    Ok(())
}

#[test]
fn unknown_protocol_of_a_portal_is_refused_with_its_place() -> Result<()> {
    let fixture = Fixture::start()?;
    let output =
        fixture.server.apply("[[portal]]\naddress = \"127.0.0.1:0\"\nprotocol = \"aoe\"\n", &[])?;
    let said = String::from_utf8(output.stderr)?;
    ensure!(!output.status.success() && said.contains("protocol"), "{said}");
    let _ = fixture.server.refused(NOT_FOUND, &["portal", "delete", "127.0.0.1:1"])?;
    Ok(())
}

/// A SCSI target has at least one port, even if no iSCSI portal leads to it.
#[test]
fn a_target_can_be_reached_by_nbd_alone() -> Result<()> {
    let fixture = Fixture::start()?;
    let document = "[[portal]]\naddress = \"127.0.0.2:0\"\nprotocol = \"nbd\"\ngroup = 2\n\
         [[volume]]\nname = \"data\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:data\"\nluns = [\"data\"]\ngroups = [2]\n";
    let output = fixture.server.apply(document, &[])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let urls =
        fixture.server.run(&["target", "url", "iqn.2026-11.io.sarsen:data", "--format", "nbd"])?;
    let [url] = urls.lines().collect::<Vec<_>>()[..] else { bail!("{urls}") };
    ensure!(
        url.starts_with("nbd://127.0.0.2:") && nbdinfo(url)?["export-size"] == 1 << 20,
        "{url}"
    );
    ensure!(nbdinfo(&fixture.nbd("data")?).is_err(), "the other NBD portal is in group 1");
    Ok(())
}

#[test]
fn a_volume_that_grows_keeps_its_nbd_clients() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "64MiB"]])?;
    let _user = User::of(&fixture.nbd("data")?)?;
    fixture.wait_for(&["nbd"])?;
    let mut stream = fixture.opened("data")?;
    fixture.server.run(&["volume", "resize", "data", "128MiB"])?;
    fixture.wait_for(&["nbd", "nbd"])?;
    stream.write_all(&write_head(96 << 20, 4096))?;
    stream.write_all(&[0xee; 4096])?;
    let mut reply = [0; 16];
    stream.read_exact(&mut reply)?;
    ensure!(reply[4..8] == [0; 4], "beyond the old end: {reply:?}");
    ensure!(nbdinfo(&fixture.nbd("data")?)?["export-size"] == 128 << 20);
    Ok(())
}

#[test]
#[ignore = "boots a kernel under emulation"]
fn a_linux_kernel_uses_an_export_by_four_connections() -> Result<()> {
    let fixture = Fixture::with(&[&["data", "256MiB"]])?;
    let (_, port) = fixture.portal()?.rsplit_once(':').context("a port")?;
    let environment = [("SERVER", HOST), ("PORT", port), ("EXPORT", "data")];
    let played = guest::run("nbd", &environment).with_context(|| fixture.server.log())?;
    println!("{}", played.console);
    ensure!(played.result("bytes")? == (256 << 20).to_string());
    ensure!(played.result("connections")? == "4", "{}", played.console);
    let written = played.result("written")?;
    ensure!(written.len() == 64, "a SHA-256 in hexadecimal");
    ensure!(played.result("read")? == written && played.result("read_after_trim")? == written);
    ensure!(played.result("trim")? == "done" && played.result("second_check")? == "clean");
    ensure!(played.result("complaints")? == "0", "{}", played.console);
    ensure!(
        fixture.counter("sarsen_volume_operations_total", r#"volume="data",operation="unmap""#)?
            > 0
    );
    Ok(())
}
