//! The report: the study's table and histograms for each set-up, the published table next to it, and a comparison of
//! the means of the set-ups.

use std::collections::BTreeSet;

use crate::bonnie::{OPERATIONS, Operation, Unit};
use crate::published::{self, LundenRow};
use crate::record::{Labels, Outcome, Run, Sample, Scale, figure};
use crate::report::{BarSeries, Bars, Block, Cell, Report, Section, Table};
use crate::statistics::Summary;

use super::setups::{CLIENT, SETUPS};
use super::{OPERATION, SETUP, TOO_QUICK, TOO_QUICK_REASON, figures, rate_figure};
use super::{findings, other_tool, roles};

/// Minimum number of runs for a histogram.
const HISTOGRAM_RUNS: usize = 8;
/// Maximum number of shown lines that are not runs.
const OTHERS_SHOWN: usize = 20;
/// The published set-up next to a set-up whose name does not occur in the study.
const USUAL_PUBLISHED: &str = "iscsi base";

/// A bonnie++ column, which is a row of the study's tables.
#[derive(Clone, Copy)]
struct Column {
    operation: &'static Operation,
    kind: ColumnKind,
}

#[derive(Clone, Copy, PartialEq)]
enum ColumnKind {
    Rate,
    Cpu,
    Latency,
}

impl Column {
    /// Returns its name in bonnie++.
    fn name(self) -> String {
        let suffix = match self.kind {
            ColumnKind::Rate => "",
            ColumnKind::Cpu => "_cpu",
            ColumnKind::Latency => "_latency",
        };
        format!("{}{suffix}", self.operation.name)
    }

    fn unit(self) -> String {
        match self.kind {
            ColumnKind::Rate => self.operation.unit.to_string(),
            ColumnKind::Cpu => "% CPU".into(),
            ColumnKind::Latency => "µs".into(),
        }
    }

    fn figure(self) -> &'static str {
        match self.kind {
            ColumnKind::Rate => rate_figure(self.operation.unit),
            ColumnKind::Cpu => figures::CPU_PERCENT,
            ColumnKind::Latency => figure::MAX_US,
        }
    }

    fn values(self, run: &Run, setup: &str) -> Vec<f64> {
        run.figures(&cell(setup, self.operation), self.figure())
    }

    /// Returns the number of runs in which bonnie++ did not report it.
    fn too_quick(self, run: &Run, setup: &str) -> usize {
        let is_too_quick = |sample: &&Sample| match &sample.outcome {
            Outcome::Measured(measures) => {
                measures.texts.contains_key(TOO_QUICK)
                    && !measures.figures.contains_key(self.figure())
            }
            Outcome::NotMeasured(reason) => reason == TOO_QUICK_REASON,
            Outcome::Failed(_) => false,
        };
        match self.kind {
            ColumnKind::Rate | ColumnKind::Cpu => {
                run.cells(&cell(setup, self.operation)).filter(is_too_quick).count()
            }
            ColumnKind::Latency => 0,
        }
    }
}

fn columns() -> impl Iterator<Item = Column> {
    let of_runs = OPERATIONS.iter().flat_map(|operation| {
        [ColumnKind::Rate, ColumnKind::Cpu].map(|kind| Column { operation, kind })
    });
    of_runs
        .chain(OPERATIONS.iter().map(|operation| Column { operation, kind: ColumnKind::Latency }))
}

fn cell(setup: &str, operation: &Operation) -> Labels {
    Labels::new().with(SETUP, setup).with(OPERATION, operation.name)
}

/// Returns the whole report.
pub(super) fn report(run: &Run) -> Report {
    let setups = setups(run);
    let mut sections = Vec::new();
    if !setups.is_empty() {
        sections.push(comparison(run, &setups));
    }
    sections.extend(findings::section(run));
    sections.extend(setups.iter().map(|setup| section(run, setup)));
    sections.extend(roles::section(run));
    sections.extend(other_tool::section(run));
    sections.extend(others(run));
    Report { title: "File systems by bonnie++".into(), summary: summary(run, &setups), sections }
}

/// Returns the set-ups that have runs.
fn setups(run: &Run) -> Vec<&str> {
    let with_runs = |setup: &&str| {
        let labels = Labels::new().with(SETUP, *setup);
        run.cells(&labels).any(|sample| sample.labels.value(OPERATION).is_some())
    };
    run.values(SETUP).into_iter().filter(with_runs).collect()
}

fn runs(run: &Run, setup: &str) -> u32 {
    // Its options can leave out operations.
    let counts = OPERATIONS.iter().map(|operation| run.cells(&cell(setup, operation)).count());
    counts.max().unwrap_or_default().try_into().unwrap_or(u32::MAX)
}

fn summary(run: &Run, setups: &[&str]) -> Vec<String> {
    let counts: Vec<_> =
        setups.iter().map(|setup| format!("{setup} ({})", runs(run, setup))).collect();
    let mut summary = vec![
        if counts.is_empty() {
            "No set-up has runs of bonnie++.".to_owned()
        } else {
            format!("Set-ups, with the number of bonnie++'s runs: {}.", counts.join(", "))
        },
        format!("The figures of {} are shown for comparison.", published::LUNDEN),
        "Variances divide by n, as in the study. Operations that bonnie++ reports as +++++ (less \
         than half a second) count as not measured here, and as 0 in the study."
            .into(),
    ];
    if is_in_guests(run) {
        summary.push(
            "The lab has created the set-ups in virtual machines with emulated processors: compare \
             them with each other only."
                .into(),
        );
        if run.scale == Scale::Quick {
            let others = SETUPS.iter().filter(|setup| setup.only_full).map(|setup| setup.name);
            summary.push(format!(
                "Only --full measures these set-ups: {}; the roles of DRBD; and, in all set-ups, single bytes, small files, and more than one run.",
                others.collect::<Vec<_>>().join(", ")
            ));
        }
    }
    let versions = texts(run, None, "bonnie++");
    let has_bytes = setups.iter().any(|setup| mean_of(run, setup, "putc").is_some());
    if has_bytes && versions.iter().any(|version| !version.starts_with("before")) {
        summary.push(
            "Since 1.9x bonnie++ measures putc and getc by a system call for each byte, no longer \
             by the C library: these rates are far below those of the study's time."
                .into(),
        );
    }
    summary
}

/// Whether the lab created the set-ups.
fn is_in_guests(run: &Run) -> bool {
    run.setting.plan.contains_key("guests")
}

/// Returns the distinct values of a text of the samples, of one set-up or of all.
fn texts<'a>(run: &'a Run, setup: Option<&str>, name: &str) -> Vec<&'a str> {
    let wanted = setup.map_or_else(Labels::new, |setup| Labels::new().with(SETUP, setup));
    let mut found = Vec::new();
    for sample in run.samples.iter().filter(|sample| sample.labels.include(&wanted)) {
        let Outcome::Measured(measures) = &sample.outcome else { continue };
        if let Some(text) = measures.texts.get(name)
            && !found.contains(&text.as_str())
        {
            found.push(text);
        }
    }
    found
}

/// Returns the published set-up that is shown next to this one: the set-up with the same name, in the notation of file
/// names.
fn published_beside(setup: &str) -> &'static str {
    let plain = setup.replace(['-', '_'], " ").to_ascii_lowercase();
    let of_its_name = published::lunden_setups().into_iter().find(|known| *known == plain);
    of_its_name.unwrap_or(USUAL_PUBLISHED)
}

/// Maximum number of set-ups that are columns of a table; more of them are rows.
const SETUP_COLUMNS: usize = 3;

/// Returns the section that compares set-ups.
fn comparison(run: &Run, setups: &[&str]) -> Section {
    let mut blocks = Vec::new();
    if setups.len() <= SETUP_COLUMNS {
        blocks.push(means_by_column(run, setups));
    } else {
        let caption = "Means, with 95 % confidence intervals";
        blocks.push(by_setup(run, setups, caption, mean, |row| row.mean));
        let range = |values: &[f64]| match Summary::of(values) {
            Some(summary) if summary.count > 1 => number(summary.max - summary.min),
            _ => Cell::Empty,
        };
        let caption = "Ranges: the difference of the highest and the lowest run";
        blocks.push(by_setup(run, setups, caption, range, |row| row.range));
        blocks.extend(totals(run, setups));
    }
    let beside = all_published_beside(setups);
    let units = [Unit::KibPerSecond, Unit::SeeksPerSecond, Unit::FilesPerSecond];
    let charts = units.into_iter().filter_map(|unit| means_chart(run, setups, &beside, unit));
    blocks.extend(charts.map(Block::Bars));
    Section { heading: "Comparison of the set-ups".into(), blocks }
}

fn all_published_beside(setups: &[&str]) -> Vec<&'static str> {
    let mut beside: Vec<_> = setups.iter().map(|setup| published_beside(setup)).collect();
    beside.sort_unstable();
    beside.dedup();
    beside
}

/// Returns the columns of rates that the run has for any set-up.
fn rates(run: &Run, setups: &[&str]) -> Vec<Column> {
    let is_measured = |column: &Column| {
        let is_known = |setup: &&str| run.cells(&cell(setup, column.operation)).next().is_some();
        column.kind == ColumnKind::Rate && setups.iter().any(is_known)
    };
    columns().filter(is_measured).collect()
}

/// Returns a table of a statistic with a row for each set-up, and a row for the published one of the same name.
fn by_setup(
    run: &Run,
    setups: &[&str],
    caption: &str,
    statistic: impl Fn(&[f64]) -> Cell,
    published: impl Fn(&LundenRow) -> f64,
) -> Block {
    let rates = rates(run, setups);
    let mut table = Table { caption: caption.into(), ..Table::default() };
    table.columns.push("Set-up".into());
    table
        .columns
        .extend(rates.iter().map(|column| format!("{}, {}", column.name(), column.unit())));
    for setup in setups {
        let mut row = vec![Cell::Text((*setup).into())];
        row.extend(rates.iter().map(|&column| match statistic(&column.values(run, setup)) {
            Cell::Empty => too_quick_cell(run, setup, column),
            cell => cell,
        }));
        table.rows.push(row);
        if published_beside(setup) == *setup {
            let mut row = vec![Cell::Text(format!("{setup} (Lunden)"))];
            row.extend(rates.iter().map(|&column| {
                let row = published::lunden_row(setup, &column.name());
                row.map_or(Cell::Empty, |row| published_cell(published(row)))
            }));
            table.rows.push(row);
        }
    }
    Block::Table(table)
}

/// Returns the table of the sums over the clients that work at once, which the study does not have.
fn totals(run: &Run, setups: &[&str]) -> Option<Block> {
    let rates = rates(run, setups);
    let mut table = Table {
        caption: "Totals of the clients that work at once: means of the runs".into(),
        ..Table::default()
    };
    table.columns.push("Set-up".into());
    table
        .columns
        .extend(rates.iter().map(|column| format!("{}, {}", column.name(), column.unit())));
    for setup in setups {
        let of_setup =
            run.samples.iter().filter(|sample| sample.labels.value(SETUP) == Some(setup));
        let clients = of_setup.filter_map(|sample| sample.labels.value(CLIENT));
        let clients: BTreeSet<_> = clients.collect();
        if clients.is_empty() {
            continue;
        }
        let mut row = vec![Cell::Text((*setup).into())];
        row.extend(rates.iter().map(|&column| {
            let means = clients.iter().map(|client| {
                let labels = cell(setup, column.operation).with(CLIENT, client);
                Summary::of(&run.figures(&labels, column.figure())).map(|summary| summary.mean)
            });
            means.sum::<Option<f64>>().map_or(Cell::Empty, |total| Cell::Number {
                value: total,
                decimals: decimals(total).min(1),
            })
        }));
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then_some(Block::Table(table))
}

/// Returns the table of the means with a column for each set-up.
fn means_by_column(run: &Run, setups: &[&str]) -> Block {
    let beside = all_published_beside(setups);
    let mut table = Table {
        caption: "Means, with 95 % confidence intervals".into(),
        columns: vec!["Figure".into(), "Unit".into()],
        ..Table::default()
    };
    table.columns.extend(setups.iter().map(|setup| (*setup).to_owned()));
    table.columns.extend(beside.iter().map(|setup| format!("{setup} (Lunden)")));
    for column in columns() {
        let mut row = vec![Cell::Text(column.name()), Cell::Text(column.unit())];
        row.extend(setups.iter().map(|setup| mean_cell(run, setup, column)));
        if row[2..].iter().all(|cell| *cell == Cell::Empty) {
            continue;
        }
        row.extend(beside.iter().map(|setup| {
            let row = published::lunden_row(setup, &column.name());
            row.map_or(Cell::Empty, |row| published_cell(row.mean))
        }));
        table.rows.push(row);
    }
    Block::Table(table)
}

fn mean_cell(run: &Run, setup: &str, column: Column) -> Cell {
    match mean(&column.values(run, setup)) {
        Cell::Empty => too_quick_cell(run, setup, column),
        cell => cell,
    }
}

/// Returns the mean of a column of bonnie++.
pub(super) fn mean_of(run: &Run, setup: &str, column: &str) -> Option<f64> {
    let column = columns().find(|known| known.name() == column)?;
    Summary::of(&column.values(run, setup)).map(|summary| summary.mean)
}

/// Returns the mean with its interval, or an empty cell.
fn mean(values: &[f64]) -> Cell {
    match Summary::of(values) {
        Some(Summary { mean, half_width, .. }) => {
            Cell::Interval { mean, half_width, decimals: decimals(mean).min(1) }
        }
        None => Cell::Empty,
    }
}

/// Returns the cell of a column without any figure.
fn too_quick_cell(run: &Run, setup: &str, column: Column) -> Cell {
    match column.too_quick(run, setup) {
        0 => Cell::Empty,
        _ => Cell::NotMeasured(TOO_QUICK_REASON.into()),
    }
}

fn means_chart(run: &Run, setups: &[&str], beside: &[&str], unit: Unit) -> Option<Bars> {
    let measured =
        |column: &Column| setups.iter().any(|setup| !column.values(run, setup).is_empty());
    let columns: Vec<_> = columns()
        .filter(|column| column.kind == ColumnKind::Rate && column.operation.unit == unit)
        .filter(measured)
        .collect();
    let ours = setups.iter().map(|setup| {
        let summaries: Vec<_> =
            columns.iter().map(|column| Summary::of(&column.values(run, setup))).collect();
        BarSeries {
            name: (*setup).into(),
            published: false,
            values: summaries.iter().map(|of| of.map(|of| of.mean)).collect(),
            half_widths: summaries.iter().map(|of| of.and_then(|of| of.half_width)).collect(),
        }
    });
    let theirs = beside.iter().map(|setup| {
        let rows = columns.iter().map(|column| published::lunden_row(setup, &column.name()));
        BarSeries {
            name: format!("{setup} (Lunden)"),
            published: true,
            values: rows.map(|row| row.map(|row| row.mean)).collect(),
            half_widths: vec![None; columns.len()],
        }
    });
    let chart = Bars {
        caption: format!("Means, {unit}"),
        unit: unit.to_string(),
        groups: columns.iter().map(|column| column.name()).collect(),
        series: ours.chain(theirs).collect(),
        notes: Vec::new(),
    };
    (!chart.groups.is_empty()).then_some(chart)
}

/// Returns the section of a set-up: its table, the published table and its histograms.
fn section(run: &Run, setup: &str) -> Section {
    let about = SETUPS.iter().find(|known| known.name == setup && is_in_guests(run));
    let about = about.map(|known| Block::Text(format!("In guests: {}.", known.about)));
    let mut blocks: Vec<_> = about.into_iter().collect();
    blocks.extend([Block::Text(conditions(run, setup)), Block::Table(own_table(run, setup))]);
    blocks.push(Block::Table(published_table(published_beside(setup))));
    let histograms: Vec<_> = columns()
        .filter(|column| column.kind != ColumnKind::Latency)
        .filter_map(|column| histogram(column, &column.values(run, setup)))
        .collect();
    blocks.extend(histograms.into_iter().map(Block::Bars));
    Section { heading: setup.into(), blocks }
}

/// Describes the conditions of the runs, with a warning if they differ.
fn conditions(run: &Run, setup: &str) -> String {
    let said = |name: &str| texts(run, Some(setup), name);
    let (versions, sizes, files) = (said("bonnie++"), said("size"), said("files"));
    let mut text = format!(
        "{} runs of bonnie++ {}; file: {}; small files, in units of 1024: {}.",
        runs(run, setup),
        list_or_none(&versions),
        list_or_none(&sizes),
        list_or_none(&files)
    );
    if [&versions, &sizes, &files].iter().any(|values| values.len() > 1) {
        text += " The runs differ in these: do not combine their figures.";
    }
    text
}

fn list_or_none(values: &[&str]) -> String {
    if values.is_empty() { "none".to_owned() } else { values.join(", ") }
}

const STATISTICS: [&str; 9] =
    ["Figure", "Unit", "Mean", "Median", "|Mean - median|", "Variance", "Min", "Max", "Range"];

fn own_table(run: &Run, setup: &str) -> Table {
    let mut table = Table { caption: format!("{setup}, as measured"), ..Table::default() };
    table.columns = STATISTICS.iter().map(|&name| name.to_owned()).collect();
    table.columns.extend(["Runs".into(), "Too quick".into()]);
    for column in columns() {
        let values = column.values(run, setup);
        let too_quick = column.too_quick(run, setup);
        let mut row = vec![Cell::Text(column.name()), Cell::Text(column.unit())];
        match Summary::of(&values) {
            Some(summary) => row.extend(statistics(&summary)),
            None if too_quick == 0 => continue,
            None => {
                row.push(too_quick_cell(run, setup, column));
                row.resize(STATISTICS.len(), Cell::Empty);
            }
        }
        row.push(number(values.len() as f64));
        row.push(if too_quick == 0 { Cell::Empty } else { number(too_quick as f64) });
        table.rows.push(row);
    }
    table
}

/// Returns the mean, median, gap, variance, minimum, maximum and range.
fn statistics(summary: &Summary) -> [Cell; 7] {
    let Summary { count, mean, median, min, max, deviation, .. } = *summary;
    // A single run has no variance. For equal runs it is 0, where the study prints nan.
    let variance = deviation.map(|deviation| {
        let n = count as f64;
        deviation.powi(2) * (n - 1.0) / n
    });
    [
        number(mean),
        number(median),
        number((mean - median).abs()),
        variance.map_or(Cell::Empty, number),
        number(min),
        number(max),
        number(max - min),
    ]
}

fn published_table(setup: &str) -> Table {
    let rows = published::lunden().iter().filter(|row| row.setup == setup);
    Table {
        caption: format!("{setup}, as published by Lunden (2009)"),
        columns: STATISTICS.iter().map(|&name| name.to_owned()).collect(),
        rows: rows.map(published_row).collect(),
        notes: vec![format!(
            "Of {} runs; +++++ counts as 0; the variance of equal figures is printed as nan.",
            published::LUNDEN_RUNS
        )],
        heat: false,
    }
}

/// Returns a published row in the order of [`STATISTICS`].
fn published_row(row: &LundenRow) -> Vec<Cell> {
    let unit = columns().find(|column| column.name() == row.column()).map(Column::unit);
    vec![
        Cell::Text(row.operation.clone()),
        unit.map_or(Cell::Empty, Cell::Text),
        published_cell(row.mean),
        published_cell(row.median),
        published_cell(row.mean_median_gap),
        row.variance.map_or_else(|| Cell::Text("nan".into()), published_cell),
        published_cell(row.min),
        published_cell(row.max),
        published_cell(row.range),
    ]
}

/// Returns as many decimal places as the study prints: none for whole numbers, one for numbers that bonnie++ prints
/// with one.
fn decimals(value: f64) -> u8 {
    let is_whole = |value: f64| (value - value.round()).abs() < 1e-9;
    match (is_whole(value), is_whole(value * 10.0)) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 3,
    }
}

fn number(value: f64) -> Cell {
    Cell::Number { value, decimals: decimals(value) }
}

fn published_cell(value: f64) -> Cell {
    Cell::Published { value, decimals: decimals(value) }
}

/// Returns the histogram of the runs; `None` if the runs are few or all equal.
fn histogram(column: Column, values: &[f64]) -> Option<Bars> {
    let Summary { count, min, max, .. } = Summary::of(values)?;
    // The range of archived values may exceed the largest `f64`.
    if count < HISTOGRAM_RUNS || max <= min || !(max - min).is_finite() {
        return None;
    }
    // Sturges' rule.
    let wanted = (count as f64).log2().ceil() + 1.0;
    let whole = values.iter().all(|value| value.fract() == 0.0);
    // For whole numbers, the width of a bin is a whole number: otherwise some bins would contain more numbers than
    // others.
    let (width, bins) = if whole {
        let width = ((max - min + 1.0) / wanted).ceil();
        (width, ((max - min + 1.0) / width).ceil())
    } else {
        ((max - min) / wanted, wanted)
    };
    let bins = bins as usize;
    let mut counts = vec![0_u32; bins];
    for value in values {
        counts[(((value - min) / width) as usize).min(bins - 1)] += 1;
    }
    let label = |bin: usize| {
        let from = min + bin as f64 * width;
        match (whole, width > 1.0) {
            (true, false) => format!("{from}"),
            (true, true) => format!("{from} to {}", (from + width - 1.0).min(max)),
            (false, _) => format!("{from:.1} to {:.1}", from + width),
        }
    };
    Some(Bars {
        caption: format!("{}, {}: number of runs for each range", column.name(), column.unit()),
        unit: "runs".into(),
        groups: (0..bins).map(label).collect(),
        series: vec![BarSeries {
            name: column.name(),
            published: false,
            values: counts.into_iter().map(|count| Some(f64::from(count))).collect(),
            half_widths: vec![None; bins],
        }],
        notes: Vec::new(),
    })
}

/// Returns the section with the lines that are not runs.
fn others(run: &Run) -> Option<Section> {
    let is_setup =
        |labels: &Labels| labels.value(SETUP).is_some() && labels.value(OPERATION).is_none();
    let others = run.samples.iter().filter(|sample| is_setup(&sample.labels));
    let reasons: Vec<_> = others
        .filter_map(|sample| match &sample.outcome {
            Outcome::Failed(reason) => Some(format!("{reason} (damaged)")),
            Outcome::NotMeasured(reason) => Some(reason.clone()),
            Outcome::Measured(_) => None,
        })
        .collect();
    if reasons.is_empty() {
        return None;
    }
    let mut shown: Vec<_> = reasons.iter().take(OTHERS_SHOWN).cloned().collect();
    if reasons.len() > OTHERS_SHOWN {
        shown.push(format!("and {} more", reasons.len() - OTHERS_SHOWN));
    }
    let text =
        format!("{} lines were skipped; the figures above do not include them.", reasons.len());
    Some(Section {
        heading: "Lines that are not runs".into(),
        blocks: vec![Block::Text(text), Block::List(shown)],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUTC: Column = Column { operation: &OPERATIONS[0], kind: ColumnKind::Rate };

    fn counts(bars: &Bars) -> Vec<u32> {
        bars.series[0].values.iter().map(|value| value.unwrap() as u32).collect()
    }

    #[test]
    fn histograms_count_every_run_once() {
        let values: Vec<f64> = (0..100).map(|run| 40_000.5 + f64::from(run * run)).collect();
        let bars = histogram(PUTC, &values).unwrap();
        assert_eq!(counts(&bars).iter().sum::<u32>(), 100);
        assert_eq!((bars.groups.len(), counts(&bars)[0]), (8, 36));
        // The maximum belongs to the last bin, not to a further one.
        assert!(counts(&bars)[7] > 0);
    }

    #[test]
    fn whole_numbers_get_whole_bins() {
        let values: Vec<f64> = (0..20).map(|run| f64::from(95 + run % 3)).collect();
        let bars = histogram(PUTC, &values).unwrap();
        assert_eq!(bars.groups, ["95", "96", "97"]);
        assert_eq!(counts(&bars), [7, 7, 6]);
        let values: Vec<f64> = (0..16).map(|run| f64::from(run * 2)).collect();
        let bars = histogram(PUTC, &values).unwrap();
        assert_eq!(bars.groups[..2], ["0 to 6", "7 to 13"]);
        assert_eq!(bars.groups.last().unwrap(), "28 to 30");
        assert_eq!(counts(&bars), [4, 3, 4, 3, 2]);
    }

    #[test]
    fn equal_or_few_figures_make_no_histogram() {
        assert_eq!(histogram(PUTC, &[7.0; 50]), None);
        assert_eq!(histogram(PUTC, &[1.0, 2.0, 3.0]), None);
        assert_eq!(histogram(PUTC, &[]), None);
    }

    #[test]
    fn set_ups_meet_the_studys_by_name() {
        assert_eq!(published_beside("nfs-3-vms"), "nfs 3 vms");
        assert_eq!(published_beside("DRBD_base"), "drbd base");
        assert_eq!(published_beside("/mnt/lun"), "iscsi base");
    }

    /// The study's statistics of a column with two distinct values, from which the values follow: of 99 runs, 35 used
    /// one percent of a CPU for seeks and 64 used none.
    #[test]
    fn the_studys_own_row_comes_out_again() {
        let mut values = vec![0.0; 64];
        values.extend([1.0; 35]);
        let row = published::lunden_row("keeper base", "seeks_cpu").unwrap();
        let cells = statistics(&Summary::of(&values).unwrap());
        let numbers = cells.map(|cell| match cell {
            Cell::Number { value, .. } => (value * 1000.0).round() / 1000.0,
            other => panic!("{other:?}"),
        });
        let published = [
            row.mean,
            row.median,
            row.mean_median_gap,
            row.variance.unwrap(),
            row.min,
            row.max,
            row.range,
        ];
        assert_eq!(numbers, published);
    }

    #[test]
    fn every_published_row_has_its_column() {
        for row in published::lunden() {
            assert!(columns().any(|column| column.name() == row.column()), "{row:?}");
        }
    }

    #[test]
    fn figures_too_far_apart_for_a_bin_make_no_histogram() {
        let column = columns().next().unwrap();
        let mut values = [1.0; HISTOGRAM_RUNS];
        assert!(histogram(column, &values).is_none(), "all the same");
        values[0] = 2.0;
        assert!(histogram(column, &values).is_some());
        (values[0], values[1]) = (f64::MAX, -f64::MAX);
        assert!(histogram(column, &values).is_none());
    }
}
