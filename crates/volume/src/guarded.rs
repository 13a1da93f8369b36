//! The highest layer of a volume's store, so that no request of any client bypasses it. It acts on the volume's
//! [`Health`]: it reads and writes nothing while the volume is out of service, and writes nothing after a failed flush of
//! any layer. It also reports changes of blocks before they happen.

use std::sync::{Arc, OnceLock};

use sarsen_block::{BlockError, Extent, Io, Layer, Reply, Request, StopCause, Store, Usability};

use crate::health::{Aspect, Health, VolumeHealth};

/// A component that must know which blocks are about to change.
pub trait ChangeListener: Send + Sync {
    /// Called before blocks change. A read that sees the change also sees the effect of this call.
    fn before_change(&self, extent: Extent);
}

/// See the module.
pub(crate) struct GuardedStore {
    inner: Arc<dyn Store>,
    health: Arc<Health>,
    listener: OnceLock<Arc<dyn ChangeListener>>,
}

impl GuardedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, health: Arc<Health>) -> Self {
        Self { inner, health, listener: OnceLock::new() }
    }

    /// Sets the listener. There is a maximum of one.
    pub(crate) fn report_to(&self, listener: Arc<dyn ChangeListener>) {
        assert!(self.listener.set(listener).is_ok(), "a volume has one listener for changes");
    }
}

/// Returns whether no later flush can make the writes durable that a failed flush concerned.
fn may_have_lost_writes(error: &BlockError) -> bool {
    match error {
        BlockError::Medium { .. } | BlockError::Stopped(StopCause::FlushFailed) => true,
        // A store that does not have the writes any more, for a later flush, answers later ones with `FlushFailed`.
        BlockError::Unreachable(_)
        | BlockError::Invalid(_)
        | BlockError::NoSpace { .. }
        | BlockError::Transient(_)
        | BlockError::Fenced
        // The backing itself has been reported.
        | BlockError::Stopped(StopCause::OutOfService) => false,
    }
}

/// Returns the blocks that a request changes, if any. Blocks that a smaller store drops may read as zeroes after it grows
/// again.
#[inline]
fn changed_extent(request: Request) -> Option<Extent> {
    match request {
        Request::Resize { block_count } => Some(Extent::new(block_count, u64::MAX - block_count)),
        request => request.written_extent(),
    }
}

impl Layer for GuardedStore {
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
        match self.health.usability() {
            Usability::Usable => {}
            Usability::WritesStopped if request.is_change() || request == Request::Flush => {
                return Io::Ready(Err(StopCause::FlushFailed.into()));
            }
            Usability::WritesStopped => {}
            Usability::OutOfService => {
                return Io::Ready(Err(StopCause::OutOfService.into()));
            }
        }
        if request != Request::Flush {
            if let Some(listener) = self.listener.get()
                && let Some(extent) = changed_extent(request)
            {
                listener.before_change(extent);
            }
            return submit(&*self.inner);
        }
        let health = self.health.clone();
        submit(&*self.inner).map(move |flushed| {
            if let Err(error) = &flushed
                && may_have_lost_writes(error)
            {
                // The store itself may have reported the failure, with more detail. The server logs the problem.
                if health.of(Aspect::Flush) == VolumeHealth::Online {
                    health.report_failed_flush("its store", error);
                }
            }
            flushed
        })
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::layers::{Fault, Faults, FaultyStore, Times};
    use sarsen_block::{BlockSize, Buffer, Durability, MemoryStore, conformance};

    use super::*;
    use crate::testing::answer;

    fn ready<T>(io: Io<T>) -> T {
        answer(io).expect("memory does not wait")
    }

    #[test]
    fn it_passes_the_conformance_suite() {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 1000));
        let guarded = |below: Arc<dyn Store>| {
            let health = Arc::new(Health::new(below.status().clone()));
            Arc::new(GuardedStore::new(below, health)) as _
        };
        let store: Arc<dyn Store> = guarded(below);
        ready(Io::pending(async move { conformance::check(&*store, 1).await }));
        ready(Io::pending(conformance::check_errors(guarded)));
    }

    #[test]
    fn after_a_failed_flush_nothing_is_written_and_all_is_read() {
        let faults = Faults::default();
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 8));
        let health = Arc::new(Health::new(inner.status().clone()));
        let inner = FaultyStore::new(inner, faults.clone());
        let store = GuardedStore::new(Arc::new(inner), health.clone());
        let write = || {
            let data = Buffer::copy_of(&[7; 512]);
            ready(store.write(Extent::new(0, 1), data.into(), Durability::Volatile))
        };
        write().expect("written");
        ready(store.flush()).expect("flushed");
        faults.add(Fault::FlushFails, Times::Once);
        assert!(matches!(ready(store.flush()), Err(BlockError::Medium { .. })));
        assert!(
            matches!(ready(store.flush()), Err(BlockError::Stopped(StopCause::FlushFailed))),
            "it is not forgotten"
        );
        assert!(matches!(write(), Err(BlockError::Stopped(StopCause::FlushFailed))));
        assert!(ready(store.read(Extent::new(0, 1))).is_ok());
        assert!(matches!(health.current(), VolumeHealth::Degraded { .. }));
        let reason = "is out of service".to_owned();
        health.report(Aspect::Backing, VolumeHealth::OutOfService { reason });
        let read = ready(store.read(Extent::new(0, 1)));
        assert!(matches!(read, Err(BlockError::Stopped(StopCause::OutOfService))));
    }
}
