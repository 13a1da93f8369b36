//! READ DISC STRUCTURE (MMC-6 6.22), as far as it applies to a pressed DVD without copy protection.

use super::{Disc, block_count};
use crate::task::{Task, parameter_data};
use crate::{AdditionalSense, Completion, LogicalUnit, Sense, SenseKey};
use sarsen_block::Io;
use sarsen_wire::scsi::multimedia as wire;
use zerocopy::IntoBytes;

/// MEDIA TYPE: DVD.
const MEDIA_TYPE_DVD: u8 = 0;
/// FORMAT CODEs.
const PHYSICAL_FORMAT: u8 = 0x00;
const COPYRIGHT: u8 = 0x01;
const MANUFACTURING: u8 = 0x04;
const STRUCTURE_LIST: u8 = 0xff;
/// RDS: this structure can be read.
const READABLE: u8 = 0x40;
/// The first data sector of every DVD.
const FIRST_SECTOR: u32 = 0x03_0000;
/// Size of a sector in bytes.
const SECTOR_BYTES: usize = 2048;

pub(super) fn read_disc_structure(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let fields = task.cdb.view::<wire::ReadDiscStructure>();
    if fields.media_type & 0x0f != MEDIA_TYPE_DVD {
        return Err(Sense::invalid_bit_in_cdb(1, 3));
    }
    if Disc::of(task.unit) != Some(Disc::Dvd) {
        let additional = AdditionalSense::CANNOT_READ_MEDIUM_INCOMPATIBLE_FORMAT;
        return Err(Sense::new(SenseKey::IllegalRequest, additional));
    }
    if fields.layer != 0 {
        return Err(Sense::invalid_field_in_cdb(6));
    }
    let structure = match fields.format {
        PHYSICAL_FORMAT => physical_format(task.unit),
        // No copy protection, all regions.
        COPYRIGHT => vec![0; 4],
        MANUFACTURING => vec![0; SECTOR_BYTES],
        STRUCTURE_LIST => structure_list(),
        _ => return Err(Sense::invalid_field_in_cdb(7)),
    };
    let header =
        wire::StructureHeader { length: (2 + structure.len() as u16).into(), reserved: 0.into() };
    let bytes = [header.as_bytes(), &structure].concat();
    Ok(Io::Ready(parameter_data(&bytes, fields.allocation_length.get().into())))
}

fn physical_format(unit: &LogicalUnit) -> Vec<u8> {
    let last = block_count(unit).saturating_sub(1).saturating_add(FIRST_SECTOR);
    let format = wire::PhysicalFormat {
        // DVD-ROM, version 1.
        category: 0x01,
        // 120 mm, no maximum rate.
        size_and_rate: 0x0f,
        // One embossed layer.
        layers: 0x01,
        densities: 0,
        first_sector: FIRST_SECTOR.into(),
        last_sector: last.min(0x00ff_ffff).into(),
        last_sector_of_layer_0: 0.into(),
        burst_cutting_area: 0,
    };
    let mut bytes = format.as_bytes().to_vec();
    bytes.resize(SECTOR_BYTES, 0);
    bytes
}

fn structure_list() -> Vec<u8> {
    let entries = [(PHYSICAL_FORMAT, SECTOR_BYTES), (COPYRIGHT, 4), (MANUFACTURING, SECTOR_BYTES)];
    let header = size_of::<wire::StructureHeader>();
    let entries = entries.map(|(format, length)| wire::StructureListEntry {
        format,
        flags: READABLE,
        length: ((header + length) as u16).into(),
    });
    entries.as_bytes().to_vec()
}
