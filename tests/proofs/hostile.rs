//! Peers that send requests and never read the answers, and thousands of connections from one source. The server limits
//! their resources, and serves correct clients meanwhile.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::pdu::{FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{NopOut, Opcode, RESERVED_TAG, RawHeader, ScsiCommand, TextRequest};

use crate::client::{Wire, encode};

const MIB: u64 = 1 << 20;
/// A server that reads receives all data in far less time.
const TIMEOUT: Duration = Duration::from_secs(2);
/// More than four such peers can use with the limits below: each 4 MiB of commands and its largest command, 1 MiB of
/// answers, and the unsolicited data of 32 commands.
const GROWTH_LIMIT: u64 = 96 * MIB;
/// Without these limits, the data that each peer sends would exceed the growth limit many times.
const LIMITS: &str = "[limits]\nmemory-per-connection = \"4MiB\"\nmemory = \"8MiB\"\n\
                      commands = 32\nconnections-per-source = 64\nlogins-per-source = 16\n";
const READ_BLOCKS: u16 = 4096;

fn serve(folder: &tempfile::TempDir) -> Result<Serving> {
    let path = folder.path().join("limits.toml");
    fs::write(&path, LIMITS)?;
    let quick = Volume::new("quick", Backing::Ram, 64 * MIB);
    let slow = Volume::new("slow", Backing::Ram, 64 * MIB).option("delay=50ms");
    Serving::start_with(&[quick, slow], &["--config", path.to_str().context("ASCII")?])
}

fn resident_bytes(serving: &Serving) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", serving.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

fn ping() -> Vec<u8> {
    let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
    nop.opcode_byte |= IMMEDIATE;
    nop.initiator_task_tag = 7.into();
    encode(nop, &[0x55; 8192])
}

fn text() -> Vec<u8> {
    let mut request = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = FINAL;
    request.initiator_task_tag = 8.into();
    request.target_transfer_tag = RESERVED_TAG.into();
    encode(request, b"SendTargets=\0")
}

/// Returns commands with these CmdSNs; the server drops those above the window.
fn commands(flags: u8, operation: u8, data: &[u8]) -> Vec<u8> {
    let one = |cmd_sn: u32| {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags |= flags;
        command.initiator_task_tag = (100 + cmd_sn).into();
        command.expected_data_transfer_length = (u32::from(READ_BLOCKS) * 512).into();
        command.cmd_sn = cmd_sn.into();
        command.cdb[0] = operation;
        command.cdb[7..9].copy_from_slice(&READ_BLOCKS.to_be_bytes());
        encode(command, data)
    };
    (1..=64).flat_map(one).collect()
}

#[test]
fn unread_answers_do_not_grow_memory() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = serve(&folder)?;
    let mut sound =
        Wire::login(serving.url("quick"), "iqn.2026-11.proof:sound", [0x80, 0, 0, 0, 1, 0])?;
    sound.settle()?;
    let before = resident_bytes(&serving)?;
    let floods = [
        ("pings", "quick", ping(), Vec::new()),
        ("text", "quick", text(), Vec::new()),
        ("reads", "quick", commands(ScsiCommand::READ, 0x28, &[]), ping()),
        ("slow reads", "slow", commands(ScsiCommand::READ, 0x28, &[]), ping()),
        ("writes", "slow", commands(ScsiCommand::WRITE, 0x2a, &[1; 65536]), ping()),
    ];
    let mut wires = Vec::new();
    for (index, (what, volume, first, then)) in floods.iter().enumerate() {
        let isid = [0x80, 0, 0, 0, 2, index as u8];
        let mut wire = Wire::login(serving.url(volume), "iqn.2026-11.proof:hostile", isid)?;
        let mut sent = wire.send_once(first, TIMEOUT)?;
        let again = if then.is_empty() { first } else { then };
        sent += wire.send_until_stuck(again, TIMEOUT).with_context(|| (*what).to_owned())?;
        let growth = resident_bytes(&serving)?.saturating_sub(before);
        println!("{what}: stuck after {sent} bytes; {} KiB more are resident", growth >> 10);
        ensure!(growth < GROWTH_LIMIT, "{what}: {growth} bytes more are resident");
        let status = sound.test_unit_ready()?.status();
        ensure!(status == Some(0), "{what}: status {status:?} in another session");
        wires.push(wire);
    }
    drop(wires);
    serving.stop()
}

/// Sends zeroes as after an error in an initiator; libiscsi's tests of its reconnection do this.
#[test]
fn rfc7143_7_7_zeroes_after_the_login_end_the_connection() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = serve(&folder)?;
    let url = serving.url("quick");
    for length in [256, 4096] {
        let mut wire = Wire::login(url, "iqn.2026-11.proof:hostile", [0x80, 0, 0, 0, 3, 0])?;
        wire.settle()?;
        wire.send_bytes(&vec![0; length])?;
        // The peer may have closed the connection already.
        let _ = wire.read(0, 8);
        ensure!(wire.next()?.is_none(), "{length} zeroes are taken");
    }
    Wire::login(url, "iqn.2026-11.proof:hostile", [0x80, 0, 0, 0, 3, 0])?.settle()?;
    serving.stop()
}

/// The command fails, and nothing is written.
#[test]
fn rfc7143_11_3_1_a_write_that_is_said_to_read_fails() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = serve(&folder)?;
    let mut wire =
        Wire::login(serving.url("quick"), "iqn.2026-11.proof:hostile", [0x80, 0, 0, 0, 4, 0])?;
    wire.settle()?;
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    for (flags, expected) in [(ScsiCommand::READ, 512), (ScsiCommand::READ, 0), (0, 512)] {
        let tag = wire.command(&write, flags, expected, &[])?;
        let status = wire.end_of(tag)?.status();
        ensure!(status == Some(2), "{flags:#x} {expected}: status {status:?}");
    }
    serving.stop()
}

#[test]
fn connection_flood_is_rejected_and_reported_once() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = serve(&folder)?;
    let url = serving.url("quick");
    let mut sound = Wire::login(url, "iqn.2026-11.proof:sound", [0x80, 0, 0, 0, 1, 0])?;
    sound.settle()?;
    let storm =
        (0..500).map(|_| TcpStream::connect(&url.portal)).collect::<std::io::Result<Vec<_>>>()?;
    let status = sound.test_unit_ready()?.status();
    ensure!(status == Some(0), "status {status:?} in the session that was there");
    drop(storm);
    // A later client gets a connection when the server has seen that the others are closed.
    let again = (0..1000)
        .find_map(|_| Wire::login(url, "iqn.2026-11.proof:later", [0x80, 0, 0, 0, 1, 1]).ok());
    again.context("nobody is let in any more")?.settle()?;
    serving.log_tells(|log| log.matches("limits.logins-per-source").count() == 1)?;
    serving.stop()
}
