//! The positions of values on an axis, and its labelled values.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};

use crate::report::numbers;

/// Maximum absolute value that is drawn: beyond it, charts are unreadable, and sums must remain finite.
const LARGEST: f64 = 1e15;
/// Minimum value that is drawn on a logarithmic axis.
const SMALLEST: f64 = 1e-9;

/// Whether a value is within the range of an axis.
pub(super) fn has_place(value: f64, logarithmic: bool) -> bool {
    let least = if logarithmic { SMALLEST } else { -LARGEST };
    (least..=LARGEST).contains(&value)
}

/// The scale of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scale {
    logarithmic: bool,
    /// The ends: values, or their logarithms.
    low: f64,
    high: f64,
    /// The labelled values.
    pub(super) ticks: Vec<f64>,
    decimals: u8,
}

impl Scale {
    /// Creates a vertical scale. It begins at zero or at the lowest negative value, and ends at a round number.
    pub(super) fn heights(values: &[f64], logarithmic: bool) -> Option<Self> {
        let (low, high) = ends(values)?;
        if logarithmic {
            return Some(Self::decades(low, high, true));
        }
        let (low, high) = (low.min(0.0), high.max(0.0));
        let (low, high) = if low < high { (low, high) } else { (0.0, 1.0) };
        let step = round_step((high - low) / 5.0);
        Some(Self::linear((low / step).floor() * step, (high / step).ceil() * step, step))
    }

    /// Creates a horizontal scale. It ends at the outermost values and labels the values themselves if they are few.
    pub(super) fn places(values: &[f64], logarithmic: bool) -> Option<Self> {
        const FEW: usize = 12;
        let (low, high) = ends(values)?;
        let mut distinct = values.to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        let mut scale = if logarithmic {
            Self::decades(low, high, false)
        } else if low < high {
            Self::linear(low, high, round_step((high - low) / 8.0))
        } else {
            Self::linear(low - 0.5, high + 0.5, 0.5)
        };
        if distinct.len() <= FEW {
            let decimals = (0..6).find(|decimals| {
                let factor = 10_f64.powi(i32::from(*decimals));
                distinct.iter().all(|value| (value * factor).fract().abs() < 1e-6)
            });
            scale.decimals = decimals.unwrap_or(scale.decimals);
            scale.ticks = distinct;
            scale.thin_out();
        }
        Some(scale)
    }

    fn linear(low: f64, high: f64, step: f64) -> Self {
        let first = (low / step - 1e-9).ceil();
        let count = ((high / step + 1e-9).floor() - first).clamp(0.0, 50.0) as u32;
        let ticks = (0..=count).map(|index| (first + f64::from(index)) * step).collect();
        let decimals = (-step.log10().floor()).clamp(0.0, 9.0) as u8;
        // A step of 2.5 needs one more digit than its magnitude suggests.
        let exact = (step * 10_f64.powi(i32::from(decimals))).fract().abs() < 1e-6;
        let decimals = if exact { decimals } else { decimals + 1 };
        Self { logarithmic: false, low, high, ticks, decimals }
    }

    fn decades(low: f64, high: f64, round: bool) -> Self {
        let (mut low, mut high) = (low.log10(), high.log10());
        if round || low >= high {
            // Ignore rounding errors close to a power of ten.
            low = (low + 1e-9).floor();
            high = (high - 1e-9).ceil().max(low + 1.0);
        }
        let many = high - low > 3.0;
        let factors: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let decades = (low.floor() as i32)..=(high.ceil() as i32);
        let ticks = decades.flat_map(|decade| factors.iter().map(move |f| f * 10_f64.powi(decade)));
        let within = |tick: &f64| (low - 1e-9..=high + 1e-9).contains(&tick.log10());
        let ticks: Vec<_> = ticks.filter(within).collect();
        let decimals = (-low.floor()).clamp(0.0, 9.0) as u8;
        let mut scale = Self { logarithmic: true, low, high, ticks, decimals };
        scale.thin_out();
        scale
    }

    /// Removes labels that would overlap.
    fn thin_out(&mut self) {
        const LEAST_DISTANCE: f64 = 0.045;
        let least = (self.high - self.low) * LEAST_DISTANCE;
        let mut last = f64::NEG_INFINITY;
        let ticks = std::mem::take(&mut self.ticks);
        self.ticks = ticks
            .into_iter()
            .filter(|&tick| {
                let at = self.at(tick);
                let apart = at - last >= least;
                if apart {
                    last = at;
                }
                apart
            })
            .collect();
    }

    /// Extends both ends by a share of the length.
    pub(super) fn widen(&mut self, share: f64) {
        let more = (self.high - self.low) * share;
        (self.low, self.high) = (self.low - more, self.high + more);
    }

    /// Returns the first value of the scale.
    pub(super) fn first(&self) -> f64 {
        if self.logarithmic { 10_f64.powf(self.low) } else { self.low }
    }

    /// Returns the last value of the scale.
    pub(super) fn last(&self) -> f64 {
        if self.logarithmic { 10_f64.powf(self.high) } else { self.high }
    }

    /// Converts a value to the unit of the ends.
    fn at(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }

    /// Returns the label of a value.
    pub(super) fn label(&self, tick: f64) -> String {
        let decimals = if self.logarithmic {
            (-tick.log10() - 1e-9).ceil().clamp(0.0, f64::from(self.decimals)) as u8
        } else {
            self.decimals
        };
        // A value between round numbers, such as 2.5 of a sweep, needs more digits.
        let decimals =
            if tick.fract().abs() > 1e-9 { decimals.max(self.decimals) } else { decimals };
        numbers::fixed(tick, decimals)
    }
}

impl Ranged for Scale {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        let share = (self.at(*value) - self.low) / (self.high - self.low);
        // Values outside of the range are drawn at the edge.
        let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        begin + (f64::from(end - begin) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // The light lines between the labelled values are not drawn.
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.first()..self.last()
    }
}

fn ends(values: &[f64]) -> Option<(f64, f64)> {
    let low = values.iter().copied().reduce(f64::min)?;
    let high = values.iter().copied().reduce(f64::max)?;
    Some((low, high))
}

/// Returns the smallest step of 1, 2, 2.5, 5 or 10 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let least = least.max(1e-9);
    let power = 10_f64.powf(least.log10().floor());
    let factor =
        [1.0, 2.0, 2.5, 5.0].into_iter().find(|factor| factor * power >= least * 0.999_999);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<String> {
        scale.ticks.iter().map(|&tick| scale.label(tick)).collect()
    }

    #[test]
    fn heights_begin_at_zero_and_end_on_a_round_number() {
        let scale = Scale::heights(&[12_345.0, 45_291.0], false).unwrap();
        assert_eq!(labels(&scale), ["0", "10,000", "20,000", "30,000", "40,000", "50,000"]);
        assert_eq!((scale.low, scale.high), (0.0, 50_000.0));
        let scale = Scale::heights(&[-3.0, 9.0], false).unwrap();
        assert_eq!(labels(&scale), ["−5.0", "−2.5", "0.0", "2.5", "5.0", "7.5", "10.0"]);
        let scale = Scale::heights(&[0.0, 0.0], false).unwrap();
        assert_eq!(labels(&scale), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
    }

    #[test]
    fn logarithmic_heights_are_decades() {
        let scale = Scale::heights(&[30.0, 200_000.0], true).unwrap();
        assert_eq!(labels(&scale), ["10", "100", "1,000", "10,000", "100,000", "1,000,000"]);
        let scale = Scale::heights(&[0.5, 3.0], true).unwrap();
        assert_eq!(labels(&scale), ["0.1", "0.2", "0.5", "1", "2", "5", "10"]);
    }

    #[test]
    fn a_sweep_names_its_own_places() {
        let scale = Scale::places(&[1.0, 2.0, 4.0, 8.0, 16.0, 4.0], true).unwrap();
        assert_eq!(labels(&scale), ["1", "2", "4", "8", "16"]);
        assert_eq!(scale.low, 0.0);
        let scale = Scale::places(&[0.0, 1.0, 100.0], false).unwrap();
        assert_eq!(labels(&scale), ["0", "100"]);
        let scale = Scale::places(&[7.0], false).unwrap();
        assert_eq!(labels(&scale), ["7"]);
    }

    #[test]
    fn no_values_are_too_many_too_near_or_too_far() {
        let extremes = [-LARGEST, -1e-300, 0.0, 1e-300, 1.0, 1.0 + f64::EPSILON, LARGEST];
        for a in extremes {
            for b in extremes {
                let heights = Scale::heights(&[a, b], false).unwrap();
                let places = Scale::places(&[a, b, (a + b) / 2.0], false).unwrap();
                for scale in [heights, places] {
                    assert!(scale.low < scale.high || a == b || (a - b).abs() < 1e-6, "{scale:?}");
                    assert!(scale.ticks.len() <= 51, "{a} {b}");
                }
            }
        }
        assert!(!has_place(f64::NAN, false) && !has_place(f64::INFINITY, false));
        assert!(!has_place(0.0, true) && has_place(0.0, false));
        assert_eq!(Scale::heights(&[], false), None);
    }
}
