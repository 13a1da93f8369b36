//! The copy manager (SPC-4 5.17): copies between units of this array, without a transfer of the data to the initiator.
//! [`extended`] implements EXTENDED COPY. [`offload`] implements both parts of Windows' offloaded data transfer (ODX).
//! [`results`] implements the commands that report on copies.
//!
//! A unit that a designator names is searched among the units to which the same initiator has attached (`reach`). The
//! server rejects a copy that it would reject as READ or WRITE. `transfer` moves all data.

pub(crate) mod extended;
pub(crate) mod offload;
mod operation;
pub(crate) mod page;
mod parameters;
mod reach;
pub(crate) mod results;
mod segment;
mod token;
mod transfer;
mod watch;

pub(crate) use operation::Operations;
pub(crate) use token::Tokens;
pub(crate) use transfer::PIECES;
pub(crate) use watch::Watch;

/// The maximum number of CSCD descriptors of EXTENDED COPY.
const MAXIMUM_CSCDS: usize = 64;
/// The maximum number of segment descriptors of EXTENDED COPY.
const MAXIMUM_SEGMENTS: usize = 256;
/// The maximum length of both lists together in bytes.
const MAXIMUM_DESCRIPTOR_BYTES: usize = 16 << 10;
/// The maximum number of bytes that a segment copies.
const MAXIMUM_SEGMENT_BYTES: u64 = 1 << 28;
/// The maximum number of remembered operations of an I_T_L nexus. EXTENDED COPY has as many identifiers.
const MAXIMUM_OPERATIONS: usize = 255;
/// The maximum number of ranges of POPULATE TOKEN and WRITE USING TOKEN.
const MAXIMUM_RANGES: usize = 256;
/// The maximum number of bytes that a token represents and that one WRITE USING TOKEN writes.
const MAXIMUM_TOKEN_BYTES: u64 = 4 << 30;
/// The optimal number of bytes of a WRITE USING TOKEN. It ends within a time that initiators tolerate.
const OPTIMAL_TOKEN_BYTES: u64 = 64 << 20;
/// Seconds without use after which a token expires, if the initiator selects no other time.
const DEFAULT_INACTIVITY_S: u32 = 60;
const MAXIMUM_INACTIVITY_S: u32 = 600;
