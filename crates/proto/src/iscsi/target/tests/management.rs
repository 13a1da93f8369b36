//! Tests of tasks that other initiators abort, and of the order in which commands reach the layer above.

use super::*;

const TASK_ABORTED: u8 = 0x40;
const ORDERED: u8 = 2;
const HEAD_OF_QUEUE: u8 = 3;
/// The initiator sends data only after an R2T.
const SOLICITED: &str = "InitialR2T=Yes\0ImmediateData=No\0";

fn end_all(script: &mut Script, token: u64, ending: Ending) -> usize {
    script.connection.abort_tasks(token, |_, _| Some(ending)).len()
}

fn ended(script: &mut Script, token: u64) {
    let event = script.connection.poll_event();
    assert!(matches!(event, Some(Event::TasksEnded(reported)) if reported == token), "{event:?}");
}

/// Returns the tag and status of the next SCSI response.
fn response(script: &mut Script) -> (u32, u8) {
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
    let response = ScsiResponse::view(&header);
    (response.initiator_task_tag.get(), response.status)
}

/// Checks that the next PDU is an R2T for this task. Returns its transfer tag.
fn asked_for_data(script: &mut Script, tag: u32) -> u32 {
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::R2t);
    assert_eq!(R2t::view(&header).initiator_task_tag.get(), tag);
    R2t::view(&header).target_transfer_tag.get()
}

#[test]
fn other_sessions_are_notified_after_last_task() {
    let mut script = Script::established("");
    assert_eq!(end_all(&mut script, 1, Ending::Silent), 0);
    ended(&mut script, 1);
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    assert_eq!(end_all(&mut script, 2, Ending::Silent), 1);
    script.asked_to_end(1);
    assert_eq!(end_all(&mut script, 3, Ending::Answered), 0, "it is ending already");
    script.nothing_more();
    script.good(&command, vec![]);
    ended(&mut script, 2);
    ended(&mut script, 3);
    script.nothing_more();
}

#[test]
fn rfc7143_11_6_1_an_abort_waits_for_a_task_that_another_session_ended() {
    let mut script = Script::established("");
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    assert_eq!(end_all(&mut script, 1, Ending::Silent), 1);
    script.asked_to_end(1);
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    script.nothing_more();
    script.good(&command, vec![]);
    ended(&mut script, 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.nothing_more();
}

#[test]
fn rfc7143_4_2_3_3_task_aborted_by_another_nexus_gets_task_aborted() {
    let mut script = Script::established(SOLICITED);
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[]);
    let transfer_tag = asked_for_data(&mut script, 1);
    script.command(2, READ, 512, &[]);
    let command = script.next_command();
    assert_eq!(end_all(&mut script, 1, Ending::Answered), 2);
    // The target waits for the task that is executed, but not for the task that still collects data.
    assert_eq!(response(&mut script), (1, TASK_ABORTED));
    script.asked_to_end(2);
    script.data_out(1, transfer_tag, 0, 0, true, &[1; 512]);
    script.nothing_more();
    script.good(&command, vec![7; 512]);
    assert_eq!(response(&mut script), (2, TASK_ABORTED));
    ended(&mut script, 1);
    script.nothing_more();
}

#[test]
fn withheld_answer_delays_no_other_command() {
    let mut script = Script::established("");
    for (tag, ending) in [(1, Ending::Silent), (2, Ending::Answered)] {
        script.command(tag, READ, 0, &[]);
        let command = script.next_command();
        assert_eq!(script.connection.withhold(command.task), Some(LUN));
        assert_eq!(end_all(&mut script, tag.into(), ending), 1);
        ended(&mut script, tag.into());
        script.good(&command, vec![]);
        if ending == Ending::Answered {
            assert_eq!(response(&mut script), (tag, TASK_ABORTED));
        }
        script.nothing_more();
    }
    // A withheld answer is sent if the task is not aborted. The answer of an aborted task is not withheld.
    script.command(3, READ, 0, &[]);
    let command = script.next_command();
    assert_eq!(script.connection.withhold(command.task), Some(LUN));
    script.good(&command, vec![]);
    assert_eq!(response(&mut script), (3, 0));
    script.command(4, READ, 0, &[]);
    let command = script.next_command();
    end_all(&mut script, 4, Ending::Silent);
    assert_eq!(script.connection.withhold(command.task), None);
}

#[test]
fn sam5_4_7_7_both_addresses_of_a_unit_name_its_tasks() {
    let mut script = Script::established("");
    script.world.unit = [0x40, 0, 0, 0, 0, 0, 0, 0];
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    script.manage_unit(TaskManagementFunction::AbortTaskSet, [0x40, 0, 0, 0, 0, 0, 0, 0]);
    script.asked_to_end(1);
    script.nothing_more();
    script.good(&command, vec![]);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
}

#[test]
fn sam5_7_4_clear_aca_is_handed_over_and_ends_no_task() {
    let mut script = Script::established("");
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    script.manage(TaskManagementFunction::ClearAca, RESERVED_TAG, 0);
    let Some(Event::Management(management)) = script.connection.poll_event() else {
        panic!("it is the layer above's to do");
    };
    assert_eq!(management.function, TaskManagementFunction::ClearAca);
    script.good(&command, vec![]);
    assert_eq!(response(&mut script), (1, 0));
}

#[test]
fn rfc7143_4_2_3_3_a_reset_ends_commands_that_are_held_above_a_gap() {
    let mut script = Script::established("");
    let first = script.cmd_sn;
    script.cmd_sn = first + 1;
    script.command(2, READ, 0, &[]);
    script.manage(TaskManagementFunction::AbortTaskSet, RESERVED_TAG, 0);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    // The function does not affect this command, because the initiator sent it later.
    script.command(3, READ, 0, &[]);
    script.cmd_sn = first;
    script.command(1, READ, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 1);
    assert_eq!(script.next_command().task.initiator_task_tag, 3);
    script.nothing_more();
}

#[test]
fn sam5_8_6_an_ordered_command_waits_for_the_data_of_those_before_it() {
    let mut script = Script::established(SOLICITED);
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[]);
    let first = asked_for_data(&mut script, 1);
    script.command(2, WRITE | ORDERED, 512, &[]);
    script.command(3, WRITE, 512, &[]);
    script.command(4, READ, 0, &[]);
    script.nothing_more();
    script.command(5, READ | HEAD_OF_QUEUE, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 5);
    script.data_out(1, first, 0, 0, true, &[1; 512]);
    assert_eq!(script.next_command().task.initiator_task_tag, 1);
    let second = asked_for_data(&mut script, 2);
    script.nothing_more();
    script.data_out(2, second, 0, 0, true, &[2; 512]);
    assert_eq!(script.next_command().task.initiator_task_tag, 2);
    assert_eq!(script.next_command().task.initiator_task_tag, 4);
    let third = asked_for_data(&mut script, 3);
    script.data_out(3, third, 0, 0, true, &[3; 512]);
    assert_eq!(script.next_command().task.initiator_task_tag, 3);
    script.nothing_more();
}

#[test]
fn sam5_8_6_task_without_its_data_blocks_no_other() {
    let mut script = Script::established(SOLICITED);
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[]);
    asked_for_data(&mut script, 1);
    script.command(2, WRITE | ORDERED, 512, &[]);
    script.command(3, READ, 0, &[]);
    script.nothing_more();
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    asked_for_data(&mut script, 2);
    script.nothing_more();
    script.manage(TaskManagementFunction::AbortTask, 2, 2);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    assert_eq!(script.next_command().task.initiator_task_tag, 3);
    script.nothing_more();
}
