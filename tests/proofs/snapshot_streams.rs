//! Snapshots that are sent from one server to another, through pipes and files, with interruptions.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::process;
use serde_json::Value;

use crate::pools::{qemu_io, start};

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const LIMIT: Duration = Duration::from_secs(60);

/// Starts a server with a pool and a volume `v`.
fn server(folder: &Path, pool: &str) -> Result<Managed> {
    fs::create_dir_all(folder)?;
    let server = start(folder)?;
    let device = format!("{},size={pool}", folder.join("tank.pool").display());
    server.run(&["pool", "create", "tank", "--device", &device])?;
    server.run(&["volume", "create", "v", "64MiB", "--pool", "tank", "--export"])?;
    Ok(server)
}

/// Pipes the stream of a snapshot from one server to another. Returns what the receiver said.
fn transfer(from: &Managed, send: &[&str], to: &Managed, receive: &[&str]) -> Result<String> {
    let send = [&["snapshot", "send"], send].concat();
    let mut sender = from.command(&send)?.stdout(Stdio::piped()).spawn()?;
    let stream = sender.stdout.take().context("the stream")?;
    let receive = [&["snapshot", "receive"], receive].concat();
    let Output { status, stdout, stderr } = to.command(&receive)?.stdin(stream).output()?;
    ensure!(sender.wait()?.success(), "{send:?}");
    ensure!(status.success(), "{}{}", String::from_utf8_lossy(&stderr), to.log());
    Ok(String::from_utf8(stdout)?)
}

/// Sends a stream to a file.
fn send(from: &Managed, arguments: &[&str], file: &Path) -> Result<()> {
    let arguments = [&["snapshot", "send"], arguments].concat();
    let sent = from.command(&arguments)?.stdout(File::create(file)?).output()?;
    ensure!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    Ok(())
}

/// Receives a stream from a file.
fn receive(to: &Managed, arguments: &[&str], file: &Path) -> Result<Output> {
    let arguments = [&["snapshot", "receive"], arguments].concat();
    Ok(to.command(&arguments)?.stdin(File::open(file)?).output()?)
}

fn refused(output: &Output, code: i32, words: &str) -> Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code) && said.contains(words),
        "{}: {said}",
        output.status
    );
    Ok(())
}

/// Returns what a snapshot has.
fn contents(server: &Managed, snapshot: &str, folder: &Path) -> Result<Vec<u8>> {
    let served = snapshot.replace('@', "-");
    server.run(&[
        "volume",
        "create",
        &served,
        "--pool",
        "tank",
        "--snapshot",
        snapshot,
        "--export",
    ])?;
    let portal = server.announced()["portals"][1].as_str().context("the NBD portal")?;
    let (url, file) = (format!("nbd://{portal}/{served}"), folder.join("contents"));
    process::output(Command::new("nbdcopy").arg(url).arg(&file), LIMIT)?;
    server.run(&["volume", "delete", &served, "--cascade"])?;
    Ok(fs::read(file)?)
}

fn snapshot(server: &Managed, name: &str) -> Result<Value> {
    let list = server.json(&["snapshot", "list"])?;
    let mut all = list["snapshots"].as_array().context("snapshots")?.iter();
    all.find(|one| one["name"] == name).cloned().context("the snapshot")
}

#[test]
fn a_second_server_gets_each_snapshot_and_only_what_changed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let (from, to) = (server(&a, "256MiB")?, server(&b, "256MiB")?);
    qemu_io(&from, "v", &["write -P 0x11 0 16M", "write -P 0x22 40M 3M", "flush"])?;
    from.run(&["snapshot", "create", "v@s1"])?;
    qemu_io(
        &from,
        "v",
        &["write -P 0x33 1M 64k", "discard 8M 1M", "write -P 0x44 63M 4k", "flush"],
    )?;
    from.run(&["snapshot", "create", "v@s2"])?;
    let said = transfer(&from, &["v@s1"], &to, &["v"])?;
    ensure!(said == "received v@s1 (64 MiB)\n", "{said}");
    let stream = folder.path().join("stream");
    send(&from, &["v@s2", "--since", "v@s1"], &stream)?;
    let length = fs::metadata(&stream)?.len();
    ensure!(length < 100 << 10, "{length} bytes");
    refused(&receive(&to, &["v@s1"], &stream)?, CONFLICT, "another snapshot of this name")?;
    let received = receive(&to, &["v", "--json"], &stream)?;
    ensure!(received.status.success(), "{}", String::from_utf8_lossy(&received.stderr));
    let answer: Value = serde_json::from_slice(&received.stdout)?;
    ensure!(answer["name"] == "v@s2" && answer["is_complete"] == true, "{answer}");
    for name in ["v@s1", "v@s2"] {
        let (own, other) = (contents(&from, name, &a)?, contents(&to, name, &b)?);
        ensure!(own == other, "{name} differs");
        let (own, other) = (snapshot(&from, name)?, snapshot(&to, name)?);
        for field in ["identifier", "size_bytes", "created_unix_seconds", "referenced_bytes"] {
            ensure!(own[field] == other[field], "{field}: {own} {other}");
        }
    }
    // The stream of a snapshot that is there already is no error. The volume has not changed.
    ensure!(receive(&to, &["v"], &stream)?.status.success());
    qemu_io(&to, "v", &["read -P 0 0 64M"])?;
    // The second server takes over: its volume gets what the last snapshot has.
    to.run(&["snapshot", "rollback", "v@s2", "--destroy"])?;
    let patterns =
        ["read -P 0x33 1M 64k", "read -P 0 8M 1M", "read -P 0x44 63M 4k", "read -P 0x22 40M 3M"];
    qemu_io(&to, "v", &patterns)?;
    // And the way back, from the newest snapshot that both have.
    qemu_io(&to, "v", &["write -P 0x55 20M 128k", "flush"])?;
    to.run(&["snapshot", "create", "v@s3"])?;
    transfer(&to, &["v@s3", "--since", "v@s2"], &from, &["v@returned"])?;
    ensure!(contents(&from, "v@returned", &a)? == contents(&to, "v@s3", &b)?, "it differs");
    from.stop()?;
    to.stop()?;
    for folder in [a, b] {
        let device = folder.join("tank.pool").display().to_string();
        let checked =
            sarsen_proof::managed::command(&folder, &["pool", "check", &device])?.output()?;
        ensure!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    }
    Ok(())
}

#[test]
fn an_interrupted_stream_goes_on_after_a_power_failure() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let (from, to) = (server(&a, "256MiB")?, server(&b, "256MiB")?);
    qemu_io(&from, "v", &["write -P 0x11 0 10M", "write -P 0x22 50M 2M", "flush"])?;
    from.run(&["snapshot", "create", "v@s1"])?;
    let [whole, half, rest] = ["whole", "half", "rest"].map(|name| folder.path().join(name));
    send(&from, &["v@s1"], &whole)?;
    let stream = fs::read(&whole)?;
    fs::write(&half, &stream[..stream.len() / 2])?;
    refused(&receive(&to, &["v"], &half)?, FAILED, "ended before v@s1 was complete")?;
    let list = to.run(&["snapshot", "list"])?;
    ensure!(list.contains("incomplete: received up to byte"), "{list}");
    let arguments = ["volume", "create", "w", "--pool", "tank", "--snapshot", "v@s1"];
    let said = to.refused(FAILED, &arguments)?;
    ensure!(said.contains("not complete"), "{said}");
    let said = to.refused(CONFLICT, &["snapshot", "diff", "v@s1"])?;
    ensure!(said.contains("not complete"), "{said}");
    to.kill()?;
    let to = start(&b)?;
    let received = snapshot(&to, "v@s1")?["received_bytes"].as_u64().context("it is incomplete")?;
    ensure!(received <= 10 << 20, "{received}");
    // What comes too early is refused, and says where to go on.
    send(&from, &["v@s1", "--offset", &(received + (1 << 20)).to_string()], &rest)?;
    refused(&receive(&to, &["v"], &rest)?, CONFLICT, &format!("from byte {received} on"))?;
    send(&from, &["v@s1", "--offset", &received.to_string()], &rest)?;
    let done = receive(&to, &["v"], &rest)?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    ensure!(contents(&from, "v@s1", &a)? == contents(&to, "v@s1", &b)?, "it differs");
    // An incomplete snapshot can be deleted.
    refused(&receive(&to, &["v@other"], &half)?, FAILED, "ended before v@other was complete")?;
    to.run(&["snapshot", "delete", "v@other"])?;
    from.stop()?;
    to.stop()
}

#[test]
fn streams_that_cannot_be_received_are_refused_with_a_remedy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
    let (from, to) = (server(&a, "256MiB")?, server(&b, "16MiB")?);
    qemu_io(&from, "v", &["write -P 0x11 0 12M", "flush"])?;
    from.run(&["snapshot", "create", "v@s1"])?;
    qemu_io(&from, "v", &["write -P 0x22 1M 1M", "flush"])?;
    from.run(&["snapshot", "create", "v@s2"])?;
    let [whole, later, broken] = ["whole", "later", "broken"].map(|name| folder.path().join(name));
    send(&from, &["v@s1"], &whole)?;
    send(&from, &["v@s2", "--since", "v@s1"], &later)?;
    refused(&receive(&to, &["v"], &later)?, CONFLICT, "send that one first")?;
    refused(&receive(&to, &["w"], &whole)?, NOT_FOUND, "sarsen volume create w 67108864")?;
    fs::write(&broken, b"")?;
    refused(&receive(&to, &["v"], &broken)?, FAILED, "the stream is empty")?;
    fs::write(&broken, b"no stream")?;
    refused(&receive(&to, &["v"], &broken)?, FAILED, "no stream of a snapshot")?;
    let mut stream = fs::read(&whole)?;
    stream[5000] ^= 1;
    fs::write(&broken, &stream)?;
    refused(&receive(&to, &["v"], &broken)?, USAGE, "the stream is damaged")?;
    ensure!(to.json(&["snapshot", "list"])?["snapshots"] == serde_json::json!([]));
    let said = from.refused(USAGE, &["snapshot", "send", "v@s1", "--json"])?;
    ensure!(said.contains("redirect it"), "{said}");
    let said = from.refused(NOT_FOUND, &["snapshot", "send", "v@s9"])?;
    ensure!(said.contains("no snapshot v@s9"), "{said}");
    // A pool that becomes full keeps what it has received, and goes on when there is space.
    refused(&receive(&to, &["v"], &whole)?, FAILED, "no space")?;
    let received = snapshot(&to, "v@s1")?["received_bytes"].as_u64().context("it is incomplete")?;
    ensure!(received > 0, "some parts fit");
    let device = format!("{},size=32MiB", b.join("second.pool").display());
    to.run(&["pool", "add", "tank", &device])?;
    let done = receive(&to, &["v"], &whole)?;
    ensure!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    ensure!(contents(&from, "v@s1", &a)? == contents(&to, "v@s1", &b)?, "it differs");
    from.stop()?;
    to.stop()
}
