//! Lunden's study with the real bonnie++: the lab reads its lines like bonnie++'s own `bon_csv2txt`, and converts its
//! runs to samples.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sarsen_lab::bonnie::{self, Line};
use sarsen_lab::record::{Outcome, Sample};
use sarsen_lab::study::lunden::{self, LundenError};
use sarsen_proof::laboratory::Laboratory;
use sarsen_proof::{guest, process};

/// Maximum duration; a run of these sizes takes seconds, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(300);
const SIZES: [&str; 6] = ["-s", "16", "-r", "8", "-n", "1"];

/// A line in which all figures differ and none is too fast to show, so that each figure identifies its position.
const DISTINCT: &str = "1.98,2.00a,vm,1,7,512M,,8192,5,1223,91,1778,62,3001,13,1957,94,1005,15,\
    606.5,16,4,,,,,7411,97,18,28,19,29,7792,90,20,30,21,31,7677us,316us,324us,5250us,92us,\
    10665us,353us,273us,386us,2305us,43us,920us";

/// Returns the figures that bonnie++'s own converter shows for a line: rates with their CPU, operation by operation,
/// and the latencies.
fn as_bonnie_shows(line: &str) -> Result<(Vec<f64>, Vec<f64>)> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("line.csv");
    fs::write(&path, format!("{line}\n"))?;
    let mut converter = Command::new("sh");
    converter.args(["-c", "bon_csv2txt <\"$1\"", "sh"]).arg(&path);
    let said = process::output(&mut converter, LIMIT)?;
    let (mut figures, mut latencies) = (Vec::new(), Vec::new());
    for row in said.lines() {
        let words: Vec<_> = row.split_ascii_whitespace().collect();
        // `vm 512M::8192:5 …` and `vm 4 …` contain figures, `Latency …` the latencies.
        let (into, words) = match words[..] {
            ["vm", _, ref rest @ ..] => (&mut figures, rest),
            ["Latency", ref rest @ ..] => (&mut latencies, rest),
            _ => continue,
        };
        for word in words {
            let number = word.trim_end_matches(['k', 'u', 's']);
            into.push(number.parse().with_context(|| format!("{word:?} in {row:?}"))?);
        }
    }
    Ok((figures, latencies))
}

fn as_we_read(line: &Line) -> (Vec<f64>, Vec<f64>) {
    let pairs = line.measured.iter().flat_map(|measured| [measured.rate, measured.cpu]);
    let latencies = line.measured.iter().filter_map(|measured| measured.latency_us);
    (pairs.filter_map(bonnie::Value::number).collect(), latencies.collect())
}

#[test]
fn every_figure_matches_bonnie_converter() -> Result<()> {
    let contents = bonnie::parse("line", DISTINCT);
    let [line] = &contents.lines[..] else { panic!("{contents:?}") };
    let read = as_we_read(line);
    assert_eq!((read.0.len(), read.1.len()), (24, 12));
    assert_eq!(read, as_bonnie_shows(DISTINCT)?);
    Ok(())
}

fn figures(sample: &Sample) -> Option<usize> {
    match &sample.outcome {
        Outcome::Measured(measures) => Some(measures.figures.len()),
        Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
    }
}

#[test]
fn a_folder_is_measured_and_left_as_it_was() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut heard = Vec::new();
    let samples = lunden::run_bonnie_with(folder.path(), 2, &SIZES, &mut |progress| {
        heard.push((progress.repetition, progress.of, progress.samples.len()));
    })?;
    assert_eq!(heard, [(1, 2, 12), (2, 2, 12)]);
    assert_eq!(samples.len(), 24);
    // An operation that is too fast for a rate has a latency.
    assert!(samples.iter().all(|sample| figures(sample).is_some()), "{samples:?}");
    ensure!(fs::read_dir(folder.path())?.next().is_none(), "bonnie++ left something behind");
    Ok(())
}

#[test]
fn bonnie_file_with_heading_is_read() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let own = tempfile::tempdir()?;
    let path = folder.path().join("local.csv");
    let mut command = Command::new("sh");
    // bonnie++'s manual recommends this way to keep the lines; the readable output goes elsewhere.
    command
        .args(["-c", "PATH=$PATH:/usr/sbin; bonnie++ -q -d \"$1\" -u \"$2\" -s 16 -r 8 -n 0 -x 2 >\"$3\" 2>/dev/null", "sh"])
        .arg(own.path())
        .arg(format!("{}:{}", rustix::process::geteuid(), rustix::process::getegid()))
        .arg(&path);
    process::output(&mut command, LIMIT)?;
    let text = fs::read_to_string(&path)?;
    ensure!(text.starts_with("format_version,"), "no heading: {text}");
    let samples = lunden::run_from_files(&[path])?;
    assert_eq!(samples.len(), 24);
    // The operations on the large file are measured; small files were omitted, so that they have no figures.
    let measured: Vec<_> = samples.iter().map(|sample| figures(sample).is_some()).collect();
    let of_a_run = [[true; 6], [false; 6]].concat();
    assert_eq!(measured, [of_a_run.clone(), of_a_run].concat());
    Ok(())
}

#[test]
fn error_of_bonnie_is_passed_on() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let refused = ["-s", "16", "-r", "64"];
    let error = lunden::run_bonnie_with(folder.path(), 1, &refused, &mut |_| {}).unwrap_err();
    assert!(matches!(error, LundenError::Failed { repetition: 1, .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("double RAM"), "{said}");
    ensure!(fs::read_dir(folder.path())?.next().is_none(), "bonnie++ left something behind");
    Ok(())
}

/// The lab boots a server and three clients, and measures each kind of network in them.
#[test]
#[ignore = "boots kernels under emulation"]
fn set_ups_in_guests_are_measured() -> Result<()> {
    let laboratory = Laboratory::new()?;
    let cache = guest::cache().display().to_string();
    let mut arguments = vec!["run", "lunden", "--quick", "--json", "--guests", &cache];
    let setups = ["keeper base", "iscsi 3 vms", "nfs base", "drbd base"];
    let only = setups.map(|setup| format!("setup={setup}"));
    arguments.extend(only.iter().flat_map(|only| ["--only", only]));
    let said = laboratory.say(&arguments)?.ended(0)?;
    let run: serde_json::Value = serde_json::from_str(&said.out)?;
    let samples = run["run"]["samples"].as_array().context("samples")?;
    for setup in setups {
        let mut clients: Vec<_> = samples
            .iter()
            .filter(|sample| sample["labels"]["setup"] == setup)
            .filter(|sample| sample["labels"]["operation"] == "put_block")
            .map(|sample| {
                let rate = &sample["outcome"]["measured"]["figures"]["kib_per_s"];
                ensure!(rate.as_f64().is_some_and(|rate| rate > 0.0), "{sample}");
                Ok(sample["labels"]["client"].as_str().unwrap_or_default().to_owned())
            })
            .collect::<Result<_>>()?;
        clients.sort();
        let expected = if setup == "iscsi 3 vms" { &["1", "2", "3"][..] } else { &[""] };
        assert_eq!(clients, expected, "{setup}");
    }
    Ok(())
}
