//! The clock, which this crate does not have itself.

use std::time::Instant;

use sarsen_block::LocalFuture;

/// The monotonic clock of the host.
pub trait Clock: Send + Sync {
    /// Returns the time.
    fn now(&self) -> Instant;
    /// Waits until a time.
    fn sleep_until(&self, deadline: Instant) -> LocalFuture<()>;
}
