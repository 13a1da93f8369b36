//! The scrub of an open pool.

use std::sync::Arc;
use std::time::SystemTime;

use sarsen_io::time;
use sarsen_pool::Scrubbed;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::OpenPool;

/// The scrub of a pool that is under way, and the last one.
#[derive(Default)]
pub(crate) struct Scrub {
    /// Dropped to stop it.
    stop: Option<oneshot::Sender<()>>,
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
    pub(crate) fn begin_scrub(self: &Arc<Self>) {
        let stop = {
            let mut scrub = self.scrub.lock();
            if scrub.stop.is_some() {
                return;
            }
            let (sender, stop) = oneshot::channel::<()>();
            (scrub.stop, scrub.done) = (Some(sender), (0, 0));
            stop
        };
        let open = self.clone();
        let ended = self.cores.begin(move || async move {
            let progress = |done, all| open.scrub.lock().done = (done, all);
            let before = open.counted();
            let result = tokio::select! {
                result = open.pool.scrub(progress) => Some(result),
                _ = stop => None,
            };
            // One that was stopped has no result. Another one may have begun since.
            let Some(result) = result else { return };
            let name = open.config().name;
            if let Ok(scrubbed) = &result {
                open.note_scrub(before, scrubbed).await;
            }
            let mut scrub = open.scrub.lock();
            scrub.stop = None;
            scrub.last = Some(match result {
                Ok(scrubbed) => {
                    scrub.done = (1, 1);
                    info!(pool = name, ?scrubbed, "the scrub is complete");
                    Ok((scrubbed, time::wall_clock()))
                }
                Err(error) => {
                    warn!(pool = name, %error, "the scrub ended early");
                    Err(error.to_string())
                }
            });
        });
        drop(ended);
    }

    /// Ends a scrub.
    pub(crate) fn stop_scrub(&self) {
        drop(self.scrub.lock().stop.take());
    }
}
