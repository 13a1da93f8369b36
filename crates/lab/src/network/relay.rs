//! A simulated line for frames that pass through this process: queueing, transmission time, propagation delay and loss.
//! One direction of a link; the caller passes the time.
//!
//! [`wire`] transfers frames between two TAP devices.

pub(super) mod wire;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::LinkProfile;
use super::shaping::FRAME_OVERHEAD;
use sarsen_block::Rng;

/// Maximum total size of queued frames, for any rate and delay, which limits the memory. It suffices for 10 Gbit/s over
/// 50 ms.
const HELD_BYTES_MAX: usize = 64 << 20;

/// One direction of a link.
#[derive(Debug)]
pub(super) struct Direction {
    line: Option<Line>,
    delay: Duration,
    loss_percent: f64,
    rng: Rng,
    /// In the order of arrival, which is the order of sending.
    under_way: VecDeque<(Instant, Vec<u8>)>,
    held_bytes: usize,
}

/// The transmitter, which sends one frame after the other.
#[derive(Debug)]
struct Line {
    bytes_per_s: f64,
    queue_bytes: usize,
    free_at: Instant,
}

impl Direction {
    /// Creates a direction that is idle from `now` on. It loses the same frames for the same seed.
    pub(super) fn new(profile: &LinkProfile, seed: u64, now: Instant) -> Self {
        let line = profile.bytes_per_s().map(|bytes_per_s| Line {
            bytes_per_s,
            queue_bytes: profile.queue_bytes(bytes_per_s),
            free_at: now,
        });
        Self {
            line,
            delay: profile.delay,
            loss_percent: profile.loss_percent,
            rng: Rng::new(seed),
            under_way: VecDeque::new(),
            held_bytes: 0,
        }
    }

    /// Accepts a frame that is sent now. Drops it if the queue is full.
    pub(super) fn handle_frame(&mut self, now: Instant, frame: &[u8]) {
        let sent = match &mut self.line {
            Some(line) => line.send(now, frame.len()),
            None => Some(now),
        };
        let Some(sent) = sent else { return };
        // A lost frame has taken its transmission time; the generator draws one number for each transmitted frame.
        let lost = self.rng.fraction() * 100.0 < self.loss_percent;
        if lost || self.held_bytes + frame.len() > HELD_BYTES_MAX {
            return;
        }
        self.held_bytes += frame.len();
        self.under_way.push_back((sent + self.delay, frame.to_vec()));
    }

    /// Returns the arrival time of the next frame.
    pub(super) fn next_arrival(&self) -> Option<Instant> {
        self.under_way.front().map(|(arrival, _)| *arrival)
    }

    /// Returns the next frame that has arrived by now.
    pub(super) fn poll_frame(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.next_arrival()? > now {
            return None;
        }
        let (_, frame) = self.under_way.pop_front()?;
        self.held_bytes -= frame.len();
        Some(frame)
    }
}

impl Line {
    /// Returns the time at which the last bit of a frame is sent, or `None` if the queue is full.
    fn send(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let begin = self.free_at.max(now);
        let bytes = bytes + FRAME_OVERHEAD;
        let waiting = begin.duration_since(now).as_secs_f64() * self.bytes_per_s;
        if waiting + bytes as f64 > self.queue_bytes as f64 {
            return None;
        }
        self.free_at = begin + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        Some(self.free_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: [u8; 1514] = [7; 1514];

    fn start() -> Instant {
        sarsen_io::time::now()
    }

    fn plain() -> LinkProfile {
        LinkProfile::plain("link", 1500)
    }

    fn arrivals(direction: &mut Direction) -> Vec<Instant> {
        let mut arrivals = Vec::new();
        while let Some(arrival) = direction.next_arrival() {
            let just_before = arrival - Duration::from_nanos(1);
            assert_eq!(direction.poll_frame(just_before), None, "a frame arrived early");
            assert_eq!(direction.poll_frame(arrival).as_deref(), Some(&FRAME[..]));
            arrivals.push(arrival);
        }
        assert_eq!(direction.held_bytes, 0);
        arrivals
    }

    #[test]
    fn a_delay_is_exact_and_keeps_the_order() {
        let start = start();
        let delay = Duration::from_micros(12_345);
        let mut direction = Direction::new(&LinkProfile { delay, ..plain() }, 1, start);
        for number in 0..5_u8 {
            direction.handle_frame(start + Duration::from_micros(number.into()), &[number; 60]);
        }
        assert_eq!(direction.poll_frame(start + delay - Duration::from_nanos(1)), None);
        for number in 0..5_u8 {
            let arrival = start + delay + Duration::from_micros(number.into());
            assert_eq!(direction.next_arrival(), Some(arrival));
            assert_eq!(direction.poll_frame(arrival), Some(vec![number; 60]));
        }
        assert_eq!(direction.next_arrival(), None);
    }

    #[test]
    fn rate_holds_over_many_frames_with_overhead() {
        let start = start();
        for rate_mbit in [0.5, 100.0, 1000.0, 25_000.0] {
            let profile = LinkProfile { rate_mbit: Some(rate_mbit), ..plain() };
            let mut direction = Direction::new(&profile, 1, start);
            let mut last = start;
            for _ in 0..10_000 {
                // The next frame is sent after the previous one has arrived.
                direction.handle_frame(last, &FRAME);
                last = arrivals(&mut direction)[0];
            }
            let expected = 10_000.0 * 1538.0 * 8.0 / (rate_mbit * 1e6);
            let taken = (last - start).as_secs_f64();
            assert!((taken / expected - 1.0).abs() < 0.01, "{rate_mbit}: {taken} s, {expected} s");
        }
    }

    #[test]
    fn same_seed_loses_same_frames_at_configured_rate() {
        let start = start();
        let pass = |seed, loss_percent| {
            let profile = LinkProfile { loss_percent, ..plain() };
            let mut direction = Direction::new(&profile, seed, start);
            let passed = (0..20_000).map(|_| {
                direction.handle_frame(start, &FRAME);
                direction.poll_frame(start).is_some()
            });
            passed.collect::<Vec<_>>()
        };
        let lost = |passed: &[bool]| passed.iter().filter(|&&passed| !passed).count();
        assert_eq!(pass(7, 2.5), pass(7, 2.5));
        assert_ne!(pass(7, 2.5), pass(8, 2.5));
        assert!((425..575).contains(&lost(&pass(7, 2.5))), "{}", lost(&pass(7, 2.5)));
        assert_eq!(lost(&pass(7, 0.0)), 0);
        assert_eq!(lost(&pass(7, 100.0)), 20_000);
    }

    #[test]
    fn a_queue_is_bounded_and_drops_the_newest() {
        let start = start();
        let profile = LinkProfile { rate_mbit: Some(1000.0), ..plain() };
        let mut direction = Direction::new(&profile, 1, start);
        for _ in 0..10_000 {
            direction.handle_frame(start, &FRAME);
        }
        // 20 ms of the line, in frames of 1538 bytes.
        let arrivals = arrivals(&mut direction);
        assert_eq!(arrivals.len(), 2_500_000 / 1538);
        let last = *arrivals.last().unwrap() - start;
        assert!(last <= Duration::from_millis(20), "{last:?}");
        // When the line is idle again, it accepts frames again.
        direction.handle_frame(start + last, &FRAME);
        assert!(direction.next_arrival().is_some());
    }

    #[test]
    fn memory_is_bounded_without_a_rate_too() {
        let start = start();
        let delay = Duration::from_secs(10);
        let mut direction = Direction::new(&LinkProfile { delay, ..plain() }, 1, start);
        for _ in 0..HELD_BYTES_MAX / FRAME.len() + 1000 {
            direction.handle_frame(start, &FRAME);
        }
        assert!(direction.held_bytes <= HELD_BYTES_MAX);
        assert_eq!(arrivals(&mut direction).len(), HELD_BYTES_MAX / FRAME.len());
    }
}
