//! A store that keeps no data, for measuring the layers above it.

use std::sync::Arc;

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Characteristics, Data, Durability, Extent,
    Geometry, Io, Payload, Reply, Store, StoreStatus, UnmapSupport,
};

/// A store that returns zeroes and discards writes.
pub struct NullStore {
    block_size: BlockSize,
    status: Arc<StoreStatus>,
}

impl NullStore {
    /// Creates a store with this number of blocks.
    pub fn new(block_size: BlockSize, block_count: u64) -> Self {
        Self { block_size, status: StoreStatus::new(block_count) }
    }

    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        extent.check(self.status.block_count())
    }
}

impl Store for NullStore {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: false, tells_space: false }),
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
        let length = extent.byte_count(self.block_size) as usize;
        Io::Ready(self.check(extent).map(|()| Data::Zeroes(length)))
    }

    fn write(&self, extent: Extent, _: Payload, _: Durability) -> Reply<()> {
        Io::Ready(self.check(extent))
    }

    fn flush(&self) -> Reply<()> {
        Io::Ready(Ok(()))
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        Io::Ready(self.check(extent))
    }

    fn write_zeroes(&self, extent: Extent, _: Durability) -> Reply<()> {
        Io::Ready(self.check(extent))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        let (block_count, allocation) = (extent.block_count, Allocation::Deallocated);
        Io::Ready(self.check(extent).map(|()| AllocationRun { block_count, allocation }))
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        self.status.set_block_count(block_count);
        Io::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use sarsen_block::conformance;
    use sarsen_io::cores::{self, FileEngine};

    use super::*;

    #[test]
    fn it_keeps_its_size_and_nothing_else() {
        let store = NullStore::new(BlockSize::B512, 256);
        cores::block_on(FileEngine::Pool, conformance::check_null(&store)).expect("a core");
    }
}
