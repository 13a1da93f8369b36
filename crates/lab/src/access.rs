//! Access specifications: the size, direction, position and number of a load's I/Os.

use serde::{Deserialize, Serialize};

/// The load of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessPattern {
    /// Size of an I/O in bytes.
    pub block_bytes: u32,
    /// Percentage of reads; the others are writes.
    pub read_percent: u8,
    /// Percentage of I/Os at random positions; the others begin where the last one ended.
    pub random_percent: u8,
    /// Outstanding I/Os of each session.
    pub queue_depth: u32,
}

/// An access specification with its common name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedPattern {
    /// Name.
    pub name: &'static str,
    /// The load.
    pub access: AccessPattern,
}

const fn named(
    name: &'static str,
    block_bytes: u32,
    read_percent: u8,
    random_percent: u8,
    queue_depth: u32,
) -> NamedPattern {
    NamedPattern {
        name,
        access: AccessPattern { block_bytes, read_percent, random_percent, queue_depth },
    }
}

const KIB: u32 = 1024;

/// The specifications that storage reports use: four extremes and six servers.
pub static NAMED: [NamedPattern; 10] = [
    named("Maximum Throughput", 512 * KIB, 100, 0, 32),
    named("Maximum IOPS", 512, 100, 0, 32),
    named("Maximum Write Throughput", 512 * KIB, 0, 100, 32),
    named("Maximum Write IOPS", 512, 0, 100, 32),
    named("Exchange 2003", 4 * KIB, 60, 80, 12),
    named("Exchange 2007", 8 * KIB, 55, 80, 12),
    named("SQL 16K", 16 * KIB, 66, 100, 16),
    named("SQL 64K", 64 * KIB, 66, 100, 16),
    named("Web Server", 8 * KIB, 95, 75, 4),
    named("Workstation", 8 * KIB, 80, 80, 4),
];

/// Returns the specification with this name; the comparison ignores case, and hyphens count as spaces.
pub fn find(name: &str) -> Option<&'static NamedPattern> {
    let plain = |name: &str| name.replace(['-', '_'], " ").to_ascii_lowercase();
    NAMED.iter().find(|known| plain(known.name) == plain(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_as_people_write_them() {
        assert_eq!(find("sql-64k").map(|found| found.access.block_bytes), Some(65536));
        assert_eq!(find("Maximum Throughput").map(|found| found.access.queue_depth), Some(32));
        assert_eq!(find("nothing"), None);
    }

    #[test]
    fn percentages_are_percentages() {
        for NamedPattern { access, .. } in &NAMED {
            assert!(access.read_percent <= 100 && access.random_percent <= 100);
        }
    }
}
