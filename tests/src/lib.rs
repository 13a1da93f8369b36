//! Proofs of the program from the outside. Each proof starts it as a user would, and real clients (libiscsi's suite,
//! QEMU's tools, a Linux kernel in a guest) decide whether it is correct.
//!
//! The proofs are in `proofs/`; `cargo xtask` uses the same functions for its conformance table and its benchmark. No
//! code here runs a part of the target, because a proof that shares code with the target shares its errors. The lab
//! starts the programs, including the target. Real clients lack some functions (a ledger across crashes, many sessions,
//! PDUs out of order); such proofs use the project's own initiator.
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
pub mod virtual_machine;
pub mod write_log;

pub use accounts::Accounts;
pub use sarsen_lab::process;
pub use serving::{Backing, Serving, Volume, pool_in, pool_on};
