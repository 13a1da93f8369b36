//! Revokes tokens when their data changes. This layer is directly above a unit's store, so that no write bypasses it.

use super::token::Token;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::{Extent, Layer, Reply, Request, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The live tokens of one unit.
#[derive(Default)]
pub(crate) struct Watch {
    /// True if there are any tokens. Each write reads only this flag.
    is_active: AtomicBool,
    tokens: Mutex<Vec<Arc<Token>>>,
}

impl Watch {
    /// Adds a token: from now on a change of its extents revokes it. The caller holds the write gate exclusively, so
    /// that no earlier write ends later.
    pub(super) fn add(&self, token: Arc<Token>) {
        let mut tokens = self.tokens();
        tokens.retain(|token| token.is_live());
        tokens.push(token);
        self.is_active.store(true, Ordering::SeqCst);
    }

    /// Revokes the tokens of blocks that are about to change. A read that sees the change also sees the revocation.
    fn before_change(&self, extent: Extent) {
        if self.is_active.load(Ordering::SeqCst) {
            self.revoke(extent);
        }
    }

    #[cold]
    fn revoke(&self, extent: Extent) {
        let mut tokens = self.tokens();
        tokens.retain(|token| {
            token.expire_if_idle();
            if token.stands_for(extent) {
                token.revoke();
            }
            token.is_live()
        });
        self.is_active.store(!tokens.is_empty(), Ordering::SeqCst);
    }

    fn tokens(&self) -> MutexGuard<'_, Vec<Arc<Token>>> {
        self.tokens.lock()
    }
}

/// A store that revokes tokens when its blocks change.
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    watch: Arc<Watch>,
}

impl Watched {
    pub(crate) fn over(inner: Arc<dyn Store>, watch: Arc<Watch>) -> Arc<dyn Store> {
        Arc::new(Self { inner, watch })
    }
}

impl Layer for Watched {
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
                self.watch.before_change(Extent::new(block_count, u64::MAX - block_count));
            }
            request => {
                if let Some(extent) = request.written_extent() {
                    self.watch.before_change(extent);
                }
            }
        }
        submit(&*self.inner)
    }
}
