//! READ, WRITE, VERIFY, COMPARE AND WRITE, cache and power.

use crate::testing::*;
use crate::{Cdb, Completion, DeviceType, Lun, SenseKey, Status};
use sarsen_block::{BlockSize, Io};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

#[test]
fn sbc3_5_10_every_form_of_write_is_read_by_every_form_of_read() {
    let writes: [&[u8]; 4] = [
        &[0x0a, 0, 0, 9, 2, 0],
        &[0x2a, 0, 0, 0, 0, 9, 0, 0, 2, 0],
        &[0xaa, 0, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0],
        &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 2, 0, 0],
    ];
    for delay_polls in [0, 3] {
        let mut fixture = Fixture::new();
        fixture.store.delay_polls.store(delay_polls, Ordering::Relaxed);
        for (seed, write) in writes.iter().enumerate() {
            let pattern = vec![seed as u8 + 1; 1024];
            assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(write)), 1024);
            assert_eq!(fixture.run(write, &pattern).status, Status::Good);
            for other in writes {
                let mut read = other.to_vec();
                read[0] -= 2;
                assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&read)), 0);
                assert_eq!(bytes(fixture.run(&read, &[])), pattern);
            }
        }
    }
}

#[test]
fn a_store_that_answers_at_once_makes_read_and_write_answer_at_once() {
    let mut fixture = Fixture::new();
    let write = command(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]);
    assert!(matches!(fixture.nexus.execute(Some(Lun(0)), write), Io::Ready(_)));
    let read = command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert!(matches!(fixture.nexus.execute(Some(Lun(0)), read), Io::Ready(_)));
}

#[test]
fn sbc3_5_11_read_beyond_the_last_block_is_out_of_range() {
    let mut fixture = Fixture::new();
    for (lba, block_count, out) in [
        (BLOCKS, 0, false),
        (BLOCKS + 1, 0, true),
        (BLOCKS - 1, 1, false),
        (BLOCKS - 1, 2, true),
        (u64::MAX, 1, true),
        (u64::MAX, 0, true),
    ] {
        for operation_code in [0x88, 0x8f, 0x90, 0x91] {
            let mut cdb = vec![operation_code, 0];
            cdb.extend(lba.to_be_bytes());
            cdb.extend([0, 0, 0, block_count, 0, 0]);
            let completion = fixture.run(&cdb, &[]);
            let expected = out.then_some(0x2100);
            assert_eq!(additional(&completion), expected, "{operation_code:02x} {lba}");
        }
    }
}

#[test]
fn sbc3_6_6_4_a_transfer_above_the_maximum_is_an_invalid_field() {
    let mut fixture = Fixture::new();
    let maximum = fixture.unit.limits().maximum_transfer_blocks + 1;
    for operation_code in [0x88, 0x8a, 0x8e, 0x8f] {
        let mut cdb_bytes = vec![operation_code, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb_bytes.extend(maximum.to_be_bytes());
        cdb_bytes.extend([0, 0]);
        assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), 0);
        assert_eq!(additional(&fixture.run(&cdb_bytes, &[])), Some(0x2400));
    }
}

#[test]
fn sbc3_4_22_protection_fields_are_refused_on_a_unit_without_protection() {
    let mut fixture = Fixture::new();
    for operation_code in [0x28, 0x2a, 0x2e, 0x2f, 0x41, 0x88, 0x89, 0x8a, 0x8e, 0x8f, 0x93] {
        let completion = fixture.run(&[operation_code, 0x20, 0, 0, 0, 0, 0, 0, 1], &[0; 512]);
        assert_eq!(additional(&completion), Some(0x2400), "{operation_code:02x}");
        assert_eq!(completion.sense.unwrap().to_bytes()[15..], [0xcf, 0, 1]);
    }
}

#[test]
fn fcp4_9_4_2_a_write_whose_data_falls_short_writes_nothing() {
    let mut fixture = Fixture::new();
    let completion = fixture.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 2, 0], &[1; 512]);
    assert_eq!(additional(&completion), Some(0x0e03));
    assert_eq!(fixture.read(0, 2), [0; 1024]);
    // Surplus Data-Out is ignored.
    assert_eq!(fixture.run(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 1024]).status, Status::Good);
    assert_eq!(fixture.read(0, 2), [[1; 512], [0; 512]].concat());
}

#[test]
fn fcp4_9_4_2_a_write_that_promised_fewer_whole_blocks_writes_those() {
    let mut fixture = Fixture::new();
    for (length, expected, status) in [
        (512, Some(512), Status::Good),
        (512, None, Status::CheckCondition),
        (512, Some(1024), Status::CheckCondition),
        (0, Some(0), Status::Good),
        (0, None, Status::CheckCondition),
        (200, Some(200), Status::CheckCondition),
    ] {
        for operation_code in [0x2a, 0x2e] {
            fixture.write(0, &[1; 1024]);
            let mut short =
                command(&[operation_code, 0, 0, 0, 0, 0, 0, 0, 2, 0], &[2; 512][..length]);
            short.expected_data_out_length = expected;
            let completion = block_on(fixture.nexus.execute(Some(Lun(0)), short));
            assert_eq!(completion.status, status, "{length} {expected:?}");
            let written = if status == Status::Good { length } else { 0 };
            let data = fixture.read(0, 2);
            assert!(data[..written].iter().all(|&byte| byte == 2));
            assert!(data[written..].iter().all(|&byte| byte == 1));
        }
    }
}

#[test]
fn sbc3_5_32_fua_makes_one_write_durable_and_a_cleared_wce_every_write() {
    let mut fixture = Fixture::new();
    let durable = |fixture: &Fixture| fixture.store.durable_writes.load(Ordering::Relaxed);
    fixture.write(0, &[1; 512]);
    assert_eq!(durable(&fixture), 0);
    fixture.run(&[0x2a, 0x08, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]);
    assert_eq!(durable(&fixture), 1);
    assert_eq!(fixture.run(&CLEAR_WCE, &cleared_wce()).status, Status::Good);
    assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 1, "the cache is written first");
    fixture.write(0, &[1; 512]);
    assert_eq!(durable(&fixture), 2);
}

/// MODE SELECT(6) with a parameter list that clears WCE.
const CLEAR_WCE: [u8; 6] = [0x15, 0x10, 0, 0, 24, 0];
fn cleared_wce() -> [u8; 24] {
    let mut list = [0; 24];
    list[4..6].copy_from_slice(&[0x08, 0x12]);
    list
}

#[test]
fn sbc3_6_5_5_a_cache_is_off_when_the_writes_that_began_with_it_on_are_in_it_and_flushed() {
    for stop in [false, true] {
        let mut fixture = Fixture::new();
        fixture.store.delay_polls.store(2, Ordering::Relaxed);
        let write = command(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]);
        let write = fixture.nexus.execute(Some(Lun(0)), write);
        let off = if stop {
            command(&[0x1b, 0, 0, 0, 0, 0], &[])
        } else {
            command(&CLEAR_WCE, &cleared_wce())
        };
        let off = fixture.nexus.execute(Some(Lun(0)), off);
        let mut off: [Pin<Box<dyn Future<Output = Completion>>>; 1] = [Box::pin(off.wait())];
        for _ in 0..5 {
            assert!(poll_all(&mut off)[0].is_none(), "the write is still under way");
            assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 0);
        }
        assert_eq!(block_on(write).status, Status::Good);
        let [off] = off;
        assert_eq!(block_on(Io::Pending(off)).status, Status::Good);
        assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn sbc3_6_5_5_a_write_that_waits_while_the_cache_goes_off_is_durable() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(2, Ordering::Relaxed);
    let unmap = [[0, 22, 0, 16].as_slice(), &[0; 15], &[1], &[0; 4]].concat();
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let commands: [(&[u8], &[u8]); 5] = [
        (&compare, &[0; 1024]),
        (&[0x2a, 0, 0, 0, 0, 1, 0, 0, 1, 0], &[1; 512]),
        (&[0x41, 0, 0, 0, 0, 2, 0, 0, 1, 0], &[1; 512]),
        (&[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0], &unmap),
        (&CLEAR_WCE, &cleared_wce()),
    ];
    let mut futures: Vec<Pin<Box<dyn Future<Output = Completion>>>> = Vec::new();
    for (cdb, data) in commands {
        let io = fixture.nexus.execute(Some(Lun(0)), command(cdb, data));
        futures.push(Box::pin(io.wait()));
        let newest = futures.len() - 1;
        assert!(poll_all(&mut futures[newest..])[0].is_none());
    }
    let mut ended = 0;
    while !futures.is_empty() {
        let now = poll_all(&mut futures);
        for index in (0..now.len()).rev().filter(|&index| now[index].is_some()) {
            drop(futures.remove(index));
        }
        ended += now.iter().flatten().filter(|now| now.status == Status::Good).count();
    }
    assert_eq!(ended, 5);
    assert_eq!(fixture.store.durable_writes.load(Ordering::Relaxed), 3);
    assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 2, "the cache's, the UNMAP's");
}

#[test]
fn sbc3_5_11_fua_read_writes_a_volatile_cache_first() {
    let mut fixture = Fixture::new();
    fixture.run(&[0x28, 0x08, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
    assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 1);
}

#[test]
fn sbc3_5_29_verify_compares_as_bytchk_says() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[5; 2048]);
    let mut wrong = vec![5; 2048];
    wrong[1030] = 6;
    let verify = |bytchk: u8| [0x2f, bytchk << 1, 0, 0, 0, 0, 0, 0, 4, 0];
    assert_eq!(fixture.run(&verify(0), &[]).status, Status::Good);
    assert_eq!(fixture.run(&verify(1), &[5; 2048]).status, Status::Good);
    let completion = fixture.run(&verify(1), &wrong);
    let sense = completion.sense.unwrap();
    assert_eq!((sense.key(), sense.information()), (SenseKey::Miscompare, Some(1030)));
    assert_eq!(additional(&fixture.run(&verify(2), &[5; 2048])), Some(0x2400));
    assert_eq!(fixture.run(&verify(3), &[5; 512]).status, Status::Good);
    assert_eq!(additional(&fixture.run(&verify(3), &[6; 512])), Some(0x1d00));
    for (bytchk, length) in [(0, 0), (1, 2048), (2, 0), (3, 512)] {
        let length_asked = fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&verify(bytchk)));
        assert_eq!(length_asked, length);
    }
}

#[test]
fn sbc3_5_29_verify_of_many_pieces_tells_an_offset_in_a_later_one() {
    let mut fixture = Fixture::new();
    let mut data = vec![9; 4096 * 512];
    let all = [0x8f, 0x02, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0];
    let write = [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0];
    assert_eq!(fixture.run(&write, &data).status, Status::Good);
    assert_eq!(fixture.run(&all, &data).status, Status::Good);
    data[1_500_000] = 0;
    assert_eq!(fixture.run(&all, &data).sense.unwrap().information(), Some(1_500_000));
}

#[test]
fn sbc3_5_38_write_and_verify_is_durable_and_read_back() {
    let mut fixture = Fixture::new();
    for bytchk in [0, 1] {
        let write = [0x2e, bytchk << 1, 0, 0, 0, 0, 0, 0, 1, 0];
        assert_eq!(fixture.run(&write, &[bytchk; 512]).status, Status::Good);
        assert_eq!(fixture.read(0, 1), [bytchk; 512]);
    }
    assert_eq!(fixture.store.durable_writes.load(Ordering::Relaxed), 2);
    assert_eq!(
        additional(&fixture.run(&[0x2e, 6, 0, 0, 0, 0, 0, 0, 1, 0], &[0; 512])),
        Some(0x2400)
    );
}

const COMPARE_AND_WRITE_2: [u8; 16] = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0];

#[test]
fn sbc3_5_2_compare_and_write_writes_only_after_equal_comparison() {
    let mut fixture = Fixture::new();
    fixture.write(3, &[1; 1024]);
    let data = [[1; 1024], [2; 1024]].concat();
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&COMPARE_AND_WRITE_2)), 2048);
    assert_eq!(fixture.run(&COMPARE_AND_WRITE_2, &data).status, Status::Good);
    assert_eq!(fixture.read(3, 2), [2; 1024]);
}

#[test]
fn sbc3_5_2_compare_and_write_miscompare_tells_the_offset() {
    let mut fixture = Fixture::new();
    fixture.write(3, &[1; 1024]);
    let mut data = [[1; 1024], [2; 1024]].concat();
    data[777] = 3;
    let completion = fixture.run(&COMPARE_AND_WRITE_2, &data);
    let sense = completion.sense.unwrap();
    assert_eq!(sense.key(), SenseKey::Miscompare);
    assert_eq!(sense.to_bytes()[..7], [0xf0, 0, 0x0e, 0, 0, 3, 9]);
    assert_eq!(fixture.read(3, 2), [1; 1024]);
}

#[test]
fn sbc3_5_2_compare_and_write_with_another_length_than_its_cdb_is_refused() {
    let mut fixture = Fixture::new();
    let mut command = command(&COMPARE_AND_WRITE_2, &[0; 2048]);
    command.expected_data_out_length = Some(4096);
    let completion = block_on(fixture.nexus.execute(Some(Lun(0)), command));
    assert_eq!(additional(&completion), Some(0x2400));
    let completion = fixture.run(&COMPARE_AND_WRITE_2, &[0; 1024]);
    assert_eq!(additional(&completion), Some(0x0e03));
}

/// Polls each future once. Returns each output, or `None` if it is not ready.
fn poll_all<T>(futures: &mut [Pin<Box<dyn Future<Output = T>>>]) -> Vec<Option<T>> {
    let mut context = Context::from_waker(Waker::noop());
    let poll =
        |future: &mut Pin<Box<dyn Future<Output = T>>>| match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        };
    futures.iter_mut().map(poll).collect()
}

#[test]
fn sbc3_5_2_of_many_compare_and_writes_at_once_exactly_one_finds_each_value() {
    let mut fixture = Fixture::new();
    fixture.store.delay_polls.store(3, Ordering::Relaxed);
    let cdb = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    let mut futures: Vec<Pin<Box<dyn Future<Output = Completion>>>> = (1..=8)
        .map(|value| {
            let data = [[0; 512], [value; 512]].concat();
            let io = fixture.nexus.execute(Some(Lun(0)), command(&cdb, &data));
            Box::pin(io.wait()) as _
        })
        .collect();
    let mut winners = 0;
    while !futures.is_empty() {
        let ended = poll_all(&mut futures);
        for index in (0..ended.len()).rev().filter(|&index| ended[index].is_some()) {
            drop(futures.remove(index));
        }
        winners += ended.iter().flatten().filter(|ended| ended.status == Status::Good).count();
    }
    assert_eq!(winners, 1);
}

#[test]
fn sbc3_5_2_a_write_waits_for_a_compare_and_write_and_the_other_way_round() {
    for write_first in [true, false] {
        let mut fixture = Fixture::new();
        fixture.store.delay_polls.store(2, Ordering::Relaxed);
        let compare = command(
            &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0],
            &[[0; 512], [2; 512]].concat(),
        );
        let write = command(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[1; 512]);
        let mut compare = Some(compare);
        let (mut first, second) = if write_first {
            let first = fixture.nexus.execute(Some(Lun(0)), write);
            (first, fixture.nexus.execute(Some(Lun(0)), compare.take().unwrap()))
        } else {
            let first = fixture.nexus.execute(Some(Lun(0)), compare.take().unwrap());
            let mut started = [Box::pin(first.wait()) as Pin<Box<dyn Future<Output = _>>>];
            poll_all(&mut started);
            let [started] = started;
            (Io::Pending(started), fixture.nexus.execute(Some(Lun(0)), write))
        };
        let Io::Pending(first_future) = &mut first else { panic!("the store is slow") };
        let mut context = Context::from_waker(Waker::noop());
        let mut second = Box::pin(second.wait());
        assert!(second.as_mut().poll(&mut context).is_pending());
        let mut first_status = None;
        for _ in 0..20 {
            if let Poll::Ready(completion) = first_future.as_mut().poll(&mut context) {
                first_status = Some(completion.status);
                break;
            }
        }
        assert_eq!(first_status, Some(Status::Good));
        let second_status = block_on(Io::Pending(second)).status;
        let expected = if write_first { Status::CheckCondition } else { Status::Good };
        assert_eq!(second_status, expected);
        assert_eq!(fixture.read(0, 1), [1; 512]);
    }
}

#[test]
fn store_errors_become_sense_data_with_the_block() {
    let mut fixture = Fixture::new();
    *fixture.store.bad_block.lock().unwrap() = Some(5);
    let sense = fixture.run(&[0x28, 0, 0, 0, 0, 4, 0, 0, 2, 0], &[]).sense.unwrap();
    assert_eq!((sense.key(), sense.additional().0), (SenseKey::MediumError, 0x1100));
    assert_eq!(sense.information(), Some(5));
    let sense = fixture.write(5, &[0; 512]).sense.unwrap();
    assert_eq!((sense.key(), sense.additional().0), (SenseKey::MediumError, 0x0c00));
    fixture.store.is_full.store(true, Ordering::Relaxed);
    let sense = fixture.write(9, &[0; 512]).sense.unwrap();
    assert_eq!((sense.key(), sense.additional().0), (SenseKey::DataProtect, 0x2707));
}

#[test]
fn a_read_only_store_refuses_every_writing_command() {
    let mut store = TestStore::new(BlockSize::B512);
    store.characteristics.read_only = true;
    let mut fixture = Fixture::over(store);
    for row in crate::command_table::TABLE {
        let writes = row.flags.contains(crate::command_table::Flags::WRITES);
        if writes && row.is_supported_by(&fixture.unit) {
            let action = row.service_action.map_or(0, |action| action as u8);
            let completion = fixture.run(&[row.operation_code, action], &[]);
            assert_eq!(additional(&completion), Some(0x2700), "{row:?}");
        }
    }
    assert_eq!(bytes(fixture.run(&[0x1a, 0, 0x3f, 0, 255, 0], &[]))[2], 0x90);
}

#[test]
fn sbc3_5_25_a_stopped_unit_is_not_ready_until_it_is_started() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.run(&[0x1b, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 1);
    for cdb in [&[0x00][..], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[0x9e, 0x10]] {
        assert_eq!(additional(&fixture.run(cdb, &[])), Some(0x0402));
    }
    assert_eq!(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0x1b, 0, 0, 0, 1, 0], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0x00], &[]).status, Status::Good);
    assert_eq!(additional(&fixture.run(&[0x1b, 0, 0, 0, 2, 0], &[])), Some(0x2400));
}

#[test]
fn sbc3_5_26_synchronize_cache_flushes() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.run(&[0x35], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0x91], &[]).status, Status::Good);
    assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), 2);
}

#[test]
fn blocks_of_4096_bytes_are_counted_as_such() {
    let mut fixture = Fixture::over(TestStore::new(BlockSize::B4096));
    let write = [0x2a, 0, 0, 0, 0, 1, 0, 0, 2, 0];
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&write)), 8192);
    assert_eq!(fixture.run(&write, &[3; 8192]).status, Status::Good);
    assert_eq!(bytes(fixture.run(&[0x28, 0, 0, 0, 0, 2, 0, 0, 1, 0], &[])), [3; 4096]);
    assert_eq!(bytes(fixture.run(&[0x25], &[]))[4..], [0, 0, 0x10, 0]);
}

#[test]
fn rfc7143_11_4_5_2_blocks_that_the_initiator_does_not_expect_are_not_read() {
    let mut fixture = Fixture::new();
    let pattern: Vec<u8> = (0..8u8).flat_map(|block| [block + 1; 512]).collect();
    fixture.write(0, &pattern);
    for (expected, blocks) in [(8 * 512, 8), (3 * 512, 3), (2 * 512 + 1, 3), (1, 1), (0, 0)] {
        let mut read = command(&[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0], &[]);
        read.expected_data_out_length = Some(0);
        read.expected_data_in_length = expected;
        let completion = block_on(fixture.nexus.execute(Some(Lun(0)), read));
        assert_eq!(completion.status, Status::Good);
        assert_eq!(completion.unread_length, (8 - blocks as u64) * 512, "for the residual");
        assert_eq!(bytes(completion), pattern[..blocks * 512], "{expected} bytes are expected");
    }
}

#[test]
fn limits_and_statistics_see_the_kind_of_a_command() {
    use crate::command_table::operation;
    use sarsen_volume::{Operation, OperationKind};

    let of = |bytes: &[u8]| {
        let mut fixed = [0; 16];
        fixed[..bytes.len()].copy_from_slice(bytes);
        operation(&Cdb::new(&fixed), DeviceType::Disk)
    };
    let kind = Operation::of;
    for (cdb, expected) in [
        (&[0x28][..], kind(OperationKind::Read)),
        (&[0x8a], kind(OperationKind::Write)),
        (&[0x89], kind(OperationKind::Write)),
        (&[0x91], kind(OperationKind::Flush)),
        (&[0x42], kind(OperationKind::Unmap)),
        (&[0x2f], kind(OperationKind::Other)),
        (&[0x34], kind(OperationKind::Other)),
        (&[0x83, 0x11], kind(OperationKind::Other)),
        (&[0x12], Operation::QUERY),
        (&[0xff], Operation::QUERY),
        (&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x09], kind(OperationKind::Read)),
        (&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 0, 0x0b], kind(OperationKind::Write)),
        (&[0x7f, 0, 0, 0, 0, 0, 0, 0x18, 1, 0x0b], Operation::OTHER),
        // Real devices support commands that disks of this server do not: READ CD.
        (&[0xbe], kind(OperationKind::Read)),
    ] {
        assert_eq!(of(cdb), expected, "{cdb:02x?}");
    }
}
