//! `sarsen`: arguments, output, exit codes; everything else is in the libraries below.

// These macros panic when the output cannot be written: use the functions of `output` instead.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod account;
mod apply;
mod completions;
mod control;
mod demo;
mod discover;
mod disk;
mod doctor;
mod event;
mod exit;
mod host;
mod import;
mod lab;
mod man;
mod metrics;
mod output;
mod portal;
mod serve;
mod session;
mod state;
mod target;
mod tgtadm;
mod top;
mod upgrade;
mod volume;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::output::{LogFormat, start_logging};

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
    Serve(Box<serve::Arguments>),
    /// Let the server that runs become the program that is installed now. It keeps its process id and its
    /// listening sockets; initiators are asked to log out, and come back.
    Upgrade(control::ServerOptions),
    /// Make, change and list the volumes of a running server.
    #[command(subcommand)]
    Volume(volume::Verb),
    /// Make, change and list targets, take them out of service, and print how they are reached.
    #[command(subcommand)]
    Target(target::Verb),
    /// Give initiators names, for targets' rules to speak of.
    #[command(subcommand)]
    Host(host::Verb),
    /// Make, change and list the accounts with which initiators and targets prove who they are.
    #[command(subcommand)]
    Account(account::Verb),
    /// Choose where a running server listens.
    #[command(subcommand)]
    Portal(portal::Verb),
    /// Make of a running server what a file says, whole or not at all.
    Apply(apply::Arguments),
    /// Show what `apply` would do.
    Diff(apply::DiffArguments),
    /// Print what a running server is to be, as `apply` takes it.
    Export(apply::ExportArguments),
    /// List the last changes of a running server, and who made them.
    History(apply::HistoryArguments),
    /// Look after the sessions of a running server.
    #[command(subcommand)]
    Session(session::Verb),
    /// Show who is busy and who is slow, second after second.
    Top(top::Arguments),
    /// Look at what happened at a running server.
    #[command(subcommand)]
    Event(event::Verb),
    /// Print what a running server counts, as OpenMetrics text.
    Metrics(metrics::Arguments),
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
    /// Change a running server as tgtadm would tgtd: what Cinder, Pacemaker's agents and tgt-admin call. A link
    /// named tgtadm to this program does the same.
    #[command(disable_help_flag = true)]
    Tgtadm {
        /// tgtadm's own: `sarsen tgtadm --help` has them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "FLAGS")]
        arguments: Vec<std::ffi::OsString>,
    },
    /// Print what a shell needs to complete `sarsen`'s verbs and flags.
    Completions(completions::Arguments),
    /// Write a manual page for each verb.
    #[command(hide = true)]
    Man(man::Arguments),
}

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if tgtadm::is_meant(words.next().as_ref()) {
        start_logging("warn", LogFormat::Text, false);
        return tgtadm::run(words);
    }
    let arguments = Arguments::parse();
    // What serves tells its story by the log; elsewhere that would only interrupt.
    let serves = matches!(arguments.verb, Verb::Serve(_));
    let format = match &arguments.verb {
        Verb::Serve(arguments) => arguments.log_format,
        _ => LogFormat::Text,
    };
    start_logging(if serves { "info" } else { "warn" }, format, serves);
    let outcome = match arguments.verb {
        Verb::Serve(arguments) => serve::run(&arguments),
        Verb::Upgrade(options) => upgrade::run(&options),
        Verb::Volume(verb) => volume::run(verb),
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
