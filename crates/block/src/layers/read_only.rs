//! A layer that rejects writes.

use std::sync::Arc;

use crate::{Characteristics, InvalidRequest, Io, Layer, Reply, Request, Store};

/// A read-only view of a store.
pub struct ReadOnly {
    inner: Arc<dyn Store>,
}

impl ReadOnly {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner }
    }
}

impl Layer for ReadOnly {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn adapt(&self, inner: Characteristics) -> Characteristics {
        Characteristics { read_only: true, ..inner }
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        if request.is_change() {
            return Io::Ready(Err(InvalidRequest::ReadOnly.into()));
        }
        submit(&*self.inner)
    }
}
