//! Requests that continue without their callers, and the rate at which the maintenance copies data.

use sarsen_block::LocalFuture;

/// Why the maintenance copies data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyReason {
    /// A copy is missing, lacks something, or must leave its device.
    Repair,
    /// The data moves to another tier.
    Move,
}

/// Continues requests without their callers, and sets the rate of copies.
pub trait Tasks: Send + Sync {
    /// Runs a future on this core until it ends. A request that its caller dropped continues here, because a device may
    /// still carry it out.
    fn finish(&self, future: LocalFuture<()>);

    /// Ends when the maintenance may copy more, after it has copied so many bytes. By default, this ends at once. No request waits
    /// for it. The caller drops it early if a change of devices waits for the copy.
    fn pause(&self, _reason: CopyReason, _bytes: u64) -> LocalFuture<()> {
        Box::pin(async {})
    }
}
