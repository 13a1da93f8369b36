//! Reads and writes of data that has copies, and devices that fail: they are left out.
//!
//! A write ends when it is in all copies of devices that are written. A device that fails is left out if everything on it has
//! another copy. A checkpoint says so before anything is acknowledged as durable that the device lacks. So the copies of the
//! device are stale after an interruption, too, and reads do not use them.

use std::sync::Arc;

use futures_util::future::join_all;
use sarsen_block::{BlockError, Buffer, Data, Durability, Io, Payload, Reply};

use crate::PoolError;
use crate::copies::{DevicePlace, Place, Slot, Standing};
use crate::devices::{NOT_ONLINE, TOGETHER, lost, not_online};
use crate::format::{SUPERBLOCKS, Superblock};
use crate::pages::Unsealed;
use crate::records::Record;
use crate::regions::Region;
use crate::shared::Shared;
use crate::space::RowsWrite;
use crate::state::State;

impl State {
    /// Returns the regions that a request overwrites, or `None` if they must be recorded first.
    #[inline]
    pub(crate) fn hold(&self, place: &Place, length: u64) -> Option<Vec<Arc<Region>>> {
        if !place.is_mirrored() && !place.has_checksums {
            return Some(Vec::new());
        }
        self.space.mirrors.hold(&self.space.shape, place, length, self.durable)
    }
}

impl Shared {
    /// Reads data. If a copy cannot be read, reads another one, and the first one is written again.
    #[inline]
    pub(crate) fn read_unchecked(self: &Arc<Self>, place: Place, length: u64) -> Reply<Data> {
        if let Some(slot) = place.only_slot() {
            return self.devices.read_slot(slot, place.offset, length);
        }
        self.read_mirrored(place, length)
    }

    fn read_mirrored(self: &Arc<Self>, place: Place, length: u64) -> Reply<Data> {
        let Some(first) = place.sources().next() else {
            return Io::Ready(Err(if place.is_lost() { lost() } else { not_online() }));
        };
        let read = self.devices.read_slot(first, place.offset, length);
        if !place.is_mirrored() || matches!(read, Io::Ready(Ok(_))) {
            return read;
        }
        let shared = self.clone();
        Io::pending(async move {
            let (mut slot, mut read, mut failed) = (first, read, Vec::new());
            loop {
                let error = match shared.devices.wait(slot.device, read, &shared.tasks).await {
                    Ok(data) => {
                        for (device, is_damaged) in failed {
                            shared.repair(&place, length, device, is_damaged);
                        }
                        return Ok(data);
                    }
                    Err(error) => error,
                };
                failed.push((slot.device, matches!(error, BlockError::Medium { .. })));
                // Another copy may have become complete meanwhile.
                let next = {
                    let state = shared.state.read();
                    let slab = state.space.slab(place.slab);
                    let now = slab.map(|slab| state.space.place_in(place.slab, slab, place.offset));
                    now.and_then(|now| {
                        now.sources()
                            .find(|one| failed.iter().all(|&(device, _)| device != one.device))
                    })
                };
                let Some(next) = next else { return Err(error) };
                (slot, read) = (next, shared.devices.read_slot(next, place.offset, length));
            }
        })
    }

    /// Lets the maintenance write a part of a copy again. If it is damaged, or its sectors are bad, a checkpoint says that it is
    /// stale. After another error, that could fail, too, and stop the pool.
    pub(crate) fn repair(&self, place: &Place, length: u64, device: u8, is_damaged: bool) {
        let mut state = self.state.write();
        let regions = state.shape().regions_of(place.offset, place.offset + length);
        if state.space.is_elsewhere(place.slab, device) {
            state.space.lack(place.slab, regions, device);
            if is_damaged {
                state.space.mirrors.add_bad_copy();
            }
            self.work.notify_one();
        }
    }

    /// Writes data to all copies.
    #[inline]
    pub(crate) fn write_unchecked(
        self: &Arc<Self>,
        place: Place,
        data: Payload,
        durability: Durability,
    ) -> Reply<()> {
        if let Some(slot) = place.only_slot() {
            return self.devices.write_slot(slot, place.offset, data, durability);
        }
        self.write_mirrored(place, data, durability)
    }

    fn write_mirrored(
        self: &Arc<Self>,
        place: Place,
        mut data: Payload,
        durability: Durability,
    ) -> Reply<()> {
        let mut targets = place.targets();
        let Some(first) = targets.next() else { return Io::Ready(Err(not_online())) };
        if !place.is_mirrored() {
            return self.devices.write_slot(first, place.offset, data, durability);
        }
        let mut write = |slot: Slot| {
            let written = self.devices.write_slot(slot, place.offset, data.share(), durability);
            let ended = self.devices.wait(slot.device, written, &self.tasks);
            async move { (slot.device, ended.await) }
        };
        let writes: Vec<_> = std::iter::once(first).chain(targets).map(&mut write).collect();
        let (shared, length) = (self.clone(), data.len() as u64);
        Io::pending(async move {
            let (mut written, mut failed, mut problem) = (0_u32, Vec::new(), None);
            for (device, result) in join_all(writes).await {
                match result {
                    Ok(()) => written |= 1 << device,
                    Err(error) => {
                        if let Err(error) = shared.exclude(device, error) {
                            // The device has the only copy of other data, so it stays. This data may have another copy.
                            failed.push(device);
                            problem = Some(error);
                        }
                    }
                }
            }
            if let Some(error) = problem {
                let is_written = shared.note_failure(&place, length, written, &failed);
                // Before that, an interruption could let another copy count.
                let generation = shared.state.read().generation;
                shared.checkpoint(generation).await?;
                return if is_written { Ok(()) } else { Err(error) };
            }
            if durability == Durability::Durable {
                shared.say_absences().await?;
            }
            Ok(())
        })
    }

    /// Notes that a write failed on devices that are not left out. Returns whether a complete copy has it.
    fn note_failure(&self, place: &Place, length: u64, written: u32, failed: &[u8]) -> bool {
        let mut state = self.state.write();
        let regions = state.shape().regions_of(place.offset, place.offset + length);
        let is_written = state.space.is_complete(place.slab, written);
        if is_written {
            failed.iter().for_each(|&device| state.space.lack(place.slab, regions, device));
        } else {
            // Each copy may have another part of it, also one that is being completed.
            state.space.keep_first_copy(place.slab, regions);
        }
        self.work.notify_one();
        is_written
    }

    /// Lets a checkpoint say which devices are left out, if none does.
    pub(crate) async fn say_absences(self: &Arc<Self>) -> Result<(), PoolError> {
        let generation = {
            let state = self.state.read();
            if !state.space.has_unsaid() {
                return Ok(());
            }
            state.generation
        };
        self.checkpoint(generation).await
    }

    /// Leaves out a device in memory. The next checkpoint makes that durable: its generation is returned.
    pub(crate) fn exclude(&self, device: u8, error: BlockError) -> Result<u64, BlockError> {
        let mut state = self.state.write();
        let generation = state.generation;
        let Some(member) = state.space.member(device) else { return Ok(generation) };
        if member.standing == Standing::LeftOut {
            return Ok(member.since);
        }
        if !state.space.may_leave_out(device) {
            return Err(error);
        }
        state.space.leave_out(device, generation);
        drop(state);
        self.devices.give_up(device);
        self.left_out.lock().insert(device, error.to_string());
        self.work.notify_one();
        Ok(generation)
    }

    /// Records durably that regions may be overwritten.
    pub(crate) async fn mark(
        self: &Arc<Self>,
        place: &Place,
        length: u64,
    ) -> Result<(), PoolError> {
        let recorded = loop {
            let generation = {
                let mut state = self.state.write();
                let regions = state.shape().regions_of(place.offset, place.offset + length);
                let missing = state.space.mirrors.missing(place.slab, regions);
                if missing.is_empty() || !state.space.mirrors.is_crowded() {
                    let slab = place.slab;
                    for region in missing {
                        state.record(&Record::Dirty { slab, region });
                        let recorded = state.recorded;
                        state.space.mirrors.add(slab, region, recorded);
                    }
                    state.space.note_write(place.slab, place.offset, length);
                    break state.recorded;
                }
                state.generation
            };
            // It removes all regions that nothing overwrites.
            self.checkpoint(generation).await?;
        };
        self.commit(recorded).await.map(drop)
    }

    /// Carries out requests of several devices. Devices that fail are left out, if they can be. Returns whether there were any.
    async fn all_of(
        &self,
        requests: impl Iterator<Item = (u8, Reply<()>)>,
    ) -> Result<bool, PoolError> {
        let requests = requests.map(|(device, request)| {
            let ended = self.devices.wait(device, request, &self.tasks);
            async move { (device, ended.await) }
        });
        let mut left = false;
        for (device, result) in join_all(requests.collect::<Vec<_>>()).await {
            if let Err(error) = result {
                let failed = |source| PoolError::Device { device: device.into(), source };
                self.exclude(device, error).map_err(failed)?;
                left = true;
            }
        }
        Ok(left)
    }

    /// Makes everything durable that was written before. Returns whether a device was left out, which a checkpoint must say.
    pub(crate) async fn flush_written(&self) -> Result<bool, PoolError> {
        let written = self.state.read().space.written();
        self.all_of(written.into_iter().map(|device| (device, self.devices.flush(device)))).await
    }

    /// Writes metadata to all copies of its places, and to keepers. Returns whether a device was left out.
    pub(crate) async fn write_metadata(
        &self,
        pages: Vec<(Place, Unsealed)>,
        rows: Vec<RowsWrite>,
        keepers: &[u8],
    ) -> Result<bool, PoolError> {
        let of_page = |(place, page): (Place, Unsealed)| {
            let mut data = Payload::from(page.sealed());
            let slots: Vec<_> = place.targets().collect();
            let at = |slot| self.devices.at(slot, place.offset);
            slots.into_iter().map(|slot| (at(slot), data.share())).collect::<Vec<_>>()
        };
        let of_row = |(offset, data): RowsWrite| {
            let mut data = Payload::from(data);
            let places = keepers.iter().map(|&device| DevicePlace { device, offset });
            places.map(|place| (place, data.share())).collect::<Vec<_>>()
        };
        let mut writes =
            pages.into_iter().flat_map(of_page).chain(rows.into_iter().flat_map(of_row));
        let mut left = false;
        loop {
            let some: Vec<_> = writes.by_ref().take(TOGETHER).collect();
            if some.is_empty() {
                return Ok(left);
            }
            let write = |(place, data): (DevicePlace, Payload)| {
                (place.device, self.devices.write(place, data, Durability::Volatile))
            };
            left |= self.all_of(some.into_iter().map(write)).await?;
            // A device in memory does not let others run.
            tokio::task::yield_now().await;
        }
    }

    /// Writes a frame of the journal to keepers, durably. Returns whether a device was left out, or all keepers were before.
    pub(crate) async fn write_frame(
        &self,
        (offset, frame): (u64, Buffer),
        mut keepers: Vec<u8>,
    ) -> Result<bool, PoolError> {
        keepers.retain(|&device| self.state.read().space.is_written(device));
        if keepers.is_empty() {
            return Ok(true);
        }
        let mut frame = Payload::from(frame);
        let write = |device| {
            let journal = self.devices.get(device).map_or(0, |known| known.layout.journal);
            let place = DevicePlace { device, offset: journal + offset };
            (device, self.devices.write(place, frame.share(), Durability::Durable))
        };
        self.all_of(keepers.into_iter().map(write)).await
    }

    /// Writes a superblock to all devices that are written. Returns whether a device was left out.
    pub(crate) async fn write_superblocks(
        &self,
        superblock: &Superblock,
    ) -> Result<bool, PoolError> {
        // A new device is not missing after an interruption: it has the first superblock that names it.
        let (new, others): (Vec<u8>, Vec<u8>) = {
            let state = self.state.read();
            let is_new = |device: &u8| state.space.members[usize::from(*device)].last == 0;
            let mut written = state.space.written();
            written.retain(|&device| superblock.devices[usize::from(device)].slots.get() > 0);
            written.into_iter().partition(is_new)
        };
        let offset = SUPERBLOCKS[(superblock.generation.get() & 1) as usize];
        let write = |&device| {
            let place = DevicePlace { device, offset };
            (device, self.devices.write_superblock(superblock, place))
        };
        let left = self.all_of(new.iter().map(write)).await?
            | self.all_of(others.iter().map(write)).await?;
        let mut state = self.state.write();
        for device in new.into_iter().chain(others) {
            if state.space.is_written(device) {
                state.space.members[usize::from(device)].last = superblock.generation.get();
            }
        }
        Ok(left)
    }

    /// Reads metadata that `parse` accepts, from any of its copies. A copy that it does not accept is written again.
    pub(crate) async fn read_page<T>(
        self: &Arc<Self>,
        place: Place,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, PoolError> {
        let mut problem = PoolError::Damaged { what: NOT_ONLINE.into() };
        let mut damaged = Vec::new();
        for slot in place.sources() {
            let at = self.devices.at(slot, place.offset);
            let read = self.devices.read(at, crate::format::PAGE as u64);
            let read = self.devices.wait(slot.device, read, &self.tasks).await;
            let is_damaged =
                read.as_ref().err().is_none_or(|error| matches!(error, BlockError::Medium { .. }));
            problem = match read.map(|data| parse(&data.into_buffer())) {
                Ok(Ok(parsed)) => {
                    for (device, is_damaged) in damaged {
                        self.repair(&place, crate::format::PAGE as u64, device, is_damaged);
                    }
                    return Ok(parsed);
                }
                Ok(Err(what)) => PoolError::Damaged { what },
                Err(source) => PoolError::Device { device: slot.device.into(), source },
            };
            damaged.push((slot.device, is_damaged));
        }
        Err(problem)
    }
}
