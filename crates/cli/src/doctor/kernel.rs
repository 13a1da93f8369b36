//! Checks of process limits, the kernel, its clock, and the confinement of this process.

use std::fs;
use std::time::Duration;

use sarsen_io::cores::{self, FileEngine};
use sarsen_io::machine::{self, Clock};
use sarsen_node::Config;
use sarsen_node::config::Limits;

use super::Finding;

/// Number of open files besides connections: volumes, rings, logs.
const OTHER_FILES: u64 = 256;
/// The first kernel version that does not count rings as locked memory.
const RINGS_WITHOUT_MEMLOCK: (u32, u32) = (5, 12);
/// The oldest kernel that is still maintained (long-term).
const OLDEST_KERNEL: (u32, u32) = (5, 10);
/// Locked memory of the rings, on kernels that count it.
const RINGS_MEMLOCK: u64 = 8 << 20;
/// An offset of the clock beyond this makes logs of two machines hard to compare.
const CLOCK_ERROR: Duration = Duration::from_secs(1);

pub(super) fn findings(config: Option<&Config>) -> Vec<Finding> {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let connections =
        config.map_or(Limits::default(), |config| config.limits.clone()).connections.get();
    let uring = cores::block_on(FileEngine::Uring, async {}).map_err(|error| error.to_string());
    vec![
        open_files(hard_limit(&limits, "Max open files"), connections as u64, volumes(config)),
        kernel(&release),
        locked_memory(version(&release), hard_limit(&limits, "Max locked memory")),
        io_uring(uring.err().as_deref(), &Confinement::read()),
        confinement(&Confinement::read()),
        clock(&machine::clock()),
        machine_id(fs::read_to_string("/etc/machine-id").ok().as_deref()),
    ]
}

fn volumes(config: Option<&Config>) -> u64 {
    config.map_or(0, |config| config.volumes.len() as u64)
}

/// Returns the hard limit of a line of `/proc/self/limits`: none if there is no such line, `u64::MAX` if it is
/// unlimited.
fn hard_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

fn open_files(limit: Option<u64>, connections: u64, volumes: u64) -> Finding {
    const CHECK: &str = "open-files";
    let wanted = connections + 2 * volumes + OTHER_FILES;
    match limit {
        None => Finding::unknown(CHECK, "the limit of open files", &"/proc/self/limits is missing"),
        Some(limit) if limit < wanted => Finding::warning(
            CHECK,
            format!(
                "the limit of open files is {limit}; {connections} connections and the volumes need \
                 {wanted}"
            ),
            format!(
                "ulimit -n {wanted}, LimitNOFILE={wanted} in the unit, or a lower limits.connections"
            ),
        ),
        Some(u64::MAX) => Finding::ok(CHECK, "no limit of open files"),
        Some(limit) => Finding::ok(CHECK, format!("the limit of open files is {limit}")),
    }
}

/// Returns the major and minor version.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn kernel(release: &str) -> Finding {
    const CHECK: &str = "kernel";
    let release = release.trim();
    match version(release) {
        None => Finding::unknown(CHECK, "the kernel's version", &format!("it is {release:?}")),
        Some(found) if found < OLDEST_KERNEL => Finding::warning(
            CHECK,
            format!("Linux {release} is older than the tested kernels"),
            "run Linux 6.1 or later",
        ),
        Some(_) => Finding::ok(CHECK, format!("Linux {release}")),
    }
}

fn locked_memory(version: Option<(u32, u32)>, limit: Option<u64>) -> Finding {
    const CHECK: &str = "locked-memory";
    match (version, limit) {
        (Some(version), _) if version >= RINGS_WITHOUT_MEMLOCK => {
            Finding::ok(CHECK, "this kernel does not count rings as locked memory")
        }
        (_, Some(limit)) if limit < RINGS_MEMLOCK => Finding::warning(
            CHECK,
            format!(
                "the limit of locked memory is {limit} bytes: io_uring may not get memory for its rings"
            ),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
        ),
        (_, Some(_)) => {
            Finding::ok(CHECK, "the limit of locked memory is high enough for io_uring's rings")
        }
        (_, None) => {
            Finding::unknown(CHECK, "the limit of locked memory", &"/proc/self/limits is missing")
        }
    }
}

/// The restrictions of this process.
struct Confinement {
    /// A seccomp filter is active.
    seccomp: bool,
    /// The profile or context of AppArmor or SELinux, with its mode.
    label: Option<String>,
    /// kernel.io_uring_disabled.
    io_uring_disabled: Option<u8>,
}

impl Confinement {
    fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let label = fs::read_to_string("/proc/self/attr/current").ok();
        let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok();
        Self {
            seccomp: has_filter(&status),
            label: label.map(|label| label.trim_matches(['\0', '\n', ' ']).to_owned()),
            io_uring_disabled: disabled.and_then(|text| text.trim().parse().ok()),
        }
    }
}

fn has_filter(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

fn io_uring(error: Option<&str>, confinement: &Confinement) -> Finding {
    const CHECK: &str = "io-uring";
    let Some(error) = error else {
        return Finding::ok(CHECK, "files are read and written by io_uring");
    };
    let finding = format!(
        "io_uring is not available ({error}): files are read and written by threads, which is slower"
    );
    let remedy = match (confinement.io_uring_disabled, confinement.seccomp) {
        (Some(disabled @ (1 | 2)), _) => {
            format!("sysctl kernel.io_uring_disabled=0 (it is {disabled})")
        }
        (_, true) => "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp \
                      profile (SystemCallFilter=@aio in a unit; containers need a profile of \
                      their own)"
            .to_owned(),
        _ => "run a kernel with CONFIG_IO_URING, 5.10 or later".to_owned(),
    };
    Finding::warning(CHECK, finding, remedy)
}

fn confinement(confinement: &Confinement) -> Finding {
    const CHECK: &str = "confinement";
    match confinement.label.as_deref() {
        // AppArmor writes `name (enforce)`. SELinux writes user:role:type:level without a mode.
        Some(label) if label.ends_with("(enforce)") => Finding::warning(
            CHECK,
            format!("AppArmor confines this process: {label}"),
            "see that the profile allows the volumes' paths and the portals (journalctl -k -g DENIED)",
        ),
        Some(label) if label.matches(':').count() >= 3 && !label.contains("unconfined") => {
            Finding::warning(
                CHECK,
                format!("SELinux confines this process: {label}"),
                "see that the policy allows the volumes' paths and the portals (ausearch -m AVC)",
            )
        }
        _ => Finding::ok(CHECK, "neither AppArmor nor SELinux confines this process"),
    }
}

fn clock(clock: &std::io::Result<Clock>) -> Finding {
    const CHECK: &str = "clock";
    match clock {
        Err(error) => Finding::unknown(CHECK, "the clock", error),
        Ok(Clock { synchronised: false, .. }) => Finding::warning(
            CHECK,
            "the clock is not synchronised; logs, certificates and schedules depend on it",
            "run chrony or systemd-timesyncd (timedatectl set-ntp true)",
        ),
        Ok(Clock { maximum_error, .. }) if *maximum_error > CLOCK_ERROR => Finding::warning(
            CHECK,
            format!("this machine's clock may be off by {:.1} s", maximum_error.as_secs_f64()),
            "check that the time servers are reachable (chronyc sources, timedatectl)",
        ),
        Ok(_) => Finding::ok(CHECK, "the clock is synchronised"),
    }
}

fn machine_id(id: Option<&str>) -> Finding {
    const CHECK: &str = "machine-id";
    match id.map(str::trim) {
        Some(id) if !id.is_empty() && id != "uninitialized" => {
            Finding::ok(CHECK, "volumes without a serial number have a permanent identity")
        }
        _ => Finding::problem(
            CHECK,
            "/etc/machine-id is missing: volumes without a serial number get another identity at each restart",
            "systemd-machine-id-setup, or give each volume a serial",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const LIMITS: &str = "\
Limit                     Soft Limit           Hard Limit           Units     \n\
Max open files            1024                 524288               files     \n\
Max locked memory         65536                unlimited            bytes     \n";

    #[test]
    fn hard_limit_decides() {
        assert_eq!(hard_limit(LIMITS, "Max open files"), Some(524_288));
        assert_eq!(hard_limit(LIMITS, "Max locked memory"), Some(u64::MAX));
        assert_eq!(hard_limit(LIMITS, "Max nothing"), None);
    }

    #[test]
    fn connections_and_volumes_must_fit_into_the_open_files() {
        assert_eq!(open_files(Some(20_000), 20_000, 0).level, Level::Warning);
        assert_eq!(open_files(Some(524_288), 20_000, 10_000).level, Level::Ok);
        assert_eq!(open_files(Some(40_000), 20_000, 10_000).level, Level::Warning);
        assert_eq!(open_files(None, 1, 0).level, Level::Ok);
    }

    #[test]
    fn old_kernel_is_reported() {
        assert_eq!(version("6.1.0-28-amd64\n"), Some((6, 1)));
        assert_eq!(version("5.10+rpi"), Some((5, 10)));
        assert_eq!(version("plan9"), None);
        assert_eq!(kernel("4.19.0-5\n").level, Level::Warning);
        assert_eq!(kernel("6.12.3\n"), Finding::ok("kernel", "Linux 6.12.3"));
    }

    #[test]
    fn locked_memory_matters_where_rings_are_counted() {
        assert_eq!(locked_memory(Some((5, 10)), Some(65_536)).level, Level::Warning);
        assert_eq!(locked_memory(Some((5, 10)), Some(u64::MAX)).level, Level::Ok);
        assert_eq!(locked_memory(Some((6, 1)), Some(65_536)).level, Level::Ok);
    }

    fn confined(label: &str) -> Confinement {
        Confinement { seccomp: false, label: Some(label.into()), io_uring_disabled: Some(0) }
    }

    #[test]
    fn reason_for_disabled_io_uring_is_named() {
        let open = confined("unconfined");
        assert_eq!(io_uring(None, &open).level, Level::Ok);
        let sysctl = Confinement { io_uring_disabled: Some(2), ..confined("") };
        let remedy = io_uring(Some("EPERM"), &sysctl).remedy.unwrap_or_default();
        assert!(remedy.contains("kernel.io_uring_disabled=0 (it is 2)"), "{remedy}");
        let filter = Confinement { seccomp: true, ..confined("") };
        let remedy = io_uring(Some("EPERM"), &filter).remedy.unwrap_or_default();
        assert!(remedy.contains("seccomp"), "{remedy}");
        assert!(has_filter("Name:\tx\nSeccomp:\t2\n") && !has_filter("Seccomp:\t0\n"));
    }

    #[test]
    fn active_profile_is_reported() {
        assert_eq!(confinement(&confined("sarsen (enforce)")).level, Level::Warning);
        assert_eq!(confinement(&confined("sarsen (complain)")).level, Level::Ok);
        assert_eq!(confinement(&confined("unconfined")).level, Level::Ok);
        let context = "system_u:system_r:container_t:s0:c1,c2";
        assert_eq!(confinement(&confined(context)).level, Level::Warning);
    }

    #[test]
    fn unsynchronised_clock_is_reported() {
        assert_eq!(clock_level(false, 0), Level::Warning);
        assert_eq!(clock_level(true, 0), Level::Ok);
        assert_eq!(clock_level(true, 16), Level::Warning);
    }

    fn clock_level(synchronised: bool, seconds: u64) -> Level {
        let maximum_error = Duration::from_secs(seconds);
        clock(&Ok(Clock { synchronised, maximum_error })).level
    }

    #[test]
    fn a_machine_without_an_identity_is_a_problem() {
        assert_eq!(machine_id(None).level, Level::Problem);
        assert_eq!(machine_id(Some("\n")).level, Level::Problem);
        assert_eq!(machine_id(Some("uninitialized\n")).level, Level::Problem);
        assert_eq!(machine_id(Some("0123456789abcdef\n")).level, Level::Ok);
    }
}
