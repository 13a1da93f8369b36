//! A Linux kernel as the initiator: Debian's own, in a guest of the lab ([`sarsen_lab::guest`]).
//!
//! `tests/guest/` contains the scenarios. A [`Guest`] runs one scenario and powers off, or continues as a server. A
//! scenario reports with lines `RESULT name value`. Downloaded files are cached in `tests/guest/cache`.

mod disc;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_lab::guest::{GuestSpec, KERNEL_ARGUMENTS, QEMU, Recipe};
use tempfile::TempDir;

use crate::process::{self, Daemon};
use crate::program;

/// Address of the host's loopback interface within QEMU's user network.
pub const HOST: &str = "10.0.2.2";

/// Emulation is slow, and slower under other load.
const LIMIT: Duration = Duration::from_secs(600);
const MEMORY_MIB: u32 = 1024;

/// What scenarios use.
const RECIPE: Recipe = Recipe {
    name: "proofs",
    packages: &[
        "bonnie++",
        "dmsetup",
        "e2fsprogs",
        "eject",
        "fio",
        "multipath-tools",
        "nbd-client",
        "open-iscsi",
        "python3-rtslib-fb",
        "sg3-utils",
        "thin-provisioning-tools",
        "udev",
        "xfsprogs",
    ],
    modules: &[
        "virtio_scsi",
        "sd_mod",
        "sg",
        "sr_mod",
        "scsi_dh_alua",
        "iscsi_tcp",
        "nbd",
        "ublk_drv",
        "iscsi_target_mod",
        "target_core_file",
        "target_core_iblock",
        "ext4",
        "xfs",
        "isofs",
        "dm_log_writes",
        "dm_multipath",
        "dm_service_time",
        "dm_thin_pool",
    ],
};

/// The results of a scenario.
#[derive(Debug)]
pub struct ScenarioReport {
    results: BTreeMap<String, String>,
    /// The whole output of the guest's console.
    pub console: String,
}

impl ScenarioReport {
    /// Returns one result, or an error with the console output if it is missing.
    pub fn result(&self, name: &str) -> Result<&str> {
        let value = self.results.get(name).map(String::as_str);
        value.with_context(|| format!("no RESULT {name}; the console:\n{}", self.console))
    }
}

/// Boots a guest that runs `tests/guest/SCENARIO.sh` with `environment`.
pub fn run(scenario: &str, environment: &[(&str, &str)]) -> Result<ScenarioReport> {
    Guest::new(scenario, environment)?.run()
}

/// Writes the program without its symbols to `folder`: the archive of a guest is in its memory.
pub fn small_program(folder: &Path) -> Result<PathBuf> {
    Ok(sarsen_lab::guest::small_program(&program::path()?, folder)?)
}

/// Returns the folder that keeps what guests boot from.
pub fn cache() -> PathBuf {
    folder().join("cache")
}

/// A guest before its boot.
#[derive(Debug)]
pub struct Guest {
    scenario: String,
    spec: GuestSpec,
    forwards: Vec<(u16, u16)>,
}

/// A guest that runs until this is dropped.
#[derive(Debug)]
pub struct RunningGuest {
    daemon: Daemon,
    work: TempDir,
}

impl RunningGuest {
    /// Waits for a result of the scenario and returns it.
    pub fn result(&self, name: &str) -> Result<String> {
        let mut found = None;
        let ready = self.daemon.wait_until(LIMIT, || -> Result<bool> {
            let console = self.console()?;
            // The last line may be incomplete.
            let whole = console.rfind('\n').map_or("", |end| &console[..end]);
            found = results(whole).remove(name);
            Ok(found.is_some())
        });
        ready.with_context(|| self.console().unwrap_or_default())?;
        found.context("a result")
    }

    /// Returns its process.
    pub fn process(&self) -> &Daemon {
        &self.daemon
    }

    /// Waits for the end of the scenario, and returns all its results.
    pub fn report(&self) -> Result<ScenarioReport> {
        let status = self.result("status")?;
        let console = self.console()?;
        ensure!(status == "0", "the scenario ended with status {status}:\n{console}");
        Ok(ScenarioReport { results: results(&console), console })
    }

    /// Returns the whole output of the console.
    pub fn console(&self) -> Result<String> {
        let bytes = fs::read(self.work.path().join("console"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Guest {
    /// Returns a guest that will run `tests/guest/SCENARIO.sh` with `environment`.
    pub fn new(scenario: &str, environment: &[(&str, &str)]) -> Result<Self> {
        let script = |name: &str| folder().join(name);
        let spec = GuestSpec::new(&RECIPE, &cache(), MEMORY_MIB)
            .file("main", &script("main.sh"))
            .file("login", &script("login.sh"))
            .file("file_system", &script("file_system.sh"))
            .file("scenario", &script(&format!("{scenario}.sh")))
            .content("environment", exports(environment)?);
        Ok(Self { scenario: scenario.into(), spec, forwards: Vec::new() })
    }

    /// Adds a program or a library of the host at `path`: a name, or a name in its own folder.
    pub fn file(mut self, path: &str, source: &Path) -> Self {
        self.spec = self.spec.file(path, source);
        self
    }

    /// Adds a disk that another process provides through a vhost-user socket. QEMU connects again whenever that process has ended.
    pub fn vhost_user_disk(self, socket: &Path) -> Self {
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on");
        let connection = format!("socket,id=disk,path={},reconnect=1", socket.display());
        self.devices(&["-object", &memory, "-machine", "memory-backend=memory"])
            .devices(&["-chardev", &connection])
            .devices(&["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2"])
    }

    /// Adds arguments for QEMU.
    pub fn devices(mut self, arguments: &[&str]) -> Self {
        self.spec = self.spec.arguments(arguments);
        self
    }

    /// Forwards a port of the host's loopback interface to the guest's TCP port `own`.
    pub fn forward(mut self, host: u16, own: u16) -> Self {
        self.forwards.push((host, own));
        self
    }

    /// Boots the guest from its kernel and its archive.
    pub fn run(&self) -> Result<ScenarioReport> {
        let work = tempfile::tempdir()?;
        let mut qemu = Command::new(QEMU);
        self.spec.boot(&mut qemu, work.path())?;
        self.play(&mut qemu)
    }

    /// Boots the guest and lets it run: its scenario does not end.
    pub fn start(&self) -> Result<RunningGuest> {
        let work = tempfile::tempdir()?;
        let console = File::create(work.path().join("console"))?;
        let errors = console.try_clone()?;
        let mut booted = Ok(());
        let daemon = Daemon::start(&[], Path::new(QEMU), |qemu| {
            self.connect(qemu.stdout(console).stderr(errors));
            booted = self.spec.boot(qemu, work.path());
        })?;
        booted?;
        Ok(RunningGuest { daemon, work })
    }

    /// Boots the guest from its devices, which contain the kernel and the archive (see [`Self::write_disc`]).
    pub fn run_from_disc(&self) -> Result<ScenarioReport> {
        let mut qemu = Command::new(QEMU);
        self.spec.machine(&mut qemu);
        self.play(&mut qemu)
    }

    /// Creates the image of a CD that boots this guest and contains `payload` under its file name.
    pub fn write_disc(&self, image: &Path, payload: &Path) -> Result<()> {
        let work = tempfile::tempdir()?;
        let (kernel, archive) = self.spec.kernel_and_archive(work.path())?;
        disc::write(image, &kernel, &archive, payload, KERNEL_ARGUMENTS)
    }

    /// Adds the network and the console.
    fn connect(&self, qemu: &mut Command) {
        let forwards = self.forwards.iter();
        let forwards = forwards
            .map(|(host, own)| format!(",hostfwd=tcp:127.0.0.1:{host}-:{own}"))
            .collect::<String>();
        let network = format!("user,id=net{forwards}");
        qemu.args(["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="])
            .args(["-serial", "stdio"]);
    }

    fn play(&self, qemu: &mut Command) -> Result<ScenarioReport> {
        self.connect(qemu);
        let console = process::output(qemu, LIMIT)?;
        let played = ScenarioReport { results: results(&console), console };
        let status = played.result("status")?;
        ensure!(status == "0", "{} ended with status {status}:\n{}", self.scenario, played.console);
        Ok(played)
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("guest")
}

/// Returns lines for the guest's shell.
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
    fn results_are_separated_from_console_output() {
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
