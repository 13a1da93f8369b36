//! Media that can be ejected and loaded: START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL, and the unit attentions of
//! other initiators.

use crate::testing::*;
use crate::{DeviceType, Lun, Status};
use sarsen_block::BlockSize;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const EJECT: [u8; 6] = [0x1b, 0, 0, 0, 2, 0];
const LOAD: [u8; 6] = [0x1b, 0, 0, 0, 3, 0];
const PREVENT: [u8; 6] = [0x1e, 0, 0, 0, 1, 0];
const ALLOW: [u8; 6] = [0x1e, 0, 0, 0, 0, 0];

fn removable_disk() -> Fixture {
    let store = Arc::new(TestStore::new(BlockSize::B512));
    Fixture::of(store, Arc::default(), |parts| parts.removable = true)
}

#[test]
fn spc4_6_6_2_rmb_tells_whether_the_medium_can_be_removed() {
    for (mut fixture, expected) in [(Fixture::new(), 0), (removable_disk(), 0x80)] {
        assert_eq!(bytes(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[]))[1], expected);
    }
}

#[test]
fn sbc3_5_25_without_a_medium_every_command_that_needs_one_says_so() {
    let mut fixture = removable_disk();
    assert_eq!(fixture.run(&EJECT, &[]).status, Status::Good);
    assert_eq!(fixture.run(&EJECT, &[]).status, Status::Good, "it is out already");
    for cdb in [
        &[0x00][..],
        &[0x25],
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32],
        &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x35],
        &[0x34],
        &[0x2f, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
    ] {
        let completion = fixture.run(cdb, &[0; 512]);
        assert_eq!(additional(&completion), Some(0x3a00), "{cdb:02x?}");
        assert_eq!(completion.sense.unwrap().to_bytes()[2], 2);
    }
    for stopping in [0, 1] {
        let completion = fixture.run(&[0x1b, 0, 0, 0, stopping << 4 | 1, 0], &[]);
        assert_eq!(additional(&completion), Some(0x3a00), "there is nothing to start");
    }
    // INQUIRY and REQUEST SENSE work without a medium.
    assert_eq!(bytes(fixture.run(&[0x12, 0, 0, 0, 96, 0], &[])).len(), 96);
    assert_eq!(bytes(fixture.run(&[0x03, 0, 0, 0, 18, 0], &[]))[12], 0x3a);
    assert_eq!(fixture.run(&LOAD, &[]).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [0; 512]);
}

#[test]
fn sam5_5_14_loading_is_reported_to_all_other_nexuses() {
    let mut fixture = removable_disk();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    fixture.run(&EJECT, &[]);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x3a00));
    fixture.run(&LOAD, &[]);
    // It was loaded already, so nothing changes.
    fixture.run(&LOAD, &[]);
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2800));
    assert_eq!(run(&mut other, &[0], &[]).status, Status::Good);
}

#[test]
fn sbc4_5_15_prevention_holds_against_every_nexus_and_ends_with_its_own() {
    let mut fixture = removable_disk();
    let mut other = open(&fixture.device, "two");
    run(&mut other, &[0], &[]);
    assert_eq!(run(&mut other, &PREVENT, &[]).status, Status::Good);
    for nexus in [&mut fixture.nexus, &mut other] {
        let refused = run(nexus, &EJECT, &[]);
        assert_eq!(additional(&refused), Some(0x5302));
        assert_eq!(refused.sense.unwrap().to_bytes()[2], 5);
        assert_eq!(run(nexus, &[0], &[]).status, Status::Good);
    }
    // Another nexus cannot allow the removal that this one prevents.
    fixture.run(&ALLOW, &[]);
    assert_eq!(additional(&fixture.run(&EJECT, &[])), Some(0x5302));
    other.close();
    assert_eq!(fixture.run(&EJECT, &[]).status, Status::Good);
    fixture.run(&PREVENT, &[]);
    assert_eq!(additional(&fixture.run(&LOAD, &[])), Some(0x5302));
    fixture.run(&ALLOW, &[]);
    assert_eq!(fixture.run(&LOAD, &[]).status, Status::Good);
}

#[test]
fn sam5_6_3_3_a_reset_allows_removal_and_loads_nothing() {
    type Reset = fn(&mut Fixture);
    let resets: [Reset; 3] = [
        |fixture| assert!(fixture.nexus.logical_unit_reset(Lun(0))),
        |fixture| fixture.nexus.target_reset(false),
        |fixture| fixture.nexus.target_reset(true),
    ];
    for reset in resets {
        let mut fixture = removable_disk();
        fixture.run(&PREVENT, &[]);
        reset(&mut fixture);
        assert_eq!(additional(&fixture.run(&[0], &[])).map(|code| code >> 8), Some(0x29));
        assert_eq!(fixture.run(&EJECT, &[]).status, Status::Good);
        reset(&mut fixture);
        assert_eq!(additional(&fixture.run(&[0], &[])).map(|code| code >> 8), Some(0x29));
        assert_eq!(additional(&fixture.run(&[0], &[])), Some(0x3a00));
    }
}

#[test]
fn sbc3_5_25_eject_flushes_medium() {
    let mut fixture = removable_disk();
    fixture.write(0, &[7; 512]);
    // IMMED and NO_FLUSH do not change the flush before an ejection.
    for cdb in [EJECT, [0x1b, 1, 0, 0, 0x06, 0]] {
        let flushes = fixture.store.flushes.load(Ordering::Relaxed);
        assert_eq!(fixture.run(&cdb, &[]).status, Status::Good);
        assert_eq!(fixture.store.flushes.load(Ordering::Relaxed), flushes + 1);
        assert_eq!(fixture.run(&LOAD, &[]).status, Status::Good);
    }
    assert_eq!(fixture.read(0, 1), [7; 512]);
}

#[test]
fn mmc6_6_42_stopped_drive_starts_for_next_access() {
    let mut fixture = removable_disk();
    for flags in [0x00, 0x04] {
        assert_eq!(fixture.run(&[0x1b, 0, 0, 0, flags, 0], &[]).status, Status::Good);
        assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    }
    // LOEJ has no effect together with a power condition.
    for condition in 1..16 {
        let cdb = [0x1b, 1, 0, 0, condition << 4 | 2, 0];
        assert_eq!(fixture.run(&cdb, &[]).status, Status::Good, "{condition:x}");
        assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
    }
}

#[test]
fn sbc4_5_15_the_forms_that_only_cds_have_are_refused_elsewhere() {
    for prevent in [2, 3] {
        let cdb = [0x1e, 0, 0, 0, prevent, 0];
        let refused = removable_disk().run(&cdb, &[]);
        assert_eq!(additional(&refused), Some(0x2400));
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], [0xc9, 0, 4]);
        let store = Arc::new(TestStore::new(BlockSize::B2048));
        let mut cd = Fixture::of(store, Arc::default(), |parts| parts.device_type = DeviceType::Cd);
        assert_eq!(cd.run(&cdb, &[]).status, Status::Good);
    }
}

#[test]
fn a_medium_that_cannot_be_removed_stays_and_may_be_prevented() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.run(&PREVENT, &[]).status, Status::Good);
    for cdb in [EJECT, LOAD] {
        let refused = fixture.run(&cdb, &[]);
        assert_eq!(additional(&refused), Some(0x2400));
        assert_eq!(refused.sense.unwrap().to_bytes()[15..], [0xc9, 0, 4]);
    }
    assert_eq!(additional(&fixture.run(&[0x1b, 0, 0, 0, 0x40, 0], &[])), Some(0x2400));
    assert_eq!(fixture.run(&[0], &[]).status, Status::Good);
}
