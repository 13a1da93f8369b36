//! The file of events: a thread of its own writes there what has come into memory. When it cannot, it
//! says so once, goes on trying, and says when it can again.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use sarsen_io::{threads, time};
use tokio::sync::watch;
use tracing::{error, info};

use super::{KEPT, Occurrence, Recent};
use crate::control::schema::events::Event;

/// Events by their numbers, as JSON.
const EVENTS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("events");
/// Between attempts, while the file cannot be written.
const RETRY: Duration = Duration::from_secs(10);

/// See the module. Dropping it waits until all is written.
pub(super) struct Keeper {
    database: Arc<Database>,
    closing: watch::Sender<bool>,
    #[cfg_attr(not(test), expect(dead_code, reason = "tests wait for it"))]
    kept: watch::Receiver<u64>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Goes on with the file at `path`, or makes it.
    pub(super) fn open(path: &Path, recent: &Arc<Recent>) -> Result<Self, String> {
        let database = Database::create(path).map_err(|error| error.to_string())?;
        let last = prepare(&database).map_err(|error| error.to_string())?;
        recent.state().last_id = last;
        let database = Arc::new(database);
        let (closing, told) = watch::channel(false);
        let (progress, kept) = watch::channel(last);
        let (written, source) = (database.clone(), recent.clone());
        let thread =
            threads::spawn_runtime("events", move || write(written, source, told, progress))
                .map_err(|error| error.to_string())?;
        Ok(Self { database, closing, kept, thread: Some(thread) })
    }

    /// The events from one number up to another that are meant, at most so many: the oldest first or, `backwards`,
    /// the newest first. None where the file cannot be read. Blocks the thread.
    pub(super) fn find(
        &self,
        (from, to): (u64, u64),
        is_meant: impl Fn(&Event) -> bool,
        limit: usize,
        backwards: bool,
    ) -> Vec<Event> {
        if from >= to || limit == 0 {
            return Vec::new();
        }
        let read = || -> Result<Vec<Event>, redb::Error> {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(EVENTS)?;
            let mut range = table.range(from..to)?;
            let mut events = Vec::new();
            while events.len() < limit {
                let entry = if backwards { range.next_back() } else { range.next() };
                let Some(entry) = entry else { break };
                // One of a later version that makes no sense here is left out.
                let event = serde_json::from_slice::<Event>(entry?.1.value());
                events.extend(event.ok().filter(&is_meant));
            }
            Ok(events)
        };
        read().unwrap_or_else(|error| {
            error!(%error, "the file of events cannot be read");
            Vec::new()
        })
    }

    #[cfg(test)]
    pub(super) fn progress(&self) -> watch::Receiver<u64> {
        self.kept.clone()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported.
            let _ = thread.join();
        }
    }
}

/// The number of the last event.
fn prepare(database: &Database) -> Result<u64, redb::Error> {
    let transaction = database.begin_write()?;
    let last = {
        let table = transaction.open_table(EVENTS)?;
        table.last()?.map_or(0, |(id, _)| id.value())
    };
    transaction.commit()?;
    Ok(last)
}

async fn write(
    database: Arc<Database>,
    recent: Arc<Recent>,
    mut closing: watch::Receiver<bool>,
    progress: watch::Sender<u64>,
) {
    let mut newest = recent.newest.subscribe();
    let mut is_failing = false;
    loop {
        let is_last = *closing.borrow();
        let kept = *progress.borrow();
        let events = recent.after(kept);
        match append(&database, &events) {
            Ok(()) => {
                if is_failing {
                    info!("events are kept in the file again");
                }
                is_failing = false;
                if let Some(last) = events.last() {
                    progress.send_replace(last.id);
                }
            }
            Err(error) => {
                if !is_failing {
                    error!(%error, "events are not kept in the file for now");
                    let (path, error) = ("the file of events".to_owned(), error.to_string());
                    recent.add(&Occurrence::EventsNotKept { path, error });
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

fn append(database: &Database, events: &[Arc<Event>]) -> Result<(), redb::Error> {
    let Some(last) = events.last() else { return Ok(()) };
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(EVENTS)?;
        for event in events {
            let text = serde_json::to_vec(&**event).expect("our own types have string keys");
            table.insert(event.id, text.as_slice())?;
        }
        table.retain_in(..last.id.saturating_sub(KEPT - 1), |_, _| false)?;
    }
    transaction.commit()?;
    Ok(())
}
