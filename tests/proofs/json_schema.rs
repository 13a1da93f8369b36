//! The output of `--json` for each verb: one document on standard output and nothing else, with the names and types in
//! `docs/json.md`. `SARSEN_WRITE=1` writes that file again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_lab::access;
use sarsen_lab::archive::Archive;
use sarsen_lab::record::{Labels, Measures, Outcome, Run, Sample, Scale, Setting};
use sarsen_lab::study;
use sarsen_proof::managed::Managed;
use sarsen_proof::{Backing, Serving, program};
use serde_json::Value;

use crate::client::run;
use crate::incremental_backup::Fixture;
use crate::pools::wait_until;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/json.md");
const OPENAPI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/openapi.json");
const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/compat/src/import/samples");
const HEAD: &str = "# What `--json` prints\n\n\
    One document on one line of standard output, or one a line where it says so; everything else goes to standard\n\
    error. Names and types stay, and what is added is new. `?`: not always there; `[]`: each of a list; `*`: any name.\n";
const TARGET: &str = "iqn.2026-11.io.sarsen:data";
const SECRET: &str = "a-secret-of-proofs";
/// Maps whose keys are names of objects.
const MAPS: [&str; 6] = ["access", "errors", "figures", "labels", "luns", "subject"];
/// Fields for old and new values, which may have any type.
const ANY: [&str; 2] = [".from", ".to"];
const CHANGE: &str = "Every change: `create`, `set`, `rename` and `delete` of every noun, `volume resize`, \
                      `target attach|detach`, `account secret`, `apply`, `diff`";
const EVENTS: &str = "`event list`; with `--follow` each of `events` on a line";
const NOT_FOUND: i32 = 3;
const DEGRADED: i32 = 5;

/// The values at one place of a verb's documents.
#[derive(Default)]
struct ShapeLocation {
    types: BTreeSet<&'static str>,
    count: usize,
    objects: usize,
}

/// The common structure of a verb's documents.
#[derive(Default)]
struct Shape {
    places: BTreeMap<String, ShapeLocation>,
}

impl Shape {
    fn see(&mut self, path: &str, value: &Value) {
        let is_any = ANY.iter().any(|any| path.ends_with(any));
        let place = self.places.entry(path.to_owned()).or_default();
        place.count += 1;
        if is_any {
            place.types.insert("anything");
            return;
        }
        place.objects += usize::from(value.is_object());
        place.types.insert(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(number) if number.is_f64() => "number",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "list",
            Value::Object(_) => "object",
        });
        match value {
            Value::Array(items) => {
                items.iter().for_each(|item| self.see(&format!("{path}[]"), item));
            }
            Value::Object(fields) => {
                let is_map = MAPS.iter().any(|map| path.rsplit('.').next() == Some(map));
                for (key, value) in fields {
                    let key = if is_map { "*" } else { key };
                    self.see(&format!("{path}.{key}"), value);
                }
            }
            _ => {}
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (path, place) in &self.places {
            let parent = path.rsplit_once('.').and_then(|(parent, _)| self.places.get(parent));
            let is_optional = !path.ends_with(['*', ']'])
                && parent.is_some_and(|parent| parent.objects > place.count);
            // The inner fields show the same information.
            let is_plain = place.types.len() == 1 && !is_optional;
            let has_inner = self.places.keys().any(|other| {
                let inner = other.strip_prefix(path.as_str());
                inner.is_some_and(|inner| inner.starts_with(['.', '[']))
            });
            if is_plain && has_inner {
                continue;
            }
            let types: Vec<_> = place.types.iter().copied().collect();
            let path = if path.is_empty() { "itself" } else { path.trim_start_matches('.') };
            let mark = if is_optional { "?" } else { "" };
            let _ = writeln!(text, "{path}{mark}: {}", types.join(" or "));
        }
        text
    }
}

/// Sections of the file, in the order of their first use.
#[derive(Default)]
struct Shapes(Vec<(&'static str, Shape)>);

impl Shapes {
    fn shape(&mut self, title: &'static str) -> &mut Shape {
        let known = self.0.iter().position(|(known, _)| *known == title);
        let index = known.unwrap_or_else(|| {
            self.0.push((title, Shape::default()));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// Runs a command that must end with this code, and records its output, which consists of `documents` documents.
    fn ask(
        &mut self,
        title: &'static str,
        mut command: Command,
        code: i32,
        documents: usize,
    ) -> Result<Value> {
        let Output { status, stdout, stderr } = command.arg("--json").output()?;
        let (said, reported) = (String::from_utf8(stdout)?, String::from_utf8_lossy(&stderr));
        ensure!(status.code() == Some(code), "{command:?}: {status}: {said}{reported}");
        let lines: Vec<&str> = said.lines().collect();
        ensure!(lines.len() == documents, "{command:?} prints {} lines: {said}", lines.len());
        ensure!(!said.contains(SECRET), "{command:?} prints a secret: {said}");
        let mut last = Value::Null;
        for line in lines {
            last = serde_json::from_str(line).with_context(|| format!("{command:?}: {line}"))?;
            self.shape(title).see("", &last);
        }
        Ok(last)
    }

    fn render(&self) -> String {
        let sections = self
            .0
            .iter()
            .map(|(title, shape)| format!("\n## {title}\n\n```\n{}```\n", shape.render()));
        HEAD.to_owned() + &sections.collect::<String>()
    }
}

/// The commands for one server.
struct Asking<'a> {
    server: &'a Managed,
    folder: &'a Path,
    shapes: Shapes,
}

impl Asking<'_> {
    fn ask(&mut self, title: &'static str, line: &str) -> Result<Value> {
        self.ask_as(title, line, 0)
    }

    fn ask_as(&mut self, title: &'static str, line: &str, code: i32) -> Result<Value> {
        let folder = self.folder.display().to_string();
        let line = line.replace("FOLDER", &folder).replace("TARGET", TARGET);
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = self.server.command(&words)?;
        command.env("LIBISCSI_CHAP_PASSWORD", SECRET);
        command.env("SARSEN_ATTACHMENTS", self.attachments());
        self.shapes.ask(title, command, code, 1)
    }

    /// Returns the folder of the attachments.
    fn attachments(&self) -> PathBuf {
        self.folder.join("attachments")
    }

    fn change(&mut self, line: &str) -> Result<()> {
        self.ask(CHANGE, line).map(drop)
    }
}

#[test]
fn json_output_keeps_names_and_types() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let server = Managed::start_with(folder, &["--api", "127.0.0.1:0"])?;
    fs::write(folder.join("secret"), SECRET)?;
    let mut asking = Asking { server: &server, folder, shapes: Shapes::default() };
    changes(&mut asking)?;
    let url: sarsen_initiator::Url =
        format!("iscsi://vm%{SECRET}@{}/{TARGET}/0", server.portal()?).parse()?;
    run(async {
        let session = Unit::connect(&url, &SessionOptions::default()).await?;
        session.read(0, 1).await?;
        session.read(u64::MAX / 4096, 1).await.err();
        questions(&mut asking)?;
        // The session receives the logout request when it next runs.
        while session.read(0, 1).await.is_ok() {}
        Ok(())
    })?;
    let portal = server.portal()?.to_owned();
    disks(&mut asking, &portal)?;
    pools(&mut asking)?;
    removals(&mut asking)?;
    let shapes = asking.shapes;
    server.stop()?;
    let mut shapes = whole(shapes)?;
    let restarted = Managed::start_with(folder, &["--api", "127.0.0.1:0"])?;
    shapes.shape("`serve`").see("", restarted.announced());
    restarted.stop()?;
    laboratory(&mut shapes, folder)?;
    let said = shapes.render();
    if std::env::var_os("SARSEN_WRITE").is_some() {
        fs::write(COMMITTED, &said)?;
    }
    let committed = fs::read_to_string(COMMITTED).unwrap_or_default();
    ensure!(
        said == committed,
        "what --json prints is not what docs/json.md says: if names were only added, run it with SARSEN_WRITE=1. \
         {}",
        difference(&committed, &said)
    );
    Ok(())
}

fn difference(old: &str, new: &str) -> String {
    let (old, new) = (titled_lines(old), titled_lines(new));
    let (less, more) = (old.difference(&new), new.difference(&old));
    let less = less.map(|line| format!("\n- {line}"));
    less.chain(more.map(|line| format!("\n+ {line}"))).collect()
}

/// Returns the lines of a page, each with the title of its section.
fn titled_lines(page: &str) -> BTreeSet<String> {
    let sections = page.split("\n## ").filter_map(|section| section.split_once('\n'));
    let lines =
        sections.flat_map(|(title, rest)| rest.lines().map(move |line| format!("{title}: {line}")));
    lines.collect()
}

fn changes(asking: &mut Asking<'_>) -> Result<()> {
    asking.change(
        "volume create data 8MiB --store ram --export --chap vm --secret-from FOLDER/secret",
    )?;
    asking.change("volume create other 8MiB --path FOLDER/other.img --store file")?;
    asking.change("volume set data iops=100000 alias=")?;
    asking.change("volume resize other 16MiB --dry-run")?;
    asking.change("volume resize other 16MiB")?;
    asking.change("volume create huge 15TiB --dry-run")?;
    asking.change("target attach TARGET other --lun 1")?;
    asking.change("host create web --initiator iqn.2026-11.proof:web --address 10.0.0.0/8")?;
    asking.change("host rename web www")?;
    asking.change("account create spare --secret-from FOLDER/secret")?;
    asking.change("account secret spare --secret-from FOLDER/secret")?;
    asking.change("portal create 127.0.0.1:0 --group 2")?;
    asking.change("target create iqn.2026-11.proof:empty --alias none --host www")?;
    fs::write(asking.folder.join("document.json"), r#"{"host":[{"name":"applied"}]}"#)?;
    asking.change("diff -f FOLDER/document.json")?;
    asking.change("apply -f FOLDER/document.json")
}

fn questions(asking: &mut Asking<'_>) -> Result<()> {
    asking.ask("`volume list`", "volume list")?;
    asking.ask("`volume show`", "volume show data")?;
    asking.ask("`target list`", "target list")?;
    asking.ask("`target show`", "target show TARGET")?;
    for format in ["iscsiadm", "qemu", "ipxe", "esxi", "windows", "nbd"] {
        asking.ask("`target url`", &format!("target url TARGET --format {format}"))?;
    }
    asking.ask("`host list`", "host list")?;
    asking.ask("`host show`", "host show www")?;
    asking.ask("`account list`", "account list")?;
    asking.ask("`account show`", "account show vm")?;
    asking.ask("`portal list`", "portal list")?;
    asking.ask("`portal show`", "portal show 127.0.0.1:0")?;
    asking.ask("`export`", "export")?;
    asking.ask("`history`", "history")?;
    let nowhere = format!("disk info iscsi://{}/iqn.2026-11.proof:none/0", asking.server.portal()?);
    asking.server.refused(NOT_FOUND, &nowhere.split(' ').collect::<Vec<_>>())?;
    // Another thread records the event.
    while !asking.server.run(&["event", "list"])?.contains("login_refused") {}
    asking.ask(EVENTS, "event list")?;
    let sessions = asking.ask("`session list`", "session list")?;
    asking.change("target delete TARGET --force --dry-run")?;
    asking.ask("`top`, a line each", "top --count 1")?;
    let metrics = asking.ask("`metrics`, as OpenMetrics has them", "metrics")?;
    ensure!(metrics.is_string(), "{metrics}");
    asking.ask_as("`doctor`", "doctor --config FOLDER/absent.toml", 1)?;
    let tsih = sessions["sessions"][0]["tsih"].to_string();
    let trace = format!("session trace {tsih} --out FOLDER/trace.pcap --seconds 0");
    asking.ask("`session trace`", &trace)?;
    let drain = format!("session drain {tsih} --grace 0");
    asking.ask("`session drain`, `target drain`", &drain)?;
    let drain = "target drain TARGET --grace 0 --redirect 127.0.0.1:3260";
    asking.ask("`session drain`, `target drain`", drain)?;
    asking.ask("`target list`", "target list")?;
    asking.ask("`target undrain`", "target undrain TARGET")?;
    Ok(())
}

/// A document with every possible key.
const WHOLE: &str = r#"
[[portal]]
address = "127.0.0.2:0"
protocol = "nbd"
[[portal]]
address = "127.0.0.1:0"
group = 2
tls = { certificate = "FOLDER/pem", key = "FOLDER/key", client-ca = "FOLDER/pem", require-client-certificate = false }
[[account]]
name = "vm"
secret-env = "SARSEN_PROOF_SECRET"
[[account]]
name = "san"
secret-file = "FOLDER/own"
[[host]]
name = "web"
initiators = ["iqn.2026-11.proof:web"]
address = "10.0.0.1"
account = "vm"
certificate = "web.example"
iops = 5000
bandwidth = "200MiB"
burst = "2s"
weight = 10
reserved-iops = 100
[[volume]]
name = "a"
store = "file"
path = "FOLDER/a.img"
size = "8MiB"
block-size = 4096
cache = "writethrough"
removable = true
serial = "s1"
naa = "3000000000000001"
designators = ["t10:ACME    s1"]
vendor = "ACME"
product = "Disk"
revision = "1"
state = "FOLDER/a.kept"
encrypted = true
delay = "2ms"
iops = 5000
bandwidth = "200MiB"
burst = "2s"
weight = 10
reserved-iops = 100
fault = ["lost-write@7"]
[[pool]]
name = "tank"
devices = ["FOLDER/tank.pool"]
fast-devices = ["FOLDER/tank.pool"]
new-data = "fast"
move-rate = "8MiB"
repair-rate = "1MiB"
initiator-name = "iqn.2026-11.proof:gateway"
path-wait = "5s"
cache = "writethrough"
memory = "64MiB"
alert-percent = 90
[[volume]]
name = "thin"
store = "pool"
pool = "tank"
size = "1MiB"
snapshot-schedule = "daily=7"
mirror = 1
stripes = 2
checksums = true
[[volume]]
name = "from-image"
pool = "tank"
image = "FOLDER/disk.raw"
image-format = "raw"
[[volume]]
name = "far"
store = "remote"
remote = "REMOTE"
initiator-name = "iqn.2026-11.proof:gateway"
only-these-portals = true
path-selector = "round-robin"
path-wait = "5s"
[[volume]]
name = "b"
store = "ram"
size = "1MiB"
limit = "512KiB"
read-only = true
protection = 1
[[target]]
name = "TARGET"
alias = "both"
tid = 7
luns = { 0 = "b", 7 = "a" }
access = { 2 = "standby" }
preferred = 2
alua = "implicit"
groups = [2]
redirect = { address = "san2.example:3260", permanent = true }
chap = ["vm"]
own-account = "san"
algorithms = ["sha-256"]
allow = [
    { host = "web", luns = { 0 = "a" } },
    { initiator = "iqn.2026-11.proof:*", address = "10.0.0.1", account = "vm", luns = [7], read-only = true },
    { certificate = "other.example" },
]
[discovery]
chap = ["vm"]
own-account = "san"
algorithms = ["md5"]
[limits]
sessions = 9
memory = "2GiB"
"#;

/// Records the output for objects with all keys set, and for a full disk. Returns the shapes.
fn whole(shapes: Shapes) -> Result<Shapes> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    fs::write(folder.join("pem"), made.cert.pem())?;
    for (name, text) in
        [("key", made.signing_key.serialize_pem().as_str()), ("own", "its-own-secret")]
    {
        let path = folder.join(name);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    }
    let far = Serving::start(&[sarsen_proof::Volume::new("array", Backing::Ram, 1 << 20)])?;
    let text = WHOLE.replace("FOLDER", &folder.display().to_string()).replace("TARGET", TARGET);
    let text = text.replace("REMOTE", &far.url("array").to_string());
    fs::write(folder.join("whole.toml"), text)?;
    sarsen_proof::pool_in(folder, 48 << 20)?;
    // It is still being filled when it is listed.
    fs::write(folder.join("disk.raw"), vec![7; 8 << 20])?;
    // Limits files to 64 MiB, as on a full disk.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 131072; exec \"$@\"", "sh"]).arg(program::path()?);
    command.args(["serve", "--listen", "127.0.0.1:0", "--json"]).env("SARSEN_PROOF_SECRET", SECRET);
    let server = Managed::start_command(command, folder, &[])?;
    let mut asking = Asking { server: &server, folder, shapes };
    asking.change("apply -f FOLDER/whole.toml")?;
    server.run(&["snapshot", "create", "thin@s"])?;
    asking.change("volume clone thin@s clone")?;
    asking.change("volume create old --pool tank --snapshot thin@s")?;
    asking.ask("`pool show`", "pool show tank")?;
    asking.ask("`volume list`", "volume list")?;
    asking.ask("`volume show`", "volume show a")?;
    asking.ask("`volume show`", "volume show b")?;
    asking.ask("`volume show`", "volume show far")?;
    asking.ask("`volume paths`", "volume paths far")?;
    asking.ask("`target list`", "target list")?;
    asking.ask("`target show`", "target show TARGET")?;
    asking.ask("`host list`", "host list")?;
    asking.ask("`host show`", "host show web")?;
    asking.ask("`account list`", "account list")?;
    asking.ask("`account show`", "account show vm")?;
    asking.ask("`account show`", "account show san")?;
    asking.ask("`portal list`", "portal list")?;
    asking.ask("`portal show`", "portal show 127.0.0.1:0")?;
    asking.ask("`export`", "export")?;
    asking.change("volume create large 8MiB")?;
    asking.ask_as(CHANGE, "volume resize large 1GiB", DEGRADED)?;
    let mut shapes = asking.shapes;
    has_every_key(shapes.shape("`export`"))?;
    ensure!(shapes.shape(CHANGE).places.contains_key(".problems[]"), "a disk without room is told");
    server.stop()?;
    Ok(shapes)
}

/// Checks that the samples contain every key of the API's description of a document.
fn has_every_key(export: &Shape) -> Result<()> {
    let described: Value = serde_json::from_str(&fs::read_to_string(OPENAPI)?)?;
    for (name, place) in [
        ("Document", ""),
        ("Pool", ".pool[]"),
        ("Volume", ".volume[]"),
        ("Target", ".target[]"),
        ("Rule", ".target[].allow[]"),
        ("Redirect", ".target[].redirect"),
        ("Host", ".host[]"),
        ("Account", ".account[]"),
        ("Portal", ".portal[]"),
        ("Tls", ".portal[].tls"),
        ("Discovery", ".discovery"),
    ] {
        let keys = described["components"]["schemas"][name]["properties"].as_object();
        for (key, property) in keys.with_context(|| name.to_owned())? {
            let is_shown = property["writeOnly"] != true;
            let path = format!("{place}.{key}");
            ensure!(!is_shown || export.places.contains_key(&path), "{path} is in no sample");
        }
    }
    Ok(())
}

fn disks(asking: &mut Asking<'_>, portal: &str) -> Result<()> {
    let disk = |lun: u8| format!("iscsi://vm@{portal}/{TARGET}/{lun}");
    let (data, other) = (disk(0), disk(1));
    const MOVED: &str = "`disk read`, `disk write`, `disk copy`";
    asking.ask("`disk info`", &format!("disk info {data}"))?;
    asking.ask(MOVED, &format!("disk read {data} FOLDER/read.img"))?;
    asking.ask(MOVED, &format!("disk write FOLDER/read.img {data}"))?;
    asking.ask(MOVED, &format!("disk copy {data} {other}"))?;
    disk_changes(&mut asking.shapes)?;
    asking.ask("`disk verify`", &format!("disk verify {data} FOLDER/read.img"))?;
    fs::write(asking.folder.join("differs"), [7; 512])?;
    asking.ask_as("`disk verify`", &format!("disk verify {data} FOLDER/differs"), 1)?;
    asking.ask("`disk erase`", &format!("disk erase {other} --destroy"))?;
    let attach = format!("attach {data} --name data --as nbd-socket --socket FOLDER/nbd.sock");
    asking.ask("`attach`", &attach)?;
    asking.ask("`attachments`", "attachments")?;
    let mut detach = asking.server.command(&["detach", "data"])?;
    let detached = detach.env("SARSEN_ATTACHMENTS", asking.attachments()).status()?;
    ensure!(detached.success(), "the disk is not detached: {detached}");
    asking.ask("`discover`", &format!("discover {portal}"))?;
    for sample in ["tgt {}/targets.conf", "lio {}/saveconfig.json"] {
        let sample = sample.replace("{}", SAMPLES);
        asking.ask_as("`import`", &format!("import {sample} --dry-run"), DEGRADED)?;
    }
    Ok(())
}

fn disk_changes(shapes: &mut Shapes) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::start(folder.path())?;
    fixture.change(&["write 0 64k"], "old")?;
    fixture.change(&["write 1M 64k"], "new")?;
    fixture.server.run(&["volume", "create", "copy", "64MiB", "--pool", "tank", "--export"])?;
    let [old, new, copy] = ["v-old", "v-new", "copy"].map(|name| fixture.url(name));
    fixture.server.run(&["disk", "copy", &old, &copy])?;
    let changes = ["disk", "copy", "--since", "v@old", &new, &copy];
    shapes.ask("`disk copy --since`", fixture.server.command(&changes)?, 0, 1)?;
    fixture.server.stop()
}

fn pools(asking: &mut Asking<'_>) -> Result<()> {
    const POOL: &str = "`pool create`, `pool import`";
    const SNAPSHOTS: &str = "`snapshot create|list|delete|protect|unprotect`";
    asking.ask(POOL, "pool create tank --device FOLDER/tank.pool,size=64MiB")?;
    asking.change("pool set tank alert-percent=90")?;
    asking.change("volume create thin 8MiB --pool tank")?;
    asking.ask(SNAPSHOTS, "snapshot create thin@s --protect")?;
    asking.ask(SNAPSHOTS, "snapshot unprotect thin@s")?;
    asking.change("volume clone thin@s clone")?;
    asking.ask(SNAPSHOTS, "snapshot list")?;
    asking.ask(SNAPSHOTS, "snapshot list --reclaimable")?;
    asking.ask("`snapshot show`", "snapshot show thin@s")?;
    asking.ask("`volume usage`", "volume usage thin")?;
    asking.ask("`snapshot diff`", "snapshot diff thin@s")?;
    let stream = asking.folder.join("stream");
    let mut send = asking.server.command(&["snapshot", "send", "thin@s"])?;
    ensure!(send.stdout(fs::File::create(&stream)?).status()?.success());
    let mut receive = asking.server.command(&["snapshot", "receive", "thin@copy"])?;
    receive.stdin(fs::File::open(&stream)?);
    asking.shapes.ask("`snapshot receive`", receive, 0, 1)?;
    asking.ask(SNAPSHOTS, "snapshot delete thin@copy")?;
    asking.ask("`pool list`", "pool list")?;
    const DEVICES: &str = "`pool add`, `pool remove`, `pool replace`, `pool scrub`, `pool status`";
    asking.ask(DEVICES, "pool add tank FOLDER/more.pool,size=64MiB")?;
    asking.ask(DEVICES, "pool replace tank FOLDER/more.pool FOLDER/other.pool,size=64MiB")?;
    asking.ask(DEVICES, "pool scrub tank")?;
    asking.ask(DEVICES, "pool remove tank FOLDER/other.pool")?;
    // The server removes both of them by itself.
    wait_until(|| {
        let status = asking.ask(DEVICES, "pool status tank --reclaimable")?;
        let is_done = status["pool"]["scrub"]["last"].is_object();
        Ok(is_done && status["pool"]["devices"].as_array().is_some_and(|all| all.len() == 1))
    })?;
    asking.ask("`snapshot rollback`", "snapshot rollback thin@s --destroy")?;
    asking.ask(SNAPSHOTS, "snapshot delete thin@s")?;
    asking.change("volume delete clone --erase")?;
    asking.change("volume delete thin --erase")?;
    asking.change("pool delete tank")?;
    asking.ask("`pool check`", "pool check FOLDER/tank.pool")?;
    asking.ask(POOL, "pool import tank --device FOLDER/tank.pool")?;
    asking.change("pool delete tank")
}

fn removals(asking: &mut Asking<'_>) -> Result<()> {
    const ORPHANS: &str = "`volume orphan list`, `volume orphan remove`";
    asking.ask("`volume reattach`", "volume reattach other --force --grace 0")?;
    asking.change("volume create left 1MiB")?;
    asking.change("volume delete left")?;
    asking.ask(ORPHANS, "volume orphan list")?;
    asking.ask(ORPHANS, "volume orphan remove left.img --destroy")?;
    asking.change("target detach TARGET other")?;
    asking.change("volume rename other another")?;
    asking.change("volume delete another")?;
    asking.change("target delete iqn.2026-11.proof:empty")?;
    asking.change("host delete applied")?;
    asking.change("account delete spare")
}

fn laboratory(shapes: &mut Shapes, folder: &Path) -> Result<()> {
    let archive = folder.join("lab.sqlite");
    for _ in 0..2 {
        measured(&archive)?;
    }
    let program = program::path()?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.args(arguments).stdin(Stdio::null());
        command
    };
    let archive = archive.to_str().context("a path")?;
    let at = |words: &[&str]| command(&[words, &["--archive", archive]].concat());
    shapes.ask("`lab runs`, a line each", at(&["lab", "runs"]), 0, 2)?;
    shapes.ask("`lab compare`", at(&["lab", "compare", "1", "2"]), 0, 1)?;
    shapes.ask("`lab studies`, a line each", command(&["lab", "studies"]), 0, study::ALL.len())?;
    shapes.ask("`lab specs`, a line each", command(&["lab", "specs"]), 0, access::NAMED.len())?;
    let image = folder.join("image").display().to_string();
    fs::write(&image, vec![0; 1 << 20])?;
    let load = ["lab", "load", image.as_str(), "--seconds", "0.5", "--warm-up", "0"];
    shapes.ask("`lab load`, `lab replay`", command(&load), 0, 1)?;
    let share = folder.display().to_string();
    let files = ["lab", "files", share.as_str(), "--write", "--remove", "--count", "2"];
    shapes.ask("`lab files`", command(&files), 0, 1)?;
    let requests = folder.join("requests.csv").display().to_string();
    fs::write(&requests, "0.0,R,0,4096\n0.1,W,4096,4096\n")?;
    let replay = ["lab", "replay", requests.as_str(), image.as_str()];
    // It is so short that it has no series, unless the machine is very busy.
    for _ in 0..5 {
        shapes.ask("`lab load`, `lab replay`", command(&replay), 0, 1)?;
    }
    Ok(())
}

/// Writes a run to the archive.
fn measured(path: &Path) -> Result<()> {
    let archive = Archive::open(path)?;
    let id = archive.begin(&Run {
        id: 0,
        study: "lunden".to_owned(),
        scale: Scale::Quick,
        command: "sarsen lab run lunden --quick".to_owned(),
        targets_under_test: vec!["sarsen".to_owned()],
        began_at: 1_790_000_000,
        ended_at: None,
        setting: Setting::default(),
        samples: Vec::new(),
    })?;
    for repetition in 1..=3 {
        let figures = [("iops".to_owned(), 1000.0 * f64::from(repetition))].into();
        let labels = Labels::new().with("setup", "a").with("operation", "b");
        let outcome = Outcome::Measured(Measures { figures, ..Measures::default() });
        archive.add(id, &Sample { labels, repetition, ended_at: 1_790_000_050, outcome })?;
    }
    Ok(archive.end(id, 1_790_000_060)?)
}
