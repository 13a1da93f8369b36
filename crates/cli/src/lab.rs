//! `sarsen lab`.

mod archive;
mod progress;
mod results;
mod run;
mod studies;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use sarsen_lab::access::{self, AccessPattern, NamedPattern};
use sarsen_lab::distribution::Distribution;
use sarsen_lab::files::{FileLoad, FileOperation, FileResult};
use sarsen_lab::load::{self, DirectionResult, Endpoint, LoadError, LoadOptions, LoadResult};
use sarsen_lab::mix::Mix;
use sarsen_lab::trace::{self, Format, Synthetic};
use sarsen_lab::{fio, icf};
use sarsen_node::config::parse_size;
use sarsen_node::model::Textual as _;
use sarsen_node::stores::CacheMode;

pub(crate) use self::results::Results;
use crate::disk::variable;
use crate::output::{note, print_line};

/// Verbs of the lab.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Run a load on a target and measure it. Writes overwrite its data; a disk with a file system or the like needs
    /// --destroy.
    Load(LoadArguments),
    /// Replay a trace on a target and measure it. Writes overwrite its data; a disk with a file system or the like
    /// needs --destroy.
    Replay(ReplayArguments),
    /// Read small files in a folder of a mounted file system, or write them (--write), and measure the time of each: to compare
    /// network file systems with disks over a network.
    Files(FilesArguments),
    /// Run a study: measure several targets as a published comparison did, and report the figures beside the
    /// published ones.
    Run(run::Arguments),
    /// List the studies, or show what a study measures: its size, and the labels of its cells.
    Studies {
        /// The study.
        study: Option<String>,
        /// Print each study as one line of JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the named access specifications, or write them as an Iometer file.
    Specs(SpecsArguments),
    /// List the archived runs of this machine.
    Runs(archive::RunsArguments),
    /// Write the report of an archived run, in any format.
    Report(archive::ReportArguments),
    /// Show the report of an archived run in a browser. Its file stays in the folder for temporary files.
    Show(archive::ShowArguments),
    /// Compare two runs, and test whether the differences are significant.
    Compare(archive::CompareArguments),
    /// Delete an archived run.
    Remove(archive::RemoveArguments),
}

#[derive(clap::Args)]
pub(crate) struct SpecsArguments {
    /// The Iometer file to write.
    #[arg(long, value_name = "FILE")]
    icf: Option<PathBuf>,
    /// Print each access specification as one line of JSON.
    #[arg(long, conflicts_with = "icf")]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct LoadArguments {
    /// The target: `iscsi://host[:port][,host…]/target/lun`, `nbd://host[:port]/export`,
    /// `nbd+unix:///export?socket=PATH`, or the path of a file or block device.
    endpoint: String,
    /// A named access specification, such as "Exchange 2003". The flags below override parts of it.
    #[arg(long, value_name = "NAME")]
    spec: Option<String>,
    /// Size of an I/O.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Percentage of reads.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    read: Option<u8>,
    /// Percentage of random I/Os.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    random: Option<u8>,
    /// Number of outstanding I/Os of each session.
    #[arg(long)]
    depth: Option<u32>,
    /// Number of sessions, with one connection each; with several portals in the URL, all use the same paths [default: 1, or that of the job]
    #[arg(long)]
    sessions: Option<u32>,
    /// Duration of the measurement [default: 3, or that of the job]
    #[arg(long)]
    seconds: Option<f64>,
    /// Duration of the load before the measurement [default: 0.3, or that of the job]
    #[arg(long, value_name = "SECONDS")]
    warm_up: Option<f64>,
    /// Time without any answer of the target after which the load fails [default: 10]
    #[arg(long, value_name = "SECONDS")]
    stall_limit: Option<f64>,
    /// I/Os per second of all sessions together, started on a fixed schedule. Latencies count from the scheduled start
    /// of an I/O. --depth limits the outstanding I/Os.
    #[arg(long, value_name = "IOPS")]
    rate: Option<f64>,
    /// Distribution of random I/Os: `uniform`, `zipf:THETA`, or `hot:ACCESSES/SPACE` in percent, such as `hot:90/10`.
    #[arg(long)]
    distribution: Option<Distribution>,
    /// Verify data: mark each written block, check each read against the writes of this run, and read all of it at
    /// the end. It costs CPU time.
    #[arg(long)]
    verify: bool,
    /// Overwrite the disk even if it has a file system, a partition table, swap or the like.
    #[arg(long)]
    destroy: bool,
    /// Run the jobs of a fio file (`.fio`) or the access specifications of an Iometer file (`.icf`) one after
    /// another; with --spec, only the one of that name. Other flags override the file.
    #[arg(long, value_name = "FILE")]
    job: Option<PathBuf>,
    /// Cache mode of a file or block device: writeback, writethrough, none, directsync or unsafe [default: writeback]
    #[arg(long, value_name = "MODE", value_parser = CacheMode::parse)]
    cache: Option<CacheMode>,
    /// Request header digests (CRC32C).
    #[arg(long)]
    header_digest: bool,
    /// Request data digests (CRC32C).
    #[arg(long)]
    data_digest: bool,
    /// Process id of the target on this machine, to measure its CPU time and memory.
    #[arg(long = "pid")]
    pids: Vec<u32>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct ReplayArguments {
    /// The trace: a file (MSR Cambridge CSV, blkparse text, or `time_s,op,offset,length`), or `lu-du`: 8,626 requests
    /// with 70 % reads, created from the seed.
    trace: PathBuf,
    /// The target: `iscsi://host[:port]/target/lun`, `nbd://host[:port]/export`, `nbd+unix:///export?socket=PATH`, or
    /// the path of a file or block device.
    endpoint: String,
    /// Format of the trace: msr, blkparse or csv. Default: derived from its first line.
    #[arg(long)]
    format: Option<Format>,
    /// Replay at the times of the trace, divided by this factor: 1 is as recorded. Default: as fast as the depth
    /// permits.
    #[arg(long, value_name = "FACTOR")]
    speed: Option<f64>,
    /// Number of outstanding I/Os of each session.
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Number of sessions, with one connection each; with several portals in the URL, all use the same paths.
    #[arg(long, default_value_t = 1)]
    sessions: u32,
    /// Overwrite the disk even if it has a file system, a partition table, swap or the like.
    #[arg(long)]
    destroy: bool,
    /// Seed of `lu-du`.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Process id of the target on this machine, to measure its CPU time and memory.
    #[arg(long = "pid")]
    pids: Vec<u32>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct FilesArguments {
    /// The folder.
    folder: PathBuf,
    /// Create or replace the files. Each is durable (fsync) when its time ends. Without this, the files of an earlier
    /// --write are read; those in the page cache are not read from the network.
    #[arg(long)]
    write: bool,
    /// Delete the files at the end.
    #[arg(long)]
    remove: bool,
    /// Size of a file.
    #[arg(long, value_name = "SIZE", default_value = "4KiB", value_parser = parse_size)]
    size: u64,
    /// Number of files.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    count: u32,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    match verb {
        Verb::Files(arguments) => run_files(&arguments),
        Verb::Load(arguments) => run_load(&arguments),
        Verb::Replay(arguments) => run_replay(&arguments),
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Studies { study, json } => studies::list(study.as_deref(), json),
        Verb::Specs(arguments) => list_specs(&arguments),
        Verb::Runs(arguments) => archive::list(&arguments),
        Verb::Report(arguments) => archive::report(&arguments),
        Verb::Show(arguments) => archive::show(&arguments),
        Verb::Compare(arguments) => archive::compare(&arguments),
        Verb::Remove(arguments) => archive::remove(&arguments),
    }
}

fn endpoint(text: &str) -> anyhow::Result<Endpoint> {
    // The text may contain a secret, so the error does not repeat it.
    let mut endpoint = text.parse()?;
    if let Endpoint::Iscsi(url) = &mut endpoint {
        url.chap.complete(variable);
    }
    Ok(endpoint)
}

fn list_specs(arguments: &SpecsArguments) -> anyhow::Result<()> {
    if let Some(path) = &arguments.icf {
        let specifications = access::NAMED.iter().map(icf::Specification::from).collect();
        let configuration = icf::Configuration { specifications, ..Default::default() };
        return fs::write(path, icf::render(&configuration))
            .with_context(|| path.display().to_string());
    }
    for NamedPattern { name, access } in &access::NAMED {
        let AccessPattern { block_bytes, read_percent, random_percent, queue_depth } = access;
        if arguments.json {
            let line = serde_json::json!({
                "name": name, "block_bytes": block_bytes, "read_percent": read_percent,
                "random_percent": random_percent, "queue_depth": queue_depth,
            });
            print_line(&line.to_string())?;
            continue;
        }
        print_line(&format!(
            "{name}: {block_bytes} bytes, {read_percent} % reads, {random_percent} % random, \
             {queue_depth} outstanding"
        ))?;
    }
    Ok(())
}

fn run_load(arguments: &LoadArguments) -> anyhow::Result<()> {
    let mut endpoint = endpoint(&arguments.endpoint)?;
    if let Some(mode) = arguments.cache {
        let Endpoint::File { cache, .. } = &mut endpoint else {
            bail!("--cache is for files and block devices; {endpoint} is neither");
        };
        *cache = mode;
    }
    let Some(file) = &arguments.job else {
        let options = options(arguments, endpoint)?;
        note_writes(&options);
        let result = load::run(&options)?;
        print(None, &result, arguments.json)?;
        return outcome(&result);
    };
    let mut jobs = read_jobs(file, &endpoint)?;
    if let Some(name) = &arguments.spec {
        let known: Vec<_> = jobs.iter().map(|job| job.0.clone()).collect();
        jobs.retain(|job| job.0 == *name);
        ensure!(
            !jobs.is_empty(),
            "{} has no job {name:?}; it has: {}",
            file.display(),
            known.join(", ")
        );
    }
    ensure!(!jobs.is_empty(), "{} has no jobs", file.display());
    let mut failures = Vec::new();
    for (name, mut options) in jobs {
        refine(&mut options, arguments)?;
        note_writes(&options);
        // The other jobs may still succeed.
        let ended = load::run(&options).map_err(anyhow::Error::from).and_then(|result| {
            print(Some(&name), &result, arguments.json)?;
            outcome(&result)
        });
        if let Err(error) = ended {
            if let Some(LoadError::Occupied(_)) = error.downcast_ref() {
                return Err(error);
            }
            failures.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(failures.is_empty(), "{}", failures.join("; "));
    Ok(())
}

fn note_writes(options: &LoadOptions) {
    if !options.only_reads() {
        note(format!("this load overwrites {}", options.endpoint));
    }
}

fn run_replay(arguments: &ReplayArguments) -> anyhow::Result<()> {
    let endpoint = endpoint(&arguments.endpoint)?;
    let access = AccessPattern {
        block_bytes: 4096,
        read_percent: 100,
        random_percent: 100,
        queue_depth: arguments.depth,
    };
    let mut options = LoadOptions::new(endpoint, access);
    options.sessions = arguments.sessions;
    options.destroy = arguments.destroy;
    options.target_pids.clone_from(&arguments.pids);
    let requests: load::Requests = if arguments.trace == Path::new("lu-du") {
        ensure!(arguments.speed.is_none(), "lu-du has no times for --speed");
        Box::new(Synthetic::lu_du(arguments.seed))
    } else {
        Box::new(trace::open(&arguments.trace, arguments.format)?)
    };
    let result = load::replay(&options, requests, arguments.speed)?;
    print(None, &result, arguments.json)?;
    outcome(&result)
}

fn print(job: Option<&str>, result: &LoadResult, json: bool) -> anyhow::Result<()> {
    if json {
        let mut value = serde_json::to_value(result)?;
        if let (Some(name), Some(object)) = (job, value.as_object_mut()) {
            object.insert("job".into(), name.into());
        }
        print_line(&value.to_string())?;
    } else {
        if let Some(name) = job {
            print_line(&format!("{name}:"))?;
        }
        print_line(&render(result))?;
        for line in details(result) {
            print_line(&format!("  {line}"))?;
        }
    }
    Ok(())
}

fn run_files(arguments: &FilesArguments) -> anyhow::Result<()> {
    let operation = if arguments.write { FileOperation::Write } else { FileOperation::Read };
    let load = FileLoad {
        folder: arguments.folder.clone(),
        bytes: arguments.size,
        count: arguments.count,
        operation,
    };
    let result = load.run()?;
    if arguments.remove {
        load.remove()?;
    }
    if arguments.json {
        return print_line(&serde_json::to_string(&result)?);
    }
    let FileResult { files, file_bytes, mean_us, min_us, p50_us, max_us, deviation_us } = result;
    print_line(&format!(
        "{files} files of {file_bytes} bytes: mean {mean_us:.0} µs, deviation {deviation_us:.0} µs, min {min_us:.0} µs, p50 \
         {p50_us:.0} µs, max {max_us:.0} µs"
    ))
}

fn outcome(result: &LoadResult) -> anyhow::Result<()> {
    if let Some(count @ 1..) = result.mismatches {
        let first = result.mismatched.first().map_or("", |first| &first.detail);
        bail!("{count} blocks differ from the written data, the first one: {first}");
    }
    match result.failure() {
        None => Ok(()),
        Some(failure) => Err(anyhow!(failure)),
    }
}

/// Reads the jobs of a file with their names. Unsupported options are reported on standard error.
fn read_jobs(file: &Path, endpoint: &Endpoint) -> anyhow::Result<Vec<(String, LoadOptions)>> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let name = file.display().to_string();
    let plain =
        AccessPattern { block_bytes: 4096, read_percent: 100, random_percent: 100, queue_depth: 1 };
    let mut jobs = Vec::new();
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("fio") => {
            let found = fio::parse(&name, &text)?;
            for fio::UntranslatedOption { line, option, reason, .. } in &found.untranslated {
                note(format_args!("{name}:{line}: {option} is ignored: {reason}"));
            }
            for job in found.jobs {
                let mut options = LoadOptions::new(endpoint.clone(), plain);
                set_mix(&mut options, job.mix);
                options.distribution = job.distribution;
                options.sessions = job.sessions;
                options.duration = job.runtime.unwrap_or(options.duration);
                options.warm_up = options.warm_up.max(job.ramp_time);
                (options.offset, options.size) = (job.offset, job.size);
                options.verify = job.verify;
                options.rate = job.rate_iops.map(|rate| f64::from(rate) * f64::from(job.sessions));
                options.seed = job.seed.unwrap_or(options.seed);
                jobs.push((job.name, options));
            }
        }
        Some("icf") => {
            let found = icf::parse(&name, &text)?;
            for specification in found.specifications {
                let (mix, left_out) = specification.to_mix(found.outstanding.unwrap_or(1));
                for what in left_out {
                    note(format_args!("{name}: {}: ignored: {what}", specification.name));
                }
                let mut options = LoadOptions::new(endpoint.clone(), plain);
                set_mix(&mut options, mix);
                if !found.run_time.is_zero() {
                    options.duration = found.run_time;
                }
                options.warm_up = options.warm_up.max(found.ramp_up);
                jobs.push((specification.name, options));
            }
        }
        _ => bail!("{name}: the ending must be .fio or .icf"),
    }
    Ok(jobs)
}

/// Converts a mix to an access specification if it is one, which is cheaper to run.
fn set_mix(options: &mut LoadOptions, mix: Mix) {
    match mix.as_access() {
        Some(access) => (options.access, options.mix) = (access, None),
        None => options.mix = Some(mix),
    }
}

/// Applies the flags, which override the specification or the job.
fn refine(options: &mut LoadOptions, arguments: &LoadArguments) -> anyhow::Result<()> {
    let mut mix = options.mix.take().unwrap_or_else(|| options.access.into());
    for part in &mut mix.parts {
        if let Some(bytes) = arguments.block_size {
            part.block_bytes = u32::try_from(bytes).context("--block-size is too large")?;
        }
        part.read_percent = arguments.read.unwrap_or(part.read_percent);
        part.random_percent = arguments.random.unwrap_or(part.random_percent);
    }
    mix.queue_depth = arguments.depth.unwrap_or(mix.queue_depth);
    set_mix(options, mix);
    options.sessions = arguments.sessions.unwrap_or(options.sessions);
    if let Some(seconds) = arguments.seconds {
        options.duration = Duration::try_from_secs_f64(seconds).context("--seconds")?;
    }
    if let Some(seconds) = arguments.warm_up {
        options.warm_up = Duration::try_from_secs_f64(seconds).context("--warm-up")?;
    }
    if let Some(seconds) = arguments.stall_limit {
        options.stall_limit = Duration::try_from_secs_f64(seconds).context("--stall-limit")?;
    }
    options.rate = arguments.rate.or(options.rate);
    options.distribution = arguments.distribution.unwrap_or(options.distribution);
    options.verify |= arguments.verify;
    options.destroy = arguments.destroy;
    options.header_digest = arguments.header_digest;
    options.data_digest = arguments.data_digest;
    options.target_pids.clone_from(&arguments.pids);
    Ok(())
}

fn options(arguments: &LoadArguments, endpoint: Endpoint) -> anyhow::Result<LoadOptions> {
    let access = match &arguments.spec {
        Some(name) => {
            access::find(name)
                .with_context(|| {
                    let names: Vec<_> = access::NAMED.iter().map(|known| known.name).collect();
                    format!(
                        "access specification {name:?} does not exist; known: {}",
                        names.join(", ")
                    )
                })?
                .access
        }
        None => AccessPattern {
            block_bytes: 4096,
            read_percent: 100,
            random_percent: 100,
            queue_depth: 32,
        },
    };
    let mut options = LoadOptions::new(endpoint, access);
    refine(&mut options, arguments)?;
    Ok(options)
}

/// Formats the lines of a result after the first.
fn details(result: &LoadResult) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(reads), Some(writes)) = (&result.reads, &result.writes) {
        for (what, direction) in [("reads", reads), ("writes", writes)] {
            let DirectionResult { ios, mb_per_s, mean_us, p50_us, p99_us, p999_us, max_us } =
                direction;
            lines.push(format!(
                "{what}: {ios}, {mb_per_s:.1} MB/s, latency mean {mean_us:.0} µs, p50 {p50_us:.0} µs, p99 {p99_us:.0} \
                 µs, p99.9 {p999_us:.0} µs, max {max_us:.0} µs"
            ));
        }
    }
    if !result.steady {
        lines
            .push("not steady: IOPS drifted by more than 10 %, or spread by more than 20 %".into());
    }
    lines.extend(result.disturbances());
    if let (Some(rate), Some(backlog)) = (result.rate, result.backlog) {
        lines.push(format!(
            "{rate} I/Os a second were requested; {backlog} were still waiting at the end"
        ));
    }
    if let (Some(blocks), Some(mismatches)) = (result.verified_blocks, result.mismatches) {
        let read_back = result.read_back_blocks.unwrap_or(0);
        lines.push(format!(
            "{blocks} blocks verified, {read_back} of them when the load was over, {mismatches} wrong"
        ));
        lines.extend(result.mismatched.iter().map(|mismatch| mismatch.detail.clone()));
    }
    if let Some(wrapped @ 1..) = result.wrapped {
        lines.push(format!(
            "{wrapped} requests beyond the end of the disk were moved to its beginning"
        ));
    }
    lines
}

/// Formats a result as one line.
pub(crate) fn render(result: &LoadResult) -> String {
    let mut line = format!(
        "{:.0} IOPS, {:.1} MB/s, latency p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs",
        result.iops, result.mb_per_s, result.p50_us, result.p99_us, result.p999_us
    );
    if let Some(cpu) = result.target_cpu_us_per_io {
        line += &format!(", target CPU {cpu:.2} µs/IO");
    }
    line
}
