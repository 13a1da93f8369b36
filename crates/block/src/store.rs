//! The trait that every store and every layer implements.

use std::any::Any;
use std::sync::Arc;

use crate::{
    AllocationRun, BlockError, BlockSize, Data, Durability, Extent, InvalidRequest, Io, Lba,
    Payload, Space, StoreStatus,
};

/// The reply of a store to one request: the result, or a future of it.
pub type Reply<T> = Io<Result<T, BlockError>>;

/// Geometry of a store. `block_count` may change while the store is open: [`StoreStatus`] reports that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a logical block.
    pub block_size: BlockSize,
    /// Number of logical blocks.
    pub block_count: u64,
}

impl Geometry {
    /// Returns the capacity in bytes.
    pub const fn byte_count(self) -> u64 {
        self.block_count << self.block_size.shift()
    }
}

/// How a store deallocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnmapSupport {
    /// Number of blocks in a unit of deallocation. Units are aligned to this number. A store writes zeroes to the parts
    /// of a request that are not aligned.
    pub granularity_blocks: u32,
    /// Whether blocks that were zeroed by [`Store::write_zeroes`] keep their space (are anchored), so that writing
    /// them again cannot fail for lack of space.
    pub anchors: bool,
    /// Whether the store supports [`Store::space`].
    pub tells_space: bool,
}

/// The transfers with which a store is fastest: they begin at a multiple of the granularity, and have a multiple of it
/// as their length. Both numbers are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptimalTransfer {
    /// OPTIMAL TRANSFER LENGTH GRANULARITY (SBC-3 6.6.4).
    pub granularity_blocks: u32,
    /// OPTIMAL TRANSFER LENGTH, a multiple of the granularity.
    pub length_blocks: u32,
}

/// Properties of a store, which are fixed while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// Whether writes are acknowledged before they are durable (WCE = 1 in the caching mode page).
    pub volatile_cache: bool,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Support for deallocation. `None` if the store rejects Unmap.
    pub unmap: Option<UnmapSupport>,
    /// log2 of the number of logical blocks in a physical block.
    pub physical_block_exponent: u8,
    /// The optimal transfer. `None` if the store has no alignment beyond its physical blocks.
    pub optimal_transfer: Option<OptimalTransfer>,
    /// Whether each block has protection information (see [`Store::read_protected`]).
    pub protection: bool,
    /// Whether written data outlives the program that wrote it.
    pub is_lasting: bool,
}

/// A disk. All cores share it: each core calls it for the commands that arrive there.
///
/// * Validation: callers need not check requests. The store rejects extents outside itself
///   ([`crate::InvalidRequest::OutOfRange`]), and never truncates them. A request without blocks within the store does nothing.
/// * Order: a request that is submitted after the reply to another one sees the effect of that one. Requests in flight
///   together have no order.
/// * Start: a request starts when its method is called, not when its reply is first polled.
/// * Cancellation: dropping a pending reply does not stop the request.
/// * After a failed flush, a store answers [`crate::StopCause::FlushFailed`] to writes and flushes.
pub trait Store: Send + Sync {
    /// Returns the geometry.
    fn geometry(&self) -> Geometry;

    /// Returns the properties.
    fn characteristics(&self) -> Characteristics;

    /// Returns the cell that reports changes of the size and of the usability. It is the same one while the store is
    /// open.
    fn status(&self) -> &Arc<StoreStatus>;

    /// Reads blocks. The reply has exactly the extent's bytes. Unwritten blocks read as zero.
    fn read(&self, extent: Extent) -> Reply<Data>;

    /// Writes blocks. `data` has exactly the extent's bytes.
    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()>;

    /// Reads blocks, each followed by its [`crate::PROTECTION_BYTES`]. These bytes are FFh for a block that was never
    /// written, was unmapped or zeroed, or was written without them. A store answers Unsupported if its
    /// [`Characteristics::protection`] is false.
    fn read_protected(&self, extent: Extent) -> Reply<Data> {
        let _ = extent;
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    /// Writes blocks, each followed by its [`crate::PROTECTION_BYTES`]. If the program is interrupted during the write,
    /// a block and its protection information are both old or both new.
    fn write_protected(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let _ = (extent, data, durability);
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    /// Makes all writes durable that were acknowledged before this request.
    fn flush(&self) -> Reply<()>;

    /// Deallocates blocks. They read as zero afterwards. A store that cannot deallocate writes zeroes or answers
    /// Unsupported, according to [`Characteristics::unmap`].
    fn unmap(&self, extent: Extent) -> Reply<()>;

    /// Writes zeroes and keeps the blocks' space (see [`UnmapSupport::anchors`]).
    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()>;

    /// Returns the allocation of the blocks from the extent's first one: the longest run of blocks in one state. The run
    /// ends at the extent's end at the latest.
    fn allocation(&self, extent: Extent) -> Reply<AllocationRun>;

    /// Returns what other stores know to share its space ([`Store::share`]). A store over another one that changes data does
    /// not have this.
    fn shareable(&self) -> Option<&dyn Any> {
        None
    }

    /// Gives the blocks from `to` on the contents of an extent of another store by sharing their space. Returns the number of
    /// blocks from the first one on for which that was possible, often 0: the caller copies the next ones. It is durable
    /// after a flush, like a write.
    fn share(&self, source: &Arc<dyn Store>, extent: Extent, to: Lba) -> Reply<u64> {
        let _ = (source, extent, to);
        Io::Ready(Ok(0))
    }

    /// Returns the used and available space. A store answers Unsupported if it does not know it (see
    /// [`UnmapSupport::tells_space`]).
    fn space(&self) -> Reply<Space> {
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }

    /// Changes the size to this number of blocks. A store answers Unsupported if it has a fixed size, or if shrinking
    /// would lose data in use.
    fn resize(&self, block_count: u64) -> Reply<()> {
        let _ = block_count;
        Io::Ready(Err(InvalidRequest::Unsupported.into()))
    }
}
