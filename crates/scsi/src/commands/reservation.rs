//! RESERVE and RELEASE (SPC-2 7.16, 7.17, 7.21, 7.22) of a whole unit. Persistent reservations
//! have their room here.

use super::Task;
use crate::{Completion, Sense, Status};
use sarsen_block::Io;

/// EXTENT and 3RDPTY, at the same place in the short and the long forms: obsolete, not supported.
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
    let completion = match task.unit.reserve(task.nexus.id) {
        true => Completion::good(),
        false => Completion::with_status(Status::ReservationConflict),
    };
    Ok(Io::Ready(completion))
}

pub(crate) fn release(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    check(&task)?;
    task.unit.release(task.nexus.id);
    Ok(Io::Ready(Completion::good()))
}
