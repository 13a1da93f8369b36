//! `cargo xtask bench`: the program beside tgt and istgt, each on a gigabyte in memory, with one
//! client for all. Rounds are interleaved over the contestants, because a shared machine drifts:
//! read the ratios rather than the figures.

use std::collections::BTreeMap;
use std::env::temp_dir;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::slice;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use sarsen_initiator::Url;
use sarsen_lab::contestant::{Contestant, Medium, Running, VolumeSpec};
use sarsen_lab::load::Endpoint;
use sarsen_lab::network::{LinkProfile, Network};
use sarsen_node::stores::CacheMode;
use sarsen_proof::{process, program};
use serde_json::{Value, json};

use crate::{generator, sessions};

const VOLUME: &str = "bench";
const BYTE_COUNT: u64 = 1 << 30;
/// Of writing over the whole volume first, so that nobody reads holes.
const FILL_SECONDS: f64 = 3.0;
/// What a measurement may take beyond its own time.
const GRACE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved runs of each point, of which the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// One round of one second: whether it works, not how fast.
    #[arg(long)]
    quick: bool,
    /// Points whose name contains this alone.
    #[arg(long)]
    point: Option<String>,
    /// The load generator itself beside libiscsi's iscsi-perf, on a volume without a medium.
    #[arg(long, conflicts_with_all = ["point", "json"])]
    generator: bool,
    /// Our own program alone, with 10,000 idle sessions and then 1,000 logins at once.
    #[arg(long, conflicts_with_all = ["point", "json", "generator"])]
    sessions: bool,
    /// Writes every run here.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// What the client does.
struct Point {
    name: &'static str,
    block_bytes: u32,
    read_percent: u8,
    random_percent: u8,
    depth: u32,
    sessions: u32,
}

const fn point(
    name: &'static str,
    block_bytes: u32,
    read_percent: u8,
    random_percent: u8,
    depth: u32,
    sessions: u32,
) -> Point {
    Point { name, block_bytes, read_percent, random_percent, depth, sessions }
}

/// Access specifications that storage benchmarks agree on, then the corners of small I/O.
const POINTS: &[Point] = &[
    point("Maximum Throughput", 512 << 10, 100, 0, 32, 1),
    point("Maximum IOPS", 512, 100, 0, 32, 1),
    point("Maximum Write Throughput", 512 << 10, 0, 0, 32, 1),
    point("Maximum Write IOPS", 512, 0, 0, 32, 1),
    point("Exchange 2003", 4 << 10, 60, 80, 12, 1),
    point("Exchange 2007", 8 << 10, 55, 80, 12, 1),
    point("SQL 16K", 16 << 10, 66, 100, 16, 1),
    point("SQL 64K", 64 << 10, 66, 100, 16, 1),
    point("Web Server", 8 << 10, 95, 75, 4, 1),
    point("Workstation", 8 << 10, 80, 80, 4, 1),
    point("4K random read, depth 1", 4 << 10, 100, 100, 1, 1),
    point("4K random read, depth 32, 1 session", 4 << 10, 100, 100, 32, 1),
    point("4K random read, depth 32, 4 sessions", 4 << 10, 100, 100, 32, 4),
    point("4K random write, depth 32", 4 << 10, 0, 100, 32, 1),
];

/// The columns of a cell, as the load generator names them.
const FIGURES: &[&str] =
    &["iops", "mb_per_s", "p50_us", "p99_us", "target_cpu_us_per_io", "target_rss_kib"];

/// A running target. It ends when this is dropped.
struct Target {
    running: Running,
    url: Url,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (rounds, seconds) =
        if options.quick { (1, 1.0) } else { (options.rounds.max(1), options.seconds) };
    if options.sessions {
        return sessions::run();
    }
    if options.generator {
        return generator::run(rounds, seconds.ceil() as u32);
    }
    let points: Vec<_> = POINTS
        .iter()
        .filter(|point| options.point.as_ref().is_none_or(|wanted| point.name.contains(wanted)))
        .collect();
    ensure!(!points.is_empty(), "no point's name contains {:?}", options.point);
    let client = program::path()?;
    let targets = start(&client)?;
    for target in &targets {
        eprintln!("filling {}", target.running.name());
        let fill = point("fill", 512 << 10, 0, 0, 8, 1);
        measure(&client, target, &fill, FILL_SECONDS)?;
    }

    let mut runs: BTreeMap<(&str, &str), Vec<Value>> = BTreeMap::new();
    for round in 0..rounds {
        for point in &points {
            eprintln!("round {} of {rounds}: {}", round + 1, point.name);
            for turn in 0..targets.len() {
                // Each begins as often as the others.
                let target = &targets[(round + turn) % targets.len()];
                let result = measure(&client, target, point, seconds)?;
                runs.entry((point.name, target.running.name())).or_default().push(result);
            }
        }
    }
    if let Some(path) = &options.json {
        let list: Vec<_> = runs
            .iter()
            .map(|((point, target), runs)| json!({"point": point, "target": target, "runs": runs}))
            .collect();
        std::fs::write(path, serde_json::to_vec_pretty(&list)?)
            .with_context(|| path.display().to_string())?;
    }
    let names: Vec<_> = targets.iter().map(|target| target.running.name()).collect();
    let points: Vec<_> = points.iter().map(|point| point.name).collect();
    println!("{}", table(&points, &names, &runs));
    println!(
        "Medians of {rounds} interleaved runs of {seconds} s, client and targets on one machine; \
         ± is half the distance of the extremes."
    );
    Ok(())
}

/// Our own program, and the others that are installed.
fn start(program: &Path) -> Result<Vec<Target>> {
    let volume = VolumeSpec {
        name: VOLUME.into(),
        medium: Medium::Ram,
        bytes: BYTE_COUNT,
        cache: CacheMode::WriteBack,
    };
    let network = Network::build(&[LinkProfile::loopback()]);
    let link = network.links().first().context("loopback")?;
    let mut targets = Vec::new();
    for (contestant, peer) in [
        (Contestant::Sarsen, None),
        (Contestant::Tgt, Some("tgtd")),
        (Contestant::Istgt, Some("istgt")),
    ] {
        if let Some(peer) = peer
            && process::find(Path::new(peer)).is_none()
        {
            eprintln!("{peer} is not installed, and left out");
            continue;
        }
        let volumes = slice::from_ref(&volume);
        let running = contestant.start_beside(program, &network, volumes, &temp_dir())?;
        let Endpoint::Iscsi(url) = running.endpoint(VOLUME, link)? else {
            bail!("{contestant} does not speak iSCSI");
        };
        targets.push(Target { running, url });
    }
    Ok(targets)
}

/// One run of the load generator.
fn measure(client: &Path, target: &Target, point: &Point, seconds: f64) -> Result<Value> {
    let mut command = Command::new(client);
    command.args(["lab", "load", "--json"]).arg(target.url.to_string());
    let numbers = [
        ("--block-size", point.block_bytes),
        ("--read", point.read_percent.into()),
        ("--random", point.random_percent.into()),
        ("--depth", point.depth),
        ("--sessions", point.sessions),
    ];
    for (flag, number) in numbers {
        command.arg(flag).arg(number.to_string());
    }
    for pid in target.running.pids() {
        command.arg("--pid").arg(pid.to_string());
    }
    command.arg("--seconds").arg(seconds.to_string());
    let limit = Duration::from_secs_f64(seconds) + GRACE;
    let said = process::output(&mut command, limit)
        .with_context(|| format!("{} on {}", point.name, target.running.name()))?;
    let line = said.lines().rev().find(|line| line.starts_with('{'));
    let result: Value = serde_json::from_str(line.context("the load generator's result")?)?;
    ensure!(
        result["errors"].as_u64() == Some(0),
        "{} on {}: not without errors: {result}",
        point.name,
        target.running.name()
    );
    Ok(result)
}

/// A Markdown table: for each point a row a contestant, and how many times as many IOPS, and how
/// many times the CPU time, the first one has.
fn table(
    points: &[&str],
    contestants: &[&str],
    runs: &BTreeMap<(&str, &str), Vec<Value>>,
) -> String {
    let mut text = String::from(
        "| point | target | IOPS | MB/s | p50 µs | p99 µs | CPU µs/IO | RSS MiB | IOPS × | CPU × |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for point in points {
        let mut first: Option<Vec<f64>> = None;
        for contestant in contestants {
            let Some(runs) = runs.get(&(*point, *contestant)) else { continue };
            let values = |figure: &str| -> Vec<f64> {
                runs.iter().filter_map(|run| run[figure].as_f64()).collect()
            };
            let medians: Vec<_> = FIGURES.iter().map(|figure| median(&values(figure))).collect();
            let &[iops, throughput, p50, p99, cpu, memory] = &medians[..] else { continue };
            let spread = spread_percent(&values("iops"));
            let memory = memory / 1024.0;
            text += &format!(
                "| {point} | {contestant} | {iops:.0} ±{spread:.0} % | {throughput:.0} | {p50:.0} \
                 | {p99:.0} | {cpu:.2} | {memory:.0} |"
            );
            match &first {
                None => {
                    text += " | |\n";
                    first = Some(medians);
                }
                Some(ours) => {
                    text += &format!(" {:.2} | {:.2} |\n", ours[0] / iops, ours[4] / cpu);
                }
            }
        }
    }
    text
}

/// NaN of nothing.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => f64::midpoint(sorted[even / 2 - 1], sorted[even / 2]),
    }
}

/// Half the distance of the extremes, in per cent of the median.
fn spread_percent(values: &[f64]) -> f64 {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (high - low) / 2.0 / median(values) * 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert_eq!(spread_percent(&[90.0, 100.0, 110.0]), 10.0);
    }

    #[test]
    fn ratios_are_ours_to_theirs() {
        let run = |iops: f64, cpu: f64| {
            json!({"iops": iops, "mb_per_s": 1.0, "p50_us": 1.0, "p99_us": 1.0,
                   "target_cpu_us_per_io": cpu, "target_rss_kib": 2048})
        };
        let runs = BTreeMap::from([
            (("P", "sarsen"), vec![run(300.0, 1.0), run(100.0, 3.0), run(200.0, 2.0)]),
            (("P", "tgt"), vec![run(50.0, 20.0)]),
        ]);
        let table = table(&["P"], &["sarsen", "tgt"], &runs);
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows[0], "| P | sarsen | 200 ±50 % | 1 | 1 | 1 | 2.00 | 2 | | |");
        assert_eq!(rows[1], "| P | tgt | 50 ±0 % | 1 | 1 | 1 | 20.00 | 2 | 4.00 | 0.10 |");
    }
}
