//! SYNCHRONIZE CACHE, PRE-FETCH, START STOP UNIT, PREVENT ALLOW MEDIUM REMOVAL (SBC-3 5.6 to 5.8,
//! 5.20, 5.25, 5.26).

use super::Task;
use super::block::BlockCdb;
use crate::{Completion, Sense};
use sarsen_block::Io;
use sarsen_wire::scsi::cdb as wire;

/// Bits of START STOP UNIT's byte 4.
const START: u8 = 0x01;
const LOAD_EJECT: u8 = 0x02;
const NO_FLUSH: u8 = 0x04;

/// The whole cache is written whatever the range, which the standard allows. IMMED too waits for
/// it: an early GOOD could hide a failure.
pub(crate) fn synchronize_cache(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    unit.check_range(BlockCdb::parse(&task.cdb).extent)?;
    Ok(unit.finish(unit.store().flush(), |()| Completion::good()))
}

/// A hint that nothing follows: stores have caches of their own. GOOD, unlike CONDITION MET, promises
/// nothing about what is in one.
pub(crate) fn pre_fetch(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    task.unit.check_range(BlockCdb::parse(&task.cdb).extent)?;
    Ok(Io::Ready(Completion::good()))
}

pub(crate) fn start_stop_unit(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    let action = task.cdb.view::<wire::Short6>().length;
    let stops = match action >> 4 {
        // START_VALID; the medium cannot be ejected.
        0x0 if action & LOAD_EJECT != 0 => return Err(Sense::invalid_bit_in_cdb(4, 1)),
        0x0 => action & START == 0,
        // ACTIVE, LU_CONTROL
        0x1 | 0x7 => false,
        // IDLE, STANDBY, FORCE_IDLE_0, FORCE_STANDBY_0: states that a medium command ends at once.
        0x2 | 0x3 | 0xa | 0xb => return Ok(Io::Ready(Completion::good())),
        _ => return Err(Sense::invalid_bit_in_cdb(4, 7)),
    };
    if !stops {
        unit.set_stopped(false);
        return Ok(Io::Ready(Completion::good()));
    }
    unit.set_stopped(true);
    match action & NO_FLUSH {
        0 => Ok(unit.flush_after_writes()),
        _ => Ok(Io::Ready(Completion::good())),
    }
}

/// The medium cannot be removed, so it is always prevented.
pub(crate) fn prevent_allow_medium_removal(_task: Task<'_>) -> Result<Io<Completion>, Sense> {
    Ok(Io::Ready(Completion::good()))
}
