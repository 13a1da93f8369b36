//! Everything that talks to the kernel, and the only clock: core threads, sockets, files (by
//! io_uring, or by a pool of threads where that is forbidden), shared memory, timers, randomness.
//!
//! Each core is a thread with a current-thread runtime, a ring and a share of the pool
//! ([`cores`]); sockets work by readiness ([`net`]), files by completion ([`mod@file`]), and
//! small ones are replaced whole ([`record`]). Nothing above
//! this crate contains unsafe code or reads a clock, so a simulation can stand in for all of it.

pub mod cores;
pub mod descriptors;
pub mod file;
pub mod handover;
pub mod heap;
pub mod local;
pub mod log;
pub mod machine;
pub mod memory;
pub mod namespace;
pub mod net;
mod pool;
pub mod process;
pub mod random;
pub mod record;
mod ring;
pub mod sg;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod spin;
pub mod tap;
pub mod threads;
pub mod time;
pub mod tls;
