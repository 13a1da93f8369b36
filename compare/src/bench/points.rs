//! The client's workloads, by groups.

use clap::ValueEnum;
use serde::Serialize;

/// A group of points that are measured with the same targets under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Group {
    /// The ten access specifications on which storage benchmarks agree.
    Specs,
    /// Small random I/O by depth and number of sessions.
    Small,
    /// With and without digests.
    Digests,
    /// Memory and files by cache mode, on tmpfs and on disk, beside fio.
    Files,
    /// One logical unit, and a thousand.
    Luns,
    /// One idle session beside the busy one, and a thousand.
    Idle,
    /// A lightly loaded volume, alone and next to a volume at full load, with limits and without.
    Neighbours,
    /// A file by NBD and by iSCSI, beside other NBD servers.
    Nbd,
    /// Units of other servers through a gateway and directly, and stripes over servers.
    Gateways,
    /// Volumes of a pool in memory, beside a file without a pool, and qcow2.
    Pools,
    /// The same on disk, past the page cache, and beside fio.
    PoolsOnDisk,
    /// The same on loop devices.
    PoolsOnLoop,
    /// A pool of 10 TiB with 16 million chunks in use.
    LargePools,
    /// The time to start with ten thousand logical units.
    StartUp,
    /// Low depths where a wake-up costs as much as on a virtual machine whose host is busy.
    SlowWakeUps,
}

impl Group {
    /// Returns the heading of the table.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Specs => "Access specifications",
            Self::Small => "Small random I/O",
            Self::Digests => "Digests",
            Self::Files => "Files",
            Self::Luns => "Logical units",
            Self::Idle => "Idle sessions",
            Self::Neighbours => "Neighbours",
            Self::Nbd => "NBD",
            Self::Gateways => "Gateways",
            Self::Pools => "Pools in memory",
            Self::PoolsOnDisk => "Pools on disk",
            Self::PoolsOnLoop => "Pools on loop devices",
            Self::LargePools => "Large pools",
            Self::StartUp => "Start-up",
            Self::SlowWakeUps => "Slow wake-ups",
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) block_bytes: u32,
    pub(super) read_percent: u8,
    pub(super) random_percent: u8,
    pub(super) depth: u32,
    pub(super) sessions: u32,
    /// Header and data digests.
    pub(super) digests: bool,
    /// I/Os per second, started by the clock; `None` means as many as possible.
    pub(super) rate: Option<u32>,
}

impl Point {
    /// Creates a point with one session, without digests.
    pub(super) fn new(
        name: impl Into<String>,
        block_bytes: u32,
        read_percent: u8,
        random_percent: u8,
        depth: u32,
    ) -> Self {
        let name = name.into();
        let (sessions, digests, rate) = (1, false, None);
        Self { name, block_bytes, read_percent, random_percent, depth, sessions, digests, rate }
    }

    /// Creates a point with random I/O of one kind over some sessions.
    pub(super) fn small(block_bytes: u32, reads: bool, depth: u32, sessions: u32) -> Self {
        let name = small_name(block_bytes, reads, depth, sessions);
        let percent = if reads { 100 } else { 0 };
        Self { sessions, ..Self::new(name, block_bytes, percent, 100, depth) }
    }
}

const KIB: u32 = 1 << 10;
/// Outstanding I/Os of a session.
pub(super) const DEPTHS: [u32; 4] = [1, 4, 32, 128];
/// Number of sessions.
pub(super) const SESSIONS: [u32; 4] = [1, 4, 16, 64];
pub(super) const LARGE_READS: &str = "Maximum Throughput";
pub(super) const LARGE_WRITES: &str = "Maximum Write Throughput";
/// 4 KiB reads and writes, in the groups with one point for each.
pub(super) const READS: &str = "4K random read, depth 32";
pub(super) const WRITES: &str = "4K random write, depth 32";
pub(super) const SINGLE_READS: &str = "4K random read, depth 1";
pub(super) const READ_STREAM: &str = "1M sequential read, depth 8";
pub(super) const WRITE_STREAM: &str = "1M sequential write, depth 8";
/// The load of a client that its volume can serve easily.
pub(super) const STEADY: &str = "4K random read, 1,000 a second";
/// The end of a point's name, if it uses digests.
pub(super) const WITH_DIGESTS: &str = ", digests";

/// Returns the name of a point of [`Group::Small`].
pub(super) fn small_name(block_bytes: u32, reads: bool, depth: u32, sessions: u32) -> String {
    let size = match block_bytes {
        KIB.. => format!("{}K", block_bytes / KIB),
        _ => block_bytes.to_string(),
    };
    let kind = if reads { "read" } else { "write" };
    let plural = if sessions == 1 { "" } else { "s" };
    format!("{size} random {kind}, depth {depth}, {sessions} session{plural}")
}

/// Returns the points of a group.
pub(super) fn of(group: Group) -> Vec<Point> {
    let reads_and_writes =
        || vec![Point::new(READS, 4 * KIB, 100, 100, 32), Point::new(WRITES, 4 * KIB, 0, 100, 32)];
    match group {
        Group::Specs => specifications(),
        Group::Small => small(),
        Group::Digests => {
            let mut points = reads_and_writes();
            points.push(Point::new(LARGE_READS, 512 * KIB, 100, 0, 32));
            points.push(Point::new(LARGE_WRITES, 512 * KIB, 0, 0, 32));
            points.into_iter().flat_map(without_and_with_digests).collect()
        }
        Group::Files | Group::Pools | Group::PoolsOnDisk | Group::PoolsOnLoop => reads_and_writes(),
        Group::Luns | Group::Idle => vec![Point::new(READS, 4 * KIB, 100, 100, 32)],
        Group::Neighbours => {
            let point = Point::new(STEADY, 4 * KIB, 100, 100, 16);
            vec![Point { rate: Some(1000), ..point }]
        }
        Group::Nbd | Group::Gateways => {
            let mut points = reads_and_writes();
            points.push(Point::new(SINGLE_READS, 4 * KIB, 100, 100, 1));
            points.push(Point::new(READ_STREAM, KIB * KIB, 100, 0, 8));
            points.push(Point::new(WRITE_STREAM, KIB * KIB, 0, 0, 8));
            points
        }
        Group::LargePools | Group::StartUp => Vec::new(),
        Group::SlowWakeUps => {
            let mut points = vec![Point::new("512 B read, depth 32", 512, 100, 0, 32)];
            points.extend([1, 4].map(|depth| Point::small(4 * KIB, true, depth, 1)));
            points.push(Point::small(4 * KIB, true, 1, 4));
            points.extend(specifications().into_iter().filter(|point| point.depth < 32));
            points
        }
    }
}

fn without_and_with_digests(point: Point) -> [Point; 2] {
    let name = format!("{}{WITH_DIGESTS}", point.name);
    let with = Point { name, digests: true, ..point.clone() };
    [point, with]
}

fn specifications() -> Vec<Point> {
    vec![
        Point::new(LARGE_READS, 512 * KIB, 100, 0, 32),
        Point::new("Maximum IOPS", 512, 100, 0, 32),
        Point::new(LARGE_WRITES, 512 * KIB, 0, 0, 32),
        Point::new("Maximum Write IOPS", 512, 0, 0, 32),
        Point::new("Exchange 2003", 4 * KIB, 60, 80, 12),
        Point::new("Exchange 2007", 8 * KIB, 55, 80, 12),
        Point::new("SQL 16K", 16 * KIB, 66, 100, 16),
        Point::new("SQL 64K", 64 * KIB, 66, 100, 16),
        Point::new("Web Server", 8 * KIB, 95, 75, 4),
        Point::new("Workstation", 8 * KIB, 80, 80, 4),
    ]
}

fn small() -> Vec<Point> {
    let mut points = Vec::new();
    for reads in [true, false] {
        points.extend([1, 4].map(|sessions| Point::small(512, reads, 32, sessions)));
        for depth in DEPTHS {
            points.extend(SESSIONS.map(|sessions| Point::small(4 * KIB, reads, depth, sessions)));
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_points_of_a_group_have_one_name() {
        for group in Group::value_variants() {
            let points = of(*group);
            let names: BTreeSet<_> = points.iter().map(|point| &point.name).collect();
            assert_eq!(names.len(), points.len(), "{group:?}");
        }
    }
}
