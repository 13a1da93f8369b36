//! Protection information: the tables of SBC-3's PROTECT fields, the effect of plain commands, and the reports of a
//! unit.

mod long;
mod model;
mod verifying;

use crate::testing::*;
use crate::{Completion, Lun, Protected, ProtectionType, SenseKey, Status};
use sarsen_block::layers::ProtectedStore;
use sarsen_block::{BlockSize, Buffer, Durability, Extent, Io, Store, conformance};
use std::sync::Arc;

const GUARD: u16 = 0x1001;
const APPLICATION: u16 = 0x1002;
const REFERENCE: u16 = 0x1003;
const FIELD_IN_CDB: u16 = 0x2400;

#[test]
fn the_layer_that_checks_passes_on_errors() {
    let layer = |below| {
        let below: Arc<dyn Store> = Arc::new(ProtectedStore::new(below, BlockSize::B512).unwrap());
        Protected::over(&below, Some(ProtectionType::Type1)).unwrap() as _
    };
    block_on(Io::pending(conformance::check_errors(layer)));
}

/// Computes the CRC by its definition (SBC-3 4.22.4.1).
fn crc(data: &[u8]) -> u16 {
    data.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x8bb7,
        })
    })
}

#[test]
fn sbc3_4_22_4_the_guard_is_the_crc_of_the_data() {
    assert_eq!(crc(b"123456789"), 0xd0db);
    assert_eq!(crate::protection::guard(b"123456789"), 0xd0db);
    for length in [512, 4096] {
        for data in [
            vec![0; length],
            vec![0xff; length],
            (0..length).map(|at| (at * 7 + at / 256) as u8).collect(),
        ] {
            assert_eq!(crate::protection::guard(&data), crc(&data));
        }
    }
}

/// A block with its protection information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tags {
    guard: u16,
    application: u16,
    reference: u32,
}

fn with_tags(data: &[u8], tags: Tags) -> Vec<u8> {
    let Tags { guard, application, reference } = tags;
    let (guard, application) = (guard.to_be_bytes(), application.to_be_bytes());
    [data, &guard, &application, &reference.to_be_bytes()].concat()
}

fn tags_of(block: &[u8]) -> Tags {
    let [.., g1, g0, a1, a0, r3, r2, r1, r0] = *block else { panic!("a block has tags") };
    Tags {
        guard: u16::from_be_bytes([g1, g0]),
        application: u16::from_be_bytes([a1, a0]),
        reference: u32::from_be_bytes([r3, r2, r1, r0]),
    }
}

/// Returns blocks whose data depends on their address, with a correct guard and these tags. The reference tag is
/// incremented for each block.
fn blocks(size: usize, lba: u64, count: u64, application: u16, reference: u32) -> Vec<Vec<u8>> {
    let block = |index: u64| {
        let data: Vec<u8> = (0..size).map(|at| (lba + index) as u8 ^ at as u8).collect();
        let reference = reference.wrapping_add(index as u32);
        with_tags(&data, Tags { guard: crc(&data), application, reference })
    };
    (0..count).map(block).collect()
}

const BLOCK_COUNT: u64 = 64;

fn fixture(protection_type: ProtectionType, block_size: BlockSize) -> Fixture {
    large_fixture(protection_type, block_size, BLOCK_COUNT)
}

fn large_fixture(
    protection_type: ProtectionType,
    block_size: BlockSize,
    block_count: u64,
) -> Fixture {
    let store = Arc::new(TestStore::protected(block_size, block_count));
    Fixture::of(store, Arc::default(), |parts| parts.protection = Some(protection_type))
}

/// Returns the CDB of READ(16), WRITE(16) or a similar command.
fn cdb_16(operation_code: u8, protect: u8, flags: u8, lba: u64, count: u32) -> Vec<u8> {
    let head = [operation_code, protect << 5 | flags];
    [&head[..], &lba.to_be_bytes(), &count.to_be_bytes(), &[0, 0]].concat()
}

const READ: u8 = 0x88;
const WRITE: u8 = 0x8a;

impl Fixture {
    /// Returns the content of the medium without any check.
    fn medium(&self, lba: u64, count: u64) -> Vec<Vec<u8>> {
        let store = &self.store;
        let size = store.geometry().block_size.bytes() + 8;
        let data = block_on(store.read_protected(Extent::new(lba, count))).unwrap().into_buffer();
        data.chunks(size).map(<[u8]>::to_vec).collect()
    }

    fn put_on_medium(&self, lba: u64, blocks: &[Vec<u8>]) {
        let store = &self.store;
        let data = Buffer::copy_of(&blocks.concat());
        let extent = Extent::new(lba, blocks.len() as u64);
        block_on(store.write_protected(extent, data.into(), Durability::Volatile)).unwrap();
    }

    /// Executes a command. Checks that its Data-Out has the length that it needs.
    fn run_exactly(&mut self, cdb_bytes: &[u8], data_out: &[u8]) -> Completion {
        let length = self.nexus.data_out_length(Some(Lun(0)), &cdb(cdb_bytes));
        let completion = self.run(cdb_bytes, data_out);
        if completion.status == Status::Good {
            assert_eq!(length, data_out.len(), "{cdb_bytes:02x?}");
        }
        completion
    }
}

fn outcome(completion: &Completion) -> Result<(), (u16, Option<u64>)> {
    match &completion.sense {
        None => Ok(()),
        Some(sense) => {
            if (0x1001..=0x1003).contains(&sense.additional().0) {
                assert_eq!(sense.key(), SenseKey::AbortedCommand);
            }
            Err((sense.additional().0, sense.information()))
        }
    }
}

/// A field of a block to corrupt, and the function that corrupts it.
type Spoil = (u16, fn(&mut Tags));

const SPOILT: [Spoil; 3] = [
    (GUARD, |tags| tags.guard ^= 1),
    (APPLICATION, |tags| tags.application ^= 0x80),
    (REFERENCE, |tags| tags.reference ^= 0x8000_0000),
];

fn spoil(block: &mut Vec<u8>, change: fn(&mut Tags)) {
    let mut tags = tags_of(block);
    change(&mut tags);
    *block = with_tags(&block[..block.len() - 8], tags);
}

/// Returns whether a code checks a field, with a type whose application tags the server does not know.
fn is_checked(code: u8, field: u16, protection_type: ProtectionType) -> bool {
    let reference = protection_type == ProtectionType::Type1;
    match field {
        GUARD => matches!(code, 0 | 1 | 4 | 5),
        REFERENCE => reference && matches!(code, 0 | 1 | 2 | 5),
        _ => false,
    }
}

#[test]
fn sbc3_5_10_rdprotect_transfers_and_checks_as_its_table_says() {
    for (protection_type, block_size) in [
        (ProtectionType::Type1, BlockSize::B512),
        (ProtectionType::Type1, BlockSize::B4096),
        (ProtectionType::Type3, BlockSize::B512),
    ] {
        let mut fixture = fixture(protection_type, block_size);
        let good = blocks(block_size.bytes(), 10, 5, 0x1234, 10);
        for code in 0..8 {
            fixture.put_on_medium(10, &good);
            let cdb = cdb_16(READ, code, 0, 10, 5);
            let completion = fixture.run(&cdb, &[]);
            if code > 5 {
                let field = completion.sense.unwrap().field().unwrap();
                assert_eq!((field.byte, field.bit), (1, Some(7)));
                continue;
            }
            let tail = if code == 0 { 8 } else { 0 };
            let expected: Vec<u8> =
                good.iter().flat_map(|block| &block[..block.len() - tail]).copied().collect();
            assert_eq!(bytes(completion), expected, "RDPROTECT {code}");
            for (field, change) in SPOILT {
                for position in [0, 2, 4] {
                    let mut spoilt = good.clone();
                    spoil(&mut spoilt[position], change);
                    fixture.put_on_medium(10, &spoilt);
                    let expected = if is_checked(code, field, protection_type) {
                        Err((field, Some(10 + position as u64)))
                    } else {
                        Ok(())
                    };
                    let completion = fixture.run(&cdb, &[]);
                    assert_eq!(outcome(&completion), expected, "{code}, {field:x}");
                }
            }
        }
    }
}

#[test]
fn sbc3_5_32_wrprotect_checks_before_anything_is_stored() {
    for (protection_type, block_size) in [
        (ProtectionType::Type1, BlockSize::B512),
        (ProtectionType::Type1, BlockSize::B4096),
        (ProtectionType::Type3, BlockSize::B512),
    ] {
        let mut fixture = fixture(protection_type, block_size);
        let (size, old) = (block_size.bytes(), blocks(block_size.bytes(), 90, 5, 1, 10));
        let good = blocks(size, 10, 5, 0x1234, 10);
        for code in 1..8 {
            fixture.put_on_medium(10, &old);
            let cdb = cdb_16(WRITE, code, 0, 10, 5);
            let completion = fixture.run_exactly(&cdb, &good.concat());
            if code > 5 {
                assert_eq!(additional(&completion), Some(FIELD_IN_CDB));
                assert_eq!(fixture.medium(10, 5), old);
                continue;
            }
            assert_eq!(outcome(&completion), Ok(()), "WRPROTECT {code}");
            assert_eq!(fixture.medium(10, 5), good);
            for (field, change) in SPOILT {
                for position in [0, 2, 4] {
                    let mut spoilt = good.clone();
                    spoil(&mut spoilt[position], change);
                    fixture.put_on_medium(10, &old);
                    let (expected, stored) = if is_checked(code, field, protection_type) {
                        (Err((field, Some(10 + position as u64))), &old)
                    } else {
                        (Ok(()), &spoilt)
                    };
                    let completion = fixture.run_exactly(&cdb, &spoilt.concat());
                    assert_eq!(outcome(&completion), expected, "{code}, {field:x}");
                    assert_eq!(&fixture.medium(10, 5), stored);
                }
            }
        }
    }
}

#[test]
fn sbc3_5_32_a_write_without_protection_information_brings_its_own() {
    for (protection_type, application, first, step) in [
        (ProtectionType::Type1, 0, 20, 1),
        (ProtectionType::Type2, 0xffff, u32::MAX, 0),
        (ProtectionType::Type3, 0, u32::MAX, 0),
    ] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        let data: Vec<u8> = (0..3 * 512).map(|at| (at / 3) as u8).collect();
        assert_eq!(fixture.run_exactly(&cdb_16(WRITE, 0, 0, 20, 3), &data).status, Status::Good);
        for (index, block) in (0..).zip(fixture.medium(20, 3)) {
            let guard = crc(&data[index as usize * 512..][..512]);
            let reference = first.wrapping_add(index * step);
            assert_eq!(tags_of(&block), Tags { guard, application, reference });
        }
        assert_eq!(bytes(fixture.run(&cdb_16(READ, 0, 0, 20, 3), &[])), data);
        // Also for zeroes, although an unmapped block reads as zeroes.
        fixture.run_exactly(&cdb_16(0x93, 0, 0, 20, 2), &[0; 512]);
        assert_eq!(tags_of(&fixture.medium(21, 1)[0]).guard, 0);
    }
}

#[test]
fn sbc3_4_22_2_escape_values_disable_read_checks() {
    for (protection_type, reference, escaped) in [
        (ProtectionType::Type1, 77, true),
        (ProtectionType::Type3, 77, false),
        (ProtectionType::Type3, u32::MAX, true),
    ] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        let wrong = Tags { guard: 0xdead, application: 0xffff, reference };
        fixture.put_on_medium(5, &[with_tags(&[1; 512], wrong)]);
        let expected = if escaped { Ok(()) } else { Err((GUARD, Some(5))) };
        for code in [0, 1] {
            let completion = fixture.run(&cdb_16(READ, code, 0, 5, 1), &[]);
            assert_eq!(outcome(&completion), expected, "{protection_type:?}");
        }
        // Escape tags do not disable the checks of written data.
        let written = fixture.run(&cdb_16(WRITE, 1, 0, 5, 1), &with_tags(&[1; 512], wrong));
        assert_eq!(outcome(&written), Err((GUARD, Some(5))));
    }
}

#[test]
fn sbc3_4_7_blocks_without_data_have_ffh_and_are_read_with_every_check() {
    for block_size in [BlockSize::B512, BlockSize::B4096] {
        let mut fixture = fixture(ProtectionType::Type1, block_size);
        let size = block_size.bytes();
        let blank = [vec![0; size], vec![0xff; 8]].concat();
        let read = cdb_16(READ, 1, 0, 0, 4);
        assert_eq!(bytes(fixture.run(&read, &[])), blank.repeat(4), "never written");
        let data = blocks(size, 0, 4, 0, 0).concat();
        assert_eq!(fixture.run_exactly(&cdb_16(WRITE, 1, 0, 0, 4), &data).status, Status::Good);
        let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &[0; 8], &[0, 0, 0, 2, 0, 0, 0, 0]].concat();
        let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
        assert_eq!(fixture.run(&unmap, &list).status, Status::Good);
        let half = [&blank.repeat(2)[..], &data[2 * (size + 8)..]].concat();
        assert_eq!(bytes(fixture.run(&read, &[])), half, "unmapped");
        // NDOB: SBC-3 5.42.
        assert_eq!(fixture.run(&cdb_16(0x93, 1, 1, 2, 2), &[]).status, Status::Good);
        assert_eq!(bytes(fixture.run(&read, &[])), blank.repeat(4), "zeroed");
    }
}

#[test]
fn sbc3_4_22_2_3_the_reference_tag_is_the_low_half_of_the_address() {
    let border = 1_u64 << 32;
    let mut fixture = large_fixture(ProtectionType::Type1, BlockSize::B512, border + 16);
    let good = blocks(512, border - 2, 4, 7, u32::MAX - 1);
    let write = cdb_16(WRITE, 1, 0, border - 2, 4);
    assert_eq!(fixture.run_exactly(&write, &good.concat()).status, Status::Good);
    assert_eq!(tags_of(&fixture.medium(border + 1, 1)[0]).reference, 1);
    assert_eq!(bytes(fixture.run(&cdb_16(READ, 1, 0, border - 2, 4), &[])), good.concat());
    let wrong = fixture.run(&cdb_16(WRITE, 1, 0, border, 4), &good.concat());
    assert_eq!(outcome(&wrong), Err((REFERENCE, Some(border))));
    // Also for a plain write across the border.
    let plain = cdb_16(WRITE, 0, 0, border - 1, 2);
    assert_eq!(fixture.run_exactly(&plain, &[5; 1024]).status, Status::Good);
    let tags: Vec<_> =
        fixture.medium(border - 1, 2).iter().map(|block| tags_of(block).reference).collect();
    assert_eq!(tags, [u32::MAX, 0]);
    assert_eq!(additional(&fixture.run(&cdb_16(READ, 1, 0, border + 16, 1), &[])), Some(0x2100));
    assert_eq!(additional(&fixture.run(&cdb_16(READ, 1, 0, u64::MAX, 1), &[])), Some(0x2100));
}

#[test]
fn sbc3_5_a_unit_without_protection_information_refuses_every_code() {
    let mut fixture = Fixture::new();
    for operation_code in [READ, WRITE, 0x8e, 0x8f, 0x93, 0x89] {
        for code in 1..8 {
            let mut cdb = cdb_16(operation_code, code, 0, 0, 1);
            cdb[13] = 1;
            let completion = fixture.run(&cdb, &[0; 1040]);
            assert_eq!(additional(&completion), Some(FIELD_IN_CDB), "{operation_code:02x}");
            let field = completion.sense.unwrap().field().unwrap();
            assert_eq!((field.byte, field.bit), (1, Some(7)));
        }
    }
}

#[test]
fn spc4_7_5_8_dpicz_stops_the_checks_of_plain_reads() {
    let mut fixture = fixture(ProtectionType::Type1, BlockSize::B512);
    let wrong = Tags { guard: 0xdead, application: 0, reference: 5 };
    fixture.put_on_medium(5, &[with_tags(&[1; 512], wrong)]);
    select_control(&mut fixture, 0x08, 0);
    assert_eq!(bytes(fixture.run(&cdb_16(READ, 0, 0, 5, 1), &[])), [1; 512]);
    let checked = fixture.run(&cdb_16(READ, 1, 0, 5, 1), &[]);
    assert_eq!(outcome(&checked), Err((GUARD, Some(5))));
    select_control(&mut fixture, 0, 0);
    assert_eq!(outcome(&fixture.run(&cdb_16(READ, 0, 0, 5, 1), &[])), Err((GUARD, Some(5))));
}

/// Sets bits of bytes 2 and 5 of the control page, including DPICZ and ATO, and clears others.
fn select_control(fixture: &mut Fixture, byte_2: u8, byte_5: u8) {
    let page = bytes(fixture.run(&[0x1a, 0x08, 0x0a, 0, 255, 0], &[]));
    let mut list = page;
    list[0] = 0;
    list[4] &= 0x3f;
    list[6] = list[6] & !0x08 | byte_2;
    list[9] = list[9] & !0x80 | byte_5;
    // The device-specific parameter of the header has another meaning in MODE SELECT.
    list[2] = 0;
    let select = [0x15, 0x10, 0, 0, list.len() as u8, 0];
    assert_eq!(fixture.run(&select, &list).status, Status::Good);
}

#[test]
fn sbc3_5_32_ato_makes_the_application_tags_of_plain_writes_ffffh() {
    let mut fixture = fixture(ProtectionType::Type1, BlockSize::B512);
    select_control(&mut fixture, 0, 0x80);
    fixture.run_exactly(&cdb_16(WRITE, 0, 0, 3, 1), &[1; 512]);
    let tags = Tags { guard: crc(&[1; 512]), application: 0xffff, reference: 3 };
    assert_eq!(tags_of(&fixture.medium(3, 1)[0]), tags);
}

#[test]
fn unit_reports_its_protection_and_checks() {
    for (protection_type, p_type, supported) in [
        (ProtectionType::Type1, 0x01, 0x07),
        (ProtectionType::Type2, 0x03, 0x17),
        (ProtectionType::Type3, 0x05, 0x27),
    ] {
        let mut fixture = fixture(protection_type, BlockSize::B512);
        assert_eq!(bytes(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[]))[5] & 1, 1, "PROTECT");
        let capacity = bytes(fixture.run(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], &[]));
        assert_eq!((capacity[12], capacity[13] >> 4), (p_type, 0), "P_TYPE, P_I_EXPONENT");
        let extended = bytes(fixture.run(&[0x12, 1, 0x86, 0, 64, 0], &[]));
        assert_eq!(extended[4], supported, "SPT and the checks");
        let changeable = bytes(fixture.run(&[0x1a, 0x08, 0x4a, 0, 255, 0], &[]));
        assert_eq!((changeable[6] & 0x08, changeable[9] & 0x80), (0x08, 0x80), "DPICZ, ATO");
    }
    let mut plain = Fixture::new();
    assert_eq!(bytes(plain.run(&[0x12, 0, 0, 0, 96, 0], &[]))[5] & 1, 0);
    assert_eq!(bytes(plain.run(&[0x12, 1, 0x86, 0, 64, 0], &[]))[4], 0);
    let changeable = bytes(plain.run(&[0x1a, 0x08, 0x4a, 0, 255, 0], &[]));
    assert_eq!((changeable[6] & 0x08, changeable[9] & 0x80), (0, 0));
}

#[test]
fn fcp4_9_4_2_a_write_of_fewer_blocks_than_its_cdb_counts_their_protection_information() {
    let mut fixture = fixture(ProtectionType::Type1, BlockSize::B512);
    let good = blocks(512, 0, 4, 0, 0).concat();
    for (length, status) in [(2 * 520, Status::Good), (2 * 512, Status::CheckCondition)] {
        let command = crate::Command {
            expected_data_out_length: Some(length as u64),
            ..command(&cdb_16(WRITE, 1, 0, 0, 4), &good[..length])
        };
        assert_eq!(block_on(fixture.nexus.execute(Some(Lun(0)), command)).status, status);
    }
    assert_eq!(fixture.medium(0, 2).concat(), good[..2 * 520]);
    assert_eq!(tags_of(&fixture.medium(2, 1)[0]).guard, 0xffff);
}
