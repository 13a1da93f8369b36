//! The record of a study's run: its cells, repetitions and results.
//!
//! The archive stores these types, and reports use them. A changed meaning of a field would make old runs unreadable;
//! therefore fields are added and never reused.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The labels that identify a cell of a study: `target` = `tgt`, `mtu` = `9000`, ….
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Returns an empty set of labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a label.
    #[must_use]
    pub fn with(mut self, dimension: &str, value: impl fmt::Display) -> Self {
        self.0.insert(dimension.into(), value.to_string());
        self
    }

    /// Returns the value of a dimension.
    pub fn value(&self, dimension: &str) -> Option<&str> {
        self.0.get(dimension).map(String::as_str)
    }

    /// Returns whether these labels contain all of `wanted`.
    pub fn include(&self, wanted: &Labels) -> bool {
        wanted.0.iter().all(|(dimension, value)| self.0.get(dimension) == Some(value))
    }

    /// Returns the only dimension whose value differs; `None` if there is none or several, or if one of them has other
    /// dimensions.
    pub fn only_difference(&self, other: &Labels) -> Option<&str> {
        if !self.0.keys().eq(other.0.keys()) {
            return None;
        }
        let mut differing =
            self.iter().filter(|(dimension, value)| other.value(dimension) != Some(value));
        let (dimension, _) = differing.next()?;
        differing.next().is_none().then_some(dimension)
    }

    /// Returns all labels, sorted by dimension.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(dimension, value)| (dimension.as_str(), value.as_str()))
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (dimension, value)) in self.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{dimension} {value}")?;
        }
        Ok(())
    }
}

/// Names of figures, each with its unit.
pub mod figure {
    macro_rules! figures {
        ($($(#[doc = $doc:literal])+ $name:ident = $value:literal;)*) => {
            $($(#[doc = $doc])+ pub const $name: &str = $value;)*

            /// The names with their descriptions.
            pub(crate) const DESCRIBED: &[(&str, &str)] = &[$(($value, concat!($($doc),+))),*];
        };
    }

    figures! {
        /// I/Os a second.
        IOPS = "iops";
        /// Millions of bytes a second.
        MB_PER_S = "mb_per_s";
        /// Mean latency, µs.
        MEAN_US = "mean_us";
        /// Minimum latency, µs.
        MIN_US = "min_us";
        /// Median latency, µs.
        P50_US = "p50_us";
        /// 99th percentile of the latency, µs.
        P99_US = "p99_us";
        /// 99.9th percentile of the latency, µs.
        P999_US = "p999_us";
        /// Maximum latency, µs. The time without an answer at the end of the measurement counts, too.
        MAX_US = "max_us";
        /// Maximum latency, % of the time of the measurement.
        LONGEST_PERCENT = "longest_percent";
        /// Standard deviation of the latency, µs.
        DEVIATION_US = "deviation_us";
        /// CPU time of the target for each I/O, µs.
        TARGET_CPU_US_PER_IO = "target_cpu_us_per_io";
        /// CPU time of the load generator for each I/O, µs.
        CLIENT_CPU_US_PER_IO = "client_cpu_us_per_io";
        /// Share of a processor that the load generator used, %. Without a protocol, the generator does the target's work, too:
        /// then it is absent.
        CLIENT_BUSY_PERCENT = "client_busy_percent";
        /// Share of the time in which the load generator was ready to run and waited for a processor, %.
        CLIENT_WAIT_PERCENT = "client_wait_percent";
        /// Share of the processors' time that the hypervisor gave to other virtual machines, %.
        STEAL_PERCENT = "steal_percent";
        /// Change of the wall clock against the monotonic clock, ms.
        CLOCK_STEP_MS = "clock_step_ms";
        /// Throughput of the reads, millions of bytes a second.
        READ_MB_PER_S = "read_mb_per_s";
        /// Throughput of the writes, millions of bytes a second.
        WRITE_MB_PER_S = "write_mb_per_s";
        /// Resident memory of the target at the end, KiB.
        TARGET_RSS_KIB = "target_rss_kib";
        /// Throughput of a link towards the targets' side, millions of bytes a second.
        LINK_TO_TARGET_MB_PER_S = "link_to_target_mb_per_s";
        /// Throughput of a link from the targets' side, millions of bytes a second.
        LINK_FROM_TARGET_MB_PER_S = "link_from_target_mb_per_s";
        /// Median round-trip time of a small message over a link, µs.
        LINK_ROUND_TRIP_US = "link_round_trip_us";
        /// TCP segments that were retransmitted while a link was measured.
        LINK_RETRANSMITS = "link_retransmits";
        /// Sequential read throughput of a medium, millions of bytes a second.
        MEDIUM_READ_MB_PER_S = "medium_read_mb_per_s";
        /// Sequential write throughput of a medium, millions of bytes a second.
        MEDIUM_WRITE_MB_PER_S = "medium_write_mb_per_s";
        /// Random reads of 4 KiB a second, one outstanding.
        MEDIUM_RANDOM_READ_IOPS = "medium_random_read_iops";
        /// Random reads of 4 KiB a second, 32 outstanding.
        MEDIUM_RANDOM_READ_IOPS_32 = "medium_random_read_iops_32";
        /// Median of the times that virtual machines did not run while they migrated, ms.
        DOWNTIME_MS = "downtime_ms";
        /// Maximum of the times that virtual machines did not run while they migrated, ms.
        LONGEST_DOWNTIME_MS = "longest_downtime_ms";
        /// Median of the times from the beginning of a migration to its end, ms.
        MIGRATION_MS = "migration_ms";
        /// Maximum of the times from the beginning of a migration to its end, ms.
        LONGEST_MIGRATION_MS = "longest_migration_ms";
        /// Median of the differences of the I/Os per second before and during a migration, % of those before.
        SLOWDOWN_PERCENT = "slowdown_percent";
        /// Requests of a client's disk for each read of a program.
        REQUESTS_PER_READ = "requests_per_read";
        /// Median of the times until virtual machines were in a file, ms.
        SUSPEND_MS = "suspend_ms";
        /// Median of the times from the command to read such a file until virtual machines executed programs again, ms.
        RESUME_MS = "resume_ms";
        /// Median size of the files with virtual machines, KiB.
        SUSPENDED_KIB = "suspended_kib";
        /// Files of another host that a host finds, % of those that were written and made durable.
        FILES_SEEN_PERCENT = "files_seen_percent";
        /// Files that have their content after both hosts have unmounted the file system, % of those that were written.
        FILES_KEPT_PERCENT = "files_kept_percent";
        /// 1 if a check of a file system finds errors, else 0.
        FILE_SYSTEM_ERRORS = "file_system_errors";
        /// Acknowledged blocks that a power failure of the server loses, %.
        LOST_PERCENT = "lost_percent";
        /// Growth of the server's page cache while it is written to, % of the bytes.
        PAGE_CACHE_PERCENT = "page_cache_percent";
        /// Bytes that were sent and received on the network, % of the bytes that were to be copied.
        NETWORK_PERCENT = "network_percent";
        /// Time of a step or of a copy, ms.
        TIME_MS = "time_ms";
        /// 1 if the load was steady by SNIA's rule, else 0.
        STEADY = "steady";
    }

    /// Splits the name of a figure into words and its unit.
    pub(crate) fn split_unit(figure: &str) -> (String, &'static str) {
        const UNITS: [(&str, &str); 7] = [
            ("_mb_per_s", "MB/s"),
            ("_us_per_io", "µs/IO"),
            ("_us", "µs"),
            ("_ms", "ms"),
            ("_kib", "KiB"),
            ("_iops", "IOPS"),
            ("_percent", "%"),
        ];
        let found = UNITS.iter().find_map(|(end, unit)| Some((figure.strip_suffix(end)?, *unit)));
        let (name, unit) = found.unwrap_or(match figure {
            MB_PER_S => ("throughput", "MB/s"),
            IOPS => ("rate", "IOPS"),
            other => (other, ""),
        });
        (name.replace('_', " "), unit)
    }
}

/// The result of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Figures by name; see [`figure`].
    pub figures: BTreeMap<String, f64>,
    /// Texts by name, such as the negotiated keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
    /// Histogram of the latencies, if they were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<Bucket>,
    /// I/Os a second over the duration of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
    /// The limits of its link and of its medium: the labels of their samples.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Labels>,
}

/// I/Os whose latency is at most `upper_us` and above that of the previous bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Upper end of the bucket, µs.
    pub upper_us: f64,
    /// Number of I/Os.
    pub count: u64,
}

/// A figure over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Seconds between two values.
    pub interval_s: f64,
    /// The values.
    pub values: Vec<f64>,
}

/// The outcome of one measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The figures of a successful measurement.
    Measured(Measures),
    /// The error and its cause.
    Failed(String),
    /// The reason why it cannot be measured on this machine.
    NotMeasured(String),
}

/// One measurement of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The cell.
    pub labels: Labels,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Time of its end in seconds since the Unix epoch.
    pub ended_at: u64,
    /// Its outcome.
    pub outcome: Outcome,
}

impl Sample {
    /// Returns a figure, if it was measured.
    pub fn figure(&self, name: &str) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured(measures) => measures.figures.get(name).copied(),
            Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
        }
    }
}

/// The scale of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A few minutes.
    Quick,
    /// The study's own durations and repetitions.
    Full,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Quick => "quick",
            Self::Full => "full",
        })
    }
}

/// The setting of a run: the facts that a reader needs to judge or to repeat it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The machine: processor, cores, memory, kernel, distribution, by name.
    pub machine: BTreeMap<String, String>,
    /// The versions of the programs.
    pub versions: BTreeMap<String, String>,
    /// The commands that started the programs.
    pub commands: Vec<String>,
    /// The links to the targets under test, and those that could not be created.
    pub network: Vec<String>,
    /// The seed of the pseudo-random choices.
    pub seed: u64,
    /// The planned measurements: volumes, links, cells.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub plan: BTreeMap<String, String>,
}

/// A run of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its number in the archive.
    pub id: i64,
    /// The study's name.
    pub study: String,
    /// Its scale.
    pub scale: Scale,
    /// The command line that started it.
    pub command: String,
    /// The names of the targets under test.
    pub targets_under_test: Vec<String>,
    /// Start in seconds since the Unix epoch.
    pub began_at: u64,
    /// End in seconds since the Unix epoch; absent while the run is unfinished.
    pub ended_at: Option<u64>,
    /// Its setting.
    pub setting: Setting,
    /// The samples, in the order of measurement.
    pub samples: Vec<Sample>,
}

impl Run {
    /// Returns the samples of the cells that have these labels.
    pub fn cells<'a>(&'a self, wanted: &'a Labels) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(|sample| sample.labels.include(wanted))
    }

    /// Returns a figure from each successful repetition of the cells that have these labels.
    pub fn figures(&self, wanted: &Labels, figure: &str) -> Vec<f64> {
        self.cells(wanted).filter_map(|sample| sample.figure(figure)).collect()
    }

    /// Returns the best value of a limit in all of its measurements: the highest, or the shortest round trip.
    pub fn limit(&self, limit: &Labels, figure: &str) -> Option<f64> {
        let better = match figure {
            figure::LINK_ROUND_TRIP_US => f64::min,
            _ => f64::max,
        };
        self.figures(limit, figure).into_iter().reduce(better)
    }

    /// Returns the values of a dimension, in the order of their first measurement.
    pub fn values(&self, dimension: &str) -> Vec<&str> {
        let mut values = Vec::new();
        for value in self.samples.iter().filter_map(|sample| sample.labels.value(dimension)) {
            if !values.contains(&value) {
                values.push(value);
            }
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_difference_is_that_of_one_dimension() {
        let labels = |target, size| Labels::new().with("target", target).with("size", size);
        let first = labels("tgt", 1);
        assert_eq!(first.only_difference(&labels("tgt", 2)), Some("size"));
        assert_eq!(first.only_difference(&labels("istgt", 1)), Some("target"));
        assert_eq!(first.only_difference(&labels("istgt", 2)), None);
        assert_eq!(first.only_difference(&first), None);
        assert_eq!(first.only_difference(&Labels::new().with("target", "istgt")), None);
        assert_eq!(first.only_difference(&first.clone().with("mtu", 9000)), None);
    }
}
