//! What the state has of each degraded pool: the number of the oldest checkpoint with which it may be opened. Devices that
//! were left out have older ones. Without this number, the server could open them alone, and serve old data. Of a pool
//! that has lost data, it has that as well.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sarsen_io::record::AtomicFile;
use sarsen_pool::DeviceState;
use tracing::error;

use super::OpenPool;
use crate::stores::StoreError;

/// Maximum length of a file.
const LENGTH_MAX: usize = 64;

/// A folder with one file for each pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolMemory {
    /// `None`: the server has no state.
    folder: Option<PathBuf>,
}

impl PoolMemory {
    /// Returns the memory in the folder of a state.
    pub(crate) fn within(state: Option<&Path>) -> Self {
        Self { folder: state.map(|state| state.join("pools")) }
    }

    fn file(&self, pool: [u8; 16]) -> Option<AtomicFile> {
        let name = format!("{:032x}", u128::from_be_bytes(pool));
        Some(AtomicFile::new(self.folder.as_ref()?.join(name)))
    }

    /// The file of a pool that has lost data.
    fn lost_file(&self, pool: [u8; 16]) -> Option<AtomicFile> {
        let name = format!("{:032x}.lost", u128::from_be_bytes(pool));
        Some(AtomicFile::new(self.folder.as_ref()?.join(name)))
    }

    /// Returns whether a pool has lost data, as far as that is known. Blocks the thread.
    pub(super) fn has_lost(&self, pool: [u8; 16]) -> io::Result<bool> {
        let Some(file) = self.lost_file(pool) else { return Ok(false) };
        Ok(file.read_now(LENGTH_MAX)?.is_some())
    }

    /// Remembers durably whether a pool has lost data.
    pub(super) async fn set_lost(&self, pool: [u8; 16], has_lost: bool) -> io::Result<()> {
        let Some(file) = self.lost_file(pool) else { return Ok(()) };
        let content =
            has_lost.then(|| b"a scrub that finds nothing lost deletes this file\n".to_vec());
        file.replace(content).wait().await
    }

    /// Returns the checkpoint that a pool must have at least. Blocks the thread.
    pub(super) fn checkpoint(&self, pool: [u8; 16]) -> io::Result<u64> {
        let Some(file) = self.file(pool) else { return Ok(0) };
        let Some(content) = file.read_now(LENGTH_MAX)? else { return Ok(0) };
        let number = str::from_utf8(&content).ok().and_then(|text| text.trim().parse().ok());
        let damaged = || {
            let problem = format!(
                "{}: the file is damaged; delete it only if all devices of the pool are there",
                file.path().display()
            );
            io::Error::new(io::ErrorKind::InvalidData, problem)
        };
        number.ok_or_else(damaged)
    }

    /// Remembers the checkpoint of a pool, durably, or forgets it.
    pub(super) async fn set(&self, pool: [u8; 16], checkpoint: Option<u64>) -> io::Result<()> {
        let Some(file) = self.file(pool) else { return Ok(()) };
        let content = checkpoint.map(|checkpoint| format!("{checkpoint}\n").into_bytes());
        file.replace(content).wait().await
    }
}

/// What a server has remembered of an open pool.
#[derive(Default)]
pub(super) struct Remembered {
    /// The devices that are left out, with the number of their absences.
    left_out: Mutex<BTreeMap<[u8; 16], u16>>,
    is_writing: AtomicBool,
    /// The last attempt failed, and was reported.
    has_failed: AtomicBool,
}

/// Devices that are left out, with the number of their absences, since a checkpoint of a pool.
struct Absences {
    pool: [u8; 16],
    checkpoint: u64,
    left_out: BTreeMap<[u8; 16], u16>,
}

impl OpenPool {
    /// Begins to remember the devices that are left out, unless that was done. It waits for no disk.
    pub(super) fn begin_to_remember_absences(self: &Arc<Self>) {
        if let Some(absences) = self.absences_to_remember() {
            let open = self.clone();
            drop(self.access.cores.begin(move || async move { open.remember(absences).await }));
        }
    }

    /// Remembers the devices that are left out, before anything is written that they lack. Blocks the thread, which must not be
    /// a core.
    pub(super) fn remember_absences(self: &Arc<Self>) -> Result<(), StoreError> {
        let Some(absences) = self.absences_to_remember() else { return Ok(()) };
        let open = self.clone();
        self.access.cores.run(move || async move {
            open.remember(absences).await;
            Ok(())
        })
    }

    /// Returns the devices that are left out, unless they are remembered, or are being remembered from now on.
    fn absences_to_remember(&self) -> Option<Absences> {
        let infos = self.pool.devices();
        let left_out = infos.iter().filter(|info| info.state != DeviceState::Online);
        let left_out: BTreeMap<_, _> =
            left_out.map(|info| (info.identifier, info.absences)).collect();
        if left_out.is_empty() || *self.remembered.left_out.lock() == left_out {
            return None;
        }
        // If a checkpoint is to name them first, it is tried again soon.
        let (pool, checkpoint) = self.pool.last_checkpoint()?;
        let is_writing = self.remembered.is_writing.swap(true, Ordering::AcqRel);
        (!is_writing).then_some(Absences { pool, checkpoint, left_out })
    }

    async fn remember(&self, absences: Absences) {
        let Absences { pool, checkpoint, left_out } = absences;
        let set = self.memory.set(pool, Some(checkpoint)).await;
        let remembered = &self.remembered;
        let had_failed = remembered.has_failed.swap(set.is_err(), Ordering::AcqRel);
        match set {
            Ok(()) => *remembered.left_out.lock() = left_out,
            Err(error) if !had_failed => {
                let pool = self.config().name;
                error!(pool, %error, "the server cannot remember which devices of the pool are left out");
            }
            Err(_) => {}
        }
        remembered.is_writing.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use sarsen_io::cores::{FileEngine, block_on};

    use super::*;

    #[test]
    fn it_has_the_last_checkpoint_until_it_forgets_the_pool() {
        let folder = tempfile::tempdir().expect("a folder");
        let memory = PoolMemory::within(Some(folder.path()));
        let set = |checkpoint| {
            let memory = memory.clone();
            block_on(FileEngine::Pool, async move { memory.set([7; 16], checkpoint).await })
                .expect("a core")
                .expect("written");
        };
        assert_eq!(memory.checkpoint([7; 16]).expect("read"), 0);
        set(Some(12));
        set(Some(u64::MAX));
        assert_eq!(memory.checkpoint([7; 16]).expect("read"), u64::MAX);
        assert_eq!(memory.checkpoint([8; 16]).expect("read"), 0, "another pool");
        let file = memory.file([7; 16]).expect("a file");
        std::fs::write(file.path(), "no number").expect("written");
        assert!(memory.checkpoint([7; 16]).is_err());
        set(None);
        set(None);
        assert_eq!(memory.checkpoint([7; 16]).expect("read"), 0);
        assert_eq!(PoolMemory::within(None).checkpoint([7; 16]).expect("read"), 0);
        for has_lost in [true, false] {
            let of = memory.clone();
            block_on(FileEngine::Pool, async move { of.set_lost([7; 16], has_lost).await })
                .expect("a core")
                .expect("written");
            assert_eq!(memory.has_lost([7; 16]).expect("read"), has_lost);
            assert!(!memory.has_lost([8; 16]).expect("read"), "another pool");
        }
    }
}
