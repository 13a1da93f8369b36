//! READ CAPACITY (SBC-3 5.15, 5.16).

use super::{Task, parameter_data};
use crate::{Completion, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::{cdb as wire, report};
use zerocopy::IntoBytes;

pub(crate) fn read_capacity_10(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let geometry = task.unit.geometry();
    let last_lba = u32::try_from(geometry.block_count.saturating_sub(1)).unwrap_or(u32::MAX);
    let capacity = report::Capacity10 {
        last_lba: last_lba.into(),
        block_length: (geometry.block_size.bytes() as u32).into(),
    };
    Ok(Io::Ready(parameter_data(capacity.as_bytes(), usize::MAX)))
}

pub(crate) fn read_capacity_16(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let geometry = task.unit.geometry();
    let characteristics = task.unit.characteristics();
    let provisioning = match characteristics.unmap {
        Some(_) => report::CAPACITY_LBPME | report::CAPACITY_LBPRZ,
        None => 0,
    };
    let capacity = report::Capacity16 {
        last_lba: geometry.block_count.saturating_sub(1).into(),
        block_length: (geometry.block_size.bytes() as u32).into(),
        protection: task
            .unit
            .protection_type()
            .map_or(0, |protection_type| protection_type.p_type() << 1 | report::CAPACITY_PROT_EN),
        exponents: characteristics.physical_block_exponent & 0x0f,
        provisioning: provisioning.into(),
        reserved: [0; 16],
    };
    let fields = task.cdb.view::<wire::ServiceActionIn16>();
    let allocation_length = fields.allocation_length.get() as usize;
    Ok(Io::Ready(parameter_data(capacity.as_bytes(), allocation_length)))
}
