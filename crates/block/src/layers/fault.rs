//! Makes a store fail as disks do, on blocks that are chosen, for tests and drills.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    BlockError, Characteristics, Direction, Extent, Geometry, Io, Lba, Reply, Request, Store,
};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// These blocks cannot be read.
    Unreadable(Extent),
    /// These blocks cannot be written or deallocated.
    Unwritable(Extent),
    /// There is no room to write these blocks.
    NoSpace(Extent),
    /// Flushes fail.
    FlushFails,
}

/// The faults of a store, which may be changed while it serves.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Fault>>>);

impl Faults {
    fn list(&self) -> MutexGuard<'_, Vec<Fault>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one.
    pub fn add(&self, fault: Fault) {
        self.list().push(fault);
    }

    /// Removes all.
    pub fn clear(&self) {
        self.list().clear();
    }

    /// The error that meets a request, if one does.
    fn meeting(&self, request: &Request) -> Option<BlockError> {
        self.list().iter().find_map(|&fault| match (fault, request) {
            (Fault::Unreadable(bad), Request::Read(extent)) => {
                first_common(bad, *extent).map(|lba| medium(lba, Direction::Read))
            }
            (
                Fault::Unwritable(bad),
                Request::Write { extent, .. }
                | Request::WriteZeroes { extent, .. }
                | Request::Unmap(extent),
            ) => first_common(bad, *extent).map(|lba| medium(lba, Direction::Write)),
            (
                Fault::NoSpace(bad),
                Request::Write { extent, .. } | Request::WriteZeroes { extent, .. },
            ) => first_common(bad, *extent).map(|lba| BlockError::NoSpace { lba }),
            (Fault::FlushFails, Request::Flush) => Some(medium(Lba(0), Direction::Write)),
            _ => None,
        })
    }
}

/// The first block that both extents have.
fn first_common(bad: Extent, extent: Extent) -> Option<Lba> {
    let end = |extent: Extent| extent.lba.0.saturating_add(extent.block_count);
    let first = bad.lba.max(extent.lba);
    (first.0 < end(bad).min(end(extent))).then_some(first)
}

fn medium(lba: Lba, direction: Direction) -> BlockError {
    let source = io::Error::other("a fault that was asked for");
    BlockError::Medium { lba, direction, source }
}

/// A store with faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps `inner`; `faults` may be shared with whoever changes them.
    pub fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        Self { inner, faults }
    }
}

impl Store for FaultyStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        self.inner.characteristics()
    }

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        match self.faults.meeting(&request) {
            Some(error) => Io::Ready(Err(error)),
            None => self.inner.submit(request),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockSize, MemoryStore};

    #[test]
    fn a_fault_meets_what_touches_its_blocks_and_nothing_else() {
        let faults = Faults::default();
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let store = FaultyStore::new(inner, faults.clone());
        let store: &dyn Store = &store;
        faults.add(Fault::Unreadable(Extent::new(10, 2)));
        for (lba, bad) in [(8, None), (9, Some(10)), (11, Some(11)), (12, None)] {
            let Io::Ready(read) = store.read(Extent::new(lba, 2)) else { panic!("memory waits") };
            match (read, bad) {
                (Ok(_), None) => {}
                (Err(BlockError::Medium { lba, .. }), Some(bad)) => assert_eq!(lba, Lba(bad)),
                (other, _) => panic!("{lba}: {other:?}"),
            }
        }
        faults.add(Fault::FlushFails);
        assert!(matches!(store.flush(), Io::Ready(Err(BlockError::Medium { .. }))));
        faults.clear();
        assert!(matches!(store.flush(), Io::Ready(Ok(()))));
    }
}
