//! What a request does to a volume, as limits and statistics see it.

/// The kind of a request, as statistics distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum OperationKind {
    /// Reads data.
    Read,
    /// Writes data or zeroes.
    Write,
    /// Makes writes durable.
    Flush,
    /// Deallocates blocks.
    Unmap,
    /// Anything else.
    Other,
}

impl OperationKind {
    /// All kinds, in their order.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Unmap, Self::Other];

    /// Returns the name, as metrics and JSON have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Unmap => "unmap",
            Self::Other => "other",
        }
    }
}

/// A request, as limits and statistics see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The kind.
    pub kind: OperationKind,
    /// Whether the request uses the medium. Limits, weights and reserved rates apply only to such requests.
    pub is_charged: bool,
}

impl Operation {
    /// A request that only queries the volume.
    pub const QUERY: Self = Self { kind: OperationKind::Other, is_charged: false };
    /// A request that uses the medium in another way than the kinds describe.
    pub const OTHER: Self = Self::of(OperationKind::Other);

    /// A request of a kind that uses the medium.
    pub const fn of(kind: OperationKind) -> Self {
        Self { kind, is_charged: true }
    }
}
