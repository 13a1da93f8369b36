//! Injects faults of bad disks into a store on chosen blocks, for tests and drills.
//!
//! There are two kinds of faults. With a failure, the request ends with an error. With silent corruption ([`lies`]),
//! the store reports success, and only a check of the data finds the fault.

mod lies;

use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use self::lies::LyingStore;
use crate::{BlockError, Buffer, Direction, Extent, Io, Layer, Lba, Reply, Request, Store};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// These blocks cannot be read.
    Unreadable(Extent),
    /// These blocks cannot be written or deallocated.
    Unwritable(Extent),
    /// There is no space to write these blocks.
    NoSpace(Extent),
    /// Flushes fail.
    FlushFails,
    /// A read returns this block with one wrong bit. The stored data is right.
    FlippedBit(Lba),
    /// A write stores this block with one wrong bit.
    FlippedBitStored(Lba),
    /// A write to this block is acknowledged and not stored. Unmaps are executed.
    LostWrite(Lba),
    /// A read of this block returns its contents before the last write, zeroing or unmap since the fault was added.
    /// Without such a change the read is correct.
    StaleRead(Lba),
    /// A write to a block is stored in another one. Unmaps are executed correctly.
    MisdirectedWrite {
        /// The block of the request. It does not change.
        lba: Lba,
        /// The block that the write overwrites.
        to: Lba,
    },
}

/// The frequency of a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Times {
    /// Affects only the first matching request.
    Once,
    /// Affects each matching request.
    #[default]
    Always,
}

/// A fault and its state.
struct Planted {
    fault: Fault,
    times: Times,
    /// For a stale read, the contents of the block before the last change.
    before: Option<Buffer>,
}

/// The faults of a store, which can change while it serves requests.
#[derive(Clone, Default)]
pub struct Faults(Arc<Mutex<Vec<Planted>>>);

impl Faults {
    fn list(&self) -> MutexGuard<'_, Vec<Planted>> {
        self.0.lock()
    }

    /// Adds a fault.
    pub fn add(&self, fault: Fault, times: Times) {
        self.list().push(Planted { fault, times, before: None });
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.list().clear();
    }

    /// Applies `happens` to all faults. It returns whether a fault affects the request. A fault with [`Times::Once`] is
    /// then removed.
    fn each(&self, mut happens: impl FnMut(&mut Planted) -> bool) {
        self.list().retain_mut(|planted| !happens(planted) || planted.times == Times::Always);
    }

    /// Returns the injected error of a request, if there is one.
    fn error(&self, request: Request) -> Option<BlockError> {
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
    fn error(&self, request: Request) -> Option<BlockError> {
        match (self.fault, request) {
            (Fault::Unreadable(bad), Request::Read(extent) | Request::ReadProtected(extent)) => {
                first_common(bad, extent).map(|lba| medium(lba, Direction::Read))
            }
            (Fault::Unwritable(bad), request) => {
                let lba = first_common(bad, request.written_extent()?)?;
                Some(medium(lba, Direction::Write))
            }
            (Fault::NoSpace(_), Request::Unmap(_)) => None,
            (Fault::NoSpace(bad), request) => {
                let lba = first_common(bad, request.written_extent()?)?;
                Some(BlockError::NoSpace { lba })
            }
            (Fault::FlushFails, Request::Flush) => Some(medium(Lba(0), Direction::Write)),
            _ => None,
        }
    }
}

/// Returns the first block that both extents contain.
fn first_common(bad: Extent, extent: Extent) -> Option<Lba> {
    let first = bad.lba.max(extent.lba);
    (first.0 < bad.saturating_end().min(extent.saturating_end())).then_some(first)
}

fn medium(lba: Lba, direction: Direction) -> BlockError {
    let source = io::Error::other("a fault that was asked for");
    BlockError::medium(lba, direction, source)
}

/// A store with faults.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Faults,
}

impl FaultyStore {
    /// Wraps `inner`. The caller can keep a clone of `faults` to change them.
    pub fn new(inner: Arc<dyn Store>, faults: Faults) -> Self {
        Self { inner: Arc::new(LyingStore::new(inner, faults.clone())), faults }
    }
}

impl Layer for FaultyStore {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        match self.faults.error(request) {
            Some(error) => Io::Ready(Err(error)),
            None => submit(&*self.inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockSize, MemoryStore};

    #[test]
    fn fault_affects_only_commands_on_its_blocks() {
        let faults = Faults::default();
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let store = FaultyStore::new(inner, faults.clone());
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
    fn single_fault_happens_once() {
        let faults = Faults::default();
        let inner = Arc::new(MemoryStore::new(BlockSize::B512, 64));
        let store = FaultyStore::new(inner, faults.clone());
        faults.add(Fault::Unreadable(Extent::new(10, 1)), Times::Once);
        assert!(matches!(store.read(Extent::new(9, 1)), Io::Ready(Ok(_))));
        assert!(matches!(store.read(Extent::new(8, 8)), Io::Ready(Err(_))));
        assert!(matches!(store.read(Extent::new(8, 8)), Io::Ready(Ok(_))));
    }
}
