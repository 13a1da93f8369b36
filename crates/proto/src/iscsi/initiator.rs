//! The initiator's end of sessions, without I/O.
//!
//! Two state machines share their parts. [`Connection`] is a session with one connection at recovery level 0: an error
//! ends it, and its owner logs in again. [`Session`] may have several connections, and can recover lost PDUs and lost
//! connections. Both log in, number commands, place Data-In, answer R2Ts and pings, and report [`Event`]s. The driver
//! passes received bytes to them (`handle_input`, or directly into `landing`) and sends the contents of `output`.
//!
//! A `Link` is one connection, and a `Core` is the state that all connections of a session share. `writes`, `reads`,
//! `requests` and `recovery` implement the functions of a link.

mod authentication;
mod connection;
mod core;
mod event;
mod link;
mod login;
mod options;
mod reads;
mod reception;
mod recovery;
mod request;
mod requests;
mod session;
mod status_order;
mod task;
#[cfg(test)]
mod tests;
mod writes;

pub use authentication::{Authentication, TargetProof};
pub use connection::Connection;
pub use event::{
    AuthenticationError, Completion, ConnectionError, Event, LoginError, ProtocolError,
    RecoveryError, Residual,
};
pub use options::{DigestOffer, LoginOptions, SessionTarget};
pub use request::{
    Cid, CommandRequest, ReadLanding, TaskAttribute, TaskManagement, Token, Transfer,
};
pub use session::{LEADING, Session};
