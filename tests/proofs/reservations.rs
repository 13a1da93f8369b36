//! Persistent reservations for clusters. A registration with APTPL survives a kill of the server and fences the same
//! nexuses as before. A cleared registration stays cleared. The server reports a damaged record, and does not serve the
//! volume without it.

use std::fs;
use std::path::Path;
use std::process::Command as Process;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use sarsen_block::Buffer;
use sarsen_initiator::{Command, Completion, SessionOptions, TransferRequest, Unit};
use sarsen_proof::{Backing, Serving, Volume, process, program};
use sarsen_wire::iscsi::Isid;

use crate::client::{self, LIMIT};

const MIB: u64 = 1 << 20;
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const RESERVATION_CONFLICT: u8 = 0x18;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const CLEAR: u8 = 3;
const PREEMPT: u8 = 4;
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 5;
const APTPL: u8 = 1;

/// Exit code for a general failure of every verb.
const FAILED: i32 = 1;

fn volume(folder: &Path) -> Volume {
    Volume::new("data", Backing::File(folder.join("disk")), 4 * MIB)
}

/// Opens a session of a cluster node, which has the same initiator port in each of its sessions.
async fn node(serving: &Serving, number: u8) -> Result<Unit> {
    let options = SessionOptions {
        initiator_name: format!("iqn.2026-01.example:node{number}"),
        isid: Isid([0x80, 0, 0, 0, 0, number]),
        ..SessionOptions::default()
    };
    let unit = Unit::connect(&client::url(serving, "data")?, &options).await;
    unit.with_context(|| serving.log())
}

/// Executes a command, and repeats it after each unit attention.
async fn ask(unit: &Unit, cdb: &[u8], data: Option<&[u8]>) -> Result<Completion> {
    loop {
        let transfer = match data {
            Some(data) => TransferRequest::Write(Buffer::copy_of(data)),
            None => TransferRequest::Read(4096),
        };
        let completion = unit.execute(Command::new(cdb, transfer)).await?;
        if completion.status != CHECK_CONDITION {
            return Ok(completion);
        }
        let sense = sarsen_initiator::Sense::parse(&completion.sense).context("sense data")?;
        ensure!(sense.key == sarsen_initiator::SenseKey::UnitAttention, "{cdb:x?}: {sense:?}");
    }
}

async fn reserve_out(unit: &Unit, action: u8, kind: u8, keys: (u64, u64), flags: u8) -> Result<u8> {
    let cdb = [0x5f, action, kind, 0, 0, 0, 0, 0, 24, 0];
    let list =
        [&keys.0.to_be_bytes()[..], &keys.1.to_be_bytes(), &[0, 0, 0, 0, flags, 0, 0, 0]].concat();
    Ok(ask(unit, &cdb, Some(&list)).await?.status)
}

async fn reserve_in(unit: &Unit, action: u8) -> Result<Vec<u8>> {
    let completion = ask(unit, &[0x5e, action, 0, 0, 0, 0, 0, 0x10, 0, 0], None).await?;
    ensure!(completion.status == GOOD, "PERSISTENT RESERVE IN ended with {}", completion.status);
    Ok(completion.data.context("data")?.to_vec())
}

async fn keys(unit: &Unit) -> Result<Vec<u64>> {
    let data = reserve_in(unit, 0).await?;
    let keys = data.get(8..).context("a header")?.chunks_exact(8);
    Ok(keys.filter_map(|key| Some(u64::from_be_bytes(key.try_into().ok()?))).collect())
}

/// Returns the holder's key and the type.
async fn reservation(unit: &Unit) -> Result<Option<(u64, u8)>> {
    let data = reserve_in(unit, 1).await?;
    Ok(match data.get(8..24) {
        Some(descriptor) => {
            let (key, rest) = descriptor.split_first_chunk().context("a key")?;
            Some((u64::from_be_bytes(*key), rest[5]))
        }
        None => None,
    })
}

async fn write(unit: &Unit) -> Result<u8> {
    let cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    Ok(ask(unit, &cdb, Some(&[7; 512])).await?.status)
}

/// Kills the server and starts another on the same volume.
fn killed_and_started(serving: Serving, folder: &Path) -> Result<Serving> {
    client::signal(&serving, Signal::KILL)?;
    drop(serving);
    Serving::start(&[volume(folder)])
}

#[test]
fn spc4_5_12_5_1_kill_9_neither_forgets_a_reservation_nor_brings_one_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = Serving::start(&[volume(folder.path())])?;
    client::run(async {
        let (one, two) = (node(&serving, 1).await?, node(&serving, 2).await?);
        ensure!(reserve_out(&one, REGISTER, 0, (0, 0x11), APTPL).await? == GOOD);
        ensure!(reserve_out(&two, REGISTER, 0, (0, 0x22), APTPL).await? == GOOD);
        let kind = WRITE_EXCLUSIVE_REGISTRANTS;
        ensure!(reserve_out(&one, RESERVE, kind, (0x11, 0), 0).await? == GOOD);
        Ok(())
    })?;

    let serving = killed_and_started(serving, folder.path())?;
    client::run(async {
        let (one, two) = (node(&serving, 1).await?, node(&serving, 2).await?);
        let stranger = node(&serving, 3).await?;
        ensure!(keys(&stranger).await? == [0x11, 0x22]);
        let held = reservation(&stranger).await?;
        ensure!(held == Some((0x11, WRITE_EXCLUSIVE_REGISTRANTS)), "{held:?}");
        ensure!(write(&one).await? == GOOD && write(&two).await? == GOOD);
        ensure!(write(&stranger).await? == RESERVATION_CONFLICT);
        let kind = WRITE_EXCLUSIVE_REGISTRANTS;
        ensure!(reserve_out(&two, PREEMPT, kind, (0x22, 0x11), 0).await? == GOOD);
        ensure!(write(&one).await? == RESERVATION_CONFLICT, "a preempted node is fenced");
        Ok(())
    })?;

    let serving = killed_and_started(serving, folder.path())?;
    client::run(async {
        let (one, two) = (node(&serving, 1).await?, node(&serving, 2).await?);
        ensure!(keys(&one).await? == [0x22]);
        ensure!(write(&one).await? == RESERVATION_CONFLICT, "and still is after a restart");
        ensure!(reserve_out(&two, CLEAR, 0, (0x22, 0), 0).await? == GOOD);
        Ok(())
    })?;

    let serving = killed_and_started(serving, folder.path())?;
    client::run(async {
        let one = node(&serving, 1).await?;
        ensure!(keys(&one).await?.is_empty() && reservation(&one).await?.is_none());
        ensure!(write(&one).await? == GOOD);
        Ok(())
    })?;
    serving.stop()
}

#[test]
fn damaged_reservation_record_is_reported_and_unit_not_served() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = Serving::start(&[volume(folder.path())])?;
    client::run(async {
        let one = node(&serving, 1).await?;
        ensure!(reserve_out(&one, REGISTER, 0, (0, 0x11), APTPL).await? == GOOD);
        Ok(())
    })?;
    serving.stop()?;

    let record = folder.path().join("disk.state").join("reservations");
    let whole = fs::read(&record).context("the record of the reservations")?;
    let mut damaged = whole.clone();
    *damaged.last_mut().context("a byte")? ^= 0x10;
    fs::write(&record, damaged)?;
    let mut command = Process::new(program::path()?);
    let disk = format!("data=file:{}", folder.path().join("disk").display());
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--volume", &disk]);
    let finished = process::finish(&mut command, LIMIT)?;
    let said = finished.output;
    let code = finished.status.and_then(|status| status.code());
    ensure!(code == Some(FAILED), "it ended with {code:?}:\n{said}");
    for part in [record.to_str().context("ASCII")?, "damaged", "remove it", "volume data"] {
        ensure!(said.contains(part), "it does not say {part:?}, but:\n{said}");
    }

    fs::write(&record, whole)?;
    let serving = Serving::start(&[volume(folder.path())])?;
    client::run(async {
        ensure!(keys(&node(&serving, 2).await?).await? == [0x11]);
        Ok(())
    })?;
    serving.stop()
}
