//! The devices of a pool: bytes at an offset.

use std::sync::Arc;

use futures_util::future::try_join_all;
use sarsen_block::{Buffer, Data, Durability, Extent, Payload, Reply, Store};
use zerocopy::IntoBytes as _;

use crate::PoolError;
use crate::format::{SUPERBLOCKS, Sealed as _, Superblock};
use crate::shape::Layout;

/// A device of the pool.
pub(crate) struct Device {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) layout: Layout,
}

/// A range of bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) offset: u64,
}

/// All devices, in the order of the pool.
pub(crate) struct Devices(pub(crate) Vec<Device>);

/// Maximum number of writes of metadata in flight together.
const TOGETHER: usize = 32;

impl Devices {
    fn extent(&self, place: Place, length: u64) -> (&Arc<dyn Store>, Extent) {
        let store = &self.0[place.device].store;
        let shift = store.geometry().block_size.shift();
        debug_assert!((place.offset | length) & ((1 << shift) - 1) == 0, "not whole blocks");
        (store, Extent::new(place.offset >> shift, length >> shift))
    }

    /// Starts a read.
    pub(crate) fn read(&self, place: Place, length: u64) -> Reply<Data> {
        let (store, extent) = self.extent(place, length);
        store.read(extent)
    }

    /// Starts a write.
    pub(crate) fn write(&self, place: Place, data: Payload, durability: Durability) -> Reply<()> {
        let (store, extent) = self.extent(place, data.len() as u64);
        store.write(extent, data, durability)
    }

    /// Reads metadata.
    pub(crate) async fn read_metadata(
        &self,
        place: Place,
        length: usize,
    ) -> Result<Buffer, PoolError> {
        let read = self.read(place, length as u64).wait().await;
        let failed = |source| PoolError::Device { device: place.device, source };
        Ok(read.map_err(failed)?.into_buffer())
    }

    /// Writes metadata to many places.
    pub(crate) async fn write_metadata(
        &self,
        writes: Vec<(Place, Buffer)>,
        durability: Durability,
    ) -> Result<(), PoolError> {
        let mut writes = writes.into_iter();
        loop {
            let some: Vec<_> = writes.by_ref().take(TOGETHER).collect();
            if some.is_empty() {
                return Ok(());
            }
            try_join_all(some.into_iter().map(|(place, data)| async move {
                let written = self.write(place, data.into(), durability).wait().await;
                written.map_err(|source| PoolError::Device { device: place.device, source })
            }))
            .await?;
        }
    }

    /// Writes a superblock to some devices, durably.
    pub(crate) async fn write_superblock(
        &self,
        superblock: &Superblock,
        devices: impl Iterator<Item = usize>,
    ) -> Result<(), PoolError> {
        let offset = SUPERBLOCKS[(superblock.generation.get() & 1) as usize];
        let mut own = superblock.clone();
        let writes = devices.map(|device| {
            own.device = (device as u16).into();
            own.seal();
            (Place { device, offset }, Buffer::copy_of(own.as_bytes()))
        });
        self.write_metadata(writes.collect(), Durability::Durable).await
    }

    /// Makes everything durable that was written before.
    pub(crate) async fn flush(&self) -> Result<(), PoolError> {
        try_join_all(self.0.iter().enumerate().map(|(device, one)| async move {
            let flushed = one.store.flush().wait().await;
            flushed.map_err(|source| PoolError::Device { device, source })
        }))
        .await?;
        Ok(())
    }
}
