//! What a store remembers of a failed flush: see [`StopCause::FlushFailed`].

use std::sync::atomic::{AtomicBool, Ordering};

use sarsen_block::{BlockError, StopCause};

/// See the module.
#[derive(Default)]
pub(crate) struct FlushFailure(AtomicBool);

impl FlushFailure {
    /// Notes that a flush failed. No later one makes up for it.
    pub(crate) fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns an error if a flush has failed.
    pub(crate) fn check(&self) -> Result<(), BlockError> {
        if self.0.load(Ordering::Acquire) {
            return Err(StopCause::FlushFailed.into());
        }
        Ok(())
    }
}
