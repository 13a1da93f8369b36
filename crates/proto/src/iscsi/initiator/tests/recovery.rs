//! Tests of recovery within a connection: the initiator requests damaged and lost PDUs again.

use sarsen_wire::iscsi::SnackRequest;

use super::session::{PIECE, Target, sample};
use super::*;

const DATA: u8 = FINAL;
const STATUS: u8 = FINAL | 1;
const ACKNOWLEDGEMENT: u8 = FINAL | 2;

fn target() -> Target {
    Target::ready(1, 1, "DataDigest=CRC32C\0MaxOutstandingR2T=8\0")
}

/// Returns the SNACKs that were sent: type, tag, transfer tag, first and count.
fn snacks(target: &mut Target) -> Vec<(u8, u32, u32, u32, u32)> {
    let pdus = target.sent(LEADING);
    pdus.iter()
        .map(|pdu| {
            assert_eq!(pdu.0.basic().opcode(), Opcode::SnackRequest);
            let header = SnackRequest::view(&pdu.0);
            let (tag, transfer_tag) = (header.initiator_task_tag.get(), header.tag.get());
            (header.flags, tag, transfer_tag, header.beg_run.get(), header.run_length.get())
        })
        .collect()
}

fn send_damaged(target: &mut Target, header: impl Into<RawHeader>, data: &[u8]) {
    let mut bytes = target.bytes(header, data);
    bytes[50] ^= 4;
    target.session.handle_input(LEADING, &bytes).unwrap();
}

fn piece(data_sn: u32) -> Vec<u8> {
    let start = data_sn as usize * PIECE;
    sample(8 * PIECE)[start..start + PIECE].to_vec()
}

#[test]
fn rfc7143_7_8_damaged_data_in_is_asked_for_again() {
    let mut target = target();
    let tag = target.read(4 * PIECE, 1);
    target.sent(LEADING);
    for data_sn in 0..4 {
        let flags = if data_sn == 3 { FINAL | DataIn::STATUS } else { 0 };
        let header = target.data_in(LEADING, tag, data_sn, flags);
        if data_sn == 1 {
            send_damaged(&mut target, header, &piece(data_sn));
        } else {
            target.send(LEADING, header, &piece(data_sn));
        }
    }
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 1, 1)]);
    assert!(target.session.poll_event().is_none(), "not all is there");
    // Until then the status is not acknowledged.
    target.session.ping(Token(9));
    let ping = target.sent(LEADING).remove(0);
    assert_eq!(NopOut::view(&ping.0).exp_stat_sn.get(), 102);
    let again = target.data_in(LEADING, tag, 1, 0);
    send_damaged(&mut target, again, &piece(1));
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 1, 1)]);
    target.send(LEADING, again, &piece(1));
    let done = target.completion();
    assert_eq!((done.received, &done.data.unwrap()[..]), (2048, &sample(4 * PIECE)[..]));
    target.session.ping(Token(10));
    let ping = target.sent(LEADING).remove(0);
    assert_eq!(NopOut::view(&ping.0).exp_stat_sn.get(), 103);
}

/// A repeated Data-In is discarded, and its data digest is checked.
#[test]
fn rfc7143_7_5_data_in_that_comes_twice_leaves_the_rest_in_its_place() {
    let mut target = target();
    let tag = target.read(3 * PIECE, 1);
    target.sent(LEADING);
    for (data_sn, flags) in [(0, 0), (0, 0), (1, 0), (1, 0), (2, FINAL | DataIn::STATUS)] {
        let header = target.data_in(LEADING, tag, data_sn, flags);
        target.send(LEADING, header, &piece(data_sn));
    }
    let done = target.completion();
    assert_eq!(&done.data.unwrap()[..], &sample(3 * PIECE)[..]);
}

#[test]
fn rfc7143_11_16_a_damaged_status_with_data_comes_again_with_it() {
    let mut target = target();
    let (tag, other) = (target.read(PIECE, 1), target.read(PIECE, 2));
    target.sent(LEADING);
    let last = target.data_in(LEADING, tag, 0, FINAL | DataIn::STATUS);
    send_damaged(&mut target, last, &piece(0));
    let next = target.data_in(LEADING, other, 0, FINAL | DataIn::STATUS);
    target.send(LEADING, next, &piece(0));
    assert_eq!(target.completion().token, Token(2));
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 0, 1)], "and nothing twice");
    target.send(LEADING, last, &piece(0));
    let done = target.completion();
    assert_eq!((done.token, &done.data.unwrap()[..]), (Token(1), &piece(0)[..]));
}

#[test]
fn rfc7143_7_8_a_damaged_status_is_asked_for_again() {
    let mut target = target();
    let tag = target.read(PIECE, 1);
    target.sent(LEADING);
    let mut header = ScsiResponse::from(RawHeader::from(target.header(
        LEADING,
        Opcode::ScsiResponse,
        tag,
        true,
    )));
    header.status = 2;
    let sense = [0, 3, 0x70, 0, 5, 0];
    send_damaged(&mut target, header, &sense);
    let stat_sn = header.stat_sn.get();
    assert_eq!(snacks(&mut target), [(STATUS, RESERVED_TAG, RESERVED_TAG, stat_sn, 1)]);
    target.send(LEADING, header, &sense);
    assert_eq!(target.completion().sense, [0x70, 0, 5]);
    // A second copy.
    target.send(LEADING, header, &sense);
    assert!(target.session.poll_event().is_none());
}

#[test]
fn rfc7143_4_2_2_2_statuses_that_are_missing_are_asked_for() {
    let mut target = target();
    let tags: Vec<u32> = (0..4).map(|token| target.read(PIECE, token)).collect();
    target.sent(LEADING);
    let responses: Vec<NopIn> =
        tags.iter().map(|tag| target.header(LEADING, Opcode::ScsiResponse, *tag, true)).collect();
    let first = responses[0].stat_sn.get();
    target.send(LEADING, responses[2], &[]);
    assert_eq!(target.completion().token, Token(2));
    assert_eq!(snacks(&mut target), [(STATUS, RESERVED_TAG, RESERVED_TAG, first, 2)]);
    // A ping of the target contains the next StatSN.
    let ping = target.header(LEADING, Opcode::NopIn, RESERVED_TAG, false);
    target.send(LEADING, ping, &[]);
    assert_eq!(snacks(&mut target), [(STATUS, RESERVED_TAG, RESERVED_TAG, first + 3, 1)]);
    for (place, token) in [(0, 0), (3, 3), (1, 1)] {
        target.send(LEADING, responses[place], &[]);
        assert_eq!(target.completion().token, Token(token));
    }
    assert_eq!(snacks(&mut target), []);
}

#[test]
fn rfc7143_11_4_8_data_that_is_missing_before_the_response_is_asked_for() {
    let mut target = target();
    let tag = target.read(3 * PIECE, 1);
    target.sent(LEADING);
    let headers: Vec<DataIn> = (0..3).map(|sn| target.data_in(LEADING, tag, sn, 0)).collect();
    target.send(LEADING, headers[1], &piece(1));
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 0, 1)]);
    let mut response = ScsiResponse::from(RawHeader::from(target.header(
        LEADING,
        Opcode::ScsiResponse,
        tag,
        true,
    )));
    response.exp_data_sn = 3.into();
    target.send(LEADING, response, &[]);
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 2, 1)]);
    target.send(LEADING, headers[2], &piece(2));
    assert!(target.session.poll_event().is_none());
    target.send(LEADING, headers[0], &piece(0));
    assert_eq!(target.completion().data.unwrap()[..], sample(3 * PIECE));
}

#[test]
fn rfc7143_11_7_2_data_is_acknowledged_when_nothing_before_it_is_missing() {
    let mut target = target();
    let tag = target.read(4 * PIECE, 1);
    target.sent(LEADING);
    let mut headers: Vec<DataIn> = (0..4).map(|sn| target.data_in(LEADING, tag, sn, 0)).collect();
    for asking in [1, 3] {
        headers[asking].flags = FINAL | DataIn::ACKNOWLEDGE;
        headers[asking].target_transfer_tag = (40 + asking as u32).into();
        headers[asking].lun = LUN;
    }
    target.send(LEADING, headers[0], &piece(0));
    target.send(LEADING, headers[1], &piece(1));
    assert_eq!(snacks(&mut target), [(ACKNOWLEDGEMENT, RESERVED_TAG, 41, 2, 0)]);
    target.send(LEADING, headers[3], &piece(3));
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 2, 1)]);
    target.send(LEADING, headers[2], &piece(2));
    assert_eq!(snacks(&mut target), [(ACKNOWLEDGEMENT, RESERVED_TAG, 43, 4, 0)]);
}

fn r2t(target: &mut Target, tag: u32, r2t_sn: u32, offset: u32, length: u32) -> R2t {
    let mut header = R2t::from(RawHeader::from(target.header(LEADING, Opcode::R2t, tag, false)));
    header.r2t_sn = r2t_sn.into();
    header.target_transfer_tag = (70 + r2t_sn).into();
    header.buffer_offset = offset.into();
    header.desired_data_transfer_length = length.into();
    header
}

/// Returns transfer tag, offset and length of the Data-Out sequences that were sent.
fn sequences(target: &mut Target) -> Vec<(u32, u32, usize)> {
    let mut found: Vec<(u32, u32, usize)> = Vec::new();
    for (header, data) in target.sent(LEADING) {
        let header = DataOut::view(&header);
        let (tag, offset) = (header.target_transfer_tag.get(), header.buffer_offset.get());
        match found.last_mut() {
            Some(last) if last.0 == tag => last.2 += data.len(),
            _ => found.push((tag, offset, data.len())),
        }
    }
    found
}

/// Sends a Reject of the target: the data had a wrong digest.
fn reject(target: &mut Target, rejected: &RawHeader) {
    let header = target.header(LEADING, Opcode::Reject, RESERVED_TAG, true);
    let mut header = Reject::from(RawHeader::from(header));
    header.reason = RejectReason::DataDigestError.0;
    target.send(LEADING, header, &rejected.0);
}

#[test]
fn rfc7143_7_3_a_command_that_was_discarded_is_sent_again_under_its_number() {
    let mut target = target();
    target.write(&sample(5000), 1);
    let sent = target.sent(LEADING);
    reject(&mut target, &sent[0].0);
    let again = target.sent(LEADING);
    let (command, command_again) = (ScsiCommand::view(&sent[0].0), ScsiCommand::view(&again[0].0));
    assert_eq!(command_again.flags, command.flags);
    assert_eq!(command_again.initiator_task_tag, command.initiator_task_tag);
    assert_eq!(command_again.cmd_sn, command.cmd_sn);
    assert!(again.iter().map(|pdu| &pdu.1).eq(sent.iter().map(|pdu| &pdu.1)), "its data");
    assert!(target.session.poll_event().is_none());
}

#[test]
fn rfc7143_7_8_rejected_data_out_waits_for_the_r2t_that_asks_for_it_again() {
    let mut target = target();
    let tag = target.write(&sample(5000), 1);
    let sent = target.sent(LEADING);
    // The target rejects immediate data of a command that it has received, and unsolicited data.
    target.exp_cmd_sn += 1;
    reject(&mut target, &sent[0].0);
    reject(&mut target, &sent[2].0);
    assert!(target.session.poll_event().is_none());
    for (r2t_sn, offset, length) in [(0, 0, 1024), (1, 2048, 512), (2, 2560, 2440)] {
        let header = r2t(&mut target, tag, r2t_sn, offset, length);
        target.send(LEADING, header, &[]);
    }
    let wanted = [(70, 0, 1024), (71, 2048, 512), (72, 2560, 2440)];
    assert_eq!(sequences(&mut target), wanted);
    // The target requests a solicited sequence once more.
    let header = r2t(&mut target, tag, 3, 2560, 2440);
    target.send(LEADING, header, &[]);
    assert_eq!(sequences(&mut target), [(73, 2560, 2440)]);
    target.response(LEADING, tag);
    assert!(target.completion().is_good());
}

#[test]
fn rfc7143_7_8_r2ts_that_are_missing_are_asked_for_and_answered_in_order() {
    let mut target = target();
    let tag = target.write(&sample(8000), 1);
    target.sent(LEADING);
    let headers: Vec<R2t> = [(0, 2560), (1, 3560), (2, 4560), (3, 5560)]
        .map(|(sn, offset)| r2t(&mut target, tag, sn, offset, 1000))
        .to_vec();
    target.send(LEADING, headers[0], &[]);
    assert_eq!(sequences(&mut target), [(70, 2560, 1000)]);
    target.send(LEADING, headers[2], &[]);
    assert_eq!(snacks(&mut target), [(DATA, tag, RESERVED_TAG, 1, 1)]);
    target.send(LEADING, headers[3], &[]);
    assert_eq!(snacks(&mut target), []);
    target.send(LEADING, headers[1], &[]);
    let wanted = [(71, 3560, 1000), (72, 4560, 1000), (73, 5560, 1000)];
    assert_eq!(sequences(&mut target), wanted);
}

#[test]
fn a_target_that_repeats_nothing_ends_the_connection() {
    let mut target = target();
    let tag = target.read(PIECE, 1);
    let header = target.data_in(LEADING, tag, 0, 0);
    send_damaged(&mut target, header, &piece(0));
    let snack = target.sent(LEADING).pop().unwrap();
    let mut reject =
        Reject::from(RawHeader::from(target.header(LEADING, Opcode::Reject, RESERVED_TAG, true)));
    reject.reason = RejectReason::SnackReject.0;
    let bytes = target.bytes(reject, &snack.0.0);
    let error = target.session.handle_input(LEADING, &bytes).unwrap_err();
    assert_eq!(error, ConnectionError::NotRepeated);
    assert!(!target.session.mark_lost(LEADING));
    // The number of requests over a connection that damages every PDU is limited.
    let mut target = self::target();
    let tag = target.read(PIECE, 1);
    let header = target.data_in(LEADING, tag, 0, 0);
    let mut bytes = target.bytes(header, &piece(0));
    bytes[50] ^= 4;
    let ended = (0..1000).find_map(|_| target.session.handle_input(LEADING, &bytes).err());
    assert_eq!(ended, Some(ConnectionError::NotRepeated));
}

#[test]
fn rfc7143_11_7_data_that_overlaps_is_a_breach_whatever_its_number() {
    let mut target = target();
    let tag = target.read(2 * PIECE, 1);
    let header = target.data_in(LEADING, tag, 0, 0);
    target.send(LEADING, header, &piece(0));
    let mut header = target.data_in(LEADING, tag, 1, 0);
    header.buffer_offset = 256.into();
    let bytes = target.bytes(header, &piece(1));
    let error = target.session.handle_input(LEADING, &bytes).unwrap_err();
    assert!(matches!(error, ConnectionError::Protocol(ProtocolError::DataInPlace { .. })));
}

proptest! {
    #[test]
    fn a_hostile_target_never_causes_a_panic_above_level_0_either(
        pdus in prop::collection::vec((0u16..3, hostile_pdu()), 1..24),
        level in 0u32..3,
        losses in prop::collection::vec(0u16..3, 0..4),
    ) {
        let mut target = Target::ready(3, level, "");
        for token in 0..4 {
            target.read(1024, token);
            target.write(&sample(5000), 10 + token);
        }
        target.session.ping(Token(20));
        target.session.text(b"SendTargets=All\0", Token(21));
        target.session.task_management(TaskManagement::LogicalUnitReset(LUN), Token(22));
        let mut losses = losses.into_iter();
        for (cid, pdu) in pdus {
            let cid = Cid(cid);
            if target.session.handle_input(cid, &pdu).is_err()
                && let Some(other) = losses.next()
            {
                target.session.mark_lost(cid);
                target.session.mark_lost(Cid(other));
                target.session.remove(cid);
                target.session.reinstate(cid, None);
                target.session.join(None);
            }
            while target.session.poll_event().is_some() {}
            target.session.logout_connection(Cid(2));
        }
        for cid in 0..6 {
            target.drain(Cid(cid));
        }
    }
}
