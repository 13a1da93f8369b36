//! Error recovery within a connection (RFC 7143 §7, levels 1 and 2): what was sent is kept until the
//! initiator acknowledges it, and sent again when it asks for it by SNACK (§11.16).

use std::collections::VecDeque;

use sarsen_wire::iscsi::{
    Opcode, RESERVED_TAG, RawHeader, RejectReason, ScsiResponse, SerialNumber, SnackRequest,
};

use super::data_in::Cut;
use super::data_out;
use super::full_feature::FullFeature;
use super::link::Link;
use super::tasks::Progress;
use crate::iscsi::output::Payload;

/// Answers that are kept before the initiator is asked for a sign of what it has.
const KEPT_BEFORE_PING: usize = 256;
/// An initiator that leaves so many answers unacknowledged is given up.
pub(super) const KEPT_LIMIT: usize = 4096;

/// The data that went before an answer.
pub(super) struct SentData {
    pub(super) lun: [u8; 8],
    pub(super) payload: Payload,
    pub(super) cut: Cut,
    pub(super) acknowledge_tag: u32,
    /// The initiator has the PDUs before this one.
    pub(super) acknowledged: u32,
}

/// An answer that took a StatSN.
pub(super) struct Answer {
    pub(super) header: RawHeader,
    pub(super) segment: Vec<u8>,
    pub(super) data: Option<SentData>,
}

impl Answer {
    // Every PDU that takes a StatSN has it, and its initiator task tag, in the same place.
    fn stat_sn(&self) -> SerialNumber {
        SerialNumber(ScsiResponse::view(&self.header).stat_sn.get())
    }

    fn tag(&self) -> u32 {
        self.header.basic().initiator_task_tag.get()
    }

    fn is_to_command(&self, initiator_task_tag: u32) -> bool {
        self.tag() == initiator_task_tag && self.header.basic().opcode() == Opcode::ScsiResponse
    }

    fn bytes(&self) -> usize {
        self.segment.len() + self.data.as_ref().map_or(0, |data| data.payload.owned_length())
    }
}

/// What the initiator has not acknowledged, the oldest first.
#[derive(Default)]
pub(super) struct Kept {
    answers: VecDeque<Answer>,
    bytes: usize,
    /// Of them, what is no command's data: echoes of pings, text.
    echoed: usize,
    last_tag: u32,
}

impl Kept {
    pub(super) fn push(&mut self, header: RawHeader, segment: &[u8]) {
        let answer = Answer { header, segment: segment.to_vec(), data: None };
        self.bytes += answer.bytes();
        self.echoed += answer.segment.len();
        self.answers.push_back(answer);
    }

    pub(super) fn attach(&mut self, data: SentData) {
        if let Some(answer) = self.answers.back_mut() {
            self.bytes += data.payload.owned_length();
            answer.data = Some(data);
        }
    }

    pub(super) fn next_tag(&mut self) -> u32 {
        self.last_tag = self.last_tag.wrapping_add(1) % RESERVED_TAG;
        self.last_tag
    }

    /// Memory that it takes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_large(&self) -> bool {
        self.answers.len() > KEPT_BEFORE_PING
    }

    /// The initiator has everything before this StatSN.
    fn acknowledge(&mut self, exp_stat_sn: SerialNumber) {
        while let Some(answer) =
            self.answers.pop_front_if(|answer| answer.stat_sn().is_before(exp_stat_sn))
        {
            self.bytes -= answer.bytes();
            self.echoed -= answer.segment.len();
        }
    }

    /// Whether the initiator is to be given up: it acknowledges nothing. The data of commands is limited
    /// before they are carried out, the rest here.
    pub(super) fn is_too_large(&self, room_limit: usize) -> bool {
        self.answers.len() > KEPT_LIMIT || self.echoed > room_limit
    }

    /// Whether an answer to this SCSI command is kept.
    pub(super) fn has(&self, initiator_task_tag: u32) -> bool {
        self.answers.iter().any(|answer| answer.is_to_command(initiator_task_tag))
    }

    /// Takes the answer to a SCSI command.
    pub(super) fn take(&mut self, initiator_task_tag: u32) -> Option<Answer> {
        let index =
            self.answers.iter().position(|answer| answer.is_to_command(initiator_task_tag))?;
        let answer = self.answers.remove(index)?;
        self.bytes -= answer.bytes();
        Some(answer)
    }
}

impl Link {
    /// Every request tells what has come (RFC 7143 §4.2.2.2).
    pub(super) fn acknowledge(&mut self, exp_stat_sn: u32) {
        let exp_stat_sn = SerialNumber(exp_stat_sn);
        if !exp_stat_sn.is_after(self.next_stat_sn()) {
            self.kept.acknowledge(exp_stat_sn);
        }
    }

    /// Sends parts of an answer's data, from `first` on; all of them if `count` is 0.
    pub(super) fn push_again(&mut self, tag: u32, data: &SentData, first: u32, count: u32) {
        let end = if count == 0 { u32::MAX } else { first.saturating_add(count) };
        for part in data.cut.parts().filter(|part| (first..end).contains(&part.data_sn)) {
            let mut header = part.header(tag);
            part.ask_to_acknowledge(&mut header, data.lun, data.acknowledge_tag);
            let stamp = self.peek();
            header.exp_cmd_sn = stamp.exp_cmd_sn.into();
            header.max_cmd_sn = stamp.max_cmd_sn.into();
            self.output.push_payload(header, &data.payload, part.offset, part.count);
        }
    }
}

/// What a SNACK asks for (RFC 7143 §11.16.1).
const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;

impl FullFeature {
    pub(super) fn handle_snack(&mut self, link: &mut Link, header: &RawHeader) {
        let snack = SnackRequest::view(header);
        let (first, count) = (snack.beg_run.get(), snack.run_length.get());
        // A short request for megabytes: nobody is given them again who does not take them.
        let limit = self.settings.output_limit + self.settings.room_limit;
        let done = link.keeps()
            && link.output.len() <= limit
            && match snack.flags & 0x0f {
                DATA_OR_R2T => self.send_data_again(link, snack, first, count),
                STATUS => send_answers_again(link, SerialNumber(first), count),
                DATA_ACK => {
                    if !acknowledge_data(link, snack.tag.get(), first) {
                        link.reject(RejectReason::InvalidDataAck, header);
                    }
                    true
                }
                // Data is never cut anew for R-Data: whoever declares another length in the full
                // feature phase gets what was sent as it was sent.
                _ => false,
            };
        if !done {
            link.reject(RejectReason::SnackReject, header);
        }
    }

    fn send_data_again(
        &mut self,
        link: &mut Link,
        snack: &SnackRequest,
        first: u32,
        count: u32,
    ) -> bool {
        let tag = snack.initiator_task_tag.get();
        if let Some(task) = self.tasks.by_tag(tag) {
            // Of what is not answered, nothing but R2Ts was sent.
            return match task.progress {
                Progress::Collecting => data_out::solicit_again(task, link, first, count),
                Progress::Running | Progress::Answering | Progress::Aborted(_) => true,
            };
        }
        let mut answers = std::mem::take(&mut link.kept.answers);
        let data = answers
            .iter()
            .filter(|answer| answer.tag() == tag)
            .find_map(|answer| answer.data.as_ref())
            .filter(|data| data.acknowledged <= first && first < data.cut.count());
        if let Some(data) = data {
            link.push_again(tag, data, first, count);
        }
        let done = data.is_some();
        std::mem::swap(&mut link.kept.answers, &mut answers);
        done
    }
}

/// False if one of them is not kept any more, or was never sent.
fn send_answers_again(link: &mut Link, first: SerialNumber, count: u32) -> bool {
    let end = if count == 0 { link.next_stat_sn() } else { first.plus(count) };
    if end.is_after(link.next_stat_sn()) || !first.is_before(end) {
        return false;
    }
    let answers = std::mem::take(&mut link.kept.answers);
    let mut next = first;
    for answer in &answers {
        let stat_sn = answer.stat_sn();
        if stat_sn.is_before(first) || !stat_sn.is_before(end) {
            continue;
        }
        if stat_sn == next {
            next = next.next();
        }
        let mut response = *ScsiResponse::view(&answer.header);
        let stamp = link.peek();
        response.exp_cmd_sn = stamp.exp_cmd_sn.into();
        response.max_cmd_sn = stamp.max_cmd_sn.into();
        link.output.push(response, &answer.segment);
    }
    link.kept.answers = answers;
    next == end
}

fn acknowledge_data(link: &mut Link, tag: u32, next: u32) -> bool {
    let mut all = link.kept.answers.iter_mut().filter_map(|answer| answer.data.as_mut());
    match all.find(|data| data.acknowledge_tag == tag) {
        Some(data) if next <= data.cut.count() => {
            data.acknowledged = data.acknowledged.max(next);
            true
        }
        _ => false,
    }
}
