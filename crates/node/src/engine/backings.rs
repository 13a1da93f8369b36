//! Regular checks of the backings of open volumes: whether they still exist, and how much space they use. The server
//! reports a failed check as a problem.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use sarsen_block::{Geometry, Io, Store};
use sarsen_io::threads;
use sarsen_scsi::LogicalUnit;
use sarsen_volume::{Aspect, Health, VolumeHealth};
use tracing::warn;

use super::volumes::{Backing, Volume};
use super::{Engine, Shown};
use crate::config::render_size;
use crate::model::render_rounded;
use crate::problem::{MissingObject, Problem};
use crate::schema::{FillProgress, VolumePaths};
use crate::stores::{BackingSpace, FileStore, OpenPool, RamStore, RemoteStore, VolumeFilling};

/// An open volume for reports. Does not keep the volume open.
#[derive(Clone)]
pub(super) struct ShownVolume {
    /// As of the last change.
    geometry: Geometry,
    health: Arc<Health>,
    file: Weak<FileStore>,
    memory: Weak<RamStore>,
    pool: Option<Weak<dyn Store>>,
    open_pool: Weak<OpenPool>,
    filling: Weak<VolumeFilling>,
    remote: Weak<RemoteStore>,
    unit: Weak<LogicalUnit>,
}

impl ShownVolume {
    pub(super) fn of(volume: &Volume) -> Self {
        let Backing { memory, file, pool, remote } = &volume.backing;
        let filling = pool.as_ref().and_then(|pool| pool.filling.as_ref());
        Self {
            geometry: volume.store.geometry(),
            health: volume.unit.volume().health().clone(),
            file: file.as_ref().map(Arc::downgrade).unwrap_or_default(),
            memory: memory.as_ref().map(Arc::downgrade).unwrap_or_default(),
            pool: pool.as_ref().map(|pool| Arc::downgrade(&pool.volume)),
            open_pool: pool.as_ref().map(|pool| Arc::downgrade(&pool.pool)).unwrap_or_default(),
            filling: filling.map(Arc::downgrade).unwrap_or_default(),
            remote: remote.as_ref().map(Arc::downgrade).unwrap_or_default(),
            unit: Arc::downgrade(&volume.unit),
        }
    }

    /// Returns its geometry. A logical unit of another server may have got another size.
    pub(super) fn geometry(&self) -> Geometry {
        self.remote.upgrade().map_or(self.geometry, |remote| remote.geometry())
    }

    fn usage(&self) -> Usage {
        let file = self.file.upgrade().map(|file| file.room());
        let pool = || self.pool.as_ref()?.upgrade().and_then(|volume| space_in_pool(&*volume));
        let room = file.or_else(|| self.memory.upgrade().map(|memory| memory.room()));
        let room = room.or_else(pool);
        Usage {
            size: self.geometry().byte_count(),
            allocated: room.map(|room| room.allocated),
            free: room.and_then(|room| room.free),
            filling: self.filling.upgrade().and_then(|filling| {
                let (image, done, all) = filling.progress()?;
                Some(FillProgress {
                    image: image.display().to_string(),
                    done_bytes: done,
                    image_bytes: all,
                })
            }),
        }
    }

    fn responds(&self) -> bool {
        self.unit.upgrade().is_none_or(|unit| unit.responds())
    }
}

/// Returns the space of a volume in its pool.
fn space_in_pool(volume: &dyn Store) -> Option<BackingSpace> {
    let Io::Ready(Ok(space)) = volume.space() else { return None };
    let shift = volume.geometry().block_size.shift();
    Some(BackingSpace {
        allocated: space.used_blocks << shift,
        free: Some(space.available_blocks << shift),
    })
}

/// The problem of a volume that does not respond.
const SILENCE: &str = "does not respond: its disk has not ended a command for some seconds; check the disk or the file \
                       server that it is on; the volume is served again when the disk responds";

/// The size of a volume and the space that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes that initiators see.
    pub(crate) size: u64,
    /// Bytes that are allocated to it, where known.
    pub(crate) allocated: Option<u64>,
    /// Bytes that it may still allocate, where known. Others on its file system may use the same free bytes.
    pub(crate) free: Option<u64>,
    /// Its filling from an image, until it is filled.
    pub(crate) filling: Option<FillProgress>,
}

/// The place from which volumes take space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SpaceSource {
    /// A file system, by its number.
    FileSystem(u64),
    /// A pool, by its name.
    Pool(String),
}

/// Space that a volume may still need.
#[derive(Clone, Debug)]
pub(super) struct SpaceReservation {
    source: SpaceSource,
    /// A file on the file system.
    path: PathBuf,
    /// Bytes that it has not allocated yet.
    outstanding: u64,
    /// Free bytes of the source.
    free: u64,
    /// The volume is being created or grown now.
    is_new: bool,
}

impl SpaceReservation {
    /// Returns the space that a volume in a file or a pool needs, perhaps with another size.
    pub(super) fn of(volume: &Volume, size: Option<u64>, is_new: bool) -> Option<Self> {
        let Backing { file, pool, .. } = &volume.backing;
        let size = size.unwrap_or_else(|| volume.size());
        match (file, pool) {
            (Some(file), _) => Self::of_file(file, size, is_new),
            (None, Some(pool)) => {
                Self::of_pool(&pool.pool.config().name, &*pool.volume, size, is_new)
            }
            (None, None) => None,
        }
    }

    fn of_pool(pool: &str, volume: &dyn Store, size: u64, is_new: bool) -> Option<Self> {
        let BackingSpace { allocated, free } = space_in_pool(volume)?;
        Some(Self {
            source: SpaceSource::Pool(pool.to_owned()),
            path: PathBuf::new(),
            outstanding: size.saturating_sub(allocated),
            free: free.filter(|_| !volume.characteristics().read_only)?,
            is_new,
        })
    }

    fn of_file(file: &FileStore, size: u64, is_new: bool) -> Option<Self> {
        let BackingSpace { allocated, free } = file.room();
        Some(Self {
            source: SpaceSource::FileSystem(file.identity().file_system),
            path: file.path().to_owned(),
            outstanding: size.saturating_sub(allocated),
            free: free.filter(|_| !file.characteristics().read_only)?,
            is_new,
        })
    }

    /// Returns the sentence for a source with less free space than these volumes may still need.
    fn overcommitment(&self) -> String {
        if let SpaceSource::Pool(pool) = &self.source {
            return format!(
                "the volumes of pool {pool} may still take {}, and {} are free there: when it is full, writes of new \
                 data fail. Delete snapshots or volumes before that, or use smaller volumes",
                render_rounded(self.outstanding),
                render_rounded(self.free)
            );
        }
        format!(
            "the volumes on the file system of {} may still take {}, and {} are free there: when it is full, their \
             writes fail. Make room there before that, or use smaller volumes",
            self.path.parent().unwrap_or(&self.path).display(),
            render_size(self.outstanding),
            render_size(self.free)
        )
    }
}

/// Returns a sentence for each file system and pool with less free space than its volumes may still need, if a new or
/// grown volume is among them.
pub(super) fn overcommitments(promises: impl Iterator<Item = SpaceReservation>) -> Vec<String> {
    let mut by_source: BTreeMap<SpaceSource, SpaceReservation> = BTreeMap::new();
    for promise in promises {
        let sum = by_source.entry(promise.source.clone());
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
    let overcommitted = by_source.values().filter(is_overcommitted);
    overcommitted.map(SpaceReservation::overcommitment).collect()
}

/// The checks in progress, by file system: a hanging check does not delay the others.
#[derive(Default)]
pub(crate) struct BackingChecks {
    under_way: HashMap<u64, JoinHandle<()>>,
}

impl BackingChecks {
    /// Starts checks of these files, except those whose last check has not ended.
    fn begin(&mut self, files: impl Iterator<Item = Arc<FileStore>>) {
        self.under_way.retain(|_, look| !look.is_finished());
        let mut due: HashMap<u64, Vec<Weak<FileStore>>> = HashMap::new();
        for file in files {
            let file_system = file.identity().file_system;
            if !self.under_way.contains_key(&file_system) {
                due.entry(file_system).or_default().push(Arc::downgrade(&file));
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
        let lacking = self.lacking.iter().chain(&*self.pools).cloned().chain(self.unwell());
        super::missing::problems(lacking, &self.problems)
    }
}

impl Engine {
    /// Starts checks of the backings of volumes, and reports the results so far.
    pub(crate) fn look_at_backings(&self, looks: &mut BackingChecks) {
        let (volumes, pools) = (self.shown().volumes, self.pools.open_pools());
        let files = volumes.values().filter_map(|volume| volume.file.upgrade());
        let devices = pools.iter().flat_map(|pool| pool.files());
        looks.begin(files.chain(devices));
    }

    /// Reports the health of pools to their volumes.
    pub(crate) fn report_pools(&self) {
        for volume in self.shown().volumes.values() {
            if let Some(pool) = volume.open_pool.upgrade() {
                volume.health.report(Aspect::Backing, pool.backing_health());
            }
        }
    }

    /// Begins to fill volumes from their images, or goes on with that.
    pub(crate) fn fill_volumes(&self) {
        for (name, volume) in &*self.shown().volumes {
            if let Some(filling) = volume.filling.upgrade() {
                filling.begin(name, &volume.health, &self.front.access.events);
            }
        }
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

    /// Returns a sentence for each file system and pool with less free space than its volumes may still need.
    pub(crate) fn overcommitments(&self) -> Vec<String> {
        let Shown { volumes, config, .. } = self.shown();
        let pool_of: HashMap<&str, &str> = config
            .volumes
            .iter()
            .filter_map(|volume| Some((volume.name.as_str(), volume.pool.as_deref()?)))
            .collect();
        overcommitments(volumes.iter().filter_map(|(name, volume)| {
            let size = volume.geometry().byte_count();
            match volume.file.upgrade() {
                Some(file) => SpaceReservation::of_file(&file, size, true),
                None => {
                    let pool = pool_of.get(name.as_str())?;
                    SpaceReservation::of_pool(pool, &*volume.pool.as_ref()?.upgrade()?, size, true)
                }
            }
        }))
    }

    /// Returns the paths of a remote volume that is open.
    pub(crate) fn volume_paths(&self, name: &str) -> Option<VolumePaths> {
        let remote = self.shown().volumes.get(name)?.remote.upgrade()?;
        Some(VolumePaths {
            volume: name.to_owned(),
            initiator_name: remote.initiator_name().map(ToOwned::to_owned),
            unit: remote.identifier(),
            paths: remote.paths(),
        })
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
        SpaceReservation {
            source: SpaceSource::FileSystem(file_system),
            path: "/srv/a.img".into(),
            outstanding,
            free: 100,
            is_new,
        }
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
