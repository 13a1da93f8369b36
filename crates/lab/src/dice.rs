//! Numbers that look random, the same for the same seed: workloads are repeated exactly.

/// A stream of numbers from one seed.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Streams of neighbouring seeds have nothing in common.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 }
    }

    /// 64 bits: xorshift64, a few cycles, and random enough to spread I/Os.
    #[inline]
    pub const fn bits(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    /// A number below `end`, each as likely as the others; 0 if `end` is 0.
    #[inline]
    pub const fn below(&mut self, end: u64) -> u64 {
        // The high half of the product: even, without a division.
        ((self.bits() as u128 * end as u128) >> 64) as u64
    }

    /// A number from 0 up to, but without, 1.
    pub const fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True in `percent` of a hundred cases.
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
        let draw = |seed| {
            let mut dice = Dice::new(seed);
            [dice.bits(), dice.bits(), dice.bits()]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_are_even_and_in_bounds() {
        let mut dice = Dice::new(3);
        let mut counts = [0_u32; 10];
        for _ in 0..100_000 {
            counts[dice.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&dice.fraction()));
        }
        assert!(counts.iter().all(|count| (9_000..11_000).contains(count)), "{counts:?}");
        assert_eq!(dice.below(0), 0);
        let hits = (0..100_000).filter(|_| dice.chance(30)).count();
        assert!((29_000..31_000).contains(&hits), "{hits}");
    }
}
