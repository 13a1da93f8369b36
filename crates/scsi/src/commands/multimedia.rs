//! The commands of a CD or DVD drive in addition to those of a disk (MMC-6). The medium is an image of blocks of 2,048
//! bytes: one closed session with one data track, read-only.

pub(crate) mod configuration;
pub(crate) mod contents;
pub(crate) mod events;
pub(crate) mod mode;
pub(crate) mod sectors;
pub(crate) mod structure;

use crate::LogicalUnit;
use sarsen_wire::scsi::multimedia::Msf;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mmc6_4_2_3_minutes_and_blocks_tell_the_same_place() {
        let msf = |minute, second, frame| Msf { minute, second, frame };
        for (lba, place) in
            [(0, msf(0, 2, 0)), (1, msf(0, 2, 1)), (4350, msf(1, 0, 0)), (449_849, msf(99, 59, 74))]
        {
            assert_eq!(msf_of(lba), place);
            assert_eq!(lba_of(place), Some(lba));
        }
        for lba in [449_850, u32::MAX] {
            assert_eq!(msf_of(lba), msf(0xff, 59, 74));
        }
        for nowhere in [msf(0, 1, 74), msf(0, 60, 0), msf(3, 0, 75)] {
            assert_eq!(lba_of(nowhere), None);
        }
    }
}
