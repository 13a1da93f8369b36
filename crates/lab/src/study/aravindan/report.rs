//! A comparison of cache modes, the order of targets, and the time of a failover next to its formula.

use super::super::{features, layout, recovery};
use super::{
    CACHE, DM_MULTIPATH, FAILOVER, LOADS, MODES, Mode, OPERATIONS, PATH_COUNT, TARGET, TIMERS,
    attachments, disks, labels, migration, parallel_jobs, power_failure, two_hosts,
};
use crate::multipath::{FAILOVER_MS, LINK_RATE_MBIT, LONGEST_FAILOVER_MS, Timers};
use crate::published::aravindan::{
    FAILOVER_BY_FORMULA, FAILOVER_MEASURED, FASTEST_READS, ORDER, TIMEOUT,
};
use crate::record::{Labels, Run, figure};
use crate::report::{Bars, Block, Cell, Report, Section, Table};
use crate::statistics::Summary;
use crate::target_under_test::TargetUnderTest;

/// The statistic of figures that are maxima themselves.
pub(super) const LONGEST: fn(&Summary) -> f64 = |summary| summary.max;

/// The name of the medium without iSCSI, which has no target process to measure.
const DIRECT: &str = "direct";

/// What the study says of the features of LIO.
const THEIR_FEATURES: &str = "The study names these features of LIO: persistent reservations, asymmetric access, \
                              ErrorRecoveryLevel 0 to 2, several connections of a session, T10 DIF.";

/// What the study says of error recovery, and of second connections.
const THEIR_RECOVERY: &str = "The study describes the three levels, and prefers MPIO to several connections of a session by \
                              argument: MPIO works with any transport; several connections of a session fail over within \
                              it. It measured neither.";

pub(super) fn report(run: &Run) -> Report {
    let mut sections = Vec::new();
    if !targets(run).is_empty() {
        sections = vec![
            beside_each_other(run),
            meanings(),
            against_writeback(run),
            for_measuring(run),
            order(run),
            parallel_jobs::section(run),
            costs(run),
        ];
    }
    sections.extend([
        disks::section(run),
        attachments::section(run),
        migration::section(run),
        two_hosts::section(run),
        power_failure::section(run),
        over_paths(run),
        failover(run),
    ]);
    let forms = [recovery::LEVELS, recovery::SECOND_CONNECTIONS].concat();
    sections.extend(recovery::section(run, &forms, THEIR_RECOVERY));
    sections.extend(features::section(run, THEIR_FEATURES));
    sections.extend(layout::limits(run));
    Report {
        title: "Cache modes, the order of targets, and failover".into(),
        summary: summary(run),
        sections,
    }
}

/// Returns the targets that have load cells.
fn targets(run: &Run) -> Vec<&str> {
    let mut targets = Vec::new();
    for sample in run.samples.iter().filter(|sample| sample.labels.value(CACHE).is_some()) {
        if let Some(target) = sample.labels.value(TARGET)
            && !targets.contains(&target)
        {
            targets.push(target);
        }
    }
    targets
}

/// Returns the figure of a load, its unit and its decimal places: IOPS for small I/Os, throughput for large ones.
pub(super) fn metric(load: &str) -> (&'static str, &'static str, u8) {
    if load == LOADS[0].0 { (figure::IOPS, "IOPS", 0) } else { (figure::MB_PER_S, "MB/s", 1) }
}

fn mean(run: &Run, labels: &Labels, figure: &str) -> Option<f64> {
    Summary::of(&run.figures(labels, figure)).map(|summary| summary.mean)
}

fn summary(run: &Run) -> Vec<String> {
    let targets = targets(run);
    let mut sentences = Vec::new();
    if !targets.is_empty() {
        sentences.push(format!(
            "Reads, writes and a mix (70 % reads) on disk volumes in five cache modes: {}.",
            targets.join(", ")
        ));
    }
    let (load, operation) = (LOADS[0].0, "write");
    for target in targets {
        let of = |mode: &str| mean(run, &labels(target, mode, load, operation), figure::IOPS);
        if let Some((fast, durable)) = of("writeback").zip(of("directsync")) {
            sentences.push(format!(
                "{target}, writes of {load}: {fast:.0} IOPS with writeback, {durable:.0} with \
                 directsync, where each of them is durable when it is acknowledged."
            ));
        }
    }
    for (name, labels) in failovers(run) {
        if let Some(all) = Summary::of(&longest_requests(run, &labels)) {
            sentences.push(format!(
                "Failover, {name}: the longest request takes {:.0} ms (median of {}), at most {:.0} ms.",
                all.median, all.count, all.max
            ));
        }
    }
    sentences
}

/// Returns the section that explains the modes.
fn meanings() -> Section {
    let yes = |yes| layout::text(if yes { "yes" } else { "no" });
    let rows = MODES.map(|Mode { name, cached, durable, .. }| {
        let flush =
            if name == "unsafe" { "is ignored" } else { "makes all previous writes durable" };
        vec![layout::text(name), yes(cached), yes(durable), layout::text(flush)]
    });
    let table = Table {
        caption: "Guarantees of the cache modes".into(),
        columns: [
            "Mode",
            "memory answers reads",
            "a write is durable when acknowledged",
            "a flush",
        ]
        .map(Into::into)
        .to_vec(),
        rows: rows.to_vec(),
        notes: vec![
            "The loads here never flush. The figures of writeback, none and unsafe are those of a \
             client that does not require durability."
                .into(),
        ],
        ..Table::default()
    };
    Section { heading: "The cache modes".into(), blocks: vec![Block::Table(table)] }
}

fn beside_each_other(run: &Run) -> Section {
    let targets = targets(run);
    let mut blocks = Vec::new();
    for (load, _) in LOADS {
        let (figure, unit, decimals) = metric(load);
        for (operation, _) in OPERATIONS {
            let mut columns = vec!["Mode".to_owned()];
            columns.extend(targets.iter().map(|target| (*target).to_owned()));
            let rows = MODES.map(|mode| {
                let mut row = vec![layout::text(mode.name)];
                row.extend(targets.iter().map(|target| {
                    layout::cell(run, &labels(target, mode.name, load, operation), figure, decimals)
                }));
                row
            });
            blocks.push(Block::Table(Table {
                caption: format!("{}, {load}, {unit}", words(operation)),
                columns,
                rows: rows.to_vec(),
                ..Table::default()
            }));
        }
        for (operation, _) in OPERATIONS {
            let series = targets.iter().map(|target| {
                let groups = MODES.map(|mode| labels(target, mode.name, load, operation));
                layout::bars(run, target, groups.iter(), figure)
            });
            blocks.push(Block::Bars(Bars {
                caption: format!("{}, {load}", words(operation)),
                unit: unit.into(),
                groups: MODES.map(|mode| mode.name.into()).to_vec(),
                series: series.collect(),
                ..Bars::default()
            }));
        }
    }
    Section { heading: "Comparison of cache modes and targets".into(), blocks }
}

pub(super) fn words(operation: &str) -> &'static str {
    match operation {
        "read" => "Reads",
        "write" => "Writes",
        _ => "Mixed: 70 % reads, 30 % writes",
    }
}

fn against_writeback(run: &Run) -> Section {
    let mut blocks = Vec::new();
    for (load, _) in LOADS {
        let figure = metric(load).0;
        let mut columns = vec!["Mode".to_owned()];
        for target in targets(run) {
            columns.extend(OPERATIONS.map(|(operation, _)| format!("{target}, {operation}")));
        }
        let rows = MODES[1..].iter().map(|mode| {
            let mut row = vec![layout::text(mode.name)];
            for target in targets(run) {
                row.extend(OPERATIONS.map(|(operation, _)| {
                    let of = |mode: &str| labels(target, mode, load, operation);
                    match run.figures(&of(mode.name), figure) {
                        values if values.is_empty() => layout::absent(run, &of(mode.name)),
                        values => layout::change(&run.figures(&of("writeback"), figure), &values),
                    }
                }));
            }
            row
        });
        blocks.push(Block::Table(Table {
            caption: format!("Against writeback: {load}"),
            columns,
            rows: rows.collect(),
            ..Table::default()
        }));
    }
    Section { heading: "Differences between the modes".into(), blocks }
}

/// Returns the section about the best mode for measurements. The study recommends directsync. The section shows for
/// each mode whether its figures are repeatable and whether they are those of the disk.
fn for_measuring(run: &Run) -> Section {
    let load = LOADS[0].0;
    let mut columns = vec!["Mode".to_owned()];
    for target in targets(run) {
        columns.extend(OPERATIONS.map(|(operation, _)| format!("{target}, {operation}")));
    }
    let rows = MODES.map(|mode| {
        let mut row = vec![layout::text(mode.name)];
        for target in targets(run) {
            row.extend(OPERATIONS.map(|(operation, _)| {
                let labels = labels(target, mode.name, load, operation);
                let summary = Summary::of(&run.figures(&labels, figure::IOPS));
                match summary.map(|summary| (summary.deviation, summary.mean)) {
                    Some((Some(deviation), mean)) if mean > 0.0 => {
                        Cell::Percent { value: 100.0 * deviation / mean, decimals: 1 }
                    }
                    Some(_) => Cell::Empty,
                    None => layout::absent(run, &labels),
                }
            }));
        }
        row
    });
    let blocks = vec![
        Block::Text(
            "The study measures with directsync and recommends it for measurements: reads come from \
             the disk and not from the host's memory, and writes have reached the disk. So the \
             figures describe the storage. A mode whose figures vary widely needs more repetitions \
             until a difference exceeds the noise."
                .into(),
        ),
        Block::Table(Table {
            caption: format!(
                "Variation between repetitions: {load}, standard deviation in percent of the mean"
            ),
            columns,
            rows: rows.to_vec(),
            ..Table::default()
        }),
    ];
    Section { heading: "The mode for measurements".into(), blocks }
}

/// Returns the section with the study's order of targets next to the order of this run.
fn order(run: &Run) -> Section {
    let mut rows = Vec::new();
    for (load, _) in LOADS {
        let figure = metric(load).0;
        for (operation, _) in OPERATIONS {
            for mode in MODES {
                let groups = TargetUnderTest::comparable(targets(run)).map(|group| {
                    let mean =
                        |target| mean(run, &labels(target, mode.name, load, operation), figure);
                    let mut means: Vec<_> = group
                        .into_iter()
                        .filter(|target| *target != DIRECT)
                        .filter_map(|target| Some((target, mean(target)?)))
                        .collect();
                    means.sort_by(|a, b| b.1.total_cmp(&a.1));
                    means.into_iter().map(|(target, _)| target).collect::<Vec<_>>().join(", ")
                });
                if groups.iter().all(String::is_empty) {
                    continue;
                }
                let [here, in_guests] = &groups;
                let theirs = if operation == "read" {
                    format!("{FASTEST_READS} first")
                } else {
                    ORDER.join(", ")
                };
                rows.push(
                    [operation, load, mode.name, here, in_guests, &theirs]
                        .map(layout::text)
                        .to_vec(),
                );
            }
        }
    }
    let heading = "The order of targets".into();
    if rows.is_empty() {
        return Section { heading, blocks: Vec::new() };
    }
    let text = Block::Text(format!(
        "In the study, {} were fastest in this order, for writes and for reads and writes of two \
         parallel jobs. For reads alone it found {FASTEST_READS} ahead of the other two, and supposed its cache \
         as the cause. STGT is the package tgt of Debian; the others are \
         in the kernel. The study also found two \
         active paths faster than an active and a passive path, teamed network cards and several \
         connections in one session.",
        ORDER.join(", ")
    ));
    let table = Table {
        caption: "Targets from the fastest to the slowest, by means".into(),
        columns: ["Operation", "Load", "Mode", "Here", "Here in guests", "Aravindan 2014"]
            .map(Into::into)
            .to_vec(),
        rows,
        notes: vec!["The order alone does not show a difference: see the intervals above.".into()],
        ..Table::default()
    };
    Section { heading, blocks: vec![text, Block::Table(table)] }
}

fn costs(run: &Run) -> Section {
    let targets = targets(run);
    let blocks = OPERATIONS.map(|(operation, _)| {
        let load = LOADS[0].0;
        let mut columns = vec!["Mode".to_owned()];
        for target in &targets {
            columns.push(format!("{target}, p50 µs"));
            columns.push(format!("{target}, p99 µs"));
            if *target != DIRECT {
                columns.push(format!("{target}, CPU µs/IO"));
            }
        }
        let rows = MODES.map(|mode| {
            let mut row = vec![layout::text(mode.name)];
            for target in &targets {
                let labels = labels(target, mode.name, load, operation);
                for (figure, decimals) in
                    [(figure::P50_US, 0), (figure::P99_US, 0), (figure::TARGET_CPU_US_PER_IO, 1)]
                {
                    if figure == figure::TARGET_CPU_US_PER_IO && *target == DIRECT {
                        continue;
                    }
                    row.push(layout::median(run, &labels, figure, 1.0, decimals));
                }
            }
            row
        });
        Block::Table(Table {
            caption: format!("{}, {load}: medians of the runs", words(operation)),
            columns,
            rows: rows.to_vec(),
            ..Table::default()
        })
    });
    Section { heading: "Latency, and CPU time of the target".into(), blocks: blocks.to_vec() }
}

/// Returns the section with the throughput over several paths.
fn over_paths(run: &Run) -> Section {
    let labels = |paths: &str| Labels::new().with(PATH_COUNT, paths);
    let counts = run.values(PATH_COUNT);
    let one = counts.first().and_then(|one| mean(run, &labels(one), figure::MB_PER_S));
    let row = |paths: &&str| {
        let own = mean(run, &labels(paths), figure::MB_PER_S);
        vec![
            layout::text(*paths),
            layout::cell(run, &labels(paths), figure::MB_PER_S, 1),
            layout::number(one.zip(own).map(|(one, own)| own / one), 2),
        ]
    };
    let table = Table {
        caption: "Reads of 64 KiB over several paths of this project's initiator".into(),
        columns: ["Paths", "MB/s", "times one path"].map(Into::into).to_vec(),
        rows: counts.iter().map(row).collect(),
        notes: vec![format!(
            "Each path is a link of {LINK_RATE_MBIT} Mbit/s. 32 reads are open. A passive path leads to a portal group in \
             standby. The study found active/active faster, without figures."
        )],
        ..Table::default()
    };
    Section { heading: "Several paths".into(), blocks: vec![Block::Table(table)] }
}

/// Returns the section with the time of a failover next to the sum of the timeouts that it includes.
fn failover(run: &Run) -> Section {
    let timeout = || layout::published(Some(TIMEOUT.as_secs_f64()), 0);
    let mut rows = vec![vec![
        layout::text("Aravindan 2014, active/active"),
        timeout(),
        timeout(),
        timeout(),
        layout::published(Some(FAILOVER_BY_FORMULA.as_secs_f64()), 0),
        layout::published(Some(FAILOVER_MEASURED.as_secs_f64()), 2),
        layout::text(""),
    ]];
    let mut notes = vec![
        "The formula is the sum of the three times: until the initiator sends the next noop, until the answer is overdue, and until \
         the initiator replaces the session by the other path."
            .to_owned(),
    ];
    for (name, timers) in TIMERS {
        let labels = Labels::new().with(DM_MULTIPATH, name);
        if run.cells(&labels).next().is_none() {
            continue;
        }
        let Timers { interval, timeout, replacement } = timers;
        let mut row = vec![layout::text(format!("open-iscsi and dm-multipath, {name}"))];
        row.extend([interval, timeout, replacement].map(|time| layout::text(time.to_string())));
        row.push(layout::text(timers.sum().as_secs().to_string()));
        row.push(layout::median(run, &labels, FAILOVER_MS, 1e-3, 2));
        row.push(layout::picked(run, &labels, LONGEST_FAILOVER_MS, LONGEST, 1e-3, 2));
        rows.push(row);
    }
    if rows.len() > 1 {
        notes.push(
            "open-iscsi and dm-multipath are in a guest with an emulated processor; one of two links is cut. The replacement timeout \
             is that of multipath-tools (`fast_io_fail_tmo`)."
                .into(),
        );
    }
    let table = Table {
        caption: "Interruption of I/O when a path fails, s".into(),
        columns: [
            "Paths",
            "noop interval",
            "noop timeout",
            "replacement timeout",
            "by the formula",
            "measured",
            "longest",
        ]
        .map(Into::into)
        .to_vec(),
        rows,
        notes,
        ..Table::default()
    };
    let cases = failovers(run);
    let ours = Table {
        caption: "The longest request of each failover, ms".into(),
        columns: ["Failover", "number", "shortest", "median", "90 %", "longest"]
            .map(Into::into)
            .to_vec(),
        rows: cases.iter().map(|(name, labels)| distribution(run, name, labels)).collect(),
        notes: vec![
            "Eight requests of 4 KiB are open, half of them reads. After a target was killed, the time counts from its \
             next start; after all links were cut, from their return."
                .into(),
        ],
        ..Table::default()
    };
    let series: Vec<_> =
        cases.iter().map(|(name, labels)| (name.as_str(), labels.clone())).collect();
    let chart = layout::latency_lines(run, "The longest request of each failover", &series);
    let blocks = vec![Block::Table(table), Block::Table(ours), chart];
    Section { heading: "Failover".into(), blocks }
}

/// Returns the measured kinds of failover, with their names.
fn failovers(run: &Run) -> Vec<(String, Labels)> {
    let of_ours = run
        .values(FAILOVER)
        .into_iter()
        .map(|fault| (fault.to_owned(), Labels::new().with(FAILOVER, fault)));
    let of_kernel = run.values(DM_MULTIPATH).into_iter().map(|timers| {
        (format!("open-iscsi and dm-multipath, {timers}"), Labels::new().with(DM_MULTIPATH, timers))
    });
    of_ours.chain(of_kernel).collect()
}

/// Returns the longest request of each failover of all repetitions, in ms.
fn longest_requests(run: &Run, labels: &Labels) -> Vec<f64> {
    layout::latencies(run, labels).iter().map(|bucket| bucket.upper_us / 1e3).collect()
}

/// Returns the row with the distribution of a kind of failover.
fn distribution(run: &Run, name: &str, labels: &Labels) -> Vec<Cell> {
    let all = longest_requests(run, labels);
    let mut row = vec![layout::text(name)];
    let Some(last) = all.len().checked_sub(1) else {
        row.extend((0..5).map(|_| layout::absent(run, labels)));
        return row;
    };
    let at = |share: f64| all[(last as f64 * share).round() as usize];
    row.push(layout::text(all.len().to_string()));
    row.extend([0.0, 0.5, 0.9, 1.0].map(|share| layout::number(Some(at(share)), 1)));
    row
}
