//! The project's development tasks, one subcommand each: `cargo xtask --help`.
#![allow(
    clippy::disallowed_methods,
    reason = "drives other processes in real time; nothing of the program runs in here"
)]

mod ci;
mod console;
mod fuzz;
mod instructions;
mod package;
mod program;
mod requirements;
mod shell;
mod tidy;

use std::ffi::OsString;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

/// Development tasks of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Task,
}

#[derive(Subcommand)]
enum Task {
    /// All checks, the same for a developer and for CI.
    Ci(ci::Options),
    /// Rules that neither the compiler nor clippy checks.
    Tidy,
    /// Coverage-guided fuzzing of every target in `fuzz/`.
    Fuzz(fuzz::Options),
    /// Compares the program with tgt, istgt and the limit, with one client, interleaved.
    #[command(disable_help_flag = true)]
    Bench(Forwarded),
    /// libiscsi's suite, with a table by family.
    #[command(disable_help_flag = true)]
    Conformance(Forwarded),
    /// The same also against tgt and istgt (their packages are required): writes docs/conformance.md.
    Scoreboard,
    /// Builds the console with npm: the files that are committed as console/dist.
    Console,
    /// Counts the instructions of an I/O and compares them with the accepted numbers (valgrind is required).
    Instructions(instructions::Options),
    /// Builds the packages to install: a Debian package, a static program, a container image.
    Package(package::Options),
}

/// Arguments of a task that the program in `compare/` carries out.
#[derive(Args)]
struct Forwarded {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

fn compare(task: &str, arguments: &[OsString]) -> Result<()> {
    let mut command = shell::cargo();
    command.args(["run", "--quiet", "--package", "sarsen-compare", "--", task]).args(arguments);
    shell::run(&mut command)
}

fn main() -> Result<()> {
    // The tasks run at the root, whatever the current folder is.
    std::env::set_current_dir(shell::root())?;
    match Arguments::parse().chore {
        Task::Ci(options) => ci::run(&options),
        Task::Tidy => tidy::run(),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::Bench(forwarded) => compare("bench", &forwarded.arguments),
        Task::Conformance(forwarded) => compare("conformance", &forwarded.arguments),
        Task::Scoreboard => compare("scoreboard", &[]),
        Task::Console => console::build(),
        Task::Instructions(options) => instructions::run(&options),
        Task::Package(options) => package::run(&options),
    }
}
