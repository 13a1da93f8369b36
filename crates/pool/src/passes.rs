//! Copies of slabs that are made, completed, moved and compared, beside the requests of clients.
//!
//! A pass goes through a slab in windows. Nothing is written in the window, because requests that began before have ended, and
//! later ones wait. So a window is copied or compared as it is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use futures_util::future::join_all;
use sarsen_block::{BlockError, Buffer, Durability, Payload};

use crate::PoolError;
use crate::copies::{Place, Slot, Standing};
use crate::error::{Blocked, Load};
use crate::format::PAGE;
use crate::shape::{SlabKind, Unit};
use crate::shared::Shared;
use crate::space::SlabPart;
use crate::state::State;
use crate::tasks::CopyReason;

/// Bytes of a slab that are copied together.
const WINDOW: u64 = 1 << 20;

/// What a scrub has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Bytes that were read, of all copies.
    pub read_bytes: u64,
    /// Bytes of copies that could not be read, or did not have their checksum, which were written again.
    pub repaired_bytes: u64,
    /// Bytes of data that differed from another copy, and are equal now. Parts of chunks that no volume has written may
    /// differ.
    pub differing_bytes: u64,
    /// Bytes of which no copy could be read, or no copy has its checksum.
    pub lost_bytes: u64,
    /// Bytes of data that should have checksums, had none after an interruption, and have them now.
    pub summed_bytes: u64,
}

/// A pass through a slab. It ends when this is dropped, so that no write waits for a pass that lost its caller.
struct PassGuard<'a>(&'a Shared);

impl<'a> PassGuard<'a> {
    /// Begins to compare the copies of a slab.
    fn begin(shared: &'a Shared, slab: u32) -> Self {
        shared.state.write().space.mirrors.begin_pass(slab, 0);
        Self(shared)
    }
}

impl Drop for PassGuard<'_> {
    fn drop(&mut self) {
        self.0.state.write().space.mirrors.end_pass();
    }
}

impl State {
    /// Returns the pages of a slab that the last checkpoint has, as ranges of bytes.
    fn written_pages(&self, number: u32, window: Range<u64>) -> Vec<Range<u64>> {
        let used = self.space.used_in(number, window).into_iter();
        let pages = used.flat_map(|range| range.step_by(PAGE));
        let is_written = |start: &u64| {
            let unit = Unit { slab: number, index: (start / PAGE as u64) as u32 };
            let page = self.pages.get(&unit.to_page());
            page.is_none_or(|one| one.page.header().generation.get() < self.generation)
        };
        pages.filter(is_written).map(|start| start..start + PAGE as u64).collect()
    }
}

impl Shared {
    /// Carries out one step of the maintenance of copies. Returns whether there was one. Copies that cannot be completed, by slab
    /// and device, are added to `failed`, and left as they are.
    pub(crate) async fn tend_copies(
        self: &Arc<Self>,
        failed: &mut BTreeMap<(u32, u8), PoolError>,
    ) -> Result<bool, PoolError> {
        let _copying = self.copying.take().await;
        if self.welcome().await? {
            return Ok(true);
        }
        let bad_copy = {
            let mut state = self.state.write();
            state.space.mirrors.take_bad_copy().then_some(state.generation)
        };
        if let Some(generation) = bad_copy {
            self.checkpoint(generation).await?;
        }
        let stale = {
            let mut state = self.state.write();
            let stale = state.space.next_stale(|copy| !failed.contains_key(&copy));
            // A target that is left out from now on spoils the pass.
            stale.inspect(|&(slab, device)| state.space.mirrors.begin_pass(slab, 1 << device))
        };
        if let Some((slab, device)) = stale {
            let _pass = PassGuard(self);
            return match self.complete_slab(slab, 1 << device).await {
                Err(error) if !self.state.read().is_stopped => {
                    failed.insert((slab, device), error);
                    Ok(true)
                }
                ended => ended.map(|()| true),
            };
        }
        if self.state.write().space.add_copy() {
            return Ok(true);
        }
        let (drops, generation) = {
            let mut state = self.state.write();
            (state.space.begin_drops(), state.generation)
        };
        if drops.is_empty() {
            if self.remove_empty().await? {
                return Ok(true);
            }
            // Until a checkpoint calls the copies complete, a failure of another device cannot be survived.
            let is_due = self.state.read().space.mirrors.has_completed();
            if is_due {
                self.checkpoint(generation).await?;
            }
            return Ok(is_due || self.begin_next_move());
        }
        // Until a checkpoint does not have these copies, an interruption brings them back.
        self.checkpoint(generation).await?;
        let slots = self.state.write().space.end_drops(&drops);
        // Requests that began before may still write there.
        self.end_writes().await;
        self.state.write().space.unassigned.push((0, slots));
        Ok(true)
    }

    /// Makes devices that came back a part of the pool, when all requests have ended that do not write them.
    async fn welcome(self: &Arc<Self>) -> Result<bool, PoolError> {
        let returning: Vec<u8> = {
            let state = self.state.read();
            let returning = state.space.present();
            let returning = returning.filter(|(_, one)| one.standing == Standing::Returning);
            returning.map(|(device, _)| device).collect()
        };
        if returning.is_empty() {
            return Ok(false);
        }
        self.end_writes().await;
        let generation = {
            // A checkpoint that is being written does not have them: if another device failed meanwhile, it would leave
            // out both.
            let _writer = self.writer.lock().await;
            let mut state = self.state.write();
            for device in returning {
                let member = &mut state.space.members[usize::from(device)];
                // It may have failed meanwhile.
                if member.standing == Standing::Returning {
                    member.standing = Standing::Online;
                    member.is_rejoining = true;
                    // Until a checkpoint says it, an interruption leaves it out again.
                    state.space.mirrors.add_completed(device, 1);
                    self.left_out.lock().remove(&device);
                }
            }
            state.space.change_all_rows();
            state.generation
        };
        self.checkpoint(generation).await?;
        Ok(true)
    }

    /// Copies to stale copies of a slab what they lack, in a pass that has begun.
    async fn complete_slab(self: &Arc<Self>, number: u32, targets: u32) -> Result<(), PoolError> {
        while self.state.read().space.lacks_counts(number) {
            self.resolve(Blocked::Missing(vec![Load::Counts(number)])).await?;
        }
        // What is written from now on is written to the targets, too.
        self.end_writes().await;
        let moves = || self.state.read().space.tiering.destination(number).is_some();
        let reason = if moves() { CopyReason::Move } else { CopyReason::Repair };
        let windows = self.windows(number, true);
        for window in windows.iter().cloned() {
            let bytes = self.copy_window(number, targets, window).await?;
            self.copying.pause(self.tasks.pause(reason, bytes)).await;
            tokio::task::yield_now().await;
            if reason == CopyReason::Move && !moves() {
                // The copy is not needed any more.
                return Ok(());
            }
        }
        // A checkpoint that is being written calls the copies stale: if the device of the other copy failed meanwhile, it would
        // leave none.
        {
            let _writer = self.writer.lock().await;
            let mut state = self.state.write();
            if !state.space.mirrors.is_complete() {
                return Ok(());
            }
            state.space.complete(number, targets);
            if state.space.checksums_range(number).is_none() {
                return Ok(());
            }
        }
        // Blocks get no checksum while a copy lacks them.
        self.stop_if_failed(self.flush_written().await)?;
        for window in windows.into_iter().skip(1) {
            self.sum_window(number, window).await?;
        }
        Ok(())
    }

    /// Returns the parts of a slab, or of what stale copies lack of it. Reference counts are a part of their own.
    fn windows(&self, number: u32, stale_only: bool) -> Vec<Range<u64>> {
        let state = self.state.read();
        let Some(slab) = state.space.slab(number) else { return Vec::new() };
        let shape = state.shape();
        let (head, end) = (shape.head(slab.kind()), 1 << shape.slab_shift);
        let mut windows: Vec<_> = std::iter::once(0..head).collect();
        let mut start = head;
        while start < end {
            let next = ((start / WINDOW + 1) * WINDOW).min(end);
            if !stale_only || slab.regions & shape.regions_of(start, next) != 0 {
                windows.push(start..next);
            }
            start = next;
        }
        windows
    }

    /// Carries out `work` while nothing is written in a window of a slab. It gets the ranges that are in use.
    async fn in_window<T>(
        self: &Arc<Self>,
        number: u32,
        window: Range<u64>,
        work: impl AsyncFnOnce(Vec<Range<u64>>) -> Result<T, PoolError>,
    ) -> Result<T, PoolError> {
        let (head, kind) = {
            let state = self.state.read();
            let kind = state.space.slab(number).map_or(SlabKind::Data, |slab| slab.kind());
            (state.shape().head(kind), kind)
        };
        if window.start < head || kind == SlabKind::Pages {
            // Only checkpoints write there.
            let _writer = self.writer.lock().await;
            let written = if window.start < head {
                self.state.read().space.written_counts(number)
            } else {
                self.state.read().written_pages(number, window)
            };
            return work(written).await;
        }
        self.state.write().space.mirrors.set_window(Some(window.clone()));
        self.end_writes().await;
        let used = self.state.read().space.used_in(number, window);
        let result = work(used).await;
        self.state.write().space.mirrors.set_window(None);
        result
    }

    pub(crate) fn place_at(&self, number: u32, offset: u64) -> Option<Place> {
        let state = self.state.read();
        Some(state.space.place_in(number, state.space.slab(number)?, offset))
    }

    /// Copies what is in use of a window. Returns its bytes.
    async fn copy_window(
        self: &Arc<Self>,
        number: u32,
        targets: u32,
        window: Range<u64>,
    ) -> Result<u64, PoolError> {
        let checksums = self.state.read().space.checksums_range(number);
        self.in_window(number, window.clone(), async |used| {
            let mut bytes = 0;
            // Those in memory are newer; the next checkpoint writes them to all copies.
            let checksums = checksums.filter(|range| window.contains(&range.start));
            for range in used.into_iter().chain(checksums) {
                let Some(place) = self.place_at(number, range.start) else { return Ok(bytes) };
                let Some(source) = place.sources().next() else { return Ok(bytes) };
                bytes += range.end - range.start;
                let read = self.read_to_copy(place, targets, range.end - range.start).await;
                let failed =
                    |error| PoolError::Device { device: source.device.into(), source: error };
                let mut data = Payload::from(read.map_err(failed)?);
                for slot in place.targets().filter(|slot| targets >> slot.device & 1 == 1) {
                    self.write_copy(slot, range.start, data.share()).await?;
                }
            }
            Ok(bytes)
        })
        .await
    }

    /// Reads data, which nothing writes, to be copied to these devices. What no copy has is copied as it is, unless one of the
    /// devices still has it.
    async fn read_to_copy(
        self: &Arc<Self>,
        place: Place,
        targets: u32,
        length: u64,
    ) -> Result<Buffer, BlockError> {
        let mut data = self.read_unchecked(place, length).wait().await?.into_buffer();
        if place.has_checksums {
            let checksums = self.checksums(&place, length).await?;
            self.mend_all(place, targets, &mut data, &checksums).await;
        }
        Ok(data)
    }

    /// Calculates the checksums of a range of a slab that are missing.
    pub(crate) async fn add_missing_checksums(
        self: &Arc<Self>,
        number: u32,
        range: Range<u64>,
    ) -> Result<(), PoolError> {
        let _pass = PassGuard::begin(self, number);
        while self.state.read().space.lacks_counts(number) {
            self.resolve(Blocked::Missing(vec![Load::Counts(number)])).await?;
        }
        for start in range.clone().step_by(WINDOW as usize) {
            self.sum_window(number, start..range.end.min(start + WINDOW)).await?;
        }
        Ok(())
    }

    async fn sum_window(
        self: &Arc<Self>,
        number: u32,
        window: Range<u64>,
    ) -> Result<(), PoolError> {
        let sum = async |used: Vec<Range<u64>>| {
            for used in used {
                let Some(place) = self.place_at(number, used.start) else { return Ok(()) };
                self.sum(place, used.end - used.start).await?;
            }
            Ok(())
        };
        self.in_window(number, window, sum).await?;
        tokio::task::yield_now().await;
        Ok(())
    }

    /// Writes one copy. A device that fails is left out.
    pub(crate) async fn write_copy(
        &self,
        slot: Slot,
        offset: u64,
        data: Payload,
    ) -> Result<(), PoolError> {
        let write = self.devices.write(self.devices.at(slot, offset), data, Durability::Volatile);
        if let Err(error) = self.devices.wait(slot.device, write, &self.tasks).await {
            let failed = |source| PoolError::Device { device: slot.device.into(), source };
            self.exclude(slot.device, error).map_err(failed)?;
        }
        Ok(())
    }

    /// Reads everything that is in use, compares the copies, and writes those again that cannot be read, are damaged, or differ
    /// from the others.
    pub(crate) async fn scrub(
        self: &Arc<Self>,
        progress: &mut impl FnMut(u64, u64),
    ) -> Result<Scrubbed, PoolError> {
        // What cannot be written again is reported at the end.
        let (mut scrubbed, mut problem) = (Scrubbed::default(), None);
        let count = self.state.read().space.row_count();
        for number in 1..count {
            progress(number.into(), count.into());
            let _copying = self.copying.take_patiently().await;
            if self.state.read().space.slab(number).is_none_or(SlabPart::is_lost) {
                continue;
            }
            {
                let _pass = PassGuard::begin(self, number);
                while self.state.read().space.lacks_counts(number) {
                    self.resolve(Blocked::Missing(vec![Load::Counts(number)])).await?;
                }
                self.scrub_slab(number, &mut scrubbed, &mut problem).await?;
            }
            // The pages of checksums that are to be written again stay in memory until then.
            self.checkpoint_if_due().await?;
        }
        problem.map_or(Ok(scrubbed), Err)
    }

    async fn scrub_slab(
        self: &Arc<Self>,
        number: u32,
        scrubbed: &mut Scrubbed,
        problem: &mut Option<PoolError>,
    ) -> Result<(), PoolError> {
        for window in self.windows(number, false) {
            let compare = async |used: Vec<Range<u64>>| {
                for range in used {
                    self.compare(number, range, scrubbed, problem).await?;
                }
                Ok(())
            };
            self.in_window(number, window, compare).await?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    async fn compare(
        self: &Arc<Self>,
        number: u32,
        range: Range<u64>,
        scrubbed: &mut Scrubbed,
        problem: &mut Option<PoolError>,
    ) -> Result<(), PoolError> {
        let Some(place) = self.place_at(number, range.start) else { return Ok(()) };
        let length = range.end - range.start;
        let is_page = {
            let state = self.state.read();
            let slab = state.space.slab(number);
            slab.is_some_and(|slab| {
                slab.kind() == SlabKind::Pages || range.start < state.shape().head(slab.kind())
            })
        };
        let reads = place.sources().map(|slot| {
            let read = self.devices.read(self.devices.at(slot, range.start), length);
            let ended = self.devices.wait(slot.device, read, &self.tasks);
            async move { (slot, ended.await.map(|data| data.into_buffer())) }
        });
        let mut copies = join_all(reads.collect::<Vec<_>>()).await;
        if length > PAGE as u64 && copies.iter().any(|(_, data)| data.is_err()) {
            // Another copy may have what this one cannot read, and lack something else.
            let middle = range.start + (length / 2).next_multiple_of(PAGE as u64);
            Box::pin(self.compare(number, range.start..middle, scrubbed, problem)).await?;
            return Box::pin(self.compare(number, middle..range.end, scrubbed, problem)).await;
        }
        let mut checksums = None;
        if place.has_checksums {
            let found = self.checksums(&place, length).await?;
            // A copy of their pages may be damaged, and is not noticed while another one is intact.
            found.write_again();
            checksums = Some(found);
        }
        // A device may have been left out meanwhile.
        copies.retain(|(slot, _)| self.state.read().space.is_written(slot.device));
        scrubbed.read_bytes += length * copies.len() as u64;
        let are_equal = match copies.split_first() {
            Some(((_, Ok(first)), others)) => others
                .iter()
                .all(|(_, other)| other.as_ref().is_ok_and(|other| other[..] == first[..])),
            _ => false,
        };
        if are_equal && !is_page && checksums.is_none() {
            return Ok(());
        }
        let piece = PAGE as u64;
        let (mut unsummed, mut is_rewritten) = (Vec::new(), false);
        let mut devices: Vec<u8> = copies.iter().map(|(slot, _)| slot.device).collect();
        for start in (0..length).step_by(piece as usize) {
            let of = |data: &[u8]| data[start as usize..(start + piece) as usize].to_vec();
            let read: Vec<(Slot, Option<Vec<u8>>)> = copies
                .iter()
                .map(|(slot, data)| (*slot, data.as_ref().ok().map(|data| of(data))))
                .collect();
            let number = (start / PAGE as u64) as usize;
            // A page, or a checksum, says what is intact. Otherwise the content that most copies have counts, or the first one.
            let is_good = |data: &Vec<u8>| {
                (!is_page || is_intact(data))
                    && checksums.as_ref().is_none_or(|checksums| checksums.allows(number, data))
            };
            let votes = |data: &Vec<u8>| {
                read.iter().filter(|(_, other)| other.as_ref() == Some(data)).count()
            };
            let mut best: Option<&Vec<u8>> = None;
            for data in read.iter().filter_map(|(_, data)| data.as_ref()) {
                let rank = |data: &Vec<u8>| (is_good(data), votes(data));
                if best.is_none_or(|best| rank(data) > rank(best)) {
                    best = Some(data);
                }
            }
            if checksums.is_some() {
                let bad = read
                    .iter()
                    .filter(|(_, data)| data.as_ref().is_some_and(|data| !is_good(data)));
                bad.for_each(|(slot, _)| self.mismatches.find(slot.device));
            }
            let Some(best) = best.filter(|best| is_good(best)) else {
                if self.place_at(place.slab, range.start).is_none() {
                    // Nothing used the slab, and it has ended with its device.
                    return Ok(());
                }
                scrubbed.lost_bytes += piece;
                if checksums.is_some() {
                    self.mismatches.lose();
                }
                continue;
            };
            for (slot, data) in &read {
                if data.as_ref() != Some(best) {
                    let good = Payload::from(Buffer::copy_of(best));
                    if let Err(error) = self.write_copy(*slot, range.start + start, good).await {
                        if data.as_ref().is_some_and(is_good) {
                            // Reads could return either content.
                            self.repair(&place.at(start), piece, slot.device, true);
                        }
                        devices.retain(|&device| device != slot.device);
                        problem.get_or_insert(error);
                        continue;
                    }
                    is_rewritten = true;
                    match data {
                        Some(data) if is_good(data) => scrubbed.differing_bytes += piece,
                        _ => {
                            scrubbed.repaired_bytes += piece;
                            if checksums.is_some() {
                                self.mismatches.repair();
                            }
                        }
                    }
                }
            }
            if checksums.as_ref().is_some_and(|one| one.get(number) == 0) {
                unsummed.push((start, best.clone()));
            }
        }
        let Some(checksums) = checksums.filter(|_| !unsummed.is_empty()) else { return Ok(()) };
        if is_rewritten {
            // A checkpoint that writes the checksums may have flushed before.
            self.stop_if_failed(self.flush_written().await)?;
        }
        for (start, block) in unsummed {
            let number = (start / PAGE as u64) as usize;
            if self.set_missing(&place.at(start), (&checksums, number), &block, &devices) {
                scrubbed.summed_bytes += piece;
            }
        }
        Ok(())
    }
}

/// Returns whether a page has its checksum, whatever its kind.
fn is_intact(page: &[u8]) -> bool {
    page[..4] == crate::format::checksum_of(page).to_le_bytes()
}
