//! The tasks that accept connections at portals.

use std::sync::{Arc, Weak};

use sarsen_io::cores::Cores;
use sarsen_io::net::{Listener, Stream};
use sarsen_io::time;
use tokio::sync::{oneshot, watch};
use tracing::{debug, error, warn};

use super::Front;
use super::handshake::shake_hands;
use super::iscsi;
use super::nbd;
use super::placement::{Loads, Place};
use super::sources::{ConnectionPermit, Rejected};
use crate::events::Occurrence;
use crate::portal::Portal;
use crate::protocol::Protocol;

/// Accepts connections at portals, and assigns a core to each connection.
#[derive(Clone)]
pub(crate) struct Acceptor {
    front: Arc<Front>,
    cores: Weak<Cores>,
    loads: Arc<Loads>,
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
        Self { front, cores: Arc::downgrade(cores), loads: Arc::new(Loads::new(cores)) }
    }

    /// Creates an acceptor whose connections move to the next core whenever they can.
    #[cfg(test)]
    pub(crate) fn always_moving(front: Arc<Front>, cores: &Arc<Cores>) -> Self {
        Self { loads: Arc::new(Loads::always_moving(cores)), ..Self::new(front, cores) }
    }

    /// Returns the loads of the cores.
    #[cfg(test)]
    pub(in crate::fronts) fn loads(&self) -> Arc<Loads> {
        self.loads.clone()
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
            let portal = portal.clone();
            self.loads.place().start(move |place| async move {
                match Stream::from_std(socket) {
                    Ok(stream) => serve(stream, portal, front, connection_permit, place).await,
                    Err(error) => debug!(%peer, %error, "a connection failed before its login"),
                }
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
    place: Place,
) {
    match (portal.protocol, portal.certificates()) {
        // TLS begins within NBD.
        (Protocol::Nbd, _) => nbd::serve(stream, portal, front, connection_permit, place).await,
        (Protocol::Iscsi, None) => {
            iscsi::serve(stream, None, portal, front, connection_permit, Some(place)).await;
        }
        (Protocol::Iscsi, Some(tls)) => {
            if let Some((stream, client)) = shake_hands(stream, &tls, &front).await {
                iscsi::serve(stream, client, portal, front, connection_permit, Some(place)).await;
            }
        }
    }
}
