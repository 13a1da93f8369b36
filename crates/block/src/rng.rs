//! Pseudo-random numbers from a seed, so that tests and workloads can be repeated exactly.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

/// A generator of numbers from one seed, with the choices that tests and workloads need. It is not secure: a few
/// numbers reveal all others.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// Creates a generator. The streams of neighbouring seeds are unrelated.
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Fills a buffer.
    pub fn fill(&mut self, into: &mut [u8]) {
        self.0.fill_bytes(into);
    }

    /// Returns a number below `end` with equal probability, or 0 if `end` is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        // The high half of the product has an equal distribution and needs no division.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Returns a number from 0 to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true in `percent` of 100 cases.
    #[inline]
    pub fn chance(&mut self, percent: u32) -> bool {
        match percent {
            0 => false,
            100 => true,
            _ => ((self.bits() >> 32) * 100) >> 32 < u64::from(percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_no_other() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.bits(), rng.bits(), rng.bits()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_are_even_and_in_bounds() {
        let mut rng = Rng::new(3);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[rng.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&rng.fraction()));
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
        assert_eq!(rng.below(0), 0);
        let hits = (0..100_000).filter(|_| rng.chance(30)).count();
        assert!((29_000..31_000).contains(&hits), "{hits}");
    }
}
