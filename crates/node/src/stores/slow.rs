//! A slow store, for drills and for tests that need requests in progress.

use std::sync::Arc;
use std::time::Duration;

use sarsen_block::{BlockError, Characteristics, Geometry, Io, Reply, Request, Store};
use sarsen_io::time;

/// A store that answers each request after a minimum time. Requests do not wait for one another.
pub struct SlowStore {
    inner: Arc<dyn Store>,
    delay: Duration,
}

impl SlowStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Store for SlowStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.inner.characteristics()
    }

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        let deadline = time::now() + self.delay;
        let answer = self.inner.submit(request);
        Io::pending(async move {
            let answer = answer.wait().await;
            time::sleep_until(deadline).await;
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::{BlockSize, MemoryStore, conformance};
    use sarsen_io::cores::{self, FileEngine};

    use super::*;

    #[test]
    fn it_is_the_store_below_only_later() {
        let store = Arc::new(MemoryStore::new(BlockSize::B512, 4096));
        let slow = SlowStore::new(store, Duration::from_micros(1));
        cores::block_on(FileEngine::Pool, conformance::check(&slow, 1)).expect("a core");
        let slow = SlowStore::new(Arc::new(slow), Duration::from_millis(20));
        let begun = time::now();
        let flushed = async { (&slow as &dyn Store).flush().wait().await };
        cores::block_on(FileEngine::Pool, flushed).expect("a core").expect("flushed");
        assert!(time::now() - begun >= Duration::from_millis(20));
    }
}
