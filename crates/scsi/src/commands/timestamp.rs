//! REPORT TIMESTAMP and SET TIMESTAMP (SPC-4 6.38, 6.46).

use super::{Task, parameter_data};
use crate::{Cdb, Completion, LogicalUnit, Sense, UnitAttention};
use sarsen_block::Io;
use sarsen_wire::scsi::maintenance as wire;
use zerocopy::{FromBytes, IntoBytes};

/// TIMESTAMP ORIGIN: SET TIMESTAMP, or a method that the standard does not define.
const SET_BY_COMMAND: u8 = 0x02;
const SET_OTHERWISE: u8 = 0x03;

pub(crate) fn report(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::Maintenance12>();
    let (now, is_set) = task.unit.timestamp().now(task.nexus.device.array().host());
    let [_, _, timestamp @ ..] = now.to_be_bytes();
    let data = wire::Timestamp {
        data_length: (size_of::<wire::Timestamp>() as u16 - 2).into(),
        origin: if is_set { SET_BY_COMMAND } else { SET_OTHERWISE },
        reserved_3: 0,
        timestamp,
        reserved_10: [0; 2],
    };
    Ok(Io::Ready(parameter_data(data.as_bytes(), fields.length.get() as usize)))
}

/// Checks the length of the list, which is fixed (SPC-4 6.46).
fn check_set(cdb: &Cdb) -> Result<usize, Sense> {
    const LENGTH: usize = size_of::<wire::Timestamp>();
    match cdb.view::<wire::Maintenance12>().length.get() as usize {
        0 => Ok(0),
        1..LENGTH => Err(Sense::parameter_list_length_error()),
        _ => Ok(LENGTH),
    }
}

pub(crate) fn set_data_out(cdb: &Cdb, _unit: &LogicalUnit) -> Result<usize, Sense> {
    check_set(cdb)
}

pub(crate) fn set(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let list = task.take_data_out(check_set(&task.cdb)?)?;
    let Ok(fields) = wire::Timestamp::ref_from_bytes(&list) else {
        return Ok(Io::Ready(Completion::good()));
    };
    let [a, b, c, d, e, f] = fields.timestamp;
    let timestamp = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    task.unit.timestamp().set(task.nexus.device.array().host(), timestamp);
    task.unit.raise_except(task.nexus.id, UnitAttention::TimestampChanged);
    Ok(Io::Ready(Completion::good()))
}
