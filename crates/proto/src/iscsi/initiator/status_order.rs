//! Record of the StatSNs of a connection that have arrived (RFC 7143 §4.2.2.2), where the target may repeat a status.

use sarsen_wire::iscsi::SerialNumber;

use super::reception::Run;

/// Maximum number of missing statuses.
const MISSING_LIMIT: usize = 1024;

/// The meaning of a received StatSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatSnPosition {
    /// The status did not arrive before.
    Fresh,
    /// The status arrived before.
    Duplicate,
}

/// More statuses are missing than the initiator can request again.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The StatSNs of one connection.
#[derive(Debug)]
pub(super) struct StatusOrder {
    next: SerialNumber,
    /// In ascending order.
    missing: Vec<SerialNumber>,
}

impl StatusOrder {
    pub(super) const fn new(next: SerialNumber) -> Self {
        Self { next, missing: Vec::new() }
    }

    /// Returns ExpStatSN: every status before it has arrived.
    pub(super) fn expected(&self) -> SerialNumber {
        self.missing.first().copied().unwrap_or(self.next)
    }

    /// Records that the next status will have this number, so that the target sent all before it. Returns the missing
    /// ones.
    pub(super) fn note_next(&mut self, stat_sn: SerialNumber) -> Result<Option<Run>, TooMany> {
        if !stat_sn.is_after(self.next) {
            return Ok(None);
        }
        let run = Run { first: self.next.0, count: stat_sn.since(self.next) };
        if self.missing.len() + run.count as usize > MISSING_LIMIT {
            return Err(TooMany);
        }
        while self.next != stat_sn {
            let missing = self.next.post_increment();
            self.missing.push(missing);
        }
        Ok(Some(run))
    }

    /// Records a status. Also returns the statuses to request again.
    pub(super) fn note(
        &mut self,
        stat_sn: SerialNumber,
    ) -> Result<(StatSnPosition, Option<Run>), TooMany> {
        if stat_sn.is_before(self.next) {
            let Some(at) = self.missing.iter().position(|missing| *missing == stat_sn) else {
                return Ok((StatSnPosition::Duplicate, None));
            };
            self.missing.remove(at);
            return Ok((StatSnPosition::Fresh, None));
        }
        let run = self.note_next(stat_sn)?;
        self.next = stat_sn.next();
        Ok((StatSnPosition::Fresh, run))
    }

    /// Records a damaged status. Returns whether it is missing, and the missing statuses before it.
    pub(super) fn note_damaged(
        &mut self,
        stat_sn: SerialNumber,
    ) -> Result<(bool, Option<Run>), TooMany> {
        if stat_sn.is_before(self.next) {
            return Ok((self.missing.contains(&stat_sn), None));
        }
        let run = self.note_next(stat_sn)?;
        self.missing.push(stat_sn);
        self.next = stat_sn.next();
        Ok((true, run))
    }

    /// Prevents the acknowledgement of a recorded status: data before it must be repeated first.
    pub(super) fn hold(&mut self, stat_sn: SerialNumber) {
        let at = self.missing.iter().take_while(|missing| missing.is_before(stat_sn)).count();
        if self.missing.get(at) != Some(&stat_sn) {
            self.missing.insert(at, stat_sn);
        }
    }

    /// Permits the acknowledgement of a status again.
    pub(super) fn release(&mut self, stat_sn: SerialNumber) {
        self.missing.retain(|missing| *missing != stat_sn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: SerialNumber = SerialNumber(u32::MAX - 1);

    #[test]
    fn rfc7143_4_2_2_2_a_gap_is_asked_for_and_nothing_above_it_is_acknowledged() {
        let mut order = StatusOrder::new(FIRST);
        assert_eq!(order.note(FIRST), Ok((StatSnPosition::Fresh, None)));
        let run = Run { first: u32::MAX, count: 2 };
        assert_eq!(order.note(FIRST.plus(3)), Ok((StatSnPosition::Fresh, Some(run))));
        assert_eq!(order.expected(), FIRST.plus(1));
        assert_eq!(order.note(FIRST.plus(3)), Ok((StatSnPosition::Duplicate, None)));
        assert_eq!(order.note(FIRST.plus(2)), Ok((StatSnPosition::Fresh, None)));
        assert_eq!(order.expected(), FIRST.plus(1));
        assert_eq!(order.note(FIRST.plus(1)), Ok((StatSnPosition::Fresh, None)));
        assert_eq!(order.expected(), FIRST.plus(4));
        assert_eq!(order.note(FIRST), Ok((StatSnPosition::Duplicate, None)));
    }

    #[test]
    fn rfc7143_11_16_a_status_whose_data_is_missing_is_not_acknowledged() {
        let mut order = StatusOrder::new(FIRST);
        order.note(FIRST).unwrap();
        order.hold(FIRST);
        order.note(FIRST.plus(1)).unwrap();
        assert_eq!(order.expected(), FIRST);
        order.release(FIRST);
        assert_eq!(order.expected(), FIRST.plus(2));
        // A status that was damaged in transit.
        let before = Run { first: 0, count: 1 };
        assert_eq!(order.note_damaged(FIRST.plus(3)), Ok((true, Some(before))));
        assert_eq!(order.note(FIRST.plus(3)), Ok((StatSnPosition::Fresh, None)));
        assert_eq!(order.note_damaged(FIRST.plus(3)), Ok((false, None)), "it was here");
        assert_eq!(order.expected(), FIRST.plus(2));
    }

    #[test]
    fn a_gap_without_end_is_not_believed() {
        let mut order = StatusOrder::new(FIRST);
        assert_eq!(order.note(FIRST.plus(1 << 30)), Err(TooMany));
    }
}
