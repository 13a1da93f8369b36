//! Lunden, tables 4.1 to 4.9: bonnie++ on a local disk, iSCSI, NFS and DRBD.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

/// Number of runs of each row. The study made a hundred runs, but its means are multiples of 1/99.
pub const LUNDEN_RUNS: u32 = 99;

/// The statistics of one bonnie++ column over the runs of a set-up. The unit is KiB/s for rates of blocks and bytes,
/// 1/s for seeks and files, and % of a CPU for columns that end with `_cpu`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LundenRow {
    /// The storage and the number of virtual machines: `iscsi base`, `nfs 3 vms`, ….
    pub setup: String,
    /// bonnie++'s name of the column, as printed: `seqcpu` occurs once instead of `seq_stat_cpu`.
    pub operation: String,
    /// Arithmetic mean; results that were too fast to measure count as 0.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// Absolute difference of mean and median.
    pub mean_median_gap: f64,
    /// Variance with the divisor n; absent if printed as `nan`, for runs with equal results.
    #[serde(deserialize_with = "number_if_any")]
    pub variance: Option<f64>,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Difference of maximum and minimum.
    pub range: f64,
}

impl LundenRow {
    /// Returns bonnie++'s name of the column.
    pub fn column(&self) -> &str {
        if self.operation == "seqcpu" { "seq_stat_cpu" } else { &self.operation }
    }
}

/// Parses a number; `nan` is `None`.
fn number_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(deserializer).map(|number| Some(number).filter(|number| !number.is_nan()))
}

/// Returns all rows, in the order of the tables.
pub fn lunden() -> &'static [LundenRow] {
    static ROWS: LazyLock<Vec<LundenRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/lunden-2009.csv");
        super::rows("lunden-2009.csv", text)
    });
    &ROWS
}

/// Returns the set-ups, in the order of the tables.
pub fn lunden_setups() -> Vec<&'static str> {
    let mut setups: Vec<_> = lunden().iter().map(|row| row.setup.as_str()).collect();
    setups.dedup();
    setups
}

/// Returns the row of a set-up (`iscsi base`) and a bonnie++ column (`put_block_cpu`).
pub fn lunden_row(setup: &str, column: &str) -> Option<&'static LundenRow> {
    lunden().iter().find(|row| row.setup == setup && row.column() == column)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_parses() {
        assert_eq!(lunden().len(), 196);
        assert_eq!(lunden_setups().len(), 9);
        for setup in lunden_setups() {
            let count = lunden().iter().filter(|row| row.setup == setup).count();
            // The study measured one machine without the creation of files.
            assert_eq!(count, if setup == "nexus base" { 12 } else { 23 }, "{setup}");
            for row in lunden().iter().filter(|row| row.setup == setup) {
                assert_eq!(lunden_row(setup, row.column()), Some(row));
            }
        }
        assert_eq!(lunden_row("keeper base", "seq_stat_cpu").unwrap().operation, "seqcpu");
        assert_eq!(lunden_row("iscsi base", "putc").unwrap().mean, 42653.101);
    }

    #[test]
    fn gaps_and_ranges_match_their_names() {
        for row in lunden() {
            assert!(
                ((row.mean - row.median).abs() - row.mean_median_gap).abs() < 0.0011,
                "{row:?}"
            );
            assert!((row.max - row.min - row.range).abs() < 0.001, "{row:?}");
            assert_eq!(row.variance.is_none(), row.range == 0.0, "{row:?}");
        }
    }

    /// A column with only two consecutive integers shows the divisor of its variance: if a share p of the values is the
    /// greater one, the variance with the divisor n is p (1 - p).
    #[test]
    fn variances_divide_by_the_number_of_runs() {
        let runs = f64::from(LUNDEN_RUNS);
        let two_valued = |row: &&LundenRow| row.range == 1.0;
        let mut told_apart = 0;
        for row in lunden().iter().filter(two_valued) {
            let share = ((row.mean - row.min) * runs).round() / runs;
            let (by_n, variance) = (share * (1.0 - share), row.variance.unwrap());
            assert!((variance - by_n).abs() < 0.00051, "{row:?}: {by_n}");
            let by_less = by_n * runs / (runs - 1.0);
            told_apart += u32::from((variance - by_less).abs() > 0.00051);
        }
        assert!(told_apart >= 4, "{told_apart}");
    }

    #[test]
    fn means_are_of_ninety_nine_runs() {
        for row in lunden().iter().filter(|row| !row.operation.starts_with("seeks")) {
            let sum = row.mean * f64::from(LUNDEN_RUNS);
            assert!((sum - sum.round()).abs() < 0.0005 * 99.0 + 0.001, "{row:?}");
        }
    }
}
