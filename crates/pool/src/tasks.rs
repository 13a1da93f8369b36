//! Requests that lost their caller.

use sarsen_block::LocalFuture;

/// Continues requests that lost their caller.
pub trait Tasks: Send + Sync {
    /// Runs a future on this core until it ends. A request that its caller dropped continues here, because a device may
    /// still carry it out.
    fn finish(&self, future: LocalFuture<()>);
}
