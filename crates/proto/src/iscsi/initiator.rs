//! The initiator's end of a connection, without I/O.
//!
//! [`Connection`] logs in, numbers commands, places Data-In, answers R2Ts and pings, and tells what
//! happened in [`Event`]s. The driver feeds it what the socket gave ([`Connection::handle_input`],
//! or straight into [`Connection::landing`]) and sends what [`Connection::output`] holds. A session
//! has one connection; the level of error recovery is 0: an error ends the connection, and its
//! owner logs in again.

mod authentication;
mod connection;
mod event;
mod login;
mod options;
mod request;
mod task;
#[cfg(test)]
mod tests;

pub use authentication::{Authentication, TargetProof};
pub use connection::Connection;
pub use event::{
    AuthenticationError, Completion, ConnectionError, Event, LoginError, ProtocolError, Residual,
};
pub use options::{DigestOffer, LoginOptions, SessionTarget};
pub use request::{CommandRequest, ReadLanding, TaskAttribute, TaskManagement, Token, Transfer};
