//! The current portals, and the tasks that accept connections at them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use sarsen_io::cores::Cores;
use sarsen_io::heap;
use sarsen_io::net::{Listener, Stream};
use sarsen_io::time;
use tokio::sync::{oneshot, watch};
use tracing::{debug, error, warn};

use super::handshake::shake_hands;
use super::sources::Rejected;
use super::{Front, connection};
use crate::config::{self};
use crate::events::Occurrence;
use crate::portal::Portal;

/// All portals, in the order of the configuration.
#[derive(Default)]
pub(crate) struct Portals {
    all: RwLock<Arc<[Arc<Portal>]>>,
}

impl Portals {
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn new(all: Vec<Arc<Portal>>) -> Self {
        Self { all: RwLock::new(all.into()) }
    }

    pub(crate) fn replace(&self, all: Vec<Arc<Portal>>) {
        *self.all.write() = all.into();
    }

    pub(crate) fn all(&self) -> Arc<[Arc<Portal>]> {
        self.all.read().clone()
    }

    /// Returns the configuration of the portals, with the ports that the system has assigned.
    pub(crate) fn configs(&self) -> Vec<config::Portal> {
        self.all().iter().map(|portal| portal.config()).collect()
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn first(&self) -> Arc<Portal> {
        self.all()[0].clone()
    }
}

/// Number of connections of each core.
struct Load {
    connections: Vec<AtomicUsize>,
}

impl Load {
    /// Returns the core with the fewest connections, and counts one more for it.
    fn take(&self) -> usize {
        let counts = self.connections.iter().map(|count| count.load(Ordering::Relaxed));
        let core = counts.enumerate().min_by_key(|(_, count)| *count).map_or(0, |(core, _)| core);
        self.connections[core].fetch_add(1, Ordering::Relaxed);
        core
    }

    fn give_back(&self, core: usize) {
        self.connections[core].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts connections at portals, and assigns a core to each connection.
#[derive(Clone)]
pub(crate) struct Acceptor {
    front: Arc<Front>,
    cores: Weak<Cores>,
    load: Arc<Load>,
}

/// A portal that accepts connections until this is dropped or stopped.
pub(crate) struct Accepting {
    closing: watch::Sender<bool>,
    ended: oneshot::Receiver<()>,
}

impl Accepting {
    /// Stops accepting. When this returns, the socket is closed.
    pub(crate) async fn stop(self) {
        self.closing.send_replace(true);
        // The sender is dropped when the task has ended.
        let _ = self.ended.await;
    }
}

impl Acceptor {
    pub(crate) fn new(front: Arc<Front>, cores: &Arc<Cores>) -> Self {
        let connections = (0..cores.len()).map(|_| AtomicUsize::new(0)).collect();
        Self { front, cores: Arc::downgrade(cores), load: Arc::new(Load { connections }) }
    }

    /// Starts to accept connections.
    pub(crate) fn open(&self, portal: Arc<Portal>, listener: Arc<Listener>) -> Accepting {
        let (closing, mut reported) = watch::channel(false);
        let (alive, ended) = oneshot::channel();
        let acceptor = self.clone();
        if let Some(cores) = self.cores.upgrade() {
            cores.spawn_on(0, move || async move {
                tokio::select! {
                    () = acceptor.accept(&listener, &portal) => {}
                    // Stopped, or dropped.
                    _ = reported.wait_for(|closing| *closing) => {}
                }
                drop(listener);
                drop::<oneshot::Sender<()>>(alive);
            });
        }
        Accepting { closing, ended }
    }

    async fn accept(&self, listener: &Listener, portal: &Arc<Portal>) {
        loop {
            let (socket, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    error!(%error, portal = %portal.address, "a portal stopped accepting");
                    return;
                }
            };
            let Some(cores) = self.cores.upgrade() else { return };
            let front = self.front.clone();
            let connection_permit = match front.sources.admit(peer.ip(), time::now()) {
                Ok(connection_permit) => connection_permit,
                Err(Rejected { full, tell }) => {
                    front.access.metrics.rejected(full.limit());
                    if let Some(count) = tell {
                        warn!(%peer, count, "connections closed as they came: {full}");
                        let (limit, why) = (full.limit(), full.to_string());
                        let away = Occurrence::ConnectionsRejected { peer, count, limit, why };
                        front.access.events.tell(&away);
                    }
                    // The task yields, so that a flood of rejected connections does not occupy the core.
                    drop(socket);
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let core = self.load.take();
            let (load, portal, certificates) =
                (self.load.clone(), portal.clone(), portal.certificates());
            // A connection stays on its core until it ends.
            cores.spawn_on(core, move || async move {
                match (Stream::from_std(socket), certificates) {
                    (Ok(stream), None) => {
                        connection::serve(stream, None, portal, front, connection_permit).await;
                    }
                    (Ok(stream), Some(tls)) => {
                        if let Some((stream, client)) = shake_hands(stream, &tls, &front).await {
                            connection::serve(stream, client, portal, front, connection_permit)
                                .await;
                        }
                    }
                    (Err(error), _) => {
                        debug!(%peer, %error, "a connection failed before its login")
                    }
                }
                load.give_back(core);
                heap::give_back_soon();
            });
        }
    }
}
