//! The names of the ways to choose a path.

use std::fmt;
use std::str::FromStr;

/// How a command's path is chosen among the paths of the best access state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathSelector {
    /// The one whose expected time is the shortest: the bytes in flight and those of the command, times the measured time of a byte.
    #[default]
    ServiceTime,
    /// The one with the fewest commands in flight.
    QueueDepth,
    /// Each one in turn.
    RoundRobin,
}

impl PathSelector {
    /// All selectors, the default first.
    pub const ALL: [Self; 3] = [Self::ServiceTime, Self::QueueDepth, Self::RoundRobin];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ServiceTime => "service-time",
            Self::QueueDepth => "queue-depth",
            Self::RoundRobin => "round-robin",
        }
    }
}

impl fmt::Display for PathSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PathSelector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|selector| selector.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{text:?} is not a path selector; write one of {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_named() {
        for selector in PathSelector::ALL {
            assert_eq!(selector.to_string().parse(), Ok(selector));
        }
        let error = "fastest".parse::<PathSelector>().unwrap_err();
        assert!(error.contains("service-time, queue-depth, round-robin"), "{error}");
    }
}
