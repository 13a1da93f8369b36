//! Pseudo-random numbers from a seed, so that a workload can be repeated exactly.

/// A generator of numbers from one seed.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// Creates a generator. The streams of neighbouring seeds are unrelated.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// Returns 64 bits from xorshift64, which takes a few cycles and is random enough to spread I/Os.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// Returns a number below `end` with equal probability, or 0 if `end` is 0.
    #[inline]
    pub const fn below(&mut self, end: u64) -> u64 {
        // The high half of the product has an equal distribution and needs no division.
        ((self.bits() as u128 * end as u128) >> 64) as u64
    }

    /// Returns a number from 0 to 1, without 1.
    pub const fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns true in `percent` of 100 cases.
    #[inline]
    pub const fn chance(&mut self, percent: u32) -> bool {
        match percent {
            0 => false,
            100 => true,
            _ => ((self.bits() >> 32) * 100) >> 32 < percent as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_no_other() {
        assert_eq!(first_bits(7), first_bits(7));
        assert_ne!(first_bits(7), first_bits(8));
    }

    fn first_bits(seed: u64) -> [u64; 3] {
        let mut rng = Rng::new(seed);
        [rng.bits(), rng.bits(), rng.bits()]
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
