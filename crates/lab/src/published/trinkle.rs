//! Trinkle, tables G.1 to G.16: IET, SCST, LIO and ISTGT, from a virtual and a physical initiator,
//! with frames of 1500 and 9000 bytes; and figures of its text.

use std::sync::LazyLock;

use serde::Deserialize;

use super::access_named;
use crate::access::NamedPattern;

/// Maximum throughput of the study's network in MB/s.
pub const TRINKLE_NETWORK_MB_PER_S: f64 = 112.0;
/// Throughput of the study's RAID without a network in MB/s.
pub const TRINKLE_LOCAL_MB_PER_S: f64 = 430.0;

/// The gain of aligning a file system with the stripes of a RAID, which a test by VMware of 2009 found for large sequential
/// I/Os. The study quotes it. Its throughputs, and the offset of the misaligned file system, are not among these figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AlignmentGain {
    /// `read` or `write`.
    pub operation: &'static str,
    /// The minimum gain in MB/s.
    pub least_mb_per_s: f64,
    /// The maximum gain in MB/s.
    pub most_mb_per_s: f64,
}

/// The quoted gains: about 20 MB/s for reads, 15 to 20 MB/s for writes.
pub const TRINKLE_ALIGNMENT_GAINS: [AlignmentGain; 2] = [
    AlignmentGain { operation: "read", least_mb_per_s: 20.0, most_mb_per_s: 20.0 },
    AlignmentGain { operation: "write", least_mb_per_s: 15.0, most_mb_per_s: 20.0 },
];

/// One row of the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct TrinkleRow {
    /// `IET`, `SCST`, `LIO` or `ISTGT`.
    pub target: String,
    /// `virtual` or `physical`.
    pub initiator: String,
    /// Largest IP packet: 1500 or 9000 bytes.
    pub mtu: u32,
    /// The access specification, by its name in the tables.
    pub test: String,
    /// The unit of the figures: `MB/s` or `IOPS`.
    pub unit: String,
    /// The three runs of five minutes.
    pub runs: [f64; 3],
    /// Their mean, as printed.
    pub mean: f64,
    /// Their standard deviation with the divisor n, as printed.
    pub std: f64,
}

#[derive(Deserialize)]
struct Raw {
    target: String,
    initiator: String,
    mtu: u32,
    test: String,
    unit: String,
    run1: f64,
    run2: f64,
    run3: f64,
    mean: f64,
    std: f64,
}

/// Returns all rows, in the order of the tables.
pub fn trinkle() -> &'static [TrinkleRow] {
    static ROWS: LazyLock<Vec<TrinkleRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/trinkle-2013.csv");
        super::rows::<Raw>("trinkle-2013.csv", text).into_iter().map(Into::into).collect()
    });
    &ROWS
}

impl From<Raw> for TrinkleRow {
    fn from(raw: Raw) -> Self {
        let Raw { target, initiator, mtu, test, unit, run1, run2, run3, mean, std } = raw;
        Self { target, initiator, mtu, test, unit, runs: [run1, run2, run3], mean, std }
    }
}

impl TrinkleRow {
    /// Returns the access specification of the row.
    pub fn access(&self) -> Option<&'static NamedPattern> {
        access_named(&self.test)
    }

    /// Returns the mean of the printed runs.
    pub fn mean_of_runs(&self) -> f64 {
        self.runs.iter().sum::<f64>() / 3.0
    }
}

/// Returns the row of a target (case-insensitive), an initiator, an MTU and an access specification, by its name in
/// this program or in the table.
pub fn trinkle_row(
    target: &str,
    initiator: &str,
    mtu: u32,
    access: &str,
) -> Option<&'static TrinkleRow> {
    let access = access_named(access)?;
    trinkle().iter().find(|row| {
        row.target.eq_ignore_ascii_case(target)
            && row.initiator == initiator
            && row.mtu == mtu
            && row.access() == Some(access)
    })
}

/// Returns the printed mean of that row, in MB/s, or in I/Os per second for the two IOPS specifications.
pub fn trinkle_mean(target: &str, initiator: &str, mtu: u32, access: &str) -> Option<f64> {
    trinkle_row(target, initiator, mtu, access).map(|row| row.mean)
}

/// Returns the rows whose printed mean differs from the mean of their printed runs by more than the last digit.
pub fn trinkle_inconsistent() -> impl Iterator<Item = &'static TrinkleRow> {
    trinkle().iter().filter(|row| (row.mean - row.mean_of_runs()).abs() > 0.01)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::access::NAMED;

    #[test]
    fn every_target_ran_every_specification_in_every_way() {
        assert_eq!(trinkle().len(), 160);
        for target in ["IET", "SCST", "LIO", "istgt"] {
            for (initiator, mtu) in
                [("virtual", 1500), ("virtual", 9000), ("physical", 1500), ("physical", 9000)]
            {
                for NamedPattern { name, access } in &NAMED {
                    let row = trinkle_row(target, initiator, mtu, name).unwrap();
                    let unit = if access.block_bytes == 512 { "IOPS" } else { "MB/s" };
                    assert_eq!(row.unit, unit, "{row:?}");
                }
            }
        }
        assert_eq!(trinkle_mean("LIO", "virtual", 9000, "Exchange 2007"), Some(2.94));
        assert_eq!(trinkle_mean("LIO", "virtual", 9000, "Exchange 07"), Some(2.94));
        assert_eq!(trinkle_mean("LIO", "virtual", 1492, "Exchange 2007"), None);
    }

    #[test]
    fn the_names_of_the_tables_are_ours() {
        let tests: BTreeSet<_> = trinkle().iter().map(|row| row.test.as_str()).collect();
        let ours: BTreeSet<_> =
            tests.iter().map(|test| access_named(test).expect(test).name).collect();
        assert_eq!((tests.len(), ours.len()), (10, 10));
        assert_eq!(ours, NAMED.iter().map(|named| named.name).collect());
    }

    #[test]
    fn one_row_contradicts_itself_and_stays_as_it_is() {
        let found: Vec<_> = trinkle_inconsistent().collect();
        let [row] = found[..] else { panic!("{found:?}") };
        assert_eq!((row.target.as_str(), row.initiator.as_str()), ("SCST", "virtual"));
        assert_eq!((row.mtu, row.test.as_str(), row.mean), (1500, "Maximum Throughput", 93.82));
    }

    #[test]
    fn deviations_divide_by_the_number_of_runs() {
        for row in trinkle() {
            let mean = row.mean_of_runs();
            let squares: f64 = row.runs.iter().map(|run| (run - mean).powi(2)).sum();
            let agrees = (row.std - (squares / 3.0).sqrt()).abs() < 0.011;
            assert_eq!(agrees, row.mean != 93.82, "{row:?}");
        }
    }
}
