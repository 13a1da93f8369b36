//! CPU time and memory of processes, as the kernel reports them.

use std::fs;
use std::io;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use super::LoadError;

/// The resources that a measurement used.
pub(super) struct Usage {
    pub(super) seconds: f64,
    pub(super) client_ns: u64,
    /// Time in which the calling thread was ready to run and waited for a processor.
    pub(super) client_wait_ns: Option<u64>,
    pub(super) target_ns: u64,
    pub(super) target_rss_kib: u64,
}

/// Measures elapsed time and the CPU time of the calling thread and of the target's processes.
pub(super) struct Meter<'a> {
    pids: &'a [u32],
    begin: Instant,
    client_ns: u64,
    client_wait_ns: Option<u64>,
    target_ns: u64,
}

impl<'a> Meter<'a> {
    pub(super) fn start(pids: &'a [u32]) -> Result<Self, LoadError> {
        let target_ns = cpu_ns(pids)?;
        let (client_ns, client_wait_ns) = (own_cpu_ns(), own_wait_ns());
        Ok(Self { pids, begin: sarsen_io::time::now(), client_ns, client_wait_ns, target_ns })
    }

    pub(super) const fn begin(&self) -> Instant {
        self.begin
    }

    /// Returns the usage until `end`, which is now.
    pub(super) fn stop(&self, end: Instant) -> Result<Usage, LoadError> {
        Ok(Usage {
            seconds: end.duration_since(self.begin).as_secs_f64(),
            client_ns: own_cpu_ns() - self.client_ns,
            client_wait_ns: own_wait_ns()
                .zip(self.client_wait_ns)
                .map(|(now, before)| now.saturating_sub(before)),
            target_ns: cpu_ns(self.pids)?.saturating_sub(self.target_ns),
            target_rss_kib: resident_kib(self.pids)?,
        })
    }
}

/// Returns the CPU time of the calling thread.
fn own_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time in which the calling thread was ready to run and waited for a processor.
fn own_wait_ns() -> Option<u64> {
    waited(&fs::read_to_string("/proc/thread-self/schedstat").ok()?)
}

/// Returns the second field of a `schedstat`.
fn waited(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the CPU time of all existing threads of these processes. The CPU time of ended threads is not included.
fn cpu_ns(pids: &[u32]) -> Result<u64, LoadError> {
    let mut total = 0;
    for &pid in pids {
        total += process_cpu_ns(pid).map_err(|source| LoadError::Process { pid, source })?;
    }
    Ok(total)
}

fn process_cpu_ns(pid: u32) -> io::Result<u64> {
    let mut total = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end between the listing and the reading.
        let Ok(text) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        let run_time = text.split_ascii_whitespace().next().and_then(|field| field.parse().ok());
        total += run_time.unwrap_or(0);
    }
    Ok(total)
}

/// Returns the resident memory of these processes.
fn resident_kib(pids: &[u32]) -> Result<u64, LoadError> {
    let mut total = 0;
    for &pid in pids {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))
            .map_err(|source| LoadError::Process { pid, source })?;
        total += resident_of(&status);
    }
    Ok(total)
}

fn resident_of(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_ascii_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_time_and_memory() {
        let me = [std::process::id()];
        assert!(cpu_ns(&me).unwrap() > 0);
        assert!(own_cpu_ns() > 0);
        assert_eq!(waited("2130 417 9\n"), Some(417));
        assert_eq!(waited("0\n"), None);
        assert!(resident_kib(&me).unwrap() > 100);
        assert!(cpu_ns(&[u32::MAX]).is_err());
    }

    #[test]
    fn a_process_without_memory_counts_nothing() {
        assert_eq!(resident_of("Name:\tkthreadd\nThreads:\t1\n"), 0);
        assert_eq!(resident_of("VmRSS:\t    1234 kB\n"), 1234);
    }
}
