//! Pseudo-random numbers from a seed, so that a workload can be repeated exactly. One number costs a few cycles for each
//! I/O.

pub use sarsen_block::conformance::Rng;
