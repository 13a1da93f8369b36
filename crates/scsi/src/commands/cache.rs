//! SYNCHRONIZE CACHE, PRE-FETCH (SBC-3 5.6 to 5.8, 5.26).

use super::Task;
use super::block::BlockCdb;
use crate::{Completion, Sense};
use sarsen_block::Io;

/// The whole cache is written whatever the range, which the standard allows. IMMED too waits for
/// it: an early GOOD could hide a failure.
pub(crate) fn synchronize_cache(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    unit.check_range(BlockCdb::parse(&task.cdb)?.extent)?;
    Ok(unit.finish(unit.store().flush(), |()| Completion::good()))
}

/// A hint that nothing follows: stores have caches of their own. GOOD, unlike CONDITION MET, promises
/// nothing about what is in one.
pub(crate) fn pre_fetch(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    task.unit.check_range(BlockCdb::parse(&task.cdb)?.extent)?;
    Ok(Io::Ready(Completion::good()))
}
