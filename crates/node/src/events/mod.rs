//! Events for administrators: logins, refusals with their remedies, the ends of sessions with their reasons, changes,
//! and problems. Events are stored in memory, and in a file if there is a state folder. A reporter never waits for the
//! file. A successful command causes no event.

mod event_file;
mod occurrence;

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, UNIX_EPOCH};

use parking_lot::{Mutex, MutexGuard};
use sarsen_io::time;
use tokio::sync::watch;
use tracing::error;

use self::event_file::EventWriter;
pub(crate) use self::occurrence::{KINDS, Occurrence, Subject};
use crate::schema::events::{Event, Severity};
use sarsen_volume::statistics::Failure;

/// Maximum number of events in memory. Older ones are only in the file.
const IN_MEMORY: usize = 10_000;
/// Maximum number of events in the file.
const KEPT: u64 = 100_000;
/// Minimum time between two events for errors of one volume and one kind.
const ERRORS_PAUSE: Duration = Duration::from_secs(60);
/// Number of remembered errors from which on expired ones are removed.
const ERRORS_KNOWN: usize = 4096;

/// The log of events.
pub(crate) struct EventLog {
    recent: Arc<Recent>,
    /// The file; without one, events are only in memory.
    writer: Option<EventWriter>,
    errors: Mutex<HashMap<(String, Failure), Instant>>,
}

/// The events in memory.
struct Recent {
    state: Mutex<EventLogState>,
    /// The number of the newest event.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct EventLogState {
    events: VecDeque<Arc<Event>>,
    last_id: u64,
}

impl Default for EventLog {
    fn default() -> Self {
        let recent = Recent { state: Mutex::default(), newest: watch::Sender::default() };
        Self { recent: Arc::new(recent), writer: None, errors: Mutex::default() }
    }
}

/// A filter of events. All given conditions must match.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only events after this number.
    pub(crate) after: u64,
    /// Only events from this time on, in milliseconds since 1970.
    pub(crate) since_unix_ms: u64,
    /// One of [`KINDS`].
    pub(crate) kind: Option<String>,
    /// The name of an initiator, target, volume, account or peer, or of a changed object.
    pub(crate) subject: Option<String>,
    /// The minimum severity.
    pub(crate) severity: Option<Severity>,
}

impl Filter {
    pub(crate) fn fits(&self, event: &Event) -> bool {
        let named = |subject: &String| {
            event.subject.values().chain(&event.names).any(|value| value == subject)
        };
        event.id > self.after
            && event.unix_ms >= self.since_unix_ms
            && self.kind.as_ref().is_none_or(|kind| event.kind == *kind)
            && self.severity.is_none_or(|least| event.severity >= least)
            && self.subject.as_ref().is_none_or(named)
    }
}

/// The result of a query.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) events: Vec<Arc<Event>>,
    /// The number of the newest examined event. A client that continues uses it as `after`.
    pub(crate) seen: u64,
}

impl Recent {
    fn state(&self) -> MutexGuard<'_, EventLogState> {
        self.state.lock()
    }

    fn add(&self, occurrence: &Occurrence) {
        let now = time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut state = self.state();
        state.last_id += 1;
        let id = state.last_id;
        let unix_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        state.events.push_back(Arc::new(occurrence.event(id, unix_ms)));
        if state.events.len() > IN_MEMORY {
            state.events.pop_front();
        }
        drop(state);
        self.newest.send_replace(id);
    }

    fn after(&self, id: u64) -> Vec<Arc<Event>> {
        let state = self.state();
        let newer = state.events.iter().filter(|event| event.id > id);
        newer.cloned().collect()
    }
}

impl EventLog {
    /// Opens the file in this folder and continues it. If that fails, an event reports it, and events are only stored
    /// in memory.
    pub(crate) fn open(folder: &Path) -> Self {
        let mut log = Self::default();
        match EventWriter::open(&folder.join("events.sqlite"), &log.recent) {
            Ok(writer) => log.writer = Some(writer),
            Err(error) => {
                error!(%error, folder = %folder.display(), "events are stored in memory only");
                let path = folder.display().to_string();
                log.tell(&Occurrence::EventsNotStored { path, error });
            }
        }
        log
    }

    /// Reports an occurrence.
    pub(crate) fn tell(&self, occurrence: &Occurrence) {
        self.recent.add(occurrence);
    }

    /// Reports that the file of events was missing.
    pub(crate) fn tell_if_missing(&self) {
        if let Some(path) = self.writer.as_ref().and_then(EventWriter::created_path) {
            let (path, why) = (path.display().to_string(), "it was missing".to_owned());
            self.tell(&Occurrence::EventsRecreated { path, aside: None, why });
        }
    }

    /// Reports a command that failed because of a fault of the volume.
    pub(crate) fn tell_failure(&self, volume: &str, initiator: &str, failure: Failure) {
        if !matches!(failure, Failure::MediumError | Failure::HardwareError | Failure::NoSpace) {
            return;
        }
        let now = time::now();
        let mut errors = self.errors.lock();
        let key = (volume.to_owned(), failure);
        if errors.get(&key).is_some_and(|last| now - *last < ERRORS_PAUSE) {
            return;
        }
        if errors.len() >= ERRORS_KNOWN {
            errors.retain(|_, last| now - *last < ERRORS_PAUSE);
        }
        errors.insert(key, now);
        drop(errors);
        match failure {
            Failure::NoSpace => error!(
                volume,
                initiator, "the storage of a volume is full; its writes fail until space is freed"
            ),
            _ => error!(volume, initiator, error = failure.name(), "a command to a volume failed"),
        }
        let (volume, initiator) = (volume.to_owned(), initiator.to_owned());
        self.tell(&Occurrence::VolumeError { volume, initiator, failure });
    }

    /// Returns the matching events, newest last. If there are more than `limit`, it returns the newest ones, or with
    /// `after` the oldest ones. Blocks the thread, because it reads the file if memory does not suffice.
    pub(crate) fn query(&self, filter: &Filter, limit: usize) -> Found {
        // If the file was found to be damaged, a new one has begun, and an event in memory reports it.
        let found = self.look(filter, limit).or_else(|| self.look(filter, limit));
        found.unwrap_or_default()
    }

    /// Returns the matching events, or `None` if the file was found to be damaged.
    fn look(&self, filter: &Filter, limit: usize) -> Option<Found> {
        let recent = self.recent.after(0);
        let oldest = recent.first().map_or(u64::MAX, |event| event.id);
        let newest = recent.last().map_or_else(|| self.recent.state().last_id, |event| event.id);
        let in_file = |limit, backwards| {
            let range = (filter.after.saturating_add(1), oldest);
            let Some(writer) = &self.writer else { return Some(Vec::new()) };
            let older = writer.find(range, |event| filter.fits(event), limit, backwards)?;
            Some(older.into_iter().map(Arc::new).collect::<Vec<_>>())
        };
        let meant = recent.into_iter().filter(|event| filter.fits(event));
        let events: Vec<Arc<Event>> = match filter.after {
            0 => {
                let mut backwards: Vec<_> = meant.rev().take(limit).collect();
                backwards.extend(in_file(limit - backwards.len(), true)?);
                backwards.reverse();
                backwards
            }
            _ => in_file(limit, false)?.into_iter().chain(meant).take(limit).collect(),
        };
        let is_cut = filter.after != 0 && events.len() == limit;
        let last = events.last().filter(|_| is_cut);
        Some(Found { seen: last.map_or(newest, |event| event.id).max(filter.after), events })
    }

    /// Returns a receiver of the number of the newest event.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.recent.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(target: &str) -> Occurrence {
        Occurrence::TargetDrained { target: target.into(), asked: 2, dropped: 1 }
    }

    fn kinds(events: &[Arc<Event>]) -> Vec<&str> {
        events.iter().map(|event| event.kind.as_str()).collect()
    }

    #[test]
    fn events_are_found_by_kind_and_object() {
        let log = EventLog::default();
        log.tell(&Occurrence::ServerStarted { version: "1".into() });
        log.tell(&drained("iqn.x:a"));
        log.tell_failure("data", "iqn.x:host", Failure::MediumError);
        let all = log.query(&Filter::default(), 10).events;
        assert_eq!(kinds(&all), ["server_started", "target_drained", "volume_error"]);
        assert!(all[2].remedy.is_some() && all[2].message.contains("data"), "{:?}", all[2]);
        let meant = |filter: Filter| {
            let found = log.query(&filter, 10).events;
            found.iter().map(|event| event.id).collect::<Vec<_>>()
        };
        assert_eq!(meant(Filter { after: 1, ..Filter::default() }), [2, 3]);
        assert_eq!(meant(Filter { kind: Some("volume_error".into()), ..Filter::default() }), [3]);
        assert_eq!(meant(Filter { subject: Some("iqn.x:a".into()), ..Filter::default() }), [2]);
        log.tell(&Occurrence::ConfigurationChanged {
            revision: Some(1),
            author: "ada".into(),
            what: "~ volume zzz -> zz".into(),
            names: vec!["zzz".into(), "zz".into()],
        });
        for name in ["zzz", "zz", "ada"] {
            assert_eq!(meant(Filter { subject: Some(name.into()), ..Filter::default() }), [4]);
        }
        let severity = Some(Severity::Error);
        assert_eq!(meant(Filter { severity, ..Filter::default() }), [3]);
        assert!(meant(Filter { since_unix_ms: u64::MAX, ..Filter::default() }).is_empty());
        assert_eq!(log.query(&Filter::default(), 1).events[0].id, 4, "the newest");
        let after = Filter { after: 1, ..Filter::default() };
        assert_eq!(log.query(&after, 1).events[0].id, 2, "the next");
    }

    #[test]
    fn empty_result_has_searched_range() {
        let folder = tempfile::tempdir().expect("a folder");
        for log in [EventLog::default(), EventLog::open(folder.path())] {
            (0..3).for_each(|_| log.tell(&drained("iqn.x:a")));
            let after = |after, kind: Option<&str>, limit| {
                let kind = kind.map(str::to_owned);
                let found = log.query(&Filter { after, kind, ..Filter::default() }, limit);
                (found.events.len(), found.seen)
            };
            assert_eq!(after(1, Some("nothing"), 10), (0, 3));
            assert_eq!(after(1, None, 1), (1, 2), "there may be more");
            assert_eq!(after(1, None, 10), (2, 3));
            assert_eq!(after(0, None, 1), (1, 3), "the newest is the last");
            assert_eq!(after(u64::MAX, None, 10), (0, u64::MAX));
        }
    }

    #[test]
    fn errors_of_a_volume_that_come_one_after_the_other_are_one_event() {
        let log = EventLog::default();
        for _ in 0..100 {
            log.tell_failure("data", "iqn.x:host", Failure::MediumError);
            log.tell_failure("data", "iqn.x:host", Failure::UnitAttention);
        }
        log.tell_failure("other", "iqn.x:host", Failure::MediumError);
        assert_eq!(log.query(&Filter::default(), 1000).events.len(), 2);
    }

    #[test]
    fn stored_events_survive_restart_and_numbers_continue() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path());
        for _ in 0..3 {
            log.tell(&drained("iqn.x:a"));
        }
        drop(log);
        let log = EventLog::open(folder.path());
        log.tell(&drained("iqn.x:b"));
        let ids = |filter: Filter, limit| {
            let found = log.query(&filter, limit).events;
            found.iter().map(|event| event.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(Filter::default(), 10), [1, 2, 3, 4]);
        assert_eq!(ids(Filter::default(), 2), [3, 4], "the newest, of the file and of memory");
        assert_eq!(ids(Filter { after: 1, ..Filter::default() }, 2), [2, 3]);
        let subject = Some("iqn.x:a".to_owned());
        assert_eq!(ids(Filter { subject, ..Filter::default() }, 2), [2, 3]);
    }

    #[test]
    fn no_more_of_the_file_is_read_than_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path());
        (0..100).for_each(|_| log.tell(&drained("iqn.x:a")));
        drop(log);
        let log = EventLog::open(folder.path());
        let looked_at = std::cell::Cell::new(0);
        let writer = log.writer.as_ref().expect("a file");
        let every_second = |event: &Event| {
            looked_at.set(looked_at.get() + 1);
            event.id.is_multiple_of(2)
        };
        let found = writer.find((1, u64::MAX), every_second, 2, true).expect("whole");
        assert_eq!(found.iter().map(|event| event.id).collect::<Vec<_>>(), [100, 98]);
        assert_eq!(looked_at.get(), 3);
    }

    #[test]
    fn memory_has_an_end_and_the_file_goes_further_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(folder.path());
        let mut kept = log.writer.as_ref().expect("a file").progress();
        for number in 1..=IN_MEMORY as u64 + 500 {
            log.tell(&drained("iqn.x:a"));
            if number % 5000 == 0 {
                // The test waits until the file has the events.
                while *kept.borrow_and_update() < number {
                    std::thread::yield_now();
                }
            }
        }
        let found = log.query(&Filter { after: 100, ..Filter::default() }, 1);
        assert_eq!(found.events[0].id, 101);
        assert_eq!(log.recent.state().events.len(), IN_MEMORY);
    }

    #[test]
    fn unwritable_folder_is_reported_once_and_log_continues() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = EventLog::open(&folder.path().join("is not there"));
        log.tell(&drained("iqn.x:a"));
        let found = log.query(&Filter::default(), 10).events;
        assert_eq!(kinds(&found), ["events_not_stored", "target_drained"]);
    }
}
