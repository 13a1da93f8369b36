//! The initiator's end of sessions, without I/O.
//!
//! Two machines share their parts. [`Connection`] is a session with one connection at recovery
//! level 0: an error ends it, and its owner logs in again. [`Session`] may have several, and can
//! recover what was lost within and with them. Both log in, number commands, place Data-In, answer
//! R2Ts and pings, and tell what happened in [`Event`]s. The driver feeds them what a socket gave
//! (`handle_input`, or straight into `landing`) and sends what `output` holds.
//!
//! A `Link` is one connection, a `Core` what all of a session share; `writes`, `reads`, `requests`
//! and `recovery` are what a link does.

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
