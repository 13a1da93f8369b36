//! `cargo xtask fuzz`: builds the targets of `fuzz/` with libFuzzer's instrumentation and runs them. The flags are
//! those of cargo-fuzz without a sanitizer, which a stable compiler accepts. Only the project's own crates are
//! instrumented: their dependencies are shared with the tests.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::program;
use crate::shell::{self, Executable};

/// The sources of the targets, a file for each.
const SOURCES: &str = "fuzz/targets";

/// Instruments the crates of the workspace.
const INSTRUMENTED: &str = "fuzz/instrumented";

/// An input that takes this long is a finding: all targets must be fast.
const TIMEOUT_SECONDS: u64 = 10;
/// Maximum memory. A target that trusts a length from a peer exceeds it.
const MEMORY_LIMIT_MIB: u64 = 1024;

#[derive(Args)]
pub(crate) struct Options {
    /// Seconds for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Run only this target.
    #[arg(long)]
    target: Option<String>,
    /// Replay this input instead (needs --target).
    #[arg(long, requires = "target")]
    input: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut targets = build()?;
    if let Some(name) = &options.target {
        let known = names(&targets);
        targets.retain(|target| target.name == *name);
        ensure!(!targets.is_empty(), "there is no target {name}; there are {known}");
    }
    match &options.input {
        Some(input) => {
            for target in &targets {
                shell::run(std::process::Command::new(&target.path).arg(input))?;
            }
            Ok(())
        }
        None => fuzz(&targets, options.seconds),
    }
}

/// Runs every target for this number of seconds.
pub(crate) fn all(seconds: u64) -> Result<()> {
    fuzz(&build()?, seconds)
}

/// Fuzzes targets, as many at the same time as there are processors. A find stops those that have not started.
fn fuzz(targets: &[Executable], seconds: u64) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            fuzz_target(target, seconds)
                .inspect_err(|_| next.store(targets.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

fn fuzz_target(target: &Executable, seconds: u64) -> Result<()> {
    let folder = |kind: &str| Path::new("fuzz").join(kind).join(&target.name);
    let (corpus, artifacts) = (folder("corpus"), folder("artifacts"));
    fs::create_dir_all(&corpus)?;
    fs::create_dir_all(&artifacts)?;
    println!("fuzzing {} for {seconds} s", target.name);
    let mut command = std::process::Command::new(&target.path);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-timeout={TIMEOUT_SECONDS}"))
        .arg(format!("-rss_limit_mb={MEMORY_LIMIT_MIB}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-verbosity=0", "-print_final_stats=1"])
        .arg(&corpus);
    // New inputs go to the corpus; the seeds are part of the project and stay unchanged.
    let seeds = folder("seeds");
    if seeds.is_dir() {
        command.arg(seeds);
    }
    shell::run(&mut command).with_context(|| {
        format!(
            "{name} found something: the input lies in {artifacts}; replay it with `cargo \
             xtask fuzz --target {name} --input FILE`, and keep it in fuzz/seeds/{name} when \
             it is mended",
            name = target.name,
            artifacts = artifacts.display(),
        )
    })
}

fn names(targets: &[Executable]) -> String {
    targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Builds every target; returns them in the order of their names.
fn build() -> Result<Vec<Executable>> {
    let mut command = shell::cargo();
    program::all_but_the_simulation(command.args(["build", "--quiet"]));
    for source in fs::read_dir(SOURCES)? {
        command.arg("--bin").arg(source?.path().file_stem().context("a target's name")?);
    }
    command.env("RUSTC_WORKSPACE_WRAPPER", Path::new(INSTRUMENTED).canonicalize()?);
    command.env("CARGO_INCREMENTAL", "0");
    let mut targets = shell::executables(&mut command)?;
    targets.sort_by(|one, other| one.name.cmp(&other.name));
    ensure!(!targets.is_empty(), "{SOURCES} has no target");
    Ok(targets)
}
