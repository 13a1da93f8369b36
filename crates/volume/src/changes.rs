//! Reports changes of blocks before they happen. This layer is the highest one of a volume's store, so that no write of
//! any client bypasses it.

use std::sync::{Arc, OnceLock};

use sarsen_block::{Extent, Layer, Reply, Request, Store};

/// A component that must know which blocks are about to change.
pub trait ChangeListener: Send + Sync {
    /// Called before blocks change. A read that sees the change also sees the effect of this call.
    fn before_change(&self, extent: Extent);
}

/// A store that reports changes of its blocks.
pub(crate) struct Reported {
    inner: Arc<dyn Store>,
    listener: OnceLock<Arc<dyn ChangeListener>>,
}

impl Reported {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, listener: OnceLock::new() }
    }

    /// Sets the listener. There is a maximum of one.
    pub(crate) fn report_to(&self, listener: Arc<dyn ChangeListener>) {
        assert!(self.listener.set(listener).is_ok(), "a volume has one listener for changes");
    }
}

impl Layer for Reported {
    #[inline]
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    #[inline]
    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        if let Some(listener) = self.listener.get() {
            match request {
                // Blocks that a smaller store drops may read as zeroes after it grows again.
                Request::Resize { block_count } => {
                    listener.before_change(Extent::new(block_count, u64::MAX - block_count));
                }
                request => {
                    if let Some(extent) = request.written_extent() {
                        listener.before_change(extent);
                    }
                }
            }
        }
        submit(&*self.inner)
    }
}
