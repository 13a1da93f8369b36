//! Data of a pool that no copy has any more, and data that was repaired, until a complete scrub says otherwise.
//!
//! A read that finds lost data, or a scrub, sets the problem. Only a complete scrub that finds nothing lost ends it: the blocks may
//! have been overwritten since then, or not. The state of the server remembers it over a restart.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sarsen_pool::Scrubbed;
use tracing::error;

use super::{OpenPool, PoolMemory, StoreError};
use crate::config::PoolConfig;

/// What is known of the losses of an open pool.
#[derive(Default)]
pub(super) struct Losses {
    /// The identifier of the pool, if one of its devices says it.
    pool: Option<[u8; 16]>,
    known: Mutex<Known>,
    is_writing: AtomicBool,
    /// The last attempt to remember a loss failed, and was reported.
    has_failed: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// Data was lost, and no complete scrub has found everything intact since.
    is_lost: bool,
    /// The state says so.
    is_remembered: bool,
    /// The damage to metadata with which a scrub ended, unless a later one was complete.
    damage: Option<String>,
    /// What had been counted when the last complete scrub began that found nothing of it.
    checked: Counts,
}

/// What a pool has counted since it was opened.
#[derive(Clone, Default)]
pub(super) struct Counts {
    lost: u64,
    /// By the numbers of devices.
    errors: BTreeMap<u8, u64>,
}

impl Losses {
    /// Returns what the state remembers of a pool. Blocks the thread.
    pub(super) fn remembered(
        config: &PoolConfig,
        memory: &PoolMemory,
        pool: Option<[u8; 16]>,
    ) -> Result<Self, StoreError> {
        let Some(identifier) = pool else { return Ok(Self::default()) };
        let is_lost = memory.has_lost(identifier);
        let is_lost = is_lost.map_err(|error| StoreError::pool(&config.name, error.to_string()))?;
        let known = Known { is_lost, is_remembered: is_lost, ..Known::default() };
        Ok(Self { pool, known: Mutex::new(known), ..Self::default() })
    }
}

impl OpenPool {
    /// Returns what the pool has counted, for [`Self::note_scrub`].
    pub(super) fn counted(&self) -> Counts {
        let devices = self.pool.devices().into_iter();
        Counts {
            lost: self.pool.checksum_errors().lost,
            errors: devices.map(|info| (info.number, info.checksum_errors)).collect(),
        }
    }

    /// Notes the result of a complete scrub. `before` had been counted when it began. What was lost in the meantime, and
    /// overwritten before the scrub came there, stays a problem until the next one.
    pub(super) async fn note_scrub(&self, before: Counts, scrubbed: &Scrubbed) {
        let now = self.counted();
        let is_intact = scrubbed.lost_bytes == 0 && now.lost == before.lost;
        {
            let mut known = self.losses.known.lock();
            known.is_lost = !is_intact;
            known.damage = None;
            if is_intact {
                known.checked.lost = before.lost;
                if now.errors == before.errors {
                    known.checked.errors = before.errors;
                }
            }
        }
        self.store_losses().await;
    }

    /// Notes that a scrub ended early, because metadata is damaged.
    pub(super) fn note_damage(&self, what: &str) {
        self.losses.known.lock().damage = Some(what.to_owned());
    }

    /// Returns the problem of damaged metadata, if a scrub has found any.
    pub(super) fn damage_problem(&self) -> Option<String> {
        let known = self.losses.known.lock();
        let (what, name) = (known.damage.as_ref()?, self.config().name);
        Some(format!(
            "has damaged metadata, of which no copy is intact: {what}. Reads and writes that need it fail. Copy what can be read \
             to another pool. `sarsen pool check` shows all damage when the pool is not served; a complete `sarsen pool scrub \
             {name}` ends this problem"
        ))
    }

    /// Begins to remember that data was lost, unless that was done. It waits for no disk.
    pub(super) fn remember_losses(self: &Arc<Self>) {
        let lost = self.pool.checksum_errors().lost;
        {
            let mut known = self.losses.known.lock();
            known.is_lost |= lost > known.checked.lost;
            if known.is_lost == known.is_remembered {
                return;
            }
        }
        let open = self.clone();
        drop(self.access.cores.begin(move || async move { open.store_losses().await }));
    }

    /// Makes the state remember whether data is lost.
    async fn store_losses(&self) {
        let losses = &self.losses;
        let Some(pool) = losses.pool else { return };
        if losses.is_writing.swap(true, Ordering::AcqRel) {
            // What this does not store is stored soon.
            return;
        }
        let is_lost = losses.known.lock().is_lost;
        let set = self.memory.set_lost(pool, is_lost).await;
        let had_failed = losses.has_failed.swap(set.is_err(), Ordering::AcqRel);
        match set {
            Ok(()) => losses.known.lock().is_remembered = is_lost,
            Err(error) if !had_failed => {
                let pool = self.config().name;
                error!(pool, %error, "the server cannot remember whether the pool has lost data");
            }
            Err(_) => {}
        }
        losses.is_writing.store(false, Ordering::Release);
    }

    /// Returns the problem of data that was given up with missing devices, if there is any.
    pub(super) fn lost_problem(&self, bytes: u64) -> Option<String> {
        let name = self.config().name;
        (bytes > 0).then(|| {
            format!(
                "has lost the data of devices without which it was recovered. Reads of it fail. `sarsen pool status {name} \
                 --reclaimable` shows what each volume has lost: write it again from a backup, or delete the volume and its \
                 snapshots. `sarsen pool scrub {name}` ends this message when nothing refers to lost data"
            )
        })
    }

    /// Returns the problem of data that did not have its checksum, if there was any.
    pub(super) fn checksum_problem(&self) -> Option<String> {
        let (is_lost, checked) = {
            let known = self.losses.known.lock();
            let lost = self.pool.checksum_errors().lost;
            (known.is_lost || lost > known.checked.lost, known.checked.errors.clone())
        };
        let reported = self.reported_devices().into_iter();
        let found = reported.filter_map(|one| {
            let info = one.info?;
            let before = checked.get(&info.number).copied().unwrap_or(0);
            let number = || format!("device {}", info.number);
            let name = one.path.map_or_else(number, |path| path.display().to_string());
            (info.checksum_errors > before).then_some(name)
        });
        let devices = found.collect::<Vec<_>>().join(", ");
        let name = self.config().name;
        if is_lost {
            let devices = if devices.is_empty() { "its devices" } else { &devices };
            return Some(format!(
                "has lost data: {devices} returned blocks that are damaged, and no other copy has them. Reads of these blocks \
                 fail until they are written again. Restore them from a backup, and replace the device. `sarsen pool scrub \
                 {name}` counts what is lost, and ends this problem when it finds nothing"
            ));
        }
        if devices.is_empty() {
            return None;
        }
        Some(format!(
            "repaired data: {devices} returned blocks without their checksum. Another copy had them, and they were written \
             again. Check the device, and replace it if that happens again. `sarsen pool scrub {name}` ends this problem when \
             it finds no more of them"
        ))
    }
}
