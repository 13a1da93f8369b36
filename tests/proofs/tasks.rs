//! Tasks over the wire: their order, and the sessions that learn of their ends.

use std::collections::HashSet;

use anyhow::{Context as _, Result, ensure};
use sarsen_initiator::{Sense, SenseKey};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::{Opcode, ScsiCommand, TaskManagementFunction, TaskManagementResponse};

use crate::client::Wire;

const MIB: u64 = 1 << 20;
const ONE: &str = "iqn.2026-11.proof:one";
const OTHER: &str = "iqn.2026-11.proof:other";
const ISID: [u8; 6] = [0x80, 0, 0, 0, 0, 1];

const ORDERED: u8 = 2;
const ACA: u8 = 4;

const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const ACA_ACTIVE: u8 = 0x30;
const TASK_ABORTED: u8 = 0x40;

/// READ(10) of a block beyond the last one, with CONTROL.
const fn read_nowhere(control: u8) -> [u8; 10] {
    [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, control]
}

/// Starts a volume with two sessions without pending unit attentions, and sets bytes 2 to 5 of its control mode page.
fn two_sessions(control: [u8; 4]) -> Result<(Serving, Wire, Wire)> {
    let volumes = [Volume::new("data", Backing::Ram, MIB)];
    let serving = Serving::start_with(&volumes, &["--cores", "2", "--logout-grace", "0"])?;
    let mut one = Wire::login(serving.url("data"), ONE, ISID)?;
    let mut other = Wire::login(serving.url("data"), OTHER, ISID)?;
    one.settle()?;
    let sense = one.command(&[0x1a, 8, 0x0a, 0, 255, 0], ScsiCommand::READ, 255, &[])?;
    let mut list = one.end_of(sense)?.data;
    ensure!(list.len() == 16, "MODE SENSE: {list:02x?}");
    list[..4].fill(0);
    list[6..10].copy_from_slice(&control);
    let select = one.command(&[0x15, 0x10, 0, 0, 16, 0], ScsiCommand::WRITE, 16, &list)?;
    let selected = one.end_of(select)?;
    ensure!(selected.status() == Some(GOOD), "MODE SELECT: {:?}", selected.sense());
    other.settle()?;
    Ok((serving, one, other))
}

/// Sends a WRITE(10) whose data the target requests and never receives: the task stays open.
fn unfinished_write(wire: &mut Wire) -> Result<u32> {
    let cdb = [0x2a, 0, 0, 0, 0, 8, 0, 0, 8, 0];
    let tag = wire.command(&cdb, ScsiCommand::WRITE, 8 * 512, &[])?;
    let pdu = wire.next()?.context("closed while it wrote")?;
    ensure!((pdu.opcode(), pdu.tag()) == (Opcode::R2t, tag), "{:?} to a write", pdu.opcode());
    Ok(tag)
}

/// Returns the status of the next answer, which must belong to this command.
fn status_of(wire: &mut Wire, tag: u32) -> Result<u8> {
    let pdu = wire.next()?.context("closed before the answer")?;
    ensure!(pdu.tag() == tag, "an answer to {:#x}, not {tag:#x}", pdu.tag());
    pdu.status().with_context(|| format!("{:?} instead of a status", pdu.opcode()))
}

fn run(wire: &mut Wire, cdb: &[u8], attribute: u8) -> Result<u8> {
    let tag = wire.command(cdb, attribute, 0, &[])?;
    status_of(wire, tag)
}

fn manage(wire: &mut Wire, function: TaskManagementFunction) -> Result<()> {
    let tag = wire.manage(function, 0)?;
    let response = wire.managed(tag)?;
    ensure!(response == TaskManagementResponse::FunctionComplete, "{response:?} to {function:?}");
    Ok(())
}

#[test]
fn sam5_8_6_3_an_ordered_write_ends_after_all_before_it_and_before_all_after_it() -> Result<()> {
    const ROUNDS: u32 = 4;
    const AROUND: u32 = 20;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("slow.img");
    let volume = Volume::new("data", Backing::File(path), 16 * MIB).option("cache=directsync");
    let serving = Serving::start_with(&[volume], &["--cores", "2", "--logout-grace", "0"])?;
    let mut wire = Wire::login(serving.url("data"), ONE, ISID)?;
    wire.settle()?;
    // Sets of tags that must end in this order; the order within a set is arbitrary.
    let mut groups: Vec<HashSet<u32>> = Vec::new();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let mut simple = HashSet::new();
        for _ in 0..AROUND {
            simple.insert(send_write(&mut wire, number, 0)?);
            number += 1;
        }
        groups.push(simple);
        groups.push(HashSet::from([send_write(&mut wire, number, ORDERED)?]));
        number += 1;
    }
    for (index, mut group) in groups.into_iter().enumerate() {
        while !group.is_empty() {
            let pdu = wire.next()?.context("closed while it wrote")?;
            ensure!(group.remove(&pdu.tag()), "group {index}: {:#x} came too early", pdu.tag());
            ensure!(pdu.status() == Some(GOOD), "{:?}", pdu.sense());
        }
    }
    serving.stop()
}

/// Sends the write `number`, which has its own block, and returns its task tag.
fn send_write(wire: &mut Wire, number: u32, attribute: u8) -> Result<u32> {
    let mut cdb = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    cdb[2..6].copy_from_slice(&(number * 64).to_be_bytes());
    wire.command(&cdb, ScsiCommand::WRITE | attribute, 512, &[number as u8; 512])
}

#[test]
fn rfc7143_4_2_3_3_clear_task_set_is_reported_once_to_other_nexus() -> Result<()> {
    for (tas, told_by_status) in [(0x40, true), (0x00, false)] {
        let (serving, mut one, mut other) = two_sessions([0, 0x10, 0, tas])?;
        unfinished_write(&mut one)?;
        let lost = unfinished_write(&mut other)?;
        manage(&mut one, TaskManagementFunction::ClearTaskSet)?;
        if told_by_status {
            ensure!(status_of(&mut other, lost)? == TASK_ABORTED);
        } else {
            let tag = other.command(&[0; 6], 0, 0, &[])?;
            let pdu = other.next()?.context("closed before the answer")?;
            ensure!(pdu.tag() == tag, "a task was answered that ends without a word");
            let Sense { key, asc, ascq, .. } = pdu.sense().context("no unit attention")?;
            ensure!((key, asc, ascq) == (SenseKey::UnitAttention, 0x2f, 0), "{:?}", pdu.sense());
        }
        // No session receives more, nor the identity of the requester; the requester's own task ended without a
        // response.
        for wire in [&mut one, &mut other] {
            ensure!(run(wire, &[0; 6], 0)? == GOOD);
        }
        serving.stop()?;
    }
    Ok(())
}

#[test]
fn spc4_7_5_8_with_qerr_01b_a_failure_ends_all_tasks_before_it_is_answered() -> Result<()> {
    let (serving, mut one, mut other) = two_sessions([0, 0x12, 0, 0x40])?;
    unfinished_write(&mut one)?;
    let lost = unfinished_write(&mut other)?;
    let failing = one.command(&read_nowhere(0), ScsiCommand::READ, 512, &[])?;
    ensure!(status_of(&mut one, failing)? == CHECK_CONDITION);
    ensure!(status_of(&mut other, lost)? == TASK_ABORTED);
    // The session's own write ended without a response: its tag is free again, and the session continues.
    for wire in [&mut one, &mut other] {
        ensure!(run(wire, &[0; 6], 0)? == GOOD);
    }
    serving.stop()
}

#[test]
fn sam5_5_9_an_auto_contingent_allegiance_lasts_until_clear_aca() -> Result<()> {
    let (serving, mut one, mut other) = two_sessions([0, 0x10, 0, 0])?;
    let failing = one.command(&read_nowhere(4), ScsiCommand::READ, 512, &[])?;
    ensure!(status_of(&mut one, failing)? == CHECK_CONDITION);
    ensure!(run(&mut one, &[0; 6], 0)? == ACA_ACTIVE);
    ensure!(run(&mut one, &[0; 6], ORDERED)? == ACA_ACTIVE);
    ensure!(run(&mut other, &[0; 6], 0)? == BUSY);
    ensure!(run(&mut other, &[0, 0, 0, 0, 0, 4], 0)? == ACA_ACTIVE);
    ensure!(run(&mut one, &[0; 6], ACA)? == GOOD);
    manage(&mut other, TaskManagementFunction::ClearAca)?;
    ensure!(run(&mut one, &[0; 6], 0)? == ACA_ACTIVE, "another one's function cleared it");
    manage(&mut one, TaskManagementFunction::ClearAca)?;
    for wire in [&mut one, &mut other] {
        ensure!(run(wire, &[0; 6], 0)? == GOOD);
    }
    // The loss of its nexus ends the condition too.
    let failing = one.command(&read_nowhere(4), ScsiCommand::READ, 512, &[])?;
    ensure!(status_of(&mut one, failing)? == CHECK_CONDITION);
    ensure!(run(&mut other, &[0; 6], 0)? == BUSY);
    let mut again = Wire::login(serving.url("data"), ONE, ISID)?;
    again.settle()?;
    ensure!(run(&mut other, &[0; 6], 0)? == GOOD);
    serving.stop()
}
