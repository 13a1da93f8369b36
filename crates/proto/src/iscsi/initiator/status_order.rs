//! Which StatSNs of a connection have arrived (RFC 7143 §4.2.2.2), where a status may be sent again.

use sarsen_wire::iscsi::SerialNumber;

use super::reception::Run;

/// Statuses that may be missing at a time.
const MISSING_LIMIT: usize = 1024;

/// What a StatSN means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatSnPosition {
    /// It was not here before.
    Fresh,
    /// It was.
    Duplicate,
}

/// More is missing than can be asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// The numbers of one connection.
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

    /// ExpStatSN: everything before it has arrived.
    pub(super) fn expected(&self) -> SerialNumber {
        self.missing.first().copied().unwrap_or(self.next)
    }

    /// The next status will have this number, so all before it were sent.
    pub(super) fn note_next(&mut self, stat_sn: SerialNumber) -> Result<Option<Run>, TooMany> {
        if !stat_sn.is_after(self.next) {
            return Ok(None);
        }
        let run = Run { first: self.next.0, count: stat_sn.since(self.next) };
        if self.missing.len() + run.count as usize > MISSING_LIMIT {
            return Err(TooMany);
        }
        while self.next != stat_sn {
            let missing = self.next.take();
            self.missing.push(missing);
        }
        Ok(Some(run))
    }

    /// A status arrived. What is to be asked for again comes with it.
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

    /// A status arrived damaged. Whether it is missing, and what before it is.
    pub(super) fn lose(&mut self, stat_sn: SerialNumber) -> Result<(bool, Option<Run>), TooMany> {
        if stat_sn.is_before(self.next) {
            return Ok((self.missing.contains(&stat_sn), None));
        }
        let run = self.note_next(stat_sn)?;
        self.missing.push(stat_sn);
        self.next = stat_sn.next();
        Ok((true, run))
    }

    /// A status that was noted is not to be acknowledged yet: data before it has to come again.
    pub(super) fn hold(&mut self, stat_sn: SerialNumber) {
        let at = self.missing.iter().take_while(|missing| missing.is_before(stat_sn)).count();
        if self.missing.get(at) != Some(&stat_sn) {
            self.missing.insert(at, stat_sn);
        }
    }

    /// What was held may be acknowledged now.
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
        // One that was damaged on the way.
        let before = Run { first: 0, count: 1 };
        assert_eq!(order.lose(FIRST.plus(3)), Ok((true, Some(before))));
        assert_eq!(order.note(FIRST.plus(3)), Ok((StatSnPosition::Fresh, None)));
        assert_eq!(order.lose(FIRST.plus(3)), Ok((false, None)), "it was here");
        assert_eq!(order.expected(), FIRST.plus(2));
    }

    #[test]
    fn a_gap_without_end_is_not_believed() {
        let mut order = StatusOrder::new(FIRST);
        assert_eq!(order.note(FIRST.plus(1 << 30)), Err(TooMany));
    }
}
