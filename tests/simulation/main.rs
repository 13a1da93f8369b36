//! A seed creates initiators, connections, disks and crashes. The server's own code runs with them on one thread, with
//! simulated time. The tests compare every acknowledged change with a model. Every command ends exactly once, and
//! nothing remains at the end. The same seed repeats the same run:
//!
//! ```text
//! SARSEN_SEED=17 RUST_LOG=debug cargo test -p sarsen-simulation a_seed -- --nocapture
//! ```
//!
//! `world` is the plan of a seed. `network` (with `payloads`), `disk` and `server` inject faults. `initiator` has a
//! `session` of several `connections` over a `link`, and sends `command`s. `model` knows the permitted answers, with
//! `fencing` for `reservation`s. `runner` runs seeds, and `tally` counts their events. `qos` uses no random numbers: it
//! tests limits to the millisecond. `control` includes the control plane, and a model of the access rules.

#![allow(
    clippy::disallowed_methods,
    reason = "a seed that does not come to its end is noticed in real time"
)]

mod command;
mod connections;
mod control;
mod disk;
mod fencing;
mod initiator;
mod link;
mod model;
mod nbd_store;
mod network;
mod payloads;
mod qos;
mod reservation;
mod runner;
mod server;
mod session;
mod stamp;
mod store;
mod tally;
mod world;

use disk::DiskDefect;
use runner::{all, run};
use world::Mutation;

/// The number of seeds of every gate.
const SEEDS: u64 = 300;
/// The number of seeds of the full gate.
const MANY_SEEDS: u64 = 10_000;
/// The number of seeds within which a mutation must be detected.
const MUTATION_SEEDS: u64 = 120;

#[test]
fn acknowledged_data_stays_and_each_command_ends_once() {
    all(1..=SEEDS);
}

#[test]
#[ignore = "takes minutes"]
fn acknowledged_data_stays_and_each_command_ends_once_for_many_seeds() {
    all(1..=MANY_SEEDS);
}

/// Runs the selected seed, or the first.
#[test]
fn a_seed_runs_the_same_again() {
    let named = std::env::var("SARSEN_SEED").ok();
    let seeds = match named.map(|seed| seed.parse().expect("SARSEN_SEED is a number")) {
        Some(seed) => vec![seed],
        None => (1..=20).collect(),
    };
    for seed in seeds {
        let first = run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        let second = run(seed, None).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(first, second, "seed {seed} ran differently the second time");
    }
}

/// Runs seeds until one fails because of the mutation.
fn is_found_out(mutation: Mutation) {
    let found = (1..=MUTATION_SEEDS).find_map(|seed| run(seed, Some(mutation)).err());
    let failure = found.unwrap_or_else(|| panic!("{mutation:?} was not noticed"));
    println!("{mutation:?}: {failure}");
}

#[test]
fn a_lost_write_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::LosesWrite));
}

#[test]
fn a_stale_read_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::ReadsStale));
}

#[test]
fn a_write_that_is_done_again_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::WritesAgain));
}

#[test]
fn a_flush_that_does_nothing_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::IgnoresFlush));
}

#[test]
fn a_durable_write_that_is_not_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::IgnoresDurability));
}

#[test]
fn a_reservation_that_is_forgotten_is_found_out() {
    is_found_out(Mutation::Disk(DiskDefect::ForgetsRecords));
}

#[test]
fn an_end_without_a_flush_is_found_out() {
    is_found_out(Mutation::EndsWithoutFlush);
}

#[test]
fn a_flipped_bit_without_digests_is_found_out() {
    is_found_out(Mutation::FlipsUnnoticed);
}
