//! Where the program under test is: `SARSEN_BIN`, or what cargo builds now.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// Names the program to test instead of building it.
pub const VARIABLE: &str = "SARSEN_BIN";

/// A cold release build on two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(1200);

/// The path of `sarsen`, built in release if `SARSEN_BIN` does not name one.
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
    build()
}

/// Builds the release binary and gives its path.
pub fn build() -> Result<PathBuf> {
    build_package("sarsen")
}

/// The same of a package whose only program has its name.
pub fn build_package(name: &str) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--release", "--package", name, "--bin", name])
        .args(["--message-format", "json-render-diagnostics"]);
    let said = process::output(&mut command, BUILD_LIMIT)?;
    executable(&said, name).with_context(|| format!("cargo built no executable named {name}"))
}

/// The executable of this name among what cargo says as JSON.
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
