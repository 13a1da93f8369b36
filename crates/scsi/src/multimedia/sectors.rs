//! READ CD, READ CD MSF and SEEK(10) (MMC-6 6.19, 6.20): sectors of a track in mode 1. The image contains their user
//! data.

use super::lba_of;
use crate::commands::block::BlockCdb;
use crate::task::Task;
use crate::{AdditionalSense, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::{Extent, Io};
use sarsen_wire::scsi::multimedia as wire;
use std::sync::Arc;

/// EXPECTED SECTOR TYPE, at its bit position.
const ANY_TYPE: u8 = 0 << 2;
const MODE_1: u8 = 2 << 2;
/// The fields of byte 9 of both CDBs, without its reserved bit.
const SELECTION: u8 = 0xfe;
/// Only USER DATA.
const USER_DATA: u8 = 0x10;
/// SUB-CHANNEL SELECTION.
const SUB_CHANNEL: u8 = 0x07;

/// The fields that select data in both commands, and their offset in the CDB.
struct Selection {
    sector_type: u8,
    parts: u8,
    sub_channel: u8,
}

impl Selection {
    /// Returns whether user data is transferred. The selection may be empty.
    fn check(&self) -> Result<bool, Sense> {
        match self.sector_type & wire::FLAGS_SECTOR_TYPE {
            ANY_TYPE | MODE_1 => {}
            // Audio and mode 2: the disc has no such track.
            _ => {
                let additional = AdditionalSense::ILLEGAL_MODE_FOR_THIS_TRACK;
                return Err(Sense::new(SenseKey::IllegalRequest, additional));
            }
        }
        if self.sub_channel & SUB_CHANNEL != 0 {
            return Err(Sense::invalid_bit_in_cdb(10, 2));
        }
        match self.parts & SELECTION {
            0 => Ok(false),
            USER_DATA => Ok(true),
            // An image contains neither headers nor error correction.
            _ => Err(Sense::invalid_bit_in_cdb(9, 7)),
        }
    }
}

pub(super) fn read_cd(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadCd>();
    let [high, middle, low] = fields.block_count;
    let block_count = u32::from_be_bytes([0, high, middle, low]);
    let extent = Extent::new(fields.lba.get().into(), block_count.into());
    let (sector_type, parts) = (fields.flags, fields.selection);
    let selection = Selection { sector_type, parts, sub_channel: fields.sub_channel };
    read(task.unit, extent, 6, &selection)
}

pub(super) fn read_cd_msf(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadCdMsf>();
    let start = lba_of(fields.start).ok_or(Sense::invalid_field_in_cdb(3))?;
    let end = lba_of(fields.end).ok_or(Sense::invalid_field_in_cdb(6))?;
    let block_count = end.checked_sub(start).ok_or(Sense::invalid_field_in_cdb(6))?;
    let extent = Extent::new(start.into(), block_count.into());
    let (sector_type, parts) = (fields.flags, fields.selection);
    let selection = Selection { sector_type, parts, sub_channel: fields.sub_channel };
    read(task.unit, extent, 6, &selection)
}

fn read(
    unit: &Arc<LogicalUnit>,
    extent: Extent,
    length_field: u16,
    selection: &Selection,
) -> Result<Io<Completion>, Sense> {
    let transfers = selection.check()?;
    if extent.block_count > unit.limits().maximum_transfer_blocks.into() {
        return Err(Sense::invalid_field_in_cdb(length_field));
    }
    unit.check_range(extent)?;
    if transfers && extent.block_count > 0 {
        Ok(unit.finish(unit.store().read(extent), Completion::data))
    } else {
        Ok(Io::Ready(Completion::good()))
    }
}

pub(super) fn seek(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let lba = BlockCdb::parse(&task.cdb)?.extent.lba.0;
    task.unit.check_range(Extent::new(lba, 1))?;
    Ok(Io::Ready(Completion::good()))
}
