//! A pool of 10 TiB on a sparse file in memory, with a volume of 1 TiB whose 16 million chunks are all mapped: snapshots
//! and clones under load, the memory of its map, and the start after kill -9.

mod device;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use sarsen_block::{Buffer, Durability, Extent, LocalFuture, Payload, Store as _};
use sarsen_pool::{Pool, Tasks};
use sarsen_proof::managed::{Managed, socket};
use sarsen_proof::process;
use serde_json::json;
use tokio::task::LocalSet;

use self::device::SparseDevice;
use super::nbd::TMPFS;
use super::results::Figures;
use super::{GRACE, said};

const POOL_BYTES: u64 = 10 << 40;
const VOLUME_BYTES: u64 = 1 << 40;
const CHUNK_BYTES: u64 = 64 << 10;
const CHUNKS: u64 = VOLUME_BYTES / CHUNK_BYTES;
/// The bytes at the beginning of the device that a new pool may have written.
const USED_BYTES: u64 = 4 << 30;
/// Chunks between two steps of the maintenance of a pool that is filled.
const STEP: u64 = 16 << 10;
/// Entries in a leaf of a map.
const LEAF: u64 = 256;
/// Reads for each leaf of the map, on average, after which nearly all of them were read.
const READS_PER_LEAF: f64 = 8.0;
/// Snapshots in a round, and as many clones.
const SNAPSHOTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(300);
/// The load on which snapshots are created.
const LOAD_SECONDS: f64 = 6.0;
/// The setting that bounds the map.
pub(super) const BOUND: u64 = 64;
const MIB: f64 = (1 << 20) as f64;

/// The figures of a round.
#[derive(Clone, Debug, serde::Serialize)]
pub(super) struct LargePool {
    /// Milliseconds of each snapshot, and of each clone.
    pub(super) snapshots: Vec<f64>,
    pub(super) clones: Vec<f64>,
    /// The writes meanwhile.
    pub(super) writes: Figures,
    /// MiB of the map in memory for each TiB that is mapped.
    pub(super) map_mib: f64,
    /// The same with a maximum.
    pub(super) bounded_mib: f64,
    /// Seconds from the start of the program after kill -9 under load until it serves the volume.
    pub(super) opening: f64,
}

/// Measures all of it.
pub(super) fn measure(program: &Path, rounds: usize) -> Result<Vec<LargePool>> {
    let folder = tempfile::Builder::new().prefix("sarsen-bench-").tempdir_in(TMPFS)?;
    let device = folder.path().join("tank");
    let path = device.to_str().context("a path")?;
    let server = Managed::start(folder.path())?;
    // The program would reserve the space of a new file.
    fs::File::create(&device)?.set_len(POOL_BYTES)?;
    server.run(&["pool", "create", "tank", "--device", path])?;
    server.run(&["volume", "create", "big", "1TiB", "--pool", "tank", "--export"])?;
    server.stop()?;
    eprintln!("mapping {CHUNKS} chunks");
    fill(&device)?;
    (0..rounds).map(|number| round(program, folder.path(), number)).collect()
}

fn round(program: &Path, folder: &Path, number: usize) -> Result<LargePool> {
    eprintln!("Large pools, round {}", number + 1);
    // All of the map, and then no more than the maximum.
    let [map_mib, bounded_mib] = [None, Some(BOUND)].map(|bound| -> Result<f64> {
        let server = start(folder)?;
        let bound = bound.map_or("null".to_owned(), |mib| format!("{mib}MiB"));
        server.run(&["pool", "set", "tank", &format!("memory={bound}")])?;
        server.stop()?;
        let server = start(folder)?;
        let before = memory(server.pid())?;
        let mut reads = 0.0;
        while reads < READS_PER_LEAF * (CHUNKS / LEAF) as f64 {
            let seconds = 3.0;
            reads += load(program, &url(&server)?, 100, seconds)?.iops * seconds;
        }
        let used = memory(server.pid())? - before;
        server.stop()?;
        Ok(used / MIB)
    });
    let (map_mib, bounded_mib) = (map_mib?, bounded_mib?);
    let server = start(folder)?;
    server.run(&["pool", "set", "tank", "memory=null"])?;
    let target = url(&server)?;
    let client = program.to_owned();
    let loaded = {
        let target = target.clone();
        thread::spawn(move || load(&client, &target, 0, LOAD_SECONDS))
    };
    let (mut snapshots, mut clones) = (Vec::new(), Vec::new());
    for at in 0..SNAPSHOTS {
        thread::sleep(PAUSE);
        let snapshot = format!("big@r{number}-{at}");
        let body = json!({"snapshots": [snapshot]});
        snapshots.push(post(folder, "/v1/snapshots", &body)?);
        thread::sleep(PAUSE);
        let clone = json!({"name": format!("clone-r{number}-{at}"), "store": "pool", "pool": "tank",
                           "clone-of": snapshot});
        let body = json!({"document": {"volume": [clone]}, "create": true});
        clones.push(post(folder, "/v1/config/apply", &body)?);
    }
    let writes = loaded.join().map_err(|_| anyhow!("the load's thread panicked"))??;
    // Under the same load, the server is killed.
    let mut command = load_command(program, &target, 0, LOAD_SECONDS);
    let mut client = command.stdout(std::process::Stdio::null()).spawn()?;
    thread::sleep(Duration::from_secs(3));
    server.kill()?;
    client.kill()?;
    client.wait()?;
    let begun = Instant::now();
    let server = start(folder)?;
    let served = url(&server)?;
    let opening = begun.elapsed().as_secs_f64();
    load(program, &served, 100, 0.1)?;
    server.stop()?;
    Ok(LargePool { snapshots, clones, writes, map_mib, bounded_mib, opening })
}

fn start(folder: &Path) -> Result<Managed> {
    Managed::start(folder)
}

/// Returns the URL of the volume.
fn url(server: &Managed) -> Result<String> {
    let volumes = server.announced()["volumes"].as_array().context("its volumes")?;
    let big = volumes.iter().find(|volume| volume["name"] == "big").context("the volume")?;
    Ok(big["url"].as_str().context("its URL")?.to_owned())
}

/// Returns the bytes of memory that a process has of its own.
fn memory(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0)
}

fn load_command(program: &Path, url: &str, reads: u32, seconds: f64) -> Command {
    let mut command = Command::new(program);
    command.args(["lab", "load", "--json", "--destroy", "--block-size", "4096", "--random", "100"]);
    command.args(["--depth", "32", "--read"]).arg(reads.to_string());
    command.arg("--seconds").arg(seconds.to_string()).arg(url);
    command
}

fn load(program: &Path, url: &str, reads: u32, seconds: f64) -> Result<Figures> {
    let limit = Duration::from_secs_f64(seconds) + GRACE;
    said(&process::output(&mut load_command(program, url, reads, seconds), limit)?)
}

/// Sends a request to the control socket, and returns the milliseconds until its answer is complete.
fn post(folder: &Path, path: &str, body: &serde_json::Value) -> Result<f64> {
    let body = body.to_string();
    let begun = Instant::now();
    let mut stream = UnixStream::connect(socket(folder))?;
    let length = body.len();
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let milliseconds = begun.elapsed().as_secs_f64() * 1e3;
    ensure!(answer.starts_with("HTTP/1.1 200"), "{path} {body}: {answer}");
    Ok(milliseconds)
}

/// Writes zeroes to each chunk of the volume.
fn fill(device: &Path) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    LocalSet::new().block_on(&runtime, async {
        let store = SparseDevice::open(device, USED_BYTES)?;
        let pool = Pool::open(vec![store], Arc::new(CallersTasks)).await?;
        let info = pool.find(|info| info.label.name == "big").context("the volume")?;
        ensure!(u64::from(pool.chunk_size()) == CHUNK_BYTES, "chunks have another size");
        let volume = pool.open_volume(info.id).await?;
        let blocks = volume.geometry().block_size;
        let (distance, count) = (CHUNK_BYTES >> blocks.shift(), 4096 >> blocks.shift());
        let mut zeroes = Payload::from(Buffer::zeroed(4096));
        for chunk in 0..CHUNKS {
            let extent = Extent::new(chunk * distance, count);
            volume.write(extent, zeroes.share(), Durability::Volatile).wait().await?;
            if chunk % STEP == 0 {
                pool.maintain_once().await?;
            }
        }
        pool.checkpoint().await?;
        let mapped = pool.find(|found| found.id == info.id).map(|found| found.referenced_bytes);
        ensure!(mapped == Some(VOLUME_BYTES), "{mapped:?} bytes are mapped, of {VOLUME_BYTES}");
        Ok(())
    })
}

/// Continues requests on the only thread.
struct CallersTasks;

impl Tasks for CallersTasks {
    fn finish(&self, future: LocalFuture<()>) {
        tokio::task::spawn_local(future);
    }
}
