//! NBD (the protocol's own document, doc/proto.md; layouts in `sarsen_wire::nbd`).
//!
//! [`client`] sends requests. [`output`] collects the data to send.

pub mod client;
pub mod output;
mod slots;

pub use client::{Client, ClientError, Event, Export, Request};
pub use output::Output;
