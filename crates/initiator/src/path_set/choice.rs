//! The choice of a path for each command.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::SessionError;
use crate::instance::{Instance, lost};
use crate::path_selector::PathSelector;
use crate::unit::{Access, AccessState};

/// Weight of a command without data, in bytes: a command of this length takes about twice as long as an empty one.
const COMMAND_WEIGHT: u64 = 16 * 1024;
/// Each new measurement has this part of the mean.
const MEAN_PART: f64 = 8.0;
/// How long commands wait for an active path before a target port group is made active, and the time between two attempts.
const ACTIVATION_PAUSE: Duration = Duration::from_secs(1);
/// After this time without a measurement, a mean counts half: a slow path is tried again.
const HALF_LIFE: Duration = Duration::from_secs(1);

/// What commands need to know of a path.
#[derive(Default)]
pub(super) struct PathState {
    /// The instance in which the unit was examined and has all kept writes.
    pub(super) instance: Option<Arc<Instance>>,
    /// The unit must be examined again before the next command.
    pub(super) is_suspended: bool,
    /// Why the path has no instance.
    pub(super) failure: Option<SessionError>,
    /// The unit was recognised through the path.
    pub(super) is_recognised: bool,
    /// The path will not be tried again.
    pub(super) is_rejected: bool,
    pub(super) group: Option<u16>,
    pub(super) access: AccessState,
    commands: u64,
    bytes: u64,
    /// Measured time of a byte, in seconds, and the time of the last measurement.
    byte_time: f64,
    measured: Option<Instant>,
}

impl PathState {
    /// Returns whether commands may be sent over the path.
    pub(super) fn is_usable(&self) -> bool {
        self.instance.is_some() && !self.is_suspended && self.access.is_active()
    }

    /// Returns whether no command is in flight.
    pub(super) const fn is_idle(&self) -> bool {
        self.commands == 0
    }

    /// Returns the expected time of a command of this weight, in seconds.
    fn expected(&self, weight: u64, now: Instant) -> f64 {
        let age = self.measured.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let decay = 0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64());
        (self.bytes + weight) as f64 * self.byte_time * decay
    }

    fn measure(&mut self, queued: u64, took: Duration, now: Instant) {
        let byte_time = took.as_secs_f64() / queued as f64;
        self.byte_time += match self.measured {
            None => byte_time,
            Some(_) => (byte_time - self.byte_time) / MEAN_PART,
        };
        self.measured = Some(now);
    }
}

/// The states of all paths.
pub(super) struct Choices {
    pub(super) paths: Vec<PathState>,
    selector: PathSelector,
    turn: usize,
    /// Number of times that all paths were to examine the unit again: an examination that began before the last time is out of date.
    pub(super) requests: u64,
    /// When the first command found no usable path.
    pub(super) down_since: Option<Instant>,
    /// When this initiator last tried to make a target port group active.
    last_activation: Option<Instant>,
}

/// A command in flight on a path.
pub(super) struct InFlight {
    pub(super) path: usize,
    pub(super) instance: Arc<Instance>,
    weight: u64,
    /// The weight in flight on the path when the command began, with its own.
    queued: u64,
    begun: Instant,
}

impl Choices {
    pub(super) fn new(count: usize, selector: PathSelector) -> Self {
        let paths = (0..count).map(|_| PathState::default()).collect();
        Self { paths, selector, turn: 0, requests: 0, down_since: None, last_activation: None }
    }

    /// Chooses a path for a command with this number of bytes. `None` if none is usable.
    pub(super) fn begin(&mut self, bytes: u64, now: Instant) -> Option<InFlight> {
        let weight = bytes + COMMAND_WEIGHT;
        let path = self.choose(weight, now)?;
        let state = &mut self.paths[path];
        let instance = state.instance.clone()?;
        state.commands += 1;
        state.bytes += weight;
        self.turn = path + 1;
        self.down_since = None;
        Some(InFlight { path, instance, weight, queued: state.bytes, begun: now })
    }

    fn choose(&self, weight: u64, now: Instant) -> Option<usize> {
        let usable = |state: &&PathState| state.is_usable();
        let best = self.paths.iter().filter(usable).map(|state| state.access).min()?;
        let count = self.paths.len();
        let candidates = (0..count)
            .map(|step| (self.turn + step) % count)
            .filter(|path| self.paths[*path].is_usable() && self.paths[*path].access == best);
        // Of equal ones, the first in rotation.
        match self.selector {
            PathSelector::RoundRobin => candidates.into_iter().next(),
            PathSelector::QueueDepth => candidates.min_by_key(|path| self.paths[*path].commands),
            PathSelector::ServiceTime => candidates.min_by(|one, other| {
                let key = |path: usize| {
                    let state = &self.paths[path];
                    (state.expected(weight, now), state.bytes)
                };
                let ((time, bytes), (its_time, its_bytes)) = (key(*one), key(*other));
                time.total_cmp(&its_time).then(bytes.cmp(&its_bytes))
            }),
        }
    }

    /// Notes the end of a command; `answered` if the target answered it.
    pub(super) fn end(&mut self, command: &InFlight, answered: bool, now: Instant) {
        let state = &mut self.paths[command.path];
        state.commands -= 1;
        state.bytes -= command.weight;
        if answered {
            let took = now.saturating_duration_since(command.begun);
            state.measure(command.queued, took, now);
        }
    }

    /// Sends no command before each path has examined the unit again.
    pub(super) fn suspend_all(&mut self) {
        self.requests += 1;
        self.paths.iter_mut().for_each(|state| state.is_suspended = true);
    }

    /// Sets the access states of all paths in known groups, and returns the paths that have become inactive.
    pub(super) fn set_access(&mut self, access: &Access) -> Vec<usize> {
        let mut inactive = Vec::new();
        for (path, state) in self.paths.iter_mut().enumerate() {
            let Some(group) = state.group else { continue };
            let before = std::mem::replace(&mut state.access, access.state_of(Some(group)));
            if before.is_active() && !state.access.is_active() {
                inactive.push(path);
            }
        }
        inactive
    }

    /// Returns whether this initiator should make a target port group active now: commands have found no active path for
    /// `ACTIVATION_PAUSE`, and as long ago was the last attempt.
    pub(super) fn begin_activation(&mut self, now: Instant) -> bool {
        let is_due = |at: Instant| at + ACTIVATION_PAUSE <= now;
        let begins = !self.is_usable()
            && self.down_since.is_some_and(is_due)
            && self.last_activation.is_none_or(is_due);
        if begins {
            self.last_activation = Some(now);
        }
        begins
    }

    /// Returns the paths through which the unit was recognised.
    pub(super) fn recognised(&self) -> Vec<usize> {
        let paths = self.paths.iter().enumerate();
        paths.filter(|(_, state)| state.is_recognised).map(|(path, _)| path).collect()
    }

    /// Returns whether commands may be sent.
    pub(super) fn is_usable(&self) -> bool {
        self.paths.iter().any(PathState::is_usable)
    }

    /// Returns whether no path will be usable any more.
    pub(super) fn is_given_up(&self) -> bool {
        self.paths.iter().all(|state| state.is_rejected)
    }

    /// Returns why there is no usable path: the reason of the first one that has one.
    pub(super) fn failure(&self) -> SessionError {
        let failure = self.paths.iter().find_map(|state| state.failure.clone());
        failure.unwrap_or_else(|| lost(io::Error::other("no path to the unit is active")))
    }

    /// Returns all other paths that have an instance, with their instances.
    pub(super) fn others(&self, path: usize) -> Vec<(usize, Arc<Instance>)> {
        let others = self.paths.iter().enumerate().filter(|(other, _)| *other != path);
        others.filter_map(|(other, state)| Some((other, state.instance.clone()?))).collect()
    }
}
