//! The layout of a pool on its devices, version 5. All numbers are little-endian. `docs/pool-format.md` describes it for
//! other programs.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::copies::COPIES_MAX;

/// Bytes of a page, of a superblock, and of the unit of all metadata.
pub(crate) const PAGE: usize = 4096;
/// Children of a branch, and entries of a leaf.
pub(crate) const FAN_OUT: usize = 256;
/// Bases that one leaf can have.
pub(crate) const BASES: usize = 252;
/// Reference counts in a page.
pub(crate) const COUNTS: usize = 2032;
/// Checksums in a page.
pub(crate) const CHECKSUMS: usize = 1016;
/// Rows of slabs in a page.
pub(crate) const ROWS: usize = 63;
/// Rows of volumes in a page.
pub(crate) const VOLUMES: usize = 15;
/// Levels of the tree that has the rows of volumes.
pub(crate) const CATALOGUE_HEIGHT: u8 = 3;
/// Maximum number of devices of a pool.
pub(crate) const DEVICES_MAX: usize = 32;
/// Maximum generation of a checkpoint. No pool reaches it; the ones behind it are for numbers that are calculated from it.
pub(crate) const GENERATION_MAX: u64 = 1 << 63;
/// Maximum number of pages with rows of slabs.
pub(crate) const ROW_PAGES_MAX: usize = 1 << 14;
/// Places of a device's two superblocks.
pub(crate) const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];
/// Place of the first page of rows.
pub(crate) const ROWS_OFFSET: u64 = 128 << 10;
/// Maximum length of a name in bytes.
pub(crate) const NAME_MAX: usize = 127;

pub(crate) const MAGIC: [u8; 8] = *b"sarsen\x1ap";
/// The version of pools in which a volume is being filled from an image.
pub(crate) const VERSION: u32 = 5;
/// The version of pools without such a volume in which a slab is lost.
pub(crate) const VERSION_LOST: u32 = 4;
/// The version of all other pools.
pub(crate) const VERSION_WHOLE: u32 = 3;
/// The oldest version that this program opens. It has no slabs with checksums.
pub(crate) const VERSION_MIN: u32 = 2;

/// Returns the CRC32C of a page whose first four bytes, which hold it, count as zero.
pub(crate) fn checksum_of(page: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&[0; 4]);
    digest.update(&page[4..]);
    digest.finalize() as u32
}

/// A type that fills one page and begins with its checksum.
pub(crate) trait Sealed: FromBytes + IntoBytes + Immutable + KnownLayout {
    /// Writes the checksum.
    fn seal(&mut self) {
        let checksum = checksum_of(self.as_bytes());
        self.as_mut_bytes()[..4].copy_from_slice(&checksum.to_le_bytes());
    }

    /// Returns whether the checksum is correct.
    fn is_intact(&self) -> bool {
        self.as_bytes()[..4] == checksum_of(self.as_bytes()).to_le_bytes()
    }
}

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum PageKind {
    Branch = 1,
    Leaf = 2,
    Volumes = 3,
    Counts = 4,
    Rows = 5,
    Checksums = 6,
}

/// The beginning of every page but the superblock.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PageHeader {
    pub(crate) checksum: U32,
    /// A [`PageKind`].
    pub(crate) kind: u8,
    /// Levels of the tree below this page.
    pub(crate) level: u8,
    pub(crate) reserved: U16,
    /// The first eight bytes of the pool's identifier.
    pub(crate) pool: U64,
    /// Its own address. A page of counts or checksums has the number of its slab and its own number in it; a page of rows
    /// has its number.
    pub(crate) address: U64,
    /// Generation of the checkpoint that wrote it.
    pub(crate) generation: U64,
}

/// Addresses of pages one level below. 0: there is none.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BranchPage {
    pub(crate) header: PageHeader,
    pub(crate) children: [U64; FAN_OUT],
    pub(crate) reserved: [u8; PAGE - 32 - 8 * FAN_OUT],
}

/// The entries of consecutive chunks of a volume.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct LeafPage {
    pub(crate) header: PageHeader,
    /// 40 bits: address of the chunk, or 0; 16 bits: its valid pieces; 8 bits: number of its base, from 1, or 0.
    pub(crate) entries: [U64; FAN_OUT],
    /// 40 bits: address of the chunk; 16 bits: pieces that are read from it. 0: unused.
    pub(crate) bases: [U64; BASES],
}

/// Rows of volumes and snapshots.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct VolumesPage {
    pub(crate) header: PageHeader,
    pub(crate) rows: [VolumeRow; VOLUMES],
    pub(crate) reserved: [u8; PAGE - 32 - VOLUMES * 256],
}

/// A volume or a snapshot.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct VolumeRow {
    /// Number of the object, from 1. 0: the row is unused.
    pub(crate) id: U32,
    /// 1: volume, 2: snapshot.
    pub(crate) kind: u8,
    /// Bit 0: it is being deleted. Bit 1: it is protected from deletion. Bit 2: it is a snapshot that is being received.
    /// Bit 3: it is a volume that is being filled from an image.
    pub(crate) flags: u8,
    /// Levels of its map.
    pub(crate) height: u8,
    /// log2 of the size of a logical block.
    pub(crate) block_shift: u8,
    /// The volume of a snapshot, the snapshot of a clone, or 0.
    pub(crate) origin: U32,
    /// Pages of its map.
    pub(crate) pages: U32,
    /// Size in bytes.
    pub(crate) size: U64,
    /// Address of the root of its map, or 0.
    pub(crate) root: U64,
    /// Seconds since 1970.
    pub(crate) created: U64,
    pub(crate) identifier: [u8; 16],
    /// UTF-8, padded with zeroes.
    pub(crate) name: [u8; NAME_MAX + 1],
    /// References of its map to chunks.
    pub(crate) chunks: U64,
    /// Number of copies of its data, on as many devices.
    pub(crate) copies: u8,
    /// Number of slabs, on as many devices if there are, over which consecutive chunks are spread.
    pub(crate) stripes: u8,
    /// Of a snapshot that is being received: the identifier of the one that it was compared with, or zeroes.
    pub(crate) base: [u8; 16],
    /// The byte up to which it was received.
    pub(crate) received: U64,
    /// And the size that it gets, in bytes. Of a volume that is being filled: the size of the disk in its image.
    pub(crate) size_to_be: U64,
    /// 1: its data has checksums.
    pub(crate) checksums: u8,
    pub(crate) reserved: [u8; 29],
}

pub(crate) const IS_VOLUME: u8 = 1;
pub(crate) const IS_SNAPSHOT: u8 = 2;
pub(crate) const DELETING: u8 = 1;
pub(crate) const PROTECTED: u8 = 2;
pub(crate) const RECEIVING: u8 = 4;
pub(crate) const FILLING: u8 = 8;

/// Reference counts of consecutive units of a slab.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct CountsPage {
    pub(crate) header: PageHeader,
    pub(crate) counts: [U16; COUNTS],
}

/// Checksums of consecutive blocks of 4 KiB of a slab. 0: the block has none.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ChecksumsPage {
    pub(crate) header: PageHeader,
    pub(crate) checksums: [U32; CHECKSUMS],
}

/// Rows of slabs with consecutive numbers.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RowsPage {
    pub(crate) header: PageHeader,
    pub(crate) rows: [SlabRow; ROWS],
    pub(crate) reserved: [u8; PAGE - 32 - ROWS * 64],
}

/// A slab.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SlabRow {
    /// 0: no slab has this number, 1: chunks of data, 2: pages, 3: chunks of data with checksums.
    pub(crate) kind: u8,
    /// Number of copies that its volumes want.
    pub(crate) wanted: u8,
    /// Number of its copies.
    pub(crate) copies: u8,
    /// One bit for each copy that lacks something.
    pub(crate) stale: u8,
    /// Units with a reference count above 0.
    pub(crate) used: U32,
    /// For each page of counts, the valid one of its two places.
    pub(crate) places: [u8; 20],
    /// The slots of the copies.
    pub(crate) slots: [SlotRow; COPIES_MAX],
    /// One bit for each 64th part of the slab of which a stale copy may have something else.
    pub(crate) regions: U64,
    pub(crate) reserved: [u8; 8],
}

/// A slot of a device.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SlotRow {
    pub(crate) number: U32,
    pub(crate) device: u8,
}

/// The state of a pool, in two places on each device.
#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Superblock {
    pub(crate) checksum: U32,
    pub(crate) version: U32,
    pub(crate) magic: [u8; 8],
    pub(crate) pool: [u8; 16],
    /// Number of the checkpoint.
    pub(crate) generation: U64,
    /// Generation of the first checkpoint after the pool was opened. Frames of the journal repeat it.
    pub(crate) run: U64,
    /// Address of the root of the tree with the rows of volumes, or 0.
    pub(crate) catalogue: U64,
    /// Number of the first frame of the journal that belongs to this checkpoint, and its offset in the ring.
    pub(crate) frame: U64,
    pub(crate) frame_offset: U64,
    /// Number of the next volume or snapshot.
    pub(crate) next_volume: U32,
    /// The number of this device.
    pub(crate) device: U16,
    pub(crate) reserved_count: U16,
    pub(crate) chunk_shift: u8,
    pub(crate) slab_shift: u8,
    pub(crate) reserved: [u8; 6],
    /// Bytes of the journal's ring on each device.
    pub(crate) journal: U64,
    /// UTF-8, padded with zeroes.
    pub(crate) name: [u8; NAME_MAX + 1],
    pub(crate) devices: [DeviceRow; DEVICES_MAX],
    /// For each page of rows of slabs, the valid one of its two places.
    pub(crate) places: [u8; ROW_PAGES_MAX / 8],
    /// Number of pages for rows of slabs, on each device.
    pub(crate) row_pages: U32,
    /// Number of rows of slabs that may be in use. The pages behind them were never written.
    pub(crate) row_count: U32,
    pub(crate) unused: [u8; PAGE - 96 - (NAME_MAX + 1) - DEVICES_MAX * 32 - ROW_PAGES_MAX / 8 - 8],
}

/// A device, in each superblock of the pool.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceRow {
    pub(crate) identifier: [u8; 16],
    /// Number of slabs that fit on it. 0: no device has this number.
    pub(crate) slots: U32,
    /// Bit 0: it is left out. Bit 1: everything on it is stale. Bit 2: it is to be removed. Bit 3: it is a keeper.
    pub(crate) flags: u8,
    pub(crate) reserved: u8,
    /// How often it was left out, modulo 65,536.
    pub(crate) absences: U16,
    /// Generation of the last checkpoint that it is known to have.
    pub(crate) last: U64,
}

pub(crate) const LEFT_OUT: u8 = 1;
pub(crate) const ALL_STALE: u8 = 2;
pub(crate) const LEAVING: u8 = 4;
pub(crate) const KEEPER: u8 = 8;

/// The beginning of a frame of the journal. Records follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FrameHeader {
    /// CRC32C of the rest of the frame.
    pub(crate) checksum: U32,
    /// Bytes of the records.
    pub(crate) length: U32,
    pub(crate) magic: [u8; 8],
    pub(crate) pool: U64,
    pub(crate) run: U64,
    /// Number of the frame. Numbers are consecutive.
    pub(crate) number: U64,
}

pub(crate) const FRAME_MAGIC: [u8; 8] = *b"sarsen\x1aj";

impl Superblock {
    /// Returns the devices that have the rows of slabs and the journal, and are not left out.
    pub(crate) fn keepers(&self) -> Vec<u8> {
        let is_keeper = |(_, row): &(u8, &DeviceRow)| row.flags & (KEEPER | LEFT_OUT) == KEEPER;
        (0..).zip(&self.devices).filter(is_keeper).map(|(device, _)| device).collect()
    }
}

impl Sealed for BranchPage {}
impl Sealed for LeafPage {}
impl Sealed for VolumesPage {}
impl Sealed for CountsPage {}
impl Sealed for ChecksumsPage {}
impl Sealed for RowsPage {}
impl Sealed for Superblock {}

const _: () = {
    assert!(size_of::<PageHeader>() == 32);
    assert!(size_of::<BranchPage>() == PAGE);
    assert!(size_of::<LeafPage>() == PAGE);
    assert!(size_of::<VolumeRow>() == 256);
    assert!(size_of::<VolumesPage>() == PAGE);
    assert!(size_of::<CountsPage>() == PAGE);
    assert!(size_of::<SlabRow>() == 64);
    assert!(size_of::<ChecksumsPage>() == PAGE);
    assert!(size_of::<RowsPage>() == PAGE);
    assert!(size_of::<DeviceRow>() == 32);
    assert!(size_of::<Superblock>() == PAGE);
    assert!(size_of::<FrameHeader>() == 40);
};

/// Returns a name of at most [`NAME_MAX`] bytes, padded.
pub(crate) fn padded(name: &str) -> [u8; NAME_MAX + 1] {
    let mut padded = [0; NAME_MAX + 1];
    padded[..name.len()].copy_from_slice(name.as_bytes());
    padded
}

/// Returns a padded name.
pub(crate) fn unpadded(name: &[u8; NAME_MAX + 1]) -> String {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(NAME_MAX);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// Returns the number of a pool that all its pages have.
pub(crate) fn pool_number(identifier: &[u8; 16]) -> u64 {
    u64::from_le_bytes(*identifier.first_chunk().expect("16 bytes have 8"))
}

/// Returns a bit of a bitmap.
pub(crate) fn bit(bits: &[u8], index: usize) -> bool {
    bits[index / 8] >> (index % 8) & 1 == 1
}

/// Inverts a bit of a bitmap, and returns its new value.
pub(crate) fn flip(bits: &mut [u8], index: usize) -> bool {
    bits[index / 8] ^= 1 << (index % 8);
    bit(bits, index)
}
