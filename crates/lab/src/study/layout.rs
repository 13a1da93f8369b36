//! Functions that the reports of several studies share: cells, comparisons, sections.

use crate::record::{Bucket, Labels, Measures, Outcome, Run, Sample, figure};
use crate::report::{Axis, BarSeries, Block, Cell, LineSeries, Lines, Section, Table};
use crate::statistics::{Difference, Summary};

/// Returns the mean of a figure over its repetitions with its interval, or the reason for its absence.
pub(super) fn cell(run: &Run, labels: &Labels, figure: &str, decimals: u8) -> Cell {
    let values = run.figures(labels, figure);
    match Summary::of(&values) {
        Some(Summary { mean, half_width, .. }) => Cell::Interval { mean, half_width, decimals },
        None => absent(run, labels),
    }
}

/// Returns the cell of [`cell`] in another unit. One unit of the figure is `factor` of the other unit.
pub(super) fn scaled(run: &Run, labels: &Labels, figure: &str, factor: f64, decimals: u8) -> Cell {
    match cell(run, labels, figure, decimals) {
        Cell::Interval { mean, half_width, decimals } => {
            let half_width = half_width.map(|half_width| half_width * factor);
            Cell::Interval { mean: mean * factor, half_width, decimals }
        }
        absent => absent,
    }
}

/// Returns one statistic of the repetitions, such as their maximum, in another unit.
pub(super) fn picked(
    run: &Run,
    labels: &Labels,
    figure: &str,
    pick: fn(&Summary) -> f64,
    factor: f64,
    decimals: u8,
) -> Cell {
    match Summary::of(&run.figures(labels, figure)) {
        Some(summary) => Cell::Number { value: pick(&summary) * factor, decimals },
        None => absent(run, labels),
    }
}

/// Returns the median of the repetitions in another unit.
pub(super) fn median(run: &Run, labels: &Labels, figure: &str, factor: f64, decimals: u8) -> Cell {
    picked(run, labels, figure, |summary| summary.median, factor, decimals)
}

/// Returns the reason for which a cell has no figure.
pub(super) fn absent(run: &Run, labels: &Labels) -> Cell {
    let mut reasons = run.cells(labels).filter_map(|sample| match &sample.outcome {
        Outcome::Measured(_) => None,
        Outcome::Failed(reason) => Some(Cell::Failed(reason.clone())),
        Outcome::NotMeasured(reason) => Some(Cell::NotMeasured(reason.clone())),
    });
    reasons.next().unwrap_or(Cell::Empty)
}

/// Returns the relative difference of `after` from `before`. A difference within the noise is marked as noise.
pub(super) fn change(before: &[f64], after: &[f64]) -> Cell {
    let Some(difference) = Difference::between(before, after) else { return Cell::Empty };
    let percent = 100.0 * difference.relative;
    match difference.p_value {
        Some(_) if !difference.is_real() => text(format!("noise ({})", signed(percent))),
        Some(_) => Cell::Change { percent, decimals: 1 },
        None => text(format!("{} (one value)", signed(percent))),
    }
}

/// Returns the relative difference of two figures that others published.
pub(super) fn published_change(before: f64, after: f64) -> Cell {
    if before == 0.0 {
        return Cell::Empty;
    }
    text(signed(100.0 * (after - before) / before))
}

/// Formats a percentage with its sign.
fn signed(percent: f64) -> String {
    format!("{percent:+.1} %").replace('-', "\u{2212}")
}

/// Returns the cell of a number, or an empty cell.
pub(super) fn number(value: Option<f64>, decimals: u8) -> Cell {
    value.map_or(Cell::Empty, |value| Cell::Number { value, decimals })
}

/// Returns the cell of a published number, or an empty cell.
pub(super) fn published(value: Option<f64>, decimals: u8) -> Cell {
    value.map_or(Cell::Empty, |value| Cell::Published { value, decimals })
}

/// Returns a cell with text.
pub(super) fn text(words: impl Into<String>) -> Cell {
    Cell::Text(words.into())
}

/// Returns the bars of one target under test: a figure for the labels of each group.
pub(super) fn bars<'a>(
    run: &Run,
    name: &str,
    groups: impl Iterator<Item = &'a Labels>,
    figure: &str,
) -> BarSeries {
    let summaries: Vec<_> = groups.map(|group| Summary::of(&run.figures(group, figure))).collect();
    BarSeries {
        name: name.into(),
        published: false,
        values: summaries.iter().map(|summary| summary.map(|summary| summary.mean)).collect(),
        half_widths: summaries.iter().map(|summary| summary.and_then(|s| s.half_width)).collect(),
    }
}

/// Returns the section with the limits of the network and the media, which the runner measured without a target.
pub(super) fn limits(run: &Run) -> Option<Section> {
    let mut table = Table {
        caption: "Limits of the network and the media, without any target".into(),
        columns: ["Limit", "Figure", "Value", "Unit"].map(Into::into).to_vec(),
        ..Table::default()
    };
    let is_first = |sample: &&Sample| {
        sample.labels.value("limit").is_some()
            && run.cells(&sample.labels).next().is_some_and(|first| std::ptr::eq(first, *sample))
    };
    for sample in run.samples.iter().filter(is_first) {
        let kind = sample.labels.value("limit").unwrap_or_default();
        let of = format!("{kind} {}", sample.labels.value(kind).unwrap_or_default());
        let row = |what: &str, value, unit: &str| vec![text(&of), text(what), value, text(unit)];
        match &sample.outcome {
            Outcome::Measured(Measures { figures, texts, .. }) => {
                for name in figures.keys() {
                    let (what, unit) = figure::split_unit(name);
                    let best = run.limit(&sample.labels, name);
                    table.rows.push(row(&what, number(best, 1), unit));
                }
                table
                    .notes
                    .extend(texts.iter().map(|(name, words)| format!("{of}: {name}: {words}")));
            }
            Outcome::Failed(reason) => table.rows.push(row("", Cell::Failed(reason.clone()), "")),
            Outcome::NotMeasured(reason) => {
                table.rows.push(row("", Cell::NotMeasured(reason.clone()), ""));
            }
        }
    }
    table.notes.push(
        "Limits are the best of several measurements, before each repetition of the cells and after the last. That of a link is the \
         highest rate of a plain TCP stream over one, two or four connections."
            .into(),
    );
    (!table.rows.is_empty())
        .then(|| Section { heading: "Limits".into(), blocks: vec![Block::Table(table)] })
}

/// Returns the chart of the latency distribution: for each series, the percentage of I/Os with a longer latency.
pub(super) fn latency_lines(run: &Run, caption: &str, series: &[(&str, Labels)]) -> Block {
    let line = |(name, labels): &(&str, Labels)| LineSeries {
        name: (*name).into(),
        points: exceeding(run, labels),
        ..LineSeries::default()
    };
    Block::Lines(Lines {
        caption: caption.into(),
        x: Axis { label: "latency, µs".into(), logarithmic: true },
        y: Axis { label: "I/Os that took longer, %".into(), logarithmic: true },
        series: series.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
        ..Lines::default()
    })
}

/// Returns the histogram of the latencies of all repetitions. Several repetitions can have a bucket with the same upper end.
pub(super) fn latencies(run: &Run, labels: &Labels) -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = Vec::new();
    for sample in run.cells(labels) {
        if let Outcome::Measured(measures) = &sample.outcome {
            buckets.extend_from_slice(&measures.latencies);
        }
    }
    buckets.sort_by(|a, b| a.upper_us.total_cmp(&b.upper_us));
    buckets
}

fn exceeding(run: &Run, labels: &Labels) -> Vec<(f64, f64)> {
    let buckets = latencies(run, labels);
    // Archived counts can have any value: their sum may exceed 64 bits.
    let total: u128 = buckets.iter().map(|bucket| u128::from(bucket.count)).sum();
    let mut left = total;
    let mut points: Vec<(f64, f64)> = Vec::new();
    for Bucket { upper_us, count } in buckets {
        left -= u128::from(count);
        // The last bucket with an upper end determines the point.
        points.pop_if(|(before, _)| *before == upper_us);
        // No I/O is above the last bucket, and a logarithmic axis has no zero.
        if left > 0 {
            points.push((upper_us, 100.0 * left as f64 / total as f64));
        }
    }
    points
}

/// Returns the chart of I/Os per second over the time of the last repetition of each series.
pub(super) fn time_lines(run: &Run, caption: &str, series: &[(&str, Labels)]) -> Block {
    let line = |(name, labels): &(&str, Labels)| {
        let measured = run.cells(labels).filter_map(|sample| match &sample.outcome {
            Outcome::Measured(measures) => measures.series.as_ref(),
            Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
        });
        let points = measured.last().map_or_else(Vec::new, |series| {
            let time = |index: usize| (index as f64 + 0.5) * series.interval_s;
            series.values.iter().enumerate().map(|(index, &value)| (time(index), value)).collect()
        });
        LineSeries { name: (*name).into(), points, ..LineSeries::default() }
    };
    Block::Lines(Lines {
        caption: caption.into(),
        x: Axis { label: "time, s".into(), logarithmic: false },
        y: Axis { label: "IOPS".into(), logarithmic: false },
        series: series.iter().map(line).filter(|line| !line.points.is_empty()).collect(),
        ..Lines::default()
    })
}

/// Formats a size in the notation of the studies: `512`, `4K`, `4M`.
pub(super) fn size_name(bytes: u32) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

/// Returns the line of a figure over a varied parameter, such as the size of an I/O, with a point for each measured
/// value.
pub(super) fn sweep(
    run: &Run,
    name: &str,
    values: impl Iterator<Item = (f64, Labels)>,
    figure: &str,
) -> LineSeries {
    let mut line = LineSeries { name: name.into(), ..LineSeries::default() };
    for (value, labels) in values {
        if let Some(summary) = Summary::of(&run.figures(&labels, figure)) {
            line.points.push((value, summary.mean));
            line.half_widths.push(summary.half_width);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Scale;

    fn run(repetitions: &[&[(f64, u64)]]) -> Run {
        let mut run = crate::study::record("study", Scale::Quick, String::new());
        for (buckets, repetition) in repetitions.iter().zip(1..) {
            let bucket = |&(upper_us, count): &(f64, u64)| Bucket { upper_us, count };
            let latencies = buckets.iter().map(bucket).collect();
            let outcome = Outcome::Measured(Measures { latencies, ..Measures::default() });
            run.samples.push(Sample { labels: Labels::new(), repetition, ended_at: 0, outcome });
        }
        run
    }

    #[test]
    fn latencies_of_all_repetitions_are_one_distribution() {
        let run = run(&[&[(1.0, 2), (2.0, 1)], &[(1.0, 3), (2.0, 0), (4.0, 4)]]);
        assert_eq!(exceeding(&run, &Labels::new()), [(1.0, 50.0), (2.0, 40.0)]);
    }

    #[test]
    fn counts_beyond_all_sums_are_no_panic() {
        let run = run(&[&[(1.0, u64::MAX), (2.0, u64::MAX)]]);
        assert_eq!(exceeding(&run, &Labels::new()), [(1.0, 50.0)]);
    }
}
