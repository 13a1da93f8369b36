//! The sizes of a pool, and where things are on a device.

use crate::format::{CHECKSUMS, COUNTS, PAGE, ROW_PAGES_MAX, ROWS, ROWS_OFFSET};

/// A unit of a slab: a chunk of data, or a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Unit {
    /// Number of its slab, from 1.
    pub(crate) slab: u32,
    /// Its number in the slab.
    pub(crate) index: u32,
}

/// Bits of the number of a chunk in its slab.
const CHUNK_BITS: u32 = 16;
/// Bits of the number of a page in its slab.
const PAGE_BITS: u32 = 18;
/// Bits of the address of a chunk.
pub(crate) const CHUNK_ADDRESS_BITS: u32 = 40;

impl Unit {
    /// Returns the address of a chunk, in 40 bits. It is never 0.
    pub(crate) const fn to_chunk(self) -> u64 {
        (self.slab as u64) << CHUNK_BITS | self.index as u64
    }

    /// Returns the chunk with an address that is not 0.
    pub(crate) const fn of_chunk(address: u64) -> Self {
        Self {
            slab: (address >> CHUNK_BITS) as u32,
            index: (address & ((1 << CHUNK_BITS) - 1)) as u32,
        }
    }

    /// Returns the address of a page. It is never 0.
    pub(crate) const fn to_page(self) -> u64 {
        (self.slab as u64) << PAGE_BITS | self.index as u64
    }

    /// Returns the page with an address that is not 0.
    pub(crate) const fn of_page(address: u64) -> Self {
        Self {
            slab: (address >> PAGE_BITS) as u32,
            index: (address & ((1 << PAGE_BITS) - 1)) as u32,
        }
    }
}

/// The kind of the units of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SlabKind {
    Data = 1,
    Pages = 2,
    /// Chunks of data with checksums.
    Checked = 3,
}

impl SlabKind {
    pub(crate) const fn of(value: u8) -> Option<Self> {
        match value {
            1 => Some(Self::Data),
            2 => Some(Self::Pages),
            3 => Some(Self::Checked),
            _ => None,
        }
    }

    /// Returns whether the units are chunks.
    pub(crate) const fn is_data(self) -> bool {
        matches!(self, Self::Data | Self::Checked)
    }
}

/// The sizes of a pool, which never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// log2 of the bytes of a chunk.
    pub(crate) chunk_shift: u8,
    /// log2 of the bytes of a slab.
    pub(crate) slab_shift: u8,
    /// Bytes of the journal's ring.
    pub(crate) journal: u64,
    /// Number of pages for rows of slabs.
    pub(crate) row_pages: u32,
}

/// Maximum number of references to a unit.
pub(crate) const COUNT_MAX: u16 = u16::MAX - 1;
/// Maximum number of levels of a map.
pub(crate) const HEIGHT_MAX: u8 = 7;
/// Maximum number of bytes of a volume.
pub(crate) const SIZE_MAX: u64 = 1 << 56;
/// Maximum number of pieces of a chunk.
const PIECES_MAX: u8 = 16;
/// Maximum number of regions of a slab.
const REGIONS_MAX: u32 = 64;

impl Shape {
    pub(crate) const CHUNK_SHIFTS: std::ops::RangeInclusive<u8> = 14..=20;
    pub(crate) const SLAB_SHIFTS: std::ops::RangeInclusive<u8> = 20..=30;

    /// Returns the sizes for a new pool of so many bytes in all, whose smallest device has `smallest`: some hundred slabs at
    /// least, none larger than 1 GiB. With tiers, there are four times as many, because slabs are what moves.
    pub(crate) fn for_size(all: u64, smallest: u64, chunk_shift: u8, has_tiers: bool) -> Self {
        let bytes = smallest.max(all / 64);
        let slabs = if has_tiers { 2048 } else { 512 };
        let slab_shift = (bytes / slabs).max(1).ilog2().clamp(20, 30) as u8;
        let slab_shift = slab_shift.max(chunk_shift + 4);
        let journal = (bytes / 64).next_power_of_two().clamp(256 << 10, 16 << 20);
        // More than the slabs of now: the pool can grow.
        let slabs = (all >> slab_shift) / ROWS as u64;
        let row_pages = (4 * slabs).max(bytes / 512 / (2 * PAGE as u64));
        let row_pages = row_pages.clamp(8, ROW_PAGES_MAX as u64) as u32;
        Self { chunk_shift, slab_shift, journal, row_pages }
    }

    /// Returns whether sizes from a superblock can be true.
    pub(crate) fn is_valid(&self) -> bool {
        Self::CHUNK_SHIFTS.contains(&self.chunk_shift)
            && Self::SLAB_SHIFTS.contains(&self.slab_shift)
            && self.slab_shift >= self.chunk_shift + 4
            && self.slab_shift - self.chunk_shift <= CHUNK_BITS as u8
            && u32::from(self.slab_shift) - PAGE.ilog2() <= PAGE_BITS
            && self.journal >= 64 << 10
            && self.journal <= 1 << 30
            && self.journal.is_multiple_of(PAGE as u64)
            && (1..=ROW_PAGES_MAX as u32).contains(&self.row_pages)
    }

    /// Returns log2 of the bytes of a piece.
    pub(crate) const fn piece_shift(&self) -> u8 {
        let smallest = PAGE.ilog2() as u8;
        let sixteenth = self.chunk_shift - PIECES_MAX.ilog2() as u8;
        if sixteenth > smallest { sixteenth } else { smallest }
    }

    /// Returns the number of pieces of a chunk.
    pub(crate) const fn pieces(&self) -> u32 {
        1 << (self.chunk_shift - self.piece_shift())
    }

    /// Returns the mask of all pieces of a chunk.
    pub(crate) const fn all_pieces(&self) -> u16 {
        ((1_u32 << self.pieces()) - 1) as u16
    }

    /// Returns the mask of the pieces that a range of a chunk touches. The range is in bytes, and is not empty.
    pub(crate) const fn pieces_of(&self, start: u64, end: u64) -> u16 {
        let first = start >> self.piece_shift();
        let last = (end - 1) >> self.piece_shift();
        ((1_u32 << (last + 1)) - (1_u32 << first)) as u16
    }

    /// Returns log2 of the bytes of a unit.
    pub(crate) const fn unit_shift(&self, kind: SlabKind) -> u8 {
        match kind {
            SlabKind::Data | SlabKind::Checked => self.chunk_shift,
            SlabKind::Pages => PAGE.ilog2() as u8,
        }
    }

    /// Returns the number of units of a slab.
    pub(crate) const fn units(&self, kind: SlabKind) -> u32 {
        1 << (self.slab_shift - self.unit_shift(kind))
    }

    /// Returns the number of pages of reference counts of a slab.
    pub(crate) const fn counts_pages(&self, kind: SlabKind) -> u32 {
        self.units(kind).div_ceil(COUNTS as u32)
    }

    /// Returns the number of pages of checksums of a slab. They are behind those of reference counts.
    pub(crate) const fn checksum_pages(&self, kind: SlabKind) -> u32 {
        match kind {
            SlabKind::Checked => {
                (1_u32 << (self.slab_shift - PAGE.ilog2() as u8)).div_ceil(CHECKSUMS as u32)
            }
            SlabKind::Data | SlabKind::Pages => 0,
        }
    }

    /// Returns the offset of the first page of checksums in a slab.
    pub(crate) const fn checksums_offset(&self, kind: SlabKind) -> u64 {
        2 * self.counts_pages(kind) as u64 * PAGE as u64
    }

    /// Returns the first unit behind the reference counts and checksums.
    pub(crate) const fn first_unit(&self, kind: SlabKind) -> u32 {
        let pages = 2 * self.counts_pages(kind) + self.checksum_pages(kind);
        (pages * PAGE as u32).div_ceil(1 << self.unit_shift(kind))
    }

    /// Returns the number of units of a slab that can be used.
    pub(crate) const fn usable(&self, kind: SlabKind) -> u32 {
        self.units(kind) - self.first_unit(kind)
    }

    /// Returns the highest number of a slab.
    pub(crate) const fn slabs_max(&self) -> u32 {
        self.row_pages * ROWS as u32 - 1
    }

    /// Returns log2 of the bytes of a region: a part of a slab, for which one bit says whether copies are stale.
    pub(crate) const fn region_shift(&self) -> u8 {
        let smallest = self.slab_shift - REGIONS_MAX.ilog2() as u8;
        if self.chunk_shift > smallest { self.chunk_shift } else { smallest }
    }

    /// Returns one bit for each region that a range of bytes of a slab touches. The range is not empty.
    pub(crate) const fn regions_of(&self, start: u64, end: u64) -> u64 {
        let (first, last) = (start >> self.region_shift(), (end - 1) >> self.region_shift());
        (u64::MAX << first) & (u64::MAX >> (REGIONS_MAX as u64 - 1 - last))
    }

    /// Returns one bit for each region of a slab.
    pub(crate) const fn all_regions(&self) -> u64 {
        self.regions_of(0, 1 << self.slab_shift)
    }

    /// Returns the bytes of a slab before its first unit, which have the reference counts and checksums.
    pub(crate) const fn head(&self, kind: SlabKind) -> u64 {
        (self.first_unit(kind) as u64) << self.unit_shift(kind)
    }

    /// Returns the number of levels of the map of a volume of this many bytes.
    pub(crate) fn height(&self, bytes: u64) -> u8 {
        let chunks = bytes.div_ceil(1 << self.chunk_shift).max(1);
        (1..HEIGHT_MAX).find(|&height| chunks <= 1 << (8 * height)).unwrap_or(HEIGHT_MAX)
    }
}

/// The places on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of slabs.
    pub(crate) slots: u32,
    /// Offset of the journal.
    pub(crate) journal: u64,
    /// Offset of the first slab.
    pub(crate) slabs: u64,
}

impl Layout {
    /// Returns the layout of a device with this many slabs.
    pub(crate) const fn of_slots(shape: &Shape, slots: u32) -> Self {
        let rows = 2 * shape.row_pages as u64 * PAGE as u64;
        let journal = (ROWS_OFFSET + rows).next_multiple_of(64 << 10);
        Self { slots, journal, slabs: (journal + shape.journal).next_multiple_of(1 << 20) }
    }

    /// Returns the layout of a device of this many bytes. It may have no slab.
    pub(crate) fn of_bytes(shape: &Shape, bytes: u64) -> Self {
        let slabs = bytes.saturating_sub(Self::of_slots(shape, 0).slabs) >> shape.slab_shift;
        Self::of_slots(shape, u32::try_from(slabs).unwrap_or(u32::MAX))
    }

    /// Returns the offset of a place of a page of rows.
    pub(crate) const fn rows(page: u32, place: bool) -> u64 {
        ROWS_OFFSET + (2 * page as u64 + place as u64) * PAGE as u64
    }

    /// Returns the offset of a slab.
    pub(crate) const fn slab(&self, shape: &Shape, slot: u32) -> u64 {
        self.slabs + ((slot as u64) << shape.slab_shift)
    }

    /// Returns the bytes that the device needs.
    pub(crate) const fn end(&self, shape: &Shape) -> u64 {
        self.slab(shape, self.slots)
    }
}
