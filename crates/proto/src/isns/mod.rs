//! The client of a name service for storage, iSNS (RFC 4171): initiators ask there where targets
//! are.
//!
//! [`Client`] registers an [`Entity`] over one connection at a time, keeps it registered, and takes
//! it away. `message` cuts and makes messages, `registration` says what of an entity is told;
//! [`Answerer`] answers the server's own requests, which come over connections that it makes.

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
