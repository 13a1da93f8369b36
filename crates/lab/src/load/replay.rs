//! Replays a trace: all sessions take their requests from one feed.

use std::time::{Duration, Instant};

use sarsen_initiator::signature::Occupied;

use super::LoadError;
use super::plan::{Io, Unit};
use crate::trace::{Request, TraceError};

/// Maximum length of a replayed request in bytes.
pub(super) const LENGTH_LIMIT: u32 = 16 << 20;

/// The requests of a trace, or the error that ended it.
pub type Requests = Box<dyn Iterator<Item = Result<Request, TraceError>>>;

/// A trace that is read on demand.
pub(super) struct Feed {
    requests: Requests,
    ahead: Option<Request>,
    /// Factor by which the replay is faster than the recording; `None` means as fast as possible.
    speed: Option<f64>,
    begin: Option<Instant>,
    ended: bool,
    /// The content of the endpoint that a write would destroy, if writes are not permitted.
    pub(super) occupied: Option<Occupied>,
    /// Number of requests beyond the end of the unit that were moved into it.
    pub(super) wrapped: u64,
}

impl Feed {
    pub(super) fn new(requests: Requests, speed: Option<f64>) -> Self {
        Self { requests, ahead: None, speed, begin: None, ended: false, occupied: None, wrapped: 0 }
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the due time of the next request; `None` means as soon as possible, or never.
    pub(super) fn due(&self) -> Option<Instant> {
        let (begin, request, speed) = (self.begin?, self.ahead?, self.speed?);
        // A request whose time exceeds the range of the clock is never due.
        let after = Duration::try_from_secs_f64(request.at.as_secs_f64() / speed).ok()?;
        begin.checked_add(after)
    }

    /// Returns the next request if it is due.
    pub(super) fn next(&mut self, now: Instant, unit: Unit) -> Result<Option<Io>, LoadError> {
        self.begin.get_or_insert(now);
        if self.ahead.is_none() && !self.ended {
            self.ahead = self.requests.next().transpose()?;
            self.ended = self.ahead.is_none();
        }
        let due = self.due();
        if due.is_some_and(|due| due > now) {
            return Ok(None);
        }
        let Some(request) = self.ahead.take() else { return Ok(None) };
        if !request.reads
            && let Some(occupied) = &self.occupied
        {
            return Err(occupied.clone().into());
        }
        self.place(request, due.unwrap_or(now), unit).map(Some)
    }

    /// Converts a request to whole blocks of the unit. Addresses beyond the end of the unit wrap around.
    fn place(&mut self, request: Request, at: Instant, unit: Unit) -> Result<Io, LoadError> {
        let Request { reads, offset, length, .. } = request;
        let block = u64::from(unit.block_length);
        let first = offset / block;
        let blocks = offset.saturating_add(length.into()).div_ceil(block) - first;
        let bytes = blocks.saturating_mul(block);
        if bytes > LENGTH_LIMIT.into() || blocks > unit.blocks {
            return Err(LoadError::Unit {
                block_bytes: length,
                blocks: unit.blocks,
                block_length: unit.block_length,
            });
        }
        let places = unit.blocks - blocks + 1;
        self.wrapped += u64::from(first >= places);
        Ok(Io {
            reads,
            lba: unit.base + first % places,
            blocks: blocks as u32,
            bytes: bytes as u32,
            intended: at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: Unit = Unit { base: 0, blocks: 100, block_length: 4096 };

    fn feed(speed: Option<f64>, requests: Vec<Request>) -> Feed {
        Feed::new(Box::new(requests.into_iter().map(Ok)), speed)
    }

    fn request(at_ms: u64, offset: u64, length: u32) -> Request {
        Request { at: Duration::from_millis(at_ms), reads: true, offset, length }
    }

    #[test]
    fn requests_cover_the_blocks_they_touch_and_stay_in_the_unit() {
        let requests = vec![request(0, 512, 4096), request(0, 4096 * 250, 4096)];
        let mut feed = feed(None, requests);
        let now = sarsen_io::time::now();
        let mut next = || feed.next(now, UNIT).unwrap().unwrap();
        let io = next();
        assert_eq!((io.lba, io.blocks, io.bytes), (0, 2, 8192));
        assert_eq!(next().lba, 50);
        assert!(feed.next(now, UNIT).unwrap().is_none());
        assert!(feed.has_ended());
        assert_eq!(feed.wrapped, 1);
    }

    #[test]
    fn the_traces_own_times_are_kept_and_scaled() {
        let mut feed = feed(Some(2.0), vec![request(0, 0, 4096), request(10, 0, 4096)]);
        let begin = sarsen_io::time::now();
        assert!(feed.next(begin, UNIT).unwrap().is_some());
        assert!(feed.next(begin, UNIT).unwrap().is_none());
        let due = begin + Duration::from_millis(5);
        assert_eq!(feed.due(), Some(due));
        let late = due + Duration::from_millis(1);
        assert_eq!(feed.next(late, UNIT).unwrap().map(|io| io.intended), Some(due));
    }

    #[test]
    fn a_request_longer_than_the_unit_is_refused() {
        let mut feed = feed(None, vec![request(0, 0, 101 * 4096)]);
        assert!(feed.next(sarsen_io::time::now(), UNIT).is_err());
    }
}
