//! What a read gives: bytes that are owned, shared with a store, or known to be zero.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::Buffer;

/// Memory of a store that others may write while it is being sent.
///
/// Nothing above may look at it as a slice, since its bytes can change under the reader; it can
/// be copied out, and the crate that made it recognises it (through [`Any`]) and can hand its
/// address to the kernel.
pub trait SharedMemory: Any + Send + Sync {
    /// Length in bytes.
    fn length(&self) -> usize;
    /// Copies `into.len()` bytes from `offset`. Bytes written meanwhile arrive old or new.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

/// The bytes that a read returns.
pub enum Data {
    /// Bytes of our own.
    Buffer(Buffer),
    /// A range of a store's memory, sent without a copy.
    Shared {
        /// The memory.
        memory: Arc<dyn SharedMemory>,
        /// First byte.
        offset: usize,
        /// Bytes.
        length: usize,
    },
    /// So many bytes of zero.
    Zeroes(usize),
}

/// A run of [`Data`] ready to be sent: what a vectored send needs.
pub enum Piece<'a> {
    /// Bytes that nobody changes.
    Bytes(&'a [u8]),
    /// A range of a store's memory.
    Shared {
        /// The memory.
        memory: &'a Arc<dyn SharedMemory>,
        /// First byte.
        offset: usize,
        /// Bytes.
        length: usize,
    },
}

/// The longest run of zeroes that one [`Piece`] covers.
pub const ZERO_RUN: usize = 64 * 1024;
static ZEROES: [u8; ZERO_RUN] = [0; ZERO_RUN];

impl Data {
    /// No bytes.
    pub const fn empty() -> Self {
        Self::Zeroes(0)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Shared { length, .. } | Self::Zeroes(length) => *length,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the data occupies. Data in a store counts as 0.
    pub const fn memory(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.memory(),
            Self::Shared { .. } | Self::Zeroes(_) => 0,
        }
    }

    /// Shortens to at most `limit` bytes.
    pub fn truncate(&mut self, limit: usize) {
        match self {
            Self::Buffer(buffer) => buffer.truncate(limit),
            Self::Shared { length, .. } | Self::Zeroes(length) => *length = limit.min(*length),
        }
    }

    /// The bytes from `offset`, at most `limit` of them and as many as lie together.
    pub fn piece(&self, offset: usize, limit: usize) -> Piece<'_> {
        match self {
            Self::Buffer(buffer) => Piece::Bytes(&buffer[offset..buffer.len().min(offset + limit)]),
            Self::Shared { memory, offset: start, length } => {
                Piece::Shared { memory, offset: start + offset, length: limit.min(length - offset) }
            }
            Self::Zeroes(length) => {
                Piece::Bytes(&ZEROES[..limit.min(length - offset).min(ZERO_RUN)])
            }
        }
    }

    /// Copies `into.len()` bytes from `offset`.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.len(), "copy past the end of the data");
        match self {
            Self::Buffer(buffer) => into.copy_from_slice(&buffer[offset..offset + into.len()]),
            Self::Shared { memory, offset: start, .. } => memory.copy_out(start + offset, into),
            Self::Zeroes(_) => into.fill(0),
        }
    }

    /// The bytes as a buffer of their own: the one inside, or a copy.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Buffer(buffer) => buffer,
            other => {
                let mut buffer = Buffer::for_overwrite(other.len());
                other.copy_out(0, &mut buffer);
                buffer
            }
        }
    }
}

impl From<Buffer> for Data {
    fn from(buffer: Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Buffer(_) => "Buffer",
            Self::Shared { .. } => "Shared",
            Self::Zeroes(_) => "Zeroes",
        };
        write!(f, "Data::{kind}({} bytes)", self.len())
    }
}
