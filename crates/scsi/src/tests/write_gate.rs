//! The gate that every write passes: the repeated checks behind it, and the order of the waiting commands.

use super::copy::{Second, cscd, list, read, segment};
use crate::phase::Phase;
use crate::testing::*;
use crate::{Completion, Lun, NexusHandle, Status};
use sarsen_block::{BlockSize, Extent};
use sarsen_volume::Regions;

const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const PREEMPT_AND_ABORT: u8 = 5;
const EXCLUSIVE_ACCESS: u8 = 3;

fn reserve_out(action: u8, list: &[u8]) -> Vec<u8> {
    let length = (list.len() as u32).to_be_bytes();
    [&[0x5f, action, EXCLUSIVE_ACCESS, 0, 0], &length[..], &[0]].concat()
}

fn keys(key: u64, other: u64, flags: u8) -> Vec<u8> {
    let mut list = [key.to_be_bytes(), other.to_be_bytes()].concat();
    list.extend([0, 0, 0, 0, flags, 0, 0, 0]);
    list
}

fn ask(nexus: &mut NexusHandle, action: u8, list: &[u8]) -> Completion {
    run(nexus, &reserve_out(action, list), list)
}

#[test]
fn write_sees_medium_changes_after_its_admission() {
    let fixture = Fixture::new();
    fixture.unit.medium_phase().set(Phase::Halted);
    let write =
        fixture.unit.write_shared(Extent::new(0, 1), |_| panic!("what halted takes no writes"));
    assert_eq!(additional(&block_on(write)), Some(0x0c00));
}

#[test]
fn spc4_5_12_11_2_6_a_copy_before_the_gate_meets_the_reservation_behind_it() {
    for patches in [false, true] {
        let mut fixture = Fixture::new();
        let block_size = if patches { BlockSize::B4096 } else { BlockSize::B512 };
        let second = Second::beside(&fixture, block_size);
        fixture.write(0, &[7; 512]);
        let units = [cscd(&fixture.unit), cscd(&second.unit)];
        let segment = if patches {
            super::copy::offset_segment(512, (0, 0), (0, 512))
        } else {
            segment(0, 1, 1, 0, 0)
        };
        let list = list(0, 2, &units, &[segment]);
        let mut cdb_bytes = vec![0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        cdb_bytes.extend((list.len() as u32).to_be_bytes());
        cdb_bytes.extend([0; 2]);
        let gate = second.unit.volume().write_gate().try_exclusive(Regions::ALL).unwrap();
        let copy = fixture.nexus.execute(Some(Lun(0)), command(&cdb_bytes, &list));
        let mut copy = Box::pin(copy.wait());
        for _ in 0..100 {
            assert!(poll(&mut copy).is_none(), "it waits at the gate");
        }
        let mut other = open(&second.device, "two");
        assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
        for (action, list) in [(REGISTER, keys(0, 2, 0)), (RESERVE, keys(2, 0, 0))] {
            assert_eq!(ask(&mut other, action, &list).status, Status::Good);
        }
        drop(gate);
        let completion = block_on(sarsen_block::Io::Pending(copy));
        assert_eq!(additional(&completion), Some(0x0d01), "{completion:?}");
        assert_eq!(read(&mut other, 0, 1), vec![0; block_size.bytes()]);
        drop(second.nexus);
    }
}

#[test]
fn spc4_5_12_11_2_6_preempting_and_aborting_waits_for_writes_that_are_behind_the_gate() {
    let mut fixture = Fixture::new();
    let mut other = open(&fixture.device, "two");
    assert_eq!(additional(&run(&mut other, &[0], &[])), Some(0x2900));
    for (nexus, key) in [(&mut fixture.nexus, 1), (&mut other, 2)] {
        assert_eq!(ask(nexus, REGISTER, &keys(0, key, 0)).status, Status::Good);
    }
    assert_eq!(ask(&mut fixture.nexus, RESERVE, &keys(1, 0, 0)).status, Status::Good);
    let writing = fixture.unit.volume().write_gate().try_shared(Regions::ALL).unwrap();
    let list = keys(2, 1, 0);
    let preempt = command(&reserve_out(PREEMPT_AND_ABORT, &list), &list);
    let mut preempt = Box::pin(other.execute(Some(Lun(0)), preempt).wait());
    for _ in 0..100 {
        assert!(poll(&mut preempt).is_none(), "a write of the victim is under way");
    }
    drop(writing);
    assert_eq!(block_on(sarsen_block::Io::Pending(preempt)).status, Status::Good);
}

#[test]
fn spc4_5_12_7_identifiers_that_name_more_ports_than_can_register_are_refused() {
    let mut fixture = Fixture::new();
    let name = b"iqn.2026-01.example:one";
    let mut id = vec![0x05, 0, 0, name.len().next_multiple_of(4) as u8];
    id.extend(name);
    id.resize(4 + name.len().next_multiple_of(4), 0);
    let ids = id.repeat(513);
    let list = [keys(0, 1, 0x08), (ids.len() as u32).to_be_bytes().to_vec(), ids].concat();
    assert_eq!(additional(&ask(&mut fixture.nexus, REGISTER, &list)), Some(0x5504));
}

#[test]
fn sbc3_5_2_a_comparison_waits_only_for_writes_of_its_regions() {
    let mut fixture = Fixture::new();
    let mut compare = |lba: u16| {
        let mut cdb_bytes = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0];
        cdb_bytes[8..10].copy_from_slice(&lba.to_be_bytes());
        let compared = fixture.nexus.execute(Some(Lun(0)), command(&cdb_bytes, &[0; 1024]));
        poll(&mut Box::pin(compared.wait())).map(|completion| completion.status)
    };
    let gate = fixture.unit.volume().write_gate();
    let writing = gate.try_shared(Extent::new(0, 1)).unwrap();
    assert_eq!(compare(0), None, "it waits for the write");
    assert_eq!(compare(4095), Some(Status::Good), "the write is elsewhere");
    drop(writing);
    assert_eq!(compare(0), Some(Status::Good));
}
