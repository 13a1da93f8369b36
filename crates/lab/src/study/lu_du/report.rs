//! Lu and Du's tables next to the results of this run. As in the study, networks are rows.

use super::super::layout;
use super::{
    HEAVY, HEAVY_DEPTH, HEAVY_SIZES, LIGHT, LIGHT_SIZES, MIXES, NETWORK, NO_NETWORK, OPERATIONS,
    PART, SET_UP, TARGET, TRACE, disks, encryption, factors, files, heavy, light, requests, setup,
    traffic,
};
use crate::published::{self, LU_DU_TRACE};
use crate::record::{Labels, Outcome, Run, figure};
use crate::report::{
    Axis, BarSeries, Bars, Block, Cell, LineSeries, Lines, Report, Section, Table,
};
use crate::statistics::Summary;

/// The study's networks, in its order.
const THEIRS: [&str; 3] = ["SAN", "GigE LAN iSCSI", "Campus LAN iSCSI"];
const MS: f64 = 1e-3;

/// The statistic of the repetitions that is shown.
type Pick = fn(&Summary) -> f64;

const LEAST: Pick = |summary| summary.min;
const GREATEST: Pick = |summary| summary.max;

pub(super) fn report(run: &Run) -> Report {
    let mut sections = vec![
        light_means(run),
        light_spread(run),
        added(run),
        traffic::section(run),
        heavy_load(run),
        disks::section(run),
        trace(run),
        set_up(run),
        factors::section(run),
    ];
    sections.extend(encryption::section(run));
    sections.extend(layout::limits(run));
    sections.push(files::section(run));
    Report {
        title: "The cost of a network: set-up, light and heavy loads, a database trace".into(),
        summary: summary(run),
        sections,
    }
}

/// A column: its name, the cell of a subject of this run, the cell of a network of the study.
struct Column<'a> {
    name: String,
    ours: Box<dyn Fn(Labels) -> Cell + 'a>,
    theirs: Box<dyn Fn(&str) -> Cell + 'a>,
}

fn column<'a>(
    name: impl Into<String>,
    ours: impl Fn(Labels) -> Cell + 'a,
    theirs: impl Fn(&str) -> Cell + 'a,
) -> Column<'a> {
    Column { name: name.into(), ours: Box::new(ours), theirs: Box::new(theirs) }
}

/// Returns [`Column::theirs`] for the rows of the published `table` with these properties.
fn published_in<'a>(
    table: &'a str,
    operation: &'a str,
    bytes: Option<u32>,
    statistic: &'a str,
    decimals: u8,
) -> impl Fn(&str) -> Cell + 'a {
    move |setup| {
        let value = published::lu_du_value(table, setup, operation, bytes, statistic);
        layout::published(value, decimals)
    }
}

/// Returns the subjects of a part, each a target and a network, with their names.
pub(super) fn subjects(run: &Run, part: &str) -> Vec<(String, Labels)> {
    let mut subjects = Vec::new();
    for sample in &run.samples {
        let [Some(of), Some(target), Some(network)] =
            [PART, TARGET, NETWORK].map(|dimension| sample.labels.value(dimension))
        else {
            continue;
        };
        let name = format!("{target}, {network}");
        if of == part && !subjects.iter().any(|(known, _)| *known == name) {
            subjects.push((name, Labels::new().with(TARGET, target).with(NETWORK, network)));
        }
    }
    subjects
}

/// Returns a table with a row for each subject of this run and a row for each of the given networks of the study.
fn table(
    run: &Run,
    part: &str,
    caption: &str,
    columns: &[Column<'_>],
    theirs: &[&str],
    notes: &[&str],
) -> Block {
    let mut heads = vec!["Target, network".to_owned()];
    heads.extend(columns.iter().map(|column| column.name.clone()));
    let mut rows = Vec::new();
    for (name, labels) in subjects(run, part) {
        let mut row = vec![layout::text(name)];
        row.extend(columns.iter().map(|column| (column.ours)(labels.clone())));
        rows.push(row);
    }
    for setup in theirs {
        let mut row = vec![layout::text(format!("{setup} (2003)"))];
        row.extend(columns.iter().map(|column| (column.theirs)(setup)));
        rows.push(row);
    }
    Block::Table(Table {
        caption: caption.into(),
        columns: heads,
        rows,
        notes: notes.iter().map(|&note| note.into()).collect(),
        ..Table::default()
    })
}

fn summary(run: &Run) -> Vec<String> {
    let mean = |labels: &Labels| Summary::of(&run.figures(labels, figure::MEAN_US));
    let targets = run.values(TARGET).join(", ");
    let mut sentences = Vec::new();
    if !targets.is_empty() {
        sentences.push(format!(
            "Loads of one and of {HEAVY_DEPTH} outstanding I/Os and a database trace on {targets}."
        ));
    }
    let reads: Vec<_> = subjects(run, LIGHT)
        .into_iter()
        .filter_map(|(name, labels)| {
            let summary = mean(&light(labels, "read", 4 << 10))?;
            Some(format!("{name} {:.3}", summary.mean * MS))
        })
        .collect();
    if !reads.is_empty() {
        sentences.push(format!(
            "Mean latency of a read of 4K with one outstanding I/O, in ms: {}.",
            reads.join("; ")
        ));
    }
    sentences.push(
        "The study's 9 to 24 ms are mostly the time of its disks; compare our times with the time \
         that its networks add."
            .into(),
    );
    sentences
}

/// Returns the section with the phases of both types of sessions, as the study's text lists them.
fn set_up(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(
        "One phase of nine seconds and stages of half a second with little variation make up nearly \
         all of the study's ten seconds: its programs paused, not the network. A target that takes \
         as long here pauses, too."
            .into(),
    )];
    for session in &setup::TIMED_SESSIONS {
        let (mut means, mut extremes) = (Vec::new(), Vec::new());
        for step in session.steps {
            let ours = move |labels| {
                let figure = step.figure("mean");
                layout::scaled(run, &session.labels(labels), &figure, 1.0, 3)
            };
            means.push(column(step.name, ours, published_in("setup", step.name, None, "mean", 0)));
            for (statistic, pick) in [("min", LEAST), ("max", GREATEST)] {
                let ours = move |labels| {
                    let figure = step.figure(statistic);
                    layout::picked(run, &session.labels(labels), &figure, pick, 1.0, 3)
                };
                let name = format!("{}, {statistic}", step.name);
                let theirs = published_in("setup", step.name, None, statistic, 0);
                extremes.push(column(name, ours, theirs));
            }
        }
        let name = session.name;
        let caption = format!("Phases of a {name}, means, ms");
        let notes = ["Each run sets up several sessions, one after the other."];
        blocks.push(table(run, SET_UP, &caption, &means, &[name], &notes));
        let caption = format!("Phases of a {name}, shortest and longest, ms");
        blocks.push(table(run, SET_UP, &caption, &extremes, &[name], &[]));
    }
    Section { heading: "Set-up of a session".into(), blocks }
}

/// Returns the section in the layout of table 2.
fn light_means(run: &Run) -> Section {
    let mut columns = Vec::new();
    for operation in OPERATIONS {
        for bytes in LIGHT_SIZES {
            columns.push(column(
                format!("{operation} {}", layout::size_name(bytes)),
                move |labels| {
                    let labels = light(labels, operation, bytes);
                    layout::scaled(run, &labels, figure::MEAN_US, MS, 3)
                },
                published_in("Table 2", operation, Some(bytes), "mean", 2),
            ));
        }
    }
    let caption = "Mean latency with one outstanding I/O, ms";
    let notes = ["As in the study, the requests have random addresses on the whole disk."];
    let mut blocks = vec![table(run, LIGHT, caption, &columns, &THEIRS, &notes)];
    blocks.extend(OPERATIONS.map(|operation| light_chart(run, operation)));
    Section { heading: "Light load (table 2)".into(), blocks }
}

fn light_chart(run: &Run, operation: &str) -> Block {
    let kib = |bytes: u32| f64::from(bytes) / 1024.0;
    let ours = subjects(run, LIGHT).into_iter().map(|(name, labels)| {
        let points = LIGHT_SIZES.into_iter().map(|b| (kib(b), light(labels.clone(), operation, b)));
        let mut line = layout::sweep(run, &name, points, figure::MEAN_US);
        line.points.iter_mut().for_each(|(_, y)| *y *= MS);
        line.half_widths.iter_mut().flatten().for_each(|half| *half *= MS);
        line
    });
    let theirs = THEIRS.iter().map(|setup| LineSeries {
        name: format!("{setup} (2003)"),
        published: true,
        points: LIGHT_SIZES
            .into_iter()
            .filter_map(|bytes| {
                let size = Some(bytes);
                let value = published::lu_du_value("Table 2", setup, operation, size, "mean")?;
                Some((kib(bytes), value))
            })
            .collect(),
        ..LineSeries::default()
    });
    Block::Lines(Lines {
        caption: format!("Mean latency of a {operation} with one outstanding I/O"),
        x: Axis { label: "size, KiB".into(), logarithmic: true },
        y: Axis { label: "ms".into(), logarithmic: true },
        series: ours.filter(|line| !line.points.is_empty()).chain(theirs).collect(),
        ..Lines::default()
    })
}

/// Returns the section in the layout of table 3.
fn light_spread(run: &Run) -> Section {
    let spreads: [(&str, &str, Pick); 3] = [
        (figure::MIN_US, "min", LEAST),
        (figure::MAX_US, "max", GREATEST),
        (figure::DEVIATION_US, "std", |summary| summary.mean),
    ];
    let blocks = OPERATIONS.map(|operation| {
        let mut columns = Vec::new();
        for bytes in LIGHT_SIZES {
            for (figure, statistic, pick) in spreads {
                columns.push(column(
                    format!("{} {statistic}", layout::size_name(bytes)),
                    move |labels| {
                        let labels = light(labels, operation, bytes);
                        layout::picked(run, &labels, figure, pick, MS, 3)
                    },
                    published_in("Table 3", operation, Some(bytes), statistic, 1),
                ));
            }
        }
        // The study has no such figures for writes.
        let theirs: &[&str] = if operation == "read" { &THEIRS } else { &[] };
        let caption = format!("Extremes and standard deviation of a {operation}'s latency, ms");
        let notes =
            ["The extremes are those of all repetitions; the deviation is the mean of the \
                      repetitions."];
        table(run, LIGHT, &caption, &columns, theirs, &notes)
    });
    Section {
        heading: "Variation of the latency under a light load (table 3)".into(),
        blocks: blocks.to_vec(),
    }
}

/// Returns the section with the latency that the path adds to the medium, in absolute terms: a percentage would depend
/// on the latency of the disk.
fn added(run: &Run) -> Section {
    let direct = subjects(run, LIGHT).into_iter().find(|(name, _)| name.ends_with(NO_NETWORK));
    let direct = direct.map(|(_, labels)| labels);
    let mut columns = Vec::new();
    for operation in OPERATIONS {
        for bytes in LIGHT_SIZES {
            let direct = direct.clone();
            columns.push(column(
                format!("{operation} {}", layout::size_name(bytes)),
                move |labels| {
                    let labels = light(labels, operation, bytes);
                    let mean = |labels: &Labels| {
                        let values = run.figures(labels, figure::MEAN_US);
                        Summary::of(&values).map(|summary| summary.mean)
                    };
                    let base = direct.clone().map(|direct| light(direct, operation, bytes));
                    if labels.value(NETWORK) == Some(NO_NETWORK) {
                        return layout::text("the base");
                    }
                    match mean(&labels).zip(base.and_then(|base| mean(&base))) {
                        Some((with, without)) => layout::number(Some((with - without) * MS), 3),
                        None => layout::absent(run, &labels),
                    }
                },
                move |setup| {
                    let of = |setup| {
                        published::lu_du_value("Table 2", setup, operation, Some(bytes), "mean")
                    };
                    let both = of(setup).zip(of(THEIRS[0]));
                    layout::number(both.map(|(with, without)| with - without), 2)
                },
            ));
        }
    }
    let caption = "Mean latency above that without a network, ms";
    let notes = ["The study's values are differences of its table 2, which does not print them."];
    let blocks = vec![table(run, LIGHT, caption, &columns, &THEIRS[1..], &notes)];
    Section { heading: "The cost of the network".into(), blocks }
}

/// Returns the section in the layout of figure 2.
fn heavy_load(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(format!(
        "{HEAVY_DEPTH} I/Os are open on one session; the study had {HEAVY_DEPTH} threads. The \
         study used six disks at random, this run one volume. The study gives one figure for its \
         four mixes, which differed by less than 5 %."
    ))];
    for bytes in HEAVY_SIZES {
        let mut columns = Vec::new();
        for read_percent in MIXES {
            columns.push(column(
                format!("{read_percent} % reads"),
                move |labels| {
                    let labels = heavy(labels, read_percent, bytes);
                    layout::cell(run, &labels, figure::MB_PER_S, 1)
                },
                |_| Cell::Empty,
            ));
        }
        columns.push(column(
            "all mixes",
            |_| Cell::Empty,
            published_in("Figure 2", "mixed", Some(bytes), "mean", 1),
        ));
        let size = layout::size_name(bytes);
        let caption = format!("Throughput with {HEAVY_DEPTH} outstanding I/Os of {size}, MB/s");
        blocks.push(table(run, HEAVY, &caption, &columns, &THEIRS, &[]));
        blocks.push(heavy_times(run, bytes));
        blocks.push(heavy_chart(run, bytes));
    }
    blocks.push(bottlenecks(run));
    Section { heading: "Heavy load (figure 2)".into(), blocks }
}

/// Returns the table of the limits that the reads of a heavy load come closest to. The study found the disks to be the limit of
/// I/Os of 4K, and the campus network that of I/Os of 64K.
fn bottlenecks(run: &Run) -> Block {
    let mut columns = vec!["Target, network".to_owned()];
    for bytes in HEAVY_SIZES {
        let size = layout::size_name(bytes);
        columns.extend([
            format!("{size} reads, closest limit"),
            format!("{size} reads, % of that limit"),
        ]);
    }
    let rows = subjects(run, HEAVY).into_iter().map(|(name, labels)| {
        let mut row = vec![layout::text(name)];
        for bytes in HEAVY_SIZES {
            let (limit, share) =
                match closest_limit(run, &heavy(labels.clone(), MIXES[0], bytes), bytes) {
                    Some((limit, share)) => (layout::text(limit), Some(100.0 * share)),
                    None => (Cell::Empty, None),
                };
            row.extend([limit, layout::number(share, 0)]);
        }
        row
    });
    Block::Table(Table {
        caption: "The limits to which reads come closest".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "Limits are those of the link and the medium without a target. If a load stays far below all of them, the \
             processors, the target or the round trip limit it. In the study, the disks limited I/Os of 4K, and the campus network limited those of 64K, \
             at 65 % of its 100 Mbit/s."
                .into(),
        ],
        ..Table::default()
    })
}

/// Returns the limit to which a cell of reads comes closest, and its share of it.
fn closest_limit(run: &Run, labels: &Labels, bytes: u32) -> Option<(String, f64)> {
    const LIMITS: [(&str, &str, &str); 3] = [
        (figure::MB_PER_S, figure::LINK_FROM_TARGET_MB_PER_S, "throughput"),
        (figure::MB_PER_S, figure::MEDIUM_READ_MB_PER_S, "throughput"),
        (figure::IOPS, figure::MEDIUM_RANDOM_READ_IOPS_32, "IOPS of 4K"),
    ];
    let cell = run.cells(labels).find_map(|sample| match &sample.outcome {
        Outcome::Measured(measures) => Some(measures),
        Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
    })?;
    let mean = |figure| Summary::of(&run.figures(labels, figure)).map(|summary| summary.mean);
    let shares = cell.limits.iter().flat_map(|of| {
        // The last limit is that of I/Os of 4K.
        let count = if bytes == 4 << 10 { LIMITS.len() } else { LIMITS.len() - 1 };
        LIMITS[..count].iter().filter_map(move |(own, limit, what)| {
            let share = mean(own)? / run.limit(of, limit)?;
            let kind = of.value("limit")?;
            Some((format!("{kind} {}, {what}", of.value(kind)?), share))
        })
    });
    shares.max_by(|one, other| one.1.total_cmp(&other.1))
}

fn heavy_times(run: &Run, bytes: u32) -> Block {
    let mut columns = Vec::new();
    for read_percent in MIXES {
        for (figure, name) in [(figure::MEAN_US, "mean"), (figure::P99_US, "p99")] {
            columns.push(column(
                format!("{read_percent} % reads, {name}"),
                move |labels| {
                    let labels = heavy(labels, read_percent, bytes);
                    layout::scaled(run, &labels, figure, MS, 2)
                },
                |_| Cell::Empty,
            ));
        }
    }
    let size = layout::size_name(bytes);
    let caption = format!("Latency with {HEAVY_DEPTH} outstanding I/Os of {size}, ms");
    table(run, HEAVY, &caption, &columns, &[], &[])
}

fn heavy_chart(run: &Run, bytes: u32) -> Block {
    let series = subjects(run, HEAVY).into_iter().map(|(name, labels)| -> BarSeries {
        let groups = MIXES.map(|read_percent| heavy(labels.clone(), read_percent, bytes));
        layout::bars(run, &name, groups.iter(), figure::MB_PER_S)
    });
    let size = layout::size_name(bytes);
    Block::Bars(Bars {
        caption: format!("Throughput with {HEAVY_DEPTH} outstanding I/Os of {size}"),
        unit: "MB/s".into(),
        groups: MIXES.map(|read_percent| format!("{read_percent} % reads")).into(),
        series: series.collect(),
        ..Bars::default()
    })
}

fn trace(run: &Run) -> Section {
    let ours = |figure, factor, decimals| {
        move |labels: Labels| {
            layout::scaled(run, &labels.with(PART, TRACE), figure, factor, decimals)
        }
    };
    let theirs = |statistic| published_in("database trace", "mixed", None, statistic, 1);
    let nothing = |_: &str| Cell::Empty;
    let columns = [
        column("throughput, MB/s", ours(figure::MB_PER_S, 1.0, 1), theirs("throughput")),
        column("response time, ms", ours(figure::MEAN_US, MS, 2), theirs("response time")),
        column("p99, ms", ours(figure::P99_US, MS, 2), nothing),
        column("requests a second", ours(figure::IOPS, 1.0, 0), nothing),
    ];
    let count = requests(run.scale);
    let threads = LU_DU_TRACE.threads;
    let caption = format!("A database's requests, {threads} outstanding");
    let text = format!(
        "The study's trace was not published. Ours has its published properties: {} requests, {} % \
         of them reads, between blocks {} and {}. All requests have 12K, the mean that follows from the \
         study's throughput, response time and threads. This run replayed \
         {count} requests, as fast as the target answered them. On a smaller unit, addresses beyond \
         the end continue at the start.",
        LU_DU_TRACE.requests, LU_DU_TRACE.read_percent, LU_DU_TRACE.first_lba, LU_DU_TRACE.last_lba
    );
    let blocks = vec![Block::Text(text), table(run, TRACE, &caption, &columns, &THEIRS, &[])];
    Section { heading: "A database's trace".into(), blocks }
}
