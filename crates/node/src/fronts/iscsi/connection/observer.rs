//! The statistics of a connection's commands: when they arrived, and how they ended. The clock is read once for all
//! requests that arrived together, and once for all answers that are sent together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_scsi::{Cdb, Completion, Lun, NexusHandle};

use super::UnderWay;
use crate::events::EventLog;
use crate::fronts::iscsi::Front;
use crate::qos::{Account, Qos};
use crate::statistics::{Failure, Metered, Operation, Statistics};

/// The place of commands for units that do not exist.
const NOWHERE: u32 = u32::MAX;

/// A command that was begun.
#[derive(Clone, Copy)]
pub(super) struct BegunCommand {
    /// Nanoseconds since the connection began.
    at: u64,
    place: u32,
    /// Number of Data-Out bytes.
    bytes: u32,
    pub(super) operation: Operation,
    /// The command is counted as aborted already, whatever its completion is.
    is_aborted: bool,
}

impl BegunCommand {
    /// Returns whether the command was aborted and will not receive its usual answer.
    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted
    }
}

/// The places of LUNs among the used volumes, for one generation of the units.
#[derive(Default)]
struct LunPaths {
    found: HashMap<Lun, u32>,
    generation: u64,
    /// The last LUN that was looked up.
    latest: Option<(Lun, u32)>,
}

impl LunPaths {
    #[inline]
    fn latest(&self, generation: u64, lun: Option<Lun>) -> Option<u32> {
        match self.latest {
            Some((latest, place)) if lun == Some(latest) && self.generation == generation => {
                Some(place)
            }
            _ => None,
        }
    }

    #[cold]
    fn look_up(&mut self, generation: u64, lun: Option<Lun>, find: impl FnOnce(Lun) -> u32) -> u32 {
        if self.generation != generation {
            *self = Self { generation, ..Self::default() };
        }
        let Some(lun) = lun else { return NOWHERE };
        let place = *self.found.entry(lun).or_insert_with(|| find(lun));
        self.latest = Some((lun, place));
        place
    }
}

/// Consecutive commands of the same kind whose answers are ready to be sent.
struct Answered {
    at: u64,
    bytes: u64,
    place: u32,
    count: u32,
    operation: Operation,
}

/// A volume that the connection has used.
struct UsedVolume {
    volume: String,
    meter: Metered,
    account: Arc<Account>,
}

/// See the module.
pub(super) struct Observer {
    statistics: Arc<Statistics>,
    qos: Arc<Qos>,
    events: Arc<EventLog>,
    initiator: String,
    tsih: u16,
    origin: Instant,
    /// The arrival time of the current requests, in nanoseconds since the origin.
    arrived: u64,
    /// Volumes that were used. No entry is removed: commands refer to an entry by its place.
    used: Vec<UsedVolume>,
    places: LunPaths,
    answered: Vec<Answered>,
}

impl Observer {
    pub(super) fn new(front: &Front) -> Self {
        Self {
            statistics: front.access.metrics.statistics.clone(),
            qos: front.qos.clone(),
            events: front.access.events.clone(),
            initiator: String::new(),
            tsih: 0,
            origin: time::now(),
            arrived: 0,
            used: Vec::new(),
            places: LunPaths::default(),
            answered: Vec::new(),
        }
    }

    /// Sets the initiator and the session after the login.
    pub(super) fn established(&mut self, initiator: &str, tsih: u16) {
        self.initiator = initiator.to_owned();
        self.tsih = tsih;
    }

    /// Sets the arrival time of requests or messages.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrived = (now - self.origin).as_nanos() as u64;
    }

    /// Counts a command that is about to begin.
    #[inline]
    pub(super) fn begin(
        &mut self,
        nexus: &mut NexusHandle,
        lun: Option<Lun>,
        cdb: &Cdb,
        data_out: usize,
    ) -> BegunCommand {
        let generation = nexus.generation();
        let place = match self.places.latest(generation, lun) {
            Some(place) => place,
            None => self.look_up(nexus, generation, lun),
        };
        if let Some(used) = self.used.get(place as usize) {
            used.meter.begin();
        }
        let (at, bytes, operation) = (self.arrived, data_out as u32, Operation::of(cdb));
        BegunCommand { at, place, bytes, operation, is_aborted: false }
    }

    #[cold]
    fn look_up(&mut self, nexus: &mut NexusHandle, generation: u64, lun: Option<Lun>) -> u32 {
        let mut places = std::mem::take(&mut self.places);
        let place = places.look_up(generation, lun, |lun| self.place(nexus, lun));
        self.places = places;
        place
    }

    fn place(&mut self, nexus: &mut NexusHandle, lun: Lun) -> u32 {
        let Some(unit) = nexus.logical_unit(lun) else { return NOWHERE };
        let volume = &*unit.volume_name();
        let known = self.used.iter().position(|used| used.volume == *volume);
        let place = known.unwrap_or_else(|| {
            let meter = self.statistics.meter(volume, &self.initiator, self.tsih);
            let account = self.qos.volume(volume);
            self.used.push(UsedVolume { volume: volume.to_owned(), meter, account });
            self.used.len() - 1
        });
        place as u32
    }

    /// Returns the account of the command's volume, if commands of this volume must be admitted.
    #[inline]
    pub(super) fn governed(&self, begun: BegunCommand) -> Option<&Arc<Account>> {
        let used = self.used.get(begun.place as usize)?;
        used.account.is_governed().then_some(&used.account)
    }

    /// Counts a command that has to wait.
    pub(super) fn limited(&self, begun: BegunCommand) {
        if let Some(used) = self.used.get(begun.place as usize) {
            used.meter.limited();
        }
    }

    /// Returns a record for a command that another connection began and counts.
    pub(super) fn elsewhere(&self) -> BegunCommand {
        let (at, operation) = (self.arrived, Operation::Other);
        BegunCommand { at, place: NOWHERE, bytes: 0, operation, is_aborted: false }
    }

    /// Counts a command that has ended.
    #[inline]
    pub(super) fn end(&mut self, begun: BegunCommand, completion: &Completion) {
        let failure = Failure::of(completion);
        if let Some(failure) = failure
            && !begun.is_aborted
        {
            self.fail(begun, failure);
        }
        let BegunCommand { at, place, bytes, operation, is_aborted } = begun;
        // A command that was not carried out transferred nothing.
        let bytes = if failure.is_some() || is_aborted {
            0
        } else {
            u64::from(bytes) + completion.data_in.len() as u64
        };
        match self.answered.last_mut() {
            Some(last) if (last.at, last.place, last.operation) == (at, place, operation) => {
                last.bytes += bytes;
                last.count += 1;
            }
            _ => self.answered.push(Answered { at, bytes, place, count: 1, operation }),
        }
    }

    /// Counts a command as aborted: it will not receive its usual answer.
    pub(super) fn count_aborted(&self, begun: &mut BegunCommand) {
        if !std::mem::replace(&mut begun.is_aborted, true) {
            self.fail(*begun, Failure::Aborted);
        }
    }

    #[cold]
    fn fail(&self, begun: BegunCommand, failure: Failure) {
        if let Some(used) = self.used.get(begun.place as usize) {
            used.meter.fail(failure);
            self.events.tell_failure(&used.volume, &self.initiator, failure);
        }
    }

    /// Returns the time since the command arrived.
    pub(super) fn age(&self, under_way: &UnderWay, now: Instant) -> Duration {
        let age = (now - self.origin).as_nanos() as u64;
        Duration::from_nanos(age.saturating_sub(under_way.begun.at))
    }

    /// Returns the volume of a command, if it has one.
    pub(super) fn volume(&self, begun: BegunCommand) -> Option<&str> {
        self.used.get(begun.place as usize).map(|used| used.volume.as_str())
    }

    /// Counts the commands whose answers are about to be sent.
    #[inline]
    pub(super) fn count_sent(&mut self) {
        if !self.answered.is_empty() {
            self.count(time::now());
        }
    }

    fn count(&mut self, now: Instant) {
        let now = (now - self.origin).as_nanos() as u64;
        for Answered { at, bytes, place, count, operation } in self.answered.drain(..) {
            if let Some(used) = self.used.get(place as usize) {
                used.meter.end(operation, now - at, count.into(), bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_unit_of_lun_is_forgotten_after_change() {
        let mut places = LunPaths::default();
        assert_eq!(places.look_up(1, Some(Lun(0)), |_| 7), 7);
        assert_eq!(places.latest(1, Some(Lun(0))), Some(7));
        assert_eq!(places.latest(1, Some(Lun(1))), None);
        // The first command after the change is for no unit.
        assert_eq!(places.look_up(2, None, |_| 8), NOWHERE);
        assert_eq!(places.latest(2, Some(Lun(0))), None);
        assert_eq!(places.look_up(2, Some(Lun(0)), |_| 9), 9);
    }
}
