//! Trees of pages: finding a page, making a path of pages writable, replacing entries, and removing subtrees.
//!
//! A page is writable if it was created in this generation and only one tree has it. Every other page is copied before it
//! changes. If several trees have the page, its copy adds a reference to each of its children.

use std::sync::Arc;

use crate::error::{Blocked, Load};
use crate::format::{FAN_OUT, LeafPage};
use crate::pages::{Cached, Mapping, Page};
use crate::shape::{COUNT_MAX, SlabKind, Unit};
use crate::state::{Reserve, State, Tree};

/// The entry of a chunk, and whether its own chunk can be overwritten.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) mapping: Mapping,
    pub(crate) is_owned: bool,
}

/// A page on the way to a chunk.
pub(crate) struct Reached<'a> {
    pub(crate) page: &'a Page,
    /// Several trees have it.
    pub(crate) is_shared: bool,
    /// It, or a page above it, is contested (see `Space`).
    pub(crate) is_contested: bool,
}

/// Returns the number of the child that leads to a chunk, in a branch of this level.
pub(crate) const fn child_of(chunk: u64, level: u8) -> usize {
    (chunk >> (8 * level as u32) & 0xff) as usize
}

fn damaged_chunk(chunk: u64) -> Blocked {
    Blocked::Damaged(format!(
        "an entry refers to chunk {chunk:#x}, whose reference count denies that"
    ))
}

fn damaged(address: u64, what: &str) -> Blocked {
    Blocked::Damaged(format!("page {address:#x} {what}"))
}

impl State {
    /// Returns where the pieces of a chunk are. This needs no reference counts.
    #[inline]
    pub(crate) fn mapping(&self, id: u32, chunk: u64) -> Result<Mapping, Blocked> {
        let tree = self.object(id)?.tree();
        let leaf = self.leaf(&tree, chunk)?;
        Ok(leaf.map(|(leaf, _)| leaf.mapping((chunk & 0xff) as usize)).unwrap_or_default())
    }

    /// Returns the entry of a chunk.
    #[inline]
    pub(crate) fn find(&self, id: u32, chunk: u64) -> Result<Found, Blocked> {
        let tree = self.object(id)?.tree();
        let Some((leaf, is_own)) = self.leaf(&tree, chunk)? else {
            return Ok(Found { mapping: Mapping::default(), is_owned: false });
        };
        let mapping = leaf.mapping((chunk & 0xff) as usize);
        let is_copied = !self.copying.is_empty() && self.copying.contains(&(id, chunk));
        let is_owned = mapping.own != 0 && is_own && !is_copied && {
            let unit = Unit::of_chunk(mapping.own);
            match self.space.count(unit) {
                Some(0) => return Err(damaged_chunk(mapping.own)),
                Some(count) => count == 1 && !self.space.is_contested(SlabKind::Data, unit),
                None if self.space.lacks_counts(unit.slab) => {
                    return Err(Blocked::Missing(vec![Load::Counts(unit.slab)]));
                }
                None => return Err(damaged_chunk(mapping.own)),
            }
        };
        Ok(Found { mapping, is_owned })
    }

    /// Returns the page of a level on the way to a chunk.
    #[inline]
    pub(crate) fn page(
        &self,
        tree: &Tree,
        chunk: u64,
        level: u8,
    ) -> Result<Option<Reached<'_>>, Blocked> {
        let mut address = tree.root;
        let (mut is_shared, mut is_contested) = (false, false);
        for current in (0..tree.height).rev() {
            if address == 0 {
                return Ok(None);
            }
            let unit = Unit::of_page(address);
            let Some(Cached { page, is_single }) = self.pages.get(&address) else {
                return Err(self.missing_page(address));
            };
            is_shared |= !is_single;
            is_contested |= self.space.is_contested(SlabKind::Pages, unit);
            if current == level {
                return Ok(Some(Reached { page, is_shared, is_contested }));
            }
            let Page::Branch(branch) = page else { return Err(damaged(address, "is no branch")) };
            address = branch.children[child_of(chunk, current)].get();
        }
        Ok(None)
    }

    /// Returns the reason why a page is not in memory.
    pub(crate) fn missing_page(&self, address: u64) -> Blocked {
        match self.space.count(Unit::of_page(address)) {
            Some(0) => damaged(address, "is used, and its reference count denies that"),
            _ => Blocked::Missing(vec![Load::Page(address)]),
        }
    }

    /// Returns the leaf of a chunk, and whether its chunks can be overwritten if nothing else refers to them.
    #[inline]
    pub(crate) fn leaf(
        &self,
        tree: &Tree,
        chunk: u64,
    ) -> Result<Option<(&LeafPage, bool)>, Blocked> {
        if chunk >> (8 * u32::from(tree.height)) != 0 {
            return Ok(None);
        }
        match self.page(tree, chunk, 0)? {
            Some(Reached { page: Page::Leaf(leaf), is_shared, is_contested }) => {
                Ok(Some((leaf, !is_shared && !is_contested)))
            }
            Some(reached) => Err(damaged(reached.page.header().address.get(), "is no leaf")),
            None => Ok(None),
        }
    }

    /// Returns the first chunk from `chunk` on, before `end`, that may have an entry.
    pub(crate) fn next_mapped(
        &self,
        tree: &Tree,
        mut chunk: u64,
        end: u64,
    ) -> Result<Option<u64>, Blocked> {
        'next: while chunk < end {
            for level in (0..tree.height).rev() {
                if self.page(tree, chunk, level)?.is_none() {
                    // The whole subtree is missing.
                    let covered = 8 * (u32::from(level) + 1);
                    chunk = ((chunk >> covered) + 1) << covered;
                    continue 'next;
                }
            }
            return Ok(Some(chunk));
        }
        Ok(None)
    }

    /// Returns an error unless the counts of these chunks are in memory, and another reference can be added to each.
    fn require_counts(&self, chunks: impl Iterator<Item = u64>) -> Result<(), Blocked> {
        let mut missing = Vec::new();
        for (chunk, unit) in chunks.map(|chunk| (chunk, Unit::of_chunk(chunk))) {
            match self.space.count(unit) {
                Some(count) if count >= COUNT_MAX => return Err(Blocked::NoSpace),
                Some(_) => {}
                None if self.space.lacks_counts(unit.slab) => missing.push(Load::Counts(unit.slab)),
                None => return Err(damaged_chunk(chunk)),
            }
        }
        missing.sort_unstable();
        missing.dedup();
        if missing.is_empty() { Ok(()) } else { Err(Blocked::Missing(missing)) }
    }

    /// Returns what is not in memory of that which a change of an entry needs next, if that is known.
    pub(crate) fn lacks(&self, volume: u32, chunk: u64, new: Mapping) -> Vec<Load> {
        let lacked = || {
            let tree = self.object(volume)?.tree();
            let mut had = Vec::new();
            if let Some((leaf, _)) = self.leaf(&tree, chunk)?
                && let Some(Reached { page, is_shared, .. }) = self.page(&tree, chunk, 0)?
            {
                if is_shared {
                    had.extend(page.chunks());
                } else {
                    had.extend(leaf.mapping((chunk & 0xff) as usize).chunks());
                }
            }
            self.require_counts(new.chunks().chain(had))
        };
        match lacked() {
            Err(Blocked::Missing(loads)) => loads,
            _ => Vec::new(),
        }
    }

    /// Makes the pages on the way to a chunk writable, down to a level, and creates missing ones. Returns their addresses,
    /// from the root on. If this fails, nothing has changed.
    pub(crate) fn writable(
        &mut self,
        tree: &mut Tree,
        chunk: u64,
        level: u8,
        reserve: Reserve,
    ) -> Result<Vec<u64>, Blocked> {
        // What must be copied, and what must be created.
        let (mut address, mut is_shared, mut copied, mut missing) = (tree.root, false, 0, 0);
        for current in (level..tree.height).rev() {
            if address == 0 {
                missing += 1;
                continue;
            }
            let page = self.known(address);
            let page = page.ok_or_else(|| self.missing_page(address))?;
            is_shared |= self.space.count(Unit::of_page(address)) != Some(1);
            if is_shared {
                self.require_counts(page.chunks())?;
                let counts = page.children().map(|child| self.space.count(Unit::of_page(child)));
                if counts.flatten().any(|count| count >= COUNT_MAX) {
                    return Err(Blocked::NoSpace);
                }
            }
            copied += usize::from(is_shared || page.header().generation.get() != self.generation);
            if let Page::Branch(branch) = page {
                address = branch.children[child_of(chunk, current)].get();
            }
        }
        let needed = copied + missing;
        if needed > 0 && reserve != Reserve::Checkpoint && !self.is_replaying {
            if self.created.len() + needed > self.created_max {
                return Err(Blocked::Checkpoint);
            }
            let available = self.space.available_pages();
            // A new page is reserved for its volume from then on.
            let is_short = match reserve {
                Reserve::Keep => missing > 0 && available < self.reserve() + 2 * missing as u64,
                _ => available < self.catalogue_pages() + needed as u64,
            };
            if is_short {
                return Err(Blocked::NoSpace);
            }
        }
        let mut taken = Vec::with_capacity(needed);
        while taken.len() < needed {
            match self.space.take_page() {
                Ok((unit, assigned)) => {
                    self.record_assigned(assigned);
                    taken.push(unit);
                }
                Err(blocked) => {
                    for unit in taken {
                        self.space.untake(unit);
                    }
                    return Err(blocked);
                }
            }
        }
        let mut path: Vec<u64> = Vec::with_capacity(tree.height.into());
        let mut address = tree.root;
        for current in (level..tree.height).rev() {
            let is_single = address != 0 && self.space.count(Unit::of_page(address)) == Some(1);
            let known = self.known(address);
            let is_writable = is_single
                && known.is_some_and(|page| page.header().generation.get() == self.generation);
            if !is_writable {
                let unit = taken.pop().expect("as many as were counted");
                let mut page = match known {
                    Some(page) => page.clone(),
                    None => Page::empty(current, tree.lowest),
                };
                let new = unit.to_page();
                page.place(self.pool, new, self.generation);
                self.space.add(unit);
                self.created.push(new);
                if address != 0 {
                    if !is_single {
                        page.children().for_each(|child| self.add_page(child));
                        page.chunks().for_each(|chunk| self.space.add(Unit::of_chunk(chunk)));
                    }
                    // A copy of a contested page leads to the same chunks.
                    let old = Unit::of_page(address);
                    if is_single && self.space.is_contested(SlabKind::Pages, old) {
                        self.space.contest(SlabKind::Pages, unit);
                    }
                    self.remove_page(address);
                }
                self.pages.insert(new, Cached { page, is_single: true });
                match path.last() {
                    Some(parent) => self.set_child(*parent, chunk, current + 1, new),
                    None => tree.root = new,
                }
                address = new;
            }
            path.push(address);
            if let Some(Page::Branch(branch)) = self.known(address) {
                address = branch.children[child_of(chunk, current)].get();
            }
        }
        debug_assert!(taken.is_empty());
        Ok(path)
    }

    /// Replaces a child of a writable branch.
    fn set_child(&mut self, branch: u64, chunk: u64, level: u8, child: u64) {
        if let Some(Page::Branch(page)) = self.known_mut(branch) {
            Arc::make_mut(page).children[child_of(chunk, level)] = child.into();
        }
    }

    /// Adds levels above the root of a tree. Returns the number of pages that this needed.
    pub(crate) fn heighten(&mut self, tree: &mut Tree, levels: u8) -> Result<u32, Blocked> {
        let mut added = 0;
        let wanted = if self.is_replaying { 0 } else { self.reserve() } + 2 * u64::from(levels);
        if levels > 0 && self.space.available_pages() < wanted {
            return Err(Blocked::NoSpace);
        }
        for _ in 0..levels {
            if tree.root != 0 {
                let (unit, assigned) = self.space.take_page()?;
                self.record_assigned(assigned);
                let mut page = Page::empty(tree.height, tree.lowest);
                let address = unit.to_page();
                page.place(self.pool, address, self.generation);
                self.space.add(unit);
                self.created.push(address);
                self.pages.insert(address, Cached { page, is_single: true });
                self.set_child(address, 0, tree.height, tree.root);
                tree.root = address;
                added += 1;
            }
            tree.height += 1;
        }
        Ok(added)
    }

    /// Replaces the entries of consecutive chunks, all in one leaf. If this fails, nothing has changed.
    pub(crate) fn set(
        &mut self,
        volume: u32,
        first: u64,
        mappings: &[Mapping],
    ) -> Result<(), Blocked> {
        let mut tree = self.object(volume)?.tree();
        let indices = (first & 0xff) as usize..(first & 0xff) as usize + mappings.len();
        if indices.end > FAN_OUT || first >> (8 * u32::from(tree.height)) != 0 {
            return Err(Blocked::Damaged("a record has entries outside of their leaf".into()));
        }
        self.require_counts(mappings.iter().flat_map(|mapping| mapping.chunks()))?;
        let mut reserve = Reserve::Keep;
        if let Some((leaf, _)) = self.leaf(&tree, first)? {
            let is_known = |(index, mapping): (usize, &Mapping)| {
                let had = leaf.mapping(index);
                mapping.chunks().all(|chunk| had.refers_to(chunk))
            };
            if indices.clone().zip(mappings).all(is_known) {
                reserve = Reserve::Use;
            }
            let had = indices.clone().map(|index| leaf.mapping(index));
            self.require_counts(had.flat_map(Mapping::chunks))?;
            let is_new = |(index, mapping): &(usize, &Mapping)| {
                mapping.base != 0 && leaf.mapping(*index).base == 0
            };
            let bases = indices.clone().zip(mappings).filter(is_new).count();
            if bases > 0 && !leaf.has_room_for_bases(bases) {
                return Err(Blocked::NoBase);
            }
        }
        let missing = self.missing_pages(&tree, first)?;
        let path = self.writable(&mut tree, first, 0, reserve)?;
        let leaf = *path.last().expect("a path has its page");
        let mut chunks = 0;
        for (index, mapping) in indices.zip(mappings) {
            let Some(Page::Leaf(page)) = self.known_mut(leaf) else { break };
            let page = Arc::make_mut(page);
            let had = page.mapping(index);
            page.set(index, *mapping);
            if mapping.own != 0 {
                let unit = Unit::of_chunk(mapping.own);
                let shift = self.space.shape.chunk_shift;
                self.space.note_write(unit.slab, u64::from(unit.index) << shift, 1 << shift);
            }
            // A reference that stays is not touched: its chunk would count as contested.
            let had_alone = had.chunks().filter(|&chunk| !mapping.refers_to(chunk));
            let new_alone = mapping.chunks().filter(|&chunk| !had.refers_to(chunk));
            new_alone.for_each(|chunk| self.space.add(Unit::of_chunk(chunk)));
            self.unreference(had_alone);
            chunks += mapping.chunks().count() as i64 - had.chunks().count() as i64;
        }
        self.change_row(volume, |row| {
            row.root = tree.root.into();
            row.pages += missing;
            row.chunks = row.chunks.get().saturating_add_signed(chunks).into();
        });
        Ok(())
    }

    /// Returns the number of pages that are missing on the way to a chunk.
    fn missing_pages(&self, tree: &Tree, chunk: u64) -> Result<u32, Blocked> {
        for level in 0..tree.height {
            if self.page(tree, chunk, level)?.is_some() {
                return Ok(level.into());
            }
        }
        Ok(tree.height.into())
    }

    /// Removes the entries of consecutive chunks, all in one leaf. If this fails, nothing has changed.
    pub(crate) fn clear(&mut self, volume: u32, first: u64, count: u32) -> Result<(), Blocked> {
        let tree = self.object(volume)?.tree();
        let indices = (first & 0xff) as usize..(first & 0xff) as usize + count as usize;
        if indices.end > FAN_OUT || first >> (8 * u32::from(tree.height)) != 0 {
            return Err(Blocked::Damaged("a record has entries outside of their leaf".into()));
        }
        let Some((leaf, _)) = self.leaf(&tree, first)? else { return Ok(()) };
        let others = (0..FAN_OUT).filter(|index| !indices.contains(index));
        if others.into_iter().all(|index| leaf.entries[index].get() == 0) {
            return self.cut(volume, first, 0);
        }
        let had = indices.clone().map(|index| leaf.mapping(index));
        self.require_counts(had.flat_map(Mapping::chunks))?;
        if indices.clone().all(|index| leaf.entries[index].get() == 0) {
            return Ok(());
        }
        let mut tree = tree;
        let path = self.writable(&mut tree, first, 0, Reserve::Use)?;
        let address = *path.last().expect("a path has its page");
        let mut removed = 0;
        for index in indices {
            let Some(Page::Leaf(page)) = self.known_mut(address) else { break };
            let page = Arc::make_mut(page);
            let had = page.mapping(index);
            page.set(index, Mapping::default());
            removed += had.chunks().count() as u64;
            self.unreference(had.chunks());
        }
        self.change_row(volume, |row| {
            row.root = tree.root.into();
            row.chunks -= removed;
        });
        Ok(())
    }

    /// Removes the subtree of a level that has a chunk: a leaf, or a subtree that another tree has, too. Branches that are
    /// empty then are removed as well. If this fails, nothing has changed.
    fn cut(&mut self, volume: u32, chunk: u64, level: u8) -> Result<(), Blocked> {
        let mut tree = self.object(volume)?.tree();
        let Some(Reached { page, is_shared, .. }) = self.page(&tree, chunk, level)? else {
            return Ok(());
        };
        let address = page.header().address.get();
        if !is_shared {
            self.require_counts(page.chunks())?;
        }
        // Both numbers are exact for live objects, of which only leaves are cut.
        let (mut removed, chunks) = (1, page.chunks().count() as u64);
        if level + 1 == tree.height {
            self.release(address);
            tree.root = 0;
        } else {
            let mut path = self.writable(&mut tree, chunk, level + 1, Reserve::Use)?;
            self.release(address);
            let mut current = level + 1;
            while let Some(branch) = path.pop() {
                self.set_child(branch, chunk, current, 0);
                let is_empty =
                    self.known(branch).is_some_and(|page| page.children().next().is_none());
                if !is_empty {
                    break;
                }
                self.release(branch);
                removed += 1;
                if path.is_empty() {
                    tree.root = 0;
                }
                current += 1;
            }
        }
        self.change_row(volume, |row| {
            row.root = tree.root.into();
            row.pages = row.pages.get().saturating_sub(removed).into();
            row.chunks = row.chunks.get().saturating_sub(chunks).into();
        });
        Ok(())
    }

    fn known(&self, address: u64) -> Option<&Page> {
        Some(&self.pages.get(&address)?.page)
    }

    fn known_mut(&mut self, address: u64) -> Option<&mut Page> {
        Some(&mut self.pages.get_mut(&address)?.page)
    }

    /// Adds a reference to a page.
    pub(crate) fn add_page(&mut self, address: u64) {
        self.space.add(Unit::of_page(address));
        if let Some(cached) = self.pages.get_mut(&address) {
            cached.is_single = false;
        }
    }

    /// Removes a reference to a page. If it was the last one, returns the page, which is not in memory any more.
    fn remove_page(&mut self, address: u64) -> Option<Page> {
        let unit = Unit::of_page(address);
        if self.space.remove(unit) {
            return self.pages.remove(&address).map(|cached| cached.page);
        }
        if let Some(cached) = self.pages.get_mut(&address) {
            cached.is_single = self.space.count(unit) == Some(1);
        }
        None
    }

    /// Removes one reference to each of these chunks.
    fn unreference(&mut self, chunks: impl Iterator<Item = u64>) {
        for chunk in chunks {
            self.space.remove(Unit::of_chunk(chunk));
        }
    }

    /// Removes a reference to a page. If it was the last one, the page's references to chunks end, too.
    fn release(&mut self, address: u64) {
        if let Some(page) = self.remove_page(address) {
            self.unreference(page.chunks());
        }
    }

    /// Removes a part of the map of an object that is being deleted. Returns whether nothing is left of it.
    pub(crate) fn delete_part(&mut self, id: u32) -> Result<bool, Blocked> {
        let Ok(object) = self.object(id) else { return Ok(true) };
        let tree = object.tree();
        if tree.root == 0 {
            self.remove_object(id);
            return Ok(true);
        }
        // The way to the first leaf, or to the first page that another tree has, too.
        let mut chunk = 0_u64;
        let mut address = tree.root;
        for level in (0..tree.height).rev() {
            let is_shared = self.space.count(Unit::of_page(address)) != Some(1);
            let page = self.known(address);
            let page = page.ok_or_else(|| self.missing_page(address))?;
            if is_shared || level == 0 {
                self.cut(id, chunk, level)?;
                return Ok(false);
            }
            let Page::Branch(branch) = page else { return Err(damaged(address, "is no branch")) };
            let child = branch.children.iter().position(|child| child.get() != 0);
            let child = child.ok_or_else(|| damaged(address, "has no child"))?;
            chunk |= (child as u64) << (8 * u32::from(level));
            address = branch.children[child].get();
        }
        Ok(false)
    }
}
