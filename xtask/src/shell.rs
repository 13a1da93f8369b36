//! Commands that show their output to the user.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Returns the repository's root.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// Returns a command for the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")))
}

/// Runs a command to its end with this program's outputs; the error of a failure names the command.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
    ensure!(status.success(), "{} ended with {status}", line(command));
    Ok(())
}

/// Returns the output of a command that must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
    ensure!(output.status.success(), "{} ended with {}", line(command), output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The end of a command and its two outputs.
pub(crate) struct Finished {
    status: ExitStatus,
    pub(crate) output: String,
}

impl Finished {
    /// Returns the output of a command that must succeed.
    pub(crate) fn success(self) -> Result<String> {
        ensure!(self.status.success(), "{}:\n{}", self.status, self.output);
        Ok(self.output)
    }
}

/// Runs a command to its end; `timeout` of coreutils ends it with its children after this time.
pub(crate) fn finish(command: &Command, limit: Duration) -> Result<Finished> {
    let mut limited = Command::new("timeout");
    limited.arg(limit.as_secs().to_string()).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let ended = limited.stdin(Stdio::null()).output().context("timeout cannot be started")?;
    let output = [ended.stdout, ended.stderr].concat();
    Ok(Finished { status: ended.status, output: String::from_utf8_lossy(&output).into_owned() })
}

/// A program that cargo built.
pub(crate) struct Executable {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    is_unit_test: bool,
}

/// Runs a command of cargo that builds; returns the executables.
pub(crate) fn executables(cargo: &mut Command) -> Result<Vec<Executable>> {
    Ok(parse_executables(&output(cargo.args(["--message-format", "json-render-diagnostics"]))?))
}

/// Returns the path of one executable among those that a command of cargo builds.
pub(crate) fn executable(cargo: &mut Command, name: &str) -> Result<PathBuf> {
    let wanted = |executable: &Executable| executable.name == name && !executable.is_unit_test;
    let found = executables(cargo)?.into_iter().find(wanted);
    Ok(found.with_context(|| format!("cargo built no executable named {name}"))?.path)
}

fn parse_executables(messages: &str) -> Vec<Executable> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|message| {
            Some(Executable {
                name: message["target"]["name"].as_str()?.into(),
                path: message["executable"].as_str()?.into(),
                is_unit_test: message["profile"]["test"] == true
                    && message["target"]["kind"] == json!(["bin"]),
            })
        })
        .collect()
}

/// Returns whether a command can be run and succeeds; its output is discarded.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_are_found_among_cargos_messages() {
        let messages = concat!(
            "a line that is not JSON\n",
            r#"{"target":{"name":"sarsen_block"},"executable":null}"#,
            "\n",
            r#"{"target":{"name":"framer"},"executable":"/t/framer"}"#,
        );
        let [framer] = &parse_executables(messages)[..] else { panic!("not one executable") };
        assert_eq!((&*framer.name, &*framer.path), ("framer", Path::new("/t/framer")));
    }

    #[test]
    fn a_command_beyond_its_limit_is_ended() {
        let slept = finish(Command::new("sleep").arg("100"), Duration::from_secs(1));
        assert!(slept.expect("started").success().is_err());
        let echoed = finish(Command::new("echo").arg("hello"), Duration::from_secs(100));
        assert_eq!(echoed.expect("started").success().expect("succeeded"), "hello\n");
    }
}
