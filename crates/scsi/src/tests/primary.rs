//! INQUIRY, mode pages, unit attentions, reservations, the reporting commands.

use super::mode::select_control;
use crate::command_table::TABLE;
use crate::testing::*;
use crate::{Command, DeviceType, Identity, Lun, Status};
use sarsen_block::{BlockSize, MemoryStore, Store as _};
use std::collections::BTreeMap;
use std::sync::Arc;

fn inquiry(fixture: &mut Fixture, evpd: u8, page: u8) -> Vec<u8> {
    bytes(fixture.run(&[0x12, evpd, page, 4, 0, 0], &[]))
}

#[test]
fn spc4_6_6_2_standard_inquiry_is_96_bytes_and_claims_its_standards() {
    let mut fixture = Fixture::new();
    let data = inquiry(&mut fixture, 0, 0);
    assert_eq!(data.len(), 96);
    assert_eq!(data[..8], [0, 0, 6, 0x32, 91, 0x38, 0, 2]);
    assert_eq!(&data[8..36], b"SARSEN  VOLUME          0001");
    assert_eq!(data[58..68], [0x00, 0xa0, 0x04, 0x60, 0x04, 0xc0, 0x09, 0x60, 0, 0]);
    assert_eq!(bytes(fixture.run(&[0x12, 0, 0, 0, 5, 0], &[])).len(), 5);
    assert_eq!(additional(&fixture.run(&[0x12, 0, 0x80, 0, 96, 0], &[])), Some(0x2400));
}

#[test]
fn spc4_7_8_every_listed_vpd_page_is_there_and_as_long_as_it_says() {
    let mut fixture = Fixture::new();
    let list = inquiry(&mut fixture, 1, 0);
    assert_eq!(list[4..], [0x00, 0x80, 0x83, 0x86, 0x87, 0x88, 0x8f, 0xb0, 0xb1, 0xb2]);
    for &page in &list[4..] {
        let data = inquiry(&mut fixture, 1, page);
        assert_eq!(data[1], page);
        assert_eq!(data.len(), 4 + usize::from(u16::from_be_bytes([data[2], data[3]])));
    }
    assert_eq!(additional(&fixture.run(&[0x12, 1, 0xc0, 0, 96, 0], &[])), Some(0x2400));
}

#[test]
fn spc4_7_8_6_device_identification_names_unit_port_and_target() {
    let mut fixture = Fixture::new();
    let data = inquiry(&mut fixture, 1, 0x83);
    let mut rest = &data[4..];
    let mut kinds = Vec::new();
    while let [_, kind, _, length, ..] = *rest {
        kinds.push(kind & 0x3f);
        rest = &rest[4 + usize::from(length)..];
    }
    assert!(rest.is_empty());
    assert_eq!(kinds, [0x03, 0x01, 0x08, 0x14, 0x15, 0x18, 0x28]);
    let text = String::from_utf8_lossy(&data);
    assert!(text.contains("naa.3") && text.contains("iqn.2026-01.example:t,t,0x0001\0"));
}

#[test]
fn sam5_4_7_4_commands_to_no_unit() {
    let mut fixture = Fixture::new();
    for lun in [Some(Lun(1)), None] {
        let mut run = |cdb: &[u8]| block_on(fixture.nexus.execute(lun, command(cdb, &[])));
        assert_eq!(bytes(run(&[0x12, 0, 0, 0, 96, 0]))[0], 0x7f);
        assert_eq!(additional(&run(&[0])), Some(0x2500));
        assert_eq!(additional(&run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0])), Some(0x2500));
        assert_eq!(bytes(run(&[0x03, 0, 0, 0, 18, 0]))[12], 0x25);
    }
}

#[test]
fn spc4_6_33_report_luns_answers_even_where_there_is_no_unit_0() {
    let mut fixture = Fixture::new();
    let unit = fixture.unit.clone();
    fixture.device.set_luns(BTreeMap::from([(Lun(1), unit.clone()), (Lun(300), unit)]));
    let report = |select| [0xa0, 0, select, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    let data = bytes(fixture.run(&report(0), &[]));
    assert_eq!(data[..4], [0, 0, 0, 16]);
    assert_eq!(data[8..], [0, 1, 0, 0, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes(fixture.run(&report(1), &[]))[..4], [0; 4]);
    assert_eq!(additional(&fixture.run(&report(3), &[])), Some(0x2400));
    assert_eq!(additional(&fixture.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 15], &[])), Some(0x2400));
}

#[test]
fn sam5_5_14_attentions_wait_for_a_command_that_tells_them() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    // INQUIRY neither reports nor clears the unit attention, REQUEST SENSE does both.
    assert_eq!(run(&mut other, &[0x12, 0, 0, 0, 96, 0], &[]).status, Status::Good);
    assert_eq!(bytes(run(&mut other, &[0x03, 0, 0, 0, 18, 0], &[]))[2], 6);
    assert_eq!(run(&mut other, &[0], &[]).status, Status::Good);
    block_on(fixture.store.resize(BLOCKS + 8)).unwrap();
    for nexus in [&mut other, &mut fixture.nexus] {
        assert_eq!(additional(&run(nexus, &[0], &[])), Some(0x2a09));
        assert_eq!(run(nexus, &[0], &[]).status, Status::Good);
    }
}

#[test]
fn spc4_6_33_changed_luns_are_reported_until_report_luns() {
    let mut fixture = Fixture::new();
    let store = Arc::new(MemoryStore::new(BlockSize::B512, 8));
    let added = disk(Identity::new("added", "scope"), store);
    let luns = BTreeMap::from([(Lun(0), fixture.unit.clone()), (Lun(1), added)]);
    fixture.device.set_luns(luns.clone());
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x3f0e));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    let added = block_on(fixture.nexus.execute(Some(Lun(1)), command(&[0], &[])));
    assert_eq!(additional(&added), Some(0x2900));
    let elsewhere = luns.into_iter().map(|(Lun(lun), unit)| (Lun(2 * lun), unit)).collect();
    fixture.device.set_luns(elsewhere);
    fixture.run(&[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], &[]);
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
}

#[test]
fn a_removed_unit_is_gone_and_its_store_is_let_go() {
    let mut fixture = Fixture::new();
    fixture.device.set_luns(BTreeMap::new());
    fixture.nexus.refresh();
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x2500));
    assert_eq!(Arc::strong_count(&fixture.unit), 1);
}

#[test]
fn spc2_7_21_a_reservation_keeps_others_out_until_its_holder_goes() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    let conflict = Status::ReservationConflict;
    assert_eq!(fixture.run(&[0x16], &[]).status, Status::Good);
    assert_eq!(fixture.run(&[0x16], &[]).status, Status::Good);
    for cdb in [&[0x16][..], &[0x1a, 0, 0x3f, 0, 255, 0], &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(run(&mut other, cdb, &[]).status, conflict);
    }
    for cdb in [&[0x17][..], &[0x12], &[0x25], &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0]] {
        assert_eq!(run(&mut other, cdb, &[]).status, Status::Good);
    }
    assert_eq!(run(&mut other, &[0], &[]).status, conflict, "RELEASE by another has no effect");
    let clone = fixture.nexus.clone();
    fixture.nexus.close();
    assert_eq!(run(&mut other, &[0], &[]).status, conflict, "one connection still stands");
    clone.close();
    assert_eq!(run(&mut other, &[0x16], &[]).status, Status::Good);
}

#[test]
fn sam5_6_3_3_a_reset_ends_reservations_restores_modes_and_tells_all() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    fixture.run(&[0x16], &[]);
    let select = select_control(&mut fixture, 0x04, 0x00);
    assert_eq!(additional(&select), None);
    assert!(other.logical_unit_reset(Lun(0)));
    assert!(!other.logical_unit_reset(Lun(9)));
    for nexus in [&mut other, &mut fixture.nexus] {
        let completion = run(nexus, &[0], &[]);
        assert_eq!(completion.sense.unwrap().to_bytes()[0], 0x70, "D_SENSE is restored");
        assert_eq!(run(nexus, &[0], &[]).status, Status::Good);
    }
    other.target_reset(true);
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x2900));
    other.target_reset(false);
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x2903));
}

#[test]
fn spc4_6_35_supported_operation_codes_follow_the_table() {
    for device_type in [DeviceType::Disk, DeviceType::Cd] {
        let store = Arc::new(TestStore::new(BlockSize::B2048));
        let fixture = Fixture::of(store, Arc::default(), |parts| parts.device_type = device_type);
        operation_codes_follow_the_table(fixture);
    }
}

fn operation_codes_follow_the_table(mut fixture: Fixture) {
    let unit = fixture.unit.clone();
    let rows: Vec<_> = TABLE.iter().filter(|row| row.is_supported_by(&unit)).collect();
    let all = bytes(fixture.run(&[0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0], &[]));
    assert_eq!(all.len(), 4 + 8 * rows.len());
    let timed = bytes(fixture.run(&[0xa3, 0x0c, 0x80, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0], &[]));
    assert_eq!(timed.len(), 4 + 20 * rows.len());
    for row in rows {
        let action = row.service_action.unwrap_or(0) as u8;
        let one = |options| [0xa3, 0x0c, options, row.operation_code, 0, action, 0, 0, 1, 0, 0, 0];
        let (right, wrong) = if row.service_action.is_some() { (2, 1) } else { (1, 2) };
        assert_eq!(additional(&fixture.run(&one(wrong), &[])), Some(0x2400), "{row:?}");
        for options in [right, 3] {
            let data = bytes(fixture.run(&one(options), &[]));
            assert_eq!(data[..5], [0, 3, 0, row.cdb_length() as u8, row.operation_code]);
            assert_eq!(data[5..], *row.usage);
        }
    }
    let unknown = [0xa3, 0x0c, 1, 0x49, 0, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(bytes(fixture.run(&unknown, &[])), [0, 1, 0, 0]);
    assert_eq!(additional(&fixture.run(&[0x49, 1], &[])), Some(0x2000), "no command");
    assert_eq!(additional(&fixture.run(&[0x9e, 0x1f], &[])), Some(0x2400));
}

#[test]
fn spc4_6_36_supported_task_management_functions() {
    let mut fixture = Fixture::new();
    let data = bytes(fixture.run(&[0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0], &[]));
    assert_eq!(data, [0xfa, 0, 0, 0]);
}

#[test]
fn sbc3_5_16_capacity() {
    let mut fixture = Fixture::new();
    assert_eq!(bytes(fixture.run(&[0x25], &[])), [0, 0, 0x0f, 0xff, 0, 0, 2, 0]);
    let data = bytes(fixture.run(&[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32], &[]));
    assert_eq!(data[..16], [0, 0, 0, 0, 0, 0, 0x0f, 0xff, 0, 0, 2, 0, 0, 0, 0xc0, 0]);
    assert!(bytes(fixture.run(&[0x9e, 0x10], &[])).is_empty());
}

#[test]
fn a_handle_can_go_to_another_core() {
    fn is_send<T: Send>() {}
    is_send::<crate::NexusHandle>();
    is_send::<Command>();
    is_send::<crate::Completion>();
}
