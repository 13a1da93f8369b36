//! What has changed in a volume since earlier states of it. Backup programs copy only that.

use sarsen_block::{Extent, Reply};

/// A run of blocks that all have changed since an earlier state, or all have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRun {
    /// Number of blocks, not 0.
    pub block_count: u64,
    /// Whether the blocks may differ from those of the earlier state.
    pub is_changed: bool,
}

/// Compares a volume, which does not change, with earlier states of it.
pub trait ChangeHistory: Send + Sync {
    /// Returns the names of the earlier states, oldest first.
    fn states(&self) -> Vec<String>;

    /// Returns which blocks of an extent have changed since the state of this name, as consecutive runs from its first
    /// block. There are up to `maximum` runs, which is not 0, and at least one, unless the extent is empty. They may
    /// end before the extent ends. The caller has checked that the extent lies within the volume. If there is no state
    /// of this name, the answer is [`sarsen_block::InvalidRequest::Rejected`].
    fn changes(&self, since: &str, extent: Extent, maximum: usize) -> Reply<Vec<ChangeRun>>;
}
