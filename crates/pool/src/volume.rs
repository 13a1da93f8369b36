//! A volume of a pool as a store.

use std::any::Any;
use std::sync::Arc;

use sarsen_block::{
    Allocation, AllocationRun, BlockSize, Characteristics, Data, Durability, Extent, Geometry,
    InvalidRequest, Io, Lba, OptimalTransfer, Payload, Reply, Space, Store, StoreStatus,
    UnmapSupport,
};

use crate::PoolError;
use crate::format::{IS_SNAPSHOT, PAGE, RECEIVING, VolumeRow};
use crate::records::Record;
use crate::request::Bytes;
use crate::shape::SIZE_MAX;
use crate::shared::Shared;
use crate::space::Class;
use crate::state::State;

/// An open volume, or an open snapshot, which is read-only.
pub struct PoolVolume {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: u32,
    block_size: BlockSize,
    status: Arc<StoreStatus>,
    characteristics: Characteristics,
}

impl PoolVolume {
    pub(crate) fn new(
        shared: Arc<Shared>,
        row: &VolumeRow,
        status: Arc<StoreStatus>,
    ) -> Result<Self, PoolError> {
        let sizes = [BlockSize::B512, BlockSize::B2048, BlockSize::B4096];
        let block_size = sizes.into_iter().find(|size| size.shift() == u32::from(row.block_shift));
        let block_size = block_size.ok_or_else(|| PoolError::Damaged {
            what: format!("volume {} has blocks of an unknown size", row.id),
        })?;
        let (shape, stripe_width) = {
            let state = shared.state.read();
            (state.shape(), state.space.stripe_width(row.stripes))
        };
        let blocks = |shift: u8| 1_u32 << (u32::from(shift) - block_size.shift());
        let chunk = blocks(shape.chunk_shift);
        let is_lasting = shared.devices.all(|store| store.characteristics().is_lasting);
        let characteristics = Characteristics {
            volatile_cache: true,
            read_only: row.kind == IS_SNAPSHOT && row.flags & RECEIVING == 0,
            unmap: Some(UnmapSupport {
                granularity_blocks: blocks(shape.piece_shift()),
                anchors: false,
                tells_space: true,
            }),
            physical_block_exponent: (PAGE.ilog2() - block_size.shift()) as u8,
            // Devices that are added later count when the volume is opened again.
            optimal_transfer: Some(OptimalTransfer {
                granularity_blocks: chunk,
                length_blocks: chunk * stripe_width,
            }),
            protection: false,
            is_lasting,
        };
        Ok(Self { shared, id: row.id.get(), block_size, status, characteristics })
    }

    pub(crate) fn bytes(&self, extent: Extent) -> Bytes {
        let start = extent.byte_offset(self.block_size);
        Bytes {
            volume: self.id,
            start,
            end: start + extent.byte_count(self.block_size),
            block_shift: self.block_size.shift(),
        }
    }

    /// Returns the bytes of a change, or the reply to a request that changes nothing.
    fn changed(&self, extent: Extent) -> Result<Bytes, Reply<()>> {
        if self.characteristics.read_only {
            return Err(Io::Ready(Err(InvalidRequest::ReadOnly.into())));
        }
        match extent.check(self.status.block_count()) {
            Err(error) => Err(Io::Ready(Err(error))),
            Ok(()) if extent.block_count == 0 => Err(Io::Ready(Ok(()))),
            Ok(()) => Ok(self.bytes(extent)),
        }
    }
}

impl Store for PoolVolume {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, block_count: self.status.block_count() }
    }

    fn characteristics(&self) -> Characteristics {
        self.characteristics
    }

    fn status(&self) -> &Arc<StoreStatus> {
        &self.status
    }

    #[inline]
    fn read(&self, extent: Extent) -> Reply<Data> {
        match extent.check(self.status.block_count()) {
            Err(error) => Io::Ready(Err(error)),
            Ok(()) if extent.block_count == 0 => Io::Ready(Ok(Data::empty())),
            Ok(()) => self.shared.read(self.bytes(extent)),
        }
    }

    #[inline]
    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        match self.changed(extent) {
            Ok(bytes) => self.shared.write(bytes, data, durability, &self.status),
            Err(reply) => reply,
        }
    }

    fn flush(&self) -> Reply<()> {
        if self.characteristics.read_only {
            return Io::Ready(Ok(()));
        }
        let shared = self.shared.clone();
        self.shared.finishing(async move { shared.flush().await })
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        match self.changed(extent) {
            Ok(bytes) => {
                let (shared, open) = (self.shared.clone(), self.status.clone());
                self.shared.finishing(async move {
                    let _open = open;
                    shared.unmap(bytes).await
                })
            }
            Err(reply) => reply,
        }
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        match self.changed(extent) {
            Ok(bytes) => {
                let (shared, open) = (self.shared.clone(), self.status.clone());
                self.shared.finishing(async move {
                    let _open = open;
                    shared.unmap(bytes).await?;
                    if durability == Durability::Durable { shared.flush().await } else { Ok(()) }
                })
            }
            Err(reply) => reply,
        }
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        if let Err(error) = extent.check(self.status.block_count()) {
            return Io::Ready(Err(error));
        }
        if extent.block_count == 0 {
            let allocation = Allocation::Mapped;
            return Io::Ready(Ok(AllocationRun { block_count: 0, allocation }));
        }
        let (bytes, shift, shared) =
            (self.bytes(extent), self.block_size.shift(), self.shared.clone());
        self.shared.finishing(async move {
            let (length, allocation) = shared.allocation(bytes).await?;
            Ok(AllocationRun { block_count: length >> shift, allocation })
        })
    }

    fn shareable(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn share(&self, source: &Arc<dyn Store>, extent: Extent, to: Lba) -> Reply<u64> {
        let source = source.shareable().and_then(|source| source.downcast_ref::<Self>());
        let is_own = |source: &&Self| {
            Arc::ptr_eq(&source.shared, &self.shared) && source.block_size == self.block_size
        };
        let Some(source) = source.filter(is_own) else { return Io::Ready(Ok(0)) };
        if let Err(error) = extent.check(source.status.block_count()) {
            return Io::Ready(Err(error));
        }
        let target = match self.changed(Extent::new(to.0, extent.block_count)) {
            Ok(target) => target,
            Err(reply) => return Io::pending(async move { reply.wait().await.map(|()| 0) }),
        };
        let (from, shift) = (source.bytes(extent), self.block_size.shift());
        let open = [self.status.clone(), source.status.clone()];
        let shared = self.shared.clone();
        self.shared.finishing(async move {
            let _open = open;
            let shared = shared.share(from, (target.volume, target.start)).await?;
            Ok(shared >> shift)
        })
    }

    fn space(&self) -> Reply<Space> {
        let state = self.shared.state.read();
        let shift = u32::from(state.shape().chunk_shift) - self.block_size.shift();
        let row = state.objects.get(&self.id).map(|object| object.row);
        let (used, class) =
            row.map_or((0, Class::Data(1)), |row| (row.chunks.get(), Class::of_volume(&row)));
        Io::Ready(Ok(Space {
            used_blocks: used << shift,
            available_blocks: state.usable_chunks(class) << shift,
        }))
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        if self.characteristics.read_only {
            return Io::Ready(Err(InvalidRequest::ReadOnly.into()));
        }
        let shift = self.block_size.shift();
        if block_count > SIZE_MAX >> shift {
            return Io::Ready(Err(InvalidRequest::Unsupported.into()));
        }
        let (shared, volume, status) = (self.shared.clone(), self.id, self.status.clone());
        let block_shift = shift;
        self.shared.finishing(async move {
            let _resizing = shared.resizing.lock().await;
            let (old, size) = (status.block_count(), block_count << shift);
            if block_count < old {
                status.set_block_count(block_count);
                // What was written behind the new end before is there now, and is removed.
                shared.end_period().await;
                let bytes = Bytes { volume, start: size, end: old << shift, block_shift };
                if let Err(error) = shared.unmap(bytes).await {
                    status.set_block_count(old);
                    return Err(error);
                }
            }
            let wanted = |state: &mut State| match state.object(volume) {
                Ok(object) => Ok(VolumeRow { size: size.into(), ..object.row }),
                Err(_) => Err(PoolError::NotFound),
            };
            let perform = |state: &mut State, row: VolumeRow| {
                state.perform(&Record::Change { row: Box::new(row) })
            };
            let recorded = shared.change(wanted, perform).await?;
            shared.commit(recorded).await?;
            status.set_block_count(block_count);
            Ok(())
        })
    }
}
