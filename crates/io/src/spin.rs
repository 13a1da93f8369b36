//! A busy core looks for more work for a moment before it sleeps.
//!
//! When requests arrive one after the other, most of a round trip is the wake-up of the thread that answers. So each
//! core has a task that keeps its event loop running, without sleeping, while requests arrive in quick succession and
//! spinning pays (`spin/policy.rs`). A core without requests sleeps. A core also sleeps if another thread needs its processor.

mod policy;

use std::cell::Cell;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use self::policy::Policy;
use crate::{switches, time};

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

/// A turn that took longer than this may have been interrupted.
const LONG_TURN: Duration = Duration::from_micros(100);

thread_local! {
    static CORE: Core = const {
        Core {
            note_activity: Cell::new(false),
            requests: Cell::new(0),
            spun: Cell::new(Duration::ZERO),
            waited: Cell::new(None),
            asleep: Cell::new(None),
        }
    };
}

struct Core {
    note_activity: Cell<bool>,
    /// Requests that began on the core.
    requests: Cell<u32>,
    /// Time of the short turns in which no event came.
    spun: Cell<Duration>,
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

/// Notes that the calling core begins this number of requests. Returns how the core waited, if it had no work until now.
#[inline]
pub fn begin(requests: usize) -> Option<Wait> {
    CORE.with(|core| {
        core.requests.set(core.requests.get().wrapping_add(requests as u32));
        core.waited.take()
    })
}

/// What a core has done since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Its processor time, without the time in which it spun.
    pub time: Duration,
    /// The requests that it began. The number wraps around.
    pub requests: u32,
}

/// Returns what the calling core has done.
pub fn work() -> Work {
    CORE.with(|core| Work {
        time: time::processor_time().saturating_sub(core.spun.get()),
        requests: core.requests.get(),
    })
}

/// Keeps the calling core awake while that pays; never returns.
pub(crate) async fn drive() {
    let mut policy = Policy::new(time::now());
    let mut counted = 0;
    loop {
        arrival().await;
        policy.arrived(time::now(), new_requests(&mut counted));
        if policy.spins() {
            spin(&mut policy, &mut counted).await;
        }
    }
}

async fn spin(policy: &mut Policy, counted: &mut u32) {
    let interruptions = switches::of_this_thread().involuntary;
    let mut looked = time::now();
    while policy.spins() {
        tokio::task::yield_now().await;
        let now = time::now();
        let turn = now - looked;
        let took_long = turn > LONG_TURN;
        looked = now;
        let came = CORE.with(|core| {
            let came = core.note_activity.take();
            core.waited.set((!came).then_some(Wait::Awake));
            if !came && !took_long {
                core.spun.set(core.spun.get() + turn);
            }
            came
        });
        // A turn may also take long because of its work, or because the host of a virtual machine took the processor:
        // then sleeping would only add a wake-up. The kernel is asked rarely, because that is a system call.
        if took_long && switches::of_this_thread().involuntary != interruptions {
            return policy.interrupted(now, turn);
        }
        if came {
            policy.arrived(now, new_requests(counted));
        } else {
            policy.nothing_came(now);
        }
    }
}

/// Returns the number of requests that began since the last call.
fn new_requests(counted: &mut u32) -> u32 {
    let requests = CORE.with(|core| core.requests.get());
    requests.wrapping_sub(std::mem::replace(counted, requests))
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
