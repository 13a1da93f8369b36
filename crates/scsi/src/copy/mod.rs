//! The copy manager (SPC-4 5.17): copies between units of this array that the initiator does not
//! carry itself. [`extended`] is EXTENDED COPY, [`offload`] the two halves of what Windows calls
//! ODX, [`results`] what is told of both afterwards.
//!
//! A unit that is named by a designator is looked for among those that the same initiator has
//! attached to (`reach`), and what READ and WRITE would be refused is refused here. All data goes
//! through `transfer`.

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
pub(crate) use watch::{Watch, Watched};

/// EXTENDED COPY takes so many CSCD descriptors.
const MAXIMUM_CSCDS: usize = 64;
/// EXTENDED COPY takes so many segment descriptors.
const MAXIMUM_SEGMENTS: usize = 256;
/// Both lists together are at most so long.
const MAXIMUM_DESCRIPTOR_BYTES: usize = 16 << 10;
/// A segment copies at most so many bytes.
const MAXIMUM_SEGMENT_BYTES: u64 = 1 << 28;
/// Operations of one I_T_L nexus that are remembered; as many as EXTENDED COPY has identifiers.
const MAXIMUM_OPERATIONS: usize = 255;
/// POPULATE TOKEN and WRITE USING TOKEN take so many ranges.
const MAXIMUM_RANGES: usize = 256;
/// A token stands for at most so many bytes, and one WRITE USING TOKEN writes no more.
const MAXIMUM_TOKEN_BYTES: u64 = 4 << 30;
/// What a WRITE USING TOKEN writes in a time that initiators like to wait.
const OPTIMAL_TOKEN_BYTES: u64 = 64 << 20;
/// Seconds after which a token that nobody uses is forgotten.
const DEFAULT_INACTIVITY_S: u32 = 60;
const MAXIMUM_INACTIVITY_S: u32 = 600;
