//! A Linux kernel as the initiator: Debian's own, booted by QEMU under software emulation from an
//! archive in memory, needing neither root nor KVM.
//!
//! `tests/guest/` holds the guest's first program (`init`) and its scenarios; [`run`] boots a
//! guest that plays one and powers off. A scenario reports with lines `RESULT name value`. What
//! is downloaded is kept in `tests/guest/cache`.

mod archive;
mod base;
mod modules;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::process;
use archive::Archive;

/// Where the host's loopback is, seen from inside QEMU's user network.
pub const HOST: &str = "10.0.2.2";

/// Emulation is slow, and slower still beside other work.
const LIMIT: Duration = Duration::from_secs(600);
const MEMORY_MIB: u32 = 512;
/// On a busy machine emulated timer ticks come so late that the kernel takes the timer for broken;
/// it is not to look.
const KERNEL_ARGUMENTS: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 no_timer_check";

/// What a scenario reported.
#[derive(Debug)]
pub struct Played {
    results: BTreeMap<String, String>,
    /// All that the guest's console showed.
    pub console: String,
}

impl Played {
    /// One result; an error with the console when the scenario did not get that far.
    pub fn result(&self, name: &str) -> Result<&str> {
        let value = self.results.get(name).map(String::as_str);
        value.with_context(|| format!("no RESULT {name}; the console:\n{}", self.console))
    }
}

/// Boots a guest that plays `tests/guest/SCENARIO.sh` with `environment`.
pub fn run(scenario: &str, environment: &[(&str, &str)]) -> Result<Played> {
    let base = base::prepare(&folder())?;
    let work = tempfile::tempdir()?;
    let initrd = work.path().join("initrd");
    let mut archive = Archive::append_to_copy(&base.archive, &initrd)?;
    let script = |name: &str| {
        let path = folder().join(name);
        fs::read(&path).with_context(|| path.display().to_string())
    };
    archive.file("init", 0o755, &script("init")?)?;
    archive.file("login", 0o644, &script("login.sh")?)?;
    archive.file("scenario", 0o755, &script(&format!("{scenario}.sh"))?)?;
    archive.file("environment", 0o644, exports(environment)?.as_bytes())?;
    archive.finish()?;

    let mut qemu = Command::new("qemu-system-x86_64");
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"])
        .args(["-accel", "tcg", "-cpu", "max,la57=off", "-m", &MEMORY_MIB.to_string()])
        .args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="])
        .args(["-serial", "stdio", "-monitor", "none"])
        .arg("-kernel")
        .arg(&base.kernel)
        .arg("-initrd")
        .arg(&initrd)
        .args(["-append", KERNEL_ARGUMENTS]);
    let console = process::output(&mut qemu, LIMIT)?;
    let played = Played { results: results(&console), console };
    let status = played.result("status")?;
    ensure!(status == "0", "{scenario} ended with status {status}:\n{}", played.console);
    Ok(played)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Lines for the guest's shell.
fn exports(environment: &[(&str, &str)]) -> Result<String> {
    let mut lines = String::new();
    for (name, value) in environment {
        ensure!(!value.contains('\''), "{name} contains a quotation mark");
        lines += &format!("export {name}='{value}'\n");
    }
    Ok(lines)
}

fn results(console: &str) -> BTreeMap<String, String> {
    console
        .lines()
        .filter_map(|line| line.trim_end().strip_prefix("RESULT "))
        .filter_map(|line| line.split_once(' '))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_from_the_rest_of_the_console() {
        let console = "[ 1.0] sda: RESULT no\r\nRESULT written 1f2e\r\nRESULT status 0\r\n";
        let results = results(console);
        assert_eq!(results.len(), 2);
        assert_eq!(results["written"], "1f2e");
    }

    #[test]
    fn a_value_cannot_leave_its_quotation_marks() {
        assert_eq!(exports(&[("A", "b c")]).unwrap(), "export A='b c'\n");
        assert!(exports(&[("A", "'; rm -r /")]).is_err());
    }
}
