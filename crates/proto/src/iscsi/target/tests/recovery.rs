//! Tests of error recovery within a connection.

use super::super::recovery::KEPT_LIMIT;
use super::*;
use sarsen_wire::iscsi::SnackRequest;

const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;
const R_DATA: u8 = 3;

/// Creates a session of level 1, with data digests and short PDUs.
fn recovering(keys: &str) -> Script {
    let keys = format!(
        "ErrorRecoveryLevel=1\0DataDigest=CRC32C\0MaxRecvDataSegmentLength=512\0\
         MaxBurstLength=1024\0{keys}"
    );
    let mut script = Script::established(&keys);
    script.received.set_digests(false, true);
    script
}

impl Script {
    fn send_digested(&mut self, header: impl Into<RawHeader>, data: &[u8], valid: bool) {
        let mut basic = BasicHeader::from(header.into());
        basic.data_segment_length = U24::new(data.len() as u32);
        let mut bytes = RawHeader::from(basic).0.to_vec();
        bytes.extend_from_slice(data);
        if !data.is_empty() {
            let mut digest = crate::iscsi::digest::crc32c(data);
            digest[0] ^= u8::from(!valid);
            bytes.extend_from_slice(&digest);
        }
        let handled = self.connection.handle_input(&bytes, self.now, &mut self.world);
        handled.expect("the session goes on");
    }

    fn digested_write(&mut self, tag: u32, expected: u32, data: &[u8], valid: bool) {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags = WRITE;
        command.initiator_task_tag = tag.into();
        command.expected_data_transfer_length = expected.into();
        command.cmd_sn = self.cmd_sn.into();
        self.cmd_sn += 1;
        self.send_digested(command, data, valid);
    }

    fn digested_data(&mut self, tag: u32, r2t: &R2t, offset: usize, data: &[u8], valid: bool) {
        let mut header = DataOut::from(RawHeader::with_opcode(Opcode::DataOut));
        let start = r2t.buffer_offset.get() as usize;
        let end = start + r2t.desired_data_transfer_length.get() as usize;
        header.flags = if offset + data.len() == end { FINAL } else { 0 };
        header.initiator_task_tag = tag.into();
        header.target_transfer_tag = r2t.target_transfer_tag;
        header.data_sn = (((offset - start) / 512) as u32).into();
        header.buffer_offset = (offset as u32).into();
        self.send_digested(header, data, valid);
    }

    fn snack(&mut self, kind: u8, tag: u32, first: u32, count: u32) {
        let mut snack = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
        snack.flags = FINAL | kind;
        snack.initiator_task_tag = if kind == DATA_OR_R2T { tag } else { RESERVED_TAG }.into();
        snack.tag = if kind == DATA_ACK { tag } else { RESERVED_TAG }.into();
        snack.beg_run = first.into();
        snack.run_length = count.into();
        self.send_digested(snack, &[], true);
    }

    fn r2t(&mut self) -> R2t {
        let (header, _) = self.next();
        assert_eq!(header.basic().opcode(), Opcode::R2t);
        *R2t::view(&header)
    }

    /// Sends an R-Data SNACK.
    fn anew(&mut self, tag: u32, snack_tag: u32) {
        let mut snack = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
        snack.flags = FINAL | R_DATA;
        snack.initiator_task_tag = tag.into();
        snack.tag = snack_tag.into();
        self.send_digested(snack, &[], true);
    }

    /// Checks that the next PDU is a Reject with this reason. Returns its DataSN or R2TSN.
    fn rejected(&mut self, reason: RejectReason) -> u32 {
        let (header, _) = self.next();
        assert_eq!(header.basic().opcode(), Opcode::Reject);
        assert_eq!(Reject::view(&header).reason, reason.0);
        Reject::view(&header).data_sn.get()
    }

    /// Checks that the next Data-In PDUs contain parts of `data`. Returns their DataSNs.
    fn data_in(&mut self, data: &[u8]) -> Vec<u32> {
        self.collect();
        let mut numbers = Vec::new();
        while let Some((header, segment)) = self.pdus.front()
            && header.basic().opcode() == Opcode::DataIn
        {
            let part = DataIn::view(header);
            let offset = part.buffer_offset.get() as usize;
            assert_eq!(segment[..], data[offset..offset + segment.len()]);
            numbers.push(part.data_sn.get());
            self.pdus.pop_front();
        }
        numbers
    }

    fn stat_sn(&mut self) -> u32 {
        let (header, _) = self.next();
        assert_eq!(header.basic().opcode(), Opcode::ScsiResponse);
        ScsiResponse::view(&header).stat_sn.get()
    }

    /// Sends a ping that acknowledges all PDUs before a StatSN.
    fn acknowledge(&mut self, exp_stat_sn: u32) {
        let mut ping = NopOut::from(RawHeader::with_opcode(Opcode::NopOut));
        ping.opcode_byte |= IMMEDIATE;
        ping.initiator_task_tag = RESERVED_TAG.into();
        ping.target_transfer_tag = RESERVED_TAG.into();
        ping.cmd_sn = self.cmd_sn.into();
        ping.exp_stat_sn = exp_stat_sn.into();
        self.send_digested(ping, &[], true);
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index / 7) as u8).collect()
}

#[test]
fn rfc7143_7_8_data_with_a_wrong_digest_is_asked_for_again() {
    let mut script = recovering("InitialR2T=Yes\0ImmediateData=Yes\0MaxOutstandingR2T=1\0");
    script.world.data_out_length = 2048;
    let data = pattern(2048);
    script.digested_write(1, 2048, &data[..512], true);
    // The damaged PDU is in the middle of a burst.
    let burst = script.r2t();
    assert_eq!((burst.buffer_offset.get(), burst.desired_data_transfer_length.get()), (512, 1024));
    script.digested_data(1, &burst, 512, &data[512..1024], false);
    script.rejected(RejectReason::DataDigestError);
    script.digested_data(1, &burst, 1024, &data[1024..1536], true);
    let lost = script.r2t();
    assert_eq!((lost.buffer_offset.get(), lost.desired_data_transfer_length.get()), (512, 512));
    script.digested_data(1, &lost, 512, &data[512..1024], true);
    let last = script.r2t();
    assert_eq!((last.buffer_offset.get(), last.desired_data_transfer_length.get()), (1536, 512));
    script.digested_data(1, &last, 1536, &data[1536..], true);
    let command = script.next_command();
    assert_eq!(command.data_out.as_deref(), Some(&data[..]));
}

#[test]
fn rfc7143_7_3_a_command_with_a_wrong_digest_is_not_received() {
    for keys in ["InitialR2T=Yes\0", "InitialR2T=Yes\0ErrorRecoveryLevel=0\0"] {
        let mut script = if keys.contains("Level") {
            let mut script = Script::established("DataDigest=CRC32C\0InitialR2T=Yes\0");
            script.received.set_digests(false, true);
            script
        } else {
            recovering(keys)
        };
        script.world.data_out_length = 512;
        let (cmd_sn, data) = (script.cmd_sn, pattern(512));
        script.digested_write(1, 512, &data, false);
        let (header, rejected) = script.next();
        let reject = Reject::view(&header);
        assert_eq!(reject.reason(), RejectReason::DataDigestError);
        assert_eq!((reject.exp_cmd_sn.get(), rejected[0]), (cmd_sn, Opcode::ScsiCommand.0));
        // Later commands wait for the rejected command.
        script.digested_write(2, 512, &data, true);
        script.nothing_more();
        script.cmd_sn = cmd_sn;
        script.digested_write(1, 512, &data, true);
        for tag in [1, 2] {
            let command = script.next_command();
            assert_eq!(command.task.initiator_task_tag, tag);
            assert_eq!(command.data_out.as_deref(), Some(&data[..]));
            script.good(&command, vec![]);
        }
        script.next();
        let (header, _) = script.next();
        let response = ScsiResponse::view(&header);
        assert_eq!(response.exp_cmd_sn.get(), cmd_sn + 2);
        assert_eq!(response.max_cmd_sn.get(), cmd_sn + 1 + Settings::default().command_window);
    }
}

#[test]
fn rfc7143_7_8_an_immediate_command_with_a_wrong_digest_is_discarded() {
    let mut script = recovering("");
    script.world.data_out_length = 512;
    let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
    command.opcode_byte |= IMMEDIATE;
    command.flags = WRITE;
    command.initiator_task_tag = 1.into();
    command.expected_data_transfer_length = 512.into();
    command.cmd_sn = script.cmd_sn.into();
    script.send_digested(command, &pattern(512), false);
    script.rejected(RejectReason::DataDigestError);
    script.nothing_more();
    script.send_digested(command, &pattern(512), true);
    assert_eq!(script.next_command().data_out.as_deref(), Some(&pattern(512)[..]));
}

#[test]
fn rfc7143_7_8_a_request_with_a_wrong_digest_may_come_again() {
    let mut script = recovering("");
    let mut text = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    text.flags = FINAL;
    text.initiator_task_tag = 3.into();
    text.target_transfer_tag = RESERVED_TAG.into();
    text.cmd_sn = script.cmd_sn.into();
    script.send_digested(text, b"SendTargets=\0\0\0\0", false);
    script.rejected(RejectReason::DataDigestError);
    script.send_digested(text, b"SendTargets=\0\0\0\0", true);
    let (header, _) = script.next();
    assert_eq!(header.basic().opcode(), Opcode::TextResponse);
}

#[test]
fn rfc7143_11_16_data_in_is_sent_again() {
    let mut script = recovering("");
    let data = pattern(2560);
    script.command(1, READ, 2560, &[]);
    let command = script.next_command();
    script.good(&command, data.clone());
    assert_eq!(script.data_in(&data), [0, 1, 2, 3, 4]);
    let stat_sn = script.stat_sn();
    script.snack(DATA_OR_R2T, 1, 1, 2);
    assert_eq!(script.data_in(&data), [1, 2]);
    script.snack(DATA_OR_R2T, 1, 3, 0);
    assert_eq!(script.data_in(&data), [3, 4]);
    // A SNACK for PDUs that were never sent, or for a run beyond them, is rejected.
    for (first, count) in [(5, 0), (5, 1), (3, 3), (0, 6), (1, u32::MAX)] {
        script.snack(DATA_OR_R2T, 1, first, count);
        assert_eq!(script.rejected(RejectReason::ProtocolError), 5, "{first} {count}");
        script.nothing_more();
    }
    script.snack(DATA_OR_R2T, 1, 0, 0);
    assert_eq!(script.data_in(&data), [0, 1, 2, 3, 4]);
    // The data is no longer kept after its status is acknowledged.
    script.acknowledge(stat_sn + 1);
    script.snack(DATA_OR_R2T, 1, 0, 1);
    script.rejected(RejectReason::ProtocolError);
}

#[test]
fn rfc7143_11_16_status_is_sent_again_until_it_is_acknowledged() {
    let mut script = recovering("");
    let mut numbers = Vec::new();
    for tag in 1..=3 {
        script.command(tag, READ, 0, &[]);
        let command = script.next_command();
        script.good(&command, vec![]);
        numbers.push(script.stat_sn());
    }
    script.snack(STATUS, 0, numbers[1], 2);
    assert_eq!([script.stat_sn(), script.stat_sn()], numbers[1..]);
    script.acknowledge(numbers[1]);
    // This SNACK requests every PDU that is not acknowledged.
    script.snack(STATUS, 0, 0, 0);
    assert_eq!([script.stat_sn(), script.stat_sn()], numbers[1..]);
    script.nothing_more();
    script.snack(STATUS, 0, numbers[2], 0);
    assert_eq!(script.stat_sn(), numbers[2]);
    script.nothing_more();
}

#[test]
fn rfc7143_11_16_status_that_was_acknowledged_or_never_sent_is_not_asked_for() {
    let mut script = recovering("");
    script.command(1, READ, 0, &[]);
    let command = script.next_command();
    script.good(&command, vec![]);
    let stat_sn = script.stat_sn();
    script.acknowledge(stat_sn + 1);
    for (first, count) in [(stat_sn, 0), (stat_sn, 1), (stat_sn + 9, 0), (stat_sn + 9, 2)] {
        script.snack(STATUS, 0, first, count);
        script.rejected(RejectReason::ProtocolError);
    }
    // Rejects take a StatSN, too.
    script.acknowledge(stat_sn + 3);
    script.snack(STATUS, 0, stat_sn + 3, 5);
    script.rejected(RejectReason::ProtocolError);
    script.nothing_more();
    script.acknowledge(stat_sn + 6);
    script.snack(STATUS, 0, 0, 0);
    script.nothing_more();
}

#[test]
fn rfc7143_11_7_2_the_end_of_a_burst_asks_for_an_acknowledgement() {
    let mut script = recovering("");
    let data = pattern(2048);
    script.command(1, READ, 2048, &[]);
    let command = script.next_command();
    script.good(&command, data.clone());
    script.collect();
    let asking: Vec<_> = script
        .pdus
        .iter()
        .filter(|(header, _)| header.basic().opcode() == Opcode::DataIn)
        .map(|(header, _)| *DataIn::view(header))
        .filter(|part| part.flags & DataIn::ACKNOWLEDGE != 0)
        .collect();
    assert_eq!(asking.iter().map(|part| part.data_sn.get()).collect::<Vec<_>>(), [1]);
    script.pdus.clear();
    script.snack(DATA_ACK, asking[0].target_transfer_tag.get(), 2, 0);
    script.nothing_more();
    script.snack(DATA_OR_R2T, 1, 0, 1);
    assert_eq!(script.rejected(RejectReason::ProtocolError), 4);
    script.snack(DATA_OR_R2T, 1, 0, 0);
    assert_eq!(script.data_in(&data), [2, 3], "what is not acknowledged");
    script.snack(DATA_ACK, 0x1234, 1, 0);
    script.rejected(RejectReason::InvalidDataAck);
}

#[test]
fn rfc7143_11_16_an_r2t_is_sent_again() {
    let mut script = recovering("InitialR2T=Yes\0ImmediateData=No\0MaxOutstandingR2T=2\0");
    script.world.data_out_length = 2048;
    script.digested_write(1, 2048, &[], true);
    let (first, second) = (script.r2t(), script.r2t());
    script.snack(DATA_OR_R2T, 1, 0, 0);
    let again = [script.r2t(), script.r2t()];
    let tags = |r2t: &R2t| (r2t.target_transfer_tag.get(), r2t.r2t_sn.get());
    assert_eq!(again.each_ref().map(tags), [first, second].each_ref().map(tags));
    script.snack(DATA_OR_R2T, 1, 2, 1);
    assert_eq!(script.rejected(RejectReason::ProtocolError), 2);
    // The arrival of its data acknowledges the first R2T.
    script.digested_data(1, &first, 0, &pattern(2048)[..512], true);
    script.digested_data(1, &first, 512, &pattern(2048)[512..1024], true);
    script.snack(DATA_OR_R2T, 1, 0, 2);
    script.rejected(RejectReason::ProtocolError);
    script.snack(DATA_OR_R2T, 1, 0, 0);
    assert_eq!(tags(&script.r2t()), tags(&second));
    script.nothing_more();
}

#[test]
fn rfc7143_11_16_nothing_was_sent_of_a_command_that_is_carried_out() {
    let mut script = recovering("");
    script.command(1, READ, 512, &[]);
    let command = script.next_command();
    script.snack(DATA_OR_R2T, 1, 0, 1);
    assert_eq!(script.rejected(RejectReason::ProtocolError), 0);
    script.anew(1, 7);
    script.rejected(RejectReason::ProtocolError);
    script.snack(DATA_OR_R2T, 1, 0, 0);
    script.nothing_more();
    script.good(&command, pattern(512));
    assert_eq!(script.data_in(&pattern(512)), [0]);
}

#[test]
fn rfc7143_11_16_3_data_is_resegmented_and_status_has_snack_tag() {
    let mut script = recovering("");
    let data = pattern(4096);
    script.command(1, READ, 4096, &[]);
    let command = script.next_command();
    script.good(&command, data.clone());
    script.collect();
    let asking = script.pdus.iter().map(|(header, _)| *DataIn::view(header));
    let asking = asking.into_iter().find(|part| part.flags & DataIn::ACKNOWLEDGE != 0);
    let acknowledge_tag = asking.expect("the end of a burst").target_transfer_tag.get();
    assert_eq!(script.data_in(&data), [0, 1, 2, 3, 4, 5, 6, 7]);
    let (first, _) = script.next();
    let first = *ScsiResponse::view(&first);
    assert_eq!((first.snack_tag.get(), first.exp_data_sn.get()), (0, 8));
    script.snack(DATA_ACK, acknowledge_tag, 2, 0);
    let mut text = TextRequest::from(RawHeader::with_opcode(Opcode::TextRequest));
    text.opcode_byte |= IMMEDIATE;
    text.initiator_task_tag = 9.into();
    text.cmd_sn = script.cmd_sn.into();
    script.send_digested(text, b"MaxRecvDataSegmentLength=1024\0\0\0", true);
    script.next();
    // Acknowledged PDUs are not sent again; the numbers continue after them.
    for snack_tag in [7, 8] {
        script.anew(1, snack_tag);
        assert_eq!(script.data_in(&data), [2, 3, 4]);
        let (header, _) = script.next();
        let again = ScsiResponse::view(&header);
        assert_eq!((again.snack_tag.get(), again.exp_data_sn.get()), (snack_tag, 5));
        assert_eq!((again.stat_sn, again.status), (first.stat_sn, first.status));
    }
    script.nothing_more();
    // A status that is sent again has its last content. Data that is sent again has its last DataSNs.
    script.snack(STATUS, 0, first.stat_sn.get(), 1);
    let (header, _) = script.next();
    assert_eq!(ScsiResponse::view(&header).snack_tag.get(), 8);
    script.snack(DATA_OR_R2T, 1, 4, 1);
    assert_eq!(script.data_in(&data), [4]);
    script.snack(DATA_OR_R2T, 1, 5, 1);
    assert_eq!(script.rejected(RejectReason::ProtocolError), 5);
}

#[test]
fn rfc7143_11_16_5_an_r_data_snack_has_a_tag_and_no_run() {
    let mut script = recovering("");
    script.command(1, READ, 512, &[]);
    let command = script.next_command();
    script.good(&command, pattern(512));
    script.collect();
    script.pdus.clear();
    for snack_tag in [0, RESERVED_TAG] {
        script.anew(1, snack_tag);
        script.rejected(RejectReason::InvalidPduField);
    }
    script.anew(9, 7);
    script.rejected(RejectReason::ProtocolError);
    let mut snack = SnackRequest::from(RawHeader::with_opcode(Opcode::SnackRequest));
    snack.flags = FINAL | 5;
    script.send_digested(snack, &[], true);
    script.rejected(RejectReason::InvalidPduField);
}

#[test]
fn an_initiator_that_acknowledges_nothing_is_asked_and_then_given_up() {
    let mut script = recovering("");
    let mut pinged = false;
    let ended = (1..=2 * KEPT_LIMIT as u32).find(|&tag| {
        let mut command = ScsiCommand::from(RawHeader::with_opcode(Opcode::ScsiCommand));
        command.flags = READ;
        command.initiator_task_tag = tag.into();
        command.cmd_sn = script.cmd_sn.into();
        script.cmd_sn += 1;
        if script.send(command, &[]).is_err() {
            return true;
        }
        let command = script.next_command();
        script.good(&command, vec![]);
        script.collect();
        pinged |= script.pdus.drain(..).any(|(header, _)| header.basic().opcode() == Opcode::NopIn);
        false
    });
    assert!(pinged && ended.is_some());
}

#[test]
fn rfc7143_11_16_level_0_takes_no_snack() {
    let mut script = Script::established("");
    script.snack(STATUS, 0, 0, 0);
    script.rejected(RejectReason::ProtocolError);
}
