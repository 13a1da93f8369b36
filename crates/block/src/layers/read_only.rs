//! A layer that rejects writes.

use std::sync::Arc;

use crate::{BlockError, Characteristics, Geometry, Io, Reply, Request, Store};

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

impl Store for ReadOnly {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics { read_only: true, ..self.inner.characteristics() }
    }

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        match request {
            Request::Read(_)
            | Request::ReadProtected(_)
            | Request::Flush
            | Request::Allocation(_)
            | Request::Space => self.inner.submit(request),
            Request::Write { .. }
            | Request::WriteProtected { .. }
            | Request::Unmap(_)
            | Request::WriteZeroes { .. }
            | Request::Resize { .. } => Io::Ready(Err(BlockError::ReadOnly)),
        }
    }
}
