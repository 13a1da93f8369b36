//! How often what seeds are for has happened, so that it is seen that it did.

use std::collections::BTreeMap;
use std::fmt;

/// Counts under names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// It happened once more.
    pub(crate) fn count(&mut self, what: &str) {
        *self.0.entry(what.to_owned()).or_default() += 1;
    }

    /// With what happened elsewhere.
    pub(crate) fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what.clone()).or_default() += count;
        }
    }

    /// How often.
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>9} {what}"))
    }
}
