//! Requests that lost their caller, and the pace of copies that nobody waits for.

use sarsen_block::LocalFuture;

/// Why the maintenance copies data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyReason {
    /// A copy is missing, lacks something, or must leave its device.
    Repair,
    /// The data moves to another tier.
    Move,
}

/// Continues requests that lost their caller, and sets the pace of copies.
pub trait Tasks: Send + Sync {
    /// Runs a future on this core until it ends. A request that its caller dropped continues here, because a device may
    /// still carry it out.
    fn finish(&self, future: LocalFuture<()>);

    /// Returns when more may be copied, after so many bytes were: by default at once. No request waits for that. It is dropped
    /// before its end if a change of devices waits for the copy.
    fn pause(&self, _reason: CopyReason, _bytes: u64) -> LocalFuture<()> {
        Box::pin(async {})
    }
}
