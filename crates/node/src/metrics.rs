//! What is counted, as OpenMetrics text.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sarsen_proto::iscsi::target::RefusalReason;

/// What the text is (OpenMetrics 1.0.0).
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// See the module. Counted where a login ends, never on the way of a command.
pub(crate) struct Metrics {
    registry: Registry,
    logins: Counter,
    refused: Family<Refused, Counter>,
    sessions: Gauge,
    revoked: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sarsen");
        let (logins, refused) = (Counter::default(), Family::default());
        let (sessions, revoked) = (Gauge::default(), Counter::default());
        registry.register("logins", "Connections that were let in", logins.clone());
        let help = "Logins that were refused, by reason";
        registry.register("logins_refused", help, refused.clone());
        registry.register("sessions", "Sessions that stand", sessions.clone());
        let help = "Sessions that were ended since access was revoked";
        registry.register("access_revoked", help, revoked.clone());
        Self { registry, logins, refused, sessions, revoked }
    }
}

impl Metrics {
    /// A connection was let in.
    pub(crate) fn let_in(&self) {
        self.logins.inc();
    }

    /// A login was refused.
    pub(crate) fn refused(&self, reason: RefusalReason) {
        self.refused.get_or_create(&Refused { reason: reason.name() }).inc();
    }

    /// A handshake was broken off before the login, for want of a client certificate that holds.
    pub(crate) fn refused_certificate(&self) {
        self.refused.get_or_create(&Refused { reason: "certificate" }).inc();
    }

    /// So many sessions were ended, for access was revoked.
    pub(crate) fn revoked(&self, sessions: usize) {
        self.revoked.inc_by(sessions as u64);
    }

    /// All of it, with the number of sessions at this moment.
    pub(crate) fn render(&self, sessions: usize) -> String {
        self.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        let mut text = String::new();
        // A String takes everything.
        let _ = text::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_are_counted_and_refusals_by_reason() {
        let metrics = Metrics::default();
        metrics.let_in();
        metrics.refused(RefusalReason::WrongSecret);
        metrics.refused(RefusalReason::WrongSecret);
        metrics.refused(RefusalReason::AddressNotAllowed);
        metrics.refused_certificate();
        metrics.revoked(3);
        let text = metrics.render(7);
        for line in [
            "# TYPE sarsen_logins counter",
            "sarsen_logins_total 1",
            "sarsen_logins_refused_total{reason=\"wrong_secret\"} 2",
            "sarsen_logins_refused_total{reason=\"address_not_allowed\"} 1",
            "sarsen_logins_refused_total{reason=\"certificate\"} 1",
            "# TYPE sarsen_sessions gauge",
            "sarsen_sessions 7",
            "sarsen_access_revoked_total 3",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
