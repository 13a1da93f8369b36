//! The trait that every store and every layer implements.

use crate::{
    AllocationRun, BlockError, BlockSize, Buffer, Data, Durability, Extent, Io, Reply, Request,
    Space,
};

/// Size and shape of a store. `block_count` may change while it is open (resize).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of a logical block.
    pub block_size: BlockSize,
    /// Number of logical blocks.
    pub block_count: u64,
}

impl Geometry {
    /// Capacity in bytes.
    pub const fn byte_count(self) -> u64 {
        self.block_count << self.block_size.shift()
    }
}

/// How a store deallocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmap {
    /// Deallocation happens in units of so many blocks, aligned to that many; the edges of a
    /// request that are not aligned are zeroed in place.
    pub granularity_blocks: u32,
    /// Blocks that were zeroed by [`Request::WriteZeroes`] keep their room, so that writing them again
    /// cannot fail for want of it.
    pub anchors: bool,
    /// It answers [`Request::Space`].
    pub tells_space: bool,
}

/// What a store is like, fixed while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Characteristics {
    /// Writes are acknowledged before they are durable (WCE = 1 in the caching mode page).
    pub volatile_cache: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// Blocks can be given back; `None` when Unmap is refused.
    pub unmap: Option<Unmap>,
    /// log2 of the logical blocks in a physical one.
    pub physical_block_exponent: u8,
    /// Each block has protection information beside it (see [`Request::ReadProtected`]).
    pub protection: bool,
    /// What was written outlives the program that wrote it.
    pub is_lasting: bool,
}

/// A disk. Called on whichever core a command arrives; shared by all of them.
///
/// * The store validates: extents outside it are refused, never clipped.
/// * Order: a request that was submitted after another was answered sees its effect. Requests in
///   flight together have no order.
/// * Cancellation: dropping a pending answer does not stop the request.
/// * After a failed flush a store answers [`BlockError::Stopped`] to writes and flushes.
pub trait Store: Send + Sync {
    /// Size and shape.
    fn geometry(&self) -> Geometry;
    /// What it is like.
    fn characteristics(&self) -> Characteristics;
    /// Takes one request.
    fn submit(&self, request: Request) -> Io<Result<Reply, BlockError>>;
}

/// The requests as functions, with the reply's kind checked.
impl dyn Store + '_ {
    /// See [`Request::Read`].
    pub fn read(&self, extent: Extent) -> Io<Result<Data, BlockError>> {
        self.submit(Request::Read(extent)).map(data)
    }

    /// See [`Request::Write`].
    pub fn write(
        &self,
        extent: Extent,
        data: Buffer,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::Write { extent, data, durability }).map(done)
    }

    /// See [`Request::ReadProtected`].
    pub fn read_protected(&self, extent: Extent) -> Io<Result<Data, BlockError>> {
        self.submit(Request::ReadProtected(extent)).map(data)
    }

    /// See [`Request::WriteProtected`].
    pub fn write_protected(
        &self,
        extent: Extent,
        data: Buffer,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::WriteProtected { extent, data, durability }).map(done)
    }

    /// See [`Request::Flush`].
    pub fn flush(&self) -> Io<Result<(), BlockError>> {
        self.submit(Request::Flush).map(done)
    }

    /// See [`Request::Unmap`].
    pub fn unmap(&self, extent: Extent) -> Io<Result<(), BlockError>> {
        self.submit(Request::Unmap(extent)).map(done)
    }

    /// See [`Request::WriteZeroes`].
    pub fn write_zeroes(
        &self,
        extent: Extent,
        durability: Durability,
    ) -> Io<Result<(), BlockError>> {
        self.submit(Request::WriteZeroes { extent, durability }).map(done)
    }

    /// See [`Request::Allocation`].
    pub fn allocation(&self, extent: Extent) -> Io<Result<AllocationRun, BlockError>> {
        self.submit(Request::Allocation(extent)).map(|reply| match reply? {
            Reply::Allocation(run) => Ok(run),
            other => unreachable!("a store answered {other:?} to an allocation query"),
        })
    }

    /// See [`Request::Space`].
    pub fn space(&self) -> Io<Result<Space, BlockError>> {
        self.submit(Request::Space).map(|reply| match reply? {
            Reply::Space(space) => Ok(space),
            other => unreachable!("a store answered {other:?} to a question for its space"),
        })
    }

    /// See [`Request::Resize`].
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
