//! What a CD or DVD drive answers beyond a disk's commands (MMC-6). The medium is an image of blocks
//! of 2,048 bytes: one session with one data track, closed, never written.

pub(crate) mod configuration;
pub(crate) mod contents;
pub(crate) mod events;
pub(crate) mod mode;
pub(crate) mod sectors;
pub(crate) mod structure;

use crate::LogicalUnit;
use sarsen_wire::scsi::multimedia::Msf;

/// The longest CD that can be bought plays for 80 minutes; what is larger is a DVD.
const LARGEST_CD_BLOCKS: u64 = 80 * 60 * 75;
/// Block 0 lies two seconds behind the origin of minutes, seconds and frames.
const PREGAP_FRAMES: u32 = 150;
/// The first address that three bytes cannot say.
const FRAMES_MAX: u32 = 100 * 60 * 75;

/// What lies in the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disc {
    Cd,
    Dvd,
}

impl Disc {
    /// The disc of a unit; `None` where it was ejected.
    fn of(unit: &LogicalUnit) -> Option<Self> {
        let largest_cd = unit.geometry().block_count <= LARGEST_CD_BLOCKS;
        let disc = if largest_cd { Self::Cd } else { Self::Dvd };
        unit.medium().is_present().then_some(disc)
    }
}

/// The blocks of a disc, as far as its addresses of 32 bits reach.
fn block_count(unit: &LogicalUnit) -> u32 {
    u32::try_from(unit.geometry().block_count).unwrap_or(u32::MAX)
}

/// Where a block lies. MMC-6 6.26.3.2: a place that has no minutes is called FF:59:74.
fn msf_of(lba: u32) -> Msf {
    let frames = lba.saturating_add(PREGAP_FRAMES);
    if frames >= FRAMES_MAX {
        return Msf { minute: 0xff, second: 59, frame: 74 };
    }
    let (seconds, frame) = (frames / 75, frames % 75);
    Msf { minute: (seconds / 60) as u8, second: (seconds % 60) as u8, frame: frame as u8 }
}

/// The block that lies there; `None` for what is no place on a disc, or before its first block.
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
