//! The file of events. A separate thread writes new events from memory to the file. When a write fails, it logs this
//! once, tries again, and logs when it succeeds. A damaged file is renamed, and a new one begins with the events in
//! memory: events are a log, and a server does not wait for them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, Row, params};
use sarsen_io::{threads, time};
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::{KEPT, Occurrence, Recent};
use crate::database::{self, CHECKSUM_LENGTH, DatabaseError, Journal, Schema, checksum};
use crate::schema::events::Event;

/// The events by their numbers, as JSON, each with the number of the previous event.
const SCHEMA: Schema = Schema {
    version: 1,
    tables: &[
        "CREATE TABLE event (id INTEGER PRIMARY KEY, previous INTEGER NOT NULL, body BLOB NOT NULL, \
               checksum BLOB NOT NULL) STRICT",
    ],
};
/// Interval of attempts while the file cannot be written.
const RETRY: Duration = Duration::from_secs(10);

/// The writer of events. Its drop waits until all events are written.
pub(super) struct EventWriter {
    log: Arc<Mutex<Log>>,
    recent: Arc<Recent>,
    /// The file was missing.
    is_new: bool,
    closing: watch::Sender<bool>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests wait for it"))]
    kept: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

/// The file.
struct Log {
    path: PathBuf,
    /// The connection; `None` after an error, until it is opened again.
    connection: Option<Connection>,
    /// The number of the last event in the file.
    last: u64,
}

impl EventWriter {
    /// Opens the file at `path`, or creates it.
    pub(super) fn open(path: &Path, recent: &Arc<Recent>) -> Result<Self, String> {
        let is_new = !path.exists();
        let mut log = Log { path: path.to_owned(), connection: None, last: 0 };
        let anew = match log.connection() {
            Err(DatabaseError::Damaged(why)) => Some(log.begin_anew(why)),
            Err(error) => Some(Err(error)),
            Ok(_) => None,
        };
        let anew = anew.transpose().map_err(|error| error.to_string())?;
        let last = log.last;
        recent.state().last_id = last;
        if let Some(anew) = &anew {
            // The file is written again with all events in memory.
            log.last = 0;
            recent.add(anew);
        }
        let log = Arc::new(Mutex::new(log));
        let (closing, reported) = watch::channel(false);
        let (progress, kept) = watch::channel(last);
        let (written, source) = (log.clone(), recent.clone());
        let thread =
            threads::spawn_runtime("events", move || write(written, source, reported, progress))
                .map_err(|error| error.to_string())?;
        Ok(Self { log, recent: recent.clone(), is_new, closing, kept, thread: Some(thread) })
    }

    /// Returns the path of the file if it was missing.
    pub(super) fn created_path(&self) -> Option<PathBuf> {
        self.is_new.then(|| locked(&self.log).path.clone())
    }

    /// Returns the matching events between two numbers, maximum `limit`: the oldest first or, with `backwards`, the
    /// newest first. Returns an empty list if the file cannot be read now, and `None` if the file was found to be
    /// damaged: it was renamed, and an event reports it. Blocks the thread.
    pub(super) fn find(
        &self,
        range: (u64, u64),
        is_meant: impl Fn(&Event) -> bool,
        limit: usize,
        backwards: bool,
    ) -> Option<Vec<Event>> {
        if range.0 >= range.1 || limit == 0 {
            return Some(Vec::new());
        }
        let mut log = locked(&self.log);
        let found = log
            .connection()
            .and_then(|connection| find(connection, range, is_meant, limit, backwards));
        match found {
            Ok(events) => return Some(events),
            Err(DatabaseError::Damaged(why)) => match log.begin_anew(why) {
                Ok(anew) => {
                    log.last = 0;
                    drop(log);
                    self.recent.add(&anew);
                    return None;
                }
                Err(error) => error!(%error, "the damaged file of events cannot be put aside"),
            },
            Err(error) => error!(%error, "the file of events cannot be read"),
        }
        Some(Vec::new())
    }

    #[cfg(test)]
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.kept.clone()
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported already.
            let _ = thread.join();
        }
    }
}

fn locked(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock()
}

impl Log {
    /// Returns the file, and opens or creates it if necessary.
    fn connection(&mut self) -> Result<&mut Connection, DatabaseError> {
        if self.connection.is_none() {
            let opened = match database::open(&self.path, SCHEMA, Journal::Rollback) {
                Err(DatabaseError::System(error)) if error.kind() == io::ErrorKind::NotFound => {
                    database::create(&self.path, SCHEMA, |_| Ok(()))?;
                    database::open(&self.path, SCHEMA, Journal::Rollback)?
                }
                opened => opened?,
            };
            self.last = last(&opened)?;
            self.connection = Some(opened);
        }
        self.connection.as_mut().ok_or_else(|| DatabaseError::damaged("it is not open"))
    }

    /// Renames the file and begins a new one. The numbers of events continue, if the last intact one can be read.
    fn begin_anew(&mut self, why: String) -> Result<Occurrence, DatabaseError> {
        self.connection = None;
        let aside = database::put_aside(&self.path)?;
        warn!(path = %self.path.display(), why, aside = %aside.display(), "a new log of events begins");
        let before = self.last;
        self.connection()?;
        let readable = database::open_damaged(&aside).and_then(|damaged| last(&damaged));
        self.last = before.max(readable.unwrap_or(0));
        let path = self.path.display().to_string();
        Ok(Occurrence::EventsRecreated { path, aside: Some(aside.display().to_string()), why })
    }

    /// Writes the events after the last one in the file. If the file is found to be damaged, a new one begins, and
    /// the caller reports it.
    fn catch_up(&mut self, recent: &Recent) -> Result<Option<Occurrence>, DatabaseError> {
        let anew = match self.append(recent) {
            Err(DatabaseError::Damaged(why)) => self.begin_anew(why)?,
            appended => return appended.map(|()| None),
        };
        self.last = 0;
        self.append(recent)?;
        Ok(Some(anew))
    }

    fn append(&mut self, recent: &Recent) -> Result<(), DatabaseError> {
        let events = recent.after(self.last);
        let Some(newest) = events.last() else { return Ok(()) };
        let mut previous = self.last;
        let transaction = self.connection()?.transaction()?;
        for event in &events {
            let body = serde_json::to_vec(&**event).expect("our own types have string keys");
            transaction
                .prepare_cached("INSERT OR REPLACE INTO event VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![event.id, previous, body, sum(event.id, previous, &body)])?;
            previous = event.id;
        }
        transaction
            .prepare_cached("DELETE FROM event WHERE id < ?1")?
            .execute([newest.id.saturating_sub(KEPT - 1)])?;
        transaction.commit()?;
        self.last = newest.id;
        Ok(())
    }
}

fn sum(id: u64, previous: u64, body: &[u8]) -> [u8; CHECKSUM_LENGTH] {
    checksum(&[&id.to_le_bytes(), &previous.to_le_bytes(), body])
}

/// Returns an event's number, the number of the previous event, and the event.
fn entry(row: &Row<'_>) -> Result<(u64, u64, Vec<u8>), DatabaseError> {
    let (id, previous, body) = (row.get(0)?, row.get(1)?, row.get::<_, Vec<u8>>(2)?);
    if row.get::<_, [u8; CHECKSUM_LENGTH]>(3)? == sum(id, previous, &body) {
        Ok((id, previous, body))
    } else {
        Err(DatabaseError::Damaged(format!("event {id}: its checksum is wrong")))
    }
}

/// Returns the number of the last event.
fn last(connection: &Connection) -> Result<u64, DatabaseError> {
    let mut statement = connection
        .prepare("SELECT id, previous, body, checksum FROM event ORDER BY id DESC LIMIT 1")?;
    let mut rows = statement.query([])?;
    Ok(rows.next()?.map(entry).transpose()?.map_or(0, |(id, _, _)| id))
}

fn find(
    connection: &Connection,
    (from, to): (u64, u64),
    is_meant: impl Fn(&Event) -> bool,
    limit: usize,
    backwards: bool,
) -> Result<Vec<Event>, DatabaseError> {
    let order = if backwards { "DESC" } else { "ASC" };
    let mut statement = connection.prepare_cached(&format!(
        "SELECT id, previous, body, checksum FROM event WHERE id >= ?1 AND id < ?2 ORDER BY id {order}"
    ))?;
    let limits = [from, to].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
    let mut rows = statement.query(limits)?;
    let mut events = Vec::new();
    // The number of the previous row, and the number of its predecessor.
    let mut before: Option<(u64, u64)> = None;
    while events.len() < limit {
        let Some(row) = rows.next()? else { break };
        let (id, previous, body) = entry(row)?;
        let is_next =
            before.is_none_or(
                |(last, its_previous)| {
                    if backwards { its_previous == id } else { previous == last }
                },
            );
        if !is_next {
            return Err(DatabaseError::Damaged(format!("events are missing beside event {id}")));
        }
        before = Some((id, previous));
        // An event of a later version that this version cannot parse is omitted.
        let event = serde_json::from_slice::<Event>(&body);
        events.extend(event.ok().filter(&is_meant));
    }
    Ok(events)
}

async fn write(
    log: Arc<Mutex<Log>>,
    recent: Arc<Recent>,
    mut closing: watch::Receiver<bool>,
    progress: watch::Sender<u64>,
) {
    let mut newest = recent.newest.subscribe();
    let mut is_failing = false;
    loop {
        let is_last = *closing.borrow();
        let (written, last) = {
            let mut log = locked(&log);
            let written = log.catch_up(&recent);
            if written.is_err() {
                log.connection = None;
            }
            (written, log.last)
        };
        match written {
            Ok(anew) => {
                if is_failing {
                    info!("events are kept in the file again");
                }
                is_failing = false;
                progress.send_replace(last);
                anew.iter().for_each(|anew| recent.add(anew));
            }
            Err(error) => {
                if !is_failing {
                    error!(%error, "events are not kept in the file for now");
                    let (path, error) = ("the file of events".to_owned(), error.to_string());
                    recent.add(&Occurrence::EventsNotStored { path, error });
                }
                is_failing = true;
            }
        }
        if is_last {
            return;
        }
        let retry = time::now() + RETRY;
        tokio::select! {
            _ = closing.wait_for(|closing| *closing) => {}
            _ = newest.changed(), if !is_failing => {}
            () = time::sleep_until(retry), if is_failing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::{EventLog, Filter};
    use super::*;

    fn drained(target: &str) -> Occurrence {
        Occurrence::TargetDrained { target: target.into(), asked: 2, dropped: 1 }
    }

    fn kinds(log: &EventLog) -> Vec<(u64, String)> {
        let found = log.query(&Filter::default(), 1000).events;
        found.iter().map(|event| (event.id, event.kind.clone())).collect()
    }

    fn count(log: &EventLog, kind: &str) -> usize {
        kinds(log).iter().filter(|(_, found)| found == kind).count()
    }

    /// Replaces each occurrence of a text by another one of the same length: SQLite leaves old copies of a text in the
    /// file.
    fn replaced(bytes: &[u8], text: &str, other: &str) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let mut from = 0;
        while let Some(place) =
            bytes[from..].windows(text.len()).position(|it| it == text.as_bytes())
        {
            from += place;
            bytes[from..][..text.len()].copy_from_slice(other.as_bytes());
        }
        assert_ne!(from, 0, "it is there");
        bytes
    }

    #[test]
    fn a_damaged_file_is_put_aside_with_an_event_and_numbers_go_on_where_they_can_be_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.sqlite");
        for damage in ["header", "empty", "text", "body"] {
            let log = EventLog::open(folder.path());
            (0..3).for_each(|_| log.tell(&drained("iqn.x:aaaa")));
            drop(log);
            let mut bytes = fs::read(&path).expect("read");
            match damage {
                "header" => bytes[30] ^= 0x10,
                "empty" => bytes.clear(),
                "text" => bytes = b"something else".to_vec(),
                _ => bytes = replaced(&bytes, "iqn.x:aaaa", "iqn.x:aaab"),
            }
            fs::write(&path, bytes).expect("written");
            let log = EventLog::open(folder.path());
            log.tell(&drained("iqn.x:b"));
            let found = kinds(&log);
            assert_eq!(count(&log, "events_recreated"), 1, "{damage}: {found:?}");
            assert_eq!(found.last().expect("events").1, "target_drained", "{damage}");
            drop(log);
            assert_eq!(
                kinds(&EventLog::open(folder.path())),
                found,
                "{damage}: the new file goes on"
            );
        }
        let names = fs::read_dir(folder.path()).expect("a folder").flatten();
        let aside = names.filter(|entry| entry.file_name().to_string_lossy().contains(".damaged-"));
        assert_eq!(aside.count(), 3, "there is an end to how many are kept");
    }

    #[test]
    fn damaged_event_file_is_reported_and_recreated_from_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("events.sqlite");
        let log = EventLog::open(folder.path());
        (0..100).for_each(|_| log.tell(&drained("iqn.x:aaaa")));
        log.tell(&drained("iqn.x:bbbb"));
        // The change does not affect the last event, which is checked when the file is opened.
        (0..100).for_each(|_| log.tell(&drained("iqn.x:aaaa")));
        drop(log);
        let bytes = fs::read(&path).expect("read");
        fs::write(&path, replaced(&bytes, "iqn.x:bbbb", "iqn.x:bbbc")).expect("written");
        let log = EventLog::open(folder.path());
        log.tell(&drained("iqn.x:b"));
        let found = kinds(&log);
        let (drained_id, reported) = (found[0].0, &found[1]);
        assert_eq!(
            (drained_id, reported.0, &*reported.1),
            (202, 203, "events_recreated"),
            "{found:?}"
        );
        assert_eq!(found.len(), 2, "nothing of the damaged file is answered: {found:?}");
        log.tell(&drained("iqn.x:c"));
        let found = kinds(&log);
        assert_eq!(found.len(), 3, "{found:?}");
        drop(log);
        assert_eq!(kinds(&EventLog::open(folder.path())), found);
    }

    #[test]
    fn a_damage_that_is_met_while_it_writes_costs_no_event_that_is_in_memory() {
        let folder = tempfile::tempdir().expect("a folder");
        let recent = Arc::clone(&EventLog::default().recent);
        let path = folder.path().join("events.sqlite");
        let mut log = Log { path: path.clone(), connection: None, last: 0 };
        (0..3).for_each(|_| recent.add(&drained("iqn.x:a")));
        assert!(log.catch_up(&recent).expect("written").is_none());
        log.connection().expect("open").execute_batch("DROP TABLE event").expect("damaged");
        recent.add(&drained("iqn.x:b"));
        let reported = log.catch_up(&recent).expect("written");
        assert!(matches!(reported, Some(Occurrence::EventsRecreated { .. })), "{reported:?}");
        let all = find(log.connection().expect("open"), (1, 100), |_| true, 100, false);
        assert_eq!(all.expect("read").len(), 4);
        assert_eq!(log.last, 4);
    }

    #[test]
    fn events_that_were_taken_out_are_missed() {
        let folder = tempfile::tempdir().expect("a folder");
        let recent = Arc::clone(&EventLog::default().recent);
        let mut log = Log { path: folder.path().join("events.sqlite"), connection: None, last: 0 };
        (0..5).for_each(|_| recent.add(&drained("iqn.x:a")));
        log.catch_up(&recent).expect("written");
        let connection = log.connection().expect("open");
        connection.execute("DELETE FROM event WHERE id = 3", []).expect("taken out");
        for backwards in [true, false] {
            let found = find(connection, (1, 100), |_| true, 100, backwards);
            assert!(matches!(found, Err(DatabaseError::Damaged(_))), "{found:?}");
        }
    }
}
