//! A busy core looks for more work for a moment before it sleeps.
//!
//! When requests arrive one after the other, most of a round trip is the wake-up of the thread that answers. So each
//! core has a task that keeps its event loop running, without sleeping, while requests arrive in quick succession. A
//! core without requests sleeps. A core also sleeps if another thread needs its processor.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::time;

/// How a core waited for its next event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It spun.
    Awake,
    /// It slept.
    Asleep,
}

/// Whether cores spin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spin {
    /// Cores spin while requests follow each other so quickly that spinning pays.
    #[default]
    Auto,
    /// Cores sleep whenever they have no work.
    Never,
}

/// An event within this time after the previous one is worth spinning for. Wake-ups cost tens of microseconds; networks
/// between machines have about the same latency.
const WINDOW: Duration = Duration::from_micros(100);
/// Number of arrivals in a row, each within the window, before a core spins.
const QUICK_ENOUGH: u32 = 4;
/// Maximum of quick arrivals that are counted.
const QUICK_MOST: u32 = 16;
/// A core that was interrupted while it spun sleeps for this long whenever it can. The time doubles if that happens
/// again soon, up to [`BACKOFF_MAX`].
const BACKOFF_FIRST: Duration = Duration::from_millis(10);
const BACKOFF_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static CORE: Core = const {
        Core { note_activity: Cell::new(false), waited: Cell::new(None), asleep: Cell::new(None) }
    };
}

struct Core {
    note_activity: Cell<bool>,
    /// The core had no work until now.
    waited: Cell<Option<Wait>>,
    /// The spinning task, while it waits for the first arrival.
    asleep: Cell<Option<Waker>>,
}

/// Notes an event for the calling thread.
pub(crate) fn note_activity() {
    CORE.with(|core| {
        core.note_activity.set(true);
        if let Some(task) = core.asleep.take() {
            task.wake();
        }
    });
}

/// Notes that the calling core sleeps.
pub(crate) fn note_sleep() {
    CORE.with(|core| core.waited.set(Some(Wait::Asleep)));
}

/// Returns how the calling core waited, if it had no work until now. Returns it once: the caller then starts to work.
pub fn take_wait() -> Option<Wait> {
    CORE.with(|core| core.waited.take())
}

/// Keeps the calling core awake while that pays; never returns.
pub(crate) async fn drive() {
    let mut policy = Policy::new(time::now());
    loop {
        arrival().await;
        policy.arrived(time::now());
        if policy.spins() {
            spin(&mut policy).await;
        }
    }
}

async fn spin(policy: &mut Policy) {
    let interruptions = interruption_count();
    let mut looked = time::now();
    while policy.spins() {
        tokio::task::yield_now().await;
        let now = time::now();
        let took_long = now - looked > WINDOW;
        looked = now;
        let came = CORE.with(|core| {
            let came = core.note_activity.take();
            core.waited.set((!came).then_some(Wait::Awake));
            came
        });
        // A turn may take long because of its work. A long turn without work means that another thread had the
        // processor. The kernel is asked rarely, because that is a system call.
        if took_long && (!came || interruption_count() != interruptions) {
            return policy.interrupted(now);
        }
        if came { policy.arrived(now) } else { policy.nothing_came(now) }
    }
}

/// Waits for the next event.
async fn arrival() {
    poll_fn(|context| {
        CORE.with(|core| {
            if core.note_activity.take() {
                return Poll::Ready(());
            }
            core.asleep.set(Some(context.waker().clone()));
            Poll::Pending
        })
    })
    .await;
}

/// Returns how often the kernel gave the processor to another thread although this thread could run.
#[allow(unsafe_code)]
fn interruption_count() -> i64 {
    // SAFETY: all zeroes is a valid rusage, which the call fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// Decides when spinning pays.
struct Policy {
    last_arrival: Instant,
    /// Recent quick arrivals; from [`QUICK_ENOUGH`] on the core spins.
    quick: u32,
    /// The core has waited long enough since the last arrival.
    idle_expired: bool,
    /// Until this time the core sleeps whenever it can.
    backoff_until: Instant,
    /// Length of that backoff.
    backoff: Duration,
}

impl Policy {
    fn new(now: Instant) -> Self {
        Self {
            last_arrival: now,
            quick: 0,
            idle_expired: true,
            backoff_until: now,
            backoff: Duration::ZERO,
        }
    }

    fn arrived(&mut self, now: Instant) {
        self.quick = if now - self.last_arrival <= WINDOW && now >= self.backoff_until {
            (self.quick + 1).min(QUICK_MOST)
        } else {
            0
        };
        self.last_arrival = now;
        self.idle_expired = false;
    }

    fn nothing_came(&mut self, now: Instant) {
        self.idle_expired = now - self.last_arrival > WINDOW;
        if self.idle_expired {
            // After many quick arrivals one pause does not stop the spinning.
            self.quick /= 2;
        }
    }

    /// Another thread needs the processor. A thread that never sleeps only delays the other one, and then waits for its
    /// own next turn.
    fn interrupted(&mut self, now: Instant) {
        self.backoff = if now < self.backoff_until + 2 * self.backoff {
            (2 * self.backoff).min(BACKOFF_MAX)
        } else {
            BACKOFF_FIRST
        };
        self.backoff_until = now + self.backoff;
        self.quick = 0;
    }

    fn spins(&self) -> bool {
        !self.idle_expired && self.quick >= QUICK_ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Duration = Duration::from_micros(20);
    const SLOW: Duration = Duration::from_millis(1);

    /// Notes `count` arrivals, one every `apart`; returns the time of the last.
    fn arrivals(policy: &mut Policy, mut now: Instant, count: u32, apart: Duration) -> Instant {
        for _ in 0..count {
            now += apart;
            policy.arrived(now);
        }
        now
    }

    #[test]
    fn a_core_spins_once_arrivals_are_quick_and_sleeps_when_they_stop() {
        let mut policy = Policy::new(time::now());
        assert!(!policy.spins());
        let now = arrivals(&mut policy, time::now(), 100, SLOW);
        assert!(!policy.spins(), "waiting for the next would only burn time");
        let now = arrivals(&mut policy, now, QUICK_ENOUGH, QUICK);
        assert!(policy.spins());
        policy.nothing_came(now + WINDOW);
        assert!(policy.spins(), "it may still come in time");
        policy.nothing_came(now + WINDOW + QUICK);
        assert!(!policy.spins());
    }

    #[test]
    fn a_pause_is_forgiven_to_a_busy_core_and_the_habit_of_pauses_is_not() {
        let mut policy = Policy::new(time::now());
        let now = arrivals(&mut policy, time::now(), 2 * QUICK_MOST, QUICK);
        policy.nothing_came(now + 2 * WINDOW);
        let now = arrivals(&mut policy, now, 1, QUICK);
        assert!(policy.spins());
        let now = arrivals(&mut policy, now, 1, SLOW);
        assert!(!policy.spins());
        arrivals(&mut policy, now, 1, QUICK);
        assert!(!policy.spins());
    }

    #[test]
    fn a_core_whose_processor_others_want_sleeps_longer_each_time() {
        let mut policy = Policy::new(time::now());
        let mut now = arrivals(&mut policy, time::now(), QUICK_MOST, QUICK);
        let mut backoff = BACKOFF_FIRST;
        for _ in 0..10 {
            assert!(policy.spins());
            policy.interrupted(now);
            assert!(!policy.spins());
            let quick = (backoff.as_micros() / QUICK.as_micros()) as u32;
            now = arrivals(&mut policy, now, quick - 1, QUICK);
            assert!(!policy.spins(), "{backoff:?}");
            now = arrivals(&mut policy, now, QUICK_ENOUGH + 1, QUICK);
            backoff = (2 * backoff).min(BACKOFF_MAX);
        }
        now = arrivals(&mut policy, now + 4 * BACKOFF_MAX, QUICK_MOST, QUICK);
        policy.interrupted(now);
        arrivals(&mut policy, now + BACKOFF_FIRST, QUICK_ENOUGH + 1, QUICK);
        assert!(policy.spins(), "long ago is forgotten");
    }
}
