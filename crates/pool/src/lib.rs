//! Pools: thin volumes with snapshots and clones on one or more devices.
//!
//! The devices of a pool are [`sarsen_block::Store`]s, and its volumes are, too. This crate has no clock, no random numbers
//! and no thread, so that a test can cut its power at any point. `docs/decisions/0013-pools.md` describes the structure,
//! and `docs/pool-format.md` the format on the devices.
//!
//! * `format`, `shape`: the layout of a device, and the sizes of a pool.
//! * `space`: slabs, reference counts, and which units are free.
//! * `pages`: the pages of maps in memory.
//! * `records`, `journal`: changes of maps, and the ring of frames that makes them durable.
//! * `state`, `tree`, `catalogue`: all of this together, changed only under one lock.
//! * `shared`, `checkpoint`, `opening`: from memory to the devices, and back.
//! * `request`, `write`, `unmap`, `volume`: the requests of clients to a volume.
//! * `pool`: operations on volumes and snapshots.
//! * `changes`: the differences between two snapshots.
//! * `check`: the check of a pool that is not in use.

mod catalogue;
mod changes;
mod check;
mod checkpoint;
mod devices;
mod error;
mod format;
mod grace;
mod journal;
mod locks;
mod opening;
mod pages;
mod pool;
mod records;
mod request;
mod shape;
mod shared;
mod space;
mod state;
mod tree;
mod unmap;
mod volume;
mod write;

#[cfg(test)]
mod tests;

pub use changes::{Change, Changes};
pub use check::{Finding, check};
pub use error::{PoolError, PoolProblem};
pub use opening::identify;
pub use pool::{Label, NewPool, NewVolume, Pool, PoolSpace, VolumeId, VolumeInfo, VolumeKind};
pub use shared::Tasks;
pub use volume::PoolVolume;
