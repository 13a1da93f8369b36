//! File systems on storage networks, by bonnie++: after Lunden, *Evaluation of Different SAN
//! Technologies for Virtual Machine Hosting*, Oslo 2009.
//!
//! A file system is made on each kind of storage and bonnie++ is run on it a hundred times; of each
//! of its figures, mean, median, the gap between them, variance, extremes and a histogram are
//! shown. It is no load of ours: either the files that bonnie++ wrote somewhere are read
//! ([`run_from_files`]), or it is run in a folder of a mounted file system ([`run_bonnie`]). What
//! it says is kept as samples like any other study's; [`crate::bonnie`] reads it.

mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bonnie::{self, Contents, Line, OPERATIONS, Unit, Value};
use crate::record::{Labels, Measures, Outcome, Run, Sample, Scale, figure};
use crate::report::Report;
use crate::study::{Choices, Plan, Study};

/// Names of the figures that only bonnie++ gives.
pub mod figures {
    /// KiB a second.
    pub const KIB_PER_S: &str = "kib_per_s";
    /// Seeks a second.
    pub const SEEKS_PER_S: &str = "seeks_per_s";
    /// Files a second.
    pub const FILES_PER_S: &str = "files_per_s";
    /// CPU time, in percent of the time that the operation took.
    pub const CPU_PERCENT: &str = "cpu_percent";
}

/// The dimension whose values are compared: a kind of storage, and how it is used.
pub const SETUP: &str = "setup";
/// The dimension of bonnie++'s operations, with its names for them.
pub const OPERATION: &str = "operation";

/// How many runs the study made of each set-up.
const REPETITIONS: u32 = 100;
const QUICK_REPETITIONS: u32 = 3;
/// Of a quick run: a file of 512 MiB as if the memory were half that, and 4096 files. Smaller ones
/// are written in less than the half second below which bonnie++ says nothing.
const QUICK_OPTIONS: [&str; 6] = ["-s", "512", "-r", "256", "-n", "4"];
/// A hundred runs are some 30 KiB.
const FILE_LIMIT: u64 = 64 << 20;
/// Of what bonnie++ said before it failed.
const SAID_LIMIT: usize = 2000;

/// The study.
#[derive(Clone, Copy, Debug)]
pub struct Lunden;

impl Study for Lunden {
    fn name(&self) -> &'static str {
        "lunden"
    }

    fn about(&self) -> &'static str {
        "bonnie++ on a file system, again and again: mean, median, variance and histogram of each \
         figure, after Lunden (2009)"
    }

    /// Nothing for the runner: bonnie++ measures.
    fn plan(&self, _choices: &Choices) -> Option<Plan> {
        None
    }

    fn report(&self, run: &Run) -> Report {
        table::report(run)
    }
}

/// Why there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum LundenError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is longer than bonnie++'s could be.
    #[error("{}: longer than {} MiB, too long for an output of bonnie++", path.display(), FILE_LIMIT >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file holds no run.
    #[error(
        "{}: it has no result of bonnie++{}; use the output of `bonnie++ -q`",
        path.display(),
        first.as_ref().map(|first| format!(" ({first})")).unwrap_or_default()
    )]
    NoRun {
        /// The file.
        path: PathBuf,
        /// Its first line that could have been one.
        first: Option<bonnie::BonnieError>,
    },
    /// Nothing can be written where bonnie++ is to run.
    #[error("{}: no folder can be made in it: {source}", folder.display())]
    Folder {
        /// Where.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// bonnie++ does not start.
    #[error("bonnie++ cannot be started ({source}): install it with `apt-get install bonnie++`")]
    Start {
        /// Why not.
        source: io::Error,
    },
    /// bonnie++ gave no figures.
    #[error("run {repetition} in {}: bonnie++ ended with {status} and without figures:\n{said}", folder.display())]
    Failed {
        /// Where.
        folder: PathBuf,
        /// Which run, from 1.
        repetition: u32,
        /// How it ended.
        status: std::process::ExitStatus,
        /// The end of what it said.
        said: String,
    },
}

/// Samples of files that bonnie++ wrote, with any number of runs each. A set-up is a file, under
/// its name without the extension, or a machine, where one file has runs of several. Lines that are
/// no runs become samples too, without an operation: failed if they were a run's once.
pub fn run_from_files(files: &[PathBuf]) -> Result<Vec<Sample>, LundenError> {
    let mut samples = Vec::new();
    for path in files {
        let name = path.display().to_string();
        let (text, ended_at) = read(path)?;
        let contents = bonnie::parse(&name, &text);
        if contents.lines.is_empty() {
            let first = contents.others.into_iter().next();
            return Err(LundenError::NoRun { path: path.clone(), first });
        }
        let setup = setup_name(path, files);
        samples.extend(samples_of_file(&contents, &setup, &name, files.len() == 1, ended_at));
    }
    Ok(samples)
}

fn read(path: &Path) -> Result<(String, u64), LundenError> {
    let failed = |source| LundenError::Read { path: path.into(), source };
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.len() > FILE_LIMIT {
        return Err(LundenError::TooLong { path: path.into() });
    }
    let bytes = fs::read(path).map_err(failed)?;
    let written = metadata.modified().map_err(failed)?;
    // Machines' names may be in any encoding; no figure is.
    Ok((String::from_utf8_lossy(&bytes).into_owned(), seconds(written)))
}

/// The file's name without its extension; the whole path where another file has the same name.
fn setup_name(path: &Path, files: &[PathBuf]) -> String {
    let others = files.iter().filter(|other| other.as_path() != path);
    match path.file_stem() {
        Some(stem) if others.clone().all(|other| other.file_stem() != Some(stem)) => {
            stem.to_string_lossy().into_owned()
        }
        _ => path.display().to_string(),
    }
}

fn samples_of_file(
    contents: &Contents,
    setup: &str,
    file: &str,
    only_file: bool,
    ended_at: u64,
) -> Vec<Sample> {
    let mut machines: Vec<(&str, u32)> = Vec::new();
    for Line { machine, .. } in &contents.lines {
        if !machines.iter().any(|(known, _)| known == machine) {
            machines.push((machine, 0));
        }
    }
    let several = machines.len() > 1;
    let mut samples = Vec::new();
    for line in &contents.lines {
        let setup = match (several, only_file) {
            (false, _) => setup.to_owned(),
            (true, true) => line.machine.clone(),
            (true, false) => format!("{setup} {}", line.machine),
        };
        // Every machine was counted above.
        for (_, runs) in machines.iter_mut().filter(|(machine, _)| *machine == line.machine) {
            *runs += 1;
            samples.extend(samples_of_run(line, &setup, *runs, ended_at, file));
        }
    }
    for other in &contents.others {
        let text = other.to_string();
        samples.push(Sample {
            labels: Labels::new().with(SETUP, setup),
            repetition: u32::try_from(other.line).unwrap_or(u32::MAX),
            ended_at,
            outcome: if other.damaged { Outcome::Failed(text) } else { Outcome::NotMeasured(text) },
        });
    }
    samples
}

/// A sample of each operation.
fn samples_of_run(
    line: &Line,
    setup: &str,
    repetition: u32,
    ended_at: u64,
    source: &str,
) -> impl Iterator<Item = Sample> {
    OPERATIONS.iter().zip(line.measured).map(move |(operation, measured)| {
        let mut measures = Measures::default();
        let mut quick = false;
        let figures =
            [(rate_figure(operation.unit), measured.rate), (figures::CPU_PERCENT, measured.cpu)];
        for (name, value) in figures {
            quick |= value == Value::TooQuick;
            if let Some(number) = value.number() {
                measures.figures.insert(name.into(), number);
            }
        }
        if let Some(latency) = measured.latency_us {
            measures.figures.insert(figure::MAX_US.into(), latency);
        }
        let mut text = |name: &str, value: &str| {
            if !value.is_empty() {
                measures.texts.insert(name.into(), value.into());
            }
        };
        text("line", &format!("{source}:{}", line.number));
        text("machine", &line.machine);
        text("size", &line.size);
        text("files", &line.files);
        text("bonnie++", line.version.as_deref().unwrap_or("before 1.9"));
        text(TOO_QUICK, if quick { "+++++" } else { "" });
        let outcome = match (measures.figures.is_empty(), quick) {
            (false, _) => Outcome::Measured(measures),
            (true, true) => Outcome::NotMeasured(TOO_QUICK_REASON.into()),
            (true, false) => Outcome::NotMeasured("bonnie++ was told to leave it out".into()),
        };
        Sample {
            labels: Labels::new().with(SETUP, setup).with(OPERATION, operation.name),
            repetition,
            ended_at,
            outcome,
        }
    })
}

/// The text of a sample whose rate bonnie++ would not tell, though it told its latency.
const TOO_QUICK: &str = "too_quick";
const TOO_QUICK_REASON: &str = "too quick: bonnie++ says +++++ below half a second";

/// The name of the figure that an operation's rate has in the samples.
fn rate_figure(unit: Unit) -> &'static str {
    match unit {
        Unit::KibPerSecond => figures::KIB_PER_S,
        Unit::SeeksPerSecond => figures::SEEKS_PER_S,
        Unit::FilesPerSecond => figures::FILES_PER_S,
    }
}

/// A run of bonnie++'s that has ended.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Which run, from 1.
    pub repetition: u32,
    /// Of how many.
    pub of: u32,
    /// What it gave.
    pub samples: &'a [Sample],
}

/// Runs bonnie++ in a folder of the file system that is to be measured, as often and with as large
/// files as the scale says: in full, with those that it chooses for this machine's memory. The
/// set-up is called after the folder. `ended` hears of each run when it has ended, so that what was
/// measured is not lost when a later one fails. The thread is taken until all is done.
pub fn run_bonnie(
    folder: &Path,
    scale: Scale,
    ended: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Sample>, LundenError> {
    match scale {
        Scale::Quick => run_bonnie_with(folder, QUICK_REPETITIONS, &QUICK_OPTIONS, ended),
        Scale::Full => run_bonnie_with(folder, REPETITIONS, &[], ended),
    }
}

/// Like [`run_bonnie`], so often and with these options of bonnie++'s (`-s`, `-r`, `-n`, …).
pub fn run_bonnie_with(
    folder: &Path,
    repetitions: u32,
    options: &[&str],
    ended: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Sample>, LundenError> {
    let mut samples = Vec::new();
    for repetition in 1..=repetitions {
        let run = run_once(folder, options, repetition)?;
        ended(Progress { repetition, of: repetitions, samples: &run });
        samples.extend(run);
    }
    Ok(samples)
}

/// One run with these options.
fn run_once(folder: &Path, options: &[&str], repetition: u32) -> Result<Vec<Sample>, LundenError> {
    // In a folder of its own: bonnie++ writes files of fixed names where it is.
    let own = tempfile::Builder::new()
        .prefix("bonnie-")
        .tempdir_in(folder)
        .map_err(|source| LundenError::Folder { folder: folder.into(), source })?;
    let mut command = command(own.path(), options);
    let output = command.output().map_err(|source| LundenError::Start { source })?;
    let said = String::from_utf8_lossy(&output.stdout);
    let contents = bonnie::parse("bonnie++", &said);
    let (true, [line]) = (output.status.success(), &contents.lines[..]) else {
        let said = format!("{said}{}", String::from_utf8_lossy(&output.stderr));
        let said: Vec<char> = said.trim().chars().collect();
        let said = said[said.len().saturating_sub(SAID_LIMIT)..].iter().collect();
        let (folder, status) = (folder.into(), output.status);
        return Err(LundenError::Failed { folder, repetition, status, said });
    };
    let (setup, now) = (folder.display().to_string(), seconds(sarsen_io::time::wall_clock()));
    Ok(samples_of_run(line, &setup, repetition, now, "bonnie++").collect())
}

fn command(folder: &Path, options: &[&str]) -> Command {
    // Debian's is in /usr/sbin, which is not in everyone's PATH.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new("bonnie++");
    if let Ok(path) =
        std::env::join_paths(std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]))
    {
        command.env("PATH", path);
    }
    command.arg("-q").arg("-d").arg(folder).args(options);
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        // Root has to say that it means it.
        command.args(["-u", &format!("{}:{}", user.as_raw(), group.as_raw())]);
    }
    command
}

/// How bonnie++ is started by [`run_bonnie`], for the record of a run.
pub fn command_line(scale: Scale) -> String {
    match scale {
        Scale::Quick => format!("bonnie++ -q -d FOLDER {}", QUICK_OPTIONS.join(" ")),
        Scale::Full => "bonnie++ -q -d FOLDER".into(),
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
