//! The distribution of random I/Os over a unit: uniform, or some positions more often than others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use sarsen_block::Rng;

/// The distribution of random I/Os over the unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub enum Distribution {
    /// All positions have the same probability.
    #[default]
    Uniform,
    /// The n-th most frequent position has a probability proportional to n to the power of -`theta`. These positions
    /// are scattered over the unit.
    Zipf {
        /// The exponent, above 0.
        theta: f64,
    },
    /// A percentage of the I/Os is in a part at the beginning of the unit.
    Hot {
        /// Percentage of I/Os in the hot part.
        accesses_percent: u8,
        /// Size of the hot part in percent of the unit.
        space_percent: u8,
    },
}

/// The text is not a distribution.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no distribution: write `uniform`, `zipf:THETA` (above 0, at most 10) or \
     `hot:ACCESSES/SPACE` in percent, such as `hot:90/10`"
)]
pub struct DistributionError {
    text: String,
}

impl FromStr for Distribution {
    type Err = DistributionError;

    fn from_str(text: &str) -> Result<Self, DistributionError> {
        let parse = || {
            if text == "uniform" {
                return Some(Self::Uniform);
            }
            let (kind, rest) = text.split_once(':')?;
            match kind {
                "zipf" => {
                    let theta: f64 = rest.parse().ok()?;
                    (theta > 0.0 && theta <= 10.0).then_some(Self::Zipf { theta })
                }
                "hot" => {
                    let (accesses, space) = rest.split_once('/')?;
                    let (accesses_percent, space_percent) =
                        (accesses.parse().ok()?, space.parse().ok()?);
                    let possible = accesses_percent <= 100 && (1..=99).contains(&space_percent);
                    possible.then_some(Self::Hot { accesses_percent, space_percent })
                }
                _ => None,
            }
        };
        parse().ok_or_else(|| DistributionError { text: text.into() })
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uniform => f.write_str("uniform"),
            Self::Zipf { theta } => write!(f, "zipf:{theta}"),
            Self::Hot { accesses_percent, space_percent } => {
                write!(f, "hot:{accesses_percent}/{space_percent}")
            }
        }
    }
}

/// A distribution over a number of positions.
#[derive(Clone, Debug)]
pub struct PositionSampler {
    count: u64,
    kind: DistributionKind,
}

#[derive(Clone, Debug)]
enum DistributionKind {
    Uniform,
    Zipf { zipf: Zipf, stride: u64 },
    Hot { accesses_percent: u32, hot: u64 },
}

impl PositionSampler {
    /// Creates a distribution over `count` positions, at least one.
    pub fn new(distribution: Distribution, count: u64) -> Self {
        let count = count.max(1);
        let kind = match distribution {
            Distribution::Uniform => DistributionKind::Uniform,
            Distribution::Zipf { theta } => {
                DistributionKind::Zipf { zipf: Zipf::new(count, theta), stride: stride(count) }
            }
            Distribution::Hot { accesses_percent, space_percent } => {
                let share = u128::from(count) * u128::from(space_percent) / 100;
                let hot = (share as u64).clamp(1, count);
                DistributionKind::Hot { accesses_percent: accesses_percent.into(), hot }
            }
        };
        Self { count, kind }
    }

    /// Returns the next position, below the number of positions.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        match &self.kind {
            DistributionKind::Uniform => rng.below(self.count),
            DistributionKind::Zipf { zipf, stride } => {
                let rank = zipf.draw(rng) - 1;
                (u128::from(rank) * u128::from(*stride) % u128::from(self.count)) as u64
            }
            DistributionKind::Hot { accesses_percent, hot } => {
                // If all of the unit is hot, no position remains for the rest.
                if *hot == self.count || rng.chance(*accesses_percent) {
                    rng.below(*hot)
                } else {
                    hot + rng.below(self.count - hot)
                }
            }
        }
    }
}

/// A number without a common divisor with `count`: its multiples visit every position once. Those of the golden ratio
/// keep neighbouring ranks far apart.
fn stride(count: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let mut stride = ((count as f64 * GOLDEN) as u64).max(1);
    while common_divisor(stride, count) != 1 {
        stride += 1;
    }
    stride
}

const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Ranks from 1 to a number by Zipf's law, in constant time and memory: rejection-inversion
/// (W. Hörmann, G. Derflinger, ACM TOMACS 6(3), 1996).
#[derive(Clone, Debug)]
struct Zipf {
    count: f64,
    theta: f64,
    /// The integral of the hat at its left and right end.
    left: f64,
    right: f64,
    /// Within this distance of a rank, acceptance needs no more arithmetic.
    shortcut: f64,
}

impl Zipf {
    fn new(count: u64, theta: f64) -> Self {
        let mut zipf = Self { count: count as f64, theta, left: 0.0, right: 0.0, shortcut: 0.0 };
        zipf.left = zipf.integral(1.5) - 1.0;
        zipf.right = zipf.integral(zipf.count + 0.5);
        zipf.shortcut = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn weight(&self, x: f64) -> f64 {
        x.powf(-self.theta)
    }

    /// Returns the integral of the weight from 1 to x. `exp_m1` keeps it exact if theta is about 1.
    fn integral(&self, x: f64) -> f64 {
        let (power, log) = (1.0 - self.theta, x.ln());
        if (power * log).abs() < 1e-12 { log } else { (power * log).exp_m1() / power }
    }

    fn inverse(&self, y: f64) -> f64 {
        let power = 1.0 - self.theta;
        let t = (y * power).max(-1.0);
        if t.abs() < 1e-12 { y.exp() } else { (t.ln_1p() / power).exp() }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.right + rng.fraction() * (self.left - self.right);
            let x = self.inverse(u);
            let rank = (x + 0.5).floor().clamp(1.0, self.count);
            if rank - x <= self.shortcut || u >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 200_000;

    fn histogram(distribution: Distribution, count: u64) -> Vec<usize> {
        let places = PositionSampler::new(distribution, count);
        let mut rng = Rng::new(11);
        let mut counts = vec![0; count as usize];
        for _ in 0..DRAWS {
            counts[places.draw(&mut rng) as usize] += 1;
        }
        counts
    }

    #[test]
    fn zipf_ranks_are_as_likely_as_the_law_says() {
        for theta in [0.5, 0.99, 1.0, 1.2, 2.5] {
            let mut counts = histogram(Distribution::Zipf { theta }, 100);
            counts.sort_unstable_by(|a, b| b.cmp(a));
            let total: f64 = (1..=100).map(|rank| f64::from(rank).powf(-theta)).sum();
            for rank in [1_usize, 2, 5, 10] {
                let expected = (rank as f64).powf(-theta) / total * DRAWS as f64;
                let seen = counts[rank - 1] as f64;
                let limit = 5.0 * expected.sqrt() + 0.02 * expected;
                assert!((seen - expected).abs() < limit, "{theta} {rank}: {seen}, {expected}");
            }
        }
    }

    #[test]
    fn favourites_do_not_lie_side_by_side() {
        let counts = histogram(Distribution::Zipf { theta: 1.1 }, 1000);
        let mut places: Vec<usize> = (0..1000).collect();
        places.sort_unstable_by_key(|place| std::cmp::Reverse(counts[*place]));
        assert!(places[0].abs_diff(places[1]) > 100, "{:?}", &places[..2]);
    }

    #[test]
    fn hot_places_get_their_share() {
        let counts = histogram(Distribution::Hot { accesses_percent: 90, space_percent: 10 }, 1000);
        let hot: usize = counts[..100].iter().sum();
        assert!((hot as f64 / DRAWS as f64 - 0.9).abs() < 0.01, "{hot}");
        assert!(counts[100..].iter().all(|count| *count > 0 || DRAWS < 100_000));
    }

    #[test]
    fn few_places_are_enough() {
        for text in ["uniform", "zipf:1.1", "hot:90/10"] {
            for count in 1..5 {
                let counts = histogram(text.parse().unwrap(), count);
                assert_eq!(counts.iter().sum::<usize>(), DRAWS, "{text} {count}");
            }
        }
    }

    #[test]
    fn a_stride_visits_every_place() {
        for count in 1..200 {
            assert_eq!(common_divisor(stride(count), count), 1, "{count}");
        }
    }

    #[test]
    fn distributions_are_read_as_they_are_written() {
        for text in ["uniform", "zipf:0.99", "hot:80/20"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        for wrong in ["", "zipf", "zipf:0", "zipf:NaN", "zipf:-1", "hot:101/5", "hot:9/0", "x:1"] {
            assert!(wrong.parse::<Distribution>().is_err(), "{wrong}");
        }
    }
}
