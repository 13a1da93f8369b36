//! The path of the program under test: `SARSEN_BIN`, or a new build by cargo.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Environment variable with the path of the program to test; without it, cargo builds the program.
pub const VARIABLE: &str = "SARSEN_BIN";

/// Maximum duration of a cold build for packages on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// Returns the path of `sarsen`; builds it with the profile of packages if `SARSEN_BIN` is not set.
pub fn path() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT
        .get_or_init(|| find().map_err(|error| format!("{error:#}")))
        .clone()
        .map_err(anyhow::Error::msg)
}

fn find() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os(VARIABLE) {
        let path = PathBuf::from(path);
        if !path.is_file() {
            bail!("{VARIABLE} names {}, which is not a file", path.display());
        }
        return Ok(path);
    }
    build(Profile::Dist)
}

/// A profile of cargo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// The profile of the tests, whose dependencies are built already.
    Dev,
    /// The profile of packages and of published figures.
    Dist,
}

/// Builds `sarsen` and returns its path.
pub fn build(profile: Profile) -> Result<PathBuf> {
    build_package("sarsen", profile, &[])
}

/// Builds a package whose only program has its name, with these features, and returns the program's path. It replaces
/// the program of a build with other features.
pub fn build_package(name: &str, profile: Profile, features: &[&str]) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = match profile {
        Profile::Dev => "dev",
        Profile::Dist => "dist",
    };
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--profile", profile, "--package", name, "--bin", name])
        .args(["--message-format", "json-render-diagnostics", "--features", &features.join(",")]);
    let said = process::output(&mut command, BUILD_LIMIT)?;
    executable(&said, name).with_context(|| format!("cargo built no executable named {name}"))
}

/// Returns the executable with this name from cargo's JSON messages.
pub fn executable(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_found_among_cargos_messages() {
        let messages = concat!(
            "a line that is not JSON\n",
            r#"{"reason":"compiler-artifact","target":{"name":"other"},"executable":"/t/other"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"sarsen"},"executable":"/t/sarsen"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages, "sarsen"), Some(PathBuf::from("/t/sarsen")));
        assert_eq!(executable("{}", "sarsen"), None);
    }
}
