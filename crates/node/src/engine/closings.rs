//! The closing of volumes: they are flushed, and then closed when no session uses them any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use sarsen_block::{BlockError, Store};
use sarsen_io::cores::Cores;
use sarsen_io::{threads, time};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, info};

use super::volumes::Volume;

/// Stores by the names of their volumes.
pub(crate) type Stores = Vec<(String, Arc<dyn Store>)>;

/// Flushes stores, on a core. Returns whether all flushes succeeded; the log has the failures.
pub(crate) async fn flush(cores: &Weak<Cores>, stores: Stores) -> bool {
    let (sender, answer) = oneshot::channel();
    {
        let Some(cores) = cores.upgrade() else { return false };
        cores.spawn_on(0, move || async move {
            let mut all = true;
            for (volume, store) in stores {
                match store.flush().wait().await {
                    Ok(()) | Err(BlockError::ReadOnly) => {}
                    Err(source) => {
                        error!(volume, error = %source, "the last flush failed");
                        all = false;
                    }
                }
            }
            let _ = sender.send(all);
        });
    }
    answer.await.unwrap_or(false)
}

/// Flushes stores concurrently, and waits for them until the deadline. Returns whether all flushes succeeded; the log
/// has the failures.
pub(crate) async fn flush_until(cores: &Weak<Cores>, stores: Stores, deadline: Instant) -> bool {
    let mut left: BTreeMap<usize, String> = BTreeMap::new();
    let (sender, mut answers) = mpsc::unbounded_channel();
    {
        let Some(cores) = cores.upgrade() else { return false };
        for (number, (volume, store)) in stores.into_iter().enumerate() {
            left.insert(number, volume);
            let sender = sender.clone();
            cores.spawn_on(number % cores.len(), move || async move {
                let _ = sender.send((number, store.flush().wait().await));
            });
        }
    }
    drop(sender);
    let mut all = true;
    loop {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = time::sleep_until(deadline) => None,
        };
        let Some((number, flushed)) = answer else { break };
        let volume = left.remove(&number);
        match flushed {
            Ok(()) | Err(BlockError::ReadOnly) => {}
            Err(source) => {
                error!(volume, error = %source, "the last flush failed");
                all = false;
            }
        }
    }
    for volume in left.values() {
        error!(
            volume,
            "the disk has not ended the last flush in time: written data may not be on it"
        );
    }
    all && left.is_empty()
}

/// Removed volumes that are not closed yet.
#[derive(Clone, Default)]
pub(crate) struct Closings {
    state: Arc<Mutex<ClosingsState>>,
}

#[derive(Default)]
struct ClosingsState {
    last_number: u64,
    open: BTreeMap<u64, (String, Arc<dyn Store>)>,
}

impl Closings {
    fn state(&self) -> MutexGuard<'_, ClosingsState> {
        self.state.lock()
    }

    /// Flushes and closes volumes when their last commands have ended. This runs on its own thread, because the release
    /// of a large memory takes time.
    pub(crate) fn begin(&self, volumes: Vec<Volume>, cores: Weak<Cores>) {
        if volumes.is_empty() {
            return;
        }
        let mut closing = Vec::new();
        {
            let mut state = self.state();
            for Volume { config, unit, store, ended, .. } in volumes {
                drop(unit);
                state.last_number += 1;
                let number = state.last_number;
                state.open.insert(number, (config.name, store));
                closing.push((number, ended));
            }
        }
        let closings = self.clone();
        let thread = threads::spawn_detached("closing", move || async move {
            let close = async |(number, ended): (u64, oneshot::Receiver<()>)| {
                // The unit's end drops the sender.
                let _ = ended.await;
                let Some(stored) = closings.get(number) else { return };
                flush(&cores, vec![stored]).await;
                if let Some((volume, store)) = closings.remove(number) {
                    drop(store);
                    info!(volume, "the volume is closed");
                }
            };
            join_all(closing.into_iter().map(close)).await;
        });
        if let Err(error) = thread {
            error!(%error, "removed volumes stay open until the server ends");
        }
    }

    fn get(&self, number: u64) -> Option<(String, Arc<dyn Store>)> {
        self.state().open.get(&number).cloned()
    }

    fn remove(&self, number: u64) -> Option<(String, Arc<dyn Store>)> {
        self.state().open.remove(&number)
    }

    /// Returns the stores that are still open.
    pub(crate) fn stores(&self) -> Stores {
        self.state().open.values().cloned().collect()
    }
}
