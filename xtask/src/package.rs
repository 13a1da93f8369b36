//! `cargo xtask package`: the packages that users install. A Debian package, a static program, a container image; each
//! is built from `packaging/` and from the program's own output.

mod contents;
mod deb;
mod musl;
mod oci;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::program;

/// The default folder for packages.
const OUT: &str = "target/package";

#[derive(Args, Default)]
pub(crate) struct Options {
    /// A static program (musl) instead of a Debian package.
    #[arg(long)]
    musl: bool,
    /// A container image of the static program, as an OCI archive.
    #[arg(long)]
    oci: bool,
    /// The program to pack, instead of building it; it must be static for an image.
    #[arg(long, value_name = "FILE", conflicts_with = "musl")]
    program: Option<PathBuf>,
    /// The folder for the results.
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
}

impl Options {
    fn static_program(&self) -> Result<PathBuf> {
        match &self.program {
            Some(program) => Ok(program.clone()),
            None => musl::build(&self.out),
        }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let made = match (options.oci, options.musl) {
        (true, _) => oci::build(&options.static_program()?, &options.out)?,
        (false, true) => musl::build(&options.out)?,
        (false, false) => {
            let program = options.program.clone().map_or_else(program::build, Ok)?;
            deb::build(&program, &options.out)?
        }
    };
    println!("{}", made.display());
    Ok(())
}

/// Builds the Debian package of this program, for the gate.
pub(crate) fn deb(program: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(OUT)?;
    deb::build(program, Path::new(OUT))
}

/// Returns the version of the workspace.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
