//! A sparse store in memory. It answers at once, and its data is sent without a copy.
//!
//! A bitmap marks the written pages. The order of its changes guarantees two conditions under concurrency: after a
//! write is acknowledged, its pages are marked, and a page without a mark reads as zeroes. So a write first copies the
//! data and then marks the pages. An unmap first clears the marks and then frees the pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering, fence};

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Characteristics, Data, Direction, Durability,
    Extent, Geometry, InvalidRequest, Io, Payload, Reply, Space, Store, StoreStatus, UnmapSupport,
};
use sarsen_io::memory::{PAGE, Region};

use super::BackingSpace;

/// Factor of the address space that is reserved for growth. The minimum is [`LEAST_ROOM`].
const GROWTH: u64 = 4;
const LEAST_ROOM: u64 = 1 << 36;
const PAGES_PER_WORD: u64 = u64::BITS as u64;

const UNLIMITED: i64 = i64::MAX;

/// See the module. The content is lost when this is dropped. A flush cannot make writes more durable, so the store
/// reports no volatile cache.
pub struct RamStore {
    block_size: BlockSize,
    status: Arc<StoreStatus>,
    region: Arc<Region>,
    /// A bit for each page of the reserved address space. The bitmap is sparse, too.
    written: Bitmap,
    /// Maximum number of pages, or [`UNLIMITED`].
    limit: i64,
    /// Number of marked pages, plus the pages that writes in progress may mark. It is negative for a moment if an unmap
    /// clears the marks of a write before that write has counted them.
    taken: AtomicI64,
}

impl RamStore {
    /// Creates a store of zeroes.
    pub fn new(block_size: BlockSize, block_count: u64) -> std::io::Result<Self> {
        Self::with_limit(block_size, block_count, None)
    }

    /// Creates a store of zeroes that uses a maximum of `limit` bytes of memory, if given. Writes beyond the limit are
    /// refused.
    pub fn with_limit(
        block_size: BlockSize,
        block_count: u64,
        limit: Option<u64>,
    ) -> std::io::Result<Self> {
        let bytes = block_count << block_size.shift();
        let room = bytes.saturating_mul(GROWTH).max(LEAST_ROOM);
        let region = Region::with_room(bytes as usize, room as usize)
            .or_else(|_| Region::new(bytes as usize))?;
        let written = Bitmap::new((region.room() as u64).div_ceil(PAGE as u64));
        let status = StoreStatus::new(block_count);
        let limit = limit.map_or(UNLIMITED, |limit| (limit / PAGE as u64) as i64);
        let taken = AtomicI64::new(0);
        Ok(Self { block_size, status, region, written, limit, taken })
    }

    /// Returns the memory that the store uses and may still use.
    pub(crate) fn room(&self) -> BackingSpace {
        let bytes = |pages: i64| pages.max(0) as u64 * PAGE as u64;
        let taken = self.taken.load(Ordering::Relaxed);
        let free = (self.limit < UNLIMITED).then(|| bytes(self.limit - taken));
        BackingSpace { allocated: bytes(taken), free }
    }

    /// Ensures that the store can be resized to this number of blocks. The new blocks are not visible before the
    /// resize.
    pub(crate) fn reserve(&self, block_count: u64) -> std::io::Result<()> {
        let bytes = block_count.checked_mul(self.block_size.bytes() as u64);
        self.region.grow(bytes.ok_or(std::io::ErrorKind::OutOfMemory)? as usize)
    }

    /// Returns the first byte and the number of bytes of an extent, if it lies within the disk.
    fn bytes(&self, extent: Extent) -> Result<(u64, u64), BlockError> {
        extent.check(self.status.block_count())?;
        Ok((extent.byte_offset(self.block_size), extent.byte_count(self.block_size)))
    }

    /// Claims space for the unmarked pages of a range, calls `fill`, and marks them.
    fn fill(
        &self,
        extent: Extent,
        (offset, length): (u64, u64),
        fill: impl FnOnce(),
    ) -> Result<(), BlockError> {
        let claimed = self.written.count_unmarked(offset, length);
        if claimed > 0 && self.taken.fetch_add(claimed, Ordering::SeqCst) + claimed > self.limit {
            self.taken.fetch_sub(claimed, Ordering::SeqCst);
            return Err(BlockError::NoSpace { lba: extent.lba });
        }
        fill();
        let marked = self.written.set(offset, length);
        // Another write may have marked some pages first, or an unmap may have cleared more meanwhile.
        if marked != claimed {
            self.taken.fetch_add(marked - claimed, Ordering::SeqCst);
        }
        Ok(())
    }

    fn discard(&self, extent: Extent, offset: u64, length: u64) -> Result<(), BlockError> {
        let cleared = self.written.clear_whole_pages(offset, length);
        self.taken.fetch_sub(cleared, Ordering::SeqCst);
        let discarded = self.region.discard(offset as usize, length as usize);
        discarded.map_err(|source| BlockError::medium(extent.lba, Direction::Write, source))
    }

    fn set_block_count(&self, block_count: u64) -> Result<(), BlockError> {
        let old = self.status.block_count();
        let bytes = block_count.checked_mul(self.block_size.bytes() as u64);
        let bytes = bytes.filter(|&bytes| bytes <= self.region.room() as u64);
        let bytes = bytes.ok_or(InvalidRequest::Unsupported)?;
        if block_count < old {
            self.status.set_block_count(block_count);
            // If the store grows again, these blocks must be zero.
            let gone = Extent::new(block_count, old - block_count);
            let (offset, length) =
                (gone.byte_offset(self.block_size), gone.byte_count(self.block_size));
            return self.discard(gone, offset, length);
        }
        self.region
            .grow(bytes as usize)
            .map_err(|_| BlockError::Invalid(InvalidRequest::Unsupported))?;
        // A write in progress when the disk shrank may have left bytes beyond the end.
        let added = Extent::new(old, block_count - old);
        let (offset, length) =
            (added.byte_offset(self.block_size), added.byte_count(self.block_size));
        self.discard(added, offset, length)?;
        self.status.set_block_count(block_count);
        Ok(())
    }
}

impl Store for RamStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: Some(UnmapSupport {
                granularity_blocks: PAGE as u32 >> self.block_size.shift(),
                anchors: false,
                // Without a limit, the store has space for all of its blocks.
                tells_space: self.limit < UNLIMITED,
            }),
            // The physical block is a page.
            physical_block_exponent: (PAGE.ilog2() - self.block_size.shift()) as u8,
            optimal_transfer: None,
            protection: false,
            is_lasting: false,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        Io::Ready(self.bytes(extent).map(|(offset, length)| {
            if !self.written.any(offset, length) {
                return Data::Zeroes(length as usize);
            }
            let memory = self.region.clone();
            Data::Shared { memory, offset: offset as usize, length: length as usize }
        }))
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        Io::Ready(self.bytes(extent).and_then(|(offset, length)| {
            assert_eq!(data.len() as u64, length, "a write's data has the extent's length");
            self.fill(extent, (offset, length), || self.region.write(offset as usize, &data))
        }))
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        let bytes = self.bytes(extent);
        Io::Ready(bytes.and_then(|(offset, length)| self.discard(extent, offset, length)))
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        Io::Ready(self.bytes(extent).and_then(|(offset, length)| {
            self.fill(extent, (offset, length), || {
                self.region.zero(offset as usize, length as usize);
            })
        }))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        Io::Ready(self.bytes(extent).map(|(offset, length)| {
            let (marked, run) = self.written.run(offset, length);
            let allocation = if marked { Allocation::Mapped } else { Allocation::Deallocated };
            // A run ends at a page boundary, which is also a block boundary.
            AllocationRun { block_count: run >> self.block_size.shift(), allocation }
        }))
    }

    fn space(&self) -> Reply<Space> {
        if self.limit == UNLIMITED {
            return Io::Ready(Err(InvalidRequest::Unsupported.into()));
        }
        let blocks = |pages: i64| (pages.max(0) as u64 * PAGE as u64) >> self.block_size.shift();
        let taken = self.taken.load(Ordering::Relaxed);
        let (used_blocks, available_blocks) = (blocks(taken), blocks(self.limit - taken));
        Io::Ready(Ok(Space { used_blocks, available_blocks }))
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        Io::Ready(self.set_block_count(block_count))
    }
}

/// A bit for each page. A chunk is allocated when its first page is written, so that reserved address space costs
/// little.
struct Bitmap {
    chunks: Box<[std::sync::OnceLock<Box<[AtomicU64]>>]>,
}

/// Number of words in one chunk, which covers 1 GiB of pages.
const WORDS_PER_CHUNK: u64 = 4096;

impl Bitmap {
    fn new(pages: u64) -> Self {
        let chunks = pages.div_ceil(WORDS_PER_CHUNK * PAGES_PER_WORD);
        Self { chunks: (0..chunks).map(|_| std::sync::OnceLock::new()).collect() }
    }

    fn word(&self, index: u64) -> Option<&AtomicU64> {
        let chunk = self.chunks[(index / WORDS_PER_CHUNK) as usize].get()?;
        Some(&chunk[(index % WORDS_PER_CHUNK) as usize])
    }

    fn word_to_write(&self, index: u64) -> &AtomicU64 {
        let chunk = self.chunks[(index / WORDS_PER_CHUNK) as usize]
            .get_or_init(|| (0..WORDS_PER_CHUNK).map(|_| AtomicU64::new(0)).collect());
        &chunk[(index % WORDS_PER_CHUNK) as usize]
    }

    /// Calls `each` with the index and the mask of each word that the pages `first..end` touch, until it returns false.
    fn masks(first: u64, end: u64, mut each: impl FnMut(u64, u64) -> bool) {
        let mut page = first;
        while page < end {
            let word = page / PAGES_PER_WORD;
            let next = ((word + 1) * PAGES_PER_WORD).min(end);
            let count = next - page;
            let ones = if count == PAGES_PER_WORD { u64::MAX } else { (1 << count) - 1 };
            if !each(word, ones << (page % PAGES_PER_WORD)) {
                return;
            }
            page = next;
        }
    }

    /// Returns the number of unmarked pages that the bytes touch.
    fn count_unmarked(&self, offset: u64, length: u64) -> i64 {
        let page = PAGE as u64;
        let mut count = 0;
        Self::masks(offset / page, (offset + length).div_ceil(page), |index, mask| {
            let word = self.word(index).map_or(0, |word| word.load(Ordering::Acquire));
            count += i64::from((mask & !word).count_ones());
            true
        });
        count
    }

    /// Marks every page that the bytes touch. Returns how many pages were unmarked.
    fn set(&self, offset: u64, length: u64) -> i64 {
        let page = PAGE as u64;
        let mut marked = 0;
        Self::masks(offset / page, (offset + length).div_ceil(page), |word, mask| {
            let word = self.word_to_write(word);
            // Most pages are marked already, and a load is cheaper than a write to a cache line that all cores share.
            // The data must be visible before this load: then an unmap that clears a mark seen here also discards the
            // data. Without the fence, the load may come first.
            fence(Ordering::SeqCst);
            if word.load(Ordering::Relaxed) & mask != mask {
                let before = word.fetch_or(mask, Ordering::SeqCst);
                marked += i64::from((mask & !before).count_ones());
            }
            true
        });
        marked
    }

    /// Clears the marks of pages that lie completely within the bytes. Returns how many pages were marked.
    fn clear_whole_pages(&self, offset: u64, length: u64) -> i64 {
        let page = PAGE as u64;
        let mut cleared = 0;
        Self::masks(offset.div_ceil(page), (offset + length) / page, |index, mask| {
            if let Some(word) = self.word(index) {
                let before = word.fetch_and(!mask, Ordering::SeqCst);
                cleared += i64::from((mask & before).count_ones());
            }
            true
        });
        cleared
    }

    /// Returns whether any page that the bytes touch is marked.
    fn any(&self, offset: u64, length: u64) -> bool {
        let page = PAGE as u64;
        let mut found = false;
        Self::masks(offset / page, (offset + length).div_ceil(page), |index, mask| {
            let word = self.word(index).map_or(0, |word| word.load(Ordering::Acquire));
            found = word & mask != 0;
            !found
        });
        found
    }

    /// Returns whether the first page is marked, and the number of bytes from `offset` with the same state, up to
    /// `length`.
    fn run(&self, offset: u64, length: u64) -> (bool, u64) {
        let page = PAGE as u64;
        let end = (offset + length).div_ceil(page);
        let start = offset / page;
        let value = |index| self.word(index).map_or(0, |word| word.load(Ordering::Acquire));
        let first = value(start / PAGES_PER_WORD) >> (start % PAGES_PER_WORD) & 1 == 1;
        let mut at = start + 1;
        while at < end {
            let index = at / PAGES_PER_WORD;
            if !first && self.chunks[(index / WORDS_PER_CHUNK) as usize].get().is_none() {
                at = (index / WORDS_PER_CHUNK + 1) * WORDS_PER_CHUNK * PAGES_PER_WORD;
                continue;
            }
            let differing = if first { !value(index) } else { value(index) };
            let rest = differing >> (at % PAGES_PER_WORD);
            if rest != 0 {
                at += u64::from(rest.trailing_zeros());
                break;
            }
            at = (index + 1) * PAGES_PER_WORD;
        }
        (first, (at * page).min(offset + length) - offset)
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::conformance;
    use sarsen_io::cores::{self, FileEngine};

    use super::*;

    fn now<T>(reply: Io<T>) -> T {
        match reply {
            Io::Ready(reply) => reply,
            Io::Pending(_) => panic!("memory does not wait"),
        }
    }

    #[test]
    fn it_passes_the_conformance_suite() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            let store = RamStore::new(block_size, 4096).expect("memory");
            cores::block_on(FileEngine::Pool, conformance::check(&store, 1)).expect("a core");
        }
    }

    #[test]
    fn a_partly_unmapped_page_keeps_its_mark_and_its_other_blocks() {
        let store = RamStore::new(BlockSize::B512, 64).expect("memory");
        cores::block_on(FileEngine::Pool, async {
            let ones = sarsen_block::Buffer::copy_of(&[1; 64 * 512]);
            let durability = sarsen_block::Durability::Volatile;
            store.write(Extent::new(0, 64), ones.into(), durability).wait().await.expect("written");
            store.unmap(Extent::new(4, 8)).wait().await.expect("unmapped");
            let data = store.read(Extent::new(0, 16)).wait().await.expect("read").into_buffer();
            assert!(data[..4 * 512].iter().all(|&byte| byte == 1));
            assert!(data[4 * 512..12 * 512].iter().all(|&byte| byte == 0));
            assert!(data[12 * 512..].iter().all(|&byte| byte == 1));
            let run = store.allocation(Extent::new(0, 64)).wait().await.expect("told");
            assert_eq!(run, AllocationRun { block_count: 64, allocation: Allocation::Mapped });
        })
        .expect("a core");
    }

    #[test]
    fn limited_disk_refuses_writes_until_space_is_free() {
        let store =
            RamStore::with_limit(BlockSize::B512, 1024, Some(2 * PAGE as u64)).expect("memory");
        let write = |lba: u64, blocks: u64| {
            let data = sarsen_block::Buffer::zeroed(blocks as usize * 512);
            let (extent, durability) =
                (Extent::new(lba, blocks), sarsen_block::Durability::Volatile);
            now(store.write(extent, data.into(), durability))
        };
        let space = || {
            let space = now(store.space()).expect("it has a limit");
            (space.used_blocks, space.available_blocks)
        };
        assert_eq!(space(), (0, 16));
        assert!(write(4, 8).is_ok(), "two pages");
        assert_eq!(space(), (16, 0));
        assert!(matches!(write(16, 1), Err(BlockError::NoSpace { lba }) if lba.0 == 16));
        assert!(write(0, 16).is_ok(), "what has room can be written again");
        assert!(now(store.unmap(Extent::new(8, 8))).is_ok());
        assert_eq!(space(), (8, 8));
        assert!(write(1000, 24).is_err(), "three pages for one");
        assert_eq!(space(), (8, 8), "what was refused takes nothing");
        assert!(write(1016, 8).is_ok());
        assert_eq!(space(), (16, 0));
    }

    #[test]
    fn a_large_disk_costs_what_is_written() {
        let store = RamStore::new(BlockSize::B4096, 1 << 30).expect("4 TiB of addresses");
        assert_eq!(store.geometry().byte_count(), 4 << 40);
        let read = store.read(Extent::new((1 << 30) - 1, 1));
        assert!(matches!(read, Io::Ready(Ok(Data::Zeroes(4096)))));
    }
}
