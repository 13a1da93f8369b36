//! The scrub of an open pool.

use std::sync::Arc;
use std::time::SystemTime;

use sarsen_io::time;
use sarsen_pool::{PoolError, Scrubbed};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::OpenPool;
use crate::events::{EventLog, Occurrence};

/// The scrub of a pool that is under way, and the last one.
#[derive(Default)]
pub(crate) struct Scrub {
    /// Dropped to stop it.
    stop: Option<oneshot::Sender<()>>,
    /// The number of the last one that was begun.
    number: u64,
    /// The part that is done, and the whole.
    pub(crate) done: (u64, u64),
    /// Its result, and its end.
    pub(crate) last: Option<Result<(Scrubbed, SystemTime), String>>,
}

impl Scrub {
    pub(crate) const fn is_running(&self) -> bool {
        self.stop.is_some()
    }
}

impl OpenPool {
    /// Begins a scrub, unless one is under way.
    pub(crate) fn begin_scrub(self: &Arc<Self>, events: &Arc<EventLog>) {
        let (stop, number) = {
            let mut scrub = self.scrub.lock();
            if scrub.stop.is_some() {
                return;
            }
            let (sender, stop) = oneshot::channel::<()>();
            (scrub.stop, scrub.done) = (Some(sender), (0, 0));
            scrub.number += 1;
            (stop, scrub.number)
        };
        let (open, events) = (self.clone(), events.clone());
        let ended = self.access.cores.begin(move || async move {
            let progress = |done, all| open.scrub.lock().done = (done, all);
            let before = open.counted();
            let result = tokio::select! {
                result = open.pool.scrub(progress) => Some(result),
                _ = stop => None,
            };
            // One that was stopped has no result.
            let Some(result) = result else { return };
            let name = open.config().name;
            if let Ok(scrubbed) = &result {
                open.note_scrub(before, scrubbed).await;
            }
            if let Err(PoolError::Damaged { what }) = &result {
                open.note_damage(what);
            }
            let result = result.map_err(|error| error.to_string());
            match &result {
                Ok(scrubbed) => info!(pool = name, ?scrubbed, "the scrub is complete"),
                Err(error) => warn!(pool = name, error, "the scrub ended early"),
            }
            events.tell(&Occurrence::PoolScrubEnded { pool: name, result: result.clone() });
            let mut scrub = open.scrub.lock();
            if scrub.number == number {
                scrub.stop = None;
                if result.is_ok() {
                    scrub.done = (1, 1);
                }
            }
            scrub.last = Some(result.map(|scrubbed| (scrubbed, time::wall_clock())));
        });
        drop(ended);
    }

    /// Ends a scrub.
    pub(crate) fn stop_scrub(&self) {
        drop(self.scrub.lock().stop.take());
    }
}
