//! Tests of sessions with several connections, and of lost connections.

use sarsen_wire::iscsi::{
    LogoutReason, LogoutRequest, LogoutResponsePdu, TaskManagementFunction,
    TaskManagementResponsePdu,
};

use super::super::super::digest;
use super::*;

/// A scripted target: its sequence numbers, and the session under test.
pub(super) struct Target {
    pub(super) session: Session,
    /// The next StatSN of each connection.
    stat_sns: Vec<(Cid, u32)>,
    pub(super) exp_cmd_sn: u32,
    pub(super) data_digest: bool,
}

pub(super) fn session_options(connections: u32, level: u32) -> LoginOptions {
    LoginOptions { max_connections: connections, error_recovery_level: level, ..options() }
}

const WINDOW: u32 = 64;

impl Target {
    pub(super) fn log_in(options: LoginOptions, answers: &str) -> Self {
        let mut target = Self {
            session: Session::new(options),
            stat_sns: vec![(LEADING, 100)],
            exp_cmd_sn: 1,
            data_digest: false,
        };
        target.grant(LEADING, answers);
        assert!(matches!(target.session.poll_event(), Some(Event::SecurityPassed)));
        assert!(matches!(target.session.poll_event(), Some(Event::LoggedIn)));
        target.data_digest = answers.contains("DataDigest=CRC32C");
        target
    }

    /// Returns a session of `connections` connections at a level, with segments of 1024 bytes and 2560 bytes of
    /// unsolicited data.
    pub(super) fn ready(connections: u32, level: u32, more: &str) -> Self {
        let answers = format!(
            "MaxConnections={connections}\0ErrorRecoveryLevel={level}\0InitialR2T=No\0\
             MaxRecvDataSegmentLength=1024\0FirstBurstLength=2560\0{more}"
        );
        let options = LoginOptions {
            data_digest: DigestOffer::Prefer,
            ..session_options(connections, level)
        };
        let mut target = Self::log_in(options, &answers);
        for _ in 1..connections {
            target.join(more);
        }
        target
    }

    fn join(&mut self, answers: &str) -> Cid {
        let connection = self.session.join(None).unwrap();
        self.stat_sns.push((connection, 500));
        self.grant(connection, &format!("MaxRecvDataSegmentLength=1024\0{answers}"));
        let joined = self.session.poll_event();
        assert!(matches!(joined, Some(Event::Joined { connection: of }) if of == connection));
        connection
    }

    /// Logs a connection in. Returns the first request of its login.
    fn grant(&mut self, connection: Cid, answers: &str) -> (LoginRequest, String) {
        let first = pdus(&self.drain(connection), false).remove(0);
        for (flags, text) in [(TO_OPERATIONAL, "AuthMethod=None\0"), (TO_FULL_FEATURE, answers)] {
            let mut header = LoginResponse::from(RawHeader::ZERO);
            header.opcode_byte = Opcode::LoginResponse.0;
            header.flags = flags;
            header.tsih = 7.into();
            header.stat_sn = self.take_stat_sn(connection).into();
            header.exp_cmd_sn = self.exp_cmd_sn.into();
            header.max_cmd_sn = (self.exp_cmd_sn + WINDOW - 1).into();
            self.session.handle_input(connection, &encode(header, text.as_bytes())).unwrap();
            self.drain(connection);
        }
        (*LoginRequest::view(&first.0), String::from_utf8(first.1).unwrap())
    }

    fn stat_sn(&mut self, connection: Cid) -> &mut u32 {
        &mut self.stat_sns.iter_mut().find(|(of, _)| *of == connection).unwrap().1
    }

    pub(super) fn take_stat_sn(&mut self, connection: Cid) -> u32 {
        let next = self.stat_sn(connection);
        *next += 1;
        *next - 1
    }

    pub(super) fn drain(&mut self, connection: Cid) -> Vec<u8> {
        self.session.output(connection).map(drain_output).unwrap_or_default()
    }

    pub(super) fn sent(&mut self, connection: Cid) -> Vec<Pdu> {
        let digest = self.data_digest;
        pdus(&self.drain(connection), digest)
    }

    /// Returns a header with the current numbers. Uses a StatSN if requested.
    pub(super) fn header(
        &mut self,
        connection: Cid,
        opcode: Opcode,
        tag: u32,
        takes: bool,
    ) -> NopIn {
        let mut header = from_target(opcode, tag);
        let next = self.stat_sn(connection);
        header.stat_sn = (*next).into();
        *next += u32::from(takes);
        header.exp_cmd_sn = self.exp_cmd_sn.into();
        header.max_cmd_sn = (self.exp_cmd_sn + WINDOW - 1).into();
        header
    }

    pub(super) fn bytes(&self, header: impl Into<RawHeader>, data: &[u8]) -> Vec<u8> {
        let mut bytes = encode(header, data);
        if self.data_digest && !data.is_empty() {
            bytes.extend(digest::crc32c(&bytes[48..]));
        }
        bytes
    }

    pub(super) fn send(&mut self, connection: Cid, header: impl Into<RawHeader>, data: &[u8]) {
        let bytes = self.bytes(header, data);
        self.session.handle_input(connection, &bytes).unwrap();
    }

    pub(super) fn data_in(&mut self, connection: Cid, tag: u32, data_sn: u32, flags: u8) -> DataIn {
        let takes = flags & DataIn::STATUS != 0;
        let mut header =
            DataIn::from(RawHeader::from(self.header(connection, Opcode::DataIn, tag, takes)));
        header.flags = flags;
        header.data_sn = data_sn.into();
        header.buffer_offset = (data_sn * PIECE as u32).into();
        header
    }

    pub(super) fn response(&mut self, connection: Cid, tag: u32) {
        let response = self.header(connection, Opcode::ScsiResponse, tag, true);
        self.send(connection, response, &[]);
    }

    pub(super) fn read(&mut self, length: usize, token: u64) -> u32 {
        let request = read(length as u32, ReadLanding::Buffer);
        self.session.command(request, Token(token)).ok().unwrap()
    }

    pub(super) fn write(&mut self, data: &[u8], token: u64) -> u32 {
        let payload = self.session.payload(Buffer::copy_of(data));
        let transfer = Transfer::Write { payload, length: data.len() as u32 };
        let attribute = TaskAttribute::Ordered;
        let request = CommandRequest { lun: LUN, cdb: [0x8a; 16], attribute, transfer };
        self.session.command(request, Token(token)).ok().unwrap()
    }

    pub(super) fn completion(&mut self) -> Completion {
        match self.session.poll_event() {
            Some(Event::Completed(completion)) => completion,
            other => panic!("{other:?}"),
        }
    }

    /// Sends the target's response to a logout or a management function.
    fn answer(&mut self, connection: Cid, request: &RawHeader, opcode: Opcode, response: u8) {
        let tag = request.basic().initiator_task_tag.get();
        let mut answer =
            LogoutResponsePdu::from(RawHeader::from(self.header(connection, opcode, tag, true)));
        answer.response = response;
        self.send(connection, answer, &[]);
    }
}

/// Number of bytes of each Data-In except the last.
pub(super) const PIECE: usize = 512;

pub(super) fn sample(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn opcodes(pdus: &[Pdu]) -> Vec<Opcode> {
    pdus.iter().map(|pdu| pdu.0.basic().opcode()).collect()
}

#[test]
fn rfc7143_13_9_the_target_declares_its_portal_group() {
    let tag = |answers: &str| Target::log_in(session_options(1, 0), answers).session.portal_group();
    assert_eq!(tag("TargetPortalGroupTag=300\0"), Some(300));
    assert_eq!(tag("TargetPortalGroupTag=65536\0"), None);
    assert_eq!(tag(""), None);
}

#[test]
fn rfc7143_6_3_1_further_connections_join_with_the_handle_and_their_own_cid() {
    let answers = "MaxConnections=2\0ErrorRecoveryLevel=2\0MaxBurstLength=4096\0";
    let mut target = Target::log_in(session_options(4, 2), answers);
    let joining = target.session.join(None).unwrap();
    assert!(target.session.join(None).is_none(), "two were granted");
    target.stat_sns.push((joining, 500));
    let (request, text) = target.grant(joining, "MaxRecvDataSegmentLength=4096\0");
    assert_eq!((request.tsih.get(), request.cid.get()), (7, joining.0));
    assert_eq!((request.isid, request.exp_stat_sn.get()), (options().isid, 0));
    assert!(text.contains("InitiatorName=") && !text.contains("SessionType"), "{text}");
    assert!(target.session.is_connected(joining));
    assert_eq!(target.session.parameters().max_burst_length, 4096);
}

#[test]
fn rfc7143_13_2_a_target_that_has_one_connection_and_no_recovery_is_taken_as_it_is() {
    for answers in ["MaxConnections=1\0ErrorRecoveryLevel=0\0", ""] {
        let mut target = Target::log_in(session_options(4, 2), answers);
        let parameters = target.session.parameters();
        assert_eq!((parameters.max_connections, parameters.error_recovery_level), (1, 0));
        assert!(target.session.join(None).is_none());
        target.read(PIECE, 1);
        assert!(!target.session.mark_lost(LEADING));
        let error = ConnectionError::Unrecoverable(RecoveryError::Level { level: 0 });
        assert_eq!(target.session.failure(), Some(&error));
    }
}

#[test]
fn rfc7143_4_2_2_1_commands_are_numbered_over_all_connections() {
    let mut target = Target::ready(3, 0, "");
    for token in 0..6 {
        target.read(PIECE, token);
    }
    let mut numbers = Vec::new();
    for connection in target.session.connections().collect::<Vec<_>>() {
        let commands = target.sent(connection);
        assert_eq!(commands.len(), 2, "each has its share");
        numbers.extend(commands.iter().map(|pdu| ScsiCommand::view(&pdu.0).cmd_sn.get()));
    }
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    assert_eq!(target.session.window(), WINDOW - 6);
    // Any connection opens the window for all.
    target.exp_cmd_sn = 7;
    let ping = target.header(Cid(2), Opcode::NopIn, RESERVED_TAG, false);
    target.send(Cid(2), ping, &[]);
    assert_eq!(target.session.window(), WINDOW);
    // An older MaxCmdSN that arrives later over another connection does not close it.
    target.exp_cmd_sn = 3;
    let ping = target.header(LEADING, Opcode::NopIn, RESERVED_TAG, false);
    target.send(LEADING, ping, &[]);
    assert_eq!(target.session.window(), WINDOW);
}

#[test]
fn rfc7143_4_2_4_data_of_a_task_over_another_connection_is_not_taken() {
    let mut target = Target::ready(2, 0, "");
    let tag = target.read(PIECE, 1);
    let own = if target.sent(LEADING).is_empty() { Cid(1) } else { LEADING };
    let other = Cid(1 - own.0);
    let stray = target.data_in(other, tag, 0, FINAL | DataIn::STATUS);
    target.send(other, stray, &[9; PIECE]);
    assert!(target.session.poll_event().is_none());
    let data = target.data_in(own, tag, 0, FINAL | DataIn::STATUS);
    target.send(own, data, &sample(PIECE));
    assert_eq!(target.completion().data.unwrap()[..], sample(PIECE));
}

#[test]
fn rfc7143_7_2_2_commands_of_a_removed_connection_go_on_over_another() {
    let mut target = Target::ready(2, 2, "");
    let read_tag = target.read(4 * PIECE, 1);
    let lost = if target.sent(LEADING).is_empty() { Cid(1) } else { LEADING };
    let kept = Cid(1 - lost.0);
    // The extra read uses the other connection, so that the write uses the same connection as the first read.
    target.read(PIECE, 9);
    target.sent(kept);
    let write_tag = target.write(&sample(5000), 2);
    assert!(!target.sent(lost).is_empty());
    target.read(PIECE, 10);
    target.sent(kept);
    let unsent_tag = target.write(&sample(700), 3);
    // The target has the first four commands and has sent two Data-In PDUs. One and a half of them arrive.
    target.exp_cmd_sn = 5;
    let header = target.data_in(lost, read_tag, 0, 0);
    target.send(lost, header, &sample(PIECE));
    let header = target.data_in(lost, read_tag, 1, 0);
    let half = target.bytes(header, &sample(2 * PIECE)[PIECE..]);
    target.session.handle_input(lost, &half[..48 + PIECE / 2]).unwrap();
    assert!(target.session.mark_lost(lost));
    assert!(target.session.is_lost(lost) && target.session.is_full_feature());

    assert!(target.session.remove(lost));
    assert!(target.session.is_being_removed(lost));
    let request = target.sent(kept).remove(0);
    let logout = LogoutRequest::view(&request.0);
    assert_eq!(logout.reason(), LogoutReason::RemoveForRecovery);
    let stat_sn = *target.stat_sn(lost);
    assert_eq!((logout.cid.get(), logout.exp_stat_sn.get()), (lost.0, stat_sn));
    target.answer(kept, &request.0, Opcode::LogoutResponse, 0);
    let removed = target.session.poll_event();
    assert!(matches!(removed, Some(Event::Removed { connection }) if connection == lost));

    // The initiator first sends the command that the target never received, with its own number. It reassigns the
    // others one by one.
    let pdus = target.sent(kept);
    assert_eq!(opcodes(&pdus), [Opcode::ScsiCommand, Opcode::TaskManagementRequest]);
    let retried = ScsiCommand::view(&pdus[0].0);
    assert_eq!((retried.cmd_sn.get(), retried.initiator_task_tag.get()), (5, unsent_tag));
    assert_eq!((retried.cdb, pdus[0].1.as_slice()), ([0x8a; 16], &sample(700)[..]));
    let reassign = TaskManagementRequest::view(&pdus[1].0);
    assert_eq!(reassign.function(), TaskManagementFunction::TaskReassign);
    let (referenced, exp_data_sn) =
        (reassign.referenced_task_tag.get(), reassign.exp_data_sn.get());
    assert_eq!((referenced, exp_data_sn, reassign.lun), (read_tag, 1, LUN));
    target.answer(kept, &pdus[1].0, Opcode::TaskManagementResponse, 0);
    let pdus = target.sent(kept);
    let reassign = TaskManagementRequest::view(&pdus[0].0);
    let (referenced, exp_data_sn) =
        (reassign.referenced_task_tag.get(), reassign.exp_data_sn.get());
    assert_eq!((pdus.len(), referenced, exp_data_sn), (1, write_tag, 0));
    target.answer(kept, &pdus[0].0, Opcode::TaskManagementResponse, 0);
    assert!(target.sent(kept).is_empty());

    for data_sn in 1..4 {
        let flags = if data_sn == 3 { FINAL | DataIn::STATUS } else { 0 };
        let header = target.data_in(kept, read_tag, data_sn, flags);
        let start = data_sn as usize * PIECE;
        target.send(kept, header, &sample(4 * PIECE)[start..start + PIECE]);
    }
    let done = target.completion();
    assert_eq!((done.token, &done.data.unwrap()[..]), (Token(1), &sample(4 * PIECE)[..]));
    // The target misses a part of the unsolicited data.
    let mut r2t = R2t::from(RawHeader::from(target.header(kept, Opcode::R2t, write_tag, false)));
    r2t.r2t_sn = 4.into();
    r2t.buffer_offset = 1024.into();
    r2t.desired_data_transfer_length = 3976.into();
    target.send(kept, r2t, &[]);
    assert_eq!(target.sent(kept).concat_data(), sample(5000)[1024..]);
    target.response(kept, write_tag);
    assert_eq!(target.completion().token, Token(2));
}

#[test]
fn rfc7143_6_3_4_a_connection_is_reinstated_by_a_login_of_its_cid() {
    let mut target = Target::ready(1, 2, "");
    target.read(PIECE, 1);
    target.session.ping(Token(8));
    target.exp_cmd_sn = 2;
    let ping = target.header(LEADING, Opcode::NopIn, RESERVED_TAG, false);
    target.send(LEADING, ping, &[]);
    assert!(target.session.mark_lost(LEADING));
    assert!(matches!(target.session.poll_event(), Some(Event::Lost { token: Token(8) })));
    assert!(!target.session.remove(LEADING), "there is no other connection");
    assert_eq!(target.session.window(), 0);
    assert!(target.session.reinstate(LEADING, None));
    let acknowledged = std::mem::replace(target.stat_sn(LEADING), 900);
    // A failed attempt changes nothing.
    assert!(target.session.mark_lost(LEADING));
    assert!(target.session.reinstate(LEADING, None));
    let (request, _) = target.grant(LEADING, "MaxRecvDataSegmentLength=1024\0");
    assert_eq!((request.tsih.get(), request.cid.get()), (7, 0));
    assert_eq!(request.exp_stat_sn.get(), acknowledged);
    assert!(matches!(target.session.poll_event(), Some(Event::Joined { connection: LEADING })));
    assert!(!target.session.is_lost(LEADING));
}

#[test]
fn rfc7143_7_2_2_a_connection_that_is_lost_while_it_takes_over_is_followed_by_a_third() {
    let mut target = Target::ready(3, 2, "");
    let tag = target.read(PIECE, 1);
    target.exp_cmd_sn = 2;
    let all: Vec<Cid> = target.session.connections().collect();
    let first = *all.iter().find(|of| !target.sent(**of).is_empty()).unwrap();
    assert!(target.session.mark_lost(first));
    assert!(target.session.remove(first));
    let second =
        *all.iter().find(|of| !target.session.output(**of).is_none_or(|o| o.is_empty())).unwrap();
    assert!(target.session.mark_lost(second));
    assert!(!target.session.is_being_removed(first), "that request is gone");
    let third = *all.iter().find(|of| ![first, second].contains(of)).unwrap();
    assert!(target.session.remove(first) && target.session.remove(second));
    let logouts = target.sent(third);
    assert_eq!(opcodes(&logouts), [Opcode::LogoutRequest; 2]);
    target.answer(third, &logouts[0].0, Opcode::LogoutResponse, 0);
    target.answer(third, &logouts[1].0, Opcode::LogoutResponse, 0);
    let reassign = target.sent(third);
    assert_eq!(opcodes(&reassign), [Opcode::TaskManagementRequest]);
    target.answer(third, &reassign[0].0, Opcode::TaskManagementResponse, 0);
    let header = target.data_in(third, tag, 0, FINAL | DataIn::STATUS);
    target.send(third, header, &sample(PIECE));
    assert!(matches!(target.session.poll_event(), Some(Event::Removed { .. })));
    assert!(matches!(target.session.poll_event(), Some(Event::Removed { .. })));
    assert!(target.completion().is_good());
}

#[test]
fn rfc7143_11_6_1_a_task_that_is_not_moved_ends_the_session() {
    let mut target = Target::ready(2, 2, "");
    target.read(PIECE, 1);
    target.exp_cmd_sn = 2;
    let lost = if target.sent(LEADING).is_empty() { Cid(1) } else { LEADING };
    let kept = Cid(1 - lost.0);
    target.session.mark_lost(lost);
    target.session.remove(lost);
    let request = target.sent(kept).remove(0);
    target.answer(kept, &request.0, Opcode::LogoutResponse, 0);
    let request = target.sent(kept).remove(0);
    let tag = request.0.basic().initiator_task_tag.get();
    let mut answer = TaskManagementResponsePdu::from(RawHeader::from(target.header(
        kept,
        Opcode::TaskManagementResponse,
        tag,
        true,
    )));
    answer.response = TaskManagementResponse::TaskDoesNotExist.0;
    let bytes = target.bytes(answer, &[]);
    let error = target.session.handle_input(kept, &bytes).unwrap_err();
    let response = TaskManagementResponse::TaskDoesNotExist;
    let wanted = ConnectionError::Unrecoverable(RecoveryError::Reassignment { response });
    assert_eq!((&error, target.session.failure()), (&wanted, Some(&wanted)));
}

#[test]
fn rfc7143_11_14_1_one_connection_leaves_when_its_last_command_has_ended() {
    let mut target = Target::ready(2, 0, "");
    let tag = target.read(PIECE, 1);
    let own = if target.sent(LEADING).is_empty() { Cid(1) } else { LEADING };
    target.session.logout_connection(own);
    assert!(target.sent(own).is_empty());
    let header = target.data_in(own, tag, 0, FINAL | DataIn::STATUS);
    target.send(own, header, &sample(PIECE));
    target.completion();
    let request = target.sent(own).remove(0);
    let logout = LogoutRequest::view(&request.0);
    assert_eq!((logout.reason(), logout.cid.get()), (LogoutReason::CloseConnection, own.0));
    target.answer(own, &request.0, Opcode::LogoutResponse, 0);
    let left = target.session.poll_event();
    assert!(matches!(left, Some(Event::Left { connection }) if connection == own));
    assert!(target.session.mark_lost(own), "the session goes on");
    target.read(PIECE, 2);
    assert_eq!(target.sent(Cid(1 - own.0)).len(), 1);
}

#[test]
fn tags_that_are_free_again_are_not_used_at_once() {
    let mut target = Target::ready(2, 0, "");
    let tag = target.read(PIECE, 1);
    let own = if target.sent(LEADING).is_empty() { Cid(1) } else { LEADING };
    let header = target.data_in(own, tag, 0, FINAL | DataIn::STATUS);
    target.send(own, header, &sample(PIECE));
    target.completion();
    assert_ne!(target.read(PIECE, 2), tag);
}
