//! The program's time from its start until it serves ten thousand units. Also the times that a server with a state
//! needs to add them, to add one more, and to restart with them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use sarsen_proof::managed::Managed;

use super::targets_under_test::configuration;

/// Number of logical units, of one MiB each.
const UNITS: usize = 10_000;

/// Returns the seconds from the start of the process to the line that reports the served volumes.
pub(super) fn measure(program: &Path, rounds: usize) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("units.toml");
    fs::write(&path, configuration(UNITS, 1))?;
    (0..rounds).map(|_| once(program, &path)).collect()
}

/// Seconds that changes take, as the user of the command sees them.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(super) struct Changes {
    /// Ten thousand volumes and as many targets, applied from one file.
    pub(super) apply: f64,
    /// One more volume and target.
    pub(super) one_more: f64,
    /// The restart after that, until the server is ready.
    pub(super) restart: f64,
}

/// Measures the changes; each round has its own server.
pub(super) fn measure_changes(rounds: usize) -> Result<Vec<Changes>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("units.toml");
    fs::write(&path, (0..UNITS).map(managed_unit).collect::<String>())?;
    let path = path.to_str().context("a path")?;
    let round = |_| {
        let folder = tempfile::tempdir()?;
        let server = Managed::start(folder.path())?;
        let begun = Instant::now();
        server.run(&["apply", "-f", path])?;
        let apply = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        server.run(&["volume", "create", "more", "1MiB", "--store", "ram", "--export"])?;
        let one_more = begun.elapsed().as_secs_f64();
        server.kill()?;
        let begun = Instant::now();
        let server = Managed::start(folder.path())?;
        let restart = begun.elapsed().as_secs_f64();
        let announced = server.announced()["volumes"].as_array().map_or(0, Vec::len);
        ensure!(announced == UNITS + 1, "{announced} units are served, of {}", UNITS + 1);
        Ok(Changes { apply, one_more, restart })
    };
    (0..rounds).map(round).collect()
}

fn managed_unit(number: usize) -> String {
    format!(
        "[[volume]]\nname = \"v{number}\"\nstore = \"ram\"\nsize = \"1MiB\"\n\
         [[target]]\nname = \"iqn.2026-11.bench:t{number}\"\nluns = [\"v{number}\"]\n"
    )
}

fn once(program: &Path, configuration: &Path) -> Result<f64> {
    let begun = Instant::now();
    let mut server = Command::new(program)
        .args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"])
        .arg(configuration)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let said = match server.stdout.take() {
        Some(out) => BufReader::new(out).read_line(&mut line),
        None => Ok(0),
    };
    let seconds = begun.elapsed().as_secs_f64();
    server.kill()?;
    server.wait()?;
    said?;
    let announced = line.matches("\"lun\":").count();
    ensure!(announced == UNITS, "{announced} units are served, of {UNITS}");
    Ok(seconds)
}
