//! The state that the connections of all protocols share.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sarsen_io::time;
use sarsen_proto::iscsi::target::{Refusal, Settings};
use tokio::sync::oneshot;
use tracing::info;

use super::sources::Sources;
use crate::access::Access;
use crate::config::Limits;
use crate::drain::Drains;
use crate::events::EventLog;
use crate::mailbox::ConnectionRequest;
use crate::metrics::MetricsSnapshot;
use crate::portal::Portals;
use crate::qos::Qos;
use crate::sessions::Sessions;
use crate::targets::Targets;
use crate::trace::Traces;

/// See the module.
pub(crate) struct Front {
    settings: Mutex<Arc<Settings>>,
    pub(crate) targets: Arc<Targets>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) sources: Arc<Sources>,
    pub(crate) drains: Arc<Drains>,
    pub(crate) access: Arc<Access>,
    pub(crate) qos: Arc<Qos>,
    pub(crate) traces: Traces,
    pub(crate) portals: Portals,
}

impl Front {
    /// Creates a front without targets and portals, which permits no initiator.
    pub(crate) fn new(limits: &Limits, events: EventLog) -> Self {
        Self {
            settings: Mutex::new(Arc::new(limits.settings())),
            targets: Arc::default(),
            sessions: Arc::new(Sessions::new(limits)),
            sources: Sources::new(limits),
            drains: Arc::default(),
            access: Arc::new(Access::default().with_event_log(events)),
            qos: Arc::default(),
            traces: Traces::default(),
            portals: Portals::default(),
        }
    }

    /// Creates a front with one target behind one portal of group 1, which permits all initiators.
    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn of_target(
        device: Arc<sarsen_scsi::TargetDevice>,
        address: std::net::SocketAddr,
        settings: Settings,
        limits: &Limits,
    ) -> Arc<Self> {
        let everybody = crate::access::Policy::of_everybody([device.name()]);
        let targets = Targets::default();
        targets.add(crate::targets::Target::of_device(device));
        Arc::new(Self {
            settings: Mutex::new(Arc::new(settings)),
            targets: Arc::new(targets),
            access: Arc::new(Access::new(everybody)),
            portals: Portals::new(vec![crate::portal::Portal::new(
                address,
                crate::protocol::Protocol::Iscsi,
                1,
                None,
            )]),
            ..Self::new(limits, EventLog::default())
        })
    }

    /// Returns the settings for new connections.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.lock().clone()
    }

    /// Sets other limits, which apply to new connections and sessions.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        self.sources.set_limits(limits);
        self.sessions.set_limits(limits);
        let mut settings = self.settings.lock();
        settings.budget.set_limit(limits.memory.get());
        *settings = Arc::new(limits.settings_with(settings.budget.clone()));
    }

    /// Returns the reason to refuse new sessions with a target, if there is one.
    pub(super) fn rejects(&self, target: &str) -> Option<Refusal> {
        let configured = self.targets.find(target).and_then(|target| target.redirect);
        self.drains.refusal(target, configured.as_ref())
    }

    /// Rejects new sessions, asks the existing ones to log out, and terminates the remaining ones after `grace`. When
    /// this returns, the commands of all sessions have ended.
    pub(crate) async fn end_sessions(&self, grace: Duration) {
        self.sessions.reject_new();
        let deadline = time::now() + grace;
        for (_, mailbox) in self.sessions.mailboxes(None) {
            let seconds = u16::try_from(grace.as_secs()).unwrap_or(u16::MAX);
            let _ = mailbox.send(ConnectionRequest::RequestLogout { seconds });
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
            if mailbox.send(ConnectionRequest::Terminate { ended }).is_ok() {
                ending.push(waiting);
            }
        }
        for waiting in ending {
            // The sender is dropped when the session's last command has ended.
            let _ = waiting.await;
        }
    }

    /// Returns the metrics as OpenMetrics text.
    pub(crate) fn metrics(&self) -> String {
        let settings = self.settings();
        self.access.metrics.render(MetricsSnapshot {
            sessions: self.sessions.count(),
            connections: self.sources.connections(),
            memory: settings.budget.charged(),
            memory_waits: settings.budget.waits(),
            memory_refusals: settings.budget.refusals(),
        })
    }
}
