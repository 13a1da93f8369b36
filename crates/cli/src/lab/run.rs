//! `sarsen lab run`: a study, from its plan to its report.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, anyhow};
use sarsen_lab::archive::Archive;
use sarsen_lab::guest;
use sarsen_lab::network::Network;
use sarsen_lab::process;
use sarsen_lab::record::{Outcome, Run, Scale};
use sarsen_lab::report::{self, Format};
use sarsen_lab::study::{self, Choices, Settings, Study, lunden};
use sarsen_lab::target_under_test::{GuestTarget, Medium, TargetUnderTest, scst};
use sarsen_node::model::nearest;

use super::archive;
use super::progress::Progress;
use crate::disk::variable;
use crate::exit::{PartialError, UsageError};
use crate::output::{note, printed};

/// The study whose figures come from bonnie++.
const LUNDEN: &str = "lunden";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The study: see `sarsen lab studies`.
    study: String,
    /// Files with the output of bonnie++ 1.03, 1.9x or 2.00; only for `lunden`.
    #[arg(conflicts_with = "mount")]
    files: Vec<PathBuf>,
    /// A folder of a mounted disk in which to run bonnie++; only for `lunden`.
    #[arg(long, value_name = "FOLDER")]
    mount: Option<PathBuf>,
    /// Take a few minutes: a rough result. This is the default.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Use the durations and repetitions of the study: hours.
    #[arg(long)]
    full: bool,
    /// A target to measure: sarsen, tgt, istgt, nbdkit, direct, direct:PATH, or an iscsi://, nbd:// or nbd+unix:// URL; in
    /// a guest: lio, scst, sarsen-in-guest, tgt-in-guest, istgt-in-guest. Several may be given [default: those of the study]
    // Read later: a complaint of clap's would repeat a URL with its secret.
    #[arg(long = "target", short = 'c', value_name = "NAME|URL")]
    targets_under_test: Vec<String>,
    /// The medium of the volumes: ram or disk [default: that of the study]
    #[arg(long, value_parser = parse_medium)]
    medium: Option<Medium>,
    /// Permit writes to targets that the lab has not started: their data is lost.
    #[arg(long)]
    destroy: bool,
    /// Continue the newest interrupted run of the same study, scale and targets.
    #[arg(long)]
    resume: bool,
    /// Measure only the cells with this label, such as `test=Exchange 2003`: see `sarsen lab studies STUDY`. Several may be given: several values of one
    /// label select the cells of each, and a cell must have all labels.
    #[arg(long, value_name = "LABEL=VALUE", value_parser = parse_label)]
    only: Vec<(String, String)>,
    /// The folder for volumes on disk. They are deleted at the end.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
    /// The folder that keeps what guests boot from, which Debian's packages provide [default: sarsen/guests in the user's
    /// cache folder]
    #[arg(long, value_name = "FOLDER")]
    guests: Option<PathBuf>,
    /// The folder with the sources of SCST, for the target scst: Debian has no package of it.
    #[arg(long, value_name = "FOLDER")]
    scst: Option<PathBuf>,
    /// Seed of the pseudo-random choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: Output,
}

/// Where a run is archived and reported.
#[derive(clap::Args)]
pub(super) struct Output {
    /// A report to write, in the format of its ending: .html, .md, .csv, .json or .tex. Several may be given
    /// [default: sarsen-lab-STUDY-RUN.html]
    #[arg(long = "report", value_name = "FILE")]
    reports: Vec<PathBuf>,
    /// The archive of runs [default: sarsen/lab.sqlite in the user's state folder]
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
    /// Print the run and its report as JSON instead of tables.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let study = find(&arguments.study)?;
    if !arguments.files.is_empty() || arguments.mount.is_some() {
        if study.name() != LUNDEN {
            return Err(UsageError(format!("files and --mount are only for {LUNDEN}")).into());
        }
        return arguments.output.tell(study, &run_lunden(arguments)?);
    }
    if study.name() == LUNDEN && arguments.chooses_targets() {
        let others = "--target, --medium and --destroy";
        return Err(UsageError(format!(
            "{others} are not for {LUNDEN}, which has its own targets in guests; --only selects them"
        ))
        .into());
    }
    let targets_under_test = arguments.targets_under_test()?;
    if targets_under_test.contains(&TargetUnderTest::InGuest(GuestTarget::Scst)) {
        scst::sources(arguments.scst.as_deref()).map_err(UsageError)?;
    }
    let elsewhere = targets_under_test.iter().any(TargetUnderTest::is_elsewhere);
    let choices = Choices {
        links: !elsewhere && Network::can_be_apart().is_ok(),
        scale: arguments.scale(),
        targets_under_test,
        medium: arguments.medium,
        destroy: arguments.destroy,
        seed: arguments.seed,
    };
    let settings = Settings {
        folder: arguments.folder.clone(),
        command: command_line(),
        only: arguments.only.clone(),
        resume: arguments.resume,
        guests: arguments.guests.clone().unwrap_or_else(guest::usual_cache),
        scst: arguments.scst.clone(),
    };
    // A refused command leaves no archive behind.
    study::check(study, &choices, &settings)?;
    let archive = arguments.output.open()?;
    let mut progress = Progress::new();
    let ended = study::run(study, &choices, &settings, &archive, &mut progress);
    progress.end();
    arguments.output.tell(study, &ended?)
}

impl Arguments {
    fn scale(&self) -> Scale {
        if self.full { Scale::Full } else { Scale::Quick }
    }

    fn targets_under_test(&self) -> anyhow::Result<Vec<TargetUnderTest>> {
        self.targets_under_test.iter().map(|text| parse_target_under_test(text)).collect()
    }

    /// Returns whether a flag was given that only applies to studies that run loads.
    fn chooses_targets(&self) -> bool {
        !self.targets_under_test.is_empty() || self.medium.is_some() || self.destroy
    }
}

/// Parses a target under test. The environment supplies secrets that its URL does not have.
fn parse_target_under_test(text: &str) -> anyhow::Result<TargetUnderTest> {
    let mut target_under_test: TargetUnderTest = text.parse().map_err(UsageError)?;
    if let TargetUnderTest::Iscsi(url) = &mut target_under_test {
        url.chap.complete(variable);
    }
    Ok(target_under_test)
}

fn parse_medium(text: &str) -> Result<Medium, String> {
    match text {
        "ram" => Ok(Medium::Ram),
        "disk" => Ok(Medium::Disk),
        _ => Err(format!("{text:?} is not a medium; write ram or disk")),
    }
}

fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((dimension, value)) if !dimension.is_empty() => {
            Ok((dimension.to_owned(), value.to_owned()))
        }
        _ => Err(format!("{text:?} is not a label; write LABEL=VALUE, such as target=tgt")),
    }
}

/// Returns the output of bonnie++, from files or from a new run in a mounted folder.
fn run_lunden(arguments: &Arguments) -> anyhow::Result<Run> {
    let scale = arguments.scale();
    if arguments.chooses_targets() || arguments.resume || !arguments.only.is_empty() {
        let others = "--target, --medium, --destroy, --resume and --only";
        return Err(UsageError(format!(
            "{others} are not for files and --mount, which bonnie++ measures"
        ))
        .into());
    }
    // Errors in the files are reported before a run begins.
    let from_files = match arguments.mount {
        None => lunden::run_from_files(&arguments.files)?,
        Some(_) => Vec::new(),
    };
    let archive = arguments.output.open()?;
    let mut run = study::record(LUNDEN, scale, command_line());
    if arguments.mount.is_some() {
        run.setting.commands.push(lunden::command_line(scale));
    }
    run.id = archive.begin(&run)?;
    let _hold = archive.hold(run.id)?;
    for sample in &from_files {
        archive.add(run.id, sample)?;
    }
    if let Some(folder) = &arguments.mount {
        let mut kept = Ok(());
        lunden::run_bonnie(folder, scale, &mut |progress| {
            note(format_args!("bonnie++: {} of {}", progress.repetition, progress.of));
            let mut samples = progress.samples.iter();
            let added = samples.try_for_each(|sample| archive.add(run.id, sample));
            kept = std::mem::replace(&mut kept, Ok(())).and(added);
        })?;
        kept?;
    }
    archive.end(run.id, study::now())?;
    Ok(archive.run(run.id)?)
}

/// Returns the study of a name.
pub(super) fn find(name: &str) -> anyhow::Result<&'static dyn Study> {
    study::find(name).ok_or_else(|| {
        let known: Vec<_> = study::ALL.iter().map(|study| study.name()).collect();
        let hint = nearest(name, known.iter().copied());
        // An invalid name may be a misplaced URL with a secret.
        let is_name = name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
        let what = if is_name {
            format!("study {name:?} does not exist")
        } else {
            "this is no study".into()
        };
        UsageError(format!("{what}{hint} (known: {})", known.join(", "))).into()
    })
}

/// Returns the command line without the secrets of URLs.
pub(super) fn command_line() -> String {
    let mut words =
        std::env::args_os().map(|word| archive::without_secret(&word.to_string_lossy()));
    let mut command = Command::new(words.next().unwrap_or_default());
    process::command_line(command.args(words))
}

impl Output {
    /// Opens the archive and the reports before the run, so that errors are found early.
    pub(super) fn open(&self) -> anyhow::Result<Archive> {
        for path in &self.reports {
            archive::format_of(path)?;
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
                let (path, folder) = (path.display(), folder.display());
                return Err(UsageError(format!("{path}: folder {folder} does not exist")).into());
            }
        }
        archive::open(self.archive.as_deref())
    }

    /// Prints a finished run and writes its reports. Failures of the run are an error.
    pub(super) fn tell(&self, study: &dyn Study, run: &Run) -> anyhow::Result<()> {
        let document = study::report(study, run);
        if self.json {
            printed(report::write(Format::Json, &document, run, &mut io::stdout().lock()))?;
        } else {
            archive::print(&document)?;
        }
        let usual = [PathBuf::from(format!("sarsen-lab-{}-{}.html", run.study, run.id))];
        let paths = if self.reports.is_empty() { &usual[..] } else { &self.reports };
        for path in paths {
            archive::write(path, archive::format_of(path)?, &document, run)
                .with_context(|| path.display().to_string())?;
            note(format_args!("run {}: report in {}", run.id, path.display()));
        }
        judge(run)
    }
}

/// Returns an error if a part of the run failed, or nothing was measured.
fn judge(run: &Run) -> anyhow::Result<()> {
    let (mut failed, mut left_out, mut measured) = (Vec::new(), Vec::new(), 0);
    for sample in &run.samples {
        match &sample.outcome {
            Outcome::Failed(reason) => failed.push(format!("{}: {reason}", sample.labels)),
            Outcome::NotMeasured(reason) => left_out.push(format!("{}: {reason}", sample.labels)),
            // The limits of the network and the media do not count as results.
            Outcome::Measured(_) => measured += usize::from(sample.labels.value("limit").is_none()),
        }
    }
    match (&failed[..], &left_out[..]) {
        ([], _) if measured > 0 => Ok(()),
        ([first, ..], _) if measured > 0 => Err(PartialError(format!(
            "{} of {} measurements failed, the first one: {first}",
            failed.len(),
            run.samples.len()
        ))
        .into()),
        ([first, ..], _) | ([], [first, ..]) => Err(anyhow!("nothing was measured: {first}")),
        ([], []) => Err(anyhow!("nothing was measured")),
    }
}
