//! What is known of the contents of volumes, snapshots and clones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use crate::{PoolVolume, VolumeId};

pub(super) const SECTOR: usize = 512;
/// Sectors of each volume.
pub(super) const SECTORS: u64 = 2048;

/// The contents that a sector of a volume may have.
#[derive(Clone, Debug)]
pub(super) struct Sector {
    /// What it may have after a power failure, from the oldest to what the last acknowledged write has. Each value has the
    /// number of its write.
    pub(super) values: Vec<(u64, u64)>,
    /// What a write has that was not answered.
    pub(super) writing: Option<u64>,
    /// What writes had that failed since then.
    pub(super) failed: Vec<u64>,
}

impl Sector {
    pub(super) fn of(value: u64) -> Self {
        Self { values: vec![(0, value)], writing: None, failed: Vec::new() }
    }

    pub(super) fn now(&self) -> u64 {
        self.values.last().expect("it has a value").1
    }

    pub(super) fn number(&self) -> u64 {
        self.values.last().expect("it has a value").0
    }

    pub(super) fn may_be_now(&self, value: u64) -> bool {
        value == self.now() || Some(value) == self.writing || self.failed.contains(&value)
    }

    pub(super) fn may_be_after_crash(&self, value: u64) -> bool {
        self.values.iter().any(|&(_, known)| known == value) || self.may_be_now(value)
    }
}

/// What is known of a volume.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) id: VolumeId,
    pub(super) sectors: Vec<Sector>,
    /// Ranges with a request under way.
    pub(super) busy: Vec<Range<u64>>,
    pub(super) store: Option<Arc<PoolVolume>>,
    /// It is being deleted or set back.
    pub(super) is_locked: bool,
    /// It may have this content after a power failure, because it was being set back to it.
    pub(super) set_back: Option<Rc<Vec<u64>>>,
}

impl Known {
    pub(super) fn new(id: VolumeId, content: &[u64]) -> Self {
        Self {
            id,
            sectors: content.iter().map(|&value| Sector::of(value)).collect(),
            busy: Vec::new(),
            store: None,
            is_locked: false,
            set_back: None,
        }
    }
}

/// A snapshot that is being received.
#[derive(Clone)]
pub(super) struct Receiving {
    /// The volume that receives it.
    pub(super) volume: VolumeId,
    /// The snapshot that is sent, and the one that it is compared with.
    pub(super) source: VolumeId,
    pub(super) since: Option<VolumeId>,
    pub(super) content: Rc<Vec<u64>>,
    /// A client works on it.
    pub(super) is_busy: bool,
}

/// A range of a volume that gets what another one has.
#[derive(Clone)]
pub(super) struct Sharing {
    pub(super) source: String,
    /// The first sector of the source.
    pub(super) first: u64,
    pub(super) target: String,
    pub(super) place: Range<u64>,
}

/// What a snapshot may have, until it is complete.
pub(super) type Allowed = Vec<Vec<u64>>;

#[derive(Clone, Default)]
pub(super) struct Model {
    pub(super) volumes: BTreeMap<String, Known>,
    pub(super) snapshots: BTreeMap<String, (VolumeId, Rc<Vec<u64>>)>,
    /// Snapshots that were not answered: volume and content.
    pub(super) beginning: BTreeMap<String, (String, Allowed)>,
    /// Clones that were not answered.
    pub(super) cloning: BTreeMap<String, Rc<Vec<u64>>>,
    pub(super) receiving: BTreeMap<String, Receiving>,
    /// Objects whose deletion was not answered.
    pub(super) deleting: Vec<String>,
    /// By the number of the request.
    pub(super) sharing: BTreeMap<u64, Sharing>,
    /// The last value that was written, and the last number of a name.
    pub(super) stamp: u64,
    pub(super) name: u64,
}

impl Model {
    /// Notes that a write has begun. What gets the contents of its volume now may have it or not.
    pub(super) fn note_write(&mut self, name: &str, range: &Range<u64>, value: u64) {
        self.may_have(name, range, value);
        for lba in range.clone() {
            self.pass_on(name, lba, value);
        }
    }

    /// Notes that a sector may get a value, and all sectors that get what this one has.
    pub(super) fn may_get(&mut self, name: &str, lba: u64, value: u64) {
        let Some(known) = self.volumes.get_mut(name) else { return };
        let candidates = &mut known.sectors[lba as usize].failed;
        if candidates.contains(&value) {
            return;
        }
        candidates.push(value);
        self.may_have(name, &(lba..lba + 1), value);
        self.pass_on(name, lba, value);
    }

    fn pass_on(&mut self, name: &str, lba: u64, value: u64) {
        let getting =
            self.sharing.values().filter_map(|Sharing { source, first, target, place }| {
                let at = lba.checked_sub(*first).filter(|at| *at < place.end - place.start)?;
                (source == name).then(|| (target.clone(), place.start + at))
            });
        for (target, lba) in getting.collect::<Vec<_>>() {
            self.may_get(&target, lba, value);
        }
    }

    /// A snapshot that is being created may have a value or not.
    fn may_have(&mut self, name: &str, range: &Range<u64>, value: u64) {
        for (volume, allowed) in self.beginning.values_mut() {
            if volume == name {
                let allowed = &mut allowed[range.start as usize..range.end as usize];
                allowed.iter_mut().for_each(|allowed| allowed.push(value));
            }
        }
    }

    pub(super) fn name(&mut self, kind: &str) -> String {
        self.name += 1;
        format!("{kind}{}", self.name)
    }
}

pub(super) type Shared = Rc<RefCell<Model>>;
