//! Tasks: their order, their limits, how they end (SAM-5 5 and 8).

use crate::task_set::MAXIMUM_TASKS;
use crate::testing::*;
use crate::{Command, Completion, Execution, Lun, NexusHandle, Status, TaskAttribute, UnderWay};
use proptest::prelude::*;
use sarsen_block::{BlockSize, Store as _};
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use TaskAttribute::{Aca, HeadOfQueue, Ordered, Simple};

/// NACA in CONTROL.
const NACA: u8 = 0x04;
const TEST_UNIT_READY: [u8; 6] = [0; 6];
/// A READ far beyond the last block.
const READ_NOWHERE: [u8; 10] = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, 0];

/// Selects bytes 2 to 5 of the control mode page.
fn select_control(fixture: &mut Fixture, control: [u8; 4]) -> Completion {
    let [two, three, four, five] = control;
    let list = [0, 0, 0, 0, 0x0a, 0x0a, two, three, four, five, 0, 0, 0xff, 0xff, 0, 120];
    fixture.run(&[0x15, 0x10, 0, 0, 16, 0], &list)
}

/// Returns a unit with this control page, and two nexuses without pending unit attentions.
fn with_control(control: [u8; 4]) -> (Fixture, NexusHandle) {
    let mut fixture = Fixture::new();
    assert_eq!(select_control(&mut fixture, control).status, Status::Good);
    let other = other(&fixture);
    (fixture, other)
}

fn other(fixture: &Fixture) -> NexusHandle {
    let mut other = open(&fixture.device, "two");
    assert_eq!(bytes(run(&mut other, &[0x03, 0, 0, 0, 18, 0], &[]))[12], 0x29);
    other
}

/// Delays every result of the store by this number of polls, from now on.
fn slow(fixture: &Fixture, polls: usize) {
    fixture.store.delay_polls.store(polls, Ordering::Relaxed);
}

fn write_of(lba: u8, name: u64, attribute: TaskAttribute) -> Command {
    let cdb = [0x2a, 0, 0, 0, 0, lba, 0, 0, 1, 0];
    Command { name, attribute, ..command(&cdb, &[name as u8; 512]) }
}

fn begin(nexus: &mut NexusHandle, command: Command) -> Execution {
    nexus.begin(Some(Lun(0)), command)
}

/// Begins a command that must not end at once.
fn under_way(nexus: &mut NexusHandle, command: Command) -> UnderWay {
    match begin(nexus, command) {
        Execution::UnderWay(under_way) => under_way,
        Execution::Ended(completion) => panic!("ended at once: {completion:?}"),
    }
}

/// Begins a command that must end at once.
fn ended(nexus: &mut NexusHandle, command: Command) -> Completion {
    match begin(nexus, command) {
        Execution::Ended(completion) => completion,
        Execution::UnderWay(_) => panic!("it has to wait"),
    }
}

fn poll(under_way: &mut UnderWay) -> Poll<Completion> {
    pin!(under_way).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls the command until it ends, without polling any other.
fn finish(mut under_way: UnderWay) -> Completion {
    for _ in 0..1000 {
        if let Poll::Ready(completion) = poll(&mut under_way) {
            return completion;
        }
    }
    panic!("it waits for ever");
}

fn waits(under_way: &mut UnderWay) -> bool {
    (0..100).all(|_| poll(under_way).is_pending())
}

fn plain(cdb: &[u8]) -> Command {
    command(cdb, &[])
}

fn with(cdb: &[u8], attribute: TaskAttribute) -> Command {
    Command { attribute, ..plain(cdb) }
}

#[test]
fn spc4_7_5_8_task_fields_of_control_page_are_changeable() {
    let mut fixture = Fixture::new();
    assert_eq!(control_page(&mut fixture, 0x00), [0x00, 0x10, 0x00, 0x00]);
    let changeable = control_page(&mut fixture, 0x40);
    assert_eq!(changeable.iter().zip([0x20, 0x16, 0x30, 0x40]).find(|(a, b)| *a & b != *b), None);
    let control = [0x20, 0x02, 0x20, 0x40];
    assert_eq!(select_control(&mut fixture, control).status, Status::Good);
    assert_eq!(control_page(&mut fixture, 0x00), control);
    assert_eq!(control_page(&mut fixture, 0x80), [0x00, 0x10, 0x00, 0x00]);
    // Reserved values are rejected, whether or not the bits are changeable.
    for (reserved, byte) in
        [([0x40, 0, 0, 0], 6), ([0, 0x04, 0, 0], 7), ([0, 0x20, 0, 0], 7), ([0, 0, 0x10, 0], 8)]
    {
        let sense = select_control(&mut fixture, reserved).sense.expect("a refusal");
        assert_eq!(sense.additional().0, 0x2600, "{reserved:02x?}");
        assert_eq!(sense.field().expect("a pointer").byte, byte);
    }
    assert_eq!(control_page(&mut fixture, 0x00), control);
}

/// Returns the first bytes of the control mode page. The values are those that the PC field of MODE SENSE selects.
fn control_page(fixture: &mut Fixture, page_control: u8) -> Vec<u8> {
    bytes(fixture.run(&[0x1a, 8, page_control | 0x0a, 0, 255, 0], &[]))[6..10].to_vec()
}

#[test]
fn sam5_8_6_3_an_ordered_command_waits_for_all_before_it_and_all_after_it_for_it() {
    let mut fixture = Fixture::new();
    let mut other = other(&fixture);
    slow(&fixture, 3);
    let first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let mut ordered = under_way(&mut other, write_of(0, 2, Ordered));
    let mut last = under_way(&mut fixture.nexus, write_of(0, 3, Simple));
    assert!(waits(&mut last) && waits(&mut ordered));
    // Commands that report only on the unit do not wait (SPC-4 5.5).
    assert_eq!(ended(&mut other, plain(&[0x12, 0, 0, 0, 96, 0])).status, Status::Good);
    assert_eq!(finish(first).status, Status::Good);
    assert!(waits(&mut last));
    assert_eq!(finish(ordered).status, Status::Good);
    assert_eq!(finish(last).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [3; 512]);
    ended(&mut fixture.nexus, with(&TEST_UNIT_READY, Ordered));
}

#[test]
fn sam5_8_6_4_head_of_queue_passes_those_that_wait_and_holds_them_up() {
    let mut fixture = Fixture::new();
    slow(&fixture, 3);
    let first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let mut ordered = under_way(&mut fixture.nexus, write_of(0, 2, Ordered));
    let head = under_way(&mut fixture.nexus, write_of(1, 3, HeadOfQueue));
    assert_eq!(finish(first).status, Status::Good);
    assert!(waits(&mut ordered), "a HEAD OF QUEUE command has not ended");
    assert_eq!(finish(head).status, Status::Good);
    assert_eq!(finish(ordered).status, Status::Good);
}

#[test]
fn spc4_7_5_8_with_tst_001b_nexuses_have_separate_task_sets() {
    let (mut fixture, mut other) = with_control([0x20, 0x10, 0, 0]);
    slow(&fixture, 3);
    let _first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let mut ordered = under_way(&mut fixture.nexus, write_of(0, 2, Ordered));
    let others = under_way(&mut other, write_of(1, 3, Ordered));
    assert_eq!(finish(others).status, Status::Good);
    assert!(waits(&mut ordered));
}

#[test]
fn spc4_7_5_8_restricted_reordering_keeps_order_of_overlapping_commands() {
    let (mut fixture, mut other) = with_control([0, 0x00, 0, 0]);
    slow(&fixture, 3);
    let first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let mut second = under_way(&mut fixture.nexus, write_of(0, 2, Simple));
    // Another block, or another nexus.
    assert_eq!(finish(under_way(&mut fixture.nexus, write_of(1, 3, Simple))).status, Status::Good);
    assert_eq!(finish(under_way(&mut other, write_of(0, 4, Simple))).status, Status::Good);
    // A command whose blocks are not all in its CDB.
    let flush = plain(&[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut flush = under_way(&mut fixture.nexus, flush);
    assert!(waits(&mut second) && waits(&mut flush));
    assert_eq!(finish(first).status, Status::Good);
    assert_eq!(finish(second).status, Status::Good);
    assert_eq!(finish(flush).status, Status::Good);
    assert_eq!(fixture.read(0, 1), [2; 512]);
}

#[test]
fn sam5_5_6_aborted_waiting_command_is_not_executed() {
    let mut fixture = Fixture::new();
    slow(&fixture, 3);
    let first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let ordered = under_way(&mut fixture.nexus, write_of(1, 2, Ordered));
    let waiting = under_way(&mut fixture.nexus, write_of(2, 3, Simple));
    let last = under_way(&mut fixture.nexus, write_of(3, 4, Simple));
    fixture.nexus.abort(&[1, 2, 3]);
    assert_eq!(finish(ordered).status, Status::TaskAborted);
    assert_eq!(finish(waiting).status, Status::TaskAborted);
    // Without the ORDERED command nothing blocks it, and tasks that have begun continue.
    assert_eq!(finish(last).status, Status::Good);
    assert_eq!(finish(first).status, Status::Good);
    assert_eq!(fixture.read(0, 4), [[1; 512], [0; 512], [0; 512], [4; 512]].concat());
}

#[test]
fn sam5_7_5_cleared_command_does_not_begin() {
    for (control, answered) in [([0, 0x10, 0, 0x00], false), ([0, 0x10, 0, 0x40], true)] {
        let (mut fixture, mut other) = with_control(control);
        slow(&fixture, 3);
        let running = under_way(&mut other, write_of(0, 1, Simple));
        let _ordered = under_way(&mut other, write_of(1, 2, Ordered));
        let mut waiting = under_way(&mut other, write_of(2, 3, Simple));
        let cleared = fixture.nexus.clear_task_set(Lun(0)).expect("a unit");
        assert_eq!((cleared.abort.nexuses, cleared.abort.answered), (vec![other.id()], answered));
        assert_eq!(finish(running).status, Status::Good);
        assert!(waits(&mut waiting), "the transport says how it ends");
        other.abort_all();
        assert_eq!(finish(waiting).status, Status::TaskAborted);
        assert_eq!(fixture.read(1, 2), [0; 1024]);
        other.commands_cleared(&fixture.unit);
        assert_eq!(additional(&run(&mut other, &TEST_UNIT_READY, &[])), Some(0x2f00));
        assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    }
    // With a task set for each nexus, the set contains no tasks of other nexuses.
    let (mut fixture, _other) = with_control([0x20, 0x10, 0, 0]);
    let cleared = fixture.nexus.clear_task_set(Lun(0)).expect("a unit");
    assert_eq!(cleared.abort.nexuses, []);
}

#[test]
fn spc4_7_5_8_qerr_says_whose_tasks_a_failure_ends() {
    for (qerr, tst, ends_own, ends_others) in [
        (0x00, 0x00, false, false),
        (0x02, 0x00, true, true),
        (0x02, 0x20, true, false),
        (0x06, 0x00, true, false),
    ] {
        let (mut fixture, mut other) = with_control([tst, 0x10 | qerr, 0, 0x40]);
        slow(&fixture, 3);
        let own_id = fixture.nexus.id();
        let first = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
        let failing = Command { attribute: Ordered, ..plain(&READ_NOWHERE) };
        let failing = under_way(&mut fixture.nexus, failing);
        let mut own = under_way(&mut fixture.nexus, write_of(1, 2, Simple));
        let mut others = match begin(&mut other, write_of(2, 3, Ordered)) {
            Execution::UnderWay(under_way) => under_way,
            Execution::Ended(completion) => panic!("{completion:?}"),
        };
        finish(first);
        let completion = finish(failing);
        assert_eq!(additional(&completion), Some(0x2100));
        let ended = completion.abort.map(|abort| (abort.nexuses, abort.answered));
        let nexuses = match (ends_own, ends_others) {
            (true, true) => Some(vec![own_id, other.id()]),
            (true, false) => Some(vec![own_id]),
            _ => None,
        };
        assert_eq!(ended, nexuses.map(|nexuses| (nexuses, true)));
        assert_eq!(waits(&mut own), ends_own);
        assert_eq!(waits(&mut others), ends_others);
    }
}

#[test]
fn sam5_5_9_an_aca_holds_up_all_but_the_commands_that_it_was_established_for() {
    let mut fixture = Fixture::new();
    let mut other = other(&fixture);
    slow(&fixture, 3);
    let failing = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, NACA];
    let running = under_way(&mut fixture.nexus, write_of(0, 1, Simple));
    let mut ordered = under_way(&mut fixture.nexus, write_of(0, 2, Ordered));
    let head = Command { attribute: HeadOfQueue, ..plain(&failing) };
    assert_eq!(additional(&ended(&mut fixture.nexus, head)), Some(0x2100));
    assert_eq!(finish(running).status, Status::Good);
    assert!(waits(&mut ordered), "it is blocked");
    let own = ended(&mut fixture.nexus, plain(&[0x12, 0, 0, 0, 96, 0]));
    assert_eq!(own.status, Status::AcaActive);
    assert_eq!(ended(&mut other, plain(&TEST_UNIT_READY)).status, Status::Busy);
    assert_eq!(ended(&mut other, plain(&[0, 0, 0, 0, 0, NACA])).status, Status::AcaActive);
    // Only one command with the ACA attribute at a time, from the faulted nexus.
    let aca = under_way(&mut fixture.nexus, write_of(1, 3, Aca));
    let second = ended(&mut fixture.nexus, write_of(1, 4, Aca));
    assert_eq!(second.status, Status::AcaActive);
    assert_eq!(finish(aca).status, Status::Good);
    other.clear_aca(Lun(0));
    assert!(waits(&mut ordered), "another one's CLEAR ACA does nothing");
    fixture.nexus.clear_aca(Lun(0));
    assert_eq!(finish(ordered).status, Status::Good);
    assert_eq!(ended(&mut other, plain(&TEST_UNIT_READY)).status, Status::Good);
    let completion = ended(&mut fixture.nexus, with(&TEST_UNIT_READY, Aca));
    assert_eq!(additional(&completion), Some(0x4900));
}

#[test]
fn sam5_5_9_5_an_aca_ends_with_a_failed_aca_command_a_reset_or_its_nexus() {
    let failing = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, NACA];
    type End = fn(&mut Fixture, &mut NexusHandle);
    let ends: [End; 3] = [
        |_, faulted| {
            let completion = ended(faulted, with(&READ_NOWHERE, Aca));
            assert_eq!(additional(&completion), Some(0x2100));
        },
        |fixture, _| {
            assert!(fixture.nexus.logical_unit_reset(Lun(0)));
            assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(0x2903));
        },
        |fixture, faulted| *faulted = open(&fixture.device, "three"),
    ];
    for end in ends {
        let mut fixture = Fixture::new();
        let mut faulted = other(&fixture);
        assert_eq!(additional(&ended(&mut faulted, plain(&failing))), Some(0x2100));
        assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Busy);
        end(&mut fixture, &mut faulted);
        assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    }
    // With a task set for each nexus, other nexuses are not affected. A command with the ACA attribute that fails with
    // NACA establishes the next allegiance.
    let (mut fixture, mut faulted) = with_control([0x20, 0x10, 0, 0]);
    ended(&mut faulted, plain(&failing));
    assert_eq!(fixture.run(&TEST_UNIT_READY, &[]).status, Status::Good);
    ended(&mut faulted, with(&failing, Aca));
    assert_eq!(ended(&mut faulted, plain(&TEST_UNIT_READY)).status, Status::AcaActive);
}

#[test]
fn spc4_7_5_8_interlocked_unit_attention_stays_until_request_sense() {
    let (mut fixture, mut other) = with_control([0, 0x10, 0x30, 0]);
    assert_eq!(run(&mut other, &[0x16, 0, 0, 0, 0, 0], &[]).status, Status::Good);
    block_on(fixture.store.resize(BLOCKS + 8)).unwrap();
    for _ in 0..3 {
        assert_eq!(additional(&fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[])), Some(0x2a09));
    }
    assert_eq!(bytes(fixture.run(&[0x03, 0, 0, 0, 18, 0], &[]))[12..14], [0x2a, 0x09]);
    for _ in 0..2 {
        // The status reports the conflict, and the following unit attention reports it again.
        let read = fixture.run(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], &[]);
        assert_eq!(read.status, Status::ReservationConflict);
        assert_eq!(additional(&fixture.run(&TEST_UNIT_READY, &[])), Some(0x2c09));
        assert_eq!(bytes(fixture.run(&[0x03, 0, 0, 0, 18, 0], &[]))[12..14], [0x2c, 0x09]);
    }
}

#[test]
fn sam5_5_3_1_status_of_full_task_set_depends_on_nexus() {
    // Once counted by the tally, and once queued.
    for attribute in [Simple, HeadOfQueue] {
        let mut fixture = Fixture::over(TestStore::new(BlockSize::B512));
        let mut other = other(&fixture);
        slow(&fixture, 1);
        let read = || with(&[0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0], attribute);
        let mut tasks: Vec<UnderWay> =
            (0..MAXIMUM_TASKS).map(|_| under_way(&mut fixture.nexus, read())).collect();
        assert_eq!(ended(&mut fixture.nexus, read()).status, Status::TaskSetFull);
        assert_eq!(ended(&mut other, read()).status, Status::Busy);
        // Slots that a nexus reserved and does not use are available to another one.
        tasks.pop();
        assert_eq!(finish(under_way(&mut other, read())).status, Status::Good);
        drop(tasks);
        let tasks: Vec<UnderWay> =
            (0..MAXIMUM_TASKS).map(|_| under_way(&mut other, read())).collect();
        assert_eq!(ended(&mut fixture.nexus, read()).status, Status::Busy);
        drop((tasks, other));
        assert_eq!(finish(under_way(&mut fixture.nexus, read())).status, Status::Good);
    }
}

fn any_attribute() -> impl Strategy<Value = TaskAttribute> {
    prop_oneof![6 => Just(Simple), 2 => Just(Ordered), 1 => Just(HeadOfQueue)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any order of polls, and any dropped answers, no task is left.
    #[test]
    fn no_order_of_answers_blocks_the_set(
        tst: bool,
        restricted: bool,
        steps in prop::collection::vec((0..2usize, any_attribute(), 0..4u8, any::<prop::sample::Index>(), 0..8), 1..60),
    ) {
        let control = [if tst { 0x20 } else { 0 }, if restricted { 0 } else { 0x10 }, 0, 0];
        let (mut fixture, mut other) = with_control(control);
        slow(&fixture, 2);
        let mut tasks: Vec<UnderWay> = Vec::new();
        for (number, (nexus, attribute, lba, which, step)) in steps.into_iter().enumerate() {
            let nexus = if nexus == 0 { &mut fixture.nexus } else { &mut other };
            match step {
                0..4 => tasks.push(under_way(nexus, write_of(lba, number as u64, attribute))),
                4 => nexus.abort(&[which.index(number + 1) as u64]),
                5 if !tasks.is_empty() => drop(tasks.swap_remove(which.index(tasks.len()))),
                _ if !tasks.is_empty() => {
                    let index = which.index(tasks.len());
                    if poll(&mut tasks[index]).is_ready() {
                        tasks.swap_remove(index);
                    }
                }
                _ => {}
            }
        }
        // Each round polls every task, in any order.
        for _ in 0..1000 {
            tasks.retain_mut(|task| poll(task).is_pending());
        }
        prop_assert!(tasks.is_empty(), "{} wait for ever", tasks.len());
        slow(&fixture, 0);
        for attribute in [Ordered, Simple, HeadOfQueue] {
            prop_assert_eq!(ended(&mut other, write_of(0, 1000, attribute)).status, Status::Good);
        }
    }
}

/// Returns a future that ends when the test sets the flag.
fn gate() -> (Rc<Cell<bool>>, impl Future<Output = ()> + 'static) {
    let is_open = Rc::new(Cell::new(false));
    let looked_at = is_open.clone();
    let wait = std::future::poll_fn(
        move |_| if looked_at.get() { Poll::Ready(()) } else { Poll::Pending },
    );
    (is_open, wait)
}

fn after(
    nexus: &mut NexusHandle,
    command: Command,
    wait: impl Future<Output = ()> + 'static,
) -> UnderWay {
    match nexus.begin_after(Some(Lun(0)), command, wait) {
        Execution::UnderWay(under_way) => under_way,
        Execution::Ended(completion) => panic!("ended at once: {completion:?}"),
    }
}

#[test]
fn a_command_that_is_made_to_wait_has_its_place_among_the_tasks() {
    let mut fixture = Fixture::new();
    let (is_open, wait) = gate();
    let mut first = after(&mut fixture.nexus, write_of(0, 1, Simple), wait);
    assert!(waits(&mut first));
    // SAM-5 8.6.3: an ORDERED task waits for all earlier ones.
    let mut ordered = under_way(&mut fixture.nexus, write_of(0, 2, Ordered));
    let mut behind = under_way(&mut fixture.nexus, write_of(0, 3, Simple));
    assert!(waits(&mut ordered) && waits(&mut behind));
    is_open.set(true);
    for command in [first, ordered, behind] {
        assert_eq!(finish(command).status, Status::Good);
    }
    assert_eq!(fixture.read(0, 1)[0], 3);
}

#[test]
fn sam5_5_9_3_aca_blocks_earlier_waiting_commands() {
    let mut fixture = Fixture::new();
    let failing = [0x28, 0, 0xff, 0, 0, 0, 0, 0, 1, NACA];
    let gates = [gate(), gate()];
    let opened = gates.each_ref().map(|(is_open, _)| is_open.clone());
    let [mut first, mut second] = gates.map(|(_, wait)| {
        let mut write = after(&mut fixture.nexus, write_of(0, 1, Simple), wait);
        assert!(waits(&mut write));
        write
    });
    assert_eq!(additional(&ended(&mut fixture.nexus, plain(&failing))), Some(0x2100));
    opened.iter().for_each(|is_open| is_open.set(true));
    assert!(waits(&mut first) && waits(&mut second), "they are blocked");
    fixture.nexus.clear_aca(Lun(0));
    assert_eq!(finish(first).status, Status::Good);
    ended(&mut fixture.nexus, plain(&failing));
    fixture.nexus.abort_all();
    assert_eq!(finish(second).status, Status::TaskAborted);
}

#[test]
fn sam5_7_2_a_command_that_is_made_to_wait_ends_when_it_is_aborted() {
    let mut fixture = Fixture::new();
    let permit = Rc::new(());
    let held = permit.clone();
    let never = async move {
        let _held = held;
        std::future::pending::<()>().await;
    };
    let (_, closed) = gate();
    let aborted = after(&mut fixture.nexus, write_of(0, 1, Simple), never);
    let mut other = after(&mut fixture.nexus, write_of(1, 2, Simple), closed);
    fixture.nexus.abort(&[1]);
    assert_eq!(finish(aborted).status, Status::TaskAborted);
    assert_eq!(Rc::strong_count(&permit), 1, "what it waited for is let go");
    assert!(waits(&mut other), "it was not meant");
    drop(other);
    assert_eq!(fixture.read(0, 1)[0], 0, "nothing was written");
}

#[test]
fn command_keeps_resources_it_waited_for_until_its_end() {
    let mut fixture = Fixture::new();
    slow(&fixture, 3);
    let permit = Rc::new(());
    let held = permit.clone();
    let wait = async move { held };
    let mut write = match fixture.nexus.begin_after(Some(Lun(0)), write_of(0, 1, Simple), wait) {
        Execution::UnderWay(under_way) => under_way,
        Execution::Ended(completion) => panic!("ended at once: {completion:?}"),
    };
    assert!(poll(&mut write).is_pending());
    assert_eq!(Rc::strong_count(&permit), 2);
    assert_eq!(finish(write).status, Status::Good);
    assert_eq!(Rc::strong_count(&permit), 1);
}
