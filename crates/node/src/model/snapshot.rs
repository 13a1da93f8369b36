//! Snapshots: their names, and the schedules that create them.

use std::fmt;
use std::str::FromStr;

use super::names::check_volume_name;
use super::text::written_as_text;

/// Maximum length of a snapshot's own name.
const NAME_MAX: usize = 62;

/// The name of a snapshot: `VOLUME@NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotName {
    /// The volume.
    pub volume: String,
    /// Its own name.
    pub snapshot: String,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.volume, self.snapshot)
    }
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no snapshot: write VOLUME@NAME, such as vm1@before-upgrade; the name has 1 to {NAME_MAX} \
                 letters, digits, dots, hyphens, colons and underscores"
            )
        };
        let (volume, snapshot) = text.split_once('@').ok_or_else(form)?;
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
        if !(1..=NAME_MAX).contains(&snapshot.len()) || !snapshot.bytes().all(is_plain) {
            return Err(form());
        }
        check_volume_name(volume)?;
        Ok(Self { volume: volume.to_owned(), snapshot: snapshot.to_owned() })
    }
}

written_as_text!(SnapshotName);

/// The period of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SnapshotPeriod {
    /// One in each hour.
    Hourly,
    /// One on each day (UTC).
    Daily,
    /// One in each week, which begins on Monday.
    Weekly,
    /// One in each month.
    Monthly,
}

impl SnapshotPeriod {
    /// All periods.
    pub const ALL: [Self; 4] = [Self::Hourly, Self::Daily, Self::Weekly, Self::Monthly];

    /// Returns its word, with which the names of its snapshots begin.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hourly => "hourly",
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
        }
    }

    /// Returns the period of a scheduled snapshot with this name of its own.
    pub fn of_name(name: &str) -> Option<Self> {
        let (word, _) = name.split_once('-')?;
        Self::ALL.into_iter().find(|period| period.word() == word)
    }
}

/// The snapshots that a volume gets by itself, and how many of each period remain: `hourly=24,daily=7`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSchedule {
    /// The periods, each with the number of snapshots that remain, in order.
    pub kept: Vec<(SnapshotPeriod, u16)>,
}

/// Maximum number of snapshots of one period.
const KEPT_MAX: u16 = 1000;

impl fmt::Display for SnapshotSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (period, count)) in self.kept.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            write!(f, "{separator}{}={count}", period.word())?;
        }
        Ok(())
    }
}

impl FromStr for SnapshotSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || {
            format!(
                "{text:?} is no schedule: write the number of snapshots that remain of hourly, daily, weekly and \
                 monthly, 1 to {KEPT_MAX} each, such as hourly=24,daily=7"
            )
        };
        let mut kept = Vec::new();
        for part in text.split(',') {
            let (word, count) = part.trim().split_once('=').ok_or_else(form)?;
            let period = SnapshotPeriod::ALL.into_iter().find(|period| period.word() == word);
            let period = period.ok_or_else(form)?;
            let count = count.parse().ok().filter(|count| (1..=KEPT_MAX).contains(count));
            kept.push((period, count.ok_or_else(form)?));
        }
        kept.sort_unstable();
        if kept.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(form());
        }
        Ok(Self { kept })
    }
}

written_as_text!(SnapshotSchedule);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots_have_a_volume_and_a_name() {
        let name: SnapshotName = "vm1@hourly-2026-11-26T20:00".parse().expect("a name");
        assert_eq!(
            (name.volume.as_str(), name.snapshot.as_str()),
            ("vm1", "hourly-2026-11-26T20:00")
        );
        for text in ["vm1", "vm1@", "@s", "vm1@a/b", "vm1@a@b", "VM@s", "vm1@ä"] {
            assert!(text.parse::<SnapshotName>().is_err(), "{text}");
        }
    }

    #[test]
    fn schedules_have_each_period_once() {
        let schedule: SnapshotSchedule = "daily=7, hourly=24".parse().expect("a schedule");
        assert_eq!(schedule.to_string(), "hourly=24,daily=7");
        for text in ["", "hourly", "hourly=0", "hourly=1001", "yearly=1", "hourly=1,hourly=2"] {
            assert!(text.parse::<SnapshotSchedule>().is_err(), "{text}");
        }
    }
}
