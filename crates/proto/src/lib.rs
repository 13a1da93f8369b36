//! Protocol machines without I/O: bytes and time go in, events and bytes come out.
//!
//! Nothing here opens a socket, reads a clock or starts a thread; `sarsen-io` does, and a
//! simulation can stand in its place.

pub mod iscsi;
pub mod isns;
pub mod nbd;
