//! A server or a verb does not end because of its own output. Standard output and standard error may be closed, on a
//! full disk, a pipe that no process reads, or a pipe whose reader has ended.

use std::io::{PipeReader, PipeWriter, Write as _, pipe};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Pid, Signal, kill_process};
use sarsen_io::time::now;
use sarsen_proof::program;
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);
/// Number of refusals, more than the maximum of log lines for one source.
const REFUSALS: usize = 12;
/// Exit status (`sarsen --help`): a named object does not exist.
const NOT_FOUND: i32 = 3;

/// A server with the standard output and standard error of a case.
struct Server {
    folder: tempfile::TempDir,
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts a server; a shell applies `redirection` first.
    fn start(redirection: &str, stdout: Stdio, stderr: Stdio) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec \"$@\" {redirection}")).arg("sh");
        command.arg(program::path()?).args(["serve", "--listen", "127.0.0.1:0"]);
        command.args(["--volume", "data=ram:1MiB", "--logout-grace", "0", "--control"]);
        command.arg(folder.path().join("control")).env("RUST_LOG", "debug");
        let process = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn()?;
        Ok(Self { folder, process })
    }

    /// Returns the server's target, after its start.
    fn target(&mut self) -> Result<(String, String)> {
        let deadline = now() + LIMIT;
        loop {
            let output = verb(&["target", "list", "--json", "--control"])?
                .arg(self.folder.path().join("control"))
                .output()?;
            if output.status.success() {
                let listed: Value = serde_json::from_slice(&output.stdout)?;
                let target = &listed["targets"][0];
                let portal = target["portals"][0]["address"].as_str().context("a portal")?;
                return Ok((portal.into(), target["name"].as_str().context("a name")?.into()));
            }
            if let Some(status) = self.process.try_wait()? {
                bail!("it ended with {status}");
            }
            ensure!(now() < deadline, "it does not serve");
        }
    }

    /// Makes the server log, and checks whether it still serves.
    fn goes_on(&mut self) -> Result<()> {
        let (portal, name) = self.target()?;
        let absent = format!("iscsi://{portal}/{name}-absent/0");
        for _ in 0..REFUSALS {
            let status = verb(&["disk", "info", &absent])?.output()?.status;
            ensure!(status.code() == Some(NOT_FOUND), "a target that is not there: {status}");
        }
        let output = verb(&["disk", "info", &format!("iscsi://{portal}/{name}/0")])?.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "it serves no more: {said}");
        ensure!(self.process.try_wait()?.is_none(), "it has ended");
        Ok(())
    }

    fn stop(mut self) -> Result<ExitStatus> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("a process")?, Signal::TERM)?;
        let deadline = now() + LIMIT;
        loop {
            if let Some(status) = self.process.try_wait()? {
                return Ok(status);
            }
            ensure!(now() < deadline, "SIGTERM does not end it");
            std::thread::yield_now();
        }
    }
}

fn verb(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(program::path()?);
    command.args(arguments).stdin(Stdio::null());
    Ok(command)
}

/// Returns a full pipe.
fn full_pipe() -> Result<(PipeReader, PipeWriter)> {
    let (reader, mut writer) = pipe()?;
    let flags = fcntl_getfl(&writer)?;
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK)?;
    while writer.write(&[b'.'; 4096]).is_ok() {}
    while writer.write(b".").is_ok() {}
    fcntl_setfl(&writer, flags)?;
    Ok((reader, writer))
}

fn serves_with(redirection: &str, stdout: Stdio, stderr: Stdio) -> Result<()> {
    let mut server = Server::start(redirection, stdout, stderr)?;
    server.goes_on()?;
    let status = server.stop()?;
    ensure!(status.success(), "SIGTERM ends it with {status}");
    Ok(())
}

#[test]
fn a_server_serves_without_standard_output_and_error() -> Result<()> {
    for redirection in ["2>&-", "<&- >&- 2>&-"] {
        serves_with(redirection, Stdio::null(), Stdio::null()).context(redirection)?;
    }
    Ok(())
}

#[test]
fn a_server_serves_while_its_log_is_on_a_full_disk() -> Result<()> {
    for redirection in ["2>/dev/full", ">/dev/full 2>/dev/full"] {
        serves_with(redirection, Stdio::null(), Stdio::null()).context(redirection)?;
    }
    Ok(())
}

#[test]
fn a_server_serves_when_the_reader_of_its_log_has_gone() -> Result<()> {
    let (_, stderr) = pipe()?;
    let (_, stdout) = pipe()?;
    serves_with("", stdout.into(), stderr.into())
}

#[test]
fn server_serves_with_full_output_pipes() -> Result<()> {
    let (_out, stdout) = full_pipe()?;
    let (_err, stderr) = full_pipe()?;
    serves_with("", stdout.into(), stderr.into())
}

#[test]
fn a_verb_fails_by_its_exit_code_where_it_cannot_say_why() -> Result<()> {
    let mut server = Server::start("", Stdio::null(), Stdio::null())?;
    let (portal, name) = server.target()?;
    let absent = format!("iscsi://{portal}/{name}-absent/0");
    for redirection in ["2>&-", "2>/dev/full", ">&- 2>&-"] {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("exec \"$@\" {redirection}")).arg("sh");
        command.arg(program::path()?).args(["disk", "info", &absent]).stdin(Stdio::null());
        let status = command.status()?;
        ensure!(status.code() == Some(NOT_FOUND), "{redirection}: {}", reported(status));
    }
    let (_, gone) = pipe()?;
    let status = verb(&["disk", "info", &absent])?.stderr(gone).status()?;
    ensure!(status.code() == Some(NOT_FOUND), "no reader: {}", reported(status));
    // A result that cannot be printed is an error, not a panic.
    let full = std::fs::File::options().write(true).open(Path::new("/dev/full"))?;
    let output = verb(&["discover", &portal])?.stdout(full).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && !said.contains("panicked"), "{said}");
    Ok(())
}

fn reported(status: ExitStatus) -> String {
    format!("{status}, signal {:?}", status.signal())
}
