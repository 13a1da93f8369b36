//! Other programs, each with a limit: those that run to an end and those that stay.
//!
//! A program that stays dies with the thread that started it (`setpriv --pdeathsig`), so that
//! nothing is left when a test run is killed.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// How often a condition that nothing announces is looked at again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Debian's package for a program that a proof needs.
const PACKAGES: &[(&str, &str)] = &[
    ("bon_csv2txt", "bonnie++"),
    ("bonnie++", "bonnie++"),
    ("iscsi-inq", "libiscsi-bin"),
    ("iscsi-test-cu", "libiscsi-bin"),
    ("istgt", "istgt"),
    ("nbdkit", "nbdkit"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("tgtadm", "tgt"),
    ("tgtd", "tgt"),
];

/// What a command left when it ended or was ended.
#[derive(Debug)]
pub struct Finished {
    /// `None`: it ran past its limit and was killed with all its children.
    pub status: Option<ExitStatus>,
    /// Both of its outputs, in the order they were written.
    pub output: String,
}

impl Finished {
    /// The output, or an error with the output in it.
    pub fn success(self) -> Result<String> {
        match self.status {
            Some(status) if status.success() => Ok(self.output),
            Some(status) => bail!("{status}:\n{}", self.output),
            None => bail!("it ran past its limit; until then it said:\n{}", self.output),
        }
    }
}

/// Runs `command` to its end, at most for `limit`.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished> {
    let log = tempfile::tempfile().context("a file for its output")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log.try_clone()?)
        .process_group(0)
        .spawn()
        .with_context(|| cannot_start(command))?;
    let status = match wait(&mut child, limit)? {
        Some(status) => Some(status),
        None => {
            kill_process_group(Pid::from_child(&child), Signal::KILL)?;
            child.wait()?;
            None
        }
    };
    Ok(Finished { status, output: read_all(log)? })
}

/// Like [`finish`], and anything but success is an error that names the command.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    finish(command, limit)?.success().with_context(|| format!("{command:?}"))
}

/// A program that runs until it is dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    name: String,
}

impl Daemon {
    /// Starts `program`; `configure` gives it arguments, environment and outputs.
    pub fn start(program: &Path, configure: impl FnOnce(&mut Command)) -> Result<Self> {
        let name = program.display().to_string();
        let found = find(program).with_context(|| cannot_start(&Command::new(program)))?;
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(found).stdin(Stdio::null());
        configure(&mut command);
        let child = command.spawn().with_context(|| cannot_start(&command))?;
        Ok(Self { child, name })
    }

    /// The process, for its standard output.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// `None` while it runs.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for `ready` to say yes; an error when the program ends first or `limit` passes.
    pub fn wait_until(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !ready()? {
            if let Some(status) = self.ended()? {
                bail!("{} ended before it was ready: {status}", self.name);
            }
            ensure!(Instant::now() < deadline, "{} was not ready within {limit:?}", self.name);
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Waits for the end.
    pub fn wait_for_end(&mut self, limit: Duration) -> Result<ExitStatus> {
        wait(&mut self.child, limit)?
            .with_context(|| format!("{} did not end within {limit:?}", self.name))
    }

    /// Asks it to end with SIGTERM and waits.
    pub fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        self.wait_for_end(limit)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Both fail when it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            return Ok(None);
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn read_all(mut log: File) -> Result<String> {
    use std::io::Seek as _;
    log.rewind()?;
    let mut bytes = Vec::new();
    log.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Where a program is: its own path, or the first of its name in PATH.
pub fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    // Daemons live in /usr/sbin, which is not in everyone's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/sbin")])
        .map(|folder| folder.join(program))
        .find(|candidate| candidate.is_file())
}

fn cannot_start(command: &Command) -> String {
    let program = command.get_program().to_string_lossy();
    match PACKAGES.iter().find(|(name, _)| *name == program) {
        Some((_, package)) => {
            format!("{program} cannot be started: `apt-get install {package}` brings it")
        }
        None => format!("{program} cannot be started"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_past_its_limit_is_killed_and_what_it_said_is_kept() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo begun; sleep 60 & wait"]);
        let finished = finish(&mut command, Duration::from_millis(300)).unwrap();
        assert!(finished.status.is_none());
        assert_eq!(finished.output, "begun\n");
    }

    #[test]
    fn a_failure_carries_the_command_and_what_it_said() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such volume >&2; exit 3"]);
        let error = output(&mut command, Duration::from_secs(10)).unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains("no such volume") && error.contains("exit 3"), "{error}");
    }

    #[test]
    fn a_missing_client_names_its_package() {
        let error = cannot_start(&Command::new("qemu-io"));
        assert!(error.contains("apt-get install qemu-utils"), "{error}");
    }

    #[test]
    fn a_daemon_that_ends_early_is_told_from_one_that_is_slow() {
        let mut daemon = Daemon::start(Path::new("false"), |_| {}).unwrap();
        let error = daemon.wait_until(Duration::from_secs(10), || Ok(false)).unwrap_err();
        assert!(error.to_string().contains("ended before it was ready"), "{error}");
    }
}
