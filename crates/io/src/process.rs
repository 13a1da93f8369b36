//! This process: protection of its memory and files, and its use of the machine.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, Signal};

/// Excludes this process's memory from core dumps, and denies other processes of the same user access to it
/// (PR_SET_DUMPABLE of prctl(2)). It holds until this process executes another program.
pub fn keep_memory_private() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Makes all files and folders that are created from here on private to their owner (umask(2)).
pub fn keep_files_private() {
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
}

/// A flag of open(2): a block device that is mounted, or part of another device, is busy.
pub const OPEN_EXCLUSIVELY: i32 = libc::O_EXCL;

/// Returns whether this process has the rights of root.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Closes all descriptors but the standard ones in the programs that this process starts from here on.
pub fn keep_descriptors_private() -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    // SAFETY: the flag changes only what a program that is executed later inherits.
    #[allow(unsafe_code)]
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, last, flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Asks a process to end (SIGTERM). A process that has ended is no error.
pub fn terminate(process: u32) -> io::Result<()> {
    let Some(process) = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    match rustix::process::kill_process(process, Signal::TERM) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        sent => Ok(sent?),
    }
}

/// Starts a program that the kernel ends when the calling thread ends, however that happens (PR_SET_PDEATHSIG of
/// prctl(2)).
pub fn spawn_dependent(command: &mut Command) -> io::Result<Child> {
    let set = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec, `set` only makes a system call: it allocates nothing and takes no lock.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(set);
    }
    command.spawn()
}

/// The resources that this process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU time of the program, and of the kernel on its behalf.
    pub processor_time: Duration,
    /// Bytes of resident memory.
    pub resident_bytes: u64,
    /// Bytes of address space.
    pub virtual_bytes: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// The maximum of open descriptors, if there is one.
    pub descriptor_limit: Option<u64>,
    /// Start time, in seconds since 1970.
    pub start_unix_seconds: f64,
}

/// Returns the resources that this process uses now (proc(5)).
pub fn usage() -> io::Result<Usage> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let machine = fs::read_to_string("/proc/stat")?;
    // One descriptor is that of the directory which is read here.
    let descriptors = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1) as u64;
    let descriptor_limit = rustix::process::getrlimit(Resource::Nofile).current;
    let ticks = rustix::param::clock_ticks_per_second();
    let page = rustix::param::page_size() as u64;
    let of_files = parse(&stat, &machine, ticks, page);
    let of_files = of_files.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(Usage { descriptors, descriptor_limit, ..of_files })
}

fn parse(stat: &str, machine: &str, ticks: u64, page: u64) -> Option<Usage> {
    // The second field is the program's name in parentheses, which may contain any character; the third field is the
    // first one here.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let booted = machine.lines().find_map(|line| line.strip_prefix("btime "))?;
    let seconds = |count: u64| count as f64 / ticks as f64;
    Some(Usage {
        processor_time: Duration::from_secs_f64(seconds(number(14)? + number(15)?)),
        start_unix_seconds: booted.trim().parse::<f64>().ok()? + seconds(number(22)?),
        virtual_bytes: number(23)?,
        resident_bytes: number(24)?.checked_mul(page)?,
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_whatever_its_program_is_called() {
        let stat =
            "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 250 50 0 0 20 0 9 0 4200 8192000 25 1 2 3";
        let usage = parse(stat, "cpu 1 2\nbtime 1000\n", 100, 4096).expect("numbers");
        assert_eq!(usage.processor_time, Duration::from_secs(3));
        assert_eq!(usage.start_unix_seconds, 1042.0);
        assert_eq!((usage.virtual_bytes, usage.resident_bytes), (8_192_000, 102_400));
        assert_eq!(parse("7 (a) S 1", "btime 1\n", 100, 4096), None);
    }

    #[test]
    fn resource_usage_is_read_from_kernel() {
        let usage = usage().expect("proc is there");
        assert!(
            usage.resident_bytes > 0 && usage.virtual_bytes > usage.resident_bytes,
            "{usage:?}"
        );
        assert!(usage.descriptors >= 3 && usage.start_unix_seconds > 1e9, "{usage:?}");
    }
}
