//! The desired state of a server: users create, change, preview, refuse and store it on the command line.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_io::threads;
use sarsen_io::time::now;
use sarsen_proof::managed::{self, Managed, User};
use sarsen_proof::{process, program};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const CONFLICT: i32 = 4;
const NOT_FOUND: i32 = 3;
const USAGE: i32 = 2;
const FAILED: i32 = 1;

/// Returns the secret at the end of a line of `sarsen volume create`.
fn secret_of(stderr: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(stderr).into_owned();
    let line = text.lines().find(|line| line.starts_with("the secret of ")).context("a secret")?;
    let secret = line.rsplit_once(": ").context("a secret")?.1;
    Ok(secret.to_owned())
}

/// Writes a pattern over iSCSI with CHAP and reads it with QEMU.
fn qemu_uses(portal: &str, target: &str, user: &str, secret: &str) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("secret");
    std::fs::write(&file, secret)?;
    let mut command = Command::new("qemu-io");
    command
        .arg("--object")
        .arg(format!("secret,id=s,file={}", file.display()))
        .arg("--image-opts")
        .arg(format!(
            "driver=iscsi,transport=tcp,portal={portal},target={target},lun=0,user={user},\
             password-secret=s"
        ))
        .args(["-c", "write -P 0x5a 0 1M", "-c", "read -P 0x5a 0 1M", "-c", "flush"]);
    process::output(&mut command, LIMIT)?;
    Ok(())
}

#[test]
fn from_an_empty_machine_to_a_volume_that_qemu_uses_with_chap_it_is_three_commands() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // First step: the server.
    let server = Managed::start(folder.path())?;
    // Second step: the volume.
    let made = server
        .command(&["volume", "create", "data", "64MiB", "--export", "--chap", "vm"])?
        .output()?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = secret_of(&made.stderr)?;
    ensure!(!String::from_utf8_lossy(&made.stdout).contains(&secret), "a secret on stdout");
    // Third step: QEMU.
    let target = "iqn.2026-11.io.sarsen:data";
    qemu_uses(server.portal()?, target, "vm", &secret)?;
    let wrong = qemu_uses(server.portal()?, target, "vm", "not the secret");
    ensure!(wrong.is_err(), "another secret lets in, too");
    let exported = server.run(&["export"])?;
    ensure!(!exported.contains(&secret) && exported.contains("chap = [\"vm\"]"), "{exported}");
    ensure!(server.run(&["export", "--secrets"])?.contains(&secret), "it is kept");
    // The data is present after a power failure.
    server.kill()?;
    let server = Managed::start(folder.path())?;
    qemu_uses(server.portal()?, target, "vm", &secret)?;
    server.stop()
}

const DOCUMENT: &str = r#"
[[volume]]
name = "a"
store = "ram"
size = "8MiB"

[[volume]]
name = "b"
size = "8MiB"

[[host]]
name = "web"
initiators = ["iqn.2026-11.proof:web"]

[[target]]
name = "iqn.2026-11.proof:t"
luns = { 1 = "a", 5 = "b" }
allow = [{ host = "web" }]
"#;

#[test]
fn a_document_is_applied_shown_and_applied_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    let file = folder.path().join("san.toml");
    std::fs::write(&file, DOCUMENT)?;
    let path = file.to_str().context("a path")?;
    let planned = server.run(&["diff", "-f", path])?;
    ensure!(
        planned.contains("+ volume a\n") && planned.contains("nothing was changed"),
        "{planned}"
    );
    let applied = server.run(&["apply", "-f", path])?;
    ensure!(applied.contains("+ target iqn.2026-11.proof:t") && applied.ends_with("revision 1\n"));
    ensure!(server.run(&["apply", "-f", path])?.starts_with("no changes: revision 1"));
    // Objects that the document does not list stay, unless `--prune` is given.
    server.run(&["volume", "create", "c", "4MiB", "--store", "ram"])?;
    ensure!(server.run(&["diff", "-f", path])?.starts_with("no changes"));
    let pruned = server.run(&["diff", "-f", path, "--prune"])?;
    ensure!(pruned.starts_with("- volume c\n"), "{pruned}");
    // An export is a document with the same content.
    let exported = server.run(&["export"])?;
    let copy = folder.path().join("copy.toml");
    std::fs::write(&copy, exported)?;
    let copy = copy.to_str().context("a path")?;
    ensure!(server.run(&["apply", "-f", copy, "--prune"])?.starts_with("no changes"));
    let revisions = server.json(&["history"])?;
    let revision = &revisions["revisions"][1];
    ensure!(revision["revision"] == 1 && revision["summary"][0] == "+ host web", "{revisions}");
    ensure!(revision["author"].as_str().is_some_and(|author| author.contains('@')));
    server.stop()
}

#[test]
fn invalid_document_is_refused_whole_with_its_field() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.applied(DOCUMENT, &[])?;
    for (document, reported) in [
        ("[[volume]]\nname = \"n\"\nsise = 1", "-:3: volume/n.sise: unknown key sise"),
        ("[[volume]]\nname = \"n\"\nstore = \"rma\"", "did you mean ram?"),
        ("[[target]]\nname = \"iqn.2026-11.proof:n\"\nluns = [\"x\"]", "there is no volume x"),
        ("[[volume]]\nname = \"n\"\n[[volume]]\nname = \"n\"", "listed twice"),
        // The server does not create the valid objects of an invalid document either.
        (
            "[[volume]]\nname = \"n\"\nsize = \"1MiB\"\n[[account]]\nname = \"x\"\nsecret = \"short\"",
            "has 5 bytes",
        ),
    ] {
        let output = server.apply(document, &[])?;
        let stderr = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(USAGE), "{document}: {stderr}");
        ensure!(stderr.contains(reported), "{stderr}");
    }
    let missing = "[[volume]]\nname = \"n\"\npath = \"/nonexistent/x\"";
    let output = server.apply(missing, &[])?;
    ensure!(output.status.code() == Some(NOT_FOUND), "{}", String::from_utf8_lossy(&output.stderr));
    server.refused(NOT_FOUND, &["volume", "delete", "n"])?;
    server.refused(NOT_FOUND, &["volume", "show", "n"])?;
    server.refused(CONFLICT, &["volume", "create", "a", "1MiB"])?;
    let shrunk = server.refused(FAILED, &["volume", "resize", "b", "4MiB"])?;
    ensure!(shrunk.contains("volume b"), "{shrunk}");
    // After a change by another user, a client with the old revision must read the state again.
    let stale =
        server.refused(CONFLICT, &["volume", "set", "a", "size=16MiB", "--revision", "0"])?;
    ensure!(stale.contains("revision 1"), "{stale}");
    ensure!(server.json(&["history"])?["revisions"].as_array().map(Vec::len) == Some(1));
    ensure!(!folder.path().join("state/volumes/n.img").exists(), "a file was left behind");
    server.stop()
}

/// Keeps a session open.
fn user(portal: &str, target: &str, lun: u16) -> Result<User> {
    User::of(&format!("iscsi://{portal}/{target}/{lun}"))
}

fn wait_for_sessions(server: &Managed, count: usize) -> Result<()> {
    let deadline = now() + LIMIT;
    loop {
        let sessions = server.json(&["session", "list"])?;
        let normal = sessions["sessions"].as_array().map_or(0, |sessions| {
            sessions.iter().filter(|session| session["kind"] == "normal").count()
        });
        if normal == count {
            return Ok(());
        }
        ensure!(now() < deadline, "{count} sessions were expected: {sessions}");
    }
}

#[test]
fn object_in_use_is_deleted_only_with_force() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "used", "8MiB", "--store", "ram", "--export"])?;
    server.run(&["volume", "create", "other", "8MiB", "--store", "ram", "--export"])?;
    let portal = server.portal()?.to_owned();
    let _user = user(&portal, "iqn.2026-11.io.sarsen:used", 0)?;
    wait_for_sessions(&server, 1)?;
    // Other objects can be deleted meanwhile.
    let named = server.refused(CONFLICT, &["volume", "delete", "other"])?;
    ensure!(named.contains("volume other is LUN 0 of"), "{named}");
    let gone = server.run(&["volume", "delete", "other", "--cascade"])?;
    let expected = "- volume other\n- target iqn.2026-11.io.sarsen:other\ndone: revision 3\n";
    ensure!(gone == expected, "{gone}");
    let planned = server.json(&["volume", "delete", "used", "--cascade", "--dry-run"])?;
    ensure!(planned["interrupted_sessions"] == 1, "{planned}");
    server.run(&["volume", "resize", "used", "16MiB"])?;
    let target = "iqn.2026-11.io.sarsen:used";
    let refused = server.refused(CONFLICT, &["target", "delete", target])?;
    ensure!(refused.contains("--force"), "{refused}");
    let planned = server.json(&["target", "delete", target, "--dry-run"])?;
    ensure!(planned["interrupts"].as_array().map(Vec::len) == Some(1), "{planned}");
    wait_for_sessions(&server, 1)?;
    server.run(&["target", "delete", target, "--force", "--grace", "0"])?;
    wait_for_sessions(&server, 0)?;
    // A file and its data remain.
    server.run(&["volume", "create", "file", "1MiB"])?;
    server.run(&["volume", "delete", "file"])?;
    ensure!(folder.path().join("state/volumes/file.img").exists(), "the data were taken away");
    server.stop()
}

#[test]
fn volume_keeps_identity_after_rename_and_restart() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "old", "8MiB", "--export"])?;
    let before = identity_of_old(&server)?;
    ensure!(before[1].is_string(), "{before}");
    let renamed = server.run(&["volume", "rename", "old", "new"])?;
    ensure!(renamed.starts_with("~ volume old -> new"), "{renamed}");
    ensure!(identity_of_old(&server)? == before);
    server.kill()?;
    let server = Managed::start(folder.path())?;
    ensure!(identity_of_old(&server)? == before);
    let target = server.json(&["target", "show", "iqn.2026-11.io.sarsen:old"])?;
    ensure!(target["luns"] == json!({ "0": "new" }), "{target}");
    server.stop()
}

/// Returns the identity that LUN 0 of the target `old` shows to initiators.
fn identity_of_old(server: &Managed) -> Result<Value> {
    let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:old/0", server.portal()?);
    let said = server.json(&["disk", "info", &url])?;
    Ok(json!([said["serial"], said["naa"], said["vendor"], said["product"]]))
}

#[test]
fn full_state_disk_is_reported_and_io_continues() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let state = folder.path().join("state");
    std::fs::create_dir(&state)?;
    // A separate disk that no other process sees.
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        // The kernel does not permit this in a chroot.
        command.arg("--map-root-user");
    }
    let script =
        format!("mount -t tmpfs -o size=3m,mode=700 none {} && exec \"$@\"", state.display());
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(program::path()?).args([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--logout-grace",
        "1",
        "--json",
    ]);
    let server = Managed::start_command(command, folder.path(), &[])?;
    server.run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export"])?;
    let url = format!("iscsi://{}/iqn.2026-11.io.sarsen:data/0", server.portal()?);
    let mut revision = 1;
    let refused = loop {
        ensure!(revision < 200, "the disk is never full");
        // The data is incompressible, and grows a little each time.
        let aliases: String = (0..1000)
            .map(|number| {
                format!("[[host]]\nname = \"h{revision}-{number}\"\naddress = \"10.0.0.0/8\"\n")
            })
            .collect();
        let output = server.apply(&aliases, &[])?;
        if !output.status.success() {
            break String::from_utf8_lossy(&output.stderr).into_owned();
        }
        revision += 1;
    };
    ensure!(refused.contains("the change is not kept, and nothing was changed"), "{refused}");
    ensure!(server.json(&["history"])?["revisions"][0]["revision"] == revision);
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M"]).arg(&url);
    process::output(&mut qemu, LIMIT)?;
    // When space is available again, the server stores changes again, and none of the refused changes is present.
    let mut enlarge = Command::new("nsenter");
    let pid = server.pid().to_string();
    enlarge.args(["--target", &pid, "--mount"]);
    if !rustix::process::geteuid().is_root() {
        enlarge.args(["--user", "--preserve-credentials"]);
    }
    enlarge.args(["mount", "-o", "remount,size=64m"]).arg(&state);
    process::output(&mut enlarge, LIMIT)?;
    server.run(&["host", "create", "afterwards"])?;
    let history = server.json(&["history"])?;
    ensure!(history["revisions"][0]["revision"] == revision + 1, "{history}");
    let hosts = server.json(&["host", "list"])?;
    ensure!(hosts["host"].as_array().map(Vec::len) == Some((revision as usize - 1) * 1000 + 1));
    server.stop()
}

/// Sends changes until the server ends. Returns the last acknowledged revision.
fn keep_changing(folder: &Path, begin: u64) -> Result<u64> {
    let mut acknowledged = begin;
    loop {
        let document = folder.join("change.toml");
        let volume = format!("name = \"v\"\nstore = \"null\"\nsize = \"{}MiB\"", acknowledged + 1);
        let host = format!("name = \"h{acknowledged}\"");
        std::fs::write(&document, format!("[[volume]]\n{volume}\n[[host]]\n{host}\n"))?;
        let path = document.to_str().context("a path")?;
        let output = managed::command(folder, &["apply", "-f", path, "--json"])?.output()?;
        if !output.status.success() {
            return Ok(acknowledged);
        }
        let changed: Value = serde_json::from_slice(&output.stdout)?;
        acknowledged = changed["revision"].as_u64().context("a revision")?;
    }
}

/// Parses `1GiB` and `3MiB` as mebibytes.
fn parse_mebibytes(size: &Value) -> Option<u64> {
    let size = size.as_str()?;
    let mebibytes = |text: &str| text.parse::<u64>().ok();
    match size.strip_suffix("GiB") {
        Some(gibibytes) => Some(mebibytes(gibibytes)? << 10),
        None => mebibytes(size.strip_suffix("MiB")?),
    }
}

/// Kills a server during a stream of changes `count` times. Each time the state is the last acknowledged one, or the
/// one that was in progress.
fn survives_kills(count: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (mut acknowledged, mut under_way) = (0, 0);
    for round in 0..count {
        let server = Managed::start(folder.path())?;
        let history = server.json(&["history", "-n", "1"])?;
        let revision = history["revisions"][0]["revision"].as_u64().unwrap_or(0);
        ensure!(
            revision == acknowledged || revision == acknowledged + 1,
            "round {round}: revision {revision}, and {acknowledged} was acknowledged"
        );
        under_way += u32::from(revision == acknowledged + 1 && round > 0);
        // Each revision has created one host with its number: all hosts up to this number exist, and none above.
        let hosts = server.json(&["host", "list"])?;
        let mut named: Vec<u64> = hosts["host"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|host| host["name"].as_str()?.strip_prefix('h')?.parse().ok())
            .collect();
        named.sort_unstable();
        ensure!(named == (0..revision).collect::<Vec<_>>(), "round {round}: {named:?}");
        let volumes = server.json(&["volume", "list"])?;
        let size = &volumes["volume"][0]["size"];
        ensure!(revision == 0 || parse_mebibytes(size) == Some(revision), "{revision}: {volumes}");
        let path = folder.path().to_owned();
        let changing = threads::spawn("changes", move || keep_changing(&path, revision))?;
        // A duration that is different each time, and long enough for some changes.
        let micros = 1_000 + u64::from(round).wrapping_mul(0x9e37_79b9) % 60_000;
        let (_sender, nothing) = std::sync::mpsc::channel::<()>();
        let _ = nothing.recv_timeout(Duration::from_micros(micros));
        server.kill()?;
        acknowledged = changing.join().map_err(|_| anyhow::anyhow!("a panic"))??;
    }
    println!(
        "{count} kills, {acknowledged} changes, {under_way} of them kept and not acknowledged"
    );
    ensure!(acknowledged > u64::from(count / 4), "hardly anything was changed");
    Ok(())
}

#[test]
fn a_killed_server_has_the_state_before_a_change_or_after_it() -> Result<()> {
    survives_kills(40)
}

#[test]
#[ignore = "takes minutes: cargo xtask ci --full"]
fn a_thousand_kills_leave_a_state_before_or_after_a_change() -> Result<()> {
    survives_kills(1000)
}

/// Returns the API's answer to a request from this machine.
fn asked(api: &str, path: &str, host: &str) -> Result<String> {
    let address = api.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(LIMIT))?;
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn local_client_gets_no_secrets_and_foreign_pages_are_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start_with(folder.path(), &["--api", "127.0.0.1:0"])?;
    server
        .run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export", "--chap", "vm"])?;
    let api = server.announced()["api"].as_str().context("where the API is")?.to_owned();
    for (path, host, status) in [
        ("/v1/config", "localhost", "200"),
        ("/v1/config?secrets=true", "localhost", "403"),
        ("/v1/trace?initiator=iqn.2026-11.proof:x", "localhost", "403"),
        ("/v1/config", "a-page-of-somebody.example", "403"),
        ("/v1/nothing", "127.0.0.1", "404"),
    ] {
        let answer = asked(&api, path, host)?;
        ensure!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    server.stop()
}
