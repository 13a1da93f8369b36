//! The metrics, as OpenMetrics text.

mod process;
mod statistics;
pub(crate) mod text;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::encoding::{EncodeLabelSet, text as open_metrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use sarsen_proto::iscsi::target::RefusalReason;
use sarsen_volume::statistics::Statistics;

use self::process::ProcessMetrics;
pub(crate) use self::process::{PoolUsage, VolumeSpace};
use self::statistics::Exposition;
use crate::refusal::ApiRefusal;
use crate::refusal::Full;

/// The content type of the text (OpenMetrics 1.0.0).
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The reason of a TLS handshake that fails before the login.
const CERTIFICATE: &str = "certificate";

/// The metrics. They are counted at the end of a login, never during a command; the statistics count commands.
pub(crate) struct Metrics {
    registry: Registry,
    process: ProcessMetrics,
    pub(crate) statistics: Arc<Statistics>,
    logins: Counter,
    refused: Family<Refused, Counter>,
    sessions: Gauge,
    revoked: Counter,
    rejected: Family<RejectedLabels, Counter>,
    connections: Gauge,
    memory: Gauge,
    memory_waits: Counter,
    memory_refusals: Counter,
    problems: Gauge,
    api_refused: Family<Refused, Counter>,
}

/// Values at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MetricsSnapshot {
    pub(crate) sessions: usize,
    pub(crate) connections: usize,
    /// Bytes of the shared memory that commands use.
    pub(crate) memory: usize,
    /// Number of commands that had to wait for memory.
    pub(crate) memory_waits: usize,
    /// Number of commands that were refused because there was no memory for their unsolicited data.
    pub(crate) memory_refusals: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedLabels {
    limit: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
}

impl Default for Metrics {
    fn default() -> Self {
        let (mut root, process) = (Registry::default(), ProcessMetrics::default());
        root.register_collector(Box::new(process.clone()));
        let registry = root.sub_registry_with_prefix("sarsen");
        let (logins, refused) = (Counter::default(), Family::<Refused, Counter>::default());
        let (sessions, revoked) = (Gauge::default(), Counter::default());
        registry.register("logins", "Logins that were permitted", logins.clone());
        let help = "Logins that were refused, by reason";
        registry.register("logins_refused", help, refused.clone());
        registry.register("sessions", "Sessions that stand", sessions.clone());
        let help = "Sessions that were ended since access was revoked";
        registry.register("access_revoked", help, revoked.clone());
        let rejected = Family::<RejectedLabels, Counter>::default();
        let help = "Connections that were closed as they came, by the limit that they passed";
        registry.register("connections_rejected", help, rejected.clone());
        let (connections, memory) = (Gauge::default(), Gauge::default());
        registry.register("connections", "Open connections", connections.clone());
        let help = "Memory charged for the data of commands (limits.memory)";
        registry.register("command_memory_bytes", help, memory.clone());
        let memory_waits = Counter::default();
        let help = "How often a command waited because others had all of limits.memory";
        registry.register("command_memory_waits", help, memory_waits.clone());
        let memory_refusals = Counter::default();
        let help = "Commands that were answered with TASK SET FULL or BUSY since there was no memory \
                    for their unsolicited data";
        registry.register("command_memory_refusals", help, memory_refusals.clone());
        let problems = Gauge::default();
        let help = "Objects that are missing or have a problem";
        registry.register("problems", help, problems.clone());
        let api_refused = Family::<Refused, Counter>::default();
        let help = "Requests that the port of the API refused, by reason";
        registry.register("api_refused", help, api_refused.clone());
        for refusal in ApiRefusal::ALL {
            drop(api_refused.get_or_create(&Refused { reason: refusal.name() }));
        }
        // All counters exist from the start, so that alerts see the first increase.
        let reasons = RefusalReason::ALL.iter().map(|reason| reason.name());
        for reason in reasons.chain([CERTIFICATE]) {
            drop(refused.get_or_create(&Refused { reason }));
        }
        for full in Full::ALL {
            drop(rejected.get_or_create(&RejectedLabels { limit: full.limit() }));
        }
        let statistics: Arc<Statistics> = Arc::default();
        registry.register_collector(Box::new(Exposition(statistics.clone())));
        Self {
            registry: root,
            process,
            statistics,
            logins,
            refused,
            sessions,
            revoked,
            rejected,
            connections,
            memory,
            memory_waits,
            memory_refusals,
            problems,
            api_refused,
        }
    }
}

impl Metrics {
    /// Counts a permitted connection.
    pub(crate) fn count_login(&self) {
        self.logins.inc();
    }

    /// Counts a refused login.
    pub(crate) fn refused(&self, reason: RefusalReason) {
        self.refused.get_or_create(&Refused { reason: reason.name() }).inc();
    }

    /// Counts a handshake that failed before the login, because the client had no valid certificate.
    pub(crate) fn refused_certificate(&self) {
        self.refused.get_or_create(&Refused { reason: CERTIFICATE }).inc();
    }

    /// Counts a request that the port of the API refused.
    pub(crate) fn api_refused(&self, refusal: ApiRefusal) {
        self.api_refused.get_or_create(&Refused { reason: refusal.name() }).inc();
    }

    /// Counts sessions that were terminated because their access was revoked.
    pub(crate) fn revoked(&self, sessions: usize) {
        self.revoked.inc_by(sessions as u64);
    }

    /// Counts a connection that was closed immediately.
    pub(crate) fn rejected(&self, limit: &'static str) {
        self.rejected.get_or_create(&RejectedLabels { limit }).inc();
    }

    /// Sets the number of current problems.
    pub(crate) fn set_problem_count(&self, problems: usize) {
        self.problems.set(i64::try_from(problems).unwrap_or(i64::MAX));
    }

    /// Sets the open volumes and pools.
    pub(crate) fn show_space(&self, volumes: Vec<VolumeSpace>, pools: Vec<PoolUsage>) {
        self.process.show(volumes, pools);
    }

    /// Returns all metrics, with the values of this moment.
    pub(crate) fn render(&self, moment: MetricsSnapshot) -> String {
        for (gauge, value) in [
            (&self.sessions, moment.sessions),
            (&self.connections, moment.connections),
            (&self.memory, moment.memory),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        self.memory_waits.inner().store(moment.memory_waits as u64, Ordering::Relaxed);
        self.memory_refusals.inner().store(moment.memory_refusals as u64, Ordering::Relaxed);
        let mut text = String::new();
        // Writes to a String cannot fail.
        let _ = open_metrics::encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use sarsen_pool::{Tier, TierUse};

    use super::*;
    use sarsen_volume::OperationKind;
    use sarsen_volume::statistics::Failure;

    #[test]
    fn commands_are_counted_by_volume_operation_and_initiator() {
        let metrics = Metrics::default();
        assert!(
            !metrics.render(MetricsSnapshot::default()).contains("volume="),
            "nobody was there"
        );
        let meter = metrics.statistics.meter("data", "iqn.x:a", 1);
        for nanoseconds in [9_000, 70_000, 20_000_000_000] {
            meter.begin();
            meter.end(OperationKind::Read, nanoseconds, 1, 4096);
        }
        meter.begin();
        meter.fail(Failure::MediumError);
        let text = metrics.render(MetricsSnapshot::default());
        let of = "volume=\"data\",operation=\"read\",initiator=\"iqn.x:a\"";
        for line in [
            "# TYPE sarsen_command_duration_seconds histogram".to_owned(),
            format!("sarsen_command_duration_seconds_count{{{of}}} 3"),
            format!("sarsen_command_duration_seconds_sum{{{of}}} 20.000079"),
            format!("sarsen_command_duration_seconds_bucket{{le=\"0.00001\",{of}}} 1"),
            format!("sarsen_command_duration_seconds_bucket{{le=\"0.00004\",{of}}} 1"),
            format!("sarsen_command_duration_seconds_bucket{{le=\"0.00008\",{of}}} 2"),
            format!("sarsen_command_duration_seconds_bucket{{le=\"10.48576\",{of}}} 2"),
            format!("sarsen_command_duration_seconds_bucket{{le=\"+Inf\",{of}}} 3"),
            "sarsen_volume_operations_total{volume=\"data\",operation=\"read\"} 3".to_owned(),
            "sarsen_volume_bytes_total{volume=\"data\",operation=\"read\"} 12288".to_owned(),
            "sarsen_volume_errors_total{volume=\"data\",kind=\"medium_error\"} 1".to_owned(),
            "sarsen_volume_queue_depth{volume=\"data\"} 1".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        drop(meter);
        let text = metrics.render(MetricsSnapshot::default());
        assert!(
            !text.contains("iqn.x:a") && text.contains("volume_operations_total{volume=\"data\"")
        );
        assert_eq!(text.matches("# EOF").count(), 1);
    }

    /// Returns the names that follow `sarsen_` in a text.
    fn names(text: &str) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_lowercase() || c == '_';
        let names = text.match_indices("sarsen_").map(|(at, _)| {
            let rest = &text[at..];
            &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
        });
        names.collect()
    }

    #[test]
    fn metrics_of_dashboard_and_alerts_exist() {
        let metrics = Metrics::default();
        let meter = metrics.statistics.meter("data", "iqn.x:a", 1);
        meter.begin();
        meter.end(OperationKind::Read, 1, 1, 1);
        meter.limited();
        meter.fail(Failure::Busy);
        metrics.refused(RefusalReason::WrongSecret);
        metrics.rejected("connections");
        let text = metrics.render(MetricsSnapshot::default());
        let exposed = names(&text);
        let dashboard = include_str!("../../../packaging/grafana/sarsen.json");
        let alerts = include_str!("../../../packaging/prometheus/sarsen.rules.yml");
        for used in [dashboard, alerts] {
            let used = names(used);
            assert!(used.len() > 5, "{used:?}");
            let missing: Vec<_> = used.difference(&exposed).collect();
            assert!(missing.is_empty(), "{missing:?} are not in\n{text}");
        }
        serde_json::from_str::<serde_json::Value>(dashboard).expect("JSON");
    }

    /// Checks the rules of `promtool check metrics`: each sample belongs to a metric with a type and help. The name
    /// of a metric contains its unit, and only names of counters end in `_total`.
    #[test]
    fn names_are_as_prometheus_wants_them() {
        let metrics = Metrics::default();
        let meter = metrics.statistics.meter("data", "iqn.x:a", 1);
        meter.begin();
        meter.end(OperationKind::Read, 1, 1, 1);
        meter.limited();
        let volume = VolumeSpace { name: "data".into(), size: 8192, allocated: Some(4096) };
        let (free, provisioned) = (4096, 65536);
        let used = |requests| TierUse { requests, moved_bytes: 4096, ..TierUse::default() };
        let pool = PoolUsage {
            name: "tank".into(),
            size: 16384,
            free,
            provisioned,
            left_out: 1,
            stale: 8192,
            checksum_errors: 3,
            tiers: Some([(Tier::Fast, used(5)), (Tier::Slow, used(7))]),
        };
        metrics.show_space(vec![volume], vec![pool]);
        let text = text::of_open_metrics(&metrics.render(MetricsSnapshot::default()));
        let kinds: BTreeMap<&str, &str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        for (name, kind) in &kinds {
            assert!(text.contains(&format!("# HELP {name} ")), "{name} has no help");
            assert_eq!(name.ends_with("_total"), *kind == "counter", "{name} is a {kind}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
            let units = ["_milliseconds", "_nanoseconds", "_kib", "_mib", "_percent"];
            assert!(!units.iter().any(|unit| name.contains(unit)), "{name} has no base unit");
        }
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().expect("a name");
            let of = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let is_known = kinds.contains_key(name)
                || of.is_some_and(|of| kinds.get(of) == Some(&"histogram"));
            assert!(is_known, "{name} is of no metric");
        }
        let version = env!("CARGO_PKG_VERSION");
        for line in [
            format!("sarsen_build_info{{version=\"{version}\"}} 1"),
            "sarsen_volume_size_bytes{volume=\"data\"} 8192".to_owned(),
            "sarsen_volume_allocated_bytes{volume=\"data\"} 4096".to_owned(),
            "sarsen_pool_size_bytes{pool=\"tank\"} 16384".to_owned(),
            "sarsen_pool_free_bytes{pool=\"tank\"} 4096".to_owned(),
            "sarsen_pool_provisioned_bytes{pool=\"tank\"} 65536".to_owned(),
            "sarsen_pool_devices_left_out{pool=\"tank\"} 1".to_owned(),
            "sarsen_pool_stale_bytes{pool=\"tank\"} 8192".to_owned(),
            "sarsen_pool_checksum_errors{pool=\"tank\"} 3".to_owned(),
            "sarsen_pool_tier_requests_total{pool=\"tank\",tier=\"fast\"} 5".to_owned(),
            "sarsen_pool_tier_requests_total{pool=\"tank\",tier=\"slow\"} 7".to_owned(),
            "sarsen_pool_tier_moved_bytes_total{pool=\"tank\",tier=\"slow\"} 4096".to_owned(),
            "# TYPE process_cpu_seconds_total counter".to_owned(),
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
        for name in ["resident_memory_bytes", "open_fds", "start_time_seconds"] {
            let begin = format!("process_{name} ");
            let value = text.lines().find_map(|line| line.strip_prefix(&begin)).expect(name);
            assert!(value.parse::<f64>().expect("a number") > 0.0, "{name} {value}");
        }
    }

    #[test]
    fn alerted_metrics_exist_with_zero() {
        let metrics = Metrics::default();
        let meter = metrics.statistics.meter("data", "iqn.x:a", 1);
        meter.begin();
        let text = metrics.render(MetricsSnapshot::default());
        for line in [
            "sarsen_volume_errors_total{volume=\"data\",kind=\"medium_error\"} 0",
            "sarsen_volume_errors_total{volume=\"data\",kind=\"hardware_error\"} 0",
            "sarsen_logins_refused_total{reason=\"wrong_secret\"} 0",
            "sarsen_logins_refused_total{reason=\"certificate\"} 0",
            "sarsen_api_refused_total{reason=\"wrong_token\"} 0",
            "sarsen_connections_rejected_total{limit=\"connections-per-source\"} 0",
            "# TYPE sarsen_command_memory_waits counter",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn logins_are_counted_and_refusals_by_reason() {
        let metrics = Metrics::default();
        metrics.count_login();
        metrics.refused(RefusalReason::WrongSecret);
        metrics.refused(RefusalReason::WrongSecret);
        metrics.refused(RefusalReason::AddressNotAllowed);
        metrics.refused_certificate();
        metrics.revoked(3);
        metrics.rejected("connections");
        let moment = MetricsSnapshot {
            sessions: 7,
            connections: 8,
            memory: 4096,
            memory_waits: 2,
            memory_refusals: 3,
        };
        let text = metrics.render(moment);
        for line in [
            "# TYPE sarsen_logins counter",
            "sarsen_logins_total 1",
            "sarsen_logins_refused_total{reason=\"wrong_secret\"} 2",
            "sarsen_logins_refused_total{reason=\"address_not_allowed\"} 1",
            "sarsen_logins_refused_total{reason=\"certificate\"} 1",
            "# TYPE sarsen_sessions gauge",
            "sarsen_sessions 7",
            "sarsen_access_revoked_total 3",
            "sarsen_connections_rejected_total{limit=\"connections\"} 1",
            "sarsen_connections 8",
            "sarsen_command_memory_bytes 4096",
            "sarsen_command_memory_waits_total 2",
            "sarsen_command_memory_refusals_total 3",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
        }
    }
}
