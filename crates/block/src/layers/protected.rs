//! Stores protection information for each block in a lower store that has no fields for it.
//!
//! A block of 512 bytes occupies two blocks of the lower store: its data, then its protection information. Both are in
//! one page of 4 KiB. A file, and usually a disk, stores a write to such a page completely or not at all.
//!
//! ```text
//! | header | data 0 | tags 0 | data 1 | tags 1 | ...
//! ```
//!
//! A block of 4 KiB fills such a page alone. Its protection information is stored twice, at the end of the page before
//! it and at the start of the page after it. Each copy has a checksum of the data to which it belongs:
//!
//! ```text
//! | header, head 0 | data 0 | tail 0, head 1 | data 1 | tail 1, head 2 | ...
//! ```
//!
//! One write covers head, data and tail in this order. If the program is killed during the write, one of the two copies
//! still belongs to the stored data. Only then do the copies differ, and the checksum identifies the right one.
//!
//! Protection information is stored complemented, so that zeroes mean FFh: for unwritten blocks, holes and zeroed
//! blocks.

use std::sync::Arc;

use crc_fast::{CrcAlgorithm, checksum};

use crate::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Durability,
    Extent, Geometry, InvalidRequest, Io, Lba, PROTECTION_BYTES, Payload, Reply, Space, Store,
    StoreStatus, UnmapSupport,
};

/// Size of the header at the start of the lower store. The creator of the store describes the contents there. The
/// header ends in the middle of a page: the first head follows.
pub const HEADER_BYTES: usize = 2048;

/// The block size of the lower store.
const BELOW: BlockSize = BlockSize::B512;
const SECTOR: usize = BELOW.bytes();
/// The first page after the header's page, in blocks of the lower store.
const FIRST_PAGE: u64 = 8;

/// A store with protection information. See the module.
pub struct ProtectedStore {
    inner: Arc<dyn Store>,
    layout: Layout,
}

/// The layout in the lower store. Lengths are in blocks of the lower store. Offsets are in bytes from the start of a
/// span: a block's head, data and tail.
#[derive(Clone, Copy)]
struct Layout {
    block_size: BlockSize,
    /// Distance from a block to the next one.
    stride: u64,
    /// Length of head, data and tail of one block.
    span: u64,
    /// Length of the head before the data.
    lead: u64,
}

const SMALL: Layout = Layout { block_size: BlockSize::B512, stride: 2, span: 2, lead: 0 };
const LARGE: Layout = Layout { block_size: BlockSize::B4096, stride: 16, span: 10, lead: 1 };

/// The stored protection of a block: the complement of its protection information, and, if there are two copies, the
/// checksum of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tags {
    complement: [u8; PROTECTION_BYTES],
    checksum: [u8; 8],
}

impl Tags {
    fn at(bytes: &[u8], offset: usize) -> Self {
        let field = |from: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[from..from + 8]);
            field
        };
        Self { complement: field(offset), checksum: field(offset + 8) }
    }

    fn put(self, bytes: &mut [u8], offset: usize) {
        bytes[offset..offset + 8].copy_from_slice(&self.complement);
        bytes[offset + 8..offset + 16].copy_from_slice(&self.checksum);
    }

    fn protection(self) -> [u8; PROTECTION_BYTES] {
        self.complement.map(|byte| !byte)
    }
}

/// Computes the checksum. The checksum of zeroes is zero.
fn checksum_of(data: &[u8]) -> [u8; 8] {
    checksum(CrcAlgorithm::Crc64Ecma182, data).to_be_bytes()
}

impl Layout {
    fn of(block_size: BlockSize) -> Option<Self> {
        match block_size {
            BlockSize::B512 => Some(SMALL),
            BlockSize::B4096 => Some(LARGE),
            BlockSize::B2048 => None,
        }
    }

    /// Returns the number of lower blocks before the first span.
    const fn start(self) -> u64 {
        match self.lead {
            0 => FIRST_PAGE,
            lead => FIRST_PAGE - lead,
        }
    }

    /// Returns the number of blocks for which a lower store of this size has room.
    fn blocks_in(self, below: u64) -> u64 {
        match below.checked_sub(self.start() + self.span) {
            Some(rest) => rest / self.stride + 1,
            None => 0,
        }
    }

    /// Returns the number of lower blocks that this number of blocks needs.
    fn blocks_below(self, block_count: u64) -> Option<u64> {
        match block_count.checked_sub(1) {
            Some(gaps) => gaps.checked_mul(self.stride)?.checked_add(self.start() + self.span),
            None => Some(self.start()),
        }
    }

    /// Returns the lower extent of an extent that is not empty.
    fn below(self, extent: Extent) -> Extent {
        let start = self.start() + extent.lba.0 * self.stride;
        Extent::new(start, (extent.block_count - 1) * self.stride + self.span)
    }

    /// Returns the block to which a lower block belongs.
    fn above(self, below: Lba) -> Lba {
        Lba(below.0.saturating_sub(self.start()) / self.stride)
    }

    const fn stride_bytes(self) -> usize {
        self.stride as usize * SECTOR
    }

    const fn data_offset(self) -> usize {
        self.lead as usize * SECTOR
    }

    const fn tail_offset(self) -> usize {
        self.data_offset() + self.block_size.bytes()
    }

    /// Returns the bytes for the lower store. `data` optionally has protection information after each block.
    fn encode(self, data: &[u8], with_protection: bool, block_count: u64) -> Buffer {
        let size = self.block_size.bytes();
        let step = if with_protection { size + PROTECTION_BYTES } else { size };
        assert_eq!(data.len(), block_count as usize * step, "the data has the extent's length");
        let length = (block_count as usize - 1) * self.stride_bytes() + self.span as usize * SECTOR;
        let mut bytes = Buffer::zeroed(length);
        let spans = bytes.chunks_mut(self.stride_bytes());
        for (span, block) in spans.zip(data.chunks_exact(step)) {
            let (data, protection) = block.split_at(size);
            let mut complement = [0; PROTECTION_BYTES];
            for (to, from) in complement.iter_mut().zip(protection) {
                *to = !from;
            }
            span[self.data_offset()..self.tail_offset()].copy_from_slice(data);
            if self.lead == 0 {
                Tags { complement, checksum: [0; 8] }.put(span, self.tail_offset());
            } else {
                let tags = Tags { complement, checksum: checksum_of(data) };
                tags.put(span, 0);
                tags.put(span, self.tail_offset());
            }
        }
        bytes
    }

    /// Returns the blocks in bytes of the lower store, with or without their protection information.
    fn decode(self, bytes: &[u8], with_protection: bool, block_count: u64) -> Buffer {
        let size = self.block_size.bytes();
        let step = if with_protection { size + PROTECTION_BYTES } else { size };
        let mut data = Buffer::for_overwrite(block_count as usize * step);
        for (block, span) in data.chunks_exact_mut(step).zip(bytes.chunks(self.stride_bytes())) {
            let stored = &span[self.data_offset()..self.tail_offset()];
            block[..size].copy_from_slice(stored);
            if with_protection {
                block[size..].copy_from_slice(&self.tags_of(span, stored).protection());
            }
        }
        data
    }

    fn tags_of(self, span: &[u8], stored: &[u8]) -> Tags {
        let tail = Tags::at(span, self.tail_offset());
        if self.lead == 0 {
            return tail;
        }
        let head = Tags::at(span, 0);
        // The copies differ only after an interrupted write.
        if head != tail && head.checksum == checksum_of(stored) { head } else { tail }
    }
}

impl ProtectedStore {
    /// Creates a store over `inner`, which must have blocks of 512 bytes. Returns `None` for a block size that cannot
    /// be protected.
    pub fn new(inner: Arc<dyn Store>, block_size: BlockSize) -> Option<Self> {
        assert_eq!(inner.geometry().block_size, BELOW, "the store below has small blocks");
        Some(Self { inner, layout: Layout::of(block_size)? })
    }

    /// Returns the bytes of the lower store that a disk of `block_count` blocks needs, or `None` on overflow.
    pub fn required_inner_bytes(block_size: BlockSize, block_count: u64) -> Option<u64> {
        let below = Layout::of(block_size)?.blocks_below(block_count)?;
        below.checked_mul(SECTOR as u64)
    }

    fn block_count(&self) -> u64 {
        self.layout.blocks_in(self.inner.geometry().block_count)
    }

    /// Submits a request for these blocks: `submit` passes it on, with the extent of the lower store. A request for no
    /// blocks gets `none` as its reply.
    fn below<T: 'static>(
        &self,
        extent: Extent,
        none: T,
        submit: impl FnOnce(Extent) -> Reply<T>,
    ) -> Reply<T> {
        let (layout, block_count) = (self.layout, self.block_count());
        if let Err(error) = extent.check(block_count) {
            return Io::Ready(Err(error));
        }
        if extent.block_count == 0 {
            return Io::Ready(Ok(none));
        }
        submit(layout.below(extent))
            .map(move |reply| reply.map_err(|error| above(error, layout, extent, block_count)))
    }

    fn read_in(&self, extent: Extent, with_protection: bool) -> Reply<Data> {
        let (layout, block_count) = (self.layout, extent.block_count);
        self.below(extent, Data::empty(), |below| {
            self.inner.read(below).map(move |data| match data? {
                Data::Zeroes(_) if !with_protection => {
                    Ok(Data::Zeroes(block_count as usize * layout.block_size.bytes()))
                }
                data => {
                    let bytes = data.into_buffer();
                    Ok(layout.decode(&bytes, with_protection, block_count).into())
                }
            })
        })
    }

    fn write_in(
        &self,
        extent: Extent,
        data: &[u8],
        with_protection: bool,
        durability: Durability,
    ) -> Reply<()> {
        self.below(extent, (), |below| {
            let data = self.layout.encode(data, with_protection, extent.block_count);
            self.inner.write(below, data.into(), durability)
        })
    }
}

/// Converts an error of the lower store to the blocks of this store.
fn above(error: BlockError, layout: Layout, extent: Extent, block_count: u64) -> BlockError {
    let within = |lba: Lba| {
        let last = extent.lba.0 + extent.block_count.saturating_sub(1);
        Lba(layout.above(lba).0.clamp(extent.lba.0, last))
    };
    match error {
        BlockError::Invalid(InvalidRequest::OutOfRange { .. }) => {
            InvalidRequest::OutOfRange { extent, block_count }.into()
        }
        BlockError::NoSpace { lba } => BlockError::NoSpace { lba: within(lba) },
        BlockError::Medium { lba, problem } => BlockError::Medium { lba: within(lba), problem },
        BlockError::Invalid(_)
        | BlockError::Transient(_)
        | BlockError::Unreachable(_)
        | BlockError::Fenced
        | BlockError::Stopped(_) => error,
    }
}

impl Store for ProtectedStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.layout.block_size, block_count: self.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        let inner = self.inner.characteristics();
        let body = self.layout.stride.min(FIRST_PAGE) as u32;
        Characteristics {
            unmap: inner.unmap.map(|unmap| UnmapSupport {
                granularity_blocks: unmap.granularity_blocks.div_ceil(body),
                ..unmap
            }),
            physical_block_exponent: match self.layout.lead {
                0 => inner.physical_block_exponent.saturating_sub(1),
                _ => 0,
            },
            // The first block begins behind a page: blocks are aligned to nothing larger.
            optimal_transfer: None,
            protection: true,
            ..inner
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.read_in(extent, false)
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        self.write_in(extent, &data, false, durability)
    }

    fn read_protected(&self, extent: Extent) -> Reply<Data> {
        self.read_in(extent, true)
    }

    fn write_protected(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        self.write_in(extent, &data, true, durability)
    }

    fn flush(&self) -> Reply<()> {
        self.inner.flush()
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.below(extent, (), |below| self.inner.unmap(below))
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.below(extent, (), |below| self.inner.write_zeroes(below, durability))
    }

    /// A block is deallocated if its data is: its head and tail are zero then, too.
    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let layout = self.layout;
        let none = AllocationRun { block_count: 0, allocation: Allocation::Mapped };
        self.below(extent, none, |below| {
            // The query ends with the last block's data. A small block's tags are in the same page.
            let body = layout.stride.min(FIRST_PAGE);
            let count = (extent.block_count - 1) * layout.stride + body;
            let query = Extent::new(below.lba.0 + layout.lead, count);
            self.inner.allocation(query).map(move |run| {
                let AllocationRun { block_count: run, allocation } = run?;
                let whole = run.checked_sub(body).map(|rest| rest / layout.stride + 1);
                let (block_count, allocation) = match (allocation, whole) {
                    (Allocation::Mapped, _) => (run.div_ceil(layout.stride), allocation),
                    (Allocation::Anchored | Allocation::Deallocated, Some(whole)) => {
                        (whole, allocation)
                    }
                    (Allocation::Anchored | Allocation::Deallocated, None) => {
                        (1, Allocation::Mapped)
                    }
                };
                let block_count = block_count.min(extent.block_count);
                Ok(AllocationRun { block_count, allocation })
            })
        })
    }

    fn space(&self) -> Reply<Space> {
        let stride = self.layout.stride;
        self.inner.space().map(move |space| {
            let Space { used_blocks, available_blocks } = space?;
            Ok(Space {
                used_blocks: used_blocks / stride,
                available_blocks: available_blocks / stride,
            })
        })
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        match self.layout.blocks_below(block_count) {
            Some(below) => self.inner.resize(below),
            None => Io::Ready(Err(BlockError::Invalid(InvalidRequest::Unsupported))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::MemoryStore;

    fn run<T>(answer: Io<T>) -> T {
        match pin!(answer.wait()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => value,
            Poll::Pending => panic!("a store in memory made its caller wait"),
        }
    }

    const PAGE: usize = 4096;

    fn pair(block_size: BlockSize, byte: u8) -> Vec<u8> {
        [vec![byte; block_size.bytes()], vec![byte ^ 0x55; PROTECTION_BYTES]].concat()
    }

    /// If a program is killed during a write to a file, the file has the pages of the write before some page. Every
    /// block is then of the old write or the new one, with its own tags.
    #[test]
    fn a_write_that_ends_at_any_page_leaves_blocks_with_their_own_tags() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            for (lba, block_count) in [(0, 1), (0, 9), (3, 6), (1, 1), (2, 2)] {
                let extent = Extent::new(lba, block_count);
                let layout = Layout::of(block_size).expect("a layout");
                let below = layout.below(extent);
                let all = |byte| pair(block_size, byte).repeat(block_count as usize);
                let old = layout.encode(&all(1), true, block_count);
                let new = layout.encode(&all(2), true, block_count);
                let start = below.byte_offset(BELOW) as usize;
                let mut cuts: Vec<usize> = (start / PAGE + 1..=(start + new.len()) / PAGE)
                    .map(|page| page * PAGE - start)
                    .collect();
                cuts.extend([0, new.len()]);
                let mut seen = [0; 3];
                for cut in cuts {
                    let mixed = [&new[..cut], &old[cut..]].concat();
                    let found = layout.decode(&mixed, true, block_count);
                    for (index, found) in found.chunks(pair(block_size, 0).len()).enumerate() {
                        let whole =
                            [1, 2].into_iter().find(|&byte| found == pair(block_size, byte));
                        let whole = whole.unwrap_or_else(|| panic!("{extent}: {index} at {cut}"));
                        seen[usize::from(whole)] += 1;
                    }
                }
                assert!(seen[1] > 0 && seen[2] > 0, "{seen:?}");
            }
        }
    }

    /// No block is in two pages. Tags of small blocks are not, either.
    #[test]
    fn block_and_its_tags_share_one_page() {
        for lba in 0..100 {
            let small = SMALL.below(Extent::new(lba, 1)).byte_offset(BELOW) as usize;
            assert_eq!(small / PAGE, (small + 2 * SECTOR - 1) / PAGE);
            let large = LARGE.below(Extent::new(lba, 1)).byte_offset(BELOW) as usize;
            assert_eq!((large + LARGE.data_offset()) % PAGE, 0);
            assert!(small >= HEADER_BYTES && large >= HEADER_BYTES);
        }
    }

    #[test]
    fn bytes_below_hold_exactly_the_blocks() {
        for block_size in [BlockSize::B512, BlockSize::B4096] {
            for block_count in [1, 2, 1000, 1 << 40] {
                let bytes =
                    ProtectedStore::required_inner_bytes(block_size, block_count).expect("fits");
                let layout = Layout::of(block_size).expect("a layout");
                assert_eq!(layout.blocks_in(bytes / SECTOR as u64), block_count);
                assert_eq!(layout.blocks_in(bytes / SECTOR as u64 - 1), block_count - 1);
                let last = layout.below(Extent::new(block_count - 1, 1));
                assert_eq!(last.end() * SECTOR as u64, bytes);
            }
            assert_eq!(ProtectedStore::required_inner_bytes(block_size, u64::MAX), None);
        }
        assert!(ProtectedStore::required_inner_bytes(BlockSize::B2048, 1).is_none());
    }

    #[test]
    fn an_error_below_names_the_block_above() {
        use crate::layers::{Fault, Faults, FaultyStore, Times};
        for (block_size, bad) in [(BlockSize::B512, 8 + 2 * 5), (BlockSize::B4096, 8 + 16 * 5 + 3)]
        {
            let memory = Arc::new(MemoryStore::new(BELOW, 4000));
            let faults = Faults::default();
            faults.add(Fault::Unreadable(Extent::new(bad, 1)), Times::Always);
            let below = Arc::new(FaultyStore::new(memory, faults));
            let store = ProtectedStore::new(below, block_size).expect("a layout");
            match run(store.read_protected(Extent::new(2, 9))) {
                Err(BlockError::Medium { lba, .. }) => assert_eq!(lba, Lba(5)),
                other => panic!("{other:?}"),
            }
        }
    }
}
