//! Snapshots of volumes in pools, and the schedules that create and delete them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sarsen_io::time;
use sarsen_pool::{Changes, VolumeId, VolumeInfo, VolumeKind};
use tracing::{error, info};

use super::{ChangeError, Engine};
use crate::config::VolumeConfig;
use crate::events::Occurrence;
use crate::model::{SnapshotName, SnapshotPeriod};
use crate::stores::{OpenPool, StoreError};

const DAY: u64 = 24 * 60 * 60;

/// The reason why an operation on snapshots failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    /// The object does not exist.
    #[error("{0}")]
    NotFound(String),
    /// The objects do not fit together.
    #[error("{0}")]
    Unfit(String),
    /// The pool refused it.
    #[error(transparent)]
    Pool(#[from] StoreError),
    /// The volume could not be closed and opened.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

impl Engine {
    /// Returns the pool of a volume, and the volume in the catalogue of the pool.
    pub(crate) fn volume_in_pool(
        &self,
        name: &str,
    ) -> Result<(Arc<OpenPool>, VolumeInfo), SnapshotError> {
        let desired = self.desired();
        let config = desired.volumes.iter().find(|volume| volume.name == name);
        let config = config.ok_or_else(|| {
            SnapshotError::NotFound(format!(
                "volume {name} does not exist; see `sarsen volume list`"
            ))
        })?;
        let Some(pool) = config.pool.as_ref().filter(|_| config.snapshot.is_none()) else {
            let message = format!(
                "volume {name} has no snapshots: only volumes in pools have them (`sarsen volume create --pool`)"
            );
            return Err(SnapshotError::Unfit(message));
        };
        let open = self.pools.get(pool).ok_or_else(|| {
            let why = self.pools.failure(pool).unwrap_or_else(|| "it is not open yet".to_owned());
            StoreError::pool(pool, why)
        })?;
        let found = open.find_volume(&config.name, config.serial.as_deref()).ok_or_else(|| {
            StoreError::pool(pool, format!("it has no volume {name}; see `sarsen doctor`"))
        })?;
        Ok((open, found))
    }

    /// Returns the pool of a snapshot, and the snapshot.
    pub(crate) fn find_snapshot(
        &self,
        name: &SnapshotName,
    ) -> Result<(Arc<OpenPool>, VolumeInfo), SnapshotError> {
        let text = name.to_string();
        let of_pool = |open: Arc<OpenPool>| {
            let found =
                open.pool.find(|one| one.kind == VolumeKind::Snapshot && one.label.name == text)?;
            Some((open, found))
        };
        // The volume of a snapshot may have been deleted.
        let own = self.volume_in_pool(&name.volume).ok().and_then(|(open, _)| of_pool(open));
        own.or_else(|| self.pools.all().into_iter().find_map(of_pool)).ok_or_else(|| {
            SnapshotError::NotFound(format!(
                "there is no snapshot {name}; `sarsen snapshot list` shows them"
            ))
        })
    }

    /// Creates snapshots at one moment. Their volumes must be in one pool.
    pub(crate) async fn create_snapshots(
        &self,
        names: Vec<SnapshotName>,
        protect: bool,
    ) -> Result<(), SnapshotError> {
        let mut of: Vec<(VolumeId, SnapshotName)> = Vec::with_capacity(names.len());
        let mut pool: Option<Arc<OpenPool>> = None;
        for name in &names {
            let (open, found) = self.volume_in_pool(&name.volume)?;
            if pool.as_ref().is_some_and(|pool| !Arc::ptr_eq(pool, &open)) {
                let message = "snapshots of one moment are of volumes of one pool: create those of each pool separately";
                return Err(SnapshotError::Unfit(message.into()));
            }
            of.push((found.id, name.clone()));
            pool = Some(open);
        }
        let Some(pool) = pool else { return Ok(()) };
        pool.snapshot(of, protect).await?;
        Ok(())
    }

    /// Deletes a snapshot. Its space becomes free in the background.
    pub(crate) async fn delete_snapshot(&self, name: &SnapshotName) -> Result<(), SnapshotError> {
        let (pool, found) = self.find_snapshot(name)?;
        let object = format!("snapshot {name}");
        pool.operate_on(&object, move |pool| async move { pool.delete(found.id).await }).await?;
        info!(snapshot = %name, "the snapshot is deleted");
        Ok(())
    }

    /// Sets whether a snapshot is protected from deletion.
    pub(crate) async fn protect_snapshot(
        &self,
        name: &SnapshotName,
        protect: bool,
    ) -> Result<(), SnapshotError> {
        let (pool, found) = self.find_snapshot(name)?;
        pool.operate(move |pool| async move { pool.protect(found.id, protect).await }).await?;
        Ok(())
    }

    /// Returns a part of the differences between a snapshot and an older one of the same pool, or an empty volume. Also
    /// returns the size of the snapshot.
    pub(crate) async fn changes(
        &self,
        name: &SnapshotName,
        since: Option<&SnapshotName>,
        offset: u64,
    ) -> Result<(u64, Changes), SnapshotError> {
        let (pool, found) = self.find_snapshot(name)?;
        let older = since.map(|since| pool.find_snapshot(since)).transpose()?;
        let older = older.map(|older| older.id);
        let changes =
            pool.operate(move |pool| async move { pool.changes(older, found.id, offset).await });
        Ok((found.size, changes.await?))
    }

    /// Gives a volume the contents of one of its snapshots. The volume is closed meanwhile: its sessions have `grace` to log
    /// out; without `grace` the call is refused while it has sessions. Blocks the thread, which must not be a core.
    pub(crate) async fn roll_back(
        self: &Arc<Self>,
        name: &SnapshotName,
        grace: Option<Duration>,
    ) -> Result<(), SnapshotError> {
        let (pool, volume) = self.volume_in_pool(&name.volume)?;
        let snapshot = pool.find_snapshot(name)?;
        let wanted = self
            .desired()
            .volumes
            .iter()
            .find(|one| one.name == name.volume)
            .and_then(|one| one.size);
        if wanted.is_some_and(|wanted| wanted.get() != snapshot.size) {
            let message = format!(
                "volume {} has another size than its snapshot had: clone the snapshot with `sarsen volume clone` instead",
                name.volume
            );
            return Err(SnapshotError::Unfit(message));
        }
        let done = pool.prepare_roll_back(volume.id, snapshot.id);
        let reattached = self.reattach(&name.volume, grace).await;
        pool.forget_roll_back(volume.id);
        match done.await {
            Ok(rolled_back) => rolled_back?,
            // The volume was not opened.
            Err(_) => drop(reattached?),
        }
        info!(volume = name.volume, snapshot = %name, "the volume is rolled back");
        Ok(())
    }

    /// Creates the snapshots of schedules that are due, and deletes those that are too many.
    pub(crate) async fn run_snapshot_schedules(&self) {
        let desired = self.desired();
        for volume in &desired.volumes {
            if volume.snapshot_schedule.is_none() {
                continue;
            }
            if let Err(why) = self.run_schedule(volume, time::wall_clock()).await {
                error!(volume = volume.name, %why, "a scheduled snapshot was not created");
                let (volume, why) = (volume.name.clone(), why.to_string());
                self.front.access.events.tell(&Occurrence::ScheduledSnapshotFailed { volume, why });
            }
        }
    }

    async fn run_schedule(
        &self,
        config: &VolumeConfig,
        now: SystemTime,
    ) -> Result<(), SnapshotError> {
        let (pool, volume) = self.volume_in_pool(&config.name)?;
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        for &(period, count) in config.snapshot_schedule.iter().flat_map(|schedule| &schedule.kept)
        {
            let prefix = format!("{}-", period.word());
            let is_of_period = |one: &VolumeInfo| {
                one.label.name.split_once('@').is_some_and(|(_, own)| own.starts_with(&prefix))
            };
            let mut known = pool.snapshots_of(volume.id);
            known.retain(is_of_period);
            let begin = begin_of(period, seconds);
            if known.iter().all(|one| one.label.created < begin) {
                let at = humantime::format_rfc3339_seconds(now).to_string();
                // Without seconds and the time zone.
                let own = format!("{prefix}{}", at.get(..16).unwrap_or(&at));
                let name = SnapshotName { volume: config.name.clone(), snapshot: own };
                pool.snapshot(vec![(volume.id, name.clone())], false).await?;
                info!(snapshot = %name, "a scheduled snapshot is created");
            }
            let mut kept = pool.snapshots_of(volume.id);
            kept.retain(|one| is_of_period(one) && !one.is_protected);
            let too_many = kept.len().saturating_sub(count.into());
            for old in kept.into_iter().take(too_many) {
                pool.operate(move |pool| async move { pool.delete(old.id).await }).await?;
                info!(
                    snapshot = old.label.name,
                    "a scheduled snapshot is deleted, because newer ones exist"
                );
            }
        }
        Ok(())
    }
}

/// Returns the beginning of the period that contains a time, both in seconds since 1970 (UTC).
fn begin_of(period: SnapshotPeriod, seconds: u64) -> u64 {
    let day = seconds / DAY;
    match period {
        SnapshotPeriod::Hourly => seconds - seconds % 3600,
        SnapshotPeriod::Daily => day * DAY,
        // 1 January 1970 was a Thursday.
        SnapshotPeriod::Weekly => day.saturating_sub((day + 3) % 7) * DAY,
        SnapshotPeriod::Monthly => {
            let date = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds));
            let day_of_month =
                date.to_string().get(8..10).and_then(|text| text.parse::<u64>().ok());
            (day + 1).saturating_sub(day_of_month.unwrap_or(1)) * DAY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_begin_at_full_hours_midnights_mondays_and_first_days() {
        let seconds = |text: &str| {
            let time = humantime::parse_rfc3339(text).expect("a time");
            time.duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
        };
        let now = seconds("2026-11-26T20:13:59Z");
        for (period, begin) in [
            (SnapshotPeriod::Hourly, "2026-11-26T20:00:00Z"),
            (SnapshotPeriod::Daily, "2026-11-26T00:00:00Z"),
            (SnapshotPeriod::Weekly, "2026-11-23T00:00:00Z"),
            (SnapshotPeriod::Monthly, "2026-11-01T00:00:00Z"),
        ] {
            assert_eq!(begin_of(period, now), seconds(begin), "{period:?}");
            assert_eq!(begin_of(period, seconds(begin)), seconds(begin), "{period:?}");
        }
        assert_eq!(begin_of(SnapshotPeriod::Weekly, 0), 0);
    }
}
