//! Statistics of requests by volume: number, size, duration and failures. Each connection has a [`Meter`] for each
//! volume that it uses. On request, the meters are added up by volume and initiator. The totals of an initiator are
//! dropped with its last connection; the totals of a volume stay.

mod histogram;
mod meter;
mod recent;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

pub use self::histogram::{Histogram, exposed_bounds, upper_bound};
pub use self::meter::{Failure, Meter, OperationTotals, Totals};
pub use self::recent::RecentTotals;
use self::recent::{Moments, Recent};

/// Number of bucket bounds. The last bucket has none.
pub const BOUNDS: usize = histogram::BUCKETS - 1;

/// See the module.
#[derive(Default)]
pub struct Statistics {
    /// By name. Unused volumes have no entry.
    volumes: Mutex<BTreeMap<String, Volume>>,
    /// This lock is taken after the lock of `volumes`.
    moments: Mutex<Moments>,
}

#[derive(Default)]
struct Volume {
    /// Totals of disconnected initiators.
    past: Totals,
    /// The progress of dropped meters.
    past_progress: u64,
    initiators: BTreeMap<String, Initiator>,
    recent: Recent,
    /// The volume was removed. Its statistics are dropped with its last meter.
    is_removed: bool,
}

/// A connected initiator.
#[derive(Clone, Default)]
struct Initiator {
    /// Totals of its closed connections.
    past: Totals,
    meters: Vec<Arc<Meter>>,
}

impl Initiator {
    fn totals(&self) -> Totals {
        let mut totals = self.past.clone();
        self.meters.iter().for_each(|meter| meter.add_to(&mut totals));
        totals
    }
}

impl Volume {
    fn totals(&self) -> Totals {
        let mut totals = self.past.clone();
        for initiator in self.initiators.values() {
            totals.merge(&initiator.past);
            initiator.meters.iter().for_each(|meter| meter.add_to(&mut totals));
        }
        totals
    }

    /// Returns a number that changes whenever a command begins or ends.
    fn progress(&self) -> u64 {
        self.meters().fold(self.past_progress, |sum, meter| sum.wrapping_add(meter.progress()))
    }

    fn is_forgotten(&self) -> bool {
        self.is_removed && self.initiators.is_empty()
    }

    fn meters(&self) -> impl Iterator<Item = &Arc<Meter>> {
        self.initiators.values().flat_map(|initiator| &initiator.meters)
    }
}

/// The totals of a volume until now.
pub struct VolumeTotals {
    /// The name of the volume.
    pub volume: String,
    /// The totals of all initiators.
    pub all: Totals,
    /// The totals of connected initiators, by initiator.
    pub initiators: Vec<(String, Totals)>,
}

impl VolumeTotals {
    fn sum(volume: String, past: Totals, initiators: BTreeMap<String, Initiator>) -> Self {
        let mut all = past;
        let initiators = initiators.into_iter().map(|(name, initiator)| {
            let totals = initiator.totals();
            all.merge(&totals);
            (name, totals)
        });
        let initiators = initiators.collect();
        Self { volume, all, initiators }
    }
}

/// A connection's meter of a volume. When this is dropped, its counts are added to the totals.
pub struct Metered {
    statistics: Arc<Statistics>,
    volume: String,
    initiator: String,
    meter: Arc<Meter>,
}

impl std::ops::Deref for Metered {
    type Target = Meter;

    #[inline]
    fn deref(&self) -> &Meter {
        &self.meter
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        let mut volumes = self.statistics.volumes();
        let Some(volume) = volumes.get_mut(&self.volume) else { return };
        let Some(initiator) = volume.initiators.get_mut(&self.initiator) else { return };
        initiator.meters.retain(|meter| !Arc::ptr_eq(meter, &self.meter));
        volume.past_progress = volume.past_progress.wrapping_add(self.meter.progress());
        self.meter.add_to(&mut initiator.past);
        // Commands that were not answered will never be answered.
        initiator.past.in_flight = 0;
        if initiator.meters.is_empty()
            && let Some(gone) = volume.initiators.remove(&self.initiator)
        {
            volume.past.merge(&gone.past);
        }
        if volume.is_forgotten() {
            volumes.remove(&self.volume);
        }
    }
}

impl Statistics {
    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, Volume>> {
        self.volumes.lock()
    }

    /// Drops the statistics of volumes for which `exists` returns false, as soon as no connection uses them.
    pub fn keep(&self, exists: impl Fn(&str) -> bool) {
        self.volumes().retain(|name, volume| {
            volume.is_removed = !exists(name);
            !volume.is_forgotten()
        });
    }

    /// Creates the meter of a connection that uses a volume for the first time.
    pub fn meter(self: &Arc<Self>, volume: &str, initiator: &str, session: u16) -> Metered {
        let meter = Arc::new(Meter::new(session));
        let mut volumes = self.volumes();
        let of_volume = volumes.entry(volume.to_owned()).or_default();
        let of_initiator = of_volume.initiators.entry(initiator.to_owned()).or_default();
        of_initiator.meters.push(meter.clone());
        drop(volumes);
        let (volume, initiator) = (volume.to_owned(), initiator.to_owned());
        Metered { statistics: self.clone(), volume, initiator, meter }
    }

    /// Returns the totals of all used volumes, by name.
    pub fn totals(&self) -> Vec<VolumeTotals> {
        let held = self.volumes();
        let volumes: Vec<_> = held
            .iter()
            .map(|(name, volume)| (name.clone(), volume.past.clone(), volume.initiators.clone()))
            .collect();
        drop(held);
        // The lock is released first, so that new connections do not wait for the sums.
        let volumes = volumes.into_iter();
        volumes.map(|(name, past, initiators)| VolumeTotals::sum(name, past, initiators)).collect()
    }

    /// Returns the totals of each session, by volume.
    pub fn sessions(&self) -> BTreeMap<u16, BTreeMap<String, Totals>> {
        let mut sessions: BTreeMap<u16, BTreeMap<String, Totals>> = BTreeMap::new();
        for (name, volume) in self.volumes().iter() {
            for meter in volume.meters() {
                let of_session = sessions.entry(meter.session).or_default();
                meter.add_to(of_session.entry(name.clone()).or_default());
            }
        }
        sessions
    }

    fn moments(&self) -> MutexGuard<'_, Moments> {
        self.moments.lock()
    }

    /// Takes a sample of all volumes. The caller calls this once a second.
    pub fn sample(&self, now: Instant) {
        let mut volumes = self.volumes();
        let mut moments = self.moments();
        moments.note(now);
        for volume in volumes.values_mut() {
            let mut recent = std::mem::take(&mut volume.recent);
            recent.note(&moments, volume.progress(), || volume.totals());
            volume.recent = recent;
        }
    }

    /// Returns the recent activity of a volume, as far as its samples go back.
    pub fn recent(&self, volume: &str) -> Option<RecentTotals> {
        let volumes = self.volumes();
        Some(volumes.get(volume)?.recent.lately(&self.moments()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OperationKind;

    #[test]
    fn an_initiator_is_forgotten_with_its_last_connection_and_its_part_of_the_sum_stays() {
        let statistics: Arc<Statistics> = Arc::default();
        let first = statistics.meter("data", "iqn.x:a", 1);
        let second = statistics.meter("data", "iqn.x:a", 1);
        let other = statistics.meter("data", "iqn.x:b", 2);
        for meter in [&first, &second, &other] {
            meter.begin();
            meter.end(OperationKind::Read, 50_000, 1, 4096);
        }
        other.begin();
        other.fail(Failure::Busy);
        let counts = || {
            let totals = statistics.totals();
            let reads =
                |totals: &Totals| totals.operations().map(|(_, one)| one.latency.count()).sum();
            let initiators: Vec<(String, u64)> =
                totals[0].initiators.iter().map(|(name, one)| (name.clone(), reads(one))).collect();
            let all: u64 = reads(&totals[0].all);
            (all, totals[0].all.in_flight, initiators)
        };
        let pair = |name: &str, count| (name.to_owned(), count);
        assert_eq!(counts(), (3, 1, vec![pair("iqn.x:a", 2), pair("iqn.x:b", 1)]));
        drop(first);
        assert_eq!(counts(), (3, 1, vec![pair("iqn.x:a", 2), pair("iqn.x:b", 1)]));
        drop(second);
        assert_eq!(counts(), (3, 1, vec![pair("iqn.x:b", 1)]));
        drop(other);
        assert_eq!(counts(), (3, 0, Vec::new()), "what was under way was not answered");
        assert_eq!(statistics.totals()[0].all.failures().collect::<Vec<_>>(), [(Failure::Busy, 1)]);
        assert!(statistics.sessions().is_empty());
    }

    #[test]
    fn a_volume_that_is_removed_is_forgotten_with_its_last_meter() {
        let statistics: Arc<Statistics> = Arc::default();
        let meters = ["a", "b", "c"].map(|volume| statistics.meter(volume, "iqn.x:a", 1));
        let [a, b, c] = meters;
        drop((a, c));
        let volumes = || statistics.totals().into_iter().map(|one| one.volume).collect::<Vec<_>>();
        statistics.keep(|name| name == "c");
        assert_eq!(volumes(), ["b", "c"], "b is used");
        drop(b);
        assert_eq!(volumes(), ["c"]);
    }

    #[test]
    fn a_session_is_the_sum_of_its_connections() {
        let statistics: Arc<Statistics> = Arc::default();
        let meters = [("a", 1), ("b", 1), ("a", 1), ("a", 2)]
            .map(|(volume, session)| statistics.meter(volume, "iqn.x:a", session));
        meters.iter().for_each(|meter| {
            meter.begin();
            meter.end(OperationKind::Write, 1, 1, 512);
        });
        let sessions = statistics.sessions();
        let written = |session: u16, volume: &str| {
            sessions[&session][volume].operations().map(|(_, one)| one.bytes).sum::<u64>()
        };
        assert_eq!([written(1, "a"), written(1, "b"), written(2, "a")], [1024, 512, 512]);
    }
}
