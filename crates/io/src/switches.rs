//! How often the kernel gave the processor of a thread to another thread.

/// The number of context switches of a thread.
pub(crate) struct Switches {
    /// The thread slept.
    #[cfg_attr(not(feature = "slow-wake-ups"), allow(dead_code))]
    pub(crate) voluntary: i64,
    /// The thread could run.
    pub(crate) involuntary: i64,
}

/// Returns the switches of the calling thread.
#[allow(unsafe_code)]
pub(crate) fn of_this_thread() -> Switches {
    // SAFETY: all zeroes is a valid rusage, which the call fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    Switches { voluntary: usage.ru_nvcsw, involuntary: usage.ru_nivcsw }
}
