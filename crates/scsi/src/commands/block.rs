//! READ and WRITE (SBC-3 5.10 to 5.14, 5.32 to 5.36), and what all block CDBs have in common.

use super::Task;
use crate::{Cdb, Completion, LogicalUnit, Sense};
use sarsen_block::{Extent, Io};
use sarsen_wire::scsi::{cdb as wire, opcode};

/// The shape that READ, WRITE, VERIFY, WRITE SAME and their like share, whatever their length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockCdb {
    pub(crate) extent: Extent,
    pub(crate) flags: u8,
    /// Offset of the length in the CDB.
    pub(crate) length_field: u16,
}

impl BlockCdb {
    /// Reads the fields; the group code of the operation code says where they are.
    pub(crate) fn parse(cdb: &Cdb) -> Self {
        let operation_code = cdb.operation_code();
        let (lba, block_count, flags, length_field) = match opcode::cdb_length(operation_code) {
            Some(6) => {
                let fields = cdb.view::<wire::Block6>();
                let block_count = match fields.block_count {
                    0 => 256,
                    block_count => u64::from(block_count),
                };
                (fields.lba(), block_count, 0, 4)
            }
            Some(10) => {
                let fields = cdb.view::<wire::Block10>();
                (fields.lba.get().into(), fields.block_count.get().into(), fields.flags, 7)
            }
            Some(12) => {
                let fields = cdb.view::<wire::Block12>();
                (fields.lba.get().into(), fields.block_count.get().into(), fields.flags, 6)
            }
            Some(_) | None => {
                let fields = cdb.view::<wire::Block16>();
                (fields.lba.get(), fields.block_count.get().into(), fields.flags, 10)
            }
        };
        Self { extent: Extent::new(lba, block_count), flags, length_field }
    }

    /// A transfer without protection information, within the limits and the medium.
    pub(crate) fn parse_transfer(cdb: &Cdb, unit: &LogicalUnit) -> Result<Self, Sense> {
        let transfer = Self::parse(cdb);
        check_protect(transfer.flags)?;
        if transfer.extent.block_count > unit.limits().maximum_transfer_blocks.into() {
            return Err(Sense::invalid_field_in_cdb(transfer.length_field));
        }
        unit.check_range(transfer.extent)?;
        Ok(transfer)
    }

    pub(crate) const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Units here are formatted without protection information, so the PROTECT fields must be zero.
pub(crate) fn check_protect(flags: u8) -> Result<(), Sense> {
    match flags & wire::FLAGS_PROTECT {
        0 => Ok(()),
        _ => Err(Sense::invalid_bit_in_cdb(1, 7)),
    }
}

pub(crate) fn read(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let transfer = BlockCdb::parse_transfer(&task.cdb, unit)?;
    if transfer.extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    // SBC-3 5.11: FUA reads the medium, so what only the cache holds is written to it first.
    if transfer.has(wire::FLAGS_FUA) && unit.characteristics().volatile_cache {
        let store = unit.store().clone();
        return Ok(unit.pending(async move {
            store.flush().wait().await?;
            Ok(Completion::data(store.read(transfer.extent).wait().await?))
        }));
    }
    Ok(unit.finish(unit.store().read(transfer.extent), Completion::data))
}

pub(crate) fn write(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let transfer = BlockCdb::parse_transfer(&task.cdb, unit)?;
    let (extent, data) = task.take_blocks(transfer.extent)?;
    if extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    unit.thresholds().note(extent.block_count);
    let force_unit_access = transfer.has(wire::FLAGS_FUA);
    Ok(unit.write_shared(move |unit| {
        unit.store().write(extent, data, unit.durability(force_unit_access))
    }))
}

pub(crate) fn write_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let transfer = BlockCdb::parse_transfer(cdb, unit)?;
    Ok(unit.byte_count(transfer.extent.block_count))
}
