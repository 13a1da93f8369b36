//! The devices of a pool: bytes at an offset.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{Either, select};
use parking_lot::RwLock;
use sarsen_block::{
    BlockError, Buffer, Data, Durability, Extent, Lba, MediumProblem, Payload, Reply, Store,
};
use tokio::sync::watch;
use zerocopy::IntoBytes as _;

use crate::PoolError;
use crate::copies::{DevicePlace, Slot};
use crate::format::{Sealed as _, Superblock};
use crate::shape::{Layout, Shape};
use crate::tasks::Tasks;

/// A device of the pool.
#[derive(Clone)]
pub(crate) struct Device {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) layout: Layout,
    block_shift: u32,
    /// Set when nothing waits for its requests any more.
    given_up: watch::Sender<bool>,
    /// Shared by each request that nothing waits for.
    abandoned: Arc<()>,
    requests: Arc<Requests>,
}

/// The numbers of requests of a device that were awaited: reads and writes of copies and of metadata, and flushes.
#[derive(Default)]
pub(crate) struct Requests {
    pending: AtomicU64,
    ended: AtomicU64,
}

/// A request that has not ended.
struct Pending(Arc<Requests>);

impl Pending {
    fn new(requests: &Arc<Requests>) -> Self {
        requests.pending.fetch_add(1, Ordering::Relaxed);
        Self(requests.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Device {
    pub(crate) fn new(store: Arc<dyn Store>, layout: Layout) -> Self {
        Self {
            block_shift: store.geometry().block_size.shift(),
            store,
            layout,
            given_up: watch::Sender::new(false),
            abandoned: Arc::default(),
            requests: Arc::default(),
        }
    }

    fn extent(&self, offset: u64, length: u64) -> Extent {
        let shift = self.block_shift;
        debug_assert!((offset | length) & ((1 << shift) - 1) == 0, "not whole blocks");
        Extent::new(offset >> shift, length >> shift)
    }
}

/// All devices, by their numbers. A device that is missing has none.
pub(crate) struct Devices {
    list: RwLock<Vec<Option<Device>>>,
    shape: Shape,
}

/// Maximum number of writes of metadata in flight together.
pub(crate) const TOGETHER: usize = 32;

pub(crate) const NOT_ONLINE: &str = "no device with this data is online";

/// Returns the error of a request for data of which no copy can be reached.
pub(crate) fn not_online() -> BlockError {
    BlockError::Unreachable(std::io::Error::other(NOT_ONLINE))
}

/// Returns the error of a request for data whose only copy was given up with its device.
pub(crate) fn lost() -> BlockError {
    let error =
        std::io::Error::other("its only copy was on a device that the pool was recovered without");
    BlockError::Medium { lba: Lba(0), problem: MediumProblem::Read(error) }
}

impl Devices {
    pub(crate) fn new(list: Vec<Option<Device>>, shape: Shape) -> Self {
        Self { list: RwLock::new(list), shape }
    }

    pub(crate) fn get(&self, device: u8) -> Option<Device> {
        self.list.read().get(usize::from(device))?.clone()
    }

    /// Returns whether all devices that are there fulfil a condition.
    pub(crate) fn all(&self, mut condition: impl FnMut(&dyn Store) -> bool) -> bool {
        self.list.read().iter().flatten().all(|device| condition(&*device.store))
    }

    /// Replaces a device, or removes it.
    pub(crate) fn set(&self, device: u8, new: Option<Device>) {
        let mut list = self.list.write();
        if list.len() <= usize::from(device) {
            list.resize(usize::from(device) + 1, None);
        }
        list[usize::from(device)] = new;
    }

    /// Ends the waiting for requests of a device that is left out.
    pub(crate) fn give_up(&self, device: u8) {
        if let Some(device) = self.get(device) {
            device.given_up.send_replace(true);
        }
    }

    /// Returns whether a device may still carry out requests that nothing waits for.
    pub(crate) fn has_abandoned(&self, device: u8) -> bool {
        let list = self.list.read();
        let device = list.get(usize::from(device)).and_then(Option::as_ref);
        device.is_some_and(|device| Arc::strong_count(&device.abandoned) > 1)
    }

    /// Returns the numbers of requests of a device that have not ended, and that have.
    pub(crate) fn requests(&self, device: u8) -> (u64, u64) {
        let Some(Device { requests, .. }) = self.get(device) else { return (0, 0) };
        (requests.pending.load(Ordering::Relaxed), requests.ended.load(Ordering::Relaxed))
    }

    /// Returns the place on a device of a place in a slab.
    pub(crate) fn at(&self, slot: Slot, offset: u64) -> DevicePlace {
        let list = self.list.read();
        let layout = list[usize::from(slot.device)].as_ref().map(|device| device.layout);
        let start = layout.map_or(0, |layout| layout.slab(&self.shape, slot.number));
        DevicePlace { device: slot.device, offset: start + offset }
    }

    /// Starts a read of a device.
    pub(crate) fn read(&self, place: DevicePlace, length: u64) -> Reply<Data> {
        match &self.list.read()[usize::from(place.device)] {
            Some(device) => device.store.read(device.extent(place.offset, length)),
            None => Reply::Ready(Err(not_online())),
        }
    }

    /// Starts a write to a device.
    pub(crate) fn write(
        &self,
        place: DevicePlace,
        data: Payload,
        durability: Durability,
    ) -> Reply<()> {
        match &self.list.read()[usize::from(place.device)] {
            Some(device) => {
                let extent = device.extent(place.offset, data.len() as u64);
                device.store.write(extent, data, durability)
            }
            None => Reply::Ready(Err(not_online())),
        }
    }

    /// Starts a read at an offset in a slot.
    #[inline]
    pub(crate) fn read_slot(&self, slot: Slot, offset: u64, length: u64) -> Reply<Data> {
        match &self.list.read()[usize::from(slot.device)] {
            Some(device) => {
                let start = device.layout.slab(&self.shape, slot.number);
                device.store.read(device.extent(start + offset, length))
            }
            None => Reply::Ready(Err(not_online())),
        }
    }

    /// Starts a write at an offset in a slot.
    #[inline]
    pub(crate) fn write_slot(
        &self,
        slot: Slot,
        offset: u64,
        data: Payload,
        durability: Durability,
    ) -> Reply<()> {
        match &self.list.read()[usize::from(slot.device)] {
            Some(device) => {
                let start = device.layout.slab(&self.shape, slot.number);
                let extent = device.extent(start + offset, data.len() as u64);
                device.store.write(extent, data, durability)
            }
            None => Reply::Ready(Err(not_online())),
        }
    }

    /// Starts a flush of a device.
    pub(crate) fn flush(&self, device: u8) -> Reply<()> {
        match &self.list.read()[usize::from(device)] {
            Some(device) => device.store.flush(),
            None => Reply::Ready(Err(not_online())),
        }
    }

    /// Waits for the end of a request of a device, or until the device is given up. Then the request continues in `tasks`.
    pub(crate) fn wait<T: 'static>(
        &self,
        device: u8,
        reply: Reply<T>,
        tasks: &Arc<dyn Tasks>,
    ) -> impl Future<Output = Result<T, BlockError>> + use<T> {
        let known = self.get(device);
        let tasks = tasks.clone();
        async move {
            let (pending, known) = match (reply, known) {
                (Reply::Ready(result), _) => return result,
                (Reply::Pending(pending), None) => return pending.await,
                (Reply::Pending(pending), Some(known)) => (pending, known),
            };
            let _counted = Pending::new(&known.requests);
            let mut given_up = known.given_up.subscribe();
            let gone = Box::pin(async move { drop(given_up.wait_for(|gone| *gone).await) });
            match select(pending, gone).await {
                Either::Left((result, _)) => result,
                Either::Right(((), pending)) => {
                    tasks.finish(Box::pin(async move {
                        drop(pending.await);
                        drop(known.abandoned);
                    }));
                    Err(not_online())
                }
            }
        }
    }

    /// Reads from a device whose data has no copy in the pool, or whose copy the caller knows.
    pub(crate) async fn read_metadata(
        &self,
        place: DevicePlace,
        length: usize,
    ) -> Result<Buffer, PoolError> {
        let read = self.read(place, length as u64).wait().await;
        let failed = |source| PoolError::Device { device: place.device.into(), source };
        Ok(read.map_err(failed)?.into_buffer())
    }

    /// Writes to a device that is not a part of the pool: not yet, or not any more.
    pub(crate) async fn prepare(
        &self,
        place: DevicePlace,
        data: Buffer,
        durability: Durability,
    ) -> Result<(), PoolError> {
        let written = self.write(place, data.into(), durability).wait().await;
        written.map_err(|source| PoolError::Device { device: place.device.into(), source })
    }

    /// Starts writing a superblock to a device, durably.
    pub(crate) fn write_superblock(
        &self,
        superblock: &Superblock,
        place: DevicePlace,
    ) -> Reply<()> {
        let mut own = superblock.clone();
        own.device = u16::from(place.device).into();
        own.seal();
        let data = Buffer::copy_of(own.as_bytes());
        self.write(place, data.into(), Durability::Durable)
    }
}
