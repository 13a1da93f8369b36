//! The steps of a session of the project's own initiator, and its behaviour after the loss of the connection.

use std::cell::RefCell;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_block::{Buffer, Durability, Extent, Store as _};
use sarsen_initiator::transfer::{self, Disk, Sink, Source};
use sarsen_initiator::{
    Command, IscsiStore, Portal, SessionError, SessionOptions, TransferRequest, Unit, phases,
};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{
    DataIn, LoginResponse, Opcode, RESERVED_TAG, RawHeader, ScsiCommand, ScsiResponse,
    TaskManagementFunction, TaskManagementRequest, TaskManagementResponsePdu, U24,
};
use sarsen_wire::scsi::opcode;
use sarsen_wire::scsi::report::Capacity16;

use crate::client::{LIMIT, run, url};

const MIB: u64 = 1 << 20;

#[test]
fn login_steps_are_shown_with_negotiated_parameters() -> Result<()> {
    let serving = Serving::start(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    let url = url(&serving, "disk")?;
    let options = SessionOptions::default();
    let normal = run(async { Ok(phases::normal(&url, &options).await?) })?;
    let portal: Portal = serving.url("disk").portal.parse()?;
    let discovery = run(async { Ok(phases::discovery(&portal, &options).await?) })?;
    let login = ["connect", "security", "operational"];
    let found_out =
        ["REPORT LUNS", "INQUIRY", "TEST UNIT READY", "READ CAPACITY", "READ", "logout"];
    assert_eq!(step_names(&normal), [&login[..], &found_out].concat());
    assert_eq!(step_names(&discovery), [&login[..], &["SendTargets", "logout"]].concat());
    for phases in [&normal, &discovery] {
        // Each step includes a round trip to the target, which takes some time on any machine.
        ensure!(phases.steps.iter().all(|step| !step.duration.is_zero()), "{phases:?}");
        assert_eq!(phases.negotiated["HeaderDigest"], "None");
        phases.negotiated["MaxRecvDataSegmentLength (the peer's)"].parse::<u32>()?;
    }
    let targets = discovery.targets.iter();
    targets.map(|target| &target.name).find(|name| **name == url.target).context("the target")?;
    serving.stop()
}

fn step_names(phases: &phases::Phases) -> Vec<&str> {
    phases.steps.iter().map(|step| step.name).collect()
}

/// Copies a file to a volume whose server is killed during the copy and started again at the same port. Afterwards the
/// volume must contain the file. With `lost` the image is deleted in between.
fn prove_copy_survives(volume: &Volume, lost: Option<&Path>) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sample");
    let length = volume.byte_count as usize;
    let sample: Vec<u8> = (0..length).map(|at| (at * 31 + at / 509) as u8 | 1).collect();
    fs::write(&path, &sample)?;
    let serving = Serving::start_with(std::slice::from_ref(volume), &[])?;
    let url = url(&serving, &volume.name)?;
    let portal = serving.url(&volume.name).portal.clone();
    let running = RefCell::new((Some(serving), None));
    let restart = |done: u64| {
        let (first, second) = &mut *running.borrow_mut();
        if done < volume.byte_count / 2 {
            return;
        }
        // Dropping the server kills it.
        if first.take().is_some() {
            lost.map_or(Ok(()), fs::remove_file).expect("the image is there");
            *second =
                Some(Serving::start_with(std::slice::from_ref(volume), &["--listen", &portal]));
        }
    };
    let options = SessionOptions { reconnect_limit: Some(LIMIT), ..SessionOptions::default() };
    run(async {
        let disk = Disk::open(&url, &options).await?;
        let source = Source::open(&path)?;
        transfer::copy(&source, 0, None, &Sink::Disk(&disk), 0, &restart).await?;
        let (there, here) = (Source::Disk(&disk), Source::open(&path)?);
        let found = transfer::compare(&there, &here, volume.byte_count, &|_| {}).await?;
        ensure!(found.first_difference.is_none(), "{found:?}");
        Ok(disk.close().await?)
    })?;
    let (_, second) = running.into_inner();
    second.context("the server was not killed")??.stop()
}

#[test]
fn a_copy_survives_that_its_target_is_killed_and_started_again() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("image"));
    // More data than the client buffers before a flush.
    prove_copy_survives(&Volume::new("disk", backing, 160 * MIB), None)
}

#[test]
fn unflushed_writes_are_repeated_after_reconnect() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let image = folder.path().join("image");
    // An empty image in its place simulates a cache that lost its power before the first flush.
    let volume = Volume::new("disk", Backing::File(image.clone()), 48 * MIB);
    prove_copy_survives(&volume, Some(&image))
}

#[test]
fn repeated_writes_keep_later_acknowledged_data() -> Result<()> {
    const LENGTH: usize = 512;
    let folder = tempfile::tempdir()?;
    let volumes = [Volume::new("disk", Backing::File(folder.path().join("image")), MIB)];
    let serving = Serving::start_with(&volumes, &[])?;
    let (url, portal) = (url(&serving, "disk")?, serving.url("disk").portal.clone());
    let block = |byte| Buffer::copy_of(&[byte; LENGTH]);
    let options = SessionOptions { reconnect_limit: Some(LIMIT), ..SessionOptions::default() };
    run(async {
        let store = IscsiStore::connect(&url, &options).await?;
        let write = async |lba, byte, durability| {
            store.write(Extent::new(lba, 1), block(byte).into(), durability).wait().await
        };
        for lba in 0..3 {
            write(lba, 1, Durability::Volatile).await?;
        }
        write(1, 2, Durability::Durable).await?;
        let mut cdb = [0; 16];
        cdb[0] = opcode::COMPARE_AND_WRITE;
        cdb[9] = 2;
        cdb[13] = 1;
        let both = Buffer::copy_of(&[[1; LENGTH], [3; LENGTH]].concat());
        store.command(Command::new(&cdb, TransferRequest::Write(both))).await?;
        // The server is killed, and started again with its volumes.
        drop(serving);
        let again = Serving::start_with(&volumes, &["--listen", &portal])?;
        let data = store.read(Extent::new(0, 3)).wait().await?;
        let mut found = [0; 3 * LENGTH];
        data.copy_out(0, &mut found);
        let found: Vec<u8> = found.chunks(LENGTH).map(|block| block[0]).collect();
        assert_eq!(found, [1, 2, 3]);
        store.logout().await?;
        again.stop()
    })
}

/// Returns the next PDU's header and skips its data. `None` when the connection is closed.
fn header(stream: &mut TcpStream) -> Result<Option<RawHeader>> {
    let mut header = RawHeader::ZERO;
    if stream.read_exact(&mut header.0).is_err() {
        return Ok(None);
    }
    let length = header.basic().data_segment_length.value() as usize;
    let mut data = vec![0; length.next_multiple_of(4)];
    stream.read_exact(&mut data)?;
    Ok(Some(header))
}

/// Returns a successful login response without keys.
fn grant(request: &RawHeader) -> RawHeader {
    let mut response = LoginResponse::from(RawHeader::ZERO);
    response.opcode_byte = Opcode::LoginResponse.0;
    response.flags = request.0[1];
    response.initiator_task_tag = request.basic().initiator_task_tag;
    response.max_cmd_sn = 32.into();
    response.into()
}

/// Runs a target that permits every login and never ends a command. It answers only the management function `answers`.
/// Returns the requested functions when the connection is closed.
fn stubborn(
    stream: &mut TcpStream,
    answers: Option<TaskManagementFunction>,
) -> Result<Vec<TaskManagementFunction>> {
    let mut asked = Vec::new();
    while let Some(header) = header(stream)? {
        let tag = header.basic().initiator_task_tag;
        match header.basic().opcode() {
            Opcode::LoginRequest => stream.write_all(&grant(&header).0)?,
            Opcode::TaskManagementRequest => {
                let request = TaskManagementRequest::view(&header);
                let function = TaskManagementFunction(request.flags & 0x7f);
                asked.push(function);
                if answers == Some(function) {
                    let mut response = TaskManagementResponsePdu::from(RawHeader::with_opcode(
                        Opcode::TaskManagementResponse,
                    ));
                    response.initiator_task_tag = tag;
                    response.max_cmd_sn = 32.into();
                    stream.write_all(&RawHeader::from(response).0)?;
                }
            }
            _ => assert_ne!(tag.get(), RESERVED_TAG, "nothing is pinged here"),
        }
    }
    Ok(asked)
}

/// Answers READ CAPACITY(16): 1000 blocks of 512 bytes.
fn send_capacity(stream: &mut TcpStream, tag: u32) -> Result<()> {
    let mut capacity = [0; size_of::<Capacity16>()];
    capacity[..8].copy_from_slice(&1000u64.to_be_bytes());
    capacity[8..12].copy_from_slice(&512u32.to_be_bytes());
    let mut data_in = DataIn::from(RawHeader::with_opcode(Opcode::DataIn));
    data_in.flags = FINAL | DataIn::STATUS;
    data_in.data_segment_length = U24::new(capacity.len() as u32);
    data_in.initiator_task_tag = tag.into();
    data_in.max_cmd_sn = 32.into();
    stream.write_all(&RawHeader::from(data_in).0)?;
    Ok(stream.write_all(&capacity)?)
}

/// Runs a target of a disk with blocks of 512 bytes, which ends all commands with GOOD. It reports the residual count
/// `residual` with the flag `flag`.
fn sloppy(stream: &mut TcpStream, flag: u8, residual: u32) -> Result<()> {
    while let Some(header) = header(stream)? {
        if header.basic().opcode() == Opcode::LoginRequest {
            stream.write_all(&grant(&header).0)?;
            continue;
        }
        let tag = header.basic().initiator_task_tag;
        if ScsiCommand::view(&header).cdb[0] == opcode::SERVICE_ACTION_IN_16 {
            send_capacity(stream, tag.get())?;
            continue;
        }
        let mut response = ScsiResponse::from(RawHeader::with_opcode(Opcode::ScsiResponse));
        response.flags = FINAL | flag;
        response.residual_count = residual.into();
        response.initiator_task_tag = tag;
        response.max_cmd_sn = 32.into();
        stream.write_all(&RawHeader::from(response).0)?;
    }
    Ok(())
}

/// Returns the next command of a connection to a disk with blocks of 512 bytes, and grants and answers what comes before it: only
/// WRITE and SYNCHRONIZE CACHE are returned. `None` when the connection is closed.
fn next_change(stream: &mut TcpStream) -> Result<Option<(u8, u32)>> {
    while let Some(header) = header(stream)? {
        let tag = header.basic().initiator_task_tag.get();
        match header.basic().opcode() {
            Opcode::LoginRequest => stream.write_all(&grant(&header).0)?,
            Opcode::ScsiCommand => match ScsiCommand::view(&header).cdb[0] {
                opcode::SERVICE_ACTION_IN_16 => send_capacity(stream, tag)?,
                change @ (opcode::WRITE_16 | opcode::SYNCHRONIZE_CACHE_10) => {
                    return Ok(Some((change, tag)));
                }
                _ => send_status(stream, tag, &[])?,
            },
            _ => return Ok(None),
        }
    }
    Ok(None)
}

/// Sends CHECK CONDITION with this sense data, or GOOD without any.
fn send_status(stream: &mut TcpStream, tag: u32, sense: &[u8]) -> Result<()> {
    let mut response = ScsiResponse::from(RawHeader::with_opcode(Opcode::ScsiResponse));
    response.flags = FINAL;
    response.initiator_task_tag = tag.into();
    response.max_cmd_sn = 32.into();
    let mut segment = Vec::new();
    if !sense.is_empty() {
        response.status = 2;
        segment.extend((sense.len() as u16).to_be_bytes());
        segment.extend(sense);
        response.data_segment_length = U24::new(segment.len() as u32);
        segment.resize(segment.len().next_multiple_of(4), 0);
    }
    stream.write_all(&RawHeader::from(response).0)?;
    Ok(stream.write_all(&segment)?)
}

#[test]
fn writes_since_the_last_flush_are_repeated_after_power_on_is_reported() -> Result<()> {
    // UNIT ATTENTION, 29h/00h, in the fixed format.
    const POWER_ON: [u8; 18] = [0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x29, 0, 0, 0, 0, 0];
    const WRITE: u8 = opcode::WRITE_16;
    const FLUSH: u8 = opcode::SYNCHRONIZE_CACHE_10;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("iscsi://{}/iqn.2026-11.proof:power/0", listener.local_addr()?);
    let target = || -> Result<Vec<Vec<u8>>> {
        let mut logins = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept()?;
            let mut changes = Vec::new();
            while let Some((change, tag)) = next_change(&mut stream)? {
                changes.push(change);
                let is_first_flush = change == FLUSH && logins.is_empty();
                send_status(&mut stream, tag, if is_first_flush { &POWER_ON } else { &[] })?;
            }
            logins.push(changes);
        }
        Ok(logins)
    };
    let logins = std::thread::scope(|scope| {
        let target = scope.spawn(target);
        let client = run(async {
            let options = SessionOptions {
                reconnect_limit: Some(LIMIT),
                discovers_portals: false,
                ..SessionOptions::default()
            };
            let store = IscsiStore::connect(&url.parse()?, &options).await?;
            let data = Buffer::zeroed(512);
            store.write(Extent::new(8, 1), data.into(), Durability::Volatile).wait().await?;
            Ok(store.flush().wait().await?)
        });
        client.and_then(|()| target.join().expect("no panic"))
    })?;
    assert_eq!(logins, [[WRITE, FLUSH], [WRITE, FLUSH]]);
    Ok(())
}

#[test]
fn rfc7143_11_4_5_a_write_of_which_a_part_was_left_out_has_failed() -> Result<()> {
    let (under, over) = (ScsiResponse::UNDERFLOW, ScsiResponse::OVERFLOW);
    for (flag, residual, reported) in [
        (0, 0, None),
        // A flag with a residual count of 0 means that nothing is missing.
        (under, 0, None),
        (under, 512, Some((1024, 512))),
        (over, 3072, Some((4096, 1024))),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("iscsi://{}/iqn.2026-11.proof:sloppy/0", listener.local_addr()?);
        std::thread::scope(|scope| {
            let target = scope.spawn(|| sloppy(&mut listener.accept()?.0, flag, residual));
            let client = run(async {
                let options = SessionOptions::default();
                let unit = Unit::log_in(&url.parse()?, &options).await?;
                unit.read_capacity().await?;
                let found = match unit.write(8, Buffer::zeroed(1024), false).await {
                    Ok(()) => None,
                    Err(SessionError::ShortTransfer { wanted, moved }) => Some((wanted, moved)),
                    Err(error) => return Err(error.into()),
                };
                assert_eq!(found, reported, "{flag:02x}h {residual}");
                Ok(())
            });
            client.and_then(|()| target.join().expect("no panic"))
        })?;
    }
    Ok(())
}

#[test]
fn rfc7143_11_5_a_command_past_its_limit_is_aborted_then_the_unit_is_reset() -> Result<()> {
    let (abort, reset) =
        (TaskManagementFunction::AbortTask, TaskManagementFunction::LogicalUnitReset);
    for (answers, wanted, ends) in [
        (Some(abort), vec![abort], false),
        (Some(reset), vec![abort, reset], false),
        (None, vec![abort, reset], true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("iscsi://{}/iqn.2026-11.proof:stubborn/0", listener.local_addr()?);
        let asked = std::thread::scope(|scope| {
            let target = scope.spawn(|| stubborn(&mut listener.accept()?.0, answers));
            let client = run(async {
                let answer_limit = Duration::from_secs(1);
                let options = SessionOptions { answer_limit, ..SessionOptions::default() };
                let unit = Unit::log_in(&url.parse()?, &options).await?;
                let mut command = Command::new(&[0; 6], TransferRequest::None);
                command.time_limit = Some(Duration::from_millis(50));
                let error = unit.execute(command).await.err().context("an end")?;
                ensure!(
                    matches!(error, SessionError::CommandTimedOut { operation_code: 0, .. }),
                    "{error}"
                );
                assert_eq!(unit.session().ended().is_some(), ends, "{:?}", unit.session().ended());
                Ok(())
            });
            client.and_then(|()| target.join().expect("no panic"))
        })?;
        assert_eq!(asked, wanted);
    }
    Ok(())
}
