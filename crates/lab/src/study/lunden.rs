//! File systems on storage networks, measured with bonnie++: after Lunden, *Evaluation of Different SAN Technologies
//! for Virtual Machine Hosting*, Oslo 2009.
//!
//! The study created a file system on each type of storage and ran bonnie++ on it a hundred times. For each figure it
//! shows the mean, the median, the gap between them, the variance, the extremes and a histogram. This study uses no
//! load of the lab. It runs bonnie++ in guests, whose storage the lab creates; or it reads files that bonnie++ wrote
//! ([`run_from_files`]), or it runs bonnie++ in a folder of a mounted file system ([`run_bonnie`]). The results are
//! stored as samples, as in all other studies; [`crate::bonnie`] parses them.

mod findings;
mod other_tool;
mod roles;
mod setups;
mod table;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::bonnie::{self, Contents, Line, OPERATIONS, Unit, Value};
use crate::record::{Labels, Measures, Outcome, Run, Sample, Scale, figure};
use crate::report::Report;
use crate::study::{Choices, GuestPlan, Plan, Study};
use setups::SETUPS;

/// Names of the figures that only bonnie++ reports.
pub mod figures {
    /// KiB per second.
    pub const KIB_PER_S: &str = "kib_per_s";
    /// Seeks per second.
    pub const SEEKS_PER_S: &str = "seeks_per_s";
    /// Files per second.
    pub const FILES_PER_S: &str = "files_per_s";
    /// CPU time in percent of the operation's elapsed time.
    pub const CPU_PERCENT: &str = "cpu_percent";
}

/// The dimension whose values are compared: a type of storage and its use.
pub const SETUP: &str = "setup";
/// The dimension of the operations, by their names in bonnie++.
pub const OPERATION: &str = "operation";

/// Number of runs of the study for each set-up.
const REPETITIONS: u32 = 100;
const QUICK_REPETITIONS: u32 = 3;
/// Options of a quick run: a file of 512 MiB, as if the memory had half that size, and 4096 files. Writing less data
/// would take less than half a second, and bonnie++ reports no figures for such short times.
const QUICK_OPTIONS: [&str; 6] = ["-s", "512", "-r", "256", "-n", "4"];
/// Number of quick runs of each set-up in guests: more of them would take more than five minutes.
const QUICK_GUEST_REPETITIONS: u32 = 1;
/// Size of each disk of a guest: a file system is made on it for each run.
const DISK_BYTES: u64 = 2 << 30;
const QUICK_DISK_BYTES: u64 = 256 << 20;
/// Maximum size of a file with results; a hundred runs need about 30 KiB.
const FILE_LIMIT: u64 = 64 << 20;
/// Maximum number of characters of bonnie++'s output in an error.
const SAID_LIMIT: usize = 2000;

/// The study.
#[derive(Clone, Copy, Debug)]
pub struct Lunden;

impl Study for Lunden {
    fn name(&self) -> &'static str {
        "lunden"
    }

    fn about(&self) -> &'static str {
        "bonnie++ on file systems over iSCSI, NFS, DRBD and ATA over Ethernet, in guests or where \
         you mount them: mean, median, variance and histogram of each figure (Lunden 2009)"
    }

    fn plan(&self, choices: &Choices) -> Plan {
        let size = setups::Size::of(choices.scale);
        let repetitions = match choices.scale {
            Scale::Quick => QUICK_GUEST_REPETITIONS,
            Scale::Full => REPETITIONS,
        };
        Plan {
            guests: Some(GuestPlan {
                disk_bytes: match choices.scale {
                    Scale::Quick => QUICK_DISK_BYTES,
                    Scale::Full => DISK_BYTES,
                },
                commands: vec![setups::bonnie(size, 1)],
                points: SETUPS
                    .iter()
                    .filter(|setup| choices.scale == Scale::Full || !setup.only_full)
                    .map(|setup| setups::point(setup, size))
                    // They take too long for a quick run.
                    .chain(
                        (choices.scale == Scale::Full)
                            .then(|| other_tool::points().chain([roles::point()]))
                            .into_iter()
                            .flatten(),
                    )
                    .collect(),
                repetitions,
            }),
            repetitions,
            ..Plan::default()
        }
    }

    fn report(&self, run: &Run) -> Report {
        table::report(run)
    }
}

/// The reason for which there are no samples.
#[derive(Debug, thiserror::Error)]
pub enum LundenError {
    /// A file is unreadable.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A file is too long to be an output of bonnie++.
    #[error("{}: longer than {} MiB, too long for an output of bonnie++", path.display(), FILE_LIMIT >> 20)]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A file contains no run.
    #[error(
        "{}: it has no result of bonnie++{}; use the output of `bonnie++ -q`",
        path.display(),
        first.as_ref().map(|first| format!(" ({first})")).unwrap_or_default()
    )]
    NoRun {
        /// The file.
        path: PathBuf,
        /// Its first line that resembles a run.
        first: Option<bonnie::BonnieError>,
    },
    /// No folder can be created in the folder for bonnie++.
    #[error("{}: cannot create a folder in it: {source}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// bonnie++ cannot be started.
    #[error("bonnie++ cannot be started ({source}): install it with `apt-get install bonnie++`")]
    Start {
        /// The error.
        source: io::Error,
    },
    /// bonnie++ reported no figures.
    #[error("run {repetition} in {}: bonnie++ ended with {status} and without figures:\n{said}", folder.display())]
    Failed {
        /// The folder.
        folder: PathBuf,
        /// Number of the run, starting at 1.
        repetition: u32,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The end of its output.
        said: String,
    },
}

/// Reads the samples of files that bonnie++ wrote, with any number of runs each. A set-up is a file, by its name
/// without the extension, or a machine if a file contains runs of several machines. Lines that are not runs become
/// samples without an operation: failed if the line is a damaged run.
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
    // Names of machines can have any encoding; figures are ASCII.
    Ok((String::from_utf8_lossy(&bytes).into_owned(), seconds(written)))
}

/// Returns the file's name without its extension, or the whole path if another file has the same name.
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
        // The loop above added every machine.
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

/// Returns the outcome of each operation in the output of one run of bonnie++.
fn run_lines(said: &str, setup: &str) -> Vec<(Labels, Outcome)> {
    let contents = bonnie::parse("bonnie++", said);
    match &contents.lines[..] {
        [line] => {
            let samples = samples_of_run(line, setup, 1, 0, "bonnie++");
            samples.map(|sample| (sample.labels, sample.outcome)).collect()
        }
        _ => {
            let reason = format!("bonnie++ printed no result: {said}");
            vec![(Labels::new().with(SETUP, setup), Outcome::Failed(reason))]
        }
    }
}

/// Returns a sample of each operation.
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
            (true, false) => Outcome::NotMeasured("the options of bonnie++ omit it".into()),
        };
        Sample {
            labels: Labels::new().with(SETUP, setup).with(OPERATION, operation.name),
            repetition,
            ended_at,
            outcome,
        }
    })
}

/// Name of the text of a sample whose rate or CPU time bonnie++ did not report because the operation was too quick.
const TOO_QUICK: &str = "too_quick";
const TOO_QUICK_REASON: &str = "too quick: bonnie++ says +++++ below half a second";

/// Returns the name of the figure for an operation's rate.
fn rate_figure(unit: Unit) -> &'static str {
    match unit {
        Unit::KibPerSecond => figures::KIB_PER_S,
        Unit::SeeksPerSecond => figures::SEEKS_PER_S,
        Unit::FilesPerSecond => figures::FILES_PER_S,
    }
}

/// A bonnie++ run that has ended.
#[derive(Debug)]
pub struct Progress<'a> {
    /// Number of the run, starting at 1.
    pub repetition: u32,
    /// Total number of runs.
    pub of: u32,
    /// The samples of the run.
    pub samples: &'a [Sample],
}

/// Runs bonnie++ in a folder of the file system under test. The scale determines the number of runs and the size of the
/// files: for full runs, bonnie++ chooses the size for this machine's memory. The folder is the name of the set-up. The
/// function calls `ended` after each run, so that no results are lost if a later run fails. It blocks the calling
/// thread until all runs have ended.
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

/// Like [`run_bonnie`], with this number of runs and these options of bonnie++ (`-s`, `-r`, `-n`, …).
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

/// Runs bonnie++ once with these options.
fn run_once(folder: &Path, options: &[&str], repetition: u32) -> Result<Vec<Sample>, LundenError> {
    // Each run needs its own folder: bonnie++ writes files with fixed names there.
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
    // Debian installs bonnie++ in /usr/sbin, which is not in every user's PATH.
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
        // bonnie++ runs as root only if the command line requests it.
        command.args(["-u", &format!("{}:{}", user.as_raw(), group.as_raw())]);
    }
    command
}

/// Returns the command line of [`run_bonnie`], for the record of a run.
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
