//! A trace with the known properties of an unpublished one.

use std::time::Duration;

use super::{Request, TraceError};
use sarsen_block::Rng;

/// Logical blocks of the study's disks.
const BLOCK: u64 = 512;
/// Number of requests in the study's trace.
const REQUESTS: u64 = 8_626;
/// Number of reads: 70 %, to the nearest request.
const READS: u64 = (REQUESTS * 7 + 5) / 10;
/// Lowest and highest address of the study's trace.
const LOWEST: u64 = 9_840;
const HIGHEST: u64 = 2_012_792;

/// Returns a trace with the published properties of that of Lu and Du (IEEE Communications 2003): 8,626 requests, 70 %
/// of them reads, from block 9,840 to block 2,012,792. A seed determines the addresses and the order of reads and
/// writes. The requests have no times, and all have the mean length of the study's requests.
#[derive(Clone, Debug)]
pub struct Synthetic {
    rng: Rng,
    left: u64,
    reads_left: u64,
    /// The requests with the lowest and the highest address, counted from the last one.
    lowest_at: u64,
    highest_at: u64,
}

impl Synthetic {
    /// Number of bytes of a request. The study does not print it; its throughput, response time and number of threads
    /// give a mean of 12,040 to 12,190 bytes on each of its three networks.
    pub const LENGTH: u32 = 12 * 1024;

    /// Creates the trace. The same seed produces the same trace.
    pub fn lu_du(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let lowest_at = 1 + rng.below(REQUESTS);
        // Any other request.
        let highest_at = 1 + (lowest_at + rng.below(REQUESTS - 1)) % REQUESTS;
        Self { rng, left: REQUESTS, reads_left: READS, lowest_at, highest_at }
    }
}

impl Iterator for Synthetic {
    type Item = Result<Request, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        // The remaining reads among the remaining requests: the total is exact, the order is random.
        let reads = self.rng.below(self.left) < self.reads_left;
        let drawn = LOWEST + self.rng.below(HIGHEST - LOWEST + 1);
        let block = match self.left {
            left if left == self.lowest_at => LOWEST,
            left if left == self.highest_at => HIGHEST,
            _ => drawn,
        };
        self.left -= 1;
        self.reads_left -= u64::from(reads);
        Some(Ok(Request { at: Duration::ZERO, reads, offset: block * BLOCK, length: Self::LENGTH }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(seed: u64) -> Vec<Request> {
        Synthetic::lu_du(seed).map(Result::unwrap).collect()
    }

    #[test]
    fn it_has_the_properties_of_the_study() {
        for seed in 0..50 {
            let trace = requests(seed);
            assert_eq!(trace.len(), 8_626);
            assert_eq!(trace.iter().filter(|request| request.reads).count(), 6_038);
            let blocks = || trace.iter().map(|request| request.offset / BLOCK);
            assert_eq!((blocks().min(), blocks().max()), (Some(9_840), Some(2_012_792)));
        }
    }

    #[test]
    fn a_seed_repeats_itself_and_no_other() {
        assert_eq!(requests(1), requests(1));
        assert_ne!(requests(1), requests(2));
    }
}
