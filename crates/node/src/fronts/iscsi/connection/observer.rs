//! What a connection notes of its commands: when they came, and what became of them. The clock is read
//! once for all that came together, and once for all that is sent together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use sarsen_io::time;
use sarsen_scsi::{Cdb, Completion, Lun, NexusHandle};

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
    operation: Operation,
}

/// Commands, alike and one after the other, whose answers are ready to be sent.
struct Answered {
    at: u64,
    bytes: u64,
    place: u32,
    count: u32,
    operation: Operation,
}

/// See the module.
pub(super) struct Observer {
    statistics: Arc<Statistics>,
    initiator: String,
    tsih: u16,
    origin: Instant,
    /// When what is carried out now came, in nanoseconds since the origin.
    arrived: u64,
    /// Of volumes that were used. None goes before the connection does: commands name them by place.
    meters: Vec<(String, Metered)>,
    /// What was found of LUNs while the units were these.
    places: HashMap<Lun, u32>,
    generation: u64,
    /// The last that was looked up.
    latest: (Lun, u32),
    answered: Vec<Answered>,
}

impl Observer {
    pub(super) fn new(statistics: Arc<Statistics>) -> Self {
        Self {
            statistics,
            initiator: String::new(),
            tsih: 0,
            origin: time::now(),
            arrived: 0,
            meters: Vec::new(),
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
        if let Some((_, meter)) = self.meters.get(place as usize) {
            meter.begin();
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
        let volume = &unit.identity().volume;
        let known = self.meters.iter().position(|(name, _)| name == volume);
        let place = known.unwrap_or_else(|| {
            let meter = self.statistics.meter(volume, &self.initiator, self.tsih);
            self.meters.push((volume.clone(), meter));
            self.meters.len() - 1
        });
        place as u32
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
        if let Some((_, meter)) = self.meters.get(begun.place as usize) {
            meter.fail(failure);
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
            if let Some((_, meter)) = self.meters.get(place as usize) {
                meter.end(operation, now - at, count.into(), bytes);
            }
        }
    }
}
