//! The answer to a command: Data-In, residuals, status (RFC 7143 §11.4, §11.7).

use sarsen_block::Data;
use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{DataIn, Opcode, RawHeader, ScsiCommand, ScsiResponse};

use super::Completion;
use super::link::Link;
use super::recovery::SentData;
use super::tasks::{Fault, Task};
use crate::command_memory::Charge;

/// The SCSI status codes that this layer uses.
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const BUSY: u8 = 0x08;
const TASK_SET_FULL: u8 = 0x28;
const TASK_ABORTED: u8 = 0x40;

/// Returns the flag and the count of a residual (RFC 7143 §11.4.5).
fn residual(moved: usize, expected: usize) -> (u8, u32) {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    if moved > expected {
        (ScsiResponse::OVERFLOW, count(moved - expected))
    } else if moved < expected {
        (ScsiResponse::UNDERFLOW, count(expected - moved))
    } else {
        (0, 0)
    }
}

/// Reports TASK ABORTED to an initiator that did not abort the task itself (RFC 7143 §4.2.3.3).
pub(super) fn push_task_aborted(task: &mut Task, link: &mut Link) {
    push_status(task, TASK_ABORTED, &[], link);
}

/// Sends the data and the status of a task that has ended. The data takes the grant of its memory from the task.
pub(super) fn push(task: &mut Task, completion: Completion<'_>, link: &mut Link) {
    let Completion { status, mut data_in, unread_length, sense } = completion;
    let data_in_length = data_in.len() + unread_length;
    let expected = task.expected_data_transfer_length as usize;
    let reads = task.flags & ScsiCommand::READ != 0;
    let writes = task.flags & ScsiCommand::WRITE != 0;
    let (flags, residual_count) = if reads {
        residual(data_in_length, expected)
    } else if writes {
        residual(task.data_out_length, expected)
    } else {
        residual(data_in_length.max(task.data_out_length), 0)
    };
    data_in.truncate(if reads { expected } else { 0 });

    let cut = Segmentation::new(link, 0, data_in.len(), 0);
    let mut sent = None;
    if !data_in.is_empty() {
        link.output.unshare_for_digest(&mut data_in);
        let charge = link.room.keep(task.grant.take(), data_in.memory());
        // If the initiator may request PDUs again, the status has its own PDU.
        let ending = (status == GOOD && !link.keeps_sent_pdus()).then_some((flags, residual_count));
        match cut.whole().filter(|_| ending.is_some()) {
            Some(whole) => {
                let header = data_header(whole, task, ending, link);
                link.output.push_data(header, data_in, charge);
            }
            None => sent = Some(push_parts(task, data_in, charge, cut, ending, link)),
        }
        if ending.is_some() {
            return;
        }
    }
    let stamp = link.stamp();
    let mut response = ScsiResponse::from(RawHeader::with_opcode(Opcode::ScsiResponse));
    response.flags = FINAL | flags;
    response.response = ScsiResponse::COMPLETED;
    response.status = status;
    response.initiator_task_tag = task.id.initiator_task_tag.into();
    response.snack_tag = 0.into();
    response.stat_sn = stamp.stat_sn.into();
    response.exp_cmd_sn = stamp.exp_cmd_sn.into();
    response.max_cmd_sn = stamp.max_cmd_sn.into();
    response.exp_data_sn = (cut.count() + task.collection.r2t_sn).into();
    response.residual_count = residual_count.into();
    // RFC 7143 §11.4.7: the sense data follows a length of two bytes.
    let sense_length = (sense.len() as u16).to_be_bytes();
    let segment = match sense {
        [] => Vec::new(),
        sense => [&sense_length, sense].concat(),
    };
    link.answer(response, &segment);
    if link.keeps_sent_pdus()
        && let Some(sent) = sent
    {
        link.keep_data(sent);
    }
}

/// Sends data that needs several PDUs, or that the initiator may request again.
fn push_parts(
    task: &Task,
    data_in: Data,
    charge: Option<Charge>,
    cut: Segmentation,
    ending: Option<(u8, u32)>,
    link: &mut Link,
) -> SentData {
    let payload = link.output.charged_payload(data_in, charge);
    let acknowledge_tag = if link.keeps_sent_pdus() { link.next_data_ack_tag() } else { 0 };
    for part in cut.parts() {
        let mut header = data_header(part, task, ending, link);
        if link.keeps_sent_pdus() {
            part.ask_to_acknowledge(&mut header, task.lun, acknowledge_tag);
        }
        link.output.push_payload(header, &payload, part.offset, part.count);
    }
    SentData { lun: task.lun, payload, cut, acknowledge_tag, acknowledged: 0 }
}

/// Returns the header of one PDU. If the status is GOOD and no answer follows, the last PDU carries the status, and
/// `ending` is the flag and the count of its residual.
fn data_header(part: Part, task: &Task, ending: Option<(u8, u32)>, link: &mut Link) -> DataIn {
    let mut header = part.header(task.id.initiator_task_tag);
    let stamp = match ending.filter(|_| part.is_last) {
        Some((flags, residual_count)) => {
            header.flags |= DataIn::STATUS | flags;
            header.status = GOOD;
            header.residual_count = residual_count.into();
            let stamp = link.stamp();
            header.stat_sn = stamp.stat_sn.into();
            stamp
        }
        None => link.peek(),
    };
    header.exp_cmd_sn = stamp.exp_cmd_sn.into();
    header.max_cmd_sn = stamp.max_cmd_sn.into();
    header
}

/// The division of data into PDUs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segmentation {
    segment_limit: usize,
    burst_limit: usize,
    /// The offset of the first PDU. Its DataSN is `first_data_sn`.
    start: usize,
    first_data_sn: u32,
    /// The offset after the last byte.
    end: usize,
}

/// One PDU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) data_sn: u32,
    pub(super) offset: usize,
    pub(super) count: usize,
    ends_burst: bool,
    is_last: bool,
}

impl Segmentation {
    pub(super) fn new(link: &Link, start: usize, end: usize, first_data_sn: u32) -> Self {
        let segment_limit = link.parameters.peer_max_recv_data_segment_length as usize;
        let burst_limit = link.parameters.max_burst_length as usize;
        Self { segment_limit, burst_limit, start, first_data_sn, end }
    }

    pub(super) fn parts(self) -> impl Iterator<Item = Part> {
        let Self { segment_limit, burst_limit, start, first_data_sn, end } = self;
        let (mut offset, mut burst, mut data_sn) = (start, 0, first_data_sn);
        std::iter::from_fn(move || {
            if offset == end {
                return None;
            }
            let count = (end - offset).min(segment_limit).min(burst_limit - burst);
            let is_last = offset + count == end;
            burst += count;
            let ends_burst = is_last || burst == burst_limit;
            if ends_burst {
                burst = 0;
            }
            let part = Part { data_sn, offset, count, ends_burst, is_last };
            offset += count;
            data_sn = data_sn.wrapping_add(1);
            Some(part)
        })
    }

    /// Returns the only PDU, if one PDU holds all data.
    fn whole(self) -> Option<Part> {
        self.parts().next().filter(|part| part.is_last)
    }

    /// Returns the DataSN of the first PDU.
    pub(super) const fn first_data_sn(self) -> u32 {
        self.first_data_sn
    }

    /// Divides the data from the given PDU on into PDUs of the length that the initiator accepts now (RFC 7143
    /// §11.16.3). A number beyond all PDUs counts as the number after the last, so that the answer still counts as an
    /// answer with data.
    pub(super) fn cut_anew(self, link: &Link, from: u32) -> Self {
        let from = from.clamp(self.first_data_sn, self.count());
        let start = self.parts().find(|part| part.data_sn == from);
        Self::new(link, start.map_or(self.end, |part| part.offset), self.end, from)
    }

    /// Returns the number of PDUs, including the PDUs before the first.
    pub(super) fn count(self) -> u32 {
        self.parts().last().map_or(self.first_data_sn, |part| part.data_sn + 1)
    }
}

impl Part {
    pub(super) fn header(self, initiator_task_tag: u32) -> DataIn {
        let mut header = DataIn::from(RawHeader::with_opcode(Opcode::DataIn));
        header.flags = if self.ends_burst { FINAL } else { 0 };
        header.initiator_task_tag = initiator_task_tag.into();
        header.data_sn = self.data_sn.into();
        header.buffer_offset = (self.offset as u32).into();
        header
    }

    /// Requests a DataACK at the end of each burst except the last, which the status follows (RFC 7143 §11.7.2).
    pub(super) fn ask_to_acknowledge(self, header: &mut DataIn, lun: [u8; 8], tag: u32) {
        if self.ends_burst && !self.is_last {
            header.flags |= DataIn::ACKNOWLEDGE;
            header.lun = lun;
            header.target_transfer_tag = tag.into();
        }
    }
}

/// Answers a task that is not executed. A task that violated the protocol receives the sense data of RFC 7143
/// §11.4.7.2. A task without memory receives TASK SET FULL, or BUSY if it is the initiator's only task (SAM-5 5.3.1).
pub(super) fn push_fault(task: &mut Task, fault: Fault, is_only: bool, link: &mut Link) {
    match fault.additional_sense() {
        Some([code, qualifier]) => {
            // Fixed format (SPC-4 §4.5.3), ABORTED COMMAND.
            let sense = [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0];
            push_status(task, CHECK_CONDITION, &sense, link);
        }
        None => push_status(task, if is_only { BUSY } else { TASK_SET_FULL }, &[], link),
    }
}

fn push_status(task: &mut Task, status: u8, sense: &[u8], link: &mut Link) {
    let completion = Completion { status, data_in: Data::empty(), unread_length: 0, sense };
    push(task, completion, link);
}
