//! `sarsen lab runs|report|compare|remove`: earlier measurements.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use sarsen_lab::archive::Archive;
use sarsen_lab::compare;
use sarsen_lab::record::Run;
use sarsen_lab::report::{self, Format, Report, terminal};
use sarsen_lab::study;
use serde_json::json;

use super::run::find;
use crate::exit::{NotFoundError, UsageError};
use crate::output::{note, print_line, printed};

#[derive(clap::Args)]
pub(crate) struct Kept {
    /// The archive of runs [default: sarsen/lab.sqlite in the user's state folder]
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct RunsArguments {
    #[command(flatten)]
    kept: Kept,
    /// Print the runs as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
pub(crate) struct ReportArguments {
    /// Number of the run.
    run: i64,
    /// The format: html, md, csv, json or tex [default: with --output, that of the file's ending; otherwise tables on
    /// the terminal]
    #[arg(long)]
    format: Option<Format>,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a data package to this folder: samples and tables as CSV with a dictionary of columns, figures and units, and
    /// all of the run as JSON.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["format", "output"])]
    package: Option<PathBuf>,
    #[command(flatten)]
    kept: Kept,
}

#[derive(clap::Args)]
pub(crate) struct ShowArguments {
    /// Number of the run [default: the last one]
    run: Option<i64>,
    #[command(flatten)]
    kept: Kept,
}

#[derive(clap::Args)]
pub(crate) struct CompareArguments {
    /// Number of the first run.
    before: i64,
    /// Number of the second run.
    after: i64,
    /// A figure to compare, such as iops or p99_us. Several may be given [default: iops, p99_us and
    /// target_cpu_us_per_io]
    #[arg(long = "figure", value_name = "NAME")]
    figures: Vec<String>,
    /// Print the comparison as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    kept: Kept,
}

#[derive(clap::Args)]
pub(crate) struct RemoveArguments {
    /// Number of the run.
    run: i64,
    #[command(flatten)]
    kept: Kept,
}

pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Archive> {
    Ok(match path {
        Some(path) => Archive::open(path)?,
        None => Archive::open(&Archive::usual_path())?,
    })
}

/// Opens an archive that exists. The usual one is empty before the first run.
fn existing(path: Option<&Path>) -> anyhow::Result<Archive> {
    match path {
        Some(path) if !path.exists() => {
            Err(NotFoundError(format!("the archive {} does not exist", path.display())).into())
        }
        _ => open(path),
    }
}

pub(super) fn list(arguments: &RunsArguments) -> anyhow::Result<()> {
    let runs = existing(arguments.kept.archive.as_deref())?.runs()?;
    for run in &runs {
        let began = report::utc(run.began_at);
        if arguments.json {
            let Run { id, study, scale, targets_under_test, ended_at, command, .. } = run;
            let line = json!({
                "id": id, "study": study, "scale": scale, "targets_under_test": targets_under_test,
                "began_at": run.began_at, "ended_at": ended_at, "command": command,
            });
            print_line(&line.to_string())?;
        } else {
            let state = if run.ended_at.is_some() { "" } else { ", unfinished" };
            let who = run.targets_under_test.join(", ");
            let line = format!("{}: {} {}, {began}: {who}{state}", run.id, run.study, run.scale);
            print_line(&report::one_line(&line))?;
        }
    }
    Ok(())
}

pub(super) fn report(arguments: &ReportArguments) -> anyhow::Result<()> {
    let run = existing(arguments.kept.archive.as_deref())?.run(arguments.run)?;
    let document = study::report(find(&run.study)?, &run);
    if let Some(folder) = &arguments.package {
        return report::package::write(&document, &run, folder)
            .with_context(|| folder.display().to_string());
    }
    match (&arguments.output, arguments.format) {
        (Some(path), format) => {
            let format = format.map_or_else(|| format_of(path), Ok)?;
            write(path, format, &document, &run).with_context(|| path.display().to_string())
        }
        (None, Some(format)) => {
            let mut out = io::stdout().lock();
            printed(report::write(format, &document, &run, &mut out))
        }
        (None, None) => print(&document),
    }
}

pub(super) fn show(arguments: &ShowArguments) -> anyhow::Result<()> {
    let archive = existing(arguments.kept.archive.as_deref())?;
    let number = match arguments.run {
        Some(number) => number,
        None => archive
            .runs()?
            .iter()
            .map(|run| run.id)
            .max()
            .ok_or_else(|| anyhow!("the archive has no run; `sarsen lab run` measures one"))?,
    };
    let run = archive.run(number)?;
    let document = study::report(find(&run.study)?, &run);
    // The browser reads it after this program has ended.
    let file = tempfile::Builder::new()
        .prefix(&format!("sarsen-lab-run-{number}-"))
        .suffix(".html")
        .tempfile()
        .context("the file of the report")?;
    let (_, path) = file.keep()?;
    write(&path, Format::Html, &document, &run).with_context(|| path.display().to_string())?;
    print_line(&path.display().to_string())?;
    let opened = Command::new("xdg-open")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !opened.is_ok_and(|status| status.success()) {
        note("xdg-open opened no browser; open the file in one");
    }
    Ok(())
}

pub(super) fn compare(arguments: &CompareArguments) -> anyhow::Result<()> {
    let archive = existing(arguments.kept.archive.as_deref())?;
    let (before, after) = (archive.run(arguments.before)?, archive.run(arguments.after)?);
    let asked: Vec<_> = arguments.figures.iter().map(String::as_str).collect();
    let figures = if asked.is_empty() { &compare::USUAL[..] } else { &asked };
    let compared = compare::compare(&before, &after, figures);
    if compared.figures.is_empty() {
        return Err(anyhow!(
            "the two runs have no common cell with these figures; name other runs, or others with --figure"
        ));
    }
    if arguments.json {
        print_line(&serde_json::to_string(&compared)?)?;
    } else {
        print(&compare::report(&before, &after, &compared))?;
    }
    Ok(())
}

pub(super) fn remove(arguments: &RemoveArguments) -> anyhow::Result<()> {
    Ok(existing(arguments.kept.archive.as_deref())?.remove(arguments.run)?)
}

/// Returns the format of a file by its ending.
pub(super) fn format_of(path: &Path) -> anyhow::Result<Format> {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    Format::ALL.into_iter().find(|format| format.extension() == ending).ok_or_else(|| {
        let known: Vec<_> = Format::ALL.iter().map(|format| format.extension()).collect();
        let path = path.display();
        UsageError(format!("{path}: its ending must be one of .{}", known.join(", ."))).into()
    })
}

/// Prints a report as tables on the terminal.
pub(super) fn print(document: &Report) -> anyhow::Result<()> {
    printed(terminal::write(document, None, &mut io::stdout().lock()))
}

pub(super) fn write(
    path: &Path,
    format: Format,
    document: &Report,
    run: &Run,
) -> anyhow::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    report::write(format, document, run, &mut out)?;
    Ok(out.flush()?)
}

/// Returns an argument as it is archived: `user%secret@` without the secret.
pub(super) fn without_secret(word: &str) -> String {
    let Some((scheme, rest)) = word.split_once("://") else { return word.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // Both the text before an @ and the text after a ? may contain more @ and ? characters.
    let (user, portal) = match authority.rsplit_once('@') {
        Some((user, portal)) => (user.split('%').next(), portal),
        None => (None, authority),
    };
    let user = user.map(|user| format!("{user}%…@")).unwrap_or_default();
    match format!("{portal}{path}").split_once('?') {
        Some((place, _)) => format!("{scheme}://{user}{place}?…"),
        None => format!("{scheme}://{user}{portal}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_kept_with_a_command_line() {
        for (word, kept) in [
            ("--quick", "--quick"),
            ("iscsi://127.0.0.1/iqn.x:a/0", "iscsi://127.0.0.1/iqn.x:a/0"),
            ("iscsi://me%hush@h/iqn/0", "iscsi://me%…@h/iqn/0"),
            ("iscsi://me%hu@s?h@h/iqn/0", "iscsi://me%…@h/iqn/0"),
            ("iscsi://h/iqn/0?target_password=a@b/c", "iscsi://h/iqn/0?…"),
            (
                "--target=iscsi://me%hush@h/iqn/0?target_password=x",
                "--target=iscsi://me%…@h/iqn/0?…",
            ),
        ] {
            assert_eq!(without_secret(word), kept);
        }
    }

    #[test]
    fn a_reports_format_is_its_files_ending() {
        assert_eq!(format_of(Path::new("a/b.html")).unwrap(), Format::Html);
        assert_eq!(format_of(Path::new("b.tex")).unwrap(), Format::Latex);
        assert!(format_of(Path::new("b.pdf")).unwrap_err().to_string().contains(".html"));
        assert!(format_of(Path::new("html")).is_err());
    }
}
