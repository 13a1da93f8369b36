//! The differences between two snapshots, found in their maps: what both of them share has one address.

use std::ops::Range;

use crate::error::Blocked;
use crate::pages::{Cached, Mapping, Page};
use crate::pool::complete;
use crate::state::{State, Tree};
use crate::{Pool, PoolError, VolumeId};

/// A range of bytes in which two snapshots may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// The newer snapshot has no data there: it reads as zeroes.
    pub is_hole: bool,
}

/// A part of the differences between two snapshots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// The ranges, in order.
    pub changes: Vec<Change>,
    /// The first byte that was not compared, if there are more.
    pub next: Option<u64>,
}

/// Maximum number of ranges in a part.
const CHANGES_MAX: usize = 4096;
/// Maximum number of comparisons without a pause for others.
const STEPS: usize = 1024;

impl Pool {
    /// Returns where a snapshot may differ from an older one, or from an empty volume, from this byte on. Data that was
    /// written again counts as different, even if it is equal.
    pub async fn changes(
        &self,
        since: Option<VolumeId>,
        snapshot: VolumeId,
        offset: u64,
    ) -> Result<Changes, PoolError> {
        self.changes_within(since, snapshot, offset..u64::MAX, CHANGES_MAX).await
    }

    /// Returns where a snapshot may differ from an older one, or from an empty volume, within a range of bytes. It
    /// stops when it has found `enough` changes, and returns up to 15 more. [`Changes::next`] is `None` if it has
    /// compared the whole range.
    pub async fn changes_within(
        &self,
        since: Option<VolumeId>,
        snapshot: VolumeId,
        range: Range<u64>,
        enough: usize,
    ) -> Result<Changes, PoolError> {
        let mut found = Changes { changes: Vec::new(), next: Some(range.start) };
        while let Some(next) = found.next
            && found.changes.len() < enough
        {
            let blocked = {
                let state = self.shared.state.read();
                let older = since.map(|since| complete(&state, since)).transpose()?;
                let newer = complete(&state, snapshot)?;
                if older.is_some_and(|older| older.block_shift != newer.block_shift) {
                    return Err(PoolError::Invalid("the snapshots have blocks of different sizes"));
                }
                let tree = |id: VolumeId| state.object(id.0).map(|object| object.tree());
                let none = Tree { root: 0, height: 0, lowest: crate::format::PageKind::Leaf };
                let trees = (since.map_or(Ok(none), tree), tree(snapshot));
                let (Ok(older), Ok(newer_tree)) = trees else { return Err(PoolError::NotFound) };
                let rest = next..range.end.min(newer.size.get());
                state.compare(&[older, newer_tree], rest, enough, &mut found)
            };
            match blocked {
                Ok(()) => tokio::task::yield_now().await,
                Err(blocked) => self.shared.resolve(blocked).await?,
            }
        }
        Ok(found)
    }
}

/// Returns the chunk and the place of a piece, or `None` for a piece that was not written.
fn source(mapping: Mapping, piece: u16) -> Option<u64> {
    if mapping.valid & piece != 0 {
        Some(mapping.own)
    } else {
        Some(mapping.base).filter(|_| mapping.base_pieces & piece != 0)
    }
}

impl State {
    /// Compares some chunks, and adds what differs.
    fn compare(
        &self,
        trees: &[Tree; 2],
        range: Range<u64>,
        enough: usize,
        found: &mut Changes,
    ) -> Result<(), Blocked> {
        let Range { start: from, end } = range;
        let (shift, piece_shift) = (self.shape().chunk_shift, self.shape().piece_shift());
        let mut chunk = from >> shift;
        for _ in 0..STEPS {
            let start = chunk << shift;
            if start.max(from) >= end {
                found.next = None;
                return Ok(());
            }
            found.next = Some(start.max(from));
            if let Some(levels) = self.shared_levels(trees, chunk)? {
                chunk = ((chunk >> (8 * u32::from(levels))) + 1) << (8 * u32::from(levels));
                found.next = Some(chunk << shift);
                continue;
            }
            let [mut older, mut newer] = [Mapping::default(); 2];
            for (tree, mapping) in trees.iter().zip([&mut older, &mut newer]) {
                if let Some((leaf, _)) = self.leaf(tree, chunk)? {
                    *mapping = leaf.mapping((chunk & 0xff) as usize);
                }
            }
            for number in 0..1 << (shift - piece_shift) {
                let (piece, length) = (1_u16 << number, 1_u64 << piece_shift);
                let offset = start + (number << piece_shift);
                let (offset, after) = (offset.max(from), (offset + length).min(end));
                if offset >= after || source(older, piece) == source(newer, piece) {
                    continue;
                }
                let is_hole = source(newer, piece).is_none();
                let length = after - offset;
                match found.changes.last_mut() {
                    Some(last)
                        if last.offset + last.length == offset && last.is_hole == is_hole =>
                    {
                        last.length += length;
                    }
                    _ => found.changes.push(Change { offset, length, is_hole }),
                }
            }
            chunk += 1;
            found.next = Some(chunk << shift);
            if found.changes.len() >= enough {
                break;
            }
        }
        if chunk << shift >= end {
            found.next = None;
        }
        Ok(())
    }

    /// Returns the number of levels of the largest subtree around a chunk that both maps share, or that neither has.
    fn shared_levels(&self, trees: &[Tree; 2], chunk: u64) -> Result<Option<u8>, Blocked> {
        let [older, newer] = trees;
        let mut addresses = [older.root, newer.root];
        for level in (0..older.height.max(newer.height)).rev() {
            for (tree, address) in trees.iter().zip(&mut addresses) {
                if level >= tree.height {
                    // A smaller map has nothing behind its end, and begins at a lower level.
                    continue;
                }
                if chunk >> (8 * u32::from(tree.height)) != 0 {
                    *address = 0;
                }
            }
            let are_known = trees
                .iter()
                .zip(addresses)
                .all(|(tree, address)| address == 0 || level < tree.height);
            if are_known && addresses[0] == addresses[1] {
                return Ok(Some(level + 1));
            }
            for (tree, address) in trees.iter().zip(&mut addresses) {
                if *address == 0 || level >= tree.height || level == 0 {
                    continue;
                }
                let page = self.pages.get(address).map(|Cached { page, .. }| page);
                let Some(page) = page else { return Err(self.missing_page(*address)) };
                if let Page::Branch(branch) = page {
                    *address = branch.children[crate::tree::child_of(chunk, level)].get();
                }
            }
        }
        Ok(None)
    }
}
