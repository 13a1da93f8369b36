//! The results as Markdown: a table for each group, then the requirements.

use std::fmt::Write as _;

use super::large_pools::{BOUND, LargePool};
use super::points::Group;
use super::results::{CPU, Cell, IOPS, Results, median, ratio, spread_percent};
use super::start_up::Changes;
use super::verdicts::Verdict;

const HEAD: &str = "\
| point | target | IOPS | MB/s | p50 µs | p99 µs | p99.9 µs | CPU µs/IO | client µs/IO | RSS MiB | IOPS × | CPU × |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
";

/// Returns the tables. Each point has a row for each target under test, with the factors by which the first target has
/// more IOPS and more CPU time.
pub(super) fn tables(results: &Results) -> String {
    let mut text = String::new();
    let mut group: Option<Group> = None;
    let mut first: Option<&Cell> = None;
    // Cells were noted round by round; the first round has all of them in order.
    for cell in &results.cells {
        if group != Some(cell.group) {
            group = Some(cell.group);
            let _ = write!(text, "\n### {}\n\n{HEAD}", cell.group.title());
        }
        if first.is_none_or(|first| first.group != cell.group || first.point != cell.point) {
            first = Some(cell);
        }
        let ours = first.filter(|first| !std::ptr::eq(*first, cell));
        text += &row(cell, ours);
    }
    if !results.start_up.is_empty() {
        let seconds = median(&results.start_up);
        let spread = spread_percent(&results.start_up);
        let title = Group::StartUp.title();
        let _ = write!(
            text,
            "\n### {title}\n\nReady after {seconds:.3} s ±{spread:.0} % with 10,000 units.\n"
        );
    }
    if !results.changes.is_empty() {
        let of = |seconds: fn(&Changes) -> f64| {
            median(&results.changes.iter().map(seconds).collect::<Vec<_>>())
        };
        let _ = write!(
            text,
            "\nOf a server with a state: 10,000 volumes and targets applied in {:.2} s, one more in {:.3} s, \
             a restart after kill -9 in {:.2} s.\n",
            of(|one| one.apply),
            of(|one| one.one_more),
            of(|one| one.restart),
        );
    }
    text += &large_pools(&results.large_pools);
    text
}

/// Returns a sentence for each round of a large pool.
fn large_pools(rounds: &[LargePool]) -> String {
    let mut text = String::new();
    if !rounds.is_empty() {
        let _ = write!(text, "\n### {}\n\n", Group::LargePools.title());
    }
    for round in rounds {
        let longest = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
        let LargePool { snapshots, clones, writes, map_mib, bounded_mib, opening } = round;
        let _ = writeln!(
            text,
            "A snapshot takes {:.1} ms (at most {:.1}), a clone {:.1} ms (at most {:.1}), with {:.0} writes a second, \
             whose p99 is {:.2} ms and whose p99.9 is {:.2} ms. The map of 1 TiB takes {map_mib:.0} MiB, \
             {bounded_mib:.0} MiB with memory = {BOUND}MiB. A start after kill -9 takes {opening:.2} s.",
            median(snapshots),
            longest(snapshots),
            median(clones),
            longest(clones),
            writes.iops,
            writes.p99_us / 1e3,
            writes.p999_us / 1e3,
        );
    }
    text
}

fn row(cell: &Cell, ours: Option<&Cell>) -> String {
    let iops = cell.values(IOPS);
    let Cell { point, target_under_test, .. } = cell;
    if iops.is_empty() {
        return format!("| {point} | {target_under_test} | failed | | | | | | | | | |\n");
    }
    let of = |figure| median(&cell.values(figure));
    let columns = [
        format!("{:.0} ±{:.0} %", median(&iops), spread_percent(&iops)),
        number(of(|run| Some(run.mb_per_s)), 0),
        number(of(|run| Some(run.p50_us)), 0),
        number(of(|run| Some(run.p99_us)), 0),
        number(of(|run| Some(run.p999_us)), 0),
        number(of(CPU), 2),
        number(of(|run| run.client_cpu_us_per_io), 2),
        number(of(|run| run.target_rss_kib) / 1024.0, 0),
        number(ours.and_then(|ours| ratio(ours, cell, IOPS)).unwrap_or(f64::NAN), 2),
        number(ours.and_then(|ours| ratio(ours, cell, CPU)).unwrap_or(f64::NAN), 2),
    ];
    format!("| {point} | {target_under_test} | {} |\n", columns.join(" | "))
}

/// Formats a number. NaN, which stands for a missing value, is an empty text.
fn number(value: f64, decimals: usize) -> String {
    if value.is_nan() { String::new() } else { format!("{value:.decimals$}") }
}

/// Returns the table of requirements: each with its bound, the measured value, and whether it is met.
pub(super) fn verdicts(verdicts: &[Verdict]) -> String {
    let mut text = String::from(
        "\n### What is to be shown\n\n| what | wanted | measured | met |\n| --- | --- | --- | --- |\n",
    );
    for verdict in verdicts {
        let measured = match (&verdict.measured, &verdict.place) {
            (None, _) => "not measured".to_owned(),
            (Some(measured), None) => format!("{measured:.3}"),
            (Some(measured), Some(place)) => format!("{measured:.2} ({place})"),
        };
        let met = match verdict.is_met() {
            None => "",
            Some(true) => "yes",
            Some(false) => "**no**",
        };
        let _ = writeln!(text, "| {} | {} | {measured} | {met} |", verdict.what, verdict.bound);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::results::Figures;
    use super::*;

    fn figures(iops: f64, cpu_us_per_io: f64) -> Figures {
        Figures {
            iops,
            mb_per_s: 1.0,
            target_cpu_us_per_io: Some(cpu_us_per_io),
            target_rss_kib: Some(2048.0),
            ..Figures::default()
        }
    }

    #[test]
    fn ratios_are_ours_to_theirs() {
        let mut results = Results::default();
        for (ours, theirs) in [(300.0, 60.0), (100.0, 25.0), (200.0, 50.0)] {
            results.note(Group::Small, "P", "sarsen", Some(figures(ours, 2.0)));
            results.note(Group::Small, "P", "tgt", Some(figures(theirs, 20.0)));
        }
        results.note(Group::Small, "P", "istgt", None);
        let text = tables(&results);
        let rows: Vec<_> = text.lines().filter(|line| line.starts_with("| P")).collect();
        assert_eq!(rows[0], "| P | sarsen | 200 ±50 % | 1 | 0 | 0 | 0 | 2.00 |  | 2 |  |  |");
        assert_eq!(rows[1], "| P | tgt | 50 ±35 % | 1 | 0 | 0 | 0 | 20.00 |  | 2 | 4.00 | 0.10 |");
        assert_eq!(rows[2], "| P | istgt | failed | | | | | | | | | |");
    }
}
