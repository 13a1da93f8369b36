//! The same I/Os by another initiator. The study changed the machine of its initiator, and found another curve.

use std::time::Duration;

use sarsen_initiator::Url;

use super::super::virtual_initiator::qemu_failure;
use super::super::{Initiator, NOT_TO_BE_WRITTEN, Point, Subject, layout};
use super::report::labels as own_labels;
use super::{MEDIUM, OPERATION, OPERATIONS, SEQUENTIAL, SIZE, TARGET};
use crate::load::Endpoint;
use crate::network::LinkProfile;
use crate::process;
use crate::record::{Labels, Measures, Outcome, Run, figure};
use crate::report::{Block, Section, Table};
use crate::target_under_test::{Medium, TargetUnderTest};

const INITIATOR: &str = "initiator";
const QEMU: &str = "QEMU";
const SIZES: [u32; 3] = [4 << 10, 64 << 10, 512 << 10];

/// Number of I/Os that show how many a measurement needs.
const TRIAL_COUNT: u32 = 100;
/// Most I/Os of a measurement.
const COUNT_MAX: f64 = 1e7;
const LIMIT: Duration = Duration::from_secs(60);
const PROGRAM: &str = "qemu-img";

fn labels(target: &str, medium: &str, operation: &str, bytes: u32) -> Labels {
    Labels::new()
        .with(TARGET, target)
        .with(MEDIUM, medium)
        .with(OPERATION, operation)
        .with(SIZE, layout::size_name(bytes))
        .with(INITIATOR, QEMU)
}

/// Returns the cells of these targets.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    medium: Medium,
    duration: Duration,
) -> Vec<Point> {
    let mut points = Vec::new();
    let remote = targets_under_test.iter().enumerate().filter(|(_, target)| !target.is_direct());
    for (index, target) in remote {
        for operation in OPERATIONS {
            for bytes in SIZES {
                points.push(Point {
                    labels: labels(&target.to_string(), medium.as_str(), operation, bytes),
                    target_under_test: index,
                    volume: medium.as_str().into(),
                    link: LinkProfile::loopback().name,
                    initiator: Initiator::Physical,
                    writes: operation == "write",
                    time: duration,
                    measurement: Box::new(move |subject| {
                        measure(subject, operation == "write", bytes, duration)
                    }),
                });
            }
        }
    }
    points
}

fn measure(subject: &Subject<'_>, writes: bool, bytes: u32, duration: Duration) -> Outcome {
    let Endpoint::Iscsi(url) = &subject.endpoint else {
        return Outcome::NotMeasured("qemu-img is measured over iSCSI alone".into());
    };
    if writes && !subject.may_write {
        return Outcome::NotMeasured(NOT_TO_BE_WRITTEN.into());
    }
    if url.chap.user.is_some() || url.portal().tls.is_some() {
        return Outcome::NotMeasured("qemu-img gets no secrets and no TLS from the lab".into());
    }
    if let Err(error) = process::command(PROGRAM) {
        return Outcome::NotMeasured(error.to_string());
    }
    let seconds = seconds(url, writes, bytes, TRIAL_COUNT).and_then(|trial| {
        let count =
            (f64::from(TRIAL_COUNT) * duration.as_secs_f64() / trial).clamp(1.0, COUNT_MAX) as u32;
        Ok((count, seconds(url, writes, bytes, count)?))
    });
    match seconds {
        Err(reason) => qemu_failure(reason),
        Ok((count, seconds)) => {
            let iops = f64::from(count) / seconds;
            let figures = [
                (figure::IOPS, iops),
                (figure::MB_PER_S, iops * f64::from(bytes) / 1e6),
                (figure::MEAN_US, 1e6 / iops),
            ];
            let figures = figures.map(|(name, value)| (name.to_owned(), value)).into();
            Outcome::Measured(Measures { figures, ..Measures::default() })
        }
    }
}

/// Returns the time of sequential I/Os by QEMU, one after the other.
fn seconds(url: &Url, writes: bool, bytes: u32, count: u32) -> Result<f64, String> {
    let mut command = process::command(PROGRAM).map_err(|error| error.to_string())?;
    command.args(["bench", "-f", "raw", "-t", "none", "-d", "1"]);
    command.args(["-s", &bytes.to_string(), "-c", &count.to_string()]);
    command.args(writes.then_some("-w"));
    command.arg(format!("iscsi://{}/{}/{}", url.portal(), url.target, url.lun));
    let output = process::output(&mut command, LIMIT).map_err(|error| error.to_string())?;
    completed(&output).ok_or_else(|| format!("no time in {output:?}"))
}

/// Parses `Run completed in 0.123 seconds.`
fn completed(output: &str) -> Option<f64> {
    let (_, rest) = output.split_once("Run completed in ")?;
    let seconds: f64 = rest.split_whitespace().next()?.parse().ok()?;
    (seconds > 0.0).then_some(seconds)
}

/// Returns the section with both initiators side by side.
pub(super) fn section(run: &Run) -> Option<Section> {
    let sample = run.samples.iter().find(|sample| sample.labels.value(INITIATOR).is_some())?;
    let medium = sample.labels.value(MEDIUM)?;
    let mut rows = Vec::new();
    for target in run.values(TARGET) {
        for operation in OPERATIONS {
            for bytes in SIZES {
                let theirs = labels(target, medium, operation, bytes);
                if run.cells(&theirs).next().is_none() {
                    continue;
                }
                let ours = own_labels(target, medium, operation, SEQUENTIAL, bytes);
                let values = |labels| run.figures(labels, figure::MB_PER_S);
                rows.push(vec![
                    layout::text(target),
                    layout::text(operation),
                    layout::text(layout::size_name(bytes)),
                    layout::cell(run, &ours, figure::MB_PER_S, 1),
                    layout::cell(run, &theirs, figure::MB_PER_S, 1),
                    layout::change(&values(&ours), &values(&theirs)),
                ]);
            }
        }
    }
    let table = Table {
        caption: format!("Sequential I/Os of two initiators, {medium}, one outstanding"),
        columns: [
            "Target",
            "Operation",
            "Size",
            "This program, MB/s",
            "QEMU, MB/s",
            "QEMU against this program",
        ]
        .map(Into::into)
        .to_vec(),
        rows,
        notes: vec![
            "QEMU's initiator is libiscsi; `qemu-img bench` drives it without a virtual machine. The study's other machine \
             read from its disk with 4.1 to 29.2 MB/s, where the first one had 7.2 to 28.7: slower for small blocks alone \
             (tables 5 and 6)."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "Another initiator".into(), blocks: vec![Block::Table(table)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_qemu_is_read() {
        let output = "Sending 100 read requests, 4096 bytes each, 1 in parallel (starting at offset 0, step size 4096)\n\
                      Run completed in 0.250 seconds.\n";
        assert_eq!(completed(output), Some(0.25));
        assert_eq!(completed("Run completed in 0.000 seconds."), None);
        assert_eq!(completed("qemu-img: Failed"), None);
    }
}
