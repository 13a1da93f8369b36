//! The effect of a disk's cache mode on a target, and the order of targets: after Aravindan, *Performance Analysis of
//! an iSCSI Block Device in Virtualized Environment* (Tampere 2014).
//!
//! The study ran virtual machines on iSCSI disks with each of the hypervisor's cache modes, over several targets and
//! several multipath configurations. Its figures are charts; the report quotes its text next to the results. Here the
//! modes are those of the target's own disk volume. There they determine the same two properties: whether memory serves
//! reads, and when a write is durable.

mod attachments;
mod disks;
mod migration;
mod parallel_jobs;
mod power_failure;
mod report;
#[cfg(test)]
mod tests;
mod two_hosts;

use std::time::Duration;

use sarsen_node::stores::CacheMode;

use super::{
    Choices, GuestPlan, Initiator, Measurement, Plan, Point, Study, features, load_for, recovery,
};
use crate::access::AccessPattern;
use crate::multipath::{self, Fault, PathUse, Timers};
use crate::network::LinkProfile;
use crate::record::{Labels, Outcome, Run, Scale};
use crate::report::Report;
use crate::target_under_test::{GuestTarget, Medium, TargetUnderTest, VolumeSpec};

const TARGET: &str = "target";
const CACHE: &str = "cache";
const LOAD: &str = "load";
const OPERATION: &str = "operation";
/// The dimension of cells without a load: the failover of a client's I/O to another path.
const FAILOVER: &str = "failover";
/// The dimension of the cells for the failover of the kernel's initiator with dm-multipath.
const DM_MULTIPATH: &str = "dm-multipath";
/// Their values, with the timers.
const TIMERS: [(&str, Timers); 2] =
    [("timers of the study", Timers::STUDY), ("default timers", Timers::DEFAULT)];
/// The dimension of the cells for the throughput over several paths.
const PATH_COUNT: &str = "paths";
/// Their values, with the number and the use of the paths.
const PATHS: [(&str, usize, PathUse); 4] = [
    ("1", 1, PathUse::ActiveActive),
    ("2", 2, PathUse::ActiveActive),
    ("4", 4, PathUse::ActiveActive),
    ("2 (active/passive)", 2, PathUse::ActivePassive),
];

const REPETITIONS: u32 = 3;
/// Number of failovers of each kind in a full run.
const ROUNDS: u32 = 50;
/// Number of migrations in a full run.
const MIGRATIONS: u32 = 20;
/// The shortest measurement over several paths: TCP takes some time to use a link.
const SHORTEST: Duration = Duration::from_millis(600);

/// The modes with their names and guarantees: whether memory serves reads, and whether acknowledged writes survive a
/// power loss.
const MODES: [Mode; 5] = [
    Mode { name: "writeback", cache: CacheMode::WriteBack, cached: true, durable: false },
    Mode { name: "writethrough", cache: CacheMode::WriteThrough, cached: true, durable: true },
    Mode { name: "none", cache: CacheMode::None, cached: false, durable: false },
    Mode { name: "directsync", cache: CacheMode::DirectSync, cached: false, durable: true },
    Mode { name: "unsafe", cache: CacheMode::Unsafe, cached: true, durable: false },
];

#[derive(Clone, Copy, Debug)]
struct Mode {
    /// Name of the mode and of its volume.
    name: &'static str,
    cache: CacheMode,
    cached: bool,
    durable: bool,
}

/// The operations on a volume, with their percentage of reads.
const OPERATIONS: [(&str, u8); 3] = [("read", 100), ("write", 0), ("mixed", 70)];

/// Small I/Os, limited by their number, and large I/Os, limited by their throughput.
const LOADS: [(&str, AccessPattern); 2] = [
    (
        "4K random, 16 open",
        AccessPattern {
            block_bytes: 4 << 10,
            read_percent: 100,
            random_percent: 100,
            queue_depth: 16,
        },
    ),
    (
        "64K sequential, 16 open",
        AccessPattern {
            block_bytes: 64 << 10,
            read_percent: 100,
            random_percent: 0,
            queue_depth: 16,
        },
    ),
];

/// The target that the study chose.
const LIO: TargetUnderTest = TargetUnderTest::InGuest(GuestTarget::Lio);

/// Size of the disks of guests.
const GUEST_DISK_BYTES: u64 = 256 << 20;
/// The shortest measurement over a faulty line: several connections must be closed.
const RECOVERY_SHORTEST: Duration = Duration::from_millis(250);

/// The study.
#[derive(Clone, Copy, Debug)]
pub struct Aravindan;

impl Study for Aravindan {
    fn name(&self) -> &'static str {
        "aravindan"
    }

    fn about(&self) -> &'static str {
        "five cache modes of disk volumes under reads, writes and both, the order of targets, and \
         the time of a failover (Aravindan 2014)"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let targets_under_test = if choices.targets_under_test.is_empty() {
            let mut targets = vec![
                TargetUnderTest::Sarsen,
                TargetUnderTest::Tgt,
                TargetUnderTest::Istgt,
                TargetUnderTest::Direct,
            ];
            // Their guests take too long for a quick run.
            if choices.scale == Scale::Full {
                targets.extend(GuestTarget::ALL.map(TargetUnderTest::InGuest));
            }
            targets
        } else {
            choices.targets_under_test.clone()
        };
        let medium = choices.medium.unwrap_or(Medium::Disk);
        let (warm_up, duration, bytes) = match choices.scale {
            Scale::Quick => (Duration::from_millis(30), Duration::from_millis(150), 64 << 20),
            Scale::Full => (Duration::from_secs(5), Duration::from_secs(60), 1 << 30),
        };
        let mut points = Vec::new();
        for (load, access) in LOADS {
            for (operation, read_percent) in OPERATIONS {
                for mode in MODES {
                    for (index, target_under_test) in targets_under_test.iter().enumerate() {
                        points.push(Point {
                            labels: labels(
                                &target_under_test.to_string(),
                                mode.name,
                                load,
                                operation,
                            ),
                            target_under_test: index,
                            volume: mode.name.into(),
                            link: LinkProfile::loopback().name,
                            initiator: Initiator::Physical,
                            writes: read_percent < 100,
                            time: warm_up + duration,
                            measurement: measurement(
                                medium,
                                AccessPattern { read_percent, ..access },
                                warm_up,
                                duration,
                            ),
                        });
                    }
                }
            }
        }
        points.extend(parallel_jobs::points(&targets_under_test, medium, [warm_up, duration]));
        points.extend(disks::points(&targets_under_test[0], choices.scale, [warm_up, duration]));
        let loopback = LinkProfile::loopback().name;
        points.extend(features::points(&targets_under_test, &loopback, MODES[0].name));
        let forms = match choices.scale {
            // It has time for a few.
            Scale::Quick => {
                vec![recovery::LEVELS[0], recovery::LEVELS[2], recovery::SECOND_CONNECTIONS[2]]
            }
            Scale::Full => [recovery::LEVELS, recovery::SECOND_CONNECTIONS].concat(),
        };
        let (of, place) = (&targets_under_test[..1], (&*loopback, MODES[0].name));
        let times = (choices.scale, duration.max(RECOVERY_SHORTEST));
        points.extend(recovery::points(of, place, &forms, 1, times));
        let mut links = vec![LinkProfile::loopback()];
        let lio = targets_under_test.iter().position(|one| *one == LIO);
        if let Some(lio) = lio.filter(|_| choices.links) {
            links.extend(attachments::links());
            points.extend(attachments::points(lio, [warm_up, duration]));
        }
        // A migration takes too long for a quick run.
        if choices.scale == Scale::Full {
            points.push(migration::point(&targets_under_test[0], MIGRATIONS.div_ceil(REPETITIONS)));
            points.extend(power_failure::points());
        }
        let rounds = match choices.scale {
            Scale::Quick => 1,
            Scale::Full => ROUNDS.div_ceil(REPETITIONS),
        };
        if choices.scale == Scale::Full {
            points.extend(
                TIMERS.map(|timers| kernel_failover(&targets_under_test[0], timers, rounds)),
            );
        }
        points.extend(
            PATHS.map(|paths| throughput(&targets_under_test[0], paths, duration.max(SHORTEST))),
        );
        // A silence takes too long for a quick run.
        let is_measured = |fault: &Fault| choices.scale == Scale::Full || *fault != Fault::Silent;
        points.extend(
            Fault::ALL
                .into_iter()
                .filter(is_measured)
                .map(|fault| failover(&targets_under_test[0], fault, rounds)),
        );
        Plan {
            links,
            volumes: MODES
                .map(|Mode { name, cache, .. }| VolumeSpec {
                    name: name.into(),
                    medium,
                    bytes,
                    cache,
                    striping: None,
                })
                .to_vec(),
            targets_under_test,
            limits: true,
            points,
            // They take too long for a quick run.
            guests: (choices.scale == Scale::Full).then(|| GuestPlan {
                disk_bytes: GUEST_DISK_BYTES,
                commands: Vec::new(),
                points: two_hosts::points(),
                repetitions: REPETITIONS,
            }),
            joint_volumes: Vec::new(),
            repetitions: REPETITIONS,
        }
    }

    fn report(&self, run: &Run) -> Report {
        report::report(run)
    }
}

fn labels(target: &str, cache: &str, load: &str, operation: &str) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(CACHE, cache)
        .with(LOAD, load)
        .with(OPERATION, operation)
}

fn measurement(
    medium: Medium,
    access: AccessPattern,
    warm_up: Duration,
    duration: Duration,
) -> Measurement {
    match medium {
        Medium::Disk => load_for(access, warm_up, duration),
        Medium::Ram => without_modes(),
    }
}

/// Five equal measurements with five names would be misleading.
fn without_modes() -> Measurement {
    Box::new(|_| Outcome::NotMeasured("memory has no cache modes: choose the disk".into()))
}

/// Returns the cell for the reads over several paths. It starts its own server.
fn throughput(
    target_under_test: &TargetUnderTest,
    (name, links, path_use): (&str, usize, PathUse),
    duration: Duration,
) -> Point {
    Point {
        labels: Labels::new().with(TARGET, target_under_test).with(PATH_COUNT, name),
        target_under_test: 0,
        volume: MODES[0].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Physical,
        writes: false,
        time: duration,
        measurement: Box::new(move |_| multipath::throughput(links, path_use, duration)),
    }
}

/// Returns the cell for the interruption of the kernel's I/O when a link is cut. It starts its own server.
fn kernel_failover(
    target_under_test: &TargetUnderTest,
    (name, timers): (&str, Timers),
    rounds: u32,
) -> Point {
    Point {
        labels: Labels::new().with(TARGET, target_under_test).with(DM_MULTIPATH, name),
        target_under_test: 0,
        volume: MODES[0].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Physical,
        writes: false,
        time: timers.round_time() * rounds,
        measurement: Box::new(move |subject| {
            multipath::kernel_failover(timers, rounds, subject.guests)
        }),
    }
}

/// Returns the cell for the interruption of a client's I/O when its path fails and another path exists. It starts its own server.
fn failover(target_under_test: &TargetUnderTest, fault: Fault, rounds: u32) -> Point {
    Point {
        labels: Labels::new().with(TARGET, target_under_test).with(FAILOVER, fault.name()),
        target_under_test: 0,
        volume: MODES[0].name.into(),
        link: LinkProfile::loopback().name,
        initiator: Initiator::Physical,
        writes: false,
        time: fault.round_time() * rounds,
        measurement: Box::new(move |subject| multipath::failover(fault, rounds, subject.seed)),
    }
}
