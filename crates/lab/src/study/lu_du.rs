//! The cost of a network in front of a disk, from the first connection to the load of a database: after Lu and Du,
//! *Performance Study of iSCSI-Based Storage Subsystems* (IEEE Communications Magazine, 2003).
//!
//! The study compared a SAN, a gigabit LAN and a campus network of 100 Mbit/s. Here the medium without any network
//! replaces the SAN, the loopback interface replaces the LAN, and a link of that rate replaces the campus network. A
//! WAN is an addition to the study. Files over iSCSI, NFS and SMB are measured in guests.
//!
//! Each block test of the study took five minutes, with random addresses on the whole disk. Its heavy load used six disks
//! at random; here it uses one volume, and in other cells six. The sizes of the requests of its trace are not published: their mean follows from
//! the published throughput, response time and number of threads.

mod disks;
mod encryption;
mod factors;
mod files;
mod report;
mod setup;
#[cfg(test)]
mod tests;
mod traffic;

use std::time::Duration;

use sarsen_node::stores::CacheMode;

use super::layout::size_name;
use super::{Choices, Initiator, Measurement, Plan, Point, Study, load_for, outcome};
use crate::access::AccessPattern;
use crate::load;
use crate::network::LinkProfile;
use crate::published::LU_DU_TRACE;
use crate::record::{Labels, Run, Scale};
use crate::report::Report;
use crate::target_under_test::{Medium, TargetUnderTest, VolumeSpec};
use crate::trace::Synthetic;

const PART: &str = "part";
const SET_UP: &str = "set-up";
const LIGHT: &str = "light load";
const HEAVY: &str = "heavy load";
const TRACE: &str = "trace";

const TARGET: &str = "target";
const SESSION: &str = "session";
const NETWORK: &str = "network";
const OPERATION: &str = "operation";
const READS: &str = "reads";
const SIZE: &str = "size";

const VOLUME: &str = "lun";
const REPETITIONS: u32 = 3;
const OPERATIONS: [&str; 2] = ["read", "write"];
/// Percentages of reads of the heavy load.
const MIXES: [u8; 4] = [100, 80, 20, 0];

const KIB: u32 = 1024;
/// I/O sizes of the light load and of the heavy load.
const LIGHT_SIZES: [u32; 4] = [KIB, 4 * KIB, 16 * KIB, 64 * KIB];
const HEAVY_SIZES: [u32; 2] = [4 * KIB, 64 * KIB];
const HEAVY_DEPTH: u32 = 64;
/// Number of requests of the trace that a quick run replays.
const QUICK_REQUESTS: u32 = 1000;
/// Number of bytes of a request of the trace.
const TRACE_BYTES: u32 = Synthetic::LENGTH;

/// The study.
#[derive(Clone, Copy, Debug)]
pub struct LuDu;

/// A path from the initiator to the blocks.
#[derive(Clone, Debug)]
struct BlockPath {
    /// Its name in reports.
    name: &'static str,
    link: LinkProfile,
}

/// The label of a medium of this machine, which needs no network.
const NO_NETWORK: &str = "no network";

fn ways() -> [BlockPath; 3] {
    let rate =
        |name: &str| LinkProfile { rate_mbit: Some(100.0), ..LinkProfile::plain(name, 1500) };
    [
        BlockPath { name: "LAN", link: LinkProfile::loopback() },
        BlockPath { name: "100 Mbit/s", link: rate("campus") },
        BlockPath {
            name: "WAN",
            link: LinkProfile { delay: Duration::from_millis(20), ..rate("wan") },
        },
    ]
}

/// Returns the path that replaces the study's campus network.
fn campus() -> BlockPath {
    let [_, campus, _] = ways();
    campus
}

impl Study for LuDu {
    fn name(&self) -> &'static str {
        "lu-du"
    }

    fn about(&self) -> &'static str {
        "the set-up of sessions, light and heavy loads and a database trace, without a network, over \
         a LAN, 100 Mbit/s and a WAN (Lu and Du 2003)"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let targets_under_test = targets_under_test(choices);
        // A target that the lab does not start has one volume.
        let has_disks = targets_under_test.iter().all(TargetUnderTest::is_started_here);
        let mut points = Vec::new();
        let ways: Vec<_> =
            ways().into_iter().take(if choices.links { usize::MAX } else { 1 }).collect();
        for (place, way) in ways.iter().enumerate() {
            let on_this = |(index, target_under_test): &(usize, &TargetUnderTest)| match place {
                0 => true,
                _ if target_under_test.is_direct() => false,
                // Loads over simulated networks take long: a quick run measures only the first target there.
                _ => choices.scale == Scale::Full || *index == first_remote(&targets_under_test),
            };
            let present: Vec<_> = targets_under_test.iter().enumerate().filter(on_this).collect();
            points.extend(points_on(way, &present, choices.scale));
            // A quick run has time for one target over the LAN.
            let on_disks = match (choices.scale, place) {
                _ if !has_disks => &[],
                (Scale::Quick, 0) => &present[..1],
                (Scale::Full, _) if way.link.delay.is_zero() => &present[..],
                _ => &[],
            };
            points.extend(disks::points(way, on_disks, choices.scale));
            let first = first_remote(&targets_under_test);
            // A long delay hides what others do.
            if way.link.delay.is_zero() && !targets_under_test[first].is_direct() {
                let target = (first, &targets_under_test[first]);
                points.extend(traffic::points(way, target, choices.scale));
            }
        }
        let own = targets_under_test.iter().position(|one| *one == TargetUnderTest::Sarsen);
        let mut links: Vec<_> = ways.iter().map(|way| way.link.clone()).collect();
        if let Some(own) = own.filter(|_| choices.links) {
            let encrypted = encryption::path();
            points.extend(encryption::points(&encrypted, own, choices.scale));
            links.push(encrypted.link);
        }
        let guests = own.map(|_| files::plan(choices.scale));
        points
            .extend(own.into_iter().flat_map(|own| factors::points(own, sessions(choices.scale))));
        let whole = VolumeSpec {
            name: VOLUME.into(),
            medium: choices.medium.unwrap_or(Medium::Ram),
            bytes: match choices.scale {
                Scale::Quick => 128 << 20,
                // This size includes the highest address of the trace.
                Scale::Full => 1 << 30,
            },
            cache: CacheMode::None,
            striping: None,
        };
        let disks = if has_disks { disks::volumes(&whole) } else { Vec::new() };
        let joint_volumes = disks.iter().map(|disk| disk.name.clone()).collect();
        let volumes = std::iter::once(whole).chain(disks).collect();
        Plan {
            links,
            volumes,
            targets_under_test,
            limits: true,
            points,
            guests,
            joint_volumes,
            repetitions: REPETITIONS,
        }
    }

    fn report(&self, run: &Run) -> Report {
        report::report(run)
    }
}

/// Returns the chosen targets and the medium without a network, which replaces the study's SAN.
fn targets_under_test(choices: &Choices) -> Vec<TargetUnderTest> {
    let mut targets_under_test = choices.targets_under_test.clone();
    if targets_under_test.is_empty() {
        targets_under_test =
            vec![TargetUnderTest::Sarsen, TargetUnderTest::Tgt, TargetUnderTest::Istgt];
    }
    if !targets_under_test.iter().any(TargetUnderTest::is_direct) {
        targets_under_test.push(TargetUnderTest::Direct);
    }
    targets_under_test
}

fn first_remote(targets_under_test: &[TargetUnderTest]) -> usize {
    targets_under_test
        .iter()
        .position(|target_under_test| !target_under_test.is_direct())
        .unwrap_or(0)
}

/// Durations of a load: its warm-up and its measurement.
type Times = (Duration, Duration);

/// Returns the durations of a load. Large I/Os of a deep queue take long over a slow link, and TCP needs several round
/// trips to fill a link with a long delay.
fn times(part: &str, way: &BlockPath, bytes: u32, scale: Scale) -> Times {
    let narrow = way.link.rate_mbit.is_some();
    let long = !way.link.delay.is_zero();
    let (warm_up, duration) = match (scale, part) {
        (Scale::Full, _) => (5_000, 300_000),
        (Scale::Quick, LIGHT) if long => (60, 240),
        (Scale::Quick, HEAVY) if narrow && bytes > 4 * KIB => (300, 600),
        (Scale::Quick, HEAVY) if long => (200, 400),
        (Scale::Quick, HEAVY) if narrow => (100, 200),
        (Scale::Quick, _) => (40, 100),
    };
    (Duration::from_millis(warm_up), Duration::from_millis(duration))
}

/// Returns the minimum time of the trace: the transfer time of its data, or the round trips of its requests, if longer.
fn trace_time(way: &BlockPath, requests: u32) -> Duration {
    let reads = f64::from(requests) * f64::from(LU_DU_TRACE.read_percent) / 100.0;
    let bits = reads * f64::from(TRACE_BYTES) * 8.0;
    let on_the_line = way.link.rate_mbit.map_or(0.0, |mbit| bits / (mbit * 1e6));
    let turns = f64::from(requests) / f64::from(LU_DU_TRACE.threads);
    let under_way = turns * 2.0 * way.link.delay.as_secs_f64();
    Duration::from_secs_f64(on_the_line.max(under_way))
}

/// Returns the number of sessions that a measurement sets up.
const fn sessions(scale: Scale) -> u32 {
    match scale {
        Scale::Quick => 3,
        Scale::Full => 100,
    }
}

fn requests(scale: Scale) -> u32 {
    match scale {
        Scale::Quick => QUICK_REQUESTS,
        Scale::Full => LU_DU_TRACE.requests,
    }
}

/// Returns all cells of one path.
fn points_on(
    way: &BlockPath,
    targets_under_test: &[(usize, &TargetUnderTest)],
    scale: Scale,
) -> Vec<Point> {
    let mut points = set_up(way, targets_under_test, scale);
    let mut add =
        |labels: &dyn Fn(Labels) -> Labels, writes, time, what: &dyn Fn() -> Measurement| {
            for (index, target_under_test) in targets_under_test {
                points.push(Point {
                    labels: labels(subject(target_under_test, way)),
                    target_under_test: *index,
                    volume: VOLUME.into(),
                    link: way.link.name.clone(),
                    initiator: Initiator::Physical,
                    writes,
                    time,
                    measurement: what(),
                });
            }
        };
    for operation in OPERATIONS {
        for bytes in LIGHT_SIZES {
            let (warm_up, duration) = times(LIGHT, way, bytes, scale);
            let access = access(if operation == "read" { 100 } else { 0 }, bytes, 1);
            let labels = |labels| light(labels, operation, bytes);
            let what = || load_for(access, warm_up, duration);
            add(&labels, operation == "write", warm_up + duration, &what);
        }
    }
    for bytes in HEAVY_SIZES {
        for read_percent in MIXES {
            let (warm_up, duration) = times(HEAVY, way, bytes, scale);
            let access = access(read_percent, bytes, HEAVY_DEPTH);
            let labels = |labels| heavy(labels, read_percent, bytes);
            let what = || load_for(access, warm_up, duration);
            add(&labels, read_percent < 100, warm_up + duration, &what);
        }
    }
    let count = requests(scale);
    add(&|labels| labels.with(PART, TRACE), true, trace_time(way, count), &|| replay(count));
    points
}

/// Returns the cells with both types of sessions for all targets that have sessions.
fn set_up(
    way: &BlockPath,
    targets_under_test: &[(usize, &TargetUnderTest)],
    scale: Scale,
) -> Vec<Point> {
    let count = sessions(scale);
    let mut points = Vec::new();
    for session in &setup::TIMED_SESSIONS {
        for (index, target_under_test) in
            targets_under_test.iter().filter(|(_, one)| !one.is_direct())
        {
            points.push(Point {
                labels: session.labels(subject(target_under_test, way)),
                target_under_test: *index,
                volume: VOLUME.into(),
                link: way.link.name.clone(),
                initiator: Initiator::Physical,
                writes: false,
                time: way.link.delay * 2 * setup::TURNS * count,
                measurement: session.measurement(count),
            });
        }
    }
    points
}

const fn access(read_percent: u8, block_bytes: u32, queue_depth: u32) -> AccessPattern {
    AccessPattern { block_bytes, read_percent, random_percent: 100, queue_depth }
}

/// Returns the measurement that replays the first requests of the trace as fast as the queue depth permits.
fn replay(requests: u32) -> Measurement {
    Box::new(move |subject| {
        let access = access(100, TRACE_BYTES, LU_DU_TRACE.threads);
        let options = subject.load_options(access);
        let trace = Synthetic::lu_du(subject.seed).take(requests as usize);
        outcome(load::replay(&options, Box::new(trace), None))
    })
}

/// Returns the labels of a target and a path.
fn subject(target_under_test: &TargetUnderTest, way: &BlockPath) -> Labels {
    let network = if target_under_test.is_direct() { NO_NETWORK } else { way.name };
    Labels::new().with(TARGET, target_under_test).with(NETWORK, network)
}

fn light(labels: Labels, operation: &str, bytes: u32) -> Labels {
    labels.with(PART, LIGHT).with(OPERATION, operation).with(SIZE, size_name(bytes))
}

fn heavy(labels: Labels, read_percent: u8, bytes: u32) -> Labels {
    let labels = labels.with(PART, HEAVY).with(READS, format!("{read_percent} %"));
    labels.with(SIZE, size_name(bytes))
}
