//! `cargo xtask conformance`: libiscsi's suite and its table. `cargo xtask scoreboard`: its page.

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use sarsen_proof::conformance;
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, scoreboard};

const BYTE_COUNT: u64 = 256 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// A logical unit that is already served; ITS DATA IS DESTROYED. Given several times, each URL is another path to
    /// it.
    #[arg(long, conflicts_with = "store")]
    url: Vec<Url>,
    /// Without a URL the program is built and serves a volume with this store.
    #[arg(long, value_enum, default_value = "ram")]
    store: Store,
    /// Bytes in a logical block of that volume.
    #[arg(long, default_value_t = 512)]
    block_size: u32,
    /// Only these families, for instance `Read10`.
    families: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Store {
    Ram,
    File,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut catalogue = conformance::catalogue()?;
    if !options.families.is_empty() {
        let known = |name: &String| catalogue.iter().any(|(family, _)| family == name);
        let unknown = options.families.iter().find(|name| !known(name));
        ensure!(unknown.is_none(), "the suite has no family {}", unknown.map_or("", |name| name));
        catalogue.retain(|(family, _)| options.families.contains(family));
    }
    let folder = tempfile::tempdir()?;
    let (serving, urls) = match options.url.as_slice() {
        urls @ [_, ..] => (None, urls.to_vec()),
        [] => {
            let backing = match options.store {
                Store::Ram => Backing::Ram,
                Store::File => Backing::File(folder.path().join("data.img")),
            };
            let volume = Volume::new("proof", backing, BYTE_COUNT).block_size(options.block_size);
            let serving = Serving::start_on_two_portals(&[volume])?;
            let urls = serving.paths("proof")?.into_iter().map(|(_, url)| url).collect();
            (Some(serving), urls)
        }
    };
    let report = conformance::run(&urls, &catalogue, |family| eprintln!("{}", family.name))?;
    println!("{report}\n{}", report.faults());
    serving.map_or(Ok(()), Serving::stop)
}

/// The file of the scoreboard.
const PAGE: &str = "docs/conformance.md";

/// Runs the suite against this program, tgt and istgt, and writes the page.
pub(crate) fn scoreboard() -> Result<()> {
    let columns = scoreboard::run(&conformance::catalogue()?, |target, family| {
        eprintln!("{target}: {}", family.name);
    })?;
    for column in &columns {
        println!("{}\n{}", column.name, column.report);
    }
    std::fs::write(PAGE, scoreboard::page(&columns)?)?;
    println!("{}\nwritten: {PAGE}", columns[0].report.faults());
    Ok(())
}
