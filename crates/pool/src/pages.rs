//! Pages of maps in memory. They have the form that they have on a device.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use sarsen_block::Buffer;
use zerocopy::{FromBytes, FromZeros as _, IntoBytes as _};

use crate::format::{
    BASES, BranchPage, ChecksumsPage, CountsPage, FAN_OUT, LeafPage, PageHeader, PageKind, Sealed,
    VolumesPage,
};
use crate::shape::CHUNK_ADDRESS_BITS;

/// A page of a tree.
#[derive(Clone)]
pub(crate) enum Page {
    Branch(Arc<BranchPage>),
    Leaf(Arc<LeafPage>),
    Volumes(Arc<VolumesPage>),
}

/// A page that a checkpoint writes, without its checksum.
pub(crate) enum Unsealed {
    Page(Page),
    Counts(Box<CountsPage>),
    Checksums(Box<ChecksumsPage>),
}

impl Unsealed {
    /// Returns the bytes of the page with its checksum.
    pub(crate) fn sealed(self) -> Buffer {
        match self {
            Self::Page(page) => page.sealed(),
            Self::Counts(mut page) => {
                page.seal();
                Buffer::copy_of(page.as_bytes())
            }
            Self::Checksums(mut page) => {
                page.seal();
                Buffer::copy_of(page.as_bytes())
            }
        }
    }
}

/// Addresses are spread well enough by a multiplication. Maps have the same order each time, so that a history of the
/// simulation can be repeated.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u64(&mut self, number: u64) {
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(self.0.rotate_left(32) ^ u64::from(number));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u32(number.into());
    }
}

/// A map whose keys are addresses.
pub(crate) type AddressMap<K, V> = HashMap<K, V, BuildHasherDefault<AddressHasher>>;

/// A page in memory.
pub(crate) struct Cached {
    pub(crate) page: Page,
    /// Its reference count is 1.
    pub(crate) is_single: bool,
}

/// Pages in memory, by address.
pub(crate) type PageMap = AddressMap<u64, Cached>;

impl Page {
    pub(crate) fn header(&self) -> &PageHeader {
        match self {
            Self::Branch(page) => &page.header,
            Self::Leaf(page) => &page.header,
            Self::Volumes(page) => &page.header,
        }
    }

    fn header_mut(&mut self) -> &mut PageHeader {
        match self {
            Self::Branch(page) => &mut Arc::make_mut(page).header,
            Self::Leaf(page) => &mut Arc::make_mut(page).header,
            Self::Volumes(page) => &mut Arc::make_mut(page).header,
        }
    }

    /// Creates an empty page. Level 0 has leaves or rows of volumes, according to `lowest`.
    pub(crate) fn empty(level: u8, lowest: PageKind) -> Self {
        let kind = if level > 0 { PageKind::Branch } else { lowest };
        let mut page = match kind {
            PageKind::Branch => Self::Branch(Arc::new(BranchPage::new_zeroed())),
            PageKind::Leaf => Self::Leaf(Arc::new(LeafPage::new_zeroed())),
            _ => Self::Volumes(Arc::new(VolumesPage::new_zeroed())),
        };
        let header = page.header_mut();
        (header.kind, header.level) = (kind as u8, level);
        page
    }

    /// Sets where and when the page is written.
    pub(crate) fn place(&mut self, pool: u64, address: u64, generation: u64) {
        let header = self.header_mut();
        header.pool = pool.into();
        header.address = address.into();
        header.generation = generation.into();
    }

    /// Returns the page that was read from a device, if it is intact and belongs there.
    pub(crate) fn parse(bytes: &[u8], pool: u64, address: u64) -> Result<Self, String> {
        let header = PageHeader::read_from_prefix(bytes).map_err(|_| "it is too short")?.0;
        if header.pool.get() != pool || header.address.get() != address {
            return Err("another page is at its place".into());
        }
        fn read<P: Sealed>(bytes: &[u8]) -> Result<Arc<P>, String> {
            let page = P::read_from_bytes(bytes).map_err(|_| "it is too short")?;
            if page.is_intact() { Ok(Arc::new(page)) } else { Err("its checksum is wrong".into()) }
        }
        match (header.kind, header.level) {
            (1, 1..) => Ok(Self::Branch(read(bytes)?)),
            (2, 0) => {
                let leaf: Arc<LeafPage> = read(bytes)?;
                if leaf.is_possible() {
                    Ok(Self::Leaf(leaf))
                } else {
                    Err("it has impossible entries".into())
                }
            }
            (3, 0) => Ok(Self::Volumes(read(bytes)?)),
            (kind, level) => Err(format!("it has the kind {kind} at level {level}")),
        }
    }

    /// Returns the bytes of the page with its checksum.
    fn sealed(&self) -> Buffer {
        fn seal<P: Sealed + Clone>(page: &Arc<P>) -> Buffer {
            let mut page = (**page).clone();
            page.seal();
            Buffer::copy_of(page.as_bytes())
        }
        match self {
            Self::Branch(page) => seal(page),
            Self::Leaf(page) => seal(page),
            Self::Volumes(page) => seal(page),
        }
    }

    /// Returns the addresses of the children of a branch.
    pub(crate) fn children(&self) -> impl Iterator<Item = u64> + '_ {
        let children = match self {
            Self::Branch(page) => &page.children[..],
            Self::Leaf(_) | Self::Volumes(_) => &[],
        };
        children.iter().map(|child| child.get()).filter(|&child| child != 0)
    }

    /// Returns the addresses of all chunks to which the entries of a leaf refer, one for each reference.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = u64> + '_ {
        let leaf = if let Self::Leaf(page) = self { Some(page) } else { None };
        let mappings = leaf.into_iter().flat_map(|page| (0..FAN_OUT).map(|at| page.mapping(at)));
        mappings.flat_map(Mapping::chunks)
    }
}

/// Where the pieces of a chunk of a volume are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// Address of its own chunk, or 0.
    pub(crate) own: u64,
    /// The pieces in its own chunk.
    pub(crate) valid: u16,
    /// Address of its base, or 0.
    pub(crate) base: u64,
    /// The pieces in its base. They are not valid in its own chunk.
    pub(crate) base_pieces: u16,
}

impl Mapping {
    /// Returns the two numbers that a leaf and a record have, without the number of the base.
    pub(crate) const fn to_numbers(self) -> (u64, u64) {
        (
            self.own | (self.valid as u64) << CHUNK_ADDRESS_BITS,
            self.base | (self.base_pieces as u64) << CHUNK_ADDRESS_BITS,
        )
    }

    pub(crate) const fn of_numbers(entry: u64, base: u64) -> Self {
        const ADDRESS: u64 = (1 << CHUNK_ADDRESS_BITS) - 1;
        Self {
            own: entry & ADDRESS,
            valid: (entry >> CHUNK_ADDRESS_BITS) as u16,
            base: base & ADDRESS,
            base_pieces: (base >> CHUNK_ADDRESS_BITS) as u16,
        }
    }

    /// Returns the addresses of the chunks to which it refers.
    pub(crate) fn chunks(self) -> impl Iterator<Item = u64> {
        [self.own, self.base].into_iter().filter(|&chunk| chunk != 0)
    }

    /// Returns whether a chunk is one of its sources.
    pub(crate) const fn refers_to(self, chunk: u64) -> bool {
        chunk == self.own || chunk == self.base
    }

    /// Returns whether each source has pieces, and no piece has two.
    pub(crate) const fn is_possible(self) -> bool {
        (self.own == 0) == (self.valid == 0)
            && (self.base == 0) == (self.base_pieces == 0)
            && (self.own != 0 || self.base == 0)
            && self.valid & self.base_pieces == 0
    }

    /// Returns the pieces that were written.
    pub(crate) const fn pieces(self) -> u16 {
        self.valid | self.base_pieces
    }

    /// Removes pieces.
    pub(crate) const fn without(self, pieces: u16) -> Self {
        Self { valid: self.valid & !pieces, base_pieces: self.base_pieces & !pieces, ..self }
            .normal()
    }

    /// Returns the mapping without sources that have no pieces. A base alone becomes its own chunk.
    pub(crate) const fn normal(mut self) -> Self {
        if self.base_pieces == 0 {
            self.base = 0;
        }
        if self.valid == 0 {
            (self.own, self.valid) = (self.base, self.base_pieces);
            (self.base, self.base_pieces) = (0, 0);
        }
        self
    }
}

impl LeafPage {
    /// Returns whether each entry has its own chunk, or none, and each base belongs to one entry.
    fn is_possible(&self) -> bool {
        let mut used = [false; BASES];
        (0..FAN_OUT).all(|index| {
            let mapping = self.mapping(index);
            let base = (self.entries[index].get() >> 56) as usize;
            let is_base_own = match base.checked_sub(1).map(|base| used.get_mut(base)) {
                None => mapping.base == 0,
                Some(None) => false,
                Some(Some(used)) => mapping.base != 0 && !std::mem::replace(used, true),
            };
            is_base_own && mapping.is_possible()
        })
    }

    /// Returns an entry.
    #[inline]
    pub(crate) fn mapping(&self, index: usize) -> Mapping {
        let entry = self.entries[index].get();
        let base = match (entry >> 56) as usize {
            0 => 0,
            slot => self.bases.get(slot - 1).map_or(0, |base| base.get()),
        };
        Mapping::of_numbers(entry & ((1 << 56) - 1), base)
    }

    /// Returns whether so many other entries can have a base.
    pub(crate) fn has_room_for_bases(&self, count: usize) -> bool {
        self.bases.iter().filter(|base| base.get() == 0).take(count).count() == count
    }

    /// Replaces an entry. If it has a base and had none before, there must be room for one.
    pub(crate) fn set(&mut self, index: usize, mapping: Mapping) {
        let (entry, base) = mapping.to_numbers();
        let mut slot = (self.entries[index].get() >> 56) as usize;
        if base == 0 {
            if slot != 0 {
                self.bases[slot - 1] = 0.into();
            }
            slot = 0;
        } else {
            if slot == 0 {
                let free = self.bases.iter().position(|base| base.get() == 0);
                slot = 1 + free.expect("the caller has found room for a base");
            }
            self.bases[slot - 1] = base.into();
        }
        self.entries[index] = (entry | (slot as u64) << 56).into();
    }
}
