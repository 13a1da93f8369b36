//! A store in ordinary memory with one lock. Tests and simulation compare other stores with this model, and it is the
//! simplest example of a store. The `ram` store of `sarsen serve` is in `sarsen-node`.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{
    Allocation, AllocationRun, BlockSize, Buffer, Characteristics, Data, Durability, Extent,
    Geometry, Io, Payload, Reply, Space, Store, StoreStatus, UnmapSupport,
};

/// The blocks with space: mapped ones with their data, and anchored ones.
type Blocks = BTreeMap<u64, Option<Box<[u8]>>>;

/// A store with its blocks in a map. Blocks that are not in the map read as zero.
pub struct MemoryStore {
    block_size: BlockSize,
    status: Arc<StoreStatus>,
    blocks: Mutex<Blocks>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(block_size: BlockSize, block_count: u64) -> Self {
        Self { block_size, status: StoreStatus::new(block_count), blocks: Mutex::default() }
    }

    /// Applies `action` to the blocks if the extent is within the store.
    fn within<T>(&self, extent: Extent, action: impl FnOnce(&mut Blocks) -> T) -> Reply<T> {
        let mut blocks = self.blocks.lock();
        Io::Ready(extent.check(self.status.block_count()).map(|()| action(&mut blocks)))
    }
}

fn allocation_of(blocks: &Blocks, lba: u64) -> Allocation {
    match blocks.get(&lba) {
        Some(Some(_)) => Allocation::Mapped,
        Some(None) => Allocation::Anchored,
        None => Allocation::Deallocated,
    }
}

impl Store for MemoryStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: true, tells_space: true }),
            physical_block_exponent: 0,
            optimal_transfer: None,
            protection: false,
            is_lasting: false,
        }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.within(extent, |blocks| {
            let mut buffer = Buffer::zeroed(extent.byte_count(self.block_size) as usize);
            let chunks = buffer.chunks_exact_mut(self.block_size.bytes());
            for (lba, chunk) in (extent.lba.0..).zip(chunks) {
                if let Some(Some(block)) = blocks.get(&lba) {
                    chunk.copy_from_slice(block);
                }
            }
            Data::Buffer(buffer)
        })
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        self.within(extent, |blocks| {
            assert_eq!(data.len() as u64, extent.byte_count(self.block_size));
            let chunks = data.chunks_exact(self.block_size.bytes());
            for (lba, chunk) in (extent.lba.0..).zip(chunks) {
                blocks.insert(lba, Some(chunk.into()));
            }
        })
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.within(extent, |blocks| {
            blocks.retain(|&lba, _| lba < extent.lba.0 || lba >= extent.end());
        })
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        self.within(extent, |blocks| {
            blocks.extend((extent.lba.0..extent.end()).map(|lba| (lba, None)));
        })
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.within(extent, |blocks| {
            let allocation = allocation_of(blocks, extent.lba.0);
            let block_count = (extent.lba.0..extent.end())
                .take_while(|&lba| allocation_of(blocks, lba) == allocation)
                .count() as u64;
            AllocationRun { block_count, allocation }
        })
    }

    fn space(&self) -> Reply<Space> {
        let used_blocks = self.blocks.lock().len() as u64;
        let available_blocks = self.status.block_count().saturating_sub(used_blocks);
        Io::Ready(Ok(Space { used_blocks, available_blocks }))
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        self.status.set_block_count(block_count);
        self.blocks.lock().split_off(&block_count);
        Io::Ready(Ok(()))
    }
}
