//! POPULATE TOKEN, WRITE USING TOKEN and the reports on them.

use super::copy::{Second, pattern, read};
use crate::testing::*;
use crate::{Completion, Lun, NexusHandle, Status};
use sarsen_block::{BlockSize, Io};
use std::sync::atomic::Ordering;

const IMMED: u8 = 1;
const RTV: u8 = 2;
const DEL_TKN: u8 = 2;

fn descriptors(ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (lba, block_count) in ranges {
        bytes.extend(lba.to_be_bytes());
        bytes.extend(block_count.to_be_bytes());
        bytes.extend([0; 4]);
    }
    bytes
}

fn finished(mut list: Vec<u8>, ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptors = descriptors(ranges);
    list.extend((descriptors.len() as u16).to_be_bytes());
    list.extend(descriptors);
    let length = (list.len() - 2) as u16;
    list[..2].copy_from_slice(&length.to_be_bytes());
    list
}

fn populate_list(flags: u8, timeout: u32, rod_type: u32, ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut list = vec![0, 0, flags, 0];
    list.extend(timeout.to_be_bytes());
    list.extend(rod_type.to_be_bytes());
    list.extend([0; 2]);
    finished(list, ranges)
}

fn write_list(flags: u8, offset: u64, token: &[u8], ranges: &[(u64, u32)]) -> Vec<u8> {
    let mut list = vec![0, 0, flags, 0, 0, 0, 0, 0];
    list.extend(offset.to_be_bytes());
    list.extend(token);
    list.extend([0; 6]);
    finished(list, ranges)
}

fn token_cdb(action: u8, id: u32, length: usize) -> Vec<u8> {
    let mut cdb = vec![0x83, action, 0, 0, 0, 0];
    cdb.extend(id.to_be_bytes());
    cdb.extend((length as u32).to_be_bytes());
    cdb.extend([0; 2]);
    cdb
}

fn populate(nexus: &mut NexusHandle, id: u32, list: &[u8]) -> Completion {
    let cdb_bytes = token_cdb(0x10, id, list.len());
    assert_eq!(nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), list.len());
    run(nexus, &cdb_bytes, list)
}

fn write_using(nexus: &mut NexusHandle, id: u32, list: &[u8]) -> Completion {
    let cdb_bytes = token_cdb(0x11, id, list.len());
    assert_eq!(nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), list.len());
    run(nexus, &cdb_bytes, list)
}

fn about(action: u8, id: u32) -> Vec<u8> {
    let mut cdb = vec![0x84, action];
    cdb.extend(id.to_be_bytes());
    cdb.extend([0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
    cdb
}

/// The data of RECEIVE ROD TOKEN INFORMATION.
#[derive(Debug)]
struct Information {
    action: u8,
    status: u8,
    sense: Vec<u8>,
    blocks: u64,
    token: Option<Vec<u8>>,
}

fn information(nexus: &mut NexusHandle, id: u32) -> Information {
    let completion = run(nexus, &about(0x07, id), &[]);
    assert_eq!(completion.status, Status::Good);
    let bytes = bytes(completion);
    assert_eq!(bytes[..4], ((bytes.len() - 4) as u32).to_be_bytes());
    let sense_end = 32 + usize::from(bytes[13]);
    let (length, descriptors) = bytes[sense_end..].split_first_chunk::<4>().unwrap();
    assert_eq!(u32::from_be_bytes(*length) as usize, descriptors.len());
    assert_eq!(bytes[15], 0xf1, "in blocks");
    Information {
        action: bytes[4],
        status: bytes[5],
        sense: bytes[32..sense_end].to_vec(),
        blocks: u64::from_be_bytes(bytes[16..24].try_into().unwrap()),
        token: (!descriptors.is_empty()).then(|| descriptors[2..].to_vec()),
    }
}

/// Creates a token of these ranges through `nexus`.
fn token_of(nexus: &mut NexusHandle, ranges: &[(u64, u32)]) -> Vec<u8> {
    assert_eq!(populate(nexus, 1, &populate_list(IMMED, 0, 0, ranges)).status, Status::Good);
    let information = information(nexus, 1);
    let blocks: u32 = ranges.iter().map(|(_, block_count)| block_count).sum();
    assert_eq!((information.action, information.status), (0x10, 0x01));
    assert_eq!(information.blocks, blocks.into());
    information.token.expect("a token")
}

#[test]
fn sbc3_5_9_and_5_43_ranges_go_into_a_token_and_out_of_it_into_others() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    let data = pattern(12 * 512);
    fixture.write(0, &data);
    let token = token_of(&mut fixture.nexus, &[(8, 4), (0, 3), (5, 0)]);
    // SPC-4 5.17.6.4: change vulnerable, 504 bytes, the creator, bytes represented, block length.
    assert_eq!(token[..8], [0x00, 0x80, 0x00, 0x01, 0, 0, 0x01, 0xf8]);
    assert_eq!(token[16..24], [0xe4, 0, 0, 0, 1, 3, 0, 8]);
    assert_eq!(token[24..32], *fixture.unit.identity().naa.as_bytes());
    assert_eq!(token[48..64], (7u128 * 512).to_be_bytes());
    assert_eq!(token[96..100], 512u32.to_be_bytes());
    let list = write_list(0, 1, &token, &[(20, 2), (30, 4)]);
    assert_eq!(write_using(&mut second.nexus, 7, &list).status, Status::Good);
    let model = [&data[8 * 512..], &data[..3 * 512]].concat();
    assert_eq!(read(&mut second.nexus, 20, 2), model[512..3 * 512]);
    assert_eq!(read(&mut second.nexus, 30, 4), model[3 * 512..]);
    let information = information(&mut second.nexus, 7);
    assert_eq!((information.action, information.status, information.blocks), (0x11, 1, 6));
    assert_eq!((information.token, information.sense), (None, Vec::new()));
    // The token can be used again, also by another initiator, until it is deleted.
    let mut other = open(&second.device, "two");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    let last = write_list(DEL_TKN, 0, &token, &[(40, 7)]);
    assert_eq!(write_using(&mut other, 7, &last).status, Status::Good);
    assert_eq!(read(&mut second.nexus, 40, 7), model);
    assert_eq!(additional(&write_using(&mut other, 8, &last)), Some(0x2309));
}

#[test]
fn sbc3_4_28_blocks_of_the_two_units_may_differ_in_length() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B4096);
    let data = pattern(4 * 4096);
    let write = [0x2a, 0, 0, 0, 0, 2, 0, 0, 4, 0];
    assert_eq!(run(&mut second.nexus, &write, &data).status, Status::Good);
    let token = token_of(&mut second.nexus, &[(4, 2), (2, 2)]);
    let model = [&data[8192..], &data[..8192]].concat();
    // OFFSET INTO ROD counts blocks of the destination. It need not be at a block boundary of the source.
    let list = write_list(0, 3, &token, &[(0, 20)]);
    assert_eq!(write_using(&mut fixture.nexus, 1, &list).status, Status::Good);
    assert_eq!(fixture.read(0, 20), model[3 * 512..23 * 512]);
    let token = token_of(&mut fixture.nexus, &[(1, 9), (12, 7)]);
    let small = [fixture.read(1, 9), fixture.read(12, 7)].concat();
    let list = write_list(0, 0, &token, &[(9, 1), (8, 1)]);
    assert_eq!(write_using(&mut second.nexus, 1, &list).status, Status::Good);
    assert_eq!(read(&mut second.nexus, 9, 1), small[..4096]);
    assert_eq!(read(&mut second.nexus, 8, 1), small[4096..]);
}

/// Each kind of change revokes the tokens of the changed blocks, and no others.
#[test]
fn spc4_5_17_6_2_a_token_never_stands_for_data_that_changed() {
    let write_same = [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0];
    let write_zeroes = [0x93, 1, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0];
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
    let unmap_list =
        [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1], &[0; 4]];
    let unmap_list = unmap_list.concat();
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 10, 0, 0, 0, 1, 0, 0];
    let compared = [[1; 512], [2; 512]].concat();
    let ways: [(&[u8], &[u8]); 6] = [
        (&[0x2a, 0, 0, 0, 0, 10, 0, 0, 1, 0], &[2; 512]),
        (&[0x2e, 2, 0, 0, 0, 10, 0, 0, 1, 0], &[2; 512]),
        (&write_same, &[2; 512]),
        (&write_zeroes, &[]),
        (&unmap, &unmap_list),
        (&compare, &compared),
    ];
    for (cdb_bytes, data_out) in ways {
        let mut fixture = Fixture::new();
        let mut second = Second::beside(&fixture, BlockSize::B512);
        fixture.write(0, &[1; 30 * 512]);
        let touched = token_of(&mut fixture.nexus, &[(20, 2), (9, 2)]);
        let before = token_of(&mut fixture.nexus, &[(9, 1)]);
        let after = token_of(&mut fixture.nexus, &[(11, 9)]);
        assert_eq!(fixture.run(cdb_bytes, data_out).status, Status::Good, "{cdb_bytes:02x?}");
        let list = write_list(0, 0, &touched, &[(0, 1)]);
        assert_eq!(additional(&write_using(&mut second.nexus, 1, &list)), Some(0x2306));
        for kept in [before, after] {
            let list = write_list(0, 0, &kept, &[(0, 1)]);
            assert_eq!(write_using(&mut second.nexus, 1, &list).status, Status::Good);
        }
        assert_eq!(read(&mut second.nexus, 0, 1), [1; 512]);
    }
}

#[test]
fn a_source_that_changes_while_it_is_copied_ends_the_copy_before_a_wrong_byte_is_written() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    fixture.write(0, &[1; 4 * 512]);
    let token = token_of(&mut fixture.nexus, &[(0, 4)]);
    let list = write_list(0, 0, &token, &[(0, 1), (8, 3)]);
    // The second range waits for its source while another command writes it.
    second.store.delay_polls.store(3, Ordering::Relaxed);
    let cdb_bytes = token_cdb(0x11, 5, list.len());
    let Io::Pending(mut writing) = second.nexus.execute(Some(Lun(0)), command(&cdb_bytes, &list))
    else {
        panic!("a store that takes its time")
    };
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(writing.as_mut().poll(&mut context).is_pending());
    fixture.write(3, &[2; 512]);
    assert_eq!(additional(&block_on(Io::Pending(writing))), Some(0x2306));
    second.store.delay_polls.store(0, Ordering::Relaxed);
    assert_eq!(read(&mut second.nexus, 0, 1), [1; 512]);
    assert_eq!(read(&mut second.nexus, 8, 3), [0; 3 * 512]);
    let information = information(&mut second.nexus, 5);
    assert_eq!((information.status, information.blocks), (2, 1), "what was written is told");
    assert_eq!(information.sense[12..14], [0x23, 0x06]);
}

#[test]
fn sbc3_4_28_4_the_zero_token_writes_zeroes() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 8 * 512]);
    let mut zero = vec![0; 512];
    zero[..8].copy_from_slice(&[0xff, 0xff, 0, 1, 0, 0, 0x01, 0xf8]);
    let list = write_list(0, 0, &zero, &[(1, 2), (6, 1)]);
    assert_eq!(write_using(&mut fixture.nexus, 3, &list).status, Status::Good);
    for (block, expected) in [1, 0, 0, 1, 1, 1, 0, 1].into_iter().enumerate() {
        assert_eq!(fixture.read(block as u8, 1), [expected; 512]);
    }
    assert_eq!(information(&mut fixture.nexus, 3).blocks, 3);
}

#[test]
fn spc4_5_17_6_5_a_token_that_was_not_made_here_is_refused() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let token = token_of(&mut fixture.nexus, &[(0, 1)]);
    let altered = |index: usize| {
        let mut token = token.clone();
        token[index] ^= 1;
        token
    };
    for (token, code) in [
        (altered(7), 0x230a),
        (altered(1), 0x2301),
        (altered(8), 0x2304),
        (altered(63), 0x2305),
        (altered(511), 0x2305),
        (vec![0; 512], 0x230a),
    ] {
        let completion = write_using(&mut fixture.nexus, 2, &write_list(0, 0, &token, &[(9, 1)]));
        let sense = completion.sense.expect("refused");
        assert_eq!((sense.additional().0, sense.field().unwrap().byte), (code, 16));
    }
    // The public management data of a token is not sufficient to use it.
    let list = bytes(fixture.run(&about(0x08, 0), &[]));
    assert_eq!(list[..8], [0, 0, 0, 100, 0, 0, 0, 0]);
    assert_eq!(list[8..], token[..96]);
    let mut forged = token[..96].to_vec();
    forged.resize(512, 0);
    let forged = write_list(0, 0, &forged, &[(9, 1)]);
    assert_eq!(additional(&write_using(&mut fixture.nexus, 2, &forged)), Some(0x2305));
    let mut other = open(&fixture.device, "two");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    assert_eq!(bytes(run(&mut other, &about(0x08, 0), &[])), [0, 0, 0, 4, 0, 0, 0, 0]);
    assert_eq!(fixture.read(9, 1), [0; 512]);
}

#[test]
fn spc4_5_17_6_6_unused_token_expires() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let token = token_of(&mut fixture.nexus, &[(0, 1)]);
    let list = write_list(0, 0, &token, &[(9, 1)]);
    let host = fixture.host.clone();
    let later = |ms: u64| {
        host.unix_time_ms.fetch_add(ms, Ordering::Relaxed);
    };
    for _ in 0..2 {
        later(60_000);
        assert_eq!(write_using(&mut fixture.nexus, 2, &list).status, Status::Good);
    }
    later(60_001);
    assert_eq!(additional(&write_using(&mut fixture.nexus, 2, &list)), Some(0x2307));
    let asked = populate_list(0, 5, 0, &[(0, 1)]);
    assert_eq!(populate(&mut fixture.nexus, 3, &asked).status, Status::Good);
    let token = information(&mut fixture.nexus, 3).token.unwrap();
    later(5_001);
    let list = write_list(0, 0, &token, &[(9, 1)]);
    assert_eq!(additional(&write_using(&mut fixture.nexus, 2, &list)), Some(0x2307));
}

#[test]
fn tokens_of_an_initiator_are_bounded_and_the_idlest_gives_way() {
    let mut fixture = Fixture::new();
    let first = token_of(&mut fixture.nexus, &[(0, 1)]);
    fixture.host.unix_time_ms.fetch_add(1, Ordering::Relaxed);
    for _ in 0..256 {
        token_of(&mut fixture.nexus, &[(0, 1)]);
    }
    let list = write_list(0, 0, &first, &[(9, 1)]);
    assert_eq!(additional(&write_using(&mut fixture.nexus, 2, &list)), Some(0x2308));
    let all = run(&mut fixture.nexus, &[0x84, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], &[]);
    assert_eq!(bytes(all).len(), 8 + 256 * 96);
}

#[test]
fn sbc3_5_9_2_a_list_is_checked_before_it_has_an_effect() {
    let mut fixture = Fixture::new();
    let good = populate_list(0, 0, 0, &[(0, 1)]);
    let with = |index: usize, value: u8| {
        let mut list = good.clone();
        list[index] = value;
        list
    };
    let most: Vec<_> = (0..256).map(|lba| (lba, 1)).collect();
    let too_many: Vec<_> = (0..257).map(|lba| (lba, 1)).collect();
    for (list, code, byte) in [
        (good[..15].to_vec(), 0x1a00, None),
        (good[..31].to_vec(), 0x1a00, None),
        (with(1, 29), 0x2600, Some(0)),
        (with(15, 15), 0x2600, Some(14)),
        (with(15, 17), 0x2600, Some(14)),
        (populate_list(0, 601, 0, &[(0, 1)]), 0x2600, Some(4)),
        (populate_list(RTV, 0, 0x0080_0002, &[(0, 1)]), 0x2600, Some(8)),
        (populate_list(RTV, 0, 0x0001_0000, &[(0, 1)]), 0x2600, Some(8)),
        (populate_list(0, 0, 0, &too_many), 0x2608, Some(14)),
        (populate_list(0, 0, 0, &[(0, 2), (8, 1), (1, 1)]), 0x2600, Some(16)),
        (populate_list(0, 0, 0, &[(BLOCKS, 1)]), 0x2100, None),
        (populate_list(0, 0, 0, &[(u64::MAX, 1)]), 0x2100, None),
        (populate_list(0, 0, 0, &[(0, u32::MAX)]), 0x2100, None),
    ] {
        let sense = populate(&mut fixture.nexus, 1, &list).sense.expect("refused");
        let field = sense.field().map(|field| field.byte);
        assert_eq!((sense.additional().0, field), (code, byte), "{list:02x?}");
    }
    assert_eq!(additional(&fixture.run(&about(0x07, 1), &[])), Some(0x2400));
    for list in [
        populate_list(0, 600, 0, &most),
        populate_list(RTV, 0, 0x0080_0000, &[(0, 1)]),
        populate_list(RTV, 0, 0x0080_0001, &[(0, 1)]),
        populate_list(RTV, 0, 0x0080_ffff, &[(0, 1)]),
        populate_list(0, 0, 0, &[(BLOCKS, 0)]),
        Vec::new(),
    ] {
        assert_eq!(populate(&mut fixture.nexus, 1, &list).status, Status::Good);
    }
    assert!(information(&mut fixture.nexus, 1).token.is_none(), "nothing was represented");
    let token = token_of(&mut fixture.nexus, &[(0, 4)]);
    for (list, code, byte) in [
        (write_list(0, 4, &token, &[(0, 1)]), 0x2600, Some(8)),
        (write_list(0, u64::MAX, &token, &[(0, 1)]), 0x2600, Some(8)),
        (write_list(0, 1 << 55, &token, &[(0, 1)]), 0x2600, Some(8)),
        (write_list(0, 1, &token, &[(8, 3), (16, 1)]), 0x2600, Some(534)),
        (write_list(0, 0, &token, &[(8, 3), (10, 1)]), 0x2600, Some(536)),
        (write_list(0, 0, &token, &[(BLOCKS - 1, 2)]), 0x2100, None),
        (write_list(0, 0, &token, &[]), 0x2600, Some(0)),
    ] {
        let sense = write_using(&mut fixture.nexus, 1, &list).sense.expect("refused");
        let field = sense.field().map(|field| field.byte);
        assert_eq!((sense.additional().0, field), (code, byte));
    }
    let too_long = token_cdb(0x10, 1, 16 + 258 * 16);
    assert_eq!(additional(&fixture.run(&too_long, &[])), Some(0x2400));
}

#[test]
fn sbc3_5_43_immed_goes_on_after_its_status_and_can_be_aborted() {
    let mut fixture = Fixture::new();
    let data = pattern(4 * 512);
    fixture.write(0, &data);
    let token = token_of(&mut fixture.nexus, &[(0, 4)]);
    let list = write_list(IMMED, 0, &token, &[(10, 2), (20, 2)]);
    assert_eq!(write_using(&mut fixture.nexus, 2, &list).status, Status::Good);
    let before = information(&mut fixture.nexus, 2);
    assert_eq!((before.status, before.blocks), (0x12, 0));
    assert_eq!(additional(&write_using(&mut fixture.nexus, 2, &list)), Some(0x0016));
    let host = fixture.host.clone();
    host.run_work();
    let after = information(&mut fixture.nexus, 2);
    assert_eq!((after.status, after.blocks), (0x01, 4));
    assert_eq!(fixture.read(20, 2), data[1024..]);
    let abort = |id: u32| [&[0x83, 0x1c][..], &id.to_be_bytes(), &[0; 10]].concat();
    assert_eq!(additional(&fixture.run(&abort(2), &[])), Some(0x2400));
    let list = write_list(IMMED, 0, &token, &[(30, 4)]);
    assert_eq!(write_using(&mut fixture.nexus, 3, &list).status, Status::Good);
    assert_eq!(fixture.run(&abort(3), &[]).status, Status::Good);
    host.run_work();
    let status = bytes(fixture.run(&about(0x05, 3), &[]));
    assert_eq!((status.len(), status[4], status[5], status[15]), (32, 0x11, 0x60, 0));
    assert_eq!(fixture.read(30, 4), [0; 4 * 512]);
}

#[test]
fn background_operation_ends_with_its_nexus_or_reset() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    let token = token_of(&mut fixture.nexus, &[(0, 1)]);
    let host = fixture.host.clone();
    let mut other = open(&fixture.device, "two");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    let list = write_list(IMMED, 0, &token, &[(10, 1)]);
    assert_eq!(write_using(&mut other, 2, &list).status, Status::Good);
    other.close();
    host.run_work();
    let list = write_list(IMMED, 0, &token, &[(11, 1)]);
    assert_eq!(write_using(&mut fixture.nexus, 2, &list).status, Status::Good);
    assert!(fixture.nexus.logical_unit_reset(Lun(0)));
    host.run_work();
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x2903));
    assert_eq!(fixture.read(10, 2), [0; 1024]);
}
