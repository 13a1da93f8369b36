//! `sarsen`: arguments, output, exit codes; everything else is in the libraries below.

mod completions;
mod control;
mod demo;
mod discover;
mod disk;
mod doctor;
mod exit;
mod import;
mod lab;
mod man;
mod metrics;
mod serve;
mod session;
mod target;
mod upgrade;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// A SAN in one program: serves disks over iSCSI, attaches to them, and measures them.
#[derive(Parser)]
#[command(name = "sarsen", version, max_term_width = 100, after_help = exit::help())]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve volumes over iSCSI until SIGTERM or SIGINT.
    Serve(serve::Arguments),
    /// Let the server that runs become the program that is installed now. It keeps its process id and its
    /// listening sockets; initiators are asked to log out, and come back.
    Upgrade(control::Manner),
    /// Look after the sessions of a running server.
    #[command(subcommand)]
    Session(session::Verb),
    /// Print what a running server counts, as OpenMetrics text.
    Metrics(metrics::Arguments),
    /// Look after the targets of a running server.
    #[command(subcommand)]
    Target(target::Verb),
    /// Serve a RAM volume, attach to it, check it and measure it: half a minute, no root.
    Demo(demo::Arguments),
    /// List the targets that a portal offers.
    Discover(discover::Arguments),
    /// Read, write, copy, compare and erase disks of any iSCSI target, without attaching them.
    #[command(subcommand)]
    Disk(disk::Verb),
    /// Measure any iSCSI target.
    #[command(subcommand)]
    Lab(lab::Verb),
    /// Tell what is wrong with this machine for a storage server, and what to do about it. Exits with 1
    /// if there are problems, with 5 if there are warnings.
    Doctor(doctor::Arguments),
    /// Turn another target program's configuration into ours: identities are kept, and what could not be carried
    /// is listed. Exits with 5 if clients notice some of that.
    Import(import::Arguments),
    /// Print what a shell needs to complete `sarsen`'s verbs and flags.
    Completions(completions::Arguments),
    /// Write a manual page for each verb.
    #[command(hide = true)]
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // What serves tells its story by the log; elsewhere that would only interrupt.
    let serves = matches!(arguments.verb, Verb::Serve(_));
    start_logging(if serves { "info" } else { "warn" });
    let outcome = match arguments.verb {
        Verb::Serve(arguments) => serve::run(arguments),
        Verb::Upgrade(manner) => upgrade::run(&manner),
        Verb::Metrics(arguments) => metrics::run(&arguments),
        Verb::Session(verb) => session::run(verb),
        Verb::Target(verb) => target::run(verb),
        Verb::Demo(arguments) => demo::run(arguments),
        Verb::Discover(arguments) => discover::run(arguments),
        Verb::Disk(verb) => disk::run(verb),
        Verb::Lab(verb) => lab::run(verb),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Import(arguments) => import::run(&arguments),
        Verb::Completions(arguments) => completions::run(&arguments, Arguments::command()),
        Verb::Man(arguments) => man::run(&arguments, Arguments::command()),
    };
    exit::code(outcome)
}

/// Logs go to stderr; `RUST_LOG` chooses how much.
fn start_logging(default_level: &str) {
    use std::io::IsTerminal;
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_level));
    let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false)
        .init();
}
