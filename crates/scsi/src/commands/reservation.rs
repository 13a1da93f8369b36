//! RESERVE and RELEASE (SPC-2 7.16, 7.17, 7.21, 7.22) of a whole unit, and their interaction with persistent
//! reservations (SPC-4 5.12.3).

use super::Task;
use crate::{Completion, Sense, Status};
use sarsen_block::Io;

/// EXTENT and 3RDPTY, which have the same position in the short and the long CDBs. They are obsolete and not supported.
const EXTENT: u8 = 0x01;
const THIRD_PARTY: u8 = 0x10;

fn check(task: &Task<'_>) -> Result<(), Sense> {
    let flags = task.cdb.byte(1);
    if flags & EXTENT != 0 {
        return Err(Sense::invalid_bit_in_cdb(1, 0));
    }
    match flags & THIRD_PARTY {
        0 => Ok(()),
        _ => Err(Sense::invalid_bit_in_cdb(1, 4)),
    }
}

pub(crate) fn reserve(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    check(&task)?;
    Ok(answer(task.unit.volume().reserve_exclusively(task.nexus.id, &task.nexus.name)))
}

pub(crate) fn release(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    check(&task)?;
    Ok(answer(task.unit.volume().release_exclusive(task.nexus.id, &task.nexus.name)))
}

fn answer(good: bool) -> Io<Completion> {
    Io::Ready(if good {
        Completion::good()
    } else {
        Completion::with_status(Status::ReservationConflict)
    })
}
