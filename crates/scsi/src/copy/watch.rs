//! Revokes tokens when what they stand for changes. It lies right above a unit's store, so that no
//! command can write past it.

use super::token::Token;
use sarsen_block::{BlockError, Characteristics, Extent, Geometry, Io, Reply, Request, Store};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The live tokens of one unit.
#[derive(Default)]
pub(crate) struct Watch {
    /// Whether there are any: what each write looks at.
    is_active: AtomicBool,
    tokens: Mutex<Vec<Arc<Token>>>,
}

impl Watch {
    /// From now on a change within the token's extents revokes it. The caller holds the write gate
    /// alone, so that no write that began before ends after.
    pub(super) fn add(&self, token: Arc<Token>) {
        let mut tokens = self.tokens();
        tokens.retain(|token| token.is_live());
        tokens.push(token);
        self.is_active.store(true, Ordering::SeqCst);
    }

    /// Blocks are about to change. Who reads them changed finds their tokens revoked.
    fn before_change(&self, extent: Extent) {
        if self.is_active.load(Ordering::SeqCst) {
            self.revoke(extent);
        }
    }

    #[cold]
    fn revoke(&self, extent: Extent) {
        let mut tokens = self.tokens();
        tokens.retain(|token| {
            token.expire();
            if token.stands_for(extent) {
                token.revoke();
            }
            token.is_live()
        });
        self.is_active.store(!tokens.is_empty(), Ordering::SeqCst);
    }

    fn tokens(&self) -> MutexGuard<'_, Vec<Arc<Token>>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A store whose changes are watched.
pub(crate) struct Watched {
    inner: Arc<dyn Store>,
    watch: Arc<Watch>,
}

impl Watched {
    pub(crate) fn over(inner: Arc<dyn Store>, watch: Arc<Watch>) -> Arc<dyn Store> {
        Arc::new(Self { inner, watch })
    }
}

impl Store for Watched {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.inner.characteristics()
    }

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        match &request {
            Request::Write { extent, .. }
            | Request::WriteProtected { extent, .. }
            | Request::WriteZeroes { extent, .. }
            | Request::Unmap(extent) => self.watch.before_change(*extent),
            // What a shorter store forgets may come back as zeroes.
            Request::Resize { block_count } => {
                self.watch.before_change(Extent::new(*block_count, u64::MAX - block_count));
            }
            Request::Read(_)
            | Request::ReadProtected(_)
            | Request::Flush
            | Request::Allocation(_)
            | Request::Space => {}
        }
        self.inner.submit(request)
    }
}
