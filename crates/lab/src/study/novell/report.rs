//! Novell's tables 1 to 7 next to the results of this run.

use super::super::layout;
use super::{
    Cell, LINE_SIZE, LINK_SIZE, MEDIUM, OPERATIONS, PLAIN, RANDOM, SEQUENTIAL, TARGET, block_cost,
    effects, initiators, kernel_files, line, line_cell, negotiation, profiles, sizes, stripes,
};
use crate::network::LinkProfile;
use crate::published::{self, NovellRow};
use crate::record::{Labels, Outcome, Run, Scale, figure};
use crate::report::{self, Axis, Block, LineSeries, Lines, Report, Section, Table};
use crate::statistics::Summary;

/// The media of this program with their names in the study.
const MEDIA: [(&str, &str); 2] = [("ram", "RAM drive"), ("disk", "hard drive")];
/// I/O sizes whose costs are shown. The cost of the small size is mostly overhead, that of the large size mostly
/// copying.
const COST_SIZES: [u32; 2] = [4 << 10, 64 << 10];
/// The figures of a cost with their decimal places.
const COSTS: [(&str, u8); 3] =
    [(figure::P50_US, 0), (figure::P99_US, 0), (figure::TARGET_CPU_US_PER_IO, 1)];
/// The name of the medium without iSCSI, which has no target process to measure.
pub(super) const DIRECT: &str = "direct";

pub(super) fn report(run: &Run) -> Report {
    let mut sections = vec![charts(run), sequential(run), random(run), shares(run)];
    sections.extend(stripes::section(run));
    sections.extend(layout::limits(run));
    sections.push(links(run));
    sections.push(costs(run));
    sections.extend(block_cost::section(run));
    sections.extend(effects::section(run));
    sections.extend(negotiation::section(run));
    sections.extend(initiators::section(run));
    sections.extend(kernel_files::section(run));
    sections.extend(negotiated(run));
    Report {
        title: "Block sizes, media and links: the limits of iSCSI".into(),
        summary: summary(run),
        sections,
    }
}

/// Returns the figures of a cell of the sweep, which uses the loopback interface.
fn cell(
    target: &str,
    medium: &str,
    operation: &str,
    access: &str,
    bytes: u32,
    run: &Run,
) -> Vec<f64> {
    run.figures(&labels(target, medium, operation, access, bytes), figure::MB_PER_S)
}

pub(super) fn labels(
    target: &str,
    medium: &str,
    operation: &str,
    access: &str,
    bytes: u32,
) -> Labels {
    let link = &LinkProfile::loopback().name;
    Cell { target, medium, operation, access, bytes, link }.labels()
}

/// Returns the media of this run.
pub(super) fn media(run: &Run) -> impl Iterator<Item = (&'static str, &'static str)> {
    let present = |medium: &str| {
        let wanted = Labels::new().with(MEDIUM, medium);
        run.samples
            .iter()
            .any(|sample| sample.labels.value(TARGET).is_some() && sample.labels.include(&wanted))
    };
    MEDIA.into_iter().filter(move |(ours, _)| present(ours))
}

fn summary(run: &Run) -> Vec<String> {
    let targets = run.values(TARGET);
    let mut sentences = vec![format!(
        "Reads and writes of 4K to 4M with one outstanding I/O, on {}: {}.",
        media(run).map(|(ours, _)| ours).collect::<Vec<_>>().join(" and on "),
        targets.join(", ")
    )];
    for (ours, theirs) in media(run) {
        for operation in OPERATIONS {
            let means = targets.iter().filter_map(|target| {
                let values = cell(target, ours, operation, SEQUENTIAL, LINK_SIZE, run);
                Some(format!("{target} {:.0}", Summary::of(&values)?.mean))
            });
            let means: Vec<_> = means.collect();
            let table = if operation == "read" { "Table 1" } else { "Table 2" };
            let published = published::novell_mb_per_s(table, LINK_SIZE, theirs);
            if let (false, Some(published)) = (means.is_empty(), published) {
                sentences.push(format!(
                    "Sequential {operation}s of 64K on {ours}, MB/s: {}; the study's SLES target \
                     over gigabit Ethernet: {published}.",
                    means.join(", ")
                ));
            }
        }
    }
    sentences.push(
        "The published figures come from gigabit Ethernet and disks of their time: compare their \
         growth with the size and their limits, not their values."
            .into(),
    );
    sentences
}

/// A column of published figures: a set-up of a table, over a path.
type Column<'a> = (String, Vec<&'a NovellRow>);

/// Returns the published columns with the wanted rows, in the order of the tables.
fn published_columns(wanted: impl Fn(&NovellRow) -> bool) -> Vec<Column<'static>> {
    let mut columns: Vec<Column<'static>> = Vec::new();
    let numbered = |row: &&NovellRow| row.table.starts_with("Table");
    for row in published::novell().iter().filter(numbered).filter(|row| wanted(row)) {
        let path = if row.path == "direct" { "no iSCSI" } else { "iSCSI" };
        let name = match row.operation.as_str() {
            "access" => format!("Novell, {}: {}, {}", row.table, row.setup, row.access),
            _ => format!("Novell, {}: {}, {path}", row.table, row.setup),
        };
        match columns.iter_mut().find(|(known, _)| *known == name) {
            Some((_, rows)) => rows.push(row),
            None => columns.push((name, vec![row])),
        }
    }
    columns
}

/// Whether a row has figures besides its size; a quick run may have omitted them.
fn says_anything(row: &[report::Cell]) -> bool {
    row[1..].iter().any(|cell| *cell != report::Cell::Empty)
}

fn published_cell(rows: &[&NovellRow], bytes: u32) -> report::Cell {
    let row = rows.iter().find(|row| row.block_bytes == bytes);
    layout::published(row.map(|row| row.mb_per_s), 1)
}

/// Returns the section in the layout of tables 1 to 6: a row for each size. Several set-ups of one measurement of the
/// study are adjacent columns.
fn sequential(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(
        "There is one table for each operation and medium, with the study's figures for comparison. \
         The columns name the study's targets, initiators and adapters. An empty cell of this run \
         is a size that the quick scale omits; an empty cell of the study is a size that it does \
         not print. The study's reads of table 1 were those of a file of 4 MB on ext3 that had just \
         been written: page cache and read-ahead took part. Its other I/Os were raw, one after the \
         other, as all are here."
            .into(),
    )];
    for operation in OPERATIONS {
        for (ours, theirs) in MEDIA {
            let columns = published_columns(|row| {
                row.operation == operation && row.access == SEQUENTIAL && row.medium == theirs
            });
            let caption = format!("Sequential {operation}s on {ours}, MB/s");
            blocks.push(sweep_table(run, caption, [ours, operation, SEQUENTIAL], &columns));
        }
    }
    Section { heading: "Sequential I/O by size (tables 1 to 6)".into(), blocks }
}

/// Returns the section in the layout of table 7, and the same over iSCSI.
fn random(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(
        "The study's table 7 shows its hard drive without iSCSI and does not state whether it read \
         or wrote; both tables include it. The study has no random I/O over iSCSI."
            .into(),
    )];
    for operation in OPERATIONS {
        for (ours, theirs) in MEDIA {
            let columns =
                published_columns(|row| row.operation == "access" && row.medium == theirs);
            let caption = format!("Random {operation}s on {ours}, MB/s");
            blocks.push(sweep_table(run, caption, [ours, operation, RANDOM], &columns));
        }
    }
    Section { heading: "Random I/O by size (table 7)".into(), blocks }
}

fn sweep_table(
    run: &Run,
    caption: String,
    [medium, operation, access]: [&str; 3],
    published: &[Column<'_>],
) -> Block {
    let targets =
        if media(run).any(|(ours, _)| ours == medium) { run.values(TARGET) } else { Vec::new() };
    let mut columns = vec!["Size".to_owned()];
    columns.extend(targets.iter().map(|target| (*target).to_owned()));
    columns.extend(published.iter().map(|(name, _)| name.clone()));
    let rows = sizes(operation, access, Scale::Full).map(|bytes| {
        let mut row = vec![layout::text(layout::size_name(bytes))];
        for target in &targets {
            let labels = labels(target, medium, operation, access, bytes);
            row.push(layout::cell(run, &labels, figure::MB_PER_S, 1));
        }
        row.extend(published.iter().map(|(_, rows)| published_cell(rows, bytes)));
        row
    });
    let rows = rows.filter(|row| says_anything(row)).collect();
    Block::Table(Table { caption, columns, rows, ..Table::default() })
}

/// Returns the section with the percentage of the medium's throughput that is available over iSCSI.
fn shares(run: &Run) -> Section {
    let mut blocks = vec![Block::Text(
        "With one outstanding I/O, the time of an I/O is the sum of the times of the medium and of the \
         path. The faster the medium, the smaller the share of its speed over iSCSI: a RAM disk \
         shows the cost of the path, a slow disk hides it."
            .into(),
    )];
    let targets: Vec<_> =
        run.values(TARGET).into_iter().filter(|target| *target != DIRECT).collect();
    for operation in OPERATIONS {
        let mut columns = vec!["Size".to_owned()];
        for (ours, theirs) in MEDIA {
            columns.extend(targets.iter().map(|target| format!("{target}, {ours}")));
            if operation == "read" {
                columns.push(format!("Novell, {theirs} (table 3 of table 4)"));
            }
        }
        let rows = sizes(operation, SEQUENTIAL, Scale::Full).map(|bytes| {
            let mut row = vec![layout::text(layout::size_name(bytes))];
            for (ours, theirs) in MEDIA {
                let of = |target| labels(target, ours, operation, SEQUENTIAL, bytes);
                let mean = |target| {
                    let values = run.figures(&of(target), figure::MB_PER_S);
                    Summary::of(&values).map(|summary| summary.mean)
                };
                row.extend(targets.iter().map(|&target| match mean(target) {
                    Some(iscsi) => share(mean(DIRECT).map(|direct| (iscsi, direct))),
                    None => layout::absent(run, &of(target)),
                }));
                if operation == "read" {
                    let figure = |table| published::novell_mb_per_s(table, bytes, theirs);
                    row.push(share(figure("Table 3").zip(figure("Table 4"))));
                }
            }
            row
        });
        blocks.push(Block::Table(Table {
            caption: format!(
                "Sequential {operation}s over iSCSI, in percent of the medium without iSCSI"
            ),
            columns,
            rows: rows.filter(|row| says_anything(row)).collect(),
            notes: vec![
                "Ratios of means; the study's ratios are calculated from its figures and not \
                 printed in it."
                    .into(),
            ],
            ..Table::default()
        }));
    }
    Section { heading: "Share of the medium's speed over iSCSI".into(), blocks }
}

pub(super) fn share(both: Option<(f64, f64)>) -> report::Cell {
    match both {
        Some((part, whole)) if whole > 0.0 => {
            report::Cell::Percent { value: 100.0 * part / whole, decimals: 1 }
        }
        _ => report::Cell::Empty,
    }
}

fn charts(run: &Run) -> Section {
    let mut blocks = Vec::new();
    for access in [SEQUENTIAL, RANDOM] {
        for operation in OPERATIONS {
            for (ours, theirs) in media(run) {
                let all = || sizes(operation, access, Scale::Full);
                let mut series: Vec<_> = run
                    .values(TARGET)
                    .into_iter()
                    .map(|target| {
                        let points = all().map(|bytes| {
                            let labels = labels(target, ours, operation, access, bytes);
                            (f64::from(bytes) / 1024.0, labels)
                        });
                        layout::sweep(run, target, points, figure::MB_PER_S)
                    })
                    .filter(|line| !line.points.is_empty())
                    .collect();
                let published = published_columns(|row| {
                    let same = row.operation == operation || row.operation == "access";
                    same && row.access == access && row.medium == theirs
                });
                series.extend(published.iter().map(|(name, rows)| {
                    LineSeries {
                        name: name.clone(),
                        published: true,
                        points: rows
                            .iter()
                            .map(|row| (f64::from(row.block_bytes) / 1024.0, row.mb_per_s))
                            .collect(),
                        ..LineSeries::default()
                    }
                }));
                blocks.push(Block::Lines(Lines {
                    caption: format!("{access} {operation}s on {ours}"),
                    x: Axis { label: "size of an I/O, KiB".into(), logarithmic: true },
                    // The range from a disk of that time to memory spans three powers of ten.
                    y: Axis { label: "MB/s".into(), logarithmic: true },
                    series,
                    ..Lines::default()
                }));
            }
        }
    }
    Section { heading: "Figures".into(), blocks }
}

/// Returns the maximum throughput of a link with one open I/O: each I/O starts after the response to the previous one.
pub(super) fn at_most(profile: &LinkProfile) -> Option<f64> {
    let on_the_line =
        profile.rate_mbit.map_or(0.0, |mbit| f64::from(LINK_SIZE) * 8.0 / (mbit * 1e6));
    let seconds = 2.0 * profile.delay.as_secs_f64() + on_the_line;
    (seconds > 0.0).then(|| f64::from(LINK_SIZE) / 1e6 / seconds)
}

fn links(run: &Run) -> Section {
    let of_links = Labels::new().with(super::LINK, PLAIN);
    let target = run.cells(&of_links).find_map(|sample| sample.labels.value(TARGET));
    let medium = run.cells(&of_links).find_map(|sample| sample.labels.value(MEDIUM));
    let mut blocks = vec![Block::Text(
        "The study changed cables and adapters. A bad cable or adapter acts like a link that is \
         slow or loses packets, and a distant target acts like a link with a delay. A switch is a bridge of the kernel."
            .into(),
    )];
    if let Some((target, medium)) = target.zip(medium) {
        blocks.push(links_table(run, target, medium));
        blocks.push(line_table(run, target, medium));
    } else {
        blocks.push(Block::Text("This run created no links.".into()));
    }
    let rows = published::novell().iter().filter(|row| !row.table.starts_with("Table 7"));
    let rows = rows.filter(|row| {
        !row.table.starts_with("Table")
            || row.setup.contains("adapter") && row.block_bytes == LINK_SIZE
    });
    let rows = rows.map(|row| {
        let mut cells: Vec<_> = [&row.table, &row.setup, &row.operation, &row.medium]
            .map(|words| layout::text(words.as_str()))
            .to_vec();
        cells.push(layout::published(Some(row.mb_per_s), 1));
        cells
    });
    blocks.push(Block::Table(Table {
        caption: "Novell: switch, cables and another adapter, sequential I/Os of 64K".into(),
        columns: ["Where", "Set-up", "Operation", "Medium", "MB/s"].map(Into::into).to_vec(),
        rows: rows.collect(),
        notes: vec![
            "The crossover cable of the study had 10 MB/s and its switch 71 MB/s: no other factor \
             had such a large effect."
                .into(),
        ],
        ..Table::default()
    }));
    Section { heading: "Links: switch, cables and adapters".into(), blocks }
}

fn links_table(run: &Run, target: &str, medium: &str) -> Block {
    let mut columns = vec!["Link".to_owned(), "Maximum, MB/s".into()];
    for operation in OPERATIONS {
        columns.push(format!("{operation}, MB/s"));
        columns.push(format!("{operation}, % of the maximum"));
        columns.push(format!("{operation}, of plain"));
        columns.push(format!("{operation}, p99 ms"));
    }
    let profiles = profiles();
    let rows = profiles.iter().map(|profile| {
        let mut row = vec![layout::text(&profile.name), layout::number(at_most(profile), 1)];
        for operation in OPERATIONS {
            let of = |link: &str| {
                let access = SEQUENTIAL;
                Cell { target, medium, operation, access, bytes: LINK_SIZE, link }.labels()
            };
            let labels = of(&profile.name);
            row.push(layout::cell(run, &labels, figure::MB_PER_S, 1));
            let mean = Summary::of(&run.figures(&labels, figure::MB_PER_S)).map(|s| s.mean);
            let of_maximum = mean.zip(at_most(profile)).map(|(mean, most)| 100.0 * mean / most);
            row.push(layout::number(of_maximum, 0));
            row.push(match profile.name.as_str() {
                PLAIN => report::Cell::Empty,
                _ => layout::change(
                    &run.figures(&of(PLAIN), figure::MB_PER_S),
                    &run.figures(&labels, figure::MB_PER_S),
                ),
            });
            row.push(layout::median(run, &labels, figure::P99_US, 1e-3, 2));
        }
        row
    });
    Block::Table(Table {
        caption: format!("{target}, {medium}: sequential I/Os of 64K, one outstanding"),
        columns,
        rows: rows.collect(),
        notes: vec![
            "A maximum: an I/O of 64K takes at least the round trip and its transmission time. More \
             than one outstanding I/O hides the round trip, not the transmission time."
                .into(),
            "The study's switch cost 3 % of its throughput (71 instead of 73.5 MB/s)."
                .into(),
            "Every link has an MTU of 1500. Delay and loss apply to each direction. The p99 is the \
             median of the runs."
                .into(),
        ],
        ..Table::default()
    })
}

/// Returns the table of large writes, which the study found to fill nearly its whole line.
fn line_table(run: &Run, target: &str, medium: &str) -> Block {
    let row = |name: String, mb_per_s: report::Cell, mean: Option<f64>, line: f64| {
        let of_line = mean.map(|mean| (mean, line));
        vec![layout::text(name), mb_per_s, layout::number(Some(line), 0), share(of_line)]
    };
    let link = line();
    let rate = link.rate_mbit.unwrap_or_default() / 8.0;
    let cell = line_cell(target, medium, &link.name).labels();
    let mean = Summary::of(&run.figures(&cell, figure::MB_PER_S)).map(|summary| summary.mean);
    let ours = layout::cell(run, &cell, figure::MB_PER_S, 1);
    let (_, their_medium) = MEDIA.into_iter().find(|(ours, _)| *ours == medium).unwrap_or(MEDIA[0]);
    let theirs = published::novell_mb_per_s("Table 2", LINE_SIZE, their_medium);
    Block::Table(Table {
        caption: format!("Sequential writes of {}, one outstanding", layout::size_name(LINE_SIZE)),
        columns: ["Target", "MB/s", "Line, MB/s", "Share of the line, %"].map(Into::into).to_vec(),
        rows: vec![
            row(format!("{target}, {}", link.name), ours, mean, rate),
            row(
                format!("Novell, Table 2, {their_medium}"),
                layout::published(theirs, 1),
                theirs,
                120.0,
            ),
        ],
        ..Table::default()
    })
}

fn costs(run: &Run) -> Section {
    let targets = run.values(TARGET);
    let mut columns = vec!["I/O".to_owned()];
    for target in &targets {
        columns.push(format!("{target}, p50 µs"));
        columns.push(format!("{target}, p99 µs"));
        if *target != DIRECT {
            columns.push(format!("{target}, CPU µs/IO"));
        }
    }
    let mut rows = Vec::new();
    for (medium, _) in media(run) {
        for operation in OPERATIONS {
            for access in [SEQUENTIAL, RANDOM] {
                for bytes in COST_SIZES {
                    let size = layout::size_name(bytes);
                    let mut row =
                        vec![layout::text(format!("{access} {operation}, {size}, {medium}"))];
                    for target in &targets {
                        let labels = labels(target, medium, operation, access, bytes);
                        for (figure, decimals) in COSTS {
                            if figure == figure::TARGET_CPU_US_PER_IO && *target == DIRECT {
                                continue;
                            }
                            row.push(layout::median(run, &labels, figure, 1.0, decimals));
                        }
                    }
                    rows.push(row);
                }
            }
        }
    }
    let table = Table {
        caption: "Latency, and the target's CPU time for each I/O; medians of the runs".into(),
        columns,
        rows,
        ..Table::default()
    };
    Section { heading: "Latency and CPU time of an I/O".into(), blocks: vec![Block::Table(table)] }
}

/// Returns the section with the negotiated parameters of each target: the sizes of PDUs and bursts determine the number
/// of round trips of a large I/O.
fn negotiated(run: &Run) -> Option<Section> {
    let texts = |target: &str| {
        let wanted = Labels::new().with(TARGET, target);
        let mut found: Vec<(String, String)> = Vec::new();
        for sample in run.cells(&wanted) {
            let Outcome::Measured(measures) = &sample.outcome else { continue };
            for pair in &measures.texts {
                let pair = (pair.0.clone(), pair.1.clone());
                if !found.contains(&pair) {
                    found.push(pair);
                }
            }
        }
        found
    };
    let targets: Vec<_> = run
        .values(TARGET)
        .into_iter()
        .map(|target| (target, texts(target)))
        .filter(|(_, texts)| !texts.is_empty())
        .collect();
    let mut keys: Vec<&String> =
        targets.iter().flat_map(|(_, texts)| texts).map(|t| &t.0).collect();
    keys.sort();
    keys.dedup();
    let mut columns = vec!["Key".to_owned()];
    columns.extend(targets.iter().map(|(target, _)| (*target).to_owned()));
    let rows = keys.iter().map(|key| {
        let mut row = vec![layout::text(key.as_str())];
        row.extend(targets.iter().map(|(_, texts)| {
            let values = texts.iter().filter(|text| text.0 == **key).map(|text| text.1.as_str());
            layout::text(values.collect::<Vec<_>>().join(" or "))
        }));
        row
    });
    let table = Table {
        caption: "Values of the text keys on the initiator, after the login".into(),
        columns,
        rows: rows.collect(),
        ..Table::default()
    };
    (!keys.is_empty())
        .then(|| Section { heading: "Negotiated values".into(), blocks: vec![Block::Table(table)] })
}
