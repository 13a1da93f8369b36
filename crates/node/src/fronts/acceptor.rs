//! The tasks that accept connections at portals.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sarsen_io::cores::Cores;
use sarsen_io::heap;
use sarsen_io::net::{Listener, Stream};
use sarsen_io::time;
use tokio::sync::{oneshot, watch};
use tracing::{debug, error, warn};

use super::Front;
use super::handshake::shake_hands;
use super::iscsi;
use super::nbd;
use super::sources::{ConnectionPermit, Rejected};
use crate::events::Occurrence;
use crate::portal::Portal;
use crate::protocol::Protocol;

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
            let (load, portal) = (self.load.clone(), portal.clone());
            // A connection stays on its core until it ends.
            cores.spawn_on(core, move || async move {
                match Stream::from_std(socket) {
                    Ok(stream) => serve(stream, portal, front, connection_permit).await,
                    Err(error) => debug!(%peer, %error, "a connection failed before its login"),
                }
                load.give_back(core);
                heap::give_back_soon();
            });
        }
    }
}

/// Serves a connection with the protocol of its portal, until it has ended.
async fn serve(
    stream: Stream,
    portal: Arc<Portal>,
    front: Arc<Front>,
    connection_permit: ConnectionPermit,
) {
    match (portal.protocol, portal.certificates()) {
        // TLS begins within NBD.
        (Protocol::Nbd, _) => nbd::serve(stream, portal, front, connection_permit).await,
        (Protocol::Iscsi, None) => {
            iscsi::serve(stream, None, portal, front, connection_permit).await;
        }
        (Protocol::Iscsi, Some(tls)) => {
            if let Some((stream, client)) = shake_hands(stream, &tls, &front).await {
                iscsi::serve(stream, client, portal, front, connection_permit).await;
            }
        }
    }
}
