//! The data of a read: an owned buffer, memory shared with a store, or zeroes.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::Buffer;

/// Memory of a store that other threads may write while it is being sent.
///
/// Upper layers must not access it as a slice, since its bytes can change during the access. They can copy it. The
/// crate that created the memory identifies it (through [`Any`]) and can pass its address to the kernel.
pub trait SharedMemory: Any + Send + Sync {
    /// Returns the length in bytes.
    fn length(&self) -> usize;
    /// Copies `into.len()` bytes from `offset`. Bytes that are written meanwhile are copied old or new.
    fn copy_out(&self, offset: usize, into: &mut [u8]);
}

/// The bytes that a read returns.
pub enum Data {
    /// An owned buffer.
    Buffer(Buffer),
    /// A range of a store's memory, sent without a copy.
    Shared {
        /// The memory.
        memory: Arc<dyn SharedMemory>,
        /// Offset of the first byte.
        offset: usize,
        /// Length in bytes.
        length: usize,
    },
    /// This number of zero bytes.
    Zeroes(usize),
}

/// A contiguous part of [`Data`], for a vectored send.
pub enum Piece<'a> {
    /// Bytes that do not change.
    Bytes(&'a [u8]),
    /// A range of a store's memory.
    Shared {
        /// The memory.
        memory: &'a Arc<dyn SharedMemory>,
        /// Offset of the first byte.
        offset: usize,
        /// Length in bytes.
        length: usize,
    },
}

/// Maximum number of zeroes that one [`Piece`] covers.
pub const ZERO_RUN: usize = 64 * 1024;
static ZEROES: [u8; ZERO_RUN] = [0; ZERO_RUN];

impl Data {
    /// Returns empty data.
    pub const fn empty() -> Self {
        Self::Zeroes(0)
    }

    /// Returns the length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.len(),
            Self::Shared { length, .. } | Self::Zeroes(length) => *length,
        }
    }

    /// Returns whether the data is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory that the data occupies. Data in a store counts as 0.
    pub const fn memory(&self) -> usize {
        match self {
            Self::Buffer(buffer) => buffer.memory(),
            Self::Shared { .. } | Self::Zeroes(_) => 0,
        }
    }

    /// Shortens the data to a maximum of `limit` bytes.
    #[inline]
    pub fn truncate(&mut self, limit: usize) {
        match self {
            Self::Buffer(buffer) => buffer.truncate(limit),
            Self::Shared { length, .. } | Self::Zeroes(length) => *length = limit.min(*length),
        }
    }

    /// Returns the contiguous bytes from `offset`, with a maximum of `limit`.
    #[inline]
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

    /// Returns the bytes as an owned buffer: the existing one, or a copy.
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
