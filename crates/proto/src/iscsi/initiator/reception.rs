//! Record of the Data-In PDUs of a command that have arrived, where the target may repeat PDUs (RFC 7143 §4.2.2.3,
//! §7.5).

/// A range of consecutive Data-In PDUs that are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MissingPdus {
    first_sn: u32,
    end_sn: u32,
    start: u32,
    /// End of the missing bytes. If the end of the data is missing, it is the maximum end.
    end: u32,
    /// Whether the end of the data is missing, so that its length is unknown.
    is_tail: bool,
}

/// A Data-In PDU: its number and the position of its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) data_sn: u32,
    pub(super) offset: u32,
    pub(super) length: u32,
}

impl Arrival {
    const fn end(&self) -> Option<u32> {
        self.offset.checked_add(self.length)
    }
}

/// A range of numbers of PDUs that the target is to repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) first: u32,
    pub(super) count: u32,
}

/// A PDU that is neither missing nor the next one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfOrder;

/// The received Data-In of one command. See the module. The owner keeps the end offset of the received data, holes
/// included.
#[derive(Debug, Default)]
pub(super) struct Reception {
    next_sn: u32,
    holes: Vec<MissingPdus>,
}

/// Maximum number of holes of one command. More holes indicate a peer that attacks our memory.
const HOLE_LIMIT: usize = 1024;

impl Reception {
    /// Returns whether nothing is missing before the last PDU that arrived.
    pub(super) const fn is_whole(&self) -> bool {
        self.holes.is_empty()
    }

    /// Returns the first number that did not arrive.
    pub(super) fn first_missing(&self) -> u32 {
        self.holes.first().map_or(self.next_sn, |hole| hole.first_sn)
    }

    /// Returns whether the PDU arrived before.
    pub(super) fn is_duplicate(&self, data_sn: u32) -> bool {
        data_sn < self.next_sn && self.hole_of(data_sn).is_none()
    }

    fn hole_of(&self, data_sn: u32) -> Option<usize> {
        self.holes.iter().position(|hole| (hole.first_sn..hole.end_sn).contains(&data_sn))
    }

    /// Checks the position of a PDU that is no duplicate. `received` is the end of the received data, `expected` the
    /// length of all data.
    pub(super) fn check(
        &self,
        arrival: Arrival,
        received: u32,
        expected: u32,
    ) -> Result<(), OutOfOrder> {
        let Arrival { data_sn, offset, length } = arrival;
        let end = arrival.end().ok_or(OutOfOrder)?;
        let fits = match self.hole_of(data_sn) {
            _ if length > 0 && end > expected => false,
            // The offset of a PDU without data has no meaning.
            _ if length == 0 => true,
            None if data_sn == self.next_sn => offset == received,
            None => offset >= received,
            Some(at) => {
                let hole = &self.holes[at];
                let starts = if data_sn == hole.first_sn {
                    offset == hole.start
                } else {
                    offset >= hole.start
                };
                let is_last = data_sn + 1 == hole.end_sn && !hole.is_tail;
                starts && if is_last { end == hole.end } else { end <= hole.end }
            }
        };
        let room = data_sn != u32::MAX && self.holes.len() < HOLE_LIMIT;
        if fits && room { Ok(()) } else { Err(OutOfOrder) }
    }

    /// Records a checked PDU. Its data is valid only if `intact`. Returns the PDUs to request again.
    pub(super) fn arrive(
        &mut self,
        arrival: Arrival,
        intact: bool,
        received: &mut u32,
    ) -> Option<Run> {
        let Arrival { data_sn, offset, length } = arrival;
        let place = self.hole_of(data_sn);
        let start = match place {
            // Missing data before an empty PDU cannot lie behind the received data.
            _ if length > 0 => offset,
            None => *received,
            Some(at) => self.holes[at].start,
        };
        let end = start + length;
        if let Some(at) = place {
            if !intact {
                return Some(Run { first: data_sn, count: 1 });
            }
            self.split(at, data_sn, start, end, received);
            return None;
        }
        let first = self.next_sn;
        if data_sn > first {
            self.miss(first, data_sn, *received, start);
        }
        if !intact {
            self.miss(data_sn, data_sn + 1, start, end);
        }
        self.next_sn = data_sn + 1;
        *received = end;
        let count = self.next_sn - first - u32::from(intact);
        (count > 0).then_some(Run { first, count })
    }

    fn miss(&mut self, first_sn: u32, end_sn: u32, start: u32, end: u32) {
        self.holes.push(MissingPdus { first_sn, end_sn, start, end, is_tail: false });
    }

    fn split(&mut self, at: usize, data_sn: u32, start: u32, end: u32, received: &mut u32) {
        let hole = self.holes.remove(at);
        let is_last = data_sn + 1 == hole.end_sn;
        if !is_last {
            self.holes.insert(at, MissingPdus { first_sn: data_sn + 1, start: end, ..hole });
        } else if hole.is_tail {
            *received = end;
        }
        if hole.first_sn < data_sn {
            let before = MissingPdus { end_sn: data_sn, end: start, is_tail: false, ..hole };
            self.holes.insert(at, before);
        }
    }

    /// Records that the target sent all PDUs before this number. Returns the missing PDUs at the end.
    pub(super) fn note_end(
        &mut self,
        end_sn: u32,
        expected: u32,
        received: &mut u32,
    ) -> Option<Run> {
        let first = self.next_sn;
        if end_sn <= first || self.holes.len() >= HOLE_LIMIT {
            return None;
        }
        let (start, end) = (*received, expected);
        self.holes.push(MissingPdus { first_sn: first, end_sn, start, end, is_tail: true });
        self.next_sn = end_sn;
        Some(Run { first, count: end_sn - first })
    }

    /// Discards the record behind the first hole: another connection sends everything from there on. Returns the next
    /// expected number.
    pub(super) fn rewind(&mut self, received: &mut u32) -> u32 {
        if let Some(hole) = self.holes.first() {
            self.next_sn = hole.first_sn;
            *received = hole.start;
        }
        self.holes.clear();
        self.next_sn
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PIECE: u32 = 100;

    const fn piece(data_sn: u32) -> Arrival {
        Arrival { data_sn, offset: data_sn * PIECE, length: PIECE }
    }

    #[test]
    fn rfc7143_7_8_missing_data_is_requested_once_and_inserted() {
        let (mut reception, mut received) = (Reception::default(), 0);
        assert_eq!(reception.arrive(piece(0), true, &mut received), None);
        let asked = reception.arrive(piece(3), true, &mut received);
        assert_eq!(asked, Some(Run { first: 1, count: 2 }));
        assert_eq!(reception.arrive(piece(4), true, &mut received), None);
        assert_eq!(reception.first_missing(), 1);
        assert!(reception.is_duplicate(0) && reception.is_duplicate(3));
        assert!(!reception.is_duplicate(1) && !reception.is_duplicate(5));
        assert_eq!(reception.check(Arrival { offset: 250, ..piece(2) }, 500, 600), Err(OutOfOrder));
        assert_eq!(reception.check(Arrival { length: 101, ..piece(2) }, 500, 600), Err(OutOfOrder));
        assert_eq!(reception.check(piece(2), 500, 600), Ok(()));
        reception.arrive(piece(2), true, &mut received);
        let asked = reception.arrive(piece(1), false, &mut received);
        assert_eq!(asked, Some(Run { first: 1, count: 1 }), "damaged again");
        reception.arrive(piece(1), true, &mut received);
        assert!(reception.is_whole());
        assert_eq!((received, reception.first_missing()), (500, 5));
    }

    #[test]
    fn rfc7143_11_5_6_a_reassigned_read_goes_on_behind_what_is_there_without_a_gap() {
        let (mut reception, mut received) = (Reception::default(), 0);
        for data_sn in [0, 1, 3] {
            reception.arrive(piece(data_sn), true, &mut received);
        }
        assert_eq!(reception.rewind(&mut received), 2);
        assert_eq!(received, 200);
        assert!(reception.is_whole() && !reception.is_duplicate(3));
    }

    #[test]
    fn rfc7143_11_4_8_the_response_tells_of_a_lost_end() {
        let (mut reception, mut received) = (Reception::default(), 0);
        reception.arrive(piece(0), true, &mut received);
        let asked = reception.note_end(3, 300, &mut received);
        assert_eq!(asked, Some(Run { first: 1, count: 2 }));
        reception.arrive(piece(1), true, &mut received);
        let short = Arrival { length: 40, ..piece(2) };
        assert_eq!(reception.check(short, received, 300), Ok(()));
        reception.arrive(short, true, &mut received);
        assert!(reception.is_whole());
        assert_eq!(received, 240);
        assert_eq!(reception.note_end(3, 300, &mut received), None);
    }

    proptest! {
        /// A target repeats the requested PDUs over a connection that damages and loses PDUs.
        #[test]
        fn whatever_is_lost_all_arrives_in_the_end(
            count in 1u32..40, fates in prop::collection::vec(0u8..4, 0..200),
        ) {
            let (mut reception, mut received) = (Reception::default(), 0);
            let mut fates = fates.into_iter();
            let mut to_send: std::collections::VecDeque<u32> = (0..count).collect();
            let mut arrived = vec![0; count as usize];
            let mut reported = false;
            loop {
                let Some(data_sn) = to_send.pop_front() else {
                    if reported {
                        break;
                    }
                    reported = true;
                    if let Some(run) = reception.note_end(count, count * PIECE, &mut received) {
                        to_send.extend(run.first..run.first + run.count);
                    }
                    continue;
                };
                // Only a PDU that is sent for the first time is lost unnoticed.
                let fate = fates.next().unwrap_or(3);
                if fate == 0 && !reported && arrived[data_sn as usize] == 0 && !reception.holes.iter()
                    .any(|hole| (hole.first_sn..hole.end_sn).contains(&data_sn)) {
                    continue;
                }
                if reception.is_duplicate(data_sn) {
                    continue;
                }
                let intact = fate != 1;
                prop_assert_eq!(reception.check(piece(data_sn), received, count * PIECE), Ok(()));
                if intact {
                    arrived[data_sn as usize] += 1;
                }
                if let Some(run) = reception.arrive(piece(data_sn), intact, &mut received) {
                    to_send.extend(run.first..run.first + run.count);
                }
            }
            prop_assert!(reception.is_whole());
            prop_assert_eq!(received, count * PIECE);
            prop_assert!(arrived.iter().all(|times| *times == 1), "{:?}", arrived);
        }
    }
}
