//! Runs of zeroes in data: they become holes, unmapped blocks or unallocated clusters.

use std::ops::Range;

/// A run of zeroes of this length is not written as data.
pub(super) const HOLE_LENGTH: usize = 64 * 1024;

/// A part of some data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) range: Range<usize>,
    /// All its bytes are zero.
    pub(super) zero: bool,
}

/// Splits data into runs of zeroes and the rest. `offset` is the place of the data at its destination. Runs begin and
/// end at multiples of `grain` there, and where the data begins and ends.
pub(super) fn runs(offset: u64, data: &[u8], grain: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let into = ((offset + start as u64) % grain as u64) as usize;
        let end = data.len().min(start + grain - into);
        let zero = is_zero(&data[start..end]);
        match runs.last_mut().filter(|run| run.zero == zero) {
            Some(run) => run.range.end = end,
            None => runs.push(Run { range: start..end, zero }),
        }
        start = end;
    }
    runs
}

/// Returns whether all bytes are zero.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    // The compiler vectorises these pieces.
    bytes.chunks(256).all(|piece| piece.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_cover_all_data_and_change_at_multiples_of_the_grain() {
        let mut data = vec![0; 64];
        data[17] = 1;
        data[33] = 1;
        let of = |offset| {
            let runs = runs(offset, &data, 16);
            runs.into_iter().map(|run| (run.range, run.zero)).collect::<Vec<_>>()
        };
        assert_eq!(of(0), [(0..16, true), (16..48, false), (48..64, true)]);
        assert_eq!(of(160), of(0));
        assert_eq!(of(4), [(0..12, true), (12..44, false), (44..64, true)]);
        assert_eq!(runs(3, &[], 16), []);
    }
}
