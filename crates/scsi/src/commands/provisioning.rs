//! WRITE SAME, UNMAP and GET LBA STATUS (SBC-3 4.7, 5.4, 5.28, 5.41, 5.42).

use super::block::{BlockCdb, sent_bytes};
use super::tagged::Tagged;
use super::{Task, parameter_data};
use crate::{Cdb, Command, Completion, LogicalUnit, Sense};
use sarsen_block::{Allocation, BlockError, Buffer, Durability, Extent, Io, Store};
use sarsen_volume::Regions;
use sarsen_wire::scsi::{cdb as wire, opcode, report};
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// The maximum size of the memory in which WRITE SAME repeats its block.
const PATTERN_BYTES: u64 = 1 << 20;
/// Obsolete bits that requested the block's address within its data, and reserved bits of SBC.
const WRITE_SAME_OBSOLETE: u8 = 0x06;
/// The maximum number of runs in one GET LBA STATUS response. The initiator continues after the last one.
const MAXIMUM_LBA_STATUS_DESCRIPTORS: usize = 1024;
/// ANCHOR in UNMAP.
const ANCHOR: u8 = 0x01;
/// PROVISIONING STATUS values (SBC-3 5.4.3).
const STATUS_MAPPED: u8 = 0;
const STATUS_DEALLOCATED: u8 = 1;
const STATUS_ANCHORED: u8 = 2;

/// Returns whether blocks can be unmapped.
pub(crate) fn is_thin(unit: &LogicalUnit) -> bool {
    unit.characteristics().unmap.is_some()
}

/// Returns whether the store reports its space. Thresholds exist only then.
pub(crate) fn tells_space(unit: &LogicalUnit) -> bool {
    unit.characteristics().unmap.is_some_and(|unmap| unmap.tells_space)
}

/// Returns whether zeroed blocks can keep their space.
pub(super) fn can_anchor(unit: &LogicalUnit) -> bool {
    unit.characteristics().unmap.is_some_and(|unmap| unmap.anchors)
}

/// The state of blocks after their unmapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deallocation {
    /// Their space is released.
    Deallocated,
    /// Their space stays reserved (SBC-3 4.7.4.4).
    Anchored,
}

struct WriteSame {
    command: BlockCdb,
    given_back: Option<Deallocation>,
    no_data_out: bool,
}

impl WriteSame {
    fn parse(cdb: &Cdb, unit: &LogicalUnit) -> Result<Self, Sense> {
        let mut command = BlockCdb::parse(cdb)?.protected_for(unit)?;
        let unmap = command.has(wire::FLAGS_UNMAP);
        let no_data_out = command.has(wire::FLAGS_NDOB);
        let anchor = command.has(wire::FLAGS_ANCHOR);
        // SBC-3 5.41: ANCHOR is valid only together with UNMAP.
        if anchor && !(unmap && can_anchor(unit)) {
            return Err(command.refused_bit(4));
        }
        if unmap && unit.characteristics().unmap.is_none() {
            return Err(command.refused_bit(3));
        }
        if command.has(WRITE_SAME_OBSOLETE) {
            return Err(command.refused_bit(2));
        }
        if no_data_out && cdb.operation_code() == opcode::WRITE_SAME_10 {
            return Err(command.refused_bit(0));
        }
        let extent = &mut command.extent;
        if extent.block_count == 0 {
            // WSNZ is 0: a length of zero means all blocks to the end.
            unit.check_range(*extent)?;
            extent.block_count = unit.geometry().block_count.saturating_sub(extent.lba.0);
        }
        if extent.block_count > unit.limits().maximum_write_same_blocks {
            return Err(Sense::invalid_field_in_cdb(command.length_field));
        }
        unit.check_range(*extent)?;
        let kind = if anchor { Deallocation::Anchored } else { Deallocation::Deallocated };
        Ok(Self { command, given_back: unmap.then_some(kind), no_data_out })
    }

    fn data_out_length(&self, unit: &LogicalUnit) -> usize {
        if self.no_data_out { 0 } else { self.command.byte_count(unit, 1) }
    }
}

pub(crate) fn write_same(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let same = WriteSame::parse(&task.cdb, unit)?;
    let length_field = same.command.length_field;
    let block = task.take_data_out_exactly(same.data_out_length(unit), length_field)?;
    let extent = same.command.extent;
    if extent.block_count == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    // With UNMAP the content of the block is ignored, as initiators and their tests expect. They send zeroes, and
    // deallocated blocks read as zeroes too (LBPRZ).
    if let Some(given_back) = same.given_back {
        return Ok(give_back(unit, vec![extent], given_back));
    }
    unit.thresholds().note(extent.block_count);
    // SBC-3 5.42: without Data-Out, protection information is FFh, as for zeroed blocks.
    let zeroes = unit.protection_type().is_none() && block.iter().all(|&byte| byte == 0);
    if same.no_data_out || zeroes {
        return Ok(unit.write_shared(extent, move |unit| {
            unit.store().write_zeroes(extent, unit.durability(false))
        }));
    }
    let tagged = Tagged::of(&same.command, unit).filter(Tagged::is_transferred);
    if let Some(tagged) = &tagged {
        tagged.check_data_out(Extent { block_count: 1, ..extent }, &block)?;
    }
    let writer = Arc::clone(unit);
    Ok(unit.complete_after(async move {
        let _guard = writer.lock_writes_shared(extent).await?;
        let durability = writer.durability(false);
        match tagged {
            Some(tagged) => tagged.write_same(&block, durability).await?,
            None => write_pattern(&**writer.store(), extent, &block, durability).await?,
        }
        Ok(Completion::good())
    }))
}

async fn write_pattern(
    store: &dyn Store,
    extent: Extent,
    block: &[u8],
    durability: Durability,
) -> Result<(), BlockError> {
    let pattern_blocks = PATTERN_BYTES / block.len() as u64;
    let mut done = 0;
    while done < extent.block_count {
        let block_count = pattern_blocks.min(extent.block_count - done);
        let mut pattern = Buffer::for_overwrite(block_count as usize * block.len());
        for copy in pattern.chunks_exact_mut(block.len()) {
            copy.copy_from_slice(block);
        }
        let piece = Extent::new(extent.lba.0 + done, block_count);
        store.write(piece, pattern.into(), durability).wait().await?;
        done += block_count;
    }
    Ok(())
}

fn give_back(
    unit: &Arc<LogicalUnit>,
    extents: Vec<Extent>,
    given_back: Deallocation,
) -> Io<Completion> {
    let writer = Arc::clone(unit);
    unit.complete_after(async move {
        let _guard = writer.lock_writes_shared(Regions::of_extents(&extents)).await?;
        let store = writer.store();
        for &extent in extents.iter().filter(|extent| extent.block_count > 0) {
            match given_back {
                Deallocation::Deallocated => store.unmap(extent),
                Deallocation::Anchored => store.write_zeroes(extent, Durability::Volatile),
            }
            .wait()
            .await?;
        }
        if writer.durability(false) == Durability::Durable {
            store.flush().wait().await?;
        }
        Ok(Completion::good())
    })
}

/// Returns the number of bytes that a WRITE SAME writes: none if it unmaps or zeroes blocks.
pub(crate) fn filled_bytes(command: &Command, unit: &LogicalUnit) -> u64 {
    let sent = sent_bytes(command, unit);
    let Ok(same) = WriteSame::parse(&command.cdb, unit) else { return sent };
    let is_zero =
        || command.data_out.as_ref().is_none_or(|data| data.iter().all(|&byte| byte == 0));
    let writes = same.given_back.is_none() && !same.no_data_out && !is_zero();
    if !writes {
        return sent;
    }
    (same.command.extent.block_count << unit.geometry().block_size.shift()).max(sent)
}

pub(crate) fn write_same_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    Ok(WriteSame::parse(cdb, unit)?.data_out_length(unit))
}

/// Parses the UNMAP parameter list (SBC-3 5.28.2) and checks it against the limits and the medium.
fn parse_unmap_list(list: &[u8], unit: &LogicalUnit) -> Result<Vec<Extent>, Sense> {
    let Ok((header, descriptors)) = report::UnmapHeader::ref_from_prefix(list) else {
        return Err(Sense::parameter_list_length_error());
    };
    let length = usize::from(header.block_descriptor_data_length.get());
    let data_length = usize::from(header.data_length.get());
    if descriptors.len() < length {
        return Err(Sense::parameter_list_length_error());
    }
    if data_length < length + size_of::<report::UnmapHeader>() - 2 {
        return Err(Sense::invalid_field_in_parameter_list(0));
    }
    // SBC-3 5.28.2: an incomplete descriptor at the end is ignored.
    let count = length / size_of::<report::UnmapDescriptor>();
    if count > unit.limits().maximum_unmap_descriptors as usize {
        return Err(Sense::invalid_field_in_parameter_list(2));
    }
    let mut extents = Vec::with_capacity(count);
    let mut total = 0;
    for chunk in descriptors[..length].chunks_exact(size_of::<report::UnmapDescriptor>()) {
        let Ok(descriptor) = report::UnmapDescriptor::ref_from_bytes(chunk) else {
            return Err(Sense::parameter_list_length_error());
        };
        let block_count = u64::from(descriptor.block_count.get());
        let extent = Extent::new(descriptor.lba.get(), block_count);
        unit.check_range(extent)?;
        total += block_count;
        extents.push(extent);
    }
    if total > unit.limits().maximum_unmap_blocks.into() {
        return Err(Sense::invalid_field_in_parameter_list(8));
    }
    Ok(extents)
}

pub(crate) fn unmap(mut task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let length = unmap_data_out(&task.cdb, unit)?;
    let list = task.take_data_out(length)?;
    if length == 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    let extents = parse_unmap_list(&list, unit)?;
    let given_back = match task.cdb.view::<wire::Unmap>().flags & ANCHOR {
        0 => Deallocation::Deallocated,
        _ => Deallocation::Anchored,
    };
    Ok(give_back(unit, extents, given_back))
}

pub(crate) fn unmap_data_out(cdb: &Cdb, unit: &LogicalUnit) -> Result<usize, Sense> {
    let fields = cdb.view::<wire::Unmap>();
    match fields.flags & ANCHOR {
        0 => Ok(fields.parameter_list_length.get().into()),
        _ if can_anchor(unit) => Ok(fields.parameter_list_length.get().into()),
        _ => Err(Sense::invalid_bit_in_cdb(1, 0)),
    }
}

pub(crate) fn get_lba_status(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let fields = task.cdb.view::<wire::ServiceActionIn16>();
    let start = fields.lba.get();
    let allocation_length = fields.allocation_length.get() as usize;
    if start >= unit.geometry().block_count {
        return Err(Sense::lba_out_of_range());
    }
    let wanted = allocation_length
        .saturating_sub(size_of::<report::LbaStatusHeader>())
        .div_ceil(size_of::<report::LbaStatusDescriptor>())
        .clamp(1, MAXIMUM_LBA_STATUS_DESCRIPTORS);
    let store = unit.store().clone();
    Ok(unit.complete_after(async move {
        let descriptors = lba_status(&*store, start, wanted).await?;
        let length = 4 + size_of_val(&*descriptors);
        let header = report::LbaStatusHeader {
            parameter_data_length: (length as u32).into(),
            reserved: [0; 4],
        };
        let bytes = [header.as_bytes(), descriptors.as_bytes()].concat();
        Ok(parameter_data(&bytes, allocation_length))
    }))
}

async fn lba_status(
    store: &dyn Store,
    start: u64,
    wanted: usize,
) -> Result<Vec<report::LbaStatusDescriptor>, BlockError> {
    let end = store.geometry().block_count;
    let mut descriptors = Vec::new();
    let mut lba = start;
    while lba < end && descriptors.len() < wanted {
        let limit = (end - lba).min(u32::MAX.into());
        let run = store.allocation(Extent::new(lba, limit)).wait().await?;
        let block_count = run.block_count.min(limit);
        if block_count == 0 {
            break;
        }
        descriptors.push(report::LbaStatusDescriptor {
            lba: lba.into(),
            block_count: (block_count as u32).into(),
            provisioning_status: match run.allocation {
                Allocation::Mapped => STATUS_MAPPED,
                Allocation::Deallocated => STATUS_DEALLOCATED,
                Allocation::Anchored => STATUS_ANCHORED,
            },
            reserved: [0; 3],
        });
        lba += block_count;
    }
    Ok(descriptors)
}
