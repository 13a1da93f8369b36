//! Files by cache mode, on tmpfs and on disk, compared with memory and with fio on the same file; by io_uring and by
//! the pool of threads that replaces it.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use sarsen_proof::process;
use serde_json::Value;

use super::points::Point;
use super::results::Figures;
use super::targets_under_test::{FIO, Field, MeasureMode, Participant, serve};
use super::{GRACE, Options};

pub(super) const RAM: &str = "ram";
pub(super) const TMPFS_WRITE_BACK: &str = "tmpfs, writeback";
pub(super) const DISK_WRITE_BACK: &str = "disk, writeback";
pub(super) const DISK_NONE: &str = "disk, none";

const BYTE_COUNT: u64 = 256 << 20;
const TMPFS: &str = "/dev/shm";
const MODES: [&str; 5] = ["writeback", "writethrough", "none", "directsync", "unsafe"];
/// The modes that are also measured with the pool.
const POOL_MODES: [&str; 2] = ["writeback", "none"];
/// One core, as fio has one job: the compared programs have the same number of threads.
pub(super) const ONE_CORE: [&str; 2] = ["--cores", "1"];
/// Length of the pieces in which files are written.
const PIECE: usize = 1 << 20;

/// Starts a server for each engine, with a separate file for each mode.
pub(super) fn start(program: &Path, options: &Options) -> Result<Field> {
    let mut field = Field::default();
    let mut direct = None;
    for (engine, modes) in [("uring", &MODES[..]), ("pool", &POOL_MODES[..])] {
        let is_pool = engine == "pool";
        let mut volumes = Vec::new();
        if !is_pool {
            volumes.push((RAM.to_owned(), format!("ram:{BYTE_COUNT}")));
        }
        for (place, parent) in [("tmpfs", Path::new(TMPFS)), ("disk", &*options.disk)] {
            let folder = tempfile::Builder::new()
                .prefix("sarsen-bench-")
                .tempdir_in(parent)
                .with_context(|| parent.display().to_string())?;
            for mode in modes {
                let path = folder.path().join(format!("{mode}.img"));
                fill(&path).with_context(|| path.display().to_string())?;
                if is_direct(mode) && !takes_direct(&path) {
                    eprintln!("{place} cannot be used past the page cache: {mode} is left out");
                    continue;
                }
                let name = format!("{place}, {mode}");
                let shown = if is_pool { format!("{name}, pool") } else { name };
                if shown == DISK_NONE {
                    direct = Some(path.clone());
                }
                volumes.push((shown, format!("file:{},cache={mode}", path.display())));
            }
            field.folders.push(folder);
        }
        if let Err(error) = add(&mut field, program, engine, &volumes) {
            eprintln!("--io-engine {engine} is left out: {error:#}");
        }
    }
    match (process::find(Path::new("fio")), direct) {
        (Some(_), Some(path)) => {
            let entrant = Participant::new(FIO, MeasureMode::Fio { path });
            field.entrants.push(Participant { is_peer: true, ..entrant });
        }
        (None, _) => eprintln!("fio is not installed, and left out"),
        (_, None) => {}
    }
    Ok(field)
}

/// Starts a server with these volumes.
fn add(
    field: &mut Field,
    program: &Path,
    engine: &str,
    volumes: &[(String, String)],
) -> Result<()> {
    let mut arguments: Vec<String> = ONE_CORE.map(Into::into).into();
    arguments.extend(["--io-engine".into(), engine.into()]);
    for (number, (_, spec)) in volumes.iter().enumerate() {
        arguments.extend(["--volume".into(), format!("v{number}={spec}")]);
    }
    let running = serve(program, &arguments)?;
    for (number, (name, _)) in volumes.iter().enumerate() {
        let entrant = Participant::of(name, &running, &format!("v{number}"))?;
        let is_empty = name == RAM;
        field.entrants.push(Participant { is_empty, ..entrant });
    }
    field.running.push(running);
    Ok(())
}

fn is_direct(mode: &str) -> bool {
    matches!(mode, "none" | "directsync")
}

/// Returns whether the file system permits direct I/O.
pub(super) fn takes_direct(path: &Path) -> bool {
    let flags = OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).is_ok()
}

/// Fills a file, so that reads do not hit holes and do not wait for earlier writes.
pub(super) fn fill(path: &Path) -> Result<()> {
    fill_to(path, BYTE_COUNT, 0x5a)
}

/// Fills a file of this length with this byte.
pub(super) fn fill_to(path: &Path, byte_count: u64, byte: u8) -> Result<()> {
    let mut file = File::create(path)?;
    let piece = vec![byte; PIECE];
    for _ in 0..byte_count / PIECE as u64 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Measures fio's io_uring engine on a file, bypassing the page cache.
pub(super) fn measure(path: &Path, point: &Point, seconds: f64) -> Result<Figures> {
    let folder = tempfile::tempdir()?;
    let said = folder.path().join("said.json");
    let mut command = Command::new("fio");
    command.args(["--name=limit", "--ioengine=io_uring", "--direct=1", "--numjobs=1"]);
    command.args(["--time_based", "--ramp_time=300ms", "--output-format=json", "--thread"]);
    command.args(["--allow_file_create=0", "--randrepeat=0"]);
    command.arg(format!("--output={}", said.display()));
    command.arg(format!("--filename={}", path.display()));
    command.arg(format!("--bs={}", point.block_bytes));
    command.arg(format!("--iodepth={}", point.depth));
    command.arg(format!("--runtime={}ms", (seconds * 1e3).ceil()));
    command.arg(if point.read_percent == 100 { "--rw=randread" } else { "--rw=randwrite" });
    process::output(&mut command, Duration::from_secs_f64(seconds) + GRACE)?;
    let text = fs::read_to_string(&said)?;
    figures(&text).with_context(|| format!("fio said {text}"))
}

/// Returns the figures of the only job.
fn figures(said: &str) -> Result<Figures> {
    let said: Value = serde_json::from_str(said)?;
    let job = &said["jobs"][0];
    let number = |value: &Value, what: &'static str| value.as_f64().context(what);
    let reads = number(&job["read"]["total_ios"], "read.total_ios")? > 0.0;
    let side = if reads { &job["read"] } else { &job["write"] };
    let percentiles = &side["clat_ns"]["percentile"];
    let percentile = |which: &str| number(&percentiles[which], "percentile").map(|ns| ns / 1e3);
    let iops = number(&side["iops"], "iops")?;
    let cpu_percent = number(&job["usr_cpu"], "usr_cpu")? + number(&job["sys_cpu"], "sys_cpu")?;
    Ok(Figures {
        iops,
        mb_per_s: number(&side["bw_bytes"], "bw_bytes")? / 1e6,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        p999_us: percentile("99.900000")?,
        target_cpu_us_per_io: Some(cpu_percent / 100.0 * 1e6 / iops),
        client_cpu_us_per_io: None,
        target_rss_kib: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_a_job_are_found() {
        let said = r#"{"jobs": [{"usr_cpu": 10.0, "sys_cpu": 40.0,
            "read": {"total_ios": 0, "iops": 0.0},
            "write": {"total_ios": 9, "iops": 50000.0, "bw_bytes": 204800000, "clat_ns":
                {"percentile": {"50.000000": 1000, "99.000000": 2000, "99.900000": 3000}}}}]}"#;
        let figures = figures(said).unwrap();
        assert_eq!((figures.iops, figures.mb_per_s), (50000.0, 204.8));
        assert_eq!((figures.p50_us, figures.p99_us, figures.p999_us), (1.0, 2.0, 3.0));
        assert_eq!(figures.target_cpu_us_per_io, Some(10.0));
        assert!(super::figures("{}").is_err());
    }
}
