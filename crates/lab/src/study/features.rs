//! What each target offers: session parameters that it grants, and commands that it knows. The studies compare these from
//! documents; here the targets are asked.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use sarsen_initiator::{
    Command, DigestOffer, Sense, SessionError, SessionOptions, TransferRequest, Unit, Url,
};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::time;
use sarsen_proto::iscsi::DigestKind;
use sarsen_wire::scsi::inquiry::FLAGS_5_PROTECT;
use sarsen_wire::scsi::opcode;

use super::{Initiator, Point, layout};
use crate::load::Endpoint;
use crate::record::{Labels, Measures, Outcome, Run};
use crate::report::{Block, Cell, Section, Table};
use crate::target_under_test::TargetUnderTest;

const TARGET: &str = "target";
const FEATURES: &str = "features";

/// Approximate time of a session with all questions.
const TIME: Duration = Duration::from_millis(20);
/// How long a target may take for an answer.
const LIMIT: Duration = Duration::from_millis(500);
/// Number of connections that the session offers, which is more than most targets grant.
const CONNECTIONS: u32 = 16;
/// The highest level of error recovery.
const RECOVERY_LEVEL: u8 = 2;

/// SUPPORT: 3 and 5 are commands that the target supports (SPC-4 6.35.3).
const SUPPORT: u8 = 0x07;
/// ADDITIONAL SENSE CODE (SPC-4 annex D).
const INVALID_OPERATION_CODE: u8 = 0x20;
const INVALID_FIELD_IN_CDB: u8 = 0x24;

/// A command that a target may know.
struct Question {
    name: &'static str,
    ask: Ask,
}

/// How a target is asked for a command.
enum Ask {
    /// The command is sent, and returns a maximum of bytes. It changes no block: one that could has no blocks and no
    /// parameters.
    Send(&'static [u8], u32),
    /// REPORT SUPPORTED OPERATION CODES is asked for it: without data, it stalls istgt for seconds.
    Report(u8),
}

/// Maximum number of bytes of an answer.
const ANSWER: u8 = 255;

const QUESTIONS: [Question; 9] = [
    Question {
        name: "persistent reservations",
        ask: Ask::Send(
            &[opcode::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, ANSWER, 0],
            ANSWER as u32,
        ),
    },
    Question {
        name: "asymmetric access (ALUA)",
        ask: Ask::Send(&maintenance_in(opcode::SA_REPORT_TARGET_PORT_GROUPS, 0, 0), ANSWER as u32),
    },
    Question {
        name: "REPORT SUPPORTED OPERATION CODES",
        ask: Ask::Send(
            &maintenance_in(opcode::SA_REPORT_SUPPORTED_OPERATION_CODES, 0, 0),
            ANSWER as u32,
        ),
    },
    Question { name: "UNMAP", ask: Ask::Send(&[opcode::UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0], 0) },
    Question { name: "COMPARE AND WRITE", ask: Ask::Report(opcode::COMPARE_AND_WRITE) },
    Question { name: "WRITE ATOMIC (16)", ask: Ask::Send(&[opcode::WRITE_ATOMIC_16], 0) },
    Question { name: "EXTENDED COPY", ask: Ask::Send(&[opcode::THIRD_PARTY_COPY_OUT], 0) },
    Question {
        name: "PRE-FETCH (16)",
        // One block: none would mean all.
        ask: Ask::Send(&[opcode::PRE_FETCH_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], 0),
    },
    Question {
        name: "LOG SENSE",
        ask: Ask::Send(&[opcode::LOG_SENSE, 0, 0x40, 0, 0, 0, 0, 0, ANSWER, 0], ANSWER as u32),
    },
];

/// Returns a MAINTENANCE IN command with bytes 2 and 3 of its service action.
const fn maintenance_in(service_action: u8, options: u8, code: u8) -> [u8; 12] {
    [opcode::MAINTENANCE_IN, service_action, options, code, 0, 0, 0, 0, 0, ANSWER, 0, 0]
}

/// The names of the answers that are not about one command, in the order of the table.
const OTHERS: [&str; 6] = [
    "product",
    "connections of a session",
    "ErrorRecoveryLevel",
    "digests",
    "protection information (T10 DIF)",
    "write cache",
];

/// Returns whether a target knows a command, by its answer: without sense data, only GOOD says so.
const fn is_known(operation_code: u8, is_good: bool, sense_code: Option<u8>) -> bool {
    match sense_code {
        Some(INVALID_OPERATION_CODE) => false,
        // It may mean the service action.
        Some(INVALID_FIELD_IN_CDB) => operation_code != opcode::MAINTENANCE_IN,
        // It knows the command, and wants other parameters.
        Some(_) => true,
        None => is_good,
    }
}

const fn yes_or_no(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "no" }
}

/// Asks a unit for everything.
async fn ask(url: &Url, options: &SessionOptions) -> Result<Measures, SessionError> {
    let offering = SessionOptions {
        header_digest: DigestOffer::Prefer,
        data_digest: DigestOffer::Prefer,
        connections: CONNECTIONS,
        error_recovery_level: RECOVERY_LEVEL,
        ..options.clone()
    };
    let mut unit = Unit::connect(url, &offering).await?;
    let parameters = unit.session().parameters();
    let inquiry = unit.inquiry().await?;
    let flags = unit.inquiry_data(None).await?.get(5).copied().unwrap_or_default();
    let has_cache = unit.caching().await?.map(|caching| yes_or_no(caching.write_cache));
    let has_digests = parameters.header_digest == DigestKind::Crc32c
        && parameters.data_digest == DigestKind::Crc32c;
    let others = [
        [inquiry.vendor, inquiry.product, inquiry.revision].join(" "),
        parameters.max_connections.to_string(),
        parameters.error_recovery_level.to_string(),
        yes_or_no(has_digests).into(),
        yes_or_no(flags & FLAGS_5_PROTECT != 0).into(),
        has_cache.unwrap_or("unknown").into(),
    ];
    let mut texts: Vec<_> = OTHERS.iter().map(|name| (*name).to_owned()).zip(others).collect();
    for question in QUESTIONS {
        let answer = question.answer(&unit).await?;
        if answer.is_none() {
            // The session may wait for it forever. Its connections end without a logout.
            unit = Unit::connect(url, &offering).await?;
        }
        texts.push((question.name.to_owned(), answer.unwrap_or("no answer").into()));
    }
    unit.logout().await?;
    Ok(Measures { texts: texts.into_iter().collect(), ..Measures::default() })
}

impl Question {
    /// Asks it, and returns the answer in words; `None` if there is none.
    async fn answer(&self, unit: &Unit) -> Result<Option<&'static str>, SessionError> {
        /// REPORTING OPTIONS: one command.
        const ONE_COMMAND: u8 = 1;
        let command = match self.ask {
            Ask::Send(cdb, 0) => Command::new(cdb, TransferRequest::None),
            Ask::Send(cdb, reads) => Command::new(cdb, TransferRequest::Read(reads)),
            Ask::Report(code) => Command::new(
                &maintenance_in(opcode::SA_REPORT_SUPPORTED_OPERATION_CODES, ONE_COMMAND, code),
                TransferRequest::Read(ANSWER.into()),
            ),
        };
        let operation_code = command.cdb[0];
        let late = time::sleep_until(time::now() + LIMIT);
        let answer = match select(pin!(unit.execute(command)), pin!(late)).await {
            Either::Left((answer, _)) => answer?,
            Either::Right(_) => return Ok(None),
        };
        let sense_code = Sense::of(&answer).map(|sense| sense.asc);
        let is_known = is_known(operation_code, answer.is_good(), sense_code);
        Ok(Some(match self.ask {
            Ask::Send(..) => yes_or_no(is_known),
            Ask::Report(_) => match answer.data.as_deref().and_then(|data| data.get(1)) {
                Some(support) if is_known => yes_or_no(matches!(support & SUPPORT, 3 | 5)),
                _ => "unknown",
            },
        }))
    }
}

fn outcome(endpoint: &Endpoint) -> Outcome {
    let Endpoint::Iscsi(url) = endpoint else {
        return Outcome::NotMeasured("these are features of iSCSI and SCSI".into());
    };
    let options = url
        .chap
        .identity()
        .map(|identity| SessionOptions { identity, ..SessionOptions::default() });
    let options = match options {
        Ok(options) => options,
        Err(error) => return Outcome::Failed(error.to_string()),
    };
    // No files are used: any file engine is suitable.
    match block_on(FileEngine::Pool, ask(url, &options)) {
        Ok(Ok(measures)) => Outcome::Measured(measures),
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
        Err(error) => Outcome::Failed(format!("cannot start a core: {error}")),
    }
}

fn labels(target: &str) -> Labels {
    Labels::new().with(TARGET, target).with(FEATURES, "offered")
}

/// Returns a cell for each target that has a protocol.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    link: &str,
    volume: &str,
) -> Vec<Point> {
    let remote = targets_under_test.iter().enumerate().filter(|(_, target)| !target.is_direct());
    let point = |(index, target): (usize, &TargetUnderTest)| Point {
        labels: labels(&target.to_string()),
        target_under_test: index,
        volume: volume.into(),
        link: link.into(),
        initiator: Initiator::Physical,
        writes: false,
        time: TIME,
        measurement: Box::new(|subject| outcome(&subject.endpoint)),
    };
    remote.map(point).collect()
}

/// Returns the section with a column for each target. `published` is what the study says.
pub(super) fn section(run: &Run, published: &str) -> Option<Section> {
    let targets: Vec<_> = run
        .values(TARGET)
        .into_iter()
        .filter(|target| run.cells(&labels(target)).next().is_some())
        .collect();
    if targets.is_empty() {
        return None;
    }
    let answer = |target: &str, name: &str| {
        let labels = labels(target);
        let found = run.cells(&labels).find_map(|sample| match &sample.outcome {
            Outcome::Measured(measures) => measures.texts.get(name).cloned(),
            Outcome::Failed(_) | Outcome::NotMeasured(_) => None,
        });
        found.map_or_else(|| layout::absent(run, &labels), Cell::Text)
    };
    let names = OTHERS.into_iter().chain(QUESTIONS.map(|question| question.name));
    let rows = names.map(|name| {
        let answers = targets.iter().map(|target| answer(target, name));
        std::iter::once(layout::text(name)).chain(answers).collect()
    });
    let mut columns = vec!["Feature".to_owned()];
    columns.extend(targets.iter().map(|target| (*target).to_owned()));
    let table = Table {
        caption: "What the targets offer, as the lab starts them".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            format!(
                "The initiator offers {CONNECTIONS} connections, ErrorRecoveryLevel {RECOVERY_LEVEL} and digests; the table has what \
                 was agreed. A target knows a command if it does not answer with INVALID COMMAND OPERATION CODE. Settings that \
                 the lab does not make may change an answer."
            ),
            published.into(),
        ],
        ..Table::default()
    };
    Some(Section { heading: "Features of the targets".into(), blocks: vec![Block::Table(table)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_known_unless_its_code_is_invalid() {
        let copy = opcode::THIRD_PARTY_COPY_OUT;
        assert!(is_known(copy, true, None));
        assert!(!is_known(copy, false, Some(INVALID_OPERATION_CODE)));
        // PARAMETER LIST LENGTH ERROR.
        assert!(is_known(copy, false, Some(0x1a)));
        assert!(is_known(copy, false, Some(INVALID_FIELD_IN_CDB)));
        assert!(!is_known(opcode::MAINTENANCE_IN, false, Some(INVALID_FIELD_IN_CDB)));
        // BUSY.
        assert!(!is_known(copy, false, None));
    }
}
