//! `cargo xtask bench`: compares the program with tgt, istgt and the limit, with one client for all. It also compares
//! the program with itself where it must be as fast under other conditions. Rounds are interleaved over the targets
//! under test, because the speed of a shared machine drifts: read the ratios rather than the figures.

mod files;
mod gateways;
mod generator;
mod large_pools;
mod nbd;
mod neighbours;
mod points;
mod pools;
mod report;
mod results;
mod sessions;
mod start_up;
mod targets_under_test;
mod verdicts;

use std::env::temp_dir;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};
use sarsen_io::wake_ups;
use sarsen_lab::load::Endpoint;
use sarsen_proof::{process, program};
use serde_json::{Value, json};

use neighbours::NoisyNeighbour;
use points::{Group, Point};
use pools::{PREPARED_SECONDS, PREPARED_WARM_UP};
use results::{Figures, Results};
use targets_under_test::{Field, MeasureMode, Participant, WAKE_UP_COST_US};

/// Duration of the first writes to a whole volume, so that reads do not hit holes.
const FILL_SECONDS: f64 = 3.0;
/// Maximum time of a measurement beyond its own duration.
const GRACE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    /// Interleaved runs of each point; the median counts.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds of each run.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// One round of half a second: checks that the bench works, not the speed.
    #[arg(long)]
    quick: bool,
    /// Only these groups; may be given several times.
    #[arg(long = "group")]
    groups: Vec<Group>,
    /// Only points whose name contains this text.
    #[arg(long)]
    point: Option<String>,
    /// A target under test to leave out, such as istgt or `limit, spinning`; may be given several times.
    #[arg(long, value_name = "TARGET")]
    without: Vec<String>,
    /// The folder on disk for the group of files.
    #[arg(long, default_value_os_t = temp_dir())]
    disk: PathBuf,
    /// Write every run to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Compare the load generator itself with libiscsi's iscsi-perf, on a volume without a medium.
    #[arg(long, conflicts_with_all = ["point", "json", "groups"])]
    generator: bool,
    /// Only this project's program, with 10,000 idle sessions and then 1,000 logins at once.
    #[arg(long, conflicts_with_all = ["point", "json", "groups", "generator"])]
    sessions: bool,
}

impl Options {
    fn takes(&self, target_under_test: &str) -> bool {
        !self.without.iter().any(|without| without == target_under_test)
    }

    /// Returns the points of a group that were not left out.
    fn points(&self, group: Group) -> Vec<Point> {
        let mut points = points::of(group);
        points.retain(|point| self.point.as_ref().is_none_or(|part| point.name.contains(part)));
        points
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let (rounds, seconds) =
        if options.quick { (1, 0.5) } else { (options.rounds.max(1), options.seconds) };
    if options.sessions {
        return sessions::run();
    }
    if options.generator {
        return generator::run(rounds, seconds.ceil() as u32);
    }
    let client = program::path()?;
    let mut groups = options.groups.clone();
    if groups.is_empty() {
        groups = Group::value_variants().to_vec();
    }
    // Last, because its build replaces the program.
    groups.sort_by_key(|group| *group == Group::SlowWakeUps);
    let mut results = Results::default();
    for group in groups {
        if group == Group::StartUp && options.point.is_none() {
            results.start_up = start_up::measure(&client, rounds)?;
            results.changes = start_up::measure_changes(rounds)?;
            continue;
        }
        if group == Group::LargePools && options.point.is_none() {
            results.large_pools = large_pools::measure(&client, rounds)?;
            continue;
        }
        let points = options.points(group);
        if !points.is_empty() {
            let field = targets_under_test::start(group, &client, options)?;
            let program = field.slow_client.as_ref().unwrap_or(&client);
            let client = Client { program, is_slow: field.slow_client.is_some() };
            measure_group(client, group, &points, &field, (rounds, seconds), &mut results)?;
        }
    }
    let has_any = !results.cells.is_empty()
        || !results.start_up.is_empty()
        || !results.large_pools.is_empty();
    ensure!(has_any, "no point's name contains {:?}", options.point);
    let verdicts = verdicts::all(&results);
    if let Some(path) = &options.json {
        let all = json!({"rounds": rounds, "seconds": seconds, "results": &results,
                         "verdicts": &verdicts});
        std::fs::write(path, serde_json::to_vec_pretty(&all)?)
            .with_context(|| path.display().to_string())?;
    }
    println!("{}{}", report::tables(&results), report::verdicts(&verdicts));
    println!(
        "Medians of {rounds} interleaved runs of {seconds} s, client and targets on one machine. \
         ± is half the distance of the extremes; × is the first target under test's figure by this one's, \
         round by round."
    );
    Ok(())
}

/// The program with the load generator.
#[derive(Clone, Copy)]
struct Client<'a> {
    program: &'a Path,
    /// Its wake-ups cost more.
    is_slow: bool,
}

/// Measures all points of a group, with all of its targets under test in turn.
fn measure_group(
    client: Client<'_>,
    group: Group,
    points: &[Point],
    field: &Field,
    (rounds, seconds): (usize, f64),
    results: &mut Results,
) -> Result<()> {
    let entrants = &field.entrants;
    for entrant in entrants.iter().filter(|entrant| entrant.is_empty) {
        eprintln!("filling {}", entrant.name);
        measure(client, entrant, &Point::new("fill", 512 << 10, 0, 0, 8), FILL_SECONDS)?;
    }
    for round in 0..rounds {
        for point in points {
            eprintln!("{}, round {} of {rounds}: {}", group.title(), round + 1, point.name);
            let takes_part =
                |entrant: &&Participant| entrant.only.is_none_or(|only| only == point.name);
            let entrants: Vec<_> = entrants.iter().filter(takes_part).collect();
            let mut runs: Vec<Option<Figures>> = vec![None; entrants.len()];
            for turn in 0..entrants.len() {
                // Each target under test begins equally often.
                let index = (round + turn) % entrants.len();
                let entrant = entrants[index];
                runs[index] = match measure(client, entrant, point, seconds) {
                    Ok(figures) => Some(figures),
                    Err(error) if entrant.is_peer => {
                        eprintln!("{} failed: {error:#}", entrant.name);
                        None
                    }
                    Err(error) => return Err(error),
                };
            }
            for (entrant, run) in entrants.into_iter().zip(runs) {
                results.note(group, &point.name, &entrant.name, run);
            }
        }
    }
    Ok(())
}

fn measure(
    client: Client<'_>,
    entrant: &Participant,
    point: &Point,
    seconds: f64,
) -> Result<Figures> {
    let what = || format!("{} on {}", point.name, entrant.name);
    let _awake = entrant.wake().with_context(what)?;
    match &entrant.way {
        MeasureMode::Fio { path } => files::measure(path, point, seconds).with_context(what),
        MeasureMode::Load { endpoint, pids } => {
            let _idle = match endpoint {
                Endpoint::Iscsi(url) => {
                    Some(sessions::open_idle(url, entrant.idle).with_context(what)?)
                }
                _ => None,
            };
            let (mut seconds, mut warm_up) = (seconds, None);
            if let Some(preparation) = &entrant.preparation {
                preparation.prepare(client.program, endpoint).with_context(what)?;
                seconds = seconds.min(PREPARED_SECONDS);
                warm_up = Some(PREPARED_WARM_UP);
            }
            let neighbour = entrant.neighbour.as_ref();
            let noise = neighbour.map(|url| NoisyNeighbour::start(client.program, url, seconds));
            let figures = load(client, endpoint, pids, point, (seconds, warm_up));
            let figures = figures.with_context(what)?;
            noise.map_or(Ok(()), NoisyNeighbour::end).with_context(what)?;
            Ok(figures)
        }
    }
}

/// Runs the load generator once.
fn load(
    client: Client<'_>,
    endpoint: &Endpoint,
    pids: &[u32],
    point: &Point,
    (seconds, mut warm_up): (f64, Option<f64>),
) -> Result<Figures> {
    let mut command = Command::new(client.program);
    if client.is_slow {
        command.env(wake_ups::VARIABLE, WAKE_UP_COST_US.to_string());
    }
    command.args(["lab", "load", "--json", "--destroy"]).arg(endpoint.to_string());
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
    if point.digests {
        command.args(["--header-digest", "--data-digest"]);
    }
    if let Some(rate) = point.rate {
        // The time until a neighbour is at work.
        command.arg("--rate").arg(rate.to_string());
        warm_up = Some(neighbours::AHEAD.as_secs_f64());
    }
    if let Some(warm_up) = warm_up {
        command.arg("--warm-up").arg(warm_up.to_string());
    }
    for pid in pids {
        command.arg("--pid").arg(pid.to_string());
    }
    command.arg("--seconds").arg(seconds.to_string());
    said(&process::output(&mut command, Duration::from_secs_f64(seconds) + GRACE)?)
}

/// Parses the results of the load generator.
fn said(output: &str) -> Result<Figures> {
    let line = output.lines().rev().find(|line| line.starts_with('{'));
    let result: Value = serde_json::from_str(line.context("the load generator's result")?)?;
    ensure!(result["errors"].as_u64() == Some(0), "not without errors: {result}");
    Ok(serde_json::from_value(result)?)
}
