//! NBD (the protocol's own document, doc/proto.md; layouts in `sarsen_wire::nbd`).
//!
//! [`client`] sends requests, [`server`] answers them. [`output`] collects the data to send. Names that both ends have,
//! such as an export, are those of the client here; those of the server are in its module.

pub mod client;
pub mod output;
mod partial;
pub mod server;
mod slots;

pub use client::{Client, ClientError, Event, Export, Request};
pub use output::Output;
pub use server::{Server, ServerError};
