//! `cargo xtask bench --generator`: the CPU cost of the load generator itself, compared with libiscsi's `iscsi-perf`, and with the
//! initiator that `sarsen disk` uses, and the generator for several paths. All read the same volume without a medium in the same way,
//! in turn.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use sarsen_proof::serving::Url;
use sarsen_proof::{Backing, Serving, Volume, program};

const BYTE_COUNT: u64 = 1 << 30;
const BLOCK: u32 = 512;
/// Random reads: bytes and depth.
const POINTS: [(u32, u32); 3] = [(4096, 32), (512, 32), (64 << 10, 16)];
/// Maximum time of a client beyond its own duration, in seconds.
const GRACE: u64 = 30;

/// The results of a client's run.
struct Figures {
    iops: f64,
    cpu_us_per_io: f64,
}

/// The program that reads.
#[derive(Clone, Copy)]
enum Client {
    IscsiPerf,
    Generator,
    /// The generator with the initiator that `sarsen disk` uses, over two paths.
    Initiator,
}

impl Client {
    const ALL: [Self; 3] = [Self::IscsiPerf, Self::Generator, Self::Initiator];

    const fn name(self) -> &'static str {
        match self {
            Self::IscsiPerf => "iscsi-perf",
            Self::Generator => "sarsen",
            Self::Initiator => "sarsen, two paths",
        }
    }
}

pub(super) fn run(rounds: usize, seconds: u32) -> Result<()> {
    let program = program::path()?;
    let volume = Volume::new("null", Backing::Null, BYTE_COUNT);
    let serving = Serving::start_with(&[volume], &["--listen", "127.0.0.1:0"])?;
    let url = serving.url("null");
    let portals: Vec<_> = serving.urls("null")?.into_iter().map(|url| url.portal).collect();
    let both = Url { portal: portals.join(","), ..url.clone() }.to_string();
    let url = url.to_string();
    println!("| random read | client | IOPS | CPU µs/IO | IOPS × | CPU × |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (bytes, depth) in POINTS {
        let mut runs = Client::ALL.map(|_| Vec::new());
        for round in 0..rounds {
            eprintln!("round {} of {rounds}: {bytes} bytes, depth {depth}", round + 1);
            let mut turns: [usize; Client::ALL.len()] = std::array::from_fn(|turn| turn);
            turns.rotate_left(round % Client::ALL.len());
            for turn in turns {
                runs[turn].push(match Client::ALL[turn] {
                    Client::IscsiPerf => iscsi_perf(&url, bytes, depth, seconds)?,
                    Client::Generator => sarsen(&program, &url, bytes, depth, seconds)?,
                    Client::Initiator => sarsen(&program, &both, bytes, depth, seconds)?,
                });
            }
        }
        let (their_iops, their_cpu) = medians(&runs[0]);
        for (client, runs) in Client::ALL.iter().zip(&runs) {
            let (iops, cpu) = medians(runs);
            println!(
                "| {bytes} B, depth {depth} | {} | {iops:.0} | {cpu:.2} | {:.2} | {:.2} |",
                client.name(),
                iops / their_iops,
                cpu / their_cpu
            );
        }
    }
    println!(
        "Medians of {rounds} runs of {seconds} s in turns. CPU is all that the client's process \
         used, its start and login with it; × is that of the client to that of iscsi-perf."
    );
    Ok(())
}

fn medians(runs: &[Figures]) -> (f64, f64) {
    let median = |figure: fn(&Figures) -> f64| {
        super::results::median(&runs.iter().map(figure).collect::<Vec<_>>())
    };
    (median(|run| run.iops), median(|run| run.cpu_us_per_io))
}

fn sarsen(client: &Path, url: &str, bytes: u32, depth: u32, seconds: u32) -> Result<Figures> {
    let mut command = limited(client, seconds);
    command.args(["lab", "load", url, "--json", "--warm-up", "0"]);
    for (flag, number) in [("--block-size", bytes), ("--depth", depth), ("--seconds", seconds)] {
        command.arg(flag).arg(number.to_string());
    }
    let (said, cpu_us) = finish(&mut command)?;
    let result: serde_json::Value = serde_json::from_str(said.trim()).context(said.clone())?;
    ensure!(result["errors"] == 0, "not without errors: {result}");
    let iops = result["iops"].as_f64().context("IOPS")?;
    let ios = result["ios"].as_f64().context("the number of I/Os")?;
    Ok(Figures { iops, cpu_us_per_io: cpu_us / ios })
}

fn iscsi_perf(url: &str, bytes: u32, depth: u32, seconds: u32) -> Result<Figures> {
    let mut command = limited(Path::new("iscsi-perf"), seconds);
    command.arg("--random");
    for (flag, number) in [("-b", bytes / BLOCK), ("-m", depth), ("-t", seconds)] {
        command.arg(flag).arg(number.to_string());
    }
    let (said, cpu_us) = finish(command.arg(url))?;
    let iops = average(&said).with_context(|| format!("the figure of iscsi-perf in {said:?}"))?;
    Ok(Figures { iops, cpu_us_per_io: cpu_us / (iops * f64::from(seconds)) })
}

/// Parses the last "iops average N" of iscsi-perf's output, which overwrites its line repeatedly.
fn average(said: &str) -> Option<f64> {
    let (_, rest) = said.rsplit_once("iops average ")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn limited(program: &Path, seconds: u32) -> Command {
    let mut command = Command::new("timeout");
    command.arg((u64::from(seconds) + GRACE).to_string()).arg(program);
    command
}

/// Runs a command under `timeout` to its end. Returns its output, and the CPU time of its children, in microseconds.
fn finish(command: &mut Command) -> Result<(String, f64)> {
    let output = tempfile::NamedTempFile::new()?;
    let described = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output.reopen()?)
        .stderr(output.reopen()?)
        .spawn()
        .with_context(|| described.clone())?;
    // The process has ended and was not waited for yet: the kernel still reports its CPU time.
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), options)?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
    let status = child.wait()?;
    let said = String::from_utf8_lossy(&fs::read(output.path())?).into_owned();
    ensure!(status.success(), "{described}: {status}: {said}");
    let ticks = ticks_of_children(&stat).with_context(|| format!("CPU time in {stat:?}"))?;
    Ok((said, ticks as f64 * 1e6 / clock_ticks_per_second() as f64))
}

/// Returns `cutime` plus `cstime` of proc_pid_stat(5), the fields 16 and 17. The name, the second field, may contain
/// any character.
fn ticks_of_children(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(13);
    let (user, system) = (fields.next()?, fields.next()?);
    Some(user.parse::<u64>().ok()? + system.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_childrens_time_is_found_behind_any_name() {
        let stat = "42 (a) b) Z 1 2 3 4 5 6 7 8 9 10 111 222 33 44 20 0 1 0 5 0 0\n";
        assert_eq!(ticks_of_children(stat), Some(77));
        assert_eq!(ticks_of_children("42"), None);
    }

    #[test]
    fn the_last_average_counts() {
        let said = "\r00:00:01 - iops current 7 (0 MB/s), iops average 7 (0 MB/s)\
                    \riops average 41360 (161 MB/s)     \n\nfinished.\n";
        assert_eq!(average(said), Some(41360.0));
        assert_eq!(average("connected"), None);
    }
}
