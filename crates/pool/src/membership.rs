//! Devices that come to a pool, leave it, fail, and come back.

use std::sync::Arc;

use sarsen_block::{BlockError, Buffer, Durability, Store};

use crate::copies::{DevicePlace, Standing};
use crate::devices::Device;
use crate::format::{DEVICES_MAX, PAGE, SUPERBLOCKS};
use crate::members::Member;
use crate::opening::{clear_journal, new_member, read_superblock, returning, write_superblock};
use crate::passes::Scrubbed;
use crate::pool::Pool;
use crate::shape::Layout;
use crate::shared::Shared;
use crate::{PoolError, PoolProblem};

/// Whether a device takes part in its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// It is read and written.
    Online,
    /// It was not there, or it failed. It is neither read nor written.
    LeftOut {
        /// Why.
        reason: String,
    },
}

/// A device of a pool, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number in the pool.
    pub number: u8,
    /// The identifier that it got with [`crate::NewPool`] or [`Pool::add_device`].
    pub identifier: [u8; 16],
    /// Whether it takes part.
    pub state: DeviceState,
    /// It is to be removed: its data moves to other devices.
    pub is_leaving: bool,
    /// Bytes for slabs.
    pub size_bytes: u64,
    /// Bytes of its slabs.
    pub used_bytes: u64,
    /// Bytes that must be copied to it at most, before it has everything.
    pub stale_bytes: u64,
    /// How often it was left out, modulo 65,536.
    pub absences: u16,
    /// Number of its requests that have not ended, of those whose data has copies.
    pub pending_requests: u64,
    /// Number of those that have ended.
    pub ended_requests: u64,
    /// How often it returned a block without its checksum, since the pool was opened.
    pub checksum_errors: u64,
}

impl Pool {
    /// Returns all devices.
    pub fn devices(&self) -> Vec<DeviceInfo> {
        let state = self.shared.state.read();
        let reasons = self.shared.left_out.lock();
        let info = |(number, member): (u8, &Member)| {
            let reason = || {
                let known = reasons.get(&number).cloned();
                known.unwrap_or_else(|| "it was left out before the pool was opened".into())
            };
            let (used_bytes, stale_bytes) = state.space.use_of(number);
            let (pending_requests, ended_requests) = self.shared.devices.requests(number);
            DeviceInfo {
                number,
                identifier: member.identifier,
                state: match member.standing {
                    Standing::Online => DeviceState::Online,
                    Standing::Returning => DeviceState::LeftOut {
                        reason: "it is back, and is being taken into use".to_owned(),
                    },
                    Standing::LeftOut => DeviceState::LeftOut { reason: reason() },
                },
                is_leaving: member.is_leaving,
                size_bytes: u64::from(member.slots) << state.shape().slab_shift,
                used_bytes,
                stale_bytes,
                absences: member.absences,
                pending_requests,
                ended_requests,
                checksum_errors: self.shared.mismatches.of_device(number),
            }
        };
        state.space.present().map(info).collect()
    }

    /// Adds a device with an identifier that no other device has. Its data is lost. Returns its number.
    pub async fn add_device(
        &self,
        store: Arc<dyn Store>,
        identifier: [u8; 16],
    ) -> Result<u8, PoolError> {
        let shared = &self.shared;
        let _copying = shared.copying.take().await;
        if !shared.devices.all(|other| !std::ptr::addr_eq(other, Arc::as_ptr(&store))) {
            return Err(PoolError::Invalid("the device is in use already"));
        }
        let shape = shared.state.read().shape();
        let mut member = new_member(&shape, &*store, identifier)
            .map_err(|problem| PoolError::Unfit { device: 0, problem })?;
        member.is_new = true;
        let device = Device::new(store, Layout::of_slots(&shape, member.slots));
        let number = {
            let state = shared.state.read();
            let slots: u64 = state.space.present().map(|(_, member)| u64::from(member.slots)).sum();
            if slots + u64::from(member.slots) > u64::from(shape.slabs_max()) {
                return Err(PoolError::Invalid(
                    "the pool was created for fewer devices, or smaller ones: create another pool",
                ));
            }
            let vacant = state.space.members.iter().position(|member| !member.is_there());
            let number = vacant.unwrap_or(state.space.members.len());
            if number >= DEVICES_MAX {
                return Err(PoolError::Invalid(
                    "the pool has 32 devices, which is the maximum: replace one of them, or create another pool",
                ));
            }
            number as u8
        };
        shared.devices.set(number, Some(device));
        let prepared = async {
            for offset in SUPERBLOCKS {
                let place = DevicePlace { device: number, offset };
                let zeroes = Buffer::zeroed(PAGE);
                shared.devices.prepare(place, zeroes, Durability::Durable).await?;
            }
            clear_journal(&shared.devices, number, &shape).await?;
            let flushed = shared.devices.flush(number).wait().await;
            flushed.map_err(|source| PoolError::Device { device: number.into(), source })
        };
        if let Err(error) = prepared.await {
            shared.devices.set(number, None);
            return Err(error);
        }
        let generation = {
            let mut state = shared.state.write();
            if state.is_stopped {
                return Err(PoolError::Stopped);
            }
            let members = &mut state.space.members;
            if members.len() == usize::from(number) {
                members.push(member);
            } else {
                members[usize::from(number)] = member;
            }
            state.space.change_all_rows();
            state.generation
        };
        shared.checkpoint(generation).await?;
        let has_failed = {
            let mut state = shared.state.write();
            let member = &mut state.space.members[usize::from(number)];
            let has_failed = member.standing == Standing::LeftOut;
            member.is_leaving |= has_failed;
            member.is_new = false;
            has_failed
        };
        shared.work.notify_one();
        if has_failed {
            let reason = shared.left_out.lock().get(&number).cloned().unwrap_or_default();
            let source = BlockError::Unreachable(std::io::Error::other(reason));
            return Err(PoolError::Device { device: number.into(), source });
        }
        Ok(number)
    }

    /// Lets a device leave: the maintenance moves its data to other devices, and removes it then. Fails if they have no room for
    /// it.
    pub async fn remove_device(&self, number: u8) -> Result<(), PoolError> {
        let shared = &self.shared;
        let _copying = shared.copying.take().await;
        let generation = {
            let mut state = shared.state.write();
            if state.is_stopped {
                return Err(PoolError::Stopped);
            }
            let Some(member) = state.space.member(number) else { return Err(PoolError::NoDevice) };
            if member.is_leaving {
                return Ok(());
            }
            let is_only_there =
                member.standing == Standing::LeftOut && !state.space.may_leave_out(number);
            if is_only_there {
                return Err(PoolError::Invalid(
                    "the device is missing, and has the only copy of some data: connect it again first",
                ));
            }
            state.space.members[usize::from(number)].is_leaving = true;
            let pages = state.reserve();
            if !state.space.has_room_without(number, pages) {
                state.space.members[usize::from(number)].is_leaving = false;
                return Err(PoolError::NoSpace);
            }
            state.generation
        };
        shared.checkpoint(generation).await?;
        shared.work.notify_one();
        Ok(())
    }

    /// Keeps a device that leaves.
    pub async fn keep_device(&self, number: u8) -> Result<(), PoolError> {
        let shared = &self.shared;
        let _copying = shared.copying.take().await;
        let generation = {
            let mut state = shared.state.write();
            if state.space.member(number).is_none() {
                return Err(PoolError::NoDevice);
            }
            state.space.members[usize::from(number)].is_leaving = false;
            state.generation
        };
        shared.checkpoint(generation).await
    }

    /// Leaves out a device, for example because it does not answer. Fails if it has the only copy of something.
    pub async fn leave_out_device(&self, number: u8, reason: &str) -> Result<(), PoolError> {
        if self.shared.state.read().space.member(number).is_none() {
            return Err(PoolError::NoDevice);
        }
        let error = BlockError::Unreachable(std::io::Error::other(reason.to_owned()));
        let failed = |source| PoolError::Device { device: number.into(), source };
        let generation = self.shared.exclude(number, error).map_err(failed)?;
        self.shared.checkpoint(generation).await
    }

    /// Leaves out a device whose data cannot be trusted any more: if it comes back, everything is copied to it. Fails if it
    /// has the only copy of something.
    pub async fn distrust_device(&self, number: u8, reason: &str) -> Result<(), PoolError> {
        {
            let mut state = self.shared.state.write();
            // No checkpoint leaves it out and trusts it.
            if state.space.member(number).is_some() && state.space.may_leave_out(number) {
                state.space.lack_all(number);
            }
        }
        self.leave_out_device(number, reason).await
    }

    /// Returns the identifier of the pool, and the number of the last checkpoint, if that names all devices which are left out
    /// now, and none is being written. A device that is left out has an older one.
    pub fn last_checkpoint(&self) -> Option<([u8; 16], u64)> {
        // A device that hangs may keep a checkpoint from its end.
        let writer = self.shared.writer.try_lock().ok()?;
        let names_all = !self.shared.state.read().space.has_unsaid();
        names_all.then(|| (writer.superblock.pool, writer.superblock.generation.get()))
    }

    /// Lets go of the store of a device that was left out, so that it can be opened again. Returns whether nothing of the pool
    /// uses it any more.
    pub async fn release_device(&self, number: u8) -> bool {
        let _copying = self.shared.copying.take().await;
        let state = self.shared.state.read();
        let member = state.space.member(number);
        let is_out = member.is_some_and(|member| member.standing == Standing::LeftOut);
        if is_out && !self.shared.devices.has_abandoned(number) {
            self.shared.devices.set(number, None);
            return true;
        }
        false
    }

    /// Takes a device that was left out into use again. What it lacks is copied to it by the maintenance. Returns its number.
    pub async fn return_device(&self, store: Arc<dyn Store>) -> Result<u8, PoolError> {
        let shared = &self.shared;
        let _copying = shared.copying.take().await;
        let unfit = |problem| PoolError::Unfit { device: 0, problem };
        let (superblock, free) = read_superblock(&*store).await?;
        let number = superblock.device.get() as u8;
        let (shape, newest) = {
            let writer = shared.writer.lock().await;
            (shared.state.read().shape(), writer.superblock.clone())
        };
        let row = newest.devices.get(usize::from(number)).copied();
        let row = row.filter(|row| row.slots.get() > 0).ok_or(unfit(PoolProblem::Foreign))?;
        returning(&superblock, &newest, number).map_err(unfit)?;
        if shared.devices.has_abandoned(number) {
            return Err(PoolError::Invalid(
                "the device has requests that have not ended: wait until its disk responds",
            ));
        }
        let layout = Layout::of_slots(&shape, row.slots.get());
        let (expected, actual) = (layout.end(&shape), store.geometry().byte_count());
        if actual < expected {
            return Err(unfit(PoolProblem::Short { expected, actual }));
        }
        let standing = shared.state.read().space.member(number).map(|member| member.standing);
        if standing != Some(Standing::LeftOut) {
            return Err(PoolError::Invalid("the device is in use already"));
        }
        shared.devices.set(number, Some(Device::new(store, layout)));
        // The next checkpoint may overwrite the only superblock of the device.
        write_superblock(&shared.devices, &newest, number, free).await?;
        shared.state.write().space.members[usize::from(number)].standing = Standing::Returning;
        shared.work.notify_one();
        Ok(number)
    }

    /// Uses the space by which devices have grown. Returns whether there was any.
    pub async fn grow(&self) -> Result<bool, PoolError> {
        let shared = &self.shared;
        let _copying = shared.copying.take().await;
        let mut grown = Vec::new();
        let generation = {
            let mut state = shared.state.write();
            let shape = state.shape();
            let mut room = shape.slabs_max();
            room -= state.space.members.iter().map(|member| member.slots).sum::<u32>().min(room);
            for number in 0..state.space.members.len() as u8 {
                let Some(device) = shared.devices.get(number) else { continue };
                let bytes = device.store.geometry().byte_count();
                let fitting = Layout::of_bytes(&shape, bytes).slots;
                let member = &mut state.space.members[usize::from(number)];
                let more = fitting.saturating_sub(member.slots).min(room);
                if more > 0 && member.standing == Standing::Online {
                    grown.push((number, member.slots..member.slots + more));
                    member.slots += more;
                    room -= more;
                }
            }
            if grown.is_empty() {
                return Ok(false);
            }
            state.generation
        };
        // The journal names no slot that the last checkpoint does not have.
        shared.checkpoint(generation).await?;
        let mut state = shared.state.write();
        for (number, slots) in grown {
            state.space.members[usize::from(number)].free_slots.extend(slots);
        }
        Ok(true)
    }

    /// Reads everything that is in use, and repairs copies that differ or cannot be read from good ones. `progress` gets the
    /// part that is done, and the whole. Ends early if it is dropped.
    pub async fn scrub(&self, mut progress: impl FnMut(u64, u64)) -> Result<Scrubbed, PoolError> {
        let scrubbed = self.shared.scrub(&mut progress).await?;
        self.end_lost().await?;
        Ok(scrubbed)
    }
}

impl Shared {
    /// Removes a device that leaves and has no slabs any more, unless it must stay. Returns whether there was one.
    pub(crate) async fn remove_empty(self: &Arc<Self>) -> Result<bool, PoolError> {
        let (number, generation) = {
            let state = self.state.read();
            let Some(number) = state.space.empty_leaver() else { return Ok(false) };
            (number, state.generation)
        };
        // The last checkpoint has no slab on it from now on.
        self.checkpoint(generation).await?;
        let generation = {
            let mut state = self.state.write();
            // Meanwhile, it may have become the last one, which stays.
            if !state.space.members[usize::from(number)].is_leaving {
                return Ok(true);
            }
            state.space.members[usize::from(number)] = Member::new([0; 16], 0);
            state.space.change_all_rows();
            state.generation
        };
        self.checkpoint(generation).await?;
        for offset in SUPERBLOCKS {
            // It is not recognized any more, if it can be written.
            let place = DevicePlace { device: number, offset };
            let zeroes = Buffer::zeroed(PAGE);
            drop(self.devices.prepare(place, zeroes, Durability::Durable).await);
        }
        self.devices.set(number, None);
        self.left_out.lock().remove(&number);
        Ok(true)
    }
}
