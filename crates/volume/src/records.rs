//! The records that a volume stores durably beside its data.

use sarsen_block::Io;
use std::io;

/// The kinds of records. Each record is replaced as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetadataKind {
    /// Persistent reservations and registrations (APTPL, SPC-4 5.12.5).
    Reservations,
    /// Saved mode pages (SPC-4 6.11).
    ModePages,
    /// An operation on the whole medium in progress: SANITIZE, FORMAT UNIT.
    Operation,
    /// Identifying information (SPC-4 5.7).
    IdentifyingInformation,
    /// An atomic write that is not yet on the medium (SBC-4 4.29).
    AtomicWrite,
    /// The key that encrypts the volume's blocks. Saving a key destroys the previous one.
    Key,
    /// The identifier of the remote logical unit that the volume is.
    RemoteUnit,
}

impl MetadataKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::Reservations,
        Self::ModePages,
        Self::Operation,
        Self::IdentifyingInformation,
        Self::AtomicWrite,
        Self::Key,
        Self::RemoteUnit,
    ];

    /// Returns the name under which the record is stored.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reservations => "reservations",
            Self::ModePages => "mode-pages",
            Self::Operation => "operation",
            Self::IdentifyingInformation => "identifying-information",
            Self::AtomicWrite => "atomic-write",
            Self::Key => "key",
            Self::RemoteUnit => "remote-unit",
        }
    }
}

/// Stores the records of one volume.
pub trait MetadataStore: Send + Sync {
    /// Returns the last saved record; `None` if it was never saved, or was removed. This function blocks. It is called
    /// at the creation of a volume, never during a request. A damaged record is an error, which is reported to the
    /// administrator: the volume does not start.
    fn load(&self, record: MetadataKind) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a record. The record is durable when the result arrives. An empty record removes it. After a crash the
    /// record is either the old one or the new one, complete. If two saves overlap, the later call wins. Dropping the
    /// result does not undo the save.
    fn save(&self, record: MetadataKind, content: Vec<u8>) -> Io<io::Result<()>>;
}
