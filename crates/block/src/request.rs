//! The vocabulary: units, requests, replies.

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
    /// 2,048 bytes, a CD's.
    B2048,
    /// 4,096 bytes.
    B4096,
}

impl BlockSize {
    /// Bytes in a block.
    pub const fn bytes(self) -> usize {
        1 << self.shift()
    }

    /// The power of two that is the size.
    pub const fn shift(self) -> u32 {
        match self {
            Self::B512 => 9,
            Self::B2048 => 11,
            Self::B4096 => 12,
        }
    }
}

/// A run of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First block.
    pub lba: Lba,
    /// Number of blocks; zero is allowed and touches nothing.
    pub block_count: u64,
}

impl Extent {
    /// A run of `block_count` blocks from `lba`.
    pub const fn new(lba: u64, block_count: u64) -> Self {
        Self { lba: Lba(lba), block_count }
    }

    /// Whether the run lies within a store of `block_count` blocks.
    pub fn fits(self, block_count: u64) -> bool {
        self.lba.0.checked_add(self.block_count).is_some_and(|end| end <= block_count)
    }

    /// The block after the last one. Only for extents that fit a store.
    pub const fn end(self) -> u64 {
        self.lba.0 + self.block_count
    }

    /// First byte, for extents that fit a store.
    pub const fn byte_offset(self, block_size: BlockSize) -> u64 {
        self.lba.0 << block_size.shift()
    }

    /// Number of bytes, for extents that fit a store.
    pub const fn byte_count(self, block_size: BlockSize) -> u64 {
        self.block_count << block_size.shift()
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {} (+{})", self.lba, self.block_count)
    }
}

/// When a write may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When later reads see it; the next flush makes it durable.
    Volatile,
    /// When it would survive a loss of power (SBC's FUA).
    Durable,
}

/// Bytes of protection information that lie behind each block where a request says so: what they
/// mean is the business of whoever reads and writes them (SBC-3 4.22 in `sarsen-scsi`).
pub const PROTECTION_BYTES: usize = 8;

/// One request to a store.
///
/// The one who submits has checked nothing: a store answers [`crate::BlockError::OutOfRange`] for
/// an extent outside itself. Requests that overlap in time and blocks may happen in any order.
#[derive(Debug)]
pub enum Request {
    /// Read blocks → [`Reply::Data`] of exactly the extent's bytes. Blocks never written read
    /// as zero.
    Read(Extent),
    /// Write blocks → [`Reply::Done`]. The buffer holds exactly the extent's bytes.
    Write {
        /// Where.
        extent: Extent,
        /// What.
        data: Buffer,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// Read blocks, each followed by its [`PROTECTION_BYTES`] → [`Reply::Data`]. Those of a block
    /// that was never written, was unmapped or zeroed, or was written without them, are FFh. Stores
    /// whose [`crate::Characteristics::protection`] is false answer Unsupported.
    ReadProtected(Extent),
    /// Write blocks, each followed by its [`PROTECTION_BYTES`] → [`Reply::Done`]. Whatever happens
    /// to the program in the middle of it, a block and its protection information are both old or
    /// both new.
    WriteProtected {
        /// Where.
        extent: Extent,
        /// What.
        data: Buffer,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// Make all writes that were acknowledged before this request durable → [`Reply::Done`].
    Flush,
    /// Give blocks back → [`Reply::Done`]. They read as zero afterwards. A store that cannot
    /// deallocate writes zeroes or answers Unsupported, as [`crate::Characteristics::unmap`] says.
    Unmap(Extent),
    /// Write zeroes, keeping the blocks' room (see [`crate::Unmap::anchors`]) → [`Reply::Done`].
    WriteZeroes {
        /// Where.
        extent: Extent,
        /// When it may be acknowledged.
        durability: Durability,
    },
    /// How the blocks from the extent's first one are allocated → [`Reply::Allocation`] for the
    /// longest run, at most to the extent's end, that has one state.
    Allocation(Extent),
    /// How much room the blocks take and may take → [`Reply::Space`]; Unsupported where the store
    /// cannot tell.
    Space,
    /// Change the size to so many blocks → [`Reply::Done`]. Shrinking is refused as Unsupported
    /// where it would lose data in use.
    Resize {
        /// The new size.
        block_count: u64,
    },
}

/// Whether blocks take up room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// They do, or the store cannot tell.
    Mapped,
    /// Room is kept for them, and they read as zero.
    Anchored,
    /// They do not, and read as zero.
    Deallocated,
}

/// A run of blocks in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocationRun {
    /// At least one block unless the request's extent was empty.
    pub block_count: u64,
    /// Their state.
    pub allocation: Allocation,
}

/// The room of a thin store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Blocks' worth of room that it takes.
    pub used_blocks: u64,
    /// Blocks' worth of room that is left for it, and perhaps for others as well.
    pub available_blocks: u64,
}

/// What a store answers to a [`Request`].
#[derive(Debug)]
pub enum Reply {
    /// The bytes that were read.
    Data(Data),
    /// It is done.
    Done,
    /// The state of a run of blocks.
    Allocation(AllocationRun),
    /// The room that is taken and left.
    Space(Space),
}
