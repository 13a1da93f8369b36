//! `cargo xtask fuzz`: builds the targets of `fuzz/` with libFuzzer's instrumentation and runs them. The flags are
//! those of cargo-fuzz without a sanitizer, which a stable compiler accepts.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{fs, thread};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use crate::shell;

/// The package of the targets.
const PACKAGE: &str = "sarsen-fuzz";

/// Coverage counters and comparisons for libFuzzer.
const INSTRUMENTATION: &[&str] = &[
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

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
                shell::run(std::process::Command::new(&target.program).arg(input))?;
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
fn fuzz(targets: &[Target], seconds: u64) -> Result<()> {
    let workers = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            target.fuzz(seconds).inspect_err(|_| next.store(targets.len(), Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

struct Target {
    name: String,
    program: PathBuf,
}

impl Target {
    fn fuzz(&self, seconds: u64) -> Result<()> {
        let folder = |kind: &str| Path::new("fuzz").join(kind).join(&self.name);
        let (corpus, artifacts) = (folder("corpus"), folder("artifacts"));
        fs::create_dir_all(&corpus)?;
        fs::create_dir_all(&artifacts)?;
        println!("fuzzing {} for {seconds} s", self.name);
        let mut command = std::process::Command::new(&self.program);
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
                name = self.name,
                artifacts = artifacts.display(),
            )
        })
    }
}

fn names(targets: &[Target]) -> String {
    targets.iter().map(|target| target.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Builds every target; returns them in the order of their names.
fn build() -> Result<Vec<Target>> {
    let said = shell::output(shell::cargo().arg("-vV"))?;
    let host = said
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .context("`cargo -vV` names no host")?;
    let mut command = shell::cargo();
    command.args(["build", "--quiet", "--package", PACKAGE, "--profile", "fuzz"]);
    command.args(["--message-format", "json-render-diagnostics"]);
    // With an explicit target, build scripts and macros are not instrumented.
    command.args(["--target", host]);
    command.env("CARGO_ENCODED_RUSTFLAGS", INSTRUMENTATION.join("\x1f"));
    let mut targets = executables(&shell::output(&mut command)?);
    targets.sort_by(|one, other| one.name.cmp(&other.name));
    ensure!(!targets.is_empty(), "{PACKAGE} has no target");
    Ok(targets)
}

fn executables(messages: &str) -> Vec<Target> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| {
            let program = message["executable"].as_str()?.into();
            Some(Target { name: message["target"]["name"].as_str()?.into(), program })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_the_executables_that_cargo_built() {
        let messages = concat!(
            r#"{"target":{"name":"sarsen_block"},"executable":null}"#,
            "\n",
            r#"{"target":{"name":"framer"},"executable":"/t/framer"}"#,
        );
        let targets = executables(messages);
        assert_eq!(names(&targets), "framer");
        assert_eq!(targets[0].program, Path::new("/t/framer"));
    }
}
