//! Tests of several connections of one session.

use super::*;

const ORDERED: u8 = 2;
const TSIH: u16 = 7;

/// Creates a session with two connections.
pub(super) fn pair(keys: &str) -> (Script, Script) {
    let mut first = Script::new();
    first.login(0x87, &format!("{}MaxConnections=4\0{keys}", names()));
    assert!(matches!(first.connection.poll_event(), Some(Event::Establish(_))));
    let (session, _) = first.connection.establish(TSIH).expect("others may join");
    first.next();
    first.received.set_max_data_segment_length(U24::MAX);
    let second = joined(session, 1, first.cmd_sn);
    (first, second)
}

fn names() -> String {
    format!("InitiatorName=iqn.2026-11.test:host\0TargetName={TARGET}\0")
}

pub(super) fn joined(session: Arc<Session>, cid: u16, cmd_sn: u32) -> Script {
    let mut script = Script::new();
    script.world.session = Some(session);
    (script.tsih, script.cid, script.cmd_sn) = (TSIH, cid, cmd_sn);
    script.login(0x87, &names());
    let event = script.connection.poll_event();
    assert!(matches!(event, Some(Event::Establish(Admission { tsih: TSIH, .. }))), "{event:?}");
    script.connection.establish(TSIH);
    let (header, _) = script.next();
    assert_eq!(LoginResponse::view(&header).tsih.get(), TSIH);
    script.received.set_max_data_segment_length(U24::MAX);
    script
}

/// Sends a command with this CmdSN.
pub(super) fn command(script: &mut Script, cmd_sn: u32, flags: u8, expected: u32) {
    script.cmd_sn = cmd_sn;
    script.command(cmd_sn, flags, expected, &[]);
}

pub(super) fn resume(script: &mut Script) {
    script.connection.resume(&mut script.world).expect("the session goes on");
}

/// Checks that the next event wakes another connection.
pub(super) fn wakes(script: &mut Script) {
    let event = script.connection.poll_event();
    assert!(matches!(event, Some(Event::Wake(_))), "{event:?}");
}

#[test]
fn rfc7143_6_3_1_added_connection_has_parameters_of_leading_login() {
    let (first, mut second) = pair("MaxBurstLength=65536\0InitialR2T=No\0");
    assert_eq!(first.connection.parameters().max_connections, 4);
    assert_eq!(second.connection.parameters().max_burst_length, 65536);
    assert!(!second.connection.parameters().initial_r2t);
    // Keys that only the leading login can negotiate have no effect.
    let mut third = Script::new();
    third.world.session = second.world.session.take();
    (third.tsih, third.cid) = (TSIH, 2);
    third.login(0x87, &format!("{}MaxBurstLength=512\0", names()));
    third.connection.poll_event();
    third.connection.establish(TSIH);
    assert_eq!(third.connection.parameters().max_burst_length, 65536);
    let (_, text) = third.next();
    assert!(String::from_utf8_lossy(&text).contains("MaxBurstLength=Irrelevant"));
}

/// An initiator that has not authenticated learns nothing about the session that it names.
#[test]
fn rfc7143_6_3_1_a_session_numbers_no_answer_before_the_login_is_whole() {
    let (mut first, second) = pair("");
    for cmd_sn in 1..=50 {
        command(&mut first, cmd_sn, READ, 0);
        let begun = first.next_command();
        first.connection.begun(begun.task);
        first.good(&begun, vec![]);
        first.next();
    }
    let mut third = Script::new();
    third.world.session = second.world.session.clone();
    (third.tsih, third.cid, third.cmd_sn) = (TSIH, 2, 3);
    for flags in [0x00, 0x81, 0x04] {
        third.login(flags, if flags == 0 { names() } else { String::new() }.as_str());
        let (header, _) = third.next();
        let response = LoginResponse::view(&header);
        assert_eq!((response.status(), response.exp_cmd_sn.get()), (LoginStatus::Success, 3));
        assert_eq!(response.max_cmd_sn.get(), 2 + Settings::default().command_window);
    }
    third.login(0x87, "");
    third.connection.poll_event();
    third.connection.establish(TSIH);
    let (header, _) = third.next();
    assert_eq!(LoginResponse::view(&header).exp_cmd_sn.get(), 51);
}

#[test]
fn rfc7143_11_12_6_there_must_be_a_session_to_join() {
    let mut script = Script::new();
    script.tsih = 9;
    script.login(0x87, &names());
    let (header, _) = script.next();
    assert_eq!(LoginResponse::view(&header).status(), LoginStatus::SessionDoesNotExist);
}

#[test]
fn rfc7143_4_2_2_1_a_gap_is_filled_by_another_connection() {
    let (mut first, mut second) = pair("");
    command(&mut second, 2, READ, 0);
    command(&mut second, 3, READ, 0);
    second.nothing_more();
    command(&mut first, 1, READ, 0);
    assert_eq!(first.next_command().task.initiator_task_tag, 1);
    wakes(&mut first);
    first.nothing_more();
    resume(&mut second);
    assert_eq!(second.next_command().task.initiator_task_tag, 2);
    let last = second.next_command();
    assert_eq!(last.task.initiator_task_tag, 3);
    second.good(&last, vec![]);
    let (header, _) = second.next();
    assert_eq!(ScsiResponse::view(&header).exp_cmd_sn.get(), 4);
    // The CmdSN is used, on all connections.
    command(&mut first, 3, READ, 0);
    first.nothing_more();
}

#[test]
fn rfc7143_4_2_2_1_the_window_is_that_of_the_session() {
    let (mut first, mut second) = pair("");
    let limit = Settings::default().command_window;
    for cmd_sn in 1..=limit {
        let script = if cmd_sn % 2 == 0 { &mut first } else { &mut second };
        command(script, cmd_sn, READ, 0);
        let begun = script.next_command();
        script.connection.begun(begun.task);
    }
    for script in [&mut first, &mut second] {
        command(script, limit + 1, READ, 0);
        script.nothing_more();
    }
}

#[test]
fn sam5_8_6_an_ordered_command_waits_for_the_data_of_another_connection() {
    let (mut first, mut second) = pair("InitialR2T=Yes\0ImmediateData=No\0");
    first.world.data_out_length = 512;
    command(&mut first, 1, WRITE, 512);
    let (header, _) = first.next();
    let transfer_tag = R2t::view(&header).target_transfer_tag.get();
    command(&mut second, 2, READ | ORDERED, 0);
    second.nothing_more();
    first.data_out(1, transfer_tag, 0, 0, true, &[1; 512]);
    let write = first.next_command();
    resume(&mut second);
    second.nothing_more();
    // The ORDERED command may begin when the layer above has begun the write, not while the write is in transit to it.
    first.connection.begun(write.task);
    wakes(&mut first);
    resume(&mut second);
    assert_eq!(second.next_command().task.initiator_task_tag, 2);
}

/// The write's unsolicited data arrives when the write need not wait any more, but before its connection resumes.
#[test]
fn sam5_8_6_a_write_that_waited_is_carried_out_once() {
    let (mut first, mut second) = pair("InitialR2T=No\0");
    second.world.data_out_length = 512;
    command(&mut first, 1, READ, 0);
    let read = first.next_command();
    command(&mut second, 2, WRITE_MORE | ORDERED, 512);
    second.nothing_more();
    first.connection.begun(read.task);
    wakes(&mut first);
    second.data_out(2, RESERVED_TAG, 0, 0, true, &[1; 512]);
    let write = second.next_command();
    assert_eq!((write.task.initiator_task_tag, write.data_out.is_some()), (2, true));
    resume(&mut second);
    second.nothing_more();
}

#[test]
fn sam5_8_6_an_ordered_command_waits_for_one_whose_connection_is_not_awake_yet() {
    let (mut first, mut second) = pair("");
    command(&mut second, 2, READ, 0);
    command(&mut first, 1, READ, 0);
    let begun = first.next_command();
    first.connection.begun(begun.task);
    command(&mut first, 3, READ | ORDERED, 0);
    wakes(&mut first);
    first.nothing_more();
    resume(&mut second);
    let begun = second.next_command();
    second.connection.begun(begun.task);
    wakes(&mut second);
    resume(&mut first);
    assert_eq!(first.next_command().task.initiator_task_tag, 3);
}

#[test]
fn rfc7143_4_2_3_3_a_function_waits_for_the_commands_before_it() {
    let (mut first, mut second) = pair("");
    command(&mut first, 1, READ, 0);
    let begun = first.next_command();
    first.connection.begun(begun.task);
    second.cmd_sn = 3;
    second.manage_unit(TaskManagementFunction::LogicalUnitReset, LUN);
    second.nothing_more();
    command(&mut first, 2, READ, 0);
    first.next_command();
    wakes(&mut first);
    resume(&mut second);
    let event = second.connection.poll_event();
    assert!(matches!(event, Some(Event::Management(_))), "{event:?}");
}

#[test]
fn waiting_task_management_function_waits_once() {
    let (_first, mut second) = pair("");
    second.cmd_sn = 3;
    second.manage_unit(TaskManagementFunction::LogicalUnitReset, LUN);
    for _ in 0..50 {
        resume(&mut second);
    }
    assert_eq!(second.connection.link.session.awaiting_count(), 1);
}

#[test]
fn rfc7143_11_5_1_an_abort_reaches_a_command_whose_turn_came_unnoticed() {
    let (mut first, mut second) = pair("");
    command(&mut second, 2, READ, 0);
    // The gap closes, and the abort arrives before the connection is woken.
    command(&mut first, 1, READ, 0);
    second.cmd_sn = 3;
    second.manage(TaskManagementFunction::AbortTask, 2, 2);
    let begun = second.next_command();
    assert_eq!(begun.task.initiator_task_tag, 2);
    second.asked_to_end(2);
    second.good(&begun, vec![]);
    let (header, _) = second.next();
    let response = TaskManagementResponsePdu::view(&header).response();
    assert_eq!(response, TaskManagementResponse::FunctionComplete);
}

#[test]
fn rfc7143_11_5_1_abort_task_set_reaches_the_other_connections() {
    let (_first, mut second) = pair("");
    second.manage_unit(TaskManagementFunction::AbortTaskSet, LUN);
    let event = second.connection.poll_event();
    let Some(Event::Management(management)) = event else { panic!("{event:?}") };
    assert_eq!(management.function, TaskManagementFunction::AbortTaskSet);
}

pub(super) fn log_out(script: &mut Script, reason: LogoutReason, cid: u16) {
    let mut request = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = FINAL | reason.0;
    request.initiator_task_tag = 5.into();
    request.cid = cid.into();
    request.cmd_sn = script.cmd_sn.into();
    script.send(request, &[]).expect("the session goes on");
}

#[test]
fn rfc7143_11_14_a_logout_may_be_about_another_connection_or_all() {
    let (mut first, mut second) = pair("");
    log_out(&mut first, LogoutReason::CloseConnection, 1);
    let event = first.connection.poll_event();
    let Some(Event::Logout(logout)) = event else { panic!("{event:?}") };
    assert_eq!((logout.cid, logout.for_recovery), (Some(1), false));
    first.connection.log_out(logout, LogoutResponse::Closed);
    let (header, _) = first.next();
    assert_eq!(LogoutResponsePdu::view(&header).response(), LogoutResponse::Closed);
    assert!(first.connection.closing().is_none());
    log_out(&mut second, LogoutReason::CloseConnection, 1);
    second.next();
    assert!(second.connection.closing().is_some(), "it is the one that asked");
    log_out(&mut first, LogoutReason::CloseSession, 0);
    let event = first.connection.poll_event();
    let Some(Event::Logout(logout @ Logout { cid: None, .. })) = event else { panic!("{event:?}") };
    first.connection.log_out(logout, LogoutResponse::Closed);
    assert!(first.connection.closing().is_some());
}

#[test]
fn rfc7143_11_14_a_connection_that_is_logged_out_takes_nothing_with_it() {
    let (mut first, mut second) = pair("InitialR2T=Yes\0ImmediateData=No\0");
    second.world.data_out_length = 512;
    let limit = Settings::default().command_window;
    // The data of the first command never arrives. The second one runs. The third one is in transit to the layer above.
    command(&mut second, 1, WRITE | ORDERED, 512);
    second.next();
    command(&mut second, 2, READ | 3, 0);
    let running = second.next_command();
    second.connection.begun(running.task);
    command(&mut second, 3, READ | 3, 0);
    command(&mut first, 4, READ, 0);
    first.nothing_more();
    second.connection.close();
    assert!(matches!(second.connection.poll_event(), Some(Event::Wake(_))));
    assert!(second.connection.poll_event().is_none(), "what has not begun is forgotten");
    second.good(&running, vec![]);
    resume(&mut first);
    let waited = first.next_command();
    assert_eq!(waited.task.initiator_task_tag, 4);
    first.good(&waited, vec![]);
    // The command window is as large as before.
    for cmd_sn in 5..5 + limit {
        command(&mut first, cmd_sn, READ, 0);
        assert_eq!(first.next_command().task.initiator_task_tag, cmd_sn);
    }
}
