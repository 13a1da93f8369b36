//! The check that a layer passes on the errors of the store below it.

use std::io;
use std::mem::discriminant;
use std::sync::Arc;

use super::{every_kind, submit};
use crate::{
    BlockError, BlockSize, Buffer, Direction, Extent, InvalidRequest, Io, Layer, MemoryStore,
    Reply, Request, StopCause, Store,
};

/// Creates an error of a store for a request that concerns these blocks.
type Failure = fn(Extent) -> BlockError;

const FAILURES: [Failure; 10] = [
    |_| InvalidRequest::ReadOnly.into(),
    |_| InvalidRequest::Unsupported.into(),
    |_| InvalidRequest::Rejected(reason()).into(),
    |extent| BlockError::medium(extent.lba, Direction::Read, reason()),
    |extent| BlockError::NoSpace { lba: extent.lba },
    |_| BlockError::Transient(reason()),
    |_| BlockError::Unreachable(reason()),
    |_| BlockError::Fenced,
    |_| StopCause::FlushFailed.into(),
    |_| StopCause::OutOfService.into(),
];

fn reason() -> io::Error {
    io::Error::other("a fault that was asked for")
}

/// A store whose requests all fail.
struct FailingStore {
    inner: Arc<dyn Store>,
    failure: Failure,
}

impl Layer for FailingStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        _: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        Io::Ready(Err((self.failure)(request.extent().unwrap_or(Extent::new(0, 1)))))
    }
}

/// Checks that a layer reports errors of the store below unchanged, with its own block numbers. `wrap` puts the layer
/// over a store with blocks of 512 bytes. A read-only layer is checked with the requests that it passes on.
pub async fn check_errors(wrap: impl Fn(Arc<dyn Store>) -> Arc<dyn Store>) {
    let extent = Extent::new(2, 3);
    let others = [Request::Flush, Request::Space, Request::Resize { block_count: 2000 }];
    for failure in FAILURES {
        for request in every_kind(extent).into_iter().chain(others) {
            let inner = Arc::new(MemoryStore::new(BlockSize::B512, 1000));
            let store = wrap(Arc::new(FailingStore { inner, failure }));
            if request.is_change() && store.characteristics().read_only {
                continue;
            }
            let data = Buffer::zeroed(extent.byte_count(store.geometry().block_size) as usize);
            let error = submit(&*store, request, data).wait().await.err();
            let error = error.unwrap_or_else(|| panic!("{request:?} did not report an error"));
            let expected = failure(extent);
            let is_same = match (&error, &expected) {
                (BlockError::Invalid(error), BlockError::Invalid(expected)) => {
                    discriminant(error) == discriminant(expected)
                }
                (BlockError::Stopped(error), BlockError::Stopped(expected)) => error == expected,
                _ => discriminant(&error) == discriminant(&expected),
            };
            assert!(is_same, "{request:?} was answered {error:?} instead of {expected:?}");
            if let BlockError::Medium { lba, .. } | BlockError::NoSpace { lba } = error
                && request.extent().is_some()
            {
                assert_eq!(lba, extent.lba, "{request:?}");
            }
        }
    }
}
