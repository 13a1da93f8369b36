//! Checksums of data in memory: the CRC32C of each 4 KiB, in slabs of volumes that want them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::format::{CHECKSUMS, PAGE};
use crate::pages::AddressMap;

/// Number of changed pages from which on a checkpoint is due.
const CHANGED_MAX: usize = 4096;

/// Returns the checksum of a block. It is never 0, which says that there is none.
pub(crate) fn checksum_of(block: &[u8]) -> u32 {
    match crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, block) as u32 {
        0 => u32::MAX,
        checksum => checksum,
    }
}

/// A page of checksums in memory.
pub(crate) struct CachedPage {
    pub(crate) checksums: Box<[AtomicU32]>,
    /// The last checkpoint does not have all of them.
    pub(crate) is_changed: AtomicBool,
    /// The number of such pages of the pool.
    pub(crate) changed: Arc<AtomicUsize>,
}

impl CachedPage {
    fn change(&self) {
        if !self.is_changed.swap(true, Ordering::Relaxed) {
            self.changed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The checksums of consecutive blocks of a slab.
pub(crate) struct BlockChecksums {
    pub(crate) pages: Vec<Arc<CachedPage>>,
    /// The number of the first block in the first page.
    pub(crate) first: usize,
}

impl BlockChecksums {
    /// Returns the checksum of a block, or 0 if it has none.
    pub(crate) fn get(&self, number: usize) -> u32 {
        let number = self.first + number;
        self.pages[number / CHECKSUMS].checksums[number % CHECKSUMS].load(Ordering::Relaxed)
    }

    /// Sets the checksum of a block. The caller has the lock of the state, so that no checkpoint gets half of a change.
    pub(crate) fn set(&self, number: usize, checksum: u32) {
        let number = self.first + number;
        let page = &self.pages[number / CHECKSUMS];
        page.checksums[number % CHECKSUMS].store(checksum, Ordering::Relaxed);
        page.change();
    }

    /// Lets the next checkpoint write their pages to all copies.
    pub(crate) fn write_again(&self) {
        self.pages.iter().for_each(|page| page.change());
    }

    /// Returns whether a block can be what was written.
    pub(crate) fn allows(&self, number: usize, block: &[u8]) -> bool {
        let checksum = self.get(number);
        checksum == 0 || checksum == checksum_of(block)
    }

    /// Returns the numbers of the blocks that are not what was written.
    pub(crate) fn mismatches(&self, data: &[u8]) -> Vec<usize> {
        let blocks = data.chunks(PAGE).enumerate();
        blocks
            .filter(|(number, block)| !self.allows(*number, block))
            .map(|(number, _)| number)
            .collect()
    }
}

/// The checksums of a pool that are in memory.
#[derive(Default)]
pub(crate) struct Checksums {
    /// By slab and number.
    pub(crate) pages: AddressMap<(u32, u32), Arc<CachedPage>>,
    /// The number of pages that the last checkpoint does not have.
    pub(crate) changed: Arc<AtomicUsize>,
    /// Regions of slabs whose checksums must be calculated again.
    pub(crate) doubted: BTreeMap<u32, u64>,
}

impl Checksums {
    pub(crate) fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// Removes pages from memory that the last checkpoint has and no request uses, if there are too many.
    pub(crate) fn evict(&mut self, most: usize) {
        let mut excess = match self.pages.len().checked_sub(most) {
            None | Some(0) => return,
            Some(excess) => excess + most / 8,
        };
        self.pages.retain(|_, page| {
            let is_needed = excess == 0
                || page.is_changed.load(Ordering::Relaxed)
                || Arc::strong_count(page) > 1;
            excess -= usize::from(!is_needed);
            is_needed
        });
    }

    /// Forgets a slab that has ended.
    pub(crate) fn remove(&mut self, slab: u32) {
        if self.doubted.remove(&slab).is_some() || !self.pages.is_empty() {
            self.pages.retain(|(known, _), _| *known != slab);
        }
    }

    /// Returns whether a checkpoint should write what has changed.
    pub(crate) fn is_crowded(&self) -> bool {
        self.changed.load(Ordering::Relaxed) > CHANGED_MAX
    }

    /// Returns the regions whose checksums must be calculated again.
    pub(crate) fn doubted(&self) -> Vec<(u32, u64)> {
        self.doubted.iter().map(|(&slab, &regions)| (slab, regions)).collect()
    }
}

/// How often blocks were not what was written, since the pool was opened.
#[derive(Default)]
pub(crate) struct Mismatches {
    /// Of each device.
    found: Mutex<BTreeMap<u8, u64>>,
    repaired: AtomicU64,
    lost: AtomicU64,
}

/// Blocks of data that did not have their checksum, since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChecksumErrors {
    /// Copies of blocks that were written again from another copy.
    pub repaired: u64,
    /// Reads of blocks that no copy had.
    pub lost: u64,
}

impl Mismatches {
    /// Notes that a device has returned a block that was not what was written.
    pub(crate) fn find(&self, device: u8) {
        *self.found.lock().entry(device).or_default() += 1;
    }

    /// Notes that a copy of a block was written again.
    pub(crate) fn repair(&self) {
        self.repaired.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that no copy of a block is what was written.
    pub(crate) fn lose(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of_device(&self, device: u8) -> u64 {
        self.found.lock().get(&device).copied().unwrap_or(0)
    }

    pub(crate) fn errors(&self) -> ChecksumErrors {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ChecksumErrors { repaired: load(&self.repaired), lost: load(&self.lost) }
    }
}
