//! The erasures of the files of deleted volumes.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::sync::Arc;
use std::time::Duration;

use sarsen_io::file::FileIdentity;

use super::{ChangeRefused, Plan, deleted, orphans};
use crate::engine::Erasure;
use crate::model::{Object, StoreKind};

/// Maximum time that another program may have a file that is to be erased.
const ERASING_LIMIT: Duration = Duration::from_secs(30);

impl Plan {
    /// Returns the erasures of the files of deleted volumes, by volume: regular files that no other volume uses. Blocks
    /// the thread.
    pub(super) fn erasures(&self) -> Result<BTreeMap<String, Erasure>, ChangeRefused> {
        let mut erasures = BTreeMap::new();
        for key in deleted(&self.steps) {
            let Some(object) = self.before.objects.get(&key) else { continue };
            let Object::Volume(volume) = &**object else { continue };
            let refuse = |why: &str| {
                let (volume, why) = (key.name.clone(), why.to_owned());
                Err(ChangeRefused::NotErasable { volume, why })
            };
            let Some((path, state)) =
                orphans::places(object).filter(|_| volume.store == StoreKind::File)
            else {
                return refuse("it has no file of its own to erase: delete it without --erase");
            };
            match std::fs::symlink_metadata(&path) {
                Ok(found) if !found.is_file() => {
                    return refuse(
                        "its blocks are on a device, or behind a link: erase it with `sarsen disk erase`, and delete \
                         it without --erase",
                    );
                }
                _ => {}
            }
            let is_shared = |other: &Arc<Object>| {
                orphans::places(other).is_some_and(|other| other.0 == path || other.1 == state)
            };
            if volume.is_read_only() || self.objects.values().any(is_shared) {
                return refuse(
                    "its file is read-only or another volume's, too: delete it without --erase",
                );
            }
            let erased = (path.clone(), state.clone());
            // If the server is killed before this, files that remain in its own folder are listed as orphans.
            let erase = Box::new(move |identity: Option<FileIdentity>| {
                let is_its = |file: &Metadata| identity == Some(FileIdentity::of(file));
                let erased = orphans::erase(&erased.0, &erased.1, ERASING_LIMIT, is_its);
                erased.map_err(|error| error.to_string())
            });
            erasures.insert(key.name.clone(), Erasure { path, state, erase });
        }
        Ok(erasures)
    }
}
