//! Notifications to systemd: ready, watchdog. systemd also stores the listening sockets during a restart.

use std::time::Duration;

use sarsen_io::handover::{self, HandoverSocket};
use sarsen_io::time;
use sarsen_node::Server;
use sd_notify::NotifyState;
use tracing::{error, warn};

/// Prefix of the names of sockets that systemd stores for the server.
const NAME_PREFIX: &str = "portal_";

/// Names of the sockets that the last run of this service stored with systemd.
pub(super) fn kept_names() -> Vec<String> {
    let names = handover::received().into_iter().map(|(name, _)| name);
    names.filter(|name| name.starts_with(NAME_PREFIX)).collect()
}

/// Reports that the server accepts connections. `kept` are the sockets that systemd need not store any more: a
/// running server owns them, and a deleted portal closes its socket.
pub(super) fn ready(kept: &[String]) {
    for (name, address) in handover::received() {
        if !name.starts_with(NAME_PREFIX) {
            warn!(%address, name, "closed a socket that was passed to this program: no portal listens there");
        }
    }
    handover::close_the_rest();
    for name in kept {
        tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
    tell(&[NotifyState::Ready]);
}

/// Reports that the server ends. After a restart it gets its sockets back, and new connections wait meanwhile.
pub(super) fn stopping(sockets: &[HandoverSocket]) {
    for kept in sockets {
        // A colon separates names.
        let name = format!("{NAME_PREFIX}{}", kept.address).replace(':', "_");
        let state = [NotifyState::FdStore, NotifyState::FdName(&name)];
        if let Err(error) = sd_notify::notify_with_fds(&state, &[kept.socket()]) {
            warn!(%error, "the listening sockets cannot be given to the service manager");
        }
    }
    tell(&[NotifyState::Stopping]);
}

/// Notifies the watchdog, if there is one, while every core responds. Does not end.
pub(super) async fn ping_watchdog(server: &Server) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        if !server.pulse().await {
            error!("a core has ended; the watchdog will end this process");
            return std::future::pending().await;
        }
        tell(&[NotifyState::Watchdog]);
        time::sleep_until(time::now() + interval(limit)).await;
    }
}

/// Notifies the watchdog while the server ends and flushes, when its cores do not respond any more.
pub(super) async fn ping_watchdog_stopping() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        tell(&[NotifyState::Watchdog]);
        time::sleep_until(time::now() + interval(limit)).await;
    }
}

/// Two notifications each period are enough; a third one covers a late one.
fn interval(limit: Duration) -> Duration {
    limit / 3
}

/// Sends a notification, if a service manager started this process.
pub(crate) fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "the service manager cannot be notified");
    }
}
