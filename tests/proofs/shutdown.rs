//! SIGTERM with open sessions and writes in progress. The server first asks initiators to log out. All acknowledged
//! data is in the file, the exit status is 0, and the file is unlocked at once.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures_util::future::join_all;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use sarsen_block::Buffer;
use sarsen_initiator::SessionError;
use sarsen_io::time::now;
use sarsen_proof::managed::Managed;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, program};
use sarsen_wire::iscsi::{AsyncEvent, AsyncMessage, LogoutResponsePdu, Opcode};

use crate::client::{self, Wire};

const NAME: &str = "iqn.2026-11.proof:writer";
const MIB: u64 = 1 << 20;
/// This number fits into the command window, so that the target receives all writes at once.
const WRITES: u32 = 100;
const WRITE_LENGTH: usize = 4096;
const WRITE_BLOCKS: u32 = WRITE_LENGTH as u32 / 512;

/// Maximum duration of a start on a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// One second for the logout, one second for the last answers, and tolerance for a slow machine.
const STUCK_LIMIT: Duration = Duration::from_secs(8);

fn serve(path: &Path, cache: &str, engine: &str, grace_seconds: &str) -> Result<Serving> {
    let volume = Volume::new("data", Backing::File(path.into()), 64 * MIB);
    let arguments = ["--io-engine", engine, "--logout-grace", grace_seconds];
    Serving::start_with(&[volume.option(&format!("cache={cache}"))], &arguments)
}

fn login(serving: &Serving, number: u8) -> Result<Wire> {
    let mut wire = Wire::login(serving.url("data"), NAME, [0x80, 0, 0, 0, 0, number])?;
    wire.settle()?;
    Ok(wire)
}

fn fill(number: u32) -> Vec<u8> {
    (number + 1).to_be_bytes().repeat(WRITE_LENGTH / 4)
}

/// Sends writes and does not wait; returns the number of each by its tag.
fn write_all(wire: &mut Wire, fua: bool) -> Result<HashMap<u32, u32>> {
    (0..WRITES)
        .map(|number| Ok((wire.write(number * WRITE_BLOCKS, &fill(number), fua)?, number)))
        .collect()
}

fn is_in_the_file(path: &Path, acknowledged: &[u32]) -> Result<()> {
    let bytes = fs::read(path)?;
    for &number in acknowledged {
        let start = number as usize * WRITE_LENGTH;
        let there = bytes[start..start + WRITE_LENGTH] == fill(number);
        ensure!(there, "write {number} was acknowledged and is not in the file");
    }
    Ok(())
}

/// An initiator that complies: after the logout request it receives its remaining answers and logs out.
#[test]
fn rfc7143_11_9_1_a_logout_is_asked_for_and_commands_in_flight_end() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (cache, engine) in
        [("writeback", "pool"), ("writeback", "auto"), ("directsync", "auto"), ("none", "pool")]
    {
        let path = folder.path().join(format!("{cache}-{engine}.img"));
        // The time for logouts is longer than the limit of `stop`: the server ends because the last session has ended.
        let serving = serve(&path, cache, engine, "60")?;
        let mut wire = login(&serving, 1)?;
        let writes = write_all(&mut wire, true)?;
        client::signal(&serving, Signal::TERM)?;
        let (mut acknowledged, mut before, mut logout) = (Vec::new(), 0, None);
        while let Some(pdu) = wire.next()? {
            match (pdu.opcode(), pdu.asynchronous_event()) {
                (_, Some(event)) => {
                    ensure!(event == AsyncEvent::LogoutRequest, "{event:?}");
                    let seconds = AsyncMessage::view(&pdu.header).parameter3.get();
                    ensure!(seconds == 60, "{seconds} seconds to log out");
                    ensure!(logout.is_none(), "asked twice");
                    before = acknowledged.len();
                    // The other writes are still open, so the logout is sent after the last answer.
                    logout = Some(None);
                }
                (Opcode::ScsiResponse, _) => {
                    ensure!(pdu.status() == Some(0), "a write ended with {:?}", pdu.sense());
                    acknowledged.push(*writes.get(&pdu.tag()).context("an unknown tag")?);
                }
                (Opcode::LogoutResponse, _) => {
                    let response = LogoutResponsePdu::view(&pdu.header).response;
                    ensure!(response == 0 && logout == Some(Some(pdu.tag())), "{response}");
                }
                (other, _) => anyhow::bail!("{other:?}"),
            }
            if logout == Some(None) && acknowledged.len() == writes.len() {
                logout = Some(Some(wire.logout()?));
            }
        }
        ensure!(logout.is_some(), "closed without a request to log out\n{}", serving.log());
        let count = acknowledged.len();
        ensure!(count == writes.len(), "{count} of {} writes ended", writes.len());
        serving.wait()?;
        is_in_the_file(&path, &acknowledged)?;
        println!(
            "{cache}, {engine}: {before} writes ended before the request, {} after",
            count - before
        );
        serve(&path, cache, engine, "1")?.stop()?;
    }
    Ok(())
}

/// An initiator that continues to write and never logs out: its session is dropped with an asynchronous message.
#[test]
fn rfc7143_11_9_1_session_without_logout_gets_drop_notice() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    let serving = serve(&path, "writeback", "auto", "1")?;
    let mut wire = login(&serving, 1)?;
    let mut silent = login(&serving, 2)?;
    let writes = write_all(&mut wire, false)?;
    client::signal(&serving, Signal::TERM)?;
    let (mut acknowledged, mut events) = (Vec::new(), Vec::new());
    while let Some(pdu) = wire.next()? {
        if pdu.status() == Some(0) {
            acknowledged.push(*writes.get(&pdu.tag()).context("an unknown tag")?);
        }
        events.extend(pdu.asynchronous_event());
    }
    ensure!(events == [AsyncEvent::LogoutRequest, AsyncEvent::SessionDrop], "{events:?}");
    ensure!(acknowledged.len() == writes.len(), "{} writes ended", acknowledged.len());
    let mut events = Vec::new();
    while let Some(pdu) = silent.next()? {
        events.extend(pdu.asynchronous_event());
    }
    ensure!(events == [AsyncEvent::LogoutRequest, AsyncEvent::SessionDrop], "{events:?}");
    serving.wait()?;
    is_in_the_file(&path, &acknowledged)
}

/// An initiator that sends many requests and reads no answers cannot delay the shutdown.
#[test]
fn client_that_does_not_read_does_not_delay_shutdown() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    let serving = serve(&path, "writeback", "auto", "1")?;
    let mut stuck = login(&serving, 1)?;
    for _ in 0..WRITES {
        stuck.read(0, 2048)?;
    }
    // The server has received the first session's commands when it serves a later session.
    let mut other = login(&serving, 2)?;
    other.test_unit_ready()?;
    let began = sarsen_io::time::now();
    serving.stop()?;
    let took = began.elapsed();
    ensure!(took < STUCK_LIMIT, "it took {took:?}");
    drop(stuck);
    serve(&path, "writeback", "auto", "1")?.stop()
}

/// Many sessions of a correct initiator, all of them writing.
#[test]
fn sessions_in_order_are_logged_out_and_lose_nothing() -> Result<()> {
    const SESSIONS: u32 = 8;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("data.img");
    let serving = serve(&path, "writeback", "auto", "60")?;
    let acknowledged: Vec<u32> = client::run(async {
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(client::unit(&serving, "data").await?);
        }
        let server = &serving;
        let written = join_all(sessions.iter().zip(0u32..).map(|(session, index)| async move {
            let mut known = Vec::new();
            // Each session writes its own blocks until it is logged out; the first one sends SIGTERM.
            for number in (0..).map(|turn| index + turn * SESSIONS).take(1024) {
                let data = Buffer::copy_of(&fill(number));
                match session.write((number * WRITE_BLOCKS).into(), data, false).await {
                    Ok(()) => known.push(number),
                    Err(error) => return (known, Some(error)),
                }
                if index == 0 && known.len() == 32 {
                    let reported = client::signal(server, Signal::TERM);
                    assert!(reported.is_ok(), "{reported:?}");
                }
            }
            (known, None)
        }))
        .await;
        let mut acknowledged = Vec::new();
        for (known, error) in written {
            ensure!(
                matches!(error, Some(SessionError::LoggedOut)),
                "a session ended with {error:?} after {} writes",
                known.len()
            );
            acknowledged.extend(known);
        }
        Ok(acknowledged)
    })
    .with_context(|| serving.log())?;
    serving.wait()?;
    is_in_the_file(&path, &acknowledged)?;
    println!("{SESSIONS} sessions, {} writes acknowledged, all in the file", acknowledged.len());
    Ok(())
}

/// The change is stored, and waits for a client that does not log out; the server ends as usual.
#[test]
fn a_forced_change_that_waits_for_a_client_does_not_hold_up_the_end() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Managed::start(folder.path())?;
    server.run(&["volume", "create", "data", "8MiB", "--export"])?;
    let target = "iqn.2026-11.io.sarsen:data";
    let url = Url { portal: server.portal()?.into(), iqn: target.into(), lun: 0, user: None };
    let mut wire = Wire::login(&url, NAME, [0x80, 0, 0, 0, 0, 1])?;
    wire.settle()?;
    let written = wire.write(0, &fill(0), false)?;
    wire.end_of(written)?;
    let mut change = server.command(&["target", "delete", target, "--force", "--grace", "3600"])?;
    let change = change.stderr(Stdio::piped()).spawn()?;
    while wire.next()?.context("it is asked to go")?.asynchronous_event()
        != Some(AsyncEvent::LogoutRequest)
    {}
    server.stop()?;
    let change = change.wait_with_output()?;
    let reported = String::from_utf8_lossy(&change.stderr);
    ensure!(!change.status.success() && reported.contains("the server stops"), "{reported}");
    is_in_the_file(&folder.path().join("state/volumes/data.img"), &[0])?;
    let server = Managed::start(folder.path())?;
    ensure!(!server.run(&["target", "list"])?.contains(target), "the change was stored");
    server.stop()
}

/// A file that returns while a change waits was not created by that change.
#[test]
fn a_change_that_is_unfinished_takes_no_disk_away_that_came_back_meanwhile() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (path, away) = (folder.path().join("disk.img"), folder.path().join("away"));
    let server = Managed::start(folder.path())?;
    let file = path.to_str().context("a path")?;
    server.run(&["volume", "create", "kept", "8MiB", "--path", file])?;
    server.run(&["volume", "create", "data", "8MiB", "--store", "ram", "--export"])?;
    server.stop()?;
    fs::rename(&path, &away)?;
    let server = Managed::start(folder.path())?;
    let target = "iqn.2026-11.io.sarsen:data";
    let url = Url { portal: server.portal()?.into(), iqn: target.into(), lun: 0, user: None };
    let mut wire = Wire::login(&url, NAME, [0x80, 0, 0, 0, 0, 1])?;
    wire.settle()?;
    let mut change = server.command(&["target", "delete", target, "--force", "--grace", "3600"])?;
    let change = change.stderr(Stdio::piped()).spawn()?;
    while wire.next()?.context("it is asked to go")?.asynchronous_event()
        != Some(AsyncEvent::LogoutRequest)
    {}
    fs::rename(&away, &path)?;
    server.stop()?;
    ensure!(!change.wait_with_output()?.status.success(), "it could not wait for the client");
    ensure!(fs::metadata(&path)?.len() == 8 << 20, "the disk is there");
    Ok(())
}

/// A named pipe without a writer stands for a file system that does not respond.
#[test]
fn sigterm_ends_a_server_that_waits_for_its_configuration() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("sarsen.toml");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
    let mut command = Command::new(program::path()?);
    let mut process = command.arg("serve").arg("--config").arg(&path).spawn()?;
    let deadline = now() + START_LIMIT;
    let mut signal_and_wait = || {
        // The pipe has a reader when the server waits for its content.
        let writer = loop {
            match open(&path, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty()) {
                Err(Errno::NXIO) if now() < deadline => std::thread::yield_now(),
                opened => break opened?,
            }
        };
        kill_process(Pid::from_child(&process), Signal::TERM)?;
        loop {
            match process.try_wait()? {
                None if now() < deadline => std::thread::yield_now(),
                None => bail!("SIGTERM does not end it"),
                Some(status) => break Ok((status, writer)),
            }
        }
    };
    let ended = signal_and_wait();
    let _ = process.kill();
    process.wait()?;
    ensure!(ended?.0.signal() == Some(Signal::TERM.as_raw()), "it ended otherwise");
    Ok(())
}
