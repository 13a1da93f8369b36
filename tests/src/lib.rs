//! What proves the program from the outside: it is started as a person would start it, and real
//! clients (libiscsi's suite, QEMU's tools, a Linux kernel in a guest) decide whether it is right.
//!
//! The proofs are in `proofs/`; `cargo xtask` uses the same pieces for its conformance table and
//! its benchmark. Nothing here runs a part of the target: a proof that shares code with what it
//! proves shares its mistakes. Starting programs, the target among them, is the lab's. What real
//! clients do not offer (a ledger across crashes, a crowd, PDUs out of order) some proofs do with
//! the project's own initiator.
#![allow(
    clippy::disallowed_methods,
    reason = "drives other processes in real time; nothing of the program runs in here"
)]

pub mod accounts;
pub mod conformance;
pub mod guest;
pub mod laboratory;
pub mod managed;
pub mod program;
pub mod qemu;
pub mod scoreboard;
pub mod serving;

pub use accounts::Accounts;
pub use sarsen_lab::process;
pub use serving::{Backing, Serving, Volume};
