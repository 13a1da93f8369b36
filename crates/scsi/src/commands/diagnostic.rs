//! SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS (SPC-4 5.15, 6.28, 6.42, 7.2). A self-test reads blocks across the
//! whole medium. Other commands run meanwhile.

use super::{Task, parameter_data};
use crate::self_test::{Outcome, Running};
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::{Extent, Io};
use sarsen_wire::scsi::maintenance as wire;
use zerocopy::IntoBytes;

/// The page that lists the supported pages. It is the only one.
const SUPPORTED_PAGES: u8 = 0x00;
/// Number of blocks that a self-test reads.
const DEFAULT_BLOCKS: u64 = 2;
const SHORT_BLOCKS: u64 = 64;
const EXTENDED_BLOCKS: u64 = 4096;

/// The request of a SEND DIAGNOSTIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A diagnostic page, or none.
    Page,
    /// The default self-test.
    Default,
    /// A self-test with its SELF-TEST CODE.
    Test { code: u8, block_count: u64, in_background: bool },
    /// The abort of a background self-test.
    Abort,
}

impl Request {
    fn of(cdb: &Cdb) -> Result<(Self, usize), Sense> {
        let fields = cdb.view::<wire::Diagnostic>();
        let length = fields.length.get().into();
        let code = fields.flags >> 5;
        let test = |block_count, in_background| Self::Test { code, block_count, in_background };
        let request = match (fields.flags & wire::DIAGNOSTIC_SELFTEST != 0, code) {
            (true, 0) => Self::Default,
            (false, 0) => return Ok((Self::Page, length)),
            (false, 1) => test(SHORT_BLOCKS, true),
            (false, 2) => test(EXTENDED_BLOCKS, true),
            (false, 4) => Self::Abort,
            (false, 5) => test(SHORT_BLOCKS, false),
            (false, 6) => test(EXTENDED_BLOCKS, false),
            _ => return Err(Sense::invalid_bit_in_cdb(1, 7)),
        };
        // SPC-4 6.42: a self-test takes no parameters.
        match length {
            0 => Ok((request, 0)),
            _ => Err(Sense::invalid_field_in_cdb(3)),
        }
    }
}

pub(crate) fn send_diagnostic_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(Request::of(cdb)?.1)
}

pub(crate) fn send_diagnostic(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (request, length) = Request::of(&task.cdb)?;
    let unit = task.unit;
    match request {
        Request::Page => {
            check_page(&task.take_data_out(length)?)?;
            Ok(Io::Ready(Completion::good()))
        }
        Request::Abort => {
            if unit.self_tests().end(Outcome::Aborted) {
                Ok(Io::Ready(Completion::good()))
            } else {
                Err(Sense::invalid_bit_in_cdb(1, 7))
            }
        }
        Request::Default => {
            let unit = unit.clone();
            Ok(task.unit.complete_after(async move {
                match examine(&unit, DEFAULT_BLOCKS, || true).await {
                    Outcome::Failed(_) => Err(failed()),
                    _ => Ok(Completion::good()),
                }
            }))
        }
        Request::Test { code, block_count, in_background } => {
            let array = task.nexus.device.array();
            let in_progress = Sense::new(
                SenseKey::NotReady,
                AdditionalSense::LOGICAL_UNIT_NOT_READY_SELF_TEST_IN_PROGRESS,
            );
            let running = Running::begin(unit, code, array.power_on_hours()).ok_or(in_progress)?;
            if !in_background {
                return Ok(unit.complete_after(run(running, block_count)));
            }
            array.host().spawn(Box::new(move || {
                Box::pin(async move {
                    // The log contains the outcome.
                    let _ = run(running, block_count).await;
                })
            }));
            Ok(Io::Ready(Completion::good()))
        }
    }
}

/// Runs a self-test to its end and logs the outcome.
async fn run(running: Running, block_count: u64) -> Result<Completion, Sense> {
    let outcome = examine(running.unit(), block_count, || running.goes_on()).await;
    running.finish(outcome);
    match outcome {
        Outcome::Failed(_) => Err(failed()),
        Outcome::Passed | Outcome::Aborted | Outcome::Interrupted | Outcome::Running => {
            Ok(Completion::good())
        }
    }
}

const fn failed() -> Sense {
    Sense::new(SenseKey::HardwareError, AdditionalSense::LOGICAL_UNIT_FAILED_SELF_TEST)
}

/// Reads `block_count` blocks at equal distances, including the first and the last one.
async fn examine(unit: &LogicalUnit, block_count: u64, goes_on: impl Fn() -> bool) -> Outcome {
    let Some(last) = unit.geometry().block_count.checked_sub(1) else { return Outcome::Passed };
    let steps = (block_count - 1).min(last.max(1));
    for step in 0..=steps {
        if !goes_on() {
            return Outcome::Interrupted;
        }
        let lba = u128::from(last) * u128::from(step) / u128::from(steps);
        if let Err(error) = unit.store().read(Extent::new(lba as u64, 1)).wait().await {
            return Outcome::Failed(error.into());
        }
    }
    Outcome::Passed
}

/// Checks the only supported page, which contains just its code (SPC-4 7.2.7).
fn check_page(list: &[u8]) -> Result<(), Sense> {
    let Some((header, _)) = list.split_first_chunk::<{ size_of::<wire::DiagnosticHeader>() }>()
    else {
        return match list {
            [] => Ok(()),
            _ => Err(Sense::parameter_list_length_error()),
        };
    };
    match header {
        [SUPPORTED_PAGES, _, 0, 0] => Ok(()),
        [SUPPORTED_PAGES, ..] => Err(Sense::invalid_field_in_parameter_list(2)),
        _ => Err(Sense::invalid_field_in_parameter_list(0)),
    }
}

pub(crate) fn receive_diagnostic_results(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Diagnostic>();
    // Without PCV the initiator requests the page of the last SEND DIAGNOSTIC. Only one page exists.
    if fields.flags & wire::DIAGNOSTIC_PCV != 0 && fields.page_code != SUPPORTED_PAGES {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    let header = wire::DiagnosticHeader {
        page_code: SUPPORTED_PAGES,
        page_specific: 0,
        page_length: 1.into(),
    };
    let bytes = [header.as_bytes(), &[SUPPORTED_PAGES]].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.length.get().into())))
}
