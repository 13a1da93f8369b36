//! Counts the events that seeds must include, so that a test can check that they occurred.

use std::collections::BTreeMap;
use std::fmt;

/// Counters by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Increments a counter.
    pub(crate) fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    /// Adds the counts of another tally.
    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// Returns a count.
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>9} {what}"))
    }
}
