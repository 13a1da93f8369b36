//! Walks through the map of an object: what it holds alone, and what it has lost with a device.
//!
//! To find what an object holds alone, a walk goes down only through pages that nothing else refers to. Below a page of two
//! objects, all chunks stay when one of these objects is deleted. So the walk reads as much as a deletion would.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use futures_util::future::join_all;

use crate::error::{Blocked, Load};
use crate::pages::{AddressHasher, Cached, Page};
use crate::pool::live;
use crate::shape::Unit;
use crate::space::SlabPart;
use crate::state::{State, Tree};
use crate::tree::child_of;
use crate::{Pool, PoolError, VolumeId};

/// Maximum number of steps without a pause for others.
const STEPS: usize = 1024;
/// The steps that a leaf costs, with its references to chunks. A page that is passed over costs one.
const LEAF_STEPS: usize = 32;
/// Maximum number of pages, or of slabs whose counts are missing, that are read at the same time. A pool has memory for so
/// many pages whatever its limit is.
const LOADS: usize = 16;
/// Maximum number of chunks with several references that are remembered: about 10 MiB of memory.
const REPEATED_MAX: usize = 1 << 18;

/// What a walk counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Chunks to which nothing else refers.
    Own,
    /// Chunks that were given up with a device.
    Lost,
}

/// A walk through the map of an object.
struct Walk {
    counted: Counted,
    /// The chunk of the volume that is next. It is the first one of a leaf.
    next: u64,
    /// Chunks found so far that count.
    chunks: u64,
    /// The slabs of those that were given up with a device.
    lost: BTreeSet<u32>,
    /// How often the object has referred so far to a chunk with several references.
    repeated: HashMap<u64, u16, BuildHasherDefault<AddressHasher>>,
}

impl Pool {
    /// Returns the bytes of all chunks to which only this volume or snapshot refers: those that become free when it is deleted,
    /// and no other object. Each chunk counts once, however many copies it has. The pages of its map become free as well, and
    /// are not counted.
    ///
    /// The number is exact while the pool does not change. Of what changes meanwhile, each part counts as it was at some moment
    /// of the walk. It is a lower bound for a volume with copies of its own data that share chunks ([`sarsen_block::Store::share`])
    /// if its leaves have more than 262,144 chunks to which the volume or others refer as well: only so many are remembered
    /// until all of their references are found.
    ///
    /// Objects that are being deleted still have references, so their deletion is completed first.
    pub async fn reclaimable_bytes(&self, id: VolumeId) -> Result<u64, PoolError> {
        live(&self.shared.state.read(), id)?;
        self.complete_deletions().await?;
        self.walk(id, Counted::Own).await.map(|(bytes, _)| bytes)
    }

    /// Walks through the map of an object. Returns the bytes of what counts, and the slabs of those that were given up.
    pub(crate) async fn walk(
        &self,
        id: VolumeId,
        counted: Counted,
    ) -> Result<(u64, BTreeSet<u32>), PoolError> {
        let mut walk = Walk::new(counted);
        loop {
            let walked = {
                let state = self.shared.state.read();
                live(&state, id)?;
                let shift = state.shape().chunk_shift;
                let tree = state.object(id.0).map(|object| object.tree());
                match tree.and_then(|tree| state.walk(&tree, &mut walk)) {
                    Ok(true) => return Ok((walk.chunks << shift, walk.lost)),
                    walked => walked,
                }
            };
            match walked {
                Ok(_) => tokio::task::yield_now().await,
                Err(Blocked::Missing(loads)) => {
                    for some in loads.chunks(LOADS) {
                        let loaded = join_all(some.iter().map(|&load| self.shared.load(load)));
                        loaded.await.into_iter().collect::<Result<(), _>>()?;
                    }
                }
                Err(blocked) => self.shared.resolve(blocked).await?,
            }
        }
    }
}

impl State {
    /// Continues a walk for some steps. Returns whether it has reached the end of the map.
    fn walk(&self, tree: &Tree, walk: &mut Walk) -> Result<bool, Blocked> {
        let mut steps = 0;
        while walk.next >> (8 * u32::from(tree.height)) == 0 {
            if steps >= STEPS {
                return Ok(false);
            }
            match self.walked_leaf(tree, walk)? {
                Ok(leaf) => {
                    self.add_leaf(leaf, walk)?;
                    walk.next += 1 << 8;
                    steps += LEAF_STEPS;
                }
                Err(level) => {
                    let covered = 8 * (u32::from(level) + 1);
                    walk.next = ((walk.next >> covered) + 1) << covered;
                    steps += 1;
                }
            }
        }
        Ok(true)
    }

    /// Returns the leaf of the next chunk, unless the walk passes over it. Then returns the level of the highest page on the way
    /// that it passes over.
    fn walked_leaf(&self, tree: &Tree, walk: &Walk) -> Result<Result<&Page, u8>, Blocked> {
        let (mut address, mut parent) = (tree.root, None);
        for level in (0..tree.height).rev() {
            if self.passes_over(walk, address) {
                return Ok(Err(level));
            }
            let Some(Cached { page, .. }) = self.pages.get(&address) else {
                return Err(match parent {
                    None => self.missing_page(address),
                    Some((branch, child)) => self.missing_children(walk, branch, child),
                });
            };
            match page {
                Page::Branch(branch) if level > 0 => {
                    let child = child_of(walk.next, level);
                    (address, parent) = (branch.children[child].get(), Some((page, child)));
                }
                Page::Leaf(_) if level == 0 => return Ok(Ok(page)),
                _ => {
                    let what = format!("page {address:#x} does not belong in a map");
                    return Err(Blocked::Damaged(what));
                }
            }
        }
        Ok(Err(0))
    }

    /// Returns whether a walk passes over a page: there is none, or it has nothing that counts, because several pages or
    /// objects refer to it. The counts of pages are always in memory.
    fn passes_over(&self, walk: &Walk, page: u64) -> bool {
        let is_shared = || self.space.count(Unit::of_page(page)).is_some_and(|count| count > 1);
        page == 0 || walk.counted == Counted::Own && is_shared()
    }

    /// Returns the lack of a child of a branch, and of the next ones that will be needed.
    fn missing_children(&self, walk: &Walk, branch: &Page, first: usize) -> Blocked {
        let Page::Branch(page) = branch else { return Blocked::Missing(Vec::new()) };
        let addresses = page.children[first..].iter().map(|child| child.get());
        let needed = addresses.filter(|address| {
            !self.passes_over(walk, *address) && !self.pages.contains_key(address)
        });
        let mut loads = Vec::with_capacity(LOADS);
        for address in needed.take(LOADS) {
            match self.missing_page(address) {
                Blocked::Missing(mut missing) => loads.append(&mut missing),
                other => return other,
            }
        }
        Blocked::Missing(loads)
    }

    /// Adds the chunks of a leaf. If this fails, nothing was added.
    fn add_leaf(&self, leaf: &Page, walk: &mut Walk) -> Result<(), Blocked> {
        if walk.counted == Counted::Lost {
            let slabs = leaf.chunks().map(|chunk| Unit::of_chunk(chunk).slab);
            for slab in slabs.filter(|&slab| self.space.slab(slab).is_some_and(SlabPart::is_lost)) {
                walk.lost.insert(slab);
                walk.chunks += 1;
            }
            return Ok(());
        }
        let (mut counted, mut missing) = (Vec::with_capacity(256), Vec::new());
        for chunk in leaf.chunks() {
            let unit = Unit::of_chunk(chunk);
            match self.space.count(unit) {
                None if self.space.lacks_counts(unit.slab) => missing.push(Load::Counts(unit.slab)),
                None | Some(0) => {
                    let what =
                        format!("chunk {chunk:#x} is used, and its reference count denies that");
                    return Err(Blocked::Damaged(what));
                }
                Some(count) => counted.push((chunk, count)),
            }
        }
        if !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            return Err(Blocked::Missing(missing));
        }
        for (chunk, count) in counted {
            if count == 1 || walk.is_last_of(chunk, count) {
                walk.chunks += 1;
            }
        }
        Ok(())
    }
}

impl Walk {
    fn new(counted: Counted) -> Self {
        let (lost, repeated) = (BTreeSet::new(), HashMap::default());
        Self { counted, next: 0, chunks: 0, lost, repeated }
    }

    /// Notes a reference to a chunk with several ones. Returns whether the object has all of them.
    fn is_last_of(&mut self, chunk: u64, count: u16) -> bool {
        if !self.repeated.contains_key(&chunk) && self.repeated.len() >= REPEATED_MAX {
            return false;
        }
        let seen = self.repeated.entry(chunk).or_insert(0);
        *seen += 1;
        let is_last = *seen >= count;
        if is_last {
            self.repeated.remove(&chunk);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_chunks_are_remembered_until_all_of_their_references_are_found() {
        let mut walk = Walk::new(Counted::Own);
        assert!((0..REPEATED_MAX as u64).all(|chunk| !walk.is_last_of(chunk, 2)));
        assert!(!walk.is_last_of(u64::MAX, 2) && !walk.is_last_of(u64::MAX, 2), "no room");
        assert!(walk.is_last_of(7, 2));
        assert!(!walk.is_last_of(u64::MAX, 2) && walk.is_last_of(u64::MAX, 2), "room again");
    }
}
