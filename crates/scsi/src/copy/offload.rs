//! POPULATE TOKEN and WRITE USING TOKEN (SBC-3 5.9 and 5.43), which Windows calls offloaded data transfer. The first
//! creates a token for the current data of some blocks. The second writes the data that a token represents.

use super::operation::{ListId, Running};
use super::reach::{AccessDenial, Reached, Requester};
use super::token::{TokenParameters, Use};
use super::transfer::{Failure, Fault, PieceChecks, Source, Transfer, clear_all};
use super::{MAXIMUM_INACTIVITY_S, MAXIMUM_RANGES, MAXIMUM_TOKEN_BYTES};
use crate::task::Task;
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::{BlockSize, Extent, Io};
use sarsen_volume::Regions;
use sarsen_wire::scsi::copy::{
    self as wire, PopulateTokenHeader, RangeDescriptor, TokenOperation, WriteUsingTokenHeader,
};
use sarsen_wire::scsi::opcode;
use std::mem::offset_of;
use zerocopy::FromBytes;

const RANGE_BYTES: usize = size_of::<RangeDescriptor>();

/// Returns the length of the list. The server accepts one descriptor more than the maximum, to reject it later with the
/// right sense data.
fn list_length(cdb: &Cdb, header: usize) -> Result<usize, Sense> {
    let length = cdb.view::<TokenOperation>().length.get() as usize;
    if length <= header + (MAXIMUM_RANGES + 1) * RANGE_BYTES {
        Ok(length)
    } else {
        Err(Sense::invalid_field_in_cdb(offset_of!(TokenOperation, length) as u16))
    }
}

pub(crate) fn populate_token_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    list_length(cdb, size_of::<PopulateTokenHeader>())
}

pub(crate) fn write_using_token_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    list_length(cdb, size_of::<WriteUsingTokenHeader>())
}

/// The length fields of a list, in bytes of the list.
struct Lengths {
    /// The length of the header.
    header: usize,
    /// DATA LENGTH: the number of bytes after that field.
    data: u16,
    /// BLOCK DEVICE RANGE DESCRIPTOR LENGTH. The next field is its offset.
    ranges: u16,
    ranges_field: u16,
}

/// Returns the ranges of a list (SBC-3 5.9.2, 5.9.3). Checks them against the medium, the limits and each other, since
/// they must not overlap.
fn ranges(list: &[u8], lengths: &Lengths, unit: &LogicalUnit) -> Result<Vec<Extent>, Sense> {
    let (header, length) = (lengths.header, usize::from(lengths.ranges));
    let after_data_length = usize::from(lengths.data) + size_of_val(&lengths.data);
    if after_data_length < header + RANGE_BYTES {
        return Err(Sense::invalid_field_in_parameter_list(0));
    }
    if length < RANGE_BYTES || after_data_length < header + length {
        return Err(Sense::invalid_field_in_parameter_list(lengths.ranges_field));
    }
    let Some(bytes) = list.get(header..header + length) else {
        return Err(Sense::parameter_list_length_error());
    };
    // SBC-3 5.9.2: an incomplete descriptor at the end is ignored.
    if length / RANGE_BYTES > MAXIMUM_RANGES {
        let code = AdditionalSense::TOO_MANY_SEGMENT_DESCRIPTORS;
        return Err(Sense::in_parameter_list(code, lengths.ranges_field));
    }
    let mut extents = Vec::with_capacity(length / RANGE_BYTES);
    let mut blocks = 0;
    for bytes in bytes.chunks_exact(RANGE_BYTES) {
        let Ok(descriptor) = RangeDescriptor::ref_from_bytes(bytes) else {
            return Err(Sense::parameter_list_length_error());
        };
        let block_count = u64::from(descriptor.block_count.get());
        let extent = Extent::new(descriptor.lba.get(), block_count);
        unit.check_range(extent)?;
        blocks += block_count;
        if block_count > 0 {
            extents.push(extent);
        }
    }
    if blocks << unit.geometry().block_size.shift() > MAXIMUM_TOKEN_BYTES {
        return Err(Sense::invalid_field_in_parameter_list(lengths.ranges_field));
    }
    let mut sorted = extents.clone();
    sorted.sort_unstable_by_key(|extent| extent.lba);
    if sorted.windows(2).any(|pair| pair[0].end() > pair[1].lba.0) {
        Err(Sense::invalid_field_in_parameter_list(header as u16))
    } else {
        Ok(extents)
    }
}

pub(crate) fn populate_token(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let length = populate_token_data_out(&task.cdb, unit)?;
    let list = task.take_data_out(length)?;
    if length == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, _)) = PopulateTokenHeader::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    let lengths = Lengths {
        header: size_of::<PopulateTokenHeader>(),
        data: header.data_length.get(),
        ranges: header.ranges_length.get(),
        ranges_field: offset_of!(PopulateTokenHeader, ranges_length) as u16,
    };
    let inactivity_s = header.inactivity_timeout.get();
    if inactivity_s > MAXIMUM_INACTIVITY_S {
        let byte = offset_of!(PopulateTokenHeader, inactivity_timeout) as u16;
        return Err(Sense::invalid_field_in_parameter_list(byte));
    }
    // The two types that leave the choice to the copy manager, and the type that it chooses.
    let is_possible = matches!(
        header.rod_type.get(),
        wire::ROD_POINT_IN_TIME_DEFAULT
            | wire::ROD_POINT_IN_TIME_CHANGE_VULNERABLE
            | wire::ROD_POINT_IN_TIME_ANY
    );
    if header.flags & wire::TOKEN_RTV != 0 && !is_possible {
        let byte = offset_of!(PopulateTokenHeader, rod_type) as u16;
        return Err(Sense::invalid_field_in_parameter_list(byte));
    }
    let extents = ranges(&list, &lengths, unit)?;
    let running = begin(&task, opcode::SA_POPULATE_TOKEN)?;
    let Requester { array, initiator, .. } = Requester::of(&task);
    let parameters = TokenParameters { unit: unit.clone(), extents, initiator, inactivity_s };
    // IMMED has no effect, since the command waits only for the writes in progress.
    Ok(unit.complete_after(async move {
        let result = async {
            let unit = parameters.unit.clone();
            let block_count: u64 = parameters.extents.iter().map(|extent| extent.block_count).sum();
            if block_count == 0 {
                return Ok(());
            }
            // The token is created after all earlier writes have ended. Later writes revoke it.
            let _alone =
                unit.lock_writes_exclusive(Regions::of_extents(&parameters.extents)).await?;
            let token = array.tokens().create(&array, parameters)?;
            unit.watch().add(token.clone());
            running.give_token(token.to_wire());
            running.moved(block_count << unit.geometry().block_size.shift());
            Ok(())
        };
        let result = result.await;
        running.finish(&result);
        result.map(|()| Completion::good())
    }))
}

fn begin(task: &Task<'_>, service_action: u8) -> Result<Running, Sense> {
    let id = ListId::Long(task.cdb.view::<TokenOperation>().list_identifier.get());
    task.unit.operations().begin(task.nexus.id, Some(id), true, service_action)
}

/// A WRITE USING TOKEN that passed the checks.
struct Writing {
    destination: Reached,
    ranges: Vec<Extent>,
    /// The token to write from; `None` writes zeroes.
    token: Option<Use>,
    /// Offset in bytes of the written data in the token.
    offset: u64,
}

pub(crate) fn write_using_token(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let length = write_using_token_data_out(&task.cdb, unit)?;
    let list = task.take_data_out(length)?;
    if length == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    let Ok((header, _)) = WriteUsingTokenHeader::ref_from_prefix(&list) else {
        return Err(Sense::parameter_list_length_error());
    };
    let lengths = Lengths {
        header: size_of::<WriteUsingTokenHeader>(),
        data: header.data_length.get(),
        ranges: header.ranges_length.get(),
        ranges_field: offset_of!(WriteUsingTokenHeader, ranges_length) as u16,
    };
    let ranges = ranges(&list, &lengths, unit)?;
    let requester = Requester::of(&task);
    let (mut token, offset) = token(header, &ranges, &requester, unit)?;
    let running = begin(&task, opcode::SA_WRITE_USING_TOKEN)?;
    if let Some(token) = &mut token {
        token.is_last = header.flags & wire::TOKEN_DELETE != 0;
    }
    let writing = Writing { destination: requester.this_unit(), ranges, token, offset };
    if header.flags & wire::TOKEN_IMMED == 0 {
        running.abort_with(&task);
        return Ok(unit.complete_after(async move {
            let result = writing.carry_out(&requester, &running).await;
            running.answer(result)
        }));
    }
    running.goes_on_in_background();
    let array = requester.array.clone();
    array.host().spawn(Box::new(move || {
        Box::pin(async move {
            let result = writing.carry_out(&requester, &running).await;
            running.finish(&result);
        })
    }));
    Ok(Io::Ready(Completion::good()))
}

/// Returns the token of a list (`None` for zeroes) and the offset in bytes of the data in it.
fn token(
    header: &WriteUsingTokenHeader,
    ranges: &[Extent],
    requester: &Requester,
    unit: &LogicalUnit,
) -> Result<(Option<Use>, u64), Sense> {
    let management = &header.token.management;
    if management.rod_type.get() == wire::ROD_BLOCK_DEVICE_ZERO
        && management.length.get() == wire::ROD_TOKEN_LENGTH
    {
        return Ok((None, 0));
    }
    let token = requester.array.tokens().open(&header.token)?;
    // SBC-3 5.43.2: OFFSET INTO ROD counts blocks of the destination unit.
    let block_size = unit.geometry().block_size;
    let held = total_bytes(token.extents(), token.unit.geometry().block_size);
    let offset = header.offset_into_rod.get().checked_mul(1 << block_size.shift());
    let Some(offset) = offset.filter(|&offset| offset < held) else {
        let byte = offset_of!(WriteUsingTokenHeader, offset_into_rod) as u16;
        return Err(Sense::invalid_field_in_parameter_list(byte));
    };
    if total_bytes(ranges, block_size) > held - offset {
        let byte = offset_of!(WriteUsingTokenHeader, ranges_length) as u16;
        return Err(Sense::invalid_field_in_parameter_list(byte));
    }
    Ok((Some(token), offset))
}

fn total_bytes(extents: &[Extent], block_size: BlockSize) -> u64 {
    extents.iter().map(|extent| extent.byte_count(block_size)).sum()
}

impl Writing {
    async fn carry_out(&self, requester: &Requester, running: &Running) -> Result<(), Sense> {
        let supervisor = PieceChecks {
            operation: running,
            pieces: requester.array.copy_permits(),
            source: None,
            token: self.token.as_ref(),
            destination: &self.destination,
        };
        let unit = &self.destination.unit;
        let block_size = unit.geometry().block_size;
        let mut source_offset = self.offset;
        for &range in &self.ranges {
            let byte_count = range.byte_count(block_size);
            let written = match &self.token {
                None => clear_all(unit, range, &supervisor).await,
                Some(token) => {
                    let transfer = Transfer {
                        source: Source { unit: &token.unit, extents: token.extents() },
                        source_offset,
                        destination: unit,
                        destination_offset: range.byte_offset(block_size),
                        byte_count,
                        pads: false,
                    };
                    transfer.run(&supervisor).await
                }
            };
            written.map_err(|failure| sense(&failure))?;
            source_offset += byte_count;
            running.segment_done();
        }
        Ok(())
    }
}

/// Returns the sense data of a failure. Errors of the destination are reported as for a WRITE.
fn sense(failure: &Failure) -> Sense {
    let aborted = |additional| Sense::copy_aborted(additional, 0, None);
    match failure {
        Failure::Token(sense)
        | Failure::Destination(Fault::Barrier(AccessDenial::State(sense))) => *sense,
        Failure::Destination(Fault::Block(error)) => error.into(),
        Failure::Destination(Fault::Barrier(AccessDenial::Unreachable)) => {
            aborted(AdditionalSense::COPY_TARGET_DEVICE_NOT_REACHABLE)
        }
        Failure::Source(_)
        | Failure::Destination(Fault::Barrier(AccessDenial::ReservationConflict)) => {
            aborted(AdditionalSense::THIRD_PARTY_DEVICE_FAILURE)
        }
        Failure::Aborted => aborted(AdditionalSense::NONE),
    }
}
