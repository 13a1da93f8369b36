//! Effects of one session on another: resets, aborts, reinstatement.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{Sense, SenseKey, SessionOptions, Unit};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::{
    AsyncEvent, Isid, Opcode, TaskManagementFunction, TaskManagementResponse,
};

use crate::client::{self, Wire};

const MIB: u64 = 1 << 20;
const ONE: &str = "iqn.2026-11.proof:one";
const OTHER: &str = "iqn.2026-11.proof:other";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];
/// This number fits into the command window.
const WRITES: u32 = 100;
const WRITE_BLOCKS: u32 = 8;

/// Starts a server without a time for logouts, because no session here logs out.
fn serve(volumes: &[Volume]) -> Result<Serving> {
    Serving::start_with(volumes, &["--cores", "2", "--logout-grace", "0"])
}

/// Waits for a unit attention of this kind, then GOOD.
fn is_reported(wire: &mut Wire, ascq: u8) -> Result<()> {
    let reported = wire.test_unit_ready()?.sense();
    let matches = reported.is_some_and(|Sense { key, asc, ascq: code, .. }| {
        (key, asc, code) == (SenseKey::UnitAttention, 0x29, ascq)
    });
    ensure!(matches, "told {reported:?}, not 29h/{ascq:02X}h");
    let status = wire.test_unit_ready()?.status();
    ensure!(status == Some(0), "status {status:?} after the unit attention");
    Ok(())
}

fn blocks(wire: &mut Wire, lba: u32, count: u16) -> Result<Vec<u8>> {
    let tag = wire.read(lba, count)?;
    let mut bytes = Vec::new();
    loop {
        let pdu = wire.next()?.context("closed while it read")?;
        if pdu.tag() == tag {
            bytes.extend_from_slice(&pdu.data);
            if pdu.status().is_some() {
                ensure!(pdu.status() == Some(0), "a read ended with {:?}", pdu.sense());
                return Ok(bytes);
            }
        }
    }
}

/// Returns a file volume with direct and durable writes, which are slow.
fn slow_volume(folder: &tempfile::TempDir, engine: &str) -> Volume {
    let path = folder.path().join(format!("{engine}.img"));
    Volume::new("data", Backing::File(path), 16 * MIB).option("cache=directsync")
}

/// Resets the unit during the other session's writes. Returns the number of writes that the reset ended.
fn reset_under_writes(one: &mut Wire, other: &mut Wire) -> Result<usize> {
    let mut open = HashSet::new();
    for number in 0..WRITES {
        let data = vec![number as u8 + 1; WRITE_BLOCKS as usize * 512];
        open.insert(other.write(number * WRITE_BLOCKS, &data, false)?);
    }
    // When the target answers, it has received all writes.
    other.ping()?;
    let reset = one.manage(TaskManagementFunction::LogicalUnitReset, 0)?;
    let response = one.managed(reset)?;
    ensure!(response == TaskManagementResponse::FunctionComplete, "{response:?}");
    is_reported(one, 0x03).context("the session that asked for the reset")?;

    // After the response no aborted command writes any more.
    let count = (WRITES * WRITE_BLOCKS) as u16;
    let after = blocks(one, 0, count)?;
    let attention = other.command(&[0; 6], 0, 0, &[])?;
    let reported = loop {
        let pdu = other.next()?.context("the other session was closed")?;
        if pdu.tag() == attention {
            break pdu.sense().context("no unit attention")?;
        }
        ensure!(open.remove(&pdu.tag()), "an answer to nothing");
        ensure!(pdu.status() == Some(0), "a write ended with {:?}", pdu.sense());
    };
    ensure!((reported.key, reported.asc) == (SenseKey::UnitAttention, 0x29), "{reported}");
    let mine = other.write(0, &[0xee; 512], true)?;
    loop {
        let pdu = other.next()?.context("the other session was closed")?;
        ensure!(!open.contains(&pdu.tag()), "an aborted write was answered");
        if pdu.tag() == mine {
            ensure!(pdu.status() == Some(0), "{:?}", pdu.sense());
            break;
        }
    }
    let later = blocks(one, 0, count)?;
    ensure!(later[..512] == [0xee; 512], "the write after the reset");
    ensure!(later[512..] == after[512..], "an aborted write came after the reset's answer");
    Ok(open.len())
}

#[test]
fn sam5_6_3_3_a_lun_reset_ends_the_commands_of_all_sessions_and_all_go_on() -> Result<()> {
    const RESETS: usize = 20;
    let folder = tempfile::tempdir()?;
    for engine in ["auto", "pool"] {
        let arguments = ["--io-engine", engine, "--cores", "2", "--logout-grace", "0"];
        let serving = Serving::start_with(&[slow_volume(&folder, engine)], &arguments)?;
        let mut one = Wire::login(serving.url("data"), ONE, ISID)?;
        let mut other = Wire::login(serving.url("data"), OTHER, ISID)?;
        one.settle()?;
        other.settle()?;
        let mut aborted = 0;
        for _ in 0..RESETS {
            aborted += reset_under_writes(&mut one, &mut other)?;
        }
        println!("{engine}: {RESETS} resets ended {aborted} writes of the other session");
        ensure!(aborted > 0, "no reset met a write: nothing was shown");
        serving.stop()?;
    }
    Ok(())
}

#[test]
fn rfc7143_11_6_1_abort_of_missing_task_is_reported() -> Result<()> {
    let serving = serve(&[Volume::new("data", Backing::Ram, MIB)])?;
    let mut wire = Wire::login(serving.url("data"), ONE, ISID)?;
    wire.settle()?;
    let done = wire.write(0, &[1; 512], false)?;
    wire.end_of(done)?;
    for (function, referenced, expected) in [
        (TaskManagementFunction::AbortTask, 0xdead, TaskManagementResponse::TaskDoesNotExist),
        (TaskManagementFunction::AbortTask, done, TaskManagementResponse::TaskDoesNotExist),
        (TaskManagementFunction::AbortTaskSet, 0, TaskManagementResponse::FunctionComplete),
        (TaskManagementFunction::ClearTaskSet, 0, TaskManagementResponse::FunctionComplete),
        (TaskManagementFunction::TaskReassign, done, TaskManagementResponse::ReassignNotSupported),
    ] {
        let tag = wire.manage(function, referenced)?;
        let response = wire.managed(tag)?;
        ensure!(response == expected, "{response:?} to {function:?} of {referenced:#x}");
    }
    let after = wire.test_unit_ready()?;
    ensure!(after.status() == Some(0), "{:?} afterwards", after.sense());
    serving.stop()
}

#[test]
fn rfc7143_6_3_5_a_second_login_of_the_same_port_takes_the_first_ones_place() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let serving = serve(&[slow_volume(&folder, "auto")])?;
    let url = serving.url("data");
    for turn in 0..10 {
        let mut old = Wire::login(url, ONE, ISID)?;
        old.settle()?;
        for number in 0..WRITES {
            old.write(number * WRITE_BLOCKS, &[turn; WRITE_BLOCKS as usize * 512], false)?;
        }
        let mut new = Wire::login(url, ONE, ISID)?;
        // The old session's commands end before the new session opens, so that none of them overwrites the new
        // session's data.
        new.settle()?;
        let fresh = [0x80 | turn; 512];
        let tags = (0..WRITES).map(|number| new.write(number * WRITE_BLOCKS, &fresh, false));
        let tags = tags.collect::<Result<Vec<_>>>()?;
        for tag in tags {
            new.next()?.with_context(|| format!("closed before the answer to {tag}"))?;
        }
        let mut dropped = false;
        while let Some(pdu) = old.next()? {
            dropped |= pdu.asynchronous_event() == Some(AsyncEvent::SessionDrop);
        }
        ensure!(dropped, "the old session was closed without a word");
        for number in 0..WRITES {
            let read = blocks(&mut new, number * WRITE_BLOCKS, 1)?;
            ensure!(read == fresh, "turn {turn}: block {number} is the old session's");
        }
    }
    serving.stop()
}

#[test]
fn another_isid_or_another_name_is_another_session() -> Result<()> {
    let serving = serve(&[Volume::new("data", Backing::Ram, MIB)])?;
    let url = client::url(&serving, "data")?;
    client::run(async {
        let first = Unit::connect(&url, &port_options(ONE, 1)).await?;
        let second = Unit::connect(&url, &port_options(ONE, 2)).await?;
        let third = Unit::connect(&url, &port_options(OTHER, 1)).await?;
        for unit in [&first, &second, &third] {
            unit.session().ping().await?;
        }
        let again = Unit::connect(&url, &port_options(ONE, 1)).await?;
        let error = first.session().ping().await.expect_err("the first session was to end");
        ensure!(error.is_connection_lost(), "{error}");
        for unit in [&second, &third, &again] {
            unit.session().ping().await?;
            unit.test_unit_ready().await?;
        }
        Ok(())
    })
    .with_context(|| serving.log())?;
    serving.stop()
}

/// Returns the options of an initiator port.
fn port_options(initiator_name: &str, last_isid_byte: u8) -> SessionOptions {
    SessionOptions {
        initiator_name: initiator_name.into(),
        isid: Isid([0x80, 0, 0, 0, 0, last_isid_byte]),
        ..SessionOptions::default()
    }
}

#[test]
fn rfc7143_11_5_1_a_cold_reset_ends_all_sessions_of_the_target_alone() -> Result<()> {
    let volumes = [Volume::new("data", Backing::Ram, MIB), Volume::new("apart", Backing::Ram, MIB)];
    let serving = serve(&volumes)?;
    let url = serving.url("data");
    let mut one = Wire::login(url, ONE, ISID)?;
    let mut other = Wire::login(url, OTHER, ISID)?;
    let mut apart = Wire::login(serving.url("apart"), OTHER, ISID)?;
    for wire in [&mut one, &mut other, &mut apart] {
        wire.settle()?;
    }
    let tag = one.manage(TaskManagementFunction::TargetColdReset, 0)?;
    let response = one.managed(tag)?;
    ensure!(response == TaskManagementResponse::FunctionComplete, "{response:?}");
    for (who, wire) in [("who asked", &mut one), ("the other", &mut other)] {
        let mut events = Vec::new();
        while let Some(pdu) = wire.next()? {
            ensure!(pdu.opcode() == Opcode::AsyncMessage, "{who}: {:?}", pdu.opcode());
            events.extend(pdu.asynchronous_event());
        }
        ensure!(events == [AsyncEvent::SessionDrop], "{who} was told {events:?}");
        ensure!(wire.test_unit_ready().is_err(), "{who}: a command was answered");
    }
    let status = apart.test_unit_ready()?.status();
    ensure!(status == Some(0), "another target's session: {status:?}");
    let mut again = Wire::login(url, ONE, ISID)?;
    let sense = again.test_unit_ready()?.sense().context("no unit attention after the reset")?;
    ensure!((sense.key, sense.asc) == (SenseKey::UnitAttention, 0x29), "{sense}");
    again.settle()?;
    serving.stop()
}

#[test]
fn sam5_6_3_4_warm_reset_is_reported_to_every_session() -> Result<()> {
    let serving = serve(&[Volume::new("data", Backing::Ram, MIB)])?;
    let url = serving.url("data");
    let mut one = Wire::login(url, ONE, ISID)?;
    let mut other = Wire::login(url, OTHER, ISID)?;
    one.settle()?;
    other.settle()?;
    let tag = one.manage(TaskManagementFunction::TargetWarmReset, 0)?;
    let response = one.managed(tag)?;
    ensure!(response == TaskManagementResponse::FunctionComplete, "{response:?}");
    for wire in [&mut one, &mut other] {
        let sense = wire.test_unit_ready()?.sense().context("no unit attention")?;
        ensure!((sense.key, sense.asc) == (SenseKey::UnitAttention, 0x29), "{sense}");
        let status = wire.test_unit_ready()?.status();
        ensure!(status == Some(0), "{status:?} after the unit attention");
    }
    serving.stop()
}
