//! READ BUFFER and WRITE BUFFER (SPC-4 6.18, 6.49): data, echo, and their descriptors. Modes that download microcode
//! are rejected.

use super::{Task, parameter_data};
use crate::buffers::{BUFFER_BYTES, ECHO_BYTES};
use crate::{AdditionalSense, Cdb, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::Io;
use sarsen_wire::scsi::maintenance as wire;

pub(crate) fn read_buffer(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::AccessBuffer>();
    let buffers = task.unit.buffers();
    let offset = wire::u24(fields.offset);
    let allocation_length = wire::u24(fields.length);
    let bytes = match (fields.mode & wire::BUFFER_MODE, fields.buffer_id) {
        (wire::BUFFER_DATA, 0) if offset > BUFFER_BYTES => {
            return Err(Sense::invalid_field_in_cdb(3));
        }
        (wire::BUFFER_DATA, 0) => buffers.read(offset, allocation_length),
        (wire::BUFFER_DATA, _) => return Err(Sense::invalid_field_in_cdb(2)),
        // OFFSET BOUNDARY 0: any byte.
        (wire::BUFFER_DESCRIPTOR, 0) => (BUFFER_BYTES as u32).to_be_bytes().to_vec(),
        // SPC-4 6.18.5: no such buffer.
        (wire::BUFFER_DESCRIPTOR, _) => vec![0; 4],
        (wire::BUFFER_ECHO, _) => buffers
            .read_echo(task.nexus.id)
            .ok_or(Sense::new(SenseKey::IllegalRequest, AdditionalSense::COMMAND_SEQUENCE_ERROR))?,
        (wire::BUFFER_ECHO_DESCRIPTOR, _) => {
            let [high, low] = (ECHO_BYTES as u16).to_be_bytes();
            vec![wire::ECHO_EBOS, 0, high, low]
        }
        _ => return Err(Sense::invalid_bit_in_cdb(1, 4)),
    };
    Ok(Io::Ready(parameter_data(&bytes, allocation_length)))
}

/// Checks a WRITE BUFFER. Returns its mode, offset and length.
fn check_write(cdb: &Cdb) -> Result<(u8, usize, usize), Sense> {
    let fields = cdb.view::<wire::AccessBuffer>();
    let mode = fields.mode & wire::BUFFER_MODE;
    let (offset, length) = (wire::u24(fields.offset), wire::u24(fields.length));
    match mode {
        wire::BUFFER_DATA if fields.buffer_id != 0 => Err(Sense::invalid_field_in_cdb(2)),
        wire::BUFFER_DATA if offset > BUFFER_BYTES => Err(Sense::invalid_field_in_cdb(3)),
        wire::BUFFER_DATA if length > BUFFER_BYTES - offset => Err(Sense::invalid_field_in_cdb(6)),
        wire::BUFFER_DATA => Ok((mode, offset, length)),
        wire::BUFFER_ECHO if length > ECHO_BYTES => Err(Sense::invalid_field_in_cdb(6)),
        wire::BUFFER_ECHO => Ok((mode, 0, length)),
        _ => Err(Sense::invalid_bit_in_cdb(1, 4)),
    }
}

pub(crate) fn write_buffer_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    let (_, _, length) = check_write(cdb)?;
    Ok(length)
}

pub(crate) fn write_buffer(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let (mode, offset, length) = check_write(&task.cdb)?;
    let data = task.take_data_out(length)?;
    match mode {
        wire::BUFFER_ECHO => task.unit.buffers().write_echo(task.nexus.id, &data),
        _ => task.unit.buffers().write(offset, &data),
    }
    Ok(Io::Ready(Completion::good()))
}
