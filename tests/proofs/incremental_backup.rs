//! Incremental backups of a volume in a pool, with real NBD clients: the export of a snapshot offers a dirty bitmap for
//! each older snapshot.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;
use sarsen_proof::process;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const KIB: u64 = 1 << 10;

/// A server with a pool, and a volume `v` in it.
pub(crate) struct Fixture {
    pub(crate) server: Managed,
    /// `address:port` of the NBD portal.
    pub(crate) portal: String,
}

impl Fixture {
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let server = Managed::start_with(folder, &["--listen-nbd", "127.0.0.1:0"])?;
        let device = format!("{},size=256MiB", folder.join("tank.pool").display());
        server.run(&["pool", "create", "tank", "--device", &device])?;
        server.run(&["volume", "create", "v", "64MiB", "--pool", "tank", "--export"])?;
        let portal = server.announced()["portals"][1].as_str().context("the NBD portal")?.into();
        Ok(Self { server, portal })
    }

    pub(crate) fn url(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.portal)
    }

    /// Changes the volume with QEMU, and creates a snapshot that is served as a volume of its own: `v-NAME`.
    pub(crate) fn change(&self, commands: &[&str], snapshot: &str) -> Result<()> {
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", "-t", "writeback", "-d", "unmap"]);
        qemu.args(commands.iter().flat_map(|command| ["-c", command]));
        process::output(qemu.arg(self.url("v")), LIMIT)?;
        let name = format!("v@{snapshot}");
        self.server.run(&["snapshot", "create", &name])?;
        let served = format!("v-{snapshot}");
        let arguments = ["volume", "create", &served, "--pool", "tank", "--snapshot", &name];
        self.server.run(&[&arguments[..], &["--export"]].concat())?;
        Ok(())
    }

    /// Returns the names of the contexts of each export.
    fn contexts(&self) -> Result<Vec<(String, Vec<String>)>> {
        let portal = format!("nbd://{}", self.portal);
        let listed = json(Command::new("nbdinfo").args(["--list", "--json", &portal]))?;
        let names = |contexts: &Value| {
            let names = contexts.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(str::to_owned).collect()
        };
        let exports = listed["exports"].as_array().context("exports")?.iter();
        let export = |export: &Value| {
            let name = export["export-name"].as_str().context("a name")?;
            Ok((name.to_owned(), names(&export["contexts"])))
        };
        exports.map(export).collect()
    }

    /// Returns the ranges with data of a snapshot.
    pub(crate) fn data(&self, snapshot: &str) -> Result<Vec<(u64, u64)>> {
        let listed = self.server.json(&["snapshot", "diff", snapshot])?;
        ranges(&listed["changes"], "offset", |_| true)
    }

    /// Returns the ranges that changed, as `sarsen snapshot diff` lists them.
    pub(crate) fn difference(&self, since: &str, snapshot: &str) -> Result<Vec<(u64, u64)>> {
        let arguments = ["snapshot", "diff", snapshot, "--since", since];
        ranges(&self.server.json(&arguments)?["changes"], "offset", |_| true)
    }
}

fn json(command: &mut Command) -> Result<Value> {
    let text = process::output(command, LIMIT)?;
    serde_json::from_str(&text).with_context(|| text)
}

/// Returns the offset and the length of the fitting ranges of a list, with neighbours merged.
fn ranges(list: &Value, offset: &str, fits: impl Fn(&Value) -> bool) -> Result<Vec<(u64, u64)>> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for range in list.as_array().context("ranges")?.iter().filter(|range| fits(range)) {
        let number = |field: &str| range[field].as_u64().with_context(|| format!("{range}"));
        let (begin, length) = (number(offset)?, number("length")?);
        match ranges.last_mut() {
            Some((last, count)) if *last + *count == begin => *count += length,
            _ => ranges.push((begin, length)),
        }
    }
    Ok(ranges)
}

/// Returns the ranges that are dirty.
fn dirty_ranges(url: &str, since: &str) -> Result<Vec<(u64, u64)>> {
    let map = format!("--map=qemu:dirty-bitmap:{since}");
    let map = json(Command::new("nbdinfo").args([&map, "--json", url]))?;
    ranges(&map, "offset", |range| range["type"] == 1)
}

#[test]
fn an_incremental_backup_copies_only_what_has_changed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::start(folder.path())?;
    let [backup, whole] = ["backup", "whole"].map(|name| folder.path().join(name));
    fixture.change(&["write -P 0x11 0 16M", "write -P 0x22 32M 4M", "flush"], "s1")?;
    process::output(Command::new("nbdcopy").arg(fixture.url("v-s1")).arg(&backup), LIMIT)?;
    // A part of a piece, data in place of nothing, nothing in place of data, and zeroes.
    let changes = [
        "write -P 0x33 1M 64k",
        "write -P 0x44 33793k 512",
        "write -P 0x55 63M 4k",
        "discard 2M 1M",
        "write -z 8M 128k",
        "flush",
    ];
    fixture.change(&changes, "s2")?;
    fixture.change(&["write -P 0x66 40M 4k", "flush"], "s3")?;

    let (base, first, second) = ("base:allocation", "qemu:dirty-bitmap:s1", "qemu:dirty-bitmap:s2");
    let wanted = [
        ("v", vec![base]),
        ("v-s1", vec![base]),
        ("v-s2", vec![base, first]),
        ("v-s3", vec![base, first, second]),
    ];
    let own = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    let wanted = wanted.map(|(export, names)| (export.to_owned(), own(names)));
    let found = fixture.contexts()?;
    ensure!(found == wanted, "{found:?}");

    let url = fixture.url("v-s2");
    let dirty = dirty_ranges(&url, "s1")?;
    let changed = [
        (MIB, 64 * KIB),
        (2 * MIB, MIB),
        (8 * MIB, 128 * KIB),
        (33 * MIB, 4 * KIB),
        (63 * MIB, 4 * KIB),
    ];
    ensure!(dirty == changed, "{dirty:?}");
    ensure!(dirty == fixture.difference("v@s1", "v@s2")?);
    ensure!(dirty_ranges(&fixture.url("v-s3"), "s2")? == [(40 * MIB, 4 * KIB)]);
    // QEMU shows a dirty range as one without data, whose contents it does not know.
    let (host, port) = fixture.portal.rsplit_once(':').context("a port")?;
    let options = format!(
        "driver=nbd,server.type=inet,server.host={host},server.port={port},export=v-s2,x-dirty-bitmap={first}"
    );
    let mut map = Command::new("qemu-img");
    let map = json(map.args(["map", "--output=json", "--image-opts", &options]))?;
    let unknown = ranges(&map, "start", |range| range["data"] == false)?;
    ensure!(unknown == dirty, "{unknown:?}");

    for (offset, length) in dirty {
        let part = |file: String| format!("driver=raw,offset={offset},size={length},{file}");
        let mut copy = Command::new("qemu-img");
        copy.args(["convert", "-n", "--image-opts"]);
        copy.arg(part(format!(
            "file.driver=nbd,file.host={host},file.port={port},file.export=v-s2"
        )));
        copy.arg("--target-image-opts");
        copy.arg(part(format!("file.filename={}", backup.display())));
        process::output(&mut copy, LIMIT)?;
    }
    process::output(Command::new("nbdcopy").arg(&url).arg(&whole), LIMIT)?;
    let (backup, whole) = (fs::read(&backup)?, fs::read(&whole)?);
    ensure!(backup.len() as u64 == 64 * MIB, "{} bytes", backup.len());
    ensure!(backup == whole, "the backup differs from the snapshot");
    fixture.server.stop()
}

/// A client that sends its requests itself, with structured replies.
struct Client(TcpStream);

impl Client {
    fn connect(portal: &str) -> Result<Self> {
        let stream = TcpStream::connect(portal)?;
        stream.set_read_timeout(Some(LIMIT))?;
        let mut client = Self(stream);
        client.receive(18)?;
        client.0.write_all(&3_u32.to_be_bytes())?;
        client.option(8, &[])?;
        Ok(client)
    }

    fn receive(&mut self, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Sends an option, which must succeed. Returns the data of its replies.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        let length = data.len() as u32;
        let parts = [b"IHAVEOPT", &option.to_be_bytes()[..], &length.to_be_bytes(), data];
        self.0.write_all(&parts.concat())?;
        let mut replies = Vec::new();
        loop {
            let head = self.receive(20)?;
            let data = self.receive(number(&head[16..]))?;
            match number(&head[12..16]) {
                1 => return Ok(replies),
                code => ensure!(code < 1 << 31, "{}", String::from_utf8_lossy(&data)),
            }
            replies.push(data);
        }
    }

    /// Sends a request. Returns the types and the payloads of the chunks of its reply.
    fn request(&mut self, command: u16, offset: u64, length: u32) -> Result<Vec<(usize, Vec<u8>)>> {
        let parts = [
            &0x2560_9513_u32.to_be_bytes()[..],
            &[0; 2],
            &command.to_be_bytes(),
            &[7; 8],
            &offset.to_be_bytes(),
            &length.to_be_bytes(),
        ];
        self.0.write_all(&parts.concat())?;
        let mut chunks = Vec::new();
        loop {
            let head = self.receive(20)?;
            ensure!(head[..4] == 0x668e_33ef_u32.to_be_bytes(), "{head:?}");
            chunks.push((number(&head[6..8]), self.receive(number(&head[16..]))?));
            if head[5] == 1 {
                return Ok(chunks);
            }
        }
    }
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, &byte| number << 8 | usize::from(byte))
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn several_contexts_are_reported_at_once_until_a_snapshot_is_deleted() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let fixture = Fixture::start(folder.path())?;
    fixture.change(&["write -P 0x11 0 1M"], "s1")?;
    fixture.change(&["write -P 0x22 512k 64k"], "s2")?;
    fixture.change(&["write -P 0x33 0 64k"], "s3")?;
    let mut client = Client::connect(&fixture.portal)?;
    let queries = ["base:allocation", "qemu:dirty-bitmap:s1", "qemu:dirty-bitmap:s2"];
    let set = [string("v-s3"), vec![0, 0, 0, 3], queries.map(string).concat()].concat();
    let selected = client.option(10, &set)?;
    ensure!(selected.len() == 3, "{selected:?}");
    client.option(7, &[string("v-s3"), vec![0, 0]].concat())?;
    let status = |client: &mut Client| client.request(7, 0, 2 << 20);
    let chunk = |id: u32, extents: &[(u32, u32)]| {
        let extent = |&(length, flags): &(u32, u32)| [length.to_be_bytes(), flags.to_be_bytes()];
        (
            5,
            [
                &id.to_be_bytes()[..],
                extents.iter().map(extent).collect::<Vec<_>>().concat().as_flattened(),
            ]
            .concat(),
        )
    };
    let kib = |count: u32| count << 10;
    let wanted = [
        chunk(1, &[(kib(1024), 0), (kib(1024), 3)]),
        chunk(2, &[(kib(64), 1), (kib(448), 0), (kib(64), 1), (kib(1472), 0)]),
        chunk(3, &[(kib(64), 1), (kib(1984), 0)]),
    ];
    let found = status(&mut client)?;
    ensure!(found == wanted, "{found:?}");
    fixture.server.run(&["volume", "delete", "v-s1", "--cascade"])?;
    fixture.server.run(&["snapshot", "delete", "v@s1"])?;
    // The request fails with EINVAL and a reason. The connection goes on.
    let refused = status(&mut client)?;
    let [(0x8001, error)] = &refused[..] else { anyhow::bail!("{refused:?}") };
    let message = String::from_utf8_lossy(&error[6..]);
    ensure!(number(&error[..4]) == 22 && message.contains("does not exist any more"), "{message}");
    let read = client.request(0, 0, 4096)?;
    ensure!(matches!(&read[..], [(1, data)] if data[8..] == [0x33; 4096]), "{read:?}");
    // A snapshot of the same name, which is newer, does not take its place.
    fixture.server.run(&["snapshot", "create", "v@s1"])?;
    ensure!(matches!(status(&mut client)?[..], [(0x8001, _)]));
    let list = [string("v-s3"), vec![0, 0, 0, 1], string("qemu:")].concat();
    let listed = Client::connect(&fixture.portal)?.option(9, &list)?;
    ensure!(listed == [[&[0; 4][..], b"qemu:dirty-bitmap:s2"].concat()], "{listed:?}");
    fixture.server.stop()
}
