//! The data of a write.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::Buffer;

/// The data of a write. A store that writes it to several others shares it without a copy.
///
/// Nothing changes shared bytes. A store that needs to change them calls [`Self::into_buffer`].
pub enum Payload {
    /// An owned buffer.
    Owned(Buffer),
    /// A buffer with several owners.
    Shared(Arc<Buffer>),
}

impl Payload {
    /// Returns another payload with the same bytes, without a copy.
    pub fn share(&mut self) -> Self {
        let shared = std::mem::replace(self, Self::Owned(Buffer::zeroed_exact(0))).into_shared();
        *self = Self::Shared(shared.clone());
        Self::Shared(shared)
    }

    /// Returns the bytes of memory that the payload occupies.
    pub fn memory(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.memory(),
            Self::Shared(buffer) => buffer.memory(),
        }
    }

    /// Returns the bytes as a buffer that can have several owners.
    pub fn into_shared(self) -> Arc<Buffer> {
        match self {
            Self::Owned(buffer) => Arc::new(buffer),
            Self::Shared(buffer) => buffer,
        }
    }

    /// Returns the bytes as an owned buffer: the existing one if it has no other owner, or a copy.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(buffer) => {
                Arc::try_unwrap(buffer).unwrap_or_else(|buffer| Buffer::copy_of(&buffer))
            }
        }
    }
}

impl From<Buffer> for Payload {
    fn from(buffer: Buffer) -> Self {
        Self::Owned(buffer)
    }
}

impl Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(buffer) => buffer,
            Self::Shared(buffer) => buffer,
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_copied_only_while_another_owner_has_them() {
        let mut first = Payload::from(Buffer::copy_of(&[7; 512]));
        let address = first.as_ptr();
        let second = first.share();
        assert_eq!((first.as_ptr(), second.as_ptr()), (address, address));
        let mut copy = first.into_buffer();
        copy.fill(8);
        assert_eq!(*second, [7; 512]);
        assert_eq!(second.into_buffer().as_ptr(), address);
    }
}
