//! Little traffic requests much memory. The server's memory stays within `limits.memory`, and correct clients are
//! served meanwhile. The memory returns to the system after the peers have disconnected.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_io::time::now;
use sarsen_node::control::Client;
use sarsen_proof::qemu::{HeaderDigest, patterns};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{DataOut, Opcode, R2t, RawHeader, ScsiCommand};

use crate::client::{Wire, encode, run};

const MIB: u64 = 1 << 20;
/// Maximum transfer length of one command.
const LARGE: u32 = 16 << 20;
/// Resident memory that is permitted in addition to the limit.
const BESIDE: u64 = 64 * MIB;
/// Maximum time until the memory has returned to the system.
const RETURNED: Duration = Duration::from_secs(10);
/// Growth that may remain: more heaps and threads than at the start.
const REMAINS: u64 = 24 * MIB;

const NAME: &str = "iqn.2026-11.proof:memory";

/// The memory of a process, and the process's own metric of it.
#[derive(Clone, Copy, Debug)]
struct Memory {
    resident: u64,
    charged: u64,
}

struct Server {
    serving: Serving,
    client: Client,
}

impl Server {
    fn start(folder: &tempfile::TempDir, limit: Option<u64>) -> Result<Self> {
        let path = folder.path().join("limits.toml");
        let limits = limit.map(|limit| format!("[limits]\nmemory = \"{}MiB\"\n", limit / MIB));
        fs::write(&path, limits.unwrap_or_default())?;
        let null = Volume::new("null", Backing::Null, 1024 * MIB);
        let disk = Volume::new("disk", Backing::Ram, 64 * MIB);
        let socket = folder.path().join("control.sock");
        let [config, control] = [&path, &socket].map(|path| path.to_str().context("ASCII"));
        let arguments = ["--config", config?, "--control", control?, "--logout-grace", "0"];
        let serving = Serving::start_with(&[null, disk], &arguments)?;
        Ok(Self { serving, client: Client::new(&socket) })
    }

    fn memory(&self) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.serving.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
        let text = run(async { Ok(self.client.get_text("/metrics").await?) })?;
        let charged =
            text.lines().find_map(|line| line.strip_prefix("sarsen_command_memory_bytes "));
        let charged = charged.context("no sarsen_command_memory_bytes")?.parse()?;
        Ok(Memory { resident: kib << 10, charged })
    }

    fn wire(&self, number: u8) -> Result<Wire> {
        let mut wire = Wire::login(self.serving.url("null"), NAME, [0x80, 0, 0, 0, 0, number])?;
        wire.settle()?;
        Ok(wire)
    }
}

/// Returns the CDB of WRITE(16).
fn write_16() -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x8a;
    cdb[10..14].copy_from_slice(&(LARGE / 512).to_be_bytes());
    cdb
}

/// Executes one write of 16 MiB from its first byte to its status.
fn finish_write(wire: &mut Wire) -> Result<()> {
    let tag = wire.command(&write_16(), ScsiCommand::WRITE, LARGE, &[1; 512])?;
    loop {
        let pdu = wire.next()?.context("the connection was closed")?;
        if pdu.tag() == tag && pdu.status().is_some() {
            ensure!(pdu.status() == Some(0), "status {:?}", pdu.status());
            return Ok(());
        }
        ensure!(pdu.opcode() == Opcode::R2t, "{:?}", pdu.opcode());
        let r2t = *R2t::view(&pdu.header);
        let start = r2t.buffer_offset.get();
        let data = vec![2; r2t.desired_data_transfer_length.get() as usize];
        // Every target accepts these settings.
        for (sn, part) in data.chunks(8192).enumerate() {
            let offset = start + sn as u32 * 8192;
            let mut header = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
            header.flags = if (sn + 1) * 8192 >= data.len() { FINAL } else { 0 };
            header.initiator_task_tag = tag.into();
            header.target_transfer_tag = r2t.target_transfer_tag;
            header.data_sn = (sn as u32).into();
            header.buffer_offset = offset.into();
            wire.send_bytes(&encode(header, part))?;
        }
    }
}

fn show(what: &str, Memory { resident, charged }: Memory) {
    println!("{what}: {} MiB resident, {} MiB charged", resident / MIB, charged / MIB);
}

/// Opens sessions that each begin this many writes of 16 MiB with 512 bytes of immediate data, and end none.
fn attack(limit: Option<u64>, sessions: u8, commands: u32) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server::start(&folder, limit)?;
    let limit = limit.unwrap_or(1024 * MIB);
    let start = server.memory()?;
    show("at the start", start);
    finish_write(&mut server.wire(0)?)?;
    show("after one write", server.memory()?);

    let mut wires = Vec::new();
    let mut most = Memory { resident: 0, charged: 0 };
    for number in 1..=sessions {
        let mut wire = server.wire(number)?;
        for _ in 0..commands {
            wire.command(&write_16(), ScsiCommand::WRITE, LARGE, &[1; 512])?;
        }
        // When the server answers, it has received everything before.
        wire.ping()?;
        wires.push(wire);
        let memory = server.memory()?;
        most.resident = most.resident.max(memory.resident);
        most.charged = most.charged.max(memory.charged);
        ensure!(
            memory.resident <= limit + BESIDE,
            "session {number}: {} MiB are resident, of {} MiB and {} MiB",
            memory.resident / MIB,
            limit / MIB,
            BESIDE / MIB
        );
        ensure!(
            memory.resident <= start.resident + memory.charged + BESIDE,
            "session {number}: {} MiB are resident, and {} MiB are charged",
            memory.resident / MIB,
            memory.charged / MIB
        );
        ensure!(
            memory.charged <= limit + u64::from(LARGE) + MIB,
            "session {number}: {} MiB are charged",
            memory.charged / MIB
        );
    }
    show("at its height", most);

    // A correct initiator runs meanwhile.
    let commands = ["write -P 0x5a 0 1M", "read -P 0x5a 0 1M", "write -P 3 2M 64k", "flush"];
    patterns(server.serving.url("disk"), HeaderDigest::Off, &commands)?;

    drop(wires);
    let deadline = now() + RETURNED;
    let after = loop {
        let memory = server.memory()?;
        if memory.resident <= start.resident + REMAINS && memory.charged == 0 {
            break memory;
        }
        ensure!(now() < deadline, "10 s later {memory:?}, where {start:?} was at the start");
        std::thread::yield_now();
    };
    show("after all have gone", after);
    server.serving.stop()
}

#[test]
fn writes_that_are_never_ended_take_64_mib_where_that_is_the_limit() -> Result<()> {
    attack(Some(64 * MIB), 10, 126)
}

#[test]
fn writes_that_are_never_ended_take_256_mib_where_that_is_the_limit() -> Result<()> {
    attack(Some(256 * MIB), 10, 126)
}

#[test]
fn unfinished_writes_stay_within_default_memory_limits() -> Result<()> {
    attack(None, 40, 120)
}
