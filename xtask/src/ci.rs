//! `cargo xtask ci`: all checks that a change must pass, cheapest first. The tests are last, so that the output ends
//! with cargo's own summary.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::{console, fuzz, instructions, package, program, requirements, shell, tidy};

/// Seconds for each target, in the short and in the full run.
const FUZZ_SECONDS: (u64, u64) = (5, 60);

/// Time limit to fetch the database of advisories and to search it.
const ADVISORIES_LIMIT: Duration = Duration::from_secs(120);

/// Passes the path of the program to its tests.
const PROGRAM_VARIABLE: &str = "SARSEN_BIN";
/// Passes the path of the package to its tests.
const PACKAGE_VARIABLE: &str = "SARSEN_DEB";

#[derive(Args)]
pub(crate) struct Options {
    /// Also run slow checks: kernel guests, other ignored tests, long fuzzing, cargo-deny.
    #[arg(long)]
    full: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let begun = Instant::now();
    step("packages", || requirements::install(options.full))?;
    step("format", || shell::run(shell::cargo().args(["fmt", "--all", "--check"])))?;
    step("tidy", tidy::run)?;
    step("clippy", || {
        let mut clippy = shell::cargo();
        clippy.args(["clippy", "--quiet", "--workspace", "--all-targets", "--", "-D", "warnings"]);
        shell::run(&mut clippy)
    })?;
    step("clippy without features", || {
        let mut clippy = shell::cargo();
        clippy.args(["clippy", "--quiet", "--package", "sarsen", "--no-default-features"]);
        shell::run(clippy.args(["--", "-D", "warnings"]))
    })?;
    step("documentation", || {
        let mut doc = shell::cargo();
        doc.args(["doc", "--quiet", "--workspace", "--no-deps", "--document-private-items"]);
        shell::run(doc.env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    let mut program = None;
    step("build", || {
        // The short run tests a program that shares its dependencies with the tests. Speed is not tested.
        let built = if options.full { program::build() } else { program::build_with_tests() };
        program = Some(built?);
        Ok(())
    })?;
    let program = program.context("the built program")?;
    let mut package = None;
    if options.full {
        step("package", || {
            package = Some(shell::root().join(package::deb(&program)?));
            Ok(())
        })?;
    }
    let (short, long) = FUZZ_SECONDS;
    step("fuzzing", || fuzz::all(if options.full { long } else { short }))?;
    if options.full {
        step("licences and advisories", deny)?;
        step("console", console::check)?;
        step("instructions", || instructions::run(&instructions::Options::default()))?;
    }
    println!("== tests, after {:.0} s; nothing follows them", begun.elapsed().as_secs_f64());
    let run = |test: &mut Command| {
        if options.full {
            test.args(["--", "--include-ignored"]);
        }
        // Errors of the proofs have all details already.
        test.env("RUST_LIB_BACKTRACE", "0");
        test.env(PROGRAM_VARIABLE, &program);
        if let Some(package) = &package {
            test.env(PACKAGE_VARIABLE, package);
        }
        shell::run(test).context("the gate's step `tests`")
    };
    // One run reports all failures.
    let simulated = run(shell::cargo().args(["test", "--workspace", "--test", "simulation"]));
    let tested =
        run(program::all_but_the_simulation(shell::cargo().args(["test", "--no-fail-fast"])));
    simulated.and(tested)
}

fn step(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let begun = Instant::now();
    let done = work();
    let seconds = begun.elapsed().as_secs_f64();
    match &done {
        Ok(()) => println!("== {name}: {seconds:.1} s"),
        Err(_) => println!("== {name}: FAILED after {seconds:.1} s"),
    }
    done.with_context(|| format!("the gate's step `{name}`"))
}

fn deny() -> Result<()> {
    if !shell::succeeds(shell::cargo().args(["deny", "--version"])) {
        println!("not checked: `cargo install --locked cargo-deny` brings the tool");
        return Ok(());
    }
    shell::run(&mut cargo_deny(&["bans", "licenses", "sources"]))?;
    // Needs its database from the network, which may be unavailable.
    let advisories = shell::finish(&cargo_deny(&["advisories"]), ADVISORIES_LIMIT)?;
    if advisories.output.contains("failed to fetch advisory database") {
        println!("advisories were not checked: their database cannot be reached from here");
        return Ok(());
    }
    advisories.success()?;
    Ok(())
}

fn cargo_deny(checks: &[&str]) -> Command {
    let mut command = shell::cargo();
    command.args(["deny", "--workspace", "check"]).args(checks);
    command
}
