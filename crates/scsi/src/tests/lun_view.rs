//! The view of one initiator: its own LUNs for its own units, and no access to others.

use super::copy::{Second, copy, list_between, read, segment};
use crate::testing::*;
use crate::{
    Completion, Identity, InitiatorPort, LogicalUnit, Lun, LunView, NexusHandle, SenseKey, Status,
    TargetDevice,
};
use sarsen_block::{BlockSize, MemoryStore};
use std::collections::BTreeMap;
use std::sync::Arc;

const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];

/// Maps each first LUN, the initiator's, to the second one, the target's.
fn view<const N: usize>(numbers: [(u16, u16); N]) -> LunView {
    let numbers = numbers.map(|(shown, own)| (Lun(shown), Lun(own)));
    LunView { numbers: Some(BTreeMap::from(numbers)), read_only: false }
}

fn port(initiator: &str) -> InitiatorPort {
    InitiatorPort::new(format!("iqn.2026-01.example:{initiator},i,0x1"))
}

fn show(device: &Arc<TargetDevice>, initiator: &str, view: LunView) -> NexusHandle {
    device.open_nexus_showing(port(initiator), 1, view).expect("port 1")
}

fn at(nexus: &mut NexusHandle, lun: u16, cdb: &[u8], data: &[u8]) -> Completion {
    block_on(nexus.execute(Some(Lun(lun)), command(cdb, data)))
}

/// Returns the fixture's target with a second unit, at LUN 1.
fn with_two() -> (Fixture, Arc<LogicalUnit>) {
    let mut fixture = Fixture::new();
    let store = Arc::new(MemoryStore::new(BlockSize::B512, 64));
    let unit = disk(Identity::new("second", "scope"), store);
    let luns = BTreeMap::from([(Lun(0), fixture.unit.clone()), (Lun(1), unit.clone())]);
    fixture.device.set_luns(luns);
    fixture.run(&REPORT_LUNS, &[]);
    (fixture, unit)
}

#[test]
fn sam5_4_7_two_initiators_find_different_units_at_one_number() {
    let (fixture, second) = with_two();
    let mut one = show(&fixture.device, "a", view([(0, 0)]));
    let mut other = show(&fixture.device, "b", view([(0, 1), (300, 0)]));
    assert!(Arc::ptr_eq(&one.logical_unit(Lun(0)).expect("there"), &fixture.unit));
    assert!(Arc::ptr_eq(&other.logical_unit(Lun(0)).expect("there"), &second));
    let luns = |nexus: &mut NexusHandle| bytes(at(nexus, 0, &REPORT_LUNS, &[]))[8..].to_vec();
    assert_eq!(luns(&mut one), [0; 8]);
    assert_eq!(luns(&mut other), [0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0x2c, 0, 0, 0, 0, 0, 0]);
    for nexus in [&mut one, &mut other] {
        assert_eq!(additional(&at(nexus, 0, &[0], &[])), Some(0x2900));
    }
    assert_eq!(at(&mut one, 0, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[7; 512]).status, Status::Good);
    assert_eq!(read(&mut other, 0, 1), [0; 512], "it was written to the other one's unit");
    assert_eq!(additional(&at(&mut one, 1, &[0], &[])), Some(0x2500));
    assert_eq!(one.data_out_length(Some(Lun(1)), &cdb(&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0])), 0);
}

#[test]
fn spc4_6_6_2_a_lun_0_that_is_not_shown_answers_for_the_target() {
    let (fixture, _second) = with_two();
    let mut nexus = show(&fixture.device, "a", view([(5, 1)]));
    assert_eq!(bytes(at(&mut nexus, 0, &[0x12, 0, 0, 0, 96, 0], &[]))[0], 0x7f);
    assert_eq!(bytes(at(&mut nexus, 0, &REPORT_LUNS, &[]))[8..], [0, 5, 0, 0, 0, 0, 0, 0]);
    assert_eq!(additional(&at(&mut nexus, 0, &[0], &[])), Some(0x2500));
    // A view may be empty.
    let mut nexus = show(&fixture.device, "b", view([]));
    assert_eq!(bytes(at(&mut nexus, 0, &REPORT_LUNS, &[]))[..4], [0; 4]);
}

#[test]
fn sam5_7_7_reset_affects_only_visible_units() {
    let (fixture, second) = with_two();
    let mut one = show(&fixture.device, "a", view([(0, 0)]));
    let mut other = show(&fixture.device, "b", view([(0, 1)]));
    for nexus in [&mut one, &mut other] {
        at(nexus, 0, &[0], &[]);
    }
    assert!(!one.has_whole_target() && !other.has_whole_target());
    assert!(fixture.nexus.has_whole_target());
    let aborts = one.prepare_reset(None);
    assert_eq!(aborts.len(), 1);
    assert!(Arc::ptr_eq(&aborts[0].unit, &fixture.unit));
    assert!(!aborts[0].abort.nexuses.contains(&other.id()));
    one.target_reset(true);
    assert_eq!(at(&mut other, 0, &[0], &[]).status, Status::Good);
    assert_eq!(additional(&at(&mut one, 0, &[0], &[])), Some(0x2900));
    drop(second);
}

#[test]
fn spc4_6_45_partial_lun_view_cannot_change_access_states() {
    let (fixture, _second) = with_two();
    let set = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0];
    let standby = [0, 0, 0, 0, 2, 0, 0, 1];
    for view in [view([(0, 0), (1, 1)]), LunView { read_only: true, ..LunView::default() }] {
        let mut nexus = show(&fixture.device, "a", view);
        at(&mut nexus, 0, &[0], &[]);
        assert_eq!(additional(&at(&mut nexus, 0, &set, &standby)), Some(0x2002));
    }
    let mut nexus = show(&fixture.device, "a", LunView::default());
    at(&mut nexus, 0, &[0], &[]);
    assert_eq!(at(&mut nexus, 0, &set, &standby).status, Status::Good);
}

#[test]
fn spc4_6_33_changed_lun_view_is_reported_to_affected_nexuses() {
    let (mut fixture, second) = with_two();
    let mut one = show(&fixture.device, "a", view([(0, 0)]));
    let mut other = show(&fixture.device, "b", view([(0, 0)]));
    for nexus in [&mut one, &mut other] {
        at(nexus, 0, &[0], &[]);
    }
    fixture.device.set_view(one.id(), view([(0, 0), (3, 1)]));
    fixture.device.set_view(other.id(), view([(0, 0)]));
    assert_eq!(additional(&at(&mut one, 0, &[0], &[])), Some(0x3f0e));
    assert_eq!(at(&mut one, 0, &[0], &[]).status, Status::Good);
    assert_eq!(additional(&at(&mut one, 3, &[0], &[])), Some(0x2900));
    assert_eq!(at(&mut other, 0, &[0], &[]).status, Status::Good, "nothing changed for it");
    fixture.device.set_view(one.id(), view([(3, 1)]));
    assert_eq!(additional(&at(&mut one, 3, &[0], &[])), Some(0x3f0e));
    assert_eq!(additional(&at(&mut one, 0, &[0], &[])), Some(0x2500));
    // Changes of the target's units appear in the view.
    fixture.device.set_luns(BTreeMap::from([(Lun(0), fixture.unit.clone())]));
    fixture.nexus.refresh();
    assert!(one.logical_unit(Lun(3)).is_none());
    assert_eq!(Arc::strong_count(&second), 1);
}

#[test]
fn sbc3_4_14_read_only_nexus_reads_and_sees_write_protection() {
    let (mut fixture, _second) = with_two();
    let mut reader =
        show(&fixture.device, "reader", LunView { read_only: true, ..LunView::default() });
    at(&mut reader, 0, &[0], &[]);
    let write = [0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let mode_sense = [0x1a, 8, 0x3f, 0, 255, 0];
    assert_eq!(additional(&at(&mut reader, 0, &write, &[7; 512])), Some(0x2700));
    assert_eq!(bytes(at(&mut reader, 0, &mode_sense, &[]))[2], 0x90);
    fixture.write(0, &[9; 512]);
    assert_eq!(bytes(fixture.run(&mode_sense, &[]))[2], 0x10);
    assert_eq!(read(&mut reader, 0, 1), [9; 512]);
    // FORMAT UNIT and COMPARE AND WRITE are writes.
    assert_eq!(additional(&at(&mut reader, 0, &[0x04, 0, 0, 0, 0, 0], &[])), Some(0x2700));
    let compare = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
    assert_eq!(additional(&at(&mut reader, 0, &compare, &[9; 1024])), Some(0x2700));
    fixture.device.set_view(reader.id(), LunView::default());
    assert_eq!(additional(&at(&mut reader, 0, &[0], &[])), Some(0x3f0e));
    assert_eq!(at(&mut reader, 0, &write, &[7; 512]).status, Status::Good);
}

#[test]
fn copy_cannot_access_hidden_units_or_those_of_other_nexuses() {
    let mut fixture = Fixture::new();
    let second = Second::beside(&fixture, BlockSize::B512);
    let list = list_between(&fixture.unit, &second.unit, segment(0, 1, 1, 0, 0));
    fixture.write(0, &[7; 512]);
    second.nexus.close();
    // The initiator's own nexus to the other target does not show the unit.
    let hidden = show(&second.device, "one", view([]));
    assert!(is_unreachable(&copy(&mut fixture.nexus, &list)));
    second.device.set_view(hidden.id(), LunView { read_only: true, ..view([(4, 0)]) });
    let refused = copy(&mut fixture.nexus, &list);
    let sense = refused.sense.as_ref().expect("sense data");
    assert_eq!((sense.key(), sense.additional().0), (SenseKey::CopyAborted, 0x0d01));
    second.device.set_view(hidden.id(), view([(4, 0)]));
    assert_eq!(copy(&mut fixture.nexus, &list).status, Status::Good);
    drop(hidden);
    // Another initiator with the same name, but with authentication.
    let proven = |account: &str| InitiatorPort { proven: Some(account.into()), ..port("one") };
    let _victim = second.device.open_nexus(proven("victim"), 1).expect("port 1");
    assert!(is_unreachable(&copy(&mut fixture.nexus, &list)));
    let mut thief = fixture.device.open_nexus(proven("thief"), 1).expect("port 1");
    at(&mut thief, 0, &[0], &[]);
    assert!(is_unreachable(&copy(&mut thief, &list)));
    let mut victim = fixture.device.open_nexus(proven("victim"), 1).expect("port 1");
    at(&mut victim, 0, &[0], &[]);
    assert_eq!(copy(&mut victim, &list).status, Status::Good);
}

/// Returns whether a copy failed with COPY TARGET DEVICE NOT REACHABLE.
fn is_unreachable(completion: &Completion) -> bool {
    let sense = completion.sense.as_ref().expect("sense data");
    (sense.key(), sense.additional().0) == (SenseKey::CopyAborted, 0x0d02)
}

#[test]
fn withheld_unit_stays_for_present_nexuses_only() {
    let (mut fixture, second) = with_two();
    let first = BTreeMap::from([(Lun(0), fixture.unit.clone())]);
    fixture.device.set_luns_for_new(first.clone());
    let mut late = show(&fixture.device, "late", LunView::default());
    assert!(late.logical_unit(Lun(1)).is_none());
    assert!(fixture.nexus.logical_unit(Lun(1)).is_some());
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good, "nothing changed for it");
    at(&mut late, 0, &[0], &[]);
    let both = BTreeMap::from([(Lun(0), fixture.unit.clone()), (Lun(1), second)]);
    fixture.device.set_luns(both);
    assert_eq!(additional(&at(&mut late, 0, &[0], &[])), Some(0x3f0e));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good, "it had it all the time");
    fixture.device.set_luns_except(first.clone(), |nexus| nexus == late.id());
    assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x3f0e));
    assert!(late.logical_unit(Lun(1)).is_some(), "it keeps its units");
    assert!(show(&fixture.device, "later", LunView::default()).logical_unit(Lun(1)).is_none());
    fixture.device.set_luns(first);
    assert!(late.logical_unit(Lun(1)).is_none());
}
