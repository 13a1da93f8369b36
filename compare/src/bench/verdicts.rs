//! The requirements for the program, compared with other targets, with the limit and with itself, and their results.

use std::fmt;
use std::slice::from_ref;

use serde::{Serialize, Serializer};

use super::files;
use super::gateways::{GATEWAY, GATEWAY_TO_ISTGT, GATEWAY_TO_TGT, ONE_SERVER, STRIPES};
use super::large_pools::{BOUND, LargePool};
use super::nbd::{ISCSI, NBD, NBDKIT, QEMU};
use super::neighbours::{ALONE, BESIDE_LIMITED};
use super::points::{
    self, DEPTHS, Group, LARGE_READS, LARGE_WRITES, Point, READ_STREAM, READS, SINGLE_READS,
    STEADY, WITH_DIGESTS, WRITE_STREAM, WRITES, small_name,
};
use super::pools::{CHECKED, FILE, FIRST, MANY, NEXT_SNAPSHOT, POOL, QCOW2, SNAPSHOT};
use super::results::{CPU, Figure, IOPS, P99, Results, median, ratio};
use super::start_up::Changes;
use super::targets_under_test::{
    FIO, IDLE_MANY, IDLE_ONE, ISTGT, LIMIT, LIMIT_KEEPING, LIMIT_SPINNING, LUNS_MANY, LUNS_ONE,
    ONE_CORE, SARSEN, SLEEPING, TGT,
};

/// The bound of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtLeast(border) => value >= border,
            Self::AtMost(border) => value <= border,
        }
    }

    /// Returns whether the first of two values is closer to failing, or fails by more.
    fn is_worse(self, value: f64, other: f64) -> bool {
        match self {
            Self::AtLeast(_) => value < other,
            Self::AtMost(_) => value > other,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(border) => write!(f, "≥ {border}"),
            Self::AtMost(border) => write!(f, "≤ {border}"),
        }
    }
}

impl Serialize for Bound {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The result of one requirement.
#[derive(Debug, Serialize)]
pub(super) struct Verdict {
    pub(super) what: String,
    pub(super) bound: Bound,
    /// The worst of all places; `None` if none was measured.
    pub(super) measured: Option<f64>,
    /// The place of the worst value.
    pub(super) place: Option<String>,
}

impl Verdict {
    pub(super) fn is_met(&self) -> Option<bool> {
        self.measured.map(|measured| self.bound.holds(measured))
    }
}

/// A point and a target under test.
type PointKey<'a> = (String, &'a str);

/// A requirement on the ratio of one figure in two cells, for each of several pairs of cells.
struct Requirement<'a> {
    what: String,
    group: Group,
    figure: Figure,
    bound: Bound,
    pairs: Vec<(PointKey<'a>, PointKey<'a>)>,
}

impl Requirement<'_> {
    fn verdict(self, results: &Results) -> Verdict {
        let Self { what, group, figure, bound, pairs } = self;
        let mut worst: Option<(f64, String)> = None;
        for ((point, over), (other_point, under)) in pairs {
            let value = results
                .cell(group, &point, over)
                .zip(results.cell(group, &other_point, under))
                .and_then(|(over, under)| ratio(over, under, figure));
            let Some(value) = value else { continue };
            if worst.as_ref().is_none_or(|(worst, _)| bound.is_worse(value, *worst)) {
                let is_ours = [SARSEN, SLEEPING, ONE_CORE].contains(&over);
                worst = Some((value, if is_ours { point } else { format!("{point}, {over}") }));
            }
        }
        let (measured, place) = worst.unzip();
        Verdict { what, bound, measured, place }
    }
}

/// Returns all requirements, in the order of the issue that defines them.
pub(super) fn all(results: &Results) -> Vec<Verdict> {
    let mut requirements = against_peers(TGT, [10.0, 4.0, 2.5, 1.0]);
    requirements.extend(against_peers(ISTGT, [6.0, 2.5, 2.0, 1.5]));
    requirements.extend(against_the_limit());
    requirements.extend(of_files());
    requirements.extend(against_itself());
    requirements.extend(of_nbd());
    requirements.extend(of_gateways());
    requirements.extend(of_pools());
    requirements.extend(of_slow_wake_ups());
    let mut verdicts: Vec<_> =
        requirements.into_iter().map(|requirement| requirement.verdict(results)).collect();
    let start_up = &results.start_up;
    verdicts.push(Verdict {
        what: "seconds of start-up with 10,000 units".into(),
        bound: Bound::AtMost(1.0),
        measured: (!start_up.is_empty()).then(|| median(start_up)),
        place: None,
    });
    let of = |seconds: fn(&Changes) -> f64| {
        let all: Vec<f64> = results.changes.iter().map(seconds).collect();
        (!all.is_empty()).then(|| median(&all))
    };
    for (what, most, measured) in [
        ("10,000 volumes and targets applied from one file", 5.0, of(|one| one.apply)),
        ("one more volume and target", 0.05, of(|one| one.one_more)),
        ("a restart with all of them", 1.0, of(|one| one.restart)),
    ] {
        let what = format!("seconds of {what}");
        verdicts.push(Verdict { what, bound: Bound::AtMost(most), measured, place: None });
    }
    verdicts.extend(of_large_pools(&results.large_pools));
    verdicts
}

/// Returns pairs in which both cells have the same point.
fn same_points<'a>(
    points: impl IntoIterator<Item = String>,
    over: &'a str,
    under: &'a str,
) -> Vec<(PointKey<'a>, PointKey<'a>)> {
    points.into_iter().map(|point| ((point.clone(), over), (point, under))).collect()
}

fn against_peers<'a>(peer: &'a str, factors: [f64; 4]) -> Vec<Requirement<'a>> {
    let [small, medium, large, largest] = factors;
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    let mut smallest = Vec::new();
    for block_bytes in [512, 4096] {
        for reads in [true, false] {
            smallest.extend([1, 4].map(|sessions| small_name(block_bytes, reads, 32, sessions)));
        }
    }
    let requirement = |what: &str, group, points: Vec<String>, factor| Requirement {
        what: format!("IOPS × {peer}: {what}"),
        group,
        figure: IOPS,
        bound: Bound::AtLeast(factor),
        pairs: same_points(points, SARSEN, peer),
    };
    vec![
        requirement("512 B and 4 KiB, depth 32, 1 and 4 sessions", Group::Small, smallest, small),
        requirement(
            "Exchange 2003 and 2007, SQL 16K",
            Group::Specs,
            names(&["Exchange 2003", "Exchange 2007", "SQL 16K"]),
            medium,
        ),
        requirement(
            "SQL 64K, Web Server, Workstation",
            Group::Specs,
            names(&["SQL 64K", "Web Server", "Workstation"]),
            large,
        ),
        requirement("512 KiB", Group::Specs, names(&[LARGE_READS, LARGE_WRITES]), largest),
    ]
}

fn against_the_limit<'a>() -> Vec<Requirement<'a>> {
    let mut requirements = Vec::new();
    for group in [Group::Specs, Group::Small] {
        let by_depth = |wanted: &dyn Fn(u32) -> bool| -> Vec<String> {
            let all = points::of(group).into_iter();
            all.filter(|point| wanted(point.depth)).map(|point| point.name).collect()
        };
        let title = group.title();
        let mut requirement = |what: &str, figure, bound, points, over, under| {
            let what = format!("{what}: {title}");
            let pairs = same_points(points, over, under);
            requirements.push(Requirement { what, group, figure, bound, pairs });
        };
        let every = by_depth(&|_| true);
        let low = by_depth(&|depth| depth <= 12);
        let deep = by_depth(&|depth| depth == 32);
        let least = Bound::AtLeast;
        // The limit discards written data. The results also show how much that alone contributes.
        for (how, ours) in [("sleeping", SLEEPING), ("sleeping, one core", ONE_CORE)] {
            for (of, limit) in [("the limit", LIMIT), ("the limit that keeps", LIMIT_KEEPING)] {
                let (iops, cpu) =
                    (format!("{how}: IOPS × {of}"), format!("{how}: CPU for each I/O × {of}"));
                requirement(&iops, IOPS, least(0.85), every.clone(), ours, limit);
                requirement(&cpu, CPU, Bound::AtMost(1.35), every.clone(), ours, limit);
            }
        }
        requirement(
            "depth 1 to 12: IOPS × the spinning limit",
            IOPS,
            least(0.8),
            low,
            SARSEN,
            LIMIT_SPINNING,
        );
        requirement(
            "sleeping: p99 at depth 32 × the limit's",
            P99,
            Bound::AtMost(1.5),
            deep,
            SLEEPING,
            LIMIT,
        );
    }
    requirements
}

fn of_files<'a>() -> Vec<Requirement<'a>> {
    let cached = [files::TMPFS_WRITE_BACK, files::DISK_WRITE_BACK];
    let both = [READS, WRITES];
    let pair = |point: &str, over, under| ((point.to_owned(), over), (point.to_owned(), under));
    let of_cached = both.iter().flat_map(|point| cached.map(|file| pair(point, file, files::RAM)));
    let direct = both.iter().map(|point| pair(point, files::DISK_NONE, FIO));
    let cached = "files on tmpfs and in the page cache: IOPS × RAM's";
    let uncached = "past the page cache, depth 32: IOPS × fio's io_uring";
    vec![
        file_requirement(cached, 0.7, of_cached.collect()),
        file_requirement(uncached, 0.85, direct.collect()),
    ]
}

/// Returns the requirement of a minimum ratio of IOPS.
fn file_requirement<'a>(
    what: &str,
    minimum: f64,
    pairs: Vec<(PointKey<'a>, PointKey<'a>)>,
) -> Requirement<'a> {
    Requirement {
        what: what.into(),
        group: Group::Files,
        figure: IOPS,
        bound: Bound::AtLeast(minimum),
        pairs,
    }
}

/// Returns the requirements for the NBD front: as fast as other servers, and close to iSCSI.
fn of_nbd<'a>() -> Vec<Requirement<'a>> {
    let pair = |point: &str, over, under| ((point.to_owned(), over), (point.to_owned(), under));
    let beside = |peer, what: &str| Requirement {
        what: format!("NBD at depth 32 and in streams: IOPS × {what}'s"),
        group: Group::Nbd,
        figure: IOPS,
        bound: Bound::AtLeast(1.0),
        pairs: [READS, WRITES, READ_STREAM, WRITE_STREAM]
            .map(|point| pair(point, NBD, peer))
            .into(),
    };
    vec![
        beside(NBDKIT, NBDKIT),
        beside(QEMU, QEMU),
        Requirement {
            what: "NBD at depth 1: IOPS × iSCSI's".into(),
            group: Group::Nbd,
            figure: IOPS,
            bound: Bound::AtLeast(0.9),
            pairs: vec![pair(SINGLE_READS, NBD, ISCSI)],
        },
    ]
}

/// Returns the requirements for gateways, compared with the units behind them, and for stripes over servers.
fn of_gateways<'a>() -> Vec<Requirement<'a>> {
    let pair = |point: &str, over, under| ((point.to_owned(), over), (point.to_owned(), under));
    let mut requirements = Vec::new();
    let ways = [(GATEWAY, SARSEN), (GATEWAY_TO_TGT, TGT), (GATEWAY_TO_ISTGT, ISTGT)];
    for (gateway, direct) in ways {
        let mut require = |what: &str, minimum, points: &[&str]| {
            requirements.push(Requirement {
                what: format!("gateway, {what}: IOPS × {direct} directly"),
                group: Group::Gateways,
                figure: IOPS,
                bound: Bound::AtLeast(minimum),
                pairs: points.iter().map(|point| pair(point, gateway, direct)).collect(),
            });
        };
        require("depth 32 and streams", 0.8, &[READS, WRITES, READ_STREAM, WRITE_STREAM]);
        // A latency of at most 1.8 times.
        require("depth 1", 0.56, &[SINGLE_READS]);
    }
    requirements.push(Requirement {
        what: "stripes over four servers: IOPS × one server".into(),
        group: Group::Gateways,
        figure: IOPS,
        bound: Bound::AtLeast(3.5),
        pairs: [READ_STREAM, WRITE_STREAM].map(|point| pair(point, STRIPES, ONE_SERVER)).into(),
    });
    requirements
}

/// Returns the requirements for volumes of a pool, compared with the same medium without a pool, with qcow2 and with fio.
fn of_pools<'a>() -> Vec<Requirement<'a>> {
    let mut requirements = Vec::new();
    for group in [Group::Pools, Group::PoolsOnDisk, Group::PoolsOnLoop] {
        let mut require = |what: &str, minimum, point: &str, over, under| {
            requirements.push(Requirement {
                what: format!("{}, {what}", group.title()),
                group,
                figure: IOPS,
                bound: Bound::AtLeast(minimum),
                pairs: vec![((point.to_owned(), over), (point.to_owned(), under))],
            });
        };
        require("overwrites: IOPS × no pool", 0.95, WRITES, POOL, FILE);
        require("reads: IOPS × no pool", 0.95, READS, POOL, FILE);
        require("first writes: IOPS × no pool", 0.7, WRITES, FIRST, FILE);
        require("writes after a snapshot: IOPS × no pool", 0.6, WRITES, SNAPSHOT, FILE);
        require("writes after the next snapshot: IOPS × no pool", 0.6, WRITES, NEXT_SNAPSHOT, FILE);
        require("reads with 100 snapshots: IOPS × none", 0.98, READS, MANY, POOL);
        require("overwrites with checksums: IOPS × without", 0.5, WRITES, CHECKED, POOL);
        require("reads with checksums: IOPS × without", 0.5, READS, CHECKED, POOL);
        require("overwrites: IOPS × qcow2", 1.0, WRITES, POOL, QCOW2);
        if group == Group::PoolsOnDisk {
            require("reads at depth 32: IOPS × fio's io_uring", 0.85, READS, POOL, FIO);
            require("overwrites at depth 32: IOPS × fio's io_uring", 0.85, WRITES, POOL, FIO);
        }
    }
    requirements
}

/// Returns the requirements for a pool with many chunks.
fn of_large_pools(rounds: &[LargePool]) -> Vec<Verdict> {
    let of = |values: fn(&LargePool) -> &[f64]| {
        let all: Vec<f64> = rounds.iter().flat_map(values).copied().collect();
        (!all.is_empty()).then(|| median(&all))
    };
    let verdict = |what: &str, most, measured| Verdict {
        what: format!("{}, {what}", Group::LargePools.title()),
        bound: Bound::AtMost(most),
        measured,
        place: None,
    };
    let p99: Vec<f64> = rounds.iter().map(|round| round.writes.p99_us / 1e3).collect();
    vec![
        verdict("a snapshot under load: ms", 10.0, of(|round| &round.snapshots)),
        verdict("a clone under load: ms", 10.0, of(|round| &round.clones)),
        verdict("p99 of the writes: ms", 20.0, (!p99.is_empty()).then(|| median(&p99))),
        verdict("MiB of its map for 1 TiB", 320.0, of(|round| from_ref(&round.map_mib))),
        verdict(
            &format!("MiB of its map with memory = {BOUND}MiB"),
            BOUND as f64,
            of(|round| from_ref(&round.bounded_mib)),
        ),
        verdict("seconds of a start after kill -9", 1.0, of(|round| from_ref(&round.opening))),
    ]
}

/// Returns the requirements where wake-ups cost more: close to the limit that never sleeps, and never worse than
/// sleeping.
fn of_slow_wake_ups<'a>() -> Vec<Requirement<'a>> {
    let points = points::of(Group::SlowWakeUps);
    let names = |wanted: fn(&Point) -> bool| {
        points.iter().filter(move |point| wanted(point)).map(|point| point.name.clone())
    };
    let requirement = |what: &str, minimum, points: Vec<String>, under| Requirement {
        what: format!("{what}: {}", Group::SlowWakeUps.title()),
        group: Group::SlowWakeUps,
        figure: IOPS,
        bound: Bound::AtLeast(minimum),
        pairs: same_points(points, SARSEN, under),
    };
    let low = names(|point| point.depth <= 12 && point.sessions == 1).collect();
    vec![
        requirement("depth 1 to 12: IOPS × the spinning limit", 0.8, low, LIMIT_SPINNING),
        requirement("IOPS × never spinning", 1.0, names(|_| true).collect(), SLEEPING),
    ]
}

fn against_itself<'a>() -> Vec<Requirement<'a>> {
    let digests = [READS, WRITES].map(|point| {
        let with = format!("{point}{WITH_DIGESTS}");
        ((with, SARSEN), (point.to_owned(), SARSEN))
    });
    let mut crowds = Vec::new();
    for reads in [true, false] {
        let crowd = |depth, sessions| small_name(4096, reads, depth, sessions);
        let pair = |depth| ((crowd(depth, 64), SLEEPING), (crowd(depth, 4), SLEEPING));
        crowds.extend(DEPTHS.map(pair));
    }
    let mut requirements = vec![
        Requirement {
            what: "digests: IOPS at 4 KiB × without".into(),
            group: Group::Digests,
            figure: IOPS,
            bound: Bound::AtLeast(0.7),
            pairs: digests.into(),
        },
        Requirement {
            what: "sleeping, 64 sessions: CPU for each I/O × that of 4".into(),
            group: Group::Small,
            figure: CPU,
            bound: Bound::AtMost(1.15),
            pairs: crowds,
        },
    ];
    requirements.push(Requirement {
        what: "p99 beside a limited neighbour × alone".into(),
        group: Group::Neighbours,
        figure: P99,
        bound: Bound::AtMost(1.2),
        pairs: same_points([STEADY.to_owned()], BESIDE_LIMITED, ALONE),
    });
    for (what, group, over, under) in [
        ("1,000 units", Group::Luns, LUNS_MANY, LUNS_ONE),
        ("1,000 idle sessions", Group::Idle, IDLE_MANY, IDLE_ONE),
    ] {
        for (name, figure, bound) in
            [("IOPS", IOPS, Bound::AtLeast(0.95)), ("CPU for each I/O", CPU, Bound::AtMost(1.05))]
        {
            let what = format!("{what}: {name} × that of one");
            let pairs = vec![((READS.to_owned(), over), (READS.to_owned(), under))];
            requirements.push(Requirement { what, group, figure, bound, pairs });
        }
    }
    requirements
}

#[cfg(test)]
mod tests {
    use super::super::results::Figures;
    use super::*;

    #[test]
    fn the_worst_place_decides() {
        let mut results = Results::default();
        for (point, ours) in [("SQL 64K", 300.0), ("Web Server", 240.0), ("Workstation", 260.0)] {
            for (target_under_test, iops) in [(SARSEN, ours), (TGT, 100.0)] {
                let run = Figures { iops, ..Figures::default() };
                results.note(Group::Specs, point, target_under_test, Some(run));
            }
        }
        results.start_up = vec![0.5];
        let verdicts = all(&results);
        let measured: Vec<_> = verdicts.iter().filter(|line| line.measured.is_some()).collect();
        let [large, start_up] = measured[..] else { panic!("{measured:?}") };
        assert_eq!((large.measured, large.place.as_deref()), (Some(2.4), Some("Web Server")));
        assert_eq!((large.bound, large.is_met()), (Bound::AtLeast(2.5), Some(false)));
        assert_eq!(start_up.is_met(), Some(true));
        assert_eq!(verdicts[0].is_met(), None, "nothing of it was measured");
    }

    #[test]
    fn every_place_is_one_that_is_measured() {
        let requirements =
            [against_peers(TGT, [1.0; 4]), against_the_limit(), of_files(), of_slow_wake_ups()];
        for requirement in requirements.into_iter().flatten().chain(against_itself()) {
            let points = points::of(requirement.group);
            assert!(!requirement.pairs.is_empty(), "{}", requirement.what);
            for ((over, _), (under, _)) in requirement.pairs {
                for name in [over, under] {
                    assert!(points.iter().any(|point| point.name == name), "{name}");
                }
            }
        }
    }
}
