//! Snapshots of volumes in pools, and the schedules that create and delete them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use sarsen_io::time;
use sarsen_pool::{Changes, PartInfo, Received, VolumeId, VolumeInfo, VolumeKind};
use tracing::{error, info};

use super::Engine;
use crate::config::VolumeConfig;
use crate::events::Occurrence;
use crate::model::{SnapshotName, SnapshotPeriod};
use crate::stores::{OpenPool, PendingRollBack, StoreError};

const DAY: u64 = 24 * 60 * 60;
/// Maximum time that a schedule waits for its pool.
const SCHEDULE_LIMIT: Duration = Duration::from_secs(50);

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
                "volume {name} has no space of its own in a pool: only volumes in pools have snapshots (`sarsen volume create \
                 --pool`)"
            );
            return Err(SnapshotError::Unfit(message));
        };
        let open = self.pools.get(pool).ok_or_else(|| {
            let why =
                self.pools.reason_not_open(pool).unwrap_or_else(|| "it is not open yet".to_owned());
            StoreError::pool(pool, why)
        })?;
        let found = open.find_volume(&config.name, config.serial.as_deref()).ok_or_else(|| {
            StoreError::pool(pool, format!("it has no volume {name}; see `sarsen doctor`"))
        })?;
        Ok((open, found))
    }

    /// Returns the names of the volumes of this server in a pool.
    pub(crate) fn names_in_pool(&self, pool: &OpenPool) -> HashMap<VolumeId, String> {
        let (desired, name) = (self.desired(), pool.config().name);
        let own = desired
            .volumes
            .iter()
            .filter(|volume| volume.pool.as_ref() == Some(&name) && volume.snapshot.is_none());
        let own = own.map(|volume| (volume.name.as_str(), volume.serial.as_deref()));
        pool.find_volumes(own).into_iter().map(|(id, name)| (id, name.to_owned())).collect()
    }

    /// Returns the pool of a snapshot, and the snapshot. If the server has no volume of this name, it may be a snapshot of an
    /// orphan.
    pub(crate) fn find_snapshot(
        &self,
        name: &SnapshotName,
    ) -> Result<(Arc<OpenPool>, VolumeInfo), SnapshotError> {
        let not_found = || {
            let message = format!("there is no snapshot {name}; `sarsen snapshot list` shows them");
            SnapshotError::NotFound(message)
        };
        if self.desired().volumes.iter().any(|volume| volume.name == name.volume) {
            let (open, volume) = self.volume_in_pool(&name.volume)?;
            let found = open.find_snapshot(volume.id, &name.snapshot);
            return found.map(|found| (open, found)).ok_or_else(not_found);
        }
        let mut all = Vec::new();
        for open in self.pools.open_pools() {
            let own = self.names_in_pool(&open);
            let orphans = open.pool.volumes().into_iter().filter(|one| {
                one.kind == VolumeKind::Volume
                    && one.label.name == name.volume
                    && !own.contains_key(&one.id)
            });
            let found = orphans.filter_map(|orphan| open.find_snapshot(orphan.id, &name.snapshot));
            all.extend(found.map(|found| (open.clone(), found)));
        }
        if all.len() > 1 {
            let message = format!(
                "snapshot {name}: several orphans have it; serve the right one first, with `sarsen volume create \
                 --pool --serial`"
            );
            return Err(SnapshotError::Unfit(message));
        }
        all.pop().ok_or_else(not_found)
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
            if let Some(period) = SnapshotPeriod::of_name(&name.snapshot) {
                let message = format!(
                    "snapshot {name}: names that begin with {}- are those of schedules; choose another name",
                    period.word()
                );
                return Err(SnapshotError::Unfit(message));
            }
            let (open, found) = self.volume_in_pool(&name.volume)?;
            if pool.as_ref().is_some_and(|pool| !Arc::ptr_eq(pool, &open)) {
                let message = "snapshots: the volumes are in different pools; create the snapshots of each pool separately";
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
        pool.operate(&object, move |pool| async move { pool.delete(found.id).await }).await?;
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
        let object = format!("snapshot {name}");
        let protected =
            pool.operate(&object, move |pool| async move { pool.protect(found.id, protect).await });
        Ok(protected.await?)
    }

    /// Returns a part of the differences between a snapshot and an older one of the same pool, or an empty volume. Also
    /// returns the size of the snapshot.
    pub(crate) async fn changes(
        &self,
        name: &SnapshotName,
        since: Option<&SnapshotName>,
        offset: u64,
    ) -> Result<(u64, Changes), SnapshotError> {
        let (pool, found, older) = self.find_compared(name, since)?;
        let object = format!("snapshot {name}");
        let changes = pool.operate(&object, move |pool| async move {
            pool.changes(older, found.id, offset).await
        });
        Ok((found.size, changes.await?))
    }

    /// Returns the pool of a snapshot, the snapshot, and an older one with which it is compared.
    fn find_compared(
        &self,
        name: &SnapshotName,
        since: Option<&SnapshotName>,
    ) -> Result<(Arc<OpenPool>, VolumeInfo, Option<VolumeId>), SnapshotError> {
        let (pool, found) = self.find_snapshot(name)?;
        let older = since.map(|since| self.find_snapshot(since)).transpose()?;
        if older.as_ref().is_some_and(|(other, _)| !Arc::ptr_eq(other, &pool)) {
            let message = "the snapshots are in different pools; name two of the same volume";
            return Err(SnapshotError::Unfit(message.to_owned()));
        }
        check_complete(name, &found)?;
        if let (Some(since), Some((_, older))) = (since, &older) {
            check_complete(since, older)?;
        }
        Ok((pool, found, older.map(|(_, older)| older.id)))
    }

    /// Returns the part of the stream of a snapshot that begins at a byte.
    pub(crate) async fn send_snapshot(
        &self,
        name: &SnapshotName,
        since: Option<&SnapshotName>,
        offset: u64,
    ) -> Result<Vec<u8>, SnapshotError> {
        let (pool, found, older) = self.find_compared(name, since)?;
        let object = format!("snapshot {name}");
        let sent = pool
            .operate(&object, move |pool| async move { pool.send(older, found.id, offset).await });
        Ok(sent.await?)
    }

    /// Puts a part of a stream into a new snapshot of a volume.
    pub(crate) async fn receive_snapshot(
        &self,
        name: &SnapshotName,
        part: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<(PartInfo, Received), SnapshotError> {
        let (pool, volume) = self.volume_in_pool(&name.volume)?;
        let (object, own) = (format!("snapshot {name}"), name.snapshot.clone());
        let received = pool.operate(&object, move |pool| async move {
            let info = PartInfo::read(part.as_ref())?;
            Ok((info, pool.receive(volume.id, &own, part.as_ref()).await?))
        });
        let (info, received) = received.await?;
        if received.is_complete && !received.was_complete {
            info!(snapshot = %name, "the snapshot is received");
        }
        Ok((info, received))
    }

    /// Begins to give a volume the contents of one of its snapshots, which happens when the volume is closed and opened
    /// again.
    pub(crate) fn begin_roll_back(
        &self,
        name: &SnapshotName,
    ) -> Result<PendingRollBack, SnapshotError> {
        let (pool, volume) = self.volume_in_pool(&name.volume)?;
        let (_, snapshot) = self.find_snapshot(name)?;
        check_complete(name, &snapshot)?;
        if snapshot.size != volume.size {
            let message = format!(
                "volume {} has another size than its snapshot had: clone the snapshot with `sarsen volume clone` instead",
                name.volume
            );
            return Err(SnapshotError::Unfit(message));
        }
        Ok(pool.begin_roll_back(volume.id, snapshot.id)?)
    }

    /// Reports a roll-back that has happened.
    pub(crate) fn report_roll_back(&self, name: &SnapshotName) {
        let (volume, snapshot) = (name.volume.clone(), name.to_string());
        self.front.access.events.tell(&Occurrence::VolumeRolledBack { volume, snapshot });
    }

    /// Creates the snapshots of schedules that are due, and deletes those that are too many. A pool whose disk hangs does not
    /// delay the snapshots of others.
    pub(crate) async fn run_snapshot_schedules(&self) {
        let (desired, now) = (self.desired(), time::wall_clock());
        let scheduled = desired.volumes.iter().filter(|volume| volume.snapshot_schedule.is_some());
        let all = join_all(scheduled.map(|config| self.try_schedule(config, now))).await;
        let failed: BTreeMap<String, String> = all.into_iter().flatten().collect();
        let before = std::mem::replace(&mut *self.failed_schedules.lock(), failed.clone());
        // Each failure is reported once, until the schedule works again.
        for (volume, why) in failed.into_iter().filter(|(volume, _)| !before.contains_key(volume)) {
            error!(volume, why, "the snapshots of a schedule are not up to date");
            self.front.access.events.tell(&Occurrence::ScheduledSnapshotFailed { volume, why });
        }
    }

    /// Runs the schedule of a volume. Returns the name of the volume and the reason, if it failed.
    async fn try_schedule(
        &self,
        config: &VolumeConfig,
        now: SystemTime,
    ) -> Option<(String, String)> {
        let why = tokio::select! {
            ran = self.run_schedule(config, now) => ran.err()?.to_string(),
            () = time::sleep_until(time::now() + SCHEDULE_LIMIT) => {
                "the disk of its pool does not respond".to_owned()
            }
        };
        Some((config.name.clone(), why))
    }

    async fn run_schedule(
        &self,
        config: &VolumeConfig,
        now: SystemTime,
    ) -> Result<(), SnapshotError> {
        // A pool that is not open has a problem of its own.
        let is_open = config.pool.as_ref().is_some_and(|pool| self.pools.get(pool).is_some());
        if !is_open {
            return Ok(());
        }
        let (pool, volume) = self.volume_in_pool(&config.name)?;
        if volume.image_size.is_some() {
            // Its schedule begins when it is filled.
            return Ok(());
        }
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut result = Ok(());
        for &(period, count) in config.snapshot_schedule.iter().flat_map(|schedule| &schedule.kept)
        {
            let done =
                keep_snapshots(&pool, &volume, config, (period, count), (now, seconds)).await;
            // The other periods do not wait for this one.
            result = result.and(done);
        }
        result
    }
}

/// Refuses a snapshot that is being received.
fn check_complete(name: &SnapshotName, snapshot: &VolumeInfo) -> Result<(), SnapshotError> {
    if snapshot.received.is_none() {
        return Ok(());
    }
    let problem = format!("snapshot {name} is not complete: receive the rest of it first");
    Err(StoreError::PoolObjectInUse { problem }.into())
}

/// Creates the snapshot of a period, if it is due, and deletes the oldest ones.
async fn keep_snapshots(
    pool: &Arc<OpenPool>,
    volume: &VolumeInfo,
    config: &VolumeConfig,
    (period, count): (SnapshotPeriod, u16),
    (now, seconds): (SystemTime, u64),
) -> Result<(), SnapshotError> {
    let of_period = || {
        let mut known = pool.snapshots_of(volume.id);
        known.retain(|one| SnapshotPeriod::of_name(&one.label.name) == Some(period));
        known
    };
    let begin = begin_of(period, seconds);
    if of_period().iter().all(|one| one.label.created < begin) {
        let at = humantime::format_rfc3339_seconds(now).to_string();
        // Without seconds and the time zone.
        let own = format!("{}-{}", period.word(), at.get(..16).unwrap_or(&at));
        let name = SnapshotName { volume: config.name.clone(), snapshot: own };
        pool.snapshot(vec![(volume.id, name.clone())], false).await?;
        info!(snapshot = %name, "a scheduled snapshot is created");
    }
    let mut kept = of_period();
    kept.retain(|one| !one.is_protected);
    let too_many = kept.len().saturating_sub(count.into());
    for old in kept.into_iter().take(too_many) {
        let name = format!("{}@{}", config.name, old.label.name);
        let deleted = pool.operate(&name, move |pool| async move { pool.delete(old.id).await });
        match deleted.await {
            Ok(()) => {
                info!(snapshot = name, "a scheduled snapshot is deleted, because newer ones exist");
            }
            // A volume serves it. It is deleted when that ends.
            Err(error) if error.is_in_use() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
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
