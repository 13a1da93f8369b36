//! The clock and the timers. The machines above are handed the time; they never read it.

use std::time::{Duration, Instant, SystemTime};

/// The monotonic time.
#[cfg(not(feature = "simulation"))]
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn now() -> Instant {
    Instant::now()
}

/// The monotonic time of the runtime, which a simulation stops and turns on as it likes.
#[cfg(feature = "simulation")]
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The wall clock, for logs and timestamps that people read; it may jump.
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Ends at `deadline`, to the runtime's millisecond.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(tokio::time::Instant::from_std(deadline)).await;
}

/// Stops the thread for so long: never on a core.
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
