//! Protocol state machines without I/O. Their inputs are bytes and time, their outputs are events and bytes.
//!
//! This crate opens no sockets, reads no clocks and starts no threads. `sarsen-io` does this, and a simulation can
//! replace it.

mod command_memory;
pub mod iscsi;
#[cfg(feature = "isns")]
pub mod isns;
pub mod nbd;

pub use command_memory::Budget;
