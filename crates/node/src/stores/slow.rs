//! A slow store, for drills and for tests that need requests in progress.

use std::sync::Arc;
use std::time::Duration;

use sarsen_block::{Io, Layer, Reply, Request, Store};
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

impl Layer for SlowStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        _: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        let deadline = time::now() + self.delay;
        let reply = submit(&*self.inner);
        Io::pending(async move {
            let reply = reply.wait().await;
            time::sleep_until(deadline).await;
            reply
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
        let late = |below| Arc::new(SlowStore::new(below, Duration::ZERO)) as _;
        cores::block_on(FileEngine::Pool, conformance::check_errors(late)).expect("a core");
        let slow = SlowStore::new(Arc::new(slow), Duration::from_millis(20));
        let begun = time::now();
        let flushed = async { slow.flush().wait().await };
        cores::block_on(FileEngine::Pool, flushed).expect("a core").expect("flushed");
        assert!(time::now() - begun >= Duration::from_millis(20));
    }
}
