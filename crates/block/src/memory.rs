//! A store in ordinary memory with one lock. Tests and simulation compare other stores with this model, and it is the
//! simplest example of a store. The `ram` store of `sarsen serve` is in `sarsen-node`.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Allocation, AllocationRun, BlockSize, Buffer, Characteristics, Data, Durability, Extent,
    Geometry, Io, Payload, Reply, Space, Store, UnmapSupport,
};

/// A store with its blocks in a map. Blocks that are not in the map read as zero.
pub struct MemoryStore {
    block_size: BlockSize,
    state: Mutex<MemoryState>,
}

struct MemoryState {
    block_count: u64,
    /// The blocks with space: mapped ones with their data, and anchored ones.
    blocks: BTreeMap<u64, Option<Box<[u8]>>>,
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new(block_size: BlockSize, block_count: u64) -> Self {
        let state = Mutex::new(MemoryState { block_count, blocks: BTreeMap::new() });
        Self { block_size, state }
    }

    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock()
    }

    /// Applies `action` to the state if the extent is within the store.
    fn within<T>(&self, extent: Extent, action: impl FnOnce(&mut MemoryState) -> T) -> Reply<T> {
        let mut state = self.state();
        Io::Ready(extent.check(state.block_count).map(|()| action(&mut state)))
    }
}

impl MemoryState {
    fn allocation(&self, lba: u64) -> Allocation {
        match self.blocks.get(&lba) {
            Some(Some(_)) => Allocation::Mapped,
            Some(None) => Allocation::Anchored,
            None => Allocation::Deallocated,
        }
    }
}

impl Store for MemoryStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.state().block_count }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: true, tells_space: true }),
            physical_block_exponent: 0,
            protection: false,
            is_lasting: false,
        }
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.within(extent, |state| {
            let mut buffer = Buffer::zeroed(extent.byte_count(self.block_size) as usize);
            let chunks = buffer.chunks_exact_mut(self.block_size.bytes());
            for (lba, chunk) in (extent.lba.0..).zip(chunks) {
                if let Some(Some(block)) = state.blocks.get(&lba) {
                    chunk.copy_from_slice(block);
                }
            }
            Data::Buffer(buffer)
        })
    }

    fn write(&self, extent: Extent, data: Payload, _: Durability) -> Reply<()> {
        self.within(extent, |state| {
            assert_eq!(data.len() as u64, extent.byte_count(self.block_size));
            let chunks = data.chunks_exact(self.block_size.bytes());
            for (lba, chunk) in (extent.lba.0..).zip(chunks) {
                state.blocks.insert(lba, Some(chunk.into()));
            }
        })
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.within(extent, |state| {
            state.blocks.retain(|&lba, _| lba < extent.lba.0 || lba >= extent.end());
        })
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        self.within(extent, |state| {
            state.blocks.extend((extent.lba.0..extent.end()).map(|lba| (lba, None)));
        })
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.within(extent, |state| {
            let allocation = state.allocation(extent.lba.0);
            let block_count = (extent.lba.0..extent.end())
                .take_while(|&lba| state.allocation(lba) == allocation)
                .count() as u64;
            AllocationRun { block_count, allocation }
        })
    }

    fn space(&self) -> Reply<Space> {
        let state = self.state();
        let used_blocks = state.blocks.len() as u64;
        Io::Ready(Ok(Space { used_blocks, available_blocks: state.block_count - used_blocks }))
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        let mut state = self.state();
        state.block_count = block_count;
        state.blocks.split_off(&block_count);
        Io::Ready(Ok(()))
    }
}
