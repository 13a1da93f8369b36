//! Orphans: files in the state's folder of volumes, and volumes in pools, that belong to no volume. A server that was
//! killed during a change leaves them, or the administrator keeps the data of a deleted volume. The server lists them, and
//! deletes them one by one by name.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::file::{FileIdentity, lock_within};
use sarsen_pool::{VolumeId, VolumeInfo, VolumeKind};

use super::edit::records_name;
use crate::metadata;
use crate::model::{Object, Objects, Orphan, metadata_folder};
use crate::stores::pool::serial_of;
use crate::stores::{OpenPool, StoreError};

/// The unit of st_blocks (stat(2)).
const STAT_BLOCK: u64 = 512;
/// The suffix of a volume's folder of records, after the name of its file.
const STATE_SUFFIX: &str = ".state";

/// The reason why an orphan was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum OrphanError {
    /// The file does not exist, or belongs to a volume.
    #[error("orphan {0}: not found; `sarsen volume orphan list` shows the orphans")]
    NotFound(String),
    /// A program has it open.
    #[error("orphan {0}: in use; try again after the program that has it open has ended")]
    InUse(String),
    /// It is not the file that the volume had, or the volume was not open, so that this is not known.
    #[error(
        "{path}: this file and {state} stay, because the volume did not have this file open; delete them if nothing \
         needs them"
    )]
    OtherFile {
        /// The path of the volume.
        path: String,
        /// The folder of its records.
        state: String,
    },
    /// The folder of the records has other files, too, or it is a link.
    #[error(
        "{0}: this stays, because it is a link or has other files than records; delete it if nothing needs them"
    )]
    HasOtherFiles(String),
    /// It is a volume with snapshots.
    #[error("orphan {0}: it has snapshots; delete them first with `sarsen snapshot delete`")]
    HasSnapshots(String),
    /// The pool did not delete it.
    #[error(transparent)]
    Pool(StoreError),
    /// A call to the system failed.
    #[error("{path}: {source}")]
    System {
        /// The step that failed.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

fn system(path: &Path) -> impl FnOnce(io::Error) -> OrphanError {
    move |source| OrphanError::System { path: path.display().to_string(), source }
}

/// Returns the file of a volume, and the folder of its records.
pub(super) fn places(object: &Object) -> Option<(PathBuf, PathBuf)> {
    let Object::Volume(volume) = object else { return None };
    let path = volume.path.clone()?;
    let state = volume.state.clone().unwrap_or_else(|| metadata_folder(&path));
    Some((path, state))
}

/// Returns the files of volumes: a path may be written in many forms.
fn owned(objects: &Objects) -> HashSet<FileIdentity> {
    let mut owned = HashSet::new();
    for object in objects.values() {
        let Object::Volume(volume) = &**object else { continue };
        let (path, state) = match places(object) {
            Some((path, state)) => (Some(path), Some(state)),
            None => (None, volume.state.clone()),
        };
        owned.extend([path, state].iter().flatten().filter_map(|path| FileIdentity::of_path(path)));
    }
    owned
}

/// A volume in a pool that no object is, or a snapshot of a deleted volume.
pub(super) struct PoolOrphan {
    pub(super) orphan: Orphan,
    id: VolumeId,
    /// The folder of its records.
    pub(super) records: Option<PathBuf>,
    /// Number of snapshots, which are found by the volume.
    snapshots: usize,
}

/// Returns the orphans in a pool. `folder` has the records.
pub(super) fn in_pool(pool: &OpenPool, folder: &Path, objects: &Objects) -> Vec<PoolOrphan> {
    let name = pool.config().name;
    let of_pool = objects.values().filter_map(|object| match &**object {
        Object::Volume(volume) if volume.pool.as_ref() == Some(&name) => {
            Some((volume.name.as_str(), volume.serial.as_deref()))
        }
        _ => None,
    });
    let owned = pool.find_volumes(of_pool);
    let all = pool.pool.volumes();
    let ids: HashSet<VolumeId> = all.iter().map(|one| one.id).collect();
    let mut snapshots: HashMap<VolumeId, usize> = HashMap::new();
    for origin in
        all.iter().filter(|one| one.kind == VolumeKind::Snapshot).filter_map(|one| one.origin)
    {
        *snapshots.entry(origin).or_default() += 1;
    }
    let is_orphan = |one: &&VolumeInfo| match one.kind {
        VolumeKind::Volume => !owned.contains_key(&one.id),
        VolumeKind::Snapshot => one.origin.is_none_or(|origin| !ids.contains(&origin)),
    };
    let orphan = |one: &VolumeInfo| {
        let serial = serial_of(&one.label.identifier).filter(|_| one.kind == VolumeKind::Volume);
        let records = serial.and_then(|serial| records_name(&serial));
        let records = records.map(|name| folder.join(name)).filter(|path| path.is_dir());
        PoolOrphan {
            orphan: Orphan {
                name: format!("{name}/{}", one.label.name),
                path: format!("pool {name}"),
                size_bytes: one.size,
                allocated_bytes: one.referenced_bytes,
                has_state: records.is_some(),
            },
            id: one.id,
            records,
            snapshots: snapshots.get(&one.id).copied().unwrap_or(0),
        }
    };
    let mut found: Vec<PoolOrphan> = all.iter().filter(is_orphan).map(orphan).collect();
    let mut names: HashMap<String, usize> = HashMap::new();
    found.iter().for_each(|one| *names.entry(one.orphan.name.clone()).or_default() += 1);
    for PoolOrphan { orphan, id, .. } in &mut found {
        if names.get(&orphan.name).is_some_and(|count| *count > 1) {
            orphan.name += &format!("#{}", id.0);
        }
    }
    found
}

/// Deletes one of them, and its records.
pub(super) async fn remove_in_pool(
    pool: &Arc<OpenPool>,
    volume: &str,
    folder: &Path,
    objects: &Objects,
) -> Result<Orphan, OrphanError> {
    let name = format!("{}/{volume}", pool.config().name);
    let found = in_pool(pool, folder, objects).into_iter().find(|one| one.orphan.name == name);
    let Some(PoolOrphan { orphan, id, records, snapshots }) = found else {
        return Err(OrphanError::NotFound(name));
    };
    if snapshots > 0 {
        return Err(OrphanError::HasSnapshots(name));
    }
    let object = format!("orphan {name}");
    let deleted = pool.operate(&object, move |pool| async move { pool.delete(id).await }).await;
    deleted.map_err(OrphanError::Pool)?;
    if let Some(records) = records
        && !metadata::erase(&records, Duration::ZERO).map_err(system(&records))?
    {
        return Err(OrphanError::HasOtherFiles(records.display().to_string()));
    }
    Ok(orphan)
}

/// Returns the orphans in a folder, by name. An open file is not an orphan yet: a change in progress has created it, or
/// a deleted volume is still being closed.
pub(super) fn find(folder: &Path, objects: &Objects) -> Result<Vec<Orphan>, OrphanError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(system(folder))?,
    };
    let owned = owned(objects);
    let mut orphans = Vec::new();
    for entry in entries {
        let path = entry.map_err(system(folder))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        // A file that was deleted meanwhile is no orphan.
        let Ok(found) = fs::symlink_metadata(&path) else { continue };
        let is_state = found.is_dir() && name.ends_with(STATE_SUFFIX);
        let beside = name.strip_suffix(STATE_SUFFIX).map(|name| folder.join(name));
        let has_file = is_state && beside.is_some_and(|file| file.exists());
        if !(found.is_file() || is_state)
            || has_file
            || owned.contains(&FileIdentity::of(&found))
            || is_in_use(&path).unwrap_or(true)
        {
            continue;
        }
        orphans.push(Orphan {
            name: name.to_owned(),
            path: path.display().to_string(),
            size_bytes: if is_state { 0 } else { found.len() },
            allocated_bytes: found.blocks() * STAT_BLOCK,
            has_state: is_state || metadata_folder(&path).is_dir(),
        });
    }
    orphans.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(orphans)
}

/// Returns whether a program has the file open: servers lock their open files.
fn is_in_use(path: &Path) -> io::Result<bool> {
    Ok(!lock_within(&fs::File::open(path)?, true, Duration::ZERO)?)
}

/// Deletes one orphan.
pub(super) fn remove(folder: &Path, objects: &Objects, name: &str) -> Result<Orphan, OrphanError> {
    let mut orphans = find(folder, objects)?.into_iter();
    let orphan = orphans.find(|orphan| orphan.name == name);
    let orphan = orphan.ok_or_else(|| OrphanError::NotFound(name.to_owned()))?;
    let path = folder.join(name);
    let state = if path.is_dir() { path.clone() } else { metadata_folder(&path) };
    erase(&path, &state, Duration::ZERO, |_| true)?;
    Ok(orphan)
}

/// Deletes the file of a deleted volume, and its records, when no program has it open any more. The folder of the records
/// stays if it has other files. `is_its` tells whether a file at the path is the one that the volume had.
pub(super) fn erase(
    path: &Path,
    state: &Path,
    timeout: Duration,
    is_its: impl FnOnce(&fs::Metadata) -> bool,
) -> Result<(), OrphanError> {
    let in_use = || OrphanError::InUse(path.display().to_string());
    let is_missing = |error: &io::Error| error.kind() == ErrorKind::NotFound;
    match fs::symlink_metadata(path) {
        Err(error) if is_missing(&error) => {}
        found if found.as_ref().is_ok_and(fs::Metadata::is_dir) => {}
        found => {
            found.map_err(system(path))?;
            let file = fs::File::open(path).map_err(system(path))?;
            if !lock_within(&file, true, timeout).map_err(system(path))? {
                return Err(in_use());
            }
            if !is_its(&file.metadata().map_err(system(path))?) {
                let [path, state] = [path, state].map(|path| path.display().to_string());
                return Err(OrphanError::OtherFile { path, state });
            }
            fs::remove_file(path).map_err(system(path))?;
        }
    }
    if metadata::erase(state, timeout).map_err(system(state))? {
        Ok(())
    } else {
        Err(OrphanError::HasOtherFiles(state.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::document::Volume;

    #[test]
    fn only_files_without_volume_are_orphans_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| folder.path().join(name);
        for name in ["kept.img", "left.img", "open.img"] {
            fs::write(place(name), [7; 512]).expect("written");
            fs::create_dir(place(&format!("{name}.state"))).expect("made");
        }
        let foreign = place("left.img.state").join("key");
        fs::write(&foreign, "no record").expect("written");
        fs::create_dir(place("gone.img.state")).expect("made");
        let path = Some(place(".").join("kept.img"));
        let volume = Volume { name: "kept".into(), path, ..Volume::default() };
        let object = Object::Volume(volume.into());
        let objects = Objects::from([(object.key(), Arc::new(object))]);
        let open = fs::File::open(place("open.img")).expect("opened");
        assert!(lock_within(&open, true, Duration::ZERO).expect("locked"));
        let names = || -> Vec<String> {
            let found = find(folder.path(), &objects).expect("listed");
            found.into_iter().map(|orphan| orphan.name).collect()
        };
        assert_eq!(names(), ["gone.img.state", "left.img"]);
        for refused in ["kept.img", "open.img", "kept.img.state", "../left.img", "nothing"] {
            let removed = remove(folder.path(), &objects, refused);
            assert!(matches!(removed, Err(OrphanError::NotFound(_))), "{refused}");
        }
        let refused = remove(folder.path(), &objects, "left.img");
        assert!(matches!(refused, Err(OrphanError::HasOtherFiles(_))), "{refused:?}");
        assert_eq!(fs::read(&foreign).expect("it stays"), b"no record");
        fs::remove_file(&foreign).expect("removed");
        assert_eq!(names(), ["gone.img.state", "left.img.state"]);
        assert!(remove(folder.path(), &objects, "left.img.state").expect("removed").has_state);
        remove(folder.path(), &objects, "gone.img.state").expect("removed");
        let mut left: Vec<_> = fs::read_dir(folder.path())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .collect();
        left.sort();
        assert_eq!(left, ["kept.img", "kept.img.state", "open.img", "open.img.state"]);
    }
}
