//! Limits of connections: in total, for each source, and for each source during logins. A source that floods the server
//! uses up only its own limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::config::Limits;
use crate::refusal::Full;

/// Minimum time between two log lines about rejected connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The source of a connection: an IPv4 address, or the first 64 bits of an IPv6 address, which identify one network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Source {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                Self::V6([a, b, c, d, e, f, g, h])
            }
        }
    }
}

/// A rejected connection.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fronts) struct Rejected {
    pub(in crate::fronts) full: Full,
    /// Number of rejected connections since the last log line, or `None` if no log line is due.
    pub(in crate::fronts) tell: Option<u64>,
}

/// See the module.
pub(crate) struct Sources {
    state: Mutex<SourcesState>,
}

struct Maximum {
    connections: usize,
    connections_per_source: usize,
    logins_per_source: usize,
}

impl From<&Limits> for Maximum {
    fn from(limits: &Limits) -> Self {
        Self {
            connections: limits.connections.get(),
            connections_per_source: limits.connections_per_source.get(),
            logins_per_source: limits.logins_per_source.get(),
        }
    }
}

struct SourcesState {
    maximum: Maximum,
    connections: usize,
    by_source: HashMap<Source, Counts>,
    rejected: u64,
    unreported: u64,
    reported: Option<Instant>,
}

#[derive(Default)]
struct Counts {
    connections: usize,
    logins: usize,
}

impl Sources {
    pub(crate) fn new(limits: &Limits) -> Arc<Self> {
        let state = SourcesState {
            maximum: limits.into(),
            connections: 0,
            by_source: HashMap::new(),
            rejected: 0,
            unreported: 0,
            reported: None,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Sets other limits, which apply to new connections.
    pub(crate) fn set_limits(&self, limits: &Limits) {
        self.state().maximum = limits.into();
    }

    fn state(&self) -> MutexGuard<'_, SourcesState> {
        self.state.lock()
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.state().connections
    }

    /// Returns the number of connections that were rejected since the server started.
    #[cfg(test)]
    pub(crate) fn rejected(&self) -> u64 {
        self.state().rejected
    }

    /// Counts a connection that was just accepted, or rejects it.
    pub(in crate::fronts) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        now: Instant,
    ) -> Result<ConnectionPermit, Rejected> {
        let source = Source::from(address);
        let mut state = self.state();
        let counts = state.by_source.get(&source);
        let (own, logins) = counts.map_or((0, 0), |counts| (counts.connections, counts.logins));
        let full = if state.connections >= state.maximum.connections {
            Full::Connections
        } else if own >= state.maximum.connections_per_source {
            Full::Source
        } else if logins >= state.maximum.logins_per_source {
            Full::Logins
        } else {
            state.connections += 1;
            let counts = state.by_source.entry(source).or_default();
            counts.connections += 1;
            counts.logins += 1;
            return Ok(ConnectionPermit { sources: self.clone(), source, logging_in: true });
        };
        state.rejected += 1;
        state.unreported += 1;
        let due = state.reported.is_none_or(|reported| now >= reported + REPORT_INTERVAL);
        let tell = due.then(|| {
            state.reported = Some(now);
            std::mem::take(&mut state.unreported)
        });
        Err(Rejected { full, tell })
    }
}

/// A permitted connection, which is counted until this is dropped.
pub(in crate::fronts) struct ConnectionPermit {
    sources: Arc<Sources>,
    source: Source,
    logging_in: bool,
}

impl ConnectionPermit {
    /// Marks the login as complete.
    pub(in crate::fronts) fn logged_in(&mut self) {
        if std::mem::take(&mut self.logging_in)
            && let Some(counts) = self.sources.state().by_source.get_mut(&self.source)
        {
            counts.logins -= 1;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.logged_in();
        let mut state = self.sources.state();
        state.connections -= 1;
        if let Some(counts) = state.by_source.get_mut(&self.source) {
            counts.connections -= 1;
            if counts.connections == 0 {
                state.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sarsen_io::time;

    use super::*;
    use crate::model::Limit;

    fn sources() -> Arc<Sources> {
        Sources::new(&Limits {
            connections: Limit::unchecked(4),
            connections_per_source: Limit::unchecked(3),
            logins_per_source: Limit::unchecked(2),
            ..Limits::default()
        })
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn refusal(sources: &Arc<Sources>, from: &str) -> Option<Full> {
        sources.admit(address(from), time::now()).err().map(|away| away.full)
    }

    #[test]
    fn one_source_has_its_share_and_no_more() {
        let sources = sources();
        let now = time::now();
        let mut one = ["10.0.0.1"; 2].map(|text| sources.admit(address(text), now).ok().unwrap());
        assert_eq!(refusal(&sources, "10.0.0.1"), Some(Full::Logins));
        // The same address, as an IPv6 socket reports it.
        assert_eq!(refusal(&sources, "::ffff:10.0.0.1"), Some(Full::Logins));
        one.iter_mut().for_each(ConnectionPermit::logged_in);
        let third = sources.admit(address("10.0.0.1"), now).ok().unwrap();
        assert_eq!(refusal(&sources, "10.0.0.1"), Some(Full::Source));
        let other = sources.admit(address("10.0.0.2"), now).ok().unwrap();
        assert_eq!(refusal(&sources, "10.0.0.3"), Some(Full::Connections));
        drop((one, third));
        assert_eq!((sources.connections(), sources.rejected()), (1, 4));
        assert!(sources.admit(address("10.0.0.3"), now).is_ok(), "who left makes room");
        drop(other);
        assert!(sources.state().by_source.is_empty(), "nobody is remembered for ever");
    }

    #[test]
    fn an_ipv6_network_is_one_source() {
        let sources = sources();
        let held = ["2001:db8::1", "2001:db8::2"]
            .map(|text| sources.admit(address(text), time::now()).ok().unwrap());
        assert_eq!(refusal(&sources, "2001:db8::ffff:3"), Some(Full::Logins));
        assert_eq!(refusal(&sources, "2001:db8:0:1::1"), None);
        drop(held);
    }

    #[test]
    fn the_log_is_not_flooded() {
        let sources =
            Sources::new(&Limits { connections: Limit::unchecked(0), ..Limits::default() });
        let now = time::now();
        let tell = |after: u64| {
            let at = now + Duration::from_secs(after);
            sources.admit(address("::1"), at).err().and_then(|away| away.tell)
        };
        assert_eq!([0, 1, 9, 10, 11, 20].map(tell), [Some(1), None, None, Some(3), None, Some(2)]);
    }
}
