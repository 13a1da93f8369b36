//! The commands of a CD or DVD drive in addition to those of a disk (MMC-6). The medium is an image of blocks of 2,048
//! bytes: one closed session with one data track, read-only.

mod configuration;
mod contents;
mod events;
mod mode;
mod sectors;
mod structure;
#[cfg(test)]
mod tests;

use crate::commands::block;
use crate::row::*;
use crate::{AllowedStates, LogicalUnit};
use sarsen_volume::OperationKind::Read;
use sarsen_wire::scsi::multimedia::Msf;
use sarsen_wire::scsi::opcode::*;

/// The commands that only CDs have, by operation code.
#[rustfmt::skip]
pub(crate) const COMMANDS: &[Row] = &[
    row(MODE_SELECT_6, "MODE SELECT(6)", mode::select_6, NONE, &[0x11, 0, 0, ALL, CTL]).with_data_out(mode::select_6_data_out).on_cd_only().even_in(AllowedStates::Standby),
    row(MODE_SENSE_6, "MODE SENSE(6)", mode::sense_6, SHARED, &[0x08, ALL, ALL, ALL, CTL]).on_cd_only().even_in(AllowedStates::Standby),
    row(SEEK_10, "SEEK(10)", sectors::seek, READS, &[0, ALL, ALL, ALL, ALL, 0, 0, 0, CTL]).on_cd_only(),
    row(READ_TOC_PMA_ATIP, "READ TOC/PMA/ATIP", contents::read_toc, READS, &[0x02, 0x0f, 0, 0, 0, ALL, ALL, ALL, 0xc4]).on_cd_only(),
    row(GET_CONFIGURATION, "GET CONFIGURATION", configuration::get_configuration, ANY, &[0x03, ALL, ALL, 0, 0, 0, ALL, ALL, CTL]).on_cd_only(),
    row(GET_EVENT_STATUS_NOTIFICATION, "GET EVENT STATUS NOTIFICATION", events::get_event_status_notification, ANY, &[0x01, 0, 0, ALL, 0, 0, ALL, ALL, CTL]).on_cd_only(),
    row(READ_DISC_INFORMATION, "READ DISC INFORMATION", contents::read_disc_information, READS, &[0x07, 0, 0, 0, 0, 0, ALL, ALL, CTL]).on_cd_only(),
    row(READ_TRACK_INFORMATION, "READ TRACK INFORMATION", contents::read_track_information, READS, &[0x03, ALL, ALL, ALL, ALL, 0, ALL, ALL, CTL]).on_cd_only(),
    row(MODE_SELECT_10, "MODE SELECT(10)", mode::select_10, NONE, &[0x11, 0, 0, 0, 0, 0, ALL, ALL, CTL]).with_data_out(mode::select_10_data_out).on_cd_only().even_in(AllowedStates::Standby),
    row(MODE_SENSE_10, "MODE SENSE(10)", mode::sense_10, SHARED, &[0x08, ALL, ALL, 0, 0, 0, ALL, ALL, CTL]).on_cd_only().even_in(AllowedStates::Standby),
    row(GET_PERFORMANCE, "GET PERFORMANCE", configuration::get_performance, READS, &[0x1f, ALL, ALL, ALL, ALL, 0, 0, ALL, ALL, ALL, CTL]).on_cd_only(),
    row(READ_DISC_STRUCTURE, "READ DISC STRUCTURE", structure::read_disc_structure, READS, &[0x0f, ALL, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0xc0, CTL]).on_cd_only(),
    row(READ_CD_MSF, "READ CD MSF", sectors::read_cd_msf, READS, &[0x1e, 0, ALL, ALL, ALL, ALL, ALL, ALL, 0xfe, 0x07, CTL]).on_cd_only().counted_as(Read).moving(block::expected_bytes),
    row(SET_CD_SPEED, "SET CD SPEED", configuration::set_cd_speed, NONE, &[0x03, ALL, ALL, ALL, ALL, 0, 0, 0, 0, 0, CTL]).on_cd_only(),
    row(MECHANISM_STATUS, "MECHANISM STATUS", events::mechanism_status, SHARED, &[0, 0, 0, 0, 0, 0, 0, ALL, ALL, 0, CTL]).on_cd_only(),
    row(READ_CD, "READ CD", sectors::read_cd, READS, &[0x1e, ALL, ALL, ALL, ALL, ALL, ALL, ALL, 0xfe, 0x07, CTL]).on_cd_only().counted_as(Read).moving(block::expected_bytes),
];

impl Row {
    /// Limits the command to CDs.
    const fn on_cd_only(mut self) -> Self {
        self.devices = CommandDeviceTypes::Cd;
        self
    }
}

/// The capacity of the longest common CD, 80 minutes. A larger medium is a DVD.
const LARGEST_CD_BLOCKS: u64 = 80 * 60 * 75;
/// The address of block 0 in frames: two seconds.
const PREGAP_FRAMES: u32 = 150;
/// The first address in frames that does not fit in minutes, seconds and frames.
const FRAMES_MAX: u32 = 100 * 60 * 75;

/// The type of the disc in the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disc {
    Cd,
    Dvd,
}

impl Disc {
    /// Returns the disc of a unit; `None` if it is ejected.
    fn of(unit: &LogicalUnit) -> Option<Self> {
        let largest_cd = unit.geometry().block_count <= LARGEST_CD_BLOCKS;
        let disc = if largest_cd { Self::Cd } else { Self::Dvd };
        unit.medium().is_present().then_some(disc)
    }
}

/// Returns the number of blocks of a disc, limited to addresses of 32 bits.
fn block_count(unit: &LogicalUnit) -> u32 {
    u32::try_from(unit.geometry().block_count).unwrap_or(u32::MAX)
}

/// Returns the address of a block in minutes, seconds and frames. MMC-6 6.26.3.2: an address without minutes is
/// FF:59:74.
fn msf_of(lba: u32) -> Msf {
    let frames = lba.saturating_add(PREGAP_FRAMES);
    if frames >= FRAMES_MAX {
        return Msf { minute: 0xff, second: 59, frame: 74 };
    }
    let (seconds, frame) = (frames / 75, frames % 75);
    Msf { minute: (seconds / 60) as u8, second: (seconds % 60) as u8, frame: frame as u8 }
}

/// Returns the block at this address; `None` if the address is invalid or before the first block.
fn lba_of(msf: Msf) -> Option<u32> {
    let Msf { minute, second, frame } = msf;
    if second >= 60 || frame >= 75 {
        return None;
    }
    let frames = (u32::from(minute) * 60 + u32::from(second)) * 75 + u32::from(frame);
    frames.checked_sub(PREGAP_FRAMES)
}
