//! Lunden, tables 4.1 to 4.9: bonnie++ on a local disk, iSCSI, NFS and DRBD.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

/// How many runs each line is made of: a hundred were made, and the means are multiples of 1/99.
pub const LUNDEN_RUNS: u32 = 99;

/// What one column of bonnie++'s lines gave over the runs of a set-up. Rates of blocks and bytes
/// are in KiB/s, of seeks and files a second, columns that end with `_cpu` in % of a CPU.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LundenRow {
    /// Whose storage, and from how many virtual machines: `iscsi base`, `nfs 3 vms`, ….
    pub setup: String,
    /// bonnie++'s name of the column, as printed: `seqcpu` once stands for `seq_stat_cpu`.
    pub operation: String,
    /// Arithmetic mean; what was too quick to be measured is in it as 0.
    pub mean: f64,
    /// Median.
    pub median: f64,
    /// How far mean and median are apart, whichever is the greater.
    pub mean_median_gap: f64,
    /// Variance, dividing by n; absent where it is printed as `nan`, for runs that gave the same.
    #[serde(deserialize_with = "number_if_any")]
    pub variance: Option<f64>,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// From the least to the greatest.
    pub range: f64,
}

impl LundenRow {
    /// bonnie++'s name of the column.
    pub fn column(&self) -> &str {
        if self.operation == "seqcpu" { "seq_stat_cpu" } else { &self.operation }
    }
}

/// `nan` is no number.
fn number_if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    f64::deserialize(deserializer).map(|number| Some(number).filter(|number| !number.is_nan()))
}

/// All lines, table by table.
pub fn lunden() -> &'static [LundenRow] {
    static ROWS: LazyLock<Vec<LundenRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/lunden-2009.csv");
        super::rows("lunden-2009.csv", text)
    });
    &ROWS
}

/// The set-ups, in the order of the tables.
pub fn lunden_setups() -> Vec<&'static str> {
    let mut setups: Vec<_> = lunden().iter().map(|row| row.setup.as_str()).collect();
    setups.dedup();
    setups
}

/// The line of a set-up (`iscsi base`) and a column of bonnie++'s (`put_block_cpu`).
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
            // One machine was measured without the creation of files.
            assert_eq!(count, if setup == "nexus base" { 12 } else { 23 }, "{setup}");
            for row in lunden().iter().filter(|row| row.setup == setup) {
                assert_eq!(lunden_row(setup, row.column()), Some(row));
            }
        }
        assert_eq!(lunden_row("keeper base", "seq_stat_cpu").unwrap().operation, "seqcpu");
        assert_eq!(lunden_row("iscsi base", "putc").unwrap().mean, 42653.101);
    }

    #[test]
    fn gaps_and_ranges_are_what_they_are_called() {
        for row in lunden() {
            assert!(
                ((row.mean - row.median).abs() - row.mean_median_gap).abs() < 0.0011,
                "{row:?}"
            );
            assert!((row.max - row.min - row.range).abs() < 0.001, "{row:?}");
            assert_eq!(row.variance.is_none(), row.range == 0.0, "{row:?}");
        }
    }

    /// A column of two neighbouring whole numbers tells how its variance was made: with a share p
    /// of the greater it is p (1 - p) when it divides by n.
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
