//! iSCSI: portals accept, [`connection`] drives one machine each, [`sessions`] knows them all;
//! [`sources`] counts where they come from.

mod connection;
mod environment;
mod handshake;
mod roster;
mod sessions;
#[cfg(feature = "simulation")]
mod simulation;
mod sources;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sarsen_io::cores::Cores;
use sarsen_io::net::{Listener, Stream};
use sarsen_io::time;
use sarsen_proto::iscsi::target::{Refusal, Settings};
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{debug, error, info, warn};

use self::handshake::shake_hands;
pub(crate) use self::roster::{Attendance, Roster};
pub(crate) use self::sessions::{Mailbox, Message, Seated, Sessions};
#[cfg(feature = "simulation")]
pub use self::simulation::Portal as SimulatedPortal;
pub(crate) use self::sources::Sources;
use self::sources::TurnedAway;
use crate::access::Access;
use crate::config::Portal;
use crate::drain::Drains;
use crate::fairness::Fairness;
use crate::metrics::Moment;
use crate::targets::Targets;
use crate::tls::Tls;

/// What all connections share.
pub(crate) struct Front {
    pub(crate) settings: Arc<Settings>,
    pub(crate) targets: Arc<Targets>,
    pub(crate) sessions: Sessions,
    pub(crate) sources: Arc<Sources>,
    pub(crate) roster: Roster,
    pub(crate) drains: Arc<Drains>,
    pub(crate) access: Arc<Access>,
    pub(crate) fairness: Arc<Fairness>,
    /// With the ports that were taken.
    pub(crate) portals: Vec<Portal>,
    /// Certificates of those that have TLS, in the same order.
    pub(crate) certificates: Vec<Option<Arc<Tls>>>,
}

impl Front {
    /// One target behind one portal of group 1, for everybody.
    #[cfg(any(test, feature = "simulation"))]
    fn of_target(
        device: Arc<sarsen_scsi::TargetDevice>,
        address: std::net::SocketAddr,
        settings: Settings,
        limits: &crate::config::Limits,
    ) -> Arc<Self> {
        let everybody = crate::access::Policy::of_everybody([device.name()]);
        let targets = Targets::default();
        targets.add(crate::targets::Target::of_device(device));
        Arc::new(Self {
            settings: Arc::new(settings),
            targets: Arc::new(targets),
            sessions: Sessions::new(limits),
            sources: Sources::new(limits),
            roster: Roster::default(),
            drains: Arc::default(),
            access: Arc::new(Access::new(everybody)),
            fairness: Arc::default(),
            portals: vec![Portal { address, group: 1, tls: None }],
            certificates: vec![None],
        })
    }

    /// Why no session with this target is to begin now, if there is a reason.
    fn turns_away(&self, target: &str) -> Option<Refusal> {
        let configured = self.targets.find(target).and_then(|target| target.redirect);
        self.drains.refusal(target, configured.as_ref())
    }

    /// Lets no session begin, asks those that are there to log out, and ends those that have not
    /// after `grace`. When this answers, the commands of all of them have ended.
    pub(crate) async fn end_sessions(&self, grace: Duration) {
        self.sessions.close();
        let deadline = time::now() + grace;
        for (_, mailbox) in self.sessions.mailboxes(None) {
            let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
            let _ = mailbox.send(Message::RequestLogout { seconds });
        }
        tokio::select! {
            () = self.sessions.emptied() => {}
            () = time::sleep_until(deadline) => {
                info!(sessions = self.sessions.count(), "ending sessions that did not log out");
            }
        }
        let mut ending = Vec::new();
        for (_, mailbox) in self.sessions.mailboxes(None) {
            let (ended, waiting) = oneshot::channel();
            if mailbox.send(Message::Terminate { ended }).is_ok() {
                ending.push(waiting);
            }
        }
        for waiting in ending {
            // Dropped when the session's last command has ended.
            let _ = waiting.await;
        }
    }

    /// What is counted, as OpenMetrics text.
    pub(crate) fn metrics(&self) -> String {
        self.access.metrics.render(Moment {
            sessions: self.sessions.count(),
            connections: self.sources.connections(),
            memory: self.settings.budget.lent(),
            memory_refused: self.settings.budget.refused(),
        })
    }
}

/// How many connections each core serves.
struct Load {
    connections: Vec<AtomicUsize>,
}

impl Load {
    /// The core with the fewest connections, which gets one more.
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

/// Starts to accept on every portal, which `listeners` are in the same order, until `closing` is told. Each portal keeps a clone of `alive`
/// for as long as it accepts.
pub(crate) fn start(
    front: &Arc<Front>,
    listeners: Vec<Listener>,
    cores: &Arc<Cores>,
    closing: &watch::Receiver<bool>,
    alive: &mpsc::Sender<()>,
) {
    let connections = (0..cores.len()).map(|_| AtomicUsize::new(0)).collect();
    let load = Arc::new(Load { connections });
    let portals = front.portals.iter().map(|portal| portal.group).zip(front.certificates.clone());
    for (listener, portal) in listeners.into_iter().zip(portals) {
        let (front, load, cores_for_task) = (front.clone(), load.clone(), Arc::downgrade(cores));
        let (mut closing, alive) = (closing.clone(), alive.clone());
        cores.spawn_on(0, move || async move {
            let _alive = alive;
            tokio::select! {
                () = accept(listener, portal, front, load, cores_for_task) => {}
                _ = closing.wait_for(|closing| *closing) => {}
            }
        });
    }
}

async fn accept(
    listener: Listener,
    (group, certificates): (u16, Option<Arc<Tls>>),
    front: Arc<Front>,
    load: Arc<Load>,
    cores: std::sync::Weak<Cores>,
) {
    loop {
        let (socket, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                error!(%error, "a portal stopped accepting");
                return;
            }
        };
        let Some(cores) = cores.upgrade() else { return };
        let visitor = match front.sources.admit(peer.ip(), time::now()) {
            Ok(visitor) => visitor,
            Err(TurnedAway { full, tell }) => {
                front.access.metrics.turned_away(full.limit());
                if let Some(count) = tell {
                    warn!(%peer, count, "connections closed as they came: {full}");
                }
                // Whoever is turned away by the thousand leaves the core to others in between.
                drop(socket);
                tokio::task::yield_now().await;
                continue;
            }
        };
        let core = load.take();
        let (front, load, certificates) = (front.clone(), load.clone(), certificates.clone());
        // For life: a connection stays on its core.
        cores.spawn_on(core, move || async move {
            match (Stream::from_std(socket), certificates) {
                (Ok(stream), None) => connection::serve(stream, None, group, front, visitor).await,
                (Ok(stream), Some(tls)) => {
                    if let Some((stream, client)) = shake_hands(stream, &tls, &front).await {
                        connection::serve(stream, client, group, front, visitor).await;
                    }
                }
                (Err(error), _) => debug!(%peer, %error, "a connection ended as it began"),
            }
            load.give_back(core);
        });
    }
}
