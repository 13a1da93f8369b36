//! A store that keeps no data, for measuring the layers above it.

use std::sync::atomic::{AtomicU64, Ordering};

use sarsen_block::{
    Allocation, AllocationRun, BlockError, BlockSize, Characteristics, Data, Extent, Geometry, Io,
    Reply, Request, Store, UnmapSupport,
};

/// A store that returns zeroes and discards writes.
pub struct NullStore {
    block_size: BlockSize,
    block_count: AtomicU64,
}

impl NullStore {
    /// Creates a store with this number of blocks.
    pub fn new(block_size: BlockSize, block_count: u64) -> Self {
        Self { block_size, block_count: AtomicU64::new(block_count) }
    }

    fn check(&self, extent: Extent) -> Result<(), BlockError> {
        let block_count = self.block_count.load(Ordering::Relaxed);
        if extent.fits(block_count) {
            Ok(())
        } else {
            Err(BlockError::OutOfRange { extent, block_count })
        }
    }

    fn perform(&self, request: Request) -> Result<Reply, BlockError> {
        match request {
            Request::Read(extent) => {
                self.check(extent)?;
                let length = extent.byte_count(self.block_size) as usize;
                Ok(Reply::Data(Data::Zeroes(length)))
            }
            Request::Write { extent, .. }
            | Request::WriteZeroes { extent, .. }
            | Request::Unmap(extent) => self.check(extent).map(|()| Reply::Done),
            Request::ReadProtected(_) | Request::WriteProtected { .. } => {
                Err(BlockError::Unsupported)
            }
            Request::Flush => Ok(Reply::Done),
            Request::Allocation(extent) => {
                self.check(extent)?;
                let allocation = Allocation::Deallocated;
                Ok(Reply::Allocation(AllocationRun { block_count: extent.block_count, allocation }))
            }
            Request::Space => Err(BlockError::Unsupported),
            Request::Resize { block_count } => {
                self.block_count.store(block_count, Ordering::Relaxed);
                Ok(Reply::Done)
            }
        }
    }
}

impl Store for NullStore {
    fn geometry(&self) -> Geometry {
        let block_count = self.block_count.load(Ordering::Relaxed);
        Geometry { block_size: self.block_size, block_count }
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics {
            volatile_cache: false,
            read_only: false,
            unmap: Some(UnmapSupport { granularity_blocks: 1, anchors: false, tells_space: false }),
            physical_block_exponent: 0,
            protection: false,
            is_lasting: false,
        }
    }

    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>> {
        Io::Ready(self.perform(request))
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
