//! Creating and opening pools: from devices into memory.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use sarsen_block::{Buffer, Durability, Extent, Store};
use zerocopy::{FromBytes as _, FromZeros as _};

use crate::copies::{Copies, DevicePlace, Slot, Standing};
use crate::devices::{Device, Devices, TOGETHER};
use crate::error::{Blocked, Load};
use crate::format::{
    DEVICES_MAX, DeviceRow, GENERATION_MAX, KEEPER, LEFT_OUT, MAGIC, NAME_MAX, PAGE, PageHeader,
    PageKind, ROWS, RowsPage, SUPERBLOCKS, Sealed as _, Superblock, VERSION, VERSION_MIN,
    VERSION_WHOLE, bit, padded, pool_number, unpadded,
};
use crate::journal::{Replayed, Ring};
use crate::members::Member;
use crate::pages::Mapping;
use crate::pool::{NewPool, Pool};
use crate::records::Record;
use crate::shape::{HEIGHT_MAX, Layout, Shape, SlabKind};
use crate::shared::Shared;
use crate::space::Space;
use crate::state::State;
use crate::tasks::Tasks;
use crate::{PoolError, PoolProblem};

/// Minimum number of slabs of a pool: one for pages, one for data, and some that pages may need.
const SLABS_MIN: u32 = 8;
/// Number of generations by which the state that was opened is newer than its checkpoint: one more than a checkpoint that
/// was interrupted.
const SUPERSEDING: u64 = 2;
/// Number of generations by which a pool that accepted a loss is newer, too: no device with the lost data has had as many
/// checkpoints since. It is even, so that the places of superblocks alternate.
const RECOVERY: u64 = 1 << 32;
/// Number of records whose metadata is loaded together.
const AHEAD: usize = 4096;

const fn unfit(device: usize, problem: PoolProblem) -> PoolError {
    PoolError::Unfit { device, problem }
}

/// Returns a device for a pool of these sizes, without slabs.
pub(crate) fn new_member(
    shape: &Shape,
    store: &dyn Store,
    identifier: [u8; 16],
) -> Result<Member, PoolProblem> {
    if store.geometry().block_size.bytes() > PAGE {
        return Err(PoolProblem::LargeBlocks);
    }
    let layout = Layout::of_bytes(shape, store.geometry().byte_count());
    if layout.slots < SLABS_MIN {
        return Err(PoolProblem::TooSmall(Layout::of_slots(shape, SLABS_MIN).end(shape)));
    }
    Ok(Member::new(identifier, layout.slots))
}

/// What a pool may lose so that it can be opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedLosses {
    /// Changes after a damaged frame of the journal.
    pub journal: bool,
    /// What is only on devices that are missing. Their data does not come back with them.
    pub devices: bool,
    /// What missing devices have that were used without these. They are refused from then on.
    pub newer: bool,
}

impl AcceptedLosses {
    /// Returns the number of generations by which the state that is opened is newer than its checkpoint.
    fn superseding(self) -> u64 {
        if self == Self::default() { SUPERSEDING } else { RECOVERY + SUPERSEDING }
    }
}

/// What a device says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceIdentity {
    /// The name with which its pool was created.
    pub pool_name: String,
    /// The identifier of its pool.
    pub pool: [u8; 16],
    /// The number of its last checkpoint.
    pub checkpoint: u64,
    /// Its own identifier.
    pub device: [u8; 16],
    /// Its number in its pool.
    pub number: u8,
}

/// Returns what a device of a pool says about itself. Nothing else is checked.
pub async fn identify(store: Arc<dyn Store>) -> Result<DeviceIdentity, PoolError> {
    let (superblock, _) = read_superblock(&*store).await?;
    Ok(DeviceIdentity {
        pool_name: unpadded(&superblock.name),
        pool: superblock.pool,
        checkpoint: superblock.generation.get(),
        device: superblock.devices[usize::from(superblock.device.get())].identifier,
        number: superblock.device.get() as u8,
    })
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
        let chunk_shift = new.chunk_size.ilog2() as u8;
        let shape = Shape::for_size(sizes().sum(), smallest, chunk_shift, new.has_tiers);
        let mut superblock = Box::new(Superblock::new_zeroed());
        superblock.version = VERSION_WHOLE.into();
        superblock.magic = MAGIC;
        superblock.pool = new.identifier;
        superblock.chunk_shift = shape.chunk_shift;
        superblock.slab_shift = shape.slab_shift;
        superblock.journal = shape.journal.into();
        superblock.row_pages = shape.row_pages.into();
        superblock.name = padded(&new.name);
        superblock.next_volume = 1.into();
        let (mut devices, mut slots) = (Vec::with_capacity(new.devices.len()), 0);
        for (number, (store, identifier)) in new.devices.iter().enumerate() {
            let member = new_member(&shape, &**store, *identifier);
            let member = member.map_err(|problem| unfit(number, problem))?;
            slots += u64::from(member.slots);
            superblock.devices[number] = member.to_row();
            if number < crate::journal::COPIES {
                superblock.devices[number].flags |= KEEPER;
            }
            let layout = Layout::of_slots(&shape, member.slots);
            devices.push(Some(Device::new(store.clone(), layout)));
        }
        if slots > u64::from(shape.slabs_max()) {
            return Err(PoolError::Invalid(
                "the devices have more space than a pool can use: take fewer or smaller ones",
            ));
        }
        let count = devices.len() as u8;
        let devices = Devices::new(devices, shape);
        // Both superblocks are invalid until everything else is there.
        for device in 0..count {
            for offset in SUPERBLOCKS {
                let place = DevicePlace { device, offset };
                devices.prepare(place, Buffer::zeroed(PAGE), Durability::Durable).await?;
            }
            clear_journal(&devices, device, &shape).await?;
        }
        for device in 0..count {
            let flushed = devices.flush(device).wait().await;
            flushed.map_err(|source| PoolError::Device { device: device.into(), source })?;
        }
        for device in 0..count {
            write_superblock(&devices, &superblock, device, SUPERBLOCKS[0]).await?;
        }
        let stores = new.devices.iter().map(|(store, _)| store.clone()).collect();
        Self::open(stores, tasks).await
    }

    /// Opens a pool, and makes everything that was acknowledged a part of a new checkpoint. The devices can have any order.
    /// They are in use until this future has ended, and later until the pool and all of its requests have. Devices may be
    /// missing, or not fit, if everything on them has a copy on others: they are left out.
    pub async fn open(
        stores: Vec<Arc<dyn Store>>,
        tasks: Arc<dyn Tasks>,
    ) -> Result<Self, PoolError> {
        Self::open_accepting(stores, tasks, AcceptedLosses::default()).await
    }

    /// Opens a pool like [`Self::open`], even if that loses data.
    pub async fn open_accepting(
        stores: Vec<Arc<dyn Store>>,
        tasks: Arc<dyn Tasks>,
        losses: AcceptedLosses,
    ) -> Result<Self, PoolError> {
        let mut found = find_devices(stores).await?;
        let (state, reasons) = read_state(&mut found, losses, losses.superseding()).await?;
        let absent = std::mem::take(&mut found.absent).into_iter().next();
        let absent = absent.filter(|_| !losses.devices);
        match Self::open_found(found, (state, reasons), tasks, losses).await {
            // What the journal has may be only on a device that is missing.
            Err(error @ (PoolError::Damaged { .. } | PoolError::DamagedJournal { .. })) => {
                Err(absent.map_or(error, |(_, absence)| absence))
            }
            opened => opened,
        }
    }

    async fn open_found(
        found: Found,
        (mut state, mut reasons): (State, Vec<(u8, String)>),
        tasks: Arc<dyn Tasks>,
        losses: AcceptedLosses,
    ) -> Result<Self, PoolError> {
        let Found { devices, superblock, behind, .. } = found;
        for (device, free) in behind {
            // The next checkpoint may overwrite the only superblock of these devices.
            if state.space.is_written(device)
                && let Err(error) = write_superblock(&devices, &superblock, device, free).await
            {
                if !state.space.may_leave_out(device) {
                    return Err(error);
                }
                let generation = state.generation;
                state.space.leave_out(device, generation);
                reasons.push((device, error.to_string()));
            }
        }
        let (Replayed { records, damaged: lost, .. }, mut ring, outdated) =
            read_journal(&devices, &superblock).await?;
        for device in outdated {
            let reason = state.leave_out_outdated(device, &records);
            reasons.extend(reason.map(|reason| (device, reason)));
        }
        if let Some(frame) = lost.filter(|_| !losses.journal) {
            return Err(PoolError::DamagedJournal { frame });
        }
        for record in &records {
            if let Record::Assign(assigned) = record {
                let carried_out = state.space.carry_out(*assigned);
                carried_out.map_err(|blocked| damaged(format!("the journal: {blocked:?}")))?;
            }
        }
        if lost.is_some() {
            // The lost frames may name any region as being overwritten.
            state.space.suspect_all();
        }
        // From now on, frames have another run: those of the one before are carried out only once.
        ring.run = state.generation;
        let generation = state.generation;
        let shared = Arc::new(Shared::new(devices, state, superblock, ring, tasks));
        shared.left_out.lock().extend(reasons);
        shared.load_space().await?;
        shared.carry_out_again(&records).await?;
        let missing = shared.state.read().space.missing_slabs();
        for slab in missing {
            let mut state = shared.state.write();
            if !losses.devices || !state.space.slab(slab).is_some_and(|slab| slab.kind().is_data())
            {
                return Err(damaged(format!("slab {slab} is only on devices that are missing")));
            }
            state.space.lose(slab);
        }
        shared.clear_doubted_checksums().await?;
        shared.state.write().space.end_unreachable();
        shared.supersede(losses.superseding()).await?;
        shared.checkpoint(generation).await?;
        shared.work.notify_one();
        Ok(Self { shared })
    }
}

impl Shared {
    /// Writes the superblock that was opened again, with higher generations, before anything else is written. A checkpoint
    /// that was interrupted may be complete on a device that is not there now. When it comes back, it is older than this: the
    /// next checkpoint overwrites the places of that one on the other devices.
    async fn supersede(&self, generations: u64) -> Result<(), PoolError> {
        let mut writer = self.writer.lock().await;
        writer.superblock.generation += generations - SUPERSEDING;
        for _ in 0..SUPERSEDING {
            let superblock = &mut writer.superblock;
            superblock.generation += 1;
            {
                let members = &self.state.read().space.members;
                for (member, row) in members.iter().zip(&mut superblock.devices) {
                    let now = member.to_row();
                    *row = DeviceRow { flags: now.flags | row.flags & KEEPER, ..now };
                }
            }
            // The next checkpoint says whether another device has failed meanwhile.
            self.write_superblocks(&writer.superblock).await?;
        }
        Ok(())
    }
}

/// Writes a superblock to a device, durably.
pub(crate) async fn write_superblock(
    devices: &Devices,
    superblock: &Superblock,
    device: u8,
    offset: u64,
) -> Result<(), PoolError> {
    let place = DevicePlace { device, offset };
    let written = devices.write_superblock(superblock, place).wait().await;
    written.map_err(|source| PoolError::Device { device: device.into(), source })
}

fn damaged(what: impl Into<String>) -> PoolError {
    PoolError::Damaged { what: what.into() }
}

/// Overwrites each place of the journal where a frame of an earlier pool could be found.
pub(crate) async fn clear_journal(
    devices: &Devices,
    device: u8,
    shape: &Shape,
) -> Result<(), PoolError> {
    let (start, step) = (Layout::of_slots(shape, 0).journal, 1 << 20);
    let mut offset = 0;
    while offset < shape.journal {
        let bytes = step.min(shape.journal - offset);
        let place = DevicePlace { device, offset: start + offset };
        devices.prepare(place, Buffer::zeroed(bytes as usize), Durability::Volatile).await?;
        offset += bytes;
    }
    Ok(())
}

/// Reads the valid superblock with the highest generation of a device, and returns it with the offset of the other one. An
/// error calls the device number 0.
pub(crate) async fn read_superblock(
    store: &dyn Store,
) -> Result<(Box<Superblock>, u64), PoolError> {
    let (mut best, mut problem) = (None::<(Box<Superblock>, u64)>, PoolProblem::NoPool);
    let (shift, bytes) = (store.geometry().block_size.shift(), store.geometry().byte_count());
    for offset in SUPERBLOCKS {
        if bytes < offset + PAGE as u64 {
            continue;
        }
        let extent = Extent::new(offset >> shift, (PAGE as u64) >> shift);
        let read = store.read(extent).wait().await;
        let read = read.map_err(|source| PoolError::Device { device: 0, source })?.into_buffer();
        let Ok(superblock) = Superblock::read_from_bytes(&read) else { continue };
        if superblock.magic != MAGIC {
            continue;
        }
        if !(VERSION_MIN..=VERSION).contains(&superblock.version.get()) {
            problem = PoolProblem::Version(superblock.version.get());
        } else if !superblock.is_intact()
            || usize::from(superblock.device.get()) >= DEVICES_MAX
            || superblock.generation.get() > GENERATION_MAX
        {
            if problem == PoolProblem::NoPool {
                problem = PoolProblem::Damaged;
            }
        } else if best.as_ref().is_none_or(|(best, _)| best.generation < superblock.generation) {
            let other = SUPERBLOCKS[usize::from(offset == SUPERBLOCKS[0])];
            best = Some((Box::new(superblock), other));
        }
    }
    best.ok_or_else(|| unfit(0, problem))
}

/// The devices of a pool that were found.
pub(crate) struct Found {
    pub(crate) devices: Devices,
    /// The newest superblock.
    pub(crate) superblock: Box<Superblock>,
    /// The devices that do not have it, and the offset at which it replaces none that is valid.
    behind: Vec<(u8, u64)>,
    /// The devices that are left out until now, and are there again.
    returning: Vec<u8>,
    /// The devices that cannot be used, with the reason.
    absent: Vec<(u8, PoolError)>,
}

/// Returns an error with another number of a device.
fn renumbered(error: PoolError, device: usize) -> PoolError {
    match error {
        PoolError::Unfit { problem, .. } => unfit(device, problem),
        PoolError::Device { source, .. } => PoolError::Device { device, source },
        other => other,
    }
}

/// Refuses a device that was left out, and is not as the pool left it.
pub(crate) fn returning(
    own: &Superblock,
    newest: &Superblock,
    number: u8,
) -> Result<(), PoolProblem> {
    if own.pool != newest.pool {
        return Err(PoolProblem::Foreign);
    }
    let (generation, last) = (own.generation.get(), newest.devices[usize::from(number)].last.get());
    if generation < last {
        return Err(PoolProblem::Stale { generation, newest: newest.generation.get() });
    }
    // A checkpoint that a power failure stopped may be only here. But it left out no device more often than the newest one.
    if has_more_absences(own, newest) {
        return Err(PoolProblem::Diverged);
    }
    Ok(())
}

/// Returns whether a superblock has left out a device more often than another one.
fn has_more_absences(one: &Superblock, other: &Superblock) -> bool {
    let more = |(one, other): (&DeviceRow, &DeviceRow)| {
        one.identifier == other.identifier
            && one.absences.get().wrapping_sub(other.absences.get()) as i16 > 0
    };
    one.devices.iter().zip(&other.devices).any(more)
}

/// Compares the age of two superblocks. Two can have one generation: a power failure stopped the checkpoint of the first one,
/// and the pool was opened without its device then. The second one counts that absence.
fn compare_age(one: &Superblock, other: &Superblock) -> Ordering {
    let age = |one: &Superblock| {
        let is_member = one.devices[usize::from(one.device.get())].flags & LEFT_OUT == 0;
        (one.generation.get(), is_member)
    };
    let more = (has_more_absences(one, other), has_more_absences(other, one));
    age(one).cmp(&age(other)).then(match more {
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        _ => Ordering::Equal,
    })
}

/// Reads the superblocks of devices, and puts the devices in the order of the pool.
pub(crate) async fn find_devices(stores: Vec<Arc<dyn Store>>) -> Result<Found, PoolError> {
    if stores.is_empty() {
        return Err(PoolError::Invalid("a pool has 1 to 32 devices"));
    }
    let given = stores.len();
    let (mut superblocks, mut unknown) = (Vec::with_capacity(given), Vec::new());
    for (device, store) in stores.into_iter().enumerate() {
        match read_superblock(&*store).await {
            Ok((superblock, free)) => superblocks.push((device, store, superblock, free)),
            Err(error) => unknown.push(renumbered(error, device)),
        }
    }
    let version = |error: &PoolError| {
        matches!(error, PoolError::Unfit { problem: PoolProblem::Version(_), .. })
    };
    if superblocks.is_empty() || unknown.iter().any(version) {
        let first = unknown.iter().position(version).unwrap_or(0);
        return Err(unknown.swap_remove(first));
    }
    let pool = superblocks[0].2.pool;
    if let Some((device, ..)) = superblocks.iter().find(|(.., one, _)| one.pool != pool) {
        return Err(unfit(*device, PoolProblem::Foreign));
    }
    let newest = superblocks.iter().map(|(.., one, _)| one);
    let newest = newest.max_by(|one, other| compare_age(one, other));
    let newest = newest.expect("at least one device").clone();
    let shape = shape_of(&newest)?;
    let mut devices: Vec<Option<Device>> = newest.devices.iter().map(|_| None).collect();
    let (mut seen, mut behind, mut came_back, mut absent) =
        (0_u32, Vec::new(), Vec::new(), Vec::new());
    for (device, store, superblock, free) in superblocks {
        let number = superblock.device.get() as u8;
        let (row, own) =
            (newest.devices[usize::from(number)], superblock.devices[usize::from(number)]);
        if row.slots.get() == 0 || own.identifier != row.identifier {
            // It was removed, or has just been added when the power failed.
            continue;
        }
        if seen >> number & 1 == 1 {
            return Err(unfit(device, PoolProblem::Duplicate));
        }
        seen |= 1 << number;
        let layout = Layout::of_slots(&shape, row.slots.get());
        let (expected, actual) = (layout.end(&shape), store.geometry().byte_count());
        // A crash leaves some devices with the checkpoint before the last one.
        let (generation, last) = (superblock.generation.get(), newest.generation.get());
        let problem = if actual < expected {
            Some(PoolProblem::Short { expected, actual })
        } else if row.flags & LEFT_OUT != 0 {
            returning(&superblock, &newest, number).err()
        } else if generation + 1 < last && generation + 1 + RECOVERY != last {
            Some(PoolProblem::Stale { generation, newest: last })
        } else {
            None
        };
        if let Some(problem) = problem {
            absent.push((number, unfit(device, problem)));
            continue;
        }
        if row.flags & LEFT_OUT != 0 {
            came_back.push(number);
        }
        if generation != last {
            behind.push((number, free));
        }
        devices[usize::from(number)] = Some(Device::new(store, layout));
    }
    let expected = newest.devices.iter().filter(|row| row.slots.get() > 0).count();
    let missing = (0_u8..)
        .zip(&newest.devices)
        .filter(|(number, row)| row.slots.get() > 0 && seen >> number & 1 == 0);
    for (number, _) in missing {
        let known = (!unknown.is_empty()).then(|| unknown.remove(0));
        let missing = || unfit(0, PoolProblem::Missing { expected, found: given });
        absent.push((number, known.unwrap_or_else(missing)));
    }
    // There are devices that no pool has.
    if let Some(error) = unknown.pop() {
        return Err(error);
    }
    let devices = Devices::new(devices, shape);
    Ok(Found { devices, superblock: newest, behind, returning: came_back, absent })
}

pub(crate) fn shape_of(superblock: &Superblock) -> Result<Shape, PoolError> {
    let shape = Shape {
        chunk_shift: superblock.chunk_shift,
        slab_shift: superblock.slab_shift,
        journal: superblock.journal.get(),
        row_pages: superblock.row_pages.get(),
    };
    let slots: u64 = superblock.devices.iter().map(|row| u64::from(row.slots.get())).sum();
    let is_valid = shape.is_valid()
        && (1..=u64::from(shape.slabs_max())).contains(&slots)
        && superblock.row_count.get() <= shape.slabs_max() + 1
        && superblock.frame_offset.get() <= shape.journal
        && superblock.frame_offset.get().is_multiple_of(PAGE as u64);
    if is_valid { Ok(shape) } else { Err(damaged("the superblock has impossible sizes")) }
}

/// Reads the rows of all slabs, and leaves out the devices that are absent. Returns the reasons for that, too. The next
/// checkpoint skips so many generations.
pub(crate) async fn read_state(
    found: &mut Found,
    losses: AcceptedLosses,
    skipped: u64,
) -> Result<(State, Vec<(u8, String)>), PoolError> {
    let (superblock, devices) = (&found.superblock, &found.devices);
    let shape = shape_of(superblock)?;
    let pool = pool_number(&superblock.pool);
    let mut space = Space::new(shape, superblock.devices.iter().map(Member::of_row).collect());
    space.set_row_places(&superblock.places);
    let mut keepers = superblock.keepers();
    keepers.retain(|&keeper| devices.get(keeper).is_some());
    if keepers.is_empty() {
        let first = found.absent.drain(..).next().map(|(_, error)| error);
        return Err(first.unwrap_or_else(|| damaged("all devices that are there were left out")));
    }
    for page in 0..superblock.row_count.get().div_ceil(ROWS as u32) {
        let rows = read_rows(devices, &keepers, superblock, page).await?;
        space.load_rows(page, &rows).map_err(damaged)?;
    }
    space.loaded_rows();
    let generation = superblock.generation.get() + skipped + 1;
    let mut reasons = Vec::new();
    for device in 0..DEVICES_MAX as u8 {
        if space.member(device).is_some_and(|member| member.is_all_stale) {
            space.lack_all(device);
        }
        if found.returning.contains(&device) {
            space.members[usize::from(device)].standing = Standing::Returning;
        }
        let Some(at) = found.absent.iter().position(|(number, _)| *number == device) else {
            continue;
        };
        if space.is_written(device) {
            let may_leave_out =
                space.may_leave_out(device) || losses.devices && space.lose_device(device);
            if !may_leave_out {
                return Err(found.absent.swap_remove(at).1);
            }
            space.leave_out(device, generation);
        }
        let reason = match &found.absent[at].1 {
            PoolError::Unfit { problem: PoolProblem::Missing { .. }, .. } => "it is missing".into(),
            PoolError::Unfit { problem, .. } => problem.to_string(),
            other => other.to_string(),
        };
        reasons.push((device, reason));
    }
    let mut state = State::new(pool, generation, space, superblock.catalogue.get());
    state.next_object = superblock.next_volume.get();
    Ok((state, reasons))
}

/// Reads a page of rows of slabs from one of the devices that have it.
async fn read_rows(
    devices: &Devices,
    keepers: &[u8],
    superblock: &Superblock,
    page: u32,
) -> Result<RowsPage, PoolError> {
    let offset = Layout::rows(page, bit(&superblock.places, page as usize));
    let mut problem = damaged(format!("page {page} of the rows of slabs is damaged"));
    for &device in keepers {
        match devices.read_metadata(DevicePlace { device, offset }, PAGE).await {
            Ok(bytes) => {
                let rows = RowsPage::read_from_bytes(&bytes);
                let rows = rows.ok().filter(|rows| {
                    let PageHeader { kind, pool, address, .. } = rows.header;
                    kind == PageKind::Rows as u8
                        && pool.get() == pool_number(&superblock.pool)
                        && address.get() == u64::from(page)
                        && rows.is_intact()
                });
                if let Some(rows) = rows {
                    return Ok(rows);
                }
            }
            Err(error) => problem = error,
        }
    }
    Err(problem)
}

/// Reads the journal of each device that has it, and returns what it has since a checkpoint, and the devices that are outdated.
pub(crate) async fn read_journal(
    devices: &Devices,
    superblock: &Superblock,
) -> Result<(Replayed, Ring, Vec<u8>), PoolError> {
    let mut ring = Ring::behind(superblock);
    let (mut rings, mut readable, mut problem) = (Vec::new(), Vec::new(), None);
    for device in superblock.keepers() {
        let Some(known) = devices.get(device) else { continue };
        let place = DevicePlace { device, offset: known.layout.journal };
        match devices.read_metadata(place, ring.length as usize).await {
            Ok(bytes) => {
                rings.push(bytes);
                readable.push(device);
            }
            Err(error) => problem = Some(error),
        }
    }
    if rings.is_empty() {
        let missing = || damaged("no device that has the journal is there");
        return Err(problem.unwrap_or_else(missing));
    }
    // Each device that had the journal has all frames that were acknowledged.
    let replayed = ring.replay(&rings).map_err(damaged)?;
    let outdated = replayed.outdated.iter().map(|&at| readable[at]).collect();
    Ok((replayed, ring, outdated))
}

impl State {
    /// Leaves out a device whose journal lacks frames, unless it has the only copy of something: it may lack any data that
    /// was written since. These records are carried out later. Returns the reason.
    pub(crate) fn leave_out_outdated(&mut self, device: u8, records: &[Record]) -> Option<String> {
        let space = &self.space;
        let is_only_there = |copies: &Copies| {
            let is_elsewhere = |(slot, is_stale): (Slot, bool)| {
                slot.device != device && !is_stale && space.is_online(slot.device)
            };
            copies.has(device) && !copies.iter().any(is_elsewhere)
        };
        // The records may use slabs that the checkpoint does not use.
        let mut slabs = (1..space.slabs.len() as u32).filter_map(|number| space.slab(number));
        let is_needed = slabs.any(|slab| is_only_there(&slab.copies))
            || records.iter().any(|record| match record {
                Record::Assign(assigned) => is_only_there(&assigned.copies),
                _ => false,
            });
        if is_needed || !space.is_online(device) || !space.may_leave_out(device) {
            return None;
        }
        let generation = self.generation;
        self.space.leave_out(device, generation);
        self.space.lack_all(device);
        Some(
            "it is older than the others: it was replaced by a copy of itself, or has lost what was written to it"
                .into(),
        )
    }
}

impl Shared {
    /// Loads the counts of all pages, and the catalogue.
    pub(crate) async fn load_space(self: &Arc<Self>) -> Result<(), PoolError> {
        let slabs = self.state.read().space.slabs_of(SlabKind::Pages);
        for slab in slabs {
            self.resolve(Blocked::Missing(vec![Load::Counts(slab)])).await?;
        }
        loop {
            let loaded = self.state.write().load_catalogue();
            match loaded {
                Ok(()) => return Ok(()),
                Err(blocked) => self.resolve(blocked).await?,
            }
        }
    }

    /// Loads metadata that these records need, many pages at once. What it does not find is loaded later.
    async fn load_for(self: &Arc<Self>, records: &[Record]) {
        // At most one level of a map each time, and then the counts.
        for _ in 0..=HEIGHT_MAX {
            let lacks: BTreeSet<Load> = {
                let state = self.state.read();
                let lacks = records.iter().flat_map(|record| match *record {
                    Record::Entry { volume, chunk, mapping } => state.lacks(volume, chunk, mapping),
                    Record::Run { volume, first, own, .. } => {
                        state.lacks(volume, first, Mapping { own, ..Mapping::default() })
                    }
                    Record::Clear { volume, first, .. } => {
                        state.lacks(volume, first, Mapping::default())
                    }
                    _ => Vec::new(),
                });
                lacks.collect()
            };
            if lacks.is_empty() {
                return;
            }
            let mut lacks = lacks.into_iter();
            loop {
                let some: Vec<_> = lacks.by_ref().take(TOGETHER).collect();
                if some.is_empty() {
                    break;
                }
                // The record that needs it reports an error.
                drop(join_all(some.into_iter().map(|load| self.load(load))).await);
            }
        }
    }

    /// Carries out records that are newer than the last checkpoint.
    async fn carry_out_again(self: &Arc<Self>, records: &[Record]) -> Result<(), PoolError> {
        self.state.write().is_replaying = true;
        for (number, record) in records.iter().enumerate() {
            if number % AHEAD == 0 {
                self.load_for(&records[number..records.len().min(number + AHEAD)]).await;
            }
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
