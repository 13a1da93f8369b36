//! The lab as a user runs it: `sarsen lab …` in its own folder, with its own archive.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::program;

/// Maximum duration of a verb in seconds; a study of a few cells takes ten, and minutes in guests.
const LIMIT: &str = "1200";
/// Time within which the remains of a killed verb are removed.
const GONE_LIMIT: Duration = Duration::from_secs(30);
/// Environment variable that marks the processes of a lab.
const MARK: &str = "SARSEN_PROOF_LAB";
/// Prefix of the folders that a run creates.
const PREFIX: &str = "sarsen-lab-";

/// The output and the exit code of a verb.
#[derive(Debug)]
pub struct Said {
    /// Exit code; `None` if the verb was killed.
    pub code: Option<i32>,
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub error: String,
}

impl Said {
    /// Returns an error with the whole output unless the verb ended with this code.
    pub fn ended(self, code: i32) -> Result<Self> {
        ensure!(self.code == Some(code), "{:?} instead of {code}: {self}", self.code);
        Ok(self)
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "standard output:\n{}\nstandard error:\n{}", self.out, self.error)
    }
}

/// A lab, which is deleted with its folder.
#[derive(Debug)]
pub struct Laboratory {
    folder: TempDir,
}

impl Laboratory {
    /// Creates a lab without any runs.
    pub fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::tempdir()? })
    }

    /// Returns the folder in which the verbs run.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the content of a report or another file in the folder.
    pub fn read(&self, file: &str) -> Result<String> {
        let path = self.folder().join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// Runs a verb with these arguments.
    pub fn say(&self, arguments: &[&str]) -> Result<Said> {
        let mut command = self.marked("timeout");
        command.args(["--kill-after=5", LIMIT]).arg(program::path()?).arg("lab").args(arguments);
        let output = command.args(["--archive", "archive"]).output()?;
        Ok(Said {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            error: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Starts a verb that the test will kill.
    pub fn start(&self, arguments: &[&str]) -> Result<Child> {
        let mut command = self.marked(program::path()?);
        command.arg("lab").args(arguments).args(["--archive", "archive"]);
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    fn marked(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder()).env(MARK, self.folder()).stdin(Stdio::null());
        command
    }

    /// Returns a run in the program's JSON format.
    pub fn run(&self, id: u64) -> Result<Value> {
        let said = self.say(&["report", &id.to_string(), "--format", "json"])?.ended(0)?;
        let mut document: Value = serde_json::from_str(&said.out)?;
        Ok(document["run"].take())
    }

    /// Returns the running processes that verbs of this lab have started.
    pub fn processes(&self) -> Result<Vec<String>> {
        let mark = format!("{MARK}={}", self.folder().display());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let path = entry?.path();
            // The process may belong to another user, or may have ended.
            let Ok(environment) = fs::read(path.join("environ")) else { continue };
            if environment.split(|&byte| byte == 0).any(|variable| variable == mark.as_bytes()) {
                let command = fs::read(path.join("cmdline")).unwrap_or_default();
                found.push(String::from_utf8_lossy(&command).replace('\0', " "));
            }
        }
        Ok(found)
    }

    /// Waits until nothing remains of the runs: no process and no folder, neither here nor in memory, where the run's
    /// commands name the folders.
    pub fn is_clean_after(&self, run: &Value) -> Result<()> {
        let homes = homes(run);
        let deadline = Instant::now() + GONE_LIMIT;
        loop {
            let mut left = self.processes()?;
            for entry in fs::read_dir(self.folder())? {
                left.push(entry?.file_name().to_string_lossy().into_owned());
            }
            left.retain(|name| name.contains(' ') || name.starts_with(PREFIX) && !is_report(name));
            left.extend(homes.iter().filter(|home| Path::new(home).exists()).cloned());
            if left.is_empty() {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "left behind: {left:?}");
            std::thread::yield_now();
        }
    }
}

fn is_report(name: &str) -> bool {
    name.contains('.')
}

/// Returns the folders in memory that the commands of a run name.
pub fn homes(run: &Value) -> Vec<String> {
    let start = format!("/dev/shm/{PREFIX}");
    let mut homes = Vec::new();
    let commands = run["setting"]["commands"].as_array().into_iter().flatten();
    for command in commands.filter_map(Value::as_str) {
        for (from, _) in command.match_indices(&start) {
            let rest = &command[from + start.len()..];
            let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
            homes.push(format!("{start}{name}"));
        }
    }
    homes.sort();
    homes.dedup();
    homes
}

/// Returns the samples of a run that have these labels.
pub fn samples<'a>(run: &'a Value, labels: &[(&str, &str)]) -> Vec<&'a Value> {
    let has = |sample: &&Value| labels.iter().all(|(name, value)| sample["labels"][name] == *value);
    run["samples"].as_array().into_iter().flatten().filter(has).collect()
}
