//! How long the program takes from its start until it serves ten thousand units.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};

use super::contestants::configuration;

/// Logical units, of one MiB each.
const UNITS: usize = 10_000;

/// Seconds from the start of the process to the line that says what it serves.
pub(super) fn measure(program: &Path, rounds: usize) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("units.toml");
    fs::write(&path, configuration(UNITS, 1))?;
    (0..rounds).map(|_| once(program, &path)).collect()
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
