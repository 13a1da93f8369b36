//! The block layer: the requests that upper layers send to stores, and the replies of stores.
//!
//! A [`Store`] takes a [`Request`] and returns an [`Io`]: the finished reply, or a future of it. Layers wrap a store
//! and are stores themselves. This crate has no clocks, sockets or threads. The stores that use the kernel are in
//! `sarsen-node`. Every store and layer passes [`conformance`].

pub mod buffer;
pub mod conformance;
pub mod data;
pub mod error;
pub mod io;
pub mod layers;
pub mod memory;
pub mod request;
pub mod rng;
pub mod store;

pub use buffer::Buffer;
pub use data::{Data, Piece, SharedMemory};
pub use error::{BlockError, Direction, ProtectionField};
pub use io::{Io, LocalFuture};
pub use memory::MemoryStore;
pub use request::{
    Allocation, AllocationRun, BlockSize, Durability, Extent, Lba, PROTECTION_BYTES, Reply,
    Request, Space,
};
pub use rng::Rng;
pub use store::{Characteristics, Geometry, Store, UnmapSupport};
