//! Makes a store fail and lie as bad disks do, on blocks that are chosen, for tests and drills.
//!
//! A store that fails says so: the request ends with an error. One that lies ([`lies`]) answers
//! that all is well, and only who looks at the data finds out.

mod lies;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    BlockError, Buffer, Characteristics, Direction, Extent, Geometry, Io, Lba, Reply, Request,
    Store,
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
    /// A bit of this block is wrong in what a read returns; what is stored is right.
    FlippedBit(Lba),
    /// A bit of this block is wrong in what a write stores.
    FlippedBitStored(Lba),
    /// A write to this block is acknowledged and not stored. Unmaps are carried out.
    LostWrite(Lba),
    /// A read of this block returns what was there before the last write, zeroing or unmap, if
    /// there was one since the fault was added.
    StaleRead(Lba),
    /// A write to a block lands at another one. Unmaps go where they should.
    MisdirectedWrite {
        /// Where it was to go, which stays as it is.
        lba: Lba,
        /// Where it goes, over what is there.
        to: Lba,
    },
}

/// How often a fault happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// To the first request that it meets.
    Once,
    /// To each request that it meets.
    #[default]
    Always,
}

/// A fault, and what it has to remember.
struct Planted {
    fault: Fault,
    times: Times,
    /// What the block of a stale read held before the last change.
    before: Option<Buffer>,
}

/// The faults of a store, which may be changed while it serves.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Planted>>>);

impl Faults {
    fn list(&self) -> MutexGuard<'_, Vec<Planted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one.
    pub fn add(&self, fault: Fault, times: Times) {
        self.list().push(Planted { fault, times, before: None });
    }

    /// Removes all.
    pub fn clear(&self) {
        self.list().clear();
    }

    /// Goes through all; `happens` says whether one did, and then one that happens once is gone.
    fn each(&self, mut happens: impl FnMut(&mut Planted) -> bool) {
        self.list().retain_mut(|planted| !happens(planted) || planted.times == Times::Always);
    }

    /// The error that meets a request, if one does.
    fn error(&self, request: &Request) -> Option<BlockError> {
        let mut error = None;
        self.each(|planted| {
            if error.is_none() {
                error = planted.error(request);
                return error.is_some();
            }
            false
        });
        error
    }
}

impl Planted {
    fn error(&self, request: &Request) -> Option<BlockError> {
        match (self.fault, request) {
            (Fault::Unreadable(bad), Request::Read(extent) | Request::ReadProtected(extent)) => {
                first_common(bad, *extent).map(|lba| medium(lba, Direction::Read))
            }
            (
                Fault::Unwritable(bad),
                Request::Write { extent, .. }
                | Request::WriteProtected { extent, .. }
                | Request::WriteZeroes { extent, .. }
                | Request::Unmap(extent),
            ) => first_common(bad, *extent).map(|lba| medium(lba, Direction::Write)),
            (
                Fault::NoSpace(bad),
                Request::Write { extent, .. }
                | Request::WriteProtected { extent, .. }
                | Request::WriteZeroes { extent, .. },
            ) => first_common(bad, *extent).map(|lba| BlockError::NoSpace { lba }),
            (Fault::FlushFails, Request::Flush) => Some(medium(Lba(0), Direction::Write)),
            _ => None,
        }
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
        if let Some(error) = self.faults.error(&request) {
            return Io::Ready(Err(error));
        }
        if !self.faults.lie_about(&request, self.inner.geometry()) {
            return self.inner.submit(request);
        }
        Io::pending(lies::carry_out(self.inner.clone(), self.faults.clone(), request))
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
        faults.add(Fault::Unreadable(Extent::new(10, 2)), Times::Always);
        for (lba, bad) in [(8, None), (9, Some(10)), (11, Some(11)), (12, None)] {
            let Io::Ready(read) = store.read(Extent::new(lba, 2)) else { panic!("memory waits") };
            match (read, bad) {
                (Ok(_), None) => {}
                (Err(BlockError::Medium { lba, .. }), Some(bad)) => assert_eq!(lba, Lba(bad)),
                (other, _) => panic!("{lba}: {other:?}"),
            }
        }
        faults.add(Fault::FlushFails, Times::Always);
        assert!(matches!(store.flush(), Io::Ready(Err(BlockError::Medium { .. }))));
        faults.clear();
        assert!(matches!(store.flush(), Io::Ready(Ok(()))));
    }

    #[test]
    fn what_happens_once_is_over_then() {
        let faults = Faults::default();
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let store = FaultyStore::new(inner, faults.clone());
        let store: &dyn Store = &store;
        faults.add(Fault::Unreadable(Extent::new(10, 1)), Times::Once);
        assert!(matches!(store.read(Extent::new(9, 1)), Io::Ready(Ok(_))));
        assert!(matches!(store.read(Extent::new(8, 8)), Io::Ready(Err(_))));
        assert!(matches!(store.read(Extent::new(8, 8)), Io::Ready(Ok(_))));
    }
}
