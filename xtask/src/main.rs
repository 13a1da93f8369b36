//! The project's chores, one subcommand each: `cargo xtask --help`.
#![allow(
    clippy::disallowed_methods,
    reason = "drives other processes in real time; nothing of the program runs in here"
)]

mod bench;
mod ci;
mod conformance;
mod console;
mod fuzz;
mod instructions;
mod package;
mod requirements;
mod shell;
mod tidy;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Task,
}

#[derive(Subcommand)]
enum Task {
    /// The whole gate, the same for a person and for CI.
    Ci(ci::Options),
    /// Rules that neither the compiler nor clippy knows.
    Tidy,
    /// libiscsi's suite, with a table by family.
    Conformance(conformance::Options),
    /// The same against tgt and istgt as well (their packages are wanted): writes docs/conformance.md.
    Scoreboard,
    /// Coverage-guided fuzzing of every target in `fuzz/`.
    Fuzz(fuzz::Options),
    /// The program beside tgt, istgt and the limit, with one client, interleaved.
    Bench(bench::Options),
    /// The console, built with npm: what is committed as console/dist.
    Console,
    /// How many instructions an I/O takes, held against what was accepted (valgrind is wanted).
    Instructions(instructions::Options),
    /// What people install: a Debian package, a static program, an image for containers.
    Package(package::Options),
}

fn main() -> Result<()> {
    // Wherever it is called from, chores run at the root.
    std::env::set_current_dir(shell::root())?;
    match Arguments::parse().chore {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy => tidy::run(),
        Task::Conformance(options) => conformance::run(&options),
        Task::Scoreboard => conformance::scoreboard(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Bench(options) => bench::run(&options),
        Task::Console => console::build(),
        Task::Instructions(options) => instructions::run(&options),
        Task::Package(options) => package::run(&options),
    }
}
