//! Pools: thin volumes with snapshots and clones on one or more devices.
//!
//! The devices of a pool are [`sarsen_block::Store`]s, and its volumes are, too. This crate has no clock, no random numbers
//! and no thread, so that a test can cut its power at any point. `docs/decisions/0013-pools.md` describes the structure,
//! and `docs/pool-format.md` the format on the devices.
//!
//! * `format`, `shape`: the layout of a device, and the sizes of a pool.
//! * `members`, `counts`, `space`, `slots`: devices, slabs, reference counts, which units are free, and on which devices slabs are.
//! * `tiers`, `balance`: fast and slow devices, and which slabs move between them.
//! * `copies`, `regions`: the copies of a slab, and what may differ between them.
//! * `pages`: the pages of maps in memory.
//! * `records`, `journal`: changes of maps, and the ring of frames that makes them durable.
//! * `state`, `tree`, `catalogue`: all of this together, changed only under one lock.
//! * `shared`, `checkpoint`, `opening`: from memory to the devices, and back.
//! * `devices`, `mirror`: reads and writes of devices, of all copies, and devices that fail.
//! * `checksums`, `checked`: checksums of data, and the reads and writes that compare and set them.
//! * `passes`: copies that are made, completed, moved and compared.
//! * `request`, `write`, `unmap`, `share`, `volume`: the requests of clients to a volume.
//! * `pool`: operations on volumes and snapshots.
//! * `membership`: operations on devices.
//! * `filling`: volumes that are filled from an image while they are used.
//! * `changes`: the differences between two snapshots.
//! * `usage`: what an object holds alone, or has lost.
//! * `lost`: slabs that were given up with a device.
//! * `parts`, `stream`: snapshots that are sent to another pool.
//! * `check`: the check of a pool that is not in use.

mod balance;
mod catalogue;
mod changes;
mod check;
mod checked;
mod checkpoint;
mod checksums;
mod copies;
mod counts;
mod devices;
mod error;
mod filling;
mod format;
mod grace;
mod journal;
mod locks;
mod lost;
mod members;
mod membership;
mod mirror;
mod opening;
mod pages;
mod parts;
mod passes;
mod pool;
mod records;
mod regions;
mod request;
mod shape;
mod share;
mod shared;
mod slots;
mod space;
mod state;
mod stream;
mod tasks;
mod tiers;
mod tree;
mod unmap;
mod usage;
mod volume;
mod write;

#[cfg(test)]
mod tests;

pub use changes::{Change, Changes};
pub use check::{Checked, Finding, check};
pub use checksums::ChecksumErrors;
pub use error::{PoolError, PoolProblem};
pub use filling::{FillError, FillingVolume, Image};
pub use membership::{DeviceInfo, DeviceState};
pub use opening::{AcceptedLosses, DeviceIdentity, identify};
pub use parts::{PART_BYTES_MAX, PART_HEADER_BYTES, PartInfo, StreamProblem};
pub use passes::Scrubbed;
pub use pool::{Label, NewPool, NewVolume, Pool, PoolSpace, VolumeId, VolumeInfo, VolumeKind};
pub use stream::Received;
pub use tasks::{CopyReason, Tasks};
pub use tiers::{Tier, TierUse, Tiers};
pub use volume::PoolVolume;
