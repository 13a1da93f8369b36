//! What a logical unit keeps beyond the life of the program: small records beside its data.

use sarsen_block::Io;
use std::io;

/// What is kept. Each record is replaced whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record {
    /// Persistent reservations and registrations (APTPL, SPC-4 5.12.5).
    Reservations,
    /// Saved mode pages (SPC-4 6.11).
    ModePages,
    /// An operation on the whole medium that has begun: SANITIZE, FORMAT UNIT.
    Operation,
    /// Identifying information (SPC-4 5.7).
    IdentifyingInformation,
    /// An atomic write that is on its way to its place (SBC-4 4.29).
    AtomicWrite,
    /// The key that its blocks are encrypted with. Saving one destroys the one before.
    Key,
}

impl Record {
    /// All there are.
    pub const ALL: [Self; 6] = [
        Self::Reservations,
        Self::ModePages,
        Self::Operation,
        Self::IdentifyingInformation,
        Self::AtomicWrite,
        Self::Key,
    ];

    /// The name under which it is kept.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reservations => "reservations",
            Self::ModePages => "mode-pages",
            Self::Operation => "operation",
            Self::IdentifyingInformation => "identifying-information",
            Self::AtomicWrite => "atomic-write",
            Self::Key => "key",
        }
    }
}

/// Keeps the records of one logical unit.
pub trait Keeper: Send + Sync {
    /// A record as it was saved last; `None` where it never was, or was removed. Blocks: it is
    /// asked when a unit is made, never on the way of a command. A record that is damaged is an
    /// error, which is told to the operator: the unit does not start.
    fn load(&self, record: Record) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a record, durably when this answers; an empty one removes it. After a crash
    /// the record is the old one or the new one, whole. Of two saves under way together the later
    /// call wins. Dropping the answer does not undo it.
    fn save(&self, record: Record, content: Vec<u8>) -> Io<io::Result<()>>;
}
