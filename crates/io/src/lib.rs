//! The only crate that communicates with the kernel, and the only clock: core threads, sockets, files (by io_uring, or
//! by a pool of threads if that is forbidden), shared memory, timers, randomness.
//!
//! Each core is a thread with a current-thread runtime and a ring; all cores share the pool ([`cores`]). Sockets use
//! readiness ([`net`]), files use completion ([`mod@file`]), and small files are replaced whole ([`record`]). The
//! crates above this one contain no unsafe code and read no clock, so a simulation can replace all of it.

pub mod cores;
pub mod descriptors;
pub mod eventfd;
pub mod file;
pub mod handover;
pub mod heap;
pub mod local;
pub mod log;
pub mod machine;
pub mod memory;
pub mod name_lock;
pub mod namespace;
pub mod nbd_device;
pub mod net;
mod pool;
pub mod process;
pub mod random;
pub mod record;
mod ring;
#[cfg(feature = "pass-through")]
pub mod sg;
#[cfg(feature = "simulation")]
pub mod simulation;
pub mod socket;
pub mod spin;
mod switches;
pub mod tap;
pub mod threads;
pub mod time;
pub mod tls;
pub mod ublk;
mod vectored;
pub mod wake_ups;
