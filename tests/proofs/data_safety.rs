//! Data safety. No change (planned, applied or refused) and no start replaces a known disk with an empty disk or with
//! another one.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use sarsen_io::time::now;
use sarsen_proof::managed::{Managed, User};
use sarsen_proof::process;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
const SECRET: &str = "twelve-or-more";
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const CONFLICT: i32 = 4;

fn url(server: &Managed, target: &str) -> Result<String> {
    Ok(format!("iscsi://{}/iqn.2026-11.io.sarsen:{target}/0", server.portal()?))
}

fn qemu_io(url: &str, commands: &[&str]) -> Result<()> {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).args(commands.iter().flat_map(|command| ["-c", command])).arg(url);
    let said = process::output(&mut qemu, LIMIT)?;
    ensure!(!said.contains("Pattern verification failed"), "{said}");
    Ok(())
}

/// Writes a mark to a disk.
fn mark(url: &str) -> Result<()> {
    qemu_io(url, &["write -P 0x5a 0 1M", "flush"])
}

fn is_marked(url: &str) -> Result<()> {
    qemu_io(url, &["read -P 0x5a 0 1M"])
}

fn serial(server: &Managed, target: &str) -> Result<Value> {
    Ok(server.json(&["disk", "info", &url(server, target)?])?["serial"].clone())
}

fn events(server: &Managed, kind: &str) -> Result<usize> {
    let events = server.json(&["event", "list", "--kind", kind])?;
    Ok(events["events"].as_array().map_or(0, Vec::len))
}

#[test]
fn a_disk_whose_file_is_away_is_not_served_empty_and_is_there_when_the_file_is() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, away) = (folder.path().join("disk.img"), folder.path().join("away"));
    let file = path.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "kept", "8MiB", "--path", file, "--export"])?;
    server.run(&["volume", "create", "other", "8MiB", "--export"])?;
    mark(&url(&server, "kept")?)?;
    server.stop()?;
    fs::rename(&path, &away)?;
    was_written_long_ago(&away)?;
    // The file is missing, as when its file system is not mounted yet.
    let server = Managed::start(folder.path())?;
    ensure!(!path.exists(), "an empty file was made");
    ensure!(events(&server, "problem")? == 1, "{}", server.log());
    ensure!(qemu_io(&url(&server, "kept")?, &["read 0 1M"]).is_err(), "something is served");
    // All other objects work, and can be changed.
    qemu_io(&url(&server, "other")?, &["write 0 1M"])?;
    server.run(&["volume", "create", "third", "1MiB", "--store", "ram", "--export"])?;
    ensure!(!path.exists(), "an empty file was made by the way");
    fs::rename(&away, &path)?;
    server.run(&["volume", "create", "fourth", "1MiB", "--store", "ram"])?;
    until_lacking(&server, <[_]>::is_empty)?;
    is_marked(&url(&server, "kept")?)?;
    ensure!(events(&server, "problem_solved")? == 1);
    server.stop()
}

/// Gives a file an old modification time.
fn was_written_long_ago(path: &Path) -> Result<()> {
    let then = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    Ok(fs::File::options().write(true).open(path)?.set_modified(then)?)
}

/// Returns the missing objects that `doctor` reports.
fn lacks(server: &Managed) -> Result<Vec<String>> {
    let said = server.command(&["doctor", "--json"])?.output()?.stdout;
    let said: Value = serde_json::from_slice(&said)?;
    let findings = said["findings"].as_array().context("findings")?.iter();
    let of_server = findings.filter(|one| one["check"] == "server" && one["level"] == "problem");
    Ok(of_server.map(|one| one["finding"].to_string()).collect())
}

/// Waits until what the server reports as missing satisfies the check: it tries missing objects beside other work.
fn until_lacking(server: &Managed, is_so: impl Fn(&[String]) -> bool) -> Result<()> {
    let deadline = now() + LIMIT;
    loop {
        let lacking = lacks(server)?;
        if is_so(&lacking) {
            return Ok(());
        }
        ensure!(now() < deadline, "{lacking:?} {}", server.log());
    }
}

#[test]
fn server_starts_without_missing_disk_and_attaches_it_later() -> Result<()> {
    const TARGET: &str = "iqn.2026-11.proof:guarded";
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(place("certificate"), made.cert.pem())?;
    for (name, text) in [("key", made.signing_key.serialize_pem()), ("secret", SECRET.into())] {
        fs::write(place(name), text)?;
        fs::set_permissions(place(name), fs::Permissions::from_mode(0o600))?;
    }
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    drop(taken);
    let server = Managed::start(folder.path())?;
    let document = format!(
        "[[portal]]\naddress = \"{address}\"\n\
         [[portal]]\naddress = \"127.0.0.1:0\"\ngroup = 2\n\
         tls = {{ certificate = {:?}, key = {:?} }}\n\
         [[account]]\nname = \"host\"\nsecret-file = {:?}\n\
         [[volume]]\nname = \"kept\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"kept\"]\nchap = [\"host\"]\n\
         [[volume]]\nname = \"open\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:open\"\nluns = [\"open\"]\n",
        place("certificate"),
        place("key"),
        place("secret"),
    );
    server.applied(&document, &[])?;
    server.stop()?;
    // The port is taken, and the secrets are missing, as when another program starts first and a file system is not
    // mounted.
    let taken = TcpListener::bind(address)?;
    for name in ["certificate", "secret"] {
        fs::rename(place(name), place(&format!("{name}-away")))?;
    }
    let insisting = Managed::start_with(folder.path(), &["--listen", &address.to_string()]);
    ensure!(insisting.is_err(), "who names a portal is told at once");
    let server = Managed::start(folder.path())?;
    let lacking = lacks(&server)?;
    ensure!(lacking.len() == 3, "{lacking:?}");
    for reported in [&*address.to_string(), "certificate", "account host"] {
        ensure!(lacking.iter().any(|one| one.contains(reported)), "{reported}: {lacking:?}");
    }
    let list = server.run(&["portal", "list"])?;
    ensure!(list.contains(&format!("! cannot listen on {address}")), "{list}");
    qemu_io(&url(&server, "open")?, &["write 0 1M"])?;
    let guarded = |portal: &str| format!("iscsi://host%{SECRET}@{portal}/{TARGET}/0");
    let refused = qemu_io(&guarded(server.portal()?), &["read 0 1M"]);
    ensure!(refused.is_err(), "nobody is let in whose secret is not known");
    // The server still refuses configurations that were never valid.
    let wrong = format!("[[account]]\nname = \"b\"\nsecret-file = {:?}\n", place("nowhere"));
    ensure!(!server.apply(&wrong, &[])?.status.success());
    drop(taken);
    for name in ["certificate", "secret"] {
        fs::rename(place(&format!("{name}-away")), place(name))?;
    }
    let deadline = now() + LIMIT;
    while events(&server, "problem_solved")? < 3 {
        ensure!(now() < deadline, "{:?} {}", lacks(&server)?, server.log());
    }
    ensure!(lacks(&server)?.is_empty() && events(&server, "problem")? == 3, "{}", server.log());
    qemu_io(&guarded(&address.to_string()), &["write 0 1M"])?;
    server.stop()
}

#[test]
fn a_target_whose_portals_went_with_a_flag_keeps_nothing_else_from_being_served() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?;
    fs::write(place("pem"), made.cert.pem())?;
    fs::write(place("key"), made.signing_key.serialize_pem())?;
    fs::set_permissions(place("key"), fs::Permissions::from_mode(0o600))?;
    let (pem, key) = (place("pem"), place("key"));
    let group = ["--listen", "127.0.0.1:0,2"];
    let tls = ["--listen-tls", "127.0.0.1:0", "--tls-certificate", &pem, "--tls-key", &key];
    let all = [&group[..], &tls, &["--tls-client-ca", &pem]].concat();
    let document = [
        exported_volume("bound", "groups = [2]"),
        exported_volume("both", "access = { 2 = \"standby\" }"),
        exported_volume("certified", "allow = [{ certificate = \"host\" }]"),
        exported_volume("open", ""),
    ];
    let server = Managed::start_with(folder.path(), &all)?;
    server.applied(&document.concat(), &[])?;
    server.stop()?;

    let server = Managed::start(folder.path())?;
    let lacking = lacks(&server)?;
    ensure!(lacking.len() == 3, "{lacking:?}");
    for reported in [
        "iqn.2026-11.io.sarsen:bound: no portal is in group 2 (groups: 1)",
        "iqn.2026-11.io.sarsen:both: no portal is in group 2 (groups: 1)",
        "iqn.2026-11.io.sarsen:certified: certificate: no portal asks clients for one",
    ] {
        ensure!(lacking.iter().any(|one| one.contains(reported)), "{reported}: {lacking:?}");
    }
    for served in ["open", "both"] {
        mark(&url(&server, served)?).context(served)?;
    }
    for shut in ["bound", "certified"] {
        ensure!(
            mark(&url(&server, shut)?).is_err(),
            "{shut} is reached by another way than its own"
        );
    }
    // Existing objects can still be changed, and the server still refuses invalid new objects.
    server.run(&["volume", "create", "more", "8MiB", "--export"])?;
    mark(&url(&server, "more")?)?;
    let refused = server.apply(&exported_volume("new", "groups = [3]"), &[])?;
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && said.contains("no portal is in group 3"), "{said}");

    let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    server.run(&["portal", "create", &address, "--group", "2"])?;
    ensure!(lacks(&server)?.len() == 1, "{:?}", lacks(&server)?);
    mark(&format!("iscsi://{address}/iqn.2026-11.io.sarsen:bound/0"))?;
    let named = server.refused(USAGE, &["portal", "delete", &address])?;
    ensure!(named.contains("no portal is in group 2"), "{named}");
    server.kill()?;
    let server = Managed::start_with(folder.path(), &all)?;
    ensure!(lacks(&server)?.is_empty(), "{:?}", lacks(&server)?);
    server.stop()
}

/// Returns the tables of a volume and its target; `rest` contains more lines of the target.
fn exported_volume(name: &str, rest: &str) -> String {
    format!(
        "[[volume]]\nname = \"{name}\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:{name}\"\nluns = [\"{name}\"]\n{rest}\n"
    )
}

#[test]
fn returning_disk_does_not_disturb_disk_in_use() -> Result<()> {
    const TARGET: &str = "iqn.2026-11.proof:both";
    let folder = tempfile::tempdir()?;
    let (path, away) = (folder.path().join("disk.img"), folder.path().join("away"));
    let server = Managed::start(folder.path())?;
    let document = format!(
        "[[volume]]\nname = \"kept\"\npath = {path:?}\nsize = \"8MiB\"\n\
         [[volume]]\nname = \"used\"\nsize = \"8MiB\"\n\
         [[target]]\nname = \"{TARGET}\"\nluns = [\"used\", \"kept\"]\n"
    );
    server.applied(&document, &[])?;
    mark(&format!("iscsi://{}/{TARGET}/1", server.portal()?))?;
    server.stop()?;
    fs::rename(&path, &away)?;
    was_written_long_ago(&away)?;
    let server = Managed::start(folder.path())?;
    let used = format!("iscsi://{}/{TARGET}/0", server.portal()?);
    let user = User::of(&used)?;
    let deadline = now() + LIMIT;
    while server.json(&["session", "list"])?["sessions"].as_array().is_none_or(Vec::is_empty) {
        ensure!(now() < deadline, "no session: {}", server.log());
    }
    // While the file is missing, and after its return, changes of other objects need no force.
    server.run(&["volume", "create", "first", "1MiB", "--store", "ram"])?;
    fs::rename(&away, &path)?;
    server.run(&["volume", "create", "second", "1MiB", "--store", "ram"])?;
    until_lacking(&server, <[_]>::is_empty)?;
    is_marked(&format!("iscsi://{}/{TARGET}/1", server.portal()?))?;
    ensure!(events(&server, "connection_lost")? == 0, "{}", server.log());
    drop(user);
    server.stop()
}

#[test]
fn a_document_that_calls_a_disk_by_another_name_means_the_same_disk() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "old", "8MiB", "--export"])?;
    mark(&url(&server, "old")?)?;
    let before = serial(&server, "old")?;
    let document = format!(
        "[[volume]]\nname = \"new\"\nserial = {before}\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:old\"\nluns = [\"new\"]\n"
    );
    let said = server.applied(&document, &["--prune"])?;
    ensure!(said.starts_with("~ volume old -> new"), "{said}");
    is_marked(&url(&server, "old")?)?;
    ensure!(serial(&server, "old")? == before);
    server.stop()
}

#[test]
fn swapped_names_swap_serials_at_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "a", "8MiB", "--export"])?;
    server.run(&["volume", "create", "b", "8MiB", "--export"])?;
    mark(&url(&server, "a")?)?;
    let exported = server.run(&["export"])?;
    let swapped = exported.replace("name = \"a\"", "name = \"?\"");
    let swapped = swapped.replace("name = \"b\"", "name = \"a\"").replace("\"?\"", "\"b\"");
    ensure!(swapped != exported, "{exported}");
    let (a, b) = (serial(&server, "a")?, serial(&server, "b")?);
    server.applied(&swapped, &[])?;
    // The change takes effect at once, not with the next change of the target or the next start.
    ensure!(serial(&server, "a")? == b && serial(&server, "b")? == a);
    is_marked(&url(&server, "b")?)?;
    server.kill()?;
    let server = Managed::start(folder.path())?;
    ensure!(serial(&server, "a")? == b);
    is_marked(&url(&server, "b")?)?;
    server.stop()
}

#[test]
fn change_that_would_discard_ram_volume_is_refused() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "scratch", "8MiB", "--store", "ram", "--export"])?;
    mark(&url(&server, "scratch")?)?;
    // The document omits the kind of store; a new serial number would create another disk.
    let output = server.apply("[[volume]]\nname = \"scratch\"\nsize = \"8MiB\"\n", &[])?;
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success() && reported.contains("is in memory"), "{reported}");
    let refused = server.refused(FAILED, &["volume", "set", "scratch", "serial=other"])?;
    ensure!(refused.contains("is in memory"), "{refused}");
    is_marked(&url(&server, "scratch")?)?;
    server.stop()
}

fn length(path: &Path) -> Result<u64> {
    Ok(fs::metadata(path)?.len())
}

#[test]
fn dry_run_leaves_existing_file_untouched() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("old.img");
    fs::write(&path, [7; 4096])?;
    let file = path.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    // The server does not extend an existing file without a request: it may belong to a user.
    let reported = server.refused(FAILED, &["volume", "create", "x", "8MiB", "--path", file])?;
    ensure!(reported.contains("has 4096 bytes, not 8388608"), "{reported}");
    server.run(&["volume", "create", "x", "--path", file])?;
    let resize = ["volume", "resize", "x", "8MiB"];
    server.run(&[&resize[..], &["--dry-run"]].concat())?;
    ensure!(length(&path)? == 4096, "a plan made it longer");
    let refused = format!(
        "[[volume]]\nname = \"x\"\npath = {file:?}\nsize = \"8MiB\"\n\
         [[volume]]\nname = \"y\"\nnaa = \"3000000000000001\"\nsize = \"8MiB\"\n\
         [[volume]]\nname = \"z\"\nnaa = \"3000000000000001\"\nsize = \"8MiB\"\n"
    );
    let output = server.apply(&refused, &[])?;
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(reported.contains("volumes y and z have the same naa"), "{reported}");
    ensure!(length(&path)? == 4096, "a change that was refused made it longer");
    server.run(&resize)?;
    ensure!(length(&path)? == 8 << 20 && fs::read(&path)?[..4096] == [7; 4096]);
    server.stop()
}

#[test]
fn a_disk_that_is_opened_otherwise_and_grows_is_long_only_when_that_is_kept() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk.img");
    let file = path.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "x", "8MiB", "--path", file, "--export"])?;
    mark(&url(&server, "x")?)?;
    let larger = ["volume", "set", "x", "size=16MiB", "cache=writethrough"];
    server.run(&[&larger[..], &["--dry-run"]].concat())?;
    ensure!(length(&path)? == 8 << 20);
    server.run(&larger)?;
    ensure!(length(&path)? == 16 << 20);
    is_marked(&url(&server, "x")?)?;
    qemu_io(&url(&server, "x")?, &["write 15M 1M"])?;
    // With blocks of another size the data would be different.
    let refused = server.refused(FAILED, &["volume", "set", "x", "block-size=4096"])?;
    ensure!(refused.contains("leave block-size as it is"), "{refused}");
    server.stop()
}

#[test]
fn a_new_disk_has_nothing_of_one_that_had_its_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "a", "8MiB", "--export"])?;
    mark(&url(&server, "a")?)?;
    let shown = server.json(&["volume", "show", "a"])?;
    let path = shown["path"].as_str().context("its path")?.to_owned();
    ensure!(Path::new(&path).is_absolute(), "{path}");
    server.run(&["target", "delete", "iqn.2026-11.io.sarsen:a"])?;
    server.run(&["volume", "delete", "a"])?;
    // Only the image is deleted; its stored state remains.
    fs::remove_file(&path)?;
    fs::create_dir(format!("{path}.state"))?;
    server.run(&["volume", "create", "a", "8MiB", "--export"])?;
    let again = server.json(&["volume", "show", "a"])?;
    ensure!(again["path"] != shown["path"], "{again}");
    qemu_io(&url(&server, "a")?, &["read -P 0 0 1M"])?;
    ensure!(server.refused(CONFLICT, &["volume", "create", "a", "8MiB"])?.contains("already"));
    server.stop()
}

#[test]
fn a_disk_that_is_being_copied_back_is_served_when_it_is_whole() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, away) = (folder.path().join("disk.img"), folder.path().join("away"));
    let file = path.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "kept", "8MiB", "--path", file, "--export"])?;
    mark(&url(&server, "kept")?)?;
    server.stop()?;
    fs::rename(&path, &away)?;
    was_written_long_ago(&away)?;
    let server = Managed::start(folder.path())?;
    let data = fs::read(&away)?;
    fs::write(&path, &data[..data.len() / 2])?;
    was_written_long_ago(&path)?;
    server.run(&["volume", "create", "other", "1MiB", "--store", "ram"])?;
    let reports = |text: &'static str| move |lacking: &[String]| lacking.concat().contains(text);
    until_lacking(&server, reports("has 4194304 bytes of the 8388608 that it had"))?;
    ensure!(fs::metadata(&path)?.len() == 4 << 20, "it was made longer");
    fs::write(&path, data)?;
    server.run(&["volume", "delete", "other"])?;
    // The file has its full length, but a restore may still be writing.
    until_lacking(&server, reports("was written a moment ago"))?;
    was_written_long_ago(&path)?;
    server.run(&["volume", "create", "other", "1MiB", "--store", "ram"])?;
    until_lacking(&server, <[_]>::is_empty)?;
    is_marked(&url(&server, "kept")?)?;
    server.stop()
}

#[test]
fn a_growth_that_a_power_cut_takes_back_is_made_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("disk.img");
    let file = path.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "kept", "8MiB", "--path", file, "--export"])?;
    mark(&url(&server, "kept")?)?;
    server.run(&["volume", "resize", "kept", "16MiB"])?;
    server.kill()?;
    // The change is in the state, but the file has not been extended yet.
    fs::File::options().write(true).open(&path)?.set_len(8 << 20)?;
    let server = Managed::start(folder.path())?;
    ensure!(length(&path)? == 16 << 20 && lacks(&server)?.is_empty(), "{}", server.log());
    is_marked(&url(&server, "kept")?)?;
    server.stop()
}

#[test]
fn reservations_are_not_forgotten_since_the_folder_that_has_them_is_away() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    let server = Managed::start(folder.path())?;
    let document = format!(
        "[[volume]]\nname = \"kept\"\nsize = \"8MiB\"\nstate = {:?}\n\
         [[target]]\nname = \"iqn.2026-11.io.sarsen:kept\"\nluns = [\"kept\"]\n",
        place("meta")
    );
    server.applied(&document, &[])?;
    server.stop()?;
    fs::rename(place("meta"), place("away"))?;
    let server = Managed::start(folder.path())?;
    ensure!(!place("meta").exists(), "an empty one was made");
    let reported = lacks(&server)?.join("\n");
    ensure!(reported.contains("meta does not exist, and no empty file is created"), "{reported}");
    fs::rename(place("away"), place("meta"))?;
    // The file was created a moment ago.
    until_lacking(&server, <[_]>::is_empty)?;
    mark(&url(&server, "kept")?)?;
    server.stop()
}

#[test]
fn dry_run_writes_no_file_and_new_volume_refuses_foreign_file() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    let server = Managed::start(folder.path())?;
    fs::write(place("empty"), "")?;
    fs::create_dir(place("meta"))?;
    let document = |more: &str| {
        format!(
            "[[volume]]\nname = \"new\"\nsize = \"8MiB\"\npath = {:?}\n{more}\n",
            place("empty")
        )
    };
    for more in
        ["protection = 1".to_owned(), format!("encrypted = true\nstate = {:?}", place("meta"))]
    {
        server.applied(&document(&more), &["--dry-run"])?;
        ensure!(fs::metadata(place("empty"))?.len() == 0, "{more}: it was written");
        ensure!(fs::read_dir(place("meta"))?.next().is_none(), "{more}: a key was kept");
    }
    server.applied(&document("protection = 1"), &[])?;
    server.stop()?;
    let server = Managed::start(folder.path())?;
    ensure!(lacks(&server)?.is_empty(), "{:?}", lacks(&server)?);
    server.run(&["volume", "delete", "new"])?;
    // A user's text file is not a disk to extend.
    let text = place("notes").display().to_string();
    fs::write(&text, "my notes")?;
    let refused = server.command(&["volume", "create", "x", "1MiB", "--path", &text])?.output()?;
    let reported = String::from_utf8(refused.stderr)?;
    ensure!(reported.contains("has 8 bytes, not 1048576"), "{reported}");
    ensure!(fs::read_to_string(&text)? == "my notes");
    server.stop()
}

/// Otherwise the change would take the volume out of service, and could not be undone.
#[test]
fn format_of_data_is_not_changed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "plain", "8MiB"])?;
    server.run(&["volume", "create", "secret", "8MiB", "--encrypted"])?;
    for (volume, setting) in
        [("plain", "encrypted=true"), ("plain", "protection=1"), ("secret", "encrypted=false")]
    {
        for more in [&["--dry-run"][..], &[]] {
            let set = [&["volume", "set", volume, setting][..], more].concat();
            let refused = server.command(&set)?.output()?;
            let reported = String::from_utf8(refused.stderr)?;
            ensure!(reported.contains("as it is, or copy the data"), "{setting}: {reported}");
        }
    }
    ensure!(lacks(&server)?.is_empty(), "{:?}", lacks(&server)?);
    // A document may omit them.
    server.applied("[[volume]]\nname = \"secret\"\niops = 1000\n", &[])?;
    ensure!(server.run(&["volume", "show", "secret"])?.contains("encrypted = true"));
    server.stop()
}

#[test]
fn volume_is_not_served_with_another_block_size() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "kept", "8MiB", "--export"])?;
    let state = folder.path().join("meta").display().to_string();
    let settings =
        ["volume", "set", "kept", "block-size=4096", &format!("state={state}"), "--force"];
    let reported = server.refused(FAILED, &settings)?;
    ensure!(reported.contains("was written in blocks of 512 bytes"), "{reported}");
    server.stop()
}
