//! Clauses of RFC 7143 that no other test of the target comes by.

use super::*;

const NAMES: &str = "InitiatorName=iqn.x\0TargetName=iqn.2026-11.test:disk\0";

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
    // Current and next stage: 0 security, 1 operational, 3 full feature.
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
    // The reserved bit of the first byte, those beside the attribute, and two reserved bytes.
    bytes[0] |= 0x80;
    bytes[1] |= 0x18;
    bytes[2..4].fill(0xff);
    let handled = script.connection.handle_input(&bytes, script.now, &mut script.world);
    handled.expect("the session goes on");
    let command = script.next_command();
    assert_eq!((command.attribute, command.expected_data_in_length), (0, 512));
}

#[test]
fn rfc7143_11_4_8_exp_data_sn_counts_what_was_sent() {
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
fn rfc7143_13_3_all_targets_are_told_in_a_discovery_alone() {
    let told = |script: &mut Script, keys: &[u8]| {
        let (header, text) = text_request(script, RESERVED_TAG, keys);
        assert_eq!(header.basic().opcode(), Opcode::TextResponse);
        String::from_utf8(text).expect("text")
    };
    let mut normal = Script::established("");
    normal.world.target_count = 3;
    assert_eq!(told(&mut normal, b"SendTargets=All\0"), "SendTargets=Reject\0");
    assert_eq!(told(&mut normal, b"SendTargets=\0").matches("TargetName=").count(), 1);
    assert_eq!(told(&mut normal, b"SendTargets=iqn.2026-11.test:disk1\0"), "", "another one");
    let mut finding = discovery(3);
    assert_eq!(told(&mut finding, b"SendTargets=All\0").matches("TargetName=").count(), 3);
}
