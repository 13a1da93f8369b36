//! The reports on copies: the RECEIVE COPY commands, RECEIVE ROD TOKEN INFORMATION and REPORT ALL ROD TOKENS; and COPY
//! OPERATION ABORT (SPC-4 6.3, 6.20 to 6.26, 6.31).

use super::operation::{ListId, Operation, Phase};
use super::page::DESCRIPTOR_TYPES;
use super::{
    MAXIMUM_CSCDS, MAXIMUM_DESCRIPTOR_BYTES, MAXIMUM_OPERATIONS, MAXIMUM_SEGMENT_BYTES,
    MAXIMUM_SEGMENTS,
};
use crate::task::{Task, parameter_data};
use crate::{Completion, Sense};
use sarsen_block::{BlockSize, Io};
use sarsen_wire::scsi::copy::{self as wire, Lid1Cdb, Lid4Cdb};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// The recommended time between two status requests, in milliseconds.
const UPDATE_DELAY_MS: u32 = 100;

/// Returns the operation that a CDB asks about. Its LIST IDENTIFIER is in byte 2.
fn find(task: &Task<'_>, id: ListId) -> Result<Arc<Operation>, Sense> {
    let found = task.unit.operations().find(task.nexus.id, id);
    found.ok_or(Sense::invalid_field_in_cdb(2))
}

fn find_short(task: &Task<'_>) -> Result<(Arc<Operation>, usize), Sense> {
    let fields = task.cdb.view::<Lid1Cdb>();
    let operation = find(task, ListId::Short(fields.list_identifier))?;
    Ok((operation, fields.length.get() as usize))
}

fn find_long(task: &Task<'_>) -> Result<(Arc<Operation>, usize), Sense> {
    let fields = task.cdb.view::<Lid4Cdb>();
    let operation = find(task, ListId::Long(fields.list_identifier.get()))?;
    Ok((operation, fields.length.get() as usize))
}

/// Returns AVAILABLE DATA: the number of bytes after its own four.
fn available_data(length: usize) -> u32 {
    (length - size_of::<u32>()) as u32
}

pub(crate) fn copy_status_lid1(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, allocation_length) = find_short(&task)?;
    let bytes = operation.bytes();
    let (transfer_count_units, transfer_count) = match u32::try_from(bytes) {
        Ok(bytes) => (wire::UNITS_BYTES, bytes),
        Err(_) => (wire::UNITS_MEBIBYTES, (bytes >> 20) as u32),
    };
    let status = wire::CopyStatusLid1 {
        available_data: available_data(size_of::<wire::CopyStatusLid1>()).into(),
        status: match operation.phase() {
            Phase::Foreground | Phase::Background => wire::STATUS_IN_PROGRESS,
            Phase::Completed => wire::STATUS_COMPLETED,
            Phase::Failed(_) | Phase::Terminated => wire::STATUS_FAILED,
        },
        segments_processed: operation.segments().into(),
        transfer_count_units,
        transfer_count: transfer_count.into(),
    };
    Ok(Io::Ready(parameter_data(status.as_bytes(), allocation_length)))
}

/// Returns no data, since no supported segment keeps data for the application client.
pub(crate) fn copy_data_lid1(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, allocation_length) = find_short(&task)?;
    if operation.phase().is_over() {
        Ok(Io::Ready(parameter_data(&[0; 4], allocation_length)))
    } else {
        Err(Sense::invalid_field_in_cdb(2))
    }
}

pub(crate) fn failure_details_lid1(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, allocation_length) = find_short(&task)?;
    let sense = match operation.phase() {
        Phase::Failed(sense) => sense_bytes(&task, sense),
        Phase::Terminated => Vec::new(),
        Phase::Completed => return Ok(Io::Ready(parameter_data(&[0; 4], allocation_length))),
        Phase::Foreground | Phase::Background => return Err(Sense::invalid_field_in_cdb(2)),
    };
    // SPC-4 6.23: the details are reported once.
    task.unit.operations().forget(&operation);
    let header = wire::FailureDetails {
        available_data: available_data(size_of::<wire::FailureDetails>() + sense.len()).into(),
        reserved_4: [0; 52],
        status: wire::STATUS_FAILED,
        reserved_57: 0,
        sense_data_length: (sense.len() as u16).into(),
    };
    let bytes = [header.as_bytes(), &sense].concat();
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

fn sense_bytes(task: &Task<'_>, sense: Sense) -> Vec<u8> {
    let descriptor_format = task.unit.modes().has_descriptor_sense();
    sense.in_descriptor_format(descriptor_format).to_bytes()
}

pub(crate) fn operating_parameters(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let allocation_length = task.cdb.view::<Lid1Cdb>().length.get() as usize;
    let length = size_of::<wire::OperatingParameters>() + DESCRIPTOR_TYPES.len();
    let header = wire::OperatingParameters {
        available_data: available_data(length).into(),
        flags: wire::OPERATING_SNLID,
        reserved_5: [0; 3],
        maximum_cscd_count: (MAXIMUM_CSCDS as u16).into(),
        maximum_segment_count: (MAXIMUM_SEGMENTS as u16).into(),
        maximum_descriptor_list_length: (MAXIMUM_DESCRIPTOR_BYTES as u32).into(),
        maximum_segment_length: (MAXIMUM_SEGMENT_BYTES as u32).into(),
        maximum_inline_data_length: 0.into(),
        held_data_limit: 0.into(),
        maximum_stream_transfer: 0.into(),
        reserved_32: [0; 2],
        total_concurrent_copies: (MAXIMUM_OPERATIONS as u16).into(),
        maximum_concurrent_copies: MAXIMUM_OPERATIONS as u8,
        data_segment_granularity: BlockSize::B512.shift() as u8,
        inline_data_granularity: 0,
        held_data_granularity: 0,
        reserved_40: [0; 3],
        descriptor_type_count: DESCRIPTOR_TYPES.len() as u8,
    };
    let bytes = [header.as_bytes(), DESCRIPTOR_TYPES].concat();
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

/// Returns the header that both commands with long identifiers share, and the sense data. AVAILABLE DATA includes
/// `more_bytes` after the sense data.
fn long_status(
    task: &Task<'_>,
    operation: &Operation,
    (transfer_count_units, transfer_count): (u8, u64),
    more_bytes: usize,
) -> Vec<u8> {
    let phase = operation.phase();
    let sense = match phase {
        Phase::Failed(sense) => sense_bytes(task, sense),
        _ => Vec::new(),
    };
    let length = size_of::<wire::CopyStatusLid4>() + sense.len() + more_bytes;
    let header = wire::CopyStatusLid4 {
        available_data: available_data(length).into(),
        service_action: operation.service_action,
        status: match phase {
            Phase::Foreground => wire::STATUS_IN_FOREGROUND,
            Phase::Background => wire::STATUS_IN_BACKGROUND,
            Phase::Completed => wire::STATUS_COMPLETED,
            Phase::Failed(_) => wire::STATUS_FAILED,
            Phase::Terminated => wire::STATUS_TERMINATED,
        },
        operation_counter: operation.pieces().into(),
        update_delay: if phase.is_over() { 0 } else { UPDATE_DELAY_MS }.into(),
        completion_status: match phase {
            Phase::Failed(_) => crate::Status::CheckCondition as u8,
            _ => crate::Status::Good as u8,
        },
        sense_field_length: sense.len() as u8,
        sense_data_length: sense.len() as u8,
        transfer_count_units,
        transfer_count: transfer_count.into(),
        segments_processed: operation.segments().into(),
        reserved: [0; 6],
    };
    [header.as_bytes(), &sense].concat()
}

pub(crate) fn copy_status_lid4(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, allocation_length) = find_long(&task)?;
    let bytes = long_status(&task, &operation, (wire::UNITS_BYTES, operation.bytes()), 0);
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

pub(crate) fn rod_token_information(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, allocation_length) = find_long(&task)?;
    // ID FOR CREATING ROD CSCD DESCRIPTOR, which is zero for POPULATE TOKEN, and the token.
    let token = match operation.phase() {
        Phase::Completed => operation.token(),
        _ => None,
    };
    let descriptor = token.map_or(Vec::new(), |token| [&[0; 2], token.as_bytes()].concat());
    let length = (descriptor.len() as u32).to_be_bytes();
    // SBC-3 5.30.2: the count is in blocks of this unit.
    let blocks = operation.bytes() >> task.unit.geometry().block_size.shift();
    let more_bytes = length.len() + descriptor.len();
    let mut bytes = long_status(&task, &operation, (wire::UNITS_BLOCKS, blocks), more_bytes);
    bytes.extend_from_slice(&length);
    bytes.extend_from_slice(&descriptor);
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

/// Reports to an initiator the tokens that it created.
pub(crate) fn report_all_rod_tokens(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let allocation_length = task.cdb.view::<Lid4Cdb>().length.get() as usize;
    let tokens = task.nexus.device.array().tokens().of(&task.nexus.initiator());
    let length = size_of::<wire::TokenListHeader>() + size_of_val(&*tokens);
    let header =
        wire::TokenListHeader { available_data: available_data(length).into(), reserved: [0; 4] };
    let bytes = [header.as_bytes(), tokens.as_bytes()].concat();
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

/// Aborts an operation. It ends before its next piece.
pub(crate) fn copy_operation_abort(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (operation, _) = find_long(&task)?;
    if operation.phase().is_over() {
        return Err(Sense::invalid_field_in_cdb(2));
    }
    operation.abort();
    Ok(Io::Ready(Completion::good()))
}
