//! ORWRITE and WRITE ATOMIC. The latter is also tested with a power loss at every step.

use super::power::{Disk, MACHINE_BLOCKS, Machine, OLD, Records, Trouble};
use crate::testing::*;
use crate::{Lun, MetadataKind, MetadataStore, Status};
use proptest::prelude::*;
use sarsen_block::BlockSize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

const NEW: u8 = 0xa5;

fn or_write(lba: u8, block_count: u8, flags: u8) -> [u8; 16] {
    [0x8b, flags, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, block_count, 0, 0]
}

fn write_atomic(lba: u8, block_count: u8) -> [u8; 16] {
    [0x9c, 0, 0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, block_count, 0, 0]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sbc3_5_9_orwrite_matches_model(
        commands in prop::collection::vec((0u8..12, 0u8..5, any::<u8>(), any::<bool>()), 1..20),
        delay_polls in 0..2usize,
    ) {
        let mut fixture = Fixture::new();
        fixture.store.delay_polls.store(delay_polls, Ordering::Relaxed);
        let mut model = vec![0; 16 * 512];
        for (lba, block_count, seed, ors) in commands {
            let data: Vec<u8> = (0..usize::from(block_count) * 512)
                .map(|index| seed.wrapping_mul(31).wrapping_add((index / 7) as u8))
                .collect();
            let mut cdb_bytes = or_write(lba, block_count, 0);
            if !ors {
                cdb_bytes[0] = 0x8a;
            }
            prop_assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), data.len());
            prop_assert_eq!(fixture.run(&cdb_bytes, &data).status, Status::Good);
            let place = &mut model[usize::from(lba) * 512..][..data.len()];
            for (byte, new) in place.iter_mut().zip(&data) {
                *byte = if ors { *byte | new } else { *new };
            }
        }
        prop_assert_eq!(fixture.read(0, 16), model);
    }
}

#[test]
fn sbc3_5_9_orwrite_has_the_limits_and_flags_of_a_write() {
    let mut fixture = Fixture::new();
    for (cdb_bytes, expected) in [
        (or_write(0, 1, 0x20), 0x2400),
        ([0x8b, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0], 0x2100),
        ([0x8b, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1, 0, 0], 0x2100),
        ([0x8b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0, 0, 0], 0x2400),
    ] {
        assert_eq!(
            additional(&fixture.run(&cdb_bytes, &[1; 512])),
            Some(expected),
            "{cdb_bytes:x?}"
        );
    }
    assert_eq!(fixture.run(&or_write(0, 1, 0x18), &[1; 512]).status, Status::Good);
    assert_eq!(fixture.store.durable_writes.load(Ordering::Relaxed), 1);
    *fixture.store.bad_block.lock().unwrap() = Some(1);
    assert_eq!(additional(&fixture.run(&or_write(0, 2, 0), &[2; 1024])), Some(0x1100));
    assert_eq!(fixture.read(0, 1), [1; 512]);
}

#[test]
fn orwrites_that_wait_for_the_store_lose_nothing_of_each_other() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(3, Ordering::Relaxed);
    let answers: Vec<_> = (0..8)
        .map(|bit| {
            let ored = command(&or_write(0, 1, 0), &[1 << bit; 512]);
            fixture.nexus.execute(Some(Lun(0)), ored)
        })
        .collect();
    // Each command is polled before any of them has ended.
    let mut waiting: Vec<_> = answers.into_iter().map(|answer| Box::pin(answer.wait())).collect();
    while !waiting.is_empty() {
        waiting.retain_mut(|answer| poll(answer).is_none());
    }
    assert_eq!(fixture.read(0, 1), [0xff; 512]);
}

fn block_limits(fixture: &mut Fixture) -> Vec<u8> {
    bytes(fixture.run(&[0x12, 1, 0xb0, 0, 64, 0], &[]))
}

#[test]
fn sbc4_5_49_write_atomic_is_there_where_it_can_be_kept_and_the_limits_say_so() {
    for (keeps, lasts, exists) in
        [(true, true, true), (false, false, true), (false, true, false), (true, false, true)]
    {
        let mut store = TestStore::new(BlockSize::B512);
        store.characteristics.is_lasting = lasts;
        let change = |parts: &mut TestParts| {
            if !keeps {
                parts.metadata = None;
            }
        };
        let mut fixture = Fixture::of(Arc::new(store), Arc::default(), change);
        let written = fixture.run(&write_atomic(4, 2), &[NEW; 1024]);
        assert_eq!(additional(&written), if exists { None } else { Some(0x2000) });
        let blocks = if exists { [0, 0, 8, 0] } else { [0; 4] };
        let limits = block_limits(&mut fixture);
        assert_eq!(limits[44..48], blocks);
        assert_eq!(limits[48..56], [0; 8]);
        assert_eq!([&limits[56..60], &limits[60..64]].concat(), blocks.repeat(2));
        if exists {
            assert_eq!(fixture.read(3, 4), [[0; 512], [NEW; 512], [NEW; 512], [0; 512]].concat());
        }
        assert_eq!(fixture.metadata.load(MetadataKind::AtomicWrite).unwrap(), None);
    }
}

#[test]
fn sbc4_5_49_write_atomic_is_refused_as_the_standard_says() {
    let mut fixture = Fixture::new();
    for (cdb_bytes, expected, field) in [
        (write_atomic_with(&[(1, 0x20)]), 0x2400, [0xcf, 0, 1]),
        // One block above MAXIMUM ATOMIC TRANSFER LENGTH; the medium is large enough for it.
        (write_atomic_with(&[(12, 8), (13, 1)]), 0x2400, [0xc0, 0, 12]),
        (write_atomic_with(&[(10, 8), (11, 1)]), 0x2400, [0xc0, 0, 10]),
        (write_atomic_with(&[(8, 0x10)]), 0x2100, [0, 0, 0]),
        (write_atomic_with(&[(2, 0xff), (13, 0)]), 0x2100, [0, 0, 0]),
    ] {
        assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), 0);
        let refused = fixture.run(&cdb_bytes, &[NEW; 512]);
        assert_eq!(additional(&refused), Some(expected), "{cdb_bytes:x?}");
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], field);
    }
    assert_eq!(additional(&fixture.run(&write_atomic(0, 2), &[NEW; 512])), Some(0x0e03));
    assert_eq!(fixture.read(0, 2), [0; 1024]);
    assert_eq!(fixture.run(&write_atomic(0, 0), &[]).status, Status::Good);
    // With a boundary the server may divide the write, but does not.
    assert_eq!(
        fixture.run(&write_atomic_with(&[(11, 1), (13, 2)]), &[NEW; 1024]).status,
        Status::Good
    );
    assert_eq!(fixture.read(0, 2), [NEW; 1024]);
}

/// Returns the CDB of a valid command with changed bytes.
fn write_atomic_with(changes: &[(usize, u8)]) -> [u8; 16] {
    let mut cdb_bytes = write_atomic(0, 1);
    changes.iter().for_each(|&(offset, byte)| cdb_bytes[offset] = byte);
    cdb_bytes
}

#[test]
fn sbc4_4_29_reads_wait_while_a_write_is_atomic() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(4, Ordering::Relaxed);
    // A read that began before the unit's first atomic write is repeated.
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 2, 0];
    let early = fixture.nexus.execute(Some(Lun(0)), command(&read, &[]));
    let written = fixture.nexus.execute(Some(Lun(0)), command(&write_atomic(0, 2), &[NEW; 1024]));
    let mut work = fixture.host.take_work().unwrap();
    assert!(poll(&mut work).is_none());
    let late = fixture.nexus.execute(Some(Lun(0)), command(&read, &[]));
    let mut reads: Vec<_> =
        [early, late].into_iter().map(|answer| Box::pin(answer.wait())).collect();
    while poll(&mut work).is_none() {
        assert!(reads.iter_mut().all(|read| poll(read).is_none()), "a read that saw it half");
    }
    assert_eq!(block_on(written).status, Status::Good);
    while !reads.is_empty() {
        reads.retain_mut(|read| match poll(read) {
            Some(completion) => {
                assert_eq!(bytes(completion), [NEW; 1024]);
                false
            }
            None => true,
        });
    }
}

#[test]
fn a_volume_without_room_is_as_it_was_and_goes_on() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[OLD; 1024]);
    fixture.store.is_full.store(true, Ordering::Relaxed);
    assert_eq!(additional(&fixture.run(&write_atomic(8, 2), &[NEW; 1024])), Some(0x2707));
    fixture.store.is_full.store(false, Ordering::Relaxed);
    assert_eq!(fixture.read(8, 2), [0; 1024]);
    assert_eq!(fixture.run(&write_atomic(0, 2), &[NEW; 1024]).status, Status::Good);
    assert_eq!(fixture.read(0, 2), [NEW; 1024]);
}

fn life(machine: &Arc<Mutex<Machine>>) -> Fixture {
    let store = Arc::new(TestStore::new(BlockSize::B512));
    Fixture::of(store, Arc::default(), |parts| {
        parts.store = Arc::new(Disk::new(machine));
        parts.metadata = Some(Arc::new(Records(machine.clone())));
    })
}

/// Returns the status of a command, or `None` if the power loss prevented it.
fn attempt(fixture: &mut Fixture, cdb_bytes: &[u8], data: &[u8]) -> Option<Status> {
    let answer = fixture.nexus.execute(Some(Lun(0)), command(cdb_bytes, data));
    let mut work = fixture.host.take_work();
    let mut answer = Box::pin(answer.wait());
    for _ in 0..100 {
        if work.as_mut().is_some_and(|work| poll(work).is_some()) {
            work = None;
        }
        if let Some(completion) = poll(&mut answer) {
            return Some(completion.status);
        }
    }
    None
}

/// Returns the value of all bytes, which must be equal.
fn whole(data: &[u8]) -> u8 {
    assert!(data.iter().all(|&byte| byte == data[0]), "half written");
    data[0]
}

#[test]
fn sbc4_4_29_an_atomic_write_that_is_cut_off_at_any_step_is_whole_or_not_there() {
    let mut seen = BTreeMap::new();
    for keeps_first in [false, true] {
        for (cut, second_cut) in (0..12).flat_map(|cut| (0..6).map(move |second| (cut, second))) {
            let machine = Arc::new(Mutex::new(Machine::new(Trouble::Cut, cut, keeps_first)));
            let mut first = life(&machine);
            let status = attempt(&mut first, &write_atomic(2, 8), &[NEW; 8 * 512]);
            assert!(matches!(status, None | Some(Status::Good)), "{status:?}");
            drop(first);
            machine.lock().unwrap().restart(second_cut);
            // The recovery after the first run may be interrupted too.
            let second = life_without_commands(&machine);
            let mut work = second.host.take_work();
            for _ in 0..100 {
                if work.as_mut().is_some_and(|work| poll(work).is_some()) {
                    work = None;
                }
            }
            drop((work, second));
            machine.lock().unwrap().restart(0);
            let mut third = life(&machine);
            let data = third.read(2, 8);
            let found = whole(&data);
            assert!(status.is_none() || found == NEW, "an answered write is gone");
            assert!(found == OLD || found == NEW);
            assert_eq!((whole(&third.read(0, 2)), whole(&third.read(10, 6))), (OLD, OLD));
            assert_eq!(machine.lock().unwrap().record, None);
            // A restart does not overwrite a later write with the atomic one.
            assert_eq!(third.write(2, &[1; 8 * 512]).status, Status::Good);
            assert_eq!(third.run(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[]).status, Status::Good);
            drop(third);
            machine.lock().unwrap().restart(0);
            assert_eq!(whole(&life(&machine).read(2, 8)), 1);
            *seen.entry((status.is_some(), found)).or_insert(0) += 1;
        }
    }
    // The cases: interrupted before it could be finished, interrupted after that, and acknowledged.
    let kinds: Vec<_> = seen.keys().copied().collect();
    assert_eq!(kinds, [(false, OLD), (false, NEW), (true, NEW)], "{seen:?}");
}

/// Starts a unit that begins its recovery but executes no command.
fn life_without_commands(machine: &Arc<Mutex<Machine>>) -> Bare {
    let host = Arc::new(TestHost::default());
    let array = crate::Array::new(host.clone());
    let identity = crate::Identity::new("data", "iqn.2026-01.example:t");
    let unit = TestParts {
        metadata: Some(Arc::new(Records(machine.clone()))),
        ..TestParts::disk(identity, Arc::new(Disk::new(machine)))
    }
    .unit();
    let luns = BTreeMap::from([(Lun(0), unit.unwrap())]);
    let device = crate::TargetDevice::new(&array, "iqn.2026-01.example:t".into(), luns);
    Bare { host, _device: device }
}

struct Bare {
    host: Arc<TestHost>,
    _device: Arc<crate::TargetDevice>,
}

#[test]
fn an_atomic_write_with_any_step_failing_is_whole_or_not_there_and_later_writes_last() {
    let mut halted = 0;
    for keeps_first in [false, true] {
        for failing in 1..=4 {
            let machine = Arc::new(Mutex::new(Machine::new(Trouble::Fail, failing, keeps_first)));
            let mut first = life(&machine);
            let status = attempt(&mut first, &write_atomic(2, 8), &[NEW; 8 * 512]);
            let status = status.expect("an answer, since the power is on");
            let later = first.run(&[0x2a, 8, 0, 0, 0, 2, 0, 0, 1, 0], &[1; 512]);
            match later.status {
                Status::Good => {
                    let now = whole(&first.read(3, 7));
                    assert_eq!(now, if status == Status::Good { NEW } else { OLD }, "{failing}");
                }
                _ => {
                    halted += 1;
                    assert_eq!(additional(&later), Some(0x0c00));
                    let read = first.run(&[0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0], &[]);
                    assert_eq!(additional(&read), Some(0x0c00), "half of it could be read");
                    // SANITIZE is rejected too, since the record may still be restored.
                    let wiped = first.run(&[0x48, 2, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
                    assert_eq!(additional(&wiped), Some(0x0c00));
                }
            }
            let is_later_kept = later.status == Status::Good;
            drop(first);
            machine.lock().unwrap().restart(0);
            let mut second = life(&machine);
            let found = whole(&second.read(3, 7));
            assert!(found == NEW || status != Status::Good && found == OLD);
            assert_eq!(whole(&second.read(2, 1)), if is_later_kept { 1 } else { found });
        }
    }
    assert!(halted > 0, "no record stayed behind");
}

#[test]
fn a_record_that_cannot_be_finished_keeps_the_unit_from_starting() {
    let header = |offset: u64| [&[1, 0, 0, 0, 0, 0, 0, 0][..], &offset.to_be_bytes()].concat();
    for (record, fits) in [
        ([header(1024), vec![NEW; 512]].concat(), true),
        (vec![1; 15], false),
        ([vec![9], header(0)[1..].to_vec(), vec![NEW; 512]].concat(), false),
        ([header(100), vec![NEW; 512]].concat(), false),
        ([header(0), vec![NEW; 100]].concat(), false),
        ([header(u64::MAX - 511), vec![NEW; 512]].concat(), false),
        ([header((MACHINE_BLOCKS - 1) * 512), vec![NEW; 1024]].concat(), false),
    ] {
        let mut machine = Machine::new(Trouble::Cut, 0, false);
        machine.record = Some(record.clone());
        let machine = Arc::new(Mutex::new(machine));
        let unit = TestParts {
            metadata: Some(Arc::new(Records(machine.clone()))),
            ..TestParts::disk(crate::Identity::new("data", "t"), Arc::new(Disk::new(&machine)))
        }
        .unit();
        assert_eq!(unit.is_ok(), fits, "{record:x?}");
        if fits {
            assert_eq!(life(&machine).read(2, 1), [NEW; 512]);
        }
    }
}
