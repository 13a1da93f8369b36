//! Writes that exclude all other writes of their blocks: ORWRITE (SBC-3 5.9) and WRITE ATOMIC (SBC-4 5.49).

use super::Task;
use super::block::BlockCdb;
use crate::work::outlive;
use crate::{Cdb, Completion, LogicalUnit, Sense, atomic};
use sarsen_block::{Extent, Io};
use sarsen_wire::scsi::cdb as wire;
use sarsen_wire::scsi::medium::WriteAtomic16;
use std::sync::Arc;

/// Rejects ORPROTECT and WRPROTECT: these commands do not transfer protection information. A unit with protection
/// information generates it.
fn check_protect(flags: u8) -> Result<(), Sense> {
    match flags & wire::FLAGS_PROTECT {
        0 => Ok(()),
        _ => Err(Sense::invalid_bit_in_cdb(1, 7)),
    }
}

fn parse_or_write(cdb: &Cdb, unit: &LogicalUnit) -> Result<BlockCdb, Sense> {
    check_protect(cdb.byte(1))?;
    BlockCdb::parse_transfer(cdb, unit)
}

pub(crate) fn or_write_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(unit.byte_count(parse_or_write(cdb, unit)?.extent.block_count))
}

pub(crate) fn or_write(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let transfer = parse_or_write(&task.cdb, unit)?;
    let (extent, mut data) = task.take_blocks(transfer.extent, unit.byte_count(1))?;
    if extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    unit.thresholds().note(extent.block_count);
    let force_unit_access = transfer.has(wire::FLAGS_FUA);
    let writer = Arc::clone(unit);
    Ok(unit.complete_after(async move {
        let _guard = writer.lock_writes_exclusive(extent).await?;
        let store = writer.store();
        let old = store.read(extent).wait().await?.into_buffer();
        for (new, old) in data.iter_mut().zip(old.iter()) {
            *new |= old;
        }
        let durability = writer.durability(force_unit_access);
        store.write(extent, data.into(), durability).wait().await?;
        Ok(Completion::good())
    }))
}

fn parse_write_atomic(cdb: &Cdb, unit: &LogicalUnit) -> Result<Extent, Sense> {
    let fields = cdb.view::<WriteAtomic16>();
    check_protect(fields.flags)?;
    let extent = Extent::new(fields.lba.get(), fields.block_count.get().into());
    unit.check_range(extent)?;
    let maximum = unit.limits().maximum_atomic_blocks;
    if extent.block_count > maximum.into() {
        return Err(Sense::invalid_field_in_cdb(12));
    }
    // A boundary permits the server to divide the write there. The server does not divide it.
    if u32::from(fields.atomic_boundary.get()) > maximum {
        return Err(Sense::invalid_field_in_cdb(10));
    }
    Ok(extent)
}

/// Writes atomically. FUA has no effect, since every atomic write is durable.
pub(crate) fn write_atomic(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let extent = parse_write_atomic(&task.cdb, unit)?;
    // Fewer blocks than in the CDB would be a different write than the initiator requested.
    let data = task.take_data_out_exactly(unit.byte_count(extent.block_count), 12)?;
    if extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    unit.thresholds().note(extent.block_count);
    unit.medium_phase().guard_reads();
    let writer = Arc::clone(unit);
    let host = task.nexus.device.array().host();
    Ok(outlive(host, unit, async move |promise| {
        promise.answer(atomic::write(&writer, extent, data).await);
    }))
}

pub(crate) fn write_atomic_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(unit.byte_count(parse_write_atomic(cdb, unit)?.block_count))
}
