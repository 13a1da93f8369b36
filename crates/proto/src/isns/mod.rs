//! The client of an iSNS server (RFC 4171). Initiators ask the server for the addresses of targets.
//!
//! [`Client`] registers an [`Entity`] over one connection at a time, refreshes the registration and removes it.
//! `message` parses and builds messages. `registration` determines the attributes of an entity. [`Answerer`] answers
//! the server's own requests, which use connections that the server opens.

mod answer;
mod client;
mod message;
mod registration;
#[cfg(test)]
mod tests;

pub use self::answer::{Answerer, Notice};
pub use self::client::{Client, ClientError, Event};
pub use self::message::MessageError;
pub use self::registration::{Entity, Node, Portal};
