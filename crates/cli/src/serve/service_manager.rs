//! What systemd is told and what it keeps: that the server is ready, that it lives, and its listening
//! sockets over a restart.

use std::time::Duration;

use sarsen_io::handover::{self, HandoverSocket};
use sarsen_io::time;
use sarsen_node::Server;
use sd_notify::NotifyState;
use tracing::{error, warn};

/// What the names of sockets begin with that we gave systemd to keep.
const NAME_PREFIX: &str = "portal_";

/// The names under which the last run of this service left sockets with systemd.
pub(super) fn kept_names() -> Vec<String> {
    let names = handover::received().into_iter().map(|(name, _)| name);
    names.filter(|name| name.starts_with(NAME_PREFIX)).collect()
}

/// The server takes connections. `kept` are the sockets that systemd need not keep any more: while the
/// server runs they are its own, and a portal that goes is to close its socket.
pub(super) fn ready(kept: &[String]) {
    for (name, address) in handover::received() {
        if !name.starts_with(NAME_PREFIX) {
            warn!(%address, name, "no portal listens there, though the service manager does: closed");
        }
    }
    handover::close_the_rest();
    for name in kept {
        tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
    }
    tell(&[NotifyState::Ready]);
}

/// The server ends. If it is started again, it gets its sockets back, and who connects meanwhile waits.
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

/// Pets the watchdog, if there is one, as long as every core does what it is asked to. Does not end.
pub(super) async fn watch(server: &Server) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        if !server.pulse().await {
            error!("a core is gone: the watchdog will end this process");
            return std::future::pending().await;
        }
        tell(&[NotifyState::Watchdog]);
        time::sleep_until(time::now() + interval(limit)).await;
    }
}

/// The same while the server ends, when its cores answer no more: what is brought to disk may take long.
pub(super) async fn watch_end() {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    loop {
        tell(&[NotifyState::Watchdog]);
        time::sleep_until(time::now() + interval(limit)).await;
    }
}

/// Twice would do; once more, one may come late.
fn interval(limit: Duration) -> Duration {
    limit / 3
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!(%error, "the service manager cannot be told");
    }
}
