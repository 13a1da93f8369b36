//! Lu and Du: the cost of iSCSI over a SAN, a gigabit LAN and a campus network.

use std::sync::LazyLock;

use serde::Deserialize;

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LuDuRow {
    /// Its table or section in the study, and its load: `setup`, `Table 2 light load`, ….
    pub table: String,
    /// The measured object: a type of session, a network, a protocol.
    pub setup: String,
    /// `read`, `write`, `mixed`, or a phase of the session set-up.
    pub operation: String,
    /// Number of bytes of a request, if all requests have one size.
    #[serde(rename = "size", deserialize_with = "super::size_if_any")]
    pub bytes: Option<u32>,
    /// `mean`, `min`, `max`, `std`, `throughput` or `response time`.
    pub statistic: String,
    /// The unit of the value: `ms` or `MB/s`.
    pub unit: String,
    /// The figure.
    pub value: f64,
}

/// The properties of the database trace that the study replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceFacts {
    /// Number of requests.
    pub requests: u32,
    /// Percentage of reads.
    pub read_percent: u8,
    /// The first requested block.
    pub first_lba: u64,
    /// The last requested block.
    pub last_lba: u64,
    /// Number of threads that replayed the trace.
    pub threads: u32,
}

/// The database trace.
pub const LU_DU_TRACE: TraceFacts = TraceFacts {
    requests: 8626,
    read_percent: 70,
    first_lba: 9840,
    last_lba: 2_012_792,
    threads: 32,
};

/// Returns all figures, in the order of the tables.
pub fn lu_du() -> &'static [LuDuRow] {
    static ROWS: LazyLock<Vec<LuDuRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/lu-du-iscsi-storage.csv");
        super::rows("lu-du-iscsi-storage.csv", text)
    });
    &ROWS
}

/// Returns a figure; `table` is the beginning of the row's `table` (`Table 2`, `Figure 2`, `setup`, `database trace`).
pub fn lu_du_value(
    table: &str,
    setup: &str,
    operation: &str,
    bytes: Option<u32>,
    statistic: &str,
) -> Option<f64> {
    let row = lu_du().iter().find(|row| {
        row.table.starts_with(table)
            && row.setup == setup
            && row.operation == operation
            && row.bytes == bytes
            && row.statistic == statistic
    });
    row.map(|row| row.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_parses() {
        assert_eq!(lu_du().len(), 182);
        for row in lu_du() {
            assert!(row.value > 0.0, "{row:?}");
            assert!(["ms", "MB/s"].contains(&row.unit.as_str()), "{row:?}");
        }
    }

    #[test]
    fn figures_are_found() {
        let campus = "Campus LAN iSCSI";
        assert_eq!(lu_du_value("Table 2", campus, "read", Some(65536), "mean"), Some(24.2));
        assert_eq!(lu_du_value("Figure 2", campus, "mixed", Some(4096), "mean"), Some(1.8));
        assert_eq!(lu_du_value("setup", "normal session", "login", None, "max"), Some(501.0));
        assert_eq!(lu_du_value("database trace", "SAN", "mixed", None, "throughput"), Some(9.2));
        assert_eq!(lu_du_value("Table 9", campus, "read", None, "mean"), None);
    }

    #[test]
    fn means_lie_between_the_extremes() {
        for row in lu_du().iter().filter(|row| row.table.starts_with("Table 3")) {
            let mean = lu_du_value("Table 2", &row.setup, &row.operation, row.bytes, "mean");
            let mean = mean.unwrap();
            match row.statistic.as_str() {
                "min" => assert!(row.value < mean, "{row:?}"),
                "max" => assert!(row.value > mean, "{row:?}"),
                _ => {}
            }
        }
    }
}
