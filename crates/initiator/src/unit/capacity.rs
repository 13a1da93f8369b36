//! The size of a logical unit.

/// The size of a logical unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Bytes of a block.
    pub block_length: u32,
}

impl Capacity {
    /// Returns the size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_length as u64)
    }
}
