//! `sarsen`: arguments, output, exit codes. The library crates do everything else.

// These macros panic if output fails: use the functions of `output` instead.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod account;
mod apply;
mod attach;
mod completions;
mod control;
mod demo;
mod discover;
mod disk;
mod doctor;
mod event;
mod examples;
mod exit;
mod host;
mod import;
mod lab;
mod man;
mod metrics;
mod output;
mod pool;
mod portal;
mod serve;
mod session;
mod snapshot;
mod state;
mod target;
mod tgtadm;
mod top;
mod upgrade;
mod volume;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::filter::LevelFilter;

use crate::output::{LogFormat, start_logging};

/// A SAN in one program: serves disks over iSCSI and NBD, attaches to them, and measures them.
#[derive(Parser)]
#[command(name = "sarsen", version, max_term_width = 100, after_help = exit::help())]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve volumes over iSCSI and NBD until SIGTERM or SIGINT.
    Serve(Box<serve::Arguments>),
    /// Replace the running server by the installed version. It keeps its process id and its listening sockets.
    /// Initiators are asked to log out, and log in again.
    Upgrade(control::ServerOptions),
    /// Create, change and list the volumes of a running server.
    #[command(subcommand)]
    Volume(volume::Verb),
    /// Create, change, list and check pools: devices from which volumes get space when they are written.
    #[command(subcommand)]
    Pool(pool::Verb),
    /// Create, list, roll back and delete snapshots of volumes in pools.
    #[command(subcommand)]
    Snapshot(snapshot::Verb),
    /// Create, change and list targets, take them out of service, and print commands for initiators.
    #[command(subcommand)]
    Target(target::Verb),
    /// Create, change and list hosts: names of initiators, for access rules and limits.
    #[command(subcommand)]
    Host(host::Verb),
    /// Create, change and list the accounts (CHAP) of initiators and targets.
    #[command(subcommand)]
    Account(account::Verb),
    /// Create, change and list the portals: the addresses on which the server listens.
    #[command(subcommand)]
    Portal(portal::Verb),
    /// Apply a document to a running server, as a whole or not at all.
    Apply(apply::Arguments),
    /// Show what `apply` would change.
    Diff(apply::DiffArguments),
    /// Print the configuration of a running server as a document that `sarsen apply` reads.
    Export(apply::ExportArguments),
    /// List the last changes of a running server with their authors.
    History(apply::HistoryArguments),
    /// List, trace and drain the sessions of a running server.
    #[command(subcommand)]
    Session(session::Verb),
    /// Show the busiest and slowest volumes and sessions, refreshed every second.
    Top(top::Arguments),
    /// List the events of a running server.
    #[command(subcommand)]
    Event(event::Verb),
    /// Print the metrics of a running server as OpenMetrics text.
    Metrics(metrics::Arguments),
    /// Serve a RAM volume, attach to it, check it and measure it. It takes half a minute and needs no root.
    Demo(demo::Arguments),
    /// List the targets of a portal (SendTargets).
    Discover(discover::Arguments),
    /// Read, write, copy, compare and erase disks of any iSCSI target, or exports of any NBD server, without attaching them.
    #[command(subcommand)]
    Disk(disk::Verb),
    /// Attach a disk of any iSCSI target or NBD server to this machine, as a block device, a disk of a virtual machine or an NBD socket. The program records attachments in
    /// /run/sarsen-attachments (below XDG_RUNTIME_DIR without root), or in the folder that SARSEN_ATTACHMENTS names.
    Attach(Box<attach::Arguments>),
    /// Detach an attached disk.
    Detach(attach::DetachArguments),
    /// List the attached disks.
    Attachments(attach::ListArguments),
    /// Measure any iSCSI target.
    #[command(subcommand)]
    Lab(lab::Verb),
    /// Check this machine and its server, and print problems with their remedies. Exits with 1 if there are problems,
    /// with 5 if there are warnings.
    Doctor(doctor::Arguments),
    /// Convert the configuration of another target program. Identities are kept, and settings without a counterpart
    /// are listed. Exits with 5 if one of these affects initiators.
    Import(import::Arguments),
    /// Change a running server with the flags of tgtadm, for Cinder, Pacemaker's agents and tgt-admin. A link named
    /// tgtadm to this program does the same.
    #[command(disable_help_flag = true)]
    Tgtadm {
        /// The flags of tgtadm: see `sarsen tgtadm --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print the completion script of a shell.
    Completions(completions::Arguments),
    /// Write a manual page for each verb.
    #[command(hide = true)]
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if tgtadm::is_meant(words.next().as_ref()) {
        start_logging(LevelFilter::WARN, LogFormat::Text, false);
        return tgtadm::run(words);
    }
    let matches = examples::add(Arguments::command()).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // What serves tells its story by the log; elsewhere that would only interrupt.
    let serves = match &arguments.verb {
        Verb::Serve(_) => true,
        Verb::Attach(arguments) => arguments.foreground,
        _ => false,
    };
    let format = match &arguments.verb {
        Verb::Serve(arguments) => arguments.log_format,
        _ => LogFormat::Text,
    };
    let level = match &arguments.verb {
        _ if serves => LevelFilter::INFO,
        // A study causes lost connections itself.
        Verb::Lab(lab::Verb::Run(_)) => LevelFilter::ERROR,
        _ => LevelFilter::WARN,
    };
    start_logging(level, format, serves);
    let outcome = match arguments.verb {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Upgrade(options) => upgrade::run(&options),
        Verb::Volume(verb) => volume::run(verb),
        Verb::Pool(verb) => pool::run(verb),
        Verb::Snapshot(verb) => snapshot::run(verb),
        Verb::Host(verb) => host::run(verb),
        Verb::Account(verb) => account::run(verb),
        Verb::Portal(verb) => portal::run(verb),
        Verb::Apply(arguments) => apply::run(&arguments),
        Verb::Diff(arguments) => apply::diff(&arguments),
        Verb::Export(arguments) => apply::export(&arguments),
        Verb::History(arguments) => apply::history(&arguments),
        Verb::Top(arguments) => top::run(&arguments),
        Verb::Event(verb) => event::run(verb),
        Verb::Metrics(arguments) => metrics::run(&arguments),
        Verb::Session(verb) => session::run(verb),
        Verb::Target(verb) => target::run(verb),
        Verb::Demo(arguments) => demo::run(arguments),
        Verb::Discover(arguments) => discover::run(arguments),
        Verb::Disk(verb) => disk::run(verb),
        Verb::Attach(arguments) => attach::run(&arguments),
        Verb::Detach(arguments) => attach::detach(&arguments),
        Verb::Attachments(arguments) => attach::list(&arguments),
        Verb::Lab(verb) => lab::run(verb),
        Verb::Doctor(arguments) => doctor::run(&arguments),
        Verb::Import(arguments) => import::run(&arguments),
        Verb::Tgtadm { arguments } => return tgtadm::run(arguments),
        Verb::Completions(arguments) => completions::run(&arguments, Arguments::command()),
        Verb::Man(arguments) => man::run(&arguments, Arguments::command()),
    };
    let code = exit::code(outcome);
    sarsen_io::log::flush();
    code
}
