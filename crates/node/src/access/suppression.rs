//! How much is told of refusals: a source that knocks without end does not fill the log. What is left
//! out is counted, and told when its time is over.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many lines for one source within [`WINDOW`], and one that tells how many were left out.
pub(crate) const LINES: u32 = 10;
/// From the first line of a source on.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// Sources that are told apart; further ones are taken for one.
const SOURCES: usize = 1024;
/// The name of those further ones.
const REST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What is to become of one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogDecision {
    /// It is written.
    Write,
    /// It is left out, and the first that is: at this time [`LogThrottle::close`] is to be called with this
    /// source.
    CloseAt(Instant, IpAddr),
    /// It is left out.
    LeaveOut,
}

/// See the module.
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
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a line to be written about an address.
    pub(crate) fn note(&self, address: IpAddr, now: Instant) -> LogDecision {
        let mut sources = self.sources();
        let mut source = source_of(address);
        if sources.len() >= SOURCES && !sources.contains_key(&source) {
            // One whose lines were left out is forgotten by `close`.
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

    /// The time of a source is over: how many lines were left out.
    pub(crate) fn close(&self, source: IpAddr) -> u64 {
        self.sources().remove(&source).map_or(0, |window| window.left_out)
    }
}

/// Whoever has one IPv6 address of a link has all of them.
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
        // Its neighbour's is the same one.
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
        // Later there is room for others.
        assert_eq!(storm.note(address(200_000), begin + WINDOW), LogDecision::Write);
        assert!(storm.sources().len() < SOURCES);
    }
}
