//! Changes do not wait for each other. A disk hangs while a volume is created on it, and a client does not log out of a
//! volume that is deleted by force. Meanwhile a hundred other changes are made, each of them whole and in force, while
//! the disk still hangs and the client still stays.
//!
//! That proof needs root, for the file system (see `hung_disk`).

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use sarsen_io::threads;
use sarsen_io::time::now;
use sarsen_proof::managed::Managed;
use sarsen_wire::iscsi::{AsyncEvent, LoginStatus};
use serde_json::{Value, json};

use crate::client::{Wire, login_status};
use crate::hung_disk::FileSystem;

const LIMIT: Duration = Duration::from_secs(60);
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
const INITIATOR: &str = "iqn.2026-11.proof:stays";
const USED: &str = "iqn.2026-11.io.sarsen:used";
const CHANGES: u32 = 100;
const GOOD: u8 = 0;

/// A command of the program that has not ended yet.
struct Waiting(Receiver<Result<Output>>);

impl Waiting {
    fn begin(server: &Managed, arguments: &[&str]) -> Result<Self> {
        let mut command = server.command(arguments)?;
        let (ended, end) = channel();
        threads::spawn("waiting", move || ended.send(command.output().map_err(Into::into)))?;
        Ok(Self(end))
    }

    fn still_waits(&self) -> Result<()> {
        match self.0.try_recv() {
            Err(TryRecvError::Empty) => Ok(()),
            Ok(output) => bail!("it has ended: {:?}", output?),
            Err(TryRecvError::Disconnected) => bail!("it was aborted"),
        }
    }

    fn end(self) -> Result<Output> {
        self.0.recv_timeout(LIMIT).context("it does not end")?
    }
}

/// Waits until a thread of the server that opens a volume hangs in the kernel.
fn wait_until_disk_hangs(server: &Managed) -> Result<()> {
    let deadline = now() + LIMIT;
    while !is_hanging(server)? {
        ensure!(now() < deadline, "no thread hangs: {}", server.log());
    }
    Ok(())
}

/// Returns whether a thread that opens a volume is in uninterruptible sleep (proc(5), state D).
fn is_hanging(server: &Managed) -> Result<bool> {
    for entry in fs::read_dir(format!("/proc/{}/task", server.pid()))? {
        // A thread may end meanwhile.
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        if stat.contains("(opening) D") {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Sends a request to the API, and returns the body of a successful response.
fn request(api: &str, method: &str, path: &str, body: &Value) -> Result<Value> {
    let address = api.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(LIMIT))?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 20"), "{method} {path}: {answer}");
    let body = answer.split_once("\r\n\r\n").context("a body")?.1;
    Ok(serde_json::from_str(body)?)
}

fn await_request_to_log_out(client: &mut Wire) -> Result<()> {
    loop {
        let pdu = client.next()?.context("the connection was closed")?;
        if pdu.asynchronous_event() == Some(AsyncEvent::LogoutRequest) {
            return Ok(());
        }
    }
}

/// Makes one of the changes: all kinds of objects come, change and go.
fn change(api: &str, number: u32) -> Result<Value> {
    let round = number / 10;
    let (volume, host) = (format!("v{round}"), format!("h{round}"));
    let target = format!("iqn.2026-11.proof:t{round}");
    let file = format!("f{round}");
    let at = |kind: &str, name: &str| format!("/v1/config/{kind}/{name}");
    match number % 10 {
        0 => {
            let body = json!({ "name": volume, "store": "ram", "size": "1MiB" });
            request(api, "POST", "/v1/config/volume", &body)
        }
        1 => request(api, "POST", "/v1/config/host", &json!({ "name": host })),
        2 => {
            let body = json!({ "name": target, "luns": { "0": volume } });
            request(api, "POST", "/v1/config/target", &body)
        }
        3 => request(api, "PATCH", &at("volume", &volume), &json!({ "size": "2MiB" })),
        4 => {
            let body = json!({ "initiators": ["iqn.2026-11.proof:h"] });
            request(api, "PATCH", &at("host", &host), &body)
        }
        5 => {
            let body = json!({ "allow": [{ "host": host }] });
            request(api, "PATCH", &at("target", &target), &body)
        }
        6 => request(api, "POST", "/v1/config/volume", &json!({ "name": file, "size": "1MiB" })),
        7 => {
            let body = json!({ "luns": { "0": volume, "1": file } });
            request(api, "PATCH", &at("target", &target), &body)
        }
        8 => request(api, "PATCH", &at("volume", &volume), &json!({ "name": format!("w{round}") })),
        _ => request(api, "DELETE", &at("target", &target), &Value::Null),
    }
}

#[test]
fn a_hung_disk_and_a_client_that_ignores_a_logout_request_delay_no_other_change() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let Some(disk) = FileSystem::mount(folder.path())? else { return Ok(()) };
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?.to_owned();
    server.run(&["volume", "create", "used", "8MiB", "--store", "ram", "--export"])?;
    let url = format!("iscsi://{}/{USED}/0", server.portal()?);
    let mut client = Wire::login(&url.parse()?, INITIATOR, ISID)?;
    client.settle()?;

    let frozen = disk.freeze()?;
    let path = disk.path("hung.img");
    let path = path.to_str().context("a path")?;
    let creation = Waiting::begin(&server, &["volume", "create", "hung", "1MiB", "--path", path])?;
    wait_until_disk_hangs(&server)?;
    let deletion = Waiting::begin(
        &server,
        &["volume", "delete", "used", "--cascade", "--force", "--grace", "3600"],
    )?;
    // The client is asked to log out, and stays.
    await_request_to_log_out(&mut client)?;
    let revision = |server: &Managed| -> Result<u64> {
        let history = server.json(&["history", "-n", "1"])?;
        history["revisions"][0]["revision"].as_u64().context("a revision")
    };
    let before = revision(&server)?;
    let mut times = Vec::new();
    for number in 0..CHANGES {
        let begun = now();
        let changed = change(&api, number)?;
        times.push(begun.elapsed());
        ensure!(changed["problems"].is_null(), "change {number} is not in force: {changed}");
        ensure!(changed["revision"] == before + u64::from(number) + 1, "{changed}");
    }
    // Nothing that these changes could have waited for has happened.
    creation.still_waits()?;
    deletion.still_waits()?;
    ensure!(is_hanging(&server)?, "the disk does not hang any more");
    let tag = client.read(0, 1)?;
    let end = client.end_of(tag)?;
    ensure!(end.status() == Some(GOOD), "a leaving client keeps its unit: {:?}", end.sense());
    ensure!(Wire::login(&url.parse()?, "iqn.2026-11.proof:new", ISID).is_err(), "it is deleted");
    times.sort_unstable();
    println!(
        "{CHANGES} changes beside a hung disk and a staying client: median {:?}, slowest {:?}",
        times[times.len() / 2],
        times[times.len() - 1]
    );

    client.logout()?;
    let deleted = deletion.end()?;
    ensure!(deleted.status.success(), "{deleted:?}");
    drop(frozen);
    let created = creation.end()?;
    // On a slow machine, the limit for the disk may be over before.
    let is_created = server.run(&["volume", "list"])?.contains("hung");
    ensure!(created.status.success() == is_created, "{created:?}");
    server.stop()
}

/// A change whose plan is older than what is in force is planned again. It is not refused with the size of a volume that
/// others let grow. Growth by a length is added to the size that the volume has by then.
#[test]
fn changes_are_not_refused_while_other_volumes_grow() -> Result<()> {
    const GROWING: u32 = 4;
    const SIZES: u32 = 16;
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let names: Vec<String> = (0..GROWING).map(|number| format!("grows-{number}")).collect();
    for name in &names {
        server.run(&["volume", "create", name, "1MiB"])?;
    }
    let server = &server;
    std::thread::scope(|scope| {
        let growing = names.iter().map(|name| {
            let grow = || server.run(&["volume", "resize", name, "+1MiB"]).map(drop);
            scope.spawn(move || (1..SIZES).try_for_each(|_| grow()))
        });
        let growing: Vec<_> = growing.collect();
        for number in 0..SIZES {
            server.run(&["volume", "create", &format!("other-{number}"), "1MiB"])?;
        }
        growing.into_iter().try_for_each(|growing| growing.join().expect("it ends well"))
    })?;
    for name in &names {
        let path = folder.path().join(format!("state/volumes/{name}.img"));
        ensure!(fs::metadata(path)?.len() == u64::from(SIZES) << 20, "{name}");
    }
    Ok(())
}

/// Otherwise, a client that still writes its caches and its successor would write one disk at once.
#[test]
fn a_client_gains_a_unit_only_after_its_former_clients_have_left() -> Result<()> {
    const OTHER: &str = "iqn.2026-11.io.sarsen:other";
    const SUCCESSOR: &str = "iqn.2026-11.proof:successor";
    let folder = tempfile::tempdir()?;
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?.to_owned();
    server.run(&["volume", "create", "spare", "8MiB", "--store", "ram"])?;
    for volume in ["used", "other"] {
        server.run(&["volume", "create", volume, "8MiB", "--store", "ram", "--export"])?;
    }
    let patch = |target: &str, body: Value| {
        request(&api, "PATCH", &format!("/v1/config/target/{target}"), &body)
    };
    let rules = json!([{ "initiator": INITIATOR }]);
    patch(USED, json!({ "allow": rules, "luns": { "0": "used", "1": "spare" } }))?;
    let portal = server.portal()?;
    let url = |target: &str| format!("iscsi://{portal}/{target}/0").parse();
    let (used, other) = (url(USED)?, url(OTHER)?);
    let mut client = Wire::login(&used, INITIATOR, ISID)?;
    client.settle()?;
    let mut neighbour = Wire::login(&other, SUCCESSOR, ISID)?;
    neighbour.settle()?;
    let is_ready = |wire: &mut Wire, lun: u8| -> Result<bool> {
        wire.lun = lun;
        // Unit attentions come first.
        Ok(wire.settle().is_ok())
    };

    // A change with an hour of grace, which waits for its client.
    let force = |target: &str, body: Value| -> Result<Receiver<Result<Value>>> {
        let path = format!("/v1/config/target/{target}?force=true&grace_seconds=3600");
        let (api, (ended, end)) = (api.clone(), channel());
        threads::spawn("forced", move || ended.send(request(&api, "PATCH", &path, &body)))?;
        Ok(end)
    };

    let handover = force(USED, json!({ "allow": [{ "initiator": SUCCESSOR }] }))?;
    await_request_to_log_out(&mut client)?;
    let successor = || login_status(&used, SUCCESSOR, ISID);
    ensure!(successor()? == LoginStatus::ServiceUnavailable, "it gains the unit too early");
    let again = login_status(&used, INITIATOR, [0x80, 0, 0, 0, 0, 2])?;
    ensure!(again != LoginStatus::Success, "the leaving client does not log in again");
    // Objects without leaving clients change at once.
    patch(OTHER, json!({ "alias": "another" }))?;
    ensure!(
        is_ready(&mut client, 0)? && is_ready(&mut neighbour, 0)?,
        "both clients keep their units"
    );
    ensure!(handover.try_recv().is_err(), "the change waits for its client");
    client.logout()?;
    let changed = handover.recv_timeout(LIMIT)??;
    ensure!(changed["problems"].is_null(), "{changed}");
    ensure!(successor()? == LoginStatus::Success, "the other client has left");

    // Another target does not gain a unit before that, whatever change asks for it.
    let mut client = Wire::login(&used, SUCCESSOR, ISID)?;
    client.settle()?;
    let removal = force(USED, json!({ "luns": { "0": null } }))?;
    await_request_to_log_out(&mut client)?;
    let moved = patch(OTHER, json!({ "luns": { "0": "other", "1": "used" } }))?;
    ensure!(
        moved["problems"].to_string().contains("LUN 1 of"),
        "the answer names the deferred LUN: {moved}"
    );
    ensure!(!is_ready(&mut neighbour, 1)?, "the other target shows the unit already");
    ensure!(is_ready(&mut client, 0)?, "the leaving client keeps the unit");
    client.logout()?;
    removal.recv_timeout(LIMIT)??;
    ensure!(is_ready(&mut neighbour, 1)?, "the other target shows the unit");
    server.stop()
}
