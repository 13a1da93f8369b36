//! Tests of tasks that outlive their connection.

use super::session::{command, joined, log_out, pair, resume, wakes};
use super::*;

const LEVEL: &str = "ErrorRecoveryLevel=2\0";

fn reassign(script: &mut Script, tag: u32, exp_data_sn: u32) -> Adoption {
    let mut request = script.management_request(TaskManagementFunction::TaskReassign, tag, 0);
    request.exp_data_sn = exp_data_sn.into();
    script.send(request, &[]).expect("the session goes on");
    let event = script.connection.poll_event();
    let Some(Event::Adopt(adoption)) = event else { panic!("{event:?}") };
    assert_eq!(adoption.referenced_task_tag(), tag);
    adoption
}

/// Moves the task from the first connection, which is lost, to the second.
fn hand_over(first: &mut Script, second: &mut Script, tag: u32, exp_data_sn: u32) {
    let adoption = reassign(second, tag, exp_data_sn);
    let claim = first.connection.release(tag);
    assert!(matches!(claim, ReassignReply::Released(_)), "{claim:?}");
    second.connection.adopt(adoption, claim);
    assert_eq!(managed(second), TaskManagementResponse::FunctionComplete);
}

fn managed(script: &mut Script) -> TaskManagementResponse {
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::TaskManagementResponse);
    TaskManagementResponsePdu::view(&header).response()
}

fn mark_lost(script: &mut Script) {
    assert!(script.connection.mark_lost(&mut script.world));
}

#[test]
fn rfc7143_7_2_2_a_write_goes_on_where_it_was() {
    let (mut first, mut second) =
        pair(&format!("{LEVEL}InitialR2T=Yes\0ImmediateData=No\0MaxBurstLength=1024\0"));
    first.world.data_out_length = 2048;
    command(&mut first, 1, WRITE, 2048);
    let (header, _) = first.next();
    let transfer_tag = R2t::view(&header).target_transfer_tag.get();
    first.data_out(1, transfer_tag, 0, 0, false, &[1; 512]);
    // The data segment is incomplete.
    let mut cut = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
    cut.initiator_task_tag = 1.into();
    cut.target_transfer_tag = transfer_tag.into();
    cut.data_sn = 1.into();
    cut.buffer_offset = 512.into();
    let mut basic = BasicHeader::from(RawHeader::from(cut));
    basic.data_segment_length = U24::new(512);
    let bytes = [&RawHeader::from(basic).0[..], &[9; 100]].concat();
    let handled = first.connection.handle_input(&bytes, first.now, &mut first.world);
    handled.expect("so far");
    mark_lost(&mut first);
    hand_over(&mut first, &mut second, 1, 1);
    for (number, offset) in [(1, 512), (2, 1536)] {
        let (header, _) = second.next();
        assert_eq!(header.basic().opcode(), Opcode::R2t);
        let r2t = R2t::view(&header);
        assert_eq!((r2t.r2t_sn.get(), r2t.buffer_offset.get()), (number, offset));
        let length = r2t.desired_data_transfer_length.get() as usize;
        second.data_out(1, r2t.target_transfer_tag.get(), 0, offset, true, &vec![2; length]);
    }
    let done = second.next_command();
    let expected = [[1; 512].as_slice(), &[2; 1536]].concat();
    assert_eq!(done.data_out.as_deref(), Some(&expected[..]));
    second.good(&done, vec![]);
    let (header, _) = second.next();
    assert_eq!(
        ScsiResponse::view(&header).max_cmd_sn.get(),
        1 + Settings::default().command_window
    );
}

#[test]
fn rfc7143_7_2_2_reassigned_task_is_answered_on_new_connection() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut first, 1, READ, 512);
    let running = first.next_command();
    first.connection.begun(running.task);
    mark_lost(&mut first);
    let adoption = reassign(&mut second, 1, 0);
    let ReassignReply::Released(released) = first.connection.release(1) else {
        panic!("it has it")
    };
    assert_eq!(released.running(), Some(running.task));
    second.connection.adopt(adoption, ReassignReply::Released(released));
    managed(&mut second);
    second.nothing_more();
    second.good(&running, vec![5; 512]);
    let (header, data) = second.next();
    assert_eq!((header.basic().opcode(), data), (Opcode::DataIn, vec![5; 512]));
    second.next();
    assert!(matches!(first.connection.release(1), ReassignReply::Unknown), "it is not there twice");
}

#[test]
fn rfc7143_7_2_2_data_and_status_that_were_not_heard_come_again() {
    let (mut first, mut second) =
        pair(&format!("{LEVEL}MaxRecvDataSegmentLength=1024\0MaxBurstLength=2048\0"));
    let data: Vec<u8> = (0..4096).map(|index| (index / 5) as u8).collect();
    command(&mut first, 1, READ, 4096);
    let running = first.next_command();
    first.good(&running, data.clone());
    mark_lost(&mut first);
    // The initiator has received two PDUs of 1,024 bytes. The new connection accepts longer PDUs.
    hand_over(&mut first, &mut second, 1, 2);
    let (header, part) = second.next();
    let again = DataIn::view(&header);
    assert_eq!((again.data_sn.get(), again.buffer_offset.get()), (2, 2048));
    assert_eq!(part, data[2048..]);
    let (header, _) = second.next();
    let response = ScsiResponse::view(&header);
    assert_eq!((response.initiator_task_tag.get(), response.exp_data_sn.get()), (1, 3));
    assert!(matches!(first.connection.release(1), ReassignReply::Unknown));
}

/// The abort of an answered task changes neither its answer nor its data.
#[test]
fn rfc7143_11_5_1_an_abort_takes_no_data_from_an_answer() {
    let (mut first, mut second) = pair(&format!("{LEVEL}MaxRecvDataSegmentLength=1024\0"));
    let session = second.world.session.clone().expect("it joined");
    command(&mut first, 1, READ, 4096);
    let running = first.next_command();
    first.good(&running, vec![7; 4096]);
    mark_lost(&mut first);
    hand_over(&mut first, &mut second, 1, 2);
    mark_lost(&mut second);
    let mut third = joined(session, 2, 2);
    third.manage(TaskManagementFunction::AbortTask, 1, 1);
    let event = third.connection.poll_event();
    let Some(Event::Adopt(adoption)) = event else { panic!("{event:?}") };
    third.connection.adopt(adoption, second.connection.release(1));
    let (header, part) = third.next();
    let again = DataIn::view(&header);
    assert_eq!((again.data_sn.get(), again.buffer_offset.get()), (2, 2048));
    assert_eq!(part, vec![7; 2048]);
    let (header, _) = third.next();
    assert_eq!(ScsiResponse::view(&header).exp_data_sn.get(), 3);
    assert_eq!(managed(&mut third), TaskManagementResponse::FunctionComplete);
}

#[test]
fn rfc7143_11_6_1_only_tasks_of_lost_connections_are_given_away() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut first, 1, READ, 512);
    first.next_command();
    for (tag, response) in [
        (1, TaskManagementResponse::TaskStillAllegiant),
        (9, TaskManagementResponse::TaskDoesNotExist),
    ] {
        let adoption = reassign(&mut second, tag, 0);
        let claim = first.connection.release(tag);
        second.connection.adopt(adoption, claim);
        assert_eq!(managed(&mut second), response);
    }
}

#[test]
fn rfc7143_11_6_1_levels_below_2_give_nothing_away() {
    let (mut first, mut second) = pair("ErrorRecoveryLevel=1\0");
    second.manage(TaskManagementFunction::TaskReassign, 1, 0);
    assert_eq!(managed(&mut second), TaskManagementResponse::ReassignNotSupported);
    assert!(!first.connection.mark_lost(&mut first.world));
    log_out(&mut second, LogoutReason::RemoveForRecovery, 0);
    let (header, _) = second.next();
    let response = LogoutResponsePdu::view(&header).response();
    assert_eq!(response, LogoutResponse::RecoveryNotSupported);
}

#[test]
fn rfc7143_11_14_a_connection_is_removed_for_recovery_over_itself() {
    let (mut first, mut second) = pair(&format!("{LEVEL}InitialR2T=Yes\0ImmediateData=No\0"));
    first.world.data_out_length = 512;
    command(&mut first, 1, READ, 512);
    let running = first.next_command();
    first.connection.begun(running.task);
    command(&mut first, 2, WRITE, 512);
    let (header, _) = first.next();
    let transfer_tag = R2t::view(&header).target_transfer_tag.get();
    log_out(&mut first, LogoutReason::RemoveForRecovery, 0);
    // The connection neither sends nor receives any more data for its tasks.
    first.good(&running, vec![7; 512]);
    first.data_out(2, transfer_tag, 0, 0, true, &[1; 512]);
    let (header, _) = first.next();
    let response = LogoutResponsePdu::view(&header);
    assert_eq!(response.response(), LogoutResponse::Closed);
    assert_eq!(response.time2retain.get(), 20);
    first.nothing_more();
    assert_eq!(first.connection.closing(), Some(&CloseReason::Removed));
    mark_lost(&mut first);
    assert!(first.connection.closing().is_none());
    hand_over(&mut first, &mut second, 1, 0);
    let (_, data) = second.next();
    assert_eq!(data, vec![7; 512]);
    second.next();
    hand_over(&mut first, &mut second, 2, 0);
    let (header, _) = second.next();
    assert_eq!(R2t::view(&header).desired_data_transfer_length.get(), 512);
}

#[test]
fn rfc7143_11_14_4_a_removal_acknowledges_nothing_of_the_connection_it_comes_over() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut second, 1, READ, 512);
    let running = second.next_command();
    second.good(&running, vec![5; 512]);
    second.next();
    let (header, _) = second.next();
    let stat_sn = ScsiResponse::view(&header).stat_sn.get();
    mark_lost(&mut first);
    let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = FINAL | LogoutReason::RemoveForRecovery.0;
    request.initiator_task_tag = 5.into();
    request.cid = 0.into();
    request.cmd_sn = second.cmd_sn.into();
    request.exp_stat_sn = stat_sn.wrapping_add(1).into();
    second.send(request, &[]).expect("the session goes on");
    mark_lost(&mut second);
    let claim = second.connection.release(1);
    assert!(matches!(claim, ReassignReply::Released(_)), "{claim:?}");
}

#[test]
fn rfc7143_11_5_1_a_task_of_a_lost_connection_is_aborted_on_another() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut first, 1, READ, 512);
    let running = first.next_command();
    first.connection.begun(running.task);
    mark_lost(&mut first);
    second.manage(TaskManagementFunction::AbortTask, 1, 1);
    let event = second.connection.poll_event();
    let Some(Event::Adopt(adoption)) = event else { panic!("{event:?}") };
    second.connection.adopt(adoption, first.connection.release(1));
    second.asked_to_end(1);
    second.good(&running, vec![1; 512]);
    assert_eq!(managed(&mut second), TaskManagementResponse::FunctionComplete);
    second.nothing_more();
}

/// The gap before the command closes while the other connections are asked for the command.
#[test]
fn rfc7143_11_5_1_an_abort_reaches_a_command_whose_turn_came_meanwhile() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut second, 2, READ, 0);
    second.nothing_more();
    second.manage(TaskManagementFunction::AbortTask, 2, 2);
    let event = second.connection.poll_event();
    let Some(Event::Adopt(adoption)) = event else { panic!("{event:?}") };
    command(&mut first, 1, READ, 0);
    resume(&mut second);
    let running = second.next_command();
    second.connection.adopt(adoption, first.connection.release(2));
    second.asked_to_end(2);
    second.good(&running, vec![]);
    assert_eq!(managed(&mut second), TaskManagementResponse::FunctionComplete);
    second.nothing_more();
}

#[test]
fn rfc7143_7_2_1_a_command_that_was_not_acknowledged_is_sent_again() {
    let (mut first, mut second) = pair(LEVEL);
    // This command is above a gap, on the connection that is lost.
    command(&mut first, 2, READ, 0);
    first.nothing_more();
    mark_lost(&mut first);
    command(&mut second, 2, READ, 0);
    second.nothing_more();
    command(&mut second, 1, READ, 0);
    assert_eq!(second.next_command().task.initiator_task_tag, 1);
    assert_eq!(second.next_command().task.initiator_task_tag, 2);
    resume(&mut first);
    first.nothing_more();
}

#[test]
fn rfc7143_7_2_2_a_command_that_was_acknowledged_is_not_forgotten() {
    let (mut first, mut second) = pair(LEVEL);
    command(&mut first, 2, READ, 0);
    first.nothing_more();
    // The gap closes. The first connection is lost before it is notified.
    command(&mut second, 1, READ, 0);
    assert_eq!(second.next_command().task.initiator_task_tag, 1);
    mark_lost(&mut first);
    assert_eq!(first.next_command().task.initiator_task_tag, 2);
    assert!(matches!(first.connection.release(2), ReassignReply::Released(_)));
}

#[test]
fn lost_connection_delays_no_other() {
    let (mut first, mut second) = pair(&format!("{LEVEL}InitialR2T=Yes\0ImmediateData=No\0"));
    first.world.data_out_length = 512;
    command(&mut first, 1, WRITE, 512);
    first.next();
    command(&mut second, 2, READ | 2, 0);
    second.nothing_more();
    mark_lost(&mut first);
    second.nothing_more();
    first.connection.leave();
    wakes(&mut first);
    resume(&mut second);
    let ordered = second.next_command();
    second.good(&ordered, vec![]);
    let (header, _) = second.next();
    let window = Settings::default().command_window;
    assert_eq!(ScsiResponse::view(&header).max_cmd_sn.get(), 2 + window, "no place is lost");
}
