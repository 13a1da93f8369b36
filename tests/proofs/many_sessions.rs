//! Two hundred sessions at once, together with connections that misbehave: only these end. Also the memory of an idle
//! session.

use std::io::{ErrorKind, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::{try_join, try_join_all};
use sarsen_block::Buffer;
use sarsen_block::Rng;
use sarsen_initiator::{SessionOptions, Unit};
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::{BasicHeader, Opcode, RawHeader, U24};
use tokio::net::TcpStream;

use crate::client::{self, encode, login_request};

const SESSIONS: usize = 200;
/// Number of blocks that each session uses alone.
const OWN_BLOCKS: u32 = 128;
const OWN_LENGTH: usize = OWN_BLOCKS as usize * 512;
/// The server closes a silent login after 15 seconds.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Maximum resident memory of an idle session.
const IDLE_LIMIT: u64 = 64 << 10;

async fn sessions(serving: &Serving, count: usize, kind: &str) -> Result<Vec<Unit>> {
    let url = client::url(serving, "scratch")?;
    let url = &url;
    let connected = try_join_all((0..count).map(|index| async move {
        let initiator_name = format!("iqn.2026-11.proof:{kind}{index}");
        Unit::connect(url, &SessionOptions { initiator_name, ..SessionOptions::default() }).await
    }));
    connected.await.with_context(|| serving.log())
}

/// Returns the data that the session `index` writes in turn `turn`.
fn pattern(index: usize, turn: u64) -> Vec<u8> {
    let mut rng = Rng::new(((index as u64) << 8) | turn);
    (0..OWN_LENGTH / 8).flat_map(|_| rng.bits().to_be_bytes()).collect()
}

/// Each session writes its own blocks. After all writes, each session reads them back. This happens twice.
async fn write_and_read_back(sessions: &[Unit]) -> Result<()> {
    let place = |index: usize| index as u64 * u64::from(OWN_BLOCKS);
    for turn in 0..2 {
        try_join_all(sessions.iter().enumerate().map(|(index, session)| {
            session.write(place(index), Buffer::copy_of(&pattern(index, turn)), false)
        }))
        .await?;
        try_join_all(sessions.iter().enumerate().map(|(index, session)| async move {
            let read = session.read(place(index), OWN_BLOCKS).await?;
            ensure!(read[..] == pattern(index, turn), "session {index} read something else");
            Ok(())
        }))
        .await?;
    }
    Ok(())
}

/// Returns a login request that announces more bytes than follow.
fn login_that_announces(length: u32) -> Vec<u8> {
    let mut header = BasicHeader::from(RawHeader::from(login_request([0x80, 0, 0, 0, 0, 1])));
    header.data_segment_length = U24::new(length);
    RawHeader::from(header).0.to_vec()
}

/// Returns data as from a port scanner, a broken client or an attacker.
fn nonsense() -> Vec<(&'static str, Vec<u8>)> {
    let login = |data: &[u8]| encode(login_request([0x80, 0, 0, 0, 0, 2]), data);
    let mut long_ahs = BasicHeader::from(RawHeader::from(login_request([0x80; 6])));
    long_ahs.total_ahs_length = 255;
    let mut rng = Rng::new(3260);
    vec![
        ("ones", vec![0xff; 4096]),
        ("zeroes", vec![0; 4096]),
        ("rng", (0..512).flat_map(|_| rng.bits().to_be_bytes()).collect()),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: disks.example\r\nUser-Agent: scanner\r\n\r\n".repeat(2)),
        ("an impossible data segment length", login_that_announces(U24::MAX)),
        ("additional headers without an end", RawHeader::from(long_ahs).0.to_vec()),
        ("a command before the login", encode(RawHeader::with_opcode(Opcode::ScsiCommand), &[])),
        ("keys without values", login(b"InitiatorName\0SessionType\0")),
        ("a login without a name", login(b"SessionType=Normal\0")),
        ("text that is no text", login(&[0xfe; 500])),
    ]
}

/// Sends `bytes` and waits for the server to close the connection.
async fn is_closed_after(serving: &Serving, what: &str, bytes: &[u8]) -> Result<Duration> {
    let began = sarsen_io::time::now();
    let stream = TcpStream::connect(&serving.url("scratch").portal).await?;
    // The socket buffer can hold all the bytes.
    stream.writable().await?;
    let sent = stream.try_write(bytes)?;
    ensure!(sent == bytes.len(), "{what}: sent {sent} of {} bytes", bytes.len());
    let closed = async {
        loop {
            stream.readable().await?;
            match stream.try_read(&mut [0; 4096]) {
                Ok(0) => return Ok(()),
                // The server did not read all bytes.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    };
    match tokio::time::timeout(END_LIMIT, closed).await {
        Ok(closed) => Ok(closed.map(|()| began.elapsed())?),
        Err(_) => anyhow::bail!("{what}: the connection was still open after {END_LIMIT:?}"),
    }
}

/// Sends half a PDU and then ends the stream.
fn leaves_in_the_middle(serving: &Serving) -> Result<()> {
    let mut stream = std::net::TcpStream::connect(&serving.url("scratch").portal)?;
    stream.write_all(&login_that_announces(100))?;
    stream.write_all(b"InitiatorName=iqn.20")?;
    Ok(stream.shutdown(Shutdown::Both)?)
}

#[test]
fn two_hundred_sessions_are_not_disturbed_by_those_that_misbehave() -> Result<()> {
    let serving = Serving::start_with(&[Volume::new("scratch", Backing::Ram, 64 << 20)], &[])?;
    client::run(async {
        let sessions = sessions(&serving, SESSIONS, "host").await?;
        leaves_in_the_middle(&serving)?;
        let silent = &login_request([0x80, 0, 0, 0, 0, 3]);
        let silent = RawHeader::from(*silent).0[..24].to_vec();
        let silence = is_closed_after(&serving, "silence in mid-login", &silent);
        let others = async {
            let nonsense = nonsense();
            let sent = nonsense.iter().map(|(what, bytes)| is_closed_after(&serving, what, bytes));
            // The misbehaving connections run at the same time as the others.
            let (_, closed) = try_join(write_and_read_back(&sessions), try_join_all(sent)).await?;
            write_and_read_back(&sessions).await?;
            let kinds = nonsense.iter().zip(closed);
            Ok(kinds.map(|((what, _), after)| format!("{what} {after:.0?}")).collect::<Vec<_>>())
        };
        let (silence, others) = try_join(silence, others).await?;
        println!("closed: silence in mid-login {silence:.0?}, {}", others.join(", "));
        // The sessions were open all the time.
        write_and_read_back(&sessions).await?;
        println!("{SESSIONS} sessions wrote and read {} times 64 KiB each", 6);
        try_join_all(sessions.into_iter().map(Unit::logout)).await?;
        Ok(())
    })
    .with_context(|| serving.log())?;
    serving.stop()
}

#[test]
fn garbage_within_a_session_ends_that_session_alone() -> Result<()> {
    let serving = Serving::start_with(&[Volume::new("scratch", Backing::Ram, 64 << 20)], &[])?;
    let url = serving.url("scratch");
    let mut sound = client::Wire::login(url, "iqn.2026-11.proof:sound", [0x80, 0, 0, 0, 1, 0])?;
    sound.settle()?;
    for (index, (what, bytes)) in nonsense().into_iter().enumerate() {
        let isid = [0x80, 0, 0, 0, 2, index as u8];
        let mut wire = client::Wire::login(url, "iqn.2026-11.proof:broken", isid)?;
        let _ = wire.send_bytes(&bytes);
        // The server answers or rejects each valid PDU. Other data ends the connection at once, or when its last PDU is
        // incomplete.
        let _ = wire.end_sending();
        let mut answers = 0;
        while wire.next().with_context(|| format!("{what} after {answers} answers"))?.is_some() {
            answers += 1;
        }
        let status = sound.test_unit_ready()?.status();
        ensure!(status == Some(0), "after {what}: status {status:?} in another session");
    }
    serving.stop()
}

fn resident_bytes(serving: &Serving) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

#[test]
fn an_idle_session_takes_less_than_64_kib() -> Result<()> {
    let serving = Serving::start_with(&[Volume::new("scratch", Backing::Ram, 64 << 20)], &[])?;
    client::run(async {
        // All blocks of the volume are written before, so that no session is charged for them.
        let first = sessions(&serving, 8, "first").await?;
        for lba in (0..first[0].capacity().blocks).step_by(2048) {
            first[0].write(lba, Buffer::copy_of(&[1; 2048 * 512]), false).await?;
        }
        try_join_all(first.iter().map(|session| session.read(0, OWN_BLOCKS))).await?;

        let before = resident_bytes(&serving)?;
        let crowd = sessions(&serving, SESSIONS, "idle").await?;
        let fresh = resident_bytes(&serving)?.saturating_sub(before) / SESSIONS as u64;
        write_and_read_back(&crowd).await?;
        try_join_all(crowd.iter().map(|unit| unit.session().ping())).await?;
        let used = resident_bytes(&serving)?.saturating_sub(before) / SESSIONS as u64;
        println!("resident bytes of an idle session: {fresh} when new, {used} after its work");
        ensure!(fresh < IDLE_LIMIT, "{fresh} bytes for each new session");
        ensure!(used < IDLE_LIMIT, "{used} bytes for each session that has worked");
        Ok(())
    })
    .with_context(|| serving.log())?;
    serving.stop()
}
