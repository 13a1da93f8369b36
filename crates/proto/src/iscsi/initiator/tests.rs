//! Tests of the connection with scripted targets.

use proptest::prelude::*;
use sarsen_block::{Buffer, Piece};
use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL};
use sarsen_wire::iscsi::{
    AsyncEvent, BasicHeader, DataIn, DataOut, Isid, LoginRequest, LoginResponse, LoginStatus,
    LogoutResponse, NopIn, NopOut, Opcode, R2t, RESERVED_TAG, RawHeader, Reject, RejectReason,
    ScsiCommand, ScsiResponse, TaskManagementRequest, TaskManagementResponse, TextRequest,
    TextResponse, U24, padding,
};

use super::super::{DigestKind, Frame, Framer, Landing, Output};
use super::*;

mod recovery;
mod session;

const LUN: [u8; 8] = [0, 1, 0, 0, 0, 0, 0, 0];
const WINDOW_TOP: u32 = 4;

pub(super) type Pdu = (RawHeader, Vec<u8>);

pub(super) fn options() -> LoginOptions {
    let target = SessionTarget::Named("iqn.2026-01.test:disk".to_owned());
    LoginOptions::new("iqn.2026-01.test:host", target, Isid([0x80, 1, 2, 3, 0, 0]))
}

/// Returns all bytes in the output.
pub(super) fn drain(connection: &mut Connection) -> Vec<u8> {
    drain_output(connection.output())
}

fn drain_output(output: &mut Output) -> Vec<u8> {
    let mut stream = Vec::new();
    while !output.is_empty() {
        let mut pieces = Vec::new();
        output.pieces(&mut pieces, 16);
        let start = stream.len();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => stream.extend_from_slice(bytes),
                Piece::Shared { .. } => unreachable!("no store's memory is sent here"),
            }
        }
        output.sent(stream.len() - start);
    }
    stream
}

/// Returns all PDUs in the output. They have no digests.
pub(super) fn sent(connection: &mut Connection) -> Vec<Pdu> {
    pdus(&drain(connection), false)
}

fn pdus(stream: &[u8], data_digest: bool) -> Vec<Pdu> {
    let mut input = stream;
    let mut framer = Framer::default();
    framer.set_digests(false, data_digest);
    framer.set_max_data_segment_length(1 << 24);
    let mut pdus = Vec::new();
    loop {
        match framer.advance(&mut input).unwrap() {
            Frame::Starved => return pdus,
            Frame::Header => framer.place(Landing::Collect),
            Frame::Segment { segment, .. } => {
                pdus.push((*framer.header(), segment.bytes().to_vec()));
            }
        }
    }
}

fn encode(header: impl Into<RawHeader>, data: &[u8]) -> Vec<u8> {
    let mut basic = BasicHeader::from(header.into());
    basic.data_segment_length = U24::new(data.len() as u32);
    let mut bytes = RawHeader::from(basic).0.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len() + padding(data.len()), 0);
    bytes
}

pub(super) fn login_response(flags: u8, status: LoginStatus, text: &str) -> Vec<u8> {
    let mut header = LoginResponse::from(RawHeader::ZERO);
    header.opcode_byte = Opcode::LoginResponse.0;
    header.flags = flags;
    header.tsih = 7.into();
    header.stat_sn = 100.into();
    header.exp_cmd_sn = 1.into();
    header.max_cmd_sn = WINDOW_TOP.into();
    header.status = status.0.into();
    encode(header, text.as_bytes())
}

pub(super) const TO_OPERATIONAL: u8 = 0x81;
pub(super) const TO_FULL_FEATURE: u8 = 0x87;

/// Returns a connection in full feature phase after these answers of the target.
fn logged_in(options: LoginOptions, answers: &str) -> Connection {
    let mut connection = Connection::new(options);
    let security = login_response(TO_OPERATIONAL, LoginStatus::Success, "AuthMethod=None\0");
    connection.handle_input(&security).unwrap();
    let operational = login_response(TO_FULL_FEATURE, LoginStatus::Success, answers);
    connection.handle_input(&operational).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::SecurityPassed)));
    assert!(matches!(connection.poll_event(), Some(Event::LoggedIn)));
    drain(&mut connection);
    connection
}

fn ready() -> Connection {
    logged_in(options(), "InitialR2T=No\0MaxRecvDataSegmentLength=1024\0FirstBurstLength=2560\0")
}

/// Returns a header of the target with StatSN 101 and an open window.
fn from_target(opcode: Opcode, tag: u32) -> NopIn {
    let mut header = NopIn::from(RawHeader::with_opcode(opcode));
    header.initiator_task_tag = tag.into();
    header.stat_sn = 101.into();
    header.exp_cmd_sn = 1.into();
    header.max_cmd_sn = WINDOW_TOP.into();
    header
}

fn data_in(tag: u32, offset: u32, data: &[u8], flags: u8) -> Vec<u8> {
    let mut header = DataIn::from(RawHeader::from(from_target(Opcode::DataIn, tag)));
    header.flags = flags;
    header.buffer_offset = offset.into();
    encode(header, data)
}

fn r2t(tag: u32, offset: u32, length: u32) -> Vec<u8> {
    let mut header = R2t::from(RawHeader::from(from_target(Opcode::R2t, tag)));
    header.target_transfer_tag = 77.into();
    header.buffer_offset = offset.into();
    header.desired_data_transfer_length = length.into();
    encode(header, &[])
}

fn read(length: u32, landing: ReadLanding) -> CommandRequest {
    let transfer = Transfer::Read { length, landing };
    CommandRequest { lun: LUN, cdb: [0x88; 16], attribute: TaskAttribute::Simple, transfer }
}

fn send_read(connection: &mut Connection, length: u32, landing: ReadLanding) -> u32 {
    connection.command(read(length, landing), Token(5)).ok().unwrap()
}

fn send_write(connection: &mut Connection, data: &[u8]) -> u32 {
    let payload = connection.payload(Buffer::copy_of(data));
    let transfer = Transfer::Write { payload, length: data.len() as u32 };
    let attribute = TaskAttribute::Ordered;
    let request = CommandRequest { lun: LUN, cdb: [0x8a; 16], attribute, transfer };
    connection.command(request, Token(6)).ok().unwrap()
}

fn completion(connection: &mut Connection) -> Completion {
    match connection.poll_event() {
        Some(Event::Completed(completion)) => completion,
        other => panic!("{other:?}"),
    }
}

pub(super) fn error_of(connection: &mut Connection, bytes: &[u8]) -> ConnectionError {
    let error = connection.handle_input(bytes).unwrap_err();
    assert_eq!(connection.handle_input(&[]).unwrap_err(), error, "an error is final");
    error
}

#[test]
fn rfc7143_6_3_login_goes_from_names_to_offers_to_full_feature() {
    let mut connection = Connection::new(options());
    let first = sent(&mut connection);
    let header = LoginRequest::view(&first[0].0);
    assert_eq!((header.opcode_byte, header.flags), (0x43, 0x81));
    assert_eq!(header.isid, Isid([0x80, 1, 2, 3, 0, 0]));
    let text = String::from_utf8(first[0].1.clone()).unwrap();
    assert_eq!(
        text,
        "InitiatorName=iqn.2026-01.test:host\0SessionType=Normal\0\
         TargetName=iqn.2026-01.test:disk\0AuthMethod=None\0"
    );
    let answer = login_response(TO_OPERATIONAL, LoginStatus::Success, "AuthMethod=None\0");
    connection.handle_input(&answer).unwrap();
    let second = sent(&mut connection);
    let header = LoginRequest::view(&second[0].0);
    assert_eq!((header.flags, header.tsih.get(), header.exp_stat_sn.get()), (0x87, 7, 101));
    let text = String::from_utf8(second[0].1.clone()).unwrap();
    for key in ["InitialR2T=No", "ImmediateData=Yes", "MaxRecvDataSegmentLength=1048576"] {
        assert!(text.contains(key), "{key}");
    }
    assert_eq!(connection.window(), 0);
    assert!(matches!(connection.poll_event(), Some(Event::SecurityPassed)));
    assert!(connection.poll_event().is_none());
    let answers = "HeaderDigest=None\0InitialR2T=Yes\0MaxBurstLength=8192\0\
        FirstBurstLength=65536\0MaxRecvDataSegmentLength=65536\0TargetPortalGroupTag=1\0";
    let answer = login_response(TO_FULL_FEATURE, LoginStatus::Success, answers);
    connection.handle_input(&answer).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::LoggedIn)));
    let parameters = connection.parameters();
    assert!(parameters.initial_r2t);
    assert_eq!(parameters.peer_max_recv_data_segment_length, 65536);
    assert_eq!(parameters.local_max_recv_data_segment_length, 1_048_576);
    // RFC 7143 §13.14: FirstBurstLength never exceeds MaxBurstLength.
    assert_eq!((parameters.max_burst_length, parameters.first_burst_length), (8192, 8192));
    assert_eq!(connection.window(), WINDOW_TOP);
}

#[test]
fn rfc7143_6_2_text_that_goes_on_is_fetched_with_empty_requests() {
    let mut connection = Connection::new(options());
    drain(&mut connection);
    let part = login_response(CONTINUE, LoginStatus::Success, "AuthMe");
    connection.handle_input(&part).unwrap();
    let request = sent(&mut connection);
    assert_eq!((request[0].0.basic().flags, request[0].1.len()), (0, 0));
    let rest = login_response(TO_OPERATIONAL, LoginStatus::Success, "thod=None\0");
    connection.handle_input(&rest).unwrap();
    assert_eq!(sent(&mut connection)[0].0.basic().flags, 0x87);
}

#[test]
fn rfc7143_6_2_a_targets_own_offers_are_answered() {
    let mut connection = Connection::new(options());
    connection.handle_input(&login_response(TO_OPERATIONAL, LoginStatus::Success, "")).unwrap();
    drain(&mut connection);
    let answers = "X-com.example.fast=Yes\0IFMarker=Yes\0TargetAlias=box\0";
    connection.handle_input(&login_response(0x04, LoginStatus::Success, answers)).unwrap();
    let request = sent(&mut connection);
    assert_eq!(request[0].0.basic().flags, 0x87);
    assert_eq!(request[0].1, b"X-com.example.fast=NotUnderstood\0IFMarker=No\0");
}

#[test]
fn rfc7143_11_13_5_login_statuses_are_classified_by_next_step() {
    let moved = LoginStatus::TargetMovedPermanently;
    assert_eq!(
        login_error(moved, "TargetAddress=10.0.0.2:3260,1\0"),
        LoginError::Redirected { address: "10.0.0.2:3260,1".to_owned(), permanent: true }
    );
    for (status, error) in [
        (LoginStatus::NotFound, LoginError::NotFound { status: LoginStatus::NotFound }),
        (LoginStatus(0x0201), LoginError::Denied { status: LoginStatus(0x0201), algorithm: None }),
        (LoginStatus(0x0301), LoginError::Unavailable { status: LoginStatus(0x0301) }),
        (LoginStatus(0x0700), LoginError::Refused { status: LoginStatus(0x0700) }),
    ] {
        assert_eq!(login_error(status, ""), error);
    }
}

/// Returns the error of a login whose first response has this status and text.
fn login_error(status: LoginStatus, text: &str) -> LoginError {
    let mut connection = Connection::new(options());
    match error_of(&mut connection, &login_response(0, status, text)) {
        ConnectionError::Login(error) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_required_digest_that_is_refused_ends_the_login() {
    let mut options = options();
    options.data_digest = DigestOffer::Require;
    for answer in ["DataDigest=None\0", "DataDigest=Reject\0", ""] {
        let mut connection = Connection::new(options.clone());
        let security = login_response(TO_OPERATIONAL, LoginStatus::Success, "");
        connection.handle_input(&security).unwrap();
        let operational = login_response(TO_FULL_FEATURE, LoginStatus::Success, answer);
        let error = error_of(&mut connection, &operational);
        assert!(matches!(error, ConnectionError::Login(LoginError::NoAgreement { .. })));
    }
    let connection = logged_in(options, "DataDigest=CRC32C\0");
    assert_eq!(connection.parameters().data_digest, DigestKind::Crc32c);
}

#[test]
fn digests_hold_both_ways_after_the_login() {
    let mut options = options();
    options.header_digest = DigestOffer::Prefer;
    let mut connection = logged_in(options, "HeaderDigest=CRC32C\0");
    connection.ping(Token(1));
    assert_eq!(drain(&mut connection).len(), 52);
    let mut wrong = encode(from_target(Opcode::NopIn, 0), &[]);
    wrong.extend_from_slice(&[0; 4]);
    assert!(matches!(error_of(&mut connection, &wrong), ConnectionError::Framing(_)));
}

#[test]
fn rfc7143_4_2_2_1_the_window_limits_commands() {
    let mut connection = ready();
    for _ in 0..WINDOW_TOP {
        send_read(&mut connection, 512, ReadLanding::Discard);
    }
    assert!(connection.command(read(512, ReadLanding::Discard), Token(9)).is_err());
    let numbers: Vec<u32> =
        sent(&mut connection).iter().map(|pdu| ScsiCommand::view(&pdu.0).cmd_sn.get()).collect();
    assert_eq!(numbers, [1, 2, 3, 4]);
    // A lower MaxCmdSN changes nothing. A higher one opens the window.
    let mut header = from_target(Opcode::NopIn, RESERVED_TAG);
    header.max_cmd_sn = 3.into();
    connection.handle_input(&encode(header, &[])).unwrap();
    assert_eq!(connection.window(), 0);
    header.max_cmd_sn = 6.into();
    connection.handle_input(&encode(header, &[])).unwrap();
    assert_eq!(connection.window(), 2);
}

#[test]
fn data_in_lands_in_one_buffer_and_the_status_may_ride_on_it() {
    let mut connection = ready();
    let tag = send_read(&mut connection, 1000, ReadLanding::Buffer);
    let data: Vec<u8> = (0..1000u32).map(|at| at as u8).collect();
    connection.handle_input(&data_in(tag, 0, &data[..600], 0)).unwrap();
    let last = data_in(tag, 600, &data[600..], FINAL | DataIn::STATUS);
    connection.handle_input(&last[..48]).unwrap();
    connection.landing().unwrap()[..300].copy_from_slice(&data[600..900]);
    connection.landed(300);
    connection.handle_input(&last[48 + 300..]).unwrap();
    let done = completion(&mut connection);
    assert!(done.is_good());
    assert_eq!((done.token, done.received), (Token(5), 1000));
    assert_eq!(&done.data.unwrap()[..], &data[..]);
    assert_eq!(connection.open_requests(), 0);
}

#[test]
fn discarded_data_is_counted_and_residuals_are_reported() {
    let mut connection = ready();
    let tag = send_read(&mut connection, 1024, ReadLanding::Discard);
    let mut header = DataIn::from(RawHeader::from(from_target(Opcode::DataIn, tag)));
    header.flags = FINAL | DataIn::STATUS | ScsiResponse::UNDERFLOW;
    header.residual_count = 512.into();
    connection.handle_input(&encode(header, &[1; 512])).unwrap();
    let done = completion(&mut connection);
    assert_eq!((done.received, done.residual), (512, Residual::Underflow(512)));
    assert!(done.data.is_none());
}

#[test]
fn rfc7143_11_4_7_sense_data_comes_with_the_response() {
    let mut connection = ready();
    let tag = send_read(&mut connection, 512, ReadLanding::Buffer);
    let mut header = ScsiResponse::from(RawHeader::from(from_target(Opcode::ScsiResponse, tag)));
    header.status = 2;
    connection.handle_input(&encode(header, &[0, 3, 0x70, 0, 5, 0xee])).unwrap();
    let done = completion(&mut connection);
    assert_eq!((done.status, &done.sense[..]), (2, &[0x70, 0, 5][..]));
    assert_eq!(done.data.unwrap().len(), 0);
}

#[test]
fn rfc7143_4_2_5_2_a_write_goes_immediately_then_unsolicited_then_as_asked() {
    let mut connection = ready(); // segments of 1024 bytes, 2560 unsolicited bytes
    let data: Vec<u8> = (0..5000u32).map(|at| (at / 3) as u8).collect();
    let tag = send_write(&mut connection, &data);
    let pdus = sent(&mut connection);
    let command = ScsiCommand::view(&pdus[0].0);
    assert_eq!(command.flags, ScsiCommand::WRITE | 2, "more follows: no final bit");
    assert_eq!(pdus[0].1, data[..1024]);
    let shapes: Vec<_> = pdus[1..].iter().map(data_out_shape).collect();
    assert_eq!(shapes, [(1024, 1024, 0, 0), (2048, 512, 1, FINAL)]);
    assert_eq!(DataOut::view(&pdus[1].0).target_transfer_tag.get(), RESERVED_TAG);

    connection.handle_input(&r2t(tag, 2560, 1500)).unwrap();
    connection.handle_input(&r2t(tag, 4060, 940)).unwrap();
    let pdus = sent(&mut connection);
    let shapes: Vec<_> = pdus.iter().map(data_out_shape).collect();
    assert_eq!(shapes, [(2560, 1024, 0, 0), (3584, 476, 1, FINAL), (4060, 940, 0, FINAL)]);
    assert_eq!(DataOut::view(&pdus[0].0).target_transfer_tag.get(), 77);
    assert_eq!(pdus.concat_data(), data[2560..]);
}

/// Returns the offset, the length, DataSN and the flags of a Data-Out PDU.
fn data_out_shape((header, data): &Pdu) -> (u32, usize, u32, u8) {
    let header = DataOut::view(header);
    (header.buffer_offset.get(), data.len(), header.data_sn.get(), header.flags)
}

trait ConcatData {
    fn concat_data(&self) -> Vec<u8>;
}

impl ConcatData for Vec<Pdu> {
    fn concat_data(&self) -> Vec<u8> {
        self.iter().flat_map(|pdu| pdu.1.clone()).collect()
    }
}

#[test]
fn rfc7143_13_10_with_initial_r2t_only_immediate_data_goes_unasked() {
    let mut connection = logged_in(options(), "InitialR2T=Yes\0ImmediateData=Yes\0");
    send_write(&mut connection, &[1; 20_000]);
    let pdus = sent(&mut connection);
    assert_eq!((pdus.len(), pdus[0].1.len()), (1, 8192));
    assert_eq!(ScsiCommand::view(&pdus[0].0).flags & FINAL, FINAL);
    let mut connection = logged_in(options(), "InitialR2T=Yes\0ImmediateData=No\0");
    send_write(&mut connection, &[1; 20_000]);
    let pdus = sent(&mut connection);
    assert_eq!((pdus.len(), pdus[0].1.len()), (1, 0));
}

#[test]
fn rfc7143_11_8_r2ts_beyond_the_command_end_the_connection() {
    for (offset, length) in [(0, 10), (2560, 0), (2560, 2441), (5001, 1), (u32::MAX, u32::MAX)] {
        let mut connection = ready();
        let tag = send_write(&mut connection, &[0; 5000]);
        let error = error_of(&mut connection, &r2t(tag, offset, length));
        let wanted = ProtocolError::R2tRange { offset, length, total: 5000 };
        assert_eq!(error, ConnectionError::Protocol(wanted));
    }
}

#[test]
fn data_in_out_of_place_ends_the_connection() {
    for (offset, length) in [(4, 100), (0, 513), (u32::MAX, 8)] {
        let mut connection = ready();
        let tag = send_read(&mut connection, 512, ReadLanding::Buffer);
        let error = error_of(&mut connection, &data_in(tag, offset, &vec![0; length], 0));
        assert!(matches!(error, ConnectionError::Protocol(ProtocolError::DataInPlace { .. })));
    }
}

#[test]
fn answers_to_nothing_end_the_connection() {
    for opcode in [
        Opcode::DataIn,
        Opcode::ScsiResponse,
        Opcode::R2t,
        Opcode::TextResponse,
        Opcode::TaskManagementResponse,
        Opcode::LogoutResponse,
        Opcode::NopIn,
    ] {
        let mut connection = ready();
        let error = error_of(&mut connection, &encode(from_target(opcode, 3), &[]));
        let wanted = ProtocolError::UnknownTask { opcode, tag: 3 };
        assert_eq!(error, ConnectionError::Protocol(wanted));
    }
    let mut connection = ready();
    let error = error_of(&mut connection, &encode(from_target(Opcode::LoginResponse, 0), &[]));
    let wanted = ProtocolError::UnexpectedOpcode(Opcode::LoginResponse);
    assert_eq!(error, ConnectionError::Protocol(wanted));
}

#[test]
fn rfc7143_11_19_a_targets_ping_is_answered_with_its_tag() {
    let mut connection = ready();
    let mut ping = from_target(Opcode::NopIn, RESERVED_TAG);
    ping.target_transfer_tag = 42.into();
    ping.lun = LUN;
    connection.handle_input(&encode(ping, &[])).unwrap();
    let pdus = sent(&mut connection);
    let answer = NopOut::view(&pdus[0].0);
    assert_eq!((answer.opcode_byte, answer.target_transfer_tag.get()), (0x40, 42));
    assert_eq!((answer.initiator_task_tag.get(), answer.lun), (RESERVED_TAG, LUN));
    // A target that sends pings and reads no answers loses the connection.
    let flood: Vec<u8> = (0..2000).flat_map(|_| encode(ping, &[])).collect();
    assert!(matches!(
        error_of(&mut connection, &flood),
        ConnectionError::Protocol(ProtocolError::PingFlood(_))
    ));
}

#[test]
fn our_ping_is_answered() {
    let mut connection = ready();
    connection.ping(Token(8));
    let tag = sent(&mut connection)[0].0.basic().initiator_task_tag.get();
    connection.handle_input(&encode(from_target(Opcode::NopIn, tag), &[])).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Pong { token: Token(8) })));
}

#[test]
fn rfc7143_11_11_text_that_goes_on_is_fetched_with_the_targets_tag() {
    let mut options = options();
    options.target = SessionTarget::Discovery;
    let mut connection = logged_in(options, "");
    connection.text(b"SendTargets=All\0", Token(3));
    let request = sent(&mut connection);
    let tag = request[0].0.basic().initiator_task_tag.get();
    assert_eq!(request[0].1, b"SendTargets=All\0");
    let mut header = TextResponse::from(RawHeader::from(from_target(Opcode::TextResponse, tag)));
    header.flags = CONTINUE;
    header.target_transfer_tag = 9.into();
    connection.handle_input(&encode(header, b"TargetName=iqn.")).unwrap();
    let request = sent(&mut connection);
    let fetch = TextRequest::view(&request[0].0);
    assert_eq!((fetch.target_transfer_tag.get(), fetch.initiator_task_tag.get()), (9, tag));
    assert_eq!(request[0].1.len(), 0);
    header.flags = FINAL;
    header.target_transfer_tag = RESERVED_TAG.into();
    connection.handle_input(&encode(header, b"a\0")).unwrap();
    match connection.poll_event() {
        Some(Event::TextDone { token: Token(3), text }) => assert_eq!(text, b"TargetName=iqn.a\0"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rfc7143_11_5_an_aborted_command_has_no_completion() {
    let mut connection = ready();
    let tag = send_read(&mut connection, 512, ReadLanding::Buffer);
    let other = connection.command(read(512, ReadLanding::Buffer), Token(50)).ok().unwrap();
    drain(&mut connection);
    assert!(!connection.task_management(TaskManagement::AbortTask(Token(99)), Token(10)));
    assert!(connection.task_management(TaskManagement::AbortTask(Token(5)), Token(10)));
    let request = sent(&mut connection);
    let header = TaskManagementRequest::view(&request[0].0);
    assert_eq!((header.flags, header.referenced_task_tag.get()), (0x81, tag));
    assert_eq!(header.ref_cmd_sn.get(), 1);
    let tag = header.initiator_task_tag.get();
    let answer = encode(from_target(Opcode::TaskManagementResponse, tag), &[]);
    connection.handle_input(&answer).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Aborted { token: Token(5) })));
    let Some(Event::TaskManagementDone { token, response }) = connection.poll_event() else {
        panic!("no answer")
    };
    assert_eq!((token, response), (Token(10), TaskManagementResponse::FunctionComplete));
    // A reset of the logical unit aborts the other command.
    connection.task_management(TaskManagement::LogicalUnitReset(LUN), Token(11));
    let tag = sent(&mut connection)[0].0.basic().initiator_task_tag.get();
    assert_ne!(tag, other);
    let answer = encode(from_target(Opcode::TaskManagementResponse, tag), &[]);
    connection.handle_input(&answer).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Aborted { token: Token(50) })));
}

#[test]
fn rfc7143_11_6_1_an_abort_that_came_too_late_ends_no_other_command() {
    let mut connection = ready();
    let tag = send_read(&mut connection, 512, ReadLanding::Buffer);
    drain(&mut connection);
    assert!(connection.task_management(TaskManagement::AbortTask(Token(5)), Token(10)));
    let abort = sent(&mut connection)[0].0.basic().initiator_task_tag.get();
    let answer = encode(from_target(Opcode::ScsiResponse, tag), &[]);
    connection.handle_input(&answer).unwrap();
    assert!(matches!(connection.poll_event(), Some(Event::Completed(_))));
    connection.command(read(512, ReadLanding::Buffer), Token(6)).ok().unwrap();
    let mut answer = RawHeader::from(from_target(Opcode::TaskManagementResponse, abort));
    answer.0[2] = TaskManagementResponse::TaskDoesNotExist.0;
    connection.handle_input(&encode(answer, &[])).unwrap();
    let Some(Event::TaskManagementDone { token, .. }) = connection.poll_event() else {
        panic!("the command that was sent meanwhile was aborted")
    };
    assert_eq!((token, connection.open_requests()), (Token(10), 1));
}

#[test]
fn rejects_and_messages_are_reported_and_logout_ends_phase() {
    let mut connection = ready();
    send_read(&mut connection, 512, ReadLanding::Buffer);
    let command = drain(&mut connection);
    let mut reject = Reject::from(RawHeader::from(from_target(Opcode::Reject, RESERVED_TAG)));
    reject.reason = RejectReason::CommandNotSupported.0;
    connection.handle_input(&encode(reject, &command)).unwrap();
    let Some(Event::Rejected { reason, token }) = connection.poll_event() else { panic!() };
    assert_eq!((reason, token), (RejectReason::CommandNotSupported, Some(Token(5))));

    let mut raw = RawHeader::from(from_target(Opcode::AsyncMessage, RESERVED_TAG));
    raw.0[36] = AsyncEvent::LogoutRequest.0;
    connection.handle_input(&encode(raw, &[])).unwrap();
    assert!(matches!(
        connection.poll_event(),
        Some(Event::AsyncMessage { event: AsyncEvent::LogoutRequest, .. })
    ));

    connection.logout();
    assert!(!connection.is_logged_out());
    let tag = sent(&mut connection)[0].0.basic().initiator_task_tag.get();
    connection.handle_input(&encode(from_target(Opcode::LogoutResponse, tag), &[])).unwrap();
    let Some(Event::LoggedOut { response }) = connection.poll_event() else { panic!() };
    assert!(connection.is_logged_out());
    assert_eq!(response, LogoutResponse::Closed);
    assert_eq!(connection.window(), 0);
    assert!(connection.command(read(512, ReadLanding::Discard), Token(1)).is_err());
}

/// Returns a PDU with a target's opcode, small tags and arbitrary fields and data.
fn hostile_pdu() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop::sample::select(vec![
        0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x31, 0x32, 0x3f, 0x05, 0x3c,
    ]);
    let number = prop_oneof![0u32..2048, any::<u32>()];
    let tag = prop_oneof![0u32..8, Just(RESERVED_TAG)];
    let data = prop::collection::vec(any::<u8>(), 0..700);
    (opcode, any::<[u8; 48]>(), tag, number.clone(), number, data).prop_map(
        |(opcode, mut raw, tag, offset, length, data)| {
            raw[0] = opcode;
            raw[4] = 0;
            raw[16..20].copy_from_slice(&tag.to_be_bytes());
            raw[40..44].copy_from_slice(&offset.to_be_bytes());
            raw[44..48].copy_from_slice(&length.to_be_bytes());
            encode(RawHeader(raw), &data)
        },
    )
}

fn feed(connection: &mut Connection, bytes: &[u8], step: usize) {
    for piece in bytes.chunks(step) {
        let landed = connection.landing().map_or(0, |landing| {
            let count = landing.len().min(piece.len());
            landing[..count].copy_from_slice(&piece[..count]);
            count
        });
        connection.landed(landed);
        if connection.handle_input(&piece[landed..]).is_err() {
            return;
        }
    }
    while connection.poll_event().is_some() {}
}

proptest! {
    #[test]
    fn a_hostile_target_never_causes_a_panic(
        pdus in prop::collection::vec(hostile_pdu(), 1..12),
        noise in prop::collection::vec(any::<u8>(), 0..200),
        step in 1usize..2000,
        log_in: bool,
    ) {
        let mut connection = if log_in { ready() } else { Connection::new(options()) };
        if log_in {
            send_read(&mut connection, 1024, ReadLanding::Buffer);
            send_read(&mut connection, 1024, ReadLanding::Discard);
            send_write(&mut connection, &[3; 5000]);
            connection.text(b"SendTargets=All\0", Token(20));
            connection.ping(Token(21));
            connection.task_management(TaskManagement::TargetWarmReset, Token(22));
            connection.logout();
        }
        // Each PDU also gets a connection of its own: the first error hides later ones.
        for pdu in &pdus {
            feed(&mut connection, pdu, step);
            if connection.handle_input(&[]).is_err() {
                connection = ready();
                send_read(&mut connection, 1024, ReadLanding::Buffer);
                send_write(&mut connection, &[3; 5000]);
            }
        }
        feed(&mut connection, &noise, step);
        drain(&mut connection);
    }

    #[test]
    fn arbitrary_login_text_never_causes_a_panic(
        security in "[ -~]{0,80}", text in "([A-Za-z0-9]{0,20}=?[A-Za-z0-9,]{0,10}\0){0,12}",
        key in prop::sample::select(super::super::keys::KEYS.iter().map(|key| key.name).collect::<Vec<_>>()),
        value in "[A-Za-z0-9]{0,8}|[0-9]{1,10}|Yes|No|None|CRC32C|Reject|Irrelevant|NotUnderstood",
        flags: u8,
    ) {
        let mut connection = Connection::new(options());
        let _ = connection.handle_input(&login_response(flags & 0xc7, LoginStatus::Success, &security));
        let mut connection = Connection::new(options());
        connection.handle_input(&login_response(TO_OPERATIONAL, LoginStatus::Success, "")).unwrap();
        let text = format!("{key}={value}\0{text}");
        let _ = connection.handle_input(&login_response(flags, LoginStatus::Success, &text));
    }
}
