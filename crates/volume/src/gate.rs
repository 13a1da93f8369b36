//! The gate that separates exclusive writes from all others that overlap with them.

use std::array;
use std::sync::Arc;

use async_lock::{Mutex, RwLock, RwLockReadGuardArc, RwLockWriteGuardArc};
use sarsen_block::Extent;

/// The number of regions of a volume. Each is a bit of [`Regions`].
const REGION_COUNT: usize = u16::BITS as usize;
/// A region has each 16th run of 2^11 blocks: runs of 1 MiB with blocks of 512 bytes.
const RUN_SHIFT: u32 = 11;

/// The regions of the blocks of a volume that a write may change. A region is not contiguous: it has each 16th run of
/// 2,048 blocks. Writes of different regions do not wait for each other, and nearly all commands have one region. So the
/// gate stores no list of the writes in progress, which each write would have to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions(u16);

impl Regions {
    /// The whole volume.
    pub const ALL: Self = Self(u16::MAX);

    /// Returns the regions of all these extents.
    pub fn of_extents(extents: &[Extent]) -> Self {
        let sum = extents.iter().fold(0, |sum, &extent| sum | Self::from(extent).0);
        Self(sum)
    }

    #[inline]
    fn single(self) -> Option<usize> {
        self.0.is_power_of_two().then(|| self.0.trailing_zeros() as usize)
    }

    /// Returns the numbers of the regions, in the order in which every holder of several takes them.
    fn numbers(self) -> impl Iterator<Item = usize> {
        (0..REGION_COUNT).filter(move |number| self.0 & 1 << number != 0)
    }
}

impl From<Extent> for Regions {
    #[inline]
    fn from(extent: Extent) -> Self {
        let first = extent.lba.0 >> RUN_SHIFT;
        let last = (extent.lba.0.saturating_add(extent.block_count.max(1)) - 1) >> RUN_SHIFT;
        let further = last - first;
        if further >= REGION_COUNT as u64 - 1 {
            return Self::ALL;
        }
        let mask = (2_u16 << further) - 1;
        Self(mask.rotate_left(first as u32 % u16::BITS))
    }
}

/// The locks of the regions that a command holds.
pub struct Guard<G> {
    _locks: Locks<G>,
}

/// One lock needs no allocation.
enum Locks<G> {
    One { _lock: G },
    Several { _locks: Box<[G]> },
}

impl<G> Guard<G> {
    #[inline]
    fn one(lock: G) -> Self {
        Self { _locks: Locks::One { _lock: lock } }
    }

    fn several(locks: Vec<G>) -> Self {
        Self { _locks: Locks::Several { _locks: locks.into() } }
    }
}

/// Shared access to regions. No exclusive write happens there while it is held.
pub type SharedGuard = Guard<RwLockReadGuardArc<()>>;
/// Exclusive access to regions. No other write happens there while it is held.
pub type ExclusiveGuard = Guard<RwLockWriteGuardArc<()>>;

#[derive(Default)]
struct Region {
    lock: Arc<RwLock<()>>,
    /// Held during the wait for shared access.
    turn: Mutex<()>,
}

impl Region {
    async fn shared(&self) -> RwLockReadGuardArc<()> {
        match self.lock.try_read_arc() {
            Some(guard) => guard,
            None => {
                // Only one task waits at a time. Several waiting tasks would wake each other endlessly while exclusive
                // writers follow each other.
                let _turn = self.turn.lock().await;
                self.lock.read_arc().await
            }
        }
    }
}

/// The gate of a volume. Each write holds its regions shared until its end. A write that must not overlap with others
/// (COMPARE AND WRITE, an atomic write, an operation on the whole medium) holds its regions exclusively. A holder of
/// several regions takes them in ascending order, so there is no deadlock.
pub struct WriteGate {
    regions: [Region; REGION_COUNT],
}

impl Default for WriteGate {
    fn default() -> Self {
        Self { regions: array::from_fn(|_| Region::default()) }
    }
}

impl WriteGate {
    fn regions(&self, regions: Regions) -> impl Iterator<Item = &Region> {
        regions.numbers().map(|number| &self.regions[number])
    }

    /// Returns shared access, unless it would have to wait.
    #[inline]
    pub fn try_shared(&self, regions: impl Into<Regions>) -> Option<SharedGuard> {
        let regions = regions.into();
        match regions.single() {
            Some(number) => self.regions[number].lock.try_read_arc().map(Guard::one),
            None => self.try_several_shared(regions),
        }
    }

    #[cold]
    fn try_several_shared(&self, regions: Regions) -> Option<SharedGuard> {
        let guards = self.regions(regions).map(|region| region.lock.try_read_arc());
        guards.collect::<Option<_>>().map(Guard::several)
    }

    /// Waits for shared access.
    pub async fn shared(&self, regions: impl Into<Regions>) -> SharedGuard {
        let regions = regions.into();
        if let Some(number) = regions.single() {
            return Guard::one(self.regions[number].shared().await);
        }
        let mut guards = Vec::new();
        for region in self.regions(regions) {
            guards.push(region.shared().await);
        }
        Guard::several(guards)
    }

    /// Returns exclusive access, unless it would have to wait.
    pub fn try_exclusive(&self, regions: impl Into<Regions>) -> Option<ExclusiveGuard> {
        let guards = self.regions(regions.into()).map(|region| region.lock.try_write_arc());
        guards.collect::<Option<_>>().map(Guard::several)
    }

    /// Waits for exclusive access.
    pub async fn exclusive(&self, regions: impl Into<Regions>) -> ExclusiveGuard {
        let regions = regions.into();
        if let Some(number) = regions.single() {
            return Guard::one(self.regions[number].lock.write_arc().await);
        }
        let mut guards = Vec::new();
        for region in self.regions(regions) {
            guards.push(region.lock.write_arc().await);
        }
        Guard::several(guards)
    }

    /// Waits until all writes that hold a region now have left it. Others may have begun meanwhile.
    pub async fn wait_for_writes(&self) {
        for region in &self.regions {
            drop(region.lock.write().await);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn regions(lba: u64, block_count: u64) -> Regions {
        Extent::new(lba, block_count).into()
    }

    fn is_done(future: impl Future) -> bool {
        matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
    }

    #[test]
    fn the_regions_of_an_extent_are_those_of_its_blocks() {
        let run = 1 << RUN_SHIFT;
        for first in [0, 1, run - 1, run, 15 * run + 7, 16 * run, u64::MAX - 5 * run] {
            for count in
                [1, 2, run - 1, run, run + 1, 3 * run, 14 * run, 15 * run, 16 * run, 99 * run]
            {
                let last = first.saturating_add(count - 1);
                // One block of each run, and the last one.
                let blocks =
                    (0..=count / run).map(|step| first.saturating_add(step * run).min(last));
                let each = blocks.chain([last]).map(|lba| Extent::new(lba, 1)).collect::<Vec<_>>();
                let expected = match last / run - first / run {
                    // A run too many costs nothing but waiting.
                    further if further >= 15 => Regions::ALL,
                    _ => Regions::of_extents(&each),
                };
                assert_eq!(regions(first, count), expected, "{first} (+{count})");
            }
        }
        assert_eq!(regions(0, u64::MAX), Regions::ALL);
        assert_eq!(regions(5, 0), regions(5, 1));
    }

    #[test]
    fn only_writes_of_the_same_region_exclude_each_other() {
        let (gate, run) = (WriteGate::default(), 1 << RUN_SHIFT);
        let (first, second, both) = (regions(0, 8), regions(run, 8), regions(run - 4, 8));
        let exclusive = gate.try_exclusive(first).expect("free");
        assert!(gate.try_shared(first).is_none() && !is_done(gate.shared(first)));
        assert!(gate.try_shared(both).is_none() && !is_done(gate.exclusive(both)));
        let neighbour =
            gate.try_shared(second).expect("another region, and no task that waited kept it");
        assert!(is_done(gate.shared(second)));
        assert!(gate.try_exclusive(Regions::ALL).is_none() && !is_done(gate.wait_for_writes()));
        drop(exclusive);
        assert!(gate.try_exclusive(both).is_none() && gate.try_shared(both).is_some());
        drop(neighbour);
        assert!(is_done(gate.wait_for_writes()) && gate.try_exclusive(Regions::ALL).is_some());
    }
}
