//! fio job files: the options that our generator has too, and a list of those that it has not.
//!
//! A file is sections of `option=value` lines; what `[global]` says holds for the sections behind
//! it. Nothing is dropped in silence: an option that changes nothing here, or cannot be kept, is
//! listed with its line and the reason.

mod options;
mod values;

use std::time::Duration;

use crate::distribution::Distribution;
use crate::mix::Mix;

/// Jobs of one file.
const JOB_LIMIT: usize = 1000;

/// A part of the unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So many hundredths of the unit.
    Percent(u8),
}

/// A job, as the generator runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The section's name.
    pub name: String,
    /// The section's line.
    pub line: usize,
    /// Sizes, reads, random places, depth.
    pub mix: Mix,
    /// Where random I/Os go.
    pub distribution: Distribution,
    /// Sessions that do this at once.
    pub sessions: u32,
    /// The end, by time.
    pub runtime: Option<Duration>,
    /// Whether the end by time holds when `size` has been worked through.
    pub time_based: bool,
    /// Time before the measurement.
    pub ramp_time: Duration,
    /// The part of the unit that is worked on.
    pub size: Option<Amount>,
    /// Where that part begins.
    pub offset: Amount,
    /// Past the page cache; an iSCSI session of ours always is.
    pub direct: bool,
    /// Hold what is read against what was written.
    pub verify: bool,
    /// I/Os a second of each session: an open loop.
    pub rate_iops: Option<u32>,
    /// Seed of the places.
    pub seed: Option<u64>,
}

/// An option that is not carried over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmapped {
    /// Its line.
    pub line: usize,
    /// The section it stands in.
    pub section: String,
    /// `option` or `option=value`.
    pub option: String,
    /// Why.
    pub reason: &'static str,
}

/// A job file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobFile {
    /// Its jobs, in order.
    pub jobs: Vec<Job>,
    /// What they ask for that they will not get.
    pub unmapped: Vec<Unmapped>,
}

/// Why a text is no job file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct FioError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub what: String,
}

/// Reads the text of a file; `file` is its name in errors.
pub fn parse(file: &str, text: &str) -> Result<JobFile, FioError> {
    let mut found = JobFile::default();
    let mut global = options::Draft::default();
    let mut current: Option<(String, usize, options::Draft)> = None;
    let wrong = |line, what| FioError { file: file.into(), line, what };
    for (number, raw) in (1..).zip(text.lines()) {
        let line = raw.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let Some(name) = rest.strip_suffix(']').filter(|name| !name.is_empty()) else {
                return Err(wrong(number, format!("{line:?} is no section: write `[name]`")));
            };
            finish(&mut found, &mut global, current.take()).map_err(|e| wrong(e.0, e.1))?;
            if found.jobs.len() == JOB_LIMIT {
                return Err(wrong(number, format!("more than {JOB_LIMIT} jobs")));
            }
            current = Some((name.into(), number, global.clone()));
            continue;
        }
        let Some((section, _, draft)) = &mut current else {
            return Err(wrong(number, format!("{line:?} stands in no section")));
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
            Err(options::Refusal::Unmapped(reason)) => {
                let option = match value {
                    Some(value) => format!("{key}={value}"),
                    None => key.into(),
                };
                found.unmapped.push(Unmapped {
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

/// A value without the comment behind it.
fn uncommented(value: &str) -> &str {
    let end = value.find([';', '#']).filter(|at| value[..*at].ends_with([' ', '\t']));
    value[..end.unwrap_or(value.len())].trim()
}

/// A section has ended: it becomes a job, or what the next ones begin with.
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
