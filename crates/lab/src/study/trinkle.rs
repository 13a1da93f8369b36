//! Ten access specifications on several targets, with standard and with jumbo frames: after Trinkle, *A Comparative
//! Analysis of Open Source Storage Area Networks with ESXi 5.1* (Purdue University 2013).
//!
//! The thesis ran each specification three times for five minutes, from a virtual and from a physical initiator. The
//! load generator here is physical; `virtual_machine` measures the virtual one.
//!
//! The thesis also quotes what the alignment of a file system with the stripes of a RAID gains; `alignment` measures it.

mod alignment;
mod clones;
mod frame_sizes;
mod initiators;
mod suspension;
#[cfg(test)]
mod tests;
mod virtual_machine;

use std::time::Duration;

use super::{Choices, Initiator, Plan, Point, Study, features, layout, load_for, recovery};
use crate::access::{self, NamedPattern};
use crate::network::LinkProfile;
use crate::published;
use crate::record::{Labels, Run, Scale, figure};
use crate::report::{BarSeries, Bars, Block, Report, Section, Table};
use crate::statistics::{Difference, Summary};
use crate::target_under_test::{GuestTarget, Medium, TargetUnderTest, VolumeSpec};

const TARGET: &str = "target";
const MTU: &str = "mtu";
const TEST: &str = "test";
/// The dimension of the access specification in cells of other tests.
const SPECIFICATION: &str = "specification";

/// MTUs of the links, which are also their labels.
const MTUS: [u32; 2] = [1500, 9000];
/// The label of the existing network, if no link is created.
const AS_IT_IS: &str = "as it is";
const REPETITIONS: u32 = 3;
const VOLUME: &str = "lun";

/// The targets of the thesis, in its order.
const THEIRS: [&str; 4] = ["IET", "SCST", "LIO", "ISTGT"];
/// The initiator of the thesis that is comparable with this load generator.
const INITIATOR: &str = "physical";

/// What the thesis says of error recovery.
const THEIR_RECOVERY: &str = "The thesis supposes, without a measurement, that better error recovery keeps the throughput \
                              under errors while several initiators work, and that LIO is best for that reason. Here three \
                              initiators read at once.";
/// What the thesis says of the features of its targets.
const THEIR_FEATURES: &str = "The thesis compares documents: persistent reservations in SCST, LIO and ISTGT; several \
                              connections of a session in LIO and ISTGT; ErrorRecoveryLevel 2 in LIO and 0 in SCST; \
                              copies by the target in ISTGT alone.";

/// The study.
#[derive(Debug)]
pub struct Trinkle;

impl Study for Trinkle {
    fn name(&self) -> &'static str {
        "trinkle"
    }

    fn about(&self) -> &'static str {
        "ten access specifications on several targets, with standard and jumbo frames, and the alignment with \
         stripes (Trinkle 2013)"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let targets_under_test = if choices.targets_under_test.is_empty() {
            let mut targets =
                vec![TargetUnderTest::Sarsen, TargetUnderTest::Tgt, TargetUnderTest::Istgt];
            // Their guests take too long for a quick run.
            if choices.scale == Scale::Full {
                targets.extend(GuestTarget::ALL.map(TargetUnderTest::InGuest));
            }
            targets
        } else {
            choices.targets_under_test.clone()
        };
        let (warm_up, duration, bytes) = match choices.scale {
            Scale::Quick => (Duration::from_millis(60), Duration::from_millis(250), 128 << 20),
            Scale::Full => (Duration::from_secs(10), Duration::from_secs(300), 1 << 30),
        };
        let mut points = Vec::new();
        // The lab can change the MTU only on links that it creates.
        let links = if choices.links {
            MTUS.map(|mtu| (mtu.to_string(), LinkProfile::plain(&format!("mtu-{mtu}"), mtu)))
                .to_vec()
        } else {
            vec![(AS_IT_IS.to_owned(), LinkProfile::loopback())]
        };
        for (mtu, link) in &links {
            for NamedPattern { name, access } in &access::NAMED {
                for (index, target_under_test) in targets_under_test.iter().enumerate() {
                    points.push(Point {
                        labels: labels(&target_under_test.to_string(), mtu, name),
                        target_under_test: index,
                        volume: VOLUME.into(),
                        link: link.name.clone(),
                        initiator: Initiator::Physical,
                        writes: access.read_percent < 100,
                        time: warm_up + duration,
                        measurement: load_for(*access, warm_up, duration),
                    });
                }
            }
        }
        let whole = VolumeSpec {
            name: VOLUME.into(),
            medium: choices.medium.unwrap_or(Medium::Ram),
            bytes,
            cache: Default::default(),
            striping: None,
        };
        let times = [warm_up, duration];
        points.extend(virtual_machine::points(
            &targets_under_test,
            &links,
            VOLUME,
            choices.scale,
            times,
        ));
        let links: Vec<_> = links.into_iter().map(|(_, link)| link).collect();
        if let Some(link) = links.first() {
            let (volume, targets_under_test) = (VOLUME, &targets_under_test);
            points.extend(initiators::points(targets_under_test, link, volume, warm_up, duration));
            points.extend(features::points(targets_under_test, &link.name, volume));
            // A quick run has time for one target.
            let count = if choices.scale == Scale::Quick { 1 } else { targets_under_test.len() };
            let (place, of) = ((&*link.name, volume), &targets_under_test[..count]);
            let (levels, initiators) = (&recovery::LEVELS, initiators::COUNTS[2] as usize);
            let times = (choices.scale, duration);
            points.extend(recovery::points(of, place, levels, initiators, times));
        }
        let mut volumes = vec![alignment::volume(&whole), whole];
        // The link with the largest packets delays the I/Os least.
        if let Some(link) = links.last() {
            points.extend(alignment::points(&targets_under_test, link, bytes, warm_up, duration));
        }
        let mut links = links;
        // A quick run has no time for links of their own.
        if choices.links && choices.scale == Scale::Full {
            points.extend(frame_sizes::points(&targets_under_test, VOLUME, times));
            links.extend(frame_sizes::links());
        }
        if let Some(link) = links.first() {
            // A quick run has time for one target.
            let count = if choices.scale == Scale::Quick { 1 } else { targets_under_test.len() };
            let of = &targets_under_test[..count];
            points.extend(clones::points(of, link, VOLUME, choices.scale));
        }
        // It takes too long for a quick run.
        if let (Scale::Full, Some(link)) = (choices.scale, links.first()) {
            points.push(suspension::point(&targets_under_test[0], link, VOLUME));
        }
        volumes.retain(|volume| points.iter().any(|point| point.volume == volume.name));
        Plan {
            links,
            volumes,
            targets_under_test,
            limits: true,
            points,
            guests: None,
            joint_volumes: Vec::new(),
            repetitions: REPETITIONS,
        }
    }

    fn report(&self, run: &Run) -> Report {
        let mut sections = vec![charts(run), beside_each_other(run)];
        sections.extend(layout::limits(run));
        sections.push(between_targets(run));
        sections.extend(between_frames(run));
        sections.push(cost(run));
        sections.extend(latencies(run));
        sections.extend(virtual_machine::section(run));
        sections.extend(initiators::section(run));
        sections.extend(recovery::section(run, &recovery::LEVELS, THEIR_RECOVERY));
        sections.extend(features::section(run, THEIR_FEATURES));
        sections.extend(frame_sizes::section(run));
        sections.extend(clones::section(run));
        sections.extend(suspension::section(run));
        sections.extend(alignment::section(run));
        sections.push(every_run(run));
        sections.push(theirs());
        Report {
            title: "Comparison of open targets, standard and jumbo frames".into(),
            summary: summary(run),
            sections,
        }
    }
}

fn labels(target: &str, mtu: &str, test: &str) -> Labels {
    Labels::new().with(TARGET, target).with(MTU, mtu).with(TEST, test)
}

/// Returns the figure that the thesis reports for a test, its unit and its decimal places.
fn metric(test: &str) -> (&'static str, &'static str, u8) {
    match test {
        "Maximum IOPS" | "Maximum Write IOPS" => (figure::IOPS, "IOPS", 0),
        _ => (figure::MB_PER_S, "MB/s", 2),
    }
}

/// Describes a link.
fn frames(mtu: &str) -> String {
    match mtu {
        AS_IT_IS => "the network as it is".into(),
        "1500" => "standard frames (MTU 1500)".into(),
        _ => format!("jumbo frames (MTU {mtu})"),
    }
}

/// Returns the mean of the thesis's physical initiator. For the existing network, it is the mean with standard frames.
fn published_mean(target: &str, mtu: &str, test: &str) -> Option<f64> {
    published::trinkle_mean(target, INITIATOR, mtu.parse().unwrap_or(MTUS[0]), test)
}

fn tests() -> impl Iterator<Item = &'static str> {
    access::NAMED.iter().map(|named| named.name)
}

fn summary(run: &Run) -> Vec<String> {
    let targets = run.values(TARGET);
    let networks: Vec<_> = run.values(MTU).into_iter().map(frames).collect();
    let mut paragraphs = Vec::new();
    if !networks.is_empty() {
        paragraphs.push(format!(
            "Ten access specifications on {}, with {}, {REPETITIONS} interleaved runs of each.",
            targets.join(", "),
            networks.join(" and with ")
        ));
    }
    for (of, group) in
        ["", " of targets in guests"].into_iter().zip(TargetUnderTest::comparable(targets))
    {
        let leaders = leaders(run, &group);
        let ahead = group.iter().filter_map(|target| {
            let own = || leaders.iter().filter(|leader| leader.target == *target);
            let (all, real) = (own().count(), own().filter(|leader| leader.beyond_noise).count());
            (all > 0).then(|| format!("{target} in {all}, in {real} of them by more than noise"))
        });
        let ahead: Vec<_> = ahead.collect();
        if group.len() > 1 && !ahead.is_empty() {
            let count = leaders.len();
            paragraphs
                .push(format!("The highest means{of}, {count} in all: {}.", ahead.join("; ")));
        }
    }
    paragraphs.extend(alignment::summary(run));
    paragraphs.push(
        "The published figures come from machines of 2013 with gigabit Ethernet and disks; ours \
         from a volume and links of this machine: compare the order and the shape, not the size."
            .into(),
    );
    paragraphs
}

/// The target with the highest mean of a cell.
struct Leader<'a> {
    target: &'a str,
    /// Whether the difference to the second highest mean exceeds the noise.
    beyond_noise: bool,
}

/// Returns the leader among these targets in each test.
fn leaders<'a>(run: &Run, targets: &[&'a str]) -> Vec<Leader<'a>> {
    let mut leaders = Vec::new();
    for mtu in run.values(MTU) {
        for test in tests() {
            let figures = |target| run.figures(&labels(target, mtu, test), metric(test).0);
            let mut ranked: Vec<_> = targets
                .iter()
                .filter_map(|&target| {
                    let values = figures(target);
                    Summary::of(&values).map(|summary| (target, summary.mean, values))
                })
                .collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            let Some((target, _, highest)) = ranked.first() else { continue };
            let difference =
                ranked.get(1).and_then(|(_, _, next)| Difference::between(next, highest));
            let beyond_noise = difference.is_some_and(|difference| difference.is_real());
            leaders.push(Leader { target, beyond_noise });
        }
    }
    leaders
}

fn beside_each_other(run: &Run) -> Section {
    let blocks = run.values(MTU).into_iter().map(|mtu| {
        let mut table = means(
            run,
            &run.values(TARGET),
            tests(),
            |target, test| labels(target, mtu, test),
            |target, test| published_mean(target, mtu, test),
        );
        table.caption = format!("Means with {}", frames(mtu));
        table.notes = vec![
            "The thesis's columns are means of three runs from its physical initiator.".into(),
        ];
        Block::Table(table)
    });
    Section {
        heading: "Comparison of the targets, and with the thesis".into(),
        blocks: blocks.collect(),
    }
}

/// Returns a table of the means of targets and of the thesis's targets, with a row for each test.
fn means(
    run: &Run,
    targets: &[&str],
    tests: impl Iterator<Item = &'static str>,
    labels: impl Fn(&str, &str) -> Labels,
    published: impl Fn(&str, &str) -> Option<f64>,
) -> Table {
    let mut columns = vec!["Test".to_owned(), "Unit".into()];
    columns.extend(targets.iter().map(|target| (*target).to_owned()));
    columns.extend(THEIRS.map(|target| format!("{target} (2013)")));
    let rows = tests.map(|test| {
        let (figure, unit, decimals) = metric(test);
        let mut row = vec![layout::text(test), layout::text(unit)];
        row.extend(
            targets.iter().map(|target| layout::cell(run, &labels(target, test), figure, decimals)),
        );
        row.extend(THEIRS.map(|target| layout::published(published(target, test), decimals)));
        row
    });
    Table { columns, rows: rows.collect(), ..Table::default() }
}

fn charts(run: &Run) -> Section {
    let mut blocks = Vec::new();
    for (figure, unit) in [(figure::IOPS, "IOPS"), (figure::MB_PER_S, "MB/s")] {
        for mtu in run.values(MTU) {
            let groups: Vec<_> = tests().filter(|test| metric(test).0 == figure).collect();
            let ours = run.values(TARGET).into_iter().map(|target| {
                let cells: Vec<_> = groups.iter().map(|test| labels(target, mtu, test)).collect();
                layout::bars(run, target, cells.iter(), figure)
            });
            let theirs = THEIRS.into_iter().map(|target| BarSeries {
                name: format!("{target} (2013)"),
                published: true,
                values: groups.iter().map(|test| published_mean(target, mtu, test)).collect(),
                half_widths: vec![None; groups.len()],
            });
            blocks.push(Block::Bars(Bars {
                caption: format!("{unit} with {}", frames(mtu)),
                unit: unit.into(),
                groups: groups.iter().map(|test| (*test).to_owned()).collect(),
                series: ours.chain(theirs).collect(),
                ..Bars::default()
            }));
        }
    }
    Section { heading: "Figures".into(), blocks }
}

/// Returns the section in the layout of the thesis's table 4.3: the differences between the targets.
fn between_targets(run: &Run) -> Section {
    let mut blocks = Vec::new();
    // Each of a group against the first one: targets in guests are not comparable with others.
    let groups = TargetUnderTest::comparable(run.values(TARGET));
    let of_group = |group: Vec<&str>| match group.split_first() {
        Some((&first, rest)) => {
            rest.iter().map(|&other| (first.to_owned(), other.to_owned())).collect()
        }
        None => Vec::new(),
    };
    let pairs = groups.map(of_group).concat();
    if pairs.is_empty() {
        return Section { heading: "Differences between targets".into(), blocks };
    }
    for mtu in run.values(MTU) {
        let mut columns = vec!["Test".to_owned()];
        columns.extend(pairs.iter().map(|(first, other)| format!("{first} against {other}")));
        columns.extend(THEIRS[1..].iter().map(|target| format!("IET against {target} (2013)")));
        let rows = tests().map(|test| {
            let figure = metric(test).0;
            let values = |target: &str| run.figures(&labels(target, mtu, test), figure);
            let mut row = vec![layout::text(test)];
            row.extend(
                pairs.iter().map(|(first, other)| layout::change(&values(other), &values(first))),
            );
            let mean = |target| published_mean(target, mtu, test);
            row.extend(THEIRS[1..].iter().map(|other| {
                let pair = mean(other).zip(mean(THEIRS[0]));
                pair.map_or(crate::report::Cell::Empty, |(a, b)| layout::published_change(a, b))
            }));
            row
        });
        blocks.push(Block::Table(Table {
            caption: format!("Percentage differences between targets, {}", frames(mtu)),
            columns,
            rows: rows.collect(),
            notes: vec![NOISE.into()],
            ..Table::default()
        }));
    }
    Section { heading: "Differences between targets".into(), blocks }
}

/// Returns the section in the layout of the thesis's table 4.4: the effect of jumbo frames.
fn between_frames(run: &Run) -> Option<Section> {
    let targets = run.values(TARGET);
    let [standard, jumbo] = run.values(MTU)[..] else { return None };
    let mut columns = vec!["Test".to_owned()];
    columns.extend(targets.iter().map(|target| (*target).to_owned()));
    columns.extend(THEIRS.map(|target| format!("{target} (2013)")));
    let rows = tests().map(|test| {
        let figure = metric(test).0;
        let values = |target: &str, mtu| run.figures(&labels(target, mtu, test), figure);
        let mut row = vec![layout::text(test)];
        row.extend(
            targets
                .iter()
                .map(|target| layout::change(&values(target, standard), &values(target, jumbo))),
        );
        row.extend(THEIRS.map(|target| {
            let mean = |mtu| published_mean(target, mtu, test);
            let pair = mean(standard).zip(mean(jumbo));
            pair.map_or(crate::report::Cell::Empty, |(a, b)| layout::published_change(a, b))
        }));
        row
    });
    let table = Table {
        caption: "Percentage differences of jumbo against standard frames".into(),
        columns,
        rows: rows.collect(),
        notes: vec![NOISE.into()],
        ..Table::default()
    };
    Some(Section {
        heading: "The effect of jumbo frames".into(),
        blocks: vec![Block::Table(table)],
    })
}

const NOISE: &str = "A difference is called noise if it is not significant at 95 % in Welch's test. \
                     Of twenty equal pairs, one is expected to appear different. The thesis's \
                     differences are those of its means, without a test.";

fn cost(run: &Run) -> Section {
    let targets = run.values(TARGET);
    let mut columns = vec!["Test".to_owned()];
    for target in &targets {
        columns.push(format!("{target}, CPU µs/IO"));
        columns.push(format!("{target}, p50 µs"));
        columns.push(format!("{target}, p99 µs"));
    }
    let blocks = run.values(MTU).into_iter().map(|mtu| {
        let rows = tests().map(|test| {
            let mut row = vec![layout::text(test)];
            for target in &targets {
                let labels = labels(target, mtu, test);
                for (figure, decimals) in
                    [(figure::TARGET_CPU_US_PER_IO, 2), (figure::P50_US, 0), (figure::P99_US, 0)]
                {
                    let values = run.figures(&labels, figure);
                    row.push(layout::number(Summary::of(&values).map(|s| s.median), decimals));
                }
            }
            row
        });
        Block::Table(Table {
            caption: format!("Target CPU for each I/O and latency with {}, medians", frames(mtu)),
            columns: columns.clone(),
            rows: rows.collect(),
            ..Table::default()
        })
    });
    Section { heading: "CPU time of the target, and latency".into(), blocks: blocks.collect() }
}

fn latencies(run: &Run) -> Option<Section> {
    let mut blocks = Vec::new();
    let first = run.values(MTU).first().copied().unwrap_or_default();
    for test in ["Maximum IOPS", "Exchange 2003", "SQL 64K"] {
        let series: Vec<_> = run
            .values(TARGET)
            .into_iter()
            .map(|target| (target, labels(target, first, test)))
            .filter(|(_, labels)| !run.figures(labels, figure::IOPS).is_empty())
            .collect();
        if series.is_empty() {
            continue;
        }
        let of = format!("{test}, {}", frames(first));
        blocks.push(layout::latency_lines(run, &format!("Latency: {of}"), &series));
        blocks.push(layout::time_lines(run, &format!("Over time: {of}, last run"), &series));
    }
    (!blocks.is_empty()).then(|| Section { heading: "Latency and steadiness".into(), blocks })
}

/// Returns the section in the layout of the thesis's appendix G: every run, mean, standard deviation.
fn every_run(run: &Run) -> Section {
    let mut blocks = Vec::new();
    for target in run.values(TARGET) {
        for mtu in run.values(MTU) {
            let rows = tests().map(|test| {
                let (figure, unit, decimals) = metric(test);
                let labels = labels(target, mtu, test);
                let values = run.figures(&labels, figure);
                let summary = Summary::of(&values);
                let mut row = vec![layout::text(test), layout::text(unit)];
                for index in 0..REPETITIONS as usize {
                    row.push(match values.get(index) {
                        Some(&value) => layout::number(Some(value), 2),
                        None => layout::absent(run, &labels),
                    });
                }
                row.push(layout::number(summary.map(|summary| summary.mean), decimals.max(2)));
                row.push(layout::number(summary.and_then(|summary| summary.deviation), 2));
                row
            });
            blocks.push(Block::Table(Table {
                caption: format!("{target}, {}", frames(mtu)),
                columns: ["Test", "Unit", "Run 1", "Run 2", "Run 3", "Mean", "Std"]
                    .map(Into::into)
                    .to_vec(),
                rows: rows.collect(),
                ..Table::default()
            }));
        }
    }
    Section { heading: "Every run".into(), blocks }
}

fn theirs() -> Section {
    let mut blocks = vec![Block::Text(
        "As published. The standard deviations of the thesis divide by the number of runs, ours by \
         one less."
            .into(),
    )];
    for target in THEIRS {
        for initiator in ["virtual", "physical"] {
            for mtu in MTUS {
                let rows = published::trinkle()
                    .iter()
                    .filter(|row| {
                        row.target == target && row.initiator == initiator && row.mtu == mtu
                    })
                    .map(|row| {
                        let figure = |value| layout::published(Some(value), 2);
                        let mut cells = vec![layout::text(&row.test), layout::text(&row.unit)];
                        cells.extend(row.runs.map(figure));
                        cells.extend([figure(row.mean), figure(row.std)]);
                        cells
                    });
                blocks.push(Block::Table(Table {
                    caption: format!(
                        "{target}, {initiator} initiator, {}",
                        frames(&mtu.to_string())
                    ),
                    columns: ["Test", "Unit", "Run 1", "Run 2", "Run 3", "Mean", "Std"]
                        .map(Into::into)
                        .to_vec(),
                    rows: rows.collect(),
                    ..Table::default()
                }));
            }
        }
    }
    Section { heading: "The thesis's tables (G.1 to G.16)".into(), blocks }
}
