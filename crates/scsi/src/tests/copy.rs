//! EXTENDED COPY and the reports on it.

use crate::command_table::TABLE;
use crate::copy::page::COMMANDS;
use crate::testing::*;
use crate::{Completion, Identity, LogicalUnit, Lun, NexusHandle, SenseKey, Status, TargetDevice};
use sarsen_block::BlockSize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A target of the fixture's array with one unit, and the initiator's nexus to it.
pub(super) struct Second {
    pub(super) store: Arc<TestStore>,
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) device: Arc<TargetDevice>,
    pub(super) nexus: NexusHandle,
}

impl Second {
    pub(super) fn beside(fixture: &Fixture, block_size: BlockSize) -> Self {
        let store = Arc::new(TestStore::new(block_size));
        let identity = Identity::new("other", "iqn.2026-01.example:u");
        let unit = disk(identity, store.clone());
        let luns = BTreeMap::from([(Lun(0), unit.clone())]);
        let device = TargetDevice::new(&fixture.array, "iqn.2026-01.example:u".into(), luns);
        let mut nexus = open(&device, "one");
        assert_eq!(additional(&run(&mut nexus, &[0], &[])), Some(0x2900));
        Self { store, unit, device, nexus }
    }
}

fn block_length(unit: &LogicalUnit) -> usize {
    unit.store().geometry().block_size.bytes()
}

pub(super) fn cscd(unit: &LogicalUnit) -> Vec<u8> {
    let mut bytes = vec![0xe4, 0, 0, 0, 1, 3, 0, 8];
    bytes.extend(unit.identity().naa.as_bytes());
    bytes.resize(28, 0);
    bytes.extend((block_length(unit) as u32).to_be_bytes());
    bytes
}

/// Returns a block to block segment, from `from` in the first unit of the list to `to` in the unit `destination`.
pub(super) fn segment(flags: u8, destination: u16, count: u16, from: u64, to: u64) -> Vec<u8> {
    let mut bytes = vec![0x02, flags, 0, 24, 0, 0];
    bytes.extend(destination.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend(count.to_be_bytes());
    bytes.extend(from.to_be_bytes());
    bytes.extend(to.to_be_bytes());
    bytes
}

/// Returns a segment with offsets in bytes, between the first two units of the list.
pub(super) fn offset_segment(bytes: u32, from: (u64, u16), to: (u64, u16)) -> Vec<u8> {
    let mut segment = vec![0x0a, 0, 0, 28, 0, 0, 0, 1];
    segment.extend(bytes.to_be_bytes());
    segment.extend(from.0.to_be_bytes());
    segment.extend(to.0.to_be_bytes());
    segment.extend(from.1.to_be_bytes());
    segment.extend(to.1.to_be_bytes());
    segment
}

pub(super) fn list(id: u8, usage: u8, cscds: &[Vec<u8>], segments: &[Vec<u8>]) -> Vec<u8> {
    let (cscds, segments) = (cscds.concat(), segments.concat());
    let mut list = vec![id, usage << 3];
    list.extend((cscds.len() as u16).to_be_bytes());
    list.extend([0; 4]);
    list.extend((segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    [list, cscds, segments].concat()
}

fn extended_copy_cdb(length: usize) -> Vec<u8> {
    let mut cdb = vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    cdb.extend((length as u32).to_be_bytes());
    cdb.extend([0; 2]);
    cdb
}

pub(super) fn copy(nexus: &mut NexusHandle, list: &[u8]) -> Completion {
    let cdb_bytes = extended_copy_cdb(list.len());
    run(nexus, &cdb_bytes, list)
}

pub(super) fn read(nexus: &mut NexusHandle, lba: u8, block_count: u8) -> Vec<u8> {
    let completion = run(nexus, &[0x28, 0, 0, 0, 0, lba, 0, 0, block_count, 0], &[]);
    assert_eq!(completion.status, Status::Good);
    bytes(completion)
}

/// Returns bytes whose values depend on their position.
pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32)
        .flat_map(|word| word.wrapping_mul(2_654_435_761).to_be_bytes())
        .take(length)
        .collect()
}

/// Returns the sense key, the code, the segment and the field of a failure.
fn failure(completion: &Completion) -> (SenseKey, u16, Option<u64>, Option<u16>) {
    let sense = completion.sense.as_ref().expect("sense data");
    let bytes = sense.in_descriptor_format(false).to_bytes();
    let segment = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    let field = sense.field().map(|field| field.byte);
    (sense.key(), sense.additional().0, Some(segment.into()), field)
}

#[test]
fn spc4_6_5_blocks_go_to_a_unit_of_another_target() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    let data = pattern(8 * 512);
    fixture.write(3, &data);
    let cscds = [cscd(&fixture.unit), cscd(&second.unit)];
    let list = list(1, 0, &cscds, &[segment(0, 1, 5, 3, 7), segment(2, 1, 3, 8, 20)]);
    let cdb_bytes = extended_copy_cdb(list.len());
    assert_eq!(fixture.nexus.data_out_length(Some(Lun(0)), &cdb(&cdb_bytes)), list.len());
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    assert_eq!(read(&mut second.nexus, 6, 7), [&[0; 512], &data[..5 * 512], &[0; 512]].concat());
    assert_eq!(read(&mut second.nexus, 20, 3), data[5 * 512..]);
    // The other direction, with the command to the other unit.
    let back = list_between(&second.unit, &fixture.unit, segment(0, 1, 3, 20, 100));
    assert_eq!(copy(&mut second.nexus, &back).status, Status::Good);
    assert_eq!(fixture.read(100, 3), data[5 * 512..]);
}

pub(super) fn list_between(from: &LogicalUnit, to: &LogicalUnit, segment: Vec<u8>) -> Vec<u8> {
    list(0, 3, &[cscd(from), cscd(to)], &[segment])
}

#[test]
fn spc4_6_4_5_6_a_unit_is_named_as_its_identification_page_names_it() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[7; 512]);
    let naa = fixture.unit.identity().naa;
    let mut name = cscd(&fixture.unit);
    name[4..8].copy_from_slice(&[3, 8, 0, 20]);
    name[8..28].copy_from_slice(format!("naa.{naa}").as_bytes());
    let itself = |cscd: &[u8], to: u64| list(0, 3, &[cscd.to_vec()], &[segment(0, 0, 1, 0, to)]);
    assert_eq!(copy(&mut fixture.nexus, &itself(&name, 1)).status, Status::Good);
    assert_eq!(fixture.read(1, 1), [7; 512]);
    // FFFFh is the unit to which the command was addressed.
    let mut own = segment(0, 0xffff, 1, 0, 2);
    own[4..6].copy_from_slice(&[0xff, 0xff]);
    assert_eq!(copy(&mut fixture.nexus, &list(0, 3, &[], &[own])).status, Status::Good);
    assert_eq!(fixture.read(2, 1), [7; 512]);
    let altered = |index: usize, value: u8| {
        let mut cscd = cscd(&fixture.unit);
        cscd[index] = value;
        cscd
    };
    for (cscd, code, byte) in [
        (altered(15, 0xff), 0x0d02, 16),
        // Designators of a target port, of another type, of another code set, and an empty one.
        (altered(5, 0x13), 0x0d02, 16),
        (altered(5, 0x01), 0x0d02, 16),
        (altered(4, 0x02), 0x0d02, 16),
        (altered(7, 0x00), 0x0d02, 16),
        // A CD, and a wrong block length.
        (altered(1, 0x05), 0x0d03, 17),
        (altered(30, 0x10), 0x2600, 16 + 29),
    ] {
        let completion = copy(&mut fixture.nexus, &itself(&cscd, 3));
        let expected = (SenseKey::CopyAborted, code, Some(0), Some(byte));
        assert_eq!(failure(&completion), expected, "{cscd:02x?}");
    }
    assert_eq!(fixture.read(3, 1), [0; 512]);
}

/// CVE-2020-28374: a designator does not authorise the access.
#[test]
fn initiator_copies_only_between_units_that_it_can_access() {
    let mut fixture = Fixture::new();
    let second = Second::beside(&fixture, BlockSize::B512);
    fixture.write(0, &[7; 512]);
    let out = list_between(&fixture.unit, &second.unit, segment(0, 1, 1, 0, 0));
    let into = list_between(&second.unit, &fixture.unit, segment(0, 1, 1, 0, 0));
    let Second { device, nexus, unit, .. } = second;
    nexus.close();
    // Another initiator's nexus is not accepted, nor is one with a similar name.
    let _others = [open(&device, "two"), open(&device, "one,i,0x9"), open(&device, "on")];
    for (list, byte) in [(&out, 48), (&into, 16)] {
        let completion = copy(&mut fixture.nexus, list);
        let expected = (SenseKey::CopyAborted, 0x0d02, Some(0), Some(byte));
        assert_eq!(failure(&completion), expected);
    }
    assert_eq!(fixture.read(0, 1), [7; 512]);
    let mut nexus = open(&device, "one");
    assert_eq!(copy(&mut fixture.nexus, &out).status, Status::Good);
    assert_eq!(additional(&run(&mut nexus, &[0], &[])), Some(0x2900), "the copy told no attention");
    assert_eq!(read(&mut nexus, 0, 1), [7; 512]);
    // The unit is removed from the target.
    device.set_luns(BTreeMap::new());
    assert_eq!(additional(&copy(&mut fixture.nexus, &out)), Some(0x0d02));
    drop(unit);
}

#[test]
fn copy_is_refused_where_read_and_write_are() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    let list = list_between(&fixture.unit, &second.unit, segment(0, 1, 1, 0, 0));
    let mut other = open(&second.device, "two");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    assert_eq!(run(&mut other, &[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    let refused = (SenseKey::CopyAborted, 0x0d01, Some(0), Some(48));
    assert_eq!(failure(&copy(&mut fixture.nexus, &list)), refused);
    assert_eq!(run(&mut other, &[0x17, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    assert_eq!(run(&mut second.nexus, &[0x1b, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(failure(&copy(&mut fixture.nexus, &list)), refused);
    assert_eq!(run(&mut second.nexus, &[0x1b, 0, 0, 0, 1, 0], &[]).status, Status::Good);
    // A verify segment with TUR checks the same for one unit.
    let verify = |tur: u8| vec![0x07, 0, 0, 8, 0, 1, 0, 0, tur, 0, 0, 0];
    let cscds = [cscd(&fixture.unit), cscd(&second.unit)];
    let verify = |tur| super::copy::list(0, 3, &cscds, &[verify(tur)]);
    assert_eq!(copy(&mut fixture.nexus, &verify(1)).status, Status::Good);
    assert_eq!(run(&mut second.nexus, &[0x1b, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    assert_eq!(copy(&mut fixture.nexus, &verify(0)).status, Status::Good);
    assert_eq!(failure(&copy(&mut fixture.nexus, &verify(1))), refused);
}

#[test]
fn spc4_5_17_7_4_a_failure_names_its_segment_and_the_unit_that_failed() {
    let mut fixture = Fixture::new();
    let second = Second::beside(&fixture, BlockSize::B512);
    *second.store.bad_block.lock().unwrap() = Some(11);
    let cscds = [cscd(&fixture.unit), cscd(&second.unit)];
    let segments = [segment(0, 1, 4, 0, 0), segment(0, 1, 4, 0, 8), segment(0, 1, 4, 0, 16)];
    fixture.write(0, &[1; 4 * 512]);
    let list = list(9, 0, &cscds, &segments);
    let completion = copy(&mut fixture.nexus, &list);
    let expected = (SenseKey::CopyAborted, 0x0d01, Some(1), Some(48));
    assert_eq!(failure(&completion), expected);
    // RECEIVE COPY STATUS(LID1): failed, one segment, the number of its bytes.
    let status = bytes(fixture.run(&[0x84, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0], &[]));
    assert_eq!(status, [0, 0, 0, 8, 2, 0, 1, 0, 0, 0, 8, 0]);
    let details = [0x84, 4, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
    let bytes = bytes(fixture.run(&details, &[]));
    assert_eq!((bytes[..4].to_vec(), bytes[56]), (vec![0, 0, 0, 74], 2));
    assert_eq!(bytes[58..62], [0, 18, 0x70, 0]);
    assert_eq!((bytes[62], &bytes[72..74]), (0x0a, &[0x0d, 0x01][..]));
    assert_eq!(additional(&fixture.run(&details, &[])), Some(0x2400), "they are told once");
}

#[test]
fn spc4_6_5_2_a_list_is_checked_before_anything_is_copied() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[7; 512]);
    let own = cscd(&fixture.unit);
    let good = segment(0, 0, 1, 0, 9);
    let with = |segment: Vec<u8>| list(1, 0, std::slice::from_ref(&own), &[good.clone(), segment]);
    let header = |index: usize, value: u8| {
        let mut list = with(good.clone());
        list[index] = value;
        list
    };
    let mut other_type = own.clone();
    other_type[0] = 0xe0;
    let mut long_name = own.clone();
    long_name[7] = 21;
    let mut wrong_length = good.clone();
    wrong_length[3] = 23;
    let whole = with(good.clone());
    for (list, code, byte) in [
        (whole[..15].to_vec(), 0x1a00, None),
        (whole[..40].to_vec(), 0x1a00, None),
        (whole[..whole.len() - 1].to_vec(), 0x1a00, None),
        (header(3, 31), 0x2600, Some(2)),
        (header(10, 0xff), 0x1a00, None),
        (header(15, 4), 0x260b, Some(12)),
        (header(1, 0x08), 0x2600, Some(1)),
        (header(1, 0x18), 0x2600, Some(0)),
        (list(0, 3, &[own.clone(), other_type], &[]), 0x2607, Some(48)),
        (list(0, 3, &[own.clone(), long_name], &[]), 0x2600, Some(55)),
        (list(0, 3, &vec![own.clone(); 65], &[]), 0x2606, Some(16 + 64 * 32)),
        (
            list(0, 3, std::slice::from_ref(&own), &vec![good.clone(); 257]),
            0x2608,
            Some(48 + 256 * 28),
        ),
        (with(vec![0x03; 28]), 0x2609, Some(48 + 28)),
        (with(wrong_length), 0x2600, Some(48 + 28 + 2)),
        (with(vec![0x02, 0]), 0x1a00, None),
    ] {
        let completion = copy(&mut fixture.nexus, &list);
        let sense = completion.sense.expect("refused");
        assert_eq!(sense.key(), SenseKey::IllegalRequest);
        assert_eq!((sense.additional().0, sense.field().map(|field| field.byte)), (code, byte));
    }
    assert_eq!(fixture.read(9, 1), [0; 512]);
    assert_eq!(fixture.run(&extended_copy_cdb(0), &[]).status, Status::Good);
    let too_long = extended_copy_cdb(16 + (16 << 10) + 1);
    assert_eq!(additional(&fixture.run(&too_long, &[])), Some(0x1a00));
}

#[test]
fn spc4_6_4_6_addresses_of_a_segment_are_held_against_the_medium() {
    let mut fixture = Fixture::new();
    for (segment, code, byte) in [
        (segment(0, 1, 1, 0, 0), 0x0804, 48 + 6),
        (segment(0, 0, 2, BLOCKS - 1, 0), 0x0000, 48 + 12),
        (segment(0, 0, 2, u64::MAX, 0), 0x0000, 48 + 12),
        (segment(0, 0, 2, 0, BLOCKS - 1), 0x0000, 48 + 20),
        (segment(2, 0, 2, 0, u64::MAX - 1), 0x0000, 48 + 20),
    ] {
        let list = list(0, 3, &[cscd(&fixture.unit)], &[segment]);
        let completion = copy(&mut fixture.nexus, &list);
        assert_eq!(failure(&completion), (SenseKey::CopyAborted, code, Some(0), Some(byte)));
    }
    let own = [cscd(&fixture.unit), cscd(&fixture.unit)];
    for (segment, code, byte) in [
        (offset_segment((1 << 28) + 1, (0, 0), (0, 0)), 0x2600, 80 + 8),
        (offset_segment(1, (0, 512), (0, 0)), 0x2600, 80 + 28),
        (offset_segment(1, (0, 0), (0, 512)), 0x2600, 80 + 30),
        (offset_segment(512, (BLOCKS - 1, 1), (0, 0)), 0x0000, 80 + 12),
        (offset_segment(512, (0, 0), (BLOCKS - 1, 1)), 0x0000, 80 + 20),
    ] {
        let completion = copy(&mut fixture.nexus, &list(0, 3, &own, &[segment]));
        assert_eq!(failure(&completion), (SenseKey::CopyAborted, code, Some(0), Some(byte)));
    }
    // The last block, and zero blocks directly after it.
    let last = list(0, 3, &[cscd(&fixture.unit)], &[segment(0, 0, 1, BLOCKS - 1, 0)]);
    assert_eq!(copy(&mut fixture.nexus, &last).status, Status::Good);
    let none = list(0, 3, &[cscd(&fixture.unit)], &[segment(0, 0, 0, BLOCKS, BLOCKS)]);
    assert_eq!(copy(&mut fixture.nexus, &none).status, Status::Good);
}

#[test]
fn spc4_5_17_7_3_blocks_of_different_lengths_are_copied_exactly_padded_or_not_at_all() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B4096);
    let data = pattern(24 * 512);
    fixture.write(0, &data);
    let exact = list_between(&fixture.unit, &second.unit, segment(0, 1, 16, 0, 1));
    assert_eq!(copy(&mut fixture.nexus, &exact).status, Status::Good);
    assert_eq!(read(&mut second.nexus, 1, 2), data[..8192]);
    // DC: the count is in blocks of the destination.
    let counted = list_between(&fixture.unit, &second.unit, segment(2, 1, 1, 8, 4));
    assert_eq!(copy(&mut fixture.nexus, &counted).status, Status::Good);
    assert_eq!(read(&mut second.nexus, 4, 1), data[4096..8192]);
    let inexact = segment(0, 1, 17, 0, 8);
    let list_with = |pads: [u8; 2], segment: Vec<u8>| {
        let mut cscds = [cscd(&fixture.unit), cscd(&second.unit)];
        cscds[0][28] = pads[0];
        cscds[1][28] = pads[1];
        list(0, 3, &cscds, &[segment])
    };
    let lists = [
        (list_with([0, 0], inexact.clone()), Some(0x260a), [0; 512]),
        (list_with([4, 4], segment(1, 1, 17, 0, 8)), Some(0x260a), [0; 512]),
        // PAD of the source drops the residual data; PAD of the destination fills the block.
        (list_with([4, 0], inexact.clone()), None, [0; 512]),
        (list_with([0, 4], inexact), None, data[16 * 512..17 * 512].try_into().unwrap()),
    ];
    assert_eq!(
        run(&mut second.nexus, &[0x2a, 0, 0, 0, 0, 10, 0, 0, 1, 0], &[9; 4096]).status,
        Status::Good
    );
    for (index, (list, code, tail)) in lists.into_iter().enumerate() {
        assert_eq!(additional(&copy(&mut fixture.nexus, &list)), code, "{index}");
        let third = read(&mut second.nexus, 10, 1);
        match index {
            3 => assert_eq!(third, [&tail[..], &[0; 3584]].concat()),
            _ => assert_eq!(third, [9; 4096], "{index}"),
        }
    }
    assert_eq!(read(&mut second.nexus, 8, 2), data[..8192]);
}

#[test]
fn spc4_6_4_6_12_byte_offsets_keep_surrounding_data() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B4096);
    let data = pattern(64 * 512);
    fixture.write(0, &data);
    let ones = [1; 4 * 4096];
    assert_eq!(
        run(&mut second.nexus, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 4, 0], &ones).status,
        Status::Good
    );
    let list = list_between(&fixture.unit, &second.unit, offset_segment(9000, (1, 100), (0, 4000)));
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    let expected = [&ones[..4000], &data[612..9612], &ones[13000..]].concat();
    assert_eq!(read(&mut second.nexus, 0, 4), expected);
}

#[test]
fn a_copy_within_a_unit_may_overlap_itself() {
    let mut fixture = Fixture::new();
    // More than one piece, and a last piece that is incomplete.
    let (blocks, count) = (3072, 2500);
    for (from, to) in [(0u64, 5u64), (5, 0), (7, 7), (0, 500), (500, 0)] {
        let mut model = pattern(blocks * 512);
        let write = [0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 0, 0];
        assert_eq!(fixture.run(&write, &model).status, Status::Good);
        let list = list(0, 3, &[cscd(&fixture.unit)], &[segment(0, 0, count, from, to)]);
        assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
        let start = from as usize * 512;
        model.copy_within(start..start + usize::from(count) * 512, to as usize * 512);
        let all = [0x88, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0c, 0, 0, 0];
        assert!(bytes(fixture.run(&all, &[])) == model, "{from} to {to}");
    }
}

#[test]
fn a_hole_in_the_source_is_a_hole_in_the_destination() {
    let mut fixture = Fixture::new();
    let mut second = Second::beside(&fixture, BlockSize::B512);
    fixture.write(0, &[7; 512]);
    fixture.write(9, &[7; 512]);
    let ones = [1; 16 * 512];
    assert_eq!(
        run(&mut second.nexus, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 16, 0], &ones).status,
        Status::Good
    );
    let list = list_between(&fixture.unit, &second.unit, segment(0, 1, 12, 0, 0));
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    let expected = [&[7; 512][..], &[0; 8 * 512], &[7; 512], &[0; 1024], &[1; 4 * 512]].concat();
    assert_eq!(read(&mut second.nexus, 0, 16), expected);
    let get = [0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 56, 0, 0];
    let status = bytes(run(&mut second.nexus, &get, &[]));
    let runs: Vec<_> = status[8..].chunks(16).map(|run| (run[7], run[11], run[12])).collect();
    assert_eq!(runs, [(0, 1, 0), (1, 8, 1), (9, 1, 0)]);
}

#[test]
fn spc4_6_25_a_status_is_kept_as_the_list_asks_and_is_the_nexus_s_own() {
    let mut fixture = Fixture::new();
    let status = |id: u8| [0x84, 0, id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    let own = [cscd(&fixture.unit)];
    let segment = segment(0, 0, 2, 0, 4);
    assert_eq!(additional(&fixture.run(&status(5), &[])), Some(0x2400));
    for (id, usage) in [(5, 0), (6, 2), (0, 3)] {
        let list = list(id, usage, &own, std::slice::from_ref(&segment));
        assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    }
    assert_eq!(bytes(fixture.run(&status(5), &[])), [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 4, 0]);
    assert_eq!(additional(&fixture.run(&status(6), &[])), Some(0x2400));
    assert_eq!(additional(&fixture.run(&status(0), &[])), Some(0x2400));
    let data = [0x84, 1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(bytes(fixture.run(&data, &[])), [0; 4]);
    let details = [0x84, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(bytes(fixture.run(&details, &[])), [0; 4]);
    let mut other = open(&fixture.device, "one");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    assert_eq!(additional(&run(&mut other, &status(5), &[])), Some(0x2400));
    // A list whose record is not kept replaces the record of the same identifier.
    assert_eq!(copy(&mut fixture.nexus, &list(5, 2, &own, &[])).status, Status::Good);
    assert_eq!(additional(&fixture.run(&status(5), &[])), Some(0x2400));
}

#[test]
fn spc4_5_17_4_an_identifier_in_use_is_refused_and_a_dropped_copy_has_failed() {
    let mut fixture = Fixture::new();
    let second = Second::beside(&fixture, BlockSize::B512);
    fixture.write(0, &[1; 512]);
    let own = [cscd(&fixture.unit), cscd(&second.unit)];
    let list = list(5, 0, &own, &[segment(0, 1, 1, 0, 4), segment(0, 1, 1, 0, 5)]);
    second.store.delay_polls.store(usize::MAX, Ordering::Relaxed);
    let cdb_bytes = extended_copy_cdb(list.len());
    let mut running = match fixture.nexus.execute(Some(Lun(0)), command(&cdb_bytes, &list)) {
        sarsen_block::Io::Pending(future) => future,
        sarsen_block::Io::Ready(_) => panic!("a store that does not answer"),
    };
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(running.as_mut().poll(&mut context).is_pending());
    let status = [0x84, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 64, 0, 0];
    assert_eq!(bytes(fixture.run(&status, &[]))[4], 0);
    assert_eq!(additional(&copy(&mut fixture.nexus, &list)), Some(0x0016));
    drop(running);
    assert_eq!(bytes(fixture.run(&status, &[]))[4], 2);
    second.store.delay_polls.store(0, Ordering::Relaxed);
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
}

#[test]
fn spc4_7_8_17_reported_copy_limits_agree() {
    let mut fixture = Fixture::new();
    let parameters = [0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
    let parameters = bytes(fixture.run(&parameters, &[]));
    assert_eq!(parameters[..4], [0, 0, 0, 44]);
    assert_eq!(parameters[8..16], [0, 64, 1, 0, 0, 0, 0x40, 0]);
    assert_eq!(parameters[43..], [4, 0x02, 0x07, 0x0a, 0xe4]);
    assert_eq!(bytes(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[]))[5] & 0x08, 0x08);
    let page = bytes(fixture.run(&[0x12, 1, 0x8f, 4, 0, 0], &[]));
    assert_eq!(page[2..4], ((page.len() - 4) as u16).to_be_bytes());
    let mut descriptors = BTreeMap::new();
    let mut rest = &page[4..];
    while let [kind_high, kind_low, high, low, after @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        assert!(length.is_multiple_of(4));
        descriptors.insert(u16::from_be_bytes([*kind_high, *kind_low]), &after[..length]);
        rest = &after[length..];
    }
    let kinds: Vec<_> = descriptors.keys().copied().collect();
    assert_eq!(kinds, [0, 1, 4, 8, 0x0c, 0x106, 0x108, 0x8001]);
    // Block device ROD limits: ranges, both timeouts, 4 GiB and 64 MiB of blocks.
    assert_eq!(descriptors[&0][6..16], [1, 0, 0, 0, 2, 0x58, 0, 0, 0, 60]);
    assert_eq!(descriptors[&0][16..], [0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]);
    let commands = descriptors[&1];
    let expected = [
        &[15][..],
        &[0x83, 4, 0x00, 0x10, 0x11, 0x1c],
        &[0x84, 7, 0x00, 0x01, 0x03, 0x04, 0x05, 0x07, 0x08],
    ];
    assert_eq!(commands, expected.concat());
    assert_eq!(descriptors[&4][4..12], parameters[8..16]);
    assert_eq!(descriptors[&8], [4, 0x02, 0x07, 0x0a, 0xe4, 0, 0, 0]);
    assert_eq!(descriptors[&0x0c], [0, 2, 0xff, 0xff]);
}

#[test]
fn third_party_copy_page_lists_the_commands_of_the_table() {
    let fixture = Fixture::new();
    let supported = TABLE.iter().filter(|row| row.is_supported_by(&fixture.unit));
    let supported: Vec<_> = supported
        .filter(|row| {
            COMMANDS.iter().any(|(operation_code, _)| *operation_code == row.operation_code)
        })
        .map(|row| (row.operation_code, row.service_action.expect("a service action")))
        .collect();
    let listed = COMMANDS.iter().flat_map(|(operation_code, actions)| {
        actions.iter().map(|&action| (*operation_code, u16::from(action)))
    });
    assert_eq!(listed.collect::<Vec<_>>(), supported);
}
