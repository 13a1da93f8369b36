//! Makes wake-ups cost more, as on a virtual machine whose host is busy. The feature `slow-wake-ups`, which no released
//! program uses, adds this for the benchmark. Without it, a wait is only a wait.

/// Environment variable with the microseconds of processor time that a wake-up costs in addition.
pub const VARIABLE: &str = "SARSEN_WAKE_UP_COST_US";

/// Executes a function in which the calling thread may sleep, and charges the wake-up.
#[cfg(not(feature = "slow-wake-ups"))]
#[inline]
pub fn wait<T>(wait: impl FnOnce() -> T) -> T {
    wait()
}

#[cfg(feature = "slow-wake-ups")]
pub use costly::{before_sleep, charge, wait};

#[cfg(feature = "slow-wake-ups")]
mod costly {
    use std::cell::Cell;
    use std::sync::LazyLock;
    use std::time::Duration;

    use crate::{switches, time};

    static COST: LazyLock<Option<Duration>> = LazyLock::new(|| {
        let text = std::env::var(super::VARIABLE).ok()?;
        let microseconds = text.parse().unwrap_or_else(|_| panic!("{}: {text}", super::VARIABLE));
        Some(Duration::from_micros(microseconds))
    });

    thread_local! {
        /// Number of times that the thread had slept before its current wait.
        static SLEPT: Cell<i64> = const { Cell::new(0) };
    }

    /// Executes a function in which the calling thread may sleep, and charges the wake-up.
    pub fn wait<T>(wait: impl FnOnce() -> T) -> T {
        before_sleep();
        let result = wait();
        charge();
        result
    }

    /// Notes that the calling thread waits.
    pub fn before_sleep() {
        if COST.is_some() {
            SLEPT.set(switches::of_this_thread().voluntary);
        }
    }

    /// Occupies the processor for the cost of a wake-up, if the thread has slept since it began to wait.
    pub fn charge() {
        if let Some(cost) = *COST
            && switches::of_this_thread().voluntary != SLEPT.get()
        {
            let awake = time::now();
            while time::now() - awake < cost {
                std::hint::spin_loop();
            }
        }
    }
}
