//! The check of a pool: its maps, its catalogue and its reference counts, in all copies, and that its journal is whole. Its
//! devices must not be in use.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use sarsen_block::{Buffer, Store};

use crate::PoolError;
use crate::checkpoint::counts_page;
use crate::copies::{Place, Slot};
use crate::devices::{Devices, NOT_ONLINE};
use crate::format::{
    CATALOGUE_HEIGHT, FAN_OUT, FILLING, IS_SNAPSHOT, IS_VOLUME, PAGE, VERSION, VOLUMES, unpadded,
};
use crate::journal::Replayed;
use crate::opening::{AcceptedLosses, Found, find_devices, read_journal, read_state};
use crate::pages::Page;
use crate::shape::{SlabKind, Unit};
use crate::space::SlabPart;
use crate::state::State;

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding(pub String);

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// What is inconsistent.
    pub findings: Vec<Finding>,
    /// Number of pages of maps, of the catalogue and of reference counts that are damaged on a device and intact on another
    /// one, by the number of the first. A scrub writes them again.
    pub damaged_copies: BTreeMap<u8, u64>,
    /// Devices that are left out: their numbers, and the reasons.
    pub left_out: Vec<(u8, String)>,
}

/// Checks the last checkpoint of a pool, and that its journal is whole. Nothing is written. Whether the journal fits the
/// checkpoint is not checked: opening the pool carries it out.
pub async fn check(stores: Vec<Arc<dyn Store>>) -> Result<Checked, PoolError> {
    let mut found = find_devices(stores).await?;
    let (mut state, mut left_out) = match read_state(&mut found, AcceptedLosses::default(), 0).await
    {
        Ok(state) => state,
        Err(PoolError::Damaged { what }) => {
            return Ok(Checked { findings: vec![Finding(what)], ..Checked::default() });
        }
        Err(error) => return Err(error),
    };
    let Found { devices, superblock, .. } = found;
    let mut findings = Vec::new();
    match read_journal(&devices, &superblock).await {
        Ok((Replayed { damaged, records, .. }, _, outdated)) => {
            let damaged = damaged.map(|frame| PoolError::DamagedJournal { frame }.to_string());
            findings.extend(damaged.map(Finding));
            for device in outdated {
                let reason = state.leave_out_outdated(device, &records);
                left_out.extend(reason.map(|reason| (device, reason)));
            }
        }
        Err(PoolError::Damaged { what }) => findings.push(Finding(what)),
        Err(error) => return Err(error),
    }
    let mut check = Check {
        devices: &devices,
        state: &state,
        findings,
        damaged_copies: BTreeMap::new(),
        pages: BTreeMap::new(),
        chunks: BTreeMap::new(),
    };
    let version = superblock.version.get();
    check.catalogue(superblock.catalogue.get(), superblock.next_volume.get(), version).await;
    check.counts().await;
    let Check { findings, damaged_copies, .. } = check;
    Ok(Checked { findings, damaged_copies, left_out })
}

struct Check<'a> {
    devices: &'a Devices,
    state: &'a State,
    findings: Vec<Finding>,
    damaged_copies: BTreeMap<u8, u64>,
    /// References to pages, and their levels, by address.
    pages: BTreeMap<u64, (u16, u8)>,
    /// References to chunks, by address.
    chunks: BTreeMap<u64, u16>,
}

impl Check<'_> {
    fn find(&mut self, what: impl Into<String>) {
        self.findings.push(Finding(what.into()));
    }

    /// Reads a page from each of its complete copies. Returns the first one that `parse` accepts, if no other one differs.
    async fn read<T>(
        &mut self,
        place: Place,
        parse: impl Fn(&[u8]) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut intact: Option<(Slot, Buffer, T)> = None;
        let mut damaged = Vec::new();
        for slot in place.sources() {
            let read = self.devices.read_metadata(self.devices.at(slot, place.offset), PAGE).await;
            let parsed = match read {
                Ok(bytes) => parse(&bytes).map(|page| (slot, bytes, page)),
                Err(PoolError::Device { source, .. }) => Err(source.to_string()),
                Err(error) => Err(error.to_string()),
            };
            match (parsed, &intact) {
                (Ok((_, bytes, _)), Some((first, other, _))) if bytes[..] != other[..] => {
                    let (one, other) = (first.device, slot.device);
                    return Err(format!(
                        "its copies on devices {one} and {other} are intact, and differ"
                    ));
                }
                (Ok(_), Some(_)) => {}
                (Ok(found), None) => intact = Some(found),
                (Err(what), _) => damaged.push((slot.device, what)),
            }
        }
        if let Some((_, _, page)) = intact {
            for (device, _) in damaged {
                *self.damaged_copies.entry(device).or_default() += 1;
            }
            return Ok(page);
        }
        let first = damaged.into_iter().next();
        Err(first
            .map_or(NOT_ONLINE.to_owned(), |(device, what)| format!("on device {device}: {what}")))
    }

    /// Reads a page of a tree. Returns it the first time, unless it is damaged.
    async fn page(&mut self, address: u64, level: u8) -> Option<Page> {
        let (references, known) = self.pages.entry(address).or_insert((0, level));
        *references = references.saturating_add(1);
        if *references > 1 {
            if *known != level {
                self.find(format!("page {address:#x} is at two levels of trees"));
            }
            return None;
        }
        let Some(place) = self.state.space.place(SlabKind::Pages, Unit::of_page(address)) else {
            self.find(format!("page {address:#x} is in no slab of pages"));
            return None;
        };
        let pool = self.state.pool;
        match self.read(place, |bytes| Page::parse(bytes, pool, address)).await {
            Ok(page) if page.header().level != level => {
                self.find(format!(
                    "page {address:#x} has another level than its place in its tree"
                ));
                None
            }
            Ok(page) if page.header().generation.get() >= self.state.generation => {
                self.find(format!("page {address:#x} is newer than the checkpoint"));
                None
            }
            Ok(page) => Some(page),
            Err(what) => {
                self.find(format!("page {address:#x}: {what}"));
                None
            }
        }
    }

    async fn catalogue(&mut self, root: u64, next_volume: u32, version: u32) {
        let mut rows = Vec::new();
        let mut waiting = vec![(root, CATALOGUE_HEIGHT - 1)];
        while let Some((address, level)) = waiting.pop() {
            if address == 0 {
                continue;
            }
            match self.page(address, level).await {
                Some(Page::Volumes(page)) => {
                    rows.extend(
                        (0..VOLUMES).map(|at| page.rows[at]).filter(|row| row.id.get() != 0),
                    );
                }
                Some(page @ Page::Branch(_)) if level > 0 => {
                    waiting.extend(page.children().map(|child| (child, level - 1)));
                }
                Some(_) => self.find(format!("page {address:#x} does not belong in the catalogue")),
                None => {}
            }
        }
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for row in rows {
            let (id, name) = (row.id.get(), unpadded(&row.name));
            if id >= next_volume || !ids.insert(id) {
                self.find(format!("volume {id} ({name}) has an impossible number"));
            }
            let is_snapshot = row.kind == IS_SNAPSHOT && !name.is_empty();
            if is_snapshot && !names.insert((row.origin.get(), name.clone())) {
                self.find(format!("volume {} has two snapshots with the name {name}", row.origin));
            }
            if !matches!(row.kind, IS_VOLUME | IS_SNAPSHOT) {
                self.find(format!("volume {id} ({name}) has an unknown kind"));
            }
            if row.flags & FILLING != 0 && (row.kind != IS_VOLUME || version < VERSION) {
                self.find(format!(
                    "volume {id} ({name}) is being filled from an image, which its kind or the version of the format \
                     does not permit"
                ));
            }
            let is_live = row.flags & crate::format::DELETING == 0;
            let before = self.findings.len();
            let counted = self.map(row.root.get(), row.height).await;
            let (pages, chunks) = (u64::from(row.pages.get()), row.chunks.get());
            if let Some(counted) = counted.filter(|&counted| counted != (pages, chunks))
                && is_live
                && before == self.findings.len()
            {
                self.find(format!(
                    "the map of volume {id} ({name}) has {counted:?} pages and references to chunks, and its row says \
                     {:?}",
                    (pages, chunks)
                ));
            }
        }
    }

    /// Checks a map. Returns its pages and its references to chunks, if no page is one of another map, too.
    async fn map(&mut self, root: u64, height: u8) -> Option<(u64, u64)> {
        if root == 0 {
            return Some((0, 0));
        }
        let (mut pages, mut chunks, mut is_whole) = (0, 0, true);
        let mut waiting = vec![(root, height.saturating_sub(1))];
        while let Some((address, level)) = waiting.pop() {
            pages += 1;
            match self.page(address, level).await {
                Some(Page::Leaf(leaf)) => {
                    let mut bases = BTreeSet::new();
                    for index in 0..FAN_OUT {
                        let mapping = leaf.mapping(index);
                        let slot = leaf.entries[index].get() >> 56;
                        let all = self.state.shape().all_pieces();
                        let is_normal = mapping.is_possible()
                            && mapping.pieces() & !all == 0
                            && (slot == 0) == (mapping.base == 0)
                            && (slot == 0 || bases.insert(slot));
                        if !is_normal {
                            self.find(format!("entry {index} of page {address:#x} is impossible"));
                        }
                        for chunk in mapping.chunks() {
                            chunks += 1;
                            let references = self.chunks.entry(chunk).or_default();
                            *references = references.saturating_add(1);
                        }
                    }
                    let used = leaf.bases.iter().filter(|base| base.get() != 0).count();
                    if used != bases.len() {
                        self.find(format!("page {address:#x} has a base without an entry"));
                    }
                }
                Some(page @ Page::Branch(_)) if level > 0 => {
                    waiting.extend(page.children().map(|child| (child, level - 1)));
                }
                Some(_) => self.find(format!("page {address:#x} does not belong in a map")),
                None => is_whole = false,
            }
        }
        is_whole.then_some((pages, chunks))
    }

    /// Compares the references that were found with the reference counts.
    async fn counts(&mut self) {
        for (kind, what) in [(SlabKind::Pages, "page"), (SlabKind::Data, "chunk")] {
            let mut found: BTreeMap<Unit, u16> = match kind {
                SlabKind::Pages => {
                    let pages = self.pages.iter();
                    pages.map(|(&address, &(count, _))| (Unit::of_page(address), count)).collect()
                }
                SlabKind::Data | SlabKind::Checked => {
                    let chunks = self.chunks.iter();
                    chunks.map(|(&address, &count)| (Unit::of_chunk(address), count)).collect()
                }
            };
            for slab in self.state.space.slabs_of(kind) {
                if self.state.space.slab(slab).is_some_and(SlabPart::is_lost) {
                    // It has no counts.
                    found.retain(|unit, _| unit.slab != slab);
                    continue;
                }
                let kind = self.state.space.slab(slab).map_or(kind, |slab| slab.kind());
                let mut counts = Vec::new();
                for (number, place) in self.state.space.counts_places(slab).into_iter().enumerate()
                {
                    let pool = self.state.pool;
                    let parse = |bytes: &[u8]| counts_page(bytes, pool, slab, number as u32);
                    match self.read(place, parse).await {
                        Ok(page) => counts.extend(page.counts.iter().map(|count| count.get())),
                        Err(what) => {
                            self.find(format!("the reference counts of slab {slab}: {what}"));
                        }
                    }
                }
                let units = self.state.shape().units(kind);
                for (index, count) in (0..units).zip(counts) {
                    let references = found.remove(&Unit { slab, index }).unwrap_or(0);
                    if references != count {
                        self.find(format!(
                            "{what} {index} of slab {slab} has {references} references, and its count is {count}"
                        ));
                    }
                    if references > 0 && index < self.state.shape().first_unit(kind) {
                        self.find(format!(
                            "{what} {index} of slab {slab} is among the reference counts"
                        ));
                    }
                }
            }
            for unit in found.into_keys() {
                self.find(format!(
                    "{what} {} of slab {}, which does not exist, is used",
                    unit.index, unit.slab
                ));
            }
        }
    }
}
