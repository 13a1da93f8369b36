//! FORMAT UNIT.

use crate::testing::*;
use crate::{Lun, MetadataKind, MetadataStore, Status};
use sarsen_block::BlockSize;
use std::sync::atomic::Ordering;

const FMTDATA: u8 = 0x10;
const LONGLIST: u8 = 0x20;
const CMPLST: u8 = 0x08;
const FOV: u8 = 0x80;
const IP: u8 = 0x08;
const IMMED: u8 = 0x02;

fn format(flags: u8) -> [u8; 6] {
    [0x04, flags, 0, 0, 0, 0]
}

fn pattern_descriptor(pattern_type: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    [&[0, pattern_type, high, low], pattern].concat()
}

fn is_filled_with(fixture: &mut Fixture, block: &[u8]) -> bool {
    let [.., high, low] = (BLOCKS as u16).to_be_bytes();
    let completion = fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, high, low, 0], &[]);
    bytes(completion).chunks(block.len()).all(|found| found == block)
}

#[test]
fn sbc3_5_3_every_block_is_zero_or_has_the_pattern() {
    let pattern = [&[FOV | IP, 0, 0][..], &pattern_descriptor(1, &[1, 2, 3])].concat();
    let block: Vec<u8> = [1, 2, 3].into_iter().cycle().take(512).collect();
    for (cdb_bytes, list, expected) in [
        (format(0), vec![], vec![0; 512]),
        (format(FMTDATA), vec![0; 4], vec![0; 512]),
        (format(FMTDATA | CMPLST), vec![0, FOV, 0, 0], vec![0; 512]),
        (format(FMTDATA | LONGLIST), vec![0; 8], vec![0; 512]),
        (format(FMTDATA), [vec![0], pattern].concat(), block),
        (
            format(FMTDATA),
            [vec![0, FOV | IP, 0, 0], pattern_descriptor(0, &[])].concat(),
            vec![0; 512],
        ),
        // Defect lists. Their blocks are formatted like all others.
        (format(FMTDATA), vec![0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 9], vec![0; 512]),
        (format(FMTDATA | 3), vec![0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 9], vec![0; 512]),
        ([0x04, 0, 0, 0, 1, 0], vec![], vec![0; 512]),
    ] {
        for thin in [true, false] {
            let mut store = TestStore::new(BlockSize::B512);
            if !thin {
                store.characteristics.unmap = None;
            }
            let mut fixture = Fixture::over(store);
            fixture.write(9, &[0x77; 1024]);
            assert!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)) >= list.len());
            let completion = fixture.run(&cdb_bytes, &list);
            assert_eq!(completion.status, Status::Good, "{list:x?}: {completion:?}");
            assert!(is_filled_with(&mut fixture, &expected), "{list:x?}");
            assert_eq!(fixture.metadata.load(MetadataKind::Operation).unwrap(), None);
            assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 1);
        }
    }
}

#[test]
fn sbc3_5_3_2_invalid_format_is_refused_and_data_stays() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let long = [vec![0, FOV | IP, 0, 0], pattern_descriptor(1, &[7; 513])].concat();
    let [.., end_high, end_low] = (BLOCKS as u16).to_be_bytes();
    for (cdb_bytes, list, expected, field) in [
        (format(0x40), vec![], 0x2400, [0xcf, 0, 1]),
        (format(FMTDATA | 0xc0), vec![0; 4], 0x2400, [0xcf, 0, 1]),
        (format(CMPLST), vec![], 0x2400, [0xcb, 0, 1]),
        (format(5), vec![], 0x2400, [0xca, 0, 1]),
        (format(FMTDATA | 5), vec![0; 4], 0x2400, [0xca, 0, 1]),
        ([0x04, 0, 0, 0, 3, 0], vec![], 0x2400, [0xc9, 0, 4]),
        (format(FMTDATA), vec![], 0x1a00, [0; 3]),
        (format(FMTDATA | LONGLIST), vec![0; 7], 0x1a00, [0; 3]),
        (format(FMTDATA), vec![1, 0, 0, 0], 0x2600, [0x8a, 0, 0]),
        (format(FMTDATA | LONGLIST), vec![0, 0, 0, 1, 0, 0, 0, 0], 0x2600, [0x80, 0, 3]),
        (format(FMTDATA), vec![0, 0x20, 0, 0], 0x2600, [0x8f, 0, 1]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0], 0x1a00, [0; 3]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0, 0x40, 1, 0, 1, 7], 0x2600, [0x80, 0, 4]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0, 0, 2, 0, 1, 7], 0x2600, [0x80, 0, 5]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0, 0, 1, 0, 0], 0x2600, [0x80, 0, 6]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0, 0, 0, 0, 1, 7], 0x2600, [0x80, 0, 6]),
        (format(FMTDATA), vec![0, FOV | IP, 0, 0, 0, 1, 0, 9, 7], 0x1a00, [0; 3]),
        (format(FMTDATA), long, 0x2600, [0x80, 0, 6]),
        (format(FMTDATA), vec![0, 0, 0, 6, 0, 0, 0, 1, 0, 0], 0x2600, [0x80, 0, 2]),
        (format(FMTDATA), vec![0, 0, 0, 8, 0, 0, 0, 1], 0x1a00, [0; 3]),
        (format(FMTDATA), vec![0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 1], 0x2600, [0x80, 0, 8]),
        (format(FMTDATA), vec![0, 0, 0, 4, 0, 0, end_high, end_low], 0x2600, [0x80, 0, 4]),
        (format(FMTDATA | 3), [vec![0, 0, 0, 8], vec![0xff; 8]].concat(), 0x2600, [0x80, 0, 4]),
        (
            format(FMTDATA | LONGLIST),
            vec![0, 0, 0, 0, 0xff, 0xff, 0xff, 0xfc],
            0x2600,
            [0x80, 0, 4],
        ),
    ] {
        let refused = fixture.run(&cdb_bytes, &list);
        assert_eq!(additional(&refused), Some(expected), "{cdb_bytes:x?} {list:x?}");
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], field, "{cdb_bytes:x?} {list:x?}");
    }
    assert_eq!(fixture.read(0, 1), [1; 512]);
}

#[test]
fn sbc3_5_3_1_it_goes_on_behind_immed_and_a_failure_stays() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    let list = [vec![0, FOV | IP | IMMED, 0, 0], pattern_descriptor(1, &[7])].concat();
    let answer = fixture.nexus.execute(Some(Lun(0)), command(&format(FMTDATA), &list));
    let mut work = fixture.host.take_work().unwrap();
    assert!(poll(&mut work).is_none());
    assert_eq!(block_on(answer).status, Status::Good);
    let ready = fixture.run(&[0; 6], &[]);
    assert_eq!(additional(&ready), Some(0x0404));
    assert_eq!(ready.sense.unwrap().to_bytes()[15] & 0x80, 0x80, "PROGRESS INDICATION");
    // A power loss.
    drop(work);
    fixture.store.delay_polls.store(0, Ordering::Relaxed);
    let mut fixture = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    for cdb_bytes in [&[0; 6][..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(additional(&fixture.run(cdb_bytes, &[])), Some(0x3101));
    }
    // Commands that do not need the medium are executed.
    assert_eq!(fixture.run(&[0x1a, 0, 0x3f, 0, 255, 0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&format(FMTDATA), &list).status, Status::Good);
    assert!(is_filled_with(&mut fixture, &[7; 512]));
}

#[test]
fn sbc3_5_3_1_a_block_that_cannot_be_written_fails_it_and_sanitize_mends_it() {
    let mut fixture = Fixture::new();
    *fixture.store.bad_block.lock().unwrap() = Some(5);
    let list = [vec![0, FOV | IP, 0, 0], pattern_descriptor(1, &[7])].concat();
    assert_eq!(additional(&fixture.run(&format(FMTDATA), &list)), Some(0x3101));
    assert_eq!(additional(&fixture.run(&[0; 6], &[])), Some(0x3101));
    *fixture.store.bad_block.lock().unwrap() = None;
    assert_eq!(fixture.run(&[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0; 6], &[]).status, Status::Good);
}
