//! Regular checks of the backings of open volumes: whether they still exist, and how much space they use. The server
//! reports a failed check as a problem.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use sarsen_block::{Geometry, Store as _};
use sarsen_io::threads;
use sarsen_scsi::LogicalUnit;
use sarsen_volume::{Health, VolumeHealth};
use tracing::warn;

use super::volumes::{Backing, Volume};
use super::{Engine, Shown};
use crate::config::render_size;
use crate::problem::{MissingObject, Problem};
use crate::stores::{BackingSpace, FileStore, RamStore};

/// An open volume for reports. Does not keep the volume open.
#[derive(Clone)]
pub(super) struct ShownVolume {
    pub(super) geometry: Geometry,
    health: Arc<Health>,
    file: Weak<FileStore>,
    memory: Weak<RamStore>,
    unit: Weak<LogicalUnit>,
}

impl ShownVolume {
    pub(super) fn of(volume: &Volume) -> Self {
        let Backing { memory, file } = &volume.backing;
        Self {
            geometry: volume.store.geometry(),
            health: volume.unit.volume().health().clone(),
            file: file.as_ref().map(Arc::downgrade).unwrap_or_default(),
            memory: memory.as_ref().map(Arc::downgrade).unwrap_or_default(),
            unit: Arc::downgrade(&volume.unit),
        }
    }

    fn usage(&self) -> Usage {
        let file = self.file.upgrade().map(|file| file.room());
        let room = file.or_else(|| self.memory.upgrade().map(|memory| memory.room()));
        Usage {
            size: self.geometry.byte_count(),
            allocated: room.map(|room| room.allocated),
            free: room.and_then(|room| room.free),
        }
    }

    fn responds(&self) -> bool {
        self.unit.upgrade().is_none_or(|unit| unit.responds())
    }
}

/// The problem of a volume that does not respond.
const SILENCE: &str = "does not respond: its disk has not ended a command for some seconds; check the disk or the file \
                       server that it is on; the volume is served again when the disk responds";

/// The size of a volume and the space that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes that initiators see.
    pub(crate) size: u64,
    /// Bytes that are allocated to it, where known.
    pub(crate) allocated: Option<u64>,
    /// Bytes that it may still allocate, where known. Others on its file system may use the same free bytes.
    pub(crate) free: Option<u64>,
}

/// Space that a volume may still need on its file system.
#[derive(Clone, Debug)]
pub(super) struct SpaceReservation {
    file_system: u64,
    path: PathBuf,
    /// Bytes that it has not allocated yet.
    outstanding: u64,
    /// Free bytes of the file system.
    free: u64,
    /// The volume is being created or grown now.
    is_new: bool,
}

impl SpaceReservation {
    /// Returns the space that a volume in a file needs, perhaps with another size.
    pub(super) fn of(volume: &Volume, size: Option<u64>, is_new: bool) -> Option<Self> {
        let file = volume.backing.file.as_ref()?;
        Self::of_file(file, size.unwrap_or_else(|| file.geometry().byte_count()), is_new)
    }

    fn of_file(file: &FileStore, size: u64, is_new: bool) -> Option<Self> {
        let BackingSpace { allocated, free } = file.room();
        Some(Self {
            file_system: file.identity().file_system,
            path: file.path().to_owned(),
            outstanding: size.saturating_sub(allocated),
            free: free.filter(|_| !file.characteristics().read_only)?,
            is_new,
        })
    }

    /// Returns the sentence for a file system with less free space than these volumes may still need.
    fn overcommitment(&self) -> String {
        format!(
            "the volumes on the file system of {} may still take {}, and {} are free there: when it is full, their \
             writes fail. Make room there before that, or use smaller volumes",
            self.path.parent().unwrap_or(&self.path).display(),
            render_size(self.outstanding),
            render_size(self.free)
        )
    }
}

/// Returns a sentence for each file system with less free space than its volumes may still need, if a new or grown
/// volume is among them.
pub(super) fn overcommitments(promises: impl Iterator<Item = SpaceReservation>) -> Vec<String> {
    let mut by_file_system: BTreeMap<u64, SpaceReservation> = BTreeMap::new();
    for promise in promises {
        let sum = by_file_system.entry(promise.file_system);
        sum.and_modify(|sum| {
            sum.outstanding = sum.outstanding.saturating_add(promise.outstanding);
            sum.free = sum.free.min(promise.free);
            if promise.is_new && !sum.is_new {
                (sum.is_new, sum.path) = (true, promise.path.clone());
            }
        })
        .or_insert(promise);
    }
    let is_overcommitted = |sum: &&SpaceReservation| sum.is_new && sum.outstanding > sum.free;
    let overcommitted = by_file_system.values().filter(is_overcommitted);
    overcommitted.map(SpaceReservation::overcommitment).collect()
}

/// The checks in progress, by file system: a hanging check does not delay the others.
#[derive(Default)]
pub(crate) struct BackingChecks {
    under_way: HashMap<u64, JoinHandle<()>>,
}

impl BackingChecks {
    /// Starts checks of the files of all volumes, except those whose last check has not ended.
    fn begin(&mut self, volumes: impl Iterator<Item = ShownVolume>) {
        self.under_way.retain(|_, look| !look.is_finished());
        let mut due: HashMap<u64, Vec<Weak<FileStore>>> = HashMap::new();
        for ShownVolume { file, .. } in volumes {
            let Some(file_system) = file.upgrade().map(|file| file.identity().file_system) else {
                continue;
            };
            if !self.under_way.contains_key(&file_system) {
                due.entry(file_system).or_default().push(file);
            }
        }
        for (file_system, files) in due {
            let look = threads::spawn("backings", move || {
                for file in files.iter().filter_map(Weak::upgrade) {
                    file.inspect();
                }
            });
            match look {
                Ok(look) => drop(self.under_way.insert(file_system, look)),
                Err(error) => warn!(%error, "the files of volumes cannot be checked"),
            }
        }
    }
}

impl Shown {
    /// Returns the problems of open volumes, except of volumes that already have another problem.
    fn unwell(&self) -> impl Iterator<Item = (MissingObject, String)> + '_ {
        self.volumes.iter().filter_map(|(name, volume)| match volume.health.current() {
            VolumeHealth::Online if volume.responds() => None,
            VolumeHealth::Online => {
                Some((MissingObject::Volume(name.clone()), format!("volume {name} {SILENCE}")))
            }
            VolumeHealth::Degraded { reason } | VolumeHealth::OutOfService { reason } => {
                Some((MissingObject::Volume(name.clone()), format!("volume {name} {reason}")))
            }
        })
    }

    /// Returns all current problems, in order, one for each object.
    pub(super) fn problems_now(&self) -> Vec<Problem> {
        let lacking = self.lacking.iter().cloned().chain(self.unwell());
        super::missing::problems(lacking, &self.problems)
    }
}

impl Engine {
    /// Starts checks of the backings of volumes, and reports the results so far.
    pub(crate) fn look_at_backings(&self, looks: &mut BackingChecks) {
        let volumes = self.shown().volumes;
        looks.begin(volumes.values().cloned());
    }

    /// Returns the first volume that does not respond.
    pub(crate) fn silent_volume(&self) -> Option<String> {
        let volumes = self.shown().volumes;
        volumes.iter().find(|(_, volume)| !volume.responds()).map(|(name, _)| name.clone())
    }

    /// Reports the current problems of volumes.
    pub(crate) fn show_health(&self) {
        self.publish(|_| {});
    }

    /// Returns a sentence for each file system with less free space than its volumes may still need.
    pub(crate) fn overcommitments(&self) -> Vec<String> {
        let shown = self.shown().volumes;
        let files = shown.values().filter_map(|volume| volume.file.upgrade());
        overcommitments(files.filter_map(|file| {
            SpaceReservation::of_file(&file, file.geometry().byte_count(), true)
        }))
    }

    /// Returns the sizes of the open volumes and the space that they use, by name.
    pub(crate) fn volume_usage(&self) -> Vec<(String, Usage)> {
        let volumes = self.shown().volumes;
        volumes.iter().map(|(name, volume)| (name.clone(), volume.usage())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(file_system: u64, outstanding: u64, is_new: bool) -> SpaceReservation {
        SpaceReservation { file_system, path: "/srv/a.img".into(), outstanding, free: 100, is_new }
    }

    #[test]
    fn unallocated_sum_above_free_space_is_overcommitment() {
        let reported =
            |promises: &[SpaceReservation]| overcommitments(promises.iter().cloned()).len();
        assert_eq!(
            reported(&[reservation(1, 60, false), reservation(1, 40, true)]),
            0,
            "all of it fits"
        );
        assert_eq!(reported(&[reservation(1, 60, false), reservation(1, 41, true)]), 1);
        assert_eq!(
            reported(&[reservation(1, 60, false), reservation(2, 41, true)]),
            0,
            "elsewhere"
        );
        assert_eq!(
            reported(&[reservation(1, 160, false), reservation(2, 41, true)]),
            0,
            "told before"
        );
        assert_eq!(reported(&[reservation(1, u64::MAX, true), reservation(1, 2, true)]), 1);
    }
}
