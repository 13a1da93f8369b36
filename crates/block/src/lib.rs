//! What a disk is: the vocabulary in which everything above asks and every store below answers.
//!
//! A [`Store`] takes a [`Request`] and gives an [`Io`]: the finished reply, or a future of it.
//! Layers wrap a store and are stores themselves. Nothing here has a clock, a socket or a thread;
//! the stores that talk to the kernel live in `sarsen-node`, and every store and layer passes
//! [`conformance`].

pub mod buffer;
pub mod conformance;
pub mod data;
pub mod error;
pub mod io;
pub mod layers;
pub mod memory;
pub mod request;
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
pub use store::{Characteristics, Geometry, Store, Unmap};
