//! Regions of slabs that have several copies: which ones are being overwritten, so that an interruption may leave their
//! copies different, and which ones a pass copies now.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;

use crate::copies::Place;
use crate::pages::AddressMap;
use crate::shape::Shape;

/// Maximum number of regions that may be overwritten at the same time. After an interruption, only these are copied.
pub(crate) const DIRTY_MAX: usize = 1024;

/// A region that may be overwritten. A request that overwrites it shares this until it ends.
pub(crate) struct Region {
    /// Bytes of all records that must be durable before it may be overwritten.
    recorded: u64,
    /// It was overwritten since the last checkpoint.
    is_touched: AtomicBool,
}

/// A pass through a slab: its stale copies are completed, or its copies are compared.
#[derive(Default)]
pub(crate) struct Pass {
    pub(crate) slab: u32,
    /// One bit for each device whose copy becomes complete. None when copies are compared.
    pub(crate) targets: u32,
    /// A copy lacks something again.
    pub(crate) is_spoiled: bool,
    /// Bytes of the slab that are not written now.
    window: Option<Range<u64>>,
    waiting: Vec<oneshot::Sender<()>>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Regions {
    dirty: AddressMap<(u32, u8), Arc<Region>>,
    /// Regions with data that is new since the last checkpoint, by slab.
    fresh: BTreeMap<u32, u64>,
    /// Regions that a checkpoint flushes now.
    settling: BTreeMap<u32, u64>,
    /// Bytes of copies that were completed since the last checkpoint, by device.
    completed: BTreeMap<u8, u64>,
    /// The same of the checkpoint that is written now.
    completing: BTreeMap<u8, u64>,
    pass: Option<Pass>,
    /// A copy is damaged, and no checkpoint says yet that it is stale.
    has_bad_copy: bool,
}

/// Returns the numbers of the bits that are set.
fn numbers(bits: u64) -> impl Iterator<Item = u8> {
    (0..64).filter(move |&number| bits >> number & 1 == 1)
}

impl Regions {
    /// Returns the regions of a place for a request that overwrites them, or `None` if they must be recorded first.
    pub(crate) fn hold(
        &self,
        shape: &Shape,
        place: &Place,
        length: u64,
        durable: u64,
    ) -> Option<Vec<Arc<Region>>> {
        let hold = |region| {
            let region = self.dirty.get(&(place.slab, region))?;
            region.is_touched.store(true, Ordering::Relaxed);
            (region.recorded <= durable).then(|| region.clone())
        };
        numbers(shape.regions_of(place.offset, place.offset + length)).map(hold).collect()
    }

    /// Returns the regions of a slab that must be recorded before they are overwritten.
    pub(crate) fn missing(&self, slab: u32, regions: u64) -> Vec<u8> {
        numbers(regions).filter(|&region| !self.dirty.contains_key(&(slab, region))).collect()
    }

    /// Adds a region whose record is the last one of `recorded` bytes.
    pub(crate) fn add(&mut self, slab: u32, region: u8, recorded: u64) {
        let region_state = Region { recorded, is_touched: AtomicBool::new(true) };
        self.dirty.insert((slab, region), Arc::new(region_state));
    }

    /// Returns whether a checkpoint should remove regions.
    pub(crate) fn is_crowded(&self) -> bool {
        self.dirty.len() >= DIRTY_MAX
    }

    /// Returns whether any region may be overwritten.
    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Notes data that is new in regions of a slab.
    pub(crate) fn add_fresh(&mut self, slab: u32, regions: u64) {
        *self.fresh.entry(slab).or_default() |= regions;
    }

    /// Returns the regions of each slab in which a device that fails now may lack something.
    pub(crate) fn unsettled(&self) -> BTreeMap<u32, u64> {
        let mut all = self.fresh.clone();
        for (&slab, regions) in &self.settling {
            *all.entry(slab).or_default() |= regions;
        }
        for &(slab, region) in self.dirty.keys() {
            *all.entry(slab).or_default() |= 1 << region;
        }
        all
    }

    /// Removes the regions that nothing overwrites, for a checkpoint that flushes what was written before. Those that were
    /// overwritten since the last one stay, if they are not too many: they will be overwritten again. Returns those
    /// that stay.
    pub(crate) fn settle(&mut self) -> Vec<(u32, u8)> {
        self.settling = self.unsettled();
        self.completing = std::mem::take(&mut self.completed);
        self.fresh.clear();
        let keep = self.dirty.len() < DIRTY_MAX / 2;
        self.dirty.retain(|_, region| {
            let was_touched = region.is_touched.swap(false, Ordering::Relaxed);
            Arc::strong_count(region) > 1 || keep && was_touched
        });
        self.dirty.keys().copied().collect()
    }

    /// Notes that a copy is complete.
    pub(crate) fn add_completed(&mut self, device: u8, bytes: u64) {
        *self.completed.entry(device).or_default() += bytes;
    }

    /// Returns the bytes of a device that would be copied again after an interruption.
    pub(crate) fn completed(&self, device: u8) -> u64 {
        let of = |bytes: &BTreeMap<u8, u64>| bytes.get(&device).copied().unwrap_or(0);
        of(&self.completed) + of(&self.completing)
    }

    pub(crate) fn has_completed(&self) -> bool {
        !self.completed.is_empty()
    }

    /// Notes that the checkpoint is complete.
    pub(crate) fn settled(&mut self) {
        self.settling.clear();
        self.completing.clear();
    }

    /// Notes that a copy is stale because it is damaged.
    pub(crate) fn add_bad_copy(&mut self) {
        self.has_bad_copy = true;
    }

    /// Returns whether there is a bad copy that was not returned before. Until a checkpoint says that it is stale, it may be the
    /// one that counts after an interruption.
    pub(crate) fn take_bad_copy(&mut self) -> bool {
        std::mem::take(&mut self.has_bad_copy)
    }

    /// Lets the next checkpoint remove all regions that nothing overwrites then.
    pub(crate) fn cool(&self) {
        self.dirty.values().for_each(|region| region.is_touched.store(false, Ordering::Relaxed));
    }

    /// Notes that a copy lacks something of a slab, or that the device of a copy is left out, whatever the slab.
    pub(crate) fn spoil(&mut self, slab: Option<u32>, device: u8) {
        if let Some(pass) = &mut self.pass {
            let is_meant = slab.is_none_or(|slab| slab == pass.slab);
            pass.is_spoiled |= is_meant && pass.targets >> device & 1 == 1;
        }
    }

    pub(crate) fn has_pass(&self, slab: u32) -> bool {
        self.pass.as_ref().is_some_and(|pass| pass.slab == slab)
    }

    /// Begins a pass. There is none.
    pub(crate) fn begin_pass(&mut self, slab: u32, targets: u32) {
        self.pass = Some(Pass { slab, targets, ..Pass::default() });
    }

    /// Returns whether the targets of the pass lack nothing of what it has copied.
    pub(crate) fn is_complete(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| !pass.is_spoiled)
    }

    /// Ends the pass, and its window.
    pub(crate) fn end_pass(&mut self) {
        self.pass = None;
    }

    /// Moves the window in which nothing is written. Writes that waited for it continue.
    pub(crate) fn set_window(&mut self, window: Option<Range<u64>>) {
        if let Some(pass) = &mut self.pass {
            pass.window = window;
            pass.waiting.clear();
        }
    }

    /// Returns whether a place must not be written now.
    #[inline]
    pub(crate) fn is_in_window(&self, place: &Place, length: u64) -> bool {
        let Some(Pass { slab, window: Some(window), .. }) = &self.pass else { return false };
        *slab == place.slab && place.offset < window.end && window.start < place.offset + length
    }

    /// Returns a receiver that ends when the window moves, if there is one.
    pub(crate) fn window_end(&mut self) -> Option<oneshot::Receiver<()>> {
        let pass = self.pass.as_mut().filter(|pass| pass.window.is_some())?;
        let (sender, ended) = oneshot::channel();
        pass.waiting.push(sender);
        Some(ended)
    }
}
