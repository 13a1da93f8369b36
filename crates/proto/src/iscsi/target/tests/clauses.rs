//! Tests of clauses of RFC 7143 that no other test of the target covers.

use super::*;

const NAMES: &str = "InitiatorName=iqn.2026-11.test:x\0TargetName=iqn.2026-11.test:disk\0";

fn status(script: &mut Script) -> LoginStatus {
    LoginResponse::view(&script.next().0).status()
}

#[test]
fn rfc7143_6_2_a_key_that_comes_twice_ends_the_login() {
    let mut script = Script::new();
    script.login(0x87, &format!("{NAMES}MaxBurstLength=512\0MaxBurstLength=1024\0"));
    assert_eq!(status(&mut script), LoginStatus::InitiatorError);
    let mut script = Script::new();
    script.login(0x04, &format!("{NAMES}MaxBurstLength=512\0"));
    assert_eq!(status(&mut script), LoginStatus::Success);
    script.login(0x87, "MaxBurstLength=512\0");
    assert_eq!(status(&mut script), LoginStatus::InitiatorError, "in a later request, too");
}

#[test]
fn rfc7143_6_2_an_unknown_key_is_answered_and_does_not_end_the_login() {
    let mut script = Script::new();
    script.login(0x04, &format!("{NAMES}X-com.example.speed=11\0Nonsense=Yes\0InitialR2T=No\0"));
    let (header, text) = script.next();
    assert_eq!(LoginResponse::view(&header).status(), LoginStatus::Success);
    let text = String::from_utf8(text).expect("text");
    for answer in ["X-com.example.speed=NotUnderstood", "Nonsense=NotUnderstood", "InitialR2T=No"] {
        assert!(text.split('\0').any(|pair| pair == answer), "{answer} in {text:?}");
    }
}

#[test]
fn rfc7143_6_3_stages_follow_each_other_forward() {
    // The flags contain the current and the next stage: 0 security, 1 operational, 3 full feature.
    for (flags, is_taken) in
        [(0x81, true), (0x83, true), (0x87, true), (0x80, false), (0x84, false), (0x86, false)]
    {
        let mut script = Script::new();
        script.login(flags, NAMES);
        match script.connection.poll_event() {
            Some(Event::Establish(_)) => assert!(is_taken, "{flags:#x}"),
            _ => assert_eq!(status(&mut script) == LoginStatus::Success, is_taken, "{flags:#x}"),
        }
    }
    let mut script = Script::new();
    script.login(0x81, NAMES);
    assert_eq!(status(&mut script), LoginStatus::Success);
    script.login(0x83, "");
    assert_eq!(status(&mut script), LoginStatus::InitiatorError, "the security stage is over");
}

#[test]
fn rfc7143_6_3_a_login_in_the_full_feature_phase_is_rejected() {
    let mut script = Script::established("");
    let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
    request.opcode_byte |= IMMEDIATE;
    request.flags = 0x87;
    request.cmd_sn = script.cmd_sn.into();
    let result = script.send(request, NAMES.as_bytes());
    assert!(matches!(result, Err(CloseReason::Protocol { clause: "§6.3", .. })), "{result:?}");
    assert_eq!(Reject::view(&script.next().0).reason(), RejectReason::ProtocolError);
}

#[test]
fn rfc7143_11_1_reserved_bits_are_not_looked_at() {
    let mut script = Script::established("");
    let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
    command.flags = READ;
    command.initiator_task_tag = 1.into();
    command.expected_data_transfer_length = 512.into();
    command.cmd_sn = script.cmd_sn.into();
    let mut bytes = RawHeader::from(command).0;
    // The reserved bit of the first byte, the reserved bits next to the attribute, and two reserved bytes.
    bytes[0] |= 0x80;
    bytes[1] |= 0x18;
    bytes[2..4].fill(0xff);
    let handled = script.connection.handle_input(&bytes, script.now, &mut script.world);
    handled.expect("the session goes on");
    let command = script.next_command();
    assert_eq!((command.attribute, command.expected_data_in_length), (0, 512));
}

#[test]
fn rfc7143_11_4_8_exp_data_sn_counts_sent_pdus() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0MaxBurstLength=512\0");
    script.world.data_out_length = 1024;
    script.command(1, WRITE, 1024, &[]);
    for sn in 0..2 {
        let r2t = *R2t::view(&script.next().0);
        assert_eq!(r2t.r2t_sn.get(), sn);
        script.data_out(1, r2t.target_transfer_tag.get(), 0, sn * 512, true, &[7; 512]);
    }
    let write = script.next_command();
    script.good(&write, vec![]);
    assert_eq!(ScsiResponse::view(&script.next().0).exp_data_sn.get(), 2);
}

#[test]
fn rfc7143_11_12_6_fields_of_a_login_stay_the_same() {
    for change in [
        |request: &mut LoginRequest| request.isid.0[5] ^= 1,
        |request: &mut LoginRequest| request.tsih = 9.into(),
        |request: &mut LoginRequest| request.cid = 9.into(),
        |request: &mut LoginRequest| request.initiator_task_tag = 9.into(),
    ] {
        let mut script = Script::new();
        script.login(0x04, NAMES);
        assert_eq!(status(&mut script), LoginStatus::Success);
        let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = 0x87;
        request.isid.0 = [0x80, 1, 2, 3, 4, 5];
        request.initiator_task_tag = 1.into();
        request.tsih = 0.into();
        request.cid = 0.into();
        request.reserved = 0.into();
        request.cmd_sn = script.cmd_sn.into();
        change(&mut request);
        script.send(request, &[]).expect("it is answered");
        assert_eq!(status(&mut script), LoginStatus::InitiatorError);
    }
}

#[test]
fn rfc7143_13_3_send_targets_all_needs_discovery_session() {
    let mut normal = Script::established("");
    normal.world.target_count = 3;
    assert_eq!(text_answer(&mut normal, b"SendTargets=All\0"), "SendTargets=Reject\0");
    assert_eq!(text_answer(&mut normal, b"SendTargets=\0").matches("TargetName=").count(), 1);
    assert_eq!(
        text_answer(&mut normal, b"SendTargets=iqn.2026-11.test:disk1\0"),
        "",
        "another one"
    );
    let mut finding = discovery(3);
    assert_eq!(text_answer(&mut finding, b"SendTargets=All\0").matches("TargetName=").count(), 3);
}

fn text_answer(script: &mut Script, keys: &[u8]) -> String {
    let (header, text) = text_request(script, RESERVED_TAG, keys);
    assert_eq!(header.basic().opcode(), Opcode::TextResponse);
    String::from_utf8(text).expect("text")
}

#[test]
fn appendix_c_send_targets_rejects_a_value_that_is_not_a_name() {
    for (mut script, is_discovery) in [(Script::established(""), false), (discovery(1), true)] {
        for value in ["Alle", "A", "all", "Yes", "disk"] {
            let keys = format!("SendTargets={value}\0");
            let (header, text) = text_request(&mut script, RESERVED_TAG, keys.as_bytes());
            assert_eq!(header.basic().opcode(), Opcode::TextResponse);
            assert_eq!(text, b"SendTargets=Reject\0", "{value} with discovery {is_discovery}");
        }
        let keys = b"SendTargets=iqn.2026-11.test:absent\0";
        let (_, text) = text_request(&mut script, RESERVED_TAG, keys);
        assert_eq!(text, b"", "a name without a target has zero targets");
    }
}

#[test]
fn rfc7143_13_14_first_burst_length_is_no_longer_than_max_burst_length() {
    for keys in [
        "FirstBurstLength=65536\0MaxBurstLength=16384\0",
        "MaxBurstLength=16384\0FirstBurstLength=65536\0",
    ] {
        let mut script = Script::new();
        script.login(0x04, &format!("{NAMES}{keys}"));
        let (_, text) = script.next();
        let text = String::from_utf8(text).expect("text");
        assert!(text.split('\0').any(|pair| pair == "FirstBurstLength=16384"), "{text:?}");
    }
    // An answer that was already sent cannot be changed.
    let mut script = Script::new();
    script.login(0x04, &format!("{NAMES}FirstBurstLength=65536\0"));
    assert_eq!(status(&mut script), LoginStatus::Success);
    script.login(0x87, "MaxBurstLength=16384\0");
    assert_eq!(status(&mut script), LoginStatus::InitiatorError);
}

#[test]
fn rfc7143_4_2_7_invalid_iscsi_name_is_refused() {
    let name = "InitiatorName=iqn.2026-11.test:host\0";
    for keys in [
        format!("InitiatorName=host\0TargetName={TARGET}\0"),
        format!("InitiatorName=iqn.2026-11.test:\x1b[2J\0TargetName={TARGET}\0"),
        format!("{name}TargetName=iqn.2026-11.test:disk\n\0"),
        format!("InitiatorName=iqn.2026-11.test:{}\0TargetName={TARGET}\0", "a".repeat(300)),
    ] {
        let mut script = Script::new();
        script.login(0x87, &keys);
        assert_eq!(status(&mut script), LoginStatus::InitiatorError, "{keys:?}");
        let Some(CloseReason::LoginRefused(refusal)) = script.connection.closing() else {
            panic!("the login is over");
        };
        assert_eq!(refusal.reason, RefusalReason::InvalidName, "{keys:?}");
    }
    let mut script = Script::new();
    let upper = TARGET.to_ascii_uppercase();
    script.login(0x87, &format!("InitiatorName=IQN.2026-11.test:Host\0TargetName={upper}\0"));
    let Some(Event::Establish(admission)) = script.connection.poll_event() else { panic!() };
    assert_eq!(admission.initiator_name, "iqn.2026-11.test:host");
    assert_eq!(admission.target_name.as_deref(), Some(TARGET));
}

#[test]
fn rfc7143_7_7_a_request_without_its_final_bit_is_a_format_error() {
    for opcode in
        [Opcode::NopOut, Opcode::TaskManagementRequest, Opcode::LogoutRequest, Opcode::SnackRequest]
    {
        for immediate in [0, IMMEDIATE] {
            let mut script = Script::established("ErrorRecoveryLevel=2\0");
            let mut header = BasicHeader::from(RawHeader::with_opcode(opcode));
            header.opcode_byte |= immediate;
            header.flags = 0;
            let result = script.send(header, &[]);
            assert!(matches!(result, Err(CloseReason::Format { .. })), "{opcode:?} {result:?}");
            script.nothing_more();
        }
    }
    let mut script = Script::established("");
    let handled = script.connection.handle_input(&[0; 4096], script.now, &mut script.world);
    assert!(matches!(handled, Err(CloseReason::Format { .. })), "{handled:?}");
    // Text requests may still be sent.
    let mut text = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    text.opcode_byte |= IMMEDIATE;
    text.flags = 0;
    let mut script = Script::established("");
    script.send(text, b"").expect("the session goes on");
    assert_eq!(script.next().0.basic().opcode(), Opcode::TextResponse);
}

/// Sends a text request with the next CmdSN. Returns its answer.
fn numbered_text(script: &mut Script, keys: &[u8]) -> RawHeader {
    let mut text = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    text.initiator_task_tag = 3.into();
    text.cmd_sn = script.cmd_sn.into();
    script.send(text, keys).expect("the session goes on");
    script.next().0
}

fn is_rejected(header: &RawHeader, reason: RejectReason, exp_cmd_sn: u32) {
    assert_eq!(header.basic().opcode(), Opcode::Reject);
    let reject = Reject::view(header);
    assert_eq!((reject.reason(), reject.exp_cmd_sn.get()), (reason, exp_cmd_sn));
}

#[test]
fn rfc7143_7_3_the_number_of_a_rejected_request_is_not_received() {
    let mut script = Script::established("");
    let cmd_sn = script.cmd_sn;
    script.command(1, READ, 0, &[]);
    let _running = script.next_command();
    script.command(1, READ, 0, &[]);
    is_rejected(&script.next().0, RejectReason::TaskInProgress, cmd_sn + 1);
    script.cmd_sn = cmd_sn + 1;
    let mut unknown = NopOut::from(RawHeader::with_opcode(Opcode(0x1c)));
    unknown.cmd_sn = script.cmd_sn.into();
    script.send(unknown, &[]).expect("the session goes on");
    is_rejected(&script.next().0, RejectReason::CommandNotSupported, cmd_sn + 1);
    let header = numbered_text(&mut script, b"InitiatorName=iqn.2026-11.test:other\0");
    is_rejected(&header, RejectReason::ProtocolError, cmd_sn + 1);
    script.command(2, READ, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 2);
}

#[test]
fn rfc7143_4_3_a_discovery_session_takes_send_targets_alone() {
    let mut script = discovery(2);
    let cmd_sn = script.cmd_sn;
    script.command(1, READ, 0, &[]);
    is_rejected(&script.next().0, RejectReason::ProtocolError, cmd_sn);
    script.cmd_sn = cmd_sn;
    let mut request = script.management_request(TaskManagementFunction::LogicalUnitReset, 0, 0);
    request.opcode_byte &= !IMMEDIATE;
    script.send(request, &[]).expect("the session goes on");
    is_rejected(&script.next().0, RejectReason::ProtocolError, cmd_sn);
    for keys in [
        &b"MaxRecvDataSegmentLength=4096\0"[..],
        b"SendTargets=All\0MaxRecvDataSegmentLength=4096\0",
        b"X-com.example.speed=11\0",
        b"",
    ] {
        let header = numbered_text(&mut script, keys);
        is_rejected(&header, RejectReason::ProtocolError, cmd_sn);
    }
    let header = numbered_text(&mut script, b"SendTargets=All\0");
    assert_eq!(header.basic().opcode(), Opcode::TextResponse);
    assert_eq!(TextResponse::view(&header).exp_cmd_sn.get(), cmd_sn + 1);
}

/// Sends a part of a negotiation. Returns the opcode and the transfer tag of the answer.
fn negotiate(script: &mut Script, transfer_tag: u32, flags: u8, keys: &[u8]) -> (Opcode, u32) {
    let mut text = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    text.opcode_byte |= IMMEDIATE;
    text.flags = flags;
    text.initiator_task_tag = 3.into();
    text.target_transfer_tag = transfer_tag.into();
    text.cmd_sn = script.cmd_sn.into();
    script.send(text, keys).expect("the session goes on");
    let (header, _) = script.next();
    (header.basic().opcode(), TextResponse::view(&header).target_transfer_tag.get())
}

fn segment_length(script: &Script) -> u32 {
    script.connection.parameters().peer_max_recv_data_segment_length
}

#[test]
fn rfc7143_6_4_a_value_is_in_use_when_its_negotiation_is_complete() {
    let mut script = Script::established("MaxRecvDataSegmentLength=1024\0");
    let declaration = b"MaxRecvDataSegmentLength=4096\0";
    let (opcode, tag) = negotiate(&mut script, RESERVED_TAG, 0, declaration);
    assert_eq!((opcode, segment_length(&script)), (Opcode::TextResponse, 1024));
    let (opcode, _) = negotiate(&mut script, tag, FINAL, b"");
    assert_eq!((opcode, segment_length(&script)), (Opcode::TextResponse, 4096));
    // RFC 7143 §7.12: a failed negotiation changes nothing.
    for wrong in [&b"MaxRecvDataSegmentLength=512\0broken\0"[..], b"SessionType=Normal\0"] {
        let (_, tag) = negotiate(&mut script, RESERVED_TAG, 0, b"MaxRecvDataSegmentLength=2048\0");
        let (opcode, _) = negotiate(&mut script, tag, FINAL, wrong);
        assert_eq!((opcode, segment_length(&script)), (Opcode::Reject, 4096));
        let (opcode, _) = negotiate(&mut script, tag, FINAL, b"");
        assert_eq!((opcode, segment_length(&script)), (Opcode::Reject, 4096), "it is over");
    }
}

#[test]
fn rfc7143_6_4_a_key_is_not_declared_twice_in_a_negotiation() {
    let mut script = Script::established("MaxRecvDataSegmentLength=1024\0");
    let twice = b"MaxRecvDataSegmentLength=4096\0MaxRecvDataSegmentLength=8192\0";
    let (opcode, _) = negotiate(&mut script, RESERVED_TAG, FINAL, twice);
    assert_eq!((opcode, segment_length(&script)), (Opcode::Reject, 1024));
    let once = b"MaxRecvDataSegmentLength=4096\0";
    let (_, tag) = negotiate(&mut script, RESERVED_TAG, 0, once);
    let (opcode, _) = negotiate(&mut script, tag, FINAL, once);
    assert_eq!((opcode, segment_length(&script)), (Opcode::Reject, 1024));
}
