//! The block layer: what a store is.
//!
//! A [`Store`] has one method for each kind of request, which returns an [`Io`]: the finished reply, or a future of it.
//! A [`Layer`] wraps a store and is a store itself. This crate has no clocks, sockets or threads. The stores that use
//! the kernel are in `sarsen-node`. Every store and layer passes [`conformance`].

pub mod buffer;
pub mod conformance;
pub mod data;
pub mod error;
pub mod io;
pub mod layer;
pub mod layers;
pub mod memory;
pub mod payload;
pub mod request;
pub mod rng;
pub mod status;
pub mod store;

pub use buffer::Buffer;
pub use data::{Data, Piece, SharedMemory};
pub use error::{BlockError, Direction, InvalidRequest, MediumProblem, ProtectionField, StopCause};
pub use io::{Io, LocalFuture};
pub use layer::Layer;
pub use memory::MemoryStore;
pub use payload::Payload;
pub use request::{
    Allocation, AllocationRun, BlockSize, Durability, Extent, Lba, PROTECTION_BYTES, Request, Space,
};
pub use rng::Rng;
pub use status::{StatusListener, StoreStatus, Usability};
pub use store::{Characteristics, Geometry, OptimalTransfer, Reply, Store, UnmapSupport};
