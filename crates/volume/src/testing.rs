//! Helpers of tests: a clock, and the results of requests.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sarsen_block::{Io, LocalFuture};

use crate::Clock;

/// Returns the time.
#[allow(clippy::disallowed_methods)] // tests are outside the machines that must not read the clock
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the result, or `None` if the request waits.
pub(crate) fn answer<T>(io: Io<T>) -> Option<T> {
    match pin!(io.wait()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

struct TestClock;

impl Clock for TestClock {
    fn now(&self) -> Instant {
        now()
    }

    fn sleep_until(&self, _: Instant) -> LocalFuture<()> {
        Box::pin(std::future::pending())
    }
}

/// Returns a clock whose timers never expire.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(TestClock)
}
