//! Making changes durable: commits of the journal, and checkpoints.

use std::sync::Arc;

use futures_util::future::join_all;
use sarsen_block::Buffer;
use zerocopy::FromBytes as _;

use crate::PoolError;
use crate::copies::Standing;
use crate::devices::TOGETHER;
use crate::error::{Blocked, Load};
use crate::format::{ALL_STALE, CountsPage, KEEPER, LEFT_OUT, PAGE, PageHeader, Sealed as _};
use crate::grace::Period;
use crate::journal::Ring;
use crate::pages::{Cached, Page, Unsealed};
use crate::records::Record;
use crate::shape::{SlabKind, Unit};
use crate::shared::{Journal, Shared, Writer};
use crate::state::State;

impl Shared {
    /// Makes all records durable up to this number of bytes. Returns whether the devices were flushed for that.
    pub(crate) async fn commit(self: &Arc<Self>, recorded: u64) -> Result<bool, PoolError> {
        let shared = self.clone();
        // A caller that is dropped must not leave half of it: the next frame follows this one.
        self.finishing(async move { shared.commit_now(recorded).await }).wait().await
    }

    async fn commit_now(&self, recorded: u64) -> Result<bool, PoolError> {
        let mut journal = self.journal.lock().await;
        let taken = {
            let mut state = self.state.write();
            if state.is_stopped {
                return Err(PoolError::Stopped);
            }
            let is_unsaid = state.space.has_unsaid();
            if state.durable >= recorded && !is_unsaid {
                return Ok(false);
            }
            let has_room =
                !is_unsaid && !journal.is_behind && journal.ring.has_room(state.records.len());
            has_room.then(|| (std::mem::take(&mut state.records), state.recorded))
        };
        if let Some((records, up_to)) = taken {
            let written = self.write_records(&mut journal, &records);
            if self.stop_if_failed(written.await)? {
                self.note_durable(up_to);
                return Ok(true);
            }
        }
        drop(journal);
        // There is no room, or a device was left out: a checkpoint says so, before anything is acknowledged that the device
        // lacks. The state has these changes already.
        let mut writer = self.writer.lock().await;
        let is_done = {
            let state = self.state.read();
            state.durable >= recorded && !state.space.has_unsaid()
        };
        if !is_done {
            self.write_checkpoint(&mut writer).await?;
        }
        Ok(!is_done)
    }

    /// Writes a frame with these records, for which there is room. Returns whether they are durable now: no device was left
    /// out meanwhile.
    async fn write_records(
        &self,
        journal: &mut Journal,
        records: &[u8],
    ) -> Result<bool, PoolError> {
        // The data of the records is durable before they are. A device that failed lacks it: no frame names this data before a
        // checkpoint says what the device lacks.
        let mut left = self.flush_written().await? | self.state.read().space.has_unsaid();
        if !left {
            let before = journal.ring;
            let frame = journal.ring.frame(records).ok_or(PoolError::NoSpace)?;
            left = self.append(journal, before, frame, &[]).await?
                | self.state.read().space.has_unsaid();
        }
        journal.is_behind |= left;
        Ok(!left)
    }

    /// Writes a frame to the devices that have the journal, and to others. Returns whether a device was left out. If no device
    /// has the frame, the next one takes its place `before`.
    async fn append(
        &self,
        journal: &mut Journal,
        before: Ring,
        frame: (u64, Buffer),
        others: &[u8],
    ) -> Result<bool, PoolError> {
        let mut all = journal.keepers.clone();
        all.extend(others.iter().filter(|&other| !journal.keepers.contains(other)));
        let left = self.write_frame(frame, all.clone()).await?;
        if left {
            // A device that failed may come back, and lacks this frame: it gets none that follows it.
            let is_written = |device: &u8| self.state.read().space.is_written(*device);
            journal.keepers.retain(is_written);
            if !all.iter().any(is_written) {
                journal.ring = before;
            }
        }
        Ok(left)
    }

    fn note_durable(&self, recorded: u64) {
        let mut state = self.state.write();
        state.durable = state.durable.max(recorded);
    }

    /// Flushes the devices, without records.
    pub(crate) async fn flush_devices(self: &Arc<Self>) -> Result<(), PoolError> {
        self.stop_if_failed(self.flush_written().await)?;
        self.say_absences().await
    }

    /// Writes a checkpoint, unless one was written while this waited.
    pub(crate) async fn checkpoint(self: &Arc<Self>, generation: u64) -> Result<(), PoolError> {
        self.checkpoint_if(move |state, _| state.generation <= generation).await?;
        // The one that was written while this waited may have failed.
        if self.state.read().is_stopped { Err(PoolError::Stopped) } else { Ok(()) }
    }

    /// Writes a checkpoint if the journal or the memory for changed pages is half full.
    pub(crate) async fn checkpoint_if_due(self: &Arc<Self>) -> Result<(), PoolError> {
        let is_due = |state: &State, ring: &Ring| ring.is_half_full() || state.is_crowded();
        self.checkpoint_if(is_due).await
    }

    /// Writes a checkpoint on a condition. It is completed even if the caller is dropped: the records that it contains are
    /// in no frame.
    async fn checkpoint_if(
        self: &Arc<Self>,
        condition: impl FnOnce(&State, &Ring) -> bool + 'static,
    ) -> Result<(), PoolError> {
        let shared = self.clone();
        let written = self.finishing(async move {
            let mut writer = shared.writer.lock().await;
            let ring = shared.journal.lock().await.ring;
            let is_wanted = condition(&shared.state.read(), &ring);
            if is_wanted { shared.write_checkpoint(&mut writer).await } else { Ok(()) }
        });
        written.wait().await
    }

    pub(crate) async fn write_checkpoint(&self, writer: &mut Writer) -> Result<(), PoolError> {
        let written = async {
            // If a device fails meanwhile, the next checkpoint says what it lacks.
            while self.try_checkpoint(writer).await? {}
            Ok(())
        };
        self.stop_if_failed(written.await)
    }

    /// Writes a checkpoint. Returns whether a device was left out meanwhile.
    async fn try_checkpoint(&self, writer: &mut Writer) -> Result<bool, PoolError> {
        let (mut pages, rows, freed, unassigned, up_to, dirty, records, was_unsaid);
        // The last one stays until this one is on the devices.
        let mut superblock = writer.superblock.clone();
        let mut journal = self.journal.lock().await;
        {
            let mut state = self.state.write();
            if state.is_stopped {
                return Err(PoolError::Stopped);
            }
            let state = &mut *state;
            if let Some(what) = state.space.contradiction() {
                return Err(PoolError::Damaged { what: what.to_owned() });
            }
            state.store_catalogue().map_err(|_| PoolError::NoSpace)?;
            let generation = state.generation;
            let created = std::mem::take(&mut state.created);
            let mut places = Vec::with_capacity(created.len());
            for address in created {
                let page = state.pages.get(&address).map(|cached| &cached.page);
                let Some(page) = page.filter(|page| page.header().generation.get() == generation)
                else {
                    continue;
                };
                let unit = Unit::of_page(address);
                let place = state.space.place(SlabKind::Pages, unit);
                places.push((place.expect("a page is in a slab of pages"), page.clone()));
            }
            for (place, _) in &places {
                state.space.note_write(place.slab, place.offset, PAGE as u64);
            }
            (pages, rows) = state.space.capture(state.pool, generation);
            pages.extend(places.into_iter().map(|(place, page)| (place, Unsealed::Page(page))));
            freed = state.space.take_freed();
            unassigned = state.space.take_unassigned();
            up_to = state.recorded;
            records = std::mem::take(&mut state.records);
            was_unsaid = state.space.has_unsaid();
            state.generation += 1;
            superblock.version = state.version().into();
            superblock.generation = generation.into();
            superblock.catalogue = state.catalogue().into();
            superblock.next_volume = state.next_object.into();
            superblock.places.copy_from_slice(state.space.row_places());
            superblock.row_count = state.space.row_count().into();
            let keepers = state.space.keepers();
            for (number, row) in (0_u8..).zip(&mut superblock.devices) {
                let Some(member) = state.space.members.get_mut(usize::from(number)) else { break };
                // The rows of slabs have everything that was stale until now.
                member.is_all_stale = false;
                *row = member.to_row();
                row.flags |= if keepers.contains(&number) { KEEPER } else { 0 };
            }
            dirty = state.space.mirrors.settle();
        }
        let keepers = superblock.keepers();
        // If the journal has all of this, too, it can go on meanwhile. Otherwise it would lack these records.
        let mut goes_on = !was_unsaid
            && !journal.is_behind
            && keepers == journal.keepers
            && journal.ring.has_room(records.len());
        if goes_on && !records.is_empty() {
            goes_on = self.write_records(&mut journal, &records).await?;
            if goes_on {
                self.note_durable(up_to);
            }
        }
        (superblock.frame, superblock.frame_offset) =
            (journal.ring.number.into(), journal.ring.offset.into());
        superblock.run = journal.ring.run.into();
        let used = journal.ring.used;
        let mut held = Some(journal);
        if goes_on {
            held = None;
        }
        let mut left = self.write_metadata(pages, rows, &keepers).await?;
        if !dirty.is_empty() {
            let mut records = Vec::new();
            for (slab, region) in dirty {
                Record::Dirty { slab, region }.write(&mut records);
            }
            let mut now = None;
            let journal = match &mut held {
                Some(journal) => journal,
                None => now.insert(self.journal.lock().await),
            };
            if self.state.read().is_stopped {
                // A frame was not written meanwhile. What follows it would not be found.
                return Err(PoolError::Stopped);
            }
            // It is a part of the next journal, and of this one.
            let before = journal.ring;
            let frame = journal.ring.last_frame(&records).ok_or(PoolError::NoSpace)?;
            left |= self.append(journal, before, frame, &keepers).await?;
        }
        // This includes the data of all changes that the checkpoint has.
        left |= self.flush_written().await?;
        {
            // What a device lacks that failed meanwhile is not in the rows.
            let mut state = self.state.write();
            let generation = state.generation;
            let members = state.space.members.iter_mut();
            for (member, row) in members.zip(&mut superblock.devices) {
                if member.is_there() && member.standing == Standing::LeftOut {
                    member.is_all_stale |= member.since == generation;
                    row.flags |= LEFT_OUT | if member.is_all_stale { ALL_STALE } else { 0 };
                    row.absences = member.absences.into();
                }
            }
        }
        left |= self.write_superblocks(&superblock).await?;
        let mut journal = match held {
            Some(journal) => journal,
            None => self.journal.lock().await,
        };
        journal.ring.used -= used;
        journal.keepers = keepers;
        // One that failed meanwhile may lack a frame.
        journal.keepers.retain(|&keeper| self.state.read().space.is_online(keeper));
        journal.is_behind &= goes_on;
        drop(journal);
        let mut state = self.state.write();
        for (member, row) in state.space.members.iter_mut().zip(&superblock.devices) {
            member.is_unsaid &= row.flags & LEFT_OUT == 0;
            member.is_rejoining &= row.flags & LEFT_OUT != 0;
        }
        let completed = superblock.generation.get();
        writer.superblock = superblock;
        state.durable = state.durable.max(up_to);
        state.completed = completed;
        state.space.mirrors.settled();
        state.space.reuse(unassigned);
        drop(Period::rotate(&mut state.period, freed));
        state.evict(true);
        Ok(left)
    }

    /// After a failed write of metadata, the devices may have any of it: nothing more is acknowledged.
    pub(crate) fn stop_if_failed<T>(&self, written: Result<T, PoolError>) -> Result<T, PoolError> {
        if written.is_err() {
            self.stop();
        }
        written
    }

    /// Makes records durable before they take too much memory: clients need not flush.
    pub(crate) async fn limit_records(self: &Arc<Self>) -> Result<(), PoolError> {
        let (length, limit, recorded) = {
            let state = self.state.read();
            (state.records.len() as u64, state.shape().journal / 4, state.recorded)
        };
        if length > limit { self.commit(recorded).await.map(drop) } else { Ok(()) }
    }

    /// Loads metadata that an operation lacks, or makes room for it.
    pub(crate) async fn resolve(self: &Arc<Self>, blocked: Blocked) -> Result<(), PoolError> {
        match blocked {
            Blocked::Missing(loads) => {
                for load in loads {
                    self.load(load).await?;
                }
                Ok(())
            }
            Blocked::Checkpoint => {
                let generation = self.state.read().generation;
                self.checkpoint(generation).await
            }
            Blocked::Copying => {
                let ended = self.state.write().space.mirrors.window_end();
                if let Some(ended) = ended {
                    let _ended = ended.await;
                }
                Ok(())
            }
            Blocked::Unmarked(place, length) => self.mark(&place, length).await,
            Blocked::NoSpace => Err(PoolError::NoSpace),
            Blocked::NoBase => Err(PoolError::Invalid("a leaf has too many bases")),
            Blocked::NotFound => Err(PoolError::NotFound),
            Blocked::Damaged(what) => Err(PoolError::Damaged { what }),
        }
    }

    /// Reads a page or the counts of a slab, unless they are in memory.
    pub(crate) async fn load(self: &Arc<Self>, load: Load) -> Result<(), PoolError> {
        let damaged = |what: String| PoolError::Damaged { what };
        match load {
            Load::Page(address) => {
                // Within a period, the address gets no other page.
                let (place, pool, _period) = {
                    let state = self.state.read();
                    if state.pages.contains_key(&address) {
                        return Ok(());
                    }
                    let unit = Unit::of_page(address);
                    let place = state.space.place(SlabKind::Pages, unit);
                    (place, state.pool, state.period.clone())
                };
                let place =
                    place.ok_or_else(|| damaged(format!("page {address:#x} does not exist")))?;
                let parse = |bytes: &[u8]| {
                    let page = Page::parse(bytes, pool, address);
                    page.map_err(|what| format!("page {address:#x}: {what}"))
                };
                let page = self.read_page(place, parse).await?;
                let mut state = self.state.write();
                // The page may have been given back and created again meanwhile.
                let count = state.space.count(Unit::of_page(address)).unwrap_or(0);
                state.evict(false);
                if count > 0 {
                    state.pages.entry(address).or_insert(Cached { page, is_single: count == 1 });
                }
                Ok(())
            }
            Load::Checksums(slab, page) => self.load_checksums(slab, page).await,
            Load::Counts(slab) => {
                if self.state.write().space.load_lost(slab) {
                    return Ok(());
                }
                let (places, pool, evictions) = {
                    let state = self.state.read();
                    if state.space.has_counts(slab) {
                        return Ok(());
                    }
                    (state.space.counts_places(slab), state.pool, state.space.evictions)
                };
                let mut pages = Vec::with_capacity(places.len());
                let mut places = (0..).zip(places);
                loop {
                    let some: Vec<_> = places.by_ref().take(TOGETHER).collect();
                    if some.is_empty() {
                        break;
                    }
                    let reads = some.into_iter().map(async |(number, place)| {
                        let parse = |bytes: &[u8]| counts_page(bytes, pool, slab, number);
                        self.read_page(place, parse).await
                    });
                    for page in join_all(reads).await {
                        if page.is_err() && self.state.read().space.slab(slab).is_none() {
                            // Nothing used it, and it has ended with its device. The operation takes another one.
                            return Ok(());
                        }
                        pages.push(page?);
                    }
                }
                let mut state = self.state.write();
                // They may have changed since, and left the memory again. Then the operation lacks them, and tries again.
                if state.space.evictions == evictions {
                    state.space.load_counts(slab, &pages).map_err(damaged)?;
                    state.evict(false);
                }
                Ok(())
            }
        }
    }
}

/// Returns a page of counts that was read from a device, if it is intact and belongs there.
pub(crate) fn counts_page(
    bytes: &[u8],
    pool: u64,
    slab: u32,
    number: u32,
) -> Result<CountsPage, String> {
    let page = CountsPage::read_from_bytes(bytes).map_err(|_| "a page is too short")?;
    let PageHeader { pool: found, address, .. } = page.header;
    let is_own = found.get() == pool && address.get() == u64::from(slab) << 32 | u64::from(number);
    if is_own && page.is_intact() {
        Ok(page)
    } else {
        Err(format!("page {number} of the reference counts of slab {slab} is damaged"))
    }
}
