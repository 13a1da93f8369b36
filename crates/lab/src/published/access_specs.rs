//! Trinkle's access specifications (table 3.3), and the short names of the tables of appendix G.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::access::{self, AccessPattern, NamedPattern};

/// An access specification. The study ran it three times for five minutes from one initiator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessSpecRow {
    /// Its name, as in [`access::NAMED`].
    pub name: String,
    /// Its access pattern.
    pub access: AccessPattern,
    /// The unit of its results: `MB/s` or `IOPS`.
    pub metric: String,
}

#[derive(Deserialize)]
struct Raw {
    name: String,
    #[serde(deserialize_with = "super::size")]
    block_size: u32,
    read_percent: u8,
    random_percent: u8,
    outstanding: u32,
    metric: String,
}

/// Returns all ten, in the order of the table.
pub fn access_specs() -> &'static [AccessSpecRow] {
    static ROWS: LazyLock<Vec<AccessSpecRow>> = LazyLock::new(|| {
        let text = include_str!("../../published/access-specs.csv");
        super::rows::<Raw>("access-specs.csv", text).into_iter().map(Into::into).collect()
    });
    &ROWS
}

impl From<Raw> for AccessSpecRow {
    fn from(raw: Raw) -> Self {
        let access = AccessPattern {
            block_bytes: raw.block_size,
            read_percent: raw.read_percent,
            random_percent: raw.random_percent,
            queue_depth: raw.outstanding,
        };
        Self { name: raw.name, access, metric: raw.metric }
    }
}

/// Returns the specification for its name in a published table: `Exchange 03` is "Exchange 2003".
pub fn access_named(published: &str) -> Option<&'static NamedPattern> {
    access::find(match published {
        "Exchange 03" => "Exchange 2003",
        "Exchange 07" => "Exchange 2007",
        same => same,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_specifications_are_the_named_ones() {
        let published: Vec<_> =
            access_specs().iter().map(|row| (row.name.as_str(), row.access)).collect();
        let named: Vec<_> = access::NAMED.iter().map(|named| (named.name, named.access)).collect();
        assert_eq!(published, named);
        // The study reports IOPS for small I/Os and throughput for all others.
        for row in access_specs() {
            assert_eq!(row.metric == "IOPS", row.access.block_bytes == 512, "{}", row.name);
        }
    }
}
