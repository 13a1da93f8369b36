//! What can be seen of a running server: what commands do, by volume and session.

mod client;

use anyhow::{Context as _, Result, ensure};
use sarsen_node::control::Client;
use sarsen_node::control::schema::statistics::Statistics;
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::ScsiCommand;
use tempfile::TempDir;

use client::{Wire, run};

const MIB: u64 = 1 << 20;
const NAME: &str = "iqn.2026-11.proof:host";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
/// READ(10) of a block beyond the last one.
const READ_NOWHERE: [u8; 10] = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, 0];

/// A server with a RAM volume, `data`, and one that nobody uses.
struct Seen {
    serving: Serving,
    client: Client,
    _folder: TempDir,
}

impl Seen {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("control.sock");
        let volumes = ["data", "idle"].map(|name| Volume::new(name, Backing::Ram, 8 * MIB));
        let path = socket.to_str().context("a path")?;
        let serving = Serving::start_with(&volumes, &["--control", path])?;
        Ok(Self { serving, client: Client::new(&socket), _folder: folder })
    }

    fn login(&self) -> Result<Wire> {
        let wire = Wire::login(self.serving.url("data"), NAME, ISID);
        let mut wire = wire.with_context(|| self.serving.log())?;
        wire.settle()?;
        Ok(wire)
    }

    fn statistics(&self) -> Result<Statistics> {
        run(async { Ok(self.client.get("/statistics").await?) })
    }

    fn metrics(&self) -> Result<String> {
        run(async { Ok(self.client.get_text("/metrics").await?) })
    }
}

#[test]
fn what_commands_do_is_seen_by_volume_and_session() -> Result<()> {
    let server = Seen::start()?;
    let mut wire = server.login()?;
    for lba in 0..3 {
        let write = wire.write(lba * 8, &[7; 4096], false)?;
        wire.end_of(write)?;
    }
    for lba in 0..5 {
        let read = wire.read(lba, 2)?;
        wire.end_of(read)?;
    }
    let nowhere = wire.command(&READ_NOWHERE, ScsiCommand::READ, 512, &[])?;
    wire.end_of(nowhere)?;
    let statistics = server.statistics()?;
    let [volume] = &statistics.volumes[..] else {
        anyhow::bail!("{:?} were used", statistics.volumes)
    };
    assert_eq!((volume.volume.as_str(), volume.queue_depth), ("data", 0));
    assert_eq!(volume.errors["illegal_request"], 1);
    let of = |name: &str| {
        let found = volume.operations.iter().find(|one| one.operation == name);
        found.with_context(|| format!("no {name} in {volume:?}"))
    };
    let (read, write) = (of("read")?, of("write")?);
    assert_eq!((read.count, read.bytes), (6, 5 * 1024));
    assert_eq!((write.count, write.bytes), (3, 3 * 4096));
    assert_eq!(read.buckets.iter().map(|(_, count)| count).sum::<u64>(), 6);
    let bounds = &statistics.bucket_bounds_nanoseconds;
    ensure!(read.buckets.iter().all(|(index, _)| *index <= bounds.len()), "{read:?}");
    ensure!(bounds.is_sorted() && read.latency.p99_nanoseconds >= read.latency.p50_nanoseconds);
    let [session] = &statistics.sessions[..] else { anyhow::bail!("{:?}", statistics.sessions) };
    assert_eq!((session.initiator.as_str(), session.volumes[0].volume.as_str()), (NAME, "data"));
    let of_initiator = format!("{{volume=\"data\",operation=\"write\",initiator=\"{NAME}\"}} 3");
    let line = format!("sarsen_command_duration_seconds_count{of_initiator}");
    let text = server.metrics()?;
    ensure!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    ensure!(!text.contains("idle"), "nobody used it:\n{text}");
    // The initiator is forgotten with its session; what it did to the volume is not.
    wire.logout()?;
    while wire.next()?.is_some() {}
    let text = loop {
        let text = server.metrics()?;
        if !text.contains(NAME) {
            break text;
        }
    };
    let line = "sarsen_volume_operations_total{volume=\"data\",operation=\"write\"} 3";
    ensure!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    server.serving.stop()
}
