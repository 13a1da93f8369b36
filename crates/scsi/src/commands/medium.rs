//! START STOP UNIT and PREVENT ALLOW MEDIUM REMOVAL (SBC-3 5.25, SBC-4 5.15; MMC-6 6.42, 6.14).

use super::Task;
use crate::medium::RemovalPrevention;
use crate::{Cdb, Completion, DeviceType, Sense, UnitAttention};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;

/// Bits of byte 4 of START STOP UNIT.
const START: u8 = 0x01;
const LOAD_EJECT: u8 = 0x02;
const NO_FLUSH: u8 = 0x04;
/// PREVENT, a field of PREVENT ALLOW MEDIUM REMOVAL.
const PREVENT: u8 = 0x03;

/// Returns whether START STOP UNIT only starts the unit. Persistent reservations then permit it (SBC-3 table 13).
pub(crate) fn only_starts(cdb: &Cdb) -> bool {
    let action = cdb.view::<wire::Short6>().length;
    action & START != 0 && action >> 4 == 0
}

/// Returns whether PREVENT ALLOW MEDIUM REMOVAL allows the removal. Persistent reservations then permit it.
pub(crate) fn only_allows_removal(cdb: &Cdb) -> bool {
    cdb.view::<wire::Short6>().length & PREVENT == 0
}

pub(crate) fn start_stop_unit(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let action = task.cdb.view::<wire::Short6>().length;
    let is_removable = unit.medium().is_removable();
    match action >> 4 {
        // START_VALID
        0x0 => {}
        // ACTIVE, LU_CONTROL
        0x1 | 0x7 => unit.medium().set_stopped(false)?,
        // IDLE, STANDBY, FORCE_IDLE_0, FORCE_STANDBY_0: a medium command ends these states at once.
        0x2 | 0x3 | 0xa | 0xb => {}
        // libiscsi's test suite expects a removable medium to accept every power condition.
        _ if is_removable => {}
        _ => return Err(Sense::invalid_bit_in_cdb(4, 7)),
    }
    if action >> 4 != 0 {
        return Ok(Io::Ready(Completion::good()));
    }
    match (action & LOAD_EJECT != 0, action & START != 0) {
        (true, _) if !is_removable => return Err(Sense::invalid_bit_in_cdb(4, 1)),
        (true, true) => {
            if unit.medium().load()? {
                // The initiator that loaded the medium knows of it.
                unit.raise_except(task.nexus.id, UnitAttention::MediumMayHaveChanged);
            }
            return Ok(Io::Ready(Completion::good()));
        }
        (true, false) => unit.medium().eject()?,
        (false, true) => {
            unit.medium().set_stopped(false)?;
            return Ok(Io::Ready(Completion::good()));
        }
        // A drive with a removable medium starts again for the next command that needs it, as MMC specifies. A stop
        // only writes the cache.
        (false, false) if is_removable => {}
        (false, false) => unit.medium().set_stopped(true)?,
    }
    // The cache is always written before an ejection. NO_FLUSH applies to a stop only.
    match action & (LOAD_EJECT | NO_FLUSH) {
        NO_FLUSH => Ok(Io::Ready(Completion::good())),
        _ => Ok(unit.flush_after_writes()),
    }
}

/// Returns GOOD without effect if the medium cannot be removed, since its removal is always prevented.
pub(crate) fn prevent_allow_medium_removal(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let is_cd = unit.device_type() == DeviceType::Cd;
    let wanted = match task.cdb.view::<wire::Short6>().length & 0x03 {
        0 => RemovalPrevention::Allowed,
        1 => RemovalPrevention::Prevented,
        2 if is_cd => RemovalPrevention::PersistentlyAllowed,
        3 if is_cd => RemovalPrevention::PersistentlyPrevented,
        // Obsolete in SPC-4: the door of a medium changer.
        _ => return Err(Sense::invalid_bit_in_cdb(4, 1)),
    };
    unit.medium().set_removal(task.nexus.id, wanted);
    Ok(Io::Ready(Completion::good()))
}
