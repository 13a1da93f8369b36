//! The data that a command receives: immediate, unsolicited, and solicited by R2T (RFC 7143 §4.2.5.2, §11.7, §11.8).

use sarsen_wire::iscsi::{DataOut, Opcode, R2t, RESERVED_TAG, RawHeader};

use super::link::Link;
use super::recovery::Run;
use super::tasks::{Fault, OpenR2t, Task};
use crate::iscsi::{Landing, Segment};

/// Returns the memory for the next data segment of `task`, of `length` bytes: the command's buffer, if the segment fits
/// into it.
pub(super) fn landing(task: &mut Task, length: usize) -> Landing {
    let collection = &mut task.collection;
    let position = collection.position;
    if task.fault.is_some() || position >= collection.capacity {
        // The command does not take the data, or there is no memory for it.
        Landing::Discard
    } else if length <= collection.capacity - position {
        Landing::Into { buffer: collection.take_buffer(), offset: position }
    } else {
        Landing::Collect
    }
}

/// Takes a data segment of `length` bytes that [`landing`] placed. Bytes beyond the command's length are dropped.
/// Damaged data is requested again if the recovery level permits that.
pub(super) fn absorb(
    task: &mut Task,
    segment: Segment,
    length: usize,
    digest_valid: bool,
    recovers: bool,
) {
    if !digest_valid && !recovers {
        task.fault.get_or_insert(Fault::ProtocolServiceCrcError);
    }
    let collection = &mut task.collection;
    let position = collection.position;
    collection.position = position.saturating_add(length);
    let Segment::Placed { buffer, range } = segment else { return };
    if !digest_valid && recovers {
        let end = (position + range.len()).min(collection.wanted);
        if position < end {
            collection.lost.push(position..end);
        }
    }
    let in_place = collection.buffer.is_none()
        && buffer.len() == collection.capacity
        && range.start == position
        && range.end <= collection.capacity;
    if in_place {
        collection.buffer = Some(buffer);
    } else if task.fault.is_none() && position < collection.capacity {
        let useful = range.len().min(collection.capacity - position);
        let mut target = collection.take_buffer();
        target[position..position + useful]
            .copy_from_slice(&buffer[range.start..range.start + useful]);
        collection.buffer = Some(target);
    }
}

/// Compares a Data-Out header with the expected sequence. `Ok` means that its data is the next data of the task.
pub(super) fn check(task: &Task, header: &DataOut, first_burst_length: u32) -> Result<(), Fault> {
    let collection = &task.collection;
    let length = header.data_segment_length.value() as usize;
    let offset = header.buffer_offset.get() as usize;
    if header.target_transfer_tag.get() == RESERVED_TAG {
        let limit = first_burst_length.min(task.expected_data_transfer_length) as usize;
        if !collection.unsolicited {
            return Err(Fault::UnexpectedUnsolicitedData);
        }
        if offset.saturating_add(length) > limit {
            return Err(Fault::IncorrectAmountOfData);
        }
    } else {
        let end = collection.r2ts.front().map_or(0, |r2t| r2t.end);
        let current = collection
            .r2ts
            .front()
            .is_some_and(|r2t| r2t.target_transfer_tag == header.target_transfer_tag.get());
        if !current || offset.saturating_add(length) > end {
            return Err(Fault::IncorrectAmountOfData);
        }
    }
    if offset != collection.position || header.data_sn.get() != collection.data_sn {
        return Err(Fault::IncorrectAmountOfData);
    }
    Ok(())
}

/// Advances the sequence after a complete Data-Out PDU.
pub(super) fn step(task: &mut Task, header: &DataOut, first_burst_length: u32) {
    let is_final = header.flags & sarsen_wire::iscsi::pdu::FINAL != 0;
    let collection = &mut task.collection;
    collection.data_sn = collection.data_sn.wrapping_add(1);
    if header.target_transfer_tag.get() == RESERVED_TAG {
        if is_final {
            // RFC 7143 §11.4.7.2: an initiator that sends unsolicited Data-Out sends all data that FirstBurstLength
            // permits.
            let wrong = task.expected_data_transfer_length > first_burst_length
                && task.collection.position != first_burst_length as usize;
            if wrong {
                task.fault.get_or_insert(Fault::IncorrectAmountOfData);
            }
            end_unsolicited(task);
        }
        return;
    }
    let Some(r2t) = collection.r2ts.front() else { return };
    let complete = collection.position >= r2t.end;
    if is_final && !complete {
        // RFC 7143 §11.7.1: F ends the sequence, so the missing bytes will never arrive.
        task.fault.get_or_insert(Fault::IncorrectAmountOfData);
    }
    if is_final || complete {
        collection.r2ts.pop_front();
        collection.position = collection.r2ts.front().map_or(collection.solicited, |r2t| r2t.start);
        collection.data_sn = 0;
    }
}

/// Ends the unsolicited data. From now on, R2Ts request the missing data.
pub(super) fn end_unsolicited(task: &mut Task) {
    let collection = &mut task.collection;
    collection.unsolicited = false;
    collection.data_sn = 0;
    collection.solicited = collection.position.min(collection.wanted);
    collection.position = collection.solicited;
}

/// Sends R2Ts for data that has not been requested, or was lost, within MaxOutstandingR2T and MaxBurstLength.
#[inline]
pub(super) fn solicit(task: &mut Task, link: &mut Link, next_tag: &mut u32) {
    if task.fault.is_some() {
        // Requested data may still arrive, but no more is requested.
        task.collection.solicited = task.collection.wanted;
        task.collection.lost.clear();
        return;
    }
    if link.is_lost {
        return;
    }
    let burst_limit = link.parameters.max_burst_length as usize;
    while !task.collection.unsolicited
        && task.collection.r2ts.len() < link.parameters.max_outstanding_r2t as usize
    {
        let collection = &mut task.collection;
        let lost = collection.lost.pop();
        let is_recovery = lost.is_some();
        // A solicited data segment is never longer than a burst, but an unsolicited one may be.
        let (start, end) = match lost {
            Some(lost) if lost.len() > burst_limit => {
                let cut = lost.start + burst_limit;
                collection.lost.push(cut..lost.end);
                (lost.start, cut)
            }
            Some(lost) => (lost.start, lost.end),
            None if collection.solicited < collection.wanted => {
                let start = collection.solicited;
                (start, start + (collection.wanted - start).min(burst_limit))
            }
            None => return,
        };
        *next_tag = next_tag.wrapping_add(1);
        if *next_tag == RESERVED_TAG {
            *next_tag = 0;
        }
        let r2t = OpenR2t {
            target_transfer_tag: *next_tag,
            r2t_sn: collection.r2t_sn,
            start,
            end,
            is_recovery,
        };
        push_r2t(task.lun, task.id.initiator_task_tag, &r2t, link);
        collection.r2t_sn += 1;
        if collection.r2ts.is_empty() {
            collection.position = start;
        }
        if !is_recovery {
            collection.solicited = end;
        }
        collection.r2ts.push_back(r2t);
    }
}

fn push_r2t(lun: [u8; 8], initiator_task_tag: u32, open: &OpenR2t, link: &mut Link) {
    let stamp = link.peek();
    let mut r2t = R2t::from(RawHeader::with_opcode(Opcode::R2t));
    r2t.lun = lun;
    r2t.initiator_task_tag = initiator_task_tag.into();
    r2t.target_transfer_tag = open.target_transfer_tag.into();
    r2t.stat_sn = stamp.stat_sn.into();
    r2t.exp_cmd_sn = stamp.exp_cmd_sn.into();
    r2t.max_cmd_sn = stamp.max_cmd_sn.into();
    r2t.r2t_sn = open.r2t_sn.into();
    r2t.buffer_offset = (open.start as u32).into();
    r2t.desired_data_transfer_length = ((open.end - open.start) as u32).into();
    link.output.push(r2t, &[]);
}

/// Sends R2Ts again. Returns false if one of them was never sent, or if its data has arrived, which acknowledges it.
pub(super) fn solicit_again(task: &Task, link: &mut Link, run: Run) -> bool {
    let end = run.end(task.collection.r2t_sn);
    let is_meant = |open: &&OpenR2t| (run.first..end).contains(&open.r2t_sn);
    let count = task.collection.r2ts.iter().filter(is_meant).count();
    if !run.is_all() && (count == 0 || count as u64 != u64::from(end) - u64::from(run.first)) {
        return false;
    }
    for open in task.collection.r2ts.iter().filter(is_meant) {
        push_r2t(task.lun, task.id.initiator_task_tag, open, link);
    }
    true
}
