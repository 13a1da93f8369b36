//! Compares the program with other targets: speed (`bench`) and conformance to libiscsi's suite (`conformance`,
//! `scoreboard`). `cargo xtask` builds and starts it; it is a program of its own so that other tasks need no target.
#![allow(
    clippy::disallowed_methods,
    reason = "drives other processes in real time; nothing of the program runs in here"
)]

mod bench;
mod conformance;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Comparisons of the program with other targets.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    comparison: Comparison,
}

#[derive(Subcommand)]
enum Comparison {
    /// Compares the program with tgt, istgt and the limit, with one client, interleaved.
    Bench(bench::Options),
    /// libiscsi's suite, with a table by family.
    Conformance(conformance::Options),
    /// The same also against tgt and istgt (their packages are required): writes docs/conformance.md.
    Scoreboard,
}

fn main() -> Result<()> {
    match Arguments::parse().comparison {
        Comparison::Bench(options) => bench::run(&options),
        Comparison::Conformance(options) => conformance::run(&options),
        Comparison::Scoreboard => conformance::scoreboard(),
    }
}
