//! Commands that the store does not end: the transport writes them off, and they block the unit until they end.

use crate::testing::*;
use crate::{
    Abandoned, AdditionalSense, Command, Completion, Execution, Lun, NexusHandle, SenseKey, Status,
    TaskAttribute, UnderWay,
};
use std::sync::atomic::Ordering;

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];

fn write_of(lba: u8, mark: u8) -> Command {
    command(&[0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0], &[mark; 512])
}

/// Begins a command that the store does not end for some time.
fn stuck(fixture: &mut Fixture, command: Command) -> UnderWay {
    fixture.store.delay_polls.store(1000, Ordering::Relaxed);
    let begun = fixture.nexus.begin(Some(Lun(0)), command);
    fixture.store.delay_polls.store(0, Ordering::Relaxed);
    match begun {
        Execution::UnderWay(mut under_way) => {
            assert!(poll(&mut under_way).is_none());
            under_way
        }
        Execution::Ended(completion) => panic!("ended at once: {completion:?}"),
    }
}

fn run_to_its_end(mut abandoned: Abandoned) {
    while poll(&mut abandoned).is_none() {}
}

fn is_not_ready(completion: &Completion) -> bool {
    completion.sense.as_ref().is_some_and(|sense| {
        let not_ready = AdditionalSense::LOGICAL_UNIT_NOT_READY_CAUSE_NOT_REPORTABLE;
        (sense.key(), sense.additional()) == (SenseKey::NotReady, not_ready)
    })
}

fn another(fixture: &Fixture) -> NexusHandle {
    let mut other = open(&fixture.device, "two");
    assert_eq!(bytes(run(&mut other, &[0x03, 0, 0, 0, 18, 0], &[]))[12], 0x29);
    other
}

#[test]
fn sam5_5_6_no_command_begins_that_a_abandoned_command_could_undo() {
    let mut fixture = Fixture::new();
    let mut other = another(&fixture);
    let (first, second) =
        (stuck(&mut fixture, write_of(0, 1)), stuck(&mut fixture, write_of(1, 1)));
    let concurrent = stuck(&mut fixture, write_of(2, 3));
    let unit = fixture.nexus.logical_unit(Lun(0)).expect("a unit");
    assert!(unit.responds());
    assert_eq!(run(&mut other, &TEST_UNIT_READY, &[]).status, Status::Good);
    let first = first.abandon().expect("under way");
    let second = second.abandon().expect("under way");
    for nexus in [&mut fixture.nexus, &mut other] {
        assert!(!unit.responds());
        assert!(is_not_ready(&run(nexus, &TEST_UNIT_READY, &[])));
        assert!(is_not_ready(&run(nexus, &[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])));
        assert!(is_not_ready(&run(nexus, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[2; 512])));
        assert!(is_not_ready(&run(nexus, &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[])));
        assert_eq!(run(nexus, &INQUIRY, &[]).status, Status::Good);
    }
    assert_eq!(block_on(sarsen_block::Io::pending(concurrent)).status, Status::Good);
    run_to_its_end(first);
    assert!(is_not_ready(&run(&mut other, &TEST_UNIT_READY, &[])), "one is left");
    run_to_its_end(second);
    assert!(unit.responds());
    assert_eq!(fixture.read(0, 1), [1; 512], "what was refused has not happened");
    assert_eq!(run(&mut other, &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[2; 512]).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [2; 512]);
}

#[test]
fn sam5_8_6_3_an_ordered_command_does_not_wait_for_an_abandoned_one() {
    let mut fixture = Fixture::new();
    let stuck = stuck(&mut fixture, write_of(0, 1));
    let ordered = Command { attribute: TaskAttribute::Ordered, ..write_of(0, 2) };
    let Execution::UnderWay(mut ordered) = fixture.nexus.begin(Some(Lun(0)), ordered) else {
        panic!("it has to wait")
    };
    assert!(poll(&mut ordered).is_none());
    let stuck = stuck.abandon().expect("under way");
    assert!(poll(&mut ordered).is_some_and(|completion| is_not_ready(&completion)));
    run_to_its_end(stuck);
}

#[test]
fn a_unit_does_not_respond_while_a_command_stalls() {
    let mut fixture = Fixture::new();
    let unit = fixture.nexus.logical_unit(Lun(0)).expect("a unit");
    let slow = stuck(&mut fixture, write_of(0, 1));
    let stalls = [slow.report_stall(), slow.report_stall()];
    assert!(stalls.iter().all(Option::is_some) && !unit.responds());
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good, "it may only be slow");
    drop(stalls);
    assert!(unit.responds());
    assert_eq!(block_on(sarsen_block::Io::pending(slow)).status, Status::Good);
}
