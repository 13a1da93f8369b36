//! The responses to initiators of a unit whose backing is out of service.

use sarsen_block::{Store as _, Usability};

use crate::testing::*;
use crate::{SenseKey, Status};

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
const SYNCHRONIZE_CACHE: [u8; 10] = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn spc4_5_6_a_unit_without_its_backing_is_not_ready_and_tells_when_it_is_back() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    fixture.store.status().set_usability(Usability::OutOfService);
    for cdb in [&TEST_UNIT_READY[..], &READ, &SYNCHRONIZE_CACHE] {
        let refused = fixture.run(cdb, &[]);
        assert_eq!(additional(&refused), Some(0x0403), "{:02x}", cdb[0]);
        assert_eq!(refused.sense.map(|sense| sense.key()), Some(SenseKey::NotReady));
    }
    assert_eq!(additional(&fixture.write(0, &[2; 512])), Some(0x0403));
    let sense = bytes(fixture.run(&[0x03, 0, 0, 0, 18, 0], &[]));
    assert_eq!((sense[2], &sense[12..14]), (2, &[0x04, 0x03][..]), "REQUEST SENSE");
    assert_eq!(fixture.run(&[0x12, 0, 0, 0, 36, 0], &[]).status, Status::Good, "INQUIRY");
    fixture.store.status().set_usability(Usability::Usable);
    assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(0x2800));
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [1; 512]);
}

#[test]
fn unit_with_stopped_writes_reports_it_and_is_readable() {
    let mut fixture = Fixture::new();
    fixture.write(0, &[1; 512]);
    fixture.store.status().set_usability(Usability::WritesStopped);
    let tested = fixture.run(&TEST_UNIT_READY, &[]);
    assert_eq!(additional(&tested), Some(0x0c00));
    assert_eq!(tested.sense.map(|sense| sense.key()), Some(SenseKey::MediumError));
    assert_eq!(fixture.read(0, 1), [1; 512]);
    fixture.store.status().set_usability(Usability::Usable);
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
}
