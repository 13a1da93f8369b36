//! The types of the block layer: units, requests, replies.

use std::fmt;

use crate::{Buffer, Data};

/// A logical block address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The size of a logical block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BlockSize {
    /// 512 bytes.
    #[default]
    B512,
    /// 2,048 bytes, as on a CD.
    B2048,
    /// 4,096 bytes.
    B4096,
}

impl BlockSize {
    /// Returns the number of bytes in a block.
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// Returns log2 of the size.
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B2048 => 11,
            Self::B4096 => 12,
        }
    }
}

/// A range of consecutive blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First block.
    pub lba: Lba,
    /// Number of blocks. Zero is permitted and affects no blocks.
    pub block_count: u64,
}

impl Extent {
    /// Creates an extent of `block_count` blocks from `lba`.
    pub const fn new(lba: u64, block_count: u64) -> Self {
        Self { lba: Lba(lba), block_count }
    }

    /// Returns whether the extent is within a store of `block_count` blocks.
    pub fn fits(self, block_count: u64) -> bool {
        self.lba.0.checked_add(self.block_count).is_some_and(|end| end <= block_count)
    }

    /// Returns the block after the last one, for extents that fit a store.
    pub const fn end(self) -> u64 {
        self.lba.0 + self.block_count
    }

    /// Returns the block after the last one, or `u64::MAX` for an extent that reaches beyond it.
    pub const fn saturating_end(self) -> u64 {
        self.lba.0.saturating_add(self.block_count)
    }

    /// Returns the offset of the first byte, for extents that fit a store.
    pub const fn byte_offset(self, block_size: BlockSize) -> u64 {
        self.lba.0 << block_size.shift()
    }

    /// Returns the number of bytes, for extents that fit a store.
    pub const fn byte_count(self, block_size: BlockSize) -> u64 {
        self.block_count << block_size.shift()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {} (+{})", self.lba, self.block_count)
    }
}

/// The condition for the acknowledgement of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Later reads see the write. The next flush makes it durable.
    Volatile,
    /// The write survives a power failure (FUA in SBC).
    Durable,
}

/// Number of bytes of protection information behind each block, in requests with protection. Stores do not interpret
/// them (SBC-3 4.22 in `sarsen-scsi`).
pub const PROTECTION_BYTES: usize = 8;

/// One request to a store.
///
/// Callers need not check requests: a store returns [`crate::BlockError::OutOfRange`] for an extent outside itself. The
/// order of requests that overlap in time and blocks is undefined.
#[derive(Debug)]
pub enum Request {
    /// Read blocks → [`Reply::Data`] with exactly the extent's bytes. Unwritten blocks read as zero.
    Read(Extent),
    /// Write blocks → [`Reply::Done`]. The buffer holds exactly the extent's bytes.
    Write {
        /// The extent to write.
        extent: Extent,
        /// The bytes to write.
        data: Buffer,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// Read blocks, each followed by its [`PROTECTION_BYTES`] → [`Reply::Data`]. These bytes are FFh for a block that
    /// was never written, was unmapped or zeroed, or was written without them. Stores whose
    /// [`crate::Characteristics::protection`] is false answer Unsupported.
    ReadProtected(Extent),
    /// Write blocks, each followed by its [`PROTECTION_BYTES`] → [`Reply::Done`]. If the program is interrupted during
    /// the write, a block and its protection information are both old or both new.
    WriteProtected {
        /// The extent to write.
        extent: Extent,
        /// The bytes to write.
        data: Buffer,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// Make all writes that were acknowledged before this request durable → [`Reply::Done`].
    Flush,
    /// Deallocate blocks → [`Reply::Done`]. They read as zero afterwards. A store that cannot deallocate writes zeroes
    /// or answers Unsupported, according to [`crate::Characteristics::unmap`].
    Unmap(Extent),
    /// Write zeroes and keep the blocks' space (see [`crate::UnmapSupport::anchors`]) → [`Reply::Done`].
    WriteZeroes {
        /// The extent to write.
        extent: Extent,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// Query the allocation of the blocks from the extent's first one → [`Reply::Allocation`] for the longest run of
    /// blocks in one state. The run ends at the extent's end at the latest.
    Allocation(Extent),
    /// Query the used and available space → [`Reply::Space`]. A store that does not know it answers Unsupported.
    Space,
    /// Change the size to this number of blocks → [`Reply::Done`]. A store answers Unsupported if shrinking would lose
    /// data in use.
    Resize {
        /// The new number of blocks.
        block_count: u64,
    },
}

/// The provisioning state of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// The blocks use space, or the store does not know.
    Mapped,
    /// Space is reserved for the blocks. They read as zero.
    Anchored,
    /// The blocks use no space. They read as zero.
    Deallocated,
}

/// A range of consecutive blocks in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRun {
    /// Number of blocks. Minimum: one, unless the request's extent was empty.
    pub block_count: u64,
    /// State of the blocks.
    pub allocation: Allocation,
}

/// The space of a thin store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Space that the store uses, in blocks.
    pub used_blocks: u64,
    /// Space that is available to the store, in blocks. Other stores may use the same space.
    pub available_blocks: u64,
}

/// The reply of a store to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// The bytes that were read.
    Data(Data),
    /// The request is complete.
    Done,
    /// The state of a run of blocks.
    Allocation(AllocationRun),
    /// The used and available space.
    Space(Space),
}
