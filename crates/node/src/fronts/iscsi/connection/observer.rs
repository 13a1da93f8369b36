//! What a connection notes of its commands: when they came, and what became of them. The clock is read
//! once for all that came together, and once for all that is sent together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use sarsen_io::time;
use sarsen_scsi::{Cdb, Completion, Lun, NexusHandle};

use crate::events::EventLog;
use crate::fairness::{Account, Fairness};
use crate::fronts::iscsi::Front;
use crate::statistics::{Failure, Metered, Operation, Statistics};

/// No place: what a command to a unit that is not there has.
const NOWHERE: u32 = u32::MAX;

/// A command that was begun.
#[derive(Clone, Copy)]
pub(super) struct Begun {
    /// Nanoseconds since the connection began.
    at: u64,
    place: u32,
    /// Of Data-Out.
    bytes: u32,
    pub(super) operation: Operation,
}

/// Commands, alike and one after the other, whose answers are ready to be sent.
struct Answered {
    at: u64,
    bytes: u64,
    place: u32,
    count: u32,
    operation: Operation,
}

/// A volume that was used.
struct Used {
    volume: String,
    meter: Metered,
    account: Arc<Account>,
}

/// See the module.
pub(super) struct Observer {
    statistics: Arc<Statistics>,
    fairness: Arc<Fairness>,
    events: Arc<EventLog>,
    initiator: String,
    tsih: u16,
    origin: Instant,
    /// When what is carried out now came, in nanoseconds since the origin.
    arrived: u64,
    /// Volumes that were used. None goes before the connection does: commands name them by place.
    used: Vec<Used>,
    /// What was found of LUNs while the units were these.
    places: HashMap<Lun, u32>,
    generation: u64,
    /// The last that was looked up.
    latest: (Lun, u32),
    answered: Vec<Answered>,
}

impl Observer {
    pub(super) fn new(front: &Front) -> Self {
        Self {
            statistics: front.access.metrics.statistics.clone(),
            fairness: front.fairness.clone(),
            events: front.access.events.clone(),
            initiator: String::new(),
            tsih: 0,
            origin: time::now(),
            arrived: 0,
            used: Vec::new(),
            places: HashMap::new(),
            generation: 0,
            latest: (Lun::ZERO, NOWHERE),
            answered: Vec::new(),
        }
    }

    /// Whom it is with, once that is known.
    pub(super) fn established(&mut self, initiator: &str, tsih: u16) {
        self.initiator = initiator.to_owned();
        self.tsih = tsih;
    }

    /// Something came.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrived = (now - self.origin).as_nanos() as u64;
    }

    /// A command is about to be begun.
    #[inline]
    pub(super) fn begin(
        &mut self,
        nexus: &mut NexusHandle,
        lun: Option<Lun>,
        cdb: &Cdb,
        data_out: usize,
    ) -> Begun {
        let generation = nexus.generation();
        let place = match lun {
            Some(lun) if self.latest == (lun, self.latest.1) && self.generation == generation => {
                self.latest.1
            }
            lun => self.look_up(nexus, generation, lun),
        };
        if let Some(used) = self.used.get(place as usize) {
            used.meter.begin();
        }
        Begun { at: self.arrived, place, bytes: data_out as u32, operation: Operation::of(cdb) }
    }

    #[cold]
    fn look_up(&mut self, nexus: &mut NexusHandle, generation: u64, lun: Option<Lun>) -> u32 {
        if self.generation != generation {
            self.generation = generation;
            self.places.clear();
        }
        let Some(lun) = lun else { return NOWHERE };
        let place = match self.places.get(&lun) {
            Some(place) => *place,
            None => {
                let place = self.place(nexus, lun);
                self.places.insert(lun, place);
                place
            }
        };
        self.latest = (lun, place);
        place
    }

    fn place(&mut self, nexus: &mut NexusHandle, lun: Lun) -> u32 {
        let Some(unit) = nexus.logical_unit(lun) else { return NOWHERE };
        let volume = &*unit.volume_name();
        let known = self.used.iter().position(|used| used.volume == *volume);
        let place = known.unwrap_or_else(|| {
            let meter = self.statistics.meter(volume, &self.initiator, self.tsih);
            let account = self.fairness.volume(volume);
            self.used.push(Used { volume: volume.to_owned(), meter, account });
            self.used.len() - 1
        });
        place as u32
    }

    /// The account of its volume, if its commands have to ask.
    #[inline]
    pub(super) fn governed(&self, begun: Begun) -> Option<&Arc<Account>> {
        let used = self.used.get(begun.place as usize)?;
        used.account.is_governed().then_some(&used.account)
    }

    /// A command is made to wait.
    pub(super) fn limited(&self, begun: Begun) {
        if let Some(used) = self.used.get(begun.place as usize) {
            used.meter.limited();
        }
    }

    /// Of a command that another connection began, and counts.
    pub(super) fn elsewhere(&self) -> Begun {
        Begun { at: self.arrived, place: NOWHERE, bytes: 0, operation: Operation::Other }
    }

    /// A command has ended.
    #[inline]
    pub(super) fn end(&mut self, begun: Begun, completion: &Completion) {
        if let Some(failure) = Failure::of(completion) {
            self.fail(begun, failure);
        }
        let Begun { at, place, bytes, operation } = begun;
        let bytes = u64::from(bytes) + completion.data_in.len() as u64;
        match self.answered.last_mut() {
            Some(last) if (last.at, last.place, last.operation) == (at, place, operation) => {
                last.bytes += bytes;
                last.count += 1;
            }
            _ => self.answered.push(Answered { at, bytes, place, count: 1, operation }),
        }
    }

    /// A command will not be answered as it would have been.
    #[cold]
    pub(super) fn fail(&self, begun: Begun, failure: Failure) {
        if let Some(used) = self.used.get(begun.place as usize) {
            used.meter.fail(failure);
            self.events.tell_failure(&used.volume, &self.initiator, failure);
        }
    }

    /// What has ended is sent now.
    #[inline]
    pub(super) fn send(&mut self) {
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
