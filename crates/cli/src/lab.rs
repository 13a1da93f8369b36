//! `sarsen lab`.

use std::time::Duration;

use anyhow::{Context, anyhow};
use sarsen_initiator::Url;
use sarsen_lab::access::{self, Access};
use sarsen_lab::load::{self, LoadOptions, LoadResult};
use sarsen_node::config::parse_size;

/// Verbs of the lab.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Keep I/Os open on a target for a while and measure them. Writes destroy what is there.
    Load(LoadArguments),
}

#[derive(clap::Args)]
pub(crate) struct LoadArguments {
    /// The logical unit: `iscsi://host[:port]/target/lun`
    url: String,
    /// A known access specification, such as "Exchange 2003"; the flags below change it.
    #[arg(long, value_name = "NAME")]
    spec: Option<String>,
    /// Bytes of an I/O.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    block_size: Option<u64>,
    /// Percentage of I/Os that read.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    read: Option<u8>,
    /// Percentage of I/Os that go anywhere.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(..=100))]
    random: Option<u8>,
    /// I/Os that each session keeps open.
    #[arg(long)]
    depth: Option<u32>,
    /// Sessions, one connection each.
    #[arg(long, default_value_t = 1)]
    sessions: u32,
    /// How long to measure.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
    /// Ask for header digests.
    #[arg(long)]
    header_digest: bool,
    /// Ask for data digests.
    #[arg(long)]
    data_digest: bool,
    /// A process of the target on this machine, whose CPU time and memory are measured.
    #[arg(long = "pid")]
    pids: Vec<u32>,
    /// Print the result as one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: Verb) -> anyhow::Result<()> {
    let Verb::Load(arguments) = verb;
    let url: Url = arguments.url.parse().with_context(|| format!("{:?}", arguments.url))?;
    let result = load::run(&options(&arguments, url)?)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&result)?);
    } else {
        println!("{}", render(&result));
    }
    match result.errors {
        0 => Ok(()),
        errors => Err(anyhow!(
            "{errors} I/Os failed, the first one with {}",
            result.first_error.as_deref().unwrap_or("an unknown error")
        )),
    }
}

fn options(arguments: &LoadArguments, url: Url) -> anyhow::Result<LoadOptions> {
    let mut access = match &arguments.spec {
        Some(name) => {
            access::find(name)
                .with_context(|| {
                    let names: Vec<_> = access::NAMED.iter().map(|known| known.name).collect();
                    format!(
                        "there is no access specification {name:?}; known: {}",
                        names.join(", ")
                    )
                })?
                .access
        }
        None => {
            Access { block_bytes: 4096, read_percent: 100, random_percent: 100, queue_depth: 32 }
        }
    };
    if let Some(bytes) = arguments.block_size {
        access.block_bytes = u32::try_from(bytes).context("--block-size is too large")?;
    }
    access.read_percent = arguments.read.unwrap_or(access.read_percent);
    access.random_percent = arguments.random.unwrap_or(access.random_percent);
    access.queue_depth = arguments.depth.unwrap_or(access.queue_depth);
    let mut options = LoadOptions::new(url, access);
    options.sessions = arguments.sessions;
    options.duration = Duration::try_from_secs_f64(arguments.seconds).context("--seconds")?;
    options.header_digest = arguments.header_digest;
    options.data_digest = arguments.data_digest;
    options.target_pids.clone_from(&arguments.pids);
    Ok(options)
}

/// A result on one line.
pub(crate) fn render(result: &LoadResult) -> String {
    let mut line = format!(
        "{:.0} IOPS, {:.1} MB/s, latency p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs",
        result.iops, result.mb_per_s, result.p50_us, result.p99_us, result.p999_us
    );
    if let Some(cpu) = result.target_cpu_us_per_io {
        line += &format!(", target CPU {cpu:.2} µs/IO");
    }
    line
}
