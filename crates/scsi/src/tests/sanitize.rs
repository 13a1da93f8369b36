//! SANITIZE: its effect on the blocks, and on commands during and after it.

use crate::testing::*;
use crate::{Completion, Lun, MetadataKind, MetadataStore, Status};
use sarsen_block::{BlockSize, Io};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK_ERASE: [u8; 10] = [0x48, 0x02, 0, 0, 0, 0, 0, 0, 0, 0];
const EXIT_FAILURE_MODE: [u8; 10] = [0x48, 0x1f, 0, 0, 0, 0, 0, 0, 0, 0];
const TEST_UNIT_READY: [u8; 6] = [0; 6];
const IMMED: u8 = 0x80;
const AUSE: u8 = 0x20;

const SANITIZE_IN_PROGRESS: u16 = 0x041b;
const SANITIZE_FAILED: u16 = 0x3103;

fn with(cdb: &[u8; 10], flags: u8) -> [u8; 10] {
    let mut cdb = *cdb;
    cdb[1] |= flags;
    cdb
}

fn overwrite(list: &[u8]) -> [u8; 10] {
    let [high, low] = (list.len() as u16).to_be_bytes();
    [0x48, 0x01, 0, 0, 0, 0, 0, high, low, 0]
}

fn list(flags: u8, pattern: &[u8]) -> Vec<u8> {
    let [high, low] = (pattern.len() as u16).to_be_bytes();
    [&[flags, 0, high, low], pattern].concat()
}

fn read_all(fixture: &mut Fixture) -> Vec<u8> {
    let [.., high, low] = (BLOCKS as u16).to_be_bytes();
    let completion = fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, high, low, 0], &[]);
    assert_eq!(completion.status, Status::Good, "{completion:?}");
    bytes(completion)
}

fn progress(completion: &Completion) -> u16 {
    let sense = completion.sense.unwrap().to_bytes();
    assert_eq!(sense[15] & 0x80, 0x80, "SKSV");
    u16::from_be_bytes([sense[16], sense[17]])
}

#[test]
fn sbc3_5_24_2_2_overwrite_repeats_its_pattern_in_every_block() {
    for (flags, pattern, first_byte) in [
        (0x01, vec![0xaa; 512], 0xaa),
        (0x02, vec![1, 2, 3], 1),
        (0x82, vec![1, 2, 3], !1),
        (0x83, vec![1, 2, 3], 1),
        (0x01, vec![0; 4], 0),
    ] {
        let mut fixture = Fixture::new();
        fixture.write(7, &[0x55; 1024]);
        let list = list(flags, &pattern);
        let cdb_bytes = overwrite(&list);
        assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), list.len());
        let completion = fixture.run(&cdb_bytes, &list);
        assert_eq!(completion.status, Status::Good, "{completion:?}");
        let invert = if first_byte == pattern[0] { 0 } else { 0xff };
        let block: Vec<u8> = pattern.iter().map(|byte| byte ^ invert).cycle().take(512).collect();
        assert!(read_all(&mut fixture).chunks(512).all(|found| found == block), "{flags:02x}");
        // Each pass was made durable, and no record is left.
        assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), usize::from(flags & 0x1f));
        assert_eq!(fixture.metadata.load(MetadataKind::Operation).unwrap(), None);
    }
}

#[test]
fn sbc3_5_24_2_3_block_erase_leaves_zeroes_that_take_no_room() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 2048]);
    fixture.write(200, &[1; 512]);
    assert_eq!(fixture.run(&BLOCK_ERASE, &[]).status, Status::Good);
    assert!(read_all(&mut fixture).iter().all(|&byte| byte == 0));
    let get = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0];
    let status = bytes(fixture.run(&get, &[]));
    let [.., high, low] = (BLOCKS as u16).to_be_bytes();
    assert_eq!((status.len(), &status[18..21]), (24, &[high, low, 1][..]));
    // WABEREQ 01b: erased blocks can be read.
    assert_eq!(bytes(fixture.run(&[0x12, 1, 0xb1, 0, 64, 0], &[]))[7], 0x40);
}

#[test]
fn sbc3_5_24_invalid_sanitize_is_refused_and_data_stays() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let full = list(1, &[7; 512]);
    let mut refusals = vec![
        ([0x48, 0x00, 0, 0, 0, 0, 0, 0, 0, 0], vec![], [0xcc, 0, 1]),
        // CRYPTOGRAPHIC ERASE is not supported without a key.
        ([0x48, 0x03, 0, 0, 0, 0, 0, 0, 0, 0], vec![], [0xcc, 0, 1]),
        (with(&BLOCK_ERASE, 0x40), vec![], [0xce, 0, 1]),
        ([0x48, 0x02, 0, 0, 0, 0, 0, 0, 8, 0], vec![0; 8], [0xc0, 0, 7]),
        ([0x48, 0x1f, 0, 0, 0, 0, 0, 0, 8, 0], vec![0; 8], [0xc0, 0, 7]),
        (overwrite(&[0; 4]), vec![0; 4], [0xc0, 0, 7]),
        (overwrite(&[0; 517]), vec![0; 517], [0xc0, 0, 7]),
        (overwrite(&full), list(0, &[7; 512]), [0x8c, 0, 0]),
        (overwrite(&full), list(0x41, &[7; 512]), [0x8e, 0, 0]),
        (overwrite(&full), [&[1, 0, 0, 0][..], &[7; 512]].concat(), [0x80, 0, 2]),
        (overwrite(&full), [&[1, 0, 2, 4][..], &[7; 512]].concat(), [0x80, 0, 2]),
    ];
    for reserved in 2..7 {
        let mut cdb_bytes = BLOCK_ERASE;
        cdb_bytes[reserved] = 1;
        refusals.push((cdb_bytes, vec![], [0xc0, 0, reserved as u8]));
    }
    for (cdb_bytes, data, field) in refusals {
        let refused = fixture.run(&cdb_bytes, &data);
        let expected = if field[0] & 0x40 != 0 { 0x2400 } else { 0x2600 };
        assert_eq!(additional(&refused), Some(expected), "{cdb_bytes:x?}");
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], field, "{cdb_bytes:x?}");
    }
    assert_eq!(fixture.read(0, 1), [1; 512]);
}

#[test]
fn a_store_that_cannot_deallocate_has_no_block_erase() {
    let mut store = TestStore::new(BlockSize::B512);
    store.characteristics.unmap = None;
    let mut fixture = Fixture::over(store);
    assert_eq!(additional(&fixture.run(&BLOCK_ERASE, &[])), Some(0x2400));
    let one = bytes(fixture.run(&[0xa3, 0x0c, 2, 0x48, 0, 2, 0, 0, 1, 0, 0, 0], &[]));
    assert_eq!(one, [0, 1, 0, 0]);
    assert_eq!(bytes(fixture.run(&[0x12, 1, 0xb1, 0, 64, 0], &[]))[7], 0);
    let list = list(1, &[7]);
    assert_eq!(fixture.run(&overwrite(&list), &list).status, Status::Good);
}

#[test]
fn write_protection_and_reservations_hold_for_it() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    let swp = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0x08, 0, 0, 0, 0xff, 0xff, 0, 120];
    assert_eq!(fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &swp).status, Status::Good);
    assert_eq!(additional(&fixture.run(&BLOCK_ERASE, &[])), Some(0x2702));
    assert_eq!(additional(&fixture.run(&[0x04, 0, 0, 0, 0, 0], &[])), Some(0x2702));
    let none = [0, 0, 0, 0, 0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 120];
    assert_eq!(fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &none).status, Status::Good);
    while run(&mut other, &TEST_UNIT_READY, &[]).status != Status::Good {}
    assert_eq!(run(&mut other, &[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&BLOCK_ERASE, &[]).status, Status::ReservationConflict);
    assert_eq!(fixture.run(&[0x04, 0, 0, 0, 0, 0], &[]).status, Status::ReservationConflict);
}

#[test]
fn sbc3_4_11_3_sanitize_reports_progress_and_refuses_other_commands() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    fixture.write(0, &[1; 512]);
    fixture.host.run_work();
    let answer = fixture.nexus.execute(Some(Lun(0)), command(&with(&BLOCK_ERASE, IMMED), &[]));
    let mut work = fixture.host.take_work().unwrap();
    assert!(poll(&mut work).is_none());
    assert_eq!(block_on(answer).status, Status::Good);
    assert!(fixture.metadata.load(MetadataKind::Operation).unwrap().is_some());
    let mut log_decisions = Vec::new();
    loop {
        let ready = fixture.run(&TEST_UNIT_READY, &[]);
        assert_eq!(additional(&ready), Some(SANITIZE_IN_PROGRESS));
        let reported = progress(&ready);
        let sense = bytes(fixture.run(&[0x03, 0, 0, 0, 252, 0], &[]));
        assert_eq!((sense[2], &sense[12..14]), (2, &[0x04, 0x1b][..]));
        assert_eq!(u16::from_be_bytes([sense[16], sense[17]]), reported);
        log_decisions.push(reported);
        if poll(&mut work).is_some() {
            break;
        }
        for refused in [
            &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0][..],
            &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0],
            &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x1b, 0, 0, 0, 1, 0],
            &[0x04, 0, 0, 0, 0, 0],
            &BLOCK_ERASE,
        ] {
            // The work may have ended with the poll before this one.
            let completion = fixture.run(refused, &[1; 512]);
            assert_eq!(additional(&completion), Some(SANITIZE_IN_PROGRESS), "{refused:x?}");
        }
        assert_eq!(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good);
        let luns = [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0];
        assert_eq!(fixture.run(&luns, &[]).status, Status::Good);
    }
    assert!(log_decisions.is_sorted());
    log_decisions.dedup();
    assert!(log_decisions.len() > 2, "{log_decisions:x?}");
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [0; 512]);
}

#[test]
fn a_reset_does_not_end_it() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    let _ = fixture.nexus.execute(Some(Lun(0)), command(&BLOCK_ERASE, &[]));
    let mut work = fixture.host.take_work().unwrap();
    assert!(poll(&mut work).is_none());
    assert!(fixture.nexus.logical_unit_reset(Lun(0)));
    assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(0x2903));
    assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(SANITIZE_IN_PROGRESS));
    block_on(Io::Pending(work));
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
}

#[test]
fn writes_that_came_before_are_waited_for() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(8, Ordering::Relaxed);
    let write = command(&[0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0], &[9; 512]);
    let mut writing = Box::pin(fixture.nexus.execute(Some(Lun(0)), write).wait());
    assert!(poll(&mut writing).is_none());
    fixture.host.run_work();
    let sanitizing = fixture.nexus.execute(Some(Lun(0)), command(&BLOCK_ERASE, &[]));
    let mut work = fixture.host.take_work().unwrap();
    let mut written = None;
    for polls in 0.. {
        assert!(polls < 100_000, "neither comes to its end");
        let is_done = poll(&mut work).is_some();
        assert!(!is_done || written.is_some(), "it did not wait");
        written = written.or_else(|| poll(&mut writing));
        if is_done {
            break;
        }
    }
    assert_eq!(written.unwrap().status, Status::Good);
    assert_eq!(block_on(sanitizing).status, Status::Good);
    assert_eq!(fixture.read(3, 1), [0; 512]);
}

/// Returns the volume after a power loss in the middle of an operation.
fn cut_off(cdb_bytes: &[u8], data: &[u8]) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    fixture.host.run_work();
    let _ = fixture.nexus.execute(Some(Lun(0)), command(cdb_bytes, data));
    let mut work = fixture.host.take_work().unwrap();
    for _ in 0..3 {
        assert!(poll(&mut work).is_none());
    }
    fixture.store.delay_polls.store(0, Ordering::Relaxed);
    Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {})
}

fn assert_failed(fixture: &mut Fixture) {
    for cdb_bytes in
        [&TEST_UNIT_READY[..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x04, 0, 0, 0, 0, 0]]
    {
        let completion = fixture.run(cdb_bytes, &[]);
        assert_eq!(additional(&completion), Some(SANITIZE_FAILED), "{cdb_bytes:x?}");
        assert_eq!(completion.sense.unwrap().key(), crate::SenseKey::MediumError);
    }
    let capacity = fixture.run(&[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
    assert_eq!(capacity.status, Status::Good);
}

#[test]
fn sbc3_4_11_4_interrupted_sanitize_is_failed_until_repeated() {
    let mut fixture = cut_off(&with(&BLOCK_ERASE, IMMED), &[]);
    assert_failed(&mut fixture);
    let exit = fixture.run(&EXIT_FAILURE_MODE, &[]);
    assert_eq!(additional(&exit), Some(0x2400), "without AUSE there is no other way");
    assert_failed(&mut fixture);
    // The failure persists after another restart.
    let mut fixture = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    assert_failed(&mut fixture);
    assert_eq!(fixture.run(&BLOCK_ERASE, &[]).status, Status::Good);
    assert!(read_all(&mut fixture).iter().all(|&byte| byte == 0));
    let mut fixture = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
}

#[test]
fn sbc3_5_24_2_5_a_failure_with_ause_can_be_left() {
    let list = list(1, &[0xee]);
    let mut fixture = cut_off(&with(&overwrite(&list), AUSE), &list);
    assert_failed(&mut fixture);
    assert_eq!(fixture.run(&EXIT_FAILURE_MODE, &[]).status, Status::Good);
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    let mut fixture = Fixture::of(fixture.store.clone(), fixture.metadata.clone(), |_| {});
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    assert_eq!(fixture.run(&EXIT_FAILURE_MODE, &[]).status, Status::Good);
}

#[test]
fn sbc3_4_11_4_a_block_that_cannot_be_written_fails_it() {
    let mut fixture = Fixture::new();
    *fixture.store.bad_block.lock().unwrap() = Some(BLOCKS - 1);
    let list = list(1, &[0xee]);
    assert_eq!(additional(&fixture.run(&overwrite(&list), &list)), Some(SANITIZE_FAILED));
    assert_failed(&mut fixture);
    *fixture.store.bad_block.lock().unwrap() = None;
    assert_eq!(fixture.run(&overwrite(&list), &list).status, Status::Good);
    assert!(read_all(&mut fixture).iter().all(|&byte| byte == 0xee));
}

#[test]
fn sanitize_without_stored_record_does_not_begin() {
    let store = Arc::new(TestStore::new(BlockSize::B512));
    let mut fixture = Fixture::of(store, Arc::default(), |_| {});
    fixture.write(0, &[1; 512]);
    fixture.metadata.is_broken.store(true, Ordering::Relaxed);
    let completion = fixture.run(&with(&BLOCK_ERASE, IMMED), &[]);
    assert_eq!(additional(&completion), Some(0x4400));
    assert_eq!(fixture.read(0, 1), [1; 512]);
    fixture.metadata.is_broken.store(false, Ordering::Relaxed);
    assert_eq!(fixture.run(&BLOCK_ERASE, &[]).status, Status::Good);
}
