//! A clone, by the initiator, which reads and writes, or by the target, which copies by itself (EXTENDED COPY). The thesis names
//! the second way as an advantage of ISTGT, for its time and for the load of the network, and proposes to measure it.

use std::cell::Cell as Counter;
use std::time::Duration;

use futures_util::future::join_all;
use sarsen_block::{Buffer, Rng};
use sarsen_initiator::{Command, Sense, SessionError, SessionOptions, TransferRequest, Unit, Url};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::time::now;
use sarsen_wire::scsi::copy::{
    BlockToBlock, CSCD_IDENTIFICATION, ExtendedCopyHeader, IdentificationCscd, LIST_ID_NONE,
    Lid1Cdb, SEGMENT_BLOCK_TO_BLOCK, SegmentHeader,
};
use sarsen_wire::scsi::inquiry::PAGE_DEVICE_IDENTIFICATION;
use sarsen_wire::scsi::opcode;
use zerocopy::IntoBytes as _;

use super::{TARGET, TEST};
use crate::load::Endpoint;
use crate::network::LinkProfile;
use crate::record::{Labels, Measures, Outcome, Run, Scale, figure};
use crate::report::{Block, Section, Table};
use crate::study::{Initiator, Point, Subject, layout};
use crate::target_under_test::TargetUnderTest;

/// Value of [`TEST`] of all cells here.
const NAME: &str = "Clone";
const COPIED_BY: &str = "copied by";
const INITIATOR: &str = "initiator";
const OF_TARGET: &str = "target";

/// Bytes of a read or write of the initiator, and how many are open.
const BYTES: u64 = 256 << 10;
const DEPTH: u64 = 8;
/// Bytes of a segment, for each of which there is a command.
const SEGMENT_BYTES: u64 = 8 << 20;
/// The bytes that are cloned take about so long.
const TIME: [Duration; 2] = [Duration::from_millis(300), Duration::from_secs(10)];
/// Number of blocks that get new content before a clone, and are compared after it.
const COMPARED: u64 = 16;
/// ADDITIONAL SENSE CODE (SPC-4 annex D).
const INVALID_OPERATION_CODE: u8 = 0x20;

fn labels(target: &str, copied_by: &str) -> Labels {
    Labels::new().with(TARGET, target).with(TEST, NAME).with(COPIED_BY, copied_by)
}

/// Returns the cells of targets over a link: the first half of the volume is cloned to the second one.
pub(super) fn points(
    targets_under_test: &[TargetUnderTest],
    link: &LinkProfile,
    volume: &str,
    scale: Scale,
) -> Vec<Point> {
    let remote = targets_under_test.iter().enumerate().filter(|(_, target)| !target.is_direct());
    let point = |index, target: &TargetUnderTest, copied_by| Point {
        labels: labels(&target.to_string(), copied_by),
        target_under_test: index,
        volume: volume.into(),
        link: link.name.clone(),
        initiator: Initiator::Physical,
        writes: true,
        time: TIME[usize::from(scale == Scale::Full)],
        measurement: Box::new(move |subject| measure(subject, copied_by)),
    };
    remote
        .flat_map(|(index, target)| {
            [INITIATOR, OF_TARGET].map(|copied_by| point(index, target, copied_by))
        })
        .collect()
}

fn measure(subject: &Subject<'_>, copied_by: &str) -> Outcome {
    let Endpoint::Iscsi(url) = &subject.endpoint else {
        return Outcome::NotMeasured("EXTENDED COPY is a command of SCSI".into());
    };
    // Each way has stamps of its own.
    let seed = subject.seed << 1 | u64::from(copied_by == OF_TARGET);
    // No files are used: any file engine is suitable.
    match block_on(FileEngine::Pool, clone(url, copied_by == OF_TARGET, seed)) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => Outcome::Failed(error.to_string()),
        Err(error) => Outcome::Failed(format!("cannot start a core: {error}")),
    }
}

/// Clones the first half of a unit to the second one, and compares some of it.
async fn clone(url: &Url, by_target: bool, seed: u64) -> Result<Outcome, SessionError> {
    let unit = Unit::connect(url, &SessionOptions::default()).await?;
    let half = unit.capacity().blocks / 2;
    let block_bytes = u64::from(unit.capacity().block_length);
    let name = if by_target {
        designator(&unit.inquiry_data(Some(PAGE_DEVICE_IDENTIFICATION)).await?)
    } else {
        None
    };
    // The halves may be equal: of an earlier clone.
    let step = (half / COMPARED).max(1) as usize;
    let mut rng = Rng::new(seed);
    for first in (0..half).step_by(step) {
        let mut stamp = Buffer::zeroed(block_bytes as usize);
        stamp[..8].copy_from_slice(&rng.bits().to_be_bytes());
        unit.write(first, stamp, false).await?;
    }
    let (sent, begun) = (traffic(), now());
    if by_target {
        let Some(name) = name else {
            return Ok(Outcome::NotMeasured("the unit has no name for EXTENDED COPY".into()));
        };
        let blocks = SEGMENT_BYTES / block_bytes;
        for first in (0..half).step_by(blocks as usize) {
            let count = blocks.min(half - first) as u16;
            let list = list(&name, unit.capacity().block_length, [first, half + first], count);
            let cdb = Lid1Cdb {
                operation_code: opcode::THIRD_PARTY_COPY_OUT,
                service_action: opcode::SA_EXTENDED_COPY_LID1,
                list_identifier: 0,
                reserved_3: [0; 7],
                length: (list.len() as u32).into(),
                reserved_14: 0,
                control: 0,
            };
            let list = Buffer::copy_of(&list);
            let command = Command::new(cdb.as_bytes(), TransferRequest::Write(list));
            let answer = unit.execute(command).await?;
            if !answer.is_good() {
                return Ok(match Sense::of(&answer) {
                    Some(sense) if sense.asc == INVALID_OPERATION_CODE => {
                        Outcome::NotMeasured("the target has no EXTENDED COPY".into())
                    }
                    Some(sense) => Outcome::Failed(format!("EXTENDED COPY ends with {sense}")),
                    None => Outcome::Failed("EXTENDED COPY fails without sense data".into()),
                });
            }
        }
    } else {
        let blocks = BYTES / block_bytes;
        let next = Counter::new(0);
        let copy = async || {
            loop {
                let first = next.get();
                if first >= half {
                    return Ok::<_, SessionError>(());
                }
                next.set(first + blocks);
                let count = blocks.min(half - first) as u32;
                let data = unit.read(first, count).await?;
                unit.write(half + first, data, false).await?;
            }
        };
        for copied in join_all((0..DEPTH).map(|_| copy())).await {
            copied?;
        }
    }
    let time = now() - begun;
    let sent = traffic().saturating_sub(sent) as f64;
    for first in (0..half).step_by(step) {
        if *unit.read(first, 1).await? != *unit.read(half + first, 1).await? {
            return Ok(Outcome::Failed(format!("block {first} was not cloned")));
        }
    }
    unit.logout().await?;
    let bytes = (half * block_bytes) as f64;
    let figures = [
        (figure::TIME_MS, time.as_secs_f64() * 1e3),
        (figure::MB_PER_S, bytes / 1e6 / time.as_secs_f64()),
        (figure::NETWORK_PERCENT, sent / bytes * 100.0),
    ];
    let figures = figures.map(|(name, value)| (name.to_owned(), value));
    Ok(Outcome::Measured(Measures { figures: figures.into(), ..Measures::default() }))
}

/// Returns the designator of a unit in its Device Identification page (SPC-4 7.8.6), with its code set, association and type: an
/// NAA identifier if it has one.
fn designator(page: &[u8]) -> Option<(u8, u8, Vec<u8>)> {
    const NAA: u8 = 3;
    const ASSOCIATION: u8 = 0x30;
    let mut rest = page.get(4..)?;
    let mut found: Option<(u8, u8, Vec<u8>)> = None;
    while let [code_set, kind, _, length, after @ ..] = rest {
        let name = after.get(..usize::from(*length))?;
        let (is_of_unit, is_naa) = (kind & ASSOCIATION == 0, kind & 0xf == NAA);
        if is_of_unit && name.len() <= 20 && (is_naa || found.is_none()) {
            found = Some((code_set & 0xf, kind & 0xf, name.to_vec()));
            if is_naa {
                break;
            }
        }
        rest = &after[name.len()..];
    }
    found
}

/// Returns a parameter list that copies blocks within the unit of this name.
fn list(
    (code_set, kind, name): &(u8, u8, Vec<u8>),
    block_length: u32,
    [from, to]: [u64; 2],
    count: u16,
) -> Vec<u8> {
    let mut designator = [0; 20];
    designator[..name.len()].copy_from_slice(name);
    let [_, block_length @ ..] = block_length.to_be_bytes();
    let unit = IdentificationCscd {
        descriptor_type: CSCD_IDENTIFICATION,
        code_set: *code_set,
        designator_type: *kind,
        designator_length: name.len() as u8,
        designator,
        block_length,
        ..IdentificationCscd::default()
    };
    let segment = BlockToBlock {
        source: 0.into(),
        destination: 0.into(),
        reserved: [0; 2],
        block_count: count.into(),
        source_lba: from.into(),
        destination_lba: to.into(),
    };
    let segment_header = SegmentHeader {
        descriptor_type: SEGMENT_BLOCK_TO_BLOCK,
        flags: 0,
        descriptor_length: (size_of::<BlockToBlock>() as u16).into(),
    };
    let segment = [segment_header.as_bytes(), segment.as_bytes()].concat();
    let header = ExtendedCopyHeader {
        list_identifier: 0,
        flags: LIST_ID_NONE,
        cscd_list_length: (size_of::<IdentificationCscd>() as u16).into(),
        reserved: [0; 4],
        segment_list_length: (segment.len() as u32).into(),
        inline_data_length: 0.into(),
    };
    [header.as_bytes(), unit.as_bytes(), &segment].concat()
}

/// Returns the bytes that all links of the initiator's side have sent and received; on loopback, those of all programs.
fn traffic() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let of = |line: &str| {
        let (name, counts) = line.trim().split_once(':')?;
        let counts: Vec<u64> =
            counts.split_whitespace().map_while(|count| count.parse().ok()).collect();
        let [received, sent] = [*counts.first()?, *counts.get(8)?];
        // What is sent on the loopback is received there.
        Some(if name == "lo" { sent } else { received + sent })
    };
    table.lines().filter_map(of).sum()
}

/// Returns the section about clones.
pub(super) fn section(run: &Run) -> Option<Section> {
    run.cells(&Labels::new().with(TEST, NAME)).next()?;
    let ways = [INITIATOR, OF_TARGET];
    let mut columns = vec!["Target".to_owned()];
    for way in ways {
        columns.extend([
            format!("by the {way}, ms"),
            format!("by the {way}, MB/s"),
            format!("by the {way}, network, % of the clone"),
        ]);
    }
    columns.push("time by the target against that by the initiator".into());
    let targets = run
        .values(TARGET)
        .into_iter()
        .filter(|target| ways.iter().any(|way| run.cells(&labels(target, way)).next().is_some()));
    let rows = targets.map(|target| {
        let mut row = vec![layout::text(target)];
        for way in ways {
            let figures =
                [(figure::TIME_MS, 0), (figure::MB_PER_S, 0), (figure::NETWORK_PERCENT, 1)];
            row.extend(figures.map(|(figure, decimals)| {
                layout::cell(run, &labels(target, way), figure, decimals)
            }));
        }
        let [initiator, of_target] =
            ways.map(|way| run.figures(&labels(target, way), figure::TIME_MS));
        row.push(layout::change(&initiator, &of_target));
        row
    });
    let table = Table {
        caption: "A clone of half a volume to its other half".into(),
        columns,
        rows: rows.collect(),
        notes: vec![format!(
            "The initiator reads and writes {} KiB each, {DEPTH} at once. The target gets one EXTENDED COPY for {} MiB each. The \
             thesis names ISTGT as the only target with it (VAAI), and did not measure it.",
            BYTES >> 10,
            SEGMENT_BYTES >> 20
        )],
        ..Table::default()
    };
    Some(Section { heading: "Clones".into(), blocks: vec![Block::Table(table)] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_of_the_unit_is_preferred_to_other_names() {
        let mut page = vec![0, 0x83, 0, 0];
        page.extend([2, 1, 0, 4, b'n', b'a', b'm', b'e']);
        page.extend([1, 0x14, 0, 2, 0, 1]);
        assert_eq!(designator(&page), Some((2, 1, b"name".to_vec())));
        page.extend([1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(designator(&page), Some((1, 3, vec![0x60, 1, 2, 3, 4, 5, 6, 7])));
        page.truncate(page.len() - 1);
        assert_eq!(designator(&page), None, "it is cut off");
    }

    #[test]
    fn a_list_has_the_unit_and_a_segment() {
        let list = list(&(1, 3, vec![0x60, 1, 2, 3, 4, 5, 6, 7]), 512, [5, 9], 3);
        assert_eq!(list.len(), 16 + 32 + 28);
        assert_eq!(list[1..4], [0x18, 0, 32]);
        assert_eq!(list[16..25], [0xe4, 0, 0, 0, 1, 3, 0, 8, 0x60]);
        assert_eq!(list[48..52], [2, 0, 0, 24]);
        assert_eq!((list[59], list[67], list[75]), (3, 5, 9));
    }
}
