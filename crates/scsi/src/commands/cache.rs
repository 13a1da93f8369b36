//! SYNCHRONIZE CACHE, PRE-FETCH (SBC-3 5.6 to 5.8, 5.26).

use super::Task;
use super::block::BlockCdb;
use crate::{Completion, Sense};
use sarsen_block::Io;

/// Writes the whole cache for any range, as the standard permits. IMMED also waits for the end, since an early GOOD
/// could hide a failure.
pub(crate) fn synchronize_cache(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    let unit = task.unit;
    unit.check_range(BlockCdb::parse(&task.cdb)?.extent)?;
    Ok(unit.finish(unit.store().flush(), |()| Completion::good()))
}

/// Does nothing: stores have caches of their own. GOOD, unlike CONDITION MET, promises nothing about the content of a
/// cache.
pub(crate) fn pre_fetch(task: Task<'_>) -> Result<Io<Completion>, Sense> {
    task.unit.check_range(BlockCdb::parse(&task.cdb)?.extent)?;
    Ok(Io::Ready(Completion::good()))
}
