//! READ DEFECT DATA and REASSIGN BLOCKS (SBC-3 5.17 to 5.19). The store reports no defects. Therefore the lists are
//! empty, and reassigned blocks keep their location and their data.

use super::{Task, parameter_data};
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::Io;
use sarsen_wire::scsi::maintenance as wire;
use zerocopy::IntoBytes;

/// The last DEFECT LIST FORMAT that is neither vendor specific nor reserved.
const LAST_FORMAT: u8 = 5;
/// The maximum length of a REASSIGN BLOCKS list in bytes.
const MAXIMUM_REASSIGN_BYTES: usize = 64 << 10;

/// Returns PLISTV and GLISTV for the requested lists, and their format. An empty list is valid in each format.
fn header_flags(flags: u8, byte: u16) -> Result<u8, Sense> {
    match flags & wire::DEFECTS_FORMAT {
        0..=LAST_FORMAT => {
            Ok(flags & (wire::DEFECTS_PRIMARY | wire::DEFECTS_GROWN | wire::DEFECTS_FORMAT))
        }
        _ => Err(Sense::invalid_bit_in_cdb(byte, 2)),
    }
}

pub(crate) fn read_defect_data_10(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadDefectData10>();
    let header = wire::DefectHeader10 {
        reserved: 0,
        flags: header_flags(fields.flags, 2)?,
        defect_list_length: 0.into(),
    };
    Ok(Io::Ready(parameter_data(header.as_bytes(), fields.allocation_length.get().into())))
}

/// Ignores ADDRESS DESCRIPTOR INDEX: any value is beyond the end of an empty list, and the result is the same.
pub(crate) fn read_defect_data_12(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadDefectData12>();
    let header = wire::DefectHeader12 {
        reserved: 0,
        flags: header_flags(fields.flags, 1)?,
        generation_code: 0.into(),
        defect_list_length: 0.into(),
    };
    Ok(Io::Ready(parameter_data(header.as_bytes(), fields.allocation_length.get() as usize)))
}

/// Returns the maximum length of the list, since the CDB does not contain the length.
pub(crate) fn reassign_blocks_data_out(_cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(size_of::<wire::ReassignHeader>() + MAXIMUM_REASSIGN_BYTES)
}

pub(crate) fn reassign_blocks(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let list = task.take_all_data_out();
    let flags = task.cdb.byte(1);
    let Some((header, list)) = list.split_first_chunk::<{ size_of::<wire::ReassignHeader>() }>()
    else {
        return Err(Sense::parameter_list_length_error());
    };
    let (length, length_field) = match flags & wire::REASSIGN_LONGLIST {
        0 => (u16::from_be_bytes([header[2], header[3]]).into(), 2),
        _ => (u32::from_be_bytes(*header) as usize, 0),
    };
    let address_length = if flags & wire::REASSIGN_LONGLBA == 0 { 4 } else { 8 };
    if !length.is_multiple_of(address_length) || length > MAXIMUM_REASSIGN_BYTES {
        return Err(Sense::invalid_field_in_parameter_list(length_field));
    }
    let Some(addresses) = list.get(..length) else {
        return Err(Sense::parameter_list_length_error());
    };
    let block_count = task.unit.geometry().block_count;
    for address in addresses.chunks_exact(address_length) {
        let lba = address.iter().fold(0, |lba, &byte| lba << 8 | u64::from(byte));
        if lba >= block_count {
            // SBC-3 5.19: the first block that was not reassigned.
            let additional = AdditionalSense::LOGICAL_BLOCK_ADDRESS_OUT_OF_RANGE;
            return Err(Sense::new(SenseKey::IllegalRequest, additional).with_command_specific(lba));
        }
    }
    Ok(Io::Ready(Completion::good()))
}
