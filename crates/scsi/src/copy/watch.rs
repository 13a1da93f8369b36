//! Revokes tokens when their data changes.

use super::token::Token;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::Extent;
use sarsen_volume::ChangeListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The live tokens of one unit.
#[derive(Default)]
pub(crate) struct Watch {
    /// True if there are any tokens. Each write reads only this flag.
    is_active: AtomicBool,
    tokens: Mutex<Vec<Arc<Token>>>,
}

impl ChangeListener for Watch {
    /// Revokes the tokens of blocks that are about to change.
    #[inline]
    fn before_change(&self, extent: Extent) {
        if self.is_active.load(Ordering::SeqCst) {
            self.revoke(extent);
        }
    }
}

impl Watch {
    /// Adds a token: from now on a change of its extents revokes it. The caller holds the regions of these extents
    /// exclusively, so that no earlier write ends later.
    pub(super) fn add(&self, token: Arc<Token>) {
        let mut tokens = self.tokens();
        tokens.retain(|token| token.is_live());
        tokens.push(token);
        self.is_active.store(true, Ordering::SeqCst);
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
