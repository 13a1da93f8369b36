//! What has changed in a served snapshot since the older snapshots of its volume.

use std::io;
use std::ops::Range;

use sarsen_block::{BlockError, Extent, InvalidRequest, Io, Reply};
use sarsen_pool::{Changes, Pool, PoolError, VolumeId, VolumeInfo, VolumeKind};
use sarsen_volume::{ChangeHistory, ChangeRun};

/// See the module.
pub(crate) struct SnapshotHistory {
    pool: Pool,
    snapshot: VolumeId,
    /// The volume of the snapshot.
    volume: VolumeId,
    /// log2 of the bytes of a block.
    block_shift: u8,
}

impl SnapshotHistory {
    /// Returns the history of a snapshot.
    pub(super) fn of(pool: &Pool, snapshot: &VolumeInfo) -> Option<Self> {
        let volume = snapshot.origin.filter(|_| snapshot.kind == VolumeKind::Snapshot)?;
        let block_shift = snapshot.block_shift;
        Some(Self { pool: pool.clone(), snapshot: snapshot.id, volume, block_shift })
    }

    fn is_older(&self, other: &VolumeInfo) -> bool {
        // Numbers ascend, and are not used again.
        other.kind == VolumeKind::Snapshot
            && other.received.is_none()
            && other.origin == Some(self.volume)
            && other.id < self.snapshot
    }
}

impl ChangeHistory for SnapshotHistory {
    fn states(&self) -> Vec<String> {
        let older = self.pool.volumes().into_iter().filter(|one| self.is_older(one));
        older.map(|one| one.label.name).collect()
    }

    fn changes(&self, since: &str, extent: Extent, maximum: usize) -> Reply<Vec<ChangeRun>> {
        let older = self.pool.find(|one| self.is_older(one) && one.label.name == since);
        let Some(VolumeInfo { id: older, .. }) = older else {
            return Io::Ready(Err(deleted()));
        };
        let (pool, snapshot, shift) = (self.pool.clone(), self.snapshot, self.block_shift);
        Io::pending(async move {
            let range = extent.lba.0 << shift..extent.end() << shift;
            // A run ends where the next change shows it.
            let enough = maximum + 1;
            let found = pool.changes_within(Some(older), snapshot, range.clone(), enough).await;
            let found = found.map_err(|error| match error {
                PoolError::NotFound => deleted(),
                other => other.into(),
            })?;
            let mut runs = runs(&found, &range, shift);
            runs.truncate(maximum);
            Ok(runs)
        })
    }
}

fn deleted() -> BlockError {
    let error = io::Error::new(io::ErrorKind::NotFound, "the older snapshot is deleted");
    InvalidRequest::Rejected(error).into()
}

/// Returns the runs of blocks of a range, as far as it was compared.
fn runs(found: &Changes, range: &Range<u64>, shift: u8) -> Vec<ChangeRun> {
    let mut runs: Vec<ChangeRun> = Vec::new();
    let mut begin = range.start;
    let mut add = |end: u64, is_changed: bool| {
        let block_count = (end - begin) >> shift;
        begin = end;
        match runs.last_mut() {
            _ if block_count == 0 => {}
            Some(last) if last.is_changed == is_changed => last.block_count += block_count,
            _ => runs.push(ChangeRun { block_count, is_changed }),
        }
    };
    for change in &found.changes {
        add(change.offset, false);
        add(change.offset + change.length, true);
    }
    add(found.next.unwrap_or(range.end), false);
    runs
}

#[cfg(test)]
mod tests {
    use sarsen_pool::Change;

    use super::*;

    #[test]
    fn runs_cover_what_was_compared_and_holes_are_changes() {
        let changes = |changes: &[(u64, u64, bool)], next| {
            let change = |&(offset, length, is_hole)| Change { offset, length, is_hole };
            Changes { changes: changes.iter().map(change).collect(), next }
        };
        let runs = |found: &Changes, range| {
            let runs = runs(found, &range, 9).into_iter();
            runs.map(|run| (run.block_count, run.is_changed)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&changes(&[], None), 512..2048), [(3, false)]);
        let found = changes(&[(4096, 4096, false), (8192, 4096, true)], None);
        assert_eq!(runs(&found, 0..12288), [(8, false), (16, true)]);
        assert_eq!(runs(&found, 4096..65536), [(16, true), (104, false)]);
        let found = changes(&[(4096, 4096, true)], Some(16384));
        assert_eq!(runs(&found, 0..1 << 30), [(8, false), (8, true), (16, false)]);
        assert_eq!(runs(&changes(&[], None), 512..512), []);
    }
}
