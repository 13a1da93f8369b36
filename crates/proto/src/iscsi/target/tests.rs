//! Tests of the target with a scripted initiator, which sends PDUs and checks PDUs and events.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use sarsen_block::{Buffer, Data, Piece};
use sarsen_wire::iscsi::pdu::{CONTINUE, FINAL, IMMEDIATE};
use sarsen_wire::iscsi::{
    BasicHeader, DataIn, DataOut, LoginRequest, LoginResponse, LoginStatus, LogoutReason,
    LogoutRequest, LogoutResponsePdu, NopIn, NopOut, Opcode, R2t, RESERVED_TAG, RawHeader, Reject,
    RejectReason, ScsiCommand, ScsiResponse, TaskManagementFunction, TaskManagementRequest,
    TaskManagementResponsePdu, TextRequest, TextResponse, U24,
};

use sarsen_wire::iscsi::ahs;

use super::*;
use crate::iscsi::Framer;
use crate::iscsi::chap::{Algorithm, Credentials, Secret};

mod allegiance;
mod authentication;
mod clauses;
mod limits;
mod management;
mod recovery;
mod session;
mod with_initiator;

const TARGET: &str = "iqn.2026-11.test:disk";
const LUN: [u8; 8] = [0; 8];

struct Harness {
    /// The Data-Out length of every command.
    data_out_length: usize,
    target_count: usize,
    /// The only logical unit.
    unit: [u8; 8],
    security: authentication::Security,
    /// The session that a connection can join.
    session: Option<Arc<Session>>,
}

impl Environment for Harness {
    fn admit(&mut self, admission: &Admission) -> Result<LoginContext, Refusal> {
        match admission.target_name.as_deref() {
            None | Some(TARGET) => Ok(LoginContext {
                portal_group_tag: 1,
                alias: self.security.alias.clone(),
                requirement: self.security.requirement.clone(),
            }),
            Some(_) => Err(RefusalReason::NoSuchTarget.into()),
        }
    }

    fn secret_of(&mut self, admission: &Admission, account: &str) -> Option<Secret> {
        self.security.secret_of(admission, account)
    }

    fn own_credentials(&mut self, admission: &Admission) -> Option<Credentials> {
        self.security.own_credentials(admission)
    }

    fn authorize(&mut self, admission: &Admission, account: Option<&str>) -> Result<(), Refusal> {
        self.security.authorize(admission, account)
    }

    fn session(&mut self, _: &Admission) -> Result<Arc<Session>, Refusal> {
        self.session.clone().ok_or(RefusalReason::NoSuchSession.into())
    }

    fn fill_random(&mut self, bytes: &mut [u8]) {
        self.security.fill_random(bytes);
    }

    fn targets(&mut self, _: &Admission, only: Option<&str>) -> Vec<TargetRecord> {
        (0..self.target_count)
            .map(|i| TargetRecord {
                name: if i == 0 { TARGET.into() } else { format!("{TARGET}{i}") },
                addresses: vec!["127.0.0.1:3260,1".into()],
            })
            .filter(|record| only.is_none_or(|only| only == record.name))
            .collect()
    }

    fn data_out_length(&mut self, _: [u8; 8], _: &Cdb, _: usize) -> usize {
        self.data_out_length
    }

    fn unit_exists(&mut self, lun: [u8; 8]) -> bool {
        lun == self.unit
    }
}

struct Script {
    connection: Connection,
    world: Harness,
    now: Instant,
    cmd_sn: u32,
    received: Framer,
    pdus: VecDeque<(RawHeader, Vec<u8>)>,
    tsih: u16,
    cid: u16,
}

#[allow(clippy::disallowed_methods)] // any instant will do to begin with
fn some_instant() -> Instant {
    Instant::now()
}

impl Script {
    fn new() -> Self {
        Self::with(Settings::default())
    }

    fn with(settings: Settings) -> Self {
        let now = some_instant();
        Self {
            connection: Connection::new(Arc::new(settings), now),
            world: Harness {
                data_out_length: 0,
                target_count: 1,
                unit: LUN,
                security: authentication::Security::default(),
                session: None,
            },
            now,
            cmd_sn: 1,
            received: Framer::default(),
            pdus: VecDeque::new(),
            tsih: 0,
            cid: 0,
        }
    }

    /// Creates a session in the full feature phase, with these keys negotiated.
    fn established(keys: &str) -> Self {
        Self::established_with(Settings::default(), keys)
    }

    fn established_with(settings: Settings, keys: &str) -> Self {
        let mut script = Self::with(settings);
        let keys = format!(
            "InitiatorName=iqn.2026-11.test:host\0TargetName={TARGET}\0SessionType=Normal\0{keys}"
        );
        script.login(0x87, &keys);
        assert!(matches!(script.connection.poll_event(), Some(Event::Establish(_))));
        script.connection.establish(7);
        let (header, _) = script.next();
        assert_eq!(LoginResponse::view(&header).status(), LoginStatus::Success);
        assert_eq!(LoginResponse::view(&header).tsih.get(), 7);
        script.received.set_max_data_segment_length(U24::MAX);
        script
    }

    fn send(&mut self, header: impl Into<RawHeader>, data: &[u8]) -> Result<(), CloseReason> {
        let mut basic = BasicHeader::from(header.into());
        basic.data_segment_length = U24::new(data.len() as u32);
        let mut bytes = RawHeader::from(basic).0.to_vec();
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        self.connection.handle_input(&bytes, self.now, &mut self.world)
    }

    fn login(&mut self, flags: u8, keys: &str) {
        let mut request = LoginRequest::from(RawHeader::with_opcode(Opcode::LoginRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags = flags;
        request.isid.0 = [0x80, 1, 2, 3, 4, 5];
        request.initiator_task_tag = 1.into();
        request.tsih = self.tsih.into();
        request.cid = self.cid.into();
        request.reserved = 0.into();
        request.cmd_sn = self.cmd_sn.into();
        self.send(request, keys.as_bytes()).expect("the login goes on");
    }

    fn collect(&mut self) {
        loop {
            let output = self.connection.output();
            let mut pieces = Vec::new();
            output.pieces(&mut pieces, 64);
            let mut bytes = Vec::new();
            for piece in &pieces {
                let Piece::Bytes(slice) = piece else { unreachable!("no shared memory here") };
                bytes.extend_from_slice(slice);
            }
            drop(pieces);
            self.connection.sent(bytes.len());
            if bytes.is_empty() {
                return;
            }
            let mut input = &bytes[..];
            loop {
                match self.received.advance(&mut input).expect("the target frames well") {
                    Frame::Starved => break,
                    Frame::Header => self.received.place(Landing::Collect),
                    Frame::Segment { segment, .. } => {
                        self.pdus.push_back((*self.received.header(), segment.bytes().to_vec()));
                    }
                }
            }
        }
    }

    fn next(&mut self) -> (RawHeader, Vec<u8>) {
        self.collect();
        self.pdus.pop_front().expect("the target answers")
    }

    fn nothing_more(&mut self) {
        self.collect();
        assert!(self.pdus.is_empty(), "{:?}", self.pdus);
        assert!(self.connection.link.events.is_empty(), "{:?}", self.connection.link.events);
    }

    fn command(&mut self, tag: u32, flags: u8, expected: u32, data: &[u8]) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags = flags;
        command.initiator_task_tag = tag.into();
        command.expected_data_transfer_length = expected.into();
        command.cmd_sn = self.cmd_sn.into();
        self.cmd_sn += 1;
        self.send(command, data).expect("the session goes on");
    }

    /// Sends a command whose CDB continues in an additional header segment.
    fn long_command(&mut self, tag: u32, cmd_sn: u32, head: [u8; 16], extension: &[u8]) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags = FINAL;
        command.initiator_task_tag = tag.into();
        command.cmd_sn = cmd_sn.into();
        command.cdb = head;
        let mut segment = (extension.len() as u16 + 1).to_be_bytes().to_vec();
        segment.extend([ahs::EXTENDED_CDB, 0]);
        segment.extend_from_slice(extension);
        segment.resize(segment.len().next_multiple_of(4), 0);
        let mut basic = BasicHeader::from(RawHeader::from(command));
        basic.total_ahs_length = (segment.len() / 4) as u8;
        let bytes = [&RawHeader::from(basic).0[..], &segment].concat();
        let handled = self.connection.handle_input(&bytes, self.now, &mut self.world);
        handled.expect("the session goes on");
    }

    fn data_out(
        &mut self,
        tag: u32,
        transfer_tag: u32,
        sn: u32,
        offset: u32,
        last: bool,
        data: &[u8],
    ) {
        let mut header = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
        header.flags = if last { FINAL } else { 0 };
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = transfer_tag.into();
        header.data_sn = sn.into();
        header.buffer_offset = offset.into();
        self.send(header, data).expect("the session goes on");
    }

    /// Sends a task management function for a logical unit.
    fn manage_unit(&mut self, function: TaskManagementFunction, lun: [u8; 8]) {
        let mut request = self.management_request(function, RESERVED_TAG, 0);
        request.lun = lun;
        self.send(request, &[]).expect("the session goes on");
    }

    fn manage(&mut self, function: TaskManagementFunction, referenced: u32, ref_cmd_sn: u32) {
        let request = self.management_request(function, referenced, ref_cmd_sn);
        self.send(request, &[]).expect("the session goes on");
    }

    fn management_request(
        &self,
        function: TaskManagementFunction,
        referenced: u32,
        ref_cmd_sn: u32,
    ) -> TaskManagementRequest {
        let mut request =
            TaskManagementRequest::from(RawHeader::with_opcode(Opcode::TaskManagementRequest));
        request.opcode_byte |= IMMEDIATE;
        request.flags |= function.0;
        request.initiator_task_tag = 0x7777.into();
        request.referenced_task_tag = referenced.into();
        request.cmd_sn = self.cmd_sn.into();
        request.ref_cmd_sn = ref_cmd_sn.into();
        request
    }

    fn next_command(&mut self) -> Command {
        match self.connection.poll_event() {
            Some(Event::Command(command)) => command,
            other => panic!("expected a command, not {other:?}"),
        }
    }

    fn good(&mut self, command: &Command, data: Vec<u8>) {
        let data_in = Data::Buffer(Buffer::copy_of(&data));
        self.connection.complete(
            command.task,
            Completion { status: 0, data_in, unread_length: 0, sense: &[] },
        );
    }

    /// Checks that the next event aborts this task.
    fn asked_to_end(&mut self, tag: u32) {
        match self.connection.poll_event() {
            Some(Event::Aborted(tasks)) => {
                assert!(tasks.iter().map(|task| task.initiator_task_tag).eq([tag]), "{tasks:?}");
            }
            other => panic!("expected the end of {tag}, not {other:?}"),
        }
    }

    fn management_response(&mut self) -> TaskManagementResponse {
        let (header, _) = self.next();
        assert_eq!(header.basic().opcode(), Opcode::TaskManagementResponse);
        TaskManagementResponsePdu::view(&header).response()
    }
}

const READ: u8 = FINAL | ScsiCommand::READ;
const WRITE: u8 = FINAL | ScsiCommand::WRITE;
const WRITE_MORE: u8 = ScsiCommand::WRITE;

#[test]
fn rfc7143_6_3_login_in_two_stages() {
    let mut script = Script::new();
    script.login(
        0x81,
        &format!("InitiatorName=iqn.2026-11.test:x\0TargetName={TARGET}\0AuthMethod=CHAP,None\0"),
    );
    let (header, text) = script.next();
    let response = *LoginResponse::view(&header);
    assert_eq!((response.flags, response.status()), (0x81, LoginStatus::Success));
    assert_eq!(text, b"TargetPortalGroupTag=1\0AuthMethod=None\0");
    script.login(0x87, "HeaderDigest=None\0X-mine=1\0MaxRecvDataSegmentLength=4096\0");
    assert!(matches!(script.connection.poll_event(), Some(Event::Establish(_))));
    script.connection.establish(1);
    let (header, text) = script.next();
    assert_eq!(LoginResponse::view(&header).flags, 0x87);
    let expected =
        "HeaderDigest=None\0X-mine=NotUnderstood\0MaxRecvDataSegmentLength=262144\0".as_bytes();
    assert_eq!(text, expected);
    assert_eq!(script.connection.parameters().peer_max_recv_data_segment_length, 4096);
}

#[test]
fn rfc7143_11_13_5_refusals_say_why() {
    let name = "InitiatorName=iqn.2026-11.test:x\0";
    for (flags, keys, status) in [
        (0x87, format!("TargetName={TARGET}\0"), LoginStatus::MissingParameter),
        (0x87, name.into(), LoginStatus::MissingParameter),
        (0x87, format!("{name}TargetName=iqn.2026-11.test:other\0"), LoginStatus::NotFound),
        (0x87, format!("{name}SessionType=Odd\0"), LoginStatus::SessionTypeNotSupported),
        (
            0x81,
            format!("{name}TargetName={TARGET}\0AuthMethod=CHAP\0"),
            LoginStatus::AuthenticationFailure,
        ),
        (0x87, format!("{name}{name}"), LoginStatus::InitiatorError),
        (0x87, "broken\0".into(), LoginStatus::InitiatorError),
        (0x84, name.into(), LoginStatus::InitiatorError),
        (0x8f, name.into(), LoginStatus::InitiatorError),
    ] {
        let mut script = Script::new();
        script.login(flags, &keys);
        let (header, _) = script.next();
        assert_eq!(LoginResponse::view(&header).status(), status, "{keys:?}");
        let Some(CloseReason::LoginRefused(refusal)) = script.connection.closing() else {
            panic!("the login is over");
        };
        assert_eq!(refusal.reason.status(), status);
    }
}

#[test]
fn rfc7143_6_2_text_continues_over_several_requests() {
    let mut script = Script::new();
    script.login(0x04 | CONTINUE, "InitiatorName=iqn.2026-11.te");
    let (header, text) = script.next();
    assert_eq!((LoginResponse::view(&header).flags, text.len()), (0x04, 0));
    script.login(0x87, &format!("st:host\0TargetName={TARGET}\0"));
    match script.connection.poll_event() {
        Some(Event::Establish(admission)) => {
            assert_eq!(admission.initiator_name, "iqn.2026-11.test:host");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn anything_but_a_login_first_ends_the_connection() {
    let mut script = Script::new();
    let result = script.send(RawHeader::with_opcode(Opcode::ScsiCommand), &[]);
    assert!(matches!(result, Err(CloseReason::Protocol { .. })));
}

#[test]
fn a_login_that_takes_too_long_ends() {
    let mut script = Script::new();
    let deadline = script.connection.poll_timeout();
    assert_eq!(deadline, script.now + Settings::default().login_timeout);
    assert_eq!(script.connection.handle_timeout(deadline), Err(CloseReason::LoginTimeout));
}

#[test]
fn rfc7143_11_7_data_in_is_cut_and_carries_the_status() {
    let mut script = Script::established("MaxRecvDataSegmentLength=1024\0MaxBurstLength=2048\0");
    script.command(5, READ, 5000, &[]);
    let command = script.next_command();
    script.good(&command, (0..5000u32).map(|i| i as u8).collect());
    let mut offset = 0;
    for (sn, (length, flags)) in
        [(1024, 0), (1024, FINAL), (1024, 0), (1024, FINAL), (904, FINAL | DataIn::STATUS)]
            .into_iter()
            .enumerate()
    {
        let (header, data) = script.next();
        let data_in = DataIn::view(&header);
        assert_eq!(data_in.flags, flags);
        assert_eq!(data_in.data_sn.get(), sn as u32);
        assert_eq!(data_in.buffer_offset.get(), offset);
        assert_eq!(data.len(), length);
        assert_eq!(data[0], offset as u8);
        offset += length as u32;
    }
    script.nothing_more();
}

#[test]
fn rfc7143_11_4_5_residuals_both_ways() {
    let mut script = Script::established("");
    for (expected, moved, flag, count) in
        [(512, 100, ScsiResponse::UNDERFLOW, 412), (100, 512, ScsiResponse::OVERFLOW, 412)]
    {
        script.command(expected, READ, expected, &[]);
        let command = script.next_command();
        script.good(&command, vec![1; moved]);
        let (header, data) = script.next();
        let data_in = DataIn::view(&header);
        assert_eq!(data_in.flags, FINAL | DataIn::STATUS | flag);
        assert_eq!(data_in.residual_count.get(), count);
        assert_eq!(data.len(), moved.min(expected as usize));
    }
    script.world.data_out_length = 512;
    script.command(1, WRITE, 1000, &[7; 512]);
    let command = script.next_command();
    assert_eq!(command.data_out.as_deref(), Some(&[7; 512][..]));
    script.good(&command, vec![]);
    let (header, _) = script.next();
    assert_eq!(ScsiResponse::view(&header).flags, FINAL | ScsiResponse::UNDERFLOW);
    assert_eq!(ScsiResponse::view(&header).residual_count.get(), 488);
}

#[test]
fn rfc7143_11_8_several_r2ts_are_open_and_data_lands_in_order() {
    let mut script = Script::established(
        "InitialR2T=Yes\0ImmediateData=No\0MaxOutstandingR2T=2\0MaxBurstLength=512\0",
    );
    script.world.data_out_length = 1536;
    script.command(9, WRITE, 1536, &[]);
    let mut tags = Vec::new();
    for sn in 0..2u32 {
        let (header, _) = script.next();
        let r2t = *R2t::view(&header);
        assert_eq!((r2t.r2t_sn.get(), r2t.buffer_offset.get()), (sn, sn * 512));
        assert_eq!(r2t.desired_data_transfer_length.get(), 512);
        tags.push(r2t.target_transfer_tag.get());
    }
    script.nothing_more();
    script.data_out(9, tags[0], 0, 0, false, &[1; 256]);
    script.data_out(9, tags[0], 1, 256, true, &[2; 256]);
    let (header, _) = script.next();
    tags.push(R2t::view(&header).target_transfer_tag.get());
    script.data_out(9, tags[1], 0, 512, true, &[3; 512]);
    script.data_out(9, tags[2], 0, 1024, true, &[4; 512]);
    let command = script.next_command();
    let expected = [[1; 256], [2; 256], [3; 256], [3; 256], [4; 256], [4; 256]].concat();
    assert_eq!(command.data_out.as_deref(), Some(&expected[..]));
}

#[test]
fn rfc7143_4_2_5_2_immediate_unsolicited_and_solicited_data_join() {
    let mut script =
        Script::established("InitialR2T=No\0ImmediateData=Yes\0FirstBurstLength=1024\0");
    script.world.data_out_length = 2048;
    script.command(3, WRITE_MORE, 2048, &[1; 512]);
    script.nothing_more();
    script.data_out(3, RESERVED_TAG, 0, 512, true, &[2; 512]);
    let (header, _) = script.next();
    let r2t = *R2t::view(&header);
    assert_eq!((r2t.buffer_offset.get(), r2t.desired_data_transfer_length.get()), (1024, 1024));
    script.data_out(3, r2t.target_transfer_tag.get(), 0, 1024, true, &[3; 1024]);
    let command = script.next_command();
    let expected = [vec![1; 512], vec![2; 512], vec![3; 1024]].concat();
    assert_eq!(command.data_out.as_deref(), Some(&expected[..]));
}

#[test]
fn data_beyond_command_length_is_dropped() {
    let mut script = Script::established("InitialR2T=No\0FirstBurstLength=4096\0");
    script.world.data_out_length = 512;
    script.command(3, WRITE_MORE, 2048, &[1; 1024]);
    script.data_out(3, RESERVED_TAG, 0, 1024, true, &[2; 1024]);
    let command = script.next_command();
    assert_eq!(command.data_out.as_deref(), Some(&[1; 512][..]));
}

fn sense_of(data: &[u8]) -> (u8, u8, u8) {
    (data[2 + 2] & 0xf, data[2 + 12], data[2 + 13])
}

#[test]
fn rfc7143_11_4_7_2_data_that_was_not_agreed_on_fails_the_command() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[1; 512]);
    let (_, data) = script.next();
    assert_eq!(sense_of(&data), (0x0b, 0x0c, 0x0c));

    script.command(2, WRITE, 512, &[]);
    let (header, _) = script.next();
    let tag = R2t::view(&header).target_transfer_tag.get();
    script.data_out(2, tag, 5, 0, true, &[1; 512]);
    let (header, data) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
    assert_eq!(sense_of(&data), (0x0b, 0x0c, 0x0d), "DataSN 5 where 0 was due");
    script.nothing_more();
}

#[test]
fn rfc7143_4_2_2_1_command_outside_the_window_is_dropped() {
    let mut script = Script::established("");
    let next = script.cmd_sn;
    for wrong in [next.wrapping_sub(1), next + 128] {
        script.cmd_sn = wrong;
        script.command(1, READ, 0, &[]);
        script.nothing_more();
    }
}

#[test]
fn rfc7143_4_2_2_1_commands_above_a_gap_wait_for_it() {
    let mut script = Script::established("");
    let first = script.cmd_sn;
    script.cmd_sn = first + 1;
    script.command(2, READ, 0, &[]);
    script.nothing_more();
    script.cmd_sn = first;
    script.command(1, READ, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 1);
    assert_eq!(script.next_command().task.initiator_task_tag, 2);
}

#[test]
fn rfc7143_4_2_2_1_a_duplicate_above_a_gap_is_dropped() {
    let mut script = Script::established("");
    let first = script.cmd_sn;
    for tag in 1..1000 {
        script.cmd_sn = first + 1;
        script.command(tag, READ, 512, &[]);
    }
    let Phase::FullFeature(full_feature) = &script.connection.phase else { unreachable!() };
    assert_eq!(full_feature.held_count(), 1);
    script.cmd_sn = first;
    script.command(2000, READ, 512, &[]);
    script.next_command();
    script.next_command();
    script.nothing_more();
}

#[test]
fn rfc7143_11_17_task_management_beyond_the_limit_is_rejected() {
    let mut script = Script::established("");
    script.command(1, READ, 512, &[]);
    let command = script.next_command();
    let limit = Settings::default().immediate_limit;
    for _ in 0..=limit {
        script.manage(TaskManagementFunction::AbortTaskSet, 0, 0);
    }
    let (header, _) = script.next();
    assert_eq!(Reject::view(&header).reason(), RejectReason::ImmediateCommandReject);
    script.asked_to_end(1);
    script.nothing_more();
    script.good(&command, vec![]);
    for _ in 0..limit {
        assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    }
    script.nothing_more();
}

#[test]
fn rfc7143_11_17_a_tag_in_use_is_rejected() {
    let mut script = Script::established("");
    script.command(1, READ, 0, &[]);
    let _running = script.next_command();
    script.command(1, READ, 0, &[]);
    let (header, data) = script.next();
    assert_eq!(Reject::view(&header).reason(), RejectReason::TaskInProgress);
    assert_eq!(data.len(), 48);
}

#[test]
fn rfc7143_11_18_pings_are_answered_with_their_data() {
    let mut script = Script::established("");
    let mut ping = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
    ping.opcode_byte |= IMMEDIATE;
    ping.initiator_task_tag = 4.into();
    ping.cmd_sn = script.cmd_sn.into();
    script.send(ping, b"hello").expect("taken");
    let (header, data) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::NopIn);
    assert_eq!(NopIn::view(&header).initiator_task_tag.get(), 4);
    assert_eq!(data, b"hello");
}

#[test]
fn rfc7143_11_19_a_silent_initiator_is_pinged_and_then_given_up() {
    let mut script = Script::established("");
    let first = script.connection.poll_timeout();
    assert_eq!(script.connection.handle_timeout(first), Ok(()));
    let (header, _) = script.next();
    let tag = NopIn::view(&header).target_transfer_tag;
    // The initiator answers the first ping.
    let mut pong = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
    pong.opcode_byte |= IMMEDIATE;
    pong.initiator_task_tag = RESERVED_TAG.into();
    pong.target_transfer_tag = tag;
    script.now = first + Duration::from_secs(1);
    script.send(pong, &[]).expect("taken");
    let second = script.connection.poll_timeout();
    assert!(second > first);
    // The initiator does not answer the second ping.
    assert_eq!(script.connection.handle_timeout(second), Ok(()));
    let third = script.connection.poll_timeout();
    assert_eq!(script.connection.handle_timeout(third), Err(CloseReason::Silent));
}

#[test]
fn rfc7143_11_5_1_abort_task_waits_for_a_running_task_and_silences_it() {
    let mut script = Script::established("");
    script.command(1, READ, 512, &[]);
    let command = script.next_command();
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    script.asked_to_end(1);
    script.nothing_more();
    script.good(&command, vec![0; 512]);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.nothing_more();
}

#[test]
fn rfc7143_11_5_1_abort_task_forgets_a_task_without_its_data() {
    let mut script = Script::established("InitialR2T=Yes\0ImmediateData=No\0");
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[]);
    let (header, _) = script.next();
    let tag = R2t::view(&header).target_transfer_tag.get();
    script.manage(TaskManagementFunction::AbortTask, 1, 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    // The task's data was in transit. The target drops it silently.
    script.data_out(1, tag, 0, 0, true, &[1; 512]);
    script.nothing_more();
}

#[test]
fn rfc7143_11_6_1_abort_of_a_task_that_ended_or_has_not_come() {
    let mut script = Script::established("");
    script.manage(TaskManagementFunction::AbortTask, 1, script.cmd_sn - 1);
    assert_eq!(script.management_response(), TaskManagementResponse::TaskDoesNotExist);
    // The command with the missing CmdSN is still in transit, and is not executed when it arrives.
    let missing = script.cmd_sn;
    script.cmd_sn += 1;
    script.manage(TaskManagementFunction::AbortTask, 1, missing);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.command(2, READ, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 2);
    script.cmd_sn = missing;
    script.command(1, READ, 0, &[]);
    script.nothing_more();
}

#[test]
fn rfc7143_11_5_1_resets_are_handed_over_when_the_own_tasks_have_ended() {
    let mut script = Script::established("");
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    script.manage(TaskManagementFunction::LogicalUnitReset, RESERVED_TAG, 0);
    script.asked_to_end(1);
    script.nothing_more();
    script.good(&command, vec![]);
    match script.connection.poll_event() {
        Some(Event::Management(management)) => {
            assert_eq!(management.function, TaskManagementFunction::LogicalUnitReset);
            let tag = management.initiator_task_tag;
            script.connection.respond(tag, TaskManagementResponse::FunctionComplete);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
}

#[test]
fn rfc7143_11_14_logout_waits_for_tasks_and_closes() {
    let mut script = Script::established("");
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    let mut logout = LogoutRequest::from(RawHeader::with_opcode(Opcode::LogoutRequest));
    logout.opcode_byte |= IMMEDIATE;
    logout.flags = FINAL | LogoutReason::CloseSession.0;
    logout.initiator_task_tag = 2.into();
    script.send(logout, &[]).expect("taken");
    script.asked_to_end(1);
    script.nothing_more();
    script.good(&command, vec![]);
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::LogoutResponse);
    assert_eq!(LogoutResponsePdu::view(&header).response, 0);
    assert_eq!(script.connection.closing(), Some(&CloseReason::InGoodOrder));
}

#[test]
fn appendix_c_send_targets_continues_over_several_responses() {
    let mut script = discovery(400);
    let mut text = Vec::new();
    let mut transfer_tag = RESERVED_TAG;
    loop {
        let keys: &[u8] = if transfer_tag == RESERVED_TAG { b"SendTargets=All\0" } else { b"" };
        let (header, part) = text_request(&mut script, transfer_tag, keys);
        let response = *TextResponse::view(&header);
        text.extend(part);
        transfer_tag = response.target_transfer_tag.get();
        if response.flags == FINAL {
            assert_eq!(transfer_tag, RESERVED_TAG);
            break;
        }
        assert_eq!(response.flags, CONTINUE);
    }
    let names = String::from_utf8(text).expect("text");
    assert_eq!(names.matches("TargetName=").count(), 400);
    assert_eq!(names.matches("TargetAddress=127.0.0.1:3260,1").count(), 400);
}

#[test]
fn rfc7143_11_6_1_an_aborted_command_is_dropped_when_it_comes_above_a_gap() {
    let mut script = Script::established("");
    let first = script.cmd_sn;
    script.cmd_sn = first + 2;
    script.manage(TaskManagementFunction::AbortTask, 2, first + 1);
    assert_eq!(script.management_response(), TaskManagementResponse::FunctionComplete);
    script.cmd_sn = first + 1;
    script.command(2, READ, 0, &[]);
    let Phase::FullFeature(full_feature) = &script.connection.phase else { unreachable!() };
    assert_eq!(full_feature.held_count(), 0);
    script.cmd_sn = first;
    script.command(1, READ, 0, &[]);
    assert_eq!(script.next_command().task.initiator_task_tag, 1);
    script.nothing_more();
}

#[test]
fn rfc7143_11_6_1_a_command_above_the_window_is_not_on_its_way() {
    let mut script = Script::established("");
    script.cmd_sn += 1000;
    script.manage(TaskManagementFunction::AbortTask, 2, script.cmd_sn - 1);
    assert_eq!(script.management_response(), TaskManagementResponse::TaskDoesNotExist);
}

#[test]
fn rfc7143_11_17_resets_that_the_layer_above_carries_out_are_limited() {
    let mut script = Script::established("");
    let limit = Settings::default().immediate_limit;
    for _ in 0..=limit {
        script.manage(TaskManagementFunction::LogicalUnitReset, 0, 0);
    }
    let (header, _) = script.next();
    assert_eq!(Reject::view(&header).reason(), RejectReason::ImmediateCommandReject);
    while let Some(Event::Management(management)) = script.connection.poll_event() {
        let complete = TaskManagementResponse::FunctionComplete;
        script.connection.respond(management.initiator_task_tag, complete);
    }
    script.collect();
    assert_eq!(script.pdus.len(), limit);
    script.pdus.clear();
    script.manage(TaskManagementFunction::LogicalUnitReset, 0, 0);
    assert!(matches!(script.connection.poll_event(), Some(Event::Management(_))));
}

#[test]
fn rfc7143_11_3_1_a_read_waits_for_no_data() {
    let mut script = Script::established("InitialR2T=No\0");
    script.command(1, ScsiCommand::READ, 512, &[]);
    let (_, data) = script.next();
    assert_eq!(sense_of(&data), (0x0b, 0x0c, 0x0c));
}

#[test]
fn rfc7143_13_14_the_default_may_be_sent_even_above_max_burst_length() {
    let mut script = Script::established("InitialR2T=No\0MaxBurstLength=512\0");
    script.world.data_out_length = 4096;
    script.command(1, WRITE, 4096, &[5; 4096]);
    assert_eq!(script.next_command().data_out.as_deref(), Some(&[5; 4096][..]));
}

#[test]
fn rfc7143_7_8_data_with_a_wrong_digest_is_rejected_and_ends_the_command() {
    let mut script = Script::established("DataDigest=CRC32C\0ImmediateData=No\0");
    script.received.set_digests(false, true);
    script.world.data_out_length = 512;
    script.command(1, WRITE, 512, &[]);
    let (header, _) = script.next();
    let mut data = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
    data.initiator_task_tag = 1.into();
    data.target_transfer_tag = R2t::view(&header).target_transfer_tag;
    data.data_segment_length = U24::new(512);
    // The digest field contains zeros.
    let bytes = [&RawHeader::from(data).0[..], &[1; 512], &[0; 4]].concat();
    script.connection.handle_input(&bytes, script.now, &mut script.world).expect("taken");
    let (header, data) = script.next();
    assert_eq!(Reject::view(&header).reason(), RejectReason::DataDigestError);
    assert_eq!(data[..1], [Opcode::DataOut.0]);
    let (_, data) = script.next();
    assert_eq!(sense_of(&data), (0x0b, 0x47, 0x05));
    script.nothing_more();
}

#[test]
fn rfc7143_11_4_7_2_too_little_unsolicited_data_fails_the_command() {
    let mut script = Script::established("InitialR2T=No\0FirstBurstLength=1024\0");
    script.world.data_out_length = 2048;
    script.command(1, WRITE_MORE, 2048, &[1; 256]);
    script.data_out(1, RESERVED_TAG, 0, 256, true, &[2; 256]);
    let (_, data) = script.next();
    assert_eq!(sense_of(&data), (0x0b, 0x0c, 0x0d));
    script.nothing_more();
    // Immediate data may be shorter if no other unsolicited data follows. Unsolicited data may also be shorter if the
    // command's expected length is within FirstBurstLength.
    script.command(2, WRITE, 2048, &[1; 256]);
    let (header, _) = script.next();
    assert_eq!(R2t::view(&header).buffer_offset.get(), 256);
    script.world.data_out_length = 1024;
    script.command(3, WRITE_MORE, 1024, &[]);
    script.data_out(3, RESERVED_TAG, 0, 0, true, &[2; 256]);
    let (header, _) = script.next();
    assert_eq!(R2t::view(&header).buffer_offset.get(), 256);
}

#[test]
fn rfc7143_11_3_1_a_command_moves_data_the_way_that_its_flags_say() {
    let mut script = Script::established("");
    for (flags, expected, promised) in [
        (READ, 512, None),
        (READ, 0, None),
        (FINAL, 512, None),
        (FINAL, 0, Some(0)),
        (WRITE, 0, Some(0)),
    ] {
        script.command(1, flags, expected, &[]);
        let command = script.next_command();
        assert_eq!(command.expected_data_out_length, promised, "{flags:#x} {expected}");
        script.good(&command, vec![]);
        script.next();
    }
    // A read with the flag W moves no data, as libiscsi's test suite expects.
    script.command(1, WRITE, 512, &[]);
    let command = script.next_command();
    script.good(&command, vec![7; 512]);
    let (header, data) = script.next();
    let response = ScsiResponse::view(&header);
    assert_eq!((response.status, response.flags), (0, FINAL | ScsiResponse::UNDERFLOW));
    assert_eq!((response.residual_count.get(), data.len()), (512, 0));
}

fn discovery(target_count: usize) -> Script {
    let mut script = Script::new();
    script.world.target_count = target_count;
    script.login(0x87, "InitiatorName=iqn.2026-11.test:x\0SessionType=Discovery\0");
    assert!(matches!(script.connection.poll_event(), Some(Event::Establish(_))));
    script.connection.establish(1);
    script.next();
    script
}

/// Sends a text request and returns the response.
fn text_request(script: &mut Script, transfer_tag: u32, keys: &[u8]) -> (RawHeader, Vec<u8>) {
    send_text_request(script, transfer_tag, keys);
    script.next()
}

fn send_text_request(script: &mut Script, transfer_tag: u32, keys: &[u8]) {
    let mut request = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    request.opcode_byte |= IMMEDIATE;
    request.initiator_task_tag = 3.into();
    request.target_transfer_tag = transfer_tag.into();
    request.cmd_sn = script.cmd_sn.into();
    script.send(request, keys).expect("taken");
}

#[test]
fn rfc7143_6_2_request_for_continuation_has_no_text() {
    let mut script = discovery(400);
    let (header, _) = text_request(&mut script, RESERVED_TAG, b"SendTargets=All\0");
    let transfer_tag = TextResponse::view(&header).target_transfer_tag.get();
    let (header, _) = text_request(&mut script, transfer_tag, b"SendTargets=All\0");
    assert_eq!(Reject::view(&header).reason(), RejectReason::ProtocolError);
}

#[test]
fn rfc7143_6_2_targets_are_not_asked_for_twice_at_once() {
    let mut script = discovery(1);
    let keys = b"SendTargets=All\0SendTargets=All\0";
    let (header, _) = text_request(&mut script, RESERVED_TAG, keys);
    assert_eq!(Reject::view(&header).reason(), RejectReason::ProtocolError);
}

#[test]
fn rfc7143_4_3_a_discovery_session_takes_no_commands() {
    let mut script = Script::new();
    script.login(
        0x87,
        "InitiatorName=iqn.2026-11.test:x\0SessionType=Discovery\0MaxBurstLength=512\0",
    );
    assert!(matches!(script.connection.poll_event(), Some(Event::Establish(_))));
    script.connection.establish(1);
    let (_, text) = script.next();
    assert!(text.starts_with(b"MaxBurstLength=512\0"));
    script.command(1, READ, 0, &[]);
    let (header, _) = script.next();
    assert_eq!(Reject::view(&header).reason(), RejectReason::ProtocolError);
}

proptest! {
    /// Sends PDUs with any flags, tags and data. The target does not panic, and begins no command twice.
    #[test]
    fn no_sequence_of_pdus_makes_it_panic(
        pdus in prop::collection::vec(
            (
                prop_oneof![Just(0x01u8), Just(0x05), Just(0x02), Just(0x41), 0u8..0x80],
                any::<u8>(), 0u32..4, 0u32..5, 0u32..6, 0u32..3000,
                prop::collection::vec(any::<u8>(), 0..600),
            ),
            1..40,
        ),
        data_out_length in 0usize..3000,
        initial_r2t: bool,
    ) {
        let r2t = if initial_r2t { "Yes" } else { "No" };
        let mut script = Script::established(&format!("InitialR2T={r2t}\0FirstBurstLength=1024\0MaxBurstLength=512\0"));
        script.world.data_out_length = data_out_length;
        let mut seen = std::collections::HashSet::new();
        for (opcode, flags, tag, transfer_tag, sn, length, data) in pdus {
            let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode(opcode & 0x3f)));
            command.opcode_byte = opcode & 0x7f;
            command.flags = flags;
            command.initiator_task_tag = tag.into();
            // In Data-Out PDUs, these fields are the transfer tag, DataSN and offset.
            command.expected_data_transfer_length =
                if opcode == 5 && transfer_tag == 0 { RESERVED_TAG } else { length }.into();
            command.cmd_sn = script.cmd_sn.wrapping_add(sn % 2).into();
            command.cdb[4..8].copy_from_slice(&(sn % 3).to_be_bytes());
            command.cdb[8..12].copy_from_slice(&(length / 512 * 512).to_be_bytes());
            if script.send(command, &data).is_err() {
                break;
            }
            if sn % 2 == 0 {
                script.cmd_sn = script.cmd_sn.wrapping_add(1);
            }
            while let Some(event) = script.connection.poll_event() {
                if let Event::Command(command) = event {
                    prop_assert!(seen.insert(command.task.sequence), "carried out twice");
                    let most = command.data_out.as_ref().map_or(0, |data| data.len());
                    prop_assert!(most <= data_out_length);
                    if length % 2 == 0 {
                        script.good(&command, vec![0; length as usize]);
                    }
                }
            }
            script.collect();
        }
    }
}

#[test]
fn rfc7143_11_2_2_3_a_cdb_of_32_bytes_arrives_whole_and_in_its_turn() {
    let mut script = Script::established("");
    let (head, extension) = ([0x7f; 16], [0x5a; 16]);
    let first = script.cmd_sn;
    // The second command arrives first and waits.
    script.long_command(11, first + 1, head, &extension);
    assert!(script.connection.poll_event().is_none());
    script.long_command(10, first, head, &extension[..4]);
    for extension in [&extension[..4], &extension] {
        let command = script.next_command();
        assert_eq!((command.cdb.head, command.cdb.extension.as_deref()), (head, Some(extension)));
    }
}
