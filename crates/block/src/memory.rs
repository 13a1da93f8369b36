//! A store in ordinary memory with one lock. Tests and simulation compare other stores with this model, and it is the
//! simplest example of a store. The `ram` store of `sarsen serve` is in `sarsen-node`.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use crate::{
    Allocation, AllocationRun, BlockError, BlockSize, Buffer, Characteristics, Data, Extent,
    Geometry, Io, Reply, Request, Space, Store, UnmapSupport,
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

    fn perform(&self, request: Request) -> Result<Reply, BlockError> {
        let mut state = self.state();
        let size = self.block_size.bytes();
        let check = |extent: Extent| {
            if extent.fits(state.block_count) {
                Ok(())
            } else {
                Err(BlockError::OutOfRange { extent, block_count: state.block_count })
            }
        };
        match request {
            Request::Read(extent) => {
                check(extent)?;
                let mut buffer = Buffer::zeroed(extent.byte_count(self.block_size) as usize);
                for (lba, chunk) in (extent.lba.0..).zip(buffer.chunks_exact_mut(size)) {
                    if let Some(Some(block)) = state.blocks.get(&lba) {
                        chunk.copy_from_slice(block);
                    }
                }
                Ok(Reply::Data(Data::Buffer(buffer)))
            }
            Request::Write { extent, data, durability: _ } => {
                check(extent)?;
                assert_eq!(data.len() as u64, extent.byte_count(self.block_size));
                for (lba, chunk) in (extent.lba.0..).zip(data.chunks_exact(size)) {
                    state.blocks.insert(lba, Some(chunk.into()));
                }
                Ok(Reply::Done)
            }
            Request::ReadProtected(_) | Request::WriteProtected { .. } => {
                Err(BlockError::Unsupported)
            }
            Request::Flush => Ok(Reply::Done),
            Request::Unmap(extent) => {
                check(extent)?;
                state.blocks.retain(|&lba, _| lba < extent.lba.0 || lba >= extent.end());
                Ok(Reply::Done)
            }
            Request::WriteZeroes { extent, durability: _ } => {
                check(extent)?;
                for lba in extent.lba.0..extent.end() {
                    state.blocks.insert(lba, None);
                }
                Ok(Reply::Done)
            }
            Request::Allocation(extent) => {
                check(extent)?;
                let of_block = |lba: u64| match state.blocks.get(&lba) {
                    Some(Some(_)) => Allocation::Mapped,
                    Some(None) => Allocation::Anchored,
                    None => Allocation::Deallocated,
                };
                let allocation = of_block(extent.lba.0);
                let block_count = (extent.lba.0..extent.end())
                    .take_while(|&lba| of_block(lba) == allocation)
                    .count() as u64;
                Ok(Reply::Allocation(AllocationRun { block_count, allocation }))
            }
            Request::Space => {
                let used_blocks = state.blocks.len() as u64;
                let available_blocks = state.block_count - used_blocks;
                Ok(Reply::Space(Space { used_blocks, available_blocks }))
            }
            Request::Resize { block_count } => {
                state.block_count = block_count;
                state.blocks.split_off(&block_count);
                Ok(Reply::Done)
            }
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

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        Io::Ready(self.perform(request))
    }
}
