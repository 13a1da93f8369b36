//! The statistics of a connection's requests: when they arrived, and how they ended. The clock is read once for all
//! requests that arrived together, and once for all answers that are sent together.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sarsen_io::time;
use sarsen_volume::qos::Account;
use sarsen_volume::statistics::{Failure, Metered, Statistics};
use sarsen_volume::{Operation, OperationKind};

use super::Front;
use crate::events::EventLog;
use crate::qos::Qos;

/// The index of a volume among those that a connection has used.
pub(super) type VolumeIndex = u32;
/// No volume: the request is for a unit that does not exist.
pub(super) const NO_VOLUME: VolumeIndex = u32::MAX;

/// A request that was begun.
#[derive(Clone, Copy)]
pub(super) struct BegunRequest {
    /// Nanoseconds since the connection began.
    at: u64,
    volume: VolumeIndex,
    /// Number of bytes that a success transfers, besides those that [`Observer::end`] adds.
    bytes: u32,
    pub(super) operation: Operation,
    /// The request is counted as aborted already, whatever its result is.
    is_aborted: bool,
}

impl BegunRequest {
    /// Returns whether the request was aborted and will not receive its usual answer.
    pub(super) fn is_aborted(&self) -> bool {
        self.is_aborted
    }
}

/// Consecutive requests of the same kind whose answers are ready to be sent.
struct Answered {
    at: u64,
    bytes: u64,
    volume: VolumeIndex,
    count: u32,
    kind: OperationKind,
}

/// A volume that the connection has used.
struct UsedVolume {
    name: String,
    meter: Metered,
    account: Arc<Account>,
}

/// See the module.
pub(super) struct Observer {
    statistics: Arc<Statistics>,
    qos: Arc<Qos>,
    events: Arc<EventLog>,
    client: String,
    session: u16,
    origin: Instant,
    /// The arrival time of the current requests, in nanoseconds since the origin.
    arrived: u64,
    /// Volumes that were used. No entry is removed: requests refer to an entry by its index.
    used: Vec<UsedVolume>,
    answered: Vec<Answered>,
}

impl Observer {
    pub(super) fn new(front: &Front) -> Self {
        Self {
            statistics: front.access.metrics.statistics.clone(),
            qos: front.qos.clone(),
            events: front.access.events.clone(),
            client: String::new(),
            session: 0,
            origin: time::now(),
            arrived: 0,
            used: Vec::new(),
            answered: Vec::new(),
        }
    }

    /// Sets the client's name and the session after the login.
    pub(super) fn established(&mut self, client: &str, session: u16) {
        self.client = client.to_owned();
        self.session = session;
    }

    /// Sets the arrival time of requests or messages.
    pub(super) fn arrived(&mut self, now: Instant) {
        self.arrived = (now - self.origin).as_nanos() as u64;
    }

    /// Returns the index of a volume, which the connection may not have used before.
    pub(super) fn volume_index(&mut self, name: &str) -> VolumeIndex {
        let known = self.used.iter().position(|used| used.name == name);
        let index = known.unwrap_or_else(|| {
            let meter = self.statistics.meter(name, &self.client, self.session);
            let account = self.qos.volume(name);
            self.used.push(UsedVolume { name: name.to_owned(), meter, account });
            self.used.len() - 1
        });
        index as VolumeIndex
    }

    /// Counts a request that is about to begin.
    #[inline]
    pub(super) fn begin(
        &mut self,
        volume: VolumeIndex,
        operation: Operation,
        bytes: usize,
    ) -> BegunRequest {
        if let Some(used) = self.used.get(volume as usize) {
            used.meter.begin();
        }
        let (at, bytes) = (self.arrived, bytes as u32);
        BegunRequest { at, volume, bytes, operation, is_aborted: false }
    }

    /// Returns the account of the request's volume, if requests of this volume must be admitted.
    #[inline]
    pub(super) fn governed(&self, begun: BegunRequest) -> Option<&Arc<Account>> {
        let used = self.used.get(begun.volume as usize)?;
        used.account.is_governed().then_some(&used.account)
    }

    /// Counts a request that has to wait.
    pub(super) fn limited(&self, begun: BegunRequest) {
        if let Some(used) = self.used.get(begun.volume as usize) {
            used.meter.limited();
        }
    }

    /// Returns a record for a request that another connection began and counts.
    pub(super) fn elsewhere(&self) -> BegunRequest {
        let (at, operation) = (self.arrived, Operation::QUERY);
        BegunRequest { at, volume: NO_VOLUME, bytes: 0, operation, is_aborted: false }
    }

    /// Counts a request that has ended, and that returned `more_bytes`.
    #[inline]
    pub(super) fn end(&mut self, begun: BegunRequest, failure: Option<Failure>, more_bytes: usize) {
        if let Some(failure) = failure
            && !begun.is_aborted
        {
            self.fail(begun, failure);
        }
        let BegunRequest { at, volume, bytes, operation: Operation { kind, .. }, is_aborted } =
            begun;
        // A request that was not carried out transferred nothing.
        let bytes =
            if failure.is_some() || is_aborted { 0 } else { u64::from(bytes) + more_bytes as u64 };
        match self.answered.last_mut() {
            Some(last) if (last.at, last.volume, last.kind) == (at, volume, kind) => {
                last.bytes += bytes;
                last.count += 1;
            }
            _ => self.answered.push(Answered { at, bytes, volume, count: 1, kind }),
        }
    }

    /// Counts a request as aborted: it will not receive its usual answer.
    pub(super) fn count_aborted(&self, begun: &mut BegunRequest) {
        if !std::mem::replace(&mut begun.is_aborted, true) {
            self.fail(*begun, Failure::Aborted);
        }
    }

    #[cold]
    fn fail(&self, begun: BegunRequest, failure: Failure) {
        if let Some(used) = self.used.get(begun.volume as usize) {
            used.meter.fail(failure);
            self.events.tell_failure(&used.name, &self.client, failure);
        }
    }

    /// Returns the time since the request arrived.
    pub(super) fn age(&self, begun: BegunRequest, now: Instant) -> Duration {
        let age = (now - self.origin).as_nanos() as u64;
        Duration::from_nanos(age.saturating_sub(begun.at))
    }

    /// Returns the name of the request's volume, if it has one.
    pub(super) fn volume(&self, begun: BegunRequest) -> Option<&str> {
        self.used.get(begun.volume as usize).map(|used| used.name.as_str())
    }

    /// Counts the requests whose answers are about to be sent.
    #[inline]
    pub(super) fn count_sent(&mut self) {
        if !self.answered.is_empty() {
            self.count(time::now());
        }
    }

    fn count(&mut self, now: Instant) {
        let now = (now - self.origin).as_nanos() as u64;
        for Answered { at, bytes, volume, count, kind } in self.answered.drain(..) {
            if let Some(used) = self.used.get(volume as usize) {
                used.meter.end(kind, now - at, count.into(), bytes);
            }
        }
    }
}
