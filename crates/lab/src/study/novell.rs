//! The effect of the I/O size, the medium and the link on iSCSI: after Novell, *iSCSI Performance Factors* (SLES 10
//! SP1, NetWare 6.5 SP7).
//!
//! The study's tools copied with one I/O after the other: therefore every load here has one open I/O. The study
//! compared a RAM disk with a hard drive, iSCSI with direct access, cables, and network adapters. The first two
//! comparisons are the same here. Links with a low rate, a delay or packet loss represent bad cables and adapters.

mod block_cost;
mod effects;
mod initiators;
mod kernel_files;
mod negotiation;
mod report;
mod stripes;
#[cfg(test)]
mod tests;

use std::time::Duration;

use sarsen_node::stores::CacheMode;

use super::{Choices, Initiator, Plan, Point, Study, load_for};
use crate::access::AccessPattern;
use crate::network::LinkProfile;
use crate::record::{Labels, Run, Scale};
use crate::report::Report;
use crate::target_under_test::{Medium, TargetUnderTest, VolumeSpec};

const TARGET: &str = "target";
const MEDIUM: &str = "medium";
const OPERATION: &str = "operation";
const ACCESS: &str = "access";
const SIZE: &str = "size";
const LINK: &str = "link";

/// Names of the published figures; the next constants are such names, too.
const OPERATIONS: [&str; 2] = ["read", "write"];
const SEQUENTIAL: &str = "sequential";
const RANDOM: &str = "random";

const KIB: u32 = 1024;
/// The I/O sizes of the study's sequential writes, and the maximum size of all other accesses.
const SIZES: std::ops::RangeInclusive<u32> = 4 * KIB..=4096 * KIB;
const LARGEST_ELSE: u32 = 512 * KIB;
const QUICK_SIZES: [u32; 4] = [4 * KIB, 64 * KIB, 512 * KIB, 4096 * KIB];
/// The I/O size of the comparison of cables and adapters.
const LINK_SIZE: u32 = 64 * KIB;

/// The I/O size of the writes that fill a line.
const LINE_SIZE: u32 = 4096 * KIB;

/// The first link of the comparison, which has the common MTU and no impairments.
const PLAIN: &str = "plain";
/// The link whose frames a bridge forwards.
const SWITCH: &str = "switch";
const MTU: u32 = 1500;

const REPETITIONS: u32 = 3;

/// The study.
#[derive(Clone, Copy, Debug)]
pub struct Novell;

impl Study for Novell {
    fn name(&self) -> &'static str {
        "novell"
    }

    fn about(&self) -> &'static str {
        "block sizes from 4K to 4M on RAM and on disk, over iSCSI and without, and over slow, far \
         and lossy links (Novell, iSCSI Performance Factors)"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let targets_under_test = targets_under_test(choices);
        let media = media(choices);
        let times = Times::of(choices.scale);
        let mut points = sweep(&targets_under_test, &media, choices.scale, times);
        points.extend(negotiation::points(
            &targets_under_test,
            media[0],
            times.warm_up,
            times.sweep,
        ));
        // A quick run has time for one target.
        let count = if choices.scale == Scale::Quick { 1 } else { targets_under_test.len() };
        points.extend(initiators::points(&targets_under_test[..count], media[0], times.sweep));
        let mut links = vec![LinkProfile::loopback()];
        if choices.links {
            points.extend(faults(&targets_under_test, media[0], times));
            links.extend(profiles());
        }
        let bytes = match choices.scale {
            Scale::Quick => 128 << 20,
            Scale::Full => 1 << 30,
        };
        let mut volumes: Vec<_> = media.iter().map(|medium| volume(*medium, bytes)).collect();
        let own = targets_under_test.iter().position(TargetUnderTest::has_stripes);
        if let Some(own) = own.filter(|_| media.contains(&Medium::Disk)) {
            points.extend(stripes::points(own, times));
            volumes.push(stripes::striped(bytes));
        }
        Plan {
            links,
            volumes,
            targets_under_test,
            limits: true,
            points,
            // They take too long for a quick run.
            guests: (choices.scale == Scale::Full).then(|| kernel_files::plan(REPETITIONS)),
            joint_volumes: Vec::new(),
            repetitions: REPETITIONS,
        }
    }

    fn report(&self, run: &Run) -> Report {
        report::report(run)
    }
}

/// Durations of the loads, which the study does not state. A quick load over a bad link is longer than other quick
/// loads, because one lost packet can cost 200 ms.
#[derive(Clone, Copy, Debug)]
struct Times {
    warm_up: Duration,
    sweep: Duration,
    link: Duration,
}

impl Times {
    const fn of(scale: Scale) -> Self {
        let ms = Duration::from_millis;
        match scale {
            Scale::Quick => Self { warm_up: ms(40), sweep: ms(120), link: ms(460) },
            Scale::Full => Self { warm_up: ms(2000), sweep: ms(10_000), link: ms(30_000) },
        }
    }
}

/// Returns the chosen targets and the medium without iSCSI, which is part of the study's comparison.
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

fn media(choices: &Choices) -> Vec<Medium> {
    choices.medium.map_or_else(|| vec![Medium::Ram, Medium::Disk], |medium| vec![medium])
}

/// Returns a volume that bypasses the page cache: otherwise the disk's figures would be those of memory.
fn volume(medium: Medium, bytes: u64) -> VolumeSpec {
    let name = medium.as_str().into();
    VolumeSpec { name, medium, bytes, cache: CacheMode::None, striping: None }
}

/// Returns the links of the comparison, the plain one first.
fn profiles() -> Vec<LinkProfile> {
    vec![
        plain_link(PLAIN),
        LinkProfile { has_switch: true, ..plain_link(SWITCH) },
        line(),
        link_with_rate(100.0),
        link_with_loss(0.1),
        link_with_loss(1.0),
        link_with_delay(1),
        link_with_delay(10),
    ]
}

fn plain_link(name: &str) -> LinkProfile {
    LinkProfile::plain(name, MTU)
}

/// Returns the link with the rate of the study's network.
fn line() -> LinkProfile {
    link_with_rate(1000.0)
}

fn link_with_rate(mbit: f64) -> LinkProfile {
    LinkProfile { rate_mbit: Some(mbit), ..plain_link(&format!("{mbit} Mbit/s")) }
}

fn link_with_loss(percent: f64) -> LinkProfile {
    LinkProfile { loss_percent: percent, ..plain_link(&format!("{percent} % of packets lost")) }
}

fn link_with_delay(ms: u64) -> LinkProfile {
    LinkProfile { delay: Duration::from_millis(ms), ..plain_link(&format!("{ms} ms each way")) }
}

/// Returns the I/O sizes of an operation and access.
fn sizes(operation: &str, access: &str, scale: Scale) -> impl Iterator<Item = u32> {
    let written = operation == "write" && access == SEQUENTIAL;
    let largest = if written { *SIZES.end() } else { LARGEST_ELSE };
    let wanted = move |size: &u32| scale == Scale::Full || QUICK_SIZES.contains(size);
    let doubled = |size: &u32| Some(size * 2);
    std::iter::successors(Some(*SIZES.start()), doubled)
        .take_while(move |size| *size <= largest)
        .filter(wanted)
}

/// A cell.
#[derive(Clone, Copy, Debug)]
struct Cell<'a> {
    target: &'a str,
    medium: &'a str,
    operation: &'a str,
    access: &'a str,
    bytes: u32,
    link: &'a str,
}

impl Cell<'_> {
    fn labels(&self) -> Labels {
        Labels::new()
            .with(TARGET, self.target)
            .with(MEDIUM, self.medium)
            .with(OPERATION, self.operation)
            .with(ACCESS, self.access)
            .with(SIZE, super::layout::size_name(self.bytes))
            .with(LINK, self.link)
    }

    fn point(&self, target_under_test: usize, warm_up: Duration, duration: Duration) -> Point {
        let access = AccessPattern {
            block_bytes: self.bytes,
            read_percent: if self.operation == "read" { 100 } else { 0 },
            random_percent: if self.access == RANDOM { 100 } else { 0 },
            queue_depth: 1,
        };
        Point {
            labels: self.labels(),
            target_under_test,
            volume: self.medium.into(),
            link: self.link.into(),
            initiator: Initiator::Physical,
            writes: self.operation == "write",
            time: warm_up + duration,
            measurement: load_for(access, warm_up, duration),
        }
    }
}

/// Returns the cells of every size on every medium of every target.
fn sweep(
    targets_under_test: &[TargetUnderTest],
    media: &[Medium],
    scale: Scale,
    times: Times,
) -> Vec<Point> {
    let mut points = Vec::new();
    let loopback = LinkProfile::loopback();
    for medium in media {
        for operation in OPERATIONS {
            for access in [SEQUENTIAL, RANDOM] {
                for bytes in sizes(operation, access, scale) {
                    for (index, target_under_test) in targets_under_test.iter().enumerate() {
                        let cell = Cell {
                            target: &target_under_test.to_string(),
                            medium: medium.as_str(),
                            operation,
                            access,
                            bytes,
                            link: &loopback.name,
                        };
                        points.push(cell.point(index, times.warm_up, times.sweep));
                    }
                }
            }
        }
    }
    points
}

/// Returns the cells of one target over every link. The target is sarsen, or else the first target that uses a link.
fn faults(targets_under_test: &[TargetUnderTest], medium: Medium, times: Times) -> Vec<Point> {
    let ours = targets_under_test
        .iter()
        .position(|target_under_test| *target_under_test == TargetUnderTest::Sarsen);
    let any =
        || targets_under_test.iter().position(|target_under_test| !target_under_test.is_direct());
    let Some(index) = ours.or_else(any) else { return Vec::new() };
    let mut points = Vec::new();
    for profile in profiles() {
        for operation in OPERATIONS {
            let cell = Cell {
                target: &targets_under_test[index].to_string(),
                medium: medium.as_str(),
                operation,
                access: SEQUENTIAL,
                bytes: LINK_SIZE,
                link: &profile.name,
            };
            points.push(cell.point(index, times.warm_up, times.link));
        }
    }
    let target = targets_under_test[index].to_string();
    let cell =
        line_cell(&target, medium.as_str(), &line().name).point(index, times.warm_up, times.link);
    points.push(cell);
    points
}

/// Returns the cell of large writes over a link with the rate of the study's network.
const fn line_cell<'a>(target: &'a str, medium: &'a str, link: &'a str) -> Cell<'a> {
    Cell { target, medium, operation: OPERATIONS[1], access: SEQUENTIAL, bytes: LINE_SIZE, link }
}
