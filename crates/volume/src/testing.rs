//! The clock of tests.

use std::sync::Arc;
use std::time::Instant;

use sarsen_block::LocalFuture;

use crate::Clock;

/// Returns the time.
#[allow(clippy::disallowed_methods)] // tests are outside the machines that must not read the clock
pub(crate) fn now() -> Instant {
    Instant::now()
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
