//! Reports of changes of blocks, before they happen.

use sarsen_block::{Extent, Request};

/// A component that must know which blocks are about to change.
pub trait ChangeListener: Send + Sync {
    /// Called before blocks change. A read that sees the change also sees the effect of this call.
    fn before_change(&self, extent: Extent);
}

/// Returns the blocks that a request changes, if any. Blocks that a smaller store drops may read as zeroes after it grows
/// again.
#[inline]
pub(crate) fn changed_extent(request: Request) -> Option<Extent> {
    match request {
        Request::Resize { block_count } => Some(Extent::new(block_count, u64::MAX - block_count)),
        request => request.written_extent(),
    }
}
