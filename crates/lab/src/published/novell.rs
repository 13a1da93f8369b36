//! Novell: the effect of block size, medium, cable and adapter on iSCSI.

use std::sync::LazyLock;

use serde::Deserialize;

/// One figure.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct NovellRow {
    /// `Table 1` to `Table 7`, or `test runs` and `cabling` for figures of the text.
    pub table: String,
    /// The operating system of the target and its special settings.
    pub setup: String,
    /// `read`, `write`, or `access` if the study does not state the operation.
    pub operation: String,
    /// `sequential` or `random`.
    pub access: String,
    /// Number of bytes of an I/O.
    #[serde(rename = "block_size", deserialize_with = "super::size")]
    pub block_bytes: u32,
    /// `iscsi` or `direct`.
    pub path: String,
    /// `RAM drive` or `hard drive`.
    pub medium: String,
    /// Throughput in MB/s.
    pub mb_per_s: f64,
}

/// Returns all figures, in the order of the tables.
pub fn novell() -> &'static [NovellRow] {
    static ROWS: LazyLock<Vec<NovellRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/novell-iscsi-performance-factors.csv");
        super::rows("novell-iscsi-performance-factors.csv", text)
    });
    &ROWS
}

/// Returns the sequential throughput in MB/s of a table (`Table 2`) for a block size and a medium.
pub fn novell_mb_per_s(table: &str, block_bytes: u32, medium: &str) -> Option<f64> {
    let row = novell().iter().find(|row| {
        row.table == table
            && row.block_bytes == block_bytes
            && row.medium == medium
            && row.access == "sequential"
    });
    row.map(|row| row.mb_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_parses() {
        assert_eq!(novell().len(), 103);
        for row in novell() {
            assert!(row.mb_per_s > 0.0 && row.block_bytes >= 4096, "{row:?}");
            assert!(["read", "write", "access"].contains(&row.operation.as_str()), "{row:?}");
            assert!(["sequential", "random"].contains(&row.access.as_str()), "{row:?}");
            assert!(["iscsi", "direct"].contains(&row.path.as_str()), "{row:?}");
            assert!(["RAM drive", "hard drive"].contains(&row.medium.as_str()), "{row:?}");
        }
    }

    #[test]
    fn figures_are_found() {
        assert_eq!(novell_mb_per_s("Table 2", 4 << 20, "RAM drive"), Some(114.0));
        assert_eq!(novell_mb_per_s("Table 4", 512 << 10, "RAM drive"), Some(2525.644));
        assert_eq!(novell_mb_per_s("Table 7", 4096, "hard drive"), Some(19.8));
        assert_eq!(novell_mb_per_s("Table 7", 4096, "RAM drive"), None);
    }
}
