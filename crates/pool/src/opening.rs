//! Creating and opening pools: from devices into memory.

use std::sync::Arc;

use sarsen_block::{Buffer, Durability, Store};
use zerocopy::{FromBytes as _, FromZeros as _, IntoBytes as _};

use crate::devices::{Device, Devices, Place};
use crate::error::Blocked;
use crate::format::{
    DEVICES_MAX, DeviceRow, MAGIC, NAME_MAX, PAGE, PageHeader, PageKind, ROW_PAGES_MAX, RowsPage,
    SUPERBLOCKS, Sealed as _, Superblock, VERSION, bit, padded, unpadded,
};
use crate::journal::Ring;
use crate::pool::{NewPool, Pool};
use crate::records::Record;
use crate::shape::{Layout, Shape, SlabKind};
use crate::shared::{Shared, Tasks, Writer};
use crate::space::Space;
use crate::state::State;
use crate::{PoolError, PoolProblem};

/// Minimum number of slabs of a pool: one for pages, one for data, and some that pages may need.
const SLABS_MIN: u32 = 8;

const fn unfit(device: usize, problem: PoolProblem) -> PoolError {
    PoolError::Unfit { device, problem }
}

/// Returns the name with which the pool of a device was created. Nothing else is checked.
pub async fn identify(store: Arc<dyn Store>) -> Result<String, PoolError> {
    let layout = Layout { slots: 0, journal: 0, slabs: 0 };
    let superblock = read_superblock(&Devices(vec![Device { store, layout }]), 0).await?;
    Ok(unpadded(&superblock.name))
}

impl Pool {
    /// Creates a pool on devices, and opens it.
    pub async fn create(new: &NewPool, tasks: Arc<dyn Tasks>) -> Result<Self, PoolError> {
        if !new.chunk_size.is_power_of_two()
            || !Shape::CHUNK_SHIFTS.contains(&(new.chunk_size.ilog2() as u8))
        {
            return Err(PoolError::Invalid("a chunk is a power of two from 16 KiB to 1 MiB"));
        }
        if new.devices.is_empty() || new.devices.len() > DEVICES_MAX {
            return Err(PoolError::Invalid("a pool has 1 to 32 devices"));
        }
        if new.name.is_empty() || new.name.len() > NAME_MAX || new.name.contains('\0') {
            return Err(PoolError::Invalid("a name has 1 to 127 bytes"));
        }
        let sizes = || new.devices.iter().map(|(store, _)| store.geometry().byte_count());
        let smallest = sizes().min().unwrap_or(0);
        let shape =
            Shape::for_size(smallest.max(sizes().sum::<u64>() / 64), new.chunk_size.ilog2() as u8);
        let mut superblock = Box::new(Superblock::new_zeroed());
        superblock.version = VERSION.into();
        superblock.magic = MAGIC;
        superblock.pool = new.identifier;
        superblock.device_count = (new.devices.len() as u16).into();
        superblock.chunk_shift = shape.chunk_shift;
        superblock.slab_shift = shape.slab_shift;
        superblock.journal = shape.journal.into();
        superblock.name = padded(&new.name);
        superblock.next_volume = 1.into();
        let mut devices = Vec::with_capacity(new.devices.len());
        for (number, (store, identifier)) in new.devices.iter().enumerate() {
            if store.geometry().block_size.bytes() > PAGE {
                return Err(unfit(number, PoolProblem::LargeBlocks));
            }
            let layout = Layout::of_bytes(&shape, store.geometry().byte_count());
            if layout.slots < SLABS_MIN {
                let needed = Layout::of_slots(&shape, SLABS_MIN).end(&shape);
                return Err(unfit(number, PoolProblem::TooSmall(needed)));
            }
            if Layout::pages(layout.slots) as usize > ROW_PAGES_MAX {
                return Err(PoolError::Invalid("a device is too large for a pool of this size"));
            }
            let row = &mut superblock.devices[number];
            (row.identifier, row.slots) = (*identifier, layout.slots.into());
            devices.push(Device { store: store.clone(), layout });
        }
        let devices = Devices(devices);
        // Both superblocks are invalid until everything else is there.
        let both = |bytes: &[u8]| {
            let place = |device| SUPERBLOCKS.map(|offset| Place { device, offset });
            let places = (0..devices.0.len()).flat_map(place);
            places.map(|place| (place, Buffer::copy_of(bytes))).collect::<Vec<_>>()
        };
        devices.write_metadata(both(&[0; PAGE]), Durability::Durable).await?;
        let mut writes = Vec::new();
        for (number, device) in devices.0.iter().enumerate() {
            for page in 0..Layout::pages(device.layout.slots) {
                let mut rows = RowsPage::new_zeroed();
                rows.header = rows_header(pool_number(&new.identifier), number, page);
                rows.seal();
                let place = Place { device: number, offset: device.layout.rows(page, false) };
                writes.push((place, Buffer::copy_of(rows.as_bytes())));
            }
        }
        devices.write_metadata(writes, Durability::Volatile).await?;
        clear_journals(&devices, shape.journal).await?;
        devices.flush().await?;
        devices.write_superblock(&superblock, 0..devices.0.len()).await?;
        let stores = devices.0.into_iter().map(|device| device.store).collect();
        Self::open(stores, tasks).await
    }

    /// Opens a pool, and makes everything that was acknowledged a part of a new checkpoint. The devices can have any order.
    /// They are in use until this future has ended, and later until the pool and all of its requests have.
    pub async fn open(
        stores: Vec<Arc<dyn Store>>,
        tasks: Arc<dyn Tasks>,
    ) -> Result<Self, PoolError> {
        let (devices, superblock, behind) = find_devices(stores).await?;
        // The next checkpoint overwrites the older superblock, which is the only one of these devices.
        devices.write_superblock(&superblock, behind.into_iter()).await?;
        let mut state = read_state(&devices, &superblock).await?;
        let pool = state.pool;
        let ring = Ring {
            length: superblock.journal.get(),
            number: superblock.frame.get(),
            offset: superblock.frame_offset.get(),
            used: 0,
            run: superblock.run.get(),
            pool,
        };
        let (records, mut ring) = read_journal(&devices, ring).await?;
        for record in &records {
            if let Record::Assign(assigned) = record {
                let carried_out = state.space.carry_out(*assigned);
                carried_out.map_err(|blocked| damaged(format!("the journal: {blocked:?}")))?;
            }
        }
        // From now on, frames have another run: those of the one before are carried out only once.
        ring.run = state.generation;
        let generation = state.generation;
        let shared = Arc::new(Shared::new(devices, state, Writer { ring, superblock }, tasks));
        shared.load_space().await?;
        shared.carry_out_again(&records).await?;
        shared.checkpoint(generation).await?;
        shared.work.notify_one();
        Ok(Self { shared })
    }
}

fn damaged(what: impl Into<String>) -> PoolError {
    PoolError::Damaged { what: what.into() }
}

/// Returns the number of a pool that all its pages have.
pub(crate) fn pool_number(identifier: &[u8; 16]) -> u64 {
    u64::from_le_bytes(*identifier.first_chunk().expect("16 bytes have 8"))
}

fn rows_header(pool: u64, device: usize, page: u32) -> PageHeader {
    PageHeader {
        kind: PageKind::Rows as u8,
        pool: pool.into(),
        address: ((device as u64) << 32 | u64::from(page)).into(),
        ..PageHeader::new_zeroed()
    }
}

/// Overwrites the beginning of each place where a frame of an earlier pool could be found.
async fn clear_journals(devices: &Devices, length: u64) -> Result<(), PoolError> {
    for (device, one) in devices.0.iter().enumerate() {
        let step = 1 << 20;
        let mut offset = 0;
        while offset < length {
            let bytes = step.min(length - offset);
            let place = Place { device, offset: one.layout.journal + offset };
            let write = (place, Buffer::zeroed(bytes as usize));
            devices.write_metadata(vec![write], Durability::Volatile).await?;
            offset += bytes;
        }
    }
    Ok(())
}

/// Reads the valid superblock with the highest generation of a device.
async fn read_superblock(devices: &Devices, device: usize) -> Result<Box<Superblock>, PoolError> {
    let (mut best, mut problem) = (None::<Box<Superblock>>, PoolProblem::NoPool);
    for offset in SUPERBLOCKS {
        let end = offset + PAGE as u64;
        if devices.0[device].store.geometry().byte_count() < end {
            continue;
        }
        let bytes = devices.read_metadata(Place { device, offset }, PAGE).await?;
        let Ok(superblock) = Superblock::read_from_bytes(&bytes) else { continue };
        if superblock.magic != MAGIC {
            continue;
        }
        if superblock.version.get() != VERSION {
            problem = PoolProblem::Version(superblock.version.get());
        } else if !superblock.is_intact() {
            if problem == PoolProblem::NoPool {
                problem = PoolProblem::Damaged;
            }
        } else if best.as_ref().is_none_or(|best| best.generation < superblock.generation) {
            best = Some(Box::new(superblock));
        }
    }
    best.ok_or_else(|| unfit(device, problem))
}

/// Reads the superblocks of devices, and puts the devices in the order of the pool. Returns the newest superblock, and the
/// devices that do not have it.
pub(crate) async fn find_devices(
    stores: Vec<Arc<dyn Store>>,
) -> Result<(Devices, Box<Superblock>, Vec<usize>), PoolError> {
    if stores.is_empty() {
        return Err(PoolError::Invalid("a pool has 1 to 32 devices"));
    }
    let unknown = Layout { slots: 0, journal: 0, slabs: 0 };
    let given = stores.into_iter().map(|store| Device { store, layout: unknown });
    let given = Devices(given.collect());
    let mut superblocks = Vec::with_capacity(given.0.len());
    for device in 0..given.0.len() {
        superblocks.push(read_superblock(&given, device).await?);
    }
    let pool = superblocks[0].pool;
    if let Some(device) = superblocks.iter().position(|superblock| superblock.pool != pool) {
        return Err(unfit(device, PoolProblem::Foreign));
    }
    let newest = superblocks.iter().max_by_key(|superblock| superblock.generation.get());
    let newest = newest.expect("at least one device").clone();
    let expected = usize::from(newest.device_count.get());
    let shape = shape_of(&newest)?;
    let mut order: Vec<Option<usize>> = vec![None; expected];
    for (device, superblock) in superblocks.iter().enumerate() {
        let number = usize::from(superblock.device.get());
        let Some(slot) = order.get_mut(number) else {
            return Err(unfit(device, PoolProblem::Foreign));
        };
        if superblock.devices[number].identifier != newest.devices[number].identifier {
            return Err(unfit(device, PoolProblem::Foreign));
        }
        if slot.replace(device).is_some() {
            return Err(unfit(device, PoolProblem::Duplicate));
        }
    }
    if order.iter().any(Option::is_none) {
        let problem = PoolProblem::Missing { expected, found: given.0.len() };
        return Err(unfit(0, problem));
    }
    let (mut devices, mut behind) = (Vec::with_capacity(expected), Vec::new());
    for (number, device) in order.into_iter().flatten().enumerate() {
        let store = given.0[device].store.clone();
        let layout = Layout::of_slots(&shape, newest.devices[number].slots.get());
        let (expected, actual) = (layout.end(&shape), store.geometry().byte_count());
        if actual < expected {
            return Err(unfit(device, PoolProblem::Short { expected, actual }));
        }
        // A crash leaves some devices with the checkpoint before the last one.
        let (generation, last) = (superblocks[device].generation.get(), newest.generation.get());
        if generation + 1 < last {
            return Err(unfit(device, PoolProblem::Stale { generation, newest: last }));
        }
        if superblocks[device].generation != newest.generation {
            behind.push(number);
        }
        devices.push(Device { store, layout });
    }
    Ok((Devices(devices), newest, behind))
}

fn shape_of(superblock: &Superblock) -> Result<Shape, PoolError> {
    let shape = Shape {
        chunk_shift: superblock.chunk_shift,
        slab_shift: superblock.slab_shift,
        journal: superblock.journal.get(),
    };
    let rows = |row: &DeviceRow| Layout::pages(row.slots.get()) as usize <= ROW_PAGES_MAX;
    let count = usize::from(superblock.device_count.get());
    let is_valid = shape.is_valid()
        && (1..=DEVICES_MAX).contains(&count)
        && superblock.devices.iter().all(rows)
        && superblock.frame_offset.get() <= shape.journal
        && superblock.frame_offset.get().is_multiple_of(PAGE as u64);
    if is_valid { Ok(shape) } else { Err(damaged("the superblock has impossible sizes")) }
}

/// Reads the rows of all slabs.
pub(crate) async fn read_state(
    devices: &Devices,
    superblock: &Superblock,
) -> Result<State, PoolError> {
    let shape = shape_of(superblock)?;
    let layouts: Vec<Layout> = devices.0.iter().map(|device| device.layout).collect();
    let pool = pool_number(&superblock.pool);
    let mut space = Space::new(shape, layouts);
    for (number, device) in devices.0.iter().enumerate() {
        let places = superblock.devices[number].places;
        space.set_row_places(number, &places);
        for page in 0..Layout::pages(device.layout.slots) {
            let offset = device.layout.rows(page, bit(&places, page as usize));
            let bytes = devices.read_metadata(Place { device: number, offset }, PAGE).await?;
            let rows = RowsPage::read_from_bytes(&bytes);
            let rows = rows.ok().filter(|rows| {
                let header = rows_header(pool, number, page);
                let found = &rows.header;
                rows.is_intact() && found.pool == header.pool && found.address == header.address
            });
            let rows = rows.ok_or_else(|| {
                damaged(format!("page {page} of the rows of slabs of device {number} is damaged"))
            })?;
            space.load_rows(number as u16, page, &rows).map_err(damaged)?;
        }
    }
    space.loaded_rows();
    let generation = superblock.generation.get() + 1;
    let mut state = State::new(pool, generation, space, superblock.catalogue.get());
    state.next_object = superblock.next_volume.get();
    Ok(state)
}

/// Reads the journal of each device that has it, and returns the longest one.
async fn read_journal(devices: &Devices, ring: Ring) -> Result<(Vec<Record>, Ring), PoolError> {
    let (mut best, mut longest) = (Vec::new(), ring);
    for (device, one) in devices.0.iter().enumerate().take(crate::journal::COPIES) {
        let place = Place { device, offset: one.layout.journal };
        let bytes = devices.read_metadata(place, ring.length as usize).await?;
        let mut read = ring;
        let records = read.replay(&bytes).map_err(damaged)?;
        if read.number > longest.number {
            (best, longest) = (records, read);
        }
    }
    Ok((best, longest))
}

impl Shared {
    /// Loads the counts of all pages, and the catalogue.
    pub(crate) async fn load_space(self: &Arc<Self>) -> Result<(), PoolError> {
        let slabs = self.state.read().space.slabs_of(SlabKind::Pages);
        for slab in slabs {
            self.resolve(Blocked::Missing(vec![crate::error::Load::Counts(slab)])).await?;
        }
        loop {
            let loaded = self.state.write().load_catalogue();
            match loaded {
                Ok(()) => return Ok(()),
                Err(blocked) => self.resolve(blocked).await?,
            }
        }
    }

    /// Carries out records that are newer than the last checkpoint.
    async fn carry_out_again(self: &Arc<Self>, records: &[Record]) -> Result<(), PoolError> {
        self.state.write().is_replaying = true;
        for record in records {
            loop {
                let carried_out = self.state.write().carry_out(record);
                match carried_out {
                    Ok(()) => break,
                    Err(blocked @ Blocked::Missing(_)) => self.resolve(blocked).await?,
                    Err(blocked) => {
                        return Err(damaged(format!("the journal, at {record:?}: {blocked:?}")));
                    }
                }
            }
        }
        self.state.write().is_replaying = false;
        Ok(())
    }
}
