//! `cargo xtask bench --sessions`: the cost of thousands of idle sessions for the server, and how it handles many
//! simultaneous logins in addition.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use parking_lot::RwLock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::iscsi::pdu::IMMEDIATE;
use sarsen_wire::iscsi::{
    BasicHeader, Isid, LoginRequest, LoginResponse, LoginStatus, Opcode, RawHeader, U24, padding,
};

use super::results::median;

const VOLUME: &str = "bench";
const IDLE: usize = 10_000;
const STORM: usize = 1000;
/// Files of a client in addition to its sessions.
const SPARE_FILES: u64 = 64;
/// Threads that open the idle sessions.
const OPENERS: usize = 8;
const STACK: usize = 64 << 10;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run() -> Result<()> {
    let files = raise_limit((IDLE + STORM) as u64 + SPARE_FILES)?;
    println!(
        "open files: {files} for this client, and as many for the server, which raises its own"
    );
    let serving = Serving::start_with(&[Volume::new(VOLUME, Backing::Ram, 64 << 20)], &[])?;
    let url = serving.url(VOLUME);
    let before = resident_bytes(&serving)?;
    let idle = open(url, IDLE).with_context(|| serving.log())?;
    let with = resident_bytes(&serving)?;
    println!(
        "{IDLE} idle sessions: {:.1} MB resident, {:.1} MB before them, {} bytes for each",
        megabytes(with),
        megabytes(before),
        with.saturating_sub(before) / IDLE as u64
    );
    let busy = processor_time(&serving)?;
    let (whole, mut latencies) = storm(url).with_context(|| serving.log())?;
    let busy = processor_time(&serving)? - busy;
    latencies.sort_unstable();
    let at = |per_mille: usize| latencies[(latencies.len() * per_mille).div_ceil(1000) - 1];
    let milliseconds: Vec<f64> = latencies.iter().map(|one| one.as_secs_f64() * 1e3).collect();
    println!(
        "{STORM} simultaneous logins beside them: all served after {:.0} ms; \
         p50 {:.0} ms, p99 {:.0} ms, longest {:.0} ms; {:.0} ms of the server's processor time",
        whole.as_secs_f64() * 1e3,
        median(&milliseconds),
        at(990).as_secs_f64() * 1e3,
        at(1000).as_secs_f64() * 1e3,
        busy * 1e3
    );
    drop(idle);
    serving.stop()
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// Raises this process's limit of open files to its maximum.
fn raise_limit(wanted: u64) -> Result<u64> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    let given = maximum.unwrap_or(u64::MAX);
    ensure!(given >= wanted, "{given} files may be open, of {wanted}: raise ulimit -Hn");
    Ok(given)
}

fn resident_bytes(serving: &Serving) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", serving.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Returns the server's CPU time in seconds.
fn processor_time(serving: &Serving) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", serving.pid()))?;
    // proc_pid_stat(5): after the name come state, and utime and stime as fields 14 and 15.
    let (_, rest) = stat.rsplit_once(')').context("a name in parentheses")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |field: usize| -> Result<u64> {
        Ok(fields.get(field - 3).context("a short line")?.parse()?)
    };
    Ok((ticks(14)? + ticks(15)?) as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Opens idle sessions next to a session that is measured; they end when the streams are dropped.
pub(super) fn open_idle(url: &sarsen_initiator::Url, count: usize) -> Result<Vec<TcpStream>> {
    if count > 0 {
        raise_limit(count as u64 + SPARE_FILES)?;
    }
    open(&url.clone().into(), count)
}

/// Opens this number of sessions, which are then idle.
fn open(url: &Url, count: usize) -> Result<Vec<TcpStream>> {
    thread::scope(|scope| {
        let share = count.div_ceil(OPENERS);
        let openers: Vec<_> = (0..OPENERS)
            .map(|opener| {
                let range = opener * share..count.min((opener + 1) * share);
                scope.spawn(move || {
                    range.map(|index| login(url, "idle", index)).collect::<Result<Vec<_>>>()
                })
            })
            .collect();
        let mut all = Vec::with_capacity(count);
        for opener in openers {
            all.extend(joined(opener.join())?);
        }
        Ok(all)
    })
}

/// Logs in all sessions at once, each on its own thread. Returns the total time, and the time of each login.
fn storm(url: &Url) -> Result<(Duration, Vec<Duration>)> {
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let gate = &gate;
        // Whatever happens, the gate opens: no thread waits for ever.
        let closed = gate.write();
        let one = |index| {
            thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                drop(gate.read());
                let begun = Instant::now();
                let stream = login(url, "storm", index)?;
                Ok((begun.elapsed(), stream))
            })
        };
        let threads = (0..STORM).map(one).collect::<std::io::Result<Vec<_>>>();
        let threads = threads.context("not enough threads for the storm")?;
        let begun = Instant::now();
        drop(closed);
        // No session closes before all are logged in.
        let ended =
            threads.into_iter().map(|one| joined(one.join())).collect::<Result<Vec<_>>>()?;
        let whole = begun.elapsed();
        Ok((whole, ended.into_iter().map(|(latency, _)| latency).collect()))
    })
}

fn joined<T>(result: thread::Result<Result<T>>) -> Result<T> {
    match result {
        Ok(result) => result,
        Err(_) => bail!("a thread of the client panicked"),
    }
}

/// Opens a session, from its connection to the answer that ends the login.
fn login(url: &Url, kind: &str, index: usize) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(&url.portal)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
    request.opcode_byte |= IMMEDIATE;
    // From the operational stage to the full feature phase.
    request.flags = 0x87;
    request.isid = Isid([0x80, 0, 0, 0, 0, 1]);
    request.reserved = 0.into();
    request.cmd_sn = 1.into();
    let keys = format!(
        "InitiatorName=iqn.2026-11.bench:{kind}{index}\0TargetName={}\0SessionType=Normal\0",
        url.iqn
    );
    let mut header = BasicHeader::from(RawHeader::from(request));
    header.data_segment_length = U24::new(keys.len() as u32);
    let padded = &[0; 3][..padding(keys.len())];
    stream.write_all(&[&RawHeader::from(header).0[..], keys.as_bytes(), padded].concat())?;
    let mut answer = RawHeader::ZERO;
    stream.read_exact(&mut answer.0).with_context(|| format!("login {kind}{index}"))?;
    let length = answer.basic().data_segment_length.value() as usize;
    stream.read_exact(&mut vec![0; length + padding(length)])?;
    ensure!(answer.basic().opcode() == Opcode::LoginResponse, "not an answer to a login");
    let status = LoginResponse::view(&answer).status();
    ensure!(status == LoginStatus::Success, "login {kind}{index} ended with {status:?}");
    Ok(stream)
}
