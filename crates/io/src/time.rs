//! The clock and the timers. The machines above get the time as an argument; they never read the clock.

use std::time::{Duration, Instant, SystemTime};

/// Returns the monotonic time.
#[cfg(not(feature = "simulation"))]
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the monotonic time of the runtime, which a simulation can stop and advance.
#[cfg(feature = "simulation")]
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the wall-clock time, for logs and displayed timestamps; it may jump.
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn wall_clock() -> SystemTime {
    SystemTime::now()
}

/// Returns the processor time that the calling thread has used.
pub(crate) fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// Waits until `deadline`, with the runtime's resolution of a millisecond.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(tokio::time::Instant::from_std(deadline)).await;
}

/// Stops the thread for this time: never on a core.
#[allow(clippy::disallowed_methods)] // this is the module that owns the clock
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
