//! What each target offers: session parameters that it grants, and commands that it knows. The studies compare these from
//! documents; here the targets are asked.

use std::time::Duration;

use sarsen_initiator::{
    Command, DigestOffer, Sense, Session, SessionError, SessionOptions, TransferRequest, Unit, Url,
};
use sarsen_io::cores::{FileEngine, block_on};
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
const LIMIT: Duration = Duration::from_secs(2);
/// Number of connections that the session offers, which is more than most targets grant.
const CONNECTIONS: u32 = 16;
/// The highest level of error recovery.
const RECOVERY_LEVEL: u8 = 2;

/// SERVICE ACTION of MAINTENANCE IN (SPC-4 6.35, 6.37).
const REPORT_TARGET_PORT_GROUPS: u8 = 0x0a;
const REPORT_SUPPORTED_OPERATION_CODES: u8 = 0x0c;
/// ADDITIONAL SENSE CODE (SPC-4 annex D).
const INVALID_OPERATION_CODE: u8 = 0x20;
const INVALID_FIELD_IN_CDB: u8 = 0x24;

/// A command that a target may know. None of them changes a block: those that could have no blocks and no parameters.
struct Question {
    name: &'static str,
    cdb: &'static [u8],
    reads: u32,
}

const QUESTIONS: [Question; 9] = [
    Question {
        name: "persistent reservations",
        cdb: &[opcode::PERSISTENT_RESERVE_IN, 0, 0, 0, 0, 0, 0, 0, 64, 0],
        reads: 64,
    },
    Question {
        name: "asymmetric access (ALUA)",
        cdb: &[opcode::MAINTENANCE_IN, REPORT_TARGET_PORT_GROUPS, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0],
        reads: 255,
    },
    Question {
        name: "REPORT SUPPORTED OPERATION CODES",
        cdb: &[
            opcode::MAINTENANCE_IN,
            REPORT_SUPPORTED_OPERATION_CODES,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            255,
            0,
            0,
        ],
        reads: 255,
    },
    Question { name: "UNMAP", cdb: &[opcode::UNMAP, 0, 0, 0, 0, 0, 0, 0, 0, 0], reads: 0 },
    Question { name: "COMPARE AND WRITE", cdb: &[opcode::COMPARE_AND_WRITE], reads: 0 },
    Question { name: "WRITE ATOMIC (16)", cdb: &[opcode::WRITE_ATOMIC_16], reads: 0 },
    Question { name: "EXTENDED COPY", cdb: &[opcode::THIRD_PARTY_COPY_OUT], reads: 0 },
    Question {
        name: "PRE-FETCH (16)",
        // One block: none would mean all.
        cdb: &[opcode::PRE_FETCH_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        reads: 0,
    },
    Question {
        name: "LOG SENSE",
        cdb: &[opcode::LOG_SENSE, 0, 0x40, 0, 0, 0, 0, 0, 64, 0],
        reads: 64,
    },
];

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
    let session = Session::log_in(url, &offering).await?;
    let parameters = session.parameters();
    session.logout().await?;
    let unit = Unit::connect(url, options).await?;
    let inquiry = unit.inquiry().await?;
    let flags = unit.inquiry_data(None).await?.get(5).copied().unwrap_or_default();
    let has_cache = unit.caching().await?.map(|caching| yes_or_no(caching.write_cache));
    unit.logout().await?;
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
        texts.push((question.name.to_owned(), question.answer(url, options).await?.into()));
    }
    Ok(Measures { texts: texts.into_iter().collect(), ..Measures::default() })
}

impl Question {
    /// Asks it in a session of its own: not every target answers a command that it does not know.
    async fn answer(&self, url: &Url, options: &SessionOptions) -> Result<&str, SessionError> {
        let unit = Unit::connect(url, options).await?;
        let transfer = match self.reads {
            0 => TransferRequest::None,
            reads => TransferRequest::Read(reads),
        };
        let command = Command { time_limit: Some(LIMIT), ..Command::new(self.cdb, transfer) };
        let answer = match unit.execute(command).await {
            Err(SessionError::CommandTimedOut { .. }) => return Ok("no answer"),
            answer => answer?,
        };
        unit.logout().await?;
        let sense_code = Sense::of(&answer).map(|sense| sense.asc);
        Ok(yes_or_no(is_known(self.cdb[0], answer.is_good(), sense_code)))
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
    let is_remote = |target: &TargetUnderTest| {
        !matches!(target, TargetUnderTest::Direct | TargetUnderTest::DirectPath(_))
    };
    let remote = targets_under_test.iter().enumerate().filter(|(_, target)| is_remote(target));
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
