//! fio job files: the options that the generator supports, and a list of the others.
//!
//! A file consists of sections with `option=value` lines; the options of `[global]` apply to the sections that follow.
//! The parser reports every option that has no effect or that the generator does not support, with its line and the
//! reason.

mod options;
mod values;

use std::time::Duration;

use crate::distribution::Distribution;
use crate::mix::Mix;

/// Maximum number of jobs of a file.
const JOB_LIMIT: usize = 1000;

/// A part of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of bytes.
    Bytes(u64),
    /// A percentage of the unit.
    Percent(u8),
}

/// A job in the form in which the generator runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The section's name.
    pub name: String,
    /// The section's line.
    pub line: usize,
    /// Sizes, percentages of reads and of random addresses, queue depth.
    pub mix: Mix,
    /// The distribution of the addresses of random I/Os.
    pub distribution: Distribution,
    /// Number of concurrent sessions.
    pub sessions: u32,
    /// The duration of the job.
    pub runtime: Option<Duration>,
    /// Whether the job continues until the end of `runtime` after it has accessed `size` bytes.
    pub time_based: bool,
    /// Time before the measurement.
    pub ramp_time: Duration,
    /// The part of the unit that the job accesses.
    pub size: Option<Amount>,
    /// The start of that part.
    pub offset: Amount,
    /// Whether the job bypasses the page cache, as every iSCSI session of this program does.
    pub direct: bool,
    /// Whether the job compares the data that it reads with the data that it wrote.
    pub verify: bool,
    /// I/Os per second of each session, in an open loop.
    pub rate_iops: Option<u32>,
    /// The seed of the addresses.
    pub seed: Option<u64>,
}

/// An option that the generator does not use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntranslatedOption {
    /// Its line.
    pub line: usize,
    /// Its section.
    pub section: String,
    /// `option` or `option=value`.
    pub option: String,
    /// The reason.
    pub reason: &'static str,
}

/// A job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFile {
    /// Its jobs, in order.
    pub jobs: Vec<Job>,
    /// The options that the generator does not use.
    pub untranslated: Vec<UntranslatedOption>,
}

/// The reason why a text is not a valid job file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct JobFileError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The error in the line.
    pub what: String,
}

/// Parses the text of a file; errors contain the name `file`.
pub fn parse(file: &str, text: &str) -> Result<JobFile, JobFileError> {
    let mut found = JobFile::default();
    let mut global = options::Draft::default();
    let mut current: Option<(String, usize, options::Draft)> = None;
    let wrong = |line, what| JobFileError { file: file.into(), line, what };
    for (number, raw) in (1..).zip(text.lines()) {
        let line = raw.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']').filter(|name| !name.is_empty()) else {
                return Err(wrong(number, format!("{line:?} is not a section; write `[name]`")));
            };
            finish(&mut found, &mut global, current.take()).map_err(|e| wrong(e.0, e.1))?;
            if found.jobs.len() == JOB_LIMIT {
                return Err(wrong(number, format!("more than {JOB_LIMIT} jobs")));
            }
            current = Some((name.into(), number, global.clone()));
            continue;
        }
        let Some((section, _, draft)) = &mut current else {
            return Err(wrong(number, format!("{line:?} is outside all sections")));
        };
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.trim(), Some(uncommented(value))),
            None => (uncommented(line), None),
        };
        match draft.set(key, value) {
            Ok(()) => {}
            Err(options::Refusal::Wrong(what)) => {
                return Err(wrong(number, format!("{key}: {what}")));
            }
            Err(options::Refusal::Untranslated(reason)) => {
                let option = match value {
                    Some(value) => format!("{key}={value}"),
                    None => key.into(),
                };
                found.untranslated.push(UntranslatedOption {
                    line: number,
                    section: section.clone(),
                    option,
                    reason,
                });
            }
        }
    }
    finish(&mut found, &mut global, current).map_err(|e| wrong(e.0, e.1))?;
    Ok(found)
}

/// Returns a value without the comment that follows it.
fn uncommented(value: &str) -> &str {
    let end = value.find([';', '#']).filter(|at| value[..*at].ends_with([' ', '\t']));
    value[..end.unwrap_or(value.len())].trim()
}

/// Completes a section: adds its job, or stores the options of `[global]` for the next sections.
fn finish(
    found: &mut JobFile,
    global: &mut options::Draft,
    section: Option<(String, usize, options::Draft)>,
) -> Result<(), (usize, String)> {
    match section {
        None => {}
        Some((name, _, draft)) if name == "global" => *global = draft,
        Some((name, line, draft)) => {
            let job = draft.finish(name, line).map_err(|what| (line, what))?;
            found.jobs.push(job);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
