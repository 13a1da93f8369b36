//! Error recovery within a connection (RFC 7143 §7, levels 1 and 2): the target keeps sent PDUs until the initiator
//! acknowledges them, and sends them again when the initiator requests them by SNACK (§11.16).

use std::collections::VecDeque;
use std::ops::Range;

use sarsen_wire::iscsi::{
    Opcode, RESERVED_TAG, RawHeader, RejectReason, ScsiResponse, SerialNumber, SnackRequest,
};

use super::data_in::Segmentation;
use super::data_out;
use super::full_feature::FullFeature;
use super::link::Link;
use super::tasks::Progress;
use crate::command_memory::{Charge, CommandMemory};
use crate::iscsi::output::Payload;

/// Number of kept answers above which the target pings the initiator for an acknowledgement.
const KEPT_BEFORE_PING: usize = 256;
/// Maximum number of unacknowledged answers. Above it, the target closes the connection.
pub(super) const KEPT_LIMIT: usize = 4096;

/// The segment of a kept answer is charged if it is longer than this.
const UNCHARGED_SEGMENT: usize = 256;

/// The data that was sent before an answer.
pub(super) struct SentData {
    pub(super) lun: [u8; 8],
    pub(super) payload: Payload,
    pub(super) cut: Segmentation,
    pub(super) acknowledge_tag: u32,
    /// The initiator has acknowledged the PDUs before this DataSN.
    pub(super) acknowledged: u32,
}

impl SentData {
    /// Returns the DataSN of the first PDU that is not acknowledged.
    fn oldest(&self) -> u32 {
        self.acknowledged.max(self.cut.first_data_sn())
    }
}

/// An answer that took a StatSN.
pub(super) struct Answer {
    pub(super) header: RawHeader,
    pub(super) segment: Vec<u8>,
    pub(super) data: Option<SentData>,
    /// The charge for the memory of the segment.
    _charge: Option<Charge>,
}

impl Answer {
    // All PDUs that take a StatSN have it, and the initiator task tag, at the same offset.
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
        self.segment.len() + self.data.as_ref().map_or(0, |data| data.payload.memory())
    }
}

/// The PDUs that the initiator has not acknowledged, the oldest first.
#[derive(Default)]
pub(super) struct UnacknowledgedPdus {
    answers: VecDeque<Answer>,
    bytes: usize,
    /// The part of `bytes` that is not data of commands, for example ping echoes and text.
    echoed: usize,
    /// No memory was available for one of the segments.
    lacks_memory: bool,
    last_tag: u32,
}

impl UnacknowledgedPdus {
    pub(super) fn push(&mut self, header: RawHeader, segment: &[u8], room: &CommandMemory) {
        let grant = (segment.len() > UNCHARGED_SEGMENT).then(|| room.take_unasked(segment.len()));
        self.lacks_memory |= matches!(grant, Some(None));
        let charge = grant.flatten().map(|grant| room.charge_of(grant));
        let answer = Answer { header, segment: segment.to_vec(), data: None, _charge: charge };
        self.bytes += answer.bytes();
        self.echoed += answer.segment.len();
        self.answers.push_back(answer);
    }

    pub(super) fn attach(&mut self, data: SentData) {
        if let Some(answer) = self.answers.back_mut() {
            self.bytes += data.payload.memory();
            answer.data = Some(data);
        }
    }

    pub(super) fn next_tag(&mut self) -> u32 {
        self.last_tag = self.last_tag.wrapping_add(1) % RESERVED_TAG;
        self.last_tag
    }

    /// Returns the memory of the kept PDUs.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_large(&self) -> bool {
        self.answers.len() > KEPT_BEFORE_PING
    }

    /// Removes all PDUs before this StatSN, because the initiator has received them.
    fn acknowledge(&mut self, exp_stat_sn: SerialNumber) {
        while let Some(answer) =
            self.answers.pop_front_if(|answer| answer.stat_sn().is_before(exp_stat_sn))
        {
            self.discount(&answer);
        }
    }

    /// Returns whether to close the connection, because the initiator acknowledges too little. The data of commands is
    /// limited before they are executed; all other data is limited here.
    pub(super) fn is_too_large(&self, room_limit: usize) -> bool {
        self.lacks_memory || self.answers.len() > KEPT_LIMIT || self.echoed > room_limit
    }

    /// Subtracts a removed PDU from the counts.
    fn discount(&mut self, answer: &Answer) {
        self.bytes -= answer.bytes();
        self.echoed -= answer.segment.len();
    }

    /// Returns the data that was sent before the answer to a command.
    fn data_of(&self, initiator_task_tag: u32) -> Option<&SentData> {
        let answer = self.answers.iter().find(|answer| answer.is_to_command(initiator_task_tag));
        answer?.data.as_ref()
    }

    /// Returns whether an answer to this SCSI command is kept.
    pub(super) fn has(&self, initiator_task_tag: u32) -> bool {
        self.answers.iter().any(|answer| answer.is_to_command(initiator_task_tag))
    }

    /// Removes and returns the answer to a SCSI command.
    pub(super) fn take(&mut self, initiator_task_tag: u32) -> Option<Answer> {
        let index =
            self.answers.iter().position(|answer| answer.is_to_command(initiator_task_tag))?;
        let answer = self.answers.remove(index)?;
        self.discount(&answer);
        Some(answer)
    }
}

impl Link {
    /// Takes the ExpStatSN of a request, which acknowledges the answers before it (RFC 7143 §4.2.2.2).
    pub(super) fn acknowledge(&mut self, exp_stat_sn: u32) {
        let exp_stat_sn = SerialNumber(exp_stat_sn);
        if !exp_stat_sn.is_after(self.next_stat_sn()) {
            self.kept.acknowledge(exp_stat_sn);
        }
    }

    /// Sends parts of an answer's data again.
    pub(super) fn push_again(&mut self, tag: u32, data: &SentData, numbers: Range<u32>) {
        for part in data.cut.parts().filter(|part| numbers.contains(&part.data_sn)) {
            let mut header = part.header(tag);
            part.ask_to_acknowledge(&mut header, data.lun, data.acknowledge_tag);
            let stamp = self.peek();
            header.exp_cmd_sn = stamp.exp_cmd_sn.into();
            header.max_cmd_sn = stamp.max_cmd_sn.into();
            self.output.push_payload(header, &data.payload, part.offset, part.count);
        }
    }

    /// Sends an answer again without changes, except for the command window (RFC 7143 §11.16).
    fn push_response_again(&mut self, header: &RawHeader, segment: &[u8]) {
        // All answers have these numbers at the same offset.
        let mut response = *ScsiResponse::view(header);
        let stamp = self.peek();
        response.exp_cmd_sn = stamp.exp_cmd_sn.into();
        response.max_cmd_sn = stamp.max_cmd_sn.into();
        self.output.push(response, segment);
    }
}

/// Types of SNACK (RFC 7143 §11.16.1).
const DATA_OR_R2T: u8 = 0;
const STATUS: u8 = 1;
const DATA_ACK: u8 = 2;
const R_DATA: u8 = 3;

/// The range of numbers that a SNACK requests (RFC 7143 §11.16.6, §11.16.7).
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) first: u32,
    count: u32,
}

impl Run {
    /// Returns whether the SNACK requests all PDUs that are not acknowledged.
    pub(super) const fn is_all(self) -> bool {
        self.first == 0 && self.count == 0
    }

    /// Returns the number after the last requested number. `next` is the first number that has not been used.
    pub(super) const fn end(self, next: u32) -> u32 {
        match self.count {
            0 => next,
            count => self.first.saturating_add(count),
        }
    }
}

impl FullFeature {
    pub(super) fn handle_snack(&mut self, link: &mut Link, header: &RawHeader) {
        let snack = SnackRequest::view(header);
        let tag = snack.initiator_task_tag.get();
        let run = Run { first: snack.beg_run.get(), count: snack.run_length.get() };
        // A short SNACK can request megabytes. The target rejects it while too much output is unsent.
        let limit = self.settings.output_limit + self.settings.room_limit;
        let done = if !link.keeps_sent_pdus() {
            Err(RejectReason::ProtocolError)
        } else if link.output.len() > limit {
            Err(RejectReason::SnackReject)
        } else {
            match snack.flags & 0x0f {
                DATA_OR_R2T => self.send_data_again(link, tag, run),
                STATUS => send_answers_again(link, run),
                DATA_ACK => acknowledge_data(link, snack.tag.get(), run.first),
                R_DATA => send_data_anew(link, tag, snack.tag.get(), run),
                _ => Err(RejectReason::InvalidPduField),
            }
        };
        if let Err(reason) = done {
            let data_sn = self.next_data_sn(link, tag);
            link.reject_with(reason, header, data_sn);
        }
    }

    /// Returns the number of the next Data-In or R2T of a task.
    fn next_data_sn(&mut self, link: &Link, tag: u32) -> u32 {
        match self.tasks.by_tag(tag) {
            Some(task) => task.collection.r2t_sn,
            None => link.kept.data_of(tag).map_or(0, |data| data.cut.count()),
        }
    }

    fn send_data_again(&mut self, link: &mut Link, tag: u32, run: Run) -> Result<(), RejectReason> {
        if let Some(task) = self.tasks.by_tag(tag) {
            // Only R2Ts were sent for a task that is not answered yet.
            let done = match task.progress {
                Progress::Collecting => data_out::solicit_again(task, link, run),
                Progress::Running | Progress::Answering | Progress::Aborted(_) => run.is_all(),
            };
            return if done { Ok(()) } else { Err(RejectReason::ProtocolError) };
        }
        let answers = std::mem::take(&mut link.kept.answers);
        let data = answers.iter().filter(|answer| answer.tag() == tag);
        let done = data.filter_map(|answer| answer.data.as_ref()).next().and_then(|data| {
            let oldest = data.oldest();
            let first = if run.is_all() { oldest } else { run.first };
            let end = run.end(data.cut.count());
            let was_sent = (oldest..data.cut.count()).contains(&first) && end <= data.cut.count();
            if was_sent {
                link.push_again(tag, data, first..end);
            }
            (was_sent || run.is_all()).then_some(())
        });
        link.kept.answers = answers;
        done.ok_or(RejectReason::ProtocolError)
    }
}

fn send_answers_again(link: &mut Link, run: Run) -> Result<(), RejectReason> {
    let next = link.next_stat_sn();
    let answers = std::mem::take(&mut link.kept.answers);
    let oldest = answers.front().map_or(next, Answer::stat_sn);
    let first = if run.is_all() { oldest } else { SerialNumber(run.first) };
    let end = if run.count == 0 { next } else { first.plus(run.count) };
    // The kept PDUs have consecutive numbers up to the newest.
    let is_kept = !first.is_before(oldest)
        && first.is_before(end)
        && !end.is_after(next)
        && run.count as usize <= answers.len();
    if is_kept {
        let is_meant = |answer: &&Answer| {
            let stat_sn = answer.stat_sn();
            !stat_sn.is_before(first) && stat_sn.is_before(end)
        };
        for answer in answers.iter().filter(is_meant) {
            link.push_response_again(&answer.header, &answer.segment);
        }
    }
    link.kept.answers = answers;
    if is_kept || run.is_all() { Ok(()) } else { Err(RejectReason::ProtocolError) }
}

fn acknowledge_data(link: &mut Link, tag: u32, next: u32) -> Result<(), RejectReason> {
    let mut all = link.kept.answers.iter_mut().filter_map(|answer| answer.data.as_mut());
    match all.find(|data| data.acknowledge_tag == tag) {
        Some(data) if next <= data.cut.count() => {
            data.acknowledged = data.acknowledged.max(next);
            Ok(())
        }
        _ => Err(RejectReason::InvalidDataAck),
    }
}

/// Sends all data that is not acknowledged again, in PDUs of the length that the initiator accepts now. Then sends the
/// status again, with the SNACK Tag (RFC 7143 §11.16.3).
fn send_data_anew(link: &mut Link, tag: u32, snack_tag: u32, run: Run) -> Result<(), RejectReason> {
    if !run.is_all() || matches!(snack_tag, 0 | RESERVED_TAG) {
        return Err(RejectReason::InvalidPduField);
    }
    let mut answers = std::mem::take(&mut link.kept.answers);
    let answer = answers.iter_mut().find(|answer| answer.is_to_command(tag));
    let done = match answer {
        Some(Answer { header, segment, data: Some(data), .. }) => {
            let mut response = *ScsiResponse::view(header);
            let r2t_count = response.exp_data_sn.get().wrapping_sub(data.cut.count());
            data.cut = data.cut.cut_anew(link, data.oldest());
            // The new tag differs from the tag in a late acknowledgement of the earlier PDUs.
            data.acknowledge_tag = link.next_data_ack_tag();
            response.exp_data_sn = data.cut.count().wrapping_add(r2t_count).into();
            response.snack_tag = snack_tag.into();
            *header = response.into();
            link.push_again(tag, data, 0..u32::MAX);
            link.push_response_again(header, segment);
            Ok(())
        }
        _ => Err(RejectReason::ProtocolError),
    };
    link.kept.answers = answers;
    done
}
