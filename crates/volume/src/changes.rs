//! Reports changes of blocks before they happen. This layer is directly above a volume's store, so that no write of any
//! client bypasses it.

use std::sync::Arc;

use sarsen_block::{Extent, Layer, Reply, Request, Store};

/// A component that must know which blocks are about to change.
pub trait ChangeListener: Send + Sync {
    /// Called before blocks change. A read that sees the change also sees the effect of this call.
    fn before_change(&self, extent: Extent);
}

/// A store that reports changes of its blocks.
pub struct Reported<L> {
    inner: Arc<dyn Store>,
    listener: Arc<L>,
}

impl<L: ChangeListener> Reported<L> {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>, listener: Arc<L>) -> Self {
        Self { inner, listener }
    }
}

impl<L: ChangeListener> Layer for Reported<L> {
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
        match request {
            // Blocks that a smaller store drops may read as zeroes after it grows again.
            Request::Resize { block_count } => {
                self.listener.before_change(Extent::new(block_count, u64::MAX - block_count));
            }
            request => {
                if let Some(extent) = request.written_extent() {
                    self.listener.before_change(extent);
                }
            }
        }
        submit(&*self.inner)
    }
}
