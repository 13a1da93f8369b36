//! `cargo xtask package`: what people install. A Debian package, a static program, an image for
//! containers; each made of `packaging/` and of what the program says of itself.

mod contents;
mod deb;
mod musl;
mod oci;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use sarsen_proof::program;

/// Where packages are left unless told otherwise.
const OUT: &str = "target/package";

#[derive(Args, Default)]
pub(crate) struct Options {
    /// A static program (musl) instead of a Debian package.
    #[arg(long)]
    musl: bool,
    /// An image for containers, as an OCI archive, of the static program.
    #[arg(long)]
    oci: bool,
    /// The folder for what is made.
    #[arg(long, value_name = "DIR", default_value = OUT)]
    out: PathBuf,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    std::fs::create_dir_all(&options.out)
        .with_context(|| format!("cannot make {}", options.out.display()))?;
    let made = match (options.musl, options.oci) {
        (false, false) => deb::build(&program::path()?, &options.out)?,
        (_, false) => musl::build(&options.out)?,
        (_, true) => oci::build(&musl::build(&options.out)?, &options.out)?,
    };
    println!("{}", made.display());
    Ok(())
}

/// The Debian package of this program, for the gate.
pub(crate) fn deb(program: &Path) -> Result<PathBuf> {
    std::fs::create_dir_all(OUT)?;
    deb::build(program, Path::new(OUT))
}

/// The version of the workspace.
fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}
