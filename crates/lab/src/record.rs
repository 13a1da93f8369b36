//! What a run of a study is made of when it is written down: which cells, how often, what came out.
//!
//! These are the types that the archive keeps and that reports are made from; whoever changes a
//! field's meaning here makes old runs unreadable, so fields are added and never reused.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// What makes one cell of a study differ from the others: `target` = `tgt`, `mtu` = `9000`, ….
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

impl Labels {
    /// No labels.
    pub fn new() -> Self {
        Self::default()
    }

    /// With one more.
    #[must_use]
    pub fn with(mut self, dimension: &str, value: impl fmt::Display) -> Self {
        self.0.insert(dimension.into(), value.to_string());
        self
    }

    /// The value of a dimension.
    pub fn value(&self, dimension: &str) -> Option<&str> {
        self.0.get(dimension).map(String::as_str)
    }

    /// Whether all of `wanted` are among these.
    pub fn include(&self, wanted: &Labels) -> bool {
        wanted.0.iter().all(|(dimension, value)| self.0.get(dimension) == Some(value))
    }

    /// All of them, by the names of their dimensions.
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
    /// I/Os a second.
    pub const IOPS: &str = "iops";
    /// Millions of bytes a second.
    pub const MB_PER_S: &str = "mb_per_s";
    /// Mean latency, µs.
    pub const MEAN_US: &str = "mean_us";
    /// Shortest latency, µs.
    pub const MIN_US: &str = "min_us";
    /// Median latency, µs.
    pub const P50_US: &str = "p50_us";
    /// 99th percentile of the latency, µs.
    pub const P99_US: &str = "p99_us";
    /// 99.9th percentile of the latency, µs.
    pub const P999_US: &str = "p999_us";
    /// Longest latency, µs.
    pub const MAX_US: &str = "max_us";
    /// Standard deviation of the latency, µs.
    pub const DEVIATION_US: &str = "deviation_us";
    /// CPU time of the target for each I/O, µs.
    pub const TARGET_CPU_US_PER_IO: &str = "target_cpu_us_per_io";
    /// CPU time of the load generator for each I/O, µs.
    pub const CLIENT_CPU_US_PER_IO: &str = "client_cpu_us_per_io";
    /// Resident memory of the target at the end, KiB.
    pub const TARGET_RSS_KIB: &str = "target_rss_kib";
    /// What a link carries towards the targets' side, millions of bytes a second.
    pub const LINK_TO_TARGET_MB_PER_S: &str = "link_to_target_mb_per_s";
    /// What a link carries from the targets' side, millions of bytes a second.
    pub const LINK_FROM_TARGET_MB_PER_S: &str = "link_from_target_mb_per_s";
    /// Median time of a small message over a link and back, µs.
    pub const LINK_ROUND_TRIP_US: &str = "link_round_trip_us";
    /// TCP segments that were sent again while a link was measured.
    pub const LINK_RETRANSMITS: &str = "link_retransmits";
    /// What a medium reads in order, millions of bytes a second.
    pub const MEDIUM_READ_MB_PER_S: &str = "medium_read_mb_per_s";
    /// What a medium writes in order, millions of bytes a second.
    pub const MEDIUM_WRITE_MB_PER_S: &str = "medium_write_mb_per_s";
    /// Random reads of 4 KiB a second, one after the other.
    pub const MEDIUM_RANDOM_READ_IOPS: &str = "medium_random_read_iops";
    /// Random reads of 4 KiB a second, 32 at once.
    pub const MEDIUM_RANDOM_READ_IOPS_32: &str = "medium_random_read_iops_32";
    /// 1 if the load was steady by the SNIA's rule, else 0.
    pub const STEADY: &str = "steady";
}

/// What one measurement gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Figures by name; see [`figure`].
    pub figures: BTreeMap<String, f64>,
    /// Texts by name, such as the negotiated keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub texts: BTreeMap<String, String>,
    /// How often which latency was seen, if latencies were measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latencies: Vec<Bucket>,
    /// I/Os a second over the time of the measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Series>,
}

/// I/Os whose latency is at most `upper_us` and above the bucket's before.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// The bucket's end, µs.
    pub upper_us: f64,
    /// How many.
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

/// How one measurement ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With figures.
    Measured(Measures),
    /// With an error: what failed and why.
    Failed(String),
    /// It cannot be measured here, and why.
    NotMeasured(String),
}

/// One measurement of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Which cell.
    pub labels: Labels,
    /// Which repetition, from 1.
    pub repetition: u32,
    /// Seconds since the Unix epoch, when it had ended.
    pub ended_at: u64,
    /// What came out.
    pub outcome: Outcome,
}

impl Sample {
    /// A figure, if it was measured.
    pub fn figure(&self, name: &str) -> Option<f64> {
        match &self.outcome {
            Outcome::Measured(measures) => measures.figures.get(name).copied(),
            Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
        }
    }
}

/// How thoroughly a study is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// A minute or so.
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

/// Where and how a run took place: what a reader needs to judge it or to do it again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// The machine: processor, cores, memory, kernel, distribution, by name.
    pub machine: BTreeMap<String, String>,
    /// The versions of what took part.
    pub versions: BTreeMap<String, String>,
    /// The commands that started what took part, as they were given.
    pub commands: Vec<String>,
    /// How the targets under test were reached, and what could not be made.
    pub network: Vec<String>,
    /// What the pseudo-random choices began from.
    pub seed: u64,
    /// What was to be measured: volumes, links, cells.
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
    /// How thoroughly.
    pub scale: Scale,
    /// The command line that began it.
    pub command: String,
    /// Who took part, by their names.
    pub targets_under_test: Vec<String>,
    /// Seconds since the Unix epoch.
    pub began_at: u64,
    /// Seconds since the Unix epoch; absent while it is unfinished.
    pub ended_at: Option<u64>,
    /// Where and how.
    pub setting: Setting,
    /// What was measured, in the order in which it was.
    pub samples: Vec<Sample>,
}

impl Run {
    /// The samples of one cell, or of all cells that have these labels.
    pub fn cells<'a>(&'a self, wanted: &'a Labels) -> impl Iterator<Item = &'a Sample> {
        self.samples.iter().filter(|sample| sample.labels.include(wanted))
    }

    /// A figure of every repetition that was measured of the cells that have these labels.
    pub fn figures(&self, wanted: &Labels, figure: &str) -> Vec<f64> {
        self.cells(wanted).filter_map(|sample| sample.figure(figure)).collect()
    }

    /// The values of a dimension, in the order in which they were first measured.
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
