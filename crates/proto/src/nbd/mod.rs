//! NBD (the protocol's own document, doc/proto.md; layouts in `sarsen_wire::nbd`).
//!
//! [`client`] is the end that asks; [`output`] gathers what is to be sent.

pub mod client;
pub mod output;

pub use client::{Client, ClientError, Event, Export, Request};
pub use output::Output;
