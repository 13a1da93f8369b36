//! A server with a state, as a user runs it: started with `--state`, queried and changed by the command line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::program;

/// A server that runs until this is dropped. Its state exists as long as the folder does.
#[derive(Debug)]
pub struct Managed {
    folder: PathBuf,
    process: Child,
    announced: Value,
}

impl Managed {
    /// Starts a server at a free port of 127.0.0.1, with its state and control socket in this folder.
    pub fn start(folder: &Path) -> Result<Self> {
        Self::start_with(folder, &[])
    }

    /// Starts such a server with more arguments.
    pub fn start_with(folder: &Path, arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new(program::path()?);
        command.arg("serve").args(["--listen", "127.0.0.1:0", "--logout-grace", "1", "--json"]);
        Self::start_command(command, folder, arguments)
    }

    /// Starts such a server with this command, which may be more than the program alone.
    pub fn start_command(mut command: Command, folder: &Path, arguments: &[&str]) -> Result<Self> {
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log"))?;
        command.arg("--state").arg(folder.join("state"));
        command.arg("--control").arg(socket(folder)).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut process = command.spawn()?;
        let mut line = String::new();
        let out = process.stdout.take().context("its stdout")?;
        BufReader::new(out).read_line(&mut line)?;
        let mut started = Self { folder: folder.to_owned(), process, announced: Value::Null };
        started.announced = serde_json::from_str(&line).with_context(|| started.log())?;
        Ok(started)
    }

    /// Returns the announcement that the server printed after its start.
    pub fn announced(&self) -> &Value {
        &self.announced
    }

    /// Returns `address:port` of the first portal.
    pub fn portal(&self) -> Result<&str> {
        self.announced["portals"][0].as_str().context("a portal")
    }

    /// Returns the server's log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Returns the server's process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Returns a command that queries this server.
    pub fn command(&self, arguments: &[&str]) -> Result<Command> {
        command(&self.folder, arguments)
    }

    /// Runs a command that must succeed, and returns its output.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.command(arguments)?.output()?;
        let stderr = String::from_utf8_lossy(&stderr);
        ensure!(status.success(), "{arguments:?} ends with {status}: {stderr}\n{}", self.log());
        Ok(String::from_utf8(stdout)?)
    }

    /// Runs a command that must succeed, and returns its JSON output.
    pub fn json(&self, arguments: &[&str]) -> Result<Value> {
        let said = self.run(&[arguments, &["--json"]].concat())?;
        serde_json::from_str(&said).with_context(|| said.clone())
    }

    /// Runs a command that must fail with this exit code, and returns its error message.
    pub fn refused(&self, code: i32, arguments: &[&str]) -> Result<String> {
        let Output { status, stderr, .. } = self.command(arguments)?.output()?;
        let stderr = String::from_utf8(stderr)?;
        ensure!(status.code() == Some(code), "{arguments:?} ends with {status}: {stderr}");
        Ok(stderr)
    }

    /// Applies a document.
    pub fn apply(&self, document: &str, arguments: &[&str]) -> Result<Output> {
        let arguments = [&["apply", "-f", "-"], arguments].concat();
        let mut process = self
            .command(&arguments)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        process.stdin.take().context("its stdin")?.write_all(document.as_bytes())?;
        Ok(process.wait_with_output()?)
    }

    /// Applies a document, which must succeed, and returns the output.
    pub fn applied(&self, document: &str, arguments: &[&str]) -> Result<String> {
        let Output { status, stdout, stderr } = self.apply(document, arguments)?;
        ensure!(status.success(), "{status}: {}{}", String::from_utf8_lossy(&stderr), self.log());
        Ok(String::from_utf8(stdout)?)
    }

    /// Kills the server, as a power failure would.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Ends the server gracefully.
    pub fn stop(mut self) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.process.id())?);
        kill_process(pid.context("a process id")?, Signal::TERM)?;
        let status = self.process.wait()?;
        if !status.success() {
            bail!("it ended with {status}: {}", self.log());
        }
        Ok(())
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A client that has a session with a disk until it is dropped: `qemu-io`, which waits for its next command.
pub struct User(Child);

impl User {
    /// Opens the disk at this URL.
    pub fn of(url: &str) -> Result<Self> {
        let mut qemu = Command::new("qemu-io");
        qemu.args(["-f", "raw", url]).stdin(Stdio::piped());
        Ok(Self(qemu.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of the control socket of the server in this folder.
pub fn socket(folder: &Path) -> PathBuf {
    folder.join("control.sock")
}

/// Returns a command that queries the server in this folder.
pub fn command(folder: &Path, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", "60"]).arg(program::path()?).args(arguments);
    command.env("SARSEN_CONTROL", socket(folder)).stdin(Stdio::null());
    Ok(command)
}
