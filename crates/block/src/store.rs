//! The trait that every store and every layer implements.

use crate::{
    AllocationRun, BlockError, BlockSize, Buffer, Data, Durability, Extent, Io, Reply, Request,
    Space,
};

/// Geometry of a store. `block_count` may change while the store is open (resize).
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
    /// Whether blocks that were zeroed by [`Request::WriteZeroes`] keep their space (are anchored), so that writing
    /// them again cannot fail for lack of space.
    pub anchors: bool,
    /// Whether the store supports [`Request::Space`].
    pub tells_space: bool,
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
    /// Whether each block has protection information (see [`Request::ReadProtected`]).
    pub protection: bool,
    /// Whether written data outlives the program that wrote it.
    pub is_lasting: bool,
}

/// A disk. All cores share it: each core calls it for the commands that arrive there.
///
/// * Validation: the store rejects extents outside itself, and never truncates them.
/// * Order: a request that is submitted after the reply to another one sees the effect of that one. Requests in flight
///   together have no order.
/// * Cancellation: dropping a pending reply does not stop the request.
/// * After a failed flush, a store answers [`BlockError::Stopped`] to writes and flushes.
pub trait Store: Send + Sync {
    /// Returns the geometry.
    fn geometry(&self) -> Geometry;
    /// Returns the properties.
    fn characteristics(&self) -> Characteristics;
    /// Submits one request.
    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>>;
}

/// The requests as functions that check the kind of the reply.
impl dyn Store + '_ {
    /// Reads blocks. See [`Request::Read`].
    #[inline]
    pub fn read(&self, extent: Extent) -> Io<Result<Data, BlockError>> {
        self.submit(Request::Read(extent)).map(data)
    }

    /// Writes blocks. See [`Request::Write`].
    #[inline]
    pub fn write(
        &self,
        extent: Extent,
        data: Buffer,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::Write { extent, data, durability }).map(done)
    }

    /// Reads blocks with protection information. See [`Request::ReadProtected`].
    pub fn read_protected(&self, extent: Extent) -> Io<Result<Data, BlockError>> {
        self.submit(Request::ReadProtected(extent)).map(data)
    }

    /// Writes blocks with protection information. See [`Request::WriteProtected`].
    pub fn write_protected(
        &self,
        extent: Extent,
        data: Buffer,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::WriteProtected { extent, data, durability }).map(done)
    }

    /// Flushes the store. See [`Request::Flush`].
    pub fn flush(&self) -> Io<Result<(), BlockError>> {
        self.submit(Request::Flush).map(done)
    }

    /// Deallocates blocks. See [`Request::Unmap`].
    pub fn unmap(&self, extent: Extent) -> Io<Result<(), BlockError>> {
        self.submit(Request::Unmap(extent)).map(done)
    }

    /// Writes zeroes. See [`Request::WriteZeroes`].
    pub fn write_zeroes(
        &self,
        extent: Extent,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::WriteZeroes { extent, durability }).map(done)
    }

    /// Returns the allocation of blocks. See [`Request::Allocation`].
    pub fn allocation(&self, extent: Extent) -> Io<Result<AllocationRun, BlockError>> {
        self.submit(Request::Allocation(extent)).map(|reply| match reply? {
            Reply::Allocation(run) => Ok(run),
            other => unreachable!("a store answered {other:?} to an allocation query"),
        })
    }

    /// Returns the used and available space. See [`Request::Space`].
    pub fn space(&self) -> Io<Result<Space, BlockError>> {
        self.submit(Request::Space).map(|reply| match reply? {
            Reply::Space(space) => Ok(space),
            other => unreachable!("a store answered {other:?} to a question for its space"),
        })
    }

    /// Changes the size. See [`Request::Resize`].
    pub fn resize(&self, block_count: u64) -> Io<Result<(), BlockError>> {
        self.submit(Request::Resize { block_count }).map(done)
    }
}

fn data(reply: Result<Reply, BlockError>) -> Result<Data, BlockError> {
    match reply? {
        Reply::Data(data) => Ok(data),
        other => unreachable!("a store answered {other:?} to a read"),
    }
}

fn done(reply: Result<Reply, BlockError>) -> Result<(), BlockError> {
    match reply? {
        Reply::Done => Ok(()),
        other => unreachable!("a store answered {other:?} where nothing is returned"),
    }
}
