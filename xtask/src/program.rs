//! The program, as cargo builds it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::shell;

/// The simulation is not built with the other tests: it enables features that no program has.
pub(crate) const SIMULATION: &str = "sarsen-simulation";

/// Builds the program with the profile of packages and of published figures.
pub(crate) fn build() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "--profile", "dist", "--package", "sarsen", "--bin", "sarsen"]);
    shell::executable(&mut cargo, "sarsen")
}

/// Builds all tests but the simulation, and the program with the same dependencies; returns the program.
pub(crate) fn build_with_tests() -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--quiet", "--tests", "--bin", "sarsen"]);
    shell::executable(all_but_the_simulation(&mut cargo), "sarsen")
}

/// Selects the packages whose tests share one set of features.
pub(crate) fn all_but_the_simulation(cargo: &mut Command) -> &mut Command {
    cargo.args(["--workspace", "--exclude", SIMULATION])
}
