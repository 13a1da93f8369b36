//! What a peer may ask of our memory, and what it is told beyond that.

use sarsen_wire::iscsi::SnackRequest;

use super::*;

const ROOM_LIMIT: usize = 32 << 20;

#[test]
fn the_memory_of_a_session_is_limited() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    let length = ROOM_LIMIT / 2;
    script.world.data_out_length = length;
    // Two have room. A third one, a read, and a fourth one wait; what takes no memory does not.
    for (tag, flags) in [(1, WRITE), (2, WRITE), (3, WRITE), (4, READ), (5, WRITE)] {
        script.command(tag, flags, length as u32, &[]);
    }
    script.command(6, FINAL, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 6);
    for tag in [1, 2] {
        let (header, _) = script.next();
        assert_eq!(R2t::view(&header).initiator_task_tag.get(), tag);
    }
    script.nothing_more();
    // Who waits and is aborted lets the next one forward, and who ends makes room.
    script.manage(TaskManagementFunction::AbortTask, 3, 3);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.nothing_more();
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    let read = script.next_command();
    assert_eq!(read.task.initiator_task_tag, 4);
    script.nothing_more();
    script.good(&read, vec![]);
    let tags = [script.next().0, script.next().0].map(|header| header.basic().opcode());
    assert_eq!(tags, [Opcode::R2t, Opcode::ScsiResponse]);
}

#[test]
fn one_task_may_take_more_memory_than_a_session_is_to() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    script.world.data_out_length = 2 * ROOM_LIMIT;
    script.command(1, WRITE, 2 * ROOM_LIMIT as u32, &[]);
    script.command(2, WRITE, 512, &[]);
    script.collect();
    let tags: Vec<u32> = script
        .pdus
        .drain(..)
        .map(|(header, _)| R2t::view(&header).initiator_task_tag.get())
        .collect();
    assert_eq!(tags, [1], "and no other beside it");
}

#[test]
fn what_other_sessions_took_of_the_memory_is_waited_for() {
    let settings = Settings { budget: Arc::new(Budget::new(8 << 20)), ..Settings::default() };
    let keys = "InitialR2T=Yes\0ImmediateData=No\0";
    let mut one = Script::established_with(settings.clone(), keys);
    let mut other = Script::established_with(settings.clone(), keys);
    let read = 6 << 20;
    one.command(1, READ, read, &[]);
    let taking = one.next_command();
    other.command(1, READ, read, &[]);
    let first = other.next_command();
    other.command(2, READ, read, &[]);
    assert!(other.connection.poll_event().is_none(), "nothing is left for a second one");
    one.good(&taking, vec![]);
    other.good(&first, vec![]);
    assert_eq!(other.next_command().task.initiator_task_tag, 2);
    drop((one, other));
    assert_eq!(settings.budget.lent(), 0, "who is gone owes nothing");
}

#[test]
fn rfc7143_11_17_1_text_is_refused_to_who_does_not_take_answers() {
    let mut script = discovery(400);
    let ask = |script: &mut Script| {
        let mut request = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = FINAL;
        request.initiator_task_tag = 3.into();
        request.target_transfer_tag = RESERVED_TAG.into();
        request.cmd_sn = script.cmd_sn.into();
        script.send(request, b"SendTargets=All\0").expect("taken");
    };
    for _ in 0..1000 {
        ask(&mut script);
    }
    let limit = Settings::default().output_limit;
    let waiting = script.connection.output().len();
    assert!(waiting < limit + 1000 * 200, "{waiting} bytes wait to be sent");
    script.collect();
    let (last, _) = script.pdus.pop_back().expect("an answer");
    assert_eq!(Reject::view(&last).reason(), RejectReason::LongOperationReject);
    script.pdus.clear();
    ask(&mut script);
    assert_eq!(script.next().0.basic().opcode(), Opcode::TextResponse, "once it took them");
}

#[test]
fn rfc7143_11_17_1_a_text_request_beyond_its_limit_is_rejected() {
    let settings = Settings { text_limit: 100, ..Settings::default() };
    let mut script = Script::established_with(settings, "");
    let (header, _) = text_request(&mut script, RESERVED_TAG, &[b'x'; 101]);
    assert_eq!(Reject::view(&header).reason(), RejectReason::LongOperationReject);
}

#[test]
fn rfc7143_11_13_5_a_login_with_too_much_text_is_refused() {
    let mut script = Script::with(Settings { text_limit: 100, ..Settings::default() });
    script.login(0x04 | CONTINUE, &"x".repeat(60));
    script.next();
    script.login(0x04 | CONTINUE, &"x".repeat(60));
    let (header, _) = script.next();
    assert_eq!(LoginResponse::view(&header).status(), LoginStatus::OutOfResources);
}

#[test]
fn rfc7143_4_2_2_1_the_window_is_as_large_as_was_set() {
    let settings = Settings { command_window: 3, immediate_limit: 1, ..Settings::default() };
    let mut script = Script::established_with(settings, "");
    for tag in 1..=4 {
        script.command(tag, READ, 512, &[]);
    }
    for tag in 1..=3 {
        assert_eq!(script.next_command().task.initiator_task_tag, tag);
    }
    script.nothing_more();
    for (tag, is_taken) in [(5, true), (6, false)] {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.opcode_byte |= IMMEDIATE;
        command.flags = FINAL;
        command.initiator_task_tag = tag.into();
        command.cmd_sn = 4.into();
        script.send(command, &[]).expect("the session goes on");
        if is_taken {
            assert_eq!(script.next_command().task.initiator_task_tag, tag);
        } else {
            let (header, _) = script.next();
            assert_eq!(Reject::view(&header).reason(), RejectReason::ImmediateCommandReject);
        }
    }
}

#[test]
fn rfc7143_4_2_2_2_who_acknowledges_no_echo_is_given_up_before_they_take_the_memory() {
    let keys = "ErrorRecoveryLevel=1\0MaxRecvDataSegmentLength=262144\0";
    let mut script = Script::established(keys);
    let echo = vec![0x55; 256 << 10];
    let ended = (0..1000).find(|_| {
        let mut nop = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        nop.opcode_byte |= IMMEDIATE;
        nop.initiator_task_tag = 9.into();
        nop.cmd_sn = script.cmd_sn.into();
        let taken = script.send(nop, &echo);
        script.collect();
        script.pdus.clear();
        taken.is_err()
    });
    assert_eq!(ended, Some(ROOM_LIMIT / echo.len() + 1));
}

#[test]
fn rfc7143_11_16_nothing_is_sent_again_to_who_does_not_take_it() {
    let mut script = Script::established("ErrorRecoveryLevel=1\0");
    script.command(1, READ, 8 << 20, &[]);
    let read = script.next_command();
    script.good(&read, vec![7; 8 << 20]);
    script.collect();
    script.pdus.clear();
    for _ in 0..100 {
        let mut snack = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
        snack.flags = FINAL;
        snack.lun = LUN;
        snack.initiator_task_tag = 1.into();
        snack.tag = RESERVED_TAG.into();
        script.send(snack, &[]).expect("the session goes on");
    }
    let waiting = script.connection.output().len();
    assert!(waiting < ROOM_LIMIT + (12 << 20), "{waiting} bytes wait to be sent");
    script.collect();
    let (last, _) = script.pdus.pop_back().expect("an answer");
    assert_eq!(Reject::view(&last).reason(), RejectReason::SnackReject);
}
