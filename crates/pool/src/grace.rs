//! Grace periods: units that were given back, and snapshots, wait until all requests have ended that began before.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::shape::{SlabKind, Unit};

/// Units that become usable after a checkpoint and the end of a period.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    /// Units that nothing uses any more.
    pub(crate) units: Vec<(SlabKind, Unit)>,
    /// Units that were left to one reference, with the number of this event.
    pub(crate) alone: Vec<(SlabKind, Unit, u64)>,
}

/// A period. Each request holds the period in which it began. A period ends when all its requests, and all earlier
/// periods, have ended.
pub(crate) struct Period {
    /// It cannot end before this one ends.
    next: Mutex<Option<Arc<Period>>>,
    /// Dropped at the end.
    waiting: Mutex<Vec<oneshot::Sender<()>>>,
    /// Given to `free` at the end.
    freed: Mutex<Freed>,
    free: Arc<Mutex<Freed>>,
}

impl Period {
    pub(crate) fn new(free: Arc<Mutex<Freed>>) -> Arc<Self> {
        Arc::new(Self {
            next: Mutex::default(),
            waiting: Mutex::default(),
            freed: Mutex::default(),
            free,
        })
    }

    /// Replaces the current period by a new one. Units become free when the replaced one ends. The returned receiver ends
    /// then, too.
    pub(crate) fn rotate(current: &mut Arc<Self>, freed: Freed) -> oneshot::Receiver<()> {
        let next = Self::new(current.free.clone());
        let (sender, ended) = oneshot::channel();
        *current.next.lock() = Some(next.clone());
        *current.freed.lock() = freed;
        current.waiting.lock().push(sender);
        *current = next;
        ended
    }

    /// Returns a receiver that ends when the period ends.
    pub(crate) fn end(&self) -> oneshot::Receiver<()> {
        let (sender, ended) = oneshot::channel();
        self.waiting.lock().push(sender);
        ended
    }
}

impl Drop for Period {
    fn drop(&mut self) {
        let freed = self.freed.get_mut();
        let mut free = self.free.lock();
        free.units.append(&mut freed.units);
        free.alone.append(&mut freed.alone);
        drop(free);
        // A long chain of periods ends without recursion.
        let mut next = self.next.get_mut().take();
        while let Some(mut period) = next.and_then(Arc::into_inner) {
            next = period.next.get_mut().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_free_when_all_earlier_requests_have_ended() {
        let free = Arc::<Mutex<Freed>>::default();
        let unit = |index| (SlabKind::Data, Unit { slab: 1, index });
        let freed = |index| Freed { units: vec![unit(index)], alone: Vec::new() };
        let mut current = Period::new(free.clone());
        let early = current.clone();
        let mut first = Period::rotate(&mut current, freed(1));
        let late = current.clone();
        let mut second = Period::rotate(&mut current, freed(2));
        drop(late);
        assert!(
            free.lock().units.is_empty() && second.try_recv() == Err(empty()),
            "the first waits"
        );
        drop(early);
        assert_eq!(free.lock().units, [unit(1), unit(2)]);
        assert_ne!(first.try_recv(), Err(empty()));
        assert_ne!(second.try_recv(), Err(empty()));
        for _ in 0..100_000 {
            drop(Period::rotate(&mut current, Freed::default()));
        }
        let held = current.clone();
        for _ in 0..100_000 {
            drop(Period::rotate(&mut current, Freed::default()));
        }
        drop(held);
    }

    fn empty() -> oneshot::error::TryRecvError {
        oneshot::error::TryRecvError::Empty
    }
}
