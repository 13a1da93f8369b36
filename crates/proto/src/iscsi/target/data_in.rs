//! The end of a command: Data-In, residuals, status (RFC 7143 §11.4, §11.7).

use sarsen_wire::iscsi::pdu::FINAL;
use sarsen_wire::iscsi::{DataIn, Opcode, RawHeader, ScsiCommand, ScsiResponse};

use super::Completion;
use super::link::Link;
use super::tasks::{Fault, Task};

/// SCSI status codes that this layer knows.
const GOOD: u8 = 0x00;
const CHECK_CONDITION: u8 = 0x02;
const TASK_ABORTED: u8 = 0x40;

/// Flag and count of a residual (RFC 7143 §11.4.5).
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

/// Tells the initiator that another one ended a task (RFC 7143 §4.2.3.3).
pub(super) fn push_task_aborted(task: &Task, link: &mut Link) {
    let data_in = sarsen_block::Data::empty();
    push(task, Completion { status: TASK_ABORTED, data_in, sense: &[] }, link);
}

/// Sends the data and the status of a task that has ended.
pub(super) fn push(task: &Task, mut completion: Completion<'_>, link: &mut Link) {
    let expected = task.expected_data_transfer_length as usize;
    let reads = task.flags & ScsiCommand::READ != 0;
    let writes = task.flags & ScsiCommand::WRITE != 0;
    let (flags, residual_count) = if reads {
        residual(completion.data_in.len(), expected)
    } else if writes {
        residual(task.data_out_length, expected)
    } else {
        residual(completion.data_in.len().max(task.data_out_length), 0)
    };
    let limit = if reads { expected } else { 0 };
    completion.data_in.truncate(limit);

    let collapse = completion.status == GOOD && !completion.data_in.is_empty();
    let status = collapse.then_some((flags, residual_count));
    let data_pdus = push_data(task, &mut completion, status, link);
    if collapse {
        return;
    }
    let stamp = link.stamp();
    let mut response = ScsiResponse::from(RawHeader::with_opcode(Opcode::ScsiResponse));
    response.flags = FINAL | flags;
    response.response = ScsiResponse::COMPLETED;
    response.status = completion.status;
    response.initiator_task_tag = task.id.initiator_task_tag.into();
    response.snack_tag = 0.into();
    response.stat_sn = stamp.stat_sn.into();
    response.exp_cmd_sn = stamp.exp_cmd_sn.into();
    response.max_cmd_sn = stamp.max_cmd_sn.into();
    response.exp_data_sn = (data_pdus + task.collection.r2t_sn).into();
    response.residual_count = residual_count.into();
    if completion.sense.is_empty() {
        link.output.push(response, &[]);
    } else {
        // RFC 7143 §11.4.7: a length of two bytes comes first.
        let length = (completion.sense.len() as u16).to_be_bytes();
        link.output.push(response, &[&length, completion.sense].concat());
    }
}

/// Cuts the data into PDUs; the last one carries the status if there is one. Gives their number.
fn push_data(
    task: &Task,
    completion: &mut Completion<'_>,
    status: Option<(u8, u32)>,
    link: &mut Link,
) -> u32 {
    let data = std::mem::replace(&mut completion.data_in, sarsen_block::Data::empty());
    let length = data.len();
    let segment_limit = link.parameters.peer_max_recv_data_segment_length as usize;
    let burst_limit = link.parameters.max_burst_length as usize;
    let payload = link.output.payload(data);
    let (mut offset, mut burst, mut data_sn) = (0, 0, 0);
    while offset < length {
        let count = (length - offset).min(segment_limit).min(burst_limit - burst);
        let is_last = offset + count == length;
        burst += count;
        let ends_burst = is_last || burst == burst_limit;
        if ends_burst {
            burst = 0;
        }
        let mut header = DataIn::from(RawHeader::with_opcode(Opcode::DataIn));
        header.flags = if ends_burst { FINAL } else { 0 };
        header.initiator_task_tag = task.id.initiator_task_tag.into();
        let stamp = match status {
            Some((flags, residual_count)) if is_last => {
                header.flags |= DataIn::STATUS | flags;
                header.status = completion.status;
                header.residual_count = residual_count.into();
                let stamp = link.stamp();
                header.stat_sn = stamp.stat_sn.into();
                stamp
            }
            _ => link.peek(),
        };
        header.exp_cmd_sn = stamp.exp_cmd_sn.into();
        header.max_cmd_sn = stamp.max_cmd_sn.into();
        header.data_sn = data_sn.into();
        header.buffer_offset = (offset as u32).into();
        link.output.push_payload(header, &payload, offset, count);
        offset += count;
        data_sn += 1;
    }
    data_sn
}

/// Ends a task that broke the protocol, with the sense data that RFC 7143 §11.4.7.2 names.
pub(super) fn push_fault(task: &Task, fault: Fault, link: &mut Link) {
    let [code, qualifier] = fault.additional_sense();
    // Fixed format (SPC-4 §4.5.3), ABORTED COMMAND.
    let sense = [0x70, 0, 0x0b, 0, 0, 0, 0, 10, 0, 0, 0, 0, code, qualifier, 0, 0, 0, 0];
    let completion =
        Completion { status: CHECK_CONDITION, data_in: sarsen_block::Data::empty(), sense: &sense };
    push(task, completion, link);
}
