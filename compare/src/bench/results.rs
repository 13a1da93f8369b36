//! The measured figures, by point and target under test, one run per round.

use serde::{Deserialize, Serialize};

use super::large_pools::LargePool;
use super::points::Group;
use super::start_up::Changes;

/// The figures of one run, with the load generator's names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Figures {
    pub(super) iops: f64,
    pub(super) mb_per_s: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
    pub(super) target_cpu_us_per_io: Option<f64>,
    pub(super) client_cpu_us_per_io: Option<f64>,
    pub(super) target_rss_kib: Option<f64>,
}

/// One of the figures.
pub(super) type Figure = fn(&Figures) -> Option<f64>;

pub(super) const IOPS: Figure = |run| Some(run.iops);
pub(super) const P99: Figure = |run| Some(run.p99_us);
pub(super) const CPU: Figure = |run| run.target_cpu_us_per_io;

/// A target under test at a point.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    pub(super) group: Group,
    pub(super) point: String,
    pub(super) target_under_test: String,
    /// The runs in the order of the rounds; `None` for a failed run.
    pub(super) runs: Vec<Option<Figures>>,
}

impl Cell {
    pub(super) fn values(&self, figure: Figure) -> Vec<f64> {
        self.runs.iter().flatten().filter_map(figure).collect()
    }
}

/// All cells, in the order in which they were measured first.
#[derive(Debug, Default, Serialize)]
pub(super) struct Results {
    pub(super) cells: Vec<Cell>,
    /// Seconds from the start of the program to its readiness with ten thousand units.
    pub(super) start_up: Vec<f64>,
    /// The times that a server with a state needs for changes.
    pub(super) changes: Vec<Changes>,
    /// The rounds of a large pool.
    pub(super) large_pools: Vec<LargePool>,
}

impl Results {
    pub(super) fn note(
        &mut self,
        group: Group,
        point: &str,
        target_under_test: &str,
        run: Option<Figures>,
    ) {
        let is_meant = |cell: &&mut Cell| {
            cell.group == group
                && cell.point == point
                && cell.target_under_test == target_under_test
        };
        match self.cells.iter_mut().find(is_meant) {
            Some(cell) => cell.runs.push(run),
            None => {
                let (point, target_under_test) = (point.to_owned(), target_under_test.to_owned());
                self.cells.push(Cell { group, point, target_under_test, runs: vec![run] });
            }
        }
    }

    pub(super) fn cell(&self, group: Group, point: &str, target_under_test: &str) -> Option<&Cell> {
        let is_meant = |cell: &&Cell| {
            cell.group == group
                && cell.point == point
                && cell.target_under_test == target_under_test
        };
        self.cells.iter().find(is_meant)
    }
}

/// Returns the median of the rounds' ratios. Both cells of a round are measured shortly after one another, so a drift
/// of the machine affects both.
pub(super) fn ratio(over: &Cell, under: &Cell, figure: Figure) -> Option<f64> {
    let pairs = over.runs.iter().zip(&under.runs);
    let ratios: Vec<f64> = pairs
        .filter_map(|(over, under)| Some(figure(over.as_ref()?)? / figure(under.as_ref()?)?))
        .filter(|ratio| ratio.is_finite())
        .collect();
    (!ratios.is_empty()).then(|| median(&ratios))
}

/// Returns the median; NaN for no values.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Returns half the distance of the extremes, as a percentage of the median.
pub(super) fn spread_percent(values: &[f64]) -> f64 {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (high - low) / 2.0 / median(values) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread_percent(&[90.0, 100.0, 110.0]), 10.0);
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let mut results = Results::default();
        let run = |iops| Some(Figures { iops, ..Figures::default() });
        // The machine is half as fast from the second round on. In the third round one run fails.
        for (ours, theirs) in [(run(200.0), run(100.0)), (run(100.0), run(50.0)), (run(90.0), None)]
        {
            results.note(Group::Small, "p", "ours", ours);
            results.note(Group::Small, "p", "theirs", theirs);
        }
        let cell = |name| results.cell(Group::Small, "p", name).unwrap();
        assert_eq!(ratio(cell("ours"), cell("theirs"), IOPS), Some(2.0));
        assert_eq!(ratio(cell("ours"), cell("theirs"), CPU), None);
        assert!(results.cell(Group::Specs, "p", "ours").is_none());
    }
}
