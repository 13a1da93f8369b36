//! iSCSI (RFC 7143).
//!
//! [`framer`] cuts PDUs from the stream for both sides. [`keys`] contains the negotiation table, [`name`] the form of
//! names. [`output`] collects data to send. [`chap`] computes challenges and responses. [`target`] and [`initiator`]
//! are the two ends.

pub mod chap;
pub mod digest;
pub mod framer;
pub mod initiator;
pub mod keys;
pub mod name;
pub mod output;
pub mod target;

pub use framer::{Frame, Framer, FramingError, Landing, Segment};
pub use keys::{DigestKind, Parameters};
pub use output::Output;
