//! The throttle of log lines about refusals, so that one source cannot fill the log. It counts omitted lines, and the
//! count is logged when the time window of the source ends.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

/// Maximum number of lines for one source within [`WINDOW`], in addition to one with the number of omitted lines.
pub(crate) const LINES: u32 = 10;
/// The window, from the first line of a source on.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Maximum number of distinguished sources. Further ones count as one source.
const SOURCES: usize = 1024;
/// The name of all further sources.
const REST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The decision about a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDecision {
    /// The line is written.
    Write,
    /// The line is the first one that is omitted. The caller must call [`LogThrottle::close`] with this source at this
    /// time.
    CloseAt(Instant, IpAddr),
    /// The line is omitted.
    LeaveOut,
}

/// The throttle of log lines.
#[derive(Default)]
pub(crate) struct LogThrottle {
    sources: Mutex<HashMap<IpAddr, Window>>,
}

struct Window {
    began: Instant,
    written: u32,
    left_out: u64,
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.began) >= WINDOW
    }
}

impl LogThrottle {
    fn sources(&self) -> MutexGuard<'_, HashMap<IpAddr, Window>> {
        self.sources.lock()
    }

    /// Decides whether a line about an address is written.
    pub(crate) fn note(&self, address: IpAddr, now: Instant) -> LogDecision {
        let mut sources = self.sources();
        let mut source = source_of(address);
        if sources.len() >= SOURCES && !sources.contains_key(&source) {
            // `close` removes windows with omitted lines.
            sources.retain(|_, window| !window.is_over(now) || window.left_out > 0);
            if sources.len() >= SOURCES {
                source = REST;
            }
        }
        let fresh = Window { began: now, written: 0, left_out: 0 };
        let window = sources.entry(source).or_insert(fresh);
        if window.is_over(now) && window.left_out == 0 {
            (window.began, window.written) = (now, 0);
        }
        if window.written < LINES {
            window.written += 1;
            return LogDecision::Write;
        }
        window.left_out += 1;
        match window.left_out {
            1 => LogDecision::CloseAt(window.began + WINDOW, source),
            _ => LogDecision::LeaveOut,
        }
    }

    /// Ends the window of a source. Returns the number of omitted lines.
    pub(crate) fn close(&self, source: IpAddr) -> u64 {
        self.sources().remove(&source).map_or(0, |window| window.left_out)
    }
}

/// Returns the source of an address. A host may use all IPv6 addresses of its /64 network, so they count as one source.
pub(crate) fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
    }
}

#[cfg(test)]
mod tests {
    use sarsen_io::time;

    use super::*;

    #[test]
    fn a_storm_from_one_source_is_a_few_lines_and_a_count() {
        let (storm, begin) = (LogThrottle::default(), time::now());
        let (loud, quiet) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        for _ in 0..LINES {
            assert_eq!(storm.note(loud, begin), LogDecision::Write);
        }
        assert_eq!(storm.note(loud, begin), LogDecision::CloseAt(begin + WINDOW, loud));
        for _ in 0..99 {
            assert_eq!(storm.note(loud, begin + WINDOW), LogDecision::LeaveOut);
        }
        assert_eq!(storm.note(quiet, begin), LogDecision::Write);
        assert_eq!(storm.close(loud), 100);
        assert_eq!(storm.note(loud, begin + WINDOW), LogDecision::Write);
    }

    #[test]
    fn a_source_that_paused_is_heard_again() {
        let (storm, begin) = (LogThrottle::default(), time::now());
        let source = "2001:db8::1".parse().unwrap();
        for _ in 0..LINES {
            assert_eq!(storm.note(source, begin), LogDecision::Write);
        }
        assert_eq!(storm.note(source, begin + WINDOW), LogDecision::Write);
        // A neighbour's address in the same /64 network is the same source.
        let neighbour = "2001:db8::2".parse().unwrap();
        for _ in 1..LINES {
            assert_eq!(storm.note(neighbour, begin + WINDOW), LogDecision::Write);
        }
        assert!(matches!(storm.note(neighbour, begin + WINDOW), LogDecision::CloseAt(..)));
    }

    #[test]
    fn sources_without_number_take_little_memory() {
        let (storm, begin) = (LogThrottle::default(), time::now());
        let address = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
        for number in 0..100_000 {
            storm.note(address(number), begin);
        }
        assert!(storm.sources().len() <= SOURCES + 1);
        assert_eq!(storm.close(REST), 100_000 - SOURCES as u64 - u64::from(LINES));
        // Expired windows are removed, so new sources fit.
        assert_eq!(storm.note(address(200_000), begin + WINDOW), LogDecision::Write);
        assert!(storm.sources().len() < SOURCES);
    }
}
