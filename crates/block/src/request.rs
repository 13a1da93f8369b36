//! The types of the block layer: units, extents, requests.

use std::fmt;

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

/// A description of a request to a store: everything but its data. Layers decide on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// [`crate::Store::read`].
    Read(Extent),
    /// [`crate::Store::write`].
    Write {
        /// The extent to write.
        extent: Extent,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// [`crate::Store::read_protected`].
    ReadProtected(Extent),
    /// [`crate::Store::write_protected`].
    WriteProtected {
        /// The extent to write.
        extent: Extent,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// [`crate::Store::flush`].
    Flush,
    /// [`crate::Store::unmap`].
    Unmap(Extent),
    /// [`crate::Store::write_zeroes`].
    WriteZeroes {
        /// The extent to write.
        extent: Extent,
        /// The condition for the acknowledgement.
        durability: Durability,
    },
    /// [`crate::Store::share`], with the extent that gets other contents.
    Share(Extent),
    /// [`crate::Store::allocation`].
    Allocation(Extent),
    /// [`crate::Store::space`].
    Space,
    /// [`crate::Store::resize`].
    Resize {
        /// The new number of blocks.
        block_count: u64,
    },
}

impl Request {
    /// Returns the blocks that the request concerns.
    pub const fn extent(self) -> Option<Extent> {
        match self {
            Self::Read(extent) | Self::ReadProtected(extent) | Self::Allocation(extent) => {
                Some(extent)
            }
            _ => self.written_extent(),
        }
    }

    /// Returns the blocks that the request writes, zeroes, unmaps or shares.
    pub const fn written_extent(self) -> Option<Extent> {
        match self {
            Self::Write { extent, .. }
            | Self::WriteProtected { extent, .. }
            | Self::WriteZeroes { extent, .. }
            | Self::Unmap(extent)
            | Self::Share(extent) => Some(extent),
            _ => None,
        }
    }

    /// Returns whether the request changes the store: its blocks or its size.
    pub const fn is_change(self) -> bool {
        match self {
            Self::Write { .. }
            | Self::WriteProtected { .. }
            | Self::WriteZeroes { .. }
            | Self::Unmap(_)
            | Self::Share(_)
            | Self::Resize { .. } => true,
            Self::Read(_)
            | Self::ReadProtected(_)
            | Self::Flush
            | Self::Allocation(_)
            | Self::Space => false,
        }
    }
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
