//! Access specifications: how large the I/Os are, what they do, where they go, how many at once.

use serde::{Deserialize, Serialize};

/// What a client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Bytes of an I/O.
    pub block_bytes: u32,
    /// Of a hundred I/Os, how many read; the others write.
    pub read_percent: u8,
    /// Of a hundred I/Os, how many go anywhere; the others go on where the last one ended.
    pub random_percent: u8,
    /// I/Os that each session keeps open.
    pub queue_depth: u32,
}

/// An access specification with the name under which it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamedAccess {
    /// Name.
    pub name: &'static str,
    /// What it does.
    pub access: Access,
}

const fn named(
    name: &'static str,
    block_bytes: u32,
    read_percent: u8,
    random_percent: u8,
    queue_depth: u32,
) -> NamedAccess {
    NamedAccess { name, access: Access { block_bytes, read_percent, random_percent, queue_depth } }
}

const KIB: u32 = 1024;

/// The specifications that storage reports have used for years: four extremes and six servers.
pub static NAMED: [NamedAccess; 10] = [
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

/// The specification of this name, whatever its letters' case, with spaces or hyphens.
pub fn find(name: &str) -> Option<&'static NamedAccess> {
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
        for NamedAccess { access, .. } in &NAMED {
            assert!(access.read_percent <= 100 && access.random_percent <= 100);
        }
    }
}
