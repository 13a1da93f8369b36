//! Checksums of data: the CRC32C of each 4 KiB, in slabs of volumes that want them.
//!
//! A write calculates them, and a read compares. A block that has another one is read from another copy, and written again.
//! A page of checksums has one place, at the beginning of its slab, and each checkpoint overwrites the pages that have
//! changed. So after an interruption, a page may be torn, and the data of regions that were being overwritten may be newer than
//! its checksums. Their blocks have no checksum then, until the maintenance or a scrub calculates it again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use sarsen_block::{BlockError, Buffer, Data, Durability, Io, Lba, MediumProblem, Payload, Reply};
use zerocopy::{FromBytes as _, FromZeros as _};

use crate::PoolError;
use crate::checksums::{BlockChecksums, CachedPage, checksum_of};
use crate::copies::{Place, Slot};
use crate::devices::not_online;
use crate::error::{Blocked, Load};
use crate::format::{CHECKSUMS, ChecksumsPage, PAGE, PageHeader, PageKind, Sealed as _};
use crate::pages::Unsealed;
use crate::shape::{Shape, SlabKind};
use crate::shared::Shared;
use crate::space::{SlabPart, Space};

/// log2 of the bytes that have one checksum.
const BLOCK_SHIFT: u32 = PAGE.ilog2();
/// Returns the whole blocks around bytes of a slab, and the number of their bytes before and in all.
fn blocks_around(place: Place, length: u64) -> (Place, usize, u64) {
    let before = place.offset % PAGE as u64;
    let whole = Place { offset: place.offset - before, ..place };
    (whole, before as usize, (before + length).next_multiple_of(PAGE as u64))
}

/// Returns the numbers of the blocks of a slab that bytes are in.
const fn blocks_of(offset: u64, length: u64) -> Range<u64> {
    offset >> BLOCK_SHIFT..(offset + length).div_ceil(1 << BLOCK_SHIFT)
}

impl Space {
    /// Returns the place of a page of checksums, if the slab has it.
    pub(crate) fn checksums_place(&self, number: u32, page: u32) -> Option<Place> {
        let slab = self.slab(number)?;
        let offset = self.shape.checksums_offset(slab.kind()) + u64::from(page) * PAGE as u64;
        let has_page = page < self.shape.checksum_pages(slab.kind());
        has_page.then(|| self.place_in(number, slab, offset))
    }

    /// Returns the checksums of whole blocks.
    fn block_checksums(&self, place: &Place, length: u64) -> Result<BlockChecksums, Blocked> {
        let blocks = blocks_of(place.offset, length);
        let page_of = |block: u64| (block / CHECKSUMS as u64) as u32;
        let numbers = page_of(blocks.start)..page_of(blocks.end - 1) + 1;
        let mut pages = Vec::with_capacity(numbers.len());
        let mut missing = Vec::new();
        for number in numbers {
            match self.checksums.pages.get(&(place.slab, number)) {
                Some(page) => pages.push(page.clone()),
                None => missing.push(Load::Checksums(place.slab, number)),
            }
        }
        if !missing.is_empty() {
            return Err(Blocked::Missing(missing));
        }
        Ok(BlockChecksums { pages, first: (blocks.start % CHECKSUMS as u64) as usize })
    }

    /// Returns the bytes of a slab that have its checksums, if it has any.
    pub(crate) fn checksums_range(&self, number: u32) -> Option<Range<u64>> {
        let kind = self.slab(number)?.kind();
        let start = self.shape.checksums_offset(kind);
        let pages = self.shape.checksum_pages(kind);
        (pages > 0).then(|| start..start + u64::from(pages) * PAGE as u64)
    }

    pub(crate) fn has_checksums(&self, slab: u32, page: u32) -> bool {
        self.checksums.pages.contains_key(&(slab, page))
    }

    /// Adds a page of checksums that was read. `None`: it was never written, or is torn.
    pub(crate) fn add_checksums(&mut self, slab: u32, page: u32, read: Option<&ChecksumsPage>) {
        let checksum = |number: usize| read.map_or(0, |read| read.checksums[number].get());
        let checksums = (0..CHECKSUMS).map(|number| AtomicU32::new(checksum(number))).collect();
        let changed = self.checksums.changed.clone();
        let cached = CachedPage { checksums, is_changed: AtomicBool::new(false), changed };
        if self.checksums_place(slab, page).is_some() {
            self.checksums.pages.insert((slab, page), Arc::new(cached));
        }
    }

    /// Notes that data of regions of a slab may be newer than its checksums.
    pub(crate) fn doubt_checksums(&mut self, slab: u32, regions: u64) {
        let has_checksums = |slab: &SlabPart| slab.kind() == SlabKind::Checked && !slab.is_lost();
        if self.slab(slab).is_some_and(has_checksums) {
            *self.checksums.doubted.entry(slab).or_default() |= regions;
        }
    }

    /// Returns the pages of checksums that a checkpoint must write, each to its place.
    pub(crate) fn capture_checksums(&self, pool: u64, generation: u64) -> Vec<(Place, Unsealed)> {
        self.checksums.changed.store(0, Ordering::Relaxed);
        let changed = self.checksums.pages.iter();
        let changed = changed.filter(|(_, page)| page.is_changed.swap(false, Ordering::Relaxed));
        let write = |(&(slab, number), page): (&(u32, u32), &Arc<CachedPage>)| {
            let mut bytes = Box::new(ChecksumsPage::new_zeroed());
            bytes.header = PageHeader {
                kind: PageKind::Checksums as u8,
                pool: pool.into(),
                address: (u64::from(slab) << 32 | u64::from(number)).into(),
                generation: generation.into(),
                ..PageHeader::new_zeroed()
            };
            for (to, checksum) in bytes.checksums.iter_mut().zip(&page.checksums) {
                *to = checksum.load(Ordering::Relaxed).into();
            }
            Some((self.checksums_place(slab, number)?, Unsealed::Checksums(bytes)))
        };
        let mut writes: Vec<_> = changed.filter_map(write).collect();
        writes.sort_unstable_by_key(|(place, _)| (place.slab, place.offset));
        writes
    }
}

/// Returns the bytes of a slab in these regions, in order.
fn ranges_of(shape: &Shape, regions: u64) -> impl Iterator<Item = Range<u64>> + use<> {
    let shift = shape.region_shift();
    let head = shape.head(SlabKind::Checked);
    let regions = (0..64_u64).filter(move |region| regions >> region & 1 == 1);
    regions
        .map(move |region| (region << shift).max(head)..(region + 1) << shift)
        .filter(|range| !range.is_empty())
}

/// Returns a page of checksums that was read from a device, if it is intact and belongs there.
fn checksums_page(
    bytes: &[u8],
    pool: u64,
    slab: u32,
    number: u32,
) -> Result<ChecksumsPage, String> {
    let page = ChecksumsPage::read_from_bytes(bytes).map_err(|_| "a page is too short")?;
    let PageHeader { kind, pool: found, address, .. } = page.header;
    let is_own = kind == PageKind::Checksums as u8
        && found.get() == pool
        && address.get() == u64::from(slab) << 32 | u64::from(number);
    if is_own && page.is_intact() {
        Ok(page)
    } else {
        Err("it is torn, or was never written".into())
    }
}

fn mismatch() -> BlockError {
    let error = std::io::Error::new(
        std::io::ErrorKind::InvalidData,
        "the data does not have its checksum, and no other copy has it",
    );
    BlockError::Medium { lba: Lba(0), problem: MediumProblem::Read(error) }
}

impl Shared {
    /// Reads data of a slab. It is what was written.
    #[inline]
    pub(crate) fn read_place(self: &Arc<Self>, place: Place, length: u64) -> Reply<Data> {
        if !place.has_checksums || place.is_lost() {
            return self.read_unchecked(place, length);
        }
        let shared = self.clone();
        Io::pending(async move { shared.read_checked(place, length).await })
    }

    /// Writes data of a slab to all copies.
    #[inline]
    pub(crate) fn write_place(
        self: &Arc<Self>,
        place: Place,
        data: Payload,
        durability: Durability,
    ) -> Reply<()> {
        if !place.has_checksums {
            return self.write_unchecked(place, data, durability);
        }
        let shared = self.clone();
        Io::pending(async move { shared.write_checked(place, data, durability).await })
    }

    async fn read_checked(self: &Arc<Self>, place: Place, length: u64) -> Result<Data, BlockError> {
        let (whole, before, bytes) = blocks_around(place, length);
        let checksums = self.checksums(&whole, bytes).await?;
        let mut data = self.read_unchecked(whole, bytes).wait().await?.into_buffer();
        if !checksums.mismatches(&data).is_empty() {
            // A write may have changed it meanwhile.
            let blocks = blocks_of(whole.offset, bytes);
            let _locked = self.block_locks.lock(whole.slab, blocks).await;
            data = self.read_intact(whole, bytes, &checksums).await?;
        }
        if bytes == length {
            return Ok(data.into());
        }
        Ok(Buffer::copy_of(&data[before..before + length as usize]).into())
    }

    /// Reads blocks that nothing writes. Those that are not what was written are read from another copy.
    async fn read_intact(
        self: &Arc<Self>,
        whole: Place,
        length: u64,
        checksums: &BlockChecksums,
    ) -> Result<Buffer, BlockError> {
        let mut data = self.read_unchecked(whole, length).wait().await?.into_buffer();
        if self.mend_all(whole, 0, &mut data, checksums).await { Ok(data) } else { Err(mismatch()) }
    }

    /// Replaces blocks that were read, and are not what was written, by what another copy has, or the stale copies on these
    /// devices. Nothing writes them. Returns whether all of them are what was written now.
    pub(crate) async fn mend_all(
        self: &Arc<Self>,
        whole: Place,
        stale: u32,
        data: &mut [u8],
        checksums: &BlockChecksums,
    ) -> bool {
        let mut is_intact = true;
        for number in checksums.mismatches(data) {
            let at = number * PAGE;
            match self.mend(whole.at(at as u64), stale, checksums, number).await {
                Some(good) => data[at..at + PAGE].copy_from_slice(&good),
                None => is_intact = false,
            }
        }
        is_intact
    }

    /// Reads a block, which nothing writes, from each of its copies, and writes those again that are not what was written.
    /// Returns its data if one of them is.
    async fn mend(
        self: &Arc<Self>,
        place: Place,
        stale: u32,
        checksums: &BlockChecksums,
        number: usize,
    ) -> Option<Buffer> {
        let (mut good, mut bad): (Option<Buffer>, Vec<Slot>) = (None, Vec::new());
        let is_stale = |slot: &Slot| stale >> slot.device & 1 == 1;
        for slot in place.sources().chain(place.targets().filter(is_stale)) {
            if is_stale(&slot) && good.is_some() {
                break;
            }
            let read = self.devices.read(self.devices.at(slot, place.offset), PAGE as u64);
            let read = self.devices.wait(slot.device, read, &self.tasks).await;
            let Ok(block) = read.map(Data::into_buffer) else { continue };
            if checksums.allows(number, &block) {
                good.get_or_insert(block);
            } else if !is_stale(&slot) {
                self.mismatches.find(slot.device);
                bad.push(slot);
            }
        }
        let Some(block) = &good else {
            self.mismatches.lose();
            return None;
        };
        for slot in bad {
            let data = Payload::from(Buffer::copy_of(block));
            // If it cannot be written, the next read finds it again. The rest of the copy stays good.
            if self.write_copy(slot, place.offset, data).await.is_ok() {
                self.mismatches.repair();
            }
        }
        good
    }

    async fn write_checked(
        self: &Arc<Self>,
        place: Place,
        data: Payload,
        durability: Durability,
    ) -> Result<(), BlockError> {
        let (whole, before, bytes) = blocks_around(place, data.len() as u64);
        let blocks = blocks_of(whole.offset, bytes);
        let _locked = self.block_locks.lock(whole.slab, blocks).await;
        let checksums = self.checksums(&whole, bytes).await?;
        let data = if data.len() as u64 == bytes {
            data
        } else {
            // The first and the last block keep what is not written.
            let mut buffer = Buffer::zeroed(bytes as usize);
            let end = before + data.len();
            for (at, is_part) in
                [(0, before > 0), (bytes as usize - PAGE, !end.is_multiple_of(PAGE))]
            {
                if is_part {
                    let place = whole.at(at as u64);
                    let one = self.checksums(&place, PAGE as u64).await?;
                    let block = self.read_intact(place, PAGE as u64, &one).await?;
                    buffer[at..at + PAGE].copy_from_slice(&block);
                }
            }
            buffer[before..end].copy_from_slice(&data);
            buffer.into()
        };
        let new: Vec<u32> = data.chunks(PAGE).map(checksum_of).collect();
        let written = self.write_unchecked(whole, data, durability).wait().await;
        // After a failure, the blocks may have anything.
        let new = new.into_iter().map(|checksum| if written.is_ok() { checksum } else { 0 });
        let is_crowded = {
            let state = self.state.read();
            new.enumerate().for_each(|(number, checksum)| checksums.set(number, checksum));
            state.space.checksums.is_crowded()
        };
        if is_crowded {
            self.work.notify_one();
        }
        written
    }

    /// Removes the checksums of blocks, which have none until they are written.
    pub(crate) async fn clear_checksums(
        self: &Arc<Self>,
        place: Place,
        length: u64,
    ) -> Result<(), BlockError> {
        let checksums = self.checksums(&place, length).await?;
        let _state = self.state.read();
        (0..(length >> BLOCK_SHIFT) as usize).for_each(|number| checksums.set(number, 0));
        Ok(())
    }

    /// Returns the checksums of whole blocks.
    pub(crate) async fn checksums(
        self: &Arc<Self>,
        place: &Place,
        length: u64,
    ) -> Result<BlockChecksums, PoolError> {
        loop {
            let found = self.state.read().space.block_checksums(place, length);
            match found {
                Ok(checksums) => return Ok(checksums),
                Err(blocked) => self.resolve(blocked).await?,
            }
        }
    }

    /// Reads a page of checksums, unless it is in memory.
    pub(crate) async fn load_checksums(
        self: &Arc<Self>,
        slab: u32,
        page: u32,
    ) -> Result<(), PoolError> {
        // Another load of the same page could end after it was changed, written and removed from memory.
        let _loading = self.checksum_loads.lock(slab, page.into()..u64::from(page) + 1).await;
        let (pool, _period) = {
            let state = self.state.read();
            if state.space.has_checksums(slab, page) {
                return Ok(());
            }
            (state.pool, state.period.clone())
        };
        let parse = |bytes: &[u8]| checksums_page(bytes, pool, slab, page);
        let mut tried = None;
        let read = loop {
            let place = self.state.read().space.checksums_place(slab, page);
            let place = place.ok_or_else(|| PoolError::Damaged {
                what: format!("slab {slab} has no page {page} of checksums"),
            })?;
            if place.sources().next().is_none() {
                return Err(PoolError::Device { device: 0, source: not_online() });
            }
            match self.read_page(place, parse).await {
                Ok(read) => break Some(read),
                Err(PoolError::Damaged { .. }) => break None,
                // The device may have been left out meanwhile.
                Err(_) if tried != Some(place) => tried = Some(place),
                Err(error) => return Err(error),
            }
        };
        let mut state = self.state.write();
        state.space.add_checksums(slab, page, read.as_ref());
        state.evict_checksums(false);
        Ok(())
    }

    /// Removes the checksums of data that may be newer than they are, after an interruption.
    pub(crate) async fn clear_doubted_checksums(self: &Arc<Self>) -> Result<(), PoolError> {
        let doubted = self.state.read().space.checksums.doubted();
        for (slab, regions) in doubted {
            let shape = self.state.read().shape();
            for range in ranges_of(&shape, regions) {
                let Some(place) = self.place_at(slab, range.start) else { continue };
                let cleared = self.clear_checksums(place, range.end - range.start).await;
                cleared.map_err(|source| PoolError::Device { device: 0, source })?;
            }
        }
        Ok(())
    }

    /// Calculates the checksums of some data that has none after an interruption. Returns whether there was any.
    pub(crate) async fn tend_checksums(self: &Arc<Self>) -> Result<bool, PoolError> {
        let _copying = self.copying.take().await;
        let Some((slab, regions)) = self.state.read().space.checksums.doubted().first().copied()
        else {
            return Ok(false);
        };
        let shape = self.state.read().shape();
        for range in ranges_of(&shape, regions) {
            self.add_missing_checksums(slab, range).await?;
        }
        self.state.write().space.checksums.doubted.remove(&slab);
        Ok(true)
    }

    /// Calculates the checksums of blocks that nothing writes, that have none, and that are durable. Copies differ only in blocks
    /// that no volume has written: these get none.
    pub(crate) async fn sum(self: &Arc<Self>, place: Place, length: u64) -> Result<(), PoolError> {
        let checksums = self.checksums(&place, length).await?;
        let count = (length >> BLOCK_SHIFT) as usize;
        let missing: Vec<usize> = (0..count).filter(|&number| checksums.get(number) == 0).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let mut copies = Vec::new();
        for slot in place.sources() {
            let read = self.devices.read(self.devices.at(slot, place.offset), length);
            let read = self.devices.wait(slot.device, read, &self.tasks).await;
            // A scrub tries again.
            let Ok(data) = read else { return Ok(()) };
            copies.push((slot.device, data.into_buffer()));
        }
        let Some(((_, first), others)) = copies.split_first() else { return Ok(()) };
        let devices: Vec<u8> = copies.iter().map(|(device, _)| *device).collect();
        for number in missing {
            let bytes = number * PAGE..(number + 1) * PAGE;
            let block = &first[bytes.clone()];
            if others.iter().all(|(_, other)| other[bytes.clone()] == *block) {
                self.set_missing(
                    &place.at(bytes.start as u64),
                    (&checksums, number),
                    block,
                    &devices,
                );
            }
        }
        Ok(())
    }

    /// Sets the checksum of a block that has none. These devices have the block durably. If there are other copies, which may
    /// have something else where no volume has written, it gets none until they are complete: an interrupted checkpoint may
    /// leave the checksum there, and say nothing of what these copies lack. Returns whether it has one now.
    pub(crate) fn set_missing(
        &self,
        place: &Place,
        (checksums, number): (&BlockChecksums, usize),
        block: &[u8],
        devices: &[u8],
    ) -> bool {
        let state = self.state.read();
        let Some(slab) = state.space.slab(place.slab) else { return false };
        let has_block = |device: u8| devices.contains(&device) && state.space.is_written(device);
        let is_everywhere = slab.copies.iter().all(|(slot, _)| has_block(slot.device));
        if is_everywhere {
            checksums.set(number, checksum_of(block));
        }
        is_everywhere
    }
}
