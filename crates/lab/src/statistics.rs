//! Statistics of repeated measurements.
//!
//! Repetitions count as independent samples of a figure with an approximately normal distribution: intervals are
//! Student's, differences Welch's. Three repetitions give wide intervals, which is correct.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The confidence level of intervals and of differences.
pub const CONFIDENCE: f64 = 0.95;

/// The statistics of a figure over its repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Repetitions.
    pub count: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// The median: the middle value, or the mean of the two middle ones.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// Sample standard deviation (n - 1); absent for a single value.
    pub deviation: Option<f64>,
    /// Half the width of the mean's confidence interval; absent for a single value.
    pub half_width: Option<f64>,
}

impl Summary {
    /// Returns the estimate of these values; `None` if there are none, if one is not a number, or if their sum
    /// overflows.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count as f64;
        if !mean.is_finite() {
            return None;
        }
        let middle = count / 2;
        let median = match count % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        let deviation = variance(values, mean).map(f64::sqrt);
        let half_width = deviation.map(|deviation| {
            let degrees = (count - 1) as f64;
            quantile(degrees) * deviation / (count as f64).sqrt()
        });
        Some(Self {
            count,
            mean,
            median,
            min: sorted[0],
            max: sorted[count - 1],
            deviation,
            half_width,
        })
    }
}

/// The difference of two means.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// The relative difference: (second - first) / first; 0.1 is ten percent.
    pub relative: f64,
    /// Half the width of its confidence interval, in the same unit; absent if either side has one value only.
    pub half_width: Option<f64>,
    /// The p-value: the probability of a difference at least as large if both means are equal; absent in the same case.
    pub p_value: Option<f64>,
}

impl Difference {
    /// Returns the change from `before` to `after` by Welch's test; `None` if one of them is empty or the first mean is
    /// 0.
    pub fn between(before: &[f64], after: &[f64]) -> Option<Self> {
        let (first, second) = (Summary::of(before)?, Summary::of(after)?);
        if first.mean == 0.0 {
            return None;
        }
        let relative = (second.mean - first.mean) / first.mean.abs();
        let parts = variance(before, first.mean).zip(variance(after, second.mean));
        let Some((of_first, of_second)) = parts else {
            return Some(Self { relative, half_width: None, p_value: None });
        };
        let (n, m) = (first.count as f64, second.count as f64);
        let (a, b) = (of_first / n, of_second / m);
        let error = (a + b).sqrt();
        if !error.is_finite() {
            return None;
        }
        if error == 0.0 {
            let p_value = if relative == 0.0 { 1.0 } else { 0.0 };
            return Some(Self { relative, half_width: Some(0.0), p_value: Some(p_value) });
        }
        // Degrees of freedom of Welch and Satterthwaite, from shares: squares of variances can overflow.
        let (a, b) = (a / (a + b), b / (a + b));
        let degrees = 1.0 / (a * a / (n - 1.0) + b * b / (m - 1.0));
        let statistic = (second.mean - first.mean).abs() / error;
        Some(Self {
            relative,
            half_width: Some(quantile(degrees) * error / first.mean.abs()),
            p_value: Some(2.0 * (1.0 - student(degrees).cdf(statistic))),
        })
    }

    /// Returns whether a single difference is significant. For several at once see [`discoveries`].
    pub fn is_real(&self) -> bool {
        self.p_value.is_some_and(|p_value| p_value < 1.0 - CONFIDENCE)
    }
}

/// A line through points: the one with the smallest squares of relative deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Its value at zero.
    pub at_zero: f64,
    /// Its slope.
    pub slope: f64,
    /// The greatest relative deviation of a point.
    pub deviation: f64,
}

impl Line {
    /// Returns the line through points with positive values; `None` if there are fewer than three of them, or if they are
    /// not numbers.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        if points.len() < 3 || points.iter().any(|&(_, y)| y <= 0.0) {
            return None;
        }
        let sum = |of: fn(f64, f64) -> f64| -> f64 {
            points.iter().map(|&(x, y)| of(x, y) / (y * y)).sum()
        };
        let (weight, x, y) = (sum(|_, _| 1.0), sum(|x, _| x), sum(|_, y| y));
        let (xx, xy) = (sum(|x, _| x * x), sum(|x, y| x * y));
        let slope = (weight * xy - x * y) / (weight * xx - x * x);
        let at_zero = (y - slope * x) / weight;
        let off = |&(x, y): &(f64, f64)| ((at_zero + slope * x) / y - 1.0).abs();
        let deviation = points.iter().map(off).fold(0.0, f64::max);
        let found = [at_zero, slope, deviation].iter().all(|value| value.is_finite());
        found.then_some(Self { at_zero, slope, deviation })
    }
}

/// Returns which of several p-values are significant, with an expected false discovery rate of at most one in twenty
/// (Benjamini and Hochberg 1995).
pub fn discoveries(p_values: &[f64]) -> Vec<bool> {
    let mut sorted = p_values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let share = (1.0 - CONFIDENCE) / p_values.len().max(1) as f64;
    let limit = (1..).zip(&sorted).filter(|&(rank, &p)| p <= f64::from(rank) * share).last();
    let limit = limit.map_or(f64::NEG_INFINITY, |(_, &p): (u32, _)| p);
    p_values.iter().map(|&p| p <= limit).collect()
}

fn variance(values: &[f64], mean: f64) -> Option<f64> {
    let count = values.len();
    (count > 1).then(|| {
        values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1) as f64
    })
}

fn student(degrees: f64) -> StudentsT {
    match StudentsT::new(0.0, 1.0, degrees) {
        Ok(distribution) => distribution,
        Err(error) => unreachable!("at least one degree of freedom: {error}"),
    }
}

/// Returns the factor of the standard error for half an interval.
fn quantile(degrees: f64) -> f64 {
    student(degrees).inverse_cdf(f64::midpoint(1.0, CONFIDENCE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-3 * b.abs().max(1e-9)
    }

    #[test]
    fn intervals_are_students() {
        let summary = Summary::of(&[44730.55, 45297.46, 45845.78]).unwrap();
        assert!(near(summary.mean, 45291.26) && summary.median == 45297.46);
        // The deviation of a sample: the square root of 311,001.7.
        assert!(near(summary.deviation.unwrap(), 557.64), "{summary:?}");
        // t for two degrees of freedom is 4.3027.
        assert!(near(summary.half_width.unwrap(), 4.3027 * 557.64 / 3f64.sqrt()));
        let single = Summary::of(&[7.0]).unwrap();
        assert_eq!((single.mean, single.deviation, single.half_width), (7.0, None, None));
        assert_eq!(Summary::of(&[1.0, 2.0, 3.0, 10.0]).unwrap().median, 2.5);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }

    #[test]
    fn noise_differs_from_real_difference() {
        let quiet = Difference::between(&[100.0, 101.0, 99.0], &[120.0, 121.0, 119.0]).unwrap();
        assert!(near(quiet.relative, 0.2) && quiet.is_real(), "{quiet:?}");
        let noisy = Difference::between(&[100.0, 140.0, 60.0], &[120.0, 80.0, 160.0]).unwrap();
        assert!(near(noisy.relative, 0.2) && !noisy.is_real(), "{noisy:?}");
        assert!(noisy.half_width.unwrap() > 0.2);
        let single = Difference::between(&[100.0], &[120.0]).unwrap();
        assert!(!single.is_real() && single.p_value.is_none());
        assert_eq!(Difference::between(&[0.0, 0.0], &[1.0, 1.0]), None);
        assert!(Difference::between(&[1.0, 1.0], &[2.0, 2.0]).unwrap().is_real());
        assert!(!Difference::between(&[1.0, 1.0], &[1.0, 1.0]).unwrap().is_real());
    }

    #[test]
    fn a_line_counts_relative_deviations() {
        let exact = [4.0, 64.0, 4096.0].map(|x| (x, 150.0 + 8.0 * x));
        let line = Line::through(&exact).unwrap();
        assert!(near(line.at_zero, 150.0) && near(line.slope, 8.0), "{line:?}");
        assert!(line.deviation < 1e-9);
        // An error of a tenth of the greatest value hardly moves the fixed part.
        let mut points = exact;
        points[2].1 *= 1.1;
        let line = Line::through(&points).unwrap();
        assert!((line.at_zero - 150.0).abs() < 5.0 && line.deviation < 0.1, "{line:?}");
        assert_eq!(Line::through(&exact[..2]), None);
        assert_eq!(Line::through(&[(1.0, 1.0); 3]), None);
        assert_eq!(Line::through(&[(1.0, 0.0), (2.0, 1.0), (3.0, 2.0)]), None);
        assert_eq!(Line::through(&[(1.0, f64::MAX), (2.0, 5e-324), (3.0, f64::NAN)]), None);
    }

    #[test]
    fn extreme_values_cause_no_panic() {
        for [a, b] in [[1e-90, 1.1e-90], [1e200, 2e200], [f64::MAX, -f64::MAX], [5e-324, 0.0]] {
            for other in [[1.0, 2.0], [b, a], [f64::MAX, f64::MAX]] {
                let difference = Difference::between(&[a, b], &other);
                let p_value = difference.and_then(|difference| difference.p_value);
                assert!(p_value.is_none_or(|p| (0.0..=1.0).contains(&p)), "{a} {b} {other:?}");
            }
        }
        let tiny = Difference::between(&[1e-90, 1.001e-90], &[2e-90, 2.001e-90]).unwrap();
        assert!(tiny.is_real(), "{tiny:?}");
        assert_eq!(Summary::of(&[f64::MAX, f64::MAX]), None);
    }

    #[test]
    fn of_many_p_values_only_the_small_ones_are_discoveries() {
        // The example of Benjamini and Hochberg's paper: four of fifteen are significant.
        let example = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        assert_eq!(discoveries(&example).iter().filter(|found| **found).count(), 4);
        assert!(discoveries(&[]).is_empty());
        assert_eq!(discoveries(&[0.9, 0.2]), [false, false]);
    }
}
